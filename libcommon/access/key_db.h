/* key_db.h - the database that stores API keys: a SQLite file (key_sqlite.c), or PostgreSQL, which
 * several machines share (key_postgres.c).
 *
 * Both run the same statements, in the SQL that both understand.  Parameters are $1, $2 and so on,
 * and must first appear in this order. */
#ifndef ZSE_ACCESS_KEY_DB_H
#define ZSE_ACCESS_KEY_DB_H

#include "libcommon/access/keys.h"
#include "libcommon/base/sha256.h"

/* MUST_EXIST: fail if there are no tables; MAY_CREATE: make them; READ_ONLY: make nothing.  For
 * PostgreSQL READ_ONLY is the same as MUST_EXIST. */
enum key_db_mode { MUST_EXIST, MAY_CREATE, READ_ONLY };

enum key_value_kind { VALUE_NUMBER, VALUE_TEXT, VALUE_HASH };
struct key_value { enum key_value_kind kind; int64_t number; const void *data; /* text, or SHA256_SIZE bytes */ };
/* a value of a row; text: "" and bytes: NULL if the column has another type */
struct key_cell { int64_t number; const char *text; const uint8_t *bytes; size_t size; };

struct key_query {
    const char *sql;
    const struct key_value *values; int n_values;
    /* called for each row, may be NULL; -1 with *e ends the query */
    int (*row)(void *user, const struct key_cell *cell, struct err *e);
    void *user;
    int64_t n_changed;                      /* set by run: rows changed, or returned */
};

struct key_db;
struct key_db_class {
    int (*run)(struct key_db *db, struct key_query *q, struct err *e);
    /* Begin a transaction that excludes other writers of the keys.  "COMMIT" or "ROLLBACK" ends
     * it. */
    int (*begin)(struct key_db *db, struct err *e);
    /* Set *version to a number that differs from the last one if the keys may have changed.  Opens
     * a file that was replaced, or a connection that was lost. */
    int (*version)(struct key_db *db, int64_t *version, struct err *e);
    void (*set_patience)(struct key_db *db, int ms);
    void (*close)(struct key_db *db);
};
struct key_db {
    const struct key_db_class *class;
    char *name;                             /* for messages: a path, or a URL without its password */
    int locked;                             /* the last error was a lock that another program held too long */
};

/* where: a folder, or a URL of PostgreSQL. */
struct key_db *key_db_open(const char *where, enum key_db_mode mode, struct err *e);
struct key_db *key_sqlite_open(const char *folder, enum key_db_mode mode, struct err *e);
struct key_db *key_postgres_open(const char *url, enum key_db_mode mode, struct err *e);
int key_db_run(struct key_db *db, const char *sql, struct err *e);      /* no parameters, no rows */

/* ---- queries for both ---- */
#define KEY_COLUMNS "id, name, created, expires, requests_minute, tokens_minute, tokens_day, scopes, models, enabled"
void key_info_read(const struct key_cell *cell, struct key_info *k);    /* from KEY_COLUMNS */
int key_db_required(struct key_db *db, int *required, struct err *e);

/* all keys at one time, in memory */
struct known { uint8_t hash[SHA256_SIZE]; struct key_info info; };
struct key_copy { struct known *known; int n, required; };
int key_copy_load(struct key_db *db, struct key_copy *c, struct err *e);
/* Append room for one more element of `size` bytes to a list of n; -1: out of memory. */
int key_list_grow(void **list, int n, size_t size, struct err *e);

#endif

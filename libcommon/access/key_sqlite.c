/* key_sqlite.c - API keys in the SQLite file FOLDER/keys.db. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "libcommon/access/key_db.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"

enum { MAX_COLUMNS = 16 };

struct sqlite_keys {
    struct key_db db;                               /* name: the path */
    sqlite3 *sql;
    ino_t ino;                                      /* inode of the open file */
    enum key_db_mode mode;
    int absent;                                     /* the file is missing; the tables are empty ones in memory */
    int64_t n_opened;                               /* how often a file was opened */
    uint64_t until_ns;                              /* deadline of waiting for other connections */
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS keys ("
    " id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, hash BLOB NOT NULL UNIQUE, created INTEGER NOT NULL, expires INTEGER NOT NULL,"
    " requests_minute INTEGER NOT NULL, tokens_minute INTEGER NOT NULL, tokens_day INTEGER NOT NULL, scopes INTEGER NOT NULL, models TEXT NOT NULL,"
    " enabled INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value INTEGER NOT NULL);"
    "PRAGMA user_version = 1;";

/* ---- SQLite ---- */

static struct sqlite_keys *sqlite_of(struct key_db *db) { return (struct sqlite_keys *)db; }

static void set_patience(struct key_db *db, int ms)
{
    sqlite_of(db)->until_ns = clock_ns() + (uint64_t)ms * 1000000u;
}

/* Busy handler of SQLite, called for the n-th time: 1 after a pause, 0 after the deadline. */
static int wait_for_others(void *user, int n)
{
    const struct sqlite_keys *k = user;
    if (clock_ns() >= k->until_ns)
        return 0;
    nanosleep(&(struct timespec){ .tv_nsec = n < 10 ? 1000000 : 10000000 }, NULL);
    return 1;
}

static int locked_error(struct sqlite_keys *k, struct err *e)
{
    k->db.locked = 1;
    return err_set(e, ERR_IO, "%s: another program holds it locked", k->db.name);
}

static const char *folder_of(const struct sqlite_keys *k, char folder[4096])
{
    snprintf(folder, 4096, "%.*s", (int)(strrchr(k->db.name, '/') - k->db.name), k->db.name);
    return folder;
}

/* Explain a refused change: the file is read-only, or the folder is, in which SQLite makes its
 * journal.  0: neither is. */
static int cannot_write(struct sqlite_keys *k, struct err *e)
{
    const int cut = sqlite3_extended_errcode(k->sql) == SQLITE_READONLY_ROLLBACK;
    char folder[4096];
    if (access(k->db.name, W_OK) != 0)
        return err_sys(e, cut ? "%s: a change that was cut short cannot be taken back" : "%s: cannot be written",
                       k->db.name);
    return access(folder_of(k, folder), W_OK) != 0
               ? err_sys(e, "%s: cannot be changed, as its folder cannot be written", k->db.name) : 0;
}

static int sql_error(struct sqlite_keys *k, struct err *e)
{
    const int code = sqlite3_errcode(k->sql);
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
        return locked_error(k, e);
    k->db.locked = 0;
    if ((code == SQLITE_READONLY || code == SQLITE_CANTOPEN) && cannot_write(k, e))
        return -1;
    if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT)
        return err_set(e, ERR_FORMAT, "%s: is damaged (%s); move it away to begin with an empty one: its keys are then worth nothing", k->db.name, sqlite3_errmsg(k->sql));
    return err_set(e, ERR_IO, "%s: %s", k->db.name, sqlite3_errmsg(k->sql));
}

static int run(struct sqlite_keys *k, const char *sql, struct err *e)
{
    return sqlite3_exec(k->sql, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : sql_error(k, e);
}

static sqlite3_stmt *prepare(struct sqlite_keys *k, const char *sql, struct err *e)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(k->sql, sql, -1, &s, NULL) != SQLITE_OK)
        sql_error(k, e);
    return s;
}

/* Create the file ourselves, because SQLite would leave its mode to the umask.  Its journal takes
 * the same mode. */
static int make_file(struct sqlite_keys *k, struct err *e)
{
    struct stat st;
    const int fd = k->mode == MAY_CREATE ? open(k->db.name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        file_give(fd, k->db.name);
        close(fd);
    } else if (k->mode == MAY_CREATE && errno != EEXIST) {
        return err_sys(e, "%s", k->db.name);
    }
    if (lstat(k->db.name, &st)) {
        k->absent = k->mode == READ_ONLY && errno == ENOENT;
        return k->absent ? 0 : err_sys(e, "%s", k->db.name);
    }
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: is no regular file", k->db.name);
    k->ino = st.st_ino;
    char folder[4096];
    return file_is_ours(k->db.name, &st, folder_of(k, folder), e);
}

/* Set *n to the number that a PRAGMA returns. */
static int pragma(struct sqlite_keys *k, const char *sql, int64_t *n, struct err *e)
{
    sqlite3_stmt *s = prepare(k, sql, e);
    if (!s)
        return -1;
    const int rc = sqlite3_step(s) == SQLITE_ROW ? 0 : sql_error(k, e);
    *n = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return rc;
}

/* Lock the creation of a new file against other programs; -1: *e. */
static int take_lock(struct sqlite_keys *k, struct err *e)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.lock", k->db.name);
    const int fd = file_open_made(path, O_RDWR);
    int n = 0, rc;
    if (fd < 0)
        return err_sys(e, "%s", path);
    while ((rc = flock(fd, LOCK_EX | LOCK_NB)) && errno == EWOULDBLOCK && wait_for_others(k, n))
        n++;
    if (rc == 0)
        return fd;
    if (errno == EWOULDBLOCK)
        locked_error(k, e);
    else
        err_sys(e, "%s", path);
    close(fd);
    return -1;
}

/* Refuse a file that must have tables but has none: if it were accepted, there would be no keys. */
static int is_empty(const struct sqlite_keys *k, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: is empty; to begin anew, move it away before the server starts", k->db.name);
}

/* Create the tables, unless another program has done so. */
static int make_tables(struct sqlite_keys *k, struct err *e)
{
    int64_t version;
    const int fd = take_lock(k, e);
    if (fd < 0)
        return -1;
    /* another program may have made them by now */
    int rc = pragma(k, "PRAGMA user_version", &version, e);
    if (rc == 0 && version == 0)
        rc = k->mode == MUST_EXIST ? is_empty(k, e) : run(k, schema, e);
    close(fd);
    return rc;
}

static int open_empty(struct sqlite_keys *k, struct err *e)
{
    sqlite3_close(k->sql);
    k->sql = NULL;
    k->absent = 1;
    if (sqlite3_open(":memory:", &k->sql) != SQLITE_OK)
        return err_nomem(e, k->db.name);
    return run(k, schema, e);
}

static int open_file(struct sqlite_keys *k, struct err *e)
{
    int64_t version;
    if (make_file(k, e))
        return -1;
    if (k->absent)
        return open_empty(k, e);
    if (sqlite3_open_v2(k->db.name, &k->sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return k->sql ? sql_error(k, e) : err_nomem(e, k->db.name);
    sqlite3_busy_handler(k->sql, wait_for_others, k);
    /* No write-ahead log: after a restore from a backup SQLite would apply the old log to the new
     * file.  synchronous=FULL: a key that was shown is on the disk. */
    if (run(k, "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL;", e) ||
        pragma(k, "PRAGMA user_version", &version, e))
        return -1;
    if (version == 0 && k->mode == READ_ONLY)       /* another program is creating it */
        return open_empty(k, e);
    /* reading only: a write would make other connections reload */
    return version == 0 ? make_tables(k, e) : 0;
}

/* ---- the database ---- */

static void bind(sqlite3_stmt *s, int i, const struct key_value *v)
{
    switch (v->kind) {
    case VALUE_NUMBER: sqlite3_bind_int64(s, i, v->number); break;
    case VALUE_TEXT:   sqlite3_bind_text(s, i, v->data, -1, SQLITE_STATIC); break;
    case VALUE_HASH:   sqlite3_bind_blob(s, i, v->data, SHA256_SIZE, SQLITE_STATIC); break;
    }
}

static int read_row(sqlite3_stmt *s, const struct key_query *q, struct err *e)
{
    struct key_cell cell[MAX_COLUMNS];
    const int n = sqlite3_column_count(s);
    for (int i = 0; i < n && i < MAX_COLUMNS; i++) {
        const int type = sqlite3_column_type(s, i);
        cell[i] = (struct key_cell){ .number = sqlite3_column_int64(s, i), .text = "" };
        if (type == SQLITE_TEXT)
            cell[i].text = (const char *)sqlite3_column_text(s, i);
        if (type == SQLITE_BLOB)
            cell[i].bytes = sqlite3_column_blob(s, i);
        cell[i].size = type == SQLITE_INTEGER ? 0 : (size_t)sqlite3_column_bytes(s, i);
    }
    return q->row ? q->row(q->user, cell, e) : 0;
}

static int run_query(struct key_db *db, struct key_query *q, struct err *e)
{
    struct sqlite_keys *k = sqlite_of(db);
    sqlite3_stmt *s = prepare(k, q->sql, e);
    int rc, failed = 0;
    if (!s)
        return -1;
    for (int i = 0; i < q->n_values; i++)
        bind(s, i + 1, &q->values[i]);
    q->n_changed = 0;
    while ((rc = sqlite3_step(s)) == SQLITE_ROW && !failed) {
        failed = read_row(s, q, e);
        q->n_changed++;
    }
    if (!failed && rc != SQLITE_DONE)
        failed = sql_error(k, e);
    if (sqlite3_column_count(s) == 0)
        q->n_changed = sqlite3_changes(k->sql);
    sqlite3_finalize(s);
    return failed;
}

static int begin(struct key_db *db, struct err *e) { return run(sqlite_of(db), "BEGIN IMMEDIATE", e); }

/* Open the file again after another one was put in its place. */
static int reopen(struct sqlite_keys *k, struct err *e)
{
    struct sqlite_keys other = { .db.name = k->db.name, .until_ns = k->until_ns,
                                 .mode = k->mode == READ_ONLY ? READ_ONLY : MUST_EXIST };
    if (open_file(&other, e) || (other.absent && !k->absent && is_empty(k, e))) {
        sqlite3_close(other.sql);
        k->db.locked = other.db.locked;
        return -1;
    }
    sqlite3_close(k->sql);
    k->sql = other.sql;
    sqlite3_busy_handler(k->sql, wait_for_others, k);
    k->ino = other.ino;
    k->absent = other.absent;
    k->n_opened++;
    return 0;
}

/* PRAGMA data_version changes when another connection commits. */
static int version(struct key_db *db, int64_t *out, struct err *e)
{
    struct sqlite_keys *k = sqlite_of(db);
    struct stat st;
    db->locked = 0;
    if (stat(db->name, &st)) {
        *out = k->n_opened << 32;
        return k->absent && errno == ENOENT ? 0 : err_sys(e, "%s", db->name);
    }
    if (((k->absent || st.st_ino != k->ino) && reopen(k, e)) || pragma(k, "PRAGMA data_version", out, e))
        return -1;
    *out |= k->n_opened << 32;
    return 0;
}

static void close_db(struct key_db *db)
{
    sqlite3_close(sqlite_of(db)->sql);
    free(db->name);
    free(db);
}

static const struct key_db_class sqlite_class = { run_query, begin, version, set_patience, close_db };

struct key_db *key_sqlite_open(const char *folder, enum key_db_mode mode, struct err *e)
{
    struct sqlite_keys *k = calloc(1, sizeof *k);
    if (!k || asprintf(&k->db.name, "%s/keys.db", folder) < 0) {
        free(k);
        err_nomem(e, "keys");
        return NULL;
    }
    k->db.class = &sqlite_class;
    set_patience(&k->db, 5000);
    k->mode = mode;
    if (mode == MAY_CREATE && mkdir(folder, 0700) && errno != EEXIST)
        err_sys(e, "%s", folder);
    else if (open_file(k, e) == 0)
        return &k->db;
    close_db(&k->db);
    return NULL;
}

/* postgres.h - a connection to a PostgreSQL server, through libpq, which is loaded on demand.
 *
 * Every wait ends at the deadline that postgres_set_patience() set, or when postgres_stop() is
 * called.  Messages contain neither the URL nor its password.  One thread at a time, except
 * postgres_stop(). */
#ifndef ZSE_ACCESS_POSTGRES_H
#define ZSE_ACCESS_POSTGRES_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct postgres;
/* Load libpq and read the URL, without connecting.  For parts that are not in the URL, libpq reads
 * its own environment variables and password file. */
struct postgres *postgres_open(const char *url, struct err *e);
void postgres_close(struct postgres *p);                /* NULL is fine */
const char *postgres_name(const struct postgres *p);    /* "postgresql://HOST:PORT/DATABASE" */
/* time from now on for all calls together (initially 5 seconds) */
void postgres_set_patience(struct postgres *p, int ms);
void postgres_stop(struct postgres *p);                 /* from now on waits fail at once; for another thread */
int postgres_is_connected(const struct postgres *p);
int postgres_connect(struct postgres *p, struct err *e);

/* A parameter: text that ends in a zero byte if size is 0, else `size` bytes (bytea). */
struct postgres_value { const char *data; int size; };
struct postgres_result;
/* Run one statement, whose answer has at most 64 MiB.  NULL with *e; if the connection is lost, it
 * is closed.  Caller clears. */
struct postgres_result *postgres_run(struct postgres *p, const char *sql, const struct postgres_value *v, int n,
                                     struct err *e);
int postgres_n_rows(const struct postgres_result *r);
int postgres_n_columns(const struct postgres_result *r);
const char *postgres_text(const struct postgres_result *r, int row, int column);        /* "" for null, or none */
int postgres_is_bytes(const struct postgres_result *r, int column);
int64_t postgres_n_changed(const struct postgres_result *r);    /* rows changed, or returned */
void postgres_clear(struct postgres_result *r);

#endif

/* key_usage.c - store counts in PostgreSQL and read the totals.
 *
 * Seconds and quarters of an hour are those of the database, so the clocks of the servers need not
 * agree.  Rows are locked in the order of the keys, so that servers never wait for each other in a
 * circle. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/access/key_usage.h"

/* the present span of a kind of window: a second, or a quarter of an hour */
#define NOW_S "floor(extract(epoch FROM pg_catalog.now()))::bigint"
#define PRESENT(kind) "(" NOW_S " / CASE " kind " WHEN 2 THEN 900 ELSE 1 END)"
#define OLDEST(kind) "(" PRESENT(kind) " - CASE " kind " WHEN 2 THEN 96 ELSE 60 END)"

/* ---- lists as parameters ---- */

/* Arrays in PostgreSQL's text form, "{1,2,3}". */
struct columns { FILE *f[5]; char *text[5]; size_t size[5]; int n; };

static int columns_open(struct columns *c, int n, struct err *e)
{
    *c = (struct columns){ .n = n };
    for (int i = 0; i < n; i++)
        if (!(c->f[i] = open_memstream(&c->text[i], &c->size[i])))
            return err_nomem(e, "usage counters");
    return 0;
}

static void columns_add(struct columns *c, int i, int64_t n)
{
    fprintf(c->f[i], "%c%" PRId64, ftell(c->f[i]) == 0 ? '{' : ',', n);
}

/* Finish the arrays and run the statement with them and, if `last` is not NULL, one more value. */
static struct postgres_result *columns_run(struct columns *c, struct postgres *pg, const char *sql, const char *last,
                                           struct err *e)
{
    struct postgres_value v[6] = { 0 };
    int whole = 1;
    for (int i = 0; i < c->n; i++) {
        fputs(ftell(c->f[i]) == 0 ? "{}" : "}", c->f[i]);
        whole &= fflush(c->f[i]) == 0;
        v[i].data = c->text[i];
    }
    v[c->n].data = last;
    if (whole)
        return postgres_run(pg, sql, v, c->n + (last != NULL), e);
    err_nomem(e, "usage counters");
    return NULL;
}

static void columns_close(struct columns *c)
{
    for (int i = 0; i < c->n; i++) {
        if (c->f[i])
            fclose(c->f[i]);
        free(c->text[i]);
    }
}

static int run(struct postgres *pg, const char *sql, struct err *e)
{
    struct postgres_result *r = postgres_run(pg, sql, NULL, 0, e);
    postgres_clear(r);
    return r ? 0 : -1;
}

/* ---- store ---- */

static int store_totals(struct postgres *pg, const struct usage_part *p, struct err *e)
{
    struct columns c;
    struct postgres_result *r = NULL;
    if (columns_open(&c, 4, e) == 0) {
        for (int i = 0; i < p->n_keys; i++) {
            const struct usage_key *k = &p->key[i];
            if (!k->requests && !k->tokens)
                continue;
            columns_add(&c, 0, k->key);
            columns_add(&c, 1, k->requests);
            columns_add(&c, 2, k->tokens);
            columns_add(&c, 3, k->last_ms);
        }
        r = columns_run(&c, pg, "INSERT INTO used AS old (key, requests, tokens, last_ms)"
                        " SELECT new.key, new.requests, new.tokens, new.last_ms"
                        " FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])"
                        " AS new (key, requests, tokens, last_ms) JOIN keys ON keys.id = new.key ORDER BY new.key"
                        " ON CONFLICT (key) DO UPDATE SET requests = old.requests + excluded.requests,"
                        " tokens = old.tokens + excluded.tokens, last_ms = greatest(old.last_ms, excluded.last_ms)",
                        NULL, e);
    }
    columns_close(&c);
    postgres_clear(r);
    return r ? 0 : -1;
}

static int store_windows(struct postgres *pg, const struct usage_part *p, struct err *e)
{
    struct columns c;
    struct postgres_result *r = NULL;
    if (columns_open(&c, 4, e) == 0) {
        for (int i = 0; i < p->n_counts; i++) {
            columns_add(&c, 0, p->count[i].key);
            columns_add(&c, 1, p->count[i].kind);
            columns_add(&c, 2, p->count[i].age);
            columns_add(&c, 3, p->count[i].n);
        }
        r = columns_run(&c, pg, "INSERT INTO windows AS old (key, kind, span, n)"
                        " SELECT new.key, new.kind, " PRESENT("new.kind") " - new.age, new.n"
                        " FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[])"
                        " AS new (key, kind, age, n) JOIN keys ON keys.id = new.key ORDER BY 1, 2, 3"
                        " ON CONFLICT (key, kind, span) DO UPDATE SET n = old.n + excluded.n", NULL, e);
    }
    columns_close(&c);
    postgres_clear(r);
    return r ? 0 : -1;
}

/* Reservations of a server that does not renew them are void after USAGE_LEASE_S. */
static int store_reserved(struct postgres *pg, const struct usage_part *p, const char *server, struct err *e)
{
    struct columns c;
    struct postgres_result *r = NULL;
    char sql[512];
    if (columns_open(&c, 2, e) == 0) {
        for (int i = 0; i < p->n_keys; i++) {
            columns_add(&c, 0, p->key[i].key);
            columns_add(&c, 1, p->key[i].reserved);
        }
        snprintf(sql, sizeof sql, "INSERT INTO reserved (key, server, tokens, until)"
                 " SELECT new.key, $3::bigint, new.tokens, pg_catalog.now() + interval '%d seconds'"
                 " FROM unnest($1::bigint[], $2::bigint[]) AS new (key, tokens) JOIN keys ON keys.id = new.key"
                 " ORDER BY new.key ON CONFLICT (key, server) DO UPDATE"
                 " SET tokens = excluded.tokens, until = excluded.until", USAGE_LEASE_S);
        r = columns_run(&c, pg, sql, server, e);
    }
    columns_close(&c);
    postgres_clear(r);
    return r ? 0 : -1;
}

static int has_counts(const struct usage_part *p)
{
    int n = p->n_counts;
    for (int i = 0; i < p->n_keys; i++)
        n |= p->key[i].requests || p->key[i].tokens || p->key[i].reserved || p->key[i].told;
    return n != 0;
}

static int store(struct postgres *pg, const struct usage_part *p, const char *server, struct err *e)
{
    if (run(pg, "BEGIN", e) == 0 && store_totals(pg, p, e) == 0 && store_windows(pg, p, e) == 0 &&
        store_reserved(pg, p, server, e) == 0 && run(pg, "COMMIT", e) == 0)
        return 0;
    if (postgres_is_connected(pg))
        run(pg, "ROLLBACK", NULL);
    return -1;
}

/* ---- read ---- */

static int read_totals(struct postgres *pg, struct usage *u, const struct usage_part *p, const char *server,
                       struct err *e)
{
    struct columns c;
    struct postgres_result *r = NULL;
    if (columns_open(&c, 1, e) == 0) {
        for (int i = 0; i < p->n_keys; i++)
            columns_add(&c, 0, p->key[i].key);
        r = columns_run(&c, pg, "SELECT key, kind, " PRESENT("kind") " - span, n FROM windows"
                        " WHERE key = ANY($1::bigint[]) AND span >= " OLDEST("kind")
                        " UNION ALL SELECT key, 3, 0, sum(tokens)::bigint FROM reserved"
                        " WHERE key = ANY($1::bigint[]) AND server <> $2::bigint AND until > pg_catalog.now() GROUP BY key"
                        " UNION ALL SELECT key, x.kind, 0, x.n FROM used, LATERAL"
                        " (VALUES (4, requests), (5, tokens), (6, last_ms)) AS x (kind, n)"
                        " WHERE key = ANY($1::bigint[])", server, e);
    }
    columns_close(&c);
    const int n = r ? postgres_n_rows(r) : 0;
    struct usage_count *total = calloc((size_t)n + 1, sizeof *total);
    for (int i = 0; total && i < n; i++)
        total[i] = (struct usage_count){ strtoll(postgres_text(r, i, 0), NULL, 10),
                                         (enum usage_kind)atoi(postgres_text(r, i, 1)), atoi(postgres_text(r, i, 2)),
                                         strtoll(postgres_text(r, i, 3), NULL, 10) };
    if (r && total)
        usage_replace(u, p, total, n);
    else if (r)
        err_nomem(e, "usage counters");
    const int rc = r && total ? 0 : -1;
    postgres_clear(r);
    free(total);
    return rc;
}

/* ---- the interface ---- */

int key_usage_exchange(struct postgres *pg, struct usage *u, int64_t server, struct err *e)
{
    struct usage_part p;
    char number[24];
    int rc = 0;
    snprintf(number, sizeof number, "%" PRId64, server);
    if (usage_take(u, &p, e))
        return -1;
    if (has_counts(&p) && (rc = store(pg, &p, number, e)))
        usage_untake(u, &p);
    if (rc == 0 && p.n_keys)
        rc = read_totals(pg, u, &p, number, e);
    usage_part_release(&p);
    return rc;
}

int key_usage_read(struct postgres *pg, struct usage *u, const struct key_info *keys, int n, struct err *e)
{
    struct usage_part p = { .key = calloc((size_t)n + 1, sizeof *p.key), .n_keys = n };
    if (!p.key)
        return err_nomem(e, "usage counters");
    for (int i = 0; i < n; i++)
        usage_make(u, p.key[i].key = keys[i].id);
    const int rc = read_totals(pg, u, &p, "0", e);
    usage_part_release(&p);
    return rc;
}

int key_usage_reset(struct postgres *pg, int64_t key, struct err *e)
{
    char number[24];
    const struct postgres_value v = { number, 0 };
    snprintf(number, sizeof number, "%" PRId64, key);
    struct postgres_result *r = postgres_run(pg, "DELETE FROM windows WHERE key = $1", &v, 1, e);
    postgres_clear(r);
    return r ? 0 : -1;
}

int key_usage_trim(struct postgres *pg, struct err *e)
{
    return run(pg, "DELETE FROM windows WHERE span < " OLDEST("kind"), e) ||
           run(pg, "DELETE FROM reserved WHERE until < pg_catalog.now()", e) ? -1 : 0;
}

/* bm25.c - rank the matches of a query by BM25, with statistics of the searched collections only.
 *
 * FTS5 finds the rows, and calls collect() for each to note how often each phrase occurs in it.
 * Afterwards the number of rows with each phrase is known, and the scores can be computed. */
#include "libcommon/rag/bm25.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COL_SCOPE, COL_HEADING, COL_TEXT };
/* k1, b: the usual values.  A word in the heading counts as HEADING_WEIGHT words in the text. */
#define K1 1.2
#define B 0.75
enum { HEADING_WEIGHT = 2, MAX_TIMES = 255 };

struct bm25_match { int64_t chunk; int n_words; };

struct collector {
    int first, n;                       /* phrases of the query, after those of the scope */
    struct bm25_match *match; uint8_t *times;                /* times [n_matches][n] */
    int n_matches, room, failed;
    int64_t with[QUERY_PHRASES];        /* rows that have each phrase */
};

/* ---- in SQLite ---- */

static int grow(struct collector *c)
{
    const int room = c->room ? 2 * c->room : 256;
    struct bm25_match *m = realloc(c->match, (size_t)room * sizeof *m);
    if (m)
        c->match = m;
    uint8_t *t = realloc(c->times, (size_t)room * (size_t)c->n);
    if (t)
        c->times = t;
    if (!m || !t)
        return -1;
    c->room = room;
    return 0;
}

/* The auxiliary function collect(words): note the current row. */
static void collect(const Fts5ExtensionApi *api, Fts5Context *fts, sqlite3_context *ctx, int n_args,
                    sqlite3_value **args)
{
    struct collector *c = ((struct rag_store *)api->xUserData(fts))->collector;
    int in_heading = 0, in_text = 0;
    (void)n_args;
    (void)args;
    if (!c || c->failed || (c->n_matches == c->room && grow(c))) {
        if (c)
            c->failed = 1;
        sqlite3_result_error_nomem(ctx);
        return;
    }
    uint8_t *times = c->times + (size_t)c->n_matches * (size_t)c->n;
    for (int i = 0; i < c->n; i++) {
        Fts5PhraseIter it;
        int column, at, sum = 0;
        int rc = api->xPhraseFirst(fts, c->first + i, &it, &column, &at);
        for (; rc == SQLITE_OK && column >= 0; api->xPhraseNext(fts, &it, &column, &at))
            sum += column == COL_HEADING ? HEADING_WEIGHT : column == COL_TEXT;
        times[i] = (uint8_t)(sum > MAX_TIMES ? MAX_TIMES : sum);
        c->with[i] += sum > 0;
    }
    api->xColumnSize(fts, COL_HEADING, &in_heading);
    api->xColumnSize(fts, COL_TEXT, &in_text);
    c->match[c->n_matches++] = (struct bm25_match){ api->xRowid(fts), in_heading + in_text };
}

static fts5_api *api_of(sqlite3 *db)
{
    fts5_api *api = NULL;
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(db, "SELECT fts5(?1)", -1, &s, NULL) == SQLITE_OK) {
        sqlite3_bind_pointer(s, 1, &api, "fts5_api_ptr", NULL);
        sqlite3_step(s);
    }
    sqlite3_finalize(s);
    return api;
}

int rag_register_collector(struct rag_store *r, struct err *e)
{
    fts5_api *api = api_of(r->db);
    if (!api)
        return err_set(e, ERR_UNSUPPORTED, "this SQLite (%s) has no full-text index FTS5", sqlite3_libversion());
    return api->xCreateFunction(api, "collect", r, collect, NULL) == SQLITE_OK ? 0 : err_nomem(e, "index");
}

/* ---- the query ---- */

/* The MATCH expression: scope : ("c1" OR "c2") AND {heading text} : ("a" OR "b").  malloc'd. */
static char *expression(const struct scope *where, const struct query_words *words, int *n_scope)
{
    const int docs = where->n_documents > 0;
    *n_scope = docs ? where->n_documents : where->n_collections;
    size_t size = 64 + (size_t)*n_scope * 32;
    for (int i = 0; i < words->n; i++)
        size += strlen(words->phrase[i]) + 4;
    char *out = malloc(size), *p = out;
    if (!out)
        return NULL;
    p += sprintf(p, "scope : (");
    for (int i = 0; i < *n_scope; i++)
        p += sprintf(p, docs ? "%s\"d%lld\"" : "%s\"c%lld\"", i ? " OR " : "",
                     (long long)(docs ? where->document[i] : where->collection[i]));
    p += sprintf(p, ") AND {heading text} : (");
    for (int i = 0; i < words->n; i++)
        p += sprintf(p, "%s%s", i ? " OR " : "", words->phrase[i]);
    strcpy(p, ")");
    return out;
}

static int run_query(struct rag_store *r, const char *match, struct collector *c, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, "SELECT collect(words) FROM words WHERE words MATCH ?", e);
    int rc;
    if (!s)
        return -1;
    r->collector = c;
    sqlite3_bind_text(s, 1, match, -1, SQLITE_STATIC);
    while ((rc = sqlite3_step(s)) == SQLITE_ROW)
        ;
    rc = c->failed ? err_nomem(e, "matches") : rc == SQLITE_DONE ? 0 : rag_sql_error(r, e);
    sqlite3_finalize(s);
    r->collector = NULL;
    return rc;
}

/* ---- scores ---- */

static int compare(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

static void score(const struct collector *c, const struct scope *where, struct ranked *out)
{
    double weight[QUERY_PHRASES], all = 0;
    const double mean = where->chunks > 0 && where->words > 0 ? (double)where->words / (double)where->chunks : 1;
    for (int i = 0; i < c->n; i++) {
        const double with = (double)c->with[i], n = (double)where->chunks > with ? (double)where->chunks : with;
        weight[i] = log(1 + (n - with + 0.5) / (with + 0.5));
        all += weight[i];
    }
    for (int k = 0; k < c->n_matches; k++) {
        const uint8_t *times = c->times + (size_t)k * (size_t)c->n;
        const double norm = K1 * (1 - B + B * c->match[k].n_words / mean);
        double sum = 0, found = 0;
        for (int i = 0; i < c->n; i++)
            if (times[i]) {
                sum += weight[i] * times[i] * (K1 + 1) / (times[i] + norm);
                found += weight[i];
            }
        out[k] = (struct ranked){ c->match[k].chunk, sum, all > 0 ? found / all : 0 };
    }
}

int bm25_rank(struct rag_store *r, const struct scope *where, const struct query_words *words, int most,
              struct ranking *out, struct err *e)
{
    struct collector c = { .n = words->n };
    *out = (struct ranking){ 0 };
    if (words->n == 0)
        return 0;
    char *match = expression(where, words, &c.first);
    int rc = match ? run_query(r, match, &c, e) : err_nomem(e, "query");
    free(match);
    if (rc == 0 && c.n_matches > 0 && !(out->row = malloc((size_t)c.n_matches * sizeof *out->row)))
        rc = err_nomem(e, "matches");
    if (rc == 0 && c.n_matches > 0) {
        score(&c, where, out->row);
        qsort(out->row, (size_t)c.n_matches, sizeof *out->row, compare);
        out->n = c.n_matches < most ? c.n_matches : most;
    }
    free(c.match);
    free(c.times);
    return rc;
}

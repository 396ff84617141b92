/* search.c - find passages: resolve the scope, rank by words and by vectors, join both rankings,
 * and read the passages. */
#include "libcommon/rag/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/rag/bm25.h"
#include "libcommon/rag/vectors.h"

static const char *const mode_names[] = { [RAG_HYBRID] = "hybrid", [RAG_BM25] = "bm25", [RAG_VECTOR] = "vector" };

int rag_mode_parse(const char *text, enum rag_mode *mode)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(text, mode_names[i]) == 0) {
            *mode = (enum rag_mode)i;
            return 0;
        }
    return -1;
}

const char *rag_mode_name(enum rag_mode mode) { return mode_names[mode]; }

/* ---- the scope ---- */

static int add_row(int64_t **list, int *n, int64_t row, struct err *e)
{
    if ((*n & (*n - 1)) == 0) {
        int64_t *more = realloc(*list, (size_t)(*n ? 2 * *n : 1) * sizeof *more);
        if (!more)
            return err_nomem(e, "query");
        *list = more;
    }
    (*list)[(*n)++] = row;
    return 0;
}

/* Add the owner's collection of this name, or all if it is NULL, to the scope. */
static int add_collections(struct rag_store *r, const struct rag_query *q, const char *name, struct scope *w,
                           struct err *e)
{
    const int before = w->n_collections;
    int rc = SQLITE_DONE, failed = 0;
    sqlite3_stmt *s = rag_prepare(r, "SELECT id, chunks, words_in FROM collections WHERE owner = ?1 AND (?2 IS NULL OR name = ?2)", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, q->owner, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, name, -1, SQLITE_STATIC);
    while (!failed && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        w->chunks += sqlite3_column_int64(s, 1);
        w->words += sqlite3_column_int64(s, 2);
        failed = add_row(&w->collection, &w->n_collections, sqlite3_column_int64(s, 0), e);
    }
    if (!failed && rc != SQLITE_DONE)
        failed = rag_sql_error(r, e);
    sqlite3_finalize(s);
    if (!failed && name && w->n_collections == before)
        return err_set(e, ERR_FORMAT, "there is no collection '%.*s'", RAG_COLLECTION, name);
    return failed ? -1 : 0;
}

static int in_scope(const struct scope *w, int64_t collection)
{
    for (int i = 0; i < w->n_collections; i++)
        if (w->collection[i] == collection)
            return 1;
    return 0;
}

static int add_document(struct rag_store *r, const struct rag_query *q, const char *id, struct scope *w, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, "SELECT d.id, d.collection FROM documents d JOIN collections c ON c.id = d.collection WHERE c.owner = ? AND d.public = ?", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, q->owner, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, id, -1, SQLITE_STATIC);
    const int step = sqlite3_step(s);
    int rc = step == SQLITE_ROW ? 0 : step == SQLITE_DONE ? err_set(e, ERR_FORMAT, "there is no document '%.40s'", id)
                                                          : rag_sql_error(r, e);
    if (rc == 0 && in_scope(w, sqlite3_column_int64(s, 1)))
        rc = add_row(&w->document, &w->n_documents, sqlite3_column_int64(s, 0), e);
    sqlite3_finalize(s);
    return rc;
}

/* Find the scope of a query.  *nothing is set if documents were named, but none of them is in the
 * collections. */
static int find_scope(struct rag_store *r, const struct rag_query *q, struct scope *w, int *nothing, struct err *e)
{
    int rc = q->n_collections == 0 ? add_collections(r, q, NULL, w, e) : 0;
    for (int i = 0; i < q->n_collections && rc == 0; i++)
        rc = add_collections(r, q, q->collections[i], w, e);
    for (int i = 0; i < q->n_documents && rc == 0; i++)
        rc = add_document(r, q, q->documents[i], w, e);
    *nothing = w->chunks == 0 || (q->n_documents && !w->n_documents);
    return rc;
}

/* ---- passages ---- */

static char *column_text(sqlite3_stmt *s, int i)
{
    const unsigned char *text = sqlite3_column_text(s, i);
    return strdup(text ? (const char *)text : "");
}

/* Read the chunk of a hit.  1: it was deleted meanwhile. */
static int read_hit(struct rag_store *r, sqlite3_stmt *s, int64_t chunk, struct rag_hit *h, struct err *e)
{
    sqlite3_reset(s);
    sqlite3_bind_int64(s, 1, chunk);
    const int step = sqlite3_step(s);
    if (step != SQLITE_ROW)
        return step == SQLITE_DONE ? 1 : rag_sql_error(r, e);
    h->chunk = (struct rag_chunk){ chunk, sqlite3_column_int(s, 0), sqlite3_column_int(s, 1),
                                   (uint64_t)sqlite3_column_int64(s, 2), column_text(s, 3), column_text(s, 4) };
    h->name = column_text(s, 5);
    snprintf(h->document, sizeof h->document, "%s", (const char *)sqlite3_column_text(s, 6));
    snprintf(h->collection, sizeof h->collection, "%s", (const char *)sqlite3_column_text(s, 7));
    h->has_pages = sqlite3_column_int(s, 8) > 1 || strcmp((const char *)sqlite3_column_text(s, 9), "pdf") == 0;
    return h->chunk.heading && h->chunk.text && h->name ? 0 : err_nomem(e, "result");
}

/* own: the passage's relevance divided by that of the best passage. */
struct fused { int64_t chunk; double score, relevance, bm25, similarity, own; };

static int read_hits(struct rag_store *r, const struct rag_query *q, const struct fused *best, int n,
                     struct rag_hits *out, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, "SELECT k.number, k.page, k.offset, k.heading, k.text, d.name, d.public, c.name, d.pages, d.type"
                                     " FROM chunks k JOIN documents d ON d.id = k.document JOIN collections c ON c.id = d.collection WHERE k.id = ?", e);
    int rc = s ? 0 : -1;
    if (s && !(out->hit = calloc((size_t)q->top_k, sizeof *out->hit)))
        rc = err_nomem(e, "results");
    for (int i = 0; i < n && rc >= 0 && out->n < q->top_k; i++) {
        if (best[i].score * best[i].own < q->min_score)
            continue;
        struct rag_hit *h = &out->hit[out->n];
        rc = read_hit(r, s, best[i].chunk, h, e);
        h->score = best[i].score;
        h->own = best[i].score * best[i].own;
        h->bm25 = best[i].bm25;
        h->similarity = best[i].similarity;
        out->n += rc <= 0;                  /* a hit that is not whole is freed with the others */
    }
    sqlite3_finalize(s);
    return rc < 0 ? -1 : 0;
}

static const char below_min_score[] = "no passage has a score of min_score or more";

static void release_hit(struct rag_hit *h)
{
    free(h->chunk.heading);
    free(h->chunk.text);
    free(h->name);
}

void rag_hits_keep(struct rag_hits *hits, int top_k, double min_score)
{
    const int before = hits->n;
    hits->n = 0;
    for (int i = 0; i < before; i++) {
        if (hits->n < top_k && hits->hit[i].own >= min_score)
            hits->hit[hits->n++] = hits->hit[i];
        else
            release_hit(&hits->hit[i]);
    }
    if (before && !hits->n)
        snprintf(hits->reason, sizeof hits->reason, "%s", below_min_score);
}

/* ---- the search ---- */

static int compare(const void *a, const void *b)
{
    const struct fused *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

/* Score of a rank.  RANK_K reduces the difference between the first ranks; the paper's value 60 was
 * meant for many rankings.  Trained embedding models find more than words do, so their ranking gets
 * the larger share.  Recall@5 in tests/rag/faq.py: .895 with these values, .876 with a share of .5,
 * .871 with .5 and RANK_K 20. */
enum { RANK_K = 10, CANDIDATES = 200 };
#define VECTOR_SHARE 0.6
static double reciprocal(int rank) { return (RANK_K + 1.0) / (RANK_K + 1.0 + rank); }

/* A similarity is compared with the similarities of all searched passages, because the cosine of
 * unrelated texts differs from model to model.  A passage is near if its similarity is NEAR
 * standard deviations above the mean.  At FAR_ABOVE deviations it is as relevant as a passage that
 * has all words of the query. */
#define NEAR 2.0
#define FAR_ABOVE 5.0

static double relevance(double similarity, double mean, double deviation)
{
    const double z = deviation > 0 ? (similarity - mean) / deviation : 0;
    return z <= NEAR ? 0 : z >= FAR_ABOVE ? 1 : (z - NEAR) / (FAR_ABOVE - NEAR);
}

/* The rankings of a query by words and by vectors, and the mean and deviation of all
 * similarities. */
struct rankings { struct ranking words; struct near *near; int n_near; double mean, deviation; };

static struct fused *find_joined(struct fused *list, int n, int64_t chunk)
{
    for (int i = 0; i < n; i++)
        if (list[i].chunk == chunk)
            return &list[i];
    return NULL;
}

/* Join the rankings.  Passages are ordered by the weighted mean of their reciprocal ranks, each
 * scaled so that the first rank has 1; ordering by relevance as well found fewer passages in tests.
 * The relevance of a passage is the fraction of the query's words that it has, or its nearness,
 * whichever is larger.  All scores are multiplied by the relevance of the most relevant passage.
 * min_score applies to a passage's own relevance.  A passage that has no word of the query and is
 * not near is left out. */
static int join(const struct rankings *k, enum rag_mode mode, struct fused **out, int *n, struct err *e)
{
    struct fused *list = malloc(((size_t)k->words.n + (size_t)k->n_near + 1) * sizeof *list);
    const double by_vectors = mode == RAG_HYBRID ? VECTOR_SHARE : 1,
                 by_words = mode == RAG_HYBRID ? 1 - VECTOR_SHARE : 1;
    if (!list)
        return err_nomem(e, "results");
    for (int i = 0; i < k->words.n; i++) {
        const struct ranked *w = &k->words.row[i];
        list[i] = (struct fused){ w->chunk, by_words * reciprocal(i), w->coverage, w->score, NAN, 0 };
    }
    *n = k->words.n;
    for (int i = 0; i < k->n_near; i++) {
        const double s = (double)k->near[i].similarity, much = relevance(s, k->mean, k->deviation);
        struct fused *j = find_joined(list, k->words.n, k->near[i].chunk);
        if (!j && much <= 0)
            continue;
        if (!j)
            *(j = &list[(*n)++]) = (struct fused){ k->near[i].chunk, 0, 0, NAN, NAN, 0 };
        j->similarity = s;
        j->score += by_vectors * reciprocal(i);
        j->relevance = j->relevance > much ? j->relevance : much;
    }
    double most = 0;
    for (int i = 0; i < *n; i++)
        most = list[i].relevance > most ? list[i].relevance : most;
    for (int i = 0; i < *n; i++) {
        list[i].score *= most;
        list[i].own = most > 0 ? list[i].relevance / most : 0;
    }
    qsort(list, (size_t)*n, sizeof *list, compare);
    *out = list;
    return 0;
}

/* The ranges of chunk ids of the documents searched.  malloc'd; NULL with *e. */
static int64_t *chunk_ranges(struct rag_store *r, const struct scope *w, struct err *e)
{
    int64_t *ranges = malloc(((size_t)w->n_documents + 1) * 2 * sizeof *ranges);
    sqlite3_stmt *s = ranges ? rag_prepare(r, "SELECT min(id), max(id) FROM chunks WHERE document = ?", e) : NULL;
    for (int i = 0; s && i < w->n_documents; i++) {
        sqlite3_bind_int64(s, 1, w->document[i]);
        const int found = sqlite3_step(s) == SQLITE_ROW && sqlite3_column_int64(s, 0);
        ranges[2 * i] = found ? sqlite3_column_int64(s, 0) : 0;
        ranges[2 * i + 1] = found ? sqlite3_column_int64(s, 1) : -1;
        sqlite3_reset(s);
    }
    sqlite3_finalize(s);
    if (s)
        return ranges;
    if (!ranges)
        err_nomem(e, "query");
    free(ranges);
    return NULL;
}

static int rank_vectors(struct rag_store *r, const struct rag_query *q, const struct scope *w, int most,
                        struct rankings *k, struct err *e)
{
    int64_t *ranges = chunk_ranges(r, w, e);
    k->near = ranges ? malloc((size_t)most * sizeof *k->near) : NULL;
    if (ranges && !k->near)
        err_nomem(e, "results");
    k->n_near = k->near ? rag_nearest(q->vectors, r, q->model, q->vector, q->n_vector, w->collection, w->n_collections,
                                      ranges, w->n_documents, k->near, most, &k->mean, &k->deviation, e) : -1;
    free(ranges);
    return k->n_near < 0 ? -1 : 0;
}

static int search(struct rag_store *r, const struct rag_query *q, const struct scope *w, struct rag_hits *hits,
                  struct err *e)
{
    struct query_words words = { 0 };
    struct rankings k = { 0 };
    struct fused *best = NULL;
    const int most = q->top_k > CANDIDATES ? q->top_k : CANDIDATES;
    int n = 0;
    int rc = words_of_query(q->text, q->size, &words, e);
    if (rc == 0 && q->mode != RAG_VECTOR)
        rc = bm25_rank(r, w, &words, most, &k.words, e);
    if (rc == 0 && q->mode != RAG_BM25 && q->vector)
        rc = rank_vectors(r, q, w, most, &k, e);
    hits->mode = k.n_near == 0 && q->mode == RAG_HYBRID ? RAG_BM25 : q->mode;
    if (rc == 0)
        rc = join(&k, hits->mode, &best, &n, e);
    if (rc == 0)
        rc = read_hits(r, q, best, n, hits, e);
    if (rc == 0 && hits->n == 0)
        snprintf(hits->reason, sizeof hits->reason, "%s", n ? below_min_score
                 : q->mode == RAG_VECTOR ? k.n_near ? "no passage is nearer than unrelated ones are"
                                                    : "the documents have no vectors yet"
                 : words.n == 0 ? "the query has no word" : k.n_near
                 ? "no document contains any word of the query, and none is near it"
                 : "no document contains any word of the query");
    free(best);
    free(k.words.row);
    free(k.near);
    query_words_release(&words);
    return rc;
}

int rag_search(struct rag_store *r, const struct rag_query *q, struct rag_hits *hits, struct err *e)
{
    struct scope w = { 0 };
    int nothing = 0;
    *hits = (struct rag_hits){ .mode = RAG_BM25 };
    if (rag_run(r, "BEGIN", e))             /* all statements see the same state of the file */
        return -1;
    int rc = find_scope(r, q, &w, &nothing, e);
    if (rc == 0 && nothing)
        snprintf(hits->reason, sizeof hits->reason, "there are no documents to search");
    else if (rc == 0)
        rc = search(r, q, &w, hits, e);
    sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
    free(w.collection);
    free(w.document);
    if (rc)
        rag_hits_release(hits);
    return rc;
}

void rag_hits_release(struct rag_hits *h)
{
    for (int i = 0; i < h->n; i++)
        release_hit(&h->hit[i]);
    free(h->hit);
    *h = (struct rag_hits){ 0 };
}

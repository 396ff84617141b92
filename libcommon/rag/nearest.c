/* nearest.c - copies of vectors in memory, and the search of the nearest ones.
 *
 * If all vectors of the searched collections fit into half of the memory for copies, the copies
 * hold them all.  If not, they hold the vectors of whole passages only: these vectors choose
 * candidates, and the vectors of the candidates' parts are read from the database.  The choice
 * depends only on the searched collections, so that the same search has the same result. */
#include "libcommon/rag/vectors.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/kernels/kernels.h"
#include "libcommon/rag/internal.h"

/* If the copies have only the vectors of whole passages: for each passage that a search is to
 * return, CANDIDATES passages are compared by their parts, too; and SAMPLES passages give the mean
 * and the deviation of all similarities. */
enum { ALIGN = 64, ROWS_AT_ONCE = 256, MAX_SIZE = 1 << 16, CANDIDATES = 4, SAMPLES = 256 };

/* A copy of the vectors of one collection by one model. */
struct vector_copy {
    struct vector_copy *next;
    int64_t model, collection, last, removed;           /* last: the highest number */
    int wholes;                         /* without the vectors of parts */
    size_t stride;
    int8_t *rows; float *scale; int64_t *chunk;         /* owned */
    int n, room;
    uint64_t used;                      /* number of the last search that used it */
};

struct rag_vectors {
    const struct kernels *k;
    size_t most_bytes;
    pthread_mutex_t lock;               /* protects everything below, and is held while copies are used */
    struct vector_copy *first;
    uint64_t searches;
};

/* ---- copies ---- */

struct rag_vectors *rag_vectors_open(const struct kernels *k, size_t most_bytes, struct err *e)
{
    struct rag_vectors *v = calloc(1, sizeof *v);
    if (!v) {
        err_nomem(e, "vectors");
        return NULL;
    }
    v->k = k;
    v->most_bytes = most_bytes;
    pthread_mutex_init(&v->lock, NULL);
    return v;
}

static void free_copy(struct vector_copy *c)
{
    free(c->rows);
    free(c->scale);
    free(c->chunk);
    free(c);
}

void rag_vectors_close(struct rag_vectors *v)
{
    if (!v)
        return;
    while (v->first) {
        struct vector_copy *next = v->first->next;
        free_copy(v->first);
        v->first = next;
    }
    pthread_mutex_destroy(&v->lock);
    free(v);
}

static size_t row_bytes(size_t stride) { return stride + sizeof(float) + sizeof(int64_t); }

static size_t copy_bytes(const struct vector_copy *c)
{
    return (size_t)c->room * row_bytes(c->stride);
}

static int grow_copy(struct vector_copy *c, struct err *e)
{
    const int room = c->room ? c->room * 3 / 2 : 64;
    int8_t *rows = aligned_alloc(ALIGN, (size_t)room * c->stride);
    float *scale = rows ? realloc(c->scale, (size_t)room * sizeof *scale) : NULL;
    if (scale)
        c->scale = scale;
    int64_t *chunk = scale ? realloc(c->chunk, (size_t)room * sizeof *chunk) : NULL;
    if (!chunk) {
        free(rows);
        return err_nomem(e, "vectors");
    }
    c->chunk = chunk;
    if (c->n)
        memcpy(rows, c->rows, (size_t)c->n * c->stride);
    free(c->rows);
    c->rows = rows;
    c->room = room;
    return 0;
}

/* Add the vectors that are newer than the copy. */
static int read_new(struct rag_store *r, struct vector_copy *c, int size, struct err *e)
{
    int rc = SQLITE_DONE, failed = 0;
    sqlite3_stmt *s = rag_prepare(r, "SELECT number, chunk, scale, data FROM vectors WHERE model = ? AND collection = ? AND number > ? AND part <= ? ORDER BY number", e);
    if (!s)
        return -1;
    sqlite3_bind_int(s, 4, c->wholes ? 0 : PASSAGE_PARTS);
    sqlite3_bind_int64(s, 1, c->model);
    sqlite3_bind_int64(s, 2, c->collection);
    sqlite3_bind_int64(s, 3, c->last);
    while (!failed && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (sqlite3_column_bytes(s, 3) != size)
            continue;
        if (c->n == c->room && (failed = grow_copy(c, e)))
            break;
        int8_t *row = c->rows + (size_t)c->n * c->stride;
        memset(row, 0, c->stride);
        memcpy(row, sqlite3_column_blob(s, 3), (size_t)size);
        c->last = sqlite3_column_int64(s, 0);
        c->chunk[c->n] = sqlite3_column_int64(s, 1);
        c->scale[c->n++] = (float)sqlite3_column_double(s, 2);
    }
    if (!failed && rc != SQLITE_DONE)
        failed = rag_sql_error(r, e);
    sqlite3_finalize(s);
    return failed ? -1 : 0;
}

/* The number that a statement returns; 0: it returns no row; -1 with *e. */
static int64_t read_number(struct rag_store *r, const char *sql, int64_t a, int64_t b, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, sql, e);
    if (!s)
        return -1;
    sqlite3_bind_int64(s, 1, a);
    sqlite3_bind_int64(s, 2, b);
    const int step = sqlite3_step(s);
    const int64_t n = step == SQLITE_ROW ? sqlite3_column_int64(s, 0) : step == SQLITE_DONE ? 0 : rag_sql_error(r, e);
    sqlite3_finalize(s);
    return n;
}

static int64_t removals(struct rag_store *r, int64_t collection, struct err *e)
{
    return read_number(r, "SELECT removed FROM collections WHERE id = ?1 AND ?2", collection, 1, e);
}

/* A query, and the collections and documents that it searches. */
struct vector_search {
    struct rag_vectors *v;
    struct rag_store *r;
    int64_t model;
    const int64_t *collections; int n_collections;
    const int64_t *ranges; int n_ranges;
    int size, wholes;
    size_t stride;
    int8_t *q; float scale;             /* the rounded query, owned */
};

/* Are the vectors too large to be copied together with the vectors of parts?  1, 0, or -1 with
 * *e. */
static int is_too_large(const struct vector_search *x, struct err *e)
{
    size_t bytes = 0;
    for (int i = 0; i < x->n_collections; i++) {
        const int64_t n = read_number(x->r, "SELECT max(number) FROM vectors WHERE model = ?1 AND collection = ?2", x->model,
                                      x->collections[i], e);
        if (n < 0)
            return -1;
        bytes += (size_t)n * row_bytes(x->stride);
    }
    return bytes > x->v->most_bytes / 2;
}

/* The up-to-date copy of a collection, NULL with *e. */
static struct vector_copy *find_copy(const struct vector_search *x, int64_t collection, struct err *e)
{
    struct rag_vectors *v = x->v;
    const int64_t removed = removals(x->r, collection, e);
    struct vector_copy *c = v->first;
    while (c && (c->model != x->model || c->collection != collection || c->wholes != x->wholes))
        c = c->next;
    if (removed < 0)
        return NULL;
    if (!c) {
        if (!(c = calloc(1, sizeof *c))) {
            err_nomem(e, "vectors");
            return NULL;
        }
        *c = (struct vector_copy){ .next = v->first, .model = x->model, .collection = collection, .wholes = x->wholes,
                                   .stride = x->stride, .removed = removed };
        v->first = c;
    }
    if (c->removed != removed || c->stride != x->stride) {
        free(c->rows);
        free(c->scale);
        free(c->chunk);
        *c = (struct vector_copy){ .next = c->next, .model = x->model, .collection = collection, .wholes = x->wholes,
                                   .stride = x->stride, .removed = removed };
    }
    c->used = v->searches;
    return read_new(x->r, c, x->size, e) ? NULL : c;
}

/* Free the least recently used copies until the rest are within the limit. */
static void trim(struct rag_vectors *v)
{
    for (;;) {
        struct vector_copy **oldest = NULL;
        size_t sum = 0;
        for (struct vector_copy **at = &v->first; *at; at = &(*at)->next) {
            sum += copy_bytes(*at);
            if (!oldest || (*at)->used < (*oldest)->used)
                oldest = at;
        }
        if (sum <= v->most_bytes || !oldest)
            return;
        struct vector_copy *c = *oldest;
        *oldest = c->next;
        free_copy(c);
    }
}

/* ---- the search ---- */

/* Share of the whole chunk in its similarity; the rest is that of its best part.  Recall@5 of
 * vectors in tests/rag/faq.py: .860 with .7, .871 with .5, .878 with .3, .873 with .15. */
#define WHOLE_SHARE 0.3f

/* The results of a search so far.  chunk: the chunk whose vectors are being visited, 0: none; whole
 * and part: the similarities of the chunk itself and of its best part. */
struct nearest {
    struct near *out; int n, most;
    double sum, squares; int64_t visited;
    int64_t chunk; float whole, part; int n_parts;
};

/* Insert a chunk into the heap of the best ones, whose root is the worst of them. */
static void offer(struct nearest *b, int64_t chunk, float similarity)
{
    int i;
    if (b->n < b->most) {
        for (i = b->n++; i > 0 && b->out[(i - 1) / 2].similarity > similarity; i = (i - 1) / 2)
            b->out[i] = b->out[(i - 1) / 2];
        b->out[i] = (struct near){ chunk, similarity };
        return;
    }
    if (similarity <= b->out[0].similarity)
        return;
    for (i = 0; 2 * i + 1 < b->n;) {
        int child = 2 * i + 1;
        child += child + 1 < b->n && b->out[child + 1].similarity < b->out[child].similarity;
        if (b->out[child].similarity >= similarity)
            break;
        b->out[i] = b->out[child];
        i = child;
    }
    b->out[i] = (struct near){ chunk, similarity };
}

static int in_ranges(const int64_t *ranges, int n, int64_t chunk)
{
    for (int i = 0; i < n; i++)
        if (chunk >= ranges[2 * i] && chunk <= ranges[2 * i + 1])
            return 1;
    return n == 0;
}

/* Add the current chunk to the results, after all of its vectors were visited. */
static void end_chunk(struct nearest *b)
{
    const float s = b->n_parts ? WHOLE_SHARE * b->whole + (1 - WHOLE_SHARE) * b->part : b->whole;
    if (!b->chunk)
        return;
    b->sum += (double)s;
    b->squares += (double)s * (double)s;
    b->visited++;
    if (b->n < b->most || s > b->out[0].similarity)
        offer(b, b->chunk, s);
    b->chunk = 0;
}

static void visit(struct nearest *b, int64_t chunk, float similarity)
{
    if (chunk != b->chunk) {                    /* the first vector is that of the whole chunk */
        end_chunk(b);
        b->chunk = chunk;
        b->whole = similarity;
        b->n_parts = 0;
    } else {
        b->part = b->n_parts && b->part > similarity ? b->part : similarity;
        b->n_parts++;
    }
}

/* A sample of the visited chunks at equal distances: every step-th of them, SAMPLES / 2 to SAMPLES
 * in all. */
struct samples { int64_t chunk[SAMPLES], at, step; int n; };

static void add_sample(struct samples *l, int64_t chunk)
{
    if (l->at++ % l->step)
        return;
    if (l->n == SAMPLES) {
        l->n /= 2;
        l->step *= 2;
        for (int i = 0; i < l->n; i++)
            l->chunk[i] = l->chunk[2 * i];
    }
    l->chunk[l->n++] = chunk;
}

/* samples: NULL: none are needed. */
static void scan(const struct vector_search *x, const struct vector_copy *c, struct nearest *b, struct samples *samples)
{
    int32_t dots[ROWS_AT_ONCE];
    for (int from = 0; from < c->n; from += ROWS_AT_ONCE) {
        const int n = c->n - from < ROWS_AT_ONCE ? c->n - from : ROWS_AT_ONCE;
        x->v->k->dots_i8(dots, c->rows + (size_t)from * c->stride, c->stride, n, x->q);
        for (int i = 0; i < n; i++) {
            const float s = (float)dots[i] * c->scale[from + i] * x->scale;
            if (!in_ranges(x->ranges, x->n_ranges, c->chunk[from + i]))
                continue;
            visit(b, c->chunk[from + i], s);
            if (samples)
                add_sample(samples, c->chunk[from + i]);
        }
    }
    end_chunk(b);
}

/* ---- without copies of parts ---- */

/* Visit the vectors of a chunk in the database.  row: room for one. */
static int visit_stored(const struct vector_search *x, sqlite3_stmt *s, int64_t chunk, int8_t *row, struct nearest *b,
                        struct err *e)
{
    int rc;
    sqlite3_reset(s);
    sqlite3_bind_int64(s, 1, chunk);
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        int32_t dot;
        if (sqlite3_column_bytes(s, 1) != x->size)
            continue;
        memcpy(row, sqlite3_column_blob(s, 1), (size_t)x->size);
        x->v->k->dots_i8(&dot, row, x->stride, 1, x->q);
        visit(b, chunk, (float)dot * (float)sqlite3_column_double(s, 0) * x->scale);
    }
    end_chunk(b);
    return rc == SQLITE_DONE ? 0 : rag_sql_error(x->r, e);
}

/* b has the candidates, found by the vectors of whole passages.  Compute the similarity of each
 * again, with its parts, and take the mean and deviation from the samples, also with their
 * parts. */
static int add_parts(const struct vector_search *x, const struct samples *samples, struct nearest *b, struct err *e)
{
    struct near unused;
    struct nearest all = { .out = &unused, .most = 1 },
                   best = { .out = malloc((size_t)b->most * sizeof *best.out), .most = b->most };
    int8_t *row = aligned_alloc(ALIGN, x->stride);
    sqlite3_stmt *s = rag_prepare(x->r, "SELECT scale, data FROM vectors WHERE chunk = ?1 AND model = ?2 ORDER BY part", e);
    int rc = !s ? -1 : row && best.out ? 0 : err_nomem(e, "results");
    if (rc == 0) {
        memset(row, 0, x->stride);
        sqlite3_bind_int64(s, 2, x->model);
    }
    for (int i = 0; i < b->n && rc == 0; i++)
        rc = visit_stored(x, s, b->out[i].chunk, row, &best, e);
    for (int i = 0; i < samples->n && rc == 0; i++)
        rc = visit_stored(x, s, samples->chunk[i], row, &all, e);
    sqlite3_finalize(s);
    free(row);
    if (rc == 0) {
        memcpy(b->out, best.out, (size_t)best.n * sizeof *best.out);
        b->n = best.n;
        b->sum = all.sum;
        b->squares = all.squares;
        b->visited = all.visited;
    }
    free(best.out);
    return rc;
}

/* ---- both ---- */

static int compare(const void *a, const void *b)
{
    const struct near *x = a, *y = b;
    return x->similarity != y->similarity ? (x->similarity < y->similarity ? 1 : -1)
                                          : (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

static int scan_all(const struct vector_search *x, struct nearest *b, struct samples *samples, struct err *e)
{
    int rc = 0;
    pthread_mutex_lock(&x->v->lock);
    x->v->searches++;
    for (int i = 0; i < x->n_collections && rc == 0; i++) {
        const struct vector_copy *c = find_copy(x, x->collections[i], e);
        rc = c ? 0 : -1;
        if (c)
            scan(x, c, b, samples);
        trim(x->v);
    }
    pthread_mutex_unlock(&x->v->lock);
    return rc;
}

static int search(struct vector_search *x, const float *vector, struct nearest *b, struct err *e)
{
    struct samples samples = { .step = 1 };
    memset(x->q, 0, x->stride);
    x->scale = rag_round_vector(vector, x->size, x->q);
    if ((x->wholes = is_too_large(x, e)) < 0)
        return -1;
    if (!x->wholes)
        return scan_all(x, b, NULL, e);
    const int wanted = b->most;
    struct near *out = b->out;
    b->most = wanted * CANDIDATES;
    if (!(b->out = malloc((size_t)b->most * sizeof *out)))
        err_nomem(e, "results");
    int rc = b->out ? scan_all(x, b, &samples, e) : -1;
    if (rc == 0 && b->visited)
        rc = add_parts(x, &samples, b, e);
    if (rc == 0)
        qsort(b->out, (size_t)b->n, sizeof *out, compare);
    b->n = rc ? 0 : b->n < wanted ? b->n : wanted;
    if (b->n)
        memcpy(out, b->out, (size_t)b->n * sizeof *out);
    free(b->out);
    b->out = out;
    return rc;
}

int rag_nearest(struct rag_vectors *v, struct rag_store *r, const char *model, const float *vector, int size,
                const int64_t *collections, int n_collections, const int64_t *ranges, int n_ranges, struct near *out,
                int most, double *mean, double *deviation, struct err *e)
{
    struct nearest b = { .out = out, .most = most };
    struct vector_search x = { .v = v, .r = r, .model = rag_model_row(r, model, e), .collections = collections,
                        .n_collections = n_collections, .ranges = ranges, .n_ranges = n_ranges, .size = size };
    *mean = *deviation = 0;
    if (x.model <= 0 || size < 1 || size > MAX_SIZE)
        return x.model < 0 ? -1 : 0;
    x.stride = ((size_t)size + ALIGN - 1) / ALIGN * ALIGN;
    if (!(x.q = aligned_alloc(ALIGN, x.stride)))
        return err_nomem(e, "query");
    const int rc = search(&x, vector, &b, e);
    free(x.q);
    qsort(out, (size_t)b.n, sizeof *out, compare);
    if (b.visited) {
        *mean = b.sum / (double)b.visited;
        const double variance = b.squares / (double)b.visited - *mean * *mean;
        *deviation = variance > 0 ? sqrt(variance) : 0;
    }
    return rc ? -1 : b.n;
}

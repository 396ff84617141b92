/* vectors.c - vectors in the database, and exact search of their copies in memory. */
#include "libcommon/rag/vectors.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/kernels/kernels.h"
#include "libcommon/rag/internal.h"

enum { ALIGN = 64, ROWS_AT_ONCE = 256, MAX_SIZE = 1 << 16 };

/* A copy of the vectors of one collection by one model. */
struct vector_copy {
    struct vector_copy *next;
    int64_t model, collection, last, removed;           /* last: the highest number */
    size_t stride;
    int8_t *rows; float *scale; int64_t *chunk;         /* owned */
    int n, room;
    uint64_t used;                      /* the search that used it last */
};

struct rag_vectors {
    const struct kernels *k;
    size_t most_bytes;
    pthread_mutex_t lock;               /* protects everything below, and is held during a search */
    struct vector_copy *first;
    uint64_t searches;
};

/* Round x to int8; returns the scale. */
static float quantize(const float *x, int size, int8_t *out)
{
    float most = 0;
    for (int i = 0; i < size; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    const float scale = most / 127;
    for (int i = 0; i < size; i++)
        out[i] = (int8_t)(scale > 0 ? lrintf(x[i] / scale) : 0);
    return scale;
}

/* ---- in the database ---- */

static int run_numbers(struct rag_store *r, const char *sql, int64_t a, int64_t b, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, sql, e);
    if (!s)
        return -1;
    sqlite3_bind_int64(s, 1, a);
    sqlite3_bind_int64(s, 2, b);
    return rag_finish(r, s, e);
}

/* The number of the model, which is registered if it is new.  -1 with *e. */
static int64_t make_model(struct rag_store *r, const char *model, int size, struct err *e)
{
    int64_t row = rag_model_row(r, model, e), known = 0;
    if (row < 0)
        return -1;
    if (row) {
        sqlite3_stmt *s = rag_prepare(r, "SELECT size FROM models WHERE id = ?", e);
        if (!s)
            return -1;
        sqlite3_bind_int64(s, 1, row);
        known = sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
        sqlite3_finalize(s);
        if (known == size)
            return row;
        if (run_numbers(r, "DELETE FROM vectors WHERE model = ?1 AND ?2", row, 1, e) ||
            run_numbers(r, "UPDATE models SET size = ?2 WHERE id = ?1", row, size, e) ||
            run_numbers(r, "UPDATE collections SET removed = removed + 1 WHERE ?1 AND ?2", 1, 1, e))
            return -1;
        return row;
    }
    sqlite3_stmt *s = rag_prepare(r, "INSERT INTO models (name, size) VALUES (?, ?)", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, model, -1, SQLITE_STATIC);
    sqlite3_bind_int(s, 2, size);
    return rag_finish(r, s, e) ? -1 : sqlite3_last_insert_rowid(r->db);
}

static const char *column(sqlite3_stmt *s, int i)
{
    const unsigned char *text = sqlite3_column_text(s, i);
    return text ? (const char *)text : "";
}

/* A passage with its place before it: the document without the ending of its name, the headings.
 * Few passages say what they are about.  malloc'd; NULL: no memory. */
static char *text_to_embed(const char *name, const char *heading, const char *text)
{
    const char *dot = strrchr(name, '.');
    const int n = (int)(dot && dot > name ? dot - name : (ptrdiff_t)strlen(name));
    char *out;
    return asprintf(&out, "%.*s%s%s\n%s", n, name, *heading ? " > " : "", heading, text) < 0 ? NULL : out;
}

/* Add the texts of a chunk: itself and its parts.  -1: no memory. */
static int add_texts(struct rag_pending *list, int *n, int64_t chunk, int64_t collection, const char *name,
                     const char *heading, const char *text)
{
    struct passage_part part[PASSAGE_PARTS];
    const int parts = passage_parts(text, strlen(text), part);
    for (int i = 0; i <= parts; i++) {
        struct rag_pending *p = &list[(*n)++];
        *p = (struct rag_pending){ chunk, collection, i, i ? strndup(part[i - 1].text, part[i - 1].size)
                                                           : text_to_embed(name, heading, text) };
        if (!p->text)
            return -1;
    }
    return 0;
}

int rag_pending(struct rag_store *r, const char *model, int size, int64_t *after, struct rag_pending *list, int most,
                int *n, struct err *e)
{
    int rc = SQLITE_DONE, failed = 0;
    *n = 0;
    if (rag_begin(r, e))
        return -1;
    const int64_t row = make_model(r, model, size, e);
    if (rag_end(r, row < 0 ? -1 : 0, e))
        return -1;
    sqlite3_stmt *s = rag_prepare(r, "SELECT k.id, d.collection, d.name, k.heading, k.text FROM chunks k JOIN documents d ON d.id = k.document WHERE k.id > ?1"
                                     " AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.chunk = k.id AND v.model = ?2) ORDER BY k.id LIMIT ?3", e);
    if (!s)
        return -1;
    sqlite3_bind_int64(s, 1, *after);
    sqlite3_bind_int64(s, 2, row);
    sqlite3_bind_int(s, 3, most);
    while (!failed && *n + RAG_CHUNK_TEXTS <= most && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        *after = sqlite3_column_int64(s, 0);
        failed = add_texts(list, n, *after, sqlite3_column_int64(s, 1), column(s, 2), column(s, 3), column(s, 4)) &&
                 err_nomem(e, "chunk");
    }
    if (!failed && rc != SQLITE_DONE && rc != SQLITE_ROW)
        failed = rag_sql_error(r, e);
    sqlite3_finalize(s);
    if (failed)
        rag_pending_release(list, *n);
    return failed ? -1 : 0;
}

void rag_pending_release(struct rag_pending *list, int n)
{
    for (int i = 0; i < n; i++)
        free(list[i].text);
}

static int put_vectors(struct rag_store *r, int64_t model, const struct rag_pending *list, int n, const float *vectors,
                       int size, struct err *e)
{
    int8_t *rounded = malloc((size_t)size);
    sqlite3_stmt *s = rounded ? rag_prepare(r, "INSERT OR IGNORE INTO vectors (model, collection, number, chunk, part, scale, data)"
                                               " SELECT ?1, ?2, coalesce((SELECT max(number) FROM vectors WHERE model = ?1 AND collection = ?2), 0) + 1, ?3, ?4, ?5, ?6"
                                               " WHERE EXISTS (SELECT 1 FROM chunks WHERE id = ?3)", e) : NULL;
    int rc = !rounded ? err_nomem(e, "vector") : s ? 0 : -1;
    for (int i = 0; i < n && rc == 0; i++) {
        const float scale = quantize(vectors + (size_t)i * (size_t)size, size, rounded);
        sqlite3_bind_int64(s, 1, model);
        sqlite3_bind_int64(s, 2, list[i].collection);
        sqlite3_bind_int64(s, 3, list[i].chunk);
        sqlite3_bind_int(s, 4, list[i].part);
        sqlite3_bind_double(s, 5, (double)scale);
        sqlite3_bind_blob(s, 6, rounded, size, SQLITE_STATIC);
        rc = sqlite3_step(s) == SQLITE_DONE ? 0 : rag_sql_error(r, e);
        sqlite3_reset(s);
    }
    sqlite3_finalize(s);
    free(rounded);
    return rc;
}

int rag_put_vectors(struct rag_store *r, const char *model, const struct rag_pending *list, int n,
                    const float *vectors, int size, struct err *e)
{
    if (rag_begin(r, e))
        return -1;
    const int64_t row = make_model(r, model, size, e);
    return rag_end(r, row < 0 ? -1 : put_vectors(r, row, list, n, vectors, size, e), e);
}

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

static size_t copy_bytes(const struct vector_copy *c)
{
    return (size_t)c->room * (c->stride + sizeof(float) + sizeof(int64_t));
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
    sqlite3_stmt *s = rag_prepare(r, "SELECT number, chunk, scale, data FROM vectors WHERE model = ? AND collection = ? AND number > ? ORDER BY number", e);
    if (!s)
        return -1;
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

static int64_t removals(struct rag_store *r, int64_t collection, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, "SELECT removed FROM collections WHERE id = ?", e);
    if (!s)
        return -1;
    sqlite3_bind_int64(s, 1, collection);
    const int64_t n = sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    sqlite3_finalize(s);
    return n;
}

/* The up-to-date copy of a collection, NULL with *e. */
static struct vector_copy *find_copy(struct rag_vectors *v, struct rag_store *r, int64_t model, int64_t collection,
                                     int size, struct err *e)
{
    const int64_t removed = removals(r, collection, e);
    const size_t stride = ((size_t)size + ALIGN - 1) / ALIGN * ALIGN;
    struct vector_copy *c = v->first;
    while (c && (c->model != model || c->collection != collection))
        c = c->next;
    if (removed < 0)
        return NULL;
    if (!c) {
        if (!(c = calloc(1, sizeof *c))) {
            err_nomem(e, "vectors");
            return NULL;
        }
        *c = (struct vector_copy){ .next = v->first, .model = model, .collection = collection, .stride = stride,
                            .removed = removed };
        v->first = c;
    }
    if (c->removed != removed || c->stride != stride) {
        free(c->rows);
        free(c->scale);
        free(c->chunk);
        *c = (struct vector_copy){ .next = c->next, .model = model, .collection = collection, .stride = stride,
                            .removed = removed };
    }
    c->used = v->searches;
    return read_new(r, c, size, e) ? NULL : c;
}

/* Free the copies that were not used for longest, beyond the limit. */
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

/* chunk: the one whose vectors are being visited, with the similarities of it and of its best part;
 * 0: none. */
struct nearest {
    struct near *out; int n, most;
    double sum, squares; int64_t visited;
    int64_t chunk; float whole, part; int n_parts;
};

/* Keep the best as a heap whose root is the worst of them. */
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

/* All vectors of the current chunk were visited. */
static void end_chunk(struct nearest *b)
{
    const float s = b->n_parts ? (b->whole + b->part) / 2 : b->whole;
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

static void scan(const struct kernels *k, const struct vector_copy *c, const int8_t *q, float scale,
                 const int64_t *ranges, int n_ranges, struct nearest *b)
{
    int32_t dots[ROWS_AT_ONCE];
    for (int from = 0; from < c->n; from += ROWS_AT_ONCE) {
        const int n = c->n - from < ROWS_AT_ONCE ? c->n - from : ROWS_AT_ONCE;
        k->dots_i8(dots, c->rows + (size_t)from * c->stride, c->stride, n, q);
        for (int i = 0; i < n; i++) {
            const float s = (float)dots[i] * c->scale[from + i] * scale;
            if (in_ranges(ranges, n_ranges, c->chunk[from + i]))
                visit(b, c->chunk[from + i], s);
        }
    }
    end_chunk(b);
}

static int compare(const void *a, const void *b)
{
    const struct near *x = a, *y = b;
    return x->similarity != y->similarity ? (x->similarity < y->similarity ? 1 : -1)
                                          : (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

int rag_nearest(struct rag_vectors *v, struct rag_store *r, const char *model, const float *vector, int size,
                const int64_t *collections, int n_collections, const int64_t *ranges, int n_ranges, struct near *out,
                int most, double *mean, double *deviation, struct err *e)
{
    struct nearest b = { .out = out, .most = most };
    const int64_t row = rag_model_row(r, model, e);
    const size_t stride = ((size_t)size + ALIGN - 1) / ALIGN * ALIGN;
    *mean = *deviation = 0;
    if (row <= 0 || size < 1 || size > MAX_SIZE)
        return row < 0 ? -1 : 0;
    int8_t *q = aligned_alloc(ALIGN, stride);
    if (!q)
        return err_nomem(e, "query");
    memset(q, 0, stride);
    const float scale = quantize(vector, size, q);
    int rc = 0;
    pthread_mutex_lock(&v->lock);
    v->searches++;
    for (int i = 0; i < n_collections && rc == 0; i++) {
        const struct vector_copy *c = find_copy(v, r, row, collections[i], size, e);
        rc = c ? 0 : -1;
        if (c)
            scan(v->k, c, q, scale, ranges, n_ranges, &b);
        trim(v);
    }
    pthread_mutex_unlock(&v->lock);
    free(q);
    qsort(out, (size_t)b.n, sizeof *out, compare);
    if (b.visited) {
        *mean = b.sum / (double)b.visited;
        const double variance = b.squares / (double)b.visited - *mean * *mean;
        *deviation = variance > 0 ? sqrt(variance) : 0;
    }
    return rc ? -1 : b.n;
}

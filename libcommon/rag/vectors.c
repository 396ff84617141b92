/* vectors.c - vectors in the database: which chunks have none yet, storing them. */
#include "libcommon/rag/vectors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/rag/internal.h"

float rag_round_vector(const float *x, int size, int8_t *out)
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

/* The text that is embedded for a passage: the document's name without extension, the headings,
 * then the passage, because few passages name their subject.  malloc'd; NULL: out of memory. */
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
        const float scale = rag_round_vector(vectors + (size_t)i * (size_t)size, size, rounded);
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

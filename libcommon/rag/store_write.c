/* store_write.c - add and delete documents with their chunks, index entries and vectors. */
#include "libcommon/rag/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "libcommon/base/utf8.h"
#include "libcommon/rag/words.h"

int rag_check_collection(const char *name, struct err *e)
{
    const size_t n = strlen(name);
    int bad = n < 1 || n > RAG_COLLECTION || utf8_valid(name, n) != n;
    for (size_t i = 0; i < n; i++)
        bad |= (unsigned char)name[i] < ' ' || name[i] == 0x7f;
    return bad ? err_set(e, ERR_FORMAT, "the name of a collection has %zu bytes, expected 1 to %d, without control characters", n, RAG_COLLECTION)
               : 0;
}

/* ---- admission ---- */

/* The document of this hash in the collection: 1 (*there), 0, or -1 with *e. */
static int find_same(struct rag_store *r, int64_t collection, const struct rag_document *d, struct rag_document *there,
                     struct err *e)
{
    char id[RAG_ID];
    sqlite3_stmt *s = rag_prepare(r, "SELECT public FROM documents WHERE collection = ? AND hash = ?", e);
    if (!s)
        return -1;
    sqlite3_bind_int64(s, 1, collection);
    sqlite3_bind_blob(s, 2, d->sha256, SHA256_SIZE, SQLITE_STATIC);
    const int rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        snprintf(id, sizeof id, "%s", (const char *)sqlite3_column_text(s, 0));
    const int failed = rc != SQLITE_ROW && rc != SQLITE_DONE && rag_sql_error(r, e);
    sqlite3_finalize(s);
    if (failed || rc == SQLITE_DONE)
        return failed ? -1 : 0;
    return rag_find(r, d->owner, id, NULL, there, e) ? -1 : 1;
}

static int check_quota(struct rag_store *r, const struct rag_document *d, const struct rag_quota *q, struct err *e)
{
    struct rag_totals t;
    if (rag_totals(r, d->owner, NULL, &t, e))
        return -1;
    if (q->documents && t.documents >= q->documents)
        return err_set(e, ERR_LIMIT, "%" PRId64 " documents are stored, expected at most %" PRId64 ": delete some first",
                       t.documents, q->documents);
    if (q->bytes && (d->file_size > q->bytes || t.bytes > q->bytes - d->file_size))
        return err_set(e, ERR_LIMIT, "%" PRIu64 " bytes of documents are stored, and %" PRIu64 " more would exceed %" PRIu64 ": delete some first",
                       t.bytes, d->file_size, q->bytes);
    return 0;
}

int rag_admit(struct rag_store *r, const struct rag_document *d, const struct rag_quota *q, struct rag_document *there,
              struct err *e)
{
    const int64_t collection = rag_collection_row(r, d->owner, d->collection, e);
    const int same = collection < 0 ? -1 : collection ? find_same(r, collection, d, there, e) : 0;
    return same ? same : check_quota(r, d, q, e);
}

/* ---- adding ---- */

/* The number of the collection, which is made if it is missing.  -1 with *e. */
static int64_t make_collection(struct rag_store *r, const struct rag_document *d, struct err *e)
{
    struct rag_totals t;
    const int64_t there = rag_collection_row(r, d->owner, d->collection, e);
    if (there)
        return there;
    if (rag_totals(r, d->owner, NULL, &t, e))
        return -1;
    if (t.collections >= RAG_MAX_COLLECTIONS)
        return err_set(e, ERR_LIMIT, "%" PRId64 " collections, expected at most %d", t.collections, RAG_MAX_COLLECTIONS);
    sqlite3_stmt *s = rag_prepare(r, "INSERT INTO collections (owner, name) VALUES (?, ?)", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, d->owner, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, d->collection, -1, SQLITE_STATIC);
    return rag_finish(r, s, e) ? -1 : sqlite3_last_insert_rowid(r->db);
}

static int insert_document(struct rag_store *r, struct rag_document *d, int64_t collection, struct err *e)
{
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return err_sys(e, "random bytes for a document's id");
    snprintf(d->id, sizeof d->id, "doc-%016" PRIx64, number);
    d->created_s = (int64_t)time(NULL);
    sqlite3_stmt *s = rag_prepare(r, "INSERT INTO documents (public, collection, name, type, metadata, created, file_size, text_size, pages, chunks, words_in, hash)"
                                     " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, d->id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 2, collection);
    sqlite3_bind_text(s, 3, d->name, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 4, d->type, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 5, d->metadata ? d->metadata : "{}", -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 6, d->created_s);
    sqlite3_bind_int64(s, 7, (int64_t)d->file_size);
    sqlite3_bind_int64(s, 8, (int64_t)d->text_size);
    sqlite3_bind_int(s, 9, d->n_pages);
    sqlite3_bind_int(s, 10, d->n_chunks);
    sqlite3_bind_blob(s, 11, d->sha256, SHA256_SIZE, SQLITE_STATIC);
    if (rag_finish(r, s, e))
        return -1;
    d->row = sqlite3_last_insert_rowid(r->db);
    return 0;
}

/* The words of the column scope. */
static void scope_words(char out[48], int64_t collection, int64_t document)
{
    snprintf(out, 48, "c%" PRId64 " d%" PRId64, collection, document);
}

struct inserts { sqlite3_stmt *chunk, *words; };

static int insert_chunk(struct rag_store *r, const struct inserts *in, int64_t document, int number, const char *text,
                        const struct chunk *c, const char *scope, int *n_words, struct err *e)
{
    int in_text = 0, in_heading = 0;
    sqlite3_bind_int64(in->chunk, 1, document);
    sqlite3_bind_int(in->chunk, 2, number);
    sqlite3_bind_int(in->chunk, 3, c->page);
    sqlite3_bind_int64(in->chunk, 4, (int64_t)c->offset);
    sqlite3_bind_text(in->chunk, 5, c->heading, -1, SQLITE_STATIC);
    sqlite3_bind_text(in->chunk, 6, text + c->offset, (int)c->size, SQLITE_STATIC);
    int rc = sqlite3_step(in->chunk) == SQLITE_DONE ? 0 : rag_sql_error(r, e);
    sqlite3_reset(in->chunk);
    if (rc)
        return rc;
    char *heading = words_spaced(c->heading, strlen(c->heading), &in_heading),
         *spaced = words_spaced(text + c->offset, c->size, &in_text);
    if (heading && spaced) {
        sqlite3_bind_int64(in->words, 1, sqlite3_last_insert_rowid(r->db));
        sqlite3_bind_text(in->words, 2, scope, -1, SQLITE_STATIC);
        sqlite3_bind_text(in->words, 3, heading, -1, SQLITE_STATIC);
        sqlite3_bind_text(in->words, 4, spaced, -1, SQLITE_STATIC);
        rc = sqlite3_step(in->words) == SQLITE_DONE ? 0 : rag_sql_error(r, e);
        sqlite3_reset(in->words);
    } else {
        rc = err_nomem(e, "index");
    }
    free(heading);
    free(spaced);
    *n_words += in_text + in_heading;
    return rc;
}

static int insert_chunks(struct rag_store *r, int64_t document, int64_t collection, const char *text,
                         const struct chunk_list *l, int *n_words, struct err *e)
{
    struct inserts in = { 0 };
    char scope[48];
    int rc = -1;
    *n_words = 0;
    scope_words(scope, collection, document);
    if ((in.chunk = rag_prepare(r, "INSERT INTO chunks (document, number, page, offset, heading, text) VALUES (?, ?, ?, ?, ?, ?)", e)) &&
        (in.words = rag_prepare(r, "INSERT INTO words (rowid, scope, heading, text) VALUES (?, ?, ?, ?)", e)))
        for (int i = rc = 0; i < l->n && rc == 0; i++)
            rc = insert_chunk(r, &in, document, i, text, &l->chunk[i], scope, n_words, e);
    sqlite3_finalize(in.chunk);
    sqlite3_finalize(in.words);
    return rc;
}

/* Run sql with up to five numbers. */
static int change(struct rag_store *r, const char *sql, const int64_t *v, int n, struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, sql, e);
    if (!s)
        return -1;
    for (int i = 0; i < n; i++)
        sqlite3_bind_int64(s, i + 1, v[i]);
    return rag_finish(r, s, e);
}

static int add(struct rag_store *r, struct rag_document *d, const char *text, const struct chunk_list *chunks,
               const struct rag_quota *q, struct rag_document *there, struct err *e)
{
    int n_words;
    const int admitted = rag_admit(r, d, q, there, e);
    if (admitted)
        return admitted;
    d->n_chunks = chunks->n;
    d->n_pages = chunks->pages;
    const int64_t collection = make_collection(r, d, e);
    if (collection < 0 || insert_document(r, d, collection, e) ||
        insert_chunks(r, d->row, collection, text, chunks, &n_words, e))
        return -1;
    return change(r, "UPDATE documents SET words_in = ? WHERE id = ?", (int64_t[]){ n_words, d->row }, 2, e) ||
           change(r, "UPDATE collections SET documents = documents + 1, chunks = chunks + ?, bytes = bytes + ?, words_in = words_in + ? WHERE id = ?",
                  (int64_t[]){ chunks->n, (int64_t)d->file_size, n_words, collection }, 4, e) ? -1 : 0;
}

int rag_add(struct rag_store *r, struct rag_document *d, const char *text, const struct chunk_list *chunks,
            const struct rag_quota *q, struct rag_document *there, struct err *e)
{
    return rag_begin(r, e) ? -1 : rag_end(r, add(r, d, text, chunks, q, there, e), e);
}

/* ---- deleting ---- */

static char *spaced_column(sqlite3_stmt *s, int i)
{
    const char *text = (const char *)sqlite3_column_text(s, i);
    return text ? words_spaced(text, (size_t)sqlite3_column_bytes(s, i), NULL) : NULL;
}

/* Remove the chunks of a document from the index; FTS5 needs the indexed text for that. */
static int delete_words(struct rag_store *r, int64_t document, const char *scope, struct err *e)
{
    sqlite3_stmt *get = rag_prepare(r, "SELECT id, heading, text FROM chunks WHERE document = ?", e), *out = NULL;
    int rc = -1, step = SQLITE_DONE;
    if (get)
        out = rag_prepare(r, "INSERT INTO words (words, rowid, scope, heading, text) VALUES ('delete', ?, ?, ?, ?)", e);
    if (out) {
        sqlite3_bind_int64(get, 1, document);
        rc = 0;
    }
    while (rc == 0 && (step = sqlite3_step(get)) == SQLITE_ROW) {
        char *heading = spaced_column(get, 1), *spaced = spaced_column(get, 2);
        sqlite3_bind_int64(out, 1, sqlite3_column_int64(get, 0));
        sqlite3_bind_text(out, 2, scope, -1, SQLITE_STATIC);
        sqlite3_bind_text(out, 3, heading, -1, SQLITE_STATIC);
        sqlite3_bind_text(out, 4, spaced, -1, SQLITE_STATIC);
        rc = !heading || !spaced ? err_nomem(e, "index") : sqlite3_step(out) == SQLITE_DONE ? 0 : rag_sql_error(r, e);
        sqlite3_reset(out);
        free(heading);
        free(spaced);
    }
    if (rc == 0 && step != SQLITE_DONE)
        rc = rag_sql_error(r, e);
    sqlite3_finalize(get);
    sqlite3_finalize(out);
    return rc;
}

static int delete_document(struct rag_store *r, int64_t document, int64_t collection, struct err *e)
{
    char scope[48];
    const int64_t both[] = { document, collection };
    scope_words(scope, collection, document);
    if (delete_words(r, document, scope, e) ||
        change(r, "DELETE FROM vectors WHERE ?2 AND chunk BETWEEN"
               " (SELECT min(id) FROM chunks WHERE document = ?1) AND (SELECT max(id) FROM chunks WHERE document = ?1)", both, 2, e) ||
        change(r, "DELETE FROM chunks WHERE document = ?1 AND ?2", both, 2, e))
        return -1;
    return change(r, "UPDATE collections SET removed = removed + 1, documents = documents - 1,"
                  " chunks = chunks - (SELECT chunks FROM documents WHERE id = ?1),"
                  " bytes = bytes - (SELECT file_size FROM documents WHERE id = ?1),"
                  " words_in = words_in - (SELECT words_in FROM documents WHERE id = ?1) WHERE id = ?2", both, 2, e) ||
           change(r, "DELETE FROM documents WHERE id = ?1 AND ?2", both, 2, e) ? -1 : 0;
}

/* Delete the documents that sql selects (id, collection) by owner and text.  *n: how many. */
static int delete_selected(struct rag_store *r, const char *sql, const char *owner, const char *text, int64_t *n,
                           struct err *e)
{
    int rc = 0, step;
    *n = 0;
    for (;;) {                              /* prepare the query again each time, because its rows are being deleted */
        sqlite3_stmt *s = rag_prepare(r, sql, e);
        if (!s)
            return -1;
        sqlite3_bind_text(s, 1, owner, -1, SQLITE_STATIC);
        sqlite3_bind_text(s, 2, text, -1, SQLITE_STATIC);
        step = sqlite3_step(s);
        const int64_t document = sqlite3_column_int64(s, 0), collection = sqlite3_column_int64(s, 1);
        rc = step != SQLITE_ROW && step != SQLITE_DONE ? rag_sql_error(r, e) : 0;
        sqlite3_finalize(s);
        if (rc || step == SQLITE_DONE)
            return rc;
        if (delete_document(r, document, collection, e))
            return -1;
        ++*n;
    }
}

int rag_delete(struct rag_store *r, const char *owner, const char *id, struct err *e)
{
    int64_t n = 0;
    if (rag_begin(r, e))
        return -1;
    int rc = delete_selected(r, "SELECT d.id, d.collection FROM documents d JOIN collections c ON c.id = d.collection WHERE c.owner = ? AND d.public = ?",
                             owner, id, &n, e);
    if (rc == 0 && n == 0)
        rc = err_set(e, ERR_FORMAT, "there is no document '%.40s'", id);
    return rag_end(r, rc, e);
}

int rag_delete_collection(struct rag_store *r, const char *owner, const char *name, int64_t *n, struct err *e)
{
    *n = 0;
    if (rag_begin(r, e))
        return -1;
    const int64_t row = rag_collection_row(r, owner, name, e);
    int rc = row < 0 ? -1 : row == 0 ? err_set(e, ERR_FORMAT, "there is no collection '%.*s'", RAG_COLLECTION, name) : 0;
    if (rc == 0)
        rc = delete_selected(r, "SELECT d.id, d.collection FROM documents d JOIN collections c ON c.id = d.collection WHERE c.owner = ? AND c.name = ? LIMIT 1",
                             owner, name, n, e);
    if (rc == 0)
        rc = change(r, "DELETE FROM collections WHERE id = ?", &row, 1, e);
    return rag_end(r, rc, e);
}

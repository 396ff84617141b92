/* store_read.c - list and find documents, their chunks, collections and totals. */
#include "libcommon/rag/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOCUMENT "d.id, d.public, c.owner, c.name, d.name, d.type, d.metadata, d.created, d.file_size, d.text_size, d.chunks, d.pages, d.hash," \
    " (SELECT count(*) FROM vectors v WHERE ?3 AND v.model = ?3 AND v.part = 0 AND v.chunk BETWEEN" \
    " (SELECT min(id) FROM chunks WHERE document = d.id) AND (SELECT max(id) FROM chunks WHERE document = d.id))"
#define FROM_DOCUMENTS " FROM documents d JOIN collections c ON c.id = d.collection WHERE c.owner = ?1 "

static char *column_text(sqlite3_stmt *s, int i)
{
    const unsigned char *text = sqlite3_column_text(s, i);
    return strdup(text ? (const char *)text : "");
}

static int read_document(sqlite3_stmt *s, struct rag_document *d, struct err *e)
{
    *d = (struct rag_document){ .row = sqlite3_column_int64(s, 0), .name = column_text(s, 4), .type = column_text(s, 5),
                                .metadata = column_text(s, 6), .created_s = sqlite3_column_int64(s, 7),
                                .file_size = (uint64_t)sqlite3_column_int64(s, 8),
                                .text_size = (uint64_t)sqlite3_column_int64(s, 9),
                                .n_chunks = sqlite3_column_int(s, 10),
                                .n_pages = sqlite3_column_int(s, 11), .n_vectors = sqlite3_column_int(s, 13) };
    snprintf(d->id, sizeof d->id, "%s", (const char *)sqlite3_column_text(s, 1));
    snprintf(d->owner, sizeof d->owner, "%s", (const char *)sqlite3_column_text(s, 2));
    snprintf(d->collection, sizeof d->collection, "%s", (const char *)sqlite3_column_text(s, 3));
    if (sqlite3_column_bytes(s, 12) == SHA256_SIZE)
        memcpy(d->sha256, sqlite3_column_blob(s, 12), SHA256_SIZE);
    if (d->name && d->type && d->metadata)
        return 0;
    rag_document_release(d);
    return err_nomem(e, "document");
}

void rag_document_release(struct rag_document *d)
{
    free(d->name);
    free(d->type);
    free(d->metadata);
    d->name = d->type = d->metadata = NULL;
}

void rag_documents_free(struct rag_document *list, int n)
{
    for (int i = 0; i < n; i++)
        rag_document_release(&list[i]);
    free(list);
}

/* Double the room of a list whose length is a power of two, or 0. */
static int grow(void **p, int n, size_t size, struct err *e)
{
    if (n & (n - 1))
        return 0;
    void *more = realloc(*p, (size_t)(n ? 2 * n : 1) * size);
    if (!more)
        return err_nomem(e, "list");
    *p = more;
    return 0;
}

int rag_find(struct rag_store *r, const char *owner, const char *id, const char *model, struct rag_document *d,
             struct err *e)
{
    const int64_t m = model ? rag_model_row(r, model, e) : 0;
    sqlite3_stmt *s = m < 0 ? NULL : rag_prepare(r, "SELECT " DOCUMENT FROM_DOCUMENTS "AND d.public = ?2", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, owner, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 3, m);
    const int rc = sqlite3_step(s);
    const int got = rc == SQLITE_ROW ? read_document(s, d, e) : rc == SQLITE_DONE
                        ? err_set(e, ERR_FORMAT, "there is no document '%.40s'", id) : rag_sql_error(r, e);
    sqlite3_finalize(s);
    return got;
}

static int count_documents(struct rag_store *r, const char *owner, const char *collection, int64_t *total,
                           struct err *e)
{
    sqlite3_stmt *s = rag_prepare(r, "SELECT coalesce(sum(documents), 0) FROM collections WHERE owner = ?1 AND (?2 IS NULL OR name = ?2)", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, owner, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, collection, -1, SQLITE_STATIC);
    const int rc = sqlite3_step(s) == SQLITE_ROW ? 0 : rag_sql_error(r, e);
    *total = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return rc;
}

int rag_list(struct rag_store *r, const char *owner, const char *collection, const char *model, int limit,
             int64_t offset, struct rag_document **list, int *n, int64_t *total, struct err *e)
{
    const int64_t m = model ? rag_model_row(r, model, e) : 0;
    int rc = SQLITE_DONE;
    *list = NULL;
    *n = 0;
    sqlite3_stmt *s = m < 0 || count_documents(r, owner, collection, total, e) ? NULL
        : rag_prepare(r, "SELECT " DOCUMENT FROM_DOCUMENTS "AND (?2 IS NULL OR c.name = ?2) ORDER BY d.id DESC LIMIT ?4 OFFSET ?5", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, owner, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, collection, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 3, m);
    sqlite3_bind_int(s, 4, limit);
    sqlite3_bind_int64(s, 5, offset);
    int failed = 0;
    while (!failed && (rc = sqlite3_step(s)) == SQLITE_ROW)
        if (!(failed = grow((void **)list, *n, sizeof **list, e) || read_document(s, &(*list)[*n], e)))
            ++*n;
    if (!failed && rc != SQLITE_DONE)
        failed = rag_sql_error(r, e);
    sqlite3_finalize(s);
    if (!failed)
        return 0;
    rag_documents_free(*list, *n);
    *list = NULL;
    return -1;
}

void rag_chunks_free(struct rag_chunk *list, int n)
{
    for (int i = 0; i < n; i++) {
        free(list[i].heading);
        free(list[i].text);
    }
    free(list);
}

int rag_chunks(struct rag_store *r, const struct rag_document *d, struct rag_chunk **list, int *n, struct err *e)
{
    int rc = SQLITE_DONE, failed = 0;
    *list = NULL;
    *n = 0;
    sqlite3_stmt *s = rag_prepare(r, "SELECT id, number, page, offset, heading, text FROM chunks WHERE document = ? ORDER BY number", e);
    if (!s)
        return -1;
    sqlite3_bind_int64(s, 1, d->row);
    while (!failed && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        if ((failed = grow((void **)list, *n, sizeof **list, e)))
            break;
        struct rag_chunk *c = &(*list)[(*n)++];
        *c = (struct rag_chunk){ sqlite3_column_int64(s, 0), sqlite3_column_int(s, 1), sqlite3_column_int(s, 2),
                                 (uint64_t)sqlite3_column_int64(s, 3), column_text(s, 4), column_text(s, 5) };
        if (!c->heading || !c->text)
            failed = err_nomem(e, "chunk");
    }
    if (!failed && rc != SQLITE_DONE)
        failed = rag_sql_error(r, e);
    sqlite3_finalize(s);
    if (!failed)
        return 0;
    rag_chunks_free(*list, *n);
    *list = NULL;
    return -1;
}

int rag_collections(struct rag_store *r, const char *owner, struct rag_collection **list, int *n, struct err *e)
{
    int rc = SQLITE_DONE, failed = 0;
    *list = NULL;
    *n = 0;
    sqlite3_stmt *s = rag_prepare(r, "SELECT name, documents, chunks, bytes FROM collections WHERE owner = ? ORDER BY name", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, owner, -1, SQLITE_STATIC);
    while (!failed && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        if ((failed = grow((void **)list, *n, sizeof **list, e)))
            break;
        struct rag_collection *c = &(*list)[(*n)++];
        *c = (struct rag_collection){ .documents = sqlite3_column_int64(s, 1), .chunks = sqlite3_column_int64(s, 2),
                                      .bytes = sqlite3_column_int64(s, 3) };
        snprintf(c->name, sizeof c->name, "%s", (const char *)sqlite3_column_text(s, 0));
    }
    if (!failed && rc != SQLITE_DONE)
        failed = rag_sql_error(r, e);
    sqlite3_finalize(s);
    if (!failed)
        return 0;
    free(*list);
    *list = NULL;
    return -1;
}

int rag_totals(struct rag_store *r, const char *owner, const char *model, struct rag_totals *t, struct err *e)
{
    const int64_t m = model ? rag_model_row(r, model, e) : 0;
    sqlite3_stmt *s = m < 0 ? NULL
        : rag_prepare(r, "SELECT count(*), coalesce(sum(documents), 0), coalesce(sum(chunks), 0), coalesce(sum(bytes), 0),"
                         " (SELECT count(*) FROM vectors WHERE ?2 AND model = ?2 AND part = 0 AND collection IN (SELECT id FROM collections WHERE owner = ?1))"
                         " FROM collections WHERE owner = ?1", e);
    if (!s)
        return -1;
    sqlite3_bind_text(s, 1, owner, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 2, m);
    const int rc = sqlite3_step(s) == SQLITE_ROW ? 0 : rag_sql_error(r, e);
    *t = (struct rag_totals){ .collections = sqlite3_column_int64(s, 0), .documents = sqlite3_column_int64(s, 1),
                              .chunks = sqlite3_column_int64(s, 2), .bytes = (uint64_t)sqlite3_column_int64(s, 3),
                              .vectors = sqlite3_column_int64(s, 4) };
    sqlite3_finalize(s);
    return rc;
}

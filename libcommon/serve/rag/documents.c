/* documents.c - jobs that list and delete documents. */
#include "libcommon/serve/rag/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/rag/extract.h"

/* ---- answers ---- */

json_t *rag_document_object(struct rag_job *j, const struct rag_document *d)
{
    char hex[SHA256_HEX + 1];
    const char *model = rag_model(j);
    json_t *metadata = json_loads(d->metadata, 0, NULL);
    sha256_hex(d->sha256, hex);
    return json_pack("{s:s,s:o,s:s,s:s,s:I,s:I,s:i,s:i,s:o,s:s,s:o,s:o}", "id", d->id, "name", js_text(d->name),
                     "collection", d->collection, "file_type", d->type, "file_size", (json_int_t)d->file_size, "text_size",
                     (json_int_t)d->text_size, "chunk_count", d->n_chunks, "page_count", d->n_pages, "created_at", js_time(d->created_s * 1000),
                     "sha256", hex, "metadata", metadata ? metadata : json_object(), "vectors",
                     model ? json_pack("{s:s,s:i}", "model", model, "ready", d->n_vectors) : json_null());
}

static json_t *chunk_object(const struct rag_document *d, const struct rag_chunk *c)
{
    const int pages = d->n_pages > 1 || strcmp(d->type, "pdf") == 0;
    return json_pack("{s:I,s:s,s:o,s:i,s:o,s:I,s:o}", "id", (json_int_t)c->id, "document_id", d->id, "content",
                     js_text(c->text), "chunk_index", c->number, "page", pages ? json_integer(c->page) : json_null(),
                     "offset", (json_int_t)c->offset, "heading", js_text(c->heading));
}

/* ---- listing and deleting ---- */

void rag_run_list(struct rag_job *j, struct rag_store *r)
{
    struct rag_document *list;
    int n;
    int64_t total;
    struct err e;
    if (rag_list(r, j->owner, *j->collection ? j->collection : NULL, rag_model(j), j->limit, j->offset, &list, &n,
                 &total, &e)) {
        rag_problem(j, &e, NULL);
        return;
    }
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(array, rag_document_object(j, &list[i]));
    rag_documents_free(list, n);
    j->answer = json_pack("{s:o,s:I}", "documents", array, "total", (json_int_t)total);
}

static void add_chunks(struct rag_job *j, struct rag_store *r, const struct rag_document *d)
{
    struct rag_chunk *list;
    int n;
    struct err e;
    if (rag_hold(j, d->text_size * 8)) {
        json_decref(j->answer);
        j->answer = NULL;
        return;
    }
    if (rag_chunks(r, d, &list, &n, &e)) {
        rag_problem(j, &e, NULL);
        return;
    }
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(array, chunk_object(d, &list[i]));
    json_object_set_new(j->answer, "chunks", array);
    rag_chunks_free(list, n);
}

void rag_run_get(struct rag_job *j, struct rag_store *r)
{
    struct rag_document d;
    struct err e;
    if (rag_find(r, j->owner, j->id, rag_model(j), &d, &e)) {
        rag_problem(j, &e, "no_such_document");
        return;
    }
    j->answer = rag_document_object(j, &d);
    if (j->answer && j->with_chunks)
        add_chunks(j, r, &d);
    rag_document_release(&d);
}

/* Join the text of these chunks.  Text that a chunk repeats from the one before is left out, and a
 * gap between chunks becomes an empty line. */
static void join_chunks(const struct rag_chunk *list, int n, struct buf *out)
{
    uint64_t at = 0;                        /* offset of the end of the text so far */
    for (int i = 0; i < n; i++) {
        const size_t size = strlen(list[i].text);
        const uint64_t offset = list[i].offset;
        if (offset > at)
            buf_str(out, i == 0 ? "" : "\n\n");
        if (offset > at)
            at = offset;
        if (offset + size <= at)
            continue;
        buf_add(out, list[i].text + (at - offset), size - (size_t)(at - offset));
        at = offset + size;
    }
}

static json_t *text_of(struct rag_job *j, struct rag_store *r, const struct rag_document *d)
{
    struct buf text = { 0 };
    struct rag_chunk *list;
    struct err e;
    int n;
    if (d->text_size > RAG_TEXT) {
        problem_set(&j->problem, 413, NULL, "too_large", "a text of %llu bytes, expected at most %d; /api/rag/search finds passages",
                    (unsigned long long)d->text_size, RAG_TEXT);
        return NULL;
    }
    if (rag_hold(j, d->text_size * 8) != 0)
        return NULL;
    if (rag_chunks(r, d, &list, &n, &e) != 0) {
        rag_problem(j, &e, NULL);
        return NULL;
    }
    join_chunks(list, n, &text);
    rag_chunks_free(list, n);
    json_t *out = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.size);
    buf_release(&text);
    if (!out)
        problem_nomem(&j->problem);
    return out;
}

void rag_run_text(struct rag_job *j, struct rag_store *r)
{
    struct rag_document d;
    struct err e;
    if (rag_find(r, j->owner, j->id, NULL, &d, &e)) {
        rag_problem(j, &e, "no_such_document");
        return;
    }
    json_t *text = text_of(j, r, &d);
    if (text && (j->answer = rag_document_object(j, &d)) && json_object_set_new(j->answer, "text", text) != 0) {
        json_decref(j->answer);
        j->answer = NULL;
    }
    rag_document_release(&d);
}

void rag_run_delete(struct rag_job *j, struct rag_store *r)
{
    struct err e;
    if (rag_delete(r, j->owner, j->id, &e))
        rag_problem(j, &e, "no_such_document");
    else
        j->answer = json_pack("{s:s,s:s}", "status", "deleted", "id", j->id);
}

void rag_run_collections(struct rag_job *j, struct rag_store *r)
{
    struct rag_collection *list;
    int n;
    struct err e;
    if (rag_collections(r, j->owner, &list, &n, &e)) {
        rag_problem(j, &e, NULL);
        return;
    }
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(array, json_pack("{s:s,s:I,s:I,s:I}", "name", list[i].name, "documents",
                                               (json_int_t)list[i].documents, "chunks", (json_int_t)list[i].chunks,
                                               "bytes", (json_int_t)list[i].bytes));
    free(list);
    j->answer = json_pack("{s:o}", "collections", array);
}

void rag_run_drop(struct rag_job *j, struct rag_store *r)
{
    int64_t n;
    struct err e;
    if (rag_delete_collection(r, j->owner, j->id, &n, &e))
        rag_problem(j, &e, "no_such_collection");
    else
        j->answer = json_pack("{s:s,s:s,s:I}", "status", "deleted", "name", j->id, "documents", (json_int_t)n);
}

static json_t *embedding_object(const struct rag_job *j, const struct rag_totals *t)
{
    if (!rag_model(j))
        return json_null();
    return json_pack("{s:s,s:o,s:I,s:I}", "model", j->model, "size",
                     j->embedder ? json_integer(rag_vector_size(j)) : json_null(), "vectors", (json_int_t)t->vectors,
                     "pending", (json_int_t)(t->chunks - t->vectors));
}

static json_t *reranker_object(const struct rag_job *j)
{
    const char *id = j->reranker ? j->reranker->id : j->s->o.rerank_model;
    return id ? json_pack("{s:s,s:b}", "model", id, "ready", j->reranker != NULL) : json_null();
}

void rag_run_stats(struct rag_job *j, struct rag_store *r)
{
    const struct server_options *o = &j->s->o;
    struct rag_totals t;
    struct err e;
    if (rag_totals(r, j->owner, rag_model(j), &t, &e)) {
        rag_problem(j, &e, NULL);
        return;
    }
    json_t *formats = json_object();
    for (int i = 0; i < RAG_TYPES; i++)
        json_object_set_new(formats, rag_type_name((enum rag_type)i), json_boolean(rag_type_works((enum rag_type)i)));
    j->answer = json_pack("{s:I,s:I,s:I,s:I,s:{s:o,s:o},s:o,s:I,s:o,s:o}", "documents", (json_int_t)t.documents, "chunks",
                          (json_int_t)t.chunks, "bytes", (json_int_t)t.bytes, "collections", (json_int_t)t.collections,
                          "quota", "documents", o->rag_documents ? json_integer(o->rag_documents) : json_null(),
                          "bytes", o->rag_bytes ? json_integer((json_int_t)o->rag_bytes) : json_null(), "formats",
                          formats, "max_file_bytes", (json_int_t)o->max_body, "embedding",
                          embedding_object(j, &t), "reranker", reranker_object(j));
}

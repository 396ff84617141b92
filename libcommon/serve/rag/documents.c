/* documents.c - jobs that add, list and delete documents. */
#include "libcommon/serve/rag/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/rag/extract.h"

/* ---- answers ---- */

static json_t *document_object(struct rag_job *j, const struct rag_document *d)
{
    char hex[SHA256_HEX + 1];
    const char *model = rag_model(j);
    json_t *metadata = json_loads(d->metadata, 0, NULL);
    sha256_hex(d->sha256, hex);
    return json_pack("{s:s,s:o,s:s,s:s,s:I,s:i,s:i,s:I,s:s,s:o,s:o}", "id", d->id, "name", js_text(d->name), "collection",
                     d->collection, "file_type", d->type, "file_size", (json_int_t)d->file_size, "chunk_count",
                     d->n_chunks, "page_count", d->n_pages, "created_at", (json_int_t)d->created_s, "sha256", hex,
                     "metadata", metadata ? metadata : json_object(), "vectors",
                     model ? json_pack("{s:s,s:i}", "model", model, "ready", d->n_vectors) : json_null());
}

static json_t *chunk_object(const struct rag_document *d, const struct rag_chunk *c)
{
    const int pages = d->n_pages > 1 || strcmp(d->type, "pdf") == 0;
    return json_pack("{s:I,s:s,s:o,s:i,s:o,s:I,s:o}", "id", (json_int_t)c->id, "document_id", d->id, "content",
                     js_text(c->text), "chunk_index", c->number, "page", pages ? json_integer(c->page) : json_null(),
                     "offset", (json_int_t)c->offset, "heading", js_text(c->heading));
}

/* ---- adding ---- */

static struct rag_quota quota_of(const struct rag_job *j)
{
    return (struct rag_quota){ j->s->o.rag_documents, j->s->o.rag_bytes };
}

static void refuse_duplicate(struct rag_job *j, struct rag_document *there)
{
    problem_set(&j->problem, 409, NULL, "duplicate_document", "the collection '%s' has this content already: %s, '%.200s'",
                there->collection, there->id, there->name);
    rag_document_release(there);
}

/* Cut the text and store it.  *d has name, type, metadata and the facts of the file. */
static int store_text(struct rag_job *j, struct rag_store *r, struct rag_document *d, const struct rag_text *t)
{
    const struct rag_quota q = quota_of(j);
    const struct chunk_options o = { .markdown = t->markdown, .counter = rag_counter(j) };
    struct rag_document there = { 0 };
    struct chunk_list chunks;
    struct err e;
    d->text_size = t->size;
    if (chunks_cut(t->text, t->size, &o, &chunks, &e))
        return rag_problem(j, &e, NULL);
    int rc = chunks.n == 0 ? problem_set(&j->problem, 400, NULL, "no_text", "the document has no text")
                           : rag_add(r, d, t->text, &chunks, &q, &there, &e);
    chunks_release(&chunks);
    if (rc > 0)
        refuse_duplicate(j, &there);
    else if (rc < 0 && !j->problem.status)
        rag_problem(j, &e, NULL);
    return rc ? -1 : 0;
}

/* Check what the client said of the document, and whether it may be stored. */
static int admit(struct rag_job *j, struct rag_store *r, struct rag_document *d, const void *data, size_t size)
{
    const struct rag_quota q = quota_of(j);
    struct rag_document there = { 0 };
    struct err e;
    if (rag_check_collection(d->collection, &e))
        return problem_set(&j->problem, 400, "collection", "invalid_value", "%s", e.msg);
    if (strlen(d->name) < 1 || strlen(d->name) > RAG_NAME)
        return problem_set(&j->problem, 400, "name", "invalid_value", "name: %zu bytes, expected 1 to %d",
                           strlen(d->name), RAG_NAME);
    if (strlen(d->metadata) > RAG_METADATA)
        return problem_set(&j->problem, 400, "metadata", "out_of_range", "metadata: %zu bytes, expected at most %d",
                           strlen(d->metadata), RAG_METADATA);
    sha256_of(data, size, d->sha256);
    d->file_size = size;
    const int rc = rag_admit(r, d, &q, &there, &e);
    if (rc > 0)
        refuse_duplicate(j, &there);
    return rc < 0 ? rag_problem(j, &e, NULL) : rc;
}

static int problem_of_extract(struct rag_job *j, const struct err *e)
{
    if (e->code == ERR_UNSUPPORTED)
        return problem_set(&j->problem, 415, "file_type", "unsupported_file_type", "%s", e->msg);
    if (e->code == ERR_MEMORY)
        return problem_nomem(&j->problem);
    if (e->code == ERR_CANCELLED)
        return problem_set(&j->problem, 503, NULL, "cancelled", "%s", e->msg);
    if (e->code == ERR_LIMIT)
        return problem_set(&j->problem, 413, NULL, "document_too_large", "%s", e->msg);
    return problem_set(&j->problem, 400, NULL, "unreadable_document", "%s", e->msg);
}

/* Add the document whose file is data; d->type may be "": it follows from the name. */
static void add_file(struct rag_job *j, struct rag_store *r, struct rag_document *d, const char *type, const void *data,
                     size_t size)
{
    const struct rag_extract_options o = { .cancel = &j->cancelled };
    struct rag_text text = { 0 };
    struct err e;
    enum rag_type kind;
    if (rag_type_of(type, d->name, &kind, &e)) {
        problem_of_extract(j, &e);
        return;
    }
    if (!(d->type = strdup(rag_type_name(kind)))) {
        problem_nomem(&j->problem);
        return;
    }
    if (admit(j, r, d, data, size) || rag_hold(j, rag_extract_bytes(kind, size)))
        return;
    if (rag_extract(kind, data, size, &o, &text, &e))
        problem_of_extract(j, &e);
    else if (rag_hold(j, text.size * 6) == 0 && store_text(j, r, d, &text) == 0)
        j->answer = document_object(j, d);
    rag_text_release(&text);
}

static int copy_metadata(struct rag_job *j, const json_t *v, struct rag_document *d)
{
    if (v && !json_is_object(v))
        return problem_set(&j->problem, 400, "metadata", "invalid_type", "metadata: found %s, expected an object",
                           js_kind(v));
    d->metadata = v ? json_dumps(v, JSON_COMPACT) : strdup("{}");
    return d->metadata ? 0 : problem_nomem(&j->problem);
}

/* The name and the collection, which the client has chosen, into d. */
static int copy_names(struct rag_job *j, const char *name, const char *collection, struct rag_document *d)
{
    if (!name)
        return problem_set(&j->problem, 400, "name", "missing", "name: missing");
    if (collection && strlen(collection) > RAG_COLLECTION)
        return problem_set(&j->problem, 400, "collection", "invalid_value", "collection: %zu bytes, expected at most %d",
                           strlen(collection), RAG_COLLECTION);
    snprintf(d->owner, sizeof d->owner, "%s", j->owner);
    snprintf(d->collection, sizeof d->collection, "%s", collection ? collection : RAG_DEFAULT_COLLECTION);
    d->name = strdup(name);
    return d->name ? 0 : problem_nomem(&j->problem);
}

void rag_run_add(struct rag_job *j, struct rag_store *r)
{
    struct params p = { 0 };
    struct rag_document d = { 0 };
    json_t *body = rag_body(j, BODY_RAG_DOCUMENT, &p);
    if (!body)
        return;
    const char *type = p.file_type ? p.file_type : "";
    if (!p.content)
        problem_set(&j->problem, 400, "content", "missing", "content: missing");
    else if (copy_names(j, p.name, p.collection, &d) == 0 && copy_metadata(j, js_get(body, "metadata"), &d) == 0)
        add_file(j, r, &d, *type ? type : rag_type_is_text(d.name) ? "" : "txt", p.content, strlen(p.content));
    rag_document_release(&d);
    json_decref(body);
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
        json_array_append_new(array, document_object(j, &list[i]));
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
    j->answer = document_object(j, &d);
    if (j->answer && j->with_chunks)
        add_chunks(j, r, &d);
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
    j->answer = json_pack("{s:I,s:I,s:I,s:I,s:{s:o,s:o},s:o,s:I,s:n}", "documents", (json_int_t)t.documents, "chunks",
                          (json_int_t)t.chunks, "bytes", (json_int_t)t.bytes, "collections", (json_int_t)t.collections,
                          "quota", "documents", o->rag_documents ? json_integer(o->rag_documents) : json_null(), "bytes",
                          o->rag_bytes ? json_integer((json_int_t)o->rag_bytes) : json_null(), "formats", formats,
                          "max_file_bytes", (json_int_t)o->max_body, "embedding");
}

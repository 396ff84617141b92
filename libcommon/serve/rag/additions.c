/* additions.c - jobs that add documents: as JSON, or as a file in a form. */
#include "libcommon/serve/rag/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/http/multipart.h"
#include "libcommon/rag/extract.h"

/* ---- adding ---- */

static struct rag_quota quota_of(const struct rag_job *j)
{
    return (struct rag_quota){ j->s->o.rag_documents, j->s->o.rag_bytes };
}

static void refuse_duplicate(struct rag_job *j, struct rag_document *there)
{
    problem_set(&j->problem, 409, NULL, "duplicate_document",
                "the collection '%s' has this content already: %s, '%.200s'", there->collection, there->id,
                there->name);
    rag_document_release(there);
}

/* Split the text into chunks and store them.  *d has name, type, metadata and the facts of the
 * file. */
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

/* Check the client's description of the document, and whether the document may be stored. */
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
    if (j->problem.status)                  /* the account refused the memory */
        return -1;
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

static int hold_text(void *user, size_t bytes) { return rag_hold(user, bytes); }

/* Add the document whose file is data. d->type may be "": then it follows from the name. */
static void add_file(struct rag_job *j, struct rag_store *r, struct rag_document *d, const char *type, const void *data,
                     size_t size)
{
    struct rag_budget budget = { hold_text, j, 0 };
    const struct rag_extract_options o = { .budget = &budget, .cancel = &j->cancelled };
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
    if (admit(j, r, d, data, size))
        return;
    if (rag_extract(kind, data, size, &o, &text, &e))
        problem_of_extract(j, &e);
    else if (rag_hold(j, text.size * 2 + chunks_bytes(text.size)) == 0 && store_text(j, r, d, &text) == 0)
        j->answer = rag_document_object(j, d);
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

/* Copy the name and the collection, which the client chose, to d. */
static int copy_names(struct rag_job *j, const char *name, const char *collection, struct rag_document *d)
{
    if (!name)
        return problem_set(&j->problem, 400, "name", "missing", "name: missing");
    if (collection && strlen(collection) > RAG_COLLECTION)
        return problem_set(&j->problem, 400, "collection", "invalid_value",
                           "collection: %zu bytes, expected at most %d", strlen(collection), RAG_COLLECTION);
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

/* ---- uploads ---- */

static const char *ending_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : "";
}

/* The parts of the form, one member for each name. */
struct form { const struct multipart_part *file, *name, *collection, *type, *metadata; };

static int read_form(struct rag_job *j, const struct multipart *m, struct form *f)
{
    const struct { const char *name; const struct multipart_part **at; } known[] = {
        { "file", &f->file }, { "name", &f->name }, { "collection", &f->collection }, { "file_type", &f->type },
        { "metadata", &f->metadata },
    };
    enum { N = sizeof known / sizeof *known };
    for (int i = 0; i < m->n; i++) {
        const struct multipart_part *p = &m->part[i];
        int k = 0;
        while (k < N && strcmp(known[k].name, p->name) != 0)
            k++;
        if (k == N)
            return problem_set(&j->problem, 400, p->name, "unknown_parameter", "%.80s: no such part", p->name);
        if (*known[k].at)
            return problem_set(&j->problem, 400, p->name, "invalid_value", "%s: given twice", p->name);
        if (k > 0 && (p->size > RAG_METADATA || memchr(p->data, 0, p->size)))
            return problem_set(&j->problem, 400, p->name, "invalid_value",
                               "%s: %zu bytes, expected at most %d, without a zero byte", p->name, p->size,
                               RAG_METADATA);
        *known[k].at = p;
    }
    return f->file ? 0 : problem_set(&j->problem, 400, "file", "missing", "file: missing");
}

/* Copy a part as text; NULL: it was not given, or memory ran out. */
static char *part_text(const struct multipart_part *p) { return p ? strndup(p->data, p->size) : NULL; }

static int parse_metadata(struct rag_job *j, const struct multipart_part *p, struct rag_document *d)
{
    struct err e;
    json_t *v = p ? js_parse("metadata", p->data, p->size, &e) : NULL;
    if (p && !v)
        return problem_err(&j->problem, "metadata", "invalid_json", &e);
    const int rc = copy_metadata(j, v, d);
    json_decref(v);
    return rc;
}

static void add_form(struct rag_job *j, struct rag_store *r, const struct form *f)
{
    struct rag_document d = { 0 };
    char *name = part_text(f->name), *collection = part_text(f->collection), *type = part_text(f->type);
    const char *shown = name ? name : f->file->filename;
    if (!shown || !*shown)
        problem_set(&j->problem, 400, "name", "missing", "name: the file has none, and there is no part 'name'");
    else if (utf8_valid(shown, strlen(shown)) != strlen(shown))
        problem_set(&j->problem, 400, "name", "invalid_value", "name: expected UTF-8");
    else if (copy_names(j, shown, collection, &d) == 0 && parse_metadata(j, f->metadata, &d) == 0)
        /* if the displayed name implies no type, the file's own name may */
        add_file(j, r, &d, type ? type : rag_type_known(shown) || !f->file->filename ? ""
                                                                                     : ending_of(f->file->filename),
                 f->file->data, f->file->size);
    free(name);
    free(collection);
    free(type);
    rag_document_release(&d);
}

void rag_run_upload(struct rag_job *j, struct rag_store *r)
{
    struct multipart m;
    struct form f = { 0 };
    if (multipart_parse(j->content_type, j->body.data, j->body.size, &m, &j->problem))
        return;
    if (read_form(j, &m, &f) == 0)
        add_form(j, r, &f);
    multipart_release(&m);
}

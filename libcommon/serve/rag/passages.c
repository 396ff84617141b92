/* passages.c - jobs that search documents and make contexts of the passages. */
#include "libcommon/serve/rag/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"

/* ---- the request ---- */

/* Read a string, or a list of strings, into out [RAG_MAX_FILTER]; borrowed from v. */
static int read_texts(struct rag_job *j, const json_t *v, const char *name, const char **out, int *n)
{
    const size_t size = json_is_array(v) ? json_array_size(v) : v != NULL;
    *n = 0;
    if (v && !json_is_array(v) && !json_is_string(v))
        return problem_set(&j->problem, 400, name, "invalid_type",
                           "%s: found %s, expected a string or a list of strings", name, js_kind(v));
    if (size > RAG_MAX_FILTER)
        return problem_set(&j->problem, 400, name, "out_of_range", "%s: %zu texts, expected at most %d", name, size,
                           RAG_MAX_FILTER);
    for (size_t i = 0; i < size; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s) || strlen(json_string_value(s)) != json_string_length(s))
            return problem_set(&j->problem, 400, name, "invalid_type", "%s: element %zu is %s, expected a string", name,
                               i + 1, json_is_string(s) ? "a string with a zero byte" : js_kind(s));
        out[(*n)++] = json_string_value(s);
    }
    return 0;
}

struct question { const char *collections[RAG_MAX_FILTER], *documents[RAG_MAX_FILTER]; struct rag_query q; };

static int is_ranked(const struct rag_job *j, const struct params *p) { return j->reranker && p->rerank; }

static int read_query(struct rag_job *j, const json_t *body, const struct params *p, struct question *w)
{
    if (!p->query || !*p->query)
        return problem_set(&j->problem, 400, "query", "missing", p->query ? "query: empty" : "query: missing");
    w->q.owner = j->owner;
    w->q.text = p->query;
    w->q.size = strlen(p->query);
    if (w->q.size > RAG_QUERY && !j->done)              /* the query of a chat or a tool call is cut below */
        return problem_set(&j->problem, 413, "query", "out_of_range", "query: %zu bytes, expected at most %d", w->q.size,
                           RAG_QUERY);
    w->q.size = w->q.size < RAG_QUERY ? w->q.size : RAG_QUERY;
    w->q.top_k = is_ranked(j, p) && p->rag_top_k < RAG_RANKED ? RAG_RANKED : p->rag_top_k;
    w->q.min_score = is_ranked(j, p) ? 0 : p->min_score;
    w->q.collections = w->collections;
    w->q.documents = w->documents;
    if (p->mode && rag_mode_parse(p->mode, &w->q.mode))
        return problem_set(&j->problem, 400, "mode", "out_of_range", "mode: '%.40s', expected hybrid, bm25 or vector",
                           p->mode);
    if (w->q.mode == RAG_VECTOR && !j->embedder && rag_model(j))
        return problem_set(&j->problem, 503, "mode", "model_not_ready", "mode: vector needs %s, which is not loaded",
                           j->model);
    if (w->q.mode == RAG_VECTOR && !rag_model(j))
        return problem_set(&j->problem, 400, "mode", "no_embedding_model",
                           "mode: vector needs a model that embeds (zse-serve --embedding-model)");
    return read_texts(j, js_get(body, "collections"), "collections", w->collections, &w->q.n_collections) ||
           read_texts(j, js_get(body, "document_ids"), "document_ids", w->documents, &w->q.n_documents) ? -1 : 0;
}

/* Set the query's vector if it has been computed, else request it.  0; 1: it was requested, and the
 * job runs again when it is computed; -1 with j->problem. */
static int wants_vector(struct rag_job *j, struct rag_query *q)
{
    if (q->mode == RAG_BM25 || !j->embedder)
        return 0;
    if (j->embedding == RAG_IDLE) {
        if (rag_add_text(j, q->text, q->size))
            return -1;
        j->embedding = RAG_WANTED;
        return 1;
    }
    if (j->embedding != RAG_COMPUTED && q->mode == RAG_VECTOR)
        return problem_set(&j->problem, 503, NULL, "embedding_failed", "%s did not compute the vector of the query",
                           j->model);
    if (j->embedding == RAG_COMPUTED) {
        q->model = j->model;
        q->vector = j->vectors;
        q->n_vector = rag_vector_size(j);
        q->vectors = rag_vectors_of(j->s);
    }
    return 0;
}

/* Find passages.  If an earlier run has requested scores, take the passages that it found. */
static int find(struct rag_job *j, struct rag_store *r, struct rag_query *q, const struct params *p,
                struct rag_hits *hits)
{
    struct err e;
    if (j->ranking != RAG_IDLE) {
        *hits = j->hits;
        j->hits = (struct rag_hits){ 0 };
    } else if (wants_vector(j, q)) {
        return -1;
    } else if (rag_search(r, q, hits, &e)) {
        return rag_problem(j, &e, strstr(e.msg, "no collection") ? "no_such_collection" : "no_such_document");
    }
    return is_ranked(j, p) && rag_rank(j, q, p->rag_top_k, p->min_score, hits) ? -1 : 0;
}

/* Parse the body and search.  Returns the tree; NULL with j->problem, or because vectors or scores
 * were requested. */
static json_t *search(struct rag_job *j, struct rag_store *r, body_set kind, struct params *p,
                      struct rag_hits *hits)
{
    json_t *body = rag_body(j, kind, p);
    struct question *w = body ? calloc(1, sizeof *w) : NULL;
    if (body && !w)
        problem_nomem(&j->problem);
    const int rc = w && read_query(j, body, p, w) == 0 ? find(j, r, &w->q, p, hits) : -1;
    free(w);
    if (rc == 0)
        return body;
    rag_hits_release(hits);
    json_decref(body);
    return NULL;
}

/* ---- answers ---- */

static json_t *page_of(const struct rag_hit *h) { return h->has_pages ? json_integer(h->chunk.page) : json_null(); }
static json_t *real_or_null(double x) { return isnan(x) ? json_null() : json_real(x); }

static json_t *hit_object(const struct rag_hit *h)
{
    return json_pack("{s:{s:I,s:s,s:o,s:i,s:o,s:I,s:o},s:o,s:s,s:s,s:f,s:o,s:o}", "chunk", "id",
                     (json_int_t)h->chunk.id, "document_id", h->document, "content", js_text(h->chunk.text),
                     "chunk_index", h->chunk.number, "page", page_of(h), "offset", (json_int_t)h->chunk.offset,
                     "heading", js_text(h->chunk.heading), "document_name", js_text(h->name), "document_id",
                     h->document, "collection", h->collection, "score", h->score, "bm25", real_or_null(h->bm25),
                     "similarity", real_or_null(h->similarity));
}

static json_t *source_object(const struct rag_hit *h, int number, size_t size)
{
    return json_pack("{s:i,s:s,s:o,s:s,s:I,s:i,s:o,s:o,s:f,s:o}", "index", number, "document_id", h->document,
                     "document_name", js_text(h->name), "collection", h->collection, "chunk_id",
                     (json_int_t)h->chunk.id, "chunk_index", h->chunk.number, "page", page_of(h), "heading",
                     js_text(h->chunk.heading), "score", h->score, "text", json_stringn(h->chunk.text, size));
}

static json_t *reason_of(const struct rag_hits *h) { return *h->reason ? json_string(h->reason) : json_null(); }

void rag_run_search(struct rag_job *j, struct rag_store *r)
{
    struct params p = { .rag_top_k = 5, .rerank = 1 };
    struct rag_hits hits = { 0 };
    json_t *body = search(j, r, BODY_RAG_SEARCH, &p, &hits);
    if (!body)
        return;
    json_t *array = json_array();
    for (int i = 0; i < hits.n; i++)
        json_array_append_new(array, hit_object(&hits.hit[i]));
    j->answer = json_pack("{s:O,s:s,s:s?,s:o,s:o}", "query", json_object_get(body, "query"), "mode",
                          rag_mode_name(hits.mode), "reranked_by", rag_ranked_by(j), "reason", reason_of(&hits),
                          "results", array);
    rag_hits_release(&hits);
    json_decref(body);
}

void rag_run_context(struct rag_job *j, struct rag_store *r)
{
    struct params p = { .rag_top_k = 3, .rag_max_tokens = 1000, .rerank = 1 };
    const struct token_counter counter = rag_counter(j);
    struct rag_hits hits = { 0 };
    struct rag_context c = { 0 };
    struct err e;
    json_t *body = search(j, r, BODY_RAG_CONTEXT, &p, &hits);
    if (!body)
        return;
    if (rag_context(&hits, (size_t)p.rag_max_tokens, &counter, &c, &e)) {
        rag_problem(j, &e, NULL);
    } else {
        json_t *sources = json_array();
        for (int i = 0; i < c.n; i++)
            json_array_append_new(sources, source_object(&hits.hit[c.passage[i].hit], i + 1, c.passage[i].size));
        j->answer = json_pack("{s:o,s:I,s:s?,s:o,s:o}", "context", json_stringn(c.text, c.size), "tokens",
                              (json_int_t)c.tokens, "reranked_by", rag_ranked_by(j), "reason", reason_of(&hits),
                              "sources", sources);
    }
    rag_context_release(&c);
    rag_hits_release(&hits);
    json_decref(body);
}

/* endpoints.c - the routes of /api/rag: turn requests into jobs. */
#include "libcommon/serve/rag/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Read a whole number from the query string.  -1: refused, and the client has the answer. */
static int query_number(struct rag_job *j, const char *name, int64_t least, int64_t most, int64_t *out)
{
    char text[32], *end;
    if (!http_query(conn_request(j->conn), name, text, sizeof text))
        return 0;
    const long long n = strtoll(text, &end, 10);
    if (end != text && !*end && n >= least && n <= most) {
        *out = n;
        return 0;
    }
    return problem_set(&j->problem, 400, name, "out_of_range", "%s: '%.30s', expected %lld to %lld", name, text,
                       (long long)least, (long long)most);
}

static void refuse(struct rag_job *j)
{
    reply_problem(j->s, j->conn, &j->problem);
    rag_job_free(j);
}

/* Let the first ready model count tokens while the job lives. */
static void use_tokenizer(struct rag_job *j)
{
    struct problem ignored;
    struct loaded_model *lm = models_n(j->s, MODEL_READY) ? models_find(j->s, NULL, &ignored) : NULL;
    if (!lm || !lm->m.tokenizer)
        return;
    j->lm = lm;
    lm->preparing++;
}

static void start(struct server *s, struct conn *c, enum rag_lane lane,
                  void (*run)(struct rag_job *j, struct rag_store *r))
{
    struct rag_job *j = rag_job_new(s, c, lane, run);
    if (!j)
        return;
    use_tokenizer(j);
    rag_use_models(j);
    rag_job_submit(j);
}

/* Start a job about the id or name that follows the path. */
static void start_about(struct server *s, struct conn *c, const char *rest, enum rag_lane lane,
                        void (*run)(struct rag_job *j, struct rag_store *r))
{
    char text[8];
    struct rag_job *j = rag_job_new(s, c, lane, run);
    if (!j)
        return;
    const char *chunks = http_query(conn_request(c), "chunks", text, sizeof text);
    j->with_chunks = chunks && (strcmp(chunks, "true") == 0 || strcmp(chunks, "1") == 0);
    /* rest is longer than any id or name: "?" makes the job find nothing */
    snprintf(j->id, sizeof j->id, "%s", strlen(rest) < sizeof j->id ? rest : "?");
    rag_use_models(j);
    rag_job_submit(j);
}

void handle_rag_add(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    start(s, c, RAG_ADD, rag_run_add);
}

void handle_rag_upload(struct server *s, struct conn *c, const char *rest)
{
    const char *type = http_field(conn_request(c), "Content-Type");
    struct rag_job *j = rag_job_new(s, c, RAG_ADD, rag_run_upload);
    (void)rest;
    if (!j)
        return;
    if (!(j->content_type = strdup(type ? type : ""))) {
        problem_nomem(&j->problem);
        refuse(j);
        return;
    }
    use_tokenizer(j);
    rag_use_models(j);
    rag_job_submit(j);
}

void handle_rag_list(struct server *s, struct conn *c, const char *rest)
{
    struct rag_job *j = rag_job_new(s, c, RAG_READ, rag_run_list);
    int64_t limit = 100;
    (void)rest;
    if (!j)
        return;
    if (!http_query(conn_request(c), "collection", j->collection, sizeof j->collection)) {
        j->collection[0] = '\0';
        if (http_query_has(conn_request(c), "collection")) {
            problem_set(&j->problem, 400, "collection", "invalid_value", "collection: expected at most %d bytes of text",
                        RAG_COLLECTION);
            refuse(j);
            return;
        }
    }
    if (query_number(j, "limit", 1, 1000, &limit) || query_number(j, "offset", 0, INT64_MAX, &j->offset)) {
        refuse(j);
        return;
    }
    j->limit = (int)limit;
    rag_use_models(j);
    rag_job_submit(j);
}

void handle_rag_get(struct server *s, struct conn *c, const char *rest)
{
    start_about(s, c, rest, RAG_READ, rag_run_get);
}

void handle_rag_delete(struct server *s, struct conn *c, const char *rest)
{
    start_about(s, c, rest, RAG_WRITE, rag_run_delete);
}

void handle_rag_collections(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    start_about(s, c, "", RAG_READ, rag_run_collections);
}

void handle_rag_drop(struct server *s, struct conn *c, const char *rest)
{
    start_about(s, c, rest, RAG_WRITE, rag_run_drop);
}

void handle_rag_stats(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    start_about(s, c, "", RAG_READ, rag_run_stats);
}

void handle_rag_search(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    start(s, c, RAG_READ, rag_run_search);
}

void handle_rag_context(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    start(s, c, RAG_READ, rag_run_context);
}

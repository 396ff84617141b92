/* embed.c - vectors of texts by the embedding model, or scores of pairs by the reranker, through
 * the worker of its engine; and the job that gives vectors to the chunks that have none. */
#include "libcommon/serve/rag/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/utf8.h"

/* EMBED_TOKENS: most tokens of a text.  INDEX_PRIORITY: priority of the index, below the requests
 * of clients. */
enum { EMBED_TOKENS = 512, INDEX_PRIORITY = -MAX_PRIORITY, RETRY_S = 10 };
#define INDEX_TENANT UINT64_MAX

/* ---- the model ---- */

/* Find a ready model, and keep it loaded until the job ends; NULL: none. */
static struct loaded_model *use(struct rag_job *j, const char *id)
{
    struct problem ignored;
    struct loaded_model *lm = id && models_n(j->s, MODEL_READY) ? models_find(j->s, id, &ignored) : NULL;
    if (!lm || !lm->m.tokenizer)
        return NULL;
    lm->preparing++;
    return lm;
}

void rag_use_models(struct rag_job *j)
{
    const struct server_options *o = &j->s->o;
    if (o->embedding_model) {
        j->embedder = use(j, o->embedding_model);
        snprintf(j->model, sizeof j->model, "%s", j->embedder ? j->embedder->id : o->embedding_model);
    }
    j->reranker = j->run == rag_run_index ? NULL : use(j, o->rerank_model);
    if (j->reranker && !j->reranker->m.model->config.embedding.scores) {
        j->reranker->preparing--;
        j->reranker = NULL;
    }
}

const char *rag_model(const struct rag_job *j) { return *j->model ? j->model : NULL; }
int rag_vector_size(const struct rag_job *j) { return config_embedding_size(&j->embedder->m.model->config); }

/* ---- in the thread ---- */

/* Return the model's prompt followed by the text, of which at most EMBED_TOKENS * 16 bytes are
 * taken; malloc'd.  *n: the size in bytes. */
static char *with_prompt(const struct rag_job *j, const char *text, size_t size, size_t *n)
{
    const char *prompt = config_prompt(&j->embedder->m.model->config, j->run == rag_run_index);
    const size_t before = prompt ? strlen(prompt) : 0, most = EMBED_TOKENS * 16,
                 bytes = size <= most ? size : most - utf8_incomplete(text, most);
    char *all = malloc(before + bytes + 1);
    if (all && before)
        memcpy(all, prompt, before);
    if (all)
        memcpy(all + before, text, bytes);
    *n = before + bytes;
    return all;
}

int rag_add_text(struct rag_job *j, const char *text, size_t size)
{
    struct err e;
    struct rag_text_ids *t = &j->texts[j->n_texts];
    const struct tokenizer *tokenizer = j->embedder->m.tokenizer;
    size_t n, bytes, most = EMBED_TOKENS;
    int n_end;
    const int32_t *end = tokenizer_suffix(tokenizer, &n_end);
    char *all = with_prompt(j, text, size, &bytes);
    if (!all)
        return problem_nomem(&j->problem);
    const int rc = tokenizer_encode(tokenizer, all, bytes, TOKENIZE_ADD_SPECIAL, &t->ids, &n, &e);
    free(all);
    if (rc)
        return problem_err(&j->problem, NULL, NULL, &e);
    if (most > (size_t)j->embedder->m.max_len)
        most = (size_t)j->embedder->m.max_len;
    if (n > most && (size_t)n_end < most)           /* keep [SEP] or EOS at the end */
        memcpy(t->ids + most - n_end, end, (size_t)n_end * sizeof *end);
    t->n = (int)(n < most ? n : most);
    t->second = 0;
    j->n_texts++;
    return 0;
}

void rag_drop_texts(struct rag_job *j)
{
    for (int i = 0; i < j->n_texts; i++)
        free(j->texts[i].ids);
    free(j->vectors);
    j->vectors = NULL;
    j->n_texts = 0;
}

/* Store the vectors that were computed since the last run, and take further chunks that have no
 * vector; the job runs again until every chunk has one. */
void rag_run_index(struct rag_job *j, struct rag_store *r)
{
    const int size = rag_vector_size(j);
    struct err e;
    int rc = 0;
    if (j->embedding == RAG_COMPUTED)
        rc = rag_put_vectors(r, j->model, j->pending, j->n_pending, j->vectors, size, &e);
    else if (j->embedding == RAG_NOT_COMPUTED)
        problem_set(&j->problem, 503, NULL, "embedding_failed", "%s computes no vectors", j->model);
    rag_pending_release(j->pending, j->n_pending);
    j->n_pending = 0;
    rag_drop_texts(j);
    if (rc == 0 && !j->problem.status)
        rc = rag_pending(r, j->model, size, &j->after, j->pending, RAG_TEXTS, &j->n_pending, &e);
    if (rc)
        rag_problem(j, &e, NULL);
    for (int i = 0; i < j->n_pending && !j->problem.status; i++)
        rag_add_text(j, j->pending[i].text, strlen(j->pending[i].text));
    j->embedding = j->n_pending && !j->problem.status ? RAG_WANTED : RAG_IDLE;
    if (j->embedding == RAG_IDLE && !j->problem.status)
        j->answer = json_null();
}

/* ---- in the loop ---- */

/* The model that computes for the job. *size: the number of values that it returns for each
 * text. */
static struct loaded_model *computing(const struct rag_job *j, int *size)
{
    *size = j->ranking == RAG_WANTED ? 1 : rag_vector_size(j);
    return j->ranking == RAG_WANTED ? j->reranker : j->embedder;
}

int rag_wants(const struct rag_job *j) { return j->embedding == RAG_WANTED || j->ranking == RAG_WANTED; }

static int is_index(const struct rag_job *j) { return j->run == rag_run_index; }
static int is_cancelled(const struct rag_job *j) { return atomic_load(&j->cancelled); }

/* Called when the model has answered for text i, or when no answer can come any more. */
static void end_text(struct rag_job *j, int i)
{
    int size;
    struct loaded_model *lm = computing(j, &size);
    j->texts[i].open = 0;
    j->n_open--;
    lm->rag_texts -= !is_index(j);
}

/* Handle the worker's event for a text; ev NULL: the event was lost. */
static void on_event(struct worker_job *w, const struct events *b, const struct event *ev)
{
    struct rag_job *j = w->user;
    const int i = (int)(w - j->jobs);
    int size;
    computing(j, &size);
    if (ev && !ev->last)
        return;
    if (ev && ev->n_embedding == size)
        memcpy(j->vectors + (size_t)i * (size_t)size, event_embedding(b, ev), (size_t)size * sizeof *j->vectors);
    else
        j->failed = 1;
    end_text(j, i);
    rag_compute_more(j->s);
}

static void on_cancel_done(struct worker_job *w)
{
    struct rag_job *j = w->user;
    j->n_cancelling--;
    rag_compute_more(j->s);
}

static void send_text(struct rag_job *j, struct loaded_model *lm)
{
    const int i = j->n_sent++;
    struct rag_computing *c = rag_computing_of(j->s);
    const struct request_params p = { .ids = j->texts[i].ids, .n_ids = j->texts[i].n, .sampling = lm->sampling,
                                      .n_logprobs = -1, .embed = config_pooling(&lm->m.model->config), .n = 1,
                                      .second = config_second_type(&lm->m.model->config, j->texts[i].second),
                                      .reported = &j->reported, .tenant = is_index(j) ? INDEX_TENANT : j->tenant,
                                      .priority = is_index(j) ? INDEX_PRIORITY : 0 };
    c->round = j->round > c->round ? j->round : c->round;
    j->jobs[i].user = j;
    j->jobs[i].on_event = on_event;
    j->jobs[i].on_cancel_done = on_cancel_done;
    if (worker_submit(lm->worker, &p, &j->jobs[i])) {
        j->failed = 1;
        return;
    }
    j->texts[i].open = 1;
    j->n_open++;
    lm->rag_texts += !is_index(j);
}

/* Cancel the texts that the engine has. */
static void cancel_texts(struct rag_job *j, struct loaded_model *lm)
{
    for (int i = 0; i < j->n_sent && lm->worker; i++)
        if (j->texts[i].open && !j->texts[i].cancelled && worker_cancel(lm->worker, &j->jobs[i]) == 0) {
            j->texts[i].cancelled = 1;
            j->n_cancelling++;
        }
}

/* Send texts of the job to the engine until its window is full.  The window does not limit the
 * index job: it has few texts, and in the engine they wait behind all others.  1: all texts have
 * ended. */
static int compute_texts(struct rag_job *j)
{
    int size;
    struct loaded_model *lm = computing(j, &size);
    const int left = !lm->worker || (lm->state != MODEL_READY && clock_ns() > lm->leave_by_ns);
    j->failed |= left || is_cancelled(j);
    while (!j->failed && j->n_sent < j->n_texts && (is_index(j) || lm->rag_texts < models_window(lm)))
        send_text(j, lm);
    if (j->failed)
        cancel_texts(j, lm);
    return j->n_open == 0 && j->n_cancelling == 0 && (j->failed || j->n_sent == j->n_texts);
}

void rag_compute_more(struct server *s)
{
    struct rag_computing *c = rag_computing_of(s);
    struct rag_job **at = &c->first, *j;
    while (!c->stopped && (j = *at)) {
        if (!compute_texts(j)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        *(j->ranking == RAG_WANTED ? &j->ranking : &j->embedding) = j->failed ? RAG_NOT_COMPUTED : RAG_COMPUTED;
        rag_job_push(j);
    }
}

void rag_compute(struct rag_job *j)
{
    struct rag_computing *c = rag_computing_of(j->s);
    int size;
    computing(j, &size);
    j->vectors = calloc((size_t)j->n_texts, (size_t)size * sizeof *j->vectors);
    j->failed = !j->vectors;
    j->n_open = j->n_sent = j->n_cancelling = j->reported = 0;
    memset(j->jobs, 0, sizeof j->jobs);
    for (int i = 0; i < j->n_texts; i++)
        j->texts[i].open = j->texts[i].cancelled = 0;
    rag_insert(&c->first, j, c->round);
    rag_compute_more(j->s);
}

/* ---- the index ---- */

void rag_tick(struct server *s)
{
    struct rag_index *x = s->rag ? rag_index_of(s) : NULL;
    if (!x || !s->o.embedding_model || !x->dirty || x->running || clock_ns() < x->retry_ns || s->draining)
        return;
    struct rag_job *j = rag_job_internal(s, RAG_WRITE, rag_run_index);
    if (!j)
        return;
    rag_use_models(j);
    if (!j->embedder) {
        rag_job_free(j);                        /* the model is not ready: try again in a second */
        return;
    }
    x->dirty = 0;
    x->running = 1;
    rag_job_push(j);
}

void rag_index_ended(struct server *s, int failed)
{
    struct rag_index *x = rag_index_of(s);
    x->running = 0;
    if (failed) {
        x->dirty = 1;
        x->retry_ns = clock_ns() + RETRY_S * 1000000000u;
    }
}

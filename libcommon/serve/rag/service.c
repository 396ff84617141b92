/* service.c - the threads that work on documents, the queues of jobs, and their return to the
 * loop. */
#include "libcommon/serve/rag/internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/json.h"
#include "libcommon/base/plural.h"
#include "libcommon/base/thread.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/serve/api/prescan.h"

struct rag_thread {
    struct rag_service *v;
    pthread_t thread;
    enum rag_lane lane;
    struct rag_job *current;            /* the job that the thread runs; NULL: none */
};

struct rag_service {
    struct server *s;
    pthread_mutex_t lock;
    pthread_cond_t work[RAG_LANES];
    struct rag_thread thread[RAG_THREADS];
    int n_threads, stop;
    /* protected by the lock; queues are ordered by round, finished jobs by age */
    struct rag_job *queue[RAG_LANES], *done;
    uint64_t round[RAG_LANES];          /* round of the job that was taken last */
    /* used by the loop only */
    struct rag_computing computing;
    struct rag_index index;
    struct rag_vectors *vectors;        /* used by any thread */
    /* the problem with the file that was logged last; used by the loop only */
    char trouble[sizeof ((struct problem *)0)->message];
};

/* ---- jobs ---- */

/* Documents belong to the key, not to its name: a later key with the same name does not see
 * them. */
static void owner_of(const struct access_record *record, char out[RAG_OWNER + 1])
{
    *out = '\0';
    if (record && record->has_key)
        snprintf(out, RAG_OWNER + 1, "key %lld of %lld", (long long)record->key.id, (long long)record->key.created_s);
}

/* Make a job for the owner of a record; NULL with *pr. */
static struct rag_job *make_job(struct server *s, const struct access_record *record, struct problem *pr)
{
    if (!s->rag || !s->o.home) {
        problem_set(pr, 503, NULL, "rag_unavailable", "there is no folder for documents ($ZSE_HOME)");
        return NULL;
    }
    struct rag_job *j = calloc(1, sizeof *j);
    if (!j) {
        problem_nomem(pr);
        return NULL;
    }
    j->exchange.kind = EXCHANGE_RAG;
    j->s = s;
    j->tenant = guard_tenant(record);
    owner_of(record, j->owner);
    j->hold = hold_for(s->account, j->tenant);
    return j;
}

struct rag_job *rag_job_new(struct server *s, struct conn *c, enum rag_lane lane,
                            void (*run)(struct rag_job *j, struct rag_store *r))
{
    struct problem pr;
    struct rag_job *j = make_job(s, conn_record(c), &pr);
    if (!j) {
        reply_problem(s, c, &pr);
        return NULL;
    }
    j->conn = c;
    j->lane = lane;
    j->run = run;
    conn_take_body(c, &j->body);
    const size_t bytes = RAG_JOB_BYTES + j->body.room;
    const enum hold_answer why = hold_set(&j->hold, bytes);
    if (why == HOLD_OK)
        return j;
    hold_problem(&j->hold, why, bytes, &pr);
    reply_problem(s, c, &pr);
    rag_job_free(j);
    return NULL;
}

void rag_job_free(struct rag_job *j)
{
    if (j->lm)
        j->lm->preparing--;
    if (j->embedder)
        j->embedder->preparing--;
    if (j->reranker)
        j->reranker->preparing--;
    rag_drop_texts(j);
    rag_hits_release(&j->hits);
    rag_pending_release(j->pending, j->n_pending);
    free(j->content_type);
    buf_release(&j->body);
    json_decref(j->answer);
    free(j->text);
    hold_release(&j->hold);
    free(j);
}

int rag_hold(struct rag_job *j, size_t more)
{
    const size_t bytes = RAG_JOB_BYTES + j->body.room + j->kept + more;
    const enum hold_answer why = hold_set(&j->hold, bytes);
    return why == HOLD_OK ? 0 : hold_problem(&j->hold, why, bytes, &j->problem);
}

json_t *rag_body(struct rag_job *j, body_set kind, struct params *p)
{
    struct prescan scan;
    struct err e;
    if (j->body.size == 0)
        buf_str(&j->body, "{}");
    if (j->body.failed) {
        problem_nomem(&j->problem);
        return NULL;
    }
    if (prescan_body(j->body.data, j->body.size, kind, &scan, &j->problem) || rag_hold(j, scan.tree_bytes))
        return NULL;
    j->kept += scan.tree_bytes;
    json_t *body = js_parse("body", j->body.data, j->body.size, &e);
    if (!body) {
        problem_err(&j->problem, NULL, "invalid_json", &e);
        return NULL;
    }
    if (fields_parse(body, kind, p, &j->problem) == 0)
        return body;
    json_decref(body);
    return NULL;
}

int rag_problem(struct rag_job *j, const struct err *e, const char *code)
{
    switch (e->code) {
    case ERR_FORMAT:    return problem_set(&j->problem, 404, NULL, code, "%s", e->msg);
    case ERR_LIMIT:     return problem_set(&j->problem, 403, NULL, "quota_exceeded", "%s", e->msg);
    case ERR_MEMORY:    return problem_nomem(&j->problem);
    case ERR_CANCELLED: return problem_set(&j->problem, 503, NULL, "cancelled", "%s", e->msg);
    default:            return problem_set(&j->problem, 503, NULL, "rag_unavailable", "%s", e->msg);
    }
}

static size_t count_tokens(void *user, const char *text, size_t size)
{
    int32_t *ids;
    size_t n;
    struct err ignored;
    if (tokenizer_encode(user, text, size, 0, &ids, &n, &ignored))
        return size;                        /* without memory use the bound: at most one token a byte */
    free(ids);
    return n;
}

struct token_counter rag_counter(const struct rag_job *j)
{
    union { const struct tokenizer *in; void *out; } t = { .in = j->lm ? j->lm->m.tokenizer : NULL };
    return (struct token_counter){ t.in ? count_tokens : NULL, t.out };
}

/* ---- threads ---- */

/* Write the answer as text in the thread, because a large one would block the loop. */
static void write_answer(struct rag_job *j)
{
    if (!j->answer || j->done || j->run == rag_run_index)
        return;
    j->text = json_dumps(j->answer, JSON_COMPACT | JSON_REAL_PRECISION(13));
    json_decref(j->answer);
    j->answer = NULL;
}

/* Run a job with the thread's connection, which is opened if there is none or if its file was
 * replaced. */
static void run_job(struct rag_job *j, struct rag_store **r)
{
    struct err e;
    if (*r && !rag_is_current(*r)) {
        rag_close(*r);
        *r = NULL;
    }
    if (!*r)
        *r = rag_open(j->s->o.home, 1, &e);
    if (!*r) {
        rag_problem(j, &e, "rag_unavailable");
        return;
    }
    j->kept = 0;                            /* drop the bytes of an earlier run */
    rag_set_cancel(*r, &j->cancelled);
    rag_set_time(*r, j->lane == RAG_READ ? RAG_READ_S : 0);
    j->run(j, *r);
    write_answer(j);
    rag_set_cancel(*r, NULL);
    if (j->problem.status == 503) {             /* close the connection, so that the next job opens the file again */
        rag_close(*r);
        *r = NULL;
    }
}

/* Whether a thread is adding a document of this tenant.  The caller holds the lock. */
static int is_adding(const struct rag_service *v, uint64_t tenant)
{
    for (int i = 0; i < v->n_threads; i++)
        if (v->thread[i].lane == RAG_ADD && v->thread[i].current && v->thread[i].current->tenant == tenant)
            return 1;
    return 0;
}

/* Take the first job of the lane that may run now from its queue.  The caller holds the lock. */
static struct rag_job *take_job(struct rag_service *v, enum rag_lane lane)
{
    struct rag_job **at = &v->queue[lane];
    while (*at && lane == RAG_ADD && is_adding(v, (*at)->tenant))
        at = &(*at)->next;
    struct rag_job *j = *at;
    if (j)
        *at = j->next;
    return j;
}

static void *work(void *arg)
{
    struct rag_thread *t = arg;
    struct rag_service *v = t->v;
    struct rag_store *r = NULL;
    pthread_mutex_lock(&v->lock);
    for (;;) {                              /* each round begins and ends with the lock held */
        struct rag_job *j = NULL, **end = &v->done;
        while (!v->stop && !(j = take_job(v, t->lane)))
            pthread_cond_wait(&v->work[t->lane], &v->lock);
        if (!j)
            break;
        t->current = j;
        if (j->round > v->round[t->lane])
            v->round[t->lane] = j->round;
        pthread_mutex_unlock(&v->lock);
        if (!atomic_load(&j->cancelled))
            run_job(j, &r);
        pthread_mutex_lock(&v->lock);
        t->current = NULL;
        pthread_cond_broadcast(&v->work[t->lane]);      /* the next job of this tenant may run now */
        j->next = NULL;
        while (*end)
            end = &(*end)->next;
        *end = j;
        loop_wake(v->s->loop);
    }
    pthread_mutex_unlock(&v->lock);
    server_syncs(v->s, 1);
    rag_close(r);
    server_syncs(v->s, -1);
    return NULL;
}

/* Start the threads for the first job. */
static int start_threads(struct rag_service *v)
{
    while (v->n_threads < RAG_THREADS) {
        struct rag_thread *t = &v->thread[v->n_threads];
        t->v = v;
        t->lane = v->n_threads == 0 ? RAG_WRITE : v->n_threads <= RAG_ADDERS ? RAG_ADD : RAG_READ;
        if (thread_start(&t->thread, work, t) != 0)
            return -1;
        v->n_threads++;
    }
    return 0;
}

static void refuse(struct rag_job *j)
{
    struct server *s = j->s;
    struct conn *c = j->conn;
    const struct problem pr = j->problem;
    rag_job_free(j);
    if (!c)
        return;
    if (pr.status == 503)
        conn_set_header(c, "Retry-After", "1");
    reply_problem(s, c, &pr);
}

static int is_search(const struct rag_job *j) { return j->run == rag_run_search || j->run == rag_run_context; }

void rag_insert(struct rag_job **list, struct rag_job *j, uint64_t current)
{
    j->round = current + 1;
    for (const struct rag_job *o = *list; o; o = o->next)
        if (o->tenant == j->tenant && is_search(o) == is_search(j) && o->round >= j->round)
            j->round = o->round + 1;
    while (*list && (*list)->round <= j->round)
        list = &(*list)->next;
    j->next = *list;
    *list = j;
}

/* Count the jobs of the list that are searches, if j is one, or else those that are not.  *n grows
 * by their number, *own by the number of those that belong to j's tenant. */
static void count(const struct rag_job *list, const struct rag_job *j, int *n, int *own)
{
    for (; list; list = list->next) {
        const int like = is_search(list) == is_search(j);
        *n += like;
        *own += like && list->tenant == j->tenant;
    }
}

/* Queue the job.  -1 with j->problem: too many wait. */
static int queue(struct rag_job *j)
{
    struct rag_service *v = j->s->rag;
    const int search = is_search(j);
    int n = 0, own = 0;
    if (start_threads(v))
        return problem_set(&j->problem, 503, NULL, NULL, "no thread available");
    if (search)
        count(v->computing.first, j, &n, &own);
    pthread_mutex_lock(&v->lock);
    count(v->queue[j->lane], j, &n, &own);
    const int most = own >= (search ? RAG_SEARCHES_TENANT : RAG_WAITING_TENANT) ? own
                   : n >= (search ? RAG_SEARCHES : RAG_WAITING) ? n : 0;
    if (!most) {
        rag_insert(&v->queue[j->lane], j, v->round[j->lane]);
        pthread_cond_signal(&v->work[j->lane]);
    }
    pthread_mutex_unlock(&v->lock);
    return most ? problem_set(&j->problem, 503, NULL, "busy", "%d request%s for documents %s waiting already", most,
                              plural(most), plural_are(most)) : 0;
}

void rag_job_submit(struct rag_job *j)
{
    struct conn *c = j->conn;
    if (queue(j))
        refuse(j);
    else
        conn_set_exchange(c, j);
}

/* Queue a job without a connection; takes it over. */
static int ask(struct rag_job *j, void (*done)(void *user, json_t *answer, const struct problem *p), void *user,
               struct problem *pr)
{
    j->lane = RAG_READ;
    j->done = done;
    j->user = user;
    rag_use_models(j);
    if (rag_hold(j, 0) == 0 && queue(j) == 0)
        return 0;
    *pr = j->problem;
    rag_job_free(j);
    return -1;
}

int rag_ask(struct server *s, const struct access_record *record, struct loaded_model *lm, json_t *body,
            void (*done)(void *user, json_t *answer, const struct problem *p), void *user, struct problem *pr)
{
    char *text = json_dumps(body, JSON_COMPACT);
    struct rag_job *j = text ? make_job(s, record, pr) : NULL;
    if (!text)
        problem_nomem(pr);
    if (j) {
        j->run = rag_run_context;
        j->lm = lm && lm->m.tokenizer ? lm : NULL;
        if (j->lm)
            lm->preparing++;
        buf_str(&j->body, text);
    }
    free(text);
    json_decref(body);
    return j ? ask(j, done, user, pr) : -1;
}

int rag_ask_documents(struct server *s, const struct access_record *record, const char *id, int64_t offset, int limit,
                      void (*done)(void *user, json_t *answer, const struct problem *p), void *user, struct problem *pr)
{
    struct rag_job *j = make_job(s, record, pr);
    if (!j)
        return -1;
    j->run = *id ? rag_run_text : rag_run_list;
    snprintf(j->id, sizeof j->id, "%s", id);
    j->offset = offset;
    j->limit = limit;
    return ask(j, done, user, pr);
}

struct rag_index *rag_index_of(struct server *s) { return &s->rag->index; }
struct rag_computing *rag_computing_of(struct server *s) { return &s->rag->computing; }
struct rag_vectors *rag_vectors_of(struct server *s) { return s->rag->vectors; }

struct rag_job *rag_job_internal(struct server *s, enum rag_lane lane,
                                 void (*run)(struct rag_job *j, struct rag_store *r))
{
    struct problem ignored;
    struct rag_job *j = start_threads(s->rag) ? NULL : make_job(s, NULL, &ignored);
    if (j) {
        j->lane = lane;
        j->run = run;
    }
    return j;
}

/* Queue the job again for its next run.  A search goes before the jobs of rounds that have not
 * begun; the index job goes last. */
void rag_job_push(struct rag_job *j)
{
    struct rag_service *v = j->s->rag;
    pthread_mutex_lock(&v->lock);
    struct rag_job **at = &v->queue[j->lane];
    j->round = v->round[j->lane];
    while (*at && (!is_search(j) || (*at)->round <= j->round))
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    pthread_cond_broadcast(&v->work[j->lane]);
    pthread_mutex_unlock(&v->lock);
}

/* ---- in the loop ---- */

/* Log an error of the file once, not for each request. */
static void note_trouble(struct rag_service *v, const struct problem *pr)
{
    const int of_file = pr->status == 503 && strcmp(pr->code, "rag_unavailable") == 0;
    if (of_file && strcmp(v->trouble, pr->message) != 0)
        server_log(v->s, "documents: %s", pr->message);
    if (of_file || pr->status == 0)
        snprintf(v->trouble, sizeof v->trouble, "%s", of_file ? pr->message : "");
}

static void end_job(struct rag_job *j)
{
    struct conn *c = j->conn;
    if (rag_wants(j) && !j->problem.status && !atomic_load(&j->cancelled)) {
        rag_compute(j);
        return;
    }
    if (!j->answer && !j->text && !j->problem.status)
        problem_nomem(&j->problem);
    if (!atomic_load(&j->cancelled))
        note_trouble(j->s->rag, &j->problem);
    if (j->run == rag_run_index) {
        rag_index_ended(j->s, j->problem.status != 0);
        rag_job_free(j);
        return;
    }
    j->s->rag->index.dirty |= j->lane != RAG_READ;
    if (j->done) {
        j->done(j->user, j->answer, &j->problem);
        rag_job_free(j);
        return;
    }
    if (!j->text || j->problem.status) {
        if (c)
            conn_set_exchange(c, NULL);
        refuse(j);
        return;
    }
    if (c) {
        metrics_count(&j->s->metrics, conn_route(c), 200);
        conn_reply(c, 200, "application/json", j->text, strlen(j->text));
        conn_set_exchange(c, NULL);
    }
    rag_job_free(j);
}

void rag_events(struct server *s)
{
    struct rag_service *v = s->rag;
    if (!v || !v->n_threads)
        return;
    pthread_mutex_lock(&v->lock);
    struct rag_job *j = v->done;
    v->done = NULL;
    pthread_mutex_unlock(&v->lock);
    while (j) {
        struct rag_job *next = j->next;
        end_job(j);
        j = next;
    }
}

void rag_gone(struct conn *c)
{
    struct rag_job *j = conn_exchange(c);
    j->conn = NULL;
    atomic_store(&j->cancelled, 1);
    rag_compute_more(j->s);
}

void rag_unload(struct server *s)
{
    if (s->rag)
        rag_compute_more(s);
}

static void cancel_asked(struct rag_job *j, const void *user)
{
    for (; j; j = j->next)
        if (j->done && j->user == user)
            atomic_store(&j->cancelled, 1);
}

void rag_cancel(struct server *s, const void *user)
{
    struct rag_service *v = s->rag;
    if (!v)
        return;
    pthread_mutex_lock(&v->lock);
    cancel_asked(v->queue[RAG_READ], user);
    cancel_asked(v->done, user);
    for (int i = 0; i < v->n_threads; i++)
        if (v->thread[i].current && v->thread[i].current->user == user && v->thread[i].current->done)
            atomic_store(&v->thread[i].current->cancelled, 1);
    pthread_mutex_unlock(&v->lock);
    cancel_asked(v->computing.first, user);
    rag_compute_more(s);
}

int rag_start(struct server *s, struct err *e)
{
    enum { COPIES_BYTES = 256 << 20 };
    struct rag_service *v = calloc(1, sizeof *v);
    char path[4096];
    if (!v)
        return err_nomem(e, "server");
    if (!(v->vectors = rag_vectors_open(kernels_pick(NULL, e), COPIES_BYTES, e))) {
        free(v);
        return -1;
    }
    v->s = s;
    snprintf(path, sizeof path, "%s/rag.db", s->o.home ? s->o.home : "");
    v->index.dirty = access(path, F_OK) == 0;
    pthread_mutex_init(&v->lock, NULL);
    for (int i = 0; i < RAG_LANES; i++)
        pthread_cond_init(&v->work[i], NULL);
    s->rag = v;
    return 0;
}

static void free_jobs(struct rag_job *j)
{
    while (j) {
        struct rag_job *next = j->next;
        rag_job_free(j);
        j = next;
    }
}

void rag_stop(struct server *s)
{
    struct rag_service *v = s->rag;
    if (!v)
        return;
    v->computing.stopped = 1;
    pthread_mutex_lock(&v->lock);
    v->stop = 1;
    for (int i = 0; i < v->n_threads; i++)
        if (v->thread[i].current)
            atomic_store(&v->thread[i].current->cancelled, 1);
    for (int i = 0; i < RAG_LANES; i++)
        pthread_cond_broadcast(&v->work[i]);
    pthread_mutex_unlock(&v->lock);
    while (v->n_threads > 0)
        pthread_join(v->thread[--v->n_threads].thread, NULL);
    for (int i = 0; i < RAG_LANES; i++) {
        free_jobs(v->queue[i]);
        pthread_cond_destroy(&v->work[i]);
    }
    free_jobs(v->done);
    v->done = NULL;
    rag_vectors_close(v->vectors);
    pthread_mutex_destroy(&v->lock);
}

/* Called when the engines have ended: no events will come for the texts that they had. */
void rag_release(struct server *s)
{
    if (!s->rag)
        return;
    for (struct rag_job *j = s->rag->computing.first; j; j = j->next)
        j->embedder = j->reranker = j->lm = NULL;      /* their models are closed */
    free_jobs(s->rag->computing.first);
    free(s->rag);
    s->rag = NULL;
}

/* worker.c - the thread of one engine: commands in, events out. */
#include "libcommon/serve/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"

enum command_kind { COMMAND_SUBMIT, COMMAND_CANCEL, COMMAND_LIMITS, COMMAND_TRIM, COMMAND_LORA };

struct command {
    struct command *next;
    enum command_kind kind;
    struct request_params params;
    struct constraint constraint;       /* from params; state NULL: none, or owned by the engine */
    struct worker_job *jobs;
    struct engine_limits limits;
    /* of COMMAND_LORA; adapter: owned until it is run */
    struct model *model;
    int number;
    struct lora_bound *adapter;
};

struct worker {
    struct engine *g;
    void (*wake)(void *user);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, over;          /* over: signalled when the thread ends */
    atomic_uint_fast64_t began_ns;      /* clock_ns() at which the current step began; 0: it waits for work */
    /* protected by the lock */
    struct command *first, **last;
    struct events *out, **out_last, *spare;
    int n_spare;
    int stop, ended, check;             /* check: engine_check is requested */
    struct engine_stats stats;
    struct engine_limits limits;
    int n_unread;                       /* requests submitted that `stats` does not count */
    /* for the thread only */
    struct events *batch;
    int n_read;                         /* those of n_unread that the engine has */
};

/* ---- events ---- */

static struct events *take_spare(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    struct events *b = w->spare;
    if (b) {
        w->spare = b->next;
        w->n_spare--;
    }
    pthread_mutex_unlock(&w->lock);
    if (b)
        b->next = NULL;
    return b ? b : calloc(1, sizeof *b);
}

static struct event *add_event(struct worker *w, struct worker_job *job)
{
    struct events *b = w->batch;
    if (b->n_events == b->room) {
        int room = b->room * 2 + 16;
        struct event *p = realloc(b->event, (size_t)room * sizeof *p);
        if (!p)
            return NULL;
        b->event = p;
        b->room = room;
    }
    struct event *ev = &b->event[b->n_events++];
    *ev = (struct event){ .job = job, .id = -1 };
    return ev;
}

/* Called when an event of the job is lost: cancel the job and send no more events of it.  The job
 * itself is passed to events.lost when the engine has finished with it. */
static void lose(struct worker *w, struct worker_job *job)
{
    if (!job->lost && !job->done && job->request)
        engine_cancel(w->g, job->request);
    job->lost = 1;
    if (job->done) {
        job->next_lost = w->batch->lost;
        w->batch->lost = job;
    }
}

static size_t add_bytes(struct buf *b, const void *data, size_t n)
{
    static const char zero[8];
    buf_add(b, zero, -b->size & 7);         /* aligned: floats are read in place */
    size_t at = b->size;
    buf_add(b, data, n);
    return at;
}

static void on_token(void *user, const struct token_event *t)
{
    struct worker_job *job = user;
    struct worker *w = job->worker;
    struct buf *bytes = &w->batch->bytes;
    if (t->finish != FINISH_NONE)
        job->done = 1;
    struct event *ev = job->lost ? NULL : add_event(w, job);
    if (!ev) {
        lose(w, job);
        return;
    }
    ev->id = t->id;
    ev->finish = t->finish;
    ev->stop = t->stop;
    ev->last = t->finish != FINISH_NONE;
    ev->is_prompt = t->is_prompt;
    ev->text_size = t->size;
    ev->text = t->size ? add_bytes(bytes, t->text, t->size) : 0;
    ev->logprob = t->logprob;
    ev->n_top = t->n_top;
    if (t->n_top)
        ev->top = add_bytes(bytes, t->top, (size_t)t->n_top * sizeof *t->top);
    ev->n_embedding = t->n_embedding;
    if (t->n_embedding)
        ev->embedding = add_bytes(bytes, t->embedding, (size_t)t->n_embedding * sizeof *t->embedding);
    if (t->error) {
        ev->error = t->error->code;
        ev->why = add_bytes(bytes, t->error->msg, strlen(t->error->msg) + 1);
    }
    if (ev->last && job->request)
        request_stats(job->request, &ev->stats);
    if (bytes->failed) {
        w->batch->n_events--;
        lose(w, job);
    }
}

/* Send the last event of a job that the engine does not have. */
static void end_job(struct worker *w, struct worker_job *job, enum finish why, const struct err *e)
{
    struct event *ev = add_event(w, job);
    job->done = 1;
    if (!ev) {
        lose(w, job);
        return;
    }
    ev->finish = why;
    ev->last = ev->refused = 1;
    ev->error = e ? e->code : ERR_NONE;
    ev->why = e ? add_bytes(&w->batch->bytes, e->msg, strlen(e->msg) + 1) : 0;
    if (w->batch->bytes.failed) {
        w->batch->n_events--;
        lose(w, job);
    }
}

static void free_command(struct command *c)
{
    if (c->constraint.state)
        c->constraint.close(c->constraint.state);
    lora_bound_free(c->adapter);
    free(c);
}

static void submit(struct worker *w, struct command *c)
{
    struct err e;
    int n = c->params.n > 1 ? c->params.n : 1, all_cancelled = 1;
    void **users = calloc((size_t)n, sizeof *users);
    struct request **requests = calloc((size_t)n, sizeof(struct request *));
    for (int i = 0; i < n; i++)
        all_cancelled &= c->jobs[i].cancelled;
    int ok = users && requests;
    for (int i = 0; ok && i < n; i++) {
        users[i] = &c->jobs[i];
        c->jobs[i].worker = w;
    }
    if (!ok)
        err_nomem(&e, "request");
    if (c->constraint.state)
        c->params.constraint = &c->constraint;
    c->params.on_token = on_token;
    c->params.user = c->jobs;
    if (n > 1) {
        c->params.users = users;
        c->params.requests = requests;
    }
    struct request *first = ok && !all_cancelled ? engine_submit(w->g, &c->params, &e) : NULL;
    if (first) {
        requests[0] = first;
        c->constraint.state = NULL;
    }
    if (!first)
        for (int i = 0; i < n; i++)
            end_job(w, &c->jobs[i], all_cancelled ? FINISH_CANCELLED : FINISH_ERROR, all_cancelled ? NULL : &e);
    else
        for (int i = 0; i < n; i++) {
            c->jobs[i].request = requests[i];
            if (c->jobs[i].cancelled)
                engine_cancel(w->g, requests[i]);
        }
    free(users);
    free(requests);
}

static void set_lora(struct worker *w, struct command *c)
{
    struct err e;
    const int rc = engine_set_lora(w->g, c->model, c->number, c->adapter, &e);
    c->adapter = NULL;
    if (c->jobs)
        end_job(w, c->jobs, rc == 0 ? FINISH_STOP : FINISH_ERROR, rc == 0 ? NULL : &e);
}

static void run_command(struct worker *w, struct command *c)
{
    struct err ignored;
    switch (c->kind) {
    case COMMAND_SUBMIT:
        submit(w, c);
        break;
    case COMMAND_CANCEL:
        if (!c->jobs->cancelled && !c->jobs->done && c->jobs->request)
            engine_cancel(w->g, c->jobs->request);
        c->jobs->cancelled = 1;
        c->jobs->next_cancel_done = w->batch->cancel_done;
        w->batch->cancel_done = c->jobs;
        break;
    case COMMAND_TRIM:
        engine_trim(w->g);
        break;
    case COMMAND_LORA:
        set_lora(w, c);
        break;
    case COMMAND_LIMITS:
        engine_set_limits(w->g, &c->limits, &ignored);      /* the caller has checked the limits */
        break;
    }
}

/* Publish the numbers of requests while a step runs, for engine_watch_plan(). */
static void publish_requests(void *user)
{
    struct worker *w = user;
    pthread_mutex_lock(&w->lock);
    engine_count_requests(w->g, &w->stats);
    w->n_unread -= w->n_read;
    w->n_read = 0;
    pthread_mutex_unlock(&w->lock);
}

/* Publish the events and the statistics of this step. */
static void deliver(struct worker *w)
{
    const int any = w->batch->n_events > 0 || w->batch->lost || w->batch->cancel_done;
    struct engine_stats s;
    struct engine_limits l;
    engine_stats(w->g, &s);
    engine_limits(w->g, &l);
    pthread_mutex_lock(&w->lock);
    w->stats = s;
    w->limits = l;
    w->n_unread -= w->n_read;
    w->n_read = 0;
    if (any) {
        *w->out_last = w->batch;
        w->out_last = &w->batch->next;
    }
    pthread_mutex_unlock(&w->lock);
    if (any) {
        w->batch = NULL;
        w->wake(w->user);
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct err e;
    int running = 0;
    for (;;) {
        pthread_mutex_lock(&w->lock);
        atomic_store_explicit(&w->began_ns, 0, memory_order_relaxed);
        while (!w->first && !w->check && !running && !w->stop)
            pthread_cond_wait(&w->work, &w->lock);
        struct command *list = w->first;
        const int stop = w->stop, check = w->check;
        w->first = NULL;
        w->check = 0;
        w->last = &w->first;
        w->n_read = w->n_unread;
        w->ended = stop;
        if (stop)
            pthread_cond_signal(&w->over);
        else
            atomic_store_explicit(&w->began_ns, clock_ns(), memory_order_relaxed);
        pthread_mutex_unlock(&w->lock);
        if (stop) {
            while (list) {
                struct command *next = list->next;
                free_command(list);
                list = next;
            }
            return NULL;
        }
        while (!w->batch && !(w->batch = take_spare(w)))
            ;                               /* wait until other threads free a few hundred bytes */
        while (list) {
            struct command *next = list->next;
            run_command(w, list);
            free_command(list);
            list = next;
        }
        if (check)
            engine_check(w->g, &e);         /* the engine keeps the result and reports it in its statistics */
        running = engine_step(w->g, &e);    /* a failure of the backend is reported to each request */
        if (running < 0)
            running = 1;
        deliver(w);
    }
}

/* ---- from the loop's thread ---- */

struct worker *worker_open(struct engine *g, void (*wake)(void *user), void *user, struct err *e)
{
    struct worker *w = calloc(1, sizeof *w);
    if (!w) {
        err_nomem(e, "engine thread");
        return NULL;
    }
    w->g = g;
    w->wake = wake;
    w->user = user;
    w->last = &w->first;
    w->out_last = &w->out;
    engine_stats(g, &w->stats);
    engine_limits(g, &w->limits);
    engine_watch_plan(g, publish_requests, w);
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->over, &a);
    pthread_condattr_destroy(&a);
    int rc = pthread_create(&w->thread, NULL, work, w);
    if (rc == 0)
        return w;
    err_set(e, ERR_IO, "engine thread: %s", strerror(rc));
    pthread_cond_destroy(&w->over);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return NULL;
}

static void free_batches(struct events *b)
{
    while (b) {
        struct events *next = b->next;
        buf_release(&b->bytes);
        free(b->event);
        free(b);
        b = next;
    }
}

int worker_close(struct worker *w, double patience_s)
{
    if (!w)
        return 0;
    const uint64_t until = clock_ns() + (uint64_t)(patience_s * 1e9);
    const struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_signal(&w->work);
    while (!w->ended && pthread_cond_timedwait(&w->over, &w->lock, &t) != ETIMEDOUT)
        ;
    const int ended = w->ended;
    pthread_mutex_unlock(&w->lock);
    if (!ended)
        return -1;
    pthread_join(w->thread, NULL);
    free_batches(w->out);
    free_batches(w->spare);
    free_batches(w->batch);
    pthread_cond_destroy(&w->over);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return 0;
}

double worker_step_s(const struct worker *w)
{
    const uint64_t began = atomic_load_explicit(&w->began_ns, memory_order_relaxed), now = clock_ns();
    return began && now > began ? (double)(now - began) * 1e-9 : 0;
}

static int give_command(struct worker *w, const struct command *what)
{
    struct command *c = malloc(sizeof *c);
    if (!c)
        return -1;
    *c = *what;
    c->next = NULL;
    pthread_mutex_lock(&w->lock);
    *w->last = c;
    w->last = &c->next;
    if (c->kind == COMMAND_SUBMIT)
        w->n_unread += c->params.n > 1 ? c->params.n : 1;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    return 0;
}

int worker_submit(struct worker *w, const struct request_params *p, struct worker_job *jobs)
{
    struct command c = { .kind = COMMAND_SUBMIT, .params = *p, .jobs = jobs };
    if (p->constraint)
        c.constraint = *p->constraint;
    c.params.constraint = NULL;             /* the command owns it */
    return give_command(w, &c);
}

int worker_cancel(struct worker *w, struct worker_job *job)
{
    return give_command(w, &(struct command){ .kind = COMMAND_CANCEL, .jobs = job });
}

int worker_limits(struct worker *w, const struct engine_limits *l)
{
    return give_command(w, &(struct command){ .kind = COMMAND_LIMITS, .limits = *l });
}

int worker_set_lora(struct worker *w, struct model *m, int number, struct lora_bound *b, struct worker_job *job)
{
    return give_command(w, &(struct command){ .kind = COMMAND_LORA, .model = m, .number = number, .adapter = b,
                                              .jobs = job });
}

void worker_trim(struct worker *w) { give_command(w, &(struct command){ .kind = COMMAND_TRIM }); }

void worker_check(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->check = 1;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
}

struct events *worker_take(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    struct events *b = w->out;
    w->out = NULL;
    w->out_last = &w->out;
    pthread_mutex_unlock(&w->lock);
    return b;
}

/* Keep only a few small batches for reuse: after a pause the loop returns one for each step that
 * ran meanwhile. */
void worker_give_back(struct worker *w, struct events *list)
{
    enum { KEEP = 3, KEEP_BYTES = 1 << 16 };
    while (list) {
        struct events *next = list->next;
        list->n_events = 0;
        list->lost = list->cancel_done = NULL;
        list->bytes.size = 0;
        list->next = NULL;
        pthread_mutex_lock(&w->lock);
        if (w->n_spare < KEEP && list->bytes.room <= KEEP_BYTES && !list->bytes.failed) {
            list->next = w->spare;
            w->spare = list;
            w->n_spare++;
            list = NULL;
        }
        pthread_mutex_unlock(&w->lock);
        free_batches(list);
        list = next;
    }
}

void worker_stats(struct worker *w, struct engine_stats *s, struct engine_limits *l)
{
    pthread_mutex_lock(&w->lock);
    if (s) {
        *s = w->stats;
        s->n_waiting += w->n_unread;
        s->requests += (uint64_t)w->n_unread;
    }
    if (l)
        *l = w->limits;
    pthread_mutex_unlock(&w->lock);
}

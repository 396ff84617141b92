/* worker.h - one thread for each engine.
 *
 * Commands go in and events come out through queues.  The only lock is held while a list changes
 * hands, never while the engine computes or a socket is written. */
#ifndef ZSE_SERVE_WORKER_H
#define ZSE_SERVE_WORKER_H

#include "libcommon/base/err.h"
#include "libcommon/engine/engine.h"
#include "libcommon/http/buf.h"

struct worker;

/* One answer that the engine makes.  The submitter owns the memory and keeps it until it has
 * received the job's event with `last`, or the job in events.lost.  If it has called
 * worker_cancel(), it also waits for the job in events.cancel_done. */
struct event;
struct events;
struct worker_job {
    void *user;
    /* call_events() calls this for each event, with ev NULL if the last event was lost.  on_event
     * NULL: the job's user is a choice of a call */
    void (*on_event)(struct worker_job *job, const struct events *b, const struct event *ev);
    /* if on_event is set, call_events() calls this when worker_cancel() of the job is done */
    void (*on_cancel_done)(struct worker_job *job);
    struct worker *worker;              /* from here on: for the worker's thread only */
    struct request *request;
    int cancelled, done, lost;          /* lost: an event is missing, so no more follow */
    struct worker_job *next_lost, *next_cancel_done;
};

/* An event of a job: a token, or its end.  Texts, logprobs and embeddings are in events.bytes. */
struct event {
    struct worker_job *job;
    int32_t id;                         /* token; -1: none */
    enum finish finish;
    int stop;                           /* as in token_event */
    int last, refused, is_prompt;       /* refused: by engine_submit; is_prompt: a token of the prompt */
    float logprob;
    int n_top, n_embedding;
    size_t text_size;
    size_t text, top, embedding;        /* offsets in events.bytes */
    enum err_code error;                /* with FINISH_ERROR; the sentence is the text at `why` */
    size_t why;
    struct request_stats stats;         /* with last */
};

struct events {                         /* the events of one or more steps */
    struct events *next;
    struct event *event;
    int n_events, room;
    struct buf bytes;
    /* jobs that ended, but whose last event was lost because memory ran out; to be read after the
     * events */
    struct worker_job *lost;
    /* jobs whose worker_cancel() is done; it does not use them any more */
    struct worker_job *cancel_done;
};

/* wake is called from the thread when there are events.  g is borrowed until worker_close. */
struct worker *worker_open(struct engine *g, void (*wake)(void *user), void *user, struct err *e);
/* End the thread after its current step; jobs that are not done get no more events.  -1: the step
 * did not end within patience_s, so the worker and everything it uses must not be freed.  NULL is
 * fine. */
int worker_close(struct worker *w, double patience_s);
/* any thread: seconds since the current step started; 0: it waits for work */
double worker_step_s(const struct worker *w);
/* Submit p->n (at least 1) jobs.  The data that p points to must stay until their first events; the
 * constraint is copied, and its state taken over.  0, or -1 without memory.  If the engine refuses
 * the jobs, each gets an event that says so. */
int worker_submit(struct worker *w, const struct request_params *p, struct worker_job *jobs);
/* 0, or -1 without memory, in which case the answer continues */
int worker_cancel(struct worker *w, struct worker_job *job);
int worker_limits(struct worker *w, const struct engine_limits *l);     /* 0, or -1 without memory */
/* engine_set_lora, between two steps.  The job gets one event: FINISH_STOP, or FINISH_ERROR.  job
 * NULL: no event, to remove an adapter.  Takes b over.  0, or -1 without memory, and b is the
 * caller's. */
int worker_set_lora(struct worker *w, struct model *m, int number, struct lora_bound *b, struct worker_job *job);
void worker_trim(struct worker *w);             /* engine_trim, between two steps */
void worker_check(struct worker *w);            /* engine_check before the next step; worker_stats has the result */
/* Take all events so far, oldest first; NULL: none.  Return them with worker_give_back. */
struct events *worker_take(struct worker *w);
void worker_give_back(struct worker *w, struct events *list);
/* Statistics and limits as of the last step, and the numbers of requests as of the running one; s
 * and l may be NULL. */
void worker_stats(struct worker *w, struct engine_stats *s, struct engine_limits *l);

static inline const struct top_logprob *event_top(const struct events *b, const struct event *ev)
{
    return (const void *)(b->bytes.data + ev->top);
}
static inline const float *event_embedding(const struct events *b, const struct event *ev)
{
    return (const void *)(b->bytes.data + ev->embedding);
}

#endif

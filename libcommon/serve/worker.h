/* worker.h - one thread for each engine.  Requests go in and events come out through queues; the
 * only lock is held for the moments in which a list changes hands, never while the engine
 * computes or somebody writes to a socket. */
#ifndef ZSE_SERVE_WORKER_H
#define ZSE_SERVE_WORKER_H

#include "libcommon/base/err.h"
#include "libcommon/engine/engine.h"
#include "libcommon/http/buf.h"

struct worker;

/* One answer that the engine makes.  The memory is the submitter's; it stays until the event
 * with `last` has come, or the job is among the lost ones, and, after worker_cancel, among those
 * that are heard. */
struct job {
    void *user;
    struct worker *worker;          /* this and what follows: the worker thread's own */
    struct request *request;
    int cancelled, done, lost;      /* lost: something of it is missing, and nothing follows */
    struct job *next_lost, *next_heard;
};

/* What happened to a job.  Texts, logprobs and the like lie in the batch. */
struct event {
    struct job *job;
    int32_t id;
    enum finish finish;
    int stop;                           /* of token_event */
    int last, refused, is_prompt;       /* refused: by engine_submit */
    float logprob;
    int n_top, n_embedding;
    size_t text_size;
    size_t text, top, embedding;        /* offsets in bytes */
    enum err_code error;                /* with FINISH_ERROR; the sentence is the text at `why` */
    size_t why;
    struct request_stats stats;         /* with last */
};

struct events {                          /* of one or more steps */
    struct events *next;
    struct event *event;
    int n_events, room;
    struct buf bytes;
    struct job *lost;                   /* behind all events: jobs that ended without their last one, because memory ran out */
    struct job *heard;                  /* worker_cancel was obeyed, and the thread does not look at the job for its sake any more */
};

/* wake is called from the thread when there are events. g is borrowed until worker_close. */
struct worker *worker_open(struct engine *g, void (*wake)(void *user), void *user, struct err *e);
/* Ends the thread after the step that it is in. Jobs that are not done get no more events.  -1:
 * after so many seconds it is in that step still; then the worker and all that it uses must
 * stay. NULL is fine. */
int worker_close(struct worker *w, double patience_s);
/* Any thread: seconds since the step that it is in began; 0: it waits for work. */
double worker_step_s(const struct worker *w);
/* Requests for p->n (at least 1) jobs. What p points to stays until their first events or last,
 * but for its constraint, which is copied and taken over.  0, or -1 without memory; a refusal is
 * an event. */
int worker_submit(struct worker *w, const struct request_params *p, struct job *jobs);
/* 0, or -1 without memory: then the answer goes on to its end. */
int worker_cancel(struct worker *w, struct job *job);
int worker_limits(struct worker *w, const struct engine_limits *l);     /* 0, or -1 without memory */
void worker_shed(struct worker *w);                     /* engine_trim, between two steps */
void worker_check(struct worker *w);                    /* engine_check, once for however many ask before it begins; worker_stats says what came of it */
/* All events so far, oldest first, NULL if there are none; to be given back. */
struct events *worker_take(struct worker *w);
void worker_give_back(struct worker *w, struct events *list);
/* As of the last step. */
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

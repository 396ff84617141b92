/* engine_core.h - what the parts of the engine share: engine.c (opening, the step),
 * engine_request.c (a request's life), engine_plan.c (who runs, and what of it), engine_tenant.c
 * (fairly), engine_lookahead.c (the backend's work, begun early where it can be), engine_deliver.c
 * (from the backend's rows to callbacks), engine_masks.c (what constraints have to do). */
#ifndef ZSE_ENGINE_ENGINE_CORE_H
#define ZSE_ENGINE_ENGINE_CORE_H

#include "libcommon/cache/kv.h"
#include "libcommon/cache/state.h"
#include "libcommon/engine/engine.h"
#include "libcommon/engine/engine_text.h"

/* PENDING: waits for the prompt of its leader, the first of the n requests that share it. */
enum state { PENDING, WAITING, RUNNING };
enum which { BY_TURN, BY_DEADLINE };

enum {
    PROMPT_ROWS = 32,                   /* logits of prompt tokens that a step makes for prompt_logprobs */
    PACE_STEPS = 64,
    FORCED_AT_ONCE = 64,                /* tokens that a constraint is asked for */
    FORCED = 16,                        /* an answer may go on by so many given tokens and still be decoding */
};

/* A heap of requests. */
struct queue { struct request **r; int n, room; enum which which; };

/* Whose requests they are; there while it has any.  Everything counts in tokens. */
struct tenant_queue {
    struct tenant_queue *next;
    uint64_t id;
    int n, n_running, held;             /* its requests, and those of them that run; held: engine_submit is about to add some */
    struct queue waiting;               /* BY_TURN */
    uint64_t served;                    /* was computed for it, as compared with other shares */
    int64_t planned;                      /* in the middle of planning: what its running prompts will get, or have got of this step */
    int waits, waited;                  /* some of its requests wait for their first token; did so before */
};

/* What a request's constraint has to do, here or in a thread (engine_masks.c).  While the state
 * is QUEUED or RUNNING, all of it, the constraint, allowed and forced are the threads'. */
enum work_state { WORK_NONE, WORK_QUEUED, WORK_RUNNING, WORK_DONE };
struct constraint_work {
    enum work_state state;              /* under the lock of the masks */
    struct request *next;               /* in the queue */
    uint64_t steps;                     /* of its next turn */
    int accept, forced, mask;           /* still to do: accept the token `id`, ask for forced tokens, compute the mask */
    int32_t id;
    int asked;                          /* for forced tokens, since the last token */
    int refused;                        /* accept said no */
};

/* LATE_MASK: `logits` waits for its mask; LATE_ADVANCE: the last token is still to be accepted. */
enum late { LATE_NOT, LATE_MASK, LATE_ADVANCE };

struct request {
    enum state state;
    struct tenant_queue *tenant;
    int charged;                        /* tokens that it was counted */
    struct request *leader, *siblings;  /* siblings are PENDING, linked by next_sibling */
    struct request *next_sibling, *next_cancelled;
    int64_t key[2]; int at[2];          /* by enum which: the smaller goes first, ties by order; the place in the queue, -1: in none */
    uint64_t order;                     /* of submission */
    int32_t *ids;                       /* [limit] prompt and answer */
    int n_ids, n_prompt, n_cached, limit;
    struct kv_table kv;
    int slot;                           /* of the state that kv.n_tokens tokens left behind in recurrent layers; -1: it holds none */
    struct sampler *sampler;
    struct answer_text text;
    int32_t *stop_ids; int n_stop_ids;  /* of each stop string: the special token that it is, which never appears in the text; -1: it is none */
    struct constraint constraint; int constrained;      /* state is owned */
    const uint32_t *allowed; int has_allowed;   /* the mask of its next token; borrowed from the constraint */
    struct constraint_work work;
    enum late late;                     /* its constraint is not ready: it sits out steps */
    float *late_logits;                 /* [vocab_size] with LATE_MASK, owned */
    int32_t forced[FORCED_AT_ONCE]; int n_forced, at_forced;    /* still to come, where each needs logits of its own */
    float *pooled;                      /* [hidden_size] sum of hidden states so far; only with embed */
    enum embed embed;
    int ignore_eos, priority, n_logprobs, prompt_logprobs, n_heard;     /* n_heard: tokens of the prompt that the callback has heard of */
    int *heard;                         /* of all that fail together: somebody has heard of one of them; borrowed; NULL: it is alone */
    int cancelled, holds;               /* holds: WAITING, and has KV blocks */
    int planned;                        /* tokens of this step */
    void (*on_token)(void *user, const struct token_event *ev);
    void *user;
    uint64_t submitted_ns, started_ns, first_ns, last_ns;
};

/* Measured time of steps, to choose how many prompt tokens go beside answers. */
struct pace {
    float *alone_ns;                    /* [max_seqs + 1] of a step in which so many requests decode and nothing else happens; 0: not known */
    float ratio[PACE_STEPS], sorted[PACE_STEPS]; int at;    /* how many times as long the last steps were as without prompts; by size; the oldest */
    float token_ns;                     /* what a token of a prompt adds to a step; 0: not known */
    float stretch;                      /* a step with prompts lasts so many times as long as without */
    int chunk;                          /* tokens of prompts that this step might have */
    int n_decoding, n_prompt;           /* of this step */
};

/* A step that the backend has begun behind the one in hand. */
struct lookahead { struct request **batched; struct batch_item *items; struct draw *draws; int n; };       /* [max_seqs] each */

struct engine {
    const struct model *m;              /* borrowed */
    const struct tokenizer *t;          /* borrowed, may be NULL */
    const struct backend *backend;
    void *b;
    int vocab_size, n_allowed, max_len, max_seqs, max_tokens, prefixes;         /* n_allowed: ids that a constraint may allow */
    struct kv_pool *pool;
    struct state_pool *states; int snapshot_every;      /* NULL: the model has no recurrent layers */
    struct sampler_scratch *scratch;
    struct request **running; int n_running;        /* [max_seqs] in order of their turn */
    struct request **to_plan;           /* [max_seqs] scratch */
    struct tenant_queue *tenants; int n_tenants, n_waiting;  /* in the order in which they came; n_waiting: of all */
    double level;                       /* what each share was given on average since somebody waits */
    struct queue deadlines;
    struct request *cancelled;
    int n_pending, n_holding;
    struct request **batched;           /* [max_seqs] whose item is items[i]; NULL: it is gone */
    struct batch_item *items;           /* [max_seqs] */
    struct draw *draws;                 /* [max_seqs] of items */
    int n_items;                        /* of the step in hand */
    struct lookahead lookahead; int n_begun;    /* steps that the backend has begun and not ended: 1 between two calls where lookahead.n is not 0 */
    float *logits;                      /* [max_seqs + PROMPT_ROWS, vocab_size] */
    float *row;                         /* [vocab_size] one of them, for a sibling to change */
    float *hidden;                      /* [max_tokens, hidden_size] once a request asked for embed */
    int n_rows;                         /* of logits that were ever used */
    struct masks *masks;                /* NULL: no step has needed one */
    struct pace pace;
    struct engine_limits limits;
    int copy_failed; struct err copy_error;
    int broken; struct err broken_error;        /* the model's file is not what was opened any more */
    uint64_t orders;
    struct engine_stats count;          /* its counters */
};

/* ---- engine.c ---- */
/* Nothing can be computed with the model, now or later: broken_error says why. */
int is_broken(struct engine *g);

/* ---- engine_request.c ---- */
void request_free(struct engine *g, struct request *r);
/* The last callback, with ev->finish saying why; r is gone after it. */
void request_finish(struct engine *g, struct request *r, const struct token_event *ev);
/* End without another token: what was held back of the text comes out now. */
void request_finish_early(struct engine *g, struct request *r, enum finish why, const struct err *error);
/* End what was cancelled or is past its deadline. */
void requests_sweep(struct engine *g, uint64_t now);
/* Give its blocks back; what they hold stays in the tree of prefixes if `enter`. */
void request_release(struct engine *g, struct request *r, int enter);

int queue_reserve(struct queue *q, int n);
void queue_add(struct queue *q, struct request *r);
void queue_remove(struct queue *q, struct request *r);
int goes_before(const struct request *a, const struct request *b, enum which which);

/* ---- engine_tenant.c ---- */
struct tenant_queue *tenant_get(struct engine *g, uint64_t id);         /* made if there is none; NULL: no memory */
void tenant_put(struct engine *g, struct tenant_queue *s);              /* gone if nobody needs it */
void wait_add(struct engine *g, struct request *r);             /* to those that wait; the share has room */
void wait_remove(struct engine *g, struct request *r);
void tenant_charge(struct engine *g, struct request *r, int n);  /* n tokens were computed for it */
void tenants_settle(struct engine *g);                           /* before anybody is chosen for a step */
int tenant_goes_before(const struct request *a, const struct request *b);
struct request *tenant_next(const struct engine *g);             /* who waits and goes first; NULL: nobody waits */
int tenant_yields(const struct engine *g, const struct request *r);      /* index of who runs and makes room for r, which waits; -1: nobody does */
/* Would r, which lacks so many blocks, get them and a place if all went that tenant_yields()
 * would name one after the other? */
int tenant_would_fit(struct engine *g, const struct request *r, int missing);
int tenant_of_most(const struct engine *g);                      /* index of who gives its blocks back: the last in turn of the share that runs most */
/* The queue lacks `missing` places for n requests of this share: end as many of shares that have
 * more.  0: they have not. */
int tenant_make_room(struct engine *g, const struct tenant_queue *own, int n, int missing);

/* ---- engine_plan.c ---- */
int decodes(const struct request *r);
/* Requests from waiting to running, and what each of them has computed in this step. */
void plan_step(struct engine *g);
/* items and batched from it; returns their number. */
int plan_batch(struct engine *g);
void pace_init(struct pace *p);
void pace_learn(struct engine *g, uint64_t step_ns);
int enters_prefixes(const struct engine *g, const struct request *r);
void copy_state(struct engine *g, int from, int to);

/* Would a request that waits start now, if there are blocks for it? */
int may_admit(const struct engine *g);

/* ---- engine_lookahead.c ---- */
/* Plan a step and compute it: its items, whose rows are to be delivered; 0: there is nothing to
 * do; -1: the backend failed. */
int step_run(struct engine *g, struct err *e);
/* Nothing is r's any more: steps that are begun have a row that nobody wants. */
void step_forget(struct engine *g, const struct request *r);

/* ---- engine_masks.c ---- */
void masks_begin(struct engine *g, int n_items);        /* begin with the masks that the step of these items needs */
void masks_end(struct engine *g);                       /* wait a little for those that do not take long */
/* 1: the mask is there (or the constraint failed); 0: a thread is at work on it. */
int masks_ready(struct engine *g, struct request *r);
/* 1: work.accept is done, and forced tokens were asked for if none were left; 0: a thread is at
 * work on it. */
int masks_advance(struct engine *g, struct request *r);
void masks_wait(struct engine *g);                      /* all that run are late: until one of them is not, but only some milliseconds */
void masks_forget(struct engine *g, struct request *r); /* r is about to be freed */
void masks_close(struct masks *m);                      /* before the requests are freed; NULL is fine */

/* ---- engine_deliver.c ---- */
void deliver_step(struct engine *g, int n_items);
void deliver_late(struct engine *g);                    /* requests whose constraint has become ready go on */

#endif

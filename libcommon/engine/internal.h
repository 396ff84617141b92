/* internal.h - the internals of the engine, by file:
 *   engine.c            opening, closing, limits, figures
 *   engine_step.c       the step
 *   engine_request.c    a request from engine_submit to its last callback
 *   engine_queue.c      heaps of requests
 *   engine_plan.c       requests that run, and the tokens of each in a step
 *   engine_tenant.c     fairness between tenants
 *   engine_lookahead.c  steps launched before the previous step has ended
 *   engine_embed.c      vectors and scores from pooled states
 *   engine_disk.c       prefixes in a folder
 *   engine_draft.c      speculation: drafts in a step, and the tokens kept of them
 *   engine_draft_model.c    drafts of a second model
 *   engine_predictor.c  drafts of a layer that predicts further tokens
 *   engine_predictor_disk.c     its keys and values in the folder of prefixes
 *   engine_medusa.c     drafts of Medusa heads
 *   engine_deliver.c    tokens, text and callbacks from the rows of a step
 *   engine_masks.c      the work of constraints */
#ifndef ZSE_ENGINE_INTERNAL_H
#define ZSE_ENGINE_INTERNAL_H

#include "libcommon/cache/disk.h"
#include "libcommon/cache/kv.h"
#include "libcommon/cache/state.h"
#include "libcommon/engine/draft.h"
#include "libcommon/engine/engine.h"
#include "libcommon/engine/engine_text.h"

/* PENDING: waits until its leader, the first of n requests with a common prompt, has computed the
 * prompt. */
enum request_state { PENDING, WAITING, RUNNING };
enum which { BY_TURN, BY_DEADLINE };

enum {
    /* most rows of logits of a step for prompts and drafts, in addition to one row for each
     * request */
    PROMPT_ROWS = 32,
    DRAFT_ROWS = 16,                    /* most of the PROMPT_ROWS that drafts may take */
    MOST_DRAFTING = 8,                  /* no drafts if more requests than this decode */
    PACE_STEPS = 64,
    FORCED_AT_ONCE = 64,                /* most forced tokens from one call of a constraint */
    /* most tokens of a decoding request in a step: forced ones and one more */
    FORCED = 16,
};

/* A heap of requests. */
struct queue { struct request **r; int n, room; enum which which; };

/* A tenant's requests and its claim to throughput; exists while it has requests. */
struct tenant_queue {
    struct tenant_queue *next;
    uint64_t id;
    /* n: all its requests; held: engine_submit is about to add some */
    int n, n_running, held;
    struct queue waiting;               /* BY_TURN */
    uint64_t served;                    /* tokens charged; comparable between tenants */
    /* Prompt tokens of its running requests, charged in advance while a step is planned: first all
     * tokens still to compute, then only those in this step. */
    int64_t planned;
    /* waits: 1 if a request of the tenant waits for its first token; waited: the same in the last
     * step */
    int waits, waited;
};

/* Pending work of a request's constraint, done by the engine's thread or another one
 * (engine_masks.c).  While the state is QUEUED or RUNNING, this struct, the constraint, allowed and
 * forced belong to the threads. */
enum work_state { WORK_NONE, WORK_QUEUED, WORK_RUNNING, WORK_DONE };
struct constraint_work {
    enum work_state state;              /* guarded by the lock of the masks */
    struct request *next;               /* in the queue */
    uint64_t steps;                     /* step limit of its next turn */
    /* flags of work still to do: accept the token `id`, get forced tokens, compute the mask */
    int accept, forced, mask;
    int32_t id;
    int asked;                          /* 1: constraint.forced was called since the last token */
    int refused;                        /* accept failed */
};

/* The drafts of a request.  n_used tokens of `next` are in the planned step, in ids after n_ids.
 * trust: acceptance rate of drafts, by grade. */
struct drafting {
    const struct drafter *drafter;      /* NULL: no drafts */
    /* The drafter's state, opened at the first draft (then `opened` is 1).  NULL although opened:
     * there was no memory. */
    void *state; int opened;
    int32_t *predicted; int n_predicted;        /* owned */
    int most;                           /* most tokens of a draft */
    int same_tokens;                    /* as in draft_params */
    struct draft next; int n_used;
    /* with a draft model: the drafter's draft, used if it is expected to yield more tokens */
    struct draft other;
    /* With engine_options.draft_distribution: how the first n_proposed tokens of `next` were drawn;
     * and while a row is delivered, the drafted token to verify there, or NULL. */
    struct proposed proposed[DRAFT_MOST]; int n_proposed;
    const struct proposed *verify;
    /* Index of a second recurrent state while the step has a draft; -1: none.  It holds the state
     * before the step until the step's tokens are chosen, and then the state after the draft. */
    int spare;
    /* by_model: the draft model makes the drafts.  It has computed kv.n_tokens tokens of ids, and
     * after those the drafted tokens `fed`. */
    int by_model; struct kv_table kv;
    /* the sequence has a token that the draft model lacks: no drafts */
    int unknown;
    int32_t fed[DRAFT_MOST]; int n_fed;
    /* For a predictor or heads: the n_rows states of the last step (borrowed), of which row i is
     * the state after ids[row_pos + i].  For a predictor: copies of the n_kept states from kept_pos
     * on, in a ring (owned).  Entries of kv before `whole` are made of the states after ids[0],
     * ids[1] and so on (-1: all are), later ones of the states after ids[base + entry]. */
    const float *rows; int row_pos, n_rows;
    float *kept; int kept_pos, n_kept, base, whole;
    int searched;                       /* the predictor's prefix was looked up in the folder */
    /* drafts pause while they do not pay.  pause: length of the pause in steps; rest: steps left of
     * it */
    int pause, rest;
    float trust[DRAFT_GRADES];
    /* numbers of tokens drafted and accepted so far, and of those copied from the predicted
     * tokens */
    int drafted, accepted, drafted_predicted, accepted_predicted;
};

/* LATE_MASK: `late_logits` wait for their mask; LATE_ADVANCE: the last token is not yet
 * accepted. */
enum late { LATE_NOT, LATE_MASK, LATE_ADVANCE };

struct request {
    enum request_state state;
    struct tenant_queue *tenant;
    int charged;                        /* tokens charged to its tenant */
    struct request *leader, *siblings;  /* siblings are PENDING, linked by next_sibling */
    struct request *next_sibling, *next_cancelled;
    /* The request's keys in the two kinds of heaps (enum which): smaller keys come first, ties in
     * the order of submission.  at: the request's index in each heap; -1: not in it. */
    int64_t key[2]; int at[2];
    uint64_t order;                     /* order of submission */
    int32_t *ids;                       /* [limit] prompt and answer */
    int n_ids, n_prompt, n_cached, limit;
    struct kv_table kv;
    /* index of its recurrent state (the state after kv.n_tokens tokens); -1: none */
    int slot;
    /* restoring a snapshot failed, so it starts without a prefix */
    int begins_anew;
    struct sampler *sampler;
    struct answer_text text;
    /* for each stop string: the id of the special token that it is, or -1 if it is plain text */
    int32_t *stop_ids; int n_stop_ids;
    int32_t *end_ids; int n_end_ids;    /* stop_ids of request_params, owned */
    int min_tokens;
    struct constraint constraint; int constrained;      /* constraint.state is owned */
    /* mask of its next token, borrowed from the constraint */
    const uint32_t *allowed; int has_allowed;
    struct constraint_work work;
    enum late late;                     /* its constraint is not ready, so it skips steps */
    float *late_logits;                 /* [vocab_size] with LATE_MASK, owned */
    /* forced tokens that come next, if each of them needs its own logits */
    int32_t forced[FORCED_AT_ONCE]; int n_forced, at_forced;
    float *pooled;                      /* [hidden_size] sum of hidden states so far; only with embed */
    enum embed embed;
    int second;                             /* as in request_params */
    /* n_reported: tokens of the prompt that were reported to the callback */
    int ignore_eos, priority, n_logprobs, prompt_logprobs, n_reported;
    /* See request_params.reported; borrowed; NULL: the request stands alone. */
    int *reported;
    int cancelled, holds;               /* holds: WAITING, but has KV blocks */
    int planned;                        /* number of its tokens in this step */
    struct drafting draft;
    uint64_t scope; /* scope in which the cache may share its prefixes; see prefix_scope() */
    int lora;                           /* number of its LoRA adapter, 0: none */
    /* Prefix folder.  n_saved: number of the request's tokens that were passed to the folder;
     * saved: their key; searched: whether the request's prefix was looked up; preempted: it has
     * been preempted before. */
    int n_saved, searched, preempted; struct disk_key saved;
    void (*on_token)(void *user, const struct token_event *ev);
    void *user;
    uint64_t submitted_ns, started_ns, first_ns, last_ns;
};

/* Measured times of steps, from which the number of prompt tokens in steps with answers is
 * chosen. */
struct pace {
    /* [max_seqs + 1] time of a step that only decodes, indexed by the number of requests; 0:
     * unknown */
    float *alone_ns;
    /* ratio: durations of the last steps, relative to steps that only decode; sorted: the same
     * sorted; at: index of the oldest in ratio */
    float ratio[PACE_STEPS], sorted[PACE_STEPS]; int at;
    float token_ns;                     /* time that a prompt token adds to a step; 0: unknown */
    /* [max_seqs + 1] time that a drafted token adds, indexed by the number of requests */
    float *draft_ns;
    float stretch;                      /* target ratio of a step with prompts to one without */
    int chunk;                          /* most prompt tokens of this step */
    int n_decoding, n_prompt, n_drafted;        /* in this step: requests, prompt tokens, drafted tokens */
};

/* A step that was launched during the current one; arrays of [max_seqs]. */
struct lookahead { struct request **batched; struct batch_item *items; struct draw *draws; int n; };

struct engine {
    const struct model *m;              /* borrowed */
    const struct tokenizer *t;          /* borrowed, may be NULL */
    const struct backend *backend;
    void *b;
    const struct drafter *drafter;      /* drafter of requests that name none; NULL: no drafts */
    struct draft_model *draft_model;    /* NULL: there is none */
    /* the reason why no request can have drafts; NULL: they can */
    const char *no_drafts;
    /* n_allowed: number of ids that a constraint may allow */
    int vocab_size, n_allowed, max_len, max_seqs, max_tokens, prefixes;
    struct kv_types kv;
    int window, sinks, pages;           /* as in engine_options */
    struct sparse_pattern pattern;
    /* numbers of the newest and of the first tokens that window blocks hold */
    int kept_tokens, kept_sinks;
    struct kv_pool *pool;
    struct engine_watch watch;          /* stepped NULL: none */
    void (*planned)(void *user); void *planned_user;    /* engine_watch_plan(); NULL: none */
    int entering;                       /* number of the adapter of the request whose blocks enter the tree */
    struct disk *disk;                  /* NULL: prefixes are in memory only */
    struct state_pool *states; int snapshot_every;      /* NULL: the model has no recurrent layers */
    uint32_t *mask;                     /* [(vocab_size + 31) / 32] of a row, before min_tokens */
    struct sampler_scratch *scratch;
    struct request **running; int n_running;        /* [max_seqs] in order of turn */
    struct request **to_plan;           /* [max_seqs] scratch */
    /* in order of arrival; n_waiting: requests of all tenants */
    struct tenant_queue *tenants; int n_tenants, n_waiting;
    double level;                       /* average charge per tenant since requests began to wait */
    struct queue deadlines;
    struct request *cancelled;
    int n_pending, n_holding;
    struct request **batched;           /* [max_seqs] the request of items[i]; NULL: it has ended */
    struct batch_item *items;           /* [max_seqs] */
    struct draw *draws;                 /* [max_seqs] of items */
    int n_items;                        /* items of the current step */
    /* n_begun: steps begun and not ended; 1 between calls if lookahead.n > 0 */
    struct lookahead lookahead; int n_begun;
    float *logits;                      /* [max_seqs + PROMPT_ROWS, vocab_size] */
    float *row;                         /* [vocab_size] copy of a row, for a sibling to modify */
    /* [max_tokens, hidden_size], allocated by the first request with embed */
    float *hidden;
    /* scratch of embed_finish(), embed_work() floats, or NULL */
    float *dense;
    /* the largest number of rows of logits that a step has used so far */
    int n_rows;
    struct masks *masks;                /* NULL until a step needs it */
    struct pace pace;
    float read_ns;                      /* time to read a token of a prefix from the folder; 0: unknown */
    /* acceptance rates of drafts of all requests, by grade: those that a new request starts with */
    float trust[DRAFT_GRADES];
    struct engine_limits limits;
    int copy_failed; struct err copy_error;
    int broken; struct err broken_error;        /* the model's file has changed since it was opened */
    uint64_t orders;
    struct engine_stats count;          /* the counters of engine_stats */
};

/* ---- engine_step.c ---- */
/* Returns 1 if the model's file has changed, so that nothing can be computed with it; broken_error
 * has the message. */
int is_broken(struct engine *g);

/* ---- engine_request.c ---- */
void request_free(struct engine *g, struct request *r);
/* Call r's last callback, with ev->finish as the reason, and free r. */
void request_finish(struct engine *g, struct request *r, const struct token_event *ev);
/* End r without another token; the text that was held back is delivered. */
void request_finish_early(struct engine *g, struct request *r, enum finish why, const struct err *error);
/* End requests that were cancelled or are past their deadline. */
void requests_sweep(struct engine *g, uint64_t now);
/* Release r's blocks; with `enter` their contents stay in the prefix tree. */
void request_release(struct engine *g, struct request *r, int enter);

int queue_reserve(struct queue *q, int n);
void queue_add(struct queue *q, struct request *r);
void queue_remove(struct queue *q, struct request *r);
int goes_before(const struct request *a, const struct request *b, enum which which);

/* ---- engine_tenant.c ---- */
struct tenant_queue *tenant_get(struct engine *g, uint64_t id);         /* made if it does not exist; NULL: no memory */
/* free the tenant if it has no requests and is not held */
void tenant_put(struct engine *g, struct tenant_queue *s);
/* queue r with its tenant, whose queue must have room */
void wait_add(struct engine *g, struct request *r);
void wait_remove(struct engine *g, struct request *r);
/* charge the last n tokens of r, which were computed */
void tenant_charge(struct engine *g, struct request *r, int n);
/* update the tenants' counts; called before a step is planned */
void tenants_settle(struct engine *g);
int tenant_goes_before(const struct request *a, const struct request *b);
/* the waiting request to admit next; NULL: none waits */
struct request *tenant_next(const struct engine *g);
/* index of the running request to preempt for r, or -1 */
int tenant_yields(const struct engine *g, const struct request *r);
/* Returns 1 if r, which lacks `missing` blocks, would get them and a place among the running
 * requests if all requests that tenant_yields() returns were preempted. */
int tenant_would_fit(struct engine *g, const struct request *r, int missing);
/* Returns the index of the running request to preempt when blocks run out: of the tenant with most
 * running requests, the last in turn. */
int tenant_of_most(const struct engine *g);
/* Refuse `missing` waiting requests of other tenants, so that the queue has space for n new
 * requests of `own`.  A tenant loses requests only while it has more of them in the queue than
 * `own` would then have.  Returns 1; 0 if that does not free enough space. */
int tenant_make_room(struct engine *g, const struct tenant_queue *own, int n, int missing);

/* ---- engine_plan.c ---- */
int decodes(const struct request *r);
/* Admit waiting requests, and choose the number of tokens of each request in this step. */
void plan_step(struct engine *g);
/* Fill items and batched from the plan; returns their number. */
int plan_batch(struct engine *g);
void pace_init(struct pace *p);
void pace_learn(struct engine *g, uint64_t step_ns);
/* Returns the measured time, in ns, of a step in which n requests decode; if that was not measured,
 * the time of the nearest measured number of requests; 0: unknown. */
float pace_alone(const struct engine *g, int n);
int enters_prefixes(const struct engine *g, const struct request *r);
/* Number of the first tokens of r whose keys and values other requests can use: all or, with pages,
 * those that do not choose any. */
int prefix_limit(const struct engine *g, const struct request *r);
/* Most tokens of r that can be a known prefix.  The last token is always computed, because its
 * logits are needed. */
int prefix_most(const struct engine *g, const struct request *r);
/* Enter the full blocks of r so far, up to prefix_limit(), into the prefix tree. */
void enter_prefix(struct engine *g, struct request *r);
void copy_state(struct engine *g, int from, int to);
/* config_long_from(); 0: never, or no token attends to that many because of a window. */
int long_rope_from(const struct engine *g);

/* Whether a waiting request could start now if there were blocks for it. */
int may_admit(const struct engine *g);

/* ---- engine_lookahead.c ---- */
/* Plan and compute a step.  Returns the number of its items, whose rows are to be delivered; 0 if
 * there is nothing to do; -1 with *e if the backend failed. */
int lookahead_run(struct engine *g, struct err *e);
/* Discard the rows of r, which ends, in the steps that are in flight. */
void lookahead_forget(struct engine *g, const struct request *r);

/* ---- engine_masks.c ---- */
/* start computing the masks that the step of these items needs */
void masks_begin(struct engine *g, int n_items);
/* wait a little for masks that do not take long */
void masks_end(struct engine *g);
/* 1: the mask is ready (or the constraint failed); 0: a thread computes it. */
int masks_ready(struct engine *g, struct request *r);
/* Pass r's last token to its constraint, and get forced tokens if none are left.  Returns 1 if that
 * is done, 0 if another thread does it. */
int masks_advance(struct engine *g, struct request *r);
/* Every running request is late: wait, some milliseconds at most, until one's work is done. */
void masks_wait(struct engine *g);
void masks_forget(struct engine *g, struct request *r); /* r is about to be freed */
void masks_close(struct masks *m);                      /* before the requests are freed; NULL is fine */

/* ---- engine_embed.c ---- */
/* Compute the vector that the model makes of pooled states (with EMBED_MEAN `pooled` is their sum
 * over n_tokens).  *out points into work, which has embed_work() floats.  Returns the number of
 * elements; -1 if an element is not finite, or if a vector to be normalized has length 0. */
int embed_finish(const struct model *m, enum embed pooling, int n_tokens, const float *pooled, float *work,
                 struct err *e, const float **out);
size_t embed_work(const struct config *c);

/* ---- engine_draft.c ---- */
void draft_policy_init(struct engine *g);
/* Whether no request has drafts because too many decode. */
int draft_is_full(const struct engine *g, int n_decoding);
int draft_init(struct engine *g, struct request *r, const struct draft_params *p, struct err *e);
void draft_release(struct request *r);
/* Append a draft of r's next tokens to its ids for a step in which n_decoding requests decode.
 * Returns the number of drafted tokens, at most `room`. */
int draft_plan(struct engine *g, struct request *r, int n_decoding, int room);
void draft_drop(struct engine *g, struct request *r);   /* the step has no room for the planned draft */
/* Copy r's state before a step with a draft; -1: there is no place for it. */
int draft_save_state(struct engine *g, struct request *r);
void draft_return_state(struct request *r);             /* restore r's state from the copy */
/* update acceptance rates with id, which was chosen where a guess was made but not used */
void draft_observe(struct engine *g, struct request *r, int32_t id);
/* Choose tokens from the rows of an item with a draft, until one differs from the draft or no
 * row is left. */
void draft_deliver(struct engine *g, int item, float *logits);

/* The guess of r's drafter; no tokens if it has none, or too many requests decode. */
void draft_by_text(const struct engine *g, struct request *r, int n_decoding, struct draft *out);
/* Returns the number of tokens that a draft of this grade should have if making each takes guess_ns
 * before the step; -1 if the step has no space for any.  *rate: expected number of tokens in the
 * time that one token takes without a draft. */
int draft_length(const struct engine *g, const struct request *r, int grade, int n_decoding, int room,
                 float guess_ns, float *rate);

/* ---- engine_draft_model.c; without a draft model they do nothing ---- */
int draft_model_open(struct engine *g, const struct engine_options *o, const struct backend_options *bo,
                     struct err *e);
void draft_model_close(struct engine *g);
/* bytes of the draft model's memory */
size_t draft_model_bytes(const struct engine *g);
void draft_model_trim(struct engine *g);
/* let the draft model make r's drafts */
int draft_model_init(struct engine *g, struct request *r, struct err *e);
void draft_model_release(struct engine *g, struct request *r);  /* like request_release(), but keeps r's prefix */
void draft_model_free(struct engine *g, struct request *r);
/* Returns the memory for the final states of r's tokens in a step, after those of n other tokens;
 * NULL if r's drafts are made without states.  *aux: the states are auxiliary ones. */
float *draft_model_rows(const struct engine *g, const struct request *r, int n, int *aux);
/* Fill in the drafts of running requests, and compute at most `chunk` tokens of their prompts. */
void draft_model_guess(struct engine *g, int n_decoding, int chunk);
uint64_t draft_model_spent(const struct engine *g);             /* nanoseconds, before this step */

/* ---- engine_predictor_disk.c ---- */
/* Open the folder for a predictor's entries, too, if there is one; o: the options for the model. */
int predictor_disk_open(struct engine *g, const struct disk_options *o, struct err *e);

/* ---- engine_disk.c ---- */
int prefixes_open(struct engine *g, const struct engine_options *o, const struct backend_options *bo, struct err *e);
/* Load the part of r's prefix that the folder has into the prefix tree; done once per request. */
void prefixes_load(struct engine *g, struct request *r);
/* Whether the part of r's prefix that is in the folder should be read.  Always, unless r was
 * preempted and, as measured so far, computing its tokens again takes less time than reading
 * them. */
int prefixes_pay(struct engine *g, const struct request *r);
/* Queue complete runs of r's tokens that the folder may lack. */
void prefixes_save(struct engine *g, struct request *r);
/* queue its recurrent state, if its last token is the end of a run */
void prefixes_save_state(struct engine *g, struct request *r);
/* Queue the partial last run as well; call it before r's blocks are released. */
void prefixes_save_end(struct engine *g, struct request *r);

/* ---- engine_deliver.c ---- */
void deliver_row(struct engine *g, struct request *r, float *logits);  /* choose r's next token; r may be gone */
void deliver_step(struct engine *g, int n_items);
/* Count n more tokens of r whose keys, values and state are computed, and add them to the prefix
 * tree. */
void step_computed(struct engine *g, struct request *r, int n);
/* continue requests whose constraint has become ready */
void deliver_late(struct engine *g);

#endif

/* engine.h - requests in, tokens out: the scheduler and the step that zse-chat, zse-bench and
 * zse-serve all drive.
 *
 * One thread calls everything here.  Each engine_step() makes one ragged batch of all running
 * requests (decoding ones first, then prompts in chunks), runs it on the backend, samples, and
 * calls each request's callback.  Requests join and leave between steps.  Under contention tenants
 * get equal throughput, however many requests each has (engine_tenant.c).  A request's output
 * depends neither on the others nor on chunks, preemption or the prefix cache. */
#ifndef ZSE_ENGINE_ENGINE_H
#define ZSE_ENGINE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/backend.h"
#include "libcommon/engine/constraint.h"
#include "libcommon/engine/draft.h"
#include "libcommon/engine/sampler.h"
#include "libcommon/model/model.h"
#include "libcommon/token/tokenizer.h"

enum {
    ENGINE_SNAPSHOTS = 8,               /* default of engine_options.snapshots */
    ENGINE_DRAFT_STATES = 4,            /* most sequences with recurrent layers that have drafts in one step */
    ENGINE_MOST_SINKS = 256,
};

struct engine_options {
    const struct backend *backend;  /* NULL: backend_cpu */
    int n_threads;
    struct kv_types kv;
    int max_len;                    /* tokens a sequence may reach; 0: the model's max_len, at most 8192 */
    int max_seqs;                   /* requests that run together; 0: 1 */
    int max_tokens;                 /* tokens of one step; 0: the backend's step_tokens() */
    int max_waiting;                /* requests that wait for their turn; 0: any number */
    int no_prefix_cache;            /* every prompt is computed from its first token */
    int exact;
    const char *kernels;
    /* of backend_options */
    int device, debug_sync, device_layers, strict, wgmma, no_graphs, act_int8, cache_weights;
    size_t max_device;
    /* Models with recurrent layers: a sequence's beginning is reused from snapshots of its state
     * only: behind its last token when it ended or was preempted, and behind every so many
     * tokens.  A snapshot takes config_state_bytes(); with no_prefix_cache there are none. */
    int snapshots, snapshot_every;  /* 0: ENGINE_SNAPSHOTS, 512; snapshot_every a multiple of 16 */
    /* Each token sees the newest `window` tokens, at least KV_BLOCK, and the first `sinks`, at most
     * `window` and ENGINE_MOST_SINKS; max_len may exceed the model's.  0: as the model has it. */
    int window, sinks;
    size_t kv_bytes;                /* 0: enough for max_seqs x max_len */
    size_t max_weights;             /* bytes of the model's file that may be resident, see residency.h; 0: any */
    /* guesses next tokens, so that a step makes several (engine_draft.c); no answer depends on it.
     * Not used where engine_no_drafts() says why.  NULL: only for requests that ask for one */
    const struct drafter *drafter;
    /* Prefixes are also kept in this folder (cache/disk.h), of at most so many bytes, 0: 10 GB;
     * NULL: in memory only.  Refused where the backend cannot; without effect for models that make
     * vectors of texts, and with no_prefix_cache. */
    const char *prefix_folder; uint64_t prefix_bytes;
    /* called from another thread when the folder begins to fail; NULL: not wanted */
    void (*prefix_note)(void *user, const char *text);
    void *prefix_user;
    int draft;                      /* as engine_limits.draft, at first; 0 to DRAFT_MOST */
    /* Makes the drafts of requests that name no drafter: another model, borrowed, which
     * engine_check_draft_model() accepts; or the first draft_layers layers of the model itself,
     * which engine_no_draft_layers() accepts.  NULL, 0: neither */
    const struct model *draft_model; int draft_layers;
};

/* Why no drafter can be used, static; NULL: one can. */
const char *engine_no_drafts(const struct model *m, const struct engine_options *o);

/* Whether this model can make drafts: it has no recurrent layers, and its tokenizer has the same
 * tokens as the model's.  -1 with *e: the first difference. */
int engine_check_draft_model(const struct model *draft, const struct tokenizer *model_tokenizer,
                             const struct tokenizer *draft_tokenizer, struct err *e);
/* Why the first n layers of a model cannot make drafts, static; NULL: they can. */
const char *engine_no_draft_layers(const struct config *c, const struct engine_options *o, int n);

/* Number of states that the engine takes for models with recurrent layers: of sequences that run,
 * of snapshots, of drafts. 0: the model has none. */
int engine_n_states(const struct config *c, const struct engine_options *o);

/* Bytes of keys and values for n_seqs sequences of full length, max_seqs of them or fewer: those of
 * layers with a window only as far as windows, steps and kept prefixes need them.  0: the options
 * are refused by engine_open. */
uint64_t engine_kv_needs(const struct config *c, const struct engine_options *o, int n_seqs);

/* The options that engine_open gives the backend, for memory planning. */
int engine_backend_options(const struct model *m, const struct engine_options *o, struct backend_options *b,
                           struct err *e);

struct engine;
/* engine_no_drafts() of an open engine; any thread. */
const char *engine_drafts(const struct engine *g);
/* Whether requests have drafts that do not say so; any thread. */
int engine_has_drafter(const struct engine *g);
int engine_has_draft_model(const struct engine *g);                 /* or layers that make drafts; any thread */
/* tokenizer may be NULL when no stop strings are used and no text is asked for. model and
 * tokenizer are borrowed. */
struct engine *engine_open(const struct model *m, const struct tokenizer *t, const struct engine_options *o,
                           struct err *e);
void engine_close(struct engine *g);        /* frees remaining requests without a last callback */

/* At run time; takes effect with the next step. */
struct engine_limits {
    int max_running;                /* 1 to max_seqs of the options */
    /* most prompt tokens of a step while answers run (INT_MAX: as many as a step holds); 0: chosen
     * by measured time, so that answers keep their pace */
    int chunk;
    int max_waiting;                /* 0: any number */
    /* tokens of each draft, where there is room for them; 0: chosen by measured time and by how
     * often drafts were right */
    int draft;
};
int engine_set_limits(struct engine *g, const struct engine_limits *l, struct err *e);
void engine_limits(const struct engine *g, struct engine_limits *l);

enum finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR, FINISH_DEADLINE,
              FINISH_REFUSED };

/* The argument of a callback.  All pointers are borrowed for the call. */
struct token_event {
    int32_t id;                         /* -1: no token belongs to this call */
    /* text that is final; may be empty (always without a tokenizer, and for prompt tokens) */
    const char *text; size_t size;
    enum finish finish;                 /* not FINISH_NONE: the last call */
    /* with FINISH_STOP: number (from 1) of the stop string found; 0: the model ended its answer */
    int stop;
    const struct err *error;            /* with FINISH_ERROR, FINISH_REFUSED */
    /* With n_logprobs >= 0, else 0 and NULL: natural logarithms of the model's own distribution
     * at this position, before bias, penalties, constraint and temperature.  top: the n_top
     * most likely tokens in descending order, ties by lower id; the chosen one may be missing. */
    float logprob;
    const struct top_logprob *top; int n_top;
    /* prompt_logprobs: id is a token of the prompt (its first has no logprob: NAN, n_top 0) */
    int is_prompt;
    /* with `embed`, in the last call: config_embedding_size() values, of length 1 unless the model
     * does not normalize */
    const float *embedding; int n_embedding;
};

enum { MAX_PRIORITY = 1000, AGEING_S = 10, MAX_STOP_IDS = 128 };

struct request_params {
    const int32_t *ids; int n_ids;              /* the prompt; copied */
    struct sampling sampling;
    int max_tokens;                             /* of the answer; 0: until the context is full */
    /* stop strings: end the answer, are not part of it, may span tokens; copied */
    const char *const *stop; int n_stop;
    int keep_special;                           /* special tokens are part of the text */
    int ignore_eos;
    /* ids that end the answer as an EOS does, even with ignore_eos; copied */
    const int32_t *stop_ids; int n_stop_ids;            /* at most MAX_STOP_IDS */
    /* Nothing ends the answer before it has this many tokens: neither an EOS nor a stop id is
     * chosen (unless the constraint allows nothing else), and stop strings are not looked for. */
    int min_tokens;
    /* -1: none; 0 to MAX_TOP_LOGPROBS: of the chosen token, and of so many most likely ones */
    int n_logprobs;
    /* the same for each token of the prompt, before the answer's first; needs n_logprobs >= 0,
     * and computes the whole prompt */
    int prompt_logprobs;
    /* no answer: the final hidden states, pooled, through the model's dense layers if it has some,
     * and scaled to length 1 (unless config.embedding says otherwise) */
    enum embed embed;
    int second;                                 /* of a pair for a cross-encoder: first token of its second text */
    /* any number: requests with the same number belong to one tenant, and tenants get equal
     * throughput */
    uint64_t tenant;
    /* Prefixes are reused only among requests of the same scope, in memory and on disk: how long a
     * prompt takes tells one scope nothing of another.  0: that of all requests without one */
    uint64_t scope;
    /* -MAX_PRIORITY to MAX_PRIORITY: higher first among requests of a tenant.  AGEING_S seconds
     * of waiting count as one more, so that nothing starves.  Below 0 it also lets other tenants
     * go first, for a while */
    int priority;
    /* an int, 0 at first, shared by requests that are useless without each other; the engine writes
     * it until the last of them ends.  Once one of them has reported something, none of them is
     * refused any more.  NULL: the request is alone */
    int *heard;
    uint64_t deadline_ns;                       /* clock_ns() at which it ends with FINISH_DEADLINE; 0: none */
    struct draft_params draft;
    const struct constraint *constraint;        /* NULL: none; ownership: constraint.h */
    /* Called from engine_step for every token.  An EOS has no text of its own; the last call
     * also has the text held back because a stop string could have begun with it.  It may
     * call engine_submit and engine_cancel, not engine_step or engine_close. */
    void (*on_token)(void *user, const struct token_event *ev);
    void *user;
    /* Several answers to one prompt, which is computed once.  Each is a request of its own:
     * callbacks, cancel and figures. */
    int n;                                      /* 0: 1 */
    void *const *users;                         /* [n] instead of user; NULL: user for all */
    const uint64_t *seeds;                      /* [n]; NULL: sampling.seed + i */
    struct request **requests;                  /* [n] filled in; may be NULL */
};

struct request;
/* Returns the first of its n requests.  Refused at once with ERR_LIMIT: an empty prompt, ids
 * outside the vocabulary, a prompt longer than max_len, parameters out of range, more than
 * max_waiting requests waiting, unless another tenant has more of them: then the last of those ends
 * within this call, with FINISH_REFUSED.  Refused with ERR_IO: the model's file has changed.  A
 * request belongs to the engine and is freed after its last callback. */
struct request *engine_submit(struct engine *g, const struct request_params *p, struct err *e);
/* Frees its KV blocks at once; the last callback (FINISH_CANCELLED) comes with the next
 * engine_step.  Not to be called after the last callback. */
void engine_cancel(struct engine *g, struct request *r);

/* One step. Returns the number of requests that run or wait (0: idle), -1 on a failure of the
 * backend or of the model's file (all running requests end with FINISH_ERROR). */
int engine_step(struct engine *g, struct err *e);

/* Checks that the model's file has not changed, as every step does: if the file was touched, all of
 * it is read and compared with its checksums.  -1: it has; nothing can be computed any more. */
int engine_check(struct engine *g, struct err *e);

/* Frees memory: evicts prefixes that no request uses, and returns the memory of blocks and states
 * that hold nothing. */
void engine_trim(struct engine *g);

struct request_stats {
    /* n_cached: tokens of the prompt that were not computed for this request */
    int n_prompt, n_cached, n_generated;
    int n_drafted, n_accepted;                      /* tokens drafted, and those of them that were right */
    /* of those, the ones that drafts took from draft_params.predicted: right and wrong ones */
    int n_predicted_right, n_predicted_wrong;
    double queue_s;                                 /* submit to start */
    double prefill_s, decode_s;                     /* start to first token, first to last */
    double first_token_s;                           /* since submit */
};
void request_stats(const struct request *r, struct request_stats *s);

enum { STEP_TIMES = 24 };

struct engine_stats {
    size_t kv_bytes, private_bytes, draft_bytes;        /* draft_bytes: those of private_bytes that a draft model has */
    /* n_cached_blocks: blocks with prefixes that no request uses, which can be evicted */
    int n_blocks, n_free_blocks, n_cached_blocks;
    /* the same of blocks that only layers with a window have; cached: that no request sees */
    int n_window_blocks, n_free_window_blocks, n_cached_window_blocks;
    int n_running, n_waiting, n_tenants;             /* n_tenants: tenants that have requests */
    /* running requests that skip steps until their constraint is ready */
    int n_late;
    int broken;                                     /* engine_check() said no */
    /* since engine_open */
    uint64_t steps, tokens;                         /* tokens computed */
    /* of requests with a first token: tokens of prompts, and those of them found in the cache */
    uint64_t prompt_tokens, cached_tokens;
    uint64_t generated_tokens;
    /* files of the folder of prefixes: read, written, removed because they were damaged; that could
     * not be written */
    uint64_t disk_read, disk_written, disk_damaged, disk_failed;
    uint64_t drafted, accepted;         /* tokens of drafts that steps computed, and those that were right */
    /* submitted; ended by stop or length, by cancel or deadline, by an error */
    uint64_t requests, finished, cancelled, failed;
    /* requests sent back to wait, prefix blocks evicted, blocks copied before a write */
    uint64_t preemptions, evictions, copies;
    /* times that a request skipped steps because its constraint was not ready */
    uint64_t late;
    /* times that the model's file was touched and found unchanged */
    uint64_t touched;
    uint64_t step_ns;                               /* all steps together */
    /* steps shorter than 2^i us (and not shorter than 2^(i-1)); the last: all longer ones */
    uint64_t step_times[STEP_TIMES];
    const char *backend;
    struct backend_device device;
};
void engine_stats(const struct engine *g, struct engine_stats *s);

/* Computes the logits after each of ids, in chunks, as a fresh sequence: for zse-bench logits,
 * perplexity, quality.  logits [n_ids - from][vocab_size]: of positions >= from. */
int engine_logits(struct engine *g, const int32_t *ids, int n_ids, int from, float *logits, struct err *e);

#endif

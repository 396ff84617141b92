/* engine.h - requests in, tokens out: the scheduler and the step that zse-chat, zse-bench and
 * zse-serve all drive.
 *
 * One thread calls everything here.  Each engine_step() makes one ragged batch of all running
 * requests (decoding ones first, then prompts in chunks), runs it on the backend, samples, and
 * calls each request's callback.  Requests join and leave between steps.  Under contention tenants
 * get equal throughput, however many requests each has (engine_tenant.c).  A request's output is
 * independent of other requests, of chunks, of preemption and of the prefix cache. */
#ifndef ZSE_ENGINE_ENGINE_H
#define ZSE_ENGINE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/backend.h"
#include "libcommon/engine/constraint.h"
#include "libcommon/engine/draft.h"
#include "libcommon/engine/sampler.h"
#include "libcommon/model/lora.h"
#include "libcommon/model/medusa.h"
#include "libcommon/model/model.h"
#include "libcommon/token/tokenizer.h"

enum {
    ENGINE_SNAPSHOTS = 8,               /* default of engine_options.snapshots */
    /* most sequences with recurrent layers that have drafts in one step */
    ENGINE_DRAFT_STATES = 4,
    /* most tokens of a draft by a layer that predicts further tokens: the layer was trained to
     * predict one, and its later guesses are right less often */
    ENGINE_PREDICTED_MOST = 3,
    ENGINE_MOST_SINKS = 256,
    ENGINE_MOST_PAGES = 1 << 16,
    /* states of a request that a layer that predicts further tokens has yet to read */
    ENGINE_KEPT_STATES = 16,
};

struct engine_options {
    const struct backend *backend;  /* NULL: backend_cpu */
    int n_threads;
    struct kv_types kv;
    /* most tokens of a sequence; 0: the model's max_len, at most 8192 */
    int max_len;
    int max_seqs;                   /* most requests that run at the same time; 0: 1 */
    int max_tokens;                 /* most tokens of one step; 0: the backend's step_tokens() */
    int max_waiting;                /* most requests that wait; 0: no limit */
    int no_prefix_cache;            /* compute every prompt from its first token */
    int exact;
    const char *kernels;
    /* see backend_options */
    const struct step_watch *watch;
    int device, debug_sync, device_layers, moe, gpu_experts, strict, wgmma, no_graphs, act_codes,
        cache_weights, no_dependent_launches, one_launch;
    int prefill_threshold, no_gpu_prefill, expert_uploads;
    int layer_stream, stream_window, stream_prefetch, stream_sequential;
    size_t max_device;
    struct backend_gpus gpus;
    /* Models with recurrent layers: a prefix is reused only up to a snapshot of the state.
     * Snapshots are taken every snapshot_every tokens, and after the last token when a sequence
     * ends or is preempted.  A snapshot takes config_state_bytes(); with no_prefix_cache
     * there are none. */
    int snapshots, snapshot_every;  /* 0: ENGINE_SNAPSHOTS, 512; snapshot_every a multiple of 16 */
    /* Each token attends to the newest `window` tokens (at least KV_BLOCK) and the first `sinks`
     * tokens (at most `window` and ENGINE_MOST_SINKS), and max_len may exceed the model's.  window
     * 0: the model's own windows. */
    int window, sinks;
    /* Number of pages of 16 tokens that a token of an answer attends to in layers without a window,
     * besides the first and the newest tokens (cpu_pages.c).  A multiple of 4; cannot be combined
     * with `window`.  0: all pages.  Tokens of a prompt attend to all pages, but not those of
     * engine_logits(). */
    int pages;
    /* Tokens attend by this pattern in layers without a window; see backend_options.  Cannot be
     * combined with `window` and `pages`. */
    struct sparse_pattern pattern;
    size_t kv_bytes;                /* 0: enough for max_seqs x max_len */
    /* most bytes of the model's file that may be resident, see residency.h; 0: no limit */
    size_t max_weights;
    /* Drafter of the requests that name no drafter themselves (engine_draft.c); answers do not
     * depend on it.  Unused if engine_no_drafts() returns a reason.  NULL: such requests have no
     * drafts. */
    const struct drafter *drafter;
    /* Folder that keeps prefixes on disk as well (cache/disk.h), and its largest size in bytes, 0:
     * 10 GB; NULL: prefixes are kept in memory only.  Refused if the backend cannot save blocks;
     * without effect for embedding models and with no_prefix_cache. */
    const char *prefix_folder; uint64_t prefix_bytes;
    /* called from another thread when the folder begins to fail; may be NULL */
    void (*prefix_note)(void *user, const char *text);
    void *prefix_user;
    int draft;                      /* initial engine_limits.draft, 0 to DRAFT_MOST */
    /* Drafts of requests that name no drafter are made by another model (borrowed), which
     * engine_check_draft_model() accepts, or by the first draft_layers layers of the model itself,
     * which engine_check_draft_layers() accepts.  NULL, 0: by neither. */
    const struct model *draft_model; int draft_layers;
    /* Make drafts with the model's layer that predicts further tokens, which
     * engine_check_predictor() accepts; draft_model and draft_layers are then ignored. */
    int predictor;
    /* Make drafts with these heads (borrowed), which engine_check_medusa() accepts; draft_model,
     * draft_layers and predictor are then ignored. */
    const struct medusa *medusa;
    /* Make drafts with these EAGLE heads (borrowed), which engine_check_eagle() accepts;
     * draft_model, draft_layers, predictor and medusa are then ignored. */
    const struct eagle *eagle;
    /* Draw tokens so that as many drafted tokens as possible are accepted (sampler_verify()).  The
     * distribution of an answer stays the same, but its tokens depend on drafts.  Without effect on
     * greedy requests, and on drafts of `drafter`: for these an exact comparison accepts as
     * many. */
    int draft_distribution;
};

/* The reason why no drafter can be used, static; NULL: one can. */
const char *engine_no_drafts(const struct model *m, const struct engine_options *o);

/* Check that a model can make drafts: it has no recurrent layers, and its tokenizer has the same
 * tokens as the main model's.  Returns 0; -1 with *e, which names the first difference. */
int engine_check_draft_model(const struct model *draft, const struct tokenizer *model_tokenizer,
                             const struct tokenizer *draft_tokenizer, struct err *e);
/* Of several GPUs, a draft model runs on the last one alone, beside the model's last layers. */
void engine_draft_device(struct backend_gpus *gpus, int *device);
/* Check that the first n layers of a model can make drafts.  -1 with *e: the reason why not. */
int engine_check_draft_layers(const struct config *c, const struct engine_options *o, int n, struct err *e);

/* Check that the model's layer that predicts further tokens can make drafts.  -1 with *e. */
int engine_check_predictor(const struct model *m, const struct engine_options *o, struct err *e);

/* Check that these heads belong to a model of this configuration and can make drafts.  Returns 0;
 * -1 with *e. */
int engine_check_medusa(const struct medusa *h, const struct config *c, const struct engine_options *o, struct err *e);

/* engine_check_medusa() for EAGLE heads. */
int engine_check_eagle(const struct eagle *g, const struct model *m, const struct engine_options *o, struct err *e);

/* Returns the number of recurrent states that the engine allocates, for running sequences,
 * snapshots and drafts; 0 if the model has no recurrent layers. */
int engine_n_states(const struct config *c, const struct engine_options *o);

/* Returns the bytes of keys and values for n_seqs <= max_seqs sequences of full length; 0 if
 * engine_open() would refuse the options.  Layers with a window store only their windows, the
 * tokens of a step and kept prefixes. */
uint64_t engine_kv_needs(const struct config *c, const struct engine_options *o, int n_seqs);

/* Compute the options that engine_open() would pass to the backend, for memory planning. */
int engine_backend_options(const struct model *m, const struct engine_options *o, struct backend_options *b,
                           struct err *e);

struct engine;
/* engine_no_drafts() of an open engine.  Any thread may call it. */
const char *engine_drafts(const struct engine *g);
/* Whether requests with DRAFT_DEFAULT have drafts.  Any thread may call it. */
int engine_has_drafter(const struct engine *g);
/* Whether the engine has a draft model, draft layers or heads.  Any thread may call it. */
int engine_has_draft_model(const struct engine *g);
/* Whether draft_distribution was set when it was opened, and has an effect.  Any thread may call
 * it. */
int engine_draws_by_distribution(const struct engine *g);
/* Make an engine; NULL with *e.  m and t are borrowed until engine_close().  t may be NULL; then
 * requests have no text and no stop strings. */
struct engine *engine_open(const struct model *m, const struct tokenizer *t, const struct engine_options *o,
                           struct err *e);
void engine_close(struct engine *g);        /* frees remaining requests without a last callback */

/* Limits that can change at run time, from the next step on. */
struct engine_limits {
    int max_running;                /* 1 to max_seqs of the options */
    /* most prompt tokens of a step that also decodes answers (INT_MAX: as many as fit); 0: chosen
     * from measured times, so that answers keep their pace */
    int chunk;
    int max_waiting;                /* 0: no limit */
    /* most tokens of a step, unless more requests than that decode; 0: engine_options.max_tokens.
     * Encoders ignore it, because they compute a sequence as a whole. */
    int max_tokens;
    /* tokens of each draft, or fewer if a step has no space for them; 0: chosen from measured times
     * and acceptance rates */
    int draft;
};
int engine_set_limits(struct engine *g, const struct engine_limits *l, struct err *e);
void engine_limits(const struct engine *g, struct engine_limits *l);

enum finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR, FINISH_DEADLINE,
              FINISH_REFUSED };

/* The argument of a callback.  All pointers are borrowed for the call. */
struct token_event {
    int32_t id;                         /* -1: this call has no token */
    /* text that is final; may be empty (always without a tokenizer, and for prompt tokens) */
    const char *text; size_t size;
    enum finish finish;                 /* FINISH_NONE until the last call */
    /* with FINISH_STOP: number (from 1) of the stop string found; 0: an EOS or a stop id */
    int stop;
    const struct err *error;            /* with FINISH_ERROR, FINISH_REFUSED */
    /* With n_logprobs >= 0, otherwise 0 and NULL: natural logarithms of probabilities in the
     * model's own distribution at this position, before bias, penalties, constraint and
     * temperature.  top: the n_top most likely tokens in descending order, ties by lower id; the
     * chosen token need not be among them. */
    float logprob;
    const struct top_logprob *top; int n_top;
    /* prompt_logprobs: id is a token of the prompt (the first has no logprob: NAN, n_top 0) */
    int is_prompt;
    /* with `embed`, in the last call: a vector of config_embedding_size() elements; its length is 1
     * unless the model does not normalize */
    const float *embedding; int n_embedding;
};

enum { MAX_PRIORITY = 1000, AGEING_S = 10, MAX_STOP_IDS = 128 };

struct request_params {
    const int32_t *ids; int n_ids;              /* the prompt; copied */
    struct sampling sampling;
    int max_tokens;                             /* most tokens of the answer; 0: until the context is full */
    /* stop strings: they end the answer, are not part of it and may span tokens; copied */
    const char *const *stop; int n_stop;
    int keep_special;                           /* special tokens are part of the text */
    int ignore_eos;
    /* ids that end the answer as an EOS does, even with ignore_eos; copied */
    const int32_t *stop_ids; int n_stop_ids;            /* at most MAX_STOP_IDS */
    /* The answer has at least this many tokens: before that neither an EOS nor a stop id is chosen
     * (unless the constraint allows nothing else), and stop strings are ignored. */
    int min_tokens;
    /* -1: no log probabilities; n from 0 to MAX_TOP_LOGPROBS: those of the chosen token and of the
     * n most likely tokens */
    int n_logprobs;
    /* report log probabilities of the prompt's tokens, too, before the answer; needs n_logprobs >=
     * 0, and computes the whole prompt without the prefix cache */
    int prompt_logprobs;
    /* return a vector instead of an answer: the final hidden states, pooled, through the model's
     * dense layers if it has some, and scaled to length 1 (unless config.embedding says
     * otherwise) */
    enum embed embed;
    /* for cross-encoders: index of the first token of the second text */
    int second;
    /* number of the tenant: requests with the same number belong to one tenant, and tenants get
     * equal throughput */
    uint64_t tenant;
    /* Prefixes are reused only among requests of the same scope, in memory and on disk, so that the
     * time that a prompt takes reveals nothing about other scopes.  0: the common scope of all
     * requests that have none. */
    uint64_t scope;
    /* the LoRA adapter that computes the answer, by its number from 1 on (model/lora.h); 0: none.
     * Requests with different adapters share no prefixes. */
    int lora;
    /* -MAX_PRIORITY to MAX_PRIORITY: higher first among the requests of a tenant.  AGEING_S seconds
     * of waiting raise it by one, so that nothing starves.  Below 0 the request also yields to
     * other tenants, for a while. */
    int priority;
    /* A flag, 0 at first, shared by a group of requests that are useless without each other;
     * borrowed until the last of them ends.  Once one request of the group has called on_token, no
     * request of the group is refused any more.  NULL: the request belongs to no group. */
    int *reported;
    uint64_t deadline_ns;                       /* clock_ns() at which it ends with FINISH_DEADLINE; 0: none */
    struct draft_params draft;
    const struct constraint *constraint;        /* NULL: none; ownership: constraint.h */
    /* Called from engine_step for every token.  An EOS has no text of its own; the last call also
     * has the text that was held back because a stop string could have started with it.  It may
     * call engine_submit and engine_cancel, not engine_step or engine_close. */
    void (*on_token)(void *user, const struct token_event *ev);
    void *user;
    /* Number of answers to the prompt, which is computed once.  Each answer is a request of its
     * own, with its own callbacks, cancellation and figures. */
    int n;                                      /* 0: 1 */
    void *const *users;                         /* [n] instead of user; NULL: user for all */
    const uint64_t *seeds;                      /* [n]; NULL: sampling.seed + i */
    struct request **requests;                  /* output, [n]; may be NULL */
};

struct request;
/* Submit p->n requests, and return the first.  A request belongs to the engine and is freed after
 * its last callback.
 *
 * Returns NULL with ERR_LIMIT for an empty prompt, ids outside the vocabulary, a prompt longer than
 * max_len, parameters out of range, or a full queue of max_waiting requests; NULL with ERR_IO if
 * the model's file has changed.  If the queue is full and another tenant has more requests in it,
 * that tenant's last request is refused instead: it ends within this call, with FINISH_REFUSED. */
struct request *engine_submit(struct engine *g, const struct request_params *p, struct err *e);
/* Cancel r.  Its KV blocks are freed immediately; its last callback (FINISH_CANCELLED) comes in the
 * next engine_step().  Must not be called after r's last callback. */
void engine_cancel(struct engine *g, struct request *r);

/* Run one step.  Returns the number of requests that run or wait (0: idle); -1 with *e if the
 * backend failed or the model's file has changed: all running requests then end with
 * FINISH_ERROR. */
int engine_step(struct engine *g, struct err *e);

/* Check that the model's file has not changed, as every step does.  If only its modification time
 * has changed, it is read completely and compared with its checksums.  Returns 0; -1 with *e if the
 * contents have changed: all later requests then fail. */
int engine_check(struct engine *g, struct err *e);

/* Free memory: evict prefixes that no request uses, and return the memory of unused blocks and
 * states to the system. */
void engine_trim(struct engine *g);

struct request_stats {
    /* n_cached: tokens of the prompt that were taken from the prefix cache */
    int n_prompt, n_cached, n_generated;
    /* tokens drafted, and how many of them were right */
    int n_drafted, n_accepted;
    /* tokens drafted from draft_params.predicted: right ones and wrong ones */
    int n_predicted_right, n_predicted_wrong;
    double queue_s;                                 /* seconds from submit to start */
    /* seconds from start to first token, and from first to last */
    double prefill_s, decode_s;
    double first_token_s;                           /* seconds from submit */
};
void request_stats(const struct request *r, struct request_stats *s);

enum { STEP_TIMES = 24 };

enum { LORA_WORDS = MOST_LORAS / 64 };
struct engine_stats {
    /* draft_bytes: the draft model's part of private_bytes */
    size_t kv_bytes, private_bytes, draft_bytes;
    /* n_cached_blocks: blocks of unused prefixes, which can be evicted */
    int n_blocks, n_free_blocks, n_cached_blocks;
    /* The same numbers for separate window blocks.  n_cached_window_blocks: blocks that no request
     * attends to. */
    int n_window_blocks, n_free_window_blocks, n_cached_window_blocks;
    int n_running, n_waiting, n_tenants;             /* n_tenants: tenants that have requests */
    /* running requests that skip steps until their constraint is ready */
    int n_late;
    int broken;                                     /* engine_check() has failed */
    int max_tokens;                                 /* tokens of a step for which memory was allocated */
    /* bit i - 1: running requests, or waiting ones, use the LoRA adapter with number i */
    uint64_t loras_running[LORA_WORDS], loras_waiting[LORA_WORDS];
    /* counts since engine_open */
    uint64_t steps, tokens;                         /* tokens: number of tokens computed */
    /* tokens of prompts whose first token was made, and how many of them came from the prefix
     * cache */
    uint64_t prompt_tokens, cached_tokens;
    uint64_t generated_tokens;
    /* files of the prefix folder: number read, number written, number removed because they were
     * damaged; number of failed writes */
    uint64_t disk_read, disk_written, disk_damaged, disk_failed;
    /* drafted tokens that steps computed, and how many of them were right */
    uint64_t drafted, accepted;
    /* requests submitted; ended by stop or length; by cancel or deadline; by an error or refusal */
    uint64_t requests, finished, cancelled, failed;
    /* requests preempted, prefix blocks evicted, blocks copied on write */
    uint64_t preemptions, evictions, copies;
    /* tokens of preempted requests that were read from the prefix folder, and that were computed
     * again; the others were still in memory */
    uint64_t resumed_read, resumed_computed;
    /* number of times that a request skipped steps because its constraint was not ready */
    uint64_t late;
    /* number of times that the model's file was touched but its contents had not changed */
    uint64_t touched;
    uint64_t step_ns;                               /* time of all steps together */
    /* element i: number of steps of at least 2^(i-1) and less than 2^i us; the last element: of all
     * longer ones */
    uint64_t step_times[STEP_TIMES];
    const char *backend;
    struct backend_device device;
};
void engine_stats(const struct engine *g, struct engine_stats *s);
/* Update only n_running, n_waiting, n_tenants and requests of *s. */
void engine_count_requests(const struct engine *g, struct engine_stats *s);
/* Call planned(user) in each step, after requests were admitted and before the backend computes. */
void engine_watch_plan(struct engine *g, void (*planned)(void *user), void *user);

/* Callbacks that report changes of the prefix cache, called by the engine's thread.  stored,
 * removed: as in struct kv_watch; lora: name of the adapter that computed the block, NULL: none.
 * stepped: after each step and engine_trim. */
struct engine_watch {
    void (*stored)(void *user, uint64_t hash, uint64_t parent, const int32_t *token, const char *lora);
    void (*removed)(void *user, uint64_t hash);
    void (*stepped)(void *user);
    void *user;
};
void engine_watch_blocks(struct engine *g, const struct engine_watch *w);      /* before the first request */

/* Put a bound adapter (model/lora.h) into the engine's model under an unused number, or, with b
 * NULL, remove the one that has the number and that no request uses.  m: the model that
 * engine_open() was given.  Takes b over, also if it fails.  0; -1 with *e. */
int engine_set_lora(struct engine *g, struct model *m, int number, struct lora_bound *b, struct err *e);

/* Compute the logits after each of ids, in chunks, as a new sequence: for zse-bench logits,
 * perplexity and quality.  logits: output, [n_ids - from][vocab_size], for the positions >= from;
 * with pages, tokens before them attend to all tokens, as a prompt does.
 * Returns 0; -1 with *e. */
int engine_logits(struct engine *g, const int32_t *ids, int n_ids, int from, float *logits, struct err *e);
/* engine_logits() twice, for an engine with pages: exact receives the logits of tokens that attend
 * to all tokens, paged those of tokens >= from that attend to pages.  The tokens before them are
 * computed once. */
int engine_logits_twice(struct engine *g, const int32_t *ids, int n_ids, int from, float *exact, float *paged,
                        struct err *e);

/* engine_logits() for a sequence whose logits are too many to keep.  It calls rows(user, pos, n,
 * logits) with the logits after the n tokens from pos on, which are valid during that call; if
 * rows() does not return 0, engine_scan() ends.  Returns 0; -1 with *e, or what rows() returned. */
typedef int (*engine_rows)(void *user, int pos, int n, const float *logits);
int engine_scan(struct engine *g, const int32_t *ids, int n_ids, engine_rows rows, void *user, struct err *e);

#endif

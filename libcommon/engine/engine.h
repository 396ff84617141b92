/* engine.h - requests in, tokens out: the scheduler and the step that zse-chat, zse-bench and zse-serve all drive.
 *
 * One thread calls engine_step(); each step makes one ragged batch of all running requests (decoding ones first, then prompts in chunks), runs it on the
 * backend, samples, and tells each request's callback.  Requests join and leave between steps.  A request's output does not depend on the others. */
#ifndef ZSE_ENGINE_ENGINE_H
#define ZSE_ENGINE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/backend.h"
#include "libcommon/engine/sampler.h"
#include "libcommon/model/model.h"
#include "libcommon/token/tokenizer.h"

struct engine_options {
    const struct backend *backend;  /* NULL: backend_cpu */
    int n_threads;
    enum kv_type kv_type;
    int max_len;                    /* tokens a sequence may reach; 0: the model's max_len, at most 8192 */
    int max_seqs;                   /* requests that run together; 0: 1 */
    int max_tokens;                 /* tokens of one step; 0: 512, or what 24 MB of activations allow */
    int exact;
    const char *kernels;
    size_t kv_bytes;                /* 0: enough for max_seqs x max_len */
};

struct engine;
/* tokenizer may be NULL when no stop strings are used and no text is asked for. model and tokenizer are borrowed. */
struct engine *engine_open(const struct model *m, const struct tokenizer *t, const struct engine_options *o, struct err *e);
void engine_close(struct engine *g);

enum finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };

struct request_params {
    const int32_t *ids; int n_ids;              /* the prompt; copied */
    struct sampling sampling;
    int max_tokens;                             /* of the answer; 0: until the context is full */
    const char *const *stop; int n_stop;        /* stop strings: end the answer, are not part of it, may span tokens; copied */
    int ignore_eos;
    /* Called from engine_step for every token: its text that became certain (may be empty; NULL tokenizer: always empty).
     * With finish != FINISH_NONE it is the last call; id is -1 when no token belongs to it. An EOS has no text of its own; the last call also
     * brings what was held back because a stop string could have begun with it. */
    void (*on_token)(void *user, int32_t id, const char *text, size_t size, enum finish finish, const struct err *error);
    void *user;
    int keep;                                   /* keep the sequence's KV after the end, so that a following request may begin with it (conversations) */
};

struct request;
/* Refused at once: empty prompt, ids outside the vocabulary, prompt longer than max_len, sampling out of range. The request belongs to the engine; it is freed after its last callback unless
 * keep is set, then by engine_forget. */
struct request *engine_submit(struct engine *g, const struct request_params *p, struct err *e);
/* A new request that continues `kept`: ids is the whole conversation; the longest common prefix with what kept holds is not computed again. Consumes kept; if it
 * is refused, kept stays. */
struct request *engine_continue(struct engine *g, struct request *kept, const struct request_params *p, struct err *e);
void engine_cancel(struct engine *g, struct request *r);
void engine_forget(struct engine *g, struct request *r);

/* One step. Returns the number of requests still running (0: idle), -1 on a failure of the backend (all running requests end with FINISH_ERROR). */
int engine_step(struct engine *g, struct err *e);

struct request_stats {
    int n_prompt, n_cached, n_generated;
    double prefill_s, decode_s, first_token_s;      /* since submit */
};
void request_stats(const struct request *r, struct request_stats *s);
const int32_t *request_ids(const struct request *r, int *n);            /* prompt and answer so far */

struct engine_stats {
    size_t kv_bytes, private_bytes;
    int n_blocks, n_free_blocks, n_running, n_waiting;
    uint64_t steps, tokens;
    const char *backend;
};
void engine_stats(const struct engine *g, struct engine_stats *s);

/* Logits after every one of ids [n_ids][vocab_size], in chunks, from a fresh sequence: for zse-bench logits, perplexity, quality.
 * from: only positions >= from are written (n_ids - from rows). */
int engine_logits(struct engine *g, const int32_t *ids, int n_ids, int from, float *logits, struct err *e);

#endif

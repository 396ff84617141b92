/* sampler.h - choose a token from logits.  sampler.c and zse-chat(1) list the steps in order: bias
 * and penalties, temperature, filters, draw. */
#ifndef ZSE_ENGINE_SAMPLER_H
#define ZSE_ENGINE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/draw.h"
#include "libcommon/engine/sampling.h"
#include "libcommon/token/tokenizer.h"

struct top_logprob { int32_t id; float logprob; };
enum { MAX_TOP_LOGPROBS = 20 };

/* Scratch memory that a sampler uses only inside of a call; all samplers of a thread share it. */
struct sampler_scratch;
/* tokenizer is borrowed; NULL: DRY has no sequence breakers. */
struct sampler_scratch *sampler_scratch_open(const struct tokenizer *t, struct err *e);
void sampler_scratch_close(struct sampler_scratch *c);

struct sampler;
/* scratch is borrowed; its memory grows here to the size that this sampler needs. */
struct sampler *sampler_open(const struct sampling *s, int vocab_size, int max_len, struct sampler_scratch *scratch,
                             struct err *e);
void sampler_close(struct sampler *s);
/* Append a token of the prompt (0) or of the answer (1) to the history. */
void sampler_accept(struct sampler *s, int32_t id, int generated);

/* Pick a token as sampler_pick() does, but for the position `ahead` positions after the next one,
 * with the history known now; s does not change. */
int sampler_guess(struct sampler *s, float *logits, int ahead, int32_t *id, struct err *e);

/* Whether sampler_pick() always picks the most likely token. */
int sampler_is_greedy(const struct sampler *s);

/* Whether a backend can choose token n of the answer.  1: *d has the options. */
int sampler_draw(const struct sampler *s, int n, struct draw *d);

/* A mask of allowed ids: id is bit id % 32 of word id / 32; ids from n on are not allowed. */
struct allowed { const uint32_t *bits; int n; };

struct logprobs {                   /* log probabilities before any option changes the logits */
    /* input: number wanted, at most MAX_TOP_LOGPROBS; output: number returned */
    int n_top;
    float logprob;                  /* log probability of the token */
    struct top_logprob top[MAX_TOP_LOGPROBS];           /* most likely first, ties by lower id */
};
/* Log probabilities of token id and of the most likely ones, without sampling. */
int logprobs_of(const struct sampler_scratch *c, const float *logits, int vocab_size, int32_t id, struct logprobs *lp,
                struct err *e);

/* Choose the next token; ties go to the lower id.  Changes the logits.  Returns 0; -1 with
 * ERR_FORMAT ("logits ... NaN") if a logit is NaN or all are -inf.  allowed: all other tokens get
 * logits of -inf before bias and penalties; NULL: all are allowed.  lp: receives log probabilities;
 * may be NULL.  Allocates nothing, except when DRY decodes a token for the first time. */
int sampler_pick(struct sampler *s, float *logits, const struct allowed *allowed, int32_t *id, struct logprobs *lp,
                 struct err *e);

/* A drafted token for any later position, with the data that sampler_verify() needs. */
struct proposed {
    const float *proposal;          /* [vocab_size]: the distribution that it was drawn from */
    int32_t id;
    uint64_t coin;                  /* random number of XTC, for proposal and verification */
};
/* Draw a proposal, with the history known now.  The random numbers are from a stream that
 * sampler_pick() and sampler_guess() do not use.  proposal [vocab_size]: output, borrowed by
 * *proposed; not for options with which the choice is greedy. */
int sampler_propose(struct sampler *s, float *logits, float *proposal, struct proposed *proposed, struct err *e);

/* Like sampler_pick(), but accepts as often as possible the token `proposed`, which was drawn from
 * q = `proposal` independently of this call, and is verified only once.  It is accepted with
 * probability min(1, p / q), where p is the distribution that sampler_pick() draws from; otherwise
 * a token is drawn from max(0, p - q), renormalised.  The chosen token's distribution is p
 * (arXiv:2211.17192, appendix A.1), but the token itself may differ from the one that
 * sampler_pick() would choose. */
int sampler_verify(struct sampler *s, float *logits, const struct allowed *allowed, const struct proposed *proposed,
                   int32_t *id, struct logprobs *lp, struct err *e);
#endif

/* sampler.h - from logits to a token.  Order, as users of llama.cpp and vLLM know it: logit bias, repetition / presence / frequency
 * penalties, then temperature, then top_k, typical_p, top_p, min_p on the tempered distribution (documented in sampler.c and zse-chat(1)), then the draw. */
#ifndef ZSE_ENGINE_SAMPLER_H
#define ZSE_ENGINE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct logit_bias { int32_t id; float bias; };
struct top_logprob { int32_t id; float logprob; };
enum { MAX_TOP_LOGPROBS = 20 };

struct sampling {
    float temperature;              /* 0: greedy */
    int top_k;                      /* 0: off */
    float top_p, min_p, typical_p;  /* 1, 0, 1: off */
    float repetition_penalty;       /* 1: off; on prompt and answer */
    float presence_penalty, frequency_penalty;      /* 0: off; on the answer */
    int penalty_last_n;             /* tokens looked back at for repetition; -1: all */
    uint64_t seed;
    const struct logit_bias *bias; int n_bias;      /* borrowed by sampler_init, copied */
};
struct sampling sampling_defaults(void);
/* Ranges: the error names the field, its value, and the range. */
int sampling_check(const struct sampling *s, int vocab_size, struct err *e);

struct sampler;
struct sampler *sampler_open(const struct sampling *s, int vocab_size, int max_len, struct err *e);
void sampler_close(struct sampler *s);
void sampler_accept(struct sampler *s, int32_t id, int generated);      /* every token of the prompt (0) and of the answer (1) */
/* Ties go to the lower id.  logits are changed.  NaN or all -inf logits are an error (ERR_FORMAT "logits ... NaN"), not garbage. logprob may be NULL: of the chosen token under the
 * unmodified distribution. Allocates nothing. */
int sampler_pick(struct sampler *s, float *logits, int32_t *id, float *logprob, struct err *e);

#endif

/* dry.h - DRY, a penalty on tokens that would continue a repetition (koboldcpp, llama.cpp).
 *
 * Where the last n tokens stood earlier in the sequence, the token that followed there gets
 * multiplier * base^(n - allowed_length) subtracted from its logit, once n >= allowed_length, by
 * its longest such n.  A sequence breaker, such as a line's end, ends repetitions: n does not reach
 * across the last one, and a token that contains one is not penalised. */
#ifndef ZSE_ENGINE_DRY_H
#define ZSE_ENGINE_DRY_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/sampling.h"
#include "libcommon/token/tokenizer.h"

struct dry;
/* The breakers are copied.  t is borrowed until dry_close; NULL: there are no breakers. */
struct dry *dry_open(const struct sampling *s, const struct tokenizer *t, int vocab_size, struct err *e);
void dry_close(struct dry *d);          /* NULL is fine */

/* Lengths of repetitions at the end of history [n]: repeat[i], for i from the returned position to
 * n - 1, is how many tokens before i equal the last tokens of history.  repeat has room for n.
 * Time is linear in n.  n itself: nothing is repeated.  Called with a history that grows. */
int dry_repeats(struct dry *d, const int32_t *history, int n, int *repeat);
/* The penalty that is subtracted from the logit of this token, which would continue a repetition of
 * this length; 0: none. */
float dry_penalty(struct dry *d, int32_t id, int repeat);

#endif

/* dry.h - DRY, a penalty on tokens that would continue a repetition (koboldcpp, llama.cpp).
 *
 * If the last n tokens also stand earlier in the sequence, the token that followed them there would
 * continue a repetition of length n.  For the longest such n >= allowed_length its logit is reduced
 * by multiplier * base^(n - allowed_length).  A sequence breaker, such as a line's end, ends
 * repetitions: n does not reach across the last one, and a token that contains one is not
 * penalised. */
#ifndef ZSE_ENGINE_DRY_H
#define ZSE_ENGINE_DRY_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/sampling.h"
#include "libcommon/token/tokenizer.h"

struct dry;
/* Copies the breakers of s.  t is borrowed until dry_close(); without t there are no breakers. */
struct dry *dry_open(const struct sampling *s, const struct tokenizer *t, int vocab_size, struct err *e);
void dry_close(struct dry *d);          /* NULL is fine */

/* Find repetitions of the end of history [n].  For i from the returned position to n - 1, repeat[i]
 * is the number of tokens just before i that equal the last tokens of history.  Returns n if
 * nothing is repeated.  repeat has space for n.  Takes linear time.  Each call must extend the
 * previous history. */
int dry_repeats(struct dry *d, const int32_t *history, int n, int *repeat);
/* Returns the amount to subtract from the logit of token id, which would continue a repetition of
 * `repeat` tokens; 0: no penalty. */
float dry_penalty(struct dry *d, int32_t id, int repeat);

#endif

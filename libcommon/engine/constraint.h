/* constraint.h - the tokens that an answer may have at every position, as the engine sees them.
 * Grammars, schemas and regular expressions fill this in (libcommon/grammar); the engine knows
 * nothing of them.
 *
 * Ownership: struct constraint is copied.  `state` belongs to the caller until engine_submit
 * succeeds, then to the engine, which calls close once.  Where a request has n answers, each has a
 * state of its own: the first takes `state`, the others take what fork makes of it.
 *
 * Threads: one call at a time for each state, but for cancel; mask, accept and forced may come from
 * threads of the engine, and calls for other states at the same time.
 *
 * Tokens come in order: each token of the answer goes through accept exactly once, but for the
 * one that ends it, and nothing of the prompt does. */
#ifndef ZSE_ENGINE_CONSTRAINT_H
#define ZSE_ENGINE_CONSTRAINT_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct constraint {
    void *state;
    /* Allowed tokens of the next position: token id is bit id % 32 of word id / 32, for the ids
     * [0, tokenizer_vocab_size()); the padding of a vocabulary beyond that is never allowed.
     * EOS tokens have their bits exactly when complete() is 1.  Borrowed until the next accept.
     * NULL: every token is allowed. */
    const uint32_t *(*mask)(void *state);
    /* This token, which the answer has got already, comes next.  -1: it was not allowed, which
     * is a bug, or see error: the answer ends with FINISH_ERROR.  Else 0. */
    int (*accept)(void *state, int32_t id);
    /* Tokens that come next without a choice, each allowed by the mask of its place: up to
     * `room` ids, returns how many (0: there is a choice).  Changes nothing: the engine calls
     * accept for each.  Asked for after every token of the answer and after the last of those
     * forced; they are computed in one step without sampling (one by one where log probabilities
     * are wanted).  May be NULL. */
    int (*forced)(void *state, int32_t *ids, int room);
    /* A copy of its own that goes on from here; NULL: out of memory.  Needed for n > 1. */
    void *(*fork)(void *state);
    void (*close)(void *state);
    int (*complete)(void *state);       /* 1: the answer may end here */
    /* -1 with *e: memory ran out or a limit was passed in a call above, and the answer ends; 0:
     * nothing is wrong.  May be NULL */
    int (*error)(void *state, struct err *e);
    /* Constraints whose calls may take long; all three NULL: they never do.  hurry: from now on
     * mask, accept and forced give up after so many steps, and wait for no lock; 0: they take
     * the time they need.  A call that gave up has no result and changes nothing but what makes
     * the next one faster: with twice the steps each time it ends.  busy: 1: the
     * last of these calls gave up.  cancel: from any thread: the call that runs fails soon, as
     * do all later ones. */
    void (*hurry)(void *state, uint64_t steps);
    int (*busy)(void *state);
    void (*cancel)(void *state);
};

#endif

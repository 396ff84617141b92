/* constraint.h - the interface through which the engine learns the tokens that an answer may have
 * at each position.  Grammars, schemas and regular expressions implement it (libcommon/grammar);
 * the engine is independent of them.
 *
 * Ownership: struct constraint is copied.  `state` belongs to the caller until engine_submit
 * succeeds, then to the engine, which calls close once.  If a request has n answers, each has a
 * state of its own: the first takes `state`, the others take copies made by fork.
 *
 * Threads: one call at a time for each state, except cancel.  mask, accept and forced may be called
 * by threads of the engine, at the same time as calls for other states.
 *
 * Each token of the answer goes through accept exactly once, in order, except the token that ends
 * it.  Tokens of the prompt do not. */
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
    /* Append a token that was added to the answer.  Returns 0; -1 if the constraint failed (see
     * `error`), or if the token was not allowed, which is a bug.  After -1 the answer ends with
     * FINISH_ERROR. */
    int (*accept)(void *state, int32_t id);
    /* Write up to `room` ids of tokens that must come next, because the mask allows only one token
     * at each of these positions.  Returns their number; 0: there is a choice.  The state does not
     * change: the engine calls accept for each id.
     *
     * Called after every token of the answer and after the last forced one.  Forced tokens are
     * computed in one step without sampling (one by one if log probabilities are wanted).  May be
     * NULL. */
    int (*forced)(void *state, int32_t *ids, int room);
    /* An independent copy at the same position; NULL: out of memory.  Needed for n > 1. */
    void *(*fork)(void *state);
    void (*close)(void *state);
    int (*complete)(void *state);       /* 1: the answer may end here */
    /* Returns 0 if no call has failed; -1 with *e if one of the calls above ran out of memory or
     * passed a limit, and the answer ends.  May be NULL. */
    int (*error)(void *state, struct err *e);
    /* For constraints whose calls may take long; all three are NULL if calls are always short.
     *   hurry   from now on mask, accept and forced give up after `steps` steps and do not wait for
     *           locks; 0: no limit.  A call that gives up returns no result, but its work is kept:
     *           repeating it, each time with twice the steps, succeeds in the end
     *   busy    1 if the last of these calls gave up
     *   cancel  called by any thread: the running call and all later ones fail soon */
    void (*hurry)(void *state, uint64_t steps);
    int (*busy)(void *state);
    void (*cancel)(void *state);
};

#endif

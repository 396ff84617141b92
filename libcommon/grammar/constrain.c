/* constrain.c - implement the engine's constraint interface by a matcher. */
#include "libcommon/grammar/constrain.h"

static const uint32_t *mask(void *state) { return matcher_mask(state); }
static int accept(void *state, int32_t id) { return matcher_accept(state, id); }
static int forced(void *state, int32_t *ids, int room) { return matcher_forced(state, ids, room); }
static void *fork_matcher(void *state) { return matcher_fork(state); }
static void close_matcher(void *state) { matcher_close(state); }
static int complete(void *state) { return matcher_complete(state); }
static int error(void *state, struct err *e) { return matcher_error(state, e); }
static void hurry(void *state, uint64_t steps) { matcher_hurry(state, steps); }
static int busy(void *state) { return matcher_busy(state); }
static void cancel(void *state) { matcher_cancel(state); }

int constrain(struct constraint *c, struct grammar *g, struct err *e)
{
    *c = (struct constraint){ matcher_open(g, e), mask, accept, forced, fork_matcher, close_matcher, complete, error,
                              hurry, busy, cancel };
    return c->state ? 0 : -1;
}

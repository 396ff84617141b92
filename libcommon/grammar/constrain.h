/* constrain.h - a grammar's matcher as the constraint of a request. */
#ifndef ZSE_GRAMMAR_CONSTRAIN_H
#define ZSE_GRAMMAR_CONSTRAIN_H

#include "libcommon/engine/constraint.h"
#include "libcommon/grammar/grammar.h"

/* Fill in *c with a new matcher of g.  Returns 0, or -1 with *e.  The matcher belongs to the engine
 * once engine_submit() has accepted a request with *c; if the request is refused, the caller calls
 * c->close(c->state). */
int constrain(struct constraint *c, struct grammar *g, struct err *e);

#endif

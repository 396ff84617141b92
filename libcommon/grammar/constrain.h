/* constrain.h - a grammar's matcher as the constraint of a request. */
#ifndef ZSE_GRAMMAR_CONSTRAIN_H
#define ZSE_GRAMMAR_CONSTRAIN_H

#include "libcommon/engine/constraint.h"
#include "libcommon/grammar/grammar.h"

/* *c is filled in with a new matcher of g, which goes to the engine with the request;
 * c->close(c->state) if it is refused.  -1 with *e. */
int constrain(struct constraint *c, struct grammar *g, struct err *e);

#endif

/* constrain.h - a grammar's matcher as the constraint of a request. */
#ifndef ZSE_GRAMMAR_CONSTRAIN_H
#define ZSE_GRAMMAR_CONSTRAIN_H

#include "libcommon/engine/constraint.h"
#include "libcommon/grammar/grammar.h"

/* Fill in *c with a new matcher of g.  It belongs to the engine once a request with it was
 * accepted; if the request is refused, call c->close(c->state).  0, or -1 with *e. */
int constrain(struct constraint *c, struct grammar *g, struct err *e);

#endif

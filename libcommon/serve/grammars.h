/* grammars.h - the compiled grammars of one model: each is compiled once, shared by the requests
 * that ask for it, and kept for the next ones.
 *
 * Any thread.  What is kept is bounded in number and bytes: the one that was not used for
 * longest goes; grammars in use count, and a request that would be too much is refused
 * (ERR_MEMORY). */
#ifndef ZSE_SERVE_GRAMMARS_H
#define ZSE_SERVE_GRAMMARS_H

#include "libcommon/grammar/grammar.h"

struct grammars;
struct shared_grammar;

/* The vocabulary is prepared when the first grammar is asked for. t is borrowed. */
struct grammars *grammars_open(const struct tokenizer *t, struct err *e);
/* Nobody holds one any more. t may be gone. NULL is fine. */
void grammars_close(struct grammars *all);

typedef struct grammar *grammar_maker(const struct grammar_vocab *v, const void *what, struct err *e);
/* The grammar of this key (bytes that say all that make goes by), made if it is not there. NULL
 * with *e. */
struct shared_grammar *grammars_get(struct grammars *all, const char *key, size_t size, grammar_maker *make,
                                    const void *what, struct err *e);
struct grammar *shared_grammar(struct shared_grammar *g);
void grammars_release(struct shared_grammar *g);        /* never waits; NULL is fine */

#endif

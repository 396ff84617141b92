/* grammars.h - the compiled grammars of one model: a cache, shared by its requests.
 *
 * Any thread.  The cache is bounded in number and bytes.  It evicts the least recently used grammar
 * that is not in use; if all are in use and the bound is reached, a new one is refused
 * (ERR_MEMORY).  At the bound, grammars in use free their cached results. */
#ifndef ZSE_SERVE_GRAMMARS_H
#define ZSE_SERVE_GRAMMARS_H

#include "libcommon/grammar/grammar.h"

struct grammars;
struct shared_grammar;

/* The vocabulary is prepared with the first grammar.  t is borrowed. */
struct grammars *grammars_open(const struct tokenizer *t, struct err *e);
/* No grammar may be in use; t may be closed already.  NULL is fine. */
void grammars_close(struct grammars *all);

typedef struct grammar *grammar_maker(const struct grammar_vocab *v, const void *what, struct err *e);
/* Returns the grammar with this key, compiled by make(what) if it is not in the cache; NULL with
 * *e.  The key's bytes must contain everything on which the result of `make` depends. */
struct shared_grammar *grammars_get(struct grammars *all, const char *key, size_t size, grammar_maker *make,
                                    const void *what, struct err *e);
struct grammar *shared_grammar(struct shared_grammar *g);
/* Bytes of all compiled grammars.  Any thread, without waiting. */
size_t grammars_bytes(const struct grammars *all);
void grammars_release(struct shared_grammar *g);        /* never waits; NULL is fine */

#endif

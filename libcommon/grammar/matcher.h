/* matcher.h - run a grammar: configs, masks and matchers.
 *
 * Everything here needs the grammar's lock, or a grammar that is not shared yet. */
#ifndef ZSE_GRAMMAR_MATCHER_H
#define ZSE_GRAMMAR_MATCHER_H

#include "libcommon/grammar/distinct.h"
#include "libcommon/grammar/internal.h"

/* ---- grammar.c ---- */

/* Drop configs, masks and terminals, which can be recomputed. */
void grammar_forget(struct grammar *g);
/* Publish the bytes of g, for itself and for its budget. */
void grammar_count(struct grammar *g);
/* Returns 1 if the grammars of g's budget exceed its limit together and g has grown since it last
 * dropped its cached results. */
int grammar_over_budget(const struct grammar *g);

/* ---- parse_config.c ---- */

/* Start a new config, an empty set. */
void config_begin(struct grammar *g);
/* Add a position to the set being built. */
void config_add(struct grammar *g, uint32_t e, uint32_t stack);
/* Add all positions of a text that must continue with e and then with the stack. */
void config_close_over(struct grammar *g, uint32_t e, uint32_t stack);
/* The number of the config just built; 0: nothing may follow (also after a failure). */
uint32_t config_intern(struct grammar *g);
/* The config after a byte; 0: the byte is not allowed. */
uint32_t config_step(struct grammar *g, uint32_t number, int byte);
/* The config after the end of a terminal on top of this stack. */
uint32_t config_after(struct grammar *g, uint32_t stack);
/* Bit set of the bytes that may come next; borrowed until the next call of any of these. */
const uint64_t *config_first(struct grammar *g, uint32_t number);

/* ---- config_mask.c ---- */

/* The tokens that may come next, borrowed until grammar_forget(); NULL after a failure. */
const uint32_t *config_mask(struct grammar *g, uint32_t number);

/* ---- matchers ---- */

struct matcher {
    struct grammar *g;
    uint32_t config, generation, store;
    /* owned: all accepted bytes, to find the config again after the store was truncated */
    unsigned char *text; size_t n_text, text_room;
    /* thread: owned, a copy of the config, to find it again after grammar_forget(). */
    struct parse_thread *thread; uint32_t n_threads, room;
    int accepting, ended;
    uint32_t *mask;                                     /* owned; NULL without a vocabulary */
    /* Steps of all calls so far, and tokens accepted. */
    uint64_t spent, n_tokens;
    /* A call stops as busy after this many steps, and can be repeated; 0: never. */
    uint64_t pause;
    int busy;
    atomic_int cancelled;
    struct distinct distinct;
    struct err error;
};

/* Take the lock and start counting; *config becomes the config of m.  Returns 0; -1 without the
 * lock if m is busy or has failed before. */
int matcher_enter(struct matcher *m, uint32_t *config);
/* Release the lock.  A failure is assigned to the matcher, not to the grammar.  Returns 0; 1 if the
 * call must be repeated; -1 if the call has no result.
 *
 * cut: 0 before the first try; set to 1 if the store was full of states of other answers and has
 * been truncated.  If the repeated call fills the truncated store as well, it fails. */
int matcher_leave(struct matcher *m, int *cut);

/* In matcher_repeats.c: returns the config after the bytes, 0 if they are not allowed.  *next, all
 * zero before the call, receives the items of the open arrays with uniqueItems. */
uint32_t matcher_follow_bytes(struct matcher *m, uint32_t config, const unsigned char *p, size_t n,
                              struct distinct *next);
/* Clear the tokens of m->mask that repeat an item. */
void matcher_clear_repeated(struct matcher *m, uint32_t config);

#endif

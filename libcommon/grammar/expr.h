/* expr.h - expressions: the one form that schemas, regular expressions and grammars become.
 *
 * An expression is a number; equal expressions have equal numbers (they are hash-consed), so a set of them can be compared and cached.
 * Regular expressions denote sets of byte strings and are matched by derivatives: step(e, byte) is the expression for what may
 * follow that byte (Brzozowski 1964; Owens, Reppy, Turon 2009).  Repetition keeps its bounds as numbers, so x{1,100000} is one node.
 * Above them stand the context-free ones (EXPR_TERM and later), which matcher.c runs with a stack.
 *
 * Nothing here frees single expressions: a store grows to its limit, then `failed` is set and everything further is EXPR_NONE.  The
 * builder functions need no checks in between; look at failed when done. */
#ifndef ZSE_GRAMMAR_EXPR_H
#define ZSE_GRAMMAR_EXPR_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum expr_kind {
    EXPR_EMPTY, EXPR_NULL, EXPR_BRANCH, EXPR_CONCAT, EXPR_UNION, EXPR_REPEAT, EXPR_BOTH, EXPR_NOT,     /* regular */
    EXPR_TERM, EXPR_SEQ, EXPR_ANY_OF, EXPR_TIMES, EXPR_RULE,                                           /* context-free */
    EXPR_CELL,                      /* a stack: a on top of the stack b */
};
enum {                              /* expr.flags */
    EXPR_NULLABLE = 1,              /* matches the empty text */
    EXPR_FILTERED = 2,              /* has BOTH or NOT inside: it may match nothing although it is not EXPR_NONE */
    EXPR_DEAD = 4,                  /* exprs_settle found that it matches nothing */
    EXPR_SETTLED = 8,               /* exprs_settle has looked at it */
};
enum { EXPR_NONE = 0, EXPR_EPSILON = 1, EXPR_ALL = 2 };     /* matches nothing; the empty text; every text */
enum { EXPR_MANY = -1 };

struct expr {
    uint8_t kind, flags;
    uint32_t a, b;                  /* operands; BRANCH: first arm and number; UNION, BOTH, ANY_OF: first in `lists` and number */
    int32_t lo, hi;                 /* REPEAT, TIMES: bounds, hi EXPR_MANY: none; RULE: lo is its index; CONCAT: lo parts at its front may be left out */
};
struct arm { uint8_t lo, hi; uint32_t to; };                /* bytes lo to hi, then `to` */

struct exprs {
    struct expr *e; uint32_t n, room, limit;
    uint32_t *table; uint32_t n_table;                      /* of the hash: power of two */
    struct arm *arms; uint32_t n_arms, room_arms;
    uint32_t *lists; uint32_t n_lists, room_lists;
    uint32_t *memo, *memo_of, epoch;                        /* of one derivative */
    uint32_t *state_of;                                     /* [room] index of the row of next bytes, 0: none */
    uint32_t *rows; uint32_t n_rows, room_rows;             /* [256] each */
    uint64_t work;                                          /* steps done, for limits of time */
    int failed;                                             /* 1 memory, 2 too large, 3 a state with too many alternatives, 4 too many states to settle */
};

int exprs_init(struct exprs *s, uint32_t limit, struct err *e);
void exprs_release(struct exprs *s);
/* Why it failed, as an error; 0 if it did not. */
int exprs_check(const struct exprs *s, struct err *e);
/* Forget the rows of next bytes (they come back as they are needed). */
void exprs_forget_rows(struct exprs *s);

/* ---- regular ---- */
uint32_t expr_arms(struct exprs *s, const struct arm *arms, uint32_t n);        /* sorted, disjoint */
uint32_t expr_byte(struct exprs *s, int lo, int hi);
uint32_t expr_text(struct exprs *s, const void *bytes, size_t n);
uint32_t expr_concat(struct exprs *s, uint32_t a, uint32_t b);
uint32_t expr_union(struct exprs *s, const uint32_t *v, uint32_t n);
uint32_t expr_either(struct exprs *s, uint32_t a, uint32_t b);
uint32_t expr_repeat(struct exprs *s, uint32_t a, int32_t lo, int32_t hi);
uint32_t expr_both(struct exprs *s, uint32_t a, uint32_t b);
uint32_t expr_not(struct exprs *s, uint32_t a);
/* One of the texts, which are sorted by bytes (memcmp, shorter first) and distinct. */
struct text { const char *p; size_t n; };
int text_compare(const void *a, const void *b);         /* for qsort: by bytes, shorter first; p may be NULL where n is 0 */
uint32_t expr_texts(struct exprs *s, const struct text *t, size_t n);

/* One character of the set, in UTF-8.  Ranges are sorted and disjoint; surrogates are left out. */
struct range { uint32_t lo, hi; };
uint32_t expr_chars(struct exprs *s, const struct range *r, int n);
/* The same as it stands inside a JSON string: quotation mark, backslash and control characters by their short escape or \u00XX. */
uint32_t expr_json_chars(struct exprs *s, const struct range *r, int n);

uint32_t expr_step(struct exprs *s, uint32_t e, int byte);
static inline int expr_nullable(const struct exprs *s, uint32_t e) { return s->e[e].flags & EXPR_NULLABLE; }
/* Decide for e and all that follows it whether anything matches, and mark what does not as dead; expr_step then never returns a dead one.
 * Returns e or EXPR_NONE; fails over max_states. Needed after BOTH and NOT only, cheap otherwise. */
uint32_t exprs_settle(struct exprs *s, uint32_t e, uint32_t max_states);
int expr_matches(struct exprs *s, uint32_t e, const void *text, size_t n);
/* Bit set of the bytes that e may begin with. */
void expr_first(struct exprs *s, uint32_t e, uint64_t set[4]);
/* Bit b is set where the bytes b-1 and b may be told apart by e. */
void expr_edges(struct exprs *s, uint32_t e, uint64_t set[4]);

/* ---- context-free ---- */
uint32_t expr_term(struct exprs *s, uint32_t regular);
uint32_t expr_seq(struct exprs *s, uint32_t a, uint32_t b);
uint32_t expr_any_of(struct exprs *s, const uint32_t *v, uint32_t n);
uint32_t expr_times(struct exprs *s, uint32_t a, int32_t lo, int32_t hi);
uint32_t expr_rule(struct exprs *s, int32_t index);
uint32_t expr_cell(struct exprs *s, uint32_t top, uint32_t rest);               /* rest EXPR_NONE: the bottom */

#endif

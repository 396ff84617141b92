/* expr_store.h - the parts of the store that only the files expr*.c use. */
#ifndef ZSE_GRAMMAR_EXPR_STORE_H
#define ZSE_GRAMMAR_EXPR_STORE_H

#include "libcommon/grammar/expr.h"

enum { EXPR_MAX_UNION = 4096 };         /* alternatives, or conditions, of one state */

static inline uint32_t expr_mix(uint32_t h, uint32_t x)
{
    h ^= x;
    h *= 0x9E3779B1u;
    return h ^ h >> 15;
}

/* The kinds whose operands are in exprs.lists. */
static inline int expr_has_list(const struct expr *x)
{
    return x->kind == EXPR_UNION || x->kind == EXPR_BOTH || x->kind == EXPR_ANY_OF;
}

/* Returns the number of x; x is added unless an equal expression exists.  The caller has appended
 * the arms or the list of x, if it has any, to their array; they are removed again if x exists. */
uint32_t expr_intern(struct exprs *s, const struct expr *x);
/* The expression of the text p[0..n), followed by the expression `then`. */
uint32_t expr_text_then(struct exprs *s, const unsigned char *p, size_t n, uint32_t then);
/* expr_both() of n expressions. */
uint32_t expr_both_of(struct exprs *s, const uint32_t *v, uint32_t n);
/* Like expr_edges(), but as a part of the derivative that is running, and without adding to
 * `spent`. */
void expr_add_edges(struct exprs *s, uint32_t e, uint64_t set[4]);
/* Make an EXPR_WITHIN of e and the rest of the current character (part), with at most hi more
 * characters.  Returns EXPR_NONE if that many characters cannot complete it. */
uint32_t expr_within_left(struct exprs *s, uint32_t e, uint32_t part, int32_t hi);

#endif

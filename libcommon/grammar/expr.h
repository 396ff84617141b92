/* expr.h - expressions, into which schemas, regular expressions and grammars are compiled.
 *
 * An expression is a number; equal expressions have equal numbers (they are hash-consed), so sets
 * of them can be compared and cached.  Regular expressions denote sets of byte strings and are
 * matched by derivatives: step(e, byte) is the expression for the text that may follow that byte
 * (Brzozowski 1964; Owens, Reppy, Turon 2009).  Repetition keeps its bounds as numbers, so
 * x{1,100000} is one node.  Context-free expressions (EXPR_TERM and later) contain regular ones;
 * matcher.c runs them with a stack.
 *
 * Single expressions are never freed: a store grows to its limit, then `failed` is set and every
 * further result is EXPR_NONE, until it is truncated to a mark.  Calls of the builder functions
 * need no checks in between; check failed at the end. */
#ifndef ZSE_GRAMMAR_EXPR_H
#define ZSE_GRAMMAR_EXPR_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum expr_kind {
    /* Regular. */
    EXPR_EMPTY, EXPR_NULL, EXPR_BRANCH, EXPR_CONCAT, EXPR_UNION, EXPR_REPEAT, EXPR_BOTH, EXPR_NOT, EXPR_WITHIN,
    /* Context-free. */
    EXPR_TERM, EXPR_SEQ, EXPR_ANY_OF, EXPR_TIMES, EXPR_RULE,
    EXPR_CELL,                      /* a stack: a on top of the stack b */
};
enum {                              /* expr.flags */
    EXPR_NULLABLE = 1,              /* matches the empty text */
    /* Contains BOTH or NOT: it may match nothing although it is not EXPR_NONE. */
    EXPR_FILTERED = 2,
    EXPR_DEAD = 4,                  /* exprs_settle found that it matches nothing */
    EXPR_SETTLED = 8,               /* exprs_settle has checked it */
};
/* Expressions that match nothing, the empty text, and every text. */
enum { EXPR_NONE = 0, EXPR_EPSILON = 1, EXPR_ALL = 2 };
enum { EXPR_MANY = -1 };

struct expr {
    uint8_t kind, flags;
    /* Operands.  WITHIN: b is the rest of the current character, EXPR_EPSILON between characters;
     * BRANCH: index of the first arm, and number of arms; UNION, BOTH, ANY_OF: index of the first
     * operand in `lists`, and number of operands. */
    uint32_t a, b;
    /* WITHIN: hi characters at most; REPEAT, TIMES: bounds, hi EXPR_MANY: no upper one; RULE: lo is
     * the index of the rule; CONCAT: the first lo parts are optional. */
    int32_t lo, hi;
};
struct arm { uint8_t lo, hi; uint32_t to; };                /* bytes lo to hi, then `to` */

enum expr_failure {
    EXPR_OK, EXPR_NO_MEMORY,
    EXPR_TOO_LARGE,                 /* the limit of parts */
    EXPR_AMBIGUOUS,                 /* a state with too many alternatives */
    EXPR_TOO_MANY_STATES,           /* to settle */
    EXPR_TOO_COSTLY,                /* meter.most */
    EXPR_PAUSED, EXPR_CANCELLED,    /* meter.pause_at, meter.cancel */
};

/* Two counts of steps.  `work` counts executed steps and determines when pauses and cancellation
 * are checked.  `spent` does not depend on the caches: on its first use in a call a cached result
 * counts as much as computing it, and on later uses 1.  So whether an answer exceeds a limit of
 * `spent` is deterministic. */
struct meter {
    /* check_at: the value of work at which meter_check() is called. */
    uint64_t work, check_at;
    uint64_t spent, most;           /* most: limit of spent */
    /* value of `work` at the start of the current derivative, whose steps are not yet counted in
     * `spent`; 0: no derivative is running */
    uint64_t derived_from;
    /* value of work at which to fail with EXPR_PAUSED; the call may be repeated */
    uint64_t pause_at;
    const atomic_int *cancel;       /* not 0: fail with EXPR_CANCELLED; NULL: cannot be cancelled */
};

/* The cost of each entry of a row, encoded by cost_code(), and the entries used by walk number
 * `walk`. */
struct row_costs { uint32_t walk; uint64_t used[4]; uint8_t cost[256]; };
static inline int first_use(uint64_t used[4], int i)
{
    const uint64_t bit = (uint64_t)1 << (i & 63), before = used[i >> 6] & bit;
    used[i >> 6] |= bit;
    return !before;
}

/* chars: the fewest characters that complete the expression e, when the rest of the current
 * character is `part`. */
struct within { uint32_t e, part, chars; };

struct exprs {
    struct expr *e; uint32_t n, room, limit;
    uint32_t *table; uint32_t n_table;                      /* hash table; n_table is a power of two */
    struct arm *arms; uint32_t n_arms, room_arms;
    uint32_t *lists; uint32_t n_lists, room_lists;
    uint32_t *memo, *memo_of, epoch;                        /* results of one derivative */
    /* [room] index of the row of next bytes, 0: none. */
    uint32_t *state_of;
    uint32_t *rows; uint32_t n_rows, room_rows;             /* [256] each */
    struct row_costs *costs;                                /* costs of the rows */
    /* Number of the current walk: expr_walk_start(). */
    uint32_t walk;
    /* One character, the unit in which expr_within() counts; 0: not used. */
    uint32_t one_char;
    struct within *within; uint32_t n_within, room_within;  /* hash table with open addressing */
    struct meter meter;
    enum expr_failure failed;
};

int exprs_init(struct exprs *s, uint32_t limit, struct err *e);
void exprs_release(struct exprs *s);
/* Set `failed`; the first failure is kept. */
void exprs_fail(struct exprs *s, enum expr_failure why);
/* 0, or -1 with *e that says why the store has failed. */
int exprs_check(const struct exprs *s, struct err *e);
/* Drop the cached rows of next bytes, which are recomputed as needed. */
void exprs_forget_rows(struct exprs *s);

/* The size of a store; exprs_cut() forgets everything that was made after the mark. */
struct exprs_mark { uint32_t n, n_arms, n_lists; };
struct exprs_mark exprs_mark(const struct exprs *s);
void exprs_cut(struct exprs *s, const struct exprs_mark *m);
/* Free unused memory; only after exprs_cut(). */
void exprs_shrink(struct exprs *s);

/* Start counting `spent` from 0; the limit is `most`.  After `pause` more steps of `work`, calls
 * fail with EXPR_PAUSED (0: never). */
void meter_start(struct exprs *s, uint64_t most, uint64_t pause, const atomic_int *cancel);
/* Fail if a limit is passed or the work was cancelled. */
void meter_check(struct exprs *s);
static inline void meter_step(struct exprs *s, uint64_t spent)
{
    s->meter.spent += spent;
    if (++s->meter.work >= s->meter.check_at)
        meter_check(s);
}

/* A number of steps in a byte, rounded up by less than an eighth. */
static inline uint8_t cost_code(uint64_t n)
{
    int shift = 0;
    if (n < 16)
        return (uint8_t)n;
    while ((n + (((uint64_t)1 << shift) - 1)) >> shift >= 16)
        shift++;
    return (uint8_t)(shift > 29 ? 255 : 16 + (shift - 1) * 8 + (int)((n + (((uint64_t)1 << shift) - 1)) >> shift) - 8);
}
static inline uint64_t cost_of(uint8_t code)
{
    return code < 16 ? code : (uint64_t)(8 + (code & 7)) << ((code >> 3) - 1);
}

/* ---- regular ---- */
/* The arms are sorted and disjoint. */
uint32_t expr_arms(struct exprs *s, const struct arm *arms, uint32_t n);
uint32_t expr_byte(struct exprs *s, int lo, int hi);
uint32_t expr_text(struct exprs *s, const void *bytes, size_t n);
uint32_t expr_concat(struct exprs *s, uint32_t a, uint32_t b);
uint32_t expr_union(struct exprs *s, const uint32_t *v, uint32_t n);
uint32_t expr_either(struct exprs *s, uint32_t a, uint32_t b);
uint32_t expr_repeat(struct exprs *s, uint32_t a, int32_t lo, int32_t hi);
uint32_t expr_both(struct exprs *s, uint32_t a, uint32_t b);
uint32_t expr_not(struct exprs *s, uint32_t a);
/* Set *result to the texts of e with at most hi characters (s->one_char).  Returns 0, or -1 with
 * nothing changed if e has more than max_states.
 *
 * This searches only the states of e, whereas expr_both() with a repetition would have a state for
 * each pair of a state and a count: the minimum number of characters from a state to an end decides
 * whether an end is still within reach. */
int expr_within(struct exprs *s, uint32_t e, int32_t hi, uint32_t max_states, uint32_t *result);
/* One of several texts, which are sorted by bytes (memcmp, shorter first) and distinct. */
struct byte_span { const char *p; size_t n; };
/* For qsort: by bytes, shorter first; p may be NULL if n is 0. */
int text_compare(const void *a, const void *b);
uint32_t expr_texts(struct exprs *s, const struct byte_span *t, size_t n);

/* One character of the set, in UTF-8.  Ranges are sorted and disjoint; surrogates are skipped. */
struct char_range { uint32_t lo, hi; };
uint32_t expr_chars(struct exprs *s, const struct char_range *r, int n);
/* Like expr_chars(), but inside a JSON string, in which the quotation mark, the backslash and
 * control characters are written as their short escape or as \u00XX. */
uint32_t expr_json_chars(struct exprs *s, const struct char_range *r, int n);

uint32_t expr_step(struct exprs *s, uint32_t e, int byte);
/* Like expr_step(), for many steps from few expressions: between two calls of expr_walk_start(),
 * each different step counts in full only once. */
uint32_t expr_walk_first(struct exprs *s, uint32_t e, int byte);
static inline uint32_t expr_walk(struct exprs *s, uint32_t e, int byte)
{
    const uint32_t row = s->state_of[e];
    if (!row)                                          /* the table may not exist yet */
        return expr_walk_first(s, e, byte);
    const struct row_costs *c = &s->costs[row];
    if (c->walk != s->walk || !(c->used[byte >> 6] >> (byte & 63) & 1))
        return expr_walk_first(s, e, byte);
    meter_step(s, 1);
    return s->rows[(size_t)row * 256 + (size_t)byte];
}
void expr_walk_start(struct exprs *s);
static inline int expr_nullable(const struct exprs *s, uint32_t e) { return s->e[e].flags & EXPR_NULLABLE; }
/* Determine for e and all expressions that may follow it whether they match anything, and mark
 * those that match nothing as dead; expr_step() then never returns a dead expression.  Needed only
 * after BOTH and NOT, cheap otherwise.  Returns e, or EXPR_NONE if e is dead; fails if there are
 * more than max_states. */
uint32_t exprs_settle(struct exprs *s, uint32_t e, uint32_t max_states);
int expr_matches(struct exprs *s, uint32_t e, const void *text, size_t n);
/* The set of bytes with which e may start, as bits. */
void expr_first(struct exprs *s, uint32_t e, uint64_t set[4]);
/* Bit b is set if e may distinguish the bytes b-1 and b. */
void expr_edges(struct exprs *s, uint32_t e, uint64_t set[4]);

/* ---- context-free ---- */
uint32_t expr_term(struct exprs *s, uint32_t regular);
uint32_t expr_seq(struct exprs *s, uint32_t a, uint32_t b);
uint32_t expr_any_of(struct exprs *s, const uint32_t *v, uint32_t n);
uint32_t expr_times(struct exprs *s, uint32_t a, int32_t lo, int32_t hi);
uint32_t expr_rule(struct exprs *s, int32_t index);
/* A stack: top on top of the stack `rest`; rest EXPR_NONE: the empty stack. */
uint32_t expr_cell(struct exprs *s, uint32_t top, uint32_t rest);

#endif

/* expr_build.c - build expressions from smaller ones, in a normal form. */
#include "libcommon/grammar/expr_store.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/grow.h"

/* ---- regular ---- */

uint32_t expr_arms(struct exprs *s, const struct arm *arms, uint32_t n)
{
    if (s->failed)
        return EXPR_NONE;
    if (s->n_arms + n > s->room_arms && grow((void **)&s->arms, &s->room_arms, s->n_arms + n, sizeof *arms) != 0) {
        exprs_fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    uint32_t first = s->n_arms;
    uint8_t filtered = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (arms[i].to == EXPR_NONE)
            continue;
        struct arm *last = s->n_arms > first ? &s->arms[s->n_arms - 1] : NULL;
        if (last && last->to == arms[i].to && last->hi + 1 == arms[i].lo)
            last->hi = arms[i].hi;
        else
            s->arms[s->n_arms++] = arms[i];
        filtered |= s->e[arms[i].to].flags & EXPR_FILTERED;
    }
    if (s->n_arms == first)
        return EXPR_NONE;
    return expr_intern(s, &(struct expr){ .kind = EXPR_BRANCH, .flags = filtered, .a = first, .b = s->n_arms - first });
}

uint32_t expr_byte(struct exprs *s, int lo, int hi)
{
    struct arm a = { (uint8_t)lo, (uint8_t)hi, EXPR_EPSILON };
    return expr_arms(s, &a, 1);
}

/* Build it backwards, from the last byte of the text. */
uint32_t expr_text_then(struct exprs *s, const unsigned char *p, size_t n, uint32_t then)
{
    while (n--)
        then = expr_arms(s, &(struct arm){ p[n], p[n], then }, 1);
    return then;
}

uint32_t expr_text(struct exprs *s, const void *bytes, size_t n) { return expr_text_then(s, bytes, n, EXPR_EPSILON); }

/* a is no CONCAT. */
static uint32_t concat_one(struct exprs *s, uint32_t a, uint32_t b)
{
    if (s->failed || a == EXPR_NONE || b == EXPR_NONE)
        return EXPR_NONE;
    if (a == EXPR_EPSILON)
        return b;
    if (b == EXPR_EPSILON)
        return a;
    if (a == EXPR_ALL && b == EXPR_ALL)
        return a;
    const uint8_t fa = s->e[a].flags, fb = s->e[b].flags;
    const int32_t ahead = fa & EXPR_NULLABLE ? (s->e[b].kind == EXPR_CONCAT ? s->e[b].lo : 0) + 1 : 0;
    /* The number of optional parts is limited, because a derivative recurses into each of them. */
    if (ahead > EXPR_MAX_UNION) {
        exprs_fail(s, EXPR_AMBIGUOUS);
        return EXPR_NONE;
    }
    return expr_intern(s, &(struct expr){ .kind = EXPR_CONCAT,
                                     .flags = (uint8_t)((fa & fb & EXPR_NULLABLE) | ((fa | fb) & EXPR_FILTERED)),
                                     .a = a, .b = b, .lo = ahead });
}

/* Concatenations nest to the right.  This is a loop, not a recursion, because a grammar whose rules
 * each repeat the next one twice makes left operands as long as the limit allows. */
uint32_t expr_concat(struct exprs *s, uint32_t a, uint32_t b)
{
    uint32_t few[32], *heads = few, n = 0, tail = a;
    if (s->failed || b == EXPR_NONE)
        return EXPR_NONE;
    if (b == EXPR_EPSILON)
        return a;
    for (; s->e[tail].kind == EXPR_CONCAT; tail = s->e[tail].b)
        n++;
    if (n > 32 && !(heads = malloc(n * sizeof *heads))) {
        exprs_fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    for (uint32_t i = 0, x = a; i < n; i++, x = s->e[x].b)
        heads[i] = s->e[x].a;
    uint32_t r = concat_one(s, tail, b);
    for (uint32_t i = n; i > 0; i--)
        r = concat_one(s, heads[i - 1], r);
    if (heads != few)
        free(heads);
    return r;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* x{lo,hi} tail */
struct counted_repeat { uint32_t x, tail, e; int32_t lo, hi; };

static int by_body(const void *a, const void *b)
{
    const struct counted_repeat *x = a, *y = b;
    if (x->x != y->x)
        return x->x < y->x ? -1 : 1;
    if (x->tail != y->tail)
        return x->tail < y->tail ? -1 : 1;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Merge x{2,5} t and x{3,9} t into x{2,9} t.  Otherwise an expression that overlaps itself would
 * have one alternative for each number between its bounds. */
static uint32_t merge_counted(struct exprs *s, uint32_t *v, uint32_t n)
{
    struct counted_repeat few[16], *c = few;
    uint32_t m = 0, k = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct expr *x = &s->e[v[i]];
        m += x->kind == EXPR_REPEAT || (x->kind == EXPR_CONCAT && s->e[x->a].kind == EXPR_REPEAT);
    }
    if (m < 2)
        return n;
    if (m > 16 && !(c = malloc(m * sizeof *c))) {
        exprs_fail(s, EXPR_NO_MEMORY);
        return n;
    }
    m = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct expr *x = &s->e[v[i]], *r = x->kind == EXPR_CONCAT ? &s->e[x->a] : x;
        if (r->kind == EXPR_REPEAT)
            c[m++] = (struct counted_repeat){ r->a, x->kind == EXPR_CONCAT ? x->b : (uint32_t)EXPR_EPSILON, v[i], r->lo,
                                       r->hi };
        else
            v[k++] = v[i];
    }
    qsort(c, m, sizeof *c, by_body);
    for (uint32_t i = 0, j; i < m; i = j) {
        int32_t hi = c[i].hi;
        for (j = i + 1; j < m && c[j].x == c[i].x && c[j].tail == c[i].tail &&
             (hi == EXPR_MANY || c[j].lo <= hi + 1); j++)
            if (hi != EXPR_MANY && (c[j].hi == EXPR_MANY || c[j].hi > hi))
                hi = c[j].hi;
        v[k++] = j == i + 1 ? c[i].e : expr_concat(s, expr_repeat(s, c[i].x, c[i].lo, hi), c[i].tail);
    }
    if (c != few)
        free(c);
    return k;
}

static uint32_t list_expr(struct exprs *s, uint8_t kind, uint8_t flags, const uint32_t *v, uint32_t n)
{
    if (n > EXPR_MAX_UNION && kind != EXPR_ANY_OF) {
        exprs_fail(s, EXPR_AMBIGUOUS);
        return EXPR_NONE;
    }
    if (grow((void **)&s->lists, &s->room_lists, s->n_lists + n, sizeof *v) != 0) {
        exprs_fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    memcpy(s->lists + s->n_lists, v, n * sizeof *v);
    s->n_lists += n;
    return expr_intern(s, &(struct expr){ .kind = kind, .flags = flags, .a = s->n_lists - n, .b = n });
}

/* Collect the parts of v: expressions of this kind are replaced by their own parts, and `unit` is
 * skipped.  Returns few, or an array that the caller frees; NULL with failed set if out of
 * memory. */
static uint32_t *parts_of(struct exprs *s, uint8_t kind, uint32_t unit, const uint32_t *v, uint32_t n, uint32_t few[32],
                          uint32_t *n_parts)
{
    uint32_t *w = few, m = 0, total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += s->e[v[i]].kind == kind ? s->e[v[i]].b : 1;
    if (total > 32 && !(w = malloc(total * sizeof *w))) {
        exprs_fail(s, EXPR_NO_MEMORY);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct expr *x = &s->e[v[i]];
        if (x->kind == kind) {
            memcpy(w + m, s->lists + x->a, x->b * sizeof *w);
            m += x->b;
        } else if (v[i] != unit) {
            w[m++] = v[i];
        }
    }
    *n_parts = m;
    return w;
}

/* Sort the parts and remove duplicates.  *any: the flags that at least one part has; *all: those
 * that every part has. */
static uint32_t sort_parts(const struct exprs *s, uint32_t *w, uint32_t n, uint8_t *any, uint8_t *all)
{
    uint32_t m = 0;
    qsort(w, n, sizeof *w, by_number);
    *any = 0;
    *all = 0xff;
    for (uint32_t i = 0; i < n; i++)
        if (!m || w[m - 1] != w[i]) {
            w[m++] = w[i];
            *any |= s->e[w[i]].flags;
            *all &= s->e[w[i]].flags;
        }
    return m;
}

uint32_t expr_union(struct exprs *s, const uint32_t *v, uint32_t n)
{
    uint32_t few[32], m, r = EXPR_NONE;
    uint8_t any, every;
    uint32_t *w = s->failed ? NULL : parts_of(s, EXPR_UNION, EXPR_NONE, v, n, few, &m);
    if (!w)
        return EXPR_NONE;
    s->meter.work += m;
    m = merge_counted(s, w, m);
    m = sort_parts(s, w, m, &any, &every);
    int all = 0, epsilon = 0;
    for (uint32_t i = 0; i < m && w[i] <= EXPR_ALL; i++) {
        all |= w[i] == EXPR_ALL;
        epsilon |= w[i] == EXPR_EPSILON;
    }
    if (epsilon && m > 1) {             /* not needed if another part matches the empty text */
        for (uint32_t i = 0; i < m && epsilon; i++)
            if (w[i] != EXPR_EPSILON && s->e[w[i]].flags & EXPR_NULLABLE)
                epsilon = 0;
        if (!epsilon) {
            uint32_t k = 0;
            for (uint32_t i = 0; i < m; i++)
                if (w[i] != EXPR_EPSILON)
                    w[k++] = w[i];
            m = k;
        }
    }
    if (all)
        r = EXPR_ALL;
    else if (m == 1)
        r = w[0];
    else if (m > 1)
        r = list_expr(s, EXPR_UNION, any & (EXPR_NULLABLE | EXPR_FILTERED), w, m);
    if (w != few)
        free(w);
    return r;
}

uint32_t expr_either(struct exprs *s, uint32_t a, uint32_t b)
{
    if (a == b || b == EXPR_NONE)
        return a;
    if (a == EXPR_NONE)
        return b;
    return expr_union(s, (uint32_t[]){ a, b }, 2);
}

uint32_t expr_repeat(struct exprs *s, uint32_t a, int32_t lo, int32_t hi)
{
    if (s->failed)
        return EXPR_NONE;
    if (hi == 0 || a == EXPR_EPSILON)
        return EXPR_EPSILON;
    if (a == EXPR_NONE)
        return lo ? EXPR_NONE : EXPR_EPSILON;
    const struct expr x = s->e[a];
    if (x.flags & EXPR_NULLABLE)
        lo = 0;
    if (lo == 1 && hi == 1)
        return a;
    if (a == EXPR_ALL)
        return a;
    if (x.kind == EXPR_REPEAT && x.hi == EXPR_MANY && x.lo <= 1 && (hi == EXPR_MANY || hi > 0)) {
        if (x.lo == 0 || lo == 0)       /* (x*){..} and (x+)? */
            return expr_repeat(s, x.a, 0, EXPR_MANY);
        return expr_repeat(s, x.a, lo, EXPR_MANY);      /* (x+){lo,} */
    }
    return expr_intern(s, &(struct expr){ .kind = EXPR_REPEAT,
                                     .flags = (uint8_t)((lo ? 0 : EXPR_NULLABLE) | (x.flags & EXPR_FILTERED)), .a = a,
                                     .lo = lo, .hi = hi });
}

/* If one of the operands is an EXPR_WITHIN, remove the operand "any number of characters", which
 * then adds no condition. */
static uint32_t without_implied(const struct exprs *s, uint32_t *w, uint32_t n)
{
    int counted = 0;
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        counted |= s->e[w[i]].kind == EXPR_WITHIN && s->e[w[i]].b == EXPR_EPSILON;
    for (uint32_t i = 0; i < n; i++) {
        const struct expr *x = &s->e[w[i]];
        if (!counted || x->kind != EXPR_REPEAT || x->a != s->one_char || x->lo != 0 || x->hi != EXPR_MANY)
            w[m++] = w[i];
    }
    return m;
}

uint32_t expr_both_of(struct exprs *s, const uint32_t *v, uint32_t n)
{
    uint32_t few[32], m, r;
    uint8_t any, every;
    uint32_t *w = s->failed ? NULL : parts_of(s, EXPR_BOTH, EXPR_ALL, v, n, few, &m);
    if (!w)
        return EXPR_NONE;
    m = sort_parts(s, w, m, &any, &every);
    m = without_implied(s, w, m);
    if (m && w[0] == EXPR_NONE)
        r = EXPR_NONE;
    else if (m > 1 && w[0] == EXPR_EPSILON)
        r = every & EXPR_NULLABLE ? EXPR_EPSILON : EXPR_NONE;
    else if (m == 0)
        r = EXPR_ALL;
    else if (m == 1)
        r = w[0];
    else
        r = list_expr(s, EXPR_BOTH, (uint8_t)((every & EXPR_NULLABLE) | EXPR_FILTERED), w, m);
    if (w != few)
        free(w);
    return r;
}

uint32_t expr_both(struct exprs *s, uint32_t a, uint32_t b) { return expr_both_of(s, (uint32_t[]){ a, b }, 2); }

uint32_t expr_not(struct exprs *s, uint32_t a)
{
    if (s->failed)
        return EXPR_NONE;
    if (a == EXPR_NONE)
        return EXPR_ALL;
    if (s->e[a].kind == EXPR_NOT)
        return s->e[a].a;
    const uint8_t flags = (uint8_t)(EXPR_FILTERED | (s->e[a].flags & EXPR_NULLABLE ? 0 : EXPR_NULLABLE));
    return expr_intern(s, &(struct expr){ .kind = EXPR_NOT, .flags = flags, .a = a });
}

/* ---- context-free ---- */

uint32_t expr_term(struct exprs *s, uint32_t regular)
{
    if (s->failed || regular == EXPR_NONE)
        return EXPR_NONE;
    if (regular == EXPR_EPSILON)
        return EXPR_EPSILON;
    return expr_intern(s, &(struct expr){ .kind = EXPR_TERM, .a = regular });
}

uint32_t expr_seq(struct exprs *s, uint32_t a, uint32_t b)
{
    if (s->failed || a == EXPR_NONE || b == EXPR_NONE)
        return EXPR_NONE;
    if (a == EXPR_EPSILON || b == EXPR_EPSILON)
        return a == EXPR_EPSILON ? b : a;
    return expr_intern(s, &(struct expr){ .kind = EXPR_SEQ, .a = a, .b = b });
}

uint32_t expr_any_of(struct exprs *s, const uint32_t *v, uint32_t n)
{
    uint32_t few[32], m, r = EXPR_NONE;
    uint8_t any, every;
    uint32_t *w = s->failed ? NULL : parts_of(s, EXPR_ANY_OF, EXPR_NONE, v, n, few, &m);
    if (!w)
        return EXPR_NONE;
    s->meter.work += m;
    m = sort_parts(s, w, m, &any, &every);
    if (m == 1)
        r = w[0];
    else if (m)
        r = list_expr(s, EXPR_ANY_OF, 0, w, m);
    if (w != few)
        free(w);
    return r;
}

uint32_t expr_times(struct exprs *s, uint32_t a, int32_t lo, int32_t hi)
{
    if (s->failed)
        return EXPR_NONE;
    if (hi == 0 || a == EXPR_EPSILON)
        return EXPR_EPSILON;
    if (a == EXPR_NONE)
        return lo ? EXPR_NONE : EXPR_EPSILON;
    if (lo == 1 && hi == 1)
        return a;
    return expr_intern(s, &(struct expr){ .kind = EXPR_TIMES, .a = a, .lo = lo, .hi = hi });
}

uint32_t expr_rule(struct exprs *s, int32_t index)
{
    return s->failed ? (uint32_t)EXPR_NONE : expr_intern(s, &(struct expr){ .kind = EXPR_RULE, .lo = index });
}

uint32_t expr_cell(struct exprs *s, uint32_t top, uint32_t rest)
{
    if (s->failed)
        return EXPR_NONE;
    return expr_intern(s, &(struct expr){ .kind = EXPR_CELL, .a = top, .b = rest });
}

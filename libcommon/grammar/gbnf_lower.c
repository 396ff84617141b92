/* gbnf_lower.c - make regular expressions of the rules that do not contain themselves. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/graph.h"
#include "libcommon/grammar/internal.h"

struct lower {
    struct grammar *g;
    uint8_t *recursive;                 /* for each rule, whether it contains itself */
    uint32_t *done;                     /* for each rule, its lowered expression + 1 */
    int depth, failed;
};

/* Mark the rules named in the expression e, without following their bodies.  seen: by
 * expression. */
static void rules_in(const struct grammar *g, uint32_t e, uint8_t *mark, uint8_t *seen, int depth, int *failed)
{
    const struct exprs *s = &g->x;
    for (;;) {
        const struct expr *x = &s->e[e];
        if (seen[e])
            return;
        seen[e] = 1;
        if (depth > 4000) {
            *failed = 1;
            return;
        }
        if (x->kind == EXPR_RULE) {
            mark[x->lo] = 1;
            return;
        }
        if (x->kind == EXPR_ANY_OF) {
            for (uint32_t i = 0; i < x->b; i++)
                rules_in(g, s->lists[x->a + i], mark, seen, depth + 1, failed);
            return;
        }
        if (x->kind == EXPR_TIMES) {
            e = x->a;
        } else if (x->kind == EXPR_SEQ) {
            rules_in(g, x->a, mark, seen, depth + 1, failed);
            e = x->b;
        } else {
            return;
        }
    }
}

/* Mark the rules that are on a cycle of rules. */
static int find_recursive(struct grammar *g, uint8_t *recursive, struct err *e)
{
    const uint32_t n = g->n_rules;
    struct graph rules = { .n_nodes = n };
    uint8_t *used = calloc((size_t)n + 1, 1), *seen = calloc((size_t)g->x.n + 1, 1);
    int rc = -1, too_deep = 0;
    if (!used || !seen)
        goto memory;
    for (uint32_t i = 0; i < n; i++) {
        memset(seen, 0, g->x.n);
        memset(used, 0, n);
        g->x.meter.work += g->x.n / 64 + n / 64;
        rules_in(g, g->rule[i], used, seen, 0, &too_deep);
        for (uint32_t k = 0; k < n; k++)
            if (used[k] && graph_add(&rules, i, k) != 0)
                goto memory;
        if (grammar_check_work(g, e) != 0)
            goto done;
    }
    if (too_deep) {
        err_set(e, ERR_LIMIT, "grammar: rules nested too deep");
        goto done;
    }
    if ((rc = graph_cycles(&rules, recursive)) == 0)
        goto done;
memory:
    err_nomem(e, "a grammar");
done:
    graph_release(&rules);
    free(used);
    free(seen);
    return rc;
}

static int regular(const struct exprs *s, uint32_t e) { return e == EXPR_EPSILON || s->e[e].kind == EXPR_TERM; }
static uint32_t inside(const struct exprs *s, uint32_t e) { return e == EXPR_EPSILON ? e : s->e[e].a; }

/* The lowered form of e: a terminal if all of it is regular. */
static uint32_t lower(struct lower *l, uint32_t e)
{
    struct exprs *s = &l->g->x;
    const struct expr x = s->e[e];
    uint32_t r = EXPR_NONE;
    if (s->failed || l->failed || e <= EXPR_EPSILON || x.kind == EXPR_TERM)
        return e;
    if (++l->depth > 4000) {
        l->failed = 1;
        return EXPR_NONE;
    }
    if (x.kind == EXPR_SEQ) {
        uint32_t a = lower(l, x.a), b = lower(l, x.b);
        if (a == EXPR_NONE || b == EXPR_NONE)
            r = EXPR_NONE;
        else if (regular(s, a) && regular(s, b))
            r = expr_term(s, expr_concat(s, inside(s, a), inside(s, b)));
        else
            r = expr_seq(s, a, b);
    } else if (x.kind == EXPR_TIMES) {
        uint32_t a = lower(l, x.a);
        r = regular(s, a) ? expr_term(s, expr_repeat(s, inside(s, a), x.lo, x.hi)) : expr_times(s, a, x.lo, x.hi);
    } else if (x.kind == EXPR_RULE) {
        if (l->recursive[x.lo]) {
            r = e;
        } else {
            if (!l->done[x.lo])
                l->done[x.lo] = lower(l, l->g->rule[x.lo]) + 1;
            r = l->done[x.lo] - 1;
        }
    } else if (x.kind == EXPR_ANY_OF) {
        uint32_t *v = malloc(2 * x.b * sizeof *v), *parts = v + x.b, n = 0, n_parts = 0;
        if (!v) {
            s->failed = EXPR_NO_MEMORY;
            return EXPR_NONE;
        }
        for (uint32_t i = 0; i < x.b; i++) {
            uint32_t a = lower(l, s->lists[x.a + i]);
            if (a != EXPR_NONE && regular(s, a))
                parts[n_parts++] = inside(s, a);
            else if (a != EXPR_NONE)
                v[n++] = a;
        }
        if (n_parts)
            v[n++] = expr_term(s, expr_union(s, parts, n_parts));
        r = expr_any_of(s, v, n);
        free(v);
    }
    l->depth--;
    return r;
}

int grammar_lower(struct grammar *g, uint32_t *root, struct err *e)
{
    struct lower l = { .g = g, .recursive = calloc(g->n_rules + 1, 1),
                       .done = calloc((size_t)g->n_rules + 1, sizeof *l.done) };
    int rc = -1;
    if (!l.recursive || !l.done)
        err_nomem(e, "a grammar");
    else
        rc = find_recursive(g, l.recursive, e);
    for (uint32_t i = 0; rc == 0 && i < g->n_rules; i++)
        if (l.recursive[i])
            g->rule[i] = lower(&l, g->rule[i]);
    if (rc == 0)
        *root = lower(&l, *root);
    if (rc == 0 && l.failed)
        rc = err_set(e, ERR_LIMIT, "grammar: rules nested too deep");
    for (uint32_t i = 2, n = g->x.n; rc == 0 && i < n; i++)
        if (g->x.e[i].kind == EXPR_TERM && i == *root)
            rc = grammar_probe(g, g->x.e[i].a, e);
    free(l.recursive);
    free(l.done);
    return rc == 0 ? grammar_check_work(g, e) : rc;
}

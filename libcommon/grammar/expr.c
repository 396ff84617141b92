/* expr.c - the store of expressions: equal ones get equal numbers, and work is counted. */
#include "libcommon/grammar/expr_store.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/grow.h"

static int grow_nodes(struct exprs *s)
{
    uint32_t n = s->room ? s->room * 2 : 1024;
    struct expr *e = realloc(s->e, n * sizeof *e);
    if (e)
        s->e = e;
    uint32_t *m = realloc(s->memo, n * sizeof *m);
    if (m)
        s->memo = m;
    uint32_t *o = realloc(s->memo_of, n * sizeof *o);
    if (o)
        s->memo_of = o;
    uint32_t *t = realloc(s->state_of, n * sizeof *t);
    if (t)
        s->state_of = t;
    if (!e || !m || !o || !t)
        return -1;
    memset(s->memo_of + s->room, 0, (n - s->room) * sizeof *o);
    memset(s->state_of + s->room, 0, (n - s->room) * sizeof *t);
    s->room = n;
    return 0;
}

static uint32_t hash(const struct exprs *s, const struct expr *x)
{
    uint32_t h = expr_mix(expr_mix(expr_mix(x->kind, (uint32_t)x->lo), (uint32_t)x->hi), x->b);
    if (x->kind == EXPR_BRANCH) {
        for (uint32_t i = 0; i < x->b; i++) {
            const struct arm *r = &s->arms[x->a + i];
            h = expr_mix(expr_mix(h, (uint32_t)r->lo << 8 | r->hi), r->to);
        }
    } else if (expr_has_list(x)) {
        for (uint32_t i = 0; i < x->b; i++)
            h = expr_mix(h, s->lists[x->a + i]);
    } else {
        h = expr_mix(h, x->a);
    }
    return expr_mix(h, h >> 7);
}

static int same(const struct exprs *s, const struct expr *x, const struct expr *y)
{
    if (x->kind != y->kind || x->b != y->b || x->lo != y->lo || x->hi != y->hi)
        return 0;
    if (expr_has_list(x))
        return !memcmp(s->lists + x->a, s->lists + y->a, x->b * sizeof *s->lists);
    if (x->kind != EXPR_BRANCH)
        return x->a == y->a;
    for (uint32_t i = 0; i < x->b; i++) {
        const struct arm *p = &s->arms[x->a + i], *q = &s->arms[y->a + i];
        if (p->lo != q->lo || p->hi != q->hi || p->to != q->to)
            return 0;
    }
    return 1;
}

void exprs_fail(struct exprs *s, enum expr_failure why)
{
    if (!s->failed)
        s->failed = why;
}

/* ---- counting ---- */

void meter_start(struct exprs *s, uint64_t most, uint64_t pause, const atomic_int *cancel)
{
    struct meter *m = &s->meter;
    m->spent = 0;
    m->derived_from = 0;
    m->most = most;
    m->pause_at = pause ? m->work + pause : UINT64_MAX;
    m->cancel = cancel;
    m->check_at = m->work + 1;
}

void meter_check(struct exprs *s)
{
    enum { EVERY = 1024 };
    struct meter *m = &s->meter;
    m->check_at = m->pause_at - m->work < EVERY ? m->pause_at : m->work + EVERY;
    if (m->cancel && atomic_load_explicit(m->cancel, memory_order_relaxed))
        exprs_fail(s, EXPR_CANCELLED);
    else if (m->spent + (m->derived_from ? m->work - m->derived_from : 0) > m->most)
        exprs_fail(s, EXPR_TOO_COSTLY);
    else if (m->work >= m->pause_at)
        exprs_fail(s, EXPR_PAUSED);
}

static int rehash(struct exprs *s)
{
    uint32_t n = s->n_table ? s->n_table * 2 : 4096;
    uint32_t *t = calloc(n, sizeof *t);
    if (!t)
        return -1;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t k = hash(s, &s->e[i]) & (n - 1);
        while (t[k])
            k = (k + 1) & (n - 1);
        t[k] = i + 1;
    }
    free(s->table);
    s->table = t;
    s->n_table = n;
    return 0;
}

/* Returns the number of x.  The arms or the list of x, if it has any, are the last ones of their
 * array and are removed if x exists already. */
uint32_t expr_intern(struct exprs *s, const struct expr *x)
{
    uint32_t k = hash(s, x) & (s->n_table - 1);
    meter_step(s, 0);
    for (; s->table[k]; k = (k + 1) & (s->n_table - 1))
        if (same(s, x, &s->e[s->table[k] - 1])) {
            if (x->kind == EXPR_BRANCH)
                s->n_arms = x->a;
            else if (expr_has_list(x))
                s->n_lists = x->a;
            return s->table[k] - 1;
        }
    if (s->n >= s->limit) {
        exprs_fail(s, EXPR_TOO_LARGE);
        return EXPR_NONE;
    }
    if ((s->n == s->room && grow_nodes(s) != 0) || s->n + 1 == s->n_table) {
        exprs_fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    s->e[s->n] = *x;
    s->table[k] = ++s->n;
    if (s->n * 2 > s->n_table && rehash(s) != 0)
        exprs_fail(s, EXPR_NO_MEMORY);
    return s->n - 1;
}

int exprs_init(struct exprs *s, uint32_t limit, struct err *e)
{
    memset(s, 0, sizeof *s);
    s->limit = limit;
    s->n_rows = 1;                      /* row 0: none */
    meter_start(s, UINT64_MAX, 0, NULL);
    if (grow_nodes(s) != 0 || rehash(s) != 0) {
        exprs_release(s);
        return err_nomem(e, "a grammar");
    }
    expr_intern(s, &(struct expr){ .kind = EXPR_EMPTY });
    expr_intern(s, &(struct expr){ .kind = EXPR_NULL, .flags = EXPR_NULLABLE });
    expr_intern(s, &(struct expr){ .kind = EXPR_NOT, .a = EXPR_NONE, .flags = EXPR_NULLABLE });
    return 0;
}

void exprs_release(struct exprs *s)
{
    free(s->e);
    free(s->table);
    free(s->arms);
    free(s->lists);
    free(s->memo);
    free(s->memo_of);
    free(s->state_of);
    free(s->rows);
    free(s->costs);
    free(s->within);
    memset(s, 0, sizeof *s);
}

int exprs_check(const struct exprs *s, struct err *e)
{
    switch (s->failed) {
    case EXPR_OK: return 0;
    case EXPR_NO_MEMORY: return err_nomem(e, "a grammar");
    case EXPR_TOO_LARGE: return err_set(e, ERR_LIMIT, "the grammar is too large: more than %u parts", s->limit);
    case EXPR_TOO_COSTLY: return err_set(e, ERR_LIMIT, "the grammar is too costly: more than %llu steps for one token",
                                         (unsigned long long)s->meter.most);
    case EXPR_PAUSED: case EXPR_CANCELLED: return err_set(e, ERR_LIMIT, "the work on a grammar was cancelled");
    case EXPR_TOO_MANY_STATES: return err_set(e, ERR_LIMIT, "conditions that must all hold have too many states together (lengths next to a long pattern, lookahead)");
    default: return err_set(e, ERR_LIMIT, "the grammar is too ambiguous: more than %d ways to go on at one place",
                            EXPR_MAX_UNION);
    }
}

void exprs_forget_rows(struct exprs *s)
{
    memset(s->state_of, 0, s->room * sizeof *s->state_of);
    s->n_rows = 1;
}

struct exprs_mark exprs_mark(const struct exprs *s) { return (struct exprs_mark){ s->n, s->n_arms, s->n_lists }; }

void exprs_cut(struct exprs *s, const struct exprs_mark *m)
{
    exprs_forget_rows(s);
    s->n = m->n;
    s->n_arms = m->n_arms;
    s->n_lists = m->n_lists;
    memset(s->table, 0, s->n_table * sizeof *s->table);
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t k = hash(s, &s->e[i]) & (s->n_table - 1);
        while (s->table[k])
            k = (k + 1) & (s->n_table - 1);
        s->table[k] = i + 1;
    }
    s->failed = EXPR_OK;
}

static void shrink(void **p, size_t n, size_t size)
{
    void *q = realloc(*p, n * size);
    if (q)
        *p = q;
}

void exprs_shrink(struct exprs *s)
{
    enum { SPARE = 64 };
    free(s->rows);
    free(s->costs);
    s->rows = NULL;
    s->costs = NULL;
    s->room_rows = 0;
    if (s->n + SPARE < s->room) {
        s->room = s->n + SPARE;
        shrink((void **)&s->e, s->room, sizeof *s->e);
        shrink((void **)&s->memo, s->room, sizeof *s->memo);
        shrink((void **)&s->memo_of, s->room, sizeof *s->memo_of);
        shrink((void **)&s->state_of, s->room, sizeof *s->state_of);
    }
    if (s->n_arms + SPARE < s->room_arms)
        shrink((void **)&s->arms, s->room_arms = s->n_arms + SPARE, sizeof *s->arms);
    if (s->n_lists + SPARE < s->room_lists)
        shrink((void **)&s->lists, s->room_lists = s->n_lists + SPARE, sizeof *s->lists);
}

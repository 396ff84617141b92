/* expr_step.c - derivatives: the expression for the text that may follow a byte, cached in rows. */
#include "libcommon/grammar/expr_store.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 1 << 15, UNKNOWN = -1 };

static uint32_t arm_of(const struct exprs *s, const struct expr *x, int byte)
{
    const struct arm *r = s->arms + x->a;
    uint32_t a = 0, b = x->b;
    while (a < b) {
        uint32_t m = (a + b) / 2;
        if (r[m].hi < byte)
            a = m + 1;
        else
            b = m;
    }
    return a < x->b && r[a].lo <= byte ? r[a].to : (uint32_t)EXPR_NONE;
}

static uint32_t derive(struct exprs *s, uint32_t e, int byte)
{
    const struct expr x = s->e[e];      /* a copy: the array moves */
    uint32_t r = EXPR_NONE;
    meter_step(s, 0);
    switch (x.kind) {
    case EXPR_BRANCH:
        return arm_of(s, &x, byte);
    case EXPR_CONCAT: case EXPR_UNION: case EXPR_REPEAT: case EXPR_BOTH: case EXPR_NOT: case EXPR_WITHIN:
        break;
    default:
        return EXPR_NONE;
    }
    if (s->memo_of[e] == s->epoch)
        return s->memo[e];
    if (s->failed)
        return EXPR_NONE;
    if (x.kind == EXPR_CONCAT) {
        r = expr_concat(s, derive(s, x.a, byte), x.b);
        if (s->e[x.a].flags & EXPR_NULLABLE)
            r = expr_either(s, r, derive(s, x.b, byte));
    } else if (x.kind == EXPR_REPEAT) {
        r = expr_concat(s, derive(s, x.a, byte),
                        expr_repeat(s, x.a, x.lo ? x.lo - 1 : 0, x.hi == EXPR_MANY ? x.hi : x.hi - 1));
    } else if (x.kind == EXPR_NOT) {
        r = expr_not(s, derive(s, x.a, byte));
    } else if (x.kind == EXPR_WITHIN) {
        const int begins = x.b == EXPR_EPSILON;
        if (!begins || x.hi)
            r = expr_within_left(s, derive(s, x.a, byte), derive(s, begins ? s->one_char : x.b, byte), x.hi - begins);
    } else {
        uint32_t few[32], *v = x.b > 32 ? malloc(x.b * sizeof *v) : few, n = 0;
        if (!v) {
            exprs_fail(s, EXPR_NO_MEMORY);
            return EXPR_NONE;
        }
        for (uint32_t i = 0; i < x.b; i++) {
            uint32_t d = derive(s, s->lists[x.a + i], byte);
            if (d != EXPR_NONE || x.kind == EXPR_BOTH)
                v[n++] = d;
            if (d == EXPR_NONE && x.kind == EXPR_BOTH)
                break;
        }
        r = x.kind == EXPR_UNION ? expr_union(s, v, n) : expr_both_of(s, v, n);
        if (v != few)
            free(v);
    }
    if (e < s->n) {
        s->memo[e] = r;
        s->memo_of[e] = s->epoch;
    }
    return r;
}

static void new_epoch(struct exprs *s)
{
    if (++s->epoch == 0) {
        memset(s->memo_of, 0, s->room * sizeof *s->memo_of);
        s->epoch = 1;
    }
}

/* A row with nothing known in it; 0: no memory. */
static uint32_t new_row(struct exprs *s)
{
    if (s->n_rows >= MAX_ROWS)
        exprs_forget_rows(s);
    if (s->n_rows >= s->room_rows) {
        const uint32_t n = s->room_rows ? s->room_rows * 2 : 64;
        uint32_t *p = realloc(s->rows, (size_t)n * 256 * sizeof *p);
        if (p)
            s->rows = p;
        struct row_costs *c = p ? realloc(s->costs, (size_t)n * sizeof *c) : NULL;
        if (!c) {
            exprs_fail(s, EXPR_NO_MEMORY);
            return 0;
        }
        s->costs = c;
        s->room_rows = n;
    }
    memset(s->rows + (size_t)s->n_rows * 256, 0xFF, 256 * sizeof *s->rows);
    s->costs[s->n_rows].walk = s->walk;
    memset(s->costs[s->n_rows].used, 0, sizeof s->costs->used);
    return s->n_rows++;
}

/* Compute a step that is not in the row yet, and store it there; *cost is the work for it. */
static uint32_t find_step(struct exprs *s, uint32_t e, int byte, uint32_t row, uint8_t *cost)
{
    const uint64_t from = s->meter.work;
    new_epoch(s);
    s->meter.derived_from = from;
    uint32_t r = derive(s, e, byte);
    s->meter.derived_from = 0;
    *cost = cost_code(s->meter.work - from + 1);
    if (s->failed)
        return EXPR_NONE;
    if (s->e[r].flags & EXPR_DEAD)
        r = EXPR_NONE;
    s->costs[row].cost[byte] = *cost;
    return s->rows[(size_t)row * 256 + (size_t)byte] = r;
}

/* once: count in full only the first time in this walk. */
static inline uint32_t step(struct exprs *s, uint32_t e, int byte, int once)
{
    const struct expr *x = &s->e[e];
    if (x->kind == EXPR_BRANCH) {
        uint32_t r = arm_of(s, x, byte);
        meter_step(s, 1);
        return s->e[r].flags & EXPR_DEAD ? (uint32_t)EXPR_NONE : r;
    }
    if (e <= EXPR_EPSILON)
        return EXPR_NONE;
    uint32_t row = s->state_of[e], r;
    if (!row && !(row = s->state_of[e] = new_row(s)))
        return EXPR_NONE;
    struct row_costs *c = &s->costs[row];
    int full = 1;
    if (once) {
        if (c->walk != s->walk) {
            c->walk = s->walk;
            memset(c->used, 0, sizeof c->used);
        }
        full = first_use(c->used, byte);
    }
    if ((r = s->rows[(size_t)row * 256 + (size_t)byte]) != (uint32_t)UNKNOWN) {
        meter_step(s, full ? cost_of(c->cost[byte]) : 1);
        return r;
    }
    uint8_t cost;
    r = find_step(s, e, byte, row, &cost);
    s->meter.spent += full ? cost_of(cost) : 1;
    return r;
}

uint32_t expr_step(struct exprs *s, uint32_t e, int byte) { return step(s, e, byte, 0); }
uint32_t expr_walk_first(struct exprs *s, uint32_t e, int byte) { return step(s, e, byte, 1); }

void expr_walk_start(struct exprs *s)
{
    /* the counter wraps: no old number may equal the new ones */
    if (++s->walk == 0)
        for (uint32_t i = 1; i < s->n_rows; i++)
            s->costs[i].walk = UINT32_MAX;
}

int expr_matches(struct exprs *s, uint32_t e, const void *text, size_t n)
{
    const unsigned char *p = text;
    for (size_t i = 0; i < n && e != EXPR_NONE; i++)
        e = expr_step(s, e, p[i]);
    return expr_nullable(s, e) != 0;
}

static void edge(uint64_t set[4], int b)
{
    if (b < 256)
        set[b >> 6] |= (uint64_t)1 << (b & 63);
}

void expr_add_edges(struct exprs *s, uint32_t e, uint64_t set[4])
{
    const struct expr *x = &s->e[e];
    if (x->kind == EXPR_BRANCH) {
        for (uint32_t i = 0; i < x->b; i++) {
            edge(set, s->arms[x->a + i].lo);
            edge(set, s->arms[x->a + i].hi + 1);
        }
        return;
    }
    if (s->memo_of[e] == s->epoch)
        return;
    s->memo_of[e] = s->epoch;
    meter_step(s, 0);
    if (x->kind == EXPR_CONCAT) {
        expr_add_edges(s, x->a, set);
        if (s->e[x->a].flags & EXPR_NULLABLE)
            expr_add_edges(s, x->b, set);
    } else if (x->kind == EXPR_UNION || x->kind == EXPR_BOTH) {
        for (uint32_t i = 0; i < x->b; i++)
            expr_add_edges(s, s->lists[x->a + i], set);
    } else if (x->kind == EXPR_REPEAT || x->kind == EXPR_NOT) {
        expr_add_edges(s, x->a, set);
    } else if (x->kind == EXPR_WITHIN) {
        expr_add_edges(s, x->a, set);
        expr_add_edges(s, x->b == EXPR_EPSILON ? s->one_char : x->b, set);
    }
}

void expr_edges(struct exprs *s, uint32_t e, uint64_t set[4])
{
    const uint64_t from = s->meter.work;
    new_epoch(s);
    expr_add_edges(s, e, set);
    s->meter.spent += s->meter.work - from;
}

void expr_first(struct exprs *s, uint32_t e, uint64_t set[4])
{
    uint64_t edges[4] = { 1, 0, 0, 0 };
    int alive = 0;
    expr_edges(s, e, edges);
    for (int b = 0; b < 256; b++) {
        if (edges[b >> 6] >> (b & 63) & 1)
            alive = expr_step(s, e, b) != EXPR_NONE;
        if (alive)
            set[b >> 6] |= (uint64_t)1 << (b & 63);
    }
}

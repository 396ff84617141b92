/* parse_config.c - configs: the sets of all positions that a text may have, and the steps between
 * them. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/grow.h"
#include "libcommon/grammar/matcher.h"

enum { MAX_THREADS = 16384 };
static const size_t max_growth = (size_t)256 << 20;

void config_add(struct grammar *g, uint32_t e, uint32_t stack)
{
    if (g->n_found == g->found_room) {
        if (g->n_found >= MAX_THREADS) {
            exprs_fail(&g->x, EXPR_AMBIGUOUS);
            return;
        }
        if (grow((void **)&g->found, &g->found_room, g->n_found + 1, sizeof *g->found) != 0) {
            exprs_fail(&g->x, EXPR_NO_MEMORY);
            return;
        }
    }
    g->found[g->n_found++] = (struct parse_thread){ e, stack };
}

static void push_work(struct grammar *g, uint32_t e, uint32_t stack)
{
    if (grow((void **)&g->work, &g->work_room, g->n_work + 1, sizeof *g->work) != 0) {
        exprs_fail(&g->x, EXPR_NO_MEMORY);
        return;
    }
    g->work[g->n_work++] = (struct parse_thread){ e, stack };
}

/* Add to `found` all positions of a text that must continue with e and then with the stack. */
void config_close_over(struct grammar *g, uint32_t e, uint32_t stack)
{
    struct exprs *s = &g->x;
    push_work(g, e, stack);
    while (g->n_work && !s->failed) {
        struct parse_thread t = g->work[--g->n_work];
        meter_step(s, 2);
        const struct expr x = s->e[t.e];
        int failed = 0;
        if (t.e == EXPR_EPSILON) {
            if (t.stack == EXPR_NONE) {
                g->found_end = 1;
                continue;
            }
            const struct expr cell = s->e[t.stack];
            push_work(g, cell.a, cell.b);
            continue;
        }
        if (t.e == EXPR_NONE || x.flags & EXPR_DEAD)
            continue;
        if (x.kind == EXPR_TERM) {
            config_add(g, x.a, t.stack);
            if (s->e[x.a].flags & EXPR_NULLABLE)
                push_work(g, EXPR_EPSILON, t.stack);
            continue;
        }
        struct id_slot *seen = id_map_at(&g->seen, ((uint64_t)t.e << 32 | t.stack) + 1, &failed);
        if (failed)
            exprs_fail(&g->x, EXPR_NO_MEMORY);
        if (failed || seen->value)
            continue;
        seen->value = 1;
        switch (x.kind) {
        case EXPR_SEQ:
            push_work(g, x.a, expr_cell(s, x.b, t.stack));
            break;
        case EXPR_ANY_OF:
            for (uint32_t i = 0; i < x.b; i++)
                push_work(g, s->lists[x.a + i], t.stack);
            break;
        case EXPR_TIMES:
            if (x.lo == 0)
                push_work(g, EXPR_EPSILON, t.stack);
            push_work(g, x.a, expr_cell(s, expr_times(s, x.a, x.lo ? x.lo - 1 : 0, x.hi == EXPR_MANY ? x.hi : x.hi - 1),
                                        t.stack));
            break;
        default:
            push_work(g, g->rule[x.lo], t.stack);
            break;
        }
    }
    g->n_work = 0;
}

static int by_thread(const void *a, const void *b)
{
    const struct parse_thread *x = a, *y = b;
    if (x->e != y->e)
        return x->e < y->e ? -1 : 1;
    return x->stack < y->stack ? -1 : x->stack > y->stack;
}

void config_begin(struct grammar *g)
{
    g->n_found = 0;
    g->found_end = 0;
    id_map_clear(&g->seen);
}

static int grow_config_table(struct grammar *g)
{
    const uint32_t room = g->n_config_table ? g->n_config_table * 2 : 1024;
    uint32_t *t = calloc(room, sizeof *t);
    if (!t) {
        exprs_fail(&g->x, EXPR_NO_MEMORY);
        return -1;
    }
    for (uint32_t i = 1; i < g->n_configs; i++) {
        uint32_t k = g->config[i].hash & (room - 1);
        while (t[k])
            k = (k + 1) & (room - 1);
        t[k] = i;
    }
    free(g->config_table);
    g->config_table = t;
    g->n_config_table = room;
    return 0;
}

/* The number of the set just built; 0: nothing may follow (also after a failure). */
uint32_t config_intern(struct grammar *g)
{
    uint32_t n = 0, h = 0x811C9DC5u;
    if (g->n_configs == 0) {            /* number 0 is the empty one */
        if (grow((void **)&g->config, &g->config_room, 1, sizeof *g->config) != 0) {
            exprs_fail(&g->x, EXPR_NO_MEMORY);
            return 0;
        }
        memset(&g->config[g->n_configs++], 0, sizeof *g->config);
    }
    if (g->cache_bytes > max_growth)
        exprs_fail(&g->x, EXPR_TOO_COSTLY);
    if (g->x.failed || (g->n_found == 0 && !g->found_end))
        return 0;
    g->x.meter.spent += 4 * (uint64_t)g->n_found;
    if (g->n_found > 1)
        qsort(g->found, g->n_found, sizeof *g->found, by_thread);
    for (uint32_t i = 0; i < g->n_found; i++)
        if (!n || by_thread(&g->found[i], &g->found[n - 1]) != 0) {
            g->found[n++] = g->found[i];
            h = (h ^ g->found[i].e) * 0x01000193u;
            h = (h ^ g->found[i].stack) * 0x01000193u;
            h ^= h >> 15;
        }
    h += (uint32_t)g->found_end;
    if (2 * g->n_configs >= g->n_config_table && grow_config_table(g) != 0)
        return 0;
    uint32_t k = h & (g->n_config_table - 1);
    for (; g->config_table[k]; k = (k + 1) & (g->n_config_table - 1)) {
        const struct parse_config *c = &g->config[g->config_table[k]];
        if (c->hash == h && c->n == n && c->accepting == g->found_end &&
            (!n || !memcmp(g->thread + c->first, g->found, n * sizeof *g->found)))
            return g->config_table[k];
    }
    if (grow((void **)&g->config, &g->config_room, g->n_configs + 1, sizeof *g->config) != 0 ||
        grow((void **)&g->thread, &g->thread_room, g->n_threads + n, sizeof *g->thread) != 0) {
        exprs_fail(&g->x, EXPR_NO_MEMORY);
        return 0;
    }
    struct parse_config *c = &g->config[g->n_configs];
    memset(c, 0, sizeof *c);
    c->first = g->n_threads;
    c->n = n;
    c->accepting = (uint8_t)g->found_end;
    c->hash = h;
    if (n)
        memcpy(g->thread + g->n_threads, g->found, n * sizeof *g->found);
    g->n_threads += n;
    g->cache_bytes += sizeof *c + n * sizeof *g->found;
    g->config_table[k] = g->n_configs;
    return g->n_configs++;
}

/* Reset the counts of c if its last use was in another call. */
static void uses(const struct grammar *g, struct parse_config *c)
{
    if (c->call != g->call) {
        c->call = g->call;
        c->used_first = 0;
        memset(c->used_next, 0, sizeof c->used_next);
    }
}

/* [256] the cost of finding the `next` of each byte. */
static uint8_t *next_costs(const struct parse_config *c) { return (uint8_t *)(c->next + 256); }

uint32_t config_step(struct grammar *g, uint32_t number, int byte)
{
    struct parse_config *c = &g->config[number];
    if (number == 0)
        return 0;
    if (!c->next) {
        if (!(c->next = calloc(256, sizeof *c->next + 1))) {
            exprs_fail(&g->x, EXPR_NO_MEMORY);
            return 0;
        }
        g->cache_bytes += 256 * (sizeof *c->next + 1);
    } else if (c->next[byte]) {
        uses(g, c);
        meter_step(&g->x, first_use(c->used_next, byte) ? cost_of(next_costs(c)[byte]) : 1);
        return c->next[byte] - 1;
    }
    uses(g, c);
    first_use(c->used_next, byte);
    const uint64_t from = g->x.meter.spent;
    meter_step(&g->x, 8);
    uint32_t first = c->first, n = c->n;
    config_begin(g);
    for (uint32_t i = 0; i < n && !g->x.failed; i++) {
        const struct parse_thread t = g->thread[first + i];
        uint32_t d = expr_step(&g->x, t.e, byte);
        if (d == EXPR_NONE)
            continue;
        if (d != EXPR_EPSILON)
            config_add(g, d, t.stack);
        if (expr_nullable(&g->x, d))
            config_close_over(g, EXPR_EPSILON, t.stack);
    }
    uint32_t to = config_intern(g);
    const uint8_t cost = cost_code(g->x.meter.spent - from);
    g->x.meter.spent = from + cost_of(cost);
    if (g->x.failed)
        return 0;
    g->config[number].next[byte] = to + 1;
    next_costs(&g->config[number])[byte] = cost;
    return to;
}

/* The places after the end of a terminal above this stack. */
uint32_t config_after(struct grammar *g, uint32_t stack)
{
    int failed = 0;
    struct id_slot *v = id_map_at(&g->after, (uint64_t)stack + 1, &failed);
    if (failed) {
        exprs_fail(&g->x, EXPR_NO_MEMORY);
        return 0;
    }
    if (v->value) {
        meter_step(&g->x, v->cost);
        return v->value - 1;
    }
    const uint64_t from = g->x.meter.spent;
    config_begin(g);
    config_close_over(g, EXPR_EPSILON, stack);
    uint32_t c = config_intern(g);
    if (g->x.failed)
        return 0;
    v->value = c + 1;                   /* nothing above adds to `after` */
    v->cost = (uint32_t)(g->x.meter.spent - from);
    return c;
}

const uint64_t *config_first(struct grammar *g, uint32_t number)
{
    struct parse_config *c = &g->config[number];
    uses(g, c);
    if (c->first_known) {
        meter_step(&g->x, c->used_first ? 1 : c->first_cost);
        c->used_first = 1;
        return c->first_bytes;
    }
    const uint64_t from = g->x.meter.spent;
    memset(c->first_bytes, 0, sizeof c->first_bytes);
    for (uint32_t i = 0; i < c->n && !g->x.failed; i++)
        expr_first(&g->x, g->thread[c->first + i].e, c->first_bytes);
    c->first_cost = (uint32_t)(g->x.meter.spent - from);
    c->first_known = c->used_first = !g->x.failed;
    return c->first_bytes;
}

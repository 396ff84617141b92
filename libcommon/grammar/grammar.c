/* grammar.c - the lifetime of a grammar, and helpers of the compilers of every syntax. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/grow.h"
#include "libcommon/grammar/internal.h"
#include "libcommon/grammar/matcher.h"

/* LEAST_SHARE: a grammar that has grown by less than 1 / LEAST_SHARE of its budget drops
 * nothing. */
enum { SETTLE_STATES = 1 << 15, LEAST_SHARE = 256 };

struct grammar *grammar_new(const struct grammar_vocab *v, const struct grammar_options *o, struct err *e)
{
    struct grammar *g = calloc(1, sizeof *g);
    if (!g) {
        err_nomem(e, "a grammar");
        return NULL;
    }
    if (o)
        g->options = *o;
    if (!g->options.max_exprs)
        g->options.max_exprs = 2000000;
    if (!g->options.max_work)
        g->options.max_work = 20000000;
    if (!g->options.max_steps)
        g->options.max_steps = GRAMMAR_STEPS;
    g->v = v;
    g->generation = 1;
    pthread_mutex_init(&g->lock, NULL);
    if (exprs_init(&g->x, g->options.max_exprs, e) != 0) {
        grammar_close(g);
        return NULL;
    }
    meter_start(&g->x, UINT64_MAX, g->options.max_work + 1, g->options.cancel);
    return g;
}

static size_t bytes_now(const struct grammar *g)
{
    const struct exprs *x = &g->x;
    const size_t store = (size_t)x->room * (sizeof *x->e + sizeof *x->memo + sizeof *x->memo_of + sizeof *x->state_of) +
                         (size_t)x->n_table * sizeof *x->table + (size_t)x->room_arms * sizeof *x->arms +
                         (size_t)x->room_lists * sizeof *x->lists +
                         (size_t)x->room_rows * (256 * sizeof *x->rows + sizeof *x->costs) +
                         (size_t)x->room_within * sizeof *x->within;
    const size_t tables = (size_t)g->config_room * sizeof *g->config + (size_t)g->thread_room * sizeof *g->thread +
                          (size_t)g->terminal_room * sizeof *g->terminal +
                          (size_t)g->n_config_table * sizeof *g->config_table +
                          ((size_t)g->after.room + g->terminals.room + g->seen.room) * sizeof *g->seen.slot +
                          (size_t)g->found_room * sizeof *g->found + (size_t)g->work_room * sizeof *g->work +
                          (size_t)g->rule_room * sizeof *g->rule + (size_t)g->category_room * sizeof *g->categories +
                          (size_t)g->n_delimited * sizeof *g->delimited;
    /* cache_bytes: memory owned by configs and terminals */
    return sizeof *g + store + tables + g->cache_bytes;
}

void grammar_count(struct grammar *g)
{
    const size_t now = bytes_now(g), before = atomic_exchange_explicit(&g->bytes, now, memory_order_relaxed);
    if (g->budget)
        atomic_fetch_add_explicit(&g->budget->used, now - before, memory_order_relaxed);
}

void grammar_share(struct grammar *g, struct grammar_budget *b)
{
    g->budget = b;
    g->least_bytes = grammar_bytes(g);
    atomic_fetch_add_explicit(&b->used, g->least_bytes, memory_order_relaxed);
}

int grammar_over_budget(const struct grammar *g)
{
    const struct grammar_budget *b = g->budget;
    return b && atomic_load_explicit(&b->used, memory_order_relaxed) > b->limit &&
           grammar_bytes(g) > g->least_bytes + b->limit / LEAST_SHARE;
}

/* Drop everything that can be recomputed. */
void grammar_forget(struct grammar *g)
{
    for (uint32_t i = 0; i < g->n_configs; i++) {
        free(g->config[i].next);
        free(g->config[i].mask);
    }
    for (uint32_t i = 0; i < g->n_terminals; i++) {
        free(g->terminal[i].ids);
        free(g->terminal[i].exits[0]);
        free(g->terminal[i].exits[1]);
    }
    g->n_configs = g->n_threads = g->n_terminals = g->n_masks = 0;
    g->cache_bytes = 0;
    free(g->after.slot);
    free(g->terminals.slot);
    memset(&g->after, 0, sizeof g->after);
    memset(&g->terminals, 0, sizeof g->terminals);
    if (g->config_table)
        memset(g->config_table, 0, g->n_config_table * sizeof *g->config_table);
    g->generation++;
    grammar_count(g);
}

void grammar_close(struct grammar *g)
{
    if (!g)
        return;
    grammar_forget(g);
    if (g->budget)
        atomic_fetch_sub_explicit(&g->budget->used, grammar_bytes(g), memory_order_relaxed);
    free(g->config);
    free(g->thread);
    free(g->config_table);
    free(g->terminal);
    free(g->found);
    free(g->work);
    free(g->seen.slot);
    free(g->rule);
    free(g->delimited);
    free(g->categories);
    free(g->root_thread);
    free(g->relaxed);
    exprs_release(&g->x);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

int32_t grammar_rule(struct grammar *g)
{
    if (grow((void **)&g->rule, &g->rule_room, g->n_rules + 1, sizeof *g->rule) != 0) {
        exprs_fail(&g->x, EXPR_NO_MEMORY);
        return 0;
    }
    g->rule[g->n_rules] = EXPR_NONE;
    return (int32_t)g->n_rules++;
}

uint32_t grammar_term(struct grammar *g, uint32_t regular)
{
    return expr_term(&g->x, exprs_settle(&g->x, regular, SETTLE_STATES));
}

int grammar_check_work(const struct grammar *g, struct err *e)
{
    if (g->x.meter.work > g->options.max_work && (!g->x.failed || g->x.failed == EXPR_PAUSED))
        return err_set(e, ERR_LIMIT, "compiling the grammar takes too long: more than %llu steps",
                       (unsigned long long)g->options.max_work);
    return exprs_check(&g->x, e);
}

int grammar_probe(struct grammar *g, uint32_t regular, struct err *e)
{
    enum { STATES = 256 };
    uint32_t v[STATES], n = 0;
    v[n++] = regular;
    for (uint32_t i = 0; i < n && !grammar_check_work(g, NULL); i++) {
        uint64_t edges[4] = { 1, 0, 0, 0 };
        expr_edges(&g->x, v[i], edges);
        for (int b = 0; b < 256 && n < STATES; b++) {
            if (!(edges[b >> 6] >> (b & 63) & 1))
                continue;
            uint32_t to = expr_step(&g->x, v[i], b), k = 0;
            while (k < n && v[k] != to)
                k++;
            if (to != EXPR_NONE && k == n)
                v[n++] = to;
        }
    }
    return grammar_check_work(g, e);
}

size_t grammar_bytes(const struct grammar *g) { return atomic_load_explicit(&g->bytes, memory_order_relaxed); }

void grammar_stats(struct grammar *g, struct grammar_stats *s)
{
    pthread_mutex_lock(&g->lock);
    *s = (struct grammar_stats){ .n_exprs = g->x.n, .n_rules = g->n_rules, .n_states = g->n_configs,
                                 .n_masks = g->n_masks, .work = g->compile_work };
    s->bytes = bytes_now(g);
    pthread_mutex_unlock(&g->lock);
}

/* config_mask.c - the mask of a config: the tokens that may come next.
 *
 * A mask is assembled from the terminals on top of the stacks.  Whether a token fits inside a
 * terminal does not depend on the stack.  So two lists are cached for each state of a terminal: the
 * tokens that lie inside the terminal or end with it, and the nodes of the trie at which the
 * terminal may end in the middle of a token.  Only the tokens below these nodes are checked with
 * the stack (the division of Dong et al. 2024, arXiv:2411.15100).  In a state inside a JSON string
 * the runs of plain characters are taken from the vocabulary, and only the other tokens are
 * checked. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/grow.h"
#include "libcommon/grammar/matcher.h"

/* Returns the largest number of characters that e allows before the closing quotation mark of a
 * JSON string; 0: e is not the inside of a string. */
static int32_t string_run(const struct grammar *g, uint32_t e)
{
    const struct exprs *s = &g->x;
    const struct expr *x = &s->e[e];
    if (x->kind != EXPR_CONCAT)
        return 0;
    const struct expr *r = &s->e[x->a], *end = &s->e[x->b];
    if (end->kind == EXPR_CONCAT)
        end = &s->e[end->a];
    if (r->kind != EXPR_REPEAT || end->kind != EXPR_BRANCH || end->b != 1 || s->arms[end->a].lo != '"' ||
        s->arms[end->a].hi != '"')
        return 0;
    if (r->a == EXPR_NONE || (r->a != g->string_char[0] && r->a != g->string_char[1]))
        return 0;
    return r->hi == EXPR_MANY || r->hi > VOCAB_RUNS ? VOCAB_RUNS : r->hi;
}

struct id_list { uint32_t *v, n, room; };

static inline int reserve(struct id_list *l, uint32_t more)
{
    return grow((void **)&l->v, &l->room, l->n + more, sizeof *l->v);
}

/* Walk the trie from e: find the tokens that fit, and the nodes where e may end inside a token.
 * Inside a JSON string that may be of any length, all runs of plain characters below a node fit and
 * are added without a walk.  Then *rest is set, and the caller walks the tokens that are not such
 * runs. */
static int walk_trie(struct grammar *g, const struct trie *t, uint32_t e, struct id_list *ids, struct id_list *exits,
                     int *rest)
{
    uint32_t state[MAX_TOKEN + 4];
    const uint32_t *runs = g->v->run[VOCAB_RUNS - 1];
    state[0] = e;
    for (uint32_t i = 1; i < t->n && !g->x.failed;) {
        uint32_t d = t->depth[i], to = expr_walk(&g->x, state[d - 1], t->byte[i]);
        if (to == EXPR_NONE) {
            i = t->skip[i];
            continue;
        }
        state[d] = to;
        uint32_t first = t->token[i], end = t->token[i + 1];
        if (rest && t->token[t->skip[i]] - first > 16 && string_run(g, to) == VOCAB_RUNS) {
            end = t->token[t->skip[i]];
            if (reserve(ids, end - first) != 0)
                return -1;
            for (; first < end; first++)
                if (mask_has(runs, t->order[first]))
                    ids->v[ids->n++] = (uint32_t)t->order[first];
            *rest = 1;
            i = t->skip[i];
            continue;
        }
        if (reserve(ids, end - first) != 0)
            return -1;
        while (first < end)
            ids->v[ids->n++] = (uint32_t)t->order[first++];
        if (expr_nullable(&g->x, to) && t->skip[i] > i + 1) {
            if (reserve(exits, 1) != 0)
                return -1;
            exits->v[exits->n++] = i;
        }
        i = to == EXPR_EPSILON ? t->skip[i] : i + 1;
    }
    return 0;
}

/* Shrink a list to its n numbers; returns the bytes that it then takes, including malloc's
 * overhead. */
static size_t fit(uint32_t **list, uint32_t n)
{
    enum { ALLOCATION = 32 };
    if (n == 0) {
        free(*list);
        *list = NULL;
        return 0;
    }
    uint32_t *less = realloc(*list, n * sizeof **list);
    if (less)
        *list = less;
    return ALLOCATION + n * sizeof **list;
}

static struct terminal *terminal_of(struct grammar *g, uint32_t e)
{
    int failed = 0, rest = 0;
    struct id_slot *v = id_map_at(&g->terminals, (uint64_t)e + 1, &failed);
    struct id_list ids = { 0 }, exits[2] = { { 0 }, { 0 } };
    const uint64_t from = g->x.meter.spent;
    if (!failed && v->value) {
        struct terminal *known = &g->terminal[v->value - 1];
        meter_step(&g->x, known->call == g->call ? 1 : known->cost);
        known->call = g->call;
        return known;
    }
    expr_walk_start(&g->x);
    if (failed || grow((void **)&g->terminal, &g->terminal_room, g->n_terminals + 1, sizeof *g->terminal) != 0)
        goto memory;
    int32_t run = string_run(g, e);
    if (!run && walk_trie(g, &g->v->all, e, &ids, &exits[0], &rest) != 0)
        goto memory;
    if ((run || rest) && walk_trie(g, &g->v->rest, e, &ids, &exits[1], NULL) != 0)
        goto memory;
    if (g->x.failed)
        goto fail;
    struct terminal x = { .e = e, .cost = (uint32_t)(g->x.meter.spent - from), .call = g->call, .n_ids = ids.n,
                          .ids = ids.v, .exits = { exits[0].v, exits[1].v }, .n_exits = { exits[0].n, exits[1].n } };
    if (run || ids.n > g->v->n_words) {
        uint32_t *bits = calloc(g->v->n_words, sizeof *bits);
        if (!bits)
            goto memory;
        if (run)
            memcpy(bits, g->v->run[run - 1], g->v->n_words * sizeof *bits);
        for (uint32_t i = 0; i < ids.n; i++)
            mask_set(bits, (int32_t)ids.v[i]);
        free(ids.v);
        x.ids = bits;
        x.n_ids = UINT32_MAX;
    }
    g->cache_bytes += sizeof x + fit(&x.ids, x.n_ids == UINT32_MAX ? g->v->n_words : x.n_ids) +
                      fit(&x.exits[0], x.n_exits[0]) + fit(&x.exits[1], x.n_exits[1]);
    g->terminal[g->n_terminals++] = x;
    v->value = g->n_terminals;          /* nothing above adds to `terminals` */
    return &g->terminal[g->n_terminals - 1];
memory:
    exprs_fail(&g->x, EXPR_NO_MEMORY);
fail:
    free(ids.v);
    free(exits[0].v);
    free(exits[1].v);
    return NULL;
}

/* Add the tokens below node i of the trie.  config: the config after the bytes that lead to node
 * i. */
static void below(struct grammar *g, const struct trie *t, uint32_t i, uint32_t config, uint32_t *mask)
{
    uint32_t state[MAX_TOKEN + 4], base = t->depth[i];
    state[0] = config;
    for (uint32_t k = i + 1, end = t->skip[i]; k < end && !g->x.failed;) {
        uint32_t d = t->depth[k] - base, to = config_step(g, state[d - 1], t->byte[k]);
        if (to == 0) {
            k = t->skip[k];
            continue;
        }
        state[d] = to;
        for (uint32_t x = t->token[k]; x < t->token[k + 1]; x++)
            mask_set(mask, t->order[x]);
        k++;
    }
}

const uint32_t *config_mask(struct grammar *g, uint32_t number)
{
    if (g->config[number].mask) {
        meter_step(&g->x, g->config[number].mask_cost);
        return g->config[number].mask;
    }
    const uint64_t from = g->x.meter.spent;
    size_t n_words = g->v->n_words;
    uint32_t *mask = calloc(n_words, sizeof *mask), first = g->config[number].first, n = g->config[number].n;
    if (!mask) {
        exprs_fail(&g->x, EXPR_NO_MEMORY);
        return NULL;
    }
    for (uint32_t k = 0; k < n && !g->x.failed; k++) {
        const struct parse_thread th = g->thread[first + k];
        const struct terminal *t = terminal_of(g, th.e);
        if (!t)
            break;
        meter_step(&g->x, 4 + (t->n_ids == UINT32_MAX ? n_words : t->n_ids) / 16);
        if (t->n_ids == UINT32_MAX)
            for (size_t i = 0; i < n_words; i++)
                mask[i] |= t->ids[i];
        else
            for (uint32_t i = 0; i < t->n_ids; i++)
                mask_set(mask, (int32_t)t->ids[i]);
        if (t->n_exits[0] + t->n_exits[1] == 0)
            continue;
        uint32_t after = config_after(g, th.stack);
        if (g->x.failed)
            break;
        const uint64_t *set = config_first(g, after);
        if (!(set[0] | set[1] | set[2] | set[3]))
            continue;
        uint32_t *const exits[2] = { t->exits[0], t->exits[1] }, n_exits[2] = { t->n_exits[0], t->n_exits[1] };
        for (int which = 0; which < 2; which++)
            for (uint32_t i = 0; i < n_exits[which] && !g->x.failed; i++)
                below(g, which ? &g->v->rest : &g->v->all, exits[which][i], after, mask);
    }
    if (g->config[number].accepting)
        for (int i = 0; i < g->v->n_eos; i++)
            mask_set(mask, g->v->eos[i]);
    if (g->x.failed) {
        free(mask);
        return NULL;
    }
    g->config[number].mask_cost = (uint32_t)(g->x.meter.spent - from);
    g->config[number].mask = mask;
    g->cache_bytes += n_words * sizeof *mask;
    g->n_masks++;
    return mask;
}

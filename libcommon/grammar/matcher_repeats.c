/* matcher_repeats.c - clear the tokens of a mask that would repeat an item of an array with
 * uniqueItems. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/grow.h"
#include "libcommon/grammar/matcher.h"

enum { MAX_REPEAT = 2000 };

/* The number of open arrays whose items must differ: the maximum over all positions of the
 * config. */
static uint32_t distinct_marks(struct grammar *g, uint32_t config)
{
    const struct parse_config *c = &g->config[config];
    uint32_t most = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t marks = 0;
        for (uint32_t stack = g->thread[c->first + i].stack; stack != EXPR_NONE; stack = g->x.e[stack].b)
            marks += g->x.e[stack].a == g->distinct;
        most = marks > most ? marks : most;
    }
    meter_step(&g->x, c->n);
    return most;
}

static int is_blank(int byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }
static int is_delimiter(int byte) { return byte == ',' || byte == ']' || byte == '}' || is_blank(byte); }

/* A place in the texts that would repeat an item: the texts first to end - 1 have the same first i
 * bytes, which are those written so far. */
struct again { struct distinct_rests *rests; uint32_t first, end, i; struct distinct_place place; };

static int byte_at(const struct again *a, uint32_t k)
{
    const struct byte_span *t = &a->rests->v[k];
    const uint32_t i = a->i - (uint32_t)a->rests->comma;
    return a->rests->comma && a->i == 0 ? ',' : i < t->n ? (unsigned char)t->p[i] : -1;
}

/* is_complete() returns 1 if one of the texts is complete.  goes_on() returns 1 if other bytes may
 * follow this complete text within the same item: a number may become a longer number, but a
 * string, an array or an object cannot become longer. */
static int is_complete(const struct again *a) { return a->first < a->end && byte_at(a, a->first) < 0; }
static int goes_on(const struct again *a)
{
    const struct byte_span *t = &a->rests->v[a->first];
    return !strchr("\"]}", t->p[t->n ? (int)t->n - 1 : -1]);
}

/* The position after one more byte; it has no texts if none of them has that byte. */
static struct again again_after(const struct again *a, int byte)
{
    struct again to = *a;
    while (to.first < to.end && byte_at(&to, to.first) != byte)
        to.first++;
    for (to.end = to.first; to.end < a->end && byte_at(&to, to.end) == byte;)
        to.end++;
    distinct_follow(&to.place, byte);
    to.i++;
    return to;
}

/* 1 if every continuation from the config repeats an item. */
static int repeats(struct grammar *g, const struct again *a, uint32_t config, int depth)
{
    uint64_t set[4];
    if (a->first == a->end || depth > MAX_REPEAT || !config || g->x.failed)
        return 0;
    if (is_complete(a) && !goes_on(a))
        return 1;
    memcpy(set, config_first(g, config), sizeof set);
    if (g->config[config].accepting)
        return 0;
    for (int byte = 0; byte < 256 && !g->x.failed; byte++) {
        if (!(set[byte >> 6] >> (byte & 63) & 1) || (!a->place.in_string && is_blank(byte)) ||
            (is_complete(a) && is_delimiter(byte)))
            continue;
        const struct again to = again_after(a, byte);
        if (to.first == to.end || !repeats(g, &to, config_step(g, config, byte), depth + 1))
            return 0;
    }
    return 1;
}

static void clear_tokens(struct matcher *m, uint32_t from, uint32_t end)
{
    const struct trie *t = &m->g->v->all;
    for (; from < end; from++)
        mask_clear(m->mask, t->order[from]);
}

/* Clear the tokens below a node that repeat an item, or after which every continuation would repeat
 * one. */
static void clear_again(struct matcher *m, const struct again *a, uint32_t node, uint32_t config)
{
    const struct trie *t = &m->g->v->all;
    const uint32_t end = t->skip[node];
    const int complete = is_complete(a);
    if (complete && !goes_on(a)) {
        clear_tokens(m, t->token[node], t->token[end]);
        return;
    }
    if (node && repeats(m->g, a, config, 0))
        clear_tokens(m, t->token[node], t->token[node + 1]);
    for (uint32_t k = node + 1; k < end && !m->g->x.failed; k = t->skip[k]) {
        const int byte = t->byte[k], blank = !a->place.in_string && is_blank(byte);
        if (complete && is_delimiter(byte)) {
            clear_tokens(m, t->token[k], t->token[t->skip[k]]);
            continue;
        }
        const struct again to = blank ? *a : again_after(a, byte);
        const uint32_t next = to.first < to.end ? config_step(m->g, config, byte) : 0;
        if (next)
            clear_again(m, &to, k, next);
    }
}

/* Call clear_again() or repeats() for each open array: 1 if every continuation repeats an item. */
static int each_distinct(struct matcher *m, const struct distinct *d, uint32_t config, int clear)
{
    int all = 0;
    for (uint32_t k = 0; k < d->n_levels && !m->g->x.failed; k++) {
        struct distinct_rests rests;
        if (distinct_rests(d, &d->level[k], &rests) != 0) {
            exprs_fail(&m->g->x, EXPR_NO_MEMORY);
            return 0;
        }
        const struct again a = { &rests, 0, rests.n, 0, { (uint8_t)rests.in_string, (uint8_t)rests.escaped } };
        m->g->x.meter.spent += rests.n;
        if (rests.n && clear)
            clear_again(m, &a, 0, config);
        else if (rests.n)
            all |= repeats(m->g, &a, config, 0);
        free(rests.v);
    }
    return all;
}

/* Follow a byte that leads to config c: 0, or -1 if an item is repeated. */
static int follow_distinct(struct matcher *m, struct distinct *d, uint32_t c, int byte)
{
    if (!d->n_levels && byte != '[')
        return 0;
    const int rc = distinct_byte(d, byte, byte == '[' ? distinct_marks(m->g, c) : 0);
    if (rc < 0)
        exprs_fail(&m->g->x, EXPR_NO_MEMORY);
    return rc ? -1 : 0;
}

uint32_t matcher_follow_bytes(struct matcher *m, uint32_t config, const unsigned char *p, size_t n,
                             struct distinct *next)
{
    struct grammar *g = m->g;
    if (distinct_copy(next, &m->distinct) != 0)
        exprs_fail(&g->x, EXPR_NO_MEMORY);
    /* count the cost of the copy, which is made for each of many tokens of a mask */
    meter_step(&g->x, 1 + next->n / 64 + next->n_items / 8);
    for (size_t i = 0; i < n && config && !g->x.failed; i++) {
        config = config_step(g, config, p[i]);
        if (config && g->distinct && follow_distinct(m, next, config, p[i]) != 0)
            config = 0;
    }
    if (config && next->n_items && !g->x.failed && each_distinct(m, next, config, 0))
        config = 0;
    return g->x.failed ? 0 : config;
}

static int find_delimited(struct grammar *g)
{
    uint32_t room = 0;
    for (int32_t id = 0; id < g->v->size; id++) {
        size_t n, i = 0;
        const char *p = grammar_vocab_bytes(g->v, id, &n);
        while (p && i < n && p[i] != ',' && p[i] != ']' && p[i] != '}')
            i++;
        if (!p || i == n)
            continue;
        if (grow((void **)&g->delimited, &room, g->n_delimited + 1, sizeof *g->delimited) != 0) {
            free(g->delimited);         /* an incomplete list would be wrong */
            g->delimited = NULL;
            g->n_delimited = 0;
            exprs_fail(&g->x, EXPR_NO_MEMORY);
            return -1;
        }
        g->delimited[g->n_delimited++] = id;
    }
    return 0;
}

/* 1 if an item, or a value around it, ends inside of these bytes. */
static int ends_item(const struct distinct *d, const char *p, size_t n)
{
    struct distinct_place place = { d->in_string, d->escaped };
    for (size_t i = 0; i < n; i++) {
        if (!place.in_string && (p[i] == ',' || p[i] == ']' || p[i] == '}'))
            return 1;
        distinct_follow(&place, (unsigned char)p[i]);
    }
    return 0;
}

/* Clear the tokens that repeat an item.  Tokens that continue an item are compared with the texts
 * that would repeat one; tokens that end an item are tried. */
void matcher_clear_repeated(struct matcher *m, uint32_t config)
{
    struct grammar *g = m->g;
    each_distinct(m, &m->distinct, config, 1);
    if (!g->delimited && find_delimited(g) != 0)
        return;
    for (uint32_t k = 0; k < g->n_delimited && !g->x.failed; k++) {
        const int32_t id = g->delimited[k];
        struct distinct next = { 0 };
        size_t n;
        const char *p = grammar_vocab_bytes(g->v, id, &n);
        if (!mask_has(m->mask, id) || !ends_item(&m->distinct, p, n))
            continue;
        if (!matcher_follow_bytes(m, config, (const unsigned char *)p, n, &next))
            mask_clear(m->mask, id);
        distinct_release(&next);
    }
}

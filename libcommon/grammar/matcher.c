/* matcher.c - run a grammar over bytes and tokens.
 *
 * An answer so far is a config: the set of all places (expression, stack) where it may stand.
 * Stacks are hash-consed lists, so the set shares them as a graph.  Configs are numbered, their
 * steps and masks are kept.
 *
 * A mask is put together from the terminals on top of the stacks.  What a token does inside a
 * terminal does not depend on the stack and is kept for each state of a terminal: the tokens
 * that stay inside or end with it, and the places in the trie where it may end before the token
 * does.  Only the tokens below those places are checked with the stack (as Dong et al. 2024,
 * arXiv:2411.15100, divide them).  A state inside of a JSON string takes the runs of plain
 * characters from the vocabulary and looks at the other tokens alone. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/grammar/distinct.h"
#include "libcommon/grammar/graph.h"
#include "libcommon/grammar/grow.h"
#include "libcommon/grammar/internal.h"

enum { MAX_THREADS = 16384, MAX_CONFIGS = 1 << 15, FORCED_BYTES = 256, SETTLE_STATES = 1 << 15, FORGET_STEPS = 1 << 22,
       BURST = 8, SUSTAINED = 16, MAX_REPEAT = 2000 };
static const size_t max_cache = (size_t)64 << 20, max_growth = (size_t)256 << 20;

struct matcher {
    struct grammar *g;
    uint32_t config, generation, store;
    unsigned char *text; size_t n_text, text_room;      /* all bytes accepted, for when the states are forgotten */
    struct parse_thread *thread; uint32_t n_threads, room;    /* a copy, for when the configs are forgotten */
    int accepting, ended;
    uint32_t *mask;                                     /* NULL without a vocabulary */
    uint64_t spent, n_tokens;                           /* steps of all calls so far, and tokens accepted */
    uint64_t pause;                                     /* steps after which a call is given up, to be made again; 0: none is */
    int busy;
    atomic_int cancelled;
    struct distinct distinct;
    struct err error;
};

static void fail(struct grammar *g, enum expr_failure why)
{
    if (!g->x.failed)
        g->x.failed = why;
}

/* ---- maps ---- */

static struct id_slot *map_at(struct id_map *m, uint64_t key, int *failed)
{
    if (2 * m->n >= m->room) {
        uint32_t room = m->room ? m->room * 2 : 64;
        struct id_slot *s = calloc(room, sizeof *s);
        if (!s) {
            *failed = 1;
            return NULL;
        }
        for (uint32_t i = 0; i < m->room; i++)
            if (m->slot[i].key) {
                uint32_t k = (uint32_t)((m->slot[i].key * 0x9E3779B97F4A7C15u) >> 32) & (room - 1);
                while (s[k].key)
                    k = (k + 1) & (room - 1);
                s[k] = m->slot[i];
            }
        free(m->slot);
        m->slot = s;
        m->room = room;
    }
    uint32_t k = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 32) & (m->room - 1);
    for (; m->slot[k].key; k = (k + 1) & (m->room - 1))
        if (m->slot[k].key == key)
            return &m->slot[k];
    m->slot[k] = (struct id_slot){ .key = key };
    m->n++;
    return &m->slot[k];
}

static void map_clear(struct id_map *m)
{
    if (m->room > 4096) {               /* once large, it would be slow to clear each time */
        free(m->slot);
        memset(m, 0, sizeof *m);
    } else if (m->n) {
        memset(m->slot, 0, m->room * sizeof *m->slot);
        m->n = 0;
    }
}

/* ---- grammars ---- */

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

static size_t grammar_bytes_now(const struct grammar *g)
{
    return g->cache_bytes + (size_t)g->x.room * (sizeof *g->x.e + 12) + (size_t)g->x.n_table * 4 + g->x.room_arms *
           sizeof *g->x.arms +
           g->x.room_lists * sizeof *g->x.lists + (size_t)g->x.room_rows * (1024 + sizeof *g->x.costs);
}

/* Forget what can be computed again. */
static void forget(struct grammar *g)
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
    atomic_store_explicit(&g->bytes, grammar_bytes_now(g), memory_order_relaxed);
}

void grammar_close(struct grammar *g)
{
    if (!g)
        return;
    forget(g);
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
        fail(g, EXPR_NO_MEMORY);
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

static int is_context_free(const struct expr *x) { return x->kind >= EXPR_TERM && x->kind <= EXPR_RULE; }

/* Of each context-free expression: can it end (alive), can it be empty? */
struct classes { uint8_t *alive, *empty; };

/* 1: the operands of i say more about it than was known.  operand: the one that changed,
 * EXPR_NONE: any of them; of long lists only that one is looked at. */
static int classify_one(const struct grammar *g, const struct classes *c, uint32_t i, uint32_t operand)
{
    const struct exprs *s = &g->x;
    const struct expr *x = &s->e[i];
    int a = 0, n = 0;
    switch (x->kind) {
    case EXPR_TERM: a = 1, n = s->e[x->a].flags & EXPR_NULLABLE; break;
    case EXPR_SEQ: a = c->alive[x->a] && c->alive[x->b], n = c->empty[x->a] && c->empty[x->b]; break;
    case EXPR_TIMES: a = x->lo == 0 || c->alive[x->a], n = x->lo == 0 || c->empty[x->a]; break;
    case EXPR_RULE: a = c->alive[g->rule[x->lo]], n = c->empty[g->rule[x->lo]]; break;
    case EXPR_ANY_OF:
        a = c->alive[operand];
        n = c->empty[operand];
        for (uint32_t k = 0; operand == EXPR_NONE && k < x->b; k++) {
            a |= c->alive[s->lists[x->a + k]];
            n |= c->empty[s->lists[x->a + k]];
        }
        break;
    default: return 0;
    }
    const int changed = (a && !c->alive[i]) || (n && !c->empty[i]);
    c->alive[i] |= a != 0;
    c->empty[i] |= n != 0;
    return changed;
}

/* Operands of i, none twice that matter: their number, in *list (two is scratch). */
static uint32_t operands(const struct grammar *g, uint32_t i, uint32_t two[2], const uint32_t **list)
{
    const struct expr *x = &g->x.e[i];
    *list = two;
    switch (x->kind) {
    case EXPR_SEQ: two[0] = x->a, two[1] = x->b; return 2;
    case EXPR_TIMES: two[0] = x->a; return 1;
    case EXPR_RULE: two[0] = g->rule[x->lo]; return 1;
    case EXPR_ANY_OF: *list = g->x.lists + x->a; return x->b;
    default: return 0;
    }
}

/* Least fixed points, by a queue of the expressions that changed: each changes twice at most. */
static int classify(const struct grammar *g, const struct classes *c, struct err *e)
{
    const uint32_t n = g->x.n, *list;
    uint32_t two[2], *queue = malloc(((size_t)2 * n + 1) * sizeof *queue), tail = 0;
    struct graph graph = { .n_nodes = n };      /* from each operand to the expressions that have it */
    struct neighbours users = { 0 };
    int rc = queue ? 0 : -1;
    for (uint32_t i = 2; rc == 0 && i < n; i++)
        for (uint32_t k = operands(g, i, two, &list); rc == 0 && k--;)
            rc = graph_add(&graph, list[k], i);
    if (rc != 0 || graph_neighbours(&graph, GRAPH_SUCCESSORS, &users) != 0) {
        rc = err_nomem(e, "a grammar");
        goto done;
    }
    c->alive[EXPR_EPSILON] = c->empty[EXPR_EPSILON] = 1;
    for (uint32_t i = 2; i < n; i++)
        if (classify_one(g, c, i, EXPR_NONE))
            queue[tail++] = i;
    for (uint32_t head = 0; head < tail; head++)
        for (uint32_t k = users.first[queue[head]]; k < users.first[queue[head] + 1]; k++)
            if (classify_one(g, c, users.node[k], queue[head]))
                queue[tail++] = users.node[k];
done:
    graph_release(&graph);
    neighbours_release(&users);
    free(queue);
    return rc;
}

/* Of the expressions of a cycle that are on the path: the first that is a rule. */
static int32_t rule_between(const struct grammar *g, const uint8_t *state, const uint32_t *path, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (state[path[i]] == 1 && g->x.e[path[i]].kind == EXPR_RULE)
            return (int32_t)g->x.e[path[i]].lo + 1;
    return 1;
}

/* A rule that begins with itself, + 1; 0: there is none.  An expression leads to those that may
 * begin it; state 1: on the path, 2: done. */
static int32_t left_recursive(const struct grammar *g, const uint8_t *empty, uint8_t *state, uint32_t *path)
{
    const struct exprs *s = &g->x;
    for (uint32_t root = 0; root < g->n_rules; root++) {
        uint32_t n = 0;
        if (g->rule[root] <= EXPR_EPSILON || state[g->rule[root]])
            continue;
        path[n++] = g->rule[root];
        while (n) {
            uint32_t i = path[n - 1];
            const struct expr *x = &s->e[i];
            if (state[i] == 1 || state[i] == 2) {       /* all that it leads to is done */
                state[i] = 2;
                n--;
                continue;
            }
            state[i] = 1;
            uint32_t to[2] = { 0, 0 };
            uint32_t k = 0, count = 2;
            const uint32_t *list = to;
            if (x->kind == EXPR_SEQ) {
                to[0] = x->a;
                to[1] = empty[x->a] ? x->b : 0;
            } else if (x->kind == EXPR_TIMES) {
                to[0] = x->a;
            } else if (x->kind == EXPR_RULE) {
                to[0] = g->rule[x->lo];
            } else if (x->kind == EXPR_ANY_OF) {
                list = s->lists + x->a;
                count = x->b;
            }
            for (; k < count; k++) {
                uint32_t t = list[k];
                if (t <= EXPR_EPSILON || s->e[t].kind == EXPR_TERM || state[t] == 2)
                    continue;
                if (state[t] == 1) {
                    /* on the path, or pushed by a sibling and visited since: only the first is a
                     * cycle */
                    for (uint32_t p = 0; p < n; p++)
                        if (path[p] == t && state[t] == 1)
                            return rule_between(g, state, path + p, n - p);
                    continue;
                }
                path[n++] = t;
            }
        }
    }
    return 0;
}

static void begin_config(struct grammar *g);
static uint32_t config_of(struct grammar *g);
static void close_over(struct grammar *g, uint32_t e, uint32_t stack);

/* Where every answer begins: matchers copy it without the lock. */
static int keep_root(struct grammar *g, uint32_t root, struct err *e)
{
    begin_config(g);
    close_over(g, root, EXPR_NONE);
    const uint32_t number = config_of(g);
    if (grammar_check_work(g, e) != 0)
        return -1;
    const struct parse_config *c = &g->config[number];
    if (!(g->root_thread = malloc((c->n + 1) * sizeof *g->root_thread)))
        return err_nomem(e, "a grammar");
    if (c->n)
        memcpy(g->root_thread, g->thread + c->first, c->n * sizeof *g->root_thread);
    g->n_root_threads = c->n;
    g->root_accepting = c->accepting;
    return 0;
}

int grammar_finish(struct grammar *g, uint32_t root, struct err *e)
{
    if (grammar_check_work(g, e) != 0)
        return -1;
    struct exprs *s = &g->x;
    uint8_t *alive = calloc(s->n + 1, 1), *empty = calloc(s->n + 1, 1), *state = calloc(s->n + 1, 1);
    size_t n_path = s->n + 1;
    for (uint32_t i = 0; i < s->n; i++)
        n_path += s->e[i].kind == EXPR_ANY_OF ? s->e[i].b : 2;
    uint32_t *path = malloc(n_path * sizeof *path);
    int rc = -1;
    if (!alive || !empty || !state || !path) {
        err_nomem(e, "a grammar");
        goto done;
    }
    if (classify(g, &(struct classes){ alive, empty }, e) != 0)
        goto done;
    if (!alive[root]) {
        err_set(e, ERR_FORMAT, "no text of finite length can satisfy this");
        goto done;
    }
    if ((g->left_recursive = left_recursive(g, empty, state, path))) {
        err_set(e, ERR_UNSUPPORTED, LEFT_RECURSION);
        goto done;
    }
    for (uint32_t i = 2; i < s->n; i++)
        if (is_context_free(&s->e[i]) && !alive[i])
            s->e[i].flags |= EXPR_DEAD;
    rc = keep_root(g, root, e);
    g->compiled = exprs_mark(s);
    g->compile_work = s->meter.work;
    g->options.cancel = NULL;           /* borrowed until here */
    meter_start(s, UINT64_MAX, 0, NULL);
    atomic_store_explicit(&g->bytes, grammar_bytes_now(g), memory_order_relaxed);
done:
    free(alive);
    free(empty);
    free(state);
    free(path);
    return rc;
}

/* ---- configs ---- */

static void add_found(struct grammar *g, uint32_t e, uint32_t stack)
{
    if (g->n_found == g->found_room) {
        if (g->n_found >= MAX_THREADS) {
            fail(g, EXPR_AMBIGUOUS);
            return;
        }
        if (grow((void **)&g->found, &g->found_room, g->n_found + 1, sizeof *g->found) != 0) {
            fail(g, EXPR_NO_MEMORY);
            return;
        }
    }
    g->found[g->n_found++] = (struct parse_thread){ e, stack };
}

static void push_work(struct grammar *g, uint32_t e, uint32_t stack)
{
    if (grow((void **)&g->work, &g->work_room, g->n_work + 1, sizeof *g->work) != 0) {
        fail(g, EXPR_NO_MEMORY);
        return;
    }
    g->work[g->n_work++] = (struct parse_thread){ e, stack };
}

/* Add to `found` all places where a text may stand that is about to match e and then the stack. */
static void close_over(struct grammar *g, uint32_t e, uint32_t stack)
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
            add_found(g, x.a, t.stack);
            if (s->e[x.a].flags & EXPR_NULLABLE)
                push_work(g, EXPR_EPSILON, t.stack);
            continue;
        }
        struct id_slot *seen = map_at(&g->seen, ((uint64_t)t.e << 32 | t.stack) + 1, &failed);
        if (failed)
            fail(g, EXPR_NO_MEMORY);
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

static void begin_config(struct grammar *g)
{
    g->n_found = 0;
    g->found_end = 0;
    map_clear(&g->seen);
}

/* The number of what was found; 0: nothing may follow (also after a failure). */
static uint32_t config_of(struct grammar *g)
{
    uint32_t n = 0, h = 0x811C9DC5u;
    if (g->n_configs == 0) {            /* number 0 is the empty one */
        if (grow((void **)&g->config, &g->config_room, 1, sizeof *g->config) != 0) {
            fail(g, EXPR_NO_MEMORY);
            return 0;
        }
        memset(&g->config[g->n_configs++], 0, sizeof *g->config);
    }
    if (g->cache_bytes > max_growth)
        fail(g, EXPR_TOO_COSTLY);
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
    if (2 * g->n_configs >= g->n_config_table) {
        uint32_t room = g->n_config_table ? g->n_config_table * 2 : 1024;
        uint32_t *t = calloc(room, sizeof *t);
        if (!t) {
            fail(g, EXPR_NO_MEMORY);
            return 0;
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
    }
    uint32_t k = h & (g->n_config_table - 1);
    for (; g->config_table[k]; k = (k + 1) & (g->n_config_table - 1)) {
        const struct parse_config *c = &g->config[g->config_table[k]];
        if (c->hash == h && c->n == n && c->accepting == g->found_end &&
            (!n || !memcmp(g->thread + c->first, g->found, n * sizeof *g->found)))
            return g->config_table[k];
    }
    if (grow((void **)&g->config, &g->config_room, g->n_configs + 1, sizeof *g->config) != 0 ||
        grow((void **)&g->thread, &g->thread_room, g->n_threads + n, sizeof *g->thread) != 0) {
        fail(g, EXPR_NO_MEMORY);
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

/* c knows what this call has used of it. */
static void uses(const struct grammar *g, struct parse_config *c)
{
    if (c->call != g->call) {
        c->call = g->call;
        c->used_first = 0;
        memset(c->used_next, 0, sizeof c->used_next);
    }
}

/* [256] what finding the `next` of each byte cost. */
static uint8_t *next_costs(const struct parse_config *c) { return (uint8_t *)(c->next + 256); }

static uint32_t config_step(struct grammar *g, uint32_t number, int byte)
{
    struct parse_config *c = &g->config[number];
    if (number == 0)
        return 0;
    if (!c->next) {
        if (!(c->next = calloc(256, sizeof *c->next + 1))) {
            fail(g, EXPR_NO_MEMORY);
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
    begin_config(g);
    for (uint32_t i = 0; i < n && !g->x.failed; i++) {
        const struct parse_thread t = g->thread[first + i];
        uint32_t d = expr_step(&g->x, t.e, byte);
        if (d == EXPR_NONE)
            continue;
        if (d != EXPR_EPSILON)
            add_found(g, d, t.stack);
        if (expr_nullable(&g->x, d))
            close_over(g, EXPR_EPSILON, t.stack);
    }
    uint32_t to = config_of(g);
    const uint8_t cost = cost_code(g->x.meter.spent - from);
    g->x.meter.spent = from + cost_of(cost);
    if (g->x.failed)
        return 0;
    g->config[number].next[byte] = to + 1;
    next_costs(&g->config[number])[byte] = cost;
    return to;
}

/* What comes when a terminal above this stack has ended. */
static uint32_t config_after(struct grammar *g, uint32_t stack)
{
    int failed = 0;
    struct id_slot *v = map_at(&g->after, (uint64_t)stack + 1, &failed);
    if (failed) {
        fail(g, EXPR_NO_MEMORY);
        return 0;
    }
    if (v->value) {
        meter_step(&g->x, v->cost);
        return v->value - 1;
    }
    const uint64_t from = g->x.meter.spent;
    begin_config(g);
    close_over(g, EXPR_EPSILON, stack);
    uint32_t c = config_of(g);
    if (g->x.failed)
        return 0;
    v->value = c + 1;                   /* nothing above adds to `after` */
    v->cost = (uint32_t)(g->x.meter.spent - from);
    return c;
}

static const uint64_t *config_first(struct grammar *g, uint32_t number)
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

/* ---- masks ---- */

static void set_bit(uint32_t *mask, int32_t id) { mask[id >> 5] |= 1u << (id & 31); }

/* How many characters of a JSON string may follow before its quotation mark; 0: that is not what
 * e is. */
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

static int is_bit(const uint32_t *mask, int32_t id) { return mask[id >> 5] >> (id & 31) & 1; }

struct id_list { uint32_t *v, n, room; };

static int add_to(struct id_list *l, uint32_t value)
{
    if (grow((void **)&l->v, &l->room, l->n + 1, sizeof *l->v) != 0)
        return -1;
    l->v[l->n++] = value;
    return 0;
}

/* Walk the trie from e: tokens that fit, and the nodes where e may end inside of tokens.  Where
 * a part of the trie is reached inside of a JSON string of any length, its runs of plain
 * characters fit as a whole, and *rest says that the others must be looked at. */
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
            for (end = t->token[t->skip[i]]; first < end; first++)
                if (is_bit(runs, t->order[first]) && add_to(ids, (uint32_t)t->order[first]) != 0)
                    return -1;
            *rest = 1;
            i = t->skip[i];
            continue;
        }
        for (; first < end; first++)
            if (add_to(ids, (uint32_t)t->order[first]) != 0)
                return -1;
        if (expr_nullable(&g->x, to) && t->skip[i] > i + 1 && add_to(exits, i) != 0)
            return -1;
        i = to == EXPR_EPSILON ? t->skip[i] : i + 1;
    }
    return 0;
}

static struct terminal *terminal_of(struct grammar *g, uint32_t e)
{
    int failed = 0, rest = 0;
    struct id_slot *v = map_at(&g->terminals, (uint64_t)e + 1, &failed);
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
            set_bit(bits, (int32_t)ids.v[i]);
        free(ids.v);
        x.ids = bits;
        x.n_ids = UINT32_MAX;
    }
    g->cache_bytes += sizeof x + (x.n_ids == UINT32_MAX ? g->v->n_words : x.n_ids) * sizeof *x.ids +
                      (x.n_exits[0] + x.n_exits[1]) * sizeof *x.exits[0];
    g->terminal[g->n_terminals++] = x;
    v->value = g->n_terminals;          /* nothing above adds to `terminals` */
    return &g->terminal[g->n_terminals - 1];
memory:
    fail(g, EXPR_NO_MEMORY);
fail:
    free(ids.v);
    free(exits[0].v);
    free(exits[1].v);
    return NULL;
}

/* Tokens below node i of the trie, of which that node's bytes have led to the config. */
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
            set_bit(mask, t->order[x]);
        k++;
    }
}

static const uint32_t *config_mask(struct grammar *g, uint32_t number)
{
    if (g->config[number].mask) {
        meter_step(&g->x, g->config[number].mask_cost);
        return g->config[number].mask;
    }
    const uint64_t from = g->x.meter.spent;
    size_t n_words = g->v->n_words;
    uint32_t *mask = calloc(n_words, sizeof *mask), first = g->config[number].first, n = g->config[number].n;
    if (!mask) {
        fail(g, EXPR_NO_MEMORY);
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
                set_bit(mask, (int32_t)t->ids[i]);
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
            set_bit(mask, g->v->eos[i]);
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

/* ---- matchers ---- */

/* m stands at this config. */
static int stand(struct matcher *m, uint32_t number)
{
    struct grammar *g = m->g;
    const struct parse_config *c = &g->config[number];
    if (grow((void **)&m->thread, &m->room, c->n, sizeof *m->thread) != 0)
        return -1;
    if (c->n)
        memcpy(m->thread, g->thread + c->first, c->n * sizeof *m->thread);
    m->n_threads = c->n;
    m->accepting = c->accepting;
    m->config = number;
    m->generation = g->generation;
    return 0;
}

static void next_call(struct grammar *g)
{
    if (++g->call != 0)
        return;
    for (uint32_t i = 0; i < g->n_configs; i++)         /* the numbers begin again */
        g->config[i].call = UINT32_MAX;
    for (uint32_t i = 0; i < g->n_terminals; i++)
        g->terminal[i].call = UINT32_MAX;
}

/* Where m stands, in states made anew: their numbers are others since the store was cut back. */
static void replay(struct matcher *m)
{
    struct grammar *g = m->g;
    g->n_found = 0;
    g->found_end = g->root_accepting;
    for (uint32_t i = 0; i < g->n_root_threads; i++)
        add_found(g, g->root_thread[i].e, g->root_thread[i].stack);
    uint32_t c = config_of(g);
    for (size_t i = 0; i < m->n_text && !g->x.failed; i++)
        c = config_step(g, c, m->text[i]);
    if (!g->x.failed && stand(m, c) != 0)
        fail(g, EXPR_NO_MEMORY);
    if (!g->x.failed)
        m->store = g->store;
}

/* Take the lock and begin to count; the config of m is there and the caches have room.  -1: not
 * now (busy), or m has failed before. */
static int enter(struct matcher *m, uint32_t *config)
{
    struct grammar *g = m->g;
    m->busy = 0;
    if (m->error.msg[0])
        return -1;
    if (m->pause && pthread_mutex_trylock(&g->lock) != 0) {
        m->busy = 1;
        return -1;
    }
    if (!m->pause)
        pthread_mutex_lock(&g->lock);
    if (g->cache_bytes > max_cache || g->n_configs > MAX_CONFIGS) {
        if (m->pause && m->pause < FORGET_STEPS) {      /* takes some milliseconds: for a call that has the time */
            m->busy = 1;
            pthread_mutex_unlock(&g->lock);
            return -1;
        }
        forget(g);
    }
    meter_start(&g->x, g->options.max_steps, m->pause, &m->cancelled);
    next_call(g);
    if (m->store != g->store) {
        replay(m);
        g->x.meter.spent = 0;
        next_call(g);
    } else if (m->generation != g->generation) {
        g->n_found = 0;
        g->found_end = m->accepting;
        for (uint32_t i = 0; i < m->n_threads; i++)
            add_found(g, m->thread[i].e, m->thread[i].stack);
        m->config = config_of(g);
        m->generation = g->generation - (g->x.failed != 0);
        g->x.meter.spent = 0;
    }
    *config = m->config;
    return 0;
}

/* Steps that this answer may have taken by now. */
static uint64_t allowance(const struct matcher *m)
{
    return m->g->options.max_steps * BURST + m->g->options.max_steps / SUSTAINED * m->n_tokens;
}

/* Give the lock back.  A failure is this matcher's, not the grammar's.  -1: the call has no
 * result; 1: it is to be made again.  cut: set where this call found the store full of what
 * others needed, too, and cut it back: in the new one it has room, or needs too much itself. */
static int leave(struct matcher *m, int *cut)
{
    struct grammar *g = m->g;
    if (g->x.failed == EXPR_TOO_LARGE && !*cut) {
        forget(g);
        exprs_cut(&g->x, &g->compiled);
        g->store++;
        *cut = 1;
        pthread_mutex_unlock(&g->lock);
        return 1;
    }
    if (g->x.meter.spent > g->options.max_steps && (!g->x.failed || g->x.failed == EXPR_PAUSED))
        g->x.failed = EXPR_TOO_COSTLY;
    const enum expr_failure why = g->x.failed;
    m->busy = why == EXPR_PAUSED;
    if (why && !m->busy)
        exprs_check(&g->x, &m->error);
    if (!why && (m->spent += g->x.meter.spent) > allowance(m))
        err_set(&m->error, ERR_LIMIT, "the grammar is too costly: more than %llu steps after %llu tokens",
                (unsigned long long)allowance(m), (unsigned long long)m->n_tokens);
    g->x.failed = EXPR_OK;
    atomic_store_explicit(&g->bytes, grammar_bytes_now(g), memory_order_relaxed);
    pthread_mutex_unlock(&g->lock);
    return m->busy || m->error.msg[0] ? -1 : 0;
}

struct matcher *matcher_open(struct grammar *g, struct err *e)
{
    struct matcher *m = calloc(1, sizeof *m);
    if (!m || (g->v && !(m->mask = calloc(g->v->n_words + 1, sizeof *m->mask)))) {
        free(m);
        err_nomem(e, "a matcher");
        return NULL;
    }
    m->g = g;
    m->room = m->n_threads = g->n_root_threads;
    m->accepting = g->root_accepting;
    if (!(m->thread = malloc((m->n_threads + 1) * sizeof *m->thread))) {
        matcher_close(m);
        err_nomem(e, "a matcher");
        return NULL;
    }
    if (m->n_threads)
        memcpy(m->thread, g->root_thread, m->n_threads * sizeof *m->thread);
    return m;                           /* generation 0: enter() looks its config up */
}

void matcher_close(struct matcher *m)
{
    if (!m)
        return;
    distinct_release(&m->distinct);
    free(m->thread);
    free(m->text);
    free(m->mask);
    free(m);
}

static int keep_text(struct matcher *m, const unsigned char *bytes, size_t n)
{
    if (m->n_text + n > m->text_room) {
        const size_t room = 2 * m->text_room + n + 64;
        unsigned char *p = realloc(m->text, room);
        if (!p)
            return -1;
        m->text = p;
        m->text_room = room;
    }
    if (n)
        memcpy(m->text + m->n_text, bytes, n);
    m->n_text += n;
    return 0;
}

struct matcher *matcher_fork(const struct matcher *m)
{
    struct matcher *n = malloc(sizeof *n);
    if (!n)
        return NULL;
    *n = *m;
    n->room = m->n_threads;
    n->thread = malloc((m->n_threads + 1) * sizeof *n->thread);
    n->mask = m->mask ? calloc(m->g->v->n_words + 1, sizeof *n->mask) : NULL;
    n->text = NULL;
    n->n_text = n->text_room = 0;
    if (distinct_copy(&n->distinct, &m->distinct) != 0 || !n->thread || keep_text(n, m->text, m->n_text) != 0 ||
        (m->mask && !n->mask)) {
        matcher_close(n);
        return NULL;
    }
    if (m->n_threads)
        memcpy(n->thread, m->thread, m->n_threads * sizeof *n->thread);
    return n;
}

static int is_eos(const struct grammar *g, int32_t id)
{
    for (int i = 0; g->v && i < g->v->n_eos; i++)
        if (g->v->eos[i] == id)
            return 1;
    return 0;
}

/* ---- items that must differ ---- */

/* The most arrays whose items must differ that are open at a place of the config. */
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

/* A place in the texts that would repeat an item: those of first to end - 1 agree up to byte i
 * of them. */
struct again { struct distinct_rests *rests; uint32_t first, end, i; struct distinct_place place; };

static int byte_at(const struct again *a, uint32_t k)
{
    const struct byte_span *t = &a->rests->v[k];
    const uint32_t i = a->i - (uint32_t)a->rests->comma;
    return a->rests->comma && a->i == 0 ? ',' : i < t->n ? (unsigned char)t->p[i] : -1;
}

/* One of the texts is complete.  A number may go on as another one, as all texts of its place
 * are; a string, an array or an object cannot. */
static int is_complete(const struct again *a) { return a->first < a->end && byte_at(a, a->first) < 0; }
static int goes_on(const struct again *a)
{
    const struct byte_span *t = &a->rests->v[a->first];
    return !strchr("\"]}", t->p[t->n ? (int)t->n - 1 : -1]);
}

/* The place behind one more byte; its texts are none where none has that byte. */
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

/* Does every way to go on from the config repeat an item? */
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
        m->mask[t->order[from] >> 5] &= ~(1u << (t->order[from] & 31));
}

/* Take the tokens below a node out of the mask that repeat an item, or leave no other way. */
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

/* Call clear_again() or repeats() for each array that is open: 1 if every way repeats an item. */
static int each_distinct(struct matcher *m, const struct distinct *d, uint32_t config, int clear)
{
    int all = 0;
    for (uint32_t k = 0; k < d->n_levels && !m->g->x.failed; k++) {
        struct distinct_rests rests;
        if (distinct_rests(d, &d->level[k], &rests) != 0) {
            fail(m->g, EXPR_NO_MEMORY);
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

/* The bytes lead to config c, from which the text goes on: 0, or -1 if an item is there twice. */
static int follow_distinct(struct matcher *m, struct distinct *d, uint32_t c, int byte)
{
    if (!d->n_levels && byte != '[')
        return 0;
    const int rc = distinct_byte(d, byte, byte == '[' ? distinct_marks(m->g, c) : 0);
    if (rc < 0)
        fail(m->g, EXPR_NO_MEMORY);
    return rc ? -1 : 0;
}

/* The config after the bytes, and the items in *next (all zero before); 0: they may not come
 * next. */
static uint32_t follow_bytes(struct matcher *m, uint32_t config, const unsigned char *p, size_t n,
                             struct distinct *next)
{
    struct grammar *g = m->g;
    if (distinct_copy(next, &m->distinct) != 0)
        fail(g, EXPR_NO_MEMORY);
    meter_step(&g->x, 1 + next->n / 64 + next->n_items / 8);    /* the copy; a mask makes one for each of many tokens */
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
            free(g->delimited);         /* half of them would not do */
            g->delimited = NULL;
            g->n_delimited = 0;
            fail(g, EXPR_NO_MEMORY);
            return -1;
        }
        g->delimited[g->n_delimited++] = id;
    }
    return 0;
}

/* Does an item, or what an item is in, end inside of the bytes? */
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

/* Take the tokens out of the mask that repeat an item.  Those that go on inside of an item are
 * found by what would repeat one; those that end one are tried. */
static void clear_repeated(struct matcher *m, uint32_t config)
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
        if (!is_bit(m->mask, id) || !ends_item(&m->distinct, p, n))
            continue;
        if (!follow_bytes(m, config, (const unsigned char *)p, n, &next))
            m->mask[id >> 5] &= ~(1u << (id & 31));
        distinct_release(&next);
    }
}

const uint32_t *matcher_mask(struct matcher *m)
{
    struct grammar *g = m->g;
    size_t n = g->v->n_words;
    if (m->ended) {
        memset(m->mask, 0, n * sizeof *m->mask);
        for (int i = 0; i < g->v->n_eos; i++)
            set_bit(m->mask, g->v->eos[i]);
        return m->mask;
    }
    uint32_t c = 0;
    int rc, cut = 0;
    do {
        const uint32_t *mask = NULL;
        if ((rc = enter(m, &c)) != 0)
            break;
        if (!g->x.failed && (mask = config_mask(g, c)))
            memcpy(m->mask, mask, n * sizeof *mask);
        if (mask && m->distinct.n_levels) {
            clear_repeated(m, c);
            size_t i = 0;
            while (i < n && !m->mask[i])
                i++;
            if (i == n && !g->x.failed)
                err_set(&m->error, ERR_LIMIT, "uniqueItems: every way to go on would repeat an item");
        }
        rc = leave(m, &cut);
        rc = rc == 0 && !mask ? -1 : rc;
    } while (rc > 0);
    if (rc != 0)
        memset(m->mask, 0, n * sizeof *m->mask);
    return m->mask;
}

int matcher_accept_bytes(struct matcher *m, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    if (m->ended)
        return n ? -1 : 0;
    struct distinct next = { 0 };
    uint32_t c;
    int rc, left, cut = 0;
    do {
        distinct_release(&next);
        if (enter(m, &c) != 0)
            return -1;
        c = follow_bytes(m, c, p, n, &next);
        const int fits = c && !m->g->x.failed && m->g->x.meter.spent <= m->g->options.max_steps;
        rc = fits ? keep_text(m, p, n) || stand(m, c) ? -1 : 0 : -1;
        if (fits && rc != 0)
            err_nomem(&m->error, "a matcher");
        left = leave(m, &cut);
    } while (left > 0);
    if (left == 0 && rc == 0) {
        distinct_release(&m->distinct);
        m->distinct = next;
    } else {
        distinct_release(&next);
    }
    return left != 0 ? -1 : rc;
}

int matcher_accept(struct matcher *m, int32_t id)
{
    const struct grammar_vocab *v = m->g->v;
    unsigned char name[VOCAB_NAME];
    size_t n;
    m->busy = 0;
    if (!v || id < 0 || id >= v->size)
        return -1;
    if (is_eos(m->g, id) && (m->ended || m->accepting)) {
        m->ended = 1;
        return 0;
    }
    const char *p = grammar_vocab_bytes(v, id, &n);
    const int rc = p ? matcher_accept_bytes(m, p, n) : vocab_name(v, id, name) == 0
                       ? matcher_accept_bytes(m, name, sizeof name) : -1;
    m->n_tokens += rc == 0;
    return rc;
}

void matcher_hurry(struct matcher *m, uint64_t steps) { m->pause = steps; }
int matcher_busy(const struct matcher *m) { return m->busy; }
void matcher_cancel(struct matcher *m) { atomic_store_explicit(&m->cancelled, 1, memory_order_relaxed); }
uint64_t matcher_spent(const struct matcher *m) { return m->spent; }

int matcher_complete(const struct matcher *m) { return m->ended || m->accepting; }

int matcher_ended(const struct matcher *m) { return m->ended || (m->accepting && m->n_threads == 0); }

int matcher_error(const struct matcher *m, struct err *e)
{
    if (!m->error.msg[0])
        return 0;
    if (e)
        *e = m->error;
    return -1;
}

/* The one byte of the set, -1 if there are more. */
static int only_byte(const uint64_t set[4])
{
    int byte = -1;
    for (int i = 0; i < 4; i++) {
        if (!set[i])
            continue;
        if (byte >= 0 || set[i] & (set[i] - 1))
            return -1;
        byte = 64 * i + __builtin_ctzll(set[i]);
    }
    return byte;
}

/* How many of the first n_ids tokens are the same when more text comes: that of each byte in the
 * set. */
static size_t certain(const struct tokenizer *t, char *text, size_t n, const uint64_t set[4], const int32_t *ids,
                      size_t n_ids, struct err *e)
{
    for (int b = 0, probes = 0; b <= 0x80 && n_ids; b++) {
        int32_t *other;
        size_t n_other, k = 0;
        if (b == 0x80 ? !(set[2] | set[3]) : !(set[b >> 6] >> (b & 63) & 1))
            continue;
        int alike = b < 0x80 && b > 0 && set[(b - 1) >> 6] >> ((b - 1) & 63) & 1 &&
                    (set[(b + 1) >> 6] >> ((b + 1) & 63) & 1) && b != 'e' && b != '1';
        if (alike)
            continue;                   /* the edges of each run of bytes, a letter and a digit: tokenizers tell no more kinds apart */
        if (++probes > 24)
            return 0;
        text[n] = (char)b;
        if (b == 0x80)
            memcpy(text + n, "\xC3\xA9", 2);        /* any character beyond ASCII */
        if (tokenizer_encode(t, text, n + (b == 0x80 ? 2 : 1), 0, &other, &n_other, e) != 0)
            return 0;
        while (k < n_ids && k < n_other && other[k] == ids[k])
            k++;
        n_ids = k;
        free(other);
    }
    return n_ids;
}

/* The text that must come next, at most FORCED_BYTES, and the bytes one of which follows it.
 * -1: no result. */
static int certain_text(struct matcher *m, char *text, size_t *size, uint64_t follow[4])
{
    struct grammar *g = m->g;
    int left, cut = 0;
    do {
        size_t n = 0;
        int end = 0, byte = -1, known = 0;
        uint64_t set[4] = { 0 };        /* a copy: the configs move */
        uint32_t c;
        if (enter(m, &c) != 0)
            return -1;
        while (c && n < FORCED_BYTES && !g->x.failed) {
            memcpy(set, config_first(g, c), sizeof set);
            known = 1;
            byte = only_byte(set);
            end = g->config[c].accepting && !(set[0] | set[1] | set[2] | set[3]);
            if (byte < 0 || g->config[c].accepting || (byte == VOCAB_TOKEN && n))
                break;
            uint32_t to = config_step(g, c, byte);
            if (!to)
                break;
            text[n++] = (char)byte;
            c = to;
            if (n == VOCAB_NAME && (unsigned char)text[0] == VOCAB_TOKEN)
                break;
        }
        const int named = byte == VOCAB_TOKEN && n && (unsigned char)text[0] != VOCAB_TOKEN;    /* a token of its own comes next: nothing joins over it */
        memset(follow, named || end ? 0 : 0xFF, 4 * sizeof *follow);
        if (known && c && n < FORCED_BYTES && !named && !end)
            memcpy(follow, set, sizeof set);
        *size = n;
        left = leave(m, &cut);
    } while (left > 0);
    return left;
}

int matcher_forced(struct matcher *m, int32_t *out, int room)
{
    struct grammar *g = m->g;
    char text[FORCED_BYTES + 8];
    size_t n = 0;
    uint64_t follow[4];
    int k = 0;
    m->busy = 0;
    if (!g->v || m->ended || room <= 0 || certain_text(m, text, &n, follow) != 0)
        return 0;
    if (n && (unsigned char)text[0] == VOCAB_TOKEN) {
        if (n == VOCAB_NAME)
            out[k++] = (int32_t)((unsigned char)text[1] << 16 | (unsigned char)text[2] << 8 | (unsigned char)text[3]);
        return k;
    }
    int32_t *ids = NULL;
    size_t n_ids = 0, at = 0;
    struct err e = { .code = ERR_NONE };
    if (n < 2 || utf8_valid(text, n) != n)
        return 0;
    if (tokenizer_encode(g->v->t, text, n, 0, &ids, &n_ids, &e) == 0)
        n_ids = certain(g->v->t, text, n, follow, ids, n_ids, &e);
    if (e.code == ERR_MEMORY) {         /* another answer would come of it */
        m->error = e;
        free(ids);
        return 0;
    }
    if (!ids)
        return 0;
    for (size_t i = 0; i < n_ids && k < room; i++) {
        size_t size;
        const char *p = grammar_vocab_bytes(g->v, ids[i], &size);
        if (!p || size > n - at || memcmp(p, text + at, size) != 0)
            break;                      /* the tokenizer puts a blank before the text, or normalizes it */
        at += size;
        out[k++] = ids[i];
    }
    free(ids);
    return k;
}

size_t grammar_bytes(const struct grammar *g) { return atomic_load_explicit(&g->bytes, memory_order_relaxed); }

void grammar_stats(struct grammar *g, struct grammar_stats *s)
{
    pthread_mutex_lock(&g->lock);
    *s = (struct grammar_stats){ .n_exprs = g->x.n, .n_rules = g->n_rules, .n_states = g->n_configs,
                                 .n_masks = g->n_masks, .work = g->compile_work };
    s->bytes = grammar_bytes_now(g);
    pthread_mutex_unlock(&g->lock);
}

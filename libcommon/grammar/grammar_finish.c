/* grammar_finish.c - check a complete grammar for rules without an end and for left recursion. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/graph.h"
#include "libcommon/grammar/internal.h"
#include "libcommon/grammar/matcher.h"

static int is_context_free(const struct expr *x) { return x->kind >= EXPR_TERM && x->kind <= EXPR_RULE; }

/* For each context-free expression: alive: it can end; empty: it can match the empty text. */
struct classes { uint8_t *alive, *empty; };

/* Update the classes of expression i (the properties that struct classes holds for it) from its
 * operands.  Returns 1 if they changed.  operand: the operand that changed, or EXPR_NONE for any of
 * them; if i has a long list of operands, only `operand` is read. */
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

/* The operands of i in *list (two is scratch): their number. */
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

/* Compute the least fixed points with a queue of the expressions that changed; each changes twice
 * at most. */
static int classify(const struct grammar *g, const struct classes *c, struct err *e)
{
    const uint32_t n = g->x.n, *list;
    uint32_t two[2], *queue = malloc(((size_t)2 * n + 1) * sizeof *queue), tail = 0;
    /* Edges lead from each operand to the expressions that have it. */
    struct graph graph = { .n_nodes = n };
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

/* Returns the number + 1 of a rule on the cycle.  path: the stack of the search from the cycle's
 * first expression on; those in state 1 are on the cycle. */
static int32_t rule_between(const struct grammar *g, const uint8_t *state, const uint32_t *path, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (state[path[i]] == 1 && g->x.e[path[i]].kind == EXPR_RULE)
            return (int32_t)g->x.e[path[i]].lo + 1;
    return 1;
}

/* Returns the index + 1 of a rule that starts with itself; 0: there is none.  An expression has
 * edges to those that may start it.  state: 1: on the path, 2: done. */
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
            if (state[i] == 1 || state[i] == 2) {       /* everything reachable from it is done */
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
                    /* t is on the path, or it was visited since a sibling pushed it; only the first
                     * case is a cycle */
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

/* Store the initial config of every answer, which matchers copy without the lock. */
static int keep_root(struct grammar *g, uint32_t root, struct err *e)
{
    config_begin(g);
    config_close_over(g, root, EXPR_NONE);
    const uint32_t number = config_intern(g);
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
    grammar_count(g);
done:
    free(alive);
    free(empty);
    free(state);
    free(path);
    return rc;
}

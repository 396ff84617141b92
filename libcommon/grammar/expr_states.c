/* expr_states.c - search all states of an expression: find the dead ones, and the distance of each
 * from an end. */
#include "libcommon/grammar/expr_store.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/graph.h"
#include "libcommon/grammar/grow.h"

/* The states found so far and the steps between them.  A state is an expression and, if characters
 * are counted, the rest of the current character. */
struct states {
    struct within *state; uint32_t n, room, most;       /* owned; most: limit on n */
    /* owned: number of a state + 1, by open addressing. */
    uint32_t *index, n_index;
    struct graph steps;                                 /* edges between the numbers of states */
    int too_many;
};

static void states_release(struct states *w)
{
    free(w->state);
    free(w->index);
    graph_release(&w->steps);
}

/* The entry of a state in the index, or the free entry where it belongs. */
static uint32_t *index_of(const struct states *w, uint32_t e, uint32_t part)
{
    uint32_t k = expr_mix(expr_mix(7, e), part) & (w->n_index - 1);
    while (w->index[k] && (w->state[w->index[k] - 1].e != e || w->state[w->index[k] - 1].part != part))
        k = (k + 1) & (w->n_index - 1);
    return &w->index[k];
}

static int grow_index(struct states *w)
{
    const uint32_t n = w->n_index ? 2 * w->n_index : 64;
    uint32_t *v = calloc(n, sizeof *v);
    if (!v)
        return -1;
    free(w->index);
    w->index = v;
    w->n_index = n;
    for (uint32_t i = 0; i < w->n; i++)
        *index_of(w, w->state[i].e, w->state[i].part) = i + 1;
    return 0;
}

/* Set *number to the number of a state, which is added if it has none.  Returns 0; -1 if there are
 * too many (w->too_many) or memory ran out (s->failed). */
static int number_of(struct exprs *s, struct states *w, uint32_t e, uint32_t part, uint32_t *number)
{
    if (2 * w->n >= w->n_index && grow_index(w) != 0)
        goto memory;
    uint32_t *k = index_of(w, e, part);
    if (!*k) {
        if (w->n == w->most) {
            w->too_many = 1;
            return -1;
        }
        if (grow((void **)&w->state, &w->room, w->n + 1, sizeof *w->state) != 0)
            goto memory;
        w->state[w->n] = (struct within){ e, part, UINT32_MAX };
        *k = ++w->n;
    }
    *number = *k - 1;
    return 0;
memory:
    exprs_fail(s, EXPR_NO_MEMORY);
    return -1;
}

/* Record the step from state i to (e, part).  Returns as number_of(). */
static int add_step(struct exprs *s, struct states *w, uint32_t i, uint32_t e, uint32_t part)
{
    uint32_t to;
    if (number_of(s, w, e, part, &to) != 0)
        return -1;
    if (graph_add(&w->steps, i, to) != 0) {
        exprs_fail(s, EXPR_NO_MEMORY);
        return -1;
    }
    return 0;
}

static int has_byte(const uint64_t set[4], int b) { return set[b >> 6] >> (b & 63) & 1; }

/* ---- dead states ---- */

/* Find the states that follow the filtered ones in w, and the steps to them.  The search ends at
 * states that are not filtered, because they match something (see EXPR_FILTERED).  Returns as
 * number_of(). */
static int find_filtered(struct exprs *s, struct states *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        uint64_t edges[4] = { 1, 0, 0, 0 };
        uint32_t last = EXPR_NONE;
        const uint32_t e = w->state[i].e;
        if (!(s->e[e].flags & EXPR_FILTERED))
            continue;
        expr_edges(s, e, edges);
        for (int b = 0; b < 256; b++) {
            if (!has_byte(edges, b))
                continue;
            const uint32_t to = expr_step(s, e, b);
            if (s->failed)
                return -1;
            if (to == EXPR_NONE || to == last)
                continue;
            last = to;
            if (add_step(s, w, i, to, EXPR_EPSILON) != 0)
                return -1;
        }
    }
    return 0;
}

/* Mark the states from which no end can be reached as dead.  Returns whether number 0 is alive. */
static int mark_dead(struct exprs *s, struct states *w)
{
    uint8_t *alive = calloc((size_t)w->n + 1, 1);
    struct neighbours from = { 0 };
    int dead = 0;
    w->steps.n_nodes = w->n;
    for (uint32_t i = 0; alive && i < w->n; i++)
        alive[i] = expr_nullable(s, w->state[i].e) || !(s->e[w->state[i].e].flags & EXPR_FILTERED);
    if (!alive || graph_neighbours(&w->steps, GRAPH_PREDECESSORS, &from) != 0 || graph_reach(&from, alive) != 0) {
        exprs_fail(s, EXPR_NO_MEMORY);
    } else {
        for (uint32_t i = 0; i < w->n; i++) {
            s->e[w->state[i].e].flags |= alive[i] ? EXPR_SETTLED : EXPR_SETTLED | EXPR_DEAD;
            dead |= !alive[i];
        }
        if (dead)
            exprs_forget_rows(s);
    }
    const int result = alive && !s->failed && alive[0];
    neighbours_release(&from);
    free(alive);
    return result;
}

uint32_t exprs_settle(struct exprs *s, uint32_t e, uint32_t max_states)
{
    struct states w = { .most = max_states };
    uint32_t number;
    int alive = 0;
    if (s->failed || e == EXPR_NONE)
        return EXPR_NONE;
    if (!(s->e[e].flags & EXPR_FILTERED) || s->e[e].flags & EXPR_SETTLED)
        return s->e[e].flags & EXPR_DEAD ? (uint32_t)EXPR_NONE : e;
    if (number_of(s, &w, e, EXPR_EPSILON, &number) == 0 && find_filtered(s, &w) == 0)
        alive = mark_dead(s, &w);
    if (w.too_many)
        exprs_fail(s, EXPR_TOO_MANY_STATES);
    states_release(&w);
    return alive ? e : (uint32_t)EXPR_NONE;
}

/* ---- lengths ---- */

static struct within *find_within(const struct exprs *s, uint32_t e, uint32_t part)
{
    uint32_t k = expr_mix(expr_mix(7, e), part) & (s->room_within - 1);
    while (s->within[k].e && (s->within[k].e != e || s->within[k].part != part))
        k = (k + 1) & (s->room_within - 1);
    return &s->within[k];
}

uint32_t expr_within_left(struct exprs *s, uint32_t e, uint32_t part, int32_t hi)
{
    if (s->failed || e == EXPR_NONE || part == EXPR_NONE || s->e[e].flags & EXPR_DEAD)
        return EXPR_NONE;
    const struct within *w = find_within(s, e, part);
    if (!w->e || w->chars > (uint32_t)hi)
        return EXPR_NONE;
    if (e == EXPR_EPSILON)
        return e;
    const uint8_t flags = part == EXPR_EPSILON ? s->e[e].flags & EXPR_NULLABLE : 0;
    return expr_intern(s, &(struct expr){ .kind = EXPR_WITHIN, .flags = flags, .a = e, .b = part, .hi = hi });
}

/* Find the states that follow those in w, and the steps to them.  0, or -1 as in number_of(), or if
 * that takes too many steps. */
static int find_within_states(struct exprs *s, struct states *w)
{
    const uint64_t most = s->meter.work + (uint64_t)w->most * 256;
    for (uint32_t i = 0; i < w->n; i++) {
        uint64_t edges[4] = { 1, 0, 0, 0 };
        const uint32_t e = w->state[i].e, part = w->state[i].part == EXPR_EPSILON ? s->one_char : w->state[i].part;
        expr_edges(s, e, edges);
        expr_add_edges(s, part, edges);
        for (int b = 0; b < 256; b++) {
            if (!has_byte(edges, b))
                continue;
            const uint32_t next = expr_step(s, part, b);
            const uint32_t to = next == EXPR_NONE ? (uint32_t)EXPR_NONE : expr_step(s, e, b);
            if (s->failed || s->meter.work > most)
                return -1;
            if (to != EXPR_NONE && add_step(s, w, i, to, next) != 0)
                return -1;
        }
    }
    return 0;
}

/* Set state.chars to the fewest characters from each state to an end, by a breadth-first search
 * that goes from the ends backwards along the steps.  A step inside a character counts 0, so the
 * chars of a state may decrease again later.  Returns 0; -1 if memory ran out. */
static int fewest_characters(const struct exprs *s, struct states *w)
{
    const uint32_t room = w->n + 1;
    uint32_t *queue = malloc((size_t)room * sizeof *queue), head = 0, waiting = 0;
    uint8_t *queued = calloc(room, 1);
    struct neighbours v = { 0 };
    int rc = -1;
    w->steps.n_nodes = w->n;
    if (!queue || !queued || graph_neighbours(&w->steps, GRAPH_PREDECESSORS, &v) != 0)
        goto done;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->state[i].part == EXPR_EPSILON && expr_nullable(s, w->state[i].e)) {
            w->state[i].chars = 0;
            queue[waiting++] = i;
            queued[i] = 1;
        }
    while (waiting) {
        const uint32_t to = queue[head];
        head = (head + 1) % room;
        waiting--;
        queued[to] = 0;
        for (uint32_t k = v.first[to]; k < v.first[to + 1]; k++) {
            struct within *from = &w->state[v.node[k]];
            const uint32_t chars = w->state[to].chars + (from->part == EXPR_EPSILON);
            if (chars >= from->chars)
                continue;
            from->chars = chars;
            if (!queued[v.node[k]]) {
                queue[(head + waiting++) % room] = v.node[k];
                queued[v.node[k]] = 1;
            }
        }
    }
    rc = 0;
done:
    neighbours_release(&v);
    free(queue);
    free(queued);
    return rc;
}

/* Add the states from which an end can be reached to s->within.  -1 without memory. */
static int keep_within(struct exprs *s, const struct states *w)
{
    uint32_t room = s->room_within ? s->room_within : 256;
    while (room < 2 * (s->n_within + w->n + 1))
        room *= 2;
    if (room != s->room_within) {
        struct within *old = s->within, *v = calloc(room, sizeof *v);
        const uint32_t n_old = s->room_within;
        if (!v)
            return -1;
        s->within = v;
        s->room_within = room;
        for (uint32_t i = 0; i < n_old; i++)
            if (old[i].e)
                *find_within(s, old[i].e, old[i].part) = old[i];
        free(old);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        struct within *to = find_within(s, w->state[i].e, w->state[i].part);
        s->n_within += !to->e && w->state[i].chars != UINT32_MAX;
        if (w->state[i].chars != UINT32_MAX)
            *to = w->state[i];
    }
    return 0;
}

int expr_within(struct exprs *s, uint32_t e, int32_t hi, uint32_t max_states, uint32_t *result)
{
    struct states w = { .most = max_states };
    uint32_t number;
    *result = EXPR_NONE;
    if (s->failed || e == EXPR_NONE)
        return 0;
    int rc = number_of(s, &w, e, EXPR_EPSILON, &number);
    if (rc == 0)
        rc = find_within_states(s, &w);
    if (rc == 0 && (fewest_characters(s, &w) != 0 || keep_within(s, &w) != 0))
        exprs_fail(s, EXPR_NO_MEMORY);
    if (rc == 0)
        *result = expr_within_left(s, e, EXPR_EPSILON, hi);
    states_release(&w);
    return s->failed ? 0 : rc;
}

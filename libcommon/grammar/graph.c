/* graph.c - searches in directed graphs, without recursion. */
#include "libcommon/grammar/graph.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/grow.h"

int graph_add(struct graph *g, uint32_t from, uint32_t to)
{
    const struct graph_edge *last = g->n_edges ? &g->edge[g->n_edges - 1] : NULL;
    if (last && last->from == from && last->to == to)
        return 0;
    if (g->n_edges == UINT32_MAX || grow((void **)&g->edge, &g->room, g->n_edges + 1, sizeof *g->edge) != 0)
        return -1;
    g->edge[g->n_edges++] = (struct graph_edge){ from, to };
    return 0;
}

void graph_release(struct graph *g)
{
    free(g->edge);
    memset(g, 0, sizeof *g);
}

int graph_neighbours(const struct graph *g, enum graph_direction direction, struct neighbours *v)
{
    const int back = direction == GRAPH_PREDECESSORS;
    const size_t n = g->n_nodes;
    memset(v, 0, sizeof *v);
    /* a counting sort; during it, first[i + 1] is the index for the next neighbour of i */
    uint32_t *first = calloc(n + 2 + g->n_edges, sizeof *first);
    if (!first)
        return -1;
    uint32_t *node = first + n + 2;
    for (uint32_t i = 0; i < g->n_edges; i++)
        first[(back ? g->edge[i].to : g->edge[i].from) + 2]++;
    for (size_t i = 0; i < n; i++)
        first[i + 2] += first[i + 1];
    for (uint32_t i = 0; i < g->n_edges; i++) {
        const struct graph_edge x = g->edge[i];
        node[first[(back ? x.to : x.from) + 1]++] = back ? x.from : x.to;
    }
    *v = (struct neighbours){ g->n_nodes, first, node };
    return 0;
}

void neighbours_release(struct neighbours *v)
{
    free(v->first);
    memset(v, 0, sizeof *v);
}

/* Append to queue[n..] each node that can be reached from those of queue[from..n) and is not
 * marked yet, and mark it.  Returns the number of nodes in the queue. */
static uint32_t reach_from(const struct neighbours *v, uint8_t *marked, uint32_t *queue, uint32_t from, uint32_t n)
{
    for (; from < n; from++)
        for (uint32_t k = v->first[queue[from]]; k < v->first[queue[from] + 1]; k++)
            if (!marked[v->node[k]]) {
                marked[v->node[k]] = 1;
                queue[n++] = v->node[k];
            }
    return n;
}

int graph_reach(const struct neighbours *v, uint8_t *marked)
{
    uint32_t *queue = malloc(((size_t)v->n + 1) * sizeof *queue), n = 0;
    if (!queue)
        return -1;
    for (uint32_t i = 0; i < v->n; i++)
        if (marked[i])
            queue[n++] = i;
    reach_from(v, marked, queue, 0, n);
    free(queue);
    return 0;
}

/* Set order[] to the nodes in the order in which a depth-first search leaves them.  path, at and
 * seen are scratch; seen is all zero. */
static void finishing_order(const struct neighbours *v, uint32_t *order, uint32_t *path, uint32_t *at, uint8_t *seen)
{
    uint32_t n = 0;
    if (v->n)
        memcpy(at, v->first, v->n * sizeof *at);
    for (uint32_t root = 0; root < v->n; root++) {
        uint32_t depth = 0;
        if (seen[root])
            continue;
        seen[root] = 1;
        path[depth++] = root;
        while (depth) {
            const uint32_t i = path[depth - 1];
            if (at[i] == v->first[i + 1]) {
                order[n++] = i;
                depth--;
            } else if (!seen[v->node[at[i]++]]) {
                path[depth] = v->node[at[i] - 1];
                seen[path[depth++]] = 1;
            }
        }
    }
}

static int has_neighbour(const struct neighbours *v, uint32_t i, uint32_t node)
{
    uint32_t k = v->first[i];
    while (k < v->first[i + 1] && v->node[k] != node)
        k++;
    return k < v->first[i + 1];
}

/* Strongly connected components by Kosaraju's two passes: the nodes of a component are those that
 * can be reached against the edges from the node that a depth-first search finished last. */
int graph_cycles(const struct graph *g, uint8_t *on_cycle)
{
    const size_t n = g->n_nodes;
    struct neighbours to = { 0 }, from = { 0 };
    uint32_t *order = malloc((3 * n + 1) * sizeof *order), *path = order ? order + n : NULL;
    uint8_t *seen = calloc(n + 1, 1);
    int rc = -1;
    if (!order || !seen || graph_neighbours(g, GRAPH_SUCCESSORS, &to) != 0 ||
        graph_neighbours(g, GRAPH_PREDECESSORS, &from) != 0)
        goto done;
    finishing_order(&to, order, path, path + n, seen);
    memset(seen, 0, n);
    for (size_t i = n; i--;) {
        if (seen[order[i]])
            continue;
        seen[order[i]] = 1;
        path[0] = order[i];
        const uint32_t size = reach_from(&from, seen, path, 0, 1);
        const int cycle = size > 1 || has_neighbour(&from, order[i], order[i]);
        for (uint32_t k = 0; cycle && k < size; k++)
            on_cycle[path[k]] = 1;
    }
    rc = 0;
done:
    neighbours_release(&to);
    neighbours_release(&from);
    free(order);
    free(seen);
    return rc;
}

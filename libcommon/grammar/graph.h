/* graph.h - directed graphs of numbered nodes: neighbours, reachability, cycles.
 *
 * The edges are collected in any order; graph_neighbours() sorts them into one array, so that the
 * neighbours of a node are a slice of it.  Every search takes time proportional to nodes and edges
 * and keeps its stack on the heap. */
#ifndef ZSE_GRAMMAR_GRAPH_H
#define ZSE_GRAMMAR_GRAPH_H

#include <stdint.h>

struct graph_edge { uint32_t from, to; };
/* All zero: no edges.  Nodes are 0 to n_nodes - 1; the caller sets n_nodes. */
struct graph {
    struct graph_edge *edge;            /* owned */
    uint32_t n_nodes, n_edges, room;
};
enum graph_direction { GRAPH_SUCCESSORS, GRAPH_PREDECESSORS };

/* The neighbours of node i are node[first[i]] to node[first[i + 1] - 1], in the order of their
 * edges. */
struct neighbours {
    uint32_t n;                         /* nodes */
    uint32_t *first, *node;             /* owned: one allocation, at first */
};

/* Add an edge; an edge equal to the one before it is left out.  Returns 0, or -1 if memory ran
 * out. */
int graph_add(struct graph *g, uint32_t from, uint32_t to);
void graph_release(struct graph *g);
/* Fill in *v, which the caller releases.  Returns 0, or -1 if memory ran out; *v is then all
 * zero. */
int graph_neighbours(const struct graph *g, enum graph_direction direction, struct neighbours *v);
void neighbours_release(struct neighbours *v);
/* Set marked[i] = 1 for each node that can be reached from a node that is marked at the call.
 * Returns 0, or -1 if memory ran out. */
int graph_reach(const struct neighbours *v, uint8_t *marked);
/* Set on_cycle[i] = 1 for each node that lies on a cycle: a path of one or more edges leads from it
 * back to it.  Returns 0, or -1 if memory ran out. */
int graph_cycles(const struct graph *g, uint8_t *on_cycle);

#endif

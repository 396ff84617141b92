/* t-grammar-graph.c - neighbours, reachability and cycles of random graphs, against the transitive
 * closure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/grammar/graph.h"

enum { MAX_NODES = 12 };

/* path[i][k]: one edge or more lead from i to k. */
static void close_paths(const struct graph *g, uint8_t path[MAX_NODES][MAX_NODES])
{
    memset(path, 0, MAX_NODES * MAX_NODES);
    for (uint32_t i = 0; i < g->n_edges; i++)
        path[g->edge[i].from][g->edge[i].to] = 1;
    for (uint32_t by = 0; by < g->n_nodes; by++)
        for (uint32_t i = 0; i < g->n_nodes; i++)
            for (uint32_t k = 0; k < g->n_nodes; k++)
                path[i][k] |= path[i][by] && path[by][k];
}

static void searches_agree_with_the_closure(void **state)
{
    struct rng r = { 7 };
    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct graph g = { .n_nodes = (uint32_t)(rng_u64(&r) % (MAX_NODES + 1)) };
        const int n_edges = g.n_nodes ? (int)(rng_u64(&r) % (2 * g.n_nodes)) : 0;
        uint8_t path[MAX_NODES][MAX_NODES], on_cycle[MAX_NODES + 1] = { 0 };
        for (int i = 0; i < n_edges; i++)
            assert_int_equal(graph_add(&g, (uint32_t)(rng_u64(&r) % g.n_nodes), (uint32_t)(rng_u64(&r) % g.n_nodes)),
                             0);
        close_paths(&g, path);
        assert_int_equal(graph_cycles(&g, on_cycle), 0);
        for (uint32_t i = 0; i < g.n_nodes; i++)
            assert_int_equal(on_cycle[i], path[i][i]);
        for (int back = 0; back < 2; back++) {
            struct neighbours v;
            assert_int_equal(graph_neighbours(&g, back ? GRAPH_PREDECESSORS : GRAPH_SUCCESSORS, &v), 0);
            for (uint32_t from = 0; from < g.n_nodes; from++) {
                uint8_t marked[MAX_NODES] = { 0 };
                marked[from] = 1;
                assert_int_equal(graph_reach(&v, marked), 0);
                for (uint32_t i = 0; i < g.n_nodes; i++)
                    assert_int_equal(marked[i], i == from || (back ? path[i][from] : path[from][i]));
            }
            neighbours_release(&v);
        }
        graph_release(&g);
    }
}

static void neighbours_keep_the_order_of_edges(void **state)
{
    static const struct graph_edge edges[] = { { 2, 1 }, { 0, 2 }, { 0, 2 }, { 0, 1 }, { 2, 0 }, { 0, 2 } };
    /* The successors of 0, then those of 2; of two equal edges in a row one is kept. */
    static const uint32_t want[] = { 2, 1, 2, 1, 0 };
    struct graph g = { .n_nodes = 3 };
    struct neighbours v;
    (void)state;
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        assert_int_equal(graph_add(&g, edges[i].from, edges[i].to), 0);
    assert_int_equal(graph_neighbours(&g, GRAPH_SUCCESSORS, &v), 0);
    assert_int_equal(v.first[1], 3);
    assert_int_equal(v.first[2], 3);
    assert_int_equal(v.first[3], 5);
    assert_memory_equal(v.node, want, sizeof want);
    neighbours_release(&v);
    graph_release(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(searches_agree_with_the_closure),
                                        cmocka_unit_test(neighbours_keep_the_order_of_edges) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

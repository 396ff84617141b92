/* numa.h - NUMA nodes: the processors of each, and the node of each thread.  No library is needed.
 *
 * Pages of a file are in the memory of the node of the thread that first read them, and pages of
 * the process in that of the thread that first wrote them (Linux, without another policy).  So
 * threads that stay on their nodes and work on the same part of every matrix have the pages of
 * their parts beside them: a pool (pool.h) does both.  The parts are rows, of each expert too, so
 * that all nodes work on an expert, whichever the router chooses. */
#ifndef ZSE_BASE_NUMA_H
#define ZSE_BASE_NUMA_H

#include <sched.h>

enum { NUMA_NODES = 64 };
/* Nodes with processors that this process may use, in the order of their numbers. */
struct numa { int n; struct numa_node { int id; cpu_set_t cpus; } node[NUMA_NODES]; };

/* Read the nodes that have processors of `may` from ROOT/sys/devices/system/node (root NULL: "/").
 * None if the system does not tell. */
void numa_read(struct numa *n, const cpu_set_t *may, const char *root);
/* Returns the index of the node of one of n_threads threads: consecutive threads share a node, in
 * proportion to the processors of the nodes. */
int numa_node_of(const struct numa *n, int thread, int n_threads);

#endif

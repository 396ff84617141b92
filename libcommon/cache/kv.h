/* kv.h - which KV blocks belong to whom: a pool of block numbers with reference counts, the block
 * table of one sequence, and the tree of prefixes that were computed before.  The bytes belong to
 * the backend.
 *
 * A node of the tree is a block: 16 tokens (a leaf may hold fewer) after those of its parent.
 * The first n_nodes blocks of a table are a path from the root.  When no table holds a node, it
 * stays until its block is needed: the least recently used one goes first.  A table that holds a
 * node holds its parents too and gives blocks back from its end, so children are always older
 * than their parents: no node is lost in the middle. */
#ifndef ZSE_CACHE_KV_H
#define ZSE_CACHE_KV_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/kvtype.h"

enum { KV_ROOTS = 2 };                                  /* trees that share nothing: keys of one are of no use to the other (LongRoPE) */

struct kv_pool;
struct kv_pool *kv_pool_open(int n_blocks, struct err *e);
void kv_pool_close(struct kv_pool *p);
int kv_pool_size(const struct kv_pool *p);
int kv_pool_free(const struct kv_pool *p);              /* blocks that hold nothing */
int kv_pool_idle(const struct kv_pool *p);              /* nodes that no table holds: as good as free */
size_t kv_pool_bytes(const struct kv_pool *p);          /* what it takes itself */
/* Give up every node that no table holds; then drop(user, block) for each block that holds
 * nothing. */
void kv_pool_trim(struct kv_pool *p, void (*drop)(void *user, int32_t block), void *user);
uint64_t kv_pool_evictions(const struct kv_pool *p);    /* nodes given up so far */

struct kv_table {                                       /* of one sequence */
    int32_t *block; int n_blocks, room;                 /* owned */
    int n_tokens;                                       /* positions that hold keys and values */
    int root, n_nodes;                                  /* its tree, 0 to KV_ROOTS - 1; the first n_nodes blocks are nodes of it */
};
int kv_table_init(struct kv_table *t, int max_len, struct err *e);
void kv_table_release(struct kv_table *t, struct kv_pool *p);           /* gives its blocks back */
/* Blocks for positions [0, n_tokens). -1 when the pool is empty (nothing changed). Allocates
 * nothing. */
int kv_table_reserve(struct kv_table *t, struct kv_pool *p, int n_tokens);
void kv_table_truncate(struct kv_table *t, struct kv_pool *p, int n_tokens);
/* As if t held nothing: the blocks that then nobody holds.  Nothing may happen to the pool
 * before kv_table_return. */
int kv_table_leave(const struct kv_table *t, struct kv_pool *p);
void kv_table_return(const struct kv_table *t, struct kv_pool *p);
/* t, which is given back first, holds all that from holds, by reference. */
void kv_table_share(struct kv_table *t, struct kv_pool *p, const struct kv_table *from);
/* Before position n_tokens is written: if its block is shared, t gets one of its own instead. 1:
 * the caller copies block *from to *to, now; 0: there is nothing to do; -1: the pool is empty
 * (nothing changed). */
int kv_table_unshare(struct kv_table *t, struct kv_pool *p, int32_t *from, int32_t *to);

/* ---- prefixes; ids is the whole sequence from its first token ---- */

/* While t holds whole nodes only (n_tokens == n_nodes * KV_BLOCK): take the nodes that go on
 * with ids [.., n).  Blocks reserved beyond n_tokens are given back where nodes replace them.
 * Returns the tokens won. */
int prefix_take(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int n);
/* After that: the node whose first tokens go on furthest with ids [.., n): the caller copies
 * block *from to *to, now, and has so many tokens more; 0: none, or the pool is empty. */
int prefix_copy(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int n, int32_t *from, int32_t *to);
/* Make nodes of the full blocks of t; with `all` also of the begun one: then t must be released
 * next.  Where the tree has the same tokens already, t takes that block for its own. */
void prefix_enter(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int all);
/* The node that ends with t's last token; -1: that is none's last. */
int32_t prefix_end(const struct kv_table *t, const struct kv_pool *p);
/* Nodes all of whose tokens go on with ids [.., n) from t's on, as prefix_take would take them,
 * and those that hold fewer beside them: visit(user, block, the tokens of the sequence up to its
 * last). */
void prefix_visit(const struct kv_table *t, const struct kv_pool *p, const int32_t *ids, int n,
                  void (*visit)(void *user, int32_t block, int n_tokens), void *user);
/* Which node this block is, and was never before: a number that no other node has or will have;
 * 0: none. */
uint64_t prefix_serial(const struct kv_pool *p, int32_t block);

#endif

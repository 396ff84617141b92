/* kv.h - ownership of KV blocks: a pool of block numbers with reference counts, the block table of
 * a sequence, and the tree of computed prefixes.  The contents belong to the backend.
 *
 * A node of the tree is a block: 16 tokens (a leaf may hold fewer) that follow those of its parent.
 * The first n_nodes blocks of a table are a path from the root.  A node that no table holds is
 * idle: it stays until its block is needed, and the least recently used one is evicted first.  A
 * table that holds a node also holds its parents, and releases blocks from its end, so children
 * become idle before their parents, and evictions only remove leaves.
 *
 * Keys and values of layers with a sliding window are stored in window blocks, a separate pool.  A
 * block has a window block while the window of a table that holds the block covers it, and after
 * that until the window block is evicted.  Window blocks that a sequence has moved past are evicted
 * first, then those where prompts or sequences ended or started, each in order of release.  A
 * prefix can only be continued if the window blocks before its end still exist. */
#ifndef ZSE_CACHE_KV_H
#define ZSE_CACHE_KV_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/kvtype.h"

/* Trees share no blocks.  A scope has two trees, because LongRoPE rotates keys of long sequences
 * differently. */
enum { KV_ROOTS = 2 };

struct kv_pool;
/* Calls for whole nodes that enter and leave the trees.  hash: of the node's tokens, all before
 * them and the scope, never 0; parent: that of the node before, 0: none; token: KV_BLOCK ids. */
struct kv_watch {
    void (*stored)(void *user, uint64_t hash, uint64_t parent, const int32_t *token);
    void (*removed)(void *user, uint64_t hash);
    void *user;
};
void kv_pool_watch(struct kv_pool *p, const struct kv_watch *w);        /* before any table is used */
struct kv_pool *kv_pool_open(int n_blocks, struct err *e);
void kv_pool_close(struct kv_pool *p);
int kv_pool_size(const struct kv_pool *p);
int kv_pool_free(const struct kv_pool *p);              /* free blocks */
/* nodes that no table holds, which can be evicted */
int kv_pool_idle(const struct kv_pool *p);
size_t kv_pool_bytes(const struct kv_pool *p);          /* memory of the pool's own tables */
/* Evict all nodes and window blocks that no table holds, then call drop(user, block) for each free
 * block.  Free window blocks follow, with numbers after those of the blocks. */
void kv_pool_trim(struct kv_pool *p, void (*drop)(void *user, int32_t block), void *user);
uint64_t kv_pool_evictions(const struct kv_pool *p);    /* nodes evicted so far */
/* Add n window blocks for windows of window_tokens tokens, before any table is used.  Every table
 * also keeps the window blocks of its first sink_tokens tokens. */
int kv_pool_windows(struct kv_pool *p, int n, int window_tokens, int sink_tokens, struct err *e);
int kv_pool_n_windows(const struct kv_pool *p);
int kv_pool_free_windows(const struct kv_pool *p);      /* free window blocks */
/* number of blocks in no table, which can be evicted */
int kv_pool_idle_windows(const struct kv_pool *p);
/* number of the window block that belongs to a block; -1: it has none */
int32_t kv_pool_window(const struct kv_pool *p, int32_t block);

struct kv_table {                                       /* the blocks of one sequence */
    int32_t *block; int n_blocks, room;                 /* owned */
    int n_tokens;                                       /* positions that hold keys and values */
    /* root: number of the tree that t uses: 0 or 1 for scope 0, else see kv_table_scope; the first
     * n_nodes blocks are nodes of that tree */
    int root, n_nodes;
    /* Numbers of the window blocks that t holds, by index of their block: the blocks [first_window,
     * end_window), and the sinks before them.  window points into block's allocation. */
    int32_t *window; int first_window, end_window;
};
int kv_table_init(struct kv_table *t, int max_len, struct err *e);
/* Let the empty table t use the first tree of this scope; the second one is root + 1. */
int kv_table_scope(struct kv_table *t, struct kv_pool *p, uint64_t scope, struct err *e);
void kv_table_release(struct kv_table *t, struct kv_pool *p);           /* releases its blocks */
/* Reserve blocks for positions [0, n_tokens).  -1: the pool is empty (nothing changed).  Allocates
 * no memory. */
int kv_table_reserve(struct kv_table *t, struct kv_pool *p, int n_tokens);
/* Cut the sequence to n_tokens, which must be 0 or a length for which t still has the window
 * blocks. */
void kv_table_truncate(struct kv_table *t, struct kv_pool *p, int n_tokens);
/* Release the window blocks that the token after n_tokens does not see. */
void kv_table_slide(struct kv_table *t, struct kv_pool *p);
/* Another sequence may start after n_tokens: the window blocks that t holds are evicted late. */
void kv_table_keep(const struct kv_table *t, struct kv_pool *p);
/* Slide, then take window blocks for positions [t->n_tokens, n_tokens), whose blocks are reserved.
 * -1: there are not enough (none was taken). */
int kv_table_windows(struct kv_table *t, struct kv_pool *p, int n_tokens);
/* Number of blocks that releasing t would free.  Drops t's references until kv_table_return; the
 * pool must not be used in between. */
int kv_table_leave(const struct kv_table *t, struct kv_pool *p);
void kv_table_return(const struct kv_table *t, struct kv_pool *p);
/* Release t's blocks, then let t hold all blocks of `from`, by reference. */
void kv_table_share(struct kv_table *t, struct kv_pool *p, const struct kv_table *from);
/* Copy on write, before position n_tokens is written: if its block is shared, t gets a new one.  1:
 * the caller immediately copies block *from to *to, and their window blocks; 0: nothing to do; -1:
 * the pool is empty (nothing changed). */
int kv_table_unshare(struct kv_table *t, struct kv_pool *p, int32_t *from, int32_t *to);

/* ---- prefixes; ids is the whole sequence from its first token ---- */

/* Add to t the nodes that continue it with the tokens ids [t->n_tokens, n).  t must hold only whole
 * nodes (n_tokens == n_nodes * KV_BLOCK).  Nodes replace blocks that were reserved after n_tokens.
 * Returns the number of tokens gained. */
int prefix_take(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int n);
/* After prefix_take(): find the node that has the most tokens in common with what follows in ids.
 * The caller immediately copies block *from to *to.  Returns the number of tokens gained; 0: there
 * is no such node, or the pool is empty. */
int prefix_copy(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int n, int32_t *from, int32_t *to);
/* Make nodes of the full blocks of t; with `all` also of the last, partial one, after which t must
 * be released.  If the tree already has a node with the same tokens, t takes that node's block and
 * releases its own. */
void prefix_enter(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int all);
/* The block number of the node that ends with t's last token; -1: there is none. */
int32_t prefix_end(const struct kv_table *t, const struct kv_pool *p);
/* Call visit for each node that continues t with tokens of ids [t->n_tokens, n) only: the whole
 * nodes that prefix_take() would take, and partial nodes that branch off beside them.  n_tokens:
 * number of tokens up to the node's end. */
void prefix_visit(const struct kv_table *t, const struct kv_pool *p, const int32_t *ids, int n,
                  void (*visit)(void *user, int32_t block, int n_tokens), void *user);
/* Let t hold the window block of its block end_window.  To be called before window blocks are taken
 * for later blocks, which could evict this one.  known: 1 if the caller knows the contents.
 *   1     it is missing and known: *window is a new one, which the caller fills immediately
 *   0     it exists and t holds it; or none is available, and t holds only window blocks after it
 *   -1    none is available, but it is one of the sinks, so no sequence can continue */
int prefix_window(struct kv_table *t, struct kv_pool *p, int known, int32_t *window);
/* A number that identifies the node in this block and is never reused; 0: it holds no node. */
uint64_t prefix_serial(const struct kv_pool *p, int32_t block);

#endif

/* kv.h - ownership of KV blocks: a pool of block numbers with reference counts, the block table of
 * one sequence, and the tree of prefixes computed before.  The bytes belong to the backend.
 *
 * A node of the tree is a block: 16 tokens (a leaf may hold fewer) after those of its parent.
 * The first n_nodes blocks of a table are a path from the root.  When no table holds a node, it
 * stays until its block is needed: the least recently used one goes first.  A table that holds a
 * node holds its parents too and gives blocks back from its end, so children are always older
 * than their parents: no node is lost in the middle.
 *
 * Keys and values of layers with a sliding window lie in window blocks, a pool of their own.  A
 * block has one only as long as the window of a table that holds the block covers it, and after
 * that until its memory is needed: those that a sequence has left behind go first, then those
 * where sequences ended or began, in order of release.  A prefix can be continued only where the
 * window blocks before its end are still there. */
#ifndef ZSE_CACHE_KV_H
#define ZSE_CACHE_KV_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/kvtype.h"

/* Trees share nothing.  A scope has two: keys of one are of no use to the other (LongRoPE). */
enum { KV_ROOTS = 2 };

struct kv_pool;
struct kv_pool *kv_pool_open(int n_blocks, struct err *e);
void kv_pool_close(struct kv_pool *p);
int kv_pool_size(const struct kv_pool *p);
int kv_pool_free(const struct kv_pool *p);              /* free blocks */
int kv_pool_idle(const struct kv_pool *p);              /* nodes that no table holds, which can be evicted */
size_t kv_pool_bytes(const struct kv_pool *p);          /* of its own tables */
/* Evicts every node that no table holds and every window block that no table wants, then calls
 * drop(user, block) for each free block, and for each free window block with its number behind
 * those of the blocks. */
void kv_pool_trim(struct kv_pool *p, void (*drop)(void *user, int32_t block), void *user);
uint64_t kv_pool_evictions(const struct kv_pool *p);    /* nodes evicted so far */
/* Make n window blocks for windows of window_tokens tokens, before any table is used.  Every table
 * also keeps the blocks of its first sink_tokens tokens. */
int kv_pool_windows(struct kv_pool *p, int n, int window_tokens, int sink_tokens, struct err *e);
int kv_pool_n_windows(const struct kv_pool *p);
int kv_pool_free_windows(const struct kv_pool *p);      /* free ones */
int kv_pool_idle_windows(const struct kv_pool *p);      /* used by no table: can be evicted */
int32_t kv_pool_window(const struct kv_pool *p, int32_t block);         /* the window block of a block; -1: none */

struct kv_table {                                       /* of one sequence */
    int32_t *block; int n_blocks, room;                 /* owned */
    int n_tokens;                                       /* positions that hold keys and values */
    /* its tree: 0 or 1 of scope 0, else as kv_table_scope says; the first n_nodes blocks are nodes
     * of it */
    int root, n_nodes;
    /* numbers of the window blocks that t wants, by index of the block: of those from first_window
     * to end_window, and of the sinks before them; borrowed from block */
    int32_t *window; int first_window, end_window;
};
int kv_table_init(struct kv_table *t, int max_len, struct err *e);
/* t, which holds nothing, gets the first tree of this scope; the second one is root + 1. */
int kv_table_scope(struct kv_table *t, struct kv_pool *p, uint64_t scope, struct err *e);
void kv_table_release(struct kv_table *t, struct kv_pool *p);           /* gives its blocks back */
/* Blocks for positions [0, n_tokens). -1 when the pool is empty (nothing changed). Allocates
 * nothing. */
int kv_table_reserve(struct kv_table *t, struct kv_pool *p, int n_tokens);
/* To 0, or to a length whose window t still has. */
void kv_table_truncate(struct kv_table *t, struct kv_pool *p, int n_tokens);
/* Gives back the window blocks that the token behind n_tokens does not see. */
void kv_table_slide(struct kv_table *t, struct kv_pool *p);
/* Slides, then takes window blocks for positions [t->n_tokens, n_tokens), whose blocks are
 * reserved.  -1 when there are not enough (none was taken). */
int kv_table_windows(struct kv_table *t, struct kv_pool *p, int n_tokens);
/* Number of blocks that releasing t would free.  It drops t's references until kv_table_return;
 * nothing else may happen to the pool in between. */
int kv_table_leave(const struct kv_table *t, struct kv_pool *p);
void kv_table_return(const struct kv_table *t, struct kv_pool *p);
/* Releases t's blocks, then lets t hold all blocks of `from`, by reference. */
void kv_table_share(struct kv_table *t, struct kv_pool *p, const struct kv_table *from);
/* Copy on write, before position n_tokens is written: if its block is shared, t gets a new one.  1:
 * the caller copies block *from to *to at once, and their window blocks; 0: there is nothing to do;
 * -1: the pool is empty (nothing changed). */
int kv_table_unshare(struct kv_table *t, struct kv_pool *p, int32_t *from, int32_t *to);

/* ---- prefixes; ids is the whole sequence from its first token ---- */

/* Takes the nodes that continue t with ids [.., n); t holds whole nodes only (n_tokens == n_nodes *
 * KV_BLOCK).  Blocks reserved beyond n_tokens are returned where nodes replace them.  Returns the
 * number of tokens gained. */
int prefix_take(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int n);
/* After prefix_take: finds the node with the longest part that continues t with ids [.., n); the
 * caller copies block *from to *to at once and gains the returned number of tokens; 0: there is no
 * such node, or the pool is empty. */
int prefix_copy(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int n, int32_t *from, int32_t *to);
/* Makes nodes of the full blocks of t; with `all` also of the last, partial one: then t must be
 * released next.  If the tree has the same tokens already, t takes that block instead of its
 * own. */
void prefix_enter(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int all);
/* The node that ends with t's last token; -1: there is none. */
int32_t prefix_end(const struct kv_table *t, const struct kv_pool *p);
/* Visits the nodes that continue t with ids [.., n) by all of their tokens: those that prefix_take
 * would take, and partial ones beside them.  n_tokens: of the sequence up to the node's end. */
void prefix_visit(const struct kv_table *t, const struct kv_pool *p, const int32_t *ids, int n,
                  void (*visit)(void *user, int32_t block, int n_tokens), void *user);
/* A window block for a node without one, to be filled with its contents at once; -1: it has one, or
 * none can be had. */
int32_t prefix_window(struct kv_pool *p, int32_t block);
/* A number that identifies the node in this block and is never used again; 0: it holds none. */
uint64_t prefix_serial(const struct kv_pool *p, int32_t block);

#endif

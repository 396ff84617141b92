/* kv_pool.h - the pool's structure, for kv.c, prefix.c and window.c. */
#ifndef ZSE_CACHE_KV_POOL_H
#define ZSE_CACHE_KV_POOL_H

#include "libcommon/cache/kv.h"

/* indexed by block number, followed by the roots.  Links are block numbers, -1: none */
struct node {
    int32_t token[KV_BLOCK]; int n_tokens;      /* n_tokens 0: not in the tree */
    int32_t parent, child, before, after;       /* child: the latest child; before, after: the
                                                 * node's siblings */
    int32_t next;               /* next in the hash bucket */
    int32_t older, newer;       /* list of idle nodes */
    uint64_t serial, hash;      /* hash: as in struct kv_watch, if the pool is watched */
};

/* The window block of a block.  Window blocks that no table holds are in one of two lists, in order
 * of release: KEPT if a prompt or sequence ended or started there, else TRAIL. */
enum { TRAIL, KEPT, WINDOW_LISTS };
struct window { int32_t number, older, newer; int refs, list; };       /* number -1: none */

struct kv_pool {
    struct kv_watch watch;      /* stored NULL: not watched */
    int n_blocks, n_free, n_idle;
    /* [n_free] a stack: the block released last is the warmest in the caches */
    int32_t *free_block;
    int32_t *refs;              /* [n_blocks] tables that hold each block */
    struct node *node;          /* [n_blocks + n_scopes * KV_ROOTS] */
    int32_t *bucket; uint32_t n_buckets;        /* full nodes by parent and tokens; a power of two */
    int32_t oldest, newest;     /* list of idle nodes */
    uint64_t evictions, serials;
    /* each has KV_ROOTS roots; a scope is free if no table uses it and its trees are empty */
    struct kv_scope { uint64_t id; int refs; } *scope; int n_scopes;
    struct window *window;      /* [n_blocks]; NULL: there are no window blocks */
    /* n_sinks: in blocks */
    int n_windows, n_free_windows, n_idle_windows, window_tokens, n_sinks;
    int32_t *free_window;       /* [n_free_windows] a stack */
    int32_t oldest_window[WINDOW_LISTS], newest_window[WINDOW_LISTS];
};

void pool_hold(struct kv_pool *p, int32_t block);
void pool_drop(struct kv_pool *p, int32_t block);
/* takes a free block, else evicts an idle node; one of the two must exist */
int32_t pool_take(struct kv_pool *p);
void prefix_remove(struct kv_pool *p, int32_t block);   /* removes a leaf */

/* ---- window.c: these functions do nothing if there are no window blocks ---- */
/* Free the window block of a block, which no table holds. */
void window_lose(struct kv_pool *p, int32_t block);
/* Let t hold the window block of its block i == end_window; takes a new one if the block has
 * none. */
void window_add(struct kv_table *t, struct kv_pool *p, int i);
/* whether t holds the window block of its block i */
int window_is_held(const struct kv_table *t, const struct kv_pool *p, int i);
/* window_jump: t is about to take nodes and will need no window blocks before block `first` except
 * those of sinks: release the others, and continue at `first`.  window_reuse: called after each
 * taken node; t holds its window block if it needs it. */
void window_jump(struct kv_table *t, struct kv_pool *p, int first);
void window_reuse(struct kv_table *t, struct kv_pool *p, int first);
/* t keeps only window blocks of its first n_blocks */
void window_cut(struct kv_table *t, struct kv_pool *p, int n_blocks);
/* t is about to replace its block i.  window_move: by block `known`, which has the same contents.
 * window_copy: by block `to`, into which the caller copies the contents; a window block must be
 * free or idle for the copy. */
void window_move(struct kv_table *t, struct kv_pool *p, int i, int32_t known);
void window_copy(struct kv_table *t, struct kv_pool *p, int i, int32_t to);
/* adds a reference to the window block of a block, if any */
void window_hold(struct kv_pool *p, int32_t block);
void window_release(struct kv_pool *p, int32_t block, int list);          /* drops that reference */
/* index of the first block that the token after n_tokens sees */
int window_seen(const struct kv_pool *p, int n_tokens);
void windows_close(struct kv_pool *p);

#endif

/* kv_pool.h - the pool's structure, for kv.c, prefix.c and window.c. */
#ifndef ZSE_CACHE_KV_POOL_H
#define ZSE_CACHE_KV_POOL_H

#include "libcommon/cache/kv.h"

struct node {                   /* by block number; then the roots.  Links are block numbers, -1: none */
    int32_t token[KV_BLOCK]; int n_tokens;      /* 0: not in the tree */
    int32_t parent, child, before, after;       /* child: the latest; before, after: its brothers */
    int32_t next;               /* of the same bucket */
    int32_t older, newer;       /* list of nodes that no table holds */
    uint64_t serial;
};

/* The window block of a block.  Those that no table wants are in a list, in order of release: KEPT
 * where a sequence ended or began, else TRAIL. */
enum { TRAIL, KEPT, WINDOW_LISTS };
struct window { int32_t number, older, newer; int wants, list; };       /* number -1: it has none */

struct kv_pool {
    int n_blocks, n_free, n_idle;
    int32_t *free_block;        /* [n_free] a stack: the block given back last is the warmest */
    int32_t *refs;              /* [n_blocks] tables that hold each block */
    struct node *node;          /* [n_blocks + n_scopes * KV_ROOTS] */
    int32_t *bucket; uint32_t n_buckets;        /* full nodes by parent and tokens; a power of two */
    int32_t oldest, newest;     /* of the idle ones */
    uint64_t evictions, serials;
    /* each has KV_ROOTS roots; a scope is free when no table has it and its trees are empty */
    struct scope { uint64_t id; int refs; } *scope; int n_scopes;
    struct window *window;      /* [n_blocks]; NULL: there are no window blocks */
    int n_windows, n_free_windows, n_idle_windows, window_tokens, n_sinks;     /* n_sinks: blocks */
    int32_t *free_window;       /* [n_free_windows] a stack */
    int32_t oldest_window[WINDOW_LISTS], newest_window[WINDOW_LISTS];
};

void pool_hold(struct kv_pool *p, int32_t block);
void pool_drop(struct kv_pool *p, int32_t block);
int32_t pool_take(struct kv_pool *p);           /* an unshared block; one must be free or idle */
void prefix_remove(struct kv_pool *p, int32_t block);   /* a leaf */

/* ---- window.c; all of it does nothing without window blocks ---- */
/* The window block of a block that no table wants becomes free. */
void window_lose(struct kv_pool *p, int32_t block);
/* t, whose block i is the next that it wants, wants it: one is taken if the block has none. */
void window_add(struct kv_table *t, struct kv_pool *p, int i);
int window_wants(const struct kv_table *t, const struct kv_pool *p, int i);     /* t wants that of its block i */
/* t is about to take nodes, and wants no window blocks before block `first` but sinks; t wants that
 * of its last node, if it is one of those. */
void window_jump(struct kv_table *t, struct kv_pool *p, int first);
void window_reuse(struct kv_table *t, struct kv_pool *p, int first);
void window_cut(struct kv_table *t, struct kv_pool *p, int n_blocks);   /* t wants only some of its first n_blocks */
/* t is about to hold, instead of its block i, `known` with the same contents, or `to`, to which the
 * caller copies them: then a window block must be free or idle. */
void window_move(struct kv_table *t, struct kv_pool *p, int i, int32_t known);
void window_copy(struct kv_table *t, struct kv_pool *p, int i, int32_t to);
void window_want(struct kv_pool *p, int32_t block);     /* keeps the window block of a block that has one */
void window_leave(struct kv_pool *p, int32_t block, int list);          /* the reverse */
int window_seen(const struct kv_pool *p, int n_tokens); /* the first block that the token behind n_tokens sees */
void windows_close(struct kv_pool *p);

#endif

/* kv_pool.h - the pool's structure, for kv.c and prefix.c. */
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
};

void pool_hold(struct kv_pool *p, int32_t block);
void pool_drop(struct kv_pool *p, int32_t block);
int32_t pool_take(struct kv_pool *p);           /* an unshared block; one must be free or idle */
void prefix_remove(struct kv_pool *p, int32_t block);   /* a leaf */

#endif

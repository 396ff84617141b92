/* kv.h - which KV blocks belong to whom: a pool of block numbers with reference counts, and the block table of one sequence.
 * The bytes belong to the backend. */
#ifndef ZSE_CACHE_KV_H
#define ZSE_CACHE_KV_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/kvtype.h"

struct kv_pool;
struct kv_pool *kv_pool_open(int n_blocks, struct err *e);
void kv_pool_close(struct kv_pool *p);
int kv_pool_free(const struct kv_pool *p);              /* blocks free now */
int kv_pool_size(const struct kv_pool *p);

struct kv_table {                                       /* of one sequence */
    int32_t *block; int n_blocks, room;                 /* owned */
    int n_tokens;                                       /* positions that hold keys and values */
};
int kv_table_init(struct kv_table *t, int max_len, struct err *e);
void kv_table_release(struct kv_table *t, struct kv_pool *p);           /* gives its blocks back */
/* Blocks for positions [0, n_tokens). -1 when the pool is empty (nothing changed). Allocates nothing. */
int kv_table_reserve(struct kv_table *t, struct kv_pool *p, int n_tokens);
void kv_table_truncate(struct kv_table *t, struct kv_pool *p, int n_tokens);
/* The first n_tokens positions of from, shared by reference; n_tokens is rounded down to whole blocks. Returns the positions shared. */
int kv_table_share(struct kv_table *t, struct kv_pool *p, const struct kv_table *from, int n_tokens);

#endif

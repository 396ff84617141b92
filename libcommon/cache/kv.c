#include "libcommon/cache/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct kv_pool {
    int n_blocks, n_free;
    int32_t *free_block;        /* [n_free] a stack: the block given back last is the warmest */
    int32_t *refs;              /* [n_blocks] tables that hold each block */
};

struct kv_pool *kv_pool_open(int n_blocks, struct err *e)
{
    if (n_blocks < 1) {
        err_set(e, ERR_LIMIT, "KV pool: %d blocks, expected at least 1", n_blocks);
        return NULL;
    }
    struct kv_pool *p = calloc(1, sizeof *p);
    int32_t *room = calloc((size_t)n_blocks, 2 * sizeof *room);
    if (!p || !room) {
        free(p);
        free(room);
        err_nomem(e, "KV pool");
        return NULL;
    }
    p->n_blocks = p->n_free = n_blocks;
    p->free_block = room;
    p->refs = room + n_blocks;
    for (int i = 0; i < n_blocks; i++)
        p->free_block[i] = n_blocks - 1 - i;
    return p;
}

void kv_pool_close(struct kv_pool *p)
{
    if (!p)
        return;
    free(p->free_block);
    free(p);
}

int kv_pool_free(const struct kv_pool *p) { return p->n_free; }
int kv_pool_size(const struct kv_pool *p) { return p->n_blocks; }

static void drop(struct kv_pool *p, int32_t block)
{
    assert(p->refs[block] > 0);
    if (--p->refs[block] == 0)
        p->free_block[p->n_free++] = block;
}

static int blocks_for(int n_tokens) { return n_tokens / KV_BLOCK + (n_tokens % KV_BLOCK != 0); }

int kv_table_init(struct kv_table *t, int max_len, struct err *e)
{
    memset(t, 0, sizeof *t);
    t->room = blocks_for(max_len);
    t->block = calloc((size_t)t->room + 1, sizeof *t->block);
    return t->block ? 0 : err_nomem(e, "KV block table");
}

void kv_table_release(struct kv_table *t, struct kv_pool *p)
{
    if (t->block)
        kv_table_truncate(t, p, 0);
    free(t->block);
    memset(t, 0, sizeof *t);
}

int kv_table_reserve(struct kv_table *t, struct kv_pool *p, int n_tokens)
{
    int want = blocks_for(n_tokens);
    assert(want <= t->room);
    if (want - t->n_blocks > p->n_free)
        return -1;
    while (t->n_blocks < want) {
        int32_t b = p->free_block[--p->n_free];
        p->refs[b] = 1;
        t->block[t->n_blocks++] = b;
    }
    return 0;
}

void kv_table_truncate(struct kv_table *t, struct kv_pool *p, int n_tokens)
{
    int want = blocks_for(n_tokens);
    while (t->n_blocks > want)
        drop(p, t->block[--t->n_blocks]);
    if (t->n_tokens > n_tokens)
        t->n_tokens = n_tokens;
}

int kv_table_share(struct kv_table *t, struct kv_pool *p, const struct kv_table *from, int n_tokens)
{
    if (n_tokens > from->n_tokens)
        n_tokens = from->n_tokens;
    int n = n_tokens / KV_BLOCK;
    assert(n <= t->room && t != from);
    kv_table_truncate(t, p, 0);
    for (int i = 0; i < n; i++) {
        p->refs[from->block[i]]++;
        t->block[i] = from->block[i];
    }
    t->n_blocks = n;
    return t->n_tokens = n * KV_BLOCK;
}

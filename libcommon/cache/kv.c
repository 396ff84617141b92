/* kv.c - the pool of KV blocks and the block tables of sequences. */
#include "libcommon/cache/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cache/kv_pool.h"

struct kv_pool *kv_pool_open(int n_blocks, struct err *e)
{
    if (n_blocks < 1) {
        err_set(e, ERR_LIMIT, "KV pool: %d blocks, expected at least 1", n_blocks);
        return NULL;
    }
    struct kv_pool *p = calloc(1, sizeof *p);
    if (!p)
        goto nomem;
    for (p->n_buckets = 16; p->n_buckets < (uint32_t)n_blocks;)
        p->n_buckets *= 2;
    p->free_block = calloc((size_t)n_blocks, sizeof *p->free_block);
    p->refs = calloc((size_t)n_blocks, sizeof *p->refs);
    p->node = calloc((size_t)n_blocks + KV_ROOTS, sizeof *p->node);
    p->bucket = malloc(p->n_buckets * sizeof *p->bucket);
    p->scope = calloc(1, sizeof *p->scope);
    if (!p->free_block || !p->refs || !p->node || !p->bucket || !p->scope)
        goto nomem;
    p->n_scopes = 1;
    p->n_blocks = p->n_free = n_blocks;
    p->oldest = p->newest = -1;
    memset(p->bucket, 0xff, p->n_buckets * sizeof *p->bucket);
    for (int i = 0; i < n_blocks; i++)
        p->free_block[i] = n_blocks - 1 - i;
    for (int i = 0; i < KV_ROOTS; i++)
        p->node[n_blocks + i].child = -1;
    return p;
nomem:
    kv_pool_close(p);
    err_nomem(e, "KV pool");
    return NULL;
}

void kv_pool_close(struct kv_pool *p)
{
    if (!p)
        return;
    free(p->free_block);
    free(p->refs);
    free(p->node);
    free(p->bucket);
    free(p->scope);
    windows_close(p);
    free(p);
}

int kv_pool_free(const struct kv_pool *p) { return p->n_free; }
int kv_pool_idle(const struct kv_pool *p) { return p->n_idle; }
int kv_pool_size(const struct kv_pool *p) { return p->n_blocks; }
uint64_t kv_pool_evictions(const struct kv_pool *p) { return p->evictions; }

size_t kv_pool_bytes(const struct kv_pool *p)
{
    return (size_t)p->n_blocks * (sizeof *p->free_block + sizeof *p->refs + sizeof *p->node) + p->n_buckets *
           sizeof *p->bucket + (size_t)p->n_scopes * (sizeof *p->scope + KV_ROOTS * sizeof *p->node) +
           (p->window ? (size_t)p->n_blocks * sizeof *p->window + (size_t)p->n_windows * sizeof *p->free_window : 0);
}

/* ---- scopes ---- */

static int is_free(const struct kv_pool *p, int scope)
{
    int empty = scope > 0 && p->scope[scope].refs == 0;
    for (int i = 0; i < KV_ROOTS && empty; i++)
        empty = p->node[p->n_blocks + scope * KV_ROOTS + i].child < 0;
    return empty;
}

/* Append a scope. */
static int add_scope(struct kv_pool *p, struct err *e)
{
    const int n = p->n_scopes;
    if (n >= INT32_MAX / KV_ROOTS - p->n_blocks)
        return err_set(e, ERR_LIMIT, "KV pool: %d scopes", n);
    struct kv_scope *scope = realloc(p->scope, ((size_t)n + 1) * sizeof *scope);
    if (scope)
        p->scope = scope;
    struct node *node = realloc(p->node, ((size_t)p->n_blocks + ((size_t)n + 1) * KV_ROOTS) * sizeof *node);
    if (node)
        p->node = node;
    if (!scope || !node)
        return err_nomem(e, "KV pool");
    scope[n] = (struct kv_scope){ 0 };
    for (int i = 0; i < KV_ROOTS; i++)
        node[p->n_blocks + n * KV_ROOTS + i] = (struct node){ .child = -1 };
    return p->n_scopes++;
}

int kv_table_scope(struct kv_table *t, struct kv_pool *p, uint64_t id, struct err *e)
{
    int at = 0, unused = -1;
    assert(t->n_blocks == 0);
    for (int i = 1; i < p->n_scopes && id && !at; i++)
        if (is_free(p, i))
            unused = i;
        else if (p->scope[i].id == id)
            at = i;
    if (id && !at && (at = unused >= 0 ? unused : add_scope(p, e)) < 0)
        return -1;
    p->scope[at].id = id;
    p->scope[at].refs += at > 0;
    p->scope[t->root / KV_ROOTS].refs -= t->root >= KV_ROOTS;
    t->root = at * KV_ROOTS;
    return 0;
}

static void leave_idle(struct kv_pool *p, int32_t block)
{
    const struct node *n = &p->node[block];
    *(n->older < 0 ? &p->oldest : &p->node[n->older].newer) = n->newer;
    *(n->newer < 0 ? &p->newest : &p->node[n->newer].older) = n->older;
    p->n_idle--;
}

void pool_hold(struct kv_pool *p, int32_t block)
{
    if (p->refs[block]++ == 0)
        leave_idle(p, block);
}

void pool_drop(struct kv_pool *p, int32_t block)
{
    assert(p->refs[block] > 0);
    if (--p->refs[block] > 0)
        return;
    struct node *n = &p->node[block];
    if (n->n_tokens == 0) {
        assert(kv_pool_window(p, block) < 0);
        p->free_block[p->n_free++] = block;
        return;
    }
    n->older = p->newest;
    n->newer = -1;
    *(p->newest < 0 ? &p->oldest : &p->node[p->newest].newer) = block;
    p->newest = block;
    p->n_idle++;
}

/* Evict the least recently used node, which has no children (see kv.h). */
static int32_t evict(struct kv_pool *p)
{
    const int32_t block = p->oldest;
    leave_idle(p, block);
    prefix_remove(p, block);
    window_lose(p, block);
    p->evictions++;
    return block;
}

void kv_pool_trim(struct kv_pool *p, void (*drop)(void *user, int32_t block), void *user)
{
    while (p->n_idle)
        p->free_block[p->n_free++] = evict(p);
    for (int i = 0; i < p->n_free; i++)
        drop(user, p->free_block[i]);
    for (int i = 0; p->n_idle_windows && i < p->n_blocks; i++)
        if (p->window[i].refs == 0)
            window_lose(p, i);
    for (int i = 0; i < p->n_free_windows; i++)
        drop(user, p->n_blocks + p->free_window[i]);
}

int32_t pool_take(struct kv_pool *p)
{
    int32_t block;
    if (p->n_free)
        block = p->free_block[--p->n_free];
    else
        block = evict(p);
    p->refs[block] = 1;
    return block;
}

static int blocks_for(int n_tokens) { return n_tokens / KV_BLOCK + (n_tokens % KV_BLOCK != 0); }

int kv_table_leave(const struct kv_table *t, struct kv_pool *p)
{
    int n = 0;
    for (int i = 0; i < t->n_blocks; i++)
        n += --p->refs[t->block[i]] == 0;
    return n;
}

void kv_table_return(const struct kv_table *t, struct kv_pool *p)
{
    for (int i = 0; i < t->n_blocks; i++)
        p->refs[t->block[i]]++;
}

int kv_table_init(struct kv_table *t, int max_len, struct err *e)
{
    memset(t, 0, sizeof *t);
    t->room = blocks_for(max_len);
    t->block = calloc(2 * ((size_t)t->room + 1), sizeof *t->block);
    t->window = t->block ? t->block + t->room + 1 : NULL;
    return t->block ? 0 : err_nomem(e, "KV block table");
}

void kv_table_release(struct kv_table *t, struct kv_pool *p)
{
    if (t->block)
        kv_table_truncate(t, p, 0);
    if (t->block && t->root >= KV_ROOTS)
        p->scope[t->root / KV_ROOTS].refs--;
    free(t->block);
    memset(t, 0, sizeof *t);
}

int kv_table_reserve(struct kv_table *t, struct kv_pool *p, int n_tokens)
{
    int want = blocks_for(n_tokens);
    assert(want <= t->room);
    if (want - t->n_blocks > p->n_free + p->n_idle)
        return -1;
    while (t->n_blocks < want)
        t->block[t->n_blocks++] = pool_take(p);
    return 0;
}

void kv_table_truncate(struct kv_table *t, struct kv_pool *p, int n_tokens)
{
    int want = blocks_for(n_tokens);
    window_cut(t, p, want);
    while (t->n_blocks > want)
        pool_drop(p, t->block[--t->n_blocks]);
    if (t->n_tokens > n_tokens)
        t->n_tokens = n_tokens;
    if (t->n_nodes > t->n_tokens / KV_BLOCK)
        t->n_nodes = t->n_tokens / KV_BLOCK;
}

void kv_table_share(struct kv_table *t, struct kv_pool *p, const struct kv_table *from)
{
    int n = blocks_for(from->n_tokens);
    assert(n <= t->room && t != from);
    kv_table_truncate(t, p, 0);
    for (int i = 0; i < n; i++) {
        pool_hold(p, from->block[i]);
        t->block[i] = from->block[i];
    }
    t->n_blocks = n;
    t->n_tokens = from->n_tokens;
    t->first_window = from->first_window;
    for (t->end_window = 0; t->end_window < from->end_window && t->end_window < n;)
        if (window_is_held(from, p, t->end_window))
            window_add(t, p, t->end_window);
        else
            t->end_window++;
    p->scope[t->root / KV_ROOTS].refs -= t->root >= KV_ROOTS;
    p->scope[from->root / KV_ROOTS].refs += from->root >= KV_ROOTS;
    t->root = from->root;
    t->n_nodes = from->n_nodes;
}

int kv_table_unshare(struct kv_table *t, struct kv_pool *p, int32_t *from, int32_t *to)
{
    int i = t->n_tokens / KV_BLOCK;
    if (t->n_tokens % KV_BLOCK == 0 || i >= t->n_blocks ||
        (p->refs[t->block[i]] == 1 && p->node[t->block[i]].n_tokens == 0))
        return 0;
    if (p->n_free + p->n_idle == 0 || (p->window && p->n_free_windows + p->n_idle_windows == 0))
        return -1;
    *from = t->block[i];
    *to = pool_take(p);
    window_copy(t, p, i, *to);
    t->block[i] = *to;
    /* not reused before the caller's copy: only pool_take hands out blocks */
    pool_drop(p, *from);
    return 1;
}

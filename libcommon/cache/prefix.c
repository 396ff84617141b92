/* prefix.c - the prefix tree: a node is a block of tokens, found by its parent and its tokens. */
#include <assert.h>
#include <string.h>

#include "libcommon/base/siphash.h"
#include "libcommon/cache/kv_pool.h"

enum { SCAN = 256 };            /* siblings compared for a partial match: the latest ones */

static uint32_t bucket_of(const struct kv_pool *p, int32_t parent, const int32_t *token)
{
    uint64_t h = (uint64_t)(uint32_t)parent + 0x9E3779B97F4A7C15u;
    for (int i = 0; i < KV_BLOCK; i++)
        h = (h ^ (uint32_t)token[i]) * 0xff51afd7ed558ccdu, h ^= h >> 32;
    return (uint32_t)(h & (p->n_buckets - 1));
}

static int32_t find(const struct kv_pool *p, int32_t parent, const int32_t *token)
{
    int32_t b = p->bucket[bucket_of(p, parent, token)];
    while (b >= 0 && (p->node[b].parent != parent || memcmp(p->node[b].token, token, sizeof p->node[b].token) != 0))
        b = p->node[b].next;
    return b;
}

static int32_t parent_of(const struct kv_table *t, const struct kv_pool *p)
{
    return t->n_nodes ? t->block[t->n_nodes - 1] : p->n_blocks + t->root;
}

void kv_pool_watch(struct kv_pool *p, const struct kv_watch *w) { p->watch = *w; }

/* Compute the hash of a whole node, and tell the watcher. */
static void tell_stored(struct kv_pool *p, int32_t block)
{
    struct node *x = &p->node[block];
    const int root = x->parent - p->n_blocks;           /* negative: the parent is a node */
    const uint64_t parent = root < 0 ? p->node[x->parent].hash : 0,
                   key[2] = { root < 0 ? parent : p->scope[root / KV_ROOTS].id,
                              root < 0 ? 0 : (uint64_t)(root % KV_ROOTS) + 1 };
    x->hash = siphash(key, x->token, sizeof x->token);
    x->hash += x->hash == 0;
    p->watch.stored(p->watch.user, x->hash, parent, x->token);
}

static void insert(struct kv_pool *p, int32_t block, int32_t parent, const int32_t *token, int n)
{
    struct node *x = &p->node[block], *above = &p->node[parent];
    assert(x->n_tokens == 0);
    memcpy(x->token, token, (size_t)n * sizeof *token);
    x->n_tokens = n;
    x->serial = ++p->serials;
    x->parent = parent;
    x->child = x->before = -1;
    x->after = above->child;
    if (above->child >= 0)
        p->node[above->child].before = block;
    above->child = block;
    if (n == KV_BLOCK) {
        int32_t *head = &p->bucket[bucket_of(p, parent, token)];
        x->next = *head;
        *head = block;
        if (p->watch.stored)
            tell_stored(p, block);
    }
}

void prefix_remove(struct kv_pool *p, int32_t block)
{
    struct node *x = &p->node[block];
    assert(x->n_tokens > 0 && x->child < 0);
    *(x->before < 0 ? &p->node[x->parent].child : &p->node[x->before].after) = x->after;
    if (x->after >= 0)
        p->node[x->after].before = x->before;
    if (x->n_tokens == KV_BLOCK) {
        int32_t *link = &p->bucket[bucket_of(p, x->parent, x->token)];
        while (*link != block)
            link = &p->node[*link].next;
        *link = x->next;
        if (p->watch.stored)
            p->watch.removed(p->watch.user, x->hash);
    }
    x->n_tokens = 0;
}

/* 1 if all window blocks that the token after n_tokens sees exist, given that the last n_known of n
 * blocks have one. */
static int window_is_known(const struct kv_pool *p, int n_known, int n, int n_tokens)
{
    return !p->window || n_known >= n - window_seen(p, n_tokens);
}

/* Number of nodes at t's end that have window blocks. */
static int known_windows(const struct kv_table *t)
{
    return t->n_nodes - t->first_window;
}

/* The number of blocks that t would have after taking as many nodes as possible.  The sequence must
 * be able to continue after the last node, so the window blocks before its end must exist. */
static int takeable(const struct kv_table *t, const struct kv_pool *p, const int32_t *ids, int n)
{
    int most = t->n_nodes, known = known_windows(t);
    int32_t b = parent_of(t, p);
    for (int i = most; (i + 1) * KV_BLOCK <= n && (b = find(p, b, ids + i * KV_BLOCK)) >= 0;) {
        known = kv_pool_window(p, b) >= 0 ? known + 1 : 0;
        if (i++ < p->n_sinks && known == 0)
            break;
        most = window_is_known(p, known, i, i * KV_BLOCK) ? i : most;
    }
    return most;
}

int prefix_take(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int n)
{
    int before = t->n_tokens;
    assert(t->n_tokens == t->n_nodes * KV_BLOCK);
    window_cut(t, p, t->n_nodes);
    const int most = takeable(t, p, ids, n), seen = window_seen(p, most * KV_BLOCK);
    window_jump(t, p, seen);
    while (t->n_nodes < most) {
        const int32_t b = find(p, parent_of(t, p), ids + t->n_tokens);
        pool_hold(p, b);
        if (t->n_nodes < t->n_blocks)
            pool_drop(p, t->block[t->n_nodes]);
        else
            t->n_blocks++;
        t->block[t->n_nodes++] = b;
        t->n_tokens += KV_BLOCK;
        window_reuse(t, p, seen);
    }
    kv_table_slide(t, p);
    return t->n_tokens - before;
}

static int common(const struct node *x, const int32_t *ids, int n)
{
    int i = 0;
    while (i < x->n_tokens && i < n && x->token[i] == ids[i])
        i++;
    return i;
}

/* Whether node b has its window block, if window blocks are used. */
static int has_window(const struct kv_pool *p, int32_t b) { return !p->window || p->window[b].number >= 0; }

/* The child with the longest match; -1: no child matches a token.  Without `all`, only children
 * that have their window block count. */
static int32_t nearest(const struct kv_pool *p, int32_t parent, const int32_t *ids, int n, int all, int *n_common)
{
    int32_t best = -1;
    *n_common = 0;
    int scanned = 0;
    for (int32_t b = p->node[parent].child; b >= 0 && scanned < SCAN && *n_common < n; b = p->node[b].after,
         scanned++) {
        int k = all || has_window(p, b) ? common(&p->node[b], ids, n) : 0;
        if (k > *n_common) {
            *n_common = k;
            best = b;
        }
    }
    return best;
}

int prefix_copy(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int n, int32_t *from, int32_t *to)
{
    int k;
    assert(t->n_tokens == t->n_nodes * KV_BLOCK);
    int32_t b = nearest(p, parent_of(t, p), ids + t->n_tokens, n - t->n_tokens, 0, &k);
    if (b < 0)
        return 0;
    pool_hold(p, b);                    /* hold it, so that it is not evicted for the copy */
    window_hold(p, b);
    if (kv_table_reserve(t, p, t->n_tokens + k) != 0 || kv_table_windows(t, p, t->n_tokens + k) != 0)
        k = 0;
    else
        *from = b, *to = t->block[t->n_nodes], t->n_tokens += k;
    window_release(p, b, KEPT);
    pool_drop(p, b);
    return k;
}

void prefix_enter(struct kv_table *t, struct kv_pool *p, const int32_t *ids, int all)
{
    while ((t->n_nodes + 1) * KV_BLOCK <= t->n_tokens) {
        int i = t->n_nodes;
        const int32_t parent = parent_of(t, p), *token = ids + i * KV_BLOCK;
        int32_t known = find(p, parent, token), mine = t->block[i];
        if (known < 0) {
            insert(p, mine, parent, token, KV_BLOCK);
        } else if (known != mine) {
            pool_hold(p, known);
            window_move(t, p, i, known);
            pool_drop(p, mine);
            t->block[i] = known;
        }
        t->n_nodes++;
    }
    int rest = t->n_tokens - t->n_nodes * KV_BLOCK, k;
    if (!all || rest == 0 || p->node[t->block[t->n_nodes]].n_tokens)
        return;
    nearest(p, parent_of(t, p), ids + t->n_nodes * KV_BLOCK, rest, 1, &k);
    if (k < rest)
        insert(p, t->block[t->n_nodes], parent_of(t, p), ids + t->n_nodes * KV_BLOCK, rest);
}

int32_t prefix_end(const struct kv_table *t, const struct kv_pool *p)
{
    const int rest = t->n_tokens - t->n_nodes * KV_BLOCK;
    if (t->n_tokens == 0 || rest >= KV_BLOCK)
        return -1;
    const int32_t last = t->block[rest ? t->n_nodes : t->n_nodes - 1];
    return rest && p->node[last].n_tokens != rest ? -1 : last;
}

void prefix_visit(const struct kv_table *t, const struct kv_pool *p, const int32_t *ids, int n,
                  void (*visit)(void *user, int32_t block, int n_tokens), void *user)
{
    int at = t->n_tokens, known = known_windows(t);
    assert(at == t->n_nodes * KV_BLOCK);
    /* a partial node is copied after the whole ones, which prefix_take() has taken before */
    for (int32_t parent = parent_of(t, p), b; parent >= 0; parent = b, at += KV_BLOCK) {
        int scanned = 0;
        for (b = p->node[parent].child; b >= 0 && scanned < SCAN; b = p->node[b].after, scanned++)
            if (p->node[b].n_tokens < KV_BLOCK && common(&p->node[b], ids + at, n - at) == p->node[b].n_tokens &&
                has_window(p, b) && window_is_known(p, known, at / KV_BLOCK, at))
                visit(user, b, at + p->node[b].n_tokens);
        b = at + KV_BLOCK <= n ? find(p, parent, ids + at) : -1;
        known = b >= 0 && kv_pool_window(p, b) >= 0 ? known + 1 : 0;
        if (b >= 0 && at / KV_BLOCK < p->n_sinks && known == 0)
            return;
        if (b >= 0 && window_is_known(p, known, at / KV_BLOCK + 1, at + KV_BLOCK))
            visit(user, b, at + KV_BLOCK);
    }
}

uint64_t prefix_serial(const struct kv_pool *p, int32_t block)
{
    return p->node[block].n_tokens ? p->node[block].serial : 0;
}

/* cpu_sparse.c - score keys with an indexer, choose the best, and copy keys and values. */
#include "libcommon/cpu/cpu_sparse.h"

#include <math.h>
#include <string.h>

#include "libcommon/quant/half.h"

enum { SCORE_GROUPS = 16 };             /* groups of KV_BLOCK keys per job */

/* ---- places of keys in KV blocks ---- */

int sparse_item(const struct step *s, int token)
{
    int i = 0;
    while (i + 1 < s->n_items && s->offset[i + 1] <= token)
        i++;
    return i;
}

uint8_t *sparse_block(const struct core *k, const struct step *s, int item, int block)
{
    return k->kv + (size_t)s->items[item].table[block] * k->kv_stride + s->kv_at;
}

uint8_t *sparse_place(const struct sparse_keys *p, int item, int i, int *slot)
{
    const int block = (int)(((int64_t)i * p->rate + p->rate - 1) / KV_BLOCK);
    *slot = i - (int)((int64_t)block * KV_BLOCK / p->rate);
    return sparse_block(p->k, p->s, item, block) + p->at;
}

/* ---- copies ---- */

static void copy_scale(enum kv_type type, uint8_t *to, int to_slot, const uint8_t *from, int from_slot)
{
    if (kv_has_scales(type))
        memcpy(to + (size_t)to_slot * sizeof(float), from + (size_t)from_slot * sizeof(float), sizeof(float));
}

void sparse_copy_key(enum kv_type type, int dim, uint8_t *to, int to_slots, int to_slot, const uint8_t *from,
                     int from_slots, int from_slot)
{
    const size_t size = kv_element_bytes(type), n = (size_t)dim;
    uint8_t *out = to + (size_t)to_slot * size;
    const uint8_t *in = from + (size_t)from_slot * size;
    for (size_t d = 0; d < n; d++, out += (size_t)to_slots * size, in += (size_t)from_slots * size)
        memcpy(out, in, size);
    copy_scale(type, to + n * (size_t)to_slots, to_slot, from + n * (size_t)from_slots, from_slot);
}

void sparse_copy_value(enum kv_type type, int dim, uint8_t *to, int to_slot, const uint8_t *from, int from_slot)
{
    const size_t bytes = (size_t)dim * kv_element_bytes(type), codes = bytes * KV_BLOCK;
    memcpy(to + (size_t)to_slot * bytes, from + (size_t)from_slot * bytes, bytes);
    copy_scale(type, to + codes, to_slot, from + codes, from_slot);
}

/* ---- scores ---- */

void sparse_angles(const struct rope *r, int i, int rate, float *cosine, float *sine)
{
    for (int d = 0; d < r->dim / 2; d++) {
        const float angle = (float)(i * rate) * r->inv_freq[d];         /* f32, as for tokens */
        cosine[d] = (float)cos((double)angle) * r->scale;
        sine[d] = (float)sin((double)angle) * r->scale;
    }
}

/* Returns element i of keys as f32.  scale: the scale of the element's key, for types with
 * scales. */
static inline float element(const enum kv_type type, const uint8_t *keys, size_t i, float scale)
{
    switch (type) {
    case KV_F32: return ((const float *)(const void *)keys)[i];
    case KV_F16: return f16_to_f32(((const f16 *)(const void *)keys)[i]);
    case KV_BF16: return bf16_to_f32(((const bf16 *)(const void *)keys)[i]);
    case KV_F8: return f8e4m3_to_f32(keys[i]) * scale;
    default: return (float)(int8_t)keys[i] * scale;
    }
}

/* out [dim][KV_BLOCK] = keys as f32.  n = 1: one key, in column 0; n = KV_BLOCK: a whole block. */
static inline void load_as(const enum kv_type type, const int n, const uint8_t *keys, int slots, int slot, int dim,
                           float *out)
{
    const float *scale = (const float *)(const void *)(keys + (size_t)(dim * slots));
    for (int d = 0; d < dim; d++)
        for (int e = 0; e < n; e++)
            out[d * KV_BLOCK + e] = element(type, keys, (size_t)(d * slots + slot + e),
                                            kv_has_scales(type) ? scale[slot + e] : 1);
}

/* Call load_as() with `type` as a constant, so that each inlined copy of its loop is compiled for
 * one type. */
static inline void load_keys(enum kv_type type, const int n, const uint8_t *keys, int slots, int slot, int dim,
                             float *out)
{
    switch (type) {
    case KV_F32: load_as(KV_F32, n, keys, slots, slot, dim, out); break;
    case KV_F16: load_as(KV_F16, n, keys, slots, slot, dim, out); break;
    case KV_BF16: load_as(KV_BF16, n, keys, slots, slot, dim, out); break;
    case KV_F8: load_as(KV_F8, n, keys, slots, slot, dim, out); break;
    default: load_as(KV_I8, n, keys, slots, slot, dim, out);
    }
}

void sparse_load_block(enum kv_type type, const uint8_t *keys, size_t scales, int dim, float *out)
{
    static const float ternary[4] = { 0, 1, -1, 0 };
    if (!kv_packed(type)) {
        load_keys(type, KV_BLOCK, keys, KV_BLOCK, 0, dim, out);
        return;
    }
    const float *scale = (const float *)(const void *)(keys + scales);
    for (int d = 0; d < dim; d++)
        for (int e = 0; e < KV_BLOCK; e++) {
            const int i4 = keys[d * 8 + e % 8] >> (e < 8 ? 0 : 4) & 15, t2 = keys[d * 4 + e / 4] >> (e % 4 * 2) & 3;
            out[d * KV_BLOCK + e] = (type == KV_I4 ? (float)((i4 ^ 8) - 8) : ternary[t2]) * scale[e];
        }
}

/* Load keys first .. first + KV_BLOCK - 1 of an item, which has n keys, as f32 [dim][KV_BLOCK];
 * columns after the last key are undefined and unused. */
static void load_columns(const struct sparse_keys *p, int item, int first, int n, int dim, float *out)
{
    int slot;
    if (p->rate == 1) {                                 /* adjacent, all in one block */
        const uint8_t *keys = sparse_place(p, item, first, &slot);
        load_keys(p->k->types.key, KV_BLOCK, keys, KV_BLOCK, 0, dim, out);
        return;
    }
    for (int e = 0; e < KV_BLOCK; e++) {
        const uint8_t *keys = sparse_place(p, item, first + e < n ? first + e : n - 1, &slot);
        load_keys(p->k->types.key, 1, keys, p->slots, slot, dim, out + e);
    }
}

struct score_job { const struct sparse_scores *x; int first, jobs; };

/* Score some keys for one token of the batch, KV_BLOCK at a time. */
static void score_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct score_job *j = arg;
    const struct sparse_scores *x = j->x;
    const struct core *k = x->keys.k;
    const int heads = k->c->indexer.n_heads, dim = k->c->indexer.head_dim, slot = i / j->jobs, token = j->first + slot,
              item = sparse_item(x->keys.s, token), n = (k->pos[token] + 1) / x->keys.rate,
              from = i % j->jobs * SCORE_GROUPS * KV_BLOCK, end = from + SCORE_GROUPS * KV_BLOCK;
    float keys[(size_t)dim * KV_BLOCK];
    if (n <= k->c->indexer.top_k)
        return;
    for (int first = from; first < n && first < end; first += KV_BLOCK) {
        load_columns(&x->keys, item, first, n, dim, keys);
        k->k->index_block(x->out + (size_t)slot * (size_t)x->room + (size_t)first,
                          x->q + (size_t)token * (size_t)(heads * dim), heads, dim,
                          x->weight + (size_t)token * (size_t)x->weight_stride, keys);
    }
}

void sparse_score(const struct sparse_scores *x, int first_token, int n)
{
    struct score_job j = { x, first_token, (x->room / KV_BLOCK + SCORE_GROUPS - 1) / SCORE_GROUPS };
    pool_run(x->keys.k->pool, n * j.jobs, score_part, &j);
}

/* ---- choosing keys ---- */

/* An integer that is ordered like the float. */
static uint32_t order_of(float x)
{
    const uint32_t bits = f32_bits(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Returns the k-th largest of n scores, found by radix selection, a byte at a time.  *above: number
 * of larger scores. */
static uint32_t threshold(const float *score, int n, int k, int *above)
{
    uint32_t found = 0, mask = 0;
    *above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = { 0 }, digit = 255;
        for (int i = 0; i < n; i++)
            if ((order_of(score[i]) & mask) == found)
                count[order_of(score[i]) >> shift & 255]++;
        while (digit > 0 && *above + count[digit] < k)
            *above += count[digit--];
        found |= (uint32_t)digit << shift;
        mask |= 255u << shift;
    }
    return found;
}

int sparse_choose(const float *score, int n, int most, int *to)
{
    int count = 0, above = 0;
    if (n <= most) {
        for (int i = 0; i < n; i++)
            to[count++] = i;
        return count;
    }
    const uint32_t least = threshold(score, n, most, &above);
    int equal = most - above;
    for (int i = 0; i < n && count < most; i++) {
        const uint32_t x = order_of(score[i]);
        if (x > least || (x == least && equal-- > 0))
            to[count++] = i;
    }
    return count;
}

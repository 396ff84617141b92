/* t-kernels-attention.c - attention over KV blocks: the plain kernels are compared with softmax in
 * double, the other sets bit for bit with the plain ones, for any division of the queries into
 * calls.  Slots that hold no token yet are full of NaN. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/kvscale.h"

/* Every set that runs here; sets with the same functions for attention count once. */
static int is_new(const struct kernels *const *k)
{
    for (const struct kernels *const *i = kernels_all; i < k; i++)
        if ((*i)->supported() && (*i)->attention == (*k)->attention && (*i)->kv_store_key == (*k)->kv_store_key &&
            (*i)->kv_store_value == (*k)->kv_store_value && (*i)->attention_merge == (*k)->attention_merge)
            return 0;
    return (*k)->supported();
}
#define FOR_SETS(k) for (const struct kernels *const *k = kernels_all; *k; k++) if (is_new(k))

enum { SHORT = 150, LONG = 1040 };

static float uniform(struct rng *r, float from, float to) { return from + (to - from) * (float)rng_double(r); }
static void *aligned(size_t n)
{
    void *p = aligned_alloc(64, (n + 127) / 64 * 64);
    assert_non_null(p);
    return memset(p, 0xff, (n + 127) / 64 * 64);
}

/* One sequence: the original keys and values of len positions, and those that are read back from
 * their stored form. */
struct sequence {
    struct kv_types kv;
    int head_dim, n_heads, len, n_blocks;
    float *key, *value, *q;                             /* [len][head_dim], [len][n_heads][head_dim] */
    double *key_back, *value_back, *value_scale;
    uint8_t *bytes;                                     /* blocks in shuffled order, with other data
                                                         * between them */
    int32_t *table;
    size_t stride;
    uint8_t *tail;                                      /* NULL: there is none */
    struct attn a;
};

/* Ternary vectors are stored by libcommon/cpu, because heads share their scale. */
static void store_ternary(uint8_t *block, size_t scales, int slot, int is_key, const float *x, int head_dim)
{
    const float scale = kv_t2_scale(x, head_dim);
    memcpy(block + scales + (size_t)slot * sizeof scale, &scale, sizeof scale);
    kv_t2_store(block, slot, is_key, x, head_dim, scale);
}

static void store(struct sequence *s, const struct kernels *k)
{
    const size_t block = kv_block_bytes(s->kv.key, s->head_dim);
    const size_t tail = kv_block_bytes(KV_F16, s->head_dim);
    memset(s->bytes, 0xff, (size_t)s->n_blocks * s->stride);
    if (s->tail)
        memset(s->tail, 0xff, (size_t)s->n_blocks * 2 * tail);
    for (int p = 0; p < s->len; p++) {
        if (attn_in_tail(&s->a, p)) {
            uint8_t *b = s->tail + (size_t)(p / KV_BLOCK) * 2 * tail;
            k->kv_store_key(KV_F16, b + tail, p % KV_BLOCK, s->key + p * s->head_dim, s->head_dim);
            k->kv_store_value(KV_F16, b, p % KV_BLOCK, s->value + p * s->head_dim, s->head_dim);
            continue;
        }
        uint8_t *b = s->bytes + (size_t)s->table[p / KV_BLOCK] * s->stride;
        const float *key = s->key + p * s->head_dim, *value = s->value + p * s->head_dim;
        if (s->kv.key == KV_T2)
            store_ternary(b + 64, s->a.k_scales, p % KV_BLOCK, 1, key, s->head_dim);
        else
            k->kv_store_key(s->kv.key, b + 64, p % KV_BLOCK, key, s->head_dim);
        if (s->kv.value == KV_T2)
            store_ternary(b + 128 + block, s->a.v_scales, p % KV_BLOCK, 0, value, s->head_dim);
        else
            k->kv_store_value(s->kv.value, b + 128 + block, p % KV_BLOCK, value, s->head_dim);
    }
}

static double read_back(const struct sequence *s, enum kv_type type, const uint8_t *block, size_t scales, size_t i,
                        int slot)
{
    static const int ternary[] = { 0, 1, -1 };
    float scale;
    memcpy(&scale, block + (type == KV_T2 ? scales : kv_codes_bytes(type, s->head_dim)) + 4 * (size_t)slot, 4);
    switch (type) {
    case KV_F32: return ((const float *)block)[i];
    case KV_F16: return f16_to_f32(((const f16 *)block)[i]);
    case KV_BF16: return bf16_to_f32(((const bf16 *)block)[i]);
    case KV_F8: return (double)f8e4m3_to_f32(block[i]) * scale;
    case KV_I4: {                       /* elements i (low) and i + 8 of 16 in byte i, two's complement */
        const int code = block[i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15;
        return (double)(code < 8 ? code : code - 16) * scale;
    }
    case KV_T2: return (double)ternary[block[i / 4] >> (i % 4 * 2) & 3] * scale;
    default: return (double)((const int8_t *)block)[i] * scale;
    }
}

static void open_mixed(struct sequence *s, int len, struct kv_types kv, int head_dim, int n_heads, struct rng *r)
{
    const size_t hd = (size_t)head_dim, block = kv_block_bytes(kv.key, head_dim);
    *s = (struct sequence){ .kv = kv, .head_dim = head_dim, .n_heads = n_heads, .len = len,
                            .n_blocks = (len + KV_BLOCK - 1) / KV_BLOCK,
                            .stride = block + kv_block_bytes(kv.value, head_dim) + 320 };
    const size_t n = (size_t)len * hd;
    s->key = malloc(n * 4), s->value = malloc(n * 4), s->q = malloc(n * (size_t)n_heads * 4);
    s->key_back = malloc(n * 8), s->value_back = malloc(n * 8), s->value_scale = calloc((size_t)len, 8),
        s->table = malloc((size_t)s->n_blocks * sizeof *s->table);
    s->bytes = aligned((size_t)s->n_blocks * s->stride);
    for (int i = 0; i < len * head_dim; i++)
        s->key[i] = uniform(r, -1, 1), s->value[i] = uniform(r, -1, 1);
    for (int i = 0; i < len * n_heads * head_dim; i++)
        s->q[i] = uniform(r, -2, 2);
    for (int b = 0; b < s->n_blocks; b++)
        s->table[b] = (b * 7 + 3) % s->n_blocks;        /* 10 or 65 blocks: a permutation */
    s->a.k_scales = s->stride - 192;                    /* after 64 bytes of other data, as from b + 64 */
    s->a.v_scales = s->stride - 128 - block - 64;
    store(s, &kernels_ref);
    for (int p = 0; p < s->len; p++) {
        const uint8_t *b = s->bytes + (size_t)s->table[p / KV_BLOCK] * s->stride;
        float scale = 0;
        if (kv.value == KV_I4 || kv.value == KV_I8)
            memcpy(&scale, b + 128 + block + kv_codes_bytes(kv.value, head_dim) + 4 * (p % KV_BLOCK), sizeof scale);
        s->value_scale[p] = (double)scale;
        for (int d = 0; d < head_dim; d++) {
            s->key_back[p * head_dim + d] = read_back(s, kv.key, b + 64, s->a.k_scales,
                                                      (size_t)d * KV_BLOCK + (size_t)(p % KV_BLOCK), p % KV_BLOCK);
            s->value_back[p * head_dim + d] = read_back(s, kv.value, b + 128 + block, s->a.v_scales,
                                                        (size_t)(p % KV_BLOCK * kv_padded(kv.value, head_dim) + d),
                                                        p % KV_BLOCK);
        }
    }
    s->a = (struct attn){
        .q_token_stride = (size_t)n_heads * hd, .q_head_stride = hd, .out_token_stride = (size_t)n_heads * (hd + 3),
            .out_head_stride = hd + 3, .n_q_heads = n_heads,
        .head_dim = head_dim, .base = s->bytes, .table = s->table, .stride = s->stride, .k_offset = 64,
        .v_offset = 128 + block, .kv = kv,
        .k_scales = s->a.k_scales, .v_scales = s->a.v_scales, .scale = 1.0f / sqrtf((float)head_dim),
    };
}

/* Move the positions outside [from, to) to a tail, so that they are only there. */
static void add_tail(struct sequence *s, int from, int to)
{
    const size_t block = kv_block_bytes(KV_F16, s->head_dim);
    s->tail = aligned((size_t)s->n_blocks * 2 * block);
    int32_t *table = malloc((size_t)s->n_blocks * sizeof *table);
    for (int b = 0; b < s->n_blocks; b++)
        table[b] = b;
    s->a.tail.base = s->tail;
    s->a.tail.table = table;
    s->a.tail.stride = 2 * block;
    s->a.tail.k_offset = block;
    s->a.rounded_from = from;
    s->a.rounded_to = to;
    for (int p = 0; p < s->len; p++)
        for (int d = 0; d < s->head_dim && attn_in_tail(&s->a, p); d++) {
            s->key_back[p * s->head_dim + d] = f16_to_f32(f32_to_f16(s->key[p * s->head_dim + d]));
            s->value_back[p * s->head_dim + d] = f16_to_f32(f32_to_f16(s->value[p * s->head_dim + d]));
        }
}

static void sequence_open(struct sequence *s, int len, enum kv_type type, int head_dim, int n_heads, struct rng *r)
{
    open_mixed(s, len, kv_both(type), head_dim, n_heads, r);
}

static void sequence_close(struct sequence *s)
{
    free(s->key), free(s->value), free(s->q), free(s->key_back), free(s->value_back), free(s->value_scale);
    free(s->bytes), free(s->table);
    if (s->tail)
        free((void *)(uintptr_t)s->a.tail.table), free(s->tail);
}

/* The last position that a query sees. */
static int last_of(const struct attn *a, int at)
{
    return !a->end ? at : a->window && at + a->window < a->end ? at + a->window - 1 : a->end - 1;
}

/* Compute attention for all positions from `from` on, in calls of at most `step` queries.  parted:
 * one part of the context at a time, the last part first.  out [len][n_heads][head_dim + 3]. */
static float *attend(const struct sequence *s, const struct kernels *k, int from, int step, int parted)
{
    struct attn a = s->a;
    const size_t size = (size_t)s->len * a.out_token_stride;
    float *out = malloc(size * sizeof *out);
    memset(out, 0xff, size * sizeof *out);
    for (int p = from; p < s->len; p += step) {
        a.pos = p;
        a.n_tokens = s->len - p < step ? s->len - p : step;
        a.q = s->q + (size_t)p * a.q_token_stride;
        a.out = out + (size_t)p * a.out_token_stride;
        void *scratch = aligned(k->attention_scratch(a.head_dim));
        if (parted) {
            const int first = (a.window && p - a.window + 1 > 0 ? p - a.window + 1 : 0) / ATTN_PART,
                      last = last_of(&a, p + a.n_tokens - 1) / ATTN_PART;
            const size_t one = (size_t)(a.n_tokens * a.n_q_heads) * attn_partial(a.head_dim);
            float *partial = aligned((size_t)(last - first + 1) * one * sizeof *partial);
            for (a.part = last; a.part >= first; a.part--) {
                a.partial = partial + (size_t)(a.part - first) * one;
                k->attention(&a, scratch);
            }
            a.partial = partial;
            a.part = first;
            k->attention_merge(&a);
            a.partial = NULL;
            free(partial);
        } else {
            k->attention(&a, scratch);
        }
        free(scratch);
    }
    return out;
}

/* Whether queries and weights are rounded for this type, and to how many steps. */
static int rounds(const struct sequence *s, enum kv_type type)
{
    return type == KV_I4 || (type == KV_I8 && !s->a.latent && s->head_dim <= 1024);
}
static int query_steps(const struct sequence *s)
{
    return s->kv.key == KV_I4 ? 127 : s->head_dim <= 64 ? 2047 : 131072 / s->head_dim - 1;
}
static int weight_steps(const struct sequence *s) { return s->kv.value == KV_I4 ? 32767 : 2047; }

/* The query as i4 and i8 keys see it. */
static void round_query(const struct sequence *s, const float *q, double *rounded)
{
    float most = 0;
    for (int d = 0; d < s->head_dim; d++)
        most = fmaxf(most, fabsf(q[d]));
    for (int d = 0; d < s->head_dim; d++)
        rounded[d] = (double)rintf(q[d] * ((float)query_steps(s) / most)) * (double)most / query_steps(s);
}

/* Round the weights p of the i4 or i8 values of positions [first, last]: in each aligned run of 64,
 * weights times scales of values to multiples of the largest / weight_steps().  Returns how far
 * the sum of values can be off, because a weight in the middle of two steps may be rounded to
 * either. */
static double round_weights(const struct sequence *s, double *p, int first, int last)
{
    const int n = weight_steps(s);
    double slack = 0;
    for (int begin = first; begin <= last; begin = (begin / 64 + 1) * 64) {
        const int end = (begin / 64 + 1) * 64 <= last ? (begin / 64 + 1) * 64 : last + 1;
        double most = 0;
        for (int j = begin; j < end; j++)
            most = fmax(most, fabs(p[j] * s->value_scale[j]));
        for (int j = begin; j < end && !attn_in_tail(&s->a, begin); j++) {
            const double steps = p[j] * s->value_scale[j] / most * n, rest = fabs(steps) - floor(fabs(steps));
            slack += fabs(rest - 0.5) < 0.02 ? most / n * (s->kv.value == KV_I4 ? 8 : 127) : 0;
            p[j] = rint(steps) * most / n / s->value_scale[j];
        }
    }
    return slack;
}

static void check_ref(const struct sequence *s, const float *got, int from)
{
    const struct attn *a = &s->a;
    const int hd = s->head_dim;
    double *p = malloc((size_t)s->len * sizeof *p), *rounded = malloc((size_t)hd * sizeof *rounded);
    for (int at = from; at < s->len; at++)
        for (int h = 0; h < s->n_heads; h++) {
            const float *q = s->q + ((size_t)at * (size_t)s->n_heads + (size_t)h) * (size_t)hd,
                        *o = got + (size_t)at * a->out_token_stride + (size_t)h * a->out_head_stride;
            int first = a->window && at - a->window + 1 > 0 ? at - a->window + 1 : 0, last = last_of(a, at);
            double max = -1e300, sum = 0, slack = 0;
            round_query(s, q, rounded);
            for (int j = first; j <= last; j++) {
                double v = 0;
                for (int d = 0; d < hd; d++)
                    v += (rounds(s, s->kv.key) && !attn_in_tail(a, j) ? rounded[d] : (double)q[d]) *
                         s->key_back[j * hd + d];
                v *= (double)a->scale;
                if (a->softcap > 0)
                    v = (double)a->softcap * tanh(v / (double)a->softcap);
                if (a->alibi)
                    v += (double)a->alibi[h] * (j - at);
                if (a->bias)
                    v += (double)a->bias[(ptrdiff_t)h * (ptrdiff_t)a->bias_stride + j - at];
                p[j] = v;
                max = v > max ? v : max;
            }
            for (int j = first; j <= last; j++)
                sum += p[j] = exp(p[j] - max);
            if (rounds(s, s->kv.value) && !a->latent)
                slack = round_weights(s, p, first, last);
            for (int d = 0; d < attn_width(a); d++) {
                double v = 0;
                for (int j = first; j <= last; j++)
                    v += p[j] * (a->latent ? s->key_back : s->value_back)[j * hd + d];
                /* the error of a score is about 6 * 2^-24, which becomes a relative error of the
                 * weight; values are at most 1 */
                if (!(fabs(v / sum - (double)o[d]) <= 4e-6 + slack / sum))
                    fail_msg("kv types %d, %d head_dim %d window %d softcap %g alibi %d: position %d head %d element %d is %.9g, not %.9g", (int)s->kv.key, (int)s->kv.value, hd, a->window,
                             (double)a->softcap, a->alibi != NULL, at, h, d, (double)o[d], v / sum);
            }
        }
    free(p);
    free(rounded);
}

/* Every how many cases are tested.  Under a sanitizer every fourth one: its subject is addresses,
 * and the bits are compared in other builds.  In an emulation, which is slow, even fewer. */
static size_t stride(void)
{
    return getenv("ZSE_EMULATED") ? 6 : getenv("ZSE_SANITIZED") ? 4 : 1;
}

static void check(struct sequence *s)
{
    /* long sequences: only the positions from shortly before the end of their second part */
    const int steps[] = { 1, 3, 50, s->len }, from = s->len == SHORT ? 0 : 1010;
    const size_t size = (size_t)s->len * s->a.out_token_stride;
    store(s, &kernels_ref);
    float *want = attend(s, &kernels_ref, from, s->len, 0);
    if (!getenv("ZSE_EMULATED"))                /* plain C was compared elsewhere */
        check_ref(s, want, from);
    FOR_SETS(k) {
        store(s, *k);
        for (size_t i = 0; i < 2 * sizeof steps / sizeof *steps; i++) {
            const int step = steps[i / 2], parted = (int)(i % 2);
            if (*k == &kernels_ref && (step != 50 || !parted))      /* the plain kernels are tested
                                                                     * with one division into calls
                                                                     * only */
                continue;
            if (stride() > 1 && i % 3 != 1)
                continue;
            float *got = attend(s, *k, from, step, parted);
            for (size_t j = 0; j < size; j++)
                if (f32_bits(got[j]) != f32_bits(want[j]))
                    fail_msg("%s kv types %d, %d head_dim %d heads %d window %d, %d queries at once%s: position %zu element %zu is %.9g, not %.9g", (*k)->name, (int)s->kv.key, (int)s->kv.value, s->head_dim,
                             s->n_heads, s->a.window, step, parted ? ", in parts" : "", j / s->a.out_token_stride,
                             j % s->a.out_token_stride, (double)got[j], (double)want[j]);
            free(got);
        }
    }
    free(want);
}

static void sets_agree_for_every_head_size(void **state)
{
    (void)state;
    static const int dims[] = { 1, 15, 16, 32, 64, 80, 96, 100, 128, 256 };
    struct rng r = { 1 };
    for (size_t i = stride() / 4; i < sizeof dims / sizeof *dims; i += stride())
        for (int type = KV_F32; type < KV_TYPES; type++) {
            struct sequence s;
            sequence_open(&s, SHORT, (enum kv_type)type, dims[i], 1 + (int)i % 4, &r);
            check(&s);
            sequence_close(&s);
        }
}

/* Keys and values of different types, for few rows and for many, in one part and in several. */
static void sets_agree_for_mixed_types(void **state)
{
    (void)state;
    static const struct kv_types kinds[] = { { KV_I8, KV_I4 }, { KV_F16, KV_I8 }, { KV_I4, KV_F32 }, { KV_BF16, KV_I4 },
                                             { KV_F8, KV_F16 }, { KV_T2, KV_I8 }, { KV_F16, KV_T2 } };
    struct rng r = { 9 };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct sequence s;
        open_mixed(&s, i == 0 ? LONG : SHORT, kinds[i], i % 2 ? 40 : 64, 1 + (int)i, &r);
        check(&s);
        sequence_close(&s);
    }
}

/* Positions that are in a tail of f16, beside rounded positions, with parts and calls that begin
 * and end at various distances from the tail. */
static void sets_agree_beside_tails_of_f16(void **state)
{
    (void)state;
    static const struct { struct kv_types kv; int len, head_dim, n_heads, from, to; float softcap; } cases[] = {
        { { KV_I4, KV_I4 }, LONG, 64, 3, 64, 896, 0 }, { { KV_I8, KV_I4 }, LONG, 80, 7, 64, 960, 0 },
        { { KV_F16, KV_I4 }, LONG, 36, 1, 64, 704, 5 }, { { KV_I4, KV_F32 }, SHORT, 100, 2, 64, 128, 0 },
        { { KV_T2, KV_T2 }, LONG, 64, 3, 64, 896, 0 }, { { KV_I4, KV_T2 }, LONG, 80, 7, 64, 960, 0 },
        { { KV_I4, KV_I4 }, SHORT, 32, 4, 0, 64, 5 }, { { KV_I4, KV_I4 }, SHORT, 32, 1, 64, 0, 0 },
    };
    struct rng r = { 11 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sequence s;
        open_mixed(&s, cases[i].len, cases[i].kv, cases[i].head_dim, cases[i].n_heads, &r);
        add_tail(&s, cases[i].from, cases[i].to);
        s.a.softcap = cases[i].softcap;
        check(&s);
        sequence_close(&s);
    }
}

/* The codes and the scale of an i4 vector: the scale is the sum of elements times codes divided by
 * that of squared codes; the furthest element is clipped if that lowers the squared error.  Inf and
 * NaN affect only their own token. */
static void i4_codes_and_scales_are_as_defined(void **state)
{
    (void)state;
    float x[16] = { -1, 0.5f, 0.0625f, -0.0625f, 0.9f };
    /* with -1 as -8 the sum of squares that the codes explain would be 2.6045, with these 2.6061 */
    const float clipped[16] = { -1, 0.4f, 0.08f, 0.22f, -0.32f, -0.43f, -0.05f, 0.29f, 0.54f, 0.35f, -0.35f, 0.31f,
                                -0.14f, 0.02f, -0.31f, -0.54f };
    FOR_SETS(k) {
        uint8_t *block = aligned(kv_block_bytes(KV_I4, 16));
        memset(block, 0, kv_block_bytes(KV_I4, 16));
        (*k)->kv_store_value(KV_I4, block, 2, x, 16);
        (*k)->kv_store_value(KV_I4, block, 3, clipped, 16);
        const uint8_t want[16] = { 8, 4, 0, 0, 7, 0, 0, 0,
                                   0x58, 0x34, 0xd1, 0x32, 0xfd, 0x0c, 0xd0, 0xb3 };
        float scale;
        assert_memory_equal(block + 2 * 8, want, sizeof want);
        memcpy(&scale, block + 128 + 2 * sizeof scale, sizeof scale);
        assert_float_equal(scale, 16.3 / 129, 1e-5);
        memcpy(&scale, block + 128 + 3 * sizeof scale, sizeof scale);
        assert_float_equal(scale, 23.17 / 206, 1e-5);
        memcpy(&scale, block + 128 + 2 * sizeof scale, sizeof scale);
        for (int slot = 0; slot < 16; slot++) {
            x[1] = slot == 9 ? INFINITY : 0.5f;
            (*k)->kv_store_key(KV_I4, block, slot, x, 16);
        }
        for (int slot = 0; slot < 16; slot++) {
            float stored;
            memcpy(&stored, block + 128 + (size_t)slot * sizeof scale, sizeof stored);
            assert_true(slot == 9 ? isnan(stored) : stored == scale);
        }
        assert_int_equal(block[0], 0x88);
        assert_int_equal(block[1], 0x08);       /* slot 1 has -1, slot 9 nothing */
        free(block);
    }
}

/* The squared error of i4, and with the furthest element at -8. */
static void i4_errors(const float *x, int n, double *fitted, double *plain)
{
    float factor, scale[2] = { kv_i4_scale(x, n, &factor), 0 };
    for (int i = 0; i < n; i++)
        scale[1] = fabsf(x[i]) > fabsf(8 * scale[1]) ? x[i] / -8 : scale[1];
    for (int i = 0; i < n; i++) {
        const double a = x[i] - (double)scale[0] * kv_i4_round(x[i], factor),
                     b = x[i] - (double)scale[1] * kv_i4_round(x[i], 1 / scale[1]);
        *fitted += a * a;
        *plain += b * b;
    }
}

/* The scale of i4 lowers the squared error of normally distributed elements, and all sets store the
 * same bytes, also for vectors that are far from 1 and at the ends of a range. */
static void i4_scales_have_little_error(void **state)
{
    (void)state;
    struct rng r = { 5 };
    double fitted = 0, plain = 0;
    for (int i = 0; i < 200; i++) {
        float x[64];
        for (int d = 0; d < 64; d++) {
            x[d] = 0;
            for (int j = 0; j < 12; j++)
                x[d] += uniform(&r, -0.5f, 0.5f);
        }
        i4_errors(x, 64, &fitted, &plain);
        for (int d = 0; d < 64; d++)
            x[d] = ldexpf(x[d], i % 4 == 0 ? 120 : i % 4 == 1 ? -95 : 0);
        uint8_t want[2][1024] = { { 0 } }, got[2][1024] = { { 0 } };
        kernels_ref.kv_store_key(KV_I4, want[0], i % 16, x, 64);
        kernels_ref.kv_store_value(KV_I4, want[1], i % 16, x, 64);
        FOR_SETS(k) {
            memset(got, 0, sizeof got);
            (*k)->kv_store_key(KV_I4, got[0], i % 16, x, 64);
            (*k)->kv_store_value(KV_I4, got[1], i % 16, x, 64);
            assert_memory_equal(got, want, sizeof want);
        }
    }
    assert_true(fitted < 0.93 * plain);
}

/* The codes, the scale and the bytes of ternary vectors.  4 heads of 64 elements, 4 of 128 and 8 of
 * 128 take 68, 132 and 260 bytes a token: 15.06, 15.52 and 15.75 times less than f32. */
static void ternary_codes_scales_and_bytes_are_as_defined(void **state)
{
    (void)state;
    static const struct { int heads, dim; double ratio; } sizes[] = { { 4, 64, 15.06 }, { 4, 128, 15.52 },
                                                                      { 8, 128, 15.75 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_float_equal((double)(sizes[i].heads * sizes[i].dim * 4 * KV_BLOCK) /
                               (double)kv_heads_bytes(KV_T2, sizes[i].dim, sizes[i].heads), sizes[i].ratio, 0.005);
    float x[16] = { 1, -1, 1, 0.25f, -0.25f, 0, 1, -1 };
    const float scale = kv_t2_scale(x, 16);
    uint8_t block[64];
    memset(block, 0xff, sizeof block);
    assert_float_equal(scale, 1, 0);                    /* the mean of the five elements beyond 0.5 */
    kv_t2_store(block, 2, 0, x, 16, scale);
    const uint8_t value[4] = { 0x19, 0x90 };            /* +1 is 1, -1 is 2, the first element lowest */
    assert_memory_equal(block + 2 * 4, value, sizeof value);
    for (int slot = 0; slot < 16; slot++) {
        x[1] = slot == 9 ? NAN : -1;
        kv_t2_store(block, slot, 1, x, 16, kv_t2_scale(x, 16));
    }
    const uint8_t key[8] = { 0x55, 0x55, 0x51, 0x55, 0xaa, 0xaa, 0xa2, 0xaa };
    assert_memory_equal(block, key, sizeof key);        /* slot 9 has a NaN: its codes are 0 */
    assert_true(isnan(kv_t2_scale((float[]){ 1, NAN }, 2)) && isnan(kv_t2_scale((float[]){ INFINITY, 1 }, 2)));
    assert_float_equal(kv_t2_scale((float[]){ 0, 0 }, 2), 0, 0);
}

/* Values with weights below ATTN_LEAST are left out, even infinite ones, so no trace of them is in
 * the sum; the weights are still counted. */
static void small_weights_leave_out_ternary_values(void **state)
{
    (void)state;
    struct rng r = { 23 };
    struct sequence s;
    open_mixed(&s, SHORT, (struct kv_types){ KV_F32, KV_T2 }, 16, 1, &r);
    for (int p = 0; p < s.len; p++)
        for (int d = 0; d < 16; d++) {
            s.key[p * 16 + d] = d == 0 ? p >= 32 && p < 48 ? -100 : 0 : 0;
            s.q[p * 16 + d] = d == 0;
            s.value[p * 16 + d] = p >= 32 && p < 48 ? 1e30f : 1;
        }
    s.a.scale = 1;
    FOR_SETS(k) {
        store(&s, *k);
        float *out = attend(&s, *k, s.len - 1, 1, 0);
        assert_float_equal(out[(size_t)(s.len - 1) * s.a.out_token_stride], 1, 1e-6);
        free(out);
    }
    sequence_close(&s);
}

static void sets_agree_for_many_heads(void **state)
{
    (void)state;
    struct rng r = { 2 };
    static const int heads[] = { 5, 6, 7, 8, 13, 100 };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i += stride()) {
        struct sequence s;
        sequence_open(&s, SHORT, KV_F16, 32, heads[i], &r);
        check(&s);
        sequence_close(&s);
    }
}

static void sets_agree_with_windows_softcaps_and_slopes(void **state)
{
    (void)state;
    static const int windows[] = { 0, 1, 5, 16, 33, 64, 100, 149, 1000 };
    static const float slopes[3] = { 0.5f, 0.0625f, 0.01f };
    struct rng r = { 3 };
    for (int type = KV_F32; type < KV_TYPES; type++) {
        struct sequence s;
        sequence_open(&s, SHORT, (enum kv_type)type, 48, 3, &r);
        for (size_t i = 0; i < sizeof windows / sizeof *windows; i += stride()) {
            s.a.window = windows[i];
            s.a.softcap = i % 2 ? 5 : 0;
            s.a.alibi = i % 3 ? NULL : slopes;
            check(&s);
        }
        sequence_close(&s);
    }
}

/* Positions in more than one part: without a window, and with windows that begin in one part and
 * end in another. */
static void sets_agree_for_positions_in_parts(void **state)
{
    (void)state;
    static const int windows[] = { 0, 40, 700 };
    static const float slopes[7] = { 0.01f, 0.002f };
    struct rng r = { 6 };
    for (int type = KV_F32; type < KV_TYPES; type++)
        for (size_t i = stride() > 1 ? (size_t)type % 3 : 0; i < sizeof windows / sizeof *windows; i += stride()) {
            struct sequence s;
            sequence_open(&s, LONG, (enum kv_type)type, i == 1 ? 72 : 32, i == 2 ? 7 : 1, &r);
            s.a.window = windows[i];
            s.a.alibi = i == 2 ? slopes : NULL;
            check(&s);
            sequence_close(&s);
        }
}

/* Encoders: queries attend to later positions, too, in one part and in several; some have a bias
 * for each distance. */
static void sets_agree_for_attention_in_both_directions(void **state)
{
    (void)state;
    static const int windows[] = { 0, 1, 9, 65, 600 };
    static const float slopes[3] = { 0.5f, 0.0625f, 0.01f };
    enum { DISTANCES = 2 * LONG - 1 + 64 };
    static float biases[3 * DISTANCES];
    struct rng r = { 8 };
    for (int j = 0; j < 3 * DISTANCES; j++)
        biases[j] = (float)(rng_double(&r) * 4 - 2);
    for (int type = KV_F32; type < KV_TYPES; type++)
        for (size_t i = stride() > 1 ? (size_t)type % 5 : 0; i < sizeof windows / sizeof *windows; i += stride()) {
            struct sequence s;
            sequence_open(&s, i == 4 || (i == 0 && type == KV_F32) ? LONG : SHORT, (enum kv_type)type, 48, 3, &r);
            s.a.window = windows[i];
            s.a.end = s.len;
            s.a.alibi = i == 2 ? slopes : NULL;
            s.a.bias = i % 4 == 0 || i == 3 ? biases + LONG - 1 : NULL;
            s.a.bias_stride = DISTANCES;
            check(&s);
            sequence_close(&s);
        }
}

/* Latent attention, where a value is the first elements of its key. */
static void sets_agree_for_latent_attention(void **state)
{
    (void)state;
    struct rng r = { 7 };
    for (int type = KV_F32; type < KV_TYPES; type++)
        for (int heads = stride() > 1 ? 1 + type % 3 * 3 : 1; heads <= 7; heads += 3 * (int)stride()) {
            struct sequence s;
            sequence_open(&s, heads == 7 ? LONG : SHORT, (enum kv_type)type, 40, heads, &r);
            s.a.latent = 27;
            s.a.v_offset = s.a.k_offset;
            check(&s);
            sequence_close(&s);
        }
}

/* Blocks that lie completely before the window of every query may be gone: their table entries are
 * never used. */
static void blocks_before_every_window_are_not_used(void **state)
{
    (void)state;
    struct rng r = { 4 };
    struct sequence s;
    sequence_open(&s, SHORT, KV_F16, 64, 2, &r);
    s.a.window = 20;
    float *want = attend(&s, &kernels_ref, 100, s.len, 0);
    for (int b = 0; b < (100 - 19) / KV_BLOCK; b++)
        s.table[b] = -1000000000;
    FOR_SETS(k) {
        float *got = attend(&s, *k, 100, s.len, 0);
        assert_memory_equal(got, want, (size_t)s.len * s.a.out_token_stride * sizeof *got);
        free(got);
    }
    free(want);
    sequence_close(&s);
}

/* A score far above or below the others, and a NaN in a key, which affects exactly the queries that
 * attend to it. */
static void a_nan_affects_only_queries_that_see_it(void **state)
{
    (void)state;
    static const enum kv_type types[] = { KV_F32, KV_I8 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct rng r = { 5 };
        struct sequence s;
        sequence_open(&s, SHORT, types[i], 16, 1, &r);
        for (int d = 0; d < 16; d++)
            s.key[70 * 16 + d] = s.q[80 * 16 + d] * 1e4f;
        s.q[100 * 16 + 3] = NAN;
        s.key[120 * 16 + 2] = NAN;
        FOR_SETS(k) {
            store(&s, *k);
            float *got = attend(&s, *k, 0, 120, 0);
            for (int p = 0; p < s.len; p++)
                assert_true(isnan(got[(size_t)p * s.a.out_token_stride]) == (p == 100 || p >= 120));
            for (int d = 0; d < 16; d++)
                assert_float_equal(got[80 * s.a.out_token_stride + (size_t)d], s.value[70 * 16 + d], i ? 1e-2 : 0);
            free(got);
        }
        sequence_close(&s);
    }
}

/* Every code is the largest one, so the sums of i8 come as near to 2^24 as they can: integers and
 * floats would give different bits beyond it.  Longer vectors than 1024 are not rounded. */
static void largest_sums_of_i8_are_exact(void **state)
{
    (void)state;
    static const int dims[] = { 64, 65, 127, 1024, 1025 };
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        struct rng r = { 9 };
        struct sequence s;
        sequence_open(&s, SHORT, KV_I8, dims[i], 2, &r);
        for (int d = 0; d < s.len * dims[i]; d++)
            s.key[d] = s.value[d] = 1;
        for (int d = 0; d < s.len * 2 * dims[i]; d++)
            s.q[d] = 2;
        store(&s, &kernels_ref);
        float *want = attend(&s, &kernels_ref, 0, 50, 0);
        for (int p = 0; p < s.len; p++)
            for (int d = 0; d < dims[i]; d++)
                assert_float_equal(want[(size_t)p * s.a.out_token_stride + (size_t)d], 1, 1e-5);
        FOR_SETS(k) {
            store(&s, *k);
            for (int step = 1; step <= 50; step += 49) {
                float *got = attend(&s, *k, 0, step, 0);
                for (size_t e = 0; e < (size_t)s.len * s.a.out_token_stride; e++)
                    if (f32_bits(got[e]) != f32_bits(want[e]))
                        fail_msg("%s head_dim %d: element %zu is %.9g, not %.9g", (*k)->name, dims[i], e,
                                 (double)got[e], (double)want[e]);
                free(got);
            }
        }
        free(want);
        sequence_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_agree_for_every_head_size),
        cmocka_unit_test(sets_agree_for_mixed_types),
        cmocka_unit_test(sets_agree_beside_tails_of_f16), cmocka_unit_test(i4_codes_and_scales_are_as_defined),
        cmocka_unit_test(i4_scales_have_little_error),
        cmocka_unit_test(ternary_codes_scales_and_bytes_are_as_defined),
        cmocka_unit_test(small_weights_leave_out_ternary_values),
        cmocka_unit_test(sets_agree_for_many_heads),
        cmocka_unit_test(sets_agree_with_windows_softcaps_and_slopes),
        cmocka_unit_test(sets_agree_for_positions_in_parts),
        cmocka_unit_test(sets_agree_for_attention_in_both_directions),
        cmocka_unit_test(sets_agree_for_latent_attention),
        cmocka_unit_test(blocks_before_every_window_are_not_used),
        cmocka_unit_test(a_nan_affects_only_queries_that_see_it),
        cmocka_unit_test(largest_sums_of_i8_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

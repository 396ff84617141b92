/* kernels.h - the CPU operations, implemented once for each instruction set.
 *
 * Two rules hold for all sets.  The result for a row and a token does not depend on the number of
 * other tokens, rows or threads.  Every set gives the same bits, because the order of every sum and
 * the place of every rounding (f32, fma where written) is fixed here.  The only exception is bf16
 * weights on AMX, whose sums have another order (floats_amx.c); kernels_ordered() avoids that.
 *
 * Integer matmul, for every row r and token t:
 *     step = min(group_size, act_group)                 k that share one weight scale and one
 *                                                       activation scale
 *     acc = 0
 *     for each act group A in order of k:  inner = 0
 *         for each step s in A in order:   isum = sum of value8[code] * a8   (exact int32)
 *                                          inner = fma((float)isum, w_scale[r, s], inner)
 *             types with min or zero:      inner = fma(w_min[r, s], (float)sum of a8, inner)
 *                                          (zero: w_min = -w_scale * zero)
 *         types with 8-bit scales:         instead inner += isum * w_scale[r, s], exact in int32,
 *                                          rounded to f32 once, at the end of A
 *         acc = fma(inner, a_scale[t, A], acc)
 *     out = acc * row_scale[r]                          (types with row scales)
 * mxfp4's value8 are twice its values, so its w_scale is half the scale.  nf4's levels are rounded
 * to 1/127 in this path (value8); decoding and the float path use them exactly.  Activations:
 * a_scale = amax / 127, a8 = x * (127 / amax) rounded to nearest even.  A group whose amax is below
 * 2^-100 becomes 0; a group with an infinity or a NaN gets codes 0 and a_scale NaN, so that the
 * result is NaN.
 *
 * Sums over a row (norms): there are 16 partial sums; element i is added to sum i % 16 by fma (for
 * layer_norm's mean by +).  Then, for d = 8, 4, 2, 1, sum j + d is added to sum j for all j < d. */
#ifndef ZSE_KERNELS_H
#define ZSE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/quant/kvscale.h"
#include "libcommon/quant/kvtype.h"
#include "libcommon/quant/tile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Attention of n_tokens consecutive queries of one sequence, for the query heads that share one KV
 * head.  Query i is at position pos + i and attends to ("sees") positions [begin_i, pos + i], where
 * begin_i is
 *     with a window: max(0, pos + i - window + 1);  with chunks: (pos + i) / chunk * chunk;  else 0
 * With end > 0 it also sees the positions after it, up to end - 1, and with a window up to
 * pos + i + window - 1.  KV block b (positions 16*b .. 16*b+15) of this head lies at
 * base + table[b] * stride + k_offset (v_offset).
 *
 * Parts of 512 positions (512*p .. 512*p+511) are computed independently, by any thread at any
 * time, and merged in order.  In a part, for its positions j in [begin_i, pos + i]:
 *     s[j] = sum of q[d] * k[j][d], in order of d, one fma each
 *            types with scales: the sum over the codes, then s[j] *= the key's scale
 *            i4, i8 (attn_rounds()): q is rounded to integers of at most kv_query_most() times a
 *            scale (kv_code_scale()), then s[j] *= that scale
 *     f    = scale * log2(e);  with softcap, alibi or bias: s[j] *= scale, then f = log2(e) and
 *            softcap: s[j] = softcap * tanh(s[j] / softcap)
 *            alibi:   s[j] = fma(slope, j - (pos + i), s[j])
 *            bias:    s[j] = s[j] + bias[j - (pos + i)]
 *     m    = f * max s
 *     p[j] = exp2(fma(f, s[j], -m)), 0 for positions that are not seen
 *     l[0..15] = 0;  for each 64 positions of the part in order:
 *            l[i] = l[i] + ((p[i] + p[i+16]) + (p[i+32] + p[i+48]))
 *     o[d] = 0;  o[d] = fma(p[j], v[j][d], o[d]) in order of j
 *            types with scales: p[j] times the value's scale, and v the codes
 *            i4, i8 (attn_rounds()): for each 64 positions of the part, these products are rounded
 *            to integers of at most kv_weight_most() times a scale, and with the sum of integers
 *            times codes o[d] = fma(sum, scale, o[d]); as all sums are below 2^24, they are exact
 *            ternary: a p[j] below ATTN_LEAST counts as 0, here but not in l
 * The result of the first part that a query sees is kept; each further part (m', l', o') is merged:
 *     n = max(m, m');  a = exp2(m - n), b = exp2(m' - n)
 *     l[i] = fma(l'[i], b, l[i] * a), o[d] = fma(o'[d], b, o[d] * a);  m = n
 * out[d] = o[d] / sum of l (summed as above).  exp2 and tanh as in approx.h.  With a sink z of the
 * head, s = z * log2(e):
 *     n = max(m, s), a = exp2(m - n);  out[d] = o[d] * a / fma(sum of l, a, exp2(s - n))
 * With latent > 0, values are the first `latent` elements of the keys and have no other storage
 * (v_offset is k_offset), and out has `latent` elements.  In a part, there is then one sum for each
 * of the 16 slots of a block, to which fma(p[j], k[j][d], sum) adds the blocks in order; o[d] is
 * the sum of these 16 (summed as above).  Types with scales use the key's. */
enum { ATTN_PART = 512 };
#define ATTN_LEAST 1e-6f

struct attn {
    const float *q; size_t q_token_stride, q_head_stride;       /* in floats */
    float *out; size_t out_token_stride, out_head_stride;
    int n_tokens, n_q_heads, head_dim;
    /* window, chunk: tokens; 0: none; at most one is set */
    int pos, window, chunk;
    int end;                        /* encoders: number of positions of the sequence; 0: causal */
    const uint8_t *base; const int32_t *table; size_t stride, k_offset, v_offset;
    struct kv_types kv;
    /* Types whose heads share scales: bytes from the keys (values) of this head to their scales. */
    size_t k_scales, v_scales;
    /* If tail.base is not NULL, positions outside of [rounded_from, rounded_to), both multiples
     * of 64, are read from blocks of f16 in `tail`, whose members have the same meaning as those
     * above.  Not with latents. */
    struct { const uint8_t *base; const int32_t *table; size_t stride, k_offset, v_offset; } tail;
    int rounded_from, rounded_to;
    /* scale > 0; softcap 0: none */
    float scale, softcap;
    const float *sinks;                                         /* [n_q_heads] or NULL */
    int latent;
    /* [n_q_heads] slopes of distances, or NULL */
    const float *alibi;
    /* bias + h * bias_stride points to the bias of head h for distance 0; before it there are those
     * of keys before the query, after it those of later keys, and 64 more elements.  NULL: none */
    const float *bias; size_t bias_stride;
    /* For dividing a long context between threads: if partial is not NULL, attention() computes
     * only part `part`, and writes it to partial [n_tokens * n_q_heads][attn_partial(head_dim)];
     * rows of queries that do not see that part are left as they are.  attention_merge() then
     * computes out from the parts part, part + 1 .., which are stored one after the other in
     * partial. */
    float *partial; int part;
};
/* Whether keys and values of this position are read from the tail. */
static inline int attn_in_tail(const struct attn *a, int position)
{
    return a->tail.base && (position < a->rounded_from || position >= a->rounded_to);
}
/* Whether queries and weights are rounded for keys and values of this type. */
static inline int attn_rounds(const struct attn *a, enum kv_type type)
{
    return type == KV_I4 || (type == KV_I8 && !a->latent && a->head_dim <= KV_I8_ROUNDED);
}
/* Bytes from a block's keys, or values, to their scales. */
static inline size_t attn_key_scales(const struct attn *a)
{
    return kv_shares_scale(a->kv.key) ? a->k_scales : kv_codes_bytes(a->kv.key, a->head_dim);
}
static inline size_t attn_value_scales(const struct attn *a)
{
    return kv_shares_scale(a->kv.value) ? a->v_scales : kv_codes_bytes(a->kv.value, a->head_dim);
}
/* Number of elements of a value. */
static inline int attn_width(const struct attn *a) { return a->latent ? a->latent : a->head_dim; }
/* Number of floats of a partial result: o, l and m, a multiple of 16. */
static inline size_t attn_partial(int head_dim) { return ((size_t)head_dim + 15) / 16 * 16 + 32; }

struct kernels {
    const char *name;                                   /* "ref", "avx2", "i8mm": see below */
    int (*supported)(void);

    /* Round the activations x [n_tokens, ldx] f32 for the integer matmul, with one scale per
     * token and act_group.  All matrices with the same cols_padded and act_group share the
     * result; columns from cols to cols_padded count as 0.  act is 64-byte aligned, and its
     * layout is private to the set.  act_bytes never decreases as n_tokens grows, so a buffer
     * also fits fewer tokens.  The work has act_parts(n_tokens) independent parts, for threads. */
    size_t (*act_bytes)(int n_tokens, int cols_padded, int act_group);
    int (*act_parts)(int n_tokens);
    void (*act_pack)(void *act, const float *x, size_t ldx, int n_tokens, int cols, int cols_padded, int act_group,
                     int part);

    /* Compute out[t * ldo + r] for the rows r of tiles [tile0, tile1), except rows past w->rows.
     * Integer types only.  scratch: memory of this thread of scratch_bytes(n, cols_padded) bytes
     * for any n >= n_tokens, 64-byte aligned. */
    void (*matmul)(float *out, size_t ldo, const struct mat *w, int tile0, int tile1,
                   const void *act, int n_tokens, void *scratch);
    /* Like matmul, with f32 activations x [n_tokens, ldx] and weights exactly as stored, for every
     * type that has kernels: out is the sum over k < w->cols in order, with one fma each (bf16
     * on AMX: as described in floats_amx.c, and no less exact). */
    void (*matmul_f32)(float *out, size_t ldo, const struct mat *w, int tile0, int tile1,
                       const float *x, size_t ldx, int n_tokens, void *scratch);
    /* bytes of scratch for at most n_tokens tokens; never less for more tokens or columns */
    size_t (*scratch_bytes)(int n_tokens, int cols_padded);

    /* Operations on a row of n f32 values, with any alignment; out may be the same as x (or a). */
    /* x * (1 / sqrt(mean(x^2)+eps)) * (w + w_offset); w NULL: 1 */
    void (*rms_norm)(float *out, const float *x, const float *w, int n, float eps, float w_offset);
    /* w, b may be NULL */
    void (*layer_norm)(float *out, const float *x, const float *w, const float *b, int n, float eps);
    /* fma(scale_b, b, a) */
    void (*add)(float *out, const float *a, const float *b, float scale_b, int n);
    /* act(gate) * up; up NULL: act(gate).  enum act_kind */
    void (*act_mul)(float *out, const float *gate, const float *up, int n, int act);
    float (*largest)(const float *x, int n);            /* NaN if one is NaN or +inf, -inf if n is 0 */
    /* Rotate the first dim elements of each head; cos, sin [dim/2].  pairs 1: elements (0,1), (2,3)
     * .. form pairs; 0: elements (i, i + dim/2) do */
    void (*rope)(float *x, const float *cos, const float *sin, int n_heads, size_t head_stride, int dim, int pairs);
    /* out[r] = sum over i < stride of rows[r * stride + i] * q[i], of values -127 to 127; stride
     * is a multiple of 64, rows and q are 64-byte aligned */
    void (*dots_i8)(int32_t *out, const int8_t *rows, size_t stride, int n_rows, const int8_t *q);

    /* One step of a linear recurrence of one head: state [n][dim], x, v, out [dim], b, c, q, k [n].
     * For each element e, rows i in order:
     * mamba:  in = dt * x[e];  s[i] = fma(b[i], in, s[i] * decay), y = fma(c[i], s[i], y) from 0;
     *         out[e] = fma(d, x[e], y)
     * delta:  s[i] *= decay, y = fma(k[i], s[i], y) from 0;  w = (v[e] - y) * rate;
     *         then s[i] = fma(k[i], w, s[i]), out[e] = fma(q[i], s[i], out[e]) from 0 */
    void (*scan_mamba)(float *state, const float *b, const float *c, const float *x, float *out, int n, int dim,
                       float decay, float dt, float d);
    void (*scan_delta)(float *state, const float *q, const float *k, const float *v, float *out, int n, int dim,
                       float decay, float rate);
    /* like scan_delta, with one decay per row of the state: s[i] *= decay[i] */
    void (*scan_delta_rows)(float *state, const float *q, const float *k, const float *v, float *out, int n, int dim,
                            const float *decay, float rate);
    /* mamba1: a decay for each row and element:
     *         in = dt[e] * x[e];  decay = exp(-dt[e] * exp(a_log[i * lda + e])), exp of approx.h;
     *         s[i] = fma(b[i], in, s[i] * decay), y = fma(c[i], s[i], y) from 0;
     *         out[e] = fma(d[e], x[e], y) */
    void (*scan_mamba1)(float *state, const float *b, const float *c, const float *x, float *out, int n, int dim,
                        const float *a_log, size_t lda, const float *dt, const float *d);
    /* Compute the scores of an indexer for the 16 tokens of a block: q [n_heads][dim], k [dim][16],
     * weight [n_heads].  For each token, over the heads h and elements d in order:
     *         a = fma(q[h][d], k[d], a) from 0, out = fma(weight[h], max(a, 0), out) from 0 */
    void (*index_block)(float *out, const float *q, int n_heads, int dim, const float *weight, const float *k);

    /* Store one token's key (value) of head_dim floats in slot 0..15 of a block. */
    void (*kv_store_key)(enum kv_type type, uint8_t *block, int slot, const float *x, int head_dim);
    void (*kv_store_value)(enum kv_type type, uint8_t *block, int slot, const float *x, int head_dim);
    void (*attention)(const struct attn *a, void *scratch);     /* scratch of this thread, 64-byte aligned */
    void (*attention_merge)(const struct attn *a);
    size_t (*attention_scratch)(int head_dim);
};

enum act_kind { ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_RELU, ACT_RELU2, ACT_GELU_QUICK };

extern const struct kernels kernels_ref;
extern const struct kernels kernels_avx2, kernels_avxvnni, kernels_avx512, kernels_amx;     /* on x86-64 only */
extern const struct kernels kernels_neon, kernels_dotprod, kernels_i8mm;                    /* on ARM64 only */
/* All sets compiled in, fastest first, NULL-terminated. */
extern const struct kernels *const kernels_all[];
/* The set named `want`, or with NULL the fastest one that this machine supports.  NULL with *e if
 * the named set is not supported. */
const struct kernels *kernels_pick(const char *want, struct err *e);
/* Returns k, unless k sums float products in another order than the other sets (amx): then
 * returns a set that is supported wherever k is and gives the same bits as all others. */
const struct kernels *kernels_ordered(const struct kernels *k);

#ifdef __cplusplus
}
#endif
#endif

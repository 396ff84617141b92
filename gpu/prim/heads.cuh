/* heads.cuh - a head of queries, keys or values between its projection and attention: norm,
 * rotation, and its slot in a KV block.  The kernel that prepares all heads of a step (prepare.cu)
 * and attention of a step's only token (attn_split.cuh) give the same bits. */
#ifndef ZSE_GPU_PRIM_HEADS_CUH
#define ZSE_GPU_PRIM_HEADS_CUH

#include "gpu/prim/hadamard.cuh"
#include "gpu/prim/log.cuh"
#include "gpu/prim/prim.cuh"
#include "libcommon/quant/kvscale.h"

/* Normalize one head's row in shared memory, by one warp. */
DEVICE void norm_head(float *x, const float *w, const float *b, int n, int kind, float eps, float offset, int lane)
{
    float mean = 0, sum = 0;
    if (kind == 2) {
        for (int d = lane; d < n; d += 32)
            mean += x[d];
        mean = warp_sum(mean) / (float)n;
    }
    for (int d = lane; d < n; d += 32)
        sum = fmaf(x[d] - mean, x[d] - mean, sum);
    const float inverse = 1 / sqrtf(warp_sum(sum) / (float)n + eps);
    for (int d = lane; d < n; d += 32) {
        const float v = (x[d] - mean) * inverse;
        x[d] = kind == 2 ? fmaf(v, w ? w[d] : 1, b ? b[d] : 0) : w ? v * (w[d] + offset) : v;
    }
}

/* norm_head() for an RMS norm of a row that the warp has in registers: v[j] is element lane + 32 *
 * j, with 0 from n on, and w its weight; weighed 0: there are none. */
enum { HEAD_MOST = GPU_ATTN_MAX_DIM / 32 };
DEVICE void norm_lanes(float v[HEAD_MOST], const float w[HEAD_MOST], int weighed, int n, float eps, float offset)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < HEAD_MOST; j++)
        sum = fmaf(v[j], v[j], sum);
    const float inverse = 1 / sqrtf(warp_sum(sum) / (float)n + eps);
#pragma unroll
    for (int j = 0; j < HEAD_MOST; j++)
        v[j] = weighed ? v[j] * inverse * (w[j] + offset) : v[j] * inverse;
}

/* Rotate pair i of dim / 2; there are none from there on. */
DEVICE void rotate_pair(float *x, int i, float cosine, float sine, int dim, int pairs)
{
    const int a = pairs ? 2 * i : i, b = pairs ? a + 1 : i + dim / 2;
    if (i >= dim / 2)
        return;
    const float x0 = x[a], x1 = x[b];
    x[a] = fmaf(x0, cosine, -(x1 * sine));
    x[b] = fmaf(x1, cosine, x0 * sine);
}
DEVICE void rotate(float *x, const float *cosine, const float *sine, int dim, int pairs, int lane)
{
    for (int i = lane; i < dim / 2; i += 32)
        rotate_pair(x, i, cosine[i], sine[i], dim, pairs);
}

/* Returns the factor on the queries of a token at pos. */
DEVICE float temper_of(const gpu_temper &o, int pos)
{
    return o.scale != 0 ? log_1_plus(floorf((float)(max(pos, 0) + o.first) / (float)o.floor)) * o.scale + 1 : 1;
}

/* Write `bits` of a 32-bit word that other threads write, too. */
DEVICE void set_bits(uint8_t *word, int shift, uint32_t mask, uint32_t bits)
{
    unsigned *p = reinterpret_cast<unsigned *>(word);
    atomicAnd(p, ~(mask << shift));
    atomicOr(p, bits << shift);
}

/* The largest |x|, as its bits, which are ordered like it; *at: its first index. */
DEVICE uint32_t furthest(const float *x, int n, int lane, int *at)
{
    uint32_t most = 0;
    int first = n;
    for (int d = lane; d < n; d += 32) {
        const uint32_t u = bits_of(x[d]) & 0x7fffffff;
        first = u > most ? d : first;
        most = u > most ? u : most;
    }
    for (int i = 16; i; i /= 2) {
        const uint32_t other = __shfl_xor_sync(FULL_WARP, most, i);
        const int its = __shfl_xor_sync(FULL_WARP, first, i);
        first = other > most || (other == most && its < first) ? its : first;
        most = other > most ? other : most;
    }
    *at = first;
    return most;
}

/* The scale and the factor of kv_i4_scale(), whose sums the warp divides.  furthest: the element
 * furthest from 0, a finite number that is not 0. */
DEVICE float fit_i4(const float *x, int n, float furthest, int lane, float *factor)
{
    const float units = KV_I4_UNITS / fabsf(furthest);
    int best_products = 0, best_squares = 1;
#pragma unroll 1
    for (int r = 0; r < KV_I4_RANGES; r++) {
        int products = 0, squares = 0;
        for (int d = lane; d < n; d += 32) {
            const int code = kv_i4_round(x[d], kv_i4_range(r) / furthest);
            products += (int)rintf(x[d] * units) * code;
            squares += code * code;
        }
        for (int i = 16; i; i /= 2) {
            products += __shfl_xor_sync(FULL_WARP, products, i);
            squares += __shfl_xor_sync(FULL_WARP, squares, i);
        }
        if (r == 0 || kv_i4_gain(products, squares) > kv_i4_gain(best_products, best_squares))
            best_products = products, best_squares = squares;
    }
    const float scale = kv_i4_fitted(best_products, best_squares, fabsf(furthest));
    *factor = 1 / scale;
    return scale;
}

/* The 4 bits of an element. */
DEVICE uint32_t i4_code(float x, float factor) { return factor == 0 ? 0 : (uint32_t)kv_i4_round(x, factor) & 15; }

/* Store a key or value as i4.  The keys of all slots share words. */
DEVICE void store_i4(uint8_t *block, int is_k, int slot, const float *x, int n, int lane)
{
    int at;
    float factor = 0, scale = 0;
    const uint32_t most = furthest(x, n, lane, &at);
    if (most >= 0x7f800000)
        scale = NAN;
    else if (most >= 0x0d800000)        /* 2^-100 */
        scale = fit_i4(x, n, x[at], lane, &factor);
    if (lane == 0)
        *reinterpret_cast<float *>(block + KV_BLOCK / 2 * n + slot * 4) = scale;
    for (int d = lane; is_k && d < n; d += 32)
        set_bits(block + d * 8 + slot % 8 / 4 * 4, slot % 4 * 8 + slot / 8 * 4, 15, i4_code(x[d], factor));
    for (int i = lane; !is_k && i < n / 2; i += 32) {
        const float *from = x + i / 8 * 16 + i % 8;
        block[slot * (n / 2) + i] = (uint8_t)(i4_code(from[0], factor) | i4_code(from[8], factor) << 4);
    }
}

/* Store a token's key or value in its slot of a block, by one warp.  Scales are those of
 * libcommon/quant/kvtype.h; NaN stays NaN.  Not for ternary. */
DEVICE void store_head(uint8_t *block, int type, int is_k, int slot, const float *x, int n, int lane)
{
    float scale = 1, factor = 1;
    if (type == KV_I4)
        return store_i4(block, is_k, slot, x, n, lane);
    if (type == KV_I8 || type == KV_F8) {
        float most = 0;
        int bad = 0;
        for (int d = lane; d < n; d += 32) {
            most = fmaxf(most, fabsf(x[d]));
            bad |= !(fabsf(x[d]) < INFINITY);
        }
        most = warp_max(most);
        bad = __ballot_sync(FULL_WARP, bad) != 0;
        if (type == KV_F8) {
            scale = kv_f8_scale_of(bad ? 0x7f800000 : bits_of(most), &factor);
        } else {
            scale = bad ? NAN : most < 7.8886090522101181e-31f ? 0 : most / 127;        /* 2^-100 */
            factor = bad || most < 7.8886090522101181e-31f ? 0 : 127 / most;
        }
        if (lane == 0)
            *reinterpret_cast<float *>(block + KV_BLOCK * n + slot * 4) = scale;
    }
    /* a lane has four neighbours, so that no other one writes to their word of a value */
    for (int first = 4 * lane; first < n; first += 4 * 32)
#pragma unroll
        for (int d = first; d < first + 4; d++) {
            const int at = is_k ? d * KV_BLOCK + slot : slot * n + d;
            switch (type) {
            case KV_F32: reinterpret_cast<float *>(block)[at] = x[d]; break;
            case KV_F16: reinterpret_cast<uint16_t *>(block)[at] = (uint16_t)pack_half(x[d], 0); break;
            case KV_BF16: reinterpret_cast<uint16_t *>(block)[at] = f32_to_bf16(x[d]); break;
            case KV_F8: block[at] = factor > 0 ? f32_to_f8e4m3(x[d] * factor) : 0; break;
            default: block[at] = (uint8_t)(int8_t)(factor > 0 ? rintf(x[d] * factor) : 0);
            }
        }
}

/* The keys (or the values) of a head in the block of a position. */
DEVICE uint8_t *head_at(const gpu_kv_blocks &b, const int32_t *table, int pos, int head, int is_k)
{
    return b.base + (size_t)table[pos / KV_BLOCK] * b.stride + b.layer_offset + head * b.head_stride +
           (is_k ? 0 : b.part);
}

enum head_kind { HEAD_OF_QUERY, HEAD_OF_KEY, HEAD_OF_VALUE };

/* The address of head h of token t, as the projection stored it. */
DEVICE float *head_row(const struct gpu_prepare &o, head_kind kind, int t, int h)
{
    return kind == HEAD_OF_QUERY ? o.q + ((size_t)t * o.n_heads + h) * o.head_dim
                                 : (kind == HEAD_OF_KEY ? o.k : o.v) + ((size_t)t * o.n_kv_heads + h) * o.head_dim;
}

/* A lane's elements of a head that are still parts of sums (gpu_prepare.parts): the scales of their
 * rows, which can be loaded early, and the sums, as the launch that adds the parts would store
 * them. */
struct head_parts {
    float scale[HEAD_MOST], bias[HEAD_MOST];

    DEVICE head_parts(const gpu_part_sums &s, int dim, int h, int lane)
    {
#pragma unroll
        for (int j = 0; j < HEAD_MOST; j++) {
            const int d = lane + 32 * j, row = h * dim + d;
            const bool is_there = d < dim;
            const uint8_t *const tile = s.tiles + (size_t)(row / 32) * s.tile_bytes;
            scale[j] = !is_there ? 0 : s.tiles ? ACT_UNIT * float_of(load4(tile + row % 32 * 4)) : 1;
            bias[j] = is_there && s.bias ? s.bias[row] : -0.0f;
        }
    }
    /* n: tokens */
    DEVICE void add(float (&v)[HEAD_MOST], const gpu_part_sums &s, int dim, int t, int n, int h, int lane) const
    {
        const float *at = s.part + (size_t)t * s.ld + h * dim + lane;
#pragma unroll
        for (int j = 0; j < HEAD_MOST; j++)
            v[j] = 0;
#pragma unroll 4
        for (int p = 0; p < s.n_parts; p++, at += (size_t)n * s.ld)
#pragma unroll
            for (int j = 0; j < HEAD_MOST; j++)
                v[j] += lane + 32 * j < dim ? at[32 * j] : 0;
#pragma unroll
        for (int j = 0; j < HEAD_MOST; j++)
            v[j] = v[j] * scale[j] + bias[j];
    }
};

/* Norm and rotate head h of token t, by one warp: x [head_dim] in shared memory.  The row, the
 * weights of its norm, and the angles are loaded together.  parts: of the row, if it is one of
 * o.parts; else NULL. */
DEVICE void prepare_head(float *x, const struct gpu_prepare &o, head_kind kind, int t, int h, int lane,
                         const head_parts *parts = nullptr)
{
    const int n = o.head_dim, is_q = kind == HEAD_OF_QUERY, is_v = kind == HEAD_OF_VALUE,
              half = is_v ? 0 : o.rope_dim / 2, first = !is_v && o.norm && !o.norm_after_rope,
              rms = first && o.norm == 1;
    const float *from = head_row(o, kind, t, h), *w = is_q ? o.qw : o.kw, *b = is_q ? o.qb : o.kb,
                *cosine = o.cosine + (size_t)t * half, *sine = o.sine + (size_t)t * half;
    if (o.norm_each) {
        w = w ? w + (size_t)h * n : nullptr;
        b = b ? b + (size_t)h * n : nullptr;
    }
    float v[HEAD_MOST], by[HEAD_MOST], c[HEAD_MOST / 2], s[HEAD_MOST / 2];
#pragma unroll
    for (int j = 0; j < HEAD_MOST; j++) {
        const int d = lane + 32 * j;
        v[j] = !parts && d < n ? from[d] : 0;
        by[j] = rms && w && d < n ? w[d] : 1;
    }
    if (parts)
        parts->add(v, o.parts[kind], n, t, o.step.n, h, lane);
#pragma unroll
    for (int j = 0; j < HEAD_MOST / 2; j++) {
        const int d = lane + 32 * j;
        c[j] = d < half ? cosine[d] : 1;
        s[j] = d < half ? sine[d] : 0;
    }
    if (rms)
        norm_lanes(v, by, w != nullptr, n, o.eps, o.offset);
#pragma unroll
    for (int j = 0; j < HEAD_MOST; j++)
        if (lane + 32 * j < n)
            x[lane + 32 * j] = v[j];
    __syncwarp();
    if (!is_v) {
        if (first && !rms) {
            norm_head(x, w, b, n, o.norm, o.eps, o.offset, lane);
            __syncwarp();
        }
        if (half) {
#pragma unroll
            for (int j = 0; j < HEAD_MOST / 2; j++)
                rotate_pair(x, lane + 32 * j, c[j], s[j], o.rope_dim, o.rope_pairs);
            __syncwarp();
        }
        if (o.norm && o.norm_after_rope) {
            norm_head(x, w, b, n, o.norm, o.eps, o.offset, lane);
            __syncwarp();
        }
    }
    if (o.kv.rotated)
        hadamard<32>(x, n, lane);
}

/* Store head h of a key or value in the slot of the position of token t, and in that of the tail.
 * type: that of o.kv; ternary only goes to the tail. */
DEVICE void store_prepared(const float *x, const struct gpu_prepare &o, int type, int is_k, int t, int h, int lane)
{
    const int pos = o.step.pos[t];
    if (pos < 0)
        return;
    if (type != KV_T2)
        store_head(head_at(o.kv.blocks, o.step.tables + o.step.table_of[t], pos, h, is_k), type, is_k, pos % KV_BLOCK,
                   x, o.head_dim, lane);
    if (o.kv.tail.base)
        store_head(head_at(o.kv.tail, o.step.tables + o.step.tail_of[t], pos, h, is_k), KV_F16, is_k, pos % KV_BLOCK,
                   x, o.head_dim, lane);
}

#endif

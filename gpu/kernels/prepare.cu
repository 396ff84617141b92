/* prepare.cu - prepare q, k and v between their projection and attention: norms of heads,
 * rotation, the KV cache.
 *
 * tile     one head of one token a warp: q heads, then key heads, then value heads
 * moves    q read and written, k and v read, the cache written, each once (the cache has keys as
 *          [head_dim][16 tokens], so the elements of a key are 32 bytes apart; keys as i4 and
 *          ternary share words with other tokens, which takes two atomics an element).  Ternary
 *          also writes and reads k and v as f32, because one scale is for all heads
 * limit    launch-bound with one token
 * checked  tests/unit/t-gpu-attention.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/hadamard.cuh"
#include "gpu/prim/log.cuh"
#include "gpu/prim/prim.cuh"
#include "gpu/rt/launch.cuh"
#include "libcommon/quant/kvscale.h"

enum { WARPS = 4, MAX_DIM = 256 };

/* cos and sin in double, as the CPU computes them: an f32 sine of a large angle would differ in
 * its last bits. */
__global__ __launch_bounds__(128) void rope_table_kernel(float *cosine, float *sine, const int32_t *pos,
                                                         const int32_t *is_long, int half, const float *freq,
                                                         const float *freq_long, float scale, float scale_long)
{
    const int t = blockIdx.x;
    const int far = freq_long && is_long[t];
    for (int d = threadIdx.x; d < half; d += 128) {
        const float angle = (float)max(pos[t], 0) * (far ? freq_long[d] : freq[d]);
        cosine[(size_t)t * half + d] = (float)cos((double)angle) * (far ? scale_long : scale);
        sine[(size_t)t * half + d] = (float)sin((double)angle) * (far ? scale_long : scale);
    }
}

extern "C" int gpu_rope_table(struct gpu *g, float *cosine, float *sine, const int32_t *pos, const int32_t *is_long,
                              int n, int dim, const float *freq, const float *freq_long, float scale, float scale_long,
                              struct err *e)
{
    return launch(g, "rope_table", rope_table_kernel, dim3((unsigned)n), 128, 0, e, cosine, sine, pos, is_long, dim / 2,
                  freq, freq_long, scale, scale_long);
}

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

DEVICE void rotate(float *x, const float *cosine, const float *sine, int dim, int pairs, int lane)
{
    for (int i = lane; i < dim / 2; i += 32) {
        const int a = pairs ? 2 * i : i, b = pairs ? a + 1 : i + dim / 2;
        const float x0 = x[a], x1 = x[b];
        x[a] = fmaf(x0, cosine[i], -(x1 * sine[i]));
        x[b] = fmaf(x1, cosine[i], x0 * sine[i]);
    }
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

/* The 2 bits of an element. */
DEVICE uint32_t ternary_code(float x, float scale)
{
    return !(scale > 0) ? 0 : x > scale / 2 ? 1 : x < scale / -2 ? 2 : 0;
}

/* Store the codes of a key or value as ternary. */
DEVICE void store_ternary(uint8_t *block, int is_k, int slot, const float *x, int n, float scale, int thread,
                          int n_threads)
{
    for (int d = thread; is_k && d < n; d += n_threads)
        set_bits(block + d * 4, 2 * slot, 3, ternary_code(x[d], scale));
    for (int i = thread; !is_k && i < n / 4; i += n_threads) {
        uint32_t byte = 0;
        for (int k = 0; k < 4; k++)
            byte |= ternary_code(x[4 * i + k], scale) << 2 * k;
        block[slot * (n / 4) + i] = (uint8_t)byte;
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
    for (int d = lane; d < n; d += 32) {
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

__global__ __launch_bounds__(WARPS * 32) void prepare_kernel(struct gpu_prepare o)
{
    SHARED(float, rows);                /* [WARPS][head_dim] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.y, n = o.head_dim;
    const int head = blockIdx.x * WARPS + warp;
    if (head >= o.n_heads + 2 * o.n_kv_heads)
        return;
    float *x = rows + warp * n;
    const int is_q = head < o.n_heads, is_k = !is_q && head < o.n_heads + o.n_kv_heads;
    const int h = is_q ? head : is_k ? head - o.n_heads : head - o.n_heads - o.n_kv_heads;
    float *from = is_q ? o.q + ((size_t)t * o.n_heads + h) * n
                       : (is_k ? o.k : o.v) + ((size_t)t * o.n_kv_heads + h) * n;
    for (int d = lane; d < n; d += 32)
        x[d] = from[d];
    __syncwarp();
    if (is_q || is_k) {
        const float *w = is_q ? o.qw : o.kw, *b = is_q ? o.qb : o.kb;
        if (o.norm_each) {
            w = w ? w + (size_t)h * n : nullptr;
            b = b ? b + (size_t)h * n : nullptr;
        }
        const size_t at = (size_t)t * (o.rope_dim / 2);
        if (o.norm && !o.norm_after_rope) {
            norm_head(x, w, b, n, o.norm, o.eps, o.offset, lane);
            __syncwarp();
        }
        if (o.rope_dim) {
            rotate(x, o.cosine + at, o.sine + at, o.rope_dim, o.rope_pairs, lane);
            __syncwarp();
        }
        if (o.norm && o.norm_after_rope) {
            norm_head(x, w, b, n, o.norm, o.eps, o.offset, lane);
            __syncwarp();
        }
    }
    if (o.kv.rotated)
        hadamard<32>(x, n, lane);
    if (is_q) {
        const float by = temper_of(o.temper, o.step.pos[t]);
        for (int d = lane; d < n; d += 32)
            from[d] = x[d] * by;
        return;
    }
    if (o.kv.type == KV_T2)             /* ternary_kernel stores them */
        for (int d = lane; d < n; d += 32)
            from[d] = x[d];
    const int pos = o.step.pos[t];
    if (pos < 0)
        return;
    if (o.kv.type != KV_T2)
        store_head(head_at(o.kv.blocks, o.step.tables + o.step.table_of[t], pos, h, is_k), o.kv.type, is_k,
                   pos % KV_BLOCK, x, n, lane);
    if (o.kv.tail.base)
        store_head(head_at(o.kv.tail, o.step.tables + o.step.tail_of[t], pos, h, is_k), KV_F16, is_k, pos % KV_BLOCK,
                   x, n, lane);
}

/* Returns the sum of x over the block, in all threads; room: a double for each of them. */
DEVICE double sum_of_block(double x, double *room)
{
    __syncthreads();                    /* threads may still read the previous sum */
    room[threadIdx.x] = x;
    for (int half = WARPS * 16; half; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            room[threadIdx.x] += room[threadIdx.x + half];
    }
    __syncthreads();
    return room[0];
}

/* The scale of ternary keys (or values), as kv_t2_scale() computes it but for the order of sums. */
DEVICE float ternary_scale(const float *x, int n, double *room)
{
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += WARPS * 32)
        sum = fma((double)x[i], (double)x[i], sum);
    sum = sum_of_block(sum, room);
    if (!(sum <= 3e38))
        return NAN;
    double scale = 1.224 * sqrt(sum / n);
    for (int round = 0; round < 3; round++) {
        double far = 0, count = 0;
        for (int i = threadIdx.x; i < n; i += WARPS * 32) {
            const double a = fabs((double)x[i]);
            far += a > scale / 2 ? a : 0;
            count += a > scale / 2;
        }
        far = sum_of_block(far, room);
        count = sum_of_block(count, room);
        scale = count > 0 ? far / count : 0;
    }
    return scale < 7.8886090522101181e-31 ? 0 : (float)scale;  /* 2^-100 */
}

/* Store the keys (blockIdx.x 0) or values of all heads of a token as ternary. */
__global__ __launch_bounds__(WARPS * 32) void ternary_kernel(struct gpu_prepare o)
{
    SHARED(double, room);
    const int is_k = blockIdx.x == 0, t = blockIdx.y, n = o.head_dim, pos = o.step.pos[t];
    const float *x = (is_k ? o.k : o.v) + (size_t)t * o.n_kv_heads * n;
    if (pos < 0)
        return;
    const float scale = ternary_scale(x, o.n_kv_heads * n, room);
    const int32_t *table = o.step.tables + o.step.table_of[t];
    for (int h = 0; h < o.n_kv_heads; h++)
        store_ternary(head_at(o.kv.blocks, table, pos, h, is_k), is_k, pos % KV_BLOCK, x + h * n, n, scale,
                      threadIdx.x, WARPS * 32);
    uint8_t *scales = head_at(o.kv.blocks, table, pos, 0, 1) + o.kv.scales + (is_k ? 0 : KV_BLOCK * (int)sizeof(float));
    if (threadIdx.x == 0)
        *reinterpret_cast<float *>(scales + pos % KV_BLOCK * 4) = scale;
}

/* Latent attention: each warp rotates the rotated part of one query, or norms a token's latent and
 * rotates its key. */
__global__ __launch_bounds__(WARPS * 32) void latent_kernel(struct gpu_latent o)
{
    SHARED(float, rows);                /* [WARPS][kv_rank + rope_dim] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.y, n = o.kv_rank + o.rope_dim;
    const int head = blockIdx.x * WARPS + warp, is_key = head == o.n_heads;
    if (head > o.n_heads)
        return;
    float *x = rows + warp * n, *rotated = x + o.kv_rank;
    float *query = o.heads + ((size_t)t * o.n_heads + (is_key ? 0 : head)) * (o.nope_dim + o.rope_dim);
    const float *from = is_key ? o.key + (size_t)t * n + o.kv_rank : query + o.nope_dim;
    for (int d = lane; d < o.rope_dim; d += 32)
        rotated[d] = from[d];
    for (int d = lane; is_key && d < o.kv_rank; d += 32)
        x[d] = o.key[(size_t)t * n + d];
    __syncwarp();
    if (o.cosine) {
        const size_t at = (size_t)t * (o.rope_dim / 2);
        rotate(rotated, o.cosine + at, o.sine + at, o.rope_dim, o.rope_pairs, lane);
        __syncwarp();
    }
    if (!is_key) {
        const float by = temper_of(o.temper, o.step.pos[t]);
        for (int d = lane; d < o.rope_dim; d += 32)
            o.q[((size_t)t * o.n_heads + head) * n + o.kv_rank + d] = rotated[d] * by;
        for (int d = lane; by != 1 && d < o.nope_dim; d += 32)
            query[d] *= by;
        return;
    }
    norm_head(x, o.w, nullptr, o.kv_rank, 1, o.eps, 0, lane);
    __syncwarp();
    const int pos = o.step.pos[t];
    if (pos >= 0)
        store_head(head_at(o.kv.blocks, o.step.tables + o.step.table_of[t], pos, 0, 1), o.kv.type, 0, pos % KV_BLOCK, x,
                   n, lane);
}

extern "C" int gpu_latent(struct gpu *g, const struct gpu_latent *o, struct err *e)
{
    return launch(g, "latent", latent_kernel, dim3((unsigned)(o->n_heads + WARPS) / WARPS, (unsigned)o->step.n),
                  WARPS * 32, sizeof(float) * WARPS * (size_t)(o->kv_rank + o->rope_dim), e, *o);
}

extern "C" int gpu_prepare(struct gpu *g, const struct gpu_prepare *o, struct err *e)
{
    const unsigned heads = (unsigned)(o->n_heads + 2 * o->n_kv_heads);
    if (launch(g, "prepare", prepare_kernel, dim3((heads + WARPS - 1) / WARPS, (unsigned)o->step.n), WARPS * 32,
               sizeof(float) * WARPS * (size_t)o->head_dim, e, *o) < 0)
        return -1;
    return o->kv.type != KV_T2 ? 0
           : launch(g, "ternary", ternary_kernel, dim3(2, (unsigned)o->step.n), WARPS * 32,
                    sizeof(double) * WARPS * 32, e, *o);
}

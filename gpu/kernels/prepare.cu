/* prepare.cu - prepare q, k and v between their projection and attention: norms of heads,
 * rotation, the KV cache.  Attention of a step's only token does this itself (attn_decode.cu).
 *
 * tile     one head of one token a warp: q heads, then key heads, then value heads
 * moves    q read and written, k and v read, the cache written, each once (the cache has keys as
 *          [head_dim][16 tokens], so the elements of a key are 32 bytes apart; keys as i4 and
 *          ternary share words with other tokens, which takes two atomics an element).  Ternary
 *          also writes and reads k and v as f32, because one scale is for all heads
 * limit    launch-bound with one token
 * checked  tests/unit/t-gpu-attention.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/heads.cuh"
#include "gpu/prim/rope.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 4, MAX_DIM = 256 };

__global__ __launch_bounds__(128) void rope_table_kernel(gpu_ropes o)
{
    follow_previous();
    rope_row(o, o.table[blockIdx.y], blockIdx.x, 128);
}

extern "C" int gpu_rope_table(struct gpu *g, const struct gpu_ropes *o, int n, struct err *e)
{
    return o->n_tables == 0 ? 0 : launch(g, "rope_table", rope_table_kernel,
                                         dim3((unsigned)n, (unsigned)o->n_tables), 128, 0, e, *o);
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

template <bool PARTS> __global__ __launch_bounds__(WARPS * 32) void prepare_kernel(struct gpu_prepare o)
{
    launch_dependents();
    SHARED(float, rows);                /* [WARPS][head_dim] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.y, n = o.head_dim;
    const int head = blockIdx.x * WARPS + warp;
    if (head >= o.n_heads + 2 * o.n_kv_heads) {
        wait_for_prerequisites();
        return;
    }
    float *x = rows + warp * n;
    const int is_q = head < o.n_heads, is_k = !is_q && head < o.n_heads + o.n_kv_heads;
    const int h = is_q ? head : is_k ? head - o.n_heads : head - o.n_heads - o.n_kv_heads;
    const head_kind kind = is_q ? HEAD_OF_QUERY : is_k ? HEAD_OF_KEY : HEAD_OF_VALUE;
    float *from = head_row(o, kind, t, h);
    if constexpr (PARTS) {
        const head_parts parts(o.parts[kind], n, h, lane);
        wait_for_prerequisites();
        prepare_head(x, o, kind, t, h, lane, &parts);
    } else {
        wait_for_prerequisites();
        prepare_head(x, o, kind, t, h, lane);
    }
    if (is_q) {
        const float by = temper_of(o.temper, o.step.pos[t]);
        for (int d = lane; d < n; d += 32)
            from[d] = x[d] * by;
        return;
    }
    if (o.kv.type == KV_T2)             /* ternary_kernel stores them */
        for (int d = lane; d < n; d += 32)
            from[d] = x[d];
    store_prepared(x, o, o.kv.type, is_k, t, h, lane);
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
    follow_previous();
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
    follow_previous();
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
    const dim3 grid((heads + WARPS - 1) / WARPS, (unsigned)o->step.n);
    const size_t shared = sizeof(float) * WARPS * (size_t)o->head_dim;
    if ((o->parts[0].n_parts ? launch(g, "prepare_parts", prepare_kernel<true>, grid, WARPS * 32, shared, e, *o)
                             : launch(g, "prepare", prepare_kernel<false>, grid, WARPS * 32, shared, e, *o)) < 0)
        return -1;
    return o->kv.type != KV_T2 ? 0
           : launch(g, "ternary", ternary_kernel, dim3(2, (unsigned)o->step.n), WARPS * 32,
                    sizeof(double) * WARPS * 32, e, *o);
}

/* attn_decode.cu - attention of single tokens, the context cut into splits of GPU_SPLIT positions: decoding, and everything where f32 counts.
 *
 * tile     a block of 4 warps: one token, one KV head with all query heads that share it, one split.  Scores: a warp takes KV blocks of 16 positions,
 *          a lane every 16th element of 8 of them, so that a warp's load is 512 bytes in a row; the lanes' sums are folded by exchanges that halve
 *          each time.  Values: a thread has a few elements, positions follow each other.
 * moves    keys and values of the split once, for all heads that share them
 * limit    HBM for long contexts: per key element and query head one fma, 4 heads use a third of an SM's lanes at an H200's bandwidth
 * checked  tests/unit/t-gpu-attention.c
 *
 * A second kernel merges the splits in their order.  Nothing depends on the other tokens of the batch. */
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 4, THREADS = WARPS * 32, MAX_GROUP = 8 };

/* 8 elements from e on, as f32. */
template <int KV> DEVICE void load_kv(float v[8], const uint8_t *block, int e)
{
    if (KV == KV_F32) {
        const float4 a = *reinterpret_cast<const float4 *>(block + e * 4), b = *reinterpret_cast<const float4 *>(block + e * 4 + 16);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else if (KV == KV_F16) {
        const uint4 u = load16(block + e * 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = half_low(word_of(u, i));
            v[2 * i + 1] = half_high(word_of(u, i));
        }
    } else {
        const uint2 u = load8(block + e);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = (float)(int8_t)((i < 4 ? u.x : u.y) >> 8 * (i % 4) & 0xff);
    }
}

/* Query heads first_head .. + GROUP of the KV head. */
template <int KV, int GROUP> __global__ __launch_bounds__(THREADS) void attn_split_kernel(gpu_attention o, int passes)
{
    const int split = blockIdx.x, kv_head = blockIdx.y / passes, t = o.rows[blockIdx.z], n = o.head_dim;
    const int share = o.n_heads / o.n_kv_heads, first_head = kv_head * share + blockIdx.y % passes * GROUP;
    const int n_group = min(GROUP, (kv_head + 1) * share - first_head);
    const int pos = o.step.pos[t], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int begin = o.window && pos - o.window + 1 > 0 ? pos - o.window + 1 : 0;
    const int from = max(split * GPU_SPLIT, begin / KV_BLOCK * KV_BLOCK), to = min((split + 1) * GPU_SPLIT, pos + 1);
    if (from >= to)
        return;                         /* the merge knows */
    SHARED(float, q);                   /* [GROUP][n] */
    float *score = q + GROUP * n;       /* [GROUP][GPU_SPLIT] */
    float *part = score + GROUP * GPU_SPLIT;        /* [THREADS / lanes of a row][GROUP][n] partial outputs */
    const int32_t *table = o.step.tables + o.step.table_of[t];
    const uint8_t *base = o.kv.base + o.kv.layer_offset + kv_head * o.kv.head_stride;
    for (int i = threadIdx.x; i < GROUP * n; i += THREADS)
        q[i] = i / n < n_group ? o.q[((size_t)t * o.n_heads + first_head + i / n) * n + i % n] : 0;
    __syncthreads();

    /* scores */
    const int half = lane % 2;
    for (int p0 = from + warp * KV_BLOCK; p0 < to; p0 += WARPS * KV_BLOCK) {
        const uint8_t *block = base + (size_t)table[p0 / KV_BLOCK] * o.kv.stride;
        float s[GROUP][8];
#pragma unroll
        for (int h = 0; h < GROUP; h++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                s[h][i] = 0;
#pragma unroll 4
        for (int d = lane / 2; d < n; d += 16) {
            float k[8];
            load_kv<KV>(k, block, d * KV_BLOCK + half * 8);
#pragma unroll
            for (int h = 0; h < GROUP; h++) {
                const float x = q[h * n + d];
#pragma unroll
                for (int i = 0; i < 8; i++)
                    s[h][i] = fmaf(x, k[i], s[h][i]);
            }
        }
        /* Over the 16 lanes of this half: after exchanges with lanes 16, 8, 4 away a lane has one position left; a last one, 2 away, ends the sum. */
        const float key_scale = KV == KV_I8 ? *reinterpret_cast<const float *>(block + KV_BLOCK * n + ((lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1) + half * 8) * 4) : 1;
        const int mine = half * 8 + (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1), p = p0 + mine;
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
#pragma unroll
            for (int keep = 4; keep; keep /= 2) {
                const int upper = lane & (keep * 4);
#pragma unroll
                for (int i = 0; i < keep; i++) {
                    const float give = upper ? s[h][i] : s[h][i + keep], stay = upper ? s[h][i + keep] : s[h][i];
                    s[h][i] = stay + __shfl_xor_sync(FULL_WARP, give, keep * 4);
                }
            }
            float v = s[h][0] + __shfl_xor_sync(FULL_WARP, s[h][0], 2);
            v *= KV == KV_I8 ? key_scale * o.scale : o.scale;
            if (o.softcap > 0)
                v = o.softcap * tanhf(v / o.softcap);
            if (o.alibi)
                v = fmaf(h < n_group ? o.alibi[first_head + h] : 0, (float)(p - pos), v);
            if ((lane & 2) == 0)
                score[h * GPU_SPLIT + p - split * GPU_SPLIT] = p >= begin && p < to ? v : -INFINITY;
        }
    }
    __syncthreads();

    /* softmax of the split, a warp a head */
    float *merged = o.partial + ((size_t)blockIdx.z * o.n_heads + first_head) * o.max_splits * (n + 2);
    const int filled = (to + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
    for (int h = warp; h < n_group; h += WARPS) {
        float *s = score + h * GPU_SPLIT - split * GPU_SPLIT, most = -INFINITY, sum = 0;
        for (int p = from + lane; p < filled; p += 32)
            most = fmaxf(most, s[p]);
        most = warp_max(most);
        for (int p = from + lane; p < filled; p += 32) {
            const float w = s[p] == -INFINITY ? 0 : expf(s[p] - most);
            s[p] = w;
            sum += w;
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            float *to_merge = merged + ((size_t)h * o.max_splits + split) * (n + 2);
            to_merge[n] = most;
            to_merge[n + 1] = sum;
        }
    }
    __syncthreads();

    /* values: 8 elements a thread, as many positions side by side as threads are left */
    const int lanes = n / 8, rows = THREADS / lanes, row = threadIdx.x / lanes, d = threadIdx.x % lanes * 8;
    if (row < rows) {
        float acc[GROUP][8];
#pragma unroll
        for (int h = 0; h < GROUP; h++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                acc[h][i] = 0;
#pragma unroll 2
        for (int p = max(from, begin) + row; p < to; p += rows) {
            const uint8_t *block = base + (size_t)table[p / KV_BLOCK] * o.kv.stride + o.kv.part;
            float v[8];
            load_kv<KV>(v, block, p % KV_BLOCK * n + d);
            const float value_scale = KV == KV_I8 ? *reinterpret_cast<const float *>(block + KV_BLOCK * n + p % KV_BLOCK * 4) : 1;
#pragma unroll
            for (int h = 0; h < GROUP; h++) {
                if (h >= n_group)
                    break;
                const float w = KV == KV_I8 ? score[h * GPU_SPLIT + p - split * GPU_SPLIT] * value_scale : score[h * GPU_SPLIT + p - split * GPU_SPLIT];
#pragma unroll
                for (int i = 0; i < 8; i++)
                    acc[h][i] = fmaf(w, v[i], acc[h][i]);
            }
        }
#pragma unroll
        for (int h = 0; h < GROUP; h++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                part[(row * GROUP + h) * n + d + i] = acc[h][i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n_group * n; i += THREADS) {
        const int h = i / n;
        float sum = 0;
        for (int r = 0; r < rows; r++)
            sum += part[(r * GROUP + h) * n + i % n];
        merged[((size_t)h * o.max_splits + split) * (n + 2) + i % n] = sum;
    }
}

/* One head of one token: the splits in their order. */
__global__ __launch_bounds__(128) void attn_merge_kernel(gpu_attention o)
{
    const int head = blockIdx.x, t = o.rows[blockIdx.y], n = o.head_dim, pos = o.step.pos[t];
    const int begin = o.window && pos - o.window + 1 > 0 ? pos - o.window + 1 : 0;
    const int first = begin / GPU_SPLIT, last = pos < 0 ? -1 : pos / GPU_SPLIT;
    const float *part = o.partial + ((size_t)blockIdx.y * o.n_heads + head) * o.max_splits * (n + 2);
    float most = -INFINITY, sum = 0;
    for (int s = first; s <= last; s++)
        most = fmaxf(most, part[s * (n + 2) + n]);
    for (int s = first; s <= last; s++)
        sum += part[s * (n + 2) + n + 1] * expf(part[s * (n + 2) + n] - most);
    for (int d = threadIdx.x; d < n; d += 128) {
        float v = 0;
        for (int s = first; s <= last; s++)
            v += part[s * (n + 2) + d] * expf(part[s * (n + 2) + n] - most);
        v = last < 0 ? 0 : v / sum;
        const int k = head * n + d;
        if (o.out)
            o.out[(size_t)t * o.n_heads * n + k] = v;
        if (o.act)
            o.act[(size_t)t * o.act_stride + act_place(k)] = act_of(v);
    }
}

template <int KV, int GROUP> static int run(struct gpu *g, const gpu_attention *o, struct err *e)
{
    const int share = o->n_heads / o->n_kv_heads, passes = (share + GROUP - 1) / GROUP;
    const size_t rows = THREADS / (o->head_dim / 8);
    const size_t shared = sizeof(float) * ((size_t)GROUP * o->head_dim + GROUP * GPU_SPLIT + rows * GROUP * o->head_dim);
    if (launch(g, "attn_split", attn_split_kernel<KV, GROUP>, dim3((unsigned)o->max_splits, (unsigned)(o->n_kv_heads * passes), (unsigned)o->n_rows), THREADS, shared, e, *o,
               passes) < 0)
        return -1;
    return launch(g, "attn_merge", attn_merge_kernel, dim3((unsigned)o->n_heads, (unsigned)o->n_rows), 128, 0, e, *o);
}

template <int KV> static int run_kv(struct gpu *g, const gpu_attention *o, struct err *e)
{
    const int share = o->n_heads / o->n_kv_heads;
    return share == 1 ? run<KV, 1>(g, o, e) : share == 2 ? run<KV, 2>(g, o, e) : share <= 4 ? run<KV, 4>(g, o, e) : run<KV, MAX_GROUP>(g, o, e);
}

extern "C" int gpu_attn_decode(struct gpu *g, const struct gpu_attention *o, struct err *e)
{
    return o->kv.type == KV_F32 ? run_kv<KV_F32>(g, o, e) : o->kv.type == KV_F16 ? run_kv<KV_F16>(g, o, e) : run_kv<KV_I8>(g, o, e);
}

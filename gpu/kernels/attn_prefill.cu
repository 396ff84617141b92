/* attn_prefill.cu - attention of many tokens of a sequence, on the tensor cores (online softmax: arXiv:2205.14135; tiles as in arXiv:2307.08691).
 *
 * tile     a block of 4 warps: 64 queries of one head, a warp 16 of them; keys and values come 64 positions at a time into shared memory as f16.  Keys lie in the
 *          cache as [head_dim][16 tokens], values as [16 tokens][head_dim]: both are what ldmatrix.trans wants, so nothing is transposed
 * moves    the keys and values before a tile once a tile and query head (from L2 mostly)
 * limit    mma.sync
 * checked  tests/unit/t-gpu-attention.c */
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 4, TILE = GPU_ATTN_TILE, KEYS = 64, K_PITCH = KEYS * 2 + 16 };       /* bytes of a row of keys: 16 more, so that 8 rows lie in different banks */

/* 8 elements as f16, from element e on of a block, for storing into shared memory. */
template <int KV> DEVICE uint4 load_as_half(const uint8_t *block, int e, float scale)
{
    if (KV == KV_F16)
        return load16(block + e * 2);
    float v[8];
    if (KV == KV_F32) {
        const float4 a = *reinterpret_cast<const float4 *>(block + e * 4), b = *reinterpret_cast<const float4 *>(block + e * 4 + 16);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
        const uint2 u = load8(block + e);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = scale * (float)(int8_t)((i < 4 ? u.x : u.y) >> 8 * (i % 4) & 0xff);
    }
    return make_uint4(pack_half_clamped(v[0], v[1]), pack_half_clamped(v[2], v[3]), pack_half_clamped(v[4], v[5]), pack_half_clamped(v[6], v[7]));
}

/* DIM: head_dim rounded up; what is beyond head_dim is 0. */
template <int KV, int DIM> __global__ __launch_bounds__(WARPS * 32) void attn_prefill_kernel(gpu_attention o)
{
    constexpr int V_PITCH = DIM * 2 + 16;
    SHARED(uint8_t, keys);              /* [DIM][K_PITCH] */
    uint8_t *values = keys + DIM * K_PITCH;                             /* [KEYS][V_PITCH] */
    float *key_scale = reinterpret_cast<float *>(values + KEYS * V_PITCH);  /* [KEYS] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, n = o.head_dim;
    const int first = o.tiles[2 * blockIdx.x], n_queries = o.tiles[2 * blockIdx.x + 1], head = blockIdx.y, kv_head = head / (o.n_heads / o.n_kv_heads);
    const int pos0 = o.step.pos[first], last = pos0 + n_queries - 1;
    const int32_t *table = o.step.tables + o.step.table_of[first];
    const uint8_t *base = o.kv.base + o.kv.layer_offset + kv_head * o.kv.head_stride;
    const float slope = o.alibi ? o.alibi[head] : 0;

    /* this warp's queries as A fragments: rows g and g + 8 */
    uint32_t q[DIM / 16][4];
#pragma unroll
    for (int c = 0; c < DIM / 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = warp * 16 + g + i % 2 * 8, d = c * 16 + 2 * t + i / 2 * 8;
            const float *x = o.q + ((size_t)(first + row) * o.n_heads + head) * n + d;
            q[c][i] = row < n_queries ? pack_half_clamped(d < n ? x[0] : 0, d + 1 < n ? x[1] : 0) : 0;
        }
    float out[DIM / 8][4], most[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            out[i][j] = 0;

    const int begin = o.window && pos0 - o.window + 1 > 0 ? (pos0 - o.window + 1) / KEYS * KEYS : 0;
    for (int k0 = begin; k0 <= last; k0 += KEYS) {
        __syncthreads();                /* the tile before is read */
        for (int i = threadIdx.x; i < DIM * (KEYS / 8); i += WARPS * 32) {     /* a row of keys: element d of 64 positions */
            const int d = i / (KEYS / 8), p = k0 + i % (KEYS / 8) * 8;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (d < n && p <= last)
                v = load_as_half<KV>(base + (size_t)table[p / KV_BLOCK] * o.kv.stride, d * KV_BLOCK + p % KV_BLOCK, 1);
            *reinterpret_cast<uint4 *>(keys + d * K_PITCH + (p - k0) * 2) = v;
        }
        for (int i = threadIdx.x; i < KEYS * (DIM / 8); i += WARPS * 32) {
            const int at = i / (DIM / 8), d = i % (DIM / 8) * 8, p = k0 + at;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (d < n && p <= last) {
                const uint8_t *block = base + (size_t)table[p / KV_BLOCK] * o.kv.stride + o.kv.part;
                v = load_as_half<KV>(block, p % KV_BLOCK * n + d, KV == KV_I8 ? *reinterpret_cast<const float *>(block + KV_BLOCK * n + p % KV_BLOCK * 4) : 1);
            }
            *reinterpret_cast<uint4 *>(values + at * V_PITCH + d * 2) = v;
        }
        if (KV == KV_I8 && threadIdx.x < KEYS) {
            const int p = k0 + threadIdx.x;
            key_scale[threadIdx.x] = p <= last ? *reinterpret_cast<const float *>(base + (size_t)table[p / KV_BLOCK] * o.kv.stride + KV_BLOCK * n + p % KV_BLOCK * 4) : 0;
        }
        __syncthreads();

        float s[KEYS / 8][4];
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[i][j] = 0;
#pragma unroll
        for (int c = 0; c < DIM / 16; c++)
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) {       /* matrices: d 0-7 and 8-15 of positions 0-7, then of 8-15 */
                uint32_t b[4];
                load_matrices_transposed(b, keys + (c * 16 + (lane / 8 % 2) * 8 + lane % 8) * K_PITCH + (i * 16 + lane / 16 * 8) * 2);
                mma_f16(s[2 * i], q[c][0], q[c][1], q[c][2], q[c][3], b[0], b[1]);
                mma_f16(s[2 * i + 1], q[c][0], q[c][1], q[c][2], q[c][3], b[2], b[3]);
            }

        float now[2] = { most[0], most[1] };
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int at = 8 * i + 2 * t + j % 2, p = k0 + at, row = warp * 16 + g + j / 2 * 8, pos = pos0 + row;
                float v = s[i][j] * (KV == KV_I8 ? key_scale[at] * o.scale : o.scale);
                if (o.softcap > 0)
                    v = o.softcap * tanhf(v / o.softcap);
                if (o.alibi)
                    v = fmaf(slope, (float)(p - pos), v);
                const int seen = p <= pos && p <= last && (!o.window || p > pos - o.window);
                s[i][j] = seen ? v : -INFINITY;
                now[j / 2] = fmaxf(now[j / 2], s[i][j]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {   /* the four lanes of a row */
            now[r] = fmaxf(now[r], __shfl_xor_sync(FULL_WARP, now[r], 1));
            now[r] = fmaxf(now[r], __shfl_xor_sync(FULL_WARP, now[r], 2));
            const float c = now[r] == -INFINITY ? 1 : fast_exp(most[r] - now[r]);
            most[r] = now[r];
            sum[r] *= c;
#pragma unroll
            for (int i = 0; i < DIM / 8; i++) {
                out[i][2 * r] *= c;
                out[i][2 * r + 1] *= c;
            }
        }
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[i][j] = s[i][j] == -INFINITY ? 0 : fast_exp(s[i][j] - most[j / 2]);
                sum[j / 2] += s[i][j];
            }
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {           /* 16 positions: the scores' accumulators are the fragments of the next product */
            const uint32_t a0 = pack_half(s[2 * i][0], s[2 * i][1]), a1 = pack_half(s[2 * i][2], s[2 * i][3]);
            const uint32_t a2 = pack_half(s[2 * i + 1][0], s[2 * i + 1][1]), a3 = pack_half(s[2 * i + 1][2], s[2 * i + 1][3]);
#pragma unroll
            for (int c = 0; c < DIM / 16; c++) {
                uint32_t b[4];
                load_matrices_transposed(b, values + (i * 16 + (lane / 8 % 2) * 8 + lane % 8) * V_PITCH + (c * 16 + lane / 16 * 8) * 2);
                mma_f16(out[2 * c], a0, a1, a2, a3, b[0], b[1]);
                mma_f16(out[2 * c + 1], a0, a1, a2, a3, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], 1);
        sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], 2);
        const int row = warp * 16 + g + r * 8;
        if (row >= n_queries)
            continue;
        const float inverse = 1 / sum[r];
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int d = 8 * i + 2 * t + j, k = head * n + d;
                if (d >= n)
                    continue;
                const float v = out[i][2 * r + j] * inverse;
                if (o.out)
                    o.out[(size_t)(first + row) * o.n_heads * n + k] = v;
                if (o.act)
                    o.act[(size_t)(first + row) * o.act_stride + act_place(k)] = act_of(v);
            }
    }
}

template <int KV, int DIM> static int run(struct gpu *g, const gpu_attention *o, struct err *e)
{
    const size_t shared = (size_t)DIM * K_PITCH + (size_t)KEYS * (DIM * 2 + 16) + KEYS * sizeof(float);
    return launch(g, "attn_prefill", attn_prefill_kernel<KV, DIM>, dim3((unsigned)o->n_tiles, (unsigned)o->n_heads), WARPS * 32, shared, e, *o);
}

template <int KV> static int run_kv(struct gpu *g, const gpu_attention *o, struct err *e)
{
    return o->head_dim <= 64 ? run<KV, 64>(g, o, e) : o->head_dim <= 128 ? run<KV, 128>(g, o, e) : run<KV, 256>(g, o, e);
}

extern "C" int gpu_attn_prefill(struct gpu *g, const struct gpu_attention *o, struct err *e)
{
    return o->kv.type == KV_F32 ? run_kv<KV_F32>(g, o, e) : o->kv.type == KV_F16 ? run_kv<KV_F16>(g, o, e) : run_kv<KV_I8>(g, o, e);
}

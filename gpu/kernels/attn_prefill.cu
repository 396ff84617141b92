/* attn_prefill.cu - attention of many tokens of a sequence, on the tensor cores (online softmax: arXiv:2205.14135; tiles as in arXiv:2307.08691).
 *
 * tile     a block of 4 warps: 64 queries of one head, a warp 16 of them; keys and values come 64 positions at a time into shared memory as f16.  Keys lie in the
 *          cache as [head_dim][16 tokens], values as [16 tokens][head_dim]: both are what ldmatrix.trans wants, so nothing is transposed
 * moves    the keys and values before a tile once a tile and query head (from L2 mostly)
 * limit    shared memory: a warp has 16 queries, so the four read every key and value for themselves, 64 LDSM.x4 a warp and tile of 64 positions with head_dim 128: 1024 cycles
 *          for the block, 256 more to write the tile, where its products take mma.sync 826 (calculated, Hopper).  32 queries a warp would halve it
 * checked  tests/unit/t-gpu-attention.c */
#include "gpu/prim/kv.cuh"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 4, THREADS = WARPS * 32, TILE = GPU_ATTN_TILE, KEYS = 64, K_PITCH = KEYS * 2 + 16 };    /* bytes of a row of keys: 16 more, so that 8 rows lie in different banks */
template <int DIM> constexpr int V_PITCH = DIM * 2 + 16;

/* What a block works on: n_queries tokens from `first` on, the first of them at position pos0, the last at `last`. */
struct tile_job {
    int first, n_queries, head, pos0, last;
    const int32_t *table;
    const uint8_t *base;
};

DEVICE tile_job tile_job_of(const gpu_attention &o)
{
    tile_job j;
    j.first = o.tiles[2 * blockIdx.x];
    j.n_queries = o.tiles[2 * blockIdx.x + 1];
    j.head = blockIdx.y;
    j.pos0 = o.step.pos[j.first];
    j.last = j.pos0 + j.n_queries - 1;
    j.table = o.step.tables + o.step.table_of[j.first];
    j.base = o.kv.base + o.kv.layer_offset + j.head / (o.n_heads / o.n_kv_heads) * o.kv.head_stride;
    return j;
}

DEVICE const uint8_t *block_of(const gpu_attention &o, const tile_job &j, int p) { return j.base + (size_t)j.table[p / KV_BLOCK] * o.kv.stride; }

/* 8 elements as f16, from element e on of a block. */
template <int KV> DEVICE uint4 load_as_half(const uint8_t *block, int e, float scale)
{
    if (KV == KV_F16)
        return load16(block + e * 2);
    float v[8];
    kv_load<KV>(v, block, e);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] *= scale;
    return make_uint4(pack_half_clamped(v[0], v[1]), pack_half_clamped(v[2], v[3]), pack_half_clamped(v[4], v[5]), pack_half_clamped(v[6], v[7]));
}

/* This warp's queries as A fragments, what is beyond head_dim or the last query as 0. */
template <int DIM> DEVICE void load_queries(uint32_t q[DIM / 16][4], const gpu_attention &o, const tile_job &j)
{
    const int lane = threadIdx.x % 32, n = o.head_dim;
#pragma unroll
    for (int c = 0; c < DIM / 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = threadIdx.x / 32 * 16 + lane / 4 + i % 2 * 8, d = c * 16 + lane % 4 * 2 + i / 2 * 8;
            const float *x = o.q + ((size_t)(j.first + row) * o.n_heads + j.head) * n + d;
            q[c][i] = row < j.n_queries ? pack_half_clamped(d < n ? x[0] : 0, d + 1 < n ? x[1] : 0) : 0;
        }
}

/* keys [DIM][KEYS] of the positions from k0 on, without their scales, and those. */
template <int KV, int DIM> DEVICE void copy_keys(uint8_t *keys, float *key_scale, const gpu_attention &o, const tile_job &j, int k0)
{
    for (int i = threadIdx.x; i < DIM * (KEYS / 8); i += THREADS) {     /* element d of 8 positions */
        const int d = i / (KEYS / 8), p = k0 + i % (KEYS / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (d < o.head_dim && p <= j.last)
            v = load_as_half<KV>(block_of(o, j, p), d * KV_BLOCK + p % KV_BLOCK, 1);
        *reinterpret_cast<uint4 *>(keys + d * K_PITCH + (p - k0) * 2) = v;
    }
    if (KV_SCALED<KV> && threadIdx.x < KEYS) {
        const int p = k0 + threadIdx.x;
        key_scale[threadIdx.x] = p <= j.last ? kv_scale<KV>(block_of(o, j, p), o.head_dim, p % KV_BLOCK) : 0;
    }
}

/* values [KEYS][DIM], times their scales. */
template <int KV, int DIM> DEVICE void copy_values(uint8_t *values, const gpu_attention &o, const tile_job &j, int k0)
{
    for (int i = threadIdx.x; i < KEYS * (DIM / 8); i += THREADS) {
        const int at = i / (DIM / 8), d = i % (DIM / 8) * 8, p = k0 + at;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (d < o.head_dim && p <= j.last) {
            const uint8_t *block = block_of(o, j, p) + o.kv.part;
            v = load_as_half<KV>(block, p % KV_BLOCK * o.head_dim + d, kv_scale<KV>(block, o.head_dim, p % KV_BLOCK));
        }
        *reinterpret_cast<uint4 *>(values + at * V_PITCH<DIM> + d * 2) = v;
    }
}

/* s = q . keys: accumulators of 16 queries by 64 positions. */
template <int DIM> DEVICE void multiply_keys(float s[KEYS / 8][4], const uint32_t q[DIM / 16][4], const uint8_t *keys)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[i][k] = 0;
#pragma unroll
    for (int c = 0; c < DIM / 16; c++)
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {           /* matrices: d 0-7 and 8-15 of positions 0-7, then of 8-15 */
            uint32_t b[4];
            load_matrices_transposed(b, keys + (c * 16 + (lane / 8 % 2) * 8 + lane % 8) * K_PITCH + (i * 16 + lane / 16 * 8) * 2);
            mma_f16(s[2 * i], q[c][0], q[c][1], q[c][2], q[c][3], b[0], b[1]);
            mma_f16(s[2 * i + 1], q[c][0], q[c][1], q[c][2], q[c][3], b[2], b[3]);
        }
}

/* Scores as the softmax takes them: scaled, capped, biased; -inf where a query does not see a position. */
template <int KV> DEVICE void finish_scores(float s[KEYS / 8][4], const float *key_scale, const gpu_attention &o, const tile_job &j, int k0)
{
    const int lane = threadIdx.x % 32;
    const float slope = o.alibi ? o.alibi[j.head] : 0;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int at = 8 * i + lane % 4 * 2 + k % 2, p = k0 + at, pos = j.pos0 + threadIdx.x / 32 * 16 + lane / 4 + k / 2 * 8;
            float v = s[i][k] * (KV_SCALED<KV> ? key_scale[at] * o.scale : o.scale);
            if (o.softcap > 0)
                v = o.softcap * tanhf(v / o.softcap);
            if (o.alibi)
                v = fmaf(slope, (float)(p - pos), v);
            const int seen = p <= pos && p <= j.last && (!o.window || p > pos - o.window);
            s[i][k] = seen ? v : -INFINITY;
        }
}

/* What the positions so far gave: outputs not yet divided by the sums of weights, of rows g and g + 8. */
template <int DIM> struct running { float out[DIM / 8][4], most[2], sum[2]; };

/* Scores to weights; what the tiles before gave shrinks to the new maximum. */
template <int DIM> DEVICE void soften(running<DIM> &r, float s[KEYS / 8][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = r.most[half];
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
            most = fmaxf(most, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));        /* the four lanes of a row */
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2));
        const float by = most == -INFINITY ? 1 : fast_exp(r.most[half] - most);
        r.most[half] = most;
        r.sum[half] *= by;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) {
            r.out[i][2 * half] *= by;
            r.out[i][2 * half + 1] *= by;
        }
    }
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            s[i][k] = s[i][k] == -INFINITY ? 0 : fast_exp(s[i][k] - r.most[k / 2]);
            r.sum[k / 2] += s[i][k];
        }
}

/* out += weights . values: the scores' accumulators are the fragments of this product. */
template <int DIM> DEVICE void multiply_values(running<DIM> &r, const float s[KEYS / 8][4], const uint8_t *values)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) {               /* 16 positions */
        const uint32_t a0 = pack_half(s[2 * i][0], s[2 * i][1]), a1 = pack_half(s[2 * i][2], s[2 * i][3]);
        const uint32_t a2 = pack_half(s[2 * i + 1][0], s[2 * i + 1][1]), a3 = pack_half(s[2 * i + 1][2], s[2 * i + 1][3]);
#pragma unroll
        for (int c = 0; c < DIM / 16; c++) {
            uint32_t b[4];
            load_matrices_transposed(b, values + (i * 16 + (lane / 8 % 2) * 8 + lane % 8) * V_PITCH<DIM> + (c * 16 + lane / 16 * 8) * 2);
            mma_f16(r.out[2 * c], a0, a1, a2, a3, b[0], b[1]);
            mma_f16(r.out[2 * c + 1], a0, a1, a2, a3, b[2], b[3]);
        }
    }
}

template <int DIM> DEVICE void store_out(const running<DIM> &r, const gpu_attention &o, const tile_job &j)
{
    const int lane = threadIdx.x % 32, n = o.head_dim;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = r.sum[half];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        const int row = threadIdx.x / 32 * 16 + lane / 4 + half * 8;
        if (row >= j.n_queries)
            continue;
        const float inverse = 1 / sum;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int d = 8 * i + lane % 4 * 2 + k, at = j.head * n + d;
                if (d >= n)
                    continue;
                const float v = r.out[i][2 * half + k] * inverse;
                if (o.out)
                    o.out[(size_t)(j.first + row) * o.n_heads * n + at] = v;
                if (o.act)
                    o.act[(size_t)(j.first + row) * o.act_stride + act_place(at, o.order)] = act_of(v);
            }
        if (o.act && j.head == o.n_heads - 1)
            act_pad(o.act + (size_t)(j.first + row) * o.act_stride, o.n_heads * n, o.order, lane % 4, 4);
    }
}

/* DIM: head_dim rounded up; what is beyond head_dim is 0. */
template <int KV, int DIM> __global__ __launch_bounds__(THREADS) void attn_prefill_kernel(gpu_attention o)
{
    SHARED(uint8_t, keys);              /* [DIM][K_PITCH] */
    uint8_t *values = keys + DIM * K_PITCH;                                             /* [KEYS][V_PITCH] */
    float *key_scale = reinterpret_cast<float *>(values + KEYS * V_PITCH<DIM>);         /* [KEYS] */
    const tile_job j = tile_job_of(o);
    uint32_t q[DIM / 16][4];
    load_queries<DIM>(q, o, j);
    running<DIM> r = { {}, { -INFINITY, -INFINITY }, { 0, 0 } };
    const int begin = o.window && j.pos0 - o.window + 1 > 0 ? (j.pos0 - o.window + 1) / KEYS * KEYS : 0;
    for (int k0 = begin; k0 <= j.last; k0 += KEYS) {
        __syncthreads();                /* the tile before is read */
        copy_keys<KV, DIM>(keys, key_scale, o, j, k0);
        copy_values<KV, DIM>(values, o, j, k0);
        __syncthreads();
        float s[KEYS / 8][4];
        multiply_keys<DIM>(s, q, keys);
        finish_scores<KV>(s, key_scale, o, j, k0);
        soften<DIM>(r, s);
        multiply_values<DIM>(r, s, values);
    }
    store_out<DIM>(r, o, j);
}

template <int KV, int DIM> static int run(struct gpu *g, const gpu_attention *o, struct err *e)
{
    const size_t shared = (size_t)DIM * K_PITCH + (size_t)KEYS * V_PITCH<DIM> + KEYS * sizeof(float);
    return launch(g, "attn_prefill", attn_prefill_kernel<KV, DIM>, dim3((unsigned)o->n_tiles, (unsigned)o->n_heads), THREADS, shared, e, *o);
}

template <int KV> static int run_kv(struct gpu *g, const gpu_attention *o, struct err *e)
{
    return o->head_dim <= 64 ? run<KV, 64>(g, o, e) : o->head_dim <= 128 ? run<KV, 128>(g, o, e) : run<KV, 256>(g, o, e);
}

extern "C" int gpu_attn_prefill(struct gpu *g, const struct gpu_attention *o, struct err *e) { return KV_DISPATCH(o->kv.type, run_kv, g, o, e); }

/* attn_prefill.cu - attention of many tokens of a sequence, on the tensor cores (online softmax:
 * arXiv:2205.14135; tiles as in arXiv:2307.08691).
 *
 * tile     a block of 4 warps: 128 queries of one head, 32 for each warp; for heads of more than
 *          128 elements 64 queries, 16 for each warp.  Queries are in shared memory as f16, and
 *          beside them keys and values of 32 positions at a time (64 for heads of 64 elements).
 *          The cache has keys as [head_dim][16 tokens], values as [16 tokens][head_dim]: both are
 *          what ldmatrix.trans needs, so nothing is transposed.  16-byte pieces of rows are
 *          swizzled, so that an 8 x 8 matrix lies in 32 different banks without padding.  With
 *          heads of 128 elements that is 48 KB, so that two blocks fit into the 100 KB of sm_86
 *          and sm_89
 * moves    for each tile and query head the keys and values of all positions up to the tile once
 *          (mostly from L2).  Those of f16 are copied by cp.async, each while the tensor cores
 *          compute with the other: values during the scores and the softmax, the next keys during
 *          the product with values, so that no second buffer is needed
 * limit    Hopper, heads of 128, calculated for 128 queries by 32 positions: 48 LDSM.x4 a warp (16
 *          for keys, 16 for values, 16 for queries) are 768 cycles of shared memory for the block,
 *          and writing the tile takes 128 more; mma.sync needs 826 cycles for the products; the 620
 *          instructions of a warp (tests/gpu/code-budgets; 488 if sums are not rescaled) about 830.
 *          With 16 queries a warp the same products took 1280 cycles of shared memory.  A block
 *          alone takes about 1500 cycles, since a warp multiplies and then computes weights; two
 *          blocks on a multiprocessor overlap
 * masks    only in tiles of positions that some query of the block does not see; where scores have
 *          caps or slopes all tiles are computed like these
 * checked  tests/unit/t-gpu-attention.c
 *
 * Only the copy to shared memory depends on the format of keys and values, at run time.  For i4 and
 * ternary it reads a quarter and an eighth of f16's bytes, and takes about 3 and 4 instructions an
 * element more, which are 12 to 16 % of a tile's 32 x 128 x 2 products for 128 queries
 * (calculated).  With a tail, the queries of a tile differ in the positions that they read as f16:
 * a run of positions that some queries read rounded and others as f16 is copied and multiplied in
 * both forms, each for its own queries.  That concerns at most 192 positions of a tile. */
#include "gpu/kernels/operations.h"
#include "gpu/prim/kv.cuh"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 4, THREADS = WARPS * 32 };

/* How keys and values reach shared memory: those of f16 by cp.async, others through registers that
 * convert them; packed ones have fewer than 8 bits, and may have a tail. */
enum way { COPIED, CONVERTED, PACKED };

/* Scores are compared and weights computed in units of the exponents of 2. */
constexpr float LOG2_E = 1.44269504f;

/* DIM: head_dim rounded up to 64, 128 or 256; elements beyond head_dim are 0. */
template <int DIM> struct shape {
    static constexpr int strips = DIM <= 128 ? 2 : 1;           /* strips of 16 queries that a warp takes */
    static constexpr int tile = WARPS * 16 * strips;
    static constexpr int keys = DIM <= 64 ? 64 : 32;            /* positions at a time */
    static constexpr int row = DIM * 2, key_row = keys * 2;     /* bytes */
    static constexpr int shared = tile * row + DIM * key_row + keys * row;
};

/* Byte offset of 16-byte piece `piece` of row `row`.  The pieces of 8 adjacent rows that form a
 * matrix are in different banks, and so are adjacent pieces of a row. */
template <int ROW_BYTES> DEVICE int swizzled(int row,
                                             int piece) { return row * ROW_BYTES +
                                                          (piece ^ (ROW_BYTES >= 128 ? row & 7 : row >> 1 & 3)) * 16; }

/* Byte offset, for ldmatrix, of this lane's row among 16 rows and of the first or second piece of a
 * pair of them, in the first pair; and of the c-th pair from there.  These are sums and XORs of few
 * different numbers, which stay in registers. */
template <int ROW_BYTES> DEVICE int pair_of_lane()
{
    return swizzled<ROW_BYTES>(threadIdx.x % 16, threadIdx.x % 32 / 16);
}
template <int ROW_BYTES> DEVICE int nth_pair(int pair, int c)
{
    return ROW_BYTES >= 128 ? (pair ^ c % 4 * 32) + c / 4 * 128 : pair ^ c * 32;
}

/* The work of a thread block: n_queries tokens, the first of which is row `first` and at position
 * pos0, the last at position `last`. */
struct tile_job {
    int first, n_queries, head, pos0, last;
    kv_place kv, tail;                  /* tail.base NULL: there is none */
};

DEVICE tile_job tile_job_of(const gpu_attention &o)
{
    tile_job j;
    j.first = o.tiles[2 * blockIdx.x];
    j.n_queries = o.tiles[2 * blockIdx.x + 1];
    j.head = blockIdx.y;
    j.pos0 = o.step.pos[j.first];
    j.last = j.pos0 + j.n_queries - 1;
    const int head = j.head / (o.n_heads / o.n_kv_heads);
    j.kv = kv_place_of(o.kv.blocks, o.step.tables + o.step.table_of[j.first], head);
    j.tail = {};
    if (o.kv.tail.base)
        j.tail = kv_place_of(o.kv.tail, o.step.tables + o.step.tail_of[j.first], head);
    return j;
}

/* The shared memory of a block: [tile][DIM], [DIM][keys], [keys][DIM] f16. */
template <int DIM> struct rooms { uint8_t *queries, *keys, *values; };

/* Copy the queries of a tile to shared memory; elements beyond head_dim or the last query are 0. */
template <int DIM> DEVICE void copy_queries(uint8_t *queries, const gpu_attention &o, const tile_job &j)
{
    const int n = o.head_dim;
    for (int i = threadIdx.x; i < shape<DIM>::tile * (DIM / 8); i += THREADS) {
        const int row = i / (DIM / 8), piece = i % (DIM / 8);
        float v[8] = {};
        if (row < j.n_queries && 8 * piece < n)
            kv_load<KV_F32>(v, reinterpret_cast<const uint8_t *>(o.q + ((size_t)(j.first + row) * o.n_heads + j.head) *
                                                                 n), 8 * piece);
        *reinterpret_cast<uint4 *>(queries + swizzled<shape<DIM>::row>(row, piece)) = pack_eight(v);
    }
}

/* The numbers of the KV blocks of a tile of positions; after the last position, of that one's. */
template <int DIM> struct tile_blocks { uint32_t at[shape<DIM>::keys / KV_BLOCK]; };
template <int DIM> DEVICE tile_blocks<DIM> tile_blocks_of(const tile_job &j, int k0)
{
    tile_blocks<DIM> b;
#pragma unroll
    for (int i = 0; i < shape<DIM>::keys / KV_BLOCK; i++)
        b.at[i] = (uint32_t)j.kv.table[(uint32_t)min(k0 + i * KV_BLOCK, j.last) / KV_BLOCK];
    return b;
}
DEVICE const uint8_t *block_at(const gpu_attention &o, const tile_job &j, uint32_t block)
{
    return j.kv.base + (uint64_t)block * (uint32_t)o.kv.blocks.stride;
}

/* Start to copy the keys of a tile, which are f16.  Other valid keys stand for those of a block
 * after the last and for elements beyond head_dim: their scores are masked, and queries are 0
 * there. */
template <int DIM> DEVICE void start_keys(const rooms<DIM> &r, const gpu_attention &o, const tile_job &j,
                                          const tile_blocks<DIM> &b)
{
    typedef shape<DIM> f;
    constexpr int GROUPS = f::keys / 8, STEP = THREADS / GROUPS;        /* STEP: a multiple of the swizzle's pattern */
    const int group = threadIdx.x % GROUPS, d0 = threadIdx.x / GROUPS;
    uint32_t block = b.at[0];
#pragma unroll
    for (int i = 1; i < f::keys / KV_BLOCK; i++)
        block = group / 2 == i ? b.at[i] : block;
    const uint8_t *from = block_at(o, j, block) + group % 2 * 16;
    uint8_t *to = r.keys + swizzled<f::key_row>(d0, group);
#pragma unroll
    for (int i = 0; i < DIM / STEP; i++)
        copy_async(to + i * STEP * f::key_row, from + (uint32_t)min(d0 + i * STEP, o.head_dim - 1) * (KV_BLOCK * 2));
    copy_commit();
}

/* Start to copy the values of the tile from k0 on.  The last value stands for those after it, which
 * have weights of 0.  WHOLE: there are none. */
template <int DIM, bool WHOLE> DEVICE void start_values(const rooms<DIM> &r, const gpu_attention &o, const tile_job &j,
                                                        const tile_blocks<DIM> &b, int k0)
{
    typedef shape<DIM> f;
    constexpr int PIECES = DIM / 8, STEP = THREADS / PIECES;
    const int piece = threadIdx.x % PIECES, row = threadIdx.x / PIECES, row_bytes = o.head_dim * 2;
    const uint32_t column = o.kv.blocks.part + (uint32_t)min(piece * 16, row_bytes - 16);
#pragma unroll
    for (int k = 0; k < f::keys; k += KV_BLOCK) {
        const uint8_t *from = block_at(o, j, b.at[k / KV_BLOCK]) + column;
#pragma unroll
        for (int i = 0; i < KV_BLOCK; i += STEP) {
            const int slot = WHOLE || k0 + k + row + i <= j.last ? row + i : j.last % KV_BLOCK;
            copy_async(r.values + swizzled<f::row>(row + k + i, piece), from + (uint32_t)(slot * row_bytes));
        }
    }
    copy_commit();
}

/* Copy the keys and values of the positions from k0 on to shared memory, converted to f16. */
template <int KV, int DIM> DEVICE void copy_tile(const rooms<DIM> &r, const gpu_attention &o, const tile_job &j,
                                                 const kv_place &kv, const gpu_kv_blocks &blocks, int k0)
{
    constexpr int KEYS = shape<DIM>::keys, GROUPS = KEYS / 8;
    /* a thread copies 8 positions from p on, and of their keys every (THREADS / GROUPS)-th
     * element */
    const int group = threadIdx.x % GROUPS, p = k0 + group * 8, n = o.head_dim;
    const uint8_t *block = p <= j.last ? kv_keys(kv, blocks, p) : kv.base;
    const int kv_head = j.head / (o.n_heads / o.n_kv_heads);
    float scale[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        scale[i] = p + i <= j.last ? kv_scale<KV>(block, kv_scales_at<KV>(o.kv, kv_head, n, 0), p % KV_BLOCK + i) : 0;
#pragma unroll
    for (int d = threadIdx.x / GROUPS; d < DIM; d += THREADS / GROUPS) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (d < n && p <= j.last)
            v = load_as_half<KV>(block, d * KV_BLOCK + p % KV_BLOCK, scale);
        *reinterpret_cast<uint4 *>(r.keys + swizzled<shape<DIM>::key_row>(d, group)) = v;
    }
#pragma unroll
    for (int i = threadIdx.x; i < KEYS * (DIM / 8); i += THREADS) {
        const int at = i / (DIM / 8), piece = i % (DIM / 8);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (8 * piece < n && k0 + at <= j.last) {
            const uint8_t *values = kv_keys(kv, blocks, k0 + at) + blocks.part;
            const float each = kv_scale<KV>(values, kv_scales_at<KV>(o.kv, kv_head, n, 1), (k0 + at) % KV_BLOCK),
                        eight[8] = { each, each, each, each, each, each, each, each };
            v = load_as_half<KV>(values, (k0 + at) % KV_BLOCK * n + 8 * piece, eight);
        }
        *reinterpret_cast<uint4 *>(r.values + swizzled<shape<DIM>::row>(at, piece)) = v;
    }
}

/* The same, rounded or from the tail. */
template <int DIM, way WAY> DEVICE void copy_any_tile(const rooms<DIM> &r, const gpu_attention &o, const tile_job &j,
                                                      int from_tail, int k0)
{
    if (WAY == PACKED) {
        if (from_tail)
            return copy_tile<KV_F16>(r, o, j, j.tail, o.kv.tail, k0);
        return o.kv.type == KV_I4 ? copy_tile<KV_I4>(r, o, j, j.kv, o.kv.blocks, k0)
                                  : copy_tile<KV_T2>(r, o, j, j.kv, o.kv.blocks, k0);
    }
    switch (o.kv.type) {
    case KV_BF16: return copy_tile<KV_BF16>(r, o, j, j.kv, o.kv.blocks, k0);
    case KV_F8:   return copy_tile<KV_F8>(r, o, j, j.kv, o.kv.blocks, k0);
    case KV_I8:   return copy_tile<KV_I8>(r, o, j, j.kv, o.kv.blocks, k0);
    default:      return copy_tile<KV_F32>(r, o, j, j.kv, o.kv.blocks, k0);
    }
}

/* Whether queries of the tile read positions from k0 on from the tail, or rounded.  These are in
 * one run of KV_TAIL_STEP positions. */
DEVICE int reads(const tile_job &j, int from_tail, int k0)
{
    return !j.tail.base ? !from_tail
           : from_tail ? kv_in_tail(k0, j.pos0) : !kv_in_tail(k0, j.last);
}

/* Accumulators of strips of 16 queries (rows) by positions (columns).  Lane 4g + t has row g in the
 * elements [0] and [1], row g + 8 in [2] and [3], of the columns 8i + 2t and 8i + 2t + 1. */
template <int DIM> using scores = float[shape<DIM>::strips][shape<DIM>::keys / 8][4];

/* s = q . keys */
template <int DIM> DEVICE void multiply_keys(scores<DIM> &s, const rooms<DIM> &r)
{
    typedef shape<DIM> f;
    const int keys = pair_of_lane<f::key_row>(),
              queries = threadIdx.x / 32 * 16 * f::strips * f::row + pair_of_lane<f::row>();
#pragma unroll
    for (int m = 0; m < f::strips; m++)
#pragma unroll
        for (int i = 0; i < f::keys / 8; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[m][i][k] = 0;
#pragma unroll
    for (int c = 0; c < DIM / 16; c++) {
        uint32_t q[f::strips][4];
#pragma unroll
        /* the 4 matrices: rows 0-7 and 8-15 of elements 0-7, then of elements 8-15 */
        for (int m = 0; m < f::strips; m++)
            load_matrices(q[m], r.queries + 16 * m * f::row + nth_pair<f::row>(queries, c));
#pragma unroll
        /* the 4 matrices: elements 0-7 and 8-15 of positions 0-7, then of positions 8-15 */
        for (int i = 0; i < f::keys / 16; i++) {
            uint32_t b[4];
            load_matrices_transposed(b, r.keys + 16 * c * f::key_row + nth_pair<f::key_row>(keys, i));
#pragma unroll
            for (int m = 0; m < f::strips; m++) {
                mma_f16(s[m][2 * i], q[m][0], q[m][1], q[m][2], q[m][3], b[0], b[1]);
                mma_f16(s[m][2 * i + 1], q[m][0], q[m][1], q[m][2], q[m][3], b[2], b[3]);
            }
        }
    }
}

/* Scale, cap and bias the scores for the softmax; positions that a query does not attend to, or
 * reads from the other form of keys and values, get -inf. */
template <int DIM, way WAY> DEVICE void finish_scores(scores<DIM> &s, const gpu_attention &o, const tile_job &j,
                                                      int from_tail, int k0)
{
    const int lane = threadIdx.x % 32, pos0 = j.pos0 + threadIdx.x / 32 * 16 * shape<DIM>::strips + lane / 4;
    const float slope = o.alibi ? o.alibi[j.head] : 0, inverse = o.softcap > 0 ? 1 / o.softcap : 0;
#pragma unroll
    for (int m = 0; m < shape<DIM>::strips; m++) {
        int from[2] = { first_seen(pos0 + 16 * m, o.window, o.chunk),
                        first_seen(pos0 + 16 * m + 8, o.window, o.chunk) };
#pragma unroll
        for (int half = 0; WAY == PACKED && half < 2; half++)
            if (j.tail.base && kv_in_tail(k0, pos0 + 16 * m + 8 * half) != from_tail)
                from[half] = INT32_MAX;
#pragma unroll
        for (int i = 0; i < shape<DIM>::keys / 8; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int p = k0 + 8 * i + lane % 4 * 2 + k % 2, pos = pos0 + 16 * m + k / 2 * 8;
                float v = s[m][i][k] * o.scale;
                if (o.softcap > 0)
                    v = o.softcap * fast_tanh(v * inverse);
                if (o.alibi)
                    v = fmaf(slope, (float)(p - pos), v);
                const int seen = p <= pos && p <= j.last && p >= from[k / 2];
                s[m][i][k] = seen ? v : -INFINITY;
            }
    }
}

/* Running sums over the positions so far for the rows g and g + 8 of 16 queries.  Weights are
 * 2^(score - base): base is the maximum of a tile, and is kept until a later maximum is more than
 * LATITUDE above it, so that the sums are seldom rescaled, and weights stay below 2^LATITUDE.  out
 * is not yet divided by the sum of weights. */
template <int DIM> struct running { float out[DIM / 8][4], base[2], sum[2]; };
constexpr float LATITUDE = 8;

/* Weights of 16 queries as the operand of the product with values: [16 positions][4]. */
template <int DIM> using weights = uint32_t[shape<DIM>::keys / 16][4];

/* Turn scores into weights, and rescale the sums of earlier tiles if the base changes.  unit: the
 * factor of scores, above 0. */
template <int DIM> DEVICE void soften(running<DIM> &r, weights<DIM> &w, const float s[shape<DIM>::keys / 8][4],
                                      float unit)
{
    float by[2], minus[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
        for (int i = 1; i < shape<DIM>::keys / 8; i++)
            most = fmaxf(most, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));        /* the four lanes of a row */
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2)) * unit;
        by[half] = 1;
        if (most > r.base[half] + LATITUDE) {
            by[half] = fast_exp2(r.base[half] - most);
            r.base[half] = most;
        }
        minus[half] = r.base[half] == -INFINITY ? 0 : -r.base[half];
    }
    if (__ballot_sync(FULL_WARP, by[0] != 1 || by[1] != 1))
#pragma unroll
        for (int half = 0; half < 2; half++) {
            r.sum[half] *= by[half];
#pragma unroll
            for (int i = 0; i < DIM / 8; i++) {
                r.out[i][2 * half] *= by[half];
                r.out[i][2 * half + 1] *= by[half];
            }
        }
#pragma unroll
    for (int i = 0; i < shape<DIM>::keys / 8; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float a = fast_exp2(fmaf(s[i][2 * half], unit, minus[half])),
                        b = fast_exp2(fmaf(s[i][2 * half + 1], unit, minus[half]));
            r.sum[half] += a + b;
            w[i / 2][i % 2 * 2 + half] = pack_half(a, b);
        }
}

/* out += weights . values.  The accumulators of the scores have the layout that this product needs
 * for its operand. */
template <int DIM> DEVICE void multiply_values(running<DIM> r[shape<DIM>::strips],
                                               const weights<DIM> w[shape<DIM>::strips], const uint8_t *values)
{
    typedef shape<DIM> f;
    const int pair = pair_of_lane<f::row>();
#pragma unroll
    for (int i = 0; i < f::keys / 16; i++)              /* 16 positions */
#pragma unroll
        for (int c = 0; c < DIM / 16; c++) {
            uint32_t b[4];
            load_matrices_transposed(b, values + 16 * i * f::row + nth_pair<f::row>(pair, c));
#pragma unroll
            for (int m = 0; m < f::strips; m++) {
                const uint32_t *const a = w[m][i];
                mma_f16(r[m].out[2 * c], a[0], a[1], a[2], a[3], b[0], b[1]);
                mma_f16(r[m].out[2 * c + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
        }
}

/* Rotate the 16 outputs of n elements back, as hadamard() does.  Element 8i + 2t + k is in r.out[i]
 * of lane 4g + t. */
template <int DIM> DEVICE void rotate_out(running<DIM> &r, int n)
{
    const int run = n & -n, t = threadIdx.x % 4;
    const float scale = rsqrtf((float)run);
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float a = r.out[i][2 * half] * scale, b = r.out[i][2 * half + 1] * scale;
            const float sum = a + b, difference = a - b;        /* run is at least 16 */
            a = __shfl_xor_sync(FULL_WARP, sum, 1);
            b = __shfl_xor_sync(FULL_WARP, difference, 1);
            a = t & 1 ? a - sum : sum + a;
            b = t & 1 ? b - difference : difference + b;
            const float a2 = __shfl_xor_sync(FULL_WARP, a, 2), b2 = __shfl_xor_sync(FULL_WARP, b, 2);
            r.out[i][2 * half] = t & 2 ? a2 - a : a + a2;
            r.out[i][2 * half + 1] = t & 2 ? b2 - b : b + b2;
        }
#pragma unroll
    for (int step = 1; step < DIM / 8; step *= 2)
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (8 * step < run && !(i & step)) {
                    const float a = r.out[i][k], b = r.out[i + step][k];
                    r.out[i][k] = a + b;
                    r.out[i + step][k] = a - b;
                }
}

/* Store the outputs of the 16 queries from `first` on. */
template <int DIM> DEVICE void store_out(const running<DIM> &r, const gpu_attention &o, const tile_job &j, int first)
{
    const int lane = threadIdx.x % 32, n = o.head_dim;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = r.sum[half];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        const int row = first + lane / 4 + half * 8;
        if (row >= j.n_queries)
            continue;
        float inverse = 1 / sum;
        if (o.sinks) {                  /* one more score, without a value */
            const float sink = o.sinks[j.head] * LOG2_E, most = fmaxf(sink, r.base[half]),
                        by = fast_exp2(r.base[half] - most);
            inverse = by / (sum * by + fast_exp2(sink - most));
        }
        uint16_t *act = o.act + (size_t)(j.first + row) * o.act_stride;
        float *out = o.out + ((size_t)(j.first + row) * o.n_heads + j.head) * n;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) {
            const int d = 8 * i + lane % 4 * 2, at = j.head * n + d;
            if (d >= n)
                continue;
            float v[2] = { r.out[i][2 * half] * inverse, r.out[i][2 * half + 1] * inverse };
            for (int k = 0; o.gate && k < 2; k++)
                v[k] /= 1 + fast_exp(-o.gate[((size_t)(j.first + row) * o.n_heads * n + at + k) / o.gate_each]);
            if (o.out)
                *reinterpret_cast<float2 *>(out + d) = make_float2(v[0], v[1]);
            if (o.act) {
                act[act_place(at, o.order)] = act_of(v[0]);
                act[act_place(at + 1, o.order)] = act_of(v[1]);
            }
        }
        if (o.act && j.head == o.n_heads - 1)
            act_pad(act, o.n_heads * n, o.order, lane % 4, 4);
    }
}

/* Tiles of positions that all queries of the block see begin from `from` to `to`.  There are none
 * if scores need more than a factor. */
struct inner_tiles { int from, to; };
DEVICE inner_tiles inner_tiles_of(const gpu_attention &o, const tile_job &j, int keys)
{
    const bool plain = o.scale > 0 && o.softcap <= 0 && !o.alibi && !j.tail.base;
    return { first_seen(j.last, o.window, o.chunk), plain ? j.pos0 + 1 - keys : -1 };
}

/* Compute with the tile from k0 on, whose keys are being copied, while its values and then the next
 * tile's keys are copied.  INNER: it is one of inner_tiles.  b: its blocks; becomes the next's. */
template <int DIM, bool INNER> DEVICE void copied_tile(running<DIM> r[shape<DIM>::strips], const gpu_attention &o,
                                                       const tile_job &j, const rooms<DIM> &room, int k0,
                                                       tile_blocks<DIM> &b)
{
    typedef shape<DIM> f;
    const int first = threadIdx.x / 32 * 16 * f::strips;
    /* whether a query of this warp attends to the tile */
    const bool seen = INNER || (first < j.n_queries && k0 <= j.pos0 + first + 16 * f::strips - 1);
    weights<DIM> w[f::strips];
    copy_wait<0>();
    __syncthreads();                    /* the keys are there, and all warps have read the previous values */
    start_values<DIM, INNER>(room, o, j, b, k0);
    b = tile_blocks_of<DIM>(j, k0 + f::keys);
    if (seen) {
        float s[f::strips][f::keys / 8][4];
        multiply_keys<DIM>(s, room);
        if (!INNER)
            finish_scores<DIM, COPIED>(s, o, j, 0, k0);
#pragma unroll
        for (int m = 0; m < f::strips; m++)
            soften<DIM>(r[m], w[m], s[m], INNER ? o.scale * LOG2_E : LOG2_E);
    }
    copy_wait<0>();
    __syncthreads();                    /* the values are there, and all warps have read the keys */
    if (INNER || k0 + f::keys <= j.last)
        start_keys<DIM>(room, o, j, b);
    if (seen)
        multiply_values<DIM>(r, w, room.values);
}

/* Attention to keys and values of f16, from the position begin on. */
template <int DIM> DEVICE void attend_copied(running<DIM> r[shape<DIM>::strips], const gpu_attention &o,
                                             const tile_job &j, const rooms<DIM> &room, int begin)
{
    typedef shape<DIM> f;
    inner_tiles inner = inner_tiles_of(o, j, f::keys);
    inner.to = min(inner.to, j.last - f::keys);         /* another tile follows */
    tile_blocks<DIM> b = tile_blocks_of<DIM>(j, begin);
    start_keys<DIM>(room, o, j, b);
    for (int k0 = begin; k0 <= j.last; )
        if (k0 >= inner.from && k0 <= inner.to) {
#pragma unroll 1
            do {
                copied_tile<DIM, true>(r, o, j, room, k0, b);
                k0 += f::keys;
            } while (k0 <= inner.to);
        } else {
            copied_tile<DIM, false>(r, o, j, room, k0, b);
            k0 += f::keys;
        }
}

/* Attention to those of other formats. */
template <int DIM, way WAY> DEVICE void attend_converted(running<DIM> r[shape<DIM>::strips], const gpu_attention &o,
                                                         const tile_job &j, const rooms<DIM> &room, int begin)
{
    typedef shape<DIM> f;
    const int first = threadIdx.x / 32 * 16 * f::strips;
    const inner_tiles inner = inner_tiles_of(o, j, f::keys);
    for (int k0 = begin; k0 <= j.last; k0 += f::keys)
        for (int from_tail = 0; from_tail <= (WAY == PACKED); from_tail++) {
            if (WAY == PACKED && !reads(j, from_tail, k0))
                continue;
            __syncthreads();                /* all warps have read the previous tile */
            copy_any_tile<DIM, WAY>(room, o, j, from_tail, k0);
            __syncthreads();
            if (first >= j.n_queries || k0 > j.pos0 + first + 16 * f::strips - 1)
                continue;                   /* no query of this warp attends to this tile */
            const bool is_inner = k0 >= inner.from && k0 <= inner.to;
            float s[f::strips][f::keys / 8][4];
            weights<DIM> w[f::strips];
            multiply_keys<DIM>(s, room);
            if (!is_inner)
                finish_scores<DIM, WAY>(s, o, j, from_tail, k0);
#pragma unroll
            for (int m = 0; m < f::strips; m++)
                soften<DIM>(r[m], w[m], s[m], is_inner ? o.scale * LOG2_E : LOG2_E);
            multiply_values<DIM>(r, w, room.values);
        }
}

template <int DIM, way WAY> __global__ __launch_bounds__(THREADS) void attn_prefill_kernel(gpu_attention o)
{
    follow_previous();
    typedef shape<DIM> f;
    SHARED(uint8_t, queries);
    const rooms<DIM> room = { queries, queries + f::tile * f::row, queries + f::tile * f::row + DIM * f::key_row };
    const tile_job j = tile_job_of(o);
    copy_queries<DIM>(queries, o, j);
    running<DIM> r[f::strips];
#pragma unroll
    for (int m = 0; m < f::strips; m++)
        r[m] = { {}, { -INFINITY, -INFINITY }, { 0, 0 } };
    const int begin = first_seen(j.pos0, o.window, o.chunk) / f::keys * f::keys;
    if (WAY == COPIED)
        attend_copied<DIM>(r, o, j, room, begin);
    else
        attend_converted<DIM, WAY>(r, o, j, room, begin);
#pragma unroll
    for (int m = 0; m < f::strips; m++) {
        if (WAY == PACKED && o.kv.rotated)
            rotate_out<DIM>(r[m], o.head_dim);
        store_out<DIM>(r[m], o, j, threadIdx.x / 32 * 16 * f::strips + 16 * m);
    }
}

template <int DIM, way WAY> static int run(struct gpu *g, const gpu_attention *o, struct err *e)
{
    static_assert(shape<DIM>::tile == GPU_ATTN_TILE(DIM), "the backend cuts tiles");
    return launch(g, "attn_prefill", attn_prefill_kernel<DIM, WAY>, dim3((unsigned)o->n_tiles, (unsigned)o->n_heads),
                  THREADS, shape<DIM>::shared, e, *o);
}

template <way WAY> static int run_dim(struct gpu *g, const gpu_attention *o, struct err *e)
{
    return o->head_dim <= 64 ? run<64, WAY>(g, o, e) : o->head_dim <= 128 ? run<128, WAY>(g, o, e)
           : run<256, WAY>(g, o, e);
}

extern "C" int gpu_attn_prefill(struct gpu *g, const struct gpu_attention *o, struct err *e)
{
    return kv_packed((enum kv_type)o->kv.type) ? run_dim<PACKED>(g, o, e)
           : o->kv.type == KV_F16 ? run_dim<COPIED>(g, o, e) : run_dim<CONVERTED>(g, o, e);
}

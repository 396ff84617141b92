/* attn_latent.cu - latent attention of many tokens of a sequence in its absorbed form
 * (arXiv:2405.04434, section 2.1), on the tensor cores: all heads read the same latents, so a row
 * of the products is one head of one token (the online softmax: arXiv:2205.14135).
 *
 * tile     a block of 8 warps: 64 rows, which are heads of one or more adjacent tokens.  Queries
 *          are in shared memory as f16, and beside them the latents of 16 positions at a time (one
 *          KV block), which are both keys and values.  Two warps share 16 rows: each computes the
 *          scores of 8 positions, and every second run of 16 elements of the sums.  16-byte pieces
 *          of rows are swizzled, so that an 8 x 8 matrix lies in 32 different banks
 * moves    for each 64 rows the latents of all positions up to their last token once (mostly from
 *          L2): with 128 heads each latent is read twice for every token
 * limit    calculated for latents of 512 with keys of 64 elements: 16 positions are 544 products of
 *          the tensor cores (1088 cycles of the four of sm_80), and 568 LDSM.x4 (2272 cycles of
 *          shared memory, which therefore limits); 94,720 bytes of shared memory and 209 registers
 *          a thread, so one block for each multiprocessor
 * checked  tests/unit/t-gpu-attention.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/kv.cuh"
#include "gpu/rt/launch.cuh"

enum { STRIPS = 4, WARPS = 2 * STRIPS, THREADS = WARPS * 32, ROWS = 16 * STRIPS, KEYS = KV_BLOCK, MOST_RUNS = 16 };

/* The work of a block: rows row0 .. row0 + ROWS - 1 of a tile, of which n exist; row r is a head of
 * the token at position pos0 + r / n_heads. */
struct row_job { int first, row0, n, pos0, last; kv_place kv; };

DEVICE row_job row_job_of(const gpu_attention &o)
{
    row_job j;
    j.first = o.tiles[2 * blockIdx.x];
    j.row0 = blockIdx.y * ROWS;
    j.n = min(o.tiles[2 * blockIdx.x + 1] * o.n_heads - j.row0, ROWS + 0);
    j.pos0 = o.step.pos[j.first];
    j.last = j.pos0 + (j.row0 + j.n - 1) / o.n_heads;
    j.kv = kv_place_of(o.kv.blocks, o.step.tables + o.step.table_of[j.first], 0);
    return j;
}

/* Shared memory of a block: queries [ROWS] and latents [KEYS] with `pitch` bytes a row, weights
 * [ROWS][KEYS] f16, and two numbers for each row. */
struct rooms { uint8_t *queries, *latents, *weights; float *row; int pitch; };

/* Bytes of a row of n elements: banks repeat every 128 bytes. */
static __host__ __device__ int pitch_of(int n) { return (n + 63) / 64 * 128; }

DEVICE rooms rooms_of(uint8_t *shared, int n)
{
    rooms r;
    r.pitch = pitch_of(n);
    r.queries = shared;
    r.latents = r.queries + ROWS * r.pitch;
    r.weights = r.latents + KEYS * r.pitch;
    r.row = reinterpret_cast<float *>(r.weights + ROWS * KEYS * 2);
    return r;
}

DEVICE uint8_t *piece_at(uint8_t *rows, int pitch, int row, int piece)
{
    return rows + row * pitch + (piece ^ (row & 7)) * 16;
}
/* A row of weights has two pieces; eight adjacent rows fill 32 banks twice. */
DEVICE uint8_t *weights_at(uint8_t *rows, int row, int piece)
{
    return rows + row * KEYS * 2 + (piece ^ (row >> 2 & 1)) * 16;
}

/* Copy the queries to shared memory; elements beyond head_dim and rows beyond the last are 0. */
DEVICE void copy_queries(const rooms &r, const gpu_attention &o, const row_job &j)
{
    const int n = o.head_dim, pieces = r.pitch / 16;
    for (int i = threadIdx.x; i < ROWS * pieces; i += THREADS) {
        const int row = i / pieces, piece = i % pieces;
        float v[8] = {};
        if (row < j.n && 8 * piece < n)
            kv_load<KV_F32>(v, reinterpret_cast<const uint8_t *>(o.q + ((size_t)j.first * o.n_heads + j.row0 + row) *
                                                                 n), 8 * piece);
        *reinterpret_cast<uint4 *>(piece_at(r.queries, r.pitch, row, piece)) = pack_eight(v);
    }
}

/* Copy the latents of the KV block from position k0 on. */
template <int KV> DEVICE void copy_latents(const rooms &r, const gpu_attention &o, const row_job &j, int k0)
{
    const int n = o.head_dim, pieces = r.pitch / 16;
    const uint8_t *block = kv_keys(j.kv, o.kv.blocks, k0);
    const int32_t scales = kv_scales_at<KV>(o.kv, 0, n, 0);
    for (int i = threadIdx.x; i < KEYS * pieces; i += THREADS) {
        const int slot = i / pieces, piece = i % pieces;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (8 * piece < n && k0 + slot <= j.last) {
            const float each = kv_scale<KV>(block, scales, slot),
                        eight[8] = { each, each, each, each, each, each, each, each };
            v = load_as_half<KV>(block, slot * n + 8 * piece, eight);
        }
        *reinterpret_cast<uint4 *>(piece_at(r.latents, r.pitch, slot, piece)) = v;
    }
}

/* s = the scores of 16 rows for the 8 positions from `key` on.  Lane 4g + t has row g in s[0] and
 * s[1], row g + 8 in s[2] and s[3], of the positions 2t and 2t + 1. */
DEVICE void score_rows(float s[4], const rooms &r, int row, int key, int n)
{
    const int lane = threadIdx.x % 32;
    float odd[4] = {};                  /* two sums, whose products do not wait for each other */
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll 2
    for (int c = 0; c < (n + 31) / 32; c++) {
        uint32_t a[4], b[4];
        load_matrices(b, piece_at(r.latents, r.pitch, key + lane % 8, 4 * c + lane / 8));
        load_matrices(a, piece_at(r.queries, r.pitch, row + lane % 16, 4 * c + lane / 16));
        mma_f16(s, a[0], a[1], a[2], a[3], b[0], b[1]);
        load_matrices(a, piece_at(r.queries, r.pitch, row + lane % 16, 4 * c + 2 + lane / 16));
        mma_f16(odd, a[0], a[1], a[2], a[3], b[2], b[3]);
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        s[k] += odd[k];
}

/* A warp's part of its 16 rows: running maxima and sums of the weights of its positions, and
 * unscaled sums of latents: out[i] has the run 2i + half of 16 elements. */
struct running { float out[MOST_RUNS][2][4], most[2], sum[2]; };

/* Turn scores into weights, of which both warps of the rows store theirs, and rescale the sums to
 * the new maxima.  pos: of the two rows of this lane. */
DEVICE void soften(running &k, float s[4], const rooms &r, const int pos[2], float scale, int row, int half, int k0)
{
    const int lane = threadIdx.x % 32, p = k0 + 8 * half + lane % 4 * 2;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        float *x = s + 2 * side;
        x[0] = p <= pos[side] ? x[0] * scale : -INFINITY;
        x[1] = p + 1 <= pos[side] ? x[1] * scale : -INFINITY;
        float most = fmaxf(x[0], x[1]);
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2));
        if (lane % 4 == 0)
            r.row[2 * (row + 8 * side + lane / 4) + half] = most;
    }
    __syncthreads();
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const int mine = row + 8 * side + lane / 4;
        const float most = fmaxf(k.most[side], fmaxf(r.row[2 * mine], r.row[2 * mine + 1])),
                    by = most == -INFINITY ? 1 : fast_exp(k.most[side] - most);
        float *x = s + 2 * side;
#pragma unroll
        for (int i = 0; i < 2; i++)
            x[i] = x[i] == -INFINITY ? 0 : fast_exp(x[i] - most);
        k.most[side] = most;
        k.sum[side] = k.sum[side] * by + (x[0] + x[1]);
        *reinterpret_cast<uint32_t *>(weights_at(r.weights, mine, half) + lane % 4 * 4) = pack_half(x[0], x[1]);
#pragma unroll
        for (int i = 0; i < MOST_RUNS; i++)
#pragma unroll
            for (int m = 0; m < 2; m++) {
                k.out[i][m][2 * side] *= by;
                k.out[i][m][2 * side + 1] *= by;
            }
    }
    __syncthreads();
}

/* out += weights . latents */
DEVICE void add_latents(running &k, const rooms &r, int row, int half, int size)
{
    const int lane = threadIdx.x % 32;
    uint32_t a[4];
    load_matrices(a, weights_at(r.weights, row + lane % 16, lane / 16));
#pragma unroll
    for (int i = 0; i < MOST_RUNS; i++) {
        const int run = 2 * i + half;
        if (16 * run >= size)
            continue;
        uint32_t b[4];
        load_matrices_transposed(b, piece_at(r.latents, r.pitch, lane % 16, 2 * run + lane / 16));
        mma_f16(k.out[i][0], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma_f16(k.out[i][1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
}

/* Divide by the sums of the weights of both warps, and store. */
DEVICE void store_rows(const running &k, const rooms &r, const gpu_attention &o, const row_job &j, int row, int half)
{
    const int lane = threadIdx.x % 32, size = o.value_dim;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        float sum = k.sum[side];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        if (lane % 4 == 0)
            r.row[2 * (row + 8 * side + lane / 4) + half] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const int mine = row + 8 * side + lane / 4;
        if (mine >= j.n)
            continue;
        const float by = 1 / (r.row[2 * mine] + r.row[2 * mine + 1]);
        float *out = o.out + ((size_t)j.first * o.n_heads + j.row0 + mine) * size;
#pragma unroll
        for (int i = 0; i < MOST_RUNS; i++)
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const int d = 16 * (2 * i + half) + 8 * m + lane % 4 * 2;
                if (d < size)
                    *reinterpret_cast<float2 *>(out + d) = make_float2(k.out[i][m][2 * side] * by,
                                                                       k.out[i][m][2 * side + 1] * by);
            }
    }
}

template <int KV> __global__ __launch_bounds__(THREADS) void attn_latent_kernel(gpu_attention o)
{
    follow_previous();
    SHARED(uint8_t, shared);
    const row_job j = row_job_of(o);
    if (j.n <= 0)
        return;
    const rooms r = rooms_of(shared, o.head_dim);
    const int warp = threadIdx.x / 32, row = warp % STRIPS * 16, half = warp / STRIPS, lane = threadIdx.x % 32;
    int pos[2];
#pragma unroll
    for (int side = 0; side < 2; side++)
        pos[side] = row + 8 * side + lane / 4 < j.n ? j.pos0 + (j.row0 + row + 8 * side + lane / 4) / o.n_heads : -1;
    running k = { {}, { -INFINITY, -INFINITY }, { 0, 0 } };
    copy_queries(r, o, j);
    for (int k0 = 0; k0 <= j.last; k0 += KEYS) {
        __syncthreads();                /* all warps have read the previous latents */
        copy_latents<KV>(r, o, j, k0);
        __syncthreads();
        float s[4];
        score_rows(s, r, row, 8 * half, o.head_dim);
        soften(k, s, r, pos, o.scale, row, half, k0);
        add_latents(k, r, row, half, o.value_dim);
    }
    __syncthreads();
    store_rows(k, r, o, j, row, half);
}

template <int KV> static int run_kv(struct gpu *g, const gpu_attention *o, struct err *e)
{
    const unsigned rows = (unsigned)(GPU_ATTN_TILE(o->head_dim) * o->n_heads);
    const size_t shared = (size_t)(ROWS + KEYS) * (size_t)pitch_of(o->head_dim) + ROWS * KEYS * 2 +
                          ROWS * 2 * sizeof(float);
    return launch(g, "attn_latent", attn_latent_kernel<KV>, dim3((unsigned)o->n_tiles, (rows + ROWS - 1) / ROWS),
                  THREADS, shared, e, *o);
}

extern "C" int gpu_attn_latent(struct gpu *g, const struct gpu_attention *o, struct err *e)
{
    switch (o->kv.type) {
    case KV_F16:  return run_kv<KV_F16>(g, o, e);
    case KV_BF16: return run_kv<KV_BF16>(g, o, e);
    case KV_F8:   return run_kv<KV_F8>(g, o, e);
    case KV_I8:   return run_kv<KV_I8>(g, o, e);
    default:      return run_kv<KV_F32>(g, o, e);
    }
}

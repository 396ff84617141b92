/* matmul_split.cu - y = w x for 17 to 128 tokens: up to three matrices in one launch, with k
 * divided between blocks where a matrix has too few rows for all multiprocessors.
 *
 * shapes   as matvec.cu, without gate and up together; activations in the order GPU_ACT_TILES
 * tile     a block: 128 rows x 32 or 64 tokens, and one of the parts of k (prim/split_blocks.cuh).
 *          Weights go from global memory to registers, four steps ahead, and formats with units of
 *          four groups load and convert the scales of four steps at once; activations of eight
 *          steps at a time go through shared memory, copied while the previous eight are multiplied
 * sums     the two halves of a part are added in shared memory.  If k has several parts, blocks
 *          store their sums in global memory, and the block that stores last adds them in the order
 *          of the parts: the bits depend on the shapes of the matrices alone
 *          (gpu_split_parts()), not on the number of tokens or the order of the blocks
 * moves    weights once for 64 tokens, activations once per 128 rows (from L2), sums of parts once
 *          to and from L2: at most 17 MB
 * limit    instructions: for a step of nl4 (nvcc 13.0, sm_90) 91 for 32 tokens, of which 16 are mma
 *          and 52 decode, and 124 for 64 tokens.  Shared memory has 36 cycles of reads and copies
 *          for a step of 32 tokens, in which an H200 loads 1.2 steps a multiprocessor, and 56 for
 *          one of 64 (calculated)
 * checked  tests/unit/t-gpu-matmul.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/many_tokens.cuh"
#include "gpu/prim/split_blocks.cuh"
#include "gpu/rt/launch.cuh"

enum { ROW_TILES = 4, WARPS = 2 * ROW_TILES, THREADS = WARPS * 32 };
static_assert((int)ROW_TILES == GPU_SPLIT_TILES && (int)STEPS == GPU_SPLIT_STAGE, "the host counts blocks");

/* Copies of activations to shared memory: two stages of [STEPS][TOKENS][64 bytes], swizzled as in
 * stages.cuh.  A thread copies the same 16 bytes of the same token in every step or every second
 * step. */
template <int TOKENS> struct act_stages {
    static constexpr int EACH = TOKENS * 4, BYTES = STEPS * TOKENS * 64, APART = THREADS / EACH;
    static_assert(THREADS % EACH == 0, "a round of copies is whole steps");
    uint8_t *to;
    const uint8_t *from;                /* the first copy of this thread in the next stage */
    const uint8_t *matrix;              /* this lane's row for ldmatrix, of step 0 and stage 0 */
    int left;                           /* steps of the part from there on */

    DEVICE act_stages(uint8_t *shared, const gpu_linear &l, int first_token, int begin, int end, int lane)
    {
        const int i = threadIdx.x % EACH, token = i / 4, row = min(first_token + token, l.n_tokens - 1),
                  first = begin + threadIdx.x / EACH;
        left = end - first;
        to = shared + (threadIdx.x / EACH * EACH + (i ^ (token >> 1 & 3))) * 16;
        from = reinterpret_cast<const uint8_t *>(l.act + (size_t)row * l.act_stride) + first * 64 + i % 4 * 16;
        matrix = shared + (lane % 8 * 4 + (lane / 8 ^ (lane >> 1 & 3))) * 16;
    }
    /* Start to copy the next stage, if there is one. */
    DEVICE void fetch(int stage)
    {
        uint8_t *into = to + stage % 2 * BYTES;
        if (left > STEPS - APART) {
#pragma unroll
            for (int s = 0; s < STEPS; s += APART)
                copy_async(into + s * EACH * 16, from + s * 64);
        } else {
#pragma unroll 1
            for (int s = 0; s < left; s += APART)
                copy_async(into + s * EACH * 16, from + s * 64);
        }
        copy_commit();
        from += STEPS * 64;
        left -= STEPS;
    }
    /* Load the activations of step s of a stage, tokens 8i .. 8i+7, as token_stages does. */
    DEVICE void load(uint32_t x[4], int stage, int s, int i) const
    {
        load_matrices(x, matrix + stage % 2 * BYTES + (s * TOKENS + 8 * i) * 64);
    }
};

/* The codebook, at the start of shared memory.  For 32 tokens there is room for a wide_table. */
template <int TYPE, int TOKENS>
constexpr int TABLE = !format<TYPE>::table ? 0 : TOKENS == 32 ? WIDE_BYTES : TABLE_BYTES;
template <int TYPE, int TOKENS> DEVICE auto fill(uint32_t *table)
{
    if constexpr (TOKENS == 32)
        return wide_fill<TYPE, THREADS>(table);
    else
        return lane_fill<TYPE, THREADS>(table);
}

/* Add the products of the steps of stages from `stage` on, which belong to this half of the block's
 * warps.  The first stage's activations have been fetched. */
template <int TYPE, int TOKENS, class TABLE>
DEVICE void multiply_steps(float (&c)[2][TOKENS / 2], const uint8_t *data, const gpu_mat &m,
                           act_stages<TOKENS> &act, int stage, int begin, int end, const TABLE &table, int half,
                           int lane)
{
    const int g = lane / 4, t = lane % 4, n_stages = (end - begin + STEPS - 1) / STEPS;
    raw_step<TYPE> next[AHEAD];
    /* a multiple of 4, so that a step's place in a unit of scales is known when this is compiled */
    int first = (begin / AHEAD + 2 * stage + half) * AHEAD;
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        if (first + s < end)
            load_step<TYPE>(next[s], data, m, first + s, g, t);
    for (; stage < n_stages; stage++, first = (first / AHEAD + 2) * AHEAD) {
        copy_wait<0>();
        /* this stage has arrived for all threads, and all have read the previous one */
        __syncthreads();
        act.fetch(stage + 1);
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            if (first + s >= end)
                break;
            const raw_step<TYPE> raw = next[s];
            if (first + s + STEPS < end)
                load_step<TYPE>(next[s], data, m, (first / AHEAD + 2) * AHEAD + s, g, t);
            uint32_t rows[4][4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                decode_row<TYPE>(rows[r], raw, r, t, table);
            multiply_step<TOKENS>(c, rows,
                                  [&](uint32_t *x, int i) { act.load(x, stage, half * AHEAD + s, i); });
        }
    }
}

/* multiply_steps() of all stages.  In a stage with all its steps each half of the warps has a unit
 * of scales.  The codebook is written while the first loads are under way. */
template <int TYPE, int TOKENS>
DEVICE void multiply_units(float (&c)[2][TOKENS / 2], const uint8_t *data, const gpu_mat &m,
                           act_stages<TOKENS> &act, int begin, int end, uint32_t *shared, int half, int lane)
{
    static_assert((int)AHEAD == (int)UNIT_STEPS, "a half of the warps takes a unit of a stage");
    const int g = lane / 4, t = lane % 4;
    const int n_whole = (end - begin) / STEPS;
    const uint8_t *scales_at = unit_scales<TYPE>(data, begin / UNIT_STEPS + half, g),
                  *codes_at = unit_codes<TYPE>(scales_at, 0, t);
    raw_step<TYPE> raw[AHEAD];
    uint4 scales;
    if (n_whole > 0) {
        scales = load16(scales_at);
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
            raw[s].code[0] = load_stream(codes_at + s * STEP_CODES<TYPE>);
    }
    const auto table = fill<TYPE, TOKENS>(shared);
#pragma unroll 1
    for (int stage = 0; stage < n_whole; stage++) {
        copy_wait<0>();
        /* as in multiply_steps() */
        __syncthreads();
        act.fetch(stage + 1);
        const bool more = stage + 1 < n_whole;
        scales_at += 2 * UNIT_BYTES<TYPE>;
        codes_at += 2 * UNIT_BYTES<TYPE>;
        uint32_t by[AHEAD][2];          /* the scales of rows 2p and 2p + 1 */
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
#pragma unroll
            for (int p = 0; p < 2; p++)
                by[s][p] = decode_scales(word_of(scales, s) ^ 0x80808080u, p);
        if (more)
            scales = load16(scales_at);
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            uint32_t rows[4][4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                decode_codes<TYPE>(rows[r], raw[s], r, t, table);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    rows[r][j] = half_mul_by(rows[r][j], by[s][r / 2], r % 2);
            }
            if (more)
                raw[s].code[0] = load_stream(codes_at + s * STEP_CODES<TYPE>);
            multiply_step<TOKENS>(c, rows, [&](uint32_t *x, int i) { act.load(x, stage, half * AHEAD + s, i); });
        }
    }
    if (begin + n_whole * STEPS < end)
        multiply_steps<TYPE, TOKENS>(c, data, m, act, n_whole, begin, end, table, half, lane);
}

template <int TYPE, int TOKENS> __global__ __launch_bounds__(THREADS, 2)
void matmul_split_kernel(gpu_linear l, int n_units, int n_parts)
{
    follow_previous();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp / ROW_TILES, g = lane / 4, t = lane % 4;
    SHARED(uint32_t, shared);
    const split_block<ROW_TILES> at(l, n_units, n_parts, warp);
    const gpu_mat &m = l.w[at.which];
    const uint8_t *data = m.data + (size_t)(at.has_rows ? at.tile : 0) * m.tile_bytes;
    const int first_token = blockIdx.y * TOKENS, begin = at.begin, end = at.end;
    uint32_t *const room = shared + TABLE<TYPE, TOKENS> / 4;
    act_stages<TOKENS> act(reinterpret_cast<uint8_t *>(room), l, first_token, begin, end, lane);

    float c[2][TOKENS / 2] = {};
    act.fetch(0);
    if constexpr (BY_UNITS<TYPE>)
        multiply_units<TYPE, TOKENS>(c, data, m, act, begin, end, shared, half, lane);
    else
        multiply_steps<TYPE, TOKENS>(c, data, m, act, 0, begin, end, fill<TYPE, TOKENS>(shared), half, lane);
    float y[2][TOKENS / 4];
    exchange<TOKENS, ROW_TILES>(y, c, reinterpret_cast<float4 *>(room), warp, half, lane);
    /* the flag is behind the sums that exchange() stores */
    if (n_parts > 1 && !add_parts<TOKENS>(y, l, room + WARPS * TOKENS * 16, at, n_parts, warp, lane))
        return;
    if (at.has_rows)
        finish_tokens<TOKENS / 16, 4>(y, finish_begin<TYPE>(l, l.to[at.which], data, at.tile * 32 + 4 * g, m,
                                                            ACT_UNIT), l, first_token + half * TOKENS / 2, l.n_tokens,
                                      t);
}

template <int TYPE, int TOKENS> static int run(struct gpu *g, const gpu_linear *l, struct err *e)
{
    const size_t shared = TABLE<TYPE, TOKENS> + 2 * act_stages<TOKENS>::BYTES;
    int units = 0;
    for (int i = 0; i < l->n_mats; i++)
        units += gpu_split_units(l->w[i].n_tiles);
    const int parts = gpu_split_parts(units, l->w[0].n_steps), tiles = (l->n_tokens + TOKENS - 1) / TOKENS;
    if (parts > 1 && GPU_SPLIT_BYTES(units * parts, tiles * TOKENS) > l->partial_bytes)
        return err_set(e, ERR_LIMIT, "matmul_split: %zu bytes for sums of parts, expected %zu", l->partial_bytes,
                       GPU_SPLIT_BYTES(units * parts, tiles * TOKENS));
    return launch(g, "matmul_split", matmul_split_kernel<TYPE, TOKENS>,
                  dim3((unsigned)(units * parts), (unsigned)tiles), THREADS, shared, e,
                  *l, units, parts);
}

template <int TYPE> static int run_type(struct gpu *g, const gpu_linear *l, struct err *e)
{
    return l->n_tokens <= 32 ? run<TYPE, 32>(g, l, e) : run<TYPE, 64>(g, l, e);
}

extern "C" int gpu_matmul_split(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    if (l->wgmma && gpu_matmul_split_hopper_takes(g, l))
        return gpu_matmul_split_hopper(g, l, e);
    switch (l->w[0].type) {
#define FORMAT(type) case type: return run_type<type>(g, l, e);
#define FORMAT_16(type) FORMAT(type)
#include "gpu/prim/each_format.inc"
    default: return err_set(e, ERR_UNSUPPORTED, "matmul_split: number format %d", l->w[0].type);
    }
}

/* matvec.cu - y = w x for 1 to 16 tokens, on the tensor cores from the first token on.
 *
 * shapes   w in kernel order, any type but f32; activations [n][act_stride] f16
 * tile     a block: 32 rows (of two matrices for gate and up), all k: 16 warps (8) take chunks of k
 *          in turn, 128 k for 4-bit codes.  The partial sums are added up in shared memory in the
 *          order of the warps, so a token's result depends only on its own activations.  They
 *          overwrite the codebook, so that no launch needs more than the 99 KB of sm_86 and sm_89
 * parts    if each multiprocessor has a tile and some have another (160 tiles on 132), several
 *          blocks take parts of k of those others, or of all tiles if they are few (64), as
 *          gpu_matvec_divide() says; the block that ends last adds the parts of its tile in the
 *          order of k.  This does not depend on the number of tokens
 * moves    the matrix once from HBM, 16 bytes a lane, up to 8 loads in flight a lane: 64 KB a
 *          block, 2 blocks an SM; the first are under way while the codebook is written.
 *          Activations from L2, once a block
 *          (n * cols * 2 bytes: 11 % of 4-bit weights with one token, 90 % with 8)
 * limit    HBM bandwidth; with up to 8 tokens a lane has 64 instructions per 16 bytes of nl4 (nvcc
 *          13.0, sm_90), of which 16 are loads of the codebook, and an H200 has 131 to 148 issue
 *          slots in the time in which the bytes arrive.  Shared memory serves a load of a warp a
 *          cycle: with those of weights and activations 25 of the 27 to 30 cycles that a
 *          multiprocessor has (calculated)
 *          i4 and i8: products of codes (prim/code_sums.cuh), in a loop for each size of groups.
 *          58 instructions of i4 in groups of 32, 48 and 49 in larger ones, 29 and 27 of i8.  Of
 *          the 58, codes take 16 masks and 12 shifts, scales 8 multiplications and 4 conversions,
 *          and activations 4 moves; 6 are products, 2 of them of the bias, and 3 are loads.  Groups
 *          of 64 save 8 shifts and 2 conversions.  64 of m5 and m6, whose two planes of codes are
 *          two loads
 * norm     up to 4 tokens: the last block norms the output, which saves a launch for a fence, the
 *          count of blocks in L2, and the load of the row
 * checked  tests/unit/t-gpu-matmul.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/few_tokens.cuh"
#include "gpu/prim/norm.cuh"
#include "gpu/rt/launch.cuh"

/* The warps of a block.  Two matrices take twice the registers. */
template <int N> constexpr int WARPS = N == 2 ? 8 : 16;
static_assert(WARPS<1> * 32 == NORM_THREADS && GPU_NORM_TOKENS <= 8, "blocks norm the rows of their output");

/* Blocks of a multiprocessor for which registers are limited; 0: they are not.  Two blocks are
 * worth the registers of i4 that are spilled. */
template <int TYPE, int TOKENS8, int N>
constexpr int RESIDENT = few_steps<TYPE, TOKENS8, N>::LIGHT && TOKENS8 == 1 ? 2 : 0;

/* Floats of the sums of a warp. */
template <int TOKENS8, int N> constexpr int SUMS = N * 8 * TOKENS8 * PAD_ROWS;

/* Write the codebook over the sums, or behind them the words of the bias. */
template <int TYPE, int N, bool SIZED> DEVICE auto table_of(uint32_t *shared, float *behind)
{
    if constexpr (SIZED)
        return bias_fill<TYPE>(reinterpret_cast<uint32_t *>(behind));
    else
        return wide_fill<TYPE, WARPS<N> * 32>(shared);
}

/* TOKENS8: tokens / 8; N: number of matrices multiplied at the same time (2: gate and up); NORM:
 * the last block norms the output.  The call takes registers, so others do not have it.  SHIFT: the
 * group_shift of all matrices, if codes are multiplied as they are, or ANY_GROUPS. */
template <int TYPE, int TOKENS8, int N, bool NORM, int SHIFT>
__global__ __launch_bounds__(WARPS<N> * 32, RESIDENT<TYPE, TOKENS8, N>) void matvec_kernel(gpu_linear l, int n_tiles,
                                                                                          gpu_matvec_blocks blocks)
{
    launch_dependents();
    typedef format<TYPE> f;
    typedef few_steps<TYPE, TOKENS8, N, SHIFT> steps;
    enum { TURN = WARPS<N> * steps::STEPS };    /* steps of all warps */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    SHARED(uint32_t, shared);
    /* [warp][N][8 * TOKENS8][PAD_ROWS]; holds the codebook until all codes are decoded */
    float *sums = reinterpret_cast<float *>(shared);

    int part = 0, n_parts = 1, in_grid = blockIdx.x;
    if (N == 1 && in_grid >= blocks.whole && blocks.parts > 1) {
        n_parts = blocks.parts;
        part = (unsigned)(in_grid - blocks.whole) % n_parts;
        in_grid = blocks.whole + (unsigned)(in_grid - blocks.whole) / n_parts;
    }
    int which = 0, tile = in_grid;
    if (N == 1)
        while (tile >= l.w[which].n_tiles)
            tile -= l.w[which++].n_tiles;
    const gpu_mat &m = l.w[which];
    const uint8_t *data[N];
    for (int i = 0; i < N; i++)
        data[i] = l.w[which + i].data + (size_t)tile * m.tile_bytes;

    const uint16_t *act[TOKENS8];
#pragma unroll
    for (int b = 0; b < TOKENS8; b++)
        act[b] = l.act + (size_t)min(8 * b + g, l.n_tokens - 1) * l.act_stride + 8 * t;
    /* sums of tokens that do not exist are not stored: they may be those of the last one */
    const auto activations = [&](int b, int step, int k) { return load16(act[b] + (size_t)step * 32 + k * 32); };

    /* the first weights are under way while the codebook is written and the kernel before ends */
    steps s;
    const int n_units = (m.n_steps + UNIT_STEPS - 1) / UNIT_STEPS, last = N == 2 || part + 1 == n_parts;
    int first = (N == 1 ? n_units * part / n_parts * UNIT_STEPS : 0) + warp * steps::STEPS;
    const int end = last ? few_end<TYPE, TOKENS8, N>(m) : n_units * (part + 1) / n_parts * UNIT_STEPS;
    code_place place[N];                /* if the size of groups is known */
    for (int i = 0; steps::SIZED && i < N; i++)
        place[i] = turn_codes<TYPE, steps::SIZED ? SHIFT : 0>(data[i], first, g, t);
    if (first < end) {
        if constexpr (steps::SIZED)
            few_load_sized(s, place);
        else
            few_load_weights(s, data, m, first, g, t);
    }
    if (NORM && threadIdx.x == 0 && l.norm.w)
        load_later(l.norm.w + in_grid * 32);
    const auto table = table_of<TYPE, N, steps::SIZED>(shared, sums + WARPS<N> * SUMS<TOKENS8, N>);
    wait_for_prerequisites();
    if (f::table || steps::SIZED)
        __syncthreads();
    const uint16_t *here[TOKENS8];      /* activations of the turn */
#pragma unroll
    for (int b = 0; b < TOKENS8; b++)
        here[b] = act[b] + (size_t)first * 32;
    const auto activations_here = [&](int b, int, int k) { return load16(here[b] + k * 32); };
    if (first < end)
        few_load_acts(s, m, first, activations_here);

    float c[N][TOKENS8][2][4];
    for (int i = 0; i < N * TOKENS8 * 8; i++)
        (&c[0][0][0][0])[i] = 0;
    if constexpr (steps::SIZED) {
        /* places that move take fewer instructions than places of a step, and a branch out of the
         * loop fewer than loads on a condition */
        int left = end - first;
#pragma unroll 1
        while (left > 0) {
            few_multiply(c, s, m, first, t, table, activations_here);
            left -= TURN;
#pragma unroll
            for (int i = 0; i < N; i++)
                move_on<TYPE, SHIFT, TURN>(place[i]);
#pragma unroll
            for (int b = 0; b < TOKENS8; b++)
                here[b] += TURN * 32;
            if (left <= 0)
                break;
            few_load_sized(s, place);
            few_load_acts(s, m, first, activations_here);
        }
        first = end - left;
    } else
        while (first < end) {
            few_multiply(c, s, m, first, t, table, activations);
            first += TURN;
            if (first < end)
                few_load(s, data, m, first, g, t, activations);
        }
    if (last)
        few_rest<TYPE>(c, data, m, first, g, t, table, activations);

    if (f::table)
        __syncthreads();
    store_sums<TOKENS8, N>(sums + warp * SUMS<TOKENS8, N>, c, g, t);
    __syncthreads();
    const auto in_block = [&](int i, int token, int in_tile) {
        float y = 0;
        for (int w = 0; w < WARPS<N>; w++)
            y += sums[((w * N + i) * 8 * TOKENS8 + token) * PAD_ROWS + in_tile];
        return y;
    };
    float *parts = nullptr;             /* [n_parts][n_tokens][32] */
    if (N == 1 && n_parts > 1) {
        const int size = l.n_tokens * 32;
        parts = l.partial + (size_t)(in_grid - blocks.whole) * n_parts * size;
        for (int o = threadIdx.x; o < size; o += WARPS<N> * 32)
            parts[part * size + o] = in_block(0, o / 32, o % 32);
        if (!last_block(l.tickets + 1 + in_grid, n_parts, shared))
            return;
    }
    finish_few<N>(l, which, tile, WARPS<N> * 32, [&](int i, int token, int in_tile) {
        float y = 0;
        if (N == 1 && n_parts > 1)
            for (int z = 0; z < n_parts; z++)
                y += load_shared_by_blocks(parts + (z * l.n_tokens + token) * 32 + in_tile);
        else
            y = in_block(i, token, in_tile);
        return y * (f::row_scale ? ACT_UNIT * float_of(load4(data[i] + 4 * in_tile)) : FEW_UNIT<TYPE>);
    });
    if constexpr (NORM)
        if (last_block(l.tickets, n_tiles, shared))
            norm_rows(l.norm, l.n_tokens, sums);
}

template <int TYPE, int TOKENS8, int N, bool NORM, int SHIFT>
static int run_sized(struct gpu *g, const gpu_linear *l, struct err *e)
{
    const size_t sums = sizeof(float) * WARPS<N> * SUMS<TOKENS8, N> + (BY_CODES<TYPE> ? BIAS_BYTES : 0),
                 table = format<TYPE>::table ? WIDE_BYTES : 0, shared = sums > table ? sums : table;
    int tiles = 0;
    for (int i = 0; i < (N == 2 ? 1 : l->n_mats); i++)
        tiles += l->w[i].n_tiles;
    const gpu_matvec_blocks blocks = N == 1 && l->partial ? gpu_matvec_divide(tiles, l->w[0].n_steps, gpu_n_sms(g))
                                                          : gpu_matvec_blocks{ tiles, 1 };
    const int divided = (tiles - blocks.whole) * blocks.parts;
    const size_t room = sizeof(float) * 32 * (size_t)(divided * l->n_tokens);
    if (divided && room > l->partial_bytes)
        return err_set(e, ERR_LIMIT, "matvec: %zu bytes for sums of parts, expected %zu", l->partial_bytes, room);
    return launch(g, "matvec", matvec_kernel<TYPE, TOKENS8, N, NORM, SHIFT>,
                  dim3((unsigned)(blocks.whole + divided)), WARPS<N> * 32, shared, e, *l, tiles, blocks);
}

template <int TYPE, int TOKENS8, int N, bool NORM = false>
static int run(struct gpu *g, const gpu_linear *l, struct err *e)
{
    if constexpr (!BY_CODES<TYPE>)
        return run_sized<TYPE, TOKENS8, N, NORM, ANY_GROUPS>(g, l, e);
    else
        switch (l->w[0].group_shift) {
        case 0:  return run_sized<TYPE, TOKENS8, N, NORM, 0>(g, l, e);
        case 1:  return run_sized<TYPE, TOKENS8, N, NORM, 1>(g, l, e);
        case MOST_SHIFT: return run_sized<TYPE, TOKENS8, N, NORM, MOST_SHIFT>(g, l, e);
        default: return err_set(e, ERR_UNSUPPORTED, "matvec: groups of %d", 32 << l->w[0].group_shift);
        }
}

template <int TYPE> static int run_type(struct gpu *g, const gpu_linear *l, struct err *e)
{
    const int pair = l->finish == GPU_MLP && l->n_mats == 2;
    if (l->norm.x)
        return run<TYPE, 1, 1, true>(g, l, e);
    if (l->n_tokens <= 8)
        return pair ? run<TYPE, 1, 2>(g, l, e) : run<TYPE, 1, 1>(g, l, e);
    return pair ? run<TYPE, 2, 2>(g, l, e) : run<TYPE, 2, 1>(g, l, e);
}

extern "C" int gpu_matvec(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    switch (l->w[0].type) {
#define FORMAT(type) case type: return run_type<type>(g, l, e);
#define FORMAT_16(type) FORMAT(type)
#include "gpu/prim/each_format.inc"
    default: return err_set(e, ERR_UNSUPPORTED, "matvec: number format %d", l->w[0].type);
    }
}

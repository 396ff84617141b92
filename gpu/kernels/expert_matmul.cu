/* expert_matmul.cu - the chosen experts of many tokens; expert_matvec.cu is for few.
 *
 * shapes   as expert_matvec.cu, with tiles of 16 or 64 pairs of one expert
 * tile     a block: 64 rows of gate and of up, or 128 rows of down, times the pairs of a tile, all
 *          k; 4 warps, each 32 rows and all pairs (prim/many_tokens.cuh).  Copies to shared memory
 *          gather the rows of activations of the pairs.  The two warps that compute up pass their
 *          sums to those that compute gate through shared memory, so that outputs of gate and up
 *          are never written to global memory
 * moves    the weights of each chosen expert once per 16 or 64 of its pairs; rows of activations
 *          once per 64 or 128 rows (from L2); results of down 4 bytes an element, for expert_sum
 * limit    HBM bandwidth while an expert has fewer than about 200 pairs, then mma.sync.  A tile
 *          that is not full wastes products, so tiles have 16 pairs where experts have fewer than
 *          32 on average
 * checked  tests/unit/t-gpu-experts.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/experts.cuh"
#include "gpu/prim/many_tokens.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 4, PAD = 33 };

/* Multiply the sums of a lane by ACT_UNIT and by the scales of their rows.  The lane has rows 4g +
 * r, r = 0..3, of the pairs 8i + 2t + k, k = 0..1. */
template <int TYPE, int PAIRS> DEVICE void scale_rows(float (&c)[2][PAIRS / 2], const uint8_t *data, int g)
{
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float scale = format<TYPE>::row_scale ? ACT_UNIT * float_of(load4(data + 4 * (4 * g + r))) : ACT_UNIT;
#pragma unroll
        for (int i = 0; i < PAIRS / 4; i++)
            c[r / 2][4 * (i / 2) + i % 2 + r % 2 * 2] *= scale;
    }
}

template <int TYPE, int PAIRS, int N> __global__ __launch_bounds__(WARPS * 32) void expert_matmul_kernel(gpu_experts o)
{
    follow_previous();
    typedef format<TYPE> f;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    SHARED(uint32_t, shared);
    if (blockIdx.y >= (unsigned)*o.choice.n_tiles)
        return;
    const gpu_expert_tile e = o.choice.tiles[blockIdx.y];
    uint8_t *room = reinterpret_cast<uint8_t *>(shared + (f::table ? TABLE_BYTES / 4 : 0));
    int *rows = reinterpret_cast<int *>(room + STAGES * STAGE_STEPS * PAIRS * 64);       /* [PAIRS] */
    const int32_t *pairs = o.choice.order + e.first;
    const int which = N == 2 ? warp / 2 : 0, tile = blockIdx.x * (WARPS / N) + warp % (WARPS / N);
    const gpu_mat &m = o.w[which].w;
    const int has_rows = tile < m.n_tiles;
    const uint8_t *data = expert_rows(o.w[which], e.expert, has_rows ? tile : 0);
    const token_stages<PAIRS, WARPS * 32, true> stages = { room, reinterpret_cast<const uint8_t *>(o.act),
                                                           2 * o.act_stride, e.n, m.n_steps, rows };
    if (threadIdx.x < (unsigned)e.n)
        rows[threadIdx.x] = pairs[threadIdx.x] / o.share;
    const uint32_t *table = table_fill<TYPE>(shared);
    __syncthreads();

    float c[2][PAIRS / 2] = {};
    multiply_many<TYPE, PAIRS>(c, data, m, stages, table, lane);
    scale_rows<TYPE, PAIRS>(c, data, g);
    float *up = reinterpret_cast<float *>(room) + warp % 2 * PAIRS * PAD;       /* [2][PAIRS][PAD] */
    if (N == 2) {
        __syncthreads();                /* the stages are read */
#pragma unroll
        for (int i = 0; i < PAIRS / 4; i++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                if (which == 1)
                    up[(i / 2 * 8 + 2 * t + i % 2) * PAD + 4 * g + r] = c[r / 2][4 * (i / 2) + i % 2 + r % 2 * 2];
        __syncthreads();
    }
    if (!has_rows || which == 1)
        return;
#pragma unroll
    for (int i = 0; i < PAIRS / 4; i++) {
        const int at = i / 2 * 8 + 2 * t + i % 2;
        if (at >= e.n)
            continue;
        const int pair = pairs[at];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int in_tile = 4 * g + r, row = tile * 32 + in_tile;
            float y = c[r / 2][4 * (i / 2) + i % 2 + r % 2 * 2];
            if (row < m.rows)
                y = expert_biased(o.w[0], e.expert, row, y);
            if (N == 1 && row < m.rows)
                o.out[(size_t)pair * o.ldo + row] = y;
            if (N == 2)
                o.act_out[(size_t)pair * o.act_out_stride + act_place(row, GPU_ACT_TILES)] =
                    row < m.rows ? act_of(expert_activation(o, pair, y, expert_biased(o.w[N - 1], e.expert, row,
                                                                                      up[at * PAD + in_tile]))) : 0;
        }
    }
}

template <int TYPE, int PAIRS, int N> static int run(struct gpu *g, const gpu_experts *o, struct err *e)
{
    const size_t stages = STAGES * STAGE_STEPS * PAIRS * 64;
    static_assert(2 * PAD * 4 <= STAGES * STAGE_STEPS * 64, "the sums of up fit where the stages were");
    const size_t shared = (format<TYPE>::table ? TABLE_BYTES : 0) + stages + PAIRS * sizeof(int);
    const dim3 grid((unsigned)(o->w[0].w.n_tiles + WARPS / N - 1) / (WARPS / N),
                    (unsigned)gpu_most_tiles(o->n_pairs, o->n_experts, PAIRS));
    return launch(g, "expert_matmul", expert_matmul_kernel<TYPE, PAIRS, N>, grid, WARPS * 32, shared, e, *o);
}

/* Pairs of a tile: 64 if experts have at least 32 pairs on average, else 16. */
extern "C" int gpu_expert_pairs(int n_pairs, int n_experts) { return n_pairs / 32 < n_experts ? 16 : 64; }

template <int TYPE> static int run_type(struct gpu *g, const gpu_experts *o, struct err *e)
{
    if (gpu_expert_pairs(o->n_pairs, o->n_experts) == 16)
        return o->n_mats == 2 ? run<TYPE, 16, 2>(g, o, e) : run<TYPE, 16, 1>(g, o, e);
    return o->n_mats == 2 ? run<TYPE, 64, 2>(g, o, e) : run<TYPE, 64, 1>(g, o, e);
}

extern "C" int gpu_expert_matmul(struct gpu *g, const struct gpu_experts *o, struct err *e)
{
    switch (o->w[0].w.type) {
#define FORMAT(type) case type: return run_type<type>(g, o, e);
#define FORMAT_16(type) FORMAT(type)
#include "gpu/prim/each_format.inc"
    default: return err_set(e, ERR_UNSUPPORTED, "expert_matmul: number format %d", o->w[0].w.type);
    }
}

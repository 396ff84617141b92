/* expert_matvec.cu - the chosen experts of few tokens: act = f(gate x) * up x, or y = down x, for
 * each pair of a token and one of its experts.
 *
 * shapes   w as in matvec.cu, for each expert; activations [token] or [pair][act_stride] f16.  The
 *          work is a list of tiles, each up to 8 pairs of one expert, which route.cu makes on the
 *          device.  The grid is large enough for the longest possible list, so it depends only on
 *          the number of tokens
 * tile     a block: 32 rows (of gate and up), all k, and every gridDim.y-th tile of the list, so
 *          that the codebook, 32 KB of shared memory, is filled once for several experts; 8 warps
 *          take chunks of k in turn, and their partial sums are added in the order of the warps.
 *          Of the blocks that compute the same rows of down, the last to finish also computes the
 *          weighted sum of the results, in the order in which a token chose its experts
 * moves    the weights of each chosen expert once from HBM, whichever tokens chose it.
 *          Qwen3-30B-A3B, nl4, one token: 8 of 128 experts, 13.4 MB for gate and up, 6.7 MB for
 *          down a layer, where attention has 10 MB; activations from L2
 * limit    HBM bandwidth: at 4.3 TB/s 3.1 us for gate and up, 1.6 us for down.  For one token gate
 *          and up have 192 blocks that read 70 KB each, down 512 blocks that read 13 KB each;
 *          filling the codebooks of these 512 takes about as long as reading their weights.
 *          (Calculated, not run on a GPU.)  132 and 155 instructions per 16 bytes of nl4 and lane
 *          (nvcc 13.0, sm_90)
 * checked  tests/unit/t-gpu-experts.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/experts.cuh"
#include "gpu/prim/few_tokens.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 8, PAIRS = GPU_EXPERT_FEW, BLOCKS_PER_SM = 4 };

/* N: 2 for gate and up */
template <int TYPE, int N> __global__ __launch_bounds__(WARPS * 32) void expert_matvec_kernel(gpu_experts o)
{
    typedef format<TYPE> f;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int n_tiles = *o.choice.n_tiles;
    const gpu_mat &m = o.w[0].w;
    SHARED(uint32_t, shared);
    /* [WARPS][N][PAIRS][PAD_ROWS] */
    float *sums = reinterpret_cast<float *>(shared + (f::table ? TABLE_BYTES / 4 : 0));
    const bool adds = N == 1 && o.sum.n > 0;
    /* the first block adds up even if nothing is chosen: there may be a shared expert */
    const int n_blocks = max(min(n_tiles, (int)gridDim.y), adds ? 1 : 0);
    if ((int)blockIdx.y >= n_blocks)
        return;
    const uint32_t *table = table_fill<TYPE>(shared);
    if (f::table)
        __syncthreads();
    for (int i = blockIdx.y; i < n_tiles; i += gridDim.y) {
        const gpu_expert_tile e = o.choice.tiles[i];
        const int32_t *pairs = o.choice.order + e.first;
        const uint16_t *act = g < e.n ? o.act + (size_t)(pairs[g] / o.share) * o.act_stride : nullptr;
        const uint8_t *data[N];
        for (int k = 0; k < N; k++)
            data[k] = expert_rows(o.w[k], e.expert, blockIdx.x);
        float c[N][1][2][4];
        for (int k = 0; k < N * 8; k++)
            (&c[0][0][0][0])[k] = 0;
        multiply_few<TYPE, 1, N, WARPS>(c, data, m, table, warp, g, t, [&](int, int step) {
            return act ? load16(act + step * 32 + 8 * t) : make_uint4(0, 0, 0, 0);
        });
        store_sums<1, N>(sums + warp * N * PAIRS * PAD_ROWS, c, g, t);
        __syncthreads();
        for (int k = threadIdx.x; k < e.n * 32; k += WARPS * 32) {
            const int at = k / 32, in_tile = k % 32, row = blockIdx.x * 32 + in_tile, pair = pairs[at];
            float y[2] = { 0, 0 };
            for (int j = 0; j < N && row < m.rows; j++) {
                for (int w = 0; w < WARPS; w++)
                    y[j] += sums[((w * N + j) * PAIRS + at) * PAD_ROWS + in_tile];
                y[j] *= f::row_scale ? ACT_UNIT * float_of(load4(data[j] + 4 * in_tile)) : ACT_UNIT;
                y[j] = expert_biased(o.w[j], e.expert, row, y[j]);
            }
            if (N == 2)
                o.act_out[(size_t)pair * o.act_out_stride + act_place(row, GPU_ACT_LANES)] =
                    row < m.rows ? act_of(expert_activation(o, pair, y[0], y[1])) : 0;
            else if (row < m.rows)
                o.out[(size_t)pair * o.ldo + row] = y[0];
        }
        __syncthreads();                /* the sums are read */
    }
    if (adds && last_block(o.arrived + blockIdx.x, n_blocks, shared))
        for (int k = threadIdx.x; k < o.sum.n * 32; k += WARPS * 32) {
            const int row = blockIdx.x * 32 + k % 32;
            if (row < m.rows)
                expert_sum_store(o.sum, k / 32, row);
        }
}

template <int TYPE, int N> static int run(struct gpu *g, const gpu_experts *o, struct err *e)
{
    const size_t shared = (format<TYPE>::table ? TABLE_BYTES : 0) + sizeof(float) * WARPS * N * PAIRS * PAD_ROWS;
    const int rows = o->w[0].w.n_tiles, most = gpu_most_tiles(o->n_pairs, o->n_experts, PAIRS),
              wanted = (BLOCKS_PER_SM * gpu_n_sms(g) + rows - 1) / rows;
    return launch(g, "expert_matvec", expert_matvec_kernel<TYPE, N>,
                  dim3((unsigned)rows, (unsigned)(wanted < most ? wanted : most)), WARPS * 32, shared, e, *o);
}

template <int TYPE> static int run_type(struct gpu *g, const gpu_experts *o, struct err *e)
{
    return o->n_mats == 2 ? run<TYPE, 2>(g, o, e) : run<TYPE, 1>(g, o, e);
}

extern "C" int gpu_expert_matvec(struct gpu *g, const struct gpu_experts *o, struct err *e)
{
    switch (o->w[0].w.type) {
#define FORMAT(type) case type: return run_type<type>(g, o, e);
#define FORMAT_16(type) FORMAT(type)
#include "gpu/prim/each_format.inc"
    default: return err_set(e, ERR_UNSUPPORTED, "expert_matvec: number format %d", o->w[0].w.type);
    }
}

/* matvec.cu - y = w x for 1 to 16 tokens, on the tensor cores from the first token on.
 *
 * shapes   w in kernel order, any type but f32; activations [n][act_stride] f16
 * tile     a block: 32 rows (of two matrices for gate and up), all k: 16 warps take chunks of k in
 *          turn, 128 k for 4-bit codes.  The 16 partial sums are added up in shared memory in the
 *          order of the warps, so a token's result depends only on its own activations.  They
 *          overwrite the codebook, so that no launch needs more than the 99 KB of sm_86 and sm_89
 * moves    the matrix once from HBM, 16 bytes a lane, up to 8 loads in flight a lane: 64 KB a
 *          block, 2 blocks an SM; activations from L2, once a block
 *          (n * cols * 2 bytes: 11 % of 4-bit weights with one token, 90 % with 8)
 * limit    HBM bandwidth; with up to 8 tokens a lane has 132 instructions per 16 bytes of nl4 (nvcc
 *          13.0, sm_90: 527 for four steps of a warp), and an H200 has 131 to 148 issue slots in
 *          the time in which the bytes arrive: at the edge
 * checked  tests/unit/t-gpu-matmul.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/few_tokens.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 16 };

/* TOKENS8: tokens / 8; N: number of matrices multiplied at the same time (2: gate and up) */
template <int TYPE, int TOKENS8, int N> __global__ __launch_bounds__(WARPS * 32) void matvec_kernel(gpu_linear l)
{
    typedef format<TYPE> f;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    SHARED(uint32_t, shared);
    /* [warp][N][8 * TOKENS8][PAD_ROWS]; holds the codebook until all codes are decoded */
    float *sums = reinterpret_cast<float *>(shared);

    int which = 0, tile = blockIdx.x;
    if (N == 1)
        while (tile >= l.w[which].n_tiles)
            tile -= l.w[which++].n_tiles;
    const gpu_mat &m = l.w[which];
    const uint8_t *data[N];
    for (int i = 0; i < N; i++)
        data[i] = l.w[which + i].data + (size_t)tile * m.tile_bytes;

    const uint32_t *table = table_fill<TYPE>(shared);
    if (f::table)
        __syncthreads();

    float c[N][TOKENS8][2][4];
    for (int i = 0; i < N * TOKENS8 * 8; i++)
        (&c[0][0][0][0])[i] = 0;
    const uint16_t *act[TOKENS8];
#pragma unroll
    for (int b = 0; b < TOKENS8; b++)
        act[b] = 8 * b + g < l.n_tokens ? l.act + (size_t)(8 * b + g) * l.act_stride + 8 * t : nullptr;
    multiply_few<TYPE, TOKENS8, N, WARPS>(c, data, m, table, warp, g, t, [&](int b, int step) {
        return act[b] ? load16(act[b] + step * 32) : make_uint4(0, 0, 0, 0);
    });

    if (f::table)
        __syncthreads();
    store_sums<TOKENS8, N>(sums + warp * N * 8 * TOKENS8 * PAD_ROWS, c, g, t);
    __syncthreads();
    finish_few<N>(l, which, tile, WARPS * 32, [&](int i, int token, int in_tile) {
        float y = 0;
        for (int w = 0; w < WARPS; w++)
            y += sums[((w * N + i) * 8 * TOKENS8 + token) * PAD_ROWS + in_tile];
        return y * (f::row_scale ? ACT_UNIT * float_of(load4(data[i] + 4 * in_tile)) : ACT_UNIT);
    });
}

template <int TYPE, int TOKENS8, int N> static int run(struct gpu *g, const gpu_linear *l, struct err *e)
{
    const size_t sums = sizeof(float) * WARPS * N * 8 * TOKENS8 * PAD_ROWS,
                 table = format<TYPE>::table ? TABLE_BYTES : 0, shared = sums > table ? sums : table;
    int tiles = 0;
    for (int i = 0; i < (N == 2 ? 1 : l->n_mats); i++)
        tiles += l->w[i].n_tiles;
    return launch(g, "matvec", matvec_kernel<TYPE, TOKENS8, N>, dim3((unsigned)tiles), WARPS * 32, shared, e, *l);
}

template <int TYPE> static int run_type(struct gpu *g, const gpu_linear *l, struct err *e)
{
    const int pair = l->finish == GPU_MLP && l->n_mats == 2;
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

/* few_tokens.cuh - multiply a tile of 32 rows by up to 16 tokens.  The warps of a block take
 * chunks of k in turn, and store their partial sums in shared memory. */
#ifndef ZSE_GPU_PRIM_FEW_TOKENS_CUH
#define ZSE_GPU_PRIM_FEW_TOKENS_CUH

#include "gpu/prim/weights.cuh"

enum { PAD_ROWS = 36 };                 /* 36: lanes that store 4 rows of token 2t have no bank conflicts */

/* Store the sums c of a lane in shared memory: to[N][8 * TOKENS8][PAD_ROWS]. */
template <int TOKENS8, int N> DEVICE void store_sums(float *to, const float (&c)[N][TOKENS8][2][4], int g, int t)
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int b = 0; b < TOKENS8; b++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                *reinterpret_cast<float4 *>(to + (i * 8 * TOKENS8 + 8 * b + 2 * t + k) * PAD_ROWS + 4 * g) =
                    make_float4(c[i][b][0][k], c[i][b][0][2 + k], c[i][b][1][k], c[i][b][1][2 + k]);
}

/* Add one warp's part of a product to c: the tiles at data[0..N) of N matrices, which have the type
 * and shape of m, times the tokens; WARPS warps divide the steps of k.  act(b, step) returns the 8
 * activations of token 8b + g that this lane needs for a step. */
template <int TYPE, int TOKENS8, int N, int WARPS, class ACT>
DEVICE void multiply_few(float (&c)[N][TOKENS8][2][4], const uint8_t *const (&data)[N], const gpu_mat &m,
                         const uint32_t *table, int warp, int g, int t, ACT act)
{
    constexpr int LOADS = format<TYPE>::raw * N, STEPS = LOADS >= 8 ? 1 : LOADS >= 4 ? 2 : 4;
    for (int first = warp * STEPS; first < m.n_steps; first += WARPS * STEPS) {
        raw_step<TYPE> raw[N][STEPS];
        uint4 x[STEPS][TOKENS8];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (first + s >= m.n_steps)
                break;
#pragma unroll
            for (int i = 0; i < N; i++)
                load_step<TYPE>(raw[i][s], data[i], m, first + s, g, t);
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (first + s >= m.n_steps)
                break;
#pragma unroll
            for (int b = 0; b < TOKENS8; b++)
                x[s][b] = act(b, first + s);
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int p = 0; p < 2; p++) {
                    uint32_t even[4], odd[4];
                    decode_row<TYPE>(even, raw[i][s], 2 * p, t, table);
                    decode_row<TYPE>(odd, raw[i][s], 2 * p + 1, t, table);
#pragma unroll
                    for (int b = 0; b < TOKENS8; b++)
                        multiply_rows(c[i][b][p], even, odd, x[s][b]);
                }
        }
    }
}

#endif

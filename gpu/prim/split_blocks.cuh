/* split_blocks.cuh - the blocks of matmul_split.cu and matmul_split_hopper.cu: the rows and the
 * part of k that a block takes, and the sums of its warps and of the parts.
 *
 * A block has ROW_TILES tiles of 32 rows, and two warps for each of them.  In matmul_split.cu each
 * warp takes half of the block's part: four of every eight steps (32 k). */
#ifndef ZSE_GPU_PRIM_SPLIT_BLOCKS_CUH
#define ZSE_GPU_PRIM_SPLIT_BLOCKS_CUH

#include "gpu/prim/operands.h"
#include "gpu/prim/prim.cuh"

enum {
    AHEAD = 4,                  /* steps that a warp computes in each stage */
    STEPS = 2 * AHEAD,          /* steps of a stage of activations */
};

/* The place of this block in the grid, and of a warp in the block. */
template <int ROW_TILES> struct split_block {
    int which, tile;            /* the matrix, and the warp's tile of rows */
    bool has_rows;              /* the matrix has this tile */
    int part, in_grid;          /* in_grid: index of the tile of rows and tokens */
    int begin, end;             /* the part's steps */

    DEVICE split_block(const gpu_linear &l, int n_units, int n_parts, int warp)
    {
        int unit = blockIdx.x % (unsigned)n_units;
        which = 0;
        part = blockIdx.x / (unsigned)n_units;
        in_grid = blockIdx.y * n_units + unit;
        while (unit >= (l.w[which].n_tiles + ROW_TILES - 1) / ROW_TILES)
            unit -= (l.w[which++].n_tiles + ROW_TILES - 1) / ROW_TILES;
        tile = unit * ROW_TILES + warp % ROW_TILES;
        has_rows = tile < l.w[which].n_tiles;
        const int n_steps = l.w[which].n_steps, n_stages = (n_steps + STEPS - 1) / STEPS;
        begin = n_stages * part / n_parts * STEPS;
        end = min(n_stages * (part + 1) / n_parts * STEPS, n_steps);
    }
};

/* Sums of a lane for half of a tile's tokens. */
template <int TOKENS> using half_sums = float[2][TOKENS / 4];

/* Give the other half's tokens to the warp of the same rows, and add its sums for ours. */
template <int TOKENS, int ROW_TILES>
DEVICE void exchange(half_sums<TOKENS> &y, const float (&c)[2][TOKENS / 2], float4 *room, int warp, int half,
                     int lane)
{
    constexpr int N = TOKENS / 4;
    __syncthreads();                    /* all warps have read the last stage */
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float *gives = c[p] + i;
            room[((warp * 2 + p) * (N / 4) + i / 4) * 32 + lane] =
                half ? make_float4(gives[0], gives[1], gives[2], gives[3])
                     : make_float4(gives[N], gives[N + 1], gives[N + 2], gives[N + 3]);
        }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float4 v = room[(((warp ^ ROW_TILES) * 2 + p) * (N / 4) + i / 4) * 32 + lane];
            y[p][i] = (half ? c[p][N + i] : c[p][i]) + v.x;
            y[p][i + 1] = (half ? c[p][N + i + 1] : c[p][i + 1]) + v.y;
            y[p][i + 2] = (half ? c[p][N + i + 2] : c[p][i + 2]) + v.z;
            y[p][i + 3] = (half ? c[p][N + i + 3] : c[p][i + 3]) + v.w;
        }
}

/* Four of the sums of a lane. */
template <int N> DEVICE float *four_of(float (&y)[N], int i) { return y + 4 * i; }
template <int N> DEVICE float *four_of(float (&y)[2][N], int i) { return y[i / (N / 4)] + i % (N / 4) * 4; }

/* Store the sums of the block's part.  Returns true in the block that is the last to store; y is
 * the sum over all parts there.  y: TOKENS / 2 sums of each lane. */
template <int TOKENS, class SUMS, int ROW_TILES>
DEVICE bool add_parts(SUMS &y, const gpu_linear &l, unsigned *flag, const split_block<ROW_TILES> &at,
                      int n_parts, int warp, int lane)
{
    constexpr int WARPS = 2 * ROW_TILES;
    constexpr int N = TOKENS / 8;       /* float4 of a lane */
    float4 *const all = reinterpret_cast<float4 *>(l.partial) +
                        ((size_t)at.in_grid * n_parts * WARPS + warp) * N * 32 + lane;
    float4 *mine = all + (size_t)at.part * WARPS * N * 32;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float *v = four_of(y, i);
        mine[i * 32] = make_float4(v[0], v[1], v[2], v[3]);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        *flag = atomicAdd(&l.tickets[at.in_grid], 1u);
    __syncthreads();
    if (*flag + 1 != (unsigned)n_parts)
        return false;
    if (threadIdx.x == 0)
        l.tickets[at.in_grid] = 0;            /* for the next launch */
    __threadfence();
#pragma unroll
    for (int i = 0; i < N; i++) {
        float *v = four_of(y, i);
        v[0] = v[1] = v[2] = v[3] = 0;
    }
#pragma unroll 2
    for (int z = 0; z < n_parts; z++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float4 add = all[((size_t)z * WARPS * N + i) * 32];
            float *v = four_of(y, i);
            v[0] += add.x, v[1] += add.y, v[2] += add.z, v[3] += add.w;
        }
    return true;
}

#endif

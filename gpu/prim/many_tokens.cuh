/* many_tokens.cuh - the product of a warp's tile of 32 rows with a block's tokens: weights from
 * global memory into registers, one step (32 k) ahead; activations through shared memory
 * (stages.cuh). */
#ifndef ZSE_GPU_PRIM_MANY_TOKENS_CUH
#define ZSE_GPU_PRIM_MANY_TOKENS_CUH

#include "gpu/prim/stages.cuh"
#include "gpu/prim/weights.cuh"

/* c += a step's decoded rows (weights.cuh) times TOKENS tokens.  load(x, i) loads the activations
 * of tokens 8i .. 8i + 7.
 * Lane 4g + t: c[r / 2][4i + k + r % 2 * 2] is row 4g + r of token 8i + 2t + k. */
template <int TOKENS, class LOAD>
DEVICE void multiply_step(float (&c)[2][TOKENS / 2], const uint32_t (&rows)[4][4], LOAD load)
{
#pragma unroll
    for (int i = 0; i < TOKENS / 8; i++) {
        uint32_t x[4];
        load(x, i);
        multiply_rows(c[0] + 4 * i, rows[0], rows[1], make_uint4(x[0], x[1], x[2], x[3]));
        multiply_rows(c[1] + 4 * i, rows[2], rows[3], make_uint4(x[0], x[1], x[2], x[3]));
    }
}

/* c += the tile at data, of a matrix with the type and shape of m, times TOKENS tokens.  All
 * threads of the block must call it. */
template <int TYPE, int TOKENS, class TOKEN_STAGES>
DEVICE void multiply_many(float (&c)[2][TOKENS / 2], const uint8_t *data, const gpu_mat &m, const TOKEN_STAGES &stages,
                          const uint32_t *table, int lane)
{
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < STAGES - 1; i++)
        stages.fetch(i);
    raw_step<TYPE> next;
    load_step<TYPE>(next, data, m, 0, g, t);
    for (int stage = 0; stage < stages.n_stages(); stage++) {
        copy_wait<STAGES - 2>();
        /* this stage has arrived for all threads, and all have read the previous one */
        __syncthreads();
        stages.fetch(stage + STAGES - 1);
#pragma unroll
        for (int s = 0; s < STAGE_STEPS; s++) {
            const int step = stage * STAGE_STEPS + s;
            if (step >= m.n_steps)
                break;
            const raw_step<TYPE> raw = next;
            if (step + 1 < m.n_steps)
                load_step<TYPE>(next, data, m, step + 1, g, t);
            uint32_t rows[4][4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                decode_row<TYPE>(rows[r], raw, r, t, table);
            multiply_step<TOKENS>(c, rows, [&](uint32_t *x, int i) { stages.load(x, stage, s, i, lane); });
        }
    }
    copy_wait<0>();
}

#endif

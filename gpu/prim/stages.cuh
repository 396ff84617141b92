/* stages.cuh - copy activations of many tokens to shared memory with cp.async.  There are three
 * stages; each has two steps of 64 bytes per token, as [step][TOKENS][64 bytes].  16-byte pieces
 * are swizzled, so that an 8 x 8 matrix of ldmatrix is in 32 different banks. */
#ifndef ZSE_GPU_PRIM_STAGES_CUH
#define ZSE_GPU_PRIM_STAGES_CUH

#include "gpu/prim/prim.cuh"

enum { STAGES = 3, STAGE_STEPS = 2 };

/* GATHER: the activations of token i are row rows[i] instead of row i. */
template <int TOKENS, int THREADS, bool GATHER = false> struct token_stages {
    static constexpr int BYTES = STAGE_STEPS * TOKENS * 64;
    uint8_t *room;                      /* [STAGES][BYTES] of shared memory */
    const uint8_t *from;                /* the first token's row, 16-byte aligned */
    int stride;                         /* bytes of a row, a multiple of 16 */
    /* beyond the end the last token or step is read again; the results are not used */
    int n_tokens, n_steps;
    const int *rows = nullptr;          /* [n_tokens] */

    DEVICE int n_stages() const { return (n_steps + STAGE_STEPS - 1) / STAGE_STEPS; }

    /* Start to copy a stage, if there is one.  Commits a group of copies in any case, so that
     * copy_wait() can count stages. */
    DEVICE void fetch(int stage) const
    {
        if (stage < n_stages()) {
            uint8_t *to = room + stage % STAGES * BYTES;
            for (int i = threadIdx.x; i < BYTES / 16; i += THREADS) {
                const int quarter = i % 4, token = i / 4 % TOKENS,
                          step = min(stage * STAGE_STEPS + i / 4 / TOKENS, n_steps - 1);
                const int at = min(token, n_tokens - 1), row = GATHER ? rows[at] : at;
                copy_async(to + (i ^ (token >> 1 & 3)) * 16, from + (size_t)row * stride + step * 64 + quarter * 16);
            }
        }
        copy_commit();
    }

    /* Load the activations of step s of a stage, tokens 8i .. 8i+7: lane 4g + t gets bytes 4t ..
     * 4t+3 of the four pieces of token 8i + g. */
    DEVICE void load(uint32_t x[4], int stage, int s, int i, int lane) const
    {
        load_matrices(x, room + stage % STAGES * BYTES +
                      ((s * TOKENS + 8 * i + lane % 8) * 4 + (lane / 8 ^ (lane >> 1 & 3))) * 16);
    }
};

#endif

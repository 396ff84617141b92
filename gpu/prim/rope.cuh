/* rope.cuh - the tables of a step's rotations: cos and sin of its positions.  Their own launch
 * (prepare.cu) and that of the embedding (matmul_f32.cu) give the same bits. */
#ifndef ZSE_GPU_PRIM_ROPE_CUH
#define ZSE_GPU_PRIM_ROPE_CUH

#include "gpu/prim/prim.cuh"

/* Store row t of a table, by all n_threads of a block.  cos and sin are in double, as the CPU
 * computes them: an f32 sine of a large angle would differ in its last bits. */
DEVICE void rope_row(const gpu_ropes &o, const gpu_rope &r, int t, int n_threads)
{
    const int far = r.freq_long && o.is_long[t], half = r.dim / 2;
    const float scale = far ? r.scale_long : r.scale;
    for (int d = threadIdx.x; d < half; d += n_threads) {
        const float angle = (float)max(o.pos[t], 0) * (far ? r.freq_long[d] : r.freq[d]);
        r.cosine[(size_t)t * half + d] = (float)cos((double)angle) * scale;
        r.sine[(size_t)t * half + d] = (float)sin((double)angle) * scale;
    }
}

#endif

/* hadamard.cuh - rotate vectors as libcommon/cpu/hadamard.c does, with the same sums in the same
 * order. */
#ifndef ZSE_GPU_PRIM_HADAMARD_CUH
#define ZSE_GPU_PRIM_HADAMARD_CUH

#include "gpu/prim/prim.cuh"

/* Rotate x [n] in shared memory by THREADS threads: a warp, or a whole block.  Before: all of them
 * see x; after: they see the result. */
template <int THREADS> DEVICE void hadamard(float *x, int n, int thread)
{
    const int run = n & -n;
    const float scale = 1 / sqrtf((float)run);
    for (int half = 1; half < run; half *= 2) {
        for (int i = thread; i < n / 2; i += THREADS) {
            const int at = i / half * 2 * half + i % half;
            const float a = x[at], b = x[at + half];
            x[at] = a + b;
            x[at + half] = a - b;
        }
        THREADS == 32 ? __syncwarp() : __syncthreads();
    }
    for (int i = thread; i < n; i += THREADS)
        x[i] *= scale;
    THREADS == 32 ? __syncwarp() : __syncthreads();
}

#endif

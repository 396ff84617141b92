/* log.cuh - the logarithm of 1 + x by one logarithm and one division; log1pf has additions that
 * round to zero, which the interpreter of PTX (tests/ptx) does not know. */
#ifndef ZSE_GPU_PRIM_LOG_CUH
#define ZSE_GPU_PRIM_LOG_CUH

#include "gpu/prim/prim.cuh"

/* log(1 + x) for x >= 0, to a few ulp also where 1 + x is rounded: the error of u - 1 cancels that
 * of log(u) (Goldberg, What Every Computer Scientist Should Know About Floating-Point Arithmetic,
 * theorem 4). */
DEVICE float log_1_plus(float x)
{
    const float u = 1 + x;
    return u == 1 ? x : logf(u) * x / (u - 1);
}

#endif

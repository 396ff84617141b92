/* order.cuh - keys that order floats as integers. */
#ifndef ZSE_GPU_PRIM_ORDER_CUH
#define ZSE_GPU_PRIM_ORDER_CUH

#include "gpu/prim/prim.cuh"

/* A key that orders floats: larger floats have larger keys; -0 has the key of 0, and NaN has 1.  No
 * float has 0 or the largest key. */
DEVICE uint32_t key_of(float x)
{
    const uint32_t u = bits_of(x + 0.0f);       /* -0 is 0 */
    return x != x ? 1 : u >> 31 ? ~u : u | 0x80000000u;
}

DEVICE float of_key(uint32_t key) { return float_of(key >> 31 ? key & 0x7fffffffu : ~key); }

#endif

/* philox.h - random numbers by counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011).  The n-th number of a seed needs no state and no other
 * number, so a device can draw for any request at any time.  The same source compiles for host and
 * device. */
#ifndef ZSE_BASE_PHILOX_H
#define ZSE_BASE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FUNCTION static inline __host__ __device__
#else
#define PHILOX_FUNCTION static inline
#endif

/* Replace counter [4] by 128 random bits. */
PHILOX_FUNCTION void philox(uint32_t counter[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53 * counter[0], b = (uint64_t)0xcd9e8d57 * counter[2];
        counter[0] = (uint32_t)(b >> 32) ^ counter[1] ^ key0;
        counter[1] = (uint32_t)b;
        counter[2] = (uint32_t)(a >> 32) ^ counter[3] ^ key1;
        counter[3] = (uint32_t)a;
        key0 += 0x9e3779b9;
        key1 += 0xbb67ae85;
    }
}

/* 64 random bits: number n of this seed. */
PHILOX_FUNCTION uint64_t philox_u64(uint64_t seed, uint64_t n)
{
    uint32_t c[4] = { (uint32_t)n, (uint32_t)(n >> 32), 0, 0 };
    philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (uint64_t)c[1] << 32 | c[0];
}

#endif

/* vnni_ymm.h - vpdpbusd and vpdpwssd in 32-byte vectors, and whether this processor runs them.
 * AVX-VNNI encodes them with VEX, AVX-512 VNNI with EVEX.  `make VNNI=evex` takes the second
 * encoding (ZSE_VNNI_EVEX), so that the loops for AVX-VNNI are tested and measured on processors
 * that have only AVX-512's.  All other instructions stay those of AVX2, with its 16 registers. */
#ifndef ZSE_BASE_VNNI_YMM_H
#define ZSE_BASE_VNNI_YMM_H

#include <cpuid.h>
#include <immintrin.h>

#ifdef ZSE_VNNI_EVEX
#define VNNI_ENCODING "%{evex%} "
static inline int vnni_ymm_supported(void)
{
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl");
}
#else
#define VNNI_ENCODING "%{vex%} "
static inline int vnni_ymm_supported(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
#endif

/* sum + the products of 4 unsigned bytes of a and 4 signed bytes of b */
#define VNNI_BYTES(sum, a, b) __asm__(VNNI_ENCODING "vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
/* sum + the products of 2 int16 of a and 2 of b */
#define VNNI_PAIRS(sum, a, b) __asm__(VNNI_ENCODING "vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))

#endif

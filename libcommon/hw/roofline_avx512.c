/* roofline_avx512.c - the loops of roofline.h in 64-byte vectors, int8 by vpdpbusd.  12
 * accumulators, for two instructions a cycle with a latency of 5. */
#include "libcommon/hw/roofline.h"

#include <immintrin.h>

enum { SUMS = 12 };
#define EACH _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++)
#define KEEP(x) __asm__ volatile("" : "+v"(x))

static int supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
}

static uint64_t read_all(const uint8_t *p, size_t n, int streams, size_t ahead)
{
    __m512i sum[2] = { { 0 } };
    const size_t each = n / (size_t)streams;
    for (size_t at = 0; at < each; at += 128) {
        for (int s = 0; s < streams; s++) {
            const uint8_t *q = p + (size_t)s * each + at;
            if (ahead) {                        /* harmless beyond the end */
                __builtin_prefetch(q + ahead);
                __builtin_prefetch(q + ahead + 64);
            }
            for (int i = 0; i < 2; i++)
                sum[i] = _mm512_xor_si512(sum[i], _mm512_loadu_si512(q + 64 * i));
        }
    }
    uint64_t part[8], all = 0;
    _mm512_storeu_si512(part, _mm512_xor_si512(sum[0], sum[1]));
    for (int i = 0; i < 8; i++)
        all ^= part[i];
    return all;
}

static double int8_dot(int rounds)
{
    __m512i sum[SUMS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    EACH sum[i] = _mm512_setzero_si512();
    KEEP(a);
    KEEP(b);
    for (int r = 0; r < rounds; r++)
        EACH {
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
            KEEP(sum[i]);
        }
    return 2.0 * 64 * SUMS * rounds;
}

static double f32_fma(int rounds)
{
    __m512 sum[SUMS], a = _mm512_set1_ps(1), b = _mm512_set1_ps(0);
    EACH sum[i] = _mm512_setzero_ps();
    KEEP(a);
    KEEP(b);
    for (int r = 0; r < rounds; r++)
        EACH {
            sum[i] = _mm512_fmadd_ps(a, b, sum[i]);
            KEEP(sum[i]);
        }
    return 2.0 * 16 * SUMS * rounds;
}

const struct roofline_loops roofline_avx512 = { "avx512vnni", supported, read_all, int8_dot, f32_fma };

/* roofline_avx2.c - the loops of roofline.h in 32-byte vectors.  AVX2 needs three instructions
 * (vpmaddubsw, vpmaddwd, vpaddd) for the work of one vpdpbusd; the AVX-VNNI loop at the end of the
 * file uses vpdpbusd.  Two loads, FMAs or dot products a cycle at a latency of 4 or 5 keep 10
 * accumulators busy; there are 12. */
#include "libcommon/base/vnni_ymm.h"
#include "libcommon/hw/roofline.h"

enum { SUMS = 12 };
#define EACH _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++)

static int supported(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

static uint64_t read_all(const uint8_t *p, size_t n, int streams, size_t ahead)
{
    __m256i sum[4] = { { 0 } };
    const size_t each = n / (size_t)streams;
    for (size_t at = 0; at < each; at += 128) {
        for (int s = 0; s < streams; s++) {
            const uint8_t *q = p + (size_t)s * each + at;
            if (ahead) {                        /* harmless beyond the end */
                __builtin_prefetch(q + ahead);
                __builtin_prefetch(q + ahead + 64);
            }
            for (int i = 0; i < 4; i++)
                sum[i] = _mm256_xor_si256(sum[i], _mm256_loadu_si256((const __m256i *)(q + 32 * i)));
        }
    }
    sum[0] = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
    return (uint64_t)_mm256_extract_epi64(sum[0], 0);
}

/* Make the value of a register unknown to the compiler, so that it does not merge equal sums. */
#define KEEP(x) __asm__ volatile("" : "+x"(x))

static double int8_dot(int rounds)
{
    __m256i sum[SUMS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), one = _mm256_set1_epi16(1);
    EACH sum[i] = _mm256_setzero_si256();
    for (int r = 0; r < rounds; r++) {
        EACH {
            KEEP(a);                            /* otherwise the product is computed only once */
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), one));
            KEEP(sum[i]);
        }
    }
    return 2.0 * 32 * SUMS * rounds;
}

static double f32_fma(int rounds)
{
    __m256 sum[SUMS], a = _mm256_set1_ps(1), b = _mm256_set1_ps(0);
    EACH sum[i] = _mm256_setzero_ps();
    KEEP(a);
    KEEP(b);
    for (int r = 0; r < rounds; r++)
        EACH {
            sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
            KEEP(sum[i]);
        }
    return 2.0 * 8 * SUMS * rounds;
}

const struct roofline_loops roofline_avx2 = { "avx2", supported, read_all, int8_dot, f32_fma };

/* ---- AVX-VNNI ---- */

static int has_vnni(void) { return supported() && vnni_ymm_supported(); }

__attribute__((target("avx2,avxvnni"))) static double vnni_dot(int rounds)
{
    __m256i sum[SUMS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    EACH sum[i] = _mm256_setzero_si256();
    KEEP(a);
    KEEP(b);
    for (int r = 0; r < rounds; r++)
        EACH {
            VNNI_BYTES(sum[i], a, b);
            KEEP(sum[i]);
        }
    return 2.0 * 32 * SUMS * rounds;
}

const struct roofline_loops roofline_avxvnni = { "avxvnni", has_vnni, NULL, vnni_dot, NULL };

/* linalg_avx2.c - panel operations in 256-bit registers: 3 rows x 4 registers of sums. */
#include <immintrin.h>

enum { WIDTH = 8, BLOCK = 3 };
#define OPS  linalg_avx2
#define NAME "avx2"
#define FMA(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
static int supported(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#include "libcommon/convert/linalg_ops.inc"

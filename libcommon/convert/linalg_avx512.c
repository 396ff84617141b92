/* linalg_avx512.c - panel operations in 512-bit registers: 8 rows x 2 registers of sums. */
#include <immintrin.h>

enum { WIDTH = 16, BLOCK = 8 };
#define OPS  linalg_avx512
#define NAME "avx512"
#define FMA(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
static int supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512bf16");
}
#include "libcommon/convert/linalg_ops.inc"

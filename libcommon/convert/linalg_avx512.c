/* linalg_avx512.c - panel operations in 512-bit registers: 12 rows x 2 registers of sums. */
enum { WIDTH = 16, BLOCK = 12 };
#define OPS  linalg_avx512
#define NAME "avx512"
static int supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512bf16");
}
#include "libcommon/convert/linalg_ops.h"

/* linalg_neon.c - panel operations in 128-bit registers: 3 rows x 8 registers of sums. */
#include <arm_neon.h>

enum { WIDTH = 4, BLOCK = 3 };
#define OPS  linalg_neon
#define NAME "neon"
#define FMA(a, b, c) ((vec)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
static int supported(void) { return 1; }
#include "libcommon/convert/linalg_ops.inc"

/* linalg_plain.c - panel operations for any processor, bit-identical to the other sets, because
 * they call fma() if the processor has no such instruction. */
#include <math.h>

enum { WIDTH = 4, BLOCK = 2 };
typedef float plain_vec __attribute__((vector_size(4 * WIDTH)));
static inline plain_vec fma_lanes(plain_vec a, plain_vec b, plain_vec c)
{
    for (int i = 0; i < WIDTH; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

#define OPS  linalg_plain
#define NAME "plain"
#define FMA(a, b, c) fma_lanes(a, b, c)
static int supported(void) { return 1; }
#include "libcommon/convert/linalg_ops.inc"

/* linalg_plain.c - panel operations for any processor. */
enum { WIDTH = 4, BLOCK = 2 };
#define OPS  linalg_plain
#define NAME "plain"
#define FMA(a, b, c) ((a) * (b) + (c))
static int supported(void) { return 1; }
#include "libcommon/convert/linalg_ops.inc"

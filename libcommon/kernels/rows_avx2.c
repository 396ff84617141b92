/* rows_avx2.c - rows.inc in AVX2. */
#define SET(name) avx2_##name

#include "libcommon/kernels/vec_avx2.inc"
#include "libcommon/kernels/rows.inc"

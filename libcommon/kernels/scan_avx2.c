/* scan_avx2.c - scan.inc in AVX2. */
#define SET(name) avx2_##name

#include "libcommon/kernels/vec_avx2.inc"
#include "libcommon/kernels/scan.inc"

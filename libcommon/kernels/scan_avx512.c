/* scan_avx512.c - scan.inc in AVX-512. */
#define SET(name) avx512_##name

#include "libcommon/kernels/vec_avx512.inc"
#include "libcommon/kernels/scan.inc"

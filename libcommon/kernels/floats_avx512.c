/* floats_avx512.c - floats.inc in AVX-512. */
#define SET(name) avx512_##name

#include "libcommon/kernels/vec_avx512.inc"

enum { F32_VECTORS = 2 };
#define F32_PANEL 12
#define FLOAT_STREAM_MAX 6

#include "libcommon/kernels/floats.inc"

/* floats_avx2.c - floats.inc in AVX2. */
#define SET(name) avx2_##name

#include "libcommon/kernels/vec_avx2.inc"

enum { F32_VECTORS = 1 };
#define F32_PANEL 6
#define FLOAT_STREAM_MAX 2

#include "libcommon/kernels/floats.inc"

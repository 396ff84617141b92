/* floats_neon.c - floats.inc in NEON. */
#define SET(name) neon_##name

#include "libcommon/kernels/vec_neon.inc"

enum { F32_VECTORS = 1 };
#define F32_PANEL 6
#define FLOAT_STREAM_MAX 2

#include "libcommon/kernels/floats.inc"

/* floats_neon.c - floats.inc in NEON.
 *
 * There is no set with bfmmla, which computes 16 products of bf16.  Activations would be the sum of
 * three bf16, as in floats_amx.c, so a third of its rate counts.  By the model of llvm-mca that is
 * 1.33 times the rate of fmla on Neoverse N2, 1.06 on V1, 1.00 on V2, less the time to split
 * activations.  bfmmla also rounds sums to odd: bits would differ from those of the other sets.
 *
 * Nor is there one with SVE, whose vectors have 256 bits on V1 only.  Two of them run there in a
 * cycle, or four of NEON, so sdot and smmla have the same rate.  By the model fmla would be 1.33
 * times as fast, and table look-ups twice: decode of nl4, which takes 9.9 cycles a line there,
 * would take 6 or more. */
#define SET(name) neon_##name

#include "libcommon/kernels/vec_neon.inc"

enum { F32_VECTORS = 1 };
#define F32_PANEL 6
#define FLOAT_STREAM_MAX 2

#include "libcommon/kernels/floats.inc"

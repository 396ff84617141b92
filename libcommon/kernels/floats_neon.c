/* floats_neon.c - floats.inc in NEON.
 *
 * No set uses bfmmla, which computes 16 products of bf16.  Activations would have to be sums of
 * three bf16, as in floats_amx.c, which leaves a third of its rate.  By the model of llvm-mca that
 * third is 1.33 times the rate of fmla on Neoverse N2, 1.06 on V1, 1.00 on V2, minus the time to
 * split activations.  bfmmla also rounds sums to odd: bits would differ from those of the other
 * sets.
 *
 * No set uses SVE either.  Its vectors have more bits than NEON's only on V1 (256), which runs two
 * of them or four of NEON's in a cycle, so sdot and smmla have the same rate.  By the model fmla
 * would be 1.33 times as fast, and table look-ups twice as fast: decoding nl4, which takes 9.9
 * cycles a line on V1, would take 6 or more. */
#define SET(name) neon_##name

#include "libcommon/kernels/vec_neon.inc"

enum { F32_VECTORS = 1 };
#define F32_PANEL 6
#define FLOAT_STREAM_MAX 2

#include "libcommon/kernels/floats.inc"

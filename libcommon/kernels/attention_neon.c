/* attention_neon.c - attention.inc in NEON. */
#define SET(name) neon_##name

#include "libcommon/kernels/vec_neon.inc"
#include "libcommon/kernels/attention.inc"

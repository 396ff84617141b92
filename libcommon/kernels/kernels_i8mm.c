/* kernels_i8mm.c - the set with smmla for many tokens and sdot for few (ARMv8.6: Neoverse V1, N2,
 * V2).  The other operations are those of the NEON set.  The Makefile compiles *_i8mm.c, and only
 * them, with these instructions. */
#include "libcommon/kernels/kernels.h"

#include <sys/auxv.h>

#define SET(name) i8mm_##name
#define HAS_DOT 1
#define HAS_MMLA 1

static int supported(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP && getauxval(AT_HWCAP2) & HWCAP2_I8MM;
}

#include "libcommon/kernels/kernels_neon.inc"

const struct kernels kernels_i8mm = KERNELS_SET("i8mm", supported, i8mm, neon, neon);

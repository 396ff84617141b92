/* kernels_dotprod.c - the set with sdot (ARMv8.2: Cortex-A55, A76, Neoverse N1).  The other
 * operations are those of the NEON set.  The Makefile compiles *_dotprod.c, and only them, with
 * these instructions. */
#include "libcommon/kernels/kernels.h"

#include <sys/auxv.h>

#define SET(name) dotprod_##name
#define HAS_DOT 1
#define HAS_MMLA 0

static int supported(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }

#include "libcommon/kernels/kernels_neon.inc"

const struct kernels kernels_dotprod = KERNELS_SET("dotprod", supported, dotprod, neon, neon);

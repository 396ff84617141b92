/* kernels_neon.c - the ARMv8.0 set (Cortex-A53, A57, A72): products of bytes by smull and
 * sadalp. */
#include "libcommon/kernels/kernels.h"

#define SET(name) neon_##name
#define HAS_DOT 0
#define HAS_MMLA 0

static int supported(void) { return 1; }                /* ARMv8-A Linux requires ASIMD */

#include "libcommon/kernels/kernels_neon.inc"

const struct kernels kernels_neon = KERNELS_SET("neon", supported, neon, neon, neon);

/* roofline_amx.c - multiply int8 tiles with AMX.  A tile instruction multiplies 16 x 64 bytes by 64
 * x 16: 16384 multiply-adds. */
#include "libcommon/hw/roofline.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { XTILE_DATA = 18, REQUEST_PERMISSION = 0x1023 };          /* arch_prctl(2): ARCH_REQ_XCOMP_PERM */

/* A process must request tiles from the kernel before it may use them
 * (Documentation/arch/x86/xstate.rst); requesting again is harmless. */
static int supported(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 25 & 1))       /* AMX-TILE, AMX-INT8 */
        return 0;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, XTILE_DATA) == 0;
}

/* Palette 1; bytes a row and rows of tiles 0-3, 6 and 7 (Intel SDM, volume 1, section 18.3).
 * Static because gcc 12 believes that _tile_loadconfig reads only the first 8 bytes, and would omit
 * stores to the others. */
static const _Alignas(64) uint8_t config[64] = {
    [0] = 1, [16] = 64, [18] = 64, [20] = 64, [22] = 64, [28] = 64, [30] = 64, [48] = 16, [49] = 16, [50] = 16,
        [51] = 16, [54] = 16, [55] = 16,
};
static const _Alignas(64) uint8_t zero[1024];

static double int8_dot(int rounds)
{
    _tile_loadconfig(config);
    _tile_loadd(6, zero, 64);
    _tile_loadd(7, zero, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int r = 0; r < rounds; r++) {
        _tile_dpbssd(0, 6, 7);
        _tile_dpbssd(1, 6, 7);
        _tile_dpbssd(2, 6, 7);
        _tile_dpbssd(3, 6, 7);
    }
    _tile_release();
    return 2.0 * 16384 * 4 * rounds;
}

const struct roofline_loops roofline_amx = { "amx", supported, NULL, int8_dot, NULL };

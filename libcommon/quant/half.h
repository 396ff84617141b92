/* half.h - conversions of f16, bf16 and f8e4m3 in plain C, rounding to nearest even.  f16 is
 * binary16 of IEEE 754-2019; bf16 is the upper half of an f32; f8e4m3 is E4M3 of the "OCP 8-bit
 * Floating Point Specification" 1.0: magnitudes up to 448, no infinity, 0x7f and 0xff are NaN. */
#ifndef ZSE_QUANT_HALF_H
#define ZSE_QUANT_HALF_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HALF_FUNCTION static inline __host__ __device__
#else
#define HALF_FUNCTION static inline
#endif

typedef uint16_t f16;
typedef uint16_t bf16;
typedef uint8_t f8e4m3;

HALF_FUNCTION float f32_from_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
HALF_FUNCTION uint32_t f32_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

HALF_FUNCTION float f16_to_f32(f16 h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    if (exp == 31)
        return f32_from_bits(sign | 0x7f800000 | man << 13);
    if (exp == 0)                       /* zero or subnormal: man * 2^-24 */
        return f32_from_bits(sign | f32_bits((float)man * 0x1p-24f));
    return f32_from_bits(sign | (exp + 112) << 23 | man << 13);
}

HALF_FUNCTION f16 f32_to_f16(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (f16)(sign | 0x7e00);    /* NaN */
    if (u >= 0x477ff000)                /* rounds to 65536 or more */
        return (f16)(sign | 0x7c00);
    if (u < 0x38800000) {               /* subnormal: adding 0.5 aligns the last bit to 2^-24 */
        float a = f32_from_bits(u) + 0.5f;
        return (f16)(sign | (f32_bits(a) - 0x3f000000));
    }
    return (f16)(sign | (((u + 0xfff + (u >> 13 & 1)) >> 13) - (112 << 10)));
}

HALF_FUNCTION float bf16_to_f32(bf16 h) { return f32_from_bits((uint32_t)h << 16); }

HALF_FUNCTION bf16 f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (bf16)(u >> 16 | 0x40);
    return (bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

HALF_FUNCTION float f8e4m3_to_f32(f8e4m3 h)
{
    uint32_t sign = (uint32_t)(h & 0x80) << 24, code = h & 0x7f;
    if (code == 0x7f)
        return f32_from_bits(sign | 0x7fc00000);
    if (code < 8)                       /* zero or subnormal: code * 2^-9 */
        return f32_from_bits(sign | f32_bits((float)code * 0x1p-9f));
    return f32_from_bits(sign | ((code << 20) + (120u << 23)));
}

/* Magnitudes beyond 448 become 448. */
HALF_FUNCTION f8e4m3 f32_to_f8e4m3(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 24 & 0x80;
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (f8e4m3)(sign | 0x7f);
    if (u >= 0x43e00000)                /* 448 */
        return (f8e4m3)(sign | 0x7e);
    if (u < 0x3c800000)                 /* subnormal: adding 2^14 aligns the last bit to 2^-9 */
        return (f8e4m3)(sign | (f32_bits(f32_from_bits(u) + 0x1p14f) - 0x46800000));
    return (f8e4m3)(sign | (((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3)));
}

#endif

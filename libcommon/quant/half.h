/* half.h - f16 and bf16 as plain C, rounding to nearest even.  IEEE 754-2019; bf16 is the upper half of an f32. */
#ifndef ZSE_QUANT_HALF_H
#define ZSE_QUANT_HALF_H

#include <stdint.h>
#include <string.h>

typedef uint16_t f16;
typedef uint16_t bf16;

static inline float f32_from_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t f32_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

static inline float f16_to_f32(f16 h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    if (exp == 31)
        return f32_from_bits(sign | 0x7f800000 | man << 13);
    if (exp == 0)                       /* zero or subnormal: man * 2^-24 */
        return f32_from_bits(sign | f32_bits((float)man * 0x1p-24f));
    return f32_from_bits(sign | (exp + 112) << 23 | man << 13);
}

static inline f16 f32_to_f16(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (f16)(sign | 0x7e00);    /* NaN */
    if (u >= 0x477ff000)                /* rounds to 65536 or more */
        return (f16)(sign | 0x7c00);
    if (u < 0x38800000) {               /* below the smallest normal: adding 0.5 aligns the last bit to 2^-24 */
        float a = f32_from_bits(u) + 0.5f;
        return (f16)(sign | (f32_bits(a) - 0x3f000000));
    }
    return (f16)(sign | (((u + 0xfff + (u >> 13 & 1)) >> 13) - (112 << 10)));
}

static inline float bf16_to_f32(bf16 h) { return f32_from_bits((uint32_t)h << 16); }

static inline bf16 f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (bf16)(u >> 16 | 0x40);
    return (bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#endif

/* kvscale.h - the scale of a key or value stored as fp8 (kvtype.h). */
#ifndef ZSE_QUANT_KVSCALE_H
#define ZSE_QUANT_KVSCALE_H

#include <math.h>

#include "libcommon/quant/half.h"

/* The scale for a vector whose largest |x| has these bits (bits of |x| are ordered as |x|, and
 * NaN is above infinity), and the factor that is 1 / scale (0: all codes are 0). */
HALF_FUNCTION float kv_f8_scale_of(uint32_t most, float *factor)
{
    *factor = 0;
    if (most >= 0x7f800000)
        return NAN;
    if (most < 0x0d800000)              /* 2^-100 */
        return 0;
    const uint32_t exponent = ((most + 0x1fffff) >> 23) - 8;    /* 448 = 1.75 * 2^8: what is above 1.75 goes one up */
    *factor = f32_from_bits((254 - exponent) << 23);
    return f32_from_bits(exponent << 23);
}

static inline float kv_f8_scale(const float *x, int n, float *factor)
{
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t u = f32_bits(x[i]) & 0x7fffffff;
        most = u > most ? u : most;
    }
    return kv_f8_scale_of(most, factor);
}

#endif

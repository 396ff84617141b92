/* kvscale.h - compute the scale of a key or value that is stored as fp8, and the scale and the
 * codes of one that is stored as i4 (kvtype.h). */
#ifndef ZSE_QUANT_KVSCALE_H
#define ZSE_QUANT_KVSCALE_H

#include <math.h>
#include <string.h>

#include "libcommon/quant/half.h"
#include "libcommon/quant/kvtype.h"

/* The fp8 scale of a vector; most: the bits of its largest |x| (bits of |x| are ordered like
 * |x|, and NaN is above infinity).  *factor: 1 / scale; 0: all codes are 0. */
HALF_FUNCTION float kv_f8_scale_of(uint32_t most, float *factor)
{
    *factor = 0;
    if (most >= 0x7f800000)
        return NAN;
    if (most < 0x0d800000)              /* 2^-100 */
        return 0;
    /* 448 = 1.75 * 2^8, so a significand above 1.75 needs the next power of two */
    const uint32_t exponent = ((most + 0x1fffff) >> 23) - 8;
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

/* The i4 scale of a vector.  *factor: the factor from elements to codes; 0: all codes are 0. */
static inline float kv_i4_scale(const float *x, int n, float *factor)
{
    uint32_t most = 0;
    float furthest = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t u = f32_bits(x[i]) & 0x7fffffff;
        if (u > most) {
            most = u;
            furthest = x[i];
        }
    }
    *factor = 0;
    if (most >= 0x7f800000)
        return NAN;
    if (most < 0x0d800000)              /* 2^-100 */
        return 0;
    *factor = -8.0f / furthest;
    return furthest / -8.0f;
}

/* The 4 bits of element i of n; 0 after the last. */
static inline int kv_i4_code(const float *x, int n, int i, float factor)
{
    if (i >= n || factor == 0)
        return 0;
    const float code = rintf(x[i] * factor);
    return (int)(code > 7 ? 7 : code) & 15;
}

/* Store a key or value in a slot of a block.  The keys of slots i and i + 8 share bytes, so only
 * one thread at a time may store keys in a block. */
static inline void kv_i4_store(uint8_t *block, int slot, int is_key, const float *x, int head_dim)
{
    const int padded = kv_padded(KV_I4, head_dim), shift = slot < 8 ? 0 : 4;
    float factor;
    const float scale = kv_i4_scale(x, head_dim, &factor);
    memcpy(block + kv_codes_bytes(KV_I4, head_dim) + (size_t)slot * sizeof scale, &scale, sizeof scale);
    if (is_key) {
        for (int d = 0; d < padded; d++) {
            uint8_t *to = block + (size_t)d * 8 + slot % 8;
            *to = (uint8_t)((*to & ~(15 << shift)) | kv_i4_code(x, head_dim, d, factor) << shift);
        }
        return;
    }
    uint8_t *to = block + kv_bytes_of(KV_I4, (size_t)slot * (size_t)padded);
    for (int i = 0; i < padded; i += 16, to += 8)
        for (int j = 0; j < 8; j++)
            to[j] = (uint8_t)(kv_i4_code(x, head_dim, i + j, factor) |
                              kv_i4_code(x, head_dim, i + j + 8, factor) << 4);
}

#endif

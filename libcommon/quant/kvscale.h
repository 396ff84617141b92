/* kvscale.h - compute the scale of a key or value that is stored as fp8, and the scale and the
 * codes of one that is stored as i4 or ternary (kvtype.h). */
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

/* A vector of i4 tries KV_I4_RANGES ranges of codes.  In range i the element furthest from 0 is
 * kv_i4_range(i) times the scale and is clipped to -8: one element becomes worse and the steps of
 * all others finer.  The codes of the range with the least squared error then give the scale, by
 * least squares.  Sums are of integers, so every instruction set and a GPU choose the same scale.
 * Squared error of 64 normally distributed elements: 0.0082 of their own, 0.0090 with range 0
 * alone, 0.0081 with 64 ranges. */
enum { KV_I4_RANGES = 4, KV_I4_UNITS = 1 << 14 };

HALF_FUNCTION float kv_i4_range(int i) { return -8 - 0.625f * (float)i; }

/* The code, -8 to 7, of an element that is not NaN. */
HALF_FUNCTION int kv_i4_round(float x, float factor)
{
    const float code = rintf(x * factor);
    return (int)(code > 7 ? 7 : code < -8 ? -8 : code);
}

/* How much of a vector its codes explain: its sum of squares minus their squared error, with the
 * best scale.  products: the sum of elements (in 1/KV_I4_UNITS of the furthest) times codes;
 * squares: the sum of squared codes. */
HALF_FUNCTION float kv_i4_gain(int products, int squares)
{
    return (float)products * (float)products / (float)squares;
}

/* The best scale for given codes; most: |x| of the furthest element. */
HALF_FUNCTION float kv_i4_fitted(int products, int squares, float most)
{
    return (float)products / (float)squares * (most / KV_I4_UNITS);
}

/* The i4 scale of n <= KV_I4_MOST elements.  *factor: the factor from elements to codes; 0: all
 * codes are 0. */
static inline float kv_i4_scale(const float *x, int n, float *factor)
{
    int products[KV_I4_RANGES] = { 0 }, squares[KV_I4_RANGES] = { 0 }, best = 0;
    float furthest = 0, factors[KV_I4_RANGES];
    for (int i = 0; i < n; i++)
        furthest = (f32_bits(x[i]) & 0x7fffffff) > (f32_bits(furthest) & 0x7fffffff) ? x[i] : furthest;
    const uint32_t most = f32_bits(furthest) & 0x7fffffff;
    *factor = 0;
    if (most >= 0x7f800000)
        return NAN;
    if (most < 0x0d800000)              /* 2^-100 */
        return 0;
    const float units = KV_I4_UNITS / fabsf(furthest);
    for (int r = 0; r < KV_I4_RANGES; r++)
        factors[r] = kv_i4_range(r) / furthest;
    for (int i = 0; i < n; i++) {
        const int element = (int)rintf(x[i] * units);
        for (int r = 0; r < KV_I4_RANGES; r++) {
            const int code = kv_i4_round(x[i], factors[r]);
            products[r] += element * code;
            squares[r] += code * code;
        }
    }
    for (int r = 1; r < KV_I4_RANGES; r++)
        if (kv_i4_gain(products[r], squares[r]) > kv_i4_gain(products[best], squares[best]))
            best = r;
    const float scale = kv_i4_fitted(products[best], squares[best], fabsf(furthest));
    *factor = 1 / scale;
    return scale;
}

/* Queries of i4 and i8 keys, and the weights of 64 positions times the scales of their i4 or i8
 * values, are rounded to codes of at most kv_query_most() and kv_weight_most() times a scale: so
 * sums of codes times codes of keys or values are whole numbers below 2^24, and exact in integers
 * and in floats.  Queries of i8 keys have up to 12 bits (8 at 1024 elements), because 8 bits would
 * double the squared error of scores. */
enum { KV_I8_ROUNDED = 1024 };          /* most elements of vectors of i8 for which this is done */

HALF_FUNCTION int kv_query_most(enum kv_type key, int head_dim)
{
    return key == KV_I4 ? 127 : head_dim <= 64 ? 2047 : (1 << 17) / head_dim - 1;
}

HALF_FUNCTION int kv_weight_most(enum kv_type value) { return value == KV_I4 ? 32767 : 2047; }

/* The scale of codes of at most code_most; most: the bits of the largest |x|; *factor: 1 / scale.
 * Both are 0 if all x are below 2^-100; infinity or NaN gives NaN and the factor 0. */
HALF_FUNCTION float kv_code_scale(uint32_t most, int code_most, float *factor)
{
    *factor = 0;
    if (most >= 0x7f800000)
        return NAN;
    if (most < 0x0d800000)              /* 2^-100 */
        return 0;
    *factor = (float)code_most / f32_from_bits(most);
    return f32_from_bits(most) / (float)code_most;
}

/* The 4 bits of element i of n; 0 after the last. */
static inline int kv_i4_code(const float *x, int n, int i, float factor)
{
    return i >= n || factor == 0 ? 0 : kv_i4_round(x[i], factor) & 15;
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

/* The ternary scale of the n elements that share it.  Elements beyond half of the scale become +1
 * or -1.  Starting from the best scale for normally distributed elements, it becomes the mean of
 * the elements that are not 0, which lowers the squared error each time (Lloyd's algorithm). */
static inline float kv_t2_scale(const float *x, int n)
{
    enum { ROUNDS = 3 };
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    if (!(squares <= 3e38))
        return NAN;
    double scale = 1.224 * sqrt(squares / n);
    for (int round = 0; round < ROUNDS; round++) {
        double sum = 0;
        int count = 0;
        for (int i = 0; i < n; i++) {
            const double a = fabs((double)x[i]);
            sum += a > scale / 2 ? a : 0;
            count += a > scale / 2;
        }
        scale = count ? sum / count : 0;
    }
    return scale < 0x1p-100 ? 0 : (float)scale;
}

/* The 2 bits of element i of n; 0 after the last, and if the scale is 0 or NaN. */
static inline uint32_t kv_t2_code(const float *x, int n, int i, float scale)
{
    if (i >= n || !(scale > 0))
        return 0;
    return x[i] > scale / 2 ? 1 : x[i] < scale / -2 ? 2 : 0;
}

/* Store the codes of a key or value in a slot of a block.  All slots of a block share the bytes of
 * its keys, so only one thread at a time may store keys in a block. */
static inline void kv_t2_store(uint8_t *block, int slot, int is_key, const float *x, int head_dim, float scale)
{
    const int padded = kv_padded(KV_T2, head_dim);
    if (is_key) {
        const int shift = slot % 4 * 2;
        for (int d = 0; d < padded; d++) {
            uint8_t *to = block + (size_t)d * 4 + slot / 4;
            *to = (uint8_t)((*to & ~(3 << shift)) | (int)(kv_t2_code(x, head_dim, d, scale) << shift));
        }
        return;
    }
    uint8_t *to = block + kv_bytes_of(KV_T2, (size_t)slot * (size_t)padded);
    for (int i = 0; i < padded; i += 4, to++) {
        uint32_t byte = 0;
        for (int j = 0; j < 4; j++)
            byte |= kv_t2_code(x, head_dim, i + j, scale) << 2 * j;
        *to = (uint8_t)byte;
    }
}

#endif

/* ggml.c - the tensor types of GGUF files: sizes, names, decoding of all but the grid types
 * (ggml_iq.c). */
#include "libcommon/quant/ggml.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "libcommon/quant/ggml_iq.h"
#include "libcommon/quant/half.h"

enum { QK = 32, QK_K = 256 };

static const int8_t iq4_value[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
static const int8_t e2m1_twice[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static inline uint16_t u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t u32(const uint8_t *p) { return u16(p) | (uint32_t)u16(p + 2) << 16; }
static inline uint64_t u64(const uint8_t *p) { return u32(p) | (uint64_t)u32(p + 4) << 32; }
static inline float half(const uint8_t *p) { return f16_to_f32(u16(p)); }

/* ---- formats without blocks ---- */

static float f8_e4m3(uint8_t b)
{
    int exp = b >> 3 & 15, man = b & 7;
    uint32_t sign = (uint32_t)(b & 0x80) << 24;
    if (exp == 15 && man == 7)
        return f32_from_bits(sign | 0x7fc00000);
    if (exp == 0)
        return f32_from_bits(sign | f32_bits((float)man * 0x1p-9f));
    return f32_from_bits(sign | (uint32_t)(exp + 120) << 23 | (uint32_t)man << 20);
}

static float e8m0(uint8_t b)
{
    return b == 255 ? f32_from_bits(0x7fc00000) : b == 0 ? 0x1p-127f : f32_from_bits((uint32_t)b << 23);
}

static float f64(const uint8_t *p)
{
    uint64_t u = u64(p);
    double d;
    memcpy(&d, &u, 8);
    return (float)d;
}

#define EACH(NAME, SIZE, VALUE) \
    static void NAME(const uint8_t *p, float *y, int64_t n) \
    { \
        for (int64_t i = 0; i < n; i++, p += SIZE) \
            y[i] = (VALUE); \
    }
EACH(get_f32, 4, f32_from_bits(u32(p)))
EACH(get_f16, 2, half(p))
EACH(get_bf16, 2, bf16_to_f32(u16(p)))
EACH(get_f64, 8, f64(p))
EACH(get_i8, 1, (float)(int8_t)*p)
EACH(get_i16, 2, (float)(int16_t)u16(p))
EACH(get_i32, 4, (float)(int32_t)u32(p))
EACH(get_i64, 8, (float)(int64_t)u64(p))
EACH(get_bool, 1, *p ? 1.0f : 0.0f)
EACH(get_u8, 1, (float)*p)
EACH(get_u16, 2, (float)u16(p))
EACH(get_u32, 4, (float)u32(p))
EACH(get_u64, 8, (float)u64(p))
EACH(get_e4m3, 1, f8_e4m3(*p))
EACH(get_e5m2, 1, f16_to_f32((f16)(*p << 8)))
EACH(get_e8m0, 1, e8m0(*p))

/* ---- blocks of 32: low nibbles have the first 16 elements, high nibbles the others ---- */

static void q4_0(const uint8_t *b, float *y)
{
    float d = half(b);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((b[2 + j] & 15) - 8);
        y[j + 16] = d * (float)((b[2 + j] >> 4) - 8);
    }
}

static void q4_1(const uint8_t *b, float *y)
{
    float d = half(b), m = half(b + 2);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(b[4 + j] & 15) + m;
        y[j + 16] = d * (float)(b[4 + j] >> 4) + m;
    }
}

/* The 5-bit code of element j; its fifth bit is bit j of `high`. */
static inline int five(const uint8_t *qs, uint32_t high, int j)
{
    int low = j < 16 ? qs[j] & 15 : qs[j - 16] >> 4;
    return low | (int)(high >> j & 1) << 4;
}

static void q5_0(const uint8_t *b, float *y)
{
    float d = half(b);
    uint32_t high = u32(b + 2);
    for (int j = 0; j < QK; j++)
        y[j] = d * (float)(five(b + 6, high, j) - 16);
}

static void q5_1(const uint8_t *b, float *y)
{
    float d = half(b), m = half(b + 2);
    uint32_t high = u32(b + 4);
    for (int j = 0; j < QK; j++)
        y[j] = d * (float)five(b + 8, high, j) + m;
}

static void q8(float d, const uint8_t *qs, float *y, int n)
{
    for (int j = 0; j < n; j++)
        y[j] = d * (float)(int8_t)qs[j];
}

static void q8_0(const uint8_t *b, float *y) { q8(half(b), b + 2, y, QK); }
/* Layout: d, d * sum of codes (unused), codes. */
static void q8_1(const uint8_t *b, float *y) { q8(half(b), b + 4, y, QK); }
static void q8_k(const uint8_t *b, float *y) { q8(f32_from_bits(u32(b)), b + 4, y, QK_K); }

static void iq4_nl(const uint8_t *b, float *y)
{
    float d = half(b);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)iq4_value[b[2 + j] & 15];
        y[j + 16] = d * (float)iq4_value[b[2 + j] >> 4];
    }
}

/* The table has twice the values, so the scale is half of 2^(e - 127). */
static void mxfp4(const uint8_t *b, float *y)
{
    float d = f32_from_bits(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)e2m1_twice[b[1 + j] & 15];
        y[j + 16] = d * (float)e2m1_twice[b[1 + j] >> 4];
    }
}

/* The scale of a group of NVFP4: an e4m3 without a sign; 0x7f counts as 0. */
static float ue4m3(uint8_t b)
{
    int exp = b >> 3 & 15, man = b & 7;
    if (b == 0x7f)
        return 0;
    return exp ? f32_from_bits((uint32_t)(exp + 120) << 23 | (uint32_t)man << 20) : (float)man * 0x1p-9f;
}

/* A block has 64 elements: 4 scales, then 8 bytes for each 16 elements.  The table has twice the
 * values, so scales are halved. */
static void nvfp4(const uint8_t *b, float *y)
{
    for (int g = 0; g < 4; g++, y += 16) {
        float d = ue4m3(b[g]) * 0.5f;
        for (int j = 0; j < 8; j++) {
            y[j] = d * (float)e2m1_twice[b[4 + 8 * g + j] & 15];
            y[j + 8] = d * (float)e2m1_twice[b[4 + 8 * g + j] >> 4];
        }
    }
}

/* A block has 128 elements: d, then the signs of the elements. */
static void q1_0(const uint8_t *b, float *y)
{
    float d = half(b);
    for (int j = 0; j < 128; j++)
        y[j] = b[2 + j / 8] >> j % 8 & 1 ? d : -d;
}

/* ---- super-blocks of 256 ---- */

/* Layout: scales[16] (low nibble: scale, high nibble: min), qs[64], d, dmin.  32 bytes of qs have
 * 128 elements of two bits. */
static void q2_k(const uint8_t *b, float *y)
{
    const uint8_t *qs = b + 16;
    float d = half(b + 80), dmin = half(b + 82);
    for (int i = 0; i < QK_K; i++) {
        float dl = d * (float)(b[i / 16] & 15), ml = dmin * (float)(b[i / 16] >> 4);
        y[i] = dl * (float)(qs[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) - ml;
    }
}

/* Layout: hmask[32], qs[64], scales[12], d.  The high bit of element i is bit i / 32 of hmask[i %
 * 32]; if it is 0, 4 is subtracted. */
static void q3_k(const uint8_t *b, float *y)
{
    const uint8_t *qs = b + 32, *sc = b + 96;
    float d = half(b + 108);
    for (int g = 0; g < 16; g++) {
        int low = sc[g % 8] >> g / 8 * 4 & 15, high = sc[8 + g % 4] >> g / 4 * 2 & 3;
        float dl = d * (float)((low | high << 4) - 32);
        for (int i = 16 * g; i < 16 * g + 16; i++) {
            int q = qs[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
            y[i] = dl * (float)(q - (b[i % 32] >> i / 32 & 1 ? 0 : 4));
        }
    }
}

/* The 6-bit scale and min of group g of 8.  The low 6 bits of s[0..3] and s[4..7] are the scales
 * and minima of groups 0..3; their top two bits are the top two bits of those of groups 4..7.
 * s[8..11] have the other bits of groups 4..7: the scale's in the low nibble, the min's in the
 * high one. */
static void scale_min(const uint8_t *s, int g, int *scale, int *min)
{
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        *min = s[g + 4] >> 4 | (s[g] >> 6) << 4;
    }
}

/* Layout: d, dmin, scales[12], qs[128].  q5_k has qh[32] before qs; bit g of a byte there is the
 * fifth bit of an element of group g. */
static void q45_k(const uint8_t *b, float *y, const uint8_t *qh, const uint8_t *qs)
{
    float d = half(b), dmin = half(b + 2);
    for (int g = 0; g < 8; g++, y += 32) {
        int scale, min;
        scale_min(b + 4, g, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        for (int j = 0; j < 32; j++) {
            int q = qs[g / 2 * 32 + j] >> g % 2 * 4 & 15;
            y[j] = dl * (float)(qh ? q | (qh[j] >> g & 1) << 4 : q) - ml;
        }
    }
}

static void q4_k(const uint8_t *b, float *y) { q45_k(b, y, NULL, b + 16); }
static void q5_k(const uint8_t *b, float *y) { q45_k(b, y, b + 16, b + 48); }

/* Layout: ql[128], qh[64], int8 scales[16], d. */
static void q6_k(const uint8_t *b, float *y)
{
    float d = half(b + 208);
    for (int g = 0; g < 8; g++) {
        const uint8_t *ql = b + g / 4 * 64 + g % 2 * 32, *qh = b + 128 + g / 4 * 32;
        for (int j = 0; j < 32; j++, y++) {
            int q = (ql[j] >> g % 4 / 2 * 4 & 15) | (qh[j] >> g % 4 * 2 & 3) << 4;
            *y = d * (float)(int8_t)b[192 + 2 * g + j / 16] * (float)(q - 32);
        }
    }
}

/* Layout: d, scales_h (the upper 2 bits of each group's scale), scales_l[4] (the lower 4 bits),
 * qs[128]. */
static void iq4_xs(const uint8_t *b, float *y)
{
    float d = half(b);
    uint16_t high = u16(b + 2);
    for (int g = 0; g < 8; g++, y += 32) {
        int scale = (b[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4;
        float dl = d * (float)(scale - 32);
        for (int j = 0; j < 16; j++) {
            y[j] = dl * (float)iq4_value[b[8 + 16 * g + j] & 15];
            y[j + 16] = dl * (float)iq4_value[b[8 + 16 * g + j] >> 4];
        }
    }
}

/* Digit i of a byte that holds five base-3 digits as a fraction of 256: the digit is the carry,
 * beyond 8 bits, of 3 * (byte * 3^i mod 256). */
static inline int trit(uint8_t byte, int i)
{
    static const uint8_t pow3[5] = { 1, 3, 9, 27, 81 };
    return (uint8_t)(byte * pow3[i]) * 3 >> 8;
}

/* Layout: qs[48] (five elements per byte: 160 in the first 32 bytes, 80 in the other 16), qh[4] (16
 * elements, four per byte), d. */
static void tq1_0(const uint8_t *b, float *y)
{
    float d = half(b + 52);
    for (int i = 0; i < 160; i++)
        y[i] = d * (float)(trit(b[i % 32], i / 32) - 1);
    for (int i = 0; i < 80; i++)
        y[160 + i] = d * (float)(trit(b[32 + i % 16], i / 16) - 1);
    for (int i = 0; i < 16; i++)
        y[240 + i] = d * (float)(trit(b[48 + i % 4], i / 4) - 1);
}

static void tq2_0(const uint8_t *b, float *y)
{
    float d = half(b + 64);
    for (int i = 0; i < QK_K; i++)
        y[i] = d * (float)((b[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) - 1);
}

static const struct {
    struct ggml_type_info info;
    void (*each)(const uint8_t *p, float *y, int64_t n);
    void (*block)(const uint8_t *b, float *y);
} types[] = {
    { { GGML_F32, "F32", 1, 4 }, get_f32, NULL },
    { { GGML_F16, "F16", 1, 2 }, get_f16, NULL },
    { { GGML_BF16, "BF16", 1, 2 }, get_bf16, NULL },
    { { GGML_F64, "F64", 1, 8 }, get_f64, NULL },
    { { GGML_I8, "I8", 1, 1 }, get_i8, NULL },
    { { GGML_I16, "I16", 1, 2 }, get_i16, NULL },
    { { GGML_I32, "I32", 1, 4 }, get_i32, NULL },
    { { GGML_I64, "I64", 1, 8 }, get_i64, NULL },
    { { SRC_F8_E4M3, "F8_E4M3", 1, 1 }, get_e4m3, NULL },
    { { SRC_F8_E5M2, "F8_E5M2", 1, 1 }, get_e5m2, NULL },
    { { SRC_F8_E8M0, "F8_E8M0", 1, 1 }, get_e8m0, NULL },
    { { SRC_BOOL, "BOOL", 1, 1 }, get_bool, NULL },
    { { SRC_U8, "U8", 1, 1 }, get_u8, NULL },
    { { SRC_U16, "U16", 1, 2 }, get_u16, NULL },
    { { SRC_U32, "U32", 1, 4 }, get_u32, NULL },
    { { SRC_U64, "U64", 1, 8 }, get_u64, NULL },
    { { GGML_Q4_0, "Q4_0", QK, 18 }, NULL, q4_0 },
    { { GGML_Q4_1, "Q4_1", QK, 20 }, NULL, q4_1 },
    { { GGML_Q5_0, "Q5_0", QK, 22 }, NULL, q5_0 },
    { { GGML_Q5_1, "Q5_1", QK, 24 }, NULL, q5_1 },
    { { GGML_Q8_0, "Q8_0", QK, 34 }, NULL, q8_0 },
    { { GGML_Q8_1, "Q8_1", QK, 36 }, NULL, q8_1 },
    { { GGML_Q2_K, "Q2_K", QK_K, 84 }, NULL, q2_k },
    { { GGML_Q3_K, "Q3_K", QK_K, 110 }, NULL, q3_k },
    { { GGML_Q4_K, "Q4_K", QK_K, 144 }, NULL, q4_k },
    { { GGML_Q5_K, "Q5_K", QK_K, 176 }, NULL, q5_k },
    { { GGML_Q6_K, "Q6_K", QK_K, 210 }, NULL, q6_k },
    { { GGML_Q8_K, "Q8_K", QK_K, 292 }, NULL, q8_k },
    { { GGML_IQ1_S, "IQ1_S", QK_K, 50 }, NULL, ggml_iq1_s },
    { { GGML_IQ1_M, "IQ1_M", QK_K, 56 }, NULL, ggml_iq1_m },
    { { GGML_IQ2_XXS, "IQ2_XXS", QK_K, 66 }, NULL, ggml_iq2_xxs },
    { { GGML_IQ2_XS, "IQ2_XS", QK_K, 74 }, NULL, ggml_iq2_xs },
    { { GGML_IQ2_S, "IQ2_S", QK_K, 82 }, NULL, ggml_iq2_s },
    { { GGML_IQ3_XXS, "IQ3_XXS", QK_K, 98 }, NULL, ggml_iq3_xxs },
    { { GGML_IQ3_S, "IQ3_S", QK_K, 110 }, NULL, ggml_iq3_s },
    { { GGML_IQ4_NL, "IQ4_NL", QK, 18 }, NULL, iq4_nl },
    { { GGML_IQ4_XS, "IQ4_XS", QK_K, 136 }, NULL, iq4_xs },
    { { GGML_TQ1_0, "TQ1_0", QK_K, 54 }, NULL, tq1_0 },
    { { GGML_TQ2_0, "TQ2_0", QK_K, 66 }, NULL, tq2_0 },
    { { GGML_MXFP4, "MXFP4", QK, 17 }, NULL, mxfp4 },
    { { GGML_NVFP4, "NVFP4", 64, 36 }, NULL, nvfp4 },
    { { GGML_Q1_0, "Q1_0", 128, 18 }, NULL, q1_0 },
#define PACKED_ENTRY(ID, name) { { SRC_##ID, name, 1, 0 }, NULL, NULL },
    SRC_PACKED_TYPES(PACKED_ENTRY)
};

static int find(int type)
{
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++)
        if (types[i].info.type == type)
            return i;
    return -1;
}

const struct ggml_type_info *ggml_type_info(int type)
{
    int i = find(type);
    return i < 0 ? NULL : &types[i].info;
}

void ggml_decode(int type, const void *src, float *dst, int64_t n)
{
    int t = find(type);
    assert(t >= 0 && (types[t].each || types[t].block));
    const uint8_t *p = src;
    if (types[t].each) {
        types[t].each(p, dst, n);
        return;
    }
    for (int64_t i = 0; i < n; i += types[t].info.block, p += types[t].info.block_bytes)
        types[t].block(p, dst + i);
}

/* ---- conversion to codes of .zse types ---- */

static int is_ternary(int type) { return type == GGML_TQ1_0 || type == GGML_TQ2_0; }

int ggml_exact_type(int type, int *group_size)
{
    *group_size = is_ternary(type) ? QK_K : type == GGML_NVFP4 ? 16 : 32;
    switch (type) {
    case GGML_F32:  return QT_F32;
    case GGML_F16:  return QT_F16;
    case GGML_BF16: return QT_BF16;
    case GGML_Q4_0: return QT_I4;
    case GGML_Q4_1: return QT_I4M;
    case GGML_TQ1_0: return QT_T3;
    case GGML_TQ2_0: return QT_T2;
    case GGML_MXFP4: return QT_MXFP4;
    case GGML_NVFP4: return QT_NVFP4;
    case GGML_Q5_0: case GGML_Q8_0: case GGML_Q8_1: case GGML_IQ4_NL: return QT_I8;
    default: return -1;
    }
}

int ggml_fits_t3(int type, const void *src, size_t size)
{
    const uint8_t *b = src;
    if (type != GGML_TQ2_0)
        return type == GGML_TQ1_0;
    for (const uint8_t *end = b + size; b < end; b += 66)
        for (int i = 0; i < 64; i++)
            if (b[i] & b[i] >> 1 & 0x55)
                return 0;
    return 1;
}

/* Unpack the codes of one block of 32. */
static void block32(int type, const uint8_t *b, uint8_t *code)
{
    switch (type) {
    case GGML_Q4_0: case GGML_Q4_1: case GGML_IQ4_NL: case GGML_MXFP4:
        for (int j = 0; j < QK; j++) {
            uint8_t byte = b[(type == GGML_Q4_1 ? 4 : type == GGML_MXFP4 ? 1 : 2) + j % 16],
                    c = j < 16 ? byte & 15 : byte >> 4;
            code[j] = type == GGML_IQ4_NL ? (uint8_t)iq4_value[c] : c;
        }
        break;
    case GGML_Q5_0:
        for (int j = 0; j < QK; j++)
            code[j] = (uint8_t)(five(b + 6, u32(b + 2), j) - 16);
        break;
    default:
        memcpy(code, b + (type == GGML_Q8_1 ? 4 : 2), QK);
    }
}

/* Unpack the codes and scales of one block of 64.  The reference decodes the scale 0xff as 480,
 * which e4m3 lacks. */
static void block_nvfp4(const uint8_t *b, uint8_t *code, float *scale)
{
    for (int g = 0; g < 4; g++) {
        scale[g] = b[g] == 0xff ? NAN : ue4m3(b[g]);
        for (int j = 0; j < 16; j++)
            code[16 * g + j] = b[4 + 8 * g + j % 8] >> j / 8 * 4 & 15;
    }
}

/* Compute the codes of one block of 256 values of -1, 0, 1 (and 2): decode the block with scale 1,
 * and add code_zero to the values.  at: offset of the scale in the block. */
static void block_ternary(int type, const uint8_t *b, int at, int code_zero, uint8_t *code)
{
    float y[QK_K];
    uint8_t unit[66];
    memcpy(unit, b, (size_t)at);
    unit[at] = 0;
    unit[at + 1] = 0x3c;
    ggml_decode(type, unit, y, QK_K);
    for (int j = 0; j < QK_K; j++)
        code[j] = (uint8_t)((int)y[j] + code_zero);
}

void ggml_to_qrow(int type, const void *src, const struct mat *m, struct qrow *q)
{
    const struct ggml_type_info *t = ggml_type_info(type);
    const uint8_t *b = src;
    const int zero = qtype_info(m->type)->code_zero, groups_a_block = t->block / m->group_size;
    int group_size;
    assert(m->cols % t->block == 0 && (is_ternary(type) ? (m->type == QT_T2 || m->type == QT_T3 || m->type == QT_I4) &&
                                       t->block % m->group_size == 0
                                                        : ggml_exact_type(type, &group_size) == (int)m->type &&
                                                        m->group_size == group_size));
    q->row_scale = 1;
    memset(q->code, zero, (size_t)m->cols_padded);
    for (int g = 0; g < m->n_groups; g++) {
        q->scale[g] = 0;
        if (q->extra)
            q->extra[g] = 0;
    }
    for (int g = 0; g < m->cols / m->group_size; g += groups_a_block, b += t->block_bytes) {
        uint8_t *code = q->code + (size_t)g * (size_t)m->group_size;
        if (is_ternary(type)) {
            const int at = t->block_bytes - 2;          /* position of the scale */
            block_ternary(type, b, at, zero, code);
            for (int i = 0; i < groups_a_block; i++)
                q->scale[g + i] = half(b + at);
            continue;
        }
        if (type == GGML_NVFP4) {
            block_nvfp4(b, code, q->scale + g);
            continue;
        }
        block32(type, b, code);
        q->scale[g] = type == GGML_MXFP4 ? f32_from_bits(b[0] ? (uint32_t)b[0] << 23 : 0x00400000) : half(b);
        if (q->extra)
            q->extra[g] = half(b + 2);
    }
}

/* qtype.h - the number formats of a .zse file: what a code means, and how codes and scales lie in a
 * tile.
 *
 * Codes never change their meaning: they are the `type` numbers of FORMAT.md, section 4. */
#ifndef ZSE_QUANT_QTYPE_H
#define ZSE_QUANT_QTYPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum qtype {
    QT_F32 = 0, QT_F16 = 1, QT_BF16 = 2,
    QT_I8 = 8,          /* value = scale * code, code -127..127, f16 scale per group */
    QT_I8R = 9,         /* the same, one f32 scale per row */
    QT_I4 = 16,         /* value = scale * (code - 8), code 0..15, f16 scale per group */
    QT_I4M = 17,        /* value = scale * code + min, f16 scale and f16 min per group: exact for Q4_1 */
    QT_I4Z = 18,        /* value = scale * (code - zero), f16 scale, integer zero 0..15 per group: exact for GPTQ, AWQ */
    QT_NL4 = 20,        /* value = row * scale * nl4_value[code], signed 8-bit scale (-127..127) per group of 32, f32 row */
    QT_NF4 = 21,        /* value = row * scale * nf4_value[code], unsigned 8-bit scale per group of 64, f32 row */
    QT_M2 = 32, QT_M3 = 33,             /* as nl4, with codebooks of 4 and 8 values (qtype.c) */
    QT_M5 = 35, QT_M6 = 36,             /* as nl4, with the integers -16..15 and -32..31 */
    /* value = scale * code read as e4m3fn, f32 scale per group of 128: exact for FP8
     * checkpoints.  Codes 7f and ff, which are no numbers, do not occur.  Multiplied with f32
     * activations only, as the float types. */
    QT_FP8 = 51,
    QT_MXFP4 = 50,      /* value = 2^(scale - 127) * code read as e2m1, 8-bit exponent (e8m0; 255: none) per group of 32 */
    QT_T2 = 64,         /* value = scale * (code - 1), 2-bit codes 0..2, f16 scale per group */
    /* value = scale * (code - 1), code 0..2, five codes a byte, f16 scale per group of 256.  A
     * group is 13 lines of 128 bytes (tile.h) with 20 k each, the last with 16; row r has the 4
     * bytes at 4*r; byte j holds the digits c[i] = code of k 4*i + j, i = 0..4 (0 where the line
     * has no such k), as ceil(256 * v / 243), v = sum of c[i] * 3^(4-i), so that c[i] = ((byte *
     * 3^i mod 256) * 3) >> 8: four k of a row side by side in a dword again, each a multiply and
     * a shift away.  Activations are rounded in groups of 128 only. */
    QT_T3 = 65,
    /* Reserved: code and layout are fixed, nothing computes on them yet and mat_init refuses
     * them. */
    QT_F8E4M3 = 48,     /* value = scale * code read as e4m3fn (OCP 8-bit floating point), f16 scale per group */
    QT_F8E5M2 = 49,     /* the same with e5m2 */
};

enum scale_kind { SCALE_NONE, SCALE_F16, SCALE_S8, SCALE_U8, SCALE_E8M0, SCALE_F32 };
enum extra_kind { EXTRA_NONE, EXTRA_MIN_F16, EXTRA_ZERO_U8 };

struct qtype_info {
    enum qtype type;
    const char *name;           /* "nl4" */
    int bits;                   /* of one code */
    int plane[2];               /* bits of each plane a code is cut into, low bits first: 5 = 4 + 1; 0: none (t3: no planes) */
    enum scale_kind scale;
    enum extra_kind extra;
    int row_scale;              /* 1: a tile begins with 32 f32 row scales */
    unsigned group_sizes;       /* allowed group sizes, OR of the sizes themselves (32 | 64 | 128; t2: 256 too, t3: only that); types without group scales: 32 */
    int is_float;               /* codes are f32, f16, bf16 */
    int has_kernels;            /* 0: code and layout are reserved, nothing computes on it yet */
    int code_zero;              /* the code that means 0 (pads rows of a group), where there is one */
    /* [1 << bits] integer value of each code for the integer kernels, NULL for floats, FP8 and
     * I8 (code itself); i4m and i4z: the code, min and zero point come on top; mxfp4: twice the
     * value */
    const int8_t *value8;
    const float *value;         /* [1 << bits] exact value of each code (nf4: the NF4 levels times 127), NULL as above */
};

/* Activations are never rounded to int8: act_group is 0, the integer kernels are not for it. */
static inline int qtype_takes_floats(const struct qtype_info *t) { return t->is_float || t->type == QT_FP8; }

/* NULL: no such type. */
const struct qtype_info *qtype_info(enum qtype type);
const struct qtype_info *qtype_find(const char *name);

/* 16 values for groups of 32, learned on the weights of real models; the sign of the scale turns
 * the long end either way. */
extern const int8_t nl4_value[16];

#ifdef __cplusplus
}
#endif
#endif

/* qtype.h - the number formats of a .zse file: the meaning of codes, and the layout of codes and
 * scales in a tile.  The facts of each format are in qtype.def. */
#ifndef ZSE_QUANT_QTYPE_H
#define ZSE_QUANT_QTYPE_H

#include <stdint.h>

#ifdef __CUDACC__
#define QTYPE_FUNCTION static inline __host__ __device__
#else
#define QTYPE_FUNCTION static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The `type` numbers of FORMAT.md, section 4. */
enum qtype {
#define QTYPE(ID, number, ...) QT_##ID = number,
#include "libcommon/quant/qtype.def"
};

/* The size of this union is one more than the largest type number. */
union qtype_numbers {
#define QTYPE(ID, number, ...) char ID[(number) + 1];
#include "libcommon/quant/qtype.def"
};
enum { QTYPE_NUMBERS = sizeof(union qtype_numbers) };

enum scale_kind {
#define QTYPE_SCALE(KIND, ...) SCALE_##KIND,
#include "libcommon/quant/qtype.def"
};
enum extra_kind { EXTRA_NONE, EXTRA_MIN_F16, EXTRA_ZERO_U8, N_EXTRA_KINDS };

/* How a code is converted to a value, before scale and extra. */
enum code_kind {
    CODES_FLOAT,                /* f32, f16, bf16: the value itself */
    CODES_INT8,                 /* two's complement, -127..127 */
    CODES_LINEAR,               /* values of consecutive codes differ by 1 */
    CODES_BOOK,                 /* values from a codebook */
    CODES_E2M1,                 /* sign and magnitude; -0 is the second code of 0 */
    CODES_E4M3, CODES_E5M2,     /* OCP 8-bit floating point */
    CODES_TERNARY, CODES_BASE3, /* -1, 0, 1: in two bits each; five digits in a byte */
    N_CODE_KINDS
};
enum {
    N_SCALE_KINDS = 0
#define QTYPE_SCALE(...) + 1
#include "libcommon/quant/qtype.def"
};
/* Written in every file that has cases for these kinds, so that a new kind fails the build
 * there. */
#ifdef __cplusplus
#define QTYPE_STATIC_ASSERT static_assert
#else
#define QTYPE_STATIC_ASSERT _Static_assert
#endif
#define QTYPE_SCALES_HERE(n) QTYPE_STATIC_ASSERT(N_SCALE_KINDS == (n), "a new kind of scale needs a case here")
#define QTYPE_EXTRAS_HERE(n) QTYPE_STATIC_ASSERT(N_EXTRA_KINDS == (n), "a new kind of extra needs a case here")
#define QTYPE_CODES_HERE(n) QTYPE_STATIC_ASSERT(N_CODE_KINDS == (n), "a new kind of code needs a case here")

/* The rounding of activations: qtype.def, acts. */
enum weight_acts { ACTS_NONE, ACTS_F32, ACTS_I8, ACTS_I8_128 };
enum gpu_format_kind { GPU_FORMAT_NONE, GPU_FORMAT_F32, GPU_FORMAT_FLOATS, GPU_FORMAT_INTEGERS, GPU_FORMAT_TABLE };
enum type_chosen { CHOSEN_NONE, CHOSEN_SMALL, CHOSEN_STEP, CHOSEN_COMPARED };
enum option_choice { OPTION_NEVER, OPTION_FINE, OPTION_OFTEN };

struct qtype_info {
    enum qtype type;
    const char *name;           /* "nl4" */
    enum option_choice choice;
    const char *option;         /* for -q: "int4" */
    int bits;                   /* bits of one code */
    /* bits of the planes that a code is divided into, low bits first: 5 = 4 + 1; 0: none */
    int plane[2];
    enum code_kind codes;
    enum scale_kind scale;
    enum extra_kind extra;
    int row_scale;              /* 1: a tile begins with 32 f32 row scales */
    unsigned group_sizes;       /* allowed group sizes, OR of the sizes themselves */
    int group_size;             /* the default */
    enum weight_acts acts;
    enum gpu_format_kind gpu;
    int is_float;               /* codes are f32, f16, bf16 */
    /* 0: the type's number and layout are reserved, but there are no kernels; mat_init() refuses
     * it */
    int has_kernels;
    int code_zero;              /* the code for 0, used as padding; if the type has one */
    /* [1 << bits] the integer value of each code for the integer kernels; NULL: the code is the
     * value.  For i4m and i4z the value before min or zero point are applied; for e2m1 twice the
     * value */
    const int8_t *value8;
    /* [1 << bits] the exact value of each code (nf4: the NF4 levels times 127); NULL: the code is
     * the value */
    const float *value;
    enum type_chosen chosen;    /* the automatic choices of zse-convert that may pick the type */
};

static inline int qtype_is_ternary(const struct qtype_info *t)
{
    return t->codes == CODES_TERNARY || t->codes == CODES_BASE3;
}
/* Whether activations are never rounded to int8 for this type; then act_group is 0, and only the
 * f32 matmul supports the type. */
static inline int qtype_takes_floats(const struct qtype_info *t) { return t->acts == ACTS_F32; }

/* Bytes of a group's scale and extra. */
QTYPE_FUNCTION int scale_bytes(enum scale_kind scale)
{
    switch (scale) {
#define QTYPE_SCALE(KIND, bytes, unit) case SCALE_##KIND: return bytes;
#include "libcommon/quant/qtype.def"
    }
    return 0;
}
QTYPE_FUNCTION int extra_bytes(enum extra_kind extra)
{
    return extra == EXTRA_NONE ? 0 : extra == EXTRA_MIN_F16 ? 2 : 1;
}

/* NULL: no such type. */
const struct qtype_info *qtype_info(enum qtype type);
const struct qtype_info *qtype_find(const char *name);
/* Types in the order of qtype.def, i = 0, 1, ..; NULL after the last. */
const struct qtype_info *qtype_at(int i);
/* Types that zse-convert chooses by itself (column chosen), finest first; NULL after the last. */
const struct qtype_info *qtype_chosen(int i);

/* The 16 values of nl4, for groups of 32, learned on the weights of real models.  They are
 * asymmetric; a negative scale mirrors them. */
extern const int8_t nl4_value[16];

#ifdef __cplusplus
}
#endif
#endif

/* qtype.c - the table of number formats, generated from qtype.def, and the values of codes. */
#include "libcommon/quant/qtype.h"

#include <stddef.h>
#include <string.h>

const int8_t nl4_value[16] = { -127, -97, -76, -59, -45, -31, -19, -8, 2, 12, 23, 34, 47, 62, 81, 111 };

/* Tables of values: X_i8 for the integer kernels, X_f32 for all other uses; X is the column
 * `values` of qtype.def. */
#define nl4_i8 nl4_value
static const float nl4_f32[16] = { -127, -97, -76, -59, -45, -31, -19, -8, 2, 12, 23, 34, 47, 62, 81, 111 };

/* The 4 or 16 integers from a on: values of the linear types. */
#define RUN4(T, a)  (T)(a), (T)((a) + 1), (T)((a) + 2), (T)((a) + 3)
#define RUN16(T, a) RUN4(T, a), RUN4(T, (a) + 4), RUN4(T, (a) + 8), RUN4(T, (a) + 12)
static const int8_t i4_i8[16] = { RUN16(int8_t, -8) };
static const float i4_f32[16] = { RUN16(float, -8) };
static const int8_t u4_i8[16] = { RUN16(int8_t, 0) };
static const float u4_f32[16] = { RUN16(float, 0) };
static const int8_t m5_i8[32] = { RUN16(int8_t, -16), RUN16(int8_t, 0) };
static const float m5_f32[32] = { RUN16(float, -16), RUN16(float, 0) };
static const int8_t m6_i8[64] = { RUN16(int8_t, -32), RUN16(int8_t, -16), RUN16(int8_t, 0), RUN16(int8_t, 16) };
static const float m6_f32[64] = { RUN16(float, -32), RUN16(float, -16), RUN16(float, 0), RUN16(float, 16) };

/* The levels of NormalFloat times 127. */
static const float nf4_f32[16] = {
#define NF4_LEVEL(x) (float)((x) * 127.0),
#include "libcommon/quant/nf4.def"
};
static const int8_t nf4_i8[16] = {
#define NF4_LEVEL(x) (int8_t)((x) * 127.0 + ((x) < 0 ? -0.5 : 0.5)),
#include "libcommon/quant/nf4.def"
};

/* Codebooks found by the Lloyd-Max algorithm on groups of 32 normal numbers whose scales (of both
 * signs) are searched as in quantize.c, and rounded to integers.  Mean squared errors on these
 * numbers: m2 .0952, m3 .0228, nl4's values .0054 (linear 4 bits .0063), m5 .00162, m6 .00042. */
static const int8_t m2_i8[4] = { -127, -44, 18, 89 };
static const float m2_f32[4] = { -127, -44, 18, 89 };
static const int8_t m3_i8[8] = { -127, -77, -45, -18, 7, 33, 64, 105 };
static const float m3_f32[8] = { -127, -77, -45, -18, 7, 33, 64, 105 };

/* e2m1 of the OCP Microscaling Formats specification 1.0, section 5.3.3; the integers are twice
 * the values. */
static const int8_t e2m1_i8[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
static const float e2m1_f32[16] = { 0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6 };

static const int8_t t2_i8[4] = { -1, 0, 1, 2 };
static const float t2_f32[4] = { -1, 0, 1, 2 };

#define none_i8 NULL
#define none_f32 NULL

#define QTYPE(ID, number, name_, choice_, option_, codes_, values, zero, low, high, scale_, extra_, row, sizes, group, \
              acts_, stream, ymm, zmm, gpu_, chosen_) \
    [QT_##ID] = { .type = QT_##ID, .name = name_, .choice = OPTION_##choice_, .option = option_, \
                  .bits = (low) + (high), \
                  .plane = { low, high }, .codes = CODES_##codes_, .scale = SCALE_##scale_, .extra = EXTRA_##extra_, \
                  .row_scale = row, .group_sizes = sizes, .group_size = group, .acts = ACTS_##acts_, \
                  .gpu = GPU_FORMAT_##gpu_, .is_float = CODES_##codes_ == CODES_FLOAT, \
                  .has_kernels = ACTS_##acts_ != ACTS_NONE, .code_zero = zero, .value8 = values##_i8, \
                  .value = values##_f32, \
                  .chosen = CHOSEN_##chosen_ },
static const struct qtype_info table[QTYPE_NUMBERS] = {
#include "libcommon/quant/qtype.def"
};
static const enum qtype in_order[] = {
#define QTYPE(ID, ...) QT_##ID,
#include "libcommon/quant/qtype.def"
};

const struct qtype_info *qtype_info(enum qtype type)
{
    return (unsigned)type < QTYPE_NUMBERS && table[type].name ? &table[type] : NULL;
}

const struct qtype_info *qtype_at(int i)
{
    return (size_t)i < sizeof in_order / sizeof *in_order ? &table[in_order[i]] : NULL;
}

/* The chosen type for each number of bits of a code; two types with the same number fail the build
 * (-Woverride-init). */
#define IF_CHOSEN_NONE(ID, bits)
#define IF_CHOSEN_SMALL(ID, bits) [bits] = &table[QT_##ID],
#define IF_CHOSEN_STEP IF_CHOSEN_SMALL
#define IF_CHOSEN_COMPARED IF_CHOSEN_SMALL
static const struct qtype_info *const chosen[] = {
#define QTYPE(ID, number, name, choice, option, codes, values, zero, low, high, scale, extra, row, sizes, group, acts, \
              stream, ymm, zmm, gpu, chosen_) IF_CHOSEN_##chosen_(ID, (low) + (high))
#include "libcommon/quant/qtype.def"
};

const struct qtype_info *qtype_chosen(int i)
{
    for (size_t bits = sizeof chosen / sizeof *chosen; bits-- > 0; )
        if (chosen[bits] && i-- == 0)
            return chosen[bits];
    return NULL;
}

const struct qtype_info *qtype_find(const char *name)
{
    for (int i = 0; i < QTYPE_NUMBERS; i++)
        if (table[i].name && strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

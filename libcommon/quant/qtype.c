/* qtype.c - the table of number formats. */
#include "libcommon/quant/qtype.h"

#include <stddef.h>
#include <string.h>

const int8_t nl4_value[16] = { -127, -97, -76, -59, -45, -31, -19, -8, 2, 12, 23, 34, 47, 62, 81, 111 };

/* Integers FROM, FROM + 1, ...: the linear types' values. */
#define RUN4(T, a)  (T)(a), (T)((a) + 1), (T)((a) + 2), (T)((a) + 3)
#define RUN16(T, a) RUN4(T, a), RUN4(T, (a) + 4), RUN4(T, (a) + 8), RUN4(T, (a) + 12)

static const float nl4_float[16] = { -127, -97, -76, -59, -45, -31, -19, -8, 2, 12, 23, 34, 47, 62, 81, 111 };

static const int8_t from_m8_i8[16] = { RUN16(int8_t, -8) };
static const float from_m8_f32[16] = { RUN16(float, -8) };
static const int8_t from_0_i8[16] = { RUN16(int8_t, 0) };
static const float from_0_f32[16] = { RUN16(float, 0) };

/* NormalFloat: Dettmers and others 2023, QLoRA, arXiv:2305.14314, appendix E; here times 127. */
#define NF4(x) (float)((x) * 127.0)
static const float nf4_float[16] = {
    NF4(-1.0), NF4(-0.6961928009986877), NF4(-0.5250730514526367), NF4(-0.39491748809814453),
    NF4(-0.28444138169288635), NF4(-0.18477343022823334), NF4(-0.09105003625154495), NF4(0.0),
    NF4(0.07958029955625534), NF4(0.16093020141124725), NF4(0.24611230194568634), NF4(0.33791524171829224),
    NF4(0.44070982933044434), NF4(0.5626170039176941), NF4(0.7229568362236023), NF4(1.0),
};
static const int8_t nf4_i8[16] = { -127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127 };

/* Lloyd-Max on groups of 32 normal numbers whose scale is searched as quantize.c does it, both
 * signs; rounded to integers.  Mean squared errors there: m2 .0952, m3 .0228, nl4's values .0054
 * (linear 4 bits .0063), m5 .00162, m6 .00042. */
static const int8_t m2_i8[4] = { -127, -44, 18, 89 };
static const float m2_float[4] = { -127, -44, 18, 89 };
static const int8_t m3_i8[8] = { -127, -77, -45, -18, 7, 33, 64, 105 };
static const float m3_float[8] = { -127, -77, -45, -18, 7, 33, 64, 105 };
static const int8_t m5_i8[32] = { RUN16(int8_t, -16), RUN16(int8_t, 0) };
static const float m5_float[32] = { RUN16(float, -16), RUN16(float, 0) };
static const int8_t m6_i8[64] = { RUN16(int8_t, -32), RUN16(int8_t, -16), RUN16(int8_t, 0), RUN16(int8_t, 16) };
static const float m6_float[64] = { RUN16(float, -32), RUN16(float, -16), RUN16(float, 0), RUN16(float, 16) };

/* e2m1 of the OCP Microscaling Formats specification 1.0, section 5.3.3, times 2 so that all are
 * integers. */
static const int8_t mxfp4_i8[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
static const float mxfp4_float[16] = { 0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6 };

static const int8_t t2_i8[4] = { -1, 0, 1, 2 };
static const float t2_float[4] = { -1, 0, 1, 2 };

static const struct qtype_info table[QT_T3 + 1] = {
    /*                                    bits  plane      scale        extra          row  group sizes    float kernels zero  value8      value */
    [QT_F32]   = { QT_F32,    "f32",    32, { 32, 0 }, SCALE_NONE, EXTRA_NONE,      0, 32,              1, 1,   0, NULL,
                   NULL },
    [QT_F16]   = { QT_F16,    "f16",    16, { 16, 0 }, SCALE_NONE, EXTRA_NONE,      0, 32,              1, 1,   0, NULL,
                   NULL },
    [QT_BF16]  = { QT_BF16,   "bf16",   16, { 16, 0 }, SCALE_NONE, EXTRA_NONE,      0, 32,              1, 1,   0, NULL,
                   NULL },
    [QT_I8]    = { QT_I8,     "i8",      8, { 8, 0 },  SCALE_F16,  EXTRA_NONE,      0, 32 | 64 | 128,   0, 1,   0, NULL,
                   NULL },
    [QT_I8R]   = { QT_I8R,    "i8r",     8, { 8, 0 },  SCALE_NONE, EXTRA_NONE,      1, 32,              0, 1,   0, NULL,
                   NULL },
    [QT_I4]    = { QT_I4,     "i4",      4, { 4, 0 },  SCALE_F16,  EXTRA_NONE,      0, 32 | 64 | 128,   0, 1,   8,
                   from_m8_i8, from_m8_f32 },
    [QT_I4M]   = { QT_I4M,    "i4m",     4, { 4, 0 },  SCALE_F16,  EXTRA_MIN_F16,   0, 32 | 64 | 128,   0, 1,   0,
                   from_0_i8,  from_0_f32 },
    [QT_I4Z]   = { QT_I4Z,    "i4z",     4, { 4, 0 },  SCALE_F16,  EXTRA_ZERO_U8,   0, 32 | 64 | 128,   0, 1,   0,
                   from_0_i8,  from_0_f32 },
    [QT_NL4]   = { QT_NL4,    "nl4",     4, { 4, 0 },  SCALE_S8,   EXTRA_NONE,      1, 32,              0, 1,   8,
                   nl4_value,  nl4_float },
    [QT_NF4]   = { QT_NF4,    "nf4",     4, { 4, 0 },  SCALE_U8,   EXTRA_NONE,      1, 64,              0, 1,   7,
                   nf4_i8,     nf4_float },
    [QT_M2]    = { QT_M2,     "m2",      2, { 2, 0 },  SCALE_S8,   EXTRA_NONE,      1, 32,              0, 1,   2,
                   m2_i8,      m2_float },
    [QT_M3]    = { QT_M3,     "m3",      3, { 2, 1 },  SCALE_S8,   EXTRA_NONE,      1, 32,              0, 1,   4,
                   m3_i8,      m3_float },
    [QT_M5]    = { QT_M5,     "m5",      5, { 4, 1 },  SCALE_S8,   EXTRA_NONE,      1, 32,              0, 1,  16,
                   m5_i8,      m5_float },
    [QT_M6]    = { QT_M6,     "m6",      6, { 4, 2 },  SCALE_S8,   EXTRA_NONE,      1, 32,              0, 1,  32,
                   m6_i8,      m6_float },
    [QT_F8E4M3] = { QT_F8E4M3, "f8e4m3",  8, { 8, 0 },  SCALE_F16,  EXTRA_NONE,      0, 32 | 64 | 128,   0, 0,   0,
                    NULL,       NULL },
    [QT_F8E5M2] = { QT_F8E5M2, "f8e5m2",  8, { 8, 0 },  SCALE_F16,  EXTRA_NONE,      0, 32 | 64 | 128,   0, 0,   0,
                    NULL,       NULL },
    [QT_FP8]   = { QT_FP8,    "fp8",     8, { 8, 0 },  SCALE_F32,  EXTRA_NONE,      0, 128,             0, 1,   0, NULL,
                   NULL },
    [QT_MXFP4] = { QT_MXFP4,  "mxfp4",   4, { 4, 0 },  SCALE_E8M0, EXTRA_NONE,      0, 32,              0, 1,   0,
                   mxfp4_i8,   mxfp4_float },
    [QT_T2]    = { QT_T2,     "t2",      2, { 2, 0 },  SCALE_F16,  EXTRA_NONE,      0, 32 | 64 | 128 | 256,   0, 1,   1,
                   t2_i8,      t2_float },
    [QT_T3]    = { QT_T3,     "t3",      2, { 0, 0 },  SCALE_F16,  EXTRA_NONE,      0, 256,             0, 1,   1,
                   t2_i8,      t2_float },
};

const struct qtype_info *qtype_info(enum qtype type)
{
    return (unsigned)type <= QT_T3 && table[type].name ? &table[type] : NULL;
}

const struct qtype_info *qtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].name && strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

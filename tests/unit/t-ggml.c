/* t-ggml.c - decoding of every GGML type against the gguf Python package, and exact conversions to
 * our own types.
 *
 * For each type 64 random blocks are decoded.  Each byte of a block is the top byte of a SplitMix64
 * number (rng.h); the seed is the type's number.  In bytes that are exponents of scales bit 6 is
 * cleared, so that all values are finite.  The expected hash is the 64-bit FNV-1a of the bytes of
 * the f32 values that gguf.quants.dequantize 0.19.0 returns.  That package lacks q8_1, q8_k and
 * q1_0, which were computed in numpy: q8_1 and q8_k as d * code, q1_0 as d or -d, chosen by the
 * bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/quantize.h"

enum { N_BLOCKS = 64 };

static const struct golden {
    int type, block, block_bytes;
    int scale[2];               /* bytes with a scale's exponent; 0: none */
    uint64_t fnv;
} golden[] = {
    { GGML_Q4_0, 32, 18, { 1, 0 }, 0x3e18fc2fc2806df0u },
    { GGML_Q4_1, 32, 20, { 1, 3 }, 0x7c0d1ea4b24388d8u },
    { GGML_Q5_0, 32, 22, { 1, 0 }, 0x1082e3a4f715b9aau },
    { GGML_Q5_1, 32, 24, { 1, 3 }, 0x82e330fd821325d1u },
    { GGML_Q8_0, 32, 34, { 1, 0 }, 0x69d3967cd3efaffdu },
    { GGML_Q8_1, 32, 36, { 1, 3 }, 0xc3e2b7f17e34dae4u },
    { GGML_Q2_K, 256, 84, { 81, 83 }, 0xf44e31cb3156635fu },
    { GGML_Q3_K, 256, 110, { 109, 0 }, 0x68b61712c3d14022u },
    { GGML_Q4_K, 256, 144, { 1, 3 }, 0xc73027d4f8595a55u },
    { GGML_Q5_K, 256, 176, { 1, 3 }, 0x6fceb6f3a12c8e3du },
    { GGML_Q6_K, 256, 210, { 209, 0 }, 0x08caa9f714a110d5u },
    { GGML_Q8_K, 256, 292, { 3, 0 }, 0xc91ef3ebebc3df98u },
    { GGML_IQ1_S, 256, 50, { 1, 0 }, 0xe6542b8d90db8568u },
    { GGML_IQ1_M, 256, 56, { 55, 0 }, 0xe8e9797182b22b68u },
    { GGML_IQ2_XXS, 256, 66, { 1, 0 }, 0xc78e52141d00cf38u },
    { GGML_IQ2_XS, 256, 74, { 1, 0 }, 0x9be72fe8cd7bde9fu },
    { GGML_IQ2_S, 256, 82, { 1, 0 }, 0x0b9c30a8d5a50385u },
    { GGML_IQ3_XXS, 256, 98, { 1, 0 }, 0x04ac29d48677b44bu },
    { GGML_IQ3_S, 256, 110, { 1, 0 }, 0xeb3ea625524d68c6u },
    { GGML_IQ4_NL, 32, 18, { 1, 0 }, 0xcf0adcb70db6acacu },
    { GGML_IQ4_XS, 256, 136, { 1, 0 }, 0x6206a2c62c0c82edu },
    { GGML_TQ1_0, 256, 54, { 53, 0 }, 0x702eadc1e3aadcceu },
    { GGML_TQ2_0, 256, 66, { 65, 0 }, 0xb1745b9cda84b1dcu },
    { GGML_MXFP4, 32, 17, { 0, 0 }, 0xe03aee6a10bd2d3du },
    { GGML_NVFP4, 64, 36, { 0, 0 }, 0xd91df9cb22bdb64bu },
    { GGML_Q1_0, 128, 18, { 1, 0 }, 0x9a45cb248469f4a5u },
};

static uint8_t *random_blocks(const struct golden *g)
{
    size_t bytes = (size_t)g->block_bytes;
    uint8_t *p = malloc(N_BLOCKS * bytes);
    struct rng r = { (uint64_t)g->type };
    for (size_t i = 0; i < N_BLOCKS * bytes; i++)
        p[i] = (uint8_t)(rng_u64(&r) >> 56);
    for (size_t i = 0; i < N_BLOCKS; i++)
        for (int j = 0; j < 2; j++)
            if (g->scale[j])
                p[i * bytes + (size_t)g->scale[j]] &= 0xbf;
    return p;
}

static uint64_t fnv1a(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static void blocks_decode_to_the_golden_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        const struct golden *g = &golden[i];
        const struct ggml_type_info *t = ggml_type_info(g->type);
        assert_non_null(t);
        assert_int_equal(t->block, g->block);
        assert_int_equal(t->block_bytes, g->block_bytes);
        size_t n = (size_t)(N_BLOCKS * g->block);
        uint8_t *p = random_blocks(g);
        float *y = malloc((n + 1) * sizeof *y);
        y[n] = 12345;
        ggml_decode(g->type, p, y, (int64_t)n);
        assert_true(y[n] == 12345);
        if (fnv1a(y, n * sizeof *y) != g->fnv)
            fail_msg("%s: other values than the reference's", t->name);
        free(p);
        free(y);
    }
}

static void exactly_the_known_types_have_a_row(void **state)
{
    (void)state;
    int known = 0;
    for (int type = -1; type < 2000; type++)
        if (ggml_type_info(type)) {
            known++;
            assert_int_equal(ggml_type_info(type)->type, type);
        }
    assert_int_equal(known, sizeof golden / sizeof *golden + 16 + 9);
    assert_null(ggml_type_info(4));         /* Q4_2, removed from ggml */
    assert_null(ggml_type_info(31));        /* Q4_0_4_4 */
    assert_string_equal(ggml_type_info(GGML_IQ2_XXS)->name, "IQ2_XXS");
}

/* Decode a type whose blocks have one element, from an unaligned address. */
static float one(int type, const void *value)
{
    uint8_t buf[9];
    float y;
    memcpy(buf + 1, value, (size_t)ggml_type_info(type)->block_bytes);
    ggml_decode(type, buf + 1, &y, 1);
    return y;
}

static void plain_numbers_are_converted_to_f32(void **state)
{
    (void)state;
    assert_true(one(GGML_F32, &(float){ 1.25f }) == 1.25f);
    assert_true(one(GGML_F64, &(double){ -0.1 }) == -0.1f);
    assert_true(one(GGML_F16, &(uint16_t){ 0xbe00 }) == -1.5f);
    assert_true(one(GGML_BF16, &(uint16_t){ 0xc040 }) == -3.0f);
    assert_true(one(GGML_I8, &(int8_t){ -128 }) == -128);
    assert_true(one(GGML_I16, &(int16_t){ -30000 }) == -30000);
    assert_true(one(GGML_I32, &(int32_t){ -2000000001 }) == -2e9f);
    assert_true(one(GGML_I64, &(int64_t){ INT64_MIN }) == -0x1p63f);
    assert_true(one(SRC_U8, &(uint8_t){ 200 }) == 200);
    assert_true(one(SRC_U16, &(uint16_t){ 50000 }) == 50000);
    assert_true(one(SRC_U32, &(uint32_t){ 0xffffffff }) == 0x1p32f);
    assert_true(one(SRC_U64, &(uint64_t){ UINT64_MAX }) == 0x1p64f);
    assert_true(one(SRC_BOOL, &(uint8_t){ 1 }) == 1 && one(SRC_BOOL, &(uint8_t){ 0 }) == 0);
}

/* OCP 8-bit floating point 1.0, table 1 (e4m3: bias 7, no infinity; e5m2: bias 15) and
 * Microscaling 1.0 (e8m0: bias 127). */
static void eight_bit_floats_are_as_in_the_ocp_tables(void **state)
{
    (void)state;
    for (int i = 0; i < 256; i++) {
        uint8_t b = (uint8_t)i;
        int sign = b & 0x80 ? -1 : 1, exp = b >> 3 & 15, man = b & 7;
        double e4m3 = (b & 0x7f) == 0x7f ? NAN : sign * (exp ? ldexp(8 + man, exp - 10) : ldexp(man, -9));
        exp = b >> 2 & 31;
        man = b & 3;
        double e5m2 = exp == 31 ? (man ? NAN : sign * INFINITY)
                                : sign * (exp ? ldexp(4 + man, exp - 17) : ldexp(man, -16));
        double e8m0 = b == 255 ? NAN : ldexp(1, b - 127);
        double want[3] = { e4m3, e5m2, e8m0 };
        int type[3] = { SRC_F8_E4M3, SRC_F8_E5M2, SRC_F8_E8M0 };
        for (int j = 0; j < 3; j++) {
            float got = one(type[j], &b);
            if (isnan(want[j]) ? !isnan(got) : (double)got != want[j])
                fail_msg("%s %02x: %a, not %a", ggml_type_info(type[j])->name, b, (double)got, want[j]);
        }
    }
}

/* For each integer type that ggml_exact_type() names, codes and scales give every value bit for
 * bit. */
static void exact_types_give_every_value_bit_for_bit(void **state)
{
    (void)state;
    int found = 0;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        const struct golden *g = &golden[i];
        int group_size, type = ggml_exact_type(g->type, &group_size);
        if (type < 0)
            continue;
        found++;
        /* 480, 512, or 960 for blocks of 64 */
        int rows = g->block < 256 ? 4 : 32, cols = N_BLOCKS / rows * g->block - (g->block < 256 ? g->block : 0);
        size_t row_bytes = (size_t)(cols / g->block * g->block_bytes);
        uint8_t *p = random_blocks(g);
        for (int b = 0; b < N_BLOCKS && g->type == GGML_MXFP4; b++)
            p[(size_t)b * 17] = (uint8_t)(p[(size_t)b * 17] == 255 ? 254 : p[(size_t)b * 17]);       /* no scale */
        for (int b = 0; b < 4 * N_BLOCKS && g->type == GGML_NVFP4; b++)
            p[b / 4 * 36 + b % 4] = (uint8_t)(b == 255 ? 0 : b);                /* every scale; 255 is none */
        struct mat m;
        struct qrow q;
        const int act_group = qtype_takes_floats(qtype_info((enum qtype)type)) ? 0 : 128;
        assert_int_equal(mat_init(&m, (enum qtype)type, group_size, act_group, rows, cols, NULL), 0);
        assert_int_equal(qrow_init(&q, &m, NULL), 0);
        uint8_t *data = aligned_alloc(64, m.size);
        float *want = malloc((size_t)cols * sizeof *want), *got = malloc((size_t)cols * sizeof *got);
        tile_clear(&m, data);
        m.data = data;
        for (int r = 0; r < rows; r++) {
            ggml_to_qrow(g->type, p + (size_t)r * row_bytes, &m, &q);
            tile_put(&m, data, r, &q);
        }
        for (int r = 0; r < rows; r++) {
            ggml_decode(g->type, p + (size_t)r * row_bytes, want, cols);
            mat_decode_row(&m, r, got);
            for (int k = 0; k < cols; k++)
                if (f32_bits(want[k]) != f32_bits(got[k]))
                    fail_msg("%s row %d col %d: %a, not %a", ggml_type_info(g->type)->name, r, k, (double)got[k],
                             (double)want[k]);
        }
        qrow_release(&q);
        free(data);
        free(want);
        free(got);
        free(p);
    }
    assert_int_equal(found, 10);
    int group_size;
    assert_int_equal(ggml_exact_type(GGML_F16, &group_size), QT_F16);
    assert_int_equal(ggml_exact_type(GGML_BF16, &group_size), QT_BF16);
    assert_int_equal(ggml_exact_type(GGML_F32, &group_size), QT_F32);
    assert_int_equal(ggml_exact_type(GGML_Q4_K, &group_size), -1);
    assert_int_equal(ggml_exact_type(GGML_Q5_1, &group_size), -1);
    assert_int_equal(ggml_exact_type(GGML_MXFP4, &group_size), QT_MXFP4);
    assert_int_equal(ggml_exact_type(GGML_NVFP4, &group_size), QT_NVFP4);
    assert_int_equal(group_size, 16);
}

/* TQ1_0 and TQ2_0 are converted exactly to other types and groups; a block of TQ2_0 with the value
 * 2 does not fit t3. */
static void ternary_blocks_are_converted_exactly(void **state)
{
    (void)state;
    static const struct { enum qtype type; int group_size; } to[] = { { QT_T2, 32 }, { QT_T2, 128 }, { QT_T2, 256 },
                                                                      { QT_T3, 256 }, { QT_I4, 32 }, { QT_I4, 128 } };
    enum { COLS = 512 };
    uint8_t blocks[2][2][66];
    float want[COLS], got[COLS];
    uint64_t seed = 7;
    for (int t = 0; t < 2; t++)
        for (int b = 0; b < 2; b++) {
            uint8_t *p = &blocks[t][0][0] + b * (t ? 66 : 54);
            for (int i = 0; i < (t ? 64 : 52); i++)
                p[i] = t ? (uint8_t)((seed = seed * 6364136223846793005u + 1) >> 33 & 0x55)
                         : (uint8_t)((seed = seed * 6364136223846793005u + 1) >> 33);
            p[t ? 64 : 52] = (uint8_t)(0x11 + b);
            p[t ? 65 : 53] = 0x2a;
        }
    for (size_t i = 0; i < 2 * sizeof to / sizeof *to; i++) {
        const int source = i % 2 ? GGML_TQ2_0 : GGML_TQ1_0;
        struct mat m;
        struct qrow q;
        assert_int_equal(mat_init(&m, to[i / 2].type, to[i / 2].group_size, 128, 1, COLS, NULL), 0);
        assert_int_equal(qrow_init(&q, &m, NULL), 0);
        uint8_t *data = aligned_alloc(64, m.size);
        tile_clear(&m, data);
        ggml_to_qrow(source, blocks[i % 2], &m, &q);
        tile_put(&m, data, 0, &q);
        m.data = data;
        mat_decode_row(&m, 0, got);
        ggml_decode(source, blocks[i % 2], want, COLS);
        assert_memory_equal(got, want, sizeof want);
        qrow_release(&q);
        free(data);
    }
    assert_true(ggml_fits_t3(GGML_TQ1_0, blocks[0], 2 * 54) && ggml_fits_t3(GGML_TQ2_0, blocks[1], 2 * 66) &&
                !ggml_fits_t3(GGML_Q4_0, blocks[1], 36));
    blocks[1][1][64] = 0xff;            /* a scale, no code */
    assert_true(ggml_fits_t3(GGML_TQ2_0, blocks[1], 2 * 66));
    blocks[1][1][63] |= 0x30;
    assert_false(ggml_fits_t3(GGML_TQ2_0, blocks[1], 2 * 66));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_decode_to_the_golden_values),
        cmocka_unit_test(exactly_the_known_types_have_a_row),
        cmocka_unit_test(plain_numbers_are_converted_to_f32),
        cmocka_unit_test(eight_bit_floats_are_as_in_the_ocp_tables),
        cmocka_unit_test(exact_types_give_every_value_bit_for_bit),
        cmocka_unit_test(ternary_blocks_are_converted_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* t-tile.c - kernel order: every type at awkward sizes against a slow reading of tile.h, golden
 * byte positions, refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/quantize.h"
#include "libcommon/quant/tile.h"
#include "tests/lib/encode.h"

static const enum qtype int_types[] = { QT_I8, QT_I8R, QT_I4, QT_I4M, QT_I4Z, QT_NL4, QT_NF4, QT_M2, QT_M3, QT_M5,
                                        QT_M6, QT_MXFP4, QT_T2, QT_T3, QT_FP8, QT_NVFP4, QT_MXFP8 };
static const int sizes_rows[] = { 1, 31, 32, 33 }, sizes_cols[] = { 1, 31, 32, 33, 100, 576 };

/* Offsets in a tile as tile.h describes them: found by a walk over the tile, byte by byte, without
 * any function of tile.c. */
struct place { size_t scale, extra, codes; };

static struct place walk(const struct qtype_info *t, int n_groups, int group_size, int group, int row)
{
    int per_unit = t->scale == SCALE_NONE || t->scale == SCALE_F32 ||
                   group_size == 256 ? 1 : t->scale == SCALE_F16 ? 2 : 4;
    size_t scale_bytes = t->scale == SCALE_NONE ? 0 : t->scale == SCALE_F32 ? 4 : t->scale == SCALE_F16 ? 2 : 1;
    size_t extra_bytes = t->extra == EXTRA_NONE ? 0 : t->extra == EXTRA_MIN_F16 ? 2 : 1;
    size_t at = t->row_scale ? 32 * 4 : 0;
    struct place p = { 0, 0, 0 };
    for (int g0 = 0; g0 < n_groups; g0 += per_unit) {
        int n = n_groups - g0 < per_unit ? n_groups - g0 : per_unit;
        for (int area = 0; area < 2; area++) {
            size_t size = area ? extra_bytes : scale_bytes, start = at;
            for (int quad = 0; quad < 8; quad++)
                for (int g = g0; g < g0 + n; g++)
                    for (int r = 4 * quad; r < 4 * quad + 4; r++, at += size)
                        if (g == group && r == row)
                            *(area ? &p.extra : &p.scale) = at;
            while ((at - start) % 64)
                at++;
        }
        for (int g = g0; g < g0 + n; g++, at += t->type == QT_T3 ? 13 * 128
                                                                 : (size_t)group_size * 32 * (size_t)t->bits / 8)
            if (g == group)
                p.codes = at;
    }
    return p;
}

static unsigned walk_code(const struct qtype_info *t, int group_size, const uint8_t *codes, int row, int k)
{
    unsigned code = 0, shift = 0;
    if (t->type == QT_T3) {             /* recover the base-3 number from the byte, then read its digits */
        unsigned v = codes[k / 20 * 128 + 4 * row + k % 4] * 243u / 256;
        for (int i = 4; i > k % 20 / 4; i--)
            v /= 3;
        return v % 3;
    }
    for (int i = 0; i < 2 && t->plane[i]; i++) {
        int b = t->plane[i], per_line = 32 / b, in_line = k % per_line;
        unsigned byte = codes[k / per_line * 128 + 4 * row + in_line % 4];
        code |= (byte >> (b * (in_line / 4)) & ((1u << b) - 1)) << shift;
        codes += (size_t)group_size / (size_t)per_line * 128;
        shift += (unsigned)b;
    }
    return code;
}

static void random_row(struct rng *r, const struct mat *m, struct qrow *q)
{
    const struct qtype_info *t = qtype_info(m->type);
    for (int k = 0; k < m->cols_padded; k++)
        q->code[k] = (uint8_t)(k < m->cols ? (t->type == QT_T3 ? rng_u64(r) % 3 : t->codes == CODES_E4M3
                                              ? rng_u64(r) % 127 | (rng_u64(r) & 128)
                                              : rng_u64(r) & ((1u << t->bits) - 1)) : (unsigned)t->code_zero);
    q->row_scale = t->row_scale ? (float)(rng_double(r) - 0.5) : 1;
    for (int g = 0; g < m->n_groups; g++) {
        q->scale[g] = t->scale == SCALE_NONE ? 1 : t->scale == SCALE_F32 ? (float)(rng_double(r) - 0.5) : t->scale ==
            SCALE_F16 ? f16_to_f32(f32_to_f16((float)rng_double(r)))
                    : t->scale == SCALE_E4M3 ? f8e4m3_to_f32((f8e4m3)(rng_u64(r) % 127))
                    : t->scale == SCALE_E8M0 ? ldexpf(1, (int)(rng_u64(r) % 255) - 127)
                    : t->scale == SCALE_S8 ? (float)((int)(rng_u64(r) % 255) - 127) : (float)(rng_u64(r) % 256);
        if (q->extra)
            q->extra[g] = t->extra == EXTRA_ZERO_U8 ? (float)(rng_u64(r) % 16)
                                                    : f16_to_f32(f32_to_f16((float)(rng_double(r) - 0.5)));
    }
}

/* the value of a code according to tile.h and qtype.h */
static float value_of(const struct qtype_info *t, const struct qrow *q, int group, unsigned code)
{
    float s = t->row_scale ? q->row_scale * q->scale[group] : q->scale[group];
    switch (t->type) {
    case QT_I8: case QT_I8R: return s * (float)(int8_t)code;
    case QT_I4:  return s * (float)((int)code - 8);
    case QT_I4M: return s * (float)code + q->extra[group];
    case QT_I4Z: return s * ((float)code - q->extra[group]);
    case QT_NL4: return s * (float)nl4_value[code];
    /* OCP 8-bit floating point: sign, 4 bits of exponent of bias 7, 3 of mantissa */
    case QT_FP8: case QT_MXFP8: {
        const int exponent = (int)(code >> 3 & 15), mantissa = (int)(code & 7);
        const float value = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
        return s * (code & 128 ? -value : value);
    }
    case QT_M5:  return s * (float)((int)code - 16);
    case QT_M6:  return s * (float)((int)code - 32);
    default:     return s * t->value[code];
    }
}

static void check_matrix(enum qtype type, int group_size, int act_group, int rows, int cols)
{
    const struct qtype_info *t = qtype_info(type);
    struct mat m;
    struct err e;
    assert_int_equal(mat_init(&m, type, group_size, act_group, rows, cols, &e), 0);
    int pad = group_size > act_group ? group_size : act_group;
    pad = pad > 32 ? pad : 32;
    assert_int_equal(m.cols_padded, (cols + pad - 1) / pad * pad);
    assert_int_equal(m.n_groups * group_size, m.cols_padded);
    assert_int_equal(m.tile_bytes % 64, 0);
    assert_int_equal(m.size, m.tile_bytes * (size_t)((rows + 31) / 32));

    uint8_t *data = aligned_alloc(64, m.size);
    memset(data, 0xee, m.size);
    for (int i = 0; i < m.n_tiles; i++)
        tile_clear(&m, data + (size_t)i * m.tile_bytes);
    m.data = data;
    struct qrow *q = malloc((size_t)rows * sizeof *q), back;
    struct rng r = { 7 };
    assert_int_equal(qrow_init(&back, &m, &e), 0);
    for (int i = 0; i < rows; i++) {
        assert_int_equal(qrow_init(&q[i], &m, &e), 0);
        random_row(&r, &m, &q[i]);
        tile_put(&m, data + (size_t)(i / 32) * m.tile_bytes, i % 32, &q[i]);
    }
    float *out = malloc((size_t)(cols + 1) * sizeof *out), *out2 = malloc((size_t)cols * sizeof *out);
    for (int i = 0; i < rows; i++) {
        const uint8_t *tile = data + (size_t)(i / 32) * m.tile_bytes;
        out[cols] = 12345;
        mat_decode_row(&m, i, out);
        assert_true(out[cols] == 12345);
        tile_get(&m, tile, i % 32, &back);
        qrow_decode(&m, &back, out2);
        assert_memory_equal(out, out2, (size_t)cols * sizeof *out);
        assert_true(back.row_scale == q[i].row_scale);
        for (int g = 0; g < m.n_groups; g++) {
            struct place p = walk(t, m.n_groups, group_size, g, i % 32);
            assert_true(back.scale[g] == q[i].scale[g]);
            if (t->scale != SCALE_NONE)
                assert_int_equal(mat_scale_offset(&m, g, i % 32), p.scale);
            if (t->extra != EXTRA_NONE) {
                assert_int_equal(mat_extra_offset(&m, g, i % 32), p.extra);
                assert_true(back.extra[g] == q[i].extra[g]);
            }
            assert_int_equal(mat_group_offset(&m, g), p.codes);
            for (int k = 0; k < group_size; k++) {
                int col = g * group_size + k;
                assert_int_equal(walk_code(t, group_size, tile + p.codes, i % 32, k), q[i].code[col]);
                assert_int_equal(back.code[col], q[i].code[col]);
                if (col < cols && f32_bits(out[col]) != f32_bits(value_of(t, &q[i], g, q[i].code[col])))
                    fail_msg("%s %dx%d row %d col %d: %a", t->name, rows, cols, i, col, (double)out[col]);
            }
        }
    }
    /* rows beyond the last: scale 0 and code_zero */
    for (int i = rows; i < 32 * m.n_tiles; i++) {
        tile_get(&m, data + (size_t)(i / 32) * m.tile_bytes, i % 32, &back);
        assert_true(t->row_scale ? back.row_scale == 0 : back.scale[0] == (t->scale == SCALE_E8M0 ? 0x1p-127f : 0));
        for (int k = 0; k < m.cols_padded; k++)
            assert_int_equal(back.code[k], t->code_zero);
    }
    for (int i = 0; i < rows; i++)
        qrow_release(&q[i]);
    qrow_release(&back);
    free(q);
    free(out);
    free(out2);
    free(data);
}

static void integer_types_decode_as_documented(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof int_types / sizeof *int_types; i++) {
        const int floats = qtype_takes_floats(qtype_info(int_types[i]));
        for (int g = 16; g <= 256; g *= 2)
            for (int a = int_types[i] == QT_T3 || floats ? 128 : 32; a <= 128; a *= 2)
                for (size_t r = 0; r < 4; r++)
                    for (size_t c = 0; c < 6; c++)
                        if (qtype_info(int_types[i])->group_sizes & (unsigned)g)
                            check_matrix(int_types[i], g, floats ? 0 : a, sizes_rows[r], sizes_cols[c]);
    }
}

static void float_types_decode_as_documented(void **state)
{
    (void)state;
    struct rng rng = { 3 };
    for (int type = QT_F32; type <= QT_BF16; type++)
        for (size_t r = 0; r < 4; r++)
            for (size_t c = 0; c < 6; c++) {
                int rows = sizes_rows[r], cols = sizes_cols[c];
                size_t ldx = (size_t)cols + 3, width = type == QT_F32 ? 4 : 2, per_line = 4 / width;
                struct mat m;
                struct err e;
                assert_int_equal(mat_init(&m, (enum qtype)type, 32, 0, rows, cols, &e), 0);
                assert_int_equal(m.tile_bytes, (size_t)m.cols_padded * 32 * width);
                float *x = malloc((size_t)rows * ldx * sizeof *x), *out = malloc((size_t)cols * sizeof *out);
                uint8_t *data = aligned_alloc(64, m.size);
                for (size_t i = 0; i < (size_t)rows * ldx; i++)
                    x[i] = (float)(rng_double(&rng) - 0.5);
                mat_encode_float(&m, data, x, ldx);
                m.data = data;
                for (int i = 0; i < rows; i++) {
                    mat_decode_row(&m, i, out);
                    for (int k = 0; k < m.cols_padded; k++) {
                        float f = k < cols ? x[(size_t)i * ldx + (size_t)k] : 0;
                        uint16_t h = type == QT_F16 ? f32_to_f16(f) : f32_to_bf16(f);
                        float want = type == QT_F32 ? f : type == QT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
                        const uint8_t *p = data + (size_t)(i / 32) * m.tile_bytes + (size_t)k / per_line * 128
                                         + (size_t)(i % 32) * 4 + (size_t)k % per_line * width;
                        assert_memory_equal(p, type == QT_F32 ? (void *)&f : (void *)&h, width);
                        if (k < cols)
                            assert_int_equal(f32_bits(out[k]), f32_bits(want));
                    }
                }
                free(x);
                free(out);
                free(data);
            }
}

/* nl4, 33 rows of 100 columns: the columns are padded to 4 groups of 32, which make one unit per
 * tile: 128 bytes of row scales, 128 of scales, 4 x 512 of codes. */
static void nl4_has_the_documented_bytes(void **state)
{
    (void)state;
    struct mat m;
    struct qrow q;
    assert_int_equal(mat_init(&m, QT_NL4, 32, 32, 33, 100, NULL), 0);
    assert_int_equal(m.cols_padded, 128);
    assert_int_equal(m.tile_bytes, 128 + 128 + 4 * 512);
    assert_int_equal(m.size, 2 * 2304);
    uint8_t tile[2304];
    tile_clear(&m, tile);
    assert_int_equal(tile[255], 0);
    assert_int_equal(tile[256], 0x88);
    assert_int_equal(qrow_init(&q, &m, NULL), 0);
    memset(q.code, 8, 128);
    q.row_scale = 1;
    for (int g = 0; g < 4; g++)
        q.scale[g] = (float)(g - 2);
    q.code[0] = 1;              /* line 0: k 0..3 low, 4..7 high nibbles */
    q.code[5] = 2;
    q.code[8] = 3;              /* line 1 */
    q.code[32 + 31] = 4;        /* group 1, line 3, byte 3, high */
    tile_put(&m, tile, 6, &q);
    assert_memory_equal(tile + 4 * 6, &(float){ 1 }, 4);
    /* row 6 is place 2 of quad 1 (four rows); a quad has 4 groups x 4 rows = 16 bytes of scales */
    assert_int_equal((int8_t)tile[128 + 16 + 2], -2);
    assert_int_equal((int8_t)tile[128 + 16 + 4 + 2], -1);
    assert_int_equal((int8_t)tile[128 + 16 + 12 + 2], 1);
    assert_int_equal(tile[256 + 24], 0x81);
    assert_int_equal(tile[256 + 25], 0x28);
    assert_int_equal(tile[256 + 128 + 24], 0x83);
    assert_int_equal(tile[256 + 512 + 3 * 128 + 24 + 3], 0x48);
    int others = 0;
    for (int i = 256; i < 2304; i++)
        others += tile[i] != 0x88;
    assert_int_equal(others, 4);
    qrow_release(&q);
}

/* i4m, 3 groups of 32 columns.  The first unit has 2 groups (128 bytes of scales, 128 of minima,
 * 1024 of codes), the second has 1 (64, 64, 512). */
static void i4m_has_the_documented_bytes(void **state)
{
    (void)state;
    struct mat m;
    assert_int_equal(mat_init(&m, QT_I4M, 32, 32, 32, 96, NULL), 0);
    assert_int_equal(m.tile_bytes, 128 + 128 + 1024 + 64 + 64 + 512);
    assert_int_equal(mat_scale_offset(&m, 1, 5), (1 * 8 + 4 + 1) * 2);
    assert_int_equal(mat_extra_offset(&m, 1, 5), 128 + (1 * 8 + 4 + 1) * 2);
    assert_int_equal(mat_group_offset(&m, 1), 256 + 512);
    assert_int_equal(mat_scale_offset(&m, 2, 5), 1280 + 10);
    assert_int_equal(mat_extra_offset(&m, 2, 5), 1280 + 64 + 10);
    assert_int_equal(mat_group_offset(&m, 2), 1280 + 128);
    assert_int_equal(mat_unit_n(&m, 0), 2);
    assert_int_equal(mat_unit_n(&m, 1), 1);
    assert_int_equal(mat_unit_offset(&m, 1), 1280);
    /* i4z: a unit's 64 zero points after its 128 bytes of scales */
    assert_int_equal(mat_init(&m, QT_I4Z, 64, 64, 32, 192, NULL), 0);
    assert_int_equal(m.tile_bytes, 128 + 64 + 2 * 1024 + 64 + 64 + 1024);
    assert_int_equal(mat_extra_offset(&m, 2, 31), 128 + 64 + 2048 + 64 + 31);
}

static void wrong_matrices_are_refused(void **state)
{
    (void)state;
    static const struct { int type, group, act; int64_t rows, cols; enum err_code code; const char *says; } cases[] = {
        { 99, 32, 32, 32, 32, ERR_UNSUPPORTED, "99 is unknown" },
        { QT_T3, 256, 32, 32, 256, ERR_SHAPE, "t3: activation group is 32, not 128" },
        { QT_T3, 128, 128, 32, 256, ERR_SHAPE, "group size is 128, not 256" },
        { QT_F8E5M2, 32, 32, 32, 256, ERR_UNSUPPORTED, "f8e5m2 is reserved" },
        { QT_F8E4M3, 32, 32, 32, 256, ERR_UNSUPPORTED, "f8e4m3 is reserved" },
        { QT_NL4, 64, 32, 32, 32, ERR_SHAPE, "group size is 64, not 32" },
        { QT_NF4, 32, 32, 32, 32, ERR_SHAPE, "group size is 32, not 64" },
        { QT_I4, 96, 32, 32, 32, ERR_SHAPE, "group size is 96, not 32, 64 or 128" },
        { QT_I4, 0, 32, 32, 32, ERR_SHAPE, "group size is 0" },
        { QT_I4, -2147483647 - 1, 32, 32, 32, ERR_SHAPE, "group size is -2147483648" },
        { QT_I8, 32, 0, 32, 32, ERR_SHAPE, "activation group is 0" },
        { QT_I8, 32, 48, 32, 32, ERR_SHAPE, "activation group is 48" },
        { QT_F16, 32, 32, 32, 32, ERR_SHAPE, "activation group is 32, not 0" },
        { QT_I8, 32, 32, 0, 32, ERR_SHAPE, "0 x 32" },
        { QT_I8, 32, 32, 32, -1, ERR_SHAPE, "32 x -1" },
        { QT_I8, 32, 32, (int64_t)1 << 31, 32, ERR_SHAPE, "2147483648 x 32" },
        { QT_I8, 32, 32, 32, INT64_MAX, ERR_SHAPE, "x 9223372036854775807" },
        { QT_F32, 32, 0, 2147483000, 2147483000, ERR_SHAPE, "does not fit into memory" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mat m;
        struct err e = { 0 };
        assert_int_equal(mat_init(&m, (enum qtype)cases[i].type, cases[i].group, cases[i].act, cases[i].rows,
                                  cases[i].cols, &e), -1);
        if (e.code != cases[i].code || !strstr(e.msg, cases[i].says))
            fail_msg("case %zu: code %d, '%s'", i, e.code, e.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integer_types_decode_as_documented), cmocka_unit_test(float_types_decode_as_documented),
        cmocka_unit_test(nl4_has_the_documented_bytes), cmocka_unit_test(i4m_has_the_documented_bytes),
        cmocka_unit_test(wrong_matrices_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

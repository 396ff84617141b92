/* t-quantize.c - quantizers: the nearest codes, scales that a type can store, the error of search
 * against that of absmax, extreme inputs, the same bits on every machine. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/quantize.h"
#include "libcommon/quant/ternary.h"

static const enum qtype types[] = { QT_I8, QT_I8R, QT_I4, QT_I4M, QT_I4Z, QT_NL4, QT_NF4, QT_M2, QT_M3, QT_M5, QT_M6,
                                    QT_T2, QT_T3, QT_MXFP4, QT_NVFP4, QT_MXFP8 };
enum { N_TYPES = sizeof types / sizeof *types, COLS = 576 };

/* Values that are nearly normal, from exact arithmetic so that every machine has the same input:
 * each is the sum of 12 multiples of 2^-10. */
static void normal_row(struct rng *r, float *x, int n)
{
    for (int i = 0; i < n; i++) {
        int sum = 0;
        for (int j = 0; j < 12; j++)
            sum += (int)(rng_u64(r) >> 54);
        x[i] = (float)(sum - 6 * 1024) / 1024;
    }
}

struct fixture {
    struct mat m;
    struct qrow q;
    float *out;
};

static void setup(struct fixture *f, enum qtype type, int act_group, int cols)
{
    const struct qtype_info *t = qtype_info(type);
    /* 32, else the least */
    int group_size = t->group_sizes & 32 ? 32 : (int)(t->group_sizes & -t->group_sizes);
    act_group = type == QT_T3 ? 128 : qtype_takes_floats(t) ? 0 : act_group;
    assert_int_equal(mat_init(&f->m, type, group_size, act_group, 1, cols, NULL), 0);
    assert_int_equal(qrow_init(&f->q, &f->m, NULL), 0);
    f->out = malloc((size_t)cols * sizeof *f->out);
}

static void teardown(struct fixture *f)
{
    qrow_release(&f->q);
    free(f->out);
}

/* Quantize and decode x; returns the squared error, weighted with the importance if there is
 * one. */
static double error_of(struct fixture *f, const float *x, const float *importance, enum quant_effort effort)
{
    double sum = 0;
    quantize_row(&f->m, x, importance, effort, &f->q);
    qrow_decode(&f->m, &f->q, f->out);
    for (int k = 0; k < f->m.cols; k++) {
        double d = (double)x[k] - (double)f->out[k];
        sum += d * d * (importance ? (double)importance[k] : 1);
    }
    return sum;
}

/* Scales and extras have values that the file can store.  Columns of padding have code_zero, and
 * groups that are padding only have scale 0. */
static void check_storable(const struct fixture *f)
{
    const struct qtype_info *t = qtype_info(f->m.type);
    assert_true(isfinite(f->q.row_scale) && f->q.row_scale >= 0 && (t->row_scale || f->q.row_scale == 1));
    for (int g = 0; g < f->m.n_groups; g++) {
        float s = f->q.scale[g], limit = t->scale == SCALE_S8 ? 127 : 255;
        if (t->scale == SCALE_NONE)
            assert_true(s == 1);
        else if (t->scale == SCALE_F16)
            assert_true(isfinite(s) && f16_to_f32(f32_to_f16(s)) == s);
        else if (t->scale == SCALE_E4M3)
            assert_true(s >= 0 && s <= 448 && f8e4m3_to_f32(f32_to_f8e4m3(s)) == s);
        else if (t->scale == SCALE_E8M0)
            assert_true(s >= 0x1p-127f && s <= 0x1p127f && frexpf(s, &(int){ 0 }) == 0.5f);
        else
            assert_true(s == rintf(s) && fabsf(s) <= limit && (t->scale == SCALE_S8 || s >= 0));
        if (t->extra == EXTRA_MIN_F16)
            assert_true(isfinite(f->q.extra[g]) && f16_to_f32(f32_to_f16(f->q.extra[g])) == f->q.extra[g]);
        if (t->extra == EXTRA_ZERO_U8)
            assert_true(f->q.extra[g] == rintf(f->q.extra[g]) && f->q.extra[g] >= 0 && f->q.extra[g] <= 15);
        if (g * f->m.group_size >= f->m.cols && t->scale != SCALE_NONE)
            assert_true(s == (t->scale == SCALE_E8M0 ? 0x1p-127f : 0));
    }
    for (int k = f->m.cols; k < f->m.cols_padded; k++)
        assert_int_equal(f->q.code[k], t->code_zero);
}

/* Each value gets the code that is nearest to it (up to the rounding of this test's own
 * comparison). */
static void codes_are_the_nearest(void **state)
{
    (void)state;
    float x[100];
    for (int i = 0; i < N_TYPES; i++) {
        const struct qtype_info *t = qtype_info(types[i]);
        struct rng r = { 5 };
        struct fixture f;
        setup(&f, types[i], 128, 100);
        for (int n = 0; n < 20; n++) {
            normal_row(&r, x, 100);
            for (int effort = QUANT_ABSMAX; effort <= QUANT_SEARCH; effort++) {
                error_of(&f, x, NULL, (enum quant_effort)effort);
                check_storable(&f);
                for (int k = 0; k < 100; k++) {
                    int g = k / f.m.group_size;
                    float extra = f.q.extra ? f.q.extra[g] : 0, best = INFINITY, y;
                    for (int c = 0; c < (t->type == QT_T2 || t->type == QT_T3 ? 3 : 1 << t->bits); c++) {
                        uint8_t code = (uint8_t)c;
                        codes_decode(&f.m, &code, 1, f.q.row_scale, f.q.scale[g], extra, &y);
                        if ((t->bits < 8 || c != 128) && fabsf(y - x[k]) < best)
                            best = fabsf(y - x[k]);
                    }
                    if (fabsf(f.out[k] - x[k]) > best + 4 * FLT_EPSILON * fabsf(x[k]))
                        fail_msg("%s col %d: %a became %a, %a is possible", t->name, k, (double)x[k], (double)f.out[k],
                                 (double)best);
                }
            }
        }
        teardown(&f);
    }
}

/* Mean squared error of each type on normal data: by absmax and by search.  The limits are the
 * measured values plus 5 %.  They agree with step^2/12 where that applies: the step of i4 is about
 * 2.1 (the mean extreme of 32 normal values) / 7.5, so the error is .0065. */
static void errors_stay_below_their_limits(void **state)
{
    (void)state;
    static const double limit[N_TYPES][2] = {
        { 2.835e-05, 2.31e-05 },   /* i8 */
        { 5.25e-05, 5.145e-05 },   /* i8r */
        { 0.007414, 0.006576 },   /* i4 */
        { 0.006287, 0.004885 },   /* i4m */
        { 0.0067, 0.006005 },   /* i4z */
        { 0.006951, 0.005578 },   /* nl4 */
        { 0.008821, 0.00745 },   /* nf4 */
        { 0.1368, 0.09762 },   /* m2 */
        { 0.02821, 0.0234 },   /* m3 */
        { 0.001831, 0.00161 },   /* m5 */
        { 0.0004536, 0.0003906 },   /* m6 */
        { 0.4440, 0.1824 },   /* t2 */
        { 0.6403, 0.1931 },   /* t3 */
        { 0.01375, 0.01293 },   /* mxfp4 */
        { 0.009634, 0.007676 },   /* nvfp4 */
        { 0.000908, 0.000746 },   /* mxfp8 */
    };
    enum { ROWS = 100 };
    double mse[N_TYPES][2] = { { 0 } };
    float x[COLS];
    for (int i = 0; i < N_TYPES; i++) {
        struct rng r = { 11 };
        struct fixture f;
        setup(&f, types[i], 64, COLS);
        for (int n = 0; n < ROWS; n++) {
            normal_row(&r, x, COLS);
            double absmax = error_of(&f, x, NULL, QUANT_ABSMAX), search = error_of(&f, x, NULL, QUANT_SEARCH);
            if (search > absmax)
                fail_msg("%s row %d: search leaves %g, absmax %g", qtype_info(types[i])->name, n, search, absmax);
            mse[i][0] += absmax / ROWS / COLS;
            mse[i][1] += search / ROWS / COLS;
        }
        teardown(&f);
        for (int e = 0; e < 2; e++)
            if (mse[i][e] > limit[i][e])
                fail_msg("%s: mean squared error %g, limit %g", qtype_info(types[i])->name, mse[i][e], limit[i][e]);
    }
    /* a codebook must pay off: with as many bits per code its error is less than 7/8 of the linear
     * grid's */
    assert_true(mse[5][1] < 0.875 * mse[2][1]);
}

/* The rules for ternary weights reach the cosines that ternary.h states for normal numbers.  Rows
 * of zeros stay zeros, and padding has the code of 0. */
static void ternary_rules_reach_their_cosines(void **state)
{
    (void)state;
    static const double promised[N_TERNARY] = { .904, .891, .900, .903, .888, .803 };
    enum { ROWS = 400, N = 256 };
    for (int fit = 0; fit < N_TERNARY; fit++) {
        struct rng r = { 77 };
        struct mat m;
        struct qrow q;
        struct err e;
        double xy = 0, xx = 0, yy = 0;
        float x[N], y[N];
        assert_int_equal(mat_init(&m, QT_T2, 128, 128, 1, N, &e), 0);
        assert_int_equal(qrow_init(&q, &m, &e), 0);
        for (int n = 0; n < ROWS; n++) {
            normal_row(&r, x, N);
            if (fit == TERNARY_FIT)
                quantize_row(&m, x, NULL, QUANT_SEARCH, &q);
            else
                ternary_row(&m, x, (enum ternary_fit)fit, &q);
            qrow_decode(&m, &q, y);
            for (int k = 0; k < N; k++) {
                assert_true(q.code[k] <= 2 && (fit != TERNARY_SIGN || q.code[k] != 1));
                xy += (double)x[k] * (double)y[k];
                xx += (double)x[k] * (double)x[k];
                yy += (double)y[k] * (double)y[k];
            }
        }
        const double cosine = xy / sqrt(xx * yy);
        if (fabs(cosine - promised[fit]) > .0015)
            fail_msg("%s: cosine %.4f, promised %.3f", ternary_name((enum ternary_fit)fit), cosine, promised[fit]);
        qrow_release(&q);
    }
    assert_null(ternary_name(N_TERNARY));
    struct mat m;
    struct qrow q;
    float zeros[300] = { 0 }, out[300];
    assert_int_equal(mat_init(&m, QT_T3, 256, 128, 1, 300, NULL), 0);
    assert_int_equal(qrow_init(&q, &m, NULL), 0);
    for (int fit = 1; fit < N_TERNARY; fit++) {         /* a row of zeros, with padding columns */
        ternary_row(&m, zeros, (enum ternary_fit)fit, &q);
        qrow_decode(&m, &q, out);
        assert_memory_equal(out, zeros, sizeof zeros);
        for (int k = 300; k < m.cols_padded; k++)
            assert_int_equal(q.code[k], 1);
    }
    qrow_release(&q);
}

/* With an importance per column the error of the important columns is smaller, and so is the
 * weighted error. */
static void important_columns_have_smaller_errors(void **state)
{
    (void)state;
    float x[COLS], w[COLS], none[COLS] = { 0 };
    for (int k = 0; k < COLS; k++)
        w[k] = k % 7 == 0 ? 100 : 1;
    for (int i = 0; i < N_TYPES; i++) {
        double with = 0, without = 0;
        struct rng r = { 17 };
        struct fixture f;
        setup(&f, types[i], 64, COLS);
        for (int n = 0; n < 20; n++) {
            normal_row(&r, x, COLS);
            with += error_of(&f, x, w, QUANT_SEARCH);
            quantize_row(&f.m, x, NULL, QUANT_SEARCH, &f.q);
            qrow_decode(&f.m, &f.q, f.out);
            for (int k = 0; k < COLS; k++)
                without += pow((double)x[k] - (double)f.out[k], 2) * (double)w[k];
        }
        if (with > without)
            fail_msg("%s: weighted error %g with importance, %g without", qtype_info(types[i])->name, with, without);
        /* if all importances are 0 they count as equal; a factor common to all of them changes
         * nothing */
        double equal = error_of(&f, x, NULL, QUANT_SEARCH);
        error_of(&f, x, none, QUANT_SEARCH);
        for (int k = 0; k < COLS; k++)
            equal -= pow((double)x[k] - (double)f.out[k], 2);
        assert_true(fabs(equal) < 1e-9);
        teardown(&f);
    }
}

/* Rows of zeros are exactly zero.  A constant row keeps its value to the precision of its scale:
 * 2^-11 for f16 scales and minima; for mxfp4 a quarter (8 becomes 6), for mxfp8 an eighth (512
 * becomes 448). */
static void zero_and_constant_rows_keep_their_values(void **state)
{
    (void)state;
    static const float constants[] = { 1, -1, 0.1f, -3.7e-3f, 123.456f };
    float x[100];
    for (int i = 0; i < N_TYPES; i++)
        for (int effort = QUANT_ABSMAX; effort <= QUANT_SEARCH; effort++) {
            struct fixture f;
            const float limit = types[i] == QT_MXFP4 ? 0.26f : types[i] == QT_MXFP8 ? 0.13f : 0x1p-11f;
            setup(&f, types[i], 64, 100);
            memset(x, 0, sizeof x);
            assert_true(error_of(&f, x, NULL, (enum quant_effort)effort) == 0);
            check_storable(&f);
            for (size_t c = 0; c < sizeof constants / sizeof *constants; c++) {
                for (int k = 0; k < 100; k++)
                    x[k] = constants[c];
                error_of(&f, x, NULL, (enum quant_effort)effort);
                check_storable(&f);
                for (int k = 0; k < 100; k++)
                    if (fabsf(f.out[k] - x[k]) > fabsf(x[k]) * limit)
                        fail_msg("%s: %g became %g", qtype_info(types[i])->name, (double)x[k], (double)f.out[k]);
            }
            teardown(&f);
        }
}

/* Values and importances from subnormal numbers to the largest floats: all results are finite, and
 * no error is larger than the row's largest magnitude (plus half the least f16, because a minimum
 * is rounded to f16). */
static void extreme_values_give_finite_results(void **state)
{
    (void)state;
    static const float unit[] = { 1e-45f, 1e-42f, 1e-38f, 1e-30f, 1e-7f, 1e4f, 1e20f, 1e37f };
    float x[COLS], size[COLS];
    for (int i = 0; i < N_TYPES; i++)
        for (size_t u = 0; u < sizeof unit / sizeof *unit; u++)
            for (int effort = QUANT_ABSMAX; effort <= QUANT_SEARCH; effort++) {
                struct rng r = { 23 };
                struct fixture f;
                setup(&f, types[i], 64, COLS);
                normal_row(&r, x, COLS);
                float amax = 0;
                for (int k = 0; k < COLS; k++) {
                    x[k] *= unit[u];
                    amax = fabsf(x[k]) > amax ? fabsf(x[k]) : amax;
                }
                if (u + 1 == sizeof unit / sizeof *unit)
                    x[3] = FLT_MAX, x[70] = -FLT_MAX, amax = FLT_MAX;
                for (int k = 0; k < COLS; k++)
                    size[k] = fabsf(x[k]);
                error_of(&f, x, size, (enum quant_effort)effort);
                check_storable(&f);
                error_of(&f, x, NULL, (enum quant_effort)effort);
                check_storable(&f);
                for (int k = 0; k < COLS; k++)
                    if (!isfinite(f.out[k]) || fabsf(f.out[k] - x[k]) > amax + 0x1p-25f)
                        fail_msg("%s: %g became %g", qtype_info(types[i])->name, (double)x[k], (double)f.out[k]);
                teardown(&f);
            }
}

/* One large value in a row increases the row scale, so that the 8-bit scales of the other groups
 * become coarser.  Their error must not grow more than that explains (3 times). */
static void an_outlier_costs_other_groups_little(void **state)
{
    (void)state;
    float x[COLS];
    struct rng r = { 29 };
    struct fixture f;
    setup(&f, QT_NL4, 64, COLS);
    normal_row(&r, x, COLS);
    double plain = error_of(&f, x, NULL, QUANT_SEARCH) / COLS;
    x[5] = 50;          /* row scale 50/127/127: a group of extreme 2 has scale 5, rounded within 10 % */
    error_of(&f, x, NULL, QUANT_SEARCH);
    double sum = 0;
    for (int k = 32; k < COLS; k++)
        sum += pow((double)x[k] - (double)f.out[k], 2) / (COLS - 32);
    assert_true(sum < 3 * plain);
    teardown(&f);
}

/* Codes and scales are the same with every compiler, every option and on every machine: the numbers
 * are FNV-1a hashes of all of them. */
static void codes_are_the_same_on_every_machine(void **state)
{
    (void)state;
    static const uint64_t want[N_TYPES][2] = {
        { 0xa859edda869220adu, 0xa0d73e77c93dba45u },   /* i8 */
        { 0xf1fa1a767acc4571u, 0xd37535c09d5f127fu },   /* i8r */
        { 0xf3fc0e86ce07cda1u, 0x061d185b0ebfebbau },   /* i4 */
        { 0x8a218f7213f57c77u, 0x1f037d64c476e55du },   /* i4m */
        { 0x8a7649c0228ffb4du, 0xf19dc179205d1b00u },   /* i4z */
        { 0x3f986050e888550bu, 0x5c6374a2e922f7edu },   /* nl4 */
        { 0xf9bc8ee1008829a4u, 0xf9f3bbe5939631c3u },   /* nf4 */
        { 0x0ebafea5174edf07u, 0x03740b285532ee9au },   /* m2 */
        { 0x4f6fa06d99d9551du, 0x5fbcc689a265ad07u },   /* m3 */
        { 0xb4cb2b3552ca9ef2u, 0xf6052ef8aa166d4eu },   /* m5 */
        { 0xb29fc3af993ef69bu, 0xc0cc25c9506cf294u },   /* m6 */
        { 0xefda600b6324abbfu, 0xe8e7892dbb5f5ee4u },   /* t2 */
        { 0xcd54f2364cfbfb8bu, 0xadfe7b2c4e03295fu },   /* t3 */
        { 0x6cbcc393576c2e84u, 0x1217e374e843db30u },   /* mxfp4 */
        { 0xc89b3ee84f3ed8a8u, 0xde1d2689c1e3c154u },   /* nvfp4 */
        { 0x150d8a3fa92a87b0u, 0x8ca54b6b24fa4ea2u },   /* mxfp8 */
    };
    float x[COLS], w[COLS];
    for (int i = 0; i < N_TYPES; i++)
        for (int effort = QUANT_ABSMAX; effort <= QUANT_SEARCH; effort++) {
            struct rng r = { 31 };
            struct fixture f;
            uint64_t h = 0xcbf29ce484222325u;
            setup(&f, types[i], 64, COLS);
            for (int n = 0; n < 10; n++) {
                normal_row(&r, x, COLS);
                normal_row(&r, w, COLS);
                for (int k = 0; k < COLS; k++)
                    w[k] *= w[k];
                quantize_row(&f.m, x, w, (enum quant_effort)effort, &f.q);
                const struct { const void *p; size_t n; } part[] = {
                    { f.q.code, (size_t)f.m.cols_padded }, { &f.q.row_scale, 4 },
                    { f.q.scale, 4 * (size_t)f.m.n_groups }, { f.q.extra, f.q.extra ? 4 * (size_t)f.m.n_groups : 0 },
                };
                for (int p = 0; p < 4; p++)
                    for (size_t b = 0; b < part[p].n; b++)
                        h = (h ^ ((const uint8_t *)part[p].p)[b]) * 0x100000001b3u;
            }
            if (h != want[i][effort])
                fail_msg("%s effort %d: hash 0x%016llxu", qtype_info(types[i])->name, effort, (unsigned long long)h);
            teardown(&f);
        }
}

/* fp8: the value of largest magnitude in a group gets code 448 or -448, and every value the nearest
 * of all codes.  A group of zeros, or of values near 0, becomes 0. */
static void fp8_codes_are_the_nearest(void **state)
{
    (void)state;
    enum { GROUPS = 3, N = 128 * GROUPS - 40 };
    struct rng r = { 9 };
    struct mat m;
    struct qrow q;
    float x[N], out[N], value[256];
    assert_int_equal(mat_init(&m, QT_FP8, 128, 0, 1, N, NULL), 0);
    assert_int_equal(qrow_init(&q, &m, NULL), 0);
    for (int c = 0; c < 256; c++)
        value[c] = f8e4m3_to_f32((f8e4m3)c);
    normal_row(&r, x, N);
    for (int k = 128; k < 256; k++)
        x[k] = k % 2 ? 1e-44f : 0;
    for (int k = 0; k < 128; k += 3)
        x[k] *= 0.01f;
    quantize_row(&m, x, NULL, QUANT_SEARCH, &q);
    qrow_decode(&m, &q, out);
    for (int g = 0; g < GROUPS; g++) {
        int most = 0;
        for (int k = g * 128; k < (g + 1) * 128 && k < N; k++) {
            float best = INFINITY;
            for (int c = 0; c < 256 && q.scale[g] > 0; c++)
                if ((c & 127) != 127 && fabsf(q.scale[g] * value[c] - x[k]) < best)
                    best = fabsf(q.scale[g] * value[c] - x[k]);
            if (g == 1 ? out[k] != 0 : fabsf(out[k] - x[k]) > best * 1.0001f ||
                q.code[k] != (q.scale[g] > 0 ? f32_to_f8e4m3(x[k] / q.scale[g]) : 0))
                fail_msg("%.9g became %.9g, off by more than %g", (double)x[k], (double)out[k], (double)best);
            most |= (q.code[k] & 127) == 126;
        }
        assert_int_equal(most, g != 1);
    }
    qrow_release(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_codes_are_the_nearest), cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(errors_stay_below_their_limits), cmocka_unit_test(ternary_rules_reach_their_cosines),
        cmocka_unit_test(important_columns_have_smaller_errors),
        cmocka_unit_test(zero_and_constant_rows_keep_their_values),
        cmocka_unit_test(extreme_values_give_finite_results),
        cmocka_unit_test(an_outlier_costs_other_groups_little),
        cmocka_unit_test(codes_are_the_same_on_every_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

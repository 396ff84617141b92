/* t-kernels-rows.c - norms, activation functions, additions, rotary embeddings, recurrences: the
 * plain kernels are compared with double, the other sets bit for bit with the plain ones. */
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
#include "libcommon/kernels/approx.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/quant/half.h"

static const int sizes[] = { 1, 2, 7, 15, 16, 17, 31, 33, 64, 100, 576, 1537 };
enum { N_SIZES = sizeof sizes / sizeof *sizes, MAX = 1600 };

#define FOR_SETS(k) for (const struct kernels *const *k = kernels_all; *k; k++) if ((*k)->supported())

static float uniform(struct rng *r, float from, float to) { return from + (to - from) * (float)rng_double(r); }

static void fill(float *x, int n, float size, struct rng *r)
{
    for (int i = 0; i < n; i++)
        x[i] = uniform(r, -size, size);
}

static void equal(const char *what, const char *set, int n, const float *got, const float *want)
{
    for (int i = 0; i < n; i++)
        if (f32_bits(got[i]) != f32_bits(want[i]) && !(got[i] != got[i] && want[i] != want[i]))
            fail_msg("%s %s n=%d: element %d is %.9g, not %.9g", set, what, n, i, (double)got[i], (double)want[i]);
}

static void norms_agree_with_double_and_between_sets(void **state)
{
    (void)state;
    struct rng r = { 1 };
    float x[MAX + 1], w[MAX], b[MAX], want[MAX], got[MAX + 1];
    for (int s = 0; s < N_SIZES; s++) {
        const int n = sizes[s];
        fill(x, n, 3, &r), fill(w, n, 1, &r), fill(b, n, 1, &r);
        for (int i = 0; i < n; i++)
            x[i] += 0.5f;                               /* a mean other than 0, which layer_norm has
                                                         * to subtract */
        double square = 0, mean = 0, var = 0;
        for (int i = 0; i < n; i++)
            square += (double)x[i] * x[i], mean += x[i];
        mean /= n;
        for (int i = 0; i < n; i++)
            var += (x[i] - mean) * (x[i] - mean);
        kernels_ref.rms_norm(want, x, w, n, 1e-5f, 1);
        for (int i = 0; i < n; i++) {
            double v = x[i] / sqrt(square / n + 1e-5f) * (w[i] + 1.0);
            /* the sum's n / 16 roundings and six more */
            if (fabs(v - (double)want[i]) > 1e-6 * (fabs(v) + 1e-3))
                fail_msg("rms_norm n=%d: %.9g, not %.9g", n, (double)want[i], v);
        }
        FOR_SETS(k) {
            memset(got, 0xff, sizeof got);
            (*k)->rms_norm(got, x, w, n, 1e-5f, 1);
            equal("rms_norm", (*k)->name, n, got, want);
            assert_int_equal(f32_bits(got[n]), 0xffffffff);
            memcpy(got, x, sizeof x);
            (*k)->rms_norm(got, got, w, n, 1e-5f, 1);
            equal("rms_norm in place", (*k)->name, n, got, want);
        }
        kernels_ref.rms_norm(want, x, NULL, n, 1e-5f, 0);
        FOR_SETS(k) {
            (*k)->rms_norm(got, x, NULL, n, 1e-5f, 0);
            equal("rms_norm without weights", (*k)->name, n, got, want);
        }
        for (int with = 0; with < 2; with++) {
            const float *wp = with ? w : NULL, *bp = with ? b : NULL;
            kernels_ref.layer_norm(want, x, wp, bp, n, 1e-5f);
            for (int i = 0; i < n; i++) {
                double v = (x[i] - mean) / sqrt(var / n + 1e-5f) * (with ? w[i] : 1.0) + (with ? b[i] : 0.0);
                /* cancellation in x - mean is worst with two elements */
                if (fabs(v - (double)want[i]) > 4e-6 * (1 + fabs(v)) * (n == 2 ? 10 : 1))
                    fail_msg("layer_norm n=%d: %.9g, not %.9g", n, (double)want[i], v);
            }
            FOR_SETS(k) {
                memset(got, 0xff, sizeof got);
                (*k)->layer_norm(got, x, wp, bp, n, 1e-5f);
                equal("layer_norm", (*k)->name, n, got, want);
                assert_int_equal(f32_bits(got[n]), 0xffffffff);
            }
        }
    }
}

/* Distance in units of the last place of the true value. */
static double ulps(float got, double want)
{
    int e;
    frexp(want, &e);
    return fabs(got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

static void approximations_keep_their_error_bounds(void **state)
{
    (void)state;
    double worst_exp = 0, worst_exp2 = 0, worst_tanh = 0, worst_erf = 0;
    for (uint32_t u = 0; u < 0x43000000; u += 997)       /* 0 to 128, both signs */
        for (int sign = 0; sign < 2; sign++) {
            float x = f32_from_bits(u | (uint32_t)sign << 31);
            double e = x >= EXP_MIN && x <= EXP_MAX ? ulps(approx_exp(x), exp(x)) : 0,
                   t = ulps(approx_tanh(x), tanh(x)), f = ulps(approx_erf(x), erf(x));
            double e2 = x >= EXP2_MIN && x <= 1 ? ulps(approx_exp2(x), exp2(x)) : 0;
            worst_exp = e > worst_exp ? e : worst_exp;
            worst_exp2 = e2 > worst_exp2 ? e2 : worst_exp2;
            worst_tanh = t > worst_tanh ? t : worst_tanh;
            worst_erf = f > worst_erf ? f : worst_erf;
        }
    print_message("# worst errors in ulp: exp %.2f exp2 %.2f tanh %.2f erf %.2f\n", worst_exp, worst_exp2, worst_tanh,
                  worst_erf);
    /* the bounds of approx.h */
    assert_true(worst_exp <= 1 && worst_exp2 <= 2.1 && worst_tanh <= 2 && worst_erf <= 2);
    assert_true(approx_exp(0) == 1 && approx_exp(-88) == 0 && approx_exp(-INFINITY) == 0 &&
                approx_exp(NAN) != approx_exp(NAN));
    assert_true(approx_exp2(0) == 1 && approx_exp2(-1) == 0.5f && approx_exp2(-126) == 0 &&
                approx_exp2(-INFINITY) == 0 && approx_exp2(NAN) != approx_exp2(NAN));
    assert_true(approx_exp2(f32_from_bits(0xffffffff)) != approx_exp2(f32_from_bits(0xffffffff)));
    assert_true(approx_tanh(100) == 1 && approx_tanh(-100) == -1 && approx_tanh(NAN) != approx_tanh(NAN));
    assert_true(approx_erf(100) == 1 && approx_erf(-100) == -1 && approx_erf(NAN) != approx_erf(NAN));
}

static double act_double(double x, int act)
{
    switch (act) {
    case ACT_SILU:      return x / (1 + exp(-x));
    case ACT_GELU:      return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    /* 0.5 x (1 + tanh(..)) */
    case ACT_GELU_TANH: return x / (1 + exp(-2 * sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case ACT_RELU:      return x > 0 ? x : 0;
    case ACT_RELU2:     return x > 0 ? x * x : 0;
    default:            return x / (1 + exp(-1.702 * x));
    }
}

static void activations_agree_with_double_and_between_sets(void **state)
{
    (void)state;
    struct rng r = { 2 };
    float x[MAX + 1], up[MAX], want[MAX], got[MAX + 1];
    for (int act = ACT_SILU; act <= ACT_GELU_QUICK; act++)
        for (int s = 0; s < N_SIZES; s++)
            for (int with_up = 0; with_up < 2; with_up++) {
                const int n = sizes[s];
                fill(x, n, s % 2 ? 4.0f : 30.0f, &r), fill(up, n, 2, &r);
                if (n > 20)
                    x[3] = NAN, x[4] = -0.0f, x[5] = 0, x[6] = 200, x[7] = -200, x[8] = 1e-30f;
                const float *u = with_up ? up : NULL;
                kernels_ref.act_mul(want, x, u, n, act);
                for (int i = 0; i < n; i++) {
                    double v = act_double(x[i], act) * (u ? up[i] : 1);
                    /* a few roundings; exp multiplies the error of its argument; in gelu 1 + erf
                     * cancels, as in every implementation in f32 */
                    if (x[i] == x[i] && fabs(v - (double)want[i]) > (act == ACT_GELU_TANH ? 4e-6 : 1e-6) * fabs(v) +
                        (act == ACT_GELU ? 2e-7 : 1e-10) * fabs((double)x[i]))
                        fail_msg("act %d: f(%.9g) is %.9g, not %.9g", act, (double)x[i], (double)want[i], v);
                    assert_true(x[i] == x[i] || want[i] != want[i]);
                }
                FOR_SETS(k) {
                    memset(got, 0xff, sizeof got);
                    (*k)->act_mul(got, x, u, n, act);
                    equal("act_mul", (*k)->name, n, got, want);
                    assert_int_equal(f32_bits(got[n]), 0xffffffff);
                }
            }
}

static void every_set_adds_with_one_rounding(void **state)
{
    (void)state;
    struct rng r = { 3 };
    float a[MAX], b[MAX], want[MAX], got[MAX + 1];
    for (int s = 0; s < N_SIZES; s++) {
        fill(a, sizes[s], 1, &r), fill(b, sizes[s], 1, &r);
        for (int i = 0; i < sizes[s]; i++)
            want[i] = fmaf(0.22f, b[i], a[i]);
        FOR_SETS(k) {
            memset(got, 0xff, sizeof got);
            (*k)->add(got, a, b, 0.22f, sizes[s]);
            equal("add", (*k)->name, sizes[s], got, want);
            assert_int_equal(f32_bits(got[sizes[s]]), 0xffffffff);
        }
    }
}

static void the_largest_element_is_found_in_every_place(void **state)
{
    (void)state;
    static const float odd[] = { INFINITY, NAN, -INFINITY, -NAN, 1e38f };
    struct rng r = { 4 };
    float x[MAX];
    for (int s = 0; s < N_SIZES; s++) {
        const int n = sizes[s];
        for (int i = 0; i < n; i++) {                   /* with the largest element in every place,
                                                         * and a special value in another place */
            fill(x, n, 1, &r);
            x[i] = 3;
            const float v = odd[i % 5], want = i % 5 == 4 && n > 1 ? 1e38f : i % 5 == 2 || n == 1 ? 3 : NAN;
            const int at = n > 1 ? (i + 1 + (int)(rng_u64(&r) % (uint64_t)(n - 1))) % n : -1;
            if (at >= 0)
                x[at] = v;
            FOR_SETS(k) {
                const float got = (*k)->largest(x, n);
                if (isnan(want) ? !isnan(got) : got != want)
                    fail_msg("%s: largest of %d, %g at %d: %g, not %g", (*k)->name, n, (double)v, at, (double)got,
                             (double)want);
            }
        }
    }
    FOR_SETS(k)
        assert_true((*k)->largest(x, 0) == -INFINITY);
}

static void every_set_computes_the_same_dots(void **state)
{
    enum { ROWS = 9, STRIDE = 448 };
    _Alignas(64) static int8_t rows[ROWS * STRIDE], q[STRIDE];
    struct rng r = { 12 };
    int32_t got[ROWS + 1], want[ROWS];
    (void)state;
    for (size_t stride = 64; stride <= STRIDE; stride += 64)
        for (int n = 0; n <= ROWS; n++) {
            const int extreme = n == 5;                     /* the largest possible sums, which
                                                             * could overflow 16 bits */
            for (int i = 0; i < ROWS * STRIDE; i++)
                rows[i] = (int8_t)(extreme ? (i & 64 ? -127 : 127) : (int)(rng_u64(&r) % 255) - 127);
            for (int i = 0; i < STRIDE; i++)
                q[i] = (int8_t)(extreme ? 127 : (int)(rng_u64(&r) % 255) - 127);
            kernels_ref.dots_i8(want, rows, stride, n, q);
            FOR_SETS(k) {
                memset(got, 0x55, sizeof got);
                (*k)->dots_i8(got, rows, stride, n, q);
                assert_memory_equal(got, want, (size_t)n * sizeof *got);
                assert_int_equal(got[n], 0x55555555);
            }
        }
}

static void rotations_agree_with_double_and_between_sets(void **state)
{
    (void)state;
    static const int dims[] = { 2, 4, 6, 16, 20, 32, 64, 80, 96, 128, 256 };
    struct rng r = { 4 };
    float x[3 * 260], want[3 * 260], got[3 * 260], c[128], s[128];
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int pairs = 0; pairs < 2; pairs++) {
            const int dim = dims[i];
            fill(x, 3 * 260, 2, &r);
            for (int j = 0; j < dim / 2; j++) {
                float angle = uniform(&r, 0, 6.28f);
                c[j] = cosf(angle), s[j] = sinf(angle);
            }
            memcpy(want, x, sizeof x);
            kernels_ref.rope(want, c, s, 3, 260, dim, pairs);
            for (int h = 0; h < 3; h++)
                for (int j = 0; j < 260; j++) {
                    int low = pairs ? j % 2 == 0 : j < dim / 2, k = pairs ? j / 2 : low ? j : j - dim / 2,
                        other = pairs ? j ^ 1 : low ? j + dim / 2 : j - dim / 2;
                    const float *v = x + h * 260;
                    double y = j >= dim ? v[j] : (double)v[j] * c[k] + (low ? -1 : 1) * (double)v[other] * s[k];
                    if (fabs(y - (double)want[h * 260 + j]) > 3e-7 * 2)         /* two roundings of terms up to 2 */
                        fail_msg("rope dim %d pairs %d: element %d is %.9g, not %.9g", dim, pairs, j,
                                 (double)want[h * 260 + j], y);
                }
            FOR_SETS(k) {
                memcpy(got, x, sizeof x);
                (*k)->rope(got, c, s, 3, 260, dim, pairs);
                equal("rope", (*k)->name, 3 * 260, got, want);
            }
        }
}

/* Some steps of a recurrence: the plain kernels are compared with double, the other sets with the
 * plain ones, including the states. */
static void recurrences_agree_with_double_and_between_sets(void **state)
{
    (void)state;
    enum { ROWS = 24, DIM = 100, STEPS = 5 };
    static const int dims[] = { 1, 16, 33, 64, 80, DIM };
    static float start[ROWS * DIM], want[ROWS * DIM], got[ROWS * DIM + 1];
    static double exact[ROWS * DIM];
    struct rng r = { 5 };
    float a[STEPS][ROWS], b[STEPS][ROWS], x[STEPS][DIM], out[STEPS][DIM], mine[DIM + 1];
    float decay[ROWS];
    for (int i = 0; i < ROWS; i++)
        decay[i] = 0.9f;
    for (int delta = 0; delta < 3; delta++)
        for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
            const int dim = dims[s];
            fill(start, ROWS * dim, 1, &r), fill(a[0], STEPS * ROWS, 0.3f, &r), fill(b[0], STEPS * ROWS, 0.3f, &r),
                fill(x[0], STEPS * DIM, 1, &r);
            memcpy(want, start, sizeof want);
            for (int i = 0; delta == 2 && i < ROWS; i++)
                decay[i] = 0.5f + (float)i / 64;
            for (int i = 0; i < ROWS * dim; i++)
                exact[i] = (double)start[i];
            for (int t = 0; t < STEPS; t++) {
                if (delta == 2)
                    kernels_ref.scan_delta_rows(want, a[t], b[t], x[t], out[t], ROWS, dim, decay, 0.7f);
                else if (delta)
                    kernels_ref.scan_delta(want, a[t], b[t], x[t], out[t], ROWS, dim, 0.9f, 0.7f);
                else
                    kernels_ref.scan_mamba(want, a[t], b[t], x[t], out[t], ROWS, dim, 0.9f, 0.4f, 0.2f);
                for (int e = 0; e < dim; e++) {
                    double found = 0, y = delta ? 0 : (double)0.2f * (double)x[t][e];
                    for (int i = 0; i < ROWS; i++)
                        found += (double)b[t][i] * (exact[i * dim + e] *= (double)decay[i]);
                    for (int i = 0; i < ROWS; i++) {
                        const double in = delta ? (double)b[t][i] * ((double)x[t][e] - found) * (double)0.7f
                                                : (double)a[t][i] * (double)0.4f * (double)x[t][e];
                        y += (double)(delta ? a[t][i] : b[t][i]) * (exact[i * dim + e] += in);
                    }
                    if (fabs(y - (double)out[t][e]) > 1e-5)
                        fail_msg("scan %d dim %d: step %d gives %.9g, not %.9g", delta, dim, t, (double)out[t][e], y);
                }
            }
            FOR_SETS(k) {
                memcpy(got, start, sizeof start);
                for (int t = 0; t < STEPS; t++) {
                    memset(mine, 0xff, sizeof mine);
                    if (delta == 2)
                        (*k)->scan_delta_rows(got, a[t], b[t], x[t], mine, ROWS, dim, decay, 0.7f);
                    else if (delta)
                        (*k)->scan_delta(got, a[t], b[t], x[t], mine, ROWS, dim, 0.9f, 0.7f);
                    else
                        (*k)->scan_mamba(got, a[t], b[t], x[t], mine, ROWS, dim, 0.9f, 0.4f, 0.2f);
                    equal("scan", (*k)->name, dim, mine, out[t]);
                    assert_int_equal(f32_bits(mine[dim]), 0xffffffff);
                }
                equal("scan's state", (*k)->name, ROWS * dim, got, want);
            }
        }
}

/* run() for Mamba1, whose decays are exponentials for each row and element. */
static void mamba1_scans_agree_with_double_and_between_sets(void **state)
{
    (void)state;
    enum { ROWS = 5, DIM = 70, LDA = 72 };
    static const int dims[] = { 1, 16, 33, DIM };
    float start[ROWS * DIM], want[ROWS * DIM], got[ROWS * DIM], a[ROWS * LDA], b[ROWS], c[ROWS], x[DIM], dt[DIM];
    float d[DIM], out[DIM], mine[DIM + 1];
    struct rng r = { 6 };
    fill(a, ROWS * LDA, 1, &r), fill(b, ROWS, 1, &r), fill(c, ROWS, 1, &r), fill(x, DIM, 1, &r), fill(d, DIM, 1, &r);
    fill(dt, DIM, 1, &r), fill(start, ROWS * DIM, 1, &r);
    for (int i = 0; i < DIM; i++)
        dt[i] = fabsf(dt[i]);
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
        const int dim = dims[s];
        memcpy(want, start, sizeof want);
        kernels_ref.scan_mamba1(want, b, c, x, out, ROWS, dim, a, LDA, dt, d);
        for (int e = 0; e < dim; e++) {
            double y = (double)d[e] * (double)x[e];
            for (int i = 0; i < ROWS; i++)
                y += (double)c[i] * ((double)start[i * dim + e] * exp(-(double)dt[e] * exp((double)a[i * LDA + e])) +
                                     (double)b[i] * (double)dt[e] * (double)x[e]);
            if (fabs(y - (double)out[e]) > 1e-5)
                fail_msg("scan_mamba1 dim %d: element %d is %.9g, not %.9g", dim, e, (double)out[e], y);
        }
        FOR_SETS(k) {
            memcpy(got, start, sizeof got);
            memset(mine, 0xff, sizeof mine);
            (*k)->scan_mamba1(got, b, c, x, mine, ROWS, dim, a, LDA, dt, d);
            equal("scan_mamba1", (*k)->name, dim, mine, out);
            equal("its state", (*k)->name, ROWS * dim, got, want);
            assert_int_equal(f32_bits(mine[dim]), 0xffffffff);
        }
    }
}

/* Scores of 16 keys for several heads. */
static void index_scores_agree_with_double_and_between_sets(void **state)
{
    (void)state;
    enum { HEADS = 7, DIM = 33 };
    float q[HEADS * DIM], k[DIM * 16], weight[HEADS], want[16], got[16];
    struct rng r = { 7 };
    fill(q, HEADS * DIM, 1, &r), fill(k, DIM * 16, 1, &r), fill(weight, HEADS, 1, &r);
    for (int heads = 1; heads <= HEADS; heads++) {
        kernels_ref.index_block(want, q, heads, DIM, weight, k);
        for (int t = 0; t < 16; t++) {
            double sum = 0;
            for (int h = 0; h < heads; h++) {
                double a = 0;
                for (int d = 0; d < DIM; d++)
                    a += (double)q[h * DIM + d] * (double)k[d * 16 + t];
                sum += (double)weight[h] * (a > 0 ? a : 0);
            }
            if (fabs(sum - (double)want[t]) > 1e-4)
                fail_msg("index_block, %d heads: token %d is %.9g, not %.9g", heads, t, (double)want[t], sum);
        }
        FOR_SETS(s) {
            (*s)->index_block(got, q, heads, DIM, weight, k);
            equal("index_block", (*s)->name, 16, got, want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(approximations_keep_their_error_bounds),
        cmocka_unit_test(norms_agree_with_double_and_between_sets),
        cmocka_unit_test(activations_agree_with_double_and_between_sets),
        cmocka_unit_test(every_set_adds_with_one_rounding),
        cmocka_unit_test(the_largest_element_is_found_in_every_place),
        cmocka_unit_test(every_set_computes_the_same_dots),
        cmocka_unit_test(rotations_agree_with_double_and_between_sets),
        cmocka_unit_test(recurrences_agree_with_double_and_between_sets),
        cmocka_unit_test(mamba1_scans_agree_with_double_and_between_sets),
        cmocka_unit_test(index_scores_agree_with_double_and_between_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

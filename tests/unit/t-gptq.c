/* t-gptq.c - the linear algebra of error feedback against sums in double, and error feedback
 * against plain rounding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/convert/spill.h"
#include "libcommon/convert/gptq.h"

static double gauss(struct rng *r)
{
    double u = rng_double(r) + 1e-18, v = rng_double(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Tokens whose channels are correlated and of very different strength, as in real models. x
 * [t][N], columns n..N zero. */
static void make_inputs(float *x, int t, int n, int N, uint64_t seed)
{
    struct rng r = { seed };
    memset(x, 0, (size_t)t * (size_t)N * sizeof *x);
    for (int i = 0; i < t; i++) {
        double common = gauss(&r), last = 0;
        for (int k = 0; k < n; k++) {
            last = 0.6 * last + gauss(&r) + 0.4 * common;
            x[(size_t)i * (size_t)N + (size_t)k] = (float)(last * (k % 17 == 3 ? 8 : 0.2 + (k % 7) * 0.3));
        }
    }
}

static void *room(size_t floats)
{
    void *p = aligned_alloc(64, (floats * 4 + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

/* Arguments of gptq_init. */
static float *square(int N) { float *p = spill_alloc((size_t)N * (size_t)N * 4); assert_non_null(p); return p; }

static const int sizes[] = { 1, 31, 32, 33, 100, 160, 257 };

static void all_sets_compute_the_same_products(void **state)
{
    (void)state;
    struct pool *one = pool_open(1, NULL), *two = pool_open(2, NULL);
    for (int s = 0; s < (int)(sizeof sizes / sizeof *sizes); s++)
        for (const struct linalg_ops *const *o = linalg_all(); *o; o++) {
            int n = sizes[s], N = linalg_pad(n), t = 200 + n;
            size_t NN = (size_t)N * (size_t)N;
            if (!(*o)->supported())
                continue;
            float *x = room((size_t)t * (size_t)N), *y = room((size_t)t * (size_t)N), *px = room(linalg_packed(N, t)),
                  *py = room(linalg_packed(N, t));
            float *h = calloc(NN, 4), *h2 = calloc(NN, 4), *c = calloc(NN, 4);
            make_inputs(x, t, n, N, 1);
            make_inputs(y, t, n, N, 2);
            linalg_pack(one, px, x, (size_t)N, N, t);
            linalg_pack(two, py, y, (size_t)N, N, t);
            linalg_gram(*o, one, h, N, px, t);
            linalg_gram(*o, two, h2, N, px, t);
            linalg_mirror(one, h, N);
            linalg_mirror(two, h2, N);
            linalg_cross(*o, two, c, N, px, py, t);
            assert_memory_equal(h, h2, NN * 4);                 /* the same bits with any number of threads */
            memset(h2, 0, NN * 4);
            linalg_gram(&linalg_plain, two, h2, N, px, t);
            linalg_mirror(two, h2, N);
            assert_memory_equal(h, h2, NN * 4);                 /* and with any set */
            for (int i = 0; i < N; i++)
                for (int k = 0; k < N; k++) {
                    double want = 0, cross = 0, size = 0, size2 = 0;
                    for (int j = 0; j < t; j++) {
                        double a = (double)x[j * N + i], b = (double)x[j * N + k], d = (double)y[j * N + k];
                        want += a * b, cross += a * d, size += fabs(a * b), size2 += fabs(a * d);
                    }
                    /* t roundings of products and sums: Higham 2002, section 3.1 */
                    assert_true(fabs(want - (double)h[i * N + k]) <= 2 * (t + 2) * (double)FLT_EPSILON * size);
                    assert_true(fabs(cross - (double)c[i * N + k]) <= 2 * (t + 2) * (double)FLT_EPSILON * size2);
                }
            free(x), free(y), free(px), free(py), free(h), free(h2), free(c);
        }
    pool_close(one);
    pool_close(two);
}

static void cholesky_factors_multiply_to_the_matrix(void **state)
{
    (void)state;
    struct pool *one = pool_open(1, NULL), *two = pool_open(2, NULL);
    for (int s = 0; s < (int)(sizeof sizes / sizeof *sizes); s++) {
        int n = sizes[s], N = linalg_pad(n), t = 2 * N + 50;
        size_t NN = (size_t)N * (size_t)N;
        float *x = room((size_t)t * (size_t)N), *px = room(linalg_packed(N, t)), *h = calloc(NN, 4),
              *l = malloc(NN * 4), *l2 = malloc(NN * 4);
        make_inputs(x, t, n, N, 3);
        linalg_pack(one, px, x, (size_t)N, N, t);
        linalg_gram(&linalg_plain, one, h, N, px, t);
        linalg_mirror(one, h, N);
        double mean = 0;
        for (int i = 0; i < n; i++)
            mean += (double)h[i * N + i] / n;
        for (int i = 0; i < N; i++)
            h[i * N + i] += (float)(i < n ? 0.01 * mean : mean);
        for (const struct linalg_ops *const *o = linalg_all(); *o; o++) {
            if (!(*o)->supported())
                continue;
            memcpy(l, h, NN * 4);
            memcpy(l2, h, NN * 4);
            assert_int_equal(linalg_cholesky(*o, one, l, N, NULL), 0);
            assert_int_equal(linalg_cholesky(&linalg_plain, two, l2, N, NULL), 0);
            assert_memory_equal(l, l2, NN * 4);                 /* the same bits with any set and number of threads */
            for (int i = 0; i < N; i++)
                for (int k = 0; k < N; k++) {
                    double sum = 0;
                    for (int j = 0; j < N; j++)
                        sum += (double)l[i * N + j] * (double)l[k * N + j];
                    /* |A - LL'| <= N eps sqrt(a_ii a_kk): Higham 2002, theorem 10.4, with room for
                     *   a factor of 4 */
                    double bound = 4 * N * (double)FLT_EPSILON * sqrt((double)h[i * N + i] * (double)h[k * N + k]);
                    assert_true(fabs(sum - (double)h[i * N + k]) <= bound);
                    assert_true(k <= i || l[i * N + k] == 0);
                }
            assert_int_equal(linalg_invert_lower(*o, one, l, N, NULL), 0);
            assert_int_equal(linalg_invert_lower(&linalg_plain, two, l2, N, NULL), 0);
            assert_memory_equal(l, l2, NN * 4);
            double worst = 0;
            /* inv(L) A inv(L)' = I.  The condition number is about 1e4, so f32's error of 1e-7
             * grows to about 1e-3 */
            double inner[320];
            assert_true(N <= 320);
            for (int k = 0; k < N; k += 7) {
                for (int a = 0; a < N; a++) {
                    inner[a] = 0;
                    for (int b = 0; b <= k; b++)
                        inner[a] += (double)h[a * N + b] * (double)l[k * N + b];
                }
                for (int i = 0; i < N; i++) {
                    double sum = 0;
                    for (int a = 0; a <= i; a++)
                        sum += inner[a] * (double)l[i * N + a];
                    worst = fmax(worst, fabs(sum - (i == k)));
                }
            }
            assert_true(worst < 1e-3);
        }
        l[0] = -1;
        memcpy(l, h, NN * 4);
        l[(n / 2) * N + n / 2] = -1;            /* a matrix that is not positive definite gives an
                                                 * error, not a result */
        struct err e;
        assert_int_equal(linalg_cholesky(linalg_pick(), one, l, N, &e), -1);
        free(x), free(px), free(h), free(l), free(l2);
    }
    pool_close(one);
    pool_close(two);
}

static int group_of(enum qtype type)
{
    return type == QT_NVFP4 ? 16 : type == QT_NF4 ? 64 : type == QT_T3 ? 256 : 32;
}

static void levels_are_the_nearest(void **state)
{
    (void)state;
    static const enum qtype types[] = { QT_NL4, QT_NF4, QT_I4, QT_I4M, QT_I4Z, QT_I8, QT_M2, QT_M3, QT_M5, QT_M6, QT_T2,
                                        QT_T3, QT_MXFP4, QT_NVFP4, QT_MXFP8 };
    struct rng r = { 5 };
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++) {
        struct mat m;
        struct level_grid g;
        const int act_group = qtype_takes_floats(qtype_info(types[i])) ? 0 : types[i] == QT_T3 ? 128 : 32;
        assert_int_equal(mat_init(&m, types[i], group_of(types[i]), act_group, 1, 64, NULL), 0);
        assert_int_equal(level_grid_of(&m, &g), 0);
        for (int k = 0; k < 2000; k++) {
            float t[PANEL], level[PANEL];
            int32_t index[PANEL];
            for (int j = 0; j < PANEL; j++)
                t[j] = (float)((rng_double(&r) - 0.5) * (k % 10 ? 2.2 : 1e6) *
                               (double)fmaxf(fabsf(g.level[0]), g.level[g.n - 1]));
            for (const struct linalg_ops *const *o = linalg_all(); *o; o++) {
                if (!(*o)->supported())
                    continue;
                (*o)->nearest(&g, t, level, index);
                for (int j = 0; j < PANEL; j++) {
                    float best = INFINITY;
                    for (int c = 0; c < g.n; c++)
                        best = fminf(best, fabsf(t[j] - g.level[c]));
                    assert_true(index[j] >= 0 && index[j] < g.n && level[j] == g.level[index[j]]);
                    assert_true(fabsf(t[j] - level[j]) <= best * 1.0001f);
                }
            }
        }
    }
    struct mat f;
    struct level_grid g;
    assert_int_equal(mat_init(&f, QT_F16, 32, 0, 1, 64, NULL), 0);
    assert_int_equal(level_grid_of(&f, &g), -1);
}

/* The squared size of the change in the outputs if row w is replaced by v [n]: (w - v) H (w -
 * v)'. */
static double output_size(const float *w, const float *v, int n, const float *h, int N)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            sum += ((double)w[i] - (double)v[i]) * (double)h[i * N + k] * ((double)w[k] - (double)v[k]);
    return sum;
}

/* The error of a quantized matrix's outputs, relative to their size. */
static double output_error(const struct mat *m, const float *w, const float *h, int N)
{
    double err = 0, size = 0;
    float *q = malloc((size_t)m->cols * 4), *zero = calloc((size_t)m->cols, 4);
    for (int r = 0; r < m->rows; r++) {
        mat_decode_row(m, r, q);
        err += output_size(w + r * m->cols, q, m->cols, h, N);
        size += output_size(w + r * m->cols, zero, m->cols, h, N);
    }
    free(q);
    free(zero);
    return err / size;
}

/* Compare H = D + UU' with H itself: they are equal if there are enough directions, and U is the
 * same for any number of threads and any shape. */
static void few_directions_describe_the_inputs(void **state)
{
    (void)state;
    enum { RANK = 32, T = 300 };
    struct pool *one = pool_open(1, NULL), *two = pool_open(2, NULL);
    for (int s = 0; s < (int)(sizeof sizes / sizeof *sizes); s++) {
        int n = sizes[s], N = linalg_pad(n);
        float *x = room((size_t)T * (size_t)N);
        struct rng r = { 3 };
        struct gptq a, b;
        memset(x, 0, (size_t)T * (size_t)N * 4);
        float mix[8][257];                                      /* 8 directions, strong, and noise in every channel */
        for (int i = 0; i < 8 * 257; i++)
            mix[i / 257][i % 257] = (float)gauss(&r);
        for (int t = 0; t < T; t++) {
            double z[8];
            for (int d = 0; d < 8; d++)
                z[d] = gauss(&r) * (8 - d);
            for (int k = 0; k < n; k++) {
                double v = 0.1 * gauss(&r);
                for (int d = 0; d < 8; d++)
                    v += z[d] * (double)mix[d][k];
                x[(size_t)t * (size_t)N + (size_t)k] = (float)v;
            }
        }
        assert_int_equal(gptq_init_low(&a, linalg_pick(), one, n, x, (size_t)N, T, RANK, NULL), 0);
        assert_int_equal(gptq_init_low(&b, linalg_pick(), two, n, x, (size_t)N, T, RANK, NULL), 0);
        assert_int_equal(a.rank, n < RANK ? 0 : RANK);
        assert_memory_equal(a.u, b.u, (size_t)n * (size_t)a.rank * 4);
        assert_memory_equal(a.p, b.p, (size_t)n * (size_t)a.rank * 4);
        double wrong = 0, size = 0;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < n; k++) {
                double h = 0, low = i == k ? (double)a.d[i] : 0;
                for (int t = 0; t < T; t++)
                    h += (double)x[(size_t)t * (size_t)N + (size_t)i] * (double)x[(size_t)t * (size_t)N + (size_t)k];
                for (int c = 0; c < a.rank; c++)
                    low += (double)a.u[i * a.rank + c] * (double)a.u[k * a.rank + c];
                wrong += i == k ? 0 : (h - low) * (h - low);
                size += h * h;
            }
        /* x is made of 8 strong directions, whose squared lengths add up to (1..8)^2 = 204, and
         * noise of 0.1 in each channel: so less than a hundredth of H lies outside of the
         * directions */
        assert_true(a.rank == 0 || sqrt(wrong / size) < 0.01);
        gptq_release(&a);
        gptq_release(&b);
        free(x);
    }
    pool_close(one);
    pool_close(two);
}

/* Round all tiles of w [rows][cols] to `to`, with error feedback. */
static void round_tiles(struct gptq *g, const struct mat *m, const struct level_grid *grid, float *w, int rows,
                        int cols, struct qrow *q, uint8_t *to, void *scratch)
{
    for (int t = 0; t < m->n_tiles; t++) {
        const int n = rows - t * TILE_ROWS < TILE_ROWS ? rows - t * TILE_ROWS : TILE_ROWS;
        gptq_tile(g, linalg_pick(), m, grid, w + t * TILE_ROWS * cols, cols, n, q, to + (size_t)t * m->tile_bytes,
                  scratch);
    }
}

static void feedback_reduces_the_error(void **state)
{
    (void)state;
    static const enum qtype types[] = { QT_NL4, QT_I4, QT_I4M, QT_I4Z, QT_NF4, QT_I8, QT_M3, QT_M5, QT_I8R,
                                        QT_MXFP4, QT_NVFP4, QT_MXFP8 };
    enum { COLS = 200, ROWS = 43, T = 600 };
    int N = linalg_pad(COLS);
    struct pool *p = pool_open(2, NULL);
    float *x = room((size_t)T * (size_t)N), *px = room(linalg_packed(N, T)), *w = malloc(ROWS * COLS * 4),
          *copy = malloc(ROWS * COLS * 4);
    struct rng r = { 8 };
    make_inputs(x, T, COLS, N, 9);
    linalg_pack(p, px, x, (size_t)N, N, T);
    for (int i = 0; i < ROWS * COLS; i++)
        w[i] = (float)(gauss(&r) * 0.05);
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++) {
        struct mat m;
        struct qrow q;
        struct level_grid grid;
        struct gptq g;
        float *h = square(N), *plain = calloc((size_t)N * (size_t)N, 4);
        const int act_group = qtype_takes_floats(qtype_info(types[i])) ? 0 : 64;
        assert_int_equal(mat_init(&m, types[i], group_of(types[i]), act_group, ROWS, COLS, NULL), 0);
        assert_int_equal(qrow_init(&q, &m, NULL), 0);
        linalg_gram(linalg_pick(), p, h, N, px, T);
        memcpy(plain, h, (size_t)N * (size_t)N * 4);
        linalg_mirror(p, plain, N);
        assert_int_equal(gptq_init(&g, linalg_pick(), p, COLS, h, square(N), NULL, NULL), 0);
        assert_true(g.damping == 0.01);
        assert_int_equal(level_grid_of(&m, &grid), 0);
        uint8_t *out = room(m.size / 4), *rounded = room(m.size / 4);
        void *scratch = room(gptq_scratch(&g) / 4 + 1);
        float diag[COLS];
        for (int k = 0; k < COLS; k++)
            diag[k] = plain[k * N + k];
        m.data = rounded;
        for (int row = 0; row < ROWS; row++) {
            uint8_t *tile = rounded + (size_t)(row / TILE_ROWS) * m.tile_bytes;
            if (row % TILE_ROWS == 0)
                tile_clear(&m, tile);
            quantize_row(&m, w + row * COLS, diag, QUANT_SEARCH, &q);
            tile_put(&m, tile, row % TILE_ROWS, &q);
        }
        double nearest = output_error(&m, w, plain, N);
        memcpy(copy, w, ROWS * COLS * 4);
        m.data = out;
        for (int sweeps = 0; sweeps <= 4; sweeps += 4) {
            g.sweeps = sweeps;
            round_tiles(&g, &m, &grid, copy, ROWS, COLS, &q, out, scratch);
            assert_memory_equal(copy, w, ROWS * COLS * 4);      /* without C nothing is corrected */
            double fed = output_error(&m, w, plain, N);
            print_message("# %-4s output error: rounded %.3e, fed back (%d sweeps) %.3e\n", qtype_info(types[i])->name,
                          nearest, sweeps, fed);
            /* With inputs as correlated as these, feedback reduces the error by a third or more. */
            assert_true(fed < 0.7 * nearest);
        }
        gptq_release(&g);
        for (int rank = 32; rank <= 512; rank *= 4) { /* 512 exceeds the number of directions */
            assert_int_equal(gptq_init_low(&g, linalg_pick(), p, COLS, x, (size_t)N, T, rank, NULL), 0);
            round_tiles(&g, &m, &grid, copy, ROWS, COLS, &q, out, scratch);
            double fed = output_error(&m, w, plain, N);
            print_message("# %-4s output error: fed back along %d directions %.3e\n", qtype_info(types[i])->name,
                          g.rank, fed);
            /* 32 of 200 directions reduce the error by a third or more, 128 nearly as much as all
             * directions. */
            assert_true(fed < (rank == 32 ? 0.65 : 0.5) * nearest);
            gptq_release(&g);
        }
        qrow_release(&q);
        free(plain), free(out), free(rounded), free(scratch);
    }
    pool_close(p);
    free(x), free(px), free(w), free(copy);
}

/* If the quantized layers change the inputs by a known linear map, C moves the weights half of the
 * way towards those that undo the map. */
static void correction_goes_half_way(void **state)
{
    (void)state;
    enum { COLS = 64, T = 2000 };
    int N = COLS;
    struct pool *p = pool_open(1, NULL);
    float *x = room((size_t)T * COLS), *bad = room((size_t)T * COLS), *diff = room((size_t)T * COLS),
          *px = room((size_t)T * COLS), *pd = room((size_t)T * COLS);
    float *h = square(COLS), *c = square(COLS), w[32 * COLS], before[32 * COLS], want[32 * COLS], plain[COLS * COLS];
    struct rng r = { 11 };
    make_inputs(x, T, COLS, N, 10);
    for (int i = 0; i < T * COLS; i++) {
        bad[i] = x[i] * 0.8f;                   /* so the best weights are w / 0.8 */
        diff[i] = x[i] - bad[i];
    }
    linalg_pack(p, px, bad, COLS, COLS, T);
    linalg_pack(p, pd, diff, COLS, COLS, T);
    linalg_gram(linalg_pick(), p, h, N, px, T);
    linalg_cross(linalg_pick(), p, c, N, pd, px, T);
    memcpy(plain, h, sizeof plain);
    linalg_mirror(p, plain, COLS);
    for (int i = 0; i < 32 * COLS; i++) {
        before[i] = w[i] = (float)gauss(&r);
        want[i] = before[i] * (float)(1 + 0.5 * (1 / 0.8 - 1));
    }
    struct mat m;
    struct gptq g;
    struct level_grid grid;
    struct qrow q;
    assert_int_equal(mat_init(&m, QT_I8, 32, 32, 32, COLS, NULL), 0);
    assert_int_equal(qrow_init(&q, &m, NULL), 0);
    assert_int_equal(gptq_init(&g, linalg_pick(), p, COLS, h, square(COLS), c, NULL), 0);
    level_grid_of(&m, &grid);
    uint8_t *out = room(m.size / 4);
    void *scratch = room(gptq_scratch(&g) / 4 + 1);
    gptq_tile(&g, linalg_pick(), &m, &grid, w, COLS, 32, &q, out, scratch);
    double err = 0, size = 0;
    for (int i = 0; i < 32 * COLS; i += COLS) {
        err += output_size(w + i, want + i, COLS, plain, COLS);
        size += output_size(before + i, want + i, COLS, plain, COLS);
    }
    print_message("# correction: %.4f of the error is left\n", err / size);
    assert_true(err < 0.02 * size);             /* damping holds weak channels back a little */
    gptq_release(&g);
    qrow_release(&q);
    pool_close(p);
    free(x), free(bad), free(diff), free(px), free(pd), free(out), free(scratch);
}

/* Inputs that never vary, or are always zero: damping makes the factorization possible.  A matrix
 * that is not positive definite even then is refused with the reason. */
static void degenerate_inputs_work_or_are_refused(void **state)
{
    (void)state;
    struct pool *p = pool_open(1, NULL);
    struct gptq g;
    struct err e;
    float *h = square(64);
    assert_int_equal(gptq_init(&g, linalg_pick(), p, 50, h, square(64), NULL, &e), 0);      /* all zero */
    gptq_release(&g);
    h = square(64);
    for (int i = 0; i < 50; i++)
        for (int k = 0; k <= i; k++)
            h[i * 64 + k] = 1e6f;                                               /* rank one */
    assert_int_equal(gptq_init(&g, linalg_pick(), p, 50, h, square(64), NULL, &e), 0);
    gptq_release(&g);
    h = square(64);
    for (int i = 0; i < 50; i++)
        for (int k = 0; k <= i; k++)
            h[i * 64 + k] = i == k ? 1 : 1e5f;                                  /* no covariance at all */
    assert_int_equal(gptq_init(&g, linalg_pick(), p, 50, h, square(64), NULL, &e), -1);
    assert_non_null(strstr(e.msg, "positive definite"));
    pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sets_compute_the_same_products),
        cmocka_unit_test(cholesky_factors_multiply_to_the_matrix), cmocka_unit_test(levels_are_the_nearest),
        cmocka_unit_test(few_directions_describe_the_inputs), cmocka_unit_test(feedback_reduces_the_error),
        cmocka_unit_test(correction_goes_half_way), cmocka_unit_test(degenerate_inputs_work_or_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* linalg.c - Gram matrices, Cholesky factors and inverses on top of the panel operations. */
#include "libcommon/convert/linalg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* TOKENS: tokens of one pass of a Gram matrix, so that a panel of them stays in L1; ROWS: rows of a
 * job */
enum { TOKENS = 128, ROWS = 96 };

const struct linalg_ops *const *linalg_all(void)
{
    static const struct linalg_ops *const all[] = {
#ifdef ZSE_X86
        &linalg_avx512, &linalg_avx2,
#endif
#ifdef ZSE_ARM64
        &linalg_neon,
#endif
        &linalg_plain, NULL,
    };
    return all;
}

const struct linalg_ops *linalg_pick(void)
{
    const struct linalg_ops *const *o = linalg_all();
    while (!(*o)->supported())
        o++;
    return *o;
}

struct panel_job {
    const struct linalg_ops *o;
    float *out;
    const float *a, *b, *small;
    size_t ldx;
    int N, t, at, symmetric;
};

/* Pack panel i of x [t, ldx] into contiguous blocks: block c has the tokens from c * TOKENS on,
 * each with its 32 columns.  (Unpacked, rows would map to few sets of the cache.) */
static void pack_panel(void *arg, int i, int thread)
{
    (void)thread;
    const struct panel_job *s = arg;
    float *to = s->out + (size_t)i * PANEL * (size_t)s->t;
    for (int t = 0; t < s->t; t++)
        memcpy(to + (size_t)t * PANEL, s->a + (size_t)t * s->ldx + (size_t)i * PANEL, PANEL * sizeof *to);
}

/* Compute column panel i of out += A'B from packed A and B; for a symmetric matrix only the
 * blocks from the diagonal down. */
static void product_panel(void *arg, int i, int thread)
{
    (void)thread;
    const struct panel_job *s = arg;
    size_t N = (size_t)s->N, panel = (size_t)s->t * PANEL;
    for (int t = 0; t < s->t; t += TOKENS) {
        const float *b = s->b + (size_t)i * panel + (size_t)t * PANEL;
        int n = s->t - t < TOKENS ? s->t - t : TOKENS;
        for (int r = s->symmetric ? i : 0; r < s->N / PANEL; r++)
            s->o->panel(s->out + (size_t)r * PANEL * N + (size_t)i * PANEL, N, PANEL,
                        s->a + (size_t)r * panel + (size_t)t * PANEL, PANEL, 1, b, PANEL, n, 1);
    }
}

size_t linalg_packed(int N, int t) { return (size_t)N * (size_t)t; }

void linalg_pack(struct pool *p, float *packed, const float *x, size_t ldx, int N, int t)
{
    pool_run(p, N / PANEL, pack_panel, &(struct panel_job){ .out = packed, .a = x, .ldx = ldx, .N = N, .t = t });
}

void linalg_gram(const struct linalg_ops *o, struct pool *p, float *h, int N, const float *packed, int t)
{
    pool_run(p, N / PANEL, product_panel, &(struct panel_job){ .o = o, .out = h, .a = packed, .b = packed, .N = N,
                                                               .t = t,
                                                         .symmetric = 1 });
}

void linalg_cross(const struct linalg_ops *o, struct pool *p, float *c, int N, const float *a, const float *b, int t)
{
    pool_run(p, N / PANEL, product_panel, &(struct panel_job){ .o = o, .out = c, .a = a, .b = b, .N = N, .t = t });
}

static void mirror_panel(void *arg, int i, int thread)
{
    (void)thread;
    const struct panel_job *s = arg;
    size_t N = (size_t)s->N;
    for (size_t r = (size_t)i * PANEL; r < (size_t)(i + 1) * PANEL; r++)
        for (size_t c = r + 1; c < N; c++)
            s->out[r * N + c] = s->out[c * N + r];
}

void linalg_mirror(struct pool *p, float *h, int N)
{
    pool_run(p, N / PANEL, mirror_panel, &(struct panel_job){ .out = h, .N = N });
}

/* Inverse of the lower 32 x 32 block l, in double; its upper triangle is 0. */
static void invert_small(float *inverse, const float *l, size_t ldl)
{
    double v[PANEL][PANEL] = { { 0 } };
    for (size_t i = 0; i < PANEL; i++)
        for (size_t j = 0; j <= i; j++) {
            double sum = i == j;
            for (size_t k = j; k < i; k++)
                sum -= (double)l[i * ldl + k] * v[k][j];
            v[i][j] = sum / (double)l[i * ldl + i];
        }
    for (int i = 0; i < PANEL * PANEL; i++)
        inverse[i] = (float)v[i / PANEL][i % PANEL];
}

/* Cholesky factor of a 32 x 32 block in double.  -1: not positive definite. */
static int factor_small(float *a, size_t lda)
{
    double l[PANEL][PANEL] = { { 0 } };
    for (int i = 0; i < PANEL; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = (double)a[(size_t)i * lda + (size_t)j];
            for (int k = 0; k < j; k++)
                sum -= l[i][k] * l[j][k];
            if (i == j && !(sum > 0 && isfinite(sum)))
                return -1;
            l[i][j] = i == j ? sqrt(sum) : sum / l[j][j];
        }
        for (int j = 0; j < PANEL; j++)
            a[(size_t)i * lda + (size_t)j] = (float)l[i][j];
    }
    return 0;
}

/* Subtract the contribution of earlier columns from the rows of block column `at`, from the
 * diagonal down.  small: the earlier columns of the diagonal block's rows, transposed. */
static void column_update(void *arg, int i, int thread)
{
    (void)thread;
    const struct panel_job *s = arg;
    int row = s->at + i * ROWS, n = s->N - row < ROWS ? s->N - row : ROWS;
    float *a = s->out + (size_t)row * (size_t)s->N;
    s->o->panel(a + s->at, (size_t)s->N, n, a, 1, s->N, s->small, PANEL, s->at, -1);
}

/* Multiply the rows below the diagonal block by the transposed inverse of that block's factor
 * (`small`). */
static void column_solve(void *arg, int i, int thread)
{
    (void)thread;
    const struct panel_job *s = arg;
    int row = s->at + PANEL + i * ROWS, n = s->N - row < ROWS ? s->N - row : ROWS;
    float *a = s->out + (size_t)row * (size_t)s->N + s->at, x[ROWS * PANEL];
    for (int r = 0; r < n; r++) {
        memcpy(x + r * PANEL, a + (size_t)r * (size_t)s->N, PANEL * sizeof *x);
        memset(a + (size_t)r * (size_t)s->N, 0, PANEL * sizeof *x);
    }
    s->o->panel(a, (size_t)s->N, n, x, 1, PANEL, s->small, PANEL, PANEL, 1);
}

/* Left-looking: one block column at a time, so that most of the work is one long panel product. */
int linalg_cholesky(const struct linalg_ops *o, struct pool *p, float *a, int N, struct err *e)
{
    float *small = malloc((size_t)N * PANEL * sizeof *small), inverse[PANEL * PANEL];
    if (!small)
        return err_nomem(e, "a Cholesky factor");
    int bad = 0;
    for (int at = 0; at < N; at += PANEL) {
        struct panel_job s = { .o = o, .out = a, .small = small, .N = N, .at = at };
        for (int r = 0; r < PANEL; r++)
            for (int j = 0; j < at; j++)
                small[j * PANEL + r] = a[(size_t)(at + r) * (size_t)N + (size_t)j];
        pool_run(p, (N - at + ROWS - 1) / ROWS, column_update, &s);
        bad = factor_small(a + (size_t)at * (size_t)N + at, (size_t)N);
        if (bad)
            break;
        invert_small(inverse, a + (size_t)at * (size_t)N + at, (size_t)N);
        for (int r = 0; r < PANEL; r++)
            for (int j = 0; j < PANEL; j++)
                small[j * PANEL + r] = inverse[r * PANEL + j];
        pool_run(p, (N - at - PANEL + ROWS - 1) / ROWS, column_solve, &s);
    }
    free(small);
    if (bad)
        return err_set(e, ERR_SHAPE, "the matrix is not positive definite");
    for (int r = 0; r < N; r++)
        memset(a + (size_t)r * (size_t)N + r + 1, 0, (size_t)(N - r - 1) * sizeof *a);
    return 0;
}

/* Block (at, i) of the inverse: -inv(L_at,at) * sum over k of L_at,k inv(L)_k,i.  a: a copy of
 * block row `at` of L. */
static void invert_block(void *arg, int i, int thread)
{
    (void)thread;
    const struct panel_job *s = arg;
    size_t N = (size_t)s->N;
    int from = i * PANEL;
    float sum[PANEL * PANEL] = { 0 }, *out = s->out + (size_t)s->at * N + from;
    s->o->panel(sum, PANEL, PANEL, s->a + from, 1, s->N, s->out + (size_t)from * N + from, N, s->at - from, 1);
    for (int r = 0; r < PANEL; r++)
        memset(out + (size_t)r * N, 0, PANEL * sizeof *out);
    s->o->panel(out, N, PANEL, s->small, 1, PANEL, sum, PANEL, PANEL, -1);
}

int linalg_invert_lower(const struct linalg_ops *o, struct pool *p, float *l, int N, struct err *e)
{
    float *row = malloc((size_t)N * PANEL * sizeof *row), inverse[PANEL * PANEL];
    if (!row)
        return err_nomem(e, "the inverse of a Cholesky factor");
    for (int at = 0; at < N; at += PANEL) {
        float *diagonal = l + (size_t)at * (size_t)N + at;
        memcpy(row, l + (size_t)at * (size_t)N, (size_t)N * PANEL * sizeof *row);
        invert_small(inverse, diagonal, (size_t)N);
        pool_run(p, at / PANEL, invert_block, &(struct panel_job){ .o = o, .out = l, .a = row, .small = inverse, .N = N,
                                                             .at = at });
        for (int r = 0; r < PANEL; r++)
            memcpy(diagonal + (size_t)r * (size_t)N, inverse + r * PANEL, PANEL * sizeof *inverse);
    }
    free(row);
    return 0;
}

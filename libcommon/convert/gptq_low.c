/* gptq_low.c - describe inputs by few directions: H = D + UU', D diagonal, U [n, rank].
 *
 * Inputs of a linear layer have most of their energy in few directions that all tokens share, and
 * 3000 tokens determine only these reliably; the rest of each channel is treated as independent of
 * the others.  This takes n * rank numbers instead of n * n, and no factorization of order n:
 *   U   is Nystroem's approximation H Z inv(Z'HZ) Z'H with Z = orth(H Omega), Omega random (Halko,
 *       Martinsson, Tropp 2011, arXiv:0909.4061, section 5.5)
 *   p_j determines how column j compensates earlier errors.  Let F be the set of column j and of
 *       the columns rounded after it, and s = sum of u_i e_i over the errors e_i of the columns
 *       before.  The minimum of sum over F of d e^2 + |s + sum over F of u e|^2 is at e_j = -p_j s,
 *       with p_j = inv(I + sum over F of u u'/d) u_j / d_j (Woodbury).  The inverse is updated by a
 *       rank-1 matrix for each column, from the last one on */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/convert/gptq.h"

enum { BLOCK = 128 };           /* number of tokens or channels of a job */

struct x_product {
    const struct linalg_ops *o;
    const float *x, *from;      /* x [n_tokens, ldx] */
    float *to;
    size_t ldx;
    int n, n_tokens, rank;
};

/* Job i of y [n_tokens, rank] = x z: a block of tokens. */
static void times_x(void *arg, int i, int thread)
{
    const struct x_product *s = arg;
    size_t rank = (size_t)s->rank, t = (size_t)i * BLOCK;
    int n = s->n_tokens - i * BLOCK < BLOCK ? s->n_tokens - i * BLOCK : BLOCK;
    (void)thread;
    memset(s->to + t * rank, 0, (size_t)n * rank * sizeof *s->to);
    for (int k = 0; k < s->n; k += BLOCK)
        for (size_t c = 0; c < rank; c += PANEL)
            s->o->panel(s->to + t * rank + c, rank, n, s->x + t * s->ldx + k, 1, (ptrdiff_t)s->ldx,
                        s->from + (size_t)k * rank + c, rank, s->n - k < BLOCK ? s->n - k : BLOCK, 1);
}

/* Job i of z [n, rank] = x' y: a block of channels. */
static void times_x_transposed(void *arg, int i, int thread)
{
    const struct x_product *s = arg;
    size_t rank = (size_t)s->rank, k = (size_t)i * BLOCK;
    int n = s->n - i * BLOCK < BLOCK ? s->n - i * BLOCK : BLOCK;
    (void)thread;
    memset(s->to + k * rank, 0, (size_t)n * rank * sizeof *s->to);
    for (int t = 0; t < s->n_tokens; t += BLOCK)
        for (size_t c = 0; c < rank; c += PANEL)
            s->o->panel(s->to + k * rank + c, rank, n, s->x + (size_t)t * s->ldx + k, (ptrdiff_t)s->ldx, 1,
                        s->from + (size_t)t * rank + c, rank, s->n_tokens - t < BLOCK ? s->n_tokens - t : BLOCK, 1);
}

static double dot(const double *a, const double *b, int n)
{
    double s[8] = { 0 };
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++)
            s[l] += a[i + l] * b[i + l];
    for (; i < n; i++)
        s[0] += a[i] * b[i];
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

static void add(double *to, const double *v, double by, int n)
{
    for (int i = 0; i < n; i++)
        to[i] += by * v[i];
}

/* Make the columns of z [n, rank] orthonormal (Gram-Schmidt, with each projection done twice); a
 * column that depends on earlier ones becomes 0.  q [rank, n] is scratch. */
static void orthonormal(float *z, int n, int rank, double *q)
{
    for (int c = 0; c < rank; c++) {
        double *v = q + (size_t)c * (size_t)n, before, after;
        for (int k = 0; k < n; k++)
            v[k] = (double)z[(size_t)k * (size_t)rank + (size_t)c];
        before = dot(v, v, n);
        for (int twice = 0; twice < 2; twice++)
            for (int i = 0; i < c; i++)
                add(v, q + (size_t)i * (size_t)n, -dot(v, q + (size_t)i * (size_t)n, n), n);
        after = dot(v, v, n);
        double by = after > 1e-20 * before ? 1 / sqrt(after) : 0;
        for (int k = 0; k < n; k++)
            v[k] *= by;
    }
    for (int k = 0; k < n; k++)
        for (int c = 0; c < rank; c++)
            z[(size_t)k * (size_t)rank + (size_t)c] = (float)q[(size_t)c * (size_t)n + (size_t)k];
}

/* Replace the lower triangle of a [rank, rank] by its Cholesky factor.  Directions without
 * energy get a huge pivot, so that they have no effect. */
static void factor(double *a, int rank)
{
    double most = 0;
    for (int i = 0; i < rank; i++)
        most = fmax(most, a[(size_t)i * (size_t)rank + (size_t)i]);
    for (int i = 0; i < rank; i++) {
        double *l = a + (size_t)i * (size_t)rank;
        for (int j = 0; j < i; j++)
            l[j] = (l[j] - dot(l, a + (size_t)j * (size_t)rank, j)) / a[(size_t)j * (size_t)rank + (size_t)j];
        double d = l[i] - dot(l, l, i);
        l[i] = d > 1e-9 * most ? sqrt(d) : INFINITY;
    }
}

/* Compute U = B inv(L)', where B = HZ and L is the Cholesky factor of Z'HZ = Z'B. */
static int nystroem(struct gptq *g, const float *z, const float *b, double *row, struct err *e)
{
    int n = g->n, rank = g->rank;
    size_t r = (size_t)rank;
    double *a = calloc(r * r, sizeof *a);
    if (!a)
        return err_nomem(e, "the directions of inputs");
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < r; i++)
            for (size_t c = 0; c <= i; c++)
                a[i * r + c] += (double)z[(size_t)k * r + i] * (double)b[(size_t)k * r + c];
    factor(a, rank);
    for (int k = 0; k < n; k++)
        for (size_t c = 0; c < r; c++) {
            row[c] = ((double)b[(size_t)k * r + c] - dot(a + c * r, row, (int)c)) / a[c * r + c];
            g->u[(size_t)k * r + c] = (float)row[c];
        }
    free(a);
    return 0;
}

/* Compute g->p and g->d, column by column, starting with the column that is rounded last. */
static int compensation(struct gptq *g, struct err *e)
{
    int n = g->n, rank = g->rank;
    size_t r = (size_t)rank;
    double *inverse = calloc(r * r + 2 * r, sizeof *inverse), *v = inverse + r * r, *u = v + r;
    if (!inverse)
        return err_nomem(e, "the directions of inputs");
    for (size_t i = 0; i < r; i++)
        inverse[i * r + i] = 1;
    for (int i = 0; i < n; i++) {
        size_t j = (size_t)g->order[i];
        for (size_t c = 0; c < r; c++)
            u[c] = (double)g->u[j * r + c];
        for (size_t c = 0; c < r; c++)
            v[c] = dot(inverse + c * r, u, rank);
        double own = fmax((double)g->diag[j] - dot(u, u, rank), 0.01 * (double)g->diag[j]),
               by = 1 / (own + dot(u, v, rank));
        g->d[j] = (float)own;
        for (size_t c = 0; c < r; c++) {
            g->p[j * r + c] = (float)(v[c] * by);
            add(inverse + c * r, v, -v[c] * by, rank);
        }
    }
    free(inverse);
    return 0;
}

int gptq_init_low(struct gptq *g, const struct linalg_ops *o, struct pool *p, int n, const float *x, size_t ldx,
                  int n_tokens, int rank, struct err *e)
{
    int limit = (n < n_tokens ? n : n_tokens) / PANEL * PANEL, rc = -1;
    rank = rank < limit ? rank : limit;
    *g = (struct gptq){ .n = n, .N = linalg_pad(n), .rank = rank, .sweeps = 1 };
    size_t r = (size_t)rank, floats = (size_t)n * r;
    float *z = malloc((floats + 1) * sizeof *z), *y = malloc(((size_t)n_tokens * r + 1) * sizeof *y);
    double *q = malloc((floats + r + 1) * sizeof *q);
    g->order = malloc((size_t)n * sizeof *g->order);
    g->diag = calloc(2 * (size_t)n, sizeof *g->diag);
    g->u = malloc((2 * floats + 1) * sizeof *g->u);
    if (!z || !y || !q || !g->order || !g->diag || !g->u) {
        err_nomem(e, "the directions of inputs");
        goto done;
    }
    g->d = g->diag + n;
    g->p = g->u + floats;
    for (int t = 0; t < n_tokens; t++)
        for (int k = 0; k < n; k++)
            g->diag[k] += x[(size_t)t * ldx + (size_t)k] * x[(size_t)t * ldx + (size_t)k];
    double mean = 0;
    for (int k = 0; k < n; k++)
        mean += (double)g->diag[k] / n;
    for (int k = 0; k < n; k++)
        g->diag[k] += (float)(mean > 0 ? 0.01 * mean : 1);
    struct rng random = { 1 };
    for (size_t i = 0; i < floats; i++)
        z[i] = (float)(rng_double(&random) - 0.5);
    int blocks = (n + BLOCK - 1) / BLOCK, token_blocks = (n_tokens + BLOCK - 1) / BLOCK;
    struct x_product forth = { o, x, z, y, ldx, n, n_tokens, rank }, back = { o, x, y, z, ldx, n, n_tokens, rank };
    pool_run(p, token_blocks, times_x, &forth);
    pool_run(p, blocks, times_x_transposed, &back);
    orthonormal(z, n, rank, q);
    pool_run(p, token_blocks, times_x, &forth);
    back.to = g->p;                                     /* p holds B until compensation() */
    pool_run(p, blocks, times_x_transposed, &back);
    if (nystroem(g, z, g->p, q, e) == 0 && gptq_order(g->order, g->diag, 1, n, n, e) == 0 && compensation(g, e) == 0)
        rc = 0;
done:
    free(z);
    free(y);
    free(q);
    if (rc)
        gptq_release(g);
    return rc;
}

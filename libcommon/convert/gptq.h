/* gptq.h - quantization with error feedback: choose the codes of a matrix so that its outputs, not
 * its weights, change least.
 *
 * Let X~ be the inputs that the layer will have, after the quantized layers before it, and X the
 * inputs in the float model, with tokens in rows:
 *     H = X~'X~ + damping       C = (X - X~)'X~
 *   1.  W += 0.5 W C inv(H): go half way to the weights whose outputs on X~ are nearest to the
 *      outputs of W on X (going all the way overfits).
 *   2.  Search the scales of every group for the least error weighted by diag H (quantize_scales).
 *      They are not changed later.
 *   3.  In order of falling diag H, round a column, and spread its error over the columns that are
 *      still to be rounded (GPTQ, arXiv:2210.17323, with its "act order").
 *   4.  Sweeps of coordinate descent: R = (W - Q) H; code_j <- nearest(Q_j + R_j / H_jj).
 * Tiles of 32 rows are independent. */
#ifndef ZSE_CONVERT_GPTQ_H
#define ZSE_CONVERT_GPTQ_H

#include "libcommon/base/err.h"
#include "libcommon/base/pool.h"
#include "libcommon/convert/linalg.h"
#include "libcommon/quant/quantize.h"
#include "libcommon/quant/tile.h"

enum { GOOD_RANK = 64 };

/* The inputs of one or more matrices in the form that error feedback uses.  h, c and linv are N
 * x N, see linalg.h. */
struct gptq {
    int n, N;                   /* input channels, padded */
    float *h;                   /* H with damping, both triangles */
    float *c;                   /* C; NULL: no correction (step 1) */
    float *linv;                /* inverse Cholesky factor of H in the order below */
    /* [N] columns in order of rising diag H, padding first; they are rounded from the last one
     * on */
    int *order;
    double damping;             /* fraction of the mean of diag H that was added */
    float correction;           /* 0.5 */
    /* number of sweeps: 4, or 1 with H = D + UU', where four more sweeps changed the error only
     * from 0.0438 to 0.0435 */
    int sweeps;
    /* H = D + UU' (gptq_init_low): h, c and linv are NULL */
    int rank;
    float *diag, *d;            /* [n] diagonal of H, and D; NULL: h is used instead */
    float *u, *p;               /* [n][rank] U, and the vectors p_j of gptq_low.c */
};

/* Initialize g from h (the lower triangle of X~'X~, at any scale) and c (NULL: no correction); linv
 * is a buffer.  All three are N x N, allocated by spill.h, and owned by g from now on, even on
 * failure.  Damping starts at 1 % and is raised tenfold as long as the factorization fails (see
 * g->damping).  Returns 0; -1 with *e if it still fails at 1000 %. */
int gptq_init(struct gptq *g, const struct linalg_ops *o, struct pool *p, int n, float *h, float *linv, float *c,
              struct err *e);
/* Initialize g from `rank` directions (a multiple of 32) of the inputs x [n_tokens, ldx] instead
 * of a whole H: see gptq_low.c. */
int gptq_init_low(struct gptq *g, const struct linalg_ops *o, struct pool *p, int n, const float *x, size_t ldx,
                  int n_tokens, int rank, struct err *e);
void gptq_release(struct gptq *g);
/* Set order [N] to the columns i < n in order of rising diag[i * stride], preceded by the columns
 * from n on, which are padding. */
int gptq_order(int *order, const float *diag, size_t stride, int n, int N, struct err *e);

/* Fill in the levels of an integer type.  -1: the type is a float type, which has none. */
int level_grid_of(const struct mat *m, struct level_grid *g);

/* Quantize one tile: w [rows][ldw], rows <= 32, to out [m->tile_bytes].  Step 1 replaces w by the
 * corrected weights; the importance in step 2 is diag H.  q: scratch, a qrow for m.  scratch:
 * gptq_scratch() bytes, 64-byte aligned. */
size_t gptq_scratch(const struct gptq *g);
void gptq_tile(const struct gptq *g, const struct linalg_ops *o, const struct mat *m, const struct level_grid *grid,
               float *w, size_t ldw, int rows, struct qrow *q, uint8_t *out, void *scratch);

#endif

/* gptq.h - quantization with error feedback: choose the codes of a matrix so that its outputs, not
 * its weights, change least.
 *
 * With X~ the inputs that the layer will have (after the quantized layers before it) and X those of
 * the float model, tokens in rows:
 *     H = X~'X~ + damping       C = (X - X~)'X~
 *   1. W += 0.5 W C inv(H)      half way to the weights whose outputs on X~ are nearest to those of
 *                               W on X (all the way overfits)
 *   2. scales of every group are searched for the least error weighted by diag H (quantize_scales),
 *      then fixed
 *   3. columns in order of falling diag H: round one, and spread its error over the next ones
 *      (GPTQ, arXiv:2210.17323, with its "act order")
 *   4. sweeps of coordinate descent: R = (W - Q) H; code_j <- nearest(Q_j + R_j / H_jj)
 * Tiles of 32 rows are independent. */
#ifndef ZSE_CONVERT_GPTQ_H
#define ZSE_CONVERT_GPTQ_H

#include "libcommon/base/err.h"
#include "libcommon/base/pool.h"
#include "libcommon/convert/linalg.h"
#include "libcommon/quant/quantize.h"
#include "libcommon/quant/tile.h"

enum { GOOD_RANK = 64 };

/* The inputs of one or more matrices, as error feedback needs them; matrices are N x N, see
 * linalg.h. */
struct gptq {
    int n, N;                   /* input channels, padded */
    float *h;                   /* H, damped, whole */
    float *c;                   /* C, or NULL: no correction */
    float *linv;                /* inverse Cholesky factor of H in the order below */
    /* [N] columns by rising diag H, padding first; the last one is rounded first */
    int *order;
    double damping;             /* fraction of the mean of diag H that was added */
    float correction;           /* 0.5 */
    int sweeps;                 /* 4; with H = D + UU' 1: four more gained nothing (0.0438 against 0.0435) */
    /* H = D + UU' (gptq_init_low): h, c and linv are NULL */
    int rank;
    float *diag, *d;            /* [n] diagonal of H, and D; NULL: H is whole */
    float *u, *p;               /* [n][rank] U, and the part of earlier errors that each column compensates */
};

/* Takes h (lower triangle of X~'X~, any scale), linv (buffer) and c (NULL: none), all of spill.h
 * and N x N, owned from then on, also on failure. Damping starts at 1 % and is raised tenfold
 * while the factorization fails (see g->damping); fails beyond 1000 %. */
int gptq_init(struct gptq *g, const struct linalg_ops *o, struct pool *p, int n, float *h, float *linv, float *c,
              struct err *e);
/* The same with `rank` directions (a multiple of 32) of the inputs x [n_tokens, ldx] instead of
 * all: see gptq_low.c. x is only read. */
int gptq_init_low(struct gptq *g, const struct linalg_ops *o, struct pool *p, int n, const float *x, size_t ldx,
                  int n_tokens, int rank, struct err *e);
void gptq_release(struct gptq *g);
/* order [N] = columns by rising diag[i * stride], i < n; columns from n on, the padding, come
 * first. */
int gptq_order(int *order, const float *diag, size_t stride, int n, int N, struct err *e);

/* The level table of an integer type; -1: a float type, nothing to feed back. */
int level_grid_of(const struct mat *m, struct level_grid *g);

/* Quantize one tile: w [rows][ldw] (rows <= 32; step 1 changes it to the corrected weights) to
 * out[m->tile_bytes]; importance of step 2 is diag H. q: a qrow for m. scratch: gptq_scratch
 * bytes, 64-byte aligned. */
size_t gptq_scratch(const struct gptq *g);
void gptq_tile(const struct gptq *g, const struct linalg_ops *o, const struct mat *m, const struct level_grid *grid,
               float *w, size_t ldw, int rows, struct qrow *q, uint8_t *out, void *scratch);

#endif

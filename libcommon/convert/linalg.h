/* linalg.h - the linear algebra of error feedback: Gram matrices, Cholesky factors, their inverses.
 *
 * Square matrices are row-major f32 with N columns and N rows; N is a multiple of 32 (linalg_pad),
 * and the padding is an identity matrix.  All functions are built on one operation on a panel of 32
 * columns.  Rows or columns of the result are independent, and every element is summed in one
 * order, so results do not depend on the number of threads. */
#ifndef ZSE_CONVERT_LINALG_H
#define ZSE_CONVERT_LINALG_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/pool.h"

enum { PANEL = 32 };

/* The levels of a number format for error feedback: value = scale * level[code] + offset. */
struct level_grid {
    int n;                      /* number of levels, which ascend */
    int linear;                 /* level[i] = level[0] + i */
    float level[256], middle[256];      /* middle[i]: halfway between level i and i + 1 */
};

struct linalg_ops {
    const char *name;
    int (*supported)(void);
    /* p[k * ldp + r] += sign * sum over j < nj of u[j * sj + k * sk] * e[j * lde + r],  k < n, r
     * < 32 */
    void (*panel)(float *p, size_t ldp, int n, const float *u, ptrdiff_t sj, ptrdiff_t sk, const float *e, size_t lde,
                  int nj, float sign);
    /* Find the levels nearest to t [32]: level [32] and index [32]. */
    void (*nearest)(const struct level_grid *g, const float *t, float *level, int32_t *index);
};
extern const struct linalg_ops linalg_plain;
extern const struct linalg_ops linalg_avx2, linalg_avx512;                  /* on x86-64 only */
extern const struct linalg_ops linalg_neon;                                 /* on ARM64 only */
const struct linalg_ops *linalg_pick(void);
/* All sets compiled in, fastest first, NULL-terminated. */
const struct linalg_ops *const *linalg_all(void);

static inline int linalg_pad(int n) { return (n + PANEL - 1) / PANEL * PANEL; }

/* Convert tokens x [t][ldx] to the packed form that linalg_gram() and linalg_cross() read: packed
 * has linalg_packed(N, t) floats.  ldx >= N; columns n to N - 1 of x must be zeros, where n is the
 * size before padding. */
size_t linalg_packed(int N, int t);
void linalg_pack(struct pool *p, float *packed, const float *x, size_t ldx, int N, int t);
/* H += X'X; only the blocks of the lower triangle. */
void linalg_gram(const struct linalg_ops *o, struct pool *p, float *h, int N, const float *packed, int t);
/* C += A'B */
void linalg_cross(const struct linalg_ops *o, struct pool *p, float *c, int N, const float *a, const float *b, int t);
/* Copy the lower triangle to the upper one. */
void linalg_mirror(struct pool *p, float *h, int N);
/* Replace the lower triangle of A by L with A = L L', and the upper triangle by 0.  Returns 0; -1
 * with *e if A is not positive definite: its contents are then undefined. */
int linalg_cholesky(const struct linalg_ops *o, struct pool *p, float *a, int N, struct err *e);
/* Replace the lower triangular L by its inverse. */
int linalg_invert_lower(const struct linalg_ops *o, struct pool *p, float *l, int N, struct err *e);

#endif

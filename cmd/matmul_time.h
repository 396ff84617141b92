/* matmul_time.h - time a multiplication by one matrix of random codes that is read from memory, as
 * in a model. */
#ifndef ZSE_CMD_MATMUL_TIME_H
#define ZSE_CMD_MATMUL_TIME_H

#include "libcommon/base/pool.h"
#include "libcommon/kernels/kernels.h"

struct matmul_time;
/* mat_init with the group size of the default conversions and scaled activations (128). */
int matmul_time_mat(struct mat *m, enum qtype type, int rows, int cols, struct err *e);
/* The layout of its weights.  All 0: 256 MB in large pages, the most that memory gives. */
struct matmul_time_weights {
    /* bytes of copies of the matrix, used in turn, at most 256 MB; a small model's fit in the
     * caches */
    uint64_t footprint;
    int as_file;                    /* in pages of the usual size, like a mapped file */
};
/* m: type and shape, from mat_init; float types are multiplied exactly.  most: largest number of
 * tokens.  pool is borrowed. */
struct matmul_time *matmul_time_open(const struct mat *m, const struct kernels *k, struct pool *pool, int most,
                                     struct matmul_time_weights w, struct err *e);
void matmul_time_close(struct matmul_time *t);      /* NULL is fine */
/* Seconds of a multiplication by n tokens, including the rounding of the activations; measured for
 * about 30 ms. */
double matmul_time_run(struct matmul_time *t, int n);

#endif

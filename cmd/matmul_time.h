/* matmul_time.h - time a multiplication by one matrix of random codes that comes from memory, as
 * in a model. */
#ifndef ZSE_CMD_MATMUL_TIME_H
#define ZSE_CMD_MATMUL_TIME_H

#include "libcommon/base/pool.h"
#include "libcommon/kernels/kernels.h"

struct matmul_time;
/* mat_init with groups as the default conversions make them, activations scaled (128). */
int matmul_time_mat(struct mat *m, enum qtype type, int rows, int cols, struct err *e);
/* How its weights lie.  0: 256 MB, in large pages: what memory gives at most. */
struct matmul_time_weights {
    uint64_t footprint;             /* bytes of copies of the matrix that are used in turn, at most 256 MB: those of a small model stay in the caches */
    int as_file;                    /* in pages of the usual size, as those of a mapped file */
};
/* m: type and shape, mat_init done; float types are multiplied exactly.  most: tokens at most.
 * pool is borrowed. */
struct matmul_time *matmul_time_open(const struct mat *m, const struct kernels *k, struct pool *pool, int most,
                                     struct matmul_time_weights w, struct err *e);
void matmul_time_close(struct matmul_time *t);      /* NULL is fine */
/* Seconds of a multiplication by n tokens, rounding of the activations included; measured for
 * about 30 ms. */
double matmul_time_run(struct matmul_time *t, int n);

#endif

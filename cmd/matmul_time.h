/* matmul_time.h - time a multiplication by one matrix of random codes that is read from memory, as
 * in a model. */
#ifndef ZSE_CMD_MATMUL_TIME_H
#define ZSE_CMD_MATMUL_TIME_H

#include "libcommon/base/pool.h"
#include "libcommon/kernels/kernels.h"

struct matmul_time;
/* mat_init() with the group size of default conversions, and an act_group of 128, as when
 * activations are scaled. */
int matmul_time_mat(struct mat *m, enum qtype type, int rows, int cols, struct err *e);
/* The layout of the weights.  With all members 0 they are 256 MB in large pages, which memory
 * delivers at the highest rate. */
struct matmul_time_weights {
    /* bytes of the copies of the matrix, which are used in turn; at most 256 MB (0: 256 MB).  A
     * small number, like the weights of a small model, fits in the caches. */
    uint64_t footprint;
    int as_file;                    /* use pages of the usual size, like those of a mapped file */
};
/* Prepare to time products with a matrix of m's type and shape, as mat_init() sets them; float
 * types are multiplied exactly.  most: the largest number of tokens.  pool is borrowed. */
struct matmul_time *matmul_time_open(const struct mat *m, const struct kernels *k, struct pool *pool, int most,
                                     struct matmul_time_weights w, struct err *e);
void matmul_time_close(struct matmul_time *t);      /* NULL is fine */
/* Seconds of a multiplication by n tokens, including the rounding of the activations; measured for
 * about 30 ms. */
double matmul_time_run(struct matmul_time *t, int n);

#endif

/* row_reader.h - read the rows of a tensor of the new file from the source.  The source's tensor
 * may be fused with others, interleaved or transposed. */
#ifndef ZSE_CONVERT_ROW_READER_H
#define ZSE_CONVERT_ROW_READER_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/format/zfile.h"
#include "libcommon/import/source.h"

struct row_reader {
    const struct source *source;
    const struct source_tensor *tensor;
    struct row_map map;
    /* shape of our tensor: n rows of cols elements; for a vector one row of cols elements, which
     * the map selects */
    int64_t n, cols;
    int vector;
    float *whole;               /* owned: decoded source rows, if rows cannot be read one by one */
    int64_t whole_first;        /* index of the first of these rows */
};

/* Returns the index of the source's row (or element of a vector, or column of a transposed tensor)
 * that is our row i. */
int64_t row_map_at(const struct row_map *m, int64_t i);

/* Open a reader for a tensor of `rows` rows and `cols` columns; for a vector rows is 1. */
int row_reader_open(struct row_reader *r, const struct source *s, const struct source_tensor *t,
                    const struct row_map *map,
              int64_t rows, int64_t cols, int vector, struct err *e);
/* Read rows [row, row + n) to out [n][cols].  Returns 0; -1 with *e, also for NaN and infinity: the
 * message names tensor, row and column.  Any thread. */
int row_reader_read(const struct row_reader *r, int64_t row, int64_t n, float *out, struct err *e);
void row_reader_close(struct row_reader *r);        /* also drops the source's pages */

#endif

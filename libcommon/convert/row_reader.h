/* row_reader.h - read rows of one of our tensors from the source's tensor that holds them: parts
 * of fused matrices, interleaved halves, transposed storage. */
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
    int64_t n, cols; /* shape of our tensor: n rows, or one row of cols elements that the map selects (vector) */
    int vector;
    float *whole;               /* owned: decoded source rows, if rows cannot be read one by one */
    int64_t whole_first;        /* the first of them */
};

/* The source's row (element of a vector, column of a transposed tensor) for our row i. */
int64_t row_map_at(const struct row_map *m, int64_t i);

/* rows 1 and vector: see struct row_reader. */
int row_reader_open(struct row_reader *r, const struct source *s, const struct source_tensor *t,
                    const struct row_map *map,
              int64_t rows, int64_t cols, int vector, struct err *e);
/* Rows [row, row + n) to out [n][cols]; NaN and infinity are refused with tensor, row and
 * column.  Any thread. */
int row_reader_read(const struct row_reader *r, int64_t row, int64_t n, float *out, struct err *e);
void row_reader_close(struct row_reader *r);        /* also drops the source's pages */

#endif

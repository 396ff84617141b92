/* npy.h - arrays in NumPy's .npy files, as numpy.save writes them (numpy.lib.format, versions 1 to
 * 3): little-endian f32 or whole numbers, in C order. */
#ifndef ZSE_CMD_NPY_H
#define ZSE_CMD_NPY_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/file.h"

enum npy_type { NPY_F32, NPY_I32, NPY_I64 };
enum { NPY_DIMS = 4, NPY_KIND = 120 };

struct npy {
    struct map map;
    enum npy_type type;
    int n_dims;
    int64_t dim[NPY_DIMS];
    int64_t n;                          /* elements */
    const uint8_t *data;                /* borrowed from the mapping, any alignment */
};
/* Open a file.  The error names the file, the field and the value found there. */
int npy_open(struct npy *a, const char *path, struct err *e);
void npy_close(struct npy *a);
/* Describe the array for messages, as in Python: "float32 of shape (3, 64)".  Returns text. */
const char *npy_kind(const struct npy *a, char text[NPY_KIND]);
/* Write a matrix of f32.  The file appears complete or not at all. */
int npy_write(const char *path, const float *x, int64_t rows, int64_t cols, struct err *e);
/* Write a vector of i32. */
int npy_write_ids(const char *path, const int32_t *ids, int64_t n, struct err *e);

#endif

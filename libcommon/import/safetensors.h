/* safetensors.h - one safetensors file: a length, a JSON header, the data.
 * https://github.com/huggingface/safetensors#format */
#ifndef ZSE_IMPORT_SAFETENSORS_H
#define ZSE_IMPORT_SAFETENSORS_H

#include "libcommon/base/err.h"
#include "libcommon/base/file.h"
#include "libcommon/import/source.h"

/* Append the tensors of m to *tensors [*n], in the order of their data, with this shard number.
 * The caller frees *tensors and the names (malloc'd), also after a failure.  m->fd -1: m->data has
 * only the head of the file, including all of the header; the tensors' data is then NULL.  Checks
 * dtype, shape, size and bounds, and that the data has neither gaps nor overlaps. */
int safetensors_index(const struct map *m, int shard, struct source_tensor **tensors, int *n, struct err *e);

#endif

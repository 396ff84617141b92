/* safetensors.h - one safetensors file: a length, a JSON header, the data.
 * https://github.com/huggingface/safetensors#format */
#ifndef ZSE_IMPORT_SAFETENSORS_H
#define ZSE_IMPORT_SAFETENSORS_H

#include "libcommon/base/err.h"
#include "libcommon/base/file.h"
#include "libcommon/import/source.h"

/* Append the tensors of m to *tensors [*n] in the order of their data, marked as of `shard`.
 * The names are malloc'd and the caller's, as is *tensors, also when this fails.  m->fd -1: only
 * the file's head is at m->data, all of the header; the tensors' data is NULL then.  Checks
 * dtype, shape, size, bounds, that the data has neither holes nor overlaps. */
int safetensors_index(const struct map *m, int shard, struct source_tensor **tensors, int *n, struct err *e);

#endif

/* medusa_source.h - read Medusa heads from a safetensors file. */
#ifndef ZSE_CONVERT_MEDUSA_SOURCE_H
#define ZSE_CONVERT_MEDUSA_SOURCE_H

#include "libcommon/base/file.h"
#include "libcommon/model/medusa.h"

struct medusa_options {
    int n_threads;                      /* 0: all processors */
    uint64_t most_bytes;                /* refuse heads that take more memory; 0: no limit */
    const struct map_guard *guard;      /* may be NULL; borrowed for the call */
};

/* Read the heads for a model of this configuration, and round them to int8.  path: a file, or a
 * folder with medusa_lm_head.safetensors.  Tensors are named "N.M.linear.weight", "N.M.linear.bias"
 * (block M of head N) and "N.M.weight" (its logits, after M blocks), or the same after
 * "medusa_head." or "medusa_heads.".  If a config.json beside the file has medusa_num_heads,
 * medusa_num_layers, hidden_size or vocab_size, it must agree with the tensors. */
struct medusa *medusa_read(const char *path, const struct config *c, const struct medusa_options *o, struct err *e);
/* Make the checks of medusa_read() that read no weights, and set *bytes to the size of the rounded
 * heads. */
int medusa_check(const char *path, const struct config *c, const struct map_guard *guard, uint64_t *bytes,
                 struct err *e);

#endif

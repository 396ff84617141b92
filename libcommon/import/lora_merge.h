/* lora_merge.h - merge LoRA adapters into the weights of a source: a merged weight is read as
 * W + scale * B A, computed when its rows are read, so nothing but the factors is in memory. */
#ifndef ZSE_IMPORT_LORA_MERGE_H
#define ZSE_IMPORT_LORA_MERGE_H

#include "libcommon/import/source.h"

/* Merge the adapter of this folder; may be called again for further adapters, whose changes add up.
 * -1 with *e: the folder is not an adapter, the adapter cannot be merged, or it was made for
 * another model. */
int source_merge_lora(struct source *s, const char *folder, struct err *e);
/* Number of merged tensors, and the i-th, which source_find() returns for its name. */
int source_n_merged(const struct source *s);
const struct source_tensor *source_merged(const struct source *s, int i);
#endif

/* eagle_source.h - read EAGLE heads from a folder. */
#ifndef ZSE_CONVERT_EAGLE_SOURCE_H
#define ZSE_CONVERT_EAGLE_SOURCE_H

#include "libcommon/convert/medusa_source.h"
#include "libcommon/model/eagle.h"

/* Read the heads in a folder with config.json and safetensors, and round their matrices to int8.
 * They are for a model of configuration `main`; eagle_attach() completes them.
 *
 * EAGLE-1 and -2: fc, layers.0.*; EAGLE-3, which has a hidden_norm: fc, midlayer.* or layers.0.*,
 * norm, lm_head, d2t, t2d.  An embed_tokens is ignored, as it is a copy of the model's.  Other
 * tensors are refused. */
struct eagle *eagle_read(const char *path, const struct config *main, const struct medusa_options *o, struct err *e);
/* Whether path is a folder without Medusa heads. */
int eagle_is_at(const char *path);
/* Make the checks of eagle_read() that read no weights, and set *bytes to the size of the rounded
 * weights. */
int eagle_check(const char *path, const struct config *main, const struct map_guard *guard, uint64_t *bytes,
                struct err *e);

#endif

/* eagle_source.h - read EAGLE heads from a folder. */
#ifndef ZSE_CONVERT_EAGLE_SOURCE_H
#define ZSE_CONVERT_EAGLE_SOURCE_H

#include "libcommon/convert/medusa_source.h"
#include "libcommon/model/eagle.h"

/* Read the heads in a folder with config.json and safetensors, and round their matrices to int8.
 * They are for the model `main`, which is borrowed until eagle_close().
 *
 * EAGLE-1 and -2: fc, layers.0.*; EAGLE-3, which has a hidden_norm: fc, midlayer.* or layers.0.*,
 * norm, lm_head, d2t, t2d.  An embed_tokens is ignored, as it is a copy of the model's.  Other
 * tensors are refused. */
struct eagle *eagle_read(const char *path, const struct model *main, const struct medusa_options *o, struct err *e);
void eagle_close(struct eagle *g);      /* NULL is fine */

#endif

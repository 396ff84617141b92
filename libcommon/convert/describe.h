/* describe.h - what a .zse file says besides its weights: configuration, tokenizer, originals,
 * where it came from. */
#ifndef ZSE_CONVERT_DESCRIBE_H
#define ZSE_CONVERT_DESCRIBE_H

#include <jansson.h>

#include "libcommon/convert/internal.h"
#include "libcommon/format/zfile.h"

/* Tokenizer block and small files of the source into the writer. */
int describe_files(struct conversion *cv, struct zwriter *w, struct err *e);
/* The JSON section. New reference. */
json_t *describe_json(struct conversion *cv, struct err *e);

#endif

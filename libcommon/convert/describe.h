/* describe.h - metadata of a .zse file: configuration, tokenizer, original files, provenance. */
#ifndef ZSE_CONVERT_DESCRIBE_H
#define ZSE_CONVERT_DESCRIBE_H

#include <jansson.h>

#include "libcommon/convert/internal.h"
#include "libcommon/format/zfile.h"

/* Write the tokenizer block and small files of the source. */
int describe_files(struct conversion *cv, struct zwriter *w, struct err *e);
/* Make the JSON section of the file.  New reference. */
json_t *describe_json(struct conversion *cv, struct err *e);

#endif

/* model_calls.h - find calls of tools in a text that any model wrote: in the forms of
 * call_scan.h, or else in the format of a family of models. */
#ifndef ZSE_SERVE_TOOLS_MODEL_CALLS_H
#define ZSE_SERVE_TOOLS_MODEL_CALLS_H

#include <stddef.h>

#include <jansson.h>

#include "libcommon/base/err.h"

/* Return a new list of {"name": text, "arguments": object}; NULL with *e. */
json_t *model_calls(const char *text, size_t size, struct err *e);

#endif

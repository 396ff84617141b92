/* model_calls.h - the calls of tools in a text of any model: the forms of call_scan.h, else those
 * that a family of models marks in its own way. */
#ifndef ZSE_SERVE_TOOLS_MODEL_CALLS_H
#define ZSE_SERVE_TOOLS_MODEL_CALLS_H

#include <stddef.h>

#include <jansson.h>

#include "libcommon/base/err.h"

/* A new list of {"name": text, "arguments": object}; NULL with *e. */
json_t *model_calls(const char *text, size_t size, struct err *e);

#endif

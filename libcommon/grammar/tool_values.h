/* tool_values.h - arguments that a model writes neither as JSON nor between tags. */
#ifndef ZSE_GRAMMAR_TOOL_VALUES_H
#define ZSE_GRAMMAR_TOOL_VALUES_H

#include <stddef.h>

#include "libcommon/grammar/tool_format.h"

enum tool_read { TOOL_READ_MORE = 0, TOOL_READ_DONE = 1, TOOL_READ_BAD = -1 };

/* Read `name=value, ...)` (TOOL_PYTHON) or `name:value,...}` (TOOL_QUOTED) from *at on, and turn
 * it into a JSON object.  DONE with *at after the closing bracket; MORE: the text ends before
 * it; BAD: it cannot become that.  *json is malloc'd, whatever is returned, or NULL without
 * memory: what is there of the object, a prefix of the whole.  A name that comes twice counts
 * once, the first. */
enum tool_read tool_values_read(const struct tool_format *f, const char **at, const char *end, char **json);

#endif

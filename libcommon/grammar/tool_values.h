/* tool_values.h - arguments that a model writes neither as JSON nor between tags. */
#ifndef ZSE_GRAMMAR_TOOL_VALUES_H
#define ZSE_GRAMMAR_TOOL_VALUES_H

#include <stddef.h>

#include "libcommon/grammar/tool_format.h"

enum tool_read { TOOL_READ_MORE = 0, TOOL_READ_DONE = 1, TOOL_READ_BAD = -1 };

/* Read `name=value, ...)` (TOOL_PYTHON) or `name:value,...}` (TOOL_QUOTED) from *at on, and turn
 * it into a JSON object.  DONE with *at after the closing bracket; MORE: the text ends before
 * it; BAD: no continuation is valid.  *json is malloc'd in each case, or NULL without memory: the
 * part of the object read so far, a prefix of the whole.  Of duplicate names only the first
 * counts. */
enum tool_read tool_values_read(const struct tool_format *f, const char **at, const char *end, char **json);

#endif

/* tool_formats.h - the formats of tool calls by name, for tests. */
#ifndef ZSE_TESTS_TOOL_FORMATS_H
#define ZSE_TESTS_TOOL_FORMATS_H

#include <string.h>

#include "libcommon/grammar/tool_format.h"

/* NULL: there is no such format. */
static inline const struct tool_format *tool_format_find(const char *name)
{
    for (int i = 0; i < n_tool_formats; i++)
        if (strcmp(tool_formats[i].name, name) == 0)
            return &tool_formats[i];
    return NULL;
}

#endif

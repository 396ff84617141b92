/* call_scan.h - find the calls of tools in a text that a model wrote, when its chat template, and
 * so the exact form, is not known.
 *
 * Every JSON object or list of the text is read once, up to its real end, so that braces may nest
 * and stand in strings.  A call is
 *   {"name": "f", "arguments": {...}}               also "tool" or "function" for "name" and
 *                                                   "parameters" for "arguments", which may be JSON
 *                                                   text
 *   {"function": {"name": ..., "arguments": ...}}   and {"tool_calls": [...]}, as OpenAI writes it
 *   <tool_call name="f">{...}</tool_call>           the object is the arguments
 *   <function=f>{...}</function>
 * An object without arguments is a call only inside a ```tool fence or <tool_call>.  Other fences,
 * such as ```json, and tags around JSON make no difference. */
#ifndef ZSE_TOOLS_CALL_SCAN_H
#define ZSE_TOOLS_CALL_SCAN_H

#include <stddef.h>

#include <jansson.h>

#include "libcommon/base/err.h"

enum { SCAN_MAX_DEPTH = 64, SCAN_MAX_CALLS = 64 };

/* A new list of {"name": text, "arguments": object}; NULL with *e: memory, or too many calls. */
json_t *call_scan(const char *text, size_t size, struct err *e);

#endif

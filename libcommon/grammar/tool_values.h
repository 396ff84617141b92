/* tool_values.h - arguments that a model writes neither as JSON nor between tags, and strings that
 * are still open. */
#ifndef ZSE_GRAMMAR_TOOL_VALUES_H
#define ZSE_GRAMMAR_TOOL_VALUES_H

#include <stddef.h>

#include "libcommon/grammar/tool_format.h"

enum tool_read { TOOL_READ_MORE = 0, TOOL_READ_DONE = 1, TOOL_READ_BAD = -1 };

/* The part with which an incomplete call ends, when all its text so far was read: text that arrives
 * can be read on from there, so that long arguments are not read again from their beginning. */
enum open_kind { OPEN_NONE, OPEN_JSON, OPEN_MARKED, OPEN_QUOTED };
struct open_part {
    enum open_kind kind;
    size_t at;                          /* offset of the text that was not read yet */
    int silent;                         /* it is not reported before it ends */
    int depth, in_string;               /* OPEN_JSON: at that offset */
    char quote;                         /* OPEN_QUOTED: the quotation mark that ends it */
};
/* Set o to text[0..n), the part of a value whose value_close has not arrived; offsets are from
 * base.  A text that is not UTF-8 cannot be read on. */
void open_marked(struct open_part *o, const char *base, const char *text, size_t n);
/* Read on in a marked or quoted string, in the text from base + o->at on.  MORE: all of it belongs
 * to the string, o->at moved on, and *json is what the JSON text gets, malloc'd, NULL without
 * memory.  DONE: the string may end there. */
enum tool_read open_string_on(struct open_part *o, const struct tool_format *f, const char *base, const char *end,
                              char **json);

/* Read `name=value, ...)` (TOOL_PYTHON) or `name:value,...}` (TOOL_QUOTED) from *at on, and turn
 * it into a JSON object.  DONE with *at after the closing bracket; MORE: the text ends before
 * it; BAD: no continuation is valid.  *json is malloc'd in each case, or NULL without memory: the
 * part of the object read so far, a prefix of the whole.  Of duplicate names only the first
 * counts.  o: the string at the end of the text, if it is MORE; offsets are from *at. */
enum tool_read tool_values_read(const struct tool_format *f, const char **at, const char *end, char **json,
                                struct open_part *o);

#endif

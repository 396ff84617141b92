/* tool_values.h - arguments that a model writes neither as JSON nor between tags, and strings that
 * are still open. */
#ifndef ZSE_GRAMMAR_TOOL_VALUES_H
#define ZSE_GRAMMAR_TOOL_VALUES_H

#include <stddef.h>

#include <jansson.h>

#include "libcommon/grammar/tool_format.h"

enum tool_read { TOOL_READ_MORE = 0, TOOL_READ_DONE = 1, TOOL_READ_BAD = -1 };

/* The part of a call that is still open where the text read so far ends.  Reading continues from it
 * when more text arrives, so that long arguments are not read again from their beginning.
 *
 * OPEN_JSON: a JSON object or array.  OPEN_MARKED: a string that ends at the format's value_close.
 * OPEN_QUOTED: a string that ends at a quotation mark.  OPEN_NESTED: a list or an object in the
 * syntax of tool_values_read(), of which nothing is reported before it ends.  OPEN_ELEMENTS: the
 * same of elements, see elements_on(). */
enum open_kind { OPEN_NONE, OPEN_JSON, OPEN_MARKED, OPEN_QUOTED, OPEN_NESTED, OPEN_ELEMENTS };
struct open_part {
    enum open_kind kind;
    size_t at;                          /* offset of the text that was not read yet */
    int silent;                         /* it is not reported before it ends */
    /* OPEN_JSON, OPEN_NESTED and OPEN_ELEMENTS: at that offset; in_string is 2 after a mark that
     * may end it. */
    int depth, in_string;
    size_t again;                       /* OPEN_ELEMENTS: read the call again when it has this many bytes */
    /* The quotation mark that ends the string; OPEN_NESTED: 0 if it is value_close. */
    char quote;
};
/* Set *o to a part of kind OPEN_MARKED: text[0..n) is all that was read of a value whose end mark
 * (f->value_close) has not arrived.  Offsets are from base.  Leaves *o alone if the text is not
 * UTF-8, which cannot be read on. */
void open_marked(struct open_part *o, const char *base, const char *text, size_t n);
/* Read on in the string *o, which is OPEN_MARKED or OPEN_QUOTED, in the text from base + o->at to
 * end.
 *
 * Returns MORE if all of this text belongs to the string.  Then o->at has moved past the whole
 * characters, and *json is their JSON text, without quotation marks: malloc'd, or NULL if memory
 * ran out.  Returns DONE, with *json NULL, if the string may end in this text or the text is not
 * UTF-8: the call must be read again from its beginning. */
enum tool_read open_string_on(struct open_part *o, const struct tool_format *f, const char *base, const char *end,
                              char **json);
/* Read on in *o, which is OPEN_NESTED, in the text from base + o->at to end.  Returns MORE, with
 * o->at moved on, if all of this text belongs to the list or object; DONE if that may end in this
 * text, or is not valid: the call must be read again from its beginning. */
enum tool_read open_nested_on(struct open_part *o, const struct tool_format *f, const char *base, const char *end);

/* The complete arguments, between tags or in the syntax of tool_values_read(), of a call that is
 * not complete, so that they are not read again when more text arrives. */
struct arguments_read {
    size_t at;                          /* offset of the text after them; 0: there is no such call */
    char *arguments; size_t n;          /* their JSON text; owned */
    json_t *seen;                       /* their names; owned */
};

/* Read the arguments of a call, `name=value, ...)` (TOOL_PYTHON) or `name:value,...}`
 * (TOOL_QUOTED), from *at on, and turn them into a JSON object.  Of duplicate names only the first
 * counts.
 *
 * Returns DONE with *at after the closing bracket; MORE if the text ends before that bracket; BAD
 * if no continuation is valid.  In each case *json is the part of the object read so far, a prefix
 * of the whole: malloc'd, or NULL if memory ran out.  With MORE, *o is the incomplete part at the
 * end of the text; its offsets are from *at.
 *
 * *so_far has the arguments that were complete before, whose text moves to *json; afterwards it has
 * those that are complete now (the first so_far->n bytes of *json), without the text. */
enum tool_read tool_values_read(const struct tool_format *f, const char **at, const char *end, char **json,
                                struct open_part *o, struct arguments_read *so_far);

#endif

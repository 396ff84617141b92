/* tool_elements.h - values that a model writes as XML elements (TOOL_ELEMENTS). */
#ifndef ZSE_GRAMMAR_TOOL_ELEMENTS_H
#define ZSE_GRAMMAR_TOOL_ELEMENTS_H

#include <stddef.h>

#include <jansson.h>

#include "libcommon/grammar/tool_values.h"

/* The JSON value of an element's text: the text itself if the schema says so, otherwise the value
 * that it is as JSON, or the text if it is not JSON.  NULL if it is not UTF-8 or memory ran out. */
json_t *element_text(const json_t *schema, const char *text, size_t n);

enum { ELEMENT_NAME = 256 };            /* most bytes of a name */
/* Read the opening tag of an element: DONE with *at after it and its name, MORE or BAD. */
enum tool_read element_begin(const struct tool_format *f, const char **at, const char *end, const char **key,
                             size_t *n);
/* Whether an element starts at `at`: DONE, MORE (the text ends before that is known) or BAD. */
enum tool_read element_at(const struct tool_format *f, const char *at, const char *end);

/* Read the elements at *at, up to the closing tag of the element that holds them.  schema: that of
 * their value; NULL or one without a type: items make a list, other elements an object.  Of
 * duplicate names only the first counts.
 *
 * Returns DONE with *at at the closing tag and *value, which the caller releases; MORE if the text
 * ends before; BAD if no continuation is valid, or memory ran out. */
enum tool_read elements_read(const struct tool_format *f, const char **at, const char *end, const json_t *schema,
                             json_t **value);

/* Set *o to the elements that begin at text, in an argument that is not complete. */
void elements_open(struct open_part *o, const char *base, const char *text, const char *end);
/* Read on in *o, which elements_open() set, in the text from base + o->at to end.  Tags are
 * counted; text that contains tags is counted wrongly, and therefore the call is also read again
 * each time that it has become twice as long.  Returns MORE, with o->at moved on, or DONE: read the
 * call again from its beginning. */
enum tool_read elements_on(struct open_part *o, const struct tool_format *f, const char *base, const char *end);

/* Read the closing tag of the element `key`, from *at on: DONE with *at after it, MORE or BAD. */
enum tool_read element_end(const struct tool_format *f, const char **at, const char *end, const char *key, size_t n);

#endif

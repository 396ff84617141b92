/* tool_format.h - the format in which a family of models writes calls. */
#ifndef ZSE_GRAMMAR_TOOL_FORMAT_H
#define ZSE_GRAMMAR_TOOL_FORMAT_H

#include "libcommon/grammar/tools.h"

enum tool_style {
    TOOL_JSON,                          /* {"name": ..., "arguments": {...}} */
    TOOL_JSON_LIST,                     /* a list of them */
    TOOL_NAMED,                         /* the name between markers, then the arguments as JSON */
    TOOL_TAGS,                          /* the name, then each argument between tags */
    TOOL_PYTHON,                        /* a list of calls as in Python: [name(key="value", n=1)] */
    TOOL_QUOTED,                        /* {key:value}, with strings between two value_close */
    TOOL_ELEMENTS,                      /* the name, then each argument as an XML element */
};

/* An answer with calls: [section] call (between call)* [section_end], where a call is
 *   JSON         open json close
 *   JSON_LIST    json; the list is open list_open json (between json)* list_close close
 *   NAMED        open [id id_close] name before_arguments json close
 *   TAGS         open name before_arguments (key_open key key_close value_open value value_close)*
 *                close
 *   PYTHON       open [ name before_arguments key=value, ... ) , ... ] close
 *   QUOTED       open name before_arguments key:value, ... } close
 *   ELEMENTS     open name before_arguments element* close, where an element is
 *                key_open key key_close value value_close key key_close, and a value is text, the
 *                elements of an object's members, or an element "item" for each item of a list
 * Blanks and line breaks around markers and JSON are skipped when reading.  A marker that a family
 * does not have is "". */
struct tool_format {
    const char *name;
    const char *needles[3];             /* strings that the template must contain, up to NULL */
    enum tool_style style;
    const char *section, *open, *before_arguments, *close, *between, *section_end;
    const char *arguments;              /* JSON: the key of the arguments; NULL: the name is their key */
    /* JSON: the keys of the name and of an id before it; NULL: "name", and no id. */
    const char *name_key, *id_key;
    /* JSON_LIST: NULL: brackets, and commas between calls. */
    const char *list_open, *list_close;
    /* NAMED: the marker after an id, which precedes the name; NULL: none */
    const char *id_close;
    /* TAGS; value_open is part of key_close. */
    const char *key_open, *key_close, *value_close;
    /* TAGS: key_close of an argument that is JSON instead of a string; NULL: key_close is the same
     * for both */
    const char *key_close_json;
    const char *think, *think_end;      /* around reasoning; NULL: <think>, </think> */
    /* For families that mark every part of an answer: the marker of its text, and the text between
     * reasoning and the next part.  NULL: other families. */
    const char *text_open, *next_part;
    /* Markers between parts that have no meaning, with the blanks after them; NULL-terminated. */
    const char *const *noise;
    int single;                         /* an answer has at most one call */
};
/* All families: the most specific first; the last is JSON without markers. */
extern const struct tool_format tool_formats[];
extern const int n_tool_formats;

#endif

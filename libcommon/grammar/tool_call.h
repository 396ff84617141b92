/* tool_call.h - the state of a parser of calls, and the parts of one call.  Private to
 * tool_parser.c, which finds the calls in an answer, and tool_call.c, which reads one of them. */
#ifndef ZSE_GRAMMAR_TOOL_CALL_H
#define ZSE_GRAMMAR_TOOL_CALL_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/rng.h"
#include "libcommon/grammar/tool_values.h"
#include "libcommon/grammar/tools.h"

struct tool_parser {
    const struct tool_format *f;
    struct tool_parser_options o;
    struct rng rng;
    char *text; size_t n, room, at;     /* text[at..n) is not reported yet */
    /* in_list: text[at] is after a call of a list. */
    int thinking, in_list, in_section, said, n_calls;
    const char *think, *think_end;
    char **ids;                         /* [n_calls], owned */
    /* stream_arguments: bytes of the arguments of the call at `at` that were reported. */
    size_t shown;
    int named;                          /* its TOOL_CALL was reported */
    int waiting;                        /* text[at] begins a call that is not complete */
    struct open_part open;              /* the end of that call; offsets are from text[at] */
    struct arguments_read read;         /* its complete arguments; offsets are from text[at] */
    int failed;                         /* memory ran out */
    uint64_t n_read;                    /* bytes of calls that were read; those read again count again */
};

/* Results of reading.  DONE: the part is complete; BAD: the text is no call; MORE: the result
 * depends on text that is still to come. */
enum { MORE = 0, DONE = 1, BAD = -1 };

/* The parts of one call, in text from `at` on. */
struct parsed_call {
    char *name, *arguments, *id;        /* owned; arguments is JSON */
    size_t n_arguments;                 /* its bytes, while add() in tool_call.c appends to it */
    /* The arguments so far, if the text has them as JSON. */
    const char *raw; size_t n_raw;
    struct open_part open;              /* the end of an incomplete call */
    size_t end;                         /* bytes from at to after it */
};
void call_release(struct parsed_call *c);
void arguments_forget(struct arguments_read *t);
/* Read a call in text[at..n), which starts with the opening marker, or is in a list.  `end`: no
 * more text follows. */
int call_read(struct tool_parser *p, struct parsed_call *c, int end);

struct json_cursor { const char *p, *end; };
void call_blanks(struct json_cursor *c);
/* Read a marker, with any blanks in and around it: DONE, MORE (incomplete so far) or BAD. */
int call_marker(struct json_cursor *c, const char *m);
/* Continue reading JSON that begins at an outer bracket; o: the state reached so far.  Returns DONE
 * with c after the last bracket, or MORE. */
int call_json_on(struct json_cursor *c, struct open_part *o);
/* Read the closing marker, if the family has one.  Returns MORE while the marker may still come; at
 * the end of the answer (`end`) a part of the marker suffices. */
int call_closing(const struct tool_parser *p, struct json_cursor *k, int end);
/* Set p->failed and return NULL.  The parser then ignores further text, because the unread rest of
 * a call would be reported as text of the answer. */
char *call_copy(struct tool_parser *p, const char *s, size_t n);

#endif

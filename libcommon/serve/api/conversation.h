/* conversation.h - conversations: the common part of /v1/chat/completions, /v1/responses and
 * /v1/messages.
 *
 * Each of these forms translates its body into a struct conversation, in the terms of chat
 * completions.  The code that makes the prompt and the grammar, and splits the answer into parts,
 * is the same for all three. */
#ifndef ZSE_SERVE_API_CONVERSATION_H
#define ZSE_SERVE_API_CONVERSATION_H

#include <jansson.h>

#include "libcommon/grammar/tools.h"
#include "libcommon/http/buf.h"
#include "libcommon/http/problem.h"
#include "libcommon/serve/api/splitter.h"
#include "libcommon/template/template.h"

struct call;
struct choice;
struct event;
struct ignored_names;
struct events;
struct loaded_model;

enum call_choice { CALLS_AUTO, CALLS_NONE, CALLS_REQUIRED };

struct conversation {
    const char *param;                  /* the body's field that has the messages: "messages", "input" */
    json_t *messages;                   /* owned */
    json_t *previous;                   /* owned: the items before those of a Responses body; NULL: none */
    json_t *tools;                      /* owned: [{"type": "function", "function": {...}}]; NULL: none */
    /* owned: an object whose keys are the functions with strict: true; NULL: none */
    json_t *strict;
    json_t *lenient;                    /* owned: an object whose keys are the functions of MCP servers; NULL: none */
    json_t *vars;                       /* owned: variables of the template; NULL: none */
    /* Format of the answer, {"type": "json_schema", ...}; borrowed; NULL: none. */
    const json_t *format; const char *format_param;
    enum call_choice choice;
    const char *only;                   /* the only function that may be called; borrowed; NULL: any */
    /* The functions that may be called: as the body lists them, borrowed, and those of `tools`,
     * owned; NULL: all. */
    const json_t *allowed_names;
    json_t *allowed;
    int serial;                         /* at most one call in each answer */
    int continues;                      /* the answer continues the last message, which is the assistant's */
    int all_tools;                      /* the body has "tools": "server", all tools of the server: see tool_rounds.h */
    struct tmpl_limits limits;          /* limits of the template; 0: its defaults */
    /* borrowed; gets the names of unknown members of the body; NULL: such members are refused */
    struct ignored_names *ignored;
};
void conversation_release(struct conversation *t);

/* ---- reading bodies ---- */
/* Read a body into *t.  0, or -1 with *pr; *t must be released in both cases.  These functions need
 * no server, so that tests can pass any JSON. */
int chat_read(const json_t *body, int parallel, struct conversation *t, struct problem *pr);
int responses_read(const json_t *body, int parallel, struct conversation *t, struct problem *pr);
int messages_read(const json_t *body, struct conversation *t, struct problem *pr);
/* Returns the schema of a response_format, also for json_object: a new reference.  NULL if the
 * format is text (pr->status is 0) or on errors (in *pr). */
json_t *format_schema(const json_t *format, const char *param, struct ignored_names *ig, struct problem *pr);
/* Read a tool_choice of the type allowed_tools: {mode: auto or required, tools: [...]}. */
int conversation_read_allowed(const json_t *choice, struct conversation *t, struct problem *pr);
/* Whether a response_format has strict: false. */
int format_is_loose(const json_t *format);
/* Normalize a list of OpenAI's messages: contents become text, arguments of calls become objects.
 * New reference; NULL with *pr. */
json_t *conversation_messages(const json_t *messages, struct problem *pr);
/* Append the text of a message's content: a string, or a list of parts of the given types.  0, or
 * -1 with *pr. */
int conversation_text(const json_t *content, const char *const *types, const char *param, struct buf *out,
                      struct problem *pr);
/* If t->continues, check that the last message can be continued.  0, or -1 with *pr. */
int conversation_check_continued(const struct conversation *t, const json_t *body, struct problem *pr);
/* Check the tool choice against the functions.  0, or -1 with *pr. */
int conversation_check_tools(struct conversation *t, struct problem *pr);
/* Add a function to t->tools.  parameters: borrowed; NULL: none.  0, or -1 with *pr. */
int conversation_add_tool(struct conversation *t, const char *name, const json_t *description, const json_t *parameters,
                          const char *param, struct problem *pr);
/* Add all functions of the body's "tools"; if it is "server", set t->all_tools.  function_of()
 * returns the object inside a tool that has name, description and strict, or NULL with *pr if the
 * tool is not a function.  `parameters` is the key of the arguments' schema in that object.
 * Returns 0; -1 with *pr. */
int conversation_read_tools(struct conversation *t, const json_t *body, const char *parameters,
                            const json_t *(*function_of)(const json_t *tool, const char *param, struct problem *pr),
                            struct problem *pr);
/* The function_of for conversation_read_tools in the form of chat completions. */
const json_t *chat_function_of(const json_t *tool, const char *param, struct problem *pr);
/* Read tool_choice in the form of chat completions.  0, or -1 with *pr. */
int chat_read_choice(const json_t *body, struct conversation *t, struct problem *pr);
/* Add the body's chat_template_kwargs to t->vars. */
int conversation_read_vars(struct conversation *t, const json_t *body, struct problem *pr);
/* Check that v, the field `name`, is a list that is not empty. expected: "a list of at least 1
 * message".  0, or -1 with *pr. */
int conversation_check_list(const json_t *v, const char *name, const char *expected, struct problem *pr);
json_t *conversation_string(const struct buf *text);    /* NULL without memory */
/* Append a message in the form of chat completions.  id: the id of the call that this message of a
 * tool answers (borrowed); NULL: none. */
int conversation_add_message(json_t *messages, const char *role, json_t *id, const struct buf *text,
                             struct problem *pr);
/* conversation_add_call() adds a call to a message of the model; everything is borrowed.
 * conversation_add_reasoning() appends to the reasoning of the message. */
int conversation_add_call(json_t *message, json_t *id, json_t *name, json_t *arguments, struct problem *pr);
int conversation_add_reasoning(json_t *message, const char *text, size_t size, struct problem *pr);

/* ---- making the prompt ---- */
/* Render the prompt: *text is malloc'd.  If t->continues, the prompt ends with the text of the last
 * message, and the last message in t->messages is changed.  0, or -1 with *pr. */
int conversation_render(const struct loaded_model *lm, const struct conversation *t, int generation_prompt, char **text,
                        size_t *size, struct problem *pr);
/* Make the prompt and the grammar of c from c->conversation. */
int conversation_prepare(struct call *c, struct problem *pr);
/* Open the parser that splits the answer into parts.  0, or -1 without memory. */
int conversation_open_parser(struct choice *ch);

/* ---- parts of the answer ---- */
enum answer_part_kind { PART_TEXT, PART_REASONING, PART_CALL };
struct answer_part {
    enum answer_part_kind kind;
    int index;                          /* its index in choice.part */
    char *id, *name;                    /* of a call, otherwise NULL; owned */
    struct buf text;                    /* the text so far; of a call its arguments */
};
/* Split an event of the engine into parts: they are stored in ch->part, and the form's delta is
 * called for each new piece of text. */
void conversation_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev);
int choice_calls(const struct choice *ch);              /* number of calls */
int choice_cut(const struct choice *ch);                /* whether a stop string ended it inside a call */
/* Append all text, or all reasoning, of an answer. */
void choice_text(const struct choice *ch, enum answer_part_kind kind, struct buf *out);
void choice_release(struct choice *ch);                 /* free its parts and its parser */

#endif

/* conversation.h - conversations: what /v1/chat/completions, /v1/responses and /v1/messages share.
 *
 * Each form turns its body into a struct conversation, in the words of chat completions; from
 * there to the prompt, the grammar and the parts of the answer all go the same way. */
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
struct events;
struct loaded_model;

enum call_choice { CALLS_AUTO, CALLS_NONE, CALLS_REQUIRED };

struct conversation {
    const char *param;                  /* what the conversation is called: "messages", "input" */
    json_t *messages;                   /* owned */
    json_t *tools;                      /* owned: [{"type": "function", "function": {...}}]; NULL: none */
    /* owned: an object whose keys are the functions with strict: true; NULL: none */
    json_t *strict;
    json_t *vars;                       /* owned: for the template; NULL: none */
    /* borrowed: of the answer, {"type": "json_schema", ...}; NULL: none */
    const json_t *format; const char *format_param;
    enum call_choice choice;
    const char *only;                   /* borrowed: the one function to be called; NULL: any */
    int serial;                         /* at most one call */
    struct tmpl_limits limits;          /* of the template; 0: its own */
};
void conversation_release(struct conversation *t);

/* ---- reading bodies ---- */
/* Bodies to conversations: 0, or -1 with *pr; t is to be released either way.  Nothing of the
 * server is needed, so that any JSON can be tried. */
int chat_read(const json_t *body, int parallel, struct conversation *t, struct problem *pr);
int responses_read(const json_t *body, int parallel, struct conversation *t, struct problem *pr);
int messages_read(const json_t *body, struct conversation *t, struct problem *pr);
/* The schema in a response_format (new reference; of json_object, too), NULL without pr->status
 * if it asks for text. */
json_t *format_schema(const json_t *format, const char *param, struct problem *pr);
/* A list of messages as OpenAI has them: contents become text, arguments of calls objects.  New
 * reference. */
json_t *conversation_messages(const json_t *messages, struct problem *pr);
/* The text of a content: text, or a list of parts of the given types.  0, or -1 with *pr. */
int conversation_text(const json_t *content, const char *const *types, const char *param, struct buf *out,
                      struct problem *pr);
/* Is the list of functions sound, and the choice among them possible? */
int conversation_check_tools(struct conversation *t, struct problem *pr);
/* A function to t->tools. parameters: borrowed, NULL: none. */
int conversation_add_tool(struct conversation *t, const char *name, const json_t *description, const json_t *parameters,
                  const char *param, struct problem *pr);
/* All of the body's "tools": function_of finds in one of them the object with name, description
 * and strict (NULL with *pr: it is none of ours), and the schema of its arguments is called
 * `parameters` there. */
int conversation_read_tools(struct conversation *t, const json_t *body, const char *parameters,
                    const json_t *(*function_of)(const json_t *tool, const char *param, struct problem *pr),
                    struct problem *pr);
/* The body's chat_template_kwargs to t->vars. */
int conversation_read_vars(struct conversation *t, const json_t *body, struct problem *pr);
/* Is v, called `name` in the body, a list with something in it?  expected: "a list of at least 1
 * message". */
int conversation_check_list(const json_t *v, const char *name, const char *expected, struct problem *pr);
json_t *conversation_string(const struct buf *text);             /* NULL without memory */
/* Messages in the words of chat completions.  id: of the call that a tool's message answers
 * (borrowed); NULL: none. */
int conversation_add_message(json_t *messages, const char *role, json_t *id, const struct buf *text,
                             struct problem *pr);
/* To a message of the model: a call (all borrowed), and reasoning behind what it has of that. */
int conversation_add_call(json_t *message, json_t *id, json_t *name, json_t *arguments, struct problem *pr);
int conversation_add_reasoning(json_t *message, const char *text, size_t size, struct problem *pr);

/* ---- to the prompt ---- */
/* The text that the model sees, malloc'd. */
int conversation_render(const struct loaded_model *lm, const struct conversation *t, int generation_prompt, char **text,
                        size_t *size,
                struct problem *pr);
/* From c->conversation to prompt and grammar. */
int conversation_prepare(struct call *c, struct problem *pr);
/* What reads the answers, ready. */
int conversation_open_parser(struct choice *ch);

/* ---- parts of the answer ---- */
enum part_kind { PART_TEXT, PART_REASONING, PART_CALL };
struct answer_part {
    enum part_kind kind;
    int index;
    char *id, *name;                    /* of a call; owned */
    struct buf text;                    /* of a call: its arguments */
};
/* An event of the engine becomes pieces of parts: they are kept in ch->part, and the form's
 * `piece` hears of them. */
void conversation_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev);
int choice_calls(const struct choice *ch);              /* how many */
int choice_cut(const struct choice *ch);                /* a stop string ended it in the middle of a call */
/* All text, or reasoning, of an answer. */
void choice_text(const struct choice *ch, enum part_kind kind, struct buf *out);
void choice_release(struct choice *ch);                 /* its parts */

#endif

/* tools.h - calls of functions in an answer: the format that the model was trained on, a parser for
 * streamed text, and grammars that make calls well-formed.
 *
 * The chat template shows the form: Hermes and Qwen (<tool_call> around JSON),
 * Llama 3 (JSON alone or after <|python_tag|>), Mistral ([TOOL_CALLS] before a list, or before name
 * and [ARGS]), DeepSeek R1 and V3.1, Kimi K2, functionary 3.1 and 3.2, Granite 3, Nemotron,
 * Qwen3-Coder, Qwen 3.5, GLM, MiniMax M2, DeepSeek V3.2 and V4, Hunyuan V3 (arguments as tags),
 * MiniMax M3 (arguments as XML elements),
 * Gemma 4 and LFM2 (values in a notation of their own), gpt-oss and Solar (every part of an answer
 * is marked), Cohere, Apertus, GigaChat; for other templates, JSON alone.
 *
 * The markers are often special tokens, which the engine leaves out of its text: decode the ids
 * with a detok of skip_special 0 for the parser. */
#ifndef ZSE_GRAMMAR_TOOLS_H
#define ZSE_GRAMMAR_TOOLS_H

#include <stddef.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/grammar/grammar.h"

struct tool_format;                     /* constant; shared by all */
/* Returns the format of calls that the chat template shows.  If template_text is NULL or has no
 * known marker, that is JSON alone ({"name": ..., "arguments": ...}).  Never NULL. */
const struct tool_format *tool_format_detect(const char *template_text, size_t size);
/* 1 if it uses markers other than <think> for reasoning (and for other parts of an answer). */
int tool_format_has_channels(const struct tool_format *f);
/* 1 if the prompt ends inside of reasoning. */
int tool_format_begun(const struct tool_format *f, const char *prompt, size_t size);
/* Whether its templates refuse ids of calls that are not 9 letters or digits. */
int tool_format_has_short_ids(const struct tool_format *f);
/* "hermes", "llama3", "mistral", ... */
const char *tool_format_name(const struct tool_format *f);

/* ---- reading ---- */

enum tool_event_kind {
    TOOL_CONTENT,                       /* text of the answer */
    /* Text between <think> and </think>, or in the channel analysis. */
    TOOL_REASONING,
    TOOL_CALL,                          /* a call begins: index, name */
    TOOL_ARGUMENTS,                     /* a piece of the JSON text of its arguments */
};
struct tool_event {
    enum tool_event_kind kind;
    /* Borrowed for the call; of TOOL_CALL: the name, '\0' after it. */
    const char *text; size_t size;
    int index;                          /* index of the call in the answer, from 0 */
    /* TOOL_CALL: "call_" and 24 hexadecimal digits, or what the model wrote; borrowed until
     * close. */
    const char *id;
};
struct tool_parser_options {
    /* The request's array, borrowed: names that may be called and types of arguments written as
     * tags.  NULL: any name is a call. */
    const json_t *tools;
    int reasoning;                      /* the prompt ended inside of <think> */
    int no_calls;                       /* tool_choice none: only reasoning is split off */
    /* Report arguments as they arrive.  Otherwise a call is reported when it is complete, and a
     * truncated or malformed call is reported as text.  Set it if a grammar makes every call
     * well-formed. */
    int stream_arguments;
    unsigned long long seed;            /* seed of the ids of calls */
    void (*on_event)(void *user, const struct tool_event *ev);
    void *user;
};
struct tool_parser;
struct tool_parser *tool_parser_open(const struct tool_format *f, const struct tool_parser_options *o, struct err *e);
/* Read the next piece, of any size, of the answer's text.  Returns 0; -1 with *e only if memory ran
 * out.  A malformed call is no error: it is read as text. */
int tool_parser_push(struct tool_parser *p, const char *text, size_t size, struct err *e);
/* The answer has ended: report the text held back so far. */
int tool_parser_finish(struct tool_parser *p, struct err *e);
/* Whether the text so far ends inside of reasoning. */
int tool_parser_thinking(const struct tool_parser *p);
void tool_parser_close(struct tool_parser *p);

/* ---- enforcing ---- */

enum { MAX_TOOLS = 512 };               /* most tools of one request */
enum tool_choice { TOOL_AUTO, TOOL_REQUIRED };
struct tool_grammar_options {
    /* Array of {"type": "function", "function": {"name", "parameters"}}, borrowed for the call. */
    const json_t *tools;
    /* An object whose keys are the functions whose schema is enforced as a whole, or refused;
     * NULL: none.  Of the other functions the keywords that cannot be enforced are ignored:
     * grammar_relaxed() lists them. */
    const json_t *strict;
    /* An object whose keys are names of functions from third parties, whose schemas may be invalid
     * or large: a schema that cannot be compiled allows any object, and is listed by
     * grammar_relaxed(); NULL: none. */
    const json_t *lenient;
    /* Exactly one call, of this function (a named tool_choice, with TOOL_REQUIRED); NULL: any. */
    const char *only;
    enum tool_choice choice;            /* AUTO: free text; an opening marker starts a call */
    int parallel;                       /* more than one call may come */
    /* 1: the prompt ended inside of reasoning.  In any case a reasoning model may think before a
     * required call. */
    int reasoning;
    int no_reasoning;                   /* the model never thinks before a required call */
    /* With AUTO: the schema of an answer without calls, borrowed for the call; NULL: any text. */
    json_t *content; int content_open;  /* with grammar_options.open_objects */
    struct grammar_options grammar;
};
/* Compile the grammar of answers with calls.  v must not be NULL, because the markers may be tokens
 * of the vocabulary.  Returns NULL with *e, which names function and keyword. */
struct grammar *tool_grammar_compile(const struct grammar_vocab *v, const struct tool_format *f,
                                     const struct tool_grammar_options *o, struct err *e);

#endif

/* zse-chat.h - the parts of zse-chat: options, prompts, one answer or many, and the
 * conversation. */
#ifndef ZSE_CMD_ZSE_CHAT_H
#define ZSE_CMD_ZSE_CHAT_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

#include <jansson.h>

#include "cmd/open_model.h"
#include "libcommon/engine/engine.h"
#include "libcommon/grammar/grammar.h"
#include "libcommon/grammar/tools.h"
#include "libcommon/template/chat_calls.h"

/* ---- chat_options.c ---- */
enum { MAX_RAG = 16 };
struct prompt_template;
struct chat_options {
    const char *model, *prompt, *system, *batch, *template_file;        /* NULL: not given */
    char *chosen;                       /* owned: the model that was chosen from the list; NULL: none */
    const char *url, *key, *ca_file;    /* --url: the address of a server, its API key, certificates to trust */
    const char *rag[MAX_RAG]; int n_rag;                /* --rag: collections; "*": all */
    const char *tools, *mcp_config, *allow_tools;       /* --tools and --allow-tools: names with commas */
    int yes;                            /* --yes: run any tool without a question */
    char *text; size_t text_size;       /* the whole prompt, once chat_read_prompt() has read it; owned */
    int piped;                          /* some or all of it came from standard input */
    int raw, json, ids, ignore_eos, no_think, plan, no_wrap;
    /* --continue: the beginning of an id, "": the last conversation; NULL: not given */
    const char *reopen;
    const char *embed;                  /* --embed: "query", "document" or ""; NULL: not given */
    int list_history, no_history;       /* --history: its argument, query, is in the place of MODEL */
    const char *query;                  /* argument of --history; NULL: list all */
    /* --on-full stop: refuse a turn that does not fit in the context; 0: drop the oldest turns */
    int stop_when_full;
    int parallel, max_tokens;           /* max_tokens 0: until the context is full */
    int most_given;                     /* max_tokens was given on the command line */
    struct sampling sampling;
    unsigned given;                     /* bit i: sampling option i was given on the command line */
    const char **stop; int n_stop;      /* owned */
    const char **file; int n_files;     /* owned: -f, and arguments that begin with @ */
    const char *template_name;          /* -t; NULL: not given */
    const char **param; int n_params;   /* owned: --param, NAME=VALUE */
    struct prompt_template *asked;      /* owned: the prompt template; NULL: none */
    char *words;                        /* owned: the prompt of the arguments after MODEL; NULL: none */
    const char **breaker;               /* owned; of --dry-sequence-breaker; sampling has n */
    struct logit_bias *bias;            /* owned */
    const char *schema_file, *grammar_file, *regex;     /* constraints on the answer; at most one */
    struct grammar_vocab *vocab;        /* owned; NULL without a constraint */
    struct grammar *grammar;            /* owned */
    struct run_options run;
};
/* Returns -1 to continue, else the exit code. */
int chat_options_parse(struct chat_options *o, int argc, char **argv);
void chat_options_release(struct chat_options *o);
/* Set one of the options of sampling, seed or max-tokens by its name without "--".  -1 with a
 * note. */
int chat_options_set(struct chat_options *o, const char *name, const char *value);
/* With --url: add the options that were given to the body of a request, under the API's names. */
int chat_options_fields(const struct chat_options *o, json_t *body, struct err *e);
/* Fill in the options that were not given, from the model's generation_config or else from
 * sampling_defaults, and choose a random seed. */
int chat_options_complete(struct chat_options *o, const struct opened_model *m, struct err *e);

/* ---- chat_template.c ---- */
/* Read the template of -t, and take its system message unless -s was given.  0, or the exit code
 * after a message on stderr. */
int chat_template_open(struct chat_options *o);
void chat_template_close(struct chat_options *o);
int chat_template_needs_input(const struct chat_options *o);    /* the template has $input */
/* Replace *text (malloc'd), what the user wrote, by the prompt of the template; without a template
 * it stays. */
int chat_template_apply(const struct chat_options *o, char **text, size_t *size, struct err *e);
int chat_template_list(void);           /* print the names of the templates; returns the exit code */

/* ---- chat_grammar.c ---- */
int chat_grammar_open(struct chat_options *o, const struct opened_model *m, struct err *e);
void chat_grammar_close(struct chat_options *o);

/* ---- chat_prompt.c ---- */
struct prompter {
    const struct tokenizer *tokenizer;
    struct tmpl *tmpl;                  /* owned; NULL: text is used unchanged */
    const char *bos, *eos;              /* texts of the tokens; owned */
    int no_think, fallback;             /* fallback: ChatML is used, as the model has no template */
    struct chat_style style;
    const struct tool_format *format;   /* how the model writes calls */
    int thinks;                         /* the model writes <think>, or has channels */
};
/* Load the model's template or --template, or none with --raw.  fallback: use ChatML if the model
 * has no template (else the text is used unchanged, with a note). */
int prompter_open(struct prompter *p, const struct opened_model *m, const struct chat_options *o, int fallback,
                  struct err *e);
void prompter_close(struct prompter *p);
/* Render messages, an array of {role, content}; tools may be NULL.  *text is malloc'd. */
int prompter_render(const struct prompter *p, const json_t *messages, const json_t *tools, char **text, size_t *size,
                    struct err *e);
/* Tokenize rendered text; with `raw` BOS is added if the tokenizer adds it.  *ids is malloc'd. */
int prompter_encode(const struct prompter *p, const char *text, size_t size, int raw, int32_t **ids, int *n,
                    struct err *e);
/* Tokenize a single question, with a system message if system is not NULL. */
int prompter_question(const struct prompter *p, const char *system, const char *text, size_t size, int32_t **ids,
                      int *n, struct err *e);
json_t *chat_message(const char *role, const char *text, size_t size);

/* ---- chat_answer.c: one request and its answer ---- */
/* A call of a tool.  Texts are owned; arguments: JSON text, NULL: there are none. */
struct answer_call { char *id, *name, *arguments; size_t size, room; };
/* The tools that a model of this process may call; all borrowed. */
struct answer_tools {
    const json_t *functions;
    const struct tool_format *format;
    struct grammar *grammar;
    int thinking;                       /* the prompt ends inside of <think> */
};
struct line_wrap;
struct answer {
    char *text; size_t size, room;      /* owned; with tools or --url without reasoning and calls */
    const struct answer_tools *tools;   /* borrowed; NULL: none, and the text is not parsed */
    struct tool_parser *parser;         /* owned; NULL without tools */
    char *raw; size_t raw_size, raw_room;               /* owned: with tools, the text with its markers */
    struct answer_call *call; int n_calls;              /* owned */
    int32_t *ids; int n_ids, ids_room;  /* owned: generated ids, EOS included */
    enum finish finish;
    struct err error;
    struct request_stats stats;
    struct request *request;            /* valid while it runs */
    int stream;                         /* write text to stdout as it arrives */
    int wraps;                          /* break its lines between words on a terminal */
    struct line_wrap *wrap;                  /* owned; NULL until text is written to a terminal */
    int nomem;
    uint64_t first_ns;                  /* clock_ns() at the first token */
    int thinking;                       /* the last text shown was reasoning */
    /* clock_ns() at the start, and tokens that the engine had computed by then; progress: a line
     * about the prompt stands on the terminal */
    uint64_t start_ns, tokens_before;
    int progress;
    /* only with --url or tools */
    char *reasoning; size_t reasoning_size, reasoning_room;    /* owned; NULL: none */
    char reason[32];                    /* finish_reason of the server */
    int has_usage;                      /* the server sent token counts: they are in stats */
};
/* Submit a request with these ids and the options of o; its answer goes into a. */
int answer_start(struct answer *a, struct engine *g, const struct chat_options *o, const int32_t *ids, int n,
                 struct err *e);
/* After a step: show on a terminal how much of a long prompt is read. */
void answer_progress(struct answer *a, struct engine *g);
void answer_release(struct answer *a);
/* Times at which zse-chat reached each point, by clock_ns(), which is the same clock in all
 * processes; 0: not yet.  The last three are for a GPU, see backend_device. */
struct chat_marks { uint64_t main, mapped, opened, tokenized, ready, device, context, copied; };
/* With a grammar: 1 if the answer is complete, 0 if it was cut off. */
int answer_complete(const struct answer *a, const struct chat_options *o);
json_t *answer_json(const struct answer *a, const struct chat_options *o, const struct chat_marks *marks);
const char *finish_name(enum finish f);
/* Append text to the answer, or to its reasoning, and show it; reasoning is shown only on a
 * terminal. */
void answer_add(struct answer *a, const char *text, size_t size, int is_reasoning);
/* Returns tool call i of the answer, and adds it if there are fewer; NULL: there are too many, or
 * memory ran out. */
struct answer_call *answer_call_at(struct answer *a, int i);
void answer_call_add(struct answer *a, struct answer_call *c, const char *arguments, size_t size);
/* End the display: of reasoning on the terminal, and of a word that is held back. */
void answer_end(struct answer *a);
/* Write to standard output; a terminal gets no control characters except tab and newline. */
void chat_write(const char *text, size_t size);
/* Write to a terminal, after `at` columns of the line, and break lines between words. */
void chat_write_wrapped(const char *text, size_t size, int at);

/* ---- chat_once.c ---- */
int chat_once(const struct chat_options *o, const struct opened_model *m, struct chat_marks *marks);
int chat_batch(const struct chat_options *o, const struct opened_model *m, const struct chat_marks *marks);

/* ---- chat_embed.c ---- */
int chat_embed(const struct chat_options *o, const struct opened_model *m);

/* ---- chat_once.c, continued ---- */
/* Read o->text: the files, the prompt of -p or of the arguments, and the piped text, which without
 * such a prompt is the prompt, without its last newline.  0, or the exit code after a message on
 * stderr. */
int chat_read_prompt(struct chat_options *o);
#define CHAT_EMPTY "the prompt is empty: there is nothing to answer"
/* 1 if the text is only white space; with --raw, where white space counts: if it is empty. */
int chat_prompt_is_empty(const struct chat_options *o, const char *text, size_t size);
/* Read all of a stream; '\0' is appended.  Caller frees. */
char *chat_read_all(FILE *f, const char *name, size_t *size, struct err *e);
/* Print one line: a JSON object, whose reference is taken over; or a text in which newlines and
 * backslashes are escaped with a backslash. */
void chat_print_json(json_t *j);
void chat_print_escaped(const char *text, size_t size);

/* ---- chat_files.c ---- */
char *chat_read_text(const char *name, struct err *e);  /* malloc'd; a file that is no UTF-8 is refused */
/* Append a text file to *to (malloc'd, or NULL) with its name and a fence; raw: only its bytes. */
int chat_attach(char **to, const char *name, int raw, struct err *e);
int chat_attach_all(char **to, const struct chat_options *o, struct err *e);    /* those of the command line */

/* ---- chat_remote.c: answers of a server ---- */
struct remote;
/* Connect: the address, a model (the server's first if none was given), and the fields of every
 * request. */
struct remote *remote_open(const struct chat_options *o, struct err *e);
void remote_close(struct remote *r);                /* NULL is fine */
const char *remote_model(const struct remote *r);
const char *remote_url(const struct remote *r);
int remote_set_model(struct remote *r, const char *name);       /* -1: it is not UTF-8, or no memory */
int remote_set_options(struct remote *r, const struct chat_options *o, struct err *e);  /* for later requests */
/* Set the functions that every request has from now on; NULL: none. */
void remote_set_tools(struct remote *r, json_t *functions);
/* Answer one prompt or a batch.  Returns the exit code. */
int remote_run(struct remote *r, const struct chat_options *o);
/* Request an answer to prompt, an array of messages.  If *stop becomes nonzero, the request is
 * cancelled and ends with FINISH_CANCELLED.  ERR_LIMIT: the messages do not fit in the server's
 * context. */
int remote_answer(struct remote *r, json_t *prompt, struct answer *a, const volatile sig_atomic_t *stop, struct err *e);

/* ---- chat_save.c ---- */
/* Identity of the conversation's own file, that of the last /save or /load; known 0: it has
 * none. */
struct chat_file { int known; dev_t dev; ino_t ino; struct timespec changed; };
/* The file that /save would replace: none, the conversation's own file unchanged, another saved
 * conversation of *n_messages messages, or something else. */
enum chat_file_kind { CHAT_FILE_FREE, CHAT_FILE_OWN, CHAT_FILE_CONVERSATION, CHAT_FILE_OTHER };
enum chat_file_kind chat_file_kind(const struct chat_file *f, const char *path, size_t *n_messages);
/* Save or load a conversation; path becomes its own file. */
int chat_file_save(struct chat_file *f, const char *path, json_t *messages, struct err *e);
json_t *chat_file_load(struct chat_file *f, const char *path, struct err *e);      /* a new array of {role, content} */

/* ---- chat_history.c ---- */
/* The recorded conversation.  n_recorded: number of messages without the system message; last:
 * id of the newest message; system: text of the system message, owned; off: nothing is recorded. */
struct history;
struct chat_history { struct history *h; char id[17]; size_t n_recorded; int64_t last; char *system; int off; };
/* Record the changes since the last call; the first call opens the file.  a: the answer that is
 * the last message; NULL: none.  A failure is reported once, and ends the recording. */
void chat_history_sync(struct chat_history *c, const json_t *messages, const char *model, const struct answer *a);
void chat_history_new(struct chat_history *c);          /* the next message begins another conversation */
int chat_history_title(struct chat_history *c, const char *title, struct err *e);
/* Continue a recorded conversation: return its system message and the messages of the active
 * branch.  *title is malloc'd.  NULL with *e. */
json_t *chat_history_reopen(struct chat_history *c, const char *id, char **title, struct err *e);
void chat_history_close(struct chat_history *c);
/* Print conversations, or those that a search finds (query NULL: all).  Returns the exit code. */
int chat_history_list(const char *query, int most, int json);

/* ---- chat_conversation.c ---- */
/* A function that returns one line of input without its newline, malloc'd.  NULL with
 * *interrupted 1: Ctrl-C was pressed at the prompt, and the conversation continues; otherwise
 * NULL: the input has ended.  With the prompt CHAT_QUESTION the line answers a question, and is
 * not kept in the history. */
#define CHAT_QUESTION "? "
typedef char *(*read_line_fn)(void *user, const char *prompt, int *interrupted);

/* ---- chat_commands.c, chat_complete.c ---- */
enum { MAX_COMPLETIONS = 256 };
struct completions {
    char *word[MAX_COMPLETIONS]; int n; /* owned */
    size_t begun;                       /* bytes of each word that are written already */
};
const char *session_command_name(int i);                /* "/help"; NULL after the last one */
int session_takes_file(const char *line, size_t size);  /* the line is a command whose argument is a file */
/* Find the words by which the last word of a line in a conversation may continue. */
void chat_complete(struct completions *c, const char *line, size_t size);
size_t completions_common(const struct completions *c); /* bytes with which all of them begin */
void completions_release(struct completions *c);

/* ---- chat_model.c ---- */
struct chat_model { struct opened_model m; char *name; };       /* name: owned; NULL: the default */
struct chat_model *chat_model_open(const struct chat_options *o, const char *name, struct err *e);
void chat_model_close(struct chat_model *m);            /* NULL is fine */
/* Let the user choose o->model from the models here.  -1 to continue, else the exit code. */
int chat_choose_model(struct chat_options *o);

/* ---- chat_tools.c ---- */
struct chat_tools;
/* Start the servers of --mcp-config and wait until they are ready or have failed. */
struct chat_tools *chat_tools_open(const struct chat_options *o, struct err *e);
void chat_tools_close(struct chat_tools *c);            /* NULL is fine */
/* The tools of the model: a new list of functions in OpenAI's form; NULL without memory. */
json_t *chat_tools_functions(struct chat_tools *c);
void chat_tools_list(struct chat_tools *c);             /* print them */
/* Run the calls of an answer, and append them with their results to parts.  Before calls that
 * need the user's consent a question is asked with read_line (NULL: such calls are refused).
 * *stop != 0 cancels the calls; the number of calls that were not run is added to *n_refused. */
int chat_tools_run(struct chat_tools *c, const struct answer *a, int round, json_t *parts, read_line_fn read_line,
                   void *user, const volatile sig_atomic_t *stop, int *n_refused, struct err *e);
/* Append a text to the parts of a message.  Returns nonzero if memory ran out. */
int chat_add_text(json_t *parts, const char *text, size_t size);
/* Append a message to the messages of a request; a message with parts becomes several.
 * Returns nonzero if memory ran out. */
int chat_expand(json_t *out, json_t *message);

/* Run a conversation with a model or a server (m or r is NULL); *m can become another model.
 * read_line NULL: answer only
 * o->text.  Returns 0, or 1 after a failure; standard output stays open. */
int chat_converse(const struct chat_options *o, struct chat_model **m, struct remote *r, read_line_fn read_line,
                  void *user);

#endif

/* zse-chat.h - the parts of zse-chat: options, prompts, one answer or many, and the conversation. */
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
#include "libcommon/template/template.h"

/* ---- chat_options.c ---- */
struct chat_options {
    const char *model, *prompt, *system, *batch, *template_file;        /* NULL: not given */
    const char *url, *key, *ca_file;    /* --url: a server answers; its key; certificates to trust */
    char *text; size_t text_size;       /* the whole prompt, once chat_read_prompt() has read it; owned */
    int piped;                          /* all or some of it came from standard input */
    int raw, json, ids, ignore_eos, no_think, plan;
    int stop_when_full;                 /* --on-full stop: a conversation that fills the context is refused; else its oldest turns are left out */
    int parallel, max_tokens;           /* max_tokens 0: until the context is full */
    struct sampling sampling;
    unsigned given;                     /* bits: sampling options of the command line */
    const char **stop; int n_stop;      /* owned */
    struct logit_bias *bias;            /* owned */
    const char *schema_file, *grammar_file, *regex;     /* what the answer must look like: at most one */
    struct grammar_vocab *vocab;        /* owned; NULL without one of them */
    struct grammar *grammar;            /* owned */
    struct run_options run;
};
/* -1: go on; else the exit code. */
int chat_options_parse(struct chat_options *o, int argc, char **argv);
void chat_options_release(struct chat_options *o);
/* With --url: what was given, in the words of the API, into the body of a request. */
int chat_options_fields(const struct chat_options *o, json_t *body, struct err *e);
/* What was not given on the command line: from the model's generation_config, else
 * sampling_defaults; a random seed. */
int chat_options_complete(struct chat_options *o, const struct opened_model *m, struct err *e);

/* ---- chat_grammar.c ---- */
int chat_grammar_open(struct chat_options *o, const struct opened_model *m, struct err *e);
void chat_grammar_close(struct chat_options *o);

/* ---- chat_prompt.c ---- */
struct prompter {
    const struct tokenizer *tokenizer;
    struct tmpl *tmpl;                  /* owned; NULL: text goes in as it is */
    const char *bos, *eos;              /* texts; owned */
    int no_think, fallback;             /* fallback: ChatML, as the model brings no template */
};
/* The model's template, --template, or none with --raw.  fallback: ChatML where the model has
 * none (else raw, with a note). */
int prompter_open(struct prompter *p, const struct opened_model *m, const struct chat_options *o, int fallback,
                  struct err *e);
void prompter_close(struct prompter *p);
/* messages: an array of {role, content}.  *text is malloc'd. */
int prompter_render(const struct prompter *p, const json_t *messages, char **text, size_t *size, struct err *e);
/* Ids of rendered text; raw: with BOS as the tokenizer asks. *ids is malloc'd. */
int prompter_encode(const struct prompter *p, const char *text, size_t size, int raw, int32_t **ids, int *n,
                    struct err *e);
/* A single question, with --system if given, to ids. */
int prompter_question(const struct prompter *p, const char *system, const char *text, size_t size, int32_t **ids,
                      int *n, struct err *e);
json_t *chat_message(const char *role, const char *text, size_t size);

/* ---- chat_answer.c: one request as zse-chat sees it ---- */
struct answer {
    char *text; size_t size, room;      /* owned */
    int32_t *ids; int n_ids, ids_room;  /* owned: generated, the EOS included */
    enum finish finish;
    struct err error;
    struct request_stats stats;
    struct request *request;            /* while it runs */
    int stream;                         /* write to stdout as text comes */
    int nomem;
    uint64_t first_ns;                  /* when the first token came: clock_ns() */
    /* of a server (--url) only */
    char *reasoning; size_t reasoning_size, reasoning_room;    /* owned; NULL: none */
    char reason[32];                    /* finish_reason as it says it */
    int has_usage;                      /* it said how many tokens: stats has them */
};
/* The request of o with these ids; its answer goes into a. */
int answer_start(struct answer *a, struct engine *g, const struct chat_options *o, const int32_t *ids, int n,
                 struct err *e);
void answer_release(struct answer *a);
/* When zse-chat came by: clock_ns(), which all processes share.  0: not yet. */
struct chat_marks { uint64_t main, mapped, opened, tokenized, ready, device, context, copied; };     /* the last three: of a GPU, see backend_device */
/* With a grammar: is the answer a whole one?  It is not if it was cut off. */
int answer_complete(const struct answer *a, const struct chat_options *o);
json_t *answer_json(const struct answer *a, const struct chat_options *o, const struct chat_marks *marks);
const char *finish_name(enum finish f);
/* To standard output; a terminal gets no control characters but tab and newline. */
void chat_write(const char *text, size_t size);

/* ---- chat_once.c ---- */
int chat_once(const struct chat_options *o, const struct opened_model *m, struct chat_marks *marks);
int chat_batch(const struct chat_options *o, const struct opened_model *m, const struct chat_marks *marks);

/* Read o->text: the prompt of -p with the text piped in after it, or standard input alone, whose
 * last newline does not count.  0, or the exit code after a sentence on stderr. */
int chat_read_prompt(struct chat_options *o);
#define CHAT_EMPTY "the prompt is empty: there is nothing to answer"
/* Nothing but blanks; with --raw, where blanks are text: nothing at all. */
int chat_prompt_is_empty(const struct chat_options *o, const char *text, size_t size);
/* All of a stream, '\0' appended.  Caller frees. */
char *chat_read_all(FILE *f, const char *name, size_t *size, struct err *e);
/* One line of output each: JSON (which is released), and text with newlines as \n, backslashes
 * doubled. */
void chat_print_json(json_t *j);
void chat_print_escaped(const char *text, size_t size);

/* ---- chat_remote.c: the answers of a server ---- */
struct remote;
/* The address, a model (the server's first if none was given), the fields of every request. */
struct remote *remote_open(const struct chat_options *o, struct err *e);
void remote_close(struct remote *r);                /* NULL is fine */
const char *remote_model(const struct remote *r);
const char *remote_url(const struct remote *r);
/* One prompt or a batch.  Returns the exit code. */
int remote_run(struct remote *r, const struct chat_options *o);
/* prompt: an array of messages.  *stop != 0 ends the request: FINISH_CANCELLED.  ERR_LIMIT: the
 * server says that they do not fit its context. */
int remote_answer(struct remote *r, json_t *prompt, struct answer *a, const volatile sig_atomic_t *stop, struct err *e);

/* ---- chat_save.c ---- */
/* The file that holds the conversation, as /save or /load left it; known 0: none. */
struct chat_file { int known; dev_t dev; ino_t ino; struct timespec changed; };
/* What /save would replace: nothing, the conversation's own file unchanged, another saved
 * conversation of *n_messages, or something else. */
enum chat_file_kind { CHAT_FILE_FREE, CHAT_FILE_OWN, CHAT_FILE_CONVERSATION, CHAT_FILE_OTHER };
enum chat_file_kind chat_file_kind(const struct chat_file *f, const char *path, size_t *n_messages);
/* Either makes path the conversation's own file. */
int chat_file_save(struct chat_file *f, const char *path, json_t *messages, struct err *e);
json_t *chat_file_load(struct chat_file *f, const char *path, struct err *e);      /* a new array of {role, content} */

/* ---- chat_talk.c ---- */
/* One line of input without its newline, malloc'd; NULL at the end.  *interrupted: Ctrl-C at the
 * prompt (returns NULL, go on). */
#define CHAT_QUESTION "? "               /* as prompt: an answer to a question, which the history does not keep */
typedef char *(*read_line_fn)(void *user, const char *prompt, int *interrupted);
/* With a model or a server, the other is NULL.  0 or 1; standard output is not closed yet. */
int chat_talk(const struct chat_options *o, const struct opened_model *m, struct remote *r, read_line_fn read_line,
              void *user);

#endif

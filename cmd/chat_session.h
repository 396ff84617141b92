/* chat_session.h - private to the conversation of zse-chat: its state, and the functions that
 * chat_conversation.c (input), chat_turn.c (one turn) and chat_commands.c (lines with /) share. */
#ifndef ZSE_CMD_CHAT_SESSION_H
#define ZSE_CMD_CHAT_SESSION_H

#include "cmd/zse-chat.h"

struct chat_session {
    struct chat_options base;           /* as on the command line, and as /set has changed it */
    struct chat_options own;            /* completed for the model */
    const struct chat_options *o;       /* &own */
    struct chat_model *model, **slot;   /* as in chat_converse(); *slot is kept equal to model */
    const struct opened_model *m;       /* NULL: remote answers */
    struct remote *remote;              /* NULL: m answers */
    struct prompter prompter;
    struct engine *engine;
    json_t *messages;                   /* all messages, for /save */
    /* oldest messages after the system message that are no longer sent, because the context is
     * full */
    size_t n_dropped;
    int is_full_noted;                  /* the user was told that the context is full */
    struct chat_file file;
    struct chat_history history;
    struct chat_tools *tools;           /* owned; NULL: none */
    json_t *functions;                  /* owned: the tools of the last request; NULL: none */
    json_t *lenient;                    /* owned: their names, as keys */
    struct grammar_vocab *vocab;        /* owned; NULL: not needed yet */
    struct answer_tools answer_tools;   /* its grammar, owned, makes calls of these functions well-formed */
    int failed;                         /* the last turn */
    int32_t *ids; int n_ids;            /* ids of the last turn, prompt and answer; NULL: none */
    /* the text of the first n_known ids; NULL: not known, because they do not match the
     * conversation */
    char *known; size_t known_size;
    int n_known;
    char *attached;                     /* files for the next question; owned; NULL: none */
    struct request_stats last;
    read_line_fn read_line;
    void *user;
};

/* ---- chat_conversation.c ---- */
extern volatile sig_atomic_t stop_answer;       /* set by Ctrl-C during an answer */

/* print the model, its size and its context */
void session_banner(const struct chat_session *t);
/* Ask a question, after the files that are attached to it; a new one through the template of -t. */
void session_ask(struct chat_session *t, const char *text, int is_new);
int session_add_line(char **text, const char *line);    /* append a line to a malloc'd text; -1: no memory */

/* ---- chat_turn.c ---- */
/* Ask the question and print the answer; both become messages unless that fails. */
void session_turn(struct chat_session *t, const char *text);
/* forget the ids of the last turn, which no longer match the conversation */
void session_forget(struct chat_session *t);
int message_is(const json_t *message, const char *role);
json_t *session_system(const struct chat_session *t);   /* the system message; NULL: none */
/* Record the conversation in the history.  a: the answer with which it ends; NULL: it ends with a
 * question. */
void session_record(struct chat_session *t, const struct answer *a);

/* ---- chat_commands.c ---- */
void session_set_system(struct chat_session *t, const char *text);
/* Whether text may be a command.  Text of several lines may have been pasted: there a slash begins
 * a command only if the command exists. */
int may_be_command(const char *text);
int session_command(struct chat_session *t, const char *line);          /* 1: the command ends the conversation */
void print_message(const struct chat_session *t, const json_t *m);
const char *session_question(const struct chat_session *t);     /* the last question; NULL: there is none */
/* Remove the last turn, from the user's message on; returns the text of that message, malloc'd.
 * NULL with a note: there is none. */
char *session_undo(struct chat_session *t);
/* Ask the last question again, or text in its place; the last turn comes back if that fails. */
void session_ask_again(struct chat_session *t, const char *text);

/* ---- chat_input.c ---- */
void session_attach(struct chat_session *t, const char *name);          /* /file: for the next question */
void session_paste(struct chat_session *t);
void session_edit(struct chat_session *t);              /* ask the last question again, edited */

/* ---- chat_settings.c ---- */
void session_set(struct chat_session *t, const char *arg);      /* "NAME VALUE"; "": print them */
/* Print a text's tokens and their number, or with "" the number of the conversation's. */
void session_tokens(const struct chat_session *t, const char *text);

/* ---- chat_model.c ---- */
/* Prepare to answer with t->model or t->remote; session_leave_model() releases all that this has
 * opened, also if it failed. */
int session_adopt(struct chat_session *t, struct err *e);
void session_leave_model(struct chat_session *t);
/* /model: change the model, or with "" list those that are here.  1: the conversation ends. */
int session_model(struct chat_session *t, const char *arg);
/* Run another of our programs and wait until it ends.  arg NULL: without arguments. */
void session_run(const char *name, const char *arg);

#endif

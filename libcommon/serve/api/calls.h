/* calls.h - an API request that generates: from its body to prompts, through the engine, to an
 * answer or a stream of events.
 *
 * What all forms share is here; a form (chat_completions.c, responses.c, messages.c, completions.c,
 * embeddings.c, wschat.c) reads its body and writes its answer. */
#ifndef ZSE_SERVE_API_CALLS_H
#define ZSE_SERVE_API_CALLS_H

#include "libcommon/grammar/constrain.h"
#include "libcommon/http/account.h"
#include "libcommon/serve/api/prescan.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/api/splitter.h"
#include "libcommon/serve/api/conversation.h"

enum { MAX_STOP = 16, MAX_STOP_BYTES = 1024, MAX_CHOICES = 256 };

struct call;

struct choice {
    struct job *job;                    /* of call.jobs */
    struct call *call;
    int index, prompt;
    struct buf text;                    /* so far, where the answer is given whole */
    struct answer_part *part; int n_parts;     /* of a conversation's answer; owned */
    struct tool_parser *parser;         /* owned; NULL: there are no calls to be read */
    struct buf logprobs, values, tops, offsets;         /* JSON of the tokens so far: chat uses the first, completions all */
    int n_logprobs;
    size_t n_chars;                     /* of the text before the next token */
    struct splitter split;
    float *embedding; int n_embedding;  /* owned */
    int ended, cancel_sent, cancel_heard, said_role;
    enum finish finish;
    int stop;                           /* which stop string ended it; 0: none */
    int n_reasoning;
    size_t n_bytes;                     /* of text, parts and lists above, as counted in call.answer_bytes */
    struct request_stats stats;
    uint64_t last_ns;                   /* of its last token */
};

struct prompt {
    int32_t *ids; int n_ids;            /* owned */
    char *text; size_t text_size;       /* owned: for echo, else NULL */
    struct constraint constraint;       /* of its answers; state NULL: none, or the engine has it */
};

struct call_form {
    enum body_kind body;
    const char *prefix;                 /* of ids: "chatcmpl-" */
    /* From c->json to c->prompts. Any thread: only c->json, c->params and what cannot change of
     * the model. */
    int (*prepare)(struct call *c, struct problem *pr);
    void (*begin)(struct call *c);      /* a stream's first bytes */
    /* A token, or the end, of one choice. NULL: no engine is needed, what prepare made is the
     * answer. */
    void (*event)(struct call *c, struct choice *ch, const struct events *b, const struct event *ev);
    void (*delta)(struct call *c, struct choice *ch, const struct answer_part *p, int begins, const char *text, size_t size);  /* of a conversation's answer: conversation_event calls it */
    void (*end)(struct call *c);        /* every choice has ended: the answer, or the end of the stream */
    void (*fail)(struct call *c, const struct problem *p);      /* instead of end */
};

struct call {
    struct exchange exchange;
    struct call *prev, *next;           /* of the model's open calls */
    struct call *next_preparing;
    uint64_t tenant, round;              /* of guard_tenant; before it in the queue of the preparing threads: so many of its share, more or less */
    struct server *s;
    struct conn *conn;                  /* NULL: the client is gone */
    struct access_record *record;                /* owned: of a WebSocket's message, or of a client that is gone; else conn has it */
    struct loaded_model *lm;
    const struct call_form *form;
    int route;
    char id[48], client[64];
    int64_t created;
    struct hold hold;                   /* of the account: see memory in calls.c */
    size_t kept_bytes, body_bytes;      /* what it keeps besides answers; of the body as it came */
    size_t answer_bytes, held_answers;  /* of answers so far; of which the hold has */
    struct prescan scan;
    struct buf body;                    /* emptied when it was parsed */
    json_t *json;                       /* owned */
    struct params params;
    int include_usage, n_logprobs, max_tokens;
    const char *stop[MAX_STOP]; int n_stop;             /* borrowed from json */
    struct logit_bias *bias;            /* owned */
    struct prompt *prompts; int n_prompts;              /* owned */
    struct shared_grammar *grammar;     /* of the answers; NULL: they are free */
    atomic_int cancelled;               /* no answer is wanted: a thread that compiles its grammar stops soon */
    struct job *jobs;                   /* [n_choices]; owned */
    struct choice *choices; int n_choices, n_open;      /* owned; n_open: jobs that have not ended */
    int submitted, stage, begun;
    int n_events;                       /* of a stream whose events are numbered */
    int starts_thinking;                /* the prompt ends with <think> */
    struct conversation conversation;                   /* of a conversation; owned */
    int raw_text;                       /* special tokens are part of the answer's text */
    struct buf head;                    /* of every event of a stream, up to what differs */
    struct buf line;                    /* scratch */
    struct problem problem;
    uint64_t start_ns, first_ns;
    int status;
    int heard;                          /* the engine's, while jobs are open: see request_params */
};

/* A request arrived. record: of a WebSocket's message, taken over, whose text is copied; NULL:
 * the connection's, whose body is taken. */
void call_start(struct server *s, struct conn *c, struct access_record *record, const struct call_form *form,
                const char *text, size_t size);

/* ---- for the forms ---- */
struct access_record *call_record(const struct call *c);        /* NULL: none */
void call_cancel(struct call *c);
/* The call needs `more` bytes for a while, besides what it keeps: 0, or -1 with *pr (413, 429 or
 * 503).  0 bytes: what it needed is free. */
int call_hold(struct call *c, size_t more, struct problem *pr);
/* The same from now on. */
int call_keep(struct call *c, size_t more, struct problem *pr);
enum { TOKENIZE_BYTES = 144 };          /* that tokenizing takes for each byte of valid UTF-8, at most (spaces in SentencePiece vocabularies) */
/* Room for n prompts. */
int call_prompts(struct call *c, int n, struct problem *pr);
/* Text becomes prompt i; special: texts of special tokens become those tokens; bos: with what
 * the tokenizer adds. */
int call_tokenize(struct call *c, int i, const char *text, size_t size, int special, int bos, struct problem *pr,
                  const char *field);
/* "prompt" or "input": text, ids, or a list of either. */
int call_any_prompts(struct call *c, const char *field, int special, struct problem *pr);
int call_is_stream(const struct call *c);
void call_usage(const struct call *c, struct buf *out); /* {"prompt_tokens":...} */
void call_totals(const struct call *c, int *prompt, int *completion, int *cached, int *reasoning);
const char *call_finish_name(enum finish f);
void call_send_event(struct call *c);                   /* c->line as a server-sent event; empties it */
void call_fail_answer(struct call *c, const struct problem *p);    /* the default for call_form.fail */
/* The status and the headers of a stream of server-sent events. */
void call_begin_stream(struct call *c);
/* What an answer of chat or text begins with, up to the list of choices; how an event of one
 * choice ends (finish NULL: more comes), which is sent; how the stream and how the whole answer
 * end. */
void call_head(const struct call *c, const char *object, struct buf *out);
void call_end_event(struct call *c, const char *finish);
void call_end_stream(struct call *c);
void call_end_answer(struct call *c, struct buf *out);

/* ---- answer_grammar.c: what the answers must look like ---- */
/* c->conversation's format and tools, grammar and regex of the body: the grammar, and a matcher
 * of it for every prompt.  0 also where nothing is asked. */
int call_answer_grammar(struct call *c, struct problem *pr);

/* ---- token_text.c ---- */
/* The bytes that a token stands for, in the middle of a text. */
void token_bytes(const struct tokenizer *t, int32_t id, struct buf *out);
/* The same as a JSON string; bytes that are no text as "bytes:\\xe2\\x82". */
void token_json(const char *bytes, size_t n, struct buf *out);
void logprob_json(float x, struct buf *out);

#endif

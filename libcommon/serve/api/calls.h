/* calls.h - a call: an API request that uses a model, from its body to prompts, through the engine,
 * to an answer or a stream of events.
 *
 * Calls have several forms (chat_completions.c, responses.c, messages.c, completions.c,
 * embeddings.c, rerank.c, text.c, render.c, wschat.c).  A form reads the body and writes the
 * answer; struct call and the functions here are common to all forms.
 *
 * A call belongs to the loop's thread, except while a preparing thread works on it. */
#ifndef ZSE_SERVE_API_CALLS_H
#define ZSE_SERVE_API_CALLS_H

#include "libcommon/grammar/constrain.h"
#include "libcommon/http/account.h"
#include "libcommon/serve/api/call_documents.h"
#include "libcommon/serve/api/conversation.h"
#include "libcommon/serve/api/prescan.h"
#include "libcommon/serve/api/splitter.h"
#include "libcommon/serve/api/tool_rounds.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

enum { MAX_STOP = 16, MAX_STOP_BYTES = 1024, MAX_CHOICES = 256,
       MAX_TEXTS = 2048 };              /* inputs of one request for vectors; the limit of OpenAI */

struct call;

/* One of the answers to a prompt. */
struct choice {
    struct worker_job *job;                    /* its element of call.jobs */
    struct call *call;
    int index, prompt;                  /* its index in call.choices, and its prompt's in call.prompts */
    struct buf text;                    /* the text so far, if the answer is not streamed */
    struct answer_part *part; int n_parts;              /* the parts of a conversation's answer; owned */
    struct tool_parser *parser;         /* owned; NULL: the answer cannot contain calls */
    /* JSON of the tokens so far: chat uses only logprobs, completions use all four */
    struct buf logprobs, values, tops, offsets;
    int n_logprobs;
    size_t n_chars;                     /* characters of the answer before the next token */
    struct reasoning_splitter split;
    float *embedding; int n_embedding;  /* owned */
    int ended, cancel_sent, cancel_done;       /* cancel_done: the worker has cancelled the job */
    int said_role;                      /* the first event, which has the role, was sent */
    enum finish finish;
    int stop;                           /* index of the stop string that ended it, from 1; 0: none */
    int n_reasoning;                    /* number of tokens of reasoning */
    size_t n_bytes;                     /* bytes of the text, parts and lists above, as counted in call.answer_bytes */
    struct request_stats stats;
    uint64_t last_ns;                   /* time of its last token */
};

struct prompt {
    int32_t *ids; int n_ids;            /* owned */
    char *text; size_t text_size;       /* kept for the option echo; owned, else NULL */
    int second; /* of a pair of texts: index of the second text's first token; 0: a single text */
    struct constraint constraint;       /* constrains its answers; state NULL: no constraint, or the engine owns it */
};

struct call_form {
    body_set body;
    const char *prefix;                 /* prefix of the ids of answers: "chatcmpl-" */
    /* Make c->prompts from c->json.  Any thread: it reads only c->json, c->params and the constant
     * parts of the model. */
    int (*prepare)(struct call *c, struct problem *pr);
    /* Parse the fields that the table does not cover into c->params, in the loop.  NULL: none. */
    int (*params)(struct call *c, struct problem *pr);
    int latest;                         /* "NAME:latest" means NAME, unless a model has exactly that name */
    int on_socket;                      /* each event of its stream is a message of a WebSocket */
    void (*begin)(struct call *c);      /* write the first bytes of a stream */
    /* A token of a choice, or its end.  NULL: the form needs no engine, because prepare made the
     * answer. */
    void (*event)(struct call *c, struct choice *ch, const struct events *b, const struct event *ev);
    /* New text of a part of a conversation's answer, called by conversation_event.  begins: the
     * part is new.  NULL: the form has no conversation. */
    void (*delta)(struct call *c, struct choice *ch, const struct answer_part *p, int begins, const char *text,
                  size_t size);
    /* NULL except in forms that support tools of the server.  tool_call and tool_result are called
     * in a stream: when a call of a tool is about to run, and when its result has arrived.
     * round_end is called when all calls of a round have run, and appends the round to
     * rounds->items (NULL: the form has no items). */
    void (*tool_call)(struct call *c, const struct answer_part *p);
    void (*tool_result)(struct call *c, const struct answer_part *p, const struct call_result *t);
    void (*round_end)(struct call *c, const struct choice *ch);
    void (*end)(struct call *c);        /* every choice has ended: write the answer, or end the stream */
    void (*fail)(struct call *c, const struct problem *p);      /* called instead of end */
};

/* POST /v1/chat/completions as a conversation over /ws/completions. */
extern const struct call_form chat_socket_form;
/* POST /v1/responses over a WebSocket. */
extern const struct call_form responses_socket_form;

struct call {
    struct exchange exchange;           /* must be the first member: see exchange.h */
    struct call *prev, *next;           /* list of the model's open calls */
    struct call *next_preparing;        /* link in a list of call_prepare.c */
    uint64_t tenant, scope;             /* results of guard_tenant() and guard_scope() */
    uint64_t round;                     /* its round in the queue of the preparing threads */
    struct server *s;
    struct conn *conn;                  /* NULL: the client has disconnected */
    /* Owned by the call if the record belongs to a WebSocket's message or the client has
     * disconnected; otherwise owned by conn. */
    struct access_record *record;
    struct loaded_model *lm;            /* NULL until the body is parsed */
    int lora;                           /* number of the adapter that was asked for, 0: none */
    struct loaded_model *awaited;       /* the model that is being loaded for this call; NULL: none */
    const struct call_form *form;
    int route;                          /* index in the table of routes */
    char id[48], client[64];
    int64_t created;                    /* seconds since 1970 */
    struct hold hold;                   /* reservation in the account: see call_memory.c */
    size_t kept_bytes;                  /* bytes reserved besides answers */
    size_t body_bytes;                  /* bytes of the body as received, without ignored fields */
    size_t answer_bytes, held_answers;  /* bytes of the answers so far; bytes of answers that the hold covers */
    /* parameters of speculative decoding; draft.predicted points to `predicted`, which is owned */
    struct draft_params draft;
    int32_t *predicted;
    int predicts;                       /* the body has a prediction */
    struct prescan scan;
    struct buf body;                    /* freed when it has been parsed */
    json_t *json;                       /* owned */
    /* members of an Ollama body that its API does not have, moved here from json; owned; freed by
     * call_drop_prompt */
    json_t *unknown;
    struct params params;
    int include_usage, running_usage;   /* running_usage: every event has the usage so far */
    int n_logprobs, max_tokens;         /* n_logprobs -1: none; max_tokens 0: up to the context */
    const char *stop[MAX_STOP]; int n_stop;             /* borrowed from json */
    int32_t *stop_ids; int n_stop_ids;  /* owned */
    const char *breaker[DRY_MAX_BREAKERS];              /* dry_sequence_breakers, borrowed from json */
    struct logit_bias *bias;            /* owned */
    struct prompt *prompts; int n_prompts;              /* owned */
    struct shared_grammar *grammar;     /* grammar of the answers; NULL: they are unconstrained */
    atomic_int cancelled;               /* tells a thread that compiles the grammar to stop */
    struct worker_job *jobs;                   /* [n_choices]; owned */
    struct choice *choices; int n_choices, n_open;      /* owned; n_open: jobs that have not ended */
    int submitted, stage;               /* stage: the next one to run, see internal.h */
    int n_sent;                         /* choices submitted so far; n_open also counts the rest */
    int begun;                          /* form->begin was called */
    int n_events;                       /* events so far, of streams that number them */
    int starts_thinking;                /* the prompt ends with <think> */
    struct conversation conversation;   /* owned */
    /* of /v1/responses, elements of JSON lists: the items of the response that this one continues,
     * and those to keep, without the answer's own */
    struct buf previous, kept;
    struct buf echo;                    /* of /v1/responses: see responses_echo */
    struct tool_rounds *rounds;         /* owned; NULL: no tools of the server */
    json_t *documents;                  /* the answer of /api/rag/context; owned; NULL: none requested */
    void (*documents_then)(struct call *c);
    const char *prefix;                 /* text before each text to embed, borrowed from the model; NULL: none */
    int raw_text;                       /* special tokens are part of the answer's text */
    struct buf head;                    /* bytes that begin every event of a stream */
    struct buf line;                    /* scratch: the event being written */
    struct buf more;                    /* members of the next event of chat, each after a comma */
    struct problem problem;             /* status 0: none */
    /* times of clock_ns(): start_ns of the request, bound_ns when its model was available, first_ns
     * of the first token; 0: not yet */
    uint64_t start_ns, bound_ns, first_ns;
    int status;                         /* HTTP status of the response; set when the call has ended */
    int reported;                          /* owned by the engine while jobs are open: see request_params */
};

/* Start a call.  record not NULL: the call is for a message of a WebSocket; its text is copied, and
 * the call takes ownership of the record.  record NULL: the call is for a request, whose body is
 * taken from the connection. */
void call_start(struct server *s, struct conn *c, struct access_record *record, const struct call_form *form,
                const char *text, size_t size);

/* ---- for the forms ---- */
/* Whether the result of the call is vectors or scores instead of text. */
int call_embeds(const struct call *c);
/* The model that the answer names: the id of c->lm, or the name of its adapter. */
const char *call_model(const struct call *c);
struct access_record *call_record(const struct call *c);        /* NULL: it has none */
void call_cancel(struct call *c);       /* cancel all open choices */
/* Reserve `more` bytes beyond those of call_keep(), until the next call_hold().  0, or -1 with *pr
 * (413, 429 or 503); 0 bytes always succeed. */
int call_hold(struct call *c, size_t more, struct problem *pr);
/* Reserve `more` bytes for the rest of the call's life.  0, or -1 with *pr. */
int call_keep(struct call *c, size_t more, struct problem *pr);
/* Reserve, until the next call_hold() or call_keep(), the memory in which the prompt of a
 * conversation is made: two copies of the JSON tree, the values of the template, and its output.
 * The sizes allowed for values and output depend on the size of the body and on the memory limit of
 * one request.  0, or -1 with *pr. */
int call_hold_prompts(struct call *c, struct problem *pr);
/* Maximum bytes of memory that tokenizing needs per byte of valid UTF-8.  The worst case is spaces
 * in SentencePiece vocabularies. */
enum { TOKENIZE_BYTES = 144 };
/* Allocate n prompts.  0, or -1 with *pr. */
int call_prompts(struct call *c, int n, struct problem *pr);
/* Tokenize text into prompt i. special: names of special tokens in the text become those tokens;
 * bos: add BOS and all other tokens that the tokenizer adds.  0, or -1 with *pr about `field`. */
int call_tokenize(struct call *c, int i, const char *text, size_t size, int special, int bos, struct problem *pr,
                  const char *field);
/* Make prompts of the field "prompt" or "input": text, ids, or a list of either.  0, or -1 with
 * *pr. */
int call_any_prompts(struct call *c, const char *field, int special, struct problem *pr);
int call_is_stream(const struct call *c);
void call_usage(const struct call *c, struct buf *out);         /* append {"prompt_tokens":...} */
void call_totals(const struct call *c, struct token_counts *t);         /* sum over all prompts and answers */
/* Append ,"speculation":{...} to an answer if it could have drafts and the request or the program's
 * options enabled them. */
void call_speculation(const struct call *c, struct buf *out);
const char *call_finish_name(enum finish f);                    /* "stop" or "length" */
void call_send_event(struct call *c);                           /* send c->line and empty it */
/* The text before and after the JSON of a server-sent event; "" for a message of a WebSocket. */
const char *call_event_begin(const struct call *c);
const char *call_event_end(const struct call *c);
void call_fail_answer(struct call *c, const struct problem *p); /* the default for call_form.fail */
void call_begin_stream(struct call *c);                         /* send status and headers of server-sent events */
void call_begin_lines(struct call *c, const char *type);        /* call_begin_stream with another media type */
/* Parts of the answers of chat and text completions: */
/* append everything before the list of choices */
void call_head(const struct call *c, const char *object, struct buf *out);
/* end c->line and send it; finish NULL: more follows */
void call_end_event(struct call *c, const char *finish);
void call_close_stream(struct call *c);                         /* end it, with nothing more to send */
void call_end_stream(struct call *c);                           /* send the usage, if requested, and [DONE] */
void call_end_answer(struct call *c, struct buf *out);          /* close the list of choices; send and release out */

/* ---- embeddings.c ---- */
/* Tokenize the texts of this field for embedding; refuses models that cannot embed.  0, or -1 with
 * *pr. */
int call_embedding_prompts(struct call *c, const char *field, struct problem *pr);
/* Truncate the vector to the body's `dimensions`; returns its new number of elements. */
int call_cut_vector(const struct call *c, struct choice *ch);
void call_vector_json(const float *x, int n, struct buf *out);
/* Keep the vector of a choice; this is the call_form.event of calls that embed. */
void call_take_vector(struct call *c, struct choice *ch, const struct events *b, const struct event *ev);

/* ---- responses_echo.c ---- */
/* Write the members of a response that repeat the request, a JSON object, to c->echo, and reserve
 * memory for the responses that contain them.  0, or -1 with *pr.  Any thread. */
int responses_echo(struct call *c, struct problem *pr);

/* ---- responses.c ---- */
/* Write an error as a message of a WebSocket of the Responses API. */
void responses_error_json(const struct problem *p, struct buf *out);

/* ---- call_drafts.c ---- */
/* Whether tokens are drafted for answers of this call. */
int call_has_drafts(const struct call *c);

/* ---- answer_grammar.c ---- */
/* Compile the grammar that the body implies (the conversation's format and tools, grammar, regex),
 * and give every prompt a matcher of it.  0 (also if there is no constraint), or -1 with *pr. */
int call_answer_grammar(struct call *c, struct problem *pr);

/* ---- token_text.c ---- */
/* Append the bytes that a token has in the middle of a text. */
void token_bytes(const struct tokenizer *t, int32_t id, struct buf *out);
/* Append these bytes as a JSON string; bytes that are not UTF-8 become "bytes:\\xe2\\x82". */
void token_json(const char *bytes, size_t n, struct buf *out);
void logprob_json(float x, struct buf *out);

#endif

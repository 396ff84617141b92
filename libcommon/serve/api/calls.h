/* calls.h - an API request that generates: from its body to prompts, through the engine, to an
 * answer or a stream of events.
 *
 * A call is what all forms share.  A form (chat_completions.c, responses.c, messages.c,
 * completions.c, embeddings.c, rerank.c, text.c, wschat.c) reads its body and writes its answer.
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
       MAX_TEXTS = 2048 };              /* of a request for vectors, as at OpenAI */

struct call;

/* One of the answers to a prompt. */
struct choice {
    struct worker_job *job;                    /* of call.jobs */
    struct call *call;
    int index, prompt;                  /* in call.choices and call.prompts */
    struct buf text;                    /* so far, where the answer is not streamed */
    struct answer_part *part; int n_parts;              /* of a conversation's answer; owned */
    struct tool_parser *parser;         /* owned; NULL: the answer cannot contain calls */
    /* JSON of the tokens so far: chat uses the first, completions all */
    struct buf logprobs, values, tops, offsets;
    int n_logprobs;
    size_t n_chars;                     /* of the text before the next token */
    struct reasoning_splitter split;
    float *embedding; int n_embedding;  /* owned */
    int ended, cancel_sent, cancel_done;       /* cancel_done: the worker has cancelled the job */
    int said_role;                      /* the first event of the stream is out */
    enum finish finish;
    int stop;                           /* number of the stop string that ended it, from 1; 0: none */
    int n_reasoning;                    /* tokens of reasoning */
    size_t n_bytes;                     /* of text, parts and lists above, as counted in call.answer_bytes */
    struct request_stats stats;
    uint64_t last_ns;                   /* time of its last token */
};

struct prompt {
    int32_t *ids; int n_ids;            /* owned */
    char *text; size_t text_size;       /* for echo; owned, else NULL */
    int second;                         /* of a pair: first token of the second text; 0: it is one text */
    struct constraint constraint;       /* of its answers; state NULL: none, or the engine owns it */
};

struct call_form {
    body_set body;
    const char *prefix;                 /* of ids: "chatcmpl-" */
    /* From c->json to c->prompts.  Any thread: it reads only c->json, c->params and those parts of
     * the model that do not change. */
    int (*prepare)(struct call *c, struct problem *pr);
    /* Parse the fields that the table does not cover into c->params, in the loop.  NULL: none. */
    int (*params)(struct call *c, struct problem *pr);
    int latest;                         /* "NAME:latest" means NAME, unless a model has that whole name */
    void (*begin)(struct call *c);      /* write the first bytes of a stream */
    /* A token, or the end, of one choice.  NULL: the form needs no engine, and prepare made the
     * answer. */
    void (*event)(struct call *c, struct choice *ch, const struct events *b, const struct event *ev);
    /* New text of a part of a conversation's answer, called by conversation_event.  begins: the
     * part is new.  NULL: the form has no conversation. */
    void (*delta)(struct call *c, struct choice *ch, const struct answer_part *p, int begins, const char *text,
                  size_t size);
    /* Of forms with tools of the server, in streams: a call is about to run; its result.  In
     * each answer, when all of a round have run: append the round to rounds->items (NULL: the form
     * has no items). */
    void (*tool_call)(struct call *c, const struct answer_part *p);
    void (*tool_result)(struct call *c, const struct answer_part *p, const struct call_result *t);
    void (*round_end)(struct call *c, const struct choice *ch);
    void (*end)(struct call *c);        /* every choice has ended: write the answer, or the end of the stream */
    void (*fail)(struct call *c, const struct problem *p);      /* called instead of end */
};

struct call {
    struct exchange exchange;           /* first: see exchange.h */
    struct call *prev, *next;           /* of the model's open calls */
    struct call *next_preparing;        /* in a list of call_prepare.c */
    uint64_t tenant, scope;             /* as guard_tenant and guard_scope say */
    uint64_t round;                     /* of the queue of the preparing threads */
    struct server *s;
    struct conn *conn;                  /* NULL: the client is gone */
    /* owned: of a WebSocket's message, or of a client that is gone; else conn has it */
    struct access_record *record;
    struct loaded_model *lm;            /* NULL until the body is parsed */
    struct loaded_model *awaited;       /* the model that is loading for it; NULL: none */
    const struct call_form *form;
    int route;                          /* index in routes */
    char id[48], client[64];
    int64_t created;                    /* seconds since 1970 */
    struct hold hold;                   /* of the account: see call_memory.c */
    size_t kept_bytes;                  /* held besides answers */
    size_t body_bytes;                  /* size of the body as received, less the ignored fields */
    size_t answer_bytes, held_answers;  /* of answers so far; bytes of answers that the hold covers */
    /* how next tokens are drafted; its predicted tokens are owned, and kept as `predicted` */
    struct draft_params draft;
    int32_t *predicted;
    int predicts;                       /* the body has a prediction */
    struct prescan scan;
    struct buf body;                    /* freed once it is parsed */
    json_t *json;                       /* owned */
    /* members of json that Ollama's bodies do not have, until call_drop_prompt; owned */
    json_t *unknown;
    struct params params;
    int include_usage, running_usage;   /* running_usage: also in every event, so far */
    int n_logprobs, max_tokens;         /* n_logprobs -1: none; max_tokens 0: up to the context */
    const char *stop[MAX_STOP]; int n_stop;             /* borrowed from json */
    int32_t *stop_ids; int n_stop_ids;  /* owned */
    const char *breaker[DRY_MAX_BREAKERS];              /* dry_sequence_breakers, borrowed from json */
    struct logit_bias *bias;            /* owned */
    struct prompt *prompts; int n_prompts;              /* owned */
    struct shared_grammar *grammar;     /* of the answers; NULL: they are unconstrained */
    atomic_int cancelled;               /* tells a thread that compiles the grammar to stop soon */
    struct worker_job *jobs;                   /* [n_choices]; owned */
    struct choice *choices; int n_choices, n_open;      /* owned; n_open: jobs that have not ended */
    int submitted, stage;               /* stage: the next one to run, see internal.h */
    int n_sent;                         /* choices submitted to the engine; n_open includes the others */
    int begun;                          /* form->begin was called */
    int n_events;                       /* of a stream whose events are numbered */
    int starts_thinking;                /* the prompt ends with <think> */
    struct conversation conversation;   /* owned */
    struct tool_rounds *rounds;         /* owned; NULL: no tools of the server */
    json_t *documents;                  /* owned: the answer of /api/rag/context; NULL: none requested */
    void (*documents_then)(struct call *c);
    const char *prefix;                 /* put before texts to embed, borrowed from the model; NULL: nothing */
    int raw_text;                       /* special tokens are part of the answer's text */
    struct buf head;                    /* the bytes that begin every event of a stream */
    struct buf line;                    /* scratch: the event being written */
    struct buf more;                    /* members, each after a comma, of the next event of chat */
    struct problem problem;             /* status 0: none */
    /* bound_ns: when its model was available; first_ns: the first token; 0: not yet */
    uint64_t start_ns, bound_ns, first_ns;
    int status;                         /* of the response, once the call has ended */
    int reported;                          /* the engine's, while jobs are open: see request_params */
};

/* Begin a call.  record: of a WebSocket's message, taken over, whose text is copied; NULL: of the
 * connection, whose body is taken. */
void call_start(struct server *s, struct conn *c, struct access_record *record, const struct call_form *form,
                const char *text, size_t size);

/* ---- for the forms ---- */
/* 1: the result is vectors or scores, not text. */
int call_embeds(const struct call *c);
struct access_record *call_record(const struct call *c);        /* NULL: none */
void call_cancel(struct call *c);       /* of all its open choices */
/* Hold `more` bytes besides what the call keeps, until the next call_hold.  0, or -1 with *pr (413,
 * 429 or 503); 0 bytes always succeed. */
int call_hold(struct call *c, size_t more, struct problem *pr);
/* Hold `more` bytes as long as the call lives.  0, or -1 with *pr. */
int call_keep(struct call *c, size_t more, struct problem *pr);
/* Bytes that tokenizing needs for each byte of valid UTF-8, at most (spaces in SentencePiece
 * vocabularies). */
enum { TOKENIZE_BYTES = 144 };
/* Allocate n prompts.  0, or -1 with *pr. */
int call_prompts(struct call *c, int n, struct problem *pr);
/* Tokenize text into prompt i.  special: texts of special tokens become those tokens; bos: add BOS
 * and whatever else the tokenizer adds.  0, or -1 with *pr about `field`. */
int call_tokenize(struct call *c, int i, const char *text, size_t size, int special, int bos, struct problem *pr,
                  const char *field);
/* Make prompts of the field "prompt" or "input": text, ids, or a list of either.  0, or -1 with
 * *pr. */
int call_any_prompts(struct call *c, const char *field, int special, struct problem *pr);
int call_is_stream(const struct call *c);
void call_usage(const struct call *c, struct buf *out);         /* {"prompt_tokens":...} */
void call_totals(const struct call *c, struct token_counts *t);         /* of all prompts and answers */
/* Append ,"speculation":{...} if a choice could have drafts. */
void call_speculation(const struct call *c, struct buf *out);
const char *call_finish_name(enum finish f);                    /* "stop" or "length" */
void call_send_event(struct call *c);                           /* send c->line and empty it */
void call_fail_answer(struct call *c, const struct problem *p); /* the usual call_form.fail */
void call_begin_stream(struct call *c);                         /* send status and headers of server-sent events */
void call_begin_lines(struct call *c, const char *type);        /* the same of a stream of this media type */
/* Parts of the answers of chat and text completions: */
void call_head(const struct call *c, const char *object, struct buf *out);      /* up to the list of choices */
/* end c->line and send it; finish NULL: more follows */
void call_end_event(struct call *c, const char *finish);
void call_end_stream(struct call *c);                           /* the usage, if requested, and [DONE] */
void call_end_answer(struct call *c, struct buf *out);          /* the end of the list; replies and releases out */

/* ---- embeddings.c ---- */
/* Make prompts of the texts in this field; refuses models that are not for embedding.  0, or -1
 * with *pr. */
int call_embedding_prompts(struct call *c, const char *field, struct problem *pr);
/* Truncate the vector to the body's `dimensions`; returns its new length. */
int call_cut_vector(const struct call *c, struct choice *ch);
void call_vector_json(const float *x, int n, struct buf *out);
/* Keep the vector of a choice: call_form.event of calls that embed. */
void call_take_vector(struct call *c, struct choice *ch, const struct events *b, const struct event *ev);

/* ---- call_drafts.c ---- */
/* Whether answers of this call have drafts. */
int call_has_drafts(const struct call *c);

/* ---- answer_grammar.c ---- */
/* Compile the grammar that the body implies (the conversation's format and tools, grammar, regex),
 * and give every prompt a matcher of it.  0 (also if there is no constraint), or -1 with *pr. */
int call_answer_grammar(struct call *c, struct problem *pr);

/* ---- token_text.c ---- */
/* Append the bytes that a token stands for in the middle of a text. */
void token_bytes(const struct tokenizer *t, int32_t id, struct buf *out);
/* Append them as a JSON string; bytes that are not UTF-8 become "bytes:\\xe2\\x82". */
void token_json(const char *bytes, size_t n, struct buf *out);
void logprob_json(float x, struct buf *out);

#endif

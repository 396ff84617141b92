/* zse.h - run a language model in a program: the public interface of libzse, described in zse(3).
 *
 *     struct zse_error e;
 *     struct zse_model *m = zse_model_open("m.zse", NULL, &e);
 *     struct zse_engine *g = m ? zse_engine_open(m, NULL, &e) : NULL;
 *     struct zse_request_options o = { .size = sizeof o, .prompt = "Once", .on_event = print };
 *     struct zse_request *r = g ? zse_submit(g, &o, &e) : NULL;
 *     if (!r || zse_wait(r, NULL, &e) != 0)
 *         report(e.message);
 *
 * Handles.  A model is a mapped file; an engine has the keys and values of running requests and a
 * thread that computes; a request is one answer.  Close them in the reverse order.  Any number of
 * each may exist in a process: the library has no global state.  It prints nothing, reads no
 * environment, installs no signal handlers, and ends the process only by an assertion, where it has
 * a bug.
 *
 * Errors.  A function that can fail returns 0 or -1, or a handle or NULL, and then fills *e, which
 * may be NULL.  On success *e is unchanged.  A NULL argument where a pointer is needed is
 * ZSE_ERROR_USAGE.  Functions that close and free accept NULL.
 *
 * Threads.  Any thread may call any function, several at a time on one handle, except that closing
 * or freeing a handle must be the last call with it.  Callbacks come from the engine's thread, one
 * at a time, and delay all of its requests; they may call anything but zse_wait(), zse_embed() and
 * zse_engine_close() of their own engine.  They must return: not by longjmp() or an exception.
 * Functions need up to 256 kB of stack.  After fork() the child may use and close models, but
 * neither engines nor requests of its parent.
 *
 * Memory.  Text and ids that the library returns by pointer to pointer belong to the caller, who
 * frees them with zse_free().  Arguments are copied: the caller may free them after the call.  Text
 * is UTF-8.
 *
 * Versions.  Structs that the caller fills begin with `size`, which is sizeof the struct.  Later
 * versions of the library append members, for which 0 means the behaviour before, and accept the
 * smaller sizes of programs compiled earlier.  A struct that is larger than the library knows is
 * refused with ZSE_ERROR_USAGE if its unknown part is not 0.  The soname changes if anything else
 * does. */
#ifndef ZSE_H
#define ZSE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZSE_API __attribute__((visibility("default")))

/* The version of this file: major * 10000 + minor * 100 + patch. */
#define ZSE_VERSION_NUMBER 100
/* The version of the library, such as "0.1.0"; static. */
ZSE_API const char *zse_version(void);

enum zse_code {
    ZSE_OK,
    ZSE_ERROR_IO,                       /* a system call failed: open, read */
    ZSE_ERROR_FORMAT,                   /* a file or text is malformed */
    ZSE_ERROR_SHAPE,                    /* sizes that do not fit together */
    ZSE_ERROR_UNSUPPORTED,              /* valid, but not supported by the model or the library */
    ZSE_ERROR_MEMORY,
    ZSE_ERROR_DEVICE,
    ZSE_ERROR_LIMIT,                    /* out of range: context length, value of an option */
    ZSE_ERROR_CANCELLED,
    ZSE_ERROR_USAGE = 100,              /* the arguments break a rule of this file */
};

struct zse_error {
    int code;                           /* enum zse_code; later versions may have others */
    char message[512];                  /* one sentence in English, without a line break at its end */
};

/* Free what zse_tokenize(), zse_detokenize(), zse_render() or zse_embed() returned. */
ZSE_API void zse_free(void *p);

/* ---- models ---- */

struct zse_model;

struct zse_model_options {
    size_t size;
    /* 1: read the whole file and compare its checksums; 0: check all offsets, sizes and types, but
     * not the weights */
    int verify;
    int no_prefetch;                    /* 1: read pages of the file only when they are needed */
};

/* Map a .zse file, which zse-convert(1) makes of other formats.  o may be NULL.  The file must not
 * be changed while it is open: replace it by renaming another one over it.  If it is cut short, the
 * process gets SIGBUS. */
ZSE_API struct zse_model *zse_model_open(const char *path, const struct zse_model_options *o, struct zse_error *e);
ZSE_API void zse_model_close(struct zse_model *m);

/* Returns a description of the model as a JSON object, borrowed until zse_model_close().  zse(3)
 * lists its keys. */
ZSE_API const char *zse_model_info(const struct zse_model *m);

/* ---- text ---- */

enum {
    ZSE_ADD_SPECIAL = 1,                /* tokenize: add what the model expects around a text, such as BOS */
    ZSE_PARSE_SPECIAL = 2,              /* tokenize: "<|im_end|>" in the text is that token */
    ZSE_SKIP_SPECIAL = 4,               /* detokenize: leave special tokens out */
};

/* Tokenize `size` bytes of text; the caller frees *ids with zse_free().  Bytes that are not UTF-8
 * are treated as the model's own tokenizer does.  flags: ZSE_ADD_SPECIAL, ZSE_PARSE_SPECIAL.  *ids
 * is never NULL on success. */
ZSE_API int zse_tokenize(const struct zse_model *m, const char *text, size_t size, unsigned flags, int32_t **ids,
                         size_t *n_ids, struct zse_error *e);

/* Decode n_ids tokens to text, with '\0' after its *size bytes (size may be NULL).  Bytes that are
 * not UTF-8 become U+FFFD.  flags: ZSE_SKIP_SPECIAL. */
ZSE_API int zse_detokenize(const struct zse_model *m, const int32_t *ids, size_t n_ids, unsigned flags, char **text,
                           size_t *size, struct zse_error *e);

struct zse_render_options {
    size_t size;
    const char *tools;                  /* JSON array of tools, as of the OpenAI API; NULL: none */
    const char *variables;              /* JSON object, such as {"enable_thinking": false}; NULL: none */
    const char *chat_template;          /* Jinja, instead of the model's own; NULL: the model's */
    int no_generation_prompt;           /* 1: do not begin the turn of the assistant */
    int reserved;                       /* 0 */
};

/* Render messages, a JSON array such as [{"role": "user", "content": "hi"}], with the model's chat
 * template to text, with '\0' after its *size bytes (size may be NULL).  The content is text, not a
 * list of parts.  o may be NULL.  Templates that show the date use the present time, in UTC.  Fails
 * with ZSE_ERROR_UNSUPPORTED if the model has no chat template. */
ZSE_API int zse_render(const struct zse_model *m, const char *messages, const struct zse_render_options *o,
                       char **text, size_t *size, struct zse_error *e);

/* ---- grammars ---- */

enum zse_grammar_kind {
    ZSE_JSON_SCHEMA,                    /* draft 2020-12; {}: any JSON */
    ZSE_REGEX,                          /* ECMAScript's syntax; it matches the whole answer */
    ZSE_GBNF,                           /* llama.cpp's syntax; the answer is a `root` */
};

/* A grammar for answers of models with the tokenizer of m.  Keywords that cannot be enforced are
 * refused, see zse(7).  The first grammar of a model takes some time, about 50 ms for 150,000
 * tokens.  m is borrowed until zse_grammar_close(), and until the requests with the grammar have
 * been freed. */
struct zse_grammar;
ZSE_API struct zse_grammar *zse_grammar_open(struct zse_model *m, enum zse_grammar_kind kind, const char *text,
                                             size_t size, struct zse_error *e);
ZSE_API void zse_grammar_close(struct zse_grammar *r);      /* requests that use it may still run */

/* ---- engines ---- */

struct zse_engine;

struct zse_engine_options {
    size_t size;
    const char *device;                 /* "cpu", or in a build with CUDA "cuda" or "cuda:N"; NULL: "cpu" */
    int n_threads;                      /* 0: all processors */
    int max_len;                        /* most tokens of a prompt and its answer; 0: the model's, at most 8192 */
    int max_requests;                   /* most requests computed at a time, further ones wait; 0: 8 */
    const char *kv;                     /* type of keys and values, such as "i8", see zse-chat(1); NULL: "f16" */
    /* Most bytes of keys and values; requests for which there is no space wait.  0: enough for
     * max_requests requests of full length, but at most a quarter of the machine's memory.  The
     * engine never uses less than one request of full length needs */
    size_t max_kv_bytes;
    int exact;                          /* 1: compute in f32, which is slower; kv must be NULL or "f32" */
    int no_prefix_cache;                /* 1: compute every prompt from its first token */
    int ngram_drafts;                   /* 1: guess tokens from earlier text; the answers are the same */
    int reserved;                       /* 0 */
};

/* Open an engine, which has a thread of its own that runs the steps, and threads that share the
 * work of a step.  o may be NULL.  m is borrowed until zse_engine_close(); several engines may use
 * one model. */
ZSE_API struct zse_engine *zse_engine_open(struct zse_model *m, const struct zse_engine_options *o,
                                           struct zse_error *e);
/* End all requests, whose callbacks receive ZSE_FINISH_CANCELLED, and close the engine.  Handles of
 * requests remain valid until zse_request_free().  Has no effect if it is called from a callback of
 * the engine. */
ZSE_API void zse_engine_close(struct zse_engine *g);

/* Counts and memory as of the last step, as a JSON object; zse(3) lists its keys.  *text is freed
 * with zse_free(). */
ZSE_API int zse_engine_info(struct zse_engine *g, char **text, struct zse_error *e);

/* ---- requests ---- */

struct zse_request;

enum zse_finish {
    ZSE_FINISH_NONE,                    /* the answer goes on */
    ZSE_FINISH_STOP,                    /* the model ended it, or a stop string did */
    ZSE_FINISH_LENGTH,                  /* max_tokens, or the context is full */
    ZSE_FINISH_CANCELLED,               /* zse_cancel(), the callback, or zse_engine_close() */
    ZSE_FINISH_ERROR,
    ZSE_FINISH_TIMEOUT,
};

struct zse_logprob { int32_t id; float logprob; };          /* natural logarithm */

/* One token, or the end, of an answer.  Pointers are borrowed for the call.  Later versions append
 * members: a program that may run with an older library must check `size` before it reads a newer
 * member. */
struct zse_event {
    size_t size;                        /* sizeof the struct in the library */
    int32_t id;                         /* -1: this event has no token */
    enum zse_finish finish;             /* ZSE_FINISH_NONE until the last event */
    /* Text that is final, whole characters; may be empty.  It is held back while it could be the
     * beginning of a stop string.  '\0' does not follow. */
    const char *text; size_t text_size;
    /* With logprobs: of this token, and of the most likely ones, most likely first. */
    float logprob;
    const struct zse_logprob *top; int n_top;
    const struct zse_error *error;      /* with ZSE_FINISH_ERROR, else NULL */
};

struct zse_request_options {
    size_t size;
    /* The prompt, of at least one token: ids or, if ids is NULL, text that ends with '\0', which is
     * tokenized with ZSE_PARSE_SPECIAL, as the text of zse_render() needs.  add_special: 1: also
     * add the tokens that the model expects before a text that was not made by a template, such as
     * BOS. */
    const int32_t *ids; size_t n_ids;
    const char *prompt;
    int add_special;
    int max_tokens;                     /* most tokens of the answer; 0: until the context is full */
    /* A JSON object with sampling options, which zse(3) lists, such as {"temperature": 0.5,
     * "top_p": 0.9, "seed": 1}; options that it lacks have the model's values.  NULL: all options
     * have the model's values, and seed is 0.  An answer depends on model, prompt, options and seed
     * alone, not on other requests. */
    const char *sampling;
    const char *const *stop; int n_stop;        /* strings that end the answer and are not part of it */
    int ignore_eos;                     /* 1: an end that the model wants does not end the answer */
    int min_tokens;                     /* the answer has at least this many tokens */
    int keep_special;                   /* 1: special tokens are part of the text */
    struct zse_grammar *grammar;        /* the answer matches it; of the engine's model; NULL: any answer */
    int logprobs;                       /* 1: events have log probabilities */
    int top_logprobs;                   /* with logprobs: number of most likely tokens, at most 20 */
    int priority;                       /* -1000 to 1000: higher first */
    double timeout_s;                   /* seconds until the answer ends with ZSE_FINISH_TIMEOUT; 0: none */
    /* Called for every token and at the end.  Returns 0 to continue; otherwise the answer is
     * cancelled.  NULL: zse_wait() returns the answer. */
    int (*on_event)(void *user, const struct zse_event *ev);
    void *user;
};

/* Queue a request and return at once.  Conditions that depend on the engine, such as the length of
 * the prompt, are checked later, and are errors of zse_wait() and of the last event.  The handle is
 * freed with zse_request_free(). */
ZSE_API struct zse_request *zse_submit(struct zse_engine *g, const struct zse_request_options *o,
                                       struct zse_error *e);

struct zse_result {
    size_t size;                        /* in: sizeof the struct */
    enum zse_finish finish;
    const char *text; size_t text_size; /* the whole answer, '\0' follows; borrowed until zse_request_free() */
    const int32_t *ids; size_t n_ids;   /* its tokens, with an EOS; borrowed likewise */
    int n_prompt, n_cached;             /* tokens of the prompt, and how many the prefix cache had */
    double queue_s, prefill_s, decode_s;    /* seconds: waiting, until the first token, from first to last */
};

/* Wait for the end of a request.  result may be NULL.  May be called several times.  Returns 0; -1
 * with the request's error if it ended with ZSE_FINISH_ERROR, and *result then has the answer up to
 * the error. */
ZSE_API int zse_wait(struct zse_request *r, struct zse_result *result, struct zse_error *e);
/* Cancel a request: it ends with the current step.  No effect after its end. */
ZSE_API void zse_cancel(struct zse_request *r);
/* Free a handle.  A request that has not ended is cancelled.  If a callback of the request is
 * running in another thread, zse_request_free() waits for it; there are no callbacks afterwards. */
ZSE_API void zse_request_free(struct zse_request *r);

/* ---- embeddings ---- */

enum zse_embed_kind {
    ZSE_EMBED_PLAIN,                    /* with the model's default prompt before the text, if it has one */
    ZSE_EMBED_QUERY,                    /* with the model's prompt for queries, if it has one */
    ZSE_EMBED_DOCUMENT,                 /* with that for documents */
};

/* Compute the vectors of n_texts texts ('\0' ends each) in batches.  *vectors is [n_texts][*dim]
 * f32, and the caller frees it with zse_free(); vectors have length 1 unless the model says
 * otherwise.  Models that are not made for embeddings return the mean of their last states.  If one
 * text fails, the whole call fails, and the message names the text.  The call cannot be cancelled:
 * pass as many texts at a time as the program can wait for. */
ZSE_API int zse_embed(struct zse_engine *g, const char *const *texts, size_t n_texts, enum zse_embed_kind kind,
                      float **vectors, int *dim, struct zse_error *e);

#ifdef __cplusplus
}
#endif
#endif

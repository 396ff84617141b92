/* internal.h - handles, and errors in the public form, shared by the files of the public library.
 *
 * The public functions are thin: they check arguments, and call libcommon. */
#ifndef ZSE_LIB_INTERNAL_H
#define ZSE_LIB_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <jansson.h>

#include "lib/zse.h"
#include "libcommon/base/err.h"
#include "libcommon/engine/engine.h"
#include "libcommon/grammar/grammar.h"

struct zse_model {
    struct model *model;
    struct tokenizer *tokenizer;        /* NULL: the file has none */
    const json_t *json;                 /* zfile_json(), borrowed from the model */
    struct sampling sampling;           /* defaults, with those of generation_config */
    char *info;                         /* JSON text */
    pthread_mutex_t lock;
    struct grammar_vocab *vocab;        /* protected by lock; NULL: not needed yet */
};

struct zse_grammar {
    struct grammar *grammar;
    const struct zse_model *model;      /* borrowed */
    atomic_int refs;
};

struct zse_engine {
    struct zse_model *model;
    struct engine *engine;
    int max_len, max_requests;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    /* protected by lock; first: requests that the thread has not seen yet; cancels: some request
     * has is_cancelled */
    struct zse_request *first, **last;
    int cancels, stop;
    struct engine_stats stats;          /* as of the last step */
    /* for the thread only: requests of the engine, and those that ended in this step */
    struct zse_request *running, *ended;
};

struct zse_request {
    /* References: one of the caller, and one of the engine until the request has ended. */
    atomic_int refs;
    pthread_t thread;                   /* of the engine */
    pthread_mutex_t lock;
    pthread_cond_t over;
    struct zse_engine *engine;          /* protected by lock; NULL: it has ended */
    /* callback is locked while on_event runs; silent: it is not called any more */
    pthread_mutex_t callback;
    atomic_int silent;
    int (*on_event)(void *user, const struct zse_event *ev);
    void *user;

    /* the request as submitted; everything is owned */
    struct request_params params;
    int32_t *prompt;
    char **stop;
    struct constraint constraint;       /* state NULL: none, or owned by the engine */
    struct zse_grammar *grammar;

    int is_cancelled;                   /* protected by the engine's lock */
    /* for the engine's thread */
    struct zse_request *next, **link;   /* link: the pointer to this request */
    struct request *request;            /* NULL: it has ended */
    int cancel_sent;
    /* the answer; only the engine's thread uses it until the request has ended */
    enum zse_finish finish;
    char *text; size_t text_size, text_room;
    int32_t *ids; size_t n_ids, ids_room;
    float *vector;
    struct request_stats stats;
    struct err error;
};

/* ---- api.c ---- */
/* Fill in *e (may be NULL) and return -1. */
int api_fail(struct zse_error *e, const struct err *from);
int api_wrong(struct zse_error *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Copy a struct of the caller, which begins with its size, to *out, which has `known` bytes.
 * Members that the caller's struct lacks become 0; given NULL: all members become 0. */
int api_options(void *out, size_t known, const void *given, const char *name, struct zse_error *e);
char *api_json_text(json_t *j);         /* takes the reference; NULL: out of memory */

/* ---- api_text.c ---- */
/* Tokens of a prompt; *ids is malloc'd.  flags as of tokenizer_encode(). */
int api_prompt(const struct zse_model *m, const char *text, size_t size, unsigned flags, int32_t **ids, int *n,
               struct err *e);

/* ---- api_request.c ---- */
/* A request with one reference for the caller, without a prompt; NULL: out of memory. */
struct zse_request *api_request_new(struct zse_engine *g);
void api_request_unref(struct zse_request *r);
/* Queue a request; the caller keeps its reference.  -1: the engine closes. */
int api_request_queue(struct zse_engine *g, struct zse_request *r, struct err *e);
/* For the engine's thread: the callback of the engine. */
void api_request_event(void *user, const struct token_event *t);
/* For the engine's thread: end a request that the engine does not have. */
void api_request_refuse(struct zse_request *r, enum zse_finish finish, const struct err *e);
/* For the engine's thread: let zse_wait() return, and drop the engine's reference. */
void api_request_end(struct zse_request *r);

/* ---- api_grammar.c ---- */
void api_grammar_unref(struct zse_grammar *r);

#endif

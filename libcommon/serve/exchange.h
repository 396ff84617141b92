/* exchange.h - the asynchronous work for a request: an API call (api/calls.c), a model being
 * loaded, a report (admin/access_endpoints.c), calls of tools (tools/tool_request.c), work on
 * documents (rag/), a query of the chat history (chats/chats.h) or of the catalog
 * (admin/catalog.c), a stream of the progress of jobs (jobs/jobs.h). */
#ifndef ZSE_SERVE_EXCHANGE_H
#define ZSE_SERVE_EXCHANGE_H

#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

struct call;
struct conn;
struct loaded_model;
struct server;

enum exchange_kind {
    EXCHANGE_CALL, EXCHANGE_LOAD, EXCHANGE_REPORT, EXCHANGE_TOOLS, EXCHANGE_RAG, EXCHANGE_CHATS,
    EXCHANGE_CATALOG, EXCHANGE_JOBS
};
/* the first member of every object that conn_exchange points to */
struct exchange { enum exchange_kind kind; };

/* ---- API calls ---- */
/* The numbers of tokens to charge to the key's limits; 0 for a refused request. */
void call_charge(const struct call *c, int *prompt, int *completion);
/* Called when the client has disconnected: cancel the call.  The call takes over the access record,
 * unless the record belongs to a WebSocket. */
void call_gone(struct call *c, struct conn *client);
void calls_cancel(struct loaded_model *lm);             /* cancel every open call of the model */
/* Free the calls of a model whose worker is closed, so that no event follows. */
void calls_drop(struct loaded_model *lm);
/* Called when the engine is stuck in a step: answer the calls that started before before_ns with
 * 503 and write their lines of the audit log.  The calls are freed only when the step returns. */
void calls_give_up(struct loaded_model *lm, uint64_t before_ns);
struct problem;
/* Advance the calls that wait for lm, which is ready (p NULL); or refuse them with p if opening lm
 * failed. */
void calls_loaded(struct server *s, struct loaded_model *lm, const struct problem *p);
void calls_tick(struct server *s);      /* on_second: answer calls that wait for a model past --timeout with 504 */
/* on_wake: advance prepared calls, take events of all engines */
void calls_events(struct server *s);
int calls_open(struct server *s, struct err *e);        /* starts the preparing threads */
void calls_close(struct server *s);                     /* join them and free their calls */

/* ---- tools: tools/toolbox.c, tools/tool_request.c ---- */
int tools_open(struct server *s, struct err *e);
void tools_close(struct server *s);                     /* join the threads; every batch has been freed */
void tools_done(struct server *s);                      /* on_wake: return the calls that have ended */
void tool_request_gone(struct conn *c);                 /* the client has disconnected */

/* ---- batching: admin/batching.c ---- */
void batching_restore(struct loaded_model *lm);         /* a model is ready: set the limits that it had before */

/* ---- sleep: admin/sleep.c ---- */
void sleep_tick(struct server *s);      /* on_wake and on_second: answer the client that waits for the models */

/* ---- documents ---- */
int rag_start(struct server *s, struct err *e);         /* its threads start with the first request */
void rag_stop(struct server *s);                        /* join them; call it before calls_close and models_stop */
void rag_release(struct server *s);                     /* call it after models_stop */
void rag_tick(struct server *s);                        /* on_second: compute missing vectors */
void rag_events(struct server *s);                      /* on_wake: answer requests that the threads have finished */
struct access_record;
struct problem;
/* Search the documents of the record's owner with this body of POST /api/rag/context; takes
 * ownership of the body.  The event loop calls `done` with the answer (borrowed) or the problem,
 * unless the server stops first.  Tokens are counted by the tokenizer of lm; lm NULL: code points
 * are counted.  Returns 0; -1 with *pr. */
int rag_ask(struct server *s, const struct access_record *record, struct loaded_model *lm, json_t *body,
            void (*done)(void *user, json_t *answer, const struct problem *p), void *user, struct problem *pr);
/* Cancel the searches that were started with this `user`; their done is called soon, with a
 * problem. */
void rag_cancel(struct server *s, const void *user);
/* Called when a model has drained long enough: searches that use it continue without it. */
void rag_unload(struct server *s);
/* List the owner's documents like GET /api/rag/documents, with limit and offset; with an id that is
 * not "", get that document, with the member text. */
int rag_ask_documents(struct server *s, const struct access_record *record, const char *id, int64_t offset, int limit,
                      void (*done)(void *user, json_t *answer, const struct problem *p), void *user,
                      struct problem *pr);
void rag_gone(struct conn *c);                          /* the client has disconnected */

/* ---- chat history ---- */
int chats_open(struct server *s, struct err *e);        /* starts its threads, unless o.no_history */
void chats_close(struct server *s);                     /* end running jobs, join the threads */
void chats_done(struct server *s);                      /* on_wake: answer requests that they have finished */
void chats_tick(struct server *s);                      /* on_second: delete expired conversations */
void chats_gone(struct conn *c);                        /* the client has disconnected */

/* ---- downloads and conversions: jobs/jobs.h ---- */
int jobs_open(struct server *s, struct err *e);
/* Terminate the running job and end the streams; does not wait. */
void jobs_stop(struct server *s);
/* Wait a few seconds at most for the job to end; call it before the audit log is closed. */
void jobs_join(struct server *s);
void jobs_close(struct server *s);                      /* call it after jobs_join */
void jobs_events(struct server *s);                     /* on_wake: handle results of the thread */
void jobs_tick(struct server *s);                       /* on_second */
void jobs_gone(struct conn *c);                         /* the client has disconnected */

/* ---- registry and hub: admin/catalog.c ---- */
/* Call `work` in a thread, with a folder name that outlives the server (NULL: none) and a word of
 * at most 199 bytes.  Then call `reply` in the event loop with the result of `work` (borrowed), or
 * with NULL and an error in e.  The request is refused if too many are waiting. */
typedef json_t *catalog_work(const char *folder, const char *word, struct err *e);
typedef void catalog_reply(struct server *s, struct conn *c, const char *word, json_t *answer, const struct err *e);
void catalog_ask(struct server *s, struct conn *c, const char *folder, const char *word, catalog_work *work,
                 catalog_reply *reply);
/* Remove the model or alias of this name with `work`. reply is called in any case: c is NULL if the
 * client has disconnected. */
void catalog_remove(struct server *s, struct conn *c, const char *folder, const char *name, catalog_work *work,
                    catalog_reply *reply);
int catalog_removes(const struct server *s, const char *name);          /* whether this model is being removed */
void catalog_done(struct server *s);                    /* on_wake: answer the requests whose threads have ended */
void catalog_gone(struct conn *c);                      /* the client has disconnected */
void catalog_close(struct server *s);                   /* call it before loop_close; does not wait for the hub */

#endif

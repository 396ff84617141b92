/* models.h - the loaded models: loading in the background, draining, unloading, reload.
 *
 * Belongs to the loop's thread, except that model_tasks.c opens and closes models in a thread of
 * its own. */
#ifndef ZSE_SERVE_MODELS_H
#define ZSE_SERVE_MODELS_H

#include "libcommon/engine/device_show.h"
#include "libcommon/grammar/tools.h"
#include "libcommon/http/conn.h"
#include "libcommon/http/problem.h"
#include "libcommon/serve/grammars.h"
#include "libcommon/serve/metrics.h"
#include "libcommon/serve/server.h"
#include "libcommon/serve/worker.h"
#include "libcommon/template/template.h"

struct call;

/* LEAVING: no new calls, waiting for the running ones.  CLOSING: the thread closes it. */
enum model_state { MODEL_LOADING, MODEL_READY, MODEL_LEAVING, MODEL_CLOSING };

struct loaded_model {
    struct loaded_model *next;          /* by time of loading; the first ready one is the default */
    struct server *s;
    char *id, *path;                    /* owned */
    struct model_choice how;
    enum model_state state;
    int64_t created;                    /* Unix time of loading */
    /* loading began; last request; LEAVING: calls are cancelled then */
    uint64_t started_ns, used_ns, leave_by_ns;
    double load_s;                      /* duration of loading, in seconds */
    struct served_model m;
    int opened;                         /* m is filled in */
    int queued;                         /* LOADING: waits until models requested earlier are open */
    int held;                           /* LOADING: opened, and waits until models that leave are closed */
    /* given when the server started: if it fails and there is no other model, the server exits */
    int wanted;
    int named;                          /* loaded by named.c */
    uint64_t loaded_by;                 /* named: the tenant whose request loaded it */
    int owed;                           /* a free reload, after eviction by another tenant's load: named.h */
    int shared;                         /* a tenant other than loaded_by has used it */
    /* keep-alive time of the last request; negative: forever */
    int keep_given; double keep_s;
    int stalled;                        /* no step of its engine has ended for stall_s, and the warning is out */
    /* the modification time of its file has changed, and the engine compares the contents */
    int comparing;
    uint64_t touched;                   /* engine_stats.touched, as last logged */
    /* recalled: it was evicted and is being reloaded; changed: evicted because its file was written
     * to */
    int recalled, changed;
    int failures;                       /* consecutive failures to reload it */
    struct err error;                   /* error of opening the model; ERR_NONE: it was opened */
    struct worker *worker;              /* NULL while the model is loading or closing */
    struct tmpl *tmpl;                  /* owned; NULL: it has no chat template */
    char *bos, *eos;                    /* texts of the tokens; owned */
    int thinks;                         /* its template supports <think> */
    int knows_tools;                    /* its template renders tools */
    const struct tool_format *calls_form;       /* how it writes calls */
    struct grammars *grammars;          /* owned; NULL: it has no tokenizer */
    struct sampling sampling;           /* defaults of its requests */
    uint64_t memory_bytes, vram_bytes;  /* weights and private memory; the part in a GPU's memory */
    char device[32];                    /* "cpu", "cuda:0" */
    char about[DEVICE_LINE];            /* device and memory, for the log */
    struct engine_limits limits;        /* as configured, for batching on */
    int most_running;                   /* limits.max_running as opened */
    int batching;                       /* 0: one request at a time */
    int preparing;                      /* calls queued for or in a preparing thread */
    struct call *calls; int n_calls;    /* open calls */
    int rag_texts;                      /* texts of searches that its engine has: rag/embed.c */
    struct loaded_model *replaces;      /* reload: unloaded when this one is ready */
    struct conn *waiter;                /* the POST /api/models/load that waits for it; NULL: none */
    struct model_metrics metrics;
};

/* A ready model by id; NULL or "default": the first.  NULL with *pr: none. */
struct loaded_model *models_find(struct server *s, const char *id, struct problem *pr);
/* Start loading.  id NULL: derived from the path; how NULL: the options of the program.  NULL with
 * *pr: the id is taken, or no memory. */
struct loaded_model *models_load(struct server *s, const char *path, const char *id, const struct model_choice *how,
                                 struct loaded_model *replaces, struct problem *pr);
/* the one being loaded in its place; NULL: none */
struct loaded_model *models_successor(struct server *s, const struct loaded_model *lm);
/* accept no new requests for it; it is closed when the running ones have ended */
void models_unload(struct server *s, struct loaded_model *lm);
void models_reload(struct server *s);                           /* SIGHUP: load every model again */
void models_opened(struct server *s);                           /* on_wake: finish what model_tasks.c has done */
/* close drained models, cancel calls of those that drain too long, open the next queued model */
void models_tick(struct server *s);
/* unload models whose file has changed since it was opened */
void models_check(struct server *s);
int models_start(struct server *s, struct err *e);
void models_stop(struct server *s);                             /* close all models after the end of the loop */
/* End the threads of the engines.  -1: an engine is in a step that does not end; the calls of its
 * model have their lines in the audit log, and nothing is freed. */
int models_halt(struct server *s);
void models_leave(struct server *s);                            /* after models_halt: end all calls */
int models_n(const struct server *s, enum model_state state);
/* Number of texts of one request for vectors or scores that the engine may have at once: just
 * enough to keep its batches full, so that 2048 texts do not fill the queue. */
int models_window(const struct loaded_model *lm);
void model_json(const struct loaded_model *lm, struct buf *out);        /* an element of /v1/models */

#endif

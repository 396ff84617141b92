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
#include "libcommon/serve/adapters.h"
#include "libcommon/serve/grammars.h"
#include "libcommon/serve/metrics.h"
#include "libcommon/serve/server.h"
#include "libcommon/serve/worker.h"
#include "libcommon/template/template.h"

struct call;

/* LEAVING: the model gets no new calls, and its running ones end.  CLOSING: a thread closes it. */
enum model_state { MODEL_LOADING, MODEL_READY, MODEL_LEAVING, MODEL_CLOSING };

struct loaded_model {
    struct loaded_model *next;          /* in order of loading; the first ready one is default */
    struct server *s;
    char *id, *path;                    /* owned */
    struct model_choice how;
    enum model_state state;
    int64_t created;                    /* Unix time of loading */
    /* times of clock_ns(): when loading began, of the last request, and (LEAVING) when its calls
     * are cancelled */
    uint64_t started_ns, used_ns, leave_by_ns;
    double load_s;                      /* duration of loading, in seconds */
    struct served_model m;
    int opened;                         /* m is filled in */
    int queued;                         /* LOADING: waits until models requested earlier are open */
    int held;                           /* LOADING: opened; waits until leaving models are closed */
    /* named at the server's start: if opening it fails and no other model is open, the server
     * exits */
    int wanted;
    int named;                          /* loaded by named.c */
    uint64_t loaded_by;                 /* named: the tenant whose request loaded it */
    int owed;                           /* another tenant's load evicted it, so the reload costs nothing (named.h) */
    int shared;                         /* a tenant other than loaded_by has used it */
    /* keep_given: a request has set a keep-alive time, keep_s seconds (negative: forever) */
    int keep_given; double keep_s;
    int stalled;                        /* no step has ended for stall_s seconds, which was logged */
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
    uint64_t engine_bytes;              /* the part of memory_bytes that the engine took, as last counted */
    char device[DEVICE_NAMES];          /* "cpu", "cuda:0", "cuda:0,1" */
    char about[DEVICE_LINE];            /* device and memory, for the log */
    struct engine_limits limits;        /* the configured limits, in use while batching is on */
    int most_running;                   /* limits.max_running when the model was opened */
    int batching;                       /* 0: one request at a time */
    int preparing;                      /* calls queued for or in a preparing thread, adapters being loaded */
    struct call *calls; int n_calls;    /* open calls */
    /* its LoRA adapters, by their numbers from 1 on; owned */
    struct adapter *adapters; int n_adapters;
    int rag_texts;                      /* number of texts of searches in its engine: rag/embed.c */
    struct kv_source *kv_source;        /* kv_events.h; owned; NULL: it sends no events */
    struct loaded_model *replaces;      /* the model to unload when this one is ready; NULL: none */
    struct conn *waiter;                /* the POST /api/models/load that waits for it; NULL: none */
    struct model_metrics metrics;
};

/* Find a ready model by its id or by the name of one of its LoRA adapters; id NULL or "default":
 * the first one.  NULL with *pr: there is none. */
struct loaded_model *models_find(struct server *s, const char *id, struct problem *pr);
/* The id of the model that has a LoRA adapter of this name, or will have it after it is loaded;
 * NULL: none. */
const char *models_adapted(const struct server *s, const char *name);
/* The number of lm's LoRA adapter of this name (model/lora.h); 0: the name is lm's own. */
int models_lora(const struct loaded_model *lm, const char *name);
/* Start loading a model.  id NULL: it is derived from the path; how NULL: as the program's options
 * say.  NULL with *pr: the id is taken, or there is no memory. */
struct loaded_model *models_load(struct server *s, const char *path, const char *id, const struct model_choice *how,
                                 struct loaded_model *replaces, struct problem *pr);
/* The file that is open: a folder's conversion, not the folder. */
const char *models_file(const struct loaded_model *lm);
/* The model that is being loaded in place of lm; NULL: none. */
struct loaded_model *models_successor(struct server *s, const struct loaded_model *lm);
/* Stop accepting requests for lm, and close it when its running requests have ended. */
void models_unload(struct server *s, struct loaded_model *lm);
void models_reload(struct server *s);                           /* SIGHUP: load every model again */
void models_opened(struct server *s);                           /* on_wake: handle tasks that are done */
/* close drained models, cancel calls of those that drain too long, open the next queued model */
void models_tick(struct server *s);
/* unload models whose file has changed since it was opened */
void models_check(struct server *s);
int models_start(struct server *s, struct err *e);
void models_stop(struct server *s);                             /* close all models after the end of the loop */
/* End the threads of the engines.  -1: an engine is in a step that does not end; the lines of its
 * calls were written to the audit log, and nothing was freed. */
int models_halt(struct server *s);
void models_leave(struct server *s);                            /* after models_halt: end all calls */
int models_n(const struct server *s, enum model_state state);
/* How many texts one request for vectors or scores may have in the engine at the same time: just
 * enough to fill the batches, so that a request with 2048 texts does not fill the queue. */
int models_window(const struct loaded_model *lm);
/* An element of /v1/models, of the model or of its adapter with this number. */
void model_json(const struct loaded_model *lm, int lora, struct buf *out);

#endif

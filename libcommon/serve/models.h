/* models.h - the loaded models: opening in the background, draining, eviction, reload.
 *
 * Belongs to the loop's thread unless it says otherwise. */
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

enum model_state { MODEL_LOADING, MODEL_READY, MODEL_LEAVING, MODEL_CLOSING };

struct loaded_model {
    struct loaded_model *next;                /* by time of loading */
    struct server *s;
    char *id, *path;                    /* owned */
    enum model_state state;
    int64_t created;                    /* seconds since 1970 */
    uint64_t started_ns, used_ns, leave_by_ns;      /* load was asked for; last request; running requests end by then */
    double load_s;
    struct served_model m;
    int opened;                         /* m is there */
    int wanted;                         /* named when the server started: without it there is nothing to serve */
    int stalled;                        /* no step of its engine has ended for very long, as was said: stall_tick() */
    int comparing;                      /* its file's time of writing is another one, and the engine looks at what is in it */
    uint64_t touched;                   /* of engine_stats, as far as that was said */
    int recalled, changed;              /* it had left by nobody's word and is loaded again; because its file was written to */
    int failures;                       /* of loading it again, one after the other */
    struct err error;                   /* why it could not be opened */
    struct worker *worker;
    struct tmpl *tmpl;                  /* owned */
    char *bos, *eos;                    /* texts of the tokens; owned */
    int thinks;                         /* its template knows <think> */
    int knows_tools;                    /* its template writes tools */
    const struct tool_format *calls_form;       /* how it writes calls */
    struct grammars *grammars;          /* owned; NULL: it has no tokenizer */
    struct sampling sampling;           /* defaults of its requests */
    uint64_t memory_bytes, vram_bytes;  /* vram_bytes: of a GPU's memory */
    char device[32];                    /* "cpu", "cuda:0" */
    char about[DEVICE_LINE];            /* where it runs and what it takes there */
    struct engine_limits limits;        /* as wished, batching on */
    int most_running;                   /* as opened */
    int batching;                       /* off: one request at a time */
    int preparing;                      /* calls whose body is being parsed in another thread */
    struct call *calls; int n_calls;    /* open ones */
    struct loaded_model *replaces;            /* reload: leaves when this one is ready */
    struct conn *waiter;                /* POST /api/models/load waits for it; NULL: nobody */
    struct model_metrics metrics;
};

/* A ready model by id; NULL or "default": the first. NULL with *pr otherwise. */
struct loaded_model *models_find(struct server *s, const char *id, struct problem *pr);
/* The id of a model that was unloaded by nobody's word, because another one needed its memory or
 * its file was written to; of any, where id is NULL or "default".  Borrowed until
 * models_recall(); NULL: there is none. */
const char *models_left(const struct server *s, const char *id);
/* It is loaded again, and 1: *pr says to come back, or why not.  0: there is none of this id. */
int models_recall(struct server *s, const char *id, struct problem *pr);
/* How long to wait before it is loaded again for somebody who only asks whether all is well; 0:
 * not at all.  After a failure the wait grows from 2 seconds to 64. */
int models_wait_s(const struct server *s, const char *id);
/* Begin to open; NULL with *pr: the id is taken, no memory. */
struct loaded_model *models_load(struct server *s, const char *path, const char *id, struct loaded_model *replaces,
                           struct problem *pr);
struct loaded_model *models_successor(struct server *s, const struct loaded_model *lm);      /* the one that is being loaded in lm's place; NULL */
void models_unload(struct server *s, struct loaded_model *lm);         /* no new requests; closes when the running ones have ended */
int models_forget(struct server *s, const char *id);            /* such a one does not come back; 0: there is none of this id */
void models_reload(struct server *s);                           /* SIGHUP */
void models_opened(struct server *s);                           /* on_wake: what the opening thread has done */
void models_tick(struct server *s);                             /* closes what has drained */
void models_check(struct server *s);                            /* unloads those whose files are not what was opened any more */
int models_start(struct server *s, struct err *e);
void models_stop(struct server *s);
/* Ends the threads of the engines.  -1: some are in a step that does not end; the calls of their
 * models have their lines in the audit log, and nothing is freed. */
int models_halt(struct server *s);
void models_leave(struct server *s);                            /* after models_halt: end the calls of those that are open; what is being opened stays */
int models_n(const struct server *s, enum model_state state);
char *models_default_id(const char *path);                      /* "tiny" of "models/tiny.zse"; malloc'd */
void model_json(const struct loaded_model *lm, struct buf *out);       /* an element of /v1/models */

/* A model that left because another one needed its memory, or because its file was written to. */
struct evicted {
    struct evicted *next;
    char *id, *path;                    /* owned */
    int changed;                        /* its file was written to */
    int failures; uint64_t failed_ns;   /* to load it again, one after the other; the last one */
};

#endif

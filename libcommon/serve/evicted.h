/* evicted.h - models that were unloaded automatically, because another model needed their memory or
 * because their file was changed.  The next request for such a model loads it again.
 *
 * Belongs to the loop's thread. */
#ifndef ZSE_SERVE_EVICTED_H
#define ZSE_SERVE_EVICTED_H

#include <stdint.h>

#include "libcommon/serve/server.h"

struct loaded_model;
struct problem;
struct server;

struct evicted {
    struct evicted *next;               /* in order of eviction, latest last */
    char *id, *path;                    /* owned */
    struct model_choice how;
    int changed;                        /* its file was written to */
    /* consecutive failures to reload it; time of the last one */
    int failures; uint64_t failed_ns;
};

/* Remember a model that is being unloaded.  If malloc fails it is not remembered, and requests
 * for it get 404. */
void models_remember(struct server *s, const struct loaded_model *lm, int changed);
/* The id of the evicted model to load for a request that names `id`, a model or a LoRA adapter.  If
 * id is NULL or "default": of any evicted model, preferably one whose file changed.  Borrowed until
 * models_recall(); NULL: none. */
const char *models_left(const struct server *s, const char *id);
/* Load an evicted model again.  1: *pr tells the client to retry, or why loading failed; 0: no
 * evicted model has this id. */
int models_recall(struct server *s, const char *id, struct problem *pr);
/* Reload the models that were evicted because their file changed, not those evicted for memory. */
void models_recall_changed(struct server *s);
/* Seconds until a health check may load the evicted model again; 0: now.  Requests need not wait.
 * After each consecutive failure the wait doubles, from 2 seconds to 64. */
int models_wait_s(const struct server *s, const char *id);
int models_forget(struct server *s, const char *id);    /* do not reload the model; 0: not found */
void models_forget_all(struct server *s);

#endif

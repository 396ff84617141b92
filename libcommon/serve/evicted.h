/* evicted.h - models that were unloaded automatically, because another one needed their memory or
 * because their file was changed.  The next request for one loads it again.
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

/* Remember a model that is being unloaded.  If memory is short it is not remembered, and requests
 * for it get 404. */
void models_remember(struct server *s, const struct loaded_model *lm, int changed);
/* The id of an evicted model.  If id is NULL or "default", any evicted model, preferably one whose
 * file changed.  Borrowed until models_recall(); NULL: none. */
const char *models_left(const struct server *s, const char *id);
/* Load an evicted model again.  1: *pr tells the client to retry, or why loading failed; 0: none
 * has this id. */
int models_recall(struct server *s, const char *id, struct problem *pr);
/* reload models whose file changed; the others were evicted for memory */
void models_recall_changed(struct server *s);
/* Seconds to wait before a health check may load it again; 0: none.  A request need not wait.
 * After each failure in a row the wait doubles, from 2 seconds to 64. */
int models_wait_s(const struct server *s, const char *id);
int models_forget(struct server *s, const char *id);    /* do not reload the model; 0: none has this id */
void models_forget_all(struct server *s);

#endif

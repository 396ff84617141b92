/* adapters.h - the LoRA adapters of a loaded model, as the loop's thread sees them: loading and
 * unloading them while requests run.
 *
 * The engine's thread changes the model itself (worker_set_lora), and the thread that opens models
 * reads the files.  A removed adapter leaves its number unused until the next one is loaded. */
#ifndef ZSE_SERVE_ADAPTERS_H
#define ZSE_SERVE_ADAPTERS_H

#include <stdint.h>

struct conn;
struct err;
struct loaded_model;
struct problem;
struct server;

/* UNUSED: the number is free.  LEAVING: no new call gets it, and it is removed when its calls have
 * ended. */
enum adapter_state { ADAPTER_UNUSED, ADAPTER_LOADING, ADAPTER_READY, ADAPTER_LEAVING };

struct adapter_load;
struct adapter {
    enum adapter_state state;
    char *name, *folder;                /* owned */
    uint64_t key, bytes;                /* as in struct lora; key is set when it is ready */
    int rank;
    int n_calls;                        /* open calls that use it */
    struct adapter_load *load;          /* LOADING; owned */
};

/* Fill lm->adapters from the model that was opened.  0, or -1 with *pr. */
int adapters_list(struct loaded_model *lm, struct problem *pr);
void adapters_free(struct loaded_model *lm);
/* The adapter with this number if requests can name it; NULL: they cannot. */
const struct adapter *adapters_ready(const struct loaded_model *lm, int number);
/* The number of the adapter of this name that is ready or, if loading, is being loaded; 0: none. */
int adapters_find(const struct loaded_model *lm, const char *name, int loading);
/* Start loading the adapter in folder; c is answered when it is ready or has failed.  inplace: it
 * may replace one of the same name.  0; -1 with *pr. */
int adapters_load(struct loaded_model *lm, struct conn *c, const char *name, const char *folder, int inplace,
                  struct problem *pr);
/* Stop accepting requests for an adapter; remove it when its calls have ended. */
void adapters_unload(struct loaded_model *lm, int number);
/* Count a call that uses the adapter, and one that has ended; number 0: none. */
void adapters_use(struct loaded_model *lm, int number);
void adapters_release(struct loaded_model *lm, int number);
void adapters_tick(struct server *s);                   /* remove those that could not be removed before */
void adapters_gone(struct server *s, const struct conn *c);     /* the client has disconnected */

/* For model_tasks.c: read the files, in its thread; and pass the result to the engine, in the
 * loop's. */
void adapter_read(struct server *s, struct adapter_load *l);
void adapter_put(struct adapter_load *l);

#endif

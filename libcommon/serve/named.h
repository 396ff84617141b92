/* named.h - models that have names (store/store.h): loaded when a request first names one, and
 * unloaded when no request has used them for a while or another one needs their memory.
 *
 * Belongs to the loop's thread. */
#ifndef ZSE_SERVE_NAMED_H
#define ZSE_SERVE_NAMED_H

#include "libcommon/http/problem.h"
#include "libcommon/store/store.h"

struct buf;
struct call;
struct err;
struct loaded_model;
struct server;

/* The name of the model that a client calls id (NULL or "default": the default), an alias replaced
 * by what it stands for.  0; 1: there is none, or the server has no such models; -1 with *pr. */
int named_find(const struct server *s, const char *id, char out[STORE_NAME_BYTES], struct problem *pr);
/* The model of this name that is loading; begins to load it if it is not.  NULL with *pr. */
struct loaded_model *named_load(struct server *s, const char *name, struct problem *pr);
/* Opening lm failed with e: if memory was short and another model is idle, unload that one and try
 * again.  1: it is being tried. */
int named_retry(struct server *s, struct loaded_model *lm);
/* The problem for calls that waited for a model: p without the path of the folder. */
struct problem named_problem(const struct server *s, const struct problem *p);
void named_tick(struct server *s);                      /* on_second: unload what is idle */
/* Elements of /v1/models for those that are not loaded, and for aliases; *n counts elements. */
void named_json(const struct server *s, struct buf *out, int *n);
/* The same for one name.  0: there is none. */
int named_json_one(const struct server *s, const char *id, struct buf *out);

#endif

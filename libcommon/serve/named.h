/* named.h - models that have names (store/store.h): loaded when a request first names one, and
 * unloaded when no request has used them for a while or another one needs their memory.
 *
 * Belongs to the loop's thread. */
#ifndef ZSE_SERVE_NAMED_H
#define ZSE_SERVE_NAMED_H

#include "libcommon/http/problem.h"
#include "libcommon/store/store.h"

struct access_record;
struct buf;
struct call;
struct err;
struct loaded_model;
struct server;

/* Loads that failed, or that unloaded a model which another tenant was the last to use.  A tenant
 * may have LOADS_AT_ONCE of them, and one more every LOAD_EVERY_S seconds, so that no client makes
 * the server load and unload endlessly. */
enum { LOAD_TENANTS = 64, LOADS_AT_ONCE = 8, LOAD_EVERY_S = 10 };
#define LOADS_CODE "too_many_loads"
struct load_cost { uint64_t tenant, at_ns; double loads; };     /* loads at the time at_ns; 0: an empty place */
/* Count a load: lm makes the server unload another model; other NULL: it could not be opened. */
void named_charge(struct server *s, const struct loaded_model *lm, const struct loaded_model *other);

/* The name of the model that a client calls id (NULL or "default": the default), an alias replaced
 * by what it stands for.  0; 1: there is none, or the server has no such models; -1 with *pr. */
int named_find(const struct server *s, const char *id, char out[STORE_NAME_BYTES], struct problem *pr);
/* id, or in out, without the end ":latest", if there is no model or alias of the whole name. */
const char *named_plain(const struct server *s, const char *id, char out[STORE_NAME_BYTES]);
/* How long lm stays loaded after its last request; negative: for ever. */
double named_keep(const struct server *s, const struct loaded_model *lm);
/* A request wants lm to stay for so long; negative: for ever.  Ignored if other tenants use lm.
 * Clients that do not administer the server get at most KEEP_TIMES times --keep-alive. */
enum { KEEP_TIMES = 12 };
void named_set_keep(struct loaded_model *lm, double seconds, int is_admin);
/* The model of this name that is loading; begins to load it for the tenant if it is not.  NULL with
 * *pr: no memory, or the tenant's loads have cost others too much. */
struct loaded_model *named_load(struct server *s, const char *name, uint64_t tenant, struct problem *pr);
/* Opening lm failed: if memory was short that another model would free (ERR_MEMORY, and not a limit
 * that stays), and one is idle, unload that one and try again.  1: it is being tried. */
int named_retry(struct server *s, struct loaded_model *lm);
/* The problem for calls that waited for a model: p without the path of the folder. */
struct problem named_problem(const struct server *s, const struct problem *p);
/* on_second: unload what is idle, while memory is short one a second whatever its time */
void named_tick(struct server *s);
/* Elements of /v1/models for those that are not loaded, and for aliases, as far as the record's key
 * may use them; *n counts elements. */
void named_json(const struct server *s, const struct access_record *record, struct buf *out, int *n);
/* The same for one name.  0: there is none. */
int named_json_one(const struct server *s, const struct access_record *record, const char *id, struct buf *out);

#endif

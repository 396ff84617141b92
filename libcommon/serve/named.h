/* named.h - models that have names (store/store.h): loaded when a request first names one, and
 * unloaded when no request has used them for a while or when another model needs their memory.
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

/* The cost of loads, which limits how often one client can make the server load and unload.  A load
 * costs 1 if it fails or evicts a model that another tenant has used in the last USED_RECENTLY_S
 * seconds, and a quarter if it evicts one that no other tenant uses.  A tenant has a budget of
 * LOADS_AT_ONCE, which regains 1 every LOAD_EVERY_S seconds.  A tenant whose model was evicted by
 * another tenant's load may reload it at no cost.  A tenant whose model is evicted by such a free
 * reload gets no free reload of its own: if two tenants' models do not fit together, the tenant
 * that came second pays for all loads. */
enum { LOAD_TENANTS = 64, LOADS_AT_ONCE = 8, LOAD_EVERY_S = 10, USED_RECENTLY_S = 300 };
#define LOADS_CODE "too_many_loads"
/* loads: the part of the budget that is used up at at_ns; at_ns 0: unused entry */
struct load_cost { uint64_t tenant, at_ns; double loads; };
/* The time of a tenant's last request for a model, which may have been unloaded since.  model: a
 * hash of its name; at_ns 0: unused entry; owed: the tenant may reload it at no cost. */
enum { USES = 256, USES_OF_TENANT = 32 };
struct model_use { uint64_t model, tenant, at_ns; int owed; };
void named_used(struct server *s, const struct loaded_model *lm, uint64_t tenant);
/* Charge the tenant that loads lm for evicting `other`. */
void named_charge(struct server *s, const struct loaded_model *lm, const struct loaded_model *other);
/* Charge the tenant that loads lm, which failed with *pr, unless the reason is that other models
 * are busy. */
void named_failed(struct server *s, const struct loaded_model *lm, const struct problem *pr);
#define BUSY_CODE "models_busy"

/* The memory that a model took when it was last open.  Before the model is opened again, that much
 * memory is freed.  0: not known, as after an error. */
enum { SIZES = 64 };
struct model_size { uint64_t model, bytes; };
void named_note_size(struct server *s, const struct loaded_model *lm, uint64_t bytes);
uint64_t named_size(const struct server *s, const struct loaded_model *lm);

/* Resolve the id in a request (NULL or "default": the default model) to the name of a model;
 * aliases are replaced by their targets.  Returns 0; 1 if no model has this name, or the server has
 * no models with names; -1 with *pr. */
int named_find(const struct server *s, const char *id, char out[STORE_NAME_BYTES], struct problem *pr);
/* Returns id; but if it ends with ":latest" and no model or alias has that whole name, returns the
 * name without the suffix, in out. */
const char *named_plain(const struct server *s, const char *id, char out[STORE_NAME_BYTES]);
/* Seconds for which lm stays loaded after its last request; negative: for ever. */
double named_keep(const struct server *s, const struct loaded_model *lm);
/* Set the keep-alive time of lm from a request; negative: for ever.  Ignored if other tenants use
 * lm.  Clients that do not administer the server get at most KEEP_TIMES times --keep-alive. */
enum { KEEP_TIMES = 12 };
void named_set_keep(struct loaded_model *lm, double seconds, int is_admin);
/* Start to load the model of this name for the tenant, unless it is loading already, and return it.
 * NULL with *pr: no memory, or the tenant has exhausted its budget of loads. */
struct loaded_model *named_load(struct server *s, const char *name, uint64_t tenant, struct problem *pr);
/* Called when opening lm failed.  If the reason is a lack of memory that unloading can cure
 * (ERR_MEMORY, but not a fixed limit) and another model is idle, unload that model and retry.
 * Returns 1 if a retry has started, else 0. */
int named_retry(struct server *s, struct loaded_model *lm);
/* The problem reported to calls that waited for a model: p without the path of the folder. */
struct problem named_problem(const struct server *s, const struct problem *p);
/* on_second: unload models whose keep-alive time is over; while memory is short, also unload one
 * idle model at each call before its time is over */
void named_tick(struct server *s);
/* Append elements of /v1/models for models that are not loaded and for aliases, restricted to those
 * that the record's key may use; *n counts elements. */
void named_json(const struct server *s, const struct access_record *record, struct buf *out, int *n);
/* Append the element of /v1/models for one such name.  0: there is none. */
int named_json_one(const struct server *s, const struct access_record *record, const char *id, struct buf *out);

#endif

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

/* Loads that failed, or that evicted a model which another tenant has used in the last
 * USED_RECENTLY_S seconds.  A tenant may have LOADS_AT_ONCE of them, and one more every
 * LOAD_EVERY_S seconds; an eviction of a model that no other tenant uses counts a quarter.  So no
 * client makes the server load and unload endlessly.  A tenant whose model was evicted by the load
 * of another one may load it again at no cost; the tenant whose model that evicts may not, so that
 * of two tenants whose models do not fit together the one that came second pays for all. */
enum { LOAD_TENANTS = 64, LOADS_AT_ONCE = 8, LOAD_EVERY_S = 10, USED_RECENTLY_S = 300 };
#define LOADS_CODE "too_many_loads"
struct load_cost { uint64_t tenant, at_ns; double loads; };     /* loads at the time at_ns; 0: an empty place */
/* The last request of a tenant for a model (a hash of its name), also for one that is not loaded
 * any more.  at_ns 0: an empty place; owed: it may be loaded again at no cost. */
enum { USES = 256, USES_OF_TENANT = 32 };
struct model_use { uint64_t model, tenant, at_ns; int owed; };
void named_used(struct server *s, const struct loaded_model *lm, uint64_t tenant);
/* lm makes the server unload another model: charge the tenant that loads lm. */
void named_charge(struct server *s, const struct loaded_model *lm, const struct loaded_model *other);
/* Loading lm failed with *pr: charge its tenant, unless it was because others are busy. */
void named_failed(struct server *s, const struct loaded_model *lm, const struct problem *pr);
#define BUSY_CODE "models_busy"

/* The memory that a model took when it was last open: room for it is made before it is opened.
 * 0: not known, as after an error. */
enum { SIZES = 64 };
struct model_size { uint64_t model, bytes; };
void named_note_size(struct server *s, const struct loaded_model *lm, uint64_t bytes);
uint64_t named_size(const struct server *s, const struct loaded_model *lm);

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

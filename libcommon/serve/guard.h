/* guard.h - access control: keys, limits, and the audit log.
 *
 * guard.c holds the state; admit.c decides about requests.  Keys are checked again for every
 * request, and for every message on a WebSocket; a change of a key takes effect within a quarter
 * of a second. */
#ifndef ZSE_SERVE_GUARD_H
#define ZSE_SERVE_GUARD_H

#include "libcommon/access/audit_log.h"
#include "libcommon/access/keys.h"
#include "libcommon/access/rate_limits.h"
#include "libcommon/http/problem.h"
#include "libcommon/serve/access_record.h"

struct server;
struct conn;
struct route;

enum { REFUSALS_MINUTE = 60, ADDRESSES = 4096, SEEN = 1024, AUDIT_WAITING_BYTES = 8 << 20, AUDIT_PATIENCE_S = 5,
       KEYS_AWAY_RETRY_S = 2 };

struct guard {
    struct keys *keys;                  /* NULL: none */
    struct usage *usage;                /* counters of keys */
    struct audit_log *audit;            /* NULL: nothing is logged */
    uint64_t errors, entries;           /* counters of audit_stats a second ago */
    int losing;                         /* lines are being lost, and a warning was logged */
    struct { uint64_t dropped; int dropping; } remote[AUDIT_REMOTES];   /* the same for lines to other servers */
    struct address_limits *anonymous, *refused; /* limits of requests without a key, and of requests with a wrong key */
    uint64_t refreshed_ns;              /* when the keys were last read */
    uint64_t locked_ns;                 /* when another program locked the file of keys; 0: it is not locked */
    struct err trouble;                 /* the error already logged about the file of keys; ERR_NONE: none */
    struct access_report *reports;      /* reports under construction in threads: admin/access_endpoints.c */
    uint64_t swept_ns;                  /* when the counters of deleted keys were last dropped */
    uint64_t seen[SEEN];                /* hashes of a valid key and its address; 0: unused entry */
};

/* Read the keys, and open the counters and the audit log.  Returns 0; -1 with *e, also if a key
 * file exists but cannot be read, because the server must not run as if there were no keys. */
int guard_open(struct server *s, struct err *e);
int guard_close(struct server *s);                      /* calls guard_finish_audit and returns its result */
void guard_tick(struct server *s);                      /* on_second */
/* Wait until the audit log is written, at most AUDIT_PATIENCE_S seconds; no lines may be added
 * after this call.  Returns 0; -1 if some lines were not written. */
int guard_finish_audit(struct server *s);
int guard_has_keys(const struct server *s);             /* whether keys are required and at least one exists */
void guard_refresh(struct server *s);                   /* reread the keys if they were last read too long ago */

/* ---- admission: admit.c ---- */
/* whether a request on this connection needs a key */
int guard_needs_key(const struct server *s, const struct conn *c);
/* Returns 1 if guard_admits() would admit this request; nothing is counted.  *owner: the result of
 * guard_tenant(); for ACCESS_PUBLIC the tenant of the address. */
int guard_knows(struct server *s, struct conn *c, const struct route *r, uint64_t *owner);
/* Admit a request to this route and return 1, or refuse it and return 0. */
int guard_admits(struct server *s, struct conn *c, const struct route *r);
/* Make the record of a message on a WebSocket that guard_admits() admitted; NULL with *pr: the
 * message is refused. */
struct access_record *guard_message(struct server *s, struct conn *c, struct problem *pr);
int guard_still(struct server *s, struct conn *c); /* whether the credential that admitted a WebSocket is still valid */
/* Check that the record's key may use the model.  0, or -1 with *pr. */
int guard_model(struct access_record *record, const char *model, struct problem *pr);
/* Returns 1 if the record's key may use the model.  Meant for lists: the model is not noted in the
 * record. */
int guard_lists_model(const struct access_record *record, const char *model);
/* Returns 1 if the record's key may make the server load a model; 0 for a key that may only read
 * the state. */
int guard_may_load(const struct access_record *record);
/* Returns 1 if the client administers the server: by the administrator's token, by a key of scope
 * admin, or without a key on a server that other machines cannot reach. */
int guard_administers(const struct server *s, const struct conn *c);
/* Reserve at least `least` and at most `most` tokens (prompts and all answers) from the key's
 * limits.  Returns 0, with *granted the number reserved (`most` if there is no limit); -1 with *pr:
 * status 429, or 400 if the limits can never allow `least`.  c: the connection whose response gets
 * X-RateLimit headers; NULL: none. */
int guard_reserve(struct server *s, struct conn *c, struct access_record *record, int64_t least, int64_t most,
                  int64_t *granted, struct problem *pr);
/* Charge `used` tokens to the key and release the reservation of a request that continues; the
 * caller then makes a new reservation. */
void guard_settle(struct server *s, struct access_record *record, int64_t used);
/* Returns the tenant of a request: a number for its key or, without a key, for its address. Tenants
 * share memory and the engine evenly. */
uint64_t guard_tenant(const struct access_record *record);
/* Returns the scope of a request's prefixes (engine.h): a number for its key or for the
 * administrator; 0 for all requests without a key.  It is the same after a restart. */
uint64_t guard_scope(const struct access_record *record);

/* ---- admin/access_endpoints.c ---- */
void guard_reports(struct server *s);   /* on_wake: answer the reports that are ready */
void report_gone(struct conn *c);       /* the client has disconnected */

#endif

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

enum { REFUSALS_MINUTE = 60, ADDRESSES = 4096, SEEN = 1024, AUDIT_WAITING_BYTES = 8 << 20, AUDIT_PATIENCE_S = 5 };

struct guard {
    struct keys *keys;                  /* NULL: none */
    struct usage *usage;                /* counters of keys */
    struct audit_log *audit;            /* NULL: nothing is logged */
    uint64_t errors, entries;           /* counters of audit_stats as of a second ago */
    int losing;                         /* lines are being lost, and the warning is out */
    uint64_t dropped; int dropping;     /* the same for messages to the syslog server */
    struct address_limits *anonymous, *refused;         /* limits of requests without a key; with a wrong one */
    uint64_t refreshed_ns;              /* when the keys were last read */
    uint64_t locked_ns;                 /* since when the file of keys is locked by another program; 0: it is not */
    struct err trouble;                 /* the error already logged about the file of keys; ERR_NONE: none */
    struct access_report *reports;      /* reports under construction in threads: admin/access_endpoints.c */
    uint64_t swept_ns;                  /* when the counters of deleted keys were last dropped */
    uint64_t seen[SEEN];                /* hashes of a key that was valid and its address; 0: unused entry */
};

/* Reads the keys.  A key file that exists and cannot be read is an error: the server must not run
 * as if there were no keys. */
int guard_open(struct server *s, struct err *e);
int guard_close(struct server *s);                      /* calls guard_finish_audit and returns its result */
void guard_tick(struct server *s);                      /* on_second */
/* Wait, for AUDIT_PATIENCE_S at most, until the audit log is written; nothing more may be added.
 * -1: lines are left. */
int guard_finish_audit(struct server *s);
int guard_has_keys(const struct server *s);             /* keys are required, and there is at least one */
void guard_refresh(struct server *s);                   /* reread the keys if the last time is a while ago */

/* ---- admission: admit.c ---- */
int guard_needs_key(const struct server *s, const struct conn *c);      /* does a request here need a key? */
/* Would guard_admits admit this request?  Nothing is counted.  *owner: the tenant as guard_tenant
 * will say; for ACCESS_PUBLIC that of the address. */
int guard_knows(struct server *s, struct conn *c, const struct route *r, uint64_t *owner);
/* 1: the request is admitted; 0: it was refused. */
int guard_admits(struct server *s, struct conn *c, const struct route *r);
/* The record of a message on a WebSocket that guard_admits let in; NULL with *pr: refused. */
struct access_record *guard_message(struct server *s, struct conn *c, struct problem *pr);
int guard_still(struct server *s, struct conn *c);      /* is the credential that admitted a WebSocket still valid? */
/* May the record's key use the model?  0, or -1 with *pr. */
int guard_model(struct access_record *record, const char *model, struct problem *pr);
/* The same without noting the model in the record: for lists. */
int guard_lists_model(const struct access_record *record, const char *model);
/* May the record's key make the server load a model?  Not one that only reads the state. */
int guard_may_load(const struct access_record *record);
/* Does the client administer the server: by the administrator's token, a key of scope admin, or
 * without a key on a server that other machines cannot reach? */
int guard_administers(const struct server *s, const struct conn *c);
/* Reserve LEAST to MOST tokens (prompts and all answers) of the key's limits.  *granted: how many;
 * MOST if there is no limit.  -1 with *pr: 429, or 400 if they can never fit.  c: the connection
 * whose answer gets X-RateLimit headers; NULL: none. */
int guard_reserve(struct server *s, struct conn *c, struct access_record *record, int64_t least, int64_t most,
                  int64_t *granted, struct problem *pr);
/* Charge tokens to the key and release the reservation: the request continues, with a new one. */
void guard_settle(struct server *s, struct access_record *record, int64_t used);
/* The tenant of a request: its key, else its address.  Tenants share memory and the engine
 * evenly. */
uint64_t guard_tenant(const struct access_record *record);
/* The scope of a request's prefixes (engine.h): its key, the administrator, or 0 for all without a
 * key.  The same after a restart. */
uint64_t guard_scope(const struct access_record *record);

/* ---- admin/access_endpoints.c ---- */
void guard_reports(struct server *s);   /* on_wake: answer the reports that are ready */
void report_gone(struct conn *c);       /* the client is */

#endif

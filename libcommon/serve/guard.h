/* guard.h - who may ask, how often, and the line that every request leaves in the audit log.
 *
 * An access record goes with one request: from routes_request to the last byte of its answer,
 * or, when the client leaves before, to the end of the work for it.  Keys are looked at anew for
 * every request (and every message on a WebSocket), at most a quarter of a second after a
 * change. */
#ifndef ZSE_SERVE_GUARD_H
#define ZSE_SERVE_GUARD_H

#include "libcommon/access/audit_log.h"
#include "libcommon/access/keys.h"
#include "libcommon/access/rate_limits.h"
#include "libcommon/http/problem.h"

struct server;
struct conn;
struct route;

enum { REFUSALS_MINUTE = 60, ADDRESSES = 4096, SEEN = 1024, AUDIT_WAITING_BYTES = 8 << 20, AUDIT_PATIENCE_S = 5,
       PROMPT_LOGGED = 4096 };

enum { REQUEST_ID_GIVEN = 128, REQUEST_ID = REQUEST_ID_GIVEN + 12 };      /* bytes of a client's X-Request-Id; of any id */

struct access_record {
    char id[REQUEST_ID + 1];              /* X-Request-Id of the answer; of a message on a WebSocket: that of its connection, "/" and a number */
    unsigned n_messages;                /* of a WebSocket */
    char client[64];                    /* address */
    char *method, *path, *agent, *model, *error, *prompt;       /* owned; NULL: none */
    int64_t at_ms;
    uint64_t start_ns;
    int has_key, is_admin;              /* is_admin: by the administrator's token */
    int by_key, admitted;               /* its key is valid; it was let in, by that or because none is needed */
    int kept;                           /* of a WebSocket: its line is written, its messages are judged by it */
    int64_t reserved;                   /* tokens of the key's limits; record_end settles them */
    struct key_info key;
};

struct guard {
    struct keys *keys;                  /* NULL: there are none */
    struct usage *usage;
    struct audit_log *audit;            /* NULL: nothing is logged */
    uint64_t errors, entries;           /* of audit_stats, a second ago */
    int losing;                         /* that lines are lost was said */
    uint64_t dropped; int dropping;     /* the same of messages to the syslog server */
    struct address_limits *anonymous, *refused;
    uint64_t refreshed_ns;
    uint64_t locked_ns;                 /* since then another program has the file of keys locked; 0: it has not */
    struct err trouble;                 /* what was said of the last look at the keys; ERR_NONE: it went well */
    struct report *reports;             /* questions and changes that threads are at */
    uint64_t swept_ns;                  /* when counters of keys that are gone were last looked for */
    uint64_t seen[SEEN];                /* which key was good at which address, by a hash of both; 0: nothing */
};

/* Reads the keys. Refuses a key file that is there and cannot be read: it must not look like a
 * server without keys. */
int guard_open(struct server *s, struct err *e);
int guard_close(struct server *s);                      /* guard_finish_audit, too */
void guard_tick(struct server *s);                      /* on_second */
/* Nothing more comes for the audit log: wait until it is written, for some seconds.  -1: it was
 * not. */
int guard_finish_audit(struct server *s);
int guard_has_keys(const struct server *s);             /* a key is needed, and there is one */

/* A request begins: its answer gets the header X-Request-Id, with the id that its line in the
 * audit log has. */
void record_begin(struct server *s, struct conn *c);
/* Would guard_admits take its key?  Nothing is counted.  *owner: as guard_tenant will tell; of
 * ACCESS_PUBLIC the address's. */
int guard_knows(struct server *s, struct conn *c, const struct route *r, uint64_t *owner);
/* May it go on? 0 after a refusal was sent. */
int guard_admits(struct server *s, struct conn *c, const struct route *r);
/* The same for a message on a WebSocket that guard_admits let in: an access record of its own,
 * or NULL with *pr. */
struct access_record *guard_message(struct server *s, struct conn *c, struct problem *pr);
/* May a WebSocket go on hearing? */
int guard_still(struct server *s, struct conn *c);
/* May the key of this record use the model? -1 with *pr. */
int guard_model(struct access_record *v, const char *model, struct problem *pr);
/* Reserve LEAST to MOST tokens (of the prompts and of all answers) of the key's limits.
 * *granted: how many; MOST where there is no limit.  -1 with *pr: 429, or 400 where they never
 * fit.  c: the connection whose answer gets X-RateLimit headers; NULL: none. */
int guard_reserve(struct server *s, struct conn *c, struct access_record *v, int64_t least, int64_t most,
                  int64_t *granted, struct problem *pr);
/* Whose request it is, for those who share out what there is too little of: the key's, or the
 * address's. */
uint64_t guard_tenant(const struct access_record *v);
/* What was wrong, for the log; of a body that was not understood only the kind and the field, as
 * its text is quoted in messages. */
void record_error(struct access_record *v, const struct problem *p);
void record_prompt(const struct server *s, struct access_record *v, const char *text, size_t size);
/* Tokens count against the key, the line is written, v is freed. Tokens < 0: the request has
 * none. */
void record_end(struct server *s, struct access_record *v, int status, int prompt_tokens, int completion_tokens);

/* on_wake: reports that are ready. */
void guard_reports(struct server *s);
void report_gone(struct conn *c);       /* the client is */

#endif

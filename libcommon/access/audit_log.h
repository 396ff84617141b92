/* audit_log.h - the audit log of a server: both chains, merged where requests would flood them,
 * each written by a thread of its own.
 *
 * Requests of a valid key, or of the administrator's token, go to the chain AUDIT_KEYS: each has
 * a line, but refused ones (429, 403) beyond MERGE_OWN_LINES a minute are merged.  All others go
 * to AUDIT_ANONYMOUS: refused ones and unknown paths in the same way; requests that a server
 * without keys has admitted have a line each up to OPEN_OWN_LINES a minute.  What is merged is
 * written after a minute, and at the end.  One thread, but for audit_log_stats and
 * audit_log_waiting. */
#ifndef ZSE_ACCESS_AUDIT_LOG_H
#define ZSE_ACCESS_AUDIT_LOG_H

#include "libcommon/access/audit.h"
#include "libcommon/access/audit_sign.h"
#include "libcommon/access/audit_syslog.h"

enum { OPEN_OWN_LINES = 600, AUDIT_MERGE_S = 60, SYSLOG_PATIENCE_S = 2 };

struct audit_log_options {
    const char *folder;
    uint64_t bytes[AUDIT_CHAINS];           /* of a file; 0: AUDIT_MAX_BYTES */
    int keep;                               /* rotated files of each chain; 0: AUDIT_KEEP */
    size_t waiting_bytes;                   /* lines of a chain that may wait for the disk */
    struct audit_signer *signer;            /* signs heads every AUDIT_MERGE_S where lines came, at each rotation and at the end; borrowed; NULL: none */
    const char *syslog;                     /* where lines are sent, too (audit_syslog.h); NULL: nowhere */
};

struct audit_log;
/* Fails only where it never could work: no memory, no thread. */
struct audit_log *audit_log_open(const struct audit_log_options *o, struct err *e);
/* Write what is merged and what waits, for at most so many seconds; nothing more is taken.  0;
 * else the number of lines that were not written: then a thread is still at it, and l is to be
 * left alone for the rest of the process. */
int audit_log_finish(struct audit_log *l, double patience_s);
void audit_log_close(struct audit_log *l);              /* after audit_log_finish; NULL is fine */
/* Cannot fail, and waits for nothing.  admitted: it was let in, by its key or because none is
 * needed. */
void audit_log_add(struct audit_log *l, const struct audit_entry *x, int has_key, int admitted);
/* Every second or so. */
void audit_log_tick(struct audit_log *l);
void audit_log_stats(struct audit_log *l, struct audit_stats *s);       /* of both chains together */
int audit_log_syslog_stats(struct audit_log *l, struct audit_syslog_stats *s);          /* 0: there is no syslog server */
int audit_log_waiting(struct audit_log *l);             /* lines */
/* The newest lines of both chains, the newest first; how many, at most n.  Caller frees each. */
int audit_log_recent(struct audit_log *l, int n, char **lines);

#endif

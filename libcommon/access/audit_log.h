/* audit_log.h - the audit log of a server: both chains, each written by a thread of its own, floods
 * of requests merged.
 *
 * Requests of a valid key or of the administrator's token go to the chain AUDIT_KEYS.  Each has a
 * line of its own, except refused requests (429, 403) beyond MERGE_OWN_LINES a minute, which are
 * merged.  All other requests go to AUDIT_ANONYMOUS.  There, refused requests and unknown paths are
 * merged in the same way; on a server without keys, admitted requests beyond OPEN_OWN_LINES a
 * minute are merged, too.  Merged lines are written once a minute and at the end.  Functions must
 * be called from one thread, except audit_log_stats and audit_log_waiting. */
#ifndef ZSE_ACCESS_AUDIT_LOG_H
#define ZSE_ACCESS_AUDIT_LOG_H

#include "libcommon/access/audit.h"
#include "libcommon/access/audit_post.h"
#include "libcommon/access/audit_sign.h"
#include "libcommon/access/audit_syslog.h"

enum { OPEN_OWN_LINES = 600, AUDIT_MERGE_S = 60, REMOTE_PATIENCE_S = 2 };

struct audit_log_options {
    const char *folder;
    uint64_t bytes[AUDIT_CHAINS];           /* largest file; 0: AUDIT_MAX_BYTES */
    int keep;                               /* rotated files of each chain; 0: AUDIT_KEEP */
    size_t waiting_bytes;                   /* most bytes of a chain's lines that may wait for the disk */
    /* signs heads: every AUDIT_MERGE_S if lines were added, at each rotation, and at the end;
     * borrowed; NULL: none */
    struct audit_signer *signer;
    /* servers that receive the lines, too: a syslog server (audit_syslog.h), and a collector with
     * its token (audit_post.h); NULL: none */
    const char *syslog, *url, *url_token, *url_ca;
};

struct audit_log;
/* Fails without memory or threads, and on a malformed target. */
struct audit_log *audit_log_open(const struct audit_log_options *o, struct err *e);
/* Write merged and waiting lines, for at most patience_s seconds; accept no more.  Returns the
 * number of lines that were not written.  If it is not 0, a thread is still writing, and l must
 * not be used again in this process. */
int audit_log_finish(struct audit_log *l, double patience_s);
void audit_log_close(struct audit_log *l);              /* after audit_log_finish; NULL is fine */
/* Add a request.  Cannot fail, never waits.  has_key: with a valid key or the administrator's
 * token; admitted: it was let in, by its key or because no key is needed. */
void audit_log_add(struct audit_log *l, const struct audit_entry *x, int has_key, int admitted);
/* Call it about once a second. */
void audit_log_tick(struct audit_log *l);
void audit_log_stats(struct audit_log *l, struct audit_stats *s);       /* sums over both chains */
/* 0: there is no such server */
int audit_log_remote_stats(struct audit_log *l, enum audit_remote which, struct audit_remote_stats *s);
int audit_log_waiting(struct audit_log *l);             /* lines */
/* The newest lines of both chains, newest first.  Returns their number, at most n.  Caller frees
 * each. */
int audit_log_recent(struct audit_log *l, int n, char **lines);

#endif

/* audit_post.h - post lines of the audit log to a URL in batches of JSON lines, so that a collector
 * has them.
 *
 * A thread posts, so adding a line never waits.  A batch is posted POST_LINGER_MS after its first
 * line, or once it has POST_BATCH_BYTES.  After an error it is posted again, after growing delays
 * (POST_AGAIN_MS doubled up to POST_AGAIN_MAX_MS, or the seconds in Retry-After if there is at
 * least one), so the collector may get a line twice.  At most POST_BYTES of lines wait; a line that
 * does not fit is dropped and counted, and so is a batch that the collector refuses for good
 * (status 400, 413 or 422).
 *
 *   POST URL
 *   Content-Type: application/x-ndjson
 *   X-Audit-Chain: requests or anonymous
 *   X-Audit-Host: host name of this machine
 *
 * Redirects are not followed.  Messages do not contain the URL, which may have a password. */
#ifndef ZSE_ACCESS_AUDIT_POST_H
#define ZSE_ACCESS_AUDIT_POST_H

#include "libcommon/access/audit.h"

enum { POST_BYTES = 8 << 20, POST_BATCH_BYTES = 256 << 10, POST_LINGER_MS = 500, POST_AGAIN_MS = 500,
       POST_AGAIN_MAX_MS = 60000 };

struct audit_post;
/* token: sent as Authorization: Bearer; NULL: none.  ca_file: the certificates to trust (PEM);
 * NULL: the system's.  Fails on a URL that is not http or https, and without libcurl, memory or
 * threads; a collector that does not answer is no failure. */
struct audit_post *audit_post_open(const char *url, const char *token, const char *ca_file, struct err *e);
void audit_post_add(struct audit_post *p, enum audit_chain chain, const char *line, size_t n);
void audit_post_stats(struct audit_post *p, struct audit_remote_stats *out);
/* Post waiting lines for at most patience_s seconds and count the rest as dropped.  *last: the
 * final figures.  0; -1: the thread does not end (a name server that does not answer), and p must
 * not be used again in this process. */
int audit_post_close(struct audit_post *p, double patience_s, struct audit_remote_stats *last);

#endif

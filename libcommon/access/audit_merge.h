/* audit_merge.h - requests that would flood the audit log, merged into one line for each group:
 * same beginning of the path, address (IPv6: /64), status, method, key and model.
 *
 * Between two flushes the first requests have lines of their own, as many as the caller allows;
 * the rest is counted.  At most MERGE_GROUPS groups are kept: an address has at most MERGE_PATHS
 * of them, then its other paths count together, and when the table is full all other addresses
 * do.  So any number of requests makes a bounded number of lines in bounded memory.  One thread. */
#ifndef ZSE_ACCESS_AUDIT_MERGE_H
#define ZSE_ACCESS_AUDIT_MERGE_H

#include "libcommon/access/audit.h"

enum { MERGE_GROUPS = 160, MERGE_PATHS = 12, MERGE_OWN_LINES = 60 };

struct audit_merge;
struct audit_merge *audit_merge_open(struct err *e);
void audit_merge_close(struct audit_merge *m);          /* NULL is fine */
/* 1: it has a line of its own, which the caller writes; 0: it was counted.  own_lines: of this
 * kind since the last flush. */
enum audit_kind { AUDIT_REFUSED, AUDIT_ADMITTED, AUDIT_KINDS };
int audit_merge_add(struct audit_merge *m, const struct audit_entry *x, enum audit_kind kind, int own_lines);
/* Give fn the line of each group, and forget them. */
void audit_merge_flush(struct audit_merge *m, void (*fn)(void *user, const struct audit_entry *x), void *user);

#endif

/* audit_merge.h - merge requests that would flood the audit log into one line for each group: equal
 * beginning of the path, address (IPv6: /64), status, method, key and model.
 *
 * Between two flushes the first requests get lines of their own, as many as the caller allows;
 * later ones are only counted.  There are at most MERGE_GROUPS groups.  An address has at most
 * MERGE_PATHS of them, after which its other paths count together; when the table is full, all
 * other addresses count together.  So any number of requests makes a bounded number of lines in
 * bounded memory.  One thread. */
#ifndef ZSE_ACCESS_AUDIT_MERGE_H
#define ZSE_ACCESS_AUDIT_MERGE_H

#include "libcommon/access/audit.h"

enum { MERGE_GROUPS = 160, MERGE_PATHS = 12, MERGE_OWN_LINES = 60 };

struct audit_merge;
struct audit_merge *audit_merge_open(struct err *e);
void audit_merge_close(struct audit_merge *m);          /* NULL is fine */
/* 1: the caller writes a line for this request; 0: it was counted.  own_lines: lines of this kind
 * that are allowed between two flushes. */
enum audit_kind { AUDIT_REFUSED, AUDIT_ADMITTED, AUDIT_KINDS };
int audit_merge_add(struct audit_merge *m, const struct audit_entry *x, enum audit_kind kind, int own_lines);
/* Call fn with the line of each group, and remove all groups. */
void audit_merge_flush(struct audit_merge *m, void (*fn)(void *user, const struct audit_entry *x), void *user);

#endif

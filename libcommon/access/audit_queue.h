/* audit_queue.h - a queue of audit lines and a thread that writes them: a slow disk, or a stopped
 * program that holds the log's lock, does not delay the threads that add lines.
 *
 * Lines are written in the order in which they were added.  At most max_bytes of them wait in
 * memory; a line that does not fit is dropped and counted as an error. */
#ifndef ZSE_ACCESS_AUDIT_QUEUE_H
#define ZSE_ACCESS_AUDIT_QUEUE_H

#include "libcommon/access/audit.h"

struct audit_queue;
/* a is borrowed until audit_queue_close. */
struct audit_queue *audit_queue_open(struct audit *a, size_t max_bytes, struct err *e);
/* Cannot fail, never waits.  May be called by several threads at once. */
void audit_queue_add(struct audit_queue *w, const struct audit_entry *x);
/* Sign the head (audit_sign_head) once the lines before it are written. */
void audit_queue_sign(struct audit_queue *w);
int audit_queue_waiting(struct audit_queue *w);         /* number of lines */
/* Returns 0 when all lines are written, or after patience_s seconds the number of lines that are
 * not.  In that case the thread is still writing one, and w and a must not be used again in this
 * process.  NULL is fine. */
int audit_queue_close(struct audit_queue *w, double patience_s);

#endif

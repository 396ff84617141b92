/* audit_queue.h - lines of the audit log, written by a thread of its own: a slow disk, or a stopped
 * program that has the log's lock, holds up nobody who adds one.
 *
 * Lines are written in the order in which they were added.  They wait in memory, at most
 * max_bytes of them; one that finds no room is lost, and counted as such. */
#ifndef ZSE_ACCESS_AUDIT_QUEUE_H
#define ZSE_ACCESS_AUDIT_QUEUE_H

#include "libcommon/access/audit.h"

struct audit_queue;
/* a is borrowed until audit_queue_close. */
struct audit_queue *audit_queue_open(struct audit *a, size_t max_bytes, struct err *e);
/* Cannot fail, and waits for nothing.  Threads may call it at once. */
void audit_queue_add(struct audit_queue *w, const struct audit_entry *x);
/* Sign the head (audit_sign_head) once the lines before are written. */
void audit_queue_sign(struct audit_queue *w);
int audit_queue_waiting(struct audit_queue *w);         /* lines */
/* When all is written, 0.  After so many seconds the number of lines that are not: then the
 * thread is still at one, and w and a are to be left alone for the rest of the process.  NULL is
 * fine. */
int audit_queue_close(struct audit_queue *w, double patience_s);

#endif

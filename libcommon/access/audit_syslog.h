/* audit_syslog.h - send lines of the audit log as messages of RFC 5424 to a syslog server, so that
 * they survive this machine.
 *
 * A thread sends, so adding a message never waits.  At most SYSLOG_BYTES of messages wait; a
 * message that does not fit, or that a datagram socket does not accept, is dropped and counted.
 * Over TCP (octet counting, RFC 6587) messages wait while the connection is restored, with one
 * attempt a second.  Facility 13 (log audit), severity 6, APP-NAME zse-serve, MSGID the chain's
 * name. */
#ifndef ZSE_ACCESS_AUDIT_SYSLOG_H
#define ZSE_ACCESS_AUDIT_SYSLOG_H

#include "libcommon/access/audit.h"

enum { SYSLOG_BYTES = 4 << 20 };

struct audit_syslog;
/* target: HOST:PORT or udp:HOST:PORT, tcp:HOST:PORT, or the path of a Unix socket.  Fails on a
 * malformed target or without memory or threads; an unreachable server is no failure. */
struct audit_syslog *audit_syslog_open(const char *target, struct err *e);
void audit_syslog_add(struct audit_syslog *s, enum audit_chain chain, const char *line, size_t n);
void audit_syslog_stats(struct audit_syslog *s, struct audit_remote_stats *out);
/* Send waiting messages for at most patience_s seconds and count the rest as dropped.  *last: the
 * final figures.  0; -1: the thread does not end (a name server that does not answer), and s must
 * not be used again in this process. */
int audit_syslog_close(struct audit_syslog *s, double patience_s, struct audit_remote_stats *last);

#endif

/* key_usage.h - the counters of keys in PostgreSQL, beside the keys (key_postgres.h). */
#ifndef ZSE_ACCESS_KEY_USAGE_H
#define ZSE_ACCESS_KEY_USAGE_H

#include "libcommon/access/keys.h"
#include "libcommon/access/postgres.h"
#include "libcommon/access/usage_share.h"

/* Store the counts of this server, in one transaction, and set the counters of their keys to the
 * totals of all servers.  server: a random number that identifies this one. */
int key_usage_exchange(struct postgres *pg, struct usage *u, int64_t server, struct err *e);
/* Set the counters of these keys to the totals; u is new. */
int key_usage_read(struct postgres *pg, struct usage *u, const struct key_info *keys, int n, struct err *e);
/* Clear the windows of a key. */
int key_usage_reset(struct postgres *pg, int64_t key, struct err *e);
/* Delete what has left every window. */
int key_usage_trim(struct postgres *pg, struct err *e);

#endif

/* key_sync.h - a thread that keeps the keys and counters of a server in step with PostgreSQL, so
 * that no request waits for the database.
 *
 * Four times a second it exchanges the counters of the keys in use and looks whether the keys have
 * changed; a new copy of them waits for key_sync_take().  After an error it tries again every
 * SYNC_AGAIN_MS. */
#ifndef ZSE_ACCESS_KEY_SYNC_H
#define ZSE_ACCESS_KEY_SYNC_H

#include "libcommon/access/key_db.h"

enum { SYNC_MS = 250, SYNC_AGAIN_MS = 1000, SYNC_PATIENCE_MS = 5000, SYNC_LATE_MS = 2000 };

struct key_sync;
/* db, of key_postgres_open(), belongs to the thread until key_sync_close(); u: borrowed until then;
 * seen: the version of the keys that the caller has. */
struct key_sync *key_sync_open(struct key_db *db, struct usage *u, int64_t seen, struct err *e);
/* Ends the thread, after a last exchange of the counters. */
void key_sync_close(struct key_sync *s);
/* 1: *c is a newer copy, the caller's from now on; 0: there is none; -1: the database does not
 * answer. */
int key_sync_take(struct key_sync *s, struct key_copy *c, struct err *e);
/* The caller has changed its copy: a copy that was read before must not replace it. */
void key_sync_again(struct key_sync *s);
void key_sync_stats(struct key_sync *s, struct keys_sync_stats *out);

#endif

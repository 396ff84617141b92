/* state.h - ownership of the states of recurrent layers.  Unlike keys and values, a state cannot be
 * truncated, so prefixes are reused from snapshots only.  The contents belong to the backend, which
 * has n states; this module manages their numbers.
 *
 * A state is free, held by a sequence, or a snapshot: the state after the last token of a node of
 * the prefix tree (kv.h).  A snapshot is lost when its node is evicted.  state_take returns a free
 * state, else a lost snapshot, else the least recently used snapshot.
 *
 * Some states can be reserved as spare states.  They are never taken for sequences or snapshots,
 * and no more spare states are handed out than were reserved, so neither kind waits for the
 * other. */
#ifndef ZSE_CACHE_STATE_H
#define ZSE_CACHE_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/cache/kv.h"

struct state_pool;
struct state_pool *state_pool_open(int n, struct err *e);
void state_pool_close(struct state_pool *s);
size_t state_pool_bytes(const struct state_pool *s);    /* memory of the pool's own tables */

/* takes a state; -1: all are held */
int state_take(struct state_pool *s, const struct kv_pool *p);
void state_drop(struct state_pool *s, int state);       /* frees a held state */
/* reserves n spare states, before any state is taken */
void state_set_aside(struct state_pool *s, int n);
/* takes a spare state; -1: all are held */
int state_take_spare(struct state_pool *s, const struct kv_pool *p);
/* Free a state that state_take_spare() returned.  A sequence that has swapped its spare and its
 * ordinary state passes the former ordinary state instead. */
void state_drop_spare(struct state_pool *s, int state);
/* Turn a held state into the snapshot of this node; if the node already has a snapshot, free the
 * state. */
void state_keep(struct state_pool *s, const struct kv_pool *p, int32_t block, int state);
/* the snapshot of a node; -1: none */
int state_find(const struct state_pool *s, const struct kv_pool *p, int32_t block);
/* marks a snapshot as just used, so that it is evicted last */
void state_used(struct state_pool *s, int state);

/* Free lost snapshots, then call drop(user, state) for each free state. */
void state_trim(struct state_pool *s, const struct kv_pool *p, void (*drop)(void *user, int state), void *user);

/* Finds the latest snapshot in the tree on the path along which ids [0, n) continue t.  Returns the
 * number of tokens up to it, with its state in *snapshot; or t's own number of tokens, with -1, if
 * there is no snapshot.  t must be as for prefix_take(). */
int state_prefix(const struct state_pool *s, const struct kv_pool *p, const struct kv_table *t, const int32_t *ids,
                 int n, int *snapshot);

#endif

/* state.h - ownership of the states of recurrent layers.  Unlike keys and values a state cannot be
 * cut to a prefix, so prefixes are reused from snapshots only.  The bytes belong to the backend,
 * which has n states; this module keeps their numbers.
 *
 * A state is free, held by a sequence, or a snapshot: the state after the last token of a node of
 * the prefix tree (kv.h).  When a node is evicted its snapshot is lost.  state_take returns a free
 * state, else a lost snapshot, else the least recently used one.
 *
 * Some states can be set aside as spare ones.  Sequences and snapshots never take the
 * last of these, and spare ones take no others, so that neither waits for the other. */
#ifndef ZSE_CACHE_STATE_H
#define ZSE_CACHE_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/cache/kv.h"

struct state_pool;
struct state_pool *state_pool_open(int n, struct err *e);
void state_pool_close(struct state_pool *s);
size_t state_pool_bytes(const struct state_pool *s);    /* of its own tables */

int state_take(struct state_pool *s, const struct kv_pool *p);          /* a state to hold; -1: all are held */
void state_drop(struct state_pool *s, int state);       /* a held one becomes free */
void state_set_aside(struct state_pool *s, int n);      /* before any is taken */
int state_take_spare(struct state_pool *s, const struct kv_pool *p);    /* -1: all are held */
/* Either the spare state itself, or the one that its holder has put it in place of. */
void state_drop_spare(struct state_pool *s, int state);
/* A held state becomes the snapshot of this node; if the node has one already, it becomes free. */
void state_keep(struct state_pool *s, const struct kv_pool *p, int32_t block, int state);
/* the snapshot behind a node; -1: none */
int state_find(const struct state_pool *s, const struct kv_pool *p, int32_t block);
void state_used(struct state_pool *s, int state);       /* a snapshot was used: it is evicted last now */

/* Frees lost snapshots, then calls drop(user, state) for each free state. */
void state_trim(struct state_pool *s, const struct kv_pool *p, void (*drop)(void *user, int state), void *user);

/* Number of tokens of ids [0, n) up to the last snapshot in the tree after those of t, or t's own
 * number if there is none.  t as for prefix_take. */
int state_prefix(const struct state_pool *s, const struct kv_pool *p, const struct kv_table *t, const int32_t *ids,
                 int n, int *snapshot);

#endif

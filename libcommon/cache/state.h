/* state.h - which states of sequences belong to whom, for models with recurrent layers: what a
 * sequence left behind there cannot be cut like keys and values, so beginnings are reused from
 * snapshots only.  The bytes belong to the backend, which has n states; here are their numbers.
 *
 * A state is free, held by a sequence, or a snapshot: what stands behind the last token of a
 * node of the tree of prefixes (kv.h).  When a node is given up its snapshot can no longer be
 * found.  Who needs a state gets a free one, else such a lost snapshot, else the one that was
 * not used for the longest time. */
#ifndef ZSE_CACHE_STATE_H
#define ZSE_CACHE_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/cache/kv.h"

struct state_pool;
struct state_pool *state_pool_open(int n, struct err *e);
void state_pool_close(struct state_pool *s);
size_t state_pool_bytes(const struct state_pool *s);    /* what it takes itself */

int state_take(struct state_pool *s, const struct kv_pool *p);          /* to hold; -1: all are held */
void state_drop(struct state_pool *s, int state);       /* a held one becomes free */
/* A held state becomes the snapshot behind this node; where there is one already, it becomes
 * free. */
void state_keep(struct state_pool *s, const struct kv_pool *p, int32_t block, int state);
int state_find(const struct state_pool *s, const struct kv_pool *p, int32_t block);     /* the snapshot behind a node; -1: none */
void state_used(struct state_pool *s, int state);       /* a snapshot was of use: it is the newest now */

/* Lost snapshots become free; then drop(user, state) for each state that is free. */
void state_trim(struct state_pool *s, const struct kv_pool *p, void (*drop)(void *user, int state), void *user);

/* How many tokens of ids [0, n) are in the tree behind those of t, up to the last snapshot: t's
 * own number if there is none.  t as for prefix_take. */
int state_prefix(const struct state_pool *s, const struct kv_pool *p, const struct kv_table *t, const int32_t *ids,
                 int n, int *snapshot);

#endif

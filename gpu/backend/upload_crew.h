/* upload_crew.h - threads that upload experts while the thread of the step computes others: they
 * copy pages of the mapped file into the pinned buffers of a ring, from which the link reads. */
#ifndef ZSE_GPU_BACKEND_UPLOAD_CREW_H
#define ZSE_GPU_BACKEND_UPLOAD_CREW_H

#include "gpu/rt/ring.h"
#include "libcommon/model/model.h"

/* Queue the upload of an expert to a slot, through the ring; *bytes is increased by its size. */
int upload_expert(struct gpu_ring *ring, const struct expert *x, uint8_t *slot, uint64_t *bytes, struct err *e);

struct upload_crew;
/* The ring is of device g, and stays open until the crew is closed.  NULL with *e: no memory, no
 * thread. */
struct upload_crew *crew_open(struct gpu *g, struct gpu_ring *ring, int n_threads, struct err *e);
void crew_close(struct upload_crew *c);         /* stops after the current experts; NULL is fine */

/* Experts id[0] .. id[n - 1] of a layer, n >= 1, go to slots 0 .. n - 1 of `slot` bytes at `to`;
 * `filled` is recorded in the copy stream behind them.  The arrays stay as they are until
 * crew_wait(). */
struct crew_work {
    const struct expert *experts; const int *id; int n;
    uint8_t *to; size_t slot; struct gpu_event *filled;
};
void crew_post(struct upload_crew *c, const struct crew_work *w);
/* Wait until all copies and the event are queued.  *bytes: their sizes.  -1 with *e: the device is
 * lost. */
int crew_wait(struct upload_crew *c, uint64_t *bytes, struct err *e);

#endif

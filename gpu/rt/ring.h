/* ring.h - send the memory of the host to the device through a ring of pinned buffers: pages of a
 * mapped file are copied into a buffer, and the link reads the buffer at its full speed while the
 * next one is filled.
 *
 * Copies go to the stream GPU_COPY, in the order of the calls of gpu_ring_send() and
 * gpu_ring_upload().  These calls do not wait for copies; they wait only for a buffer, if all are
 * on their way.  A kernel may read the bytes after an event that was recorded on GPU_COPY behind
 * the last copy (gpu_event_record, gpu_event_wait); a copy may overwrite bytes that kernels read
 * once GPU_COPY waits for an event of GPU_COMPUTE.  Neither makes the host wait:
 *
 *     gpu_event_wait(g, GPU_COPY, used, e);            the kernels that read the old bytes
 *     gpu_ring_upload(ring, slot, from, n, e);
 *     gpu_event_record(g, GPU_COPY, filled, e);
 *     gpu_event_wait(g, GPU_COMPUTE, filled, e);       before the kernels that read the new ones
 *
 * Any number of threads may use a ring at the same time; gpu_ring_take() and gpu_ring_send() let
 * them fill buffers in parallel.  A ring belongs to the device with which it was opened, and is
 * closed before it. */
#ifndef ZSE_GPU_RT_RING_H
#define ZSE_GPU_RT_RING_H

#include "gpu/rt/rt.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_ring;
/* Allocate n_buffers >= 1 pinned buffers of `size` bytes each.  NULL with *e: no memory. */
struct gpu_ring *gpu_ring_open(struct gpu *g, int n_buffers, size_t size, struct err *e);
/* Wait for all copies, and free the buffers; NULL is fine.  No buffer may be taken. */
void gpu_ring_close(struct gpu_ring *r);
size_t gpu_ring_size(const struct gpu_ring *r);         /* bytes of a buffer */

/* Take the oldest buffer, after its copy has ended.  Returns its number, and its memory in *p; -1
 * with *e: the device is lost. */
int gpu_ring_take(struct gpu_ring *r, void **p, struct err *e);
/* Queue the copy of the first n bytes of a taken buffer, which returns to the ring in any case.
 * n 0: nothing is copied. */
int gpu_ring_send(struct gpu_ring *r, int buffer, void *to, size_t n, struct err *e);
/* Queue the copy of n bytes of any memory of the host, in pieces of at most one buffer.  `from` may
 * change after the call. */
int gpu_ring_upload(struct gpu_ring *r, void *to, const void *from, size_t n, struct err *e);

/* Counts since open.  waited_ns: time in which threads waited for buffers. */
struct gpu_ring_counts { uint64_t bytes, copies, waited_ns; };
void gpu_ring_counts(struct gpu_ring *r, struct gpu_ring_counts *c);

#ifdef __cplusplus
}
#endif
#endif

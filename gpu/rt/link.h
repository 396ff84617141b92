/* link.h - send memory from one device to another: directly where that works, else through pinned
 * memory of the host.
 *
 * Some systems offer direct copies that deliver zeros (an IOMMU or ACS between the slots), without
 * an error.  So gpu_link_open() sends a pattern first, and uses direct copies only if it arrives.
 *
 * Both ways are ordered by events alone, and the host never waits: the receiver's compute stream
 * waits until the sender has computed the message, and the sender's until it has been taken.  Work
 * that is queued to the receiver's compute stream after gpu_link_send() reads the message; work
 * that is queued to the sender's may overwrite it.  This thread's device is the sender afterwards
 * (gpu_use). */
#ifndef ZSE_GPU_RT_LINK_H
#define ZSE_GPU_RT_LINK_H

#include "gpu/rt/rt.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_link;
/* A link for messages of at most `size` bytes.  Both devices stay open until it is closed.  NULL
 * with *e: no memory, or a device is lost. */
struct gpu_link *gpu_link_open(struct gpu *from, struct gpu *to, size_t size, struct err *e);
/* No message may be on its way; NULL is fine. */
void gpu_link_close(struct gpu_link *l);
/* Queue a message of n bytes; `from` and `to` are memory of the two devices. */
int gpu_link_send(struct gpu_link *l, void *to, const void *from, size_t n, struct err *e);
/* The three parts of gpu_link_send, in this order, so that messages of several links overlap:
 * offer() queues the sender's part, take() the receiver's, and release() lets the sender's later
 * work wait until the message is taken.  Each selects the device that it queues work to. */
int gpu_link_offer(struct gpu_link *l, const void *from, size_t n, struct err *e);
int gpu_link_take(struct gpu_link *l, void *to, const void *from, size_t n, struct err *e);
int gpu_link_release(struct gpu_link *l, struct err *e);
int gpu_link_is_direct(const struct gpu_link *l);
size_t gpu_link_pinned(const struct gpu_link *l);       /* bytes of pinned memory */

#ifdef __cplusplus
}
#endif
#endif

/* all_reduce.h - sums of vectors that each of several devices has a part of.
 *
 * Each pair of devices has a link in each direction (rt/link.h), direct or through pinned memory.
 * Small vectors are sent to every other device, which adds them (one hop); of larger ones each
 * device adds a share and sends the sum to the others, so that a device sends and receives less
 * than twice the vector, however many devices there are.  Both ways add in the order of the
 * devices, so that the result has the same bits on each device, for every length and link.
 *
 * Work is queued to the compute streams, and only events order it: the host never waits. */
#ifndef ZSE_GPU_BACKEND_ALL_REDUCE_H
#define ZSE_GPU_BACKEND_ALL_REDUCE_H

#include "gpu/rt/rt.h"

enum { ALL_REDUCE_DEVICES = 8 };
/* message: most bytes of a message, a multiple of 256; small: most bytes of a vector that is sent
 * whole, in one message */
struct all_reduce_sizes { size_t message, small; };
extern const struct all_reduce_sizes all_reduce_sizes;

struct all_reduce;
/* Bytes of device memory that each of n devices needs. */
size_t all_reduce_bytes(const struct all_reduce_sizes *s, int n);
/* The most copies and kernels of all_reduce_sum() of n floats. */
size_t all_reduce_nodes(const struct all_reduce_sizes *s, int n_devices, size_t n);
/* The devices stay open until it is closed.  NULL with *e: no memory, or a device is lost. */
struct all_reduce *all_reduce_open(struct gpu *const g[], int n, const struct all_reduce_sizes *s, struct err *e);
/* No work may be queued; NULL is fine. */
void all_reduce_close(struct all_reduce *a);
/* x[i] [n] f32 is memory of device i: queue x[i] = x[0] + x[1] + .. on all. */
int all_reduce_sum(struct all_reduce *a, float *const x[], size_t n, struct err *e);
/* Queue x[i] = x[0] on all. */
int all_reduce_spread(struct all_reduce *a, float *const x[], size_t n, struct err *e);
/* Does a device get the others' messages directly? */
int all_reduce_is_direct(const struct all_reduce *a, int device);
size_t all_reduce_pinned(const struct all_reduce *a);   /* bytes of pinned memory */

#endif

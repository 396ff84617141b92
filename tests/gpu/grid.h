/* grid.h - kernels for t-gpu-grid.c: their blocks run at the same time and exchange values. */
#ifndef ZSE_TESTS_GPU_GRID_H
#define ZSE_TESTS_GPU_GRID_H

#include <stdint.h>

#include "gpu/rt/rt.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GRID_THREADS = 64 };
/* The fault of a kernel, or none:
 *   no wait        blocks arrive, but do not wait
 *   waits early    for one arrival of each block less
 *   late write     after the arrival
 *   early copy     starts before the wait
 *   overwrites     what other blocks may still read
 *   never arrives  the last block ends after one step
 *   resets         the counters before all blocks have waited
 *   no barrier     between the copies of threads to shared memory and reads of others
 *   unwritten      block 1 reads shared memory that only the others have written
 *   beyond         writes after the end of x */
#define GRID_FAULTS(F) \
    F(GRID_RIGHT) F(GRID_NO_WAIT) F(GRID_WAITS_EARLY) F(GRID_LATE_WRITE) F(GRID_EARLY_COPY) F(GRID_OVERWRITES) \
    F(GRID_NEVER_ARRIVES) F(GRID_RESETS) F(GRID_NO_BARRIER) F(GRID_UNWRITTEN) F(GRID_BEYOND)
#define GRID_FAULT(f) f,
enum grid_fault { GRID_FAULTS(GRID_FAULT) };
#undef GRID_FAULT

/* n_steps times, for thread t of block b: x[b][t] = step + 1 + the sum over all blocks i of
 * (i + b + 2) * x[i][(t + 1) % GRID_THREADS], then total[t] = the sum of x[i][t].
 *   x                2 [n_blocks][GRID_THREADS]: the values before even and before odd steps
 *   arrived, ticket  [GPU_GRID_WORDS] and one word, 0 before and after
 * together: by launch_together(), otherwise by launch(). */
struct grid_exchange { uint32_t *x, *total; unsigned *arrived, *ticket; int n_steps; };
int grid_exchange(struct gpu *g, const struct grid_exchange *o, int n_blocks, int together, enum grid_fault fault,
                  struct err *e);
/* n_steps times each thread of a block gives a float to the next block, in a circle, and adds the
 * one that it gets: sum[b][t] = the sum of 1000 * step + 100 * (the block before b) + t.
 *   published  by grid_publish() in phases 1, 0, 1 .., otherwise by grid_send()
 *   words      [n_blocks][GRID_THREADS]: published, of phase 0; otherwise empty before and after
 *   arrived    as above */
struct grid_relay { float *sum, *words; unsigned *arrived; int n_steps, published; };
/* The fault of a kernel, or none:
 *   not sent      the last block sends nothing in the second step
 *   sent early    before a barrier orders it after the word before has been received
 *   read plainly  without waiting */
enum relay_fault { RELAY_RIGHT, RELAY_NOT_SENT, RELAY_SENT_EARLY, RELAY_READ_PLAINLY };
int grid_relay(struct gpu *g, const struct grid_relay *o, int n_blocks, enum relay_fault fault, struct err *e);
int grid_blocks(struct gpu *g, int threads, size_t shared);     /* blocks_together() of the kernel */

#ifdef __cplusplus
}
#endif
#endif

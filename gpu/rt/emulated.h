/* emulated.h - faults and limits of the emulated device, for tests.  No program that is installed
 * contains the emulation, so only tests call these functions. */
#ifndef ZSE_GPU_RT_EMULATED_H
#define ZSE_GPU_RT_EMULATED_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The n-th launch from now on (1: the next) of this kernel (NULL: of any) fails, and the device
 * is lost; 0: none. The next call that waits for the device reports it, with the kernel's name only
 * with debug_sync.  The device works again once all its users have closed it. */
void emulated_fail(const char *kernel, int n);
/* Simulate that there is no memory for graphs, or for launching them, from now on. */
enum emulated_refusal { EMULATED_NOTHING, EMULATED_GRAPH, EMULATED_GRAPH_LAUNCH };
void emulated_refuse(enum emulated_refusal what);
/* From now on the devices together have `size` bytes of memory; 0: 4 GiB. */
void emulated_memory(size_t size);
/* Number of graphs launched in this process. */
int emulated_graphs(void);

#ifdef __cplusplus
}
#endif
#endif

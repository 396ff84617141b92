/* emulated.h - the number, faults and limits of the emulated devices, for tests.  No program that
 * is installed contains the emulation, so only tests call these functions. */
#ifndef ZSE_GPU_RT_EMULATED_H
#define ZSE_GPU_RT_EMULATED_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Change the number of devices, from one; at most EMULATED_DEVICES. */
enum { EMULATED_DEVICES = 8 };
void emulated_devices(int n);
/* Copies between two devices: there are none, they arrive (the default), or zeros arrive. */
enum emulated_peers { EMULATED_PEERS, EMULATED_NO_PEERS, EMULATED_ZERO_PEERS };
void emulated_peers(enum emulated_peers peers);

/* The n-th launch from now on (1: the next) of this kernel (NULL: of any) on a device fails, and
 * the device is lost; 0: none. The next call that waits for the device reports it, with the
 * kernel's name only with debug_sync.  The device works again once all its users have closed it.
 * emulated_fail: on device 0. */
void emulated_fail_on(int device, const char *kernel, int n);
void emulated_fail(const char *kernel, int n);
/* Simulate that there is no memory for graphs, for launching them, or for another device that takes
 * part in a recording, from now on. */
enum emulated_refusal { EMULATED_NOTHING, EMULATED_GRAPH, EMULATED_GRAPH_LAUNCH, EMULATED_GRAPH_JOIN };
void emulated_refuse(enum emulated_refusal what);
/* From now on a device, or each of them, has `size` bytes of memory; 0: 4 GiB. */
void emulated_device_memory(int device, size_t size);
void emulated_memory(size_t size);
/* From now on events of the copy stream of a device are as far apart as a link of this speed would
 * take for the uploads between them, in bytes a second; 0: by the clock.  Nothing is delayed. */
void emulated_link(double speed);
/* Bytes of all uploads in a device's copy stream since the process began: weights. */
size_t emulated_uploaded(int device);
/* From now on call launch() for every kernel that is launched or recorded; NULL: no longer. */
void emulated_watch(void (*launch)(void *user, const char *kernel, unsigned blocks, int threads, size_t shared),
                    void *user);
/* From now on kernels do nothing, but copies are made: for counts of bytes that no result of a
 * kernel changes.  0: kernels run again. */
void emulated_idle(int idle);
/* Number of graphs launched in this process, and of a device's kernels and copies in the last
 * one. */
int emulated_graphs(void);
int emulated_graph_nodes(int device);

#ifdef __cplusplus
}
#endif
#endif

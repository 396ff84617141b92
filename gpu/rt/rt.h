/* rt.h - a device: memory, copies, events, graphs.  Implemented by rt.cu with the CUDA runtime,
 * and by emulated_device.cc on the CPU.
 *
 * Errors contain the request and the driver's answer.  After the first failure of a kernel the
 * device is lost for all its holders, and every later call fails with the same message: requests
 * end with an error, and the process continues.  Failed allocations and refused launches leave the
 * device usable. */
#ifndef ZSE_GPU_RT_RT_H
#define ZSE_GPU_RT_RT_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu;                         /* defined in launch.cuh */
struct gpu_event;
struct gpu_graph;
enum gpu_stream { GPU_COMPUTE, GPU_COPY };

struct gpu_info {
    char name[128];                 /* "NVIDIA H200" */
    int major, minor;               /* compute capability */
    int n_sms;
    size_t memory, free, l2;        /* bytes; free: now */
    double bandwidth;               /* bytes/s, from clock and width of the memory; 0: unknown */
    /* dense f16 operations/s of the matrix units, calculated from their clock and number; a
     * multiply-add counts as two; 0: unknown */
    double mma;
};

extern const char gpu_kind[];       /* "cuda" or "emulated" */

/* debug_sync: wait after every kernel, so that a failure names it; emulated: also check every
 * access (see emulate.h). */
struct gpu *gpu_open(int device, int debug_sync, struct err *e);
/* Frees all its memory; NULL is fine.  A lost device may be recovered once it has no users: the
 * last gpu_close tries, and so does gpu_open, whose error has the reason if it fails. */
void gpu_close(struct gpu *g);
/* Select the device of g for this thread.  Every thread must do so before its first launch, because
 * CUDA keeps the current device per thread. */
int gpu_use(struct gpu *g, struct err *e);
int gpu_is_lost(struct gpu *g);
/* Whether kernels may begin before the kernel before them has ended (launch.cuh): as opened, where
 * compute capability and code allow it.  Emulated, kernels run one after the other. */
void gpu_dependent_launches(struct gpu *g, int on);
int gpu_launches_overlap(const struct gpu *g);
/* Let the next kernel begin after the end of all before it: what they have written may then be read
 * as weights are. */
void gpu_end_dependence(struct gpu *g);
/* Create the context of a device in advance, so that gpu_open is faster.  This takes time: call it
 * from a separate thread.  gpu_open reports failures. */
void gpu_warm_up(int device);
int gpu_count(struct err *e);       /* -1: no driver, or it does not work */
int gpu_info(const struct gpu *g, struct gpu_info *info, struct err *e);

/* Device memory, 256-byte aligned; `what` is its name in errors. */
void *gpu_alloc(struct gpu *g, size_t size, const char *what, struct err *e);
void gpu_free(struct gpu *g, void *p);
/* Pinned host memory: copies from and to it reach the link's full speed. */
void *gpu_pinned(struct gpu *g, size_t size, const char *what, struct err *e);
void gpu_pinned_free(struct gpu *g, void *p);

/* Queue a copy of n bytes in stream order.  Host memory must be pinned, and must not change until
 * the stream has done the copy. */
int gpu_upload(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e);
int gpu_download(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e);
int gpu_copy(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e);
/* Whether the system offers direct copies to g from another device: 1 or 0; -1 with *e.  They may
 * still deliver wrong bytes (link.h).  gpu_copy_from queues one in the stream of g. */
int gpu_peer(struct gpu *g, struct gpu *peer, struct err *e);
int gpu_copy_from(struct gpu *g, enum gpu_stream s, void *to, struct gpu *peer, const void *from, size_t n,
                  struct err *e);
int gpu_fill(struct gpu *g, enum gpu_stream s, void *to, int byte, size_t n, struct err *e);
int gpu_sync(struct gpu *g, enum gpu_stream s, struct err *e);

struct gpu_event *gpu_event_open(struct gpu *g, struct err *e);
void gpu_event_close(struct gpu *g, struct gpu_event *v);
int gpu_event_record(struct gpu *g, enum gpu_stream s, struct gpu_event *v, struct err *e);
/* Let stream s wait for the event, which may be another device's; the host does not wait. */
int gpu_event_wait(struct gpu *g, enum gpu_stream s, struct gpu_event *v, struct err *e);
int gpu_event_sync(struct gpu *g, struct gpu_event *v, struct err *e);                          /* the host waits */
int gpu_event_elapsed(struct gpu *g, struct gpu_event *from, struct gpu_event *to, double *seconds, struct err *e);

/* Launches, copies and events on GPU_COMPUTE between begin and end are recorded, not run.  Another
 * device takes part from when its compute stream waits for an event that was recorded; g waits for
 * all its work before the end.  A launch then runs the work of all devices in the stream of g: what
 * they do before and after has to be ordered by events. */
int gpu_graph_begin(struct gpu *g, struct err *e);
struct gpu_graph *gpu_graph_end(struct gpu *g, struct err *e);
int gpu_graph_launch(struct gpu *g, struct gpu_graph *graph, struct err *e);
void gpu_graph_close(struct gpu *g, struct gpu_graph *graph);

/* Number of multiprocessors; compute capability, as 90 for 9.0. */
int gpu_n_sms(const struct gpu *g);
int gpu_capability(const struct gpu *g);

#ifdef __cplusplus
}
#endif
#endif

/* internal.h - the interface between the parts of the emulation: emulated.cc (running a
 * kernel), emulated_blocks.cc (races between blocks), emulated_hopper.cc (compute capability 9.0)
 * and emulated_device.cc (rt.h). */
#ifndef ZSE_GPU_RT_INTERNAL_H
#define ZSE_GPU_RT_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "gpu/rt/emulate.h"

/* The most shared memory of a block, on any device (sm_86 and sm_89 have the least), and on compute
 * capability 9.0.  Only kernels of 9.0, whose names end in "hopper", and launches that ask first
 * (blocks_together()) may take the latter. */
enum { EMULATED_THREADS = 1024, EMULATED_SHARED_ANY = 99 << 10, EMULATED_SHARED = 227 << 10 };
/* Number of multiprocessors; each holds one block of a launch_together(). */
enum { EMULATED_SMS = 4 };

struct memory_region { uint8_t *map; size_t map_size; uint8_t *p; size_t size; int pinned; };
/* A stream runs its work when the host or another stream waits for it, not before, unless
 * debug_sync: code that changes or reads memory too early gets wrong numbers, as on a GPU.
 * n_queued, n_done: the numbers of its items; protected by the device's lock. */
struct work_queue { std::deque<std::function<void()>> items; uint64_t n_queued, n_done; };
struct gpu {
    int device, debug_sync;
    /* capacity is reserved once, and closed regions stay in it, because the checks of kernels read
     * it without a lock while loaders change it */
    std::vector<memory_region> regions;
    std::mutex lock;                    /* the loader's threads allocate little, but copy while kernels run */
    /* capture: the number of the recording that its compute stream takes part in, 0: none;
     * n_recorded: number of its nodes; n_joined: of these, those that the stream which began it
     * waits for */
    uint64_t capture;
    size_t n_recorded, n_joined;
    struct gpu_graph *graph;
    work_queue queue[2];                /* by enum gpu_stream */
};
/* A kernel of a device, or a copy: name nullptr. */
struct graph_node { struct gpu *g; const char *name; emulated_shape shape; std::function<void()> work; };
/* The nodes run in the order in which they were recorded.  streams: the devices that take part, the
 * first one began. */
struct gpu_graph { std::vector<graph_node> nodes; std::vector<struct gpu *> streams; };
/* of: the handle with which it was opened; ns: clock time; after: number of items of the stream
 * before the event, and the event's own; capture: of the last record, with the number of nodes
 * before it */
struct gpu_event { struct gpu *of; uint64_t ns, after; enum gpu_stream stream; uint64_t capture; size_t nodes; };

/* ---- emulated.cc ---- */
/* Run a kernel.  -1 with *why if a check failed (ERR_DEVICE) or memory ran out. */
int emulated_run(struct gpu *g, const char *name, const emulated_shape &shape, const std::function<void()> &kernel,
                 struct err *why);
bool emulated_together();               /* the running launch was made by launch_together() */
extern std::atomic<uint64_t> emulated_regions;          /* opened so far, on all devices */
int emulated_me();                      /* number of the thread that runs */
int emulated_n_threads();
size_t emulated_shared_size();          /* size of the shared memory of this launch */
bool emulated_checks();
void emulated_complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Suspend this thread until *generation changes; `what` names the event in errors. */
void emulated_wait_for(const unsigned *generation, const char *what);
/* Check an access of this thread to n bytes. */
void emulated_access(const void *p, size_t n, bool write);

/* ---- emulated_blocks.cc ---- */
void blocks_begin();                    /* a launch_together() starts */
/* Check an access of block `me` to global memory.  at: its place in the allocation, for errors. */
enum blocks_access { BLOCKS_READ, BLOCKS_WRITE, BLOCKS_ATOMIC, BLOCKS_ATOMIC_READ };
void blocks_access(int me, const void *p, size_t n, enum blocks_access kind, size_t at);
/* Block `me` performs an atomic operation; arrives at a barrier, before the counter changes; has
 * waited for n arrivals. */
void blocks_atomic(int me, const void *p);
void blocks_arrive(int me, const unsigned *counter);
void blocks_wait(int me, const unsigned *counter, unsigned n);

/* ---- emulated_hopper.cc ---- */
void hopper_begin();                    /* a block starts */
/* Complete one of the copies in flight, because no thread can continue.  false: there is none. */
bool hopper_go_on();
void hopper_end();                      /* all threads of a block have ended */
/* Report an access to registers of this thread (on the emulation's stack) that a product in flight
 * uses.  Only to be called if the block has started products. */
extern bool hopper_has_products;
void hopper_registers(const void *p, size_t n, bool write);

#endif

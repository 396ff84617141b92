/* rt.cu - rt.h on a GPU.  The runtime is linked statically and loads the driver at the first call,
 * so the same binary runs on machines without one. */
#include "gpu/rt/launch.cuh"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>

extern "C" { extern const char gpu_kind[] = "cuda"; }

struct gpu_event { cudaEvent_t event; };
struct gpu_graph { cudaGraphExec_t exec; };

/* Does an error leave the device usable?  It does if a call was refused before anything ran, or if
 * a graph that is being recorded does not support it. */
static int spares_device(cudaError_t rc)
{
    if (rc >= cudaErrorStreamCaptureUnsupported && rc <= cudaErrorStreamCaptureWrongThread)
        return 1;
    return rc == cudaErrorMemoryAllocation || rc == cudaErrorInvalidValue || rc == cudaErrorInvalidConfiguration ||
           rc == cudaErrorLaunchOutOfResources || rc == cudaErrorNotSupported ||
           rc == cudaErrorCooperativeLaunchTooLarge;
}

/* All handles of a device share one CUDA context, so an error that destroys it fails all of them.
 * For every device: the number of its handles, and that error (code ERR_NONE: none yet). */
enum { MAX_DEVICES = 64 };
static struct { int n_handles; struct err lost; } devices[MAX_DEVICES];
/* whether an error has destroyed the device's context, for frequent checks without the lock */
static std::atomic<bool> is_lost[MAX_DEVICES];
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

int gpu_check(struct gpu *g, cudaError_t rc, const char *what, struct err *e)
{
    if (rc == cudaSuccess)
        return 0;
    cudaGetLastError();
    err_set(e, ERR_DEVICE, "cuda:%d: %s: %s (%s)%s", g->device, what, cudaGetErrorString(rc), cudaGetErrorName(rc),
            !g->debug_sync && !spares_device(rc) ? "; ZSE_DEBUG_SYNC=1 names the kernel" : "");
    if (!spares_device(rc)) {
        pthread_mutex_lock(&devices_lock);
        if (!is_lost[g->device])
            devices[g->device].lost = *e;
        is_lost[g->device] = true;
        pthread_mutex_unlock(&devices_lock);
    }
    return -1;
}

int gpu_ready(struct gpu *g, struct err *e)
{
    if (!is_lost[g->device])
        return 0;
    pthread_mutex_lock(&devices_lock);
    *e = devices[g->device].lost;
    pthread_mutex_unlock(&devices_lock);
    return -1;
}

/* Select this device before memory is freed: a thread that has selected none would create a context
 * on the first. */
static void choose(struct gpu *g)
{
    if (cudaSetDevice(g->device) != cudaSuccess)
        cudaGetLastError();
}

/* Reset a lost device without users: its context is destroyed, and a new one made.  The driver
 * keeps some failures for the lifetime of the process. */
static void try_again(int device)
{
    cudaSetDevice(device);              /* may still return the old failure */
    cudaDeviceReset();
    cudaGetLastError();
    if (cudaSetDevice(device) == cudaSuccess && cudaFree(nullptr) == cudaSuccess)
        is_lost[device] = false;
    cudaGetLastError();
}

/* Add a handle, if the device works or can be recovered. */
static int hold(int device, struct err *e)
{
    int rc = 0;
    pthread_mutex_lock(&devices_lock);
    const int n = devices[device].n_handles;
    if (is_lost[device] && n == 0)
        try_again(device);
    if (is_lost[device])
        rc = n ? err_set(e, ERR_DEVICE, "cuda:%d was lost and cannot be used before everything on it is unloaded (%d user%s): %.300s", device, n, n == 1 ? "" : "s", devices[device].lost.msg)
               : err_set(e, ERR_DEVICE, "cuda:%d was lost and does not come back in this process: %.300s", device,
                         devices[device].lost.msg);
    else
        devices[device].n_handles++;
    pthread_mutex_unlock(&devices_lock);
    return rc;
}

static void let_go(int device)
{
    pthread_mutex_lock(&devices_lock);
    if (--devices[device].n_handles == 0 && is_lost[device])
        try_again(device);
    pthread_mutex_unlock(&devices_lock);
}

extern "C" {

int gpu_count(struct err *e)
{
    int n = 0, driver = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc == cudaSuccess && n > 0)
        return n;
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    if (driver == 0)
        return err_set(e, ERR_DEVICE, "no NVIDIA driver on this machine (libcuda.so.1 does not load)");
    return err_set(e, ERR_DEVICE, "no GPU: %s (driver for CUDA %d.%d)", rc == cudaSuccess ? "the driver lists none"
        : cudaGetErrorString(rc), driver / 1000, driver % 1000 / 10);
}

/* Whether the kernels' code has the instructions of dependent launches: the driver compiles code
 * for 8.0 where there is no other, and a kernel without them must not begin early.  All kernels are
 * compiled for the same architectures; this one stands for them. */
__global__ static void probe_kernel() {}
static int has_dependent_launches(const struct gpu *g)
{
    cudaFuncAttributes a = {};
    if (g->capability < 90 || cudaFuncGetAttributes(&a, probe_kernel) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return a.ptxVersion >= 90;
}

void gpu_dependent_launches(struct gpu *g, int on) { g->dependent = on && has_dependent_launches(g); }

struct gpu *gpu_open(int device, int debug_sync, struct err *e)
{
    const int n = gpu_count(e);
    if (n < 0)
        return nullptr;
    if (device < 0 || device >= n) {
        err_set(e, ERR_DEVICE, "cuda:%d: there %s %d GPU%s, expected 0 to %d", device, n == 1 ? "is" : "are", n,
                n == 1 ? "" : "s", n - 1);
        return nullptr;
    }
    if (device >= MAX_DEVICES) {
        err_set(e, ERR_DEVICE, "cuda:%d: expected 0 to %d", device, MAX_DEVICES - 1);
        return nullptr;
    }
    if (hold(device, e) < 0)
        return nullptr;
    struct gpu *g = (struct gpu *)calloc(1, sizeof *g);
    if (!g) {
        let_go(device);
        err_nomem(e, "device");
        return nullptr;
    }
    g->device = device;
    g->debug_sync = debug_sync;
    int minor = 0;
    if (gpu_check(g, cudaSetDevice(device), "opening the device", e) < 0 ||
        gpu_check(g, cudaDeviceGetAttribute(&g->n_sms, cudaDevAttrMultiProcessorCount, device), "asking the device",
                  e) < 0 ||
        gpu_check(g, cudaDeviceGetAttribute(&g->capability, cudaDevAttrComputeCapabilityMajor, device),
                  "asking the device", e) < 0 ||
        gpu_check(g, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "asking the device",
                  e) < 0 ||
        gpu_check(g, cudaDeviceGetAttribute(&g->cooperative, cudaDevAttrCooperativeLaunch, device),
                  "asking the device", e) < 0 ||
        gpu_check(g, cudaStreamCreateWithFlags(&g->stream[0], cudaStreamNonBlocking), "stream", e) < 0 ||
        gpu_check(g, cudaStreamCreateWithFlags(&g->stream[1], cudaStreamNonBlocking), "stream", e) < 0) {
        gpu_close(g);
        return nullptr;
    }
    g->capability = 10 * g->capability + minor;
    gpu_dependent_launches(g, 1);
    return g;
}

void gpu_close(struct gpu *g)
{
    if (!g)
        return;
    choose(g);
    for (int i = 0; i < 2; i++)
        if (g->stream[i])
            cudaStreamDestroy(g->stream[i]);
    cudaGetLastError();
    let_go(g->device);
    free(g);
}

int gpu_use(struct gpu *g, struct err *e)
{
    return gpu_ready(g, e) < 0 ? -1 : gpu_check(g, cudaSetDevice(g->device), "device", e);
}

int gpu_is_lost(struct gpu *g) { return is_lost[g->device]; }

void gpu_warm_up(int device)
{
    pthread_mutex_lock(&devices_lock);          /* waits for the end of a reset */
    if (cudaSetDevice(device) == cudaSuccess)
        cudaFree(nullptr);
    cudaGetLastError();
    pthread_mutex_unlock(&devices_lock);
}

/* f16 operations a clock of a multiprocessor, with f32 sums: the vendor's architecture papers of
 * GA100, GA102, AD102 and GH100. */
static int mma_a_clock(int major, int minor)
{
    return major == 9 ? 4096 : major == 8 && minor == 0 ? 2048 : major == 8 ? minor == 9 ? 1024 : 512 : 0;
}

int gpu_info(const struct gpu *g, struct gpu_info *info, struct err *e)
{
    cudaDeviceProp p;
    struct gpu *me = const_cast<struct gpu *>(g);
    int clock_khz = 0, bus_bits = 0;
    memset(info, 0, sizeof *info);
    if (gpu_check(me, cudaSetDevice(g->device), "device", e) < 0 ||
        gpu_check(me, cudaGetDeviceProperties(&p, g->device), "properties", e) < 0 ||
        gpu_check(me, cudaMemGetInfo(&info->free, &info->memory), "memory", e) < 0)
        return -1;
    cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, g->device);
    cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, g->device);
    cudaGetLastError();
    snprintf(info->name, sizeof info->name, "%.127s", p.name);
    info->major = p.major;
    info->minor = p.minor;
    info->n_sms = p.multiProcessorCount;
    info->l2 = (size_t)p.l2CacheSize;
    info->bandwidth = 2e3 * clock_khz * (bus_bits / 8);
    cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, g->device);
    cudaGetLastError();
    info->mma = 1e3 * clock_khz * p.multiProcessorCount * mma_a_clock(p.major, p.minor);
    return 0;
}

int gpu_launches_overlap(const struct gpu *g) { return g->dependent; }
int gpu_n_sms(const struct gpu *g) { return g->n_sms; }
int gpu_capability(const struct gpu *g) { return g->capability; }

void *gpu_alloc(struct gpu *g, size_t size, const char *what, struct err *e)
{
    void *p = nullptr;
    char text[128];
    snprintf(text, sizeof text, "%zu bytes of device memory for %s", size, what);
    if (gpu_ready(g, e) < 0 || gpu_check(g, cudaSetDevice(g->device), "device", e) < 0 ||
        gpu_check(g, cudaMalloc(&p, size ? size : 1), text, e) < 0)
        return nullptr;
    return p;
}

void gpu_free(struct gpu *g, void *p)
{
    if (!p)
        return;
    choose(g);
    if (cudaFree(p) != cudaSuccess)
        cudaGetLastError();
}

void *gpu_pinned(struct gpu *g, size_t size, const char *what, struct err *e)
{
    void *p = nullptr;
    char text[128];
    snprintf(text, sizeof text, "%zu bytes of pinned memory for %s", size, what);
    if (gpu_ready(g, e) < 0 || gpu_check(g, cudaSetDevice(g->device), "device", e) < 0 ||
        gpu_check(g, cudaMallocHost(&p, size ? size : 1), text, e) < 0)
        return nullptr;
    return p;
}

void gpu_pinned_free(struct gpu *g, void *p)
{
    if (!p)
        return;
    choose(g);
    if (cudaFreeHost(p) != cudaSuccess)
        cudaGetLastError();
}

/* An item of stream s that is no kernel has been queued: the next kernel waits for it. */
static void end_following(struct gpu *g, enum gpu_stream s)
{
    if (s == GPU_COMPUTE)
        g->follows = 0;
}
void gpu_end_dependence(struct gpu *g) { end_following(g, GPU_COMPUTE); }

static int copy(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                const char *what, struct err *e)
{
    end_following(g, s);
    return gpu_ready(g, e) < 0 ? -1 : n == 0 ? 0
                                             : gpu_check(g, cudaMemcpyAsync(to, from, n, kind, g->stream[s]), what, e);
}
int gpu_upload(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e)
{
    return copy(g, s, to, from, n, cudaMemcpyHostToDevice, "upload", e);
}
int gpu_download(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e)
{
    return copy(g, s, to, from, n, cudaMemcpyDeviceToHost, "download", e);
}
int gpu_copy(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e)
{
    return copy(g, s, to, from, n, cudaMemcpyDeviceToDevice, "copy", e);
}
int gpu_peer(struct gpu *g, struct gpu *peer, struct err *e)
{
    int can = 0;
    if (g->device == peer->device)
        return 1;
    if (gpu_use(g, e) < 0 ||
        gpu_check(g, cudaDeviceCanAccessPeer(&can, g->device, peer->device), "asking for direct copies", e) < 0)
        return -1;
    if (!can)
        return 0;
    const cudaError_t rc = cudaDeviceEnablePeerAccess(peer->device, 0);
    cudaGetLastError();
    return rc == cudaSuccess || rc == cudaErrorPeerAccessAlreadyEnabled;        /* by another model */
}
int gpu_copy_from(struct gpu *g, enum gpu_stream s, void *to, struct gpu *peer, const void *from, size_t n,
                  struct err *e)
{
    if (g->device == peer->device)
        return gpu_copy(g, s, to, from, n, e);
    end_following(g, s);
    return gpu_ready(g, e) < 0 || gpu_ready(peer, e) < 0 ? -1 : n == 0 ? 0
        : gpu_check(g, cudaMemcpyPeerAsync(to, g->device, from, peer->device, n, g->stream[s]), "copy", e);
}
int gpu_fill(struct gpu *g, enum gpu_stream s, void *to, int byte, size_t n, struct err *e)
{
    end_following(g, s);
    return gpu_ready(g, e) < 0 ? -1 : n == 0 ? 0 : gpu_check(g, cudaMemsetAsync(to, byte, n, g->stream[s]), "fill", e);
}
int gpu_sync(struct gpu *g, enum gpu_stream s, struct err *e)
{
    return gpu_ready(g, e) < 0 ? -1 : gpu_check(g, cudaStreamSynchronize(g->stream[s]), "waiting for the kernels", e);
}

struct gpu_event *gpu_event_open(struct gpu *g, struct err *e)
{
    struct gpu_event *v = (struct gpu_event *)calloc(1, sizeof *v);
    if (!v) {
        err_nomem(e, "event");
        return nullptr;
    }
    if (gpu_check(g, cudaSetDevice(g->device), "device", e) < 0 ||
        gpu_check(g, cudaEventCreate(&v->event), "event", e) < 0) {
        free(v);
        return nullptr;
    }
    return v;
}
void gpu_event_close(struct gpu *g, struct gpu_event *v)
{
    (void)g;
    if (v)
        cudaEventDestroy(v->event);
    free(v);
}
int gpu_event_record(struct gpu *g, enum gpu_stream s, struct gpu_event *v, struct err *e)
{
    end_following(g, s);                /* a kernel after the event must not begin before it */
    return gpu_check(g, cudaEventRecord(v->event, g->stream[s]), "event", e);
}
int gpu_event_wait(struct gpu *g, enum gpu_stream s, struct gpu_event *v, struct err *e)
{
    end_following(g, s);
    return gpu_check(g, cudaStreamWaitEvent(g->stream[s], v->event, 0), "event", e);
}
int gpu_event_sync(struct gpu *g, struct gpu_event *v, struct err *e)
{
    return gpu_check(g, cudaEventSynchronize(v->event), "event", e);
}
int gpu_event_elapsed(struct gpu *g, struct gpu_event *from, struct gpu_event *to, double *seconds, struct err *e)
{
    float ms = 0;
    if (gpu_check(g, cudaEventSynchronize(to->event), "event", e) < 0 ||
        gpu_check(g, cudaEventElapsedTime(&ms, from->event, to->event), "event", e) < 0)
        return -1;
    *seconds = (double)ms * 1e-3;
    return 0;
}

/* Capture in thread-local mode, so that the copies of the loading threads continue. */
int gpu_graph_begin(struct gpu *g, struct err *e)
{
    end_following(g, GPU_COMPUTE);
    return gpu_ready(g, e) < 0 ? -1 : gpu_check(g,
                                                cudaStreamBeginCapture(g->stream[0], cudaStreamCaptureModeThreadLocal),
                                                "graph", e);
}

struct gpu_graph *gpu_graph_end(struct gpu *g, struct err *e)
{
    cudaGraph_t graph = nullptr;
    end_following(g, GPU_COMPUTE);
    struct gpu_graph *out = (struct gpu_graph *)calloc(1, sizeof *out);
    if (gpu_check(g, cudaStreamEndCapture(g->stream[0], &graph), "graph", e) < 0 || !out ||
        gpu_check(g, cudaGraphInstantiate(&out->exec, graph, 0), "graph", e) < 0) {
        if (!out)
            err_nomem(e, "graph");
        free(out);
        out = nullptr;
    }
    if (graph)
        cudaGraphDestroy(graph);
    return out;
}

int gpu_graph_launch(struct gpu *g, struct gpu_graph *graph, struct err *e)
{
    end_following(g, GPU_COMPUTE);
    return gpu_ready(g, e) < 0 ? -1 : gpu_check(g, cudaGraphLaunch(graph->exec, g->stream[0]), "graph", e);
}

void gpu_graph_close(struct gpu *g, struct gpu_graph *graph)
{
    (void)g;
    if (graph)
        cudaGraphExecDestroy(graph->exec);
    free(graph);
}

}

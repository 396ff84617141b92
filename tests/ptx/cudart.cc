/* cudart.cc - the calls of the CUDA runtime that gpu/rt and gpu/kernels make, on a machine without
 * a GPU: linked in place of libcudart, it runs the PTX that nvcc put into the objects.
 *
 * The work of a stream runs when the host waits for it, not before: host code that touches memory
 * too early gets wrong numbers, as on a GPU.  Like the runtime it refuses shared memory above 48 KB
 * without the attribute, blocks beyond a kernel's bounds, and calls that are illegal while a stream
 * is captured.  It also refuses copies from and to pageable memory, which a GPU would only do
 * slowly or too late.  A kernel that fails loses the device, and the description of the fault is
 * the error's text. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudaTypedefs.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "tests/ptx/ptx.h"
#include "tests/ptx/tensor_map.h"

enum { CAPABILITY_MAJOR = 9, CAPABILITY_MINOR = 0, SHARED_PLAIN = 48 << 10, SHARED_MOST = 227 << 10,
       DRIVER = 13000 };
static const size_t MEMORY = (size_t)4 << 30;

typedef std::function<void()> work;
struct CUstream_st {
    std::deque<work> queue;
    uint64_t n_queued, n_done;
    CUgraph_st *graph; /* the graph that records this stream's launches; NULL: none does */
    bool invalid;                       /* the capture was broken by an illegal call */
    std::thread::id capturer;
    /* nodes that this stream has in the graph; of these, those that the stream which began it waits
     * for */
    size_t n_recorded, n_joined;
    bool after_kernel;                  /* the last item is a kernel */
};
/* capture: the id of the graph that the last record is a part of, 0: none; nodes: of its stream
 * before it */
struct CUevent_st { CUstream_st *stream; uint64_t after, ns, capture; size_t nodes; };
struct CUgraph_st { std::vector<work> nodes; uint64_t id; CUstream_st *begun_by; };
struct CUgraphExec_st { std::vector<work> nodes; };
struct loaded { const uint8_t *data; module *m; };   /* parsed when it is first requested */
struct entry { loaded *of; std::string name; size_t most_shared; };
struct allocation { size_t size; bool pinned; };

static std::recursive_mutex lock;       /* held by every call of the runtime */
/* called before the constructors of this file run */
static std::map<const void *, entry> &all_entries()
{
    static std::map<const void *, entry> all;
    return all;
}
#define entries all_entries()
static std::map<uintptr_t, allocation> allocations;
static std::vector<CUstream_st *> streams;
static size_t taken;
static std::string failure;             /* error text of the first kernel that failed */
static thread_local cudaError_t last_error;
static thread_local struct { dim3 grid, block; size_t shared; cudaStream_t stream; } configured;

#define HOLD std::lock_guard<std::recursive_mutex> hold_(lock)

static cudaError_t result(cudaError_t rc)
{
    if (rc == cudaSuccess && !failure.empty())
        rc = cudaErrorLaunchFailure;    /* every later call fails, too, as on a GPU */
    if (rc != cudaSuccess)
        last_error = rc;
    return rc;
}

static void run(const work &what)
{
    if (!failure.empty())
        return;
    try {
        what();
    } catch (const fault &f) {
        failure = f.what();
    }
}
static void drain(CUstream_st *s, uint64_t to)
{
    while (s->n_done < to && !s->queue.empty()) {
        const work next = std::move(s->queue.front());
        s->queue.pop_front();
        s->n_done++;
        run(next);
    }
}
static void drain_all()
{
    for (CUstream_st *s : streams)
        drain(s, s->n_queued);
}
/* Called by functions that are illegal while a thread captures.  Returns 1, and invalidates the
 * capture, if this thread captures. */
static bool capturing_here()
{
    bool any = false;
    for (CUstream_st *s : streams)
        if (s->graph && s->capturer == std::this_thread::get_id()) {
            s->invalid = true;
            any = true;
        }
    return any;
}
/* The default stream. */
static CUstream_st *stream_of(CUstream_st *s)
{
    static CUstream_st *plain;
    if (!s && !plain)
        streams.push_back(plain = new CUstream_st());
    return s ? s : plain;
}
static cudaError_t enqueue(CUstream_st *s, const work &what)
{
    s = stream_of(s);
    s->after_kernel = false;
    if (!s->graph) {
        s->queue.push_back(what);
        s->n_queued++;
    } else if (s->invalid) {
        return result(cudaErrorStreamCaptureInvalidated);
    } else {
        s->graph->nodes.push_back(what);
        s->n_recorded++;
    }
    return result(cudaSuccess);
}

static const allocation *find(const void *p, size_t n)
{
    auto it = allocations.upper_bound((uintptr_t)p);
    if (it == allocations.begin())
        return nullptr;
    --it;
    return (uintptr_t)p + n <= it->first + it->second.size ? &it->second : nullptr;
}

static cudaError_t allocate(void **p, size_t size, bool pinned)
{
    HOLD;
    if (capturing_here())
        return result(cudaErrorStreamCaptureUnsupported);
    if (!failure.empty())
        return result(cudaErrorLaunchFailure);
    if (!pinned && taken + size > MEMORY)
        return result(cudaErrorMemoryAllocation);
    void *map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return result(cudaErrorMemoryAllocation);
    if (!pinned && size <= 1 << 20)
        memset(map, 0xff, size);        /* not zeros, which would hide reads of uninitialized memory */
    taken += pinned ? 0 : size;
    allocations[(uintptr_t)map] = { size, pinned };
    region_add(map, size, true);
    *p = map;
    return cudaSuccess;
}
static cudaError_t release(void *p, bool pinned)
{
    HOLD;
    if (!p)
        return result(cudaSuccess);
    if (capturing_here())
        return result(cudaErrorStreamCaptureUnsupported);
    auto it = allocations.find((uintptr_t)p);
    if (it == allocations.end() || it->second.pinned != pinned)
        return result(cudaErrorInvalidValue);
    drain_all();
    taken -= pinned ? 0 : it->second.size;
    munmap(p, it->second.size);
    allocations.erase(it);
    region_remove(p);
    return cudaSuccess;
}

static uint64_t now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the compiler's startup code and launches ---- */

/* The layout of .nv_fatbin: a header, then entries; entries of kind 1 are texts, not compressed
 * with --no-compress. */
struct fat_wrapper { uint32_t magic, version; const uint8_t *data; void *unused; };
struct fat_header { uint32_t magic; uint16_t version, header_size; uint64_t size; };
struct fat_entry { uint16_t kind, version; uint32_t header_size; uint64_t size; uint32_t compressed_size; };

static module *module_of(loaded *l)
{
    const fat_header *h = (const fat_header *)l->data;
    if (l->m || !h || h->magic != 0xba55ed50)
        return l->m;
    for (const uint8_t *at = l->data + h->header_size, *end = at + h->size; at < end && !l->m;) {
        const fat_entry *e = (const fat_entry *)at;
        const char *text = (const char *)at + e->header_size;
        while (e->kind == 1 && (*text == '\n' || *text == 0))
            text++;
        if (e->kind == 1)
            l->m = module_open(text, strnlen(text, e->size));
        at += e->header_size + e->size;
    }
    return l->m;
}

extern "C" {

void **__cudaRegisterFatBinary(void *p)
{
    const fat_wrapper *w = (const fat_wrapper *)p;
    loaded *l = new loaded();
    l->data = w->magic == 0x466243b1 ? w->data : nullptr;
    return (void **)l;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }
void __cudaRegisterFunction(void **handle, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *)
{
    entries[host] = { (loaded *)handle, name, SHARED_PLAIN };
}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
    configured = { grid, block, shared, stream };
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = configured.grid;
    *block = configured.block;
    *shared = configured.shared;
    *(cudaStream_t *)stream = configured.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    *kernel = (cudaKernel_t)const_cast<void *>(host);
    return cudaSuccess;
}
static cudaError_t launch_kernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                                 cudaStream_t stream, enum dependence dependence, bool together)
{
    HOLD;
    auto it = entries.find(host);
    if (it == entries.end() || !it->second.of->data)
        return result(cudaErrorInvalidDeviceFunction);
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || !block.x ||
        !block.y || !block.z || block.x * block.y * block.z > MAX_THREADS)
        return result(cudaErrorInvalidConfiguration);
    if (!failure.empty())
        return result(cudaErrorLaunchFailure);
    kernel *k;
    try {
        module *m = module_of(it->second.of);
        if (!m)
            return result(cudaErrorInvalidDeviceFunction);
        k = module_kernel(m, it->second.name);
    } catch (const fault &f) {
        failure = f.what();
        return result(cudaSuccess);
    }
    if ((int)(block.x * block.y * block.z) > k->most_threads)
        return result(cudaErrorInvalidConfiguration);
    if (k->shared_bytes + shared > it->second.most_shared)
        return result(cudaErrorInvalidValue);
    if (together && (uint64_t)grid.x * grid.y * grid.z > N_SMS)
        return result(cudaErrorCooperativeLaunchTooLarge);
    /* A kernel can be a dependent of kernels alone. */
    if (dependence == DEPENDENT && !stream_of(stream)->after_kernel)
        return result(cudaErrorNotSupported);
    std::vector<uint8_t> values(k->arguments.size());
    for (size_t i = 0; i < k->parameters.size(); i++)
        memcpy(values.data() + k->parameters[i].at, args[i], k->parameters[i].size);
    const cudaError_t rc = enqueue(stream, [=] {
        memcpy(k->arguments.data(), values.data(), values.size());
        const unsigned g[3] = { grid.x, grid.y, grid.z }, b[3] = { block.x, block.y, block.z };
        run_grid(k, g, b, shared, dependence, together);
    });
    stream_of(stream)->after_kernel = rc == cudaSuccess;
    return rc;
}
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream)
{
    return launch_kernel(host, grid, block, args, shared, stream, PLAIN, false);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args)
{
    enum dependence dependence = PLAIN;
    bool together = false;
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == cudaLaunchAttributeCooperative)
            together = c->attrs[i].val.cooperative != 0;
        else if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            dependence = c->attrs[i].val.programmaticStreamSerializationAllowed ? DEPENDENT : FIRST;
        else
            return result(cudaErrorInvalidValue);
    }
    if (together && dependence != PLAIN)
        return result(cudaErrorNotSupported);
    return launch_kernel(host, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream, dependence, together);
}
/* A multiprocessor has room for one block.  PTX does not tell how many registers a kernel needs. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *host, int threads,
                                                                   size_t shared, unsigned)
{
    HOLD;
    auto it = entries.find(host);
    if (it == entries.end())
        return result(cudaErrorInvalidDeviceFunction);
    if (threads < 1)
        return result(cudaErrorInvalidValue);
    try {
        module *m = module_of(it->second.of);
        if (!m)
            return result(cudaErrorInvalidDeviceFunction);
        const kernel *k = module_kernel(m, it->second.name);
        *n = threads <= k->most_threads && k->shared_bytes + shared <= it->second.most_shared;
    } catch (const fault &f) {
        failure = f.what();
    }
    return result(cudaSuccess);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *host, int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, host, threads, shared, cudaOccupancyDefault);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *)
{
    memset(a, 0, sizeof *a);
    a->ptxVersion = 10 * CAPABILITY_MAJOR + CAPABILITY_MINOR;   /* the Makefile compiles for it */
    return result(cudaSuccess);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t stream)
{
    return cudaLaunchKernel((const void *)kernel, grid, block, args, shared, stream);
}
cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute what, int value)
{
    HOLD;
    auto it = entries.find(host);
    if (it == entries.end())
        return result(cudaErrorInvalidDeviceFunction);
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > SHARED_MOST)
        return result(cudaErrorInvalidValue);
    if ((size_t)value > it->second.most_shared)
        it->second.most_shared = (size_t)value;
    return result(cudaSuccess);
}

/* ---- errors, the device ---- */

cudaError_t cudaGetLastError(void)
{
    const cudaError_t rc = last_error;
    last_error = cudaSuccess;
    return rc;
}
const char *cudaGetErrorString(cudaError_t rc)
{
    switch (rc) {
    case cudaSuccess: return "no error";
    case cudaErrorLaunchFailure: return failure.empty() ? "a kernel failed" : failure.c_str();
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDeviceFunction: return "invalid device function";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    default: return "another error";
    }
}
const char *cudaGetErrorName(cudaError_t rc)
{
    return rc == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : rc == cudaErrorMemoryAllocation
           ? "cudaErrorMemoryAllocation" : "cudaError";
}
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v)
{
    *v = DRIVER;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return result(device ? cudaErrorInvalidDevice : cudaSuccess); }
cudaError_t cudaDeviceReset(void)
{
    HOLD;
    failure.clear();
    for (CUstream_st *s : streams)
        s->queue.clear(), s->n_done = s->n_queued;
    last_error = cudaSuccess;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int)
{
    switch (what) {
    case cudaDevAttrMultiProcessorCount: *value = N_SMS; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = CAPABILITY_MAJOR; break;
    case cudaDevAttrComputeCapabilityMinor: *value = CAPABILITY_MINOR; break;
    case cudaDevAttrMemoryClockRate: case cudaDevAttrClockRate: *value = 1000000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 256; break;
    default: return result(cudaErrorInvalidValue);
    }
    return result(cudaSuccess);
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int)
{
    memset(p, 0, sizeof *p);
    strcpy(p->name, "PTX");
    p->major = CAPABILITY_MAJOR;
    p->minor = CAPABILITY_MINOR;
    p->multiProcessorCount = N_SMS;
    p->cooperativeLaunch = 1;
    p->l2CacheSize = 4 << 20;
    p->totalGlobalMem = MEMORY;
    return result(cudaSuccess);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all)
{
    HOLD;
    *free_bytes = MEMORY - taken;
    *all = MEMORY;
    return result(cudaSuccess);
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **p, size_t size) { return allocate(p, size, false); }
cudaError_t cudaMallocHost(void **p, size_t size) { return allocate(p, size, true); }
cudaError_t cudaFree(void *p) { return release(p, false); }
cudaError_t cudaFreeHost(void *p) { return release(p, true); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    HOLD;
    const allocation *a = find(to, n), *b = find(from, n);
    if (!a || !b)
        failure = "a copy from or to memory that is neither the device's nor pinned, or beyond its end";
    else if (a->pinned != (kind == cudaMemcpyDeviceToHost) || b->pinned != (kind == cudaMemcpyHostToDevice))
        failure = "a copy in another direction than it says";
    return enqueue(s, [=] { memmove(to, from, n); });
}
/* There is one device, so nothing calls these. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int)
{
    *can = 0;
    return result(cudaSuccess);
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return result(cudaErrorInvalidDevice); }
cudaError_t cudaMemcpyPeerAsync(void *, int, const void *, int, size_t, cudaStream_t)
{
    return result(cudaErrorInvalidDevice);
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t s)
{
    HOLD;
    const allocation *a = find(to, n);
    if (!a || a->pinned)
        return result(cudaErrorInvalidValue);
    return enqueue(s, [=] { memset(to, byte, n); });
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    HOLD;
    *s = new CUstream_st();
    streams.push_back(*s);
    return result(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    HOLD;
    drain(s, s->n_queued);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s)
            streams.erase(streams.begin() + (long)i);
    delete s;
    return result(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    HOLD;
    s = stream_of(s);
    if (s->graph) {
        s->invalid = true;
        return result(cudaErrorStreamCaptureUnsupported);
    }
    drain(s, s->n_queued);
    return result(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = new CUevent_st();
    return result(cudaSuccess);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return cudaEventCreate(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    HOLD;
    drain_all();                        /* queued work may still record this event */
    delete e;
    return result(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    HOLD;
    e->capture = s->graph ? s->graph->id : 0;
    e->nodes = s->n_recorded;
    e->stream = s;
    if (s->graph)
        return result(s->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    e->after = s->n_queued + 1;
    return enqueue(s, [=] { e->ns = now_ns(); });
}
/* Let a stream that captures, or the event of one, take part in the other's capture. */
static cudaError_t join_capture(CUstream_st *s, const CUevent_st *e)
{
    CUstream_st *from = e->stream;
    if (!from || !from->graph || from->graph->id != e->capture || (s->graph && s->graph != from->graph)) {
        s->invalid = true;
        return result(cudaErrorStreamCaptureIsolation);
    }
    if (!s->graph) {
        s->graph = from->graph;
        s->invalid = false;
        s->capturer = std::this_thread::get_id();
        s->n_recorded = s->n_joined = 0;
    }
    if (s == s->graph->begun_by && e->nodes > from->n_joined)
        from->n_joined = e->nodes;
    return result(cudaSuccess);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    HOLD;
    CUstream_st *const from = e->stream;
    const uint64_t after = e->after;
    s->after_kernel = false;
    if (e->capture || s->graph)
        return join_capture(s, e);
    if (!from)
        return result(cudaSuccess);
    return enqueue(s, [=] {
        for (CUstream_st *x : streams)
            if (x == from)
                drain(x, after);
    });
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    HOLD;
    for (CUstream_st *s : streams)
        if (s == e->stream)
            drain(s, e->after);
    return result(cudaSuccess);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = (float)(to->ns - from->ns) * 1e-6f;
    return result(cudaSuccess);
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode)
{
    HOLD;
    if (s->graph)
        return result(cudaErrorIllegalState);
    static uint64_t n_captures;
    s->graph = new CUgraph_st{ {}, ++n_captures, s };
    s->after_kernel = false;
    s->n_recorded = s->n_joined = 0;
    s->invalid = false;
    s->capturer = std::this_thread::get_id();
    return result(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    HOLD;
    if (!s->graph)
        return result(cudaErrorIllegalState);
    CUgraph_st *const recorded = s->graph;
    cudaError_t rc = cudaSuccess;
    for (CUstream_st *x : streams)
        if (x->graph == recorded) {
            if (x != s && x->n_joined < x->n_recorded && rc == cudaSuccess)
                rc = cudaErrorStreamCaptureUnjoined;
            rc = x->invalid ? cudaErrorStreamCaptureInvalidated : rc;
            x->graph = nullptr;
        }
    s->after_kernel = false;
    *graph = rc == cudaSuccess ? recorded : nullptr;
    if (rc != cudaSuccess)
        delete recorded;
    return result(rc);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    HOLD;
    *exec = new CUgraphExec_st{ graph->nodes };
    return result(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return result(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    HOLD;
    return enqueue(s, [nodes = exec->nodes] {
        for (const work &node : nodes)
            node();
    });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    HOLD;
    delete exec;
    return result(cudaSuccess);
}

/* ---- the one function of the driver ---- */

static CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                             const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                             const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
    HOLD;
    if ((uintptr_t)map % 64 || (uintptr_t)base % 16 || rank != 2 || type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ||
        stride[0] % 16 || stride[0] >= (cuuint64_t)1 << 40 || !size[0] || !size[1] || size[0] > (cuuint64_t)1 << 32 ||
        size[1] > (cuuint64_t)1 << 32 || stride[0] < size[0] * 2 || box[0] != 64 || !box[1] || box[1] > 256 ||
        step[0] != 1 || step[1] != 1 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        swizzle != CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    const tensor_map m = { (uint64_t)base, stride[0], (int64_t)size[0], (int64_t)size[1], (int)box[1],
                           tensor_map::MAGIC };
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **p, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    const bool known = !strcmp(name, "cuTensorMapEncodeTiled");
    *p = known ? (void *)encode_tiled : nullptr;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return result(cudaSuccess);
}

}

/* emulated_device.cc - rt.h without a GPU: memory with bounds, streams that run late, events,
 * graphs, and the faults that tests request. */
#include "gpu/rt/emulated.h"
#include "gpu/rt/internal.h"

#include <stdio.h>
#include <sys/mman.h>

#include "libcommon/base/clock.h"

extern "C" { const char gpu_kind[] = "emulated"; }

enum { MAX_REGIONS = 1 << 15 };

/* The only device; rt.cu has many. */
static struct {
    std::mutex lock;
    int n_handles;
    struct err lost;                    /* the first failure; code ERR_NONE: none */
    bool failed;                        /* a kernel failed, and no call has reported it yet */
    /* of emulated_fail; not a std::string, because tests may call it before constructors run */
    char fail_kernel[64];
    int fail_at;                        /* number of launches until the failure; 0: none */
    int n_graphs;                       /* number of graphs launched */
    enum emulated_refusal refuse;       /* emulated_refuse */
    /* bytes of emulated_memory, and allocated bytes of it, in whole pages of 2 MiB */
    std::atomic<size_t> memory, taken;
} state;

/* ---- faults ---- */

void emulated_fail(const char *kernel, int n)
{
    std::lock_guard<std::mutex> guard(state.lock);
    snprintf(state.fail_kernel, sizeof state.fail_kernel, "%s", kernel ? kernel : "");
    state.fail_at = n;
}

int emulated_graphs()
{
    std::lock_guard<std::mutex> guard(state.lock);
    return state.n_graphs;
}

void emulated_refuse(enum emulated_refusal what)
{
    std::lock_guard<std::mutex> guard(state.lock);
    state.refuse = what;
}

void emulated_memory(size_t size) { state.memory = size; }

static size_t memory_size() { return state.memory ? state.memory.load() : (size_t)4 << 30; }
static size_t taken_by(size_t size) { return (size + ((size_t)2 << 20) - 1) >> 21 << 21; }

static int refused(enum emulated_refusal what, struct err *e)
{
    std::lock_guard<std::mutex> guard(state.lock);
    return state.refuse == what ? err_set(e, ERR_DEVICE, "emulated:0: graph: a test leaves no memory for it") : 0;
}

/* Record the device's first failure, which every later call returns. */
static int lose(const struct err *why, struct err *e)
{
    std::lock_guard<std::mutex> guard(state.lock);
    if (state.lost.code == ERR_NONE)
        state.lost = *why;
    *e = state.lost;
    return -1;
}

/* As on a GPU, the launch itself succeeds; the first call that waits fails, without the name of the
 * kernel. */
static int ready(const char *what, struct err *e)
{
    std::lock_guard<std::mutex> guard(state.lock);
    if (state.failed && state.lost.code == ERR_NONE)
        err_set(&state.lost, ERR_DEVICE, "emulated:0: %s: a fault that a test asked for; ZSE_DEBUG_SYNC=1 names the kernel", what);
    if (state.lost.code == ERR_NONE)
        return 0;
    *e = state.lost;
    return -1;
}

static bool has_failed()
{
    std::lock_guard<std::mutex> guard(state.lock);
    return state.failed || state.lost.code != ERR_NONE;
}

/* ---- streams ---- */

static void enqueue(struct gpu *g, enum gpu_stream s, std::function<void()> what)
{
    if (g->debug_sync)
        return what();
    std::lock_guard<std::mutex> guard(g->lock);
    g->queue[s].items.push_back(std::move(what));
    g->queue[s].n_queued++;
}

/* Run a stream's queue up to item n. */
static void work_off(struct gpu *g, enum gpu_stream s, uint64_t n)
{
    std::lock_guard<std::recursive_mutex> working(g->working);
    work_queue &q = g->queue[s];
    for (;;) {
        std::function<void()> next;
        {
            std::lock_guard<std::mutex> guard(g->lock);
            if (q.items.empty() || q.n_done >= n)
                return;
            next = std::move(q.items.front());
            q.items.pop_front();
        }
        next();
        std::lock_guard<std::mutex> guard(g->lock);
        q.n_done++;
    }
}
/* Run all work. */
static void work_off(struct gpu *g)
{
    work_off(g, GPU_COPY, UINT64_MAX);
    work_off(g, GPU_COMPUTE, UINT64_MAX);
}

/* Is this the launch that emulated_fail() chose? */
static bool must_fail(const char *name)
{
    std::lock_guard<std::mutex> guard(state.lock);
    return state.fail_at > 0 && (!state.fail_kernel[0] || strcmp(state.fail_kernel, name) == 0) && --state.fail_at == 0;
}

static int run_kernel(struct gpu *g, const char *name, dim3 grid, int threads, size_t shared,
                      const std::function<void()> &kernel, struct err *e)
{
    if (has_failed())
        return 0;
    struct err why;
    if (must_fail(name)) {
        err_set(&why, ERR_DEVICE, "emulated:0: %s: a fault that a test asked for", name);
        if (g->debug_sync)
            return lose(&why, e);
        std::lock_guard<std::mutex> guard(state.lock);
        state.failed = true;
        return 0;
    }
    if (emulated_run(g, name, grid, threads, shared, kernel, &why) == 0)
        return 0;
    if (why.code != ERR_MEMORY)
        return lose(&why, e);
    *e = why;
    return -1;
}

int emulate_launch(struct gpu *g, const char *name, dim3 grid, int threads, size_t shared, std::function<void()> kernel,
                   struct err *e)
{
    {
        std::lock_guard<std::mutex> guard(state.lock);
        if (state.lost.code != ERR_NONE) {
            *e = state.lost;
            return -1;
        }
    }
    if (threads < 1 || threads > EMULATED_THREADS || shared > EMULATED_SHARED || !grid.x || !grid.y || !grid.z ||
        grid.y > 65535 || grid.z > 65535)
        return err_set(e, ERR_DEVICE, "kernel %s: a grid of %u x %u x %u blocks of %d threads with %zu bytes of shared memory cannot be launched", name, grid.x, grid.y,
                       grid.z, threads, shared);
    if (g->recording) {
        g->graph->nodes.push_back({ name, grid, threads, shared, std::move(kernel) });
        return 0;
    }
    if (g->debug_sync)
        return run_kernel(g, name, grid, threads, shared, kernel, e);
    enqueue(g, GPU_COMPUTE, [=] {
        struct err ignored;             /* the device keeps the error */
        run_kernel(g, name, grid, threads, shared, kernel, &ignored);
    });
    return 0;
}

/* ---- the device ---- */

int gpu_count(struct err *e) { (void)e; return 1; }

struct gpu *gpu_open(int device, int debug_sync, struct err *e)
{
    if (device != 0) {
        err_set(e, ERR_DEVICE, "emulated:%d: there is one emulated device, number 0", device);
        return nullptr;
    }
    std::lock_guard<std::mutex> guard(state.lock);
    if (state.lost.code != ERR_NONE) {
        err_set(e, ERR_DEVICE, "emulated:0 was lost and cannot be used before everything on it is unloaded (%d user%s): %.300s", state.n_handles,
                state.n_handles == 1 ? "" : "s", state.lost.msg);
        return nullptr;
    }
    state.n_handles++;
    struct gpu *g = new struct gpu();
    g->debug_sync = debug_sync;
    g->regions.reserve(MAX_REGIONS);
    return g;
}

void gpu_close(struct gpu *g)
{
    if (!g)
        return;
    for (const memory_region &r : g->regions)
        if (r.map_size) {
            state.taken -= r.pinned ? 0 : taken_by(r.size);
            munmap(r.map, r.map_size);
        }
    delete g;
    std::lock_guard<std::mutex> guard(state.lock);
    if (--state.n_handles == 0) {
        state.lost.code = ERR_NONE;
        state.failed = false;
    }
}

int gpu_use(struct gpu *, struct err *e) { return ready("device", e); }
int gpu_is_lost(struct gpu *)
{
    struct err ignored;
    return ready("device", &ignored) < 0;
}
void gpu_warm_up(int) {}

int gpu_info(const struct gpu *, struct gpu_info *info, struct err *)
{
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "emulated");
    info->major = 9;
    info->n_sms = 4;
    info->memory = memory_size();
    info->free = info->memory > state.taken ? info->memory - state.taken : 0;
    info->l2 = 4 << 10;                 /* small, so that buffers of several times this size are small, too */
    return 0;
}

int gpu_n_sms(const struct gpu *) { return 4; }
int gpu_capability(const struct gpu *) { return 90; }

/* Map a region whose end adjoins a page without access rights, and fill it with bytes that are NaN
 * as floats. */
static void *region_open(struct gpu *g, size_t size, int pinned, const char *what, struct err *e)
{
    const size_t page = 4096, n = ((size ? size : 1) + 255) / 256 * 256, all = (n + page - 1) / page * page + 2 * page;
    void *map = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        err_nomem(e, what);
        return nullptr;
    }
    uint8_t *end = (uint8_t *)map + all - page;
    mprotect(end, page, PROT_NONE);
    mprotect(map, page, PROT_NONE);
    if (!pinned && size <= (size_t)64 << 20)
        memset(end - n, 0xff, n);
    std::lock_guard<std::mutex> guard(g->lock);
    if (g->regions.size() == MAX_REGIONS) {
        munmap(map, all);
        err_nomem(e, what);
        return nullptr;
    }
    g->regions.push_back({ (uint8_t *)map, all, end - n, size, pinned });
    emulated_regions++;                 /* last, so that a check that runs meanwhile searches again */
    return end - n;
}

void *gpu_alloc(struct gpu *g, size_t size, const char *what, struct err *e)
{
    const size_t n = taken_by(size), before = state.taken.fetch_add(n);
    void *p = nullptr;
    if (before + n > memory_size())
        err_set(e, ERR_DEVICE, "emulated:0: %zu bytes of device memory for %s: out of memory", size, what);
    else
        p = region_open(g, size, 0, what, e);
    if (!p)
        state.taken -= n;
    return p;
}
void *gpu_pinned(struct gpu *g, size_t size, const char *what, struct err *e)
{
    return region_open(g, size, 1, what, e);
}

static void region_close(struct gpu *g, void *p)
{
    if (!p)
        return;
    std::lock_guard<std::mutex> guard(g->lock);
    for (size_t i = 0; i < g->regions.size(); i++) {
        if (g->regions[i].p != p)
            continue;
        memory_region &r = g->regions[i];
        const size_t all = r.map_size;
        state.taken -= r.pinned ? 0 : taken_by(r.size);
        r.map_size = r.size = 0;
        r.p = nullptr;
        munmap(r.map, all);
        return;
    }
}
void gpu_free(struct gpu *g, void *p)
{
    if (p)
        work_off(g);                    /* freeing waits for the device, as cudaFree does */
    region_close(g, p);
}
void gpu_pinned_free(struct gpu *g, void *p) { region_close(g, p); }

static int in_device(struct gpu *g, const void *at, size_t n, const char *what, struct err *e)
{
    std::lock_guard<std::mutex> guard(g->lock);
    const uint8_t *p = (const uint8_t *)at;
    for (const memory_region &r : g->regions)
        if (r.map_size && !r.pinned && p >= r.p && p + n <= r.p + r.size)
            return 0;
    return err_set(e, ERR_DEVICE, "%s of %zu bytes does not lie in device memory", what, n);
}

static int move(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, const char *what, struct err *e)
{
    if (ready(what, e) < 0)
        return -1;
    if (n)
        enqueue(g, s, [=] { memmove(to, from, n); });
    return 0;
}

int gpu_upload(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e)
{
    return n && in_device(g, to, n, "an upload", e) < 0 ? -1 : move(g, s, to, from, n, "upload", e);
}
int gpu_download(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e)
{
    return n && in_device(g, from, n, "a download", e) < 0 ? -1 : move(g, s, to, from, n, "download", e);
}
int gpu_copy(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e)
{
    return n && (in_device(g, from, n, "a copy", e) < 0 || in_device(g, to, n, "a copy", e) < 0) ? -1
        : move(g, s, to, from, n, "copy", e);
}
int gpu_fill(struct gpu *g, enum gpu_stream s, void *to, int byte, size_t n, struct err *e)
{
    if (n && in_device(g, to, n, "a fill", e) < 0)
        return -1;
    enqueue(g, s, [=] { memset(to, byte, n); });
    return 0;
}
int gpu_sync(struct gpu *g, enum gpu_stream s, struct err *e)
{
    work_off(g, s, UINT64_MAX);
    return ready("waiting for the kernels", e);
}

struct gpu_event *gpu_event_open(struct gpu *, struct err *) { return new gpu_event(); }
void gpu_event_close(struct gpu *g, struct gpu_event *v)
{
    work_off(g, v->stream, v->after);   /* run the queue up to the event, which writes v */
    delete v;
}
int gpu_event_record(struct gpu *g, enum gpu_stream s, struct gpu_event *v, struct err *)
{
    v->stream = s;
    enqueue(g, s, [=] { v->ns = clock_ns(); });
    std::lock_guard<std::mutex> guard(g->lock);
    v->after = g->queue[s].n_queued;
    return 0;
}
/* The event of the last record: one that is recorded later does not count. */
int gpu_event_wait(struct gpu *g, enum gpu_stream s, struct gpu_event *v, struct err *)
{
    const enum gpu_stream of = v->stream;
    const uint64_t after = v->after;
    if (of != s)
        enqueue(g, s, [=] { work_off(g, of, after); });
    return 0;
}
int gpu_event_sync(struct gpu *g, struct gpu_event *v, struct err *e)
{
    work_off(g, v->stream, v->after);
    return ready("event", e);
}
int gpu_event_elapsed(struct gpu *g, struct gpu_event *from, struct gpu_event *to, double *seconds, struct err *e)
{
    if (gpu_event_sync(g, to, e) < 0)
        return -1;
    *seconds = (double)(to->ns - from->ns) * 1e-9;
    return 0;
}

int gpu_graph_begin(struct gpu *g, struct err *)
{
    g->graph = new gpu_graph();
    g->recording = true;
    return 0;
}

struct gpu_graph *gpu_graph_end(struct gpu *g, struct err *e)
{
    g->recording = false;
    struct gpu_graph *graph = g->graph;
    g->graph = nullptr;
    if (refused(EMULATED_GRAPH, e) == 0)
        return graph;
    delete graph;
    return nullptr;
}

int gpu_graph_launch(struct gpu *g, struct gpu_graph *graph, struct err *e)
{
    if (refused(EMULATED_GRAPH_LAUNCH, e) < 0)
        return -1;
    {
        std::lock_guard<std::mutex> guard(state.lock);
        state.n_graphs++;
    }
    for (const graph_node &n : graph->nodes)
        if (emulate_launch(g, n.name, n.grid, n.threads, n.shared, n.kernel, e) < 0)
            return -1;
    return 0;
}

void gpu_graph_close(struct gpu *, struct gpu_graph *graph) { delete graph; }

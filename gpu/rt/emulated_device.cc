/* emulated_device.cc - rt.h without a GPU: memory with bounds, streams that run late, events,
 * graphs, and the faults that tests request. */
#include "gpu/rt/emulated.h"
#include "gpu/rt/internal.h"

#include <stdio.h>
#include <sys/mman.h>

#include "libcommon/base/clock.h"

extern "C" { const char gpu_kind[] = "emulated"; }

enum { MAX_REGIONS = 1 << 15 };

/* A device; protected by state.lock. */
struct emulated {
    int n_handles;
    struct err lost;                    /* the first failure; code ERR_NONE: none */
    bool failed;                        /* a kernel failed, and no call has reported it yet */
    /* bytes of emulated_device_memory(), and allocated bytes of it, in whole pages of 2 MiB;
     * uploaded: bytes of all uploads in the copy stream */
    std::atomic<size_t> memory, taken, uploaded;
};

static struct {
    std::mutex lock;
    struct emulated device[EMULATED_DEVICES];
    std::atomic<int> n_devices;         /* of emulated_devices(); 0: one */
    std::atomic<enum emulated_peers> peers;
    std::atomic<int> idle;              /* of emulated_idle() */
    std::atomic<double> link;           /* of emulated_link() */
    int fail_device;                    /* of emulated_fail_on() */
    /* of emulated_fail; not a std::string, because tests may call it before constructors run */
    char fail_kernel[64];
    int fail_at;                        /* number of launches until the failure; 0: none */
    int n_graphs;                       /* number of graphs launched */
    int n_nodes[EMULATED_DEVICES];      /* nodes of each device in the last one */
    enum emulated_refusal refuse;       /* emulated_refuse */
    /* of emulated_watch() */
    void (*watch)(void *user, const char *kernel, unsigned blocks, int threads, size_t shared);
    void *watch_user;
} state;

/* Held while queued work of any device runs; recursive, because an item may wait for another
 * stream.  One lock for all devices, because streams of two devices may wait for each other. */
static std::recursive_mutex working;

/* The device that this thread has selected, as in CUDA. */
static thread_local int selected;

static struct emulated *device_of(const struct gpu *g) { return &state.device[g->device]; }

/* ---- faults ---- */

void emulated_fail_on(int device, const char *kernel, int n)
{
    std::lock_guard<std::mutex> guard(state.lock);
    snprintf(state.fail_kernel, sizeof state.fail_kernel, "%s", kernel ? kernel : "");
    state.fail_at = n;
    state.fail_device = device;
}
void emulated_fail(const char *kernel, int n) { emulated_fail_on(0, kernel, n); }

void emulated_watch(void (*launch)(void *user, const char *kernel, unsigned blocks, int threads, size_t shared),
                    void *user)
{
    std::lock_guard<std::mutex> guard(state.lock);
    state.watch = launch;
    state.watch_user = user;
}

int emulated_graphs()
{
    std::lock_guard<std::mutex> guard(state.lock);
    return state.n_graphs;
}

int emulated_graph_nodes(int device)
{
    std::lock_guard<std::mutex> guard(state.lock);
    return state.n_nodes[device];
}

void emulated_refuse(enum emulated_refusal what)
{
    std::lock_guard<std::mutex> guard(state.lock);
    state.refuse = what;
}

void emulated_idle(int idle) { state.idle = idle; }

void emulated_devices(int n) { state.n_devices = n; }

void emulated_peers(enum emulated_peers peers) { state.peers = peers; }

void emulated_device_memory(int device, size_t size) { state.device[device].memory = size; }
void emulated_memory(size_t size)
{
    for (int i = 0; i < EMULATED_DEVICES; i++)
        emulated_device_memory(i, size);
}
void emulated_link(double speed) { state.link = speed; }
size_t emulated_uploaded(int device) { return state.device[device].uploaded; }

static size_t memory_size(const struct gpu *g)
{
    const size_t size = device_of(g)->memory;
    return size ? size : (size_t)4 << 30;
}
static size_t taken_by(size_t size) { return (size + ((size_t)2 << 20) - 1) >> 21 << 21; }

static int refused(struct gpu *g, enum emulated_refusal what, struct err *e)
{
    std::lock_guard<std::mutex> guard(state.lock);
    return state.refuse == what ? err_set(e, ERR_DEVICE, "emulated:%d: graph: a test leaves no memory for it", g->device) : 0;
}

/* Record the device's first failure, which every later call returns. */
static int lose(struct gpu *g, const struct err *why, struct err *e)
{
    std::lock_guard<std::mutex> guard(state.lock);
    struct emulated *d = device_of(g);
    if (d->lost.code == ERR_NONE)
        d->lost = *why;
    *e = d->lost;
    return -1;
}

/* As on a GPU, the launch itself succeeds; the first call that waits fails, without the name of the
 * kernel. */
static int ready(struct gpu *g, const char *what, struct err *e)
{
    std::lock_guard<std::mutex> guard(state.lock);
    struct emulated *d = device_of(g);
    if (d->failed && d->lost.code == ERR_NONE)
        err_set(&d->lost, ERR_DEVICE, "emulated:%d: %s: a fault that a test asked for; ZSE_DEBUG_SYNC=1 names the kernel", g->device, what);
    if (d->lost.code == ERR_NONE)
        return 0;
    *e = d->lost;
    return -1;
}

static bool has_failed(struct gpu *g)
{
    std::lock_guard<std::mutex> guard(state.lock);
    return device_of(g)->failed || device_of(g)->lost.code != ERR_NONE;
}

/* ---- streams ---- */

static void enqueue(struct gpu *g, enum gpu_stream s, std::function<void()> what)
{
    if (g->capture && s == GPU_COMPUTE) {
        g->graph->nodes.push_back({ g, nullptr, {}, std::move(what) });
        g->n_recorded++;
        return;
    }
    if (g->debug_sync)
        return what();
    std::lock_guard<std::mutex> guard(g->lock);
    g->queue[s].items.push_back(std::move(what));
    g->queue[s].n_queued++;
}

/* Run a stream's queue up to item n. */
static void work_off(struct gpu *g, enum gpu_stream s, uint64_t n)
{
    std::lock_guard<std::recursive_mutex> hold(working);
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
static bool must_fail(const struct gpu *g, const char *name)
{
    std::lock_guard<std::mutex> guard(state.lock);
    return state.fail_at > 0 && state.fail_device == g->device &&
           (!state.fail_kernel[0] || strcmp(state.fail_kernel, name) == 0) && --state.fail_at == 0;
}

static int run_kernel(struct gpu *g, const char *name, const emulated_shape &shape, const std::function<void()> &kernel,
                      struct err *e)
{
    if (has_failed(g) || state.idle)
        return 0;
    struct err why;
    if (must_fail(g, name)) {
        err_set(&why, ERR_DEVICE, "emulated:%d: %s: a fault that a test asked for", g->device, name);
        if (g->debug_sync)
            return lose(g, &why, e);
        std::lock_guard<std::mutex> guard(state.lock);
        device_of(g)->failed = true;
        return 0;
    }
    if (emulated_run(g, name, shape, kernel, &why) == 0)
        return 0;
    if (why.code != ERR_MEMORY)
        return lose(g, &why, e);
    *e = why;
    return -1;
}

int emulate_launch(struct gpu *g, const char *name, const emulated_shape &shape, std::function<void()> kernel,
                   struct err *e)
{
    const dim3 grid = shape.grid;
    const int threads = shape.threads;
    const size_t shared = shape.shared;
    {
        std::lock_guard<std::mutex> guard(state.lock);
        if (device_of(g)->lost.code != ERR_NONE) {
            *e = device_of(g)->lost;
            return -1;
        }
        if (state.watch)
            state.watch(state.watch_user, name, grid.x * grid.y * grid.z, threads, shared);
    }
    if (selected != g->device) {
        struct err why;
        err_set(&why, ERR_DEVICE, "emulated:%d: %s: launched while device %d is selected", g->device, name, selected);
        return lose(g, &why, e);
    }
    const size_t most = shape.together || strstr(name, "hopper") ? EMULATED_SHARED : EMULATED_SHARED_ANY;
    if (threads < 1 || threads > EMULATED_THREADS || shared > most || !grid.x || !grid.y || !grid.z ||
        grid.y > 65535 || grid.z > 65535)
        return err_set(e, ERR_DEVICE, "kernel %s: a grid of %u x %u x %u blocks of %d threads with %zu bytes of shared memory cannot be launched", name, grid.x, grid.y,
                       grid.z, threads, shared);
    if (shape.together && grid.x > (unsigned)emulated_blocks_together(g, threads, shared))
        return err_set(e, ERR_DEVICE, "kernel %s: %u blocks of %d threads with %zu bytes of shared memory cannot run at the same time, but %d", name, grid.x, threads, shared,
                       emulated_blocks_together(g, threads, shared));
    if (g->capture) {
        g->graph->nodes.push_back({ g, name, shape, std::move(kernel) });
        g->n_recorded++;
        return 0;
    }
    if (g->debug_sync)
        return run_kernel(g, name, shape, kernel, e);
    enqueue(g, GPU_COMPUTE, [=] {
        struct err ignored;             /* the device keeps the error */
        run_kernel(g, name, shape, kernel, &ignored);
    });
    return 0;
}

/* ---- the device ---- */

int gpu_count(struct err *e)
{
    (void)e;
    return state.n_devices ? state.n_devices.load() : 1;
}

struct gpu *gpu_open(int device, int debug_sync, struct err *e)
{
    const int n = gpu_count(e);
    if (device < 0 || device >= n) {
        err_set(e, ERR_DEVICE, "emulated:%d: there %s %d emulated device%s, expected 0 to %d", device, n == 1 ? "is" : "are", n,
                n == 1 ? "" : "s", n - 1);
        return nullptr;
    }
    std::lock_guard<std::mutex> guard(state.lock);
    struct emulated *d = &state.device[device];
    if (d->lost.code != ERR_NONE) {
        err_set(e, ERR_DEVICE, "emulated:%d was lost and cannot be used before everything on it is unloaded (%d user%s): %.300s", device, d->n_handles,
                d->n_handles == 1 ? "" : "s", d->lost.msg);
        return nullptr;
    }
    d->n_handles++;
    selected = device;
    struct gpu *g = new struct gpu();
    g->device = device;
    g->debug_sync = debug_sync;
    g->regions.reserve(MAX_REGIONS);
    return g;
}

void gpu_close(struct gpu *g)
{
    if (!g)
        return;
    struct emulated *d = device_of(g);
    for (const memory_region &r : g->regions)
        if (r.map_size) {
            d->taken -= r.pinned ? 0 : taken_by(r.size);
            munmap(r.map, r.map_size);
        }
    delete g;
    std::lock_guard<std::mutex> guard(state.lock);
    if (--d->n_handles == 0) {
        d->lost.code = ERR_NONE;
        d->failed = false;
    }
}

int gpu_use(struct gpu *g, struct err *e)
{
    if (ready(g, "device", e) < 0)
        return -1;
    selected = g->device;
    return 0;
}
void gpu_dependent_launches(struct gpu *, int) {}
void gpu_end_dependence(struct gpu *) {}
int gpu_is_lost(struct gpu *g)
{
    struct err ignored;
    return ready(g, "device", &ignored) < 0;
}
void gpu_warm_up(int) {}

int gpu_info(const struct gpu *g, struct gpu_info *info, struct err *)
{
    const size_t taken = device_of(g)->taken;
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "emulated");
    info->major = 9;
    info->n_sms = EMULATED_SMS;
    info->memory = memory_size(g);
    info->free = info->memory > taken ? info->memory - taken : 0;
    info->l2 = 4 << 10;                 /* small, so that buffers of several times this size are small, too */
    return 0;
}

int gpu_launches_overlap(const struct gpu *) { return 1; }        /* as the code for 9.0 has it */
int gpu_n_sms(const struct gpu *) { return EMULATED_SMS; }
int emulated_blocks_together(const struct gpu *, int threads, size_t shared)
{
    return threads < 1 || threads > EMULATED_THREADS || shared > EMULATED_SHARED ? 0 : EMULATED_SMS;
}
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
    struct emulated *d = device_of(g);
    const size_t n = taken_by(size), before = d->taken.fetch_add(n);
    void *p = nullptr;
    if (before + n > memory_size(g))
        err_set(e, ERR_DEVICE, "emulated:%d: %zu bytes of device memory for %s: out of memory", g->device, size, what);
    else
        p = region_open(g, size, 0, what, e);
    if (!p)
        d->taken -= n;
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
        device_of(g)->taken -= r.pinned ? 0 : taken_by(r.size);
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
    if (ready(g, what, e) < 0)
        return -1;
    if (n)
        enqueue(g, s, [=] { memmove(to, from, n); });
    return 0;
}

int gpu_upload(struct gpu *g, enum gpu_stream s, void *to, const void *from, size_t n, struct err *e)
{
    if (n && in_device(g, to, n, "an upload", e) < 0)
        return -1;
    device_of(g)->uploaded += s == GPU_COPY ? n : 0;
    return move(g, s, to, from, n, "upload", e);
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
int gpu_peer(struct gpu *, struct gpu *, struct err *)
{
    return state.peers != EMULATED_NO_PEERS;
}
int gpu_copy_from(struct gpu *g, enum gpu_stream s, void *to, struct gpu *peer, const void *from, size_t n,
                  struct err *e)
{
    if (n && (in_device(peer, from, n, "a copy", e) < 0 || in_device(g, to, n, "a copy", e) < 0))
        return -1;
    if (state.peers == EMULATED_ZERO_PEERS)
        return gpu_fill(g, s, to, 0, n, e);
    return move(g, s, to, from, n, "copy", e);
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
    if (g->capture && s == GPU_COMPUTE)
        return err_set(e, ERR_DEVICE, "emulated:%d: graph: a stream that is recorded cannot be waited for", g->device);
    work_off(g, s, UINT64_MAX);
    return ready(g, "waiting for the kernels", e);
}

struct gpu_event *gpu_event_open(struct gpu *g, struct err *)
{
    gpu_event *v = new gpu_event();
    v->of = g;
    return v;
}
void gpu_event_close(struct gpu *g, struct gpu_event *v)
{
    work_off(g, v->stream, v->after);   /* run the queue up to the event, which writes v */
    delete v;
}
int gpu_event_record(struct gpu *g, enum gpu_stream s, struct gpu_event *v, struct err *)
{
    v->stream = s;
    v->capture = s == GPU_COMPUTE ? g->capture : 0;
    v->nodes = g->n_recorded;
    if (v->capture)
        return 0;
    const double link = s == GPU_COPY ? state.link.load() : 0;
    const uint64_t sent = link > 0 ? (uint64_t)((double)device_of(g)->uploaded * 1e9 / link) : 0;
    enqueue(g, s, [=] { v->ns = link > 0 ? sent : clock_ns(); });
    std::lock_guard<std::mutex> guard(g->lock);
    v->after = g->queue[s].n_queued;
    return 0;
}
/* Let a stream wait for an event of a recording: it takes part from now on, as on a GPU. */
static int join_capture(struct gpu *g, enum gpu_stream s, struct gpu_event *v, struct err *e)
{
    struct gpu *of = v->of;
    if (s != GPU_COMPUTE || of->capture != v->capture || (g->capture && g->capture != v->capture))
        return err_set(e, ERR_DEVICE, "emulated:%d: graph: work outside of a recording waits for it", g->device);
    if (!g->capture) {
        if (refused(g, EMULATED_GRAPH_JOIN, e) < 0)
            return -1;
        g->capture = of->capture;
        g->graph = of->graph;
        g->n_recorded = g->n_joined = 0;
        g->graph->streams.push_back(g);
    }
    if (g == g->graph->streams[0] && v->nodes > of->n_joined)
        of->n_joined = v->nodes;
    return 0;
}
/* The event of the last record: one that is recorded later does not count. */
int gpu_event_wait(struct gpu *g, enum gpu_stream s, struct gpu_event *v, struct err *e)
{
    if (v->capture)
        return join_capture(g, s, v, e);
    if (g->capture && s == GPU_COMPUTE)
        return err_set(e, ERR_DEVICE, "emulated:%d: graph: a recording waits for work outside of it", g->device);
    const enum gpu_stream of = v->stream;
    const uint64_t after = v->after;
    struct gpu *const owner = v->of;
    if (of != s || owner != g)
        enqueue(g, s, [=] { work_off(owner, of, after); });
    return 0;
}
int gpu_event_sync(struct gpu *g, struct gpu_event *v, struct err *e)
{
    work_off(g, v->stream, v->after);
    return ready(g, "event", e);
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
    static std::atomic<uint64_t> n_captures;
    g->graph = new gpu_graph();
    g->graph->streams.push_back(g);
    g->capture = ++n_captures;
    g->n_recorded = g->n_joined = 0;
    return 0;
}

struct gpu_graph *gpu_graph_end(struct gpu *g, struct err *e)
{
    struct gpu_graph *graph = g->graph;
    int rc = refused(g, EMULATED_GRAPH, e);
    for (struct gpu *x : graph->streams) {
        if (rc == 0 && x != g && x->n_joined < x->n_recorded)
            rc = err_set(e, ERR_DEVICE, "emulated:%d: graph: work of device %d is not waited for", g->device, x->device);
        x->capture = 0;
        x->graph = nullptr;
    }
    if (rc == 0)
        return graph;
    delete graph;
    return nullptr;
}

/* Run the nodes of several devices in their order, when the stream that launches them gets there:
 * the streams of the others have to wait for it and it for them, as on a GPU. */
static void launch_group(struct gpu *g, const std::vector<graph_node> &nodes)
{
    enqueue(g, GPU_COMPUTE, [=] {
        struct err ignored;
        for (const graph_node &n : nodes)
            if (n.name)
                run_kernel(n.g, n.name, n.shape, n.work, &ignored);
            else
                n.work();
    });
}

int gpu_graph_launch(struct gpu *g, struct gpu_graph *graph, struct err *e)
{
    if (refused(g, EMULATED_GRAPH_LAUNCH, e) < 0)
        return -1;
    {
        std::lock_guard<std::mutex> guard(state.lock);
        state.n_graphs++;
        for (int &n : state.n_nodes)
            n = 0;
        for (const graph_node &n : graph->nodes)
            state.n_nodes[n.g->device]++;
    }
    if (graph->streams.size() > 1) {
        launch_group(g, graph->nodes);
        return 0;
    }
    for (const graph_node &n : graph->nodes)
        if (!n.name)
            enqueue(g, GPU_COMPUTE, n.work);
        else if (emulate_launch(g, n.name, n.shape, n.work, e) < 0)
            return -1;
    return 0;
}

void gpu_graph_close(struct gpu *, struct gpu_graph *graph) { delete graph; }

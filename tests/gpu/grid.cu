/* grid.cu - kernels for t-gpu-grid.c, with one fault each, or none. */
#include "gpu/prim/grid.cuh"
#include "gpu/rt/launch.cuh"
#include "tests/gpu/grid.h"

enum { T = GRID_THREADS, PIECES = T / 4 };

DEVICE void arrive(unsigned *arrived)
{
    __syncthreads();                    /* all threads have written */
    if (threadIdx.x < 32)
        grid_arrive(arrived);
}

DEVICE void copy_values(uint32_t *to, const uint32_t *from, int n)
{
    for (int i = threadIdx.x; i < n * PIECES; i += T)
        copy_async(to + 4 * i, from + 4 * i);
    copy_commit();
}

template <enum grid_fault FAULT> __global__ __launch_bounds__(T) void exchange_kernel(struct grid_exchange o)
{
    SHARED(uint32_t, room);
    const int n = gridDim.x, b = blockIdx.x, t = threadIdx.x, n_values = n * T;
    for (int step = 0; step < o.n_steps; step++) {
        const uint32_t *const from = o.x + (step & 1) * n_values;
        uint32_t *const to = o.x + (FAULT == GRID_OVERWRITES ? step & 1 : ~step & 1) * n_values;
        if (FAULT != GRID_UNWRITTEN || b != 1)
            if (FAULT != GRID_EARLY_COPY || step == 0)
                copy_values(room, from, n);
        copy_wait<0>();
        if (FAULT != GRID_NO_BARRIER)
            __syncthreads();
        uint32_t sum = (uint32_t)(step + 1);
        for (int i = 0; i < n; i++)
            sum += (uint32_t)(i + b + 2) * room[i * T + (t + 1) % T];
        if (FAULT != GRID_LATE_WRITE)
            to[b * T + t] = sum;
        if (FAULT == GRID_BEYOND && b == n - 1 && t == 0)
            o.x[2 * n_values + 1] = sum;
        if (FAULT == GRID_NEVER_ARRIVES && b == n - 1 && step == 1)
            return;
        arrive(o.arrived);
        if (FAULT == GRID_LATE_WRITE)
            to[b * T + t] = sum;
        if (FAULT == GRID_EARLY_COPY)
            copy_values(room, to, n);
        if (FAULT != GRID_NO_WAIT)
            grid_wait(o.arrived, (unsigned)(step + 1 - (FAULT == GRID_WAITS_EARLY)));
    }
    if (FAULT == GRID_EARLY_COPY)
        copy_wait<0>();
    if (FAULT == GRID_RESETS && b == 0)
        grid_reset(o.arrived);
    /* the last block has waited after all others: it may reset the counters */
    if (last_block(o.ticket, (unsigned)n, room + n_values)) {
        const uint32_t *const x = o.x + (o.n_steps & 1) * n_values;
        uint32_t sum = 0;
        for (int i = 0; i < n; i++)
            sum += (uint32_t)load_shared_by_blocks(reinterpret_cast<const int32_t *>(x) + i * T + t);
        o.total[t] = sum;
        grid_reset(o.arrived);
    }
}

template <enum grid_fault FAULT>
static int launch_exchange(struct gpu *g, const struct grid_exchange *o, int n_blocks, int together, struct err *e)
{
    const size_t shared = ((size_t)n_blocks * T + 4) * sizeof(uint32_t);
    const auto kernel = exchange_kernel<FAULT>;
    return together ? launch_together(g, "exchange", kernel, n_blocks, T, shared, e, *o)
                    : launch(g, "exchange", kernel, dim3((unsigned)n_blocks), T, shared, e, *o);
}

extern "C" int grid_exchange(struct gpu *g, const struct grid_exchange *o, int n_blocks, int together,
                             enum grid_fault fault, struct err *e)
{
    switch (fault) {
#define FAULT(f) case f: return launch_exchange<f>(g, o, n_blocks, together, e);
    GRID_FAULTS(FAULT)
#undef FAULT
    }
    return -1;
}

template <enum relay_fault FAULT> __global__ __launch_bounds__(T) void relay_kernel(struct grid_relay o)
{
    const int n = gridDim.x, b = blockIdx.x, t = threadIdx.x, before = (b + n - 1) % n;
    float sum = 0;
    for (int step = 0; step < o.n_steps; step++) {
        const float y = (float)(1000 * step + 100 * b + t);
        const bool sends = FAULT != RELAY_NOT_SENT || b != n - 1 || step != 1;
        if (o.published) {
            float4 x[2];
            if (sends)
                grid_publish(o.words + b * T + t, y, ~step & 1);
            grid_collect(x, ~step & 1, [&](int) { return o.words + before * T + t / 4 * 4; });
            const float got = t % 4 == 0 ? x[1].x : t % 4 == 1 ? x[0].y : t % 4 == 2 ? x[1].z : x[0].w;
            /* without the bit of the phase: sums of these numbers would lose it */
            sum += got == (float)(1000 * step + 100 * before + t) ? got : NAN;
        } else {
            if (sends)
                grid_send(o.words + b * T + t, y);
            if (FAULT == RELAY_READ_PLAINLY) {
                sum += o.words[before * T + t];
            } else if (step % 2 == 0) {
                sum += grid_receive(o.words + before * T + t);
            } else {
                float4 x[1];
                grid_receive(x, [&](int) { return o.words + before * T + t / 4 * 4; });
                sum += t % 4 == 0 ? x[0].x : t % 4 == 1 ? x[0].y : t % 4 == 2 ? x[0].z : x[0].w;
                __syncwarp();           /* all lanes have read */
                if (t % 4 == 0)
                    grid_empty(o.words + before * T + t);
            }
        }
        arrive(o.arrived);
        if (FAULT != RELAY_SENT_EARLY)
            grid_wait(o.arrived, (unsigned)step + 1);
    }
    grid_wait(o.arrived, (unsigned)o.n_steps);
    o.sum[b * T + t] = sum;
}

template <enum relay_fault FAULT>
static int launch_relay(struct gpu *g, const struct grid_relay *o, int n_blocks, struct err *e)
{
    return launch_together(g, "relay", relay_kernel<FAULT>, n_blocks, T, 0, e, *o);
}

extern "C" int grid_relay(struct gpu *g, const struct grid_relay *o, int n_blocks, enum relay_fault fault,
                          struct err *e)
{
    switch (fault) {
    case RELAY_RIGHT: return launch_relay<RELAY_RIGHT>(g, o, n_blocks, e);
    case RELAY_NOT_SENT: return launch_relay<RELAY_NOT_SENT>(g, o, n_blocks, e);
    case RELAY_SENT_EARLY: return launch_relay<RELAY_SENT_EARLY>(g, o, n_blocks, e);
    case RELAY_READ_PLAINLY: return launch_relay<RELAY_READ_PLAINLY>(g, o, n_blocks, e);
    }
    return -1;
}

extern "C" int grid_blocks(struct gpu *g, int threads, size_t shared)
{
    return blocks_together(g, exchange_kernel<GRID_RIGHT>, threads, shared);
}

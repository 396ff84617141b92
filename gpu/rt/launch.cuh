/* launch.cuh - launch a kernel: the same line of code on a GPU and in the emulation, since
 * <<<>>> is not C++. */
#ifndef ZSE_GPU_RT_LAUNCH_CUH
#define ZSE_GPU_RT_LAUNCH_CUH

#include "gpu/rt/rt.h"

#ifdef __CUDACC__

struct gpu {
    int device, debug_sync, n_sms, capability;
    int cooperative;                    /* it can run all blocks of a launch at the same time */
    cudaStream_t stream[2];
    /* dependent: a kernel may begin before the one before it has ended (prim.cuh).  follows: the
     * last item of the compute stream is a kernel; kernels wait for the end of anything else */
    int dependent, follows;
};
/* 0 if the device can be used; -1 with the failure that lost it. */
int gpu_ready(struct gpu *g, struct err *e);
/* Turn a CUDA error into a message; 0 if there is none. */
int gpu_check(struct gpu *g, cudaError_t rc, const char *what, struct err *e);

/* Allow blocks of this kernel to have so much shared memory: without this call, 48 KiB. */
template <class... P> static cudaError_t allow_shared(void (*kernel)(P...), size_t shared)
{
    return shared <= 48 * 1024 ? cudaSuccess
                               : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
}

/* A launch with one attribute, or none. */
template <class... P, class... A>
static int launch_as(struct gpu *g, const cudaLaunchAttribute *as, const char *name, void (*kernel)(P...), dim3 grid,
                     int threads, size_t shared, struct err *e, A... args)
{
    if (gpu_ready(g, e) < 0 || gpu_check(g, allow_shared(kernel, shared), name, e) < 0)
        return -1;
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = shared;
    c.stream = g->stream[GPU_COMPUTE];
    if (as) {
        attribute = *as;
        c.attrs = &attribute;
        c.numAttrs = 1;
    }
    cudaError_t rc = cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...);
    g->follows = rc == cudaSuccess;
    if (rc == cudaSuccess && g->debug_sync)         /* the backend captures no graphs then */
        rc = cudaStreamSynchronize(g->stream[GPU_COMPUTE]);
    return gpu_check(g, rc, name, e);
}

template <class... P, class... A>
static int launch(struct gpu *g, const char *name, void (*kernel)(P...), dim3 grid, int threads, size_t shared,
                  struct err *e, A... args)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = g->follows;
    return launch_as(g, g->dependent ? &early : nullptr, name, kernel, grid, threads, shared, e, args...);
}

/* A launch whose blocks all run at the same time, so that they can wait for each other (grid.cuh);
 * at most blocks_together().  It begins after the end of all launches before it, and the next one
 * after its end. */
template <class... P, class... A>
static int launch_together(struct gpu *g, const char *name, void (*kernel)(P...), int blocks, int threads,
                           size_t shared, struct err *e, A... args)
{
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    const int rc = launch_as(g, &together, name, kernel, dim3((unsigned)blocks), threads, shared, e, args...);
    g->follows = 0;
    return rc;
}

/* The most blocks of a launch_together(); 0: the device has no such launches, or a block does not
 * fit. */
template <class... P> static int blocks_together(struct gpu *g, void (*kernel)(P...), int threads, size_t shared)
{
    int n = 0;
    if (!g->cooperative || allow_shared(kernel, shared) != cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, threads, shared) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n * g->n_sms;
}

#else

#include "gpu/rt/emulate.h"

template <class... P, class... A>
static int launch(struct gpu *g, const char *name, void (*kernel)(P...), dim3 grid, int threads, size_t shared,
                  struct err *e, A... args)
{
    return emulate_launch(g, name, { grid, threads, shared, false }, [=] { kernel(static_cast<P>(args)...); }, e);
}
template <class... P, class... A>
static int launch_together(struct gpu *g, const char *name, void (*kernel)(P...), int blocks, int threads,
                           size_t shared, struct err *e, A... args)
{
    return emulate_launch(g, name, { dim3((unsigned)blocks), threads, shared, true },
                          [=] { kernel(static_cast<P>(args)...); }, e);
}
template <class... P> static int blocks_together(struct gpu *g, void (*)(P...), int threads, size_t shared)
{
    return emulated_blocks_together(g, threads, shared);
}

#endif
#endif

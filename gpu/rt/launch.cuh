/* launch.cuh - launch a kernel: the same line of code on a GPU and in the emulation, since
 * <<<>>> is not C++. */
#ifndef ZSE_GPU_RT_LAUNCH_CUH
#define ZSE_GPU_RT_LAUNCH_CUH

#include "gpu/rt/rt.h"

#ifdef __CUDACC__

struct gpu {
    int device, debug_sync, n_sms, capability;
    cudaStream_t stream[2];
    /* dependent: a kernel may begin before the one before it has ended (prim.cuh).  follows: the
     * last item of the compute stream is a kernel; kernels wait for the end of anything else */
    int dependent, follows;
};
/* 0 if the device can be used; -1 with the failure that lost it. */
int gpu_ready(struct gpu *g, struct err *e);
/* Turn a CUDA error into a message; 0 if there is none. */
int gpu_check(struct gpu *g, cudaError_t rc, const char *what, struct err *e);

template <class... P, class... A>
static int launch(struct gpu *g, const char *name, void (*kernel)(P...), dim3 grid, int threads, size_t shared,
                  struct err *e, A... args)
{
    if (gpu_ready(g, e) < 0)
        return -1;
    if (shared > 48 * 1024 && gpu_check(g, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                                (int)shared), name, e) < 0)
        return -1;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = g->follows;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = shared;
    c.stream = g->stream[GPU_COMPUTE];
    c.attrs = &early;
    c.numAttrs = g->dependent ? 1 : 0;
    cudaError_t rc = cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...);
    g->follows = rc == cudaSuccess;
    if (rc == cudaSuccess && g->debug_sync)         /* the backend captures no graphs then */
        rc = cudaStreamSynchronize(g->stream[GPU_COMPUTE]);
    return gpu_check(g, rc, name, e);
}

#else

#include "gpu/rt/emulate.h"

template <class... P, class... A>
static int launch(struct gpu *g, const char *name, void (*kernel)(P...), dim3 grid, int threads, size_t shared,
                  struct err *e, A... args)
{
    return emulate_launch(g, name, grid, threads, shared, [=] { kernel(static_cast<P>(args)...); }, e);
}

#endif
#endif

/* launch.cuh - launch a kernel: the same line of code on a GPU and in the emulation, since
 * <<<>>> is not C++. */
#ifndef ZSE_GPU_RT_LAUNCH_CUH
#define ZSE_GPU_RT_LAUNCH_CUH

#include "gpu/rt/rt.h"

#ifdef __CUDACC__

struct gpu {
    int device, debug_sync, n_sms, capability;
    cudaStream_t stream[2];
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
    kernel<<<grid, threads, shared, g->stream[GPU_COMPUTE]>>>(static_cast<P>(args)...);
    cudaError_t rc = cudaGetLastError();
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

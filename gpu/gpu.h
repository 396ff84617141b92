/* gpu.h - all that the outside sees of the device engine.  Which of three it is depends on the build: CUDA, the same kernels emulated on the processor
 * (for tests), or, without either, stub.c, which says why there is none. */
#ifndef ZSE_GPU_GPU_H
#define ZSE_GPU_GPU_H

#include "libcommon/engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const char gpu_kind[];           /* "cuda", "emulated" or "none" */
extern const struct backend backend_gpu;
/* Devices that can be used; -1 and why if there is none. */
int gpu_count(struct err *e);

#ifdef __cplusplus
}
#endif
#endif

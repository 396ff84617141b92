/* act_map.cuh - describe activations to the copy engine of compute capability 9.0. */
#ifndef ZSE_GPU_KERNELS_ACT_MAP_CUH
#define ZSE_GPU_KERNELS_ACT_MAP_CUH

#include "gpu/prim/hopper.cuh"
#include "gpu/prim/operands.h"
#include "gpu/rt/launch.cuh"

#ifdef __CUDACC__
#include <cudaTypedefs.h>
#endif

/* Make the tensor map of n_rows rows of `width` elements of two bytes, `stride` bytes apart, for
 * tiles of 64 elements x n_tokens rows; elements beyond these read as 0. */
static inline int map_rows(struct gpu *g, tensor_map *to, const void *rows, int width, int n_rows, size_t stride_bytes,
                           int n_tokens, struct err *e)
{
#ifdef __CUDACC__
    static_assert(sizeof *to == sizeof(CUtensorMap) && alignof(tensor_map) >= alignof(CUtensorMap),
                  "a tensor map is 128 bytes");
    const cuuint64_t size[2] = { (cuuint64_t)width, (cuuint64_t)n_rows }, stride[1] = { (cuuint64_t)stride_bytes };
    const cuuint32_t box[2] = { 64, (cuuint32_t)n_tokens }, step[2] = { 1, 1 };
    void *encode = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (gpu_check(g, cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault,
                                                      &found), "cuTensorMapEncodeTiled", e) < 0)
        return -1;
    if (found != cudaDriverEntryPointSuccess)
        return err_set(e, ERR_DEVICE, "the driver has no cuTensorMapEncodeTiled");
    const CUresult rc = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode)(reinterpret_cast<CUtensorMap *>(to),
                                                                                    CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
                                                                                    const_cast<void *>(rows),
                                                                                    size, stride,
                                                              box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                              CU_TENSOR_MAP_SWIZZLE_128B,
                                                              CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ? 0 : err_set(e, ERR_DEVICE,
                                            "cuTensorMapEncodeTiled: error %d for %d x %d activations, %zu bytes apart",
                                            (int)rc, n_rows, width, stride_bytes);
#else
    (void)g;
    const char *why = emulated_tensor_map(to->word, rows, width, n_rows, stride_bytes, n_tokens);
    return why ? err_set(e, ERR_DEVICE, "a map of %d x %d activations: %s", n_rows, width, why) : 0;
#endif
}

/* Make the tensor map of the f16 activations, for tiles of 64 k x n_tokens tokens. */
static inline int map_act(struct gpu *g, tensor_map *to, const gpu_linear *l, int n_tokens, struct err *e)
{
    return map_rows(g, to, l->act, l->w[0].n_steps * 32, l->n_tokens, (size_t)l->act_stride * 2, n_tokens, e);
}

#endif

/* matmul.cu - y = w x for many tokens: prefill, and batches beyond 16.
 *
 * shapes   as matvec.cu; each matrix has a launch of its own
 * tile     a block: 128 rows x 64 or 128 tokens, all k; 4 warps, each 32 rows and all tokens, so
 *          that every code is decoded once a block.  Weights are loaded from global memory into
 *          registers, one step (32 k) ahead; activations are copied through shared memory
 *          (prim/many_tokens.cuh)
 * moves    weights once per 64 or 128 tokens, activations once per 128 rows (both mostly from L2)
 * limit    mma.sync: two thirds of the wgmma peak on Hopper (413 cycles a step there, calculated).
 *          A step of a warp with 128 tokens is 350 instructions (nvcc 13.0, sm_90): 64 mma,
 *          16 LDSM.x4, 16 LDS for the codebook, some 250 for decoding and addresses.  Shared memory
 *          is busy for 384 cycles for the four warps, including the writes of cp.async
 * checked  tests/unit/t-gpu-matmul.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/many_tokens.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 4 };

template <int TYPE, int TOKENS> __global__ __launch_bounds__(WARPS * 32) void matmul_kernel(gpu_linear l)
{
    follow_previous();
    typedef format<TYPE> f;
    constexpr int N8 = TOKENS / 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    SHARED(uint32_t, shared);
    const gpu_mat &m = l.w[0];
    const int tile = blockIdx.x * WARPS + warp, first_token = blockIdx.y * TOKENS,
              n_tokens = min(TOKENS, l.n_tokens - first_token);
    const int has_rows = tile < m.n_tiles;
    const uint8_t *data = m.data + (size_t)(has_rows ? tile : 0) * m.tile_bytes;
    const token_stages<TOKENS, WARPS * 32> stages =
        { reinterpret_cast<uint8_t *>(shared + (f::table ? TABLE_BYTES / 4 : 0)),
          reinterpret_cast<const uint8_t *>(l.act + (size_t)first_token * l.act_stride), 2 * l.act_stride, n_tokens,
          m.n_steps };

    const uint32_t *table = table_fill<TYPE>(shared);

    float c[2][4 * N8] = {};
    multiply_many<TYPE, TOKENS>(c, data, m, stages, table, lane);
    if (!has_rows)
        return;
    finish_tokens<N8, 8>(c, finish_begin<TYPE>(l, l.to[0], data, tile * 32 + 4 * g, m, ACT_UNIT), l, first_token,
                         first_token + n_tokens, t);
}

template <int TYPE, int TOKENS> static int run(struct gpu *g, const gpu_linear *l, struct err *e)
{
    const size_t shared = (format<TYPE>::table ? TABLE_BYTES : 0) + STAGES * STAGE_STEPS * TOKENS * 64;
    const dim3 grid((unsigned)(l->w[0].n_tiles + WARPS - 1) / WARPS, (unsigned)(l->n_tokens + TOKENS - 1) / TOKENS);
    return launch(g, "matmul", matmul_kernel<TYPE, TOKENS>, grid, WARPS * 32, shared, e, *l);
}

template <int TYPE> static int run_type(struct gpu *g, const gpu_linear *l, struct err *e)
{
    return l->n_tokens <= 128 ? run<TYPE, 64>(g, l, e) : run<TYPE, 128>(g, l, e);
}

static int run_one(struct gpu *g, const gpu_linear *l, struct err *e)
{
    switch (l->w[0].type) {
#define FORMAT(type) case type: return run_type<type>(g, l, e);
#define FORMAT_16(type) FORMAT(type)
#include "gpu/prim/each_format.inc"
    default: return err_set(e, ERR_UNSUPPORTED, "matmul: number format %d", l->w[0].type);
    }
}

extern "C" int gpu_matmul(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    if (l->wgmma && gpu_matmul_hopper_takes(g, l))
        return gpu_matmul_hopper(g, l, e);
    gpu_linear one = *l;
    for (int i = 0; i < l->n_mats; i++) {
        one.w[0] = l->w[i];
        one.to[0] = l->to[i];
        if (run_one(g, &one, e) < 0)
            return -1;
    }
    return 0;
}

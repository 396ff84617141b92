/* matmul_fp8.cu - y = w x for many tokens: fp8 weights (E4M3 with an f32 scale for 128 k) times
 * E4M3 activations (one scale a token), as they are, from compute capability 8.9 on.
 *
 * shapes   w in kernel order; activations [n_tokens][GPU_CODE_STRIDE(cols)] in the order of k, as
 *          gpu_act_fp8() makes them
 * tile     a block: 128 rows x 64 tokens, all k; 4 warps, each a tile of 32 rows of the file and
 *          all tokens; weights from global memory into registers, 64 k ahead, which are operands
 *          of mma.m16n8k32 as loaded (prim/fp8_rows.cuh); activations through shared memory
 *          (prim/stages.cuh), 128 k at a time
 * sums     as in matmul_fp8_hopper.cu, which takes over on 9.0: products of 128 k are added by the
 *          tensor cores, and then to f32 sums, times the scale of the row and these 128 k
 * moves    weights once per 64 tokens, activations once per 128 rows (both mostly from L2)
 * limit    mma.sync, which does twice the operations of f16.  A warp takes 487 instructions for
 *          128 k (nvcc 13.0, sm_89), 64 of them mma and 64 that add sums; on 9.0 nvcc makes two
 *          products of f16 of each mma
 * checked  tests/unit/t-gpu-matmul-fp8.c, not run on a GPU */
#include "gpu/kernels/operations.h"
#include "gpu/prim/fp8_rows.cuh"
#include "gpu/prim/stages.cuh"
#include "gpu/rt/launch.cuh"

enum { TOKENS = 64, N8 = TOKENS / 8, WARPS = 4 };
/* A step of a stage is half a group: 64 k. */
static_assert(STAGE_STEPS * 64 == (int)FP8_GROUP, "a stage of activations has the k of a scale");
typedef token_stages<TOKENS, WARPS * 32> act_stages;

/* Two rows of 64 k, for p = 0 and 1. */
typedef uint32_t half_group[2][2][4];
DEVICE void load_half(half_group a, const uint8_t *group, int half, int g, int t)
{
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int s = 0; s < 2; s++)
            fp8_load(a[p][s], group, 2 * half + s, p, g, t);
}

__global__ __launch_bounds__(WARPS * 32, 2) void matmul_fp8_kernel(gpu_linear l)
{
    launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    SHARED(uint8_t, shared);
    const gpu_mat &m = l.w[0];
    const int tile = blockIdx.x * WARPS + warp, first_token = blockIdx.y * TOKENS,
              n_tokens = min(TOKENS + 0, l.n_tokens - first_token), stride = GPU_CODE_STRIDE(m.cols);
    const bool has_rows = tile < m.n_tiles;
    const uint8_t *group = m.data + (size_t)(has_rows ? tile : 0) * m.tile_bytes;
    /* the activations of a last half group may not be there: the half before, which are numbers, is
     * read again, and multiplied by weights of 0 */
    const act_stages stages = { shared, reinterpret_cast<const uint8_t *>(l.code) + (size_t)first_token * stride,
                                stride, n_tokens, stride / 64 };
    half_group next;
    uint2 next_scale[2] = { fp8_scales(group, 0, g), fp8_scales(group, 1, g) };
    load_half(next, group, 0, g, t);
    wait_for_prerequisites();
    for (int i = 0; i < STAGES - 1; i++)
        stages.fetch(i);
    float sum[2][4 * N8] = {};
    for (int stage = 0; stage < m.n_groups; stage++) {
        const uint2 scale[2] = { next_scale[0], next_scale[1] };
        const bool more = stage + 1 < m.n_groups;
        float c[2][4 * N8] = {};
        copy_wait<STAGES - 2>();
        /* this stage has arrived for all threads; the previous one has been read */
        __syncthreads();
        stages.fetch(stage + STAGES - 1);
#pragma unroll
        for (int half = 0; half < STAGE_STEPS; half++) {
            half_group a;
            memcpy(a, next, sizeof a);
            if (half == 0) {
                load_half(next, group, 1, g, t);
            } else if (more) {
                group += FP8_GROUP_BYTES;
                next_scale[0] = fp8_scales(group, 0, g);
                next_scale[1] = fp8_scales(group, 1, g);
                load_half(next, group, 0, g, t);
            }
#pragma unroll
            for (int i = 0; i < N8; i++) {
                uint32_t x[4];
                stages.load(x, stage, half, i, lane);
#pragma unroll
                for (int s = 0; s < 2; s++)
#pragma unroll
                    for (int p = 0; p < 2; p++)
                        mma_e4m3(c[p] + 4 * i, a[p][s][0], a[p][s][1], a[p][s][2], a[p][s][3], x[2 * s], x[2 * s + 1]);
            }
        }
#pragma unroll
        for (int p = 0; p < 2; p++)
#pragma unroll
            for (int i = 0; i < 4 * N8; i++)
                sum[p][i] = fmaf(float_of(i / 2 % 2 ? scale[p].y : scale[p].x), c[p][i], sum[p][i]);
    }
    copy_wait<0>();
    if (!has_rows)
        return;
#pragma unroll
    for (int p = 0; p < 2; p++)
        fp8_finish(sum[p], l, tile * TILE_OF_ROWS + 16 * p + 2 * g, first_token, t);
}

extern "C" int gpu_matmul_fp8_takes(const struct gpu *g, const struct gpu_mat *w, int n_tokens)
{
    return gpu_capability(g) >= GPU_FP8_CAPABILITY && w->type == QT_FP8 && n_tokens > GPU_SPLIT_TOKENS;
}

extern "C" int gpu_matmul_fp8(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    const gpu_mat *m = &l->w[0];
    if (!gpu_matmul_fp8_takes(g, m, l->n_tokens))
        return err_set(e, ERR_UNSUPPORTED, "matmul_fp8: number format %d, %d tokens", m->type, l->n_tokens);
    if (l->wgmma && gpu_capability(g) == 90)
        return gpu_matmul_fp8_hopper(g, l, e);
    return launch(g, "matmul_fp8", matmul_fp8_kernel, dim3((unsigned)(m->n_tiles + WARPS - 1) / WARPS,
                                                           (unsigned)(l->n_tokens + TOKENS - 1) / TOKENS),
                  WARPS * 32, (size_t)STAGES * act_stages::BYTES, e, *l);
}

/* matmul_fp8_hopper.cu - y = w x for many tokens on compute capability 9.0, by wgmma: fp8 weights
 * (E4M3 with an f32 scale for 128 k) times E4M3 activations (one scale a token), as they are.
 *
 * shapes   w in kernel order; activations [n_tokens][GPU_CODE_STRIDE(cols)] in the order of k, as
 *          gpu_act_fp8() makes them
 * tile     a block: 128 rows x 128 tokens, all k, one tile after the other.  Each warp has a tile
 *          of 32 rows of the file, of which warpgroup p takes half (prim/fp8_rows.cuh), as rows of
 *          wgmma m64n64k32, for one half of the tokens after the other.  Of a line of a tile (4 k
 *          of 32 rows) the word of a row is what a register of the operand A holds: nothing is
 *          decoded.  Weights come from global memory into registers, 128 k ahead.  Activations are
 *          the operand B: one more warp makes the copy engine load 128 k x 128 tokens at a time,
 *          up to twelve stages ahead of the slower warpgroup and two of the other one, which is ten
 *          stages ahead, so that they do not reach the end of a tile at the same time
 * sums     the four products of 128 k are added by the tensor cores, whose sums have fewer bits
 *          than f32, and then to f32 sums, times the scale of the row and these 128 k.  While those
 *          of one half of the tokens are added, products of the other one run.  After two stages
 *          none is left: ptxas 13.0 serialises products that still run where a loop begins again
 *
 * Calculated, not measured, on one multiprocessor, for 128 k of both warpgroups.  The products take
 * 512 cycles (4096 fma a cycle).
 * shared   256 for B (each m64n64k32 reads 2 KB, 128 bytes a cycle), 128 to write B, 128 for the
 *          weights on their way through L1: 100 %, which is the limit beside the tensor cores.  A
 *          tile of 256 rows would write B half as often, but its sums need twice the registers.
 *          Twelve stages take 194 of 196 KB, a size of shared memory that leaves 60 KB to L1
 * issue    a warp has 148 instructions for 128 k (nvcc 13.0), 64 of which add products; two warps a
 *          scheduler: 296 of 512 cycles.  A warpgroup alone has products for 512 cycles of two
 *          stages, and some 130 cycles between the last of them and the next: 320 a stage instead
 *          of 256
 * L2       32 KB: 64 bytes a cycle, as much as a multiprocessor gets
 * ends     4096 k take 16,400 cycles, and the sums of a warpgroup 2,000 to 4,000 to be stored, in
 *          which the other one alone multiplies 6 to 12 stages, of the 8 to 16 of both: so the two
 *          ends of a tile cost 1,200 cycles (7 %), and 3,000 at the same time.  The distance itself
 *          costs 640 cycles when a block begins and when it ends: none is kept for a single tile
 * checked  tests/unit/t-gpu-matmul-fp8.c */
#include "gpu/kernels/act_map.cuh"
#include "gpu/kernels/operations.h"
#include "gpu/prim/fp8_rows.cuh"
#include "gpu/prim/tile_order.cuh"

enum {
    TOKENS = 128, GROUP = FP8_GROUP /* k of a stage */, STEPS = GROUP / 32, STAGE_BYTES = TOKENS * GROUP,
    STAGES = 12, LEAD = 10 /* stages that the first warpgroup is ahead */,
    WARPGROUPS = 2, TILES = 4 /* of the file */, CONSUMERS = WARPGROUPS * 128,
    THREADS = CONSUMERS + 128 /* the producer is a warpgroup, because only that can release registers */,
    ALIGN = 1024,               /* alignment of a stage, at which the pattern of the swizzle repeats */
    SHARED_BYTES = ALIGN + STAGES * (STAGE_BYTES + (1 + WARPGROUPS) * 8),
};
static_assert((int)LEAD < STAGES, "the first warpgroup can be LEAD stages ahead, and start to multiply the next one");

/* The shared memory of a block. */
struct stages {
    uint8_t *data;                      /* [STAGES][TOKENS][GROUP], swizzled */
    /* [STAGES]: the bytes have arrived; [WARPGROUPS][STAGES]: a group's warps have read them */
    uint64_t *full, *empty;
};

/* The tiles of a launch. */
__host__ __device__ constexpr work work_of(const gpu_linear &l)
{
    return { (l.w[0].n_tiles + TILES - 1) / TILES, (l.n_tokens + TOKENS - 1) / TOKENS };
}

/* One thread makes the copy engine fill stage after stage. */
DEVICE void produce(const gpu_linear &l, const tensor_map &act, const stages &s)
{
    const work w = work_of(l);
    unsigned n = 0;
    for (int i = blockIdx.x; i < w.n_rows * w.n_tokens; i += gridDim.x) {
        const int token = tile_at(w, i).token * TOKENS;
        for (int group = 0; group < l.w[0].n_groups; group++, n++) {
            const unsigned slot = n % STAGES, round = n / STAGES;
            for (int of = 0; of < WARPGROUPS; of++)     /* returns at once in the first round */
                barrier_wait(&s.empty[of * STAGES + slot], (int)(round & 1) ^ 1);
            barrier_expect(&s.full[slot], STAGE_BYTES);
            tensor_load(s.data + slot * STAGE_BYTES, act, group * (GROUP / 2), token, &s.full[slot]);
        }
    }
}

/* The weights of a lane: two rows of 128 k, and their scales. */
struct group_of_rows { uint32_t a[STEPS][4]; uint2 scale; };
DEVICE void load_group(group_of_rows &w, const uint8_t *group, int p, int g, int t)
{
    w.scale = fp8_scales(group, p, g);
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        fp8_load(w.a[s], group, s, p, g, t);
}

DEVICE void consume(const gpu_linear &l, const stages &s)
{
    const gpu_mat &m = l.w[0];
    const work w = work_of(l);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, n_work = w.n_rows * w.n_tokens;
    /* a shuffle tells ptxas that the warp has one value */
    const int p = __shfl_sync(FULL_WARP, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4;
    const uint32_t base = shared_address(s.data);
    uint64_t *const empty = s.empty + p * STAGES;
    /* A warp's tile of the file; beyond the last one, the first is read instead, and not stored. */
    const auto data_of = [&](int i) {
        const int tile = tile_at(w, i).row * TILES + warp;
        return m.data + (size_t)(tile < m.n_tiles ? tile : 0) * m.tile_bytes;
    };
    float c[2][32], sum[64];            /* of the first half of the tokens and of the second one */
    group_of_rows even, odd;            /* weights of the next two stages of a tile */
    unsigned n = 0;                     /* number of stages read so far */
    const uint8_t *data = data_of(blockIdx.x);
    const int second = m.n_groups > 1 ? FP8_GROUP_BYTES : 0;        /* of a tile, if there is one */
    load_group(even, data, p, g, t);
    load_group(odd, data + second, p, g, t);
    wait_for_prerequisites();
    /* Begin to multiply half of the tokens of stage n. */
    const auto multiply = [&](int half, const group_of_rows &now, unsigned n) {
        const uint64_t b = wgmma_tile(base + n % STAGES * STAGE_BYTES + half * (STAGE_BYTES / 2));
        if (half == 0) {
            barrier_wait(&s.full[n % STAGES], (int)(n / STAGES & 1));
            __syncwarp();
        }
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            wgmma_e4m3(c[half], now.a[k], b + (uint64_t)(2 * k), k > 0);
        wgmma_commit();
    };
    const auto add = [&](int half, const group_of_rows &now) {
        const float scale[2] = { float_of(now.scale.x), float_of(now.scale.y) };
#pragma unroll
        for (int k = 0; k < 32; k++)
            sum[32 * half + k] = fmaf(scale[k / 2 % 2], c[half][k], sum[32 * half + k]);
    };
    /* Both halves of stage n are multiplied.  Add the second one, and load the weights at `next` in
     * place of those of the stage. */
    const auto end_stage = [&](group_of_rows &now, const uint8_t *next) {
        if (lane == 0)
            barrier_arrive(&empty[n % STAGES]);
        n++;
        add(1, now);
        load_group(now, next, p, g, t);
    };
    for (int i = blockIdx.x; i < n_work; i += gridDim.x) {
        /* the weights of the next tile; without one, something is loaded and not used */
        const uint8_t *const after = i + (int)gridDim.x < n_work ? data_of(i + (int)gridDim.x) : data_of(i);
#pragma unroll
        for (int k = 0; k < 64; k++)
            sum[k] = 0;
        /* Before a tile that is not the last one, the second warpgroup waits until the first one
         * has read LEAD stages of it, or all, as in matmul_hopper.cu. */
        if (p == 1 && i + (int)gridDim.x < n_work) {
            const unsigned last = n + (unsigned)min(LEAD + 0, m.n_groups) - 1;
            barrier_wait(&s.empty[last % STAGES], (int)(last / STAGES & 1));
        }
        int left = m.n_groups;
#pragma unroll 1
        for (; left > 1; left -= 2, data += 2 * FP8_GROUP_BYTES) {
            multiply(0, even, n);
            multiply(1, even, n);
            wgmma_wait<1>();
            add(0, even);
            multiply(0, odd, n + 1);
            wgmma_wait<1>();
            end_stage(even, left > 2 ? data + 2 * FP8_GROUP_BYTES : after);
            multiply(1, odd, n);
            wgmma_wait<1>();
            add(0, odd);
            wgmma_wait<0>();
            end_stage(odd, left > 3 ? data + 3 * FP8_GROUP_BYTES : after + second);
        }
        if (left) {
            multiply(0, even, n);
            multiply(1, even, n);
            wgmma_wait<1>();
            add(0, even);
            wgmma_wait<0>();
            end_stage(even, after);
        }
        data = after;
        const tile_of_work at = tile_at(w, i);
        const int tile = at.row * TILES + warp;
        if (tile < m.n_tiles)
            fp8_finish(sum, l, tile * TILE_OF_ROWS + 16 * p + 2 * g, at.token * TOKENS, t);
    }
}

__global__ __launch_bounds__(THREADS, 1) void matmul_fp8_hopper_kernel(gpu_linear l,
                                                                       const __grid_constant__ tensor_map act)
{
    launch_dependents();
    SHARED(uint8_t, shared);
    stages s;
    s.data = shared + (ALIGN - shared_address(shared) % ALIGN) % ALIGN;
    s.full = reinterpret_cast<uint64_t *>(s.data + STAGES * STAGE_BYTES);
    s.empty = s.full + STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.full[i], 1);
            for (int of = 0; of < WARPGROUPS; of++)
                barrier_init(&s.empty[of * STAGES + i], CONSUMERS / 32 / WARPGROUPS);
        }
        barrier_fence();
    }
    __syncthreads();
    if (threadIdx.x < CONSUMERS) {
        more_registers<240>();
        consume(l, s);
    } else {
        less_registers<24>();
        wait_for_prerequisites();
        if (threadIdx.x == CONSUMERS)
            produce(l, act, s);
    }
}

extern "C" int gpu_matmul_fp8_hopper(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    tensor_map act;
    const gpu_mat *m = &l->w[0];
    const size_t stride = GPU_CODE_STRIDE(m->cols);
    const work w = work_of(*l);
    const int n_sms = gpu_n_sms(g), tiles = w.n_rows * w.n_tokens;
    if (gpu_capability(g) != 90 || m->type != QT_FP8)
        return err_set(e, ERR_UNSUPPORTED, "matmul_fp8_hopper: number format %d", m->type);
    if (map_rows(g, &act, l->code, (int)(stride / 2), l->n_tokens, stride, TOKENS, e) < 0)
        return -1;
    return launch(g, "matmul_fp8_hopper", matmul_fp8_hopper_kernel, dim3((unsigned)(tiles < n_sms ? tiles : n_sms)),
                  THREADS, SHARED_BYTES, e, *l, act);
}

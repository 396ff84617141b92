/* matmul_fp8_hopper.cu - y = w x for many tokens on compute capability 9.0, by wgmma: fp8 weights
 * (E4M3 with an f32 scale for 128 k) times E4M3 activations (one scale a token), as they are.
 *
 * shapes   w in kernel order; activations [n_tokens][GPU_CODE_STRIDE(cols)] in the order of k, as
 *          gpu_act_fp8() makes them
 * tile     a block: 128 rows x 128 tokens, all k, one tile after the other.  Each warp has a tile
 *          of 32 rows of the file, of which a warpgroup takes half: rows 4g + 2p and 4g + 2p + 1
 *          for warpgroup p, as rows g and g + 8 of wgmma m64n128k32.  Of a line of a tile (4 k of
 *          32 rows) the word of a row is what a register of the operand A holds: nothing is
 *          decoded.
 *          Weights come from global memory into registers, 128 k ahead.  Activations are the
 *          operand B: one more warp makes the copy engine load 128 k x 128 tokens at a time, six
 *          stages ahead
 * sums     the four products of 128 k are added by the tensor cores, whose sums have fewer bits
 *          than f32, and then to f32 sums, times the scale of the row and these 128 k
 *
 * Calculated, not measured, on one multiprocessor, for 128 k of both warpgroups.  The products take
 * 512 cycles (4096 fma a cycle).
 * shared   256 for B (each m64n128k32 reads 4 KB, 128 bytes a cycle), 128 to write B, 128 for the
 *          weights on their way through L1: 100 %, which is the limit beside the tensor cores.  A
 *          tile of 256 rows would write B half as often, but its sums need twice the registers
 * issue    a warp has 137 instructions for 128 k (nvcc 13.0), 64 of which add products; two warps a
 *          scheduler: 274 of 512 cycles
 * L2       32 KB: 64 bytes a cycle, as much as a multiprocessor gets
 * ends     4096 k take 16,400 cycles.  Its sums are stored while the other warpgroup multiplies, up
 *          to six stages (3,000 cycles) ahead
 * checked  tests/unit/t-gpu-matmul-fp8.c */
#include "gpu/kernels/act_map.cuh"
#include "gpu/kernels/operations.h"
#include "gpu/prim/weights.cuh"

enum {
    TOKENS = 128, GROUP = 128 /* k of a stage and of a scale */, STEPS = GROUP / 32, STAGE_BYTES = TOKENS * GROUP,
    STAGES = 6, WARPGROUPS = 2, TILES = 4 /* of the file */, CONSUMERS = WARPGROUPS * 128,
    THREADS = CONSUMERS + 128 /* the producer is a warpgroup, because only that can release registers */,
    ALIGN = 1024,               /* alignment of a stage, at which the pattern of the swizzle repeats */
    SHARED_BYTES = ALIGN + STAGES * (STAGE_BYTES + 2 * 8),
    STEP_BYTES = 32 * 32, GROUP_BYTES = 32 * 4 + STEPS * STEP_BYTES     /* of a tile: scales and codes */
};

/* The shared memory of a block. */
struct stages {
    uint8_t *data;                      /* [STAGES][TOKENS][GROUP], swizzled */
    /* [STAGES]: the bytes have arrived; all consumer warps have read them */
    uint64_t *full, *empty;
};

/* Block tile i: all tokens of a tile of rows come before the next rows, so that weights come from
 * memory once. */
struct work { int n_tokens, n; };
DEVICE work work_of(const gpu_linear &l)
{
    const int tokens = (l.n_tokens + TOKENS - 1) / TOKENS;
    return { tokens, (l.w[0].n_tiles + TILES - 1) / TILES * tokens };
}

/* One thread makes the copy engine fill stage after stage. */
DEVICE void produce(const gpu_linear &l, const tensor_map &act, const stages &s)
{
    const work w = work_of(l);
    unsigned n = 0;
    for (int i = blockIdx.x; i < w.n; i += gridDim.x)
        for (int group = 0; group < l.w[0].n_groups; group++, n++) {
            const unsigned slot = n % STAGES, round = n / STAGES;
            barrier_wait(&s.empty[slot], (int)(round & 1) ^ 1);         /* returns at once in the first round */
            barrier_expect(&s.full[slot], STAGE_BYTES);
            tensor_load(s.data + slot * STAGE_BYTES, act, group * (GROUP / 2), i % w.n_tokens * TOKENS, &s.full[slot]);
        }
}

/* The weights of a lane: two rows of 128 k, and their scales. */
struct group_of_rows { uint32_t a[STEPS][4]; uint2 scale; };
DEVICE void load_group(group_of_rows &w, const uint8_t *group, int p, int g, int t)
{
    w.scale = load8(group + 16 * g + 8 * p);
    const uint8_t *line = group + 128 + t * 128 + 16 * g + 8 * p;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const uint2 low = load_stream8(line + s * STEP_BYTES), high = load_stream8(line + s * STEP_BYTES + 512);
        w.a[s][0] = low.x, w.a[s][1] = low.y, w.a[s][2] = high.x, w.a[s][3] = high.y;
    }
}

/* Store a lane's sums of rows `row` and row + 1, whose columns are tokens first + 8i + 2t + k.  As
 * in finish_wide(), nothing is added as -0. */
DEVICE void finish(const float (&y)[64], const gpu_linear &l, int row, int first, int t)
{
    enum { TOGETHER = 8 };              /* old values that are loaded before any is stored */
    const gpu_output &to = l.to[0];
    const int n_rows = min(2, l.w[0].rows - row), n = l.n_tokens - first - 2 * t;
    const bool add = l.finish == GPU_ADD,
               wide = n_rows == 2 && to.ldo % 2 == 0 && (reinterpret_cast<uintptr_t>(to.out) & 7) == 0;
    const float factor = l.finish == GPU_STORE ? 1 : l.scale, *const scales = l.code_scale + first + 2 * t;
    const float bias[2] = { to.bias && n_rows > 0 ? to.bias[row] : -0.0f,
                            to.bias && n_rows > 1 ? to.bias[row + 1] : -0.0f };
    float *const out = to.out + (size_t)(first + 2 * t) * to.ldo + row;
#pragma unroll
    for (int i = 0; i < 32; i += TOGETHER) {
        float2 v[TOGETHER];
        float scale[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int token = (i + j) / 2 * 8 + j % 2;
            const float *at = out + (size_t)token * to.ldo;
            v[j] = make_float2(-0.0f, -0.0f);
            scale[j] = token < n ? scales[token] : 0;
            if (add && token < n && wide)
                v[j] = *reinterpret_cast<const float2 *>(at);
            else if (add && token < n && n_rows > 0)
                v[j] = make_float2(at[0], n_rows > 1 ? at[1] : 0);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int token = (i + j) / 2 * 8 + j % 2, k = (i + j) / 2 * 4 + j % 2;
            float *at = out + (size_t)token * to.ldo;
            v[j].x = fmaf(factor, y[k] * scale[j] + bias[0], v[j].x);
            v[j].y = fmaf(factor, y[k + 2] * scale[j] + bias[1], v[j].y);
            if (token < n && wide)
                *reinterpret_cast<float2 *>(at) = v[j];
            else if (token < n && n_rows > 0)
                at[0] = v[j].x;
            if (token < n && !wide && n_rows > 1)
                at[1] = v[j].y;
        }
    }
    if (add || l.limit <= 0)
        return;
#pragma unroll 1
    for (int token = 0; token < min(TOKENS + 0, n); token += token & 1 ? 7 : 1)
#pragma unroll 1
        for (int r = 0; r < n_rows; r++)
            out[(size_t)token * to.ldo + r] = limited(l, out[(size_t)token * to.ldo + r]);
}

DEVICE void consume(const gpu_linear &l, const stages &s)
{
    const gpu_mat &m = l.w[0];
    const work w = work_of(l);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, p = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    const uint32_t base = shared_address(s.data);
    /* A warp's tile of the file; beyond the last one, the first is read instead, and not stored. */
    const auto tile_of = [&](int i) { return i / w.n_tokens * TILES + warp; };
    const auto data_of = [&](int i) {
        return m.data + (size_t)(tile_of(i) < m.n_tiles ? tile_of(i) : 0) * m.tile_bytes;
    };
    float c[64], sum[64];
    group_of_rows now, next;
    unsigned n = 0;                     /* number of stages read so far */
    load_group(next, data_of(blockIdx.x), p, g, t);
    wait_for_prerequisites();
    for (int i = blockIdx.x; i < w.n; i += gridDim.x) {
        /* the group after the last one is the first of the next tile; there may be none */
        const int after = i + (int)gridDim.x;
        const uint8_t *data = data_of(i), *const next_tile = after < w.n ? data_of(after) : data;
#pragma unroll
        for (int k = 0; k < 64; k++)
            sum[k] = 0;
        for (int group = 0; group < m.n_groups; group++, n++) {
            const uint64_t b = wgmma_tile(base + n % STAGES * STAGE_BYTES);
            now = next;
            barrier_wait(&s.full[n % STAGES], (int)(n / STAGES & 1));
            __syncwarp();
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                wgmma_e4m3(c, now.a[k], b + (uint64_t)(2 * k), k > 0);
            wgmma_commit();
            data = group + 1 < m.n_groups ? data + GROUP_BYTES : next_tile;
            load_group(next, data, p, g, t);
            wgmma_wait<0>();
            if (lane == 0)
                barrier_arrive(&s.empty[n % STAGES]);
            const float scale[2] = { float_of(now.scale.x), float_of(now.scale.y) };
#pragma unroll
            for (int k = 0; k < 64; k++)
                sum[k] = fmaf(scale[k / 2 % 2], c[k], sum[k]);
        }
        if (tile_of(i) < m.n_tiles)
            finish(sum, l, tile_of(i) * TILE_OF_ROWS + 4 * g + 2 * p, i % w.n_tokens * TOKENS, t);
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
            barrier_init(&s.empty[i], CONSUMERS / 32);
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

extern "C" int gpu_matmul_fp8_takes(const struct gpu *g, const struct gpu_mat *w, int n_tokens)
{
    return gpu_capability(g) == 90 && w->type == QT_FP8 && n_tokens > GPU_SPLIT_TOKENS;
}

extern "C" int gpu_matmul_fp8(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    tensor_map act;
    const gpu_mat *m = &l->w[0];
    const size_t stride = GPU_CODE_STRIDE(m->cols);
    const int n_sms = gpu_n_sms(g), tiles = (m->n_tiles + TILES - 1) / TILES * ((l->n_tokens + TOKENS - 1) / TOKENS);
    if (!gpu_matmul_fp8_takes(g, m, l->n_tokens))
        return err_set(e, ERR_UNSUPPORTED, "matmul_fp8: number format %d, %d tokens", m->type, l->n_tokens);
    if (map_rows(g, &act, l->code, (int)(stride / 2), l->n_tokens, stride, TOKENS, e) < 0)
        return -1;
    return launch(g, "matmul_fp8_hopper", matmul_fp8_hopper_kernel, dim3((unsigned)(tiles < n_sms ? tiles : n_sms)),
                  THREADS, SHARED_BYTES, e, *l, act);
}

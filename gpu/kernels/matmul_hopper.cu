/* matmul_hopper.cu - y = w x for many tokens on compute capability 9.0, by wgmma: the twin of
 * matmul.cu, with the same sums in the same order; and gate and up together with their activation.
 *
 * shapes   as matmul.cu; the formats of EACH_TAKEN below
 * tile     a block: 256 rows (2 warpgroups; 1 where rounds of half as many rows end sooner,
 *          gpu_hopper_groups()) x 128 tokens, all k, one tile after the other.  A warpgroup
 *          takes 128 rows as two wgmma m64n128k16: warp w has the 32 rows of one tile of the file,
 *          and the 4 rows of a lane are rows g and g + 8 of the first product and of the second, as
 *          in matmul.cu.  Weights come from global memory into registers, two steps (32 k) ahead,
 *          and are decoded there into the operand A; a step is decoded while the products of the
 *          previous step run.  Activations are the operand B: one more warp makes the copy engine
 *          load 64 k x 128 tokens at a time, up to ten stages ahead of the slower warpgroup and
 *          two of the other one; barriers in shared memory count the bytes that have arrived and
 *          the warps of a warpgroup that have read a stage.  The second warpgroup begins a tile
 *          when the first one has read eight stages of it, or all, so that they do not reach the
 *          end of a tile at the same time
 * gate up  two warps of a warpgroup have 64 rows of gate, the others the same rows of up.  In the
 *          end they exchange half of their sums through shared memory
 *
 * Calculated, not measured, for 256 rows x 128 tokens of nl4 on one multiprocessor.  The unit is
 * cycles for 32 k; the products take 512 of them on the tensor cores (2048 fma a cycle):
 * tensor   512
 * shared   256 for B (each m64n128k16 reads 4 KB, 128 bytes a cycle), 64 to write B, 40 for the
 *          weights on their way through L1: 70 %.  A codebook in shared memory, as
 *          matmul.cu has it, would add 128: so the values of nl4 are chosen by prmt in registers
 * issue    counted in the machine code of nvcc 13.0: a warp has 320 instructions for 64 k, so the
 *          two warps of a scheduler take 320 issue slots for 32 k: 63 %.  Some 165 of them use the
 *          integer pipe, which accepts one every other cycle: 330 cycles, 64 %.  No spills; ptxas
 *          serialises no wgmma.  Of blocks of one warpgroup a scheduler has one warp, whose 160
 *          instructions must end within the 320 cycles that its 32 k of 128 rows take
 * L2       8.7 KB of weights and 16 KB of activations for 64 k: 24 bytes a cycle, 17 at the aimed
 *          rate; the usual f16 tiles (128 x 256) take 48
 * ends     at the end of a tile of 4096 k (65,500 cycles) a warpgroup stores 64 KB of results:
 *          2,000 to 4,000 cycles without products.  Of gate and up it stores a quarter of that, but
 *          has 44 instructions for an activation (counted in the machine code): 5,600 cycles for a
 *          warp that issues every other cycle, and 500 to exchange 32 KB of sums.  Meanwhile the
 *          other warpgroup has the tensor cores alone, and multiplies its last eight stages in
 *          5,120 cycles at the aimed rate; then the first one begins the next tile as many stages
 *          earlier.  So ends of gate and up cost 1,000 cycles of a tile (2 %), others only those of
 *          the last tile
 * limit    tensor cores.  Aim: 0.70 of their peak at 4096 tokens.  The last wave of 512 tiles on
 *          132 multiprocessors costs 3 %; matrices that read the same activations share it
 * checked  tests/unit/t-gpu-matmul.c, emulated bit for bit against matmul.cu */
#include "gpu/kernels/act_map.cuh"
#include "gpu/kernels/operations.h"
#include "gpu/prim/hopper.cuh"
#include "gpu/prim/tile_order.cuh"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum {
    TOKENS = GPU_HOPPER_TOKENS, STAGE_STEPS = 2, STAGE_BYTES = TOKENS * STAGE_STEPS * 64, STAGES = GPU_HOPPER_STAGES,
    LEAD = GPU_HOPPER_LEAD,     /* the number of stages that the first of two warpgroups is ahead */
    ALIGN = 1024,               /* alignment of a stage, at which the pattern of the swizzle repeats */
    HALF = TOKENS / 4,          /* half of the sums of a lane and a product */
};
static_assert((int)GPU_HOPPER_SHARED == ALIGN + STAGES * (STAGE_BYTES + 3 * 8), "stages, and their barriers");
static_assert((int)LEAD < STAGES, "the first warpgroup can be LEAD stages ahead, and start to multiply the next one");
static_assert((int)GPU_HOPPER_EXCHANGED == 128 * 2 * HALF * (int)sizeof(float), "two products of a lane");

/* nl4's values + 128, by code. */
enum : uint32_t { NL4_0 = 0x45341f01, NL4_4 = 0x786d6153, NL4_8 = 0xa2978c82, NL4_12 = 0xefd1beaf };

/* The 8 values of a row as decode_row returns them, times 1/16.  w: the codes; scale: 1/16 of the
 * group's scale, twice as f16; minus: -1152 times that.  The bytes are values + 128, and with the
 * high byte 0x64 each is the f16 of 1024 + 128 + value. */
DEVICE void decode_nl4(uint32_t v[4], uint32_t w, uint32_t scale, uint32_t minus)
{
    const uint32_t low = w & 0x77777777u, up = w << 4;
#pragma unroll
    /* codes of k 2i, 2i + 4, 2i + 1, 2i + 5; mask: bytes of ones for codes above 7 */
    for (int i = 0; i < 2; i++) {
        const uint32_t at = i ? low >> 16 : low, mask = prmt(up, w, i ? 0xfbea : 0xd9c8);
        const uint32_t bytes = (prmt(NL4_0, NL4_4, at) & ~mask) | (prmt(NL4_8, NL4_12, at) & mask);
        v[2 * i] = half_fma(prmt(bytes, 0x64646464u, 0x4140), scale, minus);
        v[2 * i + 1] = half_fma(prmt(bytes, 0x64646464u, 0x4342), scale, minus);
    }
}

/* The factor that decoded weights still need: 16 after decode_nl4. */
template <int TYPE> constexpr float UNIT = TYPE == QT_NL4 ? 16 : 1;

/* Operands of a step: [product][k half]. */
typedef uint32_t operands[2][2][4];

template <int TYPE> DEVICE void decode(operands a, const raw_step<TYPE> &raw, int t)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t v[4];
        if constexpr (TYPE == QT_NL4) {
            /* s / 16 of the int8 scale s: (1024 + 128 + s) / 16 - 72, exactly */
            const uint32_t s = half_fma(prmt(raw.scale.x ^ 0x80808080u, 0x64646464u,
                                                (uint32_t)(i | 4 << 4 | i << 8 | 4 << 12)), 0x2c002c00u, 0xd480d480u);
            decode_nl4(v, word_of(raw.code[0], i), s, half_mul(s, 0xe480e480u));
        } else {
            decode_row<TYPE>(v, raw, i, t, no_table());
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            a[i / 2][k / 2][k % 2 * 2 + i % 2] = v[k];
    }
}

/* The shared memory of a block. */
struct stages {
    uint8_t *data;                      /* [STAGES][TOKENS][128 bytes], swizzled */
    /* [STAGES]: the bytes have arrived; [GROUPS][STAGES]: the warps of a group have read them */
    uint64_t *full, *empty;
    float4 *room;                       /* [warp][2 * HALF / 4][lane], of gate and up: sums that are exchanged */
};

/* The number of tiles of rows of a matrix. */
template <int GROUPS> __host__ __device__ constexpr int tiles_of(const gpu_mat &m)
{
    return (m.n_tiles + 4 * GROUPS - 1) / (4 * GROUPS);
}

/* The tiles of a launch; one of gate and up has half as many rows of each. */
template <int GROUPS> __host__ __device__ constexpr work work_of(const gpu_linear &l)
{
    work w = { (l.w[0].n_tiles + 2 * GROUPS - 1) / (2 * GROUPS), (l.n_tokens + TOKENS - 1) / TOKENS };
    if (l.finish == GPU_MLP)
        return w;
    w.n_rows = 0;
    for (int i = 0; i < GPU_MAX_MATS; i++)
        w.n_rows += i < l.n_mats ? tiles_of<GROUPS>(l.w[i]) : 0;
    return w;
}

/* One thread makes the copy engine fill stage after stage. */
template <int GROUPS> DEVICE void produce(const gpu_linear &l, const tensor_map &act, const stages &s)
{
    const work w = work_of<GROUPS>(l);
    const int n_stages = (l.w[0].n_steps + STAGE_STEPS - 1) / STAGE_STEPS;
    unsigned n = 0;
    for (int i = blockIdx.x; i < w.n_rows * w.n_tokens; i += gridDim.x) {
        const int token = tile_at(w, i).token * TOKENS;
        for (int stage = 0; stage < n_stages; stage++, n++) {
            const unsigned slot = n % STAGES, round = n / STAGES;
            for (int group = 0; group < GROUPS; group++)        /* returns at once in the first round */
                barrier_wait(&s.empty[group * STAGES + slot], (int)(round & 1) ^ 1);
            barrier_expect(&s.full[slot], STAGE_BYTES);
            tensor_load(s.data + slot * STAGE_BYTES, act, stage * STAGE_STEPS * 32, token, &s.full[slot]);
        }
    }
}

/* A warp's part of a tile is one tile of the file.  Beyond the file's last tile, `there` is false
 * and the first tile is read instead. */
struct tile_part { int which, tile, token; bool there; const uint8_t *data; };
template <int TYPE, int GROUPS> DEVICE tile_part tile_part_of(const gpu_linear &l, const work &w, int i,
                                                                  raw_step<TYPE> raw[STAGE_STEPS])
{
    tile_of_work at = tile_at(w, i);
    const int warp = threadIdx.x / 32;
    tile_part s;
    if (l.finish == GPU_MLP) {
        s.which = warp / 2 % 2;
        s.tile = (at.row * GROUPS + warp / 4) * 2 + warp % 2;
    } else {
        s.which = 0;
        while (at.row >= tiles_of<GROUPS>(l.w[s.which]))
            at.row -= tiles_of<GROUPS>(l.w[s.which++]);
        s.tile = at.row * 4 * GROUPS + warp;
    }
    const gpu_mat &m = l.w[s.which];
    s.token = at.token * TOKENS;
    s.there = s.tile < m.n_tiles;
    s.data = m.data + (size_t)(s.there ? s.tile : 0) * m.tile_bytes;
#pragma unroll
    for (int step = 0; step < STAGE_STEPS; step++)
        load_step<TYPE>(raw[step], s.data, l.w[0], min(step, l.w[0].n_steps - 1), threadIdx.x % 32 / 4,
                        threadIdx.x % 4);
    return s;
}

/* Store the activations that a tile of gate and one of up make.  The warps that have the same rows
 * exchange the sums of half of the tokens: that of gate finishes the first half, that of up the
 * second one.  f: the scales and biases of this warp's rows. */
DEVICE void finish_mlp(const float (&c)[2][64], const finish_rows &f, const gpu_linear &l, const tile_part &now,
                       const stages &s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, up = warp / 2 % 2,
              row = now.tile * TILE_OF_ROWS + 4 * g;
    float4 *const mine = s.room + warp * (2 * HALF / 4) * 32 + lane;
    const float4 *other = s.room + (warp ^ 2) * (2 * HALF / 4) * 32 + lane;
    const auto finished_sum = [&](int p, int i, int j) {
        return c[p][4 * i + j] * f.scale[2 * p + j / 2] + f.bias[2 * p + j / 2];
    };
    warpgroup_sync(warp / 4);           /* the sums of the tile before are read */
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int i = 0; i < HALF / 4; i++) {
            float v[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = up ? finished_sum(p, i, j) : finished_sum(p, HALF / 4 + i, j);
            mine[(p * (HALF / 4) + i) * 32] = make_float4(v[0], v[1], v[2], v[3]);
        }
    warpgroup_sync(warp / 4);           /* the sums are written */
    uint16_t *const out = l.act_out + act_place(row, GPU_ACT_TILES);
#pragma unroll
    for (int i = 0; i < HALF / 4; i++) {
        float4 theirs[2];
#pragma unroll
        for (int p = 0; p < 2; p++)
            theirs[p] = other[(p * (HALF / 4) + i) * 32];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int token = now.token + up * (TOKENS / 2) + 8 * i + 2 * t + k;
            if (!now.there || token >= l.n_tokens)
                continue;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int p = r / 2, j = r % 2 * 2 + k;
                const float own = up ? finished_sum(p, HALF / 4 + i, j) : finished_sum(p, i, j),
                            got = j == 0 ? theirs[p].x : j == 1 ? theirs[p].y : j == 2 ? theirs[p].z : theirs[p].w,
                            h = activation(up ? got : own, 0) * (up ? own : got);
                /* act_place() of row + r, as row is a multiple of 4 */
                out[(size_t)token * l.act_out_stride + 8 * r] = r < f.n ? act_of(h) : 0;
            }
        }
    }
}

template <int TYPE, int GROUPS> DEVICE void consume(const gpu_linear &l, const stages &s)
{
    const gpu_mat &m = l.w[0];          /* all have its steps and groups */
    const work w = work_of<GROUPS>(l);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, last = m.n_steps - 1,
              n_stages = (m.n_steps + STAGE_STEPS - 1) / STAGE_STEPS, n_work = w.n_rows * w.n_tokens;
    const uint32_t base = shared_address(s.data);
    uint64_t *const empty = s.empty + threadIdx.x / 128 * STAGES;
    float c[2][64] = {};
    operands a[STAGE_STEPS];
    raw_step<TYPE> raw[STAGE_STEPS];
    int slot = 0, before = 0, parity = 0;       /* of the stage, and of the one before */
    tile_part next = tile_part_of<TYPE, GROUPS>(l, w, blockIdx.x, raw);
    wait_for_prerequisites();
    for (int i = blockIdx.x; i < n_work; i += gridDim.x) {
        const tile_part now = next;
        /* The second warpgroup waits until the first one has read LEAD stages of the tile, or all.
         * For that, at most LEAD + 1 stages must arrive, whose slots both have given back: the
         * second one has read all stages before the tile. */
        if (GROUPS == 2 && threadIdx.x >= 128) {
            const int at = slot + min(LEAD + 0, n_stages) - 1, wraps = at >= STAGES;
            barrier_wait(&s.empty[wraps ? at - STAGES : at], parity ^ wraps);
        }
        for (int stage = 0; stage < n_stages; stage++) {
            const uint64_t b = wgmma_tile(base + slot * STAGE_BYTES);
#pragma unroll
            /* beyond the last step, the last step's weights are multiplied by activations of 0 */
            for (int step = 0; step < STAGE_STEPS; step++) {
                decode<TYPE>(a[step], raw[step], t);
                load_step<TYPE>(raw[step], now.data, m, min((stage + 1) * STAGE_STEPS + step, last), g, t);
                if (step == 0)
                    barrier_wait(&s.full[slot], parity);
                __syncwarp();           /* a lane may leave its wait later */
                wgmma_fence();
#pragma unroll
                for (int p = 0; p < 2; p++)
#pragma unroll
                    for (int k = 0; k < 2; k++)
                        wgmma_f16(c[p], a[step][p][k], b + (uint64_t)(4 * step + 2 * k), stage + step + k > 0);
                wgmma_commit();
                /* Wait for the products of the previous step.  Its operands may be overwritten
                 * then, and after the first step of a stage the previous stage, too. */
                wgmma_wait<1>();
                if (step == 0 && stage > 0 && lane == 0)
                    barrier_arrive(&empty[before]);
            }
            before = slot;
            if (++slot == STAGES) {
                slot = 0;
                parity ^= 1;
            }
        }
        wgmma_wait<0>();
        if (lane == 0)
            barrier_arrive(&empty[before]);
        if (i + (int)gridDim.x < n_work)
            next = tile_part_of<TYPE, GROUPS>(l, w, i + gridDim.x, raw);
        const finish_rows f = finish_begin<TYPE>(l, l.to[now.which], now.data, (now.there ? now.tile : 0) * 32 + 4 * g,
                                                 l.w[now.which], ACT_UNIT * UNIT<TYPE>);
        if (l.finish == GPU_MLP)
            finish_mlp(c, f, l, now, s);
        else if (now.there)
            finish_tokens<TOKENS / 8, 2>(c, f, l, now.token, l.n_tokens, t);
    }
}

template <int TYPE, int GROUPS> __global__ __launch_bounds__(GPU_HOPPER_THREADS(GROUPS), 1)
void matmul_hopper_kernel(gpu_linear l, const __grid_constant__ tensor_map act)
{
    launch_dependents();
    SHARED(uint8_t, shared);
    stages s;
    s.data = shared + (ALIGN - shared_address(shared) % ALIGN) % ALIGN;
    s.full = reinterpret_cast<uint64_t *>(s.data + STAGES * STAGE_BYTES);
    s.empty = s.full + STAGES;
    s.room = reinterpret_cast<float4 *>(s.empty + 2 * STAGES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            barrier_init(&s.full[i], 1);
        for (int i = 0; i < GROUPS * STAGES; i++)
            barrier_init(&s.empty[i], 4);
        barrier_fence();
    }
    __syncthreads();
    if (threadIdx.x < GROUPS * 128) {
        if (GROUPS == 2)
            more_registers<240>();
        consume<TYPE, GROUPS>(l, s);
    } else {
        if (GROUPS == 2)
            less_registers<24>();
        wait_for_prerequisites();
        if (threadIdx.x == GROUPS * 128)
            produce<GROUPS>(l, act, s);
    }
}

template <int TYPE, int GROUPS> static int run(struct gpu *g, const gpu_linear *l, const tensor_map &act, int n_sms,
                                               struct err *e)
{
    const work w = work_of<GROUPS>(*l);
    const int tiles = w.n_rows * w.n_tokens;
    return launch(g, "matmul_hopper", matmul_hopper_kernel<TYPE, GROUPS>,
                  dim3((unsigned)(tiles < n_sms ? tiles : n_sms)), GPU_HOPPER_THREADS(GROUPS),
                  (size_t)(GPU_HOPPER_SHARED + (l->finish == GPU_MLP ? GROUPS * GPU_HOPPER_EXCHANGED : 0)), e, *l, act);
}

template <int TYPE> static int run_type(struct gpu *g, const gpu_linear *l, struct err *e)
{
    tensor_map act;
    const int n_sms = gpu_n_sms(g);
    const work narrow = work_of<1>(*l), wide = work_of<2>(*l);
    if (map_act(g, &act, l, TOKENS, e) < 0)
        return -1;
    if constexpr (TYPE == QT_NL4)
        if (gpu_hopper_groups(TYPE, narrow.n_rows * narrow.n_tokens, wide.n_rows * wide.n_tokens, n_sms) == 1)
            return run<TYPE, 1>(g, l, act, n_sms, e);
    return run<TYPE, 2>(g, l, act, n_sms, e);
}

/* The formats that this kernel takes, for more than TOKENS tokens: with fewer a tile would be half
 * empty.  This bound is calculated, as above, not measured. */
#define EACH_TAKEN(f) \
    f(QT_NL4) f(QT_I4) f(QT_I4M) f(QT_I4Z) f(QT_I8) f(QT_I8R) f(QT_FP8) f(QT_MXFP8) f(QT_NVFP4) f(QT_MXFP4) \
    f(QT_F16) f(QT_BF16)
#define IS(type) case type:
#define RUN(type) case type: return run_type<type>(g, l, e);

extern "C" int gpu_matmul_hopper_takes(const struct gpu *g, const struct gpu_linear *l)
{
    switch (l->w[0].type) {
    EACH_TAKEN(IS)
        return gpu_capability(g) == 90 && l->n_tokens > TOKENS &&
               (l->finish != GPU_MLP || (l->n_mats == 2 && l->w[1].rows == l->w[0].rows && l->function == 0));
    default: return 0;
    }
}

extern "C" int gpu_matmul_hopper(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    switch (l->w[0].type) {
    EACH_TAKEN(RUN)
    default: return err_set(e, ERR_UNSUPPORTED, "matmul_hopper: number format %d", l->w[0].type);
    }
}

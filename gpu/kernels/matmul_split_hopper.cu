/* matmul_split_hopper.cu - matmul_split.cu for nl4 and i8 and 17 to 128 tokens on compute
 * capability 9.0, by wgmma; and for nl4 gate and up together with their activation.
 *
 * shapes   as matmul_split.cu; GPU_MLP: gate and up of the same shape
 * tile     a block: 256 rows x 32 or 64 tokens, and one of the parts of k, as in
 *          prim/split_blocks.cuh.  Four warps of a half are a warpgroup, and their 4 rows of a lane
 *          are those of two wgmma m64n32k16 or m64n64k16, as in matmul_hopper.cu.  A warpgroup
 *          takes units of four steps: weights go from global memory to registers a unit ahead, and
 *          are decoded there into the operand A; two rows are decoded while the products of the
 *          other two run.  Activations, the operand B, are loaded by the copy engine; both
 *          warpgroups of a half read the same stages, and the first thread starts the copies
 * gate up  a block has 128 rows of each, and multiplies them in the end
 * moves    as matmul_split.cu, but activations once per 256 rows
 * limit    shared memory, the tensor cores and instructions, at about the same rate.  A step of
 *          four warps and 64 tokens takes 128 cycles of the tensor cores, or 160 at the share that
 *          they reach, and 161 of shared memory: 64 for the codebook, 64 for reads of B, 16 for
 *          writes of B, and 17 for weights on their way through L1.  101 instructions of each warp
 *          (nvcc 13.0) take 134 cycles at the share of issue slots that is reached.  For 32 tokens
 *          these are 80, 121 and, for 90 instructions, 120; memory takes 122 (H200, calculated)
 * checked  tests/unit/t-gpu-matmul.c, emulated beside matmul_split.cu */
#include "gpu/kernels/act_map.cuh"
#include "gpu/kernels/operations.h"
#include "gpu/prim/hopper.cuh"
#include "gpu/prim/split_blocks.cuh"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum {
    GROUP = 4 /* warps of a warpgroup, and tiles of its rows */,
    ROW_TILES = 2 * GROUP, WARPS = 2 * ROW_TILES, THREADS = WARPS * 32,
    SLOTS = 4, LEAD = 2,        /* a slot is filled LEAD units before it is read */
    ALIGN = 1024,               /* alignment of a tile, as in matmul_hopper.cu */
};

static_assert((int)ROW_TILES == GPU_SPLIT_HOPPER_TILES && (int)STEPS == GPU_SPLIT_STAGE, "the host counts blocks");
static_assert((int)AHEAD == (int)UNIT_STEPS, "a warpgroup takes a unit of each stage");

/* Bytes of the codebook. */
template <int TYPE> constexpr int TABLE = format<TYPE>::table ? TABLE_BYTES : 0;
/* Bytes of a tile of activations, which is two steps, of a slot, and of the ring of a half. */
template <int TOKENS> constexpr int TILE_BYTES = TOKENS * 128;
template <int TOKENS> constexpr int SLOT_BYTES = AHEAD / 2 * TILE_BYTES<TOKENS>;
template <int TOKENS> constexpr int RING_BYTES = SLOTS * SLOT_BYTES<TOKENS> + ALIGN;
static_assert(TABLE_BYTES % ALIGN == 0 && TILE_BYTES<32> % ALIGN == 0, "tiles behind the codebook are aligned");

/* The activations of a half in shared memory, [SLOTS][2][TOKENS][128 bytes], swizzled; behind them
 * its barriers: the bytes of a slot have arrived; all warps have read them. */
template <int TOKENS> struct act_ring {
    uint8_t *slots;
    int first;                          /* the first unit; the next one is 2 units on */

    DEVICE uint64_t *full(unsigned i) const
    {
        return reinterpret_cast<uint64_t *>(slots + SLOTS * SLOT_BYTES<TOKENS>) + i % SLOTS;
    }
    DEVICE uint64_t *empty(unsigned i) const { return full(i) + SLOTS; }
    /* Start to copy unit i. */
    DEVICE void fetch(const tensor_map &act, unsigned i) const
    {
        barrier_wait(empty(i), (i / SLOTS & 1) ^ 1);            /* returns at once in the first round */
        barrier_expect(full(i), SLOT_BYTES<TOKENS>);
#pragma unroll
        for (int j = 0; j < 2; j++)
            tensor_load(slots + i % SLOTS * SLOT_BYTES<TOKENS> + j * TILE_BYTES<TOKENS>, act,
                        (first * AHEAD + (int)i * STEPS + 2 * j) * 32, blockIdx.y * TOKENS, full(i));
    }
};

/* A warp's sums of two rows of each lane, and their operands of a step: [k half]. */
template <int TOKENS> using pair_sums = float[TOKENS / 2];
typedef uint32_t pair_operands[2][4];

/* Decode rows 2p and 2p + 1 of a step.  bytes: the scales of the lane's rows, plus 128. */
DEVICE void decode_pair(pair_operands &a, const raw_step<QT_NL4> &raw, uint32_t bytes, int p, int t,
                        const lane_table &table)
{
    const uint32_t by = decode_scales(bytes, p);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t v[4];
        decode_codes<QT_NL4>(v, raw, 2 * p + r, t, table);
#pragma unroll
        for (int k = 0; k < 4; k++)
            a[k / 2][k % 2 * 2 + r] = half_mul_by(v[k], by, r);
    }
}

/* Start the products of two rows of each lane, and wait for those that were started before.  b: the
 * lower half of the descriptor of their step. */
template <int N> DEVICE void multiply_pair(float (&c)[N], const pair_operands &a, uint32_t b)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; k++)
        wgmma_f16(c, a[k], (wgmma_tile(0) >> 32) << 32 | (b + 2 * k), 1);
    wgmma_commit();
    wgmma_wait<1>();
}

/* Release the slot before unit i's and start to copy another one, while the first product of unit i
 * runs and those before have ended. */
template <int TOKENS> DEVICE void turn_ring(const act_ring<TOKENS> &ring, const tensor_map &act, int i, int n_units,
                                            bool fetches, int lane)
{
    if (i > 0 && lane == 0)
        barrier_arrive(ring.empty(i - 1));
    if (fetches && i + LEAD < n_units)
        ring.fetch(act, i + LEAD);
}

/* multiply() for formats with other units: each warp loads the weights of two steps ahead. */
template <int TYPE, int TOKENS>
DEVICE void multiply_steps(pair_sums<TOKENS> (&c)[2], const uint8_t *data, const gpu_mat &m, const tensor_map &act,
                           const act_ring<TOKENS> &ring, int end, int n_units, bool fetches, int lane)
{
    enum { LOADED = 2 };
    const int g = lane / 4, t = lane % 4, first = ring.first * AHEAD;
    const uint32_t tiles = (uint32_t)wgmma_tile(shared_address(ring.slots));
    raw_step<TYPE> raw[LOADED];
    pair_operands a[2];
#pragma unroll
    for (int s = 0; s < LOADED; s++)
        if (first + s < end)
            load_step<TYPE>(raw[s], data, m, first + s, g, t);
    wait_for_prerequisites();
    for (int i = 0; fetches && i < min(LEAD + 0, n_units); i++)
        ring.fetch(act, i);
#pragma unroll 1
    for (int i = 0; i < n_units; i++) {
        const uint32_t b = tiles + (unsigned)i % SLOTS * (SLOT_BYTES<TOKENS> >> 4);
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            const int step = first + i * STEPS + s, next = s + LOADED < AHEAD ? step + LOADED : step + LOADED + AHEAD;
            if (step >= end)
                break;
#pragma unroll
            for (int p = 0; p < 2; p++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint32_t v[4];
                    decode_row<TYPE>(v, raw[s % LOADED], 2 * p + r, t, (const uint32_t *)nullptr);
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        a[p][k / 2][k % 2 * 2 + r] = v[k];
                }
                if (p == 1 && next < end)
                    load_step<TYPE>(raw[s % LOADED], data, m, next, g, t);
                if (s + p == 0)
                    barrier_wait(ring.full(i), (unsigned)i / SLOTS & 1);
                multiply_pair(c[p], a[p], b + s / 2 * (TILE_BYTES<TOKENS> >> 4) + s % 2 * 4);
                if (s + p == 0)
                    turn_ring(ring, act, i, n_units, fetches, lane);
            }
        }
    }
    wgmma_wait<0>();
}

/* Add the products of this half's units of the part.  The first weights are loaded, and the
 * codebook is written, while the kernel before may still run. */
template <int TYPE, int TOKENS>
DEVICE void multiply(pair_sums<TOKENS> (&c)[2], const uint8_t *data, const gpu_mat &m, const tensor_map &act,
                     const act_ring<TOKENS> &ring, uint32_t *shared, int begin, int end, int half, int warp, int lane)
{
    const int g = lane / 4, t = lane % 4, first = ring.first,
              /* units of this half, and those with four steps */
              n_units = ((end - begin + AHEAD - 1) / AHEAD - half + 1) / 2,
              n_whole = ((end - begin) / AHEAD - half + 1) / 2;
    const bool fetches = warp % ROW_TILES == 0 && lane == 0;
    if constexpr (!BY_UNITS<TYPE>) {
        multiply_steps<TYPE, TOKENS>(c, data, m, act, ring, end, n_units, fetches, lane);
        return;
    }
    const uint32_t tiles = (uint32_t)wgmma_tile(shared_address(ring.slots));
    const uint8_t *scales_at = unit_scales<QT_NL4>(data, first, g);
    raw_step<QT_NL4> raw[AHEAD];
    uint4 scales = {};
    pair_operands a[2];
    if (n_whole > 0) {
        scales = load16(scales_at);
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
            raw[s].code[0] = load_stream(unit_codes<QT_NL4>(scales_at, s, t));
    }
    const lane_table table = lane_fill<QT_NL4, THREADS>(shared);
    wait_for_prerequisites();
    for (int i = 0; fetches && i < min(LEAD + 0, n_units); i++)
        ring.fetch(act, i);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < n_whole; i++) {
        const unsigned slot = (unsigned)i % SLOTS;
        const bool more = i + 1 < n_whole;
        const uint32_t b = tiles + slot * (SLOT_BYTES<TOKENS> >> 4);
        const uint4 now = scales;
        scales_at += 2 * UNIT_BYTES<QT_NL4>;
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            if (s == 1 && more)
                scales = load16(scales_at);
            const uint32_t bytes = word_of(now, s) ^ 0x80808080u;
#pragma unroll
            for (int p = 0; p < 2; p++) {
                decode_pair(a[p], raw[s], bytes, p, t, table);
                if (p == 1 && more)
                    raw[s].code[0] = load_stream(unit_codes<QT_NL4>(scales_at, s, t));
                if (s + p == 0)
                    barrier_wait(ring.full(i), (unsigned)i / SLOTS & 1);
                multiply_pair(c[p], a[p], b + s / 2 * (TILE_BYTES<TOKENS> >> 4) + s % 2 * 4);
                if (s + p == 0)
                    turn_ring(ring, act, i, n_units, fetches, lane);
            }
        }
    }
    for (int s = 0, step = (first + 2 * n_whole) * AHEAD; step + s < end; s++) {    /* a unit of fewer steps */
        const int slot = n_whole % SLOTS;
        if (s == 0)
            barrier_wait(ring.full(n_whole), n_whole / SLOTS & 1);
        raw_step<QT_NL4> r;
        load_step<QT_NL4>(r, data, m, step + s, g, t);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            decode_pair(a[p], r, r.scale.x ^ 0x80808080u, p, t, table);
            multiply_pair(c[p], a[p], tiles + slot * (SLOT_BYTES<TOKENS> >> 4) + s / 2 * (TILE_BYTES<TOKENS> >> 4) +
                                          s % 2 * 4);
        }
    }
    wgmma_wait<0>();
}

/* The sums of a lane with their scales and biases. */
template <int N> DEVICE void scale_sums(float (&y)[2][N], const gpu_linear &l, int which, const uint8_t *data, int row,
                                        int rows)
{
    const float *bias = l.to[which].bias;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float scale = ACT_UNIT * float_of(load4(data + 4 * (row % TILE_OF_ROWS + r))),
                    add = bias && row + r < rows ? bias[row + r] : -0.0f;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float &v = y[r / 2][i / 2 * 4 + i % 2 + r % 2 * 2];
            v = v * scale + add;
        }
    }
}

/* Store the activations of a lane's rows: f(y) * up, with the sums of up in shared memory. */
template <int N> DEVICE void store_mlp(const float (&y)[2][N], const gpu_linear &l, const float4 *ups, int function,
                                       int row, int first_token, int t)
{
    const int rows = l.w[0].rows;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float4 up[2] = { ups[i * 32], ups[(N / 4 + i) * 32] };
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float by[4] = { k ? up[0].y : up[0].x, k ? up[0].w : up[0].z, k ? up[1].y : up[1].x,
                                  k ? up[1].w : up[1].z };
            const int token = first_token + 8 * i + 2 * t + k;
            if (token >= l.n_tokens)
                continue;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float h = activation(y[r / 2][4 * i + k + r % 2 * 2], function) * by[r];
                l.act_out[(size_t)token * l.act_out_stride + act_place(row + r, GPU_ACT_TILES)] =
                    row + r < rows ? act_of(h) : 0;
            }
        }
    }
}

/* Store the activations that gate and up make: the warps of up give their sums to those of gate,
 * which have the same rows and tokens. */
template <int N>
DEVICE void finish_mlp(float (&y)[2][N], const gpu_linear &l, const uint8_t *data, int tile, bool has_rows,
                       int first_token, float4 *room, int warp, int lane)
{
    const int which = warp / GROUP % 2, g = lane / 4, t = lane % 4, row = tile * TILE_OF_ROWS + 4 * g,
              rows = l.w[0].rows;
    float4 *const mine = room + (warp / ROW_TILES * GROUP + warp % GROUP) * (2 * N / 4) * 32 + lane;
    scale_sums(y, l, which, data, row, rows);
    __syncthreads();                    /* all warps have read the sums of the other half */
#pragma unroll
    for (int i = 0; which && i < 2 * N / 4; i++) {
        const float *v = y[i / (N / 4)] + i % (N / 4) * 4;
        mine[i * 32] = make_float4(v[0], v[1], v[2], v[3]);
    }
    __syncthreads();
    if (which || !has_rows)
        return;
    if (l.function == 0)                /* known to the compiler */
        store_mlp(y, l, mine, 0, row, first_token, t);
    else
        store_mlp(y, l, mine, l.function, row, first_token, t);
}

/* Store the sums of a warp's rows and tokens for gpu_norm_parts() or gpu_prepare(). */
template <int N> DEVICE void store_parts(const float (&y)[2][N], const gpu_linear &l, int part, const gpu_output &out,
                                         int row, int first_token, int t)
{
    const int ld = out.ldo;
    float *const to = out.out + (size_t)part * l.n_tokens * ld + row;
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int token = first_token + 8 * i + 2 * t + k;
            if (token < l.n_tokens)
                *reinterpret_cast<float4 *>(to + (size_t)token * ld) =
                    make_float4(y[0][4 * i + k], y[0][4 * i + k + 2], y[1][4 * i + k], y[1][4 * i + k + 2]);
        }
}

template <int TYPE, int TOKENS> __global__ __launch_bounds__(THREADS, 1)
void matmul_split_hopper_kernel(gpu_linear l, const __grid_constant__ tensor_map act, int n_units, int n_parts)
{
    launch_dependents();
    const int lane = threadIdx.x % 32, warp = __shfl_sync(FULL_WARP, threadIdx.x / 32, 0), half = warp / ROW_TILES,
              g = lane / 4, t = lane % 4;
    SHARED(uint8_t, shared);
    uint8_t *const table = shared + (ALIGN - shared_address(shared) % ALIGN) % ALIGN, *const room = table + TABLE<TYPE>;
    split_block<ROW_TILES> at(l, n_units, n_parts, warp);
    if (l.finish == GPU_MLP) {
        at.which = warp / GROUP % 2;
        at.tile = (int)(blockIdx.x % (unsigned)n_units) * GROUP + warp % GROUP;
        at.has_rows = at.tile < l.w[0].n_tiles;
    }
    const gpu_mat &m = l.w[at.which];
    const uint8_t *data = m.data + (size_t)(at.has_rows ? at.tile : 0) * m.tile_bytes;
    const int first_token = blockIdx.y * TOKENS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * SLOTS; i++) {
            const act_ring<TOKENS> ring = { room + i / SLOTS * RING_BYTES<TOKENS>, 0 };
            barrier_init(ring.full(i), 1);
            barrier_init(ring.empty(i), ROW_TILES);
        }
        barrier_fence();
    }
    __syncthreads();
    const act_ring<TOKENS> ring = { room + half * RING_BYTES<TOKENS>, at.begin / AHEAD + half };
    pair_sums<TOKENS> c[2] = {};
    multiply<TYPE, TOKENS>(c, data, m, act, ring, reinterpret_cast<uint32_t *>(table), at.begin, at.end, half, warp,
                           lane);
    float y[2][TOKENS / 4];
    exchange<TOKENS, ROW_TILES>(y, c, reinterpret_cast<float4 *>(room), warp, half, lane);
    if (l.finish == GPU_PARTS) {
        if (at.has_rows)
            store_parts(y, l, at.part, l.to[at.which], at.tile * TILE_OF_ROWS + 4 * g,
                        first_token + half * TOKENS / 2, t);
        return;
    }
    /* the flag is behind the sums that exchange() stores */
    if (n_parts > 1 && !add_parts<TOKENS>(y, l, reinterpret_cast<unsigned *>(room) + WARPS * TOKENS * 16, at, n_parts,
                                          warp, lane))
        return;
    if (l.finish == GPU_MLP)
        finish_mlp(y, l, data, at.tile, at.has_rows, first_token + half * TOKENS / 2,
                   reinterpret_cast<float4 *>(room), warp, lane);
    else if (at.has_rows)
        finish_tokens<TOKENS / 16, 4>(y, finish_begin<TYPE>(l, l.to[at.which], data, at.tile * 32 + 4 * g, m,
                                                              ACT_UNIT), l, first_token + half * TOKENS / 2,
                                      l.n_tokens, t);
}

extern "C" int gpu_matmul_split_hopper_takes(const struct gpu *g, const struct gpu_linear *l)
{
    return gpu_capability(g) == 90 && l->n_tokens > GPU_MATVEC_TOKENS && l->n_tokens <= GPU_SPLIT_TOKENS &&
           (l->w[0].type == QT_NL4 || (l->w[0].type == QT_I8 && l->finish != GPU_MLP && l->finish != GPU_PARTS)) &&
           (l->finish != GPU_MLP || (l->n_mats == 2 && l->w[1].rows == l->w[0].rows));
}

template <int TYPE, int TOKENS> static int run(struct gpu *g, const gpu_linear *l, struct err *e)
{
    tensor_map act;
    int units = l->finish == GPU_MLP ? gpu_split_hopper_units(2 * l->w[0].n_tiles) : 0;
    for (int i = 0; l->finish != GPU_MLP && i < l->n_mats; i++)
        units += gpu_split_hopper_units(l->w[i].n_tiles);
    const int parts = gpu_split_hopper_parts(units, l->w[0].n_steps), tiles = (l->n_tokens + TOKENS - 1) / TOKENS;
    if ((parts > 1 || l->finish == GPU_PARTS) && GPU_SPLIT_BYTES(2 * units * parts, tiles * TOKENS) > l->partial_bytes)
        return err_set(e, ERR_LIMIT, "matmul_split: %zu bytes for sums of parts, expected %zu", l->partial_bytes,
                       GPU_SPLIT_BYTES(2 * units * parts, tiles * TOKENS));
    if (map_act(g, &act, l, TOKENS, e) < 0)
        return -1;
    return launch(g, "split_hopper", matmul_split_hopper_kernel<TYPE, TOKENS>,
                  dim3((unsigned)(units * parts), (unsigned)tiles), THREADS,
                  ALIGN + TABLE<TYPE> + 2 * RING_BYTES<TOKENS>, e, *l, act, units, parts);
}

extern "C" int gpu_matmul_split_hopper(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    if (!gpu_matmul_split_hopper_takes(g, l))
        return err_set(e, ERR_UNSUPPORTED, "matmul_split_hopper: number format %d, %d tokens", l->w[0].type,
                       l->n_tokens);
    if (l->w[0].type == QT_I8)
        return l->n_tokens <= 32 ? run<QT_I8, 32>(g, l, e) : run<QT_I8, 64>(g, l, e);
    return l->n_tokens <= 32 ? run<QT_NL4, 32>(g, l, e) : run<QT_NL4, 64>(g, l, e);
}

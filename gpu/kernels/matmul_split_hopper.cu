/* matmul_split_hopper.cu - matmul_split.cu for nl4 and i8 and 17 to 128 tokens on compute
 * capability 9.0, by wgmma; and for nl4 gate and up together with their activation.
 *
 * shapes   as matmul_split.cu; GPU_MLP: gate and up of the same shape
 * tile     a block: 256 rows x 32 or 64 tokens, and one of the parts of k, as in
 *          prim/split_blocks.cuh.  A warpgroup has two tiles of 32 rows, and each of its warps half
 *          of one: lane 4g + t has rows 2g and 2g + 1 of the half, which are rows g and g + 8 of
 *          wgmma m64n32k16 or m64n64k16, as in matmul_hopper.cu.  All warpgroups take all steps of
 *          the part: weights go from global memory to registers up to eight steps ahead, and are
 *          decoded there into the operand A while the products of the step before run.
 *          Activations, the operand B, are loaded by the copy engine, eight steps at a time, and
 *          the first thread starts the copies.  Warpgroups with half of k each had to exchange
 *          their sums in the end, which took 1000 cycles
 * gate up  a block has 128 rows of each, and multiplies them in the end
 * moves    as matmul_split.cu, but activations once per 256 rows
 * limit    shared memory, the tensor cores and instructions, at about the same rate.  A step of 128
 *          rows and 64 tokens takes 128 cycles of the tensor cores, or 160 at the share that they
 *          reach, and 161 of shared memory: 64 for the codebook, 64 for reads of B, 16 for writes
 *          of B, and 17 for weights on their way through L1.  96 instructions for every 16 bytes of
 *          weights of a lane (nvcc 13.0) take 127 cycles at the share of issue slots that is
 *          reached.  For 32 tokens these are 80, 121 and, for 96 instructions, 128; memory takes
 *          122 (H200, calculated)
 * checked  tests/unit/t-gpu-matmul.c, emulated beside matmul_split.cu */
#include "gpu/kernels/act_map.cuh"
#include "gpu/kernels/operations.h"
#include "gpu/prim/hopper.cuh"
#include "gpu/prim/split_blocks.cuh"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum {
    WARPS = 2 * GPU_SPLIT_HOPPER_TILES, THREADS = WARPS * 32, ROW_TILES = GPU_SPLIT_HOPPER_TILES,
    GROUP = 4,                  /* warps of a warpgroup: two for each of two tiles */
    SLOTS = 4, LEAD = 2,        /* a slot is filled LEAD stages before it is read */
    ALIGN = 1024,               /* alignment of a tile, as in matmul_hopper.cu */
    LOADED = 4,                 /* steps of i8 whose weights are loaded ahead */
};

static_assert((int)STEPS == GPU_SPLIT_STAGE, "the host counts blocks");

/* Bytes of the codebook. */
template <int TYPE> constexpr int TABLE = format<TYPE>::table ? TABLE_BYTES : 0;
/* Bytes of a tile of activations, which is two steps, of a slot, and of the ring. */
template <int TOKENS> constexpr int TILE_BYTES = TOKENS * 128;
template <int TOKENS> constexpr int SLOT_BYTES = STEPS / 2 * TILE_BYTES<TOKENS>;
template <int TOKENS> constexpr int RING_BYTES = SLOTS * SLOT_BYTES<TOKENS> + ALIGN;
static_assert(TABLE_BYTES % ALIGN == 0 && TILE_BYTES<32> % ALIGN == 0, "tiles behind the codebook are aligned");

/* The activations of the block in shared memory, [SLOTS][2][TOKENS][128 bytes], swizzled; behind
 * them the barriers (the bytes of a slot have arrived; all warps have read them) and a flag. */
template <int TOKENS> struct act_ring {
    uint8_t *slots;
    int begin;                          /* the first step */

    DEVICE uint64_t *full(unsigned i) const
    {
        return reinterpret_cast<uint64_t *>(slots + SLOTS * SLOT_BYTES<TOKENS>) + i % SLOTS;
    }
    DEVICE uint64_t *empty(unsigned i) const { return full(i) + SLOTS; }
    DEVICE unsigned *flag() const { return reinterpret_cast<unsigned *>(full(0) + 2 * SLOTS); }
    /* Wait for stage i.  Lanes leave the wait one by one, and wgmma needs the whole warp. */
    DEVICE void await(int i) const
    {
        barrier_wait(full(i), (unsigned)i / SLOTS & 1);
        __syncwarp();
    }
    /* Start to copy stage i. */
    DEVICE void fetch(const tensor_map &act, unsigned i) const
    {
        barrier_wait(empty(i), (i / SLOTS & 1) ^ 1);            /* returns at once in the first round */
        barrier_expect(full(i), SLOT_BYTES<TOKENS>);
#pragma unroll 1                        /* one thread copies */
        for (int j = 0; j < STEPS / 2; j++)
            tensor_load(slots + i % SLOTS * SLOT_BYTES<TOKENS> + j * TILE_BYTES<TOKENS>, act,
                        (begin + (int)i * STEPS + 2 * j) * 32, blockIdx.y * TOKENS, full(i));
    }
};
static_assert(2 * SLOTS * sizeof(uint64_t) + sizeof(unsigned) <= ALIGN, "there is room for barriers and flag");

/* The rows of a lane: 4 * quad + 2 * odd, and the next one, of the warp's tile. */
struct lane_rows { int quad, odd, t; };

/* A warp's sums of the two rows of each lane, and their operands of a step: [k half]. */
template <int TOKENS> using row_sums = float[TOKENS / 2];
typedef uint32_t step_operands[2][4];

/* scales: of the four rows of the quad. */
DEVICE void decode_pair(step_operands &a, uint2 codes, uint32_t scales, const lane_rows &at, const lane_table &table)
{
    const uint32_t by = decode_scales(scales ^ 0x80808080u, at.odd);
    raw_step<QT_NL4> raw;
    raw.code[0] = make_uint4(codes.x, codes.y, 0, 0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t v[4];
        decode_codes<QT_NL4>(v, raw, r, at.t, table);
#pragma unroll
        for (int k = 0; k < 4; k++)
            a[k / 2][k % 2 * 2 + r] = half_mul_by(v[k], by, r);
    }
}

/* Start the products of a step, and wait until those of at most FLIGHT steps are in flight.  b: the
 * lower half of the descriptor of the step. */
template <int FLIGHT, int N> DEVICE void multiply_step(float (&c)[N], const step_operands &a, uint32_t b)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; k++)
        wgmma_f16(c, a[k], (wgmma_tile(0) >> 32) << 32 | (b + 2 * k), 1);
    wgmma_commit();
    wgmma_wait<FLIGHT>();
}

/* The lower half of the descriptor of step s of stage i. */
template <int TOKENS> DEVICE uint32_t operand_b(uint32_t tiles, int i, int s)
{
    return tiles + (unsigned)i % SLOTS * (SLOT_BYTES<TOKENS> >> 4) + s / 2 * (TILE_BYTES<TOKENS> >> 4) + s % 2 * 4;
}

/* Release the slot before stage i's and start to copy another one, while the first product of stage
 * i runs and those before have ended. */
template <int TOKENS> DEVICE void turn_ring(const act_ring<TOKENS> &ring, const tensor_map &act, int i, int n_stages,
                                            bool fetches, int lane)
{
    if (i > 0 && lane == 0)
        barrier_arrive(ring.empty(i - 1));
    if (fetches && i + LEAD < n_stages)
        ring.fetch(act, i + LEAD);
    __syncwarp();                       /* for the next wgmma */
}

/* Wait for the launch before, and start to copy the first activations. */
template <int TOKENS> DEVICE void begin_ring(const act_ring<TOKENS> &ring, const tensor_map &act, int n_stages,
                                             bool fetches)
{
    wait_for_prerequisites();
    for (int i = 0; fetches && i < min(LEAD + 0, n_stages); i++)
        ring.fetch(act, i);
}

/* One step of two rows, loaded where it is decoded. */
template <int TYPE> DEVICE raw_step<TYPE> load_rows(const uint8_t *data, const gpu_mat &m, int step,
                                                    const lane_rows &at)
{
    raw_step<TYPE> r;
    load_step<TYPE>(r, data, m, step, at.quad, at.t);
#pragma unroll
    for (int i = 0; i < format<TYPE>::raw; i++) {
        const uint4 all = r.code[i];
        r.code[i] = at.odd ? make_uint4(all.z, all.w, 0, 0) : make_uint4(all.x, all.y, 0, 0);
    }
    return r;
}
DEVICE void decode_i8(step_operands &a, const raw_step<QT_I8> &raw)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t v[4];
        decode_row<QT_I8>(v, raw, r, 0, (const uint32_t *)nullptr);
#pragma unroll
        for (int k = 0; k < 4; k++)
            a[k / 2][k % 2 * 2 + r] = v[k];
    }
}

/* Add the products of the last stage, if it has fewer steps than others.  decode(a, step) loads and
 * decodes the operands of a step. */
template <int TOKENS, class DECODE>
DEVICE void multiply_rest(row_sums<TOKENS> &c, const act_ring<TOKENS> &ring, uint32_t tiles, int end, DECODE decode)
{
    const int n_whole = (end - ring.begin) / STEPS, first = ring.begin + n_whole * STEPS;
    wgmma_wait<0>();
    if (first < end)
        ring.await(n_whole);
#pragma unroll 1
    for (int s = 0; first + s < end; s++) {
        step_operands a;
        decode(a, first + s);
        multiply_step<0>(c, a, operand_b<TOKENS>(tiles, n_whole, s));
    }
}

/* multiply() for i8 with groups of 32 << SHIFT, of which a stage has whole units of two. */
template <int SHIFT, int TOKENS>
DEVICE void multiply_i8(row_sums<TOKENS> &c, const uint8_t *data, const gpu_mat &m, const tensor_map &act,
                        const act_ring<TOKENS> &ring, int end, const lane_rows &at, bool fetches, int lane)
{
    constexpr int UNIT = 2 << SHIFT, SCALES = 2 * TILE_OF_ROWS * 2, BYTES = SCALES + UNIT * STEP_CODES<QT_I8>,
                  STAGE_BYTES = STEPS / UNIT * BYTES;
    static_assert(STEPS % UNIT == 0 && format<QT_I8>::unit == 2 && !format<QT_I8>::row_scale, "units of a stage");
    const int begin = ring.begin, n_stages = (end - begin + STEPS - 1) / STEPS, n_whole = (end - begin) / STEPS;
    const uint32_t tiles = (uint32_t)wgmma_tile(shared_address(ring.slots));
    /* of the stage to load: the scales of the lane's rows, and its codes */
    const uint8_t *stage = data + (size_t)(begin / STEPS) * STAGE_BYTES,
                  *scales_at = stage + at.quad * 16 + at.odd * 4,
                  *codes_at = stage + SCALES + at.quad * 16 + at.odd * 8 + 2 * at.t * 128;
    raw_step<QT_I8> raw[LOADED];
    step_operands a[2];
    const auto load = [&](int s) {
        const int unit = s / UNIT * BYTES;
        raw_step<QT_I8> &r = raw[s % LOADED];
        r.scale.x = load4(scales_at + unit + s / (UNIT / 2) % 2 * 8);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint2 codes = load_stream8(codes_at + unit + s % UNIT * STEP_CODES<QT_I8> + i * 128);
            r.code[i] = make_uint4(codes.x, codes.y, 0, 0);
        }
    };
#pragma unroll
    for (int s = 0; s < LOADED; s++)
        if (n_whole > 0)
            load(s);
    begin_ring(ring, act, n_stages, fetches);
#pragma unroll 1
    for (int i = 0; i < n_whole; i++) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            decode_i8(a[s % 2], raw[s % LOADED]);
            if (s == STEPS - LOADED) {
                scales_at += STAGE_BYTES;
                codes_at += STAGE_BYTES;
            }
            if (s + LOADED < STEPS || i + 1 < n_whole)
                load((s + LOADED) % STEPS);
            if (s == 0)
                ring.await(i);
            multiply_step<1>(c, a[s % 2], operand_b<TOKENS>(tiles, i, s));
            if (s == 0)
                turn_ring(ring, act, i, n_stages, fetches, lane);
        }
    }
    multiply_rest(c, ring, tiles, end, [&](step_operands &to, int step) {
        raw_step<QT_I8> r = load_rows<QT_I8>(data, m, step, at);
        r.scale.x = at.odd ? r.scale.y : r.scale.x;
        decode_i8(to, r);
    });
}

/* Add the products of the part.  The first weights are loaded, and the codebook is written, while
 * the kernel before may still run. */
template <int TYPE, int TOKENS>
DEVICE void multiply(row_sums<TOKENS> &c, const uint8_t *data, const gpu_mat &m, const tensor_map &act,
                     const act_ring<TOKENS> &ring, uint32_t *shared, int end, const lane_rows &at, bool fetches,
                     int lane)
{
    if constexpr (TYPE == QT_I8) {
        if (m.group_shift == 0)
            multiply_i8<0>(c, data, m, act, ring, end, at, fetches, lane);
        else if (m.group_shift == 1)
            multiply_i8<1>(c, data, m, act, ring, end, at, fetches, lane);
        else
            multiply_i8<2>(c, data, m, act, ring, end, at, fetches, lane);
        return;
    }
    constexpr int STAGE_BYTES = STEPS / UNIT_STEPS * UNIT_BYTES<QT_NL4>;
    const int begin = ring.begin, n_stages = (end - begin + STEPS - 1) / STEPS, n_whole = (end - begin) / STEPS;
    const uint32_t tiles = (uint32_t)wgmma_tile(shared_address(ring.slots));
    /* of the stage to load: the quad's scales, and the lane's codes */
    const uint8_t *scales_at = unit_scales<QT_NL4>(data, begin / UNIT_STEPS, at.quad),
                  *codes_at = unit_codes<QT_NL4>(scales_at, 0, at.t) + 8 * at.odd;
    uint2 codes[STEPS];
    uint4 scales[STEPS / UNIT_STEPS] = {};
    step_operands a[2];
    const auto load = [&](int s) {
        const int unit = s / UNIT_STEPS * UNIT_BYTES<QT_NL4>;
        codes[s] = load_stream8(codes_at + unit + s % UNIT_STEPS * STEP_CODES<QT_NL4>);
        if (s % UNIT_STEPS == UNIT_STEPS - 1)
            scales[s / UNIT_STEPS] = load16(scales_at + unit);
    };
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (n_whole > 0)
            load(s);
    const lane_table table = lane_fill<QT_NL4, THREADS>(shared);
    begin_ring(ring, act, n_stages, fetches);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < n_whole; i++) {
        scales_at += STAGE_BYTES;
        codes_at += STAGE_BYTES;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            decode_pair(a[s % 2], codes[s], word_of(scales[s / UNIT_STEPS], s % UNIT_STEPS), at, table);
            if (i + 1 < n_whole)
                load(s);
            if (s == 0)
                ring.await(i);
            multiply_step<1>(c, a[s % 2], operand_b<TOKENS>(tiles, i, s));
            if (s == 0)
                turn_ring(ring, act, i, n_stages, fetches, lane);
        }
    }
    multiply_rest(c, ring, tiles, end, [&](step_operands &to, int step) {
        const raw_step<QT_NL4> r = load_rows<QT_NL4>(data, m, step, at);
        decode_pair(to, make_uint2(r.code[0].x, r.code[0].y), r.scale.x, at, table);
    });
}

/* The sums of a lane with their scales and biases.  row: of the matrix. */
template <int N> DEVICE void scale_sums(float (&c)[N], const gpu_linear &l, int which, const uint8_t *data, int row)
{
    const float *bias = l.to[which].bias;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float scale = ACT_UNIT * float_of(load4(data + 4 * (row % TILE_OF_ROWS + r))),
                    add = bias && row + r < l.w[which].rows ? bias[row + r] : -0.0f;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float &v = c[i / 2 * 4 + i % 2 + 2 * r];
            v = v * scale + add;
        }
    }
}

/* Store the activations of a lane's rows: f(c) * up, with the sums of up in shared memory. */
template <int N> DEVICE void store_mlp(const float (&c)[N], const gpu_linear &l, const float4 *ups, int function,
                                       int row, int first_token, int t)
{
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float4 up = ups[i * 32];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int token = first_token + 8 * i + 2 * t + k;
            if (token >= l.n_tokens)
                continue;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float h = activation(c[4 * i + k + 2 * r], function) * (r ? k ? up.w : up.z : k ? up.y : up.x);
                l.act_out[(size_t)token * l.act_out_stride + act_place(row + r, GPU_ACT_TILES)] =
                    row + r < l.w[0].rows ? act_of(h) : 0;
            }
        }
    }
}

/* Store the activations that gate and up make: the warps of up give their sums to those of gate,
 * which have the same rows. */
template <int N> DEVICE void finish_mlp(float (&c)[N], const gpu_linear &l, const uint8_t *data, int which, int row,
                                        bool has_rows, int first_token, float4 *room, int warp, int lane)
{
    float4 *const mine = room + (warp / GROUP * 2 + warp % 2) * (N / 4) * 32 + lane;
    scale_sums(c, l, which, data, row);
    __syncthreads();                    /* all products have ended */
#pragma unroll
    for (int i = 0; which && i < N / 4; i++)
        mine[i * 32] = make_float4(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
    __syncthreads();
    if (which || !has_rows)
        return;
    if (l.function == 0)                /* known to the compiler */
        store_mlp(c, l, mine, 0, row, first_token, lane % 4);
    else
        store_mlp(c, l, mine, l.function, row, first_token, lane % 4);
}

/* Store the sums of a lane's rows for gpu_norm_parts() or gpu_prepare(). */
template <int N> DEVICE void store_parts(const float (&c)[N], const gpu_linear &l, int part, const gpu_output &out,
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
                *reinterpret_cast<float2 *>(to + (size_t)token * ld) = make_float2(c[4 * i + k], c[4 * i + k + 2]);
        }
}

/* Give the lane of the quad's other rows half of the tokens, for its sums of the other half. */
template <int N> DEVICE void gather_quad(float (&y)[2][N / 2], const float (&c)[N], int odd)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float mine = odd ? c[N / 2 + i] : c[i],
                    other = __shfl_xor_sync(FULL_WARP, odd ? c[i] : c[N / 2 + i], 4);
        y[0][i] = odd ? other : mine;
        y[1][i] = odd ? mine : other;
    }
}

template <int TYPE, int TOKENS> __global__ __launch_bounds__(THREADS, 1)
void matmul_split_hopper_kernel(gpu_linear l, const __grid_constant__ tensor_map act, int n_units, int n_parts)
{
    launch_dependents();
    const int lane = threadIdx.x % 32, warp = __shfl_sync(FULL_WARP, threadIdx.x / 32, 0), g = lane / 4, t = lane % 4;
    const lane_rows rows = { warp % 2 * 4 + g / 2, g % 2, t };
    SHARED(uint8_t, shared);
    uint8_t *const table = shared + (ALIGN - shared_address(shared) % ALIGN) % ALIGN, *const room = table + TABLE<TYPE>;
    split_block<ROW_TILES> at(l, n_units, n_parts, warp / 2);
    if (l.finish == GPU_MLP) {
        at.which = warp / 2 % 2;
        at.tile = (int)(blockIdx.x % (unsigned)n_units) * (ROW_TILES / 2) + warp / GROUP;
        at.has_rows = at.tile < l.w[0].n_tiles;
    }
    const gpu_mat &m = l.w[at.which];
    const uint8_t *data = m.data + (size_t)(at.has_rows ? at.tile : 0) * m.tile_bytes;
    const int first_token = blockIdx.y * TOKENS, quad_row = at.tile * TILE_OF_ROWS + 4 * rows.quad,
              row = quad_row + 2 * rows.odd;
    const act_ring<TOKENS> ring = { room, at.begin };
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            barrier_init(ring.full(i), 1);
            barrier_init(ring.empty(i), WARPS);
        }
        barrier_fence();
    }
    __syncthreads();
    row_sums<TOKENS> c = {};
    multiply<TYPE, TOKENS>(c, data, m, act, ring, reinterpret_cast<uint32_t *>(table), at.end, rows,
                           threadIdx.x == 0, lane);
    if (l.finish == GPU_PARTS) {
        if (at.has_rows)
            store_parts(c, l, at.part, l.to[at.which], row, first_token, t);
        return;
    }
    if (n_parts > 1 && !add_parts<TOKENS>(c, l, ring.flag(), at, n_parts, warp, lane))
        return;
    if (l.finish == GPU_MLP) {
        finish_mlp(c, l, data, at.which, row, at.has_rows, first_token, reinterpret_cast<float4 *>(room), warp, lane);
        return;
    }
    float y[2][TOKENS / 4];
    gather_quad(y, c, rows.odd);
    if (at.has_rows)
        finish_tokens<TOKENS / 16, 4>(y, finish_begin<TYPE>(l, l.to[at.which], data, quad_row, m, ACT_UNIT), l,
                                      first_token + rows.odd * TOKENS / 2, l.n_tokens, t);
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
                  ALIGN + TABLE<TYPE> + RING_BYTES<TOKENS>, e, *l, act, units, parts);
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

/* matmul_split_hopper.cu - matmul_split.cu for nl4 and 33 to 128 tokens on compute capability 9.0,
 * by wgmma: the same blocks and parts, and the same sums in the same order.
 *
 * shapes   as matmul_split.cu
 * tile     a block: 128 rows x 64 tokens, and one of the parts of k, as in prim/split_blocks.cuh.
 *          The four warps of a half are a warpgroup, and their 4 rows of a lane are those of two
 *          wgmma m64n64k16, as in matmul_hopper.cu.  A warpgroup takes units of four steps: weights
 *          go from global memory to registers a unit ahead, and are decoded there into the operand
 *          A; two rows are decoded while the products of the other two run.  Activations, the
 *          operand B, are loaded by the copy engine, a unit ahead; each warpgroup has stages and
 *          barriers of its own, and its first thread starts the copies
 * moves    as matmul_split.cu
 * limit    shared memory, L2 and the tensor cores, at about the same rate.  A step of four warps
 *          takes 128 cycles of the tensor cores, or 160 at the share that they reach, and 177 of
 *          shared memory: 64 for the codebook, 64 for reads of B, 32 for writes of B, and 17 for
 *          weights on their way through L1.  115 instructions of each warp (nvcc 13.0), with those
 *          that start copies, take as many issue slots (calculated)
 * checked  tests/unit/t-gpu-matmul.c, emulated bit for bit against matmul_split.cu */
#include "gpu/kernels/act_map.cuh"
#include "gpu/kernels/operations.h"
#include "gpu/prim/hopper.cuh"
#include "gpu/prim/split_blocks.cuh"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum {
    TOKENS = 64,
    TILE_BYTES = TOKENS * 128 /* of two steps */, SLOT_BYTES = AHEAD / 2 * TILE_BYTES, SLOTS = 2,
    ALIGN = 1024,               /* alignment of a tile, as in matmul_hopper.cu */
    SHARED_BYTES = ALIGN + TABLE_BYTES + 2 * SLOTS * (SLOT_BYTES + 2 * 8),
};

static_assert((int)SLOTS == 2 && (int)AHEAD == (int)UNIT_STEPS, "a warpgroup takes a unit of each stage");
static_assert(TABLE_BYTES % ALIGN == 0 && TILE_BYTES % ALIGN == 0, "tiles behind the codebook are aligned");

/* The activations of a warpgroup in shared memory. */
struct act_ring {
    uint8_t *data;                      /* [SLOTS][2][TOKENS][128 bytes], swizzled */
    uint64_t *full, *empty;             /* [SLOTS] the bytes have arrived; all warps have read them */
    int k, token;                       /* of the first unit; the next unit is 2 units of k on */

    /* Start to copy unit i. */
    DEVICE void fetch(const tensor_map &act, int i) const
    {
        const int slot = i % SLOTS;
        barrier_wait(&empty[slot], (i / SLOTS & 1) ^ 1);        /* returns at once in the first round */
        barrier_expect(&full[slot], SLOT_BYTES);
#pragma unroll
        for (int j = 0; j < 2; j++)
            tensor_load(data + slot * SLOT_BYTES + j * TILE_BYTES, act, k + (i * STEPS + 2 * j) * 32, token,
                        &full[slot]);
    }
};

/* A warp's sums of two rows of each lane, and their operands of a step: [k half]. */
typedef float pair_sums[TOKENS / 2];
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
DEVICE void multiply_pair(pair_sums &c, const pair_operands &a, uint32_t b)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; k++)
        wgmma_f16(c, a[k], (wgmma_tile(0) >> 32) << 32 | (b + 2 * k), 1);
    wgmma_commit();
    wgmma_wait<1>();
}

/* Add the products of this half's units of the part.  The first weights are loaded, and the
 * codebook is written, while the kernel before may still run. */
DEVICE void multiply(pair_sums (&c)[2], const uint8_t *data, const gpu_mat &m, const tensor_map &act,
                     const act_ring &ring, uint32_t *shared, int begin, int end, int half, int warp, int lane)
{
    const int g = lane / 4, t = lane % 4, first = begin / AHEAD + half,
              /* units of this half, and those with four steps */
              n_units = ((end - begin + AHEAD - 1) / AHEAD - half + 1) / 2,
              n_whole = ((end - begin) / AHEAD - half + 1) / 2;
    const bool fetches = warp % ROW_TILES == 0 && lane == 0;
    const uint32_t tiles = (uint32_t)wgmma_tile(shared_address(ring.data));
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
    for (int i = 0; fetches && i < min(SLOTS + 0, n_units); i++)
        ring.fetch(act, i);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < n_whole; i++) {
        const int slot = i % SLOTS;
        const bool more = i + 1 < n_whole;
        const uint32_t b = tiles + slot * (SLOT_BYTES >> 4);
        const uint4 now = scales;
        scales_at += 2 * UNIT_BYTES<QT_NL4>;
        if (more)
            scales = load16(scales_at);
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            const uint32_t bytes = word_of(now, s) ^ 0x80808080u;
#pragma unroll
            for (int p = 0; p < 2; p++) {
                decode_pair(a[p], raw[s], bytes, p, t, table);
                if (p == 1 && more)
                    raw[s].code[0] = load_stream(unit_codes<QT_NL4>(scales_at, s, t));
                if (s + p == 0)
                    barrier_wait(&ring.full[slot], i / SLOTS & 1);
                multiply_pair(c[p], a[p], b + s / 2 * (TILE_BYTES >> 4) + s % 2 * 4);
                if (s + p == 0 && i > 0) {      /* the products of the previous unit have ended */
                    if (lane == 0)
                        barrier_arrive(&ring.empty[slot ^ 1]);
                    if (fetches && i + 1 < n_units)
                        ring.fetch(act, i + 1);
                }
            }
        }
    }
    for (int s = 0, step = (first + 2 * n_whole) * AHEAD; step + s < end; s++) {    /* a unit of fewer steps */
        const int slot = n_whole % SLOTS;
        if (s == 0)
            barrier_wait(&ring.full[slot], n_whole / SLOTS & 1);
        raw_step<QT_NL4> r;
        load_step<QT_NL4>(r, data, m, step + s, g, t);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            decode_pair(a[p], r, r.scale.x ^ 0x80808080u, p, t, table);
            multiply_pair(c[p], a[p], tiles + slot * (SLOT_BYTES >> 4) + s / 2 * (TILE_BYTES >> 4) + s % 2 * 4);
        }
    }
    wgmma_wait<0>();
}

__global__ __launch_bounds__(THREADS, 2)
void matmul_split_hopper_kernel(gpu_linear l, const __grid_constant__ tensor_map act, int n_units, int n_parts)
{
    launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp / ROW_TILES, g = lane / 4, t = lane % 4;
    SHARED(uint8_t, shared);
    uint8_t *const table = shared + (ALIGN - shared_address(shared) % ALIGN) % ALIGN, *const room = table + TABLE_BYTES;
    uint64_t *const barriers = reinterpret_cast<uint64_t *>(room + 2 * SLOTS * SLOT_BYTES);
    const split_block at(l, n_units, n_parts, warp);
    const gpu_mat &m = l.w[at.which];
    const uint8_t *data = m.data + (size_t)(at.has_rows ? at.tile : 0) * m.tile_bytes;
    const int first_token = blockIdx.y * TOKENS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * SLOTS; i++) {
            barrier_init(&barriers[i], 1);
            barrier_init(&barriers[2 * SLOTS + i], ROW_TILES);
        }
        barrier_fence();
    }
    __syncthreads();
    const act_ring ring = { room + half * SLOTS * SLOT_BYTES, barriers + half * SLOTS, barriers + (2 + half) * SLOTS,
                            (at.begin + half * AHEAD) * 32, first_token };
    pair_sums c[2] = {};
    multiply(c, data, m, act, ring, reinterpret_cast<uint32_t *>(table), at.begin, at.end, half, warp, lane);
    float y[2][TOKENS / 4];
    exchange<TOKENS>(y, c, reinterpret_cast<float4 *>(room), warp, half, lane);
    /* the flag is behind the sums that exchange() stores */
    if (n_parts > 1 && !add_parts<TOKENS>(y, l, reinterpret_cast<unsigned *>(room) + WARPS * TOKENS * 16, at, n_parts,
                                          warp, lane))
        return;
    if (at.has_rows)
        finish_tokens<TOKENS / 16, 4>(y, finish_begin<QT_NL4>(l, l.to[at.which], data, at.tile * 32 + 4 * g, m.rows,
                                                              ACT_UNIT), l, first_token + half * TOKENS / 2,
                                      l.n_tokens, t);
}

extern "C" int gpu_matmul_split_hopper_takes(const struct gpu *g, const struct gpu_linear *l)
{
    return gpu_capability(g) == 90 && l->w[0].type == QT_NL4 && l->n_tokens > 32 && l->n_tokens <= GPU_SPLIT_TOKENS;
}

extern "C" int gpu_matmul_split_hopper(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    if (!gpu_matmul_split_hopper_takes(g, l))
        return err_set(e, ERR_UNSUPPORTED, "matmul_split_hopper: number format %d, %d tokens", l->w[0].type,
                       l->n_tokens);
    tensor_map act;
    int units = 0;
    for (int i = 0; i < l->n_mats; i++)
        units += gpu_split_units(l->w[i].n_tiles);
    const int parts = gpu_split_parts(units, l->w[0].n_steps), tiles = (l->n_tokens + TOKENS - 1) / TOKENS;
    if (parts > 1 && GPU_SPLIT_BYTES(units * parts, tiles * TOKENS) > l->partial_bytes)
        return err_set(e, ERR_LIMIT, "matmul_split: %zu bytes for sums of parts, expected %zu", l->partial_bytes,
                       GPU_SPLIT_BYTES(units * parts, tiles * TOKENS));
    if (map_act(g, &act, l, TOKENS, e) < 0)
        return -1;
    return launch(g, "split_hopper", matmul_split_hopper_kernel, dim3((unsigned)(units * parts), (unsigned)tiles),
                  THREADS, SHARED_BYTES, e, *l, act, units, parts);
}

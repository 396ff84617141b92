/* matmul_f32.cu - y = w x with f32 activations and the weights exactly as stored, for every type:
 * --exact, f32 matrices, small projections.
 *
 * tile     a block: 32 rows x 8 tokens; 8 warps take steps of 32 k in turn; a lane has one row, so
 *          that a warp reads a line of 128 bytes at a time
 * moves    the matrix once per 8 tokens
 * limit    HBM for f32 with few tokens; a plain loop of fma otherwise
 * checked  tests/unit/t-gpu-matmul.c, t-gpu-experts.c
 *
 * With n_splits a block takes 256 k, and the kernel that reads the sums adds up those of the splits
 * in order.  That is for routers, which have few rows: 8 times as many blocks read a router of 2048
 * columns. */
#include "gpu/kernels/operations.h"
#include "gpu/prim/experts.cuh"
#include "gpu/prim/rope.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 8, TOKENS = 8, PAD = 33 };

/* The levels of NF4 times 127. */
static __constant__ float nf4_level[16] = {
#define NF4_LEVEL(x) (float)((x) * 127),
#include "libcommon/quant/nf4.def"
};

#define VALUE_INT8(values, zero, code) (float)(int8_t)(code)
#define VALUE_LINEAR(values, zero, code) (float)((code) - zero)
#define VALUE_E2M1(values, zero, code) half_low(codebook[BOOK_##values][code])
#define VALUE_E4M3(values, zero, code) e4m3_value((uint32_t)(code))
#define VALUE_TERNARY(values, zero, code) (float)((code) - 1)
#define VALUE_BASE3(values, zero, code) (float)((code) - 1)
#define VALUE_BOOK(values, zero, code) \
    (BOOK_##values == BOOK_nf4 ? nf4_level[code] : half_low(codebook[BOOK_##values][code]))
/* f(QT_ID, codes, ...) for each format of this kernel: all formats that the device supports. */
#define TAKEN_NONE(...)
#define TAKEN_FLOATS(...) TAKEN_F32(__VA_ARGS__)
#define TAKEN_INTEGERS(...) TAKEN_F32(__VA_ARGS__) CODES_CASE(__VA_ARGS__)
#define TAKEN_TABLE(...) TAKEN_INTEGERS(__VA_ARGS__)

DEVICE float e4m3_value(uint32_t code) { return 256 * half_low(pair_of_e4m3(code << 8)); }

DEVICE float value_of(int type, int code)
{
    switch (type) {
#define TAKEN_F32(...)
#define CODES_CASE(ID, codes, values, zero, ...) case QT_##ID: return VALUE_##codes(values, zero, code);
#define QTYPE(ID, number, name, choice, option, codes, values, zero, low, high, scale, extra, row, sizes, group, acts, \
              kind, ymm, zmm, gpu, ...) TAKEN_##gpu(ID, codes, values, zero, 0)
#include "libcommon/quant/qtype.def"
#undef TAKEN_F32
#undef CODES_CASE
    default: return 0;
    }
}

struct layout { enum scale_kind scale; enum extra_kind extra; int bits, plane, unit, scale_size, extra_size,
                row_scale, halves, base3; };
template <int TYPE> DEVICE layout layout_as(void)
{
    typedef format<TYPE> f;
    return { f::scales, f::extras, f::bits, f::plane, f::unit, scale_bytes(f::scales), extra_bytes(f::extras),
             f::row_scale, f::halves, f::base3 };
}
DEVICE layout layout_of(int type)
{
    switch (type) {
#define TAKEN_F32(ID, ...) \
    case QT_##ID: return layout_as<QT_##ID>();
#define CODES_CASE(...)
#define QTYPE(ID, number, name, choice, option, codes, values, zero, low, high, scale, extra, row, sizes, group, acts, \
              kind, ymm, zmm, gpu, ...) TAKEN_##gpu(ID, 0)
#include "libcommon/quant/qtype.def"
    default: return {};
    }
}

/* Addresses of step `step` of a row: the first dword of its codes, and the scale and the extra of
 * its group.  A step with two groups of 16 has the address of the first scale; the second scale is
 * 4 bytes later. */
struct row_data { const uint8_t *code, *scale, *extra; };
DEVICE row_data row_data_of(const gpu_mat &m, const layout &a, const uint8_t *tile, int step, int row)
{
    const int per_unit = m.group_shift == 3 ? 1 : a.unit, group = a.halves == 2 ? 2 * step : step >> m.group_shift,
              unit = group / per_unit, in_unit = group % per_unit, n = min(per_unit, m.n_groups - unit * per_unit);
    const int group_bytes = a.base3 ? T3_BYTES : ((a.bits * 128) << m.group_shift) / a.halves;
    const int at = (row / 4 * n + in_unit) * 4 + row % 4;
    const int full = scale_area(per_unit, a.scale_size) + scale_area(per_unit, a.extra_size) + per_unit * group_bytes;
    const uint8_t *p = tile + (a.row_scale ? 128 : 0) + (size_t)unit * full;
    row_data q;
    q.scale = p + at * a.scale_size;
    p += scale_area(n, a.scale_size);
    q.extra = p + at * a.extra_size;
    p += scale_area(n, a.extra_size) + in_unit * group_bytes;
    q.code = p + (a.base3 ? 0 : (step & ((1 << m.group_shift) - 1)) * (a.plane * 128)) + 4 * row;
    return q;
}

QTYPE_SCALES_HERE(7);
QTYPE_CODES_HERE(9);

DEVICE float scale_of_byte(const layout &a, uint8_t byte)
{
    if (a.scale == SCALE_E4M3)
        return e4m3_value(byte);
    if (a.scale == SCALE_E8M0)
        return float_of(byte ? (uint32_t)byte << 23 : 0x00400000u);
    return a.scale == SCALE_U8 ? (float)byte : (float)(int8_t)byte;
}

/* The 32 values of a row and step, with the same bits as those of codes_decode (quant/tile.h).
 * The row's scale, if the format has one, is included, because codes_decode multiplies the
 * group's scale by it first. */
DEVICE void decode_exact(float v[32], const gpu_mat &m, const layout &a, const uint8_t *tile, int step, int row)
{
    const row_data q = row_data_of(m, a, tile, step, row);
    if (a.bits >= 16) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            if (a.bits == 32) {
                v[i] = float_of(load4(q.code + 128 * i));
            } else if (i < 16) {
                const uint32_t w = load4(q.code + 128 * i);
                v[2 * i] = m.type == QT_F16 ? half_low(w) : float_of(w << 16);
                v[2 * i + 1] = m.type == QT_F16 ? half_high(w) : float_of(w & 0xffff0000u);
            }
        }
        return;
    }
    const float row_scale = a.row_scale ? float_of(load4(tile + 4 * row)) : 1;
    float scale = row_scale, extra = 0;
    if (a.scale_size == 2)
        scale = half_low(*reinterpret_cast<const uint16_t *>(q.scale));
    else if (a.scale_size == 4)
        scale = float_of(load4(q.scale));
    else if (a.scale_size == 1)
        scale *= scale_of_byte(a, *q.scale);
    if (a.extra_size == 2)
        extra = half_low(*reinterpret_cast<const uint16_t *>(q.extra));
    else if (a.extra_size == 1)
        extra = (float)*q.extra;
    /* the high plane; these types have groups of 32 */
    const uint8_t *second = q.code + a.plane * 128;
#pragma unroll
    for (int i = 0; i < 8; i++) {       /* k 4i .. 4i+3 */
        if (a.halves == 2 && i == 4)
            scale = row_scale * scale_of_byte(a, q.scale[4]);
        const int per = 8 / a.plane;    /* groups of four k in a line */
        /* index of the four k in the group */
        const uint32_t four = (uint32_t)(step & ((1 << m.group_shift) - 1)) * 8 + i;
        uint32_t w = a.base3 ? digits(load4(q.code + four / 5 * 128), four % 5)
                             : load4(q.code + i / per * 128) >> i % per * a.plane & 0x01010101u * ((1u << a.plane) - 1);
        if (a.bits == 6)
            w |= (load4(second + i / 4 * 128) >> i % 4 * 2 & 0x03030303u) << 4;
        else if (a.bits == 5 || a.bits == 3)
            w |= (load4(second) >> i & 0x01010101u) << a.plane;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float x = value_of(m.type, (int)(w >> 8 * j & 0xff));
            v[4 * i + j] = a.extra_size == 2 ? scale * x + extra : a.extra_size == 1 ? scale * (x - extra) : scale * x;
        }
    }
}

/* acc += this lane's row of a tile times the tokens, over this warp's part of the steps
 * [first_step, end).  row(t) returns the activations of token t, which have no padding. */
template <class ROW> DEVICE void multiply_exact(float (&acc)[TOKENS], const gpu_mat &m, const layout &a,
                                                const uint8_t *data, int first_step, int end, int n, ROW row)
{
    const int lane = threadIdx.x % 32;
    for (int step = first_step + threadIdx.x / 32; step < end; step += WARPS) {
        float v[32];
        decode_exact(v, m, a, data, step, lane);
        const int k = min(32, m.cols - step * 32);
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (t >= n)
                break;
            const float *x = row(t) + step * 32;
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (i < k)
                    acc[t] = fmaf(v[i], x[i], acc[t]);
        }
    }
}

/* Add up the partial sums of all warps for one token and one row. */
DEVICE float sum_of_warps(const float *sums, int token, int in_tile)
{
    float y = 0;
    for (int w = 0; w < WARPS; w++)
        y += sums[(w * TOKENS + token) * PAD + in_tile];
    return y;
}

__global__ __launch_bounds__(WARPS * 32, 2) void matmul_f32_kernel(gpu_linear l)
{
    follow_previous();
    SHARED(float, sums);                /* [WARPS][TOKENS][PAD] */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int which = 0, tile = blockIdx.x;
    while (tile >= l.w[which].n_tiles)
        tile -= l.w[which++].n_tiles;
    const gpu_mat &m = l.w[which];
    const layout a = layout_of(m.type);
    const uint8_t *data = m.data + (size_t)tile * m.tile_bytes;
    const int first = blockIdx.y * TOKENS, n = min(TOKENS, l.n_tokens - first), split = blockIdx.z;
    const float *x = l.x + (l.head_rows ? (size_t)(min(tile * 32 + lane, m.rows - 1) / l.head_rows) * l.x_head : 0);
    float acc[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        acc[t] = 0;
    multiply_exact(acc, m, a, data, split * GPU_SPLIT_STEPS,
                   l.n_splits ? min(m.n_steps, (split + 1) * GPU_SPLIT_STEPS) : m.n_steps, n,
                   [&](int t) { return x + (size_t)(first + t) * l.ldx; });
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        sums[(warp * TOKENS + t) * PAD + lane] = acc[t];
    __syncthreads();
    gpu_output to = l.to[which];
    to.bias = split ? nullptr : to.bias;
    to.out += split * l.split_stride;
    for (int o = threadIdx.x; o < n * 32; o += WARPS * 32) {
        const int t = o / 32, row = tile * 32 + o % 32;
        if (row >= m.rows)
            continue;
        gpu_output at = to;
        if (l.head_rows)
            at.out += (ptrdiff_t)(row / l.head_rows) * (l.out_head - l.head_rows);
        finish_one(l, at, first + t, row, sum_of_warps(sums, t, o % 32));
    }
}

extern "C" int gpu_matmul_f32(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    unsigned tiles = 0;
    for (int i = 0; i < l->n_mats; i++)
        tiles += (unsigned)l->w[i].n_tiles;
    const dim3 grid(tiles, (unsigned)(l->n_tokens + TOKENS - 1) / TOKENS, (unsigned)(l->n_splits ? l->n_splits : 1));
    return launch(g, "matmul_f32", matmul_f32_kernel, grid, WARPS * 32, sizeof(float) * WARPS * TOKENS * PAD, e, *l);
}

/* ---- products of experts ---- */

/* N: 2 for gate and up */
template <int N> __global__ __launch_bounds__(WARPS * 32, 2) void expert_f32_kernel(gpu_experts o)
{
    follow_previous();
    SHARED(float, sums);                /* [N][WARPS][TOKENS][PAD] */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (blockIdx.y >= (unsigned)*o.choice.n_tiles)
        return;
    const gpu_expert_tile e = o.choice.tiles[blockIdx.y];
    const int32_t *pairs = o.choice.order + e.first;
    const int rows = o.w[0].w.rows;
#pragma unroll 1
    for (int i = 0; i < N; i++) {
        const gpu_mat &m = o.w[i].w;
        float acc[TOKENS];
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            acc[t] = 0;
        multiply_exact(acc, m, layout_of(m.type), expert_rows(o.w[i], e.expert, blockIdx.x), 0, m.n_steps, e.n,
                       [&](int t) { return o.x + (size_t)(pairs[t] / o.share) * o.ldx; });
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            sums[((i * WARPS + warp) * TOKENS + t) * PAD + lane] = acc[t];
    }
    __syncthreads();
    for (int k = threadIdx.x; k < e.n * 32; k += WARPS * 32) {
        const int t = k / 32, row = blockIdx.x * 32 + k % 32;
        if (row >= rows)
            continue;
        float y = expert_biased(o.w[0], e.expert, row, sum_of_warps(sums, t, k % 32));
        if (N == 2)
            y = expert_activation(o, pairs[t], y, expert_biased(o.w[1], e.expert, row,
                                                      sum_of_warps(sums + WARPS * TOKENS * PAD, t, k % 32)));
        o.out[(size_t)pairs[t] * o.ldo + row] = y;
    }
}

extern "C" int gpu_expert_f32(struct gpu *g, const struct gpu_experts *o, struct err *e)
{
    static_assert((int)TOKENS == (int)GPU_EXPERT_FEW, "a tile is what a block takes");
    const dim3 grid((unsigned)o->w[0].w.n_tiles, (unsigned)gpu_most_tiles(o->n_pairs, o->n_experts, TOKENS));
    const size_t sums = sizeof(float) * WARPS * TOKENS * PAD;
    return o->n_mats == 2 ? launch(g, "expert_f32", expert_f32_kernel<2>, grid, WARPS * 32, 2 * sums, e, *o)
                          : launch(g, "expert_f32", expert_f32_kernel<1>, grid, WARPS * 32, sums, e, *o);
}

/* ---- embedding: rows of a matrix, as stored ---- */

/* Blocks with a blockIdx.y from 1 on compute the tables of rotations. */
__global__ __launch_bounds__(256) void embed_kernel(float *x, gpu_mat m, const int32_t *token, const int32_t *drawn,
                                                    const int32_t *pos, float scale, const float *pos_embed,
                                                    int pos_offset, gpu_ropes ropes)
{
    follow_previous();
    if (blockIdx.y) {
        rope_row(ropes, ropes.table[blockIdx.y - 1], blockIdx.x, 256);
        return;
    }
    const layout a = layout_of(m.type);
    const int t = blockIdx.x, row = token[t] < 0 ? max(drawn[-1 - token[t]], 0) : token[t];
    const uint8_t *tile = m.data + (size_t)(row / 32) * m.tile_bytes;
    for (int step = threadIdx.x; step < m.n_steps; step += 256) {
        float v[32] = { 0 };
        if (m.data)
            decode_exact(v, m, a, tile, step, row % 32);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int k = step * 32 + i;
            if (k >= m.cols)
                break;
            float y = scale != 1 ? v[i] * scale : v[i];
            if (pos_embed)
                y += pos_embed[((size_t)max(pos[t], 0) + pos_offset) * m.cols + k];
            x[(size_t)t * m.cols + k] = y;
        }
    }
}

extern "C" int gpu_embed(struct gpu *g, float *x, const struct gpu_mat *w, const int32_t *token, const int32_t *drawn,
                         const int32_t *pos, int n, float scale, const float *pos_embed, int pos_offset,
                         const struct gpu_ropes *ropes, struct err *e)
{
    const gpu_ropes none = {}, &r = ropes ? *ropes : none;
    return launch(g, "embed", embed_kernel, dim3((unsigned)n, 1 + (unsigned)r.n_tables), 256, 0, e, x, *w, token, drawn,
                  pos, scale, pos_embed, pos_offset, r);
}

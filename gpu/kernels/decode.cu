/* decode.cu - decode a matrix to f16 once, instead of for every 128 tokens of every prompt.
 *
 * shapes   w in kernel order, any type of fewer than 16 bits; out: the same tiles in the order of
 *          QT_F16 (quant/tile.h), multiplied by the group's scale, but not by the row's.  These are
 *          the operands that matmul.cu makes of a tile, so its sums are bit-identical
 * tile     a warp decodes 32 rows x 32 k at a time, one step of a tile of 32 rows after the other
 * moves    the matrix once, and 2 bytes per weight out, in whole lines of 128 bytes
 * limit    HBM bandwidth; runs once, when a model is loaded
 * checked  tests/unit/t-gpu-matmul.c */
#include "gpu/kernels/operations.h"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

/* MOST_BLOCKS per tile, so that a block decodes several steps for each codebook that it fills */
enum { WARPS = 4, MOST_BLOCKS = 8 };

template <int TYPE> __global__ __launch_bounds__(WARPS * 32) void decode_kernel(gpu_mat m, uint8_t *out)
{
    follow_previous();
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint8_t *tile = m.data + (size_t)blockIdx.x * m.tile_bytes;
    SHARED(uint32_t, shared);
    const uint32_t *table = table_fill<TYPE>(shared);
    if (format<TYPE>::table)
        __syncthreads();
    for (int step = blockIdx.y * WARPS + threadIdx.x / 32; step < m.n_steps; step += gridDim.y * WARPS) {
        raw_step<TYPE> raw;
        uint32_t v[4][4];
        load_step<TYPE>(raw, tile, m, step, g, t);
#pragma unroll
        for (int r = 0; r < 4; r++)
            decode_row<TYPE>(v[r], raw, r, t, table);
        uint8_t *to = out + ((size_t)blockIdx.x * m.n_steps + step) * GPU_DECODED_STEP + 4 * t * 128 + g * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {           /* the lane's line i has its k 2i and 2i + 1, which
                                                 * are in two of the pairs (k, k + 4) of v */
            const int a = i % 2 * 2;
            const uint32_t half = i < 2 ? 0x5410 : 0x7632;
            *reinterpret_cast<uint4 *>(to + i * 128) =
                make_uint4(prmt(v[0][a], v[0][a + 1], half), prmt(v[1][a], v[1][a + 1], half),
                           prmt(v[2][a], v[2][a + 1], half), prmt(v[3][a], v[3][a + 1], half));
        }
    }
}

template <int TYPE> static int run(struct gpu *g, const gpu_mat *m, uint8_t *out, struct err *e)
{
    const int blocks = (m->n_steps + WARPS - 1) / WARPS;
    return launch(g, "decode", decode_kernel<TYPE>,
                  dim3((unsigned)m->n_tiles, (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS)), WARPS * 32,
                  format<TYPE>::table ? TABLE_BYTES : 0, e, *m, out);
}

extern "C" size_t gpu_decoded_size(int type, int n_tiles, int n_steps)
{
    switch (type) {
#define FORMAT(type) case type:
#include "gpu/prim/each_format.inc"
        return (size_t)n_tiles * (size_t)n_steps * GPU_DECODED_STEP;
    default: return 0;
    }
}

extern "C" struct gpu_mat gpu_decoded(const struct gpu_mat *m, const uint8_t *data)
{
    struct gpu_mat d = *m;
    int row_scale = 0;
    switch (m->type) {
#define FORMAT(type) case type: row_scale = format<type>::row_scale; break;
#include "gpu/prim/each_format.inc"
    }
    d.data = data;
    d.type = QT_F16;
    d.tile_bytes = (uint64_t)m->n_steps * GPU_DECODED_STEP;
    d.n_groups = m->n_steps;
    d.group_shift = 0;
    d.row_scales = row_scale ? m->data : nullptr;
    d.row_scales_step = m->tile_bytes;
    return d;
}

extern "C" int gpu_decode(struct gpu *g, const struct gpu_mat *m, uint8_t *out, struct err *e)
{
    switch (m->type) {
#define FORMAT(type) case type: return run<type>(g, m, out, e);
#include "gpu/prim/each_format.inc"
    default: return err_set(e, ERR_UNSUPPORTED, "decode: number format %d", m->type);
    }
}

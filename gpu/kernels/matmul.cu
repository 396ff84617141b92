/* matmul.cu - y = w x for many tokens: prefill, and batches beyond 16.
 *
 * shapes   as matvec.cu, one matrix
 * tile     a block: 128 rows x 64 or 128 tokens, all k; 4 warps, each 32 rows and all tokens, so that every code is decoded once a block.  Weights come from
 *          global memory into registers, one step (32 k) ahead; activations through shared memory, three stages of 64 k by cp.async, as [32 k][tokens]: a lane's
 *          16 bytes are its fragment, and 8 lanes read 128 bytes in a row
 * moves    weights once per 64 or 128 tokens, activations once per 128 rows (both mostly from L2)
 * limit    mma.sync: two thirds of the wgmma peak on Hopper.  A step of a warp with 128 tokens: 128 mma, 16 LDS.128, about 110 slots of decoding
 * checked  tests/unit/t-gpu-matmul.c */
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum { WARPS = 4, STAGES = 3, STAGE_STEPS = 2 };

template <int TYPE, int TOKENS> __global__ __launch_bounds__(WARPS * 32) void matmul_kernel(gpu_linear l)
{
    typedef format<TYPE> f;
    constexpr int N8 = TOKENS / 8, STAGE_BYTES = STAGE_STEPS * TOKENS * 64;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    SHARED(uint32_t, shared);
    uint8_t *stages = reinterpret_cast<uint8_t *>(shared + (f::table ? TABLE_BYTES / 4 : 0));        /* [STAGES][STAGE_STEPS][TOKENS][32 f16] */
    const gpu_mat &m = l.w[0];
    const int tile = blockIdx.x * WARPS + warp, first_token = blockIdx.y * TOKENS, n_tokens = min(TOKENS, l.n_tokens - first_token);
    const int has_rows = tile < m.n_tiles;
    const uint8_t *data = m.data + (size_t)(has_rows ? tile : 0) * m.tile_bytes;
    const uint16_t *act = l.act + (size_t)first_token * l.act_stride;
    const int n_stages = (m.n_steps + STAGE_STEPS - 1) / STAGE_STEPS;

    const uint32_t *table = table_fill<TYPE>(shared);

    /* 16-byte pieces of a stage: step, token, quarter.  Tokens and k beyond the end repeat the last: nobody reads what comes of them. */
    auto fetch = [&](int stage) {
        if (stage < n_stages) {
            uint8_t *to = stages + stage % STAGES * STAGE_BYTES;
            for (int i = threadIdx.x; i < STAGE_BYTES / 16; i += WARPS * 32) {
                const int quarter = i % 4, token = i / 4 % TOKENS, step = min(stage * STAGE_STEPS + i / 4 / TOKENS, m.n_steps - 1);
                copy_async(to + i * 16, act + (size_t)min(token, n_tokens - 1) * l.act_stride + step * 32 + quarter * 8);
            }
        }
        copy_commit();
    };
    for (int i = 0; i < STAGES - 1; i++)
        fetch(i);

    float c[N8][2][4];
#pragma unroll
    for (int i = 0; i < N8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            c[i][j / 4][j % 4] = 0;
    raw_step<TYPE> next;
    load_step<TYPE>(next, data, m, 0, g, t);
    for (int stage = 0; stage < n_stages; stage++) {
        copy_wait<STAGES - 2>();
        __syncthreads();                /* this stage is there for all; the one before is read */
        fetch(stage + STAGES - 1);
        const uint8_t *from = stages + stage % STAGES * STAGE_BYTES;
#pragma unroll
        for (int s = 0; s < STAGE_STEPS; s++) {
            const int step = stage * STAGE_STEPS + s;
            if (step >= m.n_steps)
                break;
            const raw_step<TYPE> raw = next;
            if (step + 1 < m.n_steps)
                load_step<TYPE>(next, data, m, step + 1, g, t);
#pragma unroll
            for (int p = 0; p < 2; p++) {
                uint32_t even[4], odd[4];
                decode_row<TYPE>(even, raw, 2 * p, t, table);
                decode_row<TYPE>(odd, raw, 2 * p + 1, t, table);
#pragma unroll
                for (int i = 0; i < N8; i++)
                    multiply_rows(c[i][p], even, odd, load16(from + ((s * TOKENS + 8 * i + g) * 4 + t) * 16));
            }
        }
    }
    copy_wait<0>();
    if (!has_rows)
        return;
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int in_tile = 4 * g + 2 * p + h, row = tile * 32 + in_tile;
            if (row >= m.rows)
                continue;
            const float scale = f::row_scale ? ACT_UNIT * float_of(load4(data + 4 * in_tile)) : ACT_UNIT;
#pragma unroll
            for (int i = 0; i < N8; i++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int token = 8 * i + 2 * t + k;
                    if (token < n_tokens)
                        finish_one(l, l.to[0], first_token + token, row, c[i][p][2 * h + k] * scale);
                }
        }
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

extern "C" int gpu_matmul(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    switch (l->w[0].type) {
    case QT_F16:  return run_type<QT_F16>(g, l, e);
    case QT_BF16: return run_type<QT_BF16>(g, l, e);
    case QT_I8:   return run_type<QT_I8>(g, l, e);
    case QT_I8R:  return run_type<QT_I8R>(g, l, e);
    case QT_I4:   return run_type<QT_I4>(g, l, e);
    case QT_I4M:  return run_type<QT_I4M>(g, l, e);
    case QT_I4Z:  return run_type<QT_I4Z>(g, l, e);
    case QT_NL4:  return run_type<QT_NL4>(g, l, e);
    case QT_NF4:  return run_type<QT_NF4>(g, l, e);
    case QT_M2:   return run_type<QT_M2>(g, l, e);
    case QT_M3:   return run_type<QT_M3>(g, l, e);
    case QT_M5:   return run_type<QT_M5>(g, l, e);
    case QT_M6:   return run_type<QT_M6>(g, l, e);
    default:      return err_set(e, ERR_UNSUPPORTED, "matmul: number format %d", l->w[0].type);
    }
}

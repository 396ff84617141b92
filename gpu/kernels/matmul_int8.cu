/* matmul_int8.cu - y = w x with 8-bit weights (i8r: one scale per row) and 8-bit activations (one
 * scale per token): integer products, exact sums, the scales applied at the end.
 *
 * shapes   w in kernel order; activations int8 in the order of k (gpu_act_int8)
 * order    a line of a tile has 4 k of 32 rows, one dword per row, which is what a register of
 *          mma.m16n8k32 holds: operands are used as loaded, without shifts or masks.  k and rows
 *          can have any order in an mma if both operands agree.  For few tokens lane 4g + t takes
 *          rows 4g .. 4g+3 of lines 2t and 2t+1, so that its activations are 8 contiguous bytes.
 *          For many tokens it takes lines t and t+4, because that is the order in which ldmatrix
 *          delivers activations, and pairs of rows, so that the four registers of an operand are
 *          two loads of 8 bytes.  (With loads of 16 bytes an operand would be halves of two loads,
 *          and nvcc 13.0 moves them together for every mma: 414 instructions a step)
 * bits     integer sums do not depend on their order, so a token's result depends neither on the
 *          kernel nor on the other tokens.  127 * 128 * cols stays below 2^31 up to MOST_COLS
 * checked  tests/unit/t-gpu-matmul-int8.c
 *
 * matvec_int8, up to 16 tokens
 * tile     a block: 32 rows (of two matrices for gate and up), all k: 16 warps take 128 k in turn,
 *          and add up their sums in shared memory with atomics
 * moves    the matrix once from HBM, 16 bytes a lane, 8 loads in flight a lane: 64 KB a block, 2
 *          blocks an SM; activations from L2, once a block (n * cols bytes: 3 % of the
 *          weights with one token, 25 % with 8)
 * limit    HBM bandwidth; 16 instructions per 16 bytes of a lane with up to 8 tokens (nvcc 13.0,
 *          sm_90: 125 for four steps of a warp), a quarter of those of nl4
 *
 * matmul_int8, more
 * tile     a block: 128 rows x 64 or 128 tokens, all k; 4 warps, each 32 rows and all tokens;
 *          weights from global memory into registers, one step (64 k) ahead; activations through
 *          shared memory (prim/stages.cuh)
 * moves    weights once per 64 or 128 tokens, activations once per 128 rows (both mostly from L2)
 * limit    mma.sync, which does twice the operations of f16.  A step of a warp with 128 tokens is
 *          274 instructions (nvcc 13.0, sm_90), 64 of them mma, which take 512 cycles where a
 *          multiprocessor does 2048 multiply-adds a cycle (sm_80), and 16 LDSM.x4.  Shared memory
 *          is busy for 320 cycles for the four warps, including the writes of cp.async
 *
 * act_int8, act_fp8 (for matmul_fp8.cu)
 * tile     one token per block of 512 threads; the second read of the row hits L1
 * moves    2 bytes an element in, 1 out
 * limit    with few tokens the launch itself: int8 activations cost four more launches a layer.
 *          The norms could round their outputs, but the kernel of gate and up could not, because
 *          its rows are complete only when all of its blocks are done */
#include "gpu/kernels/operations.h"
#include "gpu/prim/stages.cuh"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"
#include "libcommon/quant/half.h"

enum { MOST_COLS = 1 << 17, STEP_BYTES = 32 * 32, FEW_WARPS = 16, PAD_ROWS = 33, WARPS = 4, ACT_BLOCK = 512 };

/* Rows 4g .. 4g+3 of a step times 8 tokens: low and high hold 4 k each of these rows.  c[p]: rows
 * 4g + 2p (tokens 2t, 2t+1) and 4g + 2p + 1. */
DEVICE void multiply_codes(int *c0, int *c1, const uint4 &low, const uint4 &high, uint32_t x0, uint32_t x1)
{
    mma_s8(c0, low.x, low.y, high.x, high.y, x0, x1);
    mma_s8(c1, low.z, low.w, high.z, high.w, x0, x1);
}

DEVICE float row_scale(const uint8_t *tile, int row) { return float_of(load4(tile + 4 * row)); }

/* ---- few tokens ---- */

/* TOKENS8: tokens / 8; N: number of matrices multiplied at the same time (2: gate and up) */
template <int TOKENS8, int N> __global__ __launch_bounds__(FEW_WARPS * 32,
                                                           TOKENS8 * N < 4 ? 2 : 1) void few_kernel(gpu_linear l)
{
    launch_dependents();
    constexpr int STEPS = 4 / N, N_SUMS = N * 8 * TOKENS8 * PAD_ROWS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    SHARED(unsigned, sums);             /* [N][8 * TOKENS8][PAD_ROWS] of int */
    for (int i = threadIdx.x; i < N_SUMS; i += FEW_WARPS * 32)
        sums[i] = 0;
    __syncthreads();

    int which = 0, tile = blockIdx.x;
    if (N == 1)
        while (tile >= l.w[which].n_tiles)
            tile -= l.w[which++].n_tiles;
    const gpu_mat &m = l.w[which];
    const int n_steps = (m.cols + 31) / 32;
    const size_t stride = GPU_CODE_STRIDE(m.cols);
    const uint8_t *data[N];
    for (int i = 0; i < N; i++)
        data[i] = l.w[which + i].data + (size_t)tile * m.tile_bytes;

    int c[N][TOKENS8][2][4];
    for (int i = 0; i < N * TOKENS8 * 8; i++)
        (&c[0][0][0][0])[i] = 0;
    raw_step<QT_I8R> raw[N][STEPS];
    const auto load = [&](int first) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (first + s >= n_steps)
                break;
#pragma unroll
            for (int i = 0; i < N; i++)
                load_step<QT_I8R>(raw[i][s], data[i], m, first + s, g, t);
        }
    };
    load(warp * STEPS);                 /* under way while the kernel before ends */
    wait_for_prerequisites();
    for (int first = warp * STEPS; first < n_steps; first += FEW_WARPS * STEPS) {
        uint2 x[STEPS][TOKENS8];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (first + s >= n_steps)
                break;
#pragma unroll
            for (int b = 0; b < TOKENS8; b++) {
                const int token = 8 * b + g;
                x[s][b] = token < l.n_tokens ? load8(l.code + token * stride + (first + s) * 32 + 8 * t)
                                             : make_uint2(0, 0);
#pragma unroll
                for (int i = 0; i < N; i++)
                    multiply_codes(c[i][b][0], c[i][b][1], raw[i][s].code[0], raw[i][s].code[1], x[s][b].x, x[s][b].y);
            }
        }
        load(first + FEW_WARPS * STEPS);
    }

#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int b = 0; b < TOKENS8; b++)
#pragma unroll
            for (int j = 0; j < 8; j++)         /* j: token 2t + (j & 1), row 4g + j / 2 */
                atomicAdd(sums + (i * 8 * TOKENS8 + 8 * b + 2 * t + (j & 1)) * PAD_ROWS + 4 * g + j / 2,
                          (unsigned)c[i][b][j / 4][j % 4]);
    __syncthreads();
    finish_few<N>(l, which, tile, FEW_WARPS * 32, [&](int i, int token, int in_tile) {
        return (float)(int)sums[(i * 8 * TOKENS8 + token) * PAD_ROWS + in_tile] * l.code_scale[token] *
               row_scale(data[i], in_tile);
    });
}

template <int TOKENS8, int N> static int run_few(struct gpu *g, const gpu_linear *l, struct err *e)
{
    int tiles = 0;
    for (int i = 0; i < (N == 2 ? 1 : l->n_mats); i++)
        tiles += l->w[i].n_tiles;
    return launch(g, "matvec_int8", few_kernel<TOKENS8, N>, dim3((unsigned)tiles), FEW_WARPS * 32,
                  sizeof(int) * N * 8 * TOKENS8 * PAD_ROWS, e, *l);
}

/* ---- many tokens ---- */

/* A lane's codes of 64 k (two steps): rows 2g and 2g+1, then 16+2g and 17+2g, of lines t (low) and
 * t + 4 (high).  If there is no second step, the first is read again, and the activations of the
 * second are 0. */
struct codes64 { uint2 low[2][2], high[2][2]; };       /* [step][rows] */
DEVICE void load_codes(codes64 &w, const uint8_t *tile, int pair, int n_steps, int g, int t)
{
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint8_t *p = tile + 128 + (size_t)min(2 * pair + s, n_steps - 1) * STEP_BYTES + t * 128 + r * 64 +
                               g * 8;
            w.low[s][r] = load_stream8(p);
            w.high[s][r] = load_stream8(p + 512);
        }
}

template <int TOKENS> __global__ __launch_bounds__(WARPS * 32) void many_kernel(gpu_linear l)
{
    launch_dependents();
    constexpr int N8 = TOKENS / 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    SHARED(uint8_t, shared);
    const gpu_mat &m = l.w[0];
    const int tile = blockIdx.x * WARPS + warp, first_token = blockIdx.y * TOKENS,
              n_tokens = min(TOKENS, l.n_tokens - first_token);
    const int has_rows = tile < m.n_tiles, n_steps = (m.cols + 31) / 32, n_pairs = (n_steps + 1) / 2;
    const uint8_t *data = m.data + (size_t)(has_rows ? tile : 0) * m.tile_bytes;
    const int stride = GPU_CODE_STRIDE(m.cols);
    const token_stages<TOKENS, WARPS * 32> stages = { shared, reinterpret_cast<const uint8_t *>(l.code) +
                                                      (size_t)first_token * stride, stride, n_tokens, n_pairs };

    codes64 next;
    load_codes(next, data, 0, n_steps, g, t);
    wait_for_prerequisites();
    for (int i = 0; i < STAGES - 1; i++)
        stages.fetch(i);
    int c[2][4 * N8] = {};
    for (int stage = 0; stage < stages.n_stages(); stage++) {
        copy_wait<STAGES - 2>();
        /* this stage has arrived for all threads; the previous one has been read */
        __syncthreads();
        stages.fetch(stage + STAGES - 1);
#pragma unroll
        for (int s = 0; s < STAGE_STEPS; s++) {
            const int step = stage * STAGE_STEPS + s;
            if (step >= n_pairs)
                break;
            const codes64 w = next;
            if (step + 1 < n_pairs)
                load_codes(next, data, step + 1, n_steps, g, t);
#pragma unroll
            for (int i = 0; i < N8; i++) {
                uint32_t x[4];
                stages.load(x, stage, s, i, lane);
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int r = 0; r < 2; r++)
                        mma_s8(c[r] + 4 * i, w.low[k][r].x, w.low[k][r].y, w.high[k][r].x, w.high[k][r].y, x[2 * k],
                               x[2 * k + 1]);
            }
        }
    }
    copy_wait<0>();
    if (!has_rows)
        return;
    /* Lanes with neighbouring g exchange sums, so that each lane has four adjacent rows: with even
     * g those below 16, with odd g those from 16 on. */
    float y[2][4 * N8];
    const int odd = g & 1;
#pragma unroll
    for (int i = 0; i < 4 * N8; i++) {
        const float scale = l.code_scale[first_token + min(i / 4 * 8 + 2 * t + i % 2, n_tokens - 1)];
        const int theirs = __shfl_xor_sync(FULL_WARP, odd ? c[0][i] : c[1][i], 4);
        y[0][i] = (float)(odd ? theirs : c[0][i]) * scale;
        y[1][i] = (float)(odd ? c[1][i] : theirs) * scale;
    }
    finish_tokens<N8, 4>(y, finish_begin<QT_I8R>(l, l.to[0], data, tile * 32 + 2 * (g - odd) + 16 * odd, m, 1), l,
                         first_token, first_token + n_tokens, t);
}

template <int TOKENS> static int run_many(struct gpu *g, const gpu_linear *l, struct err *e)
{
    const dim3 grid((unsigned)(l->w[0].n_tiles + WARPS - 1) / WARPS, (unsigned)(l->n_tokens + TOKENS - 1) / TOKENS);
    return launch(g, "matmul_int8", many_kernel<TOKENS>, grid, WARPS * 32, (size_t)STAGES * token_stages<TOKENS,
                  WARPS * 32>::BYTES, e, *l);
}

extern "C" int gpu_matmul_int8_takes(const struct gpu_mat *w) { return w->type == QT_I8R && w->cols <= MOST_COLS; }

extern "C" int gpu_matmul_int8(struct gpu *g, const struct gpu_linear *l, struct err *e)
{
    const int pair = l->finish == GPU_MLP && l->n_mats == 2;
    for (int i = 0; i < l->n_mats; i++)
        if (!gpu_matmul_int8_takes(&l->w[i]))
            return err_set(e, ERR_UNSUPPORTED, "matmul_int8: number format %d with %d columns", l->w[i].type,
                           l->w[i].cols);
    if (l->n_tokens > 128)
        return run_many<128>(g, l, e);
    if (l->n_tokens > GPU_MATVEC_TOKENS)
        return run_many<64>(g, l, e);
    if (l->n_tokens > 8)
        return pair ? run_few<2, 2>(g, l, e) : run_few<2, 1>(g, l, e);
    return pair ? run_few<1, 2>(g, l, e) : run_few<1, 1>(g, l, e);
}

/* ---- activations ---- */

/* MOST: the code of the largest |act|, 127 or 448, the largest number in E4M3. */
template <int MOST> __global__ __launch_bounds__(ACT_BLOCK) void act_codes_kernel(const uint16_t *act, int act_stride,
                                                                                  int order, int cols, int8_t *code,
                                                                                  float *scale)
{
    follow_previous();
    SHARED(float, room);                /* [ACT_BLOCK / 32] */
    const uint16_t *x = act + (size_t)blockIdx.x * act_stride;
    const int padded = act_padded(cols), stride = GPU_CODE_STRIDE(cols);
    uint32_t most = 0;                  /* bits of |x| compare like |x|; NaN is above all */
    for (int i = threadIdx.x; i < padded / 8; i += ACT_BLOCK) {
        const uint4 v = load16(x + 8 * i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t u = word_of(v, j) & 0x7fff7fffu, low = u & 0xffff, high = u >> 16;
            most = most > low ? most : low;
            most = most > high ? most : high;
        }
    }
    const float mine = warp_max((float)most);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = mine;
    __syncthreads();
    float bits = 0;
    for (int i = 0; i < ACT_BLOCK / 32; i++)
        bits = fmaxf(bits, room[i]);
    const bool number = bits < 0x7c00;
    const float largest = half_low((uint32_t)bits), factor = number && bits > 0 ? MOST / largest : 0;
    if (threadIdx.x == 0)
        scale[blockIdx.x] = number ? largest * ACT_UNIT / MOST : NAN;
    for (int k = 4 * threadIdx.x; k < stride; k += 4 * ACT_BLOCK) {
        uint32_t word = 0;
#pragma unroll
        for (int j = 0; j < 4 && k < padded && factor > 0; j++) {
            const float v = half_low(x[act_place(k + j, order)]) * factor;
            word |= (MOST == 127 ? (uint32_t)(int)rintf(v) & 0xff : f32_to_f8e4m3(v)) << 8 * j;
        }
        *reinterpret_cast<uint32_t *>(code + (size_t)blockIdx.x * stride + k) = word;
    }
}

extern "C" int gpu_act_int8(struct gpu *g, const uint16_t *act, int act_stride, enum gpu_act_order order, int n,
                            int cols, int8_t *code, float *scale, struct err *e)
{
    return launch(g, "act_int8", act_codes_kernel<127>, dim3((unsigned)n), ACT_BLOCK, sizeof(float) * ACT_BLOCK / 32, e,
                  act, act_stride, (int)order, cols, code, scale);
}

extern "C" int gpu_act_fp8(struct gpu *g, const uint16_t *act, int act_stride, enum gpu_act_order order, int n, int cols,
                           int8_t *code, float *scale, struct err *e)
{
    return launch(g, "act_fp8", act_codes_kernel<448>, dim3((unsigned)n), ACT_BLOCK, sizeof(float) * ACT_BLOCK / 32, e,
                  act, act_stride, (int)order, cols, code, scale);
}

/* rows.cu - kernels on rows: norms, activation functions, the rounding of activations to f16.
 *
 * tile     one row a block of 256 threads; row lengths are a few thousand, so the second read of a
 *          row hits L1.  RMS norms of up to 8192 elements have blocks of 512 threads, which keep
 *          the row in registers: all of it and all weights are loaded before the sum, so that a
 *          row waits for memory once instead of once every 256 elements
 * moves    each operand once
 * limit    HBM for many tokens; with one token the launch itself (about 2 us in a graph)
 * checked  tests/unit/t-gpu-rows.c against kernels_ref */
#include "gpu/kernels/operations.h"
#include "gpu/prim/norm.cuh"
#include "gpu/prim/weights.cuh"
#include "gpu/rt/launch.cuh"

enum { BLOCK = 256 };

/* The mean and the inverse deviation of a row's values.  Value k of a row is x[k], or x[k] +
 * scale_b * b[k] if b is not NULL. */
struct row_norm { float mean, inverse; };

DEVICE row_norm measure(const float *x, const float *b, float scale_b, int n, int layer, float eps, float *room)
{
    row_norm r = { 0, 1 };
    float sum = 0;
    if (layer) {
        for (int k = threadIdx.x; k < n; k += BLOCK)
            sum += b ? fmaf(scale_b, b[k], x[k]) : x[k];
        r.mean = block_sum(sum, room) / (float)n;
        sum = 0;
    }
    for (int k = threadIdx.x; k < n; k += BLOCK) {
        const float v = (b ? fmaf(scale_b, b[k], x[k]) : x[k]) - r.mean;
        sum = fmaf(v, v, sum);
    }
    r.inverse = 1 / sqrtf(block_sum(sum, room) / (float)n + eps);
    return r;
}

__global__ __launch_bounds__(BLOCK) void norm_kernel(struct gpu_norm o)
{
    follow_previous();
    SHARED(float, room);
    const int row = blockIdx.x;
    float *x = o.x + (size_t)(o.rows ? o.rows[row] : row) * o.ldx;
    const float *add = o.add ? o.add + (size_t)row * o.cols : nullptr;
    row_norm r = { 0, 1 };
    if (o.present) {
        if (add && !o.after_add)
            r = measure(add, nullptr, 0, o.cols, o.layer_norm, o.eps, room);
        else
            r = measure(x, add, o.scale, o.cols, o.layer_norm, o.eps, room);
    }
    const int padded = o.act ? act_padded(o.cols) : o.cols;
    for (int k = threadIdx.x; k < padded; k += BLOCK) {
        if (k >= o.cols) {
            o.act[(size_t)row * o.act_stride + act_place(k, o.order)] = 0;
            continue;
        }
        float v = add && !o.after_add ? add[k] : add ? fmaf(o.scale, add[k], x[k]) : x[k];
        if (o.present) {
            v = (v - r.mean) * r.inverse;
            if (o.layer_norm)
                v = fmaf(v, o.w ? o.w[k] : 1, o.b ? o.b[k] : 0);
            else if (o.w)
                v *= o.w[k] + o.offset;
        }
        if (add)
            x[k] = o.after_add ? v : fmaf(o.scale, v, x[k]);
        if (o.out)
            o.out[(size_t)row * o.ldo + k] = v;
        if (o.act)
            o.act[(size_t)row * o.act_stride + act_place(k, o.order)] = act_of(v);
    }
}

__global__ __launch_bounds__(NORM_THREADS) void rms_norm_kernel(struct gpu_norm o)
{
    follow_previous();
    SHARED(float, room);
    norm_in_registers(o, blockIdx.x, room);
}

/* rms_norm_kernel after x += the sums of parts of k, in their order, with the bits of
 * split_blocks.cuh and finish_tokens(). */
__global__ __launch_bounds__(NORM_THREADS, 1) void norm_parts_kernel(struct gpu_norm o, struct gpu_part_sums s)
{
    launch_dependents();
    SHARED(float, room);
    const int row = blockIdx.x;
    float *const x = o.x + (size_t)row * o.ldx;
    const float *const part = s.part + (size_t)row * s.ld;
    norm_runs v, w, scale;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++)
#pragma unroll
        for (int j = 0; j < NORM_RUN; j++) {
            const int k = (i * NORM_THREADS + threadIdx.x) * NORM_RUN + j;
            w[i][j] = k < o.cols && o.w ? o.w[k] : 1;
            scale[i][j] = k < o.cols
                              ? ACT_UNIT * float_of(load4(s.tiles + (size_t)(k / 32) * s.tile_bytes + k % 32 * 4)) : 0;
            v[i][j] = 0;
        }
    wait_for_prerequisites();
    norm_runs before;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++)
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += 4) {
            const int k = (i * NORM_THREADS + threadIdx.x) * NORM_RUN + j;
            float4 old = make_float4(0, 0, 0, 0);
            if (k < o.cols)
                old = *reinterpret_cast<const float4 *>(x + k);
            before[i][j] = old.x, before[i][j + 1] = old.y, before[i][j + 2] = old.z, before[i][j + 3] = old.w;
        }
#pragma unroll 4
    for (int p = 0; p < s.n_parts; p++)
#pragma unroll
        for (int i = 0; i < NORM_RUNS; i++)
#pragma unroll
            for (int j = 0; j < NORM_RUN; j += 4) {
                const int k = (i * NORM_THREADS + threadIdx.x) * NORM_RUN + j;
                if (k >= o.cols)
                    continue;
                const float4 add = *reinterpret_cast<const float4 *>(part + (size_t)p * o.n * s.ld + k);
                v[i][j] += add.x, v[i][j + 1] += add.y, v[i][j + 2] += add.z, v[i][j + 3] += add.w;
            }
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++)
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += 4) {
            const int k = (i * NORM_THREADS + threadIdx.x) * NORM_RUN + j;
            if (k >= o.cols)
                continue;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float bias = s.bias ? s.bias[k + r] : -0.0f;
                v[i][j + r] = fmaf(s.scale, v[i][j + r] * scale[i][j + r] + bias, before[i][j + r]);
            }
            *reinterpret_cast<float4 *>(x + k) = make_float4(v[i][j], v[i][j + 1], v[i][j + 2], v[i][j + 3]);
        }
    norm_runs_of<NORM_THREADS>(v, w, o, row, room);
}

/* Whether rows of ld floats from p on begin at multiples of 16 bytes. */
static int aligned(const float *p, int ld) { return ((uintptr_t)p & 15) == 0 && ld % 4 == 0; }

extern "C" int gpu_norm_in_registers(const struct gpu_norm *o)
{
    return o->present && !o->layer_norm && !o->add && !o->b && GPU_NORM_TAKES(o->cols) && aligned(o->x, o->ldx) &&
           aligned(o->w, 0) && aligned(o->out, o->ldo);
}

extern "C" int gpu_norm(struct gpu *g, const struct gpu_norm *o, struct err *e)
{
    if (gpu_norm_in_registers(o))
        return launch(g, "norm", rms_norm_kernel, dim3((unsigned)o->n), NORM_THREADS, 32 * sizeof(float), e, *o);
    return launch(g, "norm", norm_kernel, dim3((unsigned)o->n), BLOCK, 32 * sizeof(float), e, *o);
}

extern "C" int gpu_norm_parts(struct gpu *g, const struct gpu_norm *o, const struct gpu_part_sums *s, struct err *e)
{
    if (!gpu_norm_in_registers(o) || o->rows || !aligned(s->part, s->ld))
        return err_set(e, ERR_SHAPE, "norm_parts: rows of %d columns, %d apart", o->cols, o->ldx);
    return launch(g, "norm_parts", norm_parts_kernel, dim3((unsigned)o->n), NORM_THREADS, 32 * sizeof(float), e, *o,
                  *s);
}

__global__ __launch_bounds__(BLOCK) void act_mul_kernel(const float *gate, const float *up, int cols, int function,
                                                        float *out, uint16_t *act, int act_stride,
                                                              int order)
{
    follow_previous();
    const size_t row = blockIdx.y, at = row * cols;
    const int k = blockIdx.x * BLOCK + threadIdx.x;
    if (k >= cols) {
        if (act && k < act_padded(cols))
            act[row * act_stride + act_place(k, order)] = 0;
        return;
    }
    float v = gate[at + k];
    if (function >= 0)
        v = activation(v, function);
    if (up)
        v *= up[at + k];
    if (out)
        out[at + k] = v;
    if (act)
        act[row * act_stride + act_place(k, order)] = act_of(v);
}

static dim3 rows_grid(int n, int cols) { return dim3((unsigned)(cols + BLOCK - 1) / BLOCK, (unsigned)n); }

extern "C" int gpu_act_mul(struct gpu *g, const float *gate, const float *up, int n, int cols, int function, float *out,
                           uint16_t *act, int act_stride, enum gpu_act_order order, struct err *e)
{
    return launch(g, "act_mul", act_mul_kernel, rows_grid(n, cols), BLOCK, 0, e, gate, up, cols, function, out, act,
                  act_stride, order);
}

extern "C" int gpu_act_pack(struct gpu *g, const float *x, int n, int cols, uint16_t *act, int act_stride,
                            enum gpu_act_order order, struct err *e)
{
    return launch(g, "act_pack", act_mul_kernel, rows_grid(n, cols), BLOCK, 0, e, x, (const float *)nullptr, cols, -1,
                  (float *)nullptr, act, act_stride, order);
}

__global__ __launch_bounds__(BLOCK) void sum_parts_kernel(gpu_parts o)
{
    follow_previous();
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < o.n; i += (size_t)gridDim.x * BLOCK) {
        float sum = o.part[0][i];
        for (int k = 1; k < o.n_parts; k++)
            sum += o.part[k][i];
        o.out[i] = sum;
    }
}

extern "C" int gpu_sum_parts(struct gpu *g, const struct gpu_parts *o, struct err *e)
{
    const size_t blocks = (o->n + BLOCK - 1) / BLOCK, most = 1024;
    if (o->n == 0)
        return 0;
    return launch(g, "sum_parts", sum_parts_kernel, dim3((unsigned)(blocks < most ? blocks : most)), BLOCK, 0, e, *o);
}

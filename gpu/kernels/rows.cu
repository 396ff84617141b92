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

enum { WIDE = 512, RUN = 8, RUNS = 2 };    /* a thread has RUNS runs of RUN elements */
static_assert(WIDE * RUN * RUNS == GPU_NORM_MOST, "a row fits");

/* The RMS norm of a row of runs, without a residual.  Addresses are multiples of 16. */
__global__ __launch_bounds__(WIDE) void rms_norm_kernel(struct gpu_norm o)
{
    SHARED(float, room);
    const int row = blockIdx.x;
    const float *x = o.x + (size_t)(o.rows ? o.rows[row] : row) * o.ldx;
    float v[RUNS][RUN], w[RUNS][RUN], sum = 0;
#pragma unroll
    for (int i = 0; i < RUNS; i++)
#pragma unroll
        for (int j = 0; j < RUN; j += 4) {
            const int k = (i * WIDE + threadIdx.x) * RUN + j;
            float4 a = make_float4(0, 0, 0, 0), b = make_float4(1, 1, 1, 1);
            if (k < o.cols && o.w)
                b = *reinterpret_cast<const float4 *>(o.w + k);
            if (k < o.cols)
                a = *reinterpret_cast<const float4 *>(x + k);
            v[i][j] = a.x, v[i][j + 1] = a.y, v[i][j + 2] = a.z, v[i][j + 3] = a.w;
            w[i][j] = b.x, w[i][j + 1] = b.y, w[i][j + 2] = b.z, w[i][j + 3] = b.w;
        }
#pragma unroll
    for (int i = 0; i < RUNS * RUN; i++)
        sum = fmaf((&v[0][0])[i], (&v[0][0])[i], sum);
    const float inverse = 1 / sqrtf(block_sum(sum, room) / (float)o.cols + o.eps), offset = o.w ? o.offset : 0;
    const int padded = o.act ? act_padded(o.cols) : o.cols;
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        const int k = (i * WIDE + threadIdx.x) * RUN;
        if (k >= padded)
            break;
#pragma unroll
        for (int j = 0; j < RUN; j++)
            v[i][j] = v[i][j] * inverse * (w[i][j] + offset);
#pragma unroll
        for (int j = 0; o.out && k < o.cols && j < RUN; j += 4)
            *reinterpret_cast<float4 *>(o.out + (size_t)row * o.ldo + k + j) =
                make_float4(v[i][j], v[i][j + 1], v[i][j + 2], v[i][j + 3]);
#pragma unroll
        for (int j = 0; o.act && j < RUN / 2; j++)      /* elements j and j + 4 are neighbours */
            *reinterpret_cast<uint32_t *>(o.act + (size_t)row * o.act_stride + act_place(k + j, o.order)) =
                pack_half_clamped(v[i][j] * (1 / ACT_UNIT), v[i][j + 4] * (1 / ACT_UNIT));
    }
}

/* Whether rows of ld floats from p on begin at multiples of 16 bytes. */
static int aligned(const float *p, int ld) { return ((uintptr_t)p & 15) == 0 && ld % 4 == 0; }

extern "C" int gpu_norm(struct gpu *g, const struct gpu_norm *o, struct err *e)
{
    if (o->present && !o->layer_norm && !o->add && !o->b && GPU_NORM_TAKES(o->cols) && aligned(o->x, o->ldx) &&
        aligned(o->w, 0) && aligned(o->out, o->ldo))
        return launch(g, "norm", rms_norm_kernel, dim3((unsigned)o->n), WIDE, 32 * sizeof(float), e, *o);
    return launch(g, "norm", norm_kernel, dim3((unsigned)o->n), BLOCK, 32 * sizeof(float), e, *o);
}

__global__ __launch_bounds__(BLOCK) void act_mul_kernel(const float *gate, const float *up, int cols, int function,
                                                        float *out, uint16_t *act, int act_stride,
                                                              int order)
{
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

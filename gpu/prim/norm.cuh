/* norm.cuh - the RMS norm of a row that a block keeps in registers.  Its own kernel (rows.cu) and
 * the last block of a matrix (matvec.cu, expert_matvec.cu) give the same bits. */
#ifndef ZSE_GPU_PRIM_NORM_CUH
#define ZSE_GPU_PRIM_NORM_CUH

#include "gpu/prim/prim.cuh"

enum { NORM_THREADS = 512, NORM_RUN = 8, NORM_RUNS = 2 };       /* a thread has runs of neighbours */
static_assert(NORM_THREADS * NORM_RUN * NORM_RUNS == GPU_NORM_MOST, "a row fits");

/* A thread's runs of a row; 0 beyond the last column. */
typedef float norm_runs[NORM_RUNS][NORM_RUN];

/* Norm and store a row; w: factors. */
DEVICE void norm_runs_of(norm_runs &v, const norm_runs &w, const struct gpu_norm &o, int row, float *room)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < NORM_RUNS * NORM_RUN; i++)
        sum = fmaf((&v[0][0])[i], (&v[0][0])[i], sum);
    const float inverse = 1 / sqrtf(block_sum(sum, room) / (float)o.cols + o.eps), offset = o.w ? o.offset : 0;
    const int padded = o.act ? act_padded(o.cols) : o.cols;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        const int k = (i * NORM_THREADS + threadIdx.x) * NORM_RUN;
        if (k >= padded)
            break;
#pragma unroll
        for (int j = 0; j < NORM_RUN; j++)
            v[i][j] = v[i][j] * inverse * (w[i][j] + offset);
#pragma unroll
        for (int j = 0; o.out && k < o.cols && j < NORM_RUN; j += 4)
            *reinterpret_cast<float4 *>(o.out + (size_t)row * o.ldo + k + j) =
                make_float4(v[i][j], v[i][j + 1], v[i][j + 2], v[i][j + 3]);
#pragma unroll
        for (int j = 0; o.act && j < NORM_RUN / 2; j++)      /* elements j and j + 4 are neighbours */
            *reinterpret_cast<uint32_t *>(o.act + (size_t)row * o.act_stride + act_place(k + j, o.order)) =
                pack_half_clamped(v[i][j] * (1 / ACT_UNIT), v[i][j + 4] * (1 / ACT_UNIT));
    }
}

/* The RMS norm of a row of runs, without a residual.  Addresses are multiples of 16.  room: 32
 * floats of shared memory. */
DEVICE void norm_in_registers(const struct gpu_norm &o, int row, float *room)
{
    const float *x = o.x + (size_t)(o.rows ? o.rows[row] : row) * o.ldx;
    norm_runs v, w;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++)
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += 4) {
            const int k = (i * NORM_THREADS + threadIdx.x) * NORM_RUN + j;
            float4 a = make_float4(0, 0, 0, 0), b = make_float4(1, 1, 1, 1);
            if (k < o.cols && o.w)
                b = *reinterpret_cast<const float4 *>(o.w + k);
            if (k < o.cols)
                a = *reinterpret_cast<const float4 *>(x + k);
            v[i][j] = a.x, v[i][j + 1] = a.y, v[i][j + 2] = a.z, v[i][j + 3] = a.w;
            w[i][j] = b.x, w[i][j + 1] = b.y, w[i][j + 2] = b.z, w[i][j + 3] = b.w;
        }
    norm_runs_of(v, w, o, row, room);
}

/* Norm rows 0 .. n - 1, in a call: inlined, it would take still more registers. */
[[maybe_unused]] __device__ __noinline__ static void norm_rows(struct gpu_norm o, int n, float *room)
{
#pragma unroll 1
    for (int row = 0; row < n; row++)
        norm_in_registers(o, row, room);
}

#endif

/* norm.cuh - the RMS norm of a row that a block keeps in registers.  Its own kernel (rows.cu), the
 * last block of a matrix (matvec.cu, expert_matvec.cu) and the router (route.cu) give the same
 * bits: blocks of fewer threads add up squares as NORM_THREADS threads would. */
#ifndef ZSE_GPU_PRIM_NORM_CUH
#define ZSE_GPU_PRIM_NORM_CUH

#include "gpu/prim/prim.cuh"

enum { NORM_THREADS = 512, NORM_RUN = 8, NORM_RUNS = 2 };       /* a thread has runs of neighbours */
static_assert(NORM_THREADS * NORM_RUN * NORM_RUNS == GPU_NORM_MOST, "a row fits");

/* A thread's runs of a row, of a block of THREADS; 0 beyond the last column. */
template <int THREADS> using row_runs = float[NORM_THREADS / THREADS * NORM_RUNS][NORM_RUN];
typedef row_runs<NORM_THREADS> norm_runs;

template <int THREADS> DEVICE void load_runs(row_runs<THREADS> &v, const float *x, int cols, float beyond)
{
#pragma unroll
    for (int i = 0; i < NORM_THREADS / THREADS * NORM_RUNS; i++)
#pragma unroll
        for (int j = 0; j < NORM_RUN; j += 4) {
            const int k = (i * THREADS + threadIdx.x) * NORM_RUN + j;
            float4 a = make_float4(beyond, beyond, beyond, beyond);
            if (k < cols)
                a = *reinterpret_cast<const float4 *>(x + k);
            v[i][j] = a.x, v[i][j + 1] = a.y, v[i][j + 2] = a.z, v[i][j + 3] = a.w;
        }
}

/* The factor of a row without its weights.  Runs s, s + SHARES ... of a thread are the runs of one
 * thread of the norm's own kernel.  room: 32 floats of shared memory. */
template <int THREADS> DEVICE float norm_inverse(const row_runs<THREADS> &v, const struct gpu_norm &o, float *room)
{
    enum { SHARES = NORM_THREADS / THREADS };
    float sum[SHARES], all = 0;
#pragma unroll
    for (int s = 0; s < SHARES; s++) {
        sum[s] = 0;
#pragma unroll
        for (int i = 0; i < NORM_RUNS * NORM_RUN; i++)
            sum[s] = fmaf(v[i / NORM_RUN * SHARES + s][i % NORM_RUN], v[i / NORM_RUN * SHARES + s][i % NORM_RUN],
                          sum[s]);
        sum[s] = warp_sum(sum[s]);
    }
    __syncthreads();                    /* threads may still read room for the previous row */
#pragma unroll
    for (int s = 0; s < SHARES; s++)
        if (threadIdx.x % 32 == 0)
            room[(s * THREADS + threadIdx.x) / 32] = sum[s];
    __syncthreads();
    const int n_warps = SHARES * blockDim.x / 32;
    for (int i = 0; i < n_warps; i++)
        all += room[i];
    return 1 / sqrtf(all / (float)o.cols + o.eps);
}

/* Norm and store a row; w: factors. */
template <int THREADS = NORM_THREADS>
DEVICE void norm_runs_of(row_runs<THREADS> &v, const row_runs<THREADS> &w, const struct gpu_norm &o, int row,
                         float *room)
{
    const float inverse = norm_inverse<THREADS>(v, o, room), offset = o.w ? o.offset : 0;
    const int padded = o.act ? act_padded(o.cols) : o.cols;
#pragma unroll
    for (int i = 0; i < NORM_THREADS / THREADS * NORM_RUNS; i++) {
        const int k = (i * THREADS + threadIdx.x) * NORM_RUN;
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
template <int THREADS = NORM_THREADS> DEVICE void norm_in_registers(const struct gpu_norm &o, int row, float *room)
{
    row_runs<THREADS> v, w;
    load_runs<THREADS>(w, o.w, o.w ? o.cols : 0, 1);
    load_runs<THREADS>(v, o.x + (size_t)(o.rows ? o.rows[row] : row) * o.ldx, o.cols, 0);
    norm_runs_of<THREADS>(v, w, o, row, room);
}

/* Norm rows 0 .. n - 1, in a call: inlined, it would take still more registers. */
[[maybe_unused]] __device__ __noinline__ static void norm_rows(struct gpu_norm o, int n, float *room)
{
#pragma unroll 1
    for (int row = 0; row < n; row++)
        norm_in_registers(o, row, room);
}

#endif

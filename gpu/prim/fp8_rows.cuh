/* fp8_rows.cuh - tiles of fp8 weights (E4M3 with an f32 scale for 128 k) as operands of products,
 * and the end of such products, whose activations have a scale for each token. */
#ifndef ZSE_GPU_PRIM_FP8_ROWS_CUH
#define ZSE_GPU_PRIM_FP8_ROWS_CUH

#include "gpu/prim/weights.cuh"

enum { FP8_GROUP = 128, FP8_STEP_BYTES = 32 * 32, FP8_SCALES = 32 * 4 /* bytes before a group's codes */,
       FP8_GROUP_BYTES = FP8_SCALES + FP8_GROUP / 32 * FP8_STEP_BYTES };

/* Load 32 k of two rows of a lane: lane 4g + t has rows 16p + 2g and the next one, as rows g and
 * g + 8 of the operand a (mma_s8), of lines t and t + 4 (4 k of 32 rows each). */
DEVICE void fp8_load(uint32_t (&a)[4], const uint8_t *group, int step, int p, int g, int t)
{
    const uint8_t *line = group + FP8_SCALES + step * FP8_STEP_BYTES + t * 128 + p * 64 + g * 8;
    const uint2 low = load_stream8(line), high = load_stream8(line + 512);
    a[0] = low.x, a[1] = low.y, a[2] = high.x, a[3] = high.y;
}

/* The scales of these rows in a group, as two f32. */
DEVICE uint2 fp8_scales(const uint8_t *group, int p, int g) { return load8(group + p * 64 + g * 8); }

/* Store y, a lane's sums of rows `row` and row + 1 and N / 2 tokens, of which y[4i + k] and
 * y[4i + 2 + k] are those of token first + 8i + 2t + k.  As in finish_wide(), nothing is added as
 * -0. */
template <int N> DEVICE void fp8_finish(const float (&y)[N], const gpu_linear &l, int row, int first, int t)
{
    enum { TOGETHER = 8 };              /* old values that are loaded before any is stored */
    const gpu_output &to = l.to[0];
    const int n_rows = min(2, l.w[0].rows - row), n = l.n_tokens - first - 2 * t;
    const bool add = l.finish == GPU_ADD,
               wide = n_rows == 2 && to.ldo % 2 == 0 && (reinterpret_cast<uintptr_t>(to.out) & 7) == 0;
    const float factor = l.finish == GPU_STORE ? 1 : l.scale, *const scales = l.code_scale + first + 2 * t;
    const float bias[2] = { to.bias && n_rows > 0 ? to.bias[row] : -0.0f,
                            to.bias && n_rows > 1 ? to.bias[row + 1] : -0.0f };
    float *const out = to.out + (size_t)(first + 2 * t) * to.ldo + row;
#pragma unroll
    for (int i = 0; i < N / 2; i += TOGETHER) {
        float2 v[TOGETHER];
        float scale[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int token = (i + j) / 2 * 8 + j % 2;
            const float *at = out + (size_t)token * to.ldo;
            v[j] = make_float2(-0.0f, -0.0f);
            scale[j] = token < n ? scales[token] : 0;
            if (add && token < n && wide)
                v[j] = *reinterpret_cast<const float2 *>(at);
            else if (add && token < n && n_rows > 0)
                v[j] = make_float2(at[0], n_rows > 1 ? at[1] : 0);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int token = (i + j) / 2 * 8 + j % 2, k = (i + j) / 2 * 4 + j % 2;
            float *at = out + (size_t)token * to.ldo;
            v[j].x = fmaf(factor, y[k] * scale[j] + bias[0], v[j].x);
            v[j].y = fmaf(factor, y[k + 2] * scale[j] + bias[1], v[j].y);
            if (token < n && wide)
                *reinterpret_cast<float2 *>(at) = v[j];
            else if (token < n && n_rows > 0)
                at[0] = v[j].x;
            if (token < n && !wide && n_rows > 1)
                at[1] = v[j].y;
        }
    }
    if (add || l.limit <= 0)
        return;
#pragma unroll 1
    for (int token = 0; token < min(2 * N, n); token += token & 1 ? 7 : 1)
#pragma unroll 1
        for (int r = 0; r < n_rows; r++)
            out[(size_t)token * to.ldo + r] = limited(l, out[(size_t)token * to.ldo + r]);
}

#endif

/* few_tokens.cuh - multiply a tile of 32 rows by up to 16 tokens.  The warps of a block take
 * chunks of k in turn, and store their partial sums in shared memory. */
#ifndef ZSE_GPU_PRIM_FEW_TOKENS_CUH
#define ZSE_GPU_PRIM_FEW_TOKENS_CUH

#include "gpu/prim/code_sums.cuh"

enum { PAD_ROWS = 36 };                 /* 36: lanes that store 4 rows of token 2t have no bank conflicts */

/* Let L2 load the line of 128 bytes at p; it is read at the end of the kernel. */
DEVICE void load_later(const void *p)
{
#ifdef __CUDACC__
    asm volatile("prefetch.global.L2 [%0];" :: "l"(p));
#else
    (void)p;
#endif
}

/* Store the sums c of a lane in shared memory: to[N][8 * TOKENS8][PAD_ROWS]. */
template <int TOKENS8, int N> DEVICE void store_sums(float *to, const float (&c)[N][TOKENS8][2][4], int g, int t)
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int b = 0; b < TOKENS8; b++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                *reinterpret_cast<float4 *>(to + (i * 8 * TOKENS8 + 8 * b + 2 * t + k) * PAD_ROWS + 4 * g) =
                    make_float4(c[i][b][0][k], c[i][b][0][2 + k], c[i][b][1][k], c[i][b][1][2 + k]);
}

/* The weights and activations of a turn of a warp: STEPS steps of a lane, as loaded. */
template <int TYPE, int TOKENS8, int N> struct few_steps {
    /* whether sums of codes are computed; for 8 bits the registers of two blocks hold two steps */
    static constexpr bool CODES = BY_CODES<TYPE>;
    static constexpr int LOADS = format<TYPE>::raw * N,
                         STEPS = LOADS >= 8 ? 1 : LOADS >= 4 || (CODES && LOADS == 2 * N) ? 2 : 4;
    /* whether a turn is a unit of four groups of 32 k, whose scales are loaded at once */
    static constexpr bool UNITS = HAS_UNITS<TYPE> && STEPS == UNIT_STEPS;
    /* whether all steps of a turn exist (few_end()) */
    static constexpr bool WHOLE = UNITS || CODES;
    /* whether two blocks are worth the registers that are spilled: not with two planes of codes */
    static constexpr bool LIGHT = WHOLE && (CODES || format<TYPE>::raw == 1);
    /* whether a turn's activations are loaded before it: elsewhere registers are scarce */
    static constexpr bool EARLY = TOKENS8 == 1 && N == 2;
    raw_step<TYPE> raw[N][STEPS];
    uint4 scales[N];                    /* of units: byte r of word s is the scale of row r and step s */
    uint4 x[STEPS][TOKENS8];
};

/* Load the weights of the steps of a turn from step `first` on, those that exist; of units all of
 * them. */
template <int TYPE, int TOKENS8, int N>
DEVICE void few_load_weights(few_steps<TYPE, TOKENS8, N> &s, const uint8_t *const (&data)[N], const gpu_mat &m,
                             int first, int g, int t)
{
    typedef few_steps<TYPE, TOKENS8, N> steps;
#pragma unroll
    for (int i = 0; steps::UNITS && i < N; i++) {
        const uint8_t *scales = unit_scales<TYPE>(data[i], (unsigned)first / UNIT_STEPS, g);
        s.scales[i] = load16(scales);
#pragma unroll
        for (int k = 0; k < steps::STEPS; k++) {
            s.raw[i][k].code[0] = load_stream(unit_codes<TYPE>(scales, k, t));
            if constexpr (format<TYPE>::raw == 2)
                s.raw[i][k].code[1] = load_stream(unit_second<TYPE>(scales, k, t));
        }
    }
    if constexpr (steps::CODES) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            code_place p = code_place_of<TYPE>(data[i], m.group_shift, first, g, t);
#pragma unroll
            for (int k = 0; k < steps::STEPS; k++) {
                if (k == 2)
                    p = next_place<TYPE>(p, m.group_shift);
                load_codes_at<TYPE>(s.raw[i][k], p, m.group_shift, k % 2);
            }
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < steps::STEPS; k++) {
        if (!steps::WHOLE && first + k >= m.n_steps)
            break;
#pragma unroll
        for (int i = 0; !steps::UNITS && i < N; i++)
            load_step<TYPE>(s.raw[i][k], data[i], m, first + k, g, t);
    }
}

/* Load the activations of a turn that are loaded before it.  act(b, step, k) returns the 8
 * activations of token 8b + g that this lane needs for step `step` + k; any, if there is no such
 * token. */
template <int TYPE, int TOKENS8, int N, class ACT>
DEVICE void few_load_acts(few_steps<TYPE, TOKENS8, N> &s, const gpu_mat &m, int first, ACT act)
{
    typedef few_steps<TYPE, TOKENS8, N> steps;
#pragma unroll
    for (int k = 0; steps::EARLY && k < steps::STEPS; k++) {
        if (!steps::WHOLE && first + k >= m.n_steps)
            break;
#pragma unroll
        for (int b = 0; b < TOKENS8; b++)
            s.x[k][b] = act(b, first, k);
    }
}

/* Load all of a turn. */
template <int TYPE, int TOKENS8, int N, class ACT>
DEVICE void few_load(few_steps<TYPE, TOKENS8, N> &s, const uint8_t *const (&data)[N], const gpu_mat &m, int first,
                     int g, int t, ACT act)
{
    few_load_weights(s, data, m, first, g, t);
    few_load_acts(s, m, first, act);
}

/* The factor of a signed byte plus 128: with it as its lowest byte, 2^23 + 128 + the factor is a
 * float. */
DEVICE float byte_scale(uint32_t bytes, int i)
{
    return float_of(prmt(bytes, 0x4b000000, (uint32_t)(0x7440 | i))) - 8388736.0f;
}

/* Add the products of one step to c.  If the format has units, the unscaled values are multiplied,
 * and the sums are scaled; scale: a byte for each row. */
template <int TYPE, int TOKENS8, bool UNITS, class TABLE>
DEVICE void few_step(float (&c)[TOKENS8][2][4], const raw_step<TYPE> &raw, uint32_t scale, const uint4 (&x)[TOKENS8],
                     int t, const TABLE &table)
{
    scale ^= 0x80808080u;
#pragma unroll
    for (int p = 0; p < 2; p++) {
        uint32_t even[4], odd[4];
        if (UNITS) {
            decode_codes<TYPE>(even, raw, 2 * p, t, table);
            decode_codes<TYPE>(odd, raw, 2 * p + 1, t, table);
        } else {
            decode_row<TYPE>(even, raw, 2 * p, t, table);
            decode_row<TYPE>(odd, raw, 2 * p + 1, t, table);
        }
        const float by[2] = { byte_scale(scale, 2 * p), byte_scale(scale, 2 * p + 1) };
#pragma unroll
        for (int b = 0; b < TOKENS8; b++) {
            float d[4] = { 0, 0, 0, 0 };
            multiply_rows(UNITS ? d : c[b][p], even, odd, x[b]);
#pragma unroll
            for (int j = 0; UNITS && j < 4; j++)
                c[b][p][j] = fmaf(by[j / 2], d[j], c[b][p][j]);
        }
    }
}

/* Add the products of one step to c, for all matrices; raw(i): the step of matrix i. */
template <int TYPE, int TOKENS8, int N, class RAW>
DEVICE void few_codes(float (&c)[N][TOKENS8][2][4], const uint4 (&x)[TOKENS8], RAW raw)
{
    uint4 in_order[TOKENS8];
    float start[TOKENS8][4];
#pragma unroll
    for (int b = 0; b < TOKENS8; b++) {
        in_order[b] = code_order(x[b]);
        code_bias<TYPE>(start[b], in_order[b]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const raw_step<TYPE> &r = raw(i);
            uint32_t even[4], odd[4];
            code_pairs<TYPE>(even, r, 2 * p);
            code_pairs<TYPE>(odd, r, 2 * p + 1);
            const uint32_t scale = p ? r.scale.y : r.scale.x;
            const float by[2] = { half_low(scale), half_high(scale) };
#pragma unroll
            for (int b = 0; b < TOKENS8; b++) {
                float d[4];
                mma_f16_onto(d, even[0], odd[0], even[1], odd[1], in_order[b].x, in_order[b].y, start[b]);
                mma_f16(d, even[2], odd[2], even[3], odd[3], in_order[b].z, in_order[b].w);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    c[i][b][p][j] = fmaf(by[j / 2], d[j], c[i][b][p][j]);
            }
        }
}

/* The factor by which finished sums are multiplied. */
template <int TYPE> constexpr float FEW_UNIT = BY_CODES<TYPE> ? ACT_UNIT * CODE_UNIT : ACT_UNIT;

/* Add the products of the loaded steps to c. */
template <int TYPE, int TOKENS8, int N, class TABLE, class ACT>
DEVICE void few_multiply(float (&c)[N][TOKENS8][2][4], few_steps<TYPE, TOKENS8, N> &s, const gpu_mat &m, int first,
                         int t, const TABLE &table, ACT act)
{
    typedef few_steps<TYPE, TOKENS8, N> steps;
#pragma unroll
    for (int k = 0; k < steps::STEPS; k++) {
        if (!steps::WHOLE && first + k >= m.n_steps)
            break;
#pragma unroll
        for (int b = 0; !steps::EARLY && b < TOKENS8; b++)
            s.x[k][b] = act(b, first, k);
        if constexpr (steps::CODES) {
            few_codes<TYPE>(c, s.x[k], [&](int i) -> const raw_step<TYPE> & { return s.raw[i][k]; });
            continue;
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            few_step<TYPE, TOKENS8, steps::UNITS>(c[i], s.raw[i][k], steps::UNITS ? word_of(s.scales[i], k) : 0, s.x[k],
                                                  t, table);
    }
}

/* The end of the turns that few_load() loads. */
template <int TYPE, int TOKENS8, int N> DEVICE int few_end(const gpu_mat &m)
{
    typedef few_steps<TYPE, TOKENS8, N> steps;
    if (steps::CODES)                   /* units of two groups */
        return min((m.n_groups >> 1) << (m.group_shift + 1), m.n_steps) & -steps::STEPS;
    return steps::UNITS ? m.n_steps & -UNIT_STEPS : m.n_steps;
}

/* Add the products of the steps after few_end(), which are those of a unit of fewer groups or of a
 * part of a turn, if this is the warp whose turn starts there. */
template <int TYPE, int TOKENS8, int N, class TABLE, class ACT>
DEVICE void few_rest(float (&c)[N][TOKENS8][2][4], const uint8_t *const (&data)[N], const gpu_mat &m, int first, int g,
                     int t, const TABLE &table, ACT act)
{
    typedef few_steps<TYPE, TOKENS8, N> steps;
    if (!steps::WHOLE || first != few_end<TYPE, TOKENS8, N>(m))
        return;
#pragma unroll 1
    for (int step = first; step < m.n_steps; step++) {
        uint4 x[TOKENS8];
        raw_step<TYPE> raw[N];
#pragma unroll
        for (int b = 0; b < TOKENS8; b++)
            x[b] = act(b, step, 0);
#pragma unroll
        for (int i = 0; i < N; i++)
            load_step<TYPE>(raw[i], data[i], m, step, g, t);
        if constexpr (steps::CODES) {
            few_codes<TYPE>(c, x, [&](int i) -> const raw_step<TYPE> & { return raw[i]; });
            continue;
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            few_step<TYPE, TOKENS8, true>(c[i], raw[i], raw[i].scale.x, x, t, table);
    }
}

#endif

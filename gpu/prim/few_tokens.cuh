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

/* The weights and activations of a turn of a warp: STEPS steps of a lane, as loaded.  SHIFT: the
 * group_shift of all matrices, if codes are multiplied as they are, or ANY_GROUPS. */
template <int TYPE, int TOKENS8, int N, int SHIFT = ANY_GROUPS> struct few_steps {
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
    /* SIZED: the size of groups is known.  GROUPS: those of a turn; TOGETHER: steps whose sums are
     * multiplied by a scale together */
    static constexpr bool SIZED = SHIFT != ANY_GROUPS;
    static constexpr int GROUPS = !SIZED || STEPS >> (SIZED ? SHIFT : 0) == 0 ? 1 : STEPS >> (SIZED ? SHIFT : 0),
                         TOGETHER = SIZED && SHIFT > 0 ? 2 : 1;
    static_assert(!SIZED || CODES, "other formats have one size of groups");
    raw_step<TYPE> raw[N][STEPS];
    uint2 group_scale[N][GROUPS];       /* if SIZED: of the lane's rows */
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

/* Load the weights of a turn if the size of groups is known. */
template <int TYPE, int TOKENS8, int N, int SHIFT>
DEVICE void few_load_sized(few_steps<TYPE, TOKENS8, N, SHIFT> &s, const code_place (&place)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        load_turn_scales<TYPE, SHIFT>(s.group_scale[i], place[i]);
#pragma unroll
        for (int k = 0; k < s.STEPS; k++)
            load_turn_codes<TYPE, SHIFT>(s.raw[i][k], place[i], k);
    }
}

/* Load the activations of a turn that are loaded before it.  act(b, step, k) returns the 8
 * activations of token 8b + g that this lane needs for step `step` + k; any, if there is no such
 * token. */
template <int TYPE, int TOKENS8, int N, int SHIFT, class ACT>
DEVICE void few_load_acts(few_steps<TYPE, TOKENS8, N, SHIFT> &s, const gpu_mat &m, int first, ACT act)
{
    typedef few_steps<TYPE, TOKENS8, N, SHIFT> steps;
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

/* Add the products of STEPS steps of one group to c, for all matrices.  raw(i, k): step k of matrix
 * i; scale(i): the scales of the lane's rows; table: bias_words, or any other. */
template <int TYPE, int STEPS, int TOKENS8, int N, class RAW, class SCALE, class TABLE>
DEVICE void few_codes(float (&c)[N][TOKENS8][2][4], const uint4 (*x)[TOKENS8], RAW raw, SCALE scale, const TABLE &table)
{
    constexpr bool HIGH = STEPS > 1 && format<TYPE>::bits == 4;
    const uint4 least = minus_bias<TYPE>(table);
    uint4 in_order[STEPS][TOKENS8];
    float start[TOKENS8][4];
#pragma unroll
    for (int b = 0; b < TOKENS8; b++)
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            in_order[k][b] = code_order(x[k][b]);
#pragma unroll
    for (int b = 0; b < TOKENS8; b++)
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            code_bias(start[b], least, in_order[k][b], k > 0);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float d[2][TOKENS8][4];
        const auto begin = [&](int p, bool high) {
#pragma unroll
            for (int b = 0; b < TOKENS8; b++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    d[p][b][j] = high ? 0 : HIGH ? fmaf(d[p][b][j], HIGH_UNIT, start[b][j]) : start[b][j];
        };
        /* of the first two pairs of codes of a row, or the last two */
        const auto add = [&](int p, bool low, bool high) {
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                uint32_t even[4], odd[4];
                code_pairs<TYPE, HIGH>(even, raw(i, k), 2 * p);
                code_pairs<TYPE, HIGH>(odd, raw(i, k), 2 * p + 1);
#pragma unroll
                for (int b = 0; b < TOKENS8; b++) {
                    const uint4 &o = in_order[k][b];
                    if (low)
                        mma_f16(d[p][b], even[0], odd[0], even[1], odd[1], o.x, o.y);
                    if (high)
                        mma_f16(d[p][b], even[2], odd[2], even[3], odd[3], o.z, o.w);
                }
            }
        };
#pragma unroll
        for (int p = 0; HIGH && p < 2; p++) {
            begin(p, true);
            add(p, false, true);
        }
#pragma unroll
        for (int p = 0; p < 2; p++) {
            begin(p, false);
            add(p, true, !HIGH);
        }
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint32_t scales = p ? scale(i).y : scale(i).x;
            const float by[2] = { half_low(scales), half_high(scales) };
#pragma unroll
            for (int b = 0; b < TOKENS8; b++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    c[i][b][p][j] = fmaf(by[j / 2], d[p][b][j], c[i][b][p][j]);
        }
    }
}

/* The factor by which finished sums are multiplied. */
template <int TYPE> constexpr float FEW_UNIT = BY_CODES<TYPE> ? ACT_UNIT * CODE_UNIT : ACT_UNIT;

/* Add the products of the loaded steps to c. */
template <int TYPE, int TOKENS8, int N, int SHIFT, class TABLE, class ACT>
DEVICE void few_multiply(float (&c)[N][TOKENS8][2][4], few_steps<TYPE, TOKENS8, N, SHIFT> &s, const gpu_mat &m,
                         int first, int t, const TABLE &table, ACT act)
{
    typedef few_steps<TYPE, TOKENS8, N, SHIFT> steps;
#pragma unroll
    for (int k = 0; k < steps::STEPS; k++) {
        if (!steps::WHOLE && first + k >= m.n_steps)
            break;
#pragma unroll
        for (int b = 0; !steps::EARLY && b < TOKENS8; b++)
            s.x[k][b] = act(b, first, k);
        if constexpr (!steps::CODES) {
#pragma unroll
            for (int i = 0; i < N; i++)
                few_step<TYPE, TOKENS8, steps::UNITS>(c[i], s.raw[i][k], steps::UNITS ? word_of(s.scales[i], k) : 0,
                                                      s.x[k], t, table);
        } else if ((k + 1) % steps::TOGETHER == 0) {
            const int from = k + 1 - steps::TOGETHER;
            few_codes<TYPE, steps::TOGETHER>(
                c, s.x + from, [&](int i, int j) -> const raw_step<TYPE> & { return s.raw[i][from + j]; },
                [&](int i) { return steps::SIZED ? s.group_scale[i][from >> (steps::SIZED ? SHIFT : 0)]
                                                 : s.raw[i][k].scale; }, table);
        }
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
        if constexpr (steps::CODES)
            few_codes<TYPE, 1>(c, &x, [&](int i, int) -> const raw_step<TYPE> & { return raw[i]; },
                               [&](int i) { return raw[i].scale; }, table);
        else
#pragma unroll
            for (int i = 0; i < N; i++)
                few_step<TYPE, TOKENS8, true>(c[i], raw[i], raw[i].scale.x, x, t, table);
    }
}

#endif

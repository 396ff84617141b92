/* kernels_avx2.c - the AVX2, FMA and F16C set.  The Makefile compiles *_avx2.c, and only them, with
 * these instructions; nothing here runs unless supported() returned 1.
 *
 * vpmaddubsw multiplies unsigned by signed bytes, adds pairs and saturates at 16 bits.  Narrow
 * values (linear codes of 4 bits, m5, mxfp4, ternary ones) are used as value - smallest value: the
 * sum of 32 k, which starts at the smallest value * the sum of activations, fits into 16 bits;
 * intermediate sums may wrap.  Of m6 the sums of two pairs fit.  For wide values (codebooks up to
 * 127, i8), |x| * (y * sign of x) is at most 127 * 127, so a pair fits and vpmaddwd widens it.
 * 8-bit scales are the multiplier of vpmaddwd, so the sums of an act group need no further
 * instructions.
 *
 * Many tokens, cycles of Zen 3 for 32 products: the bound of its four pipes, and the measured time
 * of the loop alone with its loads.  vpmaddubsw and vpmaddwd run on two of the pipes and take three
 * cycles, vpadd and vpxor run on any pipe and take one, vpsignb runs on two, one of which also
 * multiplies; the scheduler does not keep short operations off the pipes that long ones need.
 *     narrow   vpmaddubsw, vpaddw (and 1/8 of vpmaddwd, vpaddd)                 0.56   0.63
 *     m6       vpmaddubsw, 1/2 (vpaddw, vpmaddwd, vpaddd)                       0.63   0.86
 *     wide     vpxor, vpmaddubsw, vpmaddwd, vpaddd                              1      1.29
 *              the same with vpsignb                                            1      1.39
 * Whole matrices take 0.85 (m5), 1.15 (m6) and 1.48 (nl4) for 128 tokens.  512 take the same,
 * although their activations do not fit into the L2 cache: that is not the limit.
 * Four pipes run 3.2, not 4, operations a cycle that depend on each other: vpaddd after vpmaddwd
 * takes 0.63 cycles a pair, wherever it stands.  So only fewer operations help.  m6 has 1.6
 * multiplications for 32 products; with 16-bit sums of four pairs, which need a seed for every 16
 * k, its loop would take 10 % less time.  This is not done, because such seeds are not stored.
 * Tried for wide values: two halves of 4 bits, each narrow: 1.25, plus unpacking; weights times
 * scales as int16, two vpmaddwd and two vpaddd: 1.33; the same by Winograd's inner product (1968),
 * one vpmaddwd, two vpaddw and one vpaddd: 1.26, plus unpacking to 16 bits.  vpshufb, which takes
 * four activations or their negatives from 8 bytes of each token, in place of vpxor: 1.07 for two
 * octets that share these bytes (vpxor for two octets: 1.11).  Eight tokens then took 0.94 of
 * their time with nl4 and 0.91 with m5 from the cache, but nl4 gained nothing from memory and m6
 * lost 3 %.  A codebook of 7 bits would take 1.06 (0.96 with a seed for every 8 k), one of 6 bits
 * the same as m6.  But as a replacement of nl4, with the same bytes, the mean KL divergence of
 * SmolLM2-135M (gpl-3, windows of 512, default quality) rises from 0.0484 to 0.0497 (nl4's values
 * halved) or 0.0519 (the 6-bit values with the least squared error on its weights, 1.015 times
 * nl4's), and other sets gain nothing, so all sets share one nl4.  */
#include "libcommon/kernels/kernels.h"

#include <cpuid.h>

#define SET(name) avx2_##name

#include "libcommon/kernels/vec_avx2.inc"

static int supported(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           c & bit_F16C;
}

enum { BLOCK_K = 256, PANEL_MAX = 6, STREAM_MAX = 8, SEED_PER_STEP = 0, MORE_BYTES = 256 * TILE_ROWS };

/* -8 times the pair sums that vpmaddubsw forms of 32 codes, as two int16: one sums k 0 and 1 of
 * each four k, the other k 2 and 3.  Computed in halves, because the codes have just been stored in
 * that width. */
INLINE int32_t seed_pair(const int8_t *code)
{
    const __m128i *p = (const __m128i *)(const void *)code, one = _mm_set1_epi8(1);
    __m128i sum = _mm_add_epi16(_mm_maddubs_epi16(one, _mm_loadu_si128(p)),
                                _mm_maddubs_epi16(one, _mm_loadu_si128(p + 1)));
    sum = _mm_add_epi16(sum, _mm_srli_si128(sum, 8));
    sum = _mm_add_epi16(sum, _mm_srli_si128(sum, 4));
    return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), _mm_slli_epi16(sum, 3)));
}
#define SEED(codes, sum) seed_pair(codes)
#define FLOATS_SCRATCH avx2_floats_scratch
#define ACT_RUN(n_tokens) 4

#include "libcommon/kernels/acts.inc"
#include "libcommon/kernels/tokens_ymm.inc"

/* Whether codes are unpacked to value - smallest value, which is small and not negative. */
static int is_narrow(const struct qtype_info *t)
{
    return t->bits < 8 && t->codes != CODES_BOOK;
}

static int bias_of(const struct qtype_info *t)
{
    return t->codes == CODES_E2M1 ? 12 : is_narrow(t) ? -t->value8[0] : 0;
}

/* x, y [T] = 16-bit sums over 32 k of T tokens with two octets: the lines at p and p + 32.  In
 * assembly because compilers spill the 12 sums of T = 6. */
#define LINE_TOKEN(T, j, t) \
    "vpbroadcastd 4*(" #T "*" #j "+" #t ")(%[a]), %%ymm14\n" "vpmaddubsw %%ymm14, %%ymm12, %%ymm15\n" "vpmaddubsw %%ymm14, %%ymm13, %%ymm14\n" \
    "vpaddw %%ymm15, %[x" #t "], %[x" #t "]\n" "vpaddw %%ymm14, %[y" #t "], %[y" #t "]\n"
#define FIRST_TOKEN(T, j, t) \
    "vpbroadcastd 4*" #t "(%[a]), %%ymm14\n" "vpbroadcastd 4*" #t "(%[seed]), %%ymm15\n" \
    "vpmaddubsw %%ymm14, %%ymm12, %[x" #t "]\n" "vpmaddubsw %%ymm14, %%ymm13, %[y" #t "]\n" \
    "vpaddw %%ymm15, %[x" #t "], %[x" #t "]\n" "vpaddw %%ymm15, %[y" #t "], %[y" #t "]\n"
#define LINE(f, T, j) "vmovdqa 128*" #j "(%[p]), %%ymm12\n" "vmovdqa 128*" #j "+32(%[p]), %%ymm13\n" EACH_##T(f, T, j)
#define SUM(t) [x##t] "=&x"(x[t]), [y##t] "=&x"(y[t])
#define DOT_32(T) \
    __asm__ volatile(LINE(FIRST_TOKEN, T, 0) LINE(LINE_TOKEN, T, 1) LINE(LINE_TOKEN, T, 2) LINE(LINE_TOKEN, T, 3) \
                     LINE(LINE_TOKEN, T, 4) LINE(LINE_TOKEN, T, 5) LINE(LINE_TOKEN, T, 6) LINE(LINE_TOKEN, T, 7) \
                     : SUMS_##T : [p] "r"(p), [a] "r"(a), [seed] "r"(seed) : "xmm12", "xmm13", "xmm14", "xmm15", \
                     "memory")

INLINE void dot_32(const int T, __m256i *x, __m256i *y, const uint8_t *p, const int8_t *a, const int32_t *seed)
{
    switch (T) {
    case 4: DOT_32(4); break;
    case 5: DOT_32(5); break;
    default: DOT_32(6); break;
    }
}

/* sum [T] += times * the products of two lines of 6-bit values, v and v2, with the activations at
 * a.  In assembly because compilers load and multiply for all tokens first, and spill. */
#define M6_TOKEN(T, j, t) \
    "vpbroadcastd 4*" #t "(%[a]), %%ymm14\n" "vpbroadcastd 4*(" #T "+" #t ")(%[a]), %%ymm15\n" \
    "vpmaddubsw %%ymm14, %[v], %%ymm14\n" "vpmaddubsw %%ymm15, %[v2], %%ymm15\n" \
    "vpaddw %%ymm15, %%ymm14, %%ymm14\n" "vpmaddwd %[times], %%ymm14, %%ymm14\n" \
    "vpaddd %%ymm14, %[s" #t "], %[s" #t "]\n"
#define M6_SUM(T, j, t) , [s##t] "+x"(sum[t])
#define M6_SUMS(T) [s0] "+x"(sum[0]), [s1] "+x"(sum[1]) M6_SUMS_##T
#define M6_SUMS_2
#define M6_SUMS_3 M6_SUMS_2 M6_SUM(, , 2)
#define M6_SUMS_4 M6_SUMS_3 M6_SUM(, , 3)
#define M6_SUMS_5 M6_SUMS_4 M6_SUM(, , 4)
#define M6_SUMS_6 M6_SUMS_5 M6_SUM(, , 5)
#define M6_SUMS_7 M6_SUMS_6 M6_SUM(, , 6)
#define M6_SUMS_8 M6_SUMS_7 M6_SUM(, , 7)
#define M6_LINES(T) \
    case T: \
        __asm__(EACH_##T(M6_TOKEN, T, 0) \
                : M6_SUMS(T) : [v] "x"(v), [v2] "x"(v2), [times] "x"(times), [a] "r"(a), \
                "m"(*(const int8_t (*)[8 * T])a) : "xmm14", "xmm15"); \
        break;
INLINE void m6_lines(const int T, __m256i *sum, __m256i v, __m256i v2, __m256i times, const int8_t *a)
{
    switch (T) {
    M6_LINES(2) M6_LINES(3) M6_LINES(4) M6_LINES(5) M6_LINES(6) M6_LINES(7) M6_LINES(8)
    }
}

/* Four k of two octets, v and v2, and of three or four tokens with the activations at a.  In
 * assembly because compilers load and multiply for all tokens first, and spill.
 * narrow: x, y [T] += 16-bit sums of pairs.  wide: x, y [T] += times[0], times[1] * sums of four;
 * size: the absolute values of v. */
#define NARROW_TOKEN(T, j, t) \
    "vpbroadcastd 4*" #t "(%[a]), %%ymm14\n" \
    "vpmaddubsw %%ymm14, %[v], %%ymm15\n" "vpmaddubsw %%ymm14, %[v2], %%ymm14\n" \
    "vpaddw %%ymm15, %[x" #t "], %[x" #t "]\n" "vpaddw %%ymm14, %[y" #t "], %[y" #t "]\n"
#define WIDE_TOKEN(T, j, t) \
    "vpbroadcastd 4*" #t "(%[a]), %%ymm14\n" \
    "vpsignb %[v], %%ymm14, %%ymm15\n" "vpsignb %[v2], %%ymm14, %%ymm14\n" \
    "vpmaddubsw %%ymm15, %[size], %%ymm15\n" "vpmaddubsw %%ymm14, %[size2], %%ymm14\n" \
    "vpmaddwd %[times], %%ymm15, %%ymm15\n" "vpmaddwd %[times2], %%ymm14, %%ymm14\n" \
    "vpaddd %%ymm15, %[x" #t "], %[x" #t "]\n" "vpaddd %%ymm14, %[y" #t "], %[y" #t "]\n"
#define ADDED(t) [x##t] "+x"(x[t]), [y##t] "+x"(y[t])
#define ADDED_3 ADDED(0), ADDED(1), ADDED(2)
#define ADDED_4 ADDED_3, ADDED(3)
#define ACTS_IN(T) [a] "r"(a), "m"(*(const int8_t (*)[4 * T])a)
#define NARROW_LINES(T) \
    __asm__(EACH_##T(NARROW_TOKEN, T, 0) : ADDED_##T : [v] "x"(v), [v2] "x"(v2), ACTS_IN(T) : "xmm14", "xmm15")
#define WIDE_LINES(T) \
    __asm__(EACH_##T(WIDE_TOKEN, T, 0) : ADDED_##T : [v] "x"(v), [v2] "x"(v2), [size] "x"(size), [size2] "x"(size2), \
            [times] "m"(times[0]), [times2] "m"(times[1]), ACTS_IN(T) : "xmm14", "xmm15")
INLINE void narrow_lines(const int T, __m256i x[4], __m256i y[4], __m256i v, __m256i v2, const int8_t *a)
{
    if (T == 3)
        NARROW_LINES(3);
    else
        NARROW_LINES(4);
}
INLINE void wide_lines(const int T, __m256i x[4], __m256i y[4], __m256i v, __m256i v2, const __m256i times[4],
                       const int8_t *a)
{
    const __m256i size = _mm256_abs_epi8(v), size2 = _mm256_abs_epi8(v2);
    if (T == 3)
        WIDE_LINES(3);
    else
        WIDE_LINES(4);
}

/* Convert n seeds, each of 32 k, from those for value + 8 to those for value + bias.  The loop
 * takes 8 at a time, so it may read and write up to 7 words past the end, where codes follow. */
INLINE void bias_seeds(int32_t *out, const int32_t *seed, int n, int bias)
{
    const __m256i times = _mm256_set1_epi16((short)bias);
    for (int i = 0; i < n; i += 8) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(seed + i));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_mullo_epi16(_mm256_srai_epi16(x, 3), times));
    }
}

/* The 16-bit scales of an octet as multipliers of vpmaddwd: unpack_block() leaves each in the low
 * half of a dword, and here it is copied to both halves. */
INLINE __m256i scale_twice(__m256 scale)
{
    return _mm256_shuffle_epi8(_mm256_castps_si256(scale),
                               _mm256_set_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100,
                                                                           0x0d0c0d0c, 0x09080908, 0x05040504,
                                                                           0x01000100));
}

/* How the sums of a step are scaled.  SCALED_INT: by 8-bit scales, in integers; SCALED_32: by f32
 * scales, in steps of 32 k; SCALED_MORE: by f32 scales, in longer steps. */
enum { SCALED_INT, SCALED_32, SCALED_MORE };

/* Run a panel of T tokens through an unpacked block of narrow values, two octets at a time: c
 * [T][32] += weights * activations. */
INLINE void dot_narrow(const int T, const int scaled, const struct weights *w, const struct scratch *s, int n_groups,
                       const struct act_panel *panel, float *c0, struct code_prefetch *fetch)
{
    enum { O = 2 };
    const int has_min = w->type->extra != EXTRA_NONE, step = scaled == SCALED_MORE ? w->step : 32;
    int32_t seeds[BLOCK_K / 32 * PANEL_MAX + 7];
    bias_seeds(seeds, panel->seed, n_groups * w->m->act_group / 32 * T, w->bias);
    for (int half = 0; half < 2; half++) {
        struct act_panel a = *panel;
        const uint8_t *line = s->lines + 64 * half;
        const float *scale = s->scale + 16 * half, *min = s->min + 16 * half;
        const int32_t *seed = seeds;
        float *c = c0 + 16 * half;
        for (int g = 0; g < n_groups; g++) {
            __m256i sum[PANEL_MAX][O];
            __m256 inner[PANEL_MAX][O];
            EACH_SUM(t, r)
                sum[t][r] = _mm256_setzero_si256(), inner[t][r] = _mm256_setzero_ps();
            for (int i = 0; i < w->n_steps; i++) {
                const __m256 scale_f[O] = { _mm256_loadu_ps(scale), _mm256_loadu_ps(scale + 8) };
                for (int k = 0; k < step; k += 32, line += 32 * TILE_ROWS, a.code += 32 * T, seed += T) {
                    __m256i pairs[O][PANEL_MAX], times[O];
                    prefetch_next(fetch);
                    dot_32(T, pairs[0], pairs[1], line, a.code, seed);
                    UNROLL for (int r = 0; r < O; r++)
                        times[r] = scaled == SCALED_INT ? scale_twice(scale_f[r]) : _mm256_set1_epi16(1);
                    EACH_SUM(t, r) {
                        const __m256i x = _mm256_madd_epi16(pairs[r][t], times[r]);
                        if (scaled == SCALED_32)
                            inner[t][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), scale_f[r], inner[t][r]);
                        else
                            sum[t][r] = _mm256_add_epi32(sum[t][r], x);
                    }
                }
                if (scaled == SCALED_MORE)
                    EACH_SUM(t, r) {
                        inner[t][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t][r]), scale_f[r], inner[t][r]);
                        sum[t][r] = _mm256_setzero_si256();
                    }
                if (scaled != SCALED_INT && has_min)
                    EACH_SUM(t, r)
                        inner[t][r] = _mm256_fmadd_ps(_mm256_loadu_ps(min + 8 * r), _mm256_set1_ps(a.sum[t]),
                                                      inner[t][r]);
                scale += TILE_ROWS, min += TILE_ROWS;
                a.sum += T;
            }
            EACH_SUM(t, r) {
                float *to = c + 32 * t + 8 * r;
                const __m256 x = scaled == SCALED_INT ? _mm256_cvtepi32_ps(sum[t][r]) : inner[t][r];
                _mm256_storeu_ps(to, _mm256_fmadd_ps(x, _mm256_set1_ps(a.scale[t]), _mm256_loadu_ps(to)));
            }
            a.scale += T;
        }
    }
}

/* An act group of four steps of 32 k, as types with groups of 32 and 8-bit scales mostly have.  The
 * loop for wide values has fewer instructions and takes 1 (nl4) to 5 % (m6) less time if the number
 * of steps is a constant; the loop for narrow values is not faster. */
enum { WHOLE_STEPS = 4 };
INLINE int is_whole(const struct weights *w)
{
    return has_int_scale(w->type) && w->step == 32 && w->n_steps == WHOLE_STEPS;
}

/* Wide values of whole act groups: y * sign of x is (y ^ m) - m, where m is -1 if x is negative and
 * else 0.  vpxor runs on all pipes, vpsignb on two; |x| * (y ^ m) lacks |x| if x is negative.  The
 * sums of those |x| times their scales are the same for all tokens: sum_negatives() stores them,
 * [group][32] int32, in s->min, which 8-bit scales do not use.  |y ^ m| is at most 128, so two
 * products still fit into 16 bits. */
INLINE int has_negatives(const struct weights *w)
{
    return is_whole(w) && !is_narrow(w->type);
}

INLINE __m256i *negatives(const struct scratch *s, int group, int row)
{
    return (__m256i *)(void *)((int32_t *)(void *)s->min + TILE_ROWS * group + row);
}

static __attribute__((noinline)) void sum_negatives(struct scratch *s, int n_groups)
{
    const __m256i one = _mm256_set1_epi8(1), zero = _mm256_setzero_si256();
    for (int g = 0; g < n_groups; g++)
        for (int row = 0; row < TILE_ROWS; row += 8) {
            const uint8_t *line = s->lines + 32 * WHOLE_STEPS * TILE_ROWS * g + 4 * row;
            const float *scale = s->scale + WHOLE_STEPS * TILE_ROWS * g + row;
            __m256i sum = zero;
            for (int i = 0; i < WHOLE_STEPS; i++, scale += TILE_ROWS) {
                __m256i pairs = zero;
                UNROLL for (int j = 0; j < 8; j++, line += 4 * TILE_ROWS) {
                    const __m256i x = _mm256_load_si256((const __m256i *)(const void *)line);
                    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(one, _mm256_min_epi8(x, zero)));
                }
                sum = _mm256_sub_epi32(sum, _mm256_madd_epi16(pairs, scale_twice(_mm256_loadu_ps(scale))));
            }
            _mm256_storeu_si256(negatives(s, g, row), sum);
        }
}

static const uint8_t *unpack(const struct weights *w, const uint8_t *tile, int k0, int n_k, struct scratch *to)
{
    const uint8_t *next = unpack_block(w, tile, k0, n_k, to);
    if (has_negatives(w))
        sum_negatives(to, n_k / w->m->act_group);
    return next;
}

/* Like dot_narrow(), but for values whose sums over 32 k exceed 16 bits, and eight rows at a time.
 * two: a sum of two pairs of products fits in 16 bits (m6).  whole: the value of is_whole(w). */
INLINE void dot_wide(const int T, const int two, const int is_int, const int whole, const struct weights *w,
                     const struct scratch *s, int n_groups, const struct act_panel *panel, float *c,
                     struct code_prefetch *fetch)
{
    const int n_steps = whole ? WHOLE_STEPS : w->n_steps, step = whole ? 32 : w->step, by_xor = whole && !two;
    for (int row = 0; row < TILE_ROWS; row += 8, c += 8) {
        struct act_panel a = *panel;
        const uint8_t *line = s->lines + 4 * row;
        const float *scale = s->scale + row;
        for (int g = 0; g < n_groups; g++) {
            __m256i sum[PANEL_MAX];
            __m256 inner[PANEL_MAX];
            UNROLL for (int t = 0; t < T; t++)
                sum[t] = _mm256_setzero_si256(), inner[t] = _mm256_setzero_ps();
            if (by_xor)
                UNROLL for (int t = 0; t < T; t++)
                    sum[t] = _mm256_loadu_si256(negatives(s, g, row));
            for (int i = 0; i < n_steps; i++, scale += TILE_ROWS) {
                const __m256 scale_f = _mm256_loadu_ps(scale);
                const __m256i times = is_int ? scale_twice(scale_f) : _mm256_set1_epi16(1),
                              four_times = _mm256_slli_epi16(times, 2);
                for (int k = 0; k < step; k += 32, a.code += 32 * T, a.seed += T) {
                    prefetch_next(fetch);
                    if (two)
                        UNROLL for (int t = 0; t < T; t++)
                            sum[t] = _mm256_add_epi32(sum[t],
                                                      _mm256_madd_epi16(_mm256_set1_epi32(a.seed[t]), four_times));
                    UNROLL for (int j = 0; j < 8; j += 1 + two, line += 128 * (1 + two)) {
                        const __m256i v = _mm256_load_si256((const __m256i *)(const void *)line),
                                      size = _mm256_abs_epi8(v);
                        const __m256i v2 = two ? _mm256_load_si256((const __m256i *)(const void *)(line + 128)) : v;
                        if (two)
                            m6_lines(T, sum, v, v2, times, a.code + 4 * j * T);
                        else
                            UNROLL for (int t = 0; t < T; t++) {
                                const __m256i minus = _mm256_cmpgt_epi8(_mm256_setzero_si256(), v);
                                const __m256i y = four(a.code + 4 * (j * T + t)),
                                              b = by_xor ? _mm256_xor_si256(y, minus) : _mm256_sign_epi8(y, v),
                                              pairs = _mm256_maddubs_epi16(size, b);
                                sum[t] = in_order(_mm256_add_epi32(sum[t], _mm256_madd_epi16(pairs, times)));
                            }
                    }
                }
                if (!is_int)
                    UNROLL for (int t = 0; t < T; t++) {
                        inner[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), scale_f, inner[t]);
                        sum[t] = _mm256_setzero_si256();
                    }
            }
            UNROLL for (int t = 0; t < T; t++) {
                const __m256 x = is_int ? _mm256_cvtepi32_ps(sum[t]) : inner[t];
                _mm256_storeu_ps(c + 32 * t, _mm256_fmadd_ps(x, _mm256_set1_ps(a.scale[t]),
                                                             _mm256_loadu_ps(c + 32 * t)));
            }
            a.scale += T;
        }
    }
}

INLINE void dot_panel(const int T, const struct weights *w, const struct scratch *s, int n_groups,
                      const struct act_panel *a, float *c, struct code_prefetch *fetch)
{
    const int is_int = has_int_scale(w->type);
    if (w->bits == 6 && is_whole(w))
        dot_wide(T, 1, 1, 1, w, s, n_groups, a, c, fetch);
    else if (w->bits == 6)
        dot_wide(T, 1, 1, 0, w, s, n_groups, a, c, fetch);
    else if (is_narrow(w->type) && is_int)
        dot_narrow(T, SCALED_INT, w, s, n_groups, a, c, fetch);
    else if (is_narrow(w->type) && w->step == 32)
        dot_narrow(T, SCALED_32, w, s, n_groups, a, c, fetch);
    else if (is_narrow(w->type))
        dot_narrow(T, SCALED_MORE, w, s, n_groups, a, c, fetch);
    else if (is_whole(w))
        dot_wide(T, 0, 1, 1, w, s, n_groups, a, c, fetch);
    else if (is_int)
        dot_wide(T, 0, 1, 0, w, s, n_groups, a, c, fetch);
    else
        dot_wide(T, 0, 0, 0, w, s, n_groups, a, c, fetch);
}

/* With one token, spans of BLOCK_K k are as fast as units. */
#define WHOLE_UNITS(T, codes) \
    ((T) > 1 && ((codes) == STREAM_TABLE || (codes) == STREAM_PLUS_1 || (codes) == STREAM_PLUS_2))
#define IS_WIDE(codes) ((codes) <= STREAM_TABLE_3 || (codes) == STREAM_BYTES)
/* Codes whose loop for three or four tokens and two octets is in assembly. */
#define IN_LINES(codes) (IS_WIDE(codes) || (codes) == STREAM_PLUS_1)
/* VECTORS is the number of sums that fit into the registers: codes that only need masking
 * (IS_PLAIN) take few vectors besides the sums. */
#define IS_PLAIN(codes) ((codes) == STREAM_LINEAR || (codes) == STREAM_FROM_0 || (codes) == STREAM_FROM_M1)
#define VECTORS(T, codes) ((T) == 1 ? 4 : (T) <= 3 || ((T) == 4 && (IS_PLAIN(codes) || IN_LINES(codes))) ? 2 : 1)

/* The scale as int16, twice. */
INLINE __m256i octet_scale(const struct qtype_info *type, __m256i x)
{
    return type->scale == SCALE_S8 ? _mm256_srai_epi16(x, 8) : _mm256_srli_epi16(x, 8);
}

/* Sums of pairs of products |x| * (y * sign of x), for any values.  x is the shared operand: the
 * activations for the octets of one token (vpsignb cannot negate -128, so weights must come from a
 * table), or the weights for several tokens. */
INLINE __m256i wide_pairs(const int T, const int codes, __m256i v, __m256i b)
{
    if (T == 1 && codes <= STREAM_TABLE_3)
        return _mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(v, b));
    return _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(b, v));
}

/* Initial 16-bit sums of 32 k, from the seed for values + 8. */
INLINE __m256i narrow_seed(const int codes, int32_t seed)
{
    const __m256i s = _mm256_set1_epi32(seed);
    switch (codes) {
    case STREAM_FROM_0: return _mm256_setzero_si256();
    case STREAM_FROM_M1: case STREAM_UNPACKED: return _mm256_srai_epi16(s, 3);
    case STREAM_SMALL: return _mm256_add_epi16(s, _mm256_srai_epi16(s, 1));
    case STREAM_PLUS_1: return _mm256_slli_epi16(s, 1);
    default: return s;
    }
}

/* 32 k of 6-bit values; the sums already contain the seeds. */
INLINE void m6_sums(const int T, const int O, const uint8_t *line, const int8_t *code, const __m256i times[4],
                    __m256i sum[][4])
{
    UNROLL for (int i = 0; i < 8; i += 2, code += 8 * T)
        UNROLL for (int r = 0; r < O; r++) {
            const __m256i v = few_codes(STREAM_PLUS_2, line + 32 * r, i),
                          v2 = few_codes(STREAM_PLUS_2, line + 32 * r, i + 1);
            __m256i s[STREAM_MAX];
            UNROLL for (int t = 0; t < T; t++)
                s[t] = sum[t][r];
            m6_lines(T, s, v, v2, times[r], code);
            UNROLL for (int t = 0; t < T; t++)
                sum[t][r] = s[t];
        }
}

/* Four k of an octet, as values. */
INLINE __m256i few_values(const int codes, __m256i table, const uint8_t *line, int i)
{
    const __m256i found = few_codes(codes, line, i);
    return LOOKED_UP_16(codes) ? _mm256_shuffle_epi8(table, found) : found;
}

/* Add 32 k of two octets for three or four tokens.  The 32-bit sums of narrow values stay in memory
 * during the loop, because the 16-bit sums of pairs need the registers. */
INLINE void line_sums(const int T, const int codes, __m256i table, const uint8_t *line, const int8_t *code,
                      const int32_t *seed, const __m256i times[4], __m256i sum[][4])
{
    const int wide = IS_WIDE(codes);
    __m256i x[4], y[4];
    UNROLL for (int t = 0; t < T; t++)
        x[t] = wide ? sum[t][0] : narrow_seed(codes, seed[t]), y[t] = wide ? sum[t][1] : x[t];
    UNROLL for (int i = 0; i < 8; i++, code += 4 * T) {
        const __m256i v = few_values(codes, table, line, i), v2 = few_values(codes, table, line + 32, i);
        if (wide)
            wide_lines(T, x, y, v, v2, times, code);
        else
            narrow_lines(T, x, y, v, v2, code);
    }
    UNROLL for (int t = 0; t < T; t++) {
        sum[t][0] = wide ? x[t] : _mm256_add_epi32(sum[t][0], _mm256_madd_epi16(x[t], times[0]));
        sum[t][1] = wide ? y[t] : _mm256_add_epi32(sum[t][1], _mm256_madd_epi16(y[t], times[1]));
    }
}

STREAM_KINDS_HERE(14);

INLINE void step_sums(const int T, const int O, const int codes, const struct qtype_info *type, const int n_k,
                      const struct weights *w, __m256i table, const uint8_t *line, const int8_t *code,
                      const int32_t *seed, const __m256i scale[4], __m256i sum[][4], uintptr_t *next)
{
    const int wide = IS_WIDE(codes);
    const __m256i one = _mm256_set1_epi16(1);
    for (int k = 0; k < n_k; k += 32, line += CODE_BYTES_32(codes), seed += T) {
        prefetch_codes(w, codes, next, line);
        __m256i pairs[STREAM_MAX][4], times[4], four_times[4];
        UNROLL for (int r = 0; r < O; r++) {
            times[r] = has_int_scale(type) ? scale[r] : one;
            four_times[r] = _mm256_slli_epi16(times[r], 2);
        }
        if ((T == 3 || T == 4) && IN_LINES(codes)) {
            line_sums(T, codes, table, line, code, seed, times, sum);
            code += 32 * T;
            continue;
        }
        EACH_SUM(t, r) {
            if (codes == STREAM_PLUS_2)
                sum[t][r] = _mm256_add_epi32(sum[t][r], _mm256_madd_epi16(_mm256_set1_epi32(seed[t]), four_times[r]));
            else if (!wide)
                pairs[t][r] = narrow_seed(codes, seed[t]);
        }
        if (codes == STREAM_PLUS_2 && T > 1) {
            m6_sums(T, O, line, code, times, sum);
            code += 32 * T;
            continue;
        }
        UNROLL for (int i = 0; i < 8; i++, code += 4 * T)
            UNROLL for (int r = 0; r < O; r++) {
                const __m256i v = few_values(codes, table, line + 32 * r, i);
                UNROLL for (int t = 0; t < T; t++) {
                    const __m256i b = four(code + 4 * t);
                    const __m256i p = wide ? wide_pairs(T, codes, v, b) : _mm256_maddubs_epi16(v, b);
                    const int first = wide || (codes == STREAM_PLUS_2 && i % 2 == 0);
                    const int last = wide || (codes == STREAM_PLUS_2 && i % 2) || i == 7;
                    pairs[t][r] = first ? p : in_order(_mm256_add_epi16(pairs[t][r], p));
                    if (last)
                        sum[t][r] = in_order(_mm256_add_epi32(sum[t][r], _mm256_madd_epi16(pairs[t][r], times[r])));
                }
            }
    }
}

#define TERNARY_DOT 0
#define TERNARY_ROWS(n) 1
enum { TERNARY_TWICE = 0 };

#define UNPACK unpack
#define FIRST_TILES run_turns

#include "libcommon/kernels/ternary.inc"

#include "libcommon/kernels/stream_ymm.inc"

#include "libcommon/kernels/turns.inc"

#include "libcommon/kernels/panels.inc"

const struct kernels kernels_avx2 = KERNELS_SET("avx2", supported, avx2, avx2, avx2);

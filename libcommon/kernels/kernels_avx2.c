/* kernels_avx2.c - AVX2, FMA and F16C.  The Makefile compiles *_avx2.c, and only them, with these instructions; nothing here runs
 * before supported() said yes.
 *
 * vpmaddubsw multiplies unsigned by signed bytes, adds pairs and saturates at 16 bits.
 * Values of up to 16 (linear 4-bit codes, m5, mxfp4, ternary) are used as value + 8 (12, 16, 1): 16 bits hold the sum of 32 k, which begins at -8 (..) * the
 * sum of activations; it does not matter that on the way it wraps.  m6 is used as value + 32: two pairs fit.
 * Values of up to 127: |x| * (y * sign of x) is at most 127 * 127, so a pair fits and vpmaddwd widens each; x is the weight or the activation.
 * Many tokens use such weights as value + 128 in two halves of 4 bits, each as above.
 * 8-bit scales are the multiplier of vpmaddwd: products of 8-bit scales and sums of an act group cost nothing extra. */
#include "libcommon/kernels/kernels.h"

#include <cpuid.h>

#define SET(name) avx2_##name

#include "libcommon/kernels/vec_avx2.inc"

static int supported(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

enum { BLOCK_K = 256, PANEL_MAX = 6, STREAM_MAX = 4, SEED_PER_STEP = 0, MORE_BYTES = BLOCK_K * TILE_ROWS };

/* Two int16: vpmaddubsw adds k 0 and 1, and k 2 and 3, of each four. */
INLINE int32_t seed_pair(const int8_t *code)
{
    int32_t even = 0, odd = 0;
    for (int i = 0; i < 32; i += 4)
        even += code[i] + code[i + 1], odd += code[i + 2] + code[i + 3];
    return (int32_t)((uint32_t)(-8 * odd) << 16 | (uint16_t)(-8 * even));
}
#define SEED(codes, sum) seed_pair(codes)
#define FLOATS_SCRATCH avx2_floats_scratch

#include "libcommon/kernels/acts.inc"
#include "libcommon/kernels/tokens_ymm.inc"

enum { NO_HALVES = 8, HALVES = 128 };                   /* of bias_of, for many tokens */

static int bias_of(const struct qtype_info *t, int few)
{
    const int linear_4 = t->bits == 4 && t->value8[1] == t->value8[0] + 1 && t->value8[15] == t->value8[0] + 15;
    return linear_4 ? (t->value8[0] ? NO_HALVES : 0) : !few ? HALVES : t->type == QT_MXFP4 ? 12 : 0;
}

/* Weights + 128 to their halves: upper ones to lines, lower ones to more. */
static void prepare(const struct weights *w, struct scratch *s, int n_k)
{
    for (int i = 0; w->bias == HALVES && i < n_k * TILE_ROWS; i += 64) {
        vbytes v = vbytes_load(s->lines + i);
        vbytes_store(s->lines + i, vbytes_and(vbytes_shr(v, 4), 15));
        vbytes_store(s->more + i, vbytes_and(v, 15));
    }
}

static const int32_t zeros[PANEL_MAX];

/* x, y [T] = sums in 16 bits of 32 k of T tokens with 8 rows each: the lines at p and q.  In assembly because compilers spill the 12 sums of T = 6. */
#define LINE_TOKEN(T, j, t) \
    "vpbroadcastd 4*(" #T "*" #j "+" #t ")(%[a]), %%ymm14\n" "vpmaddubsw %%ymm14, %%ymm12, %%ymm15\n" "vpmaddubsw %%ymm14, %%ymm13, %%ymm14\n" \
    "vpaddw %%ymm15, %[x" #t "], %[x" #t "]\n" "vpaddw %%ymm14, %[y" #t "], %[y" #t "]\n"
#define LINE(T, j) "vmovdqa 128*" #j "(%[p]), %%ymm12\n" "vmovdqa 128*" #j "(%[q]), %%ymm13\n" EACH_##T(LINE_TOKEN, T, j)
#define BEGIN(T, j, t) "vpbroadcastd 4*" #t "(%[sx]), %[x" #t "]\n" "vpbroadcastd 4*" #t "(%[sy]), %[y" #t "]\n"
#define SUM(t) [x##t] "=&x"(x[t]), [y##t] "=&x"(y[t])
#define DOT_32(T) \
    __asm__ volatile(EACH_##T(BEGIN, T, 0) LINE(T, 0) LINE(T, 1) LINE(T, 2) LINE(T, 3) LINE(T, 4) LINE(T, 5) LINE(T, 6) LINE(T, 7) \
                     : SUMS_##T : [p] "r"(p), [q] "r"(q), [a] "r"(a), [sx] "r"(seed_x), [sy] "r"(seed_y) : "xmm12", "xmm13", "xmm14", "xmm15", "memory")

INLINE void dot_32(const int T, __m256i *x, __m256i *y, const uint8_t *p, const uint8_t *q, const int8_t *a, const int32_t *seed_x, const int32_t *seed_y)
{
    switch (T) {
    case 3: DOT_32(3); break;
    case 4: DOT_32(4); break;
    case 5: DOT_32(5); break;
    default: DOT_32(6); break;
    }
}

/* Linear codes of 4 bits. */
INLINE void dot_lines(const int T, const struct weights *w, vi d[], const uint8_t *line, struct act_panel *a)
{
    const __m256i one = _mm256_set1_epi16(1);
    UNROLL for (int t = 0; t < T; t++)
        d[t] = vi_set(0);
    for (int k = 0; k < w->step; k += 32, line += 32 * TILE_ROWS, a->code += 32 * T, a->seed += T) {
        __m256i x[PANEL_MAX], y[PANEL_MAX];
        const int32_t *seed = w->bias ? a->seed : zeros;
        dot_32(T, x, y, line, line + 32, a->code, seed, seed);
        UNROLL for (int t = 0; t < T; t++)
            d[t] = vi_add(d[t], (vi){ _mm256_madd_epi16(x[t], one), _mm256_madd_epi16(y[t], one) });
    }
}

/* A panel of weights in halves, 8 rows at a time: c [T][32] += weights * activations.  8-bit scales multiply the 16-bit sums as they are added up. */
INLINE void dot_halves(const int T, const int is_int, const struct weights *w, const struct scratch *s, int n_groups, const struct act_panel *panel, float *c)
{
    const __m256i low_twice = _mm256_set_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100, 0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100);
    for (int row = 0; row < TILE_ROWS; row += 8, c += 8) {
        struct act_panel a = *panel;
        const uint8_t *high = s->lines + 4 * row, *low = s->more + 4 * row;
        const float *scale = s->scale + row;
        for (int g = 0; g < n_groups; g++) {
            __m256 inner[PANEL_MAX];
            __m256i sum[PANEL_MAX];
            UNROLL for (int t = 0; t < T; t++)
                inner[t] = _mm256_setzero_ps(), sum[t] = _mm256_setzero_si256();
            for (int i = 0; i < w->n_steps; i++, scale += TILE_ROWS) {
                const __m256 sv = _mm256_loadu_ps(scale);
                const __m256i one = is_int ? _mm256_shuffle_epi8(_mm256_castps_si256(sv), low_twice) : _mm256_set1_epi16(1), sixteen = _mm256_slli_epi16(one, 4);
                for (int k = 0; k < w->step; k += 32, high += 32 * TILE_ROWS, low += 32 * TILE_ROWS, a.code += 32 * T, a.seed += T) {
                    __m256i x[PANEL_MAX], y[PANEL_MAX];
                    dot_32(T, x, y, high, low, a.code, a.seed, zeros);
                    UNROLL for (int t = 0; t < T; t++)
                        sum[t] = _mm256_add_epi32(sum[t], _mm256_add_epi32(_mm256_madd_epi16(x[t], sixteen), _mm256_madd_epi16(y[t], one)));
                }
                if (is_int)
                    continue;
                UNROLL for (int t = 0; t < T; t++) {
                    inner[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), sv, inner[t]);
                    sum[t] = _mm256_setzero_si256();
                }
            }
            UNROLL for (int t = 0; t < T; t++)
                _mm256_storeu_ps(c + 32 * t, _mm256_fmadd_ps(is_int ? _mm256_cvtepi32_ps(sum[t]) : inner[t], _mm256_set1_ps(a.scale[t]), _mm256_loadu_ps(c + 32 * t)));
            a.scale += T;
        }
    }
}

INLINE int dot_other(const int T, const struct weights *w, const struct scratch *s, int n_groups, const struct act_panel *a, float *c)
{
    if (w->bias != HALVES)
        return 0;
    if (has_int_scale(w->type))
        dot_halves(T, 1, w, s, n_groups, a, c);
    else
        dot_halves(T, 0, w, s, n_groups, a, c);
    return 1;
}

#define OCTETS(T) ((T) == 1 ? 4 : (T) == 2 ? 2 : 1)

/* int16, twice. */
INLINE __m256i octet_scale(const struct qtype_info *type, __m256i x)
{
    return type->scale == SCALE_S8 ? _mm256_srai_epi16(x, 8) : _mm256_srli_epi16(x, 8);
}

/* Sums of pairs of products |x| * (y * sign of x), for values of any size.  x is shared: the activations by the octets of
 * one token (vpsignb has no 128, so these weights are from a table), the weights by several tokens. */
INLINE __m256i wide_pairs(const int T, const int codes, __m256i v, __m256i b)
{
    if (T == 1 && codes <= TABLE_3)
        return _mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(v, b));
    return _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(b, v));
}

/* Where the 16-bit sums of 32 k begin, of the seed for values + 8. */
INLINE __m256i narrow_seed(const int codes, int32_t seed)
{
    const __m256i s = _mm256_set1_epi32(seed);
    switch (codes) {
    case FROM_0: return _mm256_setzero_si256();
    case FROM_M1: return _mm256_srai_epi16(s, 3);
    case SMALL: return _mm256_add_epi16(s, _mm256_srai_epi16(s, 1));
    case PLUS_1: return _mm256_slli_epi16(s, 1);
    default: return s;
    }
}

INLINE void step_sums(const int T, const int O, const int codes, const struct qtype_info *type, const int n_k,
                      const struct weights *w, __m256i table, const uint8_t *line, const int8_t *code,
                      const int32_t *seed, const __m256i scale[4], __m256i sum[][4], uintptr_t *next)
{
    const int wide = codes <= TABLE_3 || codes >= BYTES;
    const __m256i one = _mm256_set1_epi16(1);
    for (int k = 0; k < n_k; k += 32, line += CODE_BYTES_32(codes), seed += T) {
        ask_more(w, codes, next, line);
        __m256i pairs[STREAM_MAX][4], times[4], four_times[4];
        UNROLL for (int r = 0; r < O; r++) {
            times[r] = has_int_scale(type) ? scale[r] : one;
            four_times[r] = _mm256_slli_epi16(times[r], 2);
        }
        EACH_SUM(t, r) {
            if (codes == PLUS_2)
                sum[t][r] = _mm256_add_epi32(sum[t][r], _mm256_madd_epi16(_mm256_set1_epi32(seed[t]), four_times[r]));
            else if (!wide)
                pairs[t][r] = narrow_seed(codes, seed[t]);
        }
        UNROLL for (int i = 0; i < 8; i++, code += 4 * T)
            UNROLL for (int r = 0; r < O; r++) {
                const __m256i found = few_codes(codes, line + 32 * r, i);
                const __m256i v = LOOKED_UP_16(codes) ? _mm256_shuffle_epi8(table, found) : found;
                UNROLL for (int t = 0; t < T; t++) {
                    const __m256i b = four(code + 4 * t);
                    const __m256i p = wide ? wide_pairs(T, codes, v, b) : _mm256_maddubs_epi16(v, b);
                    const int first = wide || (codes == PLUS_2 && i % 2 == 0);
                    const int last = wide || (codes == PLUS_2 && i % 2) || i == 7;
                    pairs[t][r] = first ? p : in_order(_mm256_add_epi16(pairs[t][r], p));
                    if (last)
                        sum[t][r] = in_order(_mm256_add_epi32(sum[t][r], _mm256_madd_epi16(pairs[t][r], times[r])));
                }
            }
    }
}

#define TRITS_DOT 0
#define TRITS_ROWS(n) 1
enum { TRITS_TWICE = 0 };

#include "libcommon/kernels/kernels_ymm.inc"

const struct kernels kernels_avx2 = KERNELS_SET("avx2", supported, avx2, avx2, avx2);

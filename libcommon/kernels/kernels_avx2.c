/* kernels_avx2.c - AVX2, FMA and F16C.  The Makefile compiles *_avx2.c, and only them, with these instructions; nothing here runs
 * before supported() said yes.
 *
 * vpmaddubsw multiplies unsigned by signed bytes, adds pairs and saturates at 16 bits.  Many tokens use it on weights of 4 bits: pairs reach
 * 2 * 15 * 127, and 16 bits hold the sum of 32 k.  Linear codes of 4 bits are such weights; of others weight + 128 is cut into two halves, which takes
 * four instructions for 32 products, as many as int16 and vpmaddwd, with half the loads.  The sums begin at -8 * sum of activations (for linear
 * codes - 8, and for the upper half): the end fits into 16 bits then, and it does not matter that on the way they wrap.
 * Few tokens use codes that are not linear as |weight| and activation * sign of weight, where a pair reaches 2 * 127 * 127 at most. */
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
    return linear_4 ? (t->value8[0] ? NO_HALVES : 0) : few ? 0 : HALVES;
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

/* 8 k, of which a group has 4 times as many: at. */
INLINE void few_8(const int T, const int codes, __m256i sum[2][STREAM_MAX], __m256i sum16[2][STREAM_MAX], __m256i table, const uint8_t *p, const uint8_t *high, const int at, const int8_t *c)
{
    const __m256i one = _mm256_set1_epi16(1), nibble = _mm256_set1_epi8(15);
    const int octets = OCTETS(T);
    __m256i pairs[2][STREAM_MAX];                       /* of m6, whose products of 8 k are what 16 bits can hold */
    UNROLL for (int i = 0; i < 2; i++, c += 4 * T)
        EACH_SUM(m, t) {
            __m256i v = few_codes(codes, p, high, m, 2 * at + i, nibble), b = four(c + 4 * t);
            if (codes == TABLE)
                v = _mm256_shuffle_epi8(table, v);
            if (codes == PLUS_2)
                pairs[m][t] = i ? _mm256_add_epi16(pairs[m][t], _mm256_maddubs_epi16(v, b)) : _mm256_maddubs_epi16(v, b);
            else if (codes == LINEAR || codes == FROM_0 || codes == PLUS_1)
                sum16[m][t] = _mm256_add_epi16(sum16[m][t], _mm256_maddubs_epi16(v, b));
            else
                sum[m][t] = _mm256_add_epi32(sum[m][t], _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(b, v)), one));
        }
    if (codes == PLUS_2)
        EACH_SUM(m, t)
            sum[m][t] = _mm256_add_epi32(sum[m][t], _mm256_madd_epi16(pairs[m][t], one));
}

INLINE void dot_few(const int T, const int codes, const struct weights *w, __m256i table, const uint8_t *line, struct act_panel *a, vi d[][2])
{
    const __m256i one = _mm256_set1_epi16(1);
    const int linear = codes == LINEAR || codes == FROM_0 || codes == PLUS_1, more = PLUS(codes), octets = OCTETS(T);
    for (int o = 0; o < 4; o += octets) {
        __m256i sum[2][STREAM_MAX], sum16[2][STREAM_MAX];
        EACH_SUM(i, t)
            sum[i][t] = _mm256_setzero_si256();
        const uint8_t *p = line + 32 * o, *high = line + 512 + 32 * o;
        const int8_t *c = a->code;
        for (int k = 0; k < (more ? 32 : w->step); k += 32) {
            EACH_SUM(i, t) {            /* seeds are for value + 8; codes of m5 and m6 are value + 16 and value + 32 */
                const __m256i seed = _mm256_set1_epi32(codes == LINEAR || more ? a->seed[k / 32 * T + t] : 0);
                sum16[i][t] = codes == PLUS_1 ? _mm256_slli_epi16(seed, 1) : seed;
                if (codes == PLUS_2)
                    sum[i][t] = _mm256_madd_epi16(seed, _mm256_set1_epi16(4));
            }
            if (more)
                UNROLL for (int at = 0; at < 4; at++)
                    few_8(T, codes, sum, sum16, table, p + 128 * at, high, at, c + 8 * at * T);
            else
                for (int j = 0; j < 32; j += 8, p += codes < BYTES ? 128 : 256, c += 8 * T)
                    few_8(T, codes, sum, sum16, table, p, high, 0, c);
            if (linear)
                EACH_SUM(i, t)
                    sum[i][t] = _mm256_add_epi32(sum[i][t], _mm256_madd_epi16(sum16[i][t], one));
        }
        EACH_SUM(i, t)
            vi_store_half(&d[t][(o + i) / 2], (o + i) % 2, sum[i][t]);
    }
    a->code += w->step * T;
    a->seed += w->step / 32 * T;
}

#define TRITS_DOT 0
#define TRITS_ROWS(n) 1
enum { TRITS_TWICE = 0 };

#include "libcommon/kernels/kernels_ymm.inc"

const struct kernels kernels_avx2 = KERNELS_SET("avx2", supported, avx2, avx2, avx2);

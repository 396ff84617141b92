/* kernels_avxvnni.c - vpdpbusd in 32-byte vectors (AVX-VNNI: Alder Lake, Zen 5 and later), for processors and systems without AVX-512; the rest
 * is the AVX2 set's.  The Makefile compiles *_avxvnni.c, and only them, with these instructions; nothing here runs before supported() said yes.
 *
 * vpdpbusd multiplies unsigned by signed bytes, so weights are used as value + 128 and the sums begin at -128 * sum of activations. */
#include "libcommon/kernels/kernels.h"

#include <cpuid.h>

#define SET(name) avxvnni_##name

#include "libcommon/kernels/vec_avx2.inc"

static int supported(void)
{
    unsigned a, b, c, d;
    return kernels_avx2.supported() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}

enum { BLOCK_K = 512, PANEL_MAX = 6, STREAM_MAX = 8, SEED_PER_STEP = 1, MORE_BYTES = 256 * TILE_ROWS, BIAS = 128 };
#define SEED(codes, sum) (-BIAS * (sum))
#define FLOATS_SCRATCH avx2_floats_scratch

#include "libcommon/kernels/acts.inc"
#include "libcommon/kernels/tokens_ymm.inc"

static int bias_of(const struct qtype_info *t, int few) { (void)t, (void)few; return BIAS; }
static void prepare(const struct weights *w, struct scratch *s, int n_k) { (void)w, (void)s, (void)n_k; }

/* d [T] = seed + dot products of 16 rows, T tokens, n lines of 4 k (a multiple of 8).  In assembly because compilers spill the 12 sums of T = 6. */
#define LINE_TOKEN(T, j, t) \
    "vpbroadcastd 4*(" #T "*" #j "+" #t ")(%[a]), %%ymm14\n" "%{vex%} vpdpbusd %%ymm14, %%ymm12, %[x" #t "]\n" "%{vex%} vpdpbusd %%ymm14, %%ymm13, %[y" #t "]\n"
#define LINE(T, j) "vmovdqa 128*" #j "(%[w]), %%ymm12\n" "vmovdqa 128*" #j "+32(%[w]), %%ymm13\n" EACH_##T(LINE_TOKEN, T, j)
#define BEGIN(T, j, t) "vpbroadcastd 4*" #t "(%[seed]), %[x" #t "]\n" "vmovdqa %[x" #t "], %[y" #t "]\n"
#define SUM(t) [x##t] "=&x"(d[t].a), [y##t] "=&x"(d[t].b)
#define DOT_LINES(T) \
    __asm__ volatile(EACH_##T(BEGIN, T, 0) ".p2align 5\n" "1:\n" \
                     LINE(T, 0) LINE(T, 1) LINE(T, 2) LINE(T, 3) LINE(T, 4) LINE(T, 5) LINE(T, 6) LINE(T, 7) \
                     "add $1024, %[w]\n" "add $32*" #T ", %[a]\n" "cmp %[end], %[w]\n" "jb 1b\n" \
                     : SUMS_##T, [w] "+r"(line), [a] "+r"(a->code) : [seed] "r"(a->seed), [end] "r"(line + 32 * w->step) : "xmm12", "xmm13", "xmm14", "cc", "memory")

INLINE void dot_lines(const int T, const struct weights *w, vi d[], const uint8_t *line, struct act_panel *a)
{
    switch (T) {
    case 3: DOT_LINES(3); break;
    case 4: DOT_LINES(4); break;
    case 5: DOT_LINES(5); break;
    default: DOT_LINES(6); break;
    }
    a->seed += T;
}

INLINE int dot_other(const int T, const struct weights *w, const struct scratch *s, int n_groups, const struct act_panel *a, float *c)
{
    (void)T, (void)w, (void)s, (void)n_groups, (void)a, (void)c;
    return 0;
}

/* 8 k, of which a group has 4 times as many: at. */
INLINE void few_8(const int T, const int codes, __m256i sum[2][STREAM_MAX][2], __m256i table, const uint8_t *p, const uint8_t *high, const int at, const int8_t *c)
{
    const __m256i nibble = _mm256_set1_epi8(15), flip = _mm256_set1_epi8((char)0x80);
    const int octets = OCTETS(T), both = T <= 4;                /* two sums each, or the chain of dot products would be too long */
    UNROLL for (int i = 0; i < 2; i++, c += 4 * T)
        EACH_SUM(j, t) {
            __m256i v = few_codes(codes, p, high, j, 2 * at + i, nibble);
            if (codes == BYTES)
                v = _mm256_xor_si256(v, flip);
            else if (codes < BYTES && !PLUS(codes))
                v = _mm256_shuffle_epi8(table, v);
            __m256i *to = &sum[j][t][both && i];
            *to = _mm256_dpbusd_avx_epi32(*to, v, four(c + 4 * t));
        }
}

INLINE void dot_few(const int T, const int codes, const struct weights *w, __m256i table, const uint8_t *line, struct act_panel *a, vi d[][2])
{
    const int octets = OCTETS(T), both = T <= 4, more = PLUS(codes);
    for (int o = 0; o < 4; o += octets) {
        __m256i sum[2][STREAM_MAX][2];
        EACH_SUM(i, t)          /* codes of m5 and m6 are value + 16 and value + 32 */
            sum[i][t][0] = _mm256_set1_epi32(a->seed[t] / (more ? BIAS / (8 << more) : 1)), sum[i][t][1] = _mm256_setzero_si256();
        const uint8_t *p = line + 32 * o, *high = line + 512 + 32 * o;
        const int8_t *c = a->code;
        if (more)
            UNROLL for (int at = 0; at < 4; at++)
                few_8(T, codes, sum, table, p + 128 * at, high, at, c + 8 * at * T);
        else
            for (int k = 0; k < w->step; k += 8, p += codes < BYTES ? 128 : 256, c += 8 * T)
                few_8(T, codes, sum, table, p, high, 0, c);
        EACH_SUM(i, t)
            vi_store_half(&d[t][(o + i) / 2], (o + i) % 2, both ? _mm256_add_epi32(sum[i][t][0], sum[i][t][1]) : sum[i][t][0]);
    }
    a->code += w->step * T;
    a->seed += T;
}

#define TRITS_DOT 1
#define TRITS_ROWS(n) ((n) <= 2 ? 2 : 1)
enum { TRITS_IN_PLACE = 1, TRITS_BY_B = 1, TRITS_TWICE = 0 };

#include "libcommon/kernels/kernels_ymm.inc"

const struct kernels kernels_avxvnni = KERNELS_SET("avxvnni", supported, avxvnni, avx2, avx2);

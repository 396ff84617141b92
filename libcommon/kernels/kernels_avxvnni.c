/* kernels_avxvnni.c - vpdpbusd in 32-byte vectors (AVX-VNNI: Alder Lake, Zen 5 and later), for
 * processors and systems without AVX-512.  The other operations are those of the AVX2 set.  The
 * Makefile compiles *_avxvnni.c, and only them, with these instructions; nothing here runs unless
 * supported() returned 1.
 *
 * vpdpbusd multiplies unsigned by signed bytes, so weights are used as value + 128 and the sums
 * start at -128 * sum of activations. */
#include "libcommon/base/vnni_ymm.h"
#include "libcommon/kernels/kernels.h"

#define SET(name) avxvnni_##name

#include "libcommon/kernels/vec_avx2.inc"

static int supported(void) { return kernels_avx2.supported() && vnni_ymm_supported(); }

enum { BLOCK_K = 512, PANEL_MAX = 6, STREAM_MAX = 8, SEED_PER_STEP = 1, MORE_BYTES = 512 * TILE_ROWS, BIAS = 128 };
#define SEED(codes, sum) (-BIAS * (sum))
#define FLOATS_SCRATCH avx2_floats_scratch
#define ACT_RUN(n_tokens) 4

#include "libcommon/kernels/acts.inc"
#include "libcommon/kernels/tokens_ymm.inc"

static int bias_of(const struct qtype_info *t) { (void)t; return BIAS; }

/* d [T] = seed + dot products of 16 rows, T tokens, n lines of 4 k (a multiple of 8).  In
 * assembly because compilers spill the 12 sums of T = 6. */
#define LINE_TOKEN(T, j, t) \
    "vpbroadcastd 4*(" #T "*" #j "+" #t ")(%[a]), %%ymm14\n" VNNI_ENCODING "vpdpbusd %%ymm14, %%ymm12, %[x" #t "]\n" \
        VNNI_ENCODING "vpdpbusd %%ymm14, %%ymm13, %[y" #t "]\n"
#define LINE(T, j) "vmovdqa 128*" #j "(%[w]), %%ymm12\n" "vmovdqa 128*" #j "+32(%[w]), %%ymm13\n" EACH_##T(LINE_TOKEN, T, j)
#define BEGIN(T, j, t) "vpbroadcastd 4*" #t "(%[seed]), %[x" #t "]\n" "vmovdqa %[x" #t "], %[y" #t "]\n"
#define SUM(t) [x##t] "=&x"(d[t].a), [y##t] "=&x"(d[t].b)
#define DOT_LINES(T) \
    __asm__ volatile(EACH_##T(BEGIN, T, 0) ".p2align 5\n" "1:\n" \
                     LINE(T, 0) LINE(T, 1) LINE(T, 2) LINE(T, 3) LINE(T, 4) LINE(T, 5) LINE(T, 6) LINE(T, 7) \
                     "add $1024, %[w]\n" "add $32*" #T ", %[a]\n" "cmp %[end], %[w]\n" "jb 1b\n" \
                     : SUMS_##T, [w] "+r"(line), [a] "+r"(a->code) : [seed] "r"(a->seed), \
                     [end] "r"(line + 32 * w->step) : "xmm12", "xmm13", "xmm14", "cc", "memory")

INLINE void dot_lines(const int T, const struct weights *w, vi d[], const uint8_t *line, struct act_panel *a)
{
    switch (T) {
    case 4: DOT_LINES(4); break;
    case 5: DOT_LINES(5); break;
    default: DOT_LINES(6); break;
    }
    a->seed += T;
}

/* Run one panel of T tokens through an unpacked block, 16 rows at a time: c [T][32] += weights *
 * activations. */
INLINE void dot_panel(const int T, const struct weights *w, const struct scratch *s, int n_groups,
                      const struct act_panel *panel, float *c0, struct code_prefetch *fetch)
{
    const int has_min = w->type->extra != EXTRA_NONE, is_int = has_int_scale(w->type);
    for (int half = 0; half < 2; half++) {
        struct act_panel a = *panel;
        const uint8_t *line = s->lines + 64 * half;
        const float *scale = s->scale + 16 * half, *min = s->min + 16 * half;
        float *c = c0 + 16 * half;
        for (int g = 0; g < n_groups; g++) {
            vf inner[PANEL_MAX];                        /* with 8-bit scales these hold the bits of int32 */
            UNROLL for (int t = 0; t < T; t++)
                inner[t] = vf_set(0);
            for (int i = 0; i < w->n_steps; i++) {
                vi d[PANEL_MAX];
                prefetch_next(fetch);
                dot_lines(T, w, d, line, &a);
                line += w->step * TILE_ROWS;
                const vf sv = vf_load(scale);
                UNROLL for (int t = 0; t < T; t++) {
                    if (is_int)
                        inner[t] = vf_bits(add_int_scaled(w->type, vi_bits(inner[t]), d[t], vi_bits(sv)));
                    else
                        inner[t] = vf_fma(vf_from_i32(d[t]), sv, inner[t]);
                    if (has_min)
                        inner[t] = vf_fma(vf_load(min), vf_set(a.sum[t]), inner[t]);
                }
                scale += TILE_ROWS;
                min += TILE_ROWS;
                a.sum += T;
            }
            UNROLL for (int t = 0; t < T; t++)
                vf_store(c + 32 * t, vf_fma(is_int ? vf_from_i32(vi_bits(inner[t])) : inner[t], vf_set(a.scale[t]),
                                            vf_load(c + 32 * t)));
            a.scale += T;
        }
    }
}

#define WHOLE_UNITS(T, codes) 0
#define VECTORS(T, codes) ((T) == 1 ? 4 : (T) == 2 ? 2 : 1)

/* Scales in the form that add_scaled() needs.  S8: the scale and 256 times the scale, as 16-bit
 * pairs.  U8: int32. */
INLINE __m256i octet_scale(const struct qtype_info *type, __m256i x)
{
    if (type->scale == SCALE_S8)
        return _mm256_blend_epi16(_mm256_srai_epi16(x, 8), _mm256_slli_epi16(x, 8), 0xaa);
    return _mm256_srli_epi32(x, 24);
}

/* Initial sums, derived from the seed, which is for values + 128: codes that are not looked up
 * have a smaller bias. */
INLINE __m256i few_seed(const int codes, int32_t seed)
{
    const int less = codes == STREAM_LINEAR ? 16 : codes == STREAM_FROM_M1 ? 128 : codes == STREAM_PLUS_1 ? 8
        : codes == STREAM_PLUS_2 ? 4 : 1;
    return _mm256_set1_epi32(codes == STREAM_FROM_0 ? 0 : seed / less);
}

STREAM_KINDS_HERE(14);

INLINE void step_sums(const int T, const int O, const int codes, const struct qtype_info *type, const int n_k,
                      const struct weights *w, __m256i table, const uint8_t *line, const int8_t *code,
                      const int32_t *seed, const __m256i scale[4], __m256i sum[][4], uintptr_t *next)
{
    const __m256i flip = _mm256_set1_epi8((char)0x80);
    __m256i d[STREAM_MAX][4];
    EACH_SUM(t, r)
        d[t][r] = few_seed(codes, seed[t]);
    for (int k = 0; k < n_k; k += 32, line += CODE_BYTES_32(codes)) {
        prefetch_codes(w, codes, next, line);
        UNROLL for (int i = 0; i < 8; i++, code += 4 * T)
            UNROLL for (int r = 0; r < O; r++) {
                const __m256i found = few_codes(codes, line + 32 * r, i);
                const __m256i v = LOOKED_UP_16(codes) ? _mm256_shuffle_epi8(table, found)
                                : codes == STREAM_BYTES ? _mm256_xor_si256(found, flip) : found;
                UNROLL for (int t = 0; t < T; t++)
                    VNNI_BYTES(d[t][r], v, four(code + 4 * t));
            }
    }
    EACH_SUM(t, r)
        if (type->scale == SCALE_S8)
            sum[t][r] = add_scaled(sum[t][r], d[t][r], scale[r]);
        else
            sum[t][r] = _mm256_add_epi32(sum[t][r],
                                         type->scale == SCALE_U8 ? _mm256_mullo_epi32(d[t][r], scale[r]) : d[t][r]);
}

#define TERNARY_DOT 1
#define TERNARY_ROWS(n) ((n) <= 2 ? 2 : 1)
enum { TERNARY_IN_PLACE = 1, TERNARY_BY_B = 1, TERNARY_TWICE = 0 };

#define UNPACK unpack_block

#include "libcommon/kernels/ternary.inc"

#include "libcommon/kernels/stream_ymm.inc"

#include "libcommon/kernels/panels.inc"

const struct kernels kernels_avxvnni = KERNELS_SET("avxvnni", supported, avxvnni, avx2, avx2);

/* kernels_avx2.c - AVX2, FMA and F16C.  The Makefile compiles *_avx2.c, and only them, with these instructions; nothing here runs
 * before supported() said yes.
 *
 * vpmaddubsw saturates (codes and activations both reach 127 and more), and taking it apart by signs costs three instructions on the two
 * multiplier ports for 32 products; vpmaddwd on widened codes costs two, so weights and activations are used as int16. */
#include "libcommon/kernels/kernels.h"

#include <cpuid.h>
#include <limits.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#include "libcommon/kernels/vec_avx2.inc"
#include "libcommon/kernels/rows.inc"
#include "libcommon/kernels/attention.inc"

static int supported(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

enum { BLOCK_K = 256, PANEL_MAX = 6, PAIR = 2, BIAS = 0, F32_PANEL = 6, F32_VECTORS = 1 };
typedef int16_t code_t;

/* Scales of group g of a unit of n: quad q of rows has its four at element 4 * (q * n + g). */
INLINE void quads_8(const uint8_t *area, int n, int g, const int is_signed, vf out[2])
{
    const __m256i at = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(n));
    _Alignas(32) uint8_t t[32];
    _mm256_store_si256((__m256i *)(void *)t, _mm256_i32gather_epi32((const int *)(const void *)(area + 4 * g), at, 4));
    for (int r = 0; r < 2; r++)
        out[r] = is_signed ? vf_load_i8((const int8_t *)t + 16 * r) : vf_load_u8(t + 16 * r);
}

INLINE void quads_f16(const uint8_t *area, int n, int g, vf out[2])
{
    for (int r = 0; r < 2; r++) {
        __m128i v[4];
        for (int i = 0; i < 4; i++)
            v[i] = load8(area + 8 * ((4 * r + i) * n + g));
        out[r] = (vf){ _mm256_cvtph_ps(_mm_unpacklo_epi64(v[0], v[1])), _mm256_cvtph_ps(_mm_unpacklo_epi64(v[2], v[3])) };
    }
}

/* Lines of four k, one signed byte each, to lines of two: k 0 and 2, then k 1 and 3. */
INLINE void widen_lines(int16_t *out, const uint8_t *in, int n_k)
{
    for (int i = 0; i < n_k / 4; i++, in += 128, out += 128)
        UNROLL for (int r = 0; r < 4; r++) {
            __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(in + 32 * r));
            _mm256_storeu_si256((__m256i *)(void *)(out + 16 * r), _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
            _mm256_storeu_si256((__m256i *)(void *)(out + 64 + 16 * r), _mm256_srai_epi16(v, 8));
        }
}

#include "libcommon/kernels/matmul.inc"

/* One panel of T tokens through an unpacked block, 16 rows at a time: c [T][32] += weights * activations. */
INLINE void dot_panel(const int T, const struct weights *w, const struct scratch *s, int n_groups, const struct act_panel *panel, float *c0)
{
    const int has_min = w->type->extra != EXTRA_NONE;
    for (int half = 0; half < 2; half++) {
        struct act_panel a = *panel;
        const int16_t *line = s->w.lines + 32 * half;
        const float *scale = s->scale + 16 * half, *min = s->min + 16 * half;
        float *c = c0 + 16 * half;
        for (int g = 0; g < n_groups; g++) {
            vf inner[PANEL_MAX];
            UNROLL for (int t = 0; t < T; t++)
                inner[t] = vf_set(0);
            for (int i = 0; i < w->n_steps; i++) {
                vi d[PANEL_MAX];
                UNROLL for (int t = 0; t < T; t++)
                    d[t] = vi_set(0);
                for (int k = 0; k < w->step; k += 8) {
                    UNROLL for (int j = 0; j < 4; j++) {
                        vi v = vi_load(line);
                        UNROLL for (int t = 0; t < T; t++) {
                            int32_t two;
                            memcpy(&two, a.code + 2 * t, 4);
                            __m256i q = _mm256_set1_epi32(two);
                            d[t].a = _mm256_add_epi32(d[t].a, _mm256_madd_epi16(v.a, q));
                            d[t].b = _mm256_add_epi32(d[t].b, _mm256_madd_epi16(v.b, q));
                        }
                        line += 64;
                        a.code += 2 * T;
                    }
                }
                const vf sv = vf_load(scale);
                UNROLL for (int t = 0; t < T; t++) {
                    inner[t] = vf_fma(vf_from_i32(d[t]), sv, inner[t]);
                    if (has_min)
                        inner[t] = vf_fma(vf_load(min), vf_set(a.sum[t]), inner[t]);
                }
                scale += TILE_ROWS;
                min += TILE_ROWS;
                a.sum += T;
            }
            UNROLL for (int t = 0; t < T; t++)
                vf_store(c + 32 * t, vf_fma(inner[t], vf_set(a.scale[t]), vf_load(c + 32 * t)));
            a.scale += T;
        }
    }
}

#define DOT(T) \
    static void dot_##T(const struct weights *w, const struct scratch *s, int n_groups, const struct act_panel *a, float *c) \
    { \
        dot_panel(T, w, s, n_groups, a, c); \
    }
DOT(1) DOT(2) DOT(3) DOT(4) DOT(5) DOT(6)

static void (*const dots[])(const struct weights *, const struct scratch *, int, const struct act_panel *, float *) = { dot_1, dot_2, dot_3, dot_4, dot_5, dot_6 };

static void matmul(float *out, size_t ldo, const struct mat *m, int tile0, int tile1, const void *act, int n_tokens, void *scratch)
{
    struct scratch *s = scratch;
    const struct weights w = weights_init(m, BIAS);
    const int panels = n_panels(n_tokens, PANEL_MAX);
    for (int i = tile0; i < tile1; i++) {
        const uint8_t *tile = m->data + (size_t)i * m->tile_bytes;
        memset(s->c, 0, (size_t)n_tokens * TILE_ROWS * sizeof(float));
        for (int k0 = 0; k0 < m->cols_padded; k0 += BLOCK_K) {
            const int n_k = m->cols_padded - k0 < BLOCK_K ? m->cols_padded - k0 : BLOCK_K;
            const struct act_block b = act_block(act, n_tokens, k0, n_k, m->act_group, w.step);
            unpack_block(&w, tile, k0, n_k, s);
            for (int p = 0, t0 = 0, t1; p < panels; p++, t0 = t1) {
                t1 = panel_begin(n_tokens, panels, p + 1);
                struct act_panel a = act_panel(&b, t0, t1 - t0);
                dots[t1 - t0 - 1](&w, s, n_k / m->act_group, &a, s->c + t0 * TILE_ROWS);
            }
        }
        write_rows(out + (size_t)i * TILE_ROWS, ldo, s->c, n_tokens, w.type->row_scale ? (const float *)tile : NULL, tile_rows(m, i));
    }
}

const struct kernels kernels_avx2 = {
    "avx2", supported, act_bytes, act_parts, act_pack, matmul, matmul_f32, scratch_bytes,
    rms_norm, layer_norm, add, act_mul, rope, kv_store_key, kv_store_value, attention, attention_scratch,
};

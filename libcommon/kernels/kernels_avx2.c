/* kernels_avx2.c - AVX2, FMA and F16C.  The Makefile compiles *_avx2.c, and only them, with these instructions; nothing here runs
 * before supported() said yes.
 *
 * vpmaddubsw multiplies unsigned by signed bytes and saturates, so it is used on |weight| and activation * sign of weight, where a pair
 * reaches 2 * 127 * 127 at most.  That is three instructions on the multiplier ports for 32 products; many tokens use weights widened to
 * int16, once for all of them, and vpmaddwd, which is two. */
#include "libcommon/kernels/kernels.h"

#include <cpuid.h>

#define SET(name) avx2_##name

#include "libcommon/kernels/vec_avx2.inc"

static int supported(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

enum { BLOCK_K = 256, PANEL_MAX = 6, STREAM_MAX = 4, PAIR = 2, BIAS = 0 };
typedef int16_t code_t;

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

#include "libcommon/kernels/acts.inc"

/* d [T] = dot products of 16 rows, T tokens, n lines of 2 k (a multiple of 8).  In assembly because compilers spill the 12 sums of T = 6. */
#define LINE_TOKEN(T, j, t) \
    "vpbroadcastd 4*(" #T "*" #j "+" #t ")(%[a]), %%ymm14\n" "vpmaddwd %%ymm14, %%ymm12, %%ymm15\n" "vpmaddwd %%ymm14, %%ymm13, %%ymm14\n" \
    "vpaddd %%ymm15, %[x" #t "], %[x" #t "]\n" "vpaddd %%ymm14, %[y" #t "], %[y" #t "]\n"
#define EACH_1(f, T, j) f(T, j, 0)
#define EACH_2(f, T, j) EACH_1(f, T, j) f(T, j, 1)
#define EACH_3(f, T, j) EACH_2(f, T, j) f(T, j, 2)
#define EACH_4(f, T, j) EACH_3(f, T, j) f(T, j, 3)
#define EACH_5(f, T, j) EACH_4(f, T, j) f(T, j, 4)
#define EACH_6(f, T, j) EACH_5(f, T, j) f(T, j, 5)
#define LINE(T, j) "vmovdqa 128*" #j "(%[w]), %%ymm12\n" "vmovdqa 128*" #j "+32(%[w]), %%ymm13\n" EACH_##T(LINE_TOKEN, T, j)
#define ZERO(T, j, t) "vpxor %[x" #t "], %[x" #t "], %[x" #t "]\n" "vpxor %[y" #t "], %[y" #t "], %[y" #t "]\n"
#define SUM(t) [x##t] "=&x"(d[t].a), [y##t] "=&x"(d[t].b)
#define SUMS_3 SUM(0), SUM(1), SUM(2)
#define SUMS_4 SUMS_3, SUM(3)
#define SUMS_5 SUMS_4, SUM(4)
#define SUMS_6 SUMS_5, SUM(5)
#define DOT_LINES(T) \
    __asm__ volatile(EACH_##T(ZERO, T, 0) ".p2align 5\n" "1:\n" LINE(T, 0) LINE(T, 1) LINE(T, 2) LINE(T, 3) \
                     "add $512, %[w]\n" "add $16*" #T ", %[a]\n" "cmp %[end], %[w]\n" "jb 1b\n" \
                     : SUMS_##T, [w] "+r"(w), [a] "+r"(a) : [end] "r"(w + 64 * n) : "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory")

INLINE void dot_lines(const int T, vi d[], const int16_t *w, const int16_t *a, int n)
{
    switch (T) {
    case 3: DOT_LINES(3); break;
    case 4: DOT_LINES(4); break;
    case 5: DOT_LINES(5); break;
    default: DOT_LINES(6); break;
    }
}

/* One panel of T tokens through an unpacked block, 16 rows at a time: c [T][32] += weights * activations. */
INLINE void dot_panel(const int T, const struct weights *w, const struct scratch *s, int n_groups, const struct act_panel *panel, float *c0)
{
    const int has_min = w->type->extra != EXTRA_NONE, is_int = has_int_scale(w->type), n_lines = w->step / 2;
    for (int half = 0; half < 2; half++) {
        struct act_panel a = *panel;
        const int16_t *line = s->lines + 32 * half, *code = a.code;
        const float *scale = s->scale + 16 * half, *min = s->min + 16 * half;
        float *c = c0 + 16 * half;
        for (int g = 0; g < n_groups; g++) {
            vf inner[PANEL_MAX];                        /* bits of int32 if the scales are 8-bit */
            UNROLL for (int t = 0; t < T; t++)
                inner[t] = vf_set(0);
            for (int i = 0; i < w->n_steps; i++) {
                vi d[PANEL_MAX];
                dot_lines(T, d, line, code, n_lines);
                line += 64 * n_lines;
                code += 2 * T * n_lines;
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
                vf_store(c + 32 * t, vf_fma(is_int ? vf_from_i32(vi_bits(inner[t])) : inner[t], vf_set(a.scale[t]), vf_load(c + 32 * t)));
            a.scale += T;
        }
    }
}

/* n panels of T tokens from token t0 on. */
#define DOT(T) \
    static void dot_##T(const struct weights *w, const struct scratch *s, int n_groups, const struct act_block *b, int t0, int n, float *c) \
    { \
        for (int t = t0; t < t0 + n * T; t += T) { \
            struct act_panel a = act_panel(b, t, T); \
            dot_panel(T, w, s, n_groups, &a, c + t * TILE_ROWS); \
        } \
    }
DOT(3) DOT(4) DOT(5) DOT(6)                             /* more than STREAM_MAX tokens never make panels of one or two */
typedef void dot_fn(const struct weights *, const struct scratch *, int, const struct act_block *, int, int, float *);
static dot_fn *const dots[] = { NULL, NULL, NULL, dot_3, dot_4, dot_5, dot_6 };

/* c += a step of few tokens: 32 rows, lines of 4-bit (bits 4) or 8-bit codes as they lie in a tile. */
INLINE void dot_step(const int T, const int bits, struct table table, const uint8_t *line, int step, const int8_t *code, vi d[][2])
{
    UNROLL for (int q = 0; q < 4; q++) {                /* 8 rows at a time */
        __m256i sum[STREAM_MAX];
        UNROLL for (int t = 0; t < T; t++)
            sum[t] = _mm256_setzero_si256();
        const uint8_t *p = line + 32 * q;
        const int8_t *c = code;
        for (int k = 0; k < step; k += 8)
            UNROLL for (int i = 0; i < 2; i++, c += 4 * T) {
                const uint8_t *at = p + (bits == 4 ? 0 : 128 * i);
                __m256i v = _mm256_load_si256((const __m256i *)(const void *)at);
                if (bits == 4)
                    v = _mm256_shuffle_epi8(table.t[0], _mm256_and_si256(i ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15)));
                const __m256i size = _mm256_abs_epi8(v);
                UNROLL for (int t = 0; t < T; t++) {
                    int32_t four;
                    memcpy(&four, c + 4 * t, 4);
                    __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(_mm256_set1_epi32(four), v));
                    sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                }
                if (i)
                    p += bits == 4 ? 128 : 256;
            }
        UNROLL for (int t = 0; t < T; t++) {
            if (q % 2)
                d[t][q / 2].b = sum[t];
            else
                d[t][q / 2].a = sum[t];
        }
    }
}

/* Few tokens straight from a tile: pure streaming.  Codes of other widths are unpacked group by group. */
INLINE void dot_stream(const int T, const int bits, const struct qtype_info type, const struct weights *w, const uint8_t *tile, int k0, int n_k, struct act_panel a, float *c, uint8_t *lines)
{
    const struct mat *m = w->m;
    const struct table table = table_load(w->table, w->bits);
    const int n_steps = m->group_size > w->step ? m->group_size / w->step : 1, skip = m->group_size < w->step ? w->step / m->group_size : 1;
    const int8_t *code = a.code;
    const int is_int = has_int_scale(&type);
    vf inner[STREAM_MAX][2] = { { { { 0 }, { 0 } } } };
    vi whole[STREAM_MAX][2] = { { { { 0 }, { 0 } } } };         /* instead of inner */
    int steps_left = w->n_steps, group = k0 / m->group_size;
    const uint8_t *p = unit_at(m, tile, group);
    for (const int end = (k0 + n_k) / m->group_size; group < end; ) {
        const int n = skip > 1 ? skip : unit_n(m, group);
        const uint8_t *unit = p;
        p += areas(&type, n);
        for (int g = 0; g < n; g += skip) {
            vf s[2] = { vf_set(0), vf_set(0) }, x[2] = { vf_set(0), vf_set(0) };
            vi si[2] = { vi_set(0), vi_set(0) };
            if (is_int)
                group_int_scales(&type, unit, n, g, si);
            else
                group_scales(&type, unit, n, g, s, x);
            const uint8_t *line = p;
            for (size_t i = 0; i < m->group_bytes * (size_t)skip; i += 512)
                prefetch_512(p + i, w->ahead);
            p += m->group_bytes * (size_t)skip;
            if (bits == 0) {
                unpack_group(w, lines, line, 0);
                line = lines;
            }
            for (int i = 0; i < n_steps; i++) {
                vi d[STREAM_MAX][2];
                dot_step(T, bits == 4 ? 4 : 8, table, line, w->step, code, d);
                line += w->step * (bits == 4 ? 16 : 32);
                code += w->step * T;
                UNROLL for (int t = 0; t < T; t++)
                    UNROLL for (int r = 0; r < 2; r++) {
                        if (is_int)
                            whole[t][r] = add_int_scaled(&type, whole[t][r], d[t][r], si[r]);
                        else
                            inner[t][r] = vf_fma(vf_from_i32(d[t][r]), s[r], inner[t][r]);
                        if (type.extra != EXTRA_NONE)
                            inner[t][r] = vf_fma(x[r], vf_set(a.sum[t]), inner[t][r]);
                    }
                a.sum += T;
                if (--steps_left)
                    continue;
                UNROLL for (int t = 0; t < T; t++)
                    UNROLL for (int r = 0; r < 2; r++) {
                        vf_store(c + 32 * t + 16 * r, vf_fma(is_int ? vf_from_i32(whole[t][r]) : inner[t][r], vf_set(a.scale[t]), vf_load(c + 32 * t + 16 * r)));
                        inner[t][r] = vf_set(0);
                        whole[t][r] = vi_set(0);
                    }
                a.scale += T;
                steps_left = w->n_steps;
            }
        }
        group += n;
    }
}

/* What the most used types are is known when these are compiled: S is nl4, F is i4, i8; X is any. */
#define STREAM_S(T, bits) dot_stream(T, bits, (struct qtype_info){ .scale = SCALE_S8 }, w, tile, k0, n_k, a, c, lines)
#define STREAM_F(T, bits) dot_stream(T, bits, (struct qtype_info){ .scale = SCALE_F16 }, w, tile, k0, n_k, a, c, lines)
#define STREAM_X(T, bits) dot_stream(T, bits, *w->type, w, tile, k0, n_k, a, c, lines)
#define STREAM(name, T, bits, kind) \
    static void name##_##T(const struct weights *w, const uint8_t *tile, int k0, int n_k, struct act_panel a, float *c, uint8_t *lines) { (void)lines, kind(T, bits); }
#define STREAMS(T) \
    STREAM(stream_nl4, T, 4, STREAM_S) STREAM(stream_i4, T, 4, STREAM_F) STREAM(stream_4, T, 4, STREAM_X) \
    STREAM(stream_i8, T, 8, STREAM_F) STREAM(stream_8, T, 8, STREAM_X) STREAM(stream_x, T, 0, STREAM_X)
STREAMS(1) STREAMS(2) STREAMS(3) STREAMS(4)

#define FOUR(name) { name##_1, name##_2, name##_3, name##_4 }
typedef void stream_fn(const struct weights *, const uint8_t *, int, int, struct act_panel, float *, uint8_t *);
static stream_fn *const stream_nl4[] = FOUR(stream_nl4), *const stream_i4[] = FOUR(stream_i4), *const stream_4[] = FOUR(stream_4),
                 *const stream_i8[] = FOUR(stream_i8), *const stream_8[] = FOUR(stream_8), *const stream_x[] = FOUR(stream_x);

static stream_fn *stream_of(const struct qtype_info *t, int n_tokens)
{
    stream_fn *const *s = t->type == QT_NL4 ? stream_nl4 : t->type == QT_I4 ? stream_i4 : t->type == QT_I8 ? stream_i8 : t->bits == 4 ? stream_4 : t->bits == 8 ? stream_8 : stream_x;
    return n_tokens <= STREAM_MAX ? s[n_tokens - 1] : NULL;
}

void SET(matmul)(float *out, size_t ldo, const struct mat *m, int tile0, int tile1, const void *act, int n_tokens, void *scratch)
{
    struct scratch *s = scratch;
    const struct weights w = weights_init(m, BIAS);
    const int panels = act_panels(n_tokens), tokens = n_tokens / panels, n_more = n_tokens % panels;   /* panels of one token more come first */
    stream_fn *stream = stream_of(w.type, n_tokens);
    for (int i = tile0; i < tile1; i++) {
        const uint8_t *tile = m->data + (size_t)i * m->tile_bytes;
        memset(s->c, 0, (size_t)n_tokens * TILE_ROWS * sizeof(float));
        for (int k0 = 0; k0 < m->cols_padded; k0 += BLOCK_K) {
            const int n_k = m->cols_padded - k0 < BLOCK_K ? m->cols_padded - k0 : BLOCK_K;
            const struct act_block b = act_block(act, n_tokens, k0, n_k, m->act_group, w.step);
            if (stream) {
                stream(&w, tile, k0, n_k, act_panel(&b, 0, n_tokens), s->c, s->group);
                continue;
            }
            const uint8_t *next = unpack_block(&w, tile, k0, n_k, s);
            for (int j = 0; j < BLOCK_K * w.bits * 4; j += 64)      /* come while the block at hand is multiplied */
                prefetch(next + j);
            if (n_more)
                dots[tokens + 1](&w, s, n_k / m->act_group, &b, 0, n_more, s->c);
            dots[tokens](&w, s, n_k / m->act_group, &b, n_more * (tokens + 1), panels - n_more, s->c);
        }
        write_rows(out + (size_t)i * TILE_ROWS, ldo, s->c, n_tokens, w.type->row_scale ? (const float *)tile : NULL, tile_rows(m, i));
    }
}

const struct kernels kernels_avx2 = KERNELS_SET("avx2", supported, avx2, avx2);

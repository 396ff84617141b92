/* kernels_avx512.c - the AVX-512 set, with VNNI and VBMI (Ice Lake, Zen 4 and later).  The Makefile
 * compiles *_avx512.c, and only them, with these instructions; nothing here runs unless supported()
 * returned 1.  __builtin_cpu_supports() also checks that the operating system saves the wide
 * registers, which CPUID alone does not tell.
 *
 * vpdpbusd multiplies unsigned by signed bytes, so weights are used as value + 128 and the sums
 * start at -128 * sum of activations. */
#include "libcommon/kernels/kernels.h"


#define SET(name) avx512_##name

#include "libcommon/kernels/vec_avx512.inc"

static int supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("fma");
}

enum { BLOCK_K = 512, PANEL_MAX = 6, STREAM_MAX = 12, BIAS = 128, SEED_PER_STEP = 1, MORE_BYTES = 64 };
#define SEED(codes, sum) (-BIAS * (sum))
#define FLOATS_SCRATCH avx512_floats_scratch
#define ACT_RUN(n_tokens) 4

#include "libcommon/kernels/acts.inc"

/* The codes of the next block, which are prefetched line by line while this block is multiplied;
 * step 0: no prefetch. */
struct code_prefetch { const uint8_t *p; size_t step; };

/* d [T][2] = seed + dot products of 32 rows, T tokens, n lines of 4 k (a multiple of 8).  It is in
 * assembly because compilers that see the loop move and spill the 12 sums of T = 6, which costs a
 * third of the speed.  (T is above 6 only where few tokens are multiplied by a type that has no
 * streaming loop.)  For every second token, vpdpbusd broadcasts the activations from its memory
 * operand, without a load of their own; two loads a cycle are possible, so this costs nothing.  It
 * saves three instructions a line, which gain 5 % while the core's other hyperthread takes half of
 * the decoder. */
#define LINE_LOADED(T, j, t) \
    "vpbroadcastd 4*(" #T "*" #j "+" #t ")(%[a]), %%zmm31\n" "vpdpbusd %%zmm31, %%zmm29, %[x" #t "]\n" \
        "vpdpbusd %%zmm31, %%zmm30, %[y" #t "]\n"
#define LINE_DIRECT(T, j, t) \
    "vpdpbusd 4*(" #T "*" #j "+" #t ")(%[a])%{1to16%}, %%zmm29, %[x" #t "]\n" "vpdpbusd 4*(" #T "*" #j "+" #t \
        ")(%[a])%{1to16%}, %%zmm30, %[y" #t "]\n"
#define EACH_1(f, g, T, j) f(T, j, 0)
#define EACH_2(f, g, T, j) EACH_1(f, g, T, j) g(T, j, 1)
#define EACH_3(f, g, T, j) EACH_2(f, g, T, j) f(T, j, 2)
#define EACH_4(f, g, T, j) EACH_3(f, g, T, j) g(T, j, 3)
#define EACH_5(f, g, T, j) EACH_4(f, g, T, j) f(T, j, 4)
#define EACH_6(f, g, T, j) EACH_5(f, g, T, j) g(T, j, 5)
#define LINE(T, j) \
    "vmovdqa64 128*" #j "(%[w]), %%zmm29\n" "vmovdqa64 128*" #j "+64(%[w]), %%zmm30\n" "prefetcht0 (%[next])\n" \
        "add %[step], %[next]\n" EACH_##T(LINE_LOADED, LINE_DIRECT, T, j)
#define BEGIN(T, j, t) "vpbroadcastd 4*" #t "(%[seed]), %[x" #t "]\n" "vmovdqa64 %[x" #t "], %[y" #t "]\n"
#define SUM(t) [x##t] "=&v"(d[t][0]), [y##t] "=&v"(d[t][1])
#define SUMS_1 SUM(0)
#define SUMS_2 SUMS_1, SUM(1)
#define SUMS_3 SUMS_2, SUM(2)
#define SUMS_4 SUMS_3, SUM(3)
#define SUMS_5 SUMS_4, SUM(4)
#define SUMS_6 SUMS_5, SUM(5)
#define DOT_LINES(T) \
    __asm__ volatile(EACH_##T(BEGIN, BEGIN, T, 0) ".p2align 5\n" "1:\n" \
                     LINE(T, 0) LINE(T, 1) LINE(T, 2) LINE(T, 3) LINE(T, 4) LINE(T, 5) LINE(T, 6) LINE(T, 7) \
                     "add $1024, %[w]\n" "add $32*" #T ", %[a]\n" "cmp %[end], %[w]\n" "jb 1b\n" \
                     : SUMS_##T, [w] "+r"(w), [a] "+r"(a), [next] "+r"(next->p) : [step] "r"(next->step), \
                     [seed] "r"(seed), [end] "r"(w + 128 * n) : "zmm29", "zmm30", "zmm31", "cc", "memory")

INLINE __m512i bcast4(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}

INLINE void dot_lines(const int T, __m512i d[][2], const int8_t *w, const int8_t *a, const int32_t *seed, int n,
                      struct code_prefetch *next)
{
    switch (T) {
    case 1: DOT_LINES(1); break;
    case 2: DOT_LINES(2); break;
    case 3: DOT_LINES(3); break;
    case 4: DOT_LINES(4); break;
    case 5: DOT_LINES(5); break;
    case 6: DOT_LINES(6); break;
    default:
        UNROLL for (int t = 0; t < T; t++)
            d[t][0] = d[t][1] = vi_set(seed[t]);
        for (int i = 0; i < n; i++, w += 128, a += 4 * T, next->p += next->step) {
            prefetch_line(next->p);
            const __m512i v0 = vi_load(w), v1 = vi_load(w + 64);
            UNROLL for (int t = 0; t < T; t++) {
                const __m512i q = bcast4(a + 4 * t);
                d[t][0] = _mm512_dpbusd_epi32(d[t][0], v0, q);
                d[t][1] = _mm512_dpbusd_epi32(d[t][1], v1, q);
            }
        }
    }
}

/* Run one panel of T tokens through an unpacked block: c [T][32] += weights * activations.  ONE:
 * an act group is one step, and the running sums stay in registers.  MANY, INT: the sums of an
 * act group stay in registers (INT: as int32) and are added to c after each act group. */
enum { MANY, ONE, INT };
INLINE void dot_panel(const int T, const int kind, const struct weights *w, const struct scratch *s, int n_groups,
                      struct act_panel a, float *c, struct code_prefetch *next)
{
    const int8_t *line = (const int8_t *)s->lines;
    const float *scale = s->scale, *min = w->type->extra == EXTRA_NONE ? NULL : s->min;
    const int8_t *code = a.code;
    const int n_lines = w->step / 4, n_steps = kind == ONE ? 1 : w->n_steps;
    __m512 f[STREAM_MAX][2];
    if (kind == ONE)
        UNROLL for (int t = 0; t < T; t++)
            f[t][0] = vf_load(c + 32 * t), f[t][1] = vf_load(c + 32 * t + 16);
    for (int g = 0; g < n_groups; g++) {
        __m512 inner[STREAM_MAX][2];
        __m512i whole[STREAM_MAX][2];
        UNROLL for (int t = 0; t < T; t++) {
            inner[t][0] = inner[t][1] = vf_set(0);
            whole[t][0] = whole[t][1] = vi_set(0);
        }
        for (int i = 0; i < n_steps; i++) {
            __m512i d[STREAM_MAX][2];
            dot_lines(T, d, line, code, a.seed, n_lines, next);
            line += 128 * n_lines;
            code += 4 * T * n_lines;
            a.seed += T;
            UNROLL for (int r = 0; r < 2; r++) {
                const __m512 v = vf_load(scale + 16 * r);
                if (kind == INT && w->type->scale == SCALE_S8)
                    UNROLL for (int t = 0; t < T; t++)
                        whole[t][r] = vi_add_scaled(whole[t][r], d[t][r], vi_bits(v));
                else if (kind == INT)
                    UNROLL for (int t = 0; t < T; t++)
                        whole[t][r] = vi_add(whole[t][r], vi_mul(d[t][r], vi_bits(v)));
                else
                    UNROLL for (int t = 0; t < T; t++)
                        inner[t][r] = kind == ONE ? vf_mul(vf_from_i32(d[t][r]), v)
                                                  : vf_fma(vf_from_i32(d[t][r]), v, inner[t][r]);
            }
            scale += 32;
            if (kind != INT && min) {
                UNROLL for (int t = 0; t < T; t++)
                    UNROLL for (int r = 0; r < 2; r++)
                        inner[t][r] = vf_fma(vf_load(min + 16 * r), vf_set(a.sum[t]), inner[t][r]);
                min += 32;
                a.sum += T;
            }
        }
        UNROLL for (int t = 0; t < T; t++)
            UNROLL for (int r = 0; r < 2; r++) {
                const __m512 as = vf_set(a.scale[t]);
                if (kind == ONE)
                    f[t][r] = vf_fma(inner[t][r], as, f[t][r]);
                else
                    vf_store(c + 32 * t + 16 * r,
                             vf_fma(kind == INT ? vf_from_i32(whole[t][r]) : inner[t][r], as,
                                    vf_load(c + 32 * t + 16 * r)));
            }
        a.scale += T;
    }
    if (kind == ONE)
        UNROLL for (int t = 0; t < T; t++)
            vf_store(c + 32 * t, f[t][0]), vf_store(c + 32 * t + 16, f[t][1]);
}

#define TERNARY_DOT 1
#define TERNARY_ROWS(n) 2
enum { TERNARY_IN_PLACE = 2, TERNARY_BY_B = 4, TERNARY_TWICE = 1 };
#include "libcommon/kernels/ternary.inc"

/* Codes of line `out` of 8, in the low bits of bytes whose other bits are undefined: `bits` bits
 * of a code are in low, the `more` bits above them in the plane at high. */
INLINE __m512i stream_codes(__m512i low, const uint8_t *high, const int bits, const int more, const int out)
{
    const int at = out * bits % 8, shift = out * more % 8 - bits;
    const __m512i v = at ? vbytes_shr(low, at) : low;
    if (!more)
        return v;
    __m512i h = vi_load(high + out * more / 8 * 128);
    h = shift > 0 ? _mm512_srli_epi16(h, (unsigned)shift) : shift < 0 ? _mm512_slli_epi16(h, (unsigned)-shift) : h;
    /* mask ? v : h, bit by bit */
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)((1 << bits) - 1)), v, h, 0xca);
}

typedef vf lanes_f;
typedef vi lanes_i, lanes_table;
enum { LANES = 16, TERNARY_FEW = STREAM_MAX };
#define WHOLE_UNITS(T, codes) 0
#define VECTORS(T, codes) 2
#define KEEP_SUMS(T) ((T) <= 4)                         /* more sums do not fit */
#define FEW(ymm, zmm) zmm
INLINE lanes_i lanes_zero(void) { return vi_set(0); }
INLINE lanes_f lanes_set(float x) { return vf_set(x); }
INLINE lanes_f lanes_fma(lanes_f x, lanes_f y, lanes_f z) { return vf_fma(x, y, z); }
INLINE lanes_f lanes_from_i32(lanes_i x) { return vf_from_i32(x); }
INLINE lanes_f lanes_load(const float *p) { return vf_load(p); }
INLINE void lanes_store(float *p, lanes_f x) { vf_store(p, x); }

INLINE const uint8_t *unit_scales(const struct qtype_info *type, const uint8_t *unit, int n, uint8_t *buffer)
{
    (void)type, (void)n, (void)buffer;
    return unit;
}

INLINE void group_factors(const int O, const struct qtype_info *type, const uint8_t *unit, const uint8_t *scales,
                          int n, int g, int o, vi scale[4], vf scale_f[4], vf extra[4])
{
    (void)O, (void)scales, (void)o;                     /* all 32 rows are computed at once */
    if (has_int_scale(type))
        group_int_scales(type, unit, n, g, scale);
    else
        group_scales(type, unit, n, g, scale_f, extra);
}

STREAM_KINDS_HERE(14);

INLINE void step_sums(const int T, const int O, const int codes, const struct qtype_info *type, const int n_k,
                      const struct weights *w, vi table, const uint8_t *line, const int8_t *code, const int32_t *seed,
                      const vi scale[4], vi sum[][4], uintptr_t *next)
{
    const int bits = LOW_BITS(codes), more = HIGH_BITS(codes), n_lines = n_k * bits / 32;
    const int lines = 4;                                /* a step of 32 k with 4 bits has 4 lines */
    /* With few sums each has two accumulators; otherwise the chain of dependent dot products would
     * be too long. */
    const int split = T <= 2;
    vi d[STREAM_MAX][2], e[STREAM_MAX][2];
    EACH_SUM(t, r)
        d[t][r] = vi_set(seed[t]), e[t][r] = vi_set(0);
    for (int l = 0; l < n_lines; l += lines, line += 128 * (lines + more)) {
        /* types with a second plane have one group per step, so that the plane follows these
         * lines */
        const uint8_t *high = line + 128 * lines;
        *next = prefetch_more(w->prefetch, 1, *next, line);
        UNROLL for (int out = 0; out < lines * (8 / bits); out++, code += 4 * T) {
            vi v[2];
            UNROLL for (int r = 0; r < O; r++) {
                const vi s = stream_codes(vi_load(line + out / (8 / bits) * 128 + 64 * r), high + 64 * r, bits, more,
                                          out);
                v[r] = bits < 8 ? _mm512_permutexvar_epi8(s, table) : vbytes_flip(s);
            }
            UNROLL for (int t = 0; t < T; t++) {
                const vi q = bcast4(code + 4 * t);
                vi *to = split && out % (8 / bits) % 2 ? e[t] : d[t];
                UNROLL for (int r = 0; r < O; r++)
                    to[r] = _mm512_dpbusd_epi32(to[r], v[r], q);
            }
        }
    }
    EACH_SUM(t, r) {
        const vi x = split ? vi_add(d[t][r], e[t][r]) : d[t][r];
        sum[t][r] = has_int_scale(type) ? add_int_scaled(type, sum[t][r], x, scale[r]) : vi_add(sum[t][r], x);
    }
}

#include "libcommon/kernels/stream.inc"

/* Run n panels of T tokens from token t0 on; the first PREFETCH_PANELS of them prefetch the next
 * block's codes. */
enum { PREFETCH_PANELS = 2 };

INLINE void dot_panels(const int T, const int kind, const struct weights *w, const struct scratch *s, int n_groups,
                       const struct act_block *b, int t0, int n, float *c, const uint8_t *codes, const struct rows *to)
{
    for (int t = t0; t < t0 + n * T; t += T) {
        if (to)
            prefetch_rows(to, t, T);
        struct code_prefetch next = { codes + t / T * BLOCK_K / 4 * 64, t < PREFETCH_PANELS * T ? 64 : 0 };
        dot_panel(T, kind, w, s, n_groups, act_panel(b, t, T), c + t * TILE_ROWS, &next);
        if (to)
            write_rows(to, t, c + t * TILE_ROWS, T);
    }
}

#define DOT(T, name, kind) \
    static void name##_##T(const struct weights *w, const struct scratch *s, int n_groups, const struct act_block *b, \
                           int t0, int n, float *c, const uint8_t *codes, const struct rows *to) \
    { \
        dot_panels(T, kind, w, s, n_groups, b, t0, n, c, codes, to); \
    }
UP_TO_6(DOT, dot_many, MANY) UP_TO_6(DOT, dot_one, ONE) UP_TO_12(DOT, dot_int, INT)
typedef void dot_fn(const struct weights *, const struct scratch *, int, const struct act_block *, int, int, float *,
                    const uint8_t *, const struct rows *);
/* The functions for each kind and number of tokens.  Few tokens, in one panel, occur here only for
 * types with 8-bit scales that do not stream. */
static dot_fn *const dots[3][STREAM_MAX + 1] = { { UP_TO_6(ENTRY, dot_many) }, { UP_TO_6(ENTRY, dot_one) },
                                                 { UP_TO_12(ENTRY, dot_int) } };

void SET(matmul)(float *out, size_t ldo, const struct mat *m, int tile0, int tile1, const void *act, int n_tokens,
                 void *scratch)
{
    struct scratch *s = scratch;
    const struct weights w = weights_init(m, BIAS);
    const struct act_blocks blocks = act_blocks(act, n_tokens, m, w.step);
    /* The first n_more panels have one more token. */
    const int panels = act_panels(n_tokens), tokens = n_tokens / panels, n_more = n_tokens % panels;
    const int kind = has_int_scale(w.type) ? INT : w.n_steps == 1 ? ONE : MANY;
    stream_fn *stream = stream_of(w.type, n_tokens);
    for (int i = tile0; i < tile1; i++) {
        const uint8_t *tile = m->data + (size_t)i * m->tile_bytes;
        const struct rows rows = tile_rows(m, i, out, ldo);
        memset(s->c, 0, (size_t)n_tokens * TILE_ROWS * sizeof(float));
        if (stream) {
            stream(&w, tile, &blocks, s->c, s->more);
            write_rows(&rows, 0, s->c, n_tokens);
            continue;
        }
        for (int k0 = 0; k0 < m->cols_padded; k0 += BLOCK_K) {
            const int n_k = m->cols_padded - k0 < BLOCK_K ? m->cols_padded - k0 : BLOCK_K;
            const struct act_block b = act_block_at(&blocks, k0, n_k);
            const uint8_t *next = unpack_block(&w, tile, k0, n_k, s);
            const struct rows *to = k0 + n_k == m->cols_padded ? &rows : NULL;
            if (n_more)
                dots[kind][tokens + 1](&w, s, n_k / m->act_group, &b, 0, n_more, s->c, next, to);
            dots[kind][tokens](&w, s, n_k / m->act_group, &b, n_more * (tokens + 1), panels - n_more, s->c, next, to);
        }
    }
}

const struct kernels kernels_avx512 = KERNELS_SET("avx512", supported, avx512, avx512, avx512);

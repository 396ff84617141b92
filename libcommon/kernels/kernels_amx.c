/* kernels_amx.c - the integer matmul of many tokens on the tile unit (AMX-INT8: Sapphire Rapids and
 * later).  The other operations are those of the AVX-512 set.
 *
 * tdpbssd adds to C [T tokens][16 rows] int32 the products of A [T][K] int8 activations and B [K /
 * 4][16 rows][4] int8 weights, the layout of unpacked lines; K is 32 or 64 k that share their
 * scales, so the integer sums are those of kernels.h.  Vector instructions read the sums from
 * memory and scale them.  A product takes a hundred cycles from loads to sums, so vector
 * instructions work on the sums of the previous group meanwhile.  While the tile unit computes,
 * it takes one of the two ports that convert and multiply floats, so steps of 32 k, where each
 * product of 16 cycles yields 16 vectors to convert and 16 fma, gain little.  8-bit scales are
 * folded into the weights instead: code * scale has 16 bits, its high and low bytes are
 * multiplied separately, and vector instructions have work only once per act group.
 *
 * Activations are stored in blocks of BLOCK_K k; in a block panel by panel of T tokens each (the
 * last may hold fewer); in a panel:
 *     [k / 64][T][64] int8 codes;  [k / act_group][T] f32 scales;  for g = 32, 64 .. act_group:
 *     [k / g][T] f32 sums of codes */
#include "libcommon/kernels/kernels.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SET(name) amx_##name

#include "libcommon/kernels/vec_avx512.inc"

/* A block's lines, the panel and the sums must fit into the L1 cache.  The last two constants are
 * those of arch_prctl(2), which some systems' headers lack. */
enum { BLOCK_K = 256, MORE_BYTES = 64, AMX_ROWS = 16, AMX_MIN = 24, XFEATURE_TILE_DATA = 18, ARCH_REQ_TILES = 0x1023 };

#include "libcommon/kernels/block.inc"

/* Linux grants a process the tile registers on request (once, for all its threads). */
static int amx_supported(void)
{
    unsigned a, b, c, d;
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    return kernels_avx512.supported() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AMX_BF16 && d & AMX_TILE &&
           d & AMX_INT8 &&
           syscall(SYS_arch_prctl, ARCH_REQ_TILES, XFEATURE_TILE_DATA) == 0;
}

/* 1 if the tile unit is faster than AVX-512: with at least AMX_MIN tokens and steps of more than
 * 32. */
INLINE int amx_worth(int n_tokens, int act_group) { return n_tokens >= AMX_MIN && act_group > 32; }

INLINE int amx_panels(int n_tokens) { return n_panels(n_tokens, AMX_ROWS); }
/* Tokens of a panel; the last may hold fewer. */
INLINE int amx_tokens(int n_tokens) { return n_panels(n_tokens, amx_panels(n_tokens)); }

/* Offsets in a panel of the scales and of the sums of each granularity. */
struct amx_layout { size_t scale, sum[3], size; };
INLINE struct amx_layout amx_layout(int n_k, int act_group, int T)
{
    struct amx_layout l = { .scale = (size_t)((n_k + 63) / 64 * 64 * T) };
    size_t at = l.scale + (size_t)(n_k / act_group * T) * 4;
    for (int i = 0, g = 32; g <= act_group; i++, g *= 2)
        l.sum[i] = at, at += (size_t)(n_k / g * T) * 4;
    l.size = (at + 63) / 64 * 64;
    return l;
}

INLINE size_t amx_block(int block, int act_group, int n_tokens)
{
    return (size_t)block * (size_t)amx_panels(n_tokens) * amx_layout(BLOCK_K, act_group, amx_tokens(n_tokens)).size;
}

size_t amx_act_bytes(int n_tokens, int cols_padded, int act_group)
{
    if (!amx_worth(n_tokens, act_group))
        return avx512_act_bytes(n_tokens, cols_padded, act_group);
    const size_t size = amx_block(cols_padded / BLOCK_K, act_group, n_tokens) +
                        (size_t)amx_panels(n_tokens) *
                        amx_layout(cols_padded % BLOCK_K, act_group, amx_tokens(n_tokens)).size;
    /* the AVX-512 layout, which fewer tokens use, takes more bytes per token */
    const size_t fewer = avx512_act_bytes(AMX_MIN - 1, cols_padded, act_group);
    return size > fewer ? size : fewer;
}

/* Pack the act group that begins at k of a block, for token t of a panel of T tokens.  x has n
 * values; if n < act_group, the rest of the group is 0. */
static void amx_pack_group(uint8_t *p, const struct amx_layout *l, const float *x, int n, int k, int act_group, int t,
                           int T)
{
    float group[128], factor;
    if (n < act_group) {
        memset(group, 0, sizeof group);
        if (n > 0)
            memcpy(group, x, (size_t)n * sizeof *group);
        x = group;
    }
    ((float *)(p + l->scale))[k / act_group * T + t] = int8_scale(x, act_group, &factor);
    int32_t sum[4];
    for (int i = 0; i < act_group; i += 32) {
        int8_t *code = (int8_t *)p + (k + i) / 64 * 64 * T + t * 64 + (k + i) % 64;
        vi a = int8_round(vf_load(x + i), factor), b = int8_round(vf_load(x + i + 16), factor);
        vi_store_i8(code, a);
        vi_store_i8(code + 16, b);
        sum[i / 32] = vi_sum(vi_add(a, b));
    }
    for (int i = 0, g = 32; g <= act_group; i++, g *= 2)
        for (int j = 0; j < act_group / g; j++) {
            int32_t s = 0;
            for (int m = j * g; m < (j + 1) * g; m += 32)
                s += sum[m / 32];
            ((float *)(p + l->sum[i]))[(k / g + j) * T + t] = (float)s;
        }
}

int amx_act_parts(int n_tokens) { return avx512_act_parts(n_tokens); }

void amx_act_pack(void *act, const float *x, size_t ldx, int n_tokens, int cols, int cols_padded, int act_group,
                  int part)
{
    if (!amx_worth(n_tokens, act_group)) {
        avx512_act_pack(act, x, ldx, n_tokens, cols, cols_padded, act_group, part);
        return;
    }
    const int T = amx_tokens(n_tokens), parts = amx_act_parts(n_tokens), t1 = panel_begin(n_tokens, parts, part + 1);
    for (int k0 = 0; k0 < cols_padded; k0 += BLOCK_K) {
        const int n_k = cols_padded - k0 < BLOCK_K ? cols_padded - k0 : BLOCK_K;
        const struct amx_layout l = amx_layout(n_k, act_group, T);
        uint8_t *p = (uint8_t *)act + amx_block(k0 / BLOCK_K, act_group, n_tokens);
        for (int t = panel_begin(n_tokens, parts, part); t < t1; t++)
            for (int k = 0; k < n_k; k += act_group)
                amx_pack_group(p + l.size * (size_t)(t / T), &l, x + (size_t)t * ldx + k0 + k, cols - k0 - k, k,
                               act_group, t % T, T);
    }
}

/* ---- tiles ---- */

/* Configure tiles 0 to 3 for the sums of T tokens, 4 and 5 for activations of `bytes` k, 6 and 7
 * for weights. */
static void amx_begin(int T, int bytes)
{
    struct { uint8_t palette, start, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } c = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i < 6 ? T : bytes / 4);
        c.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? bytes : 64);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

static void amx_end(void) { __asm__ volatile("tilerelease"); }

/* Store the sums that a pair of tiles holds (those of the step before the previous one) to [2][16
 * tokens][16 rows]; then start the next step of a panel in the same two tiles, with weights w0 and
 * w1.  n: number of tile multiplications of a step; a: codes, a_next bytes from one multiplication
 * to the next.  Storing just before the tiles are reused keeps four products in flight; storing
 * right after each product costs 30 cycles per product instead of 20. */
#define AMX_PAIR(x, y, A) \
    do { \
        __asm__ volatile("tileloadd (%[a],%[s64]), %%tmm" #A "\n" "tilestored %%tmm" #x ", (%[to],%[s64])\n" "tilezero %%tmm" #x "\n" \
                         "tileloadd (%[w0],%[s128]), %%tmm6\n" "tdpbssd %%tmm6, %%tmm" #A ", %%tmm" #x "\n" \
                         "tilestored %%tmm" #y ", 1024(%[to],%[s64])\n" "tilezero %%tmm" #y "\n" \
                         "tileloadd (%[w1],%[s128]), %%tmm7\n" "tdpbssd %%tmm7, %%tmm" #A ", %%tmm" #y "\n" \
                         : : [a] "r"(a), [w0] "r"(w0), [w1] "r"(w1), [to] "r"(to), [s64] "r"(64l), [s128] "r"(128l) : "memory"); \
        for (int i = 1; i < n; i++) { \
            a += a_next, w0 += 2048, w1 += 2048; \
            __asm__ volatile("tileloadd (%[a],%[s64]), %%tmm" #A "\n" "tileloadd (%[w0],%[s128]), %%tmm6\n" "tdpbssd %%tmm6, %%tmm" #A ", %%tmm" #x "\n" \
                             "tileloadd (%[w1],%[s128]), %%tmm7\n" "tdpbssd %%tmm7, %%tmm" #A ", %%tmm" #y "\n" \
                             : : [a] "r"(a), [w0] "r"(w0), [w1] "r"(w1), [s64] "r"(64l), [s128] "r"(128l) : "memory"); \
        } \
    } while (0)
INLINE void amx_pair(const int odd, int32_t *to, const int8_t *a, size_t a_next, const int8_t *w0, const int8_t *w1,
                     int n)
{
    if (odd)
        AMX_PAIR(2, 3, 5);
    else
        AMX_PAIR(0, 1, 4);
}
INLINE void amx_take(const int odd, int32_t *to)
{
    if (odd)
        __asm__ volatile("tilestored %%tmm2, (%0,%1)\n" "tilestored %%tmm3, 1024(%0,%1)\n" : : "r"(to),
                         "r"(64l) : "memory");
    else
        __asm__ volatile("tilestored %%tmm0, (%0,%1)\n" "tilestored %%tmm1, 1024(%0,%1)\n" : : "r"(to),
                         "r"(64l) : "memory");
}

/* Operands for scaling the sums of a group, and c, the results. */
struct amx_group { const float *scale, *min, *a_scale, *a_sum; float *c; };

/* Scale sums [n_steps][2][16 tokens][16 rows] of the tokens t0 to t1 of T, with f32 scales (and
 * minima). */
INLINE void amx_scale(const int n_steps, const int has_min, const struct amx_group *g, const int32_t *all, int t0,
                      int t1, int T)
{
    UNROLL for (int r = 0; r < 2; r++) {
        vf scale[4], min[4];
        UNROLL for (int i = 0; i < n_steps; i++) {
            scale[i] = vf_load(g->scale + 32 * i + 16 * r);
            if (has_min)
                min[i] = vf_load(g->min + 32 * i + 16 * r);
        }
        const int32_t *sums = all + 256 * r + 16 * t0;
        float *c = g->c + 16 * r + 32 * t0;
        for (int t = t0; t < t1; t++, sums += 16, c += 32) {
            vf v = vf_mul(vf_from_i32(vi_load(sums)), scale[0]);
            if (has_min)
                v = vf_fma(min[0], vf_set(g->a_sum[t]), v);
            UNROLL for (int i = 1; i < n_steps; i++) {
                v = vf_fma(vf_from_i32(vi_load(sums + 512 * i)), scale[i], v);
                if (has_min)
                    v = vf_fma(min[i], vf_set(g->a_sum[i * T + t]), v);
            }
            vf_store(c, vf_fma(v, vf_set(g->a_scale[t]), vf_load(c)));
        }
    }
}

struct amx_job {
    const struct weights *w;
    struct scratch *s;
    /* low bytes of folded weights, in the layout of s->lines, which has the high bytes */
    const int8_t *low;
    int32_t *sums;
    const uint8_t *act;
    int n_k, panels, T, n_tokens;
    const struct rows *to;      /* NULL: the sums are not complete, as more k follow */
};

/* Prefetch the rows of the results of panel p, the last of which may hold fewer tokens. */
INLINE void amx_prefetch_rows(const struct amx_job *j, int p)
{
    if (j->to)
        prefetch_rows(j->to, p * j->T, j->n_tokens - p * j->T < j->T ? j->n_tokens - p * j->T : j->T);
}

/* Number of pairs of tiles whose sums are in memory. */
enum { AMX_SLOTS = 8 };
INLINE unsigned amx_slots(int n_steps) { return n_steps == 4 ? 8 : 4; }

/* Do the part of the scaling that overlaps with the tile products of step u; before step `late`
 * there is nothing to scale. */
INLINE void amx_vector_part(const int n_steps, const int has_min, const struct amx_group group[4], const int32_t *sums,
                      unsigned u, unsigned late, int T)
{
    if (u < late)
        return;
    const unsigned n = (unsigned)n_steps, v = u - late;
    const int i = (int)(v % n);
    amx_scale(n_steps, has_min, &group[v / n % 4], sums + v / n * n % amx_slots(n_steps) * 512, T * i / n_steps,
              T * (i + 1) / n_steps, T);
}

/* Run all panels through an unpacked block.  In step u the sums of step u - 2 are stored, and
 * vector instructions scale 1 / n_steps of the tokens of a group: the last one whose sums were all
 * stored in earlier steps. */
INLINE void amx_steps(const int n_steps, const int has_min, const struct amx_job *j)
{
    const int T = j->T, act_group = j->w->m->act_group, step = j->w->step, n = step > 64 ? step / 64 : 1;
    const unsigned late = n_steps == 1 ? 3 : n_steps + 2;
    const struct amx_layout l = amx_layout(j->n_k, act_group, T);
    const struct scratch *s = j->s;
    int32_t *sums = j->sums;
    struct amx_group group[4];
    const uint8_t *act = j->act;
    unsigned u = 0;
    for (int p = 0; p < j->panels; p++, act += l.size) {
        const float *a_scale = (const float *)(act + l.scale), *a_sum = (const float *)(act + l.sum[step / 64]);
        float *c = j->s->c + p * T * TILE_ROWS;
        amx_prefetch_rows(j, p);
        for (int k = 0; k < j->n_k; k += act_group, a_scale += T) {
            const int first = k / step;
            group[u / (unsigned)n_steps % 4] = (struct amx_group){ s->scale + first * TILE_ROWS, s->min + first *
                                                                   TILE_ROWS, a_scale, a_sum + first * T, c };
            UNROLL for (int i = 0; i < n_steps; i++, u++) {
                const int at = k + i * step;
                const int8_t *line = (const int8_t *)s->lines + at * TILE_ROWS;
                amx_pair(u % 2, sums + (u - 2) % amx_slots(n_steps) * 512,
                         (const int8_t *)act + at / 64 * 64 * T + at % 64, (size_t)T * 64, line, line + 64, n);
                amx_vector_part(n_steps, has_min, group, sums, u, late, T);
            }
        }
    }
    for (const unsigned end = u + late; u < end; u++) {
        if (u < end - late + 2)
            amx_take(u % 2, sums + (u - 2) % amx_slots(n_steps) * 512);
        amx_vector_part(n_steps, has_min, group, sums, u, late, T);
    }
}

#define AMX_STEPS(n_steps, has_min) \
    static void amx_steps_##n_steps##_##has_min(const struct amx_job *j) { amx_steps(n_steps, has_min, j); }
AMX_STEPS(1, 0) AMX_STEPS(2, 0) AMX_STEPS(4, 0) AMX_STEPS(1, 1) AMX_STEPS(2, 1) AMX_STEPS(4, 1)
typedef void amx_fn(const struct amx_job *);
static amx_fn *const amx_steps_of[2][3] = { { amx_steps_1_0, amx_steps_2_0, amx_steps_4_0 },
                                            { amx_steps_1_1, amx_steps_2_1, amx_steps_4_1 } };

/* ---- folded weights ---- */

/* Scale the sums of half r (16 rows) of a group.  sums: for each half, those of the high bytes,
 * then those of the low bytes, each [16 tokens][16 rows]. */
INLINE void amx_scale_folded(const struct amx_group *g, const int32_t *sums, int r, int T)
{
    sums += 512 * r;
    float *c = g->c + 16 * r;
    for (int t = 0; t < T; t++, sums += 16, c += 32)
        vf_store(c, vf_fma(vf_from_i32(vi_add(vi_shl(vi_load(sums), 8), vi_load(sums + 256))), vf_set(g->a_scale[t]),
                           vf_load(c)));
}

#define AMX_PRODUCTS \
    "tileloadd (%[a],%[s64]), %%tmm4\n" "tileloadd (%[h],%[s128]), %%tmm6\n" "tileloadd (%[l],%[s128]), %%tmm7\n" FIRST(0) "tdpbssd %%tmm6, %%tmm4, %%tmm0\n" \
    FIRST(1) "tdpbssd %%tmm7, %%tmm4, %%tmm1\n" "tileloadd 64(%[h],%[s128]), %%tmm6\n" "tileloadd 64(%[l],%[s128]), %%tmm7\n" \
    FIRST(2) "tdpbssd %%tmm6, %%tmm4, %%tmm2\n" FIRST(3) "tdpbssd %%tmm7, %%tmm4, %%tmm3\n"

/* Store the sums of the previous group, to [4][16][16], and start the next group with its first
 * tile of codes.  amx_more() continues with another tile. */
INLINE void amx_first(int32_t *to, const int8_t *a, const int8_t *high, const int8_t *low)
{
#define FIRST(x) "tilestored %%tmm" #x ", 1024*" #x "(%[to],%[s64])\n" "tilezero %%tmm" #x "\n"
    __asm__ volatile(AMX_PRODUCTS : : [a] "r"(a), [h] "r"(high), [l] "r"(low), [to] "r"(to), [s64] "r"(64l),
                     [s128] "r"(128l) : "memory");
#undef FIRST
}
INLINE void amx_more(const int8_t *a, const int8_t *high, const int8_t *low)
{
#define FIRST(x)
    __asm__ volatile(AMX_PRODUCTS : : [a] "r"(a), [h] "r"(high), [l] "r"(low), [s64] "r"(64l),
                     [s128] "r"(128l) : "memory");
#undef FIRST
}

/* Run all panels through a folded block.  During group u the sums of group u - 1 are stored, and
 * vector instructions scale those of group u - 2. */
static void amx_folded(const struct amx_job *j)
{
    const int T = j->T, act_group = j->w->m->act_group;
    const struct amx_layout l = amx_layout(j->n_k, act_group, T);
    struct amx_group group[4];
    const uint8_t *act = j->act;
    int32_t *sums = j->sums;
    unsigned u = 0;
    for (int p = 0; p < j->panels; p++, act += l.size) {
        const float *a_scale = (const float *)(act + l.scale);
        amx_prefetch_rows(j, p);
        for (int k = 0; k < j->n_k; k += act_group, a_scale += T, u++) {
            const int8_t *a = (const int8_t *)act + k / 64 * 64 * T + k % 64,
                         *high = (const int8_t *)j->s->lines + k * TILE_ROWS, *low = j->low + k * TILE_ROWS;
            const struct amx_group *g = &group[(u - 2) % 4];
            group[u % 4] = (struct amx_group){ .a_scale = a_scale, .c = j->s->c + p * T * TILE_ROWS };
            amx_first(sums + (u - 1) % 2 * 1024, a, high, low);
            if (u >= 2)
                amx_scale_folded(g, sums + u % 2 * 1024, 0, T);
            for (int i = 64; i < act_group; i += 64)
                amx_more(a + i * T, high + i * TILE_ROWS, low + i * TILE_ROWS);
            if (u >= 2)
                amx_scale_folded(g, sums + u % 2 * 1024, 1, T);
        }
    }
    amx_take(0, sums + (u - 1) % 2 * 1024);
    amx_take(1, sums + (u - 1) % 2 * 1024 + 512);
    for (const unsigned end = u + 2; u < end; u++)
        for (int r = 0; r < 2 && u >= 2; r++)
            amx_scale_folded(&group[(u - 2) % 4], sums + u % 2 * 1024, r, T);
}

/* Multiply lines of signed codes [n_k / 4][32][4] by the 8-bit scales of their steps.  A product is
 * 256 * high + low, both signed: the high bytes replace the codes, the low bytes are stored in
 * `low`. */
static void amx_fold(const struct weights *w, struct scratch *s, int8_t *low, int n_k)
{
    const __m512i half = _mm512_set1_epi16(128);
    const __mmask64 odd = 0xaaaaaaaaaaaaaaaa;
    for (int k = 0; k < n_k; k += w->step)
        for (int r = 0; r < 2; r++) {
            vi scale = vi_load(s->scale + k / w->step * TILE_ROWS + 16 * r);
            scale = vi_and(scale, vi_set(0xffff));
            scale = vi_add(scale, vi_shl(scale, 16));
            int8_t *line = (int8_t *)s->lines + k * TILE_ROWS + 64 * r, *to = low + k * TILE_ROWS + 64 * r;
            for (int i = 0; i < w->step / 4; i++, line += 128, to += 128) {
                vi v = vi_load(line);
                vi a = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8), scale),
                   b = _mm512_mullo_epi16(_mm512_srai_epi16(v, 8), scale);
                vi_store(to, _mm512_mask_mov_epi8(a, odd, _mm512_slli_epi16(b, 8)));
                a = _mm512_srli_epi16(_mm512_add_epi16(a, half), 8);
                vi_store(line, _mm512_mask_mov_epi8(a, odd, _mm512_add_epi16(b, half)));
            }
        }
}

enum { AMX_SUMS = AMX_SLOTS * 512 * 4 };

/* The sums and the low bytes follow the common part of the scratch. */
INLINE size_t amx_sums_at(int n_tokens)
{
    return (sizeof(struct scratch) + (size_t)(n_tokens + AMX_ROWS) * TILE_ROWS * sizeof(float) + 63) / 64 * 64;
}
size_t amx_scratch_bytes(int n_tokens, int cols_padded)
{
    const size_t size = amx_sums_at(n_tokens) + AMX_SUMS + BLOCK_K * TILE_ROWS,
                 other = avx512_scratch_bytes(n_tokens, cols_padded), floats = amx_floats_scratch(n_tokens);
    return size > other ? (size > floats ? size : floats) : other > floats ? other : floats;
}

void amx_matmul(float *out, size_t ldo, const struct mat *m, int tile0, int tile1, const void *act, int n_tokens,
                void *scratch)
{
    if (!amx_worth(n_tokens, m->act_group)) {
        avx512_matmul(out, ldo, m, tile0, tile1, act, n_tokens, scratch);
        return;
    }
    struct scratch *s = scratch;
    const struct weights w = weights_init(m, 0);
    const int folded = has_int_scale(w.type), step = folded ? m->act_group : w.step;
    amx_fn *const block = folded ? amx_folded : amx_steps_of[w.type->extra != EXTRA_NONE][w.n_steps / 2];
    struct amx_job job = { .w = &w, .s = s, .sums = (int32_t *)((uint8_t *)scratch + amx_sums_at(n_tokens)),
                           .panels = amx_panels(n_tokens), .T = amx_tokens(n_tokens), .n_tokens = n_tokens };
    int8_t *low = (int8_t *)job.sums + AMX_SUMS;
    job.low = low;
    amx_begin(job.T, step < 64 ? step : 64);
    for (int i = tile0; i < tile1; i++) {
        const uint8_t *tile = m->data + (size_t)i * m->tile_bytes;
        const struct rows rows = tile_rows(m, i, out, ldo);
        memset(s->c, 0, (size_t)(job.panels * job.T) * TILE_ROWS * sizeof(float));
        for (int k0 = 0; k0 < m->cols_padded; k0 += BLOCK_K) {
            job.n_k = m->cols_padded - k0 < BLOCK_K ? m->cols_padded - k0 : BLOCK_K;
            job.act = (const uint8_t *)act + amx_block(k0 / BLOCK_K, m->act_group, n_tokens);
            job.to = k0 + job.n_k == m->cols_padded ? &rows : NULL;
            unpack_block(&w, tile, k0, job.n_k, s);
            if (folded)
                amx_fold(&w, s, low, job.n_k);
            block(&job);
        }
        write_rows(&rows, 0, s->c, n_tokens);
    }
    amx_end();
}

const struct kernels kernels_amx = KERNELS_SET("amx", amx_supported, amx, amx, avx512);

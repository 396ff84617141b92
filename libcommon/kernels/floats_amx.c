/* floats_amx.c - the f32 matmul of bf16 weights on the tile unit (AMX-BF16: Sapphire Rapids and
 * later).  Other types use the AVX-512 set.
 *
 * A bf16 has 8 of the 24 bits of an f32's significand, so an activation is the exact sum of three
 * bf16, and three products with tiles of weights give the result of f32 multiply-adds, in another
 * order.  A tile instruction multiplies 16 tokens x 32 k by 32 k x 16 rows in 16 cycles, 16 times
 * the rate of vector instructions; three products per weight leave a third of that rate.
 * (vdpbf16ps, the vector instruction for bf16, has half of the f32 rate here.)  Tiles in a file
 * have the layout of the tile unit and are never unpacked.  Few tokens use the same method, because
 * a token's bits must not depend on the number of tokens: one token reads weights at 0.92 of the
 * rate of a read loop instead of 1.0 (vector instructions with these sums: 0.77); 16 and 256 tokens
 * take 0.45 of the time of vector instructions.  256 tokens reach a quarter of the tile unit's peak
 * instead of a third, because x is split again for every 4 tiles, and sums are stored and reloaded.
 *
 * tdpbf16ps sums even and odd k separately, by fma and from 0, and adds both sums to the
 * accumulator.  So, for a row and a token:
 *     acc = 0;  for each 32 k in order, for the parts of x from the last to the first:
 *         even = odd = 0;  even = fma(part[k], w[k], even), odd = fma(part[k + 1], w[k + 1], odd)
 *         in order of k;  acc += even + odd
 * Parts are truncated, not rounded: part[0] is the upper 16 bits of x, part[1] the upper 16 bits of
 * x - part[0], part[2] the rest.  Numbers below 2^-126 count as 0. */
#define SET(name) avx512_##name

#include "libcommon/kernels/vec_avx512.inc"

#include "libcommon/kernels/prefetch.inc"
#include "libcommon/kernels/results.inc"

/* BF16_TILES: number of tiles of weights that share a conversion of activations; BF16_K: k of a
 * block.  With half as many k, sums would be stored and reloaded twice as often (1.2 instead of 1.4
 * times the f32 peak of vector instructions).  Few tokens, up to one panel, have longer blocks
 * (BF16_K_FEW) and process tiles one after the other, so that memory is read as a single stream. */
enum { BF16_TILES = 4, BF16_K = 256, BF16_ROWS = 16, BF16_K_FEW = 1024 };
INLINE int bf16_k(int n_tokens) { return n_tokens <= BF16_ROWS ? BF16_K_FEW : BF16_K; }

INLINE int bf16_panels(int n_tokens) { return n_panels(n_tokens, BF16_ROWS); }
/* Tokens of a panel; the last may hold fewer. */
INLINE int bf16_tokens(int n_tokens) { return n_panels(n_tokens, bf16_panels(n_tokens)); }
INLINE size_t bf16_all(int n_tokens) { return (size_t)((bf16_panels(n_tokens) + 1) / 2 * 2 * bf16_tokens(n_tokens)); }

/* Bytes of scratch: sums [BF16_TILES][tokens][32] f32, then, for each two panels of W tokens
 * together, parts [bf16_k / 32][3][W][32] bf16.  (With all tokens in one array the stride would map
 * the parts to few sets of the L1 cache.) */
INLINE size_t bf16_bytes(size_t all, int n_k) { return all * (size_t)(BF16_TILES * TILE_ROWS * 4 + n_k * 3 * 2); }

/* An upper bound of the scratch, which must never decrease with the number of tokens: a buffer for
 * n tokens must also fit any smaller number.  (The exact need does decrease: few tokens have
 * longer blocks, and panels are evened out, so that 49 tokens need less than 48.) */
size_t amx_floats_scratch(int n_tokens)
{
    const int few = n_tokens < BF16_ROWS ? n_tokens : BF16_ROWS, panels = (bf16_panels(n_tokens) + 1) / 2 * 2;
    const size_t one = bf16_bytes(bf16_all(few), BF16_K_FEW),
                 many = n_tokens > BF16_ROWS ? bf16_bytes((size_t)(panels * BF16_ROWS), BF16_K) : 0;
    const size_t size = one > many ? one : many, other = avx512_floats_scratch(n_tokens);
    return size > other ? size : other;
}

/* The upper 16 bits of an f32; NaN stays NaN. */
INLINE vf upper_half(vf x)
{
    const vi bits = vi_and(vi_bits(x), vi_set((int32_t)0xffff0000));
    return vf_bits(_mm512_mask_or_epi32(bits, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, vi_set(0x400000)));
}

INLINE void prefetch_128(const float *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0), _mm_prefetch((const char *)(p + 16), _MM_HINT_T0);
}

/* Split each value of x [n_tokens][n] (rows ldx apart) into three bf16 parts; columns n to n_k are
 * zero. */
static void split_parts(uint16_t *parts, const float *x, size_t ldx, int n_tokens, int W, int n, int n_k)
{
    const vi odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23,
                                    21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const vf infinity = vf_set(INFINITY);
    for (int t = 0; t < n_tokens; t++, x += ldx)
        for (int k = 0; k < n_k; k += 32) {
            uint16_t *to = parts + (size_t)(t / W * W) * BF16_K * 3 + (size_t)(k / 32 * 3 * W + t % W) * 32;
            const int left = n - k;
            prefetch_128(x + 6 * ldx + k);
            vf a = left >= 16 ? vf_load(x + k) : vf_load_n(x + k, left > 0 ? left : 0),
               b = left >= 32 ? vf_load(x + k + 16) : vf_load_n(x + k + 16, left > 16 ? left - 16 : 0);
            const vmask finite_a = vf_less(vf_abs(a), infinity), finite_b = vf_less(vf_abs(b), infinity);
            for (int i = 0; i < 3; i++, to += W * 32) {
                const vf high_a = upper_half(a), high_b = upper_half(b);
                vi_store(to, _mm512_permutex2var_epi16(vi_bits(high_a), odd, vi_bits(high_b)));
                a = _mm512_maskz_sub_ps(finite_a, a, high_a), b = _mm512_maskz_sub_ps(finite_b, b, high_b);
            }
        }
}

/* Configure tiles 0 to 3 for sums of T tokens of two panels, 16 rows each; 4 and 5 for activations;
 * 6 and 7 for weights. */
static void begin(int T)
{
    struct { uint8_t palette, start, zero[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } c = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i < 6 ? T : 16);
        c.row_bytes[i] = 64;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

/* Multiply one or two panels of T tokens by n_k of a tile at w.  Each panel has its own c [T][32],
 * and c += x * w.  first: c is not initialized yet and counts as 0. */
INLINE void multiply(const int two, int first, const uint8_t *parts, int T, const uint8_t *w, int n_k, float *c,
                     struct prefetch how)
{
    const size_t part = (size_t)T * 2 * 64;
    float *d = c + T * TILE_ROWS;
    uintptr_t next = prefetch_from(how, w);
#define SUMS(op, x, y, p) __asm__ volatile(op(x, 0) op(y, 64) : : "r"(p), "r"(128l) : "memory")
#define TAKE(x, at) "tileloadd " #at "(%0,%1), %%tmm" #x "\n"
#define GIVE(x, at) "tilestored %%tmm" #x ", " #at "(%0,%1)\n"
    if (first) {
        __asm__ volatile("tilezero %%tmm0\n" "tilezero %%tmm1\n" "tilezero %%tmm2\n" "tilezero %%tmm3\n" : :
                         : "memory");
    } else {
        SUMS(TAKE, 0, 1, c);
        if (two)
            SUMS(TAKE, 2, 3, d);
    }
    for (int k = 0; k < n_k; k += 32, w += 32 * TILE_ROWS * 2, parts += 3 * part) {
        next = prefetch_more(how, 0, next, w);
        SUMS(TAKE, 6, 7, w);
        for (int i = 2; i >= 0; i--) {
            const uint8_t *a = parts + (size_t)i * part;
            __asm__ volatile("tileloadd (%0,%1), %%tmm4\n" "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n"
                             "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n" : : "r"(a), "r"(64l) : "memory");
            if (two)
                __asm__ volatile("tileloadd (%0,%1), %%tmm5\n" "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n"
                                 "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n" : : "r"(a + part / 2), "r"(64l) : "memory");
        }
    }
    SUMS(GIVE, 0, 1, c);
    if (two)
        SUMS(GIVE, 2, 3, d);
}

/* Multiply N tiles at once, for the k from k0 on. */
static void multiply_block(const struct mat *m, int tile0, int n, int k0, int n_k, const uint8_t *parts, int n_tokens,
                           float *c, float *out, size_t ldo)
{
    const int panels = bf16_panels(n_tokens), T = bf16_tokens(n_tokens), last = k0 + n_k == m->cols_padded;
    const size_t all = bf16_all(n_tokens);
    struct rows rows[BF16_TILES];
    for (int i = 0; i < n; i++)
        rows[i] = tile_rows(m, tile0 + i, out, ldo);
    for (int p = 0; p < panels; p += 2)
        for (int i = 0; i < n; i++) {
            const uint8_t *w = m->data + (size_t)(tile0 + i) * m->tile_bytes + (size_t)k0 * TILE_ROWS * 2,
                          *a = parts + (size_t)(p * T) * BF16_K * 3 * 2;
            float *to = c + ((size_t)i * all + (size_t)(p * T)) * TILE_ROWS;
            const int t0 = p * T, more = n_tokens - t0 < 2 * T ? n_tokens - t0 : 2 * T;
            const struct prefetch how = panels == 1 ? prefetch_of(16, 1)
                                                   : (struct prefetch){ p == 0 ? BF16_K * TILE_ROWS * 2 : 0, 0, 0 };
            if (last)
                prefetch_rows(&rows[i], t0, more);
            if (panels - p > 1)
                multiply(1, k0 == 0, a, T, w, n_k, to, how);
            else
                multiply(0, k0 == 0, a, T, w, n_k, to, how);
            if (last)
                write_rows(&rows[i], t0, to, more);
        }
}

void amx_matmul_f32(float *out, size_t ldo, const struct mat *m, int tile0, int tile1, const float *x, size_t ldx,
                    int n_tokens, void *scratch)
{
    if (m->type != QT_BF16) {
        avx512_matmul_f32(out, ldo, m, tile0, tile1, x, ldx, n_tokens, scratch);
        return;
    }
    const size_t all = bf16_all(n_tokens);
    float *c = scratch;
    const int block = bf16_k(n_tokens), tiles = n_tokens <= BF16_ROWS ? 1 : BF16_TILES;
    uint16_t *parts = (uint16_t *)(c + BF16_TILES * all * TILE_ROWS);
    /* Clear tokens that only pad a panel: their products are unused, but denormals would be
     * slow. */
    memset(parts, 0, all * (size_t)block * 3 * 2);
    begin(bf16_tokens(n_tokens));
    for (int i = tile0; i < tile1; i += tiles)
        for (int k0 = 0; k0 < m->cols_padded; k0 += block) {
            const int n_k = m->cols_padded - k0 < block ? m->cols_padded - k0 : block;
            if (i == tile0 || m->cols_padded > block)   /* otherwise x has been split already */
                split_parts(parts, x + k0, ldx, n_tokens, 2 * bf16_tokens(n_tokens), m->cols - k0, n_k);
            multiply_block(m, i, tile1 - i < tiles ? tile1 - i : tiles, k0, n_k, (const uint8_t *)parts, n_tokens, c,
                           out, ldo);
        }
    __asm__ volatile("tilerelease");
}

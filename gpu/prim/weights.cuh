/* weights.cuh - decode the bytes of a tile to mma fragments, for every number format.
 *
 * A warp takes 32 rows x 32 k at a time (a step), of which lane 4g + t has rows 4g..4g+3 and k
 * 8t..8t+7.  It loads 16 bytes, the quad of its rows, from one of the step's four lines of 4-bit
 * codes (quant/tile.h), from two lines of 8 bits, or four of 16 bits; several lanes load the same
 * bytes of the extra planes of 5 and 6 bits.  The 8 values of a row are decoded to four pairs of
 * f16, (0,4) (1,5) (2,6) (3,7), which is the order of activations (prim.cuh), so that they are
 * operands of two mma.  Rows 4g and 4g+1 are the rows g and g+8 of one pair of mma, 4g+2 and 4g+3
 * those of another.
 *
 * The values are multiplied by their group's scale (in f16, with one rounding of 2^-12); the row's
 * scale is applied to the finished sums.  Codebooks are read from shared memory: 256 pairs of
 * values, indexed by a byte of two codes, with a copy for every lane to avoid bank conflicts.  A
 * wide_table leaves as much room again between the entries, so that an address is a permutation of
 * bytes, and a lane_table computes it by dp4a: one instruction instead of two. */
#ifndef ZSE_GPU_PRIM_WEIGHTS_CUH
#define ZSE_GPU_PRIM_WEIGHTS_CUH

#include "gpu/prim/operands.h"
#include "gpu/prim/prim.cuh"

enum { TILE_OF_ROWS = 32, TABLE_BYTES = 256 * 32 * 4, WIDE_BYTES = 2 * TABLE_BYTES,
       T3_BYTES = 13 * 128 /* of a group */ };

/* The properties of a format on which its code depends (quant/qtype.def).  raw: number of 16-byte
 * loads of a step; unit: number of groups of a unit; halves: number of groups in a step (2: groups
 * of 16 k); table: codes are looked up; e4m3, base3: kinds of codes; wide: groups of
 * 256 are allowed, which are units of their own; bias: the code of value 0. */
template <int TYPE> struct format;
/* Rows of codebook[] below; every format with a TABLE has one. */
enum { BOOK_nl4, BOOK_nf4, BOOK_m2, BOOK_m3, BOOK_e2m1, N_BOOKS };
#define BOOK_TABLE(values) BOOK_##values
#define BOOK_INTEGERS(values) 0
#define BOOK_FLOATS(values) 0
#define BOOK_F32(values) 0
#define BOOK_NONE(values) 0
#define QTYPE(ID, number, name, choice, option, codes, values, zero, low, high, scale, extra, row, sizes, group, acts, \
              kind, ymm, zmm, gpu, ...) \
    template <> struct format<QT_##ID> { \
        static constexpr enum scale_kind scales = SCALE_##scale; \
        static constexpr enum extra_kind extras = EXTRA_##extra; \
        static constexpr int bits = low + high, plane = low, e4m3 = CODES_##codes == CODES_E4M3, \
                             base3 = CODES_##codes == CODES_BASE3, \
                             raw = bits == 16 ? 4 : (bits == 2 && !base3) || bits == 4 ? 1 : 2, \
                             unit = scales == SCALE_NONE || scales == SCALE_F32 || base3 ? 1 \
                                    : scales == SCALE_F16 ? 2 : 4, \
                             row_scale = row, wide = ((sizes) & 256) != 0, \
                             halves = group == 16 ? 2 : 1, \
                             table = GPU_FORMAT_##gpu == GPU_FORMAT_TABLE, book = BOOK_##gpu(values), \
                             bias = CODES_##codes == CODES_INT8 ? 128 : zero; \
    };
#include "libcommon/quant/qtype.def"

QTYPE_SCALES_HERE(7);
QTYPE_EXTRAS_HERE(3);
QTYPE_CODES_HERE(9);

/* One step of a lane, as loaded. */
template <int TYPE> struct raw_step {
    uint4 code[format<TYPE>::raw];
    /* The scales (and the extras, if the format has them) of the lane's 4 rows.  f16: 4 in each
     * member; 8 bits: 4 in the member's x; f32: those of rows 0 and 1 in scale, of rows 2 and 3 in
     * extra.  For t3 extra.x is the index of the lane's first four k in the group. */
    uint2 scale, extra;
};

DEVICE int scale_area(int n, int size) { return (n * TILE_OF_ROWS * size + 63) & ~63; }

/* Step `step` (32 k) of the tile at `tile`. */
template <int TYPE> DEVICE void load_step(raw_step<TYPE> &r, const uint8_t *tile, const gpu_mat &m, int step, int g,
                                          int t)
{
    typedef format<TYPE> f;
    /* nf4: groups of 64 */
    const int shift = f::scales == SCALE_F16 || f::scales == SCALE_F32 ? m.group_shift : f::scales == SCALE_U8 ? 1 : 0;
    const int scale_size = scale_bytes(f::scales), extra_size = extra_bytes(f::extras);
    const int per_unit = f::wide && shift == 3 ? 1 : f::unit;
    /* unsigned: a shift and a mask */
    const int group = f::halves == 2 ? 2 * step + t / 2 : step >> shift, unit = (unsigned)group / per_unit,
              in_unit = (unsigned)group % per_unit;
    const int n = min(per_unit + 0, m.n_groups - unit * per_unit);
    const int group_bytes = f::base3 ? T3_BYTES : f::halves == 2 ? f::bits * 64 : (f::bits * 128) << shift;
    const int full = scale_area(per_unit, scale_size) + scale_area(per_unit, extra_size) + per_unit * group_bytes;
    const uint8_t *p = tile + (f::row_scale ? 128 : 0) + (size_t)unit * full;
    if (f::scales == SCALE_F16) {
        r.scale = load8(p + ((g * n + in_unit) << 3));
    } else if (f::scales == SCALE_F32) {
        r.scale = load8(p + 16 * g);
        r.extra = load8(p + 16 * g + 8);
    } else if (f::scales != SCALE_NONE)
        r.scale.x = load4(p + ((g * n + in_unit) << 2));
    p += scale_area(n, scale_size);
    if (f::extras == EXTRA_MIN_F16)
        r.extra = load8(p + ((g * n + in_unit) << 3));
    else if (f::extras == EXTRA_ZERO_U8)
        r.extra.x = load4(p + ((g * n + in_unit) << 2));
    const int in_group = f::base3 ? 0 : (step & ((1 << shift) - 1)) * (f::bits * 128);
    p += scale_area(n, extra_size) + in_unit * group_bytes + in_group + g * 16;
    if (f::base3) {                     /* a line has 20 k, in five groups of four */
        r.extra.x = (unsigned)(step & ((1 << shift) - 1)) * 8 + 2 * t;
        r.code[0] = load_stream(p + r.extra.x / 5 * 128);
        r.code[1 % f::raw] = load_stream(p + (r.extra.x + 1) / 5 * 128);
        return;
    }
    if (f::bits == 16) {
        for (int i = 0; i < 4; i++)
            r.code[i % f::raw] = load_stream(p + (4 * t + i) * 128);
    } else if (f::bits == 8) {
        r.code[0] = load_stream(p + 2 * t * 128);
        r.code[1 % f::raw] = load_stream(p + (2 * t + 1) * 128);
    } else if (f::bits < 4) {           /* a line has 16 k */
        r.code[0] = load_stream(p + (t >> 1) * 128);
        if (f::bits == 3)
            r.code[1 % f::raw] = load_stream(p + 256);
    } else {
        r.code[0] = load_stream(p + (f::halves == 2 ? t % 2 : t) * 128);
        if (f::bits == 5)
            r.code[1 % f::raw] = load_stream(p + 512);
        if (f::bits == 6)
            r.code[1 % f::raw] = load_stream(p + 512 + (t >> 1) * 128);
    }
}

/* Whether the units of a format are four steps with one group of scales each, at fixed distances: a
 * lane loads the scales of a unit with 16 bytes.  BY_UNITS: with one plane of codes. */
template <int TYPE>
constexpr bool HAS_UNITS = format<TYPE>::scales == SCALE_S8 && format<TYPE>::extras == EXTRA_NONE &&
                           format<TYPE>::bits < 8 && format<TYPE>::halves == 1 && !format<TYPE>::wide &&
                           !format<TYPE>::base3;
template <int TYPE> constexpr bool BY_UNITS = HAS_UNITS<TYPE> && format<TYPE>::raw == 1;
enum { UNIT_STEPS = 4 };
template <int TYPE> constexpr int STEP_CODES = format<TYPE>::bits * 128;          /* bytes */
template <int TYPE> constexpr int UNIT_BYTES = UNIT_STEPS * (TILE_OF_ROWS + STEP_CODES<TYPE>);

/* A lane's scales of a unit of a tile, and its codes of step k of the unit with these scales. */
template <int TYPE> DEVICE const uint8_t *unit_scales(const uint8_t *tile, int unit, int g)
{
    return tile + (format<TYPE>::row_scale ? 128 : 0) + unit * UNIT_BYTES<TYPE> + g * 16;
}
template <int TYPE> DEVICE const uint8_t *unit_codes(const uint8_t *scales, int k, int t)
{
    return scales + UNIT_STEPS * TILE_OF_ROWS + k * STEP_CODES<TYPE> + (format<TYPE>::bits < 4 ? t >> 1 : t) * 128;
}
/* The same of the second plane of codes. */
template <int TYPE> DEVICE const uint8_t *unit_second(const uint8_t *scales, int k, int t)
{
    return scales + UNIT_STEPS * TILE_OF_ROWS + k * STEP_CODES<TYPE> + format<TYPE>::plane * 128 +
           (format<TYPE>::bits == 6 ? t >> 1 : 0) * 128;
}

/* 0x6400 | n is 1024 + n in f16, for n < 1024. */
DEVICE uint32_t pair_of_bytes(uint32_t low, uint32_t high, int j, int bias)
{
    const uint32_t u = (prmt(low, high, (uint32_t)(j | j << 4 | (4 + j) << 8 | (4 + j) << 12)) & 0x00ff00ffu) |
                       0x64006400u;
    return half_add(u, (0xe400u + bias) * 0x10001u);            /* -(1024 + bias) */
}

/* Extract one base-3 digit of each of the four bytes of w, each of which has five; digit 0 is the
 * highest. */
DEVICE uint32_t digits(uint32_t w, uint32_t digit)
{
    const uint32_t power = prmt(0x1b090301, 0x51, digit) & 0xff, even = w & 0x00ff00ffu, odd = w >> 8 & 0x00ff00ffu;
    return ((even * power & 0x00ff00ffu) * 3 >> 8 & 0x00030003u) | ((odd * power & 0x00ff00ffu) * 3 & 0x03000300u);
}

/* e4m3 to f16: the bits, 7 places higher, are an f16 of 2^-8 times the value.  Codes 7f and ff do
 * not occur.  h: a code in the high byte of each half. */
DEVICE uint32_t pair_of_e4m3(uint32_t h) { return (h & 0x80008000u) | (h >> 1 & 0x3f803f80u); }

/* The decode_ functions decode row i (0..3) of the lane's four: its 8 values, as the pairs (0,4)
 * (1,5) (2,6) (3,7). */

/* The values of formats without codes, as f16. */
template <int TYPE> DEVICE void decode_floats(uint32_t v[4], const raw_step<TYPE> &r, int i)
{
    typedef format<TYPE> f;
    const uint32_t w = word_of(r.code[0], i), w1 = word_of(r.code[1 % f::raw], i);
    const uint32_t w2 = word_of(r.code[2 % f::raw], i), w3 = word_of(r.code[3 % f::raw], i);
    if (TYPE == QT_F16) {
        v[0] = prmt(w, w2, 0x5410);
        v[1] = prmt(w, w2, 0x7632);
        v[2] = prmt(w1, w3, 0x5410);
        v[3] = prmt(w1, w3, 0x7632);
    } else {
        v[0] = pack_half(float_of(w << 16), float_of(w2 << 16));
        v[1] = pack_half(float_of(w & 0xffff0000u), float_of(w2 & 0xffff0000u));
        v[2] = pack_half(float_of(w1 << 16), float_of(w3 << 16));
        v[3] = pack_half(float_of(w1 & 0xffff0000u), float_of(w3 & 0xffff0000u));
    }
}

/* Codebooks in shared memory, with a copy of each entry for every lane.  wide_table: entries are
 * 256 bytes apart, and `lane` is the offset of the lane's copy in an entry.  lane_table: entries
 * are 128 bytes apart, and `copy` is the address of the lane's copy of the first entry. */
#ifdef __CUDACC__
struct wide_table { uint32_t entries, lane; };          /* an address in shared memory */
struct lane_table { uint32_t copy; };
#else
struct wide_table { const uint8_t *entries; uint32_t lane; };
struct lane_table { const uint8_t *copy; };
#endif

/* In place of a codebook: codes are converted.  E2M1 only. */
struct no_table {};
template <class TABLE> constexpr bool CONVERTS = false;
template <> constexpr bool CONVERTS<no_table> = true;

/* The entry of byte j of w. */
DEVICE uint32_t look_up(const no_table &, uint32_t, int) { return 0; }
DEVICE uint32_t look_up(const uint32_t *table, uint32_t w, int j) { return table[(w >> 8 * j & 0xff) << 5]; }
DEVICE uint32_t look_up(const wide_table &table, uint32_t w, int j)
{
    const uint32_t at = prmt(w, table.lane, (uint32_t)(0x5504 | j << 4));
#ifdef __CUDACC__
    uint32_t v;                         /* a pointer would cost an addition */
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(table.entries + at));
    return v;
#else
    return *reinterpret_cast<const uint32_t *>(table.entries + at);
#endif
}

DEVICE uint32_t look_up(const lane_table &table, uint32_t w, int j)
{
#ifdef __CUDACC__
    uint32_t v;                         /* the address is one instruction: a sum of products of bytes */
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(__dp4a(w, 0x80u << 8 * j, table.copy)));
    return v;
#else
    return *reinterpret_cast<const uint32_t *>(table.copy + (w >> 8 * j & 0xff) * 128);
#endif
}

/* The values of codes, before scale and extra.  TABLE: const uint32_t *, wide_table, lane_table or
 * no_table. */
template <int TYPE, class TABLE> DEVICE void decode_codes(uint32_t v[4], const raw_step<TYPE> &r, int i, int t,
                                                          const TABLE &table)
{
    typedef format<TYPE> f;
    const uint32_t w = word_of(r.code[0], i), w1 = word_of(r.code[1 % f::raw], i);
    if (f::table && CONVERTS<TABLE>) {
        /* a code in the highest bits of a half: its sign, and three places lower an f16 of 2^-14
         * times the value */
        static_assert(!f::table || !CONVERTS<TABLE> || f::book == BOOK_e2m1, "other codes need a codebook");
        for (int j = 0; j < 4; j++) {
            const uint32_t h = prmt(w << 4, w, (uint32_t)(j | j << 4 | (4 + j) << 8 | (4 + j) << 12));
            v[j] = half_mul((h & 0x80008000u) | (h >> 3 & 0x0e000e00u), 0x74007400u);
        }
    } else if (f::table) {
        uint32_t b = w;                 /* byte j: the codes of k = j (low half) and j + 4 */
        if (f::bits < 4) {
            const uint32_t c = w >> 4 * (t & 1);
            b = (c & 0x03030303u) | (c & 0x0c0c0c0cu) << 2;
            if (f::bits == 3) {
                const uint32_t h = w1 >> 2 * t;
                b |= (h & 0x01010101u) << 2 | (h & 0x02020202u) << 5;
            }
        }
        for (int j = 0; j < 4; j++)
            v[j] = look_up(table, b, j);
    } else if (f::bits == 4) {          /* i4, i4m, i4z: 1024 + code, 1024 + 16 * code */
        const uint32_t add = f::bias == 8 ? 0xd480e408u : 0xd400e400u;         /* -(1024 + bias), -(64 + bias) */
        for (int j = 0; j < 4; j++)
            v[j] = half_fma((prmt(w, w, (uint32_t)(0x1111 * j)) & 0x00f0000fu) | 0x64006400u, 0x2c003c00u, add);
    } else if (f::e4m3) {               /* 2^-8 times the values */
        for (int j = 0; j < 4; j++)
            v[j] = pair_of_e4m3(prmt(w, w1, (uint32_t)(j | j << 4 | (4 + j) << 8 | (4 + j) << 12)));
    } else {
        uint32_t low, high;
        if (f::base3) {
            low = digits(w, r.extra.x % 5);
            high = digits(w1, (r.extra.x + 1) % 5);
        } else if (f::bits == 2) {
            low = w >> 4 * (t & 1) & 0x03030303u;
            high = w >> (4 * (t & 1) + 2) & 0x03030303u;
        } else if (f::bits == 8) {
            low = w ^ 0x80808080u;
            high = w1 ^ 0x80808080u;
        } else {
            low = w & 0x0f0f0f0fu;
            high = w >> 4 & 0x0f0f0f0fu;
            if (f::bits == 5) {
                const uint32_t h = w1 >> 2 * t;
                low |= (h & 0x01010101u) << 4;
                high |= (h & 0x02020202u) << 3;
            } else {
                const uint32_t h = w1 >> 4 * (t & 1);
                low |= (h & 0x03030303u) << 4;
                high |= (h & 0x0c0c0c0cu) << 2;
            }
        }
        for (int j = 0; j < 4; j++)
            v[j] = pair_of_bytes(low, high, j, f::bias);
    }
}

/* The scale of the row's group as f16, in both halves; for e4m3 2^8 times the scale. */
template <int TYPE> DEVICE uint32_t decode_scale(const raw_step<TYPE> &r, int i)
{
    typedef format<TYPE> f;
    uint32_t s;
    if (f::scales == SCALE_F16) {
        const uint32_t h = i < 2 ? r.scale.x : r.scale.y;
        s = prmt(h, h, i % 2 ? 0x3232 : 0x1010);
    } else if (f::scales == SCALE_E4M3) {       /* 7 places higher: f16 of 2^-8 times the value */
        const uint32_t b = r.scale.x >> 8 * i, h = (b & 0x80) << 8 | (b & 0x7f) << 7;
        s = half_mul(h | h << 16, 0x5c005c00u);
    } else if (f::scales == SCALE_E8M0 || f::scales == SCALE_F32) {
        const uint32_t b = f::scales == SCALE_E8M0 ? (r.scale.x >> 8 * i & 0xff) << 23
                           : i == 0 ? r.scale.x : i == 1 ? r.scale.y : i == 2 ? r.extra.x : r.extra.y;
        const float x = f::e4m3 ? 256 * float_of(b) : float_of(b);
        s = pack_half(x, x);
    } else {
        const int is_signed = f::scales == SCALE_S8;
        s = prmt(is_signed ? r.scale.x ^ 0x80808080u : r.scale.x, 0x64646464u,
                 (uint32_t)(i | 4 << 4 | i << 8 | 4 << 12));
        s = half_add(s, is_signed ? 0xe480e480u : 0xe400e400u);
    }
    return s;
}

/* The scales of rows 2p and 2p + 1 as f16, from a word of a unit's scales: four signed bytes plus
 * 128. */
DEVICE uint32_t decode_scales(uint32_t bytes, int p)
{
    return half_add(prmt(bytes, 0x64646464u, p ? 0x4342 : 0x4140), 0xe480e480u);
}

/* The values, multiplied by the scale of their group. */
template <int TYPE, class TABLE>
DEVICE void decode_row(uint32_t v[4], const raw_step<TYPE> &r, int i, int t, const TABLE &table)
{
    typedef format<TYPE> f;
    if (TYPE == QT_F16 || TYPE == QT_BF16) {
        decode_floats<TYPE>(v, r, i);
        return;
    }
    decode_codes<TYPE>(v, r, i, t, table);
    if (f::scales == SCALE_NONE)
        return;
    const uint32_t s = decode_scale<TYPE>(r, i);
    if (f::extras == EXTRA_MIN_F16) {
        const uint32_t h = i < 2 ? r.extra.x : r.extra.y, least = prmt(h, h, i % 2 ? 0x3232 : 0x1010);
        for (int j = 0; j < 4; j++)
            v[j] = half_fma(v[j], s, least);
        return;
    }
    if (f::extras == EXTRA_ZERO_U8) {     /* -zero, as the f16 sum of -(1024 + zero) and 1024 */
        const uint32_t zero = half_add(prmt(r.extra.x, 0xe4e4e4e4u, (uint32_t)(i | 4 << 4 | i << 8 | 4 << 12)),
                                       0x64006400u);
        for (int j = 0; j < 4; j++)
            v[j] = half_add(v[j], zero);
    }
    for (int j = 0; j < 4; j++)
        v[j] = half_mul(v[j], s);
}

/* Multiply two rows of a lane by 8 tokens and add the products to c, for one step.  x: the lane's 8
 * activations of token g; a, b: its values of rows 4g + 2p and 4g + 2p + 1; c: those rows' sums for
 * tokens 2t and 2t + 1. */
DEVICE void multiply_rows(float c[4], const uint32_t a[4], const uint32_t b[4], const uint4 &x)
{
    mma_f16(c, a[0], b[0], a[1], b[1], x.x, x.y);
    mma_f16(c, a[2], b[2], a[3], b[3], x.z, x.w);
}

/* f16 of nl4_value, of the NF4 levels times 127 rounded once, of m2's, m3's and e2m1's values. */
static __constant__ uint16_t codebook[N_BOOKS][16] = {
    { 0xd7f0, 0xd610, 0xd4c0, 0xd360, 0xd1a0, 0xcfc0, 0xccc0, 0xc800, 0x4000, 0x4a00, 0x4dc0, 0x5040, 0x51e0, 0x53c0,
      0x5510, 0x56f0 },
    { 0xd7f0, 0xd587, 0xd42b, 0xd245, 0xd084, 0xcdde, 0xc9c8, 0x0000, 0x490e, 0x4d1c, 0x4fd0, 0x515d, 0x52ff, 0x5477,
      0x55bd, 0x57f0 },
    { 0xd7f0, 0xd180, 0x4c80, 0x5590 },
    { 0xd7f0, 0xd4d0, 0xd1a0, 0xcc80, 0x4700, 0x5020, 0x5400, 0x5690 },
    { 0x0000, 0x3800, 0x3c00, 0x3e00, 0x4000, 0x4200, 0x4400, 0x4600, 0x0000, 0xb800, 0xbc00, 0xbe00, 0xc000, 0xc200,
      0xc400, 0xc600 },
};

/* Write all copies of the codebook of TYPE.  The block's threads divide the work; a barrier must
 * follow.  Returns this lane's copy. */
template <int TYPE> DEVICE const uint32_t *table_fill(uint32_t *table)
{
    if (!format<TYPE>::table)
        return table;
    const uint16_t *value = codebook[format<TYPE>::book];
    for (int i = threadIdx.x; i < 256 * 32; i += blockDim.x) {
        const int byte = i >> 5;
        table[i] = (uint32_t)value[byte >> 4] << 16 | value[byte & 15];
    }
    return table + threadIdx.x % 32;
}

/* Write the codebook of TYPE with entries of WORDS words, four copies with each store. */
template <int TYPE, int THREADS, int WORDS> DEVICE void fill_entries(uint32_t *table)
{
    static_assert(THREADS % 128 == 0, "a thread stores entries of the same low code");
    const uint16_t *value = codebook[format<TYPE>::book];
    const int first = threadIdx.x / 8;
    const uint32_t low = value[first & 15];
#pragma unroll
    for (int i = 0; i < 256 * 8 / THREADS; i++) {
        const int byte = first + i * (THREADS / 8);
        const uint32_t v = (uint32_t)value[byte >> 4] << 16 | low;
        *reinterpret_cast<uint4 *>(table + byte * WORDS + threadIdx.x % 8 * 4) = make_uint4(v, v, v, v);
    }
}

/* table_fill() for the other tables, in a block of THREADS threads. */
template <int TYPE, int THREADS> DEVICE wide_table wide_fill(uint32_t *table)
{
    const wide_table w = { EITHER((uint32_t)__cvta_generic_to_shared(table), reinterpret_cast<const uint8_t *>(table)),
                           threadIdx.x % 32 * 4 };
    if (format<TYPE>::table)
        fill_entries<TYPE, THREADS, WIDE_BYTES / 1024>(table);
    return w;
}
template <int TYPE, int THREADS> DEVICE lane_table lane_fill(uint32_t *table)
{
    if (format<TYPE>::table)
        fill_entries<TYPE, THREADS, TABLE_BYTES / 1024>(table);
    table += threadIdx.x % 32;
    return { EITHER((uint32_t)__cvta_generic_to_shared(table), reinterpret_cast<const uint8_t *>(table)) };
}

/* ---- storing finished sums ---- */

DEVICE float activation(float x, int function)
{
    switch (function) {                 /* enum config_act */
    case 0:  return x / (1 + expf(-x));
    case 1:  return 0.5f * x * (1 + erff(x * 0.70710678f));
    case 2:  return x / (1 + expf(-1.5957691f * x * (1 + 0.044715f * x * x)));
    case 3:  return 0 > x ? 0 : x;
    case 4:  return 0 > x ? 0 : x * x;
    default: return x / (1 + expf(-1.702f * x));
    }
}

DEVICE uint16_t act_of(float x) { return (uint16_t)pack_half_clamped(x * (1 / ACT_UNIT), 0); }

/* Store zeros after the n values of a row; threads 0 .. n_threads - 1 divide the work. */
DEVICE void act_pad(uint16_t *act, int n, int order, int thread, int n_threads)
{
    for (int k = n + thread; k < act_padded(n); k += n_threads)
        act[act_place(k, order)] = 0;
}

/* y within limit, if there is one: clipped, or softly capped for GPU_LOGITS. */
DEVICE float limited(const gpu_linear &l, float y)
{
    if (l.limit <= 0)
        return y;
    return l.finish == GPU_STORE ? fminf(fmaxf(y, -l.limit), l.limit) : l.limit * tanhf(y / l.limit);
}

/* The value to store for y (with its bias) in place of `before`. */
DEVICE float finished(const gpu_linear &l, float y, float before)
{
    return l.finish == GPU_ADD ? fmaf(l.scale, y, before) : limited(l, l.finish == GPU_LOGITS ? y * l.scale : y);
}

/* Store element (token, row) of an output; the row's scale is already in y. */
DEVICE void finish_one(const gpu_linear &l, const gpu_output &to, int token, int row, float y)
{
    float *out = to.out + (size_t)token * to.ldo + row;
    *out = finished(l, to.bias ? y + to.bias[row] : y, l.finish == GPU_ADD ? *out : 0);
}

/* Store a block's results for few tokens: the elements of a tile of matrix `which`, or with N 2 the
 * activations that the tiles of gate and up make.  product(i, token, row in the tile) returns the
 * sum of matrix which + i, multiplied by the row's scale. */
template <int N, class PRODUCT> DEVICE void finish_few(const gpu_linear &l, int which, int tile, int n_threads,
                                                       PRODUCT product)
{
    for (int o = threadIdx.x; o < l.n_tokens * 32; o += n_threads) {
        const int token = o / 32, in_tile = o % 32, row = tile * 32 + in_tile;
        if (row >= l.w[which].rows) {
            if (l.finish == GPU_MLP)
                l.act_out[(size_t)token * l.act_out_stride + act_place(row, GPU_ACT_LANES)] = 0;
            continue;
        }
        float y[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            y[i] = product(i, token, in_tile);
        if (N == 1 && l.finish != GPU_MLP) {
            finish_one(l, l.to[which], token, row, y[0]);
            continue;
        }
        float h = activation(l.to[0].bias ? y[0] + l.to[0].bias[row] : y[0], l.function);
        if (N == 2)
            h *= l.to[1].bias ? y[N - 1] + l.to[1].bias[row] : y[N - 1];
        l.act_out[(size_t)token * l.act_out_stride + act_place(row, GPU_ACT_LANES)] = act_of(h);
    }
}

/* Store factor * (y * scale + bias) + before for a lane's four neighbouring rows and many tokens.
 * If nothing is added, bias and before are -0, because x + -0 is x. */
struct finish_rows {
    float bias[4], scale[4], factor;
    float *out; int ldo;                /* the first row of token 0 */
    int n;                              /* number of the four rows that exist */
    /* wide: four floats per access, as rows of the output are 16-byte aligned */
    bool add, wide;
};
template <int TYPE> DEVICE finish_rows finish_begin(const gpu_linear &l, const gpu_output &to, const uint8_t *tile,
                                                    int row, const gpu_mat &m, float unit)
{
    finish_rows f;
    f.out = to.out + row;
    f.ldo = to.ldo;
    f.n = min(4, m.rows - row);
    f.wide = f.n == 4 && to.ldo % 4 == 0 && (reinterpret_cast<uintptr_t>(to.out) & 15) == 0;
    f.add = l.finish == GPU_ADD;
    f.factor = l.finish == GPU_STORE ? 1 : l.scale;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f.bias[i] = to.bias && i < f.n ? to.bias[row + i] : -0.0f;
        f.scale[i] = format<TYPE>::row_scale ? unit * float_of(load4(tile + 4 * (row % TILE_OF_ROWS + i))) : unit;
        if (TYPE == QT_F16 && m.row_scales)
            f.scale[i] = unit * float_of(load4(m.row_scales + (size_t)(row / TILE_OF_ROWS) * m.row_scales_step +
                                               4 * (row % TILE_OF_ROWS + i)));
    }
    return f;
}
/* Store y, this lane's sums of n tokens in the layout of finish_tokens, from `at` on, four floats
 * per access.  The old values of TOGETHER tokens are loaded before any of them is stored, because a
 * store delays later loads; each token takes 4 registers. */
template <int N8, int TOGETHER> DEVICE void finish_wide(const float y[2][4 * N8], const finish_rows &f, float *at,
                                                        int n)
{
    static_assert(TOGETHER % 2 == 0 && 2 * N8 % TOGETHER == 0, "whole pairs of tokens, and nothing beyond the last");
#pragma unroll
    for (int i = 0; i < 2 * N8; i += TOGETHER) {
        float4 v[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int token = (i + j) / 2 * 8 + j % 2;
            v[j] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
            if (f.add && token < n)
                v[j] = *reinterpret_cast<const float4 *>(at + (size_t)token * f.ldo);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const int token = (i + j) / 2 * 8 + j % 2, k = 4 * ((i + j) / 2) + j % 2;
            if (token < n)
                *reinterpret_cast<float4 *>(at + (size_t)token * f.ldo) =
                    make_float4(fmaf(f.factor, y[0][k] * f.scale[0] + f.bias[0], v[j].x),
                                fmaf(f.factor, y[0][k + 2] * f.scale[1] + f.bias[1], v[j].y),
                                fmaf(f.factor, y[1][k] * f.scale[2] + f.bias[2], v[j].z),
                                fmaf(f.factor, y[1][k + 2] * f.scale[3] + f.bias[3], v[j].w));
        }
    }
}
/* finish_wide() for fewer than four rows or unaligned ones, which are rare.  Indexing v in a loop
 * places it in local memory, but makes the code a fifth as long. */
template <int N8> DEVICE void finish_narrow(const float y[2][4 * N8], const finish_rows &f, float *at, int n)
{
    float v[2 * N8][4];
#pragma unroll
    for (int i = 0; i < 2 * N8; i++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            v[i][r] = y[r / 2][4 * (i / 2) + i % 2 + r % 2 * 2] * f.scale[r] + f.bias[r];
#pragma unroll 1
    for (int i = 0; i < 2 * N8; i++) {
        const int token = i / 2 * 8 + i % 2;
        float *out = at + (size_t)token * f.ldo;
#pragma unroll 1
        for (int r = 0; token < n && r < f.n; r++)
            out[r] = fmaf(f.factor, v[i][r], f.add ? out[r] : -0.0f);
    }
}
/* Store the sums of a tile's tokens, of which first .. end - 1 exist: those of token first + 8i +
 * 2t + k and the lane's rows are y[0][4i + k], y[0][4i + 2 + k], y[1][4i + k], y[1][4i + 2 + k]. */
template <int N8, int TOGETHER> DEVICE void finish_tokens(const float y[2][4 * N8], const finish_rows &f,
                                                          const gpu_linear &l, int first, int end, int t)
{
    const int n = min(8 * N8, end - first) - 2 * t;
    float *at = f.out + (size_t)(first + 2 * t) * f.ldo;
    if (f.wide)
        finish_wide<N8, TOGETHER>(y, f, at, n);
    else
        finish_narrow<N8>(y, f, at, n);
    if (l.finish == GPU_ADD || l.limit <= 0)
        return;
#pragma unroll 1
    for (int token = 0; token < n; token += token & 1 ? 7 : 1)
#pragma unroll 1
        for (int r = 0; r < f.n; r++)
            at[(size_t)token * f.ldo + r] = limited(l, at[(size_t)token * f.ldo + r]);
}

#endif

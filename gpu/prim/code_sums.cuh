/* code_sums.cuh - sums of products of codes as they are, for integer codes whose groups have a
 * scale in f16.
 *
 * The bits of a small integer n are the f16 n * 2^-24, and tensor cores multiply such numbers
 * exactly.  So a code needs no conversion but a mask.  It is the value plus `bias`; the sums of a
 * step therefore begin at the sum of the activations times -bias, which is a product as well.  They
 * are multiplied by the scales of the step's groups, and the finished sums by 2^24.  This takes
 * half of the instructions of decode_row() (weights.cuh), and rounds less.
 *
 * If two steps belong to one group, their sums are multiplied by its scale once.  Then half of the
 * 4-bit codes stay where they are, 16 times as large, and have sums of their own, which are
 * multiplied by 1/16 (exactly) and begin the sums of the others: one shift of a word, not three. */
#ifndef ZSE_GPU_PRIM_CODE_SUMS_CUH
#define ZSE_GPU_PRIM_CODE_SUMS_CUH

#include "gpu/prim/weights.cuh"

template <int TYPE>
constexpr bool BY_CODES = format<TYPE>::scales == SCALE_F16 && format<TYPE>::extras == EXTRA_NONE &&
                          (format<TYPE>::bits == 4 || format<TYPE>::bits == 8) && !format<TYPE>::table &&
                          !format<TYPE>::e4m3 && format<TYPE>::halves == 1 && !format<TYPE>::wide;
#define CODE_UNIT 16777216.0f           /* 2^24 */
#define HIGH_UNIT 0.0625f               /* of codes that stay in the high half of a byte */

/* Codes of row i as four pairs: (0,2) (1,3) (4,6) (5,7).  HIGH: 4-bit codes of the last two pairs
 * are in units of 1 / HIGH_UNIT. */
template <int TYPE, bool HIGH> DEVICE void code_pairs(uint32_t v[4], const raw_step<TYPE> &r, int i)
{
    typedef format<TYPE> f;
    const uint32_t w = word_of(r.code[0], i);
    if (f::bits == 4) {
        for (int j = 0; j < 4; j++)
            v[j] = HIGH ? w >> j % 2 * 8 & 0x000f000fu << j / 2 * 4 : w >> (j % 2 * 8 + j / 2 * 4) & 0x000f000fu;
    } else {                            /* INT8: plus 128 */
        const uint32_t low = w ^ 0x80808080u, high = word_of(r.code[1 % f::raw], i) ^ 0x80808080u;
        for (int j = 0; j < 4; j++)
            v[j] = prmt(j < 2 ? low : high, 0, j % 2 ? 0x4341 : 0x4240);
    }
}
/* Eight activations in the order of these pairs. */
DEVICE uint4 code_order(const uint4 &x)
{
    return make_uint4(prmt(x.x, x.z, 0x5410), prmt(x.y, x.w, 0x5410), prmt(x.x, x.z, 0x7632), prmt(x.y, x.w, 0x7632));
}
/* d = c + a b, with fragments as in mma_f16(). */
DEVICE void mma_f16_onto(float d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                         const float c[4])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0),
                 "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else
    for (int i = 0; i < 4; i++)
        d[i] = c[i];
    mma_f16(d, a0, a1, a2, a3, b0, b1);
#endif
}
/* Four registers of -bias are the operand of code_bias().  They are loaded from shared memory with
 * one instruction; as constants they take a move each in every step.  bias_words: their address. */
#ifdef __CUDACC__
struct bias_words { uint32_t at; };     /* in shared memory */
#else
struct bias_words { const uint32_t *at; };
#endif
enum { BIAS_BYTES = 16 };
template <int TYPE> constexpr uint32_t MINUS_BIAS = (0x8000u | (uint32_t)format<TYPE>::bias) * 0x10001u;
/* Write the words; a barrier must follow. */
template <int TYPE> DEVICE bias_words bias_fill(uint32_t *room)
{
    if (threadIdx.x < BIAS_BYTES / sizeof *room)
        room[threadIdx.x] = MINUS_BIAS<TYPE>;
    return { EITHER((uint32_t)__cvta_generic_to_shared(room), room) };
}
/* Without a table of bias_words they are constants. */
template <int TYPE, class TABLE> DEVICE uint4 minus_bias(const TABLE &)
{
    const uint32_t w = MINUS_BIAS<TYPE>;
    return make_uint4(w, w, w, w);
}
template <int TYPE> DEVICE uint4 minus_bias(const bias_words &b)
{
#ifdef __CUDACC__
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(b.at));
    return v;
#else
    return load16(b.at);
#endif
}
/* The sums at which those of a step begin; more: c has those of other steps of the group, which
 * remain.  a: minus_bias(); x: activations in code_order(). */
DEVICE void code_bias(float c[4], const uint4 &a, const uint4 &x, bool more)
{
    const float none[4] = { 0, 0, 0, 0 };
    mma_f16_onto(c, a.x, a.y, a.z, a.w, x.x, x.y, more ? c : none);
    mma_f16(c, a.x, a.y, a.z, a.w, x.z, x.w);
}

/* A lane's places in a pair of steps, of which the first is even: codes of the first step, and the
 * scales of both.  Only for units with both of their groups. */
struct code_place { const uint8_t *codes, *scales; };
template <int TYPE> DEVICE code_place code_place_of(const uint8_t *tile, int group_shift, int step, int g, int t)
{
    const unsigned unit_shift = group_shift + 1, unit = (unsigned)step >> unit_shift,
                   in_group = ((unsigned)step >> group_shift & 1) * 8;
    return { tile + ((unit + 1) * 128 + (unsigned)step * STEP_CODES<TYPE> + t * (format<TYPE>::bits * 32) + g * 16),
             tile + (unit * 128 + (unit << unit_shift) * STEP_CODES<TYPE> + in_group + g * 16) };
}
/* The same for the next pair of steps, if the first is a multiple of 4. */
template <int TYPE> DEVICE code_place next_place(const code_place &p, int group_shift)
{
    return { p.codes + (2 * STEP_CODES<TYPE> + (group_shift ? 0 : 128)),
             p.scales + (group_shift == 0 ? 128 + 2 * STEP_CODES<TYPE> : group_shift == 1 ? 8 : 0) };
}
/* Load one of the two steps. */
template <int TYPE> DEVICE void load_codes_at(raw_step<TYPE> &r, const code_place &p, int group_shift, int k)
{
    typedef format<TYPE> f;
    r.scale = load8(p.scales + (k && !group_shift ? 8 : 0));
    for (int i = 0; i < f::raw; i++)
        r.code[i] = load_stream(p.codes + k * STEP_CODES<TYPE> + i * 128);
}

/* ---- turns of groups whose size is known to the compiler ----
 *
 * A turn is 4 or 2 steps, and begins at a multiple of as many.  SHIFT: group_shift; ANY_GROUPS: not
 * known.  A lane's places in a tile move by the same number of bytes from turn to turn. */
enum { ANY_GROUPS = -1, MOST_SHIFT = 2 };
template <int TYPE, int SHIFT> constexpr unsigned CODE_UNIT_BYTES = 128 + (STEP_CODES<TYPE> << (SHIFT + 1));
template <int TYPE, int SHIFT> DEVICE code_place turn_codes(const uint8_t *tile, int step, int g, int t)
{
    const unsigned unit = (unsigned)step >> (SHIFT + 1);
    return { tile + ((unit + 1) * 128 + (unsigned)step * STEP_CODES<TYPE> + t * (format<TYPE>::bits * 32) + g * 16),
             tile + (unit * CODE_UNIT_BYTES<TYPE, SHIFT> + ((unsigned)step >> SHIFT & 1) * 8 + g * 16) };
}
/* The places STEPS later. */
template <int TYPE, int SHIFT, int STEPS> DEVICE void move_on(code_place &p)
{
    static_assert(STEPS % (2 << MOST_SHIFT) == 0, "whole units");
    p.codes += (STEPS >> (SHIFT + 1)) * CODE_UNIT_BYTES<TYPE, SHIFT>;
    p.scales += (STEPS >> (SHIFT + 1)) * CODE_UNIT_BYTES<TYPE, SHIFT>;
}
/* Load the scales of the groups of a turn, for the lane's rows: of a whole unit with one load. */
template <int TYPE, int SHIFT, int GROUPS> DEVICE void load_turn_scales(uint2 (&scale)[GROUPS], const code_place &p)
{
    if (GROUPS == 1)
        scale[0] = load8(p.scales);
    for (int i = 0; i + 1 < GROUPS; i += 2) {
        const uint4 v = load16(p.scales + i / 2 * CODE_UNIT_BYTES<TYPE, SHIFT>);
        scale[i] = make_uint2(v.x, v.y);
        scale[i + 1] = make_uint2(v.z, v.w);
    }
}
/* Load the codes of step k of a turn. */
template <int TYPE, int SHIFT> DEVICE void load_turn_codes(raw_step<TYPE> &r, const code_place &p, int k)
{
    for (int i = 0; i < format<TYPE>::raw; i++)
        r.code[i] = load_stream(p.codes + (k * STEP_CODES<TYPE> + (k >> (SHIFT + 1)) * 128 + i * 128));
}

#endif

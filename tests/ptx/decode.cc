/* decode.cc - arithmetic, comparisons and conversions: one function for each operation and type,
 * written as a loop over the 32 lanes that the compiler turns into vector instructions. */
#include "tests/ptx/ptx.h"

#include <math.h>
#include <string.h>

#include <limits>
#include <type_traits>
#include <utility>

#include "libcommon/quant/half.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;

/* A 16-bit register is the low half of a 32-bit register. */
template <class T> static inline T get(const u8 *file, u32 at, int i)
{
    if constexpr (sizeof(T) >= 4)
        return ((const T *)(file + at))[i];
    else
        return (T)((const u32 *)(file + at))[i];
}
template <class T> static inline void put(u8 *file, u32 at, int i, T v)
{
    if constexpr (sizeof(T) >= 4)
        ((T *)(file + at))[i] = v;
    else
        ((u32 *)(file + at))[i] = (u32)v;
}

/* The function of an operation a[0] = F(a[1], a[2] ...), where D is the type of the result and S
 * are the types of the operands. */
template <auto F, class D, class... S, size_t... N>
static inline void map_lanes(warp &w, const op &o, u32 on, std::index_sequence<N...>)
{
    u8 *const f = w.file;
    if (on == ~0u) {
#pragma GCC ivdep
        for (int i = 0; i < LANES; i++)
            put<D>(f, o.a[0], i, (D)F(get<S>(f, o.a[N + 1], i)...));
    } else {
        EACH_LANE(i, on)
            put<D>(f, o.a[0], (int)i, (D)F(get<S>(f, o.a[N + 1], (int)i)...));
    }
}
template <auto F, class D, class... S> static void map(warp &w, const op &o, u32 on)
{
    map_lanes<F, D, S...>(w, o, on, std::index_sequence_for<S...>());
}
/* map_lanes() for functions whose first argument is o.imm. */
template <auto F, class D, class... S, size_t... N>
static inline void map_lanes_imm(warp &w, const op &o, u32 on, std::index_sequence<N...>)
{
    EACH_LANE(i, on)
        put<D>(w.file, o.a[0], (int)i, (D)F(o.imm, get<S>(w.file, o.a[N + 1], (int)i)...));
}
template <auto F, class D, class... S> static void map_imm(warp &w, const op &o, u32 on)
{
    map_lanes_imm<F, D, S...>(w, o, on, std::index_sequence_for<S...>());
}

/* Set a predicate to F(a[1], a[2]). */
template <auto F, class S> static void test(warp &w, const op &o, u32 on)
{
    u32 r = 0;
    for (int i = 0; i < LANES; i++)
        r |= (u32)(F(get<S>(w.file, o.a[1], i), get<S>(w.file, o.a[2], i)) ? 1 : 0) << i;
    if (o.imm) {                        /* the result is combined with predicate a[3] */
        const u32 p = w.predicate[o.a[3]] ^ (o.a[4] ? ~0u : 0);
        r = o.imm == 1 ? r & p : o.imm == 2 ? r | p : r ^ p;
    }
    w.predicate[o.a[0]] = (w.predicate[o.a[0]] & ~on) | (r & on);
}
template <auto F> static void logic(warp &w, const op &o, u32 on)
{
    const u32 a = w.predicate[o.a[1]] ^ (o.imm & 1 ? ~0u : 0), b = w.predicate[o.a[2]] ^ (o.imm & 2 ? ~0u : 0);
    w.predicate[o.a[0]] = (w.predicate[o.a[0]] & ~on) | (F(a, b) & on);
}
static void set_predicate(warp &w, const op &o, u32 on)
{
    w.predicate[o.a[0]] = (w.predicate[o.a[0]] & ~on) | (o.imm ? on : 0);
}
template <class T> static void select(warp &w, const op &o, u32 on)
{
    const u32 p = w.predicate[o.a[3]] ^ (o.imm ? ~0u : 0);
    EACH_LANE(i, on)
        put<T>(w.file, o.a[0], (int)i, get<T>(w.file, p >> i & 1 ? o.a[1] : o.a[2], (int)i));
}

/* ---- numbers ---- */

static inline float f16_of(u16 h) { return f16_to_f32(h); }
static inline u32 pair(float low, float high) { return (u32)f32_to_f16(high) << 16 | f32_to_f16(low); }
static inline float low(u32 u) { return f16_of((u16)u); }
static inline float high(u32 u) { return f16_of((u16)(u >> 16)); }

static u32 add_pairs(u32 x, u32 y) { return pair(low(x) + low(y), high(x) + high(y)); }
static u32 subtract_pairs(u32 x, u32 y) { return pair(low(x) - low(y), high(x) - high(y)); }
static u32 multiply_pairs(u32 x, u32 y) { return pair(low(x) * low(y), high(x) * high(y)); }
static u32 fma_pairs(u32 x, u32 y, u32 z)
{
    return pair(fmaf(low(x), low(y), low(z)), fmaf(high(x), high(y), high(z)));
}
/* of min.NaN and max.NaN */
static float least(float x, float y) { return x != x ? x : y != y ? y : x < y ? x : y; }
static float most(float x, float y) { return x != x ? x : y != y ? y : x > y ? x : y; }
static u32 least_pairs(u32 x, u32 y) { return pair(least(low(x), low(y)), least(high(x), high(y))); }
static u32 most_pairs(u32 x, u32 y) { return pair(most(low(x), low(y)), most(high(x), high(y))); }
static float fused(float x, float y, float z) { return fmaf(x, y, z); }
static double fused(double x, double y, double z) { return fma(x, y, z); }

/* a * b + c, rounded down: the sign of the nearest value's residual tells whether it is above the
 * exact result. */
static float fma_down(float a, float b, float c)
{
    const float r = fmaf(a, b, c);
    if (!isfinite(r))
        return r;
    const double p = (double)a * b, s = p + c, t = s - p, rest = (p - (s - t)) + (c - t);
    return (double)r > s || ((double)r == s && rest < 0) ? nextafterf(r, -INFINITY) : r;
}
static float without_denormals(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

template <class T, class F> static T to_integer(F x)
{
    if (!(x == x))
        return 0;
    const double low = (double)std::numeric_limits<T>::min(), high = (double)std::numeric_limits<T>::max();
    return (double)x <= low ? std::numeric_limits<T>::min() : (double)x >= high ? std::numeric_limits<T>::max() : (T)x;
}
template <class F> static F rounded(F x, char how)
{
    return how == 'n' ? rint(x) : how == 'z' ? trunc(x) : how == 'm' ? floor(x) : how == 'p' ? ceil(x) : x;
}
template <class T> static T divided(T x, T y)
{
    return y == 0 ? (T)-1 : std::is_signed_v<T> && y == (T)-1 ? (T)(0 - x) : (T)(x / y);
}
template <class T> static T remaining(T x, T y)
{
    return y == 0 ? x : std::is_signed_v<T> && y == (T)-1 ? (T)0 : (T)(x % y);
}

static u64 high_product(u64 x, u64 y) { return (u64)((unsigned __int128)x * y >> 64); }
static u32 permuted(u32 a, u32 b, u32 s)
{
    const u64 v = (u64)b << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; i++) {
        const u32 n = s >> 4 * i & 15, byte = (u32)(v >> 8 * (n & 7)) & 0xff;
        out |= (n & 8 ? (byte & 0x80 ? 0xffu : 0) : byte) << 8 * i;
    }
    return out;
}
template <class T> static T inserted(T a, T b, u32 at, u32 n)
{
    const unsigned bits = 8 * sizeof(T);
    at &= 255, n &= 255;
    if (at >= bits || n == 0)
        return b;
    const T ones = n >= bits ? (T)~(T)0 : (T)(((T)1 << n) - 1);
    return (T)((b & ~(ones << at)) | ((a & ones) << at));
}
static u32 logic3(s64 table, u32 a, u32 b, u32 c)
{
    u32 out = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1)
            out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return out;
}

/* ---- choosing the function ---- */

/* The handler that computes F with N operands of type T and a result of type T. */
template <auto F, class T, int N> static constexpr handler same()
{
    if constexpr (N == 1)
        return map<F, T, T>;
    else if constexpr (N == 2)
        return map<F, T, T, T>;
    else
        return map<F, T, T, T, T>;
}
template <auto F, int N> static handler integers(enum type t)
{
    switch (t) {
    case U16: case B16: return same<F, u16, N>();
    case S16: return same<F, s16, N>();
    case U32: case B32: return same<F, u32, N>();
    case S32: return same<F, s32, N>();
    case U64: case B64: return same<F, u64, N>();
    case S64: return same<F, s64, N>();
    default: return nullptr;
    }
}
/* Bits wrap around, so signed and unsigned operations are the same. */
template <auto F, int N> static handler wrapping(enum type t)
{
    return bits_of(t) == 16 ? same<F, u16, N>() : bits_of(t) == 32 ? same<F, u32, N>()
                                                                      : same<F, u64, N>();
}
template <auto F, int N> static handler floats(enum type t)
{
    return t == F32 ? same<F, float, N>() : t == F64 ? same<F, double, N>() : nullptr;
}
static bool is_float(enum type t) { return t >= F16 && t <= F64; }
static bool is_signed(enum type t) { return t >= S8 && t <= S64; }

/* Comparisons by name; the names with u are true if an operand is NaN. */
template <class T> static handler comparison(const std::string &c)
{
#define WITH(name, e) \
    if (c == name) \
        return test<[](T a, T b) { return (e); }, T>;
    WITH("eq", a == b) WITH("ne", a < b || a > b) WITH("lt", a < b) WITH("le", a <= b) WITH("gt", a > b)
    WITH("ge", a >= b) WITH("lo", a < b) WITH("ls", a <= b) WITH("hi", a > b) WITH("hs", a >= b)
    WITH("equ", !(a < b || a > b)) WITH("neu", !(a == b)) WITH("ltu", !(a >= b)) WITH("leu", !(a > b))
    WITH("gtu", !(a <= b)) WITH("geu", !(a < b)) WITH("num", a == a && b == b) WITH("nan", a != a || b != b)
#undef WITH
    return nullptr;
}
static handler comparison_of(enum type t, const std::string &c)
{
    switch (t) {
    case F32: return comparison<float>(c);
    case F64: return comparison<double>(c);
    case S16: return comparison<s16>(c);
    case U16: case B16: return comparison<u16>(c);
    case S32: return comparison<s32>(c);
    case U32: case B32: return comparison<u32>(c);
    case S64: return comparison<s64>(c);
    case U64: case B64: return comparison<u64>(c);
    default: return nullptr;
    }
}

/* ---- cvt ---- */

/* how: the rounding to an integer, 'n' 'z' 'm' 'p', 0: none; bit 8: saturate */
template <class D, class S> static D converted(s64 how, S x)
{
    if constexpr (std::is_floating_point_v<S>) {
        const S r = rounded(x, (char)(how & 0xff));
        if constexpr (std::is_floating_point_v<D>)
            return how >> 8 ? (D)(x != x ? 0 : r < 0 ? 0 : r > 1 ? 1 : r) : (D)r;
        else
            return to_integer<D>(r);
    } else if constexpr (std::is_floating_point_v<D>) {
        return (D)x;
    } else {
        if (how >> 8) {
            const __int128 v = x, least = std::numeric_limits<D>::min(), most = std::numeric_limits<D>::max();
            return (D)(v < least ? least : v > most ? most : v);
        }
        return (D)x;
    }
}
template <class D, class S> static handler plain(s64 how)
{
    if (how)
        return map_imm<converted<D, S>, D, S>;
    return map<[](S x) { return (converted<D, S>(0, x)); }, D, S>;
}
template <class D> static handler from(enum type s, s64 how)
{
    switch (s) {
    case S8: return plain<D, s8>(how);
    case U8: return plain<D, u8>(how);
    case S16: return plain<D, s16>(how);
    case U16: return plain<D, u16>(how);
    case S32: return plain<D, s32>(how);
    case U32: return plain<D, u32>(how);
    case S64: return plain<D, s64>(how);
    case U64: return plain<D, u64>(how);
    case F32: return plain<D, float>(how);
    case F64: return plain<D, double>(how);
    default: return nullptr;
    }
}

static bool decode_cvt(assembler &as, const statement &s, op &o)
{
    const enum type d = s.type(1), f = s.type(0);
    s64 how = s.has("sat") ? 256 : 0;
    for (const char *r : { "rni", "rzi", "rmi", "rpi" })
        if (s.has(r))
            how |= r[1];
    if (s.has("ftz") || s.has("rz") || s.has("rm") || s.has("rp"))
        return false;
    o.imm = how;
    if (f == F16 || d == F16 || d == F16X2) {
        if (how)
            return false;
        o.a[0] = target(s.o[0], false);
        o.a[1] = source(as, s.o[1], false);
        if (d == F16X2 && f == F32) {   /* the first operand is the upper half */
            o.a[2] = source(as, s.o[2], false);
            o.run = map<[](float a, float b) { return (pair(b, a)); }, u32, float, float>;
        } else if (d == F32 && f == F16) {
            o.run = map<[](u16 h) { return (f16_of(h)); }, float, u16>;
        } else if (d == F16 && f == F32) {
            o.run = map<[](float x) { return (f32_to_f16(x)); }, u16, float>;
        }
        return o.run != nullptr;
    }
    /* Registers may be wider than the type: sources are truncated, results are extended. */
    const bool wide_from = s.o[1].kind == operand::REGISTER ? s.o[1].wide : bits_of(f) == 64;
    o.a[0] = target(s.o[0], s.o[0].wide);
    o.a[1] = source(as, s.o[1], wide_from);
    if (d == S64 && f == S32 && s.o[0].wide && wide_from && !how) {
        o.run = map<[](s64 x) { return ((s64)(s32)x); }, s64, s64>;
        return true;
    }
    if (s.o[0].wide != (bits_of(d) == 64) || wide_from != (bits_of(f) == 64))
        return false;
    switch (d) {
    case S8: o.run = from<s8>(f, how); break;
    case U8: o.run = from<u8>(f, how); break;
    case S16: o.run = from<s16>(f, how); break;
    case U16: o.run = from<u16>(f, how); break;
    case S32: o.run = from<s32>(f, how); break;
    case U32: o.run = from<u32>(f, how); break;
    case S64: o.run = from<s64>(f, how); break;
    case U64: o.run = from<u64>(f, how); break;
    case F32: o.run = from<float>(f, how); break;
    case F64: o.run = from<double>(f, how); break;
    default: break;
    }
    return o.run != nullptr;
}

/* ---- sums with a carry, which is one bit per lane ---- */

/* kind: 0 add, 1 sub, 2 mad.lo, 3 mad.hi.  Reads the carry of the previous operation, and sets a
 * new one. */
static void run_carry(warp &w, const op &o, u32 on)
{
    const int kind = (int)(o.imm & 3);
    EACH_LANE(i, on) {
        const u64 a = get<u32>(w.file, o.a[1], (int)i), b = get<u32>(w.file, o.a[2], (int)i),
                       c = kind >= 2 ? get<u32>(w.file, o.a[3], (int)i) : 0,
                       carry = o.imm & 4 ? w.carry >> i & 1 : 0;
        const u64 r = kind == 0 ? a + b + carry : kind == 1 ? a - b - carry
                           : (kind == 2 ? (u32)(a * b) : a * b >> 32) + c + carry;
        put<u32>(w.file, o.a[0], (int)i, (u32)r);
        if (o.imm & 8)
            w.carry = (w.carry & ~(1u << i)) | (u32)(r >> 32 & 1) << i;
    }
}

/* ---- mov ---- */

/* more: the registers that a[1] is unpacked to, or those that are packed to a[0]; imm: their width
 * in bits */
static void unpack(warp &w, const op &o, u32 on)
{
    EACH_LANE(i, on) {
        const u64 v = o.wide ? get<u64>(w.file, o.a[1], (int)i) : get<u32>(w.file, o.a[1], (int)i);
        for (size_t j = 0; j < o.more.size(); j++)
            if (o.more[j] != ~0u)
                put<u32>(w.file, o.more[j], (int)i,
                              (u32)(v >> (o.imm * (s64)j)) & (o.imm == 32 ? ~0u : (1u << o.imm) - 1));
    }
}
static void pack(warp &w, const op &o, u32 on)
{
    EACH_LANE(i, on) {
        u64 v = 0;
        for (size_t j = 0; j < o.more.size(); j++)
            v |= (u64)(get<u32>(w.file, o.more[j], (int)i) & (o.imm == 32 ? ~0u : (1u << o.imm) - 1))
                 << (o.imm * (s64)j);
        if (o.wide)
            put<u64>(w.file, o.a[0], (int)i, v);
        else
            put<u32>(w.file, o.a[0], (int)i, (u32)v);
    }
}

static bool decode_mov(assembler &as, const statement &s, op &o)
{
    const enum type t = s.type();
    if (t == PRED) {
        o.a[0] = predicate(s.o[0]);
        if (s.o[1].kind == operand::NUMBER) {
            o.imm = s.o[1].value != 0;
            o.run = set_predicate;
        } else {
            o.a[1] = o.a[2] = s.o[1].at;
            o.imm = s.o[1].negated ? 3 : 0;
            o.run = logic<[](u32 a, u32) { return (a); }>;
        }
        return true;
    }
    const bool wide = bits_of(t) == 64;
    for (int side = 0; side < 2; side++)
        if (s.o[side].kind == operand::VECTOR) {
            o.imm = bits_of(t) / (int)s.o[side].v.size();
            o.wide = wide;
            o.a[!side] = side ? target(s.o[0], wide) : source(as, s.o[1], wide);
            for (const operand &x : s.o[side].v)
                o.more.push_back(x.kind == operand::NONE ? ~0u : side ? source(as, x, false) : target(x, false));
            o.run = side ? pack : unpack;
            return true;
        }
    o.a[0] = target(s.o[0], wide);
    o.a[1] = source(as, s.o[1], wide);
    o.run = wide ? map<[](u64 x) { return (x); }, u64, u64>
                 : map<[](u32 x) { return (x); }, u32, u32>;
    return true;
}

/* Operations of N operands of one type. */
static bool operands(assembler &as, const statement &s, op &o, bool wide, size_t n)
{
    if (s.o.size() != n + 1)
        fail("%zu operands, expected %zu", s.o.size(), n + 1);
    o.a[0] = target(s.o[0], wide);
    for (size_t i = 1; i <= n; i++)
        o.a[i] = source(as, s.o[i], wide);
    return o.run != nullptr;
}

static bool decode_float(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    const enum type t = s.type();
    const bool wide = t == F64, approx = s.has("approx"), ftz = s.has("ftz");
    for (const char *r : { "rz", "rp", "sat" })
        if (s.has(r))
            return false;
    if (s.has("rm")) {                  /* only the form that expf uses */
        o.run = b == "fma" && t == F32 ? map<fma_down, float, float, float, float> : nullptr;
        return operands(as, s, o, wide, 3);
    }
    if (t == F16X2) {
        if (b == "add")
            o.run = map<add_pairs, u32, u32, u32>;
        else if (b == "sub")
            o.run = map<subtract_pairs, u32, u32, u32>;
        else if (b == "mul")
            o.run = map<multiply_pairs, u32, u32, u32>;
        else if (b == "fma")
            o.run = map<fma_pairs, u32, u32, u32, u32>;
        else if (b == "min" && s.has("NaN"))
            o.run = map<least_pairs, u32, u32, u32>;
        else if (b == "max" && s.has("NaN"))
            o.run = map<most_pairs, u32, u32, u32>;
        else
            return false;
        return operands(as, s, o, false, b == "fma" ? 3 : 2);
    }
    if (t == F16)
        return false;
    size_t n = 2;
    if (b == "add")
        o.run = floats<[](auto x, auto y) { return (x + y); }, 2>(t);
    else if (b == "sub")
        o.run = floats<[](auto x, auto y) { return (x - y); }, 2>(t);
    else if (b == "mul")
        o.run = floats<[](auto x, auto y) { return (x * y); }, 2>(t);
    else if (b == "div")
        o.run = floats<[](auto x, auto y) { return (x / y); }, 2>(t);
    else if (b == "min")
        o.run = floats<[](auto x, auto y) { return (x != x ? y : y != y ? x : x < y ? x : y); }, 2>(t);
    else if (b == "max")
        o.run = floats<[](auto x, auto y) { return (x != x ? y : y != y ? x : x > y ? x : y); }, 2>(t);
    else if (b == "copysign")           /* the sign of the first operand, the value of the second */
        o.run = floats<[](auto x, auto y) { return ((decltype(x))copysign(y, x)); }, 2>(t);
    else if (b == "fma")
        o.run = floats<[](auto x, auto y, auto z) { return (fused(x, y, z)); }, 3>(t), n = 3;
    else if (b == "neg")
        o.run = floats<[](auto x) { return (-x); }, 1>(t), n = 1;
    else if (b == "abs")
        o.run = floats<[](auto x) { return ((decltype(x))fabs(x)); }, 1>(t), n = 1;
    else if (b == "sqrt")
        o.run = floats<[](auto x) { return ((decltype(x))sqrt(x)); }, 1>(t), n = 1;
    else if (b == "rcp")
        o.run = ftz ? map<[](float x) { return (without_denormals(1 / without_denormals(x))); }, float, float>
                    : floats<[](auto x) { return (1 / x); }, 1>(t), n = 1;
    else if (b == "rsqrt" && approx)
        o.run = floats<[](auto x) { return ((decltype(x))(1 / sqrt(x))); }, 1>(t), n = 1;
    else if (b == "ex2" && t == F32)
        o.run = ftz ? map<[](float x) { return (without_denormals(exp2f(without_denormals(x)))); }, float, float>
                    : map<[](float x) { return (exp2f(x)); }, float, float>, n = 1;
    else if (b == "lg2" && t == F32)
        o.run = map<[](float x) { return (log2f(x)); }, float, float>, n = 1;
    else if (b == "tanh" && t == F32)
        o.run = map<[](float x) { return (tanhf(x)); }, float, float>, n = 1;
    if (ftz && b != "ex2" && b != "rcp")
        return false;
    return o.run && operands(as, s, o, wide, n);
}

/* Decode sums and products that read or write a carry. */
static bool decode_carry(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    if (bits_of(s.type()) != 32)
        return false;
    o.imm = (b[0] == 'a' ? 0 : b[0] == 's' ? 1 : s.has("lo") ? 2 : 3) | (b.back() == 'c' ? 4 : 0) |
            (s.has("cc") ? 8 : 0);
    o.run = run_carry;
    return operands(as, s, o, false, b[0] == 'm' ? 3 : 2);
}

/* Products of twice the width. */
static bool decode_wide(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    const enum type t = s.type();
    const bool from16 = bits_of(t) == 16;
    if (bits_of(t) > 32)
        return false;
    o.a[0] = target(s.o[0], !from16);
    o.a[1] = source(as, s.o[1], false);
    o.a[2] = source(as, s.o[2], false);
    if (b == "mad")
        o.a[3] = source(as, s.o[3], !from16);
    if (from16 && b == "mul")
        o.run = is_signed(t) ? map<[](s16 x, s16 y) { return (x * y); }, s32, s16, s16>
                             : map<[](u16 x, u16 y) { return ((u32)x * y); }, u32, u16, u16>;
    else if (b == "mul")
        o.run = is_signed(t) ? map<[](s32 x, s32 y) { return ((s64)x * y); }, s64, s32, s32>
                             : map<[](u32 x, u32 y) { return ((u64)x * y); }, u64, u32, u32>;
    else if (!from16)
        o.run = is_signed(t) ? map<[](s32 x, s32 y, u64 z) { return ((u64)((s64)x * y) + z); }, u64, s32, s32, u64>
                             : map<[](u32 x, u32 y, u64 z) { return ((u64)x * y + z); }, u64, u32, u32, u64>;
    return o.run != nullptr;
}

/* Decode shifts of 32 bits; a shift by more than the width gives 0 or the sign. */
static bool decode_shift(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    const enum type t = s.type();
    const bool wide = bits_of(t) == 64;
    o.a[0] = target(s.o[0], wide);
    o.a[1] = source(as, s.o[1], wide);
    o.a[2] = source(as, s.o[2], false);
    if (b == "shl")
        o.run = wide ? map<[](u64 x, u32 n) { return (n > 63 ? 0 : x << n); }, u64, u64, u32>
                : bits_of(t) == 32 ? map<[](u32 x, u32 n) { return (n > 31 ? 0 : x << n); }, u32, u32, u32>
                                   : map<[](u16 x, u32 n) { return (n > 15 ? 0 : x << n); }, u16, u16, u32>;
    else if (is_signed(t))
        o.run = wide ? map<[](s64 x, u32 n) { return (x >> (n > 63 ? 63 : n)); }, s64, s64, u32>
                : bits_of(t) == 32 ? map<[](s32 x, u32 n) { return (x >> (n > 31 ? 31 : n)); }, s32, s32, u32>
                                   : map<[](s16 x, u32 n) { return (x >> (n > 15 ? 15 : n)); }, s16, s16, u32>;
    else
        o.run = wide ? map<[](u64 x, u32 n) { return (n > 63 ? 0 : x >> n); }, u64, u64, u32>
                : bits_of(t) == 32 ? map<[](u32 x, u32 n) { return (n > 31 ? 0 : x >> n); }, u32, u32, u32>
                                   : map<[](u16 x, u32 n) { return (n > 15 ? 0 : x >> n); }, u16, u16, u32>;
    return true;
}

/* Decode operations on bit fields, counts of bits, any logic of three words, selected bytes, and
 * products of bytes. */
static bool decode_bits(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    const bool wide = bits_of(s.type()) == 64;
    if (b == "bfi") {
        o.a[0] = target(s.o[0], wide);
        o.a[1] = source(as, s.o[1], wide);
        o.a[2] = source(as, s.o[2], wide);
        o.a[3] = source(as, s.o[3], false);
        o.a[4] = source(as, s.o[4], false);
        o.run = wide ? map<inserted<u64>, u64, u64, u64, u32, u32>
                     : map<inserted<u32>, u32, u32, u32, u32, u32>;
        return true;
    }
    if (b == "clz" || b == "popc") {
        o.a[0] = target(s.o[0], false);
        o.a[1] = source(as, s.o[1], wide);
        if (b == "clz")
            o.run = wide ? map<[](u64 x) { return (x ? __builtin_clzll(x) : 64); }, u32, u64>
                         : map<[](u32 x) { return (x ? __builtin_clz(x) : 32); }, u32, u32>;
        else
            o.run = wide ? map<[](u64 x) { return (__builtin_popcountll(x)); }, u32, u64>
                         : map<[](u32 x) { return (__builtin_popcount(x)); }, u32, u32>;
        return true;
    }
    if (b == "lop3") {
        o.imm = (s64)s.o[4].value;
        o.a[0] = target(s.o[0], false);
        for (size_t i = 1; i < 4; i++)
            o.a[i] = source(as, s.o[i], false);
        o.run = map_imm<logic3, u32, u32, u32, u32>;
        return true;
    }
    if (b == "prmt" && s.word.size() == 2) {
        o.run = map<permuted, u32, u32, u32, u32>;
        return operands(as, s, o, false, 3);
    }
    if (b == "dp4a" && s.word[1] == "s32" && s.word[2] == "s32") {
        o.run = map<[](u32 x, u32 y, u32 z) {
            for (int i = 0; i < 32; i += 8)
                z += (u32)((s8)(x >> i) * (s8)(y >> i));
            return z;
        }, u32, u32, u32, u32>;
        return operands(as, s, o, false, 3);
    }
    if (b == "dp4a" && s.word[1] == "u32" && s.word[2] == "u32") {
        o.run = map<[](u32 x, u32 y, u32 z) {
            for (int i = 0; i < 32; i += 8)
                z += (x >> i & 0xff) * (y >> i & 0xff);
            return z;
        }, u32, u32, u32, u32>;
        return operands(as, s, o, false, 3);
    }
    return false;
}

static bool decode_arithmetic(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    const enum type t = s.type();
    const bool wide = bits_of(t) == 64;
    size_t n = 2;
    o.run = nullptr;
    if (b == "add")
        o.run = wrapping<[](auto x, auto y) { return (x + y); }, 2>(t);
    else if (b == "sub")
        o.run = wrapping<[](auto x, auto y) { return (x - y); }, 2>(t);
    else if (b == "and")
        o.run = wrapping<[](auto x, auto y) { return (x & y); }, 2>(t);
    else if (b == "or")
        o.run = wrapping<[](auto x, auto y) { return (x | y); }, 2>(t);
    else if (b == "xor")
        o.run = wrapping<[](auto x, auto y) { return (x ^ y); }, 2>(t);
    else if (b == "not")
        o.run = wrapping<[](auto x) { return (~x); }, 1>(t), n = 1;
    else if (b == "neg")
        o.run = wrapping<[](auto x) { return (0 - x); }, 1>(t), n = 1;
    else if (b == "abs")
        o.run = integers<[](auto x) { return (x < 0 ? 0 - x : x); }, 1>(t), n = 1;
    else if (b == "min")
        o.run = integers<[](auto x, auto y) { return (x < y ? x : y); }, 2>(t);
    else if (b == "max")
        o.run = integers<[](auto x, auto y) { return (x > y ? x : y); }, 2>(t);
    else if (b == "div")
        o.run = integers<[](auto x, auto y) { return (divided(x, y)); }, 2>(t);
    else if (b == "rem")
        o.run = integers<[](auto x, auto y) { return (remaining(x, y)); }, 2>(t);
    else if (b == "mul" && s.has("lo"))
        o.run = wrapping<[](auto x, auto y) { return ((decltype(x))((u64)x * y)); }, 2>(t);
    else if (b == "mad" && s.has("lo"))
        o.run = wrapping<[](auto x, auto y, auto z) { return ((decltype(x))((u64)x * y + z)); }, 3>(t), n = 3;
    else if (b == "mul" && s.has("hi"))
        o.run = wide ? is_signed(t) ? nullptr : map<high_product, u64, u64, u64>
                : is_signed(t) ? map<[](s32 x, s32 y) { return ((s64)x * y >> 32); }, s32, s32, s32>
                               : map<[](u32 x, u32 y) { return ((u64)x * y >> 32); }, u32, u32, u32>;
    return o.run && operands(as, s, o, wide, n);
}

static bool decode_integer(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    const enum type t = s.type();
    if (t == NO_TYPE || t == PRED || is_float(t))
        return false;
    if (s.has("cc") || b == "addc" || b == "subc" || b == "madc")
        return decode_carry(as, s, o);
    if ((b == "mul" || b == "mad") && s.has("wide"))
        return decode_wide(as, s, o);
    if (b == "shl" || b == "shr")
        return decode_shift(as, s, o);
    return decode_bits(as, s, o) || decode_arithmetic(as, s, o);
}

bool decode_alu(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    const enum type t = s.type();
    if (b == "mov")
        return decode_mov(as, s, o);
    if (b == "cvt")
        return decode_cvt(as, s, o);
    if (b == "setp") {
        const bool wide = bits_of(t) == 64;
        o.a[0] = predicate(s.o[0]);
        o.a[1] = source(as, s.o[1], wide);
        o.a[2] = source(as, s.o[2], wide);
        o.imm = s.has("and") ? 1 : s.has("or") ? 2 : s.has("xor") ? 3 : 0;
        if (o.imm) {
            o.a[3] = s.o[3].at;
            o.a[4] = s.o[3].negated;
        }
        o.run = s.has("ftz") ? nullptr : comparison_of(t, s.word[1]);
        return o.run != nullptr;
    }
    if (b == "selp") {
        const bool wide = bits_of(t) == 64;
        o.a[0] = target(s.o[0], wide);
        o.a[1] = source(as, s.o[1], wide);
        o.a[2] = source(as, s.o[2], wide);
        o.a[3] = s.o[3].at;
        o.imm = s.o[3].negated;
        o.run = wide ? select<u64> : select<u32>;
        return true;
    }
    if (t == PRED && (b == "and" || b == "or" || b == "xor" || b == "not")) {
        o.a[0] = predicate(s.o[0]);
        o.a[1] = s.o[1].at;
        o.a[2] = s.o[b == "not" ? 1 : 2].at;
        o.imm = (s.o[1].negated ? 1 : 0) | (b != "not" && s.o[2].negated ? 2 : 0);
        o.run = b == "and" ? logic<[](u32 x, u32 y) { return (x & y); }>
                : b == "or" ? logic<[](u32 x, u32 y) { return (x | y); }>
                : b == "xor" ? logic<[](u32 x, u32 y) { return (x ^ y); }>
                             : logic<[](u32 x, u32) { return (~x); }>;
        return true;
    }
    static const char *const arithmetic[] = { "add", "sub", "mul", "div", "min", "max", "copysign", "fma", "neg", "abs",
                                              "sqrt", "rcp", "rsqrt", "ex2", "lg2", "tanh" };
    if (is_float(t))
        for (const char *name : arithmetic)
            if (b == name)
                return decode_float(as, s, o);
    static const char *const whole[] = { "add", "addc", "sub", "subc", "mul", "mad", "madc", "div", "rem", "min", "max",
                                         "neg", "abs", "and", "or", "xor", "not", "shl", "shr", "bfi", "clz", "popc",
                                         "lop3", "prmt", "dp4a" };
    for (const char *name : whole)
        if (b == name)
            return decode_integer(as, s, o);
    return false;
}

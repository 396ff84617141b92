/* set.h - declarations shared by the files of a vector set (rows, attention, floats, kernels):
 * avx2_rms_norm and so on.  kernels.h has their meanings. */
#ifndef ZSE_KERNELS_SET_H
#define ZSE_KERNELS_SET_H

#include "libcommon/kernels/kernels.h"

/* For loops and functions that are unrolled and inlined in every build. */
#define INLINE_ALWAYS static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL_ALWAYS _Pragma("unroll")
#else
#define UNROLL_ALWAYS _Pragma("GCC unroll 32")
#endif
/* Under sanitizers, and if ZSE_COMPACT is defined, other loops are not unrolled and other functions
 * are not inlined: compiling takes a tenth of the time, and memory accesses are still checked. */
#if defined ZSE_COMPACT || defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define INLINE static inline
#define UNROLL
#else
#define INLINE INLINE_ALWAYS
#define UNROLL UNROLL_ALWAYS
#endif

/* How kernels for few tokens find the values of codes (qtype.def, column stream).
 *   TABLE, TABLE_2, TABLE_3  looked up in a table, for codes of 4, 2 and 3 bits
 *   SMALL                    the same for codes of 4 bits with values up to 12
 *   LINEAR, FROM_0, FROM_M1  value = code - 8 (4 bits), code (4 bits), code - 1 (2 bits)
 *   PLUS_1, PLUS_2           value = code - 16 (5 bits in two planes), code - 32 (6 bits)
 *   BYTES                    bytes as they are in the tile
 *   UNPACKED                 unpacked to bytes first, with the set's bias
 *   T2, T3                   by the loops of ternary.inc, where they are faster */
enum stream_kind {
    STREAM_TABLE, STREAM_TABLE_2, STREAM_TABLE_3, STREAM_SMALL, STREAM_LINEAR, STREAM_FROM_0, STREAM_FROM_M1,
    STREAM_PLUS_1, STREAM_PLUS_2, STREAM_BYTES, STREAM_UNPACKED, STREAM_T2, STREAM_T3, STREAM_NONE, N_STREAM_KINDS
};
/* A compile-time check beside each piece of code that handles every kind of stream: step_sums() of
 * each set, and the sizes below.  A new kind fails the build at each of them. */
#define STREAM_KINDS_HERE(n) _Static_assert(N_STREAM_KINDS == (n), "a new kind of stream needs a case here")
STREAM_KINDS_HERE(14);
/* LOW_BITS, HIGH_BITS: bits of a code in the first and in the second plane of a tile;
 * CODE_BYTES_32: bytes of the codes of a tile for 32 k. */
#define LOW_BITS(codes) \
    ((codes) >= STREAM_BYTES ? 8 \
     : (codes) == STREAM_TABLE_2 || (codes) == STREAM_TABLE_3 || (codes) == STREAM_FROM_M1 ? 2 : 4)
#define HIGH_BITS(codes) ((codes) == STREAM_PLUS_1 || (codes) == STREAM_TABLE_3 ? 1 : (codes) == STREAM_PLUS_2 ? 2 : 0)
#define CODE_BYTES_32(codes) (128 * (LOW_BITS(codes) + HIGH_BITS(codes)))
/* The build fails if a row of qtype.def has planes of other widths than its kind of stream reads.
 * T2, T3 and NONE do not read planes by these macros. */
#define READS(stream, low, high) (LOW_BITS(stream) == (low) && HIGH_BITS(stream) == (high))
#define QTYPE(ID, number, name, choice, option, codes, values, zero, low, high, \
              scale, extra, row, sizes, group, acts, stream, ...) \
    _Static_assert(STREAM_##stream >= STREAM_T2 || READS(STREAM_##stream, low, high), \
                   "the kind of stream of " #ID " reads planes of other bits");
#include "libcommon/quant/qtype.def"
#undef READS

/* A loop over the sums of T tokens with O vectors of rows. */
#define EACH_SUM(t, r) UNROLL for (int t = 0; t < T; t++) UNROLL for (int r = 0; r < O; r++)

/* Expands to f(1, ...) f(2, ...) .. f(n, ...), to define a function for each number of tokens. */
#define UP_TO_0(...)
#define UP_TO_1(f, ...) f(1, __VA_ARGS__)
#define UP_TO_2(f, ...) UP_TO_1(f, __VA_ARGS__) f(2, __VA_ARGS__)
#define UP_TO_3(f, ...) UP_TO_2(f, __VA_ARGS__) f(3, __VA_ARGS__)
#define UP_TO_4(f, ...) UP_TO_3(f, __VA_ARGS__) f(4, __VA_ARGS__)
#define UP_TO_5(f, ...) UP_TO_4(f, __VA_ARGS__) f(5, __VA_ARGS__)
#define UP_TO_6(f, ...) UP_TO_5(f, __VA_ARGS__) f(6, __VA_ARGS__)
#define UP_TO_7(f, ...) UP_TO_6(f, __VA_ARGS__) f(7, __VA_ARGS__)
#define UP_TO_8(f, ...) UP_TO_7(f, __VA_ARGS__) f(8, __VA_ARGS__)
#define UP_TO_9(f, ...) UP_TO_8(f, __VA_ARGS__) f(9, __VA_ARGS__)
#define UP_TO_10(f, ...) UP_TO_9(f, __VA_ARGS__) f(10, __VA_ARGS__)
#define UP_TO_11(f, ...) UP_TO_10(f, __VA_ARGS__) f(11, __VA_ARGS__)
#define UP_TO_12(f, ...) UP_TO_11(f, __VA_ARGS__) f(12, __VA_ARGS__)
#define UP_TO_(n, ...) UP_TO_##n(__VA_ARGS__)
#define UP_TO(n, ...) UP_TO_(n, __VA_ARGS__)           /* n may be a macro */
/* Entry T of a table of these functions. */
#define ENTRY(T, name) [T] = name##_##T,

#define ROWS_OF(set) \
    void set##_rms_norm(float *out, const float *x, const float *w, int n, float eps, float w_offset); \
    void set##_layer_norm(float *out, const float *x, const float *w, const float *b, int n, float eps); \
    void set##_add(float *out, const float *a, const float *b, float scale_b, int n); \
    void set##_act_mul(float *out, const float *gate, const float *up, int n, int act); \
    float set##_largest(const float *x, int n); \
    void set##_rope(float *x, const float *cos, const float *sin, int n_heads, size_t head_stride, int dim, \
                    int pairs); \
    void set##_dots_i8(int32_t *out, const int8_t *rows, size_t stride, int n_rows, const int8_t *q);
#define SCAN_OF(set) \
    void set##_scan_mamba(float *state, const float *b, const float *c, const float *x, float *out, int n, int dim, \
                          float decay, float dt, float d); \
    void set##_scan_delta(float *state, const float *q, const float *k, const float *v, float *out, int n, int dim, \
                          float decay, float rate); \
    void set##_scan_delta_rows(float *state, const float *q, const float *k, const float *v, float *out, int n, \
                               int dim, const float *decay, float rate); \
    void set##_scan_mamba1(float *state, const float *b, const float *c, const float *x, float *out, int n, int dim, \
                           const float *a_log, size_t lda, const float *dt, const float *d); \
    void set##_index_block(float *out, const float *q, int n_heads, int dim, const float *weight, const float *k);
#define ATTENTION_OF(set) \
    void set##_kv_store_key(enum kv_type type, uint8_t *block, int slot, const float *x, int head_dim); \
    void set##_kv_store_value(enum kv_type type, uint8_t *block, int slot, const float *x, int head_dim); \
    void set##_attention(const struct attn *a, void *scratch); \
    void set##_attention_merge(const struct attn *a); \
    size_t set##_attention_scratch(int head_dim);
#define FLOATS_OF(set) \
    void set##_matmul_f32(float *out, size_t ldo, const struct mat *w, int tile0, int tile1, const float *x, \
                          size_t ldx, int n_tokens, void *scratch); \
    size_t set##_floats_scratch(int n_tokens);
#define INTEGERS_OF(set) \
    size_t set##_act_bytes(int n_tokens, int cols_padded, int act_group); \
    int set##_act_parts(int n_tokens); \
    void set##_act_pack(void *act, const float *x, size_t ldx, int n_tokens, int cols, int cols_padded, \
                        int act_group, int part); \
    void set##_matmul(float *out, size_t ldo, const struct mat *w, int tile0, int tile1, const void *act, \
                      int n_tokens, void *scratch); \
    size_t set##_scratch_bytes(int n_tokens, int cols_padded);

ROWS_OF(avx2) SCAN_OF(avx2) ATTENTION_OF(avx2) FLOATS_OF(avx2) INTEGERS_OF(avx2)
ROWS_OF(avx512) SCAN_OF(avx512) ATTENTION_OF(avx512) FLOATS_OF(avx512) INTEGERS_OF(avx512)
FLOATS_OF(amx) INTEGERS_OF(amx)
INTEGERS_OF(avxvnni)
ROWS_OF(neon) SCAN_OF(neon) ATTENTION_OF(neon) FLOATS_OF(neon) INTEGERS_OF(neon)
INTEGERS_OF(dotprod) INTEGERS_OF(i8mm)

/* Definition of a set's table.  ints, floats, rest: the sets that provide the integer matmul,
 * the f32 matmul and the other operations. */
#define KERNELS_SET(name, supported, ints, floats, rest) { \
    name, supported, ints##_act_bytes, ints##_act_parts, ints##_act_pack, ints##_matmul, floats##_matmul_f32, \
    ints##_scratch_bytes, \
    rest##_rms_norm, rest##_layer_norm, rest##_add, rest##_act_mul, rest##_largest, rest##_rope, rest##_dots_i8, \
    rest##_scan_mamba, rest##_scan_delta, rest##_scan_delta_rows, rest##_scan_mamba1, rest##_index_block, \
    rest##_kv_store_key, rest##_kv_store_value, rest##_attention, rest##_attention_merge, rest##_attention_scratch }

#endif

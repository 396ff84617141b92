/* kvtype.h - the storage of keys and values: blocks of 16 tokens of one KV head of one layer.
 *   keys    f32, f16, bf16     [head_dim][16]      tokens side by side: a vector of scores needs no
 *                                                  transposing
 *           i8, fp8            [head_dim][16] codes of 8 bits, then 16 f32 scales, one a token
 *   values  f32, f16, bf16     [16][head_dim]
 *           i8, fp8            [16][head_dim] codes, then 16 f32 scales
 * i8: int8, scale = amax / 127.  fp8: f8e4m3, scale = the least power of two with amax <= 448 *
 * scale, so that dividing by it rounds nothing and keys far beyond 448 (as some models have)
 * keep their size.  A vector whose amax is below 2^-100 is stored as 0; where there is Inf or
 * NaN the scale is NaN.  A block begins 64-byte aligned and its size is a multiple of 64. */
#ifndef ZSE_QUANT_KVTYPE_H
#define ZSE_QUANT_KVTYPE_H

#include <stddef.h>

enum kv_type { KV_F32, KV_F16, KV_I8, KV_BF16, KV_F8, KV_TYPES };
enum { KV_BLOCK = 16 };

/* As --kv and the keys of JSON say it. */
static inline const char *kv_type_name(enum kv_type type)
{
    static const char *const names[] = { "f32", "f16", "i8", "bf16", "fp8" };
    return names[type];
}

static inline int kv_has_scales(enum kv_type type) { return type == KV_I8 || type == KV_F8; }
static inline size_t kv_element_bytes(enum kv_type type) { return type == KV_F32 ? 4 : kv_has_scales(type) ? 1 : 2; }

static inline size_t kv_block_bytes(enum kv_type type, int head_dim)
{
    const size_t n = (size_t)KV_BLOCK * ((size_t)head_dim * kv_element_bytes(type) +
                                         (kv_has_scales(type) ? sizeof(float) : 0));
    return (n + 63) / 64 * 64;
}

/* n of them, keys of an arbitrary set of tokens: [head_dim][n], then scales. */
static inline size_t kv_entries_bytes(enum kv_type type, int head_dim, int n)
{
    const size_t bytes = (size_t)n * ((size_t)head_dim * kv_element_bytes(type) +
                                      (kv_has_scales(type) ? sizeof(float) : 0));
    return (bytes + 63) / 64 * 64;
}

#endif

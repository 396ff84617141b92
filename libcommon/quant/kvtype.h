/* kvtype.h - how keys and values are stored: blocks of 16 tokens of one KV head of one layer.
 *   keys    f32, f16   [head_dim][16]      tokens side by side: a vector of scores needs no transposing
 *           i8         [head_dim][16] int8, then 16 f32 scales, one a token (amax / 127)
 *   values  f32, f16   [16][head_dim]
 *           i8         [16][head_dim] int8, then 16 f32 scales
 * A block begins 64-byte aligned and its size is a multiple of 64. */
#ifndef ZSE_QUANT_KVTYPE_H
#define ZSE_QUANT_KVTYPE_H

#include <stddef.h>

enum kv_type { KV_F32, KV_F16, KV_I8 };
enum { KV_BLOCK = 16 };

static inline size_t kv_block_bytes(enum kv_type type, int head_dim)
{
    size_t n = (size_t)KV_BLOCK * (size_t)head_dim;
    n = type == KV_F32 ? 4 * n : type == KV_F16 ? 2 * n : n + KV_BLOCK * sizeof(float);
    return (n + 63) / 64 * 64;
}

#endif

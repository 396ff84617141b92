/* kvtype.h - the storage of keys and values: blocks of 16 tokens of one KV head of one layer.
 *   keys    f32, f16, bf16     [head_dim][16]: the same element of 16 tokens is adjacent, so that
 *                              computing their scores needs no transposing
 *           i8, fp8            [head_dim][16] codes of 8 bits, then 16 f32 scales, one a token
 *           i4                 [head_dim][8]: bytes with the codes of tokens i (low) and i + 8,
 *                              then 16 f32 scales
 *           ternary            [head_dim][4]: 32 bits with the codes of 16 tokens, first one lowest
 *   values  f32, f16, bf16     [16][head_dim]
 *           i8, fp8            [16][head_dim] codes, then 16 f32 scales
 *           i4                 [16][head_dim / 16][8]: bytes with the codes of elements i (low) and
 *                              i + 8 of 16, then 16 f32 scales
 *           ternary            [16][head_dim / 16][4]: 32 bits with the codes of 16 elements
 * i8: int8, scale = amax / 127.  fp8: f8e4m3; the scale is the least power of two with amax <=
 * 448 * scale, so that dividing by it is exact, and keys far beyond 448 (as some models have) are
 * not clipped.  i4: codes -8 to 7; the scale has nearly the least squared error (kvscale.h);
 * head_dim is rounded up to a multiple of 16.  ternary: codes 0, 1 (+1) and 2 (-1), head_dim as
 * for i4; the keys (or the values) of all heads of a token have one scale, in 16 f32 after the
 * blocks of all heads (kvscale.h).  Before they are rounded to i4 or ternary, and on the CPU also
 * to i8, keys and values are rotated by a Hadamard matrix (libcommon/cpu/hadamard.h), which spreads
 * outlier channels over all channels; latents, and keys and values of layers with an indexer, are
 * not rotated.
 * A vector whose amax is below 2^-100 is stored as 0; the scale of a vector with Inf or NaN is NaN.
 * A block is 64-byte aligned and its size is a multiple of 64.
 *
 * Each vector is rounded by itself, once, when it is stored, so the keys and values that a query
 * reads do not depend on chunks of the prompt, on a reused prefix or on the batch. */
#ifndef ZSE_QUANT_KVTYPE_H
#define ZSE_QUANT_KVTYPE_H

#include <stddef.h>

#ifdef __CUDACC__
#define KV_FUNCTION static inline __host__ __device__
#else
#define KV_FUNCTION static inline
#endif

enum kv_type {
#define KVTYPE(id, ...) KV_##id,
#include "libcommon/quant/kvtype.def"
    KV_TYPES
};
enum { KV_BLOCK = 16, KV_I4_MOST = 4096 };       /* most elements of a vector that is stored as i4 */

/* If keys or values have fewer than 8 bits (kv_has_tail()), a token reads the keys and values of
 * the first KV_SINKS tokens and of the newest tokens (the tail) as f16.  For the token at pos
 * the tail begins at kv_tail_from(pos): it is the aligned run of KV_TAIL_STEP tokens that
 * contains pos, and the KV_TAIL tokens before it.  Each key and value is stored in both forms at
 * once.  The choice depends only on positions, and not on chunks of a prompt, reused prefixes or
 * the batch. */
enum { KV_TAIL = 128, KV_TAIL_STEP = 64, KV_SINKS = 64 };

KV_FUNCTION int kv_tail_from(int pos)
{
    return pos < KV_TAIL ? 0 : pos / KV_TAIL_STEP * KV_TAIL_STEP - KV_TAIL;
}

/* The first position whose token chooses `pages` pages (cpu_pages.c).  Before it there is no
 * choice: no more than `pages` pages lie between the first KV_SINKS tokens and the newest ones. */
static inline int kv_pages_from(int pages) { return KV_SINKS + pages * KV_BLOCK + KV_TAIL_STEP + KV_TAIL; }

/* The types of a cache.  Latents (MLA) are keys that are also values: their type is `key`. */
struct kv_types { enum kv_type key, value; };

static inline struct kv_types kv_both(enum kv_type type)
{
    const struct kv_types t = { type, type };
    return t;
}

/* The name used by --kv and in JSON. */
static inline const char *kv_type_name(enum kv_type type)
{
    static const char *const names[] = {
#define KVTYPE(id, name, ...) name,
#include "libcommon/quant/kvtype.def"
    };
    return names[type];
}

static inline int kv_bits(enum kv_type type)
{
#define KVTYPE(id, name, bits, ...) type == KV_##id ? bits :
    return
#include "libcommon/quant/kvtype.def"
        0;
}

static inline int kv_has_scales(enum kv_type type)
{
#define KVTYPE(id, name, bits, scaled, ...) type == KV_##id ? scaled :
    return
#include "libcommon/quant/kvtype.def"
        0;
}

/* Whether all heads of a token share one scale. */
static inline int kv_shares_scale(enum kv_type type) { return kv_has_scales(type) == 2; }

static inline int kv_rotated(enum kv_type type)
{
#define KVTYPE(id, name, bits, scaled, rotated, gpu) type == KV_##id ? rotated :
    return
#include "libcommon/quant/kvtype.def"
        0;
}

static inline int kv_on_gpu(enum kv_type type)
{
#define KVTYPE(id, name, bits, scaled, rotated, gpu) type == KV_##id ? gpu :
    return
#include "libcommon/quant/kvtype.def"
        0;
}

/* Whether elements share bytes, so that a single element cannot be copied. */
static inline int kv_packed(enum kv_type type) { return kv_bits(type) < 8; }
static inline int kv_has_tail(struct kv_types t) { return kv_packed(t.key) || kv_packed(t.value); }
/* Bytes of an element that is not packed. */
static inline size_t kv_element_bytes(enum kv_type type) { return (size_t)kv_bits(type) / 8; }
/* Bytes of n elements; n is a multiple of 16 for packed types. */
static inline size_t kv_bytes_of(enum kv_type type, size_t n) { return n * (size_t)kv_bits(type) / 8; }
/* Number of elements in a stored vector. */
static inline int kv_padded(enum kv_type type, int head_dim)
{
    return kv_packed(type) ? (head_dim + 15) / 16 * 16 : head_dim;
}

/* Bytes of a block before its scales. */
static inline size_t kv_codes_bytes(enum kv_type type, int head_dim)
{
    return kv_bytes_of(type, (size_t)KV_BLOCK * (size_t)kv_padded(type, head_dim));
}

static inline size_t kv_block_bytes(enum kv_type type, int head_dim)
{
    const size_t n = kv_codes_bytes(type, head_dim) + (kv_has_scales(type) == 1 ? KV_BLOCK * sizeof(float) : 0);
    return (n + 63) / 64 * 64;
}

/* Bytes of the scales that the heads of a block share. */
static inline size_t kv_shared_bytes(enum kv_type type)
{
    return kv_shares_scale(type) ? KV_BLOCK * sizeof(float) : 0;
}

/* Bytes of the keys (or of the values) of all heads of a block. */
static inline size_t kv_heads_bytes(enum kv_type type, int head_dim, int n_heads)
{
    return (size_t)n_heads * kv_block_bytes(type, head_dim) + kv_shared_bytes(type);
}

/* Bytes of the keys of n arbitrary tokens: [head_dim][n], then scales.  Not for packed types. */
static inline size_t kv_entries_bytes(enum kv_type type, int head_dim, int n)
{
    const size_t bytes = (size_t)n * ((size_t)head_dim * kv_element_bytes(type) +
                                      (kv_has_scales(type) ? sizeof(float) : 0));
    return (bytes + 63) / 64 * 64;
}

#endif

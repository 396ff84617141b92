/* kv.cuh - stored keys and values as kernels read them; the formats: libcommon/quant/kvtype.h. */
#ifndef ZSE_GPU_PRIM_KV_CUH
#define ZSE_GPU_PRIM_KV_CUH

#include "gpu/prim/operands.h"
#include "gpu/prim/prim.cuh"
#include "libcommon/quant/kvtype.h"

template <int KV> constexpr int KV_SCALED = KV == KV_I8 || KV == KV_F8 || KV == KV_I4 || KV == KV_T2;
/* Whether the newest and the first tokens may be read from a tail of f16. */
template <int KV> constexpr int KV_TAILED = KV == KV_I4 || KV == KV_T2;

/* One KV head of one layer of a sequence.  Sizes of its blocks are left out: they are arguments of
 * the kernel, and need no registers. */
struct kv_place { const int32_t *table; const uint8_t *base; };

DEVICE kv_place kv_place_of(const gpu_kv_blocks &b, const int32_t *table, int head)
{
    return { table, b.base + b.layer_offset + head * b.head_stride };
}
/* The head's keys in the block of a position. */
DEVICE const uint8_t *kv_keys(const kv_place &kv, const gpu_kv_blocks &blocks, int pos)
{
    return kv.base + (size_t)kv.table[pos / KV_BLOCK] * blocks.stride;
}

/* Whether a token at pos reads the position p from the tail, if there is one. */
DEVICE int kv_in_tail(int p, int pos) { return p < KV_SINKS || p >= kv_tail_from(pos); }

/* Convert two f8e4m3 codes, in the high byte of each half, to f16: shifted into place, the bits are
 * 1/256 of the value, which kv_scale() corrects.  NaN, which is never stored, becomes 480. */
DEVICE uint32_t kv_f8_pair(uint32_t high_bytes) { return (high_bytes & 0x80008000) | (high_bytes >> 1 & 0x3f803f80); }

/* 16, 8 or 4 bytes; words from there on are 0. */
template <int BYTES> DEVICE uint4 load_up_to_16(const void *p)
{
    if (BYTES == 16)
        return load16(p);
    const uint2 u = BYTES == 8 ? load8(p) : make_uint2(load4(p), 0);
    return make_uint4(u.x, u.y, 0, 0);
}

/* Load v [N], 4 or 8 elements, from element e on, which is a multiple of N.  In formats with scales
 * the result must still be multiplied by kv_scale(). */
template <int KV, int N = 8> DEVICE void kv_load(float *v, const uint8_t *block, int e)
{
    static_assert(N == 4 || N == 8, "whole words of every format");
    if (KV == KV_F32) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float4 a = *reinterpret_cast<const float4 *>(block + e * 4 + i * 4);
            v[i] = a.x, v[i + 1] = a.y, v[i + 2] = a.z, v[i + 3] = a.w;
        }
    } else if (KV == KV_F16 || KV == KV_BF16) {
        const uint4 u = load_up_to_16<N * 2>(block + e * 2);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const uint32_t w = word_of(u, i);
            v[2 * i] = KV == KV_F16 ? half_low(w) : float_of(w << 16);
            v[2 * i + 1] = KV == KV_F16 ? half_high(w) : float_of(w & 0xffff0000);
        }
    } else if (KV == KV_I4) {
        const uint4 u = load_up_to_16<N>(block + e / 16 * 8 + (e & (8 - N)));
        const int up = e & 8 ? 24 : 28;
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = (float)((int32_t)((i < 4 ? u.x : u.y) << (up - 8 * (i % 4))) >> 28);
    } else if (KV == KV_T2) {
        const uint32_t w = *reinterpret_cast<const uint32_t *>(block + e / 16 * 4) >> 2 * (e & (16 - N));
#pragma unroll
        for (int i = 0; i < N; i++)     /* code 1: +1, code 2: -1 */
            v[i] = (float)((int)(w >> 2 * i & 1) - (int)(w >> (2 * i + 1) & 1));
    } else {
        const uint4 u = load_up_to_16<N>(block + e);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const uint32_t w = i < 2 ? u.x : u.y;
            if (KV == KV_F8) {
                const uint32_t h = kv_f8_pair(prmt(w, 0, i % 2 ? 0x3424 : 0x1404));
                v[2 * i] = half_low(h);
                v[2 * i + 1] = half_high(h);
            } else {
                v[2 * i] = (float)(int8_t)(w >> 16 * (i % 2) & 0xff);
                v[2 * i + 1] = (float)(int8_t)(w >> (16 * (i % 2) + 8) & 0xff);
            }
        }
    }
}

/* Bytes from a head's keys (or values) in a block to their scales; n: head_dim. */
template <int KV> DEVICE int32_t kv_scales_at(const gpu_kv &kv, int head, int n, int is_value)
{
    if (KV != KV_T2)
        return (KV == KV_I4 ? KV_BLOCK / 2 : KV_BLOCK) * n;
    const int32_t at = (int32_t)kv.scales - (int32_t)(head * kv.blocks.head_stride);
    return is_value ? at + KV_BLOCK * (int32_t)sizeof(float) - (int32_t)kv.blocks.part : at;
}

/* The factor for the elements that kv_load() returns for the token in this slot (1 without scales);
 * at: kv_scales_at(). */
template <int KV> DEVICE float kv_scale(const uint8_t *block, int32_t at, int slot)
{
    if (!KV_SCALED<KV>)
        return 1;
    const float scale = *reinterpret_cast<const float *>(block + (at + slot * 4));
    return KV == KV_F8 ? 256 * scale : scale;
}

DEVICE uint4 pack_eight(const float v[8])
{
    return make_uint4(pack_half_clamped(v[0], v[1]), pack_half_clamped(v[2], v[3]), pack_half_clamped(v[4], v[5]),
                      pack_half_clamped(v[6], v[7]));
}

/* 8 elements of a block from element e on, times their scales, as f16. */
template <int KV> DEVICE uint4 load_as_half(const uint8_t *block, int e, const float scale[8])
{
    if (KV == KV_F16)
        return load16(block + e * 2);
    float v[8];
    kv_load<KV>(v, block, e);
#pragma unroll
    for (int i = 0; KV_SCALED<KV> && i < 8; i++)
        v[i] *= scale[i];
    return pack_eight(v);
}

/* The first position that a token at pos attends to. */
DEVICE int first_seen(int pos, int window, int chunk)
{
    return chunk ? pos - pos % chunk : window && pos - window + 1 > 0 ? pos - window + 1 : 0;
}

/* f<format>(...) for a format known at run time. */
#define KV_DISPATCH(type, f, ...) \
    ((type) == KV_F32 ? f<KV_F32>(__VA_ARGS__) : (type) == KV_F16 ? f<KV_F16>(__VA_ARGS__) : \
     (type) == KV_BF16 ? f<KV_BF16>(__VA_ARGS__) : \
     (type) == KV_F8 ? f<KV_F8>(__VA_ARGS__) : (type) == KV_I4 ? f<KV_I4>(__VA_ARGS__) : \
     (type) == KV_T2 ? f<KV_T2>(__VA_ARGS__) : f<KV_I8>(__VA_ARGS__))

#endif

/* prim.cuh - the device instructions that kernels use, each with its emulated form: loads past
 * the cache, pairs of f16, mma, ldmatrix, cp.async.  Fragment layouts: PTX ISA 8.x, sections
 * "Matrix fragments for mma.m16n8k16", "... mma.m16n8k32" and "ldmatrix". */
#ifndef ZSE_GPU_PRIM_PRIM_CUH
#define ZSE_GPU_PRIM_PRIM_CUH

#include <stddef.h>
#include <stdint.h>

#include "gpu/prim/operands.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <string.h>
#define SHARED(type, name) \
    extern __shared__ __align__(16) unsigned char shared_bytes[]; \
    type *const name = reinterpret_cast<type *>(shared_bytes)
#else
#include "gpu/rt/emulate.h"
#define SHARED(type, name) type *const name = static_cast<type *>(emulated_shared())
#endif

/* The code for a GPU, and its equivalent in the emulation. */
#ifdef __CUDACC__
#define EITHER(device, emulated) device
#else
#define EITHER(device, emulated) emulated
#endif

#define FULL_WARP 0xffffffffu
#define DEVICE __device__ __forceinline__

/* ---- bits ---- */

DEVICE float float_of(uint32_t u) { return EITHER(__uint_as_float(u), f32_from_bits(u)); }

DEVICE uint32_t bits_of(float f) { return EITHER(__float_as_uint(f), f32_bits(f)); }

DEVICE int bits_set(uint32_t u) { return EITHER(__popc(u), __builtin_popcount(u)); }

/* exp and tanh with errors of a few ulp, which is enough for results that are rounded to f16.  For
 * tanh these are ulp of 1, because a small tanh is the difference of two numbers near 1. */
DEVICE float fast_exp(float x) { return EITHER(__expf(x), expf(x)); }
/* 2^x, 0 below 2^-126. */
DEVICE float fast_exp2(float x)
{
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}
DEVICE float fast_tanh(float x) { return EITHER(1 - __fdividef(2, 1 + __expf(2 * x)), 1 - 2 / (1 + expf(2 * x))); }

/* Bytes of a (0..3) and b (4..7), selected by the lower four nibbles of s; a nibble + 8 replicates
 * the sign of the byte instead.  (__byte_perm would clear that bit.) */
DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t s)
{
#ifdef __CUDACC__
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(s));
    return d;
#else
    const uint64_t v = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = (uint32_t)(v >> 8 * (s >> 4 * i & 7) & 0xff);
        out |= (s >> 4 * i & 8 ? byte & 0x80 ? 0xff : 0 : byte) << 8 * i;
    }
    return out;
#endif
}

/* The upper half of a product. */
DEVICE uint64_t multiply_high(uint64_t a, uint64_t b)
{
#ifdef __CUDACC__
    return __umul64hi(a, b);
#else
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32, middle = a1 * b0 + (a0 * b0 >> 32);
    return a1 * b1 + (middle >> 32) + ((a0 * b1 + (uint32_t)middle) >> 32);
#endif
}

/* ---- memory ---- */

/* Weights are read once per step: bypass L1, and evict them from L2 before data that is read
 * again. */
DEVICE uint4 load_stream(const void *p)
{
#ifdef __CUDACC__
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y),
                 "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
#else
    return *static_cast<const uint4 *>(p);
#endif
}

DEVICE uint2 load_stream8(const void *p)
{
#ifdef __CUDACC__
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
#else
    return *static_cast<const uint2 *>(p);
#endif
}

DEVICE uint4 load16(const void *p) { return *static_cast<const uint4 *>(p); }
DEVICE uint2 load8(const void *p) { return *static_cast<const uint2 *>(p); }
DEVICE uint32_t load4(const void *p) { return *static_cast<const uint32_t *>(p); }
DEVICE uint32_t word_of(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* A float that another block of this launch may have written: past L1. */
DEVICE float load_shared_by_blocks(const float *p) { return EITHER(__ldcg(p), *p); }
DEVICE int load_shared_by_blocks(const int32_t *p) { return EITHER(__ldcg(p), *p); }
/* Two of them, at a multiple of 8 bytes. */
DEVICE float2 load_pair_shared_by_blocks(const float *p)
{
    return EITHER(__ldcg(reinterpret_cast<const float2 *>(p)), make_float2(p[0], p[1]));
}

/* Start to copy 16 bytes from global to shared memory, without waiting. */
DEVICE void copy_async(void *to, const void *from)
{
    EITHER(asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((uint32_t)__cvta_generic_to_shared(to)),
                        "l"(from) : "memory"),
           emulated_copy(to, from, 16));
}
DEVICE void copy_commit() { EITHER(asm volatile("cp.async.commit_group;" ::: "memory"), emulated_commit()); }
/* Wait until at most N of this thread's groups of copies are in flight.  A barrier must follow
 * before the thread reads bytes that other threads have copied. */
template <int N> DEVICE void copy_wait() { EITHER(asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"),
                                                  emulated_wait(N)); }

/* ---- dependent launches ----
 *
 * From compute capability 9.0 on, a kernel of a step begins before the one before it has ended
 * (launch.cuh): it may use the multiprocessors that the last blocks leave free.  Two instructions
 * order them ("griddepcontrol" in the PTX ISA), and every kernel follows this rule:
 *
 *   - it normally calls launch_dependents() first.  The next kernel may begin once all blocks have
 *     called it or have ended, so that no block of this kernel waits for room.
 *   - every thread calls wait_for_prerequisites(), and does not end or write to global memory
 *     before.  It returns when the kernel before has ended and all that it wrote can be read.  That
 *     kernel has waited, too, so the same is true of all earlier ones.
 *   - before the wait a thread may read nothing that a kernel of the step writes, not even one of a
 *     few launches earlier: weights, norms' factors and tables are allowed, and so are keys and
 *     values of earlier steps, since the first kernel of a step waits for the end of all before.
 *
 * A kernel may also call launch_dependents() after its wait.  The next one then begins after all
 * launches before that kernel have ended, and may read their results before its own wait, past L1
 * (load_shared_by_blocks): experts' down reads the router's choice while gate and up are computed.
 * The PTX ISA promises these results to that kernel alone; that they can be read here is assumed.
 * tests/ptx checks this rule, except that the call comes first.  Code for older devices has neither
 * instruction, and must not be launched with the attribute. */
DEVICE void launch_dependents()
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
DEVICE void wait_for_prerequisites()
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* For kernels that need the results of the kernel before at once. */
DEVICE void follow_previous()
{
    launch_dependents();
    wait_for_prerequisites();
}

/* ---- f16 in pairs: the low half is the first ---- */

#ifdef __CUDACC__
union half2_bits { uint32_t u; __half2 h; DEVICE half2_bits() {} };
DEVICE __half2 as_half2(uint32_t u) { half2_bits b; b.u = u; return b.h; }
DEVICE uint32_t from_half2(__half2 h) { half2_bits b; b.h = h; return b.u; }
#else
/* f16 of a value that f32 holds exactly or nearly: products and sums of two f16. */
static inline uint32_t emulated_pair(float a, float b) { return (uint32_t)f32_to_f16(b) << 16 | f32_to_f16(a); }
#endif

DEVICE float half_low(uint32_t u) { return EITHER(__low2float(as_half2(u)), f16_to_f32((f16)u)); }
DEVICE float half_high(uint32_t u) { return EITHER(__high2float(as_half2(u)), f16_to_f32((f16)(u >> 16))); }
DEVICE uint32_t pack_half(float a, float b) { return EITHER(from_half2(__floats2half2_rn(a, b)), emulated_pair(a, b)); }
/* pack_half with values that are too large for f16 clamped to the largest f16.  They are infinite
 * before that; a NaN stays one. */
DEVICE uint32_t pack_half_clamped(float a, float b)
{
#ifdef __CUDACC__
    uint32_t y = pack_half(a, b);
    asm("min.NaN.f16x2 %0, %0, %1;" : "+r"(y) : "r"(0x7bff7bffu));
    asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(y) : "r"(0xfbfffbffu));
    return y;
#else
    const float most = 65504;
    return pack_half(a > most ? most : a < -most ? -most : a, b > most ? most : b < -most ? -most : b);
#endif
}
DEVICE uint32_t half_mul(uint32_t a, uint32_t b)
{
    return EITHER(from_half2(__hmul2(as_half2(a), as_half2(b))),
                  emulated_pair(half_low(a) * half_low(b), half_high(a) * half_high(b)));
}
DEVICE uint32_t half_add(uint32_t a, uint32_t b)
{
    return EITHER(from_half2(__hadd2(as_half2(a), as_half2(b))),
                  emulated_pair(half_low(a) + half_low(b), half_high(a) + half_high(b)));
}
/* a times the lower (i 0) or the upper half of b. */
DEVICE uint32_t half_mul_by(uint32_t a, uint32_t b, int i)
{
    return EITHER(from_half2(__hmul2(as_half2(a), i ? __high2half2(as_half2(b)) : __low2half2(as_half2(b)))),
                  half_mul(a, prmt(b, b, i ? 0x3232 : 0x1010)));
}
DEVICE uint32_t half_fma(uint32_t a, uint32_t b, uint32_t c)
{
    return EITHER(from_half2(__hfma2(as_half2(a), as_half2(b), as_half2(c))),
                  emulated_pair(fmaf(half_low(a), half_low(b), half_low(c)),
                                fmaf(half_high(a), half_high(b), half_high(c))));
}

/* ---- the tensor cores ---- */

/* c[16][8] += a[16][16] b[16][8], f16 in, f32 out.  Lane 4g + t holds
 *     a[0] rows g, k 2t 2t+1   a[1] row g+8   a[2] row g, k 2t+8 2t+9   a[3] row g+8, k 2t+8 2t+9
 *     b0 k 2t 2t+1, column g   b1 k 2t+8 2t+9
 *     c[0] c[1] row g, columns 2t 2t+1   c[2] c[3] row g+8 */
DEVICE void mma_f16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0),
                 "r"(b1));
#else
    const uint32_t in[10] = { a0, a1, a2, a3, b0, b1, bits_of(c[0]), bits_of(c[1]), bits_of(c[2]), bits_of(c[3]) };
    emulated_collective(in, sizeof in, c, 16, [](const emulated_slots *s, emulated_slots *out, uint32_t) {
        float a[16][16], b[16][8], sums[16][8] = {};
        for (int lane = 0; lane < 32; lane++) {
            const uint32_t *u = (const uint32_t *)s->lane[lane];
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 2; i++) {       /* k + 8 */
                a[g][2 * t + 8 * i] = half_low(u[2 * i]);
                a[g][2 * t + 8 * i + 1] = half_high(u[2 * i]);
                a[g + 8][2 * t + 8 * i] = half_low(u[2 * i + 1]);
                a[g + 8][2 * t + 8 * i + 1] = half_high(u[2 * i + 1]);
                b[2 * t + 8 * i][g] = half_low(u[4 + i]);
                b[2 * t + 8 * i + 1][g] = half_high(u[4 + i]);
            }
        }
        for (int row = 0; row < 16; row++)
            for (int k = 0; k < 16; k++)
                for (int column = 0; column < 8; column++)
                    sums[row][column] += a[row][k] * b[k][column];
        for (int lane = 0; lane < 32; lane++) {
            const uint32_t *u = (const uint32_t *)s->lane[lane];
            float *o = (float *)out->lane[lane];
            for (int i = 0; i < 4; i++)
                o[i] = float_of(u[6 + i]) + sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
        }
    }, "mma");
#endif
}

/* c[16][8] += a[16][32] b[32][8], s8 in, s32 out: exact.  Lane 4g + t holds
 *     a[0] row g, k 4t..4t+3   a[1] row g+8   a[2] row g, k 4t+16..4t+19   a[3] row g+8, k
 *         4t+16..4t+19
 *     b0 k 4t..4t+3, column g   b1 k 4t+16..4t+19
 *     c as in mma_f16 */
DEVICE void mma_s8(int c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0),
                 "r"(b1));
#else
    const uint32_t in[10] = { a0, a1, a2, a3, b0, b1, (uint32_t)c[0], (uint32_t)c[1], (uint32_t)c[2], (uint32_t)c[3] };
    emulated_collective(in, sizeof in, c, 16, [](const emulated_slots *s, emulated_slots *out, uint32_t) {
        int8_t a[16][32], b[8][32];
        for (int lane = 0; lane < 32; lane++) {
            const uint32_t *u = (const uint32_t *)s->lane[lane];
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 2; i++) {       /* k + 16 */
                memcpy(a[g] + 4 * t + 16 * i, &u[2 * i], 4);
                memcpy(a[g + 8] + 4 * t + 16 * i, &u[2 * i + 1], 4);
                memcpy(b[g] + 4 * t + 16 * i, &u[4 + i], 4);
            }
        }
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                uint32_t sum = ((const uint32_t *)s->lane[lane])[6 + i];
                for (int k = 0; k < 32; k++)
                    sum += (uint32_t)(a[lane / 4 + i / 2 * 8][k] * b[lane % 4 * 2 + i % 2][k]);
                ((uint32_t *)out->lane[lane])[i] = sum;
            }
    }, "mma");
#endif
}

/* c += a b of a 16 x 32 and a 32 x 8 matrix of E4M3, with operands as in mma_s8 and f32 sums; only
 * from compute capability 8.9 on. */
DEVICE void mma_e4m3(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
#ifdef __CUDACC__
#if !defined __CUDA_ARCH__ || __CUDA_ARCH__ >= 890
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0),
                 "r"(b1));
#endif
#else
    struct operands { uint32_t a[4], b[2]; float c[4]; } in = { { a0, a1, a2, a3 }, { b0, b1 },
                                                                { c[0], c[1], c[2], c[3] } };
    emulated_collective(&in, sizeof in, c, 16, [](const emulated_slots *s, emulated_slots *out, uint32_t) {
        float a[16][32], b[8][32];
        for (int lane = 0; lane < 32; lane++) {
            const operands *o = (const operands *)s->lane[lane];
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 4; i++)
                for (int k = 0; k < 4; k++)
                    a[g + i % 2 * 8][4 * t + i / 2 * 16 + k] = f8e4m3_to_f32((f8e4m3)(o->a[i] >> 8 * k));
            for (int i = 0; i < 2; i++)
                for (int k = 0; k < 4; k++)
                    b[g][4 * t + 16 * i + k] = f8e4m3_to_f32((f8e4m3)(o->b[i] >> 8 * k));
        }
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                float sum = 0;
                for (int k = 0; k < 32; k++)
                    sum += a[lane / 4 + i / 2 * 8][k] * b[lane % 4 * 2 + i % 2][k];
                ((float *)out->lane[lane])[i] = ((const operands *)s->lane[lane])->c[i] + sum;
            }
    }, "mma");
#endif
}

/* Four 8 x 8 matrices of f16 from shared memory, transposed: lane 8i + j points at row j of
 * matrix i (16 bytes); lane 4g + t gets the elements [2t][g] and [2t+1][g] of matrix i. */
DEVICE void load_matrices_transposed(uint32_t r[4], const void *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]),
                 "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
#else
    const uint4 mine = load16(row);
    emulated_collective(&mine, 16, r, 16, [](const emulated_slots *s, emulated_slots *out, uint32_t) {
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                const int g = lane / 4, t = lane % 4;
                const uint16_t *first = (const uint16_t *)s->lane[8 * i + 2 * t],
                               *second = (const uint16_t *)s->lane[8 * i + 2 * t + 1];
                ((uint32_t *)out->lane[lane])[i] = (uint32_t)second[g] << 16 | first[g];
            }
    }, "ldmatrix");
#endif
}

/* The same load without transposing: lane 4g + t gets the elements [g][2t] and [g][2t+1] of matrix
 * i. */
DEVICE void load_matrices(uint32_t r[4], const void *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]),
                 "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
#else
    const uint4 mine = load16(row);
    emulated_collective(&mine, 16, r, 16, [](const emulated_slots *s, emulated_slots *out, uint32_t) {
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++)
                ((uint32_t *)out->lane[lane])[i] = ((const uint32_t *)s->lane[8 * i + lane / 4])[lane % 4];
    }, "ldmatrix");
#endif
}

/* ---- sums over a warp and a block, in a fixed order ---- */

DEVICE float warp_sum(float x)
{
    for (int i = 16; i; i /= 2)
        x += __shfl_xor_sync(FULL_WARP, x, i);
    return x;
}
DEVICE float warp_max(float x)
{
    for (int i = 16; i; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, i));
    return x;
}
/* Returns the sum of x over the block, in all threads.  room: 32 floats of shared memory that
 * nothing else uses. */
DEVICE float block_sum(float x, float *room)
{
    const int n_warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();                    /* threads may still read room for the previous sum */
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < n_warps; i++)
        sum += room[i];
    return sum;
}

/* __syncthreads() of the block's warpgroup number i: 4 warps from a multiple of 4 on. */
DEVICE void warpgroup_sync(int i)
{
    EITHER(asm volatile("barrier.sync %0, 128;" :: "r"(i + 1) : "memory"), ((void)i, emulated_warpgroup_sync()));
}

/* Count the arrival of this block at *arrived, which is 0 before the first one.  Returns true in
 * all threads of the last of n blocks, which may then read what all of them have written to global
 * memory (load_shared_by_blocks), and sets *arrived to 0 for the next launch.  All threads must
 * call it.  room: a word of shared memory, whose contents are lost; it must not be written before
 * all threads have returned. */
DEVICE bool last_block(unsigned *arrived, unsigned n, unsigned *room)
{
    __threadfence();
    __syncthreads();                    /* all threads have written */
    if (threadIdx.x == 0) {
        *room = atomicAdd(arrived, 1u) + 1 == n;
        if (*room)
            *arrived = 0;
        __threadfence();
    }
    __syncthreads();                    /* the answer is there */
    return *room;
}

/* ---- activations as linear layers read them ----
 *
 * They are f16 of x / ACT_UNIT: values up to a million fit, and the smallest values lose about
 * 1e-6.  A byte of 4-bit codes has the codes of k and k + 4, so activations are stored in the same
 * pairs, (0,4) (1,5) (2,6) (3,7) of every 8, and codes need not be moved.  Of a step of 32 k, lane
 * 4g + t decodes the 8 k from 8t on.  In the order GPU_ACT_LANES, which lanes read from memory, its
 * pair j is at 4t + j, so that its four pairs are
 * adjacent.  In the order GPU_ACT_TILES, which ldmatrix and wgmma read from shared memory, it is at
 * 4j + t, so that 16 bytes hold one pair for each of the four lanes.  A kernel that writes a row
 * writes zeros up to act_padded(), because the row may have been written in the other order. */
#define ACT_UNIT 16.0f
DEVICE int act_padded(int n) { return (n + 31) & ~31; }
DEVICE int act_place(int k, int order)
{
    const int pair = k & 3, t = k >> 3 & 3;
    return (k & ~31) | (order == GPU_ACT_TILES ? pair << 3 | t << 1 : t << 3 | pair << 1) | (k >> 2 & 1);
}

#endif

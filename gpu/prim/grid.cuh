/* grid.cuh - a barrier of all blocks of a launch made by launch_together() (launch.cuh), and words
 * that they leave to each other.
 *
 * A block arrives, may then do work that does not depend on the others (prefetch its next weights),
 * and waits.  Counters count the arrivals of blocks and only grow during a launch: the wait after
 * the k-th arrival of each block is for k arrivals of all.  The two order plain accesses of all
 * threads, as in the memory model of the PTX ISA: the block's barrier, a release by one thread, an
 * acquire by another, and its block's barrier.  Loads through the read-only cache (load_stream) are
 * not ordered: they may only read what no block of the launch writes.
 *
 * Blocks may also give each other single numbers, and wait for these and for nothing else.
 *
 * One counter takes about one arrival a cycle, so the blocks of a large grid would wait for each
 * other: it is divided into GPU_GRID_COUNTERS, each in a line of L2 of its own. */
#ifndef ZSE_GPU_PRIM_GRID_CUH
#define ZSE_GPU_PRIM_GRID_CUH

#include "gpu/prim/prim.cuh"

/* One thread counts its block.  The release covers all writes that a barrier has ordered before it,
 * by whatever thread of the block. */
DEVICE void count_arrival(unsigned *arrived)
{
    unsigned *const mine = arrived + blockIdx.x % GPU_GRID_COUNTERS * GPU_GRID_LINE;
    EITHER(asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(mine) : "memory"), emulated_grid_arrive(mine));
}

/* The first warp calls it: all that it has written before, and other warps before a barrier of the
 * block, can be read by blocks that have waited. */
DEVICE void grid_arrive(unsigned *arrived)
{
    __syncwarp();                       /* all lanes have written */
    if (threadIdx.x == 0)
        count_arrival(arrived);
}

/* A warp calls it: until all blocks have arrived n times.  Other threads of the block have waited
 * after the block's next barrier. */
DEVICE void grid_wait_by_warp(const unsigned *arrived, unsigned n)
{
    const unsigned i = threadIdx.x % 32;
    if (i < GPU_GRID_COUNTERS) {
        const unsigned *const mine = arrived + i * GPU_GRID_LINE;
        const unsigned all = n * ((gridDim.x + GPU_GRID_COUNTERS - 1 - i) / GPU_GRID_COUNTERS);
#ifdef __CUDACC__
        unsigned v;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(mine) : "memory");
        while (v < all);
#else
        if (all > 0)                    /* a small grid needs fewer counters */
            emulated_grid_wait(mine, all);
#endif
    }
}

/* All threads call it: the same for all of them. */
DEVICE void grid_wait(const unsigned *arrived, unsigned n)
{
    if (threadIdx.x < 32)
        grid_wait_by_warp(arrived, n);
    __syncthreads();                    /* the first threads have waited */
}

/* ---- floats for other blocks ---- */

/* A word of 32 bits arrives as a whole.  The words below tell by their own bits whether they have
 * arrived, so the float is there two latencies of L2 after its store, without a fence, a barrier
 * and a load after it.  They order nothing else.
 *
 * A published word is read by any number of blocks.  Its lowest bit is the phase, 0 or 1, which is
 * another one each time that the same word is published.  All blocks that collect it must have done
 * so before the next time: a barrier of all blocks comes in between.  The bit is lost, which costs
 * up to 2^-23 of the float.
 *
 * A sent word is received by one block alone, which leaves it empty.  It may be sent again after a
 * barrier of all blocks that comes after that. */

#ifdef __CUDACC__
DEVICE void store_word(float *to, uint32_t word)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(to), "r"(word) : "memory");
}
template <int N, class PLACE> DEVICE void load_words(uint4 (&v)[N], PLACE place)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w) : "l"(place(i)) : "memory");
}
/* a | (b ^ c); of single bits the compiler would make predicates, which takes three times as
 * many instructions */
DEVICE uint32_t or_xor(uint32_t a, uint32_t b, uint32_t c)
{
    asm("lop3.b32 %0, %0, %1, %2, 0xf6;" : "+r"(a) : "r"(b), "r"(c));
    return a;
}
#else
static_assert(GPU_GRID_EMPTY == EMULATED_GRID_EMPTY, "the emulation knows empty words");
#endif
DEVICE float4 floats_of(const uint4 &v)
{
    return make_float4(float_of(v.x), float_of(v.y), float_of(v.z), float_of(v.w));
}

DEVICE void grid_publish(float *to, float y, unsigned phase)
{
    const uint32_t word = (bits_of(y) & ~1u) | phase;
    EITHER(store_word(to, word), emulated_grid_publish(to, word));
}

DEVICE void grid_publish(float *to, const float4 &y, unsigned phase)
{
#ifdef __CUDACC__
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "r"((bits_of(y.x) & ~1u) | phase), "r"((bits_of(y.y) & ~1u) | phase),
                    "r"((bits_of(y.z) & ~1u) | phase), "r"((bits_of(y.w) & ~1u) | phase) : "memory");
#else
    grid_publish(to, y.x, phase);
    grid_publish(to + 1, y.y, phase);
    grid_publish(to + 2, y.z, phase);
    grid_publish(to + 3, y.w, phase);
#endif
}

/* Wait until four floats of a phase are there from each place(i) on, a multiple of 16 bytes.  All
 * loads start before the first one is checked: no place depends on a condition that would become a
 * branch. */
template <int N, class PLACE> DEVICE void grid_collect(float4 (&y)[N], unsigned phase, PLACE place)
{
#ifdef __CUDACC__
    uint32_t differ;
    do {
        uint4 v[N];
        load_words(v, place);
        differ = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t one = 0;
            for (int k = 0; k < 4; k++)
                one = or_xor(one, word_of(v[i], k), phase);
            differ |= one;
            /* without the phase: results must not depend on how often a word was published */
            y[i] = floats_of(make_uint4(v[i].x & ~1u, v[i].y & ~1u, v[i].z & ~1u, v[i].w & ~1u));
        }
    } while (differ & 1);
#else
    for (int i = 0; i < N; i++) {
        float *const to[4] = { &y[i].x, &y[i].y, &y[i].z, &y[i].w };
        for (int k = 0; k < 4; k++)
            *to[k] = float_of(emulated_grid_collect(place(i) + k, phase) & ~1u);
    }
#endif
}

DEVICE void grid_send(float *to, float y)
{
    const uint32_t word = bits_of(y) == GPU_GRID_EMPTY ? bits_of(NAN) : bits_of(y);
    EITHER(store_word(to, word), emulated_grid_send(to, word));
}

/* Wait for a float, and leave its word empty. */
DEVICE float grid_receive(float *from)
{
#ifdef __CUDACC__
    uint32_t word;
    do
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    while (word == GPU_GRID_EMPTY);
    store_word(from, GPU_GRID_EMPTY);
#else
    const uint32_t word = emulated_grid_receive(from);
    emulated_grid_empty(from);
#endif
    return float_of(word);
}

/* The same for four floats from each place(i) on, which several threads may receive.  When all of
 * them have, one thread calls grid_empty() for these words. */
template <int N, class PLACE> DEVICE void grid_receive(float4 (&y)[N], PLACE place)
{
#ifdef __CUDACC__
    bool empty;
    do {
        uint4 v[N];
        load_words(v, place);
        empty = false;
#pragma unroll
        for (int i = 0; i < N; i++) {
            for (int k = 0; k < 4; k++)
                empty |= word_of(v[i], k) == GPU_GRID_EMPTY;
            y[i] = floats_of(v[i]);
        }
    } while (empty);
#else
    for (int i = 0; i < N; i++) {
        float *const to[4] = { &y[i].x, &y[i].y, &y[i].z, &y[i].w };
        for (int k = 0; k < 4; k++)
            *to[k] = float_of(emulated_grid_receive(place(i) + k));
    }
#endif
}
DEVICE void grid_empty(float *four)
{
#ifdef __CUDACC__
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %1, %1, %1};" :: "l"(four), "r"(GPU_GRID_EMPTY)
                 : "memory");
#else
    for (int k = 0; k < 4; k++)
        emulated_grid_empty(four + k);
#endif
}

/* ---- sums of all blocks ---- */

/* A word of 64 bits that blocks add whole numbers to, each of them once.  Its lowest bits count the
 * blocks, so it tells by itself whether the sum is whole.  It begins with 0. */
enum { COUNT_BITS = 6, GRID_COUNT = 1 << COUNT_BITS /* more than the blocks that add to a word */ };

DEVICE void grid_add(unsigned long long *to, long long x)
{
    const unsigned long long word = (unsigned long long)x * GRID_COUNT + 1;
    EITHER(asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" :: "l"(to), "l"(word) : "memory"),
           atomicAdd(to, word));
}

/* Wait until count(i) blocks have added to the word at place(i).  Returns the total of N words. */
template <int N, class PLACE, class COUNT> DEVICE long long grid_total(PLACE place, COUNT count)
{
    unsigned long long v[N], sum = 0;
#ifdef __CUDACC__
    bool whole;
    do {
        whole = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v[i]) : "l"(place(i)) : "memory");
#pragma unroll
        for (int i = 0; i < N; i++)
            whole &= ((unsigned)v[i] & (GRID_COUNT - 1)) == (unsigned)count(i);
    } while (!whole);
#else
    for (int i = 0; i < N; i++)
        v[i] = emulated_grid_sum(place(i), GRID_COUNT - 1, (unsigned)count(i));
#endif
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += v[i] - (unsigned)count(i);
    return (long long)sum >> COUNT_BITS;
}

/* ---- the end of a launch ---- */

/* All threads of a block that has waited after all others have: the next launch starts from 0. */
DEVICE void grid_reset(unsigned *arrived)
{
    if (threadIdx.x < GPU_GRID_COUNTERS)
        arrived[threadIdx.x * GPU_GRID_LINE] = 0;
}

#endif

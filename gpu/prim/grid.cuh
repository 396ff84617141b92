/* grid.cuh - a barrier of all blocks of a launch made by launch_together() (launch.cuh).
 *
 * A block arrives, may then do work that does not depend on the others (prefetch its next weights),
 * and waits.  Counters count the arrivals of blocks and only grow during a launch: the wait after
 * the k-th arrival of each block is for k arrivals of all.  The two order plain accesses of all
 * threads, as in the memory model of the PTX ISA: the block's barrier, a release by one thread, an
 * acquire by another, and its block's barrier.  Loads through the read-only cache (load_stream) are
 * not ordered: they may only read what no block of the launch writes.
 *
 * A block may also send single floats to another one, which waits for them and for nothing else.
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

/* All threads call it: all that the block has written before can be read by blocks that have
 * waited. */
DEVICE void grid_arrive(unsigned *arrived)
{
    __syncthreads();                    /* all threads have written */
    if (threadIdx.x == 0)
        count_arrival(arrived);
}

/* The same for a block of which only the first warp has written since the last arrival: only that
 * warp calls it, and the others need not wait for it. */
DEVICE void grid_arrive_alone(unsigned *arrived)
{
    __syncwarp();                       /* all lanes have written */
    if (threadIdx.x == 0)
        count_arrival(arrived);
}

/* All threads call it: until all blocks have arrived n times. */
DEVICE void grid_wait(const unsigned *arrived, unsigned n)
{
    if (threadIdx.x < GPU_GRID_COUNTERS) {
        const unsigned *const mine = arrived + threadIdx.x * GPU_GRID_LINE;
        const unsigned all = n * ((gridDim.x + GPU_GRID_COUNTERS - 1 - threadIdx.x) / GPU_GRID_COUNTERS);
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
    __syncthreads();                    /* the first threads have waited */
}

/* Send y by way of a word that is 0.  The word holds the float and a flag, so it needs no fence; it
 * orders nothing else. */
DEVICE void grid_send(uint64_t *to, float y)
{
    const uint64_t word = (uint64_t)bits_of(y) << 32 | 1;
    EITHER(asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(to), "l"(word) : "memory"),
           emulated_grid_send(to, word));
}

/* Wait for the float that another block sends, and set the word to 0.  The next one may be sent
 * when a barrier of all blocks has ordered it after this. */
DEVICE float grid_receive(uint64_t *from)
{
#ifdef __CUDACC__
    uint64_t word;
    do
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    while (word == 0);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(from), "l"((uint64_t)0) : "memory");
#else
    const uint64_t word = emulated_grid_receive(from);
#endif
    return float_of((uint32_t)(word >> 32));
}

/* All threads call it, after they have written: count this block at *arrived, which is 0 before the
 * first.  Returns true in all threads of the last of n blocks, which may then read what all of them
 * have written, and sets *arrived to 0: for a block that counts there after another barrier.  room:
 * a word of shared memory that nothing else writes. */
DEVICE bool grid_last(unsigned *arrived, unsigned n, unsigned *room)
{
    __syncthreads();                    /* all threads have written, and have read the answer before */
    if (threadIdx.x == 0) {
        unsigned before;
        EITHER(asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory"),
               before = atomicAdd(arrived, 1u));
        *room = before + 1 == n;
        if (before + 1 == n)
            *arrived = 0;
    }
    __syncthreads();                    /* the answer is there */
    return *room;
}

/* All threads of a block that has waited after all others have: the next launch starts from 0. */
DEVICE void grid_reset(unsigned *arrived)
{
    if (threadIdx.x < GPU_GRID_COUNTERS)
        arrived[threadIdx.x * GPU_GRID_LINE] = 0;
}

#endif

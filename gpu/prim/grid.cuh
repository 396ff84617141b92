/* grid.cuh - a barrier of all blocks of a launch made by launch_together() (launch.cuh).
 *
 * A block arrives, may then do work that does not depend on the others (prefetch its next weights),
 * and waits.  *arrived counts the arrivals of blocks and only grows during a launch: the wait after
 * the k-th arrival of each of n blocks is for the k * n-th.  The two order plain accesses of all
 * threads, as in the memory model of the PTX ISA: the block's barrier, a release by one thread, an
 * acquire by another, and its block's barrier.  Loads through the read-only cache (load_stream) are
 * not ordered: they may only read what no block of the launch writes. */
#ifndef ZSE_GPU_PRIM_GRID_CUH
#define ZSE_GPU_PRIM_GRID_CUH

#include "gpu/prim/prim.cuh"

/* One thread counts its block, after what other threads have written for it. */
DEVICE void count_arrival(unsigned *arrived)
{
#ifdef __CUDACC__
    __threadfence();
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(arrived) : "memory");
#else
    emulated_grid_arrive(arrived);
#endif
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

/* All threads call it: until n arrivals. */
DEVICE void grid_wait(const unsigned *arrived, unsigned n)
{
    if (threadIdx.x == 0) {
#ifdef __CUDACC__
        unsigned v;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(arrived) : "memory");
        while (v < n);
#else
        emulated_grid_wait(arrived, n);
#endif
    }
    __syncthreads();                    /* thread 0 has waited */
}

#endif

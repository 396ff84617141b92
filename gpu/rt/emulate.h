/* emulate.h - CUDA C++ on the CPU: the declarations that a kernel source needs to compile with a
 * plain C++ compiler and run without a GPU.
 *
 * The threads of a block are fibers of one thread, run in order; blocks run one after the other,
 * except those of launch_together(): they take turns, in an order that changes, whenever all
 * threads of one wait.  A warp's collectives (shuffles, votes, __syncwarp, mma, ldmatrix) wait
 * until all 32 lanes have arrived, __syncthreads until all threads have; a block whose threads wait
 * for an event that cannot happen is an error that names the kernel.
 *
 * Checks, for a device opened with debug_sync: the bounds of device memory and shared memory are
 * tracked.  In objects compiled with -fsanitize=thread the compiler calls a function at every
 * access (emulated.cc has these functions).  Errors are: accesses outside of bounds, a read of
 * shared memory that was not written, and accesses of two threads to one byte of shared memory
 * without a barrier between them.  Lanes of a warp are ordered by its collectives.  Of a
 * launch_together() also accesses of two blocks to one byte of device memory that are not ordered
 * (emulated_blocks.cc). */
#ifndef ZSE_GPU_RT_EMULATE_H
#define ZSE_GPU_RT_EMULATE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#include "gpu/rt/rt.h"
#include "libcommon/quant/half.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __constant__ const
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return { x, y }; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return { x, y, z, w }; }

struct emulated_thread { dim3 thread, block, n_threads, n_blocks; };
extern emulated_thread *emulated;       /* the thread that runs now */
#define threadIdx (emulated->thread)
#define blockIdx  (emulated->block)
#define blockDim  (emulated->n_threads)
#define gridDim   (emulated->n_blocks)

void *emulated_shared();
void __syncthreads();

/* A collective operation of a warp.  Every lane passes its input bytes and waits; the last lane to
 * arrive calls work() with the inputs and outputs of all lanes; then every lane receives its output
 * bytes. */
enum { EMULATED_SLOT = 64 };
struct emulated_slots { alignas(16) uint8_t lane[32][EMULATED_SLOT]; };
typedef void (*emulated_work)(const emulated_slots *in, emulated_slots *out, uint32_t lanes);
void emulated_collective(const void *in, size_t n_in, void *out, size_t n_out, emulated_work work, const char *what);

static inline void __syncwarp() { emulated_collective(nullptr, 0, nullptr, 0, nullptr, "__syncwarp"); }

struct emulated_shuffle_in { uint32_t value, from; };
static inline uint32_t emulated_shuffle(uint32_t value, uint32_t from)
{
    emulated_shuffle_in in = { value, from };
    uint32_t out = 0;
    emulated_collective(&in, sizeof in, &out, sizeof out, [](const emulated_slots *a, emulated_slots *b, uint32_t) {
        for (int i = 0; i < 32; i++) {
            const emulated_shuffle_in *me = (const emulated_shuffle_in *)a->lane[i];
            memcpy(b->lane[i], a->lane[me->from & 31], 4);
        }
    }, "__shfl_sync");
    return out;
}
static inline uint32_t emulated_lane() { return threadIdx.x & 31; }
template <class T> static inline T __shfl_xor_sync(uint32_t, T v, int mask)
{
    static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
    uint32_t u;
    memcpy(&u, &v, 4);
    u = emulated_shuffle(u, emulated_lane() ^ (uint32_t)mask);
    memcpy(&v, &u, 4);
    return v;
}
template <class T> static inline T __shfl_sync(uint32_t, T v, int lane)
{
    static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
    uint32_t u;
    memcpy(&u, &v, 4);
    u = emulated_shuffle(u, (uint32_t)lane);
    memcpy(&v, &u, 4);
    return v;
}
static inline uint32_t __ballot_sync(uint32_t, int p)
{
    uint32_t in = p != 0, out = 0;
    emulated_collective(&in, 4, &out, 4, [](const emulated_slots *a, emulated_slots *b, uint32_t) {
        uint32_t all = 0;
        for (int i = 0; i < 32; i++)
            all |= (uint32_t)(a->lane[i][0] & 1) << i;
        for (int i = 0; i < 32; i++)
            memcpy(b->lane[i], &all, 4);
    }, "__ballot_sync");
    return out;
}

template <bool MOST> static inline uint32_t emulated_extreme(uint32_t v)
{
    uint32_t out = 0;
    emulated_collective(&v, 4, &out, 4, [](const emulated_slots *a, emulated_slots *b, uint32_t) {
        uint32_t all = *(const uint32_t *)a->lane[0];
        for (int i = 1; i < 32; i++) {
            const uint32_t x = *(const uint32_t *)a->lane[i];
            all = (MOST ? x > all : x < all) ? x : all;
        }
        for (int i = 0; i < 32; i++)
            memcpy(b->lane[i], &all, 4);
    }, "__reduce_sync");
    return out;
}
static inline uint32_t __reduce_max_sync(uint32_t, uint32_t v) { return emulated_extreme<true>(v); }
static inline uint32_t __reduce_min_sync(uint32_t, uint32_t v) { return emulated_extreme<false>(v); }
/* Blocks run one after the other, or take turns when all threads of one wait. */
static inline void __threadfence() {}

static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
/* Atomic operations are ordered among themselves, but not with other accesses: those need a
 * barrier. */
unsigned atomicAdd(unsigned *p, unsigned v);
unsigned long long atomicAdd(unsigned long long *p, unsigned long long v);
unsigned atomicAnd(unsigned *p, unsigned v);
unsigned atomicOr(unsigned *p, unsigned v);

/* cp.async of prim.cuh: start a copy of n bytes; end the thread's group of copies; wait until at
 * most n groups are in flight. */
void emulated_copy(void *to, const void *from, int n);
void emulated_commit();
void emulated_wait(int n);

/* Compute capability 9.0 (emulated_hopper.cc), as documented in gpu/prim/hopper.cuh.
 * map: a matrix [rows][cols] of f16 with rows `stride` bytes apart, copied in tiles of
 * box_rows x 64, swizzled by 128 bytes.  Returns NULL, or the reason why the driver would refuse
 * the map. */
const char *emulated_tensor_map(uint64_t map[16], const void *base, int cols, int rows, uint64_t stride, int box_rows);
uint32_t emulated_shared_address(const void *p);
void emulated_barrier_init(uint64_t *b, int count);
void emulated_barrier_fence();
void emulated_barrier_arrive(uint64_t *b, int bytes);
void emulated_barrier_wait(uint64_t *b, int parity);
void emulated_tensor_load(void *to, const uint64_t map[16], int x, int y, uint64_t *b);
void emulated_warpgroup_sync();
void emulated_wgmma_fence();
void emulated_wgmma(float *c, const uint32_t *a, uint64_t b, int add, int n_columns, int e4m3);
void emulated_wgmma_commit();
void emulated_wgmma_wait(int n);

/* grid.cuh: count an arrival of this block; wait until *arrived is at least n. */
void emulated_grid_arrive(unsigned *arrived);
void emulated_grid_wait(const unsigned *arrived, unsigned n);
/* Words (GPU_GRID_EMPTY): store one of a phase; wait for it; send one; wait for one that is not
 * empty; empty it. */
void emulated_grid_publish(float *to, uint32_t word);
uint32_t emulated_grid_collect(const float *from, unsigned phase);
void emulated_grid_send(float *to, uint32_t word);
uint32_t emulated_grid_receive(const float *from);
enum : uint32_t { EMULATED_GRID_EMPTY = 0xffffffff };
void emulated_grid_empty(float *word);
/* Wait until the bits `mask` of a sum are `count`. */
unsigned long long emulated_grid_sum(const unsigned long long *from, unsigned mask, unsigned count);

/* together: made by launch_together(). */
struct emulated_shape { dim3 grid; int threads; size_t shared; bool together; };
int emulate_launch(struct gpu *g, const char *name, const emulated_shape &shape, std::function<void()> kernel,
                   struct err *e);
int emulated_blocks_together(const struct gpu *g, int threads, size_t shared);

#endif

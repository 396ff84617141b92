/* hopper.cuh - instructions of compute capability 9.0, with their emulated forms
 * (gpu/rt/emulated_hopper.cc): barriers in shared memory that count arrivals and bytes, copies
 * of tiles by the copy engine, products of a warpgroup.  Only files that are compiled for sm_90a
 * alone include it.  PTX ISA 8.x and 9.x, sections "mbarrier", "cp.async.bulk.tensor",
 * "Asynchronous Warpgroup Level Matrix Instructions". */
#ifndef ZSE_GPU_PRIM_HOPPER_CUH
#define ZSE_GPU_PRIM_HOPPER_CUH

#include "gpu/prim/prim.cuh"

/* Describes a matrix in device memory to the copy engine.  The host makes it and passes it to a
 * kernel by value, as a __grid_constant__.  On a GPU it holds the bytes of a CUtensorMap. */
struct alignas(128) tensor_map { uint64_t word[16]; };

/* Address of p in the shared memory of the block. */
DEVICE uint32_t shared_address(const void *p)
{
    return EITHER((uint32_t)__cvta_generic_to_shared(p), emulated_shared_address(p));
}

/* ---- barriers: a phase ends after `count` arrivals and all announced bytes; then the next one
 * begins ---- */

/* Called by one thread; barrier_fence and a barrier of the block must follow before any use. */
DEVICE void barrier_init(uint64_t *b, int count)
{
    EITHER(asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(b)), "r"(count) : "memory"),
           emulated_barrier_init(b, count));
}
/* Make the barriers that this thread initialised visible to the copy engine. */
DEVICE void barrier_fence()
{
#ifdef __CUDACC__
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
    emulated_barrier_fence();
#endif
}
DEVICE void barrier_arrive(uint64_t *b)
{
    EITHER(asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(b)) : "memory"),
           emulated_barrier_arrive(b, 0));
}
/* Arrive at the barrier, and announce bytes that its phase has to wait for. */
DEVICE void barrier_expect(uint64_t *b, int bytes)
{
    EITHER(asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(b)),
                        "r"(bytes) : "memory"),
           emulated_barrier_arrive(b, bytes));
}
/* Wait until the phase of this parity (0: the first, third ...) has ended; returns at once if the
 * current phase has the other parity. */
DEVICE void barrier_wait(uint64_t *b, int parity)
{
    EITHER(asm volatile("{\n"
                        ".reg .pred done;\n"
                        "again:\n"
                        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                        "@!done bra again;\n"
                        "}" :: "r"(shared_address(b)), "r"(parity) : "memory"),
           emulated_barrier_wait(b, parity));
}

/* ---- the copy engine ---- */

/* Copy the tile whose first element is (row y, column x) of the map's matrix to shared memory at a
 * multiple of 1024 bytes: rows of 128 bytes, with the 16-byte pieces of row r in the order of piece
 * ^ r % 8.  Elements outside the matrix are 0.  The bytes count for the barrier. */
DEVICE void tensor_load(void *to, const tensor_map &map, int x, int y, uint64_t *b)
{
    EITHER(asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                        :: "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(b)) : "memory"),
           emulated_tensor_load(to, map.word, x, y, b));
}

/* ---- registers of a warpgroup, from here on ---- */
template <int N> DEVICE void more_registers() { EITHER(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)),
                                                       (void)0); }
template <int N> DEVICE void less_registers() { EITHER(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)),
                                                       (void)0); }

/* ---- products of a warpgroup, which is 4 warps, numbered from a multiple of 4 on ---- */

/* Descriptor of a matrix B in the layout of tensor_load, k along the rows: groups of eight rows
 * 1024 bytes apart, swizzled by 128 bytes; the leading offset is unused.  Adding 2 advances k by
 * 16. */
DEVICE uint64_t wgmma_tile(uint32_t address)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | (address & 0x3ffff) >> 4;
}

/* Call this before the first product, and before each product whose registers a or c were accessed
 * since the previous one. */
DEVICE void wgmma_fence() { EITHER(asm volatile("wgmma.fence.sync.aligned;" ::: "memory"), emulated_wgmma_fence()); }
DEVICE void wgmma_commit()
{
    EITHER(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"), emulated_wgmma_commit());
}
/* Wait until at most N committed groups of products are in flight.  Until then their a must not be
 * written and their c must not be accessed. */
template <int N> DEVICE void wgmma_wait() { EITHER(asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N)
                                                                : "memory"), emulated_wgmma_wait(N)); }

/* Start c[64][N] = a[64][16] b[16][N] (+ c if add is not 0), f16 in, f32 out, without waiting; N is
 * 32, 64 or 128, and c has N / 2 registers.  Of the rows 16w .. 16w + 15, lane 4g + t of warp w
 * holds the same elements as in mma_f16 (prim.cuh): those of a in a[0..3], and those of the columns
 * 8i .. 8i + 7 in c[4i .. 4i + 3]. */
#ifdef __CUDACC__
#define C8(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define A4 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
/* The instruction with 32 sums; end: its last operands. */
#define WGMMA_32(name, end) \
    asm volatile("{\n" \
                 ".reg .pred more;\n" \
                 "setp.ne.b32 more, %37, 0;\n" \
                 "wgmma.mma_async.sync.aligned." name " " \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
                 "{%32, %33, %34, %35}, %36, more, " end ";\n" \
                 "}" : C8(0), C8(8), C8(16), C8(24) : A4, "l"(b), "r"(add) : "memory")
#endif
DEVICE void wgmma_f16(float (&c)[64], const uint32_t a[4], uint64_t b, int add)
{
#ifdef __CUDACC__
    asm volatile("{\n"
                 ".reg .pred more;\n"
                 "setp.ne.b32 more, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
                 "%62, %63}, {%64, %65, %66, %67}, %68, more, 1, 1, 0;\n"
                 "}" : C8(0), C8(8), C8(16), C8(24), C8(32), C8(40), C8(48), C8(56) : A4, "l"(b), "r"(add) : "memory");
#else
    emulated_wgmma(c, a, b, add, 128, 0);
#endif
}
DEVICE void wgmma_f16(float (&c)[32], const uint32_t a[4], uint64_t b, int add)
{
    EITHER(WGMMA_32("m64n64k16.f32.f16.f16", "1, 1, 0"), emulated_wgmma(c, a, b, add, 64, 0));
}
DEVICE void wgmma_f16(float (&c)[16], const uint32_t a[4], uint64_t b, int add)
{
#ifdef __CUDACC__
    asm volatile("{\n"
                 ".reg .pred more;\n"
                 "setp.ne.b32 more, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, more, 1, 1, 0;\n"
                 "}" : C8(0), C8(8) : A4, "l"(b), "r"(add) : "memory");
#else
    emulated_wgmma(c, a, b, add, 32, 0);
#endif
}
/* The same with operands in E4M3: c[64][64] = a[64][32] b[32][64].  a[0..3] are those of mma_s8,
 * and a row of the tile of b has 128 k.  The tensor cores add with fewer bits than f32 has
 * (arXiv:2412.19437, section 3.3.2: about 14), so a sum should be short. */
DEVICE void wgmma_e4m3(float (&c)[32], const uint32_t a[4], uint64_t b, int add)
{
    EITHER(WGMMA_32("m64n64k32.f32.e4m3.e4m3", "1, 1"), emulated_wgmma(c, a, b, add, 64, 1));
}
#ifdef __CUDACC__
#undef WGMMA_32
#undef C8
#undef A4
#endif

#endif

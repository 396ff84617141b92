/* kernels.c - compare the speed of the kernels on one thread with this machine's limits: few tokens
 * with a plain read loop, many with the multiply-add peak.  Work is timed in slices of about a
 * millisecond and the best slice counts: the machine may be shared.
 *     build/tests/bench/kernels [SET [TYPE ... N ... ROWSxCOLS]]
 * TYPE: of weights, or attention (default: all).  N: numbers of tokens.  ROWSxCOLS: 8960x1536 by
 * default; a matrix below a megabyte is not copied to fresh memory, so it stays in the L2 cache
 * (256x512) and shows the arithmetic alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/rng.h"
#include "libcommon/kernels/kernels.h"

enum { PEAK_LOOPS = 20000, FOOTPRINT = 160 << 20, CACHED = 1 << 20, SLICE_BYTES = 6 << 20 };
static int rows = 8960, cols = 1536;

static void *big(size_t n)
{
    n = (n + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1);
    void *p = aligned_alloc(2 << 20, n);
    if (!p)
        exit(1);
    madvise(p, n, MADV_HUGEPAGE);
    return memset(p, 1, n);
}

/* The read loop and the peaks use the widest vectors of the machine, whichever set is measured. */
static int wide, wide_dot;

/* BYTES: of a vector. */
#define READ(vec, bytes, isa) \
    typedef uint64_t vec __attribute__((vector_size(bytes))); \
    __attribute__((target(isa), noinline)) static void read_##vec(const uint8_t *p, size_t n, size_t ahead) \
    { \
        vec a = { 0 }, b = { 0 }; \
        for (size_t i = 0; i < n; i += 128) { \
            if (ahead) \
                __builtin_prefetch(p + i + ahead), __builtin_prefetch(p + i + ahead + 64); \
            for (size_t j = 0; j < 128; j += 2 * bytes) \
                a ^= *(const vec *)(p + i + j), b ^= *(const vec *)(p + i + j + bytes); \
        } \
        volatile vec sink = a ^ b; \
        (void)sink; \
    }
READ(v512, 64, "avx512f") READ(v256, 32, "avx2")

/* Bytes per ns of reading n bytes at p: the first half is read without prefetching, the second half
 * with it, and the faster one counts. */
static double read_speed(const uint8_t *p, size_t n)
{
    const size_t half = n / 256 * 128;
    double best = 0;
    for (size_t ahead = 0; ahead <= 6144; ahead += 6144, p += half) {
        uint64_t t = clock_ns();
        (wide ? read_v512 : read_v256)(p, half, ahead);
        const double speed = (double)half / (double)(clock_ns() - t);
        best = speed > best ? speed : best;
    }
    return best;
}

/* Multiply-adds per ns of int8: vpdpbusd on 64 bytes, or vpmaddubsw, vpmaddwd and vpaddd on 32. */
__attribute__((target("avx512f,avx512vnni"), noinline)) static double dot_peak_512(void)
{
    long n = PEAK_LOOPS;
    uint64_t t = clock_ns();
#define D(i) "vpdpbusd %%zmm0, %%zmm1, %%zmm" #i "\n"
    __asm__ volatile(".p2align 6\n1:\n" D(8) D(9) D(10) D(11) D(12) D(13) D(14) D(15) D(16) D(17) D(18) D(19) D(20) D(
        21) D(22) D(23) "dec %0\njnz 1b\n"
                     : "+r"(n) : : "zmm8", "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16",
                     "zmm17", "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23", "cc");
    return 64.0 * 16 * PEAK_LOOPS / (double)(clock_ns() - t);
}
#define TEN(f) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
#define CLOBBERED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "cc"
__attribute__((target("avx2"), noinline)) static double dot_peak_256(void)
{
    long n = PEAK_LOOPS;
    uint64_t t = clock_ns();
#define P(i) "vpmaddubsw %%ymm0, %%ymm1, %%ymm12\nvpmaddwd %%ymm12, %%ymm1, %%ymm12\nvpaddd %%ymm12, %%ymm" #i ", %%ymm" #i "\n"
    __asm__ volatile("vpxor %%ymm0, %%ymm0, %%ymm0\nvpxor %%ymm1, %%ymm1, %%ymm1\n.p2align 6\n1:\n"
                     TEN(P) "dec %0\njnz 1b\n" : "+r"(n) : : CLOBBERED);
    return 32.0 * 10 * PEAK_LOOPS / (double)(clock_ns() - t);
}
static double dot_peak(void) { return wide_dot ? dot_peak_512() : dot_peak_256(); }

__attribute__((target("avx512f"), noinline)) static double fma_peak_512(void)
{
    long n = PEAK_LOOPS;
    uint64_t t = clock_ns();
#define F(i) "vfmadd231ps %%zmm0, %%zmm1, %%zmm" #i "\n"
    __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0\nvpxord %%zmm1, %%zmm1, %%zmm1\n.p2align 6\n1:\n"
                     F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15) F(16) F(17) F(18) F(19) F(20) F(21) F(22)
                     F(23) "dec %0\njnz 1b\n" : "+r"(n) : : "zmm0", "zmm1", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12",
                         "zmm13", "zmm14", "zmm15", "zmm16", "zmm17",
                     "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23", "cc");
    return 16.0 * 16 * PEAK_LOOPS / (double)(clock_ns() - t);
}
__attribute__((target("avx2,fma"), noinline)) static double fma_peak_256(void)
{
    long n = PEAK_LOOPS;
    uint64_t t = clock_ns();
#define G(i) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" #i "\n"
    __asm__ volatile("vpxor %%ymm0, %%ymm0, %%ymm0\nvpxor %%ymm1, %%ymm1, %%ymm1\n.p2align 6\n1:\n"
                     TEN(G) "dec %0\njnz 1b\n" : "+r"(n) : : CLOBBERED);
    return 8.0 * 10 * PEAK_LOOPS / (double)(clock_ns() - t);
}
static double fma_peak(void) { return wide ? fma_peak_512() : fma_peak_256(); }

static uint8_t *memory;

static void bench_type(const struct kernels *k, enum qtype type, int group, int act_group, const int *tokens)
{
    struct mat m;
    struct err e;
    struct rng r = { 1 };
    if (mat_init(&m, type, group, act_group, rows, cols, &e))
        exit(1);
    const int copies = m.size < CACHED ? 1 : (int)(FOOTPRINT / m.size);
    const size_t readable = m.size / 128 * 128;
    for (size_t i = 0; i < m.size * (size_t)copies; i += 8) {
        uint64_t v = rng_u64(&r);
        if (qtype_info(type)->is_float)                 /* no denormals: they take a hundred times as long */
            v = (v & 0x80ff80ff80ff80ff) | 0x3c003c003c003c00;
        else if (type == QT_FP8)
            v = (v & 0x8787878787878787) | 0x3838383838383838;
        else if (qtype_info(type)->scale == SCALE_F16)
            v &= 0x3bff3bff3bff3bff;
        memcpy(memory + i, &v, 8);
    }
    double one = 0;
    for (; *tokens; tokens++) {
        const int n = *tokens, exact = act_group == 0;
        float *x = big((size_t)n * (size_t)cols * 4), *out = big((size_t)n * (size_t)rows * 4);
        void *act = exact ? NULL : big(k->act_bytes(n, m.cols_padded, act_group)),
             *scratch = big(k->scratch_bytes(n, m.cols_padded));
        for (int i = 0; i < n * cols; i++)
            x[i] = (float)rng_double(&r) - 0.5f;
        double best = 1e30, packing = 1e30, bandwidth = 0, peak = 0;
        const int slice = n <= 8 || copies == 1 ? m.n_tiles : n <= 64 ? 32 : 4, total = m.n_tiles * copies;
        const int repeats = copies > 1 ? 1 : (int)(SLICE_BYTES / m.size) / n + 1;
        for (int i = 0; i < 60; i++) {
            double v = exact ? fma_peak() : dot_peak(),
                   b = read_speed(memory + (size_t)((i + copies / 2) % copies) * m.size, readable);
            peak = v > peak ? v : peak, bandwidth = b > bandwidth ? b : bandwidth;
            uint64_t t = clock_ns();
            if (!exact && i < 10)
                for (int p = 0; p < k->act_parts(n); p++)
                    k->act_pack(act, x, (size_t)cols, n, cols, m.cols_padded, act_group, p);
            uint64_t t1 = clock_ns();
            int c = (int)((int64_t)i * slice % total);
            m.data = memory + m.size * (size_t)(c / m.n_tiles);
            int t0 = c % m.n_tiles / slice * slice;
            if (t0 + slice > m.n_tiles)
                t0 = 0;
            for (int j = 0; j < repeats; j++)
                if (exact)
                    k->matmul_f32(out, (size_t)rows, &m, t0, t0 + slice, x, (size_t)cols, n, scratch);
                else
                    k->matmul(out, (size_t)rows, &m, t0, t0 + slice, act, n, scratch);
            double d = (double)(clock_ns() - t1) * m.n_tiles / slice / repeats;
            best = d < best ? d : best;
            packing = i < 10 && (double)(t1 - t) < packing ? (double)(t1 - t) : packing;
        }
        one = n == 1 ? best : one;
        printf("%-7s %-5s g%-3d a%-3d n %-4d %8.3f ms  %5.1f GB/s = %.2f of reading  %6.0f Gop/s = %.2f of peak  %5.2f x one  (pack %.3f ms)\n", k->name, qtype_info(type)->name, group,
               act_group, n, best / 1e6, (double)m.size / best, (double)m.size / best / bandwidth,
               2.0 * rows * cols * n / best, (double)rows * cols * n / best / peak,
               one > 0 ? best / one : 0, packing / 1e6);
        fflush(stdout);
        free(x), free(out), free(act), free(scratch);
    }
}

/* One KV head of a long sequence: n queries at its end. */
static void bench_attention(const struct kernels *k, enum kv_type type, int head_dim, int heads, int len, int n)
{
    enum { COPIES = 64 };
    const size_t block = kv_block_bytes(type, head_dim), blocks = (size_t)(len + KV_BLOCK - 1) / KV_BLOCK,
                 width = (size_t)heads * (size_t)head_dim;
    const int copies = (size_t)COPIES * blocks * block * 2 > FOOTPRINT ? (int)(FOOTPRINT / (blocks * block * 2))
                                                                       : COPIES;
    int32_t *table = big(blocks * 4);
    float *q = big((size_t)n * width * 4), *out = big((size_t)n * width * 4), *x = big((size_t)head_dim * 4);
    struct rng r = { 1 };
    memset(memory, 0, blocks * block * 2 * (size_t)copies);
    for (size_t b = 0; b < blocks; b++)
        table[b] = (int32_t)((b * 11 + 5) % blocks);
    for (int i = 0; i < n * (int)width; i++)
        q[i] = (float)rng_double(&r) - 0.5f;
    for (int i = 0; i < head_dim; i++)
        x[i] = (float)rng_double(&r) - 0.5f;
    for (size_t b = 0; b < blocks * 2 * (size_t)copies; b++)
        k->kv_store_value(type, memory + b * block, 0, x, head_dim);
    struct attn a = { .q = q, .q_token_stride = width, .q_head_stride = (size_t)head_dim, .out = out,
                      .out_token_stride = width, .out_head_stride = (size_t)head_dim, .n_tokens = n,
                      .n_q_heads = heads, .head_dim = head_dim, .pos = len - n, .table = table, .stride = 2 * block,
                      .v_offset = block, .kv = { type, type }, .scale = 0.1f };
    void *scratch = big(k->attention_scratch(head_dim));
    double best = 1e30, bandwidth = 0, peak = 0, bytes = (double)(blocks * block * 2), pairs = 0;
    for (int i = 0; i < n; i++)
        pairs += len - n + i + 1;
    for (int i = 0; i < 40; i++) {
        double v = fma_peak(), b = read_speed(memory + (size_t)(i % 8) * (FOOTPRINT / 8), 4 << 20);
        peak = v > peak ? v : peak, bandwidth = b > bandwidth ? b : bandwidth;
        a.base = memory + blocks * block * 2 * (size_t)(i % copies);
        uint64_t t = clock_ns();
        k->attention(&a, scratch);
        double d = (double)(clock_ns() - t);
        best = d < best ? d : best;
    }
    printf("%-7s attention kv %-3s dim %d heads %d len %d n %-4d %8.3f ms  %5.1f GB/s = %.2f of reading  %.2f of the FMA peak\n", k->name, kv_type_name(type), head_dim, heads, len, n, best / 1e6,
           bytes / best, bytes / best / bandwidth, pairs * heads * head_dim * 2 / best / peak);
    free(table), free(q), free(out), free(x), free(scratch);
}

int main(int argc, char **argv)
{
    static const int tokens[] = { 1, 2, 4, 6, 8, 16, 64, 512, 0 }, f32_tokens[] = { 1, 4, 16, 256, 0 };
    static const struct { enum qtype type; int group, act_group; } cases[] = {
        { QT_NL4, 32, 128 }, { QT_I4, 128, 128 }, { QT_I4, 32, 32 }, { QT_I4M, 32, 64 }, { QT_I8, 64, 64 },
            { QT_M5, 32, 128 }, { QT_M6, 32, 128 }, { QT_T2, 128, 32 }, { QT_T2, 128, 128 }, { QT_T3, 256, 128 },
            { QT_MXFP4, 32, 32 }, { QT_MXFP4, 32, 128 }, { QT_FP8, 128, 0 }, { QT_MXFP8, 32, 0 },
            { QT_BF16, 32, 0 }, { QT_F16, 32, 0 },
            { QT_F32, 32, 0 },
    };
    struct err e;
    const struct kernels *k = kernels_pick(argc > 1 ? argv[1] : NULL, &e);
    if (!k)
        return fprintf(stderr, "%s\n", e.msg), 1;
    memory = big((size_t)FOOTPRINT + 65536);
    wide = __builtin_cpu_supports("avx512f"), wide_dot = wide && __builtin_cpu_supports("avx512vnni");
    int chosen[32] = { 0 }, size_given = 0;
    for (int j = 2, n = 0; j < argc && n < 31; j++)
        if (strchr(argv[j], 'x') && sscanf(argv[j], "%dx%d", &rows, &cols) == 2)
            size_given = 1;
        else if (atoi(argv[j]) > 0)
            chosen[n++] = atoi(argv[j]);
    if (rows < 1 || cols < 1 || (double)rows * cols * 4 > FOOTPRINT)
        return fprintf(stderr, "ROWSxCOLS is %dx%d: at least 1x1, at most %d bytes of f32\n", rows, cols, FOOTPRINT), 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int wanted = argc <= 2 + size_given;
        for (int j = 2; j < argc; j++)
            wanted |= strcmp(argv[j], qtype_info(cases[i].type)->name) == 0;
        if (wanted)
            bench_type(k, cases[i].type, cases[i].group, cases[i].act_group,
                       chosen[0] ? chosen : cases[i].act_group ? tokens : f32_tokens);
    }
    for (int type = KV_F32; (argc <= 2 || !strcmp(argv[2], "attention")) && type < KV_TYPES; type++) {
        bench_attention(k, (enum kv_type)type, 128, 6, 4096, 1);
        bench_attention(k, (enum kv_type)type, 64, 3, 4096, 1);
        bench_attention(k, (enum kv_type)type, 64, 7, 4096, 1);
        bench_attention(k, (enum kv_type)type, 128, 6, 1024, 16);
        bench_attention(k, (enum kv_type)type, 64, 3, 512, 512);
        bench_attention(k, (enum kv_type)type, 64, 7, 8192, 32);
        bench_attention(k, (enum kv_type)type, 128, 6, 8192, 32);
    }
    free(memory);
    return 0;
}

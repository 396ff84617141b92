/* steps.c - measure a step of the CPU backend: decoding at several lengths of the context, and
 * prefill at its end.  The context is made by copying one block of keys and values, without running
 * a long prompt.  Steps of all lengths take turns; medians and the best are printed.
 *     build/tests/bench/steps MODEL.zse [THREADS [KV [N_TOKENS [LENGTH ...]]]]
 *         (KV: f32, f16, i8; N_TOKENS: of a step)
 * extra: time over that of the shortest length, beyond the time to read its keys and values at the
 * speed of reading measured in the same run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/pool.h"
#include "libcommon/engine/backend.h"
#include "libcommon/format/zfile.h"

enum { MOST = 8, ROUNDS = 41, FOOTPRINT = 256 << 20 };

static uint8_t *memory;
static volatile uint64_t sink;

static void read_part(void *arg, int i, int thread)
{
    (void)arg, (void)thread;
    const uint64_t *p = (const uint64_t *)(memory + (size_t)i * (FOOTPRINT / 64));
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t j = 0; j < FOOTPRINT / 64 / 8; j += 8) {
        __builtin_prefetch(p + j + 512);
        a ^= p[j] ^ p[j + 1], b ^= p[j + 2] ^ p[j + 3], c ^= p[j + 4] ^ p[j + 5], d ^= p[j + 6] ^ p[j + 7];
    }
    sink = a ^ b ^ c ^ d;
}

static double read_speed(int n_threads)
{
    struct err e;
    struct pool *p = pool_open(n_threads, &e);
    double best = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t t = clock_ns();
        pool_run(p, 64, read_part, NULL);
        double v = FOOTPRINT / (double)(clock_ns() - t);
        best = v > best ? v : best;
    }
    pool_close(p);
    return best;
}

static int ascending(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

static int fail(const struct err *e) { return fprintf(stderr, "steps: %s\n", e->msg), 1; }

int main(int argc, char **argv)
{
    int lengths[MOST] = { 128, 4096, 8192 }, n_lengths = 3, n = argc > 4 ? atoi(argv[4]) : 1, longest = 0;
    const char *kv = argc > 3 ? argv[3] : "f16";
    int type = KV_F32;
    while (type < KV_TYPES && strcmp(kv, kv_type_name((enum kv_type)type)) != 0)
        type++;
    if (type == KV_TYPES)
        type = KV_F16;
    if (argc < 2)
        return fprintf(stderr, "usage: steps MODEL.zse [THREADS [KV [N_TOKENS [LENGTH ...]]]]\n"), 2;
    if (argc > 5)
        for (n_lengths = 0; n_lengths < argc - 5 && n_lengths < MOST; n_lengths++)
            lengths[n_lengths] = atoi(argv[5 + n_lengths]);
    for (int i = 0; i < n_lengths; i++)
        longest = lengths[i] > longest ? lengths[i] : longest;
    struct err e;
    struct zfile *z = zfile_open(argv[1], &e);
    struct model *m = z ? model_bind(z, &e) : NULL;
    if (!m)
        return fail(&e);
    const struct config *c = &m->config;
    const int n_blocks = (longest + n + KV_BLOCK - 1) / KV_BLOCK + 1;
    const struct backend_options o = { .n_threads = argc > 2 ? atoi(argv[2]) : 0,
                                        .kv = kv_both((enum kv_type)type),
                                       .n_blocks = n_blocks, .n_states = 1,
                                       .max_tokens = n > KV_BLOCK ? n : KV_BLOCK, .max_logits = 1 };
    void *b = backend_cpu.open(m, &o, &e);
    if (!b)
        return fail(&e);
    int32_t *table = malloc((size_t)n_blocks * sizeof *table), *ids = malloc((size_t)o.max_tokens * sizeof *ids);
    float *logits = malloc((size_t)c->vocab_size * sizeof *logits);
    memory = aligned_alloc(4096, FOOTPRINT);
    if (!table || !ids || !logits || !memory)
        return fprintf(stderr, "steps: out of memory\n"), 1;
    memset(memory, 1, FOOTPRINT);
    for (int i = 0; i < o.max_tokens; i++)
        ids[i] = i * 7919 % c->vocab_size;
    for (int i = 0; i < n_blocks; i++)
        table[i] = (int)((int64_t)i * 7 % n_blocks);            /* out of order, unless n_blocks is a multiple of 7 */
    for (int i = 0; n_blocks % 7 == 0 && i < n_blocks; i++)
        table[i] = i;
    const struct batch_item first = { .tokens = ids, .n_tokens = KV_BLOCK, .table = table };
    if (backend_cpu.forward(b, &(struct batch){ &first, 1 }, logits, &e) < 0)
        return fail(&e);
    for (int i = 0; i < n_blocks; i++)
        if (backend_cpu.copy_block(b, table[0], i, &e) < 0)
            return fail(&e);
    static double t[MOST][ROUNDS];
    const double speed = read_speed(o.n_threads);
    int rounds = 0;
    for (uint64_t begin = clock_ns(); rounds < ROUNDS && (rounds < 5 || clock_ns() - begin < 8000000000u); rounds++)
        for (int i = 0; i < n_lengths; i++) {
            const struct batch_item item = { .tokens = ids, .n_tokens = n, .pos = lengths[i], .table = table,
                                             .n_logits = 1 };
            uint64_t from = clock_ns();
            if (backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits, &e) < 0)
                return fail(&e);
            t[i][rounds] = (double)(clock_ns() - from) / 1e6;
        }
    const double kv_token = 2.0 * c->n_layers * c->n_kv_heads *
                            (double)kv_block_bytes((enum kv_type)type, c->head_dim) / KV_BLOCK;
    printf("%s, %s, kv %s, %d tokens a step, reading %.1f GB/s, private memory without KV %.1f MB\n", argv[1],
           backend_cpu.describe(b), kv, n, speed, (double)(backend_cpu.memory(b) - backend_cpu.kv_bytes(b)) / 1e6);
    for (int i = 0; i < n_lengths; i++) {
        qsort(t[i], (size_t)rounds, sizeof **t, ascending);
        const double bytes = kv_token * (lengths[i] - lengths[0]), median = t[i][rounds / 2],
                     rest = median - bytes / speed / 1e6;
        printf("  context %6d: median %8.3f ms, best %8.3f ms; %6.1f GB/s of weights and KV; extra %.3f, of the best %.3f\n", lengths[i], median, t[i][0],
               ((double)m->weight_bytes - (double)(m->config.tied ? 0 : m->embed.w.size) + kv_token * lengths[i]) /
               median / 1e6, rest / t[0][rounds / 2], (t[i][0] - bytes / speed / 1e6) / t[0][0]);
    }
    backend_cpu.close(b);
    model_close(m);
    return 0;
}

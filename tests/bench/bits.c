/* bits.c - print a hash of the results of the integer matmul for each type and number of tokens.
 * Sets whose hashes are equal have the same sums and scale them in the same order, bit by bit.
 *     build/tests/bench/bits [SET] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/kernels/kernels.h"

enum { ROWS = 72, COLS = 704, MOST = 13 };              /* the last tile, block and unit are not full */

static uint64_t hash(const void *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325;                    /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3;
    return h;
}

static void *allocate(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);
    if (!p)
        exit(1);
    return p;
}

static void print_type(const struct kernels *k, enum qtype type, int group, int act_group)
{
    static const int tokens[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, MOST };
    static float x[MOST * COLS], out[MOST * ROWS];
    struct mat m;
    struct err e;
    struct rng r = { 1 };
    if (mat_init(&m, type, group, act_group, ROWS, COLS, &e))
        exit(1);
    uint8_t *data = allocate(m.size);
    for (size_t i = 0; i < m.size; i++)
        data[i] = (uint8_t)rng_u64(&r) & 0xbf;          /* f32, f16 and e8m0 of such bytes are finite */
    m.data = data;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)rng_double(&r) - 0.5f;
    printf("%s g%d a%d", qtype_info(type)->name, group, act_group);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const int n = tokens[i];
        void *act = allocate(k->act_bytes(n, m.cols_padded, act_group)),
             *scratch = allocate(k->scratch_bytes(n, m.cols_padded));
        for (int part = 0; part < k->act_parts(n); part++)
            k->act_pack(act, x, COLS, n, COLS, m.cols_padded, act_group, part);
        k->matmul(out, ROWS, &m, 0, m.n_tiles, act, n, scratch);
        printf(" %016llx", (unsigned long long)hash(out, (size_t)(n * ROWS) * sizeof *out));
        free(act), free(scratch);
    }
    putchar('\n');
    free(data);
}

int main(int argc, char **argv)
{
    static const struct { enum qtype type; int group, act_group; } cases[] = {
        { QT_NL4, 32, 128 }, { QT_NL4, 32, 32 }, { QT_NF4, 64, 64 }, { QT_NF4, 64, 128 }, { QT_M5, 32, 128 },
        { QT_M6, 32, 128 }, { QT_I4, 32, 32 }, { QT_I4, 128, 128 }, { QT_I8, 64, 64 }, { QT_I4M, 32, 64 },
        { QT_T2, 128, 128 }, { QT_MXFP4, 32, 128 }, { QT_M2, 32, 128 }, { QT_M3, 32, 128 },
    };
    struct err e;
    const struct kernels *k = kernels_pick(argc > 1 ? argv[1] : NULL, &e);
    if (!k)
        return fprintf(stderr, "bits: %s\n", e.msg), 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        print_type(k, cases[i].type, cases[i].group, cases[i].act_group);
    return 0;
}

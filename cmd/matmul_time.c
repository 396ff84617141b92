/* matmul_time.c - time a multiplication by one matrix of random codes that is read from memory. */
#include "cmd/matmul_time.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cmd/preflight_convert.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/rng.h"
#include "libcommon/hw/memory.h"

QTYPE_SCALES_HERE(7);

enum {
    /* bytes of copies of the matrix; used in turn, so that each is read from memory, as in a large
     * model */
    FOOTPRINT = 256 << 20,
    JOB_TILES = 4,
    SLICE_NS = 30000000,        /* duration of one measurement, at least one multiplication */
};

struct matmul_time {
    const struct kernels *k;
    struct pool *pool;
    struct mat m;
    uint8_t *data; int n_copies, copy;
    int n, exact;               /* n: tokens; exact: use matmul_f32, as for float types */
    float *x, *out;
    void *act;
    uint8_t *scratch; size_t scratch_each;
};

static void pack_part(void *arg, int i, int thread)
{
    struct matmul_time *b = arg;
    (void)thread;
    b->k->act_pack(b->act, b->x, (size_t)b->m.cols, b->n, b->m.cols, b->m.cols_padded, b->m.act_group, i);
}

static void multiply_part(void *arg, int i, int thread)
{
    struct matmul_time *b = arg;
    const int t0 = i * JOB_TILES, t1 = t0 + JOB_TILES < b->m.n_tiles ? t0 + JOB_TILES : b->m.n_tiles;
    void *scratch = b->scratch + (size_t)thread * b->scratch_each;
    if (b->exact)
        b->k->matmul_f32(b->out, (size_t)b->m.rows, &b->m, t0, t1, b->x, (size_t)b->m.cols, b->n, scratch);
    else
        b->k->matmul(b->out, (size_t)b->m.rows, &b->m, t0, t1, b->act, b->n, scratch);
}

double matmul_time_run(struct matmul_time *b, int n)
{
    b->n = n;
    const uint64_t start = clock_ns();
    uint64_t now = start;
    int times = 0;
    for (; times == 0 || now - start < SLICE_NS; times++, now = clock_ns()) {
        b->m.data = b->data + (size_t)(b->copy++ % b->n_copies) * b->m.size;
        if (!b->exact)
            pool_run(b->pool, b->k->act_parts(b->n), pack_part, b);
        pool_run(b->pool, (b->m.n_tiles + JOB_TILES - 1) / JOB_TILES, multiply_part, b);
    }
    return (double)(now - start) * 1e-9 / times;
}

int matmul_time_mat(struct mat *m, enum qtype type, int rows, int cols, struct err *e)
{
    const struct qtype_info *t = qtype_info(type);
    /* the largest group of the type, but 64 for int8 */
    const int sizes = t->group_sizes, group = sizes & 256 ? 256
                                            : sizes & 128 && (t->bits < 8 || sizes == 128) ? 128
                                            : sizes & 64 ? 64
                                            : sizes & 32 ? 32 : 16;
    return mat_init(m, type, group, qtype_takes_floats(t) ? 0 : group == 64 ? 64 : 128, rows, cols, e);
}

/* Fill the copies of the matrix with random codes.  Scales (f16 and powers of two) are given a
 * usual size, and floats are not denormals, which would take a hundred times as long and do not
 * occur in models. */
static int fill(struct matmul_time *b, struct matmul_time_weights w, struct err *e)
{
    const struct qtype_info *t = qtype_info(b->m.type);
    const uint64_t mask = t->scale == SCALE_F32    ? 0x3fbfbfbf3fbfbfbf
                          : t->is_float            ? 0x80ff80ff80ff80ff
                          : t->scale == SCALE_F16  ? 0x3bff3bff3bff3bff
                          : t->scale == SCALE_E8M0 ? 0x7e7e7e7e7e7e7e7e      /* 7f: no number in E4M3 */
                          : t->scale == SCALE_E4M3 ? 0x3f3f3f3f3f3f3f3f
                                                   : UINT64_MAX;
    const uint64_t set = t->scale == SCALE_F32    ? 0x3030303030303030
                         : t->is_float            ? 0x3c003c003c003c00
                         : t->scale == SCALE_E8M0 ? 0x4040404040404040
                         : t->scale == SCALE_E4M3 ? 0x2020202020202020
                                                  : 0;
    struct rng rng = { 1 };
    struct memory memory;
    struct err ignored;
    const uint64_t half = memory_read(&memory, NULL, &ignored) == 0 ? memory_now(&memory) / 2 : UINT64_MAX;
    const uint64_t told = memory_read(&memory, preflight_root(), &ignored) == 0 ? memory_now(&memory) / 2 : half;
    if (b->m.size > half)
        return err_set(e, ERR_LIMIT, "the matrix has %zu bytes, expected %llu at most: half of what this process can have", b->m.size, (unsigned long long)half);
    const size_t wanted = w.footprint && w.footprint < FOOTPRINT ? (size_t)w.footprint : FOOTPRINT,
                 n = wanted / b->m.size + (wanted == FOOTPRINT);
    const uint64_t most = (told < half ? told : half) / b->m.size;
    b->n_copies = (int)(n < most ? n : most);
    b->n_copies += b->n_copies == 0;
    const size_t total = b->m.size * (size_t)b->n_copies;
    b->data = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->data == MAP_FAILED) {
        b->data = NULL;
        return err_set(e, ERR_MEMORY, "out of memory: %zu bytes of weights", total);
    }
    madvise(b->data, total, w.as_file ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    for (size_t i = 0; i < b->m.size; i += 8) {
        const uint64_t v = (rng_u64(&rng) & mask) | set;
        memcpy(b->data + i, &v, 8);
    }
    for (int i = 1; i < b->n_copies; i++)
        memcpy(b->data + (size_t)i * b->m.size, b->data, b->m.size);
    return 0;
}

static int prepare(struct matmul_time *b, int most, struct matmul_time_weights w, struct err *e)
{
    const size_t threads = (size_t)pool_size(b->pool), rows = (size_t)b->m.rows, cols = (size_t)b->m.cols;
    struct rng rng = { 2 };
    b->scratch_each = (b->k->scratch_bytes(most, b->m.cols_padded) + 63) / 64 * 64;
    b->x = malloc((size_t)most * cols * sizeof *b->x);
    b->out = malloc((size_t)most * rows * sizeof *b->out);
    b->scratch = aligned_alloc(64, threads * b->scratch_each + 64);
    b->act = b->exact ? NULL : aligned_alloc(64,
                                             (b->k->act_bytes(most, b->m.cols_padded, b->m.act_group) + 63) / 64 * 64);
    if (!b->x || !b->out || !b->scratch || (!b->exact && !b->act))
        return err_nomem(e, "benchmark");
    for (size_t i = 0; i < (size_t)most * cols; i++)
        b->x[i] = (float)rng_double(&rng) - 0.5f;
    return fill(b, w, e);
}

struct matmul_time *matmul_time_open(const struct mat *m, const struct kernels *k, struct pool *pool, int most,
                                     struct matmul_time_weights w, struct err *e)
{
    struct matmul_time *b = calloc(1, sizeof *b);
    if (!b) {
        err_nomem(e, "benchmark");
        return NULL;
    }
    b->m = *m;
    b->k = k;
    b->pool = pool;
    b->exact = qtype_takes_floats(qtype_info(m->type));
    if (prepare(b, most, w, e) == 0)
        return b;
    matmul_time_close(b);
    return NULL;
}

void matmul_time_close(struct matmul_time *b)
{
    if (!b)
        return;
    if (b->data)
        munmap(b->data, b->m.size * (size_t)b->n_copies);
    free(b->x);
    free(b->out);
    free(b->act);
    free(b->scratch);
    free(b);
}

/* bench_matmul.c - one matrix of random codes against activations of 1, 2, 4 ... tokens: time and share of the machine's limits. */
#include "cmd/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cmd/cli.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/pool.h"
#include "libcommon/base/rng.h"
#include "libcommon/convert/convert.h"
#include "libcommon/kernels/kernels.h"

static const char prog[] = "zse-bench";

enum {
    FOOTPRINT = 256 << 20,      /* bytes of copies of the matrix, used in turn: each is read from memory, as in a model */
    JOB_TILES = 4,
    SLICE_NS = 30000000,        /* one measurement takes this long or one multiplication */
};

struct matmul {
    const struct kernels *k;
    struct pool *pool;
    struct mat m;
    uint8_t *data; int n_copies, copy;
    int n, exact;               /* tokens; 1: float types */
    float *x, *out;
    void *act;
    uint8_t *scratch; size_t scratch_each;
};

static void pack_part(void *arg, int i, int thread)
{
    struct matmul *b = arg;
    (void)thread;
    b->k->act_pack(b->act, b->x, (size_t)b->m.cols, b->n, b->m.cols, b->m.cols_padded, b->m.act_group, i);
}

static void multiply_part(void *arg, int i, int thread)
{
    struct matmul *b = arg;
    const int t0 = i * JOB_TILES, t1 = t0 + JOB_TILES < b->m.n_tiles ? t0 + JOB_TILES : b->m.n_tiles;
    void *scratch = b->scratch + (size_t)thread * b->scratch_each;
    if (b->exact)
        b->k->matmul_f32(b->out, (size_t)b->m.rows, &b->m, t0, t1, b->x, (size_t)b->m.cols, b->n, scratch);
    else
        b->k->matmul(b->out, (size_t)b->m.rows, &b->m, t0, t1, b->act, b->n, scratch);
}

/* Seconds of a multiplication, rounding of the activations included. */
static double one_time(struct matmul *b)
{
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

/* Random codes; scales in f16 must be numbers. */
static int fill(struct matmul *b, struct err *e)
{
    const struct qtype_info *t = qtype_info(b->m.type);
    const uint64_t mask = t->is_float || t->scale == SCALE_F16 ? 0x3bff3bff3bff3bff : UINT64_MAX;
    struct rng rng = { 1 };
    b->n_copies = (int)(FOOTPRINT / b->m.size) + 1;
    const size_t total = b->m.size * (size_t)b->n_copies;
    b->data = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->data == MAP_FAILED) {
        b->data = NULL;
        return err_set(e, ERR_MEMORY, "out of memory: %zu bytes of weights", total);
    }
    madvise(b->data, total, MADV_HUGEPAGE);
    for (size_t i = 0; i < b->m.size; i += 8) {
        const uint64_t v = rng_u64(&rng) & mask;
        memcpy(b->data + i, &v, 8);
    }
    for (int i = 1; i < b->n_copies; i++)
        memcpy(b->data + (size_t)i * b->m.size, b->data, b->m.size);
    return 0;
}

static int prepare(struct matmul *b, const struct bench_options *o, int most, struct err *e)
{
    const size_t threads = (size_t)pool_size(b->pool);
    struct rng rng = { 2 };
    b->scratch_each = (b->k->scratch_bytes(most, b->m.cols_padded) + 63) / 64 * 64;
    b->x = malloc((size_t)most * (size_t)o->cols * sizeof *b->x);
    b->out = malloc((size_t)most * (size_t)o->rows * sizeof *b->out);
    b->scratch = aligned_alloc(64, threads * b->scratch_each + 64);
    b->act = b->exact ? NULL : aligned_alloc(64, (b->k->act_bytes(most, b->m.cols_padded, b->m.act_group) + 63) / 64 * 64);
    if (!b->x || !b->out || !b->scratch || (!b->exact && !b->act))
        return err_nomem(e, "benchmark");
    for (size_t i = 0; i < (size_t)most * (size_t)o->cols; i++)
        b->x[i] = (float)rng_double(&rng) - 0.5f;
    return fill(b, e);
}

static void report(const struct bench_options *o, const struct matmul *b, const struct limits *l, double *const *seconds)
{
    json_t *j = json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:i, s:I, s:o, s:[]}", "type", qtype_info(b->m.type)->name, "out_features", o->rows, "in_features", o->cols,
                          "group_size", b->m.group_size, "act_group", b->m.act_group, "kernels", b->k->name, "repeats", o->repeats, "bytes", (json_int_t)b->m.size,
                          "limits", share_limits_json(l), "rows");
    if (!o->json) {
        printf("%s, %d x %d, group %d, %s, %d thread%s; median of %d\n", qtype_info(b->m.type)->name, o->rows, o->cols, b->m.group_size, b->k->name, l->n_threads,
               l->n_threads == 1 ? "" : "s", o->repeats);
        printf("%8s %10s %10s %10s %16s %16s\n", "tokens", "ms", "ratio to 1", "Gop/s", "share of vectors", "share of reads");
    }
    double one = 0;
    for (int i = 0; i < o->tokens.n; i++) {
        const int n = o->tokens.v[i];
        const double t = summarise(seconds[i], o->repeats).median, op = 2.0 * o->rows * o->cols * n / t, peak = b->exact ? l->f32[1] : l->int8[1];
        one = i == 0 ? t / n : one;         /* ratio to one token, or to the share of one in the fewest */
        json_t *row = json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "tokens", n, "seconds", t, "ratio", t / one, "op_per_s", op, "share", op / peak, "read_share",
                                (double)b->m.size / t / l->read[1]);
        if (!b->exact && l->amx[1] > 0)
            json_object_set_new(row, "share_amx", json_real(op / l->amx[1]));
        json_array_append_new(json_object_get(j, "rows"), row);
        if (!o->json)
            printf("%8d %10.3f %10.2f %10.0f %16.2f %16.2f\n", n, t * 1e3, t / one, op / 1e9, op / peak, (double)b->m.size / t / l->read[1]);
    }
    if (o->json)
        cli_json(j);
    json_decref(j);
}

int bench_matmul(const struct bench_options *o)
{
    struct matmul b = { 0 };
    struct limits l;
    struct convert_type type;
    struct err e;
    double *seconds[BENCH_LIST] = { 0 };
    int most = 1;
    if (convert_parse_type(&type, o->run.type ? o->run.type : "nl4", &e) != 0)
        return cli_fail(prog, &e);
    if (type.kind != CONVERT_TYPE)
        return cli_wrong(prog, "matmul: -q %s: expected one type, like nl4, int4, int8 or bf16", o->run.type);
    const struct qtype_info *t = qtype_info(type.qtype);
    /* groups as large as the type has them, but 64 for int8: what the default conversions make */
    const int group = t->group_sizes & 128 && t->bits < 8 ? 128 : t->group_sizes & 64 ? 64 : 32;
    b.exact = t->is_float;
    int rc = mat_init(&b.m, type.qtype, group, b.exact ? 0 : group > 32 ? group : 128, o->rows, o->cols, &e);
    if (rc == 0 && (!(b.k = kernels_pick(o->run.kernels, &e)) || !(b.pool = pool_open(o->run.threads, &e))))
        rc = -1;
    for (int i = 0; i < o->tokens.n; i++) {
        most = o->tokens.v[i] > most ? o->tokens.v[i] : most;
        if (!(seconds[i] = calloc((size_t)o->repeats, sizeof(double))) && rc == 0)
            rc = err_nomem(&e, "benchmark");
    }
    if (rc == 0)
        rc = prepare(&b, o, most, &e);
    for (int k = -1; rc == 0 && k < o->repeats; k++) {
        for (int i = 0; i < o->tokens.n; i++) {
            b.n = o->tokens.v[i];
            const double s = one_time(&b);
            if (k >= 0)
                seconds[i][k] = s;
        }
    }
    const struct limits_options lo = { .n_threads = o->run.threads, .what = LIMIT_READ | LIMIT_INT8 | LIMIT_F32, .only_all = 1 };
    if (rc == 0 && (rc = limits_measure(&l, &lo, &e)) == 0)
        report(o, &b, &l, seconds);
    for (int i = 0; i < BENCH_LIST; i++)
        free(seconds[i]);
    if (b.data)
        munmap(b.data, b.m.size * (size_t)b.n_copies);
    free(b.x);
    free(b.out);
    free(b.act);
    free(b.scratch);
    pool_close(b.pool);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

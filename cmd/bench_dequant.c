/* bench_dequant.c - measure the speed of decoding to f32: of blocks of GGUF files, as in a
 * conversion, and of tiles of our types, as in a row lookup; on one thread and on all. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/matmul_time.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/pool.h"
#include "libcommon/base/rng.h"
#include "libcommon/quant/ggml.h"

static const char prog[] = "zse-bench";

enum { SLICE_NS = 20000000, GGUF_TYPES = 64 };

struct dequant {
    const struct bench_options *o;
    struct pool *pool, *one;            /* one: of a single thread; NULL: pool is */
    float *out;                         /* a row for each thread */
    uint8_t *data;                      /* weights of the type that is measured */
    int type; size_t row_bytes;         /* GGUF */
    struct mat m;                       /* ours */
    double *seconds;                    /* [repeats] */
};

static void decode_blocks(void *arg, int row, int thread)
{
    const struct dequant *d = arg;
    ggml_decode(d->type, d->data + (size_t)row * d->row_bytes, d->out + (size_t)thread * (size_t)d->o->cols,
                d->o->cols);
}

static void decode_tiles(void *arg, int row, int thread)
{
    const struct dequant *d = arg;
    mat_decode_row(&d->m, row, d->out + (size_t)thread * (size_t)d->o->cols);
}

/* Fill the data with random bytes.  They are chosen so that scales, too, have usual values in every
 * format. */
static int fill(struct dequant *d, size_t size, struct err *e)
{
    struct rng rng = { 1 };
    if (!(d->data = aligned_alloc(64, (size + 63) / 64 * 64)))
        return err_nomem(e, "benchmark");
    for (size_t i = 0; i < size; i += 8) {
        const uint64_t v = rng_u64(&rng) & 0x3b3b3b3b3b3b3b3b;
        memcpy(d->data + i, &v, size - i < 8 ? size - i : 8);
    }
    return 0;
}

/* Median rate in elements/s. */
static double measure(struct dequant *d, struct pool *pool, void (*decode)(void *arg, int row, int thread))
{
    for (int k = -1; k < d->o->repeats; k++) {          /* the first run does not count */
        const uint64_t start = clock_ns();
        uint64_t now = start;
        int times = 0;
        for (; times == 0 || now - start < SLICE_NS; times++, now = clock_ns())
            pool_run(pool, d->o->rows, decode, d);
        if (k >= 0)
            d->seconds[k] = (double)(now - start) * 1e-9 / times;
    }
    return (double)d->o->rows * d->o->cols / summarise(d->seconds, d->o->repeats).median;
}

static void add_row(struct dequant *d, json_t *rows, const char *format, const char *type, size_t bytes,
                    void (*decode)(void *arg, int row, int thread))
{
    const double bits = 8.0 * (double)bytes / ((double)d->o->rows * d->o->cols), all = measure(d, d->pool, decode),
                 one = d->one ? measure(d, d->one, decode) : all;
    json_array_append_new(rows, json_pack("{s:s, s:s, s:f, s:f, s:f}", "format", format, "type", type,
                                          "bits_per_weight", bits, "elements_per_s", all, "elements_per_s_one_thread",
                                          one));
    if (!d->o->json)
        printf("%-6s %-8s %12.3f %14.0f %12.0f %6.2f\n", format, type, bits, all / 1e6, one / 1e6, all / one);
}

static int gguf_types(struct dequant *d, json_t *rows, struct err *e)
{
    for (int type = 0; type < GGUF_TYPES; type++) {
        const struct ggml_type_info *t = ggml_type_info(type);
        if (!t || (t->block == 1 && type != GGML_F16 && type != GGML_BF16))
            continue;
        d->type = type;
        d->row_bytes = (size_t)(d->o->cols / t->block) * (size_t)t->block_bytes;
        const size_t size = d->row_bytes * (size_t)d->o->rows;
        if (fill(d, size, e) != 0)
            return -1;
        add_row(d, rows, "gguf", t->name, size, decode_blocks);
        free(d->data);
        d->data = NULL;
    }
    return 0;
}

static int own_types(struct dequant *d, json_t *rows, struct err *e)
{
    const struct qtype_info *t;
    for (int i = 0; (t = qtype_at(i)); i++) {
        if (!t->has_kernels)
            continue;
        if (matmul_time_mat(&d->m, t->type, d->o->rows, d->o->cols, e) != 0 || fill(d, d->m.size, e) != 0)
            return -1;
        d->m.data = d->data;
        add_row(d, rows, "zse", t->name, d->m.size, decode_tiles);
        free(d->data);
        d->data = NULL;
    }
    return 0;
}

int bench_dequant(const struct bench_options *o)
{
    struct dequant d = { .o = o };
    struct err e;
    json_t *rows = json_array();
    int rc = -1;
    if (o->run.type)
        return cli_wrong(prog, "dequant measures all types: -q does not apply");
    if (o->cols % 256)
        return cli_wrong(prog, "dequant: --shape: %d columns, expected a multiple of 256, the largest block", o->cols);
    if (!(d.pool = pool_open(o->run.threads, &e)) || (pool_size(d.pool) > 1 && !(d.one = pool_open(1, &e))))
        goto done;
    d.out = malloc((size_t)pool_size(d.pool) * (size_t)o->cols * sizeof *d.out);
    d.seconds = calloc((size_t)o->repeats, sizeof *d.seconds);
    if (!d.out || !d.seconds || !rows) {
        err_nomem(&e, "benchmark");
        goto done;
    }
    if (!o->json) {
        printf("%d x %d, %d thread%s; median of %d\n", o->rows, o->cols, pool_size(d.pool),
               pool_size(d.pool) == 1 ? "" : "s", o->repeats);
        printf("%-6s %-8s %12s %14s %12s %6s\n", "format", "type", "bits/weight", "M elements/s", "one thread", "ratio");
    }
    rc = gguf_types(&d, rows, &e) == 0 ? own_types(&d, rows, &e) : -1;
    if (rc == 0 && o->json) {
        json_t *j = json_pack("{s:i, s:i, s:i, s:i, s:O}", "out_features", o->rows, "in_features", o->cols, "threads",
                              pool_size(d.pool), "repeats", o->repeats, "rows", rows);
        cli_json(j);
        json_decref(j);
    }
done:
    json_decref(rows);
    free(d.data);
    free(d.out);
    free(d.seconds);
    pool_close(d.pool);
    pool_close(d.one);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

/* bench_ternary.c - time the ternary layouts against nl4: one matrix of each, multiplied in
 * turn. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "cmd/cli.h"
#include "cmd/matmul_time.h"
#include "cmd/preflight_convert.h"

static const char prog[] = "zse-bench";
static const enum qtype types[] = { QT_NL4, QT_T2, QT_T3 };
enum { N_TYPES = sizeof types / sizeof *types };

struct ternary {
    const struct bench_options *o;
    const struct kernels *kernels;
    struct pool *pool;
    struct mat m[N_TYPES];
    struct matmul_time *time[N_TYPES];
    double *seconds;                    /* [types][tokens][repeats] */
};

static double *seconds_of(const struct ternary *b, int type, int tokens)
{
    return b->seconds + (size_t)((type * b->o->tokens.n + tokens) * b->o->repeats);
}

static void report(const struct ternary *b, const struct roofline *l)
{
    const struct bench_options *o = b->o;
    json_t *j = json_pack("{s:i, s:i, s:s, s:i, s:o, s:[]}", "out_features", o->rows, "in_features", o->cols, "kernels",
                          b->kernels->name, "repeats", o->repeats, "limits", share_limits_json(l), "rows");
    if (!o->json) {
        printf("%d x %d, %s, %d thread%s; median of %d\n", o->rows, o->cols, b->kernels->name, l->n_threads,
               l->n_threads == 1 ? "" : "s", o->repeats);
        printf("%8s %-6s %12s %10s %10s %16s %11s\n", "tokens", "type", "bits/weight", "ms", "Gop/s", "share of reads",
               "times nl4");
    }
    for (int i = 0; i < o->tokens.n; i++) {
        const double nl4 = summarise(seconds_of(b, 0, i), o->repeats).median;
        for (int t = 0; t < N_TYPES; t++) {
            const double s = summarise(seconds_of(b, t, i), o->repeats).median,
                         bits = 8.0 * (double)b->m[t].size / ((double)o->rows * o->cols);
            const double share = (double)b->m[t].size / s / l->read[1],
                         operations = 2.0 * o->rows * o->cols * o->tokens.v[i] / s;
            json_array_append_new(json_object_get(j, "rows"),
                                  json_pack("{s:i, s:s, s:I, s:f, s:f, s:f, s:f, s:f}", "tokens", o->tokens.v[i], "type",
                                            qtype_info(types[t])->name, "bytes", (json_int_t)b->m[t].size,
                                            "bits_per_weight", bits, "seconds", s, "operations_per_s", operations,
                                            "read_share", share, "speedup", nl4 / s));
            if (!o->json)
                printf("%8d %-6s %12.3f %10.3f %10.2f %16.2f %11.2f\n", o->tokens.v[i], qtype_info(types[t])->name, bits,
                       s * 1e3, operations * 1e-9, share, nl4 / s);
        }
    }
    if (o->json)
        cli_json(j);
    json_decref(j);
}

static int measure(struct ternary *b, struct err *e)
{
    const struct bench_options *o = b->o;
    int most = 1;
    for (int i = 0; i < o->tokens.n; i++)
        most = o->tokens.v[i] > most ? o->tokens.v[i] : most;
    if (!(b->kernels = kernels_pick(o->run.kernels, e)) || !(b->pool = pool_open(o->run.threads, e)))
        return -1;
    if (!(b->seconds = calloc((size_t)(N_TYPES * o->tokens.n * o->repeats), sizeof *b->seconds)))
        return err_nomem(e, "benchmark");
    for (int t = 0; t < N_TYPES; t++)
        if (matmul_time_mat(&b->m[t], types[t], o->rows, o->cols, e) ||
            !(b->time[t] = matmul_time_open(&b->m[t], b->kernels, b->pool, most, (struct matmul_time_weights){ 0 }, e)))
            return -1;
    for (int k = -1; k < o->repeats; k++)               /* the first run does not count */
        for (int i = 0; i < o->tokens.n; i++)
            for (int t = 0; t < N_TYPES; t++) {
                const double s = matmul_time_run(b->time[t], o->tokens.v[i]);
                if (k >= 0)
                    seconds_of(b, t, i)[k] = s;
            }
    return 0;
}

int bench_ternary(const struct bench_options *o)
{
    struct ternary b = { .o = o };
    struct roofline l;
    struct err e;
    if (o->run.type)
        return cli_wrong(prog, "ternary measures nl4, t2 and t3: -q does not apply");
    int rc = measure(&b, &e);
    if (rc == 0 && (rc = share_limits(&l, o, ROOFLINE_READ | ROOFLINE_INT8 | ROOFLINE_F32, o->run.threads, &e)) == 0)
        report(&b, &l);
    for (int t = 0; t < N_TYPES; t++)
        matmul_time_close(b.time[t]);
    pool_close(b.pool);
    free(b.seconds);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

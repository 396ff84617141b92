/* bench_matmul.c - time one matrix of random codes against activations of 1, 2, 4 ... tokens, as a
 * share of the machine's limits. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "cmd/cli.h"
#include "cmd/matmul_time.h"
#include "cmd/preflight_convert.h"
#include "libcommon/base/pool.h"
#include "libcommon/convert/convert.h"
#include "libcommon/kernels/kernels.h"

static const char prog[] = "zse-bench";

static void report(const struct bench_options *o, const struct mat *m, const struct kernels *k,
                   const struct roofline *l, double *const *seconds)
{
    json_t *j = json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:i, s:I, s:o, s:[]}", "type", qtype_info(m->type)->name,
                          "out_features", o->rows, "in_features", o->cols, "group_size", m->group_size, "act_group",
                          m->act_group, "kernels", k->name, "repeats", o->repeats, "bytes", (json_int_t)m->size,
                          "limits", share_limits_json(l), "rows");
    if (!o->json) {
        printf("%s, %d x %d, group %d, %s, %d thread%s; median of %d\n", qtype_info(m->type)->name, o->rows, o->cols,
               m->group_size, k->name, l->n_threads, l->n_threads == 1 ? "" : "s", o->repeats);
        printf("%8s %10s %10s %10s %16s %16s\n", "tokens", "ms", "ratio to 1", "Gop/s", "share of vectors",
               "share of reads");
    }
    double one = 0;
    for (int i = 0; i < o->tokens.n; i++) {
        const int n = o->tokens.v[i];
        const double t = summarise(seconds[i], o->repeats).median, op = 2.0 * o->rows * o->cols * n / t,
                     peak = qtype_takes_floats(qtype_info(m->type)) ? l->f32[1] : l->int8[1];
        one = i == 0 ? t / n : one;         /* time of one token, or per token of the smallest batch */
        json_t *row = json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "tokens", n, "seconds", t, "ratio", t / one,
                                "op_per_s", op, "share", op / peak, "read_share", (double)m->size / t / l->read[1]);
        if (!qtype_takes_floats(qtype_info(m->type)) && l->amx[1] > 0)
            json_object_set_new(row, "share_amx", json_real(op / l->amx[1]));
        json_array_append_new(json_object_get(j, "rows"), row);
        if (!o->json)
            printf("%8d %10.3f %10.2f %10.0f %16.2f %16.2f\n", n, t * 1e3, t / one, op / 1e9, op / peak,
                   (double)m->size / t / l->read[1]);
    }
    if (o->json)
        cli_json(j);
    json_decref(j);
}

int bench_matmul(const struct bench_options *o)
{
    const struct kernels *kernels = NULL;
    struct pool *pool = NULL;
    struct matmul_time *b = NULL;
    struct mat m;
    struct roofline l;
    struct convert_type type;
    struct err e;
    double *seconds[BENCH_LIST] = { 0 };
    int most = 1;
    if (convert_parse_type(&type, o->run.type ? o->run.type : "nl4", &e) != 0)
        return cli_fail(prog, &e);
    if (type.kind != CONVERT_TYPE)
        return cli_wrong(prog, "matmul: -q %s: expected one type, like nl4, int4, int8 or bf16", o->run.type);
    int rc = matmul_time_mat(&m, type.qtype, o->rows, o->cols, &e);
    if (rc == 0 && (!(kernels = kernels_pick(o->run.kernels, &e)) || !(pool = pool_open(o->run.threads, &e))))
        rc = -1;
    for (int i = 0; i < o->tokens.n; i++) {
        most = o->tokens.v[i] > most ? o->tokens.v[i] : most;
        if (!(seconds[i] = calloc((size_t)o->repeats, sizeof(double))) && rc == 0)
            rc = err_nomem(&e, "benchmark");
    }
    if (rc == 0 && !(b = matmul_time_open(&m, kernels, pool, most, (struct matmul_time_weights){ 0 }, &e)))
        rc = -1;
    for (int k = -1; rc == 0 && k < o->repeats; k++) {
        for (int i = 0; i < o->tokens.n; i++) {
            const double s = matmul_time_run(b, o->tokens.v[i]);
            if (k >= 0)
                seconds[i][k] = s;
        }
    }
    if (rc == 0 && (rc = share_limits(&l, o, ROOFLINE_READ | ROOFLINE_INT8 | ROOFLINE_F32, o->run.threads, &e)) == 0)
        report(o, &m, kernels, &l, seconds);
    for (int i = 0; i < BENCH_LIST; i++)
        free(seconds[i]);
    matmul_time_close(b);
    pool_close(pool);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

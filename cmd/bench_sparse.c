/* bench_sparse.c - the memory that scores of sparse attention take, by pattern and context. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "cmd/cli.h"
#include "libcommon/engine/pattern.h"

static const char prog[] = "zse-bench";
static const double MIB = 1024 * 1024;
enum { MOST_CONTEXT = 131072, MOST_MEASURED = 32768 };

static void print_row(const struct sparse_pattern *p, int n, double full, double sparse)
{
    printf("%10d %-12s %14.1f %14.1f %10.1f\n", n, p->name, full / MIB, sparse / MIB, full / sparse);
}

int bench_sparse(const struct bench_options *o)
{
    const struct bench_list usual = { 6, { 1024, 2048, 4096, 8192, 16384, 32768 } };
    const struct bench_list *list = o->contexts.n ? &o->contexts : &usual;
    uint8_t *row = malloc(MOST_CONTEXT);
    struct err e;
    if (!row) {
        err_nomem(&e, "a row of a pattern");
        return cli_fail(prog, &e);
    }
    json_t *rows = json_array();
    if (!o->json)
        printf("%10s %-12s %14s %14s %10s\n", "context", "pattern", "full, MiB", "sparse, MiB", "full/sparse");
    for (int i = 0; i < list->n; i++)
        for (const struct sparse_pattern *p = patterns; p < patterns + PATTERN_KINDS; p++) {
            const int n = list->v[i];
            const double full = pattern_bytes((int64_t)n * n), sparse = pattern_bytes(pattern_pairs(p, n, row));
            json_array_append_new(rows, json_pack("{s:i, s:s, s:f, s:f, s:f}", "context", n, "pattern", p->name,
                                                  "full_attention_mb", full / MIB, "sparse_attention_mb", sparse / MIB,
                                                  "reduction_factor", full / sparse));
            if (!o->json)
                print_row(p, n, full, sparse);
        }
    free(row);
    json_t *j = json_pack("{s:o}", "rows", rows);
    if (o->json)
        cli_json(j);
    json_decref(j);
    return cli_finish(prog);
}

int bench_sparse_check(const struct bench_options *o)
{
    const int most = o->table ? MOST_MEASURED : MOST_CONTEXT;
    for (int i = 0; i < o->contexts.n; i++)
        if (o->contexts.v[i] > most)
            return cli_wrong(prog, "--contexts: %d, expected at most %d for sparse%s", o->contexts.v[i], most,
                             o->table ? " --table" : "");
    return 0;
}

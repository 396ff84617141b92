/* bench_gpu.c - time each GPU kernel alone, also as a fraction of the device's limits. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <string.h>

#include "cmd/cli.h"

static const char prog[] = "zse-bench";

struct gpu_report { const struct bench_options *o; struct gpu_speeds limits; json_t *rows; };

static void row(void *user, const struct gpu_bench_row *r)
{
    const struct gpu_report *p = user;
    const double rate = r->bytes / r->seconds, op = r->flop / r->seconds;
    const double of_copy = p->limits.copy > 0 ? rate / p->limits.copy : 0,
                 of_mma = p->limits.mma > 0 ? op / ((r->int8 ? 2 : 1) * p->limits.mma) : 0;
    json_t *j = json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "kernel", r->kernel, "type", r->type,
                          "tokens", r->tokens, "seconds", r->seconds, "bytes", r->bytes, "flop", r->flop, "bytes_per_s",
                          rate, "flop_per_s", op, "read_share", of_copy, "mma_share", of_mma);
    if (p->o->autotune)
        json_object_set_new(j, "taken", json_boolean(r->taken));
    json_array_append_new(p->rows, j);
    if (!p->o->json)
        printf("%-13s %-7s %6d %10.1f %10.1f %10.2f %12.2f %10.2f\n", r->kernel, r->type, r->tokens, r->seconds * 1e6,
               rate * 1e-9, of_copy, op * 1e-12, of_mma);
}

static const char *string_of(const json_t *row, const char *key)
{
    return json_string_value(json_object_get(row, key));
}
static double number_of(const json_t *row, const char *key) { return json_number_value(json_object_get(row, key)); }

/* The fastest of the rows with the same type and number of tokens. */
static json_t *fastest(json_t *rows, const json_t *like)
{
    json_t *row, *best = NULL;
    size_t i;
    json_array_foreach(rows, i, row)
        if (strcmp(string_of(row, "type"), string_of(like, "type")) == 0 &&
            number_of(row, "tokens") == number_of(like, "tokens") &&
            (!best || number_of(row, "seconds") < number_of(best, "seconds")))
            best = row;
    return best;
}

/* Print each kernel that the engine chooses, compared with the fastest. */
static void compare(const struct gpu_report *p)
{
    json_t *row;
    size_t i;
    json_array_foreach(p->rows, i, row)
        json_object_set_new(row, "fastest", json_boolean(row == fastest(p->rows, row)));
    json_array_foreach(p->rows, i, row) {
        const json_t *best = fastest(p->rows, row);
        if (p->o->json || !json_is_true(json_object_get(row, "taken")))
            continue;
        printf("%-7s %6.0f  best %s, the engine takes ", string_of(row, "type"), number_of(row, "tokens"),
               string_of(best, "kernel"));
        if (row == best)
            printf("it\n");
        else
            printf("%s: %.2fx\n", string_of(row, "kernel"), number_of(row, "seconds") / number_of(best, "seconds"));
    }
}

/* Choose the number and size of heads as models of this width have them, with four heads for each
 * KV head. */
static int choose_heads(struct gpu_bench_options *g)
{
    g->head_dim = g->cols >= 1024 ? 128 : g->cols >= 256 ? 64 : 32;
    if (g->cols % g->head_dim)
        return cli_wrong(prog, "gpu: --shape %dx%d: expected input features in heads of %d", g->rows, g->cols,
                         g->head_dim);
    g->n_heads = g->cols / g->head_dim;
    g->n_kv_heads = g->n_heads % 4 ? g->n_heads : g->n_heads / 4;
    return 0;
}

int bench_gpu(const struct bench_options *o)
{
    struct gpu_report p = { .o = o };
    struct gpu_bench_options g = { .rows = o->rows, .cols = o->cols, .vocab = 8 * o->rows, .context = o->prompt,
                                   .tokens = o->tokens.v, .n_tokens = o->tokens.n,
                                   .repeats = o->repeats, .autotune = o->autotune,
                                   .wgmma = run_engine_options(&o->run, 1, 0).wgmma, .row = row, .user = &p };
    struct err e;
    int rc = choose_heads(&g);
    if (rc)
        return rc;
    if (gpu_measure(o->run.gpu_index, &p.limits, &e) < 0)
        return cli_fail(prog, &e);
    json_t *j = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:[]}", "device", gpu_kind,
                          "out_features", g.rows, "in_features", g.cols, "vocab", g.vocab,
                          "heads", g.n_heads, "kv_heads", g.n_kv_heads, "head_dim", g.head_dim, "context", g.context,
                          "repeats", o->repeats, "limits", share_gpu_json(&p.limits), "rows");
    p.rows = json_object_get(j, "rows");
    if (!o->json) {
        printf("%s, %d x %d, %d heads of %d on %d, context %d; copies of memory %.0f GB/s, uploads %.1f GB/s, matrix units %.0f Tflop/s; median of %d\n", gpu_kind, g.rows, g.cols,
               g.n_heads, g.head_dim, g.n_kv_heads, g.context, p.limits.copy * 1e-9, p.limits.upload * 1e-9,
               p.limits.mma * 1e-12, o->repeats);
        printf("%-13s %-7s %6s %10s %10s %10s %12s %10s\n", "kernel", "type", "tokens", "us", "GB/s", "of copies",
               "Tflop/s", "of mma");
    }
    rc = gpu_bench(o->run.gpu_index, &g, &e);
    if (rc == 0 && o->autotune)
        compare(&p);
    if (rc == 0 && o->json)
        cli_json(j);
    json_decref(j);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

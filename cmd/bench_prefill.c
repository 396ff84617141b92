/* bench_prefill.c - prompts of several lengths; with --compare in each place where a GPU's weights
 * may be. */
#include "cmd/zse-bench.h"

#include <stdio.h>

#include "cmd/cli.h"
#include "libcommon/base/json.h"

static const char prog[] = "zse-bench";

enum place { AS_GIVEN, ON_CPU, HYBRID, STREAMED, WINDOW, ON_GPU, N_PLACES };
static const struct { const char *name, *what; int needs_experts; } places[N_PLACES] = {
    [AS_GIVEN] = { "given", "as the options say", 0 },
    [ON_CPU] = { "cpu", "all on the CPU", 0 },
    [HYBRID] = { "hybrid", "experts on the CPU", 1 },
    [STREAMED] = { "streamed", "experts uploaded for each layer", 1 },
    [WINDOW] = { "window", "layers through a window", 0 },
    [ON_GPU] = { "gpu", "all on the GPU", 0 },
};

static void put(struct run_options *r, enum place p, int n_layers)
{
    if (p == AS_GIVEN)
        return;
    r->gpu = p != ON_CPU;
    r->gpu_auto = 0;
    r->moe = p == HYBRID || p == STREAMED ? MOE_CPU : MOE_GPU;
    r->gpu_experts = 0;
    r->no_gpu_prefill = p == HYBRID;
    r->prefill_threshold = p == STREAMED;
    r->layer_stream = p == WINDOW ? LAYER_STREAM_AUTO : LAYER_STREAM_OFF;
    if (p != WINDOW)
        r->stream_window = 0;
    else if (r->stream_window == 0)
        r->stream_window = n_layers < 8 ? 2 : n_layers / 4;
}

static void add_row(const struct bench_options *o, json_t *rows, enum place p, int n, const struct prefill_cost *c,
                    const char *why_not)
{
    json_t *row = json_pack("{s:s, s:i, s:o?}", "place", places[p].name, "tokens", n, "why_not",
                            why_not ? js_text(why_not) : NULL);
    if (!why_not)
        json_object_update_new(row, json_pack("{s:f, s:f, s:I, s:I}", "seconds", c->seconds, "tokens_per_s",
                                              n / c->seconds, "gpu_weight_bytes", (json_int_t)c->gpu_bytes,
                                              "uploaded_bytes", (json_int_t)c->uploaded));
    json_array_append_new(rows, row);
    if (o->json)
        return;
    if (why_not)
        printf("%-9s %7d  %s\n", places[p].name, n, why_not);
    else
        printf("%-9s %7d %10.3f %12.1f %12.1f %12.1f   %s\n", places[p].name, n, c->seconds, n / c->seconds,
               (double)c->gpu_bytes * 1e-6, (double)c->uploaded * 1e-6, places[p].what);
}

/* Measure one prompt.  A place that the model does not fit into gets a row with the reason; -1: any
 * other failure. */
static int measure(const struct bench_options *options, const struct opened_model *m, enum place p, int n,
                   json_t *rows, struct err *e)
{
    struct bench_options o = *options;
    struct prefill_cost c;
    put(&o.run, p, m->model->config.n_layers);
    if (bench_prefill_alone(&o, m, n, &c, e) == 0) {
        add_row(options, rows, p, n, &c, NULL);
        return 0;
    }
    if (p == AS_GIVEN || (e->code != ERR_MEMORY && e->code != ERR_UNSUPPORTED && e->code != ERR_LIMIT))
        return -1;
    add_row(options, rows, p, n, NULL, e->msg);
    return 0;
}

int bench_prefill(const struct bench_options *o, const char *model)
{
    struct opened_model m;
    struct err e;
    json_t *rows = json_array();
    int rc = 0;
    if (open_model(prog, model, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    const struct config *c = &m.model->config;
    if (!o->json)
        printf("%s: %s, %s; least of %d\n%-9s %7s %10s %12s %12s %12s\n", m.name, c->arch, bench_quantization(&m),
               o->repeats, "place", "tokens", "s", "tokens/s", "MB on GPU", "MB uploaded");
    for (int i = 0; rc == 0 && i < o->tokens.n; i++)
        for (int p = o->compare ? ON_CPU : AS_GIVEN; rc == 0 && p < (o->compare ? N_PLACES : ON_CPU); p++)
            if (!places[p].needs_experts || c->moe.n_experts)
                rc = measure(o, &m, p, o->tokens.v[i], rows, &e);
    json_t *j = json_pack("{s:s, s:s, s:s, s:i, s:o}", "model", m.name, "architecture", c->arch, "quantization",
                          bench_quantization(&m), "repeats", o->repeats, "rows", rows);
    if (rc == 0 && o->json)
        cli_json(j);
    json_decref(j);
    close_model(&m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

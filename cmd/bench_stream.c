/* bench_stream.c - measure steps of a model whose layers do not all stay in memory: those of a GPU,
 * or those of the file that --max-memory bounds.  Without a model: simulate them. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "cmd/cli.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/rng.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/engine/engine.h"
#include "libcommon/plan/layer_window.h"
#include "libcommon/plan/stream_time.h"

static const char prog[] = "zse-bench";

/* ---- measured ---- */

/* Layers that pass through the memory of a GPU, or of the machine: counts since the backend was
 * opened. */
struct passing {
    int parts, kept, slots, prefetch;   /* parts: layers; on the CPU also slices of the head */
    const char *strategy;
    uint64_t uses, hits, evictions, bytes, wait_ns;
};

/* A sequence of one model, in a backend of its own. */
struct streamer {
    const struct backend *be;
    void *b;
    const struct model *m;
    int n_tokens, n_ids;                /* most tokens of a step; tokens of the sequence */
    int32_t *ids, *table;
    float *logits;
};

static struct passing passing_of(const struct streamer *s)
{
    struct backend_device d;
    struct cpu_passing c;
    if (!s->be->device) {
        cpu_passing(s->b, &c);
        return (struct passing){ .parts = c.parts, .kept = c.kept, .slots = c.parts > c.kept ? 2 : 0, .prefetch = 1,
                                 .strategy = "adaptive", .uses = c.uses, .hits = c.hits, .evictions = c.evictions,
                                 .bytes = c.bytes };
    }
    s->be->device(s->b, &d);
    const struct backend_stream *w = &d.stream;
    return (struct passing){ .parts = w->window ? d.n_layers : 0, .kept = w->kept, .slots = w->slots,
                             .prefetch = w->prefetch, .strategy = w->strategy, .uses = w->uses, .hits = w->hits,
                             .evictions = w->evictions, .bytes = w->bytes, .wait_ns = w->step_wait_ns };
}

static void streamer_close(struct streamer *s)
{
    if (s->b)
        s->be->close(s->b);
    free(s->ids);
    free(s->table);
    free(s->logits);
}

static int streamer_open(struct streamer *s, const struct bench_options *o, const struct opened_model *m,
                         struct err *e)
{
    const struct engine_options eo = run_engine_options(&o->run, 1, o->prompt + o->generate + 1);
    struct backend_options bo;
    struct rng rng = { 1 };
    const struct config *c = &m->model->config;
    *s = (struct streamer){ .be = eo.backend ? eo.backend : &backend_cpu, .m = m->model,
                            .n_ids = o->prompt + o->generate };
    const int n_blocks = (s->n_ids + KV_BLOCK) / KV_BLOCK;
    if (c->max_len > 0 && s->n_ids > c->max_len)
        return err_set(e, ERR_LIMIT, "-p %d -n %d: %d tokens, expected at most the model's %d", o->prompt, o->generate,
                       s->n_ids, c->max_len);
    if (engine_backend_options(m->model, &eo, &bo, e) != 0)
        return -1;
    bo.n_blocks = n_blocks;
    bo.n_window_blocks = bo.n_window_blocks ? n_blocks : 0;
    s->n_tokens = bo.max_tokens;
    s->ids = malloc((size_t)s->n_ids * sizeof *s->ids);
    s->table = malloc((size_t)n_blocks * sizeof *s->table);
    s->logits = malloc((size_t)c->vocab_size * sizeof *s->logits);
    if (!s->ids || !s->table || !s->logits)
        return err_nomem(e, "benchmark");
    for (int i = 0; i < s->n_ids; i++)
        s->ids[i] = (int32_t)(rng_u64(&rng) % (uint64_t)c->vocab_size);
    for (int i = 0; i < n_blocks; i++)
        s->table[i] = i;
    return (s->b = s->be->open(m->model, &bo, e)) ? 0 : -1;
}

/* Compute tokens [from, to) of the sequence, in steps of at most `most`. */
static int compute(struct streamer *s, int from, int to, int most, struct err *e)
{
    for (int at = from; at < to; at += most) {
        const int n = to - at < most ? to - at : most;
        const struct batch_item item = { .tokens = s->ids + at, .n_tokens = n, .pos = at, .table = s->table,
                                         .window_table = s->table, .n_logits = 1 };
        if (s->be->forward(s->b, &(struct batch){ &item, 1 }, s->logits, e) != 0 ||
            map_check(zfile_map(s->m->file), e) != 0)
            return -1;
    }
    return 0;
}

static double per(uint64_t n, int steps) { return (double)n / steps; }

/* One row: the mean of `steps` steps that took `seconds`. */
static void add_row(const struct bench_options *o, json_t *rows, const char *what, int n_tokens, int steps,
                    double seconds, const struct passing *a, const struct passing *b, int n_layers)
{
    const uint64_t uses = b->uses - a->uses, hits = b->hits - a->hits, bytes = b->bytes - a->bytes;
    const double step = seconds / steps;
    json_array_append_new(rows, json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "phase", what,
                                          "tokens", n_tokens, "steps", steps, "step_s", step, "layer_s",
                                          step / n_layers, "uses", per(uses, steps), "prefetch_hits",
                                          per(hits, steps), "evictions", per(b->evictions - a->evictions, steps),
                                          "bytes", per(bytes, steps), "bytes_per_s", (double)bytes / seconds,
                                          "wait_s", per(b->wait_ns - a->wait_ns, steps) * 1e-9));
    if (!o->json)
        printf("%-8s %7d %7d %11.3f %11.3f %8.1f %8.1f %10.1f %10.2f %8.2f\n", what, n_tokens, steps, step * 1e3,
               step / n_layers * 1e3, per(uses, steps), per(hits, steps), per(b->evictions - a->evictions, steps),
               per(bytes, steps) * 1e-6, (double)bytes / seconds * 1e-9);
}

/* A phase: tokens [from, to) in steps of at most `most`. */
static int measure(const struct bench_options *o, struct streamer *s, json_t *rows, const char *what, int from, int to,
                   int most, struct err *e)
{
    const struct passing before = passing_of(s);
    const int steps = (to - from + most - 1) / most;
    const uint64_t start = clock_ns();
    if (steps == 0)
        return 0;
    if (compute(s, from, to, most, e) != 0)
        return -1;
    const double seconds = (double)(clock_ns() - start) * 1e-9;
    const struct passing after = passing_of(s);
    add_row(o, rows, what, to - from, steps, seconds, &before, &after, s->m->config.n_layers);
    return 0;
}

static json_t *measured(const struct bench_options *o, const struct opened_model *m, struct err *e)
{
    struct streamer s;
    json_t *j = NULL, *rows = json_array();
    int rc = streamer_open(&s, o, m, e);
    const struct passing p = rc == 0 ? passing_of(&s) : (struct passing){ 0 };
    if (rc == 0 && p.parts == 0)
        rc = err_set(e, ERR_LIMIT, "%s: all layers fit, no streaming is needed; %s makes a window", m->name,
                     s.be->device ? "--layer-window N" : "--max-memory SIZE");
    if (rc == 0) {
        j = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:s}", "model", m->name, "architecture",
                      m->model->config.arch, "quantization", bench_quantization(m), "device", s.be->describe(s.b),
                      "layers", m->model->config.n_layers, "parts", p.parts, "kept", p.kept, "slots", p.slots,
                      "prefetch", p.prefetch, "strategy", p.strategy);
        if (!o->json)
            printf("%s: %s, %s, %s; %d layers in %d parts, %d of which stay\n%-8s %7s %7s %11s %11s %8s %8s %10s %10s %8s\n",
                   m->name, m->model->config.arch, bench_quantization(m), s.be->describe(s.b),
                   m->model->config.n_layers, p.parts, p.kept, "phase", "tokens", "steps", "ms a step", "ms a layer",
                   "uses", "hits", "evictions", "MB", "GB/s");
        rc = measure(o, &s, rows, "prompt", 0, o->prompt, s.n_tokens, e);
    }
    if (rc == 0)
        rc = measure(o, &s, rows, "decode", o->prompt, o->prompt + o->generate, 1, e);
    streamer_close(&s);
    if (rc == 0)
        json_object_set(j, "rows", rows);
    else
        json_decref(j);
    json_decref(rows);
    return rc == 0 ? j : NULL;
}

/* ---- simulated ---- */

static int simulate_row(const struct bench_options *o, json_t *rows, int window, int prefetch, enum window_strategy how)
{
    const struct bench_stream *b = &o->stream;
    const struct stream_rates rates = { (double)b->layer_bytes / (double)b->link, b->layer_s };
    const struct window_shape shape = window_shape_of(window, prefetch, how);
    struct stream_times t;
    if (stream_simulate(b->layers, shape, &rates, o->generate, &t) != 0)
        return -1;
    const double step = t.seconds / o->generate;
    json_array_append_new(rows, json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}",
                                          "strategy", window_strategy_name(how), "window", shape.n_kept + shape.n_slots,
                                          "kept", shape.n_kept, "slots", shape.n_slots, "prefetch", shape.prefetch,
                                          "uses", (json_int_t)t.counts.uses, "prefetch_hits",
                                          (json_int_t)t.counts.hits, "evictions", (json_int_t)t.counts.evictions,
                                          "bytes", (double)t.uploads * (double)b->layer_bytes, "step_s", step,
                                          "serial_step_s", t.serial_s / o->generate, "link_busy",
                                          t.link_s / t.seconds, "device_busy", t.device_s / t.seconds, "both_busy",
                                          t.both_s / t.seconds));
    if (!o->json)
        printf("%-10s %6d %5d %8d %8llu %8llu %9llu %10.2f %11.2f %7.2f %8.2f\n", window_strategy_name(how),
               shape.n_kept + shape.n_slots, shape.n_kept, shape.prefetch, (unsigned long long)t.counts.uses,
               (unsigned long long)t.counts.hits, (unsigned long long)t.counts.evictions, step * 1e3,
               t.serial_s / t.seconds, t.link_s / t.seconds, t.device_s / t.seconds);
    return 0;
}

static json_t *simulated(const struct bench_options *o, struct err *e)
{
    const struct bench_stream *b = &o->stream;
    const int n = b->layers, windows[] = { 4 < n ? 4 : n, n / 4, n / 2, n - n / 4 };
    json_t *rows = json_array();
    int rc = 0;
    if (!o->json)
        printf("%d layers of %.1f MB, %.3f ms each, a link of %.1f GB/s; %d step%s, simulated\n"
               "%-10s %6s %5s %8s %8s %8s %9s %10s %11s %7s %8s\n", n, (double)b->layer_bytes * 1e-6, b->layer_s * 1e3,
               (double)b->link * 1e-9, o->generate, plural(o->generate), "strategy", "window", "kept", "prefetch", "uses", "hits",
               "evictions", "ms a step", "over serial", "link", "device");
    for (int i = 0; i < 4; i++) {
        const int window = b->window ? b->window : windows[i];
        if ((b->window && i) || window < 1 || (!b->window && i && window <= windows[i - 1]))
            continue;
        for (int k = 0; rc == 0 && k < 4; k++)
            rc = simulate_row(o, rows, window, k & 1 ? WINDOW_PREFETCH : 0,
                              k & 2 ? WINDOW_SEQUENTIAL : WINDOW_ADAPTIVE);
    }
    if (rc != 0) {
        err_nomem(e, "simulation");
        json_decref(rows);
        return NULL;
    }
    return json_pack("{s:i, s:I, s:f, s:I, s:i, s:o}", "layers", n, "layer_bytes", (json_int_t)b->layer_bytes, "layer_s",
                     b->layer_s, "link_bytes_per_s", (json_int_t)b->link, "steps", o->generate, "rows", rows);
}

int bench_stream(const struct bench_options *o, const char *model)
{
    struct opened_model m;
    struct err e;
    if (model && open_model(prog, model, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    json_t *j = model ? measured(o, &m, &e) : simulated(o, &e);
    if (j && o->json)
        cli_json(j);
    json_decref(j);
    if (model)
        close_model(&m);
    return j ? cli_finish(prog) : cli_fail(prog, &e);
}

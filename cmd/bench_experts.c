/* bench_experts.c - policies for the experts of a GPU that does not hold all of them, simulated on
 * the trace of a router (zse-bench moe --trace). */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/plan/expert_time.h"

static const char prog[] = "zse-bench";

/* Sizes of random traces: layers are independent, so that a few suffice. */
enum { DRAWN_LAYERS = 4, DRAWN_TOKENS = 1024, DRAWN_TOP_K = 8 };

static int simulate_row(const struct bench_options *o, const struct router_trace *t, int n_slots,
                        enum expert_policy policy, json_t *rows, struct err *e)
{
    const struct bench_experts *b = &o->experts;
    const struct expert_rates rates = { (double)o->stream.link, (double)b->cpu, (double)b->expert_bytes,
                                        o->stream.layer_s };
    struct expert_times r;
    if (expert_simulate(t, policy, n_slots, o->batch, &rates, &r) != 0)
        return err_nomem(e, "simulation");
    const double steps = (double)((t->n_tokens + o->batch - 1) / o->batch), layers = steps * t->n_layers,
                 hit_rate = (double)r.hits / (double)r.choices, busy = r.seconds > 0 ? 1 / r.seconds : 0;
    json_array_append_new(rows, json_pack("{s:i, s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "experts", t->n_experts,
                                          "slots", n_slots, "policy", expert_policy_name(policy), "hit_rate", hit_rate,
                                          "uploads_per_layer", (double)r.uploads / layers, "computed_per_layer",
                                          (double)r.computed / layers, "step_s", r.seconds / steps, "link_busy",
                                          r.link_s * busy, "cpu_busy", r.cpu_s * busy, "both_busy", r.both_s * busy));
    if (!o->json)
        printf("%7d %6d %-9s %8.3f %11.2f %12.2f %10.3f %6.2f %6.2f %6.2f\n", t->n_experts, n_slots,
               expert_policy_name(policy), hit_rate, (double)r.uploads / layers, (double)r.computed / layers,
               r.seconds / steps * 1e3, r.link_s * busy, r.cpu_s * busy, r.both_s * busy);
    return 0;
}

static void print_heading(const struct bench_options *o)
{
    const struct bench_experts *b = &o->experts;
    if (!o->json)
        printf("%s, steps of %d token%s, experts of %.2f MB, link %.1f GB/s, CPU %.1f GB/s, %.3f ms a layer beside them; simulated\n"
               "%7s %6s %-9s %8s %11s %12s %10s %6s %6s %6s\n", b->trace, o->batch, plural(o->batch),
               (double)b->expert_bytes * 1e-6, (double)o->stream.link * 1e-9, (double)b->cpu * 1e-9,
               o->stream.layer_s * 1e3, "experts", "slots", "policy", "hits", "uploads", "on the CPU", "ms a step", "link",
               "CPU", "both");
}

/* All policies, with an eighth, a quarter, a half and three quarters of the experts on the GPU. */
static int simulate_trace(const struct bench_options *o, const struct router_trace *t, json_t *rows, struct err *e)
{
    static const int eighths[] = { 1, 2, 4, 6 };
    int rc = 0, before = 0;
    for (int i = 0; i < 4; i++) {
        const int n_slots = t->n_experts * eighths[i] / 8;
        for (int p = 0; rc == 0 && p < N_EXPERT_POLICIES && n_slots > before; p++)
            rc = simulate_row(o, t, n_slots, p, rows, e);
        before = n_slots;
    }
    return rc;
}

static int simulate_drawn(const struct bench_options *o, json_t *rows, struct err *e)
{
    int rc = 0;
    print_heading(o);
    for (int n = 64; rc == 0 && n <= 512; n *= 2) {
        struct router_trace t;
        rc = router_trace_draw(&t, DRAWN_LAYERS, n, DRAWN_TOP_K, DRAWN_TOKENS, o->experts.skew, (uint64_t)n, e);
        if (rc == 0)
            rc = simulate_trace(o, &t, rows, e);
        router_trace_release(&t);
    }
    return rc;
}

static int simulate_file(const struct bench_options *o, json_t *rows, struct err *e)
{
    struct router_trace t;
    struct map map;
    if (map_open(&map, o->experts.trace, e) != 0)
        return -1;
    int rc = router_trace_parse(&t, (const char *)map.data, map.size, o->experts.trace, e);
    if (rc == 0 && (rc = map_check(&map, e)) == 0) {
        print_heading(o);
        rc = simulate_trace(o, &t, rows, e);
    }
    router_trace_release(&t);
    map_close(&map);
    return rc;
}

int bench_experts(const struct bench_options *o)
{
    const struct bench_experts *b = &o->experts;
    json_t *rows = json_array();
    struct err e;
    const int rc = b->drawn ? simulate_drawn(o, rows, &e) : simulate_file(o, rows, &e);
    json_t *j = json_pack("{s:o, s:i, s:I, s:I, s:I, s:f, s:o}", "trace", js_text(b->trace), "batch", o->batch,
                          "expert_bytes", (json_int_t)b->expert_bytes, "link_bytes_per_s", (json_int_t)o->stream.link,
                          "cpu_bytes_per_s", (json_int_t)b->cpu, "layer_s", o->stream.layer_s, "rows", rows);
    if (rc == 0 && o->json)
        cli_json(j);
    json_decref(j);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

/* bench_speed.c - prefill, decode, first token and memory, measured on the step that zse-chat and
 * zse-serve drive too.
 *
 * A run submits the batch and steps until every sequence has its first token: that is prefill.
 * Then exactly -n steps: that is decode, each step one token for every sequence, sampling
 * (greedy) included. */
#include "cmd/zse-bench.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cmd/cli.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/rng.h"
#include "libcommon/engine/device_show.h"

static const char prog[] = "zse-bench";

struct run { double prefill_s, decode_s, first_s, total_s; };

struct heard { int n_first, bad; struct err error; };
struct voice { struct heard *all; int n; };

static void hear(void *user, const struct token_event *ev)
{
    struct voice *v = user;
    v->all->n_first += ev->id >= 0 && v->n++ == 0;
    if (ev->finish == FINISH_ERROR) {
        v->all->bad = 1;
        v->all->error = *ev->error;
    }
}

static int one_run(const struct bench_options *o, struct engine *g, const int32_t *ids, int n_ids, struct voice *voices,
                   struct request **requests, struct run *r, struct err *e)
{
    struct heard heard = { 0 };
    int rc = 1;
    uint64_t start = clock_ns(), first = 0;
    for (int i = 0; i < o->batch; i++) {
        voices[i] = (struct voice){ &heard, 0 };
        struct request_params p = { .ids = ids + i * n_ids, .n_ids = n_ids, .sampling = sampling_defaults(),
                                    .ignore_eos = 1, .n_logprobs = -1,
                                    .on_token = hear, .user = &voices[i] };
        p.sampling.temperature = 0;
        if (!(requests[i] = engine_submit(g, &p, e)))
            return -1;
    }
    while (rc > 0 && heard.n_first < o->batch) {
        rc = engine_step(g, e);
        if (heard.n_first && !first)
            first = clock_ns();
    }
    uint64_t middle = clock_ns();
    for (int i = 0; i < o->generate && rc > 0; i++)
        rc = engine_step(g, e);
    uint64_t end = clock_ns();
    if (rc < 0 || heard.bad) {
        *e = heard.error;
        return -1;
    }
    for (int i = 0; i < o->batch; i++)
        engine_cancel(g, requests[i]);
    if (engine_step(g, e) < 0)
        return -1;
    *r = (struct run){ (double)(middle - start) * 1e-9, (double)(end - middle) * 1e-9, (double)(first - start) * 1e-9,
                       (double)(end - start) * 1e-9 };
    return 0;
}

/* ---- figures ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct summary summarise(double *v, int n)
{
    struct summary s = { 0 };
    for (int i = 0; i < n; i++)
        s.mean += v[i] / n;
    qsort(v, (size_t)n, sizeof *v, ascending);
    s.min = v[0];
    s.max = v[n - 1];
    s.median = (v[(n - 1) / 2] + v[n / 2]) / 2;
    return s;
}

/* Of one field of all runs: seconds, or with an amount what was done of it a second. */
static struct summary of_runs(const struct run *runs, int n, size_t field, double amount)
{
    struct summary s = { 0 };
    double *v = malloc((size_t)n * sizeof *v);
    for (int i = 0; v && i < n; i++) {
        double seconds = *(const double *)((const char *)&runs[i] + field);
        v[i] = amount ? seconds > 0 ? amount / seconds : 0 : seconds;
    }
    if (v)
        s = summarise(v, n);
    free(v);
    return s;
}

json_t *summary_json(const struct summary *s)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "median", s->median, "mean", s->mean, "min", s->min, "max", s->max);
}

static void print_rate(const char *what, int n_tokens, const struct summary *s, double share, const char *limit)
{
    printf("%-12s %5d token%-1s   %8.1f tokens/s   (%.1f to %.1f)", what, n_tokens, plural(n_tokens), s->median, s->min,
           s->max);
    if (share > 0)
        printf(", %.2f of the limit of %s", share, limit);
    putchar('\n');
}

const char *bench_quantization(const struct opened_model *m)
{
    const json_t *q = js_get(m->json, "quantization"), *type = json_is_object(q) ? js_get(q, "type") : q;
    return json_is_string(type) ? json_string_value(type) : "unknown";
}

static int report(const struct bench_options *o, const struct opened_model *m, const struct engine *g,
                  const struct run *runs, struct err *e)
{
    struct engine_stats s;
    struct rusage usage;
    struct share share;
    engine_stats(g, &s);
    getrusage(RUSAGE_SELF, &usage);         /* before the limits are measured, which takes memory */
    if ((s.device.name ? share_init_gpu(&share, m->model, &o->run, s.device.index, e)
                       : share_init(&share, m->model, &o->run, o->run.threads, e)) != 0)
        return -1;
    double peak = (double)usage.ru_maxrss * 1024, total = 0;
    int n = o->repeats;
    const struct summary prefill = of_runs(runs, n, offsetof(struct run, prefill_s), (double)o->batch * o->prompt),
                         decode = of_runs(runs, n, offsetof(struct run, decode_s), (double)o->batch * o->generate),
                         first = of_runs(runs, n, offsetof(struct run, first_s), 0),
                         latency = of_runs(runs, n, offsetof(struct run, decode_s), 0);
    const double prefill_share = share_prefill(&share, prefill.median, 0),
                 amx_share = share_prefill(&share, prefill.median, 1),
                 kv_tokens = o->batch * (o->prompt + 1 + o->generate / 2.0),
                 decode_share = o->generate ? share_decode(&share, latency.median / o->generate, kv_tokens) : 0;
    for (int i = 0; i < n; i++)
        total += runs[i].total_s;
    uint64_t file = zfile_size(m->model->file);
    if (!o->json) {
        char a[CLI_BYTES], b[CLI_BYTES], c[CLI_BYTES], d[CLI_BYTES];
        printf("%s: %s, %s, %s; batch %d, median of %d\n", m->name, m->model->config.arch, bench_quantization(m),
               s.backend, o->batch, n);
        if (o->prompt)
            print_rate("prefill", o->batch * o->prompt, &prefill, prefill_share,
                       share.on_gpu ? "matrix units" : "vector arithmetic");
        if (o->prompt && amx_share > 0)
            printf("%-12s %38s %.2f of the limit of tiles (amx)\n", "", "", amx_share);
        if (o->generate)
            print_rate("decode", o->batch * o->generate, &decode, decode_share,
                       share.on_gpu ? "copying memory" : "reading memory");
        printf("first token  after %.1f ms (%.1f to %.1f), model opened in %.1f ms\n", first.median * 1e3,
               first.min * 1e3, first.max * 1e3, o->load_s * 1e3);
        printf("memory       %s private, %s of it keys and values; file %s, mapped; peak resident %s\n",
               cli_bytes(a, s.private_bytes), cli_bytes(b, s.kv_bytes), cli_bytes(c, file),
               cli_bytes(d, (uint64_t)peak));
        char line[DEVICE_LINE];
        device_line(line, &s, m->model->config.n_layers);
        printf("device       %s\n", line);
        if (s.device.name)
            printf("GPU memory   %s weights of %d layer%s, %s keys and values, %s workspace\n",
                   cli_bytes(a, s.device.weights), s.device.n_layers, plural(s.device.n_layers),
                   cli_bytes(b, s.device.kv), cli_bytes(c, s.device.work));
        return 0;
    }
    double generated = (double)o->batch * (o->generate + 1) * n;
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:f}", "model", m->name, "architecture",
                          m->model->config.arch, "quantization", bench_quantization(m), "device", s.backend,
                          "prompt_tokens", o->prompt, "generated_tokens", o->generate, "batch", o->batch, "repeats", n,
                          "load_s", o->load_s);
    if (o->prompt)
        json_object_set_new(j, "prefill_tokens_per_s", summary_json(&prefill));
    if (o->generate)
        json_object_set_new(j, "decode_tokens_per_s", summary_json(&decode));
    json_object_set_new(j, "first_token_s", summary_json(&first));
    json_object_set_new(j, "memory", json_pack("{s:I, s:I, s:I, s:I, s:I}", "private_bytes",
                                               (json_int_t)s.private_bytes, "kv_bytes", (json_int_t)s.kv_bytes,
                                               "weight_bytes", (json_int_t)m->model->weight_bytes, "file_bytes",
                                               (json_int_t)file, "peak_rss_bytes", (json_int_t)peak));
    /* one answer's worth, over all runs */
    json_object_set_new(j, "tokens_generated", json_integer((json_int_t)generated));
    json_object_set_new(j, "total_time_sec", json_real(total));
    json_object_set_new(j, "tokens_per_sec", json_real(generated / total));
    json_object_set_new(j, "avg_latency_ms", json_real(o->generate ? latency.mean * 1e3 / o->generate
                                                                   : first.mean * 1e3));
    json_object_set_new(j, "peak_memory_gb", json_real(peak * 1e-9));
    json_t *shares = json_object();
    if (o->prompt && (!share.on_gpu || prefill_share > 0))
        json_object_set_new(shares, "prefill", json_real(prefill_share));
    if (o->prompt && amx_share > 0)
        json_object_set_new(shares, "prefill_amx", json_real(amx_share));
    if (o->generate)
        json_object_set_new(shares, "decode", json_real(decode_share));
    json_object_set_new(j, "share", shares);
    json_object_set_new(j, "limits", share.on_gpu ? share_gpu_json(&share.gpu) : share_limits_json(&share.l));
    if (s.device.name)
        json_object_set_new(j, "gpu", json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:o}", "name",
                                                s.device.name, "layers", s.device.n_layers, "weight_bytes",
                                                (json_int_t)s.device.weights, "kv_bytes", (json_int_t)s.device.kv,
                                                "workspace_bytes", (json_int_t)s.device.work, "reserve_bytes",
                                                (json_int_t)s.device.reserve, "total_memory_bytes",
                                                (json_int_t)s.device.total, "cached_bytes", (json_int_t)s.device.cached,
                                                "cache_weights_off", s.device.cache_off, "cuda_graphs",
                                                device_graphs_json(&s.device.graphs)));
    cli_json(j);
    json_decref(j);
    return 0;
}

int bench_prefill_alone(const struct bench_options *options, const struct opened_model *m, int n, double *seconds,
                        size_t *gpu_bytes, struct err *e)
{
    struct bench_options o = *options;
    struct rng rng = { 1 };
    struct voice voice;
    struct request *request;
    struct run r;
    o.batch = 1;
    o.generate = 0;
    o.run.no_prefix_cache = 1;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    struct engine *g = ids ? open_engine(m, &o.run, 1, n + 2, 0, e) : NULL;
    int rc = g ? 0 : ids ? -1 : err_nomem(e, "prompt");
    for (int i = 0; ids && i < n; i++)
        ids[i] = (int32_t)(rng_u64(&rng) % (uint64_t)m->model->config.vocab_size);
    *seconds = 1e30;
    *gpu_bytes = 0;
    if (rc == 0) {
        struct engine_stats s;
        engine_stats(g, &s);
        *gpu_bytes = s.device.name ? s.device.weights : 0;
    }
    for (int i = 0; rc == 0 && i <= o.repeats; i++) {
        rc = one_run(&o, g, ids, n, &voice, &request, &r, e);
        if (i > 0 && r.first_s < *seconds)              /* the first one warms up */
            *seconds = r.first_s;
    }
    engine_close(g);
    free(ids);
    return rc;
}

int bench_speed(const struct bench_options *options, const char *model)
{
    struct bench_options o = *options;
    struct opened_model m;
    struct engine *g = NULL;
    struct err e;
    struct rng rng = { 1 };
    uint64_t start = clock_ns();
    int rc = -1, n_ids = o.prompt ? o.prompt : 1;
    if (open_model(prog, model, &o.run, &m, &e) != 0)
        return cli_fail(prog, &e);
    o.load_s = (double)(clock_ns() - start) * 1e-9;
    int32_t *ids = malloc((size_t)o.batch * (size_t)n_ids * sizeof *ids);
    struct voice *voices = calloc((size_t)o.batch, sizeof *voices);
    struct request **requests = calloc((size_t)o.batch, sizeof(struct request *));
    struct run *runs = calloc((size_t)o.repeats, sizeof *runs);
    if (!ids || !voices || !requests || !runs) {
        err_nomem(&e, "benchmark");
        goto done;
    }
    for (size_t i = 0; i < (size_t)o.batch * (size_t)n_ids; i++)
        ids[i] = (int32_t)(rng_u64(&rng) % (uint64_t)m.model->config.vocab_size);
    /* While the last prompts of a batch are computed the first sequences decode: room for those
     * steps too. */
    long len = (long)n_ids + o.generate + 2 + (long)(o.batch - 1) * n_ids / 256;
    if (len > context_len(&m, &o.run) && (o.run.ctx ||
                                          (m.model->config.max_len > 0 && len > m.model->config.max_len))) {
        err_set(&e, ERR_LIMIT, "-p %d -n %d -b %d: needs room for %ld tokens, expected at most the context of %d",
                o.prompt, o.generate, o.batch, len, context_len(&m, &o.run));
        goto done;
    }
    /* ... at most one for 256 tokens of prompts: so many are left of a step when every sequence
     * decodes. */
    int step = o.batch == 1 ? 0 : o.batch > 256 ? 2 * o.batch : 512;
    o.run.no_prefix_cache = 1;
    if (!(g = open_engine(&m, &o.run, o.batch, (int)len, step, &e)) ||
        engine_set_limits(g, &(struct engine_limits){ .max_running = o.batch, .chunk = INT_MAX }, &e) != 0)
        goto done;
    struct run ignored;
    rc = 0;
    for (int i = 0; i < o.warmup && rc == 0; i++)
        rc = one_run(&o, g, ids, n_ids, voices, requests, &ignored, &e);
    for (int i = 0; i < o.repeats && rc == 0; i++)
        rc = one_run(&o, g, ids, n_ids, voices, requests, &runs[i], &e);
    if (rc == 0)
        rc = report(&o, &m, g, runs, &e);
done:
    engine_close(g);
    free(runs);
    free(requests);
    free(voices);
    free(ids);
    close_model(&m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

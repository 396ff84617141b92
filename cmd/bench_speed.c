/* bench_speed.c - measure prefill, decode, time to first token and memory on the engine step that
 * zse-chat and zse-serve also run.
 *
 * A run submits the batch.  Prefill is the time until every sequence has its first token.  Decode
 * is the time of exactly -n further steps, each of which makes one token for every sequence,
 * including greedy sampling. */
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

struct speed_run { double prefill_s, decode_s, first_s, total_s; };

/* One request of a batch. */
struct sequence {
    struct run_state *run;
    struct request *request;
    int n_tokens;
};
struct run_state {
    int n_first;                        /* sequences that have their first token */
    int failed;
    struct err error;                   /* error of the last step that failed */
};

static void on_token(void *user, const struct token_event *ev)
{
    struct sequence *s = user;
    s->run->n_first += ev->id >= 0 && s->n_tokens++ == 0;
    if (ev->finish == FINISH_ERROR) {
        s->run->failed = 1;
        s->run->error = *ev->error;
    }
}

static int one_run(const struct bench_options *o, struct engine *g, const int32_t *ids, int n_ids,
                   struct sequence *sequences, struct speed_run *r, struct err *e)
{
    struct run_state p = { 0 };
    int rc = 1;
    uint64_t start = clock_ns(), first = 0;
    for (int i = 0; i < o->batch; i++) {
        struct request_params params = { .ids = ids + i * n_ids, .n_ids = n_ids, .sampling = sampling_defaults(),
                                         .ignore_eos = 1, .n_logprobs = -1,
                                         .on_token = on_token, .user = &sequences[i] };
        params.sampling.temperature = 0;
        sequences[i] = (struct sequence){ .run = &p };
        if (!(sequences[i].request = engine_submit(g, &params, e)))
            return -1;
    }
    while (rc > 0 && p.n_first < o->batch) {
        rc = engine_step(g, e);
        if (p.n_first && !first)
            first = clock_ns();
    }
    uint64_t middle = clock_ns();
    for (int i = 0; i < o->generate && rc > 0; i++)
        rc = engine_step(g, e);
    uint64_t end = clock_ns();
    if (rc < 0 || p.failed) {
        if (p.failed)
            *e = p.error;
        return -1;
    }
    for (int i = 0; i < o->batch; i++)
        engine_cancel(g, sequences[i].request);
    if (engine_step(g, e) < 0)
        return -1;
    *r = (struct speed_run){ (double)(middle - start) * 1e-9, (double)(end - middle) * 1e-9,
                             (double)(first - start) * 1e-9,
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

/* The summary of one field of all runs: of the seconds or, if amount is not 0, of the rates amount
 * / seconds. */
static struct summary of_runs(const struct speed_run *runs, int n, size_t field, double amount)
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

/* The result of all runs. */
struct speed {
    const struct bench_options *o;
    const struct opened_model *m;
    struct engine_stats engine;
    struct summary prefill, decode;         /* tokens/s of the whole batch */
    struct summary first, latency;          /* s to the first token; s of one run's decoding */
    struct work_limits share;                     /* the limits that the shares below refer to */
    double prefill_share, amx_share, decode_share;      /* fractions of the limits; 0: unknown */
    double total_s, peak_bytes;             /* all runs together; most resident memory */
    uint64_t file_bytes;
};

static int collect(struct speed *p, const struct bench_options *o, const struct opened_model *m,
                      const struct engine *g, const struct speed_run *runs, struct err *e)
{
    struct rusage usage;
    const int n = o->repeats;
    *p = (struct speed){ .o = o, .m = m, .file_bytes = zfile_size(m->model->file) };
    engine_stats(g, &p->engine);
    getrusage(RUSAGE_SELF, &usage);         /* before the limits are measured, which takes memory */
    p->peak_bytes = (double)usage.ru_maxrss * 1024;
    if ((p->engine.device.name ? share_init_gpu(&p->share, m->model, &o->run, p->engine.device.index, e)
                               : share_init(&p->share, o, m->model, &o->run, o->run.threads, e)) != 0)
        return -1;
    p->prefill = of_runs(runs, n, offsetof(struct speed_run, prefill_s), (double)o->batch * o->prompt);
    p->decode = of_runs(runs, n, offsetof(struct speed_run, decode_s), (double)o->batch * o->generate);
    p->first = of_runs(runs, n, offsetof(struct speed_run, first_s), 0);
    p->latency = of_runs(runs, n, offsetof(struct speed_run, decode_s), 0);
    p->prefill_share = share_prefill(&p->share, p->prefill.median, 0);
    p->amx_share = share_prefill(&p->share, p->prefill.median, 1);
    if (o->generate)
        p->decode_share = share_decode(&p->share, p->latency.median / o->generate,
                                       o->batch, o->prompt + 1 + o->generate / 2);
    for (int i = 0; i < n; i++)
        p->total_s += runs[i].total_s;
    return 0;
}

static void print_stream(const struct backend_stream *s)
{
    char a[CLI_BYTES];
    printf("layer window %d layers, %d of them stay; %s uploaded, %llu evictions, prefetch hits %llu of %llu\n", s->window,
           s->kept, cli_bytes(a, s->bytes), (unsigned long long)s->evictions, (unsigned long long)s->hits,
           (unsigned long long)s->uses);
}

static void print_text(const struct speed *p)
{
    const struct bench_options *o = p->o;
    const struct model *model = p->m->model;
    const struct engine_stats *s = &p->engine;
    char a[CLI_BYTES], b[CLI_BYTES], c[CLI_BYTES], d[CLI_BYTES], line[DEVICE_LINE];
    printf("%s: %s, %s, %s; batch %d, median of %d\n", p->m->name, model->config.arch, bench_quantization(p->m),
           s->backend, o->batch, o->repeats);
    if (o->prompt)
        print_rate("prefill", o->batch * o->prompt, &p->prefill, p->prefill_share,
                   p->share.on_gpu ? "matrix units" : "vector arithmetic");
    if (o->prompt && p->amx_share > 0)
        printf("%-12s %38s %.2f of the limit of tiles (amx)\n", "", "", p->amx_share);
    if (o->generate)
        print_rate("decode", o->batch * o->generate, &p->decode, p->decode_share,
                   p->share.on_gpu ? "copying memory" : "reading memory");
    printf("first token  after %.1f ms (%.1f to %.1f), model opened in %.1f ms\n", p->first.median * 1e3,
           p->first.min * 1e3, p->first.max * 1e3, o->load_s * 1e3);
    printf("memory       %s private, %s of it keys and values; file %s, mapped; peak resident %s\n",
           cli_bytes(a, s->private_bytes), cli_bytes(b, s->kv_bytes), cli_bytes(c, p->file_bytes),
           cli_bytes(d, (uint64_t)p->peak_bytes));
    device_line(line, s, model->config.n_layers);
    printf("device       %s\n", line);
    if (s->device.name)
        printf("GPU memory   %s weights of %d layer%s, %s keys and values, %s workspace\n",
               cli_bytes(a, s->device.weights), s->device.n_layers, plural(s->device.n_layers),
               cli_bytes(b, s->device.kv), cli_bytes(c, s->device.work));
    for (int i = 0; i < s->device.n_ranks && s->device.n_ranks > 1; i++)
        printf("GPU %-2d       %d layer%s, %s weights, %s keys and values\n", s->device.ranks[i].index,
               s->device.ranks[i].n_layers, plural(s->device.ranks[i].n_layers),
               cli_bytes(a, s->device.ranks[i].weights), cli_bytes(b, s->device.ranks[i].kv));
    if (s->device.stream.window)
        print_stream(&s->device.stream);
}

static json_t *gpu_json(const struct engine_stats *s)
{
    return json_pack("{s:s, s:b, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:o, s:o, s:o, s:o}", "name", s->device.name,
                     "tensor_parallel", s->device.tp, "layers", s->device.n_layers,
                     "experts", s->device.n_experts, "weight_bytes", (json_int_t)s->device.weights, "kv_bytes",
                     (json_int_t)s->device.kv, "workspace_bytes", (json_int_t)s->device.work, "reserve_bytes",
                     (json_int_t)s->device.reserve, "taken_bytes", (json_int_t)s->device.taken,
                     "total_memory_bytes", (json_int_t)s->device.total, "cached_bytes",
                     (json_int_t)s->device.cached, "cache_weights_off", s->device.cache_off, "cuda_graphs",
                     device_graphs_json(&s->device.graphs), "expert_use", device_experts_json(&s->device), "stream",
                     device_stream_json(&s->device.stream), "gpus", device_ranks_json(&s->device));
}

static json_t *shares_json(const struct speed *p)
{
    json_t *j = json_object();
    if (p->o->prompt && (!p->share.on_gpu || p->prefill_share > 0))
        json_object_set_new(j, "prefill", json_real(p->prefill_share));
    if (p->o->prompt && p->amx_share > 0)
        json_object_set_new(j, "prefill_amx", json_real(p->amx_share));
    if (p->o->generate)
        json_object_set_new(j, "decode", json_real(p->decode_share));
    return j;
}

static void print_json(const struct speed *p)
{
    const struct bench_options *o = p->o;
    const struct model *model = p->m->model;
    const struct engine_stats *s = &p->engine;
    const double generated = (double)o->batch * (o->generate + 1) * o->repeats,
                 latency_s = o->generate ? p->latency.mean / o->generate : p->first.mean;
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:f}", "model", p->m->name, "architecture",
                          model->config.arch, "quantization", bench_quantization(p->m), "device", s->backend,
                          "prompt_tokens", o->prompt, "generated_tokens", o->generate, "batch", o->batch, "repeats",
                          o->repeats, "load_s", o->load_s);
    if (o->prompt)
        json_object_set_new(j, "prefill_tokens_per_s", summary_json(&p->prefill));
    if (o->generate)
        json_object_set_new(j, "decode_tokens_per_s", summary_json(&p->decode));
    json_object_set_new(j, "first_token_s", summary_json(&p->first));
    json_object_set_new(j, "memory", json_pack("{s:I, s:I, s:I, s:I, s:I}", "private_bytes",
                                               (json_int_t)s->private_bytes, "kv_bytes", (json_int_t)s->kv_bytes,
                                               "weight_bytes", (json_int_t)model->weight_bytes, "file_bytes",
                                               (json_int_t)p->file_bytes, "peak_rss_bytes",
                                               (json_int_t)p->peak_bytes));
    /* totals over all runs */
    json_object_set_new(j, "tokens_generated", json_integer((json_int_t)generated));
    json_object_set_new(j, "total_time_sec", json_real(p->total_s));
    json_object_set_new(j, "tokens_per_sec", json_real(generated / p->total_s));
    json_object_set_new(j, "avg_latency_ms", json_real(latency_s * 1e3));
    json_object_set_new(j, "peak_memory_gb", json_real(p->peak_bytes * 1e-9));
    json_object_set_new(j, "share", shares_json(p));
    json_object_set_new(j, "limits", p->share.on_gpu ? share_gpu_json(&p->share.gpu) : share_limits_json(&p->share.l));
    if (s->device.name)
        json_object_set_new(j, "gpu", gpu_json(s));
    cli_json(j);
    json_decref(j);
}

/* Random prompts of the whole batch; NULL without memory.  Caller frees. */
static int32_t *random_prompts(size_t n, int vocab_size)
{
    struct rng rng = { 1 };
    int32_t *ids = malloc(n * sizeof *ids);
    for (size_t i = 0; ids && i < n; i++)
        ids[i] = (int32_t)(rng_u64(&rng) % (uint64_t)vocab_size);
    return ids;
}

static uint64_t uploaded_bytes(const struct engine *g)
{
    struct engine_stats s;
    engine_stats(g, &s);
    const struct backend_experts *x = &s.device.experts;
    return s.device.name ? s.device.stream.bytes + x->streamed_bytes + x->moved_bytes + x->uploaded_bytes : 0;
}

int bench_prefill_alone(const struct bench_options *options, const struct opened_model *m, int n,
                        struct prefill_cost *cost, struct err *e)
{
    struct bench_options o = *options;
    struct sequence sequence;
    struct speed_run r;
    o.batch = 1;
    o.generate = 0;
    o.run.no_prefix_cache = 1;
    int32_t *ids = random_prompts((size_t)n, m->model->config.vocab_size);
    struct engine *g = ids ? open_engine(m, &o.run, 1, n + 2, 0, e) : NULL;
    int rc = g ? 0 : ids ? -1 : err_nomem(e, "prompt");
    uint64_t before = 0;
    *cost = (struct prefill_cost){ .seconds = 1e30 };
    if (rc == 0) {
        struct engine_stats s;
        engine_stats(g, &s);
        cost->gpu_bytes = s.device.name ? s.device.weights : 0;
    }
    for (int i = 0; rc == 0 && i <= o.repeats; i++) {
        before = i == 1 ? uploaded_bytes(g) : before;
        rc = one_run(&o, g, ids, n, &sequence, &r, e);
        if (i > 0 && r.first_s < cost->seconds)         /* the first run warms up */
            cost->seconds = r.first_s;
    }
    if (rc == 0)
        cost->uploaded = (uploaded_bytes(g) - before) / (uint64_t)o.repeats;
    engine_close(g);
    free(ids);
    return rc;
}

/* An engine for prompts of n_ids tokens; NULL with *e. */
static struct engine *open_for(const struct bench_options *o, const struct opened_model *m, int n_ids, struct err *e)
{
    const int max_len = m->model->config.max_len;
    /* A full step has room for 256 tokens of prompts beside the sequences that decode.  So the
     * prompts of the other sequences take (batch - 1) * n_ids / 256 steps, in which the first
     * sequence decodes. */
    const long len = (long)n_ids + o->generate + 2 + (long)(o->batch - 1) * n_ids / 256;
    const int step = o->batch == 1 ? 0 : o->batch > 256 ? 2 * o->batch : 512;
    if (len > context_len(m, &o->run) && (o->run.ctx || (max_len > 0 && len > max_len))) {
        err_set(e, ERR_LIMIT, "-p %d -n %d -b %d: needs room for %ld tokens, expected at most the context of %d",
                o->prompt, o->generate, o->batch, len, context_len(m, &o->run));
        return NULL;
    }
    struct engine *g = open_engine(m, &o->run, o->batch, (int)len, step, e);
    if (g && engine_set_limits(g, &(struct engine_limits){ .max_running = o->batch, .chunk = INT_MAX }, e) != 0) {
        engine_close(g);
        return NULL;
    }
    return g;
}

int bench_speed(const struct bench_options *options, const char *model)
{
    struct bench_options o = *options;
    struct opened_model m;
    struct engine *g = NULL;
    struct err e;
    struct speed_run ignored;
    struct speed speed;
    const uint64_t start = clock_ns();
    const int n_ids = o.prompt ? o.prompt : 1;
    int rc = -1;
    if (open_model(prog, model, &o.run, &m, &e) != 0)
        return cli_fail(prog, &e);
    o.load_s = (double)(clock_ns() - start) * 1e-9;
    int32_t *ids = random_prompts((size_t)o.batch * (size_t)n_ids, m.model->config.vocab_size);
    struct sequence *sequences = calloc((size_t)o.batch, sizeof *sequences);
    struct speed_run *runs = calloc((size_t)o.repeats, sizeof *runs);
    o.run.no_prefix_cache = 1;
    if (!ids || !sequences || !runs) {
        err_nomem(&e, "benchmark");
        goto done;
    }
    if (!(g = open_for(&o, &m, n_ids, &e)))
        goto done;
    rc = 0;
    for (int i = 0; i < o.warmup && rc == 0; i++)
        rc = one_run(&o, g, ids, n_ids, sequences, &ignored, &e);
    for (int i = 0; i < o.repeats && rc == 0; i++)
        rc = one_run(&o, g, ids, n_ids, sequences, &runs[i], &e);
    if (rc == 0 && (rc = collect(&speed, &o, &m, g, runs, &e)) == 0) {
        if (o.json)
            print_json(&speed);
        else
            print_text(&speed);
    }
done:
    engine_close(g);
    free(runs);
    free(sequences);
    free(ids);
    close_model(&m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

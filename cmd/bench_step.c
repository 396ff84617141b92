/* bench_step.c - measure the cost of one step: with several sequences, a long context, more
 * threads, or experts.
 *
 * Steps go to the backend directly, without scheduler and sampling.  A context is made by copying
 * one block of real keys and values, so that no long prompt has to be computed first.  The rows of
 * a table are measured in turn, --repeats times, and the median of each counts. */
#include "cmd/zse-bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/plot.h"
#include "cmd/preflight_convert.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"
#include "libcommon/base/pool.h"
#include "libcommon/base/rng.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/format/zfile.h"

static const char prog[] = "zse-bench";

enum { STEPS = 4 };                     /* steps per measurement */

/* Sequences of context_len tokens in a backend of their own. */
struct stepper {
    const struct model *m;
    void *b;
    int context, blocks_each;
    int32_t *ids, *table;               /* [max_tokens], [n_seqs * blocks_each] */
    struct batch_item *items;           /* [n_seqs] */
    float *logits;                      /* [n_seqs, vocab_size] */
};

static void stepper_close(struct stepper *s)
{
    if (s->b)
        backend_cpu.close(s->b);
    free(s->ids);
    free(s->table);
    free(s->items);
    free(s->logits);
    *s = (struct stepper){ 0 };
}

/* Run one step.  Fails if pages of the weights could not be read. */
static int forward(struct stepper *s, const struct batch *batch, struct err *e)
{
    return backend_cpu.forward(s->b, batch, s->logits, e) != 0 || map_check(zfile_map(s->m->file), e) != 0 ? -1 : 0;
}

static int check_context(const struct config *c, int context, struct err *e)
{
    if (c->max_len > 0 && context + 1 > c->max_len)
        return err_set(e, ERR_LIMIT, "a context of %d token%s and one more, expected at most the model's %d", context,
                       plural(context), c->max_len);
    return 0;
}

static int stepper_open(struct stepper *s, const struct model *m, const struct run_options *r, int n_seqs, int context,
                        int max_tokens, struct err *e)
{
    struct rng rng = { 1 };
    *s = (struct stepper){ .m = m, .context = context, .blocks_each = (context + 1 + KV_BLOCK - 1) / KV_BLOCK };
    const size_t vocab = (size_t)m->config.vocab_size;
    if (r->gpu && r->device)
        return err_set(e, ERR_UNSUPPORTED, "--device %s: these figures are shares of the CPU's limits; scripts/gpu-check measures GPUs", r->device);
    max_tokens = max_tokens < KV_BLOCK ? KV_BLOCK : max_tokens;
    max_tokens = max_tokens < n_seqs ? n_seqs : max_tokens;
    const int n_blocks = n_seqs * s->blocks_each, tail = config_tail(&m->config, r->kv, 0),
              in_tail = kv_tail_from(context), in_window = context - tail + 1,
              seen = in_tail < in_window ? in_tail : in_window;
    const struct backend_options o = { .n_threads = r->threads, .kv = r->kv, .n_blocks = n_blocks,
                                       .n_window_blocks = tail ? n_blocks : 0,
                                       .pages = r->pages, .pattern = r->pattern, .n_states = n_seqs,
                                       .max_tokens = max_tokens, .max_logits = n_seqs,
                                       .exact = r->exact, .kernels = r->kernels, .max_weights = (size_t)r->max_memory };
    if (check_context(&m->config, context, e) != 0)
        return -1;
    s->ids = malloc((size_t)max_tokens * sizeof *s->ids);
    s->table = malloc((size_t)n_blocks * sizeof *s->table);
    s->items = calloc((size_t)n_seqs, sizeof *s->items);
    s->logits = malloc((size_t)n_seqs * vocab * sizeof *s->logits);
    int rc = s->ids && s->table && s->items && s->logits ? 0 : err_nomem(e, "benchmark");
    if (rc == 0 && !(s->b = backend_cpu.open(m, &o, e)))
        rc = -1;
    for (int i = 0; rc == 0 && i < max_tokens; i++)
        s->ids[i] = (int32_t)(rng_u64(&rng) % vocab);
    for (int i = 0; rc == 0 && i < n_blocks; i++)
        s->table[i] = i;
    const struct batch first = { &(struct batch_item){ .tokens = s->ids, .n_tokens = KV_BLOCK, .table = s->table,
                                                       .window_table = s->table }, 1 };
    if (rc == 0 && context > 0)
        rc = forward(s, &first, e);
    for (int i = 1; rc == 0 && context > 0 && i < n_blocks; i++) {
        const int at = i % s->blocks_each * KV_BLOCK;
        rc = backend_cpu.copy_block(s->b, 0, i, e);
        if (rc == 0 && tail && (at < KV_SINKS || at >= seen))
            rc = backend_cpu.copy_block(s->b, n_blocks, n_blocks + i, e);
    }
    if (rc != 0)
        stepper_close(s);
    return rc;
}

/* Mean seconds of one step: the next token of n_seqs sequences, or (n_tokens > 0) a prompt of
 * n_tokens. */
static int stepper_time(struct stepper *s, int n_seqs, int n_tokens, double *seconds, struct err *e)
{
    for (int i = 0; i < n_seqs; i++)
        s->items[i] = (struct batch_item){ .tokens = s->ids + i, .n_tokens = 1, .pos = s->context, .table = s->table +
                                           (size_t)i * (size_t)s->blocks_each, .window_table = s->table +
                                           (size_t)i * (size_t)s->blocks_each, .state = i, .n_logits = 1 };
    if (n_tokens)
        s->items[0] = (struct batch_item){ .tokens = s->ids, .n_tokens = n_tokens, .table = s->table,
                                           .window_table = s->table, .n_logits = 1 };
    const int steps = n_tokens ? 1 : STEPS;
    const uint64_t start = clock_ns();
    for (int i = 0; i < steps; i++)
        if (forward(s, &(struct batch){ s->items, n_seqs }, e) != 0)
            return -1;
    *seconds = (double)(clock_ns() - start) * 1e-9 / steps;
    return 0;
}

/* ---- tables ---- */

struct row {
    struct stepper *s;
    int n_seqs, n_tokens;
    double *seconds;                    /* [repeats] */
    double median;
};

/* Measure every row once to warm up, which is not recorded, then `repeats` times in turn. */
static int measure_rows(struct row *rows, int n, int repeats, struct err *e)
{
    double *room = calloc((size_t)n * (size_t)repeats, sizeof *room), ignored;
    int rc = room ? 0 : err_nomem(e, "benchmark");
    for (int k = -1; rc == 0 && k < repeats; k++) {
        for (int i = 0; rc == 0 && i < n; i++) {
            rows[i].seconds = room + (size_t)i * (size_t)repeats;
            rc = stepper_time(rows[i].s, rows[i].n_seqs, rows[i].n_tokens, k < 0 ? &ignored : &rows[i].seconds[k], e);
        }
    }
    for (int i = 0; rc == 0 && i < n; i++)
        rows[i].median = summarise(rows[i].seconds, repeats).median;
    free(room);
    return rc;
}

/* The members with which every table's JSON begins. */
static json_t *table_json(const struct bench_options *o, const struct opened_model *m, const char *device,
                          const struct roofline *l)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:o, s:[]}", "model", m->name, "architecture", m->model->config.arch,
                     "quantization", bench_quantization(m), "device", device, "repeats", o->repeats, "limits",
                     share_limits_json(l), "rows");
}

static void table_title(const struct bench_options *o, const struct opened_model *m, const char *device)
{
    printf("%s: %s, %s, %s; median of %d\n", m->name, m->model->config.arch, bench_quantization(m), device, o->repeats);
}

/* Write a picture of the table: a bar for each row that describe() describes, for --svg. */
static int table_plot(const struct bench_options *o, const json_t *j, const char *note,
                      json_t *(*describe)(const json_t *row), struct err *e)
{
    json_t *plot = json_pack("{s:s, s:s, s:[]}", "title", json_string_value(json_object_get(j, "model")), "note", note,
                             "bars"), *row;
    size_t i;
    json_array_foreach(json_object_get(j, "rows"), i, row)
        json_array_append_new(json_object_get(plot, "bars"), describe(row));
    const int rc = plot_write(plot, o->svg, e);
    json_decref(plot);
    return rc;
}

static double number(const json_t *row, const char *key) { return json_number_value(json_object_get(row, key)); }

static int finish(const struct bench_options *o, json_t *j, struct opened_model *m, int rc, const struct err *e)
{
    if (rc == 0 && o->json)
        cli_json(j);
    json_decref(j);
    close_model(m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, e);
}

/* ---- zse-bench batch ---- */

static json_t *batch_bar(const json_t *row)
{
    char label[32], text[64];
    const int n = (int)number(row, "batch");
    snprintf(label, sizeof label, "%d sequence%s", n, plural(n));
    snprintf(text, sizeof text, "%.1f (%.2f of reads)", number(row, "tokens_per_s"), number(row, "share"));
    return json_pack("{s:s, s:f, s:s}", "label", label, "value", number(row, "tokens_per_s"), "text", text);
}

int bench_batch(const struct bench_options *o, const char *model)
{
    struct opened_model m;
    struct stepper s = { 0 };
    struct work_limits share;
    struct err e;
    struct row rows[32];
    json_t *j = NULL;
    int n = 0;
    if (open_model(prog, model, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    int rc = stepper_open(&s, m.model, &o->run, o->batch, o->prompt, 0, &e);
    for (int b = 1; b < o->batch; b *= 2)
        rows[n++] = (struct row){ .s = &s, .n_seqs = b };
    rows[n++] = (struct row){ .s = &s, .n_seqs = o->batch };
    if (rc == 0 && (rc = measure_rows(rows, n, o->repeats, &e)) == 0 &&
        (rc = share_init(&share, o, m.model, &o->run, o->run.threads, &e)) == 0) {
        j = table_json(o, &m, backend_cpu.describe(s.b), &share.l);
        json_object_set_new(j, "context", json_integer(o->prompt));
        if (!o->json) {
            table_title(o, &m, backend_cpu.describe(s.b));
            printf("%10s %12s %12s %10s %14s   at context %d\n", "sequences", "ms a step", "tokens/s", "ratio to 1",
                   "share of reads", o->prompt);
        }
        for (int i = 0; i < n; i++) {
            const double t = rows[i].median, ratio = t / rows[0].median,
                         of = share_decode(&share, t, rows[i].n_seqs, o->prompt + 1);
            if (!o->json)
                printf("%10d %12.3f %12.1f %10.2f %14.2f\n", rows[i].n_seqs, t * 1e3, rows[i].n_seqs / t, ratio, of);
            json_array_append_new(json_object_get(j, "rows"),
                                  json_pack("{s:i, s:f, s:f, s:f, s:f}", "batch", rows[i].n_seqs, "step_s", t,
                                            "tokens_per_s", rows[i].n_seqs / t, "ratio", ratio, "share", of));
        }
    }
    if (rc == 0 && o->svg)
        rc = table_plot(o, j, "tokens a second of all sequences", batch_bar, &e);
    stepper_close(&s);
    return finish(o, j, &m, rc, &e);
}

/* ---- zse-bench moe ---- */

/* Mean over the layers: the number of experts that got tokens, the tokens of the busiest expert
 * relative to the mean of all, and the number of tokens. */
struct use { double layers, distinct, most, tokens; };

static struct use count_use(const struct config *c, const unsigned *counts)
{
    struct use u = { 0 };
    for (int l = 0; l < c->n_layers; l++) {
        unsigned most = 0, sum = 0;
        if (c->ff[l] != FF_MOE)
            continue;
        for (int i = 0; i < c->moe.n_experts; i++) {
            const unsigned n = counts[(size_t)l * (size_t)c->moe.n_experts + (size_t)i];
            u.distinct += n > 0;
            sum += n;
            most = n > most ? n : most;
        }
        u.layers++;
        u.most += sum ? (double)most * c->moe.n_experts / sum : 0;
        u.tokens += (double)sum / c->moe.top_k;
    }
    u.distinct /= u.layers;
    u.most /= u.layers;
    u.tokens /= u.layers;
    return u;
}

/* Experts read from the file during some steps, and the time of those steps. */
struct disk_reads { struct cpu_streamed d; double seconds; int steps; };

static struct cpu_streamed streamed_since(struct stepper *s, const struct cpu_streamed *b)
{
    struct cpu_streamed a;
    cpu_streamed(s->b, &a);
    return (struct cpu_streamed){ a.max_bytes, a.wanted - b->wanted, a.there - b->there, a.guessed - b->guessed,
                                  a.guessed_right - b->guessed_right, a.bytes - b->bytes, a.read_ns - b->read_ns };
}

static double of(uint64_t part, uint64_t all) { return all ? (double)part / (double)all : 0; }

static json_t *disk_json(const struct disk_reads *k)
{
    const struct cpu_streamed *d = &k->d;
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "experts_max_bytes", (json_int_t)d->max_bytes, "there",
                     of(d->there, d->wanted), "guesses_right", of(d->guessed_right, d->guessed),
                     "bytes_per_step", (double)d->bytes / k->steps, "bytes_per_s", (double)d->bytes / k->seconds,
                     "bytes_per_s_reading", d->read_ns ? (double)d->bytes / (double)d->read_ns * 1e9 : 0);
}

static void disk_print(const json_t *j)
{
    const char *const keys[] = { "there", "guesses_right", "bytes_per_step", "bytes_per_s", "bytes_per_s_reading" };
    double v[5];
    for (int i = 0; i < 5; i++)
        v[i] = json_number_value(json_object_get(j, keys[i]));
    printf("%10s %.0f %% of the experts were in memory; %.0f MB a step from the file, %.2f GB/s, %.2f while it was read; %.0f %% of the guesses were right\n", "", 100 * v[0], v[2] * 1e-6,
           v[3] * 1e-9, v[4] * 1e-9, 100 * v[1]);
}

/* Median seconds of a step of n_seqs sequences, with new tokens each time, and the mean number of
 * experts that a layer read. */
static int moe_steps(struct stepper *s, int n_seqs, int repeats, double *seconds, double *distinct,
                     struct disk_reads *disk, struct err *e)
{
    struct cpu_streamed before = { 0 };
    double *times = malloc((size_t)repeats * STEPS * sizeof *times);
    struct rng rng = { 5 };
    int n = 0, rc = times ? 0 : err_nomem(e, "benchmark");
    *distinct = 0;
    *disk = (struct disk_reads){ .steps = repeats * STEPS };
    for (int i = -1; rc == 0 && i < repeats * STEPS; i++) {
        const unsigned *counts = cpu_count_experts(s->b, e);
        if (i == 0)
            cpu_streamed(s->b, &before);
        for (int k = 0; k < n_seqs; k++) {
            s->ids[k] = (int32_t)(rng_u64(&rng) % (uint64_t)s->m->config.vocab_size);
            s->items[k] = (struct batch_item){ .tokens = s->ids + k, .n_tokens = 1, .pos = s->context,
                                               .table = s->table + (size_t)k * (size_t)s->blocks_each, .state = k,
                                               .n_logits = 1 };
        }
        const uint64_t start = clock_ns();
        rc = counts ? forward(s, &(struct batch){ s->items, n_seqs }, e) : -1;
        if (rc == 0 && i >= 0) {
            times[n++] = (double)(clock_ns() - start) * 1e-9;
            disk->seconds += times[n - 1];
            *distinct += count_use(&s->m->config, counts).distinct / (repeats * STEPS);
        }
    }
    if (rc == 0)
        *seconds = summarise(times, n).median;
    disk->d = streamed_since(s, &before);
    free(times);
    return rc;
}

/* Seconds of an expert for one token: alone, and with the other experts of the token. */
struct expert_cost { double alone_s, together_s; };

/* Run experts of all layers for one token, n at a time, each with other ones than the last time.
 * Returns the mean seconds of an expert. */
static double run_experts(void *b, const struct config *c, int n, const float *x, int32_t *id, const float *weight,
                          float *out)
{
    enum { ROUNDS = 4 };
    int count = 0, next = 0;
    const uint64_t start = clock_ns();
    for (int round = 0; round < ROUNDS; round++)
        for (int layer = 0; layer < c->n_layers; layer++) {
            if (c->ff[layer] != FF_MOE)
                continue;
            for (int k = 0; k < c->moe.top_k; k++)
                id[k] = k < n ? (next + k) % c->moe.n_experts : -1;
            next = (next + n) % c->moe.n_experts;
            count += cpu_experts_run(b, layer, x, id, weight, 1, out);
        }
    return (double)(clock_ns() - start) * 1e-9 / count;
}

static int measure_experts(const struct bench_options *o, const struct model *m, struct expert_cost *cost,
                           struct err *e)
{
    const struct config *c = &m->config;
    const struct backend_options bo = { .n_threads = o->run.threads, .kv = o->run.kv, .n_blocks = 1, .max_tokens = 1,
                                        .max_logits = 1, .exact = o->run.exact, .kernels = o->run.kernels };
    const size_t hidden = (size_t)config_expert_width(c), top_k = (size_t)c->moe.top_k;
    float *x = malloc((hidden + top_k + top_k * hidden) * sizeof *x);
    int32_t *id = malloc(top_k * sizeof *id);
    double *alone = malloc(2 * (size_t)o->repeats * sizeof *alone), *together = alone ? alone + o->repeats : NULL;
    void *b = x && id && alone ? cpu_first_open(m, &bo, 0, 1, e) : NULL;
    const int rc = b ? 0 : x && id && alone ? -1 : err_nomem(e, "benchmark");
    struct rng rng = { 7 };
    for (size_t i = 0; rc == 0 && i < hidden + top_k; i++)
        x[i] = i < hidden ? (float)(rng_double(&rng) - 0.5) : 1;
    for (int i = -1; rc == 0 && i < o->repeats; i++) {      /* the first round warms up */
        const double one = run_experts(b, c, 1, x, id, x + hidden, x + hidden + top_k),
                     all = run_experts(b, c, c->moe.top_k, x, id, x + hidden, x + hidden + top_k);
        if (i >= 0)
            alone[i] = one, together[i] = all;
    }
    if (rc == 0)
        *cost = (struct expert_cost){ summarise(alone, o->repeats).median, summarise(together, o->repeats).median };
    if (b)
        backend_cpu.close(b);
    free(x);
    free(id);
    free(alone);
    return rc;
}

/* Measure experts by themselves, and add the figures to *j.  Not with a bound on memory, which they
 * would not keep. */
static int add_experts(const struct bench_options *o, const struct model *m, const struct work_limits *share, json_t *j,
                       struct err *e)
{
    struct expert_cost cost = { 0 };
    int n_layers = 0;
    if (o->run.max_memory)
        return 0;
    if (measure_experts(o, m, &cost, e) != 0)
        return -1;
    for (int i = 0; i < m->config.n_layers; i++)
        n_layers += m->config.ff[i] == FF_MOE;
    const double bytes = share->expert_bytes / n_layers / m->config.moe.top_k;
    json_object_set_new(j, "expert", json_pack("{s:f, s:f, s:f}", "bytes", bytes, "alone_s", cost.alone_s, "together_s",
                                               cost.together_s));
    if (!o->json)
        printf("an expert of %.2f MB takes %.3f ms for one token, with all %d of the token %.3f ms (%.2f GB/s)\n",
               bytes * 1e-6, cost.alone_s * 1e3, m->config.moe.top_k, cost.together_s * 1e3,
               bytes / cost.together_s * 1e-9);
    return 0;
}

int bench_moe(const struct bench_options *o, const char *model)
{
    struct opened_model m;
    struct stepper s = { 0 };
    struct work_limits share;
    struct err e;
    json_t *j = NULL;
    double prompt_s = 0;
    if (open_model(prog, model, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    const struct config *c = &m.model->config;
    const int prompt = c->max_len > 0 && c->max_len <= 512 ? c->max_len - 1 : 512;
    int rc = c->moe.n_experts ? 0 : err_set(&e, ERR_UNSUPPORTED, "%s: %s has no experts", m.name, c->arch);
    if (rc == 0)
        rc = stepper_open(&s, m.model, &o->run, o->batch, o->prompt > prompt ? o->prompt : prompt, prompt, &e);
    s.context = o->prompt;
    const unsigned *counts = rc == 0 ? cpu_count_experts(s.b, &e) : NULL;
    if (rc == 0 && (!counts || stepper_time(&s, 1, prompt, &prompt_s, &e) != 0 ||
                    share_init(&share, o, m.model, &o->run, o->run.threads, &e) != 0))
        rc = -1;
    if (rc == 0) {
        const struct use u = count_use(c, counts);
        j = table_json(o, &m, backend_cpu.describe(s.b), &share.l);
        json_object_update_new(j, json_pack("{s:i, s:i, s:i, s:f, s:{s:f, s:f, s:f}}", "context", o->prompt, "experts",
                                            c->moe.n_experts, "experts_per_token", c->moe.top_k, "bytes_per_token",
                                            share.weight_bytes, "use", "tokens", u.tokens, "used",
                                            u.distinct / c->moe.n_experts, "most", u.most));
        if (!o->json) {
            table_title(o, &m, backend_cpu.describe(s.b));
            printf("%d of %d experts a token, %.3f GB of weights a token\n", c->moe.top_k, c->moe.n_experts,
                   share.weight_bytes * 1e-9);
            printf("%.0f tokens at once use %.0f %% of the experts, the busiest of a layer got %.1f times the mean\n",
                   u.tokens, 100 * u.distinct / c->moe.n_experts, u.most);
        }
        rc = add_experts(o, m.model, &share, j, &e);
        if (rc == 0 && !o->json) {
            printf("%10s %12s %12s %14s %12s %14s   at context %d\n", "sequences", "ms a step", "tokens/s",
                   "experts/layer", "GB a step", "share of reads", o->prompt);
        }
    }
    for (int b = 1; rc == 0 && b <= o->batch; b *= 2) {
        struct disk_reads disk;
        double t = 0, distinct;
        rc = moe_steps(&s, b, o->repeats, &t, &distinct, &disk, &e);
        const double bytes = share.weight_bytes + share.expert_bytes * (distinct / c->moe.top_k - 1),
                     reads = rc == 0 ? bytes / t / share.l.read[1] : 0;
        if (rc == 0 && !o->json)
            printf("%10d %12.3f %12.1f %14.1f %12.3f %14.2f\n", b, t * 1e3, b / t, distinct, bytes * 1e-9, reads);
        if (rc == 0)
            json_array_append_new(json_object_get(j, "rows"),
                                  json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "batch", b, "step_s", t, "tokens_per_s",
                                            b / t, "experts_per_layer", distinct, "bytes", bytes, "share", reads));
        if (rc == 0 && disk.d.max_bytes) {
            json_t *d = disk_json(&disk), *rows = json_object_get(j, "rows");
            if (!o->json)
                disk_print(d);
            json_object_set_new(json_array_get(rows, json_array_size(rows) - 1), "file", d);
        }
    }
    stepper_close(&s);
    return finish(o, j, &m, rc, &e);
}

/* ---- zse-bench kv ---- */

/* The types to compare, unless --kv names one; speed and bytes are relative to the first. */
static const struct kv_types kv_list[] = { { KV_F16, KV_F16 }, { KV_I8, KV_I8 }, { KV_I8, KV_I4 }, { KV_I4, KV_I4 },
                                          { KV_T2, KV_T2 } };
enum { N_KV = sizeof kv_list / sizeof *kv_list };

enum { VARIANT_TEXT = KV_TEXT + ATTENTION_TEXT };

/* The types to compare in this model; with pages or a pattern, the given types read
 * as a whole, and so. */
static int choose_kv(const struct bench_options *o, const struct config *c, struct kv_variant *kv)
{
    const int is_sparse = o->run.pages || o->run.pattern.unit;
    int n = 0;
    for (int k = 0; k < N_KV && !is_sparse; k++)
        if (k == 0 || (!o->run.kv_given && !config_kv_problem(c, kv_list[k])))
            kv[n++].kv = kv_list[k];
    if (o->run.kv_given || is_sparse)
        kv[n++].kv = o->run.kv;
    if (is_sparse)
        kv[n++] = (struct kv_variant){ o->run.kv, o->run.pages, o->run.pattern };
    return n;
}

/* "k=i8,v=i4", "f16 pages:64", "f16 blocks:8+2". */
static const char *variant_text(const struct kv_variant *v, char out[VARIANT_TEXT])
{
    const struct run_options r = { .pages = v->pages, .pattern = v->pattern };
    char types[KV_TEXT], way[ATTENTION_TEXT];
    snprintf(out, VARIANT_TEXT, v->pages || v->pattern.unit ? "%s %s" : "%s", kv_text(v->kv, types),
             run_attention_text(&r, way));
    return out;
}

static json_t *kv_bar(const json_t *row)
{
    char group[48], text[64];
    snprintf(group, sizeof group, "context %d", (int)number(row, "context"));
    snprintf(text, sizeof text, "%.2f (%.2f of the bytes)", number(row, "speed_over_f16"), number(row, "bytes_over_f16"));
    return json_pack("{s:s, s:O, s:f, s:s}", "group", group, "label", json_object_get(row, "kv"), "value",
                     number(row, "speed_over_f16"), "text", text);
}

static void print_kv_row(const json_t *row, int has_text)
{
    char read[CLI_BYTES];
    printf("%10" PRId64 " %13s %12.3f %12.1f %14s %12.3f %12.2f %14.2f", (int64_t)number(row, "context"),
           json_string_value(json_object_get(row, "kv")), number(row, "step_s") * 1e3,
           number(row, "tokens_per_s"), cli_bytes(read, (uint64_t)(int64_t)number(row, "kv_bytes")),
           number(row, "bytes_over_f16"), number(row, "speed_over_f16"), number(row, "share"));
    if (has_text)
        printf(" %12.6f", number(row, "kl_mean"));
    putchar('\n');
}

int bench_kv(const struct bench_options *o, const char *model, const char *text)
{
    struct opened_model m;
    struct stepper s[N_KV * BENCH_LIST] = { 0 };
    struct row rows[N_KV * BENCH_LIST];
    double kl[N_KV * BENCH_LIST] = { 0 };
    struct kv_variant kv[N_KV] = { 0 };
    static const int defaults[3] = { 128, 4096, 8192 };
    struct run_options run = o->run;
    struct work_limits share;
    struct err e;
    json_t *j = NULL;
    int n = 0, rc = 0;
    if (open_model(prog, model, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    struct bench_list contexts = o->contexts;
    if (contexts.n == 0)
        for (int i = 0; i < 3; i++)
            if (m.model->config.max_len <= 0 || defaults[i] < m.model->config.max_len)
                contexts.v[contexts.n++] = defaults[i];
    if (contexts.n == 0)
        contexts = (struct bench_list){ 1, { m.model->config.max_len - 1 } };
    const int n_kv = choose_kv(o, &m.model->config, kv);
    for (int i = 0; rc == 0 && text && i < contexts.n; i++)
        if ((rc = check_context(&m.model->config, contexts.v[i], &e)) == 0)
            rc = bench_kv_distance(o, &m, text, contexts.v[i], kv, n_kv, kl + i * n_kv, &e);
    /* all types of one context, then those of the next */
    for (int i = 0; rc == 0 && i < contexts.n; i++) {
        for (int k = 0; rc == 0 && k < n_kv; k++, n++) {
            run.kv = kv[k].kv;
            run.pages = kv[k].pages;
            run.pattern = kv[k].pattern;
            rc = stepper_open(&s[n], m.model, &run, 1, contexts.v[i], 0, &e);
            rows[n] = (struct row){ .s = &s[n], .n_seqs = 1 };
        }
    }
    if (rc == 0 && (rc = measure_rows(rows, n, o->repeats, &e)) == 0 &&
        (rc = share_init(&share, o, m.model, &run, o->run.threads, &e)) == 0) {
        j = table_json(o, &m, backend_cpu.describe(s[0].b), &share.l);
        if (!o->json) {
            table_title(o, &m, backend_cpu.describe(s[0].b));
            printf("%10s %13s %12s %12s %14s %12s %12s %14s%s\n", "context", "kv", "ms a step", "tokens/s", "kv read",
                   "bytes / f16", "speed / f16", "share of reads", text ? "   KL to f16" : "");
        }
        for (int i = 0; i < n; i++) {
            const int k = i % n_kv, context = s[i].context;
            const double f16_bytes = share_kv_read(&m.model->config, kv[0].kv, kv[0].pages, 1, context + 1);
            char name[VARIANT_TEXT];
            const double t = rows[i].median,
                         bytes = share_kv_read(&m.model->config, kv[k].kv, kv[k].pages, 1,
                                               share_seen(&kv[k].pattern, context + 1)),
                         speedup = rows[i - k].median / t;
            share.kv = kv[k].kv;
            share.pages = kv[k].pages;
            share.pattern = kv[k].pattern;
            const double of = share_decode(&share, t, 1, context + 1);
            json_t *row = json_pack("{s:s, s:i, s:f, s:f, s:I, s:f, s:f, s:f, s:f}", "kv", variant_text(&kv[k], name),
                                    "context", context, "step_s", t, "tokens_per_s", 1 / t, "kv_bytes",
                                    (json_int_t)bytes, "bytes_over_f16",
                                    f16_bytes > 0 ? bytes / f16_bytes : 1,
                                    "speed_over_f16", speedup, "ratio", t / rows[k].median, "share", of);
            if (text)
                json_object_set_new(row, "kl_mean", json_real(kl[i]));
            if (!o->json)
                print_kv_row(row, text != NULL);
            json_array_append_new(json_object_get(j, "rows"), row);
        }
    }
    if (rc == 0 && o->svg)
        rc = table_plot(o, j, "speed of decoding over that with f16 keys and values", kv_bar, &e);
    for (int i = 0; i < N_KV * BENCH_LIST; i++)
        stepper_close(&s[i]);
    return finish(o, j, &m, rc, &e);
}

/* ---- zse-bench threads ---- */

enum { LOOPS = 64, SUM_LENGTH = 16384 };        /* loops of a measurement; floats that an item adds up */

struct loop_sums { const float *x; float *out; };    /* out: one for each item */
struct loop_thread { pthread_t thread; const struct loop_sums *s; int item; };

static void sum_item(void *arg, int i, int thread)
{
    const struct loop_sums *s = arg;
    float sum = 0;
    (void)thread;
    for (int k = 0; k < SUM_LENGTH; k++)
        sum += s->x[k];
    s->out[i] = sum;
}

static void *run_spawned(void *arg)
{
    const struct loop_thread *t = arg;
    struct loop_sums s = *t->s;
    sum_item(&s, t->item, 0);
    return NULL;
}

/* Run n items, one in each of n - 1 new threads and one here. */
static int spawn_loop(struct loop_thread *t, struct loop_sums *s, int n, struct err *e)
{
    int started = 1, rc = 0;
    for (; started < n && rc == 0; started += rc == 0) {
        t[started] = (struct loop_thread){ .s = s, .item = started };
        rc = pthread_create(&t[started].thread, NULL, run_spawned, &t[started]) ? err_set(e, ERR_IO, "a thread") : 0;
    }
    sum_item(s, 0, 0);
    for (int i = 1; i < started; i++)
        pthread_join(t[i].thread, NULL);
    return rc;
}

/* Seconds of a loop of n items: [0] by the pool, [1] by threads that are started for it. */
static int loop_times(int n, int repeats, double seconds[2], struct err *e)
{
    struct loop_sums s = { calloc(SUM_LENGTH, sizeof(float)), calloc((size_t)n, sizeof(float)) };
    struct loop_thread *t = calloc((size_t)n, sizeof *t);
    double *times = calloc((size_t)repeats, 2 * sizeof *times);
    struct pool *pool = pool_open(n, e);
    int rc = !pool ? -1 : s.x && s.out && t && times ? 0 : err_nomem(e, "benchmark");
    for (int r = 0; rc == 0 && r < repeats; r++) {
        const uint64_t start = clock_ns();
        for (int i = 0; i < LOOPS; i++)
            pool_run(pool, n, sum_item, &s);
        const uint64_t middle = clock_ns();
        for (int i = 0; rc == 0 && i < LOOPS; i++)
            rc = spawn_loop(t, &s, n, e);
        times[r] = (double)(middle - start) * 1e-9 / LOOPS;
        times[repeats + r] = (double)(clock_ns() - middle) * 1e-9 / LOOPS;
    }
    for (int i = 0; rc == 0 && i < 2; i++)
        seconds[i] = summarise(times + i * repeats, repeats).median;
    pool_close(pool);
    free((void *)(uintptr_t)s.x), free(s.out), free(t), free(times);
    return rc;
}

int bench_threads(const struct bench_options *o, const char *model)
{
    struct opened_model m;
    struct err e;
    json_t *j = NULL;
    int rc = 0;
    const int most = o->run.threads ? o->run.threads : pool_n_cpus();
    if (open_model(prog, model, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    struct stepper *s = calloc((size_t)most, sizeof *s);
    struct row *rows = calloc((size_t)most, 2 * sizeof *rows);
    if (!s || !rows)
        rc = err_nomem(&e, "benchmark");
    for (int i = 0; rc == 0 && i < most; i++) {
        struct run_options run = o->run;
        run.threads = i + 1;
        rc = stepper_open(&s[i], m.model, &run, 1, o->prompt, o->prompt, &e);
        rows[2 * i] = (struct row){ .s = &s[i], .n_seqs = 1, .n_tokens = o->prompt };
        rows[2 * i + 1] = (struct row){ .s = &s[i], .n_seqs = 1 };
    }
    if (rc == 0)
        rc = measure_rows(rows, 2 * most, o->repeats, &e);
    for (int i = 0; rc == 0 && i < most; i++) {
        struct work_limits share;
        if ((rc = share_init(&share, o, m.model, &o->run, i + 1, &e)) != 0)
            break;
        if (i == 0) {
            struct roofline all;
            if ((rc = share_limits(&all, o, ROOFLINE_READ | ROOFLINE_INT8, most, &e)) != 0)
                break;
            j = table_json(o, &m, backend_cpu.describe(s[most - 1].b), &all);
            json_object_set_new(j, "prompt_tokens", json_integer(o->prompt));
            if (!o->json) {
                table_title(o, &m, backend_cpu.describe(s[most - 1].b));
                printf("%8s %22s %10s %8s %20s %10s %8s\n", "threads", "prefill, tokens/s", "ratio to 1", "share",
                       "decode, tokens/s", "ratio to 1", "share");
            }
        }
        const double p = o->prompt / rows[2 * i].median, p1 = o->prompt / rows[0].median,
                     d = 1 / rows[2 * i + 1].median, d1 = 1 / rows[1].median;
        const double ps = share_prefill(&share, p, 0), ds = share_decode(&share, 1 / d, 1, o->prompt + 1);
        if (!o->json)
            printf("%8d %22.1f %10.2f %8.2f %20.1f %10.2f %8.2f\n", i + 1, p, p / p1, ps, d, d / d1, ds);
        json_array_append_new(json_object_get(j, "rows"),
                              json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "threads", i + 1, "prefill_tokens_per_s",
                                        p, "prefill_ratio", p / p1, "prefill_share", ps, "decode_tokens_per_s", d,
                                        "decode_ratio", d / d1, "decode_share", ds));
    }
    double loop[2] = { 0 };
    if (rc == 0 && (rc = loop_times(most, o->repeats, loop, &e)) == 0) {
        json_object_set_new(j, "loop_s", json_pack("{s:f, s:f}", "pool", loop[0], "spawned", loop[1]));
        if (!o->json)
            printf("a loop of %d items of %d additions: %.1f us by the pool, %.1f with threads started for it\n", most,
                   SUM_LENGTH, loop[0] * 1e6, loop[1] * 1e6);
    }
    for (int i = 0; s && i < most; i++)
        stepper_close(&s[i]);
    free(s);
    free(rows);
    return finish(o, j, &m, rc, &e);
}

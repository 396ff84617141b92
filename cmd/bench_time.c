/* bench_time.c - gpu --model: the time that a GPU would take, by the model of time
 * (gpu/time/launch_time.h).  Nothing is measured. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "gpu/time/launch_time.h"
#include "libcommon/convert/synthetic.h"

static const char prog[] = "zse-bench";

/* The launches of a step that have one kernel and one use, or the stages of one launch that have
 * one use; n: how many. */
struct predicted_row { const char *kernel, *what, *limit; int n; double bytes, roof_s, seconds, most_s; };
enum { MOST_ROWS = 48 };

struct predicted_step {
    struct predicted_row row[MOST_ROWS];
    int n_rows, launches, n_tokens;
    double bytes, roof_s, seconds;
    double part_s[N_TIMED_PARTS], part_flop[N_TIMED_PARTS];     /* without the head */
};

/* A figure with an aim, and the row that takes most time beyond its roof. */
struct predicted_figure {
    const char *name, *text;
    int at_most;
    double aim, value;
    struct predicted_row loss;
};

/* A model: weights without data if it is a known shape. */
struct predicted_model { const char *name; struct model shape; struct opened_model opened; const struct model *m; };

/* ---- the model ---- */

static int open_shape(struct predicted_model *p, const struct bench_options *o, json_t *json, struct err *e)
{
    struct config c;
    struct convert_type type;
    const char *name = open_model_given_type(&o->run);
    int rc = convert_parse_type(&type, name ? name : "nl4", e);
    if (rc == 0 && type.kind != CONVERT_TYPE)
        rc = err_set(e, ERR_UNSUPPORTED, "-q %s: a known shape has matrices of one type", name);
    if (rc == 0)
        rc = config_parse(&c, json, e);
    if (rc == 0)
        rc = timed_shape(&p->shape, &c, type.qtype, e);
    p->m = &p->shape;
    return rc;
}

static int open_predicted(struct predicted_model *p, const struct bench_options *o, const char *name, struct err *e)
{
    struct err ignored;
    json_t *json = access(name, F_OK) == 0 ? NULL : synthetic_config(name, &ignored);
    *p = (struct predicted_model){ .name = name };
    if (json) {
        const int rc = open_shape(p, o, json, e);
        json_decref(json);
        return rc;
    }
    if (open_model(prog, name, &o->run, &p->opened, e) < 0)
        return -1;
    p->m = p->opened.model;
    return 0;
}

static void close_predicted(struct predicted_model *p)
{
    if (p->m == &p->shape)
        timed_shape_release(&p->shape);
    else if (p->m)
        close_model(&p->opened);
}

/* ---- a step ---- */

static void add_launch(struct predicted_step *s, const struct timed_launch *l, const struct timed_cost *c)
{
    int i = 0;
    while (i < s->n_rows && (strcmp(s->row[i].kernel, l->kernel) != 0 || strcmp(s->row[i].what, l->what) != 0))
        i++;
    if (i == MOST_ROWS)
        return;
    struct predicted_row *r = &s->row[i];
    if (i == s->n_rows)
        s->row[s->n_rows++] = (struct predicted_row){ .kernel = l->kernel, .what = l->what };
    if (c->seconds > r->most_s) {
        r->most_s = c->seconds;
        r->limit = c->limit;
    }
    r->n++;
    r->bytes += l->bytes;
    r->roof_s += c->roof_s;
    r->seconds += c->seconds;
}

/* Predict a step, and add it to s. */
static int predict(struct predicted_step *s, const struct model *m, const struct timed_gpu *g,
                   const struct timed_step *step, const char **uncounted, struct err *e)
{
    struct timed_launches all;
    const int rc = timed_launches(m, g, step, &all, e);
    for (int i = 0; rc == 0 && i < all.n; i++) {
        const struct timed_launch *l = &all.launch[i];
        const struct timed_cost c = timed_launch_cost(g, i ? l - 1 : NULL, l);
        const enum timed_part part = strcmp(l->what, "head") == 0 ? TIMED_OTHER : l->part;
        add_launch(s, l, &c);
        s->bytes += l->bytes;
        s->roof_s += c.roof_s;
        s->seconds += c.seconds;
        s->part_s[part] += c.seconds;
        s->part_flop[part] += l->flop;
    }
    if (rc == 0 && all.uncounted)
        *uncounted = all.uncounted;
    for (int i = 0; rc == 0 && i < all.n; i++)
        s->launches += all.launch[i].stage == 0;
    s->n_tokens = all.n_tokens;
    timed_launches_release(&all);
    return rc;
}

/* Predict a prompt of n tokens, in steps of at most `most`. */
static int predict_prompt(struct predicted_step *s, const struct model *m, const struct timed_gpu *g, int n, int most,
                          int wgmma, const char **uncounted, struct err *e)
{
    for (int at = 0; at < n; at += most) {
        const int tokens = n - at < most ? n - at : most;
        if (predict(s, m, g, &(struct timed_step){ 1, at + tokens, tokens, wgmma, ONE_LAUNCH_AUTO }, uncounted, e) < 0)
            return -1;
    }
    return 0;
}

static struct predicted_row loss_of(const struct predicted_step *s, const char *kernel)
{
    struct predicted_row worst = { 0 };
    for (int i = 0; i < s->n_rows; i++)
        if (strncmp(s->row[i].kernel, kernel, strlen(kernel)) == 0 &&
            s->row[i].seconds - s->row[i].roof_s > worst.seconds - worst.roof_s)
            worst = s->row[i];
    return worst;
}

/* ---- figures ---- */

enum figure { SHARE, BATCH_17, BATCH_64, PREFILL_LINEAR, PREFILL_ATTENTION, LAUNCHES, N_FIGURES };

/* The figures of a model; *s becomes the step of one sequence. */
static int figures_of(struct predicted_figure *f, struct predicted_step *s, const struct model *m,
                      const struct timed_gpu *g, const struct bench_options *o, const char **uncounted, struct err *e)
{
    enum { PROMPT = 4096, LONG_PROMPT = 8192 };
    static const int batches[] = { 16, 17, 64 };
    static struct predicted_step none;
    struct predicted_step batch[3], linear = none, attention = none;
    struct run_options on_gpu = o->run;
    on_gpu.gpu = 1;
    const struct engine_options eo = run_engine_options(&on_gpu, 1, 0);
    const int wgmma = eo.wgmma, most = eo.max_tokens > 0 ? eo.max_tokens : LONG_PROMPT;
    *s = none;
    if (predict(s, m, g, &(struct timed_step){ 1, o->prompt, 0, wgmma, ONE_LAUNCH_AUTO }, uncounted, e) < 0)
        return -1;
    for (int i = 0; i < 3; i++) {
        batch[i] = none;
        if (predict(&batch[i], m, g, &(struct timed_step){ batches[i], o->prompt, 0, wgmma, ONE_LAUNCH_AUTO },
                    uncounted, e) < 0)
            return -1;
    }
    if (predict_prompt(&linear, m, g, PROMPT, most, wgmma, uncounted, e) < 0 ||
        predict_prompt(&attention, m, g, LONG_PROMPT, most, wgmma, uncounted, e) < 0)
        return -1;
    const struct predicted_figure all[N_FIGURES] = {
        [SHARE] = { "read_share", "batch 1: share of the memory's bandwidth", 0, 0.65, s->bytes / s->seconds / g->memory,
                    loss_of(s, "") },
        [BATCH_17] = { "batch_17", "batch 17: times batch 16", 1, 1.15, batch[1].seconds / batch[0].seconds,
                       loss_of(&batch[1], "") },
        [BATCH_64] = { "batch_64", "batch 64: times batch 16", 1, 1.6, batch[2].seconds / batch[0].seconds,
                       loss_of(&batch[2], "") },
        [PREFILL_LINEAR] = { "prefill_linear", "prompt of 4096: linear layers, share of the tensor peak", 0, 0.65,
                             linear.part_flop[TIMED_LINEAR] / linear.part_s[TIMED_LINEAR] / g->tensor,
                             loss_of(&linear, "mat") },
        [PREFILL_ATTENTION] = { "prefill_attention_tflops", "prompt of 8192: attention, Tflop/s", 0, 450,
                                attention.part_flop[TIMED_ATTENTION] / attention.part_s[TIMED_ATTENTION] * 1e-12,
                                loss_of(&attention, "attn") },
        [LAUNCHES] = { "launches", "launches a token", 1, 165, s->launches, loss_of(s, "") },
    };
    memcpy(f, all, sizeof all);
    return 0;
}

static int holds(const struct predicted_figure *f) { return f->at_most ? f->value <= f->aim : f->value >= f->aim; }

static json_t *figure_json(const struct predicted_figure *f, const char *model)
{
    return json_pack("{s:s, s:s, s:f, s:f, s:b, s:b, s:{s:s, s:s, s:s, s:f, s:f}}", "figure", f->name, "model", model,
                     "value", f->value, "aim", f->aim, "at_most", f->at_most, "holds", holds(f), "loss", "kernel",
                     f->loss.kernel, "use", f->loss.what, "limit", f->loss.limit, "seconds", f->loss.seconds,
                     "roof_seconds", f->loss.roof_s);
}

static void print_figure(const struct predicted_figure *f, const char *model)
{
    printf("%-15s %-56s %9.*f %-6s %s %-5.4g largest loss: %s %s, %.0f us of %.0f, %s\n", model, f->text,
           f->value >= 100 ? 0 : 3, f->value, holds(f) ? "holds" : "misses", f->at_most ? "<=" : ">=", f->aim,
           f->loss.kernel, f->loss.what, (f->loss.seconds - f->loss.roof_s) * 1e6, f->loss.seconds * 1e6,
           f->loss.limit);
}

static void put_figure(const struct bench_options *o, json_t *to, const struct predicted_figure *f, const char *model)
{
    json_array_append_new(to, figure_json(f, model));
    if (!o->json)
        print_figure(f, model);
}

/* ---- the command ---- */

static json_t *begin(const struct timed_gpu *g, const struct bench_options *o)
{
    return json_pack("{s:b, s:s, s:s, s:i, s:f, s:f, s:f, s:[]}", "predicted", 1, "gpu", g->key, "name", g->name,
                     "context", o->prompt, "memory_bytes_per_s", g->memory, "tensor_flop_per_s", g->tensor,
                     "launch_seconds", timed_gap(g), "figures");
}

static void put_uncounted(const struct bench_options *o, json_t *j, const char *uncounted)
{
    if (!uncounted)
        return;
    json_object_set_new(j, "uncounted", json_string(uncounted));
    if (!o->json)
        printf("instructions of %s are not counted for every kernel: their times are too short\n", uncounted);
}

static void put_rows(const struct bench_options *o, json_t *j, const struct predicted_step *s)
{
    json_t *rows = json_array();
    if (!o->json)
        printf("%-14s %-14s %9s %10s %10s %12s  %s\n", "kernel", "use", "times", "MB", "roof us", "predicted us",
               "limit");
    for (int i = 0; i < s->n_rows; i++) {
        const struct predicted_row *r = &s->row[i];
        json_array_append_new(rows, json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:s}", "kernel", r->kernel, "use", r->what,
                                              "times", r->n, "bytes", r->bytes, "roof_seconds", r->roof_s,
                                              "seconds", r->seconds, "limit", r->limit));
        if (!o->json)
            printf("%-14s %-14s %9d %10.2f %10.1f %12.1f  %s\n", r->kernel, r->what, r->n, r->bytes * 1e-6,
                   r->roof_s * 1e6, r->seconds * 1e6, r->limit);
    }
    json_object_set_new(j, "rows", rows);
    json_object_update_new(j, json_pack("{s:i, s:f, s:f, s:f}", "launches", s->launches, "bytes", s->bytes,
                                        "roof_seconds", s->roof_s, "seconds", s->seconds));
    if (!o->json)
        printf("%-14s %4d %-9s %9s %10.2f %10.1f %12.1f  %.0f tokens/s\n\n", "a token", s->launches, "launches", "",
               s->bytes * 1e-6, s->roof_s * 1e6, s->seconds * 1e6, 1 / s->seconds);
}

/* The figures of a model, and with `rows` its kernels. */
static int one_model(const struct bench_options *o, const struct timed_gpu *g, const char *name,
                     const enum figure *which, int n, int rows, json_t *j, const char **uncounted, struct err *e)
{
    struct predicted_model p;
    struct predicted_step s;
    struct predicted_figure f[N_FIGURES];
    int rc = open_predicted(&p, o, name, e);
    if (rc == 0)
        rc = figures_of(f, &s, p.m, g, o, uncounted, e);
    if (rc == 0 && !o->json && json_array_size(json_object_get(j, "figures")) == 0)
        printf("%s, context %d: predicted from counts and constants, not measured\n", g->name, o->prompt);
    if (rc == 0 && rows)
        put_rows(o, j, &s);
    for (int i = 0; rc == 0 && i < n; i++) {
        struct predicted_figure *one = &f[which[i]];
        if (which[i] == SHARE && !rows)         /* larger models and experts have aims of their own */
            one->aim = config_has_ff(&p.m->config, FF_MOE) ? 0.55 : p.m->config.n_layers > 32 ? 0.75 : one->aim;
        put_figure(o, json_object_get(j, "figures"), one, name);
    }
    close_predicted(&p);
    return rc;
}

int bench_time(const struct bench_options *o, const char *model)
{
    static const enum figure all[N_FIGURES] = { SHARE, BATCH_17, BATCH_64, PREFILL_LINEAR, PREFILL_ATTENTION,
                                                LAUNCHES };
    const struct timed_gpu *g = timed_gpu_find(o->served);
    const char *uncounted = NULL;
    struct err e;
    int rc;
    if (!g)
        return cli_wrong(prog, "gpu --model: '%s', expected h200, h100, 4090 or a100", o->served);
    json_t *j = begin(g, o);
    if (model)
        rc = one_model(o, g, model, all, N_FIGURES, 1, j, &uncounted, &e);
    else if ((rc = one_model(o, g, "Llama-3.1-8B", all, N_FIGURES, 0, j, &uncounted, &e)) == 0 &&
             (rc = one_model(o, g, "Qwen2.5-32B", all, 1, 0, j, &uncounted, &e)) == 0)
        rc = one_model(o, g, "Qwen3-30B-A3B", all, 1, 0, j, &uncounted, &e);
    if (rc == 0)
        put_uncounted(o, j, uncounted);
    if (rc == 0 && o->json)
        cli_json(j);
    json_decref(j);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

/* bench_limits.c - measure the limits of this machine, and the share of them that a model
 * reaches. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "cmd/cli.h"
#include "cmd/preflight_convert.h"
#include "cmd/roofline_show.h"
#include "libcommon/base/clock.h"
#include "libcommon/model/parts.h"
#include "libcommon/quant/kvtype.h"

static const char prog[] = "zse-bench";

/* ---- shares ---- */

static void count_linear(struct work_limits *s, const struct linear *l, const struct run_options *r, int is_head)
{
    if (!l || !l->w.data)
        return;
    /* products of 8 bits run at twice the measured f16 peak */
    const int twice = r->gpu && ((r->act_codes == ACT_CODES_INT8 && l->w.type == QT_I8R) ||
                                 (r->act_codes == ACT_CODES_FP8 && l->w.type == QT_FP8));
    const double op = 2.0 * l->w.rows * l->w.cols / (twice ? 2 : 1);
    if (!is_head)
        *(l->w.act_group && !r->exact ? &s->int8_op : &s->f32_op) += op;
    s->weight_bytes += (double)l->w.size;
}

/* Add the experts of a layer that one token reads. */
static void count_experts(struct work_limits *s, const struct config *c, const struct layer *l,
                          const struct run_options *r)
{
    struct work_limits all = { 0 };
    const double part = c->moe.n_experts ? (double)c->moe.top_k / c->moe.n_experts : 0;
    for (int i = 0; l->experts && i < c->moe.n_experts; i++) {
        count_linear(&all, &l->experts[i].gate, r, 0);
        count_linear(&all, &l->experts[i].up, r, 0);
        count_linear(&all, &l->experts[i].down, r, 0);
    }
    s->int8_op += part * all.int8_op;
    s->f32_op += part * all.f32_op;
    s->weight_bytes += part * all.weight_bytes;
    s->expert_bytes += part * all.weight_bytes;
}

static void count_model(struct work_limits *s, const struct model *m, const struct run_options *r)
{
    const struct config *c = &m->config;
    *s = (struct work_limits){ 0 };
    for (int i = 0; i < c->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        for (enum layer_part p = 0; p < N_LAYER_PARTS; p++)
            count_linear(s, layer_matrix(l, p), r, 0);
        count_experts(s, c, l, r);
    }
    count_linear(s, &m->head, r, 1);
    s->c = c;
    s->kv = r->kv;
    s->pages = r->pages;
    s->pattern = r->pattern;
}

int share_init_gpu(struct work_limits *s, const struct model *m, const struct run_options *r, int device, struct err *e)
{
    count_model(s, m, r);
    s->on_gpu = 1;
    return gpu_measure(device, &s->gpu, e);
}

json_t *share_gpu_json(const struct gpu_speeds *g)
{
    json_t *j = json_pack("{s:f, s:f}", "copy_bytes_per_s", g->copy, "upload_bytes_per_s", g->upload);
    if (g->mma > 0)
        json_object_set_new(j, "mma_flop_per_s", json_real(g->mma));
    return j;
}

int share_limits(struct roofline *l, const struct bench_options *o, unsigned what, int n_threads, struct err *e)
{
    const struct roofline_options ro = { .n_threads = n_threads, .what = what, .only_all = 1,
                                         .root = preflight_root() };
    return o->limits ? roofline_read(l, o->limits, what, n_threads, e) : roofline_measure(l, &ro, e);
}

int share_init(struct work_limits *s, const struct bench_options *o, const struct model *m, const struct run_options *r,
               int n_threads, struct err *e)
{
    count_model(s, m, r);
    return share_limits(&s->l, o, ROOFLINE_READ | ROOFLINE_INT8 | (s->f32_op > 0 ? ROOFLINE_F32 : 0), n_threads, e);
}

double share_prefill(const struct work_limits *s, double tokens_per_s, int amx)
{
    if (s->on_gpu)
        return amx || s->gpu.mma == 0 ? 0 : tokens_per_s * (s->int8_op + s->f32_op) / s->gpu.mma;
    const double int8 = amx ? s->l.amx[1] : s->l.int8[1];
    if (amx && int8 == 0)
        return 0;
    return tokens_per_s * ((s->int8_op > 0 ? s->int8_op / int8 : 0) + (s->f32_op > 0 ? s->f32_op / s->l.f32[1] : 0));
}

int share_seen(const struct sparse_pattern *p, int n_tokens)
{
    uint8_t *seen = p->unit ? malloc((size_t)n_tokens) : NULL;
    int n = 0;
    if (!seen)
        return n_tokens;
    pattern_row(p, n_tokens, n_tokens - 1, seen);
    for (int i = 0; i < n_tokens; i++)
        n += seen[i];
    free(seen);
    return n;
}

double share_kv_read(const struct config *c, struct kv_types kv, int pages, int has_tail, int n_tokens)
{
    const int tail = has_tail && config_tail(c, kv, 0), from = kv_tail_from(n_tokens - 1),
              as_f16 = from <= KV_SINKS ? n_tokens : n_tokens - from + KV_SINKS;
    const int candidates = (from - KV_SINKS) / KV_BLOCK, chosen = pages && candidates > pages
        ? n_tokens - (candidates - pages) * KV_BLOCK : n_tokens;
    double n = 0, summaries = 0;
    for (int i = 0; i < c->n_layers; i++) {
        const int layer = config_shares_kv(c, i) ? c->kv_from[i] : i, window = config_layer_window(c, i, 0),
                  seen = window && window < n_tokens ? window : window ? n_tokens : chosen,
                  in_tail = !tail ? 0 : window ? seen : as_f16;
        n += (double)config_layer_kv_bytes(c, layer, kv) * (seen - in_tail) +
             (double)config_layer_kv_bytes(c, layer, kv_both(KV_F16)) * in_tail;
        summaries += chosen < n_tokens ? (double)config_layer_page_bytes(c, layer) * candidates : 0;
    }
    return n / KV_BLOCK + summaries;
}

double share_decode(const struct work_limits *s, double step_s, int n_seqs, int n_tokens)
{
    const double bytes = s->weight_bytes + n_seqs * share_kv_read(s->c, s->kv, s->pages, !s->on_gpu,
                                                                  share_seen(&s->pattern, n_tokens));
    return step_s > 0 ? bytes / step_s / (s->on_gpu ? s->gpu.copy : s->l.read[1]) : 0;
}

json_t *share_limits_json(const struct roofline *l)
{
    const struct { const char *key; double v; } all[] = { { "read_bytes_per_s", l->read[1] },
                                                          { "int8_op_per_s", l->int8[1] },
                                                          { "amx_op_per_s", l->amx[1] },
                                                          { "f32_flop_per_s", l->f32[1] } };
    json_t *j = json_pack("{s:i}", "threads", l->n_threads);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].v > 0)
            json_object_set_new(j, all[i].key, json_real(all[i].v));
    return j;
}

/* ---- zse-bench limits ---- */

int bench_limits(const struct bench_options *o)
{
    const char *tmp = getenv("TMPDIR");
    const struct roofline_options lo = { .n_threads = o->run.threads, .file = o->file,
                                       .tmp_dir = tmp && *tmp ? tmp : NULL, .root = preflight_root() };
    struct roofline l;
    struct err e;
    const uint64_t start = clock_ns();
    if (roofline_measure(&l, &lo, &e) != 0)
        return cli_fail(prog, &e);
    const double seconds = (double)(clock_ns() - start) * 1e-9;
    if (o->json) {
        json_t *j = roofline_json(&l);
        json_object_set_new(j, "seconds", json_real(seconds));
        cli_json(j);
        json_decref(j);
        return cli_finish(prog);
    }
    roofline_print(&l, o->file);
    return cli_finish(prog);
}

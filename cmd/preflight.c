/* preflight.c - compare the memory that a model needs with the available memory, before it is
 * allocated. */
#include "cmd/preflight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/cli.h"
#include "cmd/conv_cache.h"
#include "cmd/memory_note.h"
#include "cmd/planning.h"
#include "libcommon/base/json.h"
#include "libcommon/cpu/cpu.h"
#include "gpu/gpu.h"
#include "libcommon/hw/memory.h"
#include "libcommon/model/eagle.h"
#include "libcommon/model/lora.h"
#include "libcommon/model/lora_plan.h"
#include "libcommon/model/medusa.h"

enum { PROMPT = 512 };              /* length, in tokens, of the prompt for which speeds are predicted */

const char *preflight_root(void)
{
    const char *root = getenv("ZSE_SYSROOT");
    return root && *root ? root : NULL;
}

/* Bytes that are needed, among them adapters: the matrices of LoRA adapters, and adapters_work:
 * memory to compute with them.  most, now: bytes that this process may have, in all and at the
 * moment. */
struct need { uint64_t weights, kv, states, workspace, drafts, adapters, adapters_work, most, now; };

static uint64_t kv_of(const struct config *c, const struct engine_options *eo)
{
    return eo->kv_bytes ? eo->kv_bytes : engine_kv_needs(c, eo, eo->max_seqs);
}

/* A model to plan for, opened or not. */
struct subject { const char *name, *type; const struct config *config; uint64_t weights; };

static const char *type_name(const struct opened_model *o)
{
    const json_t *q = js_get(o->json, "quantization"), *type = json_is_object(q) ? js_get(q, "type") : q;
    return json_string_value(type);
}

static struct subject subject_of(const struct opened_model *o)
{
    return (struct subject){ .name = o->name, .type = type_name(o), .config = &o->model->config,
                             .weights = o->model->weight_bytes };
}

/* Compute the memory needed on the CPU.  p: the plan of the GPU, which has the rest; NULL: no
 * GPU. */
static int sum_up(struct need *n, const struct subject *s, const struct run_options *r, const struct engine_options *eo,
                  const struct gpu_plan *p, struct err *e)
{
    const struct config *c = s->config;
    const struct planned planned = { .shape = { .vocab_size = c->vocab_size }, .step_bytes = cpu_step_memory(c) };
    n->weights = p ? p->host_weights : eo->max_weights && eo->max_weights < s->weights ? eo->max_weights : s->weights;
    n->kv = p ? p->host_kv : kv_of(c, eo);
    n->states = p ? 0 : (uint64_t)engine_n_states(c, eo) * config_state_bytes(c);        /* host_kv has them */
    n->workspace = planned_workspace(&planned);
    n->drafts = n->adapters = n->adapters_work = 0;
    struct memory m;
    if (memory_read(&m, preflight_root(), e) != 0)
        return -1;
    n->most = memory_most(&m);
    n->now = memory_now(&m);
    if (r->mode.memory && r->mode.memory < n->now)
        n->most = n->now = r->mode.memory;                      /* --mode for_vram=SIZE */
    return 0;
}

/* Add the memory of Medusa heads: their weights, and the states and logits of drafts.  Heads that
 * are not in the model's file have taken theirs already. */
static void add_heads(struct need *n, const struct opened_model *o, const struct engine_options *eo)
{
    const struct medusa *m = eo->medusa;
    const uint64_t n_seqs = eo->max_seqs > 1 ? (uint64_t)eo->max_seqs : 1,
                   tokens = (uint64_t)(eo->max_tokens ? eo->max_tokens : BACKEND_STEP_TOKENS);
    n->drafts = m->bytes + ((tokens + 3 * n_seqs) * (uint64_t)m->hidden_size + n_seqs * (uint64_t)m->vocab_size) *
                sizeof(float);
    n->now += m == o->heads ? m->bytes : 0;
}

/* Add the memory of the layer that makes drafts (--spec mtp, eagle, auto): its weights, its keys
 * and values in the same number of blocks as the model's, its activations, and the states and
 * logits of drafts. */
static void add_drafts(struct need *n, const struct opened_model *o, const struct engine_options *eo)
{
    const struct model *m = eo->eagle ? &eo->eagle->model : eo->predictor ? o->model->predictor : NULL;
    if (eo->medusa)
        add_heads(n, o, eo);
    if (!m)
        return;
    const uint64_t block = config_kv_bytes(&o->model->config, eo->kv),
                   n_seqs = eo->max_seqs > 1 ? (uint64_t)eo->max_seqs : 1,
                   blocks = eo->kv_bytes && block ? eo->kv_bytes / block
                                                  : n_seqs * (((uint64_t)eo->max_len + KV_BLOCK - 1) / KV_BLOCK),
                   tokens = (uint64_t)(eo->max_tokens ? eo->max_tokens : BACKEND_STEP_TOKENS);
    const struct planned planned = { .shape = { .vocab_size = m->config.vocab_size },
                                     .step_bytes = cpu_step_memory(&m->config) };
    n->drafts = (eo->eagle ? eo->eagle->bytes : m->weight_bytes) + blocks * config_kv_bytes(&m->config, eo->kv) +
                planned_workspace(&planned) + (2 * tokens + (1 + ENGINE_KEPT_STATES) * n_seqs) *
                (uint64_t)m->config.hidden_size * sizeof(float) +
                n_seqs * (uint64_t)m->config.vocab_size * sizeof(float);
    n->now += eo->eagle && eo->eagle == o->eagle ? eo->eagle->bytes : 0;       /* they have taken theirs already */
}

/* Add the memory of LoRA adapters.  Those of an open model have taken theirs already; o NULL: it is
 * not open. */
static int add_adapters(struct need *n, const struct opened_model *o, const struct run_options *r, struct err *e)
{
    struct lora_plan p = { 0 };
    if (!o && plan_loras(&p, NULL, r, e) != 0)
        return -1;
    for (int i = 0; o && i < o->model->n_loras; i++) {
        const struct lora *l = &o->model->loras[i];
        p.bytes += l->bytes;
        p.rank = l->rank > p.rank ? l->rank : p.rank;
    }
    n->adapters = p.bytes;
    n->adapters_work = lora_work_memory(p.rank, r);
    n->now += o ? p.bytes : 0;
    return 0;
}

static uint64_t beside(const struct need *n) { return n->workspace + n->drafts + n->adapters + n->adapters_work; }

static int fits(const struct need *n, const char *name, int *tight, struct err *e)
{
    return plan_preflight(name, n->weights, n->kv + n->states, beside(n), n->most, n->now, tight, e);
}

/* Like fits(), but if memory does not suffice, --spec auto does without the layer or the
 * heads that make drafts. */
static int fits_somehow(struct need *n, const char *name, const struct run_options *r, struct engine_options *eo,
                        int *tight, struct err *e)
{
    if (fits(n, name, tight, e) == 0)
        return 0;
    if (r->spec != SPEC_AUTO || !n->drafts)
        return -1;
    n->drafts = 0;
    eo->predictor = 0;
    eo->medusa = NULL;
    eo->eagle = NULL;
    return fits(n, name, tight, e);
}

/* ---- the GPU ---- */

static int plan_device(const struct opened_model *o, const struct engine_options *eo, struct backend_options *bo,
                       struct gpu_plan *p, struct err *e)
{
    return engine_backend_options(o->model, eo, bo, e) < 0 ? -1 : gpu_plan(o->model, bo, p, e);
}

/* Decide how many layers of the model the GPU computes, and change *eo accordingly; *p is filled in
 * unless eo->backend becomes NULL (the CPU computes all).  -1 with *e: refused. */
static int settle(const char *prog, const struct opened_model *o, const struct run_options *r,
                  struct engine_options *eo, struct gpu_plan *p, struct err *e)
{
    struct backend_options bo;
    struct err why;
    char uploads[CLI_BYTES];
    const int may_share = !r->stream_window && (r->gpu_layers_given ? r->gpu_layers == GPU_LAYERS_AUTO : r->gpu_auto);
    int rc = plan_device(o, eo, &bo, p, &why);
    if (rc == 0 && gpu_plan_fits(p, &bo, &why) == 0) {
        if (bo.moe == MOE_HYBRID && !bo.gpu_experts && p->n_experts < o->model->config.moe.n_experts)
            cli_note(prog, "%s: the GPU has %d of the %d experts of each layer, more do not fit", o->name, p->n_experts,
                     o->model->config.moe.n_experts);
        if (p->window)
            cli_note(prog, "%s: the GPU holds %d of %d layers; each step uploads %s", o->name, p->window, p->n_layers,
                     cli_bytes(uploads, p->stream_bytes));
        return 0;
    }
    if (rc == 0 && may_share && p->most_layers > 0) {
        eo->device_layers = p->most_layers;
        eo->max_tokens = 0;             /* the CPU's steps are smaller, so the layers still fit */
        cli_note(prog, "%s: the GPU computes the last %d of %d layers, more do not fit", o->name, p->most_layers,
                 o->model->config.n_layers);
        return plan_device(o, eo, &bo, p, e);
    }
    if (!r->gpu_auto || r->act_codes || (rc < 0 && why.code != ERR_UNSUPPORTED)) {      /* --act needs a GPU */
        *e = why;
        return -1;
    }
    cli_note(prog, "%s; the processor computes", why.msg);
    eo->backend = NULL;
    eo->max_tokens = 0;
    eo->max_device = 0;
    eo->max_weights = (size_t)r->max_memory;
    return 0;
}

enum { PAGES = 4 << 20 };       /* sizes are rounded up to pages, and tables grow with the number of blocks */

/* Bytes of a KV block on one GPU, of which its plan has n_blocks; block: bytes on all together. */
static uint64_t block_on(const struct gpu_plan *p, int rank, size_t block, int n_layers, uint64_t n_blocks)
{
    const struct gpu_plan_rank *r = &p->ranks[rank];
    if (p->tp)                          /* some of the heads of its layers */
        return (r->kv + n_blocks - 1) / n_blocks + sizeof(int32_t);
    return block * (uint64_t)r->n_layers / (uint64_t)n_layers + sizeof(int32_t);
}

uint64_t preflight_kv_room(const struct opened_model *o, const struct engine_options *eo)
{
    struct engine_options least = *eo;
    struct backend_options bo;
    struct gpu_plan p;
    struct err ignored;
    const struct config *c = &o->model->config;
    const size_t block = config_kv_bytes(c, eo->kv);
    if (least.cache_weights == CACHE_WEIGHTS_AUTO)              /* the KV cache takes precedence */
        least.cache_weights = CACHE_WEIGHTS_OFF;
    least.kv_bytes = block * (size_t)((eo->max_len + KV_BLOCK - 1) / KV_BLOCK);
    if (plan_device(o, &least, &bo, &p, &ignored) < 0)
        return 0;
    uint64_t n = UINT64_MAX;
    for (int i = 0; i < p.n_ranks; i++) {
        const struct gpu_plan_rank *r = &p.ranks[i];
        const uint64_t room = r->needed + PAGES > r->limit
            ? 0 : (r->limit - (r->needed - r->kv) - PAGES) /
                  block_on(&p, i, block, c->n_layers, least.kv_bytes / block);
        n = room < n ? room : n;
    }
    for (int i = 0; i < 4 && n; i++) {
        /* The buffers for split contexts and the reserve for graphs grow with the number of
         * blocks. */
        least.kv_bytes = n * block;
        if (plan_device(o, &least, &bo, &p, &ignored) < 0)
            return 0;
        uint64_t over = 0;
        for (int k = 0; k < p.n_ranks; k++) {
            const struct gpu_plan_rank *r = &p.ranks[k];
            const uint64_t more = r->needed <= r->limit
                ? 0 : (r->needed - r->limit + PAGES) / block_on(&p, k, block, c->n_layers, n) + 1;
            over = more > over ? more : over;
        }
        if (!over)
            break;
        n -= over < n ? over : n;
    }
    return n * block;
}

/* ---- */

/* If the weights do not fit, limit those in memory to the available space: experts are read from
 * the file when they are used, the layers of a dense model at every step.  1 if that was done. */
static int stream_weights(const char *prog, const struct subject *s, const struct need *n, const struct run_options *r,
                          struct engine_options *eo)
{
    const uint64_t least = n->most < n->now ? n->most : n->now, rest = n->kv + n->states + beside(n),
                   usable = least / 10 * 9;
    if (eo->backend || eo->max_weights || usable <= rest || usable - rest >= n->weights ||
        (r->shares_memory && !s->config->moe.n_experts))
        return 0;
    char all[CLI_BYTES], some[CLI_BYTES], other[CLI_BYTES];
    eo->max_weights = (size_t)(usable - rest);
    cli_bytes(all, n->weights);
    cli_bytes(some, eo->max_weights);
    if (s->config->moe.n_experts)
        cli_note(prog, "%s: %s of weights, but only %s fit in memory: experts are read from the file as they are chosen",
                 s->name, all, some);
    else
        cli_note(prog, "%s: %s of weights, but only %s fit in memory: each step reads at least the other %s from the file",
                 s->name, all, some, cli_bytes(other, n->weights - eo->max_weights));
    return 1;
}

int preflight_check(const char *prog, const struct opened_model *o, const struct run_options *r,
                    struct engine_options *eo, struct err *e)
{
    const struct subject s = subject_of(o);
    struct need n;
    struct err why;
    struct gpu_plan p;
    int tight;
    if (eo->backend && settle(prog, o, r, eo, &p, e) < 0)
        return -1;
    if (eo->backend && p.host_weights == 0)
        return 0;
    /* without figures from the system nothing is refused */
    if (sum_up(&n, &s, r, eo, eo->backend ? &p : NULL, &why) != 0)
        return 0;
    add_drafts(&n, o, eo);
    add_adapters(&n, o, r, &why);
    if (fits_somehow(&n, o->name, r, eo, &tight, &why) == 0) {
        if (tight)
            cli_note(prog, "%s: memory is tight: more than 90 %% of it will be in use", o->name);
        return 0;
    }
    if (r->force) {
        cli_note(prog, "%s (--force: trying)", why.msg);
        return 0;
    }
    if (stream_weights(prog, &s, &n, r, eo))
        return 0;
    return err_set(e, why.code, "%s; a smaller type (-q nl4), --ctx, --kv i8 or --max-memory take less, --force tries it", why.msg);
}

/* Print the planned and the taken memory of GPUs, with --verbose or if more was taken. */
static void compare_device(const char *prog, const char *name, const struct backend_device *d, int verbose)
{
    char planned[CLI_BYTES], taken[CLI_BYTES];
    const size_t plan = d->weights + d->cached + d->kv + d->work + d->reserve;
    const int more = (double)d->taken > 1.1 * (double)plan;
    if (d->taken && (more || verbose))
        cli_note(prog, "%s%s: %s of GPU memory planned, %s taken", more ? "warning: " : "", name,
                 cli_bytes(planned, plan), cli_bytes(taken, d->taken));
}

void preflight_compare(const char *prog, const struct opened_model *o, const struct run_options *r,
                       const struct engine_options *eo, const struct engine *g)
{
    const struct subject s = subject_of(o);
    struct need n;
    struct err ignored;
    struct engine_stats es;
    char planned[CLI_BYTES], taken[CLI_BYTES];
    engine_stats(g, &es);
    if (eo->backend) {
        compare_device(prog, o->name, &es.device, r->verbose);
        return;
    }
    if (sum_up(&n, &s, r, eo, NULL, &ignored) != 0)
        return;
    add_adapters(&n, o, r, &ignored);
    /* private_bytes includes the KV cache */
    const uint64_t plan = n.kv + n.states + n.workspace + n.adapters_work, real = es.private_bytes - es.draft_bytes;
    const int more = (double)real > 1.1 * (double)plan;
    if (more || r->verbose)
        cli_note(prog, "%s%s: %s planned beside the weights, %s taken", more ? "warning: " : "", o->name,
                 cli_bytes(planned, plan), cli_bytes(taken, real));
    if (r->verbose)
        memory_note(prog, "engine open");
}

/* ---- --plan: one struct, printed as JSON or as text ---- */

/* The result of --plan for the CPU (gpu NULL) or a GPU.  Strings are borrowed. */
struct forecast {
    const char *name, *type, *device;
    uint64_t weights, cached, kv, states, workspace, reserve;   /* bytes; cached, reserve: on a GPU */
    uint64_t drafts, adapters;                                  /* bytes of the drafting layer, of LoRA adapters */
    uint64_t needed, memory, available;                         /* bytes */
    int max_len, fits;
    const char *why;                                            /* the problem; NULL: it fits */
    double prefill, decode;                                     /* tokens/s; 0: unknown */
    struct plan_rates rates;                                    /* valid if decode is known */
    const struct gpu_plan *gpu;
    int n_layers, n_experts;                                    /* layers, and experts of each; only with gpu */
};

/* The measured rates that the prediction is based on. */
static json_t *rates_json(const struct plan_rates *r)
{
    json_t *types = json_object();
    for (int i = 0; i < PLAN_QTYPES; i++)
        if (r->read[i] > 0)
            json_object_set_new(types, qtype_info((enum qtype)i)->name,
                                json_pack("{s:f, s:f}", "read_bytes_per_s", r->read[i], "multiply_ops_per_s",
                                          r->multiply[i]));
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "threads", r->n_threads,
                     "memory_bytes_per_s", r->memory, "f32_flop_per_s", r->f32, "loop_s", r->sync_s,
                     "attend_one_per_s", r->attend[0], "attend_many_per_s", r->attend[1], "norm_s", r->norm_s,
                     "round_s", r->round_s, "act_s", r->act_s, "pick_s", r->pick_s, "measured",
                     r->measured ? json_integer(r->measured) : json_null(), "types", types);
}

static void set_bytes(json_t *j, const char *key, uint64_t n)
{
    json_object_set_new(j, key, json_integer((json_int_t)n));
}

static json_t *gpus_json(const struct gpu_plan *g)
{
    json_t *all = json_array();
    for (int i = 0; i < g->n_ranks; i++) {
        const struct gpu_plan_rank *r = &g->ranks[i];
        json_array_append_new(all, json_pack("{s:i, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "index", r->index,
                                             "name", r->name, "first_layer", r->first_layer, "layers", r->n_layers,
                                             "weight_bytes", (json_int_t)r->weights, "cached_bytes",
                                             (json_int_t)r->cached, "kv_bytes", (json_int_t)r->kv, "workspace_bytes",
                                             (json_int_t)r->work, "reserve_bytes", (json_int_t)r->reserve,
                                             "needed_bytes", (json_int_t)r->needed, "available_bytes",
                                             (json_int_t)r->limit));
    }
    return all;
}

static void print_forecast_json(const struct forecast *f)
{
    const struct gpu_plan *g = f->gpu;
    json_t *j = json_pack("{s:s, s:s?, s:s, s:f}", "model_name", f->name, "quantization", f->type, "device", f->device,
                          "estimated_vram_gb", (double)f->needed * 1e-9);
    set_bytes(j, "weight_bytes", f->weights);
    set_bytes(j, "kv_bytes", f->kv);
    if (!g)
        set_bytes(j, "state_bytes", f->states);
    set_bytes(j, "workspace_bytes", f->workspace);
    if (f->drafts)
        set_bytes(j, "draft_bytes", f->drafts);
    if (f->adapters)
        set_bytes(j, "adapter_bytes", f->adapters);
    set_bytes(j, "needed_bytes", f->needed);
    set_bytes(j, "memory_bytes", f->memory);
    set_bytes(j, "available_bytes", f->available);
    json_object_update_new(j, json_pack("{s:i, s:b, s:s?, s:o, s:o}", "context", f->max_len, "fits", f->fits, "reason",
                                        f->why, "expected_prefill_tokens_per_sec",
                                        f->prefill > 0 ? json_real(f->prefill) : json_null(), "expected_tokens_per_sec",
                                        f->decode > 0 ? json_real(f->decode) : json_null()));
    if (!g)
        json_object_set_new(j, "rates", f->decode > 0 ? rates_json(&f->rates) : json_null());
    else
        json_object_update_new(j, json_pack("{s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:s?, s:I, s:I, s:s?, s:I, s:s?}", "gpu_name", g->name,
                                            "reserve_bytes", (json_int_t)f->reserve, "layers", f->n_layers,
                                            "gpu_layers", g->n_layers, "gpu_layers_fit", g->most_layers,
                                            "experts", f->n_experts, "gpu_experts", g->n_experts,
                                            "prefill_threshold", g->prefill_threshold,
                                            "threshold_from", g->threshold_from,
                                            "host_weight_bytes", (json_int_t)g->host_weights, "host_kv_bytes",
                                            (json_int_t)g->host_kv, "cuda_graphs_off", g->graphs_off, "cached_bytes",
                                            (json_int_t)f->cached, "cache_weights_off", g->cache_off));
    if (g) {
        json_object_set_new(j, "tensor_parallel", json_boolean(g->tp));
        json_object_set_new(j, "gpus", gpus_json(g));
    }
    if (g && g->window)
        json_object_set_new(j, "layer_window", json_pack("{s:i, s:i, s:i, s:i, s:I}", "window", g->window, "kept",
                                                         g->kept, "slots", g->slots, "prefetch", g->prefetch,
                                                         "upload_bytes_a_step", (json_int_t)g->stream_bytes));
    cli_json(j);
    json_decref(j);
}

static void print_measured(int64_t at)
{
    char day[32] = "";
    const time_t t = (time_t)at;
    struct tm tm;
    struct err ignored;
    char *path = conv_cache_rates(0, &ignored);
    if (localtime_r(&t, &tm))
        strftime(day, sizeof day, "%Y-%m-%d %H:%M", &tm);
    printf("%-16s measured %s; remove %s to measure again\n", "rates", day, path ? path : "the record");
    free(path);
}

static void print_rank(const struct gpu_plan *g, const struct gpu_plan_rank *r, int n_layers)
{
    char name[16], layers[64], needed[CLI_BYTES], limit[CLI_BYTES];
    snprintf(name, sizeof name, "GPU %d", r->index);
    if (r->n_layers == n_layers)
        snprintf(layers, sizeof layers, "a part of all %d layers", n_layers);
    else
        snprintf(layers, sizeof layers, "%slayers %d to %d of %d", g->tp ? "a part of " : "", r->first_layer,
                 r->first_layer + r->n_layers - 1, n_layers);
    printf("%-16s %s: %s, %s of %s%s\n", name, r->name, layers, cli_bytes(needed, r->needed),
           cli_bytes(limit, r->limit), r->needed <= r->limit ? "" : ": too much");
}

static void print_forecast(const struct forecast *f)
{
    const struct { const char *title; uint64_t size; int is_rare; } sizes[] = {         /* is_rare: not printed if 0 */
        { "weights", f->weights, 0 }, { "f16 weight cache", f->cached, 1 }, { "keys and values", f->kv, 0 },
        { "states", f->states, 1 }, { "workspace", f->workspace, 0 }, { "reserve", f->reserve, 1 },
        { "guesses", f->drafts, 1 }, { "adapters", f->adapters, 1 },
        { "together", f->needed, 0 }, { "memory", f->memory, 0 }, { "available now", f->available, 0 },
    };
    char size[CLI_BYTES];
    printf("%-16s %s, %s, on %s, context %d\n", "model", f->name, f->type ? f->type : "unknown type", f->device,
           f->max_len);
    if (f->gpu && f->gpu->n_ranks == 1)
        printf("%-16s %s: %d of %d layers\n", "GPU", f->gpu->name, f->gpu->n_layers, f->n_layers);
    for (int i = 0; f->gpu && f->gpu->n_ranks > 1 && i < f->gpu->n_ranks; i++)
        print_rank(f->gpu, &f->gpu->ranks[i], f->n_layers);
    if (f->gpu && f->n_experts)
        printf("%-16s %d of %d of each layer on the GPU\n", "experts", f->gpu->n_experts, f->n_experts);
    if (f->gpu && f->gpu->prefill_threshold)
        printf("%-16s all on the GPU in steps of %d tokens or more (%s)\n", "", f->gpu->prefill_threshold,
               f->gpu->threshold_from);
    if (f->gpu && f->gpu->window)
        printf("%-16s %d layers, %d of them stay; each step uploads %s\n", "window", f->gpu->window, f->gpu->kept,
               cli_bytes(size, f->gpu->stream_bytes));
    if (f->gpu && f->gpu->graphs_off)
        printf("%-16s off: %s\n", "graphs", f->gpu->graphs_off);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!sizes[i].is_rare || sizes[i].size)
            printf("%-16s %s\n", sizes[i].title, cli_bytes_both(size, sizes[i].size));
    printf("%-16s %s\n", "fits", f->fits ? "yes" : "no");
    if (f->decode > 0)
        printf("%-16s prefill %.0f, decode %.1f tokens/s at %d tokens\n", "expected", f->prefill, f->decode, PROMPT);
    if (f->decode > 0 && f->rates.measured)
        print_measured(f->rates.measured);
}

static int finish_plan(const struct forecast *f, int json)
{
    if (json)
        print_forecast_json(f);
    else
        print_forecast(f);
    return f->fits ? CLI_OK : CLI_FAILED;
}

/* Predicted speeds.  Left 0 where experts are streamed: the speed of the file is not known. */
static void predict(struct forecast *f, const struct subject *s, const struct planned *p, const struct plan_weights *w,
                    const struct run_options *r)
{
    struct err ignored;
    const int prompt = f->max_len > PROMPT ? PROMPT : f->max_len;
    if (r->exact || f->weights < s->weights ||
        planned_rates(&f->rates, w, &p->shape, r->threads, r->kernels, &ignored) != 0)
        return;
    f->prefill = plan_prefill(&p->shape, w, &f->rates, prompt);
    f->decode = plan_decode(&p->shape, w, &f->rates, r->kv, prompt);
}

/* Print the plan for the CPU alone.  A model whose weights are streamed fits, because only the
 * weights that stay in memory count.  o NULL: the model is not open. */
static int plan_processor(const char *prog, const struct subject *s, const struct opened_model *o,
                          const struct planned *p, const struct plan_weights *w, const struct run_options *r,
                          struct engine_options *eo, int json)
{
    struct need n;
    struct err e, why;
    int tight;
    if (sum_up(&n, s, r, eo, NULL, &e) != 0)
        return cli_fail(prog, &e);
    if (o)
        add_drafts(&n, o, eo);
    if (add_adapters(&n, o, r, &e) != 0)
        return cli_fail(prog, &e);
    int ok = fits_somehow(&n, s->name, r, eo, &tight, &why) == 0;
    if (!ok && stream_weights(prog, s, &n, r, eo)) {
        n.weights = eo->max_weights;
        ok = 1;
    }
    struct forecast f = { .name = s->name, .type = s->type, .device = "cpu", .weights = n.weights, .kv = n.kv,
                          .states = n.states, .workspace = n.workspace,
                          .drafts = n.drafts, .adapters = n.adapters + n.adapters_work,
                          .needed = n.weights + n.kv + n.states + beside(&n),
                          .memory = n.most, .available = n.now, .max_len = eo->max_len, .fits = ok,
                          .why = ok ? NULL : why.msg };
    predict(&f, s, p, w, r);
    return finish_plan(&f, json);
}

static int plan_opened(const char *prog, const struct opened_model *o, const struct run_options *r,
                       struct engine_options *eo, int json)
{
    const struct subject s = subject_of(o);
    struct planned p;
    struct plan_weights w;
    struct err e;
    int rc = planned_of(&p, &o->model->config, &e);
    if (rc == 0) {
        planned_file(&p, o->model->file, &w);
        rc = plan_processor(prog, &s, o, &p, &w, r, eo, json);
    } else {
        rc = cli_fail(prog, &e);
    }
    planned_close(&p);
    return rc;
}

int preflight_plan_unopened(const char *prog, const struct unopened *u, const struct run_options *r,
                            struct engine_options *eo, int json)
{
    const struct subject s = { .name = u->name, .type = u->type, .config = &u->config, .weights = u->w.bytes };
    return plan_processor(prog, &s, NULL, &u->planned, &u->w, r, eo, json);
}

int preflight_plan(const char *prog, const struct opened_model *o, const struct run_options *r,
                   struct engine_options *eo, int json)
{
    const struct subject s = subject_of(o);
    struct need n;
    struct gpu_plan device;
    struct backend_options bo;
    struct err e, why;
    int tight;
    if ((r->spec == SPEC_MTP || r->spec == SPEC_AUTO || r->spec == SPEC_MEDUSA || r->spec == SPEC_EAGLE) &&
        run_spec(r, o, eo, &e) != 0)
        return cli_fail(prog, &e);
    const int settled = eo->backend ? settle(prog, o, r, eo, &device, &why) : 0;
    if (settled < 0 && plan_device(o, eo, &bo, &device, &e) < 0)
        return cli_fail(prog, &e);
    if (eo->backend) {                  /* also check the CPU's part, as preflight_check() does */
        const int ok = settled == 0 && (device.host_weights == 0 || sum_up(&n, &s, r, eo, &device, &e) != 0 ||
                                        fits(&n, o->name, &tight, &why) == 0);
        return finish_plan(&(struct forecast){
            .name = o->name, .type = s.type, .device = gpu_kind, .weights = device.weights, .cached = device.cached,
            .kv = device.kv, .workspace = device.work, .reserve = device.reserve, .needed = device.needed,
            .memory = device.total, .available = device.limit, .max_len = eo->max_len, .fits = ok,
            .why = ok ? NULL : why.msg, .gpu = &device, .n_layers = o->model->config.n_layers,
            .n_experts = o->model->config.moe.n_experts }, json);
    }
    return plan_opened(prog, o, r, eo, json);
}

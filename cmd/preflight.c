#include "cmd/preflight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/memory_note.h"
#include "cmd/planning.h"
#include "libcommon/base/json.h"
#include "libcommon/cpu/cpu.h"
#include "gpu/gpu.h"
#include "libcommon/hw/memory.h"

enum { PROMPT = 512 };              /* tokens that speeds are predicted for */

const char *preflight_root(void)
{
    const char *root = getenv("ZSE_SYSROOT");
    return root && *root ? root : NULL;
}

struct need { uint64_t weights, kv, states, workspace, most, now; };        /* most, now: memory that may be had */

static uint64_t kv_of(const struct config *c, const struct engine_options *eo)
{
    const uint64_t blocks = (uint64_t)((eo->max_len + KV_BLOCK - 1) / KV_BLOCK) * (uint64_t)eo->max_seqs;
    return eo->kv_bytes ? eo->kv_bytes : blocks * config_kv_bytes(c, eo->kv_type);
}

/* What is planned for: a model that is open, or one that is not. */
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

/* Of the processor's part: p is the GPU's, NULL: there is none. */
static int sum_up(struct need *n, const struct subject *s, const struct run_options *r, const struct engine_options *eo,
                  const struct gpu_plan *p, struct err *e)
{
    const struct config *c = s->config;
    const struct planned planned = { .shape = { .vocab_size = c->vocab_size }, .step_bytes = cpu_step_memory(c) };
    n->weights = p ? p->host_weights : eo->max_weights && eo->max_weights < s->weights ? eo->max_weights : s->weights;
    n->kv = p ? p->host_kv : kv_of(c, eo);
    n->states = (uint64_t)(eo->max_seqs + ENGINE_SNAPSHOTS) * config_state_bytes(c);
    n->workspace = planned_workspace(&planned);
    struct memory m;
    if (memory_read(&m, preflight_root(), e) != 0)
        return -1;
    n->most = memory_most(&m);
    n->now = memory_now(&m);
    if (r->mode.memory && r->mode.memory < n->now)
        n->most = n->now = r->mode.memory;                      /* --mode for_vram=SIZE */
    return 0;
}

static int fits(const struct need *n, const char *name, int *tight, struct err *e)
{
    return plan_preflight(name, n->weights, n->kv + n->states, n->workspace, n->most, n->now, tight, e);
}

/* ---- the GPU ---- */

static int plan_device(const struct opened_model *o, const struct engine_options *eo, struct backend_options *bo,
                       struct gpu_plan *p, struct err *e)
{
    return engine_backend_options(o->model, eo, bo, e) < 0 ? -1 : gpu_plan(o->model, bo, p, e);
}

/* What of the model is the GPU's: *eo says so afterwards, and *p where it is something. -1:
 * refused. */
static int settle(const char *prog, const struct opened_model *o, const struct run_options *r,
                  struct engine_options *eo, struct gpu_plan *p, struct err *e)
{
    struct backend_options bo;
    struct err why;
    const int may_share = r->gpu_layers_given ? r->gpu_layers == GPU_LAYERS_AUTO : r->gpu_auto;
    int rc = plan_device(o, eo, &bo, p, &why);
    if (rc == 0 && gpu_plan_fits(p, &bo, &why) == 0)
        return 0;
    if (rc == 0 && may_share && p->most_layers > 0) {
        eo->device_layers = p->most_layers;
        eo->max_tokens = 0;             /* the processor's steps are smaller: what fitted still fits */
        cli_note(prog, "%s: the last %d of %d layers are the GPU's, more do not fit", o->name, p->most_layers,
                 o->model->config.n_layers);
        return plan_device(o, eo, &bo, p, e);
    }
    if (!r->gpu_auto || r->act_int8 || (rc < 0 && why.code != ERR_UNSUPPORTED)) {       /* --act int8 is for a GPU alone */
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

uint64_t preflight_kv_room(const struct opened_model *o, const struct engine_options *eo)
{
    enum { PAGES = 4 << 20 };           /* sizes are rounded up to pages, and tables grow with the blocks */
    struct engine_options least = *eo;
    struct backend_options bo;
    struct gpu_plan p;
    struct err ignored;
    const struct config *c = &o->model->config;
    const size_t block = config_kv_bytes(c, eo->kv_type);
    if (least.cache_weights == CACHE_WEIGHTS_AUTO)              /* it gets what keys and values leave */
        least.cache_weights = CACHE_WEIGHTS_OFF;
    least.kv_bytes = block * (size_t)((eo->max_len + KV_BLOCK - 1) / KV_BLOCK);
    if (plan_device(o, &least, &bo, &p, &ignored) < 0 || p.needed + PAGES > p.limit)
        return 0;
    const uint64_t mine = block * (uint64_t)p.n_layers / (uint64_t)c->n_layers + sizeof(int32_t);
    uint64_t n = (p.limit - (p.needed - p.kv) - PAGES) / mine;
    for (int i = 0; i < 4 && n; i++) {          /* the room for parts of long contexts and the reserve for graphs grow with the blocks too */
        least.kv_bytes = n * block;
        if (plan_device(o, &least, &bo, &p, &ignored) < 0)
            return 0;
        if (p.needed <= p.limit)
            break;
        const uint64_t over = (p.needed - p.limit + PAGES) / mine + 1;
        n -= over < n ? over : n;
    }
    return n * block;
}

/* ---- */

/* A mixture of experts that does not fit: so many of its experts as there is room for; 1 if that
 * is done. */
static int stream_experts(const char *prog, const struct subject *s, const struct need *n, struct engine_options *eo)
{
    const uint64_t least = n->most < n->now ? n->most : n->now, rest = n->kv + n->states + n->workspace,
                   usable = least / 10 * 9;
    if (!s->config->moe.n_experts || eo->backend || eo->max_weights || usable <= rest)
        return 0;
    char all[CLI_BYTES], some[CLI_BYTES];
    eo->max_weights = (size_t)(usable - rest);
    cli_note(prog, "%s: %s of weights, but there is memory for %s: experts are read from the file as they are chosen",
             s->name, cli_bytes(all, n->weights), cli_bytes(some, eo->max_weights));
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
    if (sum_up(&n, &s, r, eo, eo->backend ? &p : NULL, &why) != 0)         /* a system that does not say what it has refuses nothing */
        return 0;
    if (fits(&n, o->name, &tight, &why) == 0) {
        if (tight)
            cli_note(prog, "%s: memory is tight: more than 90 %% of it will be in use", o->name);
        return 0;
    }
    if (r->force) {
        cli_note(prog, "%s (--force: trying)", why.msg);
        return 0;
    }
    if (stream_experts(prog, &s, &n, eo))
        return 0;
    return err_set(e, ERR_LIMIT, "%s; a smaller type (-q nl4), --ctx, --kv i8 or --max-memory take less, --force tries it", why.msg);
}

void preflight_compare(const char *prog, const struct opened_model *o, const struct run_options *r,
                       const struct engine_options *eo, const struct engine *g)
{
    const struct subject s = subject_of(o);
    struct need n;
    struct err ignored;
    struct engine_stats es;
    char planned[CLI_BYTES], taken[CLI_BYTES];
    if (eo->backend || sum_up(&n, &s, r, eo, NULL, &ignored) != 0)        /* a GPU's memory is counted by its backend */
        return;
    engine_stats(g, &es);
    const uint64_t plan = n.kv + n.states + n.workspace, real = es.private_bytes;         /* keys and values are part of it */
    const int more = (double)real > 1.1 * (double)plan;
    if (more || r->verbose)
        cli_note(prog, "%s%s: %s planned beside the weights, %s taken", more ? "warning: " : "", o->name,
                 cli_bytes(planned, plan), cli_bytes(taken, real));
    if (r->verbose)
        memory_note(prog, "engine open");
}

/* What the prediction rests on. */
static json_t *rates_json(const struct plan_rates *r)
{
    json_t *types = json_object();
    for (int i = 0; i < PLAN_QTYPES; i++)
        if (r->read[i] > 0)
            json_object_set_new(types, qtype_info((enum qtype)i)->name,
                                json_pack("{s:f, s:f}", "read_bytes_per_s", r->read[i], "multiply_ops_per_s",
                                          r->multiply[i]));
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "threads", r->n_threads,
                     "memory_bytes_per_s", r->memory, "f32_flop_per_s", r->f32, "loop_s", r->sync_s,
                     "attend_one_per_s", r->attend[0], "attend_many_per_s", r->attend[1], "norm_s", r->norm_s,
                     "round_s", r->round_s, "act_s", r->act_s, "pick_s", r->pick_s, "types",
                     types);
}

static json_t *plan_json(const struct subject *s, const struct need *n, const struct planned *p,
                         const struct plan_weights *w, const struct run_options *r, int max_len, int ok,
                         const char *why)
{
    const uint64_t all = n->weights + n->kv + n->states + n->workspace;
    struct plan_rates rates = { 0 };
    struct err e;
    double prefill = 0, decode = 0;         /* of weights in memory: nothing is known of the file's speed */
    const int prompt = max_len > PROMPT ? PROMPT : max_len;
    if (!r->exact && n->weights >= s->weights && planned_rates(&rates, w, &p->shape, r->threads, r->kernels, &e) == 0) {
        prefill = plan_prefill(&p->shape, w, &rates, prompt);
        decode = plan_decode(&p->shape, w, &rates, r->kv, prompt);
    }
    return json_pack("{s:s, s:s?, s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:b, s:s?, s:o, s:o, s:o}",
                     "model_name", s->name, "quantization", s->type, "device", "cpu", "estimated_vram_gb",
                     (double)all * 1e-9, "weight_bytes", (json_int_t)n->weights, "kv_bytes", (json_int_t)n->kv,
                     "state_bytes", (json_int_t)n->states, "workspace_bytes", (json_int_t)n->workspace, "needed_bytes",
                     (json_int_t)all, "memory_bytes", (json_int_t)n->most, "available_bytes",
                     (json_int_t)n->now, "context", max_len, "fits", ok, "reason", why,
                     "expected_prefill_tokens_per_sec", prefill > 0 ? json_real(prefill) : json_null(),
                     "expected_tokens_per_sec", decode > 0 ? json_real(decode) : json_null(), "rates",
                     decode > 0 ? rates_json(&rates) : json_null());
}

static json_t *device_json(const struct opened_model *o, const struct gpu_plan *p, int max_len, int ok, const char *why)
{
    json_t *j = json_pack("{s:s, s:s?, s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:b, s:s?, s:n, s:n}", "model_name",
                          o->name, "quantization", type_name(o), "device", gpu_kind, "estimated_vram_gb",
                          (double)p->needed * 1e-9, "weight_bytes", (json_int_t)p->weights, "kv_bytes",
                          (json_int_t)p->kv, "workspace_bytes", (json_int_t)p->work, "needed_bytes",
                          (json_int_t)p->needed, "memory_bytes", (json_int_t)p->total, "available_bytes",
                          (json_int_t)p->limit, "context", max_len, "fits", ok, "reason", why,
                          "expected_prefill_tokens_per_sec", "expected_tokens_per_sec");
    json_object_update_new(j, json_pack("{s:s, s:I, s:i, s:i, s:i, s:I, s:I, s:s?, s:I, s:s?}", "gpu_name", p->name,
                                        "reserve_bytes", (json_int_t)p->reserve, "layers", o->model->config.n_layers,
                                        "gpu_layers", p->n_layers, "gpu_layers_fit", p->most_layers,
                                        "host_weight_bytes", (json_int_t)p->host_weights, "host_kv_bytes",
                                        (json_int_t)p->host_kv, "cuda_graphs_off", p->graphs_off,
                                        "cached_bytes", (json_int_t)p->cached, "cache_weights_off", p->cache_off));
    return j;
}

static void print_plan(const json_t *j)
{
    enum { CACHED = 1, STATES = 3, RESERVE = 5 };       /* most models have no states, and only a GPU the others */
    const struct { const char *title, *key; } sizes[] = { { "weights", "weight_bytes" },
                                                          { "once more as f16", "cached_bytes" },
                                                          { "keys and values", "kv_bytes" },
                                                          { "states", "state_bytes" },
                                                          { "workspace", "workspace_bytes" },
                                                          { "reserve", "reserve_bytes" },
                                                          { "together", "needed_bytes" }, { "memory", "memory_bytes" },
                                                          { "available now", "available_bytes" } };
    const double prefill = json_number_value(json_object_get(j, "expected_prefill_tokens_per_sec")),
                 decode = json_number_value(json_object_get(j, "expected_tokens_per_sec"));
    const char *type = json_string_value(json_object_get(j, "quantization"));
    char size[CLI_BYTES];
    printf("%-16s %s, %s, on %s, context %lld\n", "model", json_string_value(json_object_get(j, "model_name")),
           type ? type : "unknown type", json_string_value(json_object_get(j, "device")),
           (long long)json_integer_value(json_object_get(j, "context")));
    if (js_get(j, "gpu_name"))
        printf("%-16s %s: %lld of %lld layers\n", "GPU", json_string_value(json_object_get(j, "gpu_name")),
               (long long)json_integer_value(json_object_get(j, "gpu_layers")),
               (long long)json_integer_value(json_object_get(j, "layers")));
    if (js_get(j, "cuda_graphs_off") && !json_is_null(js_get(j, "cuda_graphs_off")))
        printf("%-16s off: %s\n", "graphs", json_string_value(js_get(j, "cuda_graphs_off")));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if ((i != CACHED && i != STATES && i != RESERVE) || json_integer_value(json_object_get(j, sizes[i].key)))
            printf("%-16s %s\n", sizes[i].title,
                   cli_bytes_both(size, (uint64_t)json_integer_value(json_object_get(j, sizes[i].key))));
    printf("%-16s %s\n", "fits", json_is_true(json_object_get(j, "fits")) ? "yes" : "no");
    if (decode > 0)
        printf("%-16s prefill %.0f, decode %.1f tokens/s at %d tokens\n", "expected", prefill, decode, PROMPT);
}

static int finish_plan(json_t *j, int ok, int json)
{
    if (json)
        cli_json(j);
    else
        print_plan(j);
    json_decref(j);
    return ok ? CLI_OK : CLI_FAILED;
}

/* Of the processor alone.  What streams its experts fits: the weights are those that it keeps. */
static int plan_processor(const char *prog, const struct subject *s, const struct planned *p,
                          const struct plan_weights *w, const struct run_options *r, struct engine_options *eo,
                          int json)
{
    struct need n;
    struct err e, why;
    int tight;
    if (sum_up(&n, s, r, eo, NULL, &e) != 0)
        return cli_fail(prog, &e);
    int ok = fits(&n, s->name, &tight, &why) == 0;
    if (!ok && stream_experts(prog, s, &n, eo)) {
        n.weights = eo->max_weights;
        ok = 1;
    }
    return finish_plan(plan_json(s, &n, p, w, r, eo->max_len, ok, ok ? NULL : why.msg), ok, json);
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
        rc = plan_processor(prog, &s, &p, &w, r, eo, json);
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
    return plan_processor(prog, &s, &u->planned, &u->w, r, eo, json);
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
    const int settled = eo->backend ? settle(prog, o, r, eo, &device, &why) : 0;
    if (settled < 0 && plan_device(o, eo, &bo, &device, &e) < 0)
        return cli_fail(prog, &e);
    if (eo->backend) {                  /* and the processor's part, as preflight_check() looks at it */
        const int ok = settled == 0 && (device.host_weights == 0 || sum_up(&n, &s, r, eo, &device, &e) != 0 ||
                                        fits(&n, o->name, &tight, &why) == 0);
        return finish_plan(device_json(o, &device, eo->max_len, ok, ok ? NULL : why.msg), ok, json);
    }
    return plan_opened(prog, o, r, eo, json);
}

#include "cmd/preflight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/planning.h"
#include "libcommon/base/json.h"
#include "libcommon/engine/cpu.h"
#include "libcommon/hw/memory.h"

enum { PROMPT = 512 };              /* tokens that speeds are predicted for */

const char *preflight_root(void)
{
    const char *root = getenv("ZSE_SYSROOT");
    return root && *root ? root : NULL;
}

struct need { uint64_t weights, kv, states, workspace, most, now; };        /* most, now: memory that may be had */

static int sum_up(struct need *n, const struct opened_model *o, const struct run_options *r, int max_seqs, int max_len, uint64_t kv_bytes, struct err *e)
{
    const struct config *c = &o->model->config;
    const struct planned p = { .shape = { .vocab_size = c->vocab_size } };
    const uint64_t blocks = (uint64_t)((max_len + KV_BLOCK - 1) / KV_BLOCK) * (uint64_t)max_seqs;
    n->weights = r->max_memory && r->max_memory < o->model->weight_bytes ? r->max_memory : o->model->weight_bytes;
    n->kv = kv_bytes ? kv_bytes : blocks * config_kv_bytes(c, r->kv);
    n->states = (uint64_t)(max_seqs + ENGINE_SNAPSHOTS) * config_state_bytes(c);
    n->workspace = planned_workspace(&p) + (r->gpu ? 0 : cpu_step_memory(c) - CPU_STEP_LEAST);
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

int preflight_check(const char *prog, const struct opened_model *o, const struct run_options *r, int max_seqs, int max_len, uint64_t kv_bytes, struct err *e)
{
    struct need n;
    struct err why;
    int tight;
    if (r->gpu || sum_up(&n, o, r, max_seqs, max_len, kv_bytes, &why) != 0)         /* a system that does not say what it has refuses nothing */
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
    return err_set(e, ERR_LIMIT, "%s; a smaller type (-q nl4), --ctx, --kv i8 or --max-memory take less, --force tries it", why.msg);
}

/* What the prediction rests on. */
static json_t *rates_json(const struct plan_rates *r)
{
    json_t *types = json_object();
    for (int i = 0; i < PLAN_QTYPES; i++)
        if (r->read[i] > 0)
            json_object_set_new(types, qtype_info((enum qtype)i)->name, json_pack("{s:f, s:f}", "read_bytes_per_s", r->read[i], "multiply_ops_per_s", r->multiply[i]));
    return json_pack("{s:i, s:f, s:f, s:f, s:o}", "threads", r->n_threads, "memory_bytes_per_s", r->memory, "f32_flop_per_s", r->f32, "loop_s", r->sync_s, "types", types);
}

static json_t *plan_json(const struct opened_model *o, const struct need *n, const struct planned *p, const struct plan_weights *w, const struct run_options *r, int max_len, int ok,
                         const char *why)
{
    const json_t *q = js_get(o->json, "quantization"), *type = json_is_object(q) ? js_get(q, "type") : q;
    const uint64_t all = n->weights + n->kv + n->states + n->workspace;
    struct plan_rates rates;
    struct err e;
    double prefill = 0, decode = 0;
    const int prompt = max_len > PROMPT ? PROMPT : max_len;
    if (!r->gpu && !r->exact && planned_rates(&rates, w, &p->shape, r->threads, r->kernels, &e) == 0) {
        prefill = plan_prefill(&p->shape, w, &rates, prompt);
        decode = plan_decode(&p->shape, w, &rates, r->kv, prompt);
    }
    return json_pack("{s:s, s:s?, s:s, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:b, s:s?, s:o, s:o, s:o}", "model_name", o->name, "quantization", json_string_value(type), "device",
                     r->gpu ? "cuda" : "cpu", "estimated_vram_gb", (double)all * 1e-9, "weight_bytes", (json_int_t)n->weights, "kv_bytes", (json_int_t)n->kv, "state_bytes",
                     (json_int_t)n->states, "workspace_bytes", (json_int_t)n->workspace, "needed_bytes", (json_int_t)all, "memory_bytes", (json_int_t)n->most, "available_bytes",
                     (json_int_t)n->now, "context", max_len, "fits", ok, "reason", why, "expected_prefill_tokens_per_sec",
                     prefill > 0 ? json_real(prefill) : json_null(), "expected_tokens_per_sec", decode > 0 ? json_real(decode) : json_null(), "rates",
                     decode > 0 ? rates_json(&rates) : json_null());
}

static void print_plan(const json_t *j)
{
    enum { STATES = 2 };
    const struct { const char *title, *key; } sizes[] = { { "weights", "weight_bytes" }, { "keys and values", "kv_bytes" }, { "states", "state_bytes" }, { "workspace", "workspace_bytes" },
                                                          { "together", "needed_bytes" }, { "memory", "memory_bytes" }, { "available now", "available_bytes" } };
    const double prefill = json_number_value(json_object_get(j, "expected_prefill_tokens_per_sec")), decode = json_number_value(json_object_get(j, "expected_tokens_per_sec"));
    const char *type = json_string_value(json_object_get(j, "quantization"));
    char size[CLI_BYTES];
    printf("%-16s %s, %s, on %s, context %lld\n", "model", json_string_value(json_object_get(j, "model_name")), type ? type : "unknown type",
           json_string_value(json_object_get(j, "device")), (long long)json_integer_value(json_object_get(j, "context")));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (i != STATES || json_integer_value(json_object_get(j, sizes[i].key)))        /* most models have none */
            printf("%-16s %s\n", sizes[i].title, cli_bytes_both(size, (uint64_t)json_integer_value(json_object_get(j, sizes[i].key))));
    printf("%-16s %s\n", "fits", json_is_true(json_object_get(j, "fits")) ? "yes" : "no");
    if (decode > 0)
        printf("%-16s prefill %.0f, decode %.1f tokens/s at %d tokens\n", "expected", prefill, decode, PROMPT);
}

int preflight_plan(const char *prog, const struct opened_model *o, const struct run_options *r, int max_seqs, int max_len, uint64_t kv_bytes, int json)
{
    struct need n;
    struct planned p;
    struct plan_weights w;
    struct err e, why;
    int tight;
    if (sum_up(&n, o, r, max_seqs, max_len, kv_bytes, &e) != 0 || planned_of(&p, &o->model->config, &e) != 0)
        return cli_fail(prog, &e);
    planned_file(&p, o->model->file, &w);
    const int ok = fits(&n, o->name, &tight, &why) == 0;
    json_t *j = plan_json(o, &n, &p, &w, r, max_len, ok, ok ? NULL : why.msg);
    if (json)
        cli_json(j);
    else
        print_plan(j);
    json_decref(j);
    planned_close(&p);
    const int rc = cli_finish(prog);
    return rc ? rc : ok ? CLI_OK : CLI_FAILED;
}

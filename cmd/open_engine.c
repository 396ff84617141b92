/* open_engine.c - start an engine on an open model: its options, its guesses, its memory. */
#include "cmd/open_model.h"
#include "cmd/diag.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/preflight.h"
#include "gpu/gpu.h"
#include "libcommon/engine/device_show.h"

/* Default context with --window, where a token of context takes only some bytes. */
enum { STREAM_CTX = 131072 };

int context_of(const struct config *c, const struct run_options *r)
{
    const int most = c->embedding.max_len ? c->embedding.max_len : c->max_len;
    return r->ctx ? r->ctx : r->window ? STREAM_CTX : most > 0 && most < 8192 ? most : 8192;
}

int context_len(const struct opened_model *o, const struct run_options *r) { return context_of(&o->model->config, r); }

/* Tokens of a prompt in one step, enough to fill a GPU's multiprocessors. */
enum { GPU_STEP_TOKENS = 1024 };

/* Whether this environment variable is set and not 0. */
static int env_on(const char *name)
{
    const char *v = getenv(name);
    return v && *v && strcmp(v, "0") != 0;
}

/* Whether this environment variable is 0. */
static int env_off(const char *name)
{
    const char *v = getenv(name);
    return v && strcmp(v, "0") == 0;
}

static void note_prefixes(void *prog, const char *text) { cli_note(prog, "%s", text); }

struct engine_options run_engine_options(const struct run_options *r, int max_seqs, int max_len)
{
    const int some = r->gpu_layers_given && r->gpu_layers > 0;
    return (struct engine_options){ .n_threads = r->threads, .kv = r->kv, .window = r->window,
                                    .sinks = r->sinks, .pages = r->pages, .pattern = r->pattern, .max_len = max_len,
                                    .max_seqs = max_seqs,
                                    .exact = r->exact, .kernels = r->kernels,
                                    .no_prefix_cache = r->no_prefix_cache, .max_weights = r->gpu ? 0
                                        : (size_t)r->max_memory,
                                    .max_device = r->gpu ? (size_t)(r->max_device ? r->max_device : r->max_memory) : 0,
                                    .max_tokens = r->gpu && !some ? GPU_STEP_TOKENS : 0,
                                    .backend = r->gpu ? &backend_gpu : NULL, .device = r->gpu_index, .gpus = r->gpus,
                                    .device_layers = some ? r->gpu_layers : 0, .moe = r->moe,
                                    .gpu_experts = r->gpu_experts, .prefill_threshold = r->prefill_threshold,
                                    .no_gpu_prefill = r->no_gpu_prefill, .expert_uploads = r->expert_uploads,
                                    .layer_stream = r->layer_stream,
                                    .stream_window = r->stream_window, .stream_prefetch = r->prefetch,
                                    .stream_sequential = r->stream_sequential, .strict = r->strict,
                                    .watch = env_on("ZSE_DIAG") ? &diag_watch : NULL,
                                    .debug_sync = env_on("ZSE_DEBUG_SYNC"),
                                    .wgmma = !env_off("ZSE_WGMMA"),
                                    .no_dependent_launches = env_off("ZSE_PDL"),
                                    .one_launch = env_off("ZSE_ONE_LAUNCH") ? ONE_LAUNCH_OFF
                                                  : env_on("ZSE_ONE_LAUNCH") ? ONE_LAUNCH_ON : ONE_LAUNCH_AUTO,
                                    .no_graphs = r->no_graphs,
                                    .act_codes = r->act_codes,
                                    .cache_weights = r->cache_weights,
                                    .drafter = r->spec == SPEC_AUTO || r->spec == SPEC_NGRAM ? &drafter_ngram : NULL,
                                    .prefix_folder = r->prefix_folder, .prefix_bytes = r->prefix_bytes,
                                    .prefix_note = note_prefixes, .prefix_user = (void *)(uintptr_t)r->prefix_prog,
                                    .draft = r->draft, .draft_distribution = r->draft_distribution };
}

/* Whether --spec auto may use a layer or heads of the model's file. */
static int auto_may_draft(const struct run_options *r, const struct opened_model *o, const struct engine_options *eo)
{
    return !engine_no_drafts(o->model, eo) && !r->max_memory && !eo->max_weights && !eo->window;
}

/* Whether --spec auto uses the model's layer that predicts further tokens. */
static int auto_predicts(const struct run_options *r, const struct opened_model *o, const struct engine_options *eo)
{
    struct err ignored;
    return auto_may_draft(r, o, eo) && engine_check_predictor(o->model, eo, &ignored) == 0;
}

/* The heads that --spec medusa uses; for auto those of the file, unless the model has a layer that
 * predicts further tokens.  NULL: none. */
static const struct medusa *heads_of(const struct run_options *r, const struct opened_model *o,
                                     const struct engine_options *eo)
{
    const struct medusa *own = o->model->medusa;
    struct err ignored;
    if (r->spec == SPEC_MEDUSA)
        return o->heads ? o->heads : own;
    return r->spec == SPEC_AUTO && !eo->predictor && !eo->eagle && own && auto_may_draft(r, o, eo) &&
           engine_check_medusa(own, &o->model->config, eo, &ignored) == 0 ? own : NULL;
}

/* The EAGLE heads that --spec eagle uses; for auto as heads_of(). */
static const struct eagle *eagle_of(const struct run_options *r, const struct opened_model *o,
                                    const struct engine_options *eo)
{
    const struct eagle *own = o->model->eagle;
    struct err ignored;
    if (r->spec == SPEC_EAGLE)
        return o->eagle ? o->eagle : own;
    return r->spec == SPEC_AUTO && !eo->predictor && own && auto_may_draft(r, o, eo) &&
           engine_check_eagle(own, o->model, eo, &ignored) == 0 ? own : NULL;
}

int run_spec(const struct run_options *r, const struct opened_model *o, struct engine_options *eo, struct err *e)
{
    static const char *const names[] = { [SPEC_NGRAM] = "ngram", [SPEC_MTP] = "mtp", [SPEC_DRAFT] = "draft",
                                         [SPEC_SELF] = "self", [SPEC_MEDUSA] = "medusa", [SPEC_EAGLE] = "eagle" };
    const char *why = r->spec == SPEC_OFF || r->spec == SPEC_AUTO ? NULL : engine_no_drafts(o->model, eo);
    struct engine_options own = *eo;
    if (why)
        return err_set(e, ERR_UNSUPPORTED, "--spec %s: %s", names[r->spec], why);
    if (r->spec == SPEC_SELF && engine_check_draft_layers(&o->model->config, eo, r->draft_layers, e) != 0)
        return err_prefix(e, "--spec self");
    if (r->spec == SPEC_MTP && engine_check_predictor(o->model, eo, e) != 0)
        return err_prefix(e, "--spec mtp");
    eo->draft_layers = r->spec == SPEC_SELF ? r->draft_layers : 0;
    eo->predictor = r->spec == SPEC_MTP || (r->spec == SPEC_AUTO && auto_predicts(r, o, eo));
    eo->eagle = eagle_of(r, o, eo);
    eo->medusa = heads_of(r, o, eo);
    if (r->spec == SPEC_MEDUSA && !eo->medusa)
        return err_set(e, ERR_UNSUPPORTED, "--spec medusa: the model's file has no Medusa heads (zse-convert --heads); medusa:FILE names others");
    if (eo->medusa && engine_check_medusa(eo->medusa, &o->model->config, eo, e) != 0)
        return err_prefix(e, "--spec medusa");
    if (r->spec == SPEC_EAGLE && !eo->eagle)
        return err_set(e, ERR_UNSUPPORTED, "--spec eagle: the model's file has no EAGLE heads (zse-convert --heads); eagle:DIR names others");
    if (eo->eagle && engine_check_eagle(eo->eagle, o->model, eo, e) != 0)
        return err_prefix(e, "--spec eagle");
    if (!o->draft)
        return 0;
    eo->draft_model = o->draft->model;
    own.max_weights = 0;
    engine_draft_device(&own.gpus, &own.device);
    return preflight_check(o->prog, o->draft, r, &own, e);
}

struct engine *open_engine(const struct opened_model *o, const struct run_options *r, int max_seqs, int max_len,
                           int max_tokens, struct err *e)
{
    struct engine_options eo = run_engine_options(r, max_seqs, max_len ? max_len : context_len(o, r));
    if (max_tokens)
        eo.max_tokens = max_tokens;
    if (run_spec(r, o, &eo, e) != 0 || preflight_check(o->prog, o, r, &eo, e) != 0)
        return NULL;
    struct engine *g = engine_open(o->model, o->tokenizer, &eo, e);
    if (g)
        preflight_compare(o->prog, o, r, &eo, g);
    if (g && r->verbose) {
        struct engine_stats s;
        char line[DEVICE_LINE];
        engine_stats(g, &s);
        device_line(line, &s, o->model->config.n_layers);
        cli_note(o->prog, "%s: %s", o->name, line);
    }
    return g;
}

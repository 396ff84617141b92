/* run_device.c - the options that say where a model runs: the device, several GPUs, and what a GPU
 * holds and computes. */
#include "cmd/run_device.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "gpu/gpu.h"
#include "libcommon/plan/layer_window.h"

/* auto: a GPU if there is one that works, else the CPU. */
static int parse_device(const char *prog, const char *where, const char *device, struct run_options *r)
{
    const size_t kind = strlen(gpu_kind);
    struct err e;
    long long n = 0;
    r->gpu = r->gpu_index = r->gpu_auto = 0;
    if (strcmp(device, "cpu") == 0)
        return 0;
    if (strcmp(device, "auto") == 0) {
        r->gpu = r->gpu_auto = strcmp(gpu_kind, "cuda") == 0 && gpu_count(&e) > 0;
        return 0;
    }
    if (strncmp(device, "cuda", 4) == 0 && strcmp(gpu_kind, "cuda") != 0 && (!device[4] || device[4] == ':')) {
        if (strcmp(gpu_kind, "none") == 0)
            gpu_count(&e);
        else
            err_set(&e, ERR_DEVICE, "this build emulates a GPU: --device emulated");
        cli_fail(prog, &e);
        return CLI_FAILED;
    }
    if (strcmp(gpu_kind, "none") == 0 || strncmp(device, gpu_kind, kind) != 0 || (device[kind] && device[kind] != ':'))
        return cli_wrong(prog, "%s: '%s', expected auto, cpu, cuda or cuda:N", where, device);
    if (device[kind] && cli_parse_int(prog, where, device + kind + 1, 0, 1023, &n) != 0)
        return CLI_USAGE;
    r->gpu = 1;
    r->gpu_index = (int)n;
    return 0;
}

/* Parse a list of at most BACKEND_MOST_GPUS numbers from `least` on.  0, or the exit code. */
static int parse_list(const char *prog, const char *name, const char *arg, int least, const char *what,
                      int out[BACKEND_MOST_GPUS], int *n)
{
    *n = 0;
    for (const char *p = arg;; p++) {
        const size_t digits = strspn(p, "0123456789");
        if (digits == 0 || digits > 6 || (p[digits] && p[digits] != ',') || atoi(p) < least)
            return cli_wrong(prog, "%s: '%s', expected %s", name, arg, what);
        if (*n == BACKEND_MOST_GPUS)
            return cli_wrong(prog, "%s: '%s', expected at most %d GPUs", name, arg, BACKEND_MOST_GPUS);
        out[(*n)++] = atoi(p);
        p += digits;
        if (!*p)
            return 0;
    }
}

static int parse_gpus(const char *prog, const char *arg, struct run_options *r)
{
    struct backend_gpus *g = &r->gpus;
    r->gpus_text = arg;
    if (parse_list(prog, "--gpus", arg, 0, "numbers of GPUs, like 0,1", g->index, &g->n) != 0)
        return CLI_USAGE;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < i; k++)
            if (g->index[i] == g->index[k])
                return cli_wrong(prog, "--gpus: '%s' names GPU %d twice", arg, g->index[i]);
    return 0;
}

static int parse_split(const char *prog, const char *arg, struct run_options *r)
{
    r->split_text = arg;
    return parse_list(prog, "--pp-split", arg, 1, "layers of each GPU, like 20,21,20", r->gpus.layers, &r->n_split);
}

static int parse_tp(const char *prog, const char *arg, struct run_options *r)
{
    long long n;
    if (cli_parse_int(prog, "--tp", arg, 1, BACKEND_MOST_GPUS, &n) != 0)
        return CLI_USAGE;
    r->tp = (int)n;
    return 0;
}

/* Let --tp choose the first GPUs, or make stages of those of --gpus.  0, or the exit code. */
static int use_tp(const char *prog, struct run_options *r)
{
    if (r->tp < 2)
        return 0;
    if (r->gpus_text && r->gpus.n % r->tp)
        return cli_wrong(prog, "--tp %d: --gpus names %d GPU%s, expected a multiple of %d", r->tp, r->gpus.n,
                         r->gpus.n == 1 ? "" : "s", r->tp);
    for (int i = 0; !r->gpus_text && i < r->tp; i++)
        r->gpus.index[i] = i;
    r->gpus.n = r->gpus_text ? r->gpus.n : r->tp;
    r->gpus.tp = r->tp;
    return 0;
}

/* Run on the GPUs of --gpus or --tp.  0, or the exit code. */
static int use_gpus(const char *prog, struct run_options *r)
{
    struct err e;
    const char *name = r->gpus_text ? "--gpus" : "--tp";
    if (r->device && (strcmp(r->device, "cpu") == 0 || strchr(r->device, ':')))
        return cli_wrong(prog, "%s and --device %s exclude each other: both choose where to compute", name, r->device);
    if (use_tp(prog, r) != 0)
        return CLI_USAGE;
    const int rc = parse_device(prog, "--device", r->device && strcmp(r->device, "auto") != 0 ? r->device
                                : strcmp(gpu_kind, "none") != 0 ? gpu_kind : "cuda", r);
    if (rc != 0)
        return rc;
    const int n = gpu_count(&e);
    if (n < 0)
        return cli_fail(prog, &e);
    for (int i = 0; i < r->gpus.n; i++)
        if (r->gpus.index[i] >= n)
            return cli_wrong(prog, "%s: there is no GPU %d, this machine has %d, expected 0 to %d", name, r->gpus.index[i],
                             n, n - 1);
    r->gpu_index = r->gpus.index[0];
    const int a_stage = r->gpus.tp > 1 ? r->gpus.tp : 1, stages = r->gpus.n / a_stage;
    if (r->split_text && r->n_split != stages)
        return cli_wrong(prog, "--pp-split: %d numbers for %d %s%s", r->n_split, stages, a_stage > 1 ? "stage" : "GPU",
                         stages == 1 ? "" : "s");
    if (r->gpus.n == 1)
        r->gpus.n = 0;
    return 0;
}

static int parse_layers(const char *prog, const char *arg, struct run_options *r)
{
    long long n = GPU_LAYERS_AUTO;
    if (strcmp(arg, "auto") != 0 && cli_parse_int(prog, "--gpu-layers", arg, 0, 1 << 20, &n) != 0)
        return CLI_USAGE;
    r->gpu_layers = (int)n;
    r->gpu_layers_given = 1;
    return 0;
}

/* "auto", "off", "N" or "sequential:N". */
static int parse_layer_window(const char *prog, const char *arg, struct run_options *r)
{
    static const char all[] = "sequential:";
    long long n = 0;
    r->stream_sequential = strncmp(arg, all, sizeof all - 1) == 0;
    const char *number = arg + (r->stream_sequential ? sizeof all - 1 : 0);
    r->layer_stream = strcmp(arg, "off") == 0 ? LAYER_STREAM_OFF : LAYER_STREAM_AUTO;
    r->stream_given = 1;
    if (r->layer_stream && strcmp(arg, "auto") != 0 && cli_parse_int(prog, "--layer-window", number, 1, 1 << 20, &n) != 0)
        return CLI_USAGE;
    r->stream_window = (int)n;
    return 0;
}

static int parse_prefetch(const char *prog, const char *arg, struct run_options *r)
{
    long long n;
    if (cli_parse_int(prog, "--prefetch", arg, 0, WINDOW_SLOTS - 1, &n) != 0)
        return CLI_USAGE;
    r->prefetch = (int)n;
    r->prefetch_given = 1;
    return 0;
}

/* Refuse options of a GPU's memory without a GPU.  A model that does not fit is streamed, unless
 * the layers may be shared with the processor. */
static int check_layer_window(const char *prog, struct run_options *r)
{
    const char *name = r->stream_window ? "--layer-window" : r->prefetch_given ? "--prefetch"
                       : r->max_device ? "--max-device" : NULL;
    if (name && !r->gpu)
        return cli_wrong(prog, "%s: there is no GPU (--device)", name);
    if (!r->prefetch_given)
        r->prefetch = WINDOW_PREFETCH;
    if (!r->stream_given)
        r->layer_stream = r->gpu_auto || (r->gpu_layers_given && r->gpu_layers == GPU_LAYERS_AUTO) ? LAYER_STREAM_OFF
                                                                                                   : LAYER_STREAM_AUTO;
    return 0;
}

static int parse_graphs(const char *prog, const char *arg, struct run_options *r)
{
    r->no_graphs = strcmp(arg, "off") == 0;
    r->graphs_given = 1;
    return r->no_graphs || strcmp(arg, "on") == 0 ? 0 : cli_wrong(prog, "--cuda-graphs: '%s', expected on or off", arg);
}

static int parse_act(const char *prog, const char *arg, struct run_options *r)
{
    r->act_given = 1;
    for (r->act_codes = ACT_CODES_FP8; r->act_codes >= 0; r->act_codes--)
        if (strcmp(arg, act_codes_name(r->act_codes)) == 0)
            return 0;
    return cli_wrong(prog, "--act: '%s', expected f16, int8 or fp8", arg);
}

const char *run_moe_name(int moe)
{
    static const char *const names[] = { [MOE_HYBRID] = "hybrid", [MOE_CPU] = "cpu", [MOE_GPU] = "gpu" };
    return names[moe];
}

static int parse_moe(const char *prog, const char *arg, struct run_options *r)
{
    r->moe_given = 1;
    for (int i = MOE_HYBRID; i <= MOE_GPU; i++)
        if (strcmp(arg, run_moe_name(i)) == 0) {
            r->moe = i;
            return 0;
        }
    return cli_wrong(prog, "--moe: '%s', expected hybrid, cpu or gpu", arg);
}

static int parse_threshold(const char *prog, const char *arg, struct run_options *r)
{
    long long n = 0;
    if (strcmp(arg, "auto") != 0 && cli_parse_int(prog, "--gpu-prefill-threshold", arg, 1, 1 << 20, &n) != 0)
        return CLI_USAGE;
    r->prefill_threshold = (int)n;
    r->threshold_given = 1;
    return 0;
}

static int parse_uploads(const char *prog, const char *arg, struct run_options *r)
{
    long long n = EXPERT_UPLOADS_AUTO;
    if (strcmp(arg, "auto") != 0 && cli_parse_int(prog, "--expert-uploads", arg, 0, 100, &n) != 0)
        return CLI_USAGE;
    r->expert_uploads = (int)n;
    r->uploads_given = 1;
    return 0;
}

static int parse_experts(const char *prog, const char *arg, struct run_options *r)
{
    long long n;
    if (cli_parse_int(prog, "--gpu-experts", arg, 0, 1 << 20, &n) != 0)
        return CLI_USAGE;
    r->gpu_experts = (int)n;
    r->experts_given = 1;
    return 0;
}

/* Refuse placements of experts that contradict each other or need a GPU. */
static int check_moe(const char *prog, struct run_options *r)
{
    if (r->threshold_given && r->no_gpu_prefill)
        return cli_wrong(prog, "--gpu-prefill-threshold and --no-gpu-prefill exclude each other");
    if (r->moe != MOE_HYBRID && r->experts_given)
        return cli_wrong(prog, "--moe %s and --gpu-experts exclude each other: both place the experts",
                         run_moe_name(r->moe));
    if (r->uploads_given && r->moe != MOE_HYBRID)
        return cli_wrong(prog, "--expert-uploads: --moe %s leaves nothing to divide", run_moe_name(r->moe));
    if (r->uploads_given && r->tp > 1)
        return cli_wrong(prog, "--tp and --expert-uploads exclude each other: the GPUs hold all experts");
    if ((r->threshold_given || r->no_gpu_prefill) && r->tp > 1)
        return cli_wrong(prog, "--tp and %s exclude each other: the GPUs hold all experts",
                         r->no_gpu_prefill ? "--no-gpu-prefill" : "--gpu-prefill-threshold");
    if (r->uploads_given && !r->gpu)
        return cli_wrong(prog, "--expert-uploads: there is no GPU (--device)");
    if (r->experts_given && r->gpu_experts == 0)
        r->moe = r->gpu ? MOE_PASSING : MOE_CPU;
    r->expert_uploads = r->uploads_given ? r->expert_uploads : EXPERT_UPLOADS_AUTO;
    if (r->stream_window && r->gpu && (r->moe == MOE_CPU || r->experts_given))
        return cli_wrong(prog, "--layer-window and %s exclude each other: a window has layers with all their experts",
                         r->experts_given ? "--gpu-experts" : "--moe cpu");
    if (r->threshold_given && !r->gpu)
        return cli_wrong(prog, "--gpu-prefill-threshold: there is no GPU (--device)");
    if (r->gpu || r->moe == MOE_CPU)
        return 0;
    if (r->experts_given)
        return cli_wrong(prog, "--gpu-experts %d: there is no GPU (--device)", r->gpu_experts);
    return r->moe_given ? cli_wrong(prog, "--moe %s: there is no GPU (--device)", run_moe_name(r->moe)) : 0;
}

const char *run_cache_name(int cache_weights)
{
    static const char *const names[] = { [CACHE_WEIGHTS_OFF] = "off", [CACHE_WEIGHTS_AUTO] = "auto",
                                         [CACHE_WEIGHTS_ON] = "on" };
    return names[cache_weights];
}

static int parse_cache(const char *prog, const char *arg, struct run_options *r)
{
    r->cache_given = 1;
    for (int i = CACHE_WEIGHTS_OFF; i <= CACHE_WEIGHTS_ON; i++)
        if (strcmp(arg, run_cache_name(i)) == 0) {
            r->cache_weights = i;
            return 0;
        }
    return cli_wrong(prog, "--cache-weights: '%s', expected auto, on or off", arg);
}

/* Refuse --cache-weights on where f16 copies of weights would have no effect; auto is accepted. */
static int check_cache(const char *prog, const struct run_options *r)
{
    if (r->cache_weights != CACHE_WEIGHTS_ON)
        return 0;
    if (r->exact || r->strict)
        return cli_wrong(prog, "--cache-weights on: %s does not read weights as f16",
                         r->exact ? "--exact" : "--strict");
    return r->gpu ? 0 : cli_wrong(prog, "--cache-weights on: there is no GPU (--device)");
}

int run_device_option(const char *prog, int c, const char *arg, struct run_options *r)
{
    switch (c) {
    case OPT_DEVICE: r->device = arg; return 0;
    case OPT_GPUS: return parse_gpus(prog, arg, r);
    case OPT_PP_SPLIT: return parse_split(prog, arg, r);
    case OPT_TP: return parse_tp(prog, arg, r);
    case OPT_GPU_LAYERS: return parse_layers(prog, arg, r);
    case OPT_LAYER_WINDOW: return parse_layer_window(prog, arg, r);
    case OPT_PREFETCH: return parse_prefetch(prog, arg, r);
    case OPT_MAX_DEVICE:
        if (cli_parse_size(prog, "--max-device", arg, &r->max_device) != 0)
            return CLI_USAGE;
        return r->max_device ? 0 : cli_wrong(prog, "--max-device: '%s', expected more than 0", arg);
    case OPT_MOE: return parse_moe(prog, arg, r);
    case OPT_GPU_EXPERTS: return parse_experts(prog, arg, r);
    case OPT_PREFILL_THRESHOLD: return parse_threshold(prog, arg, r);
    case OPT_NO_GPU_PREFILL: r->no_gpu_prefill = 1; return 0;
    case OPT_EXPERT_UPLOADS: return parse_uploads(prog, arg, r);
    case OPT_GRAPHS: return parse_graphs(prog, arg, r);
    case OPT_ACT: return parse_act(prog, arg, r);
    case OPT_CACHE_WEIGHTS: return parse_cache(prog, arg, r);
    default: return -1;
    }
}

int run_device_check(const char *prog, struct run_options *r)
{
    const char *device = getenv("ZSE_DEVICE");
    if (r->split_text && !r->gpus_text)
        return cli_wrong(prog, "--pp-split needs --gpus");
    int rc = r->gpus_text || r->tp > 1 ? use_gpus(prog, r)
             : r->device ? parse_device(prog, "--device", r->device, r)
                       : parse_device(prog, "ZSE_DEVICE", device && *device ? device : "auto", r);
    if (rc == 0 && r->gpu_layers_given && r->gpu_layers > 0 && !r->gpu)
        return cli_wrong(prog, "--gpu-layers %d: there is no GPU (--device)", r->gpu_layers);
    if (r->gpu_layers_given && r->gpu_layers == 0)
        r->gpu = 0;
    if (rc == 0 && r->graphs_given && !r->no_graphs && !r->gpu)
        return cli_wrong(prog, "--cuda-graphs on: there is no GPU (--device)");
    if (rc == 0 && r->act_codes && !r->gpu)
        return cli_wrong(prog, "--act %s: there is no GPU (--device)", act_codes_name(r->act_codes));
    if (rc == 0)
        rc = check_moe(prog, r);
    if (rc == 0)
        rc = check_layer_window(prog, r);
    return rc ? rc : check_cache(prog, r);
}

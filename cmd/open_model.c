/* open_model.c - open MODEL of the command line: fetch, convert, map, plan memory, start an
 * engine. */
#include "cmd/open_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/conv_cache.h"
#include "cmd/home.h"
#include "cmd/sigbus.h"
#include "cmd/hub_cli.h"
#include "cmd/memory_note.h"
#include "cmd/preflight.h"
#include "gpu/gpu.h"
#include "libcommon/base/clock.h"
#include "libcommon/convert/convert.h"
#include "libcommon/convert/eagle_source.h"
#include "libcommon/convert/medusa_source.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/engine/device_show.h"
#include "libcommon/hw/machine.h"
#include "libcommon/import/peft.h"
#include "libcommon/import/source.h"
#include "libcommon/model/lora.h"
#include "libcommon/model/lora_plan.h"
#include "libcommon/plan/layer_window.h"
#include "libcommon/store/store.h"

/* ---- options ---- */

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

/* Run on the GPUs of --gpus.  0, or the exit code. */
static int use_gpus(const char *prog, struct run_options *r)
{
    struct err e;
    if (r->device && (strcmp(r->device, "cpu") == 0 || strchr(r->device, ':')))
        return cli_wrong(prog, "--gpus and --device %s exclude each other: both choose where to compute", r->device);
    const int rc = parse_device(prog, "--device", r->device && strcmp(r->device, "auto") != 0 ? r->device
                                : strcmp(gpu_kind, "none") != 0 ? gpu_kind : "cuda", r);
    if (rc != 0)
        return rc;
    const int n = gpu_count(&e);
    if (n < 0)
        return cli_fail(prog, &e);
    for (int i = 0; i < r->gpus.n; i++)
        if (r->gpus.index[i] >= n)
            return cli_wrong(prog, "--gpus: there is no GPU %d, this machine has %d, expected 0 to %d", r->gpus.index[i],
                             n, n - 1);
    r->gpu_index = r->gpus.index[0];
    if (r->split_text && r->n_split != r->gpus.n)
        return cli_wrong(prog, "--pp-split: %d numbers for %d GPU%s", r->n_split, r->gpus.n, r->gpus.n == 1 ? "" : "s");
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
    r->act_int8 = strcmp(arg, "int8") == 0;
    r->act_given = 1;
    return r->act_int8 || strcmp(arg, "f16") == 0 ? 0 : cli_wrong(prog, "--act: '%s', expected f16 or int8", arg);
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
    long long n;
    if (cli_parse_int(prog, "--gpu-prefill-threshold", arg, 1, 1 << 20, &n) != 0)
        return CLI_USAGE;
    r->prefill_threshold = (int)n;
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

/* Refuse placements of experts that contradict each other or need a GPU; --gpu-experts 0 is --moe
 * cpu. */
static int check_moe(const char *prog, struct run_options *r)
{
    if (r->prefill_threshold && r->no_gpu_prefill)
        return cli_wrong(prog, "--gpu-prefill-threshold and --no-gpu-prefill exclude each other");
    if (r->moe != MOE_HYBRID && r->experts_given)
        return cli_wrong(prog, "--moe %s and --gpu-experts exclude each other: both place the experts",
                         run_moe_name(r->moe));
    if (r->experts_given && r->gpu_experts == 0)
        r->moe = MOE_CPU;
    if (r->prefill_threshold && !r->gpu)
        return cli_wrong(prog, "--gpu-prefill-threshold %d: there is no GPU (--device)", r->prefill_threshold);
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

static const struct kv_spelling { const char *name; enum kv_type type; } kv_spellings[] = {
#define KVTYPE(id, name, ...) { name, KV_##id },
#define KVTYPE_SPELLING(id, name) { name, KV_##id },
#include "libcommon/quant/kvtype.def"
};

/* The type of keys or values called by the first n bytes of name, or KV_TYPES. */
static enum kv_type find_kv(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof(kv_spellings) / sizeof(*kv_spellings); i++)
        if (strlen(kv_spellings[i].name) == n && memcmp(name, kv_spellings[i].name, n) == 0)
            return kv_spellings[i].type;
    return KV_TYPES;
}

/* Parse --kv: "i8", or "k=i8,v=i4"; if k or v is missing, that type is f16. */
static int parse_kv(const char *prog, const char *arg, struct run_options *r)
{
    struct kv_types kv = kv_both(find_kv(arg, strlen(arg)));
    if (kv.key == KV_TYPES && strchr(arg, '=')) {
        enum kv_type *seen = NULL;
        kv = kv_both(KV_F16);
        for (const char *p = arg, *end;; p = end + 1) {
            end = strchrnul(p, ',');
            enum kv_type *to = p[0] == 'k' ? &kv.key : p[0] == 'v' ? &kv.value : NULL;
            if (!to || p[1] != '=' || to == seen || (*to = find_kv(p + 2, (size_t)(end - p) - 2)) == KV_TYPES ||
                (*end && seen)) {
                kv.key = KV_TYPES;
                break;
            }
            if (!*end)
                break;
            seen = to;
        }
    }
    if (kv.key == KV_TYPES)
        return cli_wrong(prog, "--kv: '%s', expected f32, bf16, f16, fp8, i8, i4 or ternary, or two of them as in k=i8,v=i4", arg);
    r->kv_before = r->kv;
    r->kv = kv;
    r->kv_given++;
    return 0;
}

const char *kv_text(struct kv_types kv, char out[KV_TEXT])
{
    if (kv.key == kv.value)
        return kv_type_name(kv.key);
    snprintf(out, KV_TEXT, "k=%s,v=%s", kv_type_name(kv.key), kv_type_name(kv.value));
    return out;
}

/* The number N of a text "N:..."; 0: the text does not begin with one. */
static int leading_number(const char *text)
{
    const size_t n = strspn(text, "0123456789");
    return n > 0 && n < 6 && text[n] == ':' ? atoi(text) : 0;
}

/* Parse --spec medusa, eagle, or these with :N, which use the heads in the model's file.  0: arg is
 * none of them. */
static int parse_own_heads(const char *prog, const char *arg, struct run_options *r, int *rc)
{
    static const struct { const char *name, *with_number; enum spec spec; int most; } kinds[] = {
        { "medusa", "--spec medusa:N", SPEC_MEDUSA, MEDUSA_MOST_HEADS }, { "eagle", "--spec eagle:N", SPEC_EAGLE, DRAFT_MOST } };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const size_t n = strlen(kinds[i].name);
        const char *number = arg + n + 1;
        long long most = 0;
        if (strncmp(arg, kinds[i].name, n) != 0 || (arg[n] && arg[n] != ':'))
            continue;
        if (arg[n] && (!*number || number[strspn(number, "0123456789")]))
            continue;
        *rc = arg[n] ? cli_parse_int(prog, kinds[i].with_number, number, 1, kinds[i].most, &most) : 0;
        r->draft = (int)most;
        r->spec = kinds[i].spec;
        r->spec_given = 1;
        return 1;
    }
    return 0;
}

/* Parse --spec draft:MODEL, self:LAYERS, medusa:FILE or eagle:DIR, or these with N: before the last
 * part. */
static int parse_spec_model(const char *prog, const char *arg, struct run_options *r)
{
    const int of_itself = strncmp(arg, "self:", 5) == 0, of_heads = strncmp(arg, "medusa:", 7) == 0,
              of_eagle = strncmp(arg, "eagle:", 6) == 0;
    const char *rest = strchr(arg, ':') + 1;
    long long layers;
    r->draft = leading_number(rest);
    if (r->draft) {
        rest = strchr(rest, ':') + 1;
        if (r->draft > DRAFT_MOST)
            return cli_wrong(prog, "--spec %.7s N is %d, expected 1 to %d", arg, r->draft, DRAFT_MOST);
    }
    r->spec = of_itself ? SPEC_SELF : of_heads ? SPEC_MEDUSA : of_eagle ? SPEC_EAGLE : SPEC_DRAFT;
    r->spec_given = 1;
    if (of_itself) {
        if (cli_parse_int(prog, "--spec self:LAYERS", rest, 1, 1 << 20, &layers) != 0)
            return CLI_USAGE;
        r->draft_layers = (int)layers;
        return 0;
    }
    *(of_heads || of_eagle ? &r->heads : &r->draft_model) = rest;
    return *rest ? 0 : cli_wrong(prog, "--spec %s", of_heads ? "medusa: expected a FILE" : of_eagle
                                 ? "eagle: expected a DIR" : "draft: expected a MODEL");
}

static int parse_spec(const char *prog, const char *arg, struct run_options *r)
{
    static const char *const names[] = { "off", "auto", "ngram", "mtp" };
    long long n = 0;
    r->draft_layers = 0;
    r->draft_model = r->heads = NULL;
    int rc;
    if (parse_own_heads(prog, arg, r, &rc))
        return rc != 0 ? CLI_USAGE : 0;
    if (strncmp(arg, "draft:", 6) == 0 || strncmp(arg, "self:", 5) == 0 || strncmp(arg, "medusa:", 7) == 0 ||
        strncmp(arg, "eagle:", 6) == 0)
        return parse_spec_model(prog, arg, r);
    if (strncmp(arg, "ngram:", 6) == 0) {
        if (cli_parse_int(prog, "--spec ngram:N", arg + 6, 1, DRAFT_MOST, &n) != 0)
            return CLI_USAGE;
        arg = "ngram";
    }
    if (strncmp(arg, "mtp:", 4) == 0) {
        if (cli_parse_int(prog, "--spec mtp:N", arg + 4, 1, ENGINE_PREDICTED_MOST, &n) != 0)
            return CLI_USAGE;
        arg = "mtp";
    }
    r->draft = (int)n;
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(arg, names[i]) == 0) {
            r->spec = (enum spec)i;
            r->spec_given = 1;
            return 0;
        }
    return cli_wrong(prog, "--spec: '%s', expected auto, ngram[:N], mtp[:N], draft:[N:]MODEL, self:[N:]LAYERS, medusa[:N], medusa:[N:]FILE, eagle[:N], eagle:[N:]DIR or off", arg);
}

/* Parse --lora DIR or NAME=DIR; without NAME the adapter gets the name of its folder.  NAME may
 * contain a '/', and the path of an adapter's folder may contain a '='. */
static int parse_lora(const char *prog, const char *arg, struct run_options *r)
{
    const char *equals = strchr(arg, '=');
    const int named = equals && !peft_is_folder(arg);
    struct lora_option o = { .folder = named ? equals + 1 : arg, .name = arg, .name_len = (int)(equals - arg) };
    if (!named) {
        int end = (int)strlen(arg);
        while (end > 1 && arg[end - 1] == '/')
            end--;
        const char *last = memrchr(arg, '/', (size_t)end);
        o.name = last && last + 1 < arg + end ? last + 1 : arg;
        o.name_len = (int)(arg + end - o.name);
    }
    if (o.name_len == 0 || !*o.folder)
        return cli_wrong(prog, "--lora: '%s', expected NAME=DIR", arg);
    if (r->n_loras == MOST_LORA_OPTIONS)
        return cli_wrong(prog, "--lora: more than %d adapters", MOST_LORA_OPTIONS);
    for (int i = 0; i < r->n_loras; i++)
        if (r->loras[i].name_len == o.name_len && memcmp(r->loras[i].name, o.name, (size_t)o.name_len) == 0)
            return cli_wrong(prog, "--lora: two adapters with the name %.*s", o.name_len, o.name);
    r->loras[r->n_loras++] = o;
    return 0;
}

/* N or N+S: the newest N tokens, and the first S (default: 0). */
static int parse_sliding(const char *prog, const char *arg, struct run_options *r)
{
    const char *plus = strchr(arg, '+');
    char window[24];
    long long n, sinks = 0;
    snprintf(window, sizeof window, "%.*s", plus ? (int)(plus - arg) : (int)strlen(arg), arg);
    if (cli_parse_int(prog, "--attention sliding", window, KV_BLOCK, 1 << 24, &n) != 0 ||
        (plus && cli_parse_int(prog, "--attention sliding:N+S", plus + 1, 0, ENGINE_MOST_SINKS, &sinks) != 0))
        return CLI_USAGE;
    r->sliding = (int)n;
    r->sliding_sinks = (int)sinks;
    return 0;
}

/* The two numbers of bigbird:N+R or blocks:S+N; the second one is 0 if it is not given. */
static int parse_two(const char *prog, const char *what, const char *arg, int least, int *first, int *second)
{
    enum { MOST = 1 << 16 };
    const char *plus = strchr(arg, '+');
    char start[24];
    long long a, b = 0;
    snprintf(start, sizeof start, "%.*s", plus ? (int)(plus - arg) : (int)strlen(arg), arg);
    if (cli_parse_int(prog, what, start, least, MOST, &a) != 0 ||
        (plus && cli_parse_int(prog, what, plus + 1, 0, MOST, &b) != 0))
        return CLI_USAGE;
    *first = (int)a;
    *second = (int)b;
    return 0;
}

static int parse_pages(const char *prog, const char *arg, struct run_options *r)
{
    long long n;
    if (cli_parse_int(prog, "--attention pages", arg, 4, ENGINE_MOST_PAGES, &n) != 0)
        return CLI_USAGE;
    if (n % 4)
        return cli_wrong(prog, "--attention: %d pages, expected a multiple of 4", (int)n);
    r->pages = (int)n;
    return 0;
}

/* "exact", "pages:N", "sliding:N", "sliding:N+S", "bigbird:N+R", "blocks:S" or "blocks:S+N". */
static int parse_attention(const char *prog, const char *arg, struct run_options *r)
{
    static const char *const ways[] = { "pages:", "sliding:", "bigbird:", "blocks:" };
    const struct sparse_pattern p = { .unit = PATTERN_UNIT, .globals = 1, .causal = 1, .seed = 42 };
    int way = 0;
    r->sliding = r->pages = 0;
    r->pattern = (struct sparse_pattern){ 0 };
    if (strcmp(arg, "exact") == 0)
        return 0;
    while (way < 4 && strncmp(arg, ways[way], strlen(ways[way])) != 0)
        way++;
    if (way == 4)
        return cli_wrong(prog, "--attention: '%s', expected exact, pages:N, sliding:N[+S], bigbird:N+R or blocks:S[+N]",
                         arg);
    const char *numbers = arg + strlen(ways[way]);
    if (way > 1)
        r->pattern = p;
    return way == 0   ? parse_pages(prog, numbers, r)
           : way == 1 ? parse_sliding(prog, numbers, r)
           : way == 2 ? parse_two(prog, "--attention bigbird", numbers, 0, &r->pattern.window, &r->pattern.random)
                      : parse_two(prog, "--attention blocks", numbers, 1, &r->pattern.stride, &r->pattern.window);
}

const char *run_attention_text(const struct run_options *r, char out[ATTENTION_TEXT])
{
    const struct sparse_pattern *p = &r->pattern;
    if (r->pages)
        snprintf(out, ATTENTION_TEXT, "pages:%d", r->pages);
    else if (r->sliding)
        snprintf(out, ATTENTION_TEXT, "sliding:%d+%d", r->sliding, r->sliding_sinks);
    else if (p->stride)
        snprintf(out, ATTENTION_TEXT, "blocks:%d+%d", p->stride, p->window);
    else if (p->unit)
        snprintf(out, ATTENTION_TEXT, "bigbird:%d+%d", p->window, p->random);
    else
        snprintf(out, ATTENTION_TEXT, "exact");
    return out;
}

int run_option(const char *prog, int c, const char *arg, struct run_options *r)
{
    long long n;
    struct convert_type type;
    struct err e;
    switch (c) {
    case 'q':
        r->type = arg;
        return convert_parse_type(&type, arg, &e) == 0 ? 0 : cli_wrong(prog, "-q: %s", e.msg);
    case OPT_THREADS:
        if (cli_parse_int(prog, "--threads", arg, 1, 1024, &n) != 0)
            return CLI_USAGE;
        r->threads = (int)n;
        return 0;
    case OPT_CTX:
        if (cli_parse_int(prog, "--ctx", arg, 2, 1 << 24, &n) != 0)
            return CLI_USAGE;
        r->ctx = (int)n;
        return 0;
    case OPT_KV: return parse_kv(prog, arg, r);
    case OPT_ATTENTION: return parse_attention(prog, arg, r);
    case OPT_STREAM:
        if (cli_parse_int(prog, "--window", arg, KV_BLOCK, 1 << 24, &n) != 0)
            return CLI_USAGE;
        r->window = (int)n;
        return 0;
    case OPT_SINKS:
        if (cli_parse_int(prog, "--sinks", arg, 0, ENGINE_MOST_SINKS, &n) != 0)
            return CLI_USAGE;
        r->sinks = (int)n;
        r->sinks_given = 1;
        return 0;
    case OPT_KERNELS: r->kernels = arg; return 0;
    case OPT_DEVICE: r->device = arg; return 0;
    case OPT_GPUS: return parse_gpus(prog, arg, r);
    case OPT_PP_SPLIT: return parse_split(prog, arg, r);
    case OPT_EXACT: r->exact = 1; return 0;
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
    case OPT_STRICT: r->strict = 1; return 0;
    case OPT_SPEC: return parse_spec(prog, arg, r);
    case OPT_SPEC_EXACT:
        r->draft_distribution = strcmp(arg, "distribution") == 0;
        r->exact_given = 1;
        return r->draft_distribution || strcmp(arg, "tokens") == 0
            ? 0 : cli_wrong(prog, "--spec-exact: '%s', expected tokens or distribution", arg);
    case OPT_LORA: return parse_lora(prog, arg, r);
    case OPT_GRAPHS: return parse_graphs(prog, arg, r);
    case OPT_ACT: return parse_act(prog, arg, r);
    case OPT_CACHE_WEIGHTS: return parse_cache(prog, arg, r);
    case OPT_FORCE: r->force = 1; return 0;
    case OPT_VERIFY: return verify_mode_parse(arg, &r->verify) == 0
        ? 0 : cli_wrong(prog, "--verify: '%s', expected auto, first or never", arg);
    case OPT_VERBOSE: r->verbose = 1; return 0;
    case OPT_RUN_MODE: return planned_mode_parse(prog, arg, &r->mode);
    case OPT_MAX_MEMORY:
        if (cli_parse_size(prog, "--max-memory", arg, &r->max_memory) != 0)
            return CLI_USAGE;
        return r->max_memory ? 0 : cli_wrong(prog, "--max-memory: '%s', expected more than 0", arg);
    default: return -1;
    }
}

int run_options_check(const char *prog, struct run_options *r)
{
    const char *device = getenv("ZSE_DEVICE");
    if (r->exact && r->kv_given && (r->kv.key != KV_F32 || r->kv.value != KV_F32))
        return cli_wrong(prog, "--exact stores keys and values as f32: it excludes other values of --kv");
    if (r->sliding && r->window && r->window != r->sliding)
        return cli_wrong(prog, "--attention sliding and --window exclude each other: both are windows");
    if (r->sliding) {
        r->window = r->sliding;
        r->sinks = r->sliding_sinks;
        r->sinks_given = 1;
    }
    if (r->pages && r->window)
        return cli_wrong(prog, "--attention pages and --window exclude each other: a window leaves no pages to choose");
    if (r->pattern.unit && r->window)
        return cli_wrong(prog, "--attention %s and --window exclude each other", r->pattern.stride ? "blocks" : "bigbird");
    if (r->sinks_given && !r->window)
        return cli_wrong(prog, "--sinks needs --window");
    if (r->window && !r->sinks_given)
        r->sinks = 4;
    if (r->window && r->sinks > r->window)
        return cli_wrong(prog, "%s: %d, expected no more than the window of %d",
                         r->sliding ? "--attention sliding:N+S" : "--sinks", r->sinks, r->window);
    if (r->spec == SPEC_MTP && r->max_memory)
        return cli_wrong(prog, "--spec mtp and --max-memory exclude each other: the layer that makes the guesses is not streamed");
    if (r->spec == SPEC_EAGLE && r->max_memory)
        return cli_wrong(prog, "--spec eagle and --max-memory exclude each other: the layer that makes the guesses is not streamed");
    if (r->exact_given && r->spec_given && r->spec == SPEC_OFF)
        return cli_wrong(prog, "--spec-exact needs guesses: --spec off makes none");
    if (r->exact && r->act_given)
        return cli_wrong(prog, "--exact keeps activations as f32: it excludes --act");
    if (r->mode.given && r->type)
        return cli_wrong(prog, "--mode and -q exclude each other: both choose the type");
    if (!r->kv_given)
        r->kv = kv_both(r->exact ? KV_F32 : KV_F16);
    if (r->split_text && !r->gpus_text)
        return cli_wrong(prog, "--pp-split needs --gpus");
    int rc = r->gpus_text ? use_gpus(prog, r)
             : r->device ? parse_device(prog, "--device", r->device, r)
                       : parse_device(prog, "ZSE_DEVICE", device && *device ? device : "auto", r);
    if (rc == 0 && r->gpu_layers_given && r->gpu_layers > 0 && !r->gpu)
        return cli_wrong(prog, "--gpu-layers %d: there is no GPU (--device)", r->gpu_layers);
    if (r->gpu_layers_given && r->gpu_layers == 0)
        r->gpu = 0;
    if (rc == 0 && r->graphs_given && !r->no_graphs && !r->gpu)
        return cli_wrong(prog, "--cuda-graphs on: there is no GPU (--device)");
    if (rc == 0 && r->act_int8 && !r->gpu)
        return cli_wrong(prog, "--act int8: there is no GPU (--device)");
    if (rc == 0)
        rc = check_moe(prog, r);
    if (rc == 0)
        rc = check_layer_window(prog, r);
    return rc ? rc : check_cache(prog, r);
}

/* ---- models ---- */

/* Most bytes of weights that are read into memory in advance; more would evict the first ones
 * before they are used. */
static uint64_t may_fill(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages / 2 * (uint64_t)page : 0;
}

uint64_t lora_work_memory(int rank, const struct run_options *r)
{
    return cpu_lora_memory(rank, BACKEND_STEP_TOKENS, r->threads);
}

int plan_loras(struct lora_plan *p, const struct zfile *z, const struct run_options *r, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    *p = (struct lora_plan){ .scaled = !z || lora_scales(z) };
    for (int i = 0; i < r->n_loras; i++)
        if (lora_plan_add(p, r->loras[i].folder, &guard, e) != 0)
            return -1;
    return 0;
}

/* Check that bytes of adapters are available; `what` names them. */
static int check_available(const struct run_options *r, const char *what, uint64_t bytes, struct err *e)
{
    char size[CLI_BYTES], now[CLI_BYTES];
    struct memory m;
    struct err ignored;
    if (!r->force && memory_read(&m, preflight_root(), &ignored) == 0 && bytes > memory_now(&m))
        return err_set(e, ERR_MEMORY, "%s %s, but only %s are available; --force tries it", what,
                       cli_bytes(size, bytes), cli_bytes(now, memory_now(&m)));
    return 0;
}

struct lora_bound *open_lora(const struct model *m, const char *name, const char *folder, uint64_t most_bytes,
                             const struct run_options *r, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    struct lora_plan p = { .scaled = lora_scales(m->file) };
    char size[CLI_BYTES], most[CLI_BYTES];
    if (lora_plan_add(&p, folder, &guard, e) != 0)
        return NULL;
    const uint64_t bytes = p.bytes + lora_work_memory(p.rank, r);
    if (most_bytes && bytes > most_bytes) {
        err_set(e, ERR_LIMIT, "the adapter takes %s, --max-memory leaves %s", cli_bytes(size, bytes),
                cli_bytes(most, most_bytes));
        return NULL;
    }
    return check_available(r, "the adapter takes", bytes, e) == 0 ? lora_bind(m, name, folder, &guard, e) : NULL;
}

/* Check that the adapters of --lora fit, before they take memory. */
static int check_loras(const struct opened_model *o, const struct run_options *r, struct err *e)
{
    struct lora_plan p;
    char all[CLI_BYTES], most[CLI_BYTES];
    if (plan_loras(&p, o->model->file, r, e) != 0)
        return -1;
    const uint64_t bytes = p.bytes + lora_work_memory(p.rank, r);
    if (r->most_adapted && o->model->weight_bytes + bytes > r->most_adapted)
        return err_set(e, ERR_LIMIT, "--lora: the weights and the adapters take %s, --max-memory is %s",
                       cli_bytes(all, o->model->weight_bytes + bytes), cli_bytes(most, r->most_adapted));
    return check_available(r, "--lora: the adapters take", bytes, e);
}

/* Add the adapters of --lora to the model. */
static int load_loras(struct opened_model *o, const struct run_options *r, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    if (r->n_loras && check_loras(o, r, e) != 0)
        return -1;
    for (int i = 0; i < r->n_loras; i++) {
        char *name = strndup(r->loras[i].name, (size_t)r->loras[i].name_len);
        const int rc = name ? model_add_lora(o->model, name, r->loras[i].folder, &guard, e) : err_nomem(e, "--lora");
        free(name);
        if (rc != 0)
            return -1;
    }
    return 0;
}

/* Open the .zse at o->path. */
static int load(struct opened_model *o, struct err *e)
{
    size_t size;
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    struct zfile *z = zfile_open_guarded(o->path, o->bounded ? 0 : may_fill(), &guard, e);
    o->mapped_ns = clock_ns();
    if (!z || !(o->model = model_bind(z, e)))
        return -1;
    const void *blob = zfile_tokenizer(o->model->file, &size);
    if (blob && !(o->tokenizer = tokenizer_open(blob, size, e)))
        return err_prefix(e, "%s", o->path);
    o->json = zfile_json(o->model->file);
    if (zfile_map(z)->lost && map_check(zfile_map(z), e) != 0)
        return -1;
    return model_verify_start(&o->check, z, o->verify, o->in_cache, !o->bounded && zfile_size(z) <= may_fill(), e);
}

static void unload(struct opened_model *o)
{
    model_verify_stop(o->check);
    o->check = NULL;
    if (o->tokenizer)
        tokenizer_close(o->tokenizer);
    if (o->model)
        model_close(o->model);
    o->tokenizer = NULL;
    o->model = NULL;
}

/* *bytes: the free memory of the device, or of all that --gpus names. */
static int free_memory(const struct run_options *r, uint64_t *bytes, struct err *e)
{
    struct machine_gpu gpu[MACHINE_GPUS];
    struct memory m;
    char why[160];
    if (!r->gpu || strcmp(gpu_kind, "cuda") != 0) {
        if (memory_read(&m, preflight_root(), e) != 0)
            return -1;
        *bytes = memory_now(&m);
        return 0;
    }
    const int n = machine_gpus(gpu, MACHINE_GPUS, why);
    *bytes = 0;
    for (int i = 0; i == 0 || i < r->gpus.n; i++) {
        const int index = r->gpus.n ? r->gpus.index[i] : r->gpu_index;
        if (index >= n)
            return err_set(e, ERR_DEVICE, "--mode: GPU %d does not say what memory it has%s%s", index, n ? "" : ": ",
                           n ? "" : why);
        *bytes += gpu[index].free;
    }
    return 0;
}

/* Choose the type for this source by --mode.  Static; NULL with *e. */
static const char *choose_type(const char *prog, const char *path, const struct run_options *r, const char *name,
                               struct err *e)
{
    enum { CONTEXT = 8192 };
    struct planned_choices s = { 0 };
    const char *type = NULL;
    char *title = NULL, size[CLI_BYTES];
    uint64_t available = 0;
    json_t *config = planned_config(path, &title, e);
    const struct planned_query ask = { .name = name, .path = path, .config = config,
                                       .context = r->ctx ? r->ctx : CONTEXT,
                                     .n_seqs = r->max_seqs, .kv_most = r->kv_most,
                                     .on_gpu = r->gpu != 0, .measure = !r->gpu &&
                                     (r->mode.mode == PLAN_AUTO || r->mode.mode == PLAN_MAX_SPEED),
                                     .n_threads = r->threads, .kernels = r->kernels };
    const int best = config && free_memory(r, &available, e) == 0 &&
                     planned_compare(&s, &ask, e) == 0 ? planned_choose(&s, name, &r->mode, available, e) : -1;
    if (best >= 0) {
        type = s.c[best].type;          /* static, as planned_type() and "keep" are */
        cli_note(prog, "--mode %s: %s as %s, %s to run", plan_mode_name(r->mode.mode), name, type,
                 cli_bytes(size, s.c[best].bytes));
    }
    planned_choices_close(&s);
    json_decref(config);
    free(title);
    return type;
}

const char *open_model_given_type(const struct run_options *r)
{
    const char *env = getenv("ZSE_QUANTIZATION");
    return r->type ? r->type : env && *env ? env : NULL;
}

const char *open_model_type(const char *prog, const char *path, const struct run_options *r, const char *name,
                            struct err *e)
{
    struct convert_type parsed;
    if (r->mode.given)
        return choose_type(prog, path, r, name, e);
    const char *type = open_model_given_type(r);
    if (type && convert_parse_type(&parsed, type, e) != 0) {
        if (!r->type)
            err_prefix(e, "ZSE_QUANTIZATION");
        return NULL;
    }
    return type ? type : "keep";
}

/* Open the file at o->path, unless it lacks something that is requested. */
static int load_cached(const struct conv_cache_request *ask, struct opened_model *o, struct err *e)
{
    if (load(o, e) != 0)
        return -1;
    return ask->adapted && lora_lacks_scales(o->model->file)
               ? err_set(e, ERR_UNSUPPORTED, "%s: has no channel scales", o->path) : 0;
}

/* Open the file at o->path; convert if it is missing or damaged. */
static int load_made(const struct conv_cache_request *ask, const char *source, struct opened_model *o, struct err *e)
{
    struct err why;
    if (load_cached(ask, o, &why) == 0)
        return 0;
    if (why.code == ERR_FORMAT)
        cli_note(ask->prog, "%s", why.msg);
    unload(o);
    return conv_cache_make(ask, source, o->path, e) == 0 ? load(o, e) : -1;
}

/* Open the cached conversion of a GGUF or folder. */
static int load_converted(const struct conv_cache_request *ask, const char *source, struct opened_model *o,
                          struct err *e)
{
    struct conv_cache_lock lock;
    struct err why;
    if (!ask->type || !(o->path = conv_cache_path(ask, source, e)))
        return -1;
    if (load_cached(ask, o, &why) == 0)
        return 0;
    /* if a check has just removed a damaged conversion, convert again */
    if (why.code == ERR_FORMAT && access(o->path, F_OK) != 0)
        cli_note(ask->prog, "%s", why.msg);
    unload(o);
    if (conv_cache_lock(&lock, ask, source, e) != 0)
        return -1;
    const int rc = load_made(ask, source, o, e);        /* another process may have converted it */
    conv_cache_unlock(&lock);
    return rc;
}

/* Open a folder whose shards are still downloading; the stream is closed. */
static int load_arriving(const struct conv_cache_request *ask, struct hub_stream *stream, char **source,
                         struct opened_model *o, struct err *e)
{
    struct conv_cache_lock lock;
    if (!ask->type || conv_cache_lock(&lock, ask, *source, e) != 0) {
        hub_stream_close(stream, -1, source, e);
        cli_die_of_interrupt();
        return -1;
    }
    int rc;
    if (!lock.waited)
        rc = conv_cache_arriving(ask, stream, source, &o->path, e) == 0 ? load(o, e) : -1;
    else                                                /* another process converted the same shards, or failed */
        rc = hub_stream_close(stream, 0, source, e) == 0 &&
             (o->path = conv_cache_path(ask, *source, e)) ? load_made(ask, *source, o, e) : -1;
    conv_cache_unlock(&lock);
    return rc;
}

static int refuse_without_weights(const char *path, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "%s has no weights, expected a .zse, a GGUF file or a Hugging Face folder", path);
}

static int find_and_load(const char *prog, char **found, struct hub_stream *stream, const struct run_options *r,
                         struct opened_model *o, struct err *e)
{
    const char *path = *found;
    switch (stream ? SOURCE_FOLDER : source_detect(path, e)) {
    case SOURCE_NONE: return -1;
    case SOURCE_ZSE:
        if (r->type)
            return err_set(e, ERR_UNSUPPORTED, "-q %s: %s is converted already; zse-convert makes another type from its source", r->type, path);
        if (r->mode.given && r->mode.mode != PLAN_FOR_VRAM)
            return err_set(e, ERR_UNSUPPORTED, "--mode %s: %s is converted already; zse-convert --mode makes another type from its source", plan_mode_name(r->mode.mode), path);
        if (!(o->path = strdup(path)))
            return err_nomem(e, "path");
        return load(o, e);
    case SOURCE_CONFIG: case SOURCE_TOKENIZER: return refuse_without_weights(path, e);
    case SOURCE_GGUF: case SOURCE_FOLDER:
        break;
    }
    const struct conv_cache_request ask = { .prog = prog, .asked = o->name,
                                       .type = open_model_type(prog, path, r, o->name, e), .n_threads = r->threads,
                                       .kernels = r->kernels, .adapted = r->n_loras > 0,
                                       .force = r->force };
    o->in_cache = 1;
    return stream ? load_arriving(&ask, stream, found, o, e) : load_converted(&ask, path, o, e);
}

static void *warm_up(void *r)
{
    const struct run_options *o = r;
    for (int i = 0; i < o->gpus.n; i++)
        gpu_warm_up(o->gpus.index[i]);
    if (o->gpus.n == 0)
        gpu_warm_up(o->gpu_index);
    return NULL;
}

static void end_warm_up(struct opened_model *o)
{
    if (o->warming)
        pthread_join(o->warmer, NULL);
    o->warming = 0;
}

int open_model_unnamed(const char *prog, const char *path)
{
    return home_model_named(path) ? 0 : cli_wrong(prog, "which MODEL? None is given, ZSE_MODEL is not set, and no model is the default (zse-info models default); zse-convert pull NAME makes models");
}

int open_model_check(const char *prog, const char *path, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    const struct source_options so = { .guard = &guard };
    struct source *s = NULL;
    struct zfile *z = NULL;
    sigbus_start(prog);
    switch (source_detect(path, e)) {
    case SOURCE_NONE: return -1;
    case SOURCE_ZSE: z = zfile_open_guarded(path, 0, &guard, e); break;
    case SOURCE_CONFIG: case SOURCE_TOKENIZER: return refuse_without_weights(path, e);
    case SOURCE_GGUF: case SOURCE_FOLDER: s = source_open_with(path, &so, e); break;
    }
    const int rc = s || z ? 0 : -1;
    source_close(s);
    zfile_close(z);
    return rc;
}

/* Record the use of a model that has a name. */
static void touch(const struct opened_model *o)
{
    struct err ignored;
    char *folder = home_models(&ignored);
    if (folder)
        store_touch(folder, o->path);
    free(folder);
}

/* Open the model of --spec draft:MODEL for o. */
static int open_draft(const struct run_options *r, struct opened_model *o, struct err *e)
{
    struct run_options own = *r;
    own.spec = SPEC_OFF;
    own.max_memory = 0;
    own.ctx = own.mode.given = own.n_loras = 0;
    if (!(o->draft = calloc(1, sizeof *o->draft)))
        return err_nomem(e, "draft model");
    if (open_model(o->prog, r->draft_model, &own, o->draft, e) != 0) {
        free(o->draft);
        o->draft = NULL;
        return -1;
    }
    if (engine_check_draft_model(o->draft->model, o->tokenizer, o->draft->tokenizer, e) != 0)
        return err_prefix(e, "--spec draft:%s", r->draft_model);
    if (o->draft->model->weight_bytes > o->model->weight_bytes)
        cli_note(o->prog, "--spec draft:%s: its weights are larger than those of %s, so answers come later", r->draft_model,
                 o->name);
    return 0;
}

/* Read the heads of --spec medusa:FILE or eagle:DIR for o. */
static int open_heads(const struct run_options *r, struct opened_model *o, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    struct medusa_options mo = { .n_threads = r->threads, .guard = &guard };
    struct memory m;
    struct err ignored;
    if (!r->force && memory_read(&m, preflight_root(), &ignored) == 0)
        mo.most_bytes = memory_now(&m);
    if (r->spec == SPEC_EAGLE) {
        if (!(o->eagle = eagle_read(r->heads, &o->model->config, &mo, e)))
            return err_prefix(e, "--spec eagle");
        eagle_attach(o->eagle, o->model);
        return 0;
    }
    o->heads = medusa_read(r->heads, &o->model->config, &mo, e);
    return o->heads ? 0 : err_prefix(e, "--spec medusa");
}

int open_model(const char *prog, const char *path, const struct run_options *r, struct opened_model *o, struct err *e)
{
    sigbus_start(prog);
    if (r->verbose)
        memory_note(prog, "start");
    memset(o, 0, sizeof *o);
    o->bounded = r->max_memory != 0 && !r->gpu;
    o->verify = r->verify;
    o->prog = prog;
    if (!(path = home_model_named(path)))
        return err_set(e, ERR_IO, "no MODEL given, and ZSE_MODEL is not set");
    o->name = path;
    char *found;
    struct hub_stream *stream = NULL;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct preflight_convert pre = { .prog = prog, .name = path, .output = cache && *cache ? cache : home && *home
                                     ? home : "/", .type = r->type, .force = r->force,
                                     .runs = !r->gpu, .max_memory = r->max_memory };
    const struct hub_check check = { preflight_fetch, &pre };
    if (r->mode.given)
        pre.type = planned_type(PLANNED_TYPES - 1);     /* the smallest that it may choose */
    if (r->mode.given ? hub_model_path(prog, path, 0, &check, &found, e) != 0
                      : hub_stream_open(&stream, prog, path, 0, &check, &found, e) != 0)
        return -1;
    /* Start early: creating a context takes longer than mapping a file. */
    o->warming = r->gpu && pthread_create(&o->warmer, NULL, warm_up, (void *)r) == 0;
    int rc = find_and_load(prog, &found, stream, r, o, e);
    if (rc == 0 && !r->embeds && o->model->config.embedding.pooling) {
        const int scores = o->model->config.embedding.scores;
        err_set(e, ERR_UNSUPPORTED, "%s: %s: %s; zse-serve serves it at %s", path,
                scores ? "a reranker" : "an embedding model",
                scores ? "it scores pairs of texts" : "it makes vectors of texts",
                scores ? "/v1/rerank" : "/v1/embeddings");
        rc = -1;
    }
    free(found);
    end_warm_up(o);
    if (rc == 0 && r->ctx && !r->window && o->model->config.max_len > 0 && r->ctx > o->model->config.max_len)
        rc = err_set(e, ERR_LIMIT, "--ctx %d: %s was made for at most %d tokens", r->ctx, path,
                     o->model->config.max_len);
    if (rc == 0)
        rc = load_loras(o, r, e);
    if (rc == 0 && r->spec == SPEC_DRAFT)
        rc = open_draft(r, o, e);
    if (rc == 0 && (r->spec == SPEC_MEDUSA || r->spec == SPEC_EAGLE) && r->heads)
        rc = open_heads(r, o, e);
    if (rc != 0) {
        close_model(o);
        return rc;
    }
    touch(o);
    if (r->verbose)
        memory_note(prog, "model open");
    return 0;
}

int open_model_verified(struct opened_model *o, struct err *e) { return model_verify_finish(o->check, e); }

void close_model(struct opened_model *o)
{
    if (o->draft)
        close_model(o->draft);
    free(o->draft);
    medusa_close(o->heads);
    eagle_close(o->eagle);
    unload(o);
    free(o->path);
    memset(o, 0, sizeof *o);
}

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
                                    .no_gpu_prefill = r->no_gpu_prefill,
                                    .layer_stream = r->layer_stream,
                                    .stream_window = r->stream_window, .stream_prefetch = r->prefetch,
                                    .stream_sequential = r->stream_sequential, .strict = r->strict,
                                    .debug_sync = env_on("ZSE_DEBUG_SYNC"),
                                    .wgmma = env_on("ZSE_WGMMA"), .no_graphs = r->no_graphs, .act_int8 = r->act_int8,
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

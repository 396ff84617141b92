/* run_options.c - the options that say how a model runs, but for those of a GPU (run_device.c). */
#include "cmd/open_model.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/run_device.h"
#include "libcommon/convert/convert.h"
#include "libcommon/import/peft.h"

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
    case OPT_EXACT: r->exact = 1; return 0;
    case OPT_STRICT: r->strict = 1; return 0;
    case OPT_SPEC: return parse_spec(prog, arg, r);
    case OPT_SPEC_EXACT:
        r->draft_distribution = strcmp(arg, "distribution") == 0;
        r->exact_given = 1;
        return r->draft_distribution || strcmp(arg, "tokens") == 0
            ? 0 : cli_wrong(prog, "--spec-exact: '%s', expected tokens or distribution", arg);
    case OPT_LORA: return parse_lora(prog, arg, r);
    case OPT_FORCE: r->force = 1; return 0;
    case OPT_VERIFY: return verify_mode_parse(arg, &r->verify) == 0
        ? 0 : cli_wrong(prog, "--verify: '%s', expected auto, first or never", arg);
    case OPT_VERBOSE: r->verbose = 1; return 0;
    case OPT_RUN_MODE: return planned_mode_parse(prog, arg, &r->mode);
    case OPT_MAX_MEMORY:
        if (cli_parse_size(prog, "--max-memory", arg, &r->max_memory) != 0)
            return CLI_USAGE;
        return r->max_memory ? 0 : cli_wrong(prog, "--max-memory: '%s', expected more than 0", arg);
    default: return run_device_option(prog, c, arg, r);
    }
}

int run_options_check(const char *prog, struct run_options *r)
{
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
    return run_device_check(prog, r);
}

/* info_registry.c - zse-info models list and info: print the registry of well-known models, with
 * sizes computed from their configurations. */
#include "cmd/info_models.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cmd/catalog.h"
#include "cmd/cli.h"
#include "cmd/planning.h"
#include "libcommon/plan/registry.h"

static const char prog[] = "zse-info";
static const char usage[] =
    "usage: zse-info models list [OPTIONS]\n"
    "       zse-info models info [OPTIONS] MODEL\n"
    "Models of the registry; MODEL is one of its ids or names, or the part of an id.  Sizes are computed from their configurations.\n"
    "  -c, --category NAME       only of this category: chat, instruct, code, reasoning\n"
    "  -s, --size NAME           only of this size: tiny, small, medium, large, xlarge, xxl (below 1, 3, 8, 13, 34 billion parameters; beyond)\n"
    "  -v, --vram SIZE           only what runs in this memory with a tenth to spare, like 8 or 8GB\n"
    "  -q, --quantize TYPE       the type that --vram goes by: bf16, int8, nl4 (default: int8)\n"
    "  -r, --recommended         only recommended ones\n"
    "      --supported           only architectures that run here\n"
    "      --zse12               only the list of ZSE 1.2\n"
    "      --json                JSON: an array, or with info an object\n"
    "  -h, --help                show this help\n";

enum { OPT_JSON = 300, OPT_SUPPORTED, OPT_ZSE12 };
enum { CONTEXT = 4096 };            /* tokens of keys and values that are included in a size */

static const struct option options[] = {
    { "category", required_argument, NULL, 'c' }, { "size", required_argument, NULL, 's' },
        { "vram", required_argument, NULL, 'v' },
    { "quantize", required_argument, NULL, 'q' }, { "recommended", no_argument, NULL, 'r' },
    { "supported", no_argument, NULL, OPT_SUPPORTED },
    { "zse12", no_argument, NULL, OPT_ZSE12 }, { "json", no_argument, NULL, OPT_JSON },
    { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 },
};

struct filter { const char *category, *size, *type; uint64_t vram; int recommended, supported, zse12, json; };

static const char *string(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int listed(const json_t *array, const char *word)
{
    const json_t *v;
    size_t i;
    json_array_foreach((json_t *)array, i, v)
        if (json_is_string(v) && strcmp(json_string_value(v), word) == 0)
            return 1;
    return 0;
}

/* A model as it is printed: its registry entry, and fields computed from its configuration. */
static json_t *describe(const json_t *m, struct err *e)
{
    static const char *const as_it_is[] = { "name", "description", "license", "provider", "categories", "tags",
                                            "recommended", "zse12", "zse_optimized" };
    const json_t *config = json_object_get(m, "config");
    const char *id = string(m, "id");
    char home[200], short_name[REGISTRY_SHORT];
    struct planned p;
    struct plan_weights w;
    int exact = 0;
    if (planned_open(&p, id, config, e) != 0) {
        planned_close(&p);
        return NULL;
    }
    snprintf(home, sizeof home, "https://huggingface.co/%s", id);
    json_t *j = json_pack("{s:s}", "model_id", id), *weights = json_object(), *vram = json_object();
    for (size_t i = 0; i < sizeof as_it_is / sizeof *as_it_is; i++)
        json_object_set(j, as_it_is[i], json_object_get(m, as_it_is[i]));
    for (int i = 0; i < PLANNED_TYPES; i++) {
        if (planned_weights(&p, id, config, planned_type(i), &w, &exact, e) != 0) {
            json_decref(weights);
            json_decref(vram);
            json_decref(j);
            planned_close(&p);
            return NULL;
        }
        json_object_set_new(weights, planned_type(i), json_integer((json_int_t)w.bytes));
        json_object_set_new(vram, planned_type(i), json_integer((json_int_t)planned_bytes(&p, &w, CONTEXT, 1)));
    }
    registry_short_name(m, short_name);
    json_object_set_new(j, "pull", json_string(short_name));
    json_object_set_new(j, "homepage", json_string(home));
    json_object_set(j, "architecture", json_object_get(config, "model_type"));
    json_object_set_new(j, "parameters", json_integer((json_int_t)p.params.total));
    json_object_set_new(j, "active_parameters", json_integer((json_int_t)p.params.active));
    json_object_set_new(j, "size", json_string(registry_size((double)p.params.total)));
    const json_t *trained = json_object_get(m, "context");
    json_object_set_new(j, "context_length", json_integer(trained ? json_integer_value(trained) : p.shape.max_len));
    json_object_set_new(j, "kv_bytes_per_token", json_integer((json_int_t)plan_kv_token(&p.shape, KV_F16)));
    json_object_set_new(j, "weight_bytes", weights);
    json_object_set_new(j, "exact", json_boolean(exact));
    json_object_set_new(j, "vram", vram);
    json_object_set_new(j, "recommended_quant", json_string("nl4"));
    json_object_set_new(j, "supported", json_boolean(p.supported));
    if (!p.supported)
        json_object_set_new(j, "unsupported_reason", json_string(p.why_not));
    json_object_set(j, "config", (json_t *)config);
    planned_close(&p);
    return j;
}

/* The memory of a type in GB, rounded up to hundredths. */
static json_t *vram_gb(const json_t *d, const char *type)
{
    const json_int_t bytes = json_integer_value(json_object_get(json_object_get(d, "vram"), type));
    return json_real((double)((bytes + 9999999) / 10000000) / 100);
}

json_t *catalog_registry(struct err *e)
{
    json_t *registry = registry_load(e), *all = json_array(), *m, *d = NULL;
    size_t i;
    json_array_foreach(registry, i, m) {
        if (!(d = describe(m, e)))
            break;
        json_object_del(d, "config");
        json_object_set_new(d, "vram", json_pack("{s:o, s:o, s:o}", "fp16_gb", vram_gb(d, "bf16"), "int8_gb",
                                                 vram_gb(d, "int8"), "int4_gb", vram_gb(d, "nl4")));
        json_array_append_new(all, d);
    }
    json_decref(registry);
    if (d)
        return all;
    json_decref(all);
    return NULL;
}

/* Filter by the registry's own fields, before sizes are computed. */
static int may_pass(const struct filter *f, const json_t *m)
{
    return (!f->category || listed(json_object_get(m, "categories"), f->category)) &&
           (!f->recommended || json_is_true(json_object_get(m, "recommended"))) &&
           (!f->zse12 || json_is_true(json_object_get(m, "zse12")));
}

static int passes(const struct filter *f, const json_t *d)
{
    return (!f->size || strcmp(f->size, string(d, "size")) == 0) &&
           (!f->vram || (uint64_t)json_integer_value(json_object_get(json_object_get(d, "vram"), f->type)) <=
            plan_usable(f->vram)) &&
           (!f->supported || json_is_true(json_object_get(d, "supported")));
}

static double real(const json_t *o, const char *key) { return (double)json_integer_value(json_object_get(o, key)); }

static void print_row(const json_t *d)
{
    const json_t *v = json_object_get(d, "vram");
    printf("%-30s %7.2f %-7s %8.2f %8.2f %8.2f  %-3s %s\n", string(d, "name"), real(d, "parameters") / 1e9,
           string(d, "size"), real(v, "bf16") / 1e9, real(v, "int8") / 1e9,
           real(v, "nl4") / 1e9, json_is_true(json_object_get(d, "supported")) ? "yes" : "no",
           string(d, "description"));
}

static int list(const struct filter *f)
{
    struct err e;
    json_t *registry = registry_load(&e), *all = json_array(), *m, *d;
    size_t i;
    int rc = registry ? 0 : -1;
    json_array_foreach(registry, i, m) {
        if (!may_pass(f, m))
            continue;
        if (!(d = describe(m, &e))) {
            rc = -1;
            break;
        }
        if (passes(f, d))
            json_array_append(all, d);
        json_decref(d);
    }
    if (rc == 0 && f->json) {
        cli_json(all);
    } else if (rc == 0) {
        printf("%-30s %7s %-7s %8s %8s %8s  %s\n", "name", "params", "size", "bf16", "int8", "nl4", "runs");
        json_array_foreach(all, i, d)
            print_row(d);
        printf("params in billions; memory in GB: weights, keys and values of %d tokens, workspace\n", CONTEXT);
    }
    json_decref(all);
    json_decref(registry);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

static void print_words(const char *title, const json_t *array)
{
    const json_t *v;
    size_t i;
    printf("%-15s", title);
    json_array_foreach((json_t *)array, i, v)
        printf("%s%s", i ? ", " : " ", json_string_value(v));
    printf("\n");
}

static void print_model(const json_t *d)
{
    const json_t *w = json_object_get(d, "weight_bytes"), *v = json_object_get(d, "vram");
    char a[CLI_BYTES], b[CLI_BYTES];
    printf("%-15s %s\n%-15s %s\n", "model", string(d, "model_id"), "", string(d, "description"));
    printf("%-15s zse-convert pull %s\n", "get it", string(d, "pull"));
    printf("%-15s %s, %s, %s\n", "from", string(d, "provider"), string(d, "license"), string(d, "homepage"));
    print_words("categories", json_object_get(d, "categories"));
    if (json_array_size(json_object_get(d, "tags")))
        print_words("tags", json_object_get(d, "tags"));
    printf("%-15s %.2f billion", "parameters", real(d, "parameters") / 1e9);
    if (real(d, "active_parameters") < 0.8 * real(d, "parameters"))
        printf(", %.2f of them for each token", real(d, "active_parameters") / 1e9);
    printf("\n%-15s %s%s%s\n", "architecture", string(d, "architecture"),
           json_is_true(json_object_get(d, "supported")) ? "" : ", does not run here: ",
           string(d, "unsupported_reason"));
    printf("%-15s %lld tokens, %s of keys and values each (f16)\n", "context",
           (long long)json_integer_value(json_object_get(d, "context_length")),
           cli_bytes(a, (uint64_t)real(d, "kv_bytes_per_token")));
    for (int i = 0; i < PLANNED_TYPES; i++)
        printf("%-15s %s of weights%s, %s to run with %d tokens of context\n", planned_type(i),
               cli_bytes_both(a, (uint64_t)real(w, planned_type(i))), json_is_true(json_object_get(d, "exact")) ? ""
                   : " or so", cli_bytes(b, (uint64_t)real(v, planned_type(i))), CONTEXT);
}

static int info(const struct filter *f, const char *name)
{
    struct err e;
    json_t *registry = registry_load(&e), *d = NULL;
    const json_t *m = registry ? registry_find(registry, name, &e) : NULL;
    if (m)
        d = describe(m, &e);
    json_decref(registry);
    if (!d)
        return cli_fail(prog, &e);
    if (f->json)
        cli_json(d);
    else
        print_model(d);
    json_decref(d);
    return cli_finish(prog);
}

/* Check that arg is one of these words: 0, and *out is the word; 2 after a message on stderr. */
static int one_of(const char *option, const char *arg, const char *const *words, const char **out)
{
    char all[200] = "";
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], arg) == 0) {
            *out = arg;
            return 0;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", words[i]);
    }
    return cli_wrong(prog, "%s: '%s', expected one of %s", option, arg, all);
}

static int take(struct filter *f, int c, const char *arg)
{
    static const char *const categories[] = { "chat", "instruct", "code", "reasoning", NULL },
        *const sizes[] = { "tiny", "small", "medium", "large", "xlarge", "xxl", NULL };
    const char *types[PLANNED_TYPES + 1] = { NULL };
    for (int i = 0; i < PLANNED_TYPES; i++)
        types[i] = planned_type(i);
    char text[64];
    switch (c) {
    case 'c': return one_of("--category", arg, categories, &f->category);
    case 's': return one_of("--size", arg, sizes, &f->size);
    case 'q': return one_of("--quantize", arg, types, &f->type);
    case 'v':
        /* "8" means gigabytes */
        snprintf(text, sizeof text, strspn(arg, "0123456789.") == strlen(arg) && *arg ? "%sGB" : "%s", arg);
        return cli_parse_size(prog, "--vram", text, &f->vram);
    case 'r': f->recommended = 1; return 0;
    case OPT_SUPPORTED: f->supported = 1; return 0;
    case OPT_ZSE12: f->zse12 = 1; return 0;
    case OPT_JSON: f->json = 1; return 0;
    default: return cli_usage(usage);
    }
}

/* Parse the options.  -1: continue; else the exit code. */
static int parse(struct filter *f, int argc, char **argv, int n_names)
{
    int c, rc;
    *f = (struct filter){ .type = NULL };
    optind = 0;                         /* restart: the caller may have used getopt */
    while ((c = cli_getopt(argc, argv, "c:s:v:q:rh", options)) != -1) {
        if (c == 'h')
            return cli_help(usage);
        if ((rc = take(f, c, optarg)) != 0)
            return rc;
    }
    if (argc - optind != n_names)
        return cli_usage(usage);
    if (n_names && (f->category || f->size || f->type || f->vram || f->recommended || f->supported || f->zse12))
        return cli_wrong(prog, "models info: filters go with list");
    if (f->type && !f->vram)
        return cli_wrong(prog, "--quantize goes with --vram");
    if (!f->type)
        f->type = "int8";
    return -1;
}

int info_models_list(int argc, char **argv)
{
    struct filter f;
    const int rc = parse(&f, argc, argv, 0);
    return rc >= 0 ? rc : list(&f);
}

int info_models_info(int argc, char **argv)
{
    struct filter f;
    const int rc = parse(&f, argc, argv, 1);
    return rc >= 0 ? rc : info(&f, argv[optind]);
}

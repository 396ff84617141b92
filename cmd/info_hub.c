/* info_hub.c - zse-info models search, check and fetch: models on the hub. */
#include "cmd/info_models.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/catalog.h"
#include "cmd/cli.h"
#include "cmd/home.h"
#include "cmd/hub_cli.h"
#include "cmd/zse-info.h"
#include "libcommon/base/json.h"
#include "libcommon/base/suffix.h"
#include "libcommon/import/hf_config.h"
#include "libcommon/import/packed.h"

/* ---- the contents of a repository ---- */

struct contents {
    int has_config, has_tokenizer, n_safetensors, n_gguf, n_zse;
    uint64_t bytes;                     /* size of the safetensors at the top level; 0: unknown */
};

static struct contents look_through(const json_t *info)
{
    struct contents c = { 0 };
    const json_t *list = json_object_get(info, "siblings"), *v;
    const json_int_t most = (json_int_t)1 << 50;        /* larger values are not sizes */
    int vocab = 0, one = 0;
    uint64_t one_bytes = 0;
    size_t i;
    json_array_foreach(list, i, v) {
        const char *name = json_string_value(json_object_get(v, "rfilename"));
        json_int_t size = json_integer_value(json_object_get(v, "size"));
        if (!name)
            continue;
        size = size > 0 && size <= most && c.bytes <= (uint64_t)most ? size : 0;
        c.has_config |= strcmp(name, "config.json") == 0;
        c.has_tokenizer |= strcmp(name, "tokenizer.json") == 0 || strcmp(name, "tokenizer.model") == 0;
        vocab += strcmp(name, "vocab.json") == 0 || strcmp(name, "merges.txt") == 0;
        c.n_gguf += ends_with_any_case(name, ".gguf");
        c.n_zse += ends_with_any_case(name, ".zse");
        if (!ends_with_any_case(name, ".safetensors") || strchr(name, '/') || strncmp(name, "consolidated", 12) == 0 ||
            strncmp(name, "adapter_", 8) == 0)
            continue;
        c.n_safetensors++;
        c.bytes += (uint64_t)size;
        if (strcmp(name, "model.safetensors") == 0) {
            one = 1;
            one_bytes = (uint64_t)size;
        }
    }
    if (one)
        c.bytes = one_bytes;
    c.has_tokenizer |= vocab == 2;
    return c;
}

static const char *license_of(const json_t *info)
{
    const char *license = json_string_value(json_object_get(json_object_get(info, "cardData"), "license")), *tag;
    const json_t *v;
    size_t i;
    json_array_foreach(json_object_get(info, "tags"), i, v)
        if (!license && (tag = json_string_value(v)) && strncmp(tag, "license:", 8) == 0)
            license = tag + 8;
    return license;
}

static int is_known_type(const char *model_type)
{
    char text[80];
    snprintf(text, sizeof text, "%s_text", model_type);
    const char *a;
    for (int i = 0; (a = config_architecture(i)); i++)
        if (strcmp(a, model_type) == 0 || strcmp(a, text) == 0)
            return 1;
    return 0;
}

/* The first reason in the list of files why a model cannot be converted; NULL: there is none.
 * *runs: whether its architecture is known to run, too. */
static const char *obstacle(const json_t *info, const struct contents *c, char *text, size_t room, int *runs)
{
    const char *type = json_string_value(json_object_get(json_object_get(info, "config"), "model_type"));
    *runs = 0;
    if (!c->n_safetensors)
        return c->n_gguf || c->n_zse ? NULL : "no safetensors and no GGUF";
    if (!c->has_config)
        return "no config.json";
    if (!c->has_tokenizer)
        return "no tokenizer";
    *runs = type && is_known_type(type);
    if (!type || *runs)
        return NULL;
    snprintf(text, room, "architecture %s", type);
    return text;
}

/* ---- search ---- */

static const char search_usage[] =
    "usage: zse-info models search [OPTIONS] WORDS\n"
    "Models on the hub ($HF_ENDPOINT, default https://huggingface.co) whose name contains WORDS, the most downloaded first.\n"
    "  -n, --limit N     at most N of them, 1 to 100 (default: 20)\n"
    "  -a, --all         also those that cannot be converted, with the reason\n"
    "  -j, --json        one JSON object\n"
    "  -h, --help        show this help\n"
    "  -V, --version     show the version\n";
static const struct option search_options[] = {
    { "limit", required_argument, NULL, 'n' }, { "all", no_argument, NULL, 'a' }, { "json", no_argument, NULL, 'j' },
    { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

static json_t *search_row(const json_t *info, int *ok)
{
    char text[120];
    json_t *row;
    struct contents c = look_through(info);
    int runs;
    const char *id = json_string_value(json_object_get(info, "id")),
               *why = obstacle(info, &c, text, sizeof text, &runs);
    *ok = !why;
    if (!id)
        id = json_string_value(json_object_get(info, "modelId"));
    row = json_pack("{s:s, s:I, s:I, s:s*, s:i, s:i, s:i, s:s*, s:b}", "id", id ? id : "?", "downloads",
                    json_integer_value(json_object_get(info, "downloads")),
                     "likes", json_integer_value(json_object_get(info, "likes")), "license", license_of(info),
                     "safetensors", c.n_safetensors, "gguf", c.n_gguf, "zse", c.n_zse,
                     "model_type", json_string_value(json_object_get(json_object_get(info, "config"), "model_type")),
                     "compatible", *ok);
    if (why)
        json_object_set_new(row, "reason", js_text(why));
    return row;
}

json_t *catalog_search(const char *words, int limit, struct err *e)
{
    struct hub_setup s;
    json_t *found = hub_setup(&s, "zse-serve", e) == 0 ? hub_search(&s.o, words, limit, e) : NULL, *rows, *info;
    size_t i;
    int ok;
    hub_setup_release(&s);
    if (!found)
        return NULL;
    rows = json_array();
    json_array_foreach(found, i, info)
        json_array_append_new(rows, search_row(info, &ok));
    json_decref(found);
    return json_pack("{s:i, s:o, s:o}", "count", (int)json_array_size(rows), "query", js_text(words), "models", rows);
}

static void print_search(const json_t *rows, int all)
{
    const json_t *r;
    char b[3][200];
    size_t i;
    json_array_foreach(rows, i, r) {
        const char *why = json_string_value(json_object_get(r, "reason")),
                   *license = json_string_value(json_object_get(r, "license"));
        const char *files = json_integer_value(json_object_get(r, "safetensors"))
                                ? "safetensors" : json_integer_value(json_object_get(r, "gguf")) ? "GGUF" : "zse";
        if (i == 0)
            printf("%-52s %12s  %-11s %-16s%s\n", "model", "downloads", "files", "license", all ? " converts" : "");
        printf("%-52s %12lld  %-11s %-16s", cli_plain(b[0], sizeof b[0], json_string_value(json_object_get(r, "id"))),
               (long long)json_integer_value(json_object_get(r, "downloads")), why ? "-" : files,
               license ? cli_plain(b[1], sizeof b[1], license) : "-");
        printf(all ? " %s\n" : "\n", why ? cli_plain(b[2], sizeof b[2], why) : "yes");
    }
}

static int search(const char *words, int limit, int all, int json)
{
    static const char prog[] = "zse-info models search";
    struct hub_setup s;
    struct err e;
    struct sigaction before;
    cli_ignore_pipe(&before);
    json_t *found = hub_setup(&s, prog, &e) == 0 ? hub_search(&s.o, words, limit, &e) : NULL, *rows = json_array(),
           *info;
    size_t i;
    int n_hidden = 0, ok;
    cli_restore_pipe(&before);
    hub_setup_release(&s);
    if (!found) {
        json_decref(rows);
        return cli_fail(prog, &e);
    }
    json_array_foreach(found, i, info) {
        json_t *row = search_row(info, &ok);
        if (ok || all)
            json_array_append_new(rows, row);
        else
            json_decref(row);
        n_hidden += !ok && !all;
    }
    if (json) {
        json_t *j = json_pack("{s:O, s:i}", "models", rows, "hidden", n_hidden);
        cli_json(j);
        json_decref(j);
    } else {
        print_search(rows, all);
        if (!json_array_size(rows))
            cli_note(prog, "no model has '%s' in its name%s", words, n_hidden ? " and can be converted" : "");
        if (n_hidden)
            cli_note(prog, "%d that cannot be converted are not shown (--all)", n_hidden);
    }
    int none = !json_array_size(rows);
    json_decref(rows);
    json_decref(found);
    int rc = cli_finish(prog);
    return rc ? rc : none;
}

int info_models_search(int argc, char **argv)
{
    static const char prog[] = "zse-info models search";
    int c, all = 0, json = 0;
    long long limit = 20;
    char words[400] = "";
    optind = 0;
    while ((c = cli_getopt(argc, argv, "n:ajhV", search_options)) != -1) {
        switch (c) {
        case 'n':
            if (cli_parse_int(prog, "--limit", optarg, 1, 100, &limit) != 0)
                return CLI_USAGE;
            break;
        case 'a': all = 1; break;
        case 'j': json = 1; break;
        case 'h': return cli_help(search_usage);
        case 'V': return cli_version("zse-info");
        default: return cli_usage(search_usage);
        }
    }
    if (optind == argc)
        return cli_usage(search_usage);
    for (; optind < argc; optind++) {
        size_t n = strlen(words);
        if (n + strlen(argv[optind]) + 2 > sizeof words)
            return cli_wrong(prog, "WORDS: more than %zu bytes", sizeof words - 2);
        snprintf(words + n, sizeof words - n, "%s%s", n ? " " : "", argv[optind]);
    }
    return search(words, (int)limit, all, json);
}

/* ---- check ---- */

static const char check_usage[] =
    "usage: zse-info models check [OPTIONS] MODEL\n"
    "Check whether MODEL can be converted and run here, and print the memory of its weights.  Exit code 1: no.\n"
    "MODEL is org/name or org/name@revision on the hub, of which only config.json is read; or a folder, a GGUF file, a .zse,\n"
    "the name of a model here.\n"
    "  -j, --json        one JSON object\n"
    "  -h, --help        show this help\n"
    "  -V, --version     show the version\n";
static const struct option check_options[] = {
    { "json", no_argument, NULL, 'j' }, { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' },
        { NULL, 0, NULL, 0 },
};

static void add_problem(json_t *report, const char *text)
{
    json_array_append_new(json_object_get(report, "problems"), js_text(text));
}

/* Add the estimated memory for weights of 16, 8 and 4 bits: 20 % are added for keys, values and
 * workspace, and with 8 and 4 bits another 10 % for scales. */
static void add_sizes(json_t *report, uint64_t bytes, int bits)
{
    double as16 = (double)bytes * 16 / bits;
    json_object_set_new(report, "weight_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(report, "memory", json_pack("{s:I, s:I, s:I}", "f16", (json_int_t)(as16 * 1.2), "int8",
                                                    (json_int_t)(as16 / 2 * 1.1), "int4",
                                                    (json_int_t)(as16 / 4 * 1.1)));
}

static int bits_of(const json_t *config)
{
    const char *dtype = json_string_value(json_object_get(config, "dtype"));
    if (json_object_get(config, "quantization_config"))
        return 0;
    return dtype && strcmp(dtype, "float32") == 0 ? 32 : 16;
}

/* Check whether the architecture of the config runs. */
static void judge_config(json_t *report, const json_t *config)
{
    struct config c;
    struct err why;
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (type)
        json_object_set_new(report, "architecture", json_string(type));
    if (config_parse(&c, config, &why) != 0) {
        add_problem(report, why.msg);
        return;
    }
    json_object_set_new(report, "context", json_integer(c.max_len));
    config_release(&c);
}

static int check_path(json_t *report, const char *path, struct err *e)
{
    struct info i;
    uint64_t bytes = 0;
    int rc = info_open(&i, path, e);
    if (rc == 0 && i.config)
        judge_config(report, i.config);
    for (int k = 0; rc == 0 && i.s && k < i.s->n_tensors; k++)
        bytes += i.s->tensors[k].size;
    if (rc == 0 && i.s && bytes)
        json_object_set_new(report, "weight_bytes", json_integer((json_int_t)bytes));
    if (rc == 0 && i.s && i.kind == SOURCE_FOLDER && !i.s->quantization && bits_of(i.config))
        add_sizes(report, bytes, bits_of(i.config));
    if (rc == 0 && i.kind == SOURCE_CONFIG)
        add_problem(report, "no safetensors, only a config.json");
    if (rc == 0 && i.kind == SOURCE_TOKENIZER)
        add_problem(report, "no weights and no config.json, only a tokenizer");
    if (rc == 0 && i.kind == SOURCE_FOLDER && !source_file(i.s, "tokenizer.json") &&
        !source_file(i.s, "tokenizer.model") && !source_file(i.s, "vocab.json"))
        add_problem(report, "no tokenizer");
    info_close(&i);
    return rc;
}

static int check_on_hub(json_t *report, struct hub_setup *s, const struct hub_name *name, struct err *e)
{
    json_t *info = hub_model_info(&s->o, name, e), *raw, *config = NULL;
    if (!info)
        return -1;
    struct contents c = look_through(info);
    size_t size;
    char *text = c.has_config ? hub_small_file(&s->o, name, "config.json", 16 << 20, &size, e) : NULL;
    int rc = c.has_config && !text ? -1 : 0;
    json_object_set(report, "commit", json_object_get(info, "sha"));
    json_object_set_new(report, "safetensors", json_integer(c.n_safetensors));
    json_object_set_new(report, "gguf", json_integer(c.n_gguf));
    json_object_set_new(report, "zse", json_integer(c.n_zse));
    if (license_of(info))
        json_object_set_new(report, "license", json_string(license_of(info)));
    if (!c.n_safetensors && !c.n_gguf && !c.n_zse)
        add_problem(report, "no safetensors and no GGUF");
    if (c.n_safetensors && !c.has_config)
        add_problem(report, "no config.json");
    if (c.n_safetensors && !c.has_tokenizer)
        add_problem(report, "no tokenizer");
    if (text && c.n_safetensors && (raw = js_parse_python("config.json", text, size, e))) {
        config = hub_quant_config(&s->o, name, info, raw, e) == 0 ? hf_config_normalize(raw, e) : NULL;
        json_decref(raw);
    }
    if (text && c.n_safetensors && !config)
        add_problem(report, e->msg);
    const int quantized = packed_config_take(config);
    if (config)
        judge_config(report, config);
    if (c.bytes)
        json_object_set_new(report, "weight_bytes", json_integer((json_int_t)c.bytes));
    if (c.bytes && config && !quantized && bits_of(config))
        add_sizes(report, c.bytes, bits_of(config));
    json_decref(config);
    json_decref(info);
    free(text);
    return rc;
}

/* A report as the API has it. */
static json_t *check_answer(json_t *report, const char *id)
{
    json_t *memory = json_object_get(report, "memory"), *issues = json_object_get(report, "problems"),
           *advice = json_array();
    const int good = json_array_size(issues) == 0;
    if (good)
        json_array_append_new(advice, json_sprintf("zse-convert %s -o MODEL.zse", id));
    return json_pack("{s:s, s:b, s:O?, s:O, s:o, s:{s:O?, s:O?, s:O?}}", "model_id", id, "compatible", good,
                     "architecture", json_object_get(report, "architecture"), "issues", issues, "recommendations",
                     advice, "size_info", "weight_bytes", json_object_get(report, "weight_bytes"), "memory_bytes",
                     memory, "context", json_object_get(report, "context"));
}

json_t *catalog_check(const char *id, struct err *e)
{
    struct hub_setup s = { .prog = "zse-serve" };
    struct hub_name name;
    json_t *report, *answer = NULL;
    if (hub_parse_name(&name, id, e) != 0) {
        e->code = ERR_FORMAT;
        return NULL;
    }
    report = json_pack("{s:[]}", "problems");
    if (hub_setup(&s, s.prog, e) == 0 && check_on_hub(report, &s, &name, e) == 0)
        answer = check_answer(report, id);
    else if (e->code == ERR_FORMAT)
        e->code = ERR_IO;
    hub_setup_release(&s);
    json_decref(report);
    return answer;
}

static void print_check(const json_t *report)
{
    static const struct { const char *key, *label; } texts[] = { { "architecture", "architecture" },
                                                                 { "license", "license" }, { "commit", "commit" } };
    const json_t *v, *memory = json_object_get(report, "memory");
    const char *type;
    char b[CLI_BYTES], text[5000];
    size_t i;
    printf("%-14s %s\n", "model", cli_plain(text, sizeof text, json_string_value(json_object_get(report, "model"))));
    for (i = 0; i < sizeof texts / sizeof *texts; i++)
        if ((v = json_object_get(report, texts[i].key)))
            printf("%-14s %s\n", texts[i].label, cli_plain(text, sizeof text, json_string_value(v)));
    if ((v = json_object_get(report, "context")))
        printf("%-14s %lld tokens\n", "context", (long long)json_integer_value(v));
    if ((v = json_object_get(report, "weight_bytes")))
        printf("%-14s %s\n", "weights", cli_bytes(b, (uint64_t)json_integer_value(v)));
    json_t *m = (json_t *)memory, *bytes;
    json_object_foreach(m, type, bytes)
        printf("memory %-7s about %s\n", type, cli_bytes(b, (uint64_t)json_integer_value(bytes)));
    json_array_foreach(json_object_get(report, "problems"), i, v)
        printf("%-14s %s\n", "problem", cli_plain(text, sizeof text, json_string_value(v)));
    printf("%-14s %s\n", "converts", json_is_true(json_object_get(report, "compatible")) ? "yes" : "no");
}

static int check(const char *model, int json)
{
    static const char prog[] = "zse-info models check";
    struct hub_setup s = { .prog = prog };
    struct hub_name name;
    struct stat st;
    struct err e;
    char *path = home_model_path(model, &e);
    if (!path)
        return cli_fail(prog, &e);
    int there = stat(path, &st) == 0, rc;
    struct sigaction before;
    json_t *report = json_pack("{s:o, s:s, s:[]}", "model", js_text(model), "where", there ? "here" : "hub",
                               "problems");
    cli_ignore_pipe(&before);
    if (there)
        rc = check_path(report, path, &e);
    else if ((rc = hub_parse_name(&name, model, &e)) != 0)
        err_prefix(&e, "no such file or folder here, and");
    else if ((rc = hub_setup(&s, prog, &e)) == 0)
        rc = check_on_hub(report, &s, &name, &e);
    free(path);
    hub_setup_release(&s);
    cli_restore_pipe(&before);
    if (rc != 0) {
        json_decref(report);
        return cli_fail(prog, &e);
    }
    int bad = json_array_size(json_object_get(report, "problems")) > 0;
    json_object_set_new(report, "compatible", json_boolean(!bad));
    if (json)
        cli_json(report);
    else
        print_check(report);
    json_decref(report);
    rc = cli_finish(prog);
    return rc ? rc : bad;
}

int info_models_check(int argc, char **argv)
{
    int c, json = 0;
    optind = 0;
    while ((c = cli_getopt(argc, argv, "jhV", check_options)) != -1) {
        switch (c) {
        case 'j': json = 1; break;
        case 'h': return cli_help(check_usage);
        case 'V': return cli_version("zse-info");
        default: return cli_usage(check_usage);
        }
    }
    if (argc - optind != 1)
        return cli_usage(check_usage);
    return check(argv[optind], json);
}

/* ---- fetch ---- */

static const char fetch_usage[] =
    "usage: zse-info models fetch [OPTIONS] MODEL\n"
    "Download the files that a conversion of MODEL, org/name on the hub, needs to the cache of the Python tools, and print their path.\n"
    "\n"
    "  -j, --json                 a JSON object instead of text\n"
    "      --progress bar|json    progress as a bar on a terminal, or as lines of JSON on standard error (default: bar)\n"
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n";
enum { OPT_PROGRESS = 256 };
static const struct option fetch_options[] = {
    { "json", no_argument, NULL, 'j' }, { "progress", required_argument, NULL, OPT_PROGRESS },
    { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

int info_models_fetch(int argc, char **argv)
{
    static const char prog[] = "zse-info models fetch";
    struct err e;
    char *path;
    int c, json = 0, rc;
    optind = 0;
    while ((c = cli_getopt(argc, argv, "jhV", fetch_options)) != -1) {
        switch (c) {
        case 'j': json = 1; break;
        case OPT_PROGRESS:
            if ((rc = cli_progress_form(prog, optarg)) != 0)
                return rc;
            break;
        case 'h': return cli_help(fetch_usage);
        case 'V': return cli_version("zse-info");
        default: return cli_usage(fetch_usage);
        }
    }
    if (argc - optind != 1)
        return cli_usage(fetch_usage);
    if (hub_model_path(prog, argv[optind], 1, NULL, &path, &e) != 0)
        return cli_fail(prog, &e);
    if (access(path, F_OK) != 0) {          /* unchanged, because the hub cannot have this name */
        err_sys(&e, "%s", path);
        free(path);
        return cli_fail(prog, &e);
    }
    if (json) {
        json_t *j = json_pack("{s:o, s:o}", "model", js_text(argv[optind]), "path", js_text(path));
        cli_json(j);
        json_decref(j);
    } else {
        printf("%s\n", path);
    }
    free(path);
    return cli_finish(prog);
}

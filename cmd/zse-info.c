/* zse-info.c - look inside a model: a .zse file, a GGUF file, a Hugging Face folder or a
 * config.json. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "cmd/sigbus.h"
#include "cmd/zse-info.h"
#include "cmd/info_models.h"
#include "cmd/info_render.h"
#include "cmd/info_tokens.h"

static const char usage[] =
    "usage: zse-info [OPTIONS] MODEL\n"
    "       zse-info tokenize|detokenize|render [OPTIONS] MODEL     (--help of each says more)\n"
    "       zse-info models COMMAND ...                             models here and on the hub (--help says more)\n"
    "MODEL is a .zse file, a GGUF file, a Hugging Face folder, a config.json, or the name of a model\n"
    "here (zse-info models local).\n"
    "  -j, --json                    one JSON object with everything\n"
    "      --format text|json        the same as --json, or not\n"
    "  -t, --tensors                 list every tensor\n"
    "  -l, --layers                  list the groups of tensors\n"
    "      --layer N                 only layer N in these lists; alone: its tensors\n"
    "  -m, --memory                  bytes by number format and by role, KV cache\n"
    "      --layout                  offsets and sizes, in file order\n"
    "      --verify                  read everything and compare the checksums\n"
    "      --dump-tensor NAME        one tensor as float32, as its source had it (with -o)\n"
    "  -o, --output FILE             where --dump-tensor writes; '-': standard output\n"
    "      --extract-tokenizer DIR   write the original files of the tokenizer\n"
    "      --print-defaults          print the options that have a default, and the defaults\n"
    "  -h, --help                    show this help\n"
    "  -V, --version                 show the version\n";

enum { OPT_FORMAT = 256, OPT_LAYER, OPT_LAYOUT, OPT_VERIFY, OPT_DUMP, OPT_EXTRACT };

static const struct option long_options[] = {
    { "json", no_argument, NULL, 'j' }, { "format", required_argument, NULL, OPT_FORMAT },
        { "tensors", no_argument, NULL, 't' },
    { "layers", no_argument, NULL, 'l' }, { "layer", required_argument, NULL, OPT_LAYER },
    { "memory", no_argument, NULL, 'm' },
    { "layout", no_argument, NULL, OPT_LAYOUT }, { "verify", no_argument, NULL, OPT_VERIFY },
    { "dump-tensor", required_argument, NULL, OPT_DUMP },
    { "output", required_argument, NULL, 'o' }, { "extract-tokenizer", required_argument, NULL, OPT_EXTRACT },
    CLI_DEFAULTS_OPTION, { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

struct info_options {
    const char *model, *dump, *output, *extract;
    int json, verify, layer;
    unsigned parts;
};

static const struct { const char *name; int (*run)(int argc, char **argv); } commands[] = {
    { "tokenize", info_tokenize }, { "detokenize", info_detokenize }, { "render", info_render },
        { "models", info_models },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* Parse the options.  0, or -1 with *code the exit code. */
static int parse_options(struct info_options *o, int argc, char **argv, int *code)
{
    int c;
    long long n;
    *o = (struct info_options){ .layer = -1 };
    *code = CLI_USAGE;
    while ((c = cli_getopt(argc, argv, "jtlmo:hV", long_options)) != -1) {
        switch (c) {
        case 'j': o->json = 1; break;
        case 't': o->parts |= INFO_TENSORS; break;
        case 'l': o->parts |= INFO_LAYERS; break;
        case 'm': o->parts |= INFO_MEMORY; break;
        case 'o': o->output = optarg; break;
        case OPT_LAYOUT: o->parts |= INFO_LAYOUT; break;
        case OPT_VERIFY: o->verify = 1; break;
        case OPT_DUMP: o->dump = optarg; break;
        case OPT_EXTRACT: o->extract = optarg; break;
        case OPT_LAYER:
            if (cli_parse_int("zse-info", "--layer", optarg, 0, 1000000, &n) != 0)
                return -1;
            o->layer = (int)n;
            break;
        case OPT_FORMAT:
            o->json = strcmp(optarg, "json") == 0;
            if (!o->json && strcmp(optarg, "text") != 0)
                return cli_wrong("zse-info", "--format: '%s' is neither text nor json", optarg), -1;
            break;
        case 'h': *code = cli_help(usage); return -1;
        case CLI_PRINT_DEFAULTS: *code = cli_defaults(usage); return -1;
        case 'V': *code = cli_version("zse-info"); return -1;
        default: cli_usage(usage); return -1;
        }
    }
    if (optind < argc && info_models_has(argv[optind]) && !home_names_model(argv[optind]) &&
        access(argv[optind], F_OK) != 0)
        return cli_wrong("zse-info", "'%s' is not a command; did you mean 'models %s'?", argv[optind], argv[optind]), -1;
    if (optind < argc && !home_names_model(argv[optind]) &&
        cli_is_mistyped(argv[optind], &commands[0].name, sizeof *commands, N_COMMANDS))
        return cli_no_command("zse-info", argv[optind], &commands[0].name, sizeof *commands, N_COMMANDS), -1;
    if (argc - optind != 1)
        return cli_usage(usage), -1;
    o->model = argv[optind];
    if ((o->dump != NULL) != (o->output != NULL))
        return cli_wrong("zse-info", "--dump-tensor NAME and -o FILE belong together"), -1;
    if (o->output && strcmp(o->output, "-") == 0 && (o->json || isatty(STDOUT_FILENO)))
        return cli_wrong("zse-info", o->json ? "-o -: standard output is the tensor, so --json cannot be used"
                                             : "-o -: a tensor is not written to a terminal"), -1;
    return 0;
}

static int run_dump(const struct info_options *o, const struct info *i, struct err *e)
{
    json_t *shape;
    if (info_dump_tensor(i, o->dump, o->output, &shape, e) < 0)
        return -1;
    json_t *said = json_pack("{s:s, s:o, s:s, s:s}", "tensor", o->dump, "shape", shape, "type", "f32", "file",
                             o->output);
    if (o->json && said)
        cli_json(said);
    json_decref(said);
    return 0;
}

static int run_extract(const struct info_options *o, const struct info *i, struct err *e)
{
    json_t *names, *name;
    size_t k;
    if (info_extract(i, o->extract, &names, e) < 0)
        return -1;
    if (o->json) {
        json_t *said = json_pack("{s:s, s:O}", "folder", o->extract, "files", names);
        if (said)
            cli_json(said);
        json_decref(said);
    } else {
        json_array_foreach(names, k, name)
            printf("%s/%s\n", o->extract, json_string_value(name));
    }
    json_decref(names);
    return 0;
}

static int run_verify(const struct info_options *o, const struct info *i, struct err *e)
{
    int r = info_verify(i, e);
    if (o->json) {
        json_t *said = json_pack("{s:s, s:b, s:s*}", "file", o->model, "ok", r == 0, "error", r == 0 ? NULL : e->msg);
        if (said)
            cli_json(said);
        json_decref(said);
    } else if (r == 0) {
        printf("%s: %s\n", o->model, i->z ? "all checksums agree"
                                          : "every tensor is complete and finite (this kind of file has no checksums)");
    }
    return r;
}

static int run(const struct info_options *o, const struct info *i, struct err *e)
{
    if (o->dump)
        return run_dump(o, i, e);
    if (o->extract)
        return run_extract(o, i, e);
    if (o->verify)
        return run_verify(o, i, e);
    const unsigned lists = INFO_TENSORS | INFO_LAYERS | INFO_LAYOUT, parts = o->layer >= 0 &&
        !(o->parts & lists) ? o->parts | INFO_TENSORS : o->parts;
    json_t *d = info_describe(i, o->layer, o->json ? lists : parts & INFO_LAYOUT ? parts | INFO_TENSORS : parts),
           *n = json_object_get(d, "num_hidden_layers");
    int r = 0;
    if (!d)
        r = err_nomem(e, o->model);
    else if (n && o->layer >= json_integer_value(n))
        r = err_set(e, ERR_LIMIT, "%s: has %lld layer%s, there is no layer %d", o->model,
                    (long long)json_integer_value(n), plural(json_integer_value(n)), o->layer);
    else if (o->json)
        cli_json(d);
    else
        info_print(d, parts);
    json_decref(d);
    return r;
}

int main(int argc, char **argv)
{
    cli_start();
    sigbus_start("zse-info");
    for (size_t k = 0; argc > 1 && k < N_COMMANDS; k++)
        if (strcmp(argv[1], commands[k].name) == 0)
            return commands[k].run(argc - 1, argv + 1);
    struct info_options o;
    struct info i;
    struct err e;
    int code;
    if (parse_options(&o, argc, argv, &code) < 0)
        return code;
    char *path = home_model_path(o.model, &e);
    if (!path)
        return cli_fail("zse-info", &e);
    if (info_open(&i, path, &e) < 0) {
        info_close(&i);
        free(path);
        return cli_fail("zse-info", &e);
    }
    int r = run(&o, &i, &e);
    info_close(&i);
    free(path);
    if (r < 0) {
        cli_fail("zse-info", &e);
        cli_finish("zse-info");
        return CLI_FAILED;
    }
    return cli_finish("zse-info");
}

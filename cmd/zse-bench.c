/* zse-bench - how fast a model answers, how much memory it takes, and how good it is against a text or another model. */
#include <string.h>
#include <unistd.h>

#include "cmd/bench.h"
#include "cmd/cli.h"

static const char prog[] = "zse-bench";
static const char usage[] =
    "usage: zse-bench [OPTIONS] [MODEL]\n"
    "       zse-bench logits MODEL --ids IDS -o FILE\n"
    "       zse-bench perplexity MODEL TEXTFILE [OPTIONS]\n"
    "       zse-bench quality REFERENCE MODEL TEXTFILE [OPTIONS]\n"
    "Measure prefill, decode, time to first token and memory; or write logits, or score a text (these print JSON).\n"
    "MODEL is a .zse, a GGUF file or a Hugging Face folder (default where it is alone: $ZSE_MODEL).\n"
    "\n"
    "  -p, --prompt N             tokens of a prompt (default: 512); 0: decode from an empty context\n"
    "  -n, --generate N           tokens generated after it (default: 128); 0: prefill only\n"
    "  -b, --batch N              sequences at once (default: 1)\n"
    "  -r, --repeats N            measured runs (default: 5)\n"
    "  -w, --warmup N             runs before them that do not count (default: 1)\n"
    "      --json                 a JSON object instead of text\n"
    "\n"
    "      --ids IDS              logits: token ids, '1 5 9'\n"
    "  -o, --output FILE          logits: float32 little endian [n_tokens, vocab_size], always --exact; '-': standard output\n"
    "      --window N             perplexity, quality: tokens of a window (default: 512)\n"
    "      --windows N            perplexity, quality: only the first N windows of the text\n"
    "\n"
    RUN_HELP
    "\n"
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n"
    "perplexity scores tokens 1 .. window-1 of each window; quality compares the distributions at positions window/2 .. window-2 with\n"
    "those of REFERENCE, which runs with --exact.\n";

enum { OPT_JSON = 300, OPT_IDS, OPT_WINDOW, OPT_WINDOWS };
static const struct option options[] = {
    { "prompt", required_argument, NULL, 'p' }, { "generate", required_argument, NULL, 'n' }, { "batch", required_argument, NULL, 'b' },
    { "repeats", required_argument, NULL, 'r' }, { "warmup", required_argument, NULL, 'w' }, { "json", no_argument, NULL, OPT_JSON },
    { "ids", required_argument, NULL, OPT_IDS }, { "output", required_argument, NULL, 'o' }, { "window", required_argument, NULL, OPT_WINDOW },
    { "windows", required_argument, NULL, OPT_WINDOWS }, RUN_LONG_OPTIONS,
    { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

static int parse_whole(const char *name, const char *arg, long long min, long long max, int *out)
{
    long long v;
    if (cli_parse_int(prog, name, arg, min, max, &v) != 0)
        return CLI_USAGE;
    *out = (int)v;
    return 0;
}

static int take(struct bench_options *o, int c, const char *arg)
{
    o->speed_option |= strchr("pnbrw", c) != NULL;
    o->score_option |= c == OPT_WINDOW || c == OPT_WINDOWS;
    switch (c) {
    case 'p': return parse_whole("--prompt", arg, 0, 1 << 20, &o->prompt);
    case 'n': return parse_whole("--generate", arg, 0, 1 << 20, &o->generate);
    case 'b': return parse_whole("--batch", arg, 1, 4096, &o->batch);
    case 'r': return parse_whole("--repeats", arg, 1, 100000, &o->repeats);
    case 'w': return parse_whole("--warmup", arg, 0, 1000, &o->warmup);
    case OPT_WINDOW: return parse_whole("--window", arg, 4, 1 << 20, &o->window);
    case OPT_WINDOWS: return parse_whole("--windows", arg, 1, INT32_MAX, &o->windows);
    case OPT_JSON: o->json = 1; return 0;
    case OPT_IDS: o->ids = arg; return 0;
    case 'o': o->output = arg; return 0;
    default: return run_option(prog, c, arg, &o->run);
    }
}

static int run(struct bench_options *o, int n, char **args)
{
    static const struct { const char *name; int n; } commands[] = { { "logits", 1 }, { "perplexity", 2 }, { "quality", 3 } };
    size_t i = 0;
    while (i < 3 && (n == 0 || strcmp(args[0], commands[i].name) != 0))
        i++;
    if (i < 3 && n - 1 != commands[i].n)
        return cli_wrong(prog, "%s: %d arguments, expected %d", commands[i].name, n - 1, commands[i].n);
    if (i != 0 && (o->ids || o->output))
        return cli_wrong(prog, "--ids and -o belong to zse-bench logits");
    if (i == 0 && (!o->ids || !o->output))
        return cli_wrong(prog, "logits: --ids and -o are needed");
    if (i == 0 && strcmp(o->output, "-") == 0 && isatty(STDOUT_FILENO))
        return cli_wrong(prog, "-o -: logits are not written to a terminal");
    if (i == 0 && o->run.kv_given && o->run.kv != KV_F32)
        return cli_wrong(prog, "logits: always --exact, which stores keys and values as f32");
    if (i < 3 && o->speed_option)
        return cli_wrong(prog, "%s: -p, -n, -b, -r and -w belong to the measurement of speed", commands[i].name);
    if ((i == 0 || i == 3) && o->score_option)
        return cli_wrong(prog, "--window and --windows belong to perplexity and quality");
    switch (i) {
    case 0: return bench_logits(o, args[1]);
    case 1: return bench_perplexity(o, args[1], args[2]);
    case 2: return bench_quality(o, args[1], args[2], args[3]);
    }
    if (n > 1)
        return cli_usage(usage);
    if (o->prompt == 0 && o->generate == 0)
        return cli_wrong(prog, "-p 0 and -n 0 leave nothing to measure");
    return bench_speed(o, n ? args[0] : NULL);
}

int main(int argc, char **argv)
{
    struct bench_options o = { .prompt = 512, .generate = 128, .batch = 1, .repeats = 5, .warmup = 1, .window = 512 };
    int c, rc;
    while ((c = getopt_long(argc, argv, "p:n:b:r:w:o:q:hV", options, NULL)) != -1) {
        if (c == 'h')
            return cli_help(usage);
        if (c == 'V')
            return cli_version(prog);
        if ((rc = take(&o, c, optarg)) != 0)
            return rc < 0 ? cli_usage(usage) : rc;
    }
    rc = run_options_check(prog, &o.run);
    return rc ? rc : run(&o, argc - optind, argv + optind);
}

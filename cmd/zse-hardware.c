/* zse-hardware.c - show this machine, settings that would make it faster, and the models that it
 * can run. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/zse-hardware.h"
#include "libcommon/plan/plan.h"

static const char prog[] = "zse-hardware";
static const char usage[] =
    "usage: zse-hardware [OPTIONS]\n"
    "       zse-hardware check|recommend [OPTIONS]\n"
    "       zse-hardware capacity [OPTIONS] MODEL:TYPE...\n"
    "       zse-hardware budget [OPTIONS] MODEL\n"
    "Show this machine as language models see it: processor, memory, limits of its control group, disks, GPUs.\n"
    "\n"
    "  check                      settings that would make it faster, with the commands to change them\n"
    "  recommend                  models that run in the memory that is available now, with type and expected speed\n"
    "  capacity                   how many of these models fit together\n"
    "  budget                     memory of each GPU of a pipeline, and how many tokens fit beside it\n"
    "MODEL is a name of the registry (zse-info models list), a size like 7B, a config.json or a folder with one.\n"
    "\n"
    "      --json                 a JSON object instead of text\n"
    "      --measure              also measure memory, arithmetic and page cache (about a second)\n"
    "      --file FILE            with --measure: a file on the disk to measure; its pages are evicted first\n"
    "      --threads N            measure with N threads (default: one for each processor)\n"
    "      --root DIR             read proc and sys below this folder instead of /: another machine's, or a container's host's\n"
    "\n"
    "      --vram SIZE            recommend, capacity: size of the memory, like 8 or 8GB (default: the memory available now)\n"
    "      --model NAME           recommend: only this model\n"
    "      --mode NAME            recommend: auto, min_memory, balanced, max_speed (default: max_speed)\n"
    "      --context N            tokens of context to plan for (default: 4096; budget: as many as fit)\n"
    "      --no-speed             recommend: measure nothing, predict no speed\n"
    "      --all                  recommend: include architectures that do not run here\n"
    "\n"
    "      --pp LIST              budget: layers of each GPU, like 20,21,20, or one number: number of GPUs with equal parts (default: 1)\n"
    "      --quant bf16|int8|int4   budget: type of attention, dense and shared MLPs (default: int8)\n"
    "      --kv fp8|bf16          budget: type of keys and values (default: fp8)\n"
    "      --experts int4|int8    budget: experts also on the GPU (default: in the machine's memory)\n"
    "      --divisor N            budget: with --experts: hold 1/N of the layers' experts at a time, 0: one layer's (default: 1)\n"
    "      --vram-mb N            budget: MiB of each GPU (default: free memory by NVML)\n"
    "      --headroom-mb N        budget: MiB to be left free (default: 500)\n"
    "      --mem-fraction X       budget: fraction of each GPU to use (default: 1)\n"
    "      --max-total-tokens N   budget: no more tokens than this\n"
    "      --quiet                budget: no summary on standard error\n"
    "\n"
    CLI_DEFAULTS_HELP
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n";

enum {
    OPT_JSON = 300, OPT_MEASURE, OPT_FILE, OPT_THREADS, OPT_ROOT, OPT_VRAM, OPT_MODEL, OPT_MODE, OPT_CONTEXT,
        OPT_NO_SPEED, OPT_ALL, OPT_PP, OPT_QUANT, OPT_KV, OPT_EXPERTS,
    OPT_DIVISOR, OPT_VRAM_MB, OPT_HEADROOM, OPT_FRACTION, OPT_MAX_TOKENS, OPT_QUIET,
};

static const struct option options[] = {
    { "json", no_argument, NULL, OPT_JSON }, { "measure", no_argument, NULL, OPT_MEASURE },
        { "file", required_argument, NULL, OPT_FILE },
    { "threads", required_argument, NULL, OPT_THREADS }, { "root", required_argument, NULL, OPT_ROOT },
    { "vram", required_argument, NULL, OPT_VRAM },
    { "model", required_argument, NULL, OPT_MODEL }, { "mode", required_argument, NULL, OPT_MODE },
    { "context", required_argument, NULL, OPT_CONTEXT },
    { "no-speed", no_argument, NULL, OPT_NO_SPEED }, { "all", no_argument, NULL, OPT_ALL },
    { "pp", required_argument, NULL, OPT_PP },
    { "quant", required_argument, NULL, OPT_QUANT }, { "kv", required_argument, NULL, OPT_KV },
    { "experts", required_argument, NULL, OPT_EXPERTS },
    { "divisor", required_argument, NULL, OPT_DIVISOR }, { "vram-mb", required_argument, NULL, OPT_VRAM_MB },
    { "headroom-mb", required_argument, NULL, OPT_HEADROOM },
    { "mem-fraction", required_argument, NULL, OPT_FRACTION },
    { "max-total-tokens", required_argument, NULL, OPT_MAX_TOKENS }, { "quiet", no_argument, NULL, OPT_QUIET },
    CLI_DEFAULTS_OPTION, { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

/* The commands that accept an option; "" is no command.  An option that is not listed here is
 * accepted by all. */
static const struct { int option; const char *commands; } known[] = {
    { OPT_MEASURE, "" }, { OPT_FILE, "" }, { OPT_THREADS, " recommend" }, { OPT_VRAM, "recommend capacity" },
        { OPT_MODEL, "recommend" }, { OPT_MODE, "recommend" },
    { OPT_CONTEXT, "recommend capacity budget" }, { OPT_NO_SPEED, "recommend" }, { OPT_ALL, "recommend" },
    { OPT_PP, "budget" }, { OPT_QUANT, "budget" }, { OPT_KV, "budget" },
    { OPT_EXPERTS, "budget" }, { OPT_DIVISOR, "budget" }, { OPT_VRAM_MB, "budget" }, { OPT_HEADROOM, "budget" },
    { OPT_FRACTION, "budget" }, { OPT_MAX_TOKENS, "budget" },
    { OPT_QUIET, "budget" },
};

static int whole(const char *name, const char *arg, long long min, long long max, int *out)
{
    long long v;
    if (cli_parse_int(prog, name, arg, min, max, &v) != 0)
        return CLI_USAGE;
    *out = (int)v;
    return 0;
}

/* Handle one option: 0, or the exit code of wrong usage. */
static int take(struct hardware_options *o, int c, const char *arg)
{
    char text[64];
    switch (c) {
    case OPT_JSON: o->json = 1; return 0;
    case OPT_MEASURE: o->measure = 1; return 0;
    case OPT_FILE: o->file = arg; return 0;
    case OPT_ROOT: o->root = arg; return 0;
    case OPT_THREADS: return whole("--threads", arg, 1, 1024, &o->threads);
    case OPT_VRAM:
        /* "8" means gigabytes */
        snprintf(text, sizeof text, strspn(arg, "0123456789.") == strlen(arg) && *arg ? "%sGB" : "%s", arg);
        if (cli_parse_size(prog, "--vram", text, &o->vram) != 0)
            return CLI_USAGE;
        return o->vram ? 0 : cli_wrong(prog, "--vram: expected a memory larger than 0");
    case OPT_MODEL: o->model = arg; return 0;
    case OPT_MODE:
        o->mode = plan_mode_find(arg);
        return o->mode >= 0 ? 0 : cli_wrong(prog, "--mode: '%s', expected auto, min_memory, balanced or max_speed",
                                            arg);
    case OPT_CONTEXT: return whole("--context", arg, 1, 1 << 28, &o->context);
    case OPT_NO_SPEED: o->no_speed = 1; return 0;
    case OPT_ALL: o->all = 1; return 0;
    case OPT_PP: o->pp = arg; return 0;
    case OPT_QUANT: o->quant = arg; return 0;
    case OPT_KV: o->kv = arg; return 0;
    case OPT_EXPERTS: o->experts = arg; return 0;
    case OPT_DIVISOR: return whole("--divisor", arg, 0, 1024, &o->divisor);
    case OPT_VRAM_MB: return cli_parse_float(prog, "--vram-mb", arg, 1, 1e9, &o->vram_mb);
    case OPT_HEADROOM: return cli_parse_float(prog, "--headroom-mb", arg, 0, 1e9, &o->headroom_mb);
    case OPT_FRACTION: return cli_parse_float(prog, "--mem-fraction", arg, 0.01, 1, &o->fraction);
    case OPT_MAX_TOKENS: return cli_parse_float(prog, "--max-total-tokens", arg, 1, 1e12, &o->max_tokens);
    case OPT_QUIET: o->quiet = 1; return 0;
    default: return cli_usage(usage);
    }
}

/* For the command budget: read options that are not on the command line from the environment, for
 * scripts that cannot change a command line. */
static int take_variables(struct hardware_options *o, const unsigned char *given)
{
    static const struct { const char *name; int option; } variables[] = {
        { "ZSE_CTX_SIZE_OVERRIDE", OPT_CONTEXT }, { "ZSE_MEM_FRACTION_OVERRIDE", OPT_FRACTION },
            { "ZSE_MAX_TOTAL_TOKENS_OVERRIDE", OPT_MAX_TOKENS },
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *v = getenv(variables[i].name);
        const int rc = v && *v && !given[variables[i].option - OPT_JSON] ? take(o, variables[i].option, v) : 0;
        if (rc != 0) {
            cli_note(prog, "the value is from %s", variables[i].name);
            return rc;
        }
    }
    return 0;
}

/* The name of an option that was given and that this command does not accept; NULL: there is
 * none. */
static const char *misplaced(const unsigned char *given, const char *command)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *at = *command ? strstr(known[i].commands, command) : NULL;
        if (!given[known[i].option - OPT_JSON] || at ||
            (!*command && (!*known[i].commands || *known[i].commands == ' ')))
            continue;
        for (const struct option *p = options; p->name; p++)
            if (p->val == known[i].option)
                return p->name;
    }
    return NULL;
}

/* least, most: number of names after the command */
static const struct { const char *name; int (*run)(const struct hardware_options *o); int least, most; } commands[] = {
    { "", hardware_show, 0, 0 }, { "check", hardware_check, 0, 0 }, { "recommend", hardware_recommend, 0, 0 },
        { "capacity", hardware_capacity, 1, 64 },
    { "budget", hardware_budget, 1, 1 },
};

int main(int argc, char **argv)
{
    struct hardware_options o = { .mode = PLAN_MAX_SPEED, .divisor = 1, .headroom_mb = 500, .fraction = 1 };
    unsigned char given[OPT_QUIET - OPT_JSON + 1] = { 0 };
    int c, rc;
    cli_start();
    while ((c = cli_getopt(argc, argv, "hV", options)) != -1) {
        if (c == 'h')
            return cli_help(usage);
        if (c == CLI_PRINT_DEFAULTS)
            return cli_defaults(usage);
        if (c == 'V')
            return cli_version(prog);
        if ((rc = take(&o, c, optarg)) != 0)
            return rc;
        given[c - OPT_JSON] = 1;
    }
    const char *command = optind < argc ? argv[optind++] : "", *wrong = misplaced(given, command);
    o.names = (const char *const *)argv + optind;
    o.n_names = argc - optind;
    if (strcmp(command, "budget") == 0 && (rc = take_variables(&o, given)) != 0)
        return rc;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, command) != 0)
            continue;
        if (wrong)
            return cli_wrong(prog, "--%s does not go with %s", wrong, *command ? command : "no command");
        if (o.n_names > commands[i].most)
            return cli_wrong(prog, "'%s': expected nothing after %s", o.names[commands[i].most],
                             commands[i].most ? o.names[commands[i].most - 1] : *command ? command : "the options");
        if (o.n_names < commands[i].least)
            return cli_wrong(prog, "%s: which MODEL?", command);
        if (!*command && (o.file || o.threads) && !o.measure)
            return cli_wrong(prog, "%s goes with --measure", o.file ? "--file" : "--threads");
        if (given[OPT_DIVISOR - OPT_JSON] && !o.experts)
            return cli_wrong(prog, "--divisor goes with --experts");
        if (o.measure && o.root)
            return cli_wrong(prog, "--measure: --root describes another machine");
        return commands[i].run(&o);
    }
    return cli_no_command(prog, command, &commands[0].name, sizeof *commands, sizeof commands / sizeof *commands);
}

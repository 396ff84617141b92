/* zse-hardware - what this machine has, what would make it faster, and which models it can run. */
#include <getopt.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/hardware.h"

static const char prog[] = "zse-hardware";
static const char usage[] =
    "usage: zse-hardware [OPTIONS]\n"
    "       zse-hardware check [OPTIONS]\n"
    "Show this machine as language models see it: processor, memory, limits of its control group, disks, GPUs.\n"
    "\n"
    "  check                      what would make it faster, with the command that does it\n"
    "\n"
    "      --json                 a JSON object instead of text\n"
    "      --measure              measure memory, arithmetic and page cache, too (about a second)\n"
    "      --file FILE            with --measure: the file whose disk is read; its own pages are dropped first\n"
    "      --threads N            with --measure: threads (default: one for each processor)\n"
    "      --root DIR             read proc and sys below this folder instead of /: another machine's, or a container's host's\n"
    "\n"
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n";

enum { OPT_JSON = 300, OPT_MEASURE, OPT_FILE, OPT_THREADS, OPT_ROOT };

static const struct option options[] = {
    { "json", no_argument, NULL, OPT_JSON }, { "measure", no_argument, NULL, OPT_MEASURE }, { "file", required_argument, NULL, OPT_FILE },
    { "threads", required_argument, NULL, OPT_THREADS }, { "root", required_argument, NULL, OPT_ROOT },
    { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

/* One option: 0 or the exit code of wrong usage. */
static int take(struct hardware_options *o, int c, const char *arg)
{
    long long n;
    switch (c) {
    case OPT_JSON: o->json = 1; return 0;
    case OPT_MEASURE: o->measure = 1; return 0;
    case OPT_FILE: o->file = arg; return 0;
    case OPT_ROOT: o->root = arg; return 0;
    case OPT_THREADS:
        if (cli_parse_int(prog, "--threads", arg, 1, 1024, &n) != 0)
            return CLI_USAGE;
        o->threads = (int)n;
        return 0;
    default: return cli_usage(usage);
    }
}

int main(int argc, char **argv)
{
    struct hardware_options o = { 0 };
    int c, rc;
    while ((c = getopt_long(argc, argv, "hV", options, NULL)) != -1) {
        if (c == 'h')
            return cli_help(usage);
        if (c == 'V')
            return cli_version(prog);
        if ((rc = take(&o, c, optarg)) != 0)
            return rc;
    }
    const char *command = optind < argc ? argv[optind++] : "";
    if (optind < argc)
        return cli_wrong(prog, "'%s': expected nothing after %s", argv[optind], *command ? command : "the options");
    if ((o.file || o.threads) && !o.measure)
        return cli_wrong(prog, "%s goes with --measure", o.file ? "--file" : "--threads");
    if (o.measure && (o.root || *command))
        return cli_wrong(prog, "--measure: %s", o.root ? "--root describes another machine" : "only without a command");
    if (!*command)
        return hardware_show(&o);
    if (strcmp(command, "check") == 0)
        return hardware_check(&o);
    return cli_wrong(prog, "'%s' is no command: check", command);
}

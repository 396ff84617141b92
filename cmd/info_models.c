/* info_models.c - zse-info models: run one of its subcommands. */
#include "cmd/info_models.h"

#include <string.h>

#include "cmd/cli.h"

static const char usage[] =
    "usage: zse-info models list\n"
    "       zse-info models info NAME\n"
    "       zse-info models search WORDS\n"
    "       zse-info models check MODEL\n"
    "       zse-info models fetch MODEL\n"
    "  list     models that people run, from a list that is part of the program; filters combine\n"
    "  info     one of them\n"
    "  search   models on the hub whose name contains WORDS\n"
    "  check    does MODEL (org/name on the hub, a folder or a file) run here, and how large is it?\n"
    "  fetch    download MODEL, org/name on the hub, into the cache, and print where it lies\n"
    "--help of each lists its options.\n";

static const struct { const char *name; int (*run)(int argc, char **argv); } commands[] = {
    { "list", info_models_list }, { "info", info_models_info }, { "search", info_models_search },
        { "check", info_models_check }, { "fetch", info_models_fetch },
};

int info_models(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return cli_help(usage);
    if (*name)
        return cli_no_command("zse-info models", name, &commands[0].name, sizeof *commands,
                              sizeof commands / sizeof *commands);
    return cli_usage(usage);
}

/* info_models.c - zse-info models: run one of its subcommands. */
#include "cmd/info_models.h"

#include <string.h>

#include "cmd/cli.h"

static const char usage[] =
    "usage: zse-info models local\n"
    "       zse-info models show NAME\n"
    "       zse-info models rm NAME\n"
    "       zse-info models alias ALIAS NAME\n"
    "       zse-info models default [NAME]\n"
    "       zse-info models list\n"
    "       zse-info models info NAME\n"
    "       zse-info models search WORDS\n"
    "       zse-info models check MODEL\n"
    "       zse-info models fetch MODEL\n"
    "  local    the models here, which zse-convert pull makes: name, size, type, last use\n"
    "  show     one of them\n"
    "  rm       delete one, or an alias\n"
    "  alias    give one another name\n"
    "  default  print or set the model that is used when none is named\n"
    "  list     models that people run, from a list that is part of the program\n"
    "  info     one of them\n"
    "  search   models on the hub whose name contains WORDS\n"
    "  check    does MODEL (org/name on the hub, a folder or a file) run here, how large is it?\n"
    "  fetch    download MODEL, org/name on the hub, into the cache, and print its path\n"
    "--help of each lists its options.\n";

static const struct { const char *name; int (*run)(int argc, char **argv); } commands[] = {
    { "local", info_models_local }, { "show", info_models_show }, { "rm", info_models_rm },
        { "alias", info_models_alias }, { "default", info_models_default },
    { "list", info_models_list }, { "info", info_models_info }, { "search", info_models_search },
    { "check", info_models_check }, { "fetch", info_models_fetch },
};

enum { N_COMMANDS = sizeof commands / sizeof *commands };

static size_t find(const char *name)
{
    size_t i = 0;
    while (i < N_COMMANDS && strcmp(name, commands[i].name) != 0)
        i++;
    return i;
}

int info_models_has(const char *name) { return find(name) < N_COMMANDS; }

int info_models(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (info_models_has(name))
        return commands[find(name)].run(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return cli_help(usage);
    if (*name)
        return cli_no_command("zse-info models", name, &commands[0].name, sizeof *commands, N_COMMANDS);
    return cli_usage(usage);
}

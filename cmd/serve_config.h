/* serve_config.h - zse-serve --config FILE: a JSON object whose keys are the long options,
 * written out as arguments. */
#ifndef ZSE_CMD_SERVE_CONFIG_H
#define ZSE_CMD_SERVE_CONFIG_H

#include <getopt.h>

#include "libcommon/base/err.h"

/* Options as if they stood before those of the command line, which win, and models as if they
 * stood behind: argv [argc + 1], NULL-terminated.  strings are owned: n_options options, then
 * models. */
struct serve_config { int argc; char **argv; char **strings; int n_strings, n_options; };
/* path NULL: argv as it is.  options ends with a NULL name; the file's "models" count only if
 * the command line has none (n_models: how many it has), and their "name" only if it has no
 * --name (n_names) either.  -1: the file and the key are named. */
int serve_config_open(struct serve_config *c, const char *path, const struct option *options, int argc, char **argv,
                      int n_models, int n_names, struct err *e);
void serve_config_close(struct serve_config *c);

#endif

/* serve_config.h - zse-serve --config FILE: turn a JSON object whose keys are the long options into
 * arguments. */
#ifndef ZSE_CMD_SERVE_CONFIG_H
#define ZSE_CMD_SERVE_CONFIG_H

#include <getopt.h>

#include "libcommon/base/err.h"

/* argv [argc + 1], NULL-terminated: the file's options, then the arguments of the command line,
 * which take precedence, then the file's models.  strings (owned) are n_options options,
 * followed by the models. */
struct serve_config { int argc; char **argv; char **strings; int n_strings, n_options; };
/* Read the file; path NULL: argv is unchanged.  options ends with a NULL name.  The file's
 * "models" are used only if the command line has no models (n_models is their number), and its
 * "name" only if the command line has no --name (n_names) either.  -1: *e names the file and the
 * key. */
int serve_config_open(struct serve_config *c, const char *path, const struct option *options, int argc, char **argv,
                      int n_models, int n_names, struct err *e);
void serve_config_close(struct serve_config *c);

#endif

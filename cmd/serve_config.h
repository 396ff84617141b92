/* serve_config.h - zse-serve --config FILE: a JSON object whose keys are the long options, written out as arguments. */
#ifndef ZSE_CMD_SERVE_CONFIG_H
#define ZSE_CMD_SERVE_CONFIG_H

#include <getopt.h>

#include "libcommon/base/err.h"

/* Arguments as if they stood before those of the command line, whose options win: argv [argc + 1], NULL-terminated.  strings are owned. */
struct serve_config { int argc; char **argv; char **strings; int n_strings; };
/* path NULL: argv as it is.  options ends with a NULL name; model options of the file ("models") come before those of the command line, and only if it has none
 * (n_models: how many it has).  -1: the file and the key are named. */
int serve_config_open(struct serve_config *c, const char *path, const struct option *options, int argc, char **argv, int n_models, struct err *e);
void serve_config_close(struct serve_config *c);

#endif

/* serve_config.h - zse-serve --config FILE: turn a JSON object whose keys are the long options into
 * arguments. */
#ifndef ZSE_CMD_SERVE_CONFIG_H
#define ZSE_CMD_SERVE_CONFIG_H

#include <getopt.h>

#include "libcommon/base/err.h"

/* Arguments with the file's options before those of the command line, which win, and the file's
 * models after them: argv [argc + 1], NULL-terminated.  strings are owned: n_options options, then
 * models. */
struct serve_config { int argc; char **argv; char **strings; int n_strings, n_options; };
/* path NULL: argv is unchanged.  options ends with a NULL name.  The file's "models" count only if
 * the command line has none (n_models: their number), and its "name" only if the command line has
 * no --name either (n_names).  -1: *e names the file and the key. */
int serve_config_open(struct serve_config *c, const char *path, const struct option *options, int argc, char **argv,
                      int n_models, int n_names, struct err *e);
void serve_config_close(struct serve_config *c);

#endif

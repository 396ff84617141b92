/* run_conversion.h - run a conversion in a program, with a progress bar and notes on stderr.
 * Ctrl-C leaves no half-written file under the output's name, and the source may still be
 * downloading. */
#ifndef ZSE_CMD_RUN_CONVERSION_H
#define ZSE_CMD_RUN_CONVERSION_H

#include "cmd/hub_cli.h"
#include "libcommon/convert/convert.h"

/* Set open, progress and note of *o, and run the conversion; notes begin with the name prog.
 * stream: from hub_stream_open(), with *found the source's folder; it is closed here.  If the
 * stream falls back to an older commit in the cache, *found and o->source become that commit's
 * folder.  stream NULL: o->source is complete, and found is not used.
 * SIGINT and SIGTERM end the conversion with ERR_CANCELLED, after which the caller calls
 * cli_die_of_interrupt(); otherwise their handlers are restored.  r may be NULL; if not, it must be
 * released in any case. */
int run_conversion(const char *prog, struct convert_options *o, struct hub_stream *stream, char **found,
                   struct convert_report *r, struct err *e);

#endif

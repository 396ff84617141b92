/* run_conversion.h - a conversion as the programs run it: a bar, notes on stderr, an end by Ctrl-C
 * that leaves no half-written file under the name that was asked for, and a source that may
 * still be on its way from the hub. */
#ifndef ZSE_CMD_RUN_CONVERSION_H
#define ZSE_CMD_RUN_CONVERSION_H

#include "cmd/hub_cli.h"
#include "libcommon/convert/convert.h"

/* Sets o->open, progress and note, and runs it; notes come in the name of prog.  stream: what
 * hub_stream_open() gave with *found, the source's folder; it is closed.  NULL: o->source is all
 * there, and found is not looked at.  Where an older commit of the cache has to be used after
 * all, *found and o->source become that.  SIGINT and SIGTERM end it with ERR_CANCELLED:
 * cli_die_of_interrupt() is the caller's.  Afterwards they do what they did before.  r may be
 * NULL; else it is valid (and to be released) in any case. */
int run_conversion(const char *prog, struct convert_options *o, struct hub_stream *stream, char **found,
                   struct convert_report *r, struct err *e);

#endif

/* preflight_convert.h - check before a download or conversion that there is disk space for the new
 * file, memory for calibration, and memory for running the model. */
#ifndef ZSE_CMD_PREFLIGHT_CONVERT_H
#define ZSE_CMD_PREFLIGHT_CONVERT_H

#include <jansson.h>

#include "libcommon/convert/convert.h"

/* The folder that contains proc and sys: $ZSE_SYSROOT, which is for tests, and for containers in
 * which the host's folders are mounted elsewhere; NULL: /. */
const char *preflight_root(void);

struct preflight_convert {
    const char *prog, *name;        /* the source, for messages */
    const char *output;             /* the file to be written, or a folder on its disk */
    const char *type;               /* one type for all weights; NULL: they keep their size */
    uint64_t target_bytes;          /* limit of weights; 0: none */
    int force;
    int runs; uint64_t max_memory;  /* runs: it will run here; max_memory: limit of weights in memory, 0: none */
};
/* A convert_options.before, which checks the disk space for the new file and the memory for the
 * conversion.  -1 with *e, which has the numbers; with --force a note is printed instead. */
int preflight_convert(void *user, const struct convert_report *r, struct err *e);
/* A hub_check.run, which checks the same before a download, and the memory for the weights if
 * the model will run on this machine. */
int preflight_fetch(void *user, const char *name, const json_t *config, uint64_t bytes, const char *to, struct err *e);

#endif

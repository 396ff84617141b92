/* preflight_convert.h - before a model is fetched or converted: is there disk for the new file,
 * memory for the calibration, memory to run it? */
#ifndef ZSE_CMD_PREFLIGHT_CONVERT_H
#define ZSE_CMD_PREFLIGHT_CONVERT_H

#include <jansson.h>

#include "libcommon/convert/convert.h"

/* The folder under which proc and sys are read: $ZSE_SYSROOT, for tests and for containers that
 * see the host's elsewhere; NULL: /. */
const char *preflight_root(void);

struct preflight_convert {
    const char *prog, *name;        /* the source, for messages */
    const char *output;             /* the file that is to be made, or a folder on its disk */
    const char *type;               /* one type; NULL: weights are as large as they come */
    uint64_t target_bytes;          /* of weights; 0: none given */
    int force;
    int runs; uint64_t max_memory;  /* it will be run here: weights that stay in memory at most, 0: all */
};
/* convert_options.before: disk for the new file, memory for the conversion.  Refused with
 * numbers; with --force they are a note. */
int preflight_convert(void *user, const struct convert_report *r, struct err *e);
/* hub_check.run: the same before anything is downloaded, and, if it will be run here, memory for
 * its weights. */
int preflight_fetch(void *user, const char *name, const json_t *config, uint64_t bytes, const char *to, struct err *e);

#endif

/* converted.h - the cache of automatic conversions: $XDG_CACHE_HOME/zse (or ~/.cache/zse) has a
 * .zse of each GGUF file and folder that was asked for, keyed by samples of its content, the
 * time of its last change, and the type; beside each, NAME.zse.source holds the path of its
 * source. */
#ifndef ZSE_CMD_CONVERTED_H
#define ZSE_CMD_CONVERTED_H

#include <stdint.h>

#include "cmd/hub.h"

struct converted_ask {
    const char *prog, *asked;       /* in whose name, and MODEL as it was given: for messages */
    const char *type;               /* as -q has it */
    int n_threads; const char *kernels;
    int force;                      /* also where disk or memory seem too small */
};

/* Where the conversion of source to type is or will be; the folders on the way are made.  Caller
 * frees. */
char *converted_path(const char *source, const char *type, struct err *e);

/* Where it is written down when this file was last verified (cmd/verify.h); the folders on the
 * way are made.  Caller frees. */
char *converted_record(const char *path, uint64_t dev, uint64_t ino, struct err *e);

/* One process converts a source to a type, others wait for it. */
struct converted_lock { int fd, waited; char *name; };
int converted_lock(struct converted_lock *l, const struct converted_ask *a, const char *source, struct err *e);
void converted_unlock(struct converted_lock *l);

/* With the lock: make the file at path, tidy up the cache, and say where it is and how to get
 * along without. */
int converted_make(const struct converted_ask *a, const char *source, const char *path, struct err *e);
/* The same of a source that is still on its way (conversion_run closes the stream); *path is
 * malloc'd. */
int converted_arriving(const struct converted_ask *a, struct hub_stream *stream, char **source, char **path,
                       struct err *e);

#endif

/* conv_cache.h - the cache of automatic conversions: $XDG_CACHE_HOME/zse (or ~/.cache/zse) has a
 * .zse of each GGUF file and folder that was asked for, keyed by samples of its content, the
 * time of its last change, and the type; beside each, NAME.zse.source holds the path of its
 * source. */
#ifndef ZSE_CMD_CONV_CACHE_H
#define ZSE_CMD_CONV_CACHE_H

#include <stdint.h>

#include "cmd/hub_cli.h"

struct conv_cache_request {
    const char *prog, *asked;       /* in whose name, and MODEL as it was given: for messages */
    const char *type;               /* as -q has it */
    int n_threads; const char *kernels;
    int force;                      /* also where disk or memory seem too small */
};

/* Where the conversion of source to type is or will be; the folders on the way are made.  Caller
 * frees. */
char *conv_cache_path(const char *source, const char *type, struct err *e);

/* Where it is written down when this file was last verified (cmd/model_verify.h); the folders on the
 * way are made.  Caller frees. */
char *conv_cache_record(const char *path, uint64_t dev, uint64_t ino, struct err *e);

/* One process converts a source to a type, others wait for it. */
struct conv_cache_lock { int fd, waited; char *name; };
int conv_cache_lock(struct conv_cache_lock *l, const struct conv_cache_request *a, const char *source, struct err *e);
void conv_cache_unlock(struct conv_cache_lock *l);

/* With the lock: make the file at path, tidy up the cache, and say where it is and how to get
 * along without. */
int conv_cache_make(const struct conv_cache_request *a, const char *source, const char *path, struct err *e);
/* The same of a source that is still on its way (run_conversion closes the stream); *path is
 * malloc'd. */
int conv_cache_arriving(const struct conv_cache_request *a, struct hub_stream *stream, char **source, char **path,
                       struct err *e);

#endif

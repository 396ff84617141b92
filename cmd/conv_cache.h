/* conv_cache.h - the cache of automatic conversions: $XDG_CACHE_HOME/zse (or ~/.cache/zse) has a
 * .zse for each GGUF file and folder that was opened, keyed by samples of its content, its time of
 * change, and the type.  Beside each, NAME.zse.source holds the path of its source. */
#ifndef ZSE_CMD_CONV_CACHE_H
#define ZSE_CMD_CONV_CACHE_H

#include <stdint.h>

#include "cmd/hub_cli.h"

struct conv_cache_request {
    const char *prog, *asked;       /* the program, and MODEL as it was given, for messages */
    const char *type;               /* as for -q */
    int n_threads; const char *kernels;
    int adapted;                    /* adapters are added: a conversion that takes none is made again */
    int force;                      /* continue where disk or memory seem too small */
};

/* The path in the cache for the conversion of source as *a requests it, whether it exists or not.
 * Makes the folders.  Caller frees. */
char *conv_cache_path(const struct conv_cache_request *a, const char *source, struct err *e);

/* The path of the record of this file's last verification (cmd/model_verify.h).  make: make its
 * folders.  Caller frees; NULL with *e. */
char *conv_cache_record(const char *path, uint64_t dev, uint64_t ino, int make, struct err *e);

/* The path of the record of measured rates (cmd/rates_record.h).  make: make its folder.  Caller
 * frees; NULL with *e. */
char *conv_cache_rates(int make, struct err *e);

/* A lock for each source and type: one process converts, others wait. */
struct conv_cache_lock { int fd, waited; char *name; };
int conv_cache_lock(struct conv_cache_lock *l, const struct conv_cache_request *a, const char *source, struct err *e);
void conv_cache_unlock(struct conv_cache_lock *l);

/* With the lock: make the file at path, clean the cache, and print where the file is and how to
 * convert without the cache. */
int conv_cache_make(const struct conv_cache_request *a, const char *source, const char *path, struct err *e);
/* Like conv_cache_make(), for a source that is still downloading (run_conversion closes the
 * stream).  *path is malloc'd. */
int conv_cache_arriving(const struct conv_cache_request *a, struct hub_stream *stream, char **source, char **path,
                       struct err *e);

#endif

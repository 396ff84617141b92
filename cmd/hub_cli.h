/* hub_cli.h - fetch models that the command line names, with the environment of the Python
 * tools. */
#ifndef ZSE_CMD_HUB_CLI_H
#define ZSE_CMD_HUB_CLI_H

#include "cmd/cli.h"
#include "libcommon/hub/hub.h"
#include "libcommon/import/source.h"

/* Options of libcommon/hub from HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE,
 * HF_HUB_OFFLINE ... */
struct hub_setup {
    struct hub_options o;
    const char *prog;
    struct cli_progress progress;
    char *endpoint, *token, *cache;     /* owned */
};
int hub_setup(struct hub_setup *s, const char *prog, struct err *e);
void hub_setup_release(struct hub_setup *s);

/* 1 if arg is a name on the hub; 0 if it is a file or folder, or else the name of a model of
 * $ZSE_HOME/models (*path is malloc'd then); -1 with *e.  Any other word without
 * a slash is a file, whether it exists or not, unless it names a revision (gpt2@main): a mistyped
 * word must not become a request to the hub. */
int hub_is_name(const char *arg, struct hub_name *name, char **path, struct err *e);
/* The config.json of a model, from the cache or the hub, with what hf_quant_config.json adds. New
 * reference. */
json_t *hub_config(const struct hub_name *name, struct err *e);
/* Add the contents of hf_quant_config.json, which older ModelOpt checkpoints have, to a config.
 * info: the hub's description of the model; NULL: look in the cache only. */
int hub_quant_config(const struct hub_options *o, const struct hub_name *name, const json_t *info, json_t *config,
                     struct err *e);
/* 1 if its weights are safetensors, also if HF_HUB_OFFLINE forbids asking the hub; 0 if the model
 * is one file (GGUF or .zse); -1 with *e. */
int hub_has_safetensors(const struct hub_name *name, struct err *e);
/* The path in the cache if the model is complete there, else NULL.  Caller frees. */
char *hub_cached(const struct hub_name *name);
/* Check before a download whether there is space for the model's conversion.  config: the model's;
 * bytes: to be downloaded; to: folder.  -1 with *e refuses. */
struct hub_check {
    int (*run)(void *user, const char *name, const json_t *config, uint64_t bytes, const char *to, struct err *e);
    void *user;
};
/* Set o->before_weights: check that the architecture runs, then call check (may be NULL).  o
 * borrows *b. */
struct hub_before { const struct hub_check *check; const char *name, *cache; };
void hub_check_before(struct hub_options *o, struct hub_before *b);

/* Resolve MODEL of the command line.  *path (malloc'd) is arg itself if such a file or folder
 * exists or if it cannot be a name of the hub; else the model is fetched into the cache.  refresh:
 * ask for a newer revision even if the cache has one.  check may be NULL; whether the architecture
 * runs is checked in any case. */
int hub_model_path(const char *prog, const char *arg, int refresh, const struct hub_check *check, char **path,
                   struct err *e);

/* ---- conversions that start during the download ----
 * A thread downloads the model.  If its weights are several safetensors, hub_stream_open() returns
 * as soon as their headers are known, and source_open_with() reads them as they arrive. */
struct hub_stream;
/* Like hub_model_path.  *s is set, and must be closed, if shards are still downloading to *path;
 * until then Ctrl-C is caught (cli_catch_interrupt). */
int hub_stream_open(struct hub_stream **s, const char *prog, const char *arg, int refresh,
                    const struct hub_check *check, char **path, struct err *e);
const struct source_arriving *hub_stream_arriving(const struct hub_stream *s);
/* Returns a filter that passes progress reports on to `to`.  While files download, the filter
 * passes none on, because then the bar shows the download.  If the download has failed, the filter
 * stops the conversion. */
const struct progress *hub_stream_progress(struct hub_stream *s, const struct progress *to);
/* Call after the conversion, which ended with rc (and *e if it failed): waits for the download or
 * stops it.  Returns rc and the first error.  1: *path has become an older commit in the cache,
 * which is to be used instead. */
int hub_stream_close(struct hub_stream *s, int rc, char **path, struct err *e);

#endif

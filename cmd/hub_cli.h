/* hub_cli.h - names of models on the hub, with the environment that the Python tools know. */
#ifndef ZSE_CMD_HUB_CLI_H
#define ZSE_CMD_HUB_CLI_H

#include "cmd/cli.h"
#include "libcommon/hub/hub.h"
#include "libcommon/import/source.h"

/* The options of the hub from HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE,
 * HF_HUB_OFFLINE ... */
struct hub_setup {
    struct hub_options o;
    const char *prog;
    struct cli_progress progress;
    char *endpoint, *token, *cache;     /* owned */
};
int hub_setup(struct hub_setup *s, const char *prog, struct err *e);
void hub_setup_release(struct hub_setup *s);

/* Is arg a name on the hub (1), or a file or folder (0; *path is malloc'd then)?  -1: neither.
 * A word without a slash is a file, whether it exists or not, unless it names a revision
 * (gpt2@main): a mistyped word must not make a program ask the hub. */
int hub_is_name(const char *arg, struct hub_name *name, char **path, struct err *e);
/* config.json of a model, from the cache or the hub; nothing else is asked for.  New reference. */
json_t *hub_config(const struct hub_name *name, struct err *e);
/* Are its weights safetensors (1), or is one of its files the model (0: a GGUF or .zse)?  1 also
 * where HF_HUB_OFFLINE forbids to ask.  -1 with *e. */
int hub_has_safetensors(const struct hub_name *name, struct err *e);
/* Where the cache has all of it; NULL: it has not.  Caller frees. */
char *hub_cached(const struct hub_name *name);
/* Before gigabytes come: is there room for what is made of them?  config: the model's; bytes: to
 * be downloaded; to: where.  -1 with *e refuses. */
struct hub_check {
    int (*run)(void *user, const char *name, const json_t *config, uint64_t bytes, const char *to, struct err *e);
    void *user;
};
/* Options for before_weights: whether the architecture runs, then check (may be NULL).  *b is
 * borrowed by them. */
struct hub_before { const struct hub_check *check; const char *name, *cache; };
void hub_check_before(struct hub_options *o, struct hub_before *b);

/* What MODEL on the command line means: *path is arg itself if there is such a file or folder,
 * or if it looks like no name of the hub; else what the hub has under that name, fetched into
 * the cache; refresh: ask for a newer revision also where the cache has one.  *path is malloc'd.
 * check may be NULL; that the architecture runs is seen to in any case. */
int hub_model_path(const char *prog, const char *arg, int refresh, const struct hub_check *check, char **path,
                   struct err *e);

/* ---- conversions that begin before everything has come ---- The model's files come in a thread
 * of their own.  Where its weights are several safetensors, hub_stream_open() returns as soon as
 * their heads are known: source_open_with() reads them as they arrive. */
struct hub_stream;
/* As hub_model_path; *s is set, and to be closed, if shards are still on their way to *path.
 * Until then Ctrl-C is caught (cli_catch_interrupt). */
int hub_stream_open(struct hub_stream **s, const char *prog, const char *arg, int refresh,
                    const struct hub_check *check, char **path, struct err *e);
const struct source_arriving *hub_stream_arriving(const struct hub_stream *s);
/* Between reports of `to`: quiet while files come, which have the bar then; asks to stop when
 * the download has failed. */
const struct progress *hub_stream_progress(struct hub_stream *s, const struct progress *to);
/* After the conversion, which ended with rc and *e (when it failed): the download ends, too.
 * Returns rc and the error that was first.  *path becomes another one where an older commit of
 * the cache is to be used instead (then 1). */
int hub_stream_close(struct hub_stream *s, int rc, char **path, struct err *e);

#endif

/* hub.h - names of models on the hub, with the environment that the Python tools know. */
#ifndef ZSE_CMD_HUB_H
#define ZSE_CMD_HUB_H

#include "cmd/cli.h"
#include "libcommon/hub/hub.h"

/* The options of the hub from HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE ... */
struct hub_setup {
    struct hub_options o;
    const char *prog;
    struct cli_progress progress;
    char *endpoint, *token, *cache;     /* owned */
};
int hub_setup(struct hub_setup *s, const char *prog, struct err *e);
void hub_setup_release(struct hub_setup *s);

/* Before gigabytes come: is there room for what is made of them?  config: the model's; bytes: to be downloaded; to: where.  -1 with *e refuses. */
struct hub_check {
    int (*run)(void *user, const char *name, const json_t *config, uint64_t bytes, const char *to, struct err *e);
    void *user;
};

/* What MODEL on the command line means: *path is arg itself if there is such a file or folder, or if it looks like no name of the hub; else what
 * the hub has under that name, fetched into the cache; refresh: ask for a newer revision also where the cache has one.  *path is malloc'd.
 * check may be NULL; that the architecture runs is seen to in any case. */
int hub_model_path(const char *prog, const char *arg, int refresh, const struct hub_check *check, char **path, struct err *e);

#endif

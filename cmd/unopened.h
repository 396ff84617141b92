/* unopened.h - the future size of a model that is no .zse yet: a folder or GGUF file before its
 * conversion, a name on the hub before its download. */
#ifndef ZSE_CMD_UNOPENED_H
#define ZSE_CMD_UNOPENED_H

#include "cmd/open_model.h"

struct unopened {
    const char *name;               /* as given; borrowed */
    const char *type;               /* the type it would be converted to; borrowed */
    struct config config;
    struct planned planned;
    struct plan_weights w;          /* exact for a folder or file; for a name on the hub, as if its weights were bf16 */
};
/* 1: *u describes what MODEL (path NULL: $ZSE_MODEL) would be on the CPU, and is to be released.
 * 0: only opening the model tells (a .zse, or on a GPU).  -1 with *e.  From the hub only
 * config.json and the names of the files are requested; the cache is used first. */
int unopened_find(struct unopened *u, const char *prog, const char *path, const struct run_options *r, struct err *e);
void unopened_release(struct unopened *u);

#endif

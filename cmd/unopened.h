/* unopened.h - what a model would be that is no .zse yet: a folder or GGUF file before it is
 * converted, a name on the hub before it is downloaded. */
#ifndef ZSE_CMD_UNOPENED_H
#define ZSE_CMD_UNOPENED_H

#include "cmd/open_model.h"

struct unopened {
    const char *name;               /* as it was asked for; borrowed */
    const char *type;               /* what it would be converted to; borrowed */
    struct config config;
    struct planned planned;
    struct plan_weights w;          /* to the byte for a folder or file; of a name on the hub as if its weights were bf16 */
};
/* 1: *u says what MODEL (path NULL: $ZSE_MODEL) would be on the processor, and is to be
 * released.  0: only opening it does (a .zse, or on a GPU).  -1 with *e.  Of a hub's model
 * config.json and the names of its files are asked for, nothing else; what the cache has is
 * used. */
int unopened_find(struct unopened *u, const char *prog, const char *path, const struct run_options *r, struct err *e);
void unopened_release(struct unopened *u);

#endif

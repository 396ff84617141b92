/* unopened.h - predict the size of a model that is not a .zse yet: a folder or GGUF file before its
 * conversion, or a name on the hub before its download. */
#ifndef ZSE_CMD_UNOPENED_H
#define ZSE_CMD_UNOPENED_H

#include "cmd/open_model.h"

struct unopened {
    const char *name;               /* as given; borrowed */
    const char *type;               /* the type it would be converted to; borrowed */
    struct config config;
    struct planned planned;
    /* exact for a folder or file; for a name on the hub computed as if its weights were bf16 */
    struct plan_weights w;
};
/* Predict the size of MODEL (path NULL: $ZSE_MODEL) on the CPU.  1: *u describes it, and must be
 * released; 0: the model must be opened to know its size, because it is a .zse or for a GPU; -1
 * with *e.  From the hub only config.json and the names of the files are requested, unless they
 * are in the cache. */
int unopened_find(struct unopened *u, const char *prog, const char *path, const struct run_options *r, struct err *e);
void unopened_release(struct unopened *u);

#endif

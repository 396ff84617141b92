/* model_paths.h - check the files of this machine that requests name. */
#ifndef ZSE_SERVE_MODEL_PATHS_H
#define ZSE_SERVE_MODEL_PATHS_H

struct conn;
struct problem;
struct server;

/* The path that a request may load, links resolved: below --model-dir; without that option any
 * path for a client on this machine, and for others those below the folder of models.  malloc'd;
 * NULL: *pr gives the reason, the same one for files elsewhere and for missing ones. */
char *model_path_allowed(const struct server *s, const struct conn *c, const char *path, struct problem *pr);
/* The folder shown to clients: that of --model-dir, else the one of models that were made here. */
const char *model_folder(const struct server *s);

#endif

/* model_paths.h - check files of this machine that requests name. */
#ifndef ZSE_SERVE_MODEL_PATHS_H
#define ZSE_SERVE_MODEL_PATHS_H

struct conn;
struct problem;
struct server;

/* Resolve a path that a request may load: below --model-dir; without that option any path for a
 * client on this machine, and for others one below the folder of models. malloc'd; NULL: *pr gives
 * the reason, which is the same for files elsewhere and for missing ones. */
char *model_path_allowed(const struct server *s, const struct conn *c, const char *path, struct problem *pr);
/* The folder to show to clients: that of --model-dir, else the one of models that were made
 * here. */
const char *model_folder(const struct server *s);

#endif

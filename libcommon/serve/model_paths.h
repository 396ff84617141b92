/* model_paths.h - check files of this machine that requests name. */
#ifndef ZSE_SERVE_MODEL_PATHS_H
#define ZSE_SERVE_MODEL_PATHS_H

struct conn;
struct problem;
struct server;

/* Resolve a path in a request to load a model.  With --model-dir it must be below that folder.
 * Without it, clients on this machine may name any path, and other clients only paths below the
 * folder of models.  Returns a malloc'd path, or NULL with *pr, which does not reveal whether a
 * file in another folder exists. */
char *model_path_allowed(const struct server *s, const struct conn *c, const char *path, struct problem *pr);
/* Resolve the path of a LoRA adapter in a request: a folder below that of --lora-dir.  Returns a
 * malloc'd path, or NULL with *pr. */
char *lora_path_allowed(const struct server *s, const char *path, struct problem *pr);
/* The folder of models to show to clients: that of --model-dir, otherwise the one in which this
 * server makes models. */
const char *model_folder(const struct server *s);

#endif

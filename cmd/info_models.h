/* info_models.h - zse-info models: local models, well-known models, and models on the hub. */
#ifndef ZSE_CMD_INFO_MODELS_H
#define ZSE_CMD_INFO_MODELS_H

/* argv[0] is "models", argv[1] the subcommand.  Returns the exit code. */
int info_models(int argc, char **argv);
int info_models_has(const char *name);          /* whether it is a subcommand */

/* info_registry.c; argv[0] is the subcommand's name. */
int info_models_list(int argc, char **argv);
int info_models_info(int argc, char **argv);
/* info_hub.c; argv[0] is the subcommand's name. */
int info_models_search(int argc, char **argv);
int info_models_check(int argc, char **argv);
int info_models_fetch(int argc, char **argv);
/* info_local.c; argv[0] is the subcommand's name. */
int info_models_local(int argc, char **argv);
int info_models_show(int argc, char **argv);
int info_models_rm(int argc, char **argv);
int info_models_alias(int argc, char **argv);
int info_models_default(int argc, char **argv);

#endif

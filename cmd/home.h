/* home.h - the folder that holds keys, counters, the audit log and the server's token, and in it
 * the folder of models that have names. */
#ifndef ZSE_CMD_HOME_H
#define ZSE_CMD_HOME_H

#include "libcommon/base/err.h"

/* wanted (--home), else $ZSE_HOME, else ~/.zse (the user's entry in the password file where
 * $HOME is not set, as under cron). Caller frees; NULL on failure. */
char *home_folder(const char *wanted, struct err *e);

/* The path of the folder of models, whether it exists or not.  Caller frees; NULL on failure. */
char *home_models(struct err *e);
/* Find a MODEL of the command line that is no file: the path of the model of that name in the
 * folder of models.  Caller frees.  NULL, *e untouched: there is none; NULL with e->code: several
 * have the name. */
char *home_find_model(const char *word, struct err *e);
int home_names_model(const char *word);     /* 1 if home_find_model() finds a model, or if several have the name */
/* word itself if it exists or names no model of the folder, else the path of that model.  Caller
 * frees; NULL with *e. */
char *home_model_path(const char *word, struct err *e);
/* MODEL: as given, else $ZSE_MODEL, else the default of the folder of models, else the only model
 * there.  Valid until the next call; NULL: there is none. */
const char *home_model_named(const char *given);

#endif

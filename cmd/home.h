/* home.h - the folder that holds keys, counters, the audit log and the server's token. */
#ifndef ZSE_CMD_HOME_H
#define ZSE_CMD_HOME_H

#include "libcommon/base/err.h"

/* wanted (--home), else $ZSE_HOME, else ~/.zse (the user's entry in the password file where
 * $HOME is not set, as under cron). Caller frees; NULL on failure. */
char *home_folder(const char *wanted, struct err *e);

#endif

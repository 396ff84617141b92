/* home.c - find the folder of keys, counters, the audit log and the server's token. */
#include "cmd/home.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *home_folder(const char *wanted, struct err *e)
{
    const char *set = wanted ? wanted : getenv("ZSE_HOME"), *user = getenv("HOME");
    char *out = NULL;
    if (!set && !user) {
        const struct passwd *p = getpwuid(getuid());
        user = p ? p->pw_dir : NULL;
        if (!user) {
            err_set(e, ERR_IO, "neither $ZSE_HOME nor $HOME is set, and user %u has no home: give --home DIR",
                    (unsigned)getuid());
            return NULL;
        }
    }
    if ((set && *set ? asprintf(&out, "%s", set) : asprintf(&out, "%s/.zse", user ? user : "/")) < 0) {
        err_nomem(e, "the name of a folder");
        return NULL;
    }
    return out;
}

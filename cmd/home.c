/* home.c - find the folder of keys, counters, the audit log and the server's token, and models by
 * their names. */
#include "cmd/home.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/store/store.h"

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

char *home_models(struct err *e)
{
    char *home = home_folder(NULL, e), *out = NULL;
    if (home && asprintf(&out, "%s/models", home) < 0) {
        err_nomem(e, "the name of a folder");
        out = NULL;
    }
    free(home);
    return out;
}

char *home_find_model(const char *word, struct err *e)
{
    struct err ignored;
    char *folder = home_models(&ignored);
    char *path = folder ? store_lookup(folder, word, e) : NULL;
    free(folder);
    return path;
}

int home_names_model(const char *word)
{
    struct err several = { 0 };
    char *path = home_find_model(word, &several);
    const int named = path || several.code;
    free(path);
    return named;
}

char *home_model_path(const char *word, struct err *e)
{
    struct err several = { 0 };
    char *path = access(word, F_OK) == 0 ? NULL : home_find_model(word, &several);
    if (!path && several.code) {
        *e = several;
        return NULL;
    }
    if (!path && !(path = strdup(word)))
        err_nomem(e, "path");
    return path;
}

const char *home_model_named(const char *given)
{
    static char name[STORE_NAME_BYTES];         /* programs ask once, in their main thread */
    struct err ignored;
    const char *env = getenv("ZSE_MODEL");
    if (given || (env && *env))
        return given ? *given ? given : NULL : env;
    char *folder = home_models(&ignored);
    const int rc = folder ? store_find_default(folder, name, &ignored) : -1;
    free(folder);
    return rc == 0 ? name : NULL;
}

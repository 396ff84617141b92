/* model_paths.c - check paths that requests name. */
#include "libcommon/serve/model_paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/serve/internal.h"

/* Whether path is a file or a folder.  A pipe or a device could block the thread that loads all
 * models. */
static int is_file_or_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

const char *model_folder(const struct server *s) { return s->o.model_dir ? s->o.model_dir : s->o.maker.folder; }

/* Resolve a path; NULL unless it is below the folder. */
static char *below(const char *folder, const char *path)
{
    char *dir = realpath(folder, NULL), *joined = NULL, *real = NULL;
    if (dir && asprintf(&joined, "%s%s%s", *path == '/' ? "" : dir, *path == '/' ? "" : "/", path) < 0)
        joined = NULL;
    if (joined)
        real = realpath(joined, NULL);
    const size_t n = dir ? strlen(dir) : 0;
    if (real && (strncmp(real, dir, n) != 0 || (real[n] != '/' && n > 1) || !is_file_or_folder(real))) {
        free(real);
        real = NULL;
    }
    free(joined);
    free(dir);
    return real;
}

char *model_path_allowed(const struct server *s, const struct conn *c, const char *path, struct problem *pr)
{
    const int anywhere = !s->o.model_dir && !server_is_reachable(s, conn_is_local(c));
    const char *folder = model_folder(s);
    char *real;
    if (anywhere && access(path, F_OK) == 0 && !is_file_or_folder(path)) {
        problem_set(pr, 400, "model_path", "invalid_value", "model_path: '%.200s' is no file or folder", path);
        return NULL;
    }
    if (anywhere)
        return strdup(path);
    if (folder && (real = below(folder, path)))
        return real;
    if (s->o.model_dir)
        problem_set(pr, 403, "model_path", "path_not_allowed",
                    "model_path: '%.200s' is no file or folder below the one of --model-dir", path);
    else
        problem_set(pr, 403, "model_path", "path_not_allowed",
                    "model_path: from other machines only what lies below --model-dir, which was not given, and models that were made here");
    return NULL;
}

char *lora_path_allowed(const struct server *s, const char *path, struct problem *pr)
{
    struct stat st;
    if (!path || !s->o.lora_dir) {
        problem_set(pr, path ? 403 : 400, "lora_path", path ? "path_not_allowed" : "missing",
                    path ? "lora_path: adapters lie below --lora-dir, which was not given" : "lora_path: missing");
        return NULL;
    }
    char *real = below(s->o.lora_dir, path);
    if (real && stat(real, &st) == 0 && S_ISDIR(st.st_mode))
        return real;
    free(real);
    problem_set(pr, 403, "lora_path", "path_not_allowed", "lora_path: '%.200s' is no folder below the one of --lora-dir",
                path);
    return NULL;
}

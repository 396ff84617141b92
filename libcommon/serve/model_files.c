/* model_files.c - list and delete the models in the folder of the server. */
#include "libcommon/serve/model_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"

/* The kind of a file, by its name: "zse", "gguf", or NULL. */
static const char *kind_of(const char *name)
{
    static const char *const kinds[] = { "zse", "gguf" };
    const char *end = strrchr(name, '.');
    for (int i = 0; end && i < 2; i++)
        if (strcasecmp(end + 1, kinds[i]) == 0)
            return kinds[i];
    return NULL;
}

/* Total size of the files in a folder with config.json. */
static uint64_t folder_bytes(const char *path)
{
    uint64_t sum = 0;
    struct stat st;
    DIR *d = opendir(path);
    for (struct dirent *x; d && (x = readdir(d));)
        if (fstatat(dirfd(d), x->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_size;
    if (d)
        closedir(d);
    return sum;
}

static int has_config(const char *path)
{
    char *file;
    if (asprintf(&file, "%s/config.json", path) < 0)
        return 0;
    const int there = access(file, R_OK) == 0;
    free(file);
    return there;
}

static void add(json_t *files, const char *name, const char *path, const char *kind, const struct stat *st)
{
    json_array_append_new(files, json_pack("{s:s, s:s, s:s, s:I, s:I}", "name", name, "path", path, "kind", kind,
                                           "bytes", (json_int_t)(S_ISDIR(st->st_mode) ? folder_bytes(path)
                                                                                      : (uint64_t)st->st_size),
                                           "modified", (json_int_t)st->st_mtime));
}

/* List the models in folder/under.  deeper: also list the models in its subfolders, except in those
 * that are models themselves. */
static void list(json_t *files, const char *folder, const char *under, int deeper)
{
    struct dirent **found = NULL;
    char *dir = NULL;
    const int made = asprintf(&dir, "%s%s%s", folder, *under ? "/" : "", under) >= 0;
    const int n = made ? scandir(dir, &found, NULL, alphasort) : -1;
    for (int i = 0; i < n; i++) {
        char *path = NULL, *name = NULL;
        struct stat st;
        const char *leaf = found[i]->d_name, *kind = kind_of(leaf);
        if (*leaf != '.' && utf8_valid(leaf, strlen(leaf)) == strlen(leaf) &&
            json_array_size(files) < MAX_MODEL_FILES && asprintf(&path, "%s/%s", dir, leaf) >= 0 &&
            asprintf(&name, "%s%s%s", under, *under ? "/" : "", leaf) >= 0 && stat(path, &st) == 0) {
            if (S_ISREG(st.st_mode) && kind)
                add(files, name, path, kind, &st);
            else if (S_ISDIR(st.st_mode) && has_config(path))
                add(files, name, path, "folder", &st);
            else if (S_ISDIR(st.st_mode) && deeper)
                list(files, folder, name, 0);
        }
        free(path);
        free(name);
        free(found[i]);
    }
    free(found);
    if (made)
        free(dir);
}

json_t *model_files(const char *folder, struct err *e)
{
    struct statvfs disk;
    char *real = realpath(folder, NULL);
    json_t *files = json_array();
    if (real)
        list(files, real, "", 1);
    const double room = real && statvfs(real, &disk) == 0 ? (double)disk.f_bavail * (double)disk.f_frsize : -1;
    json_t *out = json_pack("{s:o, s:o, s:o}", "folder", js_text(folder), "free_bytes",
                            room < 0 ? json_null() : json_integer((json_int_t)room), "files", files);
    free(real);
    if (!out)
        err_nomem(e, "list of models");
    return out;
}

json_t *model_file_remove(const char *folder, const char *name, struct err *e)
{
    json_t *all = model_files(folder, e), *f;
    size_t i;
    const char *path = NULL, *kind = NULL;
    if (!all)
        return NULL;
    json_array_foreach(json_object_get(all, "files"), i, f)
        if (strcmp(json_string_value(json_object_get(f, "name")), name) == 0) {
            path = json_string_value(json_object_get(f, "path"));
            kind = json_string_value(json_object_get(f, "kind"));
        }
    json_t *answer = NULL;
    if (!path || strcmp(kind, "folder") == 0)
        err_set(e, ERR_FORMAT, "'%.200s' is no .zse or .gguf file in the folder of models", name);
    else if (unlink(path) != 0)
        err_sys(e, "%s", name);
    else if (!(answer = json_pack("{s:s, s:s}", "status", "deleted", "name", name)))
        err_nomem(e, "answer");
    json_decref(all);
    return answer;
}

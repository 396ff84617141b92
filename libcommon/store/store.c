/* store.c - find, list, link and remove the models of the folder $ZSE_HOME/models. */
#include "libcommon/store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char ending[] = ".zse";
enum { ENDING = sizeof ending - 1 };

static int is_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

int store_is_name(const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n >= STORE_NAME_BYTES || !is_alnum(*name))
        return 0;
    for (size_t i = 1; i < n; i++)
        if (!is_alnum(name[i]) && !strchr("._-:+", name[i]))
            return 0;
    return 1;
}

void store_make_name(char out[STORE_NAME_BYTES], const char *text)
{
    size_t n = 0;
    for (const char *s = text; *s && n < STORE_NAME_BYTES - 1; s++) {
        const char c = *s >= 'A' && *s <= 'Z' ? (char)(*s - 'A' + 'a') : *s;
        if (n || is_alnum(c))
            out[n++] = is_alnum(c) || strchr("._-:+", c) ? c : '-';
    }
    out[n] = '\0';
}

char *store_path(const char *folder, const char *name, struct err *e)
{
    char *path;
    if (!store_is_name(name)) {
        err_set(e, ERR_FORMAT, "'%.140s' is not a valid model name: expected letters, digits, and . _ - : + after the first, at most %d bytes",
                name, STORE_NAME_BYTES - 1);
        return NULL;
    }
    if (asprintf(&path, "%s/%s%s", folder, name, ending) < 0) {
        err_nomem(e, "path");
        return NULL;
    }
    return path;
}

/* Write the name of the model in this file of the folder, "" if the file has no valid name. */
static void name_of(const char *file, char out[STORE_NAME_BYTES])
{
    const size_t n = strlen(file);
    out[0] = '\0';
    if (n <= ENDING || n - ENDING >= STORE_NAME_BYTES || strcmp(file + n - ENDING, ending) != 0)
        return;
    memcpy(out, file, n - ENDING);
    out[n - ENDING] = '\0';
    if (!store_is_name(out))
        out[0] = '\0';
}

/* Time of the last use of a name; 0: never. */
static int64_t used(int dir, const char *name)
{
    char file[STORE_NAME_BYTES + 8];
    struct stat st;
    snprintf(file, sizeof file, ".%s.used", name);
    return fstatat(dir, file, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (int64_t)st.st_mtime : 0;
}

/* Write the name of the model to which the link called name points; "" if name is not a link, or
 * points out of this folder. */
static void link_target(int dir, const char *name, char out[STORE_NAME_BYTES])
{
    char file[STORE_NAME_BYTES + ENDING], to[STORE_NAME_BYTES + ENDING];
    snprintf(file, sizeof file, "%s%s", name, ending);
    const ssize_t n = readlinkat(dir, file, to, sizeof to - 1);
    out[0] = '\0';
    if (n <= 0)
        return;
    to[n] = '\0';
    name_of(to, out);
}

/* Fill in *m for this file.  1, or 0: the file is no model. */
static int describe(int dir, const char *file, struct store_model *m)
{
    struct stat st;
    *m = (struct store_model){ 0 };
    name_of(file, m->name);
    if (!*m->name || fstatat(dir, file, &st, 0) != 0 || !S_ISREG(st.st_mode))
        return 0;
    link_target(dir, m->name, m->of);
    m->bytes = (uint64_t)st.st_size;
    m->modified_s = (int64_t)st.st_mtime;
    m->used_s = used(dir, *m->of ? m->of : m->name);
    m->dev = (uint64_t)st.st_dev;
    m->ino = (uint64_t)st.st_ino;
    return 1;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct store_model *)a)->name, ((const struct store_model *)b)->name);
}

int store_list(const char *folder, struct store_model **list, struct err *e)
{
    DIR *d = opendir(folder);
    int n = 0, room = 0, rc = 0;
    *list = NULL;
    if (!d)
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_sys(e, "%s", folder);
    for (struct dirent *x; rc == 0 && (x = readdir(d));) {
        if (n == room) {
            struct store_model *more = realloc(*list, (size_t)(room = 2 * room + 16) * sizeof *more);
            if (!more) {
                rc = err_nomem(e, "list of models");
                break;
            }
            *list = more;
        }
        n += describe(dirfd(d), x->d_name, *list + n);
    }
    closedir(d);
    if (rc != 0) {
        free(*list);
        *list = NULL;
        return -1;
    }
    if (n)
        qsort(*list, (size_t)n, sizeof **list, by_name);
    return n;
}

/* ---- finding ---- */

static int is_there(const char *folder, const char *name)
{
    struct err ignored;
    struct stat st;
    char *path = store_path(folder, name, &ignored);
    const int there = path && stat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    return there;
}

int store_find(const char *folder, const char *word, char out[STORE_NAME_BYTES], struct err *e)
{
    if (!store_is_name(word))
        return 1;
    if (is_there(folder, word)) {
        snprintf(out, STORE_NAME_BYTES, "%s", word);
        return 0;
    }
    const size_t length = strlen(word);
    struct store_model *all;
    char several[400] = "";
    int found = 0;
    const int n = store_list(folder, &all, e);
    for (int i = 0; i < n; i++) {
        if (strncmp(all[i].name, word, length) != 0 || all[i].name[length] != ':')
            continue;
        const size_t at = strlen(several);
        snprintf(several + at, sizeof several - at, "%s%s", found++ ? ", " : "", all[i].name);
        snprintf(out, STORE_NAME_BYTES, "%s", all[i].name);
    }
    free(all);
    if (n < 0)
        return -1;
    return found > 1 ? err_set(e, ERR_FORMAT, "'%s' names several models: %s", word, several) : !found;
}

int store_find_default(const char *folder, char out[STORE_NAME_BYTES], struct err *e)
{
    if (is_there(folder, STORE_DEFAULT)) {
        snprintf(out, STORE_NAME_BYTES, "%s", STORE_DEFAULT);
        return 0;
    }
    struct store_model *all;
    const int n = store_list(folder, &all, e);
    int found = 0;
    for (int i = 0; i < n; i++)
        if (!*all[i].of && ++found == 1)
            snprintf(out, STORE_NAME_BYTES, "%s", all[i].name);
    free(all);
    return n < 0 ? -1 : found != 1;
}

void store_follow(const char *folder, char name[STORE_NAME_BYTES])
{
    char of[STORE_NAME_BYTES] = "";
    const int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return;
    link_target(dir, name, of);
    close(dir);
    if (*of)
        memcpy(name, of, sizeof of);
}

char *store_lookup(const char *folder, const char *word, struct err *e)
{
    char name[STORE_NAME_BYTES];
    return store_find(folder, word, name, e) == 0 ? store_path(folder, name, e) : NULL;
}

/* ---- changing ---- */

static void remove_mark(const char *folder, const char *name)
{
    char *mark;
    if (asprintf(&mark, "%s/.%s.used", folder, name) < 0)
        return;
    unlink(mark);
    free(mark);
}

int store_remove(const char *folder, const char *name, struct err *e)
{
    struct store_model *all;
    char *path = store_path(folder, name, e);
    struct stat st;
    if (!path)
        return -1;
    if (lstat(path, &st) != 0 || (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))) {
        free(path);
        return err_set(e, ERR_FORMAT, "'%s' is no model of %s", name, folder);
    }
    const int n = S_ISREG(st.st_mode) ? store_list(folder, &all, e) : (all = NULL, 0);
    int rc = n < 0 ? -1 : unlink(path) != 0 ? err_sys(e, "%s", path) : 0;
    free(path);
    for (int i = 0; i < n && rc == 0; i++) {
        if (strcmp(all[i].of, name) != 0)
            continue;
        path = store_path(folder, all[i].name, e);
        rc = !path ? -1 : unlink(path) != 0 && errno != ENOENT ? err_sys(e, "%s", path) : 0;
        free(path);
    }
    if (rc == 0)
        remove_mark(folder, name);
    free(all);
    return rc;
}

/* Replace the link at path by a link to target, atomically. */
static int relink(const char *path, const char *target, struct err *e)
{
    char *temporary;
    if (asprintf(&temporary, "%s.%ld", path, (long)getpid()) < 0)
        return err_nomem(e, "path");
    unlink(temporary);
    int rc = symlink(target, temporary) != 0 ? err_sys(e, "%s", temporary) : 0;
    if (rc == 0 && rename(temporary, path) != 0) {
        rc = err_sys(e, "%s", path);
        unlink(temporary);
    }
    free(temporary);
    return rc;
}

int store_alias(const char *folder, const char *alias, const char *name, struct err *e)
{
    char found[STORE_NAME_BYTES], of[STORE_NAME_BYTES] = "", target[STORE_NAME_BYTES + ENDING];
    struct stat st;
    int rc = store_find(folder, name, found, e);
    if (rc == 1)
        return err_set(e, ERR_IO, "'%.140s' is no model of %s", name, folder);
    char *path = rc == 0 ? store_path(folder, alias, e) : NULL;
    if (!path)
        return -1;
    if (lstat(path, &st) == 0 && !S_ISLNK(st.st_mode))
        rc = err_set(e, ERR_FORMAT, "'%s' is a model: only an alias can be replaced", alias);
    const int dir = rc == 0 ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (rc == 0 && dir < 0)
        rc = err_sys(e, "%s", folder);
    if (rc == 0)
        link_target(dir, found, of);
    if (dir >= 0)
        close(dir);
    if (rc == 0 && strcmp(*of ? of : found, alias) == 0)
        rc = err_set(e, ERR_FORMAT, "'%s' would stand for itself", alias);
    snprintf(target, sizeof target, "%s%s", *of ? of : found, ending);
    if (rc == 0)
        rc = relink(path, target, e);
    free(path);
    return rc;
}

void store_touch(const char *folder, const char *path)
{
    char name[STORE_NAME_BYTES], *real = realpath(path, NULL), *dir = realpath(folder, NULL), *mark;
    const char *slash = real ? strrchr(real, '/') : NULL;
    if (slash && dir && strlen(dir) == (size_t)(slash - real) && strncmp(dir, real, (size_t)(slash - real)) == 0) {
        name_of(slash + 1, name);
        if (*name && asprintf(&mark, "%s/.%s.used", dir, name) >= 0) {
            const int fd = open(mark, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
            if (fd >= 0) {
                futimens(fd, NULL);
                close(fd);
            }
            free(mark);
        }
    }
    free(real);
    free(dir);
}

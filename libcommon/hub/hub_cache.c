/* hub_cache.c - paths, revisions, links and locks of the cache of downloads. */
#include "libcommon/hub/hub_cache.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/file.h"

char *hub_cache_folder(const struct hub_options *o, const struct hub_name *name, struct err *e)
{
    const char *slash = strchr(name->repo, '/');
    char *path;
    if (asprintf(&path, "%s/models--%.*s%s%s", o->cache, (int)strcspn(name->repo, "/"), name->repo, slash ? "--" : "",
                 slash ? slash + 1 : "") >= 0)
        return path;
    err_nomem(e, "path");
    return NULL;
}

char *hub_cache_path(const char *folder, const char *fmt, ...)
{
    char *rest, *path = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&rest, fmt, ap);
    va_end(ap);
    if (n < 0)
        return NULL;
    if (asprintf(&path, "%s/%s", folder, rest) < 0)
        path = NULL;
    free(rest);
    return path;
}

int hub_cache_make_folders(const char *path, struct err *e)
{
    char *copy = strdup(path);
    int rc = copy ? 0 : err_nomem(e, "path");
    for (char *p = copy ? strchr(copy + 1, '/') : NULL; p && rc == 0; p = strchr(p + 1, '/')) {
        *p = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            rc = err_sys(e, "%s", copy);
        *p = '/';
    }
    free(copy);
    return rc;
}

/* ---- names ---- */

static int only(const char *s, const char *more)
{
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr(more, *s))
            return 0;
    return 1;
}

int hub_cache_name_ok(const char *file)
{
    if (!*file || *file == '/' || strlen(file) > 400 || strchr(file, '\\'))
        return 0;
    for (const char *p = file; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return 0;
    }
    for (const char *p = file; *p; p++)
        if ((unsigned char)*p < ' ')
            return 0;
    return 1;
}

int hub_cache_etag_ok(const char *etag) { return *etag && *etag != '.' && strlen(etag) <= 128 && only(etag, "-_."); }
int hub_cache_commit_ok(const char *commit) { return strlen(commit) >= 7 && strlen(commit) <= 64 && only(commit, ""); }

/* ---- revisions ---- */

static int is_commit(const char *revision)
{
    return strlen(revision) == 40 && strspn(revision, "0123456789abcdef") == 40;
}

int hub_cache_commit(const char *folder, const char *revision, char *commit, size_t room)
{
    struct err ignored;
    size_t size;
    if (is_commit(revision)) {
        snprintf(commit, room, "%s", revision);
        return 0;
    }
    char *path = hub_cache_path(folder, "refs/%s", revision),
         *text = path ? file_read(path, 200, &size, &ignored) : NULL;
    free(path);
    if (!text)
        return -1;
    text[strcspn(text, "\r\n ")] = '\0';
    int ok = hub_cache_commit_ok(text) && strlen(text) < room;
    if (ok)
        strcpy(commit, text);
    free(text);
    return ok ? 0 : -1;
}

int hub_cache_set_commit(const char *folder, const char *revision, const char *commit, struct err *e)
{
    char known[80];
    struct atomic_file f;
    if (hub_cache_commit(folder, revision, known, sizeof known) == 0 && strcmp(known, commit) == 0)
        return 0;
    char *path = hub_cache_path(folder, "refs/%s", revision);
    int rc = path ? hub_cache_make_folders(path, e) : err_nomem(e, "path");
    if (rc == 0 && (rc = atomic_open(&f, path, e)) == 0 && (rc = atomic_write(&f, commit, strlen(commit), e)) != 0)
        atomic_abort(&f);
    else if (rc == 0)
        rc = atomic_commit(&f, e);
    free(path);
    return rc;
}

/* ---- files ---- */

int hub_cache_has(const char *folder, const char *commit, const char *file)
{
    char *path = hub_cache_path(folder, "snapshots/%s/%s", commit, file),
         *absent = hub_cache_path(folder, ".no_exist/%s/%s", commit, file);
    struct stat st;
    int has = !path || !absent ? 0 : stat(path, &st) == 0 &&
              S_ISREG(st.st_mode) ? 1 : access(absent, F_OK) == 0 ? -1 : 0;
    free(path);
    free(absent);
    return has;
}

void hub_cache_set_absent(const char *folder, const char *commit, const char *file)
{
    struct err ignored;
    char *path = hub_cache_path(folder, ".no_exist/%s/%s", commit, file);
    if (path && hub_cache_make_folders(path, &ignored) == 0) {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (fd >= 0)
            close(fd);
    }
    free(path);
}

int hub_cache_link(const char *folder, const char *commit, const char *file, const char *etag, struct err *e)
{
    char target[600] = "../../", here[300];
    size_t n = strlen(target);
    ssize_t got;
    for (const char *p = file; (p = strchr(p, '/')) && n < 300; p++, n += 3)
        strcpy(target + n, "../");
    snprintf(target + n, sizeof target - n, "blobs/%s", etag);
    char *path = hub_cache_path(folder, "snapshots/%s/%s", commit, file), *temp = NULL;
    int rc = path && asprintf(&temp, "%s.zse-%ld", path, (long)getpid()) >= 0 ? hub_cache_make_folders(path, e)
                                                                              : err_nomem(e, "path");
    if (rc == 0 && (got = readlink(path, here, sizeof here - 1)) > 0 && (here[got] = '\0', strcmp(here, target) == 0))
        goto done;
    if (rc == 0 && (unlink(temp), symlink(target, temp) != 0 || rename(temp, path) != 0)) {
        rc = err_sys(e, "%s", path);
        unlink(temp);
    }
done:
    free(path);
    free(temp);
    return rc;
}

/* ---- locks ---- */

/* Lock the file with flock(), waiting in short steps so that the wait can be cancelled.  0; -1:
 * another process has it; -2: *e. */
static int lock_file(int fd, const char *path, const struct hub_options *o, int wait, struct err *e)
{
    const struct timespec piece = { .tv_nsec = 50000000 };
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            err_sys(e, "%s", path);
            return -2;
        }
        if (!wait)
            return -1;
        if (progress_report(o->progress, "waiting", 0, 0, "bytes")) {
            err_set(e, ERR_CANCELLED, "%s: stopped while another program has it", path);
            return -2;
        }
        nanosleep(&piece, NULL);
    }
    return 0;
}

int hub_cache_lock(const struct hub_options *o, const struct hub_name *name, const char *etag, int wait, struct err *e)
{
    const char *slash = strchr(name->repo, '/');
    struct stat mine, there;
    char *path;
    int rc;
    if (asprintf(&path, "%s/.locks/models--%.*s%s%s/%s.lock", o->cache, (int)strcspn(name->repo, "/"), name->repo,
                 slash ? "--" : "", slash ? slash + 1 : "", etag) < 0)
        return err_nomem(e, "path");
    int fd = hub_cache_make_folders(path, e) == 0 ? 0 : -1;
    while (fd == 0) {
        if ((fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666)) < 0) {
            err_sys(e, "%s", path);
        } else if ((rc = lock_file(fd, path, o, wait, e)) != 0) {
            close(fd);
            fd = rc == -1 ? -2 : -1;
        } else if (fstat(fd, &mine) != 0 || stat(path, &there) != 0 || mine.st_ino != there.st_ino) {
            close(fd);                  /* the previous owner has removed the file: try again */
            fd = 0;
        }
    }
    free(path);
    return fd;
}

void hub_cache_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}

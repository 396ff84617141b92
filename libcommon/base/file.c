/* file.c - map files, read small files, write files atomically. */
#include "libcommon/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t changed_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* Open a file to map it.  O_NONBLOCK lets a pipe without a writer be refused, not waited for.  A
 * regular file answers EWOULDBLOCK if another process (a file server, say) has a lease on it, which
 * the kernel asks back: the second open() waits for that, at most /proc/sys/fs/lease-break-time. */
static int open_regular(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return fd < 0 && errno == EWOULDBLOCK ? open(path, O_RDONLY | O_CLOEXEC) : fd;
}

int map_open(struct map *m, const char *path, struct err *e)
{
    struct stat st;
    memset(m, 0, sizeof *m);
    m->fd = open_regular(path);
    if (m->fd < 0)
        return err_sys(e, "%s", path);
    if (fstat(m->fd, &st) < 0) {
        err_sys(e, "%s", path);
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(e, ERR_IO, "%s: not a regular file", path);
        goto fail;
    }
    m->path = strdup(path);
    if (!m->path) {
        err_nomem(e, path);
        goto fail;
    }
    m->size = (size_t)st.st_size;
    m->dev = st.st_dev;
    m->ino = st.st_ino;
    m->changed_ns = changed_ns(&st);
    m->data = (const uint8_t *)"";
    if (m->size) {
        void *p = mmap(NULL, m->size, PROT_READ, MAP_SHARED, m->fd, 0);
        if (p == MAP_FAILED) {
            err_sys(e, "%s: mmap of %zu bytes", path, m->size);
            goto fail;
        }
        m->data = p;
    }
    return 0;
fail:
    free(m->path);
    close(m->fd);
    memset(m, 0, sizeof *m);
    m->fd = -1;
    return -1;
}

void map_close(struct map *m)
{
    if (!m->path)
        return;
    if (m->size)
        munmap((void *)m->data, m->size);
    close(m->fd);
    free(m->path);
    memset(m, 0, sizeof *m);
    m->fd = -1;
}

int map_whole(const struct map *m, int64_t *written_ns, struct err *e)
{
    struct stat st;
    if (m->lost)
        return err_set(e, ERR_IO, "%s: " MAP_LOST, m->path);
    if (fstat(m->fd, &st) < 0)
        return err_sys(e, "%s", m->path);
    if ((uint64_t)st.st_size != m->size)
        return err_set(e, ERR_IO, "%s: has %llu bytes now, had %zu when it was opened; a file in use can be replaced by another, but not written to", m->path,
                       (unsigned long long)st.st_size, m->size);
    *written_ns = changed_ns(&st);
    return 0;
}

int map_check(const struct map *m, struct err *e)
{
    int64_t written_ns;
    if (map_whole(m, &written_ns, e) != 0)
        return -1;
    return written_ns == m->changed_ns ? 0 : err_set(e, ERR_IO, "%s: " MAP_CHANGED, m->path);
}

void file_give(int fd, const char *path)
{
    char folder[4096];
    struct stat st, at;
    const char *slash = strrchr(path, '/');
    if (geteuid() != 0 || !slash || (size_t)(slash - path) >= sizeof folder)
        return;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    if (stat(folder, &st) != 0 || st.st_uid == 0 || fstat(fd, &at) != 0 || at.st_uid != 0 || !S_ISREG(at.st_mode) ||
        at.st_nlink != 1)
        return;                             /* with a second hard link, another user's file could be
                                             * given away */
    if (fchown(fd, st.st_uid, st.st_gid) != 0)
        return;     /* root keeps the file, and the owner of the folder gets EACCES when writing to it */
}

int file_open_made(const char *path, int flags)
{
    int fd;
    flags |= O_CLOEXEC | O_NOFOLLOW;
    do {
        if ((fd = open(path, flags | O_CREAT | O_EXCL, 0600)) >= 0)
            file_give(fd, path);
        else if (errno == EEXIST)
            fd = open(path, flags);
    /* the file was removed and recreated between the two calls */
    } while (fd < 0 && errno == ENOENT && access(path, F_OK) == 0);
    return fd;
}

int file_is_ours(const char *path, const struct stat *st, const char *folder, struct err *e)
{
    struct stat in;
    if (stat(folder, &in))
        return err_sys(e, "%s", folder);
    if (st->st_mode & 077)
        return err_set(e, ERR_IO, "%s: mode %03o, expected 600: others could read or change it", path,
                       (unsigned)st->st_mode & 0777);
    if (st->st_uid != geteuid() && st->st_uid != 0 && st->st_uid != in.st_uid)
        return err_set(e, ERR_IO, "%s: belongs to user %u, neither to this one nor to whom its folder belongs", path,
                       (unsigned)st->st_uid);
    if (in.st_mode & 022)
        return err_set(e, ERR_IO, "%s: mode %03o, expected 700: others could replace what is in it", folder,
                       (unsigned)in.st_mode & 0777);
    return 0;
}

char *file_read(const char *path, size_t max, size_t *size, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        err_sys(e, "%s", path);
        return NULL;
    }
    size_t n = 0, room = 0;
    char *text = NULL;
    for (;;) {
        if (n == room) {
            size_t more = room ? room * 2 : 4096;
            char *p = realloc(text, more + 1);
            if (!p) {
                err_nomem(e, path);
                goto fail;
            }
            text = p;
            room = more;
        }
        ssize_t got = read(fd, text + n, room - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            err_sys(e, "%s", path);
            goto fail;
        }
        if (got == 0)
            break;
        n += (size_t)got;
        if (n > max) {
            err_set(e, ERR_LIMIT, "%s: more than %zu bytes", path, max);
            goto fail;
        }
    }
    close(fd);
    text[n] = '\0';
    if (size)
        *size = n;
    return text;
fail:
    close(fd);
    free(text);
    return NULL;
}

/* Remove temporaries for the same target that killed writers left behind: those that no process has
 * locked. */
static void sweep(const struct atomic_file *f)
{
    const char *name = strrchr(f->temp, '/');
    char *dir = name ? strndup(f->temp, (size_t)(name - f->temp) + 1) : strdup(".");
    name = name ? name + 1 : f->temp;
    size_t n = strlen(name);
    DIR *d = dir ? opendir(dir) : NULL;
    free(dir);
    if (!d)
        return;
    for (struct dirent *x; (x = readdir(d));) {
        if (strlen(x->d_name) != n || strncmp(x->d_name, name, n - 6) != 0 || strcmp(x->d_name, name) == 0)
            continue;
        int fd = openat(dirfd(d), x->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(d), x->d_name, 0);
        close(fd);
    }
    closedir(d);
}

/* Make and lock a new temporary.  Another writer's sweep may remove it between the two steps; then
 * try again. */
static int make_temp(struct atomic_file *f, struct err *e)
{
    size_t n = strlen(f->temp);
    struct stat st;
    for (int tries = 0; tries < 100; tries++) {
        memcpy(f->temp + n - 6, "XXXXXX", 6);
        f->fd = mkstemp(f->temp);
        if (f->fd < 0)
            break;
        /* on a file system without locks, no other writer can lock it either */
        (void)flock(f->fd, LOCK_EX | LOCK_NB);
        if (fstat(f->fd, &st) == 0 && st.st_nlink > 0)
            return 0;
        close(f->fd);
        f->fd = -1;
    }
    return err_sys(e, "%s", f->path);
}

/* Refuse targets that are not regular files: rename() would replace a device as well. */
static int check_target(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: is %s, expected a regular file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    return 0;
}

int atomic_open(struct atomic_file *f, const char *path, struct err *e)
{
    memset(f, 0, sizeof *f);
    f->fd = -1;
    if (check_target(path, e) < 0)
        return -1;
    const char *slash = strrchr(path, '/');
    int dir = slash ? (int)(slash - path + 1) : 0;
    f->path = strdup(path);
    if (!f->path || asprintf(&f->temp, "%.*s.%s.zse-XXXXXX", dir, path, path + dir) < 0) {
        f->temp = NULL;
        atomic_abort(f);
        return err_nomem(e, path);
    }
    if (make_temp(f, e) < 0) {
        free(f->temp);
        f->temp = NULL;
        atomic_abort(f);
        return -1;
    }
    sweep(f);
    fcntl(f->fd, F_SETFD, FD_CLOEXEC);
    mode_t mask = umask(0);
    umask(mask);
    fchmod(f->fd, 0666 & ~mask);            /* mkstemp uses mode 0600 */
    return 0;
}

int atomic_pwrite(struct atomic_file *f, const void *data, size_t n, uint64_t at, struct err *e)
{
    const char *p = data;
    while (n) {
        ssize_t put = pwrite(f->fd, p, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_sys(e, "%s: writing at offset %llu", f->path, (unsigned long long)at);
        p += put;
        at += (uint64_t)put;
        n -= (size_t)put;
    }
    return 0;
}

int atomic_write(struct atomic_file *f, const void *data, size_t n, struct err *e)
{
    if (atomic_pwrite(f, data, n, f->offset, e) < 0)
        return -1;
    f->offset += n;
    return 0;
}

/* ---- files of interrupted writers ---- */

char *atomic_parked_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    const int dir = slash ? (int)(slash - path + 1) : 0;
    char *name;
    return asprintf(&name, "%.*s.%s.zse-partial", dir, path, path + dir) < 0 ? NULL : name;
}

int atomic_park(struct atomic_file *f, struct err *e)
{
    if (fsync(f->fd) < 0)
        return err_sys(e, "%s", f->path);
    char *name = atomic_parked_name(f->path);
    if (!name)
        return err_nomem(e, f->path);
    int rc = 0;
    if (strcmp(name, f->temp) != 0) {
        rc = link(f->temp, name) == 0 ? 0 : 1;          /* link() replaces nothing, unlike rename() */
        if (rc == 0) {
            unlink(f->temp);
            char *temp = f->temp;
            f->temp = name;
            name = temp;
        }
    }
    free(name);
    return rc;
}

int atomic_unpark(struct atomic_file *f, const char *path, struct err *e)
{
    struct stat mine, there;
    int rc = 0;
    memset(f, 0, sizeof *f);
    f->fd = -1;
    if (check_target(path, e) < 0)
        return -1;
    f->path = strdup(path);
    f->temp = f->path ? atomic_parked_name(path) : NULL;
    if (!f->temp) {
        atomic_leave(f);
        return err_nomem(e, path);
    }
    f->fd = open(f->temp, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (f->fd < 0)
        rc = errno == ENOENT ? 0 : err_sys(e, "%s", f->temp);
    else if (flock(f->fd, LOCK_EX | LOCK_NB) != 0)
        rc = 2;
    else        /* the last writer may have renamed the parked file to its final name meanwhile */
        rc = fstat(f->fd, &mine) == 0 && S_ISREG(mine.st_mode) && stat(f->temp, &there) == 0 &&
             mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
    if (rc != 1)
        atomic_leave(f);
    return rc;
}

void atomic_leave(struct atomic_file *f)
{
    char *name = f->path && f->temp ? atomic_parked_name(f->path) : NULL;
    if (name && strcmp(name, f->temp) == 0) {
        free(f->temp);
        f->temp = NULL;
    }
    free(name);
    atomic_abort(f);
}

int atomic_commit(struct atomic_file *f, struct err *e)
{
    if (fsync(f->fd) < 0 || rename(f->temp, f->path) < 0) {
        err_sys(e, "%s", f->path);
        atomic_abort(f);
        return -1;
    }
    free(f->temp);
    f->temp = NULL;
    char *slash = strrchr(f->path, '/');
    if (slash)
        slash[slash == f->path] = '\0';
    int dir = open(slash ? f->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0) {
        (void)fsync(dir);   /* so that the name survives a power cut; some file systems refuse */
        close(dir);
    }
    atomic_abort(f);
    return 0;
}

void atomic_abort(struct atomic_file *f)
{
    if (f->temp)
        unlink(f->temp);
    if (f->fd >= 0)
        close(f->fd);
    free(f->temp);
    free(f->path);
    memset(f, 0, sizeof *f);
    f->fd = -1;
}

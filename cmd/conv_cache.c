/* conv_cache.c - keep automatic conversions in the user's cache folder. */
#include "cmd/conv_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/run_conversion.h"
#include "cmd/preflight_convert.h"
#include "libcommon/import/source.h"

/* ---- names ---- */

/* Make every folder of path up to its last '/'. */
static int make_folders(char *path, struct err *e)
{
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        int rc = mkdir(path, 0777);
        if (rc != 0 && errno != EEXIST)
            err_sys(e, "%s", path);
        *p = '/';
        if (rc != 0 && errno != EEXIST)
            return -1;
    }
    return 0;
}

/* FNV-1a, a hash */
#define FNV_START 0xcbf29ce484222325u
static uint64_t fnv(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* Hash of a file's name, size and time of change. */
static uint64_t file_stamp(const char *name, const struct stat *st)
{
    const uint64_t facts[3] = { (uint64_t)st->st_size, (uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec };
    return fnv(fnv(FNV_START, name, strlen(name)), facts, sizeof facts);
}

/* Hash of the times of change of the weights at path (a file, or a folder's safetensors).
 * source_key reads only samples of large tensors; this detects an edit between the samples. */
static uint64_t weights_stamp(const char *path)
{
    struct stat st;
    DIR *dir = opendir(path);
    uint64_t sum = 0;
    if (!dir)
        return stat(path, &st) == 0 ? file_stamp("", &st) : 0;
    for (struct dirent *d; (d = readdir(dir));) {
        const char *end = strrchr(d->d_name, '.');
        if (end && strcmp(end, ".safetensors") == 0 && fstatat(dirfd(dir), d->d_name, &st, 0) == 0)
            sum += file_stamp(d->d_name, &st);
    }
    closedir(dir);
    return sum;
}

/* The path of a file in the cache that belongs to source; fmt: its name.  make: make its folders.
 * Caller frees. */
static char *place(const char *source, int make, struct err *e, const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));
static char *place(const char *source, int make, struct err *e, const char *fmt, ...)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const int in_home = !cache || !*cache;
    char *path = NULL, *name = NULL;
    va_list ap;
    if (in_home && (!home || !*home)) {
        err_set(e, ERR_IO, "neither XDG_CACHE_HOME nor HOME is set: no folder to cache the conversion of %s; use zse-convert",
                source);
        return NULL;
    }
    va_start(ap, fmt);
    int rc = vasprintf(&name, fmt, ap) < 0 ||
             asprintf(&path, "%s%s/zse/%s", in_home ? home : cache, in_home ? "/.cache" : "", name) < 0
             ? err_nomem(e, "path") : 0;
    if (rc == 0 && make && make_folders(path, e) != 0)
        rc = err_prefix(e, "no folder to cache the conversion of %s (zse-convert writes a .zse anywhere)", source);
    va_end(ap);
    free(name);
    if (rc == 0)
        return path;
    free(path);
    return NULL;
}

/* The path zse/KEY-STAMP-TYPE-VERSION.zse. */
char *conv_cache_path(const struct conv_cache_request *a, const char *source, struct err *e)
{
    char key[33];
    struct source *s = source_open(source, e);
    if (!s)
        return NULL;
    const int rc = s->n_tensors ? source_key(s, key, e)
                                : err_set(e, ERR_UNSUPPORTED, "%s has no weights, only a vocabulary", source);
    source_close(s);
    return rc == 0 ? place(source, 1, e, "%s-%016" PRIx64 "-%s-%s.zse", key, weights_stamp(source), a->type, ZSE_VERSION)
                   : NULL;
}

/* The path zse/HASH-TYPE.END, where HASH is that of the source's path: for locks, and for
 * conversions that begin before the source's content is known. */
static char *place_by_path(const struct conv_cache_request *a, const char *source, const char *end, struct err *e)
{
    char *real = realpath(source, NULL);
    const char *path = real ? real : source;
    char *name = place(source, 1, e, "%016" PRIx64 "-%s.%s", fnv(FNV_START, path, strlen(path)), a->type, end);
    free(real);
    return name;
}

char *conv_cache_record(const char *path, uint64_t dev, uint64_t ino, int make, struct err *e)
{
    return place(path, make, e, "verified/%" PRIx64 "-%" PRIx64, dev, ino);
}

char *conv_cache_rates(int make, struct err *e) { return place("rates", make, e, "rates.json"); }

/* ---- cleaning ---- */

/* Whether two names KEY-STAMP-TYPE-VERSION.zse have the same type. */
static int same_type(const char *a, const char *b)
{
    enum { PREFIX = 32 + 1 + 16 + 1 };
    return strlen(a) > PREFIX && strlen(b) > PREFIX && strcspn(a + PREFIX, "-") == strcspn(b + PREFIX, "-") &&
           strncmp(a + PREFIX, b + PREFIX, strcspn(a + PREFIX, "-")) == 0;
}

/* Remove conversions of sources that no longer exist, and older ones of this source to this
 * type. */
static void remove_stale(const char *made, const char *source)
{
    const char *slash = strrchr(made, '/'), *name = slash + 1;
    char *folder = strndup(made, (size_t)(slash - made));
    DIR *dir = folder ? opendir(folder) : NULL;
    struct err ignored;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        const char *end = strstr(d->d_name, ".zse.source");
        size_t size;
        char *path = NULL, *from;
        if (!end || end[11] || strncmp(d->d_name, name, (size_t)(end + 4 - d->d_name)) == 0 ||
            asprintf(&path, "%s/%s", folder, d->d_name) < 0)
            continue;
        from = file_read(path, PATH_MAX, &size, &ignored);
        int gone = from && *from && access(from, F_OK) != 0 && errno == ENOENT;
        if (gone || (from && strcmp(from, source) == 0 && same_type(d->d_name, name))) {
            unlink(path);
            path[strlen(path) - strlen(".source")] = '\0';
            unlink(path);
        }
        free(from);
        free(path);
    }
    if (dir)
        closedir(dir);
    free(folder);
}

/* Remove conversions that were interrupted more than a week ago: if their source has changed since,
 * no run resumes them. */
static void remove_interrupted(const char *made)
{
    enum { WEEK = 7 * 24 * 3600 };
    static const char *const ends[] = { "partial", "journal", "state-0", "state-1" };
    const char *slash = strrchr(made, '/');
    char *folder = strndup(made, (size_t)(slash - made));
    DIR *dir = folder ? opendir(folder) : NULL;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        const size_t n = strlen(d->d_name), end = strlen(".zse-partial");
        struct stat st;
        char name[NAME_MAX + 1];
        if (n <= end || d->d_name[0] != '.' || strcmp(d->d_name + n - end, ".zse-partial") != 0)
            continue;
        const int fd = openat(dirfd(dir), d->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && st.st_mtime < time(NULL) - WEEK)
            for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
                snprintf(name, sizeof name, "%.*s%s", (int)(n - strlen("partial")), d->d_name, ends[i]);
                unlinkat(dirfd(dir), name, 0);
            }
        if (fd >= 0)
            close(fd);
    }
    if (dir)
        closedir(dir);
    free(folder);
}

/* Record the source of a conversion, clean the cache, and print the size once. */
static void record_source(const struct conv_cache_request *a, const char *made, const char *source)
{
    struct stat st;
    char size[CLI_BYTES], *real = realpath(source, NULL), *name;
    if (asprintf(&name, "%s.source", made) < 0)
        name = NULL;
    FILE *f = real && name ? fopen(name, "w") : NULL;
    if (f) {
        fputs(real, f);
        fclose(f);
        remove_stale(made, real);
        remove_interrupted(made);
    }
    cli_note(a->prog, "kept as %s (%s); to keep it elsewhere: zse-convert %s -o NAME.zse", made,
             cli_bytes(size, stat(made, &st) == 0 ? (uint64_t)st.st_size : 0), a->asked);
    free(real);
    free(name);
}

/* ---- one at a time ---- */

int conv_cache_lock(struct conv_cache_lock *l, const struct conv_cache_request *a, const char *source, struct err *e)
{
    struct stat mine, there;
    int rc;
    *l = (struct conv_cache_lock){ .name = place_by_path(a, source, "lock", e) };
    if (!l->name)
        return -1;
    while ((l->fd = open(l->name, O_RDWR | O_CREAT | O_CLOEXEC, 0666)) >= 0) {
        if ((rc = flock(l->fd, LOCK_EX | LOCK_NB)) != 0 && errno == EWOULDBLOCK) {
            if (!l->waited++)
                cli_note(a->prog, "another process is converting %s; waiting for it", a->asked);
            while ((rc = flock(l->fd, LOCK_EX)) != 0 && errno == EINTR && !cli_interrupted())
                ;
        }
        if (rc != 0)
            break;
        if (fstat(l->fd, &mine) == 0 && stat(l->name, &there) == 0 && mine.st_ino == there.st_ino &&
            mine.st_dev == there.st_dev)
            return 0;
        close(l->fd);                   /* the last holder has removed the name: try again */
    }
    if (cli_interrupted())
        err_set(e, ERR_CANCELLED, "%s: cancelled", l->name);
    else
        err_sys(e, "%s", l->name);
    if (l->fd >= 0)
        close(l->fd);
    free(l->name);
    return -1;
}

/* The file is removed while it is locked: a process that waits for it then opens a new one. */
void conv_cache_unlock(struct conv_cache_lock *l)
{
    unlink(l->name);
    free(l->name);
    close(l->fd);
}

/* ---- converting ---- */

static int convert(const struct conv_cache_request *a, struct hub_stream *stream, char **source, const char *output,
                   struct err *e)
{
    struct convert_options o;
    const struct preflight_convert pre = { .prog = a->prog, .name = a->asked, .output = output, .force = a->force };
    convert_defaults(&o);
    int rc = convert_parse_type(&o.type, a->type, e);
    if (rc != 0 && stream)
        hub_stream_close(stream, rc, source, e);
    if (rc != 0)
        return -1;
    o.keep_grid = 0;                    /* the type decides */
    o.source = *source;
    o.output = output;
    o.n_threads = a->n_threads;
    o.kernels = a->kernels;
    o.overwrite = 1;                    /* the existing file could not be read */
    o.before = preflight_convert;
    o.before_user = (void *)(uintptr_t)&pre;
    rc = run_conversion(a->prog, &o, stream, source, NULL, e);
    cli_die_of_interrupt();
    return rc;
}

int conv_cache_make(const struct conv_cache_request *a, const char *source, const char *path, struct err *e)
{
    char *here = (char *)(uintptr_t)source;             /* convert() changes *source only if there is a stream */
    cli_note(a->prog, "converting %s once, to %s (%s)", a->asked, path, a->type);
    if (convert(a, NULL, &here, path, e) != 0)
        return -1;
    record_source(a, path, source);
    return 0;
}

int conv_cache_arriving(const struct conv_cache_request *a, struct hub_stream *stream, char **source, char **path,
                       struct err *e)
{
    /* name it by the source's path, because the final name depends on content that is still to
     * come */
    char *name = place_by_path(a, *source, "part", e);
    *path = NULL;
    if (!name) {
        hub_stream_close(stream, -1, source, e);
        return -1;
    }
    cli_note(a->prog, "converting %s once, while it downloads (%s)", a->asked, a->type);
    int rc = convert(a, stream, source, name, e);
    if (rc == 0 && (!(*path = conv_cache_path(a, *source, e)) ||
                    (rename(name, *path) != 0 && err_sys(e, "%s", *path) != 0)))
        rc = -1;
    if (rc == 0)
        record_source(a, *path, *source);
    else
        unlink(name);
    free(name);
    return rc;
}

#include "libcommon/access/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <zlib.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/base/file.h"
#include "libcommon/base/utf8.h"
#include "libcommon/base/thread.h"

enum { LINE_ROOM = 65536, FIELD_MAX = 1024, PROMPT_MAX = 4096 };
enum { LOOK_MS = 20, LAST_LOOKS = 50 };     /* the packer looks so often for the lock, and so many times more when the end has come */

struct known_end;

struct audit {
    char *folder, *path;
    uint64_t max_bytes;
    int keep;
    pthread_mutex_t writing;                /* of what follows; held while the lock of the folder and the disk are waited for */
    int fd;                                 /* of the current file; -1: not open */
    uint64_t end;                           /* of it, when this process last wrote */
    char hash[SHA256_HEX + 1];              /* of the line that ends there */
    struct sha256 *sha;
    struct known_end *known;
    pthread_mutex_t mutex;                  /* of everything below; never held for long */
    char *recent[AUDIT_RECENT]; uint64_t n_recent;      /* ring; the newest is n_recent - 1 */
    struct audit_stats stats;
    pthread_t packer; int packing, stopping, work;      /* the thread that compresses */
    pthread_cond_t wake;
};

/* ---- one line ---- */

struct line { char *p; size_t n, room; };   /* fields are cut, so that it never runs out */

static void put(struct line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct line *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(l->p + l->n, l->room - l->n, fmt, ap);
    va_end(ap);
    l->n += (size_t)n;
}

/* Bytes of what looks like an API key, or most of one: clients send it in paths and where else it does not belong. */
static size_t key_at(const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const size_t n = strncmp(text, "zse-", 4) == 0 ? strspn(text + 4, digits) : 0;
    return n >= 32 ? 4 + n : 0;
}

int audit_has_key(const char *text)
{
    for (const char *p = text; (p = strstr(p, "zse-")); p++)
        if (key_at(p))
            return 1;
    return 0;
}

/* What a terminal, or who splits text into lines, might obey: control characters, ends of lines, changes of direction. */
static int steers(uint32_t u) { return u < 0x20 || (u >= 0x7f && u < 0xa0) || (u >= 0x2028 && u <= 0x202e) || (u >= 0x2066 && u <= 0x2069); }

/* "key":"text" with what is no UTF-8 replaced, keys left out, and at most max bytes of text. */
static void put_text(struct line *l, const char *key, const char *text, size_t max)
{
    put(l, ",\"%s\":", key);
    if (!text) {
        put(l, "null");
        return;
    }
    put(l, "\"");
    for (size_t i = 0, size = strlen(text); i < size && i < max;) {
        int n;
        char c[4];
        const size_t secret = key_at(text + i);
        if (secret) {
            put(l, "zse-...");
            i += secret;
            continue;
        }
        const uint32_t u = utf8_next(text + i, size - i, &n);
        i += (size_t)n;
        if (u == '"' || u == '\\')
            put(l, "\\%c", (int)u);
        else if (steers(u))
            put(l, "\\u%04x", (unsigned)u);
        else {
            n = utf8_encode(u, c);
            memcpy(l->p + l->n, c, (size_t)n);
            l->n += (size_t)n;
        }
    }
    put(l, "\"");
}

/* {"timestamp":"2026-11-21T15:08:46.003Z","timestamp_unix":1795273726.003 */
static void put_time(struct line *l, int64_t ms)
{
    struct tm t;
    char text[32];
    const time_t s = (time_t)(ms / 1000);
    gmtime_r(&s, &t);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &t);
    put(l, "{\"timestamp\":\"%s.%03dZ\",\"timestamp_unix\":%" PRId64 ".%03d", text, (int)(ms % 1000), ms / 1000, (int)(ms % 1000));
}

static void put_count(struct line *l, const char *key, int64_t n)
{
    if (n < 0)
        put(l, ",\"%s\":null", key);
    else
        put(l, ",\"%s\":%" PRId64, key, n);
}

static void put_entry(struct line *l, const struct audit_entry *x)
{
    const int tokens = x->prompt_tokens >= 0 || x->completion_tokens >= 0;
    put_time(l, x->time_ms);
    put_text(l, "request_id", x->request_id, FIELD_MAX);
    put_text(l, "method", x->method, 32);
    put_text(l, "path", x->path, FIELD_MAX);
    put(l, ",\"status_code\":%d,\"latency_ms\":%.3f", x->status, x->latency_ms);
    put_text(l, "api_key_name", x->key_name, FIELD_MAX);
    put_text(l, "client_ip", x->client_ip, 64);
    put_text(l, "user_agent", x->user_agent, 256);
    put_text(l, "model_id", x->model, FIELD_MAX);
    put_count(l, "prompt_tokens", x->prompt_tokens);
    put_count(l, "completion_tokens", x->completion_tokens);
    put_count(l, "total_tokens", tokens ? (x->prompt_tokens > 0 ? x->prompt_tokens : 0) + (x->completion_tokens > 0 ? x->completion_tokens : 0) : -1);
    put_text(l, "error_message", x->error, 512);
    if (x->prompt)
        put_text(l, "prompt", x->prompt, PROMPT_MAX);
}
_Static_assert(LINE_ROOM > 6 * (4 * FIELD_MAX + 32 + 64 + 256 + 512 + PROMPT_MAX) + 1024, "every byte of a field takes at most 6 in the line");

/* ---- the file, under the lock of the folder ---- */

void audit_lost(struct audit *a, const struct err *why)
{
    pthread_mutex_lock(&a->mutex);
    a->stats.errors++;
    snprintf(a->stats.last_error, sizeof a->stats.last_error, "%s", why->msg);
    pthread_mutex_unlock(&a->mutex);
}

/* Chain and write one line; half a line is taken back. hash is of the line before and becomes that of this one. */
static int append(int fd, const char *path, uint64_t at, char *text, size_t n, struct sha256 *sha, char hash[SHA256_HEX + 1], struct err *e)
{
    uint8_t digest[SHA256_SIZE];
    sha256_start(sha);
    sha256_add(sha, hash, SHA256_HEX);
    sha256_add(sha, text, n);
    sha256_end(sha, digest);
    char hex[SHA256_HEX + 1];
    sha256_hex(digest, hex);
    n += (size_t)sprintf(text + n, AUDIT_HASH_FIELD "%s\"}\n", hex);
    ssize_t did;
    do
        did = write(fd, text, n);
    while (did < 0 && errno == EINTR);
    if (did == (ssize_t)n) {
        memcpy(hash, hex, sizeof hex);
        return 0;
    }
    if (did < 0)
        return err_sys(e, "%s", path);
    if (ftruncate(fd, (off_t)at))
        return err_sys(e, "%s: half a line was written, and taking it back failed", path);
    return err_set(e, ERR_IO, "%s: the disk took %zd of the %zu bytes of a line", path, did, n);
}

/* A new current file that goes on from hash. *fd is open for appending.  after: the hash at the end of the rotated files, where lines between it and
 * hash were cleared; NULL: none were. */
static int begin_file(const char *path, int *fd, struct sha256 *sha, char hash[SHA256_HEX + 1], const char *after, uint64_t *end, struct err *e)
{
    char text[512];
    struct line l = { text, 0, sizeof text };
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *fd = file_open_made(path, O_RDWR | O_APPEND);
    if (*fd < 0)
        return err_sys(e, "%s", path);
    put_time(&l, (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    put(&l, ",\"event\":\"begin\",\"prev\":\"%s\"", hash);
    if (after)
        put(&l, ",\"after\":\"%s\"", after);
    const off_t at = lseek(*fd, 0, SEEK_END);
    if (append(*fd, path, at > 0 ? (uint64_t)at : 0, text, l.n, sha, hash, e)) {
        close(*fd);
        *fd = -1;
        return -1;
    }
    *end = (uint64_t)lseek(*fd, 0, SEEK_END);
    return 0;
}

/* The end of the newest rotated file, so that it is not read for a line that cannot be written.  Rotated files do not change, but for being compressed. */
struct known_end { char path[4200]; char hash[SHA256_HEX + 1]; };

static void know_end(struct known_end *known, const char *path, const char *hash)
{
    snprintf(known->path, sizeof known->path, "%s", path);
    memcpy(known->hash, hash, sizeof known->hash);
}

static int knows_end(const struct known_end *known, const char *path)
{
    const size_t n = known ? strlen(known->path) : 0;
    return n && strncmp(path, known->path, n) == 0 && (!path[n] || strcmp(path + n, ".gz") == 0);
}

/* The last hash of a compressed file: in one pass. */
static int last_hash_packed(const char *path, char hash[SHA256_HEX + 1], struct err *e)
{
    gzFile z = gzopen(path, "re");
    char *line = malloc(LINE_ROOM);
    const char *hex;
    const int rc = z && line ? 0 : err_sys(e, "%s", path);
    while (rc == 0 && gzgets(z, line, LINE_ROOM)) {
        const size_t n = strcspn(line, "\n");
        if (audit_line_hash(line, n, &hex))
            memcpy(hash, hex, SHA256_HEX);
    }
    free(line);
    if (z)
        gzclose(z);
    return rc;
}

/* The last hash of the newest rotated file, for a current file that is missing or empty.  known: NULL, or what was found the last time. */
static int last_hash(const char *folder, struct known_end *known, char hash[SHA256_HEX + 1], struct err *e)
{
    struct audit_files f;
    strcpy(hash, AUDIT_ZEROS);
    if (audit_files_list(&f, folder, e))
        return -1;
    int rc = 0, newest = f.n - 1;
    if (newest >= 0 && strcmp(strrchr(f.file[newest].path, '/') + 1, AUDIT_FILE) == 0)
        newest--;
    const struct audit_file *last = newest >= 0 ? &f.file[newest] : NULL;
    if (last && knows_end(known, last->path)) {
        memcpy(hash, known->hash, sizeof known->hash);
    } else if (last) {
        uint64_t end;
        const int fd = last->gz ? -1 : open(last->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (last->gz)
            rc = last_hash_packed(last->path, hash, e);
        else
            rc = fd < 0 ? err_sys(e, "%s", last->path) : audit_tail(fd, last->path, hash, &end, e);
        if (fd >= 0)
            close(fd);
        if (rc == 0 && known)
            know_end(known, last->path, hash);
    }
    audit_files_release(&f);
    return rc;
}

/* a->fd, a->end, a->hash as the file is now, whoever wrote last. */
static int catch_up(struct audit *a, struct err *e)
{
    struct stat here, there;
    const int missing = stat(a->path, &there) != 0;
    if (missing && errno != ENOENT)
        return err_sys(e, "%s", a->path);
    if (a->fd >= 0 && (missing || fstat(a->fd, &here) || here.st_ino != there.st_ino || here.st_dev != there.st_dev)) {
        close(a->fd);
        a->fd = -1;
    }
    if (a->fd >= 0 && (uint64_t)there.st_size == a->end)
        return 0;
    if (a->fd < 0 && !missing && (a->fd = open(a->path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW)) < 0)
        return err_sys(e, "%s", a->path);
    char last;
    if (a->fd >= 0 && there.st_size > 0 && pread(a->fd, &last, 1, there.st_size - 1) == 1 && last != '\n') {      /* half a line of a crash: end it */
        if (write(a->fd, "\n", 1) != 1)
            return err_sys(e, "%s", a->path);
        there.st_size++;
    }
    uint64_t end = 0;
    if (a->fd >= 0 && audit_tail(a->fd, a->path, a->hash, &end, e))
        return -1;
    if (end == 0) {                                             /* no line of ours yet */
        if (last_hash(a->folder, a->known, a->hash, e))
            return -1;
        if (a->fd >= 0)
            close(a->fd);
        return begin_file(a->path, &a->fd, a->sha, a->hash, NULL, &a->end, e);
    }
    a->end = (uint64_t)there.st_size;
    return 0;
}

/* A name for what is rotated now, greater than every name there is. */
static int rotated_name(const char *folder, char *out, size_t size, struct err *e)
{
    struct audit_files f;
    char now[32];
    struct tm t;
    const time_t s = time(NULL);
    gmtime_r(&s, &t);
    strftime(now, sizeof now, "requests_%Y%m%d_%H%M%S", &t);
    if (audit_files_list(&f, folder, e))
        return -1;
    const int n = strlen(now);
    int clash = 1;
    for (int i = 0; i < f.n; i++) {
        const char *name = strrchr(f.file[i].path, '/') + 1;
        if (strncmp(name, "requests_", 9) != 0)
            continue;
        const int c = strncmp(name, now, (size_t)n);
        if (c >= 0) {
            if (c > 0)
                clash = 1;
            memcpy(now, name, (size_t)n);
            const int had = name[n] == '_' ? atoi(name + n + 1) : 1;
            clash = had + 1 > clash ? had + 1 : clash;
        }
    }
    audit_files_release(&f);
    if (clash > 999)
        return err_set(e, ERR_LIMIT, "%s: 999 files of %s", folder, now);
    snprintf(out, size, clash == 1 ? "%s/%s.jsonl" : "%s/%s_%03d.jsonl", folder, now, clash);
    return 0;
}

static int rotate(struct audit *a, struct err *e)
{
    char name[4200];
    if (rotated_name(a->folder, name, sizeof name, e))
        return -1;
    if (rename(a->path, name))
        return err_sys(e, "%s: cannot become %s", a->path, name);
    know_end(a->known, name, a->hash);
    close(a->fd);
    a->fd = -1;
    pthread_mutex_lock(&a->mutex);
    a->stats.rotations++;
    a->work = 1;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->mutex);
    return begin_file(a->path, &a->fd, a->sha, a->hash, NULL, &a->end, e);
}

static int add_line(struct audit *a, char *text, size_t n, struct err *e)
{
    int lock = audit_lock(a->folder, 1, e), rc = -1;
    if (lock < 0 && access(a->folder, F_OK) != 0)       /* somebody took it away, or it could not be made */
        lock = mkdir(a->folder, 0700) != 0 && errno != EEXIST ? err_sys(e, "%s", a->folder) : audit_lock(a->folder, 1, e);
    if (lock < 0)
        return -1;
    if (catch_up(a, e) == 0 && (a->end + n + AUDIT_HASH_TAIL < a->max_bytes || rotate(a, e) == 0) &&
        append(a->fd, a->path, a->end, text, n, a->sha, a->hash, e) == 0) {
        a->end += n + AUDIT_HASH_TAIL + 1;
        rc = 0;
    }
    close(lock);
    return rc;
}

char *audit_line(const struct audit_entry *x, size_t *n)
{
    struct line l = { malloc(LINE_ROOM), 0, LINE_ROOM };
    if (!l.p)
        return NULL;
    put_entry(&l, x);
    *n = l.n;
    char *small = realloc(l.p, l.n + AUDIT_HASH_TAIL + 2);      /* its end: the hash, '\n', and the zero behind it */
    return small ? small : l.p;
}

/* Into memory, where the newest are; takes the line. */
static void keep(struct audit *a, char *line, size_t n)
{
    line[n] = '\0';
    pthread_mutex_lock(&a->mutex);
    char **place = &a->recent[a->n_recent++ % AUDIT_RECENT], *old = *place;
    *place = line;
    a->stats.entries++;
    pthread_mutex_unlock(&a->mutex);
    free(old);
}

void audit_write(struct audit *a, char *line, size_t n)
{
    struct err e;
    pthread_mutex_lock(&a->writing);
    const int rc = add_line(a, line, n, &e);
    if (rc)
        a->end = UINT64_MAX;                /* whatever is in the file now, look again */
    else
        keep(a, line, n + AUDIT_HASH_TAIL);
    pthread_mutex_unlock(&a->writing);
    if (rc) {
        audit_lost(a, &e);
        free(line);
    }
}

void audit_add(struct audit *a, const struct audit_entry *x)
{
    struct err e;
    size_t n;
    char *line = audit_line(x, &n);
    if (line) {
        audit_write(a, line, n);
        return;
    }
    err_nomem(&e, "a line of the log");
    audit_lost(a, &e);
}

/* ---- what happens to rotated files, in a thread of its own ---- */

static int is_stopping(struct audit *a)
{
    pthread_mutex_lock(&a->mutex);
    const int stopping = a->stopping;
    pthread_mutex_unlock(&a->mutex);
    return stopping;
}

/* The lock, for the packer, who can do without: a program that stands still with it holds up nobody's end.  -1: *e. */
static int wait_lock(struct audit *a, struct err *e)
{
    int lock, looks = 0;
    while ((lock = audit_try_lock(a->folder, e)) == -2) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&a->mutex);
        pthread_cond_timedwait(&a->wake, &a->mutex, &until);
        looks = a->stopping ? looks + 1 : 0;
        pthread_mutex_unlock(&a->mutex);
        if (looks > LAST_LOOKS)
            return -1;
    }
    return lock;
}

/* The compressed file takes the place of path, unless path was cleared away meanwhile. */
static int replace(struct audit *a, const char *path, const char *temp, const char *gz, struct err *e)
{
    int lock = wait_lock(a, e), rc = 0;
    if (lock < 0)
        return -1;
    if (access(path, F_OK))
        unlink(temp);
    else if (rename(temp, gz))
        rc = err_sys(e, "%s", temp);
    else if (unlink(path))
        rc = err_sys(e, "%s", path);
    close(lock);
    return rc;
}

/* X.jsonl to X.jsonl.gz: under a name that nobody takes for a log until it is whole. Somebody else may be at it: then not. */
static int pack(struct audit *a, const char *path, struct err *e)
{
    char gz[4224], temp[4232];
    struct stat st;
    snprintf(gz, sizeof gz, "%s.gz", path);
    snprintf(temp, sizeof temp, "%s.gz.tmp", path);
    int in = open(path, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return errno == ENOENT ? 0 : err_sys(e, "%s", path);
    if (flock(in, LOCK_EX | LOCK_NB) || fstat(in, &st) || st.st_nlink == 0) {
        close(in);
        return 0;
    }
    fdatasync(in);                          /* here, not where a request would wait for the disk */
    char *buffer = malloc(1 << 16);
    int out = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600), rc = -1;
    gzFile z = out >= 0 ? gzdopen(dup(out), "w6") : NULL;
    ssize_t n = 0;
    int good = buffer && z;
    while (good && (n = read(in, buffer, 1 << 16)) > 0)
        good = gzwrite(z, buffer, (unsigned)n) == n;
    if (z && gzclose(z) != Z_OK)
        good = 0;
    const struct timespec times[2] = { st.st_atim, st.st_mtim };
    if (!good || n < 0 || futimens(out, times) || fsync(out))
        err_sys(e, "%s", temp);
    else
        rc = replace(a, path, temp, gz, e);
    if (rc)
        unlink(temp);
    free(buffer);
    if (out >= 0)
        close(out);
    close(in);
    return rc;
}

static int pack_all(struct audit *a, struct err *e)
{
    struct audit_files f;
    const int keep = a->keep;
    int rc = 0, lock;
    if (audit_files_list(&f, a->folder, e))
        return -1;
    int n = f.n;
    if (n && strcmp(strrchr(f.file[n - 1].path, '/') + 1, AUDIT_FILE) == 0)
        n--;
    /* a reader holds the lock while it opens its files: none disappears in between */
    if (n > keep && (lock = wait_lock(a, e)) >= 0) {
        for (int i = 0; i < n - keep; i++)
            unlink(f.file[i].path);
        close(lock);
    }
    for (int i = n > keep ? n - keep : 0; i < n && !(rc && is_stopping(a)); i++)
        if (!f.file[i].gz && pack(a, f.file[i].path, e))
            rc = -1;
    audit_files_release(&f);
    return rc;
}

static void *packer(void *user)
{
    struct audit *a = user;
    pthread_mutex_lock(&a->mutex);
    for (;;) {
        while (!a->work && !a->stopping)
            pthread_cond_wait(&a->wake, &a->mutex);
        if (!a->work)
            break;
        a->work = 0;
        pthread_mutex_unlock(&a->mutex);
        struct err e;
        if (pack_all(a, &e) && !is_stopping(a))         /* the next one who opens the log goes on with it */
            audit_lost(a, &e);
        pthread_mutex_lock(&a->mutex);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

/* ---- open and close ---- */

struct audit *audit_open(const struct audit_options *o, struct err *e)
{
    struct audit *a = calloc(1, sizeof *a);
    if (!a)
        return err_nomem(e, "the audit log"), NULL;
    a->fd = -1;
    a->max_bytes = o->max_bytes ? o->max_bytes : AUDIT_MAX_BYTES;
    a->keep = o->keep ? o->keep : AUDIT_KEEP;
    pthread_mutex_init(&a->writing, NULL);
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->wake, NULL);
    if (!(a->sha = sha256_open(e)))
        goto fail;
    if (!(a->known = calloc(1, sizeof *a->known))) {
        err_nomem(e, "the audit log");
        goto fail;
    }
    if (!(a->folder = strdup(o->folder)) || asprintf(&a->path, "%s/" AUDIT_FILE, o->folder) < 0) {
        a->path = NULL;
        err_nomem(e, "the audit log");
        goto fail;
    }
    if (mkdir(o->folder, 0700) && errno != EEXIST) {
        struct err why;
        err_sys(&why, "%s", o->folder);
        audit_lost(a, &why);
    }
    a->work = 1;                            /* what a crash left uncompressed */
    if (thread_start(&a->packer, packer, a)) {
        err_set(e, ERR_MEMORY, "a thread for the audit log: none to be had");
        goto fail;
    }
    a->packing = 1;
    return a;
fail:
    audit_close(a);
    return NULL;
}

void audit_close(struct audit *a)
{
    if (!a)
        return;
    if (a->packing) {
        pthread_mutex_lock(&a->mutex);
        a->stopping = 1;
        pthread_cond_signal(&a->wake);
        pthread_mutex_unlock(&a->mutex);
        pthread_join(a->packer, NULL);
    }
    if (a->fd >= 0) {
        fdatasync(a->fd);
        close(a->fd);
    }
    for (int i = 0; i < AUDIT_RECENT; i++)
        free(a->recent[i]);
    pthread_cond_destroy(&a->wake);
    pthread_mutex_destroy(&a->mutex);
    pthread_mutex_destroy(&a->writing);
    sha256_close(a->sha);
    free(a->known);
    free(a->folder);
    free(a->path);
    free(a);
}

void audit_stats(struct audit *a, struct audit_stats *s)
{
    pthread_mutex_lock(&a->mutex);
    *s = a->stats;
    s->recent = a->n_recent < AUDIT_RECENT ? (int)a->n_recent : AUDIT_RECENT;
    pthread_mutex_unlock(&a->mutex);
}

int audit_recent(struct audit *a, int i, char **line)
{
    *line = NULL;
    pthread_mutex_lock(&a->mutex);
    if (i < AUDIT_RECENT && (uint64_t)i < a->n_recent && a->recent[(a->n_recent - 1 - (uint64_t)i) % AUDIT_RECENT])
        *line = strdup(a->recent[(a->n_recent - 1 - (uint64_t)i) % AUDIT_RECENT]);
    pthread_mutex_unlock(&a->mutex);
    return *line != NULL;
}

/* ---- clear ---- */

/* Lines from *at on; *at moves to the end. */
static int count_lines(int fd, off_t *at, uint64_t *n, const char *path, struct err *e)
{
    char *buffer = malloc(1 << 16);
    ssize_t got = -1;
    if (!buffer)
        return err_nomem(e, "the audit log");
    for (; (got = pread(fd, buffer, 1 << 16, *at)) > 0; *at += got)
        for (char *p = buffer; (p = memchr(p, '\n', (size_t)(buffer + got - p))); p++)
            ++*n;
    free(buffer);
    return got < 0 ? err_sys(e, "%s", path) : 0;
}

/* The current file and its lines, counted before the lock holds up those who write: under it only what came meanwhile is left. */
struct counted { int fd; struct stat st; off_t at; uint64_t lines; };

static int count_ahead(struct counted *c, const char *path, struct err *e)
{
    *c = (struct counted){ .fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) };
    if (c->fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, "%s", path);
    return fstat(c->fd, &c->st) ? err_sys(e, "%s", path) : count_lines(c->fd, &c->at, &c->lines, path, e);
}

/* The lines of the file that is the current one now. */
static int count_rest(const struct counted *c, int fd, uint64_t *lines, const char *path, struct err *e)
{
    struct stat st;
    off_t at = 0;
    *lines = 0;
    if (fstat(fd, &st))
        return err_sys(e, "%s", path);
    if (c->fd >= 0 && st.st_ino == c->st.st_ino && st.st_dev == c->st.st_dev) {
        at = c->at;
        *lines = c->lines;
    }
    return count_lines(fd, &at, lines, path, e);
}

int audit_clear(const char *folder, int all, uint64_t *dropped, struct err *e)
{
    char path[4096], hash[SHA256_HEX + 1], after[SHA256_HEX + 1];
    struct sha256 *sha = NULL;
    uint64_t end = 0;
    int rc = -1, lock = -1, fd = -1;
    *dropped = 0;
    if (snprintf(path, sizeof path, "%s/" AUDIT_FILE, folder) >= (int)sizeof path)
        return err_set(e, ERR_IO, "%s: the path is too long", folder);
    if (access(folder, F_OK) && errno == ENOENT)
        return 0;                           /* nothing was ever logged here */
    struct counted counted;
    if (count_ahead(&counted, path, e) || (lock = audit_lock(folder, 1, e)) < 0 || !(sha = sha256_open(e)))
        goto done;
    if ((fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW)) < 0 && errno != ENOENT) {
        err_sys(e, "%s", path);
        goto done;
    }
    if (fd >= 0 && (audit_tail(fd, path, hash, &end, e) || count_rest(&counted, fd, dropped, path, e)))
        goto done;
    if (last_hash(folder, NULL, after, e))
        goto done;
    if (end == 0)
        strcpy(hash, after);
    if (all && audit_files_remove(folder, e))
        goto done;
    /* another file under the same name: writers see that theirs is gone and open this one */
    if (fd >= 0) {
        close(fd);
        if (unlink(path)) {
            err_sys(e, "%s", path);
            fd = -1;
            goto done;
        }
    }
    rc = begin_file(path, &fd, sha, hash, after, &end, e);
done:
    if (fd >= 0)
        close(fd);
    if (lock >= 0)
        close(lock);
    if (counted.fd >= 0)
        close(counted.fd);
    sha256_close(sha);
    return rc;
}

/* audit.c - write one chain of the audit log, and compress its rotated files in a thread. */
#include "libcommon/access/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <zlib.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_writer.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/thread.h"

/* interval at which the compressor tries to take the lock, and its last tries while the log is
 * being closed */
enum { LOOK_MS = 20, LAST_LOOKS = 50 };

struct audit {
    pthread_mutex_t writing; /* protects w; held while waiting for the lock of the folder and for the disk */
    struct audit_writer w;
    pthread_mutex_t mutex;                  /* protects everything below; held only briefly */
    char *recent[AUDIT_RECENT]; uint64_t n_recent;      /* ring; the newest is n_recent - 1 */
    struct audit_stats stats;
    pthread_t compressor; int compressing, stopping, work;      /* the thread that compresses */
    int announced;  /* the chain has a line with the retention, so files beyond it may be removed */
    pthread_cond_t wake;
};

void audit_lost(struct audit *a, const struct err *why)
{
    pthread_mutex_lock(&a->mutex);
    a->stats.errors++;
    snprintf(a->stats.last_error, sizeof a->stats.last_error, "%s", why->msg);
    a->stats.last_error_ns = clock_ns();
    pthread_mutex_unlock(&a->mutex);
}

/* After an attempt to write: keep the line in the ring of recent lines, and wake the compressor if
 * a file was rotated.  line NULL: there is none.  good: the attempt succeeded. */
static void written(struct audit *a, char *line, int good)
{
    char *old = NULL;
    pthread_mutex_lock(&a->mutex);
    if (line) {
        char **place = &a->recent[a->n_recent++ % AUDIT_RECENT];
        old = *place;
        *place = line;
        a->stats.entries++;
    }
    if (a->stats.rotations != a->w.n_rotations || (good && !a->announced)) {
        a->stats.rotations = a->w.n_rotations;
        a->announced |= good;
        a->work = 1;
        pthread_cond_signal(&a->wake);
    }
    pthread_mutex_unlock(&a->mutex);
    free(old);
}

void audit_begin(struct audit *a)
{
    struct err e;
    pthread_mutex_lock(&a->writing);
    const int rc = audit_writer_begin(&a->w, &e);
    written(a, NULL, rc == 0);
    pthread_mutex_unlock(&a->writing);
}

void audit_write(struct audit *a, char *line, size_t n)
{
    struct err e;
    const size_t unchained = n;
    pthread_mutex_lock(&a->writing);
    const int rc = audit_writer_add(&a->w, line, &n, &e);
    written(a, rc == 0 ? line : NULL, rc == 0);
    pthread_mutex_unlock(&a->writing);
    if (rc) {
        audit_lost(a, &e);
        line[unchained] = '}';
        /* other servers get the line without its number and hash */
        audit_remotes_add(&a->w.remotes, a->w.chain, line, unchained + 1);
        free(line);
    }
}

void audit_sign_head(struct audit *a)
{
    struct err e;
    pthread_mutex_lock(&a->writing);
    const int rc = audit_writer_sign(&a->w, &e);
    written(a, NULL, 0);
    pthread_mutex_unlock(&a->writing);
    if (rc)
        audit_lost(a, &e);
}

/* ---- the compressor: a thread that compresses and removes rotated files ---- */

static int is_stopping(struct audit *a)
{
    pthread_mutex_lock(&a->mutex);
    const int stopping = a->stopping;
    pthread_mutex_unlock(&a->mutex);
    return stopping;
}

/* Take the lock for the compressor.  Waiting ends when the log is closed, so that a stopped program
 * that holds the lock does not delay closing.  -1: *e. */
static int wait_lock(struct audit *a, struct err *e)
{
    int lock, looks = 0;
    while ((lock = audit_try_lock(a->w.folder, e)) == -2) {
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

/* Rename the compressed file over path, unless path was removed by audit_clear() meanwhile. */
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

/* Compress X.jsonl to X.jsonl.gz, under a temporary name that is not that of a log file.  Does
 * nothing if another process is compressing it. */
static int compress_file(struct audit *a, const char *path, struct err *e)
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
    fdatasync(in);                          /* write it to the disk here, so that no request waits */
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

static int compress_all(struct audit *a, struct err *e)
{
    struct audit_files f;
    int rc = 0, lock;
    pthread_mutex_lock(&a->mutex);
    const int keep = a->announced ? a->w.keep : INT_MAX;
    pthread_mutex_unlock(&a->mutex);
    if (audit_files_list(&f, a->w.folder, a->w.chain, e))
        return -1;
    int n = f.n;
    if (n && f.file[n - 1].current)
        n--;
    /* Readers hold the lock while they open their files, so none disappears in between. */
    if (n > keep && (lock = wait_lock(a, e)) >= 0) {
        for (int i = 0; i < n - keep; i++)
            unlink(f.file[i].path);
        close(lock);
    }
    for (int i = n > keep ? n - keep : 0; i < n && !(rc && is_stopping(a)); i++)
        if (!f.file[i].gz && compress_file(a, f.file[i].path, e))
            rc = -1;
    audit_files_release(&f);
    return rc;
}

static void *compressor(void *user)
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
        if (compress_all(a, &e) && !is_stopping(a))         /* when stopping, the next process continues */
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
    pthread_mutex_init(&a->writing, NULL);
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->wake, NULL);
    if (audit_writer_open(&a->w, o, e))
        goto fail;
    if (mkdir(o->folder, 0700) && errno != EEXIST) {
        struct err why;
        err_sys(&why, "%s", o->folder);
        audit_lost(a, &why);
    }
    a->work = 1;                            /* compress the files that a crash left uncompressed */
    if (thread_start(&a->compressor, compressor, a)) {
        err_set(e, ERR_MEMORY, "no thread available for the audit log");
        goto fail;
    }
    a->compressing = 1;
    return a;
fail:
    audit_close(a);
    return NULL;
}

void audit_close(struct audit *a)
{
    if (!a)
        return;
    if (a->compressing) {
        pthread_mutex_lock(&a->mutex);
        a->stopping = 1;
        pthread_cond_signal(&a->wake);
        pthread_mutex_unlock(&a->mutex);
        pthread_join(a->compressor, NULL);
    }
    audit_writer_close(&a->w);
    for (int i = 0; i < AUDIT_RECENT; i++)
        free(a->recent[i]);
    pthread_cond_destroy(&a->wake);
    pthread_mutex_destroy(&a->mutex);
    pthread_mutex_destroy(&a->writing);
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

/* disk.c - the prefix folder: the engine's thread reads files; a separate thread writes and evicts
 * them. */
#include "libcommon/cache/disk.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/siphash.h"
#include "libcommon/base/thread.h"

enum { QUEUE_BYTES = 64 << 20, HEX = 32, NAME_ROOM = HEX + 8, TEMP_ROOM = 64 };

/* `sum` checks all other fields, and data_sum the data that follows. */
struct disk_head {
    char magic[8];
    uint32_t order, kind, n_tokens, has;        /* order: byte order of the machine that wrote it */
    uint64_t n_bytes;                           /* size of the data: blocks, state */
    struct disk_key model;
    /* run or tail: the key of the run before it; state: its own key */
    struct disk_key key;
    int32_t ids[DISK_RUN];
    uint64_t data_sum, sum;
};
_Static_assert(sizeof(struct disk_head) == 336, "no padding, whose bytes no checksum could foresee");
static const char MAGIC[8] = "ZSEPFX1";
/* Bits of disk_head.has; LACKS: the first of one bit for each block of a run. */
enum { ORDER = 0x01020304, HAS_STATE = 1, HAS_WINDOWS = 2, LACKS = 1 << 8, LACKS_ALL = LACKS * 15 };
_Static_assert(DISK_RUN / KV_BLOCK == 4, "LACKS_ALL has a bit for each block");
static const char *const endings[] = { [DISK_IS_RUN] = ".run", [DISK_IS_TAIL] = ".tail", [DISK_IS_STATE] = ".state" };

struct disk_write {
    struct disk_write *next;
    char name[NAME_ROOM];
    /* size: of the whole file */
    size_t size, state_at, block_bytes, windows_at, window_bytes;
    struct disk_head head;
    uint8_t data[];
};

struct disk {
    struct disk_options o;
    char *folder;                               /* owned */
    int fd, writes;                             /* writes 0: read-only */
    uint64_t secret[2][2];                      /* keys of the hashes, read from the folder */
    struct disk_key model;
    uint8_t *buffer; size_t room;               /* contents of the file that was read last */
    uint64_t read, damaged;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct disk_write *queue, **last;           /* used under the lock, as are the fields below up to `ending` */
    size_t queued;
    int started, ending;
    _Atomic uint64_t written, failed;
    /* used by the thread only */
    uint64_t total, serial;                     /* total: bytes in the folder, as far as known */
    uint64_t unlisted;                          /* bytes written since the folder was listed */
    int failing;
};

/* ---- names and keys ---- */

static void hash(const struct disk *d, const void *data, size_t n, struct disk_key *out)
{
    for (int i = 0; i < 2; i++)
        out->h[i] = siphash(d->secret[i], data, n);
}

void disk_first(const struct disk *d, uint64_t scope, int variant, struct disk_key *k)
{
    const struct { struct disk_key model; uint64_t scope, variant; } first = { d->model, scope, (uint64_t)variant };
    hash(d, &first, sizeof first, k);
}

void disk_next(const struct disk *d, struct disk_key *k, const int32_t ids[DISK_RUN])
{
    struct { struct disk_key key; int32_t ids[DISK_RUN]; } next = { .key = *k };
    memcpy(next.ids, ids, sizeof next.ids);
    hash(d, &next, sizeof next, k);
}

static void name_of(const struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids,
                    char name[NAME_ROOM])
{
    struct disk_key own = *k;
    if (kind == DISK_IS_RUN)
        disk_next(d, &own, ids);
    snprintf(name, NAME_ROOM, "%016llx%016llx%s", (unsigned long long)own.h[0], (unsigned long long)own.h[1],
             endings[kind]);
}

int disk_has(const struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids)
{
    char name[NAME_ROOM];
    name_of(d, kind, k, ids, name);
    return faccessat(d->fd, name, F_OK, 0) == 0;
}

/* ---- reading ---- */

static size_t n_blocks(enum disk_kind kind, int n_tokens)
{
    return kind == DISK_IS_STATE ? 0 : (size_t)((n_tokens + KV_BLOCK - 1) / KV_BLOCK);
}

/* Size of blocks and window blocks. */
static size_t blocks_bytes(const struct disk *d, enum disk_kind kind, int n_tokens, uint32_t has)
{
    return n_blocks(kind, n_tokens) * (d->o.block_bytes + (has & HAS_WINDOWS ? d->o.window_bytes : 0));
}

static uint64_t sum_of(const struct disk *d, const struct disk_head *h)
{
    return siphash(d->secret[1], h, offsetof(struct disk_head, sum));
}

/* Whether the buffer holds a valid file of `size` bytes with this identity; its data follows the
 * head. */
static int is_good(const struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids, size_t size)
{
    struct disk_head h;
    if (size < sizeof h)
        return 0;
    memcpy(&h, d->buffer, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC) != 0 || h.order != ORDER || h.kind != kind || h.n_bytes != size -
        sizeof h || memcmp(&h.model, &d->model, sizeof h.model) != 0 || memcmp(&h.key, k, sizeof *k) != 0)
        return 0;
    const size_t state = h.has & HAS_STATE ? d->o.state_bytes : 0;
    if ((h.has & HAS_WINDOWS && (!d->o.window_bytes || kind == DISK_IS_STATE)) ||
        (kind == DISK_IS_TAIL && d->o.window_bytes && !(h.has & HAS_WINDOWS)) ||
        (kind != DISK_IS_RUN && h.has & LACKS_ALL))
        return 0;
    if (h.n_tokens > DISK_RUN || (kind == DISK_IS_RUN && (h.n_tokens != DISK_RUN ||
        memcmp(h.ids, ids, sizeof h.ids) != 0)) || (kind == DISK_IS_TAIL && (h.n_tokens == 0 || h.n_tokens ==
        DISK_RUN)) || (kind == DISK_IS_STATE && !state) ||
        h.n_bytes != blocks_bytes(d, kind, (int)h.n_tokens, h.has) + state)
        return 0;
    return sum_of(d, &h) == h.sum && siphash(d->secret[0], d->buffer + sizeof h, size - sizeof h) == h.data_sum;
}

/* Read a whole file into the buffer.  Returns its size, or -1 if it is not a prefix file or cannot
 * be read. */
static int64_t read_whole(struct disk *d, int fd)
{
    struct stat st;
    const uint64_t most = sizeof(struct disk_head) + DISK_RUN / KV_BLOCK * (d->o.block_bytes + d->o.window_bytes) +
                          d->o.state_bytes;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return -1;
    if ((uint64_t)st.st_size > most)
        return 0;
    if ((size_t)st.st_size > d->room) {
        uint8_t *p = realloc(d->buffer, (size_t)st.st_size);
        if (!p)
            return -1;
        d->buffer = p;
        d->room = (size_t)st.st_size;
    }
    int64_t at = 0;
    while (at < st.st_size) {
        const ssize_t n = pread(fd, d->buffer + at, (size_t)(st.st_size - at), at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        at += n;
    }
    return at;
}

int disk_read(struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids, struct disk_data *data)
{
    char name[NAME_ROOM];
    struct disk_head h;
    name_of(d, kind, k, ids, name);
    const int fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return 0;
    const int64_t size = read_whole(d, fd);
    const int good = size >= 0 && is_good(d, kind, k, ids, (size_t)size);
    if (good)
        futimens(fd, NULL);             /* mark as just used, so that it is evicted last */
    close(fd);
    if (size >= 0 && !good) {
        d->damaged++;
        unlinkat(d->fd, name, 0);
    }
    if (!good)
        return 0;
    d->read++;
    memcpy(&h, d->buffer, sizeof h);
    data->n_tokens = (int)h.n_tokens;
    memcpy(data->ids, h.ids, sizeof h.ids);
    data->blocks = d->buffer + sizeof h;
    data->lacks = (h.has & LACKS_ALL) / LACKS;
    data->windows = h.has & HAS_WINDOWS ? data->blocks + blocks_bytes(d, kind, data->n_tokens, 0) : NULL;
    data->state = h.has & HAS_STATE ? data->blocks + blocks_bytes(d, kind, data->n_tokens, h.has) : NULL;
    return 1;
}

/* ---- eviction ---- */

struct file { int64_t used_s; uint64_t size; char name[NAME_ROOM]; };

static int by_use(const void *a, const void *b)
{
    const struct file *x = a, *y = b;
    return x->used_s != y->used_s ? (x->used_s > y->used_s) - (x->used_s < y->used_s) : strcmp(x->name, y->name);
}

static int is_ours(const char *name)
{
    const size_t n = strspn(name, "0123456789abcdef");
    for (size_t i = 0; i < sizeof endings / sizeof *endings && n == HEX; i++)
        if (strcmp(name + n, endings[i]) == 0)
            return 1;
    return 0;
}

/* Remove a temporary file whose writer has died; a running writer holds a lock on its file. */
static void remove_left(const struct disk *d, const char *name)
{
    const int fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(d->fd, name, 0);
    if (fd >= 0)
        close(fd);
}

/* List the files and count their bytes.  NULL: no files, or out of memory. */
static struct file *list_files(struct disk *d, size_t *n)
{
    struct file *f = NULL;
    size_t room = 0;
    struct stat st;
    const int64_t now = (int64_t)time(NULL);
    DIR *dir = opendir(d->folder);
    *n = 0;
    d->total = d->unlisted = 0;
    for (const struct dirent *x; dir && (x = readdir(dir));) {
        if (strncmp(x->d_name, ".zse-", 5) == 0)
            remove_left(d, x->d_name);
        if (!is_ours(x->d_name) || fstatat(d->fd, x->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        d->total += (uint64_t)st.st_size;
        if (*n == room) {
            struct file *p = realloc(f, (room = 2 * room + 256) * sizeof *p);
            if (!p)
                break;
            f = p;
        }
        /* a time in the future counts as now: the clock was set back */
        f[*n] = (struct file){ .used_s = st.st_mtim.tv_sec < now ? st.st_mtim.tv_sec : now,
                               .size = (uint64_t)st.st_size };
        memcpy(f[*n].name, x->d_name, strlen(x->d_name) + 1);   /* is_ours: it fits */
        ++*n;
    }
    if (dir)
        closedir(dir);
    return f;
}

/* If `more` bytes do not fit, remove the least recently used files until they fit into 90 % of
 * max_bytes.  Other processes write to the folder too, so this process also lists it again after
 * writing max_bytes / SHARE bytes. */
static void evict(struct disk *d, uint64_t more)
{
    enum { SHARE = 20 };
    size_t n;
    if (d->total + more <= d->o.max_bytes && d->unlisted <= d->o.max_bytes / SHARE)
        return;
    struct file *f = list_files(d, &n);
    const uint64_t wanted = d->o.max_bytes / 10 * 9;
    if (f && d->total + more > d->o.max_bytes) {
        qsort(f, n, sizeof *f, by_use);
        for (size_t i = 0; i < n && d->total + more > wanted; i++)
            if (unlinkat(d->fd, f[i].name, 0) == 0 || errno == ENOENT)
                d->total -= f[i].size;
    }
    free(f);
}

/* ---- writing ---- */

static int write_all(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        const ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return -1;
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

/* Make a temporary file, locked.  An earlier process with the same id may have left files of that
 * name. */
static int open_temp(struct disk *d, char temp[TEMP_ROOM])
{
    int fd = -1;
    for (int tries = 0; fd < 0 && tries < 1000 && (tries == 0 || errno == EEXIST); tries++) {
        snprintf(temp, TEMP_ROOM, ".zse-%ld-%llu-%llx", (long)getpid(), (unsigned long long)++d->serial,
                 (unsigned long long)(uintptr_t)d);
        fd = openat(d->fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    if (fd >= 0)
        flock(fd, LOCK_EX | LOCK_NB);
    return fd;
}

static int write_file(struct disk *d, struct disk_write *w)
{
    char temp[TEMP_ROOM];
    w->head.data_sum = siphash(d->secret[0], w->data, (size_t)w->head.n_bytes);
    w->head.sum = sum_of(d, &w->head);
    const int fd = open_temp(d, temp);
    if (fd < 0)
        return -1;
    int rc = write_all(fd, &w->head, sizeof w->head) != 0 ||
             write_all(fd, w->data, (size_t)w->head.n_bytes) != 0 || renameat(d->fd, temp, d->fd, w->name) != 0
                 ? -1 : 0;
    const int why = errno;
    if (rc != 0)
        unlinkat(d->fd, temp, 0);
    close(fd);
    errno = why;
    return rc;
}

static void write_one(struct disk *d, struct disk_write *w)
{
    char text[256];
    evict(d, w->size);
    if (w->size <= d->o.max_bytes && write_file(d, w) == 0) {
        d->total += w->size;
        d->unlisted += w->size;
        d->written++;
        d->failing = 0;
        return;
    }
    d->failed++;
    if (!d->failing && d->o.note) {
        snprintf(text, sizeof text, "%.150s: %s: prefixes are not kept", d->folder,
                 w->size > d->o.max_bytes ? "it may hold less than one run of tokens" : strerror(errno));
        d->o.note(d->o.user, text);
    }
    d->failing = 1;
}

static void *write_queued(void *arg)
{
    struct disk *d = arg;
    size_t n;
    free(list_files(d, &n));
    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct disk_write *w = d->queue;
        if (!w && d->ending)
            break;
        if (!w) {
            pthread_cond_wait(&d->work, &d->lock);
            continue;
        }
        pthread_mutex_unlock(&d->lock);
        write_one(d, w);
        pthread_mutex_lock(&d->lock);
        if (!(d->queue = w->next))
            d->last = &d->queue;
        d->queued -= w->size;
        free(w);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

struct disk_write *disk_begin(struct disk *d, enum disk_kind kind, const struct disk_key *k, const int32_t *ids,
                              int n_tokens)
{
    const uint32_t has = (kind != DISK_IS_RUN && d->o.state_bytes ? HAS_STATE : 0) |
                         (kind != DISK_IS_STATE && d->o.window_bytes ? HAS_WINDOWS : 0);
    const size_t blocks = blocks_bytes(d, kind, n_tokens, has), state = has & HAS_STATE ? d->o.state_bytes : 0,
                 size = sizeof(struct disk_head) + blocks + state;
    assert(n_tokens >= 0 && n_tokens <= DISK_RUN && (kind != DISK_IS_RUN || n_tokens == DISK_RUN));
    if (!d->writes)
        return NULL;
    pthread_mutex_lock(&d->lock);
    const int full = d->queue && size > QUEUE_BYTES - (d->queued < QUEUE_BYTES ? d->queued : QUEUE_BYTES);
    pthread_mutex_unlock(&d->lock);
    struct disk_write *w = full ? NULL : malloc(sizeof *w + blocks + state);
    if (!w)
        return NULL;
    *w = (struct disk_write){ .size = size, .state_at = blocks, .block_bytes = d->o.block_bytes,
                              .windows_at = blocks_bytes(d, kind, n_tokens, 0), .window_bytes = d->o.window_bytes,
                              .head = { .order = ORDER, .kind = kind, .n_tokens = (uint32_t)n_tokens,
                                        .has = has, .n_bytes = blocks + state, .key = *k } };
    memcpy(w->head.magic, MAGIC, sizeof MAGIC);
    w->head.model = d->model;
    if (n_tokens)
        memcpy(w->head.ids, ids, (size_t)n_tokens * sizeof *ids);
    name_of(d, kind, k, ids, w->name);
    return w;
}

uint8_t *disk_block(struct disk_write *w, int i) { return w->data + (size_t)i * w->block_bytes; }
uint8_t *disk_window(struct disk_write *w, int i) { return w->data + w->windows_at + (size_t)i * w->window_bytes; }

void disk_no_window(struct disk_write *w, int i)
{
    assert(w->head.kind == DISK_IS_RUN);
    memset(disk_window(w, i), 0, w->window_bytes);
    w->head.has |= (uint32_t)LACKS << i;
    if ((w->head.has & LACKS_ALL) != LACKS_ALL)
        return;
    w->size -= (size_t)w->head.n_bytes - w->windows_at;
    w->head.n_bytes = w->windows_at;
    w->head.has &= ~(uint32_t)HAS_WINDOWS;
}

uint8_t *disk_state(struct disk_write *w) { return w->data + w->state_at; }
void disk_drop(struct disk_write *w) { free(w); }

void disk_commit(struct disk *d, struct disk_write *w)
{
    pthread_mutex_lock(&d->lock);
    *d->last = w;
    d->last = &w->next;
    d->queued += w->size;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

void disk_stats(struct disk *d, struct disk_stats *s)
{
    pthread_mutex_lock(&d->lock);
    *s = (struct disk_stats){ .read = d->read, .written = d->written, .damaged = d->damaged, .failed = d->failed,
                              .bytes = sizeof *d + d->room + d->queued };
    pthread_mutex_unlock(&d->lock);
}

/* ---- opening ---- */

static int open_folder(struct disk *d, struct err *e)
{
    struct stat st;
    if (mkdir(d->folder, 0700) != 0 && errno != EEXIST)
        return err_sys(e, "%s", d->folder);
    if ((d->fd = open(d->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 || fstat(d->fd, &st) != 0)
        return err_sys(e, "%s", d->folder);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return err_set(e, ERR_IO, "%s: belongs to user %u, expected this user's: its contents are trusted", d->folder,
                       (unsigned)st.st_uid);
    if (st.st_mode & 022)
        return err_set(e, ERR_IO, "%s: mode %03o, expected 700: others could change its contents", d->folder,
                       (unsigned)st.st_mode & 0777);
    /* no error: if the folder cannot be written to, its files are only read */
    d->writes = faccessat(d->fd, ".", W_OK | X_OK, AT_EACCESS) == 0;
    return 0;
}

/* Read the hash keys of the folder, or create them.  If two processes create them at the same time,
 * the first one's keys are used. */
static int find_secret(struct disk *d, struct err *e)
{
    for (int tries = 0; tries < 3; tries++) {
        const int fd = openat(d->fd, "secret", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        const ssize_t n = fd >= 0 ? pread(fd, d->secret, sizeof d->secret, 0) : -1;
        if (fd >= 0)
            close(fd);
        if (n == sizeof d->secret)
            return 0;
        if (getrandom(d->secret, sizeof d->secret, 0) != sizeof d->secret)
            return err_sys(e, "%s: a random number", d->folder);
        if (!d->writes)
            return 0;
        /* the file of the secret is too short: make another one; files written so far can no longer
         * be found */
        if (n >= 0)
            unlinkat(d->fd, "secret", 0);
        char temp[TEMP_ROOM];
        const int made = open_temp(d, temp);
        const int failed = made < 0 || write_all(made, d->secret, sizeof d->secret) != 0 ||
                           (linkat(d->fd, temp, d->fd, "secret", 0) != 0 && errno != EEXIST);
        if (failed)
            err_sys(e, "%s/secret", d->folder);
        if (made >= 0) {
            unlinkat(d->fd, temp, 0);
            close(made);
        }
        if (failed)
            return -1;
    }
    return err_set(e, ERR_IO, "%s/secret: it is removed while it is made", d->folder);
}

struct disk *disk_open(const struct disk_options *o, struct err *e)
{
    struct disk *d = calloc(1, sizeof *d);
    if (!d) {
        err_nomem(e, "prefixes on disk");
        return NULL;
    }
    d->o = *o;
    d->fd = -1;
    d->last = &d->queue;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    if (!(d->folder = strdup(o->folder))) {
        err_nomem(e, "prefixes on disk");
        goto fail;
    }
    d->o.folder = d->folder;
    if (open_folder(d, e) != 0 || find_secret(d, e) != 0)
        goto fail;
    hash(d, o->model, o->n_model, &d->model);
    if (!d->writes && o->note)
        o->note(o->user, "the folder of prefixes cannot be written to: it is only read");
    if (d->writes && thread_start(&d->thread, write_queued, d) != 0) {
        err_set(e, ERR_MEMORY, "no thread to write prefixes");
        goto fail;
    }
    d->started = d->writes;
    return d;
fail:
    disk_close(d);
    return NULL;
}

void disk_close(struct disk *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->ending = 1;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    if (d->started)
        pthread_join(d->thread, NULL);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->work);
    if (d->fd >= 0)
        close(d->fd);
    free(d->folder);
    free(d->buffer);
    free(d);
}

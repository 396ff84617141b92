/* audit_writer.c - append lines to a chain of the audit log, rotate and clear its files. */
#include "libcommon/access/audit_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <zlib.h>

#include "libcommon/access/audit_line.h"
#include "libcommon/access/audit_post.h"
#include "libcommon/access/audit_sign.h"
#include "libcommon/access/audit_syslog.h"
#include "libcommon/base/file.h"

enum { OLD_LINE_ROOM = 65536 };             /* longest line of an older log */

void audit_remotes_add(const struct audit_remotes *r, enum audit_chain chain, const char *line, size_t n)
{
    if (r->syslog)
        audit_syslog_add(r->syslog, chain, line, n);
    if (r->post)
        audit_post_add(r->post, chain, line, n);
}

int audit_writer_open(struct audit_writer *w, const struct audit_options *o, struct err *e)
{
    *w = (struct audit_writer){ .chain = o->chain, .max_bytes = o->max_bytes ? o->max_bytes : AUDIT_MAX_BYTES,
                                .keep = o->keep ? o->keep : AUDIT_KEEP, .fd = -1,
                                .signer = o->signer, .remotes = o->remotes, .last = { .hash = AUDIT_ZEROS } };
    if (!(w->sha = sha256_open(e)))
        return -1;
    if (!(w->folder = strdup(o->folder)) || asprintf(&w->path, "%s/%s.jsonl", o->folder,
                                                     audit_chain_name(o->chain)) < 0) {
        w->path = NULL;
        return err_nomem(e, "the audit log");
    }
    return 0;
}

void audit_writer_close(struct audit_writer *w)
{
    if (w->fd >= 0) {
        fdatasync(w->fd);
        close(w->fd);
    }
    sha256_close(w->sha);
    free(w->folder);
    free(w->path);
}

/* ---- lines, under the lock of the folder ---- */

static void drop_file(struct audit_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

/* Complete one line of *n bytes and write it; *n becomes its whole length without '\n'.  A partial
 * write is undone. */
static int append(struct audit_writer *w, char *text, size_t *n, struct err *e)
{
    uint8_t digest[SHA256_SIZE];
    char hex[SHA256_HEX + 1];
    const uint64_t seq = w->last.seq + 1;
    *n += (size_t)sprintf(text + *n, AUDIT_SEQ_FIELD "%" PRIu64, seq);
    sha256_start(w->sha);
    sha256_add(w->sha, w->last.hash, SHA256_HEX);
    sha256_add(w->sha, text, *n);
    sha256_end(w->sha, digest);
    sha256_hex(digest, hex);
    *n += (size_t)sprintf(text + *n, AUDIT_HASH_FIELD "%s\"}\n", hex) - 1;
    ssize_t did;
    do
        did = write(w->fd, text, *n + 1);
    while (did < 0 && errno == EINTR);
    if (did != (ssize_t)*n + 1) {
        if (did < 0)
            return err_sys(e, "%s", w->path);
        if (ftruncate(w->fd, (off_t)w->end))
            return err_sys(e, "%s: half a line was written, and taking it back failed", w->path);
        return err_set(e, ERR_IO, "%s: only %zd of the %zu bytes of a line could be written", w->path, did, *n + 1);
    }
    text[*n] = '\0';
    w->end += *n + 1;
    w->last.seq = seq;
    memcpy(w->last.hash, hex, sizeof hex);
    w->n_unsigned++;
    audit_remotes_add(&w->remotes, w->chain, text, *n);
    /* Ignore a failure: with an outdated head no line is lost, and the next write corrects it. */
    struct err ignored;
    audit_head_write(w->folder, w->chain, &(struct audit_head){ w->last, w->keep }, &ignored);
    return 0;
}

/* A line about the chain itself.  prev: the line before it in the chain.  after: if lines are
 * missing, the line before it in the files, else NULL.  cleared: number of cleared lines, < 0: not
 * a clear. */
struct chain_event { const char *name; const struct audit_end *prev,
               *after; int64_t cleared; int all; const char *signature; };

static int append_event(struct audit_writer *w, const struct chain_event *x, struct err *e)
{
    char text[1024];
    struct audit_text_line l = { text, 0, sizeof text };
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    line_time(&l, (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    line_put(&l, ",\"event\":\"%s\"", x->name);
    if (x->prev)
        line_put(&l, ",\"prev\":\"%s\"", x->prev->hash);
    if (x->after)
        line_put(&l, ",\"after\":\"%s\"", x->after->hash);
    if (x->cleared >= 0)
        line_put(&l, ",\"cleared\":%" PRId64 ",\"cleared_all\":%s", x->cleared, x->all ? "true" : "false");
    if (x->signature)
        line_put(&l, ",\"key\":\"%s\",\"signature\":\"%s\"", audit_signer_id(w->signer), x->signature);
    line_put(&l, ",\"keep\":%d", w->keep);
    if (x->prev)
        w->last = *x->prev;
    return append(w, text, &l.n, e);
}

static int sign_end(struct audit_writer *w, struct err *e)
{
    char hex[AUDIT_SIGNATURE_HEX + 1];
    if (!w->signer || w->n_unsigned == 0)
        return 0;
    if (audit_sign(w->signer, w->chain, &w->last, hex, e) ||
        append_event(w, &(struct chain_event){ .name = "signature", .cleared = -1, .signature = hex }, e))
        return -1;
    w->n_unsigned = 0;
    return 0;
}

/* Begin a new current file. */
static int begin_file(struct audit_writer *w, const struct chain_event *x, struct err *e)
{
    drop_file(w);
    if ((w->fd = file_open_made(w->path, O_RDWR | O_APPEND)) < 0)
        return err_sys(e, "%s", w->path);
    const off_t at = lseek(w->fd, 0, SEEK_END);
    w->end = at > 0 ? (uint64_t)at : 0;
    if (append_event(w, x, e) == 0)
        return 0;
    drop_file(w);
    return -1;
}

/* ---- the end of the chain ---- */

static void know_end(struct audit_writer *w, const char *path, const struct audit_end *end)
{
    snprintf(w->known_path, sizeof w->known_path, "%s", path);
    w->known = *end;
}

static int knows_end(const struct audit_writer *w, const char *path)
{
    const size_t n = strlen(w->known_path);
    return n && strncmp(path, w->known_path, n) == 0 && (!path[n] || strcmp(path + n, ".gz") == 0);
}

/* Find the last line of a compressed file, in one pass. */
static int compressed_end(const char *path, struct audit_end *end, struct err *e)
{
    gzFile z = gzopen(path, "re");
    char *line = malloc(OLD_LINE_ROOM);
    const char *hex;
    uint64_t seq;
    const int rc = z && line ? 0 : err_sys(e, "%s", path);
    while (rc == 0 && gzgets(z, line, OLD_LINE_ROOM)) {
        const size_t n = strcspn(line, "\n");
        if (audit_line_end(line, n, &hex, &seq)) {
            memcpy(end->hash, hex, SHA256_HEX);
            end->seq = seq;
        }
    }
    free(line);
    if (z)
        gzclose(z);
    return rc;
}

/* Find the last line of the newest rotated file, when the current file is missing or empty. */
static int rotated_end(struct audit_writer *w, struct audit_end *end, struct err *e)
{
    struct audit_files f;
    *end = (struct audit_end){ .hash = AUDIT_ZEROS };
    if (audit_files_list(&f, w->folder, w->chain, e))
        return -1;
    int rc = 0, newest = f.n - 1;
    if (newest >= 0 && f.file[newest].current)
        newest--;
    const struct audit_file *last = newest >= 0 ? &f.file[newest] : NULL;
    if (last && knows_end(w, last->path)) {
        *end = w->known;
    } else if (last) {
        uint64_t at;
        const int fd = last->gz ? -1 : open(last->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (last->gz)
            rc = compressed_end(last->path, end, e);
        else
            rc = fd < 0 ? err_sys(e, "%s", last->path) : audit_tail(fd, last->path, end, &at, e);
        if (fd >= 0)
            close(fd);
        if (rc == 0)
            know_end(w, last->path, end);
    }
    audit_files_release(&f);
    return rc;
}

/* The last line known to have been written, by this process or according to the head. */
static struct audit_end furthest(const struct audit_writer *w, const struct audit_head *head, int has_head)
{
    return has_head && head->end.seq > w->last.seq ? head->end : w->last;
}

/* End a partial line of a crash at the end of the current file. */
static int end_half_line(struct audit_writer *w, struct stat *st, struct err *e)
{
    char last;
    if (st->st_size == 0 || pread(w->fd, &last, 1, st->st_size - 1) != 1 || last == '\n')
        return 0;
    if (write(w->fd, "\n", 1) != 1)
        return err_sys(e, "%s", w->path);
    st->st_size++;
    return 0;
}

/* Read the end of the current file, and record missing lines in the chain. */
static int look_again(struct audit_writer *w, struct stat *st, struct err *e)
{
    struct audit_head head;
    struct audit_end tail;
    uint64_t at = 0;
    if (w->fd >= 0 && (end_half_line(w, st, e) || audit_tail(w->fd, w->path, &tail, &at, e)))
        return -1;
    if (at == 0 && rotated_end(w, &tail, e))
        return -1;
    const int has_head = audit_head_read(w->folder, w->chain, &head);
    const struct audit_end known = furthest(w, &head, has_head);
    const int gone = known.seq > tail.seq || (known.seq && known.seq == tail.seq && strcmp(known.hash, tail.hash) != 0);
    const struct chain_event x = { .prev = gone ? &known : &tail, .after = gone ? &tail : NULL, .cleared = -1 };
    if (at == 0)
        return begin_file(w, &(struct chain_event){ "begin", x.prev, x.after, -1, 0, NULL }, e);
    w->end = (uint64_t)st->st_size;
    if (gone)
        return append_event(w, &(struct chain_event){ "gap", x.prev, x.after, -1, 0, NULL }, e);
    w->last = tail;
    return has_head && head.keep == w->keep ? 0 : append_event(w,
                                                               &(struct chain_event){ .name = "retention",
                                                                   .cleared = -1 },
                                                               e);
}

/* Open the current file and find its end, whichever process wrote last. */
static int catch_up(struct audit_writer *w, struct err *e)
{
    struct stat here, there;
    const int missing = stat(w->path, &there) != 0;
    if (missing && errno != ENOENT)
        return err_sys(e, "%s", w->path);
    if (w->fd >= 0 && (missing || fstat(w->fd, &here) || here.st_ino != there.st_ino || here.st_dev != there.st_dev))
        drop_file(w);
    if (w->fd >= 0 && (uint64_t)there.st_size == w->end)
        return 0;
    if (w->fd < 0 && !missing && (w->fd = open(w->path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW)) < 0)
        return err_sys(e, "%s", w->path);
    return look_again(w, &there, e);
}

/* ---- rotation ---- */

/* Make a name for the file to rotate, greater than all existing ones. */
static int rotated_name(const struct audit_writer *w, char *out, size_t size, struct err *e)
{
    struct audit_files f;
    char now[40];
    struct tm t;
    const time_t s = time(NULL);
    gmtime_r(&s, &t);
    const int begin = sprintf(now, "%s_", audit_chain_name(w->chain));
    strftime(now + begin, sizeof now - (size_t)begin, "%Y%m%d_%H%M%S", &t);
    if (audit_files_list(&f, w->folder, w->chain, e))
        return -1;
    const int n = (int)strlen(now);
    int clash = 1;
    for (int i = 0; i < f.n; i++) {
        const char *name = strrchr(f.file[i].path, '/') + 1;
        if (f.file[i].current)
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
        return err_set(e, ERR_LIMIT, "%s: 999 files of %s", w->folder, now);
    snprintf(out, size, clash == 1 ? "%s/%s.jsonl" : "%s/%s_%03d.jsonl", w->folder, now, clash);
    return 0;
}

static int rotate(struct audit_writer *w, struct err *e)
{
    char name[4200];
    if (sign_end(w, e) || rotated_name(w, name, sizeof name, e))
        return -1;
    if (rename(w->path, name))
        return err_sys(e, "%s: cannot become %s", w->path, name);
    w->n_rotations++;
    know_end(w, name, &w->last);
    const struct audit_end prev = w->last;
    return begin_file(w, &(struct chain_event){ "begin", &prev, NULL, -1, 0, NULL }, e);
}

/* ---- public functions ---- */

/* Lock the folder; create it again if it was removed. */
static int lock_folder(const struct audit_writer *w, struct err *e)
{
    const int lock = audit_lock(w->folder, 1, e);
    if (lock >= 0 || access(w->folder, F_OK) == 0)
        return lock;
    return mkdir(w->folder, 0700) != 0 && errno != EEXIST ? err_sys(e, "%s", w->folder) : audit_lock(w->folder, 1, e);
}

/* Read the end of the file again before the next line. */
static void distrust(struct audit_writer *w) { w->end = UINT64_MAX; }

int audit_writer_begin(struct audit_writer *w, struct err *e)
{
    const int lock = lock_folder(w, e);
    if (lock < 0)
        return -1;
    const int rc = catch_up(w, e);
    if (rc)
        distrust(w);
    close(lock);
    return rc;
}

int audit_writer_sign(struct audit_writer *w, struct err *e)
{
    const int lock = w->signer && w->n_unsigned ? lock_folder(w, e) : -1;
    if (lock < 0)
        return w->signer && w->n_unsigned ? -1 : 0;
    const int rc = catch_up(w, e) || sign_end(w, e) ? -1 : 0;
    if (rc)
        distrust(w);
    close(lock);
    return rc;
}

int audit_writer_add(struct audit_writer *w, char *text, size_t *n, struct err *e)
{
    const int lock = lock_folder(w, e);
    int rc = -1;
    if (lock < 0)
        return -1;
    if (catch_up(w, e) == 0 && (w->end + *n + AUDIT_CHAIN_TAIL < w->max_bytes || rotate(w, e) == 0))
        rc = append(w, text, n, e);
    if (rc)
        distrust(w);
    close(lock);
    return rc;
}

/* ---- clear ---- */

/* Count the lines after *at; *at moves to the end of the file. */
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

/* The lines of the current file, counted before the lock is taken.  Only lines added since then are
 * counted under the lock, so that writers do not wait long. */
struct line_count { int fd; struct stat st; off_t at; uint64_t lines; };

static int count_ahead(struct line_count *c, const char *path, struct err *e)
{
    *c = (struct line_count){ .fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) };
    if (c->fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, "%s", path);
    return fstat(c->fd, &c->st) ? err_sys(e, "%s", path) : count_lines(c->fd, &c->at, &c->lines, path, e);
}

/* Set *lines to the number of lines of the current file; 0 if there is none. */
static int count_rest(const struct line_count *c, uint64_t *lines, const char *path, struct err *e)
{
    struct stat st;
    off_t at = 0;
    *lines = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, "%s", path);
    int rc = fstat(fd, &st) ? err_sys(e, "%s", path) : 0;
    if (rc == 0 && c->fd >= 0 && st.st_ino == c->st.st_ino && st.st_dev == c->st.st_dev) {
        at = c->at;
        *lines = c->lines;
    }
    rc = rc ? rc : count_lines(fd, &at, lines, path, e);
    close(fd);
    return rc;
}

/* Put a new file in the place of the current one: writers notice and open it. */
static int replace_current(struct audit_writer *w, const struct line_count *counted, int all, uint64_t *dropped,
                           struct err *e)
{
    uint64_t lines;
    struct audit_end after;
    if (count_rest(counted, &lines, w->path, e) || catch_up(w, e) ||
        (all && audit_files_remove(w->folder, w->chain, e)) || rotated_end(w, &after, e))
        return -1;
    if (unlink(w->path))
        return err_sys(e, "%s", w->path);
    const struct audit_end prev = w->last;
    *dropped += lines;
    return begin_file(w, &(struct chain_event){ "begin", &prev, &after, (int64_t)lines, all, NULL }, e);
}

static int clear_chain(const char *folder, enum audit_chain chain, int all, uint64_t *dropped, struct err *e)
{
    const struct audit_options o = { .folder = folder, .chain = chain };
    struct audit_writer w;
    struct audit_files f = { 0 };
    struct audit_head head;
    struct line_count counted = { .fd = -1 };
    int rc = audit_writer_open(&w, &o, e), lock = -1;
    if (rc == 0)
        rc = audit_files_list(&f, folder, chain, e);
    if (rc == 0 && f.n == 0 && !audit_head_read(folder, chain, &head)) {
        rc = audit_writer_begin(&w, e);           /* write a first line, so that both chains exist */
    } else if (rc == 0) {
        rc = count_ahead(&counted, w.path, e) || (lock = audit_lock(folder, 1, e)) < 0 ? -1 : 0;
        if (rc == 0 && audit_head_read(folder, chain, &head) && head.keep)
            w.keep = head.keep;             /* keep the server's retention */
        if (rc == 0)
            rc = replace_current(&w, &counted, all, dropped, e);
    }
    if (lock >= 0)
        close(lock);
    if (counted.fd >= 0)
        close(counted.fd);
    audit_files_release(&f);
    audit_writer_close(&w);
    return rc;
}

int audit_clear(const char *folder, int all, uint64_t *dropped, struct err *e)
{
    *dropped = 0;
    if (access(folder, F_OK) && errno == ENOENT)
        return 0;                           /* the folder has no log */
    for (int chain = 0; chain < AUDIT_CHAINS; chain++)
        if (clear_chain(folder, (enum audit_chain)chain, all, dropped, e))
            return -1;
    return 0;
}

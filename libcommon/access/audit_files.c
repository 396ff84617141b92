/* audit_files.c - list, lock and remove the files of an audit log, and find the end of a chain. */
#include "libcommon/access/audit_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/file.h"

const char *audit_chain_name(enum audit_chain chain) { return chain == AUDIT_KEYS ? "requests" : "anonymous"; }

/* Length of "requests_20261121_150846" or "requests_20261121_150846_002" at the beginning of a
 * name, or 0. */
static size_t stem(const char *name, enum audit_chain chain)
{
    const char *begin = audit_chain_name(chain);
    size_t n = strlen(begin);
    if (strncmp(name, begin, n) != 0)
        return 0;
    for (const char *p = "_dddddddd_dddddd"; *p; p++, n++)
        if (*p == 'd' ? name[n] < '0' || name[n] > '9' : name[n] != *p)
            return 0;
    if (name[n] == '_' && strspn(name + n + 1, "0123456789") == 3)
        n += 4;
    return n;
}

static int is_current(const char *name, enum audit_chain chain)
{
    const char *begin = audit_chain_name(chain);
    const size_t n = strlen(begin);
    return strncmp(name, begin, n) == 0 && strcmp(name + n, ".jsonl") == 0;
}

static int by_path(const void *a, const void *b)
{
    const struct audit_file *x = a, *y = b;
    const char *p = strrchr(x->path, '/') + 1, *q = strrchr(y->path, '/') + 1;
    const size_t n = strcspn(p, "."), m = strcspn(q, ".");
    if (x->current || y->current)
        return x->current - y->current;     /* the current file comes last */
    int c = memcmp(p, q, n < m ? n : m);    /* a name with a clash number is longer and comes later */
    return c ? c : n != m ? (n > m) - (n < m) : y->gz - x->gz;
}

enum { PLAIN, COMPRESSED, CURRENT };
static int add(struct audit_files *f, const char *folder, const char *name, int kind, struct err *e)
{
    struct stat st;
    char *path;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return err_nomem(e, "names of log files");
    if (stat(path, &st)) {
        const int gone = errno == ENOENT;
        if (!gone)
            err_sys(e, "%s", path);
        free(path);
        return gone ? 0 : -1;
    }
    struct audit_file *more = realloc(f->file, ((size_t)f->n + 1) * sizeof *more);
    if (!more) {
        free(path);
        return err_nomem(e, "names of log files");
    }
    f->file = more;
    f->file[f->n++] = (struct audit_file){ .path = path, .gz = kind == COMPRESSED, .current = kind == CURRENT,
                                           .size = (uint64_t)st.st_size, .changed_s = st.st_mtime };
    return 0;
}

int audit_files_list(struct audit_files *f, const char *folder, enum audit_chain chain, struct err *e)
{
    int rc = 0;
    *f = (struct audit_files){ 0 };
    DIR *d = opendir(folder);
    if (!d)
        return errno == ENOENT ? 0 : err_sys(e, "%s", folder);
    for (struct dirent *x; rc == 0 && (x = readdir(d));) {
        const size_t n = stem(x->d_name, chain);
        if (n && strcmp(x->d_name + n, ".jsonl") == 0)
            rc = add(f, folder, x->d_name, PLAIN, e);
        else if (n && strcmp(x->d_name + n, ".jsonl.gz") == 0)
            rc = add(f, folder, x->d_name, COMPRESSED, e);
        else if (is_current(x->d_name, chain))
            rc = add(f, folder, x->d_name, CURRENT, e);
    }
    closedir(d);
    if (rc) {
        audit_files_release(f);
        return -1;
    }
    if (f->n)
        qsort(f->file, (size_t)f->n, sizeof *f->file, by_path);
    int n = 0;
    /* X.jsonl.gz appears only when it is complete, so X.jsonl beside it was about to be removed */
    for (int i = 0; i < f->n; i++) {
        const int twice = n > 0 && f->file[n - 1].gz && !f->file[i].gz &&
                          strncmp(f->file[n - 1].path, f->file[i].path, strlen(f->file[i].path)) == 0;
        if (twice)
            free(f->file[i].path);
        else
            f->file[n++] = f->file[i];
    }
    f->n = n;
    return 0;
}

void audit_files_release(struct audit_files *f)
{
    for (int i = 0; i < f->n; i++)
        free(f->file[i].path);
    free(f->file);
    *f = (struct audit_files){ 0 };
}

int audit_files_remove(const char *folder, enum audit_chain chain, struct err *e)
{
    static const char *const ends[] = { ".jsonl", ".jsonl.gz", ".jsonl.gz.tmp" };
    DIR *d = opendir(folder);
    int rc = 0;
    if (!d)
        return errno == ENOENT ? 0 : err_sys(e, "%s", folder);
    for (struct dirent *x; rc == 0 && (x = readdir(d));) {
        const size_t n = stem(x->d_name, chain);
        int ours = 0;
        for (size_t i = 0; n && i < sizeof ends / sizeof *ends; i++)
            ours |= strcmp(x->d_name + n, ends[i]) == 0;
        if (ours && unlinkat(dirfd(d), x->d_name, 0) && errno != ENOENT)
            rc = err_sys(e, "%s/%s", folder, x->d_name);
    }
    closedir(d);
    return rc;
}

static int lock(const char *folder, int how, struct err *e)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/audit.lock", folder) >= (int)sizeof path)
        return err_set(e, ERR_IO, "%s: the path is too long", folder);
    int fd = file_open_made(path, O_RDWR);
    if (fd < 0)
        return err_sys(e, "%s", path);
    while (flock(fd, how)) {
        if (errno == EINTR)
            continue;
        const int held = errno == EWOULDBLOCK;
        err_sys(e, "%s: lock", path);
        close(fd);
        return held ? -2 : -1;
    }
    return fd;
}

int audit_lock(const char *folder, int exclusive, struct err *e)
{
    return lock(folder, exclusive ? LOCK_EX : LOCK_SH, e);
}
int audit_try_lock(const char *folder, struct err *e) { return lock(folder, LOCK_EX | LOCK_NB, e); }

/* The number that ends at `end`, if `,"seq":` precedes it; else 0. */
static uint64_t number_before(const char *line, const char *end)
{
    enum { FIELD = sizeof AUDIT_SEQ_FIELD - 1 };
    uint64_t n = 0;
    const char *p = end;
    while (p > line && p[-1] >= '0' && p[-1] <= '9')
        p--;
    if (end == p || end - p > 19 || p - line < FIELD || memcmp(p - FIELD, AUDIT_SEQ_FIELD, FIELD) != 0)
        return 0;
    for (; p < end; p++)
        n = 10 * n + (uint64_t)(*p - '0');
    return n;
}

size_t audit_line_end(const char *line, size_t size, const char **hash, uint64_t *seq)
{
    if (size < AUDIT_HASH_TAIL + 2)
        return 0;
    const char *tail = line + size - AUDIT_HASH_TAIL, *hex = tail + sizeof AUDIT_HASH_FIELD - 1;
    if (memcmp(tail, AUDIT_HASH_FIELD, sizeof AUDIT_HASH_FIELD - 1) != 0 || memcmp(line + size - 2, "\"}", 2) != 0)
        return 0;
    for (int i = 0; i < SHA256_HEX; i++)
        if (!((hex[i] >= '0' && hex[i] <= '9') || (hex[i] >= 'a' && hex[i] <= 'f')))
            return 0;
    *hash = hex;
    *seq = number_before(line, tail);
    return size - AUDIT_HASH_TAIL;
}

/* ---- FOLDER/requests.head: "SEQ HASH KEEP\n" ---- */

enum { SEQ_DIGITS = 20, KEEP_DIGITS = 10, HEAD_SIZE = SEQ_DIGITS + 1 + SHA256_HEX + 1 + KEEP_DIGITS + 1 };

static int head_path(char out[4096], const char *folder, enum audit_chain chain)
{
    return snprintf(out, 4096, "%s/%s.head", folder, audit_chain_name(chain)) < 4096 ? 0 : -1;
}

int audit_head_read(const char *folder, enum audit_chain chain, struct audit_head *head)
{
    char path[4096], text[HEAD_SIZE + 1] = "";
    const char *hash = text + SEQ_DIGITS + 1, *keep = hash + SHA256_HEX + 1;
    if (head_path(path, folder, chain))
        return 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, HEAD_SIZE);
    if (fd >= 0)
        close(fd);
    if (n != HEAD_SIZE || strspn(text, "0123456789") != SEQ_DIGITS || strspn(hash, "0123456789abcdef") != SHA256_HEX ||
        strspn(keep, "0123456789") != KEEP_DIGITS)
        return 0;
    head->end.seq = strtoull(text, NULL, 10);
    memcpy(head->end.hash, hash, SHA256_HEX);
    head->end.hash[SHA256_HEX] = '\0';
    head->keep = (int)strtol(keep, NULL, 10);
    return 1;
}

int audit_head_write(const char *folder, enum audit_chain chain, const struct audit_head *head, struct err *e)
{
    char path[4096], text[HEAD_SIZE + 1];
    if (head_path(path, folder, chain))
        return err_set(e, ERR_IO, "%s: the path is too long", folder);
    const int fd = file_open_made(path, O_RDWR);
    if (fd < 0)
        return err_sys(e, "%s", path);
    snprintf(text, sizeof text, "%0*" PRIu64 " %s %0*d\n", SEQ_DIGITS, head->end.seq, head->end.hash, KEEP_DIGITS,
             head->keep);
    /* written in place, and shorter than a page, so if a process dies here the file has either the
     * old or the new text */
    const ssize_t n = pwrite(fd, text, HEAD_SIZE, 0);
    const int rc = n == HEAD_SIZE ? 0 : n < 0 ? err_sys(e, "%s", path)
                                              : err_set(e, ERR_IO, "%s: only %zd of %d bytes could be written", path, n,
                                                        HEAD_SIZE);
    close(fd);
    return rc;
}

/* Searches backwards in growing pieces, so a long partial line costs only its own length. */
int audit_tail(int fd, const char *path, struct audit_end *last, uint64_t *end, struct err *e)
{
    struct stat st;
    *last = (struct audit_end){ .hash = AUDIT_ZEROS };
    *end = 0;
    if (fstat(fd, &st))
        return err_sys(e, "%s", path);
    char *text = NULL;
    const uint64_t size = (uint64_t)st.st_size;
    int rc = 0;
    for (uint64_t want = 65536, done = 0; rc == 0 && done < size; want *= 4) {
        const uint64_t n = want < size ? want : size, from = size - n;
        char *more = realloc(text, n);
        if (!more) {
            rc = err_nomem(e, "the end of a log");
            break;
        }
        text = more;
        const ssize_t got = pread(fd, text, n, (off_t)from);
        if (got != (ssize_t)n) {
            rc = got < 0 ? err_sys(e, "%s", path) : err_set(e, ERR_IO, "%s: shrank while it was read", path);
            break;
        }
        done = n;
        /* Lines from the last one backwards: [begin, stop), text[stop] == '\n'. */
        for (uint64_t stop = n; stop > 0;) {
            const char *nl = memrchr(text, '\n', stop);
            if (!nl)
                break;
            stop = (uint64_t)(nl - text);
            const char *before = memrchr(text, '\n', stop), *hex;
            if (!before && from > 0)
                break;                      /* the line may begin before this piece */
            const char *line = before ? before + 1 : text;
            if (audit_line_end(line, (size_t)(nl - line), &hex, &last->seq)) {
                memcpy(last->hash, hex, SHA256_HEX);
                *end = from + stop + 1;
                done = size;
                break;
            }
        }
    }
    free(text);
    return rc;
}

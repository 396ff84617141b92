/* download.c - download the files of one commit in ranges, and check them. */
#include "libcommon/hub/download.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "libcommon/base/file.h"

enum { LEAST_PART = 512 << 10, MOST_PART = 32 << 20, MOST_UNSAVED = 16 << 20, HASH_STEP = 1 << 20,
       HASH_A_TICK = 32 << 20 };
static const int64_t most_bytes = (int64_t)1 << 50;      /* larger sizes are taken for errors */

/* ---- ranges ---- */

int spans_add(struct spans *s, uint64_t from, uint64_t to)
{
    int i = 0, j;
    if (from >= to)
        return 0;
    while (i < s->n && s->v[i].to < from)
        i++;
    for (j = i; j < s->n && s->v[j].from <= to; j++) {
        from = s->v[j].from < from ? s->v[j].from : from;
        to = s->v[j].to > to ? s->v[j].to : to;
    }
    if (s->n + 1 > s->room) {
        struct span *v = realloc(s->v, (size_t)(2 * s->room + 16) * sizeof *v);
        if (!v)
            return -1;
        s->v = v;
        s->room = 2 * s->room + 16;
    }
    memmove(s->v + i + 1, s->v + j, (size_t)(s->n - j) * sizeof *s->v);
    s->v[i] = (struct span){ from, to };
    s->n += 1 - (j - i);
    return 0;
}

uint64_t spans_bytes(const struct spans *s)
{
    uint64_t n = 0;
    for (int i = 0; i < s->n; i++)
        n += s->v[i].to - s->v[i].from;
    return n;
}

/* ---- URLs ---- */

char *url_encode(const char *text, const char *keep)
{
    char *out = malloc(3 * strlen(text) + 1), *p = out;
    for (; out && *text; text++) {
        if (isalnum((unsigned char)*text) || strchr("-._~", *text) || strchr(keep, *text))
            *p++ = *text;
        else
            p += sprintf(p, "%%%02X", (unsigned char)*text);
    }
    if (out)
        *p = '\0';
    return out;
}

char *download_url(const char *endpoint, const char *repo, const char *revision, const char *file, struct err *e)
{
    char *r = url_encode(revision, ""), *f = url_encode(file, "/"), *url = NULL;
    if (!r || !f || asprintf(&url, "%s/%s/resolve/%s/%s", endpoint, repo, r, f) < 0) {
        err_nomem(e, "URL");
        url = NULL;
    }
    free(r);
    free(f);
    return url;
}

/* ---- metadata of each file ---- */

static int is_hex(const char *etag, size_t n) { return strlen(etag) == n && strspn(etag, "0123456789abcdef") == n; }

static int head_done(struct web_job *j, struct err *e)
{
    struct download_file *f = j->user;
    const struct web_answer *a = &j->answer;
    snprintf(f->etag, sizeof f->etag, "%s", *a->linked_etag ? a->linked_etag : a->etag);
    f->size = *a->linked_etag && a->linked_size >= 0 ? a->linked_size : a->status / 100 == 2 ? a->length : -1;
    f->has_sha256 = is_hex(f->etag, 64);
    f->has_git_sha1 = is_hex(f->etag, 40);
    if (f->size > most_bytes)
        return err_set(e, ERR_FORMAT, "%s: the hub says it has %" PRId64 " bytes, expected %" PRId64 " at most",
                       f->name, f->size, most_bytes);
    if (!hub_cache_etag_ok(f->etag))
        return err_set(e, ERR_FORMAT, "%s: the hub sent no usable ETag ('%.60s')", f->name, f->etag);
    return 0;
}

static int add_head(struct download *d, struct download_file *f, struct err *e)
{
    struct web_job *j = web_job(f->url, e);
    if (!j)
        return -1;
    j->what = f->name;
    j->head = 1;
    j->done = head_done;
    j->user = f;
    return web_add(d->web, j, e);
}

/* Is the blob of f in the cache with the right size? */
static int have_blob(const struct download_file *f)
{
    struct stat st;
    return stat(f->blob, &st) == 0 && S_ISREG(st.st_mode) && (f->size < 0 || st.st_size == f->size);
}

static int init_file(struct download *d, struct download_file *f, const char *name, struct err *e)
{
    *f = (struct download_file){ .lock = -1, .fd = -1, .size = -1, .in = d };
    f->name = strdup(name);
    f->url = download_url(d->o->endpoint, d->name->repo, d->commit, name, e);
    f->have = hub_cache_has(d->folder, d->commit, name) == 1;
    return f->name && f->url ? 0 : err_nomem(e, name);
}

int download_plan(struct download *d, const char *const *names, int n, struct err *e)
{
    if (!d->folder && !(d->folder = hub_cache_folder(d->o, d->name, e)))
        return -1;
    d->files = calloc((size_t)n + 1, sizeof *d->files);
    if (!d->files)
        return err_nomem(e, "files");
    for (int i = 0; i < n; i++) {
        struct download_file *f = &d->files[d->n_files++];
        if (init_file(d, f, names[i], e) != 0 || (!f->have && add_head(d, f, e) != 0))
            return -1;
    }
    if (web_run(d->web, e) != 0)
        return -1;
    for (int i = 0; i < n; i++) {
        struct download_file *f = &d->files[i];
        if (f->have)
            continue;
        f->blob = hub_cache_path(d->folder, "blobs/%s", f->etag);
        f->part = hub_cache_path(d->folder, "blobs/%s.zse-part", f->etag);
        f->ranges = hub_cache_path(d->folder, "blobs/%s.zse-ranges", f->etag);
        if (!f->blob || !f->part || !f->ranges)
            return err_nomem(e, "path");
        if (have_blob(f)) {
            if (hub_cache_link(d->folder, d->commit, f->name, f->etag, e) != 0)
                return -1;
            f->have = 1;
        }
        if (__builtin_add_overflow(d->total, f->size > 0 ? (uint64_t)f->size : 0, &d->total))
            return err_set(e, ERR_FORMAT, "%s: the sizes of its files add up to 2^64 bytes or more", d->name->repo);
        d->left += !f->have && f->size > 0 ? (uint64_t)f->size : 0;
    }
    return 0;
}

/* ---- heads: a safetensors file begins with the length of its header, 8 bytes, and the header
 * ---- */

enum { FIRST_HEAD = 256 << 10, MOST_HEAD = 100000000 };      /* longest header that the format allows */

static int head_data(struct web_job *j, const void *data, size_t n, struct err *e)
{
    struct hub_shard *s = j->user;
    (void)e;
    if (j->answer.status == 200 && !j->whole) {         /* Range was ignored: this is the file from its beginning */
        j->whole = 1;
        j->from = 0;
    }
    const size_t room = (size_t)(j->to - j->from), take = n < room ? n : room;
    memcpy((uint8_t *)(uintptr_t)s->head + j->from, data, take);
    s->head_size = (size_t)j->from + take;
    return s->head_size == j->to;
}

/* Get the first wanted[i] bytes of each file i that does not have so many bytes yet. */
static int get_heads(struct download *d, struct hub_shard *shards, const size_t *wanted, struct err *e)
{
    for (int i = 0; i < d->n_files; i++) {
        struct hub_shard *s = &shards[i];
        if (d->files[i].have || s->head_size >= wanted[i])
            continue;
        uint8_t *more = realloc((uint8_t *)(uintptr_t)s->head, wanted[i]);
        if (!more)
            return err_nomem(e, s->name);
        s->head = more;
        struct web_job *j = web_job(d->files[i].url, e);
        if (!j)
            return -1;
        j->what = s->name;
        j->from = s->head_size;
        j->to = wanted[i];
        j->body = head_data;
        j->user = s;
        if (web_add(d->web, j, e) != 0)
            return -1;
    }
    return web_run(d->web, e);
}

static size_t header_end(const struct hub_shard *s)
{
    uint64_t size;
    if (s->head_size < 8)
        return 0;
    memcpy(&size, s->head, 8);
    /* an impossible header is refused by its reader */
    return size <= MOST_HEAD && size <= s->size - 8 ? 8 + (size_t)size : 0;
}

int download_announce(struct download *d, const char *folder, struct hub_shard **shards, struct err *e)
{
    const struct hub_options *o = d->o;
    struct hub_shard *s = *shards = calloc((size_t)d->n_files + 1, sizeof *s);
    size_t *wanted = calloc((size_t)d->n_files + 1, sizeof *wanted);
    int rc = s && wanted ? 0 : err_nomem(e, "shards"), sized = 1;
    for (int i = 0; i < d->n_files && rc == 0; i++) {
        const struct download_file *f = &d->files[i];
        s[i] = (struct hub_shard){ .name = f->name, .size = f->size > 0 ? (uint64_t)f->size : 0 };
        wanted[i] = f->size < FIRST_HEAD ? (size_t)s[i].size : FIRST_HEAD;
        sized &= f->have || f->size > 0;
    }
    if (rc == 0 && sized) {
        rc = get_heads(d, s, wanted, e);
        for (int i = 0; i < d->n_files && rc == 0; i++)
            wanted[i] = header_end(&s[i]);
        if (rc == 0)
            rc = get_heads(d, s, wanted, e);
        for (int i = 0; i < d->n_files && rc == 0; i++)
            if (wanted[i] && s[i].head_size > wanted[i])
                s[i].head_size = wanted[i];
        if (rc == 0)
            rc = o->announce(o->announce_user, folder, s, d->n_files, e);
        d->announced = rc == 0;
    }
    free(wanted);
    return rc;
}

void download_release_shards(struct hub_shard *shards, int n)
{
    for (int i = 0; shards && i < n; i++)
        free((uint8_t *)(uintptr_t)shards[i].head);
    free(shards);
}

/* ---- downloading a file ---- */

/* Load the ranges that an earlier call has downloaded, if the partial file still matches them. */
static void load_ranges(struct download_file *f)
{
    struct err ignored;
    struct stat st;
    size_t size;
    char *text = f->has_sha256 && f->size > 0 ? file_read(f->ranges, 1 << 20, &size, &ignored) : NULL;
    uint64_t from, to;
    int used;
    if (!text || fstat(f->fd, &st) != 0)
        st.st_size = 0;
    for (const char *p = text; p && sscanf(p, "%" SCNu64 " %" SCNu64 "\n%n", &from, &to, &used) == 2; p += used)
        if (from < to && to <= (uint64_t)f->size && to <= (uint64_t)st.st_size)
            (void)spans_add(&f->done, from, to);
    free(text);
    f->saved_bytes = spans_bytes(&f->done);
}

/* Save the list of downloaded ranges.  Errors are ignored: without the list a later call starts
 * from the beginning. */
static void save_ranges(struct download_file *f)
{
    struct atomic_file a;
    struct err ignored;
    char line[64];
    int ok = f->has_sha256 && f->done.n && atomic_open(&a, f->ranges, &ignored) == 0;
    if (!ok)
        return;
    for (int i = 0; ok && i < f->done.n; i++) {
        int n = snprintf(line, sizeof line, "%" PRIu64 " %" PRIu64 "\n", f->done.v[i].from, f->done.v[i].to);
        ok = atomic_write(&a, line, (size_t)n, &ignored) == 0;
    }
    if (!ok || atomic_commit(&a, &ignored) != 0)
        atomic_abort(&a);
    f->saved_bytes = spans_bytes(&f->done);
}

/* Remember the target of a redirect to another origin, so that later ranges need not ask the hub
 * again. */
static int remember_direct(struct download_file *f, const struct web_job *j)
{
    if (web_same_origin(j->url, f->url) || (f->direct && strcmp(f->direct, j->url) == 0))
        return 0;
    free(f->direct);
    f->direct = strdup(j->url);
    return f->direct ? 0 : -1;
}

static int digest_start(struct download_file *f, struct err *e)
{
    struct net_digest *n = &f->in->net;
    char head[40];
    f->hashed = 0;
    if (!f->has_sha256 && !f->has_git_sha1)
        return 0;
    if (!f->digest && !(f->digest = n->ctx_new()))
        return err_nomem(e, "checksum");
    if (n->init(f->digest, f->has_sha256 ? n->sha256() : n->sha1(), NULL) != 1)
        return err_set(e, ERR_UNSUPPORTED, "libcrypto has no %s", f->has_sha256 ? "SHA-256" : "SHA-1");
    if (f->has_git_sha1)
        n->update(f->digest, head, (size_t)snprintf(head, sizeof head, "blob %" PRId64, f->size) + 1);
    return 0;
}

/* Discard the downloaded bytes. */
static int forget_bytes(struct download_file *f)
{
    f->done.n = 0;
    f->saved_bytes = 0;
    unlink(f->ranges);
    return ftruncate(f->fd, 0);
}

/* Does ALL in "bytes FROM-LAST/ALL" equal the size that the hub announced? */
static int check_total(const struct download_file *f, const struct web_answer *a, struct err *e)
{
    const char *slash = strchr(a->content_range, '/');
    int64_t all;
    if (a->status != 206 || f->size < 0 || !slash || sscanf(slash, "/%" SCNd64, &all) != 1 || all == f->size)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: a range of it comes as '%s', but the hub announced %" PRId64 " bytes", f->name,
                   a->content_range, f->size);
}

static int part_data(struct web_job *j, const void *data, size_t n, struct err *e)
{
    struct download_file *f = j->user;
    const char *p = data;
    uint64_t at = j->from;
    int enough = 0;
    if (f->fd < 0)
        return 1;
    if (check_total(f, &j->answer, e) != 0)
        return -1;
    if (remember_direct(f, j) != 0)
        return err_nomem(e, "URL");
    if (j->answer.status == 200 && !j->whole && (j->from || (int64_t)j->to != f->size) && f->size >= 0) {
        if (f->whole)
            return 1;                   /* another job has downloaded the whole file */
        f->whole = j->whole = 1;        /* Range was ignored: this is the file from its beginning */
        j->from = at = 0;
        j->to = (uint64_t)f->size;
    }
    if (f->size >= 0 && at + n >= j->to) {
        enough = at + n > j->to;
        if (enough && (int64_t)j->to == f->size)
            return err_set(e, ERR_FORMAT, "%s: more than the %" PRId64 " bytes that the hub announced", f->name,
                           f->size);
        n = (size_t)(j->to - at);
    }
    if (f->size < 0 && at + n > f->in->most_unsized)
        return err_set(e, ERR_LIMIT, "%s: more than %" PRIu64 " bytes of a file whose size the hub did not say",
                       f->name, f->in->most_unsized);
    if (j->whole && at == 0 && forget_bytes(f) != 0)    /* restarted from the beginning, perhaps with other bytes */
        return err_sys(e, "%s", f->part);
    if (f->has_sha256 && at < f->hashed && digest_start(f, e) != 0)
        return -1;                      /* these bytes are overwritten, so the digest of the old ones is void */
    for (size_t left = n; left;) {
        ssize_t put = pwrite(f->fd, p, left, (off_t)(at + (n - left)));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_sys(e, "%s", f->part);
        p += put;
        left -= (size_t)put;
    }
    if (spans_add(&f->done, at, at + n) != 0)
        return err_nomem(e, "ranges");
    return enough;
}

/* Update the digest with contiguous bytes from the beginning, at most `most`. */
static int hash_more(struct download_file *f, uint64_t most, struct err *e)
{
    static const size_t step = HASH_STEP;
    uint64_t end = f->done.n && f->done.v[0].from == 0 ? f->done.v[0].to : 0;
    if (!f->digest || f->hashed >= end)
        return 0;
    char *buf = malloc(step);
    if (!buf)
        return err_nomem(e, "checksum");
    for (uint64_t n = 0; n < most && f->hashed < end;) {
        size_t want = end - f->hashed < step ? (size_t)(end - f->hashed) : step;
        ssize_t got = pread(f->fd, buf, want, (off_t)f->hashed);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            free(buf);
            return got < 0 ? err_sys(e, "%s", f->part)
                           : err_set(e, ERR_IO, "%s: it was cut while it was downloaded", f->part);
        }
        f->in->net.update(f->digest, buf, (size_t)got);
        f->hashed += (uint64_t)got;
        n += (uint64_t)got;
    }
    free(buf);
    return 0;
}

static int part_done(struct web_job *j, struct err *e);

static int part_before(struct web_job *j)
{
    const struct download_file *f = j->user;
    if (f->direct && j->tries == 0 && strcmp(j->url, f->url) == 0) {
        char *url = strdup(f->direct);
        if (url) {
            free(j->url);
            j->url = url;
        }
    }
    return (f->whole && !j->whole) || f->fd < 0;
}

static int add_part(struct download_file *f, uint64_t from, uint64_t to, struct err *e)
{
    struct web_job *j = web_job(f->url, e);
    if (!j)
        return -1;
    j->what = f->name;
    j->from = from;
    j->to = to;
    j->whole = f->size < 0 || !f->has_sha256;       /* small files are fetched in one piece */
    j->body = part_data;
    j->done = part_done;
    j->before = part_before;
    j->user = f;
    return web_add(f->in->web, j, e);
}

/* Queue jobs for the missing ranges. */
static int add_parts(struct download_file *f, struct err *e)
{
    uint64_t at = 0, part = (uint64_t)f->size / (4 * (unsigned)f->in->web->n_connections);
    part = part < LEAST_PART ? LEAST_PART : part > MOST_PART ? MOST_PART : part;
    if (f->size <= 0 || !f->has_sha256)
        return add_part(f, 0, f->size > 0 ? (uint64_t)f->size : 0, e);
    for (int i = 0; i <= f->done.n; i++) {
        uint64_t end = i < f->done.n ? f->done.v[i].from : (uint64_t)f->size;
        for (; at < end; at = at + part < end ? at + part : end)
            if (add_part(f, at, at + part < end ? at + part : end, e) != 0)
                return -1;
        if (i < f->done.n)
            at = f->done.v[i].to;
    }
    return 0;
}

static void discard(struct download_file *f)
{
    f->whole = 0;
    if (forget_bytes(f) != 0)
        unlink(f->part);
}

/* Report that the file has its final name. */
static void tell_arrived(const struct download_file *f)
{
    const struct download *d = f->in;
    if (d->announced)
        d->o->arrived(d->o->announce_user, (int)(f - d->files));
}

/* The file is complete: check its digest and give it its names. */
static int finish_file(struct download_file *f, struct err *e)
{
    struct download *d = f->in;
    unsigned char sum[EVP_MAX_MD_SIZE];
    char hex[2 * EVP_MAX_MD_SIZE + 1], text[300];
    const char *what = f->has_sha256 ? "SHA-256" : "git SHA-1";
    unsigned n = 0;
    /* git's digest begins with the size, which may be known only now */
    if ((f->has_git_sha1 && digest_start(f, e) != 0) || hash_more(f, UINT64_MAX, e) != 0)
        return -1;
    if (f->has_sha256 || f->has_git_sha1) {
        d->net.final(f->digest, sum, &n);
        for (unsigned i = 0; i < n; i++)
            sprintf(hex + 2 * i, "%02x", sum[i]);
        if (strcmp(hex, f->etag) != 0) {
            discard(f);
            if (f->unsized)
                f->size = -1;
            if (f->n_mismatches++)
                return err_set(e, ERR_FORMAT, "%s: its %s is %s, the hub says %s; it came twice and was removed",
                               f->name, what, hex, f->etag);
            snprintf(text, sizeof text, "%.100s: %.100s: its %s is not what the hub says; it is downloaded again",
                     d->name->repo, f->name, what);
            if (d->o->note)
                d->o->note(d->o->note_user, text);
            return f->has_sha256 && digest_start(f, e) != 0 ? -1 : add_parts(f, e);
        }
    }
    if (fsync(f->fd) != 0 || rename(f->part, f->blob) != 0)
        return err_sys(e, "%s", f->blob);
    close(f->fd);
    f->fd = -1;
    unlink(f->ranges);
    f->have = 1;
    int rc = hub_cache_link(d->folder, d->commit, f->name, f->etag, e);
    hub_cache_unlock(f->lock);
    f->lock = -1;
    if (rc == 0)
        tell_arrived(f);
    return rc;
}

static int part_done(struct web_job *j, struct err *e)
{
    struct download_file *f = j->user;
    if (f->fd < 0)
        return 0;
    if (f->size < 0) {
        f->size = (int64_t)j->from;
        f->unsized = 1;
    }
    return spans_bytes(&f->done) == (uint64_t)f->size ? finish_file(f, e) : 0;
}

/* Lock a file and queue its missing ranges.  1: another program has it locked. */
static int begin_file(struct download_file *f, int wait, struct err *e)
{
    struct download *d = f->in;
    f->lock = hub_cache_lock(d->o, d->name, f->etag, wait, e);
    if (f->lock < 0)
        return f->lock == -2 ? 1 : -1;
    if (have_blob(f)) {                                 /* another program downloaded it meanwhile */
        f->have = 1;
        hub_cache_unlock(f->lock);
        f->lock = -1;
        if (hub_cache_link(d->folder, d->commit, f->name, f->etag, e) != 0)
            return -1;
        tell_arrived(f);
        return 0;
    }
    if (hub_cache_make_folders(f->part, e) != 0)
        return -1;
    f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->fd < 0)
        return err_sys(e, "%s", f->part);
    load_ranges(f);
    if (f->done.n == 0 && ftruncate(f->fd, 0) != 0)
        return err_sys(e, "%s", f->part);
    if (f->has_sha256 && digest_start(f, e) != 0)
        return -1;
    return f->size >= 0 && spans_bytes(&f->done) == (uint64_t)f->size ? finish_file(f, e) : add_parts(f, e);
}

/* ---- all files ---- */

static int tick(void *user)
{
    struct download *d = user;
    struct err ignored;
    uint64_t done = 0;
    for (int i = 0; i < d->n_files; i++) {
        struct download_file *f = &d->files[i];
        if (f->fd < 0) {
            done += f->have && f->size > 0 ? (uint64_t)f->size : 0;
            continue;
        }
        uint64_t n = spans_bytes(&f->done);
        done += n;
        uint64_t unsaved = (uint64_t)f->size / 64 < MOST_UNSAVED ? (uint64_t)f->size / 64 : MOST_UNSAVED;
        if (f->has_sha256 && n - f->saved_bytes > unsaved)
            save_ranges(f);
        if (f->has_sha256)
            (void)hash_more(f, HASH_A_TICK, &ignored);  /* finish_file reports the same error */
    }
    return progress_report(d->o->progress, d->name->repo, done, d->total, "bytes");
}

static int is_wanted(void *user, const struct web_job *j)
{
    const struct download *d = user;
    const int i = d->o->wanted(d->o->announce_user);
    return i >= 0 && j->user == &d->files[i];
}

/* Check that the disk has room for the missing bytes. */
static int check_room(const struct download *d, struct err *e)
{
    struct statvfs s;
    uint64_t need = 0;
    char *path = hub_cache_path(d->folder, "blobs/");
    int rc = path ? hub_cache_make_folders(path, e) : err_nomem(e, "path");
    for (int i = 0; i < d->n_files; i++) {
        const struct download_file *f = &d->files[i];
        struct stat st;
        if (f->have || f->size <= 0)
            continue;
        uint64_t there = stat(f->part, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
        need += (uint64_t)f->size > there ? (uint64_t)f->size - there : 0;
    }
    if (rc == 0 && statvfs(path, &s) == 0 && (uint64_t)s.f_bavail * s.f_frsize < need)
        rc = err_set(e, ERR_IO, "%s: %.2f GB are to be downloaded, %s has room for %.2f GB (HF_HUB_CACHE names another folder)", d->name->repo,
                     (double)need / 1e9, path, (double)s.f_bavail * (double)s.f_frsize / 1e9);
    free(path);
    return rc;
}

int download_run(struct download *d, struct err *e)
{
    int rc = net_digest_open(&d->net, e) == 0 ? check_room(d, e) : -1, n_waiting = 0;
    int (*before)(void *) = d->web->tick;
    void *user = d->web->user;
    d->web->tick = tick;
    d->web->user = d;
    d->web->prefer = d->announced ? is_wanted : NULL;
    for (int i = 0; i < d->n_files && rc >= 0; i++) {
        if (d->files[i].have)
            continue;
        rc = begin_file(&d->files[i], 0, e);
        n_waiting += rc > 0;
    }
    if (rc >= 0)
        rc = web_run(d->web, e);
    /* Wait for other programs only now, when we hold no lock that they could be waiting for. */
    for (int i = 0; n_waiting && i < d->n_files && rc >= 0; i++) {
        if (d->files[i].have)
            continue;
        char text[300];
        snprintf(text, sizeof text, "%.100s: another program is downloading %.100s; waiting for it", d->name->repo,
                 d->files[i].name);
        if (d->o->note)
            d->o->note(d->o->note_user, text);
        if ((rc = begin_file(&d->files[i], 1, e)) == 0)
            rc = web_run(d->web, e);
    }
    d->web->tick = before;
    d->web->user = user;
    d->web->prefer = NULL;
    for (int i = 0; i < d->n_files && rc >= 0; i++)
        if (!d->files[i].have)
            rc = err_set(e, ERR_IO, "%s: %s: only a part of it was received", d->name->repo, d->files[i].name);
    for (int i = 0; i < d->n_files; i++)
        if (d->files[i].fd >= 0)
            save_ranges(&d->files[i]);
    return rc < 0 ? -1 : 0;
}

void download_release(struct download *d)
{
    for (int i = 0; i < d->n_files; i++) {
        struct download_file *f = &d->files[i];
        if (f->fd >= 0) {
            struct stat st;
            if (!f->has_sha256 || (fstat(f->fd, &st) == 0 && st.st_size == 0))
                unlink(f->part);        /* it has nothing to resume */
            close(f->fd);
        }
        hub_cache_unlock(f->lock);
        if (f->digest)
            d->net.ctx_free(f->digest);
        free(f->done.v);
        free(f->name);
        free(f->url);
        free(f->blob);
        free(f->part);
        free(f->ranges);
        free(f->direct);
    }
    free(d->files);
    free(d->folder);
    d->files = NULL;
    d->folder = NULL;
    d->n_files = 0;
}

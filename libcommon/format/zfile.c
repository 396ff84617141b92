/* zfile.c - map a .zse file, check everything except the weights, and hand out pointers. */
#include "libcommon/format/zfile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/base/thread.h"
#include "libcommon/format/zbytes.h"
#include "libcommon/format/zlist.h"

struct original { const char *name; uint64_t offset, packed, size; uint32_t crc; };

struct zfile {
    struct map map;
    struct zse_header header;
    struct zse_section sections[ZSE_MAX_SECTIONS];
    /* NULL: absent */
    const struct zse_section *json_section, *weights, *tokenizer, *packed, *list, *heads[HEADS_KINDS];
    json_t *json;
    int n_groups, n_originals;
    struct zfile_group *groups;
    struct zlist tensors;
    struct original *originals;
    pthread_t populator; int has_populator;             /* the thread that prefaults the weights */
    struct map_guard guard;
    _Atomic int stop_populator;
    _Atomic int populated;              /* that thread has prefaulted all weights */
    struct err damage; _Atomic int damaged;     /* set by zfile_set_damage */
    _Atomic int64_t written_ns;         /* modification time at the last comparison of the contents */
};

int zfile_is(const void *head, size_t size)
{
    return size >= 4 && memcmp(head, "ZSE", 4) == 0;
}

static uint32_t checksum(const void *data, uint64_t n)
{
    return (uint32_t)crc32_z(0, data, (z_size_t)n);
}

static int bad(const struct zfile *z, uint64_t offset, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int bad(const struct zfile *z, uint64_t offset, struct err *e, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": %s", z->map.path, offset, text);
}

/* ---- header and section table ---- */

static int read_header(struct zfile *z, struct err *e)
{
    struct zse_header *h = &z->header;
    size_t size = z->map.size;
    if (size < sizeof *h) {
        if (size >= 4 && !zfile_is(z->map.data, size))
            return bad(z, 0, e, "magic: not a .zse file");
        return bad(z, size, e, "header: the file ends here, expected 64 bytes");
    }
    memcpy(h, z->map.data, sizeof *h);
    if (!zfile_is(h->magic, 4))
        return bad(z, 0, e, "magic: not a .zse file");
    if (h->major != ZSE_MAJOR) {
        bad(z, 4, e, "version: %d.%d.%d, this program reads version %d", h->major, h->minor, h->patch, ZSE_MAJOR);
        if (e)
            e->code = ERR_UNSUPPORTED;
        return -1;
    }
    uint32_t crc = checksum(h, offsetof(struct zse_header, header_crc));
    if (crc != h->header_crc)
        return bad(z, 60, e, "header checksum: found %08" PRIx32 ", the header gives %08" PRIx32, h->header_crc, crc);
    if (h->size != size)
        return bad(z, 8, e, "size: the header says %" PRIu64 " bytes, the file has %zu", h->size, size);
    return 0;
}

static int read_table(struct zfile *z, struct err *e)
{
    const struct zse_header *h = &z->header;
    if (h->n_sections < 1 || h->n_sections > ZSE_MAX_SECTIONS)
        return bad(z, 24, e, "n_sections: %" PRIu32 ", expected 1 to %d", h->n_sections, ZSE_MAX_SECTIONS);
    uint64_t bytes = h->n_sections * sizeof(struct zse_section);
    if (h->table_offset % 8 || h->table_offset < sizeof *h || h->table_offset > h->size || bytes > h->size -
        h->table_offset)
        return bad(z, 16, e, "section table offset: %" PRIu64 " for %" PRIu64 " bytes in a file of %" PRIu64,
                   h->table_offset, bytes, h->size);
    memcpy(z->sections, z->map.data + h->table_offset, bytes);
    uint32_t crc = checksum(z->sections, bytes);
    return crc != h->table_crc ? bad(z, h->table_offset, e, "section table checksum: found %08" PRIx32
                                     ", the table gives %08" PRIx32, h->table_crc, crc) : 0;
}

static int remember_section(struct zfile *z, const struct zse_section *s, uint64_t at, struct err *e)
{
    enum { KINDS = 5 + HEADS_KINDS };
    static const char kinds[KINDS][4] = { { 'J', 'S', 'O', 'N' }, { 'W', 'G', 'T', 'S' }, { 'T', 'O', 'K', 'B' },
                                          { 'O', 'R', 'I', 'G' }, { 'T', 'N', 'S', 'R' }, { 'M', 'D', 'S', 'A' },
                                          { 'E', 'A', 'G', 'L' } };
    const struct zse_section **where[KINDS] = { &z->json_section, &z->weights, &z->tokenizer, &z->packed, &z->list,
                                                &z->heads[HEADS_MEDUSA], &z->heads[HEADS_EAGLE] };
    for (int k = 0; k < KINDS; k++) {
        if (memcmp(s->kind, kinds[k], 4) != 0)
            continue;
        if (*where[k])
            return bad(z, at, e, "section %.4s occurs twice", s->kind);
        *where[k] = s;
        return 0;
    }
    if (!(s->flags & ZSE_REQUIRED))
        return 0;
    char name[5] = { 0 };
    for (int i = 0; i < 4; i++)
        name[i] = s->kind[i] >= 32 && s->kind[i] < 127 ? s->kind[i] : '?';
    bad(z, at, e, "section '%s' is required and unknown to this program (version %d.%d.%d)", name, ZSE_MAJOR, ZSE_MINOR,
        ZSE_PATCH);
    if (e)
        e->code = ERR_UNSUPPORTED;
    return -1;
}

static int by_section_offset(const void *a, const void *b)
{
    const struct zse_section *x = *(const struct zse_section *const *)a, *y = *(const struct zse_section *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset ? 1 : x->size < y->size ? -1 : x->size > y->size;
}

static int check_sections(struct zfile *z, struct err *e)
{
    const struct zse_header *h = &z->header;
    const struct zse_section *sorted[ZSE_MAX_SECTIONS];
    for (uint32_t i = 0; i < h->n_sections; i++) {
        const struct zse_section *s = sorted[i] = &z->sections[i];
        uint64_t at = h->table_offset + i * sizeof *s;
        if (remember_section(z, s, at, e) < 0)
            return -1;
        if (s->offset % ZSE_LINE || s->offset < sizeof *h || s->offset > h->table_offset || s->size > h->table_offset -
            s->offset)
            return bad(z, at + 8, e, "section %.4s: offset %" PRIu64 ", size %" PRIu64
                       ": not between the header and the section table at %" PRIu64
                       ", or offset no multiple of %d", s->kind, s->offset, s->size, h->table_offset, ZSE_LINE);
    }
    if (!z->json_section)
        return bad(z, h->table_offset, e, "section JSON is missing");
    qsort(sorted, h->n_sections, sizeof *sorted, by_section_offset);
    for (uint32_t i = 1; i < h->n_sections; i++)
        if (sorted[i]->offset < sorted[i - 1]->offset + sorted[i - 1]->size)
            return bad(z, sorted[i]->offset, e, "section %.4s overlaps section %.4s", sorted[i]->kind,
                       sorted[i - 1]->kind);
    return 0;
}

static int read_json(struct zfile *z, struct err *e)
{
    const struct zse_section *s = z->json_section;
    const uint8_t *text = z->map.data + s->offset;
    if (s->size > ZSE_MAX_JSON)
        return bad(z, s->offset, e, "section JSON: %" PRIu64 " bytes, expected at most %d", s->size, ZSE_MAX_JSON);
    uint32_t crc = checksum(text, s->size);
    if (crc != s->crc)
        return bad(z, s->offset, e, "section JSON: checksum: found %08" PRIx32 ", the bytes give %08" PRIx32, s->crc,
                   crc);
    char name[300];
    snprintf(name, sizeof name, "%s: offset %" PRIu64 ": section JSON", z->map.path, s->offset);
    z->json = js_parse(name, text, s->size, e);
    if (z->json && !json_is_object(z->json))
        return bad(z, s->offset, e, "section JSON: found %s, expected an object", js_kind(z->json));
    return z->json ? 0 : -1;
}

/* ---- groups ---- */

static int read_group(struct zfile *z, struct zfile_group *g, const json_t *j, uint64_t from, struct err *e)
{
    int64_t layer, offset, size, crc;
    const struct zse_section *w = z->weights;
    if (!json_is_object(j))
        return err_set(e, ERR_FORMAT, "found %s, expected an object", js_kind(j));
    if (js_string(j, "kind", &g->kind, e) < 0 || js_int_or(j, "layer", 0, INT32_MAX, -1, &layer, e) < 0 ||
        js_int(j, "offset", 0, INT64_MAX, &offset, e) < 0 || js_int(j, "size", 0, INT64_MAX, &size, e) < 0 ||
        js_int(j, "crc", 0, UINT32_MAX, &crc, e) < 0)
        return -1;
    if (!w)
        return err_set(e, ERR_FORMAT, "the file has no section WGTS");
    if (offset % ZSE_PAGE)
        return err_set(e, ERR_FORMAT, "offset: %" PRId64 " is no multiple of %d", offset, ZSE_PAGE);
    if ((uint64_t)offset < from)
        return err_set(e, ERR_FORMAT, "offset: %" PRId64 " lies before %" PRIu64 ", the end of what comes before",
                       offset, from);
    if ((uint64_t)offset > w->offset + w->size || (uint64_t)size > w->offset + w->size - (uint64_t)offset)
        return err_set(e, ERR_FORMAT, "offset %" PRId64 ", size %" PRId64 ": beyond section WGTS, which ends at %"
                       PRIu64, offset, size, w->offset + w->size);
    g->layer = (int)layer;
    g->offset = (uint64_t)offset;
    g->size = (uint64_t)size;
    g->crc = (uint32_t)crc;
    return 0;
}

/* Get an array from the JSON, and memory for one C struct for each of its elements. */
static int open_array(struct zfile *z, const char *key, const json_t **array, size_t element, void *out, int *n,
                      struct err *e)
{
    *array = js_get(z->json, key);
    if (*array && !json_is_array(*array))
        return bad(z, z->json_section->offset, e, "section JSON: %s: found %s, expected an array", key,
                   js_kind(*array));
    *n = (int)json_array_size(*array);
    void *p = calloc((size_t)*n + 1, element);
    memcpy(out, &p, sizeof p);
    return p ? 0 : err_nomem(e, key);
}

static int read_groups(struct zfile *z, struct err *e)
{
    const json_t *array;
    if (open_array(z, "groups", &array, sizeof *z->groups, &z->groups, &z->n_groups, e) < 0)
        return -1;
    uint64_t from = z->weights ? z->weights->offset : 0;
    for (int i = 0; i < z->n_groups; i++) {
        if (read_group(z, &z->groups[i], json_array_get(array, (size_t)i), from, e) < 0)
            return err_prefix(e, "%s: offset %" PRIu64 ": section JSON: group %d", z->map.path, z->json_section->offset,
                              i);
        from = z->groups[i].offset + z->groups[i].size;
    }
    return 0;
}

/* ---- tensors ---- */

/* Read the list of tensors from section TNSR, or from the JSON of a file of version 1.0. */
static int read_tensors(struct zfile *z, struct err *e)
{
    const struct zse_section *s = z->list;
    const json_t *array = js_get(z->json, "tensors");
    const struct zlist_file f = { z->map.data, z->groups, z->n_groups };
    if (!s)
        return zlist_from_json(&z->tensors, array, &f, e) == 0
                   ? 0 : err_prefix(e, "%s: offset %" PRIu64 ": section JSON", z->map.path, z->json_section->offset);
    if (array)
        return bad(z, z->json_section->offset, e, "section JSON: tensors: the file has a section TNSR");
    const uint32_t crc = checksum(z->map.data + s->offset, s->size);
    if (crc != s->crc)
        return bad(z, s->offset, e, "section TNSR: checksum: found %08" PRIx32 ", the bytes give %08" PRIx32, s->crc,
                   crc);
    return zlist_read(&z->tensors, z->map.data + s->offset, s->size, &f, e) == 0
               ? 0 : err_prefix(e, "%s: offset %" PRIu64 ": section TNSR", z->map.path, s->offset);
}

/* ---- originals ---- */

/* 1 if the name is a relative path that stays inside its folder and prints on one line. */
static int is_safe_name(const char *name)
{
    for (const char *part = name;;) {
        size_t n = strcspn(part, "/");
        if (n == 0 || (n <= 2 && strspn(part, ".") >= n))
            return 0;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)part[i] < 32 || part[i] == '\\' || part[i] == 127)
                return 0;
        if (!part[n])
            return 1;
        part += n + 1;
    }
}

static int read_original(const struct zfile *z, struct original *o, const json_t *j, struct err *e)
{
    int64_t at, packed, size, crc;
    uint64_t room = z->packed ? z->packed->size : 0;
    if (!json_is_object(j))
        return err_set(e, ERR_FORMAT, "found %s, expected an object", js_kind(j));
    if (js_string(j, "name", &o->name, e) < 0 || js_int(j, "at", 0, INT64_MAX, &at, e) < 0 ||
        js_int(j, "packed", 1, INT64_MAX, &packed, e) < 0 || js_int(j, "size", 0, INT64_MAX, &size, e) < 0 ||
        js_int(j, "crc", 0, UINT32_MAX, &crc, e) < 0)
        return -1;
    if (!is_safe_name(o->name))
        return err_set(e, ERR_FORMAT, "name: '%s' is not the name of a file below a folder", o->name);
    if ((uint64_t)at > room || (uint64_t)packed > room - (uint64_t)at)
        return err_set(e, ERR_FORMAT, "%s: at %" PRId64 ", packed %" PRId64 ": beyond section ORIG of %" PRIu64
                       " bytes", o->name, at, packed, room);
    if (size / 1100 > packed)                   /* deflate compresses by a factor of 1032 at most */
        return err_set(e, ERR_FORMAT, "%s: size: %" PRId64 " bytes cannot come out of %" PRId64, o->name, size, packed);
    o->offset = z->packed ? z->packed->offset + (uint64_t)at : 0;
    o->packed = (uint64_t)packed;
    o->size = (uint64_t)size;
    o->crc = (uint32_t)crc;
    return 0;
}

static int read_originals(struct zfile *z, struct err *e)
{
    const json_t *array;
    if (open_array(z, "originals", &array, sizeof *z->originals, &z->originals, &z->n_originals, e) < 0)
        return -1;
    if (z->n_originals > ZSE_MAX_ORIGINALS)
        return bad(z, z->json_section->offset, e, "section JSON: originals: %d, expected at most %d", z->n_originals,
                   ZSE_MAX_ORIGINALS);
    for (int i = 0; i < z->n_originals; i++) {
        if (read_original(z, &z->originals[i], json_array_get(array, (size_t)i), e) < 0)
            return err_prefix(e, "%s: offset %" PRIu64 ": section JSON: original %d", z->map.path,
                              z->json_section->offset, i);
        for (int k = 0; k < i; k++)
            if (strcmp(z->originals[k].name, z->originals[i].name) == 0)
                return bad(z, z->json_section->offset, e, "section JSON: original %s occurs twice",
                           z->originals[i].name);
    }
    return 0;
}

/* ---- open and close ---- */

/* MADV_POPULATE_READ (Linux 5.14) reads and maps missing pages.  For a file that is in the page
 * cache in large folios this takes 5 ms per gigabyte and saves the readers 10 ms; for a file on a
 * disk it runs at the speed of the disk.  Pages are populated in pieces, so that closing need not
 * wait for the disk.  With MADV_HUGEPAGE, Linux reads a file that is not in the page cache into
 * huge pages, if the file system has large folios; pages in the cache stay as they are. */
static void *populate(void *arg)
{
    enum { PIECE = 8 << 20, POPULATE_READ = 22 };
    struct zfile *z = arg;
    const uint64_t end = z->weights->offset + z->weights->size, page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t begin = z->weights->offset / page * page;
    madvise((void *)(z->map.data + begin), end - begin, MADV_HUGEPAGE);     /* best effort */
    for (uint64_t at = begin; at < end && !z->stop_populator; at += PIECE)
        if (madvise((void *)(z->map.data + at), end - at < PIECE ? end - at : PIECE, POPULATE_READ) != 0)
            return NULL;                /* an older kernel: pages are faulted in on first use */
    z->populated = !z->stop_populator;
    return NULL;
}

struct zfile *zfile_open(const char *path, struct err *e)
{
    return zfile_open_guarded(path, 0, &(struct map_guard){ NULL, NULL }, e);
}

static int read_head(struct zfile *z, struct err *e)
{
    return read_header(z, e) < 0 || read_table(z, e) < 0 || check_sections(z, e) < 0 ? -1 : 0;
}
static int read_lists(struct zfile *z, struct err *e)
{
    return read_json(z, e) < 0 || read_groups(z, e) < 0 || read_tensors(z, e) < 0 || read_originals(z, e) < 0 ? -1 : 0;
}

struct zfile *zfile_open_guarded(const char *path, uint64_t most, const struct map_guard *guard, struct err *e)
{
    struct zfile *z = calloc(1, sizeof *z);
    if (!z) {
        err_nomem(e, path);
        return NULL;
    }
    if (map_open(&z->map, path, e) < 0) {
        free(z);
        return NULL;
    }
    z->guard = *guard;
    z->written_ns = z->map.changed_ns;
    if (z->guard.add)
        z->guard.add(&z->map);
    int rc = read_head(z, e);
    /* best effort: without the thread, pages are faulted in on first use */
    if (rc == 0 && z->weights && z->weights->size <= most)
        z->has_populator = thread_start(&z->populator, populate, z) == 0;
    rc = rc < 0 ? rc : read_lists(z, e);
    if (z->map.lost)                    /* zeros were read in the place of lost pages */
        rc = map_check(&z->map, e);
    if (rc < 0) {
        zfile_close(z);
        return NULL;
    }
    return z;
}

void zfile_close(struct zfile *z)
{
    if (!z)
        return;
    if (z->has_populator) {
        z->stop_populator = 1;
        pthread_join(z->populator, NULL);
    }
    json_decref(z->json);
    free(z->groups);
    zlist_release(&z->tensors);
    free(z->originals);
    if (z->guard.remove)
        z->guard.remove(&z->map);
    map_close(&z->map);
    free(z);
}

const char *zfile_path(const struct zfile *z) { return z->map.path; }
size_t zfile_size(const struct zfile *z) { return z->map.size; }
const void *zfile_data(const struct zfile *z) { return z->map.data; }
struct map *zfile_map(struct zfile *z) { return &z->map; }
int zfile_n_tensors(const struct zfile *z) { return z->tensors.n; }
const struct zfile_tensor *zfile_tensor(const struct zfile *z, int i) { return &z->tensors.tensor[i]; }
int zfile_n_groups(const struct zfile *z) { return z->n_groups; }
const struct zfile_group *zfile_group(const struct zfile *z, int i) { return &z->groups[i]; }
const json_t *zfile_json(const struct zfile *z) { return z->json; }
int zfile_n_originals(const struct zfile *z) { return z->n_originals; }

void zfile_version(const struct zfile *z, int *major, int *minor, int *patch)
{
    *major = z->header.major;
    *minor = z->header.minor;
    *patch = z->header.patch;
}

static int read_at(int fd, size_t at, size_t n, uint8_t *out)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(fd, out + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        done += (size_t)got;
    }
    return 0;
}

int zfile_pread(const struct zfile *z, const void *from, size_t n, void *out)
{
    return read_at(z->map.fd, (size_t)((const uint8_t *)from - z->map.data), n, out);
}

int zfile_direct(const struct zfile *z)
{
    char path[40];
    /* opens this file, even if its path now names another one */
    snprintf(path, sizeof path, "/proc/self/fd/%d", z->map.fd);
    return open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
}

/* Returns 1 if mincore() shows which pages of this file are in the page cache.  For files that this
 * user neither owns nor may write, it reports all pages as cached, and a read with RWF_NOWAIT
 * brings in missing pages, so the state of the cache cannot be found out. */
static int cache_is_told(const struct zfile *z)
{
    struct stat st;
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", z->map.fd);
    return (fstat(z->map.fd, &st) == 0 && st.st_uid == geteuid()) || faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

static int in_page_cache(const void *from, size_t n)
{
    enum { MOST = 4096 };
    unsigned char there[MOST];
    /* the machine's pages may be larger than ZSE_PAGE */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)from / page * page,
                    pages = ((uintptr_t)from + n - first + page - 1) / page;
    for (uintptr_t i = 0; i < pages; i += MOST) {
        const uintptr_t count = pages - i < MOST ? pages - i : MOST;
        if (mincore((void *)(first + i * page), count * page, there) != 0)
            return 0;
        for (size_t k = 0; k < count; k++)
            if (!(there[k] & 1))
                return 0;
    }
    return 1;
}

int zfile_pread_direct(const struct zfile *z, int direct, const void *from, size_t n, void *out)
{
    const size_t at = (size_t)((const uint8_t *)from - z->map.data),
                 inside = z->map.size - at < n ? z->map.size - at : n;
    const size_t whole = inside / ZSE_PAGE * ZSE_PAGE;
    if (direct < 0 || (cache_is_told(z) && in_page_cache(from, inside)) || read_at(direct, at, whole, out) != 0)
        return zfile_pread(z, from, inside, out);
    return read_at(z->map.fd, at + whole, inside - whole, (uint8_t *)out + whole);
}

const struct zfile_tensor *zfile_find(const struct zfile *z, const char *name) { return zlist_find(&z->tensors, name); }

const void *zfile_tokenizer(const struct zfile *z, size_t *size)
{
    if (!z->tokenizer)
        return NULL;
    *size = (size_t)z->tokenizer->size;
    return z->map.data + z->tokenizer->offset;
}

const void *zfile_heads(const struct zfile *z, enum heads_kind kind, size_t *size)
{
    if (!z->heads[kind])
        return NULL;
    *size = (size_t)z->heads[kind]->size;
    return z->map.data + z->heads[kind]->offset;
}

const char *zfile_original_name(const struct zfile *z, int i, size_t *size)
{
    if (size)
        *size = (size_t)z->originals[i].size;
    return z->originals[i].name;
}

int zfile_original_read(const struct zfile *z, int i, void *out, struct err *e)
{
    const struct original *o = &z->originals[i];
    uLongf n = (uLongf)o->size;
    uLong used = (uLong)o->packed;
    int r = uncompress2(out, &n, z->map.data + o->offset, &used);
    if (r != Z_OK || n != o->size || used != o->packed)
        return bad(z, o->offset, e, "original %s: does not unpack to %" PRIu64 " bytes (zlib: %d)", o->name, o->size,
                   r);
    uint32_t crc = checksum(out, o->size);
    if (crc != o->crc)
        return bad(z, o->offset, e, "original %s: checksum: found %08" PRIx32 ", the bytes give %08" PRIx32, o->name,
                   o->crc, crc);
    return 0;
}

/* Check that bytes without a checksum are 0. */
static int check_zeros(const struct zfile *z, uint64_t from, uint64_t to, struct err *e)
{
    for (uint64_t i = from; i < to; i++)
        if (z->map.data[i])
            return bad(z, i, e, "padding: found %d, expected 0", z->map.data[i]);
    return 0;
}

/* A verification in pieces: units to skip, the stop flag, and the units counted so far. */
struct verify_job { int *at; const _Atomic int *stop; int unit; };

/* Should the next unit be verified now?  Not once it is stopped. */
static int is_due(struct verify_job *v) { return v->unit++ >= *v->at && !(v->stop && *v->stop); }

static int unit_done(struct verify_job *v)
{
    *v->at = v->unit;
    return 0;
}

static int verify_group(const struct zfile *z, int i, uint64_t end, struct err *e)
{
    const struct zfile_group *g = &z->groups[i];
    const uint32_t crc = checksum(z->map.data + g->offset, g->size);
    char layer[16] = "";
    if (g->layer >= 0)
        snprintf(layer, sizeof layer, " %d", g->layer);
    if (crc != g->crc)
        return bad(z, g->offset, e, "group %d (%s%s): checksum: found %08" PRIx32 ", the %" PRIu64 " bytes give %08"
                   PRIx32, i, g->kind, layer, g->crc, g->size, crc);
    return check_zeros(z, end, g->offset, e);
}

static int verify_weights(const struct zfile *z, struct verify_job *v, struct err *e)
{
    uint64_t end = z->weights->offset;
    for (int i = 0; i < z->n_groups; i++) {
        if (is_due(v) && (verify_group(z, i, end, e) < 0 || unit_done(v) < 0))
            return -1;
        end = z->groups[i].offset + z->groups[i].size;
    }
    return check_zeros(z, end, z->weights->offset + z->weights->size, e);
}

static int verify_section(const struct zfile *z, const struct zse_section *s, struct err *e)
{
    const uint32_t crc = checksum(z->map.data + s->offset, s->size);
    return crc == s->crc ? 0 : bad(z, s->offset, e, "section %.4s: checksum: found %08" PRIx32 ", the %" PRIu64
                                   " bytes give %08" PRIx32, s->kind, s->crc, s->size, crc);
}

static int verify_original(const struct zfile *z, int i, struct err *e)
{
    void *out = malloc(z->originals[i].size + 1);
    const int r = out ? zfile_original_read(z, i, out, e) : err_nomem(e, z->originals[i].name);
    free(out);
    return r;
}

int zfile_verify_from(const struct zfile *z, int *at, const _Atomic int *stop, struct err *e)
{
    struct verify_job v = { at, stop, 0 };
    const struct zse_section *sorted[ZSE_MAX_SECTIONS];
    uint64_t end = sizeof z->header;
    for (uint32_t i = 0; i < z->header.n_sections; i++)
        sorted[i] = &z->sections[i];
    qsort(sorted, z->header.n_sections, sizeof *sorted, by_section_offset);
    for (uint32_t i = 0; i < z->header.n_sections; i++) {
        const struct zse_section *s = sorted[i];
        if (check_zeros(z, end, s->offset, e) < 0)
            return -1;
        end = s->offset + s->size;
        if (s == z->weights ? verify_weights(z, &v, e) < 0
                            : is_due(&v) && (verify_section(z, s, e) < 0 || unit_done(&v) < 0))
            return -1;
    }
    uint64_t table_end = z->header.table_offset + z->header.n_sections * sizeof(struct zse_section);
    if (check_zeros(z, end, z->header.table_offset, e) < 0 || check_zeros(z, table_end, z->map.size, e) < 0)
        return -1;
    for (int i = 0; i < z->n_originals; i++)
        if (is_due(&v) && (verify_original(z, i, e) < 0 || unit_done(&v) < 0))
            return -1;
    return *at == v.unit;
}

int zfile_verify(const struct zfile *z, struct err *e)
{
    int at = 0;
    return zfile_verify_from(z, &at, NULL, e) < 0 ? -1 : 0;
}

void zfile_set_damage(struct zfile *z, const struct err *e)
{
    z->damage = *e;
    z->damaged = 1;
}

int zfile_is_populated(const struct zfile *z) { return z->populated; }

int zfile_check(const struct zfile *z, struct err *e)
{
    int64_t written_ns;
    if (z->damaged) {
        *e = z->damage;
        return -1;
    }
    if (map_whole(&z->map, &written_ns, e) != 0)
        return -1;
    if (written_ns == z->written_ns)
        return 0;
    err_set(e, ERR_IO, "%s: " MAP_CHANGED, z->map.path);
    return 1;
}

int zfile_compare(struct zfile *z, struct err *e)
{
    struct err found;
    int64_t before, after;
    if (map_whole(&z->map, &before, e) != 0)
        return -1;
    const int same = memcmp(z->map.data, &z->header, sizeof z->header) == 0 &&
                     memcmp(z->map.data + z->header.table_offset, z->sections,
                            z->header.n_sections * sizeof *z->sections) == 0 && zfile_verify(z, &found) == 0;
    if (map_whole(&z->map, &after, e) != 0)
        return -1;
    if (!same || after != before)       /* written to meanwhile: the bytes read are uncertain */
        return err_set(e, ERR_IO, "%s: " MAP_CHANGED, z->map.path);
    z->written_ns = before;
    return 0;
}

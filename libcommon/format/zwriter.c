/* zwriter.c - write a .zse file front to back: header (patched at the end), weights, tokenizer,
 * originals, list of tensors, JSON, section table. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "libcommon/base/file.h"
#include "libcommon/format/zbytes.h"
#include "libcommon/format/zfile.h"

/* Bytes are written in pieces that begin and end at multiples of a huge page.  A file that was
 * written so stays in the page cache in huge pages, on file systems with large folios (ext4 of
 * Linux 6.16, XFS of 6.6); smaller pieces get smaller folios.  Mapping it then takes a sixth of the
 * time, and cores read it faster (prefetch.inc has figures). */
enum { BUFFER = 2 << 20 };

struct blob { void *data; size_t size, room; };

struct zwriter {
    struct atomic_file f;
    uint8_t *buffer;                    /* [BUFFER] bytes to be written */
    size_t n;
    uint32_t crc;                       /* checksum of the current group or section */
    json_t *groups, *originals;
    struct blob records, maps, strings; /* contents of section TNSR */
    /* offset in `strings` of the last tensor's source name; consecutive tensors that are made from
     * the same source tensor share one copy of the name */
    uint32_t source;
    json_t *group;                      /* the current one, borrowed; NULL: none */
    uint64_t group_offset, weights_end;
    uint64_t left;                      /* bytes still missing of the current tensor */
    int replaying;                      /* the file already has these bytes: advance the position
                                         * and fill the lists without writing */
    char name[160];                     /* name of the current tensor, for messages */
    struct blob tokenizer, packed;      /* packed: the zlib streams of all originals */
    const void *heads[HEADS_KINDS]; size_t n_heads[HEADS_KINDS];       /* heads (borrowed), their bytes; NULL: none */
    struct zse_section sections[8];
    uint32_t n_sections;
};

static uint64_t bytes_written(const struct zwriter *w)
{
    return w->f.offset + w->n;
}

static int flush(struct zwriter *w, struct err *e)
{
    size_t n = w->n;
    w->n = 0;
    return n ? atomic_write(&w->f, w->buffer, n, e) : 0;
}

static int put(struct zwriter *w, const void *data, size_t n, struct err *e)
{
    const uint8_t *p = data;
    if (n == 0)
        return 0;
    if (w->replaying) {
        w->f.offset += n;
        return 0;
    }
    for (size_t done = 0; done < n;) {                  /* crc32 takes an unsigned int */
        unsigned piece = n - done > 1u << 30 ? 1u << 30 : (unsigned)(n - done);
        w->crc = (uint32_t)crc32(w->crc, p + done, piece);
        done += piece;
    }
    while (n) {
        const size_t room = BUFFER - (size_t)(bytes_written(w) % BUFFER), piece = n < room ? n : room;
        memcpy(w->buffer + w->n, p, piece);
        w->n += piece;
        p += piece;
        n -= piece;
        if (piece == room && flush(w, e) < 0)
            return -1;
    }
    return 0;
}

static int pad_to(struct zwriter *w, uint64_t multiple, struct err *e)
{
    static const uint8_t zeros[ZSE_PAGE];
    uint64_t at = bytes_written(w);
    return put(w, zeros, (size_t)(zse_round_up(at, multiple) - at), e);
}

static struct zwriter *make(const char *path, struct err *e)
{
    struct zwriter *w = calloc(1, sizeof *w);
    if (w && (w->buffer = malloc(BUFFER)) && (w->groups = json_array()) && (w->originals = json_array()))
        return w;
    err_nomem(e, path);
    zwriter_abort(w);
    return NULL;
}

static const struct zse_header blank;

struct zwriter *zwriter_open(const char *path, struct err *e)
{
    struct zwriter *w = make(path, e);
    if (w && atomic_open(&w->f, path, e) == 0 && put(w, &blank, sizeof blank, e) == 0)
        return w;
    zwriter_abort(w);
    return NULL;
}

int zwriter_resume(struct zwriter **out, const char *path, struct err *e)
{
    struct zwriter *w = *out = make(path, e);
    if (!w)
        return -1;
    const int rc = atomic_unpark(&w->f, path, e);
    w->replaying = 1;
    if (rc == 1)
        return put(w, &blank, sizeof blank, e) == 0 ? 1 : -1;
    zwriter_abort(w);
    *out = NULL;
    return rc;
}

void zwriter_abort(struct zwriter *w)
{
    if (!w)
        return;
    if (w->f.path)
        atomic_abort(&w->f);
    json_decref(w->groups);
    json_decref(w->originals);
    free(w->buffer);
    free(w->tokenizer.data);
    free(w->packed.data);
    free(w->records.data);
    free(w->maps.data);
    free(w->strings.data);
    free(w);
}

static int end_tensor(const struct zwriter *w, struct err *e)
{
    return w->left ? err_set(e, ERR_SHAPE, "%s: tensor %s: %" PRIu64 " bytes were not written", w->f.path, w->name,
                             w->left) : 0;
}

/* Compute the checksum of the current group from the file. */
static int read_crc(struct zwriter *w, struct err *e)
{
    w->crc = 0;
    for (uint64_t at = w->group_offset, end = bytes_written(w); at < end;) {
        const ssize_t n = pread(w->f.fd, w->buffer, end - at < BUFFER ? (size_t)(end - at) : BUFFER, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? err_sys(e, "%s", w->f.temp)
                         : err_set(e, ERR_FORMAT, "%s: ends at %" PRIu64 ", expected more", w->f.temp, at);
        w->crc = (uint32_t)crc32(w->crc, w->buffer, (uInt)n);
        at += (uint64_t)n;
    }
    return 0;
}

static int end_group(struct zwriter *w, struct err *e)
{
    if (end_tensor(w, e) < 0)
        return -1;
    if (!w->group)
        return 0;
    if (w->replaying && read_crc(w, e) < 0)
        return -1;
    w->weights_end = bytes_written(w);
    json_object_set_new(w->group, "size", json_integer((json_int_t)(w->weights_end - w->group_offset)));
    json_object_set_new(w->group, "crc", json_integer(w->crc));
    w->group = NULL;
    return 0;
}

int zwriter_group(struct zwriter *w, const char *kind, int layer, struct err *e)
{
    if (end_group(w, e) < 0 || pad_to(w, ZSE_PAGE, e) < 0)
        return -1;
    w->group_offset = bytes_written(w);
    w->crc = 0;
    w->group = json_pack("{s:s, s:I}", "kind", kind, "offset", (json_int_t)w->group_offset);
    if (!w->group || json_array_append_new(w->groups, w->group) < 0) {
        w->group = NULL;
        return err_nomem(e, "groups");
    }
    if (layer >= 0)
        json_object_set_new(w->group, "layer", json_integer(layer));
    return 0;
}

/* Append n bytes; returns their address, or NULL without memory. */
static void *append(struct blob *b, const void *data, size_t n)
{
    if (b->room - b->size < n) {
        const size_t room = 2 * b->room + n + 1024;
        void *grown = realloc(b->data, room);
        if (!grown)
            return NULL;
        b->data = grown;
        b->room = room;
    }
    void *at = (uint8_t *)b->data + b->size;
    memcpy(at, data, n);
    b->size += n;
    return at;
}

static int add_string(struct blob *strings, const char *s, uint32_t *at, struct err *e)
{
    if ((!strings->size && !append(strings, "", 1)) || strings->size + strlen(s) >= UINT32_MAX)
        return err_nomem(e, "names of tensors");
    *at = (uint32_t)strings->size;
    return append(strings, s, strlen(s) + 1) ? 0 : err_nomem(e, "names of tensors");
}

/* Find or add a map; layers with equal maps share one entry. */
static int add_map(struct blob *maps, const struct row_map *m, uint32_t *index, struct err *e)
{
    const struct zse_map z = { m->offset, m->run, m->stride, m->first, m->slice, m->slice_stride };
    const size_t n = maps->size / sizeof z;
    for (size_t i = n, tried = 0; i-- > 0 && tried < 4096; tried++)
        if (memcmp((const struct zse_map *)maps->data + i, &z, sizeof z) == 0) {
            *index = (uint32_t)i + 1;
            return 0;
        }
    *index = (uint32_t)n + 1;
    return append(maps, &z, sizeof z) ? 0 : err_nomem(e, "maps of rows");
}

/* Add the record of a tensor: FORMAT.md, section 3. */
static int describe(struct zwriter *w, const struct zfile_tensor *t, uint64_t offset, struct err *e)
{
    const struct row_map *m = &t->map;
    struct zse_tensor r = {
        .offset = offset, .size = t->m.size, .type = (uint16_t)t->m.type, .n_dims = (uint8_t)t->n_dims,
            .group = (uint32_t)json_array_size(w->groups) - 1,
        .dim = { (uint32_t)t->dim[0], t->n_dims == 2 ? (uint32_t)t->dim[1] : 0 }, .pairs = (uint32_t)m->pairs,
        .flags = (uint8_t)((t->tiled ? ZSE_TILED : 0) | (t->grid_kept ? ZSE_GRID_KEPT : 0) |
                           (m->transposed ? ZSE_TRANSPOSED : 0)),
    };
    if (t->tiled) {
        r.group_size = (uint16_t)t->m.group_size;
        r.act_group = (uint16_t)t->m.act_group;
    }
    if ((m->offset || m->run || m->first || m->slice) && add_map(&w->maps, m, &r.map, e) < 0)
        return -1;
    if (add_string(&w->strings, t->name, &r.name, e) < 0 ||
        (t->source_type && add_string(&w->strings, t->source_type, &r.source_type, e) < 0))
        return -1;
    if (t->source_name) {
        r.source_dim[0] = (uint32_t)t->source_rows;
        r.source_dim[1] = (uint32_t)t->source_cols;
        if (w->source && strcmp((const char *)w->strings.data + w->source, t->source_name) == 0)
            r.source = w->source;
        else if (add_string(&w->strings, t->source_name, &r.source, e) < 0)
            return -1;
        w->source = r.source;
    }
    return append(&w->records, &r, sizeof r) ? 0 : err_nomem(e, t->name);
}

int zwriter_tensor(struct zwriter *w, const struct zfile_tensor *t, struct err *e)
{
    assert(w->group);
    if (end_tensor(w, e) < 0 || pad_to(w, t->page || (t->tiled && t->m.size >= ZSE_LARGE) ? ZSE_PAGE : ZSE_LINE,
                                       e) < 0 ||
        describe(w, t, bytes_written(w), e) < 0)
        return -1;
    w->left = t->m.size;
    strncpy(w->name, t->name, sizeof w->name - 1);
    return 0;
}

int zwriter_data(struct zwriter *w, const void *data, size_t n, struct err *e)
{
    if (n > w->left)
        return err_set(e, ERR_SHAPE, "%s: tensor %s: %zu bytes too many", w->f.path, w->name, (size_t)(n - w->left));
    w->left -= n;
    return put(w, data, n, e);
}

int zwriter_skip(struct zwriter *w, uint64_t n, struct err *e)
{
    assert(w->replaying);
    if (n > w->left)
        return err_set(e, ERR_SHAPE, "%s: tensor %s: %" PRIu64 " bytes too many", w->f.path, w->name, n - w->left);
    w->left -= n;
    w->f.offset += n;
    return 0;
}

int zwriter_replayed(struct zwriter *w, struct err *e)
{
    if (end_group(w, e) < 0)
        return -1;
    w->replaying = 0;
    return ftruncate(w->f.fd, (off_t)w->f.offset) == 0 ? 0 : err_sys(e, "%s", w->f.temp);
}

int zwriter_park(struct zwriter *w, struct err *e)
{
    return end_group(w, e) < 0 || flush(w, e) < 0 ? -1 : atomic_park(&w->f, e);
}

const json_t *zwriter_groups(const struct zwriter *w) { return w->groups; }

void zwriter_leave(struct zwriter *w)
{
    if (w && w->f.path)
        atomic_leave(&w->f);
    zwriter_abort(w);
}

int zwriter_tokenizer(struct zwriter *w, const void *blob, size_t n, struct err *e)
{
    assert(!w->tokenizer.data);
    w->tokenizer.data = malloc(n ? n : 1);
    if (!w->tokenizer.data)
        return err_nomem(e, "tokenizer");
    memcpy(w->tokenizer.data, blob, n);
    w->tokenizer.size = n;
    return 0;
}

void zwriter_heads(struct zwriter *w, enum heads_kind kind, const void *blob, size_t n)
{
    w->heads[kind] = blob;
    w->n_heads[kind] = n;
}

int zwriter_original(struct zwriter *w, const char *name, const void *data, size_t n, struct err *e)
{
    uLongf packed = compressBound((uLong)n);
    Bytef *stream = malloc(packed);
    const size_t at = w->packed.size;
    const int done = stream && compress2(stream, &packed, data, (uLong)n, 9) == Z_OK &&
                     append(&w->packed, stream, packed);
    free(stream);
    if (!done)
        return err_nomem(e, name);
    json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:I}", "name", name, "at", (json_int_t)at, "packed", (json_int_t)packed,
                          "size", (json_int_t)n, "crc", (json_int_t)crc32_z(0, data, n));
    if (!j || json_array_append_new(w->originals, j) < 0)
        return err_nomem(e, name);
    return 0;
}

static int begin_section(struct zwriter *w, uint64_t *offset, struct err *e)
{
    if (pad_to(w, ZSE_LINE, e) < 0)
        return -1;
    *offset = bytes_written(w);
    w->crc = 0;
    return 0;
}

static void add_section(struct zwriter *w, const char *kind, uint32_t flags, uint64_t offset, uint64_t size,
                        uint32_t crc)
{
    struct zse_section *s = &w->sections[w->n_sections++];
    memcpy(s->kind, kind, 4);
    s->flags = flags;
    s->offset = offset;
    s->size = size;
    s->crc = crc;
}

static int put_section(struct zwriter *w, const char *kind, uint32_t flags, const void *data, size_t n, struct err *e)
{
    uint64_t offset;
    if (begin_section(w, &offset, e) < 0 || put(w, data, n, e) < 0)
        return -1;
    add_section(w, kind, flags, offset, n, w->crc);
    return 0;
}

static int put_tensors(struct zwriter *w, struct err *e)
{
    const struct zse_tensors head = { .n_tensors = (uint32_t)(w->records.size / sizeof(struct zse_tensor)),
                                      .n_maps = (uint32_t)(w->maps.size / sizeof(struct zse_map)),
                                      .n_string_bytes = (uint32_t)w->strings.size };
    uint64_t offset;
    if (begin_section(w, &offset, e) < 0 || put(w, &head, sizeof head, e) < 0 ||
        put(w, w->records.data, w->records.size, e) < 0 || put(w, w->maps.data, w->maps.size, e) < 0 ||
        put(w, w->strings.data, w->strings.size, e) < 0)
        return -1;
    add_section(w, "TNSR", ZSE_REQUIRED, offset, bytes_written(w) - offset, w->crc);
    return 0;
}

static int put_json(struct zwriter *w, const json_t *json, struct err *e)
{
    json_t *all = json_copy((json_t *)json);
    char *text = NULL;
    if (all && json_object_set(all, "groups", w->groups) == 0 && json_object_set(all, "originals", w->originals) == 0)
        text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    if (!text)
        return err_set(e, ERR_FORMAT, "%s: the description of the model cannot be written as JSON", w->f.path);
    int r = put_section(w, "JSON", ZSE_REQUIRED, text, strlen(text), e);
    free(text);
    return r;
}

static int finish(struct zwriter *w, const json_t *json, struct err *e)
{
    static const char *const heads[] = { [HEADS_MEDUSA] = "MDSA", [HEADS_EAGLE] = "EAGL" };
    if (end_group(w, e) < 0)
        return -1;
    if (json_array_size(w->groups)) {
        uint64_t first = (uint64_t)json_integer_value(json_object_get(json_array_get(w->groups, 0), "offset"));
        add_section(w, "WGTS", ZSE_REQUIRED | ZSE_GROUP_CRCS, first, w->weights_end - first, 0);
    }
    if (w->tokenizer.data && put_section(w, "TOKB", ZSE_REQUIRED, w->tokenizer.data, w->tokenizer.size, e) < 0)
        return -1;
    /* a reader that does not know heads computes without them */
    for (int i = 0; i < HEADS_KINDS; i++)
        if (w->heads[i] && put_section(w, heads[i], 0, w->heads[i], w->n_heads[i], e) < 0)
            return -1;
    if (w->packed.size && put_section(w, "ORIG", ZSE_REQUIRED, w->packed.data, w->packed.size, e) < 0)
        return -1;
    if (put_tensors(w, e) < 0 || put_json(w, json, e) < 0 || pad_to(w, ZSE_LINE, e) < 0)
        return -1;
    struct zse_header h = { .magic = "ZSE", .major = ZSE_MAJOR, .minor = ZSE_MINOR, .patch = ZSE_PATCH };
    size_t table = w->n_sections * sizeof *w->sections;
    h.table_offset = bytes_written(w);
    h.n_sections = w->n_sections;
    h.table_crc = (uint32_t)crc32(0, (const Bytef *)w->sections, (uInt)table);
    if (put(w, w->sections, table, e) < 0 || flush(w, e) < 0)
        return -1;
    h.size = bytes_written(w);
    h.header_crc = (uint32_t)crc32(0, (const Bytef *)&h, offsetof(struct zse_header, header_crc));
    return atomic_pwrite(&w->f, &h, sizeof h, 0, e);
}

int zwriter_commit(struct zwriter *w, const json_t *json, struct err *e)
{
    int r = finish(w, json, e);
    if (r == 0) {
        r = atomic_commit(&w->f, e);
        w->f.path = NULL;
    }
    zwriter_abort(w);
    return r;
}

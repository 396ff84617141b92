/* zwriter.c - write a .zse file front to back: header (patched at the end), weights, tokenizer, originals, JSON, section table. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "libcommon/base/file.h"
#include "libcommon/format/zbytes.h"
#include "libcommon/format/zfile.h"

enum { BUFFER = 1 << 18 };

struct blob { void *data; size_t size; };

struct zwriter {
    struct atomic_file f;
    uint8_t *buffer;                    /* [BUFFER] bytes not yet written */
    size_t n;
    uint32_t crc;                       /* of the current group or section */
    json_t *tensors, *groups, *originals;
    json_t *group;                      /* the current one, borrowed; NULL: none */
    uint64_t group_offset, weights_end;
    uint64_t left;                      /* bytes the current tensor still wants */
    char name[160];                     /* of the current tensor, for messages */
    struct blob tokenizer, packed;      /* packed: the zlib streams of all originals */
    size_t packed_room;
    struct zse_section sections[8];
    uint32_t n_sections;
};

uint64_t zwriter_bytes(const struct zwriter *w)
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
    for (size_t done = 0; done < n;) {                  /* crc32 takes an unsigned int */
        unsigned piece = n - done > 1u << 30 ? 1u << 30 : (unsigned)(n - done);
        w->crc = (uint32_t)crc32(w->crc, p + done, piece);
        done += piece;
    }
    if (n >= BUFFER)
        return flush(w, e) < 0 ? -1 : atomic_write(&w->f, data, n, e);
    if (n > BUFFER - w->n && flush(w, e) < 0)
        return -1;
    memcpy(w->buffer + w->n, data, n);
    w->n += n;
    return 0;
}

static int pad_to(struct zwriter *w, uint64_t multiple, struct err *e)
{
    static const uint8_t zeros[ZSE_PAGE];
    uint64_t at = zwriter_bytes(w);
    return put(w, zeros, (size_t)(zse_round_up(at, multiple) - at), e);
}

struct zwriter *zwriter_open(const char *path, struct err *e)
{
    struct zwriter *w = calloc(1, sizeof *w);
    if (!w || !(w->buffer = malloc(BUFFER)) || !(w->tensors = json_array()) || !(w->groups = json_array()) || !(w->originals = json_array())) {
        err_nomem(e, path);
        goto fail;
    }
    static const struct zse_header blank;
    if (atomic_open(&w->f, path, e) == 0 && put(w, &blank, sizeof blank, e) == 0)
        return w;
fail:
    zwriter_abort(w);
    return NULL;
}

void zwriter_abort(struct zwriter *w)
{
    if (!w)
        return;
    if (w->f.path)
        atomic_abort(&w->f);
    json_decref(w->tensors);
    json_decref(w->groups);
    json_decref(w->originals);
    free(w->buffer);
    free(w->tokenizer.data);
    free(w->packed.data);
    free(w);
}

static int end_tensor(const struct zwriter *w, struct err *e)
{
    return w->left ? err_set(e, ERR_SHAPE, "%s: tensor %s: %" PRIu64 " bytes were not written", w->f.path, w->name, w->left) : 0;
}

static int end_group(struct zwriter *w, struct err *e)
{
    if (end_tensor(w, e) < 0)
        return -1;
    if (!w->group)
        return 0;
    w->weights_end = zwriter_bytes(w);
    json_object_set_new(w->group, "size", json_integer((json_int_t)(w->weights_end - w->group_offset)));
    json_object_set_new(w->group, "crc", json_integer(w->crc));
    w->group = NULL;
    return 0;
}

int zwriter_group(struct zwriter *w, const char *kind, int layer, struct err *e)
{
    if (end_group(w, e) < 0 || pad_to(w, ZSE_PAGE, e) < 0)
        return -1;
    w->group_offset = zwriter_bytes(w);
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

/* What FORMAT.md, section 3 says of one tensor; what is as usual is left out. */
static json_t *describe(const struct zwriter *w, const struct zfile_tensor *t, uint64_t offset)
{
    const struct row_map *m = &t->map;
    json_t *j = json_pack("{s:s, s:s, s:I, s:I}", "name", t->name, "type", qtype_info(t->m.type)->name, "offset", (json_int_t)offset,
                          "size", (json_int_t)t->m.size);
    if (!j)
        return NULL;
    json_object_set_new(j, "shape", t->n_dims == 1 ? json_pack("[I]", (json_int_t)t->dim[0])
                                                   : json_pack("[I,I]", (json_int_t)t->dim[0], (json_int_t)t->dim[1]));
    json_object_set_new(j, "group", json_integer((json_int_t)json_array_size(w->groups) - 1));
    if (t->tiled) {
        json_object_set_new(j, "tiled", json_true());
        if (!qtype_info(t->m.type)->is_float) {
            json_object_set_new(j, "group_size", json_integer(t->m.group_size));
            json_object_set_new(j, "act_group", json_integer(t->m.act_group));
        }
    }
    if (t->source_name) {
        json_object_set_new(j, "source", json_string(t->source_name));
        json_object_set_new(j, "source_shape", json_pack("[I,I]", (json_int_t)t->source_rows, (json_int_t)t->source_cols));
    }
    if (t->source_type) {
        json_object_set_new(j, "source_type", json_string(t->source_type));
        json_object_set_new(j, "grid_kept", json_boolean(t->grid_kept));
    }
    if (m->offset || m->run)
        json_object_set_new(j, "rows", json_pack("[I,I,I]", (json_int_t)m->offset, (json_int_t)m->run, (json_int_t)m->stride));
    if (m->pairs)
        json_object_set_new(j, "pairs", json_integer(m->pairs));
    if (m->transposed)
        json_object_set_new(j, "transposed", json_true());
    if (m->first || m->slice)
        json_object_set_new(j, "block", json_pack("[I,I,I]", (json_int_t)m->first, (json_int_t)m->slice, (json_int_t)m->slice_stride));
    return j;
}

int zwriter_tensor(struct zwriter *w, const struct zfile_tensor *t, struct err *e)
{
    assert(w->group);
    if (end_tensor(w, e) < 0 || pad_to(w, t->page || (t->tiled && t->m.size >= ZSE_LARGE) ? ZSE_PAGE : ZSE_LINE, e) < 0)
        return -1;
    json_t *j = describe(w, t, zwriter_bytes(w));
    if (!j || json_array_append_new(w->tensors, j) < 0)
        return err_nomem(e, t->name);
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

int zwriter_original(struct zwriter *w, const char *name, const void *data, size_t n, struct err *e)
{
    uLongf packed = compressBound((uLong)n);
    if (w->packed_room - w->packed.size < packed) {
        void *p = realloc(w->packed.data, w->packed.size + packed);
        if (!p)
            return err_nomem(e, name);
        w->packed.data = p;
        w->packed_room = w->packed.size + packed;
    }
    if (compress2((Bytef *)w->packed.data + w->packed.size, &packed, data, (uLong)n, 9) != Z_OK)
        return err_nomem(e, name);
    json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:I}", "name", name, "at", (json_int_t)w->packed.size, "packed", (json_int_t)packed,
                          "size", (json_int_t)n, "crc", (json_int_t)crc32_z(0, data, n));
    if (!j || json_array_append_new(w->originals, j) < 0)
        return err_nomem(e, name);
    w->packed.size += packed;
    return 0;
}

static void add_section(struct zwriter *w, const char *kind, uint32_t flags, uint64_t offset, uint64_t size, uint32_t crc)
{
    struct zse_section *s = &w->sections[w->n_sections++];
    memcpy(s->kind, kind, 4);
    s->flags = flags;
    s->offset = offset;
    s->size = size;
    s->crc = crc;
}

static int put_section(struct zwriter *w, const char *kind, const void *data, size_t n, struct err *e)
{
    if (pad_to(w, ZSE_LINE, e) < 0)
        return -1;
    uint64_t offset = zwriter_bytes(w);
    w->crc = 0;
    if (put(w, data, n, e) < 0)
        return -1;
    add_section(w, kind, ZSE_REQUIRED, offset, n, w->crc);
    return 0;
}

static int put_json(struct zwriter *w, const json_t *json, struct err *e)
{
    json_t *all = json_copy((json_t *)json);
    char *text = NULL;
    if (all && json_object_set(all, "groups", w->groups) == 0 && json_object_set(all, "tensors", w->tensors) == 0 &&
        json_object_set(all, "originals", w->originals) == 0)
        text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    if (!text)
        return err_set(e, ERR_FORMAT, "%s: the description of the model cannot be written as JSON", w->f.path);
    int r = put_section(w, "JSON", text, strlen(text), e);
    free(text);
    return r;
}

static int finish(struct zwriter *w, const json_t *json, struct err *e)
{
    if (end_group(w, e) < 0)
        return -1;
    if (json_array_size(w->groups)) {
        uint64_t first = (uint64_t)json_integer_value(json_object_get(json_array_get(w->groups, 0), "offset"));
        add_section(w, "WGTS", ZSE_REQUIRED | ZSE_GROUP_CRCS, first, w->weights_end - first, 0);
    }
    if (w->tokenizer.data && put_section(w, "TOKB", w->tokenizer.data, w->tokenizer.size, e) < 0)
        return -1;
    if (w->packed.size && put_section(w, "ORIG", w->packed.data, w->packed.size, e) < 0)
        return -1;
    if (put_json(w, json, e) < 0 || pad_to(w, ZSE_LINE, e) < 0)
        return -1;
    struct zse_header h = { .magic = "ZSE", .major = ZSE_MAJOR, .minor = ZSE_MINOR, .patch = ZSE_PATCH };
    size_t table = w->n_sections * sizeof *w->sections;
    h.table_offset = zwriter_bytes(w);
    h.n_sections = w->n_sections;
    h.table_crc = (uint32_t)crc32(0, (const Bytef *)w->sections, (uInt)table);
    if (put(w, w->sections, table, e) < 0 || flush(w, e) < 0)
        return -1;
    h.size = zwriter_bytes(w);
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

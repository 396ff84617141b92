/* zlist.c - read the list of tensors from section TNSR or from the JSON. */
#include "libcommon/format/zlist.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>

#include "libcommon/base/json.h"
#include "libcommon/base/siphash.h"
#include "libcommon/base/utf8.h"
#include "libcommon/format/zbytes.h"

/* ---- names ---- */

static uint64_t hash(const struct zlist *l, const char *name) { return siphash(l->key, name, strlen(name)); }

/* The slot of this name, or the free slot where it belongs. */
static uint64_t *place_of(const struct zlist *l, const char *name, uint64_t h)
{
    for (uint64_t i = h;; i++) {
        uint64_t *s = &l->slot[i & l->mask];
        if (!*s || (*s >> 32 == h >> 32 && strcmp(l->tensor[(uint32_t)*s - 1].name, name) == 0))
            return s;
    }
}

const struct zfile_tensor *zlist_find(const struct zlist *l, const char *name)
{
    const uint64_t *s = l->slot ? place_of(l, name, hash(l, name)) : NULL;
    return s && *s ? &l->tensor[(uint32_t)*s - 1] : NULL;
}

static int index_names(struct zlist *l, struct err *e)
{
    uint64_t room = 16;
    while (room < 2 * (uint64_t)l->n)
        room *= 2;
    l->slot = calloc(room, sizeof *l->slot);
    if (!l->slot)
        return err_nomem(e, "tensor names");
    l->mask = (uint32_t)room - 1;
    if (getrandom(l->key, sizeof l->key, 0) != (ssize_t)sizeof l->key)
        return err_sys(e, "random bytes for the tensors' names");
    for (int k = 0; k < l->n; k++) {
        const uint64_t h = hash(l, l->tensor[k].name);
        uint64_t *s = place_of(l, l->tensor[k].name, h);
        if (*s)
            return err_set(e, ERR_FORMAT, "tensor %s occurs twice", l->tensor[k].name);
        *s = (h >> 32 << 32) | ((uint32_t)k + 1);
    }
    return 0;
}

static int make_room(struct zlist *l, uint64_t n, struct err *e)
{
    if (n > INT32_MAX / 4)
        return err_set(e, ERR_FORMAT, "%" PRIu64 " tensors, expected at most %d", n, INT32_MAX / 4);
    l->n = (int)n;
    l->tensor = calloc((size_t)n + 1, sizeof *l->tensor);
    return l->tensor ? 0 : err_nomem(e, "tensors");
}

void zlist_release(struct zlist *l)
{
    free(l->tensor);
    free(l->slot);
    memset(l, 0, sizeof *l);
}

/* ---- checks of both forms ---- */

/* Check that the row map of t maps each row to an existing row of the source tensor. */
static int check_map(const struct zfile_tensor *t, struct err *e)
{
    const struct row_map *m = &t->map;
    int64_t rows = t->n_dims == 1 ? 1 : t->dim[0], cols = t->n_dims == 1 ? t->dim[0] : t->dim[1];
    int64_t source_rows = m->transposed ? t->source_cols : t->source_rows,
            source_cols = m->transposed ? t->source_rows : t->source_cols, last;
    if (t->n_dims == 1) {                       /* a vector's elements are mapped like rows */
        rows = cols, cols = 1;
        source_rows = t->source_rows * t->source_cols, source_cols = 1;
    }
    if (m->first < 0 || m->slice < 0 || m->slice_stride < 0 || ((m->first || m->slice) && !m->transposed) ||
        (m->slice && rows % m->slice))
        return err_set(e, ERR_FORMAT, "block: [%" PRId64 ", %" PRId64 ", %" PRId64
                       "] is no block of a transposed source", m->first, m->slice, m->slice_stride);
    if (m->transposed && t->n_dims == 2) {
        int64_t end;
        if (__builtin_mul_overflow(m->slice ? rows / m->slice - 1 : 0, m->slice_stride, &end) ||
            __builtin_add_overflow(end, m->first, &end) || end > source_cols - cols)
            return err_set(e, ERR_FORMAT, "block: [%" PRId64 ", %" PRId64 ", %" PRId64
                           "] lies outside of a source of %" PRId64 " rows", m->first, m->slice,
                           m->slice_stride, source_cols);
        rows = m->slice ? m->slice : rows;
    }
    if (m->run == 0 && m->stride == 0 && m->offset == 0)
        last = rows - 1;
    else if (m->run < 1 || m->stride < 0 || m->offset < 0 ||
             __builtin_mul_overflow((rows - 1) / m->run, m->stride, &last) ||
             __builtin_add_overflow(last, m->offset, &last) ||
             __builtin_add_overflow(last, (rows < m->run ? rows : m->run) - 1, &last))
        return err_set(e, ERR_FORMAT, "rows: [%" PRId64 ", %" PRId64 ", %" PRId64 "] is no map of rows", m->offset,
                       m->run, m->stride);
    if (m->pairs < 0 || m->pairs % 2 || (m->pairs && rows % m->pairs))
        return err_set(e, ERR_FORMAT, "pairs: %d does not divide %" PRId64 " rows into heads", m->pairs, rows);
    if (last >= source_rows || cols > source_cols)
        return err_set(e, ERR_FORMAT, "source_shape: [%" PRId64 ", %" PRId64 "] has no row %" PRId64 " of %" PRId64
                       " values", t->source_rows, t->source_cols, last, cols);
    return 0;
}

/* Derive a tensor's size from its type and dimensions. */
static int shape_tensor(struct zfile_tensor *t, const struct qtype_info *info, int group_size, int act_group,
                        struct err *e)
{
    const int64_t rows = t->n_dims == 1 ? 1 : t->dim[0], cols = t->n_dims == 1 ? t->dim[0] : t->dim[1];
    if (t->tiled)
        return mat_init(&t->m, info->type, group_size, act_group, rows, cols, e);
    if (!info->is_float)
        return err_set(e, ERR_FORMAT, "type: %s is not possible in plain rows, expected f32, f16 or bf16", info->name);
    t->m.type = info->type;
    t->m.rows = (int)rows;
    t->m.cols = (int)cols;
    if (__builtin_mul_overflow((size_t)rows * (size_t)cols, (size_t)(info->bits / 8), &t->m.size))
        return err_set(e, ERR_FORMAT, "shape: %" PRId64 " x %" PRId64 " overflows", rows, cols);
    return 0;
}

/* Check that t lies inside its group and after the previous tensor (NULL: none). */
static int place_tensor(struct zfile_tensor *t, uint64_t size, const struct zlist_file *f,
                        const struct zfile_tensor *before, struct err *e)
{
    const struct zfile_group *g = &f->groups[t->group];
    const uint64_t from = before && before->group == t->group ? before->offset + before->m.size : g->offset;
    if (size != t->m.size)
        return err_set(e, ERR_FORMAT, "size: found %" PRIu64 ", type and shape need %zu", size, t->m.size);
    if (t->offset % ZSE_LINE || t->offset < from)
        return err_set(e, ERR_FORMAT, "offset: found %" PRIu64 ", expected a multiple of %d from %" PRIu64 " on",
                       t->offset, ZSE_LINE, from);
    if (t->offset > g->offset + g->size || size > g->offset + g->size - t->offset)
        return err_set(e, ERR_FORMAT, "offset %" PRIu64 ", size %" PRIu64 ": beyond its group, which ends at %" PRIu64,
                       t->offset, size, g->offset + g->size);
    if (before && before->group > t->group)
        return err_set(e, ERR_FORMAT, "group %d after group %d", t->group, before->group);
    t->m.data = f->data + t->offset;
    return 0;
}

/* ---- section TNSR ---- */

struct section {
    struct zse_tensors head;
    const struct zse_tensor *record;
    const struct zse_map *map;
    const char *string;
};

static int read_head(struct section *s, const uint8_t *section, uint64_t size, struct err *e)
{
    if (size < sizeof s->head)
        return err_set(e, ERR_FORMAT, "%" PRIu64 " bytes, expected at least %zu", size, sizeof s->head);
    memcpy(&s->head, section, sizeof s->head);
    const struct zse_tensors *h = &s->head;
    const uint64_t records = (uint64_t)h->n_tensors * sizeof *s->record, maps = (uint64_t)h->n_maps * sizeof *s->map;
    if (size != sizeof *h + records + maps + h->n_string_bytes)
        return err_set(e, ERR_FORMAT, "%" PRIu64 " bytes, expected %" PRIu64 " for %" PRIu32 " tensors, %" PRIu32
                       " maps and %" PRIu32 " bytes of names", size, sizeof *h + records + maps + h->n_string_bytes,
                       h->n_tensors, h->n_maps, h->n_string_bytes);
    s->record = (const struct zse_tensor *)(section + sizeof *h);
    s->map = (const struct zse_map *)(section + sizeof *h + records);
    s->string = (const char *)section + sizeof *h + records + maps;
    if (h->n_string_bytes && (s->string[0] || s->string[h->n_string_bytes - 1]))
        return err_set(e, ERR_FORMAT, "strings: the first and the last byte are not 0");
    const size_t valid = utf8_valid(s->string, h->n_string_bytes);
    if (valid != h->n_string_bytes)
        return err_set(e, ERR_FORMAT, "strings: byte %zu is not UTF-8", valid);
    return 0;
}

static int read_string(const struct section *s, const char *what, uint32_t at, const char **out, struct err *e)
{
    if (at >= s->head.n_string_bytes && at)
        return err_set(e, ERR_FORMAT, "%s: at %" PRIu32 " of %" PRIu32 " bytes of strings", what, at,
                       s->head.n_string_bytes);
    *out = at ? s->string + at : NULL;
    return 0;
}

/* Read the origin of a tensor. */
static int read_source(const struct section *s, struct zfile_tensor *t, const struct zse_tensor *r, struct err *e)
{
    if (read_string(s, "source", r->source, &t->source_name, e) < 0 ||
        read_string(s, "source_type", r->source_type, &t->source_type, e) < 0)
        return -1;
    t->grid_kept = (r->flags & ZSE_GRID_KEPT) != 0;
    if (!t->source_name)
        return 0;
    if (r->map > s->head.n_maps)
        return err_set(e, ERR_FORMAT, "map: %" PRIu32 " of %" PRIu32, r->map, s->head.n_maps);
    if (r->map) {
        const struct zse_map *m = &s->map[r->map - 1];
        t->map = (struct row_map){ .offset = m->offset, .run = m->run, .stride = m->stride, .first = m->first,
                                   .slice = m->slice, .slice_stride = m->slice_stride };
    }
    t->map.transposed = (r->flags & ZSE_TRANSPOSED) != 0;
    if (r->pairs > INT32_MAX)
        return err_set(e, ERR_FORMAT, "pairs: %" PRIu32, r->pairs);
    t->map.pairs = (int)r->pairs;
    for (int i = 0; i < 2; i++)
        if (r->source_dim[i] < 1 || r->source_dim[i] > INT32_MAX)
            return err_set(e, ERR_FORMAT, "source_shape: size %d is not 1 to 2^31 - 1", i);
    t->source_rows = r->source_dim[0];
    t->source_cols = r->source_dim[1];
    return check_map(t, e);
}

static int read_record(const struct section *s, struct zfile_tensor *t, const struct zse_tensor *r,
                       const struct zlist_file *f, const struct zfile_tensor *before, struct err *e)
{
    const struct qtype_info *info = qtype_info((enum qtype)r->type);
    if (!info)
        return err_set(e, ERR_UNSUPPORTED, "type: number format %d is unknown to this program (version %d.%d.%d)",
                       r->type, ZSE_MAJOR, ZSE_MINOR, ZSE_PATCH);
    if (r->flags & ~(ZSE_TILED | ZSE_GRID_KEPT | ZSE_TRANSPOSED))
        return err_set(e, ERR_UNSUPPORTED, "flags: %d is unknown to this program (version %d.%d.%d)", r->flags,
                       ZSE_MAJOR, ZSE_MINOR, ZSE_PATCH);
    if (r->n_dims < 1 || r->n_dims > 2)
        return err_set(e, ERR_FORMAT, "shape: %d dimensions, expected 1 or 2", r->n_dims);
    for (int i = 0; i < r->n_dims; i++)
        if (r->dim[i] < 1 || r->dim[i] > INT32_MAX)
            return err_set(e, ERR_FORMAT, "shape: size %d is not 1 to 2^31 - 1", i);
    if (r->group >= (uint32_t)f->n_groups)
        return err_set(e, ERR_FORMAT, "group: %" PRIu32 ", expected less than %d", r->group, f->n_groups);
    t->n_dims = r->n_dims;
    t->dim[0] = r->dim[0];
    t->dim[1] = r->n_dims == 2 ? r->dim[1] : 0;
    t->tiled = (r->flags & ZSE_TILED) != 0;
    t->group = (int)r->group;
    t->offset = r->offset;
    return shape_tensor(t, info, r->group_size, r->act_group, e) < 0 ||
           read_source(s, t, r, e) < 0 ? -1 : place_tensor(t, r->size, f, before, e);
}

int zlist_read(struct zlist *l, const uint8_t *section, uint64_t size, const struct zlist_file *f, struct err *e)
{
    struct section s = { 0 };
    memset(l, 0, sizeof *l);
    if (read_head(&s, section, size, e) < 0 || make_room(l, s.head.n_tensors, e) < 0)
        return -1;
    for (int i = 0; i < l->n; i++) {
        struct zfile_tensor *t = &l->tensor[i];
        if (read_string(&s, "name", s.record[i].name, &t->name, e) < 0)
            return err_prefix(e, "tensor %d", i);
        if (!t->name)
            return err_set(e, ERR_FORMAT, "tensor %d: name: it has none", i);
        if (read_record(&s, t, &s.record[i], f, i ? t - 1 : NULL, e) < 0)
            return err_prefix(e, "tensor %d: tensor %s", i, t->name);
    }
    return index_names(l, e);
}

/* ---- JSON ---- */

static int read_dims(const json_t *j, const char *key, int least, int64_t dim[2], int *n, struct err *e)
{
    const json_t *a = json_object_get(j, key);
    *n = (int)json_array_size(a);
    if (!json_is_array(a) || *n < least || *n > 2)
        return err_set(e, ERR_FORMAT, "%s: expected an array of %s", key, least == 1 ? "1 or 2 sizes" : "2 sizes");
    for (int i = 0; i < *n; i++) {
        const json_t *v = json_array_get(a, (size_t)i);
        dim[i] = json_integer_value(v);
        if (!json_is_integer(v) || dim[i] < 1 || dim[i] > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: size %d is not 1 to 2^31 - 1", key, i);
    }
    return 0;
}

static int read_map(struct zfile_tensor *t, const json_t *j, struct err *e)
{
    const json_t *rows = js_get(j, "rows"), *block = js_get(j, "block");
    int64_t pairs, dim[2];
    int n;
    if (js_string_or(j, "source", NULL, &t->source_name, e) < 0 ||
        js_int_or(j, "pairs", 0, INT32_MAX, 0, &pairs, e) < 0 ||
        js_bool_or(j, "transposed", 0, &t->map.transposed, e) < 0 ||
        js_string_or(j, "source_type", NULL, &t->source_type, e) < 0 ||
        js_bool_or(j, "grid_kept", 0, &t->grid_kept, e) < 0)
        return -1;
    t->map.pairs = (int)pairs;
    if (!t->source_name)
        return 0;
    if (read_dims(j, "source_shape", 2, dim, &n, e) < 0)
        return -1;
    t->source_rows = dim[0];
    t->source_cols = dim[1];
    if (rows) {
        const json_t *v[3] = { json_array_get(rows, 0), json_array_get(rows, 1), json_array_get(rows, 2) };
        if (json_array_size(rows) != 3 || !json_is_integer(v[0]) || !json_is_integer(v[1]) || !json_is_integer(v[2]))
            return err_set(e, ERR_FORMAT, "rows: expected [offset, run, stride]");
        t->map.offset = json_integer_value(v[0]);
        t->map.run = json_integer_value(v[1]);
        t->map.stride = json_integer_value(v[2]);
    }
    if (block) {
        const json_t *v[3] = { json_array_get(block, 0), json_array_get(block, 1), json_array_get(block, 2) };
        if (json_array_size(block) != 3 || !json_is_integer(v[0]) || !json_is_integer(v[1]) || !json_is_integer(v[2]))
            return err_set(e, ERR_FORMAT, "block: expected [first, slice, stride]");
        t->map.first = json_integer_value(v[0]);
        t->map.slice = json_integer_value(v[1]);
        t->map.slice_stride = json_integer_value(v[2]);
    }
    return check_map(t, e);
}

static int read_type(struct zfile_tensor *t, const json_t *j, struct err *e)
{
    const char *name;
    int64_t group_size = 32, act_group = 0;
    if (js_string(j, "type", &name, e) < 0 || read_dims(j, "shape", 1, t->dim, &t->n_dims, e) < 0 ||
        js_bool_or(j, "tiled", 0, &t->tiled, e) < 0)
        return -1;
    const struct qtype_info *info = qtype_find(name);
    if (!info)
        return err_set(e, ERR_UNSUPPORTED, "type: number format '%s' is unknown to this program (version %d.%d.%d)",
                       name, ZSE_MAJOR, ZSE_MINOR, ZSE_PATCH);
    if (t->tiled && (js_int_or(j, "group_size", 1, 1 << 20, 32, &group_size, e) < 0 ||
                     js_int_or(j, "act_group", 0, 1 << 20, 0, &act_group, e) < 0))
        return -1;
    return shape_tensor(t, info, (int)group_size, (int)act_group, e);
}

static int read_object(struct zfile_tensor *t, const json_t *j, const struct zlist_file *f,
                       const struct zfile_tensor *before, struct err *e)
{
    int64_t group, offset, size;
    if (!json_is_object(j))
        return err_set(e, ERR_FORMAT, "found %s, expected an object", js_kind(j));
    if (js_string(j, "name", &t->name, e) < 0)
        return -1;
    if (js_int(j, "group", 0, f->n_groups - 1, &group, e) < 0 || js_int(j, "offset", 0, INT64_MAX, &offset, e) < 0 ||
        js_int(j, "size", 1, INT64_MAX, &size, e) < 0 || read_type(t, j, e) < 0 || read_map(t, j, e) < 0)
        return err_prefix(e, "tensor %s", t->name);
    t->group = (int)group;
    t->offset = (uint64_t)offset;
    return place_tensor(t, (uint64_t)size, f, before, e) == 0 ? 0 : err_prefix(e, "tensor %s", t->name);
}

int zlist_from_json(struct zlist *l, const json_t *array, const struct zlist_file *f, struct err *e)
{
    memset(l, 0, sizeof *l);
    if (array && !json_is_array(array))
        return err_set(e, ERR_FORMAT, "tensors: found %s, expected an array", js_kind(array));
    if (make_room(l, json_array_size(array), e) < 0)
        return -1;
    for (int i = 0; i < l->n; i++)
        if (read_object(&l->tensor[i], json_array_get(array, (size_t)i), f, i ? &l->tensor[i - 1] : NULL, e) < 0)
            return err_prefix(e, "tensor %d", i);
    return index_names(l, e);
}

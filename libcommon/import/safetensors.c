/* safetensors.c - read the index of a safetensors file. */
#include "libcommon/import/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/quant/ggml.h"

static const struct { const char *name; int type; } dtypes[] = {
    { "F32", GGML_F32 }, { "F16", GGML_F16 }, { "BF16", GGML_BF16 }, { "F64", GGML_F64 }, { "I8", GGML_I8 },
        { "I16", GGML_I16 },
    { "I32", GGML_I32 }, { "I64", GGML_I64 }, { "U8", SRC_U8 }, { "U16", SRC_U16 }, { "U32", SRC_U32 },
    { "U64", SRC_U64 },
    { "BOOL", SRC_BOOL }, { "F8_E4M3", SRC_F8_E4M3 }, { "F8_E5M2", SRC_F8_E5M2 }, { "F8_E8M0", SRC_F8_E8M0 },
};

enum { MAX_HEADER = 100000000 };        /* the format's limit */

static int find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].type;
    return -1;
}

/* Read a size from JSON: 0 and *out, or -1. */
static int get_size(const json_t *v, uint64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return -1;
    *out = (uint64_t)json_integer_value(v);
    return 0;
}

/* Read one tensor of the index.  room: bytes of data in the file; base: their offset. */
static int read_entry(const struct map *m, struct source_tensor *t, const json_t *v, uint64_t base, uint64_t room,
                      struct err *e)
{
    const char *dtype;
    const json_t *shape = json_object_get(v, "shape"), *offsets = json_object_get(v, "data_offsets");
    if (!json_is_object(v))
        return err_set(e, ERR_FORMAT, "found %s, expected an object", js_kind(v));
    if (js_string(v, "dtype", &dtype, e) < 0)
        return -1;
    t->type = find_dtype(dtype);
    const struct ggml_type_info *info = t->type < 0 ? NULL : ggml_type_info(t->type);
    if (!info)
        return err_set(e, ERR_UNSUPPORTED, "dtype: unknown type '%s'", dtype);
    if (!json_is_array(shape))
        return err_set(e, ERR_FORMAT, "shape: found %s, expected an array", js_kind(shape));
    if (json_array_size(shape) > SOURCE_DIMS)
        return err_set(e, ERR_UNSUPPORTED, "shape: %zu dimensions, expected at most %d", json_array_size(shape),
                       SOURCE_DIMS);
    t->n_dims = (int)json_array_size(shape);
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) {
        uint64_t d;
        if (get_size(json_array_get(shape, (size_t)i), &d) < 0)
            return err_set(e, ERR_FORMAT, "shape: dimension %d is no size", i);
        if (d && n > INT64_MAX / 16 / d)
            return err_set(e, ERR_FORMAT, "shape: the product of the dimensions overflows");
        n *= d;
        t->dim[i] = (int64_t)d;
    }
    if (t->n_dims == 0)
        t->dim[t->n_dims++] = 1;                                /* a scalar */
    uint64_t begin, end;
    if (json_array_size(offsets) != 2 || get_size(json_array_get(offsets, 0), &begin) < 0 ||
        get_size(json_array_get(offsets, 1), &end) < 0)
        return err_set(e, ERR_FORMAT, "data_offsets: expected [begin, end]");
    if (begin > end || end > room)
        return err_set(e, ERR_FORMAT, "data_offsets: [%" PRIu64 ", %" PRIu64 "] reach beyond the end of the file (%"
                       PRIu64 " bytes of data)", begin, end, room);
    t->size = n * (uint64_t)info->block_bytes;
    if (end - begin != t->size)
        return err_set(e, ERR_FORMAT, "data_offsets: %" PRIu64 " bytes, but dtype and shape need %zu", end - begin,
                       t->size);
    t->offset = base + begin;
    t->data = m->fd < 0 ? NULL : m->data + t->offset;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct source_tensor *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset ? 1 : x->size < y->size ? -1 : x->size > y->size;
}

static int read_index(const struct map *m, const json_t *header, uint64_t base, int shard,
                      struct source_tensor **tensors, int *n, struct err *e)
{
    size_t count = json_object_size(header);
    if (count > (size_t)(INT32_MAX - *n))
        return err_set(e, ERR_FORMAT, "%s: too many tensors", m->path);
    struct source_tensor *all = realloc(*tensors, ((size_t)*n + count + 1) * sizeof *all);
    if (!all)
        return err_nomem(e, "tensor index");
    *tensors = all;
    int first = *n;
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)header, name, v) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct source_tensor *t = &all[*n];
        memset(t, 0, sizeof *t);
        t->shard = shard;
        if (read_entry(m, t, v, base, m->size - base, e) < 0)
            return err_prefix(e, "%s: tensor %s", m->path, name);
        t->name = strdup(name);
        if (!t->name)
            return err_nomem(e, name);
        ++*n;
    }
    qsort(all + first, (size_t)(*n - first), sizeof *all, by_offset);
    uint64_t end = base;
    for (int i = first; i < *n; i++) {
        if (all[i].offset != end)
            return err_set(e, ERR_FORMAT, "%s: tensor %s: offset %" PRIu64 ": %s, expected %" PRIu64, m->path,
                           all[i].name, all[i].offset, all[i].offset < end
                           ? "overlaps the tensor before it" : "leaves a hole after the tensor before it", end);
        end += all[i].size;
    }
    if (end != m->size)
        return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": %" PRIu64 " bytes at the end belong to no tensor",
                       m->path, end, m->size - end);
    return 0;
}

int safetensors_index(const struct map *m, int shard, struct source_tensor **tensors, int *n, struct err *e)
{
    uint64_t size = 0;
    if (m->size < 8)
        return err_set(e, ERR_FORMAT, "%s: offset 0: header size: the file ends here", m->path);
    memcpy(&size, m->data, 8);
    if (size > m->size - 8)
        return err_set(e, ERR_FORMAT, "%s: offset 0: header size: %" PRIu64
                       " bytes reach beyond the end of the file (%zu bytes)", m->path, size, m->size);
    if (size > MAX_HEADER)
        return err_set(e, ERR_FORMAT, "%s: offset 0: header size: %" PRIu64 " bytes, expected at most %d", m->path,
                       size, MAX_HEADER);
    json_t *header = js_parse(m->path, m->data + 8, size, e);
    if (!header)
        return -1;
    int r = json_is_object(header) ? read_index(m, header, 8 + size, shard, tensors, n, e)
                                   : err_set(e, ERR_FORMAT, "%s: offset 8: header: found %s, expected an object",
                                             m->path, js_kind(header));
    json_decref(header);
    return r;
}

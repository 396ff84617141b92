/* gguf.c - read the keys and the tensor index of GGUF files, in one or several parts. */
#include "libcommon/import/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/quant/ggml.h"

/* A cursor over the mapping.  A read past the end marks it bad and notes the field; later reads
 * return zeros. */
struct rd {
    const uint8_t *p;
    uint64_t at, size;
    const char *path, *bad;
    uint64_t bad_at;
};

static const uint8_t *rd_bytes(struct rd *r, uint64_t n, const char *field)
{
    if (r->bad)
        return NULL;
    if (n > r->size - r->at) {
        r->bad = field;
        r->bad_at = r->at;
        return NULL;
    }
    const uint8_t *p = r->p + r->at;
    r->at += n;
    return p;
}

static uint32_t rd_u32(struct rd *r, const char *field)
{
    uint32_t v = 0;
    const uint8_t *p = rd_bytes(r, 4, field);
    if (p)
        memcpy(&v, p, 4);
    return v;
}

static uint64_t rd_u64(struct rd *r, const char *field)
{
    uint64_t v = 0;
    const uint8_t *p = rd_bytes(r, 8, field);
    if (p)
        memcpy(&v, p, 8);
    return v;
}

static int rd_bad(const struct rd *r, struct err *e)
{
    if (!r->bad)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": %s: reaches beyond the end of the file (%" PRIu64 " bytes)",
                   r->path, r->bad_at, r->bad, r->size);
}

/* Read a string and return it as a C string: UTF-8 without '\0'.  Caller frees. */
static char *rd_name(struct rd *r, const char *field, struct err *e)
{
    uint64_t start = r->at, n = rd_u64(r, field);
    const uint8_t *p = rd_bytes(r, n, field);
    if (!p) {
        rd_bad(r, e);
        return NULL;
    }
    if (n == 0 || n > 65535 || memchr(p, 0, n) || utf8_valid((const char *)p, n) != n) {
        err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": %s: %s", r->path, start, field,
                n == 0 ? "is empty" : n > 65535 ? "is longer than 65535 bytes" : memchr(p, 0, n) ? "holds a zero byte"
                    : "is not UTF-8");
        return NULL;
    }
    char *name = strndup((const char *)p, n);
    if (!name)
        err_nomem(e, field);
    return name;
}

static const uint8_t value_size[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

/* Read n strings at the cursor. */
static int read_strings(struct rd *r, struct gguf_kv *kv, struct err *e)
{
    if (kv->n > (r->size - r->at) / 8)
        return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": key %s: %" PRIu64 " strings do not fit in the file",
                       r->path, r->at, kv->key, kv->n);
    kv->str = calloc(kv->n ? kv->n : 1, sizeof *kv->str);
    if (!kv->str)
        return err_nomem(e, kv->key);
    for (uint64_t i = 0; i < kv->n; i++) {
        kv->str[i].n = rd_u64(r, "length of a string");
        kv->str[i].s = (const char *)rd_bytes(r, kv->str[i].n, "a string");
        if (!kv->str[i].s) {
            rd_bad(r, e);
            return err_prefix(e, "key %s, string %" PRIu64, kv->key, i);
        }
    }
    return 0;
}

static int read_kv(struct rd *r, struct gguf_kv *kv, struct err *e)
{
    kv->offset = r->at;
    kv->key = rd_name(r, "key", e);
    if (!kv->key)
        return -1;
    uint32_t type = rd_u32(r, "type of a value"), elem = type;
    kv->n = 1;
    if (type == GGUF_ARR) {
        elem = rd_u32(r, "type of an array");
        kv->n = rd_u64(r, "length of an array");
    }
    if (rd_bad(r, e))
        return err_prefix(e, "key %s", kv->key);
    if (elem > GGUF_F64 || elem == GGUF_ARR)
        return err_set(e, elem == GGUF_ARR ? ERR_UNSUPPORTED : ERR_FORMAT,
                       "%s: offset %" PRIu64 ": key %s: %s %" PRIu32 ", expected 0 to 12",
                       r->path, kv->offset, kv->key,
                       elem == GGUF_ARR ? "an array of arrays, type" : "unknown value type", elem);
    kv->type = (enum gguf_vtype)type;
    kv->elem = (enum gguf_vtype)elem;
    kv->data = r->p + r->at;
    if (elem == GGUF_STR)
        return read_strings(r, kv, e);
    if (kv->n > r->size / value_size[elem] || !rd_bytes(r, kv->n * value_size[elem], "a value"))
        return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": key %s: %" PRIu64
                       " values reach beyond the end of the file (%" PRIu64 " bytes)", r->path, kv->offset, kv->key,
                       kv->n, r->size);
    return 0;
}

static int read_tensor(struct rd *r, struct source_tensor *t, struct err *e)
{
    uint64_t start = r->at;
    t->name = rd_name(r, "tensor name", e);
    if (!t->name)
        return -1;
    uint32_t n_dims = rd_u32(r, "n_dims");
    if (!r->bad && (n_dims < 1 || n_dims > 4))
        return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": tensor %s: n_dims is %" PRIu32 ", expected 1 to 4",
                       r->path, start, t->name, n_dims);
    t->n_dims = (int)n_dims;
    uint64_t n = 1, dim[4] = { 0 };
    int overflow = 0;
    for (int i = 0; i < t->n_dims && !r->bad; i++) {
        dim[i] = rd_u64(r, "a dimension");
        t->dim[t->n_dims - 1 - i] = (int64_t)dim[i];            /* the file has the innermost dimension first */
        overflow |= dim[i] == 0 || dim[i] > INT64_MAX || n > (uint64_t)(INT64_MAX / 16) / (dim[i] ? dim[i] : 1);
        n *= overflow ? 1 : dim[i];
    }
    /* kimi-linear's convolutions have a first dimension of 1, which llama.cpp drops when it
     * quantizes */
    if (t->n_dims == 4 && t->dim[0] == 1) {
        t->n_dims = 3;
        memmove(t->dim, t->dim + 1, 3 * sizeof *t->dim);
    }
    uint32_t type = rd_u32(r, "tensor type");
    t->offset = rd_u64(r, "tensor offset");
    if (rd_bad(r, e))
        return err_prefix(e, "tensor %s", t->name);
    if (overflow)
        return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": tensor %s: a dimension is 0 or their product overflows",
                       r->path, start, t->name);
    t->type = (int)type;
    const struct ggml_type_info *info = type < SRC_F8_E4M3 ? ggml_type_info((int)type) : NULL;
    if (!info)
        return err_set(e, ERR_UNSUPPORTED, "%s: offset %" PRIu64 ": tensor %s: unknown tensor type %" PRIu32, r->path,
                       start, t->name, type);
    if (dim[0] % (uint64_t)info->block)
        return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": tensor %s: rows of %" PRIu64
                       " values are no multiple of %s's block of %d", r->path, start, t->name, dim[0], info->name,
                       info->block);
    uint64_t blocks = n / (uint64_t)info->block;
    if (blocks > r->size / (uint64_t)info->block_bytes)
        return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": tensor %s: its data would be larger than the file (%"
                       PRIu64 " bytes)",
                       r->path, start, t->name, r->size);
    t->size = blocks * (uint64_t)info->block_bytes;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct source_tensor *const *)a)->name, (*(const struct source_tensor *const *)b)->name);
}

static int by_offset(const void *a, const void *b)
{
    const struct source_tensor *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset ? 1 : x->size < y->size ? -1 : x->size > y->size;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const struct gguf_kv *const *)a)->key, (*(const struct gguf_kv *const *)b)->key);
}

/* Check that names are unique and that data is inside the file, aligned, without overlaps; sort the
 * tensors by offset. */
static int check_tensors(struct gguf *g, struct err *e)
{
    const char *path = g->map.path;
    qsort(g->tensors, (size_t)g->n_tensors, sizeof *g->tensors, by_offset);
    uint64_t end = 0;
    for (int i = 0; i < g->n_tensors; i++) {
        struct source_tensor *t = &g->tensors[i];
        uint64_t room = g->map.size - g->data_offset;
        if (t->offset % g->alignment)
            return err_set(e, ERR_FORMAT, "%s: tensor %s: offset %" PRIu64 " is no multiple of the alignment %" PRIu64,
                           path, t->name, t->offset, g->alignment);
        if (t->offset > room || t->size > room - t->offset)
            return err_set(e, ERR_FORMAT, "%s: tensor %s: offset %" PRIu64
                           ": %zu bytes of data reach beyond the end of the file (%zu bytes)",
                           path, t->name, g->data_offset + (t->offset > room ? room : t->offset), t->size, g->map.size);
        if (t->offset < end)
            return err_set(e, ERR_FORMAT, "%s: tensor %s: offset %" PRIu64 ": overlaps tensor %s", path, t->name,
                           g->data_offset + t->offset, t[-1].name);
        end = t->offset + t->size;
    }
    for (int i = 0; i < g->n_tensors; i++) {
        g->tensors[i].offset += g->data_offset;
        g->tensors[i].data = g->map.data + g->tensors[i].offset;
    }
    const struct source_tensor **sorted = calloc((size_t)g->n_tensors + 1, sizeof *sorted);
    if (!sorted)
        return err_nomem(e, "tensor names");
    for (int i = 0; i < g->n_tensors; i++)
        sorted[i] = &g->tensors[i];
    qsort(sorted, (size_t)g->n_tensors, sizeof *sorted, by_name);
    int bad = 0;
    for (int i = 1; i < g->n_tensors && !bad; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            bad = err_set(e, ERR_FORMAT, "%s: tensor %s occurs twice", path, sorted[i]->name);
    free(sorted);
    return bad;
}

/* Sort the keys for gguf_find, and check that they are unique. */
static int sort_keys(struct gguf *g, struct err *e)
{
    const struct gguf_kv **sorted = g->by_key = calloc((size_t)g->n_kv + 1, sizeof *sorted);
    if (!sorted)
        return err_nomem(e, "keys");
    for (int i = 0; i < g->n_kv; i++)
        sorted[i] = &g->kv[i];
    qsort(sorted, (size_t)g->n_kv, sizeof *sorted, by_key);
    int bad = 0;
    for (int i = 1; i < g->n_kv && !bad; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
            bad = err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": key %s occurs twice", g->map.path, sorted[i]->offset,
                          sorted[i]->key);
    return bad;
}

static int read_header(struct gguf *g, struct rd *r, struct err *e)
{
    const char *path = r->path;
    const uint8_t *magic = rd_bytes(r, 4, "magic");
    if (magic && memcmp(magic, "GGUF", 4) != 0)
        return err_set(e, ERR_FORMAT, "%s: offset 0: magic: not a GGUF file", path);
    g->version = rd_u32(r, "version");
    if (!r->bad && (g->version == 0x02000000 || g->version == 0x03000000))
        return err_set(e, ERR_UNSUPPORTED, "%s: offset 4: version: a big-endian GGUF file, expected little-endian",
                       path);
    if (!r->bad && g->version != 2 && g->version != 3)
        return err_set(e, ERR_UNSUPPORTED, "%s: offset 4: version: GGUF version %" PRIu32 ", expected 2 or 3", path,
                       g->version);
    uint64_t n_tensors = rd_u64(r, "n_tensors"), n_kv = rd_u64(r, "n_kv");
    if (rd_bad(r, e))
        return -1;
    /* The shortest tensor takes 33 bytes (a name of 1), the shortest key 14. */
    if (n_tensors > r->size / 33 || n_tensors > INT32_MAX)
        return err_set(e, ERR_FORMAT, "%s: offset 8: n_tensors: %" PRIu64 " do not fit in a file of %" PRIu64 " bytes",
                       path, n_tensors, r->size);
    if (n_kv > r->size / 14 || n_kv > INT32_MAX)
        return err_set(e, ERR_FORMAT, "%s: offset 16: n_kv: %" PRIu64 " do not fit in a file of %" PRIu64 " bytes",
                       path, n_kv, r->size);
    g->kv = calloc(n_kv + 1, sizeof *g->kv);
    g->tensors = calloc(n_tensors + 1, sizeof *g->tensors);
    if (!g->kv || !g->tensors)
        return err_nomem(e, path);
    while (g->n_kv < (int)n_kv)
        if (read_kv(r, &g->kv[g->n_kv++], e) < 0)
            return -1;
    if (sort_keys(g, e) < 0)
        return -1;
    while (g->n_tensors < (int)n_tensors)
        if (read_tensor(r, &g->tensors[g->n_tensors++], e) < 0)
            return -1;
    return 0;
}

static int read_gguf(struct gguf *g, const char *path, struct err *e)
{
    if (map_open(&g->map, path, e) < 0)
        return -1;
    struct rd r = { .p = g->map.data, .size = g->map.size, .path = g->map.path };
    if (read_header(g, &r, e) < 0)
        return -1;
    int64_t alignment = gguf_int(g, "general.alignment", 32);
    if (alignment < 1 || alignment > 1 << 20 || (alignment & (alignment - 1)))
        return err_set(e, ERR_FORMAT, "%s: key general.alignment: %" PRId64 " is no power of two up to 1048576", path,
                       alignment);
    g->alignment = (uint64_t)alignment;
    g->data_offset = (r.at + g->alignment - 1) / g->alignment * g->alignment;
    if (g->data_offset > g->map.size) {
        if (g->n_tensors)
            return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": tensor data: the file ends here", path, r.at);
        g->data_offset = g->map.size;
    }
    return check_tensors(g, e);
}

static struct gguf *open_one(const char *path, struct err *e)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g) {
        err_nomem(e, path);
        return NULL;
    }
    if (read_gguf(g, path, e) < 0) {
        gguf_close(g);
        return NULL;
    }
    return g;
}

/* ---- a model in several files: NAME-00001-of-00003.gguf ... ---- */

enum { MOST_PARTS = 99999, ENDING = 20 /* "-00001-of-00003.gguf" */ };

/* Returns the path of part k, given the path of any part; the caller frees it.  NULL if the given
 * path does not end like a part of n parts, or with *e if memory ran out. */
static char *part_path(const char *path, int k, int n, struct err *e)
{
    const size_t length = strlen(path);
    char *out, end[2 * ENDING];
    int said_k, said_n, used = 0;
    if (length < ENDING || sscanf(path + length - ENDING, "-%5d-of-%5d.gguf%n", &said_k, &said_n, &used) != 2 ||
        used != ENDING || said_n != n) {
        snprintf(end, sizeof end, "-%05d-of-%05d.gguf", 1, n);
        err_set(e, ERR_FORMAT, "%s: key split.count: this is one of %d parts, so its name should end in %s", path, n,
                end);
        return NULL;
    }
    if (asprintf(&out, "%.*s-%05d-of-%05d.gguf", (int)(length - ENDING), path, k, n) < 0) {
        err_nomem(e, path);
        return NULL;
    }
    return out;
}

/* Move the tensors of a part to the whole file.  Names and data stay valid, because g keeps the
 * part open. */
static int take_tensors(struct gguf *g, struct gguf *part, int k, struct err *e)
{
    struct source_tensor *all = NULL;
    if (g->n_tensors < INT32_MAX - part->n_tensors)
        all = realloc(g->tensors, ((size_t)g->n_tensors + (size_t)part->n_tensors + 1) * sizeof *all);
    if (!all)
        return err_nomem(e, part->map.path);
    g->tensors = all;
    for (int i = 0; i < part->n_tensors; i++) {
        all[g->n_tensors] = part->tensors[i];
        all[g->n_tensors++].shard = k;
    }
    part->n_tensors = 0;                /* the names belong to the first part now, which frees them */
    return 0;
}

static int open_parts(struct gguf *g, int n, struct err *e)
{
    g->parts = calloc((size_t)n, sizeof *g->parts);
    if (!g->parts)
        return err_nomem(e, g->map.path);
    for (int k = 1; k < n; k++) {
        char *path = part_path(g->map.path, k + 1, n, e);
        struct gguf *part = path ? open_one(path, e) : NULL;
        free(path);
        if (!part)
            return err_prefix(e, "part %d of %d", k + 1, n);
        g->parts[g->n_parts++] = part;
        const int64_t no = gguf_int(part, "split.no", -1), count = gguf_int(part, "split.count", 0);
        if (no != k || count != n)
            return err_set(e, ERR_FORMAT, "%s: split.no %" PRId64 " of split.count %" PRId64 ", expected %d of %d",
                           part->map.path, no, count, k, n);
        if (take_tensors(g, part, k, e) != 0)
            return -1;
    }
    const int64_t tensors = gguf_int(g, "split.tensors.count", g->n_tensors);
    if (tensors != g->n_tensors)
        return err_set(e, ERR_FORMAT, "%s: key split.tensors.count: %" PRId64 " tensors, but its %d parts have %d",
                       g->map.path, tensors, n, g->n_tensors);
    return 0;
}

struct gguf *gguf_open(const char *path, struct err *e)
{
    struct gguf *g = open_one(path, e);
    const int64_t n = g ? gguf_int(g, "split.count", 0) : 0, no = g ? gguf_int(g, "split.no", 0) : 0;
    int rc = 0;
    if (n > MOST_PARTS) {
        rc = err_set(e, ERR_FORMAT, "%s: key split.count: %" PRId64 " parts, expected %d at most", path, n, MOST_PARTS);
    } else if (n > 1 && no != 0) {
        char *first = part_path(path, 1, (int)n, e);
        rc = first ? err_set(e, ERR_FORMAT, "%s: key split.no: this is part %" PRId64 " of %" PRId64
                             "; name the first, %s", path, no + 1, n, first) : -1;
        free(first);
    } else if (n > 1) {
        rc = open_parts(g, (int)n, e);
    }
    if (rc == 0)
        return g;
    gguf_close(g);
    return NULL;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n_kv; i++) {
        free((char *)g->kv[i].key);
        free(g->kv[i].str);
    }
    for (int i = 0; i < g->n_tensors; i++)
        free((char *)g->tensors[i].name);
    for (int i = 0; i < g->n_parts; i++)
        gguf_close(g->parts[i]);
    free(g->parts);
    free(g->by_key);
    free(g->kv);
    free(g->tensors);
    map_close(&g->map);
    free(g);
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    int low = 0, high = g->n_kv;
    while (low < high) {
        const int middle = low + (high - low) / 2, order = strcmp(g->by_key[middle]->key, key);
        if (order == 0)
            return g->by_key[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

#define LOAD(type) do { type v_; memcpy(&v_, kv->data + i * sizeof v_, sizeof v_); return v_; } while (0)

double gguf_array_float(const struct gguf_kv *kv, uint64_t i)
{
    switch (kv->elem) {
    case GGUF_F32: LOAD(float);
    case GGUF_F64: LOAD(double);
    default: return (double)gguf_array_int(kv, i);
    }
}

int64_t gguf_array_int(const struct gguf_kv *kv, uint64_t i)
{
    double f;
    switch (kv->elem) {
    case GGUF_U8: case GGUF_BOOL: LOAD(uint8_t);
    case GGUF_I8: LOAD(int8_t);
    case GGUF_U16: LOAD(uint16_t);
    case GGUF_I16: LOAD(int16_t);
    case GGUF_U32: LOAD(uint32_t);
    case GGUF_I32: LOAD(int32_t);
    case GGUF_U64: LOAD(int64_t);
    case GGUF_I64: LOAD(int64_t);
    case GGUF_F32: case GGUF_F64:
        f = gguf_array_float(kv, i);
        return f >= -0x1p62 && f <= 0x1p62 ? (int64_t)f : 0;
    default: return 0;
    }
}

static const struct gguf_kv *scalar(const struct gguf *g, const char *key)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    return kv && kv->type != GGUF_ARR && kv->type != GGUF_STR ? kv : NULL;
}

int64_t gguf_int(const struct gguf *g, const char *key, int64_t otherwise)
{
    const struct gguf_kv *kv = scalar(g, key);
    return kv ? gguf_array_int(kv, 0) : otherwise;
}

const struct gguf_str *gguf_str(const struct gguf *g, const char *key)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    return kv && kv->type == GGUF_STR ? kv->str : NULL;
}

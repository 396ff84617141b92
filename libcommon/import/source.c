/* source.c - open folders, GGUF files and config.json as a source, and read their tensors. */
#include "libcommon/import/internal.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/json.h"
#include "libcommon/import/gguf.h"
#include "libcommon/import/hf_config.h"
#include "libcommon/import/packed.h"
#include "libcommon/quant/ggml.h"

enum { MAX_CONFIG = 16 << 20 };

char *source_join(const char *dir, const char *name, struct err *e)
{
    char *path;
    size_t n = strlen(dir);
    if (asprintf(&path, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name) < 0) {
        err_nomem(e, name);
        return NULL;
    }
    return path;
}

int source_has(const char *dir, const char *name)
{
    struct stat st;
    char path[PATH_MAX];                /* on the stack: lack of memory must not look like a missing file */
    const int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n < (int)sizeof path && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* ---- files ---- */

static const struct map_guard *guard_of(const struct source *s)
{
    const struct source_inner *in = s->private_;
    return in && in->o && in->o->guard && in->o->guard->add ? in->o->guard : NULL;
}

int source_map(const struct source *s, struct input_file *p, struct err *e)
{
    const struct map_guard *guard = guard_of(s);
    if (map_open(&p->map, p->path, e) < 0)
        return -1;
    if (guard)
        guard->add(&p->map);
    return 0;
}

static void unmap(const struct source *s, struct map *m)
{
    const struct map_guard *guard = guard_of(s);
    if (guard && m->path)
        guard->remove(m);
    map_close(m);
}

static void free_inputs(const struct source *s, struct input_file **list, int n)
{
    for (int i = 0; i < n; i++) {
        unmap(s, &list[i]->map);
        free(list[i]->path);
        free(list[i]);
    }
    free(list);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct source_tensor *const *)a)->name, (*(const struct source_tensor *const *)b)->name);
}

static const char *shard_path(const struct source *s, const struct source_tensor *t)
{
    const struct source_inner *in = s->private_;
    const struct gguf *g = s->gguf;
    if (t->shard < 0)
        return in->adapters[-1 - t->shard]->map.path;
    return s->kind == SOURCE_FOLDER ? in->shards[t->shard]->path : g && t->shard > 0 &&
           t->shard <= g->n_parts ? g->parts[t->shard - 1]->map.path : s->path;
}

int source_sort(struct source *s, struct err *e)
{
    struct source_inner *in = s->private_;
    free(in->by_name);
    in->by_name = calloc((size_t)s->n_tensors + 1, sizeof *in->by_name);
    if (!in->by_name)
        return err_nomem(e, "tensor names");
    for (int i = 0; i < s->n_tensors; i++)
        in->by_name[i] = &s->tensors[i];
    qsort(in->by_name, (size_t)s->n_tensors, sizeof *in->by_name, compare_names);
    for (int i = 1; i < s->n_tensors; i++)
        if (strcmp(in->by_name[i - 1]->name, in->by_name[i]->name) == 0)
            return err_set(e, ERR_FORMAT, "%s: tensor %s is also in %s", shard_path(s, in->by_name[i]),
                           in->by_name[i]->name, shard_path(s, in->by_name[i - 1]));
    return 0;
}

/* ---- opening ---- */

int source_normalize(struct source *s, json_t *raw, const char *path, struct err *e)
{
    if (!raw)
        return -1;
    s->config = hf_config_normalize(raw, e);
    json_decref(raw);
    return s->config ? 0 : err_prefix(e, "%s", path);
}

static int open_gguf(struct source *s, struct err *e)
{
    s->gguf = gguf_open(s->path, e);
    if (!s->gguf)
        return -1;
    if (guard_of(s)) {
        guard_of(s)->add(&s->gguf->map);
        for (int i = 0; i < s->gguf->n_parts; i++)
            guard_of(s)->add(&s->gguf->parts[i]->map);
    }
    s->tensors = s->gguf->tensors;
    s->n_tensors = s->gguf->n_tensors;
    if (source_sort(s, e) < 0)
        return -1;
    const struct gguf_str *arch = gguf_str(s->gguf, "general.architecture");
    char key[256];
    snprintf(key, sizeof key, "%.*s.block_count", arch && arch->n < 200 ? (int)arch->n : 0, arch ? arch->s : "");
    if (s->n_tensors == 0 && !gguf_find(s->gguf, key))
        return 0;                                   /* a vocabulary without a model */
    s->config = gguf_config(s->gguf, e);
    return s->config ? 0 : -1;
}

struct source *source_open(const char *path, struct err *e) { return source_open_with(path, NULL, e); }

struct source *source_open_with(const char *path, const struct source_options *o, struct err *e)
{
    enum source_kind kind = o && o->arriving ? SOURCE_FOLDER : source_detect(path, e);
    if (kind == SOURCE_NONE)
        return NULL;
    if (kind == SOURCE_ZSE) {
        err_set(e, ERR_UNSUPPORTED, "%s: is a .zse file already", path);
        return NULL;
    }
    struct source *s = calloc(1, sizeof *s);
    struct source_inner *in = calloc(1, sizeof *in);
    struct stat st;
    int r;
    if (s)
        s->private_ = in;
    if (!s || !in || !(s->path = strdup(path))) {
        err_nomem(e, path);
        goto fail;
    }
    in->o = o;
    s->kind = kind;
    if (kind == SOURCE_GGUF)
        r = open_gguf(s, e);
    else if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        r = source_open_folder(s, e);
    else
        r = source_normalize(s, js_load(path, MAX_CONFIG, e), path, e);
    if (r == 0)
        return s;
fail:
    if (s)
        source_close(s);
    else
        free(in);
    return NULL;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    struct source_inner *in = s->private_;
    for (int i = 0; i < s->n_files; i++)
        free((char *)s->files[i].name);
    free(s->files);
    if (!s->gguf) {
        for (int i = 0; i < s->n_tensors; i++) {
            free((char *)s->tensors[i].name);
            packed_free(s->tensors[i].packed);
        }
        free(s->tensors);
    }
    if (s->gguf && guard_of(s)) {
        guard_of(s)->remove(&s->gguf->map);
        for (int i = 0; i < s->gguf->n_parts; i++)
            guard_of(s)->remove(&s->gguf->parts[i]->map);
    }
    if (in) {
        free_inputs(s, in->shards, in->n_shards);
        free_inputs(s, in->small, in->n_small);
        free(in->by_name);
        joined_free(in->joined);
        merged_free(in);
    }
    free(in);
    gguf_close(s->gguf);
    json_decref(s->config);
    json_decref(s->generation_config);
    json_decref(s->quantization);
    free(s->path);
    free(s);
}

const struct source_tensor *source_find(const struct source *s, const char *name)
{
    struct source_inner *in = s->private_;
    int lo = 0, hi = in->by_name ? s->n_tensors : 0;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, c = strcmp(name, in->by_name[mid]->name);
        if (c == 0)
            return in->by_name[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return strchr(name, '{') ? joined_find(s, &in->joined, name) : NULL;
}

const struct source_file *source_file(const struct source *s, const char *name)
{
    for (int i = 0; i < s->n_files; i++)
        if (strcmp(s->files[i].name, name) == 0)
            return &s->files[i];
    return NULL;
}

/* ---- data ---- */

/* Map a downloaded file, check that it matches its head, and set the data of its tensors. */
static int take_shard(const struct source *s, int shard, struct err *e)
{
    const struct source_inner *in = s->private_;
    struct input_file *p = in->shards[shard];
    const struct source_shard *h = &in->o->arriving->shards[p->arriving];
    if (in->o->arriving->wait(in->o->arriving->user, p->arriving, e) != 0 || source_map(s, p, e) != 0)
        return -1;
    if (p->map.size != h->size || memcmp(p->map.data, h->head, h->head_size) != 0)
        return err_set(e, ERR_FORMAT, "%s: its beginning or its size (%zu bytes) is not what was announced (%" PRIu64
                       " bytes)", p->path, p->map.size, h->size);
    for (int i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].shard == shard)
            s->tensors[i].data = p->map.data + s->tensors[i].offset;
    return 0;
}

int source_wait(const struct source *s, const struct source_tensor *t, struct err *e)
{
    const struct source_inner *in = s->private_;
    for (int i = 0; t && i < t->n_parts; i++)
        if (source_wait(s, t->parts[i], e) != 0)
            return -1;
    for (int i = 0; in && i < in->n_shards; i++)
        if (in->shards[i]->arriving >= 0 && !in->shards[i]->map.path && (!t || t->shard == i) &&
            take_shard(s, i, e) != 0)
            return -1;
    return 0;
}

int source_check(const struct source *s, const struct source_tensor *t, struct err *e)
{
    const struct source_inner *in = s->private_;
    for (int i = 0; t && i < t->n_parts; i++)
        if (source_check(s, t->parts[i], e) != 0)
            return -1;
    for (int i = 0; in && i < in->n_shards; i++)
        if (in->shards[i]->map.path && (!t || t->shard == i) && map_check(&in->shards[i]->map, e) != 0)
            return -1;
    for (int i = 0; in && !t && i < in->n_small; i++)
        if (map_check(&in->small[i]->map, e) != 0)
            return -1;
    for (int i = 0; in && i < in->n_adapters; i++)
        if (peft_check(in->adapters[i], e) != 0)
            return -1;
    for (int i = 0; s->gguf && i <= s->gguf->n_parts; i++)
        if ((!t || t->shard == i) && map_check(i ? &s->gguf->parts[i - 1]->map : &s->gguf->map, e) != 0)
            return -1;
    return 0;
}

/* Rows of a tensor as source_read() sees it; joined vectors are one row. */
static int64_t rows_of(const struct source_tensor *t)
{
    int64_t rows = 1;
    for (int i = 0; i < t->n_dims - 1; i++)
        rows *= t->dim[i];
    return rows;
}

/* Read from the parts of a joined tensor. */
static int read_parts(const struct source *s, const struct source_tensor *t, int64_t row, int64_t n, float *out,
                      int check_finite, struct err *e)
{
    for (int i = 0; i < t->n_parts && n > 0; i++) {
        const struct source_tensor *p = t->parts[i];
        const int64_t cols = p->dim[p->n_dims - 1], rows = rows_of(p), here = n < rows - row ? n : rows - row;
        if (t->n_dims > 1 && row >= rows) {
            row -= rows;
            continue;
        }
        if (source_read(s, p, t->n_dims > 1 ? row : 0, t->n_dims > 1 ? here : 1, out, check_finite, e) != 0)
            return -1;
        out += (t->n_dims > 1 ? here : 1) * cols;
        row = 0;
        n -= t->n_dims > 1 ? here : 0;
    }
    return 0;
}

int source_read(const struct source *s, const struct source_tensor *t, int64_t row, int64_t n, float *out,
                int check_finite, struct err *e)
{
    const int64_t cols = t->dim[t->n_dims - 1], rows = rows_of(t);
    if (row < 0 || n < 0 || row > rows || n > rows - row)
        return err_set(e, ERR_SHAPE, "%s: tensor %s: rows %" PRId64 " to %" PRId64 " of %" PRId64, shard_path(s, t),
                       t->name, row, row + n, rows);
    if (t->n_parts) {
        const int rc = read_parts(s, t, row, n, out, check_finite, e);
        if (rc != 0 || !t->delta)
            return rc;
        low_rank_add(t->delta, row, n, cols, out);
    } else if (t->packed) {
        packed_read(t->packed, row, n, out);
    } else {
        const struct ggml_type_info *info = ggml_type_info(t->type);
        const size_t row_bytes = (size_t)(cols / info->block) * (size_t)info->block_bytes;
        ggml_decode(t->type, t->data + (size_t)row * row_bytes, out, n * cols);
    }
    if (!check_finite)
        return 0;
    for (int64_t i = 0; i < n * cols; i++)
        if (!isfinite(out[i]))
            return err_set(e, ERR_FORMAT, "%s: tensor %s: row %" PRId64 ", column %" PRId64 ": is %s", shard_path(s, t),
                           t->name, row + i / cols, i % cols, isnan(out[i]) ? "not a number" : "infinite");
    return 0;
}

static void drop(const struct source_tensor *t)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)t->data + page - 1) / page * page, end = ((uintptr_t)t->data + t->size) / page * page;
    if (t->data && end > begin)
        madvise((void *)begin, end - begin, MADV_DONTNEED);     /* a clean file page: it is read again if needed */
}

void source_drop(const struct source *s, const struct source_tensor *t)
{
    for (int i = 0; i < t->n_parts; i++)
        source_drop(s, t->parts[i]);
    drop(t);
    if (t->packed) {
        drop(&t->packed->scale);
        drop(&t->packed->zeros);
    }
}

size_t source_bytes(const struct source_tensor *t)
{
    return t->packed ? packed_bytes(t->packed) : t->size;
}

/* info_dump.c - extract data from a model: one tensor as f32, the original files, or a check of
 * every byte. */
#include "cmd/zse-info.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/half.h"

/* ---- from a GGUF or a folder ---- */

enum { CHUNK = 1 << 18 };       /* values decoded at a time */

/* Decode every row of t, some at a time, and pass them to f (NULL: the values are only checked). */
static int each_row(const struct source *s, const struct source_tensor *t, int check_finite, struct atomic_file *f,
                    struct err *e)
{
    int64_t cols = t->dim[t->n_dims - 1], rows = 1, step;
    for (int d = 0; d < t->n_dims - 1; d++)
        rows *= t->dim[d];
    step = cols > CHUNK ? 1 : cols > 0 ? CHUNK / cols : 1;
    float *buffer = malloc((size_t)(step * cols + 1) * sizeof *buffer);
    int r = buffer ? 0 : err_nomem(e, t->name);
    for (int64_t row = 0; row < rows && r == 0; row += step) {
        int64_t n = rows - row < step ? rows - row : step;
        r = source_read(s, t, row, n, buffer, check_finite, e);
        if (r == 0 && f)
            r = atomic_write(f, buffer, (size_t)(n * cols) * sizeof *buffer, e);
    }
    free(buffer);
    return r;
}

/* ---- from a .zse ---- */

/* Decode one row of a tensor of a .zse, tiled or plain. */
static void decode_row(const struct zfile_tensor *t, int64_t row, float *out)
{
    size_t n = (size_t)t->m.cols;
    if (t->tiled) {
        mat_decode_row(&t->m, row, out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint8_t *p = t->m.data + ((size_t)row * n + i) * (t->m.type == QT_F32 ? 4 : 2);
        uint16_t h;
        memcpy(&h, p, 2);
        if (t->m.type == QT_F32)
            memcpy(&out[i], p, 4);
        else
            out[i] = t->m.type == QT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
}

/* A source tensor that is being assembled from its pieces. */
struct assembly {
    int64_t rows, cols;                 /* shape in the source, before transposing */
    int n_dims;                         /* 1 if every piece is a vector */
    int by_rows;                        /* our rows are the source's: each is written at once */
    int64_t widest;                     /* columns of the widest piece */
    float *out;                         /* the whole tensor, unless by_rows */
    uint8_t *seen;                      /* a flag for each row (by_rows) or for each value */
    int64_t filled;
};

/* Store the values of one piece at their places in the source tensor.  a->filled counts places
 * that no earlier piece has filled. */
static void place(struct assembly *a, const struct zfile_tensor *t, float *row)
{
    for (int64_t i = 0; i < t->m.rows; i++) {
        decode_row(t, i, row);
        if (t->n_dims == 1) {
            for (int64_t k = 0; k < t->m.cols; k++) {
                int64_t at = row_map_source(&t->map, k);
                a->filled += !a->seen[at];
                a->seen[at] = 1;
                a->out[at] = row[k];
            }
            continue;
        }
        int64_t r = row_map_source(&t->map, i);
        for (int64_t k = 0; k < t->m.cols; k++) {
            int64_t at = t->map.transposed ? (row_map_first(&t->map, i) + k) * a->cols + r : r * a->cols + k;
            a->filled += !a->seen[at];
            a->seen[at] = 1;
            a->out[at] = row[k];
        }
    }
}

static int is_piece(const struct zfile_tensor *t, const char *name)
{
    return t->source_name && strcmp(t->source_name, name) == 0;
}

static int place_rows(struct assembly *a, const struct zfile_tensor *t, float *row, struct atomic_file *f,
                      struct err *e)
{
    size_t bytes = (size_t)a->cols * sizeof *row;
    for (int64_t i = 0; i < t->m.rows; i++) {
        int64_t r = row_map_source(&t->map, i);
        if (a->seen[r])
            continue;
        a->seen[r] = 1;
        a->filled += a->cols;
        decode_row(t, i, row);
        if (atomic_pwrite(f, row, bytes, (uint64_t)r * bytes, e) < 0)
            return -1;
    }
    return 0;
}

/* Find the pieces of a source tensor, and derive its shape from them. */
static int look(const struct zfile *z, const char *name, struct assembly *a, struct err *e)
{
    a->n_dims = a->by_rows = 1;
    for (int i = 0; i < zfile_n_tensors(z); i++) {
        const struct zfile_tensor *t = zfile_tensor(z, i);
        if (!is_piece(t, name))
            continue;
        if (a->rows && (a->rows != t->source_rows || a->cols != t->source_cols))
            return err_set(e, ERR_SHAPE, "%s: tensor %s: %s says its source is %" PRId64 " x %" PRId64
                           ", another piece %" PRId64 " x %" PRId64, zfile_path(z), name, t->name, t->source_rows,
                           t->source_cols, a->rows, a->cols);
        a->rows = t->source_rows;
        a->cols = t->source_cols;
        a->n_dims = t->n_dims == 2 ? 2 : a->n_dims;
        a->by_rows &= t->n_dims == 2 && !t->map.transposed && t->m.cols == a->cols;
        a->widest = t->m.cols > a->widest ? t->m.cols : a->widest;
    }
    return 0;
}

static int assemble(const struct zfile *z, const char *name, struct assembly *a, struct atomic_file *f, struct err *e)
{
    if (look(z, name, a, e) < 0)
        return -1;
    size_t n = (size_t)a->rows * (size_t)a->cols;
    float *row = malloc((size_t)a->widest * sizeof *row);
    a->out = calloc(a->by_rows ? 1 : n, sizeof *a->out);
    a->seen = calloc(a->by_rows ? (size_t)a->rows : n, 1);
    int r = row && a->out && a->seen ? 0 : err_nomem(e, name);
    for (int i = 0; i < zfile_n_tensors(z) && r == 0; i++) {
        if (!is_piece(zfile_tensor(z, i), name))
            continue;
        if (a->by_rows)
            r = place_rows(a, zfile_tensor(z, i), row, f, e);
        else
            place(a, zfile_tensor(z, i), row);
    }
    free(row);
    if (r < 0)
        return -1;
    if (a->filled != a->rows * a->cols)
        return err_set(e, ERR_SHAPE, "%s: tensor %s: only %" PRId64 " of %" PRId64
                       " values of the source are in this file", zfile_path(z), name, a->filled,
                       a->rows * a->cols);
    return a->by_rows ? 0 : atomic_write(f, a->out, n * sizeof *a->out, e);
}

static int dump_zse(const struct zfile *z, const char *name, struct atomic_file *f, json_t **shape, struct err *e)
{
    struct assembly a = { 0 };
    const struct zfile_tensor *t = NULL;
    int r;
    for (int i = 0; i < zfile_n_tensors(z) && !t; i++)
        t = is_piece(zfile_tensor(z, i), name) ? zfile_tensor(z, i) : NULL;
    if (t) {
        r = assemble(z, name, &a, f, e);
        *shape = a.n_dims == 1 && a.rows == 1 ? json_pack("[I]", (json_int_t)a.cols)
                                              : json_pack("[I,I]", (json_int_t)a.rows, (json_int_t)a.cols);
        free(a.out);
        free(a.seen);
        return r;
    }
    t = zfile_find(z, name);                            /* a name of the .zse: dump it as stored */
    if (!t)
        return err_set(e, ERR_FORMAT, "%s: there is no tensor %s", zfile_path(z), name);
    float *row = malloc((size_t)t->m.cols * sizeof *row);
    r = row ? 0 : err_nomem(e, name);
    for (int64_t i = 0; i < t->m.rows && r == 0; i++) {
        decode_row(t, i, row);
        r = atomic_write(f, row, (size_t)t->m.cols * sizeof *row, e);
    }
    free(row);
    *shape = t->n_dims == 1 ? json_pack("[I]", (json_int_t)t->dim[0])
                            : json_pack("[I,I]", (json_int_t)t->dim[0], (json_int_t)t->dim[1]);
    return r;
}

static int is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Whether output is the model itself, or an existing file in the folder that is the model. */
static int is_part(const char *model, const char *output)
{
    const char *slash = strrchr(output, '/');
    char *folder = slash ? strndup(output, (size_t)(slash - output) + 1) : strdup(".");
    int part = is_same_file(model, output) || (access(output, F_OK) == 0 && folder && is_same_file(model, folder));
    free(folder);
    return part;
}

int info_dump_tensor(const struct info *i, const char *name, const char *output, json_t **shape, struct err *e)
{
    struct atomic_file f;
    const struct source_tensor *t = i->s ? source_find(i->s, name) : NULL;
    int r = 0;
    *shape = NULL;
    if (i->s && !t)
        return err_set(e, ERR_FORMAT, "%s: there is no tensor %s", i->path, name);
    if (is_part(i->path, output))
        return err_set(e, ERR_IO, "%s: is the model itself, or one of its files", output);
    if (cli_output_open(&f, output, e) < 0)
        return -1;
    if (t) {
        *shape = json_array();
        for (int d = 0; d < t->n_dims; d++)
            json_array_append_new(*shape, json_integer(t->dim[d]));
        r = each_row(i->s, t, 0, &f, e);
    } else {
        r = dump_zse(i->z, name, &f, shape, e);
    }
    if (r == 0 && cli_output_commit(&f, e) == 0)
        return 0;
    atomic_abort(&f);
    json_decref(*shape);
    *shape = NULL;
    return -1;
}

/* ---- originals ---- */

/* Create dir/name and its folders; refuses to overwrite. */
static int write_original(const char *dir, const char *name, const void *data, size_t size, struct err *e)
{
    char path[4096];
    struct stat st;
    struct atomic_file f;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return err_set(e, ERR_IO, "%s/%s: the name is too long", dir, name);
    for (char *slash = strchr(path + strlen(dir) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0777) < 0 && errno != EEXIST)
            return err_sys(e, "%s", path);
        *slash = '/';
    }
    if (lstat(path, &st) == 0)
        return err_set(e, ERR_IO, "%s: exists already", path);
    if (atomic_open(&f, path, e) < 0)
        return -1;
    if (atomic_write(&f, data, size, e) < 0) {
        atomic_abort(&f);
        return -1;
    }
    return atomic_commit(&f, e);
}

int info_extract(const struct info *i, const char *dir, json_t **names, struct err *e)
{
    int n = i->z ? zfile_n_originals(i->z) : i->s->n_files, r = 0;
    if (n == 0)
        return err_set(e, ERR_FORMAT, "%s: has no tokenizer files to extract%s", i->path,
                       i->s && i->s->gguf ? " (a GGUF keeps its tokenizer as metadata)" : "");
    if (mkdir(dir, 0777) < 0 && errno != EEXIST)
        return err_sys(e, "%s", dir);
    *names = json_array();
    for (int k = 0; k < n && r == 0; k++) {
        size_t size;
        const char *name = i->z ? zfile_original_name(i->z, k, &size) : i->s->files[k].name;
        char *copy = NULL;
        if (i->z) {
            copy = malloc(size + 1);
            r = copy ? zfile_original_read(i->z, k, copy, e) : err_nomem(e, name);
        } else {
            size = i->s->files[k].size;
        }
        if (r == 0)
            r = write_original(dir, name, copy ? copy : i->s->files[k].data, size, e);
        free(copy);
        json_array_append_new(*names, json_string(name));
    }
    if (r < 0) {
        json_decref(*names);
        *names = NULL;
    }
    return r;
}

int info_verify(const struct info *i, struct err *e)
{
    if (i->z)
        return zfile_verify(i->z, e);
    for (int k = 0; k < i->s->n_tensors; k++) {
        if (each_row(i->s, &i->s->tensors[k], 1, NULL, e) < 0)
            return -1;
        source_drop(i->s, &i->s->tensors[k]);
    }
    return 0;
}

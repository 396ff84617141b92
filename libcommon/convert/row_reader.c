/* row_reader.c - read rows through a row map. */
#include "libcommon/convert/row_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/spill.h"
#include "libcommon/quant/ggml.h"

int64_t row_map_at(const struct row_map *m, int64_t i) { return row_map_source(m, i); }

static int64_t n_elements(const struct source_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->dim[i];
    return n;
}

static int wrong_shape(const struct row_reader *r, const struct source *s, const struct source_tensor *t,
                       int64_t height, int64_t width, struct err *e)
{
    return err_set(e, ERR_SHAPE, "%s: tensor %s: holds %" PRId64 " x %" PRId64 ", %" PRId64 " x %" PRId64
                   " are asked for", s->path, t->name, height, width, r->n, r->cols);
}

/* Decode rows [first, end) of the source and store them. */
static int read_whole(struct row_reader *r, const struct source *s, const struct source_tensor *t, int64_t first,
                      int64_t end, int64_t width, struct err *e)
{
    const uint64_t n = (uint64_t)(end - first) * (uint64_t)width;
    if (n > SIZE_MAX / sizeof *r->whole || !(r->whole = spill_alloc((size_t)n * sizeof *r->whole)))
        return err_nomem(e, t->name);
    r->whole_first = first;
    if (source_read(s, t, first, end - first, r->whole, 1, e) == 0)
        return 0;
    spill_free(r->whole);
    r->whole = NULL;
    return -1;
}

static int open_transposed(struct row_reader *r, const struct source *s, const struct source_tensor *t,
                           const struct row_map *map, int64_t width, int64_t height, struct err *e)
{
    const int64_t last = row_map_at(map, (map->slice ? map->slice : r->n) - 1),
                  end = row_map_first(map, r->n - 1) + r->cols;
    if (width < 1 || last >= width || end > height)
        return wrong_shape(r, s, t, height, width, e);
    return read_whole(r, s, t, map->first, end, width, e);
}

/* NVFP4 in a GGUF has no field for the scale of the whole tensor.  Writers store it in another
 * tensor, "x.scale" or "x.weight.scale" beside "x.weight".  Ignoring it would give wrong values, so
 * all scales except 1 are refused. */
static int check_scale(const struct source *s, const struct source_tensor *t, struct err *e)
{
    for (int i = 0; i < t->n_parts; i++)
        if (check_scale(s, t->parts[i], e))
            return -1;
    if (t->type != GGML_NVFP4 || t->n_parts)
        return 0;
    const size_t n = strlen(t->name), stem = n > 7 && strcmp(t->name + n - 7, ".weight") == 0 ? n - 7 : n;
    for (int whole = 0; whole < 2; whole++) {
        char *name;
        if (asprintf(&name, "%.*s.scale", (int)(whole ? n : stem), t->name) < 0)
            return err_nomem(e, t->name);
        const struct source_tensor *scale = source_find(s, name);
        free(name);
        if (scale && source_wait(s, scale, e))
            return -1;
        for (size_t at = 0; scale && at < scale->size; at += sizeof(float)) {
            float x = 0;
            if (scale->type == GGML_F32)
                memcpy(&x, scale->data + at, sizeof x);
            if (x != 1)
                return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s: found a scale of all of %s other than 1, "
                               "expected NVFP4 without one", s->path, scale->name, t->name);
        }
    }
    return 0;
}

int row_reader_open(struct row_reader *r, const struct source *s, const struct source_tensor *t,
                    const struct row_map *map,
              int64_t rows, int64_t cols, int vector, struct err *e)
{
    *r = (struct row_reader){ .source = s, .tensor = t, .map = *map, .n = rows, .cols = cols, .vector = vector };
    int64_t width = t->n_dims ? t->dim[t->n_dims - 1] : 1, n = n_elements(t), height = width ? n / width : 0;
    if (source_wait(s, t, e) != 0 || check_scale(s, t, e) != 0)
        return -1;
    if (map->transposed && !vector)
        return open_transposed(r, s, t, map, width, height, e);
    int64_t last = row_map_at(map, (vector ? cols : rows) - 1);
    if (width < 1 || (vector ? last >= n : width != cols || last >= height))
        return wrong_shape(r, s, t, height, width, e);
    if (!vector)
        return 0;
    return read_whole(r, s, t, 0, height, width, e);
}

int row_reader_read(const struct row_reader *r, int64_t row, int64_t n, float *out, struct err *e)
{
    if (r->vector) {
        for (int64_t i = 0; i < r->cols; i++)
            out[i] = r->whole[row_map_at(&r->map, i)];
        return 0;
    }
    if (r->map.transposed) {
        int64_t width = r->tensor->dim[r->tensor->n_dims - 1];
        for (int64_t i = 0; i < n; i++) {
            const float *from = r->whole + (row_map_first(&r->map, row + i) - r->whole_first) * width +
                                row_map_at(&r->map, row + i);
            for (int64_t k = 0; k < r->cols; k++) {
                const float x = from[k * width];
                if (r->map.minus_log && !(x < 0))
                    return err_set(e, ERR_FORMAT, "%s: tensor %s: found %g, expected values below 0", r->source->path,
                                   r->tensor->name, (double)x);
                out[i * r->cols + k] = r->map.minus_log ? logf(-x) : x;
            }
        }
        return 0;
    }
    if (r->map.run == 0 && r->map.pairs == 0)
        return source_read(r->source, r->tensor, row, n, out, 1, e);
    for (int64_t i = 0; i < n; i++)
        if (source_read(r->source, r->tensor, row_map_at(&r->map, row + i), 1, out + i * r->cols, 1, e))
            return -1;
    return 0;
}

void row_reader_close(struct row_reader *r)
{
    spill_free(r->whole);
    r->whole = NULL;
    if (r->source && r->tensor)
        source_drop(r->source, r->tensor);
}

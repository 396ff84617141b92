/* assemble.c - assemble a model in memory from its source. */
#include "libcommon/convert/assemble.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/row_reader.h"
#include "libcommon/model/parts.h"

_Static_assert((int)WEIGHT_DIMS == SOURCE_DIMS, "a shape of one is a shape of the other");

static int source_shape(void *user, const char *name, int *n_dims, int64_t dim[WEIGHT_DIMS])
{
    const struct source_tensor *t = source_find(user, name);
    if (!t)
        return -1;
    *n_dims = t->n_dims;
    memcpy(dim, t->dim, sizeof t->dim);
    return 0;
}

static int by_source(const void *a, const void *b)
{
    return strcmp((*(const struct weight_spec *const *)a)->source, (*(const struct weight_spec *const *)b)->source);
}
static int by_name(const void *key, const void *b)
{
    return strcmp(key, (*(const struct weight_spec *const *)b)->source);
}

/* 1 if a joined source of these weights has this part. */
static int is_part(const char *name, const struct weight_spec *specs, int n)
{
    char part[160];
    for (int i = 0; i < n; i++)
        for (int k = 0; strchr(specs[i].source, '{') && source_part_name(specs[i].source, k, part, sizeof part); k++)
            if (strcmp(part, name) == 0)
                return 1;
    return 0;
}

int source_weights(const struct config *c, const struct source *s, struct weight_spec **specs, int *n,
                   int skipped[N_WEIGHT_SKIPS], struct err *e)
{
    const struct weight_source w = { source_shape, (void *)s };
    if (weight_specs(c, &w, specs, n, e) < 0)
        return err_prefix(e, "%s", s->path);
    const struct weight_spec **sorted = malloc((size_t)*n * sizeof *sorted);
    int rc = sorted ? 0 : err_nomem(e, "list of weights");
    for (int i = 0; sorted && i < *n; i++)
        sorted[i] = &(*specs)[i];
    if (sorted)
        qsort(sorted, (size_t)*n, sizeof *sorted, by_source);
    for (int i = 0; rc == 0 && i < s->n_tensors; i++) {
        const char *name = s->tensors[i].name;
        if (bsearch(name, sorted, (size_t)*n, sizeof *sorted, by_name))
            continue;
        const enum weight_skip why = weight_skip(c, name);
        if (why == WEIGHT_UNKNOWN && is_part(name, *specs, *n))
            continue;
        if (skipped)
            skipped[why]++;
        if (why == WEIGHT_UNKNOWN)
            rc = err_set(e, ERR_UNSUPPORTED, "%s: tensor '%s' has no place in architecture %s", s->path, name, c->arch);
    }
    free(sorted);
    if (rc < 0)
        free(*specs);
    return rc;
}

/* ---- one allocation for all weights, in two passes: sizes, then values ---- */

struct weight_place weight_place(struct model *m, const struct weight_spec *w)
{
    struct weight_place p = { 0 };
    const int end = w->layer < 0;
    void *field = end ? end_field(m, (enum end_part)w->part)
                      : part_field(&m->layers[w->layer], w->expert, (enum layer_part)w->part);
    switch (end ? end_infos[w->part].kind : part_infos[w->part].kind) {
    case PART_NORM:     p.norm = field; break;
    case PART_VECTOR:   p.plain = field; break;
    case PART_MATRIX: case PART_EXPERT: p.linear = field; break;
    }
    const char *last = strrchr(w->name, '.');
    if (w->is_vector && !p.plain)
        p.plain = p.norm ? last && strcmp(last, ".bias") == 0 ? &p.norm->b : &p.norm->w : &p.linear->bias;
    return p;
}

static int read_weight(struct model *m, const struct source *s, const struct weight_spec *w, const struct mat *mat,
                       uint8_t *to, struct err *e)
{
    struct weight_place p = weight_place(m, w);
    struct row_reader r;
    if (row_reader_open(&r, s, source_find(s, w->source), &w->map, w->rows, w->cols, w->is_vector && w->rows == 1,
                        e) < 0)
        return -1;
    float *x = w->is_vector ? (float *)to : malloc((size_t)w->rows * (size_t)w->cols * sizeof *x);
    int rc = x ? row_reader_read(&r, 0, w->rows, x, e) : err_nomem(e, "weights");
    row_reader_close(&r);
    if (rc == 0 && w->is_vector) {
        const struct config *c = &m->config;
        if (p.norm && p.plain == &p.norm->w && c->norm == NORM_LAYER && w->cols == c->hidden_size)
            for (int64_t i = 0; i < w->cols; i++)
                x[i] += c->norm_offset;
        *p.plain = x;
    } else if (rc == 0) {
        p.linear->w = *mat;
        p.linear->w.data = to;
        mat_encode_float(mat, to, x, (size_t)w->cols);
    }
    if (!w->is_vector)
        free(x);
    return rc;
}

static size_t weight_bytes(const struct weight_spec *w, enum qtype type, struct mat *mat, struct err *e)
{
    if (w->is_vector)
        return ((size_t)w->rows * (size_t)w->cols * sizeof(float) + 63) / 64 * 64;
    return mat_init(mat, type, 32, 0, w->rows, w->cols, e) < 0 ? 0 : mat->size;
}

static int read_weights(struct model *m, const struct source *s, const struct weight_spec *specs, int n,
                        enum qtype type, struct err *e)
{
    size_t total = 0;
    struct mat mat;
    for (int i = 0; i < n; i++) {
        size_t bytes = weight_bytes(&specs[i], type, &mat, e);
        if (!bytes)
            return -1;
        total += bytes;
    }
    uint8_t *at = m->owned = aligned_alloc(64, total);
    if (!at)
        return err_nomem(e, "weights");
    m->weight_bytes = total;
    for (int i = 0; i < n; i++) {
        size_t bytes = weight_bytes(&specs[i], type, &mat, e);
        if (read_weight(m, s, &specs[i], &mat, at, e) < 0)
            return -1;
        at += bytes;
    }
    return 0;
}

struct model *model_assemble(const struct source *s, enum qtype type, struct err *e)
{
    struct model *m = calloc(1, sizeof *m);
    struct weight_spec *specs = NULL;
    int n = 0;
    if (!m) {
        err_nomem(e, "model");
        return NULL;
    }
    if (config_parse(&m->config, s->config, e) < 0) {
        err_prefix(e, "%s", s->path);
        goto fail;
    }
    m->layers = calloc((size_t)m->config.n_layers, sizeof *m->layers);
    if (!m->layers) {
        err_nomem(e, "model");
        goto fail;
    }
    if (source_weights(&m->config, s, &specs, &n, NULL, e) < 0)
        goto fail;
    model_norms(m);
    if (model_experts(m, e) < 0) {
        free(specs);
        goto fail;
    }
    int rc = read_weights(m, s, specs, n, type, e);
    free(specs);
    if (rc < 0)
        goto fail;
    m->config.tied = !m->head.w.data;
    if (m->config.tied)
        m->head.w = m->embed.w;
    return m;
fail:
    model_close(m);
    return NULL;
}

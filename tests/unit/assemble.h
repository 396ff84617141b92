/* assemble.h - load a model directly from its source, with all matrices in one float type: the
 * reference that tests compare conversions and backends with. */
#ifndef ZSE_TESTS_ASSEMBLE_H
#define ZSE_TESTS_ASSEMBLE_H

#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/row_reader.h"
#include "libcommon/convert/source_weights.h"
#include "libcommon/model/parts.h"
#include "tests/lib/encode.h"

/* All weights are in one allocation, so there are two passes: the first adds up sizes, the second
 * reads values. */
static inline int read_weight(struct model *m, const struct source *s, const struct weight_spec *w,
                              const struct mat *mat, uint8_t *to, struct err *e)
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

static inline size_t weight_bytes(const struct weight_spec *w, enum qtype type, struct mat *mat, struct err *e)
{
    if (w->is_vector)
        return ((size_t)w->rows * (size_t)w->cols * sizeof(float) + 63) / 64 * 64;
    return mat_init(mat, type, 32, 0, w->rows, w->cols, e) < 0 ? 0 : mat->size;
}

static inline int read_weights(struct model *m, const struct source *s, const struct weight_spec *specs,
                               int n, enum qtype type, struct err *e)
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

/* The type of matrices is QT_F32, QT_F16 or QT_BF16; vectors are f32.  model_close() frees the
 * model, and s may be closed before.  Refuses what a conversion refuses: missing tensors, wrong
 * shapes, tensors that the architecture does not have. */
static inline struct model *model_assemble(const struct source *s, enum qtype type, struct err *e)
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
    if (source_weights(&m->config, s, 0, &specs, &n, NULL, NULL, e) < 0)
        goto fail;
    model_norms(m);
    if (model_experts(m, e) < 0 || (specs[n - 1].layer == m->config.n_layers && model_predictor(m, e) < 0)) {
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
    if (m->predictor) {
        m->predictor->embed = m->embed;
        m->predictor->head = m->head;
    }
    return m;
fail:
    model_close(m);
    return NULL;
}

/* Repeat the layers of a model until there are n. */
static inline void repeat_layers(struct model *m, int n)
{
    struct config *c = &m->config;
    const int have = c->n_layers;
    m->layers = realloc(m->layers, (size_t)n * sizeof *m->layers);
#define REPEAT(array) \
    c->array = realloc(c->array, (size_t)n * sizeof *c->array); \
    for (int i = have; i < n; i++) \
        c->array[i] = c->array[i % have];
    REPEAT(mixer)
    REPEAT(ff)
    REPEAT(chunk)
    REPEAT(window)
    REPEAT(rope_of)
#undef REPEAT
    for (int i = have; i < n; i++)
        m->layers[i] = m->layers[i % have];
    c->n_layers = n;
}

#endif

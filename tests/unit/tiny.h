/* tiny.h - models for tests of the backend: ours or an oracle's by name, in f32, and the same with integer weights of several types. */
#ifndef ZSE_TESTS_TINY_H
#define ZSE_TESTS_TINY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/assemble.h"
#include "libcommon/quant/quantize.h"

/* "tiny", or a folder of the oracles; NULL where it is not there. */
static inline struct model *load(const char *name)
{
    const char *root = getenv("ZSE_ORACLES");
    char path[400];
    struct err e;
    snprintf(path, sizeof path, strcmp(name, "tiny") == 0 ? "models/tiny" : "%s/models/hf/%s", root ? root : "../shared/oracles", name);
    struct source *s = source_open(path, &e);
    struct model *m = s ? model_assemble(s, QT_F32, &e) : NULL;
    source_close(s);
    return m;
}

/* ---- the same model with integer weights ---- */

static inline uint8_t *quantize(struct linear *l, enum qtype type, int group_size, int act_group)
{
    struct mat m;
    struct qrow q;
    struct err e;
    assert_int_equal(mat_init(&m, type, group_size, act_group, l->w.rows, l->w.cols, &e), 0);
    assert_int_equal(qrow_init(&q, &m, &e), 0);
    uint8_t *data = aligned_alloc(64, (m.size + 63) / 64 * 64);
    float *row = malloc((size_t)m.cols * sizeof *row);
    memset(data, 0, m.size);
    for (int r = 0; r < m.rows; r++) {
        mat_decode_row(&l->w, r, row);
        quantize_row(&m, row, NULL, QUANT_ABSMAX, &q);
        tile_put(&m, data + (size_t)(r / TILE_ROWS) * m.tile_bytes, r % TILE_ROWS, &q);
    }
    free(row);
    qrow_release(&q);
    m.data = data;
    l->w = m;
    return data;
}

/* owned [7 * n_layers + 1]: what the caller frees; returns how many.  Other types side by side, so that q, k and v want their input rounded in two ways. */
static inline int quantize_model(struct model *m, uint8_t **owned)
{
    int n = 0;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        owned[n++] = quantize(&l->q, QT_NL4, 32, 64);
        owned[n++] = quantize(&l->k, QT_NL4, 32, 64);
        owned[n++] = quantize(&l->v, QT_I8, 32, 32);
        owned[n++] = quantize(&l->o, QT_I4M, 32, 32);
        if (l->gate.w.data)
            owned[n++] = quantize(&l->gate, QT_NL4, 32, 64);
        owned[n++] = quantize(&l->up, QT_I4, 128, 128);
        owned[n++] = quantize(&l->down, QT_NF4, 64, 64);
    }
    m->head.w = m->embed.w;
    owned[n++] = quantize(&m->head, QT_I8R, 32, 64);
    return n;
}

#endif

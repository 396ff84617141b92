/* tiny.h - models for tests of the backend: the small one of this repository or one of the oracles,
 * in f32, and the same with integer weights of several types. */
#ifndef ZSE_TESTS_TINY_H
#define ZSE_TESTS_TINY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/quant/quantize.h"
#include "tests/unit/assemble.h"

/* Load the model "tiny" or the one in this folder of the oracles; NULL if it does not exist. */
static inline struct model *load(const char *name)
{
    const char *root = getenv("ZSE_ORACLES");
    char path[400];
    struct err e;
    snprintf(path, sizeof path, strcmp(name, "tiny") == 0 ? "models/tiny" : "%s/models/hf/%s",
             root ? root : "../shared/oracles", name);
    struct source *s = source_open(path, &e);
    if (!s) {
        snprintf(path, sizeof path, "%s/models/hf-2026/%s", root ? root : "../shared/oracles", name);
        s = source_open(path, &e);
    }
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

/* How many matrices there are at most. */
static inline size_t quantized_room(const struct model *m)
{
    return (size_t)m->config.n_layers * (36 + 3 * (size_t)m->config.moe.n_experts) + 1;
}

/* Quantize the matrices.  owned [quantized_room] gets the allocations, which the caller frees;
 * returns their number.  Matrices with a common input have different types, so that the input is
 * rounded in two ways. */
static inline int quantize_model(struct model *m, uint8_t **owned)
{
    int n = 0;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        const struct { struct linear *l; enum qtype type; int group_size, act_group; } all[] = {
            { &l->q, QT_NL4, 32, 64 }, { &l->k, QT_NL4, 32, 64 }, { &l->v, QT_I8, 32, 32 }, { &l->o, QT_I4M, 32, 32 },
                { &l->gate, QT_NL4, 32, 64 },
            { &l->up, QT_I4, 128, 128 }, { &l->down, QT_NF4, 64, 64 }, { &l->q_a, QT_NL4, 32, 32 },
            { &l->kv_a, QT_I8, 64, 64 }, { &l->k_b, QT_I8, 32, 32 },
            { &l->v_b, QT_I8, 32, 32 }, { &l->in, QT_NL4, 32, 64 }, { &l->in_ba, QT_I8, 32, 32 },
            { &l->q_gate, QT_I8, 32, 32 }, { &l->in_z, QT_NL4, 32, 64 }, { &l->gate_a, QT_I8, 32, 32 },
            { &l->in_f, QT_NL4, 32, 32 }, { &l->ple_gate, QT_NL4, 32, 32 }, { &l->ple_up, QT_I8, 32, 32 },
            { &l->o_a, QT_NL4, 32, 64 }, { &l->ngram_key, QT_NL4, 32, 32 }, { &l->index_q, QT_I8, 32, 32 },
            { &l->index_k, QT_I8, 32, 32 },
            { &l->laurel_in, QT_NL4, 32, 32 }, { &l->laurel_out, QT_I8, 32, 32 },
            { &l->state_o, QT_NL4, 32, 64 }, { &l->x_proj, QT_I8, 32, 32 }, { &l->dt_proj, QT_I8, 32, 32 },
            { &l->latent_in, QT_I8, 32, 64 }, { &l->latent_out, QT_NL4, 32, 32 },
        };
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k].l->w.data)
                owned[n++] = quantize(all[k].l, all[k].type, all[k].group_size, all[k].act_group);
        for (int x = 0; l->experts && x < m->config.moe.n_experts; x++) {       /* experts differ too */
            owned[n++] = quantize(&l->experts[x].gate, QT_NL4, 32, x % 2 ? 64 : 32);
            owned[n++] = quantize(&l->experts[x].up, x % 3 ? QT_NL4 : QT_I8, 32, 32);
            owned[n++] = quantize(&l->experts[x].down, QT_NL4, 32, 32);
        }
    }
    m->head.w = m->embed.w;
    owned[n++] = quantize(&m->head, QT_I8R, 32, 64);
    return n;
}

#endif

/* gpu_model.h - models for the tests of the device's backend: oracle folders, our own tiny model,
 * and a mixture of experts made of it. */
#ifndef ZSE_TESTS_GPU_MODEL_H
#define ZSE_TESTS_GPU_MODEL_H

#include "tests/lib/gpu.h"

#include "libcommon/import/source.h"
#include "libcommon/model/model.h"
#include "tests/unit/assemble.h"

static inline const char *root(void)
{
    const char *r = getenv("ZSE_ORACLES");
    return r ? r : "../shared/oracles";
}

static inline struct model *load(const char *name, enum qtype type)
{
    char path[400];
    snprintf(path, sizeof path, strcmp(name, "tiny") == 0 ? "models/tiny" : "%s/models/hf/%s", root(), name);
    struct source *s = source_open(path, &why);
    struct model *m = s ? model_assemble(s, type, &why) : NULL;
    source_close(s);
    if (!m)
        fail_msg("%s: %s", name, why.msg);
    return m;
}

static inline int have_oracles(void)
{
    char path[400];
    snprintf(path, sizeof path, "%s/models/hf/llama/config.json", root());
    FILE *f = fopen(path, "r");
    if (f)
        fclose(f);
    return f != NULL;
}

static inline uint8_t *quantize(struct linear *l, enum qtype type, int group_size)
{
    struct mat m;
    struct qrow q;
    const struct qtype_info *t = qtype_info(type);
    const int act_group = t->acts == ACTS_I8_128 ? 128 : qtype_takes_floats(t) ? 0 : 64;
    OK(mat_init(&m, type, group_size, act_group, l->w.rows, l->w.cols, &why));
    uint8_t *data = aligned_alloc(64, (m.size + 63) / 64 * 64);
    float *row = malloc((size_t)m.rows * (size_t)m.cols * sizeof *row);
    for (int r = 0; r < m.rows; r++)
        mat_decode_row(&l->w, r, row + (size_t)r * (size_t)m.cols);
    if (qtype_info(type)->is_float) {
        mat_encode_float(&m, data, row, (size_t)m.cols);
    } else {
        OK(qrow_init(&q, &m, &why));
        for (int tile = 0; tile < m.n_tiles; tile++)
            tile_clear(&m, data + (size_t)tile * m.tile_bytes);
        for (int r = 0; r < m.rows; r++) {
            quantize_row(&m, row + (size_t)r * (size_t)m.cols, NULL, QUANT_ABSMAX, &q);
            tile_put(&m, data + (size_t)(r / TILE_ROWS) * m.tile_bytes, r % TILE_ROWS, &q);
        }
        qrow_release(&q);
    }
    free(row);
    m.data = data;
    l->w = m;
    return data;
}

/* Quantize the layers of load("tiny").  Returns the number of elements of `owned`, which the caller
 * frees. */
static inline int quantize_dense(struct model *m, enum qtype type, int group, void **owned)
{
    int n = 0;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        struct linear *const all[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            owned[n++] = quantize(all[k], type, group);
    }
    return n;
}

/* Give matrices that are nl4 types like those that zse-convert chooses: 6 bits for k and v, 5 for
 * the first layer and for down of the second.  In the third gate and up differ, and o has 6 bits.
 * Returns the number of elements of `owned`, which the caller frees. */
static inline int mix_types(struct model *m, void **owned)
{
    int n = 0;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        const int moe = m->config.ff[i] == FF_MOE;
        owned[n++] = quantize(&l->k, QT_M6, 32);
        owned[n++] = quantize(&l->v, QT_M6, 32);
        if (i == 0)
            owned[n++] = quantize(&l->q, QT_M5, 32);
        if (i == 0 || i == 2)
            owned[n++] = quantize(&l->o, i ? QT_M6 : QT_M5, 32);
        for (int k = 0; k < (moe ? m->config.moe.n_experts : 1); k++) {
            if (i == 0)
                owned[n++] = quantize(moe ? &l->experts[k].gate : &l->gate, QT_M5, 32);
            if (i == 0 || i == 2)
                owned[n++] = quantize(moe ? &l->experts[k].up : &l->up, QT_M5, 32);
            if (i <= 1)
                owned[n++] = quantize(moe ? &l->experts[k].down : &l->down, QT_M5, 32);
        }
    }
    return n;
}

enum { N_EXPERTS = 6, EXPERT_SIZE = 80, SHARED_SIZE = 300, MOST_EXPERT_MATS = 64 };

/* Make a matrix of random numbers up to `most`, rounded to a type. */
static inline uint8_t *random_linear(struct linear *l, enum qtype type, int group, int rows, int cols, float most,
                              struct rng *r)
{
    float *x = malloc((size_t)rows * (size_t)cols * sizeof *x);
    struct mat m;
    OK(mat_init(&m, QT_F32, 32, 0, rows, cols, &why));
    uint8_t *data = aligned_alloc(64, (m.size + 63) / 64 * 64);
    for (int i = 0; i < rows * cols; i++)
        x[i] = uniform(r, -most, most);
    mat_encode_float(&m, data, x, (size_t)cols);
    m.data = data;
    *l = (struct linear){ .w = m };
    free(x);
    if (type == QT_F32)
        return data;
    uint8_t *rounded = quantize(l, type, group);
    free(data);
    return rounded;
}

/* Change the model of load("tiny"): its second and third layer choose 2 of N_EXPERTS, and their MLP
 * is replaced by a narrower shared one.  Returns the number of elements of `owned`, which the
 * caller frees. */
static inline int make_mixture(struct model *m, enum qtype type, int group, uint8_t *owned[MOST_EXPERT_MATS])
{
    struct rng r = { 20 };
    struct config *c = &m->config;
    const int hidden = c->hidden_size;
    int n = 0;
    c->moe = (struct moe){ .n_experts = N_EXPERTS, .top_k = 2, .intermediate_size = EXPERT_SIZE,
                           .shared_size = SHARED_SIZE, .shared_gate = 1, .router = ROUTER_SOFTMAX,
                           .normalize = 1, .scale = 1, .shared_scale = 0.5f };
    c->ff[1] = c->ff[2] = FF_MOE;
    OK(model_experts(m, &why));
    for (int i = 1; i <= 2; i++) {
        struct layer *l = &m->layers[i];
        /* large weights, so that no choice between nearly equal experts depends on rounding */
        owned[n++] = random_linear(&l->router, QT_F32, 32, N_EXPERTS, hidden, 2, &r);
        owned[n++] = random_linear(&l->shared_router, QT_F32, 32, 1, hidden, 1, &r);
        owned[n++] = random_linear(&l->gate, type, group, SHARED_SIZE, hidden, 0.2f, &r);
        owned[n++] = random_linear(&l->up, type, group, SHARED_SIZE, hidden, 0.2f, &r);
        owned[n++] = random_linear(&l->down, type, group, hidden, SHARED_SIZE, 0.2f, &r);
        for (int k = 0; k < N_EXPERTS; k++) {
            owned[n++] = random_linear(&l->experts[k].gate, type, group, EXPERT_SIZE, hidden, 0.2f, &r);
            owned[n++] = random_linear(&l->experts[k].up, type, group, EXPERT_SIZE, hidden, 0.2f, &r);
            owned[n++] = random_linear(&l->experts[k].down, type, group, hidden, EXPERT_SIZE, 0.2f, &r);
        }
    }
    return n;
}

/* Take the gates away from the layers and from their experts, as Nemotron 3 has none.  The caller
 * still owns the gates' weights. */
static inline void remove_gates(struct model *m)
{
    m->config.gated = 0;
    m->config.act = ACT_RELU2;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        l->gate = (struct linear){ 0 };
        for (int k = 0; l->experts && k < m->config.moe.n_experts; k++)
            l->experts[k].gate = (struct linear){ 0 };
    }
}

#endif

/* bind.c - bind the tensors of a .zse file to struct model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"
#include "libcommon/model/lora.h"
#include "libcommon/model/eagle.h"
#include "libcommon/model/medusa.h"
#include "libcommon/model/parts.h"

struct binder {
    struct model *m;
    const struct zfile *z;
    float *shifted;             /* [norms][hidden_size] layer norm weights with norm_offset added */
    size_t n_shifted;
    int predictor;              /* m is the predictor of a model */
    struct err *e;
};

static int missing(const struct binder *b, const char *name)
{
    return err_set(b->e, ERR_FORMAT, "%s: tensor '%s' is missing", zfile_path(b->z), name);
}

static int wrong_shape(const struct binder *b, const struct zfile_tensor *t, int64_t rows, int64_t cols)
{
    return err_set(b->e, ERR_SHAPE, "%s: tensor '%s': shape [%lld, %lld], expected [%lld, %lld] by its config",
                   zfile_path(b->z), t->name, (long long)t->m.rows, (long long)t->m.cols, (long long)rows,
                   (long long)cols);
}

/* Bind a plain f32 tensor of rows x cols (rows 1: a vector); *out stays NULL if it is optional and
 * missing. */
static int bind_plain(struct binder *b, const char *name, int64_t rows, int64_t cols, int optional, const float **out)
{
    const struct zfile_tensor *t = zfile_find(b->z, name);
    *out = NULL;
    if (!t)
        return optional ? 0 : missing(b, name);
    if (t->tiled || t->m.type != QT_F32)
        return err_set(b->e, ERR_FORMAT, "%s: tensor '%s' is stored as %s, expected plain f32", zfile_path(b->z), name,
                       qtype_info(t->m.type)->name);
    if ((int64_t)t->m.rows * t->m.cols != rows * cols || (rows > 1 && t->m.rows != rows))
        return wrong_shape(b, t, rows, cols);
    *out = (const float *)t->m.data;
    b->m->weight_bytes += t->m.size;
    return 0;
}

static int bind_linear(struct binder *b, const char *name, int64_t rows, int64_t cols, int biased, struct linear *l)
{
    const struct config *c = &b->m->config;
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    const struct zfile_tensor *t = zfile_find(b->z, full);
    if (!t)
        return missing(b, full);
    if (!t->tiled)
        return err_set(b->e, ERR_FORMAT, "%s: tensor '%s' is plain, expected a matrix in kernel order",
                       zfile_path(b->z), full);
    if (t->m.rows != rows || t->m.cols != cols)
        return wrong_shape(b, t, rows, cols);
    l->w = t->m;
    b->m->weight_bytes += t->m.size;
    snprintf(full, sizeof full, "%s.bias", name);
    return bind_plain(b, full, 1, rows, c->gguf || !biased, &l->bias);
}

static int bind_norm(struct binder *b, const char *name, int64_t n, int biased, struct norm *norm)
{
    const struct config *c = &b->m->config;
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    if (bind_plain(b, full, 1, n, 0, &norm->w) < 0)
        return -1;
    if (c->norm == NORM_LAYER && c->norm_offset != 0 && n == c->hidden_size) {
        float *w = b->shifted + b->n_shifted;
        for (int64_t i = 0; i < n; i++)
            w[i] = norm->w[i] + c->norm_offset;
        b->n_shifted += (size_t)n;
        norm->w = w;
    }
    snprintf(full, sizeof full, "%s.bias", name);
    return bind_plain(b, full, 1, n, !biased, &norm->b);
}

void model_norms(struct model *m)
{
    const struct config *c = &m->config;
    for (enum end_part p = 0; p < N_END_PARTS; p++)
        if (end_infos[p].kind == PART_NORM)
            ((struct norm *)end_field(m, p))->present = end_part_fact(c, p).present;
    for (int i = 0; i < c->n_layers; i++)
        for (enum layer_part p = 0; p < N_LAYER_PARTS; p++)
            if (part_infos[p].kind == PART_NORM)
                ((struct norm *)part_field(&m->layers[i], 0, p))->present = layer_part_fact(c, i, p).present;
}

int model_experts(struct model *m, struct err *e)
{
    for (int i = 0; i < m->config.n_layers; i++)
        if (m->config.ff[i] == FF_MOE && !(m->layers[i].experts = calloc((size_t)m->config.moe.n_experts,
                                                                         sizeof *m->layers[i].experts)))
            return err_nomem(e, "experts");
    return 0;
}

/* Bind a weight to its field.  PART_VECTOR: name is that of the tensor; otherwise without .weight
 * and .bias. */
static int bind_weight(struct binder *b, enum part_kind kind, const char *name, const struct part_fact *f, void *to)
{
    const int biased = b->m->config.biases & f->bias;
    switch (kind) {
    case PART_NORM:     return bind_norm(b, name, f->cols, biased, to);
    case PART_VECTOR:   return bind_plain(b, name, f->rows, f->cols, 0, to);
    case PART_MATRIX: case PART_EXPERT: break;
    }
    return bind_linear(b, name, f->rows, f->cols, biased, to);
}

/* Bind a part of layer i, or for a part of experts, that of one expert. */
static int bind_part(struct binder *b, int i, enum layer_part part, const struct part_fact *f, int expert)
{
    const struct part_info *p = &part_infos[part];
    char name[80];
    char layer[24] = "mtp";
    if (!b->predictor)
        snprintf(layer, sizeof layer, "layers.%d", i);
    if (p->kind == PART_EXPERT)
        snprintf(name, sizeof name, "%s.experts.%d.%s", layer, expert, p->name);
    else
        snprintf(name, sizeof name, "%s.%s", layer, p->name);
    return bind_weight(b, p->kind, name, f, part_field(&b->m->layers[i], expert, part));
}

static int bind_layer(struct binder *b, int i)
{
    const struct config *c = &b->m->config;
    for (enum layer_part p = 0; p < N_LAYER_PARTS; p++) {
        const struct part_fact f = layer_part_fact(c, i, p);
        const int n = part_infos[p].kind == PART_EXPERT ? c->moe.n_experts : 1;
        for (int expert = 0; f.stored && expert < n; expert++)
            if (bind_part(b, i, p, &f, expert) < 0)
                return -1;
    }
    return 0;
}

/* Bind the weights outside of the layers. */
static int bind_ends(struct binder *b)
{
    struct model *m = b->m;
    struct config *c = &m->config;
    for (enum end_part p = 0; p < N_END_PARTS; p++) {
        const struct part_fact f = end_part_fact(c, p);
        const struct end_info *info = &end_infos[p];
        char name[80];
        snprintf(name, sizeof name, "%s%s", info->name, info->kind == PART_VECTOR ? ".weight" : "");
        if (f.stored && p != EP_HEAD && bind_weight(b, info->kind, name, &f, end_field(m, p)) < 0)
            return -1;
    }
    const int has_head = zfile_find(b->z, "head.weight") != NULL;
    if (!has_head && (c->tied || !c->tied_given || c->gguf)) {
        m->head.w = m->embed.w;
        c->tied = 1;
        return 0;
    }
    c->tied = 0;
    const struct part_fact head = end_part_fact(c, EP_HEAD);
    return bind_weight(b, PART_MATRIX, "head", &head, &m->head);
}

int model_predictor(struct model *m, struct err *e)
{
    struct model *p = m->predictor = calloc(1, sizeof *p);
    if (!p || !(p->layers = calloc(1, sizeof *p->layers)))
        return err_nomem(e, "model");
    if (config_predictor(&m->config, &p->config) < 0)
        return err_set(e, ERR_UNSUPPORTED, "a layer that predicts further tokens is not supported for %s",
                       m->config.arch);
    p->embed = m->embed;
    p->head = m->head;
    model_norms(p);
    return model_experts(p, e);
}

/* Bind the layer that predicts a further token, if the file has one. */
static int bind_predictor(struct binder *b)
{
    struct binder own = { .z = b->z, .predictor = 1, .e = b->e };
    if (!zfile_find(b->z, "mtp.next_in_proj.weight"))
        return 0;
    if (model_predictor(b->m, b->e) < 0)
        return -1;
    own.m = b->m->predictor;
    return bind_layer(&own, 0);
}

/* The sections with heads of further tokens.  They need all other weights. */
static int bind_heads(struct model *m, struct err *e)
{
    size_t n_medusa, n_eagle;
    const void *medusa = zfile_heads(m->file, HEADS_MEDUSA, &n_medusa),
               *eagle = zfile_heads(m->file, HEADS_EAGLE, &n_eagle), *bad = NULL;
    if (medusa && !(m->medusa = medusa_bind(medusa, n_medusa, &m->config, e)))
        bad = medusa;
    else if (eagle && !(m->eagle = eagle_bind(eagle, n_eagle, &m->config, e)))
        bad = eagle;
    if (bad)
        return err_prefix(e, "%s: offset %zu: section %s", zfile_path(m->file),
                          (size_t)((const uint8_t *)bad - (const uint8_t *)zfile_data(m->file)),
                          bad == medusa ? "MDSA" : "EAGL");
    if (m->eagle)
        eagle_attach(m->eagle, m);
    return 0;
}

struct model *model_bind(struct zfile *z, struct err *e)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m) {
        zfile_close(z);
        err_nomem(e, "model");
        return NULL;
    }
    m->file = z;
    struct binder b = { .m = m, .z = z, .e = e };
    struct config *c = &m->config;
    if (config_parse(c, js_get(zfile_json(z), "config"), e) < 0) {
        err_prefix(e, "%s", zfile_path(z));
        goto fail;
    }
    m->layers = calloc((size_t)c->n_layers, sizeof *m->layers);
    if (c->norm == NORM_LAYER && c->norm_offset != 0)
        m->owned = b.shifted = calloc(((size_t)c->n_layers * 4 + 2) * (size_t)c->hidden_size, sizeof(float));
    if (!m->layers || (c->norm == NORM_LAYER && c->norm_offset != 0 && !m->owned)) {
        err_nomem(e, "model");
        goto fail;
    }
    model_norms(m);
    if (model_experts(m, e) < 0 || bind_ends(&b) < 0)
        goto fail;
    for (int i = 0; i < c->n_layers; i++)
        if (bind_layer(&b, i) < 0)
            goto fail;
    if (bind_predictor(&b) < 0 || bind_heads(m, e) < 0)
        goto fail;
    return m;
fail:
    model_close(m);
    return NULL;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    model_drop_loras(m);
    for (int i = 0; m->layers && i < m->config.n_layers; i++)
        free(m->layers[i].experts);
    free(m->layers);
    free(m->owned);
    if (m->predictor && m->predictor->layers)
        free(m->predictor->layers->experts);
    if (m->predictor)
        free(m->predictor->layers);
    free(m->predictor);
    medusa_close(m->medusa);
    eagle_close(m->eagle);
    config_release(&m->config);
    zfile_close(m->file);
    free(m);
}

/* bind.c - a .zse file's tensors into struct model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

struct binder {
    struct model *m;
    const struct zfile *z;
    float *shifted;             /* room for layer norm weights with norm_offset added */
    size_t n_shifted;
    struct err *e;
};

static int missing(const struct binder *b, const char *name)
{
    return err_set(b->e, ERR_FORMAT, "%s: tensor '%s' is missing", zfile_path(b->z), name);
}

static int wrong_shape(const struct binder *b, const struct zfile_tensor *t, int64_t rows, int64_t cols)
{
    return err_set(b->e, ERR_SHAPE, "%s: tensor '%s': shape [%lld, %lld], expected [%lld, %lld] by its config", zfile_path(b->z), t->name,
                   (long long)t->m.rows, (long long)t->m.cols, (long long)rows, (long long)cols);
}

/* A plain f32 tensor of rows x cols (rows 1: a vector); *out stays NULL if it is absent and optional. */
static int bind_plain(struct binder *b, const char *name, int64_t rows, int64_t cols, int optional, const float **out)
{
    const struct zfile_tensor *t = zfile_find(b->z, name);
    *out = NULL;
    if (!t)
        return optional ? 0 : missing(b, name);
    if (t->tiled || t->m.type != QT_F32)
        return err_set(b->e, ERR_FORMAT, "%s: tensor '%s' is stored as %s, expected plain f32", zfile_path(b->z), name, qtype_info(t->m.type)->name);
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
        return err_set(b->e, ERR_FORMAT, "%s: tensor '%s' is plain, expected a matrix in kernel order", zfile_path(b->z), full);
    if (t->m.rows != rows || t->m.cols != cols)
        return wrong_shape(b, t, rows, cols);
    l->w = t->m;
    b->m->weight_bytes += t->m.size;
    snprintf(full, sizeof full, "%s.bias", name);
    return bind_plain(b, full, 1, rows, c->gguf || !biased, &l->bias);
}

static int bind_norm(struct binder *b, const char *name, const char *have, int64_t n, int biased, struct norm *norm)
{
    const struct config *c = &b->m->config;
    char full[96];
    if (!have || !*have)
        return 0;
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
    const struct weight_names *n = m->config.names;
    const int qk = m->config.qk_norm != QK_NORM_NONE;
    m->embed_norm.present = n->embed_norm != NULL;
    m->final_norm.present = n->final_norm != NULL;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        l->attn_norm.present = n->attn_norm != NULL;
        l->attn_post_norm.present = n->attn_post_norm != NULL;
        l->mlp_norm.present = n->mlp_norm != NULL;
        l->mlp_post_norm.present = n->mlp_post_norm != NULL;
        l->q_norm.present = l->k_norm.present = qk;
    }
}

static int bind_layer(struct binder *b, int i, struct layer *l)
{
    const struct config *c = &b->m->config;
    const struct weight_names *n = c->names;
    const int64_t hidden = c->hidden_size;
    const int head = c->qk_norm == QK_NORM_HEAD, none = c->qk_norm == QK_NORM_NONE;
    const struct { const char *name; const char *have; int64_t n; int bias; struct norm *to; } norms[] = {
        { "attn_norm", n->attn_norm, hidden, BIAS_NORM, &l->attn_norm }, { "attn_post_norm", n->attn_post_norm, hidden, BIAS_NORM, &l->attn_post_norm },
        { "mlp_norm", n->mlp_norm, hidden, BIAS_NORM, &l->mlp_norm }, { "mlp_post_norm", n->mlp_post_norm, hidden, BIAS_NORM, &l->mlp_post_norm },
        { "q_norm", none ? NULL : n->q_norm, (int64_t)(head ? 1 : c->n_heads) * c->head_dim, BIAS_QK_NORM, &l->q_norm },
        { "k_norm", none ? NULL : n->k_norm, (int64_t)(head ? 1 : c->n_kv_heads) * c->head_dim, BIAS_QK_NORM, &l->k_norm },
    };
    const struct { const char *name; int role, bias; struct linear *to; } linears[] = {
        { "q_proj", ROLE_Q, BIAS_Q, &l->q }, { "k_proj", ROLE_K, BIAS_K, &l->k }, { "v_proj", ROLE_V, BIAS_V, &l->v }, { "o_proj", ROLE_O, BIAS_O, &l->o },
        { "gate_proj", ROLE_GATE, BIAS_GATE, &l->gate }, { "up_proj", ROLE_UP, BIAS_UP, &l->up }, { "down_proj", ROLE_DOWN, BIAS_DOWN, &l->down },
    };
    char name[80];
    for (size_t j = 0; j < sizeof norms / sizeof *norms; j++) {
        snprintf(name, sizeof name, "layers.%d.%s", i, norms[j].name);
        if (bind_norm(b, name, norms[j].have, norms[j].n, c->biases & norms[j].bias, norms[j].to) < 0)
            return -1;
    }
    for (size_t j = 0; j < sizeof linears / sizeof *linears; j++) {
        int64_t rows, cols;
        if (linears[j].role == ROLE_GATE && !c->gated)
            continue;
        config_linear_shape(c, linears[j].role, &rows, &cols);
        snprintf(name, sizeof name, "layers.%d.%s", i, linears[j].name);
        if (bind_linear(b, name, rows, cols, c->biases & linears[j].bias, linears[j].to) < 0)
            return -1;
    }
    return 0;
}

static int bind_ends(struct binder *b)
{
    struct model *m = b->m;
    struct config *c = &m->config;
    const int apart = c->embed_size != c->hidden_size;
    if (bind_linear(b, "embed", c->vocab_size, c->embed_size, 0, &m->embed) < 0 ||
        bind_norm(b, "embed_norm", c->names->embed_norm, c->hidden_size, c->biases & BIAS_NORM, &m->embed_norm) < 0 ||
        (apart && bind_linear(b, "embed_in", c->hidden_size, c->embed_size, 0, &m->embed_in) < 0) ||
        (apart && bind_linear(b, "embed_out", c->embed_size, c->hidden_size, 0, &m->embed_out) < 0) ||
        bind_norm(b, "final_norm", c->names->final_norm, c->hidden_size, c->biases & BIAS_NORM, &m->final_norm) < 0)
        return -1;
    if (c->pos == POS_LEARNED && bind_plain(b, "pos_embed.weight", (int64_t)c->max_len + c->pos_offset, c->hidden_size, 0, &m->pos_embed) < 0)
        return -1;
    const int has_head = zfile_find(b->z, "head.weight") != NULL;
    if (!has_head && (c->tied || !c->tied_given || c->gguf)) {
        m->head.w = m->embed.w;
        c->tied = 1;
        return 0;
    }
    c->tied = 0;
    return bind_linear(b, "head", c->vocab_size, c->embed_size, c->biases & BIAS_HEAD, &m->head);
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
    if (bind_ends(&b) < 0)
        goto fail;
    for (int i = 0; i < c->n_layers; i++)
        if (bind_layer(&b, i, &m->layers[i]) < 0)
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
    free(m->layers);
    free(m->owned);
    config_release(&m->config);
    zfile_close(m->file);
    free(m);
}

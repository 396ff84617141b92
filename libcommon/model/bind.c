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
    return err_set(b->e, ERR_SHAPE, "%s: tensor '%s': shape [%lld, %lld], expected [%lld, %lld] by its config",
                   zfile_path(b->z), t->name, (long long)t->m.rows, (long long)t->m.cols, (long long)rows,
                   (long long)cols);
}

/* A plain f32 tensor of rows x cols (rows 1: a vector); *out stays NULL if it is absent and
 * optional. */
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
        const int mixes = m->config.mixer[i] != MIXER_NONE, feeds = m->config.ff[i] != FF_NONE;
        l->attn_norm.present = mixes && n->attn_norm != NULL;
        l->attn_post_norm.present = n->attn_post_norm != NULL;
        l->mlp_norm.present = feeds && n->mlp_norm != NULL;
        l->mlp_post_norm.present = n->mlp_post_norm != NULL;
        l->q_norm.present = l->k_norm.present = qk;
        l->attn_sub_norm.present = n->attn_sub_norm != NULL;
        l->mlp_sub_norm.present = n->mlp_sub_norm != NULL;
        l->q_a_norm.present = l->kv_norm.present = m->config.mixer[i] == MIXER_MLA;
    }
}

struct linear_place { const char *name; int role, bias; struct linear *to; };

static int bind_linears(struct binder *b, int layer, const struct linear_place *places, int n)
{
    const struct config *c = &b->m->config;
    char name[80];
    for (int i = 0; i < n; i++) {
        int64_t rows, cols;
        if (!places[i].name)
            continue;
        config_linear_shape(c, layer, places[i].role, &rows, &cols);
        snprintf(name, sizeof name, "layers.%d.%s", layer, places[i].name);
        if (bind_linear(b, name, rows, cols, c->biases & places[i].bias, places[i].to) < 0)
            return -1;
    }
    return 0;
}

int model_experts(struct model *m, struct err *e)
{
    for (int i = 0; i < m->config.n_layers; i++)
        if (m->config.ff[i] == FF_MOE && !(m->layers[i].experts = calloc((size_t)m->config.moe.n_experts,
                                                                         sizeof *m->layers[i].experts)))
            return err_nomem(e, "experts");
    return 0;
}

static int bind_experts(struct binder *b, int layer, struct layer *l)
{
    const struct config *c = &b->m->config;
    char correction[48], gate[40], up[40], down[40];
    const struct linear_place routers[] = {
        { "router", ROLE_ROUTER, BIAS_ROUTER, &l->router },
            { c->moe.shared_gate ? "shared_router" : NULL, ROLE_SHARED_ROUTER, 0, &l->shared_router },
    };
    snprintf(correction, sizeof correction, "layers.%d.router.correction", layer);
    if (bind_linears(b, layer, routers, 2) < 0 ||
        (c->moe.correction && bind_plain(b, correction, 1, c->moe.n_experts, 0, &l->correction) < 0))
        return -1;
    for (int i = 0; i < c->moe.n_experts; i++) {
        struct expert *x = &l->experts[i];
        snprintf(gate, sizeof gate, "experts.%d.gate_proj", i);
        snprintf(up, sizeof up, "experts.%d.up_proj", i);
        snprintf(down, sizeof down, "experts.%d.down_proj", i);
        const struct linear_place parts[] = { { gate, ROLE_EXPERT_GATE, BIAS_EXPERTS, &x->gate },
                                              { up, ROLE_EXPERT_UP, BIAS_EXPERTS, &x->up },
                                              { down, ROLE_EXPERT_DOWN, BIAS_EXPERTS, &x->down } };
        if (bind_linears(b, layer, parts, 3) < 0)
            return -1;
    }
    return 0;
}

/* What only layers with a state have. */
static int bind_state(struct binder *b, int i, struct layer *l)
{
    const struct config *c = &b->m->config;
    const struct recurrent *r = &c->recurrent;
    const int channels = recurrent_channels(c, i), delta = c->mixer[i] == MIXER_DELTA, conv = c->mixer[i] == MIXER_CONV;
    const struct { const char *name; int64_t rows, cols; int absent; const float **to; } plain[] = {
        { "conv.weight", r->conv_kernel, channels, 0, &l->conv },
            { "conv.bias", 1, channels, !r->conv_bias, &l->conv_bias },
        { "a_log", 1, r->n_heads, conv, &l->a_log }, { "dt_bias", 1, r->n_heads, conv, &l->dt_bias },
        { "d", 1, r->n_heads, conv || delta, &l->d },
        { "gate_norm.weight", 1, delta ? r->head_dim : recurrent_width(c, i), conv, &l->gate_norm.w },
    };
    char name[80];
    for (size_t j = 0; j < sizeof plain / sizeof *plain; j++) {
        snprintf(name, sizeof name, "layers.%d.%s", i, plain[j].name);
        if (!plain[j].absent && bind_plain(b, name, plain[j].rows, plain[j].cols, 0, plain[j].to) < 0)
            return -1;
    }
    return 0;
}

static int bind_layer(struct binder *b, int i, struct layer *l)
{
    const struct config *c = &b->m->config;
    const struct weight_names *n = c->names;
    const int64_t hidden = c->hidden_size;
    const int head = c->qk_norm == QK_NORM_HEAD, none = c->qk_norm == QK_NORM_NONE, mla = c->mixer[i] == MIXER_MLA,
              q_a = mla && c->mla.q_rank;
    const int mlp = config_mlp_size(c, i) > 0, attends = c->mixer[i] == MIXER_ATTENTION,
              state = mixer_has_state(c->mixer[i]), delta = c->mixer[i] == MIXER_DELTA;
    const int mixes = c->mixer[i] != MIXER_NONE, feeds = c->ff[i] != FF_NONE;
    const struct { const char *name; const char *have; int64_t n; int bias; struct norm *to; } norms[] = {
        { "attn_norm", mixes ? n->attn_norm : NULL, hidden, BIAS_NORM, &l->attn_norm },
            { "attn_post_norm", n->attn_post_norm, hidden, BIAS_NORM, &l->attn_post_norm },
        { "mlp_norm", feeds ? n->mlp_norm : NULL, hidden, BIAS_NORM, &l->mlp_norm },
        { "mlp_post_norm", n->mlp_post_norm, hidden, BIAS_NORM, &l->mlp_post_norm },
        { "attn_sub_norm", n->attn_sub_norm, (int64_t)c->n_heads * c->head_dim, 0, &l->attn_sub_norm },
        { "mlp_sub_norm", n->mlp_sub_norm, c->intermediate_size, 0, &l->mlp_sub_norm },
        { "q_norm", none || !attends ? NULL : n->q_norm, (int64_t)(head ? 1 : c->n_heads) * c->head_dim, BIAS_QK_NORM,
          &l->q_norm },
        { "k_norm", none || !attends ? NULL : n->k_norm, (int64_t)(head ? 1 : c->n_kv_heads) * c->head_dim,
          BIAS_QK_NORM, &l->k_norm },
        { "q_a_norm", q_a ? n->q_a_norm : NULL, c->mla.q_rank, 0, &l->q_a_norm },
        { "kv_norm", mla ? n->kv_norm : NULL, c->mla.kv_rank, 0, &l->kv_norm },
    };
    const struct linear_place linears[] = {
        { q_a ? "q_a_proj" : NULL, ROLE_Q_A, 0, &l->q_a },
            { attends || mla ? "q_proj" : NULL, ROLE_Q, mla ? 0 : BIAS_Q, &l->q },
        { attends && c->attn_gate ? "q_gate_proj" : NULL, ROLE_Q_GATE, BIAS_Q, &l->q_gate },
        { attends ? "k_proj" : NULL, ROLE_K, BIAS_K, &l->k }, { attends ? "v_proj" : NULL, ROLE_V, BIAS_V, &l->v },
        { state ? "in_proj" : NULL, ROLE_IN, BIAS_IN, &l->in },
        { delta ? "in_ba_proj" : NULL, ROLE_IN_BA, 0, &l->in_ba },
        { delta && c->recurrent.z_apart ? "in_z_proj" : NULL, ROLE_IN_Z, 0, &l->in_z },
        { mla ? "kv_a_proj" : NULL, ROLE_KV_A, 0, &l->kv_a }, { mla ? "k_b_proj" : NULL, ROLE_K_B, 0, &l->k_b },
        { mla ? "v_b_proj" : NULL, ROLE_V_B, 0, &l->v_b },
        { mixes ? "o_proj" : NULL, ROLE_O, state ? BIAS_IN : BIAS_O, &l->o },
        { mlp && c->gated ? "gate_proj" : NULL, ROLE_GATE, BIAS_GATE, &l->gate },
        { mlp ? "up_proj" : NULL, ROLE_UP, BIAS_UP, &l->up },
        { mlp ? "down_proj" : NULL, ROLE_DOWN, BIAS_DOWN, &l->down },
    };
    char name[80];
    for (size_t j = 0; j < sizeof norms / sizeof *norms; j++) {
        snprintf(name, sizeof name, "layers.%d.%s", i, norms[j].name);
        if (bind_norm(b, name, norms[j].have, norms[j].n, c->biases & norms[j].bias, norms[j].to) < 0)
            return -1;
    }
    snprintf(name, sizeof name, "layers.%d.sinks", i);
    if (state && bind_state(b, i, l) < 0)
        return -1;
    if ((c->sinks && bind_plain(b, name, 1, c->n_heads, 0, &l->sinks) < 0) ||
        bind_linears(b, i, linears, sizeof linears / sizeof *linears) < 0)
        return -1;
    return c->ff[i] == FF_MOE ? bind_experts(b, i, l) : 0;
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
    if (c->pos == POS_LEARNED && bind_plain(b, "pos_embed.weight", (int64_t)c->max_len + c->pos_offset, c->hidden_size,
                                            0, &m->pos_embed) < 0)
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
    if (model_experts(m, e) < 0 || bind_ends(&b) < 0)
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
    for (int i = 0; m->layers && i < m->config.n_layers; i++)
        free(m->layers[i].experts);
    free(m->layers);
    free(m->owned);
    config_release(&m->config);
    zfile_close(m->file);
    free(m);
}

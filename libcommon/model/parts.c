/* parts.c - walk the tables of a layer's weights and of those outside of the layers. */
#include "libcommon/model/parts.h"

#include <string.h>
#include <assert.h>
#include <stdio.h>

#include "libcommon/model/arch.h"

enum { IS_MIXER = 1, IS_FF = 0, IS_FIRST = 1, IS_LAST = 0 };

const struct part_info part_infos[N_LAYER_PARTS] = {
#define NORM(id, field, name, scope, of, ...) \
    [LP_##id] = { name, PART_NORM, -1, IS_##of, offsetof(struct layer, field) },
#define VECTOR(id, field, name, scope, of, ...) \
    [LP_##id] = { name, PART_VECTOR, -1, IS_##of, offsetof(struct layer, field) },
#define MATRIX(id, field, name, scope, of, ...) \
    [LP_##id] = { name, PART_MATRIX, ROLE_##id, IS_##of, offsetof(struct layer, field) },
#define EXPERT(id, field, name, ...) \
    [LP_##id] = { name, PART_EXPERT, ROLE_##id, IS_FF, offsetof(struct expert, field) },
#include "libcommon/model/parts.def"
};

/* Sums over the rows.  The assertions below fail the build if a field of struct layer or struct
 * expert has no row, or a role has no matrix. */
enum {
#define NORM(...) + sizeof(struct norm)
#define VECTOR(...) + sizeof(const float *)
#define MATRIX(...) + sizeof(struct linear)
#define EXPERT(...)
    LAYER_BYTES = sizeof(struct expert *)
#include "libcommon/model/parts.def"
    ,
#define NORM(...)
#define VECTOR(...)
#define MATRIX(...)
#define EXPERT(...) + sizeof(struct linear)
    EXPERT_BYTES = 0
#include "libcommon/model/parts.def"
    ,
#define NORM(...)
#define VECTOR(...)
#define MATRIX(...) + 1
#define EXPERT(...) + 1
    N_MATRIX_ROLES = 0
#include "libcommon/model/parts.def"
};
_Static_assert(sizeof(struct layer) == LAYER_BYTES, "every weight of struct layer has a row in parts.def");
_Static_assert(sizeof(struct expert) == EXPERT_BYTES, "every matrix of struct expert has a row in parts.def");
_Static_assert(N_ROLES - N_ENDS_ROLES == N_MATRIX_ROLES, "every role of a layer's matrices has a row in parts.def");

/* Number of rows of a layer's matrix `in`. */
static int64_t projected_rows(const struct config *c, int layer)
{
    const int64_t channels = recurrent_channels(c, layer), width = recurrent_width(c, layer);
    if (c->mixer[layer] == MIXER_CONV || c->mixer[layer] == MIXER_LIGHTNING)
        return 3 * width;
    return channels + (c->recurrent.z_apart ? 0 : width) +
           (c->mixer[layer] == MIXER_MAMBA2 || c->mixer[layer] == MIXER_BOTH ? c->recurrent.n_heads : 0);
}

void channel_scale_name(int layer, enum layer_input input, char out[CHANNEL_SCALE_NAME])
{
    static const char *const names[N_INPUTS] = {
        [INPUT_QKV] = "attn_in", [INPUT_Q_A] = "q_in", [INPUT_O] = "o_in", [INPUT_STATE_O] = "state_o_in",
        [INPUT_MLP] = "mlp_in", [INPUT_DOWN] = "down_in",
    };
    snprintf(out, CHANNEL_SCALE_NAME, "layers.%d.%s.channel_scale", layer, names[input]);
}

int is_channel_scale(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".channel_scale") == 0;
}

struct part_fact layer_part_fact(const struct config *c, int layer, enum layer_part part)
{
    struct config predictor;
    if (layer == c->n_layers)
        return config_predictor(c, &predictor) == 0 ? layer_part_fact(&predictor, 0, part) : (struct part_fact){ 0 };
    const struct weight_names *names = c->names;
    const struct mla *m = &c->mla;
    const struct recurrent *r = &c->recurrent;
    const int kind = c->mixer[layer];
    const int mixes = kind != MIXER_NONE, both = kind == MIXER_BOTH, attends = kind == MIXER_ATTENTION || both,
              mla = kind == MIXER_MLA, comp = kind == MIXER_COMPRESSED, entries = comp && c->rates[layer];
    const int state = mixer_has_state(kind), mamba = kind == MIXER_MAMBA2 || both, delta = kind == MIXER_DELTA;
    const int mamba1 = kind == MIXER_MAMBA1, lightning = kind == MIXER_LIGHTNING,
              heads_of = mamba1 ? recurrent_width(c, layer) : r->n_heads;
    const int q_a = (mla && m->q_rank) || comp, qk_norm = attends && c->qk_norm != QK_NORM_NONE;
    const int per_head = c->qk_norm == QK_NORM_HEAD;
    const int feeds = c->ff[layer] != FF_NONE, moe = c->ff[layer] == FF_MOE;
    const int sinks = mixes && (c->sinks == SINKS_ALL || (c->sinks == SINKS_WINDOWED && c->window[layer]));
    const int xielu = feeds && c->act == CONFIG_ACT_XIELU && !c->xielu;
    const int64_t hidden = c->hidden_size, heads = c->n_heads, mlp = config_mlp_size(c, layer);
    const int own_kv = attends && !config_shares_kv(c, layer), head_dim = config_head_dim(c, layer);
    const int64_t kv_heads = config_kv_heads(c, layer), key_dim = config_key_dim(c, layer),
                  value_dim = config_value_dim(c, layer);
    const int64_t q_width = heads * head_dim, kv_width = kv_heads * head_dim;
    const int indexes = config_indexes(c, layer), index_dim = c->indexer.head_dim;
    const int beside = moe && c->moe.beside, latent = moe ? c->moe.latent : 0;
    const int64_t projected = projected_rows(c, layer), channels = recurrent_channels(c, layer),
                  width = recurrent_width(c, layer);
    const int gate_low = r->gate_rank > 0;
    const int sums = indexes ? 2 : 1, hashed = moe && c->hashed && c->hashed[layer];
    const int64_t o_rows = (int64_t)c->compressed.o_groups * c->compressed.o_rank,
                  streams = c->hyper.rank ? 0 : c->hyper.n, gated = c->hyper.rank ? c->hyper.n * hidden : 0;
    const int which = config_ngram(c, layer);
    const int64_t runs = which < 0 ? 0 : (int64_t)(c->ngram.size - 1) * c->ngram.heads * c->ngram.dim;
    const int64_t gate_cols = gate_low ? r->gate_rank : hidden;
    const int posts = c->attn_post_norms && attends, pres = c->attn_post_norms && !attends;
    const char *have;
    switch (part) {
#define NORM(id, field, name, scope, of, have_, bias, size) \
    case LP_##id: have = have_; return (struct part_fact){ have != NULL, have && *have, bias, INPUT_NONE, 1, size };
#define VECTOR(id, field, name, scope, of, when, rows, cols) \
    case LP_##id: return (struct part_fact){ (when) != 0, (when) != 0, 0, INPUT_NONE, rows, cols };
#define MATRIX(id, field, name, scope, of, reads, when, bias, rows, cols) \
    case LP_##id: return (struct part_fact){ (when) != 0, (when) != 0, bias, reads, rows, cols };
#define EXPERT(id, field, name, reads, bias, rows, cols) \
    case LP_##id: { \
        const int has = moe && (c->gated || LP_##id != LP_EXPERT_GATE); \
        return (struct part_fact){ has, has, bias, reads, rows, cols }; \
    }
#include "libcommon/model/parts.def"
    case N_LAYER_PARTS: break;
    }
    assert(!"a layer's part");
    return (struct part_fact){ 0 };
}

void config_linear_shape(const struct config *c, int layer, int role, int64_t *rows, int64_t *cols)
{
    static const int part_of[N_ROLES] = {
#define NORM(...)
#define VECTOR(...)
#define MATRIX(id, ...) [ROLE_##id] = LP_##id,
#define EXPERT(id, ...) [ROLE_##id] = LP_##id,
#include "libcommon/model/parts.def"
    };
    if (role < N_ENDS_ROLES) {
        *rows = c->vocab_size;
        *cols = c->embed_size;
        return;
    }
    const struct part_fact f = layer_part_fact(c, layer, (enum layer_part)part_of[role]);
    *rows = f.rows;
    *cols = f.cols;
}

int64_t config_mixer_parameters(const struct config *c, int layer)
{
    int64_t n = mixer_has_state(c->mixer[layer]) ? (int64_t)c->recurrent.conv_kernel * recurrent_channels(c, layer) : 0;
    for (int i = 0; i < N_LAYER_PARTS; i++) {
        const struct part_fact f = layer_part_fact(c, layer, (enum layer_part)i);
        if (f.present && part_infos[i].kind == PART_MATRIX && part_infos[i].is_mixer)
            n += f.rows * f.cols;
    }
    return n;
}

int layer_readers(const struct layer *l, enum layer_input input, const struct linear *out[LAYER_READERS])
{
    const int q_a = l->q_a.w.data != NULL;      /* determines the input of q */
    const int gate_low = l->gate_a.w.data != NULL;
    /* experts between latent_in and latent_out read none of the layer's inputs */
    const struct expert *x = l->latent_in.w.data ? NULL : l->experts;
    int n = 0;
#define NORM(...)
#define VECTOR(...)
#define MATRIX(id, field, name, scope, of, reads, ...) \
    if ((reads) == (int)input && l->field.w.data) { \
        assert(n < LAYER_READERS); \
        out[n++] = &l->field; \
    }
#define EXPERT(id, field, name, reads, ...) \
    if ((reads) == (int)input && x && x->field.w.data) { \
        assert(n < LAYER_READERS); \
        out[n++] = &x->field; \
    }
#include "libcommon/model/parts.def"
    return n;
}

void *part_field(struct layer *l, int expert, enum layer_part part)
{
    const struct part_info *p = &part_infos[part];
    return (char *)(p->kind == PART_EXPERT ? (void *)&l->experts[expert] : (void *)l) + p->offset;
}

const struct linear *layer_matrix(const struct layer *l, enum layer_part part)
{
    const struct linear *m = (const void *)((const char *)l + part_infos[part].offset);
    return part_infos[part].kind == PART_MATRIX && m->w.data ? m : NULL;
}

/* ---- outside of the layers ---- */

const struct end_info end_infos[N_END_PARTS] = {
#define NORM(id, field, source, side, scope, ...) \
    [EP_##id] = { #field, PART_NORM, ROLE_NORM, IS_##side, offsetof(struct model, field) },
#define VECTOR(id, field, source, side, scope, role, ...) \
    [EP_##id] = { #field, PART_VECTOR, ROLE_##role, IS_##side, offsetof(struct model, field) },
#define MATRIX(id, field, source, side, scope, role, ...) \
    [EP_##id] = { #field, PART_MATRIX, ROLE_##role, IS_##side, offsetof(struct model, field) },
#include "libcommon/model/ends.def"
};

enum {
#define NORM(...) + sizeof(struct norm)
#define VECTOR(...) + sizeof(const float *)
#define MATRIX(...) + sizeof(struct linear)
    ENDS_BYTES = 0
#include "libcommon/model/ends.def"
};
_Static_assert(offsetof(struct model, file) - offsetof(struct model, embed) == ENDS_BYTES,
               "every weight of struct model has a row in ends.def");

struct part_fact end_part_fact(const struct config *c, enum end_part part)
{
    const struct weight_names *names = c->names;
    const int64_t hidden = c->hidden_size, embed = c->embed_size, ple = (int64_t)c->n_layers * c->ple_dim,
                  streams = (int64_t)(c->n_streams - 1) * hidden;
    const struct embedding *d = &c->embedding;
    const char *have;
    switch (part) {
#define NORM(id, field, source, side, scope, have_, bias, size) \
    case EP_##id: have = have_; return (struct part_fact){ have != NULL, have && *have, bias, INPUT_NONE, 1, size };
#define VECTOR(id, field, source, side, scope, role, when, rows, cols) \
    case EP_##id: return (struct part_fact){ (when) != 0, (when) != 0, 0, INPUT_NONE, rows, cols };
#define MATRIX(id, field, source, side, scope, role, when, bias, rows, cols) \
    case EP_##id: return (struct part_fact){ (when) != 0, (when) != 0, bias, INPUT_NONE, rows, cols };
#include "libcommon/model/ends.def"
    case N_END_PARTS: break;
    }
    assert(!"a part outside of the layers");
    return (struct part_fact){ 0 };
}

void *end_field(struct model *m, enum end_part part) { return (char *)m + end_infos[part].offset; }

const struct linear *end_matrix(const struct model *m, enum end_part part)
{
    const struct linear *l = (const void *)((const char *)m + end_infos[part].offset);
    return end_infos[part].kind == PART_MATRIX && l->w.data ? l : NULL;
}

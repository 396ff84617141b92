/* weights_layer.c - list the tensors of a layer: attention, latent attention, the MLP. */
#include "libcommon/model/builder.h"

#include <stdio.h>

/* The rows of part i (0 q, 1 k, 2 v) in a fused matrix. */
static struct row_map fused_rows(const struct builder *b, int layer, int i)
{
    const struct config *c = b->c;
    const int64_t hd = config_head_dim(c, layer), group = c->n_heads / c->n_kv_heads, q = (int64_t)c->n_heads * hd,
                  kv = (int64_t)c->n_kv_heads * hd;
    if (b->n.qkv_grouped)
        return (struct row_map){ .offset = i == 0 ? 0 : (group + i - 1) * hd, .run = i == 0 ? group * hd : hd,
                                 .stride = (group + 2) * hd };
    const int64_t rows = i == 0 ? q : kv;
    return (struct row_map){ .offset = i == 0 ? 0 : i == 1 ? q : q + kv, .run = rows, .stride = rows };
}

static int add_qkv(struct builder *b, int layer)
{
    static const enum layer_part parts[3] = { LP_Q, LP_K, LP_V };
    const struct config *c = b->c;
    const char *const stems[3] = { b->n.q, b->n.k, b->n.v };
    const int64_t hd = config_head_dim(c, layer), q = c->n_heads * hd, kv = config_kv_heads(c, layer) * hd;
    char source[160], probe[168];
    int is_fused = b->n.qkv != NULL;
    if (is_fused) {
        spec_path(b, source, sizeof source, layer, b->n.qkv);
        snprintf(probe, sizeof probe, "%s.weight", source);
        /* in a GGUF they are fused or not, depending on the converter */
        is_fused = !c->gguf || spec_exists(b, probe);
    }
    for (int i = 0; i < 3; i++) {
        struct row_map map = { 0 };
        int64_t src_rows = 0;
        if (!layer_part_fact(c, layer, parts[i]).present)
            continue;
        if (is_fused) {
            src_rows = q + 2 * kv;
            map = fused_rows(b, layer, i);
        } else {
            spec_path(b, source, sizeof source, layer, stems[i]);
        }
        if (c->gguf && b->have->gguf_permuted && i < 2)
            map.pairs = (int)hd;
        if (i == 0 && b->have->q_gated) {
            src_rows = 2 * q;
            map = (struct row_map){ .run = hd, .stride = 2 * hd };
            const struct row_map gate = { .offset = hd, .run = hd, .stride = 2 * hd };
            if (spec_matrix(b, layer, LP_Q_GATE, source, gate, src_rows) < 0)
                return -1;
        }
        if (spec_matrix(b, layer, parts[i], source, map, src_rows) < 0)
            return -1;
    }
    if (config_indexes(c, layer) && spec_blocks(b, layer) < 0)
        return -1;
    return c->attn_gate && b->have->q_gate ? spec_own_matrix(b, layer, LP_Q_GATE, b->n.q_gate) : 0;
}

int spec_gate_up(struct builder *b, int layer, const char *stem, int64_t n)
{
    char source[160];
    spec_path(b, source, sizeof source, layer, stem);
    const struct row_map gate = { .run = n, .stride = n }, up = { .offset = n, .run = n, .stride = n };
    return spec_matrix(b, layer, LP_GATE, source, gate, 2 * n) < 0 ? -1
                                                                  : spec_matrix(b, layer, LP_UP, source, up, 2 * n);
}

int spec_mlp(struct builder *b, int layer)
{
    const struct config *c = b->c;
    char source[160], probe[168];
    int is_fused = c->gated && b->n.gate_up != NULL;
    if (is_fused && c->gguf) {
        spec_path(b, source, sizeof source, layer, b->n.gate);
        snprintf(probe, sizeof probe, "%s.weight", source);
        is_fused = !spec_exists(b, probe);
    }
    if (is_fused) {
        if (spec_gate_up(b, layer, b->n.gate_up, config_mlp_size(c, layer)) < 0)
            return -1;
    } else if ((c->gated && spec_own_matrix(b, layer, LP_GATE, b->n.gate) < 0) ||
               spec_own_matrix(b, layer, LP_UP, b->n.up) < 0) {
        return -1;
    }
    if (spec_vector(b, layer, LP_ACT_ALPHA_P, b->n.act_alpha_p) < 0 ||
        spec_vector(b, layer, LP_ACT_ALPHA_N, b->n.act_alpha_n) < 0 ||
        spec_vector(b, layer, LP_ACT_BETA, b->n.act_beta) < 0 || spec_vector(b, layer, LP_ACT_EPS, b->n.act_eps) < 0)
        return -1;
    return spec_layer_norm(b, layer, LP_MLP_SUB_NORM, b->have->mlp_sub_norm) < 0
               ? -1 : spec_own_matrix(b, layer, LP_DOWN, b->n.down);
}

/* ---- multi-head latent attention ---- */

/* Add k_b or v_b from `stem`, whose shape is want. */
static int add_kv_half(struct builder *b, int layer, enum layer_part part, const char *stem, const int64_t *want,
                       int n_want, struct row_map map)
{
    const struct part_fact f = layer_part_fact(b->c, layer, part);
    const struct weight_spec t = { .map = map, .rows = f.rows, .cols = f.cols, .role = part_infos[part].role,
                                   .layer = layer, .expert = -1, .part = (int)part };
    char source[160], full[168], ours[24];
    spec_path(b, source, sizeof source, layer, stem);
    snprintf(full, sizeof full, "%s.weight", source);
    snprintf(ours, sizeof ours, "%s.weight", part_infos[part].name);
    return spec_as(b, ours, full, want, n_want, &t);
}

/* kv_b has, for every head, nope_dim rows that make its key from the latent, then v_dim rows that
 * make its value.  Our tensor k_b has the rows for keys transposed.  Newer GGUF files have two
 * tensors, and the one for keys is already transposed. */
static int add_kv_b(struct builder *b, int layer)
{
    const struct mla *m = &b->c->mla;
    const int64_t heads = b->c->n_heads, head = m->nope_dim + m->v_dim;
    const struct row_map values = { .offset = m->nope_dim, .run = m->v_dim, .stride = head };
    const struct row_map keys = { .run = m->kv_rank, .stride = m->kv_rank, .transposed = 1, .slice = m->kv_rank,
                                  .slice_stride = head };
    const int64_t k[3] = { heads, m->kv_rank, m->nope_dim }, v[3] = { heads, m->v_dim, m->kv_rank };
    const int64_t both[2] = { heads * head, m->kv_rank };
    char source[160], full[168];
    spec_path(b, source, sizeof source, layer, b->n.k_b ? b->n.k_b : "");
    snprintf(full, sizeof full, "%s.weight", source);
    if (b->n.k_b && spec_exists(b, full))
        return add_kv_half(b, layer, LP_K_B, b->n.k_b, k, 3, (struct row_map){ 0 }) < 0
                   ? -1 : add_kv_half(b, layer, LP_V_B, b->n.v_b, v, 3, (struct row_map){ 0 });
    return add_kv_half(b, layer, LP_K_B, b->n.kv_b, both, 2, keys) < 0
               ? -1 : add_kv_half(b, layer, LP_V_B, b->n.kv_b, both, 2, values);
}

static int add_mla(struct builder *b, int layer)
{
    const int q_rank = b->c->mla.q_rank;
    if (q_rank && (spec_own_matrix(b, layer, LP_Q_A, b->n.q_a) < 0 ||
                   spec_layer_norm(b, layer, LP_Q_A_NORM, b->n.q_a_norm) < 0))
        return -1;
    if (spec_own_matrix(b, layer, LP_Q, q_rank ? b->n.q_b : b->n.q) < 0 ||
        spec_own_matrix(b, layer, LP_KV_A, b->n.kv_a) < 0 || spec_layer_norm(b, layer, LP_KV_NORM, b->n.kv_norm) < 0)
        return -1;
    if ((b->c->attn_gate && spec_own_matrix(b, layer, LP_Q_GATE, b->n.q_gate) < 0) ||
        (config_indexes(b->c, layer) && (spec_own_matrix(b, layer, LP_INDEX_Q, b->n.index_q) < 0 ||
                                         spec_own_matrix(b, layer, LP_INDEX_K, b->n.index_k) < 0 ||
                                         spec_own_matrix(b, layer, LP_INDEX_W, b->n.index_w) < 0 ||
                                         spec_layer_norm(b, layer, LP_INDEX_NORM, b->n.index_norm) < 0)))
        return -1;
    return add_kv_b(b, layer);
}

/* ---- a layer ---- */

/* Add q_norm or k_norm: one weight for all heads, one for each head ([heads, head_dim] in the
 * source), or one for the whole row. */
static int add_qk_norm(struct builder *b, int layer, enum layer_part part, const char *stem, int heads)
{
    const struct config *c = b->c;
    const struct part_fact f = layer_part_fact(c, layer, part);
    if (c->qk_norm != QK_NORM_EACH || !f.stored)
        return spec_layer_norm(b, layer, part, stem);
    const int64_t want[2] = { heads, c->head_dim };
    const struct weight_spec t = { .rows = 1, .cols = f.cols, .is_vector = 1, .role = ROLE_NORM, .layer = layer,
                                   .expert = -1, .part = (int)part };
    char source[150], full[160], ours[24];
    spec_path(b, source, sizeof source, layer, stem);
    snprintf(full, sizeof full, "%s.weight", source);
    snprintf(ours, sizeof ours, "%s.weight", part_infos[part].name);
    return spec_as(b, ours, full, want, 2, &t);
}

static int add_mixer(struct builder *b, int i)
{
    const struct weight_names *n = &b->n;
    const int kind = b->c->mixer[i], both = kind == MIXER_BOTH, state = mixer_has_state(kind) && !both;
    if (spec_layer_norm(b, i, LP_ATTN_NORM, n->attn_norm) < 0 ||
        (both && (spec_state(b, i) < 0 || spec_own_matrix(b, i, LP_STATE_O, n->state_o) < 0)))
        return -1;
    if (state               ? spec_state(b, i) < 0
        : kind == MIXER_MLA ? add_mla(b, i) < 0
        : kind == MIXER_COMPRESSED ? spec_compressed(b, i) < 0
                            : add_qkv(b, i) < 0 || add_qk_norm(b, i, LP_Q_NORM, n->q_norm, b->c->n_heads) < 0 ||
                                  add_qk_norm(b, i, LP_K_NORM, n->k_norm, b->c->n_kv_heads) < 0)
        return -1;
    return spec_layer_norm(b, i, LP_ATTN_SUB_NORM, b->have->attn_sub_norm) < 0 ||
           spec_vector(b, i, LP_SINKS, n->sinks) < 0 ||
           spec_own_matrix(b, i, LP_O, state && n->state_o ? n->state_o : n->o) < 0
               ? -1 : spec_layer_norm(b, i, LP_ATTN_POST_NORM, n->attn_post_norm);
}

int spec_layer(struct builder *b, int i)
{
    if ((b->c->mixer[i] != MIXER_NONE && add_mixer(b, i) < 0) || (b->c->hyper.n && spec_hyper(b, i) < 0) ||
        (config_ngram(b->c, i) >= 0 && spec_ngram(b, i) < 0))
        return -1;
    if (b->c->ff[i] == FF_NONE)
        return 0;
    if (spec_layer_norm(b, i, LP_MLP_NORM, b->n.mlp_norm) < 0 ||
        (b->c->ff[i] == FF_MOE ? spec_moe(b, i) : spec_mlp(b, i)) < 0 ||
        spec_layer_norm(b, i, LP_MLP_POST_NORM, b->n.mlp_post_norm) < 0)
        return -1;
    if (b->c->ple_dim && (spec_own_matrix(b, i, LP_PLE_GATE, b->n.ple_gate) < 0 ||
                          spec_own_matrix(b, i, LP_PLE_UP, b->n.ple_up) < 0 ||
                          spec_layer_norm(b, i, LP_PLE_NORM, b->n.ple_norm) < 0))
        return -1;
    return (b->c->n_streams && spec_altup(b, i) < 0) ? -1 : spec_vector(b, i, LP_LAYER_SCALE, b->n.layer_scale);
}

/* weights.c - where each tensor of ours comes from: the names of arch.c, put together and
 * checked against what the source holds. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/model/arch.h"

/* GGUF has one set of names for all architectures; which of them a model has, its own row says. */
const struct weight_names gguf_names = {
    .embed = "token_embd", .pos = "position_embd", .embed_norm = "token_embd_norm", .final_norm = "output_norm",
        .head = "output", .layer = "blk.",
    .attn_norm = "attn_norm", .attn_post_norm = "post_attention_norm", .mlp_norm = "ffn_norm",
    .mlp_post_norm = "post_ffw_norm",
    .q_norm = "attn_q_norm", .k_norm = "attn_k_norm", .qkv = "attn_qkv", .q = "attn_q", .k = "attn_k", .v = "attn_v",
    .o = "attn_output",
    .gate_up = "ffn_up", .gate = "ffn_gate", .up = "ffn_up", .down = "ffn_down",
    .q_a = "attn_q_a", .q_a_norm = "attn_q_a_norm", .q_b = "attn_q_b", .kv_a = "attn_kv_a_mqa",
    .kv_norm = "attn_kv_a_norm", .kv_b = "attn_kv_b",
    .k_b = "attn_k_b", .v_b = "attn_v_b", .sinks = "attn_sinks.weight",
    .router = "ffn_gate_inp", .correction = "exp_probs_b.bias", .shared_router = "ffn_gate_inp_shexp",
    .shared_gate = "ffn_gate_shexp", .shared_up = "ffn_up_shexp", .shared_down = "ffn_down_shexp",
    .experts_form = EXPERTS_STACKED, .experts = "", .expert_gate = "ffn_gate_exps", .expert_up = "ffn_up_exps",
    .expert_down = "ffn_down_exps",
    .in = "ssm_in", .in_ba = "ssm_ba", .conv = "ssm_conv1d", .a_log = "ssm_a", .dt_bias = "ssm_dt.bias", .d = "ssm_d",
    .gate_norm = "ssm_norm", .state_o = "ssm_out",
};

struct builder {
    const struct config *c;
    const struct weight_source *s;
    const struct weight_names *have;        /* the architecture's: what there is */
    struct weight_names n;                  /* the source's: how it is called */
    char prefix[48];                        /* of everything but the head */
    struct weight_spec *specs;
    int n_specs, room;
    struct err *e;
};

static int exists(const struct builder *b, const char *name)
{
    int n;
    int64_t dim[4];
    return !b->s->shape || b->s->shape(b->s->user, name, &n, dim) == 0;
}

/* Does the source keep it with so many dimensions? */
static int has_dims(const struct builder *b, const char *name, int n_dims)
{
    int n;
    int64_t dim[4];
    return b->s->shape && b->s->shape(b->s->user, name, &n, dim) == 0 && n == n_dims;
}

static void dims_text(char *out, size_t room, const int64_t *dim, int n)
{
    snprintf(out, room, "[");
    for (int i = 0; i < n; i++)
        snprintf(out + strlen(out), room - strlen(out), "%s%" PRId64, i ? ", " : "", dim[i]);
    snprintf(out + strlen(out), room - strlen(out), "]");
}

/* The tensor is there with this shape; -1 with both shapes named. 1: missing and allowed to be. */
static int check_shape(const struct builder *b, const char *name, const int64_t *want, int n_want, int optional)
{
    int n;
    int64_t dim[4];
    if (!b->s->shape)
        return 0;
    if (b->s->shape(b->s->user, name, &n, dim) < 0)
        return optional ? 1 : err_set(b->e, ERR_FORMAT, "tensor '%s' is missing", name);
    if (n == n_want && memcmp(dim, want, (size_t)n * sizeof *dim) == 0)
        return 0;
    char found[100], expected[100];
    dims_text(found, sizeof found, dim, n);
    dims_text(expected, sizeof expected, want, n_want);
    return err_set(b->e, ERR_SHAPE, "tensor '%s': shape %s, expected %s by config.json", name, found, expected);
}

static struct weight_spec *push(struct builder *b)
{
    if (b->n_specs == b->room) {
        int room = b->room ? 2 * b->room : 64;
        struct weight_spec *grown = realloc(b->specs, (size_t)room * sizeof *grown);
        if (!grown) {
            err_nomem(b->e, "list of weights");
            return NULL;
        }
        b->specs = grown;
        b->room = room;
    }
    struct weight_spec *s = &b->specs[b->n_specs++];
    *s = (struct weight_spec){ .layer = -1, .expert = -1 };
    return s;
}

/* One tensor of ours from the source's tensor `full`, which has the shape want; t has the rest.
 * 1: missing and allowed to be. */
static int add_as(struct builder *b, const char *ours, const char *full, const int64_t *want, int n_want,
                  const struct weight_spec *t)
{
    const int missing = check_shape(b, full, want, n_want, t->optional);
    if (missing)
        return missing;
    struct weight_spec *s = push(b);
    if (!s)
        return -1;
    *s = *t;
    if (strlen(full) >= sizeof s->source)
        return err_set(b->e, ERR_SHAPE, "tensor '%s': a name of %zu characters, expected less than %zu", full,
                       strlen(full), sizeof s->source);
    memcpy(s->source, full, strlen(full) + 1);
    if (t->layer < 0)
        snprintf(s->name, sizeof s->name, "%s", ours);
    else if (t->expert < 0)
        snprintf(s->name, sizeof s->name, "layers.%d.%s", t->layer, ours);
    else
        snprintf(s->name, sizeof s->name, "layers.%d.experts.%d.%s", t->layer, t->expert, ours);
    return 0;
}

/* One tensor: ours [rows, cols] (rows 1 for vectors) from `source` of src_rows rows. */
static int add(struct builder *b, int layer, const char *name, const char *suffix, const char *source, int64_t rows,
               int64_t cols, int vector, struct row_map map, int64_t src_rows, int role, int optional)
{
    char full[200], ours[80];
    snprintf(full, sizeof full, "%s%s", source, suffix);
    snprintf(ours, sizeof ours, "%s%s", name, suffix);
    const int64_t want[2] = { (vector && rows == 1) || !map.transposed ? src_rows : cols,
                              map.transposed ? src_rows : cols };
    const struct weight_spec t = { .map = map, .rows = rows, .cols = cols, .is_vector = vector, .role = role,
                                   .layer = layer, .expert = -1, .optional = optional };
    return add_as(b, ours, full, want, vector && rows == 1 ? 1 : 2, &t) < 0 ? -1 : 0;
}

static void path(const struct builder *b, char *out, size_t room, int layer, const char *stem)
{
    if (layer < 0)
        snprintf(out, room, "%s%s", b->prefix, stem);
    else
        snprintf(out, room, "%s%s%d.%s", b->prefix, b->n.layer, layer, stem);
}

static int add_norm(struct builder *b, int layer, const char *name, const char *have, const char *stem, int64_t n,
                    int bias)
{
    if (!have || !*have)
        return 0;
    char source[160];
    path(b, source, sizeof source, layer, stem);
    const struct row_map identity = { 0 };
    if (add(b, layer, name, ".weight", source, 1, n, 1, identity, n, ROLE_NORM, 0) < 0)
        return -1;
    return b->c->biases & bias ? add(b, layer, name, ".bias", source, 1, n, 1, identity, n, ROLE_NORM, 0) : 0;
}

/* A linear layer and its bias: rows [0, rows) through map of a source of src_rows rows. */
static int add_linear(struct builder *b, int layer, const char *name, const char *source, int role, int bias,
                      struct row_map map, int64_t src_rows)
{
    int64_t rows, cols;
    config_linear_shape(b->c, layer, role, &rows, &cols);
    if (!src_rows)
        src_rows = rows;
    map.transposed = b->n.conv1d && layer >= 0;
    if (add(b, layer, name, ".weight", source, rows, cols, 0, map, src_rows, role, 0) < 0)
        return -1;
    map.transposed = 0;
    if (b->c->gguf ? 1 : b->c->biases & bias)
        return add(b, layer, name, ".bias", source, 1, rows, 1, map, src_rows, ROLE_BIAS, b->c->gguf);
    return 0;
}

static int add_qkv(struct builder *b, int layer)
{
    const struct config *c = b->c;
    const int64_t hd = c->head_dim, group = c->n_heads / c->n_kv_heads, q = (int64_t)c->n_heads * hd,
                  kv = (int64_t)c->n_kv_heads * hd;
    char fused[160], probe[168], one[3][160];
    const char *stems[3] = { b->n.q, b->n.k, b->n.v };
    static const char *const names[3] = { "q_proj", "k_proj", "v_proj" };
    static const int biases[3] = { BIAS_Q, BIAS_K, BIAS_V };
    int is_fused = b->n.qkv != NULL;
    if (is_fused) {
        path(b, fused, sizeof fused, layer, b->n.qkv);
        snprintf(probe, sizeof probe, "%s.weight", fused);
        is_fused = !c->gguf || exists(b, probe);        /* GGUF: some converters fuse, some do not */
    }
    for (int i = 0; i < 3; i++) {
        struct row_map map = { 0 };
        int64_t src_rows = 0;
        if (is_fused) {
            const int64_t rows = i == 0 ? q : kv, offset = i == 0 ? 0 : i == 1 ? q : q + kv;
            src_rows = q + 2 * kv;
            map = b->n.qkv_grouped ? (struct row_map){ .offset = i == 0 ? 0 : (group + i - 1) * hd,
                                                       .run = i == 0 ? group * hd : hd, .stride = (group + 2) * hd }
                                   : (struct row_map){ .offset = offset, .run = rows, .stride = rows };
            memcpy(one[i], fused, sizeof fused);
        } else {
            path(b, one[i], sizeof one[i], layer, stems[i]);
        }
        if (c->gguf && b->have->gguf_permuted && i < 2)
            map.pairs = (int)hd;
        if (i == 0 && b->have->q_gated) {
            src_rows = 2 * q;
            map = (struct row_map){ .run = hd, .stride = 2 * hd };
            const struct row_map gate = { .offset = hd, .run = hd, .stride = 2 * hd };
            if (add_linear(b, layer, "q_gate_proj", one[i], ROLE_Q_GATE, BIAS_Q, gate, src_rows) < 0)
                return -1;
        }
        if (add_linear(b, layer, names[i], one[i], ROLE_Q + i, biases[i], map, src_rows) < 0)
            return -1;
    }
    return 0;
}

static int add_mlp(struct builder *b, int layer)
{
    const struct config *c = b->c;
    const int64_t ff = config_mlp_size(c, layer);
    char source[160], probe[168];
    const struct row_map identity = { 0 };
    int is_fused = c->gated && b->n.gate_up != NULL;
    if (is_fused && c->gguf) {
        path(b, source, sizeof source, layer, b->n.gate);
        snprintf(probe, sizeof probe, "%s.weight", source);
        is_fused = !exists(b, probe);
    }
    if (is_fused) {
        path(b, source, sizeof source, layer, b->n.gate_up);
        if (add_linear(b, layer, "gate_proj", source, ROLE_GATE, BIAS_GATE, (struct row_map){ .run = ff, .stride = ff },
                       2 * ff) < 0 ||
            add_linear(b, layer, "up_proj", source, ROLE_UP, BIAS_UP,
                       (struct row_map){ .offset = ff, .run = ff, .stride = ff }, 2 * ff) < 0)
            return -1;
    } else {
        if (c->gated) {
            path(b, source, sizeof source, layer, b->n.gate);
            if (add_linear(b, layer, "gate_proj", source, ROLE_GATE, BIAS_GATE, identity, 0) < 0)
                return -1;
        }
        path(b, source, sizeof source, layer, b->n.up);
        if (add_linear(b, layer, "up_proj", source, ROLE_UP, BIAS_UP, identity, 0) < 0)
            return -1;
    }
    if (b->have->mlp_sub_norm && add_norm(b, layer, "mlp_sub_norm", b->have->mlp_sub_norm, b->have->mlp_sub_norm, ff,
                                          0) < 0)
        return -1;
    path(b, source, sizeof source, layer, b->n.down);
    return add_linear(b, layer, "down_proj", source, ROLE_DOWN, BIAS_DOWN, identity, 0);
}

/* ---- mixture of experts ---- */

/* A plain vector whose whole name stands in the table; some keep it as [1, n], GGUF of layers
 * with a state as [n, 1]. */
static int add_named_vector(struct builder *b, int layer, const char *ours, const char *stem, int64_t n)
{
    char full[160];
    path(b, full, sizeof full, layer, stem);
    const int64_t flat[2] = { 1, n }, upright[2] = { n, 1 };
    const int as_row = has_dims(b, full, 2);
    const struct weight_spec t = { .rows = 1, .cols = n, .is_vector = 1, .role = ROLE_BIAS, .layer = layer,
                                   .expert = -1 };
    return add_as(b, ours, full, !as_row ? flat + 1 : b->c->gguf ? upright : flat, as_row ? 2 : 1, &t);
}

/* A matrix of one expert, and its bias, from where the source keeps it.  part: 0 gate, 1 up, 2
 * down. */
static int add_expert_part(struct builder *b, int layer, int expert, int part)
{
    static const char *const ours[] = { "gate_proj", "up_proj", "down_proj" };
    const struct config *c = b->c;
    const enum experts_form form = b->n.experts_form;
    const int fused = form >= EXPERTS_FUSED && part < 2, in_out = form >= EXPERTS_FUSED_IN_OUT,
              paired = form == EXPERTS_PAIRED_IN_OUT && fused;
    const char *stem = part == 2 ? b->n.expert_down : part == 1 && !fused ? b->n.expert_up : b->n.expert_gate;
    struct weight_spec t = { .role = ROLE_EXPERT_GATE + part, .layer = layer, .expert = expert,
                             .first_of_expert = part == 0 };
    config_linear_shape(c, layer, t.role, &t.rows, &t.cols);
    const int64_t rows = fused ? 2 * t.rows : t.rows, n = c->moe.n_experts;
    const int64_t apart[2] = { rows, t.cols }, stacked[3] = { n, in_out ? t.cols : rows, in_out ? rows : t.cols };
    char base[160], full[192], inside[48], name[24];
    if (form == EXPERTS_APART)
        snprintf(inside, sizeof inside, "%s%d.%s", b->n.experts, expert, stem);
    else
        snprintf(inside, sizeof inside, "%s%s", b->n.experts, stem);
    path(b, base, sizeof base, layer, inside);
    const int64_t offset = paired ? part == 1 : fused && part == 1 ? t.rows : 0, run = paired ? 1 : t.rows,
                  stride = paired ? 2 : t.rows;
    if (in_out)
        t.map = (struct row_map){ .offset = offset, .run = run, .stride = stride, .transposed = 1,
                                  .first = expert * t.cols };
    else if (form != EXPERTS_APART)
        t.map = (struct row_map){ .offset = expert * rows + offset, .run = run, .stride = stride };
    snprintf(full, sizeof full, "%s%s", base, in_out ? "" : ".weight");
    snprintf(name, sizeof name, "%s.weight", ours[part]);
    if (add_as(b, name, full, form == EXPERTS_APART ? apart : stacked, form == EXPERTS_APART ? 2 : 3, &t) < 0)
        return -1;
    if (c->gguf ? 0 : !(c->biases & BIAS_EXPERTS))
        return 0;
    const int64_t biases[2] = { n, rows };
    const struct weight_spec bias = { .rows = 1, .cols = t.rows, .is_vector = 1, .role = ROLE_BIAS, .layer = layer,
                                      .expert = expert, .optional = c->gguf,
                                      .map = form == EXPERTS_APART ? (struct row_map){ 0 }
                                                                   : (struct row_map){ .offset = expert * rows + offset,
                                                                       .run = run, .stride = stride } };
    snprintf(full, sizeof full, "%s%s", base, in_out ? "_bias" : ".bias");
    snprintf(name, sizeof name, "%s.bias", ours[part]);
    return add_as(b, name, full, form == EXPERTS_APART ? biases + 1 : biases, form == EXPERTS_APART ? 1 : 2, &bias) < 0
               ? -1 : 0;
}

static int add_moe(struct builder *b, int layer)
{
    const struct moe *m = &b->c->moe;
    const struct row_map identity = { 0 };
    char source[160];
    path(b, source, sizeof source, layer, b->n.router);
    if (add_linear(b, layer, "router", source, ROLE_ROUTER, BIAS_ROUTER, identity, 0) < 0 ||
        (m->correction && add_named_vector(b, layer, "router.correction", b->n.correction, m->n_experts) < 0))
        return -1;
    if (m->shared_gate) {
        char full[168];
        path(b, source, sizeof source, layer, b->n.shared_router);
        snprintf(full, sizeof full, "%s.weight", source);
        const int64_t want[2] = { 1, b->c->hidden_size };
        const int flat = has_dims(b, full, 1);          /* GGUF leaves the 1 out */
        const struct weight_spec t = { .rows = 1, .cols = b->c->hidden_size, .role = ROLE_SHARED_ROUTER, .layer = layer,
                                       .expert = -1 };
        if (add_as(b, "shared_router.weight", full, flat ? want + 1 : want, flat ? 1 : 2, &t) < 0)
            return -1;
    }
    if (m->shared_size && b->n.shared_gate_up) {
        const int64_t ff = m->shared_size;
        path(b, source, sizeof source, layer, b->n.shared_gate_up);
        if (add_linear(b, layer, "gate_proj", source, ROLE_GATE, BIAS_GATE, (struct row_map){ .run = ff, .stride = ff },
                       2 * ff) < 0 ||
            add_linear(b, layer, "up_proj", source, ROLE_UP, BIAS_UP,
                       (struct row_map){ .offset = ff, .run = ff, .stride = ff }, 2 * ff) < 0)
            return -1;
    }
    for (int i = b->n.shared_gate_up ? 2 : 0; i < (m->shared_size ? 3 : 0); i++) {
        static const char *const ours[] = { "gate_proj", "up_proj", "down_proj" };
        const char *const stems[] = { b->n.shared_gate, b->n.shared_up, b->n.shared_down };
        path(b, source, sizeof source, layer, stems[i]);
        if (add_linear(b, layer, ours[i], source, ROLE_GATE + i, BIAS_GATE << i, identity, 0) < 0)
            return -1;
    }
    for (int i = 0; i < m->n_experts; i++)
        for (int part = 0; part < 3; part++)
            if (add_expert_part(b, layer, i, part) < 0)
                return -1;
    return 0;
}

/* ---- multi-head latent attention ---- */

/* kv_b: of every head nope_dim rows that make its key out of the latent, then v_dim rows that
 * make its value.  The former are kept the other way round. */
static int add_kv_b(struct builder *b, int layer)
{
    const struct mla *m = &b->c->mla;
    const int64_t heads = b->c->n_heads, head = m->nope_dim + m->v_dim;
    const struct row_map values = { .offset = m->nope_dim, .run = m->v_dim, .stride = head };
    const struct row_map keys = { .run = m->kv_rank, .stride = m->kv_rank, .transposed = 1, .slice = m->kv_rank,
                                  .slice_stride = head };
    char full[168], source[160];
    struct weight_spec t = { .layer = layer, .expert = -1 };
    path(b, source, sizeof source, layer, b->n.k_b ? b->n.k_b : "");
    snprintf(full, sizeof full, "%s.weight", source);
    if (b->n.k_b && exists(b, full)) {                  /* newer GGUF: in two, keys the other way round already */
        const int64_t k[3] = { heads, m->kv_rank, m->nope_dim }, v[3] = { heads, m->v_dim, m->kv_rank };
        t.role = ROLE_K_B;
        config_linear_shape(b->c, layer, t.role, &t.rows, &t.cols);
        if (add_as(b, "k_b_proj.weight", full, k, 3, &t) < 0)
            return -1;
        path(b, source, sizeof source, layer, b->n.v_b);
        snprintf(full, sizeof full, "%s.weight", source);
        t.role = ROLE_V_B;
        config_linear_shape(b->c, layer, t.role, &t.rows, &t.cols);
        return add_as(b, "v_b_proj.weight", full, v, 3, &t);
    }
    const int64_t want[2] = { heads * head, m->kv_rank };
    path(b, source, sizeof source, layer, b->n.kv_b);
    snprintf(full, sizeof full, "%s.weight", source);
    t.role = ROLE_K_B;
    t.map = keys;
    config_linear_shape(b->c, layer, t.role, &t.rows, &t.cols);
    if (add_as(b, "k_b_proj.weight", full, want, 2, &t) < 0)
        return -1;
    t.role = ROLE_V_B;
    t.map = values;
    config_linear_shape(b->c, layer, t.role, &t.rows, &t.cols);
    return add_as(b, "v_b_proj.weight", full, want, 2, &t);
}

static int add_mla(struct builder *b, int layer)
{
    const struct mla *m = &b->c->mla;
    const struct row_map identity = { 0 };
    char source[160];
    if (m->q_rank) {
        path(b, source, sizeof source, layer, b->n.q_a);
        if (add_linear(b, layer, "q_a_proj", source, ROLE_Q_A, 0, identity, 0) < 0 ||
            add_norm(b, layer, "q_a_norm", b->n.q_a_norm, b->n.q_a_norm, m->q_rank, 0) < 0)
            return -1;
    }
    path(b, source, sizeof source, layer, m->q_rank ? b->n.q_b : b->n.q);
    if (add_linear(b, layer, "q_proj", source, ROLE_Q, 0, identity, 0) < 0)
        return -1;
    path(b, source, sizeof source, layer, b->n.kv_a);
    if (add_linear(b, layer, "kv_a_proj", source, ROLE_KV_A, 0, identity, 0) < 0 ||
        add_norm(b, layer, "kv_norm", b->n.kv_norm, b->n.kv_norm, m->kv_rank, 0) < 0)
        return -1;
    return add_kv_b(b, layer);
}

/* ---- layers with a state ---- */

/* The convolution's weights [channels, 1, kernel] are kept the other way round: channels lie
 * side by side. */
static int add_state(struct builder *b, int layer)
{
    const struct config *c = b->c;
    const struct recurrent *r = &c->recurrent;
    const int64_t channels = recurrent_channels(c, layer), want[3] = { channels, 1, r->conv_kernel },
                  flat[2] = { channels, r->conv_kernel };
    const int conv = c->mixer[layer] == MIXER_CONV, delta = c->mixer[layer] == MIXER_DELTA;
    const struct row_map identity = { 0 };
    struct weight_spec t = { .rows = r->conv_kernel, .cols = channels, .is_vector = 1, .role = ROLE_BIAS,
                             .layer = layer, .expert = -1, .map = { .transposed = 1 } };
    char source[160], full[168];
    path(b, source, sizeof source, layer, b->n.in);
    if (add_linear(b, layer, "in_proj", source, ROLE_IN, BIAS_IN, identity, 0) < 0)
        return -1;
    path(b, source, sizeof source, layer, b->n.conv);
    snprintf(full, sizeof full, "%s.weight", source);
    const int is_flat = has_dims(b, full, 2);           /* GGUF leaves the 1 out */
    if (add_as(b, "conv.weight", full, is_flat ? flat : want, is_flat ? 2 : 3, &t) < 0 ||
        (r->conv_bias && add(b, layer, "conv", ".bias", source, 1, channels, 1, identity, channels, ROLE_BIAS, 0) < 0))
        return -1;
    if (conv)
        return 0;
    if (delta) {
        path(b, source, sizeof source, layer, b->n.in_ba);
        if (add_linear(b, layer, "in_ba_proj", source, ROLE_IN_BA, 0, identity, 0) < 0)
            return -1;
        path(b, source, sizeof source, layer, b->n.in_z ? b->n.in_z : "");
        if (r->z_apart && add_linear(b, layer, "in_z_proj", source, ROLE_IN_Z, 0, identity, 0) < 0)
            return -1;
    }
    if (add_named_vector(b, layer, "a_log", b->n.a_log, r->n_heads) < 0 ||
        add_named_vector(b, layer, "dt_bias", b->n.dt_bias, r->n_heads) < 0 ||
        (!delta && add_named_vector(b, layer, "d", b->n.d, r->n_heads) < 0))
        return -1;
    const int64_t n = delta ? r->head_dim : recurrent_width(c, layer), parts[2] = { r->n_groups, n / r->n_groups };
    const struct weight_spec norm = { .rows = 1, .cols = n, .is_vector = 1, .role = ROLE_NORM, .layer = layer,
                                      .expert = -1 };
    path(b, source, sizeof source, layer, b->n.gate_norm);
    snprintf(full, sizeof full, "%s.weight", source);
    const int in_parts = !delta && has_dims(b, full, 2);        /* GGUF: a row for each group */
    return add_as(b, "gate_norm.weight", full, in_parts ? parts : &n, in_parts ? 2 : 1, &norm) < 0 ? -1 : 0;
}

/* ---- a layer ---- */

/* q_norm or k_norm: one weight for all heads, one for each head ([heads, head_dim] in the
 * source), or one for the whole row. */
static int add_qk_norm(struct builder *b, int layer, const char *name, const char *stem, int heads)
{
    const struct config *c = b->c;
    if (c->qk_norm == QK_NORM_NONE || (b->have->q_norm && !*b->have->q_norm))
        return 0;
    const int64_t n = c->qk_norm == QK_NORM_HEAD ? c->head_dim : (int64_t)heads * c->head_dim;
    if (c->qk_norm != QK_NORM_EACH)
        return add_norm(b, layer, name, stem, stem, n, BIAS_QK_NORM);
    char source[150], full[160];
    path(b, source, sizeof source, layer, stem);
    snprintf(full, sizeof full, "%s.weight", source);
    const int64_t want[2] = { heads, c->head_dim };
    if (check_shape(b, full, want, 2, 0) < 0)
        return -1;
    struct weight_spec *s = push(b);
    if (!s)
        return -1;
    *s = (struct weight_spec){ .rows = 1, .cols = n, .is_vector = 1, .role = ROLE_NORM, .layer = layer, .expert = -1 };
    snprintf(s->name, sizeof s->name, "layers.%d.%s.weight", layer, name);
    snprintf(s->source, sizeof s->source, "%s", full);
    return 0;
}

static int add_layer(struct builder *b, int i)
{
    const struct weight_names *have = b->have, *n = &b->n;
    const int64_t hidden = b->c->hidden_size;
    const struct row_map identity = { 0 };
    const int kind = b->c->mixer[i], state = mixer_has_state(kind);
    char o[160];
    if (kind == MIXER_NONE)
        goto feed;
    path(b, o, sizeof o, i, state && n->state_o ? n->state_o : n->o);
    if (add_norm(b, i, "attn_norm", have->attn_norm, n->attn_norm, hidden, BIAS_NORM) < 0)
        return -1;
    if (state               ? add_state(b, i) < 0
        : kind == MIXER_MLA ? add_mla(b, i) < 0
                                    : add_qkv(b, i) < 0 || add_qk_norm(b, i, "q_norm", n->q_norm, b->c->n_heads) < 0 ||
                                          add_qk_norm(b, i, "k_norm", n->k_norm, b->c->n_kv_heads) < 0)
        return -1;
    if (have->attn_sub_norm && add_norm(b, i, "attn_sub_norm", have->attn_sub_norm, have->attn_sub_norm,
                                        (int64_t)b->c->n_heads * b->c->head_dim, 0) < 0)
        return -1;
    if ((b->c->sinks && add_named_vector(b, i, "sinks", n->sinks, b->c->n_heads) < 0) ||
        add_linear(b, i, "o_proj", o, ROLE_O, state ? BIAS_IN : BIAS_O, identity, 0) < 0 ||
        add_norm(b, i, "attn_post_norm", have->attn_post_norm, n->attn_post_norm, hidden, BIAS_NORM) < 0)
        return -1;
feed:
    if (b->c->ff[i] == FF_NONE)
        return 0;
    if (add_norm(b, i, "mlp_norm", have->mlp_norm, n->mlp_norm, hidden, BIAS_NORM) < 0 ||
        (b->c->ff[i] == FF_MOE ? add_moe(b, i) : add_mlp(b, i)) < 0)
        return -1;
    return add_norm(b, i, "mlp_post_norm", have->mlp_post_norm, n->mlp_post_norm, hidden, BIAS_NORM);
}

static int add_embed(struct builder *b)
{
    const struct config *c = b->c;
    const struct row_map identity = { 0 };
    const int64_t positions = (int64_t)c->max_len + c->pos_offset;
    char source[160];
    path(b, source, sizeof source, -1, b->n.embed);
    if (add(b, -1, "embed", ".weight", source, c->vocab_size, c->embed_size, 0, identity, c->vocab_size, ROLE_EMBED,
            0) < 0 ||
        add_norm(b, -1, "embed_norm", b->have->embed_norm, b->n.embed_norm, c->hidden_size, BIAS_NORM) < 0)
        return -1;
    if (c->embed_size != c->hidden_size) {
        path(b, source, sizeof source, -1, b->n.embed_in ? b->n.embed_in : "project_in");
        if (add(b, -1, "embed_in", ".weight", source, c->hidden_size, c->embed_size, 0, identity, c->hidden_size,
                ROLE_EMBED, 0) < 0)
            return -1;
    }
    if (c->pos != POS_LEARNED)
        return 0;
    path(b, source, sizeof source, -1, b->n.pos);
    return add(b, -1, "pos_embed", ".weight", source, positions, c->hidden_size, 1, identity, positions, ROLE_POS, 0);
}

/* The head stands beside the model: without its prefix, or with that of the language model
 * inside a larger one. */
static int find_head(const struct builder *b, char *source, size_t room)
{
    static const char *const prefixes[] = { "", "language_model.", "model." };
    char probe[168];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(source, room, "%s%s", prefixes[i], b->n.head);
        snprintf(probe, sizeof probe, "%s.weight", source);
        if (exists(b, probe))
            return 1;
    }
    snprintf(source, room, "%s", b->n.head);
    return 0;
}

static int add_head(struct builder *b)
{
    const struct config *c = b->c;
    const struct row_map identity = { 0 };
    char source[160];
    if (add_norm(b, -1, "final_norm", b->have->final_norm, b->n.final_norm, c->hidden_size, BIAS_NORM) < 0)
        return -1;
    if (c->embed_size != c->hidden_size) {
        path(b, source, sizeof source, -1, b->n.embed_out ? b->n.embed_out : "project_out");
        if (add(b, -1, "embed_out", ".weight", source, c->embed_size, c->hidden_size, 0, identity, c->embed_size,
                ROLE_HEAD, 0) < 0)
            return -1;
    }
    int found = find_head(b, source, sizeof source);
    if (c->gguf ? !found : c->tied || (!found && !c->tied_given))
        return 0;
    return add_linear(b, -1, "head", source, ROLE_HEAD, BIAS_HEAD, identity, 0);
}

/* What all names of a folder begin with: models alone or inside larger ones, with and without
 * the head. */
static int find_prefix(struct builder *b)
{
    static const char *const prefixes[] = { "model.", "transformer.", "gpt_neox.", "", "backbone.",
                                            "language_model.model.", "model.language_model.", "language_model." };
    char probe[168];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(b->prefix, sizeof b->prefix, "%s", prefixes[i]);
        snprintf(probe, sizeof probe, "%s%s.weight", b->prefix, b->n.embed);
        if (exists(b, probe))
            return 0;
    }
    return err_set(b->e, ERR_FORMAT, "tensor '%s.weight' is missing (with and without 'model.' and the like before it)",
                   b->n.embed);
}

/* Where a GGUF calls things by other names in models with layers that have a state. */
static void state_names(struct builder *b)
{
    const struct weight_names *have = b->have;
    if (config_has_mixer(b->c, MIXER_CONV)) {
        b->n.in = "shortconv.in_proj";
        b->n.conv = "shortconv.conv";
        b->n.state_o = "shortconv.out_proj";
        if (!exists(b, "output_norm.weight"))
            b->n.final_norm = gguf_names.embed_norm;    /* what lfm2 calls it */
    }
    if (b->c->recurrent.z_apart) {
        b->n.in = gguf_names.qkv;
        b->n.in_z = "attn_gate";
    }
    if (have->mlp_norm && have->attn_norm && strcmp(have->mlp_norm, have->attn_norm) == 0)
        b->n.mlp_norm = gguf_names.attn_norm;           /* nemotron_h: a layer has one norm, whatever it is of */
}

int weight_specs(const struct config *c, const struct weight_source *s, struct weight_spec **specs, int *n,
                 struct err *e)
{
    struct builder b = { .c = c, .s = s, .have = c->names, .n = c->gguf ? gguf_names : *c->names, .e = e };
    if (c->gguf && c->block == BLOCK_PARALLEL2 && strcmp(c->names->attn_norm, "ln_attn") == 0) {
        b.n.attn_norm = "attn_norm_2";          /* falcon: the norm that both older and newer models have is the MLP's in the newer */
        b.n.mlp_norm = "attn_norm";
    }
    if (c->gguf && c->names->mlp_norm && !c->names->attn_post_norm && exists(&b, "blk.0.post_attention_norm.weight"))
        b.n.mlp_norm = gguf_names.attn_post_norm;       /* seed_oss: called by its place, not by what reads it */
    if (c->gguf)
        state_names(&b);
    if ((c->gguf ? 0 : find_prefix(&b)) < 0 || add_embed(&b) < 0)
        goto fail;
    for (int i = 0; i < c->n_layers; i++)
        if (add_layer(&b, i) < 0)
            goto fail;
    if (add_head(&b) < 0)
        goto fail;
    *specs = b.specs;
    *n = b.n_specs;
    return 0;
fail:
    free(b.specs);
    return -1;
}

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

int weight_ignorable(const struct config *c, const char *name)
{
    /* Causal masks and tables that older versions saved with the model; factors that
     * config_parse has got from the GGUF's configuration. */
    static const char *const ends[] = { "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
                                        ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
                                        ".attention.rotary_emb.inv_freq" };
    static const char *const begins[] = { "vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                          "model.multi_modal_projector.", "rope_freqs.", "rope_factors_long.",
                                          "rope_factors_short.", "model.mtp_", "mtp." };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return 1;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0)
            return 1;
    const char *layer = strstr(name, c->gguf ? gguf_names.layer : c->names->layer);
    const int n = layer ? atoi(layer + strlen(c->gguf ? gguf_names.layer : c->names->layer)) : -1;
    if (n >= c->n_layers && n < c->n_layers + c->n_extra_layers)
        return 1;
    char head[64];
    snprintf(head, sizeof head, "%s.weight", c->gguf ? gguf_names.head : c->names->head);
    return c->tied && ends_with(name, head);    /* saved although it is the embedding */
}

/* weights.c - list the tensors of a source that make ours: join the names of arch.c and check
 * them against the source. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/model/arch.h"
#include "libcommon/model/builder.h"
#include "libcommon/model/parts.h"

static int exists(const struct builder *b, const char *name)
{
    int n;
    int64_t dim[WEIGHT_DIMS];
    return !b->s->shape || b->s->shape(b->s->user, name, &n, dim) == 0;
}

/* 1 if the source has it with this number of dimensions. */
static int has_dims(const struct builder *b, const char *name, int n_dims)
{
    int n;
    int64_t dim[WEIGHT_DIMS];
    return b->s->shape && b->s->shape(b->s->user, name, &n, dim) == 0 && n == n_dims;
}

static void dims_text(char *out, size_t room, const int64_t *dim, int n)
{
    snprintf(out, room, "[");
    for (int i = 0; i < n; i++)
        snprintf(out + strlen(out), room - strlen(out), "%s%" PRId64, i ? ", " : "", dim[i]);
    snprintf(out + strlen(out), room - strlen(out), "]");
}

/* Check that the tensor exists with this shape; -1 with both shapes in the message, 1: missing
 * and optional. */
static int check_shape(const struct builder *b, const char *name, const int64_t *want, int n_want, int optional)
{
    int n;
    int64_t dim[WEIGHT_DIMS];
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

/* Add one tensor of ours from the source's tensor `full`, which must have the shape want; t has
 * the rest. 1: missing and optional. */
int spec_as(struct builder *b, const char *ours, const char *full, const int64_t *want, int n_want,
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

/* Add tensor name + suffix of ours, t.rows x t.cols, from the source's tensor source + suffix of
 * src_rows rows (0: as many). A missing optional tensor is left out. */
static int add(struct builder *b, const char *name, const char *suffix, const char *source, int64_t src_rows,
               struct weight_spec t)
{
    char full[200], ours[80];
    snprintf(full, sizeof full, "%s%s", source, suffix);
    snprintf(ours, sizeof ours, "%s%s", name, suffix);
    /* a table with one row (types of tokens) is a matrix in the source */
    const int flat = t.is_vector && t.rows == 1 && !(t.role == ROLE_POS && has_dims(b, full, 2));
    if (!src_rows)
        src_rows = flat ? t.cols : t.rows;
    const int64_t want[2] = { flat || !t.map.transposed ? src_rows : t.cols, t.map.transposed ? src_rows : t.cols };
    t.expert = -1;
    return spec_as(b, ours, full, want, flat ? 1 : 2, &t) < 0 ? -1 : 0;
}

/* The full name of a tensor, or of a weight or bias without that ending.  The stem may list several
 * names, "a|b": the first that exists, else the last. */
void spec_path(const struct builder *b, char *out, size_t room, int layer, const char *stem)
{
    for (const char *end; ; stem = end + 1) {
        end = strchrnul(stem, '|');
        if (layer < 0)
            snprintf(out, room, "%s%.*s", b->prefix, (int)(end - stem), stem);
        else
            snprintf(out, room, "%s%s%d.%.*s", b->prefix, b->n.layer, layer, (int)(end - stem), stem);
        char probe[200];
        snprintf(probe, sizeof probe, "%s.weight", out);
        if (!*end || exists(b, out) || exists(b, probe))
            return;
    }
}

/* Add a norm of n elements that the source keeps at `stem`, and its bias if biased. */
static int add_norm(struct builder *b, int layer, int part, const char *name, const char *stem, int64_t n, int biased)
{
    char source[160];
    spec_path(b, source, sizeof source, layer, stem);
    const struct weight_spec t = { .rows = 1, .cols = n, .is_vector = 1, .role = ROLE_NORM, .layer = layer,
                                   .part = part, .expert = -1 };
    if (b->c->gguf && exists(b, source)) {      /* falcon-h1: without ".weight" */
        char ours[80];
        snprintf(ours, sizeof ours, "%s.weight", name);
        return spec_as(b, ours, source, &n, 1, &t) < 0 ? -1 : 0;
    }
    if (add(b, name, ".weight", source, 0, t) < 0)
        return -1;
    return biased ? add(b, name, ".bias", source, 0, t) : 0;
}

/* Add a norm of a layer, if it has one with weights. */
int spec_layer_norm(struct builder *b, int layer, enum layer_part part, const char *stem)
{
    const struct part_fact f = layer_part_fact(b->c, layer, part);
    return f.stored ? add_norm(b, layer, (int)part, part_infos[part].name, stem, f.cols, b->c->biases & f.bias) : 0;
}

/* Add a matrix and its bias (of a GGUF: if it holds one), t.rows rows through t.map of a source
 * of src_rows rows (0: as many). */
static int add_linear(struct builder *b, const char *name, const char *source, int64_t src_rows, int biased,
                      struct weight_spec t)
{
    const struct weight_spec bias = { .map = t.map, .rows = 1, .cols = t.rows, .is_vector = 1, .role = ROLE_BIAS,
                                      .layer = t.layer, .part = t.part, .optional = b->c->gguf };
    t.map.transposed = b->n.conv1d && t.layer >= 0;
    if (add(b, name, ".weight", source, src_rows, t) < 0)
        return -1;
    /* the bias after dt_proj is dt_bias */
    return (b->c->gguf && t.part != LP_DT_PROJ) || biased ? add(b, name, ".bias", source, src_rows, bias) : 0;
}

/* Add a matrix of a layer from `source` of src_rows rows (0: as many as the matrix has). */
int spec_matrix(struct builder *b, int layer, enum layer_part part, const char *source, struct row_map map,
                      int64_t src_rows)
{
    const struct part_fact f = layer_part_fact(b->c, layer, part);
    const struct weight_spec t = { .map = map, .rows = f.rows, .cols = f.cols, .role = part_infos[part].role,
                                   .layer = layer, .part = (int)part };
    return add_linear(b, part_infos[part].name, source, src_rows, b->c->biases & f.bias, t);
}

/* Add a matrix of a layer that is a tensor of its own. */
int spec_own_matrix(struct builder *b, int layer, enum layer_part part, const char *stem)
{
    char source[160];
    spec_path(b, source, sizeof source, layer, stem);
    return spec_matrix(b, layer, part, source, (struct row_map){ 0 }, 0);
}

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
        is_fused = !c->gguf || exists(b, probe);        /* GGUF: some converters fuse, some do not */
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

/* Add gate and up of n rows each from one matrix, gate first. */
static int add_gate_up(struct builder *b, int layer, const char *stem, int64_t n)
{
    char source[160];
    spec_path(b, source, sizeof source, layer, stem);
    const struct row_map gate = { .run = n, .stride = n }, up = { .offset = n, .run = n, .stride = n };
    return spec_matrix(b, layer, LP_GATE, source, gate, 2 * n) < 0 ? -1
                                                                  : spec_matrix(b, layer, LP_UP, source, up, 2 * n);
}

/* Add a vector of known full name, if the layer has it. Some sources keep it as [1, n] or
 * [1, 1, n, 1], a GGUF of a model with recurrent layers as [n, 1]. */
int spec_vector(struct builder *b, int layer, enum layer_part part, const char *stem)
{
    const struct part_fact f = layer_part_fact(b->c, layer, part);
    char full[160];
    if (!f.present)
        return 0;
    spec_path(b, full, sizeof full, layer, stem);
    int64_t found[WEIGHT_DIMS];
    int n = 0, ones = 0, whole = 0;             /* dimensions of one element, of all elements */
    const int shaped = b->s->shape && b->s->shape(b->s->user, full, &n, found) == 0;
    for (int i = 0; shaped && i < n; i++) {
        whole += found[i] == f.cols;
        ones += found[i] == 1;
    }
    const int other = shaped && n > 1 && (f.cols == 1 ? ones == n : whole == 1 && ones == n - 1);
    const struct weight_spec t = { .rows = 1, .cols = f.cols, .is_vector = 1, .role = ROLE_BIAS, .layer = layer,
                                   .expert = -1, .part = (int)part };
    return spec_as(b, part_infos[part].name, full, other ? found : &f.cols, other ? n : 1, &t);
}

static int add_mlp(struct builder *b, int layer)
{
    const struct config *c = b->c;
    char source[160], probe[168];
    int is_fused = c->gated && b->n.gate_up != NULL;
    if (is_fused && c->gguf) {
        spec_path(b, source, sizeof source, layer, b->n.gate);
        snprintf(probe, sizeof probe, "%s.weight", source);
        is_fused = !exists(b, probe);
    }
    if (is_fused) {
        if (add_gate_up(b, layer, b->n.gate_up, config_mlp_size(c, layer)) < 0)
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

/* ---- mixture of experts ---- */

/* Place of an expert's matrix in the source's tensor. */
struct expert_place {
    const char *stem;               /* of the tensor */
    int in_out, bare;               /* stored [in, out]; named without ".weight" */
    int64_t src_rows;               /* rows of one expert: the matrix's own, or those of gate and up together */
    int64_t offset, run, stride;    /* of the expert's rows, see struct row_map */
};

static struct expert_place expert_place(const struct builder *b, enum layer_part part, int64_t rows)
{
    const enum experts_form form = b->n.experts_form;
    const int down = part == LP_EXPERT_DOWN, up = part == LP_EXPERT_UP;
    const int fused = form >= EXPERTS_FUSED && !down, paired = form == EXPERTS_PAIRED_IN_OUT && fused;
    struct expert_place p = { .stem = down ? b->n.expert_down : up && !fused ? b->n.expert_up : b->n.expert_gate,
                              .in_out = form >= EXPERTS_FUSED_IN_OUT, .bare = form >= EXPERTS_FUSED_BARE,
                              .src_rows = fused ? 2 * rows : rows,
                              .run = rows, .stride = rows };
    if (paired) {
        p.offset = up;
        p.run = 1;
        p.stride = 2;
    } else if (fused && up) {
        p.offset = rows;
    }
    return p;
}

/* Add a matrix of one expert, and its bias. */
static int add_expert_part(struct builder *b, int layer, int expert, enum layer_part part)
{
    const struct config *c = b->c;
    const int apart = b->n.experts_form == EXPERTS_APART;
    const struct part_fact f = layer_part_fact(c, layer, part);
    const struct expert_place at = expert_place(b, part, f.rows);
    const int64_t rows = at.src_rows, n = c->moe.n_experts;
    const int64_t shape[3] = { n, at.in_out ? f.cols : rows, at.in_out ? rows : f.cols };
    struct weight_spec t = { .rows = f.rows, .cols = f.cols, .role = part_infos[part].role, .layer = layer,
                             .expert = expert, .part = (int)part,
                             .first_of_expert = part == (c->gated ? LP_EXPERT_GATE : LP_EXPERT_UP) };
    char base[160], full[192], inside[48], name[24];
    if (apart)
        snprintf(inside, sizeof inside, "%s%d.%s", b->n.experts, expert, at.stem);
    else
        snprintf(inside, sizeof inside, "%s%s", b->n.experts, at.stem);
    spec_path(b, base, sizeof base, layer, inside);
    const struct row_map stacked = { .offset = expert * rows + at.offset, .run = at.run, .stride = at.stride };
    if (at.in_out)
        t.map = (struct row_map){ .offset = at.offset, .run = at.run, .stride = at.stride, .transposed = 1,
                                  .first = expert * f.cols };
    else if (!apart)
        t.map = stacked;
    snprintf(full, sizeof full, "%s%s", base, at.bare ? "" : ".weight");
    snprintf(name, sizeof name, "%s.weight", part_infos[part].name);
    if (spec_as(b, name, full, apart ? shape + 1 : shape, apart ? 2 : 3, &t) < 0)
        return -1;
    if (!c->gguf && !(c->biases & f.bias))
        return 0;
    const int64_t biases[2] = { n, rows };
    const struct weight_spec bias = { .rows = 1, .cols = f.rows, .is_vector = 1, .role = ROLE_BIAS, .layer = layer,
                                      .expert = expert, .part = (int)part, .optional = c->gguf,
                                      .map = apart ? (struct row_map){ 0 } : stacked };
    snprintf(full, sizeof full, "%s%s", base, at.bare ? "_bias" : ".bias");
    snprintf(name, sizeof name, "%s.bias", part_infos[part].name);
    return spec_as(b, name, full, apart ? biases + 1 : biases, apart ? 1 : 2, &bias) < 0 ? -1 : 0;
}

/* Add the router of the shared MLP, one row; GGUF leaves the dimension of 1 out. */
static int add_shared_router(struct builder *b, int layer)
{
    const int64_t want[2] = { 1, b->c->hidden_size };
    const struct weight_spec t = { .rows = 1, .cols = b->c->hidden_size, .role = ROLE_SHARED_ROUTER, .layer = layer,
                                   .expert = -1, .part = LP_SHARED_ROUTER };
    char source[160], full[168];
    spec_path(b, source, sizeof source, layer, b->n.shared_router);
    snprintf(full, sizeof full, "%s.weight", source);
    const int flat = has_dims(b, full, 1);
    return spec_as(b, "shared_router.weight", full, flat ? want + 1 : want, flat ? 1 : 2, &t);
}

/* Add what a mixture of experts beside an MLP has: that MLP, scales of the router, norms. */
static int add_beside(struct builder *b, int layer)
{
    const struct weight_names *n = &b->n;
    return add_mlp(b, layer) < 0 || spec_vector(b, layer, LP_ROUTER_SCALE, n->router_scale) < 0 ||
           spec_vector(b, layer, LP_EXPERT_SCALE, n->expert_scale) < 0 ||
           spec_layer_norm(b, layer, LP_DENSE_POST_NORM, n->dense_post_norm) < 0 ||
           spec_layer_norm(b, layer, LP_EXPERT_NORM, n->expert_norm) < 0
               ? -1 : spec_layer_norm(b, layer, LP_EXPERT_POST_NORM, n->expert_post_norm);
}

static int add_moe(struct builder *b, int layer)
{
    const struct moe *m = &b->c->moe;
    if (m->beside && add_beside(b, layer) < 0)
        return -1;
    if (spec_own_matrix(b, layer, LP_ROUTER, b->n.router) < 0 ||
        spec_vector(b, layer, LP_CORRECTION, b->n.correction) < 0 ||
        (b->c->hashed && b->c->hashed[layer] && spec_plain(b, layer, LP_TOKEN_EXPERTS, b->n.token_experts) < 0) ||
        (m->shared_gate && add_shared_router(b, layer) < 0))
        return -1;
    if (m->shared_size && b->n.shared_gate_up) {
        if (add_gate_up(b, layer, b->n.shared_gate_up, m->shared_size) < 0)
            return -1;
    } else if (m->shared_size && ((b->c->gated && spec_own_matrix(b, layer, LP_GATE, b->n.shared_gate) < 0) ||
                                  spec_own_matrix(b, layer, LP_UP, b->n.shared_up) < 0)) {
        return -1;
    }
    if (m->shared_size && spec_own_matrix(b, layer, LP_DOWN, b->n.shared_down) < 0)
        return -1;
    for (int i = 0; i < m->n_experts; i++)
        if ((b->c->gated && add_expert_part(b, layer, i, LP_EXPERT_GATE) < 0) ||
            add_expert_part(b, layer, i, LP_EXPERT_UP) < 0 || add_expert_part(b, layer, i, LP_EXPERT_DOWN) < 0)
            return -1;
    return 0;
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

/* kv_b has, for every head, nope_dim rows that make its key from the latent, then v_dim rows
 * that make its value. We keep the former transposed. Newer GGUF files have two tensors, the
 * keys already transposed. */
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
    if (b->n.k_b && exists(b, full))
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

/* ---- layers with a state ---- */

/* The convolution's weights [channels, 1, kernel] are kept transposed, so that channels lie side by
 * side.  GGUF leaves the 1 out. */
static int add_conv(struct builder *b, int layer)
{
    const struct part_fact f = layer_part_fact(b->c, layer, LP_CONV), bias = layer_part_fact(b->c, layer, LP_CONV_BIAS);
    const int64_t want[3] = { f.cols, 1, f.rows }, flat[2] = { f.cols, f.rows };
    const struct weight_spec t = { .rows = f.rows, .cols = f.cols, .is_vector = 1, .role = ROLE_BIAS, .layer = layer,
                                   .expert = -1, .part = LP_CONV, .map = { .transposed = 1 } };
    const struct weight_spec bias_spec = { .rows = 1, .cols = bias.cols, .is_vector = 1, .role = ROLE_BIAS,
                                           .layer = layer, .part = LP_CONV_BIAS };
    char source[160], full[168];
    spec_path(b, source, sizeof source, layer, b->n.conv);
    snprintf(full, sizeof full, "%s.weight", source);
    const int is_flat = has_dims(b, full, 2);
    if (spec_as(b, part_infos[LP_CONV].name, full, is_flat ? flat : want, is_flat ? 2 : 3, &t) < 0)
        return -1;
    return bias.present ? add(b, "conv", ".bias", source, 0, bias_spec) : 0;
}

/* Add the norm after the recurrence; a GGUF of mamba2 has a row for each group. */
static int add_gate_norm(struct builder *b, int layer)
{
    const struct part_fact f = layer_part_fact(b->c, layer, LP_GATE_NORM);
    if (!f.stored)
        return 0;
    const int64_t n_groups = b->c->recurrent.n_groups, parts[2] = { n_groups, f.cols / n_groups };
    const struct weight_spec norm = { .rows = 1, .cols = f.cols, .is_vector = 1, .role = ROLE_NORM, .layer = layer,
                                      .expert = -1, .part = LP_GATE_NORM };
    char source[160], full[168];
    spec_path(b, source, sizeof source, layer, b->n.gate_norm);
    snprintf(full, sizeof full, "%s.weight", source);
    const int in_parts = b->c->mixer[layer] != MIXER_DELTA && has_dims(b, full, 2);
    return spec_as(b, "gate_norm.weight", full, in_parts ? parts : &f.cols, in_parts ? 2 : 1, &norm) < 0 ? -1 : 0;
}

/* Mamba1: A of every channel and state is kept transposed, channels side by side. */
static int add_mamba1(struct builder *b, int layer)
{
    const struct weight_names *n = &b->n;
    const struct part_fact a = layer_part_fact(b->c, layer, LP_A_LOG);
    const int64_t want[2] = { a.cols, a.rows };
    const struct weight_spec t = { .rows = a.rows, .cols = a.cols, .is_vector = 1, .role = ROLE_BIAS, .layer = layer,
                                   .expert = -1, .part = LP_A_LOG,
                                   .map = { .transposed = 1, .minus_log = b->c->gguf } };
    char full[160];
    spec_path(b, full, sizeof full, layer, n->a_log);
    return spec_own_matrix(b, layer, LP_X_PROJ, n->x_proj) < 0 ||
           spec_layer_norm(b, layer, LP_DT_NORM, n->dt_norm) < 0 ||
           spec_layer_norm(b, layer, LP_B_NORM, n->b_norm) < 0 || spec_layer_norm(b, layer, LP_C_NORM, n->c_norm) < 0 ||
           spec_own_matrix(b, layer, LP_DT_PROJ, n->dt_proj) < 0 ||
           spec_as(b, part_infos[LP_A_LOG].name, full, want, 2, &t) < 0 ||
           spec_vector(b, layer, LP_DT_BIAS, n->dt_bias) < 0 ? -1 : spec_vector(b, layer, LP_D, n->d);
}

static int add_state(struct builder *b, int layer)
{
    const int kind = b->c->mixer[layer];
    if (spec_own_matrix(b, layer, LP_IN, b->n.in) < 0 || (kind != MIXER_LIGHTNING && add_conv(b, layer) < 0))
        return -1;
    if (kind == MIXER_MAMBA1)
        return add_mamba1(b, layer);
    if (kind == MIXER_LIGHTNING && spec_own_matrix(b, layer, LP_IN_Z, b->n.in_z) < 0)
        return -1;
    const struct recurrent *r = &b->c->recurrent;
    if (b->c->mixer[layer] == MIXER_DELTA &&
        (spec_own_matrix(b, layer, LP_IN_BA, b->n.in_ba) < 0 ||
         (r->gate_rank && spec_own_matrix(b, layer, LP_GATE_A, b->n.gate_a) < 0) ||
         (r->per_row && spec_own_matrix(b, layer, LP_IN_F, b->n.in_f) < 0) ||
         (r->z_apart && spec_own_matrix(b, layer, LP_IN_Z, b->n.in_z) < 0)))
        return -1;
    return spec_vector(b, layer, LP_A_LOG, b->n.a_log) < 0 || spec_vector(b, layer, LP_DT_BIAS, b->n.dt_bias) < 0 ||
           spec_vector(b, layer, LP_D, b->n.d) < 0 ? -1 : add_gate_norm(b, layer);
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
        (both && (add_state(b, i) < 0 || spec_own_matrix(b, i, LP_STATE_O, n->state_o) < 0)))
        return -1;
    if (state               ? add_state(b, i) < 0
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

static int add_layer(struct builder *b, int i)
{
    if ((b->c->mixer[i] != MIXER_NONE && add_mixer(b, i) < 0) || (b->c->hyper.n && spec_hyper(b, i) < 0) ||
        (config_ngram(b->c, i) >= 0 && spec_ngram(b, i) < 0))
        return -1;
    if (b->c->ff[i] == FF_NONE)
        return 0;
    if (spec_layer_norm(b, i, LP_MLP_NORM, b->n.mlp_norm) < 0 ||
        (b->c->ff[i] == FF_MOE ? add_moe(b, i) : add_mlp(b, i)) < 0 ||
        spec_layer_norm(b, i, LP_MLP_POST_NORM, b->n.mlp_post_norm) < 0)
        return -1;
    if (b->c->ple_dim && (spec_own_matrix(b, i, LP_PLE_GATE, b->n.ple_gate) < 0 ||
                          spec_own_matrix(b, i, LP_PLE_UP, b->n.ple_up) < 0 ||
                          spec_layer_norm(b, i, LP_PLE_NORM, b->n.ple_norm) < 0))
        return -1;
    return (b->c->n_streams && spec_altup(b, i) < 0) ? -1 : spec_vector(b, i, LP_LAYER_SCALE, b->n.layer_scale);
}

/* ---- outside of the layers ---- */

/* Find the head: it is beside the model, without its prefix, or with that of the language model
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

/* The name in the source of a weight outside of the layers. */
static const char *end_stem(const struct weight_names *n, enum end_part part)
{
    switch (part) {
#define NORM(id, field, source, ...) case EP_##id: return n->source;
#define VECTOR(id, field, source, ...) case EP_##id: return n->source;
#define MATRIX(id, field, source, ...) case EP_##id: return n->source;
#include "libcommon/model/ends.def"
    case N_END_PARTS: break;
    }
    return NULL;
}

/* The name of the projections of all streams but the first, which a source keeps apart: one matrix
 * of ours. */
static void stream_names(const struct builder *b, char *out, size_t room, const char *stem)
{
    size_t n = (size_t)snprintf(out, room, "%s{", stem);
    for (int i = 0; i < b->c->n_streams - 1 && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%d", i ? "," : "", i);
    if (n < room)
        snprintf(out + n, room - n, "}");
}

/* Add the projections of all streams but the first, which a GGUF keeps as one tensor. */
static int add_stacked_streams(struct builder *b, const char *name, const char *stem, const struct weight_spec *t)
{
    const int64_t n = b->c->n_streams - 1, want[3] = { n, t->rows / n, t->cols };
    char source[160], full[168], ours[40];
    spec_path(b, source, sizeof source, -1, stem);
    snprintf(full, sizeof full, "%s.weight", source);
    snprintf(ours, sizeof ours, "%s.weight", name);
    return spec_as(b, ours, full, want, 3, t) < 0 ? -1 : 0;
}

/* The name of a dense layer, which may be beside the model: without its prefix. */
static void dense_name(const struct builder *b, char *source, size_t room, int i)
{
    const char *stem = b->c->embedding.dense[i].stem;
    char probe[168];
    spec_path(b, source, room, -1, stem);
    snprintf(probe, sizeof probe, "%s.weight", source);
    if (!exists(b, probe))
        snprintf(source, room, "%s", stem);
}

/* Add a weight outside of the layers, if the model has it. */
static int add_end(struct builder *b, enum end_part part)
{
    const struct config *c = b->c;
    const struct part_fact f = end_part_fact(c, part);
    const struct end_info *p = &end_infos[part];
    const char *stem = end_stem(&b->n, part);
    if (!f.stored)
        return 0;
    if (!stem && p->role != ROLE_DENSE)
        return err_set(b->e, ERR_UNSUPPORTED, "architecture %s: no name for %s in %s", c->arch, p->name,
                       c->gguf ? "a GGUF" : "its checkpoints");
    if (p->kind == PART_NORM)
        return add_norm(b, -1, (int)part, p->name, stem, f.cols, c->biases & f.bias);
    const struct weight_spec t = { .rows = f.rows, .cols = f.cols, .is_vector = p->kind == PART_VECTOR,
                                   .role = p->role, .layer = -1, .expert = -1, .part = (int)part };
    const int streams = part == EP_ALTUP_IN || part == EP_ALTUP_OUT;
    if (streams && c->gguf)
        return add_stacked_streams(b, p->name, stem, &t);
    char source[160];
    if (part == EP_HEAD) {
        const int found = find_head(b, source, sizeof source);
        if (c->gguf ? !found : c->tied || (!found && !c->tied_given))
            return 0;
    } else if (part == EP_DENSE_1 || part == EP_DENSE_2) {
        dense_name(b, source, sizeof source, part == EP_DENSE_2);
    } else {
        char names[160];
        if (streams) {
            stream_names(b, names, sizeof names, stem);
            stem = names;
        }
        spec_path(b, source, sizeof source, -1, stem);
    }
    if (part >= EP_HYPER && part <= EP_HYPER_NORM) {           /* a whole name */
        const int64_t want[2] = { f.rows, f.cols };
        char ours[40];
        snprintf(ours, sizeof ours, "%s.weight", p->name);
        return spec_as(b, ours, source, f.rows == 1 ? want + 1 : want, f.rows == 1 ? 1 : 2, &t) < 0 ? -1 : 0;
    }
    return f.bias ? add_linear(b, p->name, source, 0, c->biases & f.bias, t)
                  : add(b, p->name, ".weight", source, 0, t);
}

/* Add the weights before or after the layers. */
static int add_ends(struct builder *b, int first)
{
    for (int p = 0; p < N_END_PARTS; p++)
        if (end_infos[p].is_first == first && add_end(b, (enum end_part)p) < 0)
            return -1;
    return 0;
}

/* Find the prefix of all names of a folder: models alone or inside larger ones, with and without
 * the head. */
static int find_prefix(struct builder *b)
{
    static const char *const prefixes[] = { "model.", "transformer.", "gpt_neox.", "", "backbone.",
                                            "bert.", "roberta.", "distilbert.", "new.",
                                            "language_model.model.", "model.language_model.", "language_model." };
    char probe[168];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char name[160];
        snprintf(b->prefix, sizeof b->prefix, "%s", prefixes[i]);
        spec_path(b, name, sizeof name, -1, b->n.embed);
        snprintf(probe, sizeof probe, "%s.weight", name);
        if (exists(b, probe))
            return 0;
    }
    return err_set(b->e, ERR_FORMAT, "tensor '%.*s.weight' is missing (with and without 'model.' and the like before it)",
                   (int)strcspn(b->n.embed, "|"), b->n.embed);
}

/* 1 if the source has a tensor of this shape. */
static int has_shape(const struct builder *b, const char *name, int64_t d0, int64_t d1, int64_t d2)
{
    int n;
    int64_t dim[WEIGHT_DIMS];
    return b->s->shape(b->s->user, name, &n, dim) == 0 && n == 3 && dim[0] == d0 && dim[1] == d1 && dim[2] == d2;
}

/* Find out how a folder keeps its experts: checkpoints of one architecture have them apart or
 * stacked, as the version of transformers that wrote them did. */
static void find_experts(struct builder *b)
{
    const struct config *c = b->c;
    const int64_t n = c->moe.n_experts, mid = c->moe.intermediate_size, hidden = c->hidden_size;
    int layer = 0;
    while (layer < c->n_layers && c->ff[layer] != FF_MOE)
        layer++;
    if (layer == c->n_layers || !b->s->shape || b->n.experts_form == EXPERTS_PAIRED_IN_OUT)
        return;
    char base[96], apart[160], up[160], down[160];
    spec_path(b, base, sizeof base, layer, b->n.experts);
    if (c->gguf) {                          /* some converters leave gate and up together */
        snprintf(up, sizeof up, "%sffn_gate_up_exps.weight", base);
        if (exists(b, up)) {
            b->n.experts_form = EXPERTS_FUSED;
            b->n.expert_gate = "ffn_gate_up_exps";
        }
        return;
    }
    snprintf(apart, sizeof apart, "%s0.gate_proj.weight", base);
    snprintf(up, sizeof up, "%sgate_up_proj", base);
    snprintf(down, sizeof down, "%sdown_proj", base);
    if (b->n.experts_form >= EXPERTS_FUSED_BARE && exists(b, apart)) {
        b->n.experts_form = EXPERTS_APART;
        b->n.expert_gate = "gate_proj";
        b->n.expert_up = "up_proj";
    } else if (has_shape(b, up, n, 2 * mid, hidden) && has_shape(b, down, n, hidden, mid)) {
        b->n.experts_form = EXPERTS_FUSED_BARE;
        b->n.expert_gate = "gate_up_proj";
    } else if (has_shape(b, up, n, hidden, 2 * mid) && has_shape(b, down, n, mid, hidden)) {
        b->n.experts_form = EXPERTS_FUSED_IN_OUT;
        b->n.expert_gate = "gate_up_proj";
    } else {
        return;
    }
    b->n.expert_down = "down_proj";
}

/* Set the names that a GGUF uses only in models with recurrent layers. */
static void state_names(struct builder *b)
{
    const struct weight_names *have = b->have;
    if (config_has_mixer(b->c, MIXER_CONV)) {
        b->n.in = "shortconv.in_proj";
        b->n.conv = "shortconv.conv";
        b->n.state_o = "shortconv.out_proj";
        if (!exists(b, "output_norm.weight"))
            b->n.final_norm = gguf_names.embed_norm;    /* lfm2's name for it */
    }
    if (b->c->recurrent.per_row) {                      /* Kimi delta attention */
        b->n.in = "attn_{q,k,v}";
        b->n.conv = "ssm_conv1d_{q,k,v}";
        b->n.in_ba = "ssm_beta";
        b->n.gate_a = "ssm_{f,g}_a";
        b->n.in_f = "ssm_f_b";
        b->n.in_z = "ssm_g_b";
        b->n.state_o = NULL;
    } else if (b->c->recurrent.z_apart) {
        b->n.in = gguf_names.qkv;
        b->n.in_z = "attn_gate";
        if (b->c->recurrent.ba_flat)
            b->n.in_ba = "ssm_{beta,alpha}";
    }
    if (have->mlp_norm && have->attn_norm && strcmp(have->mlp_norm, have->attn_norm) == 0)
        b->n.mlp_norm = gguf_names.attn_norm;           /* nemotron_h: the one norm of a layer has this name */
}

int weight_specs(const struct config *c, const struct weight_source *s, struct weight_spec **specs, int *n,
                 struct err *e)
{
    struct builder b = { .c = c, .s = s, .have = c->names, .n = c->gguf ? gguf_names : *c->names, .e = e };
    if (c->gguf && c->block == BLOCK_PARALLEL2 && strcmp(c->names->attn_norm, "ln_attn") == 0) {
        /* falcon: attn_norm, which older models have for both, is the MLP's norm in newer ones */
        b.n.attn_norm = "attn_norm_2";
        b.n.mlp_norm = "attn_norm";
    }
    if (c->gguf && c->names->mlp_norm && !c->names->attn_post_norm && exists(&b, "blk.0.post_attention_norm.weight"))
        b.n.mlp_norm = gguf_names.attn_post_norm;       /* seed_oss: named by its place after attention */
    if (c->gguf && c->norm_after_add) {                 /* encoders */
        b.n.attn_post_norm = "attn_output_norm";
        b.n.mlp_post_norm = "layer_output_norm";
    }
    if (c->gguf)
        state_names(&b);
    if ((c->gguf ? 0 : find_prefix(&b)) < 0 || add_ends(&b, 1) < 0)
        goto fail;
    find_experts(&b);
    for (int i = 0; i < c->n_layers; i++)
        if (add_layer(&b, i) < 0)
            goto fail;
    if (add_ends(&b, 0) < 0)
        goto fail;
    *specs = b.specs;
    *n = b.n_specs;
    return 0;
fail:
    free(b.specs);
    return -1;
}

/* weights_experts.c - list the tensors of a mixture of experts. */
#include "libcommon/model/builder.h"

#include <stdio.h>

/* Place of an expert's matrix in the source's tensor. */
struct expert_place {
    const char *stem;               /* stem of the tensor's name */
    int in_out, bare;               /* stored [in, out]; named without ".weight" */
    int64_t src_rows;               /* rows of one expert: the matrix's own, or those of gate and up together */
    int64_t offset, run, stride;    /* the expert's rows, see struct row_map */
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
    const int flat = spec_has_dims(b, full, 1);
    return spec_as(b, "shared_router.weight", full, flat ? want + 1 : want, flat ? 1 : 2, &t);
}

/* Add the weights of a layer with experts beside an MLP: those of the MLP, the scales of the
 * router, and the norms. */
static int add_beside(struct builder *b, int layer)
{
    const struct weight_names *n = &b->n;
    return spec_mlp(b, layer) < 0 || spec_vector(b, layer, LP_ROUTER_SCALE, n->router_scale) < 0 ||
           spec_vector(b, layer, LP_EXPERT_SCALE, n->expert_scale) < 0 ||
           spec_layer_norm(b, layer, LP_DENSE_POST_NORM, n->dense_post_norm) < 0 ||
           spec_layer_norm(b, layer, LP_EXPERT_NORM, n->expert_norm) < 0
               ? -1 : spec_layer_norm(b, layer, LP_EXPERT_POST_NORM, n->expert_post_norm);
}

int spec_moe(struct builder *b, int layer)
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
        if (spec_gate_up(b, layer, b->n.shared_gate_up, m->shared_size) < 0)
            return -1;
    } else if (m->shared_size && ((b->c->gated && spec_own_matrix(b, layer, LP_GATE, b->n.shared_gate) < 0) ||
                                  spec_own_matrix(b, layer, LP_UP, b->n.shared_up) < 0)) {
        return -1;
    }
    if (m->shared_size && spec_own_matrix(b, layer, LP_DOWN, b->n.shared_down) < 0)
        return -1;
    if (m->latent && (spec_own_matrix(b, layer, LP_LATENT_IN, b->n.latent_in) < 0 ||
                      spec_own_matrix(b, layer, LP_LATENT_OUT, b->n.latent_out) < 0))
        return -1;
    for (int i = 0; i < (b->s->one_expert ? 1 : m->n_experts); i++)
        if ((b->c->gated && add_expert_part(b, layer, i, LP_EXPERT_GATE) < 0) ||
            add_expert_part(b, layer, i, LP_EXPERT_UP) < 0 || add_expert_part(b, layer, i, LP_EXPERT_DOWN) < 0)
            return -1;
    return 0;
}

/* 1 if the source has a tensor of this shape. */
static int has_shape(const struct builder *b, const char *name, int64_t d0, int64_t d1, int64_t d2)
{
    int n;
    int64_t dim[WEIGHT_DIMS];
    return b->s->shape(b->s->user, name, &n, dim) == 0 && n == 3 && dim[0] == d0 && dim[1] == d1 && dim[2] == d2;
}

void spec_find_experts(struct builder *b)
{
    const struct config *c = b->c;
    const int64_t n = c->moe.n_experts, mid = c->moe.intermediate_size, hidden = config_expert_width(c);
    int layer = 0;
    while (layer < c->n_layers && c->ff[layer] != FF_MOE)
        layer++;
    if (layer == c->n_layers || !b->s->shape || b->n.experts_form == EXPERTS_PAIRED_IN_OUT)
        return;
    char base[96], apart[160], up[160], down[160];
    spec_path(b, base, sizeof base, layer, b->n.experts);
    if (c->gguf) {                          /* some converters store gate and up as one tensor */
        snprintf(up, sizeof up, "%sffn_gate_up_exps.weight", base);
        if (spec_exists(b, up)) {
            b->n.experts_form = EXPERTS_FUSED;
            b->n.expert_gate = "ffn_gate_up_exps";
        }
        return;
    }
    snprintf(apart, sizeof apart, "%s0.gate_proj.weight", base);
    snprintf(up, sizeof up, "%sgate_up_proj", base);
    snprintf(down, sizeof down, "%sdown_proj", base);
    if (b->n.experts_form >= EXPERTS_FUSED_BARE && spec_exists(b, apart)) {
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

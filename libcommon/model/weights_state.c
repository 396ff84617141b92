/* weights_state.c - list the tensors of layers with a recurrent state. */
#include "libcommon/model/builder.h"

#include <stdio.h>

/* The convolution's weights [channels, 1, kernel] are stored transposed, so that channels are
 * adjacent.  GGUF leaves the 1 out. */
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
    const int is_flat = spec_has_dims(b, full, 2);
    if (spec_as(b, part_infos[LP_CONV].name, full, is_flat ? flat : want, is_flat ? 2 : 3, &t) < 0)
        return -1;
    return bias.present ? spec_tensor(b, "conv", ".bias", source, 0, bias_spec) : 0;
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
    const int in_parts = b->c->mixer[layer] != MIXER_DELTA && spec_has_dims(b, full, 2);
    return spec_as(b, "gate_norm.weight", full, in_parts ? parts : &f.cols, in_parts ? 2 : 1, &norm) < 0 ? -1 : 0;
}

/* Mamba1: A [channels, states] is stored transposed, so that channels are adjacent. */
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

int spec_state(struct builder *b, int layer)
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

/* one_token.c - steps of one token whose layers are one launch (gpu/kernels/one_token.cu): which
 * models have them, and the descriptions of their layers in device memory. */
#include "gpu/backend/internal.h"

#include <string.h>

/* ---- the models ---- */

enum { N_MATS = 7 };
/* Of a layer: q, k, v, o, gate, up, down. */
static void mats_of(const struct gpu_token_layer *l, const struct gpu_mat *out[N_MATS])
{
    const struct gpu_mat *const all[N_MATS] = { &l->qkv[0], &l->qkv[1], &l->qkv[2], &l->o, &l->up.w[0].w, &l->up.w[1].w,
                                                &l->down.w };
    memcpy(out, all, sizeof all);
}

/* Can gpu_one_token() multiply by both matrices? */
static int alike(const struct gpu_mat *a, const struct gpu_mat *b)
{
    return gpu_turns_alike(a->type, b->type) && a->group_shift == b->group_shift &&
           gpu_whole_turns(b->type, b->cols, b->n_steps, b->n_groups);
}

/* Of a layer: no norms but those of the inputs of both halves, and nothing between the products. */
static int is_plain(const struct gpu_backend *b, int index)
{
    const struct config *c = &b->m->config;
    const struct dlayer *l = dweights_layer(b->w, index);
    return c->mixer[index] == MIXER_ATTENTION && c->ff[index] == c->ff[b->layers.first] &&
           (c->ff[index] == FF_MOE ||
            (c->ff[index] == FF_DENSE && config_mlp_size(c, index) == c->intermediate_size)) &&
           !l->attn_post_norm.present && !l->mlp_post_norm.present && !l->attn_sub_norm.present &&
           !l->mlp_sub_norm.present && !in_tail_only(b, index);
}

static int plain_model(const struct gpu_backend *b)
{
    const struct config *c = &b->m->config;
    const struct moe *m = &c->moe;
    if (b->layers.first >= b->layers.end || b->o.one_launch == ONE_LAUNCH_OFF ||
        (b->o.one_launch == ONE_LAUNCH_AUTO && c->ff[b->layers.first] != FF_MOE && gpu_launches_overlap(b->g)))
        return 0;
    if (b->tp || b->exact || b->o.strict || b->o.act_codes == ACT_CODES_INT8 || b->o.watch || b->plan.slots ||
        has_host_experts(b) || c->block != BLOCK_SEQUENTIAL || !c->gated || c->attn_gate || c->clip_qkv > 0 ||
        c->qk_norm == QK_NORM_FULL)
        return 0;
    if (c->ff[b->layers.first] == FF_MOE && (m->shared_size || m->shared_gate || m->weigh_input))
        return 0;
    for (int i = b->layers.first; i < b->layers.end; i++)
        if (!is_plain(b, i))
            return 0;
    return 1;
}

/* ---- the layers ---- */

/* Describe a dense MLP as the only expert. */
static void describe_mlp(const struct gpu_backend *b, const struct dlayer *l, struct gpu_token_layer *out)
{
    out->up = (struct gpu_experts){ .w = { { .w = l->gate.w, .bias = l->gate.bias },
                                           { .w = l->up.w, .bias = l->up.bias } },
                                    .n_mats = 2, .n_experts = 1, .n_pairs = 1, .share = 1, .act_out = b->act_mlp,
                                    .act_out_stride = b->stride_mlp, .function = b->m->config.act };
    out->down = (struct gpu_expert_mat){ .w = l->down.w, .bias = l->down.bias };
}

static void describe_mixture(const struct gpu_backend *b, const struct dlayer *l, int index,
                             struct gpu_token_layer *out)
{
    out->route = layers_route(b, l, index);
    out->route.w[0] = l->router.w;
    out->route.bias[0] = l->router.bias;
    out->route.n_mats = out->route.n = 1;
    out->up = layers_experts(b, &l->experts);
    out->down = l->experts.down;
}

/* The sums of parts of k that are q, k and v, one after the other in a row. */
static void describe_parts(const struct gpu_backend *b, const struct gpu_mat *w, struct gpu_part_sums out[3])
{
    int at = 0;
    const int ld = 32 * (w[0].n_tiles + w[1].n_tiles + w[2].n_tiles);
    for (int i = 0; i < 3; i++) {
        out[i] = (struct gpu_part_sums){ .part = b->one.exchanged + at, .ld = ld };     /* qkv_parts */
        at += 32 * w[i].n_tiles;
    }
}

/* *out: layer `index`.  Returns 1 if gpu_one_token() can run it. */
static int describe(const struct gpu_backend *b, int index, struct gpu_token_layer *out)
{
    const struct dlayer *l = dweights_layer(b->w, index);
    memset(out, 0, sizeof *out);
    out->attn_norm = layers_norm(b, &l->attn_norm, b->x, b->act, NULL);
    out->mlp_norm = layers_norm(b, &l->mlp_norm, b->x, b->act, NULL);
    const struct dlinear *const qkv[3] = { &l->q, &l->k, &l->v };
    for (int i = 0; i < 3; i++) {
        out->qkv[i] = qkv[i]->w;
        out->qkv_bias[i] = qkv[i]->bias;
    }
    out->o = l->o.w;
    out->o_bias = l->o.bias;
    out->attention = layers_attention(b, l, index);
    describe_parts(b, out->qkv, out->attention.prepare.parts);
    const int moe = b->m->config.ff[index] == FF_MOE;
    moe ? describe_mixture(b, l, index, out) : describe_mlp(b, l, out);
    const struct gpu_mat *mats[N_MATS];
    mats_of(out, mats);
    for (int i = 0; i < N_MATS; i++)
        if (!alike(&out->o, mats[i]))
            return 0;
    if (out->qkv[1].n_steps != out->qkv[0].n_steps || out->qkv[2].n_steps != out->qkv[0].n_steps ||
        out->up.w[1].w.n_steps != out->up.w[0].w.n_steps || out->up.w[1].w.n_tiles != out->up.w[0].w.n_tiles)
        return 0;
    return gpu_norm_in_registers(&out->attn_norm) && gpu_norm_in_registers(&out->mlp_norm) && !out->down.bias &&
           (!moe || (l->router.w.type == QT_F32 && gpu_chooses_only(&out->route) && !out->route.place));
}

/* Does a layer need the kernel of several types? */
static int needs_mixed(const struct gpu_token_layer *l)
{
    const struct gpu_mat *mats[N_MATS];
    int mixed = 0;
    mats_of(l, mats);
    for (int i = 0; i < N_MATS; i++)
        mixed |= gpu_turns_need_mixed(mats[i]->type);
    return mixed;
}

static int same_shape(const struct gpu_token_layer *a, const struct gpu_token_layer *b)
{
    const struct gpu_mat *x[N_MATS], *y[N_MATS];
    mats_of(a, x);
    mats_of(b, y);
    for (int i = 0; i < N_MATS; i++)
        if (!alike(x[i], y[i]) || x[i]->n_tiles != y[i]->n_tiles || x[i]->n_steps != y[i]->n_steps)
            return 0;
    return a->route.n_experts == b->route.n_experts;
}

/* ---- memory ---- */

size_t one_token_layers_bytes(const struct gpu_backend *b)
{
    return (size_t)(b->layers.end - b->layers.first) * sizeof(struct gpu_token_layer);
}

/* Offsets of arrays of gpu_token_step in b->one.exchanged, and the size of all: floats, in
 * multiples of 4. */
struct exchanged { size_t qkv_parts, down_parts, att, h, o_parts, all; };
static struct exchanged exchanged_of(const struct gpu_backend *b)
{
    const struct config *c = &b->m->config;
    const size_t nk = (size_t)c->n_kv_heads * (size_t)c->head_dim, nq = (size_t)c->n_heads * (size_t)c->head_dim,
                 qkv = (nq + 31) / 32 * 32 + 2 * ((nk + 31) / 32 * 32),
                 hidden = ((size_t)c->hidden_size + 31) / 32 * 32,
                 mlp = (size_t)c->intermediate_size, experts = (size_t)c->moe.top_k * (size_t)c->moe.intermediate_size;
    struct exchanged x = { .down_parts = GPU_TURN_PARTS * qkv };
    x.att = x.down_parts + GPU_TURN_PARTS * hidden;
    x.h = x.att + (nq + 31) / 32 * 32;
    x.o_parts = x.h + ((mlp > experts ? mlp : experts) + 31) / 32 * 32;
    x.all = x.o_parts + 2 * GPU_TURN_PARTS * hidden;
    return x;
}
size_t one_token_exchanged(const struct gpu_backend *b) { return exchanged_of(b).all; }

size_t one_token_sums(const struct gpu_backend *b)
{
    const struct config *c = &b->m->config;
    if (b->o.one_launch == ONE_LAUNCH_OFF || c->head_dim > GPU_TOKEN_DIM || c->n_kv_heads < 1)
        return 0;
    /* of half the size they are at most as many as blocks */
    const int few = GPU_TOKEN_BLOCKS / c->n_kv_heads, most = b->max_splits > few ? b->max_splits : few;
    return (size_t)c->n_heads * (size_t)(c->head_dim / 32) * (size_t)most * GPU_TOKEN_SUM;
}

size_t one_token_outputs(const struct gpu_backend *b)
{
    return 4 * GPU_TOKEN_COPIES * (((size_t)b->m->config.moe.n_experts + 31) / 32 * 32);
}

int one_token_open(struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    struct gpu_token_layer *const shape = &b->one.shape, layer;
    if (!plain_model(b))
        return 0;
    for (int i = b->layers.first; i < b->layers.end; i++) {
        if (!describe(b, i, &layer))
            return 0;
        if (i == b->layers.first)
            *shape = layer;
        if (!same_shape(shape, &layer))
            return 0;
        b->one.mixed |= needs_mixed(&layer);
        memcpy(b->hstep, &layer, sizeof layer);
        if (gpu_upload(b->g, GPU_COMPUTE, b->one.layers + (i - b->layers.first), b->hstep, sizeof layer, e) < 0 ||
            gpu_sync(b->g, GPU_COMPUTE, e) < 0)
            return -1;
    }
    if (!gpu_one_token_takes(b->g, shape, c->hidden_size, b->one.mixed))
        return 0;
    b->one.open = 1;
    /* words that are empty */
    return gpu_fill(b->g, GPU_COMPUTE, b->one.sums, 0xff, one_token_sums(b) * sizeof *b->one.sums, e) < 0 ||
                   gpu_fill(b->g, GPU_COMPUTE, b->one.gate_parts, 0xff,
                            GPU_TOKEN_BLOCKS * 2 * 32 * sizeof *b->one.gate_parts, e) < 0 ? -1 : 0;
}

/* ---- a step ---- */

int one_token_takes(const struct gpu_backend *b) { return b->one.open && b->n == 1 && b->n_decode == 1; }

int one_token_run(struct gpu_backend *b, struct err *e)
{
    const struct exchanged x = exchanged_of(b);
    float *const at = b->one.exchanged;
    const struct gpu_token_step o = {
        .layers = b->one.layers, .n = b->layers.end - b->layers.first, .mixed = b->one.mixed, .x = b->x,
        .hidden = b->m->config.hidden_size, .scale = b->m->config.residual_scale,
        .step = layers_step(b, b->layers.first), .max_splits = b->splits,
        .layers_before = b->one.arrived + GPU_GRID_WORDS, .arrived = b->one.arrived, .qkv_parts = at + x.qkv_parts,
        .down_parts = at + x.down_parts, .att = at + x.att, .h = at + x.h, .sums = b->one.sums,
        .gate_parts = b->one.gate_parts, .o_parts = at + x.o_parts, .outputs = b->one.outputs };
    for (int i = b->layers.first; i < b->layers.end; i++)
        if (dweights_need(b->w, i, e) < 0)
            return -1;
    return gpu_one_token(b->g, &b->one.shape, &o, e);
}

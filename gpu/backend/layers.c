/* layers.c - the kernels of a step in order, layer after layer like cpu_core.c, in the device's
 * stream.
 *
 * With ACT_CODES_INT8, the f16 activations that i8r matrices read are first rounded to int8, and
 * matmul_int8.cu computes the product; with ACT_CODES_FP8, those of more than 128 tokens that fp8
 * matrices read are rounded to fp8, and matmul_fp8.cu (or matmul_fp8_hopper.cu) computes it.
 * Otherwise up to 16 tokens are computed by matvec.cu, up to 128 by matmul_split.cu (or
 * matmul_split_hopper.cu), and more by matmul.cu (or matmul_hopper.cu); all but matvec.cu read
 * activations in another order.  More than 128 tokens read the f16 copies (decode.cu), if there are
 * any, with bit-identical results.  With exact, and for f32 matrices, activations stay f32 and
 * matmul_f32.cu computes the product.  Experts choose their kernels in the same way
 * (expert_matvec.cu, expert_matmul.cu, matmul_f32.cu), but never codes or copies.  The choice stays
 * on the device: launches depend on the number of tokens alone.
 *
 * The norm of the residual has its own launch, except for few tokens after matvec.cu and
 * expert_matvec.cu, whose last block computes it with the same bits; after matmul_split_hopper.cu
 * the norm also adds what the matrix leaves, and so does gpu_prepare.  The only token of a step is
 * prepared by attention itself, with the same bits, too.
 *
 * With strict, matvec.cu runs once for every 16 tokens, and attn_decode.cu computes all attention:
 * both give a token the same bits in any batch. */
#include "gpu/backend/internal.h"

#include <assert.h>
#include <string.h>

#include "libcommon/model/arch.h"

static_assert((int)ROUTER_SOFTMAX == GPU_ROUTER_SOFTMAX && (int)ROUTER_SIGMOID == GPU_ROUTER_SIGMOID &&
              (int)ROUTER_SQRT_SOFTPLUS == GPU_ROUTER_SQRT_SOFTPLUS &&
              (int)ROUTER_SPARSEMIXER == GPU_ROUTER_SPARSEMIXER &&
              (int)ROUTER_TOP_SOFTMAX == GPU_ROUTER_TOP_SOFTMAX, "the device's numbers of routers are the model's");

/* ---- linear layers ---- */

struct target { const struct dlinear *l; float *out; int ldo; };

static struct gpu_linear begin(const struct gpu_backend *b, const struct input *in, enum gpu_finish finish, float scale,
                               float limit)
{
    return (struct gpu_linear){ .act = in->act, .act_stride = in->stride, .x = in->x, .ldx = in->ldx, .n_tokens = b->n,
                                .finish = finish, .scale = scale, .limit = limit,
                                .function = b->m->config.act, .wgmma = b->o.wgmma, .code_scale = b->act_scale,
                                .partial = b->partial,
                                .partial_bytes = b->partial_room * sizeof(float), .tickets = b->tickets };
}

static int in_floats(const struct gpu_backend *b, const struct dlinear *l) { return b->exact || l->w.type == QT_F32; }

/* Does matvec.cu multiply the tokens of this step? */
static int by_matvec(const struct gpu_backend *b) { return b->n <= GPU_MATVEC_TOKENS || b->o.strict; }
/* Does matmul_split.cu multiply them? */
static int by_split(const struct gpu_backend *b) { return !by_matvec(b) && b->n <= GPU_SPLIT_TOKENS; }
/* Returns the order in which the kernels for n tokens read activations. */
static enum gpu_act_order order_of(const struct gpu_backend *b, int n)
{
    return n <= GPU_MATVEC_TOKENS || b->o.strict ? GPU_ACT_LANES : GPU_ACT_TILES;
}

/* Whether the matrix reads int8 activations; an input is rounded once for all matrices that do. */
static int in_int8(const struct gpu_backend *b, const struct dlinear *l)
{
    return b->o.act_codes == ACT_CODES_INT8 && gpu_matmul_int8_takes(&l->w);
}
static int in_fp8(const struct gpu_backend *b, const struct dlinear *l)
{
    return b->o.act_codes == ACT_CODES_FP8 && gpu_matmul_fp8_takes(b->g, &l->w, b->n);
}
static int round_act(struct gpu_backend *b, const struct input *in, int cols, struct err *e)
{
    return (b->o.act_codes == ACT_CODES_FP8 ? gpu_act_fp8 : gpu_act_int8)(
        b->g, in->act, in->stride, order_of(b, b->n), b->n, cols, b->act_code, b->act_scale, e);
}

/* The weights that the kernel for the tokens of this step reads: the packed ones, or their copy. */
static const struct gpu_mat *weights_of(const struct gpu_backend *b, const struct dlinear *l)
{
    const int many = !in_floats(b, l) && !by_matvec(b) && b->n > GPU_DECODED_TOKENS;
    return many && l->decoded.data ? &l->decoded : &l->w;
}

/* Can one launch multiply by both matrices? */
static int alike(const struct gpu_mat *a, const struct gpu_mat *b)
{
    return a->type == b->type && a->group_shift == b->group_shift && a->n_steps == b->n_steps;
}

/* Multiply any number of tokens with matvec.cu, GPU_MATVEC_TOKENS at a time. */
static int run_matvec(struct gpu_backend *b, const struct gpu_linear *all, struct err *e)
{
    for (int t = 0; t < all->n_tokens; t += GPU_MATVEC_TOKENS) {
        struct gpu_linear l = *all;
        l.n_tokens = all->n_tokens - t < GPU_MATVEC_TOKENS ? all->n_tokens - t : GPU_MATVEC_TOKENS;
        l.act += (size_t)t * (size_t)l.act_stride;
        if (l.code) {
            l.code += (size_t)t * (size_t)GPU_CODE_STRIDE(l.w[0].cols);
            l.code_scale += t;
        }
        for (int i = 0; i < l.n_mats; i++)
            if (l.to[i].out)
                l.to[i].out += (size_t)t * (size_t)l.to[i].ldo;
        if (l.act_out)
            l.act_out += (size_t)t * (size_t)l.act_out_stride;
        if ((l.code ? gpu_matmul_int8(b->g, &l, e) : gpu_matvec(b->g, &l, e)) < 0)
            return -1;
    }
    return 0;
}

/* Multiply the matrices that read one input. */
static int run_linear(struct gpu_backend *b, const struct input *in, const struct target *to, int n,
                      enum gpu_finish finish, float scale, float limit, struct err *e)
{
    int rounded = 0;                    /* rounded once for all matrices that need it */
    for (int i = 0; i < n; ) {
        struct gpu_linear l = begin(b, in, finish, scale, limit);
        const struct dlinear *first = to[i].l;
        const int exact = in_floats(b, first), int8 = in_int8(b, first), fp8 = in_fp8(b, first), few = by_matvec(b),
                  split = by_split(b) && !int8, together = exact || few || !(int8 || fp8);
        if ((int8 || fp8) && !rounded++ && round_act(b, in, first->w.cols, e) < 0)
            return -1;
        l.code = int8 || fp8 ? b->act_code : NULL;
        do {
            l.w[l.n_mats] = *weights_of(b, to[i].l);
            l.to[l.n_mats++] = (struct gpu_output){ to[i].l->bias, to[i].out, to[i].ldo };
            i++;
        } while (together && i < n && (exact ? in_floats(b, to[i].l) : alike(&l.w[0], weights_of(b, to[i].l))));
        if ((exact ? gpu_matmul_f32(b->g, &l, e) : few ? run_matvec(b, &l, e) : split
             ? gpu_matmul_split(b->g, &l, e) : int8 ? gpu_matmul_int8(b->g, &l, e) : fp8
             ? gpu_matmul_fp8(b->g, &l, e) : gpu_matmul(b->g, &l, e)) < 0)
            return -1;
    }
    return 0;
}

struct gpu_norm layers_norm(const struct gpu_backend *b, const struct dnorm *norm, float *x, uint16_t *act, float *out)
{
    const struct config *c = &b->m->config;
    return (struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = norm->present, .w = norm->w, .b = norm->b,
                              .eps = c->norm_eps, .offset = c->norm_offset, .x = x, .ldx = c->hidden_size,
                              .out = b->floats ? out : NULL, .ldo = c->hidden_size, .act = b->exact ? NULL : act,
                              .act_stride = b->stride_hidden, .order = order_of(b, b->n), .n = b->n,
                              .cols = c->hidden_size };
}

static int run_norm(struct gpu_backend *b, const struct dnorm *norm, float *x, uint16_t *act, float *out,
                    struct input *in, struct err *e)
{
    const int ready = b->normed == norm, adds = b->adds == norm;
    *in = (struct input){ .act = act, .stride = b->stride_hidden, .x = b->floats ? out : NULL,
                          .ldx = b->m->config.hidden_size };
    b->normed = NULL;
    b->adds = NULL;
    const struct gpu_norm o = layers_norm(b, norm, x, act, out);
    return ready ? 0 : adds ? gpu_norm_parts(b->g, &o, &b->sums, e) : gpu_norm(b->g, &o, e);
}

/* x += post(y), or x += y if post is absent. */
static int add_normed(struct gpu_backend *b, const struct dnorm *post, struct err *e)
{
    const struct config *c = &b->m->config;
    return gpu_norm(b->g, &(struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = post->present,
                                              .w = post->w,
                                              .b = post->b, .eps = c->norm_eps, .offset = c->norm_offset,
                                             .x = b->x, .ldx = c->hidden_size, .add = b->y,
                                             .after_add = c->norm_after_add, .scale = c->residual_scale, .n = b->n,
                                             .cols = c->hidden_size }, e);
}

/* With tp: 1 if this half of a layer leaves a partial sum in b->y. */
static int is_partial(const struct gpu_backend *b, int index, int half)
{
    return b->tp && (b->tp->split[index] & half);
}

/* *norm: the norm that reads x after a half of a layer; NULL: none, or it has its own launch. */
static int norm_after(const struct gpu_backend *b, int index, int half, const struct dnorm **norm, struct err *e)
{
    const struct config *c = &b->m->config;
    *norm = NULL;
    if (b->tp || c->block != BLOCK_SEQUENTIAL)
        return 0;
    if (half == TP_MIXER && c->ff[index] != FF_NONE) {
        *norm = &dweights_layer(b->w, index)->mlp_norm;
        return 0;
    }
    /* of a window the next layer may not be there yet */
    if (++index >= b->layers.end || b->plan.slots || c->mixer[index] == MIXER_NONE)
        return 0;
    *norm = &dweights_layer(b->w, index)->attn_norm;
    return dweights_need(b->w, index, e);
}

/* Can gpu_choose compute the router's outputs itself? */
static int chooses_at_once(const struct gpu_backend *b, const struct dlayer *l)
{
    return b->n <= GPU_MATVEC_TOKENS && l->router.w.type == QT_F32 &&
           (!b->m->config.moe.shared_gate || l->shared_router.w.type == QT_F32);
}

/* Does the router compute the norm of its input?  *o: the norm. */
static int router_norms(const struct gpu_backend *b, const struct dlayer *l, int index, struct gpu_norm *o)
{
    *o = layers_norm(b, &l->mlp_norm, b->x, b->act, b->hf);
    return b->m->config.ff[index] == FF_MOE && b->m->config.block == BLOCK_SEQUENTIAL && b->n <= GPU_NORM_TOKENS &&
           chooses_at_once(b, l) && gpu_norm_in_registers(o);
}

/* *o: the norm that the launch that ends a half of a layer computes as well.  Returns 0 with o->x
 * NULL if there is none, or it needs its own launch. */
static int norm_at_end(struct gpu_backend *b, int index, int half, struct gpu_norm *o, struct err *e)
{
    const struct dnorm *norm = NULL;
    o->x = NULL;
    if (b->n <= GPU_NORM_TOKENS && norm_after(b, index, half, &norm, e) < 0)
        return -1;
    if (!norm)
        return 0;
    const int left = half == TP_MIXER && router_norms(b, dweights_layer(b->w, index), index, o);
    *o = layers_norm(b, norm, b->x, b->act, b->hf);
    if (left || !gpu_norm_in_registers(o)) {
        o->x = NULL;
        return 0;
    }
    b->normed = norm;
    return 1;
}

/* x += l(in), and the norm that follows in the same launch.  Returns 1 if it was launched; 0 if the
 * norm needs its own launch. */
static int add_and_norm(struct gpu_backend *b, const struct dlinear *l, const struct input *in, int index, int half,
                        struct err *e)
{
    const struct config *c = &b->m->config;
    struct gpu_linear o = begin(b, in, GPU_ADD, c->residual_scale, 0);
    const int there = in_floats(b, l) || in_int8(b, l) ? 0 : norm_at_end(b, index, half, &o.norm, e);
    if (there <= 0)
        return there;
    o.w[0] = l->w;
    o.to[0] = (struct gpu_output){ l->bias, b->x, c->hidden_size };
    o.n_mats = 1;
    return gpu_matvec(b->g, &o, e) < 0 ? -1 : 1;
}

/* Is there room for the sums that o leaves, of matrices of these units? */
static int parts_fit(const struct gpu_linear *o, int units)
{
    const int parts = gpu_split_hopper_parts(units, o->w[0].n_steps);
    return GPU_SPLIT_BYTES(2 * units * parts, (o->n_tokens + 63) / 64 * 64) <= o->partial_bytes;
}

/* Leave the sums of parts of l(in) to the norm that follows, which adds them to x.  Returns 1 if it
 * was launched; 0 if the launch itself has to add them. */
static int leave_parts(struct gpu_backend *b, const struct dlinear *l, const struct input *in, int index, int half,
                       struct err *e)
{
    const struct dnorm *norm = NULL;
    struct gpu_linear o = begin(b, in, GPU_PARTS, 1, 0);
    o.w[0] = l->w;
    o.to[0] = (struct gpu_output){ .out = b->partial, .ldo = l->w.n_tiles * 32 };
    o.n_mats = 1;
    if (in_floats(b, l) || in_int8(b, l) || !by_split(b) || !o.wgmma || b->o.watch ||
        !gpu_matmul_split_hopper_takes(b->g, &o) || !parts_fit(&o, gpu_split_hopper_units(l->w.n_tiles)))
        return 0;
    if (norm_after(b, index, half, &norm, e) < 0)
        return -1;
    if (!norm)
        return 0;
    const struct gpu_norm after = layers_norm(b, norm, b->x, b->act, b->hf);
    if (!gpu_norm_in_registers(&after))
        return 0;
    b->adds = norm;
    b->sums = (struct gpu_part_sums){ .part = b->partial, .ld = l->w.n_tiles * 32,
                                      .n_parts = gpu_split_hopper_parts(gpu_split_hopper_units(l->w.n_tiles),
                                                                        l->w.n_steps),
                                      .tiles = l->w.data, .tile_bytes = l->w.tile_bytes, .bias = l->bias,
                                      .scale = b->m->config.residual_scale };
    return gpu_matmul_split(b->g, &o, e) < 0 ? -1 : 1;
}

/* x += l(in); if post is present, x += post(l(in)).  If this half of the layer is partial, only y =
 * l(in). */
static int add_residual(struct gpu_backend *b, const struct dlinear *l, const struct input *in,
                        const struct dnorm *post, int index, int half, struct err *e)
{
    const struct config *c = &b->m->config;
    const int partial = is_partial(b, index, half),
              normed = partial || post->present ? 0 : add_and_norm(b, l, in, index, half, e),
              left = normed || partial || post->present ? 0 : leave_parts(b, l, in, index, half, e);
    if (normed || left)
        return normed < 0 || left < 0 ? -1 : 0;
    if (partial)
        return run_linear(b, in, &(struct target){ l, b->y, c->hidden_size }, 1, GPU_STORE, 1, 0, e);
    if (!post->present)
        return run_linear(b, in, &(struct target){ l, b->x, c->hidden_size }, 1, GPU_ADD, c->residual_scale, 0, e);
    return run_linear(b, in, &(struct target){ l, b->y, c->hidden_size }, 1, GPU_STORE, 1, 0, e) < 0
               ? -1 : add_normed(b, post, e);
}

/* bitnet: norm the f32 input of o or down in place; unless act is NULL, also write it to act as
 * f16. */
static int run_sub_norm(struct gpu_backend *b, const struct dnorm *norm, float *x, int cols, uint16_t *act, int stride,
                        struct err *e)
{
    const struct config *c = &b->m->config;
    if (!norm->present)
        return 0;
    return gpu_norm(b->g, &(struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = 1, .w = norm->w,
                                              .b = norm->b, .eps = c->norm_eps, .offset = c->norm_offset, .x = x,
                                              .ldx = cols, .out = x, .ldo = cols, .act = act, .act_stride = stride,
                                              .order = order_of(b, b->n), .n = b->n, .cols = cols }, e);
}

/* Compute gate and up of a dense or shared MLP of this size.  *down: the input of down, in `act`
 * unless it is f32. */
static int run_mlp_up(struct gpu_backend *b, const struct dlayer *l, int size, const struct input *in, uint16_t *act,
                      struct input *down, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dlinear *gate = c->gated ? &l->gate : &l->up, *up = c->gated ? &l->up : NULL;
    *down = (struct input){ .act = act, .stride = b->stride_mlp, .x = b->gate, .ldx = size };
    if (!in_floats(b, gate) && !in_floats(b, &l->down) && !l->mlp_sub_norm.present &&
        (!up || alike(weights_of(b, up), weights_of(b, gate)))) {
        struct gpu_linear fused = begin(b, in, GPU_MLP, 1, 0);
        fused.w[0] = *weights_of(b, gate);
        fused.to[0].bias = gate->bias;
        fused.n_mats = 1;
        if (up) {
            fused.w[1] = *weights_of(b, up);
            fused.to[1].bias = up->bias;
            fused.n_mats = 2;
        }
        fused.act_out = act;
        fused.act_out_stride = b->stride_mlp;
        fused.code = in_int8(b, gate) ? b->act_code : NULL;
        if (by_matvec(b))
            return (fused.code && round_act(b, in, gate->w.cols, e) < 0) || run_matvec(b, &fused, e) < 0 ? -1 : 0;
        const int split = by_split(b);
        if (!fused.code && !in_fp8(b, gate) && fused.wgmma &&
            (split ? gpu_matmul_split_hopper_takes(b->g, &fused) : gpu_matmul_hopper_takes(b->g, &fused)))
            return split ? gpu_matmul_split(b->g, &fused, e) : gpu_matmul(b->g, &fused, e);
    }
    const struct target to[2] = { { gate, b->gate, size }, { up, b->up, size } };
    const int floats = in_floats(b, &l->down), stays = floats || l->mlp_sub_norm.present;
    if (run_linear(b, in, to, up ? 2 : 1, GPU_STORE, 1, 0, e) < 0 ||
        gpu_act_mul(b->g, b->gate, up ? b->up : NULL, b->n, size, c->act, stays ? b->gate : NULL, stays ? NULL : act,
                    b->stride_mlp, order_of(b, b->n), e) < 0)
        return -1;
    return run_sub_norm(b, &l->mlp_sub_norm, b->gate, size, floats ? NULL : act, b->stride_mlp, e);
}

/* ---- mixtures of experts ---- */

/* Compute the router's outputs of r->n tokens, from token t on; at_once: let gpu_choose do it. */
static int run_router(struct gpu_backend *b, const struct dlayer *l, int index, const struct input *in, int t, int few,
                      int at_once, struct gpu_route *r, struct err *e)
{
    struct gpu_linear o = begin(b, in, GPU_STORE, 1, 0);
    o.x += (size_t)t * (size_t)in->ldx;
    o.n_tokens = r->n;
    o.n_splits = few ? r->n_parts : 0;
    o.split_stride = r->part_stride;
    o.w[0] = l->router.w;
    o.to[0] = (struct gpu_output){ l->router.bias, b->route, r->ld };
    o.w[1] = l->shared_router.w;
    o.to[1] = (struct gpu_output){ l->shared_router.bias, b->route + r->n_experts, r->ld };
    o.n_mats = b->m->config.moe.shared_gate ? 2 : 1;
    if (!at_once)
        return gpu_matmul_f32(b->g, &o, e);
    for (int i = 0; i < o.n_mats; i++) {
        r->w[i] = o.w[i];
        r->bias[i] = o.to[i].bias;
    }
    r->n_mats = o.n_mats;
    r->x = o.x;
    r->ldx = o.ldx;
    r->arrived = b->arrived;
    if (!router_norms(b, l, index, &r->norm))
        r->norm.x = NULL;
    return 0;
}

struct gpu_route layers_route(const struct gpu_backend *b, const struct dlayer *l, int index)
{
    const struct moe *m = &b->m->config.moe;
    return (struct gpu_route){ .part = b->route, .ld = m->n_experts + 1, .correction = l->correction,
                               .n_experts = m->n_experts, .top_k = m->top_k, .router = (int)m->router,
                               .n_groups = m->n_groups, .top_groups = m->top_groups, .group_best = m->group_best,
                               .normalize = m->normalize, .norm_min = m->norm_min, .norm_add = m->norm_add,
                               .scale = m->scale, .mask = m->mask,
                               .place = b->tp ? b->tp_place : hybrid_place(b, index) };
}

/* Choose the experts of all tokens, and sort the pairs into tiles of `tile` pairs.  With strict or
 * exact a token's sums in the router are the same in any batch. */
static int run_route(struct gpu_backend *b, const struct dlayer *l, int index, const struct input *in, int tile,
                     struct gpu_route *out, struct err *e)
{
    const struct moe *m = &b->m->config.moe;
    const int top_k = m->top_k, at_once = chooses_at_once(b, l),
              few = b->n <= MAX_GRAPH_TOKENS || b->o.strict || b->exact,
              most = few && b->n > MAX_GRAPH_TOKENS ? MAX_GRAPH_TOKENS : b->n;
    struct gpu_route r = layers_route(b, l, index);
    r.n_parts = few ? GPU_SPLITS(l->router.w.n_steps) : 1;
    r.part_stride = (size_t)most * (size_t)r.ld;
    r.tile = tile;
    r.sort = b->n <= GPU_MATVEC_TOKENS;
    for (int t = 0; t < b->n; t += most) {
        r.n = b->n - t < most ? b->n - t : most;
        r.pos = array(b, A_POS) + t;
        r.choice = b->choice;
        r.choice.id += t * top_k;
        r.choice.weight += t * top_k;
        r.choice.shared = m->shared_gate ? b->choice.shared + t : NULL;
        if (run_router(b, l, index, in, t, few, at_once, &r, e) < 0 || gpu_choose(b->g, &r, e) < 0)
            return -1;
    }
    r.n = b->n;
    r.choice = b->choice;
    *out = r;
    return r.sort ? 0 : gpu_sort_pairs(b->g, &r, e);
}

struct gpu_experts layers_experts(const struct gpu_backend *b, const struct dexperts *x)
{
    const struct config *c = &b->m->config;
    const struct moe *m = &c->moe;
    return (struct gpu_experts){ .w = { c->gated ? x->gate : x->up, x->up }, .n_mats = c->gated ? 2 : 1,
                                 .n_experts = m->n_experts, .n_pairs = b->n * m->top_k, .choice = b->choice,
                                 .share = m->top_k, .out = b->mid_expert, .ldo = m->intermediate_size,
                                 .act_out = b->act_expert, .act_out_stride = b->stride_expert, .function = c->act,
                                 .alpha = m->act_alpha, .limit = m->act_limit, .weigh_input = m->weigh_input };
}

/* Compute the result of each pair's expert, in b->out_expert, and unless sum is NULL their sum and
 * its norm. */
static int run_experts(struct gpu_backend *b, const struct dexperts *x, int floats, const struct input *in,
                       const struct gpu_expert_sum *sum, const struct gpu_norm *norm, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct moe *m = &c->moe;
    struct gpu_experts o = layers_experts(b, x);
    o.act = in->act;
    o.act_stride = in->stride;
    o.x = in->x;
    o.ldx = in->ldx;
    int (*const run)(struct gpu *, const struct gpu_experts *, struct err *) =
        floats ? gpu_expert_f32 : by_matvec(b) ? gpu_expert_matvec : gpu_expert_matmul;
    if (run(b->g, &o, e) < 0)
        return -1;
    /* this also activates the rows of pairs that are computed elsewhere: no product reads them */
    if (!c->gated && gpu_act_mul(b->g, b->mid_expert, NULL, o.n_pairs, m->intermediate_size, c->act,
                                 floats ? b->mid_expert : NULL, floats ? NULL : b->act_expert, b->stride_expert,
                                 by_matvec(b) ? GPU_ACT_LANES : GPU_ACT_TILES, e) < 0)
        return -1;
    o.w[0] = x->down;
    o.n_mats = o.share = 1;
    o.chosen = c->gated;
    o.act = b->act_expert;
    o.act_stride = b->stride_expert;
    o.x = b->mid_expert;
    o.ldx = m->intermediate_size;
    o.out = b->out_expert;
    o.ldo = c->hidden_size;
    if (sum) {
        o.sum = *sum;
        o.norm = *norm;
        o.arrived = b->arrived + 1;
    }
    return run(b->g, &o, e);
}

/* Compute the results of the experts that pass through slots: a group is uploaded while the device
 * computes the one before, or all are uploaded at once. */
static int run_passing(struct gpu_backend *b, struct gpu_route *r, int index, int floats, const struct input *in,
                       struct err *e)
{
    struct dexperts slots;
    for (r->stream_first = 0; (r->stream_n = slots_fill(b, index, r->stream_first, &slots, e)) != 0;
         r->stream_first += r->stream_n)
        if (r->stream_n < 0 || gpu_sort_pairs(b->g, r, e) < 0 ||
            run_experts(b, &slots, floats, in, NULL, NULL, e) < 0 || slots_used(b, e) < 0)
            return -1;
    return 0;
}

/* Compute the experts that the router chose, and the sum.  asks: hybrid_ask() has sent the choices
 * to the host. */
static int run_routed(struct gpu_backend *b, const struct dlayer *l, int index, struct gpu_route *r,
                      const struct input *in, int asks, const struct gpu_expert_sum *sum, struct err *e)
{
    const int floats = experts_in_floats(b, b->m->layers[index].experts),
              at_once = b->n_experts && !has_host_experts(b) && !floats && b->n <= GPU_MATVEC_TOKENS;
    struct gpu_norm norm = { .x = NULL };
    if (at_once && sum->x && norm_at_end(b, index, TP_FF, &norm, e) < 0)
        return -1;
    if (b->n_experts && run_experts(b, &l->experts, floats, in, at_once ? sum : NULL, &norm, e) < 0)
        return -1;
    if (!has_host_experts(b))
        return at_once ? 0 : gpu_expert_sum(b->g, sum, e);
    if (asks && hybrid_divide(b, index, r, e) < 0)
        return -1;
    if (asks)
        hybrid_compute(b, index);
    else
        slots_pass_all(b, index);
    if (run_passing(b, r, index, floats, in, e) < 0)
        return -1;
    return asks ? hybrid_sum(b, index, sum, e) : gpu_expert_sum(b->g, sum, e);
}

/* x += the weighted sum of the experts and the shared MLP, normalized first if the layer has a norm
 * after them. */
static int run_mixture(struct gpu_backend *b, const struct dlayer *l, int index, const struct input *in,
                       struct err *e)
{
    const struct config *c = &b->m->config;
    const struct moe *m = &c->moe;
    const int floats = experts_in_floats(b, b->m->layers[index].experts), partial = is_partial(b, index, TP_FF),
              post = l->mlp_post_norm.present,
              tile = floats || by_matvec(b) ? GPU_EXPERT_FEW : gpu_expert_pairs(b->n * m->top_k, m->n_experts);
    const int asks = has_host_experts(b) && !slots_stream(b);
    struct gpu_route route;
    struct input down;
    if (slots_need(b, index, e) < 0 || run_route(b, l, index, in, tile, &route, e) < 0 ||
        (asks && hybrid_ask(b, in->x, e) < 0))
        return -1;
    uint16_t *act = b->shared_apart ? b->act_shared : b->act_mlp;
    if (m->shared_size && (run_mlp_up(b, l, m->shared_size, in, act, &down, e) < 0 ||
                           run_linear(b, &down, &(struct target){ &l->down, b->y, c->hidden_size }, 1, GPU_STORE, 1, 0,
                                      e) < 0))
        return -1;
    const struct gpu_expert_sum sum = {
        .y = b->out_expert, .choice = b->choice, .shared = m->shared_size ? b->y : NULL,
        .shared_weight = m->shared_gate ? b->choice.shared : NULL, .shared_scale = m->shared_scale,
        .x = post || partial ? NULL : b->x, .out = b->y, .scale = c->residual_scale, .n = b->n, .top_k = m->top_k,
        .cols = c->hidden_size, .weighed = m->weigh_input, .place = b->tp ? b->tp_place : NULL };
    if (run_routed(b, l, index, &route, in, asks, &sum, e) < 0)
        return -1;
    return post && !partial ? add_normed(b, &l->mlp_post_norm, e) : 0;
}

/* Run the feed-forward half of a layer. */
static int run_ff(struct gpu_backend *b, const struct dlayer *l, int index, const struct input *in, struct err *e)
{
    struct input down;
    if (b->m->config.ff[index] == FF_MOE)
        return run_mixture(b, l, index, in, e);
    return run_mlp_up(b, l, config_mlp_size(&b->m->config, index), in, b->act_mlp, &down, e) < 0
               ? -1 : add_residual(b, &l->down, &down, &l->mlp_post_norm, index, TP_FF, e);
}

/* ---- layers with a state ---- */

/* Kimi delta attention: compute the decays of the rows, and the gate if it is of low rank. */
static int run_row_gates(struct gpu_backend *b, const struct dlayer *l, const struct input *in, int channels, int width,
                         int n_in, struct err *e)
{
    const int rank = b->m->config.recurrent.gate_rank;
    float *f = b->state_in + channels + width;
    if (!rank)
        return run_linear(b, in, &(struct target){ &l->in_f, f, n_in }, 1, GPU_STORE, 1, 0, e);
    const struct target low = { &l->gate_a, b->state_low, 2 * rank },
                        out[2] = { { &l->in_f, f, n_in }, { &l->in_z, b->state_in + channels, n_in } };
    if (run_linear(b, in, &low, 1, GPU_STORE, 1, 0, e) < 0)
        return -1;
    for (int i = 0; i < 2; i++) {       /* each reads a few f32 channels */
        const struct input half = { .x = b->state_low + i * rank, .ldx = 2 * rank };
        struct gpu_linear o = begin(b, &half, GPU_STORE, 1, 0);
        o.w[0] = out[i].l->w;
        o.to[0] = (struct gpu_output){ out[i].l->bias, out[i].out, n_in };
        o.n_mats = 1;
        if (gpu_matmul_f32(b->g, &o, e) < 0)
            return -1;
    }
    return 0;
}

static struct gpu_state state_of(const struct gpu_backend *b, const struct dlayer *l, int index)
{
    const struct config *c = &b->m->config;
    const struct recurrent *r = &c->recurrent;
    const int kind = c->mixer[index];
    uint64_t at = 0;
    for (int i = b->layers.first; i < index; i++)
        at += config_state_floats(c, i);
    return (struct gpu_state){
        .kind = kind == MIXER_CONV ? GPU_STATE_CONV : kind == MIXER_DELTA ? GPU_STATE_DELTA : GPU_STATE_MAMBA2,
        .in = b->state_in, .ba = b->state_ba, .conv = b->state_conv, .out = b->state_out,
        .n_in = l->in.w.rows + l->in_z.w.rows + l->in_f.w.rows, .channels = recurrent_channels(c, index),
        .width = recurrent_width(c, index), .states = b->states, .stride = b->state_stride, .at = at,
        .first = array(b, A_FIRST), .state = array(b, A_STATE), .pos = array(b, A_POS), .n_items = b->n_items,
        .longest = b->longest, .conv_weight = l->conv, .conv_bias = l->conv_bias, .kernel = r->conv_kernel,
        .a_log = l->a_log, .dt_bias = l->dt_bias, .d = l->d, .n_heads = r->n_heads, .head_dim = r->head_dim,
        .n_groups = r->n_groups, .state_size = r->state_size, .log_rates = c->gguf, .ba_flat = r->ba_flat,
        .tiled = r->tiled, .per_row = r->per_row, .flat = r->z_apart, .dt_min = r->dt_min, .dt_max = r->dt_max,
        .rate_scale = r->rate_scale, .decay_least = r->decay_least };
}

/* The gate and the norm of the outputs of the recurrence. */
static struct gpu_gate gate_of(const struct gpu_backend *b, const struct dlayer *l, const struct gpu_state *s)
{
    const struct recurrent *r = &b->m->config.recurrent;
    struct gpu_gate o = { .x = s->out, .n = b->n, .width = s->width, .head_dim = s->head_dim, .z = s->in,
                          .ldz = s->n_in, .share = s->n_heads,
                          .w = l->gate_norm.present ? l->gate_norm.w : NULL, .eps = r->norm_eps };
    if (s->kind == GPU_STATE_MAMBA2) {
        o.size = s->width / (r->norm_groups > 1 ? r->norm_groups : 1);
        o.each = 1;
        o.norm_first = r->norm_first;
        return o;
    }
    o.size = s->head_dim;
    o.norm_first = 1;
    o.sigmoid = r->per_row || r->sigmoid_gate;
    if (s->flat) {
        o.z += s->channels;
        return o;
    }
    o.share = s->n_heads / s->n_groups;
    o.z_stride = 2 * s->state_size + 2 * o.share * s->head_dim;
    o.z += 2 * s->state_size + o.share * s->head_dim;
    return o;
}

/* Run a mixer with a state.  *out: the input of o. */
static int run_state(struct gpu_backend *b, const struct dlayer *l, int index, const struct input *in,
                     struct input *out, struct err *e)
{
    const struct recurrent *r = &b->m->config.recurrent;
    struct gpu_state s = state_of(b, l, index);
    const int floats = in_floats(b, &l->o);
    struct target to[3] = { { &l->in, b->state_in, s.n_in } };
    int n = 1;
    if (l->in_ba.w.data)
        to[n++] = (struct target){ &l->in_ba, b->state_ba, 2 * s.n_heads };
    if (l->in_z.w.data && !r->gate_rank)
        to[n++] = (struct target){ &l->in_z, b->state_in + s.channels, s.n_in };
    *out = (struct input){ .act = b->act_att, .stride = b->stride_att, .x = s.out, .ldx = s.width };
    if (s.kind == GPU_STATE_CONV) {
        s.act = floats ? NULL : b->act_att;
        s.act_stride = b->stride_att;
        s.order = order_of(b, b->n);
        out->x = s.conv;
    }
    if (run_linear(b, in, to, n, GPU_STORE, 1, 0, e) < 0 ||
        (s.per_row && s.kind == GPU_STATE_DELTA && run_row_gates(b, l, in, s.channels, s.width, s.n_in, e) < 0) ||
        gpu_state_conv(b->g, &s, e) < 0)
        return -1;
    if (s.kind == GPU_STATE_CONV)
        return 0;
    struct gpu_gate gate = gate_of(b, l, &s);
    gate.act = floats ? NULL : b->act_att;
    gate.act_stride = b->stride_att;
    gate.order = order_of(b, b->n);
    return gpu_state_scan(b->g, &s, e) < 0 ? -1 : gpu_state_gate(b->g, &gate, e);
}

/* ---- attention ---- */

struct gpu_step layers_step(const struct gpu_backend *b, int index)
{
    const int32_t *tail_of = array(b, A_TAIL);
    return (struct gpu_step){ .pos = array(b, A_POS), .table_of = in_tail_only(b, index) ? tail_of : array(b, A_TABLE),
                              .tail_of = tail_of, .tables = b->step + tables_at(b), .n = b->n };
}

/* The keys and values of a layer. */
static struct gpu_kv kv_of(const struct gpu_backend *b, int index)
{
    uint64_t at = 0, tail_at = 0;
    for (int i = b->layers.first; i < index; i++) {
        at += layer_kv_bytes(b, i);
        tail_at += layer_tail_bytes(b, i);
    }
    const struct gpu_kv_blocks blocks = { .base = b->kv, .stride = b->kv_stride,
                                          .head_stride = 2 * (uint64_t)b->kv_part,
                                          .layer_offset = at, .part = b->kv_part },
                               tail = { .base = b->kv + b->kv_stride * (size_t)b->o.n_blocks, .stride = b->tail_stride,
                                        .head_stride = 2 * (uint64_t)b->tail_part, .layer_offset = tail_at,
                                        .part = b->tail_part };
    if (in_tail_only(b, index))
        return (struct gpu_kv){ .blocks = tail, .type = KV_F16 };
    struct gpu_kv kv = { .blocks = blocks, .type = (int)b->o.kv.key, .rotated = kv_packed(b->o.kv.key),
                         .scales = (uint32_t)b->m->config.n_kv_heads * 2 * b->kv_part };
    if (has_tail(b))
        kv.tail = tail;
    return kv;
}

/* The factors on a layer's queries. */
static struct gpu_temper temper_of(const struct gpu_backend *b, int index)
{
    const struct config *c = &b->m->config;
    if (!c->temperature_roped && c->rope_of[index] >= 0)
        return (struct gpu_temper){ 0 };
    return (struct gpu_temper){ c->temperature_scale, c->temperature_floor, c->temperature_first };
}

/* Attention of the tokens that are not in tiles. */
static int run_decode_rows(struct gpu_backend *b, struct gpu_attention *a, struct err *e)
{
    const int at_once = partial_rows(b, b->splits);
    for (int i = 0; i < b->n_decode; i += a->n_rows) {
        a->rows = array(b, A_DECODE) + i;
        a->n_rows = b->n_decode - i < at_once ? b->n_decode - i : at_once;
        if (gpu_attn_decode(b->g, a, e) < 0)
            return -1;
    }
    return 0;
}

struct gpu_attention layers_attention(const struct gpu_backend *b, const struct dlayer *l, int index)
{
    const struct config *c = &b->m->config;
    const int table = c->rope_of[index], full = c->qk_norm == QK_NORM_FULL,
              floats = in_floats(b, &l->o) || l->attn_sub_norm.present;
    const struct gpu_kv kv = kv_of(b, index);
    struct gpu_prepare p = { .q = b->q, .k = b->k, .v = b->v, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads,
                             .head_dim = c->head_dim,
                             .norm = full || c->qk_norm == QK_NORM_NONE || (table < 0 && c->qk_norm_roped) ? 0
                                     : c->qk_norm_kind == NORM_RMS ? 1 : 2,
                             .norm_each = c->qk_norm == QK_NORM_EACH,
                             .norm_after_rope = c->qk_norm_after_rope, .qw = l->q_norm.w, .qb = l->q_norm.b,
                             .kw = l->k_norm.w, .kb = l->k_norm.b, .eps = c->qk_norm_eps,
                             .offset = c->qk_norm_offset, .temper = temper_of(b, index),
                             .step = layers_step(b, index), .kv = kv };
    if (table >= 0) {
        p.cosine = b->cosine[table];
        p.sine = b->sine[table];
        p.rope_dim = c->ropes[table].dim;
        p.rope_pairs = c->ropes[table].pairs;
    }
    return (struct gpu_attention){ .q = b->q, .out = floats ? b->attf : NULL, .act = floats ? NULL : b->act_att,
                                   .act_stride = b->stride_att, .order = order_of(b, b->n),
                                   .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
                                   .window = c->window[index], .chunk = c->chunk[index],
                                   .scale = c->attn_scale, .softcap = c->attn_softcap,
                                   .alibi = c->pos == POS_ALIBI ? b->alibi : NULL, .sinks = l->sinks,
                                   .gate = c->attn_gate ? b->att_gate : NULL,
                                   .gate_each = c->attn_gate == ATTN_GATE_HEAD ? c->head_dim : 1,
                                   .step = layers_step(b, index), .kv = kv, .partial = b->partial,
                                   .arrived = b->tickets, .prepare = p, .max_splits = b->splits,
                                   .tiles = b->step + tiles_at(b), .n_tiles = b->n_tiles };
}

static int run_attention(struct gpu_backend *b, const struct dlayer *l, int index, struct err *e)
{
    const struct config *c = &b->m->config;
    const int nq = c->n_heads * c->head_dim, nk = c->n_kv_heads * c->head_dim;
    if (c->qk_norm == QK_NORM_FULL) {
        struct gpu_norm o = { .present = 1, .w = l->q_norm.w, .eps = c->qk_norm_eps, .offset = c->qk_norm_offset,
                              .x = b->q, .ldx = nq, .out = b->q, .ldo = nq, .n = b->n, .cols = nq };
        if (gpu_norm(b->g, &o, e) < 0)
            return -1;
        o.w = l->k_norm.w;
        o.x = o.out = b->k;
        o.ldx = o.ldo = o.cols = nk;
        if (gpu_norm(b->g, &o, e) < 0)
            return -1;
    }
    struct gpu_attention a = layers_attention(b, l, index);
    memcpy(a.prepare.parts, b->qkv, sizeof a.prepare.parts);
    memset(b->qkv, 0, sizeof b->qkv);
    if (b->n_decode != 1 || !gpu_attn_prepares(&a.prepare)) {
        if (gpu_prepare(b->g, &a.prepare, e) < 0)
            return -1;
        a.prepare.head_dim = 0;
    }
    if (run_decode_rows(b, &a, e) < 0 || (b->n_tiles && gpu_attn_prefill(b->g, &a, e) < 0))
        return -1;
    return run_sub_norm(b, &l->attn_sub_norm, b->attf, nq, in_floats(b, &l->o) ? NULL : b->act_att, b->stride_att, e);
}

/* ---- latent attention ---- */

/* Multiply the rows of each head by its own input of the tokens: x [n][n_heads][x_head] to out
 * [n][n_heads][out_head]. */
static int run_heads(struct gpu_backend *b, const struct dlinear *l, const float *x, int x_head, float *out,
                     int out_head, struct err *e)
{
    const int n_heads = b->m->config.n_heads;
    const struct input in = { .x = x, .ldx = n_heads * x_head };
    struct gpu_linear o = begin(b, &in, GPU_STORE, 1, 0);
    o.w[0] = l->w;
    o.to[0] = (struct gpu_output){ l->bias, out, n_heads * out_head };
    o.n_mats = 1;
    o.head_rows = l->w.rows / n_heads;
    o.x_head = x_head;
    o.out_head = out_head;
    return gpu_matmul_f32(b->g, &o, e);
}

/* Compute the queries of all heads, and the latents with their keys. */
static int run_latent_inputs(struct gpu_backend *b, const struct dlayer *l, const struct input *in, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct mla *m = &c->mla;
    const int width = c->n_heads * (m->nope_dim + m->rope_dim), rank = m->q_rank;
    const struct target q = { &l->q, b->latent_heads, width }, q_a = { &l->q_a, b->latent_low, rank },
                        both[2] = { rank ? q_a : q, { &l->kv_a, b->k, c->head_dim } };
    if (run_linear(b, in, both, 2, GPU_STORE, 1, 0, e) < 0)
        return -1;
    if (!rank)
        return 0;
    const struct input low = { .act = b->act_low, .stride = b->stride_low, .x = b->latent_low, .ldx = rank };
    const struct gpu_norm norm = { .present = 1, .w = l->q_a_norm.w, .eps = m->norm_eps, .x = b->latent_low,
                                   .ldx = rank, .out = b->latent_low, .ldo = rank, .act = b->exact ? NULL : b->act_low,
                                   .act_stride = b->stride_low, .order = order_of(b, b->n), .n = b->n, .cols = rank };
    return gpu_norm(b->g, &norm, e) < 0 ? -1 : run_linear(b, &low, &q, 1, GPU_STORE, 1, 0, e);
}

/* Run latent attention in its absorbed form (cpu_mla.c), also for prompts.  *out: the input of
 * o. */
static int run_latent(struct gpu_backend *b, const struct dlayer *l, int index, const struct input *in,
                      struct input *out, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct mla *m = &c->mla;
    const int table = c->rope_of[index], dim = m->nope_dim + m->rope_dim, width = c->n_heads * m->v_dim;
    const struct gpu_latent x = { .heads = b->latent_heads, .q = b->q, .key = b->k, .n_heads = c->n_heads,
                                  .nope_dim = m->nope_dim, .rope_dim = m->rope_dim, .kv_rank = m->kv_rank,
                                  .cosine = table < 0 ? NULL : b->cosine[table],
                                  .sine = table < 0 ? NULL : b->sine[table],
                                  .rope_pairs = table < 0 ? 0 : c->ropes[table].pairs, .w = l->kv_norm.w,
                                  .eps = m->norm_eps, .temper = temper_of(b, index), .step = layers_step(b, index),
                                  .kv = kv_of(b, index) };
    struct gpu_attention a = { .q = b->q, .out = b->latent_sums, .n_heads = c->n_heads, .n_kv_heads = 1,
                               .head_dim = c->head_dim, .value_dim = m->kv_rank, .scale = c->attn_scale,
                               .step = layers_step(b, index), .kv = x.kv, .partial = b->partial, .arrived = b->tickets,
                               .max_splits = b->splits,
                               .tiles = b->step + tiles_at(b), .n_tiles = b->n_tiles };
    *out = (struct input){ .act = b->act_att, .stride = b->stride_att, .x = b->latent_heads, .ldx = width };
    if (run_latent_inputs(b, l, in, e) < 0 || gpu_latent(b->g, &x, e) < 0 ||
        run_heads(b, &l->k_b, b->latent_heads, dim, b->q, c->head_dim, e) < 0 || run_decode_rows(b, &a, e) < 0 ||
        (b->n_tiles && gpu_attn_latent(b->g, &a, e) < 0) ||
        run_heads(b, &l->v_b, b->latent_sums, m->kv_rank, b->latent_heads, m->v_dim, e) < 0)
        return -1;
    return in_floats(b, &l->o) ? 0 : gpu_act_pack(b->g, b->latent_heads, b->n, width, b->act_att, b->stride_att,
                                                  order_of(b, b->n), e);
}

/* ---- a step ---- */

/* Leave the sums of parts of q, k and v to gpu_prepare.  Returns 1 if they were launched; 0 if the
 * launch itself has to add them. */
static int leave_qkv(struct gpu_backend *b, const struct dlayer *l, const struct input *in, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dlinear *const one[3] = { &l->q, &l->k, &l->v };
    struct gpu_linear o = begin(b, in, GPU_PARTS, 1, 0);
    int units = 0, ld = 0;
    memset(b->qkv, 0, sizeof b->qkv);           /* a step that failed may have left its sums */
    if (!by_split(b) || !o.wgmma || c->attn_gate || c->clip_qkv > 0 || c->qk_norm == QK_NORM_FULL)
        return 0;
    for (int i = 0; i < 3; i++) {
        const struct gpu_mat *m = &one[i]->w;
        if (in_floats(b, one[i]) || in_int8(b, one[i]) || !alike(m, &l->q.w))
            return 0;
        o.w[o.n_mats++] = *m;
        units += gpu_split_hopper_units(m->n_tiles);
        ld += m->n_tiles * 32;
    }
    if (!gpu_matmul_split_hopper_takes(b->g, &o) || !parts_fit(&o, units))
        return 0;
    float *part = b->partial;
    for (int i = 0; i < 3; i++) {
        const struct gpu_mat *m = &one[i]->w;
        const int parts = gpu_split_hopper_parts(units, m->n_steps);
        b->qkv[i] = (struct gpu_part_sums){ .part = part, .ld = ld, .n_parts = parts, .tiles = m->data,
                                            .tile_bytes = m->tile_bytes, .bias = one[i]->bias };
        o.to[i] = (struct gpu_output){ .out = part, .ldo = ld };
        part += m->n_tiles * 32;
    }
    return gpu_matmul_split(b->g, &o, e) < 0 ? -1 : 1;
}

/* Run the mixer of a layer.  *out: the input of o. */
static int run_mixer(struct gpu_backend *b, const struct dlayer *l, int index, const struct input *in,
                     struct input *out, struct err *e)
{
    const struct config *c = &b->m->config;
    const int nq = c->n_heads * c->head_dim, nk = c->n_kv_heads * c->head_dim;
    if (mixer_has_state(c->mixer[index]))
        return run_state(b, l, index, in, out, e);
    if (c->mixer[index] == MIXER_MLA)
        return run_latent(b, l, index, in, out, e);
    const struct target qkv[3] = { { &l->q, b->q, nq }, { &l->k, b->k, nk }, { &l->v, b->v, nk } },
                        gate = { &l->q_gate, b->att_gate, c->attn_gate == ATTN_GATE_HEAD ? c->n_heads : nq };
    *out = (struct input){ .act = b->act_att, .stride = b->stride_att, .x = b->attf, .ldx = nq };
    const int left = leave_qkv(b, l, in, e);
    return left < 0 || (!left && run_linear(b, in, qkv, 3, GPU_STORE, 1, c->clip_qkv, e) < 0) ||
           (c->attn_gate && run_linear(b, in, &gate, 1, GPU_STORE, 1, 0, e) < 0) ? -1 : run_attention(b, l, index, e);
}

static int add_mixed(struct gpu_backend *b, const struct dlayer *l, int index, struct err *e)
{
    return add_residual(b, &l->o, &b->mixed, &l->attn_post_norm, index, TP_MIXER, e);
}

/* The first half of a layer: its mixer.  In parallel blocks the MLP's input is computed before the
 * mixer changes the buffers, and the MLP is added first, as on the CPU. */
static int run_first(struct gpu_backend *b, int index, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dlayer *l = dweights_layer(b->w, index);
    struct input in, in_mlp;
    if (dweights_need(b->w, index, e) < 0)
        return -1;
    if (c->mixer[index] == MIXER_NONE)
        return 0;
    if (run_norm(b, &l->attn_norm, b->x, b->act, b->hf, &in, e) < 0)
        return -1;
    in_mlp = in;
    if (c->block == BLOCK_PARALLEL2 && run_norm(b, &l->mlp_norm, b->x, b->act2, b->hf2, &in_mlp, e) < 0)
        return -1;
    if (run_mixer(b, l, index, &in, &b->mixed, e) < 0)
        return -1;
    return c->block == BLOCK_SEQUENTIAL ? add_mixed(b, l, index, e) : run_ff(b, l, index, &in_mlp, e);
}

/* The second half: the MLP, or in parallel blocks the output of the mixer. */
static int run_second(struct gpu_backend *b, int index, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dlayer *l = dweights_layer(b->w, index);
    struct input in;
    if (c->mixer[index] != MIXER_NONE && c->block != BLOCK_SEQUENTIAL)
        return add_mixed(b, l, index, e);
    if (c->ff[index] == FF_NONE)
        return 0;
    struct gpu_norm norm;
    b->normed = router_norms(b, l, index, &norm) ? &l->mlp_norm : b->normed;
    return run_norm(b, &l->mlp_norm, b->x, b->act, b->hf, &in, e) < 0 ? -1 : run_ff(b, l, index, &in, e);
}

static int run_layer(struct gpu_backend *b, int index, struct err *e)
{
    return run_first(b, index, e) < 0 ? -1 : run_second(b, index, e);
}

/* The rotations of the layers. */
static struct gpu_ropes ropes_of(const struct gpu_backend *b)
{
    static_assert((int)MAX_ROPES == (int)GPU_MOST_ROPES, "a launch has all tables");
    const struct config *c = &b->m->config;
    struct gpu_ropes o = { .n_tables = c->n_ropes, .pos = array(b, A_POS), .is_long = array(b, A_LONG) };
    for (int i = 0; i < c->n_ropes; i++)
        o.table[i] = (struct gpu_rope){ .cosine = b->cosine[i], .sine = b->sine[i], .dim = c->ropes[i].dim,
                                        .freq = b->freq[i], .freq_long = b->freq_long[i], .scale = c->ropes[i].scale,
                                        .scale_long = c->ropes[i].scale_long };
    return o;
}

/* ropes: tables to compute in the same launch, or NULL. */
static int run_embed(struct gpu_backend *b, const struct gpu_ropes *ropes, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dends *w = dweights_ends(b->w);
    const int32_t *token = array(b, A_TOKEN), *pos = array(b, A_POS);
    if (dweights_need(b->w, DWEIGHTS_FIRST, e) < 0)
        return -1;
    if (w->embed_in.w.data) {
        const struct gpu_mat none = { .cols = c->hidden_size, .n_steps = (c->hidden_size + 31) / 32 };
        const struct input in = { .x = b->hf, .ldx = c->embed_size };
        struct gpu_linear l = begin(b, &in, GPU_ADD, 1, 0);
        l.w[0] = w->embed_in.w;
        l.to[0] = (struct gpu_output){ w->embed_in.bias, b->x, c->hidden_size };
        l.n_mats = 1;
        if (gpu_embed(b->g, b->hf, &w->embed.w, token, b->ids, pos, b->n, c->embed_scale, NULL, 0, ropes, e) < 0 ||
            gpu_embed(b->g, b->x, &none, token, b->ids, pos, b->n, 1, w->pos_embed, c->pos_offset, NULL, e) < 0 ||
            gpu_matmul_f32(b->g, &l, e) < 0)
            return -1;
    } else if (gpu_embed(b->g, b->x, &w->embed.w, token, b->ids, pos, b->n, c->embed_scale, w->pos_embed, c->pos_offset,
                         ropes, e) < 0) {
        return -1;
    }
    if (w->embed_norm.present &&
        gpu_norm(b->g, &(struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = 1, .w = w->embed_norm.w,
                                           .b = w->embed_norm.b, .eps = c->norm_eps, .offset = c->norm_offset,
                                          .x = b->x, .ldx = c->hidden_size, .out = b->x, .ldo = c->hidden_size,
                                          .n = b->n, .cols = c->hidden_size }, e) < 0)
        return -1;
    return 0;
}

static int run_ropes(struct gpu_backend *b, struct err *e)
{
    const struct gpu_ropes o = ropes_of(b);
    return gpu_rope_table(b->g, &o, b->n, e);
}

int layers_logits(struct gpu_backend *b, int first, int n, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dends *w = dweights_ends(b->w);
    const int all = b->n;
    const int floats = in_floats(b, &w->head), through = w->embed_out.w.data != NULL;
    struct input in = { .act = b->act, .stride = b->stride_hidden, .x = b->y, .ldx = c->hidden_size };
    if (dweights_need(b->w, c->n_layers, e) < 0 ||
        gpu_norm(b->g, &(struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = w->final_norm.present,
                                           .w = w->final_norm.w, .b = w->final_norm.b, .eps = c->norm_eps,
                                          .offset = c->norm_offset, .x = b->x, .ldx = c->hidden_size,
                                          .rows = array(b, A_LOGIT) + first,
                                          .out = floats || through ? b->y : NULL, .ldo = c->hidden_size,
                                          .act = floats || through ? NULL : b->act,
                                          .act_stride = b->stride_hidden, .order = order_of(b, n), .n = n,
                                          .cols = c->hidden_size }, e) < 0)
        return -1;
    b->n = n;
    int rc = 0;
    if (through) {
        struct gpu_linear l = begin(b, &in, GPU_STORE, 1, 0);
        l.w[0] = w->embed_out.w;
        l.to[0] = (struct gpu_output){ w->embed_out.bias, b->hf, c->embed_size };
        l.n_mats = 1;
        rc = gpu_matmul_f32(b->g, &l, e);
        in.x = b->hf;
        in.ldx = c->embed_size;
        if (rc == 0 && !floats)
            rc = gpu_act_pack(b->g, b->hf, n, c->embed_size, b->act, b->stride_hidden, order_of(b, n), e);
    }
    if (rc == 0)
        rc = run_linear(b, &in, &(struct target){ &w->head, b->logits, c->vocab_size }, 1, GPU_LOGITS, c->logit_scale,
                        c->final_softcap, e);
    b->n = all;
    return rc;
}

int layers_hidden(struct gpu_backend *b, int first, int n, struct err *e)
{
    const struct config *c = &b->m->config;
    const struct dnorm *norm = &dweights_ends(b->w)->final_norm;
    if (dweights_need(b->w, c->n_layers, e) < 0)
        return -1;
    return gpu_norm(b->g, &(struct gpu_norm){ .layer_norm = c->norm == NORM_LAYER, .present = norm->present,
                                              .w = norm->w, .b = norm->b, .eps = c->norm_eps, .offset = c->norm_offset,
                                             .x = b->x + (size_t)first * (size_t)c->hidden_size, .ldx = c->hidden_size,
                                             .out = b->y, .ldo = c->hidden_size, .n = n,
                                             .cols = c->hidden_size }, e);
}

/* ---- a group of devices that share every layer ---- */

/* Add the partial sums of a half of a layer, on all devices. */
static int add_partial(struct tp_group *t, int index, int half, struct err *e)
{
    float *y[BACKEND_MOST_GPUS];
    for (int i = 0; i < t->n; i++)
        y[i] = t->rank[i]->y;
    if (all_reduce_sum(t->sums, y, (size_t)t->rank[0]->n * (size_t)t->rank[0]->m->config.hidden_size, e) < 0)
        return -1;
    for (int i = 0; i < t->n; i++) {
        struct gpu_backend *b = t->rank[i];
        const struct dlayer *l = dweights_layer(b->w, index);
        if (gpu_use(b->g, e) < 0 || add_normed(b, half == TP_MIXER ? &l->attn_post_norm : &l->mlp_post_norm, e) < 0)
            return -1;
    }
    return 0;
}

/* Run one call of a layer (run_first, run_second) on all devices; if it leaves partial sums, of
 * this half of the layer, add them. */
static int run_shared(struct tp_group *t, int index, int (*run)(struct gpu_backend *b, int index, struct err *e),
                      int half, struct err *e)
{
    for (int i = 0; i < t->n; i++)
        if (gpu_use(t->rank[i]->g, e) < 0 || run(t->rank[i], index, e) < 0)
            return -1;
    return is_partial(t->rank[0], index, half) ? add_partial(t, index, half, e) : 0;
}

static int run_shared_layer(struct tp_group *t, int index, struct err *e)
{
    const struct config *c = &t->rank[0]->m->config;
    const int parallel = c->mixer[index] != MIXER_NONE && c->block != BLOCK_SEQUENTIAL;
    int first = parallel ? TP_FF : TP_MIXER, second = parallel ? TP_MIXER : TP_FF;
    first = c->mixer[index] == MIXER_NONE ? 0 : first;
    second = !parallel && c->ff[index] == FF_NONE ? 0 : second;
    if (run_shared(t, index, run_first, first, e) < 0 || run_shared(t, index, run_second, second, e) < 0)
        return -1;
    for (int i = 0; i < t->n; i++)
        if (gpu_use(t->rank[i]->g, e) < 0 || dweights_done(t->rank[i]->w, index, e) < 0)
            return -1;
    return 0;
}

/* Run all layers on all devices, in turn up to each sum.  The first one is selected afterwards. */
static int run_group(struct tp_group *t, struct err *e)
{
    struct gpu_backend *lead = t->rank[0];
    float *x[BACKEND_MOST_GPUS];
    for (int i = 0; i < t->n; i++)
        x[i] = t->rank[i]->x;
    if (lead->layers.first == 0 &&
        (run_embed(lead, NULL, e) < 0 || watch_layer(lead, -1, e) < 0 ||
         all_reduce_spread(t->sums, x, (size_t)lead->n * (size_t)lead->m->config.hidden_size, e) < 0))
        return -1;
    for (int i = 0; i < t->n; i++)
        if (gpu_use(t->rank[i]->g, e) < 0 || run_ropes(t->rank[i], e) < 0)
            return -1;
    for (int i = lead->layers.first; i < lead->layers.end; i++)
        if (run_shared_layer(t, i, e) < 0 || gpu_use(lead->g, e) < 0 || watch_layer(lead, i, e) < 0)
            return -1;
    return gpu_use(lead->g, e);
}

int layers_run(struct gpu_backend *b, struct err *e)
{
    b->normed = NULL;
    b->adds = NULL;
    if (b->group)
        return run_group(b->group, e);
    const struct gpu_ropes ropes = ropes_of(b);
    if (b->layers.first > 0 ? run_ropes(b, e) < 0 : run_embed(b, &ropes, e) < 0 || watch_layer(b, -1, e) < 0)
        return -1;
    if (one_token_takes(b))
        return one_token_run(b, e);
    for (int i = b->layers.first; i < b->layers.end; i++)
        if (run_layer(b, i, e) < 0 || watch_layer(b, i, e) < 0 || dweights_done(b->w, i, e) < 0)
            return -1;
    return 0;
}

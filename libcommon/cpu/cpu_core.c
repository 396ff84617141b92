/* cpu_core.c - run a layer on the CPU: norms, the mixer, the feed-forward half.  Its memory is in
 * cpu_memory.c, linear layers are in cpu_linear.c, attention in cpu_attn.c.
 *
 * Parallel loops of a layer, after each of which all threads synchronize: q, k, v; attention with
 * rotation and storing keys and values; o; gate, up and the activation; down.  The calling thread
 * computes norms and quantizes activations alone if that is little work (decoding); otherwise these
 * are parallel loops, too.  Every output element is computed by one job in an order that does not
 * depend on other jobs, so results are bit-identical for every number of threads and every
 * batch. */
#include "libcommon/cpu/internal.h"

#include <math.h>
#include <string.h>

#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/cpu_ops.h"
#include "libcommon/model/arch.h"

/* ---- rows ---- */

struct row_job {
    const struct core *k;
    const struct norm *norm;
    /* [n, cols] each.  Without add: out = norm(x).  With add: out = norm(add) and sum += residual *
     * out; with after_add: sum = norm(sum + residual * add). */
    const float *x, *add;
    float *out, *sum;
    int n, cols, after_add;
};

void core_norm_row(const struct core *k, float *out, const float *x, const struct norm *norm, int n)
{
    const struct config *c = k->c;
    if (c->norm == NORM_RMS)
        k->k->rms_norm(out, x, norm->w, n, c->norm_eps, c->norm_offset);
    else
        k->k->layer_norm(out, x, norm->w, norm->b, n, c->norm_eps);
}

static void norm_rows(void *arg, int i, int thread)
{
    (void)thread;
    const struct row_job *j = arg;
    const size_t cols = (size_t)j->cols;
    for (int r = i * ROW_JOB; r < j->n && r < (i + 1) * ROW_JOB; r++) {
        const size_t at = (size_t)r * cols;
        if (!j->add) {
            core_norm_row(j->k, j->out + at, j->x + at, j->norm, j->cols);
        } else if (j->after_add) {
            j->k->k->add(j->sum + at, j->sum + at, j->add + at, j->k->residual, j->cols);
            core_norm_row(j->k, j->sum + at, j->sum + at, j->norm, j->cols);
        } else {
            core_norm_row(j->k, j->out + at, j->add + at, j->norm, j->cols);
            j->k->k->add(j->sum + at, j->sum + at, j->out + at, j->k->residual, j->cols);
        }
    }
}

static void rows_run(struct core *k, struct row_job *j)
{
    j->k = k;
    const int n_jobs = (j->n + ROW_JOB - 1) / ROW_JOB;
    if ((size_t)j->n * (size_t)j->cols <= SERIAL)
        for (int i = 0; i < n_jobs; i++)
            norm_rows(j, i, 0);
    else
        pool_run(k->pool, n_jobs, norm_rows, j);
}

/* The input of a block: h = norm(x), or x itself without a norm. */
static const float *pre_norm(struct core *k, const struct norm *norm, const float *x, float *h, int n)
{
    if (!norm->present)
        return x;
    rows_run(k, &(struct row_job){ .norm = norm, .x = x, .out = h, .n = n, .cols = k->c->hidden_size });
    return h;
}

/* Apply bitnet's norm to the input of o or down, in place. */
static void sub_norm(struct core *k, const struct norm *norm, float *x, int n, int cols)
{
    if (norm->present)
        rows_run(k, &(struct row_job){ .norm = norm, .x = x, .out = x, .n = n, .cols = cols });
}

/* x += l(in), or x += post(l(in)) if the layer has a norm there; y is a buffer of the size of x. */
static void add_residual(struct core *k, const struct linear *l, const struct act_input *in, const struct norm *post,
                         float *x, float *y, int n, const struct next_loop *prefetch)
{
    const size_t hidden = (size_t)k->c->hidden_size;
    if (!post->present) {
        core_linear(k, &(struct op){ .l = l, .in = in, .out = x, .ldo = hidden, .kind = OP_ADD,
                                     .scale = k->residual }, 1, n, prefetch);
        return;
    }
    core_linear(k, &(struct op){ .l = l, .in = in, .out = y, .ldo = hidden, .kind = OP_STORE }, 1, n, prefetch);
    core_add_normed(k, post, y, x, n);
}

void core_add_normed(struct core *k, const struct norm *norm, float *y, float *x, int n)
{
    const struct config *c = k->c;
    rows_run(k, &(struct row_job){ .norm = norm, .add = y, .out = y, .sum = x, .n = n, .cols = c->hidden_size,
                                   .after_add = c->norm_after_add });
}

/* ---- a layer ---- */

int core_hook(const struct core *k, int layer, int role, const struct act_input *in, int n)
{
    return k->hook && k->hook->input && k->hook->input(k->hook->user, layer, role, in->x, in->ldx, n, in->cols);
}

static int run_mlp(struct core *k, const struct layer *l, int index, const struct act_input *in, float *x, int n)
{
    const int gated = k->c->gated, size = config_mlp_size(k->c, index);
    float act[N_XIELU] = { 0 };
    struct act_input down;
    if (k->c->xielu)
        memcpy(act, k->c->xielu + (size_t)index * N_XIELU, sizeof act);
    else if (l->act_alpha_p)
        memcpy(act, (const float[N_XIELU]){ *l->act_alpha_p, *l->act_alpha_n, *l->act_beta, *l->act_eps }, sizeof act);
    if (k->c->cutoff && k->c->cutoff[index] != 0)
        altup_sparse_mlp(k, l, index, in, n);
    else
        core_linear(k, &(struct op){ .l = gated ? &l->gate : &l->up, .up = gated ? &l->up : NULL, .in = in,
                                     .out = k->mlp, .ldo = (size_t)size, .kind = OP_MLP, .act = act }, 1, n,
                    core_next(k, index, LOOP_UP));
    sub_norm(k, &l->mlp_sub_norm, k->mlp, n, size);
    core_layer_input(k, &down, k->mlp, size, n, l, INPUT_DOWN);
    if (core_hook(k, index, ROLE_DOWN, &down, n))
        return 1;
    const float residual = k->residual;
    k->residual *= k->c->down_scale != 0 ? k->c->down_scale : 1;
    add_residual(k, &l->down, &down, &l->mlp_post_norm, x, k->h[0], n, core_next(k, index, LOOP_DOWN));
    k->residual = residual;
    return 0;
}

/* x += the feed-forward half of the layer, applied to `in`. */
static int run_ff(struct core *k, const struct layer *l, int index, const struct act_input *in, float *x, int n)
{
    if (core_hook(k, index, k->c->gated ? ROLE_GATE : ROLE_UP, in, n))
        return 1;
    if (k->c->ff[index] != FF_MOE)
        return run_mlp(k, l, index, in, x, n);
    if (!l->mlp_post_norm.present)
        return moe_run(k, l, index, in, in, x, n);
    memset(k->sum, 0, (size_t)n * (size_t)k->c->hidden_size * sizeof *k->sum);
    moe_run(k, l, index, in, in, k->sum, n);
    core_add_normed(k, &l->mlp_post_norm, k->sum, x, n);
    return 0;
}

/* Compute the input of the router beside an MLP (gemma4): x, normed and scaled on its own. */
void core_beside_router(struct core *k, const struct layer *l, const float *x, float *out, int n)
{
    const int hidden = k->c->hidden_size;
    const float by = 1 / sqrtf((float)hidden);
    const struct norm norm = { .w = l->router_scale, .present = 1 };
    rows_run(k, &(struct row_job){ .norm = &norm, .x = x, .out = out, .n = n, .cols = hidden });
    for (size_t i = 0; i < (size_t)n * (size_t)hidden; i++)
        out[i] *= by;
}

/* x += post_norm(k->beside[0] + experts), the outputs of the MLP and of the experts; `experts` is
 * overwritten. */
void core_beside_end(struct core *k, const struct layer *l, float *experts, float *x, int n)
{
    const int hidden = k->c->hidden_size;
    float *dense = k->beside[0];
    rows_run(k, &(struct row_job){ .norm = &l->expert_post_norm, .x = experts, .out = experts, .n = n,
                                   .cols = hidden });
    k->k->add(dense, dense, experts, 1, n * hidden);
    rows_run(k, &(struct row_job){ .norm = &l->mlp_post_norm, .add = dense, .out = dense, .sum = x, .n = n,
                                   .cols = hidden });
}

/* x += post_norm(MLP + experts), where both have norms of their own (gemma4).  h, the input of the
 * MLP, is overwritten.  Returns 1 if the hook stopped it. */
static int run_beside(struct core *k, const struct layer *l, int index, float *h, const struct act_input *in, float *x,
                      int n)
{
    const struct config *c = k->c;
    const size_t hidden = (size_t)c->hidden_size;
    const int size = config_mlp_size(c, index);
    struct act_input down, experts, router = { .x = k->beside[1], .ldx = hidden, .cols = c->hidden_size };
    float *dense = k->beside[0], *chosen = k->beside[1];
    if (core_hook(k, index, ROLE_GATE, in, n))
        return 1;
    core_linear(k, &(struct op){ .l = &l->gate, .up = &l->up, .in = in, .out = k->mlp, .ldo = (size_t)size,
                                 .kind = OP_MLP }, 1, n, NULL);
    core_layer_input(k, &down, k->mlp, size, n, l, INPUT_DOWN);
    if (core_hook(k, index, ROLE_DOWN, &down, n))
        return 1;
    core_linear(k, &(struct op){ .l = &l->down, .in = &down, .out = dense, .ldo = hidden, .kind = OP_STORE }, 1, n,
                NULL);
    rows_run(k, &(struct row_job){ .norm = &l->dense_post_norm, .x = dense, .out = dense, .n = n,
                                   .cols = (int)hidden });
    rows_run(k, &(struct row_job){ .norm = &l->expert_norm, .x = x, .out = h, .n = n, .cols = (int)hidden });
    core_layer_input(k, &experts, h, c->hidden_size, n, l, INPUT_MLP);
    if (core_hook(k, index, ROLE_EXPERT_GATE, &experts, n))
        return 1;
    core_beside_router(k, l, x, chosen, n);
    moe_route(k, l, &router, n);
    memset(chosen, 0, (size_t)n * hidden * sizeof *chosen);
    moe_run(k, l, index, NULL, &experts, chosen, n);
    core_beside_end(k, l, chosen, x, n);
    return 0;
}

/* Run attention of a layer that has keys and values of its own; *out is set to k->att.  Returns 1
 * if the hook stopped it. */
static int run_attention(struct core *k, const struct step *s, const struct layer *l, int index, const float *h,
                         const float **out, int *cols)
{
    const struct config *c = k->c;
    const int n = s->n_tokens, q_cols = c->n_heads * config_head_dim(c, index),
              kv_cols = config_kv_heads(c, index) * config_head_dim(c, index);
    struct act_input in;
    core_layer_input(k, &in, h, c->predicts == PREDICTS_BESIDE ? 2 * c->hidden_size : c->hidden_size, n, l, INPUT_QKV);
    if (core_hook(k, index, ROLE_Q, &in, n))
        return 1;
    const struct op ops[] = {
        { .l = &l->q, .in = &in, .out = k->q, .ldo = (size_t)q_cols, .kind = OP_STORE, .limit = c->clip_qkv },
        { .l = &l->k, .in = &in, .out = k->key, .ldo = (size_t)kv_cols, .kind = OP_STORE, .limit = c->clip_qkv },
        { .l = &l->v, .in = &in, .out = k->value, .ldo = (size_t)kv_cols, .kind = OP_STORE, .limit = c->clip_qkv },
        { .l = &l->q_gate, .in = &in, .out = k->state.gate, .ldo = (size_t)state_gates(c), .kind = OP_STORE } };
    struct op here[4];
    /* layers that share keys, or use keys as values, have fewer matrices */
    int n_ops = 0;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i].l->w.data)
            here[n_ops++] = ops[i];
    core_linear(k, here, n_ops, n, core_next(k, index, LOOP_QKV));
    if (!config_indexes(c, index) || !blocks_run(k, s, l, index, &in))
        attn_run(k, s, l, index);
    if (c->attn_gate)
        state_gate(k, k->att, n, q_cols);
    sub_norm(k, &l->attn_sub_norm, k->att, n, q_cols);
    *out = k->att;
    *cols = c->n_heads * config_value_dim(c, index);
    return 0;
}

/* x += attention and a state in parallel, each scaled (falcon_h1). */
static int run_both(struct core *k, const struct step *s, const struct layer *l, int index, const float *h, float *x)
{
    const struct config *c = k->c;
    const struct { const struct linear *out; float scale; enum layer_input input; int role; } half[] = {
        { &l->state_o, c->state_out_scale, INPUT_STATE_O, ROLE_STATE_O },
        { &l->o, c->attn_out_scale, INPUT_O, ROLE_O } };
    const float *mixed;
    struct act_input in;
    int cols;
    for (int i = 0; i < 2; i++) {
        if (i == 0 ? state_run(k, s, l, index, h, &mixed, &cols) : run_attention(k, s, l, index, h, &mixed, &cols))
            return 1;
        core_layer_input(k, &in, mixed, cols, s->n_tokens, l, half[i].input);
        if (core_hook(k, index, half[i].role, &in, s->n_tokens))
            return 1;
        core_linear(k, &(struct op){ .l = half[i].out, .in = &in, .out = x, .ldo = (size_t)c->hidden_size,
                                     .kind = OP_ADD, .scale = k->residual * half[i].scale }, 1, s->n_tokens, NULL);
    }
    return 0;
}

/* minimax: set x to h, the normed x, times the first factor of this half of the layer (`which`).
 * The second factor will scale the output that is added to x. */
static void renorm(struct core *k, const float *h, float *x, int n, int which)
{
    const float *by = k->c->renorm[which];
    const size_t all = (size_t)n * (size_t)k->c->hidden_size;
    if (k->c->renorm[0][0] == 0)
        return;
    for (size_t i = 0; i < all; i++)
        x[i] = h[i] * by[0];
    k->residual = by[1];
}

/* Run the mixer of a layer, up to the input of o. */
static int run_mixer(struct core *k, const struct step *s, const struct layer *l, int index, const float *h,
                     const float **out, int *cols)
{
    switch ((enum mixer_kind)k->c->mixer[index]) {
    case MIXER_MLA:       return mla_run(k, s, l, index, h, out, cols);
    case MIXER_COMPRESSED: return compress_run(k, s, l, index, h, out, cols);
    case MIXER_CONV: case MIXER_MAMBA2: case MIXER_DELTA: case MIXER_MAMBA1: case MIXER_LIGHTNING:
        return state_run(k, s, l, index, h, out, cols);
    case MIXER_ATTENTION: case MIXER_NONE: case MIXER_BOTH: break;
    }
    return run_attention(k, s, l, index, h, out, cols);
}

static int run_layer(struct core *k, const struct step *s, const struct layer *l, int index, float *x)
{
    const struct config *c = k->c;
    const int n = s->n_tokens, hidden = c->hidden_size;
    struct act_input o, in_mlp;
    const float *h, *mixed;
    int cols;
    if (config_ngram(c, index) >= 0)
        ngram_run(k, s, l, index);
    if (c->mixer[index] == MIXER_NONE)
        goto feed;
    h = c->hyper.n ? hyper_enter(k, l, 0, &l->attn_norm, x, n)
        : c->predicts == PREDICTS_BESIDE ? k->pair : pre_norm(k, &l->attn_norm, x, k->h[0], n);
    renorm(k, h, x, n, !mixer_has_state(c->mixer[index]));
    if (c->mixer[index] == MIXER_BOTH) {
        if (run_both(k, s, l, index, h, x))
            return 1;
        goto feed;
    }
    if (c->block != BLOCK_SEQUENTIAL)           /* both halves read the input of the layer */
        core_layer_input(k, &in_mlp, c->block == BLOCK_PARALLEL ? h : pre_norm(k, &l->mlp_norm, x, k->h[1], n),
                         hidden, n, l, INPUT_MLP);
    if (c->laurel_rank)
        altup_laurel(k, l, h, n);
    if (run_mixer(k, s, l, index, h, &mixed, &cols))
        return 1;
    core_layer_input(k, &o, mixed, cols, n, l, INPUT_O);
    if (core_hook(k, index, ROLE_O, &o, n))
        return 1;
    /* the MLP first, because k->h[0] may be its input */
    if (c->block != BLOCK_SEQUENTIAL) {
        /* if the hook stopped the MLP, its caller adds the MLP's output itself; attention is always
         * added here */
        const int stopped = run_ff(k, l, index, &in_mlp, x, n);
        add_residual(k, &l->o, &o, &l->attn_post_norm, x, k->h[0], n, core_next(k, index, LOOP_O));
        return stopped;
    }
    add_residual(k, &l->o, &o, &l->attn_post_norm, x, k->h[0], n, core_next(k, index, LOOP_O));
    if (c->laurel_rank)
        altup_add_laurel(k, x, n);
    if (c->hyper.n)
        hyper_leave(k, x, n);
feed:
    if (c->ff[index] == FF_NONE)
        return 0;
    h = c->hyper.n ? hyper_enter(k, l, 1, &l->mlp_norm, x, n) : pre_norm(k, &l->mlp_norm, x, k->h[0], n);
    renorm(k, h, x, n, 2);
    core_layer_input(k, &in_mlp, h, hidden, n, l, INPUT_MLP);
    if (c->moe.beside && c->ff[index] == FF_MOE ? run_beside(k, l, index, k->h[0], &in_mlp, x, n)
                                                : run_ff(k, l, index, &in_mlp, x, n))
        return 1;
    if (c->hyper.n)
        hyper_leave(k, x, n);
    return c->n_streams ? 0 : ple_run(k, l, index, x, n);
}

int core_layer(struct core *k, const struct step *s, const struct layer *l, int index, float *x)
{
    if (!k->c->n_streams)
        return run_layer(k, s, l, index, x);
    altup_predict(k, l, x, s->n_tokens);
    if (run_layer(k, s, l, index, x))
        return 1;
    altup_correct(k, l, index, x, s->n_tokens);
    return 0;
}

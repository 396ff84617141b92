/* cpu_state.c - mixers with a state, as described in model.h: short convolutions (lfm2), Mamba2,
 * gated delta net.
 *
 * Tokens go through a recurrence one by one, so a state depends neither on the division of a prompt
 * nor on the rest of the batch.  (Algorithms that process a chunk of tokens at once would be faster
 * for long prompts, but add in another order.)  Threads divide heads and runs of channels. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_ops.h"

enum { RUN = 64, NORM_ROWS = 8 };       /* channels per job; rows per job */

struct state_job {
    struct core *k;
    const struct step *s;
    const struct layer *l;
    const struct recurrent *r;
    int kind, n_in, channels, width, n_runs, index;
};
/* Channels [to, to + n) of the convolution, which are columns [from, from + n) of the projection.
 * part, for the delta net: 0 a query, 1 a key, 2 values. */
struct channel_run { int from, to, n, part; };

/* ---- memory ---- */

static size_t in_rows(const struct config *c, int layer)
{
    int64_t rows, cols, z = 0, f = 0;
    config_linear_shape(c, layer, ROLE_IN, &rows, &cols);
    if (c->mixer[layer] == MIXER_DELTA || c->mixer[layer] == MIXER_LIGHTNING) {
        config_linear_shape(c, layer, ROLE_IN_Z, &z, &cols);
        config_linear_shape(c, layer, ROLE_IN_F, &f, &cols);
    }
    return (size_t)(rows + z + f);
}

/* Compute the floats per token in each buffer: the maximum over the layers. */
static void widths(const struct config *c, size_t *in, size_t *channels, size_t *width)
{
    *in = *channels = *width = 0;
    for (int i = 0; i < c->n_layers; i++)
        if (mixer_has_state(c->mixer[i])) {
            const size_t n = in_rows(c, i), m = (size_t)recurrent_channels(c, i), w = (size_t)recurrent_width(c, i);
            *in = n > *in ? n : *in;
            *channels = m > *channels ? m : *channels;
            *width = w > *width ? w : *width;
        }
}

static size_t gate_floats(const struct config *c)
{
    return c->attn_gate ? (size_t)state_gates(c) : 0;
}

/* The number of outputs of Mamba1's x_proj; 0: there are no such layers. */
static size_t low_floats(const struct config *c)
{
    return config_has_mixer(c, MIXER_MAMBA1) ? (size_t)(c->recurrent.dt_rank + 2 * c->recurrent.state_size) : 0;
}

size_t state_floats(const struct config *c)
{
    size_t in, channels, width;
    widths(c, &in, &channels, &width);
    return in + channels + width + 2 * (size_t)c->recurrent.n_heads + gate_floats(c) +
           2 * (size_t)c->recurrent.gate_rank + low_floats(c);
}

int state_open(struct core *k, struct err *e)
{
    struct state_work *w = &k->state;
    const size_t t = (size_t)k->max_tokens, floats = t * state_floats(k->c);
    size_t in, channels, width;
    widths(k->c, &in, &channels, &width);
    if (!(w->in = malloc(floats * sizeof *w->in)))
        return err_nomem(e, "activations");
    w->conv = w->in + t * in;
    w->out = w->conv + t * channels;
    w->ba = w->out + t * width;
    w->gate = w->ba + t * 2 * (size_t)k->c->recurrent.n_heads;
    w->low = w->gate + t * gate_floats(k->c);
    k->bytes += floats * sizeof *w->in;
    return 0;
}

void state_close(struct core *k)
{
    free(k->state.in);
    k->state = (struct state_work){ 0 };
}

/* Returns the state of an item in this layer: input rows of the convolution, then the states of the
 * heads. */
static float *state_of(const struct state_job *j, int item)
{
    return j->k->states + (size_t)j->s->items[item].state * j->k->state_stride + j->s->state_at;
}

/* ---- the convolution ---- */

static struct channel_run run_of(const struct state_job *j, int i)
{
    const struct recurrent *r = j->r;
    if (j->kind != MIXER_DELTA) {
        const int to = i * RUN, before = j->kind == MIXER_CONV ? 2 * j->width : j->kind == MIXER_MAMBA1 ? 0 : j->width;
        return (struct channel_run){ before + to, to, j->channels - to < RUN ? j->channels - to : RUN, 2 };
    }
    const int group = i / 3, part = i % 3, key = r->state_size, values = r->n_heads / r->n_groups * r->head_dim,
              keys = r->n_groups * key;
    const int to = part < 2 ? part * keys + group * key : 2 * keys + group * values;
    return (struct channel_run){ r->z_apart ? to : group * (2 * key + 2 * values) + part * key, to,
                                 part < 2 ? key : values,
                         part };
}

static void add_product(float *restrict out, const float *restrict x, const float *restrict w, int n)
{
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int e = 0; e < 16; e++)
            out[i + e] += x[i + e] * w[i + e];
    for (; i < n; i++)
        out[i] += x[i] * w[i];
}

static void multiply(float *restrict x, const float *restrict by, int n)
{
    for (int i = 0; i < n; i++)
        x[i] *= by[i];
}

/* Apply the activation and the norms that come after the convolution. */
static void after_conv(const struct state_job *j, const struct channel_run *run, float *out, const float *in)
{
    const struct kernels *k = j->k->k;
    if (j->kind == MIXER_CONV) {
        multiply(out, in + j->width + run->to, run->n);
        return;
    }
    k->act_mul(out, out, NULL, run->n, ACT_SILU);
    if (run->part == 2)
        return;
    /* queries and keys are scaled to length 1, queries also divided by sqrt(size) */
    const float size = (float)run->n, by = run->part == 0 ? 1 / size : 1 / sqrtf(size);
    k->rms_norm(out, out, NULL, run->n, 1e-6f / size, 0);
    for (int i = 0; i < run->n; i++)
        out[i] *= by;
}

static void conv_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct state_job *j = arg;
    const int item = i / j->n_runs, hooks = j->r->conv_kernel, first = j->s->offset[item],
              n = j->s->items[item].n_tokens;
    const struct channel_run run = run_of(j, i % j->n_runs);
    const size_t ldx = (size_t)j->n_in, channels = (size_t)j->channels, bytes = (size_t)run.n * sizeof(float);
    float *in = j->k->state.in + (size_t)first * ldx, *x = in + run.from, *past = state_of(j, item) + run.to;
    for (int t = 0; t < hooks - 1 && j->s->items[item].pos == 0; t++)
        memset(past + (size_t)t * channels, 0, bytes);
    for (int t = 0; t < n && j->kind == MIXER_CONV; t++)
        multiply(x + (size_t)t * ldx, in + (size_t)t * ldx + run.to, run.n);
    for (int t = 0; t < n; t++) {
        float *out = j->k->state.conv + (size_t)(first + t) * channels + run.to;
        if (j->l->conv_bias)
            memcpy(out, j->l->conv_bias + run.to, bytes);
        else
            memset(out, 0, bytes);
        for (int hook = 0; hook < hooks; hook++) {
            const int from = t - (hooks - 1) + hook;
            add_product(out, from < 0 ? past + (size_t)(hooks - 1 + from) * channels : x + (size_t)from * ldx,
                        j->l->conv + (size_t)hook * channels + run.to, run.n);
        }
        after_conv(j, &run, out, in + (size_t)t * ldx);
    }
    for (int t = 0; t < hooks - 1; t++) {
        const int from = n - (hooks - 1) + t;
        memcpy(past + (size_t)t * channels, from < 0 ? past + (size_t)(hooks - 1 + from) * channels
                                                     : x + (size_t)from * ldx, bytes);
    }
}

/* ---- recurrences ---- */

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* Logarithm of the decay, which is negative.  (bailingmoe3's GGUF files have exp of A_log, all
 * others -exp.) */
static float rate_of(const struct state_job *j, int head)
{
    return j->k->c->gguf ? -fabsf(j->l->a_log[head]) : -expf(j->l->a_log[head]);
}

static void mamba_token(const struct state_job *j, int head, int token, float *state)
{
    const struct recurrent *r = j->r;
    const int group = head / (r->n_heads / r->n_groups);
    const float *x = j->k->state.conv + (size_t)token * (size_t)j->channels, *b = x + j->width + group * r->state_size,
                *c = b + r->n_groups * r->state_size;
    float dt = softplus(j->k->state.in[(size_t)token * (size_t)j->n_in + (size_t)(j->width + j->channels + head)] +
                        j->l->dt_bias[head]);
    dt = dt < r->dt_min ? r->dt_min : dt > r->dt_max ? r->dt_max : dt;
    j->k->k->scan_mamba(state, b, c, x + head * r->head_dim, j->k->state.out + (size_t)token * (size_t)j->width +
                        head * r->head_dim, r->state_size, r->head_dim, expf(rate_of(j, head) * dt), dt, j->l->d[head]);
}

static void sigmoid_gate(float *x, const float *gate, int n)
{
    for (int i = 0; i < n; i++)
        x[i] /= 1 + expf(-gate[i]);
}

/* Turn a head's projections into the decay factors of the rows of its state. */
static void decays(const struct state_job *j, int head, float *x)
{
    const struct recurrent *r = j->r;
    const float *bias = j->l->dt_bias + (size_t)head * (size_t)r->state_size, rate = rate_of(j, head);
    for (int i = 0; i < r->state_size; i++)
        x[i] = r->decay_least != 0 ? expf(r->decay_least / (1 + expf(rate * (x[i] + bias[i]))))
                                   : expf(rate * softplus(x[i] + bias[i]));
}

/* Mamba1: norm the three parts of x_proj's outputs, which are the time steps, B and C. */
static void steps_part(void *arg, int t, int thread)
{
    (void)thread;
    const struct state_job *j = arg;
    const struct recurrent *r = j->r;
    const struct norm *norms[] = { &j->l->dt_norm, &j->l->b_norm, &j->l->c_norm };
    const int size[] = { r->dt_rank, r->state_size, r->state_size };
    float *x = j->k->state.low + (size_t)t * (size_t)(r->dt_rank + 2 * r->state_size);
    for (int i = 0; i < 3; x += size[i], i++)
        if (norms[i]->present)
            j->k->k->rms_norm(x, x, norms[i]->w, size[i], r->norm_eps, 0);
}

static void mamba1_token(const struct state_job *j, int head, int token, float *state)
{
    const struct recurrent *r = j->r;
    const int dim = r->head_dim, at = head * dim;
    float *dt = j->k->state.in + (size_t)token * (size_t)j->n_in + at,
          *out = j->k->state.out + (size_t)token * (size_t)j->width + at;
    const float *b = j->k->state.low + (size_t)token * (size_t)(r->dt_rank + 2 * r->state_size) + r->dt_rank;
    for (int i = 0; i < dim; i++)
        dt[i] = softplus(dt[i] + j->l->dt_bias[at + i]);
    j->k->k->scan_mamba1(state, b, b + r->state_size, j->k->state.conv + (size_t)token * (size_t)j->channels + at, out,
                         r->state_size, dim, j->l->a_log + at, (size_t)j->width, dt, j->l->d + at);
    j->k->k->act_mul(out, dt + j->width, out, dim, ACT_SILU);
}

/* Lightning attention: run one token of a head, whose projection has a query, a key and a value.
 * The state decays more slowly in later layers and heads. */
static void lightning_token(const struct state_job *j, int head, int token, float *state)
{
    const struct recurrent *r = j->r;
    const struct config *c = j->k->c;
    const int dim = r->head_dim;
    const float slope = exp2f(-8.0f / (float)r->n_heads * (float)(head + 1)),
                factor = 1 - (float)j->index / ((float)(c->n_layers - 1) + 1e-5f) + 1e-5f;
    float *q = j->k->state.in + (size_t)token * (size_t)j->n_in + (size_t)(3 * head * dim);
    j->k->k->act_mul(q, q, NULL, 3 * dim, ACT_SILU);
    j->k->k->scan_mamba(state, q + dim, q, q + 2 * dim, j->k->state.out + (size_t)token * (size_t)j->width + head * dim,
                        dim, dim, expf(-slope * factor), 1, 0);
}

static void delta_token(const struct state_job *j, int head, int token, float *state)
{
    const struct recurrent *r = j->r;
    const int share = r->n_heads / r->n_groups, group = r->tiled ? head % r->n_groups : head / share,
              member = head % share, keys = r->n_groups * r->state_size;
    const float *q = j->k->state.conv + (size_t)token * (size_t)j->channels + group * r->state_size, *k = q + keys;
    const float *v = q - group * r->state_size + 2 * keys + head * r->head_dim;
    const float *ba = j->k->state.ba + (size_t)token * 2 * (size_t)r->n_heads;
    const float b = r->ba_flat ? ba[head] : ba[group * 2 * share + member],
                a = r->per_row ? 0 : r->ba_flat ? ba[r->n_heads + head] : ba[group * 2 * share + share + member];
    const int z_at = r->z_apart ? j->channels + head * r->head_dim : group *
                     (2 * r->state_size + 2 * share * r->head_dim) + 2 * r->state_size + (share + member) * r->head_dim;
    const float *z = j->k->state.in + (size_t)token * (size_t)j->n_in + z_at;
    float *out = j->k->state.out + (size_t)token * (size_t)j->width + head * r->head_dim;
    const float rate = r->rate_scale / (1 + expf(-b));
    if (r->per_row) {
        float *decay = j->k->state.in + (size_t)token * (size_t)j->n_in + j->channels + j->width + head * r->state_size;
        decays(j, head, decay);
        j->k->k->scan_delta_rows(state, q, k, v, out, r->state_size, r->head_dim, decay, rate);
    } else {
        const float decay = expf(rate_of(j, head) * softplus(a + j->l->dt_bias[head]));
        j->k->k->scan_delta(state, q, k, v, out, r->state_size, r->head_dim, decay, rate);
    }
    j->k->k->rms_norm(out, out, j->l->gate_norm.w, r->head_dim, r->norm_eps, 0);
    if (r->per_row || r->sigmoid_gate)
        sigmoid_gate(out, z, r->head_dim);
    else
        j->k->k->act_mul(out, z, out, r->head_dim, ACT_SILU);
}

static void scan_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct state_job *j = arg;
    const struct recurrent *r = j->r;
    const int item = i / r->n_heads, head = i % r->n_heads, first = j->s->offset[item];
    const size_t size = (size_t)r->state_size * (size_t)r->head_dim;
    float *state = state_of(j, item) + (size_t)(r->conv_kernel - 1) * (size_t)j->channels + (size_t)head * size;
    if (j->s->items[item].pos == 0)
        memset(state, 0, size * sizeof *state);
    void (*const token)(const struct state_job *, int, int, float *) =
        j->kind == MIXER_DELTA ? delta_token : j->kind == MIXER_MAMBA1 ? mamba1_token
        : j->kind == MIXER_LIGHTNING ? lightning_token : mamba_token;
    for (int t = 0; t < j->s->items[item].n_tokens; t++)
        token(j, head, first + t, state);
}

/* Apply the norm over the outputs of all heads, in groups. */
static void norm_groups(const struct state_job *j, float *out)
{
    const int size = j->width / j->r->norm_groups;
    for (int g = 0; g < j->r->norm_groups && j->l->gate_norm.present; g++)
        j->k->k->rms_norm(out + g * size, out + g * size, j->l->gate_norm.w + g * size, size, j->r->norm_eps, 0);
}

/* Mamba2: gate the outputs of the heads and norm them in groups; the architecture decides which
 * comes first.  Lightning attention: norm, then gate by a sigmoid. */
static void norm_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct state_job *j = arg;
    const int light = j->kind == MIXER_LIGHTNING, first = light || j->r->norm_first;
    for (int t = i * NORM_ROWS; t < j->s->n_tokens && t < (i + 1) * NORM_ROWS; t++) {
        float *out = j->k->state.out + (size_t)t * (size_t)j->width;
        const float *z = j->k->state.in + (size_t)t * (size_t)j->n_in + (light ? j->channels : 0);
        if (first)
            norm_groups(j, out);
        if (light)
            sigmoid_gate(out, z, j->width);
        else
            j->k->k->act_mul(out, z, out, j->width, ACT_SILU);
        if (!first)
            norm_groups(j, out);
    }
}

/* Apply falcon_h1's factors to the parts of the Mamba2 projection. */
static void scale_part(void *arg, int t, int thread)
{
    (void)thread;
    const struct state_job *j = arg;
    const struct recurrent *r = j->r;
    const int bc = r->n_groups * r->state_size, size[5] = { j->width, j->width, bc, bc, r->n_heads };
    float *x = j->k->state.in + (size_t)t * (size_t)j->n_in;
    for (int p = 0; p < 5; x += size[p], p++)
        for (int i = 0; i < size[p]; i++)
            x[i] *= r->in_scale[p];
}

/* ---- a mixer ---- */

static void run_jobs(struct state_job *j, int n, size_t work, void (*part)(void *, int, int))
{
    if (work <= SERIAL)
        for (int i = 0; i < n; i++)
            part(j, i, 0);
    else
        pool_run(j->k->pool, n, part, j);
}

/* Mamba1: compute time steps, B and C from the outputs of the convolution. */
static void mamba1_inputs(struct core *k, struct state_job *j, int n)
{
    const struct layer *l = j->l;
    const int low = j->r->dt_rank + 2 * j->r->state_size;
    const struct act_input conv = { .x = k->state.conv, .ldx = (size_t)j->channels, .cols = j->channels },
                           dt = { .x = k->state.low, .ldx = (size_t)low, .cols = j->r->dt_rank };
    core_linear(k, &(struct op){ .l = &l->x_proj, .in = &conv, .out = k->state.low, .ldo = (size_t)low,
                                 .kind = OP_STORE }, 1, n, NULL);
    run_jobs(j, n, (size_t)n * (size_t)low, steps_part);
    core_linear(k, &(struct op){ .l = &l->dt_proj, .in = &dt, .out = k->state.in, .ldo = (size_t)j->n_in,
                                 .kind = OP_STORE }, 1, n, NULL);
}

/* Kimi delta attention: compute the decay rates of the rows from the hidden state.  With gate_rank,
 * compute both the decay rates and the gates from the channels of gate_a. */
static void row_gates(struct core *k, const struct state_job *j, const struct act_input *in, int n)
{
    const struct layer *l = j->l;
    const size_t rank = (size_t)j->r->gate_rank;
    float *f = k->state.in + j->channels + j->width;
    if (!rank) {
        core_linear(k, &(struct op){ .l = &l->in_f, .in = in, .out = f, .ldo = (size_t)j->n_in, .kind = OP_STORE }, 1,
                    n, NULL);
        return;
    }
    core_linear(k, &(struct op){ .l = &l->gate_a, .in = in, .out = k->state.low, .ldo = 2 * rank, .kind = OP_STORE }, 1,
                n, NULL);
    const struct act_input low[] = { { .x = k->state.low, .ldx = 2 * rank, .cols = (int)rank },
                                     { .x = k->state.low + rank, .ldx = 2 * rank, .cols = (int)rank } };
    core_linear(k, (struct op[]){ { .l = &l->in_f, .in = &low[0], .out = f, .ldo = (size_t)j->n_in, .kind = OP_STORE },
                                  { .l = &l->in_z, .in = &low[1], .out = k->state.in + j->channels,
                                    .ldo = (size_t)j->n_in, .kind = OP_STORE } }, 2, n, NULL);
}

int state_run(struct core *k, const struct step *s, const struct layer *l, int index, const float *h, const float **o,
              int *cols)
{
    const struct config *c = k->c;
    const int n = s->n_tokens;
    struct state_job j = { k, s, l, &c->recurrent, c->mixer[index], (int)in_rows(c, index),
                           recurrent_channels(c, index), recurrent_width(c, index), 0, index };
    struct act_input in;
    j.kind = j.kind == MIXER_BOTH ? MIXER_MAMBA2 : j.kind;
    j.n_runs = j.kind == MIXER_DELTA ? 3 * j.r->n_groups : (j.channels + RUN - 1) / RUN;
    core_layer_input(k, &in, h, c->hidden_size, n, l, INPUT_QKV);
    if (core_hook(k, index, ROLE_IN, &in, n))
        return 1;
    const struct op ops[] = { { .l = &l->in, .in = &in, .out = k->state.in, .ldo = (size_t)j.n_in, .kind = OP_STORE },
                              { .l = &l->in_ba, .in = &in, .out = k->state.ba, .ldo = 2 * (size_t)j.r->n_heads,
                                .kind = OP_STORE },
                              { .l = &l->in_z, .in = &in, .out = k->state.in + j.channels, .ldo = (size_t)j.n_in,
                                .kind = OP_STORE } };
    struct op here[3];
    int n_ops = 0;
    for (int i = 0; i < 3; i++)
        if (ops[i].l->w.data && (i < 2 || !j.r->gate_rank))
            here[n_ops++] = ops[i];
    core_linear(k, here, n_ops, n, core_next(k, index, LOOP_QKV));
    if (j.r->scaled)
        run_jobs(&j, n, (size_t)n * (size_t)j.n_in, scale_part);
    if (j.kind == MIXER_DELTA && j.r->per_row)
        row_gates(k, &j, &in, n);
    if (j.kind != MIXER_LIGHTNING)
        run_jobs(&j, s->n_items * j.n_runs, (size_t)n * (size_t)j.channels, conv_part);
    *o = k->state.conv;
    *cols = j.width;
    if (j.kind == MIXER_CONV)
        return 0;
    if (j.kind == MIXER_MAMBA1)
        mamba1_inputs(k, &j, n);
    run_jobs(&j, s->n_items * j.r->n_heads, (size_t)n * (size_t)j.width * (size_t)j.r->state_size, scan_part);
    if (j.kind == MIXER_MAMBA2 || j.kind == MIXER_LIGHTNING)
        run_jobs(&j, (n + NORM_ROWS - 1) / NORM_ROWS, (size_t)n * (size_t)j.width, norm_part);
    *o = k->state.out;
    return 0;
}

/* ---- gated attention ---- */

struct gate_job { const struct core *k; float *x; int n_gates, each; };

static void gate_part(void *arg, int t, int thread)
{
    (void)thread;
    const struct gate_job *j = arg;
    float *x = j->x + (size_t)t * (size_t)(j->n_gates * j->each);
    const float *gate = j->k->state.gate + (size_t)t * (size_t)j->n_gates;
    for (int g = 0; g < j->n_gates; g++)
        for (int i = 0; i < j->each; i++)
            x[g * j->each + i] /= 1 + expf(-gate[g]);
}

int state_gates(const struct config *c)
{
    return c->attn_gate == ATTN_GATE_HEAD ? c->n_heads : c->n_heads * c->head_dim;
}

void state_gate(struct core *k, float *x, int n, int cols)
{
    const int gates = state_gates(k->c);
    struct gate_job j = { k, x, gates, cols / gates };
    if ((size_t)n * (size_t)cols <= SERIAL)
        for (int t = 0; t < n; t++)
            gate_part(&j, t, 0);
    else
        pool_run(k->pool, n, gate_part, &j);
}

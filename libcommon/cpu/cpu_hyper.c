/* cpu_hyper.c - hyper-connections (arXiv:2409.19606): several residual streams.  Each half of a
 * layer reads a mix of them and adds its output to all of them; the streams are mixed with each
 * other by a matrix whose rows and columns sum to 1 (arXiv:2512.24880). */
#include <math.h>
#include <string.h>

#include "libcommon/cpu/cpu_ops.h"

enum { MOST_STREAMS = 16, SUMS = 16 };

/* The weights [rows][n * hidden_size], bias and scale that make the scores of one half of a layer,
 * or of the model's end. */
struct mixer { const float *w, *bias, *scale; };
struct hyper_job { struct core *k; struct mixer m; const struct norm *norm; float *x; };

static void each_token(struct hyper_job *j, int n, void (*part)(void *, int, int))
{
    if ((size_t)n * (size_t)j->k->c->hidden_size <= SERIAL)
        for (int t = 0; t < n; t++)
            part(j, t, 0);
    else
        pool_run(j->k->pool, n, part, j);
}

static float *streams_of(const struct core *k, int token)
{
    return k->streams + (size_t)token * (size_t)k->c->hyper.n * (size_t)k->c->hidden_size;
}

/* The weights of a token: of the output [n], followed by those of the mix of streams [n][n]. */
static float *mix_of(const struct core *k, int token)
{
    return k->mix + (size_t)token * (size_t)k->c->hyper.n * (size_t)(k->c->hyper.n + 1);
}

/* Sum the products in an order that is the same on every machine. */
static float dot(const float *restrict a, const float *restrict b, size_t n)
{
    float sum[SUMS] = { 0 };
    double all = 0;
    size_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int s = 0; s < SUMS; s++)
            sum[s] += a[i + (size_t)s] * b[i + (size_t)s];
    for (; i < n; i++)
        sum[i % SUMS] += a[i] * b[i];
    for (int s = 0; s < SUMS; s++)
        all += (double)sum[s];
    return (float)all;
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* Score i of the streams x; by: 1 / the length of x. */
static float score(const struct hyper_job *j, const float *x, float by, int i, int scale)
{
    const size_t all = (size_t)j->k->c->hyper.n * (size_t)j->k->c->hidden_size;
    return dot(x, j->m.w + (size_t)i * all, all) * by * j->m.scale[scale] + j->m.bias[i];
}

static float normed_by(const struct config *c, const float *x)
{
    const size_t all = (size_t)c->hyper.n * (size_t)c->hidden_size;
    return 1 / sqrtf(dot(x, x, all) / (float)all + c->norm_eps);
}

/* Divide the elements of each of n rows by their sum; the elements of a row are `step` apart. */
static void balance(float *m, int n, int step, int next, float eps)
{
    for (int r = 0; r < n; r++) {
        float sum = 0;
        for (int i = 0; i < n; i++)
            sum += m[r * next + i * step];
        for (int i = 0; i < n; i++)
            m[r * next + i * step] /= sum + eps;
    }
}

/* Turn scores into a matrix whose rows and columns sum to 1. */
static void balanced(const struct hyper *h, float *m)
{
    const int n = h->n;
    for (int r = 0; r < n; r++) {
        float most = -INFINITY;
        for (int i = 0; i < n; i++)
            most = m[r * n + i] > most ? m[r * n + i] : most;
        for (int i = 0; i < n; i++)
            m[r * n + i] = expf(m[r * n + i] - most);
    }
    balance(m, n, 1, n, 0);
    for (int i = 0; i < n * n; i++)
        m[i] += h->eps;
    balance(m, n, n, 1, h->eps);
    for (int i = 1; i < h->steps; i++) {
        balance(m, n, 1, n, h->eps);
        balance(m, n, n, 1, h->eps);
    }
}

/* out = the weighted sum of the streams. */
static void collapse(const struct config *c, const float *x, const float *weight, float *out)
{
    const int hidden = c->hidden_size;
    for (int i = 0; i < hidden; i++)
        out[i] = weight[0] * x[i];
    for (int s = 1; s < c->hyper.n; s++)
        for (int i = 0; i < hidden; i++)
            out[i] += weight[s] * x[(size_t)s * (size_t)hidden + (size_t)i];
}

static void enter_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct hyper_job *j = arg;
    const struct config *c = j->k->c;
    const int n = c->hyper.n;
    const float *x = streams_of(j->k, t), by = normed_by(c, x);
    float *mix = mix_of(j->k, t), *out = j->k->h[0] + (size_t)t * (size_t)c->hidden_size, weight[MOST_STREAMS];
    for (int i = 0; i < n; i++) {
        weight[i] = sigmoid(score(j, x, by, i, 0)) + c->hyper.eps;
        mix[i] = 2 * sigmoid(score(j, x, by, n + i, 1));
    }
    for (int i = 0; i < n * n; i++)
        mix[n + i] = score(j, x, by, 2 * n + i, 2);
    balanced(&c->hyper, mix + n);
    collapse(c, x, weight, out);
    if (j->norm->present)
        core_norm_row(j->k, out, out, j->norm, c->hidden_size);
    memset(j->x + (size_t)t * (size_t)c->hidden_size, 0, (size_t)c->hidden_size * sizeof *out);
}

/* ---- mixes through gates (qwen4_exp) ---- */

struct gated_mix { const float *norm; const struct linear *down, *up, *inject; };
struct hyper_gate_job { struct core *k; const float *norm; float *out; int inject; };

static size_t all_streams(const struct config *c) { return (size_t)c->hyper.n * (size_t)c->hidden_size; }

static void norm_streams(void *arg, int t, int thread)
{
    (void)thread;
    const struct hyper_gate_job *j = arg;
    const struct config *c = j->k->c;
    const float *x = streams_of(j->k, t);
    float *out = j->k->wide[0] + (size_t)t * all_streams(c);
    for (int s = 0; s < c->hyper.n; s++)
        j->k->k->rms_norm(out + s * c->hidden_size, x + s * c->hidden_size, j->norm + s * c->hidden_size,
                          c->hidden_size, c->norm_eps, c->norm_offset);
}

static void activate_low(void *arg, int t, int thread)
{
    (void)thread;
    const struct hyper_gate_job *j = arg;
    const struct config *c = j->k->c;
    float *x = j->k->low + (size_t)t * (size_t)c->hyper.rank;
    for (int i = 0; i < c->hyper.rank; i++) {
        const float y = x[i] / (float)c->hyper.n;
        x[i] = y / (1 + expf(-y));
    }
}

static void mix_gated(void *arg, int t, int thread)
{
    (void)thread;
    const struct hyper_gate_job *j = arg;
    const struct config *c = j->k->c;
    const float *x = j->k->wide[0] + (size_t)t * all_streams(c), *gate = j->k->wide[1] + (size_t)t * all_streams(c);
    float *out = j->out + (size_t)t * (size_t)c->hidden_size, *mix = mix_of(j->k, t);
    for (int i = 0; i < c->hidden_size; i++) {
        float sum = 0;
        for (int s = 0; s < c->hyper.n; s++)
            sum += sigmoid(gate[s * c->hidden_size + i]) * x[s * c->hidden_size + i];
        out[i] = sum / (float)c->hyper.n;
    }
    for (int s = 0; s < c->hyper.n && j->inject; s++)
        mix[s] = 2 * sigmoid(mix[s] / (float)c->hyper.n);
}

/* out = the gated mean of the normed streams; also sets the weight of the output for each
 * stream. */
static void gated_mean(struct core *k, const struct gated_mix *m, float *out, int n)
{
    const struct config *c = k->c;
    struct hyper_gate_job j = { .k = k, .norm = m->norm, .out = out, .inject = m->inject != NULL };
    const struct act_input in = { .x = k->wide[0], .ldx = all_streams(c), .cols = (int)all_streams(c) },
                           low = { .x = k->low, .ldx = (size_t)c->hyper.rank, .cols = c->hyper.rank };
    const size_t mix = (size_t)c->hyper.n * (size_t)(c->hyper.n + 1);
    pool_run(k->pool, n, norm_streams, &j);
    core_linear(k, (struct op[]){ { .l = m->down, .in = &in, .out = k->low, .ldo = (size_t)c->hyper.rank,
                                    .kind = OP_STORE },
                                  { .l = m->inject, .in = &in, .out = k->mix, .ldo = mix, .kind = OP_STORE } },
                m->inject ? 2 : 1, n, NULL);
    pool_run(k->pool, n, activate_low, &j);
    core_linear(k, &(struct op){ .l = m->up, .in = &low, .out = k->wide[1], .ldo = all_streams(c), .kind = OP_STORE },
                1, n, NULL);
    pool_run(k->pool, n, mix_gated, &j);
}

const float *hyper_enter(struct core *k, const struct layer *l, int ff, const struct norm *norm, float *x, int n)
{
    struct hyper_job j = { .k = k, .x = x, .norm = norm,
                           .m = ff ? (struct mixer){ l->hyper_ff, l->hyper_ff_bias, l->hyper_ff_scale }
                                   : (struct mixer){ l->hyper_attn, l->hyper_attn_bias, l->hyper_attn_scale } };
    if (k->c->hyper.rank) {
        const struct gated_mix attn = { l->hyper_attn_norm, &l->hyper_attn_down, &l->hyper_attn_up,
                                        &l->hyper_attn_inject },
                               mlp = { l->hyper_ff_norm, &l->hyper_ff_down, &l->hyper_ff_up, &l->hyper_ff_inject };
        gated_mean(k, ff ? &mlp : &attn, k->h[0], n);
        memset(x, 0, (size_t)n * (size_t)k->c->hidden_size * sizeof *x);
        return k->h[0];
    }
    each_token(&j, n, enter_token);
    return k->h[0];
}

static void leave_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct hyper_job *j = arg;
    const struct config *c = j->k->c;
    const int n = c->hyper.n;
    const size_t hidden = (size_t)c->hidden_size;
    const float *mix = mix_of(j->k, t), *y = j->x + (size_t)t * hidden;
    float *x = streams_of(j->k, t), was[MOST_STREAMS];
    for (int s = 0; s < n && c->hyper.rank; s++)
        j->k->k->add(x + (size_t)s * hidden, x + (size_t)s * hidden, y, mix[s], c->hidden_size);
    for (size_t i = 0; i < hidden && !c->hyper.rank; i++) {
        for (int s = 0; s < n; s++)
            was[s] = x[(size_t)s * hidden + i];
        for (int s = 0; s < n; s++) {
            float sum = 0;
            for (int from = 0; from < n; from++)
                sum += mix[n + from * n + s] * was[from];
            x[(size_t)s * hidden + i] = mix[s] * y[i] + sum;
        }
    }
}

void hyper_leave(struct core *k, float *x, int n)
{
    each_token(&(struct hyper_job){ .k = k, .x = x }, n, leave_token);
}

/* ---- before the first and after the last layer ---- */

void hyper_begin(struct core *k, const float *x, int n)
{
    const size_t hidden = (size_t)k->c->hidden_size;
    for (int t = 0; t < n; t++)
        for (int s = 0; s < k->c->hyper.n; s++)
            memcpy(streams_of(k, t) + (size_t)s * hidden, x + (size_t)t * hidden, hidden * sizeof *x);
}

static void end_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct hyper_job *j = arg;
    const struct config *c = j->k->c;
    const float *x = streams_of(j->k, t), by = normed_by(c, x);
    float weight[MOST_STREAMS];
    for (int i = 0; i < c->hyper.n; i++)
        weight[i] = sigmoid(score(j, x, by, i, 0)) + c->hyper.eps;
    collapse(c, x, weight, j->x + (size_t)t * (size_t)c->hidden_size);
}

void hyper_end(struct core *k, const struct model *m, float *x, int n)
{
    if (k->c->hyper.rank) {
        gated_mean(k, &(struct gated_mix){ m->hyper_norm, &m->hyper_down, &m->hyper_up, NULL }, x, n);
        return;
    }
    each_token(&(struct hyper_job){ .k = k, .x = x, .m = { m->hyper, m->hyper_bias, m->hyper_scale } }, n, end_token);
}

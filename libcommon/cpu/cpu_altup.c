/* cpu_altup.c - AltUp, several parallel residual streams (arXiv:2301.13310), and the other
 * additions of gemma3n: LAuReL (arXiv:2411.07501) and gates with a cutoff. */
#include <math.h>
#include <string.h>

#include "libcommon/cpu/cpu_ops.h"

enum { MOST_STREAMS = 8 };

struct altup_job { struct core *k; const struct layer *l; float *x; int index; const float *up; };

static void each_token(struct core *k, struct altup_job *j, int n, void (*part)(void *, int, int))
{
    j->k = k;
    if ((size_t)n * (size_t)k->c->hidden_size <= SERIAL)
        for (int t = 0; t < n; t++)
            part(j, t, 0);
    else
        pool_run(k->pool, n, part, j);
}

static float *streams_of(const struct core *k, int token)
{
    return k->streams + (size_t)token * (size_t)k->c->n_streams * (size_t)k->c->hidden_size;
}

static float dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

static float magnitude(const float *x, int n) { return dot(x, x, n) / (float)n; }

/* Compute the scores of the streams from one row x; h [hidden_size] is scratch. */
static void scores(const struct altup_job *j, const float *x, float *h, float *out)
{
    const struct config *c = j->k->c;
    core_norm_row(j->k, h, x, &j->l->altup_norm, c->hidden_size);
    for (int i = 0; i < c->n_streams; i++)
        out[i] = tanhf(dot(h, j->l->altup_router + (size_t)i * (size_t)c->hidden_size, c->hidden_size) /
                       (float)c->hidden_size);
}

/* ---- before the first and after the last layer ---- */

/* Scale the other streams to the magnitude of the first. */
static void match_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct altup_job *j = arg;
    const struct config *c = j->k->c;
    const int hidden = c->hidden_size;
    float *x = streams_of(j->k, t);
    const float target = sqrtf(magnitude(x, hidden));
    for (int s = 1; s < c->n_streams; s++) {
        float *y = x + (size_t)s * (size_t)hidden;
        const float by = target / sqrtf(fmaxf(magnitude(y, hidden), 1e-5f));
        for (int i = 0; i < hidden; i++)
            y[i] *= by;
    }
}

void altup_begin(struct core *k, const struct model *m, const float *x, int n)
{
    const struct config *c = k->c;
    const size_t hidden = (size_t)c->hidden_size, all = (size_t)c->n_streams * hidden;
    const struct act_input in = { .x = x, .ldx = hidden, .cols = c->hidden_size };
    struct altup_job j = { 0 };
    for (int t = 0; t < n; t++)
        memcpy(streams_of(k, t), x + (size_t)t * hidden, hidden * sizeof *x);
    core_linear(k, &(struct op){ .l = &m->altup_in, .in = &in, .out = k->streams + hidden, .ldo = all,
                                 .kind = OP_STORE }, 1, n, NULL);
    each_token(k, &j, n, match_token);
}

static void mean_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct altup_job *j = arg;
    const struct config *c = j->k->c;
    const float *x = streams_of(j->k, t);
    float *out = j->x + (size_t)t * (size_t)c->hidden_size;
    for (int i = 0; i < c->hidden_size; i++) {
        float sum = 0;
        for (int s = 0; s < c->n_streams; s++)
            sum += x[(size_t)s * (size_t)c->hidden_size + (size_t)i];
        out[i] = sum / (float)c->n_streams;
    }
}

void altup_end(struct core *k, const struct model *m, float *x, int n)
{
    const struct config *c = k->c;
    const size_t hidden = (size_t)c->hidden_size, all = (size_t)c->n_streams * hidden;
    struct altup_job j = { .x = x };
    for (int s = 1; s < c->n_streams; s++) {
        float *y = k->streams + (size_t)s * hidden;
        const struct act_input in = { .x = y, .ldx = all, .cols = c->hidden_size };
        core_linear_rows(k, &m->altup_out, &in, (s - 1) * c->hidden_size, c->hidden_size, k->h[0], n, y, all);
    }
    each_token(k, &j, n, match_token);
    each_token(k, &j, n, mean_token);
}

/* ---- a layer ---- */

static void predict_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct altup_job *j = arg;
    const struct config *c = j->k->c;
    const int n = c->n_streams;
    const size_t hidden = (size_t)c->hidden_size;
    float *x = streams_of(j->k, t), *out = j->x + (size_t)t * hidden;
    float score[MOST_STREAMS], mix[MOST_STREAMS * MOST_STREAMS], was[MOST_STREAMS];
    scores(j, x + (size_t)c->stream * hidden, j->k->h[0] + (size_t)t * hidden, score);
    for (int i = 0; i < n * n; i++)
        mix[i] = dot(j->l->altup_predict + i * n, score, n);
    for (size_t i = 0; i < hidden; i++) {
        for (int s = 0; s < n; s++)
            was[s] = x[(size_t)s * hidden + i];
        for (int s = 0; s < n; s++)
            x[(size_t)s * hidden + i] = was[s] + dot(mix + s * n, was, n);
    }
    memcpy(out, x + (size_t)c->stream * hidden, hidden * sizeof *out);
}

void altup_predict(struct core *k, const struct layer *l, float *x, int n)
{
    each_token(k, &(struct altup_job){ .l = l, .x = x }, n, predict_token);
}

static void correct_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct altup_job *j = arg;
    const struct config *c = j->k->c;
    const int n = c->n_streams;
    const size_t hidden = (size_t)c->hidden_size;
    float *x = streams_of(j->k, t), *out = j->x + (size_t)t * hidden, score[MOST_STREAMS], by[MOST_STREAMS];
    scores(j, out, j->k->h[0] + (size_t)t * hidden, score);
    for (int s = 0; s < n; s++)
        by[s] = dot(j->l->altup_correct + s * n, score, n) + 1;
    for (size_t i = 0; i < hidden; i++) {
        const float change = out[i] - x[(size_t)c->stream * hidden + i];
        for (int s = 0; s < n; s++)
            x[(size_t)s * hidden + i] += change * by[s];
        out[i] = x[(size_t)c->stream * hidden + i] * (c->scale_corrected ? j->l->altup_scale[i] : 1);
    }
}

/* Compute an addend from the layer's embedding and the corrected stream, and add it to the other
 * streams. */
static void add_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct altup_job *j = arg;
    const struct config *c = j->k->c;
    const size_t hidden = (size_t)c->hidden_size;
    float *y = j->k->h[0] + (size_t)t * hidden, *x = streams_of(j->k, t);
    core_norm_row(j->k, y, y, &j->l->ple_norm, c->hidden_size);
    for (int s = 1; s < c->n_streams; s++)
        j->k->k->add(x + (size_t)s * hidden, x + (size_t)s * hidden, y, 1, c->hidden_size);
}

void altup_correct(struct core *k, const struct layer *l, int index, float *x, int n)
{
    struct altup_job j = { .l = l, .x = x };
    each_token(k, &j, n, correct_token);
    ple_project(k, l, index, x, k->h[0], n);
    each_token(k, &j, n, add_token);
}

static void laurel_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct altup_job *j = arg;
    const int hidden = j->k->c->hidden_size;
    float *y = j->k->laurel + (size_t)t * (size_t)hidden;
    core_norm_row(j->k, y, y, &j->l->laurel_norm, hidden);
    j->k->k->add(y, y, j->up + (size_t)t * (size_t)hidden, 1, hidden);
}

void altup_laurel(struct core *k, const struct layer *l, const float *h, int n)
{
    const struct config *c = k->c;
    const size_t rank = (size_t)c->laurel_rank, hidden = (size_t)c->hidden_size;
    const struct act_input in = { .x = h, .ldx = hidden, .cols = c->hidden_size },
                           mid = { .x = k->laurel_mid, .ldx = rank, .cols = c->laurel_rank };
    core_linear(k, &(struct op){ .l = &l->laurel_in, .in = &in, .out = k->laurel_mid, .ldo = rank, .kind = OP_STORE },
                1, n, NULL);
    core_linear(k, &(struct op){ .l = &l->laurel_out, .in = &mid, .out = k->laurel, .ldo = hidden, .kind = OP_STORE },
                1, n, NULL);
    each_token(k, &(struct altup_job){ .l = l, .up = h }, n, laurel_token);
}

void altup_add_laurel(struct core *k, float *x, int n)
{
    const size_t all = (size_t)n * (size_t)k->c->hidden_size;
    const float by = sqrtf(0.5f);
    for (size_t i = 0; i < all; i++)
        x[i] = (x[i] + k->laurel[i]) * by;
}

/* ---- gates with a cutoff ---- */

static void cut_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct altup_job *j = arg;
    const struct core *k = j->k;
    const int size = config_mlp_size(k->c, j->index);
    float *gate = k->mlp + (size_t)t * (size_t)size;
    double sum = 0, squares = 0;
    for (int i = 0; i < size; i++)
        sum += (double)gate[i];
    const double mean = sum / size;
    for (int i = 0; i < size; i++)
        squares += ((double)gate[i] - mean) * ((double)gate[i] - mean);
    const float cutoff = (float)mean + (float)sqrt(squares / size) * k->c->cutoff[j->index];
    for (int i = 0; i < size; i++)
        gate[i] = gate[i] > cutoff ? gate[i] - cutoff : 0;
    k->k->act_mul(gate, gate, k->sparse + (size_t)t * (size_t)size, size, k->c->act);
}

void altup_sparse_mlp(struct core *k, const struct layer *l, int index, const struct act_input *in, int n)
{
    const size_t size = (size_t)config_mlp_size(k->c, index);
    core_linear(k, (struct op[]){ { .l = &l->gate, .in = in, .out = k->mlp, .ldo = size, .kind = OP_STORE },
                                  { .l = &l->up, .in = in, .out = k->sparse, .ldo = size, .kind = OP_STORE } }, 2, n,
                NULL);
    each_token(k, &(struct altup_job){ .index = index }, n, cut_token);
}

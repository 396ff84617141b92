/* engine_embed.c - turn pooled states into a vector or a score: the dense layers and the scaling
 * after the last layer. */
#include <math.h>
#include <string.h>

#include "libcommon/engine/internal.h"

/* Widest row of the dense layers, and of the states. */
static int widest(const struct config *c)
{
    int n = c->hidden_size;
    for (int i = 0; i < c->embedding.n_dense; i++)
        n = c->embedding.dense[i].out > n ? c->embedding.dense[i].out : n;
    return n;
}

size_t embed_work(const struct config *c) { return 3 * (size_t)widest(c); }

static float activate(float x, enum dense_act act)
{
    switch (act) {
    case DENSE_TANH: return tanhf(x);
    case DENSE_RELU: return x > 0 ? x : 0;
    case DENSE_GELU: return (float)(0.5 * x * (1 + erf(x * M_SQRT1_2)));
    case DENSE_PLAIN: break;
    }
    return x;
}

/* out = act(w x + b); row: scratch for a row of w. */
static void dense(const struct linear *l, enum dense_act act, const float *x, float *row, float *out)
{
    for (int r = 0; r < l->w.rows; r++) {
        double sum = l->bias ? l->bias[r] : 0;
        mat_decode_row(&l->w, r, row);
        for (int k = 0; k < l->w.cols; k++)
            sum += (double)row[k] * x[k];
        out[r] = activate((float)sum, act);
    }
}

static void layer_norm(const struct norm *norm, float *x, int n, double eps)
{
    double mean = 0, var = 0;
    for (int i = 0; i < n; i++)
        mean += (double)x[i] / n;
    for (int i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++)
        x[i] = (float)((x[i] - mean) / sqrt(var + eps) * (norm->w ? norm->w[i] : 1) + (norm->b ? norm->b[i] : 0));
}

int embed_finish(const struct model *m, enum embed pooling, int n_tokens, const float *pooled, float *work,
                 struct err *e, const float **out)
{
    const struct config *c = &m->config;
    const struct embedding *d = &c->embedding;
    const struct linear *const layers[MAX_DENSE] = { &m->dense_1, &m->dense_2 };
    const int room = widest(c), normalize = pooling != EMBED_STATE && (!d->pooling || d->normalize);
    float *x = work, *y = work + room, *row = work + 2 * room;
    double sum = 0;
    int n = c->hidden_size;
    /* a sum that is normalized afterwards need not be divided */
    for (int i = 0; i < n; i++)
        x[i] = pooling == EMBED_MEAN && (d->n_dense || !normalize) ? pooled[i] / (float)n_tokens : pooled[i];
    for (int k = 0; k < d->n_dense; k++) {
        dense(layers[k], d->dense[k].act, x, row, y);
        n = layers[k]->w.rows;
        if (k == 0 && m->dense_norm.present)
            layer_norm(&m->dense_norm, y, n, c->norm_eps);
        float *t = x;
        x = y;
        y = t;
    }
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    if (!(sum <= 1e300) || (normalize && sum == 0))
        return err_set(e, ERR_FORMAT, "embedding: a vector of length %g, expected a positive number", sqrt(sum));
    for (int i = 0; normalize && i < n; i++)
        x[i] = (float)(x[i] / sqrt(sum));
    *out = x;
    return n;
}

/* cpu_ple.c - add per-layer embeddings (gemma3n, gemma4). */
#include <math.h>
#include <string.h>

#include "libcommon/cpu/cpu_ops.h"

struct ple_job { struct core *k; const struct model *m; const struct layer *l; int index; float *x, *y; };

/* ple = (norm(projection / sqrt(hidden)) + sqrt(ple_dim) * embedding) / sqrt(2) for each layer. */
static void embed_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct ple_job *j = arg;
    const struct config *c = j->k->c;
    const int dim = c->ple_dim, token = j->k->token[t] < c->ple_vocab ? j->k->token[t] : 0;
    const size_t row = (size_t)c->n_layers * (size_t)dim;
    const float by = 1 / sqrtf((float)c->hidden_size), root = sqrtf((float)dim), half = sqrtf(0.5f);
    float *own = j->k->ple + (size_t)t * row;
    float looked_up[row];
    mat_decode_row(&j->m->ple_embed.w, token, looked_up);
    for (size_t i = 0; i < row; i++)
        own[i] *= by;
    for (int layer = 0; layer < c->n_layers; layer++) {
        float *x = own + (size_t)layer * (size_t)dim;
        j->k->k->rms_norm(x, x, j->m->ple_in_norm.w, dim, c->norm_eps, 0);
    }
    for (size_t i = 0; i < row; i++)
        own[i] = (own[i] + looked_up[i] * root) * half;
}

void ple_embed(struct core *k, const struct model *m, int n, const float *x)
{
    const struct config *c = k->c;
    /* the input is not quantized, as no input of per-layer embeddings is */
    const struct act_input in = { .x = x, .ldx = (size_t)c->hidden_size, .cols = c->hidden_size };
    struct ple_job j = { .k = k, .m = m };
    core_linear(k, &(struct op){ .l = &m->ple_in, .in = &in, .out = k->ple,
                                 .ldo = (size_t)c->n_layers * (size_t)c->ple_dim, .kind = OP_STORE }, 1, n, NULL);
    pool_run(k->pool, n, embed_token, &j);
}

/* ple_mid = the activated gate of a token times its embedding for this layer. */
static void gate_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct ple_job *j = arg;
    const struct config *c = j->k->c;
    const size_t dim = (size_t)c->ple_dim;
    float *gate = j->k->ple_mid + (size_t)t * dim;
    j->k->k->act_mul(gate, gate, j->k->ple + ((size_t)t * (size_t)c->n_layers + (size_t)j->index) * dim, c->ple_dim,
                     c->act);
}

/* x = (x + norm(y)) * layer_scale */
static void finish_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct ple_job *j = arg;
    const int hidden = j->k->c->hidden_size;
    float *x = j->x + (size_t)t * (size_t)hidden, *y = j->y + (size_t)t * (size_t)hidden;
    if (j->k->c->ple_dim) {
        core_norm_row(j->k, y, y, &j->l->ple_norm, hidden);
        j->k->k->add(x, x, y, 1, hidden);
    }
    for (int i = 0; i < hidden && j->l->layer_scale; i++)
        x[i] *= *j->l->layer_scale;
}

static void each_token(struct core *k, struct ple_job *j, int n, void (*part)(void *, int, int))
{
    if ((size_t)n * (size_t)k->c->hidden_size <= SERIAL)
        for (int t = 0; t < n; t++)
            part(j, t, 0);
    else
        pool_run(k->pool, n, part, j);
}

void ple_project(struct core *k, const struct layer *l, int index, const float *x, float *y, int n)
{
    const struct config *c = k->c;
    const struct act_input in = { .x = x, .ldx = (size_t)c->hidden_size, .cols = c->hidden_size },
                           mid = { .x = k->ple_mid, .ldx = (size_t)c->ple_dim, .cols = c->ple_dim };
    struct ple_job j = { .k = k, .l = l, .index = index };
    core_linear(k, &(struct op){ .l = &l->ple_gate, .in = &in, .out = k->ple_mid, .ldo = (size_t)c->ple_dim,
                                 .kind = OP_STORE }, 1, n, NULL);
    each_token(k, &j, n, gate_token);
    core_linear(k, &(struct op){ .l = &l->ple_up, .in = &mid, .out = y, .ldo = (size_t)c->hidden_size,
                                 .kind = OP_STORE }, 1, n, NULL);
}

int ple_run(struct core *k, const struct layer *l, int index, float *x, int n)
{
    struct ple_job j = { .k = k, .l = l, .index = index, .x = x, .y = k->h[0] };
    if (k->c->ple_dim)
        ple_project(k, l, index, x, k->h[0], n);
    if (k->c->ple_dim || l->layer_scale)
        each_token(k, &j, n, finish_token);
    return 0;
}

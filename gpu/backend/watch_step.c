/* watch_step.c - give the results of every layer to the functions of backend_options.watch. */
#include "gpu/backend/internal.h"

size_t watch_bytes(const struct gpu_backend *b)
{
    const struct config *c = &b->m->config;
    return b->o.watch ? array_size(b) * ((size_t)c->hidden_size + 2 * (size_t)c->moe.top_k) * sizeof(float) : 0;
}

/* The tokens of the step without those that pad it. */
static int real_tokens(struct gpu_backend *b)
{
    int n = b->n;
    while (n > 0 && host_array(b, A_POS)[n - 1] < 0)
        n--;
    return n;
}

static int copy(struct gpu_backend *b, void *to, const void *from, size_t n, struct err *e)
{
    return gpu_download(b->g, GPU_COMPUTE, to, from, n * sizeof(float), e);
}

int watch_layer(struct gpu_backend *b, int layer, struct err *e)
{
    const struct step_watch *w = b->o.watch;
    const struct config *c = &b->m->config;
    if (!w)
        return 0;
    const int n = real_tokens(b);
    const size_t states = (size_t)n * (size_t)c->hidden_size;
    const size_t pairs = layer >= 0 && c->ff[layer] == FF_MOE ? (size_t)n * (size_t)c->moe.top_k : 0;
    int32_t *id = (int32_t *)(b->watched + states);
    float *weight = b->watched + states + pairs;
    if (copy(b, b->watched, b->x, states, e) < 0 || (pairs && copy(b, id, b->choice.id, pairs, e) < 0) ||
        (pairs && copy(b, weight, b->choice.weight, pairs, e) < 0) || gpu_sync(b->g, GPU_COMPUTE, e) < 0)
        return -1;
    if (pairs)
        w->experts(w->user, layer, id, weight, n, c->moe.top_k);
    w->states(w->user, layer, b->watched, n, c->hidden_size);
    return 0;
}

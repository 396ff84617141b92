/* budget.c - sum up the memory of the ranks of a pipeline. */
#include "libcommon/plan/budget.h"

void budget_partition(int n_layers, int n_ranks, int *layers)
{
    for (int i = 0; i < n_ranks; i++)
        layers[i] = n_layers / n_ranks + (i < n_layers % n_ranks);
}

double budget_expert_bytes(const struct plan_shape *s, int bits, int group_size)
{
    const double n = (double)s->expert;
    return n * bits / 8 + n / group_size * 2;
}

double budget_expert_buffer(const struct plan_shape *s, double expert_bytes, int divisor)
{
    struct plan_params p;
    plan_count(s, &p);
    if (divisor == 0)
        return expert_bytes * s->n_experts;
    return expert_bytes * (double)(s->n_experts + s->shared) * p.n_expert_layers / divisor;
}

/* Add the weights of a rank's layers, and the bytes a token adds to its cache. */
static void add_layers(struct budget_rank *r, const struct plan_shape *s, const struct budget_options *o)
{
    for (int i = r->first_layer; i < r->first_layer + r->n_layers; i++) {
        const struct plan_layer *l = &s->layer[i];
        r->attention += (double)l->mixer * o->linear_bytes;
        r->dense_mlp += (double)l->dense_mlp * o->linear_bytes;
        r->shared_mlp += (double)l->shared_mlp * o->linear_bytes;
        r->router_norms += (double)(l->norms + l->router) * 2;
        r->states += (double)l->state_bytes;
        r->kv_token += (double)plan_kv_elements(l) * o->kv_element_bytes;
    }
}

int budget_make(struct budget *b, const struct plan_shape *s, const struct budget_options *o, struct err *e)
{
    struct plan_params p;
    int sum = 0;
    *b = (struct budget){ .n_ranks = o->n_ranks ? o->n_ranks : 1 };
    if (b->n_ranks > BUDGET_RANKS)
        return err_set(e, ERR_LIMIT, "%d ranks, expected at most %d", b->n_ranks, BUDGET_RANKS);
    plan_count(s, &p);
    for (int i = 0; i < b->n_ranks; i++) {
        struct budget_rank *r = &b->rank[i];
        r->first_layer = sum;
        r->n_layers = o->n_ranks ? o->layers[i] : s->n_layers;
        sum += r->n_layers;
        if (r->n_layers < 1 || sum > s->n_layers)
            return err_set(e, ERR_SHAPE, "rank %d has %d layers, the ranks before it %d: the model has %d", i,
                           r->n_layers, r->first_layer, s->n_layers);
        add_layers(r, s, o);
        if (i == 0)
            r->embedding = (double)p.embedding * 2;
        if (i == b->n_ranks - 1)
            /* on another rank than the embedding, a tied head is a copy of the embedding */
            r->head = (double)(p.head || b->n_ranks == 1 ? p.head : p.embedding) * 2;
        r->weights = r->attention + r->dense_mlp + r->shared_mlp + r->router_norms + r->embedding + r->head;
        r->experts = o->expert_bytes > 0 ? budget_expert_buffer(s, o->expert_bytes, o->divisor) *
                     (o->divisor ? (double)r->n_layers / s->n_layers : 1) : 0;
        r->free = o->rank_bytes - r->weights - r->experts - r->states - o->headroom_bytes;
        /* without keys and values the states, which do not grow, set no limit */
        r->tokens = r->free <= 0 ? 0 : r->kv_token > 0 ? r->free / r->kv_token : s->max_len;
        if (r->tokens < b->rank[b->bottleneck].tokens)
            b->bottleneck = i;
    }
    if (sum != s->n_layers)
        return err_set(e, ERR_SHAPE, "the ranks have %d layers together: the model has %d", sum, s->n_layers);
    b->tokens = b->rank[b->bottleneck].tokens;
    b->context = o->context && o->context < b->tokens ? o->context : b->tokens;
    if (b->context > s->max_len)
        b->context = s->max_len;
    for (int i = 0; i < b->n_ranks; i++) {
        const double share = (b->rank[i].weights + b->rank[i].experts + b->rank[i].states + b->context *
                              b->rank[i].kv_token) / o->rank_bytes;
        b->fraction = share > b->fraction ? share : b->fraction;
    }
    return 0;
}

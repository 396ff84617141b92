/* cpu_moe.c - run a mixture of experts: choose, gather tokens by expert, multiply, add up.
 *
 * Parallel loops: router; gate and up of all chosen experts and of the shared MLP; down.  In the
 * last one, a job computes a few tiles of rows of one expert after the other, so all threads work
 * on each expert, and no two of them add to the same element.  A token's experts are added in
 * ascending order, independent of the batch.  Experts whose tokens do not fit into the buffers, or
 * that are not in memory yet (expert_cache.h), are computed in another round. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_ops.h"

enum {
    FEW_TOKENS = 8,             /* most tokens for which all experts fit into one round */
    /* guess the next layer's experts for at most this many tokens; more would choose too many
     * experts */
    GUESS_TOKENS = 4,
};

/* The tokens of one expert in a round; expert -1: the shared MLP. */
struct batch_expert {
    /* n: number of tokens; row: the first of their rows in moe.in and moe.mid */
    int expert, n, row;
    const int *token;
    /* moe_pairs(): rows of the output, which are set; NULL: the weighted results are added to the
     * rows `token` */
    const int *to;
    const float *weight;
    const struct expert *x;         /* the matrices of the expert */
    struct act_input in, down;
};

/* ---- memory ---- */

size_t moe_floats(const struct config *c)
{
    const struct moe *m = &c->moe;
    return m->n_experts ? (size_t)m->n_experts + 1 + 4 * (size_t)m->top_k + 2 * (size_t)c->hidden_size + 2 *
           (size_t)m->intermediate_size + 4 * (size_t)m->latent : 0;
}

int moe_open(struct core *k, struct err *e)
{
    const struct moe *m = &k->c->moe;
    struct moe_work *w = &k->moe;
    const size_t t = (size_t)k->max_tokens, chosen = t * (size_t)m->top_k, experts = (size_t)m->n_experts;
    const int few = FEW_TOKENS * m->top_k;
    w->rows = k->max_tokens > few ? k->max_tokens : few;
    const int width = config_expert_width(k->c);
    /* guess_next() keeps hidden states there */
    const size_t in = (size_t)w->rows * (size_t)(width > k->c->hidden_size ? width : k->c->hidden_size),
                 mid = (size_t)w->rows * (size_t)m->intermediate_size;
    w->scores = malloc((t * experts + t) * sizeof *w->scores);
    w->id = malloc((2 * chosen + experts + 1) * sizeof *w->id);
    w->weight = malloc(2 * chosen * sizeof *w->weight);
    w->in = malloc((in + mid) * sizeof *w->in);
    w->latent = m->latent ? malloc(2 * t * (size_t)m->latent * sizeof *w->latent) : NULL;
    w->batch = calloc(experts + 1, sizeof *w->batch);
    w->ops = calloc(experts + 1, sizeof *w->ops);
    w->wanted = malloc(2 * experts * sizeof *w->wanted);
    w->here = malloc((experts + 1) * sizeof *w->here);
    if (!w->wanted || !w->here || (m->latent && !w->latent) ||
        !w->scores || !w->id || !w->weight || !w->in || !w->batch || !w->ops)
        return err_nomem(e, "activations of experts");
    w->shared_score = w->scores + t * experts;
    w->token = w->id + chosen;
    w->first = w->token + chosen;
    w->share = w->weight + chosen;
    w->mid = w->in + in;
    w->sum = w->latent ? w->latent + t * (size_t)m->latent : NULL;
    k->bytes += 2 * t * (size_t)m->latent * sizeof(float);
    k->bytes += (t * experts + t + 4 * chosen + 3 * experts + 1 + in + mid) * sizeof(float) + (experts + 1) *
                (sizeof *w->batch + sizeof *w->ops + sizeof *w->here);
    return 0;
}

void moe_close(struct core *k)
{
    struct moe_work *w = &k->moe;
    free(w->scores);
    free(w->id);
    free(w->weight);
    free(w->in);
    free(w->latent);
    free(w->batch);
    free(w->ops);
    free(w->act[0]);
    free(w->act[1]);
    free(w->used);
    free(w->wanted);
    free(w->here);
    *w = (struct moe_work){ 0 };
}

/* Size in bytes of n tokens quantized for these matrices. */
static size_t rounded(const struct core *k, const struct linear *const *l, int n_matrices, int n)
{
    struct act_input in;
    size_t bytes = 0;
    core_forms(k, &in, l, n_matrices);
    for (int i = 0; i < in.n_forms; i++)
        bytes += up64(k->k->act_bytes(n, in.form[i].cols_padded, in.form[i].act_group));
    return bytes;
}

/* Allocate quantized activations for the tokens of any one expert, and for all experts of a few
 * tokens. */
int moe_reserve(struct core *k, const struct layer *l, struct err *e)
{
    struct moe_work *w = &k->moe;
    for (int i = 0; i < k->c->moe.n_experts; i++) {
        const struct expert *x = &l->experts[i];
        const struct linear *const up[] = { &x->gate, &x->up }, *const down[] = { &x->down };
        for (int s = 0; s < 2; s++) {
            const size_t most = rounded(k, s ? down : up, s ? 1 : 2, k->max_tokens),
                         one = rounded(k, s ? down : up, s ? 1 : 2, 1);
            const size_t few = one * (size_t)(FEW_TOKENS * k->c->moe.top_k), need = 2 * (most > few ? most : few);
            if (need <= w->act_bytes[s])
                continue;
            free(w->act[s]);
            k->bytes += need - w->act_bytes[s];
            w->act_bytes[s] = need;
            if (!(w->act[s] = aligned_alloc(64, need))) {
                w->act_bytes[s] = 0;
                return err_nomem(e, "activations of experts");
            }
        }
    }
    return 0;
}

/* ---- choosing experts ---- */

/* Returns the index of the largest score that is not taken.  A NaN never counts as larger, so even
 * with NaNs each token gets top_k different experts; their weights are NaN. */
static int best_of(const float *score, const unsigned char *taken, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || score[i] > score[best]))
            best = i;
    return best;
}

/* Mark experts outside of the best groups as taken. */
static void limit_groups(const struct moe *m, const float *score, unsigned char *taken)
{
    const int size = m->n_experts / m->n_groups;
    float good[m->n_groups];
    unsigned char chosen[m->n_groups];
    memset(chosen, 0, sizeof chosen);
    for (int g = 0; g < m->n_groups; g++) {
        unsigned char seen[size];
        memset(seen, 0, sizeof seen);
        good[g] = 0;
        for (int i = 0; i < m->group_best; i++) {
            const int best = best_of(score + g * size, seen, size);
            seen[best] = 1;
            good[g] += score[g * size + best];
        }
    }
    for (int i = 0; i < m->top_groups; i++)
        chosen[best_of(good, chosen, m->n_groups)] = 1;
    for (int g = 0; g < m->n_groups; g++)
        if (!chosen[g])
            memset(taken + g * size, 1, (size_t)size);
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* Turn the router's outputs into scores, in place. */
static void score_all(const struct moe *m, float *s)
{
    float most = -INFINITY, sum = 0;
    for (int i = 0; i < m->n_experts; i++)
        most = s[i] > most ? s[i] : most;
    for (int i = 0; i < m->n_experts; i++) {
        s[i] = m->router == ROUTER_SIGMOID ? sigmoid(s[i])
               : m->router == ROUTER_SQRT_SOFTPLUS ? sqrtf(softplus(s[i])) : expf(s[i] - most);
        sum += s[i];
    }
    for (int i = 0; i < m->n_experts && m->router == ROUTER_SOFTMAX; i++)
        s[i] /= sum;
}

static void weigh(const struct moe *m, float *weight)
{
    float sum = 0, most = -INFINITY;
    if (m->router == ROUTER_TOP_SOFTMAX) {
        for (int i = 0; i < m->top_k; i++)
            most = weight[i] > most ? weight[i] : most;
        for (int i = 0; i < m->top_k; i++)
            weight[i] = expf(weight[i] - most);
    }
    for (int i = 0; i < m->top_k; i++)
        sum += weight[i];
    sum += m->norm_add;
    sum = sum < m->norm_min ? m->norm_min : sum;
    for (int i = 0; i < m->top_k; i++)
        weight[i] = (m->normalize || m->router == ROUTER_TOP_SOFTMAX ? weight[i] / sum : weight[i]) * m->scale;
}

/* ROUTER_SPARSEMIXER: choose from the router's outputs s. */
static void sparsemixer(const struct moe *m, const float *s, unsigned char *taken, int *id, float *weight)
{
    for (int i = 0; i < m->top_k; i++) {
        const int best = best_of(s, taken, m->n_experts);
        float sum = 0;
        for (int x = 0; x < m->n_experts; x++) {
            const float size = fabsf(s[x]) > s[best] ? fabsf(s[x]) : s[best];
            if (!taken[x] && !((s[best] - s[x]) / size > m->mask))
                sum += expf(s[x] - s[best]);
        }
        taken[best] = 1;
        id[i] = best;
        weight[i] = m->scale / sum;
    }
}

/* Choose for one token: score [n_experts] holds the router's outputs, and afterwards the scores. */
static void choose(const struct moe *m, float *score, const float *correction, int *id, float *weight)
{
    unsigned char taken[m->n_experts];
    float wanted[m->n_experts];
    memset(taken, 0, sizeof taken);
    if (m->router == ROUTER_SPARSEMIXER) {
        sparsemixer(m, score, taken, id, weight);
        return;
    }
    if (m->router != ROUTER_TOP_SOFTMAX && (correction || m->n_groups > 1)) {
        score_all(m, score);
        for (int i = 0; i < m->n_experts; i++)
            wanted[i] = score[i] + (correction ? correction[i] : 0);
        if (m->n_groups > 1)
            limit_groups(m, wanted, taken);
    /* compare the router's outputs, which may differ where the scores are equal */
    } else {
        memcpy(wanted, score, sizeof wanted);
        if (m->router != ROUTER_TOP_SOFTMAX)
            score_all(m, score);
    }
    for (int i = 0; i < m->top_k; i++) {
        id[i] = best_of(wanted, taken, m->n_experts);
        taken[id[i]] = 1;
        weight[i] = score[id[i]];
    }
    weigh(m, weight);
}

/* Take the experts that a table lists for a token, each once: a repeated expert is replaced by the
 * next free one.  An invalid number counts as expert 0. */
static void look_up(const struct moe *m, float *score, const float *experts, int *id, float *weight)
{
    unsigned char taken[m->n_experts];
    memset(taken, 0, sizeof taken);
    score_all(m, score);
    for (int i = 0; i < m->top_k; i++) {
        int x = experts[i] > 0 && experts[i] < (float)m->n_experts ? (int)experts[i] : 0;
        while (taken[x])
            x = (x + 1) % m->n_experts;
        taken[x] = 1;
        id[i] = x;
        weight[i] = score[x];
    }
    weigh(m, weight);
}

/* Choose the experts of token t of the step from the router's outputs. */
static void choose_for(const struct core *k, const struct layer *l, int t, float *score, int *id, float *weight)
{
    const struct moe *m = &k->c->moe;
    if (l->token_experts)
        look_up(m, score, l->token_experts + (size_t)k->token[t] * (size_t)m->top_k, id, weight);
    else
        choose(m, score, l->correction, id, weight);
}

struct route_job { struct core *k; const struct layer *l; };

static void route_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct route_job *j = arg;
    const struct moe *m = &j->k->c->moe;
    struct moe_work *w = &j->k->moe;
    choose_for(j->k, j->l, t, w->scores + (size_t)t * (size_t)m->n_experts, w->id + t * m->top_k,
               w->weight + t * m->top_k);
    for (int i = t * m->top_k; i < (t + 1) * m->top_k && j->l->expert_scale; i++)
        w->weight[i] *= j->l->expert_scale[w->id[i]];
    if (m->shared_gate)
        w->shared_score[t] = sigmoid(w->shared_score[t]);
}

/* Sort the tokens and weights of a choice by expert, tokens ascending. */
static void sort_by_expert(const struct moe *m, const int *id, const float *weight, int n, int *first, int *token,
                           float *share)
{
    memset(first, 0, ((size_t)m->n_experts + 1) * sizeof *first);
    for (int i = 0; i < n * m->top_k; i++)
        first[id[i] + 1]++;
    for (int i = 0; i < m->n_experts; i++)
        first[i + 1] += first[i];
    for (int t = 0; t < n; t++)
        for (int i = t * m->top_k; i < (t + 1) * m->top_k; i++) {
            const int at = first[id[i]]++;
            token[at] = t;
            share[at] = weight[i];
        }
    for (int i = m->n_experts; i > 0; i--)
        first[i] = first[i - 1];
    first[0] = 0;
}

/* ---- a round ---- */

struct round_job { struct core *k; const struct layer *l; const struct act_input *in; struct batch_expert *b; int n,
                   down; };

/* Quantize the input of an expert for its matrices: the input of gate and up after gathering its
 * tokens, the input of down from its intermediate rows. */
static void quantize_expert_input(void *arg, int i, int thread)
{
    (void)thread;
    const struct round_job *j = arg;
    struct batch_expert *b = &j->b[i];
    const struct moe *m = &j->k->c->moe;
    const size_t width = (size_t)config_expert_width(j->k->c);
    struct act_input *in = j->down ? &b->down : &b->in;
    if (b->expert < 0 || (!j->down && in->x == j->in->x))
        return;
    for (int r = 0; r < b->n && !j->down; r++) {
        float *to = j->k->moe.in + (size_t)(b->row + r) * width;
        const float *from = j->in->x + (size_t)b->token[r] * j->in->ldx;
        if (m->weigh_input)
            for (size_t d = 0; d < width; d++)
                to[d] = from[d] * b->weight[r];
        else
            memcpy(to, from, width * sizeof *to);
    }
    for (int p = 0; p < in->n_forms; p++)
        for (int part = 0; part < j->k->k->act_parts(b->n); part++)
            j->k->k->act_pack(in->form[p].act, in->x, in->ldx, b->n, in->cols, in->form[p].cols_padded,
                              in->form[p].act_group, part);
}

/* Place the quantized forms of an input at `at`; returns the bytes that they use. */
static size_t place(const struct core *k, struct act_input *in, int n, uint8_t *at)
{
    size_t used = 0;
    for (int p = 0; p < in->n_forms; p++) {
        in->form[p].act = at + used;
        used += up64(k->k->act_bytes(n, in->form[p].cols_padded, in->form[p].act_group));
    }
    return used;
}

/* Gather experts from *expert on: as many as fit into the buffers, at most `most`.  Returns their
 * number.  whole: 1 if the quantized forms of `in` are still valid. */
static int gather(struct core *k, const struct layer *l, const struct act_input *in, int n, int whole, int *expert,
                  int most, struct batch_expert *b)
{
    const struct moe *m = &k->c->moe;
    struct moe_work *w = &k->moe;
    const int width = config_expert_width(k->c);
    size_t used[2] = { 0 };
    int count = 0, row = 0;
    for (; *expert < m->n_experts && count < most; ++*expert) {
        const int first = w->first[*expert], tokens = w->first[*expert + 1] - first;
        const struct expert *x = &l->experts[*expert];
        const struct linear *const up[] = { &x->gate, &x->up }, *const down[] = { &x->down };
        struct batch_expert *to = &b[count];
        if (tokens == 0)
            continue;
        if (row + tokens > w->rows || used[0] + rounded(k, up, 2, tokens) > w->act_bytes[0] || used[1] +
            rounded(k, down, 1, tokens) > w->act_bytes[1])
            break;
        *to = (struct batch_expert){ .expert = *expert, .n = tokens, .row = row, .token = w->token + first,
                                     .weight = w->share + first, .x = x };
        if (n == 1 && whole && !m->weigh_input && core_has_forms(k, in, up, 2)) {
            /* with one token, all experts read the same input */
            to->in = *in;
        } else {
            to->in = (struct act_input){ .x = w->in + (size_t)row * (size_t)width,
                                     .ldx = (size_t)width, .cols = width };
            core_forms(k, &to->in, up, 2);
            used[0] += place(k, &to->in, tokens, w->act[0] + used[0]);
        }
        to->down = (struct act_input){ .x = w->mid + (size_t)row * (size_t)m->intermediate_size,
                                   .ldx = (size_t)m->intermediate_size, .cols = m->intermediate_size };
        core_forms(k, &to->down, down, 1);
        used[1] += place(k, &to->down, tokens, w->act[1] + used[1]);
        row += tokens;
        count++;
    }
    /* moe_reserve: any single expert fits */
    assert(count > 0 || most == 0 || *expert == m->n_experts);
    return count;
}

static void quantize_expert_inputs(struct core *k, struct round_job *j, int down, int rows)
{
    j->down = down;
    if ((size_t)rows * (size_t)(down ? k->c->moe.intermediate_size : config_expert_width(k->c)) <= SERIAL)
        for (int i = 0; i < j->n; i++)
            quantize_expert_input(j, i, 0);
    else
        pool_run(k->pool, j->n, quantize_expert_input, j);
}

static void hook_experts(const struct core *k, int index, const struct batch_expert *b, int count, int down)
{
    for (int i = 0; i < count && k->hook && k->hook->expert; i++) {
        const struct act_input *in = down ? &b[i].down : &b[i].in;
        if (b[i].expert >= 0)
            k->hook->expert(k->hook->user, index, b[i].expert, down ? ROLE_EXPERT_DOWN : ROLE_EXPERT_GATE, in->x,
                            in->ldx,
                           b[i].n, in->cols);
    }
}

/* Run the experts of b.  x: the sum of their outputs, or the residual; a shared MLP (expert -1)
 * adds to the residual, and with moe.latent it has a round of its own. */
static void run_round(struct core *k, const struct layer *l, int index, const struct act_input *in,
                      struct batch_expert *b, int count, float *x, int n, int last)
{
    const struct moe *m = &k->c->moe;
    struct moe_work *w = &k->moe;
    struct op *ops = w->ops;
    struct round_job job = { .k = k, .l = l, .in = in, .b = b, .n = count };
    int rows = 0;
    for (int i = 0; i < count; i++)
        rows += b[i].expert < 0 ? 0 : b[i].n;
    quantize_expert_inputs(k, &job, 0, rows);
    hook_experts(k, index, b, count, 0);
    for (int i = 0; i < count; i++) {
        const struct expert *e = b[i].x;
        const struct linear *up = e ? &e->up : &l->up, *gate = e ? &e->gate : &l->gate;
        ops[i] = (struct op){ .l = k->c->gated ? gate : up, .up = k->c->gated ? up : NULL, .in = &b[i].in,
                              .kind = OP_MLP, .n_tokens = b[i].n, .expert = e != NULL,
                              .out = e ? w->mid + (size_t)b[i].row * (size_t)m->intermediate_size : k->mlp,
                              .ldo = (size_t)(e ? m->intermediate_size : m->shared_size) };
    }
    core_linear(k, ops, count, n, NULL);
    quantize_expert_inputs(k, &job, 1, rows);
    hook_experts(k, index, b, count, 1);
    if (b[0].expert < 0) {
        core_layer_input(k, &b[0].down, k->mlp, m->shared_size, n, l, INPUT_DOWN);
        core_hook(k, index, ROLE_DOWN, &b[0].down, n);
    }
    for (int i = 0; i < count; i++)
        ops[i] = (struct op){ .l = b[i].expert < 0 ? &l->down : &b[i].x->down, .in = &b[i].down, .kind = OP_SCATTER,
                              .n_tokens = b[i].n, .out = x,
                              .ldo = (size_t)(b[i].expert < 0 ? k->c->hidden_size : config_expert_width(k->c)),
                              .scale = b[i].to || (b[i].expert >= 0 && m->latent) ? 1
                                       : k->residual * (b[i].expert < 0 ? m->shared_scale : 1),
                              .row = b[i].to ? b[i].to : b[i].token,
                              .weight = b[i].to || (b[i].expert >= 0 && m->weigh_input) ? NULL : b[i].weight };
    core_linear_sum(k, ops, count, n, last ? core_next(k, index, LOOP_DOWN) : NULL);
}

static struct batch_expert shared_mlp(const struct core *k, const struct act_input *in, int n)
{
    /* its input is `in`, and its output goes to k->mlp */
    return (struct batch_expert){ .expert = -1, .n = n, .in = *in,
                                  .weight = k->c->moe.shared_gate ? k->moe.shared_score : NULL };
}

/* Choose the experts of n <= max_tokens tokens; the result is in moe.id and moe.weight. */
void moe_route(struct core *k, const struct layer *l, const struct act_input *in, int n)
{
    const struct moe *m = &k->c->moe;
    struct moe_work *w = &k->moe;
    const struct op routers[] = { { .l = &l->router, .in = in, .out = w->scores, .ldo = (size_t)m->n_experts,
                                    .kind = OP_STORE },
                                  { .l = &l->shared_router, .in = in, .out = w->shared_score, .ldo = 1,
                                    .kind = OP_STORE } };
    struct route_job job = { k, l };
    core_linear(k, routers, m->shared_gate ? 2 : 1, n, NULL);
    if (n == 1)
        route_token(&job, 0, 0);
    else
        pool_run(k->pool, n, route_token, &job);
}

/* Guess which experts the next layer with experts will choose: give its router the present residual
 * x, which lacks the output of this layer's experts.  Prefetch them. */
static void guess_next(struct core *k, const struct layer *l, int index, struct expert_cache *cache, const float *x,
                       int n)
{
    const struct config *c = k->c;
    const size_t hidden = (size_t)c->hidden_size;
    struct moe_work *w = &k->moe;
    int next = index + 1;
    while (next < c->n_layers && c->ff[next] != FF_MOE)
        next++;
    if (next == c->n_layers || n > GUESS_TOKENS || !expert_cache_guesses(cache))
        return;
    l += next - index;
    /* In these models x holds outputs of experts here, not the residual. */
    if (c->moe.beside || c->hyper.n)
        return;
    for (int t = 0; t < n && l->mlp_norm.present; t++)
        core_norm_row(k, w->in + (size_t)t * hidden, x + (size_t)t * hidden, &l->mlp_norm, c->hidden_size);
    const struct act_input in = { .x = l->mlp_norm.present ? w->in : x, .ldx = hidden, .cols = c->hidden_size };
    core_linear(k, &(struct op){ .l = &l->router, .in = &in, .out = w->scores, .ldo = (size_t)c->moe.n_experts,
                                 .kind = OP_STORE }, 1, n, NULL);
    /* The buffers for ids and weights are free: this layer's choice has been sorted. */
    for (int t = 0; t < n; t++)
        choose_for(k, l, t, w->scores + (size_t)t * (size_t)c->moe.n_experts, w->id + t * c->moe.top_k,
                   w->weight + t * c->moe.top_k);
    expert_cache_guess(cache, next, w->id, n * c->moe.top_k);
}

/* Request the chosen experts from the cache. */
static void call_experts(struct core *k, const struct layer *l, int index, struct expert_cache *cache, const float *x,
                         int n)
{
    struct moe_work *w = &k->moe;
    const int n_experts = k->c->moe.n_experts;
    int count = 0;
    for (int i = 0; i < n_experts; i++)
        if (w->first[i] < w->first[i + 1]) {
            w->wanted[count] = i;
            w->wanted[n_experts + count++] = w->first[i + 1] - w->first[i];
        }
    expert_cache_want(cache, index, w->wanted, w->wanted + n_experts, count);
    guess_next(k, l, index, cache, x, n);
}

/* Run the chosen experts, and with_shared the shared MLP in their first round. */
static int run_experts(struct core *k, const struct layer *l, int index, const struct act_input *in, float *x, int n,
                       int with_shared)
{
    struct expert_cache *cache = residency_experts(k->residency);
    const struct moe *m = &k->c->moe;
    struct moe_work *w = &k->moe;
    int expert = 0;
    for (int first = 1; first || expert < m->n_experts; first = 0) {
        const int shared = first && with_shared;
        if (shared)
            w->batch[0] = shared_mlp(k, in, n);
        const int count = shared + gather(k, l, in, n, first || !with_shared, &expert,
                                          cache ? expert_cache_use(cache, !shared) : m->n_experts, w->batch + shared);
        while (expert < m->n_experts && w->first[expert] == w->first[expert + 1])
            expert++;
        for (int i = shared; i < count && cache; i++) {
            w->here[i] = expert_cache_at(cache, index, w->batch[i].expert);
            w->batch[i].x = &w->here[i];
        }
        run_round(k, l, index, in, w->batch, count, x, n, expert == m->n_experts);
        if (cache)
            expert_cache_release(cache, count - shared);
    }
    return 0;
}

void moe_latents(struct core *k, const struct layer *l, const struct act_input *in, int n, float *out,
                 size_t ldo)
{
    core_linear(k, &(struct op){ .l = &l->latent_in, .in = in, .out = out, .ldo = ldo, .kind = OP_STORE }, 1, n, NULL);
}

void moe_add_latents(struct core *k, const struct linear *out, const float *sum, float *x, int n)
{
    struct act_input in;
    core_input(k, &in, core_slot(k->c, INPUT_DOWN), sum, k->c->moe.latent, n, &out, 1);
    core_linear(k, &(struct op){ .l = out, .in = &in, .out = x, .ldo = (size_t)k->c->hidden_size, .kind = OP_ADD,
                                 .scale = k->residual }, 1, n, NULL);
}

/* The shared MLP adds to x in a round of its own, the experts of latents add to a sum. */
static int run_latent(struct core *k, const struct layer *l, int index, const struct act_input *in, float *x, int n)
{
    const struct moe *m = &k->c->moe;
    struct moe_work *w = &k->moe;
    const size_t width = (size_t)m->latent;
    const struct act_input latent = { .x = w->latent, .ldx = width, .cols = m->latent };
    moe_latents(k, l, in, n, w->latent, width);
    if (m->shared_size) {
        w->batch[0] = shared_mlp(k, in, n);
        run_round(k, l, index, in, w->batch, 1, x, n, 0);
    }
    memset(w->sum, 0, (size_t)n * width * sizeof *w->sum);
    run_experts(k, l, index, &latent, w->sum, n, 0);
    moe_add_latents(k, &l->latent_out, w->sum, x, n);
    return 0;
}

int moe_run(struct core *k, const struct layer *l, int index, const struct act_input *router,
            const struct act_input *in, float *x, int n)
{
    struct expert_cache *cache = residency_experts(k->residency);
    const struct moe *m = &k->c->moe;
    struct moe_work *w = &k->moe;
    if (router)
        moe_route(k, l, router, n);
    if (k->watch)
        k->watch->experts(k->watch->user, index, w->id, w->weight, n, m->top_k);
    sort_by_expert(m, w->id, w->weight, n, w->first, w->token, w->share);
    for (int i = 0; i < m->n_experts && w->used; i++)
        w->used[(size_t)index * (size_t)m->n_experts + (size_t)i] += (unsigned)(w->first[i + 1] - w->first[i]);
    if (cache)
        call_experts(k, l, index, cache, x, n);
    return m->latent ? run_latent(k, l, index, in, x, n) : run_experts(k, l, index, in, x, n, m->shared_size > 0);
}

/* Sort the pairs with an expert, like sort_by_expert(); to: number of each among these pairs in
 * their first order.  Returns how many there are. */
static int sort_pairs(const struct moe *m, const int32_t *id, const float *weight, int n, struct moe_work *w)
{
    int count = 0;
    memset(w->first, 0, ((size_t)m->n_experts + 1) * sizeof *w->first);
    for (int i = 0; i < n * m->top_k; i++)
        if (id[i] >= 0)
            w->first[id[i] + 1]++;
    for (int i = 0; i < m->n_experts; i++)
        w->first[i + 1] += w->first[i];
    for (int i = 0; i < n * m->top_k; i++)
        if (id[i] >= 0) {
            const int at = w->first[id[i]]++;
            w->token[at] = i / m->top_k;
            w->share[at] = weight[i];
            w->id[at] = count++;
        }
    memmove(w->first + 1, w->first, (size_t)m->n_experts * sizeof *w->first);
    w->first[0] = 0;
    return count;
}

int moe_pairs(struct core *k, const struct layer *l, int index, const float *h, const int32_t *id,
              const float *weight, int n, float *out)
{
    const struct moe *m = &k->c->moe;
    struct moe_work *w = &k->moe;
    const int width = config_expert_width(k->c), n_pairs = sort_pairs(m, id, weight, n, w);
    const struct act_input in = { .x = h, .ldx = (size_t)width, .cols = width };
    memset(out, 0, (size_t)n_pairs * (size_t)width * sizeof *out);
    for (int expert = 0, count; n_pairs && expert < m->n_experts; ) {
        count = gather(k, l, &in, n, 0, &expert, m->n_experts, w->batch);
        for (int i = 0; i < count; i++)
            w->batch[i].to = w->id + w->first[w->batch[i].expert];
        if (count)
            run_round(k, l, index, &in, w->batch, count, out, n, 0);
    }
    return n_pairs;
}

int moe_choose(struct core *k, const struct layer *l, int index, const int32_t *ids, const float *h, size_t ldh,
               float *x, int n, struct cpu_choice *c, struct err *e)
{
    const struct moe *m = &k->c->moe;
    const size_t chosen = (size_t)n * (size_t)m->top_k;
    int *id = malloc(chosen * sizeof *id);
    float *weight = malloc(chosen * sizeof *weight);
    *c = (struct cpu_choice){ .first = malloc((chosen + (size_t)m->n_experts + 1) * sizeof *c->first),
                              .share = malloc(chosen * sizeof *c->share) };
    const int ok = id && weight && c->first && c->share;
    for (int t = 0, count; t < n && ok; t += count) {
        count = n - t < k->max_tokens ? n - t : k->max_tokens;
        const struct act_input in = { .x = h + (size_t)t * ldh, .ldx = ldh, .cols = k->c->hidden_size };
        if (ids)
            memcpy(k->token, ids + t, (size_t)count * sizeof *ids);
        moe_route(k, l, &in, count);
        memcpy(id + t * m->top_k, k->moe.id, (size_t)(count * m->top_k) * sizeof *id);
        memcpy(weight + t * m->top_k, k->moe.weight, (size_t)(count * m->top_k) * sizeof *weight);
        if (m->shared_size) {
            k->moe.batch[0] = shared_mlp(k, &in, count);
            run_round(k, l, index, &in, k->moe.batch, 1, x + (size_t)t * (size_t)k->c->hidden_size, count, 0);
        }
    }
    if (ok) {
        c->token = c->first + m->n_experts + 1;
        sort_by_expert(m, id, weight, n, c->first, c->token, c->share);
    } else {
        cpu_choice_release(c);
        err_nomem(e, "the choice of experts");
    }
    free(id);
    free(weight);
    return ok ? 0 : -1;
}

/* Run one expert, at most max_tokens tokens at a time. */
void moe_one(struct core *k, const struct layer *l, int index, int expert, const float *h, size_t ldh, float *x,
             const struct cpu_choice *c)
{
    struct moe_work *w = &k->moe;
    const int width = config_expert_width(k->c), size = k->c->moe.intermediate_size;
    const struct act_input all = { .x = h, .ldx = ldh, .cols = width };
    for (int at = c->first[expert], count; at < c->first[expert + 1]; at += count) {
        count = c->first[expert + 1] - at < k->max_tokens ? c->first[expert + 1] - at : k->max_tokens;
        w->batch[0] = (struct batch_expert){ .expert = expert, .n = count, .x = &l->experts[expert],
                                             .token = c->token + at, .weight = c->share + at,
                                             .in = { .x = w->in, .ldx = (size_t)width, .cols = width },
                                             .down = { .x = w->mid, .ldx = (size_t)size, .cols = size } };
        run_round(k, l, index, &all, w->batch, 1, x, count, 0);
    }
}

void moe_mid(struct core *k, const struct expert *x, const float *h, size_t ldh, int n, float *mid, size_t ldm)
{
    const struct act_input in = { .x = h, .ldx = ldh, .cols = config_expert_width(k->c) };
    const int gated = k->c->gated;
    core_linear(k, &(struct op){ .l = gated ? &x->gate : &x->up, .up = gated ? &x->up : NULL, .in = &in, .out = mid,
                                 .ldo = ldm, .kind = OP_MLP, .expert = 1 }, 1, n, NULL);
}

/* shape.c - read the sizes of a model from its configuration. */
#include "libcommon/plan/shape.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

static int make_layers(struct plan_shape *s, struct err *e)
{
    s->layer = calloc((size_t)s->n_layers, sizeof *s->layer);
    return s->layer ? 0 : err_nomem(e, "layers");
}

void plan_shape_release(struct plan_shape *s)
{
    free(s->layer);
    *s = (struct plan_shape){ 0 };
}

/* ---- architectures that run ---- */

static void layer_of(struct plan_layer *l, const struct config *c, int i)
{
    const int64_t h = c->hidden_size, matrices = c->gated ? 3 : 2;
    const int mla = c->mixer[i] == MIXER_MLA, moe = c->ff[i] == FF_MOE;
    l->has_experts = moe;
    l->router = moe ? h * c->moe.n_experts : 0;
    *(moe ? &l->shared_mlp : &l->dense_mlp) = matrices * h * config_mlp_size(c, i);
    if (moe)
        l->shared_mlp += 2 * h * c->moe.latent;
    /* per-layer embeddings: the gate, the projection, and the layer's part of ple_in */
    l->dense_mlp += 3 * h * c->ple_dim;
    if (i == 0 && c->n_streams)                 /* the projections into the streams and out of them */
        l->dense_mlp += 2 * (int64_t)(c->n_streams - 1) * h * h;
    l->mixer = config_mixer_parameters(c, i);
    l->norms = ((c->mixer[i] != MIXER_NONE) + (c->ff[i] != FF_NONE)) * h + (mla ? c->mla.kv_rank + c->mla.q_rank : 0);
    const int64_t streams = (int64_t)c->hyper.n * h;
    /* the gates of hyper-connections; layer 0 also counts those at the end of the model */
    if (c->hyper.rank)
        l->dense_mlp += (2 * (i == 0 ? 2 : 1) * (int64_t)c->hyper.rank + c->hyper.n) * streams;
    else
        l->norms += 2 * streams * (c->hyper.n + 2);                             /* kept in f32 like norms */
    l->window = c->window[i] ? c->window[i] : c->chunk[i];
    l->state_bytes = (int64_t)(config_state_floats(c, i) * sizeof(float));
    if (!mixer_has_kv(c->mixer[i]))
        return;
    l->stored = config_layer_window(c, i, 0);
    l->kv_rows = mla || c->rates ? 1 : config_shares_kv(c, i) ? 0 : 2 * config_kv_heads(c, i);
    l->kv_width = config_head_dim(c, i);
    l->index_width = config_indexes(c, i) ? c->indexer.head_dim : 0;
    l->entries = config_entries(c, i);
    if (c->indexer.block && l->entries)
        l->window = (c->indexer.top_k + 1) * c->indexer.block;
    /* In addition to its window, a token attends to the entries that an indexer chooses, or to all
     * entries. */
    else if (l->entries)
        l->window += l->index_width ? c->indexer.top_k : c->max_len / c->rates[i];
    /* multiplications for the scores, plus those for the weighted sums of values */
    l->attended = mla ? (int64_t)c->n_heads * (2 * c->mla.kv_rank + c->mla.rope_dim)
                      : 2 * (int64_t)c->n_heads * config_head_dim(c, i);
}

int plan_shape_of(struct plan_shape *s, const struct config *c, struct err *e)
{
    *s = (struct plan_shape){ .n_layers = c->n_layers, .hidden_size = c->hidden_size,
                              .intermediate_size = c->intermediate_size, .vocab_size = c->vocab_size,
                              .max_len = c->max_len, .tied = c->tied, .n_experts = c->moe.n_experts,
                              .top_k = c->moe.top_k };
    if (c->pos == POS_LEARNED)
        s->positions = ((int64_t)c->max_len + c->pos_offset) * c->hidden_size;
    s->positions += (int64_t)c->ple_vocab * c->n_layers * c->ple_dim;
    if (c->moe.n_experts) {
        s->expert = (c->gated ? 3 : 2) * (int64_t)config_expert_width(c) * c->moe.intermediate_size;
        s->shared = c->moe.intermediate_size ? c->moe.shared_size / c->moe.intermediate_size : 0;
    }
    if (make_layers(s, e) != 0)
        return -1;
    for (int i = 0; i < s->n_layers; i++)
        layer_of(&s->layer[i], c, i);
    return 0;
}

/* ---- others: the keys that most configurations share ---- */

enum { MOST = 1 << 28 };

struct guess {
    int n_heads, n_kv_heads, head_dim, gated;
    int expert_size, shared_size, n_dense_layers /* the first ones */, expert_every /* 1: every layer after them */;
    int q_rank, kv_rank, nope_dim, rope_dim, v_dim;         /* latent attention; kv_rank 0: none */
    int window;
};

/* Read the first of these keys that is present; `otherwise` if none is, -1: one is required. */
static int number(const json_t *c, const char *const *keys, int64_t otherwise, int *out, struct err *e)
{
    int64_t v;
    for (int i = 0; keys[i]; i++)
        if (js_get(c, keys[i])) {
            if (js_int(c, keys[i], 0, MOST, &v, e) != 0)
                return err_prefix(e, "config.json");
            *out = (int)v;
            return 0;
        }
    *out = (int)otherwise;
    return otherwise >= 0 ? 0 : err_set(e, ERR_FORMAT, "config.json: %s is missing", keys[0]);
}
#define NUMBER(field, otherwise, ...) number(c, (const char *const[]){ __VA_ARGS__, NULL }, (otherwise), &field, e)

static int guess_experts(struct plan_shape *s, struct guess *g, const json_t *c, struct err *e)
{
    int n_shared;
    if (NUMBER(s->n_experts, 0, "n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts") ||
        NUMBER(s->top_k, 2, "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k") ||
        NUMBER(g->expert_size, s->intermediate_size, "moe_intermediate_size") ||
        NUMBER(g->n_dense_layers, 0, "first_k_dense_replace", "num_dense_layers") ||
        NUMBER(g->expert_every, 1, "decoder_sparse_step", "moe_layer_freq") ||
        /* llama4 has one shared expert, and no key for their number */
        NUMBER(n_shared, js_get(c, "intermediate_size_mlp") != NULL, "n_shared_experts", "num_shared_experts",
               "moe_num_shared_experts"))
        return -1;
    if (n_shared > 1 << 16)
        return err_set(e, ERR_FORMAT, "config.json: n_shared_experts is %d, expected 65536 at most", n_shared);
    const int64_t shared = (int64_t)n_shared * g->expert_size;
    if (NUMBER(g->shared_size, shared < MOST ? shared : MOST, "shared_expert_intermediate_size"))
        return -1;
    if (g->expert_every < 1)
        g->expert_every = 1;
    return 0;
}

/* Refuse sizes that no model has: they would overflow the counts. */
static int check_sizes(const struct plan_shape *s, const struct guess *g, struct err *e)
{
    enum { MOST_LAYERS = 1 << 16 };             /* limit of layers, and of experts */
    if (s->n_layers < 1 || s->hidden_size < 1 || g->n_heads < 1 || g->n_kv_heads < 1 || s->vocab_size < 1 ||
        (g->head_dim < 1 && !g->kv_rank))
        return err_set(e, ERR_FORMAT, "config.json: a size is 0");
    if (s->n_layers > MOST_LAYERS || s->n_experts > MOST_LAYERS || s->top_k > MOST_LAYERS)
        return err_set(e, ERR_FORMAT, "config.json: %d layers, %d experts of which a token takes %d: expected %d at most", s->n_layers, s->n_experts, s->top_k, MOST_LAYERS);
    const double h = s->hidden_size, heads = (double)(g->n_heads > g->n_kv_heads ? g->n_heads : g->n_kv_heads) *
                                             ((double)g->head_dim + g->nope_dim + g->rope_dim + g->v_dim);
    const double ranks = (double)g->q_rank + g->kv_rank + g->rope_dim,
                 experts = (double)(s->n_experts > s->top_k ? s->n_experts : s->top_k) * (g->expert_size + 1.0);
    const double layer = h * (4 * heads + ranks + 3 * (s->intermediate_size + experts + (double)g->shared_size) + 2) +
                         heads * ranks + ranks;
    if (s->n_layers * layer + 2 * h * s->vocab_size >= 0x1p56)
        return err_set(e, ERR_FORMAT, "config.json: its sizes make %.3g parameters, expected less than %.3g",
                       s->n_layers * layer + 2 * h * s->vocab_size, 0x1p56);
    return 0;
}

static int64_t guess_attention(const struct plan_shape *s, const struct guess *g)
{
    const int64_t h = s->hidden_size, heads = g->n_heads;
    if (g->kv_rank) {
        const int64_t q = heads * (g->nope_dim + g->rope_dim);
        return (g->q_rank ? h * g->q_rank + g->q_rank * q : h * q) + h * (g->kv_rank + g->rope_dim) +
               (int64_t)g->kv_rank * heads * (g->nope_dim + g->v_dim) +
               heads * g->v_dim * h;
    }
    return 2 * h * heads * g->head_dim + 2 * h * g->n_kv_heads * g->head_dim;
}

/* Fill in one layer.  A layer that layer_types names otherwise ("linear_attention") keeps no keys
 * and values; it is assumed to have as many parameters as attention.  part: the layer's letter in
 * hybrid_override_pattern: a mixer (M, *), an MLP (-) or experts (E) alone; 0: there is no such
 * pattern. */
static void guess_layer(struct plan_layer *l, const struct plan_shape *s, const struct guess *g, int i,
                        const char *kind, char part)
{
    const int64_t h = s->hidden_size, matrices = g->gated ? 3 : 2;
    const int attention = part ? part == '*'
                               : !kind || strcmp(kind, "full_attention") == 0 || strcmp(kind, "sliding_attention") == 0;
    l->has_experts = s->n_experts > 0 && i >= g->n_dense_layers &&
                     (g->expert_every == 1 || (i + 1) % g->expert_every == 0) && (!part || part == 'E');
    l->router = l->has_experts ? h * s->n_experts : 0;
    if (l->has_experts)
        l->shared_mlp = matrices * h * g->shared_size;
    else if (!part || part == '-')
        l->dense_mlp = matrices * h * s->intermediate_size;
    l->mixer = !part || part == '*' || part == 'M' ? guess_attention(s, g) : 0;
    l->norms = 2 * h + (g->kv_rank ? g->kv_rank + g->q_rank : 0);
    l->window = kind && strcmp(kind, "sliding_attention") != 0 ? 0 : g->window;
    if (!attention)
        return;
    l->stored = g->kv_rank ? 0 : l->window;
    l->kv_rows = g->kv_rank ? 1 : 2 * g->n_kv_heads;
    l->kv_width = g->kv_rank ? g->kv_rank + g->rope_dim : g->head_dim;
    l->attended = g->kv_rank ? (int64_t)g->n_heads * (2 * g->kv_rank + g->rope_dim)
                             : 2 * (int64_t)g->n_heads * g->head_dim;
}

int plan_shape_guess(struct plan_shape *s, const json_t *config, struct err *e)
{
    struct guess g;
    *s = (struct plan_shape){ 0 };
    if (!json_is_object(config))
        return err_set(e, ERR_FORMAT, "config.json: found %s, expected an object", js_kind(config));
    const json_t *c = json_is_object(js_get(config, "text_config")) ? js_get(config, "text_config") : config;
    const json_t *kinds = js_get(c, "layer_types"), *off = js_get(c, "use_sliding_window");
    const char *type, *pattern;
    if (js_string_or(c, "model_type", "", &type, e) || js_string_or(c, "hybrid_override_pattern", "", &pattern, e))
        return err_prefix(e, "config.json");
    if (NUMBER(s->n_layers, -1, "num_hidden_layers", "n_layer", "n_layers") ||
        NUMBER(s->hidden_size, -1, "hidden_size", "n_embd", "d_model") ||
        NUMBER(g.n_heads, -1, "num_attention_heads", "n_head", "n_heads") || NUMBER(s->vocab_size, -1, "vocab_size") ||
        NUMBER(g.n_kv_heads, g.n_heads, "num_key_value_heads", "num_kv_heads") ||
        NUMBER(s->intermediate_size, 4 * (int64_t)s->hidden_size, "intermediate_size", "ffn_dim", "n_inner") ||
        NUMBER(s->max_len, 2048, "max_position_embeddings", "n_positions", "max_seq_len") ||
        NUMBER(g.head_dim, g.n_heads ? s->hidden_size / g.n_heads : 0, "head_dim") ||
        NUMBER(g.kv_rank, 0, "kv_lora_rank") || NUMBER(g.q_rank, 0, "q_lora_rank") ||
        NUMBER(g.nope_dim, 0, "qk_nope_head_dim") || NUMBER(g.rope_dim, 0, "qk_rope_head_dim") ||
        NUMBER(g.v_dim, 0, "v_head_dim") || NUMBER(g.window, 0, "sliding_window") || guess_experts(s, &g, c, e))
        return -1;
    if (js_bool_or(c, "tie_word_embeddings", json_is_true(js_get(config, "tie_word_embeddings")), &s->tied, e))
        return err_prefix(e, "config.json");
    int ple_vocab, ple_dim;                     /* per-layer embeddings */
    if (NUMBER(ple_vocab, 0, "vocab_size_per_layer_input") || NUMBER(ple_dim, 0, "hidden_size_per_layer_input"))
        return -1;
    if ((int64_t)ple_dim * s->n_layers > MOST)
        return err_set(e, ERR_FORMAT, "config.json: hidden_size_per_layer_input is %d, expected less", ple_dim);
    s->positions = (int64_t)ple_dim * s->n_layers * ple_vocab;
    const struct arch *known = arch_find(type);
    g.gated = !known || !known->not_gated;
    if (off && !json_is_true(off))
        g.window = 0;
    if (check_sizes(s, &g, e) != 0 || make_layers(s, e) != 0)
        return -1;
    s->expert = s->n_experts ? (g.gated ? 3 : 2) * (int64_t)s->hidden_size * g.expert_size : 0;
    s->shared = s->n_experts && g.expert_size ? g.shared_size / g.expert_size : 0;
    for (int i = 0; i < s->n_layers; i++)
        guess_layer(&s->layer[i], s, &g, i, json_string_value(json_array_get(kinds, (size_t)i)),
                    strlen(pattern) == (size_t)s->n_layers ? pattern[i] : 0);
    return 0;
}

/* ---- sums ---- */

void plan_count(const struct plan_shape *s, struct plan_params *p)
{
    int64_t every = s->hidden_size;
    *p = (struct plan_params){ .embedding = (int64_t)s->hidden_size * s->vocab_size, .norms = s->hidden_size };
    p->head = s->tied ? 0 : p->embedding;
    for (int i = 0; i < s->n_layers; i++) {
        const struct plan_layer *l = &s->layer[i];
        every += l->mixer + l->dense_mlp + l->shared_mlp + l->router + l->norms;
        p->norms += l->norms;
        p->n_expert_layers += l->has_experts;
    }
    p->total = every + (int64_t)p->n_expert_layers * s->n_experts * s->expert + p->embedding + p->head + s->positions;
    p->active = every + (int64_t)p->n_expert_layers * s->top_k * s->expert + p->embedding;
}

uint64_t plan_state_bytes(const struct plan_shape *s)
{
    uint64_t n = 0;
    for (int i = 0; i < s->n_layers; i++)
        n += (uint64_t)s->layer[i].state_bytes;
    return n;
}

double plan_rough_bytes(const struct plan_shape *s, double linear_bytes, double ends_bytes)
{
    struct plan_params p;
    plan_count(s, &p);
    const double ends = (double)(p.embedding + p.head), norms = (double)p.norms;
    return ((double)p.total - ends - norms) * linear_bytes + ends * ends_bytes + norms * 2;
}

#include "libcommon/plan/shape.h"

#include <string.h>

#include "libcommon/base/json.h"

enum { MOST = 1 << 28 };

/* The first of these keys that is there; `otherwise` if none is, -1 meaning that one must be. */
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
#define NUMBER(field, otherwise, ...) number(c, (const char *const[]){ __VA_ARGS__, NULL }, (otherwise), &s->field, e)

static int is_one_of(const char *name, const char *const *list)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(list[i], name) == 0)
            return 1;
    return 0;
}

static int parse_experts(struct plan_shape *s, const json_t *c, struct err *e)
{
    int n_shared;
    if (NUMBER(n_experts, 0, "n_routed_experts", "num_local_experts", "num_experts") || NUMBER(top_k, 2, "num_experts_per_tok", "moe_top_k") ||
        NUMBER(expert_size, s->intermediate_size, "moe_intermediate_size") || NUMBER(n_dense_layers, 0, "first_k_dense_replace") ||
        NUMBER(expert_every, 1, "decoder_sparse_step", "moe_layer_freq") || number(c, (const char *const[]){ "n_shared_experts", NULL }, 0, &n_shared, e))
        return -1;
    int own;
    if (number(c, (const char *const[]){ "shared_expert_intermediate_size", NULL }, 0, &own, e))
        return -1;
    s->shared_size = own ? own : (int64_t)n_shared * s->expert_size;
    if (s->expert_every < 1)
        s->expert_every = 1;
    return 0;
}

static int parse_windows(struct plan_shape *s, const json_t *c, const char *type, struct err *e)
{
    static const char *const every_second[] = { "gemma2", "gpt_oss", "cohere2", NULL };
    const json_t *types = js_get(c, "layer_types"), *v;
    int pattern;
    size_t i;
    if (NUMBER(window, 0, "sliding_window") || number(c, (const char *const[]){ "sliding_window_pattern", NULL }, 0, &pattern, e))
        return -1;
    if (!s->window || (js_get(c, "use_sliding_window") && !json_is_true(js_get(c, "use_sliding_window")))) {
        s->window = 0;
        return 0;
    }
    if (json_is_array(types)) {
        json_array_foreach((json_t *)types, i, v)
            s->n_windowed += json_is_string(v) && strcmp(json_string_value(v), "sliding_attention") == 0;
        return 0;
    }
    if (!pattern)
        pattern = is_one_of(type, every_second) ? 2 : strncmp(type, "gemma3", 6) == 0 ? 6 : 0;
    s->n_windowed = pattern ? s->n_layers - s->n_layers / pattern : s->n_layers;
    return 0;
}

/* Sizes that no model has would overflow the counts. */
static int check_sizes(const struct plan_shape *s, struct err *e)
{
    enum { MOST_LAYERS = 1 << 16 };             /* and experts */
    if (s->n_layers < 1 || s->hidden_size < 1 || s->n_heads < 1 || s->n_kv_heads < 1 || s->vocab_size < 1 || (s->head_dim < 1 && !s->kv_rank))
        return err_set(e, ERR_FORMAT, "config.json: a size is 0");
    if (s->n_layers > MOST_LAYERS || s->n_experts > MOST_LAYERS || s->top_k > MOST_LAYERS)
        return err_set(e, ERR_FORMAT, "config.json: %d layers, %d experts of which a token takes %d: expected %d at most", s->n_layers, s->n_experts, s->top_k, MOST_LAYERS);
    const double h = s->hidden_size, heads = (double)(s->n_heads > s->n_kv_heads ? s->n_heads : s->n_kv_heads) * ((double)s->head_dim + s->nope_dim + s->rope_dim + s->v_dim);
    const double ranks = (double)s->q_rank + s->kv_rank + s->rope_dim, experts = (double)(s->n_experts > s->top_k ? s->n_experts : s->top_k) * (s->expert_size + 1.0);
    const double layer = h * (4 * heads + ranks + 3 * (s->intermediate_size + experts + (double)s->shared_size) + 2) + heads * ranks + ranks;
    if (s->n_layers * layer + 2 * h * s->vocab_size >= 0x1p56)
        return err_set(e, ERR_FORMAT, "config.json: its sizes make %.3g parameters, expected less than %.3g", s->n_layers * layer + 2 * h * s->vocab_size, 0x1p56);
    return 0;
}

int plan_shape_parse(struct plan_shape *s, const json_t *config, struct err *e)
{
    static const char *const not_gated[] = { "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "falcon", "mpt", "bloom", "opt", "phi", "starcoder2", "nemotron", "arcee", NULL };
    static const char *const tied_by_default[] = { "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "bloom", "opt", "falcon", "cohere", "cohere2", NULL };
    *s = (struct plan_shape){ 0 };
    if (!json_is_object(config))
        return err_set(e, ERR_FORMAT, "config.json: found %s, expected an object", js_kind(config));
    const json_t *c = json_is_object(js_get(config, "text_config")) ? js_get(config, "text_config") : config;
    const char *type;
    int tied;
    if (js_string_or(c, "model_type", "", &type, e))
        return err_prefix(e, "config.json");
    if (NUMBER(n_layers, -1, "num_hidden_layers", "n_layer", "n_layers") || NUMBER(hidden_size, -1, "hidden_size", "n_embd", "d_model") ||
        NUMBER(n_heads, -1, "num_attention_heads", "n_head", "n_heads") || NUMBER(vocab_size, -1, "vocab_size") ||
        NUMBER(n_kv_heads, s->n_heads, "num_key_value_heads", "num_kv_heads") ||
        NUMBER(intermediate_size, 4 * (int64_t)s->hidden_size, "intermediate_size", "ffn_dim", "n_inner") ||
        NUMBER(max_len, 2048, "max_position_embeddings", "n_positions", "max_seq_len") ||
        NUMBER(head_dim, s->n_heads ? s->hidden_size / s->n_heads : 0, "head_dim") || NUMBER(kv_rank, 0, "kv_lora_rank") || NUMBER(q_rank, 0, "q_lora_rank") ||
        NUMBER(nope_dim, 0, "qk_nope_head_dim") || NUMBER(rope_dim, 0, "qk_rope_head_dim") || NUMBER(v_dim, 0, "v_head_dim") || parse_experts(s, c, e) ||
        parse_windows(s, c, type, e))
        return -1;
    if (js_bool_or(c, "tie_word_embeddings", js_get(config, "tie_word_embeddings") ? json_is_true(js_get(config, "tie_word_embeddings")) : is_one_of(type, tied_by_default),
                   &tied, e))
        return err_prefix(e, "config.json");
    s->tied = tied;
    s->gated = !is_one_of(type, not_gated);
    return check_sizes(s, e);
}

int plan_has_experts(const struct plan_shape *s, int layer)
{
    return s->n_experts > 0 && layer >= s->n_dense_layers && (s->expert_every == 1 || (layer + 1) % s->expert_every == 0);
}

static int64_t attention(const struct plan_shape *s)
{
    const int64_t h = s->hidden_size, heads = s->n_heads;
    if (s->kv_rank) {
        const int64_t q = heads * (s->nope_dim + s->rope_dim);
        return (s->q_rank ? h * s->q_rank + s->q_rank * q : h * q) + h * (s->kv_rank + s->rope_dim) + (int64_t)s->kv_rank * heads * (s->nope_dim + s->v_dim) +
               heads * s->v_dim * h;
    }
    return 2 * h * heads * s->head_dim + 2 * h * s->n_kv_heads * s->head_dim;
}

void plan_count(const struct plan_shape *s, struct plan_params *p)
{
    const int64_t h = s->hidden_size, matrices = s->gated ? 3 : 2;
    *p = (struct plan_params){ .attention = attention(s), .dense_mlp = matrices * h * s->intermediate_size, .embedding = h * s->vocab_size };
    p->norms = 2 * h + (s->kv_rank ? s->kv_rank + s->q_rank : 0);
    p->head = s->tied ? 0 : p->embedding;
    if (s->n_experts) {
        p->shared_mlp = matrices * h * s->shared_size;
        p->router = h * s->n_experts;
        p->expert = matrices * h * s->expert_size;
    }
    for (int i = 0; i < s->n_layers; i++)
        p->n_expert_layers += plan_has_experts(s, i);
    p->n_dense_layers = s->n_layers - p->n_expert_layers;
    const int64_t every = s->n_layers * (p->attention + p->norms) + p->n_dense_layers * p->dense_mlp + p->n_expert_layers * (p->shared_mlp + p->router) + h;
    p->total = every + (int64_t)p->n_expert_layers * s->n_experts * p->expert + p->embedding + p->head;
    p->active = every + (int64_t)p->n_expert_layers * s->top_k * p->expert + p->embedding;
}

int64_t plan_kv_layer_bytes(const struct plan_shape *s, int element_bytes)
{
    return (s->kv_rank ? s->kv_rank + s->rope_dim : 2 * (int64_t)s->n_kv_heads * s->head_dim) * element_bytes;
}

double plan_rough_bytes(const struct plan_shape *s, double linear_bytes, double ends_bytes)
{
    struct plan_params p;
    plan_count(s, &p);
    const double ends = (double)(p.embedding + p.head), norms = (double)p.norms * s->n_layers + s->hidden_size;
    return ((double)p.total - ends - norms) * linear_bytes + ends * ends_bytes + norms * 2;
}

/* arch_moe.c - architectures with mixtures of experts, and those with multi-head latent attention
 * (which have experts too).  Sources: the configuration and modeling files of transformers 5,
 * config.json of the models on the hub, and arXiv:2401.04088 (mixtral), 2405.04434 (deepseek_v2),
 * 2412.19437 (deepseek_v3). */
#include <math.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

#define LLAMA_TOP  .embed = "embed_tokens", .final_norm = "norm", .head = "lm_head", .layer = "layers."
#define LLAMA_ATTN .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.o_proj"
#define LLAMA_MLP  .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"
#define TWO_NORMS  .attn_norm = "input_layernorm", .mlp_norm = "post_attention_layernorm"
#define QK_NORMS   .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"
#define BASE       LLAMA_TOP, TWO_NORMS, LLAMA_ATTN
#define MLA        .q_a = "self_attn.q_a_proj", .q_a_norm = "self_attn.q_a_layernorm", .q_b = "self_attn.q_b_proj", .kv_a = "self_attn.kv_a_proj_with_mqa", \
                   .kv_norm = "self_attn.kv_a_layernorm", .kv_b = "self_attn.kv_b_proj"
#define EXPERTS    EXPERTS_OF("mlp.gate")
#define EXPERTS_OF(gate) .router = gate, .experts = "mlp.experts.", .expert_gate = "gate_proj", .expert_up = "up_proj", .expert_down = "down_proj"
#define SPARSE     .router = "block_sparse_moe.gate", .experts = "block_sparse_moe.experts.", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2"
#define SHARED     .shared_gate = "mlp.shared_experts.gate_proj", .shared_up = "mlp.shared_experts.up_proj", .shared_down = "mlp.shared_experts.down_proj"
#define CORRECTION .correction = "mlp.gate.e_score_correction_bias"

static const struct weight_names
mixtral_names    = { BASE, SPARSE, .gguf_permuted = 1 },
olmoe_names      = { BASE, QK_NORMS, EXPERTS },
granitemoe_names = { BASE, .router = "block_sparse_moe.router.layer", .experts_form = EXPERTS_FUSED,
                     .experts = "block_sparse_moe.", .expert_gate = "input_linear",
                     .expert_down = "output_linear", .gguf_permuted = 1 },
qwen2_moe_names  = { BASE, LLAMA_MLP, EXPERTS, .shared_router = "mlp.shared_expert_gate",
                     .shared_gate = "mlp.shared_expert.gate_proj",
                     .shared_up = "mlp.shared_expert.up_proj", .shared_down = "mlp.shared_expert.down_proj" },
qwen3_moe_names  = { BASE, LLAMA_MLP, QK_NORMS, EXPERTS },
deepseek_names   = { BASE, LLAMA_MLP, EXPERTS, SHARED, CORRECTION, MLA },
indexed_names    = { BASE, LLAMA_MLP, EXPERTS, SHARED, CORRECTION, MLA, .index_q = "self_attn.indexer.wq_b",
                     .index_k = "self_attn.indexer.wk", .index_w = "self_attn.indexer.weights_proj",
                     .index_norm = "self_attn.indexer.k_norm" },
glm4_moe_names   = { BASE, LLAMA_MLP, QK_NORMS, EXPERTS, SHARED, CORRECTION },
ernie_moe_names  = { BASE, LLAMA_MLP, EXPERTS, SHARED, .correction = "mlp.moe_statics.e_score_correction_bias" },
hunyuan_moe_names = { BASE, LLAMA_MLP, .q_norm = "self_attn.query_layernorm", .k_norm = "self_attn.key_layernorm",
                      .router = "mlp.gate.wg",
                     .experts = "mlp.experts.", .expert_gate = "gate_proj", .expert_up = "up_proj",
                     .expert_down = "down_proj",
                     .shared_gate = "mlp.shared_mlp.gate_proj", .shared_up = "mlp.shared_mlp.up_proj",
                     .shared_down = "mlp.shared_mlp.down_proj" },
minimax_names    = { BASE, QK_NORMS, SPARSE, .correction = "block_sparse_moe.e_score_correction_bias" },
mistral4_names   = { BASE, LLAMA_MLP, SHARED, .router = "mlp.gate", .experts_form = EXPERTS_FUSED_BARE,
                     .experts = "mlp.experts.", .expert_gate = "gate_up_proj", .expert_down = "down_proj", MLA },
phimoe_names     = { BASE, SPARSE },
exaone_moe_names = { BASE, LLAMA_MLP, QK_NORMS, EXPERTS, SHARED, .correction = "mlp.e_score_correction_bias" },
hy_v3_names      = { BASE, LLAMA_MLP, QK_NORMS, EXPERTS_OF("mlp.router.gate"), .correction = "mlp.expert_bias",
                     .shared_gate = "mlp.shared_mlp.gate_proj", .shared_up = "mlp.shared_mlp.up_proj",
                     .shared_down = "mlp.shared_mlp.down_proj" },
minicpm3_names   = { BASE, LLAMA_MLP, MLA },
cohere2_moe_names = { LLAMA_TOP, LLAMA_ATTN, LLAMA_MLP, EXPERTS, SHARED, .attn_norm = "input_layernorm" },
afmoe_names      = { LLAMA_TOP, LLAMA_ATTN, LLAMA_MLP, QK_NORMS, SHARED, EXPERTS_OF("mlp.router.gate"),
                     .correction = "mlp.expert_bias", .q_gate = "self_attn.gate_proj", .attn_norm = "input_layernorm",
                     .attn_post_norm = "post_attention_layernorm", .mlp_norm = "pre_mlp_layernorm",
                     .mlp_post_norm = "post_mlp_layernorm" },
mimo_v2_names    = { BASE, LLAMA_MLP, EXPERTS, CORRECTION, .sinks = "self_attn.attention_sink_bias" },
llama4_names     = { BASE, .q_norm = "", .k_norm = "", .gate = "feed_forward.gate_proj", .up = "feed_forward.up_proj",
                     .down = "feed_forward.down_proj",
                     .router = "feed_forward.router", .experts_form = EXPERTS_FUSED_IN_OUT,
                     .experts = "feed_forward.experts.", .expert_gate = "gate_up_proj",
                     .expert_down = "down_proj", .shared_gate = "feed_forward.shared_expert.gate_proj",
                     .shared_up = "feed_forward.shared_expert.up_proj",
                     .shared_down = "feed_forward.shared_expert.down_proj" },
gpt_oss_names    = { BASE, .sinks = "self_attn.sinks", .router = "mlp.router", .experts_form = EXPERTS_PAIRED_IN_OUT,
                     .experts = "mlp.experts.",
                     .expert_gate = "gate_up_proj", .expert_down = "down_proj" };

/* ---- keys ---- */

/* Read a number, or (hunyuan) an array that has the same number for every layer. */
static int64_t same_for_all(struct parse *p, const char *keys, int64_t min, int64_t max, int64_t otherwise)
{
    const char *key;
    const json_t *v = parse_find(p, keys, &key), *one;
    size_t i;
    if (!json_is_array(v))
        return parse_int(p, keys, min, max, otherwise);
    const json_t *first = json_array_get(v, 0);
    json_array_foreach((json_t *)v, i, one)
        if (!json_is_integer(one) || !json_equal(one, first)) {
            parse_fail(p, ERR_UNSUPPORTED, "%s: element %zu differs from the first; layers of different widths are not supported", key, i);
            return otherwise;
        }
    const int64_t n = json_integer_value(first);
    if (n < min || n > max)
        parse_fail(p, ERR_FORMAT, "%s is %lld, expected %lld to %lld", key, (long long)n, (long long)min,
                   (long long)max);
    return p->bad ? otherwise : n;
}

enum { MOST_EXPERTS = 65536, MOST_WIDTH = 1 << 24 };

/* Read the sizes; all layers have experts until the caller changes that. */
void experts_parse(struct parse *p, struct config *c, int n_experts, int top_k, int intermediate_size)
{
    struct moe *m = &c->moe;
    m->n_experts = (int)parse_int(p, "num_experts|num_local_experts|n_routed_experts|moe_num_experts", 1, MOST_EXPERTS,
                                  n_experts);
    m->top_k = (int)same_for_all(p, "num_experts_per_tok|num_experts_per_token|moe_k|moe_topk|experts_per_token", 1,
                                 MOST_EXPERTS, top_k);
    m->intermediate_size = (int)same_for_all(p, "moe_intermediate_size", 1, MOST_WIDTH, intermediate_size);
    m->group_best = 1;
    memset(c->ff, FF_MOE, (size_t)c->n_layers);
}

void router_must_be(struct parse *p, const char *key, const char *a, const char *b)
{
    const char *found = parse_string(p, key, a);
    if (strcmp(found, a) != 0 && strcmp(found, b) != 0)
        parse_fail(p, ERR_UNSUPPORTED, "%s \"%.40s\" is not supported by this architecture, expected \"%s\"", key,
                   found, a);
}

void dense_first(struct parse *p, struct config *c, int otherwise)
{
    const int n = (int)parse_int(p, "first_k_dense_replace", 0, INT32_MAX, otherwise);
    memset(c->ff, FF_DENSE, (size_t)(n < c->n_layers ? n : c->n_layers));
    if (parse_int(p, "moe_layer_freq", 1, INT32_MAX, 1) != 1)
        parse_fail(p, ERR_UNSUPPORTED, "moe_layer_freq other than 1 is not supported");
}

void mlp_types_parse(struct parse *p, struct config *c)
{
    const json_t *types = parse_find(p, "mlp_layer_types", NULL);
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers))
        parse_fail(p, ERR_FORMAT, "mlp_layer_types: expected an array of num_hidden_layers = %d names", c->n_layers);
    for (int i = 0; i < c->n_layers && types && !p->bad; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type || (strcmp(type, "dense") != 0 && strcmp(type, "sparse") != 0))
            parse_fail(p, ERR_UNSUPPORTED, "mlp_layer_types: layer %d is \"%.40s\", expected \"dense\" or \"sparse\"",
                       i, type ? type : "?");
        else
            c->ff[i] = *type == 's' ? FF_MOE : FF_DENSE;
    }
}

void groups_parse(struct parse *p, struct config *c, int n_groups, int top_groups)
{
    c->moe.n_groups = (int)parse_int(p, "n_group|num_expert_group", 1, MOST_EXPERTS, n_groups);
    c->moe.top_groups = (int)parse_int(p, "topk_group", 1, MOST_EXPERTS, top_groups);
}

void shared_parse(struct parse *p, struct config *c, const char *keys, int otherwise)
{
    const int64_t n = same_for_all(p, keys, 0, 256, otherwise), size = n * c->moe.intermediate_size;
    if (size > MOST_WIDTH)
        parse_fail(p, ERR_SHAPE, "%lld shared experts of width %d, expected a product of at most %d", (long long)n,
                   c->moe.intermediate_size, MOST_WIDTH);
    else
        c->moe.shared_size = (int)size;
}

/* Set the router of deepseek_v3 and many others: sigmoid, correction, groups scored by their two
 * best experts. */
void sigmoid_router(struct parse *p, struct config *c, int normalize, double scale)
{
    struct moe *m = &c->moe;
    m->router = ROUTER_SIGMOID;
    m->correction = 1;
    m->group_best = 2;
    m->normalize = parse_bool(p, "norm_topk_prob|moe_renormalize", normalize);
    m->norm_add = 1e-20f;
    m->scale = (float)parse_real(p, "routed_scaling_factor", scale);
    router_must_be(p, "scoring_func", "sigmoid", "noaux_tc");
    router_must_be(p, "topk_method", "noaux_tc", "noaux_tc");
    c->n_extra_layers = (int)parse_int(p, "num_nextn_predict_layers|num_mtp_layers", 0, 65536, 0);
}

static void more_mixtral(struct parse *p, struct config *c)
{
    const int window = window_parse(p, 0);
    experts_parse(p, c, 8, 2, c->intermediate_size);
    c->moe.normalize = 1;
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = window;
}

static void more_olmoe(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    experts_parse(p, c, 64, 8, c->intermediate_size);
    c->clip_qkv = (float)parse_real(p, "clip_qkv", 0);
    c->moe.normalize = parse_bool(p, "norm_topk_prob", 0);
}

static void more_granitemoe(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    multipliers_parse(p, c);
    experts_parse(p, c, 8, 2, c->intermediate_size);
    c->moe.router = ROUTER_TOP_SOFTMAX;
}

/* Find the layers with experts: every decoder_sparse_step-th layer, except those that
 * mlp_only_layers names.  The others have a dense MLP. */
void sparse_layers_parse(struct parse *p, struct config *c)
{
    const int step = (int)parse_int(p, "decoder_sparse_step", 1, INT32_MAX, 1);
    const json_t *dense = parse_find(p, "mlp_only_layers", NULL), *v;
    size_t at;
    for (int i = 0; i < c->n_layers; i++)
        c->ff[i] = (i + 1) % step ? FF_DENSE : FF_MOE;
    json_array_foreach((json_t *)dense, at, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= c->n_layers)
            parse_fail(p, ERR_FORMAT, "mlp_only_layers: element %zu is no layer of %d", at, c->n_layers);
        else
            c->ff[json_integer_value(v)] = FF_DENSE;
    }
    c->moe.normalize = parse_bool(p, "norm_topk_prob", 0);
}

static void more_qwen2_moe(struct parse *p, struct config *c)
{
    experts_parse(p, c, 60, 4, 1408);
    sparse_layers_parse(p, c);
    if (parse_bool(p, "qkv_bias", 1))
        c->biases |= BIAS_QKV;
    c->moe.shared_size = (int)parse_int(p, "shared_expert_intermediate_size", 0, MOST_WIDTH, 5632);
    c->moe.shared_gate = c->moe.shared_size > 0;
    qwen_window_parse(p, c);
}

static void more_qwen3_moe(struct parse *p, struct config *c)
{
    experts_parse(p, c, 128, 8, 768);
    sparse_layers_parse(p, c);
    attention_bias_parse(p, c);
    const int window = parse_bool(p, "use_sliding_window", 0) ? window_parse(p, 4096) : 0;
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = window;
}

/* The router's weights are always normalized, and no layer has a window. */
static void more_qwen3_vl_moe(struct parse *p, struct config *c)
{
    experts_parse(p, c, 60, 4, 1408);
    sparse_layers_parse(p, c);
    attention_bias_parse(p, c);
    parse_must_be(p, "norm_topk_prob", 1);
    c->moe.normalize = 1;
    parse_must_be(p, "use_sliding_window", 0);
    parse_find(p, "sliding_window", NULL);
}

/* Multi-head latent attention in every layer. */
static void mla_parse_with(struct parse *p, struct config *c, struct mla otherwise)
{
    struct mla *m = &c->mla;
    *m = otherwise;
    m->q_rank = (int)parse_int(p, "q_lora_rank", 1, MOST_WIDTH,
                               json_object_get(p->json, "q_lora_rank") ? 0 : m->q_rank);
    m->kv_rank = (int)parse_int(p, "kv_lora_rank", 1, MOST_WIDTH, m->kv_rank);
    m->nope_dim = (int)parse_int(p, "qk_nope_head_dim", 1, MOST_WIDTH, m->nope_dim);
    m->rope_dim = (int)parse_int(p, "qk_rope_head_dim", 2, MOST_WIDTH, m->rope_dim);
    m->v_dim = (int)parse_int(p, "v_head_dim", 1, MOST_WIDTH, m->v_dim);
    m->norm_eps = 1e-6f;
    memset(c->mixer, MIXER_MLA, (size_t)c->n_layers);
    c->head_dim = m->kv_rank + m->rope_dim;
    c->n_kv_heads = 1;
    c->attn_scale = (float)(1 / sqrt((double)m->nope_dim + m->rope_dim));
    parse_must_be(p, "attention_bias", 0);
}

void mla_parse(struct parse *p, struct config *c)
{
    mla_parse_with(p, c, (struct mla){ .q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128 });
}

static void more_deepseek_v2(struct parse *p, struct config *c)
{
    mla_parse(p, c);
    experts_parse(p, c, 64, 6, 1407);
    dense_first(p, c, 0);
    shared_parse(p, c, "n_shared_experts", 2);
    const char *method = parse_string(p, "topk_method", "greedy");
    if (strcmp(method, "group_limited_greedy") == 0)
        groups_parse(p, c, 1, 1);
    else if (strcmp(method, "greedy") == 0)
        parse_find(p, "n_group|topk_group", NULL);
    else
        parse_fail(p, ERR_UNSUPPORTED, "topk_method \"%.40s\" is not supported, expected \"greedy\" or \"group_limited_greedy\"", method);
    router_must_be(p, "scoring_func", "softmax", "softmax");
    /* transformers ignores this key, and no model sets it to another value */
    parse_must_be(p, "norm_topk_prob", 0);
    parse_must_be(p, "mlp_bias", 0);
    c->moe.scale = (float)parse_real(p, "routed_scaling_factor", 1);
}

static void more_deepseek_v3(struct parse *p, struct config *c)
{
    mla_parse(p, c);
    experts_parse(p, c, 256, 8, 2048);
    dense_first(p, c, 3);
    shared_parse(p, c, "n_shared_experts", 1);
    groups_parse(p, c, 8, 4);
    sigmoid_router(p, c, 1, 2.5);
    parse_must_be(p, "rope_interleave", 1);
}

static void indexer_parse(struct parse *p, struct config *c, int n_heads, int pairs)
{
    struct indexer *x = &c->indexer;
    x->n_heads = (int)parse_int(p, "index_n_heads", 1, MOST_WIDTH, n_heads);
    x->head_dim = (int)parse_int(p, "index_head_dim", 2, 4096, 128);
    x->top_k = (int)parse_int(p, "index_topk", 1, INT32_MAX, 2048);
    x->pairs = parse_bool(p, "indexer_rope_interleave", pairs);
    c->biases |= BIAS_INDEX;
    c->indexed = malloc((size_t)c->n_layers);
    if (!c->indexed) {
        err_nomem(p->e, "config");
        p->bad = 1;
        return;
    }
    memset(c->indexed, INDEX_FULL, (size_t)c->n_layers);
    if (c->mla.rope_dim > x->head_dim || (int64_t)x->n_heads * x->head_dim > MOST_WIDTH)
        parse_fail(p, ERR_SHAPE, "index_n_heads %d of index_head_dim %d, qk_rope_head_dim %d: does not fit", x->n_heads,
                   x->head_dim, c->mla.rope_dim);
    if (!c->mla.q_rank)
        parse_fail(p, ERR_UNSUPPORTED, "an indexer without q_lora_rank is not supported");
    const json_t *types = parse_find(p, "layer_types", NULL), *v;
    size_t i;
    json_array_foreach((json_t *)types, i, v)
        if (!json_string_value(v) || strcmp(json_string_value(v), "indexed_attention") != 0)
            parse_fail(p, ERR_UNSUPPORTED, "layer_types: layer %zu is not \"indexed_attention\"", i);
}

/* Find the layers that reuse the tokens chosen by an earlier layer's indexer.  The configuration
 * names them in a list, in a pattern of letters, or by a period. */
static void shared_indexers(struct parse *p, struct config *c)
{
    const json_t *types = parse_find(p, "indexer_types", NULL);
    const char *pattern = parse_string(p, "index_topk_pattern", NULL);
    const int period = (int)parse_int(p, "index_topk_freq", 0, INT32_MAX, 1),
              offset = (int)parse_int(p, "index_skip_topk_offset", 0, INT32_MAX, 2);
    if (p->bad || !c->indexed)
        return;
    if ((types && json_array_size(types) != (size_t)c->n_layers) ||
        (!types && pattern && strlen(pattern) != (size_t)c->n_layers)) {
        parse_fail(p, ERR_FORMAT, "indexer_types: expected one for each of %d layers", c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers; i++) {
        const char *name = json_string_value(json_array_get(types, (size_t)i));
        const int full = types ? name && strcmp(name, "full") == 0
                         : pattern ? pattern[i] == 'F'
                         : i < offset || (i - offset + 1) % (period > 1 ? period : 1) == 0;
        if (types ? !full && !(name && strcmp(name, "shared") == 0) : pattern && !full && pattern[i] != 'S')
            parse_fail(p, ERR_UNSUPPORTED, "indexer_types: layer %d is neither full nor shared", i);
        c->indexed[i] = full ? INDEX_FULL : INDEX_SHARED;
    }
    if (c->indexed[0] != INDEX_FULL)
        parse_fail(p, ERR_FORMAT, "indexer_types: the first layer has no indexer");
}

static void more_deepseek_v32(struct parse *p, struct config *c)
{
    more_deepseek_v3(p, c);
    mlp_types_parse(p, c);
    indexer_parse(p, c, 64, 0);
}

/* Read the keys that the GLM models with latent attention share. */
static void glm_mla_parse(struct parse *p, struct config *c, int q_rank, int n_dense, double scale)
{
    mla_parse_with(p, c, (struct mla){ .q_rank = q_rank, .kv_rank = 512, .nope_dim = 192, .rope_dim = 64,
                                       .v_dim = 256 });
    dense_first(p, c, n_dense);
    mlp_types_parse(p, c);
    shared_parse(p, c, "n_shared_experts", 1);
    groups_parse(p, c, 1, 1);
    sigmoid_router(p, c, 1, scale);
    parse_must_be(p, "rope_interleave", 1);
}

static void more_glm_moe_dsa(struct parse *p, struct config *c)
{
    experts_parse(p, c, 256, 8, 2048);
    glm_mla_parse(p, c, 2048, 3, 2.5);
    parse_must_be(p, "mlp_bias", 0);
    indexer_parse(p, c, 32, 1);
    shared_indexers(p, c);
}

static void more_glm4_moe_lite(struct parse *p, struct config *c)
{
    experts_parse(p, c, 64, 4, 1536);
    glm_mla_parse(p, c, 768, 1, 1.8);
}

static void more_mistral4(struct parse *p, struct config *c)
{
    mla_parse_with(p, c, (struct mla){ .q_rank = 1024, .kv_rank = 256, .nope_dim = 64, .rope_dim = 64, .v_dim = 128 });
    experts_parse(p, c, 128, 4, 2048);
    dense_first(p, c, 0);
    shared_parse(p, c, "n_shared_experts", 1);
    groups_parse(p, c, 1, 1);
    c->moe.group_best = 2;
    c->moe.normalize = parse_bool(p, "norm_topk_prob", 1);
    c->moe.norm_add = 1e-20f;
    c->moe.scale = (float)parse_real(p, "routed_scaling_factor", 1);
    parse_must_be(p, "rope_interleave", 1);
}

/* arXiv:2404.06395, section 3: outputs of layers are scaled by the depth, logits by the width. */
static void more_minicpm3(struct parse *p, struct config *c)
{
    mla_parse_with(p, c, (struct mla){ .q_rank = 768, .kv_rank = 256, .nope_dim = 64, .rope_dim = 32,
                                  .v_dim = c->hidden_size / c->n_heads });
    c->embed_scale = (float)parse_real(p, "scale_emb", 12);
    c->residual_scale = (float)(parse_real(p, "scale_depth", 1.4) / sqrt((double)c->n_layers));
    c->logit_scale = (float)(parse_real(p, "dim_model_base", 256) / c->hidden_size);
    parse_must_be(p, "mlp_bias", 0);
}

/* The long factors of LongRoPE apply past the original context, as in transformers 4; transformers
 * 5 uses the short ones there, with the long factor on cos and sin. */
static void more_phimoe(struct parse *p, struct config *c)
{
    const int window = window_parse(p, 0);
    experts_parse(p, c, 16, 2, c->intermediate_size);
    attention_bias_parse(p, c);
    if (parse_bool(p, "lm_head_bias", 0))
        c->biases |= BIAS_HEAD;
    c->moe.router = ROUTER_SPARSEMIXER;
    c->moe.mask = 2 * (float)parse_real(p, "router_jitter_noise", 0.01);
    if (c->moe.top_k != 2)
        parse_fail(p, ERR_UNSUPPORTED, "num_experts_per_tok %d, expected 2", c->moe.top_k);
    if (!(c->moe.mask >= 0))
        parse_fail(p, ERR_FORMAT, "router_jitter_noise: expected a number from 0 on");
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = window;
    parse_find(p, "input_jitter_noise", NULL);      /* used in training only */
}

static void more_hy_v3(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    experts_parse(p, c, 192, 8, 1536);
    dense_first(p, c, 1);
    mlp_types_parse(p, c);
    shared_parse(p, c, "num_shared_experts", 1);
    sigmoid_router(p, c, 1, 1);
    c->moe.scale = (float)parse_real(p, "router_scaling_factor", 2.826);
    parse_must_be(p, "mlp_bias", 0);
    parse_find(p, "enable_moe_fp32_combine", NULL); /* the sum is always f32 here */
}

static void more_solar_open(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    c->biases &= ~BIAS_O;
    experts_parse(p, c, 128, 8, 1280);
    shared_parse(p, c, "n_shared_experts", 1);
    groups_parse(p, c, 1, 1);
    sigmoid_router(p, c, 1, 1);
}

static void more_exaone_moe(struct parse *p, struct config *c)
{
    exaone_windows_parse(p, c);
    experts_parse(p, c, 64, 8, 1024);
    dense_first(p, c, 1);
    mlp_types_parse(p, c);
    shared_parse(p, c, "num_shared_experts", 1);
    groups_parse(p, c, 1, 1);
    sigmoid_router(p, c, 1, 2.5);
}

/* Every period-th layer, counted from layer `first`, sees the whole text. */
static void windows_from(struct config *c, int first, int n, int period, int window)
{
    for (int i = 0; i < n; i++)
        c->window[first + i] = (i + 1) % period ? window : 0;
}

static void more_cohere2_moe(struct parse *p, struct config *c)
{
    struct moe *m = &c->moe;
    const int window = window_parse(p, 4096), period = (int)parse_int(p, "sliding_window_pattern", 1, INT32_MAX, 4);
    const int prefix = (int)parse_int(p, "prefix_dense_sliding_window_pattern", 1, INT32_MAX, 1);
    attention_bias_parse(p, c);
    c->logit_scale = (float)parse_real(p, "logit_scale", 0.0625);
    if (js_get(p->json, "rms_norm_eps"))
        c->norm = NORM_RMS;
    experts_parse(p, c, 8, 2, c->intermediate_size);
    shared_parse(p, c, "num_shared_experts", 0);
    c->intermediate_size = (int)parse_int(p, "prefix_dense_intermediate_size", 1, MOST_WIDTH, c->intermediate_size);
    dense_first(p, c, 0);
    mlp_types_parse(p, c);
    int dense = 0;
    while (dense < c->n_layers && c->ff[dense] == FF_DENSE)
        dense++;
    windows_from(c, 0, dense, prefix, window);
    windows_from(c, dense, c->n_layers - dense, period, window);
    layer_types_parse(p, c, window);
    for (int i = 0; i < c->n_layers; i++)
        c->rope_of[i] = c->window[i] || (prefix == 1 && c->ff[i] == FF_DENSE) ? 0 : -1;
    const char *by = parse_string(p, "expert_selection_fn", "softmax"),
               *sum = parse_string(p, "shared_expert_combination_strategy", "average");
    if (strcmp(by, "softmax") != 0 && strcmp(by, "sigmoid") != 0)
        parse_fail(p, ERR_UNSUPPORTED, "expert_selection_fn \"%.40s\", expected \"softmax\" or \"sigmoid\"", by);
    if (strcmp(sum, "average") != 0 && strcmp(sum, "sum") != 0)
        parse_fail(p, ERR_UNSUPPORTED, "shared_expert_combination_strategy \"%.40s\", expected \"average\" or \"sum\"",
                   sum);
    m->router = strcmp(by, "softmax") == 0 ? ROUTER_TOP_SOFTMAX : ROUTER_SIGMOID;
    m->normalize = parse_bool(p, "norm_topk_prob", 1);
    if (m->shared_size && strcmp(sum, "average") == 0)
        m->scale = m->shared_scale = 0.5f;
}

static void more_afmoe(struct parse *p, struct config *c)
{
    const int window = window_parse(p, 1024), dense = (int)parse_int(p, "num_dense_layers", 0, INT32_MAX, 1);
    attention_bias_parse(p, c);
    experts_parse(p, c, 64, 6, 1408);
    memset(c->ff, FF_DENSE, (size_t)(dense < c->n_layers ? dense : c->n_layers));
    shared_parse(p, c, "num_shared_experts", 2);
    windows_from(c, 0, c->n_layers, (int)parse_int(p, "global_attn_every_n_layers", 1, INT32_MAX, 4), window);
    layer_types_parse(p, c, window);
    for (int i = 0; i < c->n_layers; i++)
        c->rope_of[i] = c->window[i] ? 0 : -1;
    groups_parse(p, c, 1, 1);
    sigmoid_router(p, c, 1, 1);
    c->moe.normalize = parse_bool(p, "route_norm", 1);
    c->moe.scale = (float)parse_real(p, "route_scale", 1);
    router_must_be(p, "score_func", "sigmoid", "sigmoid");
    c->attn_gate = ATTN_GATE_CHANNEL;
    if (parse_bool(p, "mup_enabled", 0))
        c->embed_scale = (float)sqrt((double)c->hidden_size);
    parse_find(p, "load_balance_coeff|use_grouped_mm|num_expert_groups|num_limited_groups", NULL);
}

/* Find the layers with a window: those of layer_types, or 1 in the published files'
 * hybrid_layer_pattern. */
static void mimo_windows(struct parse *p, struct config *c)
{
    const json_t *hybrid = parse_find(p, "hybrid_layer_pattern", NULL);
    /* sliding_window_size does not count the token itself */
    const int64_t before = parse_int(p, "sliding_window_size", 1, INT32_MAX - 1, 0);
    const int given = window_parse(p, 129), window = before ? (int)before + 1 : given;
    if (hybrid && (!json_is_array(hybrid) || json_array_size(hybrid) != (size_t)c->n_layers))
        parse_fail(p, ERR_FORMAT, "hybrid_layer_pattern: expected an array of num_hidden_layers = %d numbers",
                   c->n_layers);
    for (int i = 0; i < c->n_layers; i++) {
        const int full = hybrid ? json_integer_value(json_array_get(hybrid, (size_t)i)) != 1 : i == 0 ||
                         (i + 1) % 6 == 0;
        c->window[i] = full ? 0 : window;
    }
    layer_types_parse(p, c, window);
}

/* Set the number of KV heads of each layer, which differs between layers with and without a
 * window. */
static void mimo_heads(struct parse *p, struct config *c)
{
    const int full = c->n_kv_heads, local = (int)parse_int(p, "swa_num_key_value_heads", 1, MOST_WIDTH,
                                                           2 * (int64_t)full);
    c->key_dim = c->head_dim;
    c->value_dim = (int)parse_int(p, "v_head_dim", 1, MOST_WIDTH, 128);
    c->attn_scale = (float)(1 / sqrt((double)c->key_dim));
    c->kv_heads = malloc((size_t)c->n_layers * sizeof *c->kv_heads);
    if (!c->kv_heads) {
        err_nomem(p->e, "config");
        p->bad = 1;
        return;
    }
    for (int i = 0; i < c->n_layers; i++)
        c->kv_heads[i] = c->window[i] ? local : full;
    c->n_kv_heads = local > full ? local : full;
    c->head_dim = c->value_dim > c->key_dim ? c->value_dim : c->key_dim;
    if (c->n_heads % full || c->n_heads % local)
        parse_fail(p, ERR_SHAPE, "num_attention_heads %d is not a multiple of %d and %d KV heads", c->n_heads, full,
                   local);
    static const char *const same[] = { "swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads" };
    const int want[] = { c->key_dim, c->value_dim, c->n_heads };
    for (int i = 0; i < 3; i++)
        if (parse_int(p, same[i], 1, MOST_WIDTH, want[i]) != want[i])
            parse_fail(p, ERR_UNSUPPORTED, "%s: expected %d as in layers without a window", same[i], want[i]);
}

static void more_mimo_v2(struct parse *p, struct config *c)
{
    mimo_windows(p, c);
    mimo_heads(p, c);
    attention_bias_parse(p, c);
    c->biases &= ~BIAS_O;
    c->value_scale = (float)parse_real(p, "attention_value_scale",
                                       json_object_get(p->json, "attention_value_scale") ? 1 : 0.707);
    c->sinks = parse_bool(p, "add_swa_attention_sink_bias", 1) ? SINKS_WINDOWED : SINKS_NONE;
    parse_must_be(p, "add_full_attention_sink_bias", 0);
    experts_parse(p, c, 256, 8, 2048);
    const json_t *sparse = parse_find(p, "moe_layer_freq", NULL);
    if (sparse && (!json_is_array(sparse) || json_array_size(sparse) != (size_t)c->n_layers))
        parse_fail(p, ERR_FORMAT, "moe_layer_freq: expected an array of num_hidden_layers = %d numbers", c->n_layers);
    for (int i = 0; i < c->n_layers; i++)
        c->ff[i] = (sparse ? json_integer_value(json_array_get(sparse, (size_t)i)) != 0 : i > 0) ? FF_MOE : FF_DENSE;
    mlp_types_parse(p, c);
    shared_parse(p, c, "n_shared_experts", 0);
    groups_parse(p, c, 1, 1);
    sigmoid_router(p, c, 1, 1);
    parse_find(p, "attention_chunk_size|attention_projection_layout", NULL);
}

static void more_glm4_moe(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    c->biases &= ~BIAS_O;
    experts_parse(p, c, 128, 8, 1408);
    dense_first(p, c, 1);
    shared_parse(p, c, "n_shared_experts", 1);
    groups_parse(p, c, 1, 1);
    sigmoid_router(p, c, 1, 1);
    if (parse_bool(p, "use_qk_norm", 0))
        c->qk_norm = QK_NORM_HEAD;
}

static void more_dots1(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    const int window = window_parse(p, 4096), from = (int)parse_int(p, "max_window_layers", 0, INT32_MAX, 62);
    for (int i = from; i < c->n_layers; i++)
        c->window[i] = window;
    layer_types_parse(p, c, window);
    experts_parse(p, c, 128, 6, 1408);
    dense_first(p, c, 0);
    shared_parse(p, c, "n_shared_experts", 0);
    groups_parse(p, c, 1, 1);
    sigmoid_router(p, c, 0, 1);
}

static void more_ernie_moe(struct parse *p, struct config *c)
{
    if (parse_bool(p, "use_bias", 0))
        c->biases |= BIAS_QKV | BIAS_O | BIAS_MLP;
    experts_parse(p, c, 64, 6, 1536);
    shared_parse(p, c, "moe_num_shared_experts", 2);
    const int step = (int)parse_int(p, "moe_layer_interval", 1, INT32_MAX, 1),
              first = (int)parse_int(p, "moe_layer_start_index", 0, INT32_MAX, 1);
    const int last = (int)parse_int(p, "moe_layer_end_index", -1, INT32_MAX, -1);
    for (int i = 0; i < c->n_layers; i++)
        c->ff[i] = (i + 1) % step == 0 && i >= first && (last == -1 || i <= last) ? FF_MOE : FF_DENSE;
    c->moe.correction = 1;
    c->moe.normalize = 1;
    c->moe.norm_min = (float)parse_real(p, "moe_norm_min", 1e-12);
    router_must_be(p, "moe_gate", "topk", "topk");
    parse_must_be(p, "moe_use_aux_free", 1);
    c->n_extra_layers = (int)parse_int(p, "num_nextn_predict_layers", 0, 65536, 0);
}

static void more_hunyuan_moe(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    experts_parse(p, c, 1, 1, c->intermediate_size);
    shared_parse(p, c, "num_shared_expert", 1);
    c->moe.normalize = parse_bool(p, "norm_topk_prob", 1);
    c->qk_norm_after_rope = 1;
    parse_must_equal(p, "moe_layer_num_skipped", 0);
    parse_must_be(p, "use_qk_norm", 1);
    parse_must_be(p, "use_mixed_mlp_moe", 1);
    parse_must_be(p, "use_cla", 0);
    parse_must_be(p, "mlp_bias", 0);
    parse_must_be(p, "use_mla", 0);
    parse_find(p, "class_num|dense_list|mask_init_id|num_media_embeds|anyres_pooling_size|vit_type|vit_path|vit_patch|vit_token|vit_input_resolution|"
                  "vit_mapping_type|vit_norm_type|vit_used_rms_norm|video_start_id|video_end_id|moe_drop_tokens|moe_random_routing_dropped_token|group_limited_greedy|"
                  "n_group|topk_group|routed_scaling_factor|kv_lora_rank|q_lora_rank|qk_nope_head_dim|qk_rope_head_dim|v_head_dim", NULL);
}

static void more_minimax(struct parse *p, struct config *c)
{
    experts_parse(p, c, 256, 8, c->intermediate_size);
    c->moe.router = ROUTER_SIGMOID;
    c->moe.correction = parse_bool(p, "use_routing_bias", 1);
    c->moe.normalize = 1;
    router_must_be(p, "scoring_func", "sigmoid", "sigmoid");
    router_must_be(p, "qk_norm_type", "per_layer", "per_layer");
    parse_must_be(p, "use_qk_norm", 1);
    parse_must_equal(p, "shared_intermediate_size", 0);
    const json_t *types = parse_find(p, "attn_type_list", NULL), *v;
    size_t i;
    json_array_foreach((json_t *)types, i, v)
        if (!json_is_integer(v) || json_integer_value(v) != 1)
            parse_fail(p, ERR_UNSUPPORTED, "attn_type_list: layer %zu does not have softmax attention (1)", i);
    parse_find(p, "shared_moe_mode|mlp_intermediate_size|mtp_transformer_layers|num_mtp_modules|use_mtp|max_model_len|layernorm_full_attention_beta|"
                  "layernorm_linear_attention_beta|layernorm_mlp_beta", NULL);
}

/* Layers with RoPE see chunks of the text, the others all of it. */
static void more_llama4(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    experts_parse(p, c, 16, 1, c->intermediate_size);
    c->moe.intermediate_size = c->moe.shared_size = c->intermediate_size;
    c->intermediate_size = (int)parse_int(p, "intermediate_size_mlp", 1, MOST_WIDTH, 16384);
    c->moe.router = ROUTER_SIGMOID;
    c->moe.weigh_input = 1;
    const int every = (int)parse_int(p, "interleave_moe_layer_step", 1, INT32_MAX, 1),
              period = (int)parse_int(p, "no_rope_layer_interval", 1, INT32_MAX, 4);
    const int chunk = (int)parse_int(p, "attention_chunk_size", 1, INT32_MAX,
                                     json_object_get(p->json, "attention_chunk_size") ? 0 : 8192);
    const json_t *moe_layers = parse_find(p, "moe_layers", NULL), *no_rope = parse_find(p, "no_rope_layers", NULL), *v;
    size_t at;
    if (json_array_size(no_rope) && json_array_size(no_rope) != (size_t)c->n_layers)
        parse_fail(p, ERR_FORMAT, "no_rope_layers: expected an array of num_hidden_layers = %d numbers", c->n_layers);
    for (int i = 0; i < c->n_layers; i++) {
        const int rotates = json_array_size(no_rope) ? json_integer_value(json_array_get(no_rope, (size_t)i)) != 0
                                                     : (i + 1) % period != 0;
        c->rope_of[i] = rotates ? 0 : -1;
        c->chunk[i] = rotates ? chunk : 0;
        c->ff[i] = moe_layers ? FF_DENSE : (i + 1) % every ? FF_DENSE : FF_MOE;
    }
    json_array_foreach((json_t *)moe_layers, at, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= c->n_layers)
            parse_fail(p, ERR_FORMAT, "moe_layers: element %zu is no layer of %d", at, c->n_layers);
        else
            c->ff[json_integer_value(v)] = FF_MOE;
    }
    layer_types_parse(p, c, 0);
    if (parse_bool(p, "use_qk_norm", 1)) {
        c->qk_norm = QK_NORM_HEAD;
        c->qk_norm_after_rope = c->qk_norm_roped = 1;
    }
    const double scale = parse_real(p, "attn_scale", 0.1);
    c->temperature_floor = (int)parse_int(p, "floor_scale", 1, INT32_MAX, 8192);
    c->temperature_first = 1;
    if (parse_bool(p, "attn_temperature_tuning", 1))
        c->temperature_scale = (float)scale;
}

static void more_gpt_oss(struct parse *p, struct config *c)
{
    const int window = window_parse(p, 128);
    experts_parse(p, c, 128, 4, c->intermediate_size);
    if (parse_bool(p, "attention_bias", 1))
        c->biases |= BIAS_QKV | BIAS_O;
    c->biases |= BIAS_ROUTER | BIAS_EXPERTS;
    c->sinks = SINKS_ALL;
    c->moe.router = ROUTER_TOP_SOFTMAX;
    c->moe.act_alpha = (float)parse_real(p, "swiglu_alpha", 1.702);
    c->moe.act_limit = (float)parse_real(p, "swiglu_limit", 7);
    if (!(c->moe.act_alpha > 0 && c->moe.act_limit > 0))
        parse_fail(p, ERR_FORMAT, "swiglu_alpha and swiglu_limit: expected positive numbers");
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = (i + 1) % 2 ? window : 0;
    layer_types_parse(p, c, window);
    parse_find(p, "initial_context_length", NULL);
}

/* ---- the table ---- */

const struct arch moe_archs[] = {
    { ROW("mixtral",      mixtral_names,   32000,  4096, 14336, 32, 32, 8,  131072), ROPE(1000000), .eps = 1e-5,
      .act = "silu", .more = more_mixtral },
    { ROW("olmoe",        olmoe_names,     50304,  2048, 2048,  16, 16, 0,  4096),   ROPE(10000),   .eps = 1e-5,
      .act = "silu", .qk_norm = QK_NORM_FULL, .more = more_olmoe },
    { ROW("granitemoe",   granitemoe_names, 32000, 4096, 11008, 32, 32, 0,  2048),   ROPE(10000),   .eps = 1e-6,
      .act = "silu", .more = more_granitemoe },
    { ROW("qwen2_moe",    qwen2_moe_names, 151936, 2048, 5632,  24, 16, 16, 32768),  ROPE(10000),   .eps = 1e-6,
      .act = "silu", .more = more_qwen2_moe },
    { ROW("qwen3_moe",    qwen3_moe_names, 151936, 2048, 6144,  24, 32, 4,  32768),  ROPE(10000),   .eps = 1e-6,
      .act = "silu", .qk_norm = QK_NORM_HEAD,
      .more = more_qwen3_moe },
    { ROW("qwen3_vl_moe_text", qwen3_moe_names, 151936, 2048, 5632, 24, 16, 16, 128000), ROPE(5000000), .eps = 1e-6,
      .act = "silu", .qk_norm = QK_NORM_HEAD, .more = more_qwen3_vl_moe },
    { ROW("deepseek_v2",  deepseek_names,  102400, 4096, 11008, 32, 32, 0,  2048),   ROPE(10000),   .eps = 1e-6,
      .act = "silu", .rope_pairs = 1, .more = more_deepseek_v2 },
    { ROW("deepseek_v3",  deepseek_names,  129280, 7168, 18432, 61, 128, 0, 4096),   ROPE(10000),   .eps = 1e-6,
      .act = "silu", .rope_pairs = 1, .more = more_deepseek_v3 },
    { ROW("deepseek_v32", indexed_names,   129280, 7168, 18432, 61, 128, 0, 163840), ROPE(10000),   .eps = 1e-6,
      .act = "silu", .rope_pairs = 1, .more = more_deepseek_v32 },
    { ROW("glm_moe_dsa",  indexed_names,   154880, 6144, 12288, 78, 64, 0,  202752), ROPE(1000000), .eps = 1e-5,
      .act = "silu", .rope_pairs = 1, .more = more_glm_moe_dsa },
    { ROW("kimi_k2",      deepseek_names,  163840, 7168, 18432, 61, 64, 0,  131072), ROPE(50000),   .eps = 1e-6,
      .act = "silu", .rope_pairs = 1, .more = more_deepseek_v3 },
    { ROW("glm4_moe",     glm4_moe_names,  151552, 4096, 10944, 46, 96, 8,  131072), ROPE(10000),   .eps = 1e-5,
      .act = "silu", .head_dim = 128, .partial = 0.5,
      .more = more_glm4_moe },
    { ROW("dots1",        glm4_moe_names,  152064, 4608, 10944, 62, 32, 0,  2048),   ROPE(10000),   .eps = 1e-6,
      .act = "silu", .qk_norm = QK_NORM_HEAD, .more = more_dots1 },
    { ROW("ernie4_5_moe", ernie_moe_names, 103424, 2560, 12288, 28, 20, 4,  131072), ROPE(500000),  .eps = 1e-5,
      .act = "silu", .tied = 1, .rope_pairs = 1,
      .more = more_ernie_moe },
    { ROW("hunyuan_v1_moe", hunyuan_moe_names, 290943, 4096, 11008, 32, 32, 0, 2048), ROPE(10000),  .eps = 1e-5,
      .act = "silu", .qk_norm = QK_NORM_HEAD, .ntk_alpha = 1,
      .more = more_hunyuan_moe },
    { ROW("minimax_m2",   minimax_names,   200064, 3072, 1536,  62, 48, 8,  196608), ROPE(5000000), .eps = 1e-6,
      .act = "silu", .head_dim = 128, .qk_norm = QK_NORM_FULL,
      .more = more_minimax },
    { ROW("llama4_text",  llama4_names,    202048, 5120, 8192,  48, 40, 8,  131072), ROPE(500000),  .eps = 1e-5,
      .act = "silu", .head_dim = 128, .rope_pairs = 1,
      .more = more_llama4 },
    { ROW("gpt_oss",      gpt_oss_names,   201088, 2880, 2880,  36, 64, 8,  131072), ROPE(150000),  .eps = 1e-5,
      .act = "silu", .head_dim = 64, .more = more_gpt_oss },
    { ROW("mistral4",     mistral4_names,  131072, 4096, 12288, 36, 32, 32, 1 << 20), ROPE(10000),  .eps = 1e-6,
      .act = "silu", .head_dim = 128, .rope_pairs = 1, .rope_tempers = 1, .more = more_mistral4 },
    { ROW("glm4_moe_lite", deepseek_names, 154880, 2048, 10240, 47, 20, 20, 202752), ROPE(10000),   .eps = 1e-5,
      .act = "silu", .head_dim = 64, .rope_pairs = 1, .more = more_glm4_moe_lite },
    { ROW("minicpm3",     minicpm3_names,  73448,  2560, 6400,  62, 40, 40, 32768),  ROPE(10000),   .eps = 1e-5,
      .act = "silu", .tied = 1, .head_dim = 32, .more = more_minicpm3 },
    { ROW("phimoe",       phimoe_names,    32064,  4096, 6400,  32, 32, 8,  131072), ROPE(1000000),
      LAYER(BIAS_NORM), .act = "silu", .rope_mscales = 1, .more = more_phimoe },
    { ROW("hy_v3",        hy_v3_names,     120832, 4096, 13312, 80, 64, 8,  131072), ROPE(11158840), .eps = 1e-5,
      .act = "silu", .head_dim = 128, .qk_norm = QK_NORM_HEAD, .more = more_hy_v3 },
    { ROW("solar_open",   glm4_moe_names,  196608, 4096, 10240, 48, 64, 8,  131072), ROPE(1000000), .eps = 1e-5,
      .act = "silu", .head_dim = 128, .more = more_solar_open },
    { ROW("exaone_moe",   exaone_moe_names, 102400, 4096, 16384, 32, 32, 32, 2048),  ROPE(10000),   .eps = 1e-5,
      .act = "silu", .qk_norm = QK_NORM_HEAD, .more = more_exaone_moe },
    { ROW("cohere2_moe",  cohere2_moe_names, 256000, 8192, 22528, 40, 64, 0, 8192),  ROPE(10000),   LAYER(0),
      .act = "silu", .head_dim = 128, .tied = 1, .rope_pairs = 1, .block = BLOCK_PARALLEL, .more = more_cohere2_moe },
    { ROW("afmoe",        afmoe_names,     200192, 2048, 6144,  32, 16, 0,  16384),  ROPE(10000),   .eps = 1e-5,
      .act = "silu", .head_dim = 128, .qk_norm = QK_NORM_HEAD, .more = more_afmoe },
    { ROW("mimo_v2_flash", mimo_v2_names,  152576, 4096, 16384, 48, 64, 4,  131072), ROPE(5000000), .eps = 1e-5,
      .act = "silu", .head_dim = 192, .partial = 0.334, .local_theta = 10000, .more = more_mimo_v2 },
    { 0 }
};

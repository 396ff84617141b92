/* arch_state.c - architectures with layers that keep a state instead of keys and values: short
 * convolutions, Mamba2, gated delta net.  Sources: the configuration and modeling files of
 * transformers 5, config.json of the models on the hub, and arXiv:2405.21060 (Mamba2), 2412.06464
 * (gated delta net). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

enum { MOST_WIDTH = 1 << 24, MOST_KERNEL = 64 };
static const int64_t MOST_STATE = (int64_t)1 << 32;            /* floats in the state of a layer */

#define ATTN    .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.o_proj"
#define SSM(at) .in = at "in_proj", .conv = at "conv1d", .a_log = at "A_log", .dt_bias = at "dt_bias", .d = at "D", \
                .gate_norm = at "norm", .state_o = at "out_proj"

#define LFM2    .embed = "embed_tokens", .final_norm = "embedding_norm", .head = "lm_head", .layer = "layers.", \
                .attn_norm = "operator_norm", .mlp_norm = "ffn_norm", \
                .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.out_proj", \
                .q_norm = "self_attn.q_layernorm", .k_norm = "self_attn.k_layernorm", .gate = "feed_forward.w1", \
                .up = "feed_forward.w3", .down = "feed_forward.w2", .in = "conv.in_proj", .conv = "conv.conv", \
                .state_o = "conv.out_proj"

static const struct weight_names
lfm2_names = { LFM2 },
lfm2_moe_names = { LFM2, .router = "feed_forward.gate", .correction = "feed_forward.expert_bias",
                   .experts = "feed_forward.experts.", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2" },
lfm3_names = { .embed = "embed_tokens", .final_norm = "embedding_norm", .head = "lm_head", .layer = "layers.",
               .attn_norm = "operator_norm", .mlp_norm = "ffn_norm", .attn_post_norm = "post_operator_norm",
               .mlp_post_norm = "post_ffn_norm", ATTN, .q_gate = "self_attn.gate_proj|self_attn.g_proj",
               .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm", .gate = "feed_forward.w1",
               .up = "feed_forward.w3", .down = "feed_forward.w2", .in = "conv.in_proj", .conv = "conv.conv",
               .state_o = "conv.out_proj" },
lfm3_bare_names = { .embed = "embed_tokens", .final_norm = "embedding_norm", .head = "lm_head", .layer = "layers.",
               .attn_norm = "operator_norm", .mlp_norm = "ffn_norm", ATTN,
               .q_gate = "self_attn.gate_proj|self_attn.g_proj", .q_norm = "self_attn.q_norm",
               .k_norm = "self_attn.k_norm", .gate = "feed_forward.w1", .up = "feed_forward.w3",
               .down = "feed_forward.w2", .in = "conv.in_proj", .conv = "conv.conv", .state_o = "conv.out_proj" },
mamba2_names = { .embed = "embeddings", .final_norm = "norm_f", .head = "lm_head", .layer = "layers.",
                 .attn_norm = "norm", SSM("mixer.") },
granite_names = { .embed = "embed_tokens", .final_norm = "norm", .head = "lm_head", .layer = "layers.",
                  .attn_norm = "input_layernorm",
                  .mlp_norm = "post_attention_layernorm", ATTN, SSM("mamba."), .gate_up = "shared_mlp.input_linear",
                  .down = "shared_mlp.output_linear",
                  .shared_gate_up = "shared_mlp.input_linear", .shared_down = "shared_mlp.output_linear",
                  .router = "block_sparse_moe.router.layer",
                  .experts_form = EXPERTS_FUSED, .experts = "block_sparse_moe.", .expert_gate = "input_linear",
                  .expert_down = "output_linear",
                  .gguf_permuted = 1 },
nemotron_names = { .embed = "embeddings", .final_norm = "norm_f", .head = "lm_head", .layer = "layers.",
                   .attn_norm = "norm", .mlp_norm = "norm",
                   .q = "mixer.q_proj", .k = "mixer.k_proj", .v = "mixer.v_proj", .o = "mixer.o_proj", SSM("mixer."),
                   .up = "mixer.up_proj",
                   .down = "mixer.down_proj", .router = "mixer.gate",
                   .correction = "mixer.gate.e_score_correction_bias", .experts = "mixer.experts.",
                   .expert_up = "up_proj", .expert_down = "down_proj", .latent_in = "mixer.fc1_latent_proj",
                   .latent_out = "mixer.fc2_latent_proj", .shared_up = "mixer.shared_experts.up_proj",
                   .shared_down = "mixer.shared_experts.down_proj" },
qwen_names = { .embed = "embed_tokens", .final_norm = "norm", .head = "lm_head", .layer = "layers.",
               .attn_norm = "input_layernorm",
               .mlp_norm = "post_attention_layernorm", ATTN, .q_gated = 1, .q_norm = "self_attn.q_norm",
               .k_norm = "self_attn.k_norm",
               .in = "linear_attn.in_proj_qkvz", .in_ba = "linear_attn.in_proj_ba", .conv = "linear_attn.conv1d",
               .a_log = "linear_attn.A_log",
               .dt_bias = "linear_attn.dt_bias", .gate_norm = "linear_attn.norm", .state_o = "linear_attn.out_proj",
               .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj", .router = "mlp.gate",
               .experts = "mlp.experts.", .expert_gate = "gate_proj",
               .expert_up = "up_proj", .expert_down = "down_proj", .shared_router = "mlp.shared_expert_gate",
               .shared_gate = "mlp.shared_expert.gate_proj",
               .shared_up = "mlp.shared_expert.up_proj", .shared_down = "mlp.shared_expert.down_proj" };

/* ---- keys ---- */

/* Read a number, or infinity, which JSON lacks and files spell in different ways. */
static float limit(struct parse *p, const char *key, const json_t *v)
{
    const char *name = json_string_value(js_get(v, "__float__"));
    if (!name)
        name = json_string_value(v);
    if (json_is_number(v))
        return (float)json_number_value(v);
    if (!name || (strcmp(name, "Infinity") != 0 && strcmp(name, "inf") != 0))
        parse_fail(p, ERR_FORMAT, "%s: expected two numbers", key);
    return INFINITY;
}

static void time_step_parse(struct parse *p, struct recurrent *r)
{
    const char *key = NULL;
    const json_t *v = parse_find(p, "time_step_limit|mamba_dt_limit", &key);
    r->dt_max = INFINITY;
    if (v && json_array_size(v) != 2) {
        parse_fail(p, ERR_FORMAT, "%s: expected two numbers", key);
    } else if (v) {
        r->dt_min = limit(p, key, json_array_get(v, 0));
        r->dt_max = limit(p, key, json_array_get(v, 1));
    }
    if (!p->bad && !(r->dt_min >= 0 && r->dt_min <= r->dt_max))
        parse_fail(p, ERR_FORMAT, "%s: from %g to %g, expected a range of numbers from 0 on", key, (double)r->dt_min,
                   (double)r->dt_max);
}

/* Skip keys about initialization, and about how other runtimes divide the sequence. */
static void training_keys(struct parse *p)
{
    parse_find(p, "time_step_min|time_step_max|time_step_floor|time_step_rank|mamba_dt_min|mamba_dt_max|mamba_dt_init_floor|chunk_size|mamba_chunk_size|"
                  "rescale_prenorm_residual|residual_in_fp32|expand|mamba_expand|use_mamba_kernels|mamba_ssm_cache_dtype|num_logits_to_keep", NULL);
}

static int width(struct parse *p, const char *keys, int otherwise)
{
    return (int)parse_int(p, keys, 1, MOST_WIDTH, otherwise);
}

/* Read the width of the rows between Mamba2's input and output projections. */
int64_t inner_parse(struct parse *p, const struct config *c, const char *key)
{
    const double by = parse_real(p, key, 2), inner = by * c->hidden_size;
    if (inner >= 1 && inner <= MOST_WIDTH)
        return (int64_t)inner;
    parse_fail(p, ERR_FORMAT, "%s %g makes layers of width %g, expected 1 to %d", key, by, inner, MOST_WIDTH);
    return 1;
}

/* Read the sizes of Mamba2 layers; three architectures spell the keys differently.  inner: width
 * between a layer's projections; 0: the width of its heads together. */
void mamba_parse(struct parse *p, struct config *c, const struct recurrent *otherwise, int64_t inner)
{
    struct recurrent *r = &c->recurrent;
    const json_t *head = parse_find(p, "mamba_d_head", NULL);
    r->n_heads = width(p, "mamba_n_heads|mamba_num_heads|num_heads", otherwise->n_heads);
    if (json_is_string(head) && strcmp(json_string_value(head), "auto") == 0)
        r->head_dim = (int)(inner / r->n_heads);
    else
        r->head_dim = width(p, head ? "mamba_d_head" : strcmp(c->arch, "mamba2") == 0 ? "head_dim" : "mamba_head_dim",
                            otherwise->head_dim ? otherwise->head_dim : (int)(inner / r->n_heads));
    r->n_groups = width(p, "mamba_n_groups|n_groups", otherwise->n_groups);
    r->state_size = width(p, "mamba_d_state|ssm_state_size|state_size", otherwise->state_size);
    r->conv_kernel = (int)parse_int(p, "mamba_d_conv|conv_kernel", 2, MOST_KERNEL, otherwise->conv_kernel);
    r->conv_bias = parse_bool(p, "mamba_conv_bias|use_conv_bias", 1);
    r->norm_eps = c->norm_eps;
    r->norm_groups = r->n_groups;
    time_step_parse(p, r);
    training_keys(p);
    if (!p->bad && inner && (int64_t)r->n_heads * r->head_dim != inner)
        parse_fail(p, ERR_SHAPE, "%d heads of %d in Mamba2's layers, expected a product of %lld", r->n_heads,
                   r->head_dim, (long long)inner);
    if (!p->bad && (r->head_dim < 1 || r->n_heads % r->n_groups || (int64_t)r->n_heads * r->head_dim > MOST_WIDTH ||
                    (int64_t)r->n_groups * r->state_size > MOST_WIDTH ||
         (int64_t)r->n_heads * r->head_dim * r->state_size > MOST_STATE))
        parse_fail(p, ERR_SHAPE, "%d heads of %d in %d groups with states of %d in Mamba2's layers: does not fit",
                   r->n_heads, r->head_dim, r->n_groups, r->state_size);
}

void silu_only(struct parse *p, const struct config *c)
{
    if (c->act != CONFIG_ACT_SILU)
        parse_fail(p, ERR_UNSUPPORTED, "hidden_act other than \"silu\" is not supported by this architecture");
}

void kinds_parse(struct parse *p, struct config *c, const char *keys, const struct layer_kind *kinds)
{
    const char *key;
    const json_t *types = parse_find(p, keys, &key);
    if (!types)
        return;
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers) {
        parse_fail(p, ERR_FORMAT, "%s: expected an array of num_hidden_layers = %d names", key, c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers && !p->bad; i++) {
        const char *name = json_string_value(json_array_get(types, (size_t)i));
        const struct layer_kind *k = kinds;
        while (name && k->name && strcmp(k->name, name) != 0)
            k++;
        if (!name || !k->name) {
            parse_fail(p, ERR_UNSUPPORTED, "%s: layer %d is \"%.40s\", which is not supported by this architecture",
                       key, i, name ? name : "?");
            return;
        }
        c->mixer[i] = (unsigned char)k->mixer;
        c->ff[i] = (unsigned char)(k->ff >= 0 ? k->ff : c->ff[i]);
    }
}

/* ---- architectures ---- */

static void more_lfm2(struct parse *p, struct config *c)
{
    static const struct layer_kind kinds[] = { { "conv", MIXER_CONV, -1 }, { "full_attention", MIXER_ATTENTION, -1 },
                                               { 0 } };
    const json_t *full = parse_find(p, "full_attn_idxs", NULL), *v;
    size_t at;
    silu_only(p, c);
    c->tied = parse_bool(p, "tie_embedding", c->tied);
    c->tied_given |= parse_find(p, "tie_embedding", NULL) != NULL;
    c->recurrent.conv_kernel = (int)parse_int(p, "conv_L_cache", 2, MOST_KERNEL, 3);
    if ((c->recurrent.conv_bias = parse_bool(p, "conv_bias", 0)))
        c->biases |= BIAS_IN;
    int64_t ff = parse_int(p, "block_ff_dim", 1, MOST_WIDTH, c->intermediate_size);
    const int64_t multiple = parse_int(p, "block_multiple_of", 1, MOST_WIDTH, 256);
    const double by = parse_real(p, "block_ffn_dim_multiplier", 1);
    if (parse_bool(p, "block_auto_adjust_ff_dim", 1)) {
        ff = (int64_t)(by * (double)(2 * ff / 3));
        ff = (ff + multiple - 1) / multiple * multiple;
    }
    if (ff < 1 || ff > MOST_WIDTH)
        parse_fail(p, ERR_FORMAT, "block_ffn_dim_multiplier %g makes an MLP of width %lld", by, (long long)ff);
    c->intermediate_size = (int)ff;
    if (full)
        memset(c->mixer, MIXER_CONV, (size_t)c->n_layers);
    json_array_foreach((json_t *)full, at, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= c->n_layers)
            parse_fail(p, ERR_FORMAT, "full_attn_idxs: element %zu is no layer of %d", at, c->n_layers);
        else
            c->mixer[json_integer_value(v)] = MIXER_ATTENTION;
    }
    kinds_parse(p, c, "layer_types", kinds);
    parse_find(p, "block_dim|block_mlp_init_scale|block_norm_eps|block_out_init_scale|block_use_swiglu|block_use_xavier_init|conv_dim|conv_dim_out|conv_use_xavier_init|"
                  "use_pos_enc|num_heads", NULL);
}

static void more_lfm2_moe(struct parse *p, struct config *c)
{
    static const struct layer_kind kinds[] = { { "conv", MIXER_CONV, -1 }, { "full_attention", MIXER_ATTENTION, -1 },
                                               { 0 } };
    struct moe *m = &c->moe;
    silu_only(p, c);
    c->tied = parse_bool(p, "tie_embedding", c->tied);
    c->tied_given |= parse_find(p, "tie_embedding", NULL) != NULL;
    c->recurrent.conv_kernel = (int)parse_int(p, "conv_L_cache", 2, MOST_KERNEL, 3);
    if ((c->recurrent.conv_bias = parse_bool(p, "conv_bias", 0)))
        c->biases |= BIAS_IN;
    experts_parse(p, c, 32, 4, 1792);
    const int dense = (int)parse_int(p, "num_dense_layers", 0, INT32_MAX, 2);
    memset(c->ff, FF_DENSE, (size_t)(dense < c->n_layers ? dense : c->n_layers));
    m->router = ROUTER_SIGMOID;
    m->correction = parse_bool(p, "use_expert_bias", 1);
    m->normalize = parse_bool(p, "norm_topk_prob", 1);
    m->norm_add = 1e-6f;
    m->scale = (float)parse_real(p, "routed_scaling_factor", 1);
    kinds_parse(p, c, "layer_types", kinds);
}

static void more_lfm3(struct parse *p, struct config *c)
{
    static const struct layer_kind kinds[] = { { "conv", MIXER_CONV, -1 }, { "full_attention", MIXER_ATTENTION, -1 },
                                               { "sliding_attention", MIXER_ATTENTION, -1 }, { 0 } };
    const int window = window_parse(p, 256);
    silu_only(p, c);
    attention_bias_parse(p, c);
    c->recurrent.conv_kernel = (int)parse_int(p, "conv_L_cache", 2, MOST_KERNEL, 7);
    if ((c->recurrent.conv_bias = parse_bool(p, "conv_bias", 0)))
        c->biases |= BIAS_IN;
    if (parse_bool(p, "use_attention_gate", 1))
        c->attn_gate = ATTN_GATE_HEAD;
    if (!parse_bool(p, "use_sandwich_norm", 1))
        c->names = &lfm3_bare_names;
    for (int i = 0; i < c->n_layers; i++) {
        c->mixer[i] = i % 4 == 2 || (i % 4 == 0 && i) ? MIXER_ATTENTION : MIXER_CONV;
        c->window[i] = i % 4 == 0 && i ? window : 0;
    }
    kinds_parse(p, c, "layer_types", kinds);
    const json_t *types = parse_find(p, "layer_types", NULL), *v;
    size_t i;
    json_array_foreach((json_t *)types, i, v)
        if (!p->bad)
            c->window[i] = strcmp(json_string_value(v), "sliding_attention") == 0 ? window : 0;
}

static void more_mamba2(struct parse *p, struct config *c)
{
    static const struct recurrent otherwise = { .n_heads = 128, .head_dim = 64, .n_groups = 8, .state_size = 128,
                                                .conv_kernel = 4 };
    const int64_t inner = inner_parse(p, c, "expand");
    silu_only(p, c);
    memset(c->mixer, MIXER_MAMBA2, (size_t)c->n_layers);
    memset(c->ff, FF_NONE, (size_t)c->n_layers);
    mamba_parse(p, c, &otherwise, inner);
    if (parse_bool(p, "use_bias", 0))
        c->biases |= BIAS_IN;
    /* it has neither attention nor an MLP */
    c->n_heads = c->n_kv_heads = c->head_dim = c->intermediate_size = 1;
}

static void more_granite(struct parse *p, struct config *c)
{
    static const struct recurrent otherwise = { .n_heads = 128, .n_groups = 1, .state_size = 256, .conv_kernel = 4 };
    static const struct layer_kind kinds[] = { { "linear_attention", MIXER_MAMBA2, -1 }, { "mamba", MIXER_MAMBA2, -1 },
                                               { "full_attention", MIXER_ATTENTION, -1 },
                                               { "attention", MIXER_ATTENTION, -1 }, { 0 } };
    silu_only(p, c);
    attention_bias_parse(p, c);
    multipliers_parse(p, c);
    const int shared = width(p, "shared_intermediate_size", 1024);
    if (parse_int(p, "num_local_experts", 0, 65536, 8) > 0) {
        experts_parse(p, c, 8, 2, c->intermediate_size);
        c->moe.router = ROUTER_TOP_SOFTMAX;
        c->moe.shared_size = shared;
    } else {
        parse_find(p, "num_experts_per_tok", NULL);
        c->intermediate_size = shared;
    }
    memset(c->mixer, MIXER_MAMBA2, (size_t)c->n_layers);
    kinds_parse(p, c, "layer_types|layers_block_type", kinds);
    mamba_parse(p, c, &otherwise, inner_parse(p, c, "mamba_expand"));
    if (parse_bool(p, "mamba_proj_bias", 0))
        c->biases |= BIAS_IN;
    const char *pos = parse_string(p, "position_embedding_type", "nope");
    if (strcmp(pos, "rope") != 0)
        c->pos = POS_NONE;
    if (c->pos == POS_NONE)
        parse_find(p, "rope_theta|rope_scaling", NULL);
    parse_find(p, "init_method|normalization_function", NULL);
}

/* The length of the list or pattern is the number of layers; num_hidden_layers repeats it or is
 * missing. */
static void layers_resize(struct parse *p, struct config *c, size_t n)
{
    if (n < 1 || n > 65536) {
        parse_fail(p, ERR_FORMAT, "layers_block_type: %zu layers", n);
        return;
    }
    c->n_layers = (int)n;
    unsigned char **const kinds[] = { &c->mixer, &c->ff };
    int **const numbers[] = { &c->chunk, &c->window, &c->rope_of };
    for (int i = 0; i < 2; i++) {
        free(*kinds[i]);
        if (!(*kinds[i] = calloc(n, 1)))
            goto nomem;
    }
    for (int i = 0; i < 3; i++) {
        free(*numbers[i]);
        if (!(*numbers[i] = calloc(n, sizeof **numbers[i])))
            goto nomem;
    }
    return;
nomem:
    err_nomem(p->e, "config");
    p->bad = 1;
}

/* Read a mixture of experts without gates, and a shared MLP of its own width. */
static void nemotron_experts(struct parse *p, struct config *c)
{
    experts_parse(p, c, 8, 2, 7688);
    const int shared = (int)parse_int(p, "n_shared_experts", 0, MOST_WIDTH, 1);
    c->moe.shared_size = shared ? width(p, "moe_shared_expert_intermediate_size", 7688) : 0;
    groups_parse(p, c, 1, 1);
    sigmoid_router(p, c, 1, 1);
    c->moe.latent = (int)parse_int(p, "moe_latent_size", 0, MOST_WIDTH, 0);
}

static int any_named(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && strcmp(one, name) == 0)
            return 1;
    }
    return 0;
}

static void more_nemotron_h(struct parse *p, struct config *c)
{
    static const struct recurrent otherwise = { .n_heads = 128, .head_dim = 64, .n_groups = 8, .state_size = 128,
                                                .conv_kernel = 4 };
    static const struct layer_kind kinds[] = {
        { "linear_attention", MIXER_MAMBA2, FF_NONE }, { "mamba", MIXER_MAMBA2, FF_NONE },
        { "full_attention", MIXER_ATTENTION, FF_NONE },
        { "attention", MIXER_ATTENTION, FF_NONE }, { "mlp", MIXER_NONE, FF_DENSE }, { "moe", MIXER_NONE, FF_MOE },
        { 0 } };
    const json_t *types = parse_find(p, "layers_block_type|layer_types", NULL);
    const char *pattern = parse_string(p, "hybrid_override_pattern", ""),
               *act = parse_string(p, "mlp_hidden_act", "relu2");
    if (!types && !*pattern)
        parse_fail(p, ERR_FORMAT, "layers_block_type is missing (or hybrid_override_pattern)");
    if (p->bad)
        return;
    layers_resize(p, c, types ? json_array_size(types) : strlen(pattern));
    if (!p->bad && (types ? any_named(types, "moe") : strchr(pattern, 'E') != NULL))
        nemotron_experts(p, c);
    if (types)
        kinds_parse(p, c, "layers_block_type|layer_types", kinds);
    for (int i = 0; !types && i < c->n_layers && !p->bad; i++) {
        static const char letters[] = "M*-E";
        static const unsigned char mixers[] = { MIXER_MAMBA2, MIXER_ATTENTION, MIXER_NONE, MIXER_NONE },
                                   ffs[] = { FF_NONE, FF_NONE, FF_DENSE, FF_MOE };
        const char *at = strchr(letters, pattern[i]);
        if (!at)
            parse_fail(p, ERR_UNSUPPORTED, "hybrid_override_pattern: layer %d is '%c', expected M, *, - or E", i,
                       pattern[i]);
        else
            c->mixer[i] = mixers[at - letters], c->ff[i] = ffs[at - letters];
    }
    if (strcmp(act, "relu2") != 0 || strcmp(parse_string(p, "mamba_hidden_act", "silu"), "silu") != 0)
        parse_fail(p, ERR_UNSUPPORTED, "mlp_hidden_act and mamba_hidden_act: only \"relu2\" and \"silu\" are supported");
    mamba_parse(p, c, &otherwise, 0);
    /* as in transformers: time steps are at least time_step_min, and time_step_limit is not used */
    c->recurrent.dt_min = (float)parse_real(p, "time_step_min|mamba_dt_min", 0.001);
    c->recurrent.dt_max = INFINITY;
    attention_bias_parse(p, c);
    if (parse_bool(p, "mlp_bias", 0))
        c->biases |= BIAS_MLP;
    if (parse_bool(p, "use_bias", 0))
        c->biases |= BIAS_IN;
    parse_must_be(p, "mamba_proj_bias", parse_bool(p, "use_bias", 0));
    if (window_parse(p, 0))
        parse_fail(p, ERR_UNSUPPORTED, "sliding_window is not supported by this architecture");
    c->n_extra_layers = (int)parse_int(p, "num_nextn_predict_layers", 0, 65536, 0);
    /* keys of layers with experts, which not all models have, and of layers that predict further
     * tokens */
    parse_find(p, "moe_intermediate_size|moe_latent_size|moe_shared_expert_intermediate_size|moe_shared_expert_overlap|mtp_layers_block_type|mtp_hybrid_override_pattern|"
                  "n_group|n_routed_experts|n_shared_experts|norm_topk_prob|num_experts_per_tok|routed_scaling_factor|topk_group|rope_theta|partial_rotary_factor", NULL);
}

void delta_parse(struct parse *p, struct config *c)
{
    static const struct layer_kind kinds[] = { { "linear_attention", MIXER_DELTA, -1 },
                                               { "full_attention", MIXER_ATTENTION, -1 }, { 0 } };
    struct recurrent *r = &c->recurrent;
    const int every = (int)parse_int(p, "full_attention_interval", 1, INT32_MAX, 4);
    for (int i = 0; i < c->n_layers; i++)
        c->mixer[i] = (i + 1) % every ? MIXER_DELTA : MIXER_ATTENTION;
    kinds_parse(p, c, "layer_types", kinds);
    *r = (struct recurrent){ .conv_kernel = (int)parse_int(p, "linear_conv_kernel_dim", 2, MOST_KERNEL, 4),
                             .n_heads = width(p, "linear_num_value_heads", 32),
                             .head_dim = width(p, "linear_value_head_dim", 128),
                             .n_groups = width(p, "linear_num_key_heads", 16),
                             .state_size = width(p, "linear_key_head_dim", 128), .norm_eps = c->norm_eps,
                             .rate_scale = 1, .z_apart = parse_bool(p, "zse_z_apart", 0) };
    delta_check(p, r);
}

void delta_check(struct parse *p, const struct recurrent *r)
{
    if (!p->bad && (r->n_heads % r->n_groups || (int64_t)r->n_heads * r->head_dim > MOST_WIDTH ||
                    (int64_t)r->n_groups * r->state_size > MOST_WIDTH ||
         (int64_t)r->n_heads * r->head_dim * r->state_size > MOST_STATE))
        parse_fail(p, ERR_SHAPE, "linear_num_value_heads %d of %d, linear_num_key_heads %d of %d: does not fit",
                   r->n_heads, r->head_dim, r->n_groups, r->state_size);
}

static void more_qwen3_next(struct parse *p, struct config *c)
{
    silu_only(p, c);
    attention_bias_parse(p, c);
    experts_parse(p, c, 512, 10, 512);
    sparse_layers_parse(p, c);
    c->moe.normalize = parse_bool(p, "norm_topk_prob", 1);
    c->moe.shared_size = (int)parse_int(p, "shared_expert_intermediate_size", 0, MOST_WIDTH, 512);
    c->moe.shared_gate = c->moe.shared_size > 0;
    c->norm_offset = c->qk_norm_offset = c->gguf ? 0 : 1;
    c->attn_gate = ATTN_GATE_CHANNEL;
    delta_parse(p, c);
}

const struct arch state_archs[] = {
    { ROW("lfm2",         lfm2_names,      65536,  2560, 12288, 32, 32, 8,  128000), ROPE(1000000), .eps = 1e-5,
      .act = "silu", .tied = 1, .qk_norm = QK_NORM_HEAD, .more = more_lfm2 },
    { ROW("lfm2_moe",     lfm2_moe_names,  65536,  2048, 7168,  32, 32, 8,  128000), ROPE(1000000), .eps = 1e-5,
      .act = "silu", .tied = 1, .qk_norm = QK_NORM_HEAD, .more = more_lfm2_moe },
    { ROW("lfm3",         lfm3_names,      128000, 2048, 7680,  24, 16, 4,  128000), ROPE(1000000), .eps = 1e-5,
      .act = "silu", .tied = 1, .head_dim = 128, .local_theta = 10000, .qk_norm = QK_NORM_HEAD, .more = more_lfm3 },
    { ROW("mamba2",       mamba2_names,    32768,  4096, 1,     64, 128, 0, 1 << 20), .pos = POS_NONE, .eps = 1e-5,
      .act = "silu", .head_dim = 64, .more = more_mamba2 },
    { ROW("granitemoehybrid", granite_names, 32000, 4096, 11008, 32, 32, 0, 2048),   ROPE(10000),   .eps = 1e-6,
      .act = "silu", .more = more_granite },
    { ROW("nemotron_h",   nemotron_names,  131072, 4096, 21504, 52, 32, 8,  4096),   .pos = POS_NONE, .eps = 1e-5,
      .act = "relu2", .not_gated = 1, .head_dim = 128,
      .more = more_nemotron_h },
    { ROW("qwen3_next",   qwen_names,      151936, 2048, 5632,  48, 16, 2,  32768),  ROPE(10000),   .eps = 1e-6,
      .act = "silu", .head_dim = 256, .partial = 0.25,
      .qk_norm = QK_NORM_HEAD, .more = more_qwen3_next },
    { 0 }
};

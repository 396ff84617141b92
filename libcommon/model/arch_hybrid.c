/* arch_hybrid.c - architectures of 2025 and 2026 with delta nets beside attention: gated delta net
 * (arXiv:2412.06464), Kimi delta attention (arXiv:2510.26692).  Sources: the configuration and
 * modeling files of transformers 5, and config.json of the models on the hub. */
#include <math.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

enum { MOST_WIDTH = 1 << 24, MOST_KERNEL = 64 };

#define TOP       .embed = "embed_tokens", .final_norm = "norm", .head = "lm_head", .layer = "layers."
#define TWO_NORMS .attn_norm = "input_layernorm", .mlp_norm = "post_attention_layernorm"
#define ATTN(at)  .q = at "q_proj", .k = at "k_proj", .v = at "v_proj", .o = at "o_proj"
#define QK_NORMS  .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"
#define MLP(at)   .gate = at "gate_proj", .up = at "up_proj", .down = at "down_proj"
#define EXPERTS   .router = "mlp.gate", .experts = "mlp.experts.", .expert_gate = "gate_proj", .expert_up = "up_proj", .expert_down = "down_proj"
#define SHARED(at) .shared_gate = at "gate_proj", .shared_up = at "up_proj", .shared_down = at "down_proj"
#define RATES(at) .a_log = at "A_log", .dt_bias = at "dt_bias"
#define QKV(at)   .in = at "{q,k,v}_proj", .conv = at "{q,k,v}_conv1d"
#define LATENT(at) .kv_a = at "kv_a_proj_with_mqa", .kv_norm = at "kv_a_layernorm", .kv_b = at "kv_b_proj"

static const struct weight_names
qwen3_5_names = { TOP, TWO_NORMS, ATTN("self_attn."), .q_gated = 1, QK_NORMS, MLP("mlp."), EXPERTS,
                  SHARED("mlp.shared_expert."), .shared_router = "mlp.shared_expert_gate",
                  .in = "linear_attn.in_proj_qkv", .in_z = "linear_attn.in_proj_z",
                  .in_ba = "linear_attn.in_proj_{b,a}", .conv = "linear_attn.conv1d", RATES("linear_attn."),
                  .gate_norm = "linear_attn.norm", .state_o = "linear_attn.out_proj" },
/* layers of attention have norms after attention and MLP */
olmo_names = { TOP, .attn_norm = "input_layernorm|attention_layer_norm",
               .mlp_norm = "post_attention_layernorm|feedforward_layer_norm",
               .attn_post_norm = "post_attention_layernorm|feedforward_layer_norm",
               .mlp_post_norm = "post_feedforward_layernorm", ATTN("self_attn."), QK_NORMS, MLP("mlp."),
               QKV("linear_attn."), .in_z = "linear_attn.g_proj", .in_ba = "linear_attn.{b,a}_proj",
               RATES("linear_attn."), .gate_norm = "linear_attn.o_norm", .state_o = "linear_attn.o_proj" },
kimi_names = { TOP, TWO_NORMS, .q = "self_attn.q_proj", .q_a = "self_attn.q_a_proj",
               .q_a_norm = "self_attn.q_a_layernorm", .q_b = "self_attn.q_b_proj", .o = "self_attn.o_proj",
               LATENT("self_attn."), .gate = "mlp.gate_proj|block_sparse_moe.gate_proj",
               .up = "mlp.up_proj|block_sparse_moe.up_proj", .down = "mlp.down_proj|block_sparse_moe.down_proj",
               .router = "block_sparse_moe.gate", .correction = "block_sparse_moe.gate.e_score_correction_bias",
               .experts = "block_sparse_moe.experts.", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2",
               SHARED("block_sparse_moe.shared_experts."), QKV("self_attn."), .in_ba = "self_attn.b_proj",
               .gate_a = "self_attn.{f,g}_a_proj", .in_f = "self_attn.f_b_proj", .in_z = "self_attn.g_b_proj",
               RATES("self_attn."), .gate_norm = "self_attn.o_norm" },
bailing_names = { .embed = "word_embeddings", .final_norm = "norm", .head = "lm_head", .layer = "layers.", TWO_NORMS,
                  .q = "attention.q_proj", .q_a = "attention.q_a_proj", .q_a_norm = "attention.q_a_layernorm",
                  .q_b = "attention.q_b_proj", .q_gate = "attention.g_proj", .o = "attention.dense", LATENT("attention."),
                  MLP("mlp."), EXPERTS, .correction = "mlp.gate.expert_bias", SHARED("mlp.shared_experts."),
                  QKV("attention."), .in_ba = "attention.b_proj", .in_f = "attention.f_proj",
                  .in_z = "attention.g_proj", RATES("attention."), .gate_norm = "attention.o_norm" };

static const struct weight_names
minimax_names = { TOP, TWO_NORMS, ATTN("self_attn."), .router = "block_sparse_moe.gate",
                  .experts = "block_sparse_moe.experts.", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2",
                  .in = "self_attn.qkv_proj", .in_z = "self_attn.output_gate", .gate_norm = "self_attn.norm",
                  .state_o = "self_attn.out_proj" };

/* ---- keys ---- */

static void more_qwen3_5(struct parse *p, struct config *c)
{
    silu_only(p, c);
    attention_bias_parse(p, c);
    parse_must_be(p, "attn_output_gate", 1);
    c->norm_offset = c->qk_norm_offset = c->gguf ? 0 : 1;
    c->attn_gate = ATTN_GATE_CHANNEL;
    delta_parse(p, c);
    c->recurrent.z_apart = c->recurrent.ba_flat = 1;
    c->recurrent.tiled = c->gguf;
    c->n_extra_layers = (int)parse_int(p, "num_nextn_predict_layers", 0, 65536, 0);
    c->next_embeds = parse_bool(p, "mtp_use_dedicated_embeddings", 0);
    parse_find(p, "mamba_ssm_dtype|mlp_only_layers|mtp_num_hidden_layers", NULL);
}

static void more_qwen3_5_moe(struct parse *p, struct config *c)
{
    experts_parse(p, c, 256, 8, 512);
    c->moe.normalize = parse_bool(p, "norm_topk_prob", 1);
    c->moe.shared_size = (int)parse_int(p, "shared_expert_intermediate_size", 0, MOST_WIDTH, 512);
    c->moe.shared_gate = c->moe.shared_size > 0;
    more_qwen3_5(p, c);
}

static void more_olmo(struct parse *p, struct config *c)
{
    silu_only(p, c);
    attention_bias_parse(p, c);
    const int key_dim = (int)(0.75 * c->hidden_size / c->n_heads);
    struct recurrent *r = &c->recurrent;
    delta_parse(p, c);
    r->n_groups = (int)parse_int(p, "linear_num_key_heads", 1, MOST_WIDTH, c->n_heads);
    r->n_heads = (int)parse_int(p, "linear_num_value_heads", 1, MOST_WIDTH, c->n_heads);
    r->state_size = (int)parse_int(p, "linear_key_head_dim", 1, MOST_WIDTH, key_dim);
    r->head_dim = (int)parse_int(p, "linear_value_head_dim", 1, MOST_WIDTH, 2 * (int64_t)r->state_size);
    delta_check(p, r);
    r->norm_eps = 1e-5f;                        /* differs from the epsilon of the other norms */
    r->z_apart = r->ba_flat = 1;
    r->rate_scale = parse_bool(p, "linear_allow_neg_eigval", 1) ? 2 : 1;
    c->attn_post_norms = 1;
    if (!js_get(js_get(p->json, "rope_parameters"), "rope_theta"))
        c->pos = POS_NONE;
    parse_find(p, "linear_a_log_min|linear_a_log_max|linear_dt_min|linear_dt_max|linear_dt_init_floor", NULL);
}

/* Layers of full attention use latent attention, the others Kimi delta attention. */
static void latent_kinds(struct parse *p, struct config *c)
{
    static const struct layer_kind kinds[] = { { "linear_attention", MIXER_DELTA, -1 },
                                               { "full_attention", MIXER_MLA, -1 }, { 0 } };
    kinds_parse(p, c, "layer_types", kinds);
}

static void per_row_set(struct parse *p, struct config *c, int n_heads, int head_dim, int conv_kernel)
{
    c->recurrent = (struct recurrent){ .conv_kernel = conv_kernel, .n_heads = n_heads, .head_dim = head_dim,
                                       .n_groups = n_heads, .state_size = head_dim, .norm_eps = c->norm_eps,
                                       .rate_scale = 1, .z_apart = 1, .ba_flat = 1, .per_row = 1 };
    delta_check(p, &c->recurrent);
}

/* Read the mixture of experts of kimi_linear and bailing_hybrid: a sigmoid router with groups, and
 * shared experts. */
static void latent_experts(struct parse *p, struct config *c, int n, int top_k, int width, int groups, int top_groups,
                           int n_dense)
{
    experts_parse(p, c, n, top_k, width);
    dense_first(p, c, n_dense);
    mlp_types_parse(p, c);
    shared_parse(p, c, "num_shared_experts|n_shared_experts", 1);
    groups_parse(p, c, groups, top_groups);
    sigmoid_router(p, c, 1, 2.5);
}

/* Read a list of linear_attn_config, which numbers layers from 1. */
static void numbered_layers(struct parse *p, struct config *c, const char *key, int mixer)
{
    const json_t *list = parse_find(p, key, NULL), *v;
    size_t i;
    json_array_foreach((json_t *)list, i, v) {
        const json_int_t n = json_integer_value(v);
        if (n < 1 || n > c->n_layers)
            parse_fail(p, ERR_FORMAT, "%s: element %zu is no layer of 1 to %d", key, i, c->n_layers);
        else
            c->mixer[n - 1] = (unsigned char)mixer;
    }
}

static void more_kimi_linear(struct parse *p, struct config *c)
{
    static const char *const none[] = { NULL };
    const json_t *inner = parse_find(p, "linear_attn_config", NULL);
    struct parse q = { .json = inner ? inner : p->json, .seen = json_object(),
                       .where = "config.json: linear_attn_config", .e = p->e };
    if (!q.seen) {
        err_nomem(p->e, "config");
        p->bad = 1;
        return;
    }
    silu_only(p, c);
    c->max_len = (int)parse_int(p, "model_max_length", 1, 1 << 28, 1 << 20);
    mla_parse(p, c);
    parse_must_be(p, "mla_use_nope", 1);
    latent_experts(p, c, 256, 8, 1024, 1, 1, 1);
    c->moe.scale = (float)parse_real(p, "routed_scaling_factor", 2.446);
    if (strcmp(parse_string(p, "moe_router_activation_func", "sigmoid"), "sigmoid") != 0)
        parse_fail(p, ERR_UNSUPPORTED, "moe_router_activation_func: only \"sigmoid\" is supported");
    for (int i = 0; i < c->n_layers; i++)
        c->mixer[i] = i && i % 4 == 0 ? MIXER_MLA : MIXER_DELTA;
    int heads = (int)parse_int(p, "linear_num_heads", 1, MOST_WIDTH, 32),
        dim = (int)parse_int(p, "linear_head_dim", 1, MOST_WIDTH, 128),
        kernel = (int)parse_int(p, "linear_conv_kernel_dim", 2, MOST_KERNEL, 4);
    if (inner) {
        heads = (int)parse_int(&q, "num_heads", 1, MOST_WIDTH, heads);
        dim = (int)parse_int(&q, "head_dim", 1, MOST_WIDTH, dim);
        kernel = (int)parse_int(&q, "short_conv_kernel_size", 2, MOST_KERNEL, kernel);
        numbered_layers(&q, c, "full_attn_layers", MIXER_MLA);
        numbered_layers(&q, c, "kda_layers", MIXER_DELTA);
        if (!q.bad)
            parse_leftovers(&q, none);
        p->bad |= q.bad;
    }
    json_decref(q.seen);
    latent_kinds(p, c);
    per_row_set(p, c, heads, dim, kernel);
    c->recurrent.gate_rank = dim;
    parse_find(p, "use_grouped_topk|num_nextn_predict_layers|rope_parameters", NULL);
}

/* Refuse the variants that the keys of the published models could name, and for which transformers
 * has no key. */
static void bailing_variants(struct parse *p, const struct config *c)
{
    static const char *const yes[] = { "linear_silu", "moe_router_enable_expert_bias", "no_kda_lora", "rope_interleave",
                                       "use_qk_norm" };
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        parse_must_be(p, yes[i], 1);
    router_must_be(p, "gated_attention_proj_granularity_type", "head_wise", "head_wise");
    router_must_be(p, "score_function", "sigmoid", "sigmoid");
    router_must_be(p, "scoring_func", "sigmoid", "sigmoid");
    router_must_be(p, "topk_method", "noaux_tc", "noaux_tc");
    parse_must_equal(p, "group_norm_size", 1);
    parse_must_equal(p, "num_kv_heads_for_linear_attn", 0);
    parse_must_equal(p, "moe_shared_expert_intermediate_size", c->moe.intermediate_size);
    parse_find(p, "max_window_layers|router_dtype|seq_aux|embedding_dropout|output_dropout", NULL);
}

static void more_bailing_hybrid(struct parse *p, struct config *c)
{
    /* transformers writes the number of rotated dimensions as head_dim */
    const int dim = (int)parse_int(p, "linear_head_dim", 1, MOST_WIDTH, c->head_dim),
              heads = (int)parse_int(p, "linear_num_heads", 1, MOST_WIDTH, c->n_heads);
    silu_only(p, c);
    c->max_len = (int)parse_int(p, "model_max_length|max_position_embeddings", 1, 1 << 28, 262144);
    mla_parse(p, c);
    c->mla.q_rank = json_object_get(p->json, "q_lora_rank") ? c->mla.q_rank : 0;
    c->attn_gate = ATTN_GATE_HEAD;
    latent_experts(p, c, 512, 8, 768, 8, 4, 2);
    const int every = (int)parse_int(p, "layer_group_size", 1, INT32_MAX, 6);
    for (int i = 0; i < c->n_layers; i++)
        c->mixer[i] = (i + 1) % every ? MIXER_DELTA : MIXER_MLA;
    latent_kinds(p, c);
    per_row_set(p, c, heads, dim, (int)parse_int(p, "short_conv_kernel_size", 2, MOST_KERNEL, 4));
    const double least = parse_real(p, "kda_lower_bound", -5);
    const int bounded = parse_bool(p, "kda_safe_gate", 1);
    c->recurrent.decay_least = bounded ? (float)least : 0;
    if (bounded && !(least < 0))
        parse_fail(p, ERR_FORMAT, "kda_lower_bound is %g, expected a negative number", least);
    bailing_variants(p, c);
    parse_find(p, "linear_conv_kernel_dim|mtp_loss_scaling_factor", NULL);
}

/* The list of the first checkpoints: 1 for full attention, 0 for lightning attention. */
static void attention_list(struct parse *p, struct config *c)
{
    const json_t *list = parse_find(p, "attn_type_list", NULL), *v;
    size_t i;
    if (!list)
        return;
    if (json_array_size(list) != (size_t)c->n_layers)
        parse_fail(p, ERR_FORMAT, "attn_type_list: found %zu elements, expected an array of %d", json_array_size(list),
                   c->n_layers);
    json_array_foreach((json_t *)list, i, v) {
        const json_int_t kind = json_is_integer(v) ? json_integer_value(v) : -1;
        const int mixer = kind ? MIXER_ATTENTION : MIXER_LIGHTNING;
        if (p->bad || kind < 0 || kind > 1)
            parse_fail(p, ERR_UNSUPPORTED, "attn_type_list: layer %zu is not 0 or 1", i);
        else if (json_object_get(p->json, "layer_types") && c->mixer[i] != mixer)
            parse_fail(p, ERR_FORMAT, "attn_type_list: layer %zu is %d, which is not what layer_types says", i, (int)kind);
        else
            c->mixer[i] = (unsigned char)mixer;
    }
}

static void more_minimax(struct parse *p, struct config *c)
{
    static const struct layer_kind kinds[] = { { "linear_attention", MIXER_LIGHTNING, -1 },
                                               { "full_attention", MIXER_ATTENTION, -1 }, { 0 } };
    static const char *const keys[3][2] = {
        { "linear_attn_alpha_factor|layernorm_linear_attention_alpha", "linear_attn_beta_factor|layernorm_linear_attention_beta" },
        { "full_attn_alpha_factor|layernorm_full_attention_alpha", "full_attn_beta_factor|layernorm_full_attention_beta" },
        { "mlp_alpha_factor|layernorm_mlp_alpha", "mlp_beta_factor|layernorm_mlp_beta" } };
    silu_only(p, c);
    experts_parse(p, c, 8, 2, c->intermediate_size);
    c->moe.normalize = 1;
    if (window_parse(p, 0))
        parse_fail(p, ERR_UNSUPPORTED, "sliding_window is not supported by this architecture");
    for (int i = 0; i < c->n_layers; i++)
        c->mixer[i] = i % 2 ? MIXER_LIGHTNING : MIXER_ATTENTION;
    kinds_parse(p, c, "layer_types", kinds);
    attention_list(p, c);
    parse_must_be(p, "postnorm", 1);
    parse_must_equal(p, "shared_intermediate_size", 0);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            c->renorm[i][k] = (float)parse_real(p, keys[i][k], 1);
    if (!(c->renorm[0][0] > 0))
        parse_fail(p, ERR_FORMAT, "linear_attn_alpha_factor: expected a positive number");
    c->recurrent = (struct recurrent){ .conv_kernel = 1, .n_heads = c->n_heads, .head_dim = c->head_dim,
                                       .n_groups = c->n_heads, .state_size = c->head_dim, .norm_eps = 1e-6f,
                                       .norm_groups = 1 };
    delta_check(p, &c->recurrent);
    parse_find(p, "block_size|shared_moe_mode", NULL);
}

const struct arch hybrid_archs[] = {
    { ROW("qwen3_5_text", qwen3_5_names,   248320, 4096, 12288, 32, 16, 4,  32768),  ROPE(10000),   .eps = 1e-6,
      .act = "silu", .head_dim = 256, .partial = 0.25, .qk_norm = QK_NORM_HEAD, .more = more_qwen3_5 },
    { ROW("qwen3_5_moe_text", qwen3_5_names, 248320, 2048, 5632, 40, 16, 2, 32768),  ROPE(10000),   .eps = 1e-6,
      .act = "silu", .head_dim = 256, .partial = 0.25, .qk_norm = QK_NORM_HEAD, .more = more_qwen3_5_moe },
    { ROW("minimax",      minimax_names,   32000,  4096, 14336, 32, 32, 8,  131072), ROPE(1000000), .eps = 1e-5,
      .act = "silu", .more = more_minimax },
    { ROW("minimax_m1",   minimax_names,   200064, 6144, 9216,  80, 64, 8,  10240000), ROPE(10000000), .eps = 1e-5,
      .act = "silu", .head_dim = 128, .more = more_minimax },
    { ROW("minimax_text_01", minimax_names, 200064, 6144, 9216, 80, 64, 8,  10240000), ROPE(10000000), .eps = 1e-5,
      .act = "silu", .head_dim = 128, .more = more_minimax },
    { ROW("olmo_hybrid",  olmo_names,      100352, 3840, 11008, 32, 30, 0,  65536),  ROPE(10000),   .eps = 1e-6,
      .act = "silu", .qk_norm = QK_NORM_FULL, .more = more_olmo },
    { ROW("kimi_linear",  kimi_names,      163840, 2304, 9216,  27, 32, 0,  1 << 20), .pos = POS_NONE, .eps = 1e-5,
      .act = "silu", .head_dim = 128, .more = more_kimi_linear },
    { ROW("bailing_hybrid", bailing_names, 157184, 2560, 6144,  42, 32, 0,  262144), ROPE(6000000), .eps = 1e-6,
      .act = "silu", .head_dim = 128, .rope_pairs = 1, .more = more_bailing_hybrid },
    { 0 }
};

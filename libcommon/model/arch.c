/* arch.c - the table of architectures: defaults of keys that a config.json leaves out, facts that
 * are the same for all models of an architecture, and keys that only one architecture has.
 * Sources: the configuration and modeling files of transformers 5, and the papers and model cards
 * they cite. */
#include "libcommon/model/arch.h"

#include <math.h>
#include <string.h>

#include "libcommon/base/json.h"

/* Keys about training, storage or other runtimes, and keys that repeat others or the weights. */
const char *const arch_ignored[] = {
    "architectures", "auto_map", "model_type", "dtype", "transformers_version", "transformers.js_config",
    "_name_or_path", "_model_name_or_path", "name", "license",
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled",
    "cache_implementation", "use_cache", "tokenizer_class", "initializer_range", "init_std", "initializer_factor",
    "init_method", "init_config", "init_device", "mup_base", "gradient_checkpointing",
    "attention_dropout", "hidden_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout",
    "activation_dropout", "classifier_dropout", "attn_pdrop", "embd_pdrop", "emb_pdrop", "resid_pdrop", "resid_dropout",
    "embedding_dropout", "residual_dropout", "embed_dropout", "ffn_dropout", "layerdrop",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "problem_type", "id2label", "label2id", "num_labels", "finetuning_task", "task_specific_params", "is_decoder",
    "is_llama_config", "is_composition", "return_dict", "output_attentions",
    "output_hidden_states", "chunk_size_feed_forward", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id",
    "mask_token_id", "eod_token_id", "eod_id", "pad_id", "decoder_start_token_id", "forced_eos_token_id",
    "begin_suppress_tokens", "suppress_tokens", "im_start_id", "im_end_id",
    "im_newline_id", "text_start_id", "text_end_id", "image_token_id", "image_token_index", "video_token_id",
    "boi_token_index", "eoi_token_index", "boa_token_index", "mm_tokens_per_image", "vision_config",
    "vision_feature_layer", "vision_feature_select_strategy", "projector_hidden_act",
    "pretraining_tp", "n_ctx", "seq_len", "max_sequence_length", "max_batch_size", "attn_implementation",
    "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "reorder_and_upcast_attn", "inference_runner",
    "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input",
    "bias_dropout_fusion", "masked_softmax_fusion", "skip_bias_add", "offset_alibi", "slow_but_exact", "prefix",
    "verbose", "tokenizer_name", "embedding_fraction", "learned_pos_emb", "norm_type", "mlp_type", "org_vocab_size",
    "max_window_layers", "layer_switch", "order_of_interleaved_layers", "use_gated_activation", "use_parallel_block",
    "use_parallel_embedding", "use_embedding_sharing", "use_rotary_pos_emb", "position_embedding_type",
    "original_max_position_embeddings", "partial_rotary_factor", "rotary", "compression_ratio",
    "full_attn_mod", "interpolate_factor", "model_max_length", "ignored_index", "use_rmsnorm", "use_flash_attention",
    "fuse_rms_norm", "fuse_swiglu", "fuse_linear", "output_router_logits", "router_aux_loss_coef",
    "router_jitter_noise", "aux_loss_alpha", "seq_aux", "ep_size", "qk_head_dim",
    "moe_capacity", "moe_aux_loss_coef", "router_z_loss_coef", "mtp_loss_weight", "unsloth_version", "unsloth_fixed",
    "tensor_parallel", "cla_share_factor", "pool_type", "quantization_config_source", NULL
};

/* ---- names ---- */

#define LLAMA_TOP  .embed = "embed_tokens", .final_norm = "norm", .head = "lm_head", .layer = "layers."
#define LLAMA_ATTN .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.o_proj"
#define LLAMA_MLP  .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"
#define TWO_NORMS  .attn_norm = "input_layernorm", .mlp_norm = "post_attention_layernorm"
#define QK_NORMS   .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"
#define NEOX_MLP   .up = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h"
#define GPT2       .embed = "wte", .pos = "wpe", .final_norm = "ln_f", .head = "lm_head", .layer = "h.", .attn_norm = "ln_1", .mlp_norm = "ln_2", \
                   .qkv = "attn.c_attn", .o = "attn.c_proj", .up = "mlp.c_fc", .down = "mlp.c_proj"
#define FALCON     .embed = "word_embeddings", .final_norm = "ln_f", .head = "lm_head", .layer = "h.", .qkv = "self_attention.query_key_value", \
                   .qkv_grouped = 1, .o = "self_attention.dense", NEOX_MLP
#define OPT        .embed = "decoder.embed_tokens", .pos = "decoder.embed_positions", .head = "lm_head", .layer = "decoder.layers.", \
                   .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.out_proj", \
                       .up = "fc1", .down = "fc2"

static const struct weight_names
llama_names      = { LLAMA_TOP, TWO_NORMS, LLAMA_ATTN, LLAMA_MLP, QK_NORMS, .gguf_permuted = 1 },
qwen_names       = { LLAMA_TOP, TWO_NORMS, LLAMA_ATTN, LLAMA_MLP, QK_NORMS },
hunyuan_names    = { LLAMA_TOP, TWO_NORMS, LLAMA_ATTN, LLAMA_MLP, .q_norm = "self_attn.query_layernorm",
                     .k_norm = "self_attn.key_layernorm" },
olmo_names       = { .embed = "embed_tokens", .final_norm = "", .head = "lm_head", .layer = "layers.", .attn_norm = "",
                     .mlp_norm = "", LLAMA_ATTN, LLAMA_MLP,
                     .gguf_permuted = 1 },
post_norm_names  = { LLAMA_TOP, LLAMA_ATTN, LLAMA_MLP, QK_NORMS, .attn_post_norm = "post_attention_layernorm",
                     .mlp_post_norm = "post_feedforward_layernorm" },
gemma2_names     = { LLAMA_TOP, LLAMA_ATTN, LLAMA_MLP, QK_NORMS, .attn_norm = "input_layernorm",
                     .attn_post_norm = "post_attention_layernorm",
                     .mlp_norm = "pre_feedforward_layernorm", .mlp_post_norm = "post_feedforward_layernorm" },
glm4_names       = { LLAMA_TOP, LLAMA_ATTN, .attn_norm = "input_layernorm",
                     .attn_post_norm = "post_self_attn_layernorm",
                     .mlp_norm = "post_attention_layernorm", .mlp_post_norm = "post_mlp_layernorm",
                     .gate_up = "mlp.gate_up_proj", .down = "mlp.down_proj" },
cohere_names     = { LLAMA_TOP, LLAMA_ATTN, LLAMA_MLP, QK_NORMS, .attn_norm = "input_layernorm" },
phi_names        = { .embed = "embed_tokens", .final_norm = "final_layernorm", .head = "lm_head", .layer = "layers.",
                     .attn_norm = "input_layernorm",
                     .q_norm = "self_attn.q_layernorm", .k_norm = "self_attn.k_layernorm", .q = "self_attn.q_proj",
                     .k = "self_attn.k_proj",
                     .v = "self_attn.v_proj", .o = "self_attn.dense", .up = "mlp.fc1", .down = "mlp.fc2" },
granite_swa_names = { LLAMA_TOP, TWO_NORMS, LLAMA_ATTN, LLAMA_MLP, .sinks = "self_attn.sinks", .gguf_permuted = 1 },
nanochat_names   = { .embed = "embed_tokens", .embed_norm = "", .final_norm = "", .head = "lm_head", .layer = "layers.",
                     .attn_norm = "", .mlp_norm = "", .q_norm = "", .k_norm = "", LLAMA_ATTN, .up = "mlp.fc1",
                     .down = "mlp.fc2" },
apertus_names    = { .gguf_permuted = 1, LLAMA_TOP, LLAMA_ATTN, QK_NORMS, .attn_norm = "attention_layernorm",
                     .mlp_norm = "feedforward_layernorm", .up = "mlp.up_proj", .down = "mlp.down_proj",
                     .act_alpha_p = "mlp.act_fn.alpha_p", .act_alpha_n = "mlp.act_fn.alpha_n",
                     .act_beta = "mlp.act_fn.beta", .act_eps = "mlp.act_fn.eps" },
bitnet_names     = { LLAMA_TOP, TWO_NORMS, LLAMA_ATTN, LLAMA_MLP, .attn_sub_norm = "self_attn.attn_sub_norm",
                     .mlp_sub_norm = "mlp.ffn_sub_norm" },
phi3_names       = { LLAMA_TOP, TWO_NORMS, .qkv = "self_attn.qkv_proj", .o = "self_attn.o_proj",
                     .gate_up = "mlp.gate_up_proj", .down = "mlp.down_proj" },
stablelm_parallel_names = { LLAMA_TOP, LLAMA_ATTN, LLAMA_MLP, .attn_norm = "input_layernorm" },
starcoder2_names = { LLAMA_TOP, TWO_NORMS, LLAMA_ATTN, .up = "mlp.c_fc", .down = "mlp.c_proj" },
up_down_names    = { LLAMA_TOP, TWO_NORMS, LLAMA_ATTN, .up = "mlp.up_proj", .down = "mlp.down_proj" },
arcee_names      = { LLAMA_TOP, TWO_NORMS, LLAMA_ATTN, .up = "mlp.up_proj", .down = "mlp.down_proj",
                     .gguf_permuted = 1 },
gpt2_names       = { GPT2, .conv1d = 1 },
bigcode_names    = { GPT2 },
bigcode_mha_names = { GPT2, .qkv_grouped = 1 },
neox_names       = { .embed = "embed_in", .final_norm = "final_layer_norm", .head = "embed_out", .layer = "layers.",
                     TWO_NORMS,
                     .qkv = "attention.query_key_value", .qkv_grouped = 1, .o = "attention.dense", NEOX_MLP },
gptj_names       = { .embed = "wte", .final_norm = "ln_f", .head = "lm_head", .layer = "h.", .attn_norm = "ln_1",
                     .q = "attn.q_proj", .k = "attn.k_proj",
                     .v = "attn.v_proj", .o = "attn.out_proj", .up = "mlp.fc_in", .down = "mlp.fc_out" },
falcon_names     = { FALCON, .attn_norm = "input_layernorm" },
falcon_seq_names = { FALCON, TWO_NORMS },
falcon_new_names = { FALCON, .attn_norm = "ln_attn", .mlp_norm = "ln_mlp" },
mpt_names        = { .embed = "wte", .final_norm = "norm_f", .head = "lm_head", .layer = "blocks.",
                     .attn_norm = "norm_1", .mlp_norm = "norm_2",
                     .qkv = "attn.Wqkv", .o = "attn.out_proj", .up = "ffn.up_proj", .down = "ffn.down_proj" },
bloom_names      = { FALCON, TWO_NORMS, .embed_norm = "word_embeddings_layernorm" },
opt_names        = { OPT, .final_norm = "decoder.final_layer_norm", .attn_norm = "self_attn_layer_norm",
                     .mlp_norm = "final_layer_norm",
                     .embed_in = "decoder.project_in", .embed_out = "decoder.project_out" },
opt_bare_names   = { OPT, .attn_norm = "self_attn_layer_norm", .mlp_norm = "final_layer_norm",
                     .embed_in = "decoder.project_in", .embed_out = "decoder.project_out" },
opt_post_names   = { OPT, .attn_post_norm = "self_attn_layer_norm", .mlp_post_norm = "final_layer_norm",
                     .embed_in = "decoder.project_in", .embed_out = "decoder.project_out" };

/* ---- keys of single architectures ---- */

/* A number; `absent` if the key is missing, 0 if it is null. */
static double real_or_null(struct parse *p, const char *key, double absent)
{
    return parse_real(p, key, json_object_get(p->json, key) ? 0 : absent);
}

int window_parse(struct parse *p, int absent)
{
    return (int)parse_int(p, "sliding_window", 0, INT32_MAX, json_object_get(p->json, "sliding_window") ? 0 : absent);
}

/* Give every layer i with (i + 1) % period != 0 this window; period 0: every layer. */
static void set_windows(struct config *c, int window, int period)
{
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = period == 0 || (i + 1) % period ? window : 0;
}

void attention_bias_parse(struct parse *p, struct config *c)
{
    if (parse_bool(p, "attention_bias", 0))
        c->biases |= BIAS_QKV | BIAS_O;
}

static void both_biases(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    if (parse_bool(p, "mlp_bias", 0))
        c->biases |= BIAS_MLP;
}

static void more_llama(struct parse *p, struct config *c)
{
    both_biases(p, c);
    parse_must_be(p, "rope_interleaved", 0);
}

/* A GGUF stores the activation's parameters in arrays, with one number per layer. */
static void xielu_parse(struct parse *p, struct config *c)
{
    static const char *const keys[N_XIELU] = { "zse_xielu_alpha_p", "zse_xielu_alpha_n", "zse_xielu_beta",
                                               "zse_xielu_eps" };
    c->xielu = calloc((size_t)c->n_layers * N_XIELU, sizeof *c->xielu);
    if (!c->xielu) {
        err_nomem(p->e, "config");
        p->bad = 1;
    }
    for (int k = 0; k < N_XIELU && !p->bad; k++) {
        const json_t *v = parse_find(p, keys[k], NULL);
        if (!json_is_array(v) || json_array_size(v) != (size_t)c->n_layers)
            parse_fail(p, ERR_FORMAT, "%s: expected an array of num_hidden_layers = %d numbers", keys[k], c->n_layers);
        for (int i = 0; i < c->n_layers && !p->bad; i++)
            c->xielu[i * N_XIELU + k] = (float)json_number_value(json_array_get(v, (size_t)i));
    }
}

static void more_apertus(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    if (c->gguf)
        xielu_parse(p, c);
    if (c->act != CONFIG_ACT_XIELU)
        parse_fail(p, ERR_UNSUPPORTED, "hidden_act other than \"xielu\" is not supported by this architecture");
    parse_must_be(p, "mlp_bias", 0);
    parse_must_be(p, "post_norm", 0);
    parse_must_be(p, "qk_norm", 1);
}

static void more_internlm3(struct parse *p, struct config *c)
{
    if (parse_bool(p, "qkv_bias", 0))
        c->biases |= BIAS_QKV;
    if (parse_bool(p, "bias", 0))
        c->biases |= BIAS_O | BIAS_MLP;
}

static void more_mistral(struct parse *p, struct config *c) { set_windows(c, window_parse(p, 4096), 0); }
static void more_phi3(struct parse *p, struct config *c) { set_windows(c, window_parse(p, 0), 0); }

void qwen_window_parse(struct parse *p, struct config *c)
{
    int window = window_parse(p, 0), from = (int)parse_int(p, "max_window_layers", 0, INT32_MAX, 28);
    if (!parse_bool(p, "use_sliding_window", 0))
        window = 0;
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = i >= from ? window : 0;
    layer_types_parse(p, c, window);
    parse_must_be(p, "use_mrope", 0);
}

static void more_qwen3(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    qwen_window_parse(p, c);
}

static void more_smollm3(struct parse *p, struct config *c)
{
    both_biases(p, c);
    const int period = (int)parse_int(p, "no_rope_layer_interval", 1, INT32_MAX, 4),
              window = parse_bool(p, "use_sliding_window", 0) ? window_parse(p, 0) : 0;
    const json_t *use = parse_find(p, "no_rope_layers", NULL);
    if (use && (!json_is_array(use) || json_array_size(use) != (size_t)c->n_layers)) {
        parse_fail(p, ERR_FORMAT, "no_rope_layers: expected an array of num_hidden_layers = %d numbers", c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers; i++) {
        const json_t *v = json_array_get(use, (size_t)i);
        int rope = use ? json_integer_value(v) != 0 || json_is_true(v) : (i + 1) % period != 0;
        c->rope_of[i] = rope ? 0 : -1;
        c->window[i] = rope ? 0 : window;
    }
    layer_types_parse(p, c, window);
}

static void more_phi(struct parse *p, struct config *c)
{
    if (parse_bool(p, "qk_layernorm", 0)) {
        c->qk_norm = QK_NORM_HEAD;
        c->qk_norm_kind = NORM_LAYER;
        c->biases |= BIAS_QK_NORM;
    }
}

static void more_gemma(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    c->embed_scale = (float)sqrt((double)c->hidden_size);
    c->norm_offset = c->qk_norm_offset = c->gguf ? 0 : 1;
    /* early gemma models say "gelu", but were trained with the approximation */
    if (c->act == CONFIG_ACT_GELU)
        c->act = CONFIG_ACT_GELU_TANH;
    c->both_ways = parse_bool(p, "use_bidirectional_attention", 0);
}

static void more_gemma2(struct parse *p, struct config *c)
{
    more_gemma(p, c);
    const int gemma3 = c->qk_norm != QK_NORM_NONE, window = window_parse(p, 4096);
    c->attn_scale = (float)(1 / sqrt(parse_real(p, "query_pre_attn_scalar", 256)));
    c->attn_softcap = (float)real_or_null(p, "attn_logit_softcapping", gemma3 ? 0 : 50);
    c->final_softcap = (float)real_or_null(p, "final_logit_softcapping", gemma3 ? 0 : 30);
    set_windows(c, window, (int)parse_int(p, "sliding_window_pattern|_sliding_window_pattern", 1, INT32_MAX,
                                          gemma3 ? 6 : 2));
    layer_types_parse(p, c, window);
    /* the number counts tokens on both sides: half of it lies on each side of the token */
    for (int i = 0; c->both_ways && i < c->n_layers; i++)
        c->window[i] = c->window[i] ? c->window[i] / 2 + 1 : 0;
}

static void more_stablelm(struct parse *p, struct config *c)
{
    if (parse_bool(p, "use_qkv_bias", 0))
        c->biases |= BIAS_QKV;
    if (parse_bool(p, "use_parallel_residual", 0)) {
        c->block = BLOCK_PARALLEL;
        c->names = &stablelm_parallel_names;
    }
    parse_must_be(p, "qk_layernorm", 0);
    if (parse_real(p, "rotary_scaling_factor", 1) != 1)
        parse_fail(p, ERR_UNSUPPORTED, "rotary_scaling_factor is not supported");
}

static void more_starcoder2(struct parse *p, struct config *c)
{
    if (parse_bool(p, "use_bias", 1))
        c->biases |= BIAS_QKV | BIAS_O | BIAS_MLP;
    set_windows(c, window_parse(p, 0), 0);
}

static void more_olmo(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    c->clip_qkv = (float)parse_real(p, "clip_qkv", 0);
}

void multipliers_parse(struct parse *p, struct config *c)
{
    c->embed_scale = (float)parse_real(p, "embedding_multiplier", 1);
    c->attn_scale = (float)parse_real(p, "attention_multiplier", 1);
    c->residual_scale = (float)parse_real(p, "residual_multiplier", 1);
    c->logit_scale = 1 / (float)parse_real(p, "logits_scaling", 1);
}

static void more_granite_swa(struct parse *p, struct config *c)
{
    const int window = window_parse(p, 128);
    both_biases(p, c);
    multipliers_parse(p, c);
    c->sinks = SINKS_ALL;
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = i % 4 ? window : 0;
    layer_types_parse(p, c, window);
}

static void more_nanochat(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    c->qk_norm_after_rope = 1;
    c->final_softcap = (float)real_or_null(p, "final_logit_softcapping", 15);
}

static void more_olmo3(struct parse *p, struct config *c)
{
    const int window = window_parse(p, 4096);
    attention_bias_parse(p, c);
    set_windows(c, window, 4);
    layer_types_parse(p, c, window);
}

static void more_jais2(struct parse *p, struct config *c)
{
    if (parse_bool(p, "attention_bias", 1))
        c->biases |= BIAS_QKV | BIAS_O;
    if (parse_bool(p, "mlp_bias", 1))
        c->biases |= BIAS_MLP;
}

static void more_granite(struct parse *p, struct config *c)
{
    both_biases(p, c);
    multipliers_parse(p, c);
}

static void more_cohere(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    c->logit_scale = (float)parse_real(p, "logit_scale", 0.0625);
    if (parse_bool(p, "use_qk_norm", 0)) {
        c->qk_norm = QK_NORM_EACH;
        c->qk_norm_kind = NORM_LAYER;
    }
}

/* Let only layers with a window rotate. */
static void rope_where_window(struct config *c)
{
    for (int i = 0; i < c->n_layers; i++)
        c->rope_of[i] = c->window[i] ? 0 : -1;
}

static void more_cohere2(struct parse *p, struct config *c)
{
    const int window = window_parse(p, 4096);
    more_cohere(p, c);
    set_windows(c, window, (int)parse_int(p, "sliding_window_pattern|layer_switch", 1, INT32_MAX, 4));
    layer_types_parse(p, c, window);
    rope_where_window(c);
}

void exaone_windows_parse(struct parse *p, struct config *c)
{
    const int window = window_parse(p, 4096);
    const json_t *pattern = parse_find(p, "sliding_window_pattern", NULL);
    int period = 4;
    if (json_is_string(pattern)) {          /* "LLLG": three local layers, then a global one */
        period = (int)strlen(json_string_value(pattern));
        if (period < 1 || strspn(json_string_value(pattern), "L") != (size_t)period - 1)
            parse_fail(p, ERR_UNSUPPORTED, "sliding_window_pattern \"%.40s\" is not supported",
                       json_string_value(pattern));
    } else {
        period = (int)parse_int(p, "sliding_window_pattern", 1, INT32_MAX, 4);
    }
    set_windows(c, window, period > 0 ? period : 1);
    layer_types_parse(p, c, window);
    if (window)
        rope_where_window(c);
}

static void more_gpt2(struct parse *p, struct config *c)
{
    c->n_kv_heads = c->n_heads;
    if (!parse_bool(p, "scale_attn_weights", 1))
        c->attn_scale = 1;
    parse_must_be(p, "scale_attn_by_inverse_layer_idx", 0);
    parse_must_be(p, "add_cross_attention", 0);
}

static void more_bigcode(struct parse *p, struct config *c)
{
    more_gpt2(p, c);
    if (parse_bool(p, "multi_query", 1))
        c->n_kv_heads = 1;
    else
        c->names = &bigcode_mha_names;
}

static void more_neox(struct parse *p, struct config *c)
{
    c->n_kv_heads = c->n_heads;
    if (!parse_bool(p, "use_parallel_residual", 1))
        c->block = BLOCK_SEQUENTIAL;
    if (parse_bool(p, "attention_bias", 1))
        c->biases |= BIAS_QKV | BIAS_O;
}

static void more_gptj(struct parse *p, struct config *c)
{
    (void)p;
    c->n_kv_heads = c->n_heads;
}

static void more_falcon(struct parse *p, struct config *c)
{
    const int modern = parse_bool(p, "new_decoder_architecture", 0), parallel = parse_bool(p, "parallel_attn", 1);
    const int64_t n_norms = parse_int(p, "num_ln_in_parallel_attn", 1, 2, 2);
    const int multi_query = parse_bool(p, "multi_query", 1);
    if (modern && !parallel)
        parse_fail(p, ERR_UNSUPPORTED, "parallel_attn: false with new_decoder_architecture is not supported");
    if (!modern)
        c->n_kv_heads = multi_query ? 1 : c->n_heads;
    c->block = !parallel ? BLOCK_SEQUENTIAL : modern && n_norms == 2 ? BLOCK_PARALLEL2 : BLOCK_PARALLEL;
    c->names = c->block == BLOCK_SEQUENTIAL ? &falcon_seq_names : c->block == BLOCK_PARALLEL2 ? &falcon_new_names
        : &falcon_names;
    if (parse_bool(p, "bias", 0))
        c->biases |= BIAS_QKV | BIAS_O | BIAS_MLP;
    if (parse_bool(p, "alibi", 0)) {
        c->pos = POS_ALIBI;
        c->alibi_max_bias = 8;
        /* falcon adds the slopes before the division by sqrt(head_dim) */
        c->alibi_scale = c->attn_scale;
    }
    parse_must_be(p, "apply_residual_connection_post_layernorm", 0);
}

static void more_mpt(struct parse *p, struct config *c)
{
    static const char *const ignored[] = { "_name_or_path", "architectures", "attn_impl", "attn_pdrop",
                                           "chunk_size_feed_forward", "dtype", "id2label", "label2id",
        "model_type", "output_attentions", "output_hidden_states", "problem_type", "return_dict", "is_encoder_decoder",
        "transformers_version", "fused_qkv", NULL };
    const json_t *attn = parse_find(p, "attn_config", NULL);
    struct parse a = { .json = attn, .seen = json_object(), .where = "config.json: attn_config", .e = p->e };
    if (attn && !json_is_object(attn))
        parse_fail(p, ERR_FORMAT, "attn_config: found %s, expected an object", js_kind(attn));
    c->n_kv_heads = c->n_heads;
    const double ratio = parse_real(p, "expansion_ratio", 4);
    if (c->gguf)                            /* transformers always computes with 4 */
        c->intermediate_size = ratio > 0 && ratio * c->hidden_size < 1 << 24 ? (int)(ratio * c->hidden_size)
                                                                             : c->intermediate_size;
    c->alibi_max_bias = 8;
    parse_must_be(p, "no_bias", 1);
    if (parse_find(p, "logit_scale", NULL))
        parse_fail(p, ERR_UNSUPPORTED, "logit_scale is not supported");
    if (attn && !p->bad) {
        const char *type = parse_string(&a, "attn_type", "multihead_attention");
        c->alibi_max_bias = (float)parse_real(&a, "alibi_bias_max", 8);
        c->clip_qkv = (float)parse_real(&a, "clip_qkv", 0);
        c->attn_scale = (float)parse_real(&a, "softmax_scale", c->attn_scale);
        if (strcmp(type, "multihead_attention") != 0 ||
            parse_int(&a, "kv_n_heads", 1, INT32_MAX, c->n_heads) != c->n_heads)
            parse_fail(&a, ERR_UNSUPPORTED, "attn_type \"%.40s\": only multihead_attention is supported", type);
        parse_must_be(&a, "alibi", 1);
        parse_must_be(&a, "qk_ln", 0);
        parse_must_be(&a, "prefix_lm", 0);
        parse_must_be(&a, "attn_uses_sequence_id", 0);
        if (!a.bad)
            parse_leftovers(&a, ignored);
        p->bad |= a.bad;
    }
    json_decref(a.seen);
}

static void more_bloom(struct parse *p, struct config *c)
{
    c->n_kv_heads = c->n_heads;
    c->alibi_max_bias = 8;
    parse_must_be(p, "apply_residual_connection_post_layernorm", 0);
    parse_must_be(p, "skip_bias_add_qkv", 0);
}

static void more_opt(struct parse *p, struct config *c)
{
    c->n_kv_heads = c->n_heads;
    c->pos_offset = 2;
    c->embed_size = (int)parse_int(p, "word_embed_proj_dim", 1, 1 << 24, c->hidden_size);
    if (parse_bool(p, "enable_bias", 1))
        c->biases |= BIAS_QKV | BIAS_O | BIAS_MLP;
    const int bare = parse_bool(p, "_remove_final_layer_norm", 0);
    if (!parse_bool(p, "do_layer_norm_before", 1)) {
        c->norm_after_add = 1;
        c->names = &opt_post_names;
    } else if (bare) {
        c->names = &opt_bare_names;
    }
    parse_must_be(p, "layer_norm_elementwise_affine", 1);
}

static void more_nemotron(struct parse *p, struct config *c)
{
    both_biases(p, c);
    c->norm_offset = c->gguf ? 0 : 1;
}

static void more_ernie(struct parse *p, struct config *c)
{
    if (parse_bool(p, "use_bias", 0))
        c->biases |= BIAS_QKV | BIAS_O | BIAS_MLP;
}

static void more_seed(struct parse *p, struct config *c)
{
    if (parse_bool(p, "attention_bias", 1))
        c->biases |= BIAS_QKV;
    if (parse_bool(p, "attention_out_bias", 0))
        c->biases |= BIAS_O;
    if (parse_bool(p, "mlp_bias", 0))
        c->biases |= BIAS_MLP;
}

static void more_hunyuan(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    c->qk_norm_after_rope = 1;
    parse_must_be(p, "use_qk_norm", 1);
    parse_must_be(p, "use_cla", 0);
    parse_must_be(p, "mlp_bias", 0);
    parse_int(p, "num_experts", 1, 1, 1);       /* one configuration of the family has a mixture of one expert */
    parse_find(p, "moe_topk|num_shared_expert|moe_intermediate_size|moe_layer_num_skipped|class_num|dense_list|mask_init_id|num_media_embeds|anyres_pooling_size|"
                  "vit_type|vit_path|vit_patch|vit_token|vit_input_resolution|vit_mapping_type|vit_norm_type|vit_used_rms_norm|video_start_id|video_end_id", NULL);
}

static void more_glm4(struct parse *p, struct config *c)
{
    if (parse_bool(p, "attention_bias", 1))
        c->biases |= BIAS_QKV;
}

/* ---- the table ---- */

enum { ALL = BIAS_QKV | BIAS_O | BIAS_MLP | BIAS_NORM };

static const struct arch archs[] = {
    { ROW("llama",        llama_names,     32000,  4096, 11008, 32, 32, 0,  2048),   ROPE(10000),   .eps = 1e-6,
      .act = "silu", .more = more_llama },
    { ROW("mistral",      llama_names,     32000,  4096, 14336, 32, 32, 8,  131072), ROPE(10000),   .eps = 1e-6,
      .act = "silu", .more = more_mistral },
    { ROW("qwen2",        qwen_names,      151936, 4096, 22016, 32, 32, 32, 32768),  ROPE(10000),   .eps = 1e-6,
      .act = "silu", .biases = BIAS_QKV, .more = qwen_window_parse },
    { ROW("qwen3",        qwen_names,      151936, 4096, 22016, 32, 32, 32, 32768),  ROPE(10000),   .eps = 1e-6,
      .act = "silu", .head_dim = 128,
      .qk_norm = QK_NORM_HEAD, .more = more_qwen3 },
    { ROW("qwen2_5_vl",   qwen_names,      152064, 8192, 29568, 80, 64, 8,  32768),  ROPE(1000000), .eps = 1e-5,
      .act = "silu", .biases = BIAS_QKV, .more = qwen_window_parse },
    { ROW("qwen2_5_vl_text", qwen_names,   152064, 8192, 29568, 80, 64, 8,  32768),  ROPE(1000000), .eps = 1e-5,
      .act = "silu", .biases = BIAS_QKV, .more = qwen_window_parse },
    { ROW("qwen2_vl",     qwen_names,      152064, 8192, 29568, 80, 64, 8,  32768),  ROPE(1000000), .eps = 1e-5,
      .act = "silu", .biases = BIAS_QKV, .more = qwen_window_parse },
    { ROW("qwen2_vl_text", qwen_names,     152064, 8192, 29568, 80, 64, 8,  32768),  ROPE(1000000), .eps = 1e-5,
      .act = "silu", .biases = BIAS_QKV, .more = qwen_window_parse },
    { ROW("qwen3_vl_text", qwen_names,     151936, 4096, 22016, 32, 32, 32, 128000), ROPE(5000000), .eps = 1e-6,
      .act = "silu", .head_dim = 128, .qk_norm = QK_NORM_HEAD, .more = more_qwen3 },
    { ROW("smollm3",      llama_names,     128256, 2048, 11008, 36, 16, 4,  32768),  ROPE(2000000), .eps = 1e-6,
      .act = "silu", .tied = 1, .more = more_smollm3 },
    { ROW("phi",          phi_names,       51200,  2048, 8192,  24, 32, 0,  2048),   ROPE(10000),
      LAYER(ALL | BIAS_HEAD), .act = "gelu_new", .not_gated = 1,
      .partial = 0.5, .block = BLOCK_PARALLEL, .more = more_phi },
    { ROW("phi3",         phi3_names,      32064,  3072, 8192,  32, 32, 0,  4096),   ROPE(10000),   .eps = 1e-5,
      .act = "silu", .original_max = 4096, .more = more_phi3 },
    { ROW("gemma",        qwen_names,      256000, 3072, 24576, 28, 16, 16, 8192),   ROPE(10000),   .eps = 1e-6,
      .act = "gelu_pytorch_tanh", .tied = 1,
      .head_dim = 256, .more = more_gemma },
    { ROW("gemma2",       gemma2_names,    256000, 2304, 9216,  26, 8,  4,  8192),   ROPE(10000),   .eps = 1e-6,
      .act = "gelu_pytorch_tanh", .tied = 1,
      .head_dim = 256, .more = more_gemma2 },
    { ROW("gemma3_text",  gemma2_names,    262208, 2304, 9216,  26, 8,  4,  131072), ROPE(1000000), .eps = 1e-6,
      .act = "gelu_pytorch_tanh", .tied = 1,
      .head_dim = 256, .local_theta = 10000, .qk_norm = QK_NORM_HEAD, .more = more_gemma2 },
    { ROW("stablelm",     qwen_names,      50304,  2560, 6912,  32, 32, 32, 4096),   ROPE(10000),   LAYER(BIAS_NORM),
      .act = "silu", .partial = 0.25, .more = more_stablelm },
    { ROW("starcoder2",   starcoder2_names, 49152, 3072, 12288, 30, 24, 2,  4096),   ROPE(10000),   LAYER(BIAS_NORM),
      .act = "gelu_pytorch_tanh", .tied = 1,
      .not_gated = 1, .more = more_starcoder2 },
    { ROW("olmo",         olmo_names,      50304,  4096, 11008, 32, 32, 0,  2048),   ROPE(10000),   LAYER(0),
      .act = "silu", .more = more_olmo },
    { ROW("olmo2",        post_norm_names, 50304,  4096, 11008, 32, 32, 0,  2048),   ROPE(10000),   .eps = 1e-5,
      .act = "silu", .qk_norm = QK_NORM_FULL, .more = attention_bias_parse },
    { ROW("granite",      llama_names,     32000,  4096, 11008, 32, 32, 0,  2048),   ROPE(10000),   .eps = 1e-6,
      .act = "silu", .more = more_granite },
    { ROW("cohere",       cohere_names,    256000, 8192, 22528, 40, 64, 0,  8192),   ROPE(500000),  LAYER(0),
      .act = "silu", .tied = 1, .rope_pairs = 1,
      .block = BLOCK_PARALLEL, .more = more_cohere },
    { ROW("cohere2",      cohere_names,    256000, 8192, 22528, 40, 64, 0,  8192),   ROPE(10000),   LAYER(0),
      .act = "silu", .tied = 1, .rope_pairs = 1,
      .block = BLOCK_PARALLEL, .more = more_cohere2 },
    { ROW("gpt2",         gpt2_names,      50257,  768,  0,     12, 12, 0,  1024),   .pos = POS_LEARNED, LAYER(ALL),
      .act = "gelu_new", .tied = 1, .not_gated = 1, .more = more_gpt2 },
    { ROW("gpt_neox",     neox_names,      50432,  6144, 24576, 44, 64, 0,  2048),   ROPE(10000),
      LAYER(BIAS_MLP | BIAS_NORM), .act = "gelu", .not_gated = 1,
      .partial = 0.25, .block = BLOCK_PARALLEL2, .more = more_neox },
    { ROW("gptj",         gptj_names,      50400,  4096, 0,     28, 16, 0,  2048),   ROPE(10000),
      LAYER(BIAS_MLP | BIAS_NORM | BIAS_HEAD), .act = "gelu_new", .not_gated = 1,
      .rotary_dim = 64, .rope_pairs = 1, .block = BLOCK_PARALLEL, .more = more_gptj },
    { ROW("gpt_bigcode",  bigcode_names,   50257,  768,  0,     12, 12, 0,  1024),   .pos = POS_LEARNED, LAYER(ALL),
      .act = "gelu_pytorch_tanh", .tied = 1,
      .not_gated = 1, .more = more_bigcode },
    { ROW("falcon",       falcon_names,    65024,  4544, 0,     32, 71, 0,  2048),   ROPE(10000),   LAYER(BIAS_NORM),
      .act = "gelu", .tied = 1, .not_gated = 1, .more = more_falcon },
    { ROW("mpt",          mpt_names,       50368,  2048, 0,     24, 16, 0,  2048),   .pos = POS_ALIBI, LAYER(0),
      .act = "gelu", .tied = 1, .not_gated = 1, .more = more_mpt },
    { ROW("bloom",        bloom_names,     250880, 64,   0,     2,  8,  0,  2048),   .pos = POS_ALIBI, LAYER(ALL),
      .act = "gelu_new", .tied = 1, .not_gated = 1, .more = more_bloom },
    { ROW("opt",          opt_names,       50272,  768,  3072,  12, 12, 0,  2048),   .pos = POS_LEARNED,
      LAYER(BIAS_NORM), .act = "relu", .tied = 1, .not_gated = 1, .more = more_opt },
    { ROW("nemotron",     up_down_names,   256000, 6144, 24576, 32, 48, 0,  4096),   ROPE(10000),   LAYER(BIAS_NORM),
      .act = "relu2", .not_gated = 1, .partial = 0.5,
      .more = more_nemotron },
    { ROW("exaone4",      post_norm_names, 102400, 4096, 16384, 32, 32, 32, 2048),   ROPE(10000),   .eps = 1e-5,
      .act = "silu", .qk_norm = QK_NORM_HEAD, .more = exaone_windows_parse },
    { ROW("ernie4_5",     qwen_names,      103424, 1024, 3072,  18, 16, 2,  131072), ROPE(500000),  .eps = 1e-5,
      .act = "silu", .tied = 1, .head_dim = 128, .rope_pairs = 1,
      .more = more_ernie },
    { ROW("seed_oss",     qwen_names,      155136, 4096, 27648, 64, 80, 8,  524288), ROPE(10000),   .eps = 1e-6,
      .act = "silu", .head_dim = 128, .more = more_seed },
    { ROW("arcee",        arcee_names,     32000,  2560, 18432, 32, 32, 0,  4096),   ROPE(10000),   .eps = 1e-5,
      .act = "relu2", .not_gated = 1, .more = both_biases },
    { ROW("hunyuan_v1_dense", hunyuan_names, 290943, 4096, 11008, 32, 32, 0, 2048),  ROPE(10000),   .eps = 1e-5,
      .act = "silu", .qk_norm = QK_NORM_HEAD, .ntk_alpha = 1,
      .more = more_hunyuan },
    { ROW("glm4",         glm4_names,      151552, 4096, 13696, 40, 32, 2,  131072), ROPE(10000),   .eps = 1.5625e-7,
      .act = "silu", .head_dim = 128, .partial = 0.5,
      .rope_pairs = 1, .more = more_glm4 },
    { ROW("bitnet",       bitnet_names,    128256, 2560, 6912,  30, 20, 5,  2048),   ROPE(500000),  .eps = 1e-5,
      .act = "relu2", .more = attention_bias_parse },
    { ROW("apertus",      apertus_names,   131072, 4096, 14336, 32, 32, 0,  65536),  ROPE(12000000), .eps = 1e-5,
      .act = "xielu", .not_gated = 1, .qk_norm = QK_NORM_HEAD, .more = more_apertus },
    { ROW("ministral3",   llama_names,     131072, 4096, 14336, 34, 32, 8,  262144), ROPE(1000000), .eps = 1e-5,
      .act = "silu", .head_dim = 128, .rope_tempers = 1, .more = more_phi3 },
    { ROW("olmo3",        post_norm_names, 50304,  4096, 11008, 32, 32, 0,  2048),   ROPE(500000),  .eps = 1e-5,
      .act = "silu", .qk_norm = QK_NORM_FULL, .local_plain = 1, .more = more_olmo3 },
    { ROW("granite_swa",  granite_swa_names, 100352, 2560, 8192, 24, 20, 4, 8192),   ROPE(10000),   .eps = 1e-5,
      .act = "silu", .tied = 1, .layer_thetas = 1, .more = more_granite_swa },
    { ROW("nanochat",     nanochat_names,  50304,  768,  8192,  12, 6,  0,  2048),   ROPE(10000),   .eps = 1e-6,
      .act = "relu2", .not_gated = 1, .qk_norm = QK_NORM_HEAD, .rope_reversed = 1, .more = more_nanochat },
    { ROW("helium",       qwen_names,      48000,  2560, 7040,  24, 20, 20, 4096),   ROPE(10000),   .eps = 1e-8,
      .act = "silu", .head_dim = 128, .rope_pairs = 1, .more = both_biases },
    { ROW("internlm3",    llama_names,     128512, 4096, 11008, 32, 32, 0,  32768),  ROPE(10000),   .eps = 1e-6,
      .act = "silu", .more = more_internlm3 },
    { ROW("jais2",        up_down_names,   150272, 3328, 26624, 32, 26, 0,  8192),   ROPE(10000),   LAYER(BIAS_NORM),
      .act = "relu2", .not_gated = 1, .more = more_jais2 },
    { 0 }
};

/* Row i of all tables, NULL after the last. */
static const struct arch *arch_at(int i)
{
    static const struct arch *const tables[] = { archs, moe_archs, state_archs, hybrid_archs, gemma_archs,
                                                mamba_archs, stream_archs, encoder_archs };
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct arch *a = tables[t]; a->name; a++)
            if (i-- == 0)
                return a;
    return NULL;
}

const struct arch *arch_find(const char *name)
{
    const struct arch *a = NULL;
    for (int i = 0; (a = arch_at(i)) && strcmp(a->name, name) != 0; i++)
        ;
    return a;
}

const char *config_architecture(int i)
{
    const struct arch *a = arch_at(i);
    return a ? a->name : NULL;
}

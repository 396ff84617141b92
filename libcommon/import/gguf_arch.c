/* gguf_arch.c - the architectures of GGUF files, and the fields that only some of them have. */
#include "libcommon/import/gguf_arch.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"

/* ---- fields of single architectures ---- */

static void add_llama(struct gguf_translator *t) { gguf_add_biases(t); }
static void add_phi3(struct gguf_translator *t) { gguf_window(t); }
static void add_phi2(struct gguf_translator *t)
{
    gguf_set_bool(t, "qk_layernorm", gguf_find_tensor(t, "blk.0.attn_q_norm.weight") != NULL);
}

static void add_smollm3(struct gguf_translator *t)
{
    json_t *use = json_array();
    for (int64_t i = 0; i < t->n_layers; i++)
        json_array_append_new(use, json_integer((i + 1) % 4 != 0));
    json_object_set_new(t->out, "no_rope_layers", use);
    gguf_set_int(t, "no_rope_layer_interval", 4);
    gguf_add_biases(t);
}

static void add_stablelm(struct gguf_translator *t)
{
    gguf_set_bool(t, "use_parallel_residual", gguf_key_float(t, "use_parallel_residual", 0) != 0);
    gguf_set_bool(t, "use_qkv_bias", gguf_any_attn_bias(t));
    gguf_set_bool(t, "qk_layernorm", gguf_find_tensor(t, "blk.0.attn_q_norm.weight") != NULL);
}

static void add_starcoder2(struct gguf_translator *t)
{
    gguf_set_bool(t, "use_bias", gguf_any_attn_bias(t));
    gguf_window(t);
}

static void add_olmo(struct gguf_translator *t)
{
    if (gguf_has_key(t, "attention.clamp_kqv"))
        gguf_set_real(t, "clip_qkv", gguf_key_float(t, "attention.clamp_kqv", 0));
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
}

void gguf_add_granite(struct gguf_translator *t)
{
    gguf_set_real(t, "attention_multiplier", gguf_key_float(t, "attention.scale", 1 / sqrt((double)t->head_dim)));
    gguf_set_real(t, "embedding_multiplier", gguf_key_float(t, "embedding_scale", 1));
    gguf_set_real(t, "residual_multiplier", gguf_key_float(t, "residual_scale", 1));
    gguf_set_real(t, "logits_scaling", gguf_key_float(t, "logit_scale", 1));
    gguf_add_biases(t);
}

/* A file has one base for all layers, and a list of the layers that rotate; without it, all do. */
static void add_granite_swa(struct gguf_translator *t)
{
    json_t *thetas = json_array();
    const double theta = gguf_key_float(t, "rope.freq_base", 10000);
    gguf_add_granite(t);
    gguf_window(t);
    gguf_set_layer_types(t, 4);
    for (int64_t i = 0; i < t->n_layers; i++)
        json_array_append_new(thetas, json_real(gguf_key_at(t, "attention.rope_pattern", i, 1) != 0 ? theta : 0));
    json_object_set_new(t->out, "layer_rope_theta", thetas);
}

static void add_cohere(struct gguf_translator *t)
{
    gguf_set_real(t, "logit_scale", gguf_key_float(t, "logit_scale", 1));
    gguf_set_bool(t, "use_qk_norm", gguf_find_tensor(t, "blk.0.attn_q_norm.weight") != NULL);
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
}

static void add_cohere2(struct gguf_translator *t)
{
    gguf_set_real(t, "logit_scale", gguf_key_float(t, "logit_scale", 1));
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    gguf_window(t);
    gguf_set_layer_types(t, 4);
}

static void add_gptneox(struct gguf_translator *t)
{
    gguf_set_bool(t, "use_parallel_residual", gguf_key_float(t, "use_parallel_residual", 1) != 0);
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
}

static void add_gptj(struct gguf_translator *t) { gguf_set_int(t, "rotary_dim", t->n_rot); }

static void add_starcoder(struct gguf_translator *t)
{
    gguf_set_bool(t, "multi_query", t->kv_heads == 1 && t->heads > 1);
}

static void add_falcon(struct gguf_translator *t)
{
    int two_norms = gguf_find_tensor(t, "blk.0.attn_norm_2.weight") != NULL, grouped = two_norms || t->kv_heads > 1;
    gguf_set_bool(t, "alibi", 0);
    gguf_set_bool(t, "bias", gguf_any_attn_bias(t));
    gguf_set_bool(t, "parallel_attn", 1);
    gguf_set_bool(t, "new_decoder_architecture", grouped);
    gguf_set_bool(t, "multi_query", t->kv_heads == 1);
    gguf_set_int(t, "num_kv_heads", t->kv_heads);
    gguf_set_int(t, "num_ln_in_parallel_attn", two_norms ? 2 : 1);
    gguf_set_int(t, "ffn_hidden_size", t->ff);
}

static void add_mpt(struct gguf_translator *t)
{
    double alibi = gguf_key_float(t, "attention.max_alibi_bias", 0), clip = gguf_key_float(t, "attention.clamp_kqv", 0);
    json_t *a = json_pack("{s:b, s:b, s:s}", "alibi", alibi > 0, "qk_ln",
                          gguf_find_tensor(t, "blk.0.attn_q_norm.weight") != NULL, "attn_type", "multihead_attention");
    if (alibi > 0)
        json_object_set_new(a, "alibi_bias_max", gguf_real(alibi));
    if (clip > 0)
        json_object_set_new(a, "clip_qkv", gguf_real(clip));
    if (t->kv_heads != t->heads)
        json_object_set_new(a, "kv_n_heads", json_integer(t->kv_heads));
    json_object_set_new(t->out, "attn_config", a);
    gguf_set_int(t, "d_model", t->hidden);
    gguf_set_int(t, "n_heads", t->heads);
    gguf_set_int(t, "n_layers", t->n_layers);
    gguf_set_int(t, "max_seq_len", t->context);
    json_object_set_new(t->out, "expansion_ratio", t->ff % t->hidden ? json_real((double)t->ff / (double)t->hidden)
                                                                     : json_integer(t->ff / t->hidden));
    gguf_set_bool(t, "no_bias", !gguf_any_attn_bias(t));
    gguf_set_bool(t, "learned_pos_emb", gguf_find_tensor(t, "position_embd.weight") != NULL);
}

static void add_bloom(struct gguf_translator *t)
{
    gguf_set_int(t, "hidden_size", t->hidden);
    gguf_set_int(t, "n_head", t->heads);
    gguf_set_int(t, "n_layer", t->n_layers);
    gguf_set_int(t, "seq_length", t->context);
}

static void add_nemotron(struct gguf_translator *t) { gguf_add_biases(t); }

static void add_exaone4(struct gguf_translator *t)
{
    gguf_window(t);
    gguf_set_layer_types(t, js_get(t->out, "sliding_window") ? 4 : 0);
}

static void add_ernie(struct gguf_translator *t) { gguf_set_bool(t, "use_bias", gguf_any_attn_bias(t)); }

static void add_seed(struct gguf_translator *t)
{
    gguf_add_biases(t);
    gguf_set_bool(t, "attention_out_bias", gguf_has_bias(t, "attn_output"));
}

static void add_attention_bias(struct gguf_translator *t) { gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t)); }

/* ---- mixtures of experts ---- */

static void add_qwen2moe(struct gguf_translator *t)
{
    gguf_add_experts(t);
    gguf_copy_int(t, "expert_shared_feed_forward_length", "shared_expert_intermediate_size");
    gguf_set_bool(t, "qkv_bias", gguf_any_attn_bias(t));
    gguf_set_bool(t, "norm_topk_prob", 0);
}

static void add_qwen3moe(struct gguf_translator *t)
{
    gguf_add_experts(t);
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    gguf_set_bool(t, "norm_topk_prob", 1);
}

static void add_olmoe(struct gguf_translator *t)
{
    add_olmo(t);
    gguf_copy_int(t, "expert_used_count", "num_experts_per_tok");
    gguf_set_bool(t, "norm_topk_prob", 0);
}

static void add_granitemoe(struct gguf_translator *t)
{
    gguf_add_granite(t);
    json_object_del(t->out, "mlp_bias");
    gguf_copy_int(t, "expert_used_count", "num_experts_per_tok");
}

/* Write the fields of the router that deepseek_v3 has, and the models that adopted it. */
static void add_sigmoid_router(struct gguf_translator *t)
{
    gguf_add_experts(t);
    gguf_copy_int(t, "leading_dense_block_count", "first_k_dense_replace");
    gguf_add_router(t, 0);
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    gguf_add_extra_layers(t);
}

static void add_glm4moe(struct gguf_translator *t)
{
    add_sigmoid_router(t);
    gguf_set_bool(t, "use_qk_norm", gguf_find_tensor(t, "blk.0.attn_q_norm.weight") != NULL);
    /* solar_open */
    if (!gguf_has_key(t, "leading_dense_block_count"))
        gguf_set_int(t, "first_k_dense_replace", 0);
    if (t->n_rot == t->head_dim)
        gguf_set_int(t, "partial_rotary_factor", 1);
}

static void add_dots1(struct gguf_translator *t)
{
    add_sigmoid_router(t);
    json_object_set_new(t->out, "sliding_window", json_null());
}

void gguf_add_latent(struct gguf_translator *t)
{
    int64_t key = t->head_dim, value = 0, q_rank = 0;
    gguf_copy_int(t, "attention.kv_lora_rank", "kv_lora_rank");
    if (gguf_key_int(t, "attention.q_lora_rank", 0, &q_rank, NULL) == 0 && q_rank > 0)
        gguf_set_int(t, "q_lora_rank", q_rank);
    else
        json_object_set_new(t->out, "q_lora_rank", json_null());
    gguf_key_int(t, "attention.value_length", key, &value, NULL);
    gguf_key_int(t, "attention.key_length_mla", key, &key, NULL);
    gguf_key_int(t, "attention.value_length_mla", value, &value, NULL);
    gguf_set_int(t, "qk_rope_head_dim", t->n_rot);
    gguf_set_int(t, "qk_nope_head_dim", key - t->n_rot);
    gguf_set_int(t, "v_head_dim", value);
}

static void add_deepseek2(struct gguf_translator *t)
{
    add_sigmoid_router(t);
    gguf_add_latent(t);
    if (gguf_gate(t) == GATE_SIGMOID) {
        gguf_set_string(t, "model_type", "deepseek_v3");
        json_object_set_new(t->out, "architectures", json_pack("[s]", "DeepseekV3ForCausalLM"));
    } else {
        gguf_set_string(t, "topk_method", gguf_key_float(t, "expert_group_count", 1) > 1 ? "group_limited_greedy"
                                                                                         : "greedy");
        gguf_set_bool(t, "norm_topk_prob", 0);
    }
    json_t *rope = json_object_get(t->out, "rope_parameters");
    const double log_factor = gguf_key_float(t, "rope.scaling.yarn_log_multiplier", 0);
    if (log_factor != 0 && json_object_get(rope, "factor")) {
        json_object_set_new(rope, "mscale", gguf_real(10 * log_factor));
        json_object_set_new(rope, "mscale_all_dim", gguf_real(10 * log_factor));
        json_object_del(rope, "attention_factor");
    }
}

/* Write the fields of a model of DeepSeek's that has an indexer. */
static void add_indexed(struct gguf_translator *t, const char *model_type, const char *class_name)
{
    add_deepseek2(t);
    gguf_set_string(t, "model_type", model_type);
    json_object_set_new(t->out, "architectures", json_pack("[s]", class_name));
    gguf_set_bool(t, "norm_topk_prob", gguf_key_float(t, "expert_weights_norm", 1) != 0);
    json_object_del(t->out, "topk_method");
    gguf_copy_int(t, "attention.indexer.head_count", "index_n_heads");
    gguf_copy_int(t, "attention.indexer.key_length", "index_head_dim");
    gguf_copy_int(t, "attention.indexer.top_k", "index_topk");
}

static void add_deepseek32(struct gguf_translator *t) { add_indexed(t, "deepseek_v32", "DeepseekV32ForCausalLM"); }

/* A layer without an indexer of its own attends to the tokens that the layer before it has
 * chosen. */
static void add_glm_dsa(struct gguf_translator *t)
{
    json_t *types = json_array();
    add_indexed(t, "glm_moe_dsa", "GlmMoeDsaForCausalLM");
    const json_int_t n = json_integer_value(json_object_get(t->out, "num_hidden_layers"));
    for (json_int_t i = 0; i < n; i++) {
        char name[96];
        snprintf(name, sizeof name, "blk.%lld.indexer.attn_k.weight", (long long)i);
        json_array_append_new(types, json_string(gguf_find_tensor(t, name) ? "full" : "shared"));
    }
    json_object_set_new(t->out, "indexer_types", types);
}

/* Write "compress_ratios", one number for each layer, and the limit of the MLPs, one for all. */
static void add_ratios_and_limit(struct gguf_translator *t)
{
    char k[160];
    const struct gguf_kv *ratios = gguf_find(t->g, gguf_full_key(t, "attention.compress_ratios", k, sizeof k));
    json_t *list = json_array();
    double *limit = malloc((size_t)t->n_layers * sizeof *limit);
    int found = 0;
    if (!ratios || ratios->type != GGUF_ARR || ratios->elem == GGUF_STR || ratios->n < (uint64_t)t->n_layers)
        gguf_fail(t, ERR_FORMAT, "key %s: expected %lld numbers", k, (long long)t->n_layers);
    else
        for (int64_t i = 0; i < t->n_layers; i++) {
            const double ratio = gguf_array_float(ratios, (uint64_t)i);
            json_array_append_new(list, json_integer(ratio >= 0 && ratio <= 1 << 20 ? (json_int_t)ratio : -1));
        }
    json_object_set_new(t->out, "compress_ratios", list);
    if (!limit)
        gguf_fail(t, ERR_MEMORY, "out of memory");
    else
        found = gguf_floats(t, gguf_full_key(t, "swiglu_clamp_exp", k, sizeof k), 0, FLT_MAX, limit);
    if (limit && found == 0)
        gguf_fail(t, ERR_FORMAT, "key %s is missing", k);
    for (int64_t i = 1; i < t->n_layers && found > 0; i++)
        if (limit[i] != limit[0])
            gguf_fail(t, ERR_UNSUPPORTED, "key %s: %g in layer 0 but %g in layer %lld", k, limit[0], limit[i],
                      (long long)i);
    if (found > 0)
        gguf_set_real(t, "swiglu_limit", limit[0]);
    free(limit);
}

/* The number of layers that predict further tokens is written even if these layers are not in the
 * file, and is then no part of block_count. */
static void add_deepseek4(struct gguf_translator *t)
{
    static const char *const names[][2] = {
        { "attention.q_lora_rank", "q_lora_rank" }, { "attention.output_lora_rank", "o_lora_rank" },
        { "attention.output_group_count", "o_groups" }, { "attention.indexer.head_count", "index_n_heads" },
        { "attention.indexer.key_length", "index_head_dim" }, { "attention.indexer.top_k", "index_topk" },
        { "hyper_connection.count", "hc_mult" }, { "hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters" },
        { "hash_layer_count", "num_hash_layers" } };
    if (gguf_any_layer_has(t, ".nextn.eh_proj.weight"))
        t->n_layers = gguf_add_extra_layers(t);
    gguf_add_experts(t);
    gguf_add_router(t, 1);
    json_object_del(t->out, "n_group");
    json_object_del(t->out, "topk_group");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        gguf_copy_int(t, names[i][0], names[i][1]);
    gguf_set_real(t, "hc_eps", gguf_key_float(t, "hyper_connection.epsilon", 1e-6));
    gguf_set_real(t, "compress_rope_theta", gguf_key_float(t, "attention.compress_rope_freq_base", 160000));
    gguf_set_int(t, "qk_rope_head_dim", t->n_rot);
    add_ratios_and_limit(t);
    gguf_window(t);
}

/* Write the fields by which queries are scaled up at large positions, as in Llama 4. */
static void set_temperature(struct gguf_translator *t)
{
    json_t *rope = json_object_get(t->out, "rope_parameters");
    int64_t length = 0;
    if (gguf_has_key(t, "attention.temperature_scale"))
        json_object_set_new(rope, "llama_4_scaling_beta",
                            gguf_real(gguf_key_float(t, "attention.temperature_scale", 0)));
    if (gguf_key_int(t, "attention.temperature_length", 0, &length, NULL) == 0 && length > 0 &&
        !json_object_get(rope, "original_max_position_embeddings"))
        json_object_set_new(rope, "original_max_position_embeddings", json_integer(length));
}

static void add_mistral3(struct gguf_translator *t)
{
    json_t *rope = json_object_get(t->out, "rope_parameters");
    const double factor = gguf_key_float(t, "rope.scaling.yarn_log_multiplier", 0);
    gguf_window(t);
    set_temperature(t);
    if (factor != 0 && json_object_get(rope, "factor")) {
        json_object_set_new(rope, "mscale", gguf_real(factor));
        json_object_set_new(rope, "mscale_all_dim", gguf_real(factor));
        json_object_del(rope, "attention_factor");
    }
}

static void add_mistral4(struct gguf_translator *t)
{
    add_deepseek2(t);
    set_temperature(t);
    gguf_set_string(t, "model_type", "mistral4");
    json_object_set_new(t->out, "architectures", json_pack("[s]", "Mistral4ForCausalLM"));
    gguf_set_bool(t, "norm_topk_prob", gguf_key_float(t, "expert_weights_norm", 1) != 0);
    json_object_del(t->out, "topk_method");
}

/* The converter writes no keys for the factors on embeddings, layers and logits, so the defaults
 * apply, which are those of the published model.  The size of values follows from a tensor. */
static void add_minicpm3(struct gguf_translator *t)
{
    const struct source_tensor *kv = gguf_find_tensor(t, "blk.0.attn_kv_b.weight");
    const int64_t nope = t->head_dim - t->n_rot, v = kv && kv->n_dims == 2 ? kv->dim[0] / t->heads - nope : 0;
    gguf_copy_int(t, "attention.kv_lora_rank", "kv_lora_rank");
    gguf_copy_int(t, "attention.q_lora_rank", "q_lora_rank");
    gguf_set_int(t, "qk_rope_head_dim", t->n_rot);
    gguf_set_int(t, "qk_nope_head_dim", nope);
    gguf_set_int(t, "v_head_dim", v > 0 ? v : t->hidden / t->heads);
}

static void add_olmo2(struct gguf_translator *t)
{
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    if (!gguf_has_key(t, "attention.sliding_window"))
        return;
    gguf_set_string(t, "model_type", "olmo3");
    json_object_set_new(t->out, "architectures", json_pack("[s]", "Olmo3ForCausalLM"));
    gguf_window(t);
    gguf_set_layer_types(t, 4);
}

/* The parameters of Apertus's activation are in keys without the prefix "ARCH.". */
static void add_apertus(struct gguf_translator *t)
{
    static const char *const names[][2] = { { "xielu.alpha_p", "zse_xielu_alpha_p" },
                                            { "xielu.alpha_n", "zse_xielu_alpha_n" },
                                            { "xielu.beta", "zse_xielu_beta" }, { "xielu.eps", "zse_xielu_eps" } };
    double *of = malloc((size_t)t->n_layers * sizeof *of);
    if (!of) {
        gguf_fail(t, ERR_MEMORY, "out of memory");
        return;
    }
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        json_t *list = json_array();
        const int found = gguf_floats(t, names[k][0], -FLT_MAX, FLT_MAX, of);
        if (found == 0)
            gguf_fail(t, ERR_FORMAT, "key %s is missing", names[k][0]);
        for (int64_t i = 0; found > 0 && i < t->n_layers; i++)
            json_array_append_new(list, gguf_real(of[i]));
        json_object_set_new(t->out, names[k][1], list);
    }
    free(of);
}

static void add_phimoe(struct gguf_translator *t)
{
    gguf_window(t);
    gguf_copy_int(t, "expert_used_count", "num_experts_per_tok");
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    gguf_set_bool(t, "lm_head_bias", gguf_find_tensor(t, "output.bias") != NULL);
}

/* Move a number to the name that this architecture has for it. */
static void rename_key(struct gguf_translator *t, const char *from, const char *to)
{
    json_t *v = json_object_get(t->out, from);
    if (v)
        json_object_set(t->out, to, v);
    json_object_del(t->out, from);
}

static void add_exaone_moe(struct gguf_translator *t)
{
    add_sigmoid_router(t);
    rename_key(t, "n_shared_experts", "num_shared_experts");
    json_t *layers = json_object_get(t->out, "num_hidden_layers");
    t->n_layers = json_integer_value(layers);
    gguf_window(t);
    gguf_set_layer_types(t, js_get(t->out, "sliding_window") ? 4 : 0);
}

/* The shared expert's width is a multiple of an expert's. */
static void add_hy_v3(struct gguf_translator *t)
{
    int64_t each = 0, shared = 0;
    add_sigmoid_router(t);
    gguf_key_int(t, "expert_feed_forward_length", 0, &each, NULL);
    gguf_key_int(t, "expert_shared_feed_forward_length", each, &shared, NULL);
    if (each <= 0 || shared % each)
        gguf_fail(t, ERR_FORMAT, "key hy_v3.expert_shared_feed_forward_length: %lld is no multiple of %lld",
                  (long long)shared, (long long)each);
    else
        gguf_set_int(t, "num_shared_experts", shared / each);
    json_object_del(t->out, "n_shared_experts");
    rename_key(t, "routed_scaling_factor", "router_scaling_factor");
}

/* The widths of both kinds of MLPs are those of tensors, because converters differ in the key for
 * the dense ones.  The outputs of shared and other experts are averaged.  A file has the epsilon of
 * one kind of norm, and the other one, if it is there, is 0. */
static void add_cohere2_moe(struct gguf_translator *t)
{
    const struct source_tensor *dense = gguf_find_tensor(t, "blk.0.ffn_up.weight");
    const double rms = gguf_key_float(t, "attention.layer_norm_rms_epsilon", 0);
    int64_t shared = 0, width = t->ff, lead = 0;
    if (rms == 0 && !gguf_has_key(t, "attention.layer_norm_epsilon"))
        gguf_fail(t, ERR_FORMAT, "key %s.attention.layer_norm_epsilon is missing", t->arch);
    gguf_set_real(t, rms != 0 ? "rms_norm_eps" : "layer_norm_eps",
                  rms != 0 ? rms : gguf_key_float(t, "attention.layer_norm_epsilon", 1e-5));
    t->n_layers = gguf_add_extra_layers(t);
    gguf_copy_int(t, "expert_used_count", "num_experts_per_tok");
    gguf_key_int(t, "expert_feed_forward_length", t->ff, &width, NULL);
    gguf_key_int(t, "expert_shared_count", 0, &shared, NULL);
    gguf_key_int(t, "leading_dense_block_count", 0, &lead, NULL);
    gguf_set_int(t, "intermediate_size", width);
    gguf_set_int(t, "prefix_dense_intermediate_size", dense && dense->n_dims == 2 ? dense->dim[0] : t->ff);
    gguf_set_int(t, "first_k_dense_replace", lead);
    gguf_set_int(t, "num_shared_experts", shared);
    gguf_set_string(t, "expert_selection_fn", "sigmoid");
    gguf_set_bool(t, "norm_topk_prob", gguf_key_float(t, "expert_weights_norm", 0) != 0);
    gguf_set_real(t, "logit_scale", gguf_key_float(t, "logit_scale", 1));
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    gguf_window(t);
    gguf_set_layer_types(t, 4);
}

static void add_afmoe(struct gguf_translator *t)
{
    add_sigmoid_router(t);
    rename_key(t, "first_k_dense_replace", "num_dense_layers");
    rename_key(t, "n_shared_experts", "num_shared_experts");
    rename_key(t, "routed_scaling_factor", "route_scale");
    rename_key(t, "norm_topk_prob", "route_norm");
    if (!gguf_has_key(t, "expert_weights_norm"))
        gguf_set_bool(t, "route_norm", 1);
    gguf_set_bool(t, "mup_enabled", 1);             /* GGUF has no key for this; it is set in all
                                                     * published models */
    gguf_window(t);
    gguf_set_layer_types(t, 4);
}

/* The router's weights are normalized, for which the file has no key.  Older files have no key for
 * the factor on values either: 0.707 is the factor of the published model. */
static void add_mimo2(struct gguf_translator *t)
{
    json_t *kinds = json_array();
    int64_t full = 0, local = 0;
    gguf_check_head(t);
    t->n_layers = gguf_add_extra_layers(t);
    gguf_add_experts(t);
    gguf_copy_int(t, "expert_group_count", "n_group");
    gguf_copy_int(t, "expert_group_used_count", "topk_group");
    gguf_set_real(t, "routed_scaling_factor", gguf_key_float(t, "expert_weights_scale", 1));
    gguf_set_int(t, "v_head_dim", t->value_dim);
    gguf_set_real(t, "attention_value_scale", gguf_key_float(t, "attention.value_scale", 0.707));
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    gguf_set_bool(t, "add_swa_attention_sink_bias", gguf_any_layer_has(t, ".attn_sinks.weight"));
    gguf_window(t);
    gguf_set_layer_types(t, 6);
    const json_t *types = json_object_get(t->out, "layer_types");
    for (int64_t i = 0; i < t->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        int64_t *heads = type && strcmp(type, "full_attention") == 0 ? &full : &local;
        *heads = *heads ? *heads : gguf_key_at(t, "attention.head_count_kv", i, t->heads);
        json_array_append_new(kinds, json_string(gguf_layer_has(t, i, "ffn_gate_inp.weight") ? "sparse" : "dense"));
    }
    json_object_set_new(t->out, "mlp_layer_types", kinds);
    gguf_set_int(t, "num_key_value_heads", full ? full : local);
    gguf_set_int(t, "swa_num_key_value_heads", local ? local : full);
}

static void add_gpt_oss(struct gguf_translator *t)
{
    gguf_add_experts(t);
    if (json_object_get(t->out, "moe_intermediate_size"))
        json_object_set(t->out, "intermediate_size", json_object_get(t->out, "moe_intermediate_size"));
    gguf_window(t);
    gguf_set_layer_types(t, 2);
    json_t *rope = json_object_get(t->out, "rope_parameters");
    if (json_object_get(rope, "factor"))
        json_object_set_new(rope, "truncate", json_false());
}

static void add_ernie_moe(struct gguf_translator *t)
{
    gguf_add_experts(t);
    gguf_set_bool(t, "use_bias", gguf_any_attn_bias(t));
    gguf_copy_int(t, "expert_shared_count", "moe_num_shared_experts");
    gguf_copy_int(t, "leading_dense_block_count", "moe_layer_start_index");
    gguf_copy_int(t, "interleave_moe_layer_step", "moe_layer_interval");
}

static void add_hunyuan_moe(struct gguf_translator *t)
{
    gguf_add_experts(t);
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    gguf_set_int(t, "num_shared_expert", gguf_find_tensor(t, "blk.0.ffn_up_shexp.weight") != NULL);
}

/* GGUF has no keys for chunks and temperatures: use the values of the published models */
static void add_llama4(struct gguf_translator *t)
{
    gguf_add_experts(t);
    gguf_copy_int(t, "expert_feed_forward_length", "intermediate_size");
    json_object_del(t->out, "moe_intermediate_size");
    gguf_copy_int(t, "feed_forward_length", "intermediate_size_mlp");
    gguf_copy_int(t, "interleave_moe_layer_step", "interleave_moe_layer_step");
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    gguf_set_bool(t, "use_qk_norm", gguf_key_float(t, "expert_count", 0) != 128);
}

static const struct gguf_arch archs[] = {
    { "llama",         "llama",            "LlamaForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_llama },
    { "qwen2",         "qwen2",            "Qwen2ForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, NULL },
    { "qwen3",         "qwen3",            "Qwen3ForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_attention_bias },
    { "smollm3",       "smollm3",          "SmolLM3ForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_smollm3 },
    { "phi2",          "phi",              "PhiForCausalLM",            "layer_norm_eps",     "hidden_act",
      "gelu_new",          SPELLING_CURRENT, ROPE_ONE, add_phi2 },
    { "phi3",          "phi3",             "Phi3ForCausalLM",           "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_phi3 },
    { "gemma",         "gemma",            "GemmaForCausalLM",          "rms_norm_eps",       "hidden_activation",
      "gelu_pytorch_tanh", SPELLING_CURRENT, ROPE_ONE, NULL },
    { "gemma2",        "gemma2",           "Gemma2ForCausalLM",         "rms_norm_eps",       "hidden_activation",
      "gelu_pytorch_tanh", SPELLING_CURRENT, ROPE_ONE, gguf_add_gemma2 },
    { "gemma3",        "gemma3_text",      "Gemma3ForCausalLM",         "rms_norm_eps",       "hidden_activation",
      "gelu_pytorch_tanh", SPELLING_CURRENT, ROPE_TWO, gguf_add_gemma3 },
    { "gemma3n",       "gemma3n_text",     "Gemma3nForCausalLM",        "rms_norm_eps",       "hidden_activation",
      "gelu_pytorch_tanh", SPELLING_HYBRID, ROPE_TWO, gguf_add_gemma3n },
    { "gemma4",        "gemma4_text",      "Gemma4ForCausalLM",         "rms_norm_eps",       "hidden_activation",
      "gelu_pytorch_tanh", SPELLING_HYBRID, ROPE_TWO, gguf_add_gemma4 },
    { "stablelm",      "stablelm",         "StableLmForCausalLM",       "layer_norm_eps",     "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_stablelm },
    { "starcoder2",    "starcoder2",       "Starcoder2ForCausalLM",     "norm_epsilon",       "hidden_act",
      "gelu_pytorch_tanh", SPELLING_CURRENT, ROPE_ONE, add_starcoder2 },
    { "olmo",          "olmo",             "OlmoForCausalLM",           NULL,                 "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_olmo },
    { "olmo2",         "olmo2",            "Olmo2ForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_olmo2 },
    { "granite",       "granite",          "GraniteForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, gguf_add_granite },
    { "granite_swa",   "granite_swa",      "GraniteSWAForCausalLM",     "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_granite_swa },
    { "command-r",     "cohere",           "CohereForCausalLM",         "layer_norm_eps",     "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_cohere },
    { "cohere2",       "cohere2",          "Cohere2ForCausalLM",        "layer_norm_eps",     "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_cohere2 },
    { "gpt2",          "gpt2",             "GPT2LMHeadModel",           "layer_norm_epsilon", "activation_function",
      "gelu_new",          SPELLING_GPT2,  0, NULL },
    { "gptneox",       "gpt_neox",         "GPTNeoXForCausalLM",        "layer_norm_eps",     "hidden_act",
      "gelu",              SPELLING_CURRENT, ROPE_ONE, add_gptneox },
    { "gptj",          "gptj",             "GPTJForCausalLM",           "layer_norm_epsilon", "activation_function",
      "gelu_new",          SPELLING_GPT2,  0, add_gptj },
    { "starcoder",     "gpt_bigcode",      "GPTBigCodeForCausalLM",     "layer_norm_epsilon", "activation_function",
      "gelu_pytorch_tanh", SPELLING_GPT2,  0, add_starcoder },
    { "falcon",        "falcon",           "FalconForCausalLM",         "layer_norm_epsilon", "activation",
      "gelu",              SPELLING_CURRENT, ROPE_ONE, add_falcon },
    { "mpt",           "mpt",              "MptForCausalLM",            "layer_norm_epsilon", NULL,
      NULL,                SPELLING_OWN,   0, add_mpt },
    { "bloom",         "bloom",            "BloomForCausalLM",          "layer_norm_epsilon", NULL,
      NULL,                SPELLING_OWN,   0, add_bloom },
    { "nemotron",      "nemotron",         "NemotronForCausalLM",       "norm_eps",           "hidden_act",
      "relu2",             SPELLING_CURRENT, ROPE_ONE, add_nemotron },
    { "exaone4",       "exaone4",          "Exaone4ForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_exaone4 },
    { "ernie4_5",      "ernie4_5",         "Ernie4_5ForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_ernie },
    { "seed_oss",      "seed_oss",         "SeedOssForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_seed },
    { "arcee",         "arcee",            "ArceeForCausalLM",          "rms_norm_eps",       "hidden_act",
      "relu2",             SPELLING_CURRENT, ROPE_ONE, gguf_add_biases },
    { "hunyuan-dense", "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_attention_bias },
    { "glm4",          "glm4",             "Glm4ForCausalLM",           "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_attention_bias },
    { "llama+experts", "mixtral",          "MixtralForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, gguf_add_experts },
    { "qwen2moe",      "qwen2_moe",        "Qwen2MoeForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_qwen2moe },
    { "qwen3moe",      "qwen3_moe",        "Qwen3MoeForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_qwen3moe },
    { "olmoe",         "olmoe",            "OlmoeForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_olmoe },
    { "granitemoe",    "granitemoe",       "GraniteMoeForCausalLM",     "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_granitemoe },
    { "deepseek2",     "deepseek_v2",      "DeepseekV2ForCausalLM",     "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_deepseek2 },
    { "glm-dsa",       "glm_moe_dsa",      "GlmMoeDsaForCausalLM",      "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_glm_dsa },
    { "deepseek32",    "deepseek_v32",     "DeepseekV32ForCausalLM",    "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_deepseek32 },
    { "deepseek4",     "deepseek_v4",      "DeepseekV4ForCausalLM",     "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_deepseek4 },
    { "glm4moe",       "glm4_moe",         "Glm4MoeForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_glm4moe },
    { "dots1",         "dots1",            "Dots1ForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_dots1 },
    { "ernie4_5-moe",  "ernie4_5_moe",     "Ernie4_5_MoeForCausalLM",   "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_ernie_moe },
    { "hunyuan-moe",   "hunyuan_v1_moe",   "HunYuanMoEV1ForCausalLM",   "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_hunyuan_moe },
    { "minimax-m2",    "minimax_m2",       "MiniMaxM2ForCausalLM",      "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, gguf_add_experts },
    { "gpt-oss",       "gpt_oss",          "GptOssForCausalLM",         "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_gpt_oss },
    { "llama4",        "llama4_text",      "Llama4ForCausalLM",         "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_llama4 },
    { "qwen2vl",       "qwen2_vl_text",    "Qwen2VLForConditionalGeneration", "rms_norm_eps", "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, NULL },
    { "qwen3vl",       "qwen3_vl_text",    "Qwen3VLForConditionalGeneration", "rms_norm_eps", "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_attention_bias },
    { "qwen3vlmoe",    "qwen3_vl_moe_text", "Qwen3VLMoeForConditionalGeneration", "rms_norm_eps", "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_qwen3moe },
    { "mistral3",      "ministral3",       "Ministral3ForCausalLM",     "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_mistral3 },
    { "mistral4",      "mistral4",         "Mistral4ForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_mistral4 },
    { "minicpm3",      "minicpm3",         "MiniCPM3ForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_minicpm3 },
    { "jais2",         "jais2",            "Jais2ForCausalLM",          "layer_norm_eps",     "hidden_act",
      "relu2",             SPELLING_CURRENT, ROPE_ONE, gguf_add_biases },
    { "apertus",       "apertus",          "ApertusForCausalLM",        "rms_norm_eps",       "hidden_act",
      "xielu",             SPELLING_CURRENT, ROPE_ONE, add_apertus },
    { "phimoe",        "phimoe",           "PhimoeForCausalLM",         "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_phimoe },
    { "exaone-moe",    "exaone_moe",       "ExaoneMoeForCausalLM",      "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_exaone_moe },
    { "hy_v3",         "hy_v3",            "HYV3ForCausalLM",           "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_hy_v3 },
    { "cohere2moe",    "cohere2_moe",      "Cohere2MoeForCausalLM",     NULL,                 "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_cohere2_moe },
    { "afmoe",         "afmoe",            "AfmoeForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, add_afmoe },
    { "gemma-embedding", "gemma3_text",    "Gemma3TextModel",           "rms_norm_eps",       "hidden_activation",
      "gelu_pytorch_tanh", SPELLING_CURRENT, ROPE_TWO, gguf_add_gemma_embedding },
    { "bert",          "bert",             "BertModel",                 "layer_norm_eps",     "hidden_act",
      "gelu",              SPELLING_CURRENT, 0, gguf_add_bert },
    { "nomic-bert",    "nomic_bert",       "NomicBertModel",            "layer_norm_eps",     "hidden_act",
      "silu",              SPELLING_CURRENT, ROPE_ONE, gguf_add_nomic_bert },
    { "modern-bert",   "modernbert",       "ModernBertModel",           "norm_eps",           "hidden_activation",
      "gelu",              SPELLING_CURRENT, ROPE_TWO, gguf_add_modern_bert },
    { "mimo2",         "mimo_v2_flash",    "MiMoV2FlashForCausalLM",    "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_VALUES, ROPE_TWO, add_mimo2 },
    { "kimi-linear",   "kimi_linear",      "KimiLinearForCausalLM",     "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, 0, gguf_add_kimi_linear },
    { "bailingmoe3",   "bailing_hybrid",   "BailingHybridForCausalLM",  "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_bailing },
    { "minimax-01",    "minimax",          "MiniMaxForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_minimax },
    { "lfm2moe",       "lfm2_moe",         "Lfm2MoeForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_lfm2moe },
    { "lfm2",          "lfm2",             "Lfm2ForCausalLM",           "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_lfm2 },
    { "mamba2",        "mamba2",           "Mamba2ForCausalLM",         "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, 0, gguf_add_mamba2 },
    { "granitehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM", "rms_norm_eps",     "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_granitehybrid },
    { "falcon-h1",     "falcon_h1",        "FalconH1ForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_falcon_h1 },
    { "jamba",         "jamba",            "JambaForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, 0, gguf_add_jamba },
    { "nemotron_h",    "nemotron_h",       "NemotronHForCausalLM",      "rms_norm_eps",       "mlp_hidden_act",
      "relu2",             SPELLING_HYBRID, 0, gguf_add_nemotron_h },
    { "nemotron_h_moe", "nemotron_h",      "NemotronHForCausalLM",      "rms_norm_eps",       "mlp_hidden_act",
      "relu2",             SPELLING_HYBRID, 0, gguf_add_nemotron_h_moe },
    { "qwen3next",     "qwen3_next",       "Qwen3NextForCausalLM",      "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_qwen3next },
    { "qwen35",        "qwen3_5_text",     "Qwen3_5ForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_qwen35 },
    { "qwen35moe",     "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM",     "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_qwen35moe },
    { "qwen4exp",      "qwen4_exp_text",   "Qwen4ExpForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              SPELLING_HYBRID, ROPE_ONE, gguf_add_qwen4exp },
};

const struct gguf_arch *gguf_arch_find(const char *name)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i].gguf, name) == 0)
            return &archs[i];
    return NULL;
}

/* gguf_config.c - the hyper-parameters of a GGUF file in the words of config.json.
 *
 * GGUF has one vocabulary for all architectures ("llama.block_count"), leaves to the program
 * what an architecture never varies, and keeps some facts only as tensors: biases and q/k norms
 * are there or not, a tied head has no output.weight, Llama 3's and Phi 3's RoPE factors are f32
 * tensors.  All of that is said here as Hugging Face would say it; what the weights look like
 * (norms with 1 added, permuted q and k) is marked by "zse_gguf": true.  RoPE factors that exist
 * only as tensors become rope_type "longrope", which states factors one by one. */
#include "libcommon/import/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/quant/ggml.h"

struct translator {
    const struct gguf *g;
    char arch[64];
    json_t *out;
    int64_t n_layers, hidden, heads, kv_heads, head_dim, n_rot, ff, context;
    int hybrid;                 /* some numbers are one a layer: 0 where the layer has no such thing */
};

static const char *full_key(const struct translator *t, const char *key, char *buf, size_t room)
{
    snprintf(buf, room, "%s.%s", t->arch, key);
    return buf;
}

static int has_key(const struct translator *t, const char *key)
{
    char k[160];
    return gguf_find(t->g, full_key(t, key, k, sizeof k)) != NULL;
}

static const struct source_tensor *find_tensor(const struct translator *t, const char *name)
{
    for (int i = 0; i < t->g->n_tensors; i++)
        if (strcmp(t->g->tensors[i].name, name) == 0)
            return &t->g->tensors[i];
    return NULL;
}

static double key_float(const struct translator *t, const char *key, double otherwise)
{
    char k[160];
    return gguf_float(t->g, full_key(t, key, k, sizeof k), otherwise);
}

/* A whole number, or an array of equal ones (one a layer).  otherwise < 0: it must be there. */
static int key_int(const struct translator *t, const char *key, int64_t otherwise, int64_t *out, struct err *e)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, full_key(t, key, k, sizeof k));
    if (!kv) {
        *out = otherwise;
        return otherwise >= 0 ? 0 : err_set(e, ERR_FORMAT, "%s: key %s is missing", t->g->map.path, k);
    }
    if (kv->elem == GGUF_STR || kv->n < 1)
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a number", t->g->map.path, k);
    *out = gguf_array_int(kv, 0);
    for (uint64_t i = 1; i < kv->n; i++)
        if (gguf_array_int(kv, i) != *out)
            return err_set(e, ERR_UNSUPPORTED, "%s: key %s: %" PRId64 " in layer 0 but %" PRId64 " in layer %" PRIu64,
                           t->g->map.path, k, *out, gguf_array_int(kv, i), i);
    if (*out < 0 || *out > INT32_MAX)
        return err_set(e, ERR_FORMAT, "%s: key %s: %" PRId64 " is out of range", t->g->map.path, k, *out);
    return 0;
}

/* Of layer i, where a key may have a number for each. */
static int64_t key_at(const struct translator *t, const char *key, int64_t i, int64_t otherwise)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, full_key(t, key, k, sizeof k));
    if (!kv || kv->elem == GGUF_STR || kv->n < 1)
        return otherwise;
    return kv->type != GGUF_ARR ? gguf_array_int(kv, 0) : (uint64_t)i < kv->n ? gguf_array_int(kv, (uint64_t)i)
                                                                              : otherwise;
}

/* The most that any layer has; hybrid models only, others have the same number in all layers. */
static int key_most(const struct translator *t, const char *key, int64_t otherwise, int64_t *out, struct err *e)
{
    char k[160];
    if (!t->hybrid || !has_key(t, key))
        return key_int(t, key, otherwise, out, e);
    const struct gguf_kv *kv = gguf_find(t->g, full_key(t, key, k, sizeof k));
    if (kv->elem == GGUF_STR || kv->n < 1 || (kv->type == GGUF_ARR && kv->n != (uint64_t)t->n_layers))
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a number, or %" PRId64 " of them", t->g->map.path, k,
                       t->n_layers);
    *out = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        const int64_t n = gguf_array_int(kv, i);
        if (n < 0 || n > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: key %s: %" PRId64 " is out of range", t->g->map.path, k, n);
        *out = n > *out ? n : *out;
    }
    return 0;
}

static void set_int(struct translator *t, const char *name, int64_t v)
{
    json_object_set_new(t->out, name, json_integer(v));
}
static void set_bool(struct translator *t, const char *name, int v)
{
    json_object_set_new(t->out, name, json_boolean(v));
}
static void set_string(struct translator *t, const char *name, const char *v)
{
    json_object_set_new(t->out, name, json_string(v));
}

/* A number that was an f32, with the fewest digits that give the same f32 again: 1e-05, not
 * 9.999999747378752e-06. */
static json_t *real(double v)
{
    char text[40];
    for (int digits = 1; digits <= 9 && isfinite(v); digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == (float)v)
            return json_real(strtod(text, NULL));
    }
    return isfinite(v) ? json_real(v) : NULL;       /* only the factors of a tensor can be infinite or NaN: check_finite */
}

static void set_real(struct translator *t, const char *name, double v) { json_object_set_new(t->out, name, real(v)); }

/* "layer_types" for windows in all but every `period`-th layer. */
static void set_layer_types(struct translator *t, int64_t period)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, full_key(t, "attention.sliding_window_pattern", k, sizeof k));
    if (kv && kv->type != GGUF_ARR && kv->type != GGUF_STR && gguf_array_int(kv, 0) > 0)
        period = gguf_array_int(kv, 0);
    json_t *types = json_array();
    for (int64_t i = 0; i < t->n_layers; i++) {
        int window = period > 0 && (i + 1) % period != 0;
        if (kv && kv->type == GGUF_ARR && kv->elem != GGUF_STR && (uint64_t)i < kv->n)
            window = gguf_array_int(kv, (uint64_t)i) != 0;
        json_array_append_new(types, json_string(window ? "sliding_attention" : "full_attention"));
    }
    json_object_set_new(t->out, "layer_types", types);
}

/* ---- what single architectures add ---- */

static int has_bias(const struct translator *t, const char *part)
{
    char name[96];
    snprintf(name, sizeof name, "blk.0.%s.bias", part);
    return find_tensor(t, name) != NULL;
}

static int any_attn_bias(const struct translator *t) { return has_bias(t, "attn_q") || has_bias(t, "attn_qkv"); }

static void window(struct translator *t)
{
    int64_t n;
    if (key_int(t, "attention.sliding_window", 0, &n, NULL) == 0 && n > 0)
        set_int(t, "sliding_window", n);
    else
        json_object_set_new(t->out, "sliding_window", json_null());
}

static void biases(struct translator *t)
{
    set_bool(t, "attention_bias", any_attn_bias(t));
    set_bool(t, "mlp_bias", has_bias(t, "ffn_down"));
}

static void add_llama(struct translator *t) { biases(t); }
static void add_phi3(struct translator *t) { window(t); }
static void add_phi2(struct translator *t)
{
    set_bool(t, "qk_layernorm", find_tensor(t, "blk.0.attn_q_norm.weight") != NULL);
}

static void add_smollm3(struct translator *t)
{
    json_t *use = json_array();
    for (int64_t i = 0; i < t->n_layers; i++)
        json_array_append_new(use, json_integer((i + 1) % 4 != 0));
    json_object_set_new(t->out, "no_rope_layers", use);
    set_int(t, "no_rope_layer_interval", 4);
    biases(t);
}

static void softcaps(struct translator *t)
{
    if (has_key(t, "attn_logit_softcapping"))
        set_real(t, "attn_logit_softcapping", key_float(t, "attn_logit_softcapping", 50));
    if (has_key(t, "final_logit_softcapping"))
        set_real(t, "final_logit_softcapping", key_float(t, "final_logit_softcapping", 30));
}

/* The 27B models scale by hidden_size / n_heads instead of head_dim; GGUF does not say so, their
 * depth does. */
static void add_gemma2(struct translator *t)
{
    window(t);
    softcaps(t);
    if (!has_key(t, "attn_logit_softcapping"))
        set_real(t, "attn_logit_softcapping", 50);
    if (!has_key(t, "final_logit_softcapping"))
        set_real(t, "final_logit_softcapping", 30);
    set_int(t, "query_pre_attn_scalar", t->n_layers == 46 ? t->hidden / t->heads : t->head_dim);
    set_layer_types(t, 2);
}

static void add_gemma3(struct translator *t)
{
    window(t);
    softcaps(t);
    set_int(t, "query_pre_attn_scalar", t->n_layers == 62 ? t->hidden / t->heads : t->head_dim);
    set_layer_types(t, 6);
}

static void add_stablelm(struct translator *t)
{
    set_bool(t, "use_parallel_residual", key_float(t, "use_parallel_residual", 0) != 0);
    set_bool(t, "use_qkv_bias", any_attn_bias(t));
    set_bool(t, "qk_layernorm", find_tensor(t, "blk.0.attn_q_norm.weight") != NULL);
}

static void add_starcoder2(struct translator *t)
{
    set_bool(t, "use_bias", any_attn_bias(t));
    window(t);
}

static void add_olmo(struct translator *t)
{
    if (has_key(t, "attention.clamp_kqv"))
        set_real(t, "clip_qkv", key_float(t, "attention.clamp_kqv", 0));
    set_bool(t, "attention_bias", any_attn_bias(t));
}

static void add_granite(struct translator *t)
{
    set_real(t, "attention_multiplier", key_float(t, "attention.scale", 1 / sqrt((double)t->head_dim)));
    set_real(t, "embedding_multiplier", key_float(t, "embedding_scale", 1));
    set_real(t, "residual_multiplier", key_float(t, "residual_scale", 1));
    set_real(t, "logits_scaling", key_float(t, "logit_scale", 1));
    biases(t);
}

static void add_cohere(struct translator *t)
{
    set_real(t, "logit_scale", key_float(t, "logit_scale", 1));
    set_bool(t, "use_qk_norm", find_tensor(t, "blk.0.attn_q_norm.weight") != NULL);
    set_bool(t, "attention_bias", any_attn_bias(t));
}

static void add_cohere2(struct translator *t)
{
    set_real(t, "logit_scale", key_float(t, "logit_scale", 1));
    set_bool(t, "attention_bias", any_attn_bias(t));
    window(t);
    set_layer_types(t, 4);
}

static void add_gptneox(struct translator *t)
{
    set_bool(t, "use_parallel_residual", key_float(t, "use_parallel_residual", 1) != 0);
    set_bool(t, "attention_bias", any_attn_bias(t));
}

static void add_gptj(struct translator *t) { set_int(t, "rotary_dim", t->n_rot); }

static void add_starcoder(struct translator *t)
{
    set_bool(t, "multi_query", t->kv_heads == 1 && t->heads > 1);
}

static void add_falcon(struct translator *t)
{
    int two_norms = find_tensor(t, "blk.0.attn_norm_2.weight") != NULL, grouped = two_norms || t->kv_heads > 1;
    set_bool(t, "alibi", 0);
    set_bool(t, "bias", any_attn_bias(t));
    set_bool(t, "parallel_attn", 1);
    set_bool(t, "new_decoder_architecture", grouped);
    set_bool(t, "multi_query", t->kv_heads == 1);
    set_int(t, "num_kv_heads", t->kv_heads);
    set_int(t, "num_ln_in_parallel_attn", two_norms ? 2 : 1);
    set_int(t, "ffn_hidden_size", t->ff);
}

static void add_mpt(struct translator *t)
{
    double alibi = key_float(t, "attention.max_alibi_bias", 0), clip = key_float(t, "attention.clamp_kqv", 0);
    json_t *a = json_pack("{s:b, s:b, s:s}", "alibi", alibi > 0, "qk_ln",
                          find_tensor(t, "blk.0.attn_q_norm.weight") != NULL, "attn_type", "multihead_attention");
    if (alibi > 0)
        json_object_set_new(a, "alibi_bias_max", real(alibi));
    if (clip > 0)
        json_object_set_new(a, "clip_qkv", real(clip));
    if (t->kv_heads != t->heads)
        json_object_set_new(a, "kv_n_heads", json_integer(t->kv_heads));
    json_object_set_new(t->out, "attn_config", a);
    set_int(t, "d_model", t->hidden);
    set_int(t, "n_heads", t->heads);
    set_int(t, "n_layers", t->n_layers);
    set_int(t, "max_seq_len", t->context);
    json_object_set_new(t->out, "expansion_ratio", t->ff % t->hidden ? json_real((double)t->ff / (double)t->hidden)
                                                                     : json_integer(t->ff / t->hidden));
    set_bool(t, "no_bias", !any_attn_bias(t));
    set_bool(t, "learned_pos_emb", find_tensor(t, "position_embd.weight") != NULL);
}

static void add_bloom(struct translator *t)
{
    set_int(t, "hidden_size", t->hidden);
    set_int(t, "n_head", t->heads);
    set_int(t, "n_layer", t->n_layers);
    set_int(t, "seq_length", t->context);
}

static void add_nemotron(struct translator *t) { biases(t); }

static void add_exaone4(struct translator *t)
{
    window(t);
    set_layer_types(t, js_get(t->out, "sliding_window") ? 4 : 0);
}

static void add_ernie(struct translator *t) { set_bool(t, "use_bias", any_attn_bias(t)); }

static void add_seed(struct translator *t)
{
    biases(t);
    set_bool(t, "attention_out_bias", has_bias(t, "attn_output"));
}

static void add_attention_bias(struct translator *t) { set_bool(t, "attention_bias", any_attn_bias(t)); }

/* ---- mixtures of experts ---- */

/* A number if it is there. */
static void copy_int(struct translator *t, const char *key, const char *name)
{
    int64_t n;
    if (has_key(t, key) && key_int(t, key, 0, &n, NULL) == 0)
        set_int(t, name, n);
}

static void add_experts(struct translator *t)
{
    copy_int(t, "expert_used_count", "num_experts_per_tok");
    copy_int(t, "expert_feed_forward_length", "moe_intermediate_size");
}

static void add_qwen2moe(struct translator *t)
{
    add_experts(t);
    copy_int(t, "expert_shared_feed_forward_length", "shared_expert_intermediate_size");
    set_bool(t, "qkv_bias", any_attn_bias(t));
    set_bool(t, "norm_topk_prob", 0);
}

static void add_qwen3moe(struct translator *t)
{
    add_experts(t);
    set_bool(t, "attention_bias", any_attn_bias(t));
    set_bool(t, "norm_topk_prob", 1);
}

static void add_olmoe(struct translator *t)
{
    add_olmo(t);
    copy_int(t, "expert_used_count", "num_experts_per_tok");
    set_bool(t, "norm_topk_prob", 0);
}

static void add_granitemoe(struct translator *t)
{
    add_granite(t);
    json_object_del(t->out, "mlp_bias");
    copy_int(t, "expert_used_count", "num_experts_per_tok");
}

/* deepseek_v3's router and those that took it over. */
static void add_sigmoid_router(struct translator *t)
{
    add_experts(t);
    copy_int(t, "leading_dense_block_count", "first_k_dense_replace");
    copy_int(t, "expert_shared_count", "n_shared_experts");
    copy_int(t, "expert_group_count", "n_group");
    copy_int(t, "expert_group_used_count", "topk_group");
    set_real(t, "routed_scaling_factor", key_float(t, "expert_weights_scale", 1));
    set_bool(t, "norm_topk_prob", key_float(t, "expert_weights_norm", 0) != 0);
    set_bool(t, "attention_bias", any_attn_bias(t));
    int64_t extra;
    if (has_key(t, "nextn_predict_layers") && key_int(t, "nextn_predict_layers", 0, &extra, NULL) == 0 &&
        extra < t->n_layers) {
        set_int(t, "num_nextn_predict_layers", extra);          /* counted among the blocks */
        set_int(t, "num_hidden_layers", t->n_layers - extra);
    }
}

static void add_glm4moe(struct translator *t)
{
    add_sigmoid_router(t);
    set_bool(t, "use_qk_norm", find_tensor(t, "blk.0.attn_q_norm.weight") != NULL);
}

static void add_dots1(struct translator *t)
{
    add_sigmoid_router(t);
    json_object_set_new(t->out, "sliding_window", json_null());
}

/* A head's sizes stand in keys of their own where the file keeps kv_b in two parts. */
static void add_deepseek2(struct translator *t)
{
    int64_t key = t->head_dim, value = 0, q_rank = 0;
    add_sigmoid_router(t);
    copy_int(t, "attention.kv_lora_rank", "kv_lora_rank");
    if (key_int(t, "attention.q_lora_rank", 0, &q_rank, NULL) == 0 && q_rank > 0)
        set_int(t, "q_lora_rank", q_rank);
    else
        json_object_set_new(t->out, "q_lora_rank", json_null());
    key_int(t, "attention.value_length", key, &value, NULL);
    key_int(t, "attention.key_length_mla", key, &key, NULL);
    key_int(t, "attention.value_length_mla", value, &value, NULL);
    set_int(t, "qk_rope_head_dim", t->n_rot);
    set_int(t, "qk_nope_head_dim", key - t->n_rot);
    set_int(t, "v_head_dim", value);
    if (key_float(t, "expert_gating_func", 1) == 2) {
        set_string(t, "model_type", "deepseek_v3");
        json_object_set_new(t->out, "architectures", json_pack("[s]", "DeepseekV3ForCausalLM"));
    } else {
        set_string(t, "topk_method", key_float(t, "expert_group_count", 1) > 1 ? "group_limited_greedy" : "greedy");
        set_bool(t, "norm_topk_prob", 0);
    }
    json_t *rope = json_object_get(t->out, "rope_parameters");
    const double log_factor = key_float(t, "rope.scaling.yarn_log_multiplier", 0);
    if (log_factor != 0 && json_object_get(rope, "factor")) {
        json_object_set_new(rope, "mscale", real(10 * log_factor));
        json_object_set_new(rope, "mscale_all_dim", real(10 * log_factor));
        json_object_del(rope, "attention_factor");
    }
}

static void add_gpt_oss(struct translator *t)
{
    add_experts(t);
    if (json_object_get(t->out, "moe_intermediate_size"))
        json_object_set(t->out, "intermediate_size", json_object_get(t->out, "moe_intermediate_size"));
    window(t);
    set_layer_types(t, 2);
    json_t *rope = json_object_get(t->out, "rope_parameters");
    if (json_object_get(rope, "factor"))
        json_object_set_new(rope, "truncate", json_false());
}

static void add_ernie_moe(struct translator *t)
{
    add_experts(t);
    set_bool(t, "use_bias", any_attn_bias(t));
    copy_int(t, "expert_shared_count", "moe_num_shared_experts");
    copy_int(t, "leading_dense_block_count", "moe_layer_start_index");
    copy_int(t, "interleave_moe_layer_step", "moe_layer_interval");
}

static void add_hunyuan_moe(struct translator *t)
{
    add_experts(t);
    set_bool(t, "attention_bias", any_attn_bias(t));
    set_int(t, "num_shared_expert", find_tensor(t, "blk.0.ffn_up_shexp.weight") != NULL);
}

/* chunks and temperatures are as the models have them: GGUF has no keys for those */
static void add_llama4(struct translator *t)
{
    add_experts(t);
    copy_int(t, "expert_feed_forward_length", "intermediate_size");
    json_object_del(t->out, "moe_intermediate_size");
    copy_int(t, "feed_forward_length", "intermediate_size_mlp");
    copy_int(t, "interleave_moe_layer_step", "interleave_moe_layer_step");
    set_bool(t, "attention_bias", any_attn_bias(t));
    set_bool(t, "use_qk_norm", key_float(t, "expert_count", 0) != 128);
}

/* ---- layers with a state ---- */

/* "layer_types" or the like: names of layers with attention, with a state, and (NULL: there are
 * none) with nothing but an MLP. */
static void set_layer_kinds(struct translator *t, const char *key, const char *attention, const char *state,
                            const char *mlp)
{
    json_t *kinds = json_array();
    for (int64_t i = 0; i < t->n_layers; i++) {
        const int attends = key_at(t, "attention.head_count_kv", i, 0) > 0, feeds = mlp &&
            key_at(t, "feed_forward_length", i, 0) > 0;
        json_array_append_new(kinds, json_string(attends ? attention : feeds ? mlp : state));
    }
    json_object_set_new(t->out, key, kinds);
}

static void add_lfm2(struct translator *t)
{
    copy_int(t, "shortconv.l_cache", "conv_L_cache");
    set_bool(t, "block_auto_adjust_ff_dim", 0);
    set_int(t, "block_ff_dim", t->ff);
    set_layer_kinds(t, "layer_types", "full_attention", "conv", NULL);
}

/* Mamba2's sizes under an architecture's names. */
static void set_mamba(struct translator *t, const char *heads_key, const char *head_dim_key, const char *groups_key,
                      const char *state_key, const char *kernel_key)
{
    int64_t inner = 0, heads = 0;
    key_int(t, "ssm.inner_size", 0, &inner, NULL);
    key_int(t, "ssm.time_step_rank", 0, &heads, NULL);
    set_int(t, heads_key, heads);
    set_int(t, head_dim_key, heads > 0 ? inner / heads : 0);
    copy_int(t, "ssm.group_count", groups_key);
    copy_int(t, "ssm.state_size", state_key);
    copy_int(t, "ssm.conv_kernel", kernel_key);
}

/* Has any layer a tensor whose name ends so? */
static int any_layer_has(const struct translator *t, const char *end)
{
    const size_t m = strlen(end);
    for (int i = 0; i < t->g->n_tensors; i++) {
        const size_t n = strlen(t->g->tensors[i].name);
        if (n > m && strcmp(t->g->tensors[i].name + n - m, end) == 0)
            return 1;
    }
    return 0;
}

static void add_mamba2(struct translator *t)
{
    set_mamba(t, "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel");
    set_real(t, "expand", key_float(t, "ssm.inner_size", 0) / (double)t->hidden);
    set_bool(t, "use_conv_bias", any_layer_has(t, ".ssm_conv1d.bias"));
    static const char *const none[] = { "num_attention_heads", "num_key_value_heads", "intermediate_size",
                                        "max_position_embeddings" };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        json_object_del(t->out, none[i]);
}

static void add_granitehybrid(struct translator *t)
{
    int64_t shared = t->ff;
    add_granite(t);
    json_object_del(t->out, "mlp_bias");
    copy_int(t, "expert_used_count", "num_experts_per_tok");
    if (!(key_float(t, "expert_count", 0) > 0))
        set_int(t, "num_local_experts", 0);
    key_int(t, "expert_shared_feed_forward_length", t->ff, &shared, NULL);
    set_int(t, "shared_intermediate_size", shared);
    set_mamba(t, "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv");
    set_real(t, "mamba_expand", key_float(t, "ssm.inner_size", 0) / (double)t->hidden);
    set_bool(t, "mamba_conv_bias", any_layer_has(t, ".ssm_conv1d.bias"));
    set_layer_kinds(t, "layer_types", "attention", "mamba", NULL);
    const int rotates = key_float(t, "rope.scaling.finetuned", 1) != 0;     /* what granite's files mean by it */
    set_string(t, "position_embedding_type", rotates ? "rope" : "nope");
    if (!rotates)
        json_object_del(t->out, "rope_parameters");
}

static void add_nemotron_h(struct translator *t)
{
    set_mamba(t, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel");
    set_bool(t, "use_conv_bias", any_layer_has(t, ".ssm_conv1d.bias"));
    set_layer_kinds(t, "layers_block_type", "attention", "mamba", "mlp");
    biases(t);
}

static void add_qwen3next(struct translator *t)
{
    char k[160];
    const struct gguf_kv *states = gguf_find(t->g, full_key(t, "attention.recurrent_layers", k, sizeof k));
    int64_t every = 4;
    add_experts(t);
    copy_int(t, "expert_shared_feed_forward_length", "shared_expert_intermediate_size");
    set_bool(t, "attention_bias", any_attn_bias(t));
    set_mamba(t, "linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads", "linear_key_head_dim",
              "linear_conv_kernel_dim");
    key_int(t, "full_attention_interval", 4, &every, NULL);
    json_t *kinds = json_array();
    for (int64_t i = 0; i < t->n_layers; i++) {
        const int attends = states && states->type == GGUF_ARR ? !key_at(t, "attention.recurrent_layers", i, 0)
                                                               : every > 0 && (i + 1) % every == 0;
        json_array_append_new(kinds, json_string(attends ? "full_attention" : "linear_attention"));
    }
    json_object_set_new(t->out, "layer_types", kinds);
    set_bool(t, "zse_z_apart", any_layer_has(t, ".attn_gate.weight"));
}

/* How an architecture spells its sizes.  Hybrid: as today, but some are one a layer. */
enum words { WORDS_TODAY, WORDS_HYBRID, WORDS_GPT2, WORDS_OWN };

static const struct arch {
    const char *gguf, *model_type, *class_name, *eps, *act_key, *act;
    enum words words;
    int rope;                               /* writes rope_parameters */
    void (*add)(struct translator *t);
} archs[] = {
    { "llama",         "llama",            "LlamaForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_llama },
    { "qwen2",         "qwen2",            "Qwen2ForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, NULL },
    { "qwen3",         "qwen3",            "Qwen3ForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_attention_bias },
    { "smollm3",       "smollm3",          "SmolLM3ForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_smollm3 },
    { "phi2",          "phi",              "PhiForCausalLM",            "layer_norm_eps",     "hidden_act",
      "gelu_new",          WORDS_TODAY, 1, add_phi2 },
    { "phi3",          "phi3",             "Phi3ForCausalLM",           "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_phi3 },
    { "gemma",         "gemma",            "GemmaForCausalLM",          "rms_norm_eps",       "hidden_activation",
      "gelu_pytorch_tanh", WORDS_TODAY, 1, NULL },
    { "gemma2",        "gemma2",           "Gemma2ForCausalLM",         "rms_norm_eps",       "hidden_activation",
      "gelu_pytorch_tanh", WORDS_TODAY, 1, add_gemma2 },
    { "gemma3",        "gemma3_text",      "Gemma3ForCausalLM",         "rms_norm_eps",       "hidden_activation",
      "gelu_pytorch_tanh", WORDS_TODAY, 1, add_gemma3 },
    { "stablelm",      "stablelm",         "StableLmForCausalLM",       "layer_norm_eps",     "hidden_act",
      "silu",              WORDS_TODAY, 1, add_stablelm },
    { "starcoder2",    "starcoder2",       "Starcoder2ForCausalLM",     "norm_epsilon",       "hidden_act",
      "gelu_pytorch_tanh", WORDS_TODAY, 1, add_starcoder2 },
    { "olmo",          "olmo",             "OlmoForCausalLM",           NULL,                 "hidden_act",
      "silu",              WORDS_TODAY, 1, add_olmo },
    { "olmo2",         "olmo2",            "Olmo2ForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_attention_bias },
    { "granite",       "granite",          "GraniteForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_granite },
    { "command-r",     "cohere",           "CohereForCausalLM",         "layer_norm_eps",     "hidden_act",
      "silu",              WORDS_TODAY, 1, add_cohere },
    { "cohere2",       "cohere2",          "Cohere2ForCausalLM",        "layer_norm_eps",     "hidden_act",
      "silu",              WORDS_TODAY, 1, add_cohere2 },
    { "gpt2",          "gpt2",             "GPT2LMHeadModel",           "layer_norm_epsilon", "activation_function",
      "gelu_new",          WORDS_GPT2,  0, NULL },
    { "gptneox",       "gpt_neox",         "GPTNeoXForCausalLM",        "layer_norm_eps",     "hidden_act",
      "gelu",              WORDS_TODAY, 1, add_gptneox },
    { "gptj",          "gptj",             "GPTJForCausalLM",           "layer_norm_epsilon", "activation_function",
      "gelu_new",          WORDS_GPT2,  0, add_gptj },
    { "starcoder",     "gpt_bigcode",      "GPTBigCodeForCausalLM",     "layer_norm_epsilon", "activation_function",
      "gelu_pytorch_tanh", WORDS_GPT2,  0, add_starcoder },
    { "falcon",        "falcon",           "FalconForCausalLM",         "layer_norm_epsilon", "activation",
      "gelu",              WORDS_TODAY, 1, add_falcon },
    { "mpt",           "mpt",              "MptForCausalLM",            "layer_norm_epsilon", NULL,
      NULL,                WORDS_OWN,   0, add_mpt },
    { "bloom",         "bloom",            "BloomForCausalLM",          "layer_norm_epsilon", NULL,
      NULL,                WORDS_OWN,   0, add_bloom },
    { "nemotron",      "nemotron",         "NemotronForCausalLM",       "norm_eps",           "hidden_act",
      "relu2",             WORDS_TODAY, 1, add_nemotron },
    { "exaone4",       "exaone4",          "Exaone4ForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_exaone4 },
    { "ernie4_5",      "ernie4_5",         "Ernie4_5ForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_ernie },
    { "seed_oss",      "seed_oss",         "SeedOssForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_seed },
    { "arcee",         "arcee",            "ArceeForCausalLM",          "rms_norm_eps",       "hidden_act",
      "relu2",             WORDS_TODAY, 1, biases },
    { "hunyuan-dense", "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_attention_bias },
    { "glm4",          "glm4",             "Glm4ForCausalLM",           "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_attention_bias },
    { "llama+experts", "mixtral",          "MixtralForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_experts },
    { "qwen2moe",      "qwen2_moe",        "Qwen2MoeForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_qwen2moe },
    { "qwen3moe",      "qwen3_moe",        "Qwen3MoeForCausalLM",       "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_qwen3moe },
    { "olmoe",         "olmoe",            "OlmoeForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_olmoe },
    { "granitemoe",    "granitemoe",       "GraniteMoeForCausalLM",     "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_granitemoe },
    { "deepseek2",     "deepseek_v2",      "DeepseekV2ForCausalLM",     "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_deepseek2 },
    { "glm4moe",       "glm4_moe",         "Glm4MoeForCausalLM",        "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_glm4moe },
    { "dots1",         "dots1",            "Dots1ForCausalLM",          "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_dots1 },
    { "ernie4_5-moe",  "ernie4_5_moe",     "Ernie4_5_MoeForCausalLM",   "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_ernie_moe },
    { "hunyuan-moe",   "hunyuan_v1_moe",   "HunYuanMoEV1ForCausalLM",   "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_hunyuan_moe },
    { "minimax-m2",    "minimax_m2",       "MiniMaxM2ForCausalLM",      "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_experts },
    { "gpt-oss",       "gpt_oss",          "GptOssForCausalLM",         "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_gpt_oss },
    { "llama4",        "llama4_text",      "Llama4ForCausalLM",         "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_TODAY, 1, add_llama4 },
    { "lfm2",          "lfm2",             "Lfm2ForCausalLM",           "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_HYBRID, 1, add_lfm2 },
    { "mamba2",        "mamba2",           "Mamba2ForCausalLM",         "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_HYBRID, 0, add_mamba2 },
    { "granitehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM", "rms_norm_eps",     "hidden_act",
      "silu",              WORDS_HYBRID, 1, add_granitehybrid },
    { "nemotron_h",    "nemotron_h",       "NemotronHForCausalLM",      "rms_norm_eps",       "mlp_hidden_act",
      "relu2",             WORDS_HYBRID, 0, add_nemotron_h },
    { "qwen3next",     "qwen3_next",       "Qwen3NextForCausalLM",      "rms_norm_eps",       "hidden_act",
      "silu",              WORDS_HYBRID, 1, add_qwen3next },
};

/* ---- RoPE ---- */

static json_t *factors(const struct source_tensor *t)
{
    if (t->type != GGML_F32)
        return NULL;
    json_t *a = json_array();
    for (size_t i = 0; i < t->size / 4; i++) {
        float f;
        memcpy(&f, t->data + 4 * i, 4);
        json_t *v = real(f);
        if (!v || json_array_append_new(a, v) < 0) {
            json_decref(a);
            return NULL;
        }
    }
    return a;
}

/* Factors in tensors: rope_factors_short and _long (Phi 3), or rope_freqs (Llama 3). */
static int rope_factors(struct translator *t, json_t *rope, struct err *e)
{
    const struct source_tensor *both = find_tensor(t, "rope_freqs.weight");
    const struct source_tensor *small = find_tensor(t, "rope_factors_short.weight"),
                               *large = find_tensor(t, "rope_factors_long.weight");
    if (small || large)
        both = NULL;
    if (!both && !(small && large))
        return small || large ? err_set(e, ERR_FORMAT,
                                        "%s: one of rope_factors_short.weight and rope_factors_long.weight is missing",
                                        t->g->map.path) : 0;
    const struct source_tensor *pair[2] = { both ? both : small, both ? both : large };
    static const char *const names[2] = { "short_factor", "long_factor" };
    for (int i = 0; i < 2; i++) {
        json_t *f = factors(pair[i]);
        if (!f || (int64_t)json_array_size(f) != t->n_rot / 2) {
            json_decref(f);
            return err_set(e, ERR_FORMAT, "%s: tensor %s: expected %" PRId64 " finite f32 factors", t->g->map.path,
                           pair[i]->name, t->n_rot / 2);
        }
        json_object_set_new(rope, names[i], f);
    }
    int64_t original;
    if (key_int(t, "rope.scaling.original_context_length", t->context, &original, e) < 0)
        return -1;
    json_object_set_new(rope, "rope_type", json_string("longrope"));
    json_object_set_new(rope, "original_max_position_embeddings", json_integer(original));
    json_object_set_new(rope, "attention_factor", real(both ? 1 : key_float(t, "rope.scaling.attn_factor", 1)));
    return 0;
}

static json_t *rope_parameters(struct translator *t, struct err *e)
{
    json_t *rope = json_pack("{s:s, s:o}", "rope_type", "default", "rope_theta",
                             real(key_float(t, "rope.freq_base", 10000)));
    char k[160];
    const struct gguf_str *type = gguf_str(t->g, full_key(t, "rope.scaling.type", k, sizeof k));
    double factor = key_float(t, "rope.scaling.factor", key_float(t, "rope.scale_linear", 1));
    if (type && type->n == 4 && memcmp(type->s, "yarn", 4) == 0) {
        int64_t original;
        double attn = key_float(t, "rope.scaling.attn_factor", 1);
        if (key_int(t, "rope.scaling.original_context_length", t->context, &original, e) < 0)
            goto fail;
        json_object_set_new(rope, "rope_type", json_string("yarn"));
        json_object_set_new(rope, "factor", real(factor));
        json_object_set_new(rope, "original_max_position_embeddings", json_integer(original));
        json_object_set_new(rope, "beta_fast", real(key_float(t, "rope.scaling.yarn_beta_fast", 32)));
        json_object_set_new(rope, "beta_slow", real(key_float(t, "rope.scaling.yarn_beta_slow", 1)));
        if (attn != 1 && factor > 0)
            json_object_set_new(rope, "attention_factor", real(attn * (0.1 * log(factor) + 1)));
    } else if (factor != 1 && factor > 0 && !(type && type->n == 4 && memcmp(type->s, "none", 4) == 0)) {
        json_object_set_new(rope, "rope_type", json_string("linear"));
        json_object_set_new(rope, "factor", real(factor));
    }
    if (rope_factors(t, rope, e) < 0)
        goto fail;
    if (strcmp(t->arch, "gemma3") == 0)
        rope = json_pack("{s:o, s:{s:s, s:o}}", "full_attention", rope, "sliding_attention", "rope_type", "default",
                         "rope_theta", real(key_float(t, "rope.freq_base_swa", 10000)));
    return rope;
fail:
    json_decref(rope);
    return NULL;
}

/* n_rot of head_dim as a share that gives n_rot again when multiplied and cut. */
static double share(int64_t n_rot, int64_t head_dim)
{
    double f = (double)n_rot / (double)head_dim;
    while ((int64_t)(f * (double)head_dim) < n_rot)
        f = nextafter(f, 2);
    return f;
}

static void write_sizes(struct translator *t, const struct arch *a)
{
    if (a->words == WORDS_GPT2) {
        set_int(t, "n_embd", t->hidden);
        set_int(t, "n_head", t->heads);
        set_int(t, "n_layer", t->n_layers);
        set_int(t, "n_inner", t->ff);
        set_int(t, "n_positions", t->context);
    } else if (a->words == WORDS_TODAY || a->words == WORDS_HYBRID) {
        set_int(t, "hidden_size", t->hidden);
        set_int(t, "intermediate_size", t->ff);
        set_int(t, "num_hidden_layers", t->n_layers);
        set_int(t, "num_attention_heads", t->heads);
        set_int(t, "num_key_value_heads", t->kv_heads);
        set_int(t, "head_dim", t->head_dim);
        set_int(t, "max_position_embeddings", t->context);
    }
    if (a->eps)
        set_real(t, a->eps, key_float(t, strncmp(a->eps, "rms", 3) == 0 ? "attention.layer_norm_rms_epsilon"
                                                                        : "attention.layer_norm_epsilon", 1e-5));
    if (a->act_key)
        set_string(t, a->act_key, a->act);
}

static int read_sizes(struct translator *t, struct err *e)
{
    int64_t value_length;
    if (key_int(t, "block_count", -1, &t->n_layers, e) < 0 || key_int(t, "embedding_length", -1, &t->hidden, e) < 0 ||
        key_int(t, "attention.head_count", -1, &t->heads, e) < 0)
        return -1;
    if (t->hybrid && t->heads == 0)
        t->heads = 1;                       /* mamba2 has none */
    if (t->n_layers < 1 || t->hidden < 1 || t->heads < 1)
        return err_set(e, ERR_FORMAT, "%s: keys %s.block_count, embedding_length, attention.head_count: %" PRId64
                       ", %" PRId64 ", %" PRId64 ", expected at least 1", t->g->map.path, t->arch, t->n_layers,
                       t->hidden, t->heads);
    if (t->n_layers > 65536)
        return err_set(e, ERR_FORMAT, "%s: key %s.block_count: %" PRId64 " layers", t->g->map.path, t->arch,
                       t->n_layers);
    int64_t even = t->hidden / t->heads;
    if (key_most(t, "attention.head_count_kv", t->heads, &t->kv_heads, e) < 0 ||
        key_int(t, "attention.key_length", even, &t->head_dim, e) < 0 ||
        key_int(t, "attention.value_length", t->head_dim, &value_length, e) < 0 ||
        key_int(t, "rope.dimension_count", t->head_dim, &t->n_rot, e) < 0 ||
        key_most(t, "feed_forward_length", 4 * t->hidden, &t->ff, e) < 0 ||
        key_int(t, "context_length", 2048, &t->context, e) < 0)
        return -1;
    if (value_length != t->head_dim && has_key(t, "attention.key_length") && !has_key(t, "attention.kv_lora_rank"))
        return err_set(e, ERR_UNSUPPORTED, "%s: keys have %" PRId64 " values a head, values %" PRId64, t->g->map.path,
                       t->head_dim, value_length);
    if (t->head_dim < 1 || t->n_rot < 1 || t->n_rot > t->head_dim)
        return err_set(e, ERR_FORMAT, "%s: key %s.rope.dimension_count: %" PRId64 ", expected 1 to head_dim %" PRId64,
                       t->g->map.path, t->arch, t->n_rot, t->head_dim);
    return 0;
}

static void write_vocabulary(struct translator *t)
{
    static const char *const ids[][2] = { { "bos_token_id", "tokenizer.ggml.bos_token_id" },
                                          { "eos_token_id", "tokenizer.ggml.eos_token_id" },
                                          { "pad_token_id", "tokenizer.ggml.padding_token_id" } };
    const struct source_tensor *embed = find_tensor(t, "token_embd.weight");
    const struct gguf_kv *tokens = gguf_find(t->g, "tokenizer.ggml.tokens");
    int64_t n;
    if (embed && embed->n_dims == 2)
        set_int(t, "vocab_size", embed->dim[0]);
    else if (key_int(t, "vocab_size", tokens ? (int64_t)tokens->n : 0, &n, NULL) == 0 && n > 0)
        set_int(t, "vocab_size", n);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int64_t id = gguf_int(t->g, ids[i][1], -1);
        if (id >= 0 && id <= INT32_MAX)
            set_int(t, ids[i][0], id);
    }
    set_bool(t, "tie_word_embeddings", !find_tensor(t, "output.weight"));
}

static int translate(struct translator *t, struct err *e)
{
    const struct arch *a = NULL;
    const char *name = strcmp(t->arch, "llama") == 0 && key_float(t, "expert_count", 0) > 0 ? "llama+experts" : t->arch;     /* mixtral */
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i].gguf, name) == 0)
            a = &archs[i];
    static const struct arch unknown = { .eps = "rms_norm_eps", .words = WORDS_TODAY, .rope = 1 };
    set_string(t, "model_type", a ? a->model_type : t->arch);         /* an unknown one is shown, and refused by name when it shall run */
    a = a ? a : &unknown;
    t->hybrid = a->words == WORDS_HYBRID;
    if (a->class_name)
        json_object_set_new(t->out, "architectures", json_pack("[s]", a->class_name));
    set_bool(t, "zse_gguf", 1);
    if (read_sizes(t, e) < 0)
        return -1;
    write_sizes(t, a);
    write_vocabulary(t);
    if (has_key(t, "expert_count") && key_float(t, "expert_count", 0) > 0)
        set_int(t, "num_local_experts", (int64_t)key_float(t, "expert_count", 0));
    if (a->rope) {
        json_t *rope = rope_parameters(t, e);
        if (!rope)
            return -1;
        json_object_set_new(t->out, "rope_parameters", rope);
        if (t->n_rot != t->head_dim)
            json_object_set_new(t->out, "partial_rotary_factor", json_real(share(t->n_rot, t->head_dim)));
    }
    if (a->add)
        a->add(t);
    return 0;
}

/* JSON has no NaN and no infinity, and no hyper-parameter may be one. */
static int check_finite(const struct gguf *g, struct err *e)
{
    for (int i = 0; i < g->n_kv; i++)
        if ((g->kv[i].type == GGUF_F32 || g->kv[i].type == GGUF_F64) && !isfinite(gguf_array_float(&g->kv[i], 0)))
            return err_set(e, ERR_FORMAT, "%s: offset %" PRIu64 ": key %s: is not a finite number", g->map.path,
                           g->kv[i].offset, g->kv[i].key);
    return 0;
}

json_t *gguf_config(const struct gguf *g, struct err *e)
{
    struct translator t = { .g = g, .out = json_object() };
    const struct gguf_str *arch = gguf_str(g, "general.architecture");
    if (!t.out) {
        err_nomem(e, "config");
        return NULL;
    }
    if (!arch || arch->n == 0 || arch->n >= sizeof t.arch || memchr(arch->s, 0, arch->n) ||
        utf8_valid(arch->s, arch->n) != arch->n) {
        err_set(e, ERR_FORMAT, "%s: key general.architecture: expected a name", g->map.path);
        goto fail;
    }
    memcpy(t.arch, arch->s, arch->n);
    if (check_finite(g, e) == 0 && translate(&t, e) == 0)
        return t.out;
fail:
    json_decref(t.out);
    return NULL;
}

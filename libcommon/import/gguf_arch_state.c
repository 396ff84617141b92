/* gguf_arch_state.c - the fields of architectures of GGUF files with a recurrent state. */
#include "libcommon/import/gguf_arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Write "layer_types" or a similar field.  attention, state and mlp are the names of layers with
 * attention, of layers with a state, and of layers with only an MLP (NULL: there are none). */
static void set_layer_kinds(struct gguf_translator *t, const char *key, const char *attention, const char *state,
                            const char *mlp)
{
    json_t *kinds = json_array();
    for (int64_t i = 0; i < t->n_layers; i++) {
        const int attends = gguf_key_at(t, "attention.head_count_kv", i, 0) > 0, feeds = mlp &&
            gguf_key_at(t, "feed_forward_length", i, 0) > 0;
        json_array_append_new(kinds, json_string(attends ? attention : feeds ? mlp : state));
    }
    json_object_set_new(t->out, key, kinds);
}

void gguf_add_lfm2(struct gguf_translator *t)
{
    gguf_copy_int(t, "shortconv.l_cache", "conv_L_cache");
    gguf_set_bool(t, "block_auto_adjust_ff_dim", 0);
    gguf_set_int(t, "block_ff_dim", t->ff);
    set_layer_kinds(t, "layer_types", "full_attention", "conv", NULL);
}

void gguf_add_lfm2moe(struct gguf_translator *t)
{
    gguf_add_experts(t);
    gguf_copy_int(t, "shortconv.l_cache", "conv_L_cache");
    gguf_copy_int(t, "leading_dense_block_count", "num_dense_layers");
    gguf_set_real(t, "routed_scaling_factor", gguf_key_float(t, "expert_weights_scale", 1));
    gguf_set_bool(t, "norm_topk_prob", gguf_key_float(t, "expert_weights_norm", 1) != 0);
    set_layer_kinds(t, "layer_types", "full_attention", "conv", NULL);
}

/* Write Mamba2's sizes under an architecture's names. */
static void set_mamba(struct gguf_translator *t, const char *heads_key, const char *head_dim_key,
                      const char *groups_key,
                      const char *state_key, const char *kernel_key)
{
    int64_t inner = 0, heads = 0;
    gguf_key_int(t, "ssm.inner_size", 0, &inner, NULL);
    gguf_key_int(t, "ssm.time_step_rank", 0, &heads, NULL);
    gguf_set_int(t, heads_key, heads);
    gguf_set_int(t, head_dim_key, heads > 0 ? inner / heads : 0);
    gguf_copy_int(t, "ssm.group_count", groups_key);
    gguf_copy_int(t, "ssm.state_size", state_key);
    gguf_copy_int(t, "ssm.conv_kernel", kernel_key);
}

void gguf_add_mamba2(struct gguf_translator *t)
{
    set_mamba(t, "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel");
    gguf_set_real(t, "expand", gguf_key_float(t, "ssm.inner_size", 0) / (double)t->hidden);
    gguf_set_bool(t, "use_conv_bias", gguf_any_layer_has(t, ".ssm_conv1d.bias"));
    static const char *const none[] = { "num_attention_heads", "num_key_value_heads", "intermediate_size",
                                        "max_position_embeddings" };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        json_object_del(t->out, none[i]);
}

void gguf_add_granitehybrid(struct gguf_translator *t)
{
    int64_t shared = t->ff;
    gguf_add_granite(t);
    json_object_del(t->out, "mlp_bias");
    gguf_copy_int(t, "expert_used_count", "num_experts_per_tok");
    if (!(gguf_key_float(t, "expert_count", 0) > 0))
        gguf_set_int(t, "num_local_experts", 0);
    gguf_key_int(t, "expert_shared_feed_forward_length", t->ff, &shared, NULL);
    gguf_set_int(t, "shared_intermediate_size", shared);
    set_mamba(t, "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv");
    gguf_set_real(t, "mamba_expand", gguf_key_float(t, "ssm.inner_size", 0) / (double)t->hidden);
    gguf_set_bool(t, "mamba_conv_bias", gguf_any_layer_has(t, ".ssm_conv1d.bias"));
    set_layer_kinds(t, "layer_types", "attention", "mamba", NULL);
    /* granite's files say with this key whether attention uses RoPE */
    const int rotates = gguf_key_float(t, "rope.scaling.finetuned", 1) != 0;
    gguf_set_string(t, "position_embedding_type", rotates ? "rope" : "nope");
    if (!rotates)
        json_object_del(t->out, "rope_parameters");
}

/* Write the period and the offset of the marked layers, which are those with attention or those
 * with experts. */
static void set_period(struct gguf_translator *t, const char *period_key, const char *offset_key, const char *marks)
{
    const char *first = memchr(marks, 1, (size_t)t->n_layers);
    const int64_t offset = first ? first - marks : t->n_layers;
    const char *next = first ? memchr(first + 1, 1, (size_t)(t->n_layers - offset - 1)) : NULL;
    gguf_set_int(t, period_key, next ? next - first : t->n_layers);
    gguf_set_int(t, offset_key, offset);
}

void gguf_add_jamba(struct gguf_translator *t)
{
    char *attends = calloc(2, (size_t)t->n_layers), *routes = attends ? attends + t->n_layers : NULL;
    gguf_copy_int(t, "expert_used_count", "num_experts_per_tok");
    gguf_copy_int(t, "ssm.conv_kernel", "mamba_d_conv");
    gguf_copy_int(t, "ssm.state_size", "mamba_d_state");
    gguf_copy_int(t, "ssm.time_step_rank", "mamba_dt_rank");
    gguf_set_real(t, "mamba_expand", gguf_key_float(t, "ssm.inner_size", 0) / (double)t->hidden);
    gguf_set_bool(t, "mamba_conv_bias", gguf_any_layer_has(t, ".ssm_conv1d.bias"));
    gguf_set_bool(t, "mamba_proj_bias", gguf_any_layer_has(t, ".ssm_in.bias"));
    for (int64_t i = 0; attends && i < t->n_layers; i++) {
        char name[96];
        snprintf(name, sizeof name, "blk.%lld.ffn_gate_inp.weight", (long long)i);
        attends[i] = gguf_key_at(t, "attention.head_count_kv", i, 0) > 0;
        routes[i] = gguf_find_tensor(t, name) != NULL;
    }
    if (attends) {
        set_period(t, "attn_layer_period", "attn_layer_offset", attends);
        set_period(t, "expert_layer_period", "expert_layer_offset", routes);
    }
    free(attends);
}

/* The converter has multiplied the weights by Falcon-H1's factors, so no fields are written for
 * them. */
void gguf_add_falcon_h1(struct gguf_translator *t)
{
    set_mamba(t, "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv");
    gguf_copy_int(t, "ssm.inner_size", "mamba_d_ssm");
    gguf_set_bool(t, "mamba_rms_norm", gguf_any_layer_has(t, ".ssm_norm.weight"));
    gguf_set_bool(t, "mamba_norm_before_gate", 0);
    gguf_set_bool(t, "mamba_conv_bias", gguf_any_layer_has(t, ".ssm_conv1d.bias"));
    gguf_set_bool(t, "mamba_proj_bias", gguf_any_layer_has(t, ".ssm_in.bias"));
    gguf_set_bool(t, "projectors_bias", gguf_any_layer_has(t, ".ssm_out.bias"));
    gguf_add_biases(t);
}

void gguf_add_nemotron_h(struct gguf_translator *t)
{
    set_mamba(t, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel");
    gguf_set_bool(t, "use_conv_bias", gguf_any_layer_has(t, ".ssm_conv1d.bias"));
    set_layer_kinds(t, "layers_block_type", "attention", "mamba", "mlp");
    gguf_add_biases(t);
}

void gguf_add_nemotron_h_moe(struct gguf_translator *t)
{
    json_t *kinds;
    t->n_layers = gguf_add_extra_layers(t);
    gguf_add_nemotron_h(t);
    kinds = json_object_get(t->out, "layers_block_type");
    for (int64_t i = 0; i < t->n_layers; i++)
        if (gguf_layer_has(t, i, "ffn_gate_inp.weight"))
            json_array_set_new(kinds, (size_t)i, json_string("moe"));
    gguf_add_experts(t);
    gguf_copy_int(t, "expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size");
    gguf_copy_int(t, "moe_latent_size", "moe_latent_size");
    gguf_add_router(t, 1);
}

/* Write the kinds of layers.  every: without keys, every how many layers attend. */
static void set_recurrent_kinds(struct gguf_translator *t, int64_t every)
{
    char k[160];
    const struct gguf_kv *states = gguf_find(t->g, gguf_full_key(t, "attention.recurrent_layers", k, sizeof k));
    gguf_key_int(t, "full_attention_interval", every, &every, NULL);
    json_t *kinds = json_array();
    for (int64_t i = 0, n = gguf_add_extra_layers(t); i < n; i++) {
        const int attends = states && states->type == GGUF_ARR ? !gguf_key_at(t, "attention.recurrent_layers", i, 0)
                                                               : every > 0 && (i + 1) % every == 0;
        json_array_append_new(kinds, json_string(attends ? "full_attention" : "linear_attention"));
    }
    json_object_set_new(t->out, "layer_types", kinds);
}

static void add_delta_layers(struct gguf_translator *t)
{
    gguf_set_bool(t, "attention_bias", gguf_any_attn_bias(t));
    set_mamba(t, "linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads", "linear_key_head_dim",
              "linear_conv_kernel_dim");
    set_recurrent_kinds(t, 4);
}

/* The one factor of the file is that of all three alphas; the betas are 1. */
void gguf_add_minimax(struct gguf_translator *t)
{
    static const char *const alphas[] = { "linear_attn_alpha_factor", "full_attn_alpha_factor", "mlp_alpha_factor" };
    gguf_copy_int(t, "expert_used_count", "num_experts_per_tok");
    for (size_t i = 0; i < sizeof alphas / sizeof *alphas; i++)
        gguf_set_real(t, alphas[i], gguf_key_float(t, "residual_scale", 1));
    set_recurrent_kinds(t, 8);
}

void gguf_add_qwen35(struct gguf_translator *t) { add_delta_layers(t); }

void gguf_add_qwen35moe(struct gguf_translator *t)
{
    gguf_add_experts(t);
    gguf_copy_int(t, "expert_shared_feed_forward_length", "shared_expert_intermediate_size");
    add_delta_layers(t);
}

void gguf_add_qwen3next(struct gguf_translator *t)
{
    gguf_add_qwen35moe(t);
    gguf_set_bool(t, "zse_z_apart", gguf_any_layer_has(t, ".attn_gate.weight"));
}

/* Write the sizes of the indexer of the layers with attention.  The file has a length of runs for
 * each layer, config.json one for all. */
static void set_blocks(struct gguf_translator *t)
{
    static const char key[] = "attention.compress_ratios";
    const json_t *kinds = json_object_get(t->out, "layer_types");
    int64_t block = 0;
    for (int64_t i = 0; i < t->n_layers; i++) {
        const char *kind = json_string_value(json_array_get(kinds, (size_t)i));
        const int64_t found = gguf_key_at(t, key, i, 0), attends = kind && strcmp(kind, "full_attention") == 0;
        block = attends && !block ? found : block;
        if (found != (attends ? block : 0) || (attends && found < 1))
            gguf_fail(t, ERR_UNSUPPORTED, "key %s.%s: %lld in layer %lld, expected %s", t->arch, key, (long long)found,
                      (long long)i, attends ? "one number from 1 on for all layers of attention" : "0 without attention");
    }
    gguf_copy_int(t, "attention.indexer.head_count", "indexer_n_heads");
    gguf_copy_int(t, "attention.indexer.key_length", "indexer_head_dim");
    gguf_copy_int(t, "attention.indexer.top_k", "indexer_budget");
    gguf_set_int(t, "indexer_compress_ratio", block);
}

/* Copy an array of n whole numbers. */
static void copy_list(struct gguf_translator *t, const char *key, int64_t n, const char *name)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, gguf_full_key(t, key, k, sizeof k));
    json_t *list = json_array();
    if (!kv || kv->type != GGUF_ARR || kv->elem == GGUF_STR || kv->n != (uint64_t)n)
        gguf_fail(t, ERR_FORMAT, "key %s: expected %lld numbers", k, (long long)n);
    else
        for (uint64_t i = 0; i < kv->n; i++)
            json_array_append_new(list, json_integer(gguf_array_int(kv, i)));
    json_object_set_new(t->out, name, list);
}

/* Refuse a table in which the rows of a head do not follow those of the head before. */
static void check_offsets(struct gguf_translator *t, int64_t heads)
{
    char k[160];
    const struct gguf_kv *kv = gguf_find(t->g, gguf_full_key(t, "ple.head_offsets", k, sizeof k));
    const json_t *rows = json_object_get(t->out, "zse_ngram_rows");
    int64_t sum = 0;
    if (!kv || kv->type != GGUF_ARR || kv->elem == GGUF_STR || kv->n != (uint64_t)heads)
        gguf_fail(t, ERR_FORMAT, "key %s: expected %lld numbers", k, (long long)heads);
    else
        for (uint64_t i = 0; i < kv->n; i++) {
            const int64_t n = json_integer_value(json_array_get(rows, (size_t)i));
            if (gguf_array_int(kv, i) != sum)
                gguf_fail(t, ERR_UNSUPPORTED, "key %s: head %llu starts at row %lld, expected %lld", k,
                          (unsigned long long)i, (long long)gguf_array_int(kv, i), (long long)sum);
            sum += n > 0 && n <= INT32_MAX ? n : 0;
        }
}

/* Write the n-gram embeddings.  The file has one layer with them, numbered from 0, and the
 * parameters of the hashes, which a folder derives from a seed. */
static void set_ngrams(struct gguf_translator *t)
{
    char k[160];
    const struct gguf_kv *layers = gguf_find(t->g, gguf_full_key(t, "ple.layers", k, sizeof k));
    const struct source_tensor *table = gguf_find_tensor(t, "per_layer_token_embd.weight");
    int64_t layer = 0, size = 0, heads = 0, dim = 0;
    if (!layers)
        return;
    if (layers->n != 1)
        gguf_fail(t, ERR_UNSUPPORTED, "key %s: %llu layers, expected 1", k, (unsigned long long)layers->n);
    if (layers->n != 1 || gguf_key_int(t, "ple.layers", -1, &layer, NULL) < 0 ||
        gguf_key_int(t, "ple.ngram_size", -1, &size, NULL) < 0 ||
        gguf_key_int(t, "ple.heads_per_ngram", -1, &heads, NULL) < 0 ||
        gguf_key_int(t, "embedding_length_per_layer_input", -1, &dim, NULL) < 0)
        return;
    gguf_set_int(t, "ngram_size", size);
    gguf_set_int(t, "heads_per_ngram", heads);
    heads *= size - 1;
    json_object_set_new(t->out, "ple_layer_ids", json_pack("[I]", (json_int_t)(layer + 1)));
    gguf_set_int(t, "ple_embed_dim", heads <= INT32_MAX && dim * heads <= INT32_MAX ? dim * heads : -1);
    gguf_copy_int(t, "ple.conv_kernel", "ple_conv_kernel_size");
    gguf_copy_int(t, "ple.eos_token_id", "zse_ngram_end");
    copy_list(t, "ple.layer_multipliers", size, "zse_ngram_factors");
    copy_list(t, "ple.head_vocab_sizes", heads, "zse_ngram_rows");
    check_offsets(t, heads);
    json_object_set_new(t->out, "zse_ngram_all_rows",
                        json_pack("[I]", (json_int_t)(table && table->n_dims == 2 ? table->dim[0] : 0)));
}

/* Qwen4 preview (Qwen3.8-Flash-Next) */
void gguf_add_qwen4exp(struct gguf_translator *t)
{
    gguf_add_qwen35moe(t);
    t->n_layers = gguf_add_extra_layers(t);
    gguf_set_string(t, "output_gate_type", "sigmoid");
    gguf_copy_int(t, "hyper_connection.count", "hc_count");
    gguf_copy_int(t, "hyper_connection.low_rank", "hc_lowrank");
    set_blocks(t);
    set_ngrams(t);
}

/* Layers with Kimi delta attention have 0 KV heads in the file. */
static void add_kimi_delta(struct gguf_translator *t)
{
    gguf_check_head(t);
    t->n_layers = gguf_add_extra_layers(t);
    gguf_add_latent(t);
    gguf_add_experts(t);
    gguf_copy_int(t, "leading_dense_block_count", "first_k_dense_replace");
    gguf_copy_int(t, "expert_shared_count", "num_shared_experts");
    gguf_copy_int(t, "expert_group_count", "num_expert_group");
    gguf_copy_int(t, "expert_group_used_count", "topk_group");
    gguf_set_real(t, "routed_scaling_factor", gguf_key_float(t, "expert_weights_scale", 1));
    /* kimi-linear has no key for this */
    gguf_set_bool(t, "moe_renormalize", gguf_key_float(t, "expert_weights_norm", 1) != 0);
    gguf_set_int(t, "linear_num_heads", t->heads);
    gguf_copy_int(t, "kda.head_dim", "linear_head_dim");
    gguf_set_int(t, "model_max_length", t->context);
    set_layer_kinds(t, "layer_types", "full_attention", "linear_attention", NULL);
}

void gguf_add_kimi_linear(struct gguf_translator *t)
{
    add_kimi_delta(t);
    gguf_set_string(t, "moe_router_activation_func", "sigmoid");
    gguf_copy_int(t, "ssm.conv_kernel", "linear_conv_kernel_dim");
}

/* Refuse limits on the activations of experts. */
static void no_limit(struct gguf_translator *t, const char *key)
{
    const double limit = gguf_key_float(t, key, 0);
    if (limit != 0)
        gguf_fail(t, ERR_UNSUPPORTED, "key %s.%s: a limit of %g is not supported, expected 0", t->arch, key, limit);
}

/* Ling 3.0 */
void gguf_add_bailing(struct gguf_translator *t)
{
    int64_t width = 0, shared = 0;
    add_kimi_delta(t);
    gguf_copy_int(t, "ssm.conv_kernel", "short_conv_kernel_size");
    gguf_set_bool(t, "kda_safe_gate", gguf_key_float(t, "kda.safe_gate", 1) != 0);
    gguf_set_real(t, "kda_lower_bound", gguf_key_float(t, "kda.gate_lower_bound", -5));
    no_limit(t, "swiglu_clamp_exp");
    no_limit(t, "swiglu_clamp_shexp");
    gguf_key_int(t, "expert_feed_forward_length", 0, &width, NULL);
    if (gguf_key_int(t, "expert_shared_feed_forward_length", width, &shared, NULL) == 0 && shared != width)
        gguf_fail(t, ERR_UNSUPPORTED, "key %s.expert_shared_feed_forward_length: %lld is not supported, expected %lld",
                  t->arch, (long long)shared, (long long)width);
}

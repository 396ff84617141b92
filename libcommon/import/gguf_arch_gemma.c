/* gguf_arch_gemma.c - the fields of Gemma 2, 3, 3n and 4 in GGUF files. */
#include "libcommon/import/gguf_arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"

static void softcaps(struct gguf_translator *t)
{
    if (gguf_has_key(t, "attn_logit_softcapping"))
        gguf_set_real(t, "attn_logit_softcapping", gguf_key_float(t, "attn_logit_softcapping", 50));
    if (gguf_has_key(t, "final_logit_softcapping"))
        gguf_set_real(t, "final_logit_softcapping", gguf_key_float(t, "final_logit_softcapping", 30));
}

/* The 27B models scale by hidden_size / n_heads instead of head_dim.  GGUF has no key for that, so
 * the number of layers identifies them. */
void gguf_add_gemma2(struct gguf_translator *t)
{
    gguf_window(t);
    softcaps(t);
    if (!gguf_has_key(t, "attn_logit_softcapping"))
        gguf_set_real(t, "attn_logit_softcapping", 50);
    if (!gguf_has_key(t, "final_logit_softcapping"))
        gguf_set_real(t, "final_logit_softcapping", 30);
    gguf_set_int(t, "query_pre_attn_scalar", t->n_layers == 46 ? t->hidden / t->heads : t->head_dim);
    gguf_set_layer_types(t, 2);
}

void gguf_add_gemma3(struct gguf_translator *t)
{
    gguf_window(t);
    softcaps(t);
    gguf_set_int(t, "query_pre_attn_scalar", t->n_layers == 62 ? t->hidden / t->heads : t->head_dim);
    gguf_set_layer_types(t, 6);
}

/* Write "num_kv_shared_layers" and the sizes of the per-layer embeddings. */
static void shared_kv(struct gguf_translator *t, int64_t otherwise)
{
    int64_t n = 0;
    gguf_key_int(t, "attention.shared_kv_layers", otherwise, &n, NULL);
    gguf_set_int(t, "num_kv_shared_layers", n);
}

static void layer_embeddings(struct gguf_translator *t, int64_t otherwise)
{
    const struct source_tensor *table = gguf_find_tensor(t, "per_layer_token_embd.weight");
    int64_t dim = 0;
    gguf_key_int(t, "embedding_length_per_layer_input", otherwise, &dim, NULL);
    gguf_set_int(t, "hidden_size_per_layer_input", dim);
    if (table && table->n_dims == 2)
        gguf_set_int(t, "vocab_size_per_layer_input", table->dim[0]);
}

/* The file gives the cutoff of gates as a number of standard deviations above the mean, which is
 * minus infinity in layers that cut off none; a config.json gives the fraction of gates that are
 * cut off. */
static void sparsity(struct gguf_translator *t)
{
    char k[160];
    double *scale = malloc((size_t)t->n_layers * sizeof *scale);
    if (!scale) {
        gguf_fail(t, ERR_MEMORY, "out of memory");
        return;
    }
    if (gguf_floats(t, gguf_full_key(t, "activation_sparsity_scale", k, sizeof k), -INFINITY, 5, scale) > 0) {
        json_t *shares = json_array();
        for (int64_t i = 0; i < t->n_layers; i++)
            json_array_append_new(shares, gguf_real(0.5 * erfc(-scale[i] / sqrt(2))));
        json_object_set_new(t->out, "activation_sparsity_pattern", shares);
    }
    free(scale);
}

void gguf_add_gemma3n(struct gguf_translator *t)
{
    const struct source_tensor *laurel = gguf_find_tensor(t, "blk.0.laurel_l.weight");
    json_t *widths = json_array();
    gguf_window(t);
    softcaps(t);
    gguf_set_layer_types(t, 5);
    shared_kv(t, t->n_layers > 20 ? t->n_layers - 20 : 0);          /* true of the published models */
    layer_embeddings(t, 256);
    sparsity(t);
    gguf_copy_int(t, "altup.num_inputs", "altup_num_inputs");
    gguf_copy_int(t, "altup.active_idx", "altup_active_idx");
    if (laurel && laurel->n_dims == 2)
        gguf_set_int(t, "laurel_rank", laurel->dim[0]);
    for (int64_t i = 0; i < t->n_layers; i++)
        json_array_append_new(widths, json_integer(gguf_key_at(t, "feed_forward_length", i, t->ff)));
    json_object_set_new(t->out, "intermediate_size", widths);
}

/* Write rope_type "proportional" if the file's RoPE factors are 1 for the first pairs and, for the
 * others, so large that these do not rotate.  Any other factors stay as they are. */
static void proportional(struct gguf_translator *t)
{
    json_t *all = json_object_get(t->out, "rope_parameters"), *rope = json_object_get(all, "full_attention");
    const json_t *factors = json_object_get(rope, "long_factor");
    const size_t n = json_array_size(factors);
    size_t rotated = 0;
    if (!n)
        gguf_fail(t, ERR_FORMAT, "tensor rope_freqs.weight is missing");
    if (json_object_get(rope, "factor"))
        gguf_fail(t, ERR_UNSUPPORTED, "keys %s.rope.scaling: gemma4 is only supported without a factor", t->arch);
    while (rotated < n && json_number_value(json_array_get(factors, rotated)) == 1)
        rotated++;
    for (size_t i = rotated; i < n; i++)
        if (json_number_value(json_array_get(factors, i)) < 1e29)
            return;
    if (n)
        json_object_set_new(all, "full_attention", json_pack("{s:s, s:O, s:f}", "rope_type", "proportional",
                                                             "rope_theta", json_object_get(rope, "rope_theta"),
                                                             "partial_rotary_factor",
                                                             gguf_share(2 * (int64_t)rotated, t->head_dim)));
}

/* Layers of full attention have heads of another size, and another number of KV heads. */
static void layer_heads(struct gguf_translator *t)
{
    const json_t *types = json_object_get(t->out, "layer_types");
    json_t *own = json_object();
    int64_t local = t->head_dim, rotated = 0;
    int one = 0;                                /* 1 if a layer has keys without values */
    gguf_key_int(t, "attention.key_length_swa", t->head_dim, &local, NULL);
    gguf_key_int(t, "rope.dimension_count_swa", local, &rotated, NULL);
    for (int64_t i = 0; i < t->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        char number[24];
        snprintf(number, sizeof number, "%" PRId64, i);
        json_object_set_new(own, number,
                            json_pack("{s:I, s:I}", "head_dim",
                                      (json_int_t)(type && strcmp(type, "full_attention") == 0 ? t->head_dim : local),
                                      "num_key_value_heads",
                                      (json_int_t)gguf_key_at(t, "attention.head_count_kv", i, t->kv_heads)));
        one |= gguf_layer_has(t, i, "attn_k.weight") && !gguf_layer_has(t, i, "attn_v.weight");
    }
    json_object_set_new(t->out, "per_layer_config", own);
    gguf_set_bool(t, "attention_k_eq_v", one);
    gguf_set_int(t, "head_dim", local);
    if (rotated != local)                       /* no model has this; it is refused by name */
        gguf_set_int(t, "partial_rotary_dim_of_windows", rotated);
}

void gguf_add_gemma4(struct gguf_translator *t)
{
    const int64_t width = gguf_key_at(t, "feed_forward_length", 0, t->ff);
    gguf_window(t);
    softcaps(t);
    gguf_set_layer_types(t, 6);
    proportional(t);
    layer_heads(t);
    shared_kv(t, 0);
    layer_embeddings(t, 0);
    gguf_set_int(t, "intermediate_size", width);
    gguf_set_bool(t, "use_double_wide_mlp",
                  gguf_key_at(t, "feed_forward_length", t->n_layers - 1, width) == 2 * width);
    gguf_set_bool(t, "enable_moe_block", gguf_key_float(t, "expert_count", 0) > 0);
    gguf_copy_int(t, "expert_used_count", "top_k_experts");
    gguf_copy_int(t, "expert_feed_forward_length", "moe_intermediate_size");
}

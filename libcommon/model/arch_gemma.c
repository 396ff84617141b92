/* arch_gemma.c - Gemma 3n and Gemma 4: layers with different attention heads, keys and values that
 * later layers share, per-layer embeddings, experts beside an MLP, several residual streams.
 * Sources: the configuration and modeling files of transformers 5, and config.json of the models on
 * the hub. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

enum { MOST_WIDTH = 1 << 24, MOST_VOCAB = 1 << 28, MOST_PLE = 1 << 18 };

static const struct weight_names
gemma4_names = { .embed = "embed_tokens", .final_norm = "norm", .head = "lm_head", .layer = "layers.",
                 .attn_norm = "input_layernorm", .attn_post_norm = "post_attention_layernorm",
                 .mlp_norm = "pre_feedforward_layernorm", .mlp_post_norm = "post_feedforward_layernorm",
                 .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.o_proj",
                 .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm", .gate = "mlp.gate_proj",
                 .up = "mlp.up_proj", .down = "mlp.down_proj", .router = "router.proj",
                 .experts_form = EXPERTS_FUSED_BARE, .experts = "experts.", .expert_gate = "gate_up_proj",
                 .expert_down = "down_proj", .router_scale = "router.scale", .expert_scale = "router.per_expert_scale",
                 .dense_post_norm = "post_feedforward_layernorm_1", .expert_norm = "pre_feedforward_layernorm_2",
                 .expert_post_norm = "post_feedforward_layernorm_2", .ple_embed = "embed_tokens_per_layer",
                 .ple_in = "per_layer_model_projection", .ple_in_norm = "per_layer_projection_norm",
                 .ple_gate = "per_layer_input_gate", .ple_up = "per_layer_projection",
                 .ple_norm = "post_per_layer_input_norm", .layer_scale = "layer_scalar" };

static const struct weight_names
gemma3n_names = { .embed = "embed_tokens", .final_norm = "norm", .head = "lm_head", .layer = "layers.",
                  .attn_norm = "input_layernorm", .attn_post_norm = "post_attention_layernorm",
                  .mlp_norm = "pre_feedforward_layernorm", .mlp_post_norm = "post_feedforward_layernorm",
                  .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.o_proj",
                  .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm", .gate = "mlp.gate_proj",
                  .up = "mlp.up_proj", .down = "mlp.down_proj", .ple_embed = "embed_tokens_per_layer",
                  .ple_in = "per_layer_model_projection", .ple_in_norm = "per_layer_projection_norm",
                  .ple_gate = "per_layer_input_gate", .ple_up = "per_layer_projection",
                  .ple_norm = "post_per_layer_input_norm", .altup_in = "altup_projections.",
                  .altup_out = "altup_unembed_projections.", .altup_router = "altup.modality_router.weight",
                  .altup_norm = "altup.router_norm", .altup_predict = "altup.prediction_coefs.weight",
                  .altup_correct = "altup.correction_coefs.weight", .altup_scale = "altup.correct_output_scale",
                  .laurel_in = "laurel.linear_left", .laurel_out = "laurel.linear_right",
                  .laurel_norm = "laurel.post_laurel_norm" };

/* ---- keys ---- */

/* Allocate an array with one number per layer, all set to `value`. */
static int *numbers(struct parse *p, const struct config *c, int value)
{
    int *n = malloc((size_t)c->n_layers * sizeof *n);
    for (int i = 0; n && i < c->n_layers; i++)
        n[i] = value;
    if (!n) {
        err_nomem(p->e, "config");
        p->bad = 1;
    }
    return n;
}

/* Read the sizes of one layer from "per_layer_config". */
static void layer_sizes(struct parse *p, struct config *c, int layer, const json_t *json)
{
    static const char *const none[] = { NULL };
    char where[64];
    snprintf(where, sizeof where, "config.json: per_layer_config.%d", layer);
    struct parse q = { .json = json, .seen = json_object(), .where = where, .e = p->e };
    if (!q.seen) {
        err_nomem(p->e, "config");
        p->bad = 1;
        return;
    }
    c->head_dims[layer] = (int)parse_int(&q, "head_dim", 1, MOST_WIDTH, c->head_dims[layer]);
    c->kv_heads[layer] = (int)parse_int(&q, "num_key_value_heads", 1, MOST_WIDTH, c->kv_heads[layer]);
    if (!q.bad)
        parse_leftovers(&q, none);
    p->bad |= q.bad;
    json_decref(q.seen);
}

/* Read the size and number of heads of the layers of full attention, which differ from those of the
 * other layers; c->head_dim and c->n_kv_heads become the maxima. */
static void heads_parse(struct parse *p, struct config *c, int global_dim)
{
    const json_t *own = parse_find(p, "per_layer_config", NULL);
    const int dim = (int)parse_int(p, "global_head_dim", 1, MOST_WIDTH, own ? c->head_dim : global_dim),
              heads = (int)parse_int(p, "num_global_key_value_heads", 1, MOST_WIDTH, c->n_kv_heads);
    c->head_dims = numbers(p, c, c->head_dim);
    c->kv_heads = numbers(p, c, c->n_kv_heads);
    for (int i = 0; i < c->n_layers && !p->bad; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        if (own && js_get(own, key))
            layer_sizes(p, c, i, js_get(own, key));
        if (!own && !c->window[i]) {
            c->head_dims[i] = dim;
            c->kv_heads[i] = c->k_is_v ? heads : c->n_kv_heads;
        }
        if (p->bad)
            return;
        if (c->n_heads % c->kv_heads[i] || c->head_dims[i] % 2)
            parse_fail(p, ERR_SHAPE, "layer %d: %d heads of %d, %d of them with keys: does not fit", i, c->n_heads,
                       c->head_dims[i], c->kv_heads[i]);
        c->head_dim = c->head_dims[i] > c->head_dim ? c->head_dims[i] : c->head_dim;
        c->n_kv_heads = c->kv_heads[i] > c->n_kv_heads ? c->kv_heads[i] : c->n_kv_heads;
    }
}

/* Find the layer whose keys and values each layer reads.  Each of the last num_kv_shared_layers
 * layers reads those of the last layer of its type that is not one of these. */
static void sharing_parse(struct parse *p, struct config *c, int absent)
{
    const int n = (int)parse_int(p, "num_kv_shared_layers", 0, c->n_layers - 1, absent), first = c->n_layers - n;
    if (!n || p->bad)
        return;
    c->kv_from = numbers(p, c, 0);
    for (int i = 0; i < c->n_layers && !p->bad; i++) {
        int from = i < first ? i : first - 1;
        while (i >= first && from >= 0 && (c->window[from] != c->window[i] ||
                                           config_head_dim(c, from) != config_head_dim(c, i)))
            from--;
        if (from < 0)
            parse_fail(p, ERR_SHAPE, "num_kv_shared_layers %d: layer %d finds no earlier layer of its type", n, i);
        else
            c->kv_from[i] = from;
    }
}

static void ple_parse(struct parse *p, struct config *c)
{
    c->ple_dim = (int)parse_int(p, "hidden_size_per_layer_input", 0, MOST_WIDTH,
                                json_object_get(p->json, "hidden_size_per_layer_input") ? 0 : 256);
    c->ple_vocab = (int)parse_int(p, "vocab_size_per_layer_input", 1, MOST_VOCAB, 262144);
    if ((int64_t)c->n_layers * c->ple_dim > MOST_PLE)
        parse_fail(p, ERR_SHAPE, "hidden_size_per_layer_input %d in %d layers, expected a product of at most %d",
                   c->ple_dim, c->n_layers, MOST_PLE);
}

static void windows_parse(struct parse *p, struct config *c, int absent, int period)
{
    const int window = window_parse(p, absent);
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = (i + 1) % period && i + 1 < c->n_layers ? window : 0;
    layer_types_parse(p, c, window);
}

/* Read the keys that Gemma 3n and 4 share. */
static void gemma_parse(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    c->embed_scale = (float)sqrt((double)c->hidden_size);
    c->attn_scale = 1;
    c->v_norm = 1;
    c->final_softcap = (float)parse_real(p, "final_logit_softcapping", 0);
}

static void more_gemma4(struct parse *p, struct config *c)
{
    gemma_parse(p, c);
    windows_parse(p, c, 512, 6);
    const char *both_ways = parse_string(p, "use_bidirectional_attention", "vision");
    if (strcmp(both_ways, "vision") != 0)           /* "vision": only within images */
        parse_fail(p, ERR_UNSUPPORTED, "use_bidirectional_attention \"%.40s\" is not supported", both_ways);
    c->k_is_v = parse_bool(p, "attention_k_eq_v", 0);
    heads_parse(p, c, 512);
    sharing_parse(p, c, 0);
    if (strcmp(c->arch, "gemma4_text") == 0)
        ple_parse(p, c);
    const int wide = parse_bool(p, "use_double_wide_mlp", 0);
    if (wide && c->kv_from && !p->bad && (c->mlp_sizes = numbers(p, c, c->intermediate_size)))
        for (int i = 0; i < c->n_layers; i++)
            c->mlp_sizes[i] *= config_shares_kv(c, i) ? 2 : 1;
    if (parse_bool(p, "enable_moe_block", 0)) {
        const int top_k = (int)parse_int(p, "top_k_experts", 1, 65536, 8);
        experts_parse(p, c, 128, top_k, 704);
        c->moe.beside = c->moe.normalize = 1;
    }
    parse_find(p, "num_experts|top_k_experts|moe_intermediate_size", NULL);
}

/* Quantile of the standard normal distribution. */
static double normal_quantile(double probability)
{
    double low = -40, high = 40;
    for (int i = 0; i < 200; i++) {
        const double middle = (low + high) / 2;
        *(0.5 * erfc(-middle / sqrt(2)) < probability ? &low : &high) = middle;
    }
    return (low + high) / 2;
}

/* Read the fraction of gates that a layer cuts off: one number for all layers, or one per layer. */
static void sparsity_parse(struct parse *p, struct config *c)
{
    const json_t *list = parse_find(p, "activation_sparsity_pattern", NULL);
    if (json_is_array(list) && json_array_size(list) < (size_t)c->n_layers)
        parse_fail(p, ERR_FORMAT, "activation_sparsity_pattern: expected num_hidden_layers = %d numbers", c->n_layers);
    if (!p->bad && !(c->cutoff = calloc((size_t)c->n_layers, sizeof *c->cutoff))) {
        err_nomem(p->e, "config");
        p->bad = 1;
    }
    for (int i = 0; i < c->n_layers && !p->bad; i++) {
        const json_t *v = json_is_array(list) ? json_array_get(list, (size_t)i) : list;
        const double share = list ? json_number_value(v) : i < 10 ? 0.95 : 0;
        if ((list && !json_is_number(v)) || !(share >= 0 && share < 1))
            parse_fail(p, ERR_FORMAT, "activation_sparsity_pattern: layer %d: expected a number from 0 to 1", i);
        c->cutoff[i] = share > 0 ? (float)normal_quantile((double)(float)share) : 0;
    }
}

static void more_gemma3n(struct parse *p, struct config *c)
{
    gemma_parse(p, c);
    if (!json_object_get(p->json, "final_logit_softcapping"))
        c->final_softcap = 30;
    windows_parse(p, c, 512, 5);
    sharing_parse(p, c, 15);
    ple_parse(p, c);
    const json_t *sizes = parse_find(p, "intermediate_size", NULL);
    if (json_is_array(sizes) && !p->bad && (c->mlp_sizes = numbers(p, c, c->intermediate_size)))
        for (int i = 0; i < c->n_layers && !p->bad; i++) {
            const json_int_t size = json_integer_value(json_array_get(sizes, (size_t)i));
            if (size < 1 || size > MOST_WIDTH)
                parse_fail(p, ERR_FORMAT, "intermediate_size: layer %d: expected a number from 1 to %d", i, MOST_WIDTH);
            c->mlp_sizes[i] = (int)size;
        }
    sparsity_parse(p, c);
    c->n_streams = (int)parse_int(p, "altup_num_inputs", 2, 8, 4);
    c->stream = (int)parse_int(p, "altup_active_idx", 0, c->n_streams - 1, 0);
    c->scale_corrected = parse_bool(p, "altup_correct_scale", 1);
    c->laurel_rank = (int)parse_int(p, "laurel_rank", 1, MOST_WIDTH, 64);
    if (!c->ple_dim)
        parse_fail(p, ERR_UNSUPPORTED, "hidden_size_per_layer_input is 0, expected more");
    parse_find(p, "altup_coef_clip|altup_lr_multiplier", NULL);
}

const struct arch gemma_archs[] = {
    { ROW("gemma3n_text", gemma3n_names,   262400, 2048, 16384, 35, 8,  2,  32768),  ROPE(1000000), .eps = 1e-6,
      .act = "gelu_pytorch_tanh", .tied = 1, .head_dim = 256, .local_theta = 10000, .qk_norm = QK_NORM_HEAD,
      .more = more_gemma3n },
    { ROW("gemma4_text",  gemma4_names,    262144, 2304, 9216,  30, 8,  4,  131072), ROPE(1000000), .eps = 1e-6,
      .act = "gelu_pytorch_tanh", .tied = 1, .head_dim = 256, .local_theta = 10000, .qk_norm = QK_NORM_HEAD,
      .more = more_gemma4 },
    { ROW("gemma4_unified_text", gemma4_names, 262144, 2304, 9216, 30, 8, 4, 131072), ROPE(1000000), .eps = 1e-6,
      .act = "gelu_pytorch_tanh", .tied = 1, .head_dim = 256, .local_theta = 10000, .qk_norm = QK_NORM_HEAD,
      .more = more_gemma4 },
    { 0 }
};

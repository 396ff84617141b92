/* arch_mamba.c - architectures with Mamba layers beside layers of attention, or in the same layers:
 * Bamba, Jamba, Falcon-H1.  Sources: the configuration and modeling files of transformers 5,
 * config.json of the models on the hub, and arXiv:2312.00752 (Mamba1). */
#include <math.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

enum { MOST_WIDTH = 1 << 24, MOST_KERNEL = 64 };

#define TOP    .embed = "embed_tokens", .final_norm = "final_layernorm", .head = "lm_head", .layer = "layers."
#define NORMS  .attn_norm = "input_layernorm", .mlp_norm = "pre_ff_layernorm"
#define ATTN   .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.o_proj"
#define MLP    .gate = "feed_forward.gate_proj", .up = "feed_forward.up_proj", .down = "feed_forward.down_proj"
#define STATE  .in = "mamba.in_proj", .conv = "mamba.conv1d", .a_log = "mamba.A_log", .d = "mamba.D", .state_o = "mamba.out_proj"

static const struct weight_names
bamba_names = { TOP, NORMS, ATTN, MLP, STATE, .dt_bias = "mamba.dt_bias", .gate_norm = "mamba.norm" },
falcon_names = { TOP, NORMS, ATTN, MLP, STATE, .dt_bias = "mamba.dt_bias" },
falcon_normed_names = { TOP, NORMS, ATTN, MLP, STATE, .dt_bias = "mamba.dt_bias", .gate_norm = "mamba.norm" },
jamba_names = { TOP, NORMS, ATTN, MLP, STATE, .x_proj = "mamba.x_proj", .dt_proj = "mamba.dt_proj",
                .dt_bias = "mamba.dt_proj.bias", .dt_norm = "mamba.dt_layernorm", .b_norm = "mamba.b_layernorm",
                .c_norm = "mamba.c_layernorm", .router = "feed_forward.router", .experts = "feed_forward.experts.",
                .expert_gate = "gate_proj", .expert_up = "up_proj", .expert_down = "down_proj" };

/* ---- keys ---- */

static void biases_parse(struct parse *p, struct config *c)
{
    attention_bias_parse(p, c);
    if (parse_bool(p, "mlp_bias", 0))
        c->biases |= BIAS_MLP;
    if (parse_bool(p, "mamba_proj_bias", 0))
        c->biases |= BIAS_IN;
}

static void more_bamba(struct parse *p, struct config *c)
{
    static const struct recurrent otherwise = { .n_heads = 128, .n_groups = 1, .state_size = 256, .conv_kernel = 4 };
    const json_t *attends = parse_find(p, "attn_layer_indices", NULL), *v;
    size_t at;
    silu_only(p, c);
    biases_parse(p, c);
    memset(c->mixer, MIXER_MAMBA2, (size_t)c->n_layers);
    json_array_foreach((json_t *)attends, at, v) {
        const json_int_t i = json_integer_value(v);
        if (!json_is_integer(v) || i < 0 || i >= c->n_layers)
            parse_fail(p, ERR_FORMAT, "attn_layer_indices: element %zu is no layer of %d", at, c->n_layers);
        else
            c->mixer[i] = MIXER_ATTENTION;
    }
    mamba_parse(p, c, &otherwise, inner_parse(p, c, "mamba_expand"));
    parse_find(p, "z_loss_coefficient", NULL);
}

/* Read n factors; all are 1 if the key is missing. */
static void factors_parse(struct parse *p, const char *key, float *out, int n)
{
    const json_t *list = parse_find(p, key, NULL);
    if (list && json_array_size(list) != (size_t)n)
        parse_fail(p, ERR_FORMAT, "%s: expected %d numbers", key, n);
    for (int i = 0; i < n && !p->bad; i++) {
        const json_t *v = list ? json_array_get(list, (size_t)i) : NULL;
        out[i] = list ? (float)json_number_value(v) : 1;
        if (list && !(json_is_number(v) && isfinite(out[i])))
            parse_fail(p, ERR_FORMAT, "%s: element %d is not a number", key, i);
    }
}

static void more_falcon_h1(struct parse *p, struct config *c)
{
    static const struct recurrent otherwise = { .n_heads = 128, .n_groups = 1, .state_size = 256, .conv_kernel = 4 };
    struct recurrent *r = &c->recurrent;
    float mlp[2] = { 1, 1 };
    silu_only(p, c);
    biases_parse(p, c);
    if (parse_bool(p, "projectors_bias", 0))
        c->biases |= BIAS_OUT;
    memset(c->mixer, MIXER_BOTH, (size_t)c->n_layers);
    const int64_t inner = inner_parse(p, c, "mamba_expand");
    mamba_parse(p, c, &otherwise, parse_int(p, "mamba_d_ssm", 1, MOST_WIDTH, inner));
    if (parse_bool(p, "mamba_rms_norm", 0))
        c->names = &falcon_normed_names;
    r->norm_first = parse_bool(p, "mamba_norm_before_gate", 1);
    parse_must_be(p, "mamba_use_mlp", 1);
    parse_find(p, "mlp_expansion_factor", NULL);    /* intermediate_size has been computed from it */
    factors_parse(p, "ssm_multipliers", r->in_scale, 5);
    factors_parse(p, "mlp_multipliers", mlp, 2);
    const float in = (float)parse_real(p, "ssm_in_multiplier", 1),
                at = (float)parse_real(p, "attention_in_multiplier", 1);
    r->scaled = 1;
    for (int i = 0; i < 5; i++)
        r->in_scale[i] *= in;
    /* The factor on the input of q, k and v is applied elsewhere: its square to the scores, and the
     * factor itself to the output of attention. */
    if (at != 1 && c->biases & BIAS_QKV)
        parse_fail(p, ERR_UNSUPPORTED, "attention_in_multiplier other than 1 with attention_bias is not supported");
    if (in != 1 && c->biases & BIAS_IN)
        parse_fail(p, ERR_UNSUPPORTED, "ssm_in_multiplier other than 1 with mamba_proj_bias is not supported");
    c->attn_scale *= at * at * (float)parse_real(p, "key_multiplier", 1);
    c->attn_out_scale = at * (float)parse_real(p, "attention_out_multiplier", 1);
    c->state_out_scale = (float)parse_real(p, "ssm_out_multiplier", 1);
    c->gate_scale = mlp[0];
    c->down_scale = mlp[1];
    c->embed_scale = (float)parse_real(p, "embedding_multiplier", 1);
    c->logit_scale = (float)parse_real(p, "lm_head_multiplier", 1);
}

/* The largest divisor of n up to 64: channels per job. */
static int channels_of(int64_t n)
{
    int d = 64;
    while (n % d)
        d--;
    return d;
}

static void more_jamba(struct parse *p, struct config *c)
{
    struct recurrent *r = &c->recurrent;
    const int period = (int)parse_int(p, "attn_layer_period", 1, INT32_MAX, 8),
              offset = (int)parse_int(p, "attn_layer_offset", 0, INT32_MAX, 4),
              expert_period = (int)parse_int(p, "expert_layer_period", 1, INT32_MAX, 2),
              expert_offset = (int)parse_int(p, "expert_layer_offset", 0, INT32_MAX, 1);
    silu_only(p, c);
    if (parse_bool(p, "mamba_proj_bias", 0))
        c->biases |= BIAS_IN;
    experts_parse(p, c, 16, 2, c->intermediate_size);
    for (int i = 0; i < c->n_layers; i++) {
        c->mixer[i] = i % period == offset ? MIXER_ATTENTION : MIXER_MAMBA1;
        c->ff[i] = c->moe.n_experts > 1 && i % expert_period == expert_offset ? FF_MOE : FF_DENSE;
    }
    if (!config_has_ff(c, FF_MOE))
        c->moe = (struct moe){ .scale = 1 };
    const int64_t inner = inner_parse(p, c, "mamba_expand");
    const int dim = channels_of(inner), rank = (c->hidden_size + 15) / 16;
    const json_t *given = parse_find(p, "mamba_dt_rank", NULL);
    *r = (struct recurrent){ .conv_kernel = (int)parse_int(p, "mamba_d_conv", 2, MOST_KERNEL, 4),
                             .conv_bias = parse_bool(p, "mamba_conv_bias", 1), .n_heads = (int)(inner / dim),
                             .head_dim = dim, .n_groups = 1,
                             .state_size = (int)parse_int(p, "mamba_d_state", 1, MOST_WIDTH, 16),
                             .norm_eps = c->norm_eps, .norm_groups = 1 };
    r->dt_rank = json_is_string(given) && strcmp(json_string_value(given), "auto") == 0
                     ? rank : (int)parse_int(p, "mamba_dt_rank", 1, MOST_WIDTH, rank);
    delta_check(p, r);
    parse_find(p, "use_mamba_kernels|use_mambapy|use_associative_scan|num_logits_to_keep", NULL);
}

const struct arch mamba_archs[] = {
    { ROW("bamba",        bamba_names,     128000, 4096, 14336, 32, 32, 8,  262144), ROPE(10000),   .eps = 1e-5,
      .act = "silu", .partial = 0.5, .more = more_bamba },
    { ROW("jamba",        jamba_names,     65536,  4096, 14336, 32, 32, 8,  262144), .pos = POS_NONE, .eps = 1e-6,
      .act = "silu", .more = more_jamba },
    { ROW("falcon_h1",    falcon_names,    128000, 4096, 14336, 32, 32, 8,  8192),   ROPE(10000),   .eps = 1e-5,
      .act = "silu", .more = more_falcon_h1 },
    { 0 }
};

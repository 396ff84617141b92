/* gguf_names.c - the names of tensors in GGUF files. */
#include "libcommon/model/arch.h"

/* GGUF has one set of names for all architectures; an architecture's own row says which of them
 * it has. */
const struct weight_names gguf_names = {
    .embed = "token_embd", .types = "token_types", .pos = "position_embd", .embed_norm = "token_embd_norm", .final_norm = "output_norm",
    .head = "output", .layer = "blk.",
    .attn_norm = "attn_norm", .attn_post_norm = "post_attention_norm", .mlp_norm = "ffn_norm",
    .mlp_post_norm = "post_ffw_norm",
    .q_norm = "attn_q_norm", .k_norm = "attn_k_norm", .qkv = "attn_qkv", .q = "attn_q", .k = "attn_k", .v = "attn_v",
    .o = "attn_output",
    .gate_up = "ffn_up", .gate = "ffn_gate", .up = "ffn_up", .down = "ffn_down",
    .q_a = "attn_q_a", .q_a_norm = "attn_q_a_norm", .q_b = "attn_q_b", .kv_a = "attn_kv_a_mqa",
    .kv_norm = "attn_kv_a_norm", .kv_b = "attn_kv_b",
    .k_b = "attn_k_b", .v_b = "attn_v_b", .sinks = "attn_sinks.weight",
    .index_q = "indexer.attn_q_b", .index_k = "indexer.attn_k", .index_w = "indexer.proj",
    .index_norm = "indexer.k_norm",
    .q_gate = "attn_gate", .router = "ffn_gate_inp", .correction = "exp_probs_b.bias",
    .shared_router = "ffn_gate_inp_shexp",
    .shared_gate = "ffn_gate_shexp", .shared_up = "ffn_up_shexp", .shared_down = "ffn_down_shexp",
    .experts_form = EXPERTS_STACKED, .experts = "", .expert_gate = "ffn_gate_exps", .expert_up = "ffn_up_exps",
    .expert_down = "ffn_down_exps",
    .in = "ssm_in", .in_ba = "ssm_ba", .conv = "ssm_conv1d", .a_log = "ssm_a", .dt_bias = "ssm_dt.bias", .d = "ssm_d",
    .gate_norm = "ssm_norm", .state_o = "ssm_out", .x_proj = "ssm_x", .dt_proj = "ssm_dt", .dt_norm = "ssm_dt_norm",
    .b_norm = "ssm_b_norm", .c_norm = "ssm_c_norm",
    .router_scale = "ffn_gate_inp.scale", .expert_scale = "ffn_down_exps.scale", .dense_post_norm = "post_ffw_norm_1",
    .expert_norm = "pre_ffw_norm_2", .expert_post_norm = "post_ffw_norm_2",
    .ple_embed = "per_layer_token_embd", .ple_in = "per_layer_model_proj", .ple_in_norm = "per_layer_proj_norm",
    .ple_gate = "inp_gate", .ple_up = "proj", .ple_norm = "post_norm", .layer_scale = "layer_output_scale.weight",
    .altup_in = "altup_proj", .altup_out = "altup_unembd_proj", .altup_router = "altup_router.weight",
    .altup_norm = "altup_router_norm", .altup_predict = "altup_predict_coef.weight",
    .altup_correct = "altup_correct_coef.weight", .altup_scale = "altup_correct_scale.weight",
    .laurel_in = "laurel_l", .laurel_out = "laurel_r", .laurel_norm = "laurel_post_norm",
};

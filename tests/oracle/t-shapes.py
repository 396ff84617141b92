#!/usr/bin/env python3
"""t-shapes.py - compare random shapes of the families with transformers.

The folders of the oracles have one shape each.  Here a model of each family gets random widths,
heads, groups, ranks and kinds of layers, which fill no whole tiles, and random weights;
transformers computes its logits, and they must agree.  Needs transformers 5 and torch, and is
skipped where Python has none.
    t-shapes.py [-n MODELS OF EACH] [-s SEED] [-q TYPE] [FAMILY ...]"""
import argparse
import copy
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, floats, load, need, run

FOLDERS = [os.path.join(ORACLES, "models", f) for f in ("hf-2026", "hf")]
for path in FOLDERS:
    need(path)
try:
    import torch
    import transformers
except ImportError as e:
    print(f"1..0 # SKIP {e}: transformers 5 and torch compute the reference")
    sys.exit(0)
LIMIT = 2e-4                    # of the largest |logit|
TOKENS = 75
transformers.utils.logging.disable_progress_bar()
temp = tempfile.TemporaryDirectory()


def pick(r, *values):
    return r.choice(values)


def attention(r, c, head_dims=(8, 10, 16, 18, 24, 32, 34, 40, 48, 80, 98, 130)):
    kv = pick(r, 1, 2, 3, 5)
    c["num_key_value_heads"], c["num_attention_heads"] = kv, kv * pick(r, 1, 2, 3, 7)
    c["hidden_size"] = pick(r, 34, 40, 48, 58, 64, 72, 100, 132, 190)
    c["head_dim"] = pick(r, *head_dims)
    c["intermediate_size"] = pick(r, 26, 40, 72, 100, 130, 257)


def layers(r, c, n, kinds, needed):
    """Choose the kinds of n layers at random, at least one layer of each kind in `needed`."""
    types = list(needed) + [r.choice(kinds) for _ in range(max(n - len(needed), 0))]
    r.shuffle(types)
    c["layer_types"], c["num_hidden_layers"] = types, len(types)


def experts(r, c, key="num_experts", top="num_experts_per_tok"):
    c[key] = pick(r, 3, 5, 8, 12)
    c[top] = r.randint(1, min(4, c[key]))
    c["moe_intermediate_size"] = pick(r, 9, 20, 33, 36, 48, 56)


def delta(r, c, same=False):
    keys = pick(r, 1, 2, 3)
    c["linear_num_key_heads"], c["linear_num_value_heads"] = keys, keys * (1 if same else pick(r, 1, 2, 3))
    c["linear_key_head_dim"], c["linear_value_head_dim"] = pick(r, 6, 8, 12, 24, 33, 40, 130), pick(r, 5, 8, 20, 36, 40, 97)
    c["linear_conv_kernel_dim"] = pick(r, 2, 3, 4, 5)


def latents(r, c, q_rank=True):
    heads = pick(r, 1, 2, 3, 5, 7)
    c["num_attention_heads"] = c["num_key_value_heads"] = heads
    c["hidden_size"], c["intermediate_size"] = pick(r, 34, 40, 64, 72, 100, 190), pick(r, 26, 40, 72, 100, 257)
    c["kv_lora_rank"], c["qk_rope_head_dim"] = pick(r, 7, 20, 32, 33, 44, 56, 130), pick(r, 2, 4, 8, 10, 12, 16, 36)
    c["qk_nope_head_dim"], c["v_head_dim"] = pick(r, 5, 12, 20, 32, 44, 129), pick(r, 3, 12, 20, 32, 33, 44, 130)
    c["head_dim"] = c["qk_rope_head_dim"]
    c["qk_head_dim"] = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    if q_rank:
        c["q_lora_rank"] = pick(r, 7, 20, 33, 36, 48)


def groups(r, c, n, top, key="n_routed_experts", group="n_group"):
    c[key], c[group] = n * pick(r, 2, 3, 4), n
    c["topk_group"] = r.randint(1, n)
    c[top] = r.randint(1, min(4, c[key] // n * c["topk_group"]))
    c["moe_intermediate_size"] = pick(r, 20, 36, 48)


def mlp_types(r, c):
    n = c["num_hidden_layers"]
    dense = r.randint(0, n - 1)
    c["first_k_dense_replace"] = dense
    c["mlp_layer_types"] = ["dense"] * dense + ["sparse"] * (n - dense)


def qwen3_5(r, c):
    attention(r, c, (16, 24, 32, 40, 64))
    c["partial_rotary_factor"] = pick(r, 0.25, 0.5, 1.0)
    delta(r, c)
    layers(r, c, r.randint(2, 5), ["linear_attention", "full_attention"], ["linear_attention", "full_attention"])


def qwen3_5_moe(r, c):
    qwen3_5(r, c)
    experts(r, c)
    c["shared_expert_intermediate_size"] = pick(r, 20, 48, 50)


def windows(r, c, n):
    layers(r, c, n, ["sliding_attention", "full_attention"], ["sliding_attention", "full_attention"])
    c["sliding_window"] = pick(r, 5, 16, 21)


def gemma4(r, c):
    attention(r, c)
    windows(r, c, r.randint(2, 6))
    c["layer_types"][-1] = "full_attention"
    kv = pick(r, 1, c["num_key_value_heads"])
    c["per_layer_config"] = {str(i): {"head_dim": 2 * c["head_dim"], "num_key_value_heads": kv}
                             for i, t in enumerate(c["layer_types"]) if t == "full_attention"}
    c["attention_k_eq_v"] = pick(r, True, False)
    c["rope_parameters"]["full_attention"]["partial_rotary_factor"] = pick(r, 0.25, 0.5)


def gemma4_e(r, c):
    attention(r, c)
    c["num_hidden_layers"] = n = 2 * r.randint(2, 5)
    half = ["sliding_attention"] * (n // 2 - 1) + ["full_attention"]
    c["layer_types"] = half * 2
    c["num_kv_shared_layers"] = n // 2
    c["per_layer_config"] = {str(i): {"head_dim": 2 * c["head_dim"]}
                             for i, t in enumerate(c["layer_types"]) if t == "full_attention"}
    c["hidden_size_per_layer_input"] = pick(r, 8, 12, 20, 40)
    c["use_double_wide_mlp"] = pick(r, True, False)
    c["sliding_window"] = pick(r, 5, 16, 21)


def gemma4_moe(r, c):
    gemma4(r, c)
    experts(r, c, top="top_k_experts")


def gemma3n(r, c):
    attention(r, c)
    c["num_hidden_layers"] = n = 2 * r.randint(2, 4)
    c["layer_types"] = (["sliding_attention"] * (n // 2 - 1) + ["full_attention"]) * 2
    c["num_kv_shared_layers"] = n // 2
    c["intermediate_size"] = [pick(r, 40, 72, 100)] * n
    sparse = r.randint(0, n - 1)
    c["activation_sparsity_pattern"] = [0.95] * sparse + [0.0] * (n - sparse)
    c["altup_num_inputs"], c["laurel_rank"] = pick(r, 2, 3, 4), pick(r, 4, 8, 20)
    c["hidden_size_per_layer_input"] = pick(r, 8, 12, 20, 40)
    c["hidden_size"] = c["num_attention_heads"] * pick(r, 12, 20, 32)
    c["sliding_window"] = pick(r, 5, 16, 21)


def kimi_linear(r, c):
    latents(r, c, q_rank=False)
    c["linear_num_heads"], c["linear_head_dim"] = pick(r, 1, 2, 3), pick(r, 8, 12, 20, 40)
    c["linear_conv_kernel_dim"] = pick(r, 2, 3, 4)
    layers(r, c, r.randint(2, 4), ["linear_attention", "full_attention"], ["linear_attention", "full_attention"])
    mlp_types(r, c)
    groups(r, c, pick(r, 1, 2, 4), "num_experts_per_token", "num_experts", "num_expert_group")
    c["num_shared_experts"] = pick(r, 1, 2)
    full = [i + 1 for i, t in enumerate(c["layer_types"]) if t == "full_attention"]
    c["linear_attn_config"] = {"full_attn_layers": full, "head_dim": c["linear_head_dim"],
                               "kda_layers": [i + 1 for i in range(c["num_hidden_layers"]) if i + 1 not in full],
                               "num_heads": c["linear_num_heads"], "short_conv_kernel_size": c["linear_conv_kernel_dim"]}


def bailing_hybrid(r, c):
    latents(r, c, q_rank=pick(r, True, False))
    c["linear_num_heads"], c["linear_head_dim"] = pick(r, 1, 2, 3), pick(r, 8, 12, 20, 40)
    c["head_dim"] = c["linear_head_dim"]
    c["short_conv_kernel_size"] = c["linear_conv_kernel_dim"] = pick(r, 2, 3, 4)
    c["linear_num_heads"] = c["num_attention_heads"]
    layers(r, c, r.randint(2, 4), ["linear_attention", "full_attention"], ["linear_attention", "full_attention"])
    mlp_types(r, c)
    groups(r, c, pick(r, 1, 2, 4), "num_experts_per_token", "num_experts", "num_expert_group")
    c["num_shared_experts"] = pick(r, 1, 2)


def mamba(r, c, inner, heads="mamba_n_heads", dim="mamba_d_head"):
    sizes = [d for d in (1, 2, 4, 5, 8, 12, 16, 20, 24, 32, 40) if inner % d == 0]
    c[dim] = r.choice(sizes)
    c[heads] = inner // c[dim]
    c["mamba_n_groups"] = r.choice([g for g in (1, 2, 3, 4) if c[heads] % g == 0])
    c["mamba_d_state"] = pick(r, 3, 8, 12, 20, 32, 129)
    c["mamba_d_conv"] = pick(r, 2, 3, 4)


def falcon_h1(r, c):
    attention(r, c)
    c["mamba_d_ssm"] = pick(r, 48, 80, 96, 120)
    mamba(r, c, c["mamba_d_ssm"])
    c["mamba_rms_norm"] = pick(r, True, False)
    c["mamba_norm_before_gate"] = pick(r, True, False)
    c["num_hidden_layers"] = r.randint(1, 3)


def bamba(r, c):
    attention(r, c)
    c["hidden_size"] = pick(r, 48, 64, 80, 96)
    c["num_key_value_heads"], c["num_attention_heads"] = pick(r, (1, 2), (2, 2), (2, 4), (1, 4))
    c["head_dim"] = c["hidden_size"] // c["num_attention_heads"]
    c.pop("head_dim")
    mamba(r, c, 2 * c["hidden_size"])
    c["num_hidden_layers"] = n = r.randint(2, 4)
    c["attn_layer_indices"] = sorted(r.sample(range(n), r.randint(1, n - 1)))
    c.pop("layer_types", None)


def jamba(r, c):
    bamba(r, c)
    for key in ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "attn_layer_indices"):
        c.pop(key)
    c["mamba_dt_rank"], c["mamba_expand"] = pick(r, 3, 8, 20), pick(r, 1, 2, 3)
    c["attn_layer_period"], c["attn_layer_offset"] = 2, pick(r, 0, 1)
    c["expert_layer_period"], c["expert_layer_offset"] = 2, pick(r, 0, 1)
    c["num_experts"] = pick(r, 2, 3, 5)
    c["num_experts_per_tok"] = r.randint(1, 2)


def lfm2_moe(r, c):
    bamba(r, c)
    for key in [k for k in c if k.startswith("mamba")] + ["attn_layer_indices"]:
        c.pop(key)
    c["conv_L_cache"] = pick(r, 2, 3, 5)
    c["conv_bias"] = pick(r, True, False)
    layers(r, c, r.randint(2, 4), ["conv", "full_attention"], ["conv", "full_attention"])
    c["num_dense_layers"] = r.randint(0, c["num_hidden_layers"] - 1)
    experts(r, c)
    c["use_expert_bias"] = pick(r, True, False)


def lfm3(r, c):
    attention(r, c)
    c["conv_L_cache"] = pick(r, 2, 3, 5, 7)
    layers(r, c, r.randint(3, 5), ["conv", "full_attention", "sliding_attention"],
           ["conv", "full_attention", "sliding_attention"])
    c["sliding_window"] = pick(r, 5, 16, 21)
    c["use_attention_gate"], c["use_sandwich_norm"] = pick(r, True, False), pick(r, True, False)


def minimax(r, c):
    attention(r, c)
    layers(r, c, r.randint(2, 4), ["linear_attention", "full_attention"], ["linear_attention", "full_attention"])
    c["num_local_experts"] = pick(r, 2, 3, 5)
    c["num_experts_per_tok"] = r.randint(1, 2)
    c["block_size"] = pick(r, 7, 16, 32)


def olmo_hybrid(r, c):
    bamba(r, c)
    for key in [k for k in c if k.startswith("mamba")] + ["attn_layer_indices"]:
        c.pop(key)
    delta(r, c)
    c["linear_allow_neg_eigval"] = pick(r, True, False)
    layers(r, c, r.randint(2, 4), ["linear_attention", "full_attention"], ["linear_attention", "full_attention"])


def deepseek_v32(r, c):
    latents(r, c)
    c["num_hidden_layers"] = r.randint(2, 3)
    c["layer_types"] = ["indexed_attention"] * c["num_hidden_layers"]
    mlp_types(r, c)
    groups(r, c, pick(r, 1, 2, 4), "num_experts_per_tok")
    c["n_shared_experts"] = pick(r, 1, 2)
    c["index_head_dim"], c["index_n_heads"] = pick(r, 16, 20, 32, 44), pick(r, 16, 20, 24)
    c["index_topk"] = pick(r, 5, 24, 40)


def glm_moe_dsa(r, c):
    deepseek_v32(r, c)
    n = c["num_hidden_layers"] = r.randint(2, 4)
    c["layer_types"] = ["indexed_attention"] * n
    c["indexer_types"] = ["full"] + [pick(r, "full", "shared") for _ in range(n - 1)]
    c.pop("index_topk_pattern", None)
    mlp_types(r, c)


def mistral4(r, c):
    latents(r, c)
    c["head_dim"] = c["qk_head_dim"]
    c["partial_rotary_factor"] = c["qk_rope_head_dim"] / c["head_dim"]
    c["num_hidden_layers"] = 2
    groups(r, c, pick(r, 1, 2), "num_experts_per_tok")


def mimo_v2_flash(r, c):
    attention(r, c, (24, 30, 32, 48))        # an even number of these channels is rotated
    c["num_attention_heads"] *= 2           # layers with a window have twice as many key heads
    windows(r, c, r.randint(2, 4))
    c["v_head_dim"] = r.choice([d for d in (16, 24, 40) if d <= c["head_dim"]])
    mlp_types(r, c)
    c.pop("first_k_dense_replace")
    groups(r, c, pick(r, 1, 2), "num_experts_per_tok")


def afmoe(r, c):
    attention(r, c)
    windows(r, c, r.randint(2, 4))
    c["num_dense_layers"] = r.randint(0, c["num_hidden_layers"] - 1)
    experts(r, c)
    c["num_shared_experts"] = pick(r, 1, 2)


def deepseek_v4(r, c):
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    c["num_attention_heads"] = pick(r, 2, 4, 6)
    c["o_groups"], c["o_lora_rank"] = pick(r, 1, 2), pick(r, 12, 24, 40)
    c["hidden_size"], c["q_lora_rank"] = pick(r, 40, 64, 72, 100), pick(r, 20, 40, 48)
    c["head_dim"], rope = pick(r, (20, 4), (32, 8), (40, 16), (48, 12))
    c["partial_rotary_factor"] = rope / c["head_dim"]
    c["qk_rope_head_dim"] = rope
    for one in c["rope_parameters"].values():
        one["partial_rotary_factor"] = c["partial_rotary_factor"]
    layers(r, c, r.randint(3, 5), kinds, kinds)
    n = c["num_hidden_layers"]
    c["mlp_layer_types"] = [pick(r, "hash_moe", "moe") for _ in range(n)]
    c["compress_rates"] = {kinds[1]: pick(r, 2, 3, 4, 5, 8), kinds[2]: pick(r, 5, 16, 24)}
    c["hc_mult"], c["hc_sinkhorn_iters"] = pick(r, 2, 3, 4), pick(r, 1, 5, 20)
    c["index_head_dim"], c["index_n_heads"], c["index_topk"] = pick(r, 16, 20, 36), pick(r, 16, 20, 24), pick(r, 3, 8, 50)
    c["sliding_window"] = pick(r, 5, 16, 21)
    c["n_routed_experts"] = pick(r, 3, 5, 8)
    c["num_experts_per_tok"] = r.randint(1, 3)
    c["moe_intermediate_size"] = pick(r, 20, 36, 48)


def qwen4_exp(r, c):
    attention(r, c, (16, 24, 32, 40))
    c["partial_rotary_factor"] = pick(r, 0.25, 0.5)
    delta(r, c)
    layers(r, c, r.randint(2, 5), ["linear_attention", "indexed_attention"], ["linear_attention", "indexed_attention"])
    linear = [i + 1 for i, t in enumerate(c["layer_types"]) if t == "linear_attention"]
    c["ple_layer_ids"] = sorted(r.sample(linear, r.randint(0, min(2, len(linear)))))
    experts(r, c)
    c["shared_expert_intermediate_size"] = pick(r, 20, 48, 50)
    c["hc_count"], c["hc_lowrank"] = pick(r, 2, 3, 4), pick(r, 12, 24, 36)
    c["ngram_size"], c["heads_per_ngram"] = pick(r, 2, 3, 4), pick(r, 1, 2, 3)
    c["ple_embed_dim"] = (c["ngram_size"] - 1) * c["heads_per_ngram"] * pick(r, 4, 8, 12)
    c["ple_conv_kernel_size"], c["ngram_vocab_size_base"] = pick(r, 2, 3, 4), pick(r, 50, 101, 300)
    c["split_ngram_parts"], c["make_ngram_vocab_size_divisible_by"] = pick(r, 1, 2, 4), pick(r, 4, 16, 64)
    c["indexer_n_heads"], c["indexer_head_dim"] = pick(r, 16, 20), pick(r, 20, 24, 36)
    c["indexer_compress_ratio"] = pick(r, 2, 3, 4, 5, 8)
    c["indexer_budget"] = c["indexer_compress_ratio"] * pick(r, 1, 3, 6, 20)
    c["output_gate_type"] = pick(r, "sigmoid", "silu")


def whole_heads(r, c):
    """Attention whose heads share the hidden size, without a head_dim."""
    attention(r, c, (16, 20, 24, 32, 40))
    c["hidden_size"] = c["num_attention_heads"] * c.pop("head_dim")
    c["num_hidden_layers"] = r.randint(1, 3)


def helium(r, c):
    whole_heads(r, c)
    c["head_dim"] = c["hidden_size"] // c["num_attention_heads"]


def plain(r, c):
    attention(r, c)
    c["num_hidden_layers"] = r.randint(1, 3)


def smollm3(r, c):
    whole_heads(r, c)
    c["layer_types"] = ["full_attention"] * c["num_hidden_layers"]
    c["no_rope_layers"] = [pick(r, 0, 1) for _ in c["layer_types"]]


def solar_open(r, c):
    plain(r, c)
    groups(r, c, pick(r, 1, 2, 4), "num_experts_per_tok")
    c["n_shared_experts"] = pick(r, 1, 2)


def windowed(r, c):
    attention(r, c)
    windows(r, c, r.randint(2, 5))


def olmo3(r, c):
    whole_heads(r, c)
    windows(r, c, r.randint(2, 5))


def granite_swa(r, c):
    olmo3(r, c)
    c["layer_rope_theta"] = [pick(r, 0, 10000.0, 1000000.0) for _ in c["layer_types"]]


def sparse(r, c):
    plain(r, c)
    mlp_types(r, c)
    c["num_shared_experts"] = pick(r, 1, 2)
    experts(r, c)


def exaone_moe(r, c):
    windowed(r, c)
    mlp_types(r, c)
    groups(r, c, pick(r, 1, 2, 4), "num_experts_per_tok", "num_experts")
    c["num_shared_experts"] = pick(r, 1, 2)


def cohere2_moe(r, c):
    windowed(r, c)
    mlp_types(r, c)
    c.pop("first_k_dense_replace")
    c["prefix_dense_intermediate_size"] = pick(r, 40, 72, 100)
    experts(r, c)
    c.pop("moe_intermediate_size")
    c["intermediate_size"], c["num_shared_experts"] = pick(r, 20, 36, 48), pick(r, 1, 2)


def grouped(r, c):
    attention(r, c, (16, 20, 24, 32, 40, 48, 80))     # an even half of them rotates
    c["num_hidden_layers"] = r.randint(1, 3)
    mlp_types(r, c)
    c.pop("mlp_layer_types")
    groups(r, c, pick(r, 1, 2, 4), "num_experts_per_tok")
    c["n_shared_experts"] = pick(r, 1, 2)


def long_factors(r, c, n):
    for key in ("long_factor", "short_factor"):
        c["rope_scaling"][key] = [round(1 + r.random() * (3 if key[0] == "l" else 0.5), 3) for _ in range(n)]


def local_experts(r, c, most=4):
    c["num_local_experts"] = pick(r, 3, 5, 8)
    c["num_experts_per_tok"] = r.randint(1, min(most, c["num_local_experts"]))


def phimoe(r, c):
    whole_heads(r, c)
    local_experts(r, c)
    c["num_experts_per_tok"] = 2                    # its router knows no other number
    long_factors(r, c, c["hidden_size"] // c["num_attention_heads"] // 2)
    # transformers 5 does not use the long factors past that
    c["original_max_position_embeddings"] = c["rope_scaling"]["original_max_position_embeddings"] = 128


def minicpm3(r, c):
    latents(r, c)
    c["num_hidden_layers"] = r.randint(1, 3)
    long_factors(r, c, c["qk_rope_head_dim"] // 2)


def latent_grouped(r, c):
    latents(r, c)
    c["num_hidden_layers"] = r.randint(2, 3)
    mlp_types(r, c)
    groups(r, c, pick(r, 1, 2, 4), "num_experts_per_tok")
    c["n_shared_experts"] = pick(r, 1, 2)


def deepseek_v3(r, c):
    latent_grouped(r, c)
    c.pop("mlp_layer_types")
    if c["n_group"] > 1:            # a group's score is the sum of two
        c["n_routed_experts"] = max(c["n_routed_experts"], 2 * c["n_group"])


def deepseek_v2_lite(r, c):
    latents(r, c, q_rank=False)
    c["hidden_size"] = c["num_attention_heads"] * pick(r, 12, 20, 24)
    c["num_hidden_layers"] = r.randint(2, 3)
    c["first_k_dense_replace"] = r.randint(0, 1)
    experts(r, c, "n_routed_experts")
    c["n_shared_experts"] = pick(r, 1, 2)


def gpt_oss(r, c):
    windowed(r, c)
    local_experts(r, c)


def minimax_m2(r, c):
    attention(r, c, (16, 20, 24, 32, 40, 48, 80))
    local_experts(r, c)
    c["partial_rotary_factor"] = pick(r, 0.5, 1.0)
    c["rotary_dim"] = int(c["head_dim"] * c["partial_rotary_factor"])


def llama4(r, c):
    attention(r, c)
    c["head_dim"] = pick(r, 16, 32, 48)
    n = c["num_hidden_layers"] = r.randint(2, 5)
    c["no_rope_layers"] = [pick(r, 0, 1) for _ in range(n)]
    c["layer_types"] = ["chunked_attention" if rope else "full_attention" for rope in c["no_rope_layers"]]
    c["moe_layers"] = sorted(r.sample(range(n), r.randint(1, n)))
    c["attention_chunk_size"], c["intermediate_size_mlp"] = pick(r, 7, 16, 32), pick(r, 40, 72, 100)
    local_experts(r, c, 2)


def qwen3_next(r, c):
    qwen3_5_moe(r, c)


def qwen3_moe(r, c):
    plain(r, c)
    experts(r, c)


def lfm2(r, c):
    whole_heads(r, c)
    c["conv_L_cache"] = pick(r, 2, 3, 5)
    c["conv_bias"] = pick(r, True, False)
    c["block_multiple_of"] = pick(r, 8, 20, 64)
    layers(r, c, r.randint(2, 4), ["conv", "full_attention"], ["conv", "full_attention"])
    c["full_attn_idxs"] = [i for i, t in enumerate(c["layer_types"]) if t == "full_attention"]


def granite_hybrid(r, c):
    bamba(r, c)
    c.pop("attn_layer_indices")
    layers(r, c, r.randint(2, 4), ["linear_attention", "full_attention"], ["linear_attention", "full_attention"])
    c["num_local_experts"] = pick(r, 0, 3, 5)
    c["num_experts_per_tok"] = r.randint(1, 2) if c["num_local_experts"] else 0
    c["shared_intermediate_size"] = pick(r, 20, 48, 50)
    c["position_embedding_type"] = pick(r, "rope", "nope")


def mamba2(r, c):
    c["hidden_size"], c["expand"] = pick(r, 48, 64, 80, 96), pick(r, 1, 2)
    inner = c["hidden_size"] * c["expand"]
    c["head_dim"] = r.choice([d for d in (4, 8, 12, 16, 20, 24, 32) if inner % d == 0])
    c["num_heads"] = inner // c["head_dim"]
    c["n_groups"] = r.choice([g for g in (1, 2, 3, 4) if c["num_heads"] % g == 0])
    c["state_size"], c["conv_kernel"] = pick(r, 8, 12, 20, 32), pick(r, 2, 3, 4)


def nemotron_h(r, c):
    attention(r, c)
    c["mamba_head_dim"], c["mamba_num_heads"] = pick(r, 8, 12, 20), pick(r, 2, 4, 6)
    c["n_groups"] = r.choice([g for g in (1, 2, 3) if c["mamba_num_heads"] % g == 0])
    c["ssm_state_size"], c["conv_kernel"] = pick(r, 8, 12, 20), pick(r, 2, 3, 4)
    kinds = ["linear_attention", "full_attention", "mlp", "moe"]
    layers(r, c, r.randint(4, 7), kinds, kinds)
    c["layers_block_type"] = c.pop("layer_types")
    c.pop("num_hidden_layers")
    groups(r, c, pick(r, 1, 2), "num_experts_per_tok")
    c["moe_shared_expert_intermediate_size"] = pick(r, 20, 48, 50)
    c["moe_latent_size"] = pick(r, None, 20, 36)


FAMILIES = {"qwen3_5": qwen3_5, "qwen3_5_moe": qwen3_5_moe, "gemma4": gemma4, "gemma4-e": gemma4_e,
            "gemma4-moe": gemma4_moe, "gemma3n": gemma3n, "kimi_linear": kimi_linear,
            "bailing_hybrid": bailing_hybrid, "falcon_h1": falcon_h1, "bamba": bamba, "jamba": jamba,
            "lfm2_moe": lfm2_moe, "lfm3": lfm3, "minimax": minimax, "olmo_hybrid": olmo_hybrid,
            "deepseek_v32": deepseek_v32, "glm_moe_dsa-skip": glm_moe_dsa, "mistral4": mistral4,
            "mimo_v2_flash": mimo_v2_flash, "afmoe": afmoe, "deepseek_v4": deepseek_v4,
            "qwen4_exp": qwen4_exp,
            "apertus": whole_heads, "helium": helium, "jais2": plain, "ministral3": plain, "nanochat": whole_heads,
            "olmo3": olmo3, "granite_swa": granite_swa, "hy_v3": sparse, "solar_open": solar_open,
            "exaone_moe": exaone_moe, "cohere2_moe": cohere2_moe, "phimoe": phimoe, "minicpm3": minicpm3,
            "glm4_moe_lite": latent_grouped,
            "llama": whole_heads, "smollm3": smollm3, "gemma3": windowed, "gpt_oss": gpt_oss, "qwen3_moe": qwen3_moe,
            "glm4_moe": grouped, "minimax_m2": minimax_m2, "llama4_text": llama4, "deepseek_v2_lite": deepseek_v2_lite,
            "deepseek_v3": deepseek_v3, "qwen3_next": qwen3_next, "lfm2": lfm2, "granitemoehybrid": granite_hybrid,
            "mamba2": mamba2, "nemotron_h": nemotron_h}


def infinities(v):
    """Replace infinity as transformers writes it, {"__float__": "Infinity"}."""
    if isinstance(v, dict):
        return float(v["__float__"]) if "__float__" in v else {k: infinities(x) for k, x in v.items()}
    return [infinities(x) for x in v] if isinstance(v, list) else v


def weights(model, config, generator):
    """Random weights that are exact in bfloat16."""
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if name.endswith("tid2eid"):
            for i in range(p.shape[0]):
                p[i] = torch.randperm(config.n_routed_experts, generator=generator)[:p.shape[1]]
            continue
        if not p.dtype.is_floating_point or "inv_freq" in name or ("rotary" in name and p.dim() < 2):
            continue
        is_buffer = name not in dict(model.named_parameters())
        if is_buffer and "bias" not in name:
            continue
        x = torch.randn(p.shape, generator=generator)
        if name.endswith(("A_log", "decay_A")):
            x = torch.rand(p.shape, generator=generator) * 1.5
        elif p.dim() >= 2:
            x = x / p.shape[-1] ** 0.5 if p.shape[-1] > 8 else x * 0.3
        elif "norm" in name:
            x = p.detach().float() + 0.2 * x
        elif name.endswith("layer_scalar"):
            x = 1 + 0.1 * x
        else:
            x = x * 0.3 if is_buffer or "bias" in name else p.detach().float() + 0.1 * x
        with torch.no_grad():
            p.copy_(x.to(torch.bfloat16).to(p.dtype))


def one(name, seed):
    r = random.Random(f"{name} {seed}")
    source = next(os.path.join(f, name) for f in FOLDERS if os.path.isdir(os.path.join(f, name)))
    c = infinities(load(os.path.join(source, "config.json")))
    mutate = copy.deepcopy(c)
    FAMILIES[name](r, mutate)
    kind = mutate["model_type"]
    for key in ("model_type", "architectures", "torch_dtype", "dtype", "transformers_version"):
        mutate.pop(key, None)
    shown = {k: v for k, v in mutate.items() if c.get(k) != v}
    try:
        config = transformers.AutoConfig.for_model(kind, **mutate)
        made = getattr(transformers, load(os.path.join(source, "expected.json")).get("class", c["architectures"][0]))
        config._attn_implementation = config._experts_implementation = "eager"
        model = made._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        weights(model, config, torch.Generator().manual_seed(seed))
        ids = [r.randrange(3, config.vocab_size) for _ in range(TOKENS)]
        with torch.no_grad():
            want = model(torch.tensor([ids]), use_cache=False).logits[0].float().flatten().tolist()
        folder = os.path.join(temp.name, "model")
        for f in os.listdir(folder) if os.path.isdir(folder) else []:
            os.unlink(os.path.join(folder, f))
        model.save_pretrained(folder)
    except Exception as e:          # transformers refuses the shape: not ours to test
        print(f"# {name} {seed}: transformers: {type(e).__name__}: {str(e)[:200]}")
        return
    with open(os.path.join(source, "tokenizer.json"), "rb") as f:
        data = f.read()
    with open(os.path.join(folder, "tokenizer.json"), "wb") as f:
        f.write(data)
    test = f"{name} {seed}"
    file, out = os.path.join(temp.name, "m.zse"), os.path.join(temp.name, "logits")
    try:
        run("zse-convert", folder, "-q", options.type, "-o", file, "--force")
        got = []
        for step in (512, 7):
            run("zse-bench", "logits", file, "--ids", " ".join(map(str, ids)), "-o", out, "--window", str(step))
            got.append(floats(out))
    except RuntimeError as e:
        Tap.ok(False, test, str(e)[:400], json.dumps(shown))
        return
    largest = max(map(abs, want))
    error = max(abs(a - b) for a, b in zip(got[0], want)) / largest
    first = next((i // config.vocab_size for i, (a, b) in enumerate(zip(got[0], want))
                  if not abs(a - b) < LIMIT * largest), -1)
    # in the mean for types that round: single experts and chosen tokens may be others
    rms = (sum((a - b) ** 2 for a, b in zip(got[0], want)) / sum(b * b for b in want)) ** 0.5
    near = error <= LIMIT if options.type == "f32" else rms <= 0.5
    same = list(got[0]) == list(got[1])
    Tap.ok(near and same and len(got[0]) == len(want), test,
           f"{error:.2e}{'' if same else ' OTHER IN STEPS'}, rms {rms:.2e}, first at token {first}, max {largest:.3g}",
           *([] if near and same else [json.dumps(shown)]))


parser = argparse.ArgumentParser()
parser.add_argument("-n", type=int, default=1)
parser.add_argument("-s", type=int, default=1)
parser.add_argument("-q", dest="type", default="f32")
parser.add_argument("families", nargs="*")
options = parser.parse_args()
torch.set_num_threads(1)
for name in options.families or FAMILIES:
    for seed in range(options.s, options.s + options.n):
        one(name, seed)
Tap.done()

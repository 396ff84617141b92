#!/usr/bin/env python3
"""t-gguf-moe.py - compare logits of mixtures of experts and recurrent models, read from GGUF files.

The Python package gguf writes the oracles' Hugging Face folders as GGUF files, with its own names
of the tensors, merged and split as llama.cpp's converter does.  The logits must lie within 1e-4
(recurrent models: 2e-4) of the largest |logit| of those that transformers computes."""
import json
import math
import os
import re
import shutil
import statistics
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, floats, load, need, run

try:
    from folders import add_plain_vocabulary, tensors, write
    import gguf
    import numpy as np
except ImportError as e:
    Tap.skip("mixtures of experts and recurrent models as GGUF files", f"{e}: scripts/deps installs it")
    Tap.done()
    sys.exit(0)

LIMIT, STATE_LIMIT = 1e-4, 2e-4
temp = tempfile.TemporaryDirectory()
SKIPPED = re.compile(r"^(model\.)?(visual|vision_tower|vision_model|vision_embedder|audio_tower|embed_vision|embed_audio|multi_modal_projector|mm_projector|mtp)\.")
# folder: its architecture in GGUF
MODELS = {"mixtral": "llama", "olmoe": "olmoe", "granitemoe": "granitemoe", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "deepseek_v2": "deepseek2",
          "deepseek_v2_lite": "deepseek2", "deepseek_v3": "deepseek2", "kimi_k2": "deepseek2", "glm4_moe": "glm4moe", "dots1": "dots1", "minimax_m2": "minimax-m2",
          "gpt_oss": "gpt-oss", "hunyuan_moe": "hunyuan-moe", "ernie4_5_moe": "ernie4_5-moe", "llama4_text": "llama4", "lfm2": "lfm2", "mamba2": "mamba2",
          "granitemoehybrid": "granitehybrid", "nemotron_h": "nemotron_h", "nemotron_h-experts": "nemotron_h_moe", "qwen3_next": "qwen3next"}
# Families of 2026.  The name is the folder of the oracle, the value the architecture in the GGUF.
LATEST = {"qwen2_5_vl-vl": "qwen2vl", "qwen3_vl-vl": "qwen3vl", "qwen3_vl_moe-vl": "qwen3vlmoe", "ministral3": "mistral3", "mistral3-tied-vl": "mistral3",
          "mistral4": "mistral4", "glm4_moe_lite": "deepseek2", "kimi_k25-vl": "deepseek2", "minicpm3": "minicpm3", "jais2": "jais2", "phimoe": "phimoe",
          "exaone_moe": "exaone-moe", "afmoe": "afmoe", "lfm2_moe": "lfm2moe", "olmo3": "olmo2", "solar_open": "glm4moe", "internlm3": "llama",
          "apertus": "apertus", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "qwen3_5_moe-vl": "qwen35moe", "falcon_h1": "falcon-h1", "glm_moe_dsa": "glm-dsa",
          "glm_moe_dsa-skip": "glm-dsa", "jamba": "jamba", "gemma3n": "gemma3n", "gemma3n-vl": "gemma3n", "gemma4": "gemma4", "gemma4-e": "gemma4",
          "gemma4-moe": "gemma4", "gemma4-vl": "gemma4", "gemma4_unified-vl": "gemma4", "kimi_linear": "kimi-linear", "mimo_v2_flash": "mimo2",
          "deepseek_v32": "deepseek32", "cohere2_moe": "cohere2moe", "hy_v3": "hy_v3", "granite_swa": "granite_swa", "deepseek_v4-hub": "deepseek4",
          "bailing_hybrid": "bailingmoe3", "minimax": "minimax-01", "qwen4_exp": "qwen4exp"}
# Architectures that the package does not know, and for each a known one that has the same names of
# tensors.
NAMES_OF = {"deepseek32": "glm-dsa", "cohere2moe": "exaone-moe", "hy_v3": "exaone-moe", "granite_swa": "mimo2"}
MODELS |= LATEST
# config.json's dim_model_base divided by the one that GGUF implies
LOGITS = {"minicpm3": 32 / 256}
PERMUTED = ("llama", "mistral3", "apertus", "granitemoe", "granitehybrid", "granite_swa")
# Size of an attention chunk of llama4_text.  GGUF has no key for it and implies 8192, so only the
# logits of the first 32 tokens are the same with both.
CHUNK = 32
STATES = ("lfm2", "lfm2moe", "mamba2", "granitehybrid", "nemotron_h", "nemotron_h_moe", "qwen3next", "qwen35", "qwen35moe", "falcon-h1", "jamba", "qwen4exp")
TILED = ("qwen35", "qwen35moe", "qwen4exp")
DELTA = ("qwen3next", *TILED)
KDA = ("kimi-linear", "bailingmoe3")
WINDOWS = ("gemma3n", "gemma4", "mimo2")        # models whose layers have different heads


def with_experts(name, normalized=True):
    """A folder of nemotron_h whose last MLP is cut into a shared MLP and four experts.

    The correction chooses these four of eight.  Each has the score 1/2.  With weights normalized to
    a sum of 1 and a scale of 4, or with weights as they are and a scale of 2, their sum is the MLP,
    so the logits are the same."""
    folder = os.path.join(temp.name, name)
    os.makedirs(folder, exist_ok=True)
    source = os.path.join(ORACLES, "models", "hf", "nemotron_h")
    c, named = load(os.path.join(source, "config.json")), tensors(source)
    layer = max(i for i, kind in enumerate(c["layers_block_type"]) if kind == "mlp")
    at = f"backbone.layers.{layer}.mixer."
    up, down = named.pop(at + "up_proj.weight"), named.pop(at + "down_proj.weight")
    shared, width = up.shape[0] // 2, up.shape[0] // 8
    c["layers_block_type"][layer] = "moe"
    c |= {"n_routed_experts": 8, "num_experts_per_tok": 4, "n_shared_experts": 1, "moe_intermediate_size": width,
          "moe_shared_expert_intermediate_size": shared, "norm_topk_prob": normalized, "routed_scaling_factor": 4.0 if normalized else 2.0}
    named[at + "gate.weight"] = np.zeros((8, up.shape[1]), "<f4")
    named[at + "gate.e_score_correction_bias"] = np.array([1, 0] * 4, "<f4")
    named[at + "shared_experts.up_proj.weight"], named[at + "shared_experts.down_proj.weight"] = up[:shared], down[:, :shared]
    for i in range(8):
        rows = slice(shared + i // 2 * width, shared + (i // 2 + 1) * width)
        # experts that are not chosen get the opposite sign
        flip = -1 if i % 2 else 1
        named[f"{at}experts.{i}.up_proj.weight"], named[f"{at}experts.{i}.down_proj.weight"] = flip * up[rows], down[:, rows]
    head, data = {}, b""
    for key, a in named.items():
        raw = np.ascontiguousarray(a, dtype="<f4").tobytes()
        head[key] = {"dtype": "F32", "shape": a.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(c, f)
    for kept in ("expected.json", "logits.f32"):
        shutil.copy(os.path.join(source, kept), folder)
    return folder


def with_one_base(name):
    """The folder of granite_swa, in which each layer that rotates has the same base, because a GGUF
    has one.  Its logits are computed here, from the folder."""
    folder, source = os.path.join(temp.name, name), os.path.join(ORACLES, "models", "hf-2026", name)
    model, out = (os.path.join(temp.name, n) for n in ("base.zse", "base.logits"))
    shutil.copytree(source, folder)
    c, expected = load(os.path.join(folder, "config.json")), load(os.path.join(folder, "expected.json"))
    c["layer_rope_theta"] = [c["rope_theta"] if theta else 0 for theta in c["layer_rope_theta"]]
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(c, f)
    run("zse-convert", folder, "-q", "f32", "-o", model)
    with open(os.path.join(folder, "logits.f32"), "wb") as f:
        for prompt in expected["prompts"]:
            run("zse-bench", "logits", model, "--ids", " ".join(map(str, prompt["ids"])), "-o", out)
            with open(out, "rb") as part:
                f.write(part.read())
    return folder


# Names of DeepSeek V4's tensors in GGUF files, without "blk.N." and ".weight".
V4 = {"attn.wq_a": "attn_q_a", "attn.wq_b": "attn_q_b", "attn.q_norm": "attn_q_a_norm", "attn.wkv": "attn_kv", "attn.norm": "attn_kv_a_norm",
      "attn.wo_a": "attn_output_a", "attn.wo_b": "attn_output_b", "attn.attn_sink": "attn_sinks", "attn.compressor.wkv": "attn_compressor_kv",
      "attn.compressor.wgate": "attn_compressor_gate", "attn.compressor.ape": "attn_compressor_ape", "attn.compressor.norm": "attn_compressor_norm",
      "attn.indexer.wq_b": "indexer.attn_q_b", "attn.indexer.weights_proj": "indexer.proj", "attn.indexer.compressor.wkv": "indexer_compressor_kv",
      "attn.indexer.compressor.wgate": "indexer_compressor_gate", "attn.indexer.compressor.ape": "indexer_compressor_ape",
      "attn.indexer.compressor.norm": "indexer_compressor_norm", "ffn.gate": "ffn_gate_inp", "ffn.gate.tid2eid": "ffn_gate_tid2eid",
      "ffn.shared_experts.w1": "ffn_gate_shexp", "ffn.shared_experts.w2": "ffn_down_shexp", "ffn.shared_experts.w3": "ffn_up_shexp",
      "ffn.experts.w1": "ffn_gate_exps", "ffn.experts.w2": "ffn_down_exps", "ffn.experts.w3": "ffn_up_exps"}
V4_ENDS = {"embed": "token_embd", "norm": "output_norm", "head": "output", "hc_head_fn": "output_hc_fn", "hc_head_base": "output_hc_base",
           "hc_head_scale": "output_hc_scale"}


# Names of tensors of architectures that the package does not know, in the same way.
BLOCK = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
ENDS = {"model.word_embeddings": "token_embd", "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "per_layer_token_embd": "per_layer_token_embd", "model.hyper_connection_mixer.hc_norm": "output_hc_norm",
        "model.hyper_connection_mixer.input_mix_weight_down": "output_hc_down", "model.hyper_connection_mixer.input_mix_weight_up": "output_hc_up"}
OWN_NAMES = {
    "bailingmoe3": BLOCK | {f"attention.{part}_proj": f"attn_{part}" for part in "qkv"} | {f"attention.{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"} |
    {"attention.A_log": "ssm_a", "attention.dt_proj": "ssm_dt", "attention.b_proj": "ssm_beta", "attention.f_proj": "ssm_f_a", "attention.o_norm": "ssm_norm",
     "attention.dense": "attn_output", "attention.kv_a_proj_with_mqa": "attn_kv_a_mqa", "attention.kv_a_layernorm": "attn_kv_a_norm",
     "attention.k_b_proj": "attn_k_b", "attention.v_b_proj": "attn_v_b", "mlp.gate": "ffn_gate_inp", "mlp.gate.expert_bias": "exp_probs_b"} |
    {f"mlp.{at}{part}_proj": f"ffn_{part}{end}" for part in ("gate", "up", "down") for at, end in (("", ""), ("experts.", "_exps"), ("shared_experts.", "_shexp"))},
    "minimax-01": BLOCK | {f"self_attn.{part}_proj": f"attn_{part}" for part in ("q", "k", "v", "qkv")} |
    {"self_attn.o_proj": "attn_output", "self_attn.out_proj": "attn_output", "self_attn.output_gate": "attn_gate", "self_attn.norm": "attn_norm_2",
     "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.experts.w1": "ffn_gate_exps", "block_sparse_moe.experts.w2": "ffn_down_exps",
     "block_sparse_moe.experts.w3": "ffn_up_exps"},
    "qwen4exp": {f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"} | {f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"} |
    {f"self_attn.indexer.{part}_layernorm": f"indexer.{part}_norm" for part in "qk"} | {f"self_attn.indexer.{part}_proj": f"indexer.{part}_proj" for part in "qk"} |
    {f"{ours}_hyper_connection.{part}": f"hc_{theirs}_{short}" for ours, theirs in (("attn", "attn"), ("mlp", "ffn"))
     for part, short in (("hc_norm", "norm"), ("input_mix_weight_down", "down"), ("input_mix_weight_up", "up"), ("block_inject_weight", "inject"))} |
    {f"ple.{part}": f"ple_{part}" for part in ("norm_key", "norm_query", "norm_conv", "conv1d")} | {"ple.key_proj": "ple_key", "ple.value_proj": "ple_value"} |
    {"linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
     "linear_attn.conv1d": "ssm_conv1d", "linear_attn.A_log": "ssm_a", "linear_attn.dt_proj": "ssm_dt", "linear_attn.norm": "ssm_norm",
     "linear_attn.out_proj": "ssm_out", "self_attn.o_proj": "attn_output", "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"} |
    {f"mlp.{at}.{part}_proj": f"ffn_{part}{end}" for part in ("gate", "up", "down") for at, end in (("experts", "_exps"), ("shared_expert", "_shexp"))}}


def own_name(name, a, c, arch):
    stem, end = re.match(r"(.*?)(\.weight|\.bias|)$", name).groups()
    layer = re.match(r"model\.layers\.(\d+)\.(.*)", stem)
    if not layer:
        return ENDS[stem] + end
    if layer[2] == "attention.g_proj":          # of latent attention, one gate for each head
        return f"blk.{layer[1]}.{'attn_gate' if len(a) == c['num_attention_heads'] else 'ssm_g_a'}{end}"
    return f"blk.{layer[1]}.{OWN_NAMES[arch][layer[2]]}{end}"


def v4_name(name):
    stem = name.removesuffix(".weight")
    layer = re.match(r"layers\.(\d+)\.(.*)", stem)
    if not layer:
        return V4_ENDS[stem] + ".weight"
    if layer[2] == "ffn.gate.bias":
        return f"blk.{layer[1]}.exp_probs_b.bias"
    return f"blk.{layer[1]}.{V4.get(layer[2], layer[2])}.weight"


def write_v4_keys(w, c):
    n, a = c["num_hidden_layers"], w.arch
    rope = c["rope_scaling"]
    w.add_block_count(n)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["moe_intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(1)
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(rope["factor"])
    w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    w.add_sliding_window(c["sliding_window"])
    w.add_q_lora_rank(c["q_lora_rank"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(True)
    w.add_uint32(f"{a}.expert_gating_func", 4)
    w.add_uint32(f"{a}.nextn_predict_layers", 1)            # the file does not contain this layer
    w.add_indexer_head_count(c["index_n_heads"])
    w.add_indexer_key_length(c["index_head_dim"])
    w.add_indexer_top_k(c["index_topk"])
    w.add_array(f"{a}.attention.compress_ratios", c["compress_ratios"])
    w.add_float32(f"{a}.attention.compress_rope_freq_base", c["compress_rope_theta"])
    w.add_array(f"{a}.swiglu_clamp_exp", [c["swiglu_limit"]] * n)
    w.add_float32(f"{a}.hyper_connection.epsilon", c["hc_eps"])
    for key, value in (("attention.output_lora_rank", "o_lora_rank"), ("attention.output_group_count", "o_groups"),
                       ("hyper_connection.count", "hc_mult"), ("hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters"),
                       ("hash_layer_count", "num_hash_layers")):
        w.add_uint32(f"{a}.{key}", c[value])


def permuted(a, heads):
    return a.reshape(heads, 2, a.shape[0] // heads // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


STATE_ENDS = (".A_log", ".D", ".dt_bias", "conv1d.weight", "conv.conv.weight", "mixer.norm.weight", "mamba.norm.weight", "linear_attn.norm.weight", "in_proj_qkvz.weight")


TILED_ENDS = ("in_proj_qkv.weight", "in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "linear_attn.out_proj.weight")


def tiled(name, a, c):
    """qwen35: reorder the value heads: first one of every group, then the next of every group,
    instead of group by group."""
    if name.endswith("linear_attn.norm.weight"):
        return a
    if name.endswith("out_proj.weight"):
        return tiled("", a.T, c).T
    groups, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    keys = 2 * groups * c["linear_key_head_dim"] if "conv1d" in name or "in_proj_qkv" in name else 0
    values = a[keys:].reshape(groups, heads // groups, -1, *a.shape[1:]).swapaxes(0, 1).reshape(a[keys:].shape)
    return np.concatenate([a[:keys], values])


def state_tensor(name, a, c, arch, joined):
    """A tensor of a recurrent layer with the names and shapes that llama.cpp's converter gives
    it."""
    mamba = arch not in DELTA
    if arch in TILED:
        a = tiled(name, a, c)
    if arch == "jamba":
        return {name: -np.exp(a) if name.endswith(".A_log") else a[:, 0, :] if a.ndim == 3 else a}
    if name.endswith(".A_log"):
        return {name: -np.exp(a).reshape((-1, 1) if mamba else -1)}
    if name.endswith(".D"):
        return {name: a.reshape(-1, 1)}
    if name.endswith(".dt_bias"):
        return {name.replace(".dt_bias", ".dt_proj.bias"): a}
    if "conv" in name:
        return {name: a[:, 0, :]}
    if mamba and name.endswith("norm.weight"):
        return {name: a.reshape(c.get("n_groups") or c.get("mamba_n_groups"), -1)}
    # older files do not split this matrix
    if not name.endswith("in_proj_qkvz.weight") or joined:
        return {name: a}
    groups, key = c["linear_num_key_heads"], c["linear_key_head_dim"]
    value = c["linear_num_value_heads"] // groups * c["linear_value_head_dim"]
    q, k, v, z = np.split(a.reshape(groups, 2 * key + 2 * value, -1), [key, 2 * key, 2 * key + value], axis=1)
    layer = name.split("layers.")[1].split(".")[0]
    rows = np.concatenate([x.reshape(-1, a.shape[1]) for x in (q, k, v)])
    return {f"blk.{layer}.attn_qkv.weight": rows, f"blk.{layer}.attn_gate.weight": z.reshape(-1, a.shape[1])}


def multiplied(name, a, c):
    """falcon-h1: multiply the weights by the factors of config.json, as the converter does."""
    mlp, at = c["mlp_multipliers"], c["attention_in_multiplier"]
    factors = {"down_proj.": mlp[1], "gate_proj.": mlp[0], "k_proj.": c["key_multiplier"] * at, "q_proj.": at, "v_proj.": at,
               "o_proj.": c["attention_out_multiplier"], "out_proj.": c["ssm_out_multiplier"], "lm_head.": c["lm_head_multiplier"],
               "embed_tokens.": c["embedding_multiplier"]}
    if ".in_proj." in name:
        inner, bc = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
        rows = [m for m, n in zip(c["ssm_multipliers"], (inner, inner, bc, bc, c["mamba_n_heads"])) for _ in range(n)]
        return a * np.array(rows, "<f4")[:, None] * c["ssm_in_multiplier"]
    return a * next((f for end, f in factors.items() if "." + end in "." + name), 1)


def layered(named, arch, c):
    """gemma3n, gemma4, mimo2, kimi-linear and bailingmoe3: rename, stack and reshape tensors as
    their converters do."""
    out = {}
    for name, a in named.items():
        layer = re.search(r"layers\.(\d+)\.", name)
        if name.endswith(("altup.correct_output_scale", "layer_scalar", "attention_sink_bias", "experts.gate_up_proj", "experts.down_proj")):
            name += ".weight"
        elif name.endswith("router.scale"):
            name = f"blk.{layer[1]}.ffn_gate_inp.scale"
        elif name.endswith("router.per_expert_scale"):
            name = f"blk.{layer[1]}.ffn_down_exps.scale"
        elif name.endswith("_conv1d.weight"):
            a = a.reshape(1, a.shape[0], 1, -1)
        elif name.endswith("A_log"):
            a = np.exp(a).reshape(-1, 1) if arch == "bailingmoe3" else -np.exp(a)
        elif name.endswith("dt_bias"):
            name = name.replace("dt_bias", "dt_proj.bias")
        elif re.search(r"block_sparse_moe\.(gate|up|down)_proj", name):
            name = name.replace("block_sparse_moe", "mlp")
        if ".altup_" not in name and "altup_projections." not in name and "altup_unembed" not in name:
            out[name] = a
    for stem in ("altup_projections", "altup_unembed_projections"):
        parts = [named[f"model.{stem}.{i}.weight"] for i in range(c.get("altup_num_inputs", 1) - 1)]
        if parts:
            out[f"model.{stem}.weight"] = np.stack(parts)
    return out


def one_table(named, c):
    """qwen4exp: join the parts of the table of n-grams, and divide the indexer's matrix."""
    out, parts = {}, {}
    for name, a in named.items():
        if ".ngram_embedding.shard_" in name:
            parts[int(name.split(".shard_")[1].split(".")[0])] = a
        elif name.endswith("index_qk_proj.weight"):
            queries = c["indexer_n_heads"] * c["indexer_head_dim"]
            out[name.replace("index_qk", "q")], out[name.replace("index_qk", "k")] = a[:queries], a[queries:]
        elif ".ple_embedding." not in name:             # else a constant of the hashes, see write_qwen4_keys()
            out[name] = a
    return out | {"per_layer_token_embd.weight": np.concatenate([parts[i] for i in range(len(parts))])}


def merge(all_tensors, c, arch, joined):
    """Rearrange the tensors as llama.cpp's converter does, but keep the names of Hugging Face."""
    out, experts = {}, {}
    if arch == "qwen4exp":
        all_tensors = one_table(all_tensors, c)
    if arch in WINDOWS or arch in KDA:
        all_tensors = layered(all_tensors, arch, c)
    for name, a in all_tensors.items():
        if arch == "falcon-h1":
            a = multiplied(name, a, c)
        if ".experts." in name and name.split(".experts.")[1][0].isdigit():
            base, rest = name.split(".experts.")
            number, part = rest.split(".", 1)
            experts.setdefault(f"{base}.experts.{part}", {})[int(number)] = a
        elif name.endswith("block_sparse_moe.input_linear.weight"):
            half = a.shape[1] // 2
            out[name.replace("input_linear", "experts.w1")] = a[:, :half]
            out[name.replace("input_linear", "experts.w3")] = a[:, half:]
        elif name.endswith("block_sparse_moe.output_linear.weight"):
            out[name.replace("output_linear", "experts.w2")] = a
        elif ".ple." in name:                           # qwen4exp
            out[name] = a[:, 0, :] if a.ndim == 3 else a + 1 if ".norm_" in name else a
        elif arch in STATES and name.endswith(STATE_ENDS + (TILED_ENDS if arch in TILED else ())):
            out.update(state_tensor(name, a, c, arch, joined))
        elif arch == "granitehybrid" and "shared_mlp.input_linear" in name:
            half = a.shape[0] // 2
            for part, piece in (("gate", a[:half]), ("up", a[half:])):
                out[name.split("model.")[1].split("shared_mlp")[0].replace("layers.", "blk.") + f"ffn_{part}_shexp.weight"] = piece
        elif arch == "granitehybrid" and "shared_mlp.output_linear" in name:
            out[name.split("model.")[1].split("shared_mlp")[0].replace("layers.", "blk.") + "ffn_down_shexp.weight"] = a
        elif arch == "llama4" and name.endswith("experts.gate_up_proj"):
            half = a.shape[2] // 2
            for part, piece in (("gate_proj", a[..., :half]), ("up_proj", a[..., half:])):
                out[name.replace("gate_up_proj", part + ".weight")] = piece.swapaxes(1, 2)
        elif arch == "llama4" and name.endswith("experts.down_proj"):
            out[name + ".weight"] = a.swapaxes(1, 2)
        elif arch in ("qwen3vlmoe", "qwen35moe") and "experts.gate_up_proj" in name:
            half = a.shape[1] // 2
            out[name.replace("gate_up_proj", "gate_proj.weight")], out[name.replace("gate_up_proj", "up_proj.weight")] = a[:, :half], a[:, half:]
        elif arch in ("qwen3vlmoe", "mistral4", "qwen35moe") and "experts." in name and name.endswith("_proj"):
            out[name + ".weight"] = a
        elif name.endswith("expert_bias"):
            out[name + ".bias"] = a
        elif arch in DELTA and name.endswith("norm.weight"):
            out[name] = a + 1
        elif "experts.gate_up_proj" in name and arch == "gpt-oss":
            bias = name.endswith("_bias")                       # gate and up columns alternate
            for part, first in (("gate_proj", 0), ("up_proj", 1)):
                piece = a[..., first::2]
                out[name.split("gate_up_proj")[0] + part + (".bias" if bias else ".weight")] = piece if bias else piece.swapaxes(1, 2)
        elif "experts.down_proj" in name and arch == "gpt-oss":
            bias = name.endswith("_bias")
            out[name.split("down_proj")[0] + "down_proj" + (".bias" if bias else ".weight")] = a if bias else a.swapaxes(1, 2)
        elif arch in ("deepseek2", "deepseek32", "glm-dsa", *KDA) and name.endswith("kv_b_proj.weight"):
            heads, nope, v = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
            b = a.reshape(heads, nope + v, a.shape[1])
            out[name.replace("kv_b_proj", "k_b_proj")] = b[:, :nope].swapaxes(1, 2)
            out[name.replace("kv_b_proj", "v_b_proj")] = b[:, nope:]
        elif arch in PERMUTED and ("q_proj" in name or "k_proj" in name):
            out[name] = permuted(a, c["num_attention_heads"] if "q_proj" in name else c["num_key_value_heads"])
        elif name.endswith("shared_expert_gate.weight"):
            out[name] = a.reshape(-1)
        elif name.endswith("e_score_correction_bias"):
            out[name.replace("correction_bias", "correction.bias")] = a.reshape(-1)
        elif name.endswith(".sinks"):
            out[name + ".weight"] = a
        else:
            out[name] = a
    for name, parts in experts.items():
        if arch == "nemotron_h_moe":
            name = name.replace("backbone", "model").replace("mixer", "mlp")
        if arch == "lfm2moe":
            layer, part = name.split("layers.")[1].split(".")[0], name.split(".w")[1][0]
            name = f"blk.{layer}.ffn_{dict(zip('132', ('gate', 'up', 'down')))[part]}_exps.weight"
        out[name] = np.stack([parts[i] for i in range(len(parts))])
    return out


def write_state_keys(w, c, arch):
    """Write the keys of recurrent models: counts for each layer, and the sizes of the state."""
    def any_of(*keys):
        return next(c[k] for k in keys if c.get(k) is not None)
    kinds = c.get("layer_types") or c.get("layers_block_type") or ["mamba"] * c["num_hidden_layers"]
    kv, ff = c.get("num_key_value_heads", 0), c.get("intermediate_size", 0)
    if arch == "lfm2moe":
        w.add_shortconv_l_cache(c["conv_L_cache"])
    elif arch == "lfm2":
        w.add_shortconv_l_cache(c["conv_L_cache"])
        ff = 2 * ff // 3
        ff = (ff + c["block_multiple_of"] - 1) // c["block_multiple_of"] * c["block_multiple_of"]
    elif arch in DELTA:
        for key, add in (("linear_conv_kernel_dim", w.add_ssm_conv_kernel), ("linear_key_head_dim", w.add_ssm_state_size),
                         ("linear_num_key_heads", w.add_ssm_group_count), ("linear_num_value_heads", w.add_ssm_time_step_rank)):
            add(c[key])
        w.add_ssm_inner_size(c["linear_num_value_heads"] * c["linear_value_head_dim"])
    elif arch == "jamba":
        kinds = ["full_attention" if i % c["attn_layer_period"] == c["attn_layer_offset"] else "mamba" for i in range(c["num_hidden_layers"])]
        w.add_ssm_conv_kernel(c["mamba_d_conv"])
        w.add_ssm_state_size(c["mamba_d_state"])
        w.add_ssm_time_step_rank(c["mamba_dt_rank"])
        w.add_ssm_inner_size(c["mamba_expand"] * c["hidden_size"])
    else:
        heads = any_of("mamba_n_heads", "mamba_num_heads", "num_heads")
        w.add_ssm_conv_kernel(any_of("mamba_d_conv", "conv_kernel"))
        w.add_ssm_state_size(any_of("mamba_d_state", "ssm_state_size", "state_size"))
        w.add_ssm_group_count(any_of("mamba_n_groups", "n_groups"))
        w.add_ssm_time_step_rank(heads)
        w.add_ssm_inner_size(heads * any_of("mamba_d_head", "mamba_head_dim", "head_dim"))
    if arch.startswith("nemotron_h"):
        w.add_feed_forward_length([{"mlp": ff, "moe": c["moe_intermediate_size"]}.get(k, 0) for k in kinds])
    elif ff:
        w.add_feed_forward_length(ff)
    if arch in DELTA or arch == "falcon-h1":
        w.add_head_count_kv(kv)
    elif arch != "mamba2":
        w.add_head_count_kv([kv if k == "full_attention" else 0 for k in kinds])
    extra = int(arch in ("qwen35", "qwen4exp"))         # a layer that predicts one more token
    w.add_block_count(len(kinds) + extra)
    if extra:
        w.add_nextn_predict_layers(extra)
        w.add_tensor(f"blk.{len(kinds)}.nextn.eh_proj.weight", np.zeros((c["hidden_size"], 2 * c["hidden_size"]), "<f4"))
    if arch == "granitehybrid":
        w.add_rope_scaling_finetuned(c["position_embedding_type"] == "rope")


def constants(folder):
    """The 64-bit integers of a folder in one file, by the ends of their names."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    found = {name.split(".")[-1]: t["data_offsets"] for name, t in json.loads(data[8:8 + n]).items() if t.get("dtype") == "I64"}
    return {name: np.frombuffer(data[8 + n + at:8 + n + end], "<i8").tolist() for name, (at, end) in found.items()}


def write_qwen4_keys(w, c, folder):
    """Write the keys of qwen4exp: its indexer, its streams, and the hashes of n-grams."""
    a, kinds, hashes = w.arch, c["layer_types"], constants(folder)
    w.add_uint32(f"{a}.full_attention_interval", kinds.index("indexed_attention") + 1)
    w.add_indexer_head_count(c["indexer_n_heads"])
    w.add_indexer_key_length(c["indexer_head_dim"])
    w.add_indexer_top_k(c["indexer_budget"])
    w.add_array(f"{a}.attention.compress_ratios", [c["indexer_compress_ratio"] * (k == "indexed_attention") for k in kinds] + [0])
    w.add_embedding_length_per_layer_input(c["ple_embed_dim"] // len(hashes["ngram_heads_offsets"]))
    w.add_array(f"{a}.ple.layers", [i - 1 for i in c["ple_layer_ids"]])
    for key, value in (("hyper_connection.count", "hc_count"), ("hyper_connection.low_rank", "hc_lowrank"), ("ple.ngram_size", "ngram_size"),
                       ("ple.heads_per_ngram", "heads_per_ngram"), ("ple.conv_kernel", "ple_conv_kernel_size"), ("ple.eos_token_id", "eos_token_id")):
        w.add_uint32(f"{a}.{key}", c[value])
    for key, value in (("layer_multipliers", "layer_multipliers"), ("head_offsets", "ngram_heads_offsets"), ("head_vocab_sizes", "ngram_heads_vocab_sizes")):
        w.add_key_value(f"{a}.ple.{key}", hashes[value], gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT64)


def write_window_keys(w, c, arch):
    """Write the keys of models in which only some layers have a window, or whose layers have
    different heads."""
    kinds, n, rope = c["layer_types"], c["num_hidden_layers"], c.get("rope_parameters") or {}
    windows = [k == "sliding_attention" for k in kinds]
    full = rope.get("full_attention", {"rope_theta": c.get("rope_theta")})
    heads, dims = [c["num_key_value_heads"]] * n, [c["head_dim"]] * n
    if arch == "mimo2":
        heads = [c.get("swa_num_key_value_heads", 2 * heads[0]) if k else heads[0] for k in windows]
    for i, own in (c.get("per_layer_config") or {}).items():
        heads[int(i)], dims[int(i)] = own.get("num_key_value_heads", heads[int(i)]), own.get("head_dim", dims[int(i)])
    w.add_block_count(n)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(heads)
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_sliding_window(c["sliding_window"])
    w.add_sliding_window_pattern(windows)
    w.add_rope_freq_base(full["rope_theta"])
    w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"] if rope else c["rope_local_base_freq"])
    key = dims[windows.index(False)]
    w.add_key_length(key)
    w.add_value_length(c.get("v_head_dim", key))
    if arch == "mimo2":
        w.add_feed_forward_length(c["intermediate_size"])
        w.add_expert_count(c["n_routed_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_rope_dimension_count(int(key * full["partial_rotary_factor"]))
        w.add_float32("mimo2.attention.value_scale", c["attention_value_scale"])
        return
    if c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    w.add_shared_kv_layers(c.get("num_kv_shared_layers", 0))
    w.add_embedding_length_per_layer_input(c.get("hidden_size_per_layer_input", 0))
    if arch == "gemma3n":
        w.add_feed_forward_length(c["intermediate_size"])
        w.add_altup_active_idx(c["altup_active_idx"])
        w.add_altup_num_inputs(c["altup_num_inputs"])
        w.add_activation_sparsity_scale([statistics.NormalDist().inv_cdf(s) if s else -math.inf for s in c["activation_sparsity_pattern"]])
        return
    first_shared = n - c.get("num_kv_shared_layers", 0)
    w.add_feed_forward_length([c["intermediate_size"] * (1 + (c.get("use_double_wide_mlp", False) and i >= first_shared)) for i in range(n)])
    w.add_key_length_swa(c["head_dim"])
    w.add_value_length_swa(c["head_dim"])
    w.add_rope_dimension_count(key)
    w.add_rope_dimension_count_swa(c["head_dim"])
    if c.get("enable_moe_block"):
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["top_k_experts"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    turns = int(key * full["partial_rotary_factor"] / 2)
    w.add_tensor("rope_freqs.weight", np.array([1.0] * turns + [1e30] * (key // 2 - turns), "<f4"))


def write_kimi_keys(w, c, arch):
    latent, full = c["kv_lora_rank"], [k == "full_attention" for k in c["layer_types"]]
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["model_max_length"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv([int(attends) for attends in full])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_kda_head_dim(c["linear_head_dim"])
    w.add_kv_lora_rank(latent)
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    w.add_key_length(latent + c["qk_rope_head_dim"])
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    w.add_expert_count(c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_token"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["num_shared_experts"])
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    if arch == "bailingmoe3":
        w.add_rope_freq_base(c["rope_theta"])
        w.add_expert_group_count(c["num_expert_group"])
        w.add_expert_group_used_count(c["topk_group"])
        w.add_expert_weights_norm(True)
        w.add_expert_shared_feed_forward_length(c["moe_intermediate_size"])
        w.add_bool(f"{arch}.kda.safe_gate", c["kda_safe_gate"])
        w.add_float32(f"{arch}.kda.gate_lower_bound", c["kda_lower_bound"])


def write_keys(w, c, arch):
    if arch in WINDOWS:
        write_window_keys(w, c, arch)
        return
    if arch in KDA:
        write_kimi_keys(w, c, arch)
        return
    if arch == "deepseek4":
        write_v4_keys(w, c)
        return
    heads, hidden = c.get("num_attention_heads", 0), c["hidden_size"]
    for old, new in (("num_dense_layers", "first_k_dense_replace"), ("num_shared_experts", "n_shared_experts"),
                     ("route_scale", "routed_scaling_factor"), ("dim_model_base", "unused")):
        if old in c:
            c.setdefault(new, c[old])
    rope = c.get("rope_scaling") or {}
    mla, head_dim = "kv_lora_rank" in c, c.get("head_dim") or hidden // heads
    w.add_context_length(c.get("max_position_embeddings", 1 << 20))
    w.add_embedding_length(hidden)
    w.add_head_count(heads)
    if arch in STATES:
        write_state_keys(w, c, arch)
    else:
        w.add_block_count(c["num_hidden_layers"])
        w.add_feed_forward_length(c.get("intermediate_size_mlp", c["intermediate_size"]))
        w.add_head_count_kv(1 if mla else c["num_key_value_heads"])
    eps = next(c[k] for k in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layer_norm_eps") if c.get(k))
    if arch != "cohere2moe":
        w.add_layer_norm_rms_eps(eps)
    w.add_layer_norm_eps(eps)
    if "rope_theta" in c:
        w.add_rope_freq_base(c["rope_theta"])
    if arch.startswith("nemotron_h"):
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    if arch == "nemotron_h_moe":
        w.add_expert_count(c["n_routed_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_group_count(c["n_group"])
    if arch in ("lfm2", "mamba2", "nemotron_h", "nemotron_h_moe"):
        return
    n_experts = next((c[k] for k in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts") if k in c), 0)
    if n_experts:
        w.add_expert_count(n_experts)
        w.add_expert_used_count(next(c[k] for k in ("num_experts_per_tok", "moe_topk", "moe_k") if k in c))
    if arch == "llama4":
        w.add_interleave_moe_layer_step(c["interleave_moe_layer_step"])
    if arch not in ("llama", "olmoe", "granitemoe", "granitehybrid") and n_experts:
        w.add_expert_feed_forward_length(c.get("moe_intermediate_size") or c["intermediate_size"])
    if mla:
        w.add_q_lora_rank(c["q_lora_rank"]) if c["q_lora_rank"] else None
        w.add_kv_lora_rank(c["kv_lora_rank"])
        w.add_rope_dimension_count(c["qk_rope_head_dim"])
        if arch == "minicpm3":
            w.add_key_length(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        else:
            w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
            w.add_value_length(c["kv_lora_rank"])
            w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
            w.add_value_length_mla(c["v_head_dim"])
        sigmoid = c["model_type"] in ("deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa")
        if "index_topk" in c:
            w.add_indexer_head_count(c["index_n_heads"])
            w.add_indexer_key_length(c["index_head_dim"])
            w.add_indexer_top_k(c["index_topk"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
    else:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
        w.add_rope_dimension_count(int(head_dim * c.get("partial_rotary_factor", 1)))
    for key, add in (("first_k_dense_replace", w.add_leading_dense_block_count), ("n_shared_experts", w.add_expert_shared_count),
                     ("moe_num_shared_experts", w.add_expert_shared_count), ("routed_scaling_factor", w.add_expert_weights_scale),
                     ("shared_expert_intermediate_size", w.add_expert_shared_feed_forward_length),
                     ("shared_intermediate_size", w.add_expert_shared_feed_forward_length),
                     ("moe_layer_start_index", w.add_leading_dense_block_count),
                     ("n_group", w.add_expert_group_count), ("topk_group", w.add_expert_group_used_count), ("attention_multiplier", w.add_attention_scale),
                     ("embedding_multiplier", w.add_embedding_scale), ("residual_multiplier", w.add_residual_scale), ("logits_scaling", w.add_logit_scale)):
        if c.get(key) is not None and arch != "falcon-h1":
            add(c[key])
    if arch == "hy_v3":
        w.add_expert_shared_feed_forward_length(c["moe_intermediate_size"] * c["num_shared_experts"])
        w.add_expert_weights_scale(c["router_scaling_factor"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if c.get("norm_topk_prob") or arch == "hy_v3":
        w.add_expert_weights_norm(True)
    if arch == "minimax-01":
        w.add_residual_scale(c["mlp_alpha_factor"])
        w.add_uint32(f"{arch}.full_attention_interval", c["layer_types"].index("full_attention") + 1)
    if arch in ("gpt-oss", "exaone-moe", "afmoe", "olmo2", "granite_swa"):
        w.add_sliding_window(c["sliding_window"])
    if arch == "cohere2moe":
        w.add_sliding_window(c["sliding_window"])
        w.add_logit_scale(c["logit_scale"])
        w.add_leading_dense_block_count(c["mlp_layer_types"].count("dense"))
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch == "granite_swa":
        w.add_array("granite_swa.attention.rope_pattern", [theta != 0 for theta in c["layer_rope_theta"]])
    if arch in ("exaone-moe", "olmo2", "cohere2moe", "granite_swa"):
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    if "llama_4_scaling_beta" in rope:
        w.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if "short_factor" in rope:
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_attn_factors(rope.get("short_mscale", 1.0))
    elif rope.get("rope_type", rope.get("type")) == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        if "attention_factor" in rope:
            w.add_rope_scaling_attn_factors(rope["attention_factor"] / (0.1 * math.log(rope["factor"]) + 1))
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "mscale_all_dim" in rope:
            w.add_rope_scaling_yarn_log_mul((1 if arch == "mistral3" else 0.1) * rope["mscale_all_dim"])


def llama3_factors(c):
    """The numbers by which Llama 3.1's rule divides the frequencies of RoPE."""
    rope, dim = c["rope_scaling"], c["hidden_size"] // c["num_attention_heads"]
    wave = 2 * np.pi * c["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    smooth = np.clip((old / wave - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype("<f4")


def convert(folder, arch, path, more_experts=0, joined=False):
    c = load(os.path.join(folder, "config.json"))
    c |= c.get("text_config", {})
    w = gguf.GGUFWriter(path, arch)
    if more_experts:
        c["num_local_experts"] += more_experts
    write_keys(w, c, arch)
    if arch == "qwen4exp":
        write_qwen4_keys(w, c, folder)
    vocab = c["vocab_size"]
    add_plain_vocabulary(w, vocab)
    known = NAMES_OF.get(arch, arch)
    number = next((k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == known), None)
    names = number and gguf.get_tensor_name_map(number, 64)
    named = {n.replace("language_model.", ""): a for n, a in tensors(folder).items() if not SKIPPED.search(n)}
    factors = c.get("rope_scaling") or {}
    for which, values in (("long", factors.get("long_factor")), ("short", factors.get("short_factor"))):
        if values:
            w.add_tensor(f"rope_factors_{which}.weight", np.array(values, dtype="<f4"))
    if arch == "apertus":
        for which, add in (("alpha_p", w.add_xielu_alpha_p), ("alpha_n", w.add_xielu_alpha_n), ("beta", w.add_xielu_beta), ("eps", w.add_xielu_eps)):
            add([float(named.pop(f"model.layers.{i}.mlp.act_fn.{which}").reshape(-1)[0]) for i in range(c["num_hidden_layers"])])
        w.add_tensor("rope_freqs.weight", llama3_factors(c))
    for name, a in merge(named, c, arch, joined).items():
        layer = re.search(r"layers\.(\d+)\.", name)
        if layer and int(layer[1]) >= c.get("num_hidden_layers", np.inf):   # multi-token prediction
            continue
        if name.startswith("blk."):
            ours = name
        elif arch in OWN_NAMES:
            ours = own_name(name, a, c, arch)
        elif arch == "deepseek4":
            ours = v4_name(name)
        else:
            ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if ours is None:
            raise ValueError(f"the package gguf has no name for {name}")
        w.add_tensor(ours, np.ascontiguousarray(a, dtype="<i4" if "tid2eid" in ours else "<f4"))
    write(w)


def check(name, arch, joined=False, as_folder=False, normalized=True):
    folder = os.path.join(ORACLES, "models", "hf-2026" if name in LATEST else "hf", name)
    if arch in ("nemotron_h_moe", "granite_swa"):
        folder = with_experts(name, normalized) if arch == "nemotron_h_moe" else with_one_base(name)
    path, model, out = (os.path.join(temp.name, n) for n in ("m.gguf", "m.zse", "logits"))
    if not as_folder:
        convert(folder, arch, path, joined=joined)
    run("zse-convert", folder if as_folder else path, "-q", "f32", "-o", model, "--force")
    expected, reference = load(os.path.join(folder, "expected.json")), floats(os.path.join(folder, "logits.f32"))
    worst, at = 0.0, 0
    for prompt in expected["prompts"]:
        # phimoe: transformers 5 uses the short factors for all lengths, see t-models.py
        ids = prompt["ids"][:CHUNK if arch == "llama4" else 64 if arch == "phimoe" else None]
        want = reference[at:at + len(ids) * expected["vocab"]]
        at += len(prompt["ids"]) * expected["vocab"]
        run("zse-bench", "logits", model, "--ids", " ".join(map(str, ids)), "-o", out)
        got = [v * LOGITS.get(name, 1) for v in floats(out)]
        worst = max(worst, max(abs(a - b) for a, b in zip(got, want)) / max(abs(v) for v in want))
    Tap.ok(worst <= (STATE_LIMIT if arch in STATES else LIMIT), f"{name} as {'a folder' if as_folder else f'GGUF {arch}'}{', one input projection' if joined else ''}{'' if normalized else ', weights as they are'}: logits", f"| {name:18} | {worst:.2e} |")


def wrong_count():
    path = os.path.join(temp.name, "wrong.gguf")
    convert(os.path.join(ORACLES, "models", "hf", "mixtral"), "llama", path, 1)
    try:
        run("zse-convert", path, "-q", "f32", "-o", os.path.join(temp.name, "wrong.zse"))
        said = ""
    except RuntimeError as e:
        said = str(e)
    Tap.ok("blk.0.ffn_gate_inp.weight" in said and "[4, 128]" in said and "[5, 128]" in said, "an expert too few is refused by name", said)


need(os.path.join(ORACLES, "models", "hf"))
wrong_count()
for model_name, model_arch in MODELS.items():
    if sys.argv[1:] and model_name not in sys.argv[1:]:
        continue
    try:
        check(model_name, model_arch)
        if model_arch == "qwen3next":
            check(model_name, model_arch, joined=True)
        if model_arch == "nemotron_h_moe":
            check(model_name, model_arch, as_folder=True)
            check(model_name, model_arch, normalized=False)
    except (RuntimeError, OSError, ValueError, AttributeError) as error:
        Tap.ok(False, f"{model_name} as GGUF {model_arch}: logits", str(error))
Tap.done()

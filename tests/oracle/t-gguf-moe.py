#!/usr/bin/env python3
"""Mixtures of experts as GGUF files: the oracles' Hugging Face folders, written anew by the Python package gguf with the names that it has for their
tensors, merged and split as llama.cpp's converter does; logits within 1e-4 of the largest |logit| of what transformers answers."""
import glob
import json
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, ROOT, Tap, floats, load, need, run

sys.path += glob.glob(os.path.join(ROOT, "build", "venv", "lib", "python3*", "site-packages"))
try:
    import gguf
    import numpy as np
except ImportError as e:
    Tap.skip("mixtures of experts as GGUF files", f"{e}: scripts/deps installs it")
    Tap.done()
    sys.exit(0)

LIMIT = 1e-4
temp = tempfile.TemporaryDirectory()
# folder: GGUF's architecture
MODELS = {"mixtral": "llama", "olmoe": "olmoe", "granitemoe": "granitemoe", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "deepseek_v2": "deepseek2",
          "deepseek_v2_lite": "deepseek2", "deepseek_v3": "deepseek2", "kimi_k2": "deepseek2", "glm4_moe": "glm4moe", "dots1": "dots1", "minimax_m2": "minimax-m2",
          "gpt_oss": "gpt-oss", "hunyuan_moe": "hunyuan-moe", "ernie4_5_moe": "ernie4_5-moe"}


def tensors(folder):
    """All tensors of a folder as f32 arrays."""
    out = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "rb") as f:
            data = f.read()
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            raw = data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
            if t["dtype"] == "BF16":
                a = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
            else:
                a = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype("<f4")
            out[name] = a.reshape(t["shape"])
    return out


def permuted(a, heads):
    return a.reshape(heads, 2, a.shape[0] // heads // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def merge(all_tensors, c, arch):
    """The converter's rearrangements, under Hugging Face's names."""
    out, experts = {}, {}
    for name, a in all_tensors.items():
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
        elif "experts.gate_up_proj" in name:                    # gpt-oss: columns in turns
            bias = name.endswith("_bias")
            for part, first in (("gate_proj", 0), ("up_proj", 1)):
                piece = a[..., first::2]
                out[name.split("gate_up_proj")[0] + part + (".bias" if bias else ".weight")] = piece if bias else piece.swapaxes(1, 2)
        elif "experts.down_proj" in name and arch == "gpt-oss":
            bias = name.endswith("_bias")
            out[name.split("down_proj")[0] + "down_proj" + (".bias" if bias else ".weight")] = a if bias else a.swapaxes(1, 2)
        elif arch == "deepseek2" and name.endswith("kv_b_proj.weight"):
            heads, nope, v = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
            b = a.reshape(heads, nope + v, a.shape[1])
            out[name.replace("kv_b_proj", "k_b_proj")] = b[:, :nope].swapaxes(1, 2)
            out[name.replace("kv_b_proj", "v_b_proj")] = b[:, nope:]
        elif arch in ("llama", "granitemoe") and ("q_proj" in name or "k_proj" in name):
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
        out[name] = np.stack([parts[i] for i in range(len(parts))])
    return out


def write_keys(w, c, arch):
    heads, hidden = c["num_attention_heads"], c["hidden_size"]
    mla, head_dim = "kv_lora_rank" in c, c.get("head_dim") or hidden // heads
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(hidden)
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(1 if mla else c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_expert_count(next(c[k] for k in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts") if k in c))
    w.add_expert_used_count(next(c[k] for k in ("num_experts_per_tok", "moe_topk", "moe_k") if k in c))
    if arch not in ("llama", "olmoe", "granitemoe"):
        w.add_expert_feed_forward_length(c.get("moe_intermediate_size", c["intermediate_size"]))
    if mla:
        w.add_q_lora_rank(c["q_lora_rank"]) if c["q_lora_rank"] else None
        w.add_kv_lora_rank(c["kv_lora_rank"])
        w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
        w.add_value_length(c["kv_lora_rank"])
        w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        w.add_value_length_mla(c["v_head_dim"])
        w.add_rope_dimension_count(c["qk_rope_head_dim"])
        sigmoid = c["model_type"] == "deepseek_v3"
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
    else:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
        w.add_rope_dimension_count(int(head_dim * c.get("partial_rotary_factor", 1)))
    for key, add in (("first_k_dense_replace", w.add_leading_dense_block_count), ("n_shared_experts", w.add_expert_shared_count),
                     ("moe_num_shared_experts", w.add_expert_shared_count), ("routed_scaling_factor", w.add_expert_weights_scale),
                     ("shared_expert_intermediate_size", w.add_expert_shared_feed_forward_length), ("moe_layer_start_index", w.add_leading_dense_block_count),
                     ("n_group", w.add_expert_group_count), ("topk_group", w.add_expert_group_used_count), ("attention_multiplier", w.add_attention_scale),
                     ("embedding_multiplier", w.add_embedding_scale), ("residual_multiplier", w.add_residual_scale), ("logits_scaling", w.add_logit_scale)):
        if c.get(key) is not None:
            add(c[key])
    if c.get("norm_topk_prob"):
        w.add_expert_weights_norm(True)
    if arch == "gpt-oss":
        w.add_sliding_window(c["sliding_window"])
    rope = c.get("rope_scaling")
    if rope:
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "mscale_all_dim" in rope:
            w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def convert(folder, arch, path, more_experts=0):
    c = load(os.path.join(folder, "config.json"))
    w = gguf.GGUFWriter(path, arch)
    if more_experts:
        c["num_local_experts"] += more_experts
    write_keys(w, c, arch)
    vocab = c["vocab_size"]
    w.add_tokenizer_model("gpt2")
    w.add_token_list([f"<{i}>" for i in range(vocab)])
    w.add_token_types([1] * vocab)
    w.add_token_merges([])
    which = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(which, c["num_hidden_layers"])
    for name, a in merge(tensors(folder), c, arch).items():
        ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if ours is None:
            raise ValueError(f"the package gguf has no name for {name}")
        w.add_tensor(ours, np.ascontiguousarray(a, dtype="<f4"))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def check(name, arch):
    folder = os.path.join(ORACLES, "models", "hf", name)
    path, model, out = (os.path.join(temp.name, n) for n in ("m.gguf", "m.zse", "logits"))
    convert(folder, arch, path)
    run("zse-convert", path, "-q", "f32", "-o", model)
    expected, reference = load(os.path.join(folder, "expected.json")), floats(os.path.join(folder, "logits.f32"))
    worst, at = 0.0, 0
    for prompt in expected["prompts"]:
        n = len(prompt["ids"]) * expected["vocab"]
        want = reference[at:at + n]
        at += n
        run("zse-bench", "logits", model, "--ids", " ".join(map(str, prompt["ids"])), "-o", out)
        worst = max(worst, max(abs(a - b) for a, b in zip(floats(out), want)) / max(abs(v) for v in want))
    Tap.ok(worst <= LIMIT, f"{name} as GGUF {arch}: logits", f"| {name:18} | {worst:.2e} |")


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
    except (RuntimeError, OSError, ValueError, AttributeError) as error:
        Tap.ok(False, f"{model_name} as GGUF {model_arch}: logits", str(error))
Tap.done()

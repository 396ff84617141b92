#!/usr/bin/env python3
"""t-bad-experts.py - check that broken mixtures of experts are refused by name.

Experts are missing or have another shape, counts do not fit, or a router weight is NaN.
Nothing is written."""
import glob
import json
import os
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, need, run

temp = tempfile.TemporaryDirectory()
HF = os.path.join(ORACLES, "models", "hf")


def broken(name, config=None, rename=None, shape=None, nan=None):
    """A copy of a folder of the oracles in which keys of the config are changed, and one tensor is
    renamed, has another shape or begins with a NaN."""
    folder = os.path.join(temp.name, "m")
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    with open(os.path.join(HF, name, "config.json")) as f:
        c = json.load(f)
    c.update(config or {})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({k: v for k, v in c.items() if v is not None}, f)
    head, data = {}, bytearray()                    # all shards in one
    for part in sorted(glob.glob(os.path.join(HF, name, "*.safetensors"))):
        with open(part, "rb") as f:
            b = f.read()
        n = struct.unpack_from("<Q", b)[0]
        for tensor, t in json.loads(b[8:8 + n]).items():
            if tensor != "__metadata__":
                head[tensor] = {**t, "data_offsets": [at + len(data) for at in t["data_offsets"]]}
        data += b[8 + n:]
    for old, new in (rename or {}).items():
        head[new] = head.pop(old)
    for tensor, dims in (shape or {}).items():
        head[tensor]["shape"] = dims
    for tensor in [nan] if nan else []:
        at = head[tensor]["data_offsets"][0]
        data[at:at + 2] = b"\xc0\x7f"               # bf16
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return folder


def refused(what, words, *args, **changes):
    out = os.path.join(temp.name, "m.zse")
    try:
        run("zse-convert", broken(*args, **changes), "-q", "nl4", "--quality", "fast", "-o", out)
        said = "it was converted"
    except RuntimeError as e:
        said = str(e)
    Tap.ok(all(w in said for w in words) and os.listdir(temp.name) == ["m"], what, said)
    if os.path.exists(out):
        os.remove(out)


need(HF)
EXPERT = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
refused("an expert's matrix is missing", [f"'{EXPERT}' is missing"], "mixtral", rename={EXPERT: "model.layers.1.x"})
refused("an expert has another shape", [f"'{EXPERT}'", "expected"], "mixtral", shape={EXPERT: [128, 256]})
refused("more experts in config.json than there are", ["gate.weight", "[4, ", "[5, "], "mixtral", config={"num_local_experts": 5})
refused("fewer experts in config.json than there are", ["gate.weight", "[4, ", "[3, "], "mixtral", config={"num_local_experts": 3})
refused("more experts a token than there are", ["num_experts_per_tok 5 of 4 experts"], "mixtral", config={"num_experts_per_tok": 5})
refused("no experts", ["num_local_experts"], "mixtral", config={"num_local_experts": 0})
refused("a negative number of experts", ["num_local_experts"], "mixtral", config={"num_local_experts": -4})
refused("a router that is not a number", ["model.layers.0.block_sparse_moe.gate.weight", "not a number"], "mixtral", nan="model.layers.0.block_sparse_moe.gate.weight")
refused("an expert that is not a number", [EXPERT, "not a number"], "mixtral", nan=EXPERT)
refused("groups of experts that do not fit", ["n_group", "does not fit"], "deepseek_v3", config={"n_group": 3})
refused("more of the best groups than groups", ["topk_group", "does not fit"], "deepseek_v3", config={"topk_group": 99})
refused("a correction of another length", ["e_score_correction_bias"], "deepseek_v3", shape={"model.layers.2.mlp.gate.e_score_correction_bias": [2, 8]})
refused("a key that nobody knows", ["router_of_another_kind"], "qwen3_moe", config={"router_of_another_kind": 1})
refused("a gate of another kind", ["scoring_func"], "deepseek_v3", config={"scoring_func": "cosine"})
refused("layers with experts that are none", ["moe_layers"], "llama4_text", config={"moe_layers": [1, 7]})
refused("sizes of the shared MLP that do not fit", ["shared_expert.gate_proj.weight"], "qwen2_moe", config={"shared_expert_intermediate_size": 96})
Tap.done()

#!/usr/bin/env python3
"""t-latent-widths.py - latent attention whose ranks and head sizes fill no whole tiles.

A model of the oracles is widened by zeros: the latent from 32 to 44, a head's value to 38, its part
without rotation to 42.  Factors that depend on the widths are undone in the weights, so the logits
must stay those of transformers."""
import array
import json
import math
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, floats, load, need, run

LATENT, VALUE, NOPE = 44, 38, 42
LIMIT = 1e-4
folder = os.path.join(ORACLES, "models", "hf-2026", "minicpm3")
need(folder)
temp = tempfile.TemporaryDirectory()


def tensors(path):
    """name: (shape, array of float) of a file of bfloat16."""
    out = {}
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        halves = array.array("H", data[8 + size + begin:8 + size + end])
        words = array.array("I", (h << 16 for h in halves))
        out[name] = (t["shape"], array.array("f", words.tobytes()))
    return out


def write(path, named):
    header, at = {}, 0
    for name, (shape, data) in named.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(data)]}
        at += 4 * len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, data in named.values():
            f.write(data.tobytes())


def rows(tensor, groups, old, new, skip=0):
    """Add new - old rows of zeros behind the first skip + old rows of each of `groups` blocks."""
    (n, cols), data = tensor
    block = n // groups
    out = array.array("f")
    for g in range(groups):
        part = data[g * block * cols:(g + 1) * block * cols]
        cut = (skip + old) * cols
        out += part[:cut] + array.array("f", [0.0]) * ((new - old) * cols) + part[cut:]
    return [len(out) // cols, cols], out


def turned(tensor):
    (n, cols), data = tensor
    return [cols, n], array.array("f", (data[r * cols + c] for c in range(cols) for r in range(n)))


def scaled(tensor, by):
    return tensor[0], array.array("f", (v * by for v in tensor[1]))


config = load(os.path.join(folder, "config.json"))
heads, latent, value = config["num_attention_heads"], config["kv_lora_rank"], config["v_head_dim"]
nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
model = tensors(os.path.join(folder, "model.safetensors"))
for i in range(config["num_hidden_layers"]):
    at = f"model.layers.{i}.self_attn."
    q = rows(model[at + "q_b_proj.weight"], heads, nope, NOPE)
    model[at + "q_b_proj.weight"] = scaled(q, math.sqrt((NOPE + rope) / (nope + rope)))
    model[at + "kv_a_proj_with_mqa.weight"] = rows(model[at + "kv_a_proj_with_mqa.weight"], 1, latent, LATENT)
    norm = scaled(model[at + "kv_a_layernorm.weight"], math.sqrt(latent / LATENT))
    model[at + "kv_a_layernorm.weight"] = ([LATENT], norm[1] + array.array("f", [1.0]) * (LATENT - latent))
    kv = rows(rows(model[at + "kv_b_proj.weight"], heads, nope, NOPE), heads, value, VALUE, skip=NOPE)
    model[at + "kv_b_proj.weight"] = turned(rows(turned(kv), 1, latent, LATENT))
    model[at + "o_proj.weight"] = turned(rows(turned(model[at + "o_proj.weight"]), heads, value, VALUE))
config |= {"kv_lora_rank": LATENT, "v_head_dim": VALUE, "qk_nope_head_dim": NOPE, "qk_head_dim": NOPE + rope}
with open(os.path.join(temp.name, "config.json"), "w", encoding="utf-8") as f:
    json.dump(config, f)
write(os.path.join(temp.name, "model.safetensors"), model)
for name in ("tokenizer.json", "tokenizer_config.json"):
    os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(temp.name, name))

expected, reference = load(os.path.join(folder, "expected.json")), floats(os.path.join(folder, "logits.f32"))
out, zse = os.path.join(temp.name, "logits"), os.path.join(temp.name, "m.zse")
for qtype, limit in (("f32", LIMIT), ("int8", 0.1), ("nl4", 0.5)):
    run("zse-convert", temp.name, "-q", qtype, "-o", zse, "--force")
    worst, at = 0.0, 0
    for prompt in expected["prompts"]:
        ids = prompt["ids"]
        run("zse-bench", "logits", zse, "--ids", " ".join(map(str, ids)), "-o", out)
        got, want = floats(out), reference[at:at + len(ids) * expected["vocab"]]
        at += len(want)
        worst = max(worst, max(abs(a - b) for a, b in zip(got, want)) / max(abs(v) for v in want))
    Tap.ok(worst <= limit, f"{qtype}: latent {LATENT}, values {VALUE}, keys {NOPE} + {rope}", f"error {worst:.2e}")
Tap.done()

#!/usr/bin/env python3
"""t-widths.py - widths of heads that the oracles do not have.

Their models are widened by zeros, and factors that depend on the widths are undone in the weights,
so the logits must stay those of transformers.  Latent attention: the latent from 32 to 44, a head's
value to 38, its part without rotation to 42, which fill no whole tiles.  In another model values
become wider than keys, and in a third MLPs become experts between two matrices that change
nothing."""
import array
import json
import math
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, floats, load, need, run

LATENT, VALUE, NOPE, WIDE_VALUE = 44, 38, 42, 44
EXPERTS, EXPERT_WIDTH, SHARED, EXPERT_LATENT = 2, 96, 64, 140
LIMIT = 1e-4
LATEST = os.path.join(ORACLES, "models", "hf-2026")
OLDER = os.path.join(ORACLES, "models", "hf")
need(LATEST)
temp = tempfile.TemporaryDirectory()


def tensors(path):
    """Read a file of bfloat16: {name: (shape, array of float)}."""
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
    """Split the tensor into `groups` blocks of rows, and in each insert new - old rows of zeros
    after the first skip + old rows."""
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




def widen_latents(c, model):
    heads, latent, value = c["num_attention_heads"], c["kv_lora_rank"], c["v_head_dim"]
    nope, rope = c["qk_nope_head_dim"], c["qk_rope_head_dim"]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}.self_attn."
        q = rows(model[at + "q_b_proj.weight"], heads, nope, NOPE)
        model[at + "q_b_proj.weight"] = scaled(q, math.sqrt((NOPE + rope) / (nope + rope)))
        model[at + "kv_a_proj_with_mqa.weight"] = rows(model[at + "kv_a_proj_with_mqa.weight"], 1, latent, LATENT)
        norm = scaled(model[at + "kv_a_layernorm.weight"], math.sqrt(latent / LATENT))
        model[at + "kv_a_layernorm.weight"] = ([LATENT], norm[1] + array.array("f", [1.0]) * (LATENT - latent))
        kv = rows(rows(model[at + "kv_b_proj.weight"], heads, nope, NOPE), heads, value, VALUE, skip=NOPE)
        model[at + "kv_b_proj.weight"] = turned(rows(turned(kv), 1, latent, LATENT))
        model[at + "o_proj.weight"] = turned(rows(turned(model[at + "o_proj.weight"]), heads, value, VALUE))
    return {"kv_lora_rank": LATENT, "v_head_dim": VALUE, "qk_nope_head_dim": NOPE, "qk_head_dim": NOPE + rope}


def widen_values(c, model):
    for i in range(c["num_hidden_layers"]):
        at, value = f"model.layers.{i}.self_attn.", c["v_head_dim"]
        v, o = model[at + "v_proj.weight"], turned(model[at + "o_proj.weight"])
        model[at + "v_proj.weight"] = rows(v, v[0][0] // value, value, WIDE_VALUE)
        model[at + "o_proj.weight"] = turned(rows(o, c["num_attention_heads"], value, WIDE_VALUE))
    return {"v_head_dim": WIDE_VALUE}


def diagonal(n, cols, by):
    return [n, cols], array.array("f", (by * (r == i) for r in range(n) for i in range(cols)))


def cut(tensor, first, n):
    (_, cols), data = tensor
    return [n, cols], data[first * cols:(first + n) * cols]


def experts(c, model):
    """Divide the hidden units of each MLP among a shared expert and two others, which are always
    chosen with the weight 1.  Their input is doubled in a wider space, so the squares of their
    units are 4 times as large, and the matrix after them divides by 4."""
    hidden, kinds = c["hidden_size"], c["layers_block_type"]
    for i in (i for i, kind in enumerate(kinds) if kind == "mlp"):
        at = f"backbone.layers.{i}.mixer."
        up, down = model.pop(at + "up_proj.weight"), turned(model.pop(at + "down_proj.weight"))
        for name, first, n in [("shared_experts", 0, SHARED)] + [
                (f"experts.{x}", SHARED + x * EXPERT_WIDTH, EXPERT_WIDTH) for x in range(EXPERTS)]:
            part, back = cut(up, first, n), cut(down, first, n)
            if name != "shared_experts":
                part = turned(rows(turned(part), 1, hidden, EXPERT_LATENT))
                back = turned(rows(turned(back), 1, hidden, EXPERT_LATENT))
            model[f"{at}{name}.up_proj.weight"], model[f"{at}{name}.down_proj.weight"] = part, turned(back)
        model[at + "fc1_latent_proj.weight"] = diagonal(EXPERT_LATENT, hidden, 2)
        model[at + "fc2_latent_proj.weight"] = diagonal(hidden, EXPERT_LATENT, 0.25)
        model[at + "gate.weight"] = diagonal(EXPERTS, hidden, 0)
        model[at + "gate.e_score_correction_bias"] = [EXPERTS], array.array("f", [0.0] * EXPERTS)
    return {"layers_block_type": ["moe" if kind == "mlp" else kind for kind in kinds], "n_routed_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS, "routed_scaling_factor": EXPERTS, "moe_intermediate_size": EXPERT_WIDTH,
            "moe_shared_expert_intermediate_size": SHARED, "moe_latent_size": EXPERT_LATENT}


def check(name, widen, limits, source=LATEST):
    folder, wide = os.path.join(source, name), os.path.join(temp.name, name)
    os.mkdir(wide)
    config, model = load(os.path.join(folder, "config.json")), tensors(os.path.join(folder, "model.safetensors"))
    config |= widen(config, model)
    with open(os.path.join(wide, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    write(os.path.join(wide, "model.safetensors"), model)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        os.symlink(os.path.abspath(os.path.join(folder, file)), os.path.join(wide, file))
    expected, reference = load(os.path.join(folder, "expected.json")), floats(os.path.join(folder, "logits.f32"))
    out, zse = os.path.join(temp.name, "logits"), os.path.join(temp.name, "m.zse")
    for qtype, limit in limits:
        run("zse-convert", wide, "-q", *qtype.split(), "-o", zse, "--force")
        worst, at = 0.0, 0
        for prompt in expected["prompts"]:
            ids = prompt["ids"]
            run("zse-bench", "logits", zse, "--ids", " ".join(map(str, ids)), "-o", out)
            got, want = floats(out), reference[at:at + len(ids) * expected["vocab"]]
            at += len(want)
            worst = max(worst, max(abs(a - b) for a, b in zip(got, want)) / max(abs(v) for v in want))
        run("zse-bench", "logits", zse, "--ids", " ".join(map(str, ids)), "-o", out, "--window", "3")
        steps = floats(out) == got
        Tap.ok(worst <= limit and steps, f"{name} widened, {qtype}", f"error {worst:.2e}",
               *([] if steps else ["in steps of 3 tokens the bits are others"]))


check("minicpm3", widen_latents, (("f32", LIMIT), ("int8", 0.1), ("nl4", 0.5)))
check("mimo_v2_flash", widen_values, (("f32", LIMIT),))
check("nemotron_h", experts, (("f32", LIMIT), ("int8 --quality fast", 0.1), ("int8 --quality good", 0.1),
                               ("int8 --quality best", 0.1)), OLDER)
Tap.done()

#!/usr/bin/env python3
"""t-low-bits.py - the quality of nl4 for one model of each kind of layer.

The mean Kullback-Leibler divergence of its next-token distributions from those of f32 must stay
below a limit: a third above what it was when the limit was set.  The weights are random, so small
changes grow more than in trained models: gemma4's queries and keys have norms of weight 1, which
makes attention choose almost one token, and sparse attention changes its choice.  Latents, indexers
and low ranks must have 8 bits.

The prompts are few and their ids random, unlike the calibration's text, so they cannot tell which
of two qualities is better.  Some thousand tokens of a text can: there `good` must be better."""
import array
import json
import math
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, floats, load, need, run

LIMITS = {"hf/qwen3": 0.15, "hf/deepseek_v3": 0.66, "hf-2026/gemma4": 0.53, "hf-2026/gemma4-e": 0.50,
          "hf-2026/gemma4-moe": 1.13, "hf-2026/gemma3n": 0.50, "hf-2026/deepseek_v32": 0.85, "hf-2026/qwen3_5": 0.48,
          "hf-2026/kimi_linear": 0.96, "hf-2026/jamba": 0.86, "hf-2026/falcon_h1": 0.02, "hf-2026/minimax": 0.13,
          "hf-2026/bamba": 0.37, "hf-2026/lfm2_moe": 0.21, "hf-2026/deepseek_v4-hub": 0.66, "hf-2026/qwen4_exp": 0.135}
NARROW = ("q_a_proj", "kv_a_proj", "k_b_proj", "v_b_proj", "index_q_proj", "index_k_proj", "gate_a_proj", "x_proj")
ON_TEXT = ("hf/qwen3", "hf-2026/qwen3_5", "hf-2026/gemma3n", "hf-2026/gemma4-moe", "hf-2026/deepseek_v4-hub",
           "hf-2026/qwen4_exp")
need(os.path.join(ORACLES, "models", "hf-2026"))
temp = tempfile.TemporaryDirectory()


def logits(model, sequences):
    out, all_rows = os.path.join(temp.name, "logits"), array.array("f")
    for ids in sequences:
        run("zse-bench", "logits", model, "--ids", " ".join(map(str, ids)), "-o", out)
        all_rows.extend(floats(out))
    return all_rows


def log_softmax(row):
    most = max(row)
    total = math.log(sum(math.exp(x - most) for x in row)) + most
    return [x - total for x in row]


def divergence(a, b, vocab):
    sum_kl = 0.0
    for i in range(0, len(a), vocab):
        p, q = log_softmax(a[i:i + vocab]), log_softmax(b[i:i + vocab])
        sum_kl += sum(math.exp(x) * (x - y) for x, y in zip(p, q))
    return sum_kl / (len(a) // vocab)


def convert(source, *options):
    model = os.path.join(temp.name, "m.zse")
    run("zse-convert", source, *options, "-o", model, "--force")
    return model


def on_text(source, quality):
    """The mean divergence over the tokens of a text."""
    exact, text = os.path.join(temp.name, "exact.zse"), os.path.join(ORACLES, "texts", "gpl-3.txt")
    run("zse-convert", source, "-q", "f32", "-o", exact, "--force")
    model = convert(source, "-q", "nl4", "--quality", quality)
    return json.loads(run("zse-bench", "quality", exact, model, text, "--window", "128", "--windows", "24"))["kl_mean"]


tap = Tap()
for name, limit in LIMITS.items():
    source = os.path.join(ORACLES, "models", name)
    expected = load(os.path.join(source, "expected.json"))
    sequences = [p["ids"] + p["greedy"] for p in expected["prompts"]]
    exact = logits(convert(source, "-q", "f32"), sequences)
    for quality in ("fast", "good"):
        model = convert(source, "-q", "nl4", "--quality", quality)
        kl = divergence(exact, logits(model, sequences), expected["vocab"])
        tap.ok(kl < limit, f"{name} nl4 {quality}: {kl:.3f}, limit {limit}")
    if name in ON_TEXT:
        fast = on_text(source, "fast")
        good = on_text(source, "good")
        tap.ok(good < fast, f"{name} nl4 on a text: good {good:.3f}, fast {fast:.3f}")
    types = {t["name"]: t["type"] for t in json.loads(run("zse-info", model, "--tensors", "--json"))["tensors"]}
    narrow = {n: t for n, t in types.items() if any(f".{part}.weight" in n for part in NARROW)}
    bad = [f"{n}: {t}" for n, t in narrow.items() if t not in ("i8", "f32")]
    tap.ok(not bad, f"{name}: {len(narrow)} narrow matrices have 8 bits", *bad)
tap.done()

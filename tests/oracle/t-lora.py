#!/usr/bin/env python3
"""t-lora.py - compare the logits of models with LoRA adapters with those that PEFT computes.

Each adapter is merged by zse-convert --lora.  The logits must lie within 1e-4 of the largest
|logit| of those of the oracle, which the logits without the adapter miss by far.
usage: t-lora.py [NAME ...]    NAME: folders of the oracles (default: all)"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, floats, load, need, run

LIMIT = 1e-4
KINDS = "gemma3 llama mixtral phi3 qwen2".split()


def error(logits, expected, reference):
    """The largest error, divided by the largest |logit|, over all prompts."""
    worst, at = 0.0, 0
    for prompt in expected["prompts"]:
        got = logits(prompt["ids"])
        want = reference[at:at + len(got)]
        at += len(got)
        worst = max(worst, max(abs(a - b) for a, b in zip(got, want)) / max(abs(v) for v in want))
    return worst if at == len(reference) else float("inf")


def main():
    root = os.path.join(ORACLES, "models", "lora")
    need(root)
    with tempfile.TemporaryDirectory() as temp:
        for kind in sys.argv[1:] or KINDS:
            adapter, base = os.path.join(root, kind), os.path.join(ORACLES, "models", "hf", kind)
            model, out = os.path.join(temp, "m.zse"), os.path.join(temp, "logits")
            expected, reference = load(os.path.join(adapter, "expected.json")), floats(os.path.join(adapter, "logits.f32"))

            def logits(ids):
                run("zse-bench", "logits", model, "--ids", " ".join(map(str, ids)), "-o", out)
                return floats(out)
            run("zse-convert", base, "-q", "f32", "-o", model, "--force")
            plain = error(logits, expected, reference)
            run("zse-convert", base, "--lora", adapter, "-q", "f32", "-o", model, "--force")
            merged = error(logits, expected, reference)
            Tap.ok(merged <= LIMIT and plain > 100 * LIMIT, f"{kind}: merged adapter",
                   f"| {kind:18} | {merged:.2e} | without it {plain:.2f} |")
    Tap.done()


main()

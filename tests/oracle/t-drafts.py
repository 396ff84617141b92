#!/usr/bin/env python3
"""t-drafts.py - answers with drafts are those without, token by token.

Drafts come from n-grams, a draft model or the model's first layer; answers are greedy or sampled,
free or under a grammar, by one thread or two, alone or in a batch of eight.

One model of each kind of attention, recurrent layer and MLP: the rows of a step with a draft must
be the bits that single steps compute.  Biases leave three tokens to choose from, so that drafts are
often right although the weights are random.  All models of the oracles: t-drafts.py all."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, need, run

MODELS = os.path.join(ORACLES, "models")
KINDS = ["hf/llama", "hf/gemma2", "hf/gpt_oss", "hf/deepseek_v3", "hf/mixtral", "hf/llama4_text", "hf-2026/gemma4",
         "hf-2026/deepseek_v32", "hf/mamba2", "hf/qwen3_next", "hf/lfm2", "hf-2026/falcon_h1", "hf-2026/kimi_linear"]
THREE = 20, 30, 40
PROMPT = "one two three one two three one two"
PROMPTS = "\n".join(f"{PROMPT} {i} {PROMPT}" for i in range(8))
KINDS_OF_ANSWERS = ("free", ["--ignore-eos"]), ("grammar", ["--regex", "(.|\\n){40,55}"])
need(MODELS)


def chat(model, spec, temperature, *options, stdin=None):
    return run("zse-chat", model, "--raw", "--spec", spec, "--temp", temperature, "--seed", 7, "--ids", "--json",
               *(x for i in THREE for x in ("--logit-bias", f"{i}=100")), *options, stdin=stdin)


def answer(model, spec, temperature, *options):
    a = json.loads(chat(model, spec, temperature, "-p", PROMPT, "-n", 60, *options))
    return a["ids"], a.get("speculation", {}).get("accepted_tokens", 0)


def batch(model, spec, parallel, *options):
    lines = chat(model, spec, 1, "--batch", "-", "--parallel", parallel, "-n", 60, *options, stdin=PROMPTS).split("\n")
    return [json.loads(line)["ids"] for line in lines if line]


def convert(folder, path):
    run("zse-convert", os.path.join(MODELS, folder), "-o", path, "-q", "nl4", "--quality", "fast", "--force")


def compare(folder, model, draft):
    """Check that answers with drafts are those without.  Returns how many drafted tokens were
    right: without a grammar, and under one."""
    convert(folder, model)
    specs = ["ngram:8", f"draft:4:{draft}"] + ["self:3:1"] * (folder == "hf/llama")
    accepted = []
    for name, options in KINDS_OF_ANSWERS:
        accepted.append(0)
        for temperature in 0, 1:
            plain, _ = answer(model, "off", temperature, "--threads", 1, *options)
            for spec in specs:
                drafted, right = answer(model, spec, temperature, "--threads", 2, *options)
                Tap.ok(plain == drafted, f"{folder}, {spec.split('/')[0]}, {name}, temperature {temperature}",
                       f"{right} drafted tokens were right")
                accepted[-1] += right
        spec = specs[len(accepted) % 2]
        Tap.ok(batch(model, "off", 1, *options) == batch(model, spec, 8, *options),
               f"{folder}, {spec.split('/')[0]}, {name}, eight together")
    return accepted


def every():
    return sorted(f"{group}/{name}" for group in ("hf", "hf-2026") for name in os.listdir(os.path.join(MODELS, group))
                  if os.path.exists(os.path.join(MODELS, group, name, "config.json")))


with tempfile.TemporaryDirectory() as temp:
    small = os.path.join(temp, "draft.zse")
    convert("hf/llama", small)
    counts = [compare(folder, os.path.join(temp, "m.zse"), small)
              for folder in (every() if sys.argv[1:] == ["all"] else KINDS)]
for i, name in enumerate(["freely", "under a grammar"]):
    Tap.ok(sum(n[i] for n in counts) > 50, f"drafted tokens were right {name}")
Tap.done()

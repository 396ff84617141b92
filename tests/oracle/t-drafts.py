#!/usr/bin/env python3
"""t-drafts.py - answers with --spec ngram:8 are those without, token by token: greedy and drawn,
free and under a grammar, by one thread and two.

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
need(MODELS)


def answer(model, spec, temperature, *options):
    a = json.loads(run("zse-chat", model, "--raw", "--spec", spec, "--temp", temperature, "--seed", 7, "-n", 100,
                       "--ids", "--json", "-p", PROMPT,
                       *(x for i in THREE for x in ("--logit-bias", f"{i}=100")), *options))
    return a["ids"], a.get("speculation", {}).get("accepted_tokens", 0)


def compare(folder, model):
    """Numbers of drafted tokens that were right, freely and under a grammar."""
    run("zse-convert", os.path.join(MODELS, folder), "-o", model, "-q", "nl4", "--quality", "fast", "--force")
    accepted = []
    for name, options in ("free", ["--ignore-eos"]), ("grammar", ["--regex", "(.|\\n){60,90}"]):
        accepted.append(0)
        for temperature in 0, 1:
            plain, _ = answer(model, "off", temperature, "--threads", 1, *options)
            drafted, right = answer(model, "ngram:8", temperature, "--threads", 2, *options)
            Tap.ok(plain == drafted, f"{folder}, {name}, temperature {temperature}",
                   f"{right} drafted tokens were right")
            accepted[-1] += right
    return accepted


def every():
    return sorted(f"{group}/{name}" for group in ("hf", "hf-2026") for name in os.listdir(os.path.join(MODELS, group))
                  if os.path.exists(os.path.join(MODELS, group, name, "config.json")))


with tempfile.TemporaryDirectory() as temp:
    counts = [compare(folder, os.path.join(temp, "m.zse")) for folder in (every() if sys.argv[1:] == ["all"] else KINDS)]
for i, name in enumerate(["freely", "under a grammar"]):
    Tap.ok(sum(n[i] for n in counts) > 50, f"drafted tokens were right {name}")
Tap.done()

#!/usr/bin/env python3
"""t-models.py - compare the logits and greedy ids of every oracle model with those of transformers.

Models: dense, mixtures of experts, recurrent, quantized checkpoints, and GGUF files; zse-convert
converts each to f32.  The logits must lie within 1e-4 (recurrent: 2e-4) of the largest |logit| of
those that transformers computes, and be the same in steps of 512, 7 and 1 tokens.  The greedy ids
must be equal up to the first gap below that error."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, first_difference, floats, load, need, run

DENSE = """arcee bitnet bloom cohere cohere2 ernie4_5 exaone4 falcon falcon-7b gemma gemma2 gemma3 glm4 gpt2 gpt_bigcode gpt_neox gptj granite
hunyuan llama llama-linear-rope llama-odd llama-yarn llama3-rope mistral mpt nemotron olmo olmo2 opt phi phi3 phi3-longrope qwen2
qwen2-window qwen3 seed_oss smollm3 stablelm starcoder2""".split()
MOE = """deepseek_v2 deepseek_v2_lite deepseek_v3 dots1 ernie4_5_moe glm4_moe gpt_oss granitemoe hunyuan_moe kimi_k2 llama4_text minimax_m2 mixtral olmoe
qwen2_moe qwen3_moe""".split()
QUANTIZED = "deepseek_v3-fp8 gpt_oss-mxfp4 kimi_k25-ct-int4 llama-awq llama-gptq".split()
RECURRENT = "granitemoehybrid lfm2 mamba2 nemotron_h qwen3_next".split()
# Models with a token whose logits are ill-conditioned: a norm behind the recurrence divides by a
# small number.  Compared with f64, the f32 logits of transformers are off by 4.0e-4 there, and ours
# by 2.4e-4.  The difference between the two, 1.6e-4, is therefore an error of neither.
SENSITIVE = ["qwen3_5_moe"]
# Families of 2026 that are not supported yet: zse-convert must refuse them by name.
REFUSED = []
LIMIT, LIMIT_RECURRENT = 1e-4, 2e-4
temp = tempfile.TemporaryDirectory()


def logits(model, ids, step=512):
    out = os.path.join(temp.name, "logits")
    run("zse-bench", "logits", model, "--ids", " ".join(map(str, ids)), "-o", out, "--window", str(step))
    return floats(out)


def text_only(source, greedy):
    """The greedy ids up to the first that stands for an image or a video.

    transformers embeds such an id differently, even where no image was given."""
    if os.path.isfile(source):
        return greedy
    config = load(os.path.join(source, "config.json"))
    marks = {config.get(f"{what}_token_{end}") for what in ("image", "video", "audio") for end in ("id", "index")}
    return greedy[:next((i + 1 for i, one in enumerate(greedy) if one in marks), len(greedy))]


def check(name, source, expected, reference):
    limit = LIMIT_RECURRENT if name in RECURRENT + SENSITIVE else LIMIT
    model = os.path.join(temp.name, "m.zse")
    run("zse-convert", source, "-q", "f32", "-o", model, "--force")
    vocab = expected["vocab"]
    worst, greedy_ok, at = 0.0, True, 0
    for prompt in expected["prompts"]:
        ids, greedy = prompt["ids"], text_only(source, prompt["greedy"])
        got = logits(model, ids + greedy[:-1])
        n = len(ids) * vocab
        want = reference[at:at + n]
        at += n
        largest = max(abs(v) for v in want)
        error = max(abs(a - b) for a, b in zip(got, want))
        worst = max(worst, error / largest)
        chosen = []
        for i in range(len(greedy)):
            row = got[(len(ids) - 1 + i) * vocab:(len(ids) + i) * vocab]
            chosen.append(row.index(max(row)))
        if first_difference(chosen, greedy, prompt["greedy_gap"], max(error, limit * largest)) is not None:
            greedy_ok = False
    complete = at == len(reference)
    longest = max((p["ids"] for p in expected["prompts"]), key=len)
    whole = logits(model, longest)
    for step in (7, 1):                     # the same to the last bit
        greedy_ok &= logits(model, longest, step) == whole
    return Tap.ok(worst <= limit and greedy_ok and complete, f"{name}: logits and greedy ids",
                  f"| {name:18} | {worst:.2e} | {'same ids' if greedy_ok else 'OTHER IDS, OR OTHER IN STEPS'} |" +
                  ("" if complete else " logits.f32 has another length"))


def guarded(name, *args):
    try:
        check(name, *args)
    except (RuntimeError, OSError, ValueError) as e:
        Tap.ok(False, f"{name}: logits and greedy ids", str(e))


def as_transformers(name, folder):
    """The folder, or a copy whose config.json says what transformers 5 computes.

    phimoe: its class makes the frequencies without a length, so it takes the short factors of
    LongRoPE in long contexts too, but the factor on cos and sin that belongs to the long ones.  The
    class of transformers 4 passed the length and took the long factors, with which the model was
    trained, and vLLM takes them as well.  So do we: this copy of the folder has the short ones in
    both places."""
    if name != "phimoe":
        return folder
    copy = os.path.join(temp.name, name)
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    config = load(os.path.join(folder, "config.json"))
    config["rope_scaling"]["long_factor"] = config["rope_scaling"]["short_factor"]
    with open(os.path.join(copy, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return copy


def refused(name, folder):
    """Check that a family which is not supported is refused: exit 1, and its model_type in the
    message."""
    model_type = load(os.path.join(folder, "config.json")).get("model_type", "")
    try:
        run("zse-convert", folder, "-q", "f32", "-o", os.path.join(temp.name, "m.zse"), "--force")
    except RuntimeError as e:
        return Tap.ok(f'model_type "{model_type}' in str(e), f"{name}: refused by name", f"| {name:18} | refused  |",
                      str(e)[:160])
    return Tap.ok(False, f"{name}: refused by name", "it is converted: take it off the list REFUSED")


hf = os.path.join(ORACLES, "models", "hf")
quantized = os.path.join(ORACLES, "models", "quantized")
need(hf)
print("# | model              | max error / max |logit| | greedy |")
only = sys.argv[1:]
for name in DENSE + MOE + QUANTIZED + RECURRENT:
    if only and name not in only:
        continue
    folder = os.path.join(quantized if name in QUANTIZED else hf, name)
    guarded(name, folder, load(os.path.join(folder, "expected.json")), floats(os.path.join(folder, "logits.f32")))
latest = os.path.join(ORACLES, "models", "hf-2026")
families = sorted(os.listdir(latest)) if os.path.isdir(latest) else []
for name in families:
    if only and name not in only:
        continue
    folder = os.path.join(latest, name)
    if name in REFUSED:
        refused(name, folder)
    else:
        guarded(name, as_transformers(name, folder), load(os.path.join(folder, "expected.json")),
                floats(os.path.join(folder, "logits.f32")))
print(f"# families of 2026: {len(families)} folders, {sum(name in REFUSED for name in families)} refused")
folder = os.path.join(ORACLES, "models", "gguf")
for file in sorted(f for f in os.listdir(folder) if f.endswith(".gguf")):
    name = file[:-5]
    if only and name not in only:
        continue
    path = os.path.join(folder, name)
    guarded(f"gguf {name}", path + ".gguf", load(path + ".json"), floats(path + ".logits.f32"))
Tap.done()

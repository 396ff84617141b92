#!/usr/bin/env python3
"""t-layers.py - compare the tiny models beside this file with recordings from transformers.

Hooks in transformers recorded them (tiny/make.py).  Compared: the output of each layer, and the
logits in steps of 64, 7 and 1 tokens."""
import json
import os
import struct
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from common import Tap, floats, run

RECURRENT = ("qwen3_next", "mamba2-groups", "granite-groups")
LIMIT, LIMIT_RECURRENT, COSINE = 1e-4, 2e-4, 0.9999
temp = tempfile.TemporaryDirectory()


def array(path, kind):
    """Read the numbers of an .npy file, version 1."""
    with open(path, "rb") as f:
        data = f.read()
    n, = struct.unpack("<H", data[8:10])
    return [v for v, in struct.iter_unpack(kind, data[10 + n:])]


def check(name):
    folder, model, out = os.path.join(HERE, "tiny", name), os.path.join(temp.name, "m.zse"), os.path.join(temp.name, "logits")
    limit = LIMIT_RECURRENT if name in RECURRENT else LIMIT
    run("zse-convert", folder, "-q", "f32", "-o", model, "--force")
    far = json.loads(run("zse-bench", "layers", model, "--ref", folder, "--json"))
    rows = far["layers"] + [far["embed"], far["logits"]]
    cosine = min(min(r["least_cosine"], r.get("alone", r)["least_cosine"]) for r in rows)
    Tap.ok(cosine >= COSINE and len(far["layers"]) >= 2 and all("alone" in r for r in far["layers"]), f"{name}: layers", f"| {name:16} | least cosine {cosine:.7f} |")
    ids, want = array(f"{folder}/ids.npy", "<q"), array(f"{folder}/logits.npy", "<f")
    got = []
    for step in (64, 7, 1):
        run("zse-bench", "logits", model, "--ids", " ".join(map(str, ids)), "-o", out, "--window", step)
        got.append(floats(out))
    error = max(abs(a - b) for a, b in zip(got[0], want)) / max(map(abs, want))
    Tap.ok(error <= limit and len(got[0]) == len(want) and got[0] == got[1] == got[2], f"{name}: logits", f"| {name:16} | {error:.2e} of the largest |")


for tiny in sorted(d for d in os.listdir(os.path.join(HERE, "tiny")) if os.path.isdir(os.path.join(HERE, "tiny", d))):
    try:
        check(tiny)
    except (RuntimeError, OSError, ValueError, KeyError) as e:
        Tap.ok(False, tiny, str(e))
Tap.done()

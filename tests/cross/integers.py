#!/usr/bin/env python3
"""integers.py - compare the integer path of an emulated build with that of this machine's build.
usage: integers.py BIN FOLDER NAME    BIN: a folder with the emulated zse-bench

Both builds compute how well the model, with 8-bit weights and activations, predicts a text.
Integer sums are the same (arm64.bats compares their bits), but other operations may round
differently in the last bit, which sometimes changes the code of an activation by 1.  The mean
negative log-likelihoods of windows must be the same within 1e-4; the largest difference is
printed."""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
from common import BIN, ORACLES, run

LIMIT = 1e-4


def likelihoods(folder, model):
    text = os.path.join(ORACLES, "texts", "gpl-3.txt")
    said = subprocess.run([os.path.join(folder, "zse-bench"), "perplexity", model, text, "--window", "64", "--windows", "2", "--json"],
                          capture_output=True, text=True, check=False)
    if said.returncode:
        sys.exit(said.stderr.strip())
    return json.loads(said.stdout)["mean_nll"]


def main():
    emulated_bin, folder, name = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temp:
        model = os.path.join(temp, "m.zse")
        run("zse-convert", os.path.join(ORACLES, "models", folder, name + ".gguf" * (folder == "gguf")), "-q", "int8",
            "--quality", "fast", "-o", model)
        here, emulated = likelihoods(BIN, model), likelihoods(emulated_bin, model)
    worst = max(abs(a / b - 1) for a, b in zip(emulated, here))
    print(f"{worst:.1e}")
    sys.exit(not (worst <= LIMIT and len(emulated) == len(here) == 2))


main()

"""folders.py - read tensors of Hugging Face folders and write GGUF files, for oracle tests.

Needs the package gguf, which brings numpy along."""
import glob
import json
import os
import struct
import sys

from common import ROOT

sys.path += glob.glob(os.path.join(ROOT, "build", "venv", "lib", "python3*", "site-packages"))
import numpy as np


def tensors(folder):
    """All tensors of a folder as f32 arrays."""
    out = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with open(path, "rb") as f:
            data = f.read()
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            raw = data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
            if t["dtype"] == "BF16":
                a = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
            else:
                a = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2", "I64": "<i8"}[t["dtype"]]).astype("<f4")
            out[name] = a.reshape(t["shape"])
    return out


def write(writer):
    """Write the file of this gguf.GGUFWriter."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_plain_vocabulary(writer, n):
    """Add a vocabulary of n meaningless tokens, for tests that use ids only."""
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{i}>" for i in range(n)])
    writer.add_token_types([1] * n)
    writer.add_token_merges([])

#!/usr/bin/env python3
"""t-v4-published.py - DeepSeek V4 in the types that it is published in.

The test rounds the matrices of a tiny folder: to FP8 with a power of two for each block of 128 x
128, and the experts to MXFP4.  It writes a folder with the codes, and one with the rounded values
in bf16, which holds them exactly.  Both must give the same logits as f32, bit by bit, and
`-q keep` must copy the codes."""
import array
import bisect
import json
import os
import re
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import ORACLES, Tap, floats, load, need, run

SOURCE = os.path.join(ORACLES, "models", "hf-2026", "deepseek_v4-hub")
FP8 = re.compile(r"\.attn\.(indexer\.)?(wq_a|wq_b|wkv|wo_a|wo_b)\.weight$")
FEEDS = re.compile(r"experts\.(?:\d+\.)?(w[123])\.weight$")
WIDE = 64                       # the experts' intermediate size, a multiple of 32: the folder's 40 and zeros
E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]
E4M3 = [m / 8 * 2 ** -6 if e == 0 else (1 + m / 8) * 2 ** (e - 7) for e in range(16) for m in range(8)][:127]


def read(folder):
    """-> {name: (type, shape, bytes)}"""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    return {k: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for k, t in json.loads(data[8:8 + n]).items() if k != "__metadata__"}


def write(folder, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def from_bf16(data):
    return array.array("f", b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))


def bf16(values):
    raw = array.array("f", values).tobytes()
    assert all(raw[i:i + 2] == b"\0\0" for i in range(0, len(raw), 4)), "a value has no bf16"
    return b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))


def nearest(table, x):
    i = bisect.bisect(table, abs(x))
    return i - 1 if i == len(table) or abs(x) - table[i - 1] <= table[i] - abs(x) else i


def power(values, largest):
    """The exponent of the least power of two with which `largest` reaches all values."""
    most = max(map(abs, values))
    e = -20
    while most > largest * 2.0 ** e:
        e += 1
    return e


def widen(which, shape, values):
    """Append zeros to the experts' intermediate size."""
    if which != "w2":
        return [WIDE, shape[1]], values + array.array("f", [0] * (WIDE - shape[0]) * shape[1])
    rows = [values[r * shape[1]:(r + 1) * shape[1]] + array.array("f", [0] * (WIDE - shape[1])) for r in range(shape[0])]
    return [shape[0], WIDE], sum(rows, array.array("f"))


def fp8(shape, values):
    """Returns the codes, the shape and bytes of the scales, and the rounded values of a matrix of
    at most 128 columns."""
    codes, scales, out = bytearray(), bytearray(), []
    for at in range(0, len(values), 128 * shape[1]):
        block = values[at:at + 128 * shape[1]]
        e = power(block, 448)
        block = [nearest(E4M3, v * 2.0 ** -e) | (0x80 if v < 0 else 0) for v in block]
        codes += bytes(block)
        scales.append(e + 127)
        out += [E4M3[c & 127] * 2.0 ** e * (-1 if c & 128 else 1) for c in block]
    return bytes(codes), [len(scales), 1], bytes(scales), out


def mxfp4(values):
    """-> codes, scales, rounded values"""
    packed, scales, out = bytearray(), bytearray(), []
    for at in range(0, len(values), 32):
        group = values[at:at + 32]
        e = power(group, 6)
        codes = [nearest(E2M1, v * 2.0 ** -e) | (8 if v < 0 else 0) for v in group]
        scales.append(e + 127)
        packed += bytes(codes[i] | codes[i + 1] << 4 for i in range(0, 32, 2))
        out += [E2M1[c & 7] * 2.0 ** e * (-1 if c & 8 else 1) for c in codes]
    return bytes(packed), bytes(scales), out


def logits(model, expected, out):
    rows = array.array("f")
    for prompt in expected["prompts"]:
        run("zse-bench", "logits", model, "--ids", " ".join(map(str, prompt["ids"])), "-o", out)
        rows.extend(floats(out))
    return rows


need(SOURCE)
with tempfile.TemporaryDirectory() as temp:
    published, plain, model, out = (os.path.join(temp, n) for n in ("published", "plain", "m.zse", "logits"))
    for folder in (published, plain):
        shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("*.f32", "expected.json"))
    codes, rounded = {}, {}
    for name, (dtype, shape, data) in read(SOURCE).items():
        stem, feeds, values = name[:-len("weight")], FEEDS.search(name), None
        if feeds or FP8.search(name):
            values = from_bf16(data)
        if feeds:
            shape, values = widen(feeds[1], shape, values)
        if feeds and ".experts." in name:
            packed, scale, values = mxfp4(values)
            codes[name] = ("I8", [shape[0], shape[1] // 2], packed)
            codes[stem + "scale"] = ("F8_E8M0", [shape[0], shape[1] // 32], scale)
        elif values:
            packed, scales, scale, values = fp8(shape, values)
            codes[name] = ("F8_E4M3", shape, packed)
            codes[stem + "scale"] = ("F8_E8M0", scales, scale)
        else:
            codes[name.replace("attn.norm", "attn.kv_norm")] = (dtype, shape, data)
        rounded[name] = ("BF16", shape, bf16(values)) if values else (dtype, shape, data)
    config = load(os.path.join(SOURCE, "config.json")) | {"moe_intermediate_size": WIDE}
    write(published, codes)
    write(plain, rounded)
    for folder, more in ((plain, {}), (published, {"expert_dtype": "fp4", "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128]}})):
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config | more, f)
    expected = load(os.path.join(SOURCE, "expected.json"))
    run("zse-convert", plain, "-q", "f32", "-o", model)
    want = logits(model, expected, out)
    run("zse-convert", published, "-q", "f32", "-o", model, "--force")
    Tap.ok(logits(model, expected, out) == want, "FP8 and FP4 give the logits of their values")
    report = json.loads(run("zse-convert", published, "-q", "keep", "-o", model, "--force", "--json"))
    kinds = {(t["source_type"], t["type"]): (t["tensors"], t["exact"]) for t in report["types"]}
    n_fp8 = sum(t[0] == "F8_E4M3" for t in codes.values())
    n_fp4 = sum(t[0] == "I8" for t in codes.values())
    Tap.ok(kinds.get(("FP8", "fp8")) == (n_fp8, True) and kinds.get(("MXFP4", "mxfp4")) == (n_fp4, True),
           f"-q keep copies {n_fp8} matrices of FP8 and {n_fp4} of FP4", str(kinds))
    got = logits(model, expected, out)
    error = max(abs(a - b) for a, b in zip(got, want)) / max(map(abs, want))
    Tap.ok(error < 0.1, "the copied codes compute nearly the same", f"{error:.3g} of the largest |logit|")
Tap.done()

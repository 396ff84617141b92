#!/usr/bin/env python3
"""nvfp4.py ct|modelopt|modelopt-old SRC OUT WANT - quantize a checkpoint to NVFP4

SRC is a folder with linear layers in BF16.  OUT becomes the same with these layers as
compressed-tensors or ModelOpt store them; WANT/NAME the f32 values of each matrix, as raw bytes.
Standard library only; E2M1 and E4M3 by the OCP specifications."""
import bisect
import json
import os
import shutil
import struct
import sys

E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]
E4M3 = [(c & 7) / 512 if c < 8 else (8 + (c & 7)) * 2.0 ** ((c >> 3) - 10) for c in range(127)]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def between(table):
    return [(a + b) / 2 for a, b in zip(table, table[1:])]


E2M1_BETWEEN, E4M3_BETWEEN = between(E2M1), between(E4M3)


def quantize(rows, cols, x, reciprocal):
    """Quantize x [rows][cols]; returns the codes, the group scales, the tensor scale as stored (the
    reciprocal if asked for), and the values that they decode to."""
    whole = f32(max(map(abs, x)) / (448 * 6))
    stored = f32(1 / whole) if reciprocal else whole
    whole = f32(1 / stored) if reciprocal else whole
    codes, scales, values = bytearray(rows * cols // 2), bytearray(), []
    for at in range(0, rows * cols, 16):
        group = x[at:at + 16]
        code = bisect.bisect_left(E4M3_BETWEEN, max(map(abs, group)) / 6 / whole)
        scales.append(code)
        scale = f32(whole * E4M3[code])
        decoded = [f32(scale * v) for v in E2M1]
        for i, v in enumerate(group):
            c = bisect.bisect_left(E2M1_BETWEEN, abs(v) / scale) if scale else 0
            values.append(-decoded[c] if v < 0 < c else decoded[c])             # the code -0 is 0
            codes[(at + i) // 2] |= (c | (8 if v < 0 else 0)) << 4 * (i % 2)
    return bytes(codes), bytes(scales), stored, values


def read(folder):
    with open(folder + "/model.safetensors", "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(n)), f.read()
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for name, t in header.items()}


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def configure(kind, out):
    config = json.load(open(out + "/config.json"))
    weights = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    inputs = {"num_bits": 4, "type": "float", "group_size": 16}
    if kind == "ct":
        weights.update(strategy="tensor_group", symmetric=True, observer="minmax", observer_kwargs={}, actorder=None)
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None,
                 "format": "nvfp4-pack-quantized"}
        config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                                         "config_groups": {"group_0": group}, "ignore": ["lm_head"],
                                         "quantization_status": "compressed", "kv_cache_scheme": None}
    elif kind == "modelopt":
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
                                         "producer": {"name": "modelopt", "version": "0.33.0"},
                                         "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"],
                                                                       "input_activations": inputs}}}
    else:
        with open(out + "/hf_quant_config.json", "w") as f:
            json.dump({"producer": {"name": "modelopt", "version": "0.23.0"},
                       "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                                        "exclude_modules": ["lm_head"]}}, f)
    json.dump(config, open(out + "/config.json", "w"))


def main(kind, source, out, want):
    shutil.copytree(source, out)
    os.makedirs(want)
    tensors = {}
    for name, (dtype, shape, data) in read(source).items():
        if not name.endswith("_proj.weight"):
            tensors[name] = (dtype, shape, data)
            continue
        rows, cols = shape
        wide = bytearray(2 * len(data))         # as f32
        wide[2::4], wide[3::4] = data[::2], data[1::2]
        x = struct.unpack(f"<{rows * cols}f", wide)
        codes, scales, stored, values = quantize(rows, cols, x, kind == "ct")
        stem = name[:-len(".weight")]
        tensors[stem + (".weight_packed" if kind == "ct" else ".weight")] = ("U8", [rows, cols // 2], codes)
        tensors[stem + ".weight_scale"] = ("F8_E4M3", [rows, cols // 16], scales)
        tensors[stem + (".weight_global_scale" if kind == "ct" else ".weight_scale_2")] = (
            "F32", [1] if kind == "ct" else [], struct.pack("<f", stored))
        tensors[stem + (".input_global_scale" if kind == "ct" else ".input_scale")] = (
            "F32", [1] if kind == "ct" else [], struct.pack("<f", 1))
        with open(f"{want}/{name}", "wb") as f:
            f.write(struct.pack(f"<{len(values)}f", *values))
    write(out + "/model.safetensors", tensors)
    configure(kind, out)


if __name__ == "__main__":
    main(*sys.argv[1:])

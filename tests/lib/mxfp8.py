#!/usr/bin/env python3
"""mxfp8.py ct|modelopt|modelopt-old|blocks SRC OUT PLAIN WANT - quantize a checkpoint to MXFP8

SRC is a folder with linear layers in BF16.  OUT becomes the same with these layers as
compressed-tensors, ModelOpt or the method mxfp8 store them; PLAIN the same with the values that
they decode to, which BF16 has; WANT/NAME these values in f32, as raw bytes.
Standard library only; E4M3 and E8M0 by the OCP Microscaling Formats specification 1.0."""
import bisect
import json
import math
import os
import shutil
import struct
import sys

from nvfp4 import E4M3, E4M3_BETWEEN, read, write


def quantize(x):
    """Quantize x, a multiple of 32 values; returns the codes, the scales, and the values that they
    decode to."""
    codes, scales, values = bytearray(), bytearray(), []
    for at in range(0, len(x), 32):
        group = x[at:at + 32]
        amax = max(map(abs, group))
        exponent = max(math.frexp(amax)[1] - 1 - 8, -127) if amax else -127
        scales.append(exponent + 127)
        for v in group:
            c = bisect.bisect_left(E4M3_BETWEEN, math.ldexp(abs(v), -exponent))
            values.append(math.copysign(math.ldexp(E4M3[c], exponent), v))
            codes.append(c | (128 if v < 0 else 0))
    return bytes(codes), bytes(scales), values


def configure(kind, out):
    config = json.load(open(out + "/config.json"))
    if kind == "ct":
        weights = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True,
                   "dynamic": False, "observer": "minmax", "observer_kwargs": {}, "actorder": None,
                   "scale_dtype": "torch.uint8", "zp_dtype": None}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": dict(weights, dynamic=True),
                 "output_activations": None, "format": "mxfp8-quantized"}
        config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "mxfp8-quantized",
                                         "config_groups": {"group_0": group}, "ignore": ["lm_head"],
                                         "quantization_status": "compressed", "kv_cache_scheme": None}
    elif kind == "modelopt":
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"],
                                         "producer": {"name": "modelopt", "version": "0.40.0"}}
    elif kind == "blocks":
        config["quantization_config"] = {"quant_method": "mxfp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                         "scale_fmt": "ue8m0", "weight_block_size": [1, 32],
                                         "ignored_layers": ["lm_head"]}
    else:
        with open(out + "/hf_quant_config.json", "w") as f:
            json.dump({"producer": {"name": "modelopt", "version": "0.40.0"},
                       "quantization": {"quant_algo": "MXFP8", "kv_cache_quant_algo": None, "group_size": 32,
                                        "exclude_modules": ["lm_head"]}}, f)
    json.dump(config, open(out + "/config.json", "w"))


def main(kind, source, out, plain, want):
    shutil.copytree(source, out)
    shutil.copytree(source, plain)
    os.makedirs(want)
    tensors, decoded = {}, {}
    for name, (dtype, shape, data) in read(source).items():
        tensors[name] = decoded[name] = (dtype, shape, data)
        if not name.endswith("_proj.weight"):
            continue
        wide = bytearray(2 * len(data))         # as f32
        wide[2::4], wide[3::4] = data[::2], data[1::2]
        codes, scales, values = quantize(struct.unpack(f"<{len(data) // 2}f", wide))
        tensors[name] = ("F8_E4M3", shape, codes)
        tensors[name + ("_scale_inv" if kind == "blocks" else "_scale")] = ("U8", [shape[0], shape[1] // 32], scales)
        wide = struct.pack(f"<{len(values)}f", *values)
        half = bytearray(len(data))
        half[::2], half[1::2] = wide[2::4], wide[3::4]
        decoded[name] = ("BF16", shape, bytes(half))
        with open(f"{want}/{name}", "wb") as f:
            f.write(wide)
    write(out + "/model.safetensors", tensors)
    write(plain + "/model.safetensors", decoded)
    configure(kind, out)


main(*sys.argv[1:])

#!/usr/bin/env python3
"""t-nvfp4.py - an NVFP4 checkpoint that the package compressed-tensors wrote.

The package quantizes and packs the projections of models/tiny, and writes the configuration.
zse-convert must keep every code and scale: the values are those that the package computes, to the
last bit of f32 or two."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import BIN, ROOT, Tap, run

try:
    import torch
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor, unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
    from safetensors.torch import load_file, save_file
except ImportError as e:
    Tap.skip("a checkpoint written by compressed-tensors keeps every value", f"Python: {e}")
    Tap.done()
    sys.exit(0)

GROUP = 16
BOUND = 2.0 ** -22                      # two roundings: the package divides by the scale of the tensor, we multiply
args = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": GROUP, "symmetric": True,
        "scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn}
scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args), format="nvfp4-pack-quantized")


def quantize(weight):
    """Returns the tensors that the package stores, and the f32 values that it decompresses from
    them."""
    weight = weight.float()
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    whole = generate_gparam(weight.min(), weight.max())
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights, global_scale=whole)
    stored = NVFP4PackedCompressor.compress({"weight": weight, "weight_scale": scale, "weight_global_scale": whole}, scheme)
    stored = {k: v.detach().contiguous() for k, v in stored.items() if v is not None}
    codes = unpack_fp4_from_uint8(stored["weight_packed"], *weight.shape, dtype=torch.float32)
    return stored, dequantize(codes, stored["weight_scale"].float(), args=scheme.weights, global_scale=whole, dtype=torch.float32)


with tempfile.TemporaryDirectory() as temp:
    source, model, got = (os.path.join(temp, x) for x in ("tiny", "m.zse", "got"))
    shutil.copytree(os.path.join(ROOT, "models", "tiny"), source)
    tensors, want = {}, {}
    for name, x in load_file(os.path.join(source, "model.safetensors")).items():
        if not name.endswith("_proj.weight"):
            tensors[name] = x
            continue
        stored, want[name] = quantize(x)
        tensors.update({name[:-len("weight")] + k: v for k, v in stored.items()})
    save_file(tensors, os.path.join(source, "model.safetensors"))
    path = os.path.join(source, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["quantization_config"] = json.loads(QuantizationConfig(
        config_groups={"group_0": scheme}, format="nvfp4-pack-quantized", quantization_status="compressed",
        ignore=["lm_head"]).model_dump_json())
    with open(path, "w") as f:
        json.dump(config, f)
    report = json.loads(run("zse-convert", source, "-o", model, "--json"))
    kinds = [(t["type"], t["tensors"], t["exact"]) for t in report["types"] if t["source_type"] == "NVFP4"]
    Tap.ok(kinds == [("nvfp4", len(want), True)], "a checkpoint written by compressed-tensors is copied", f"{kinds}")
    wrong = []
    for name, values in want.items():
        subprocess.run([os.path.join(BIN, "zse-info"), "--dump-tensor", name, "-o", got, model], check=True)
        with open(got, "rb") as f:
            ours = torch.frombuffer(bytearray(f.read()), dtype=torch.float32).reshape(values.shape)
        if not torch.all((ours - values).abs() <= BOUND * values.abs()):
            wrong.append(name)
    Tap.ok(len(want) == 28 and not wrong, "every value of its 28 matrices is kept", *wrong)
Tap.done()

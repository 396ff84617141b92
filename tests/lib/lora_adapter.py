#!/usr/bin/env python3
"""lora_adapter.py - write a random LoRA adapter for a folder of safetensors, as PEFT writes them.

usage: lora_adapter.py BASE OUT SEED [RANK]
It changes all projections of attention and of the MLPs."""
import json
import os
import random
import struct
import sys

PROJECTIONS = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()


def main():
    base, out, rng = sys.argv[1], sys.argv[2], random.Random(int(sys.argv[3]))
    rank = int(sys.argv[4]) if len(sys.argv) > 4 else 8
    with open(os.path.join(base, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    index, data = {}, []
    for name, tensor in header.items():
        module = name.removesuffix(".weight")
        if module.rsplit(".", 1)[-1] not in PROJECTIONS:
            continue
        rows, cols = tensor["shape"]
        for half, shape in ("A", (rank, cols)), ("B", (rows, rank)):
            n = shape[0] * shape[1]
            begin = len(data) * 4
            data += (rng.gauss(0, 0.1) for _ in range(n))
            index[f"base_model.model.{module}.lora_{half}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [begin, begin + 4 * n]}
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": PROJECTIONS}, f)
    text = json.dumps(index).encode()
    with open(os.path.join(out, "adapter_model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(data)}f", *data))


main()

#!/usr/bin/env python3
"""eagle.py - make EAGLE heads with random weights for models/tiny, and compute their drafts.

usage: eagle.py 1|3 OUTDIR      write config.json and model.safetensors
       eagle.py 1|3             print the drafts that tests/unit/t-eagle.c expects; needs numpy

The weights are whole numbers of -127 to 127 over 1024 (fc of EAGLE-3: over 16384), and 127 begins
every group of 64, so that int8 holds them exactly.  tests/unit/t-eagle.c makes the same numbers."""
import json
import os
import struct
import sys

HIDDEN, HEADS, KV_HEADS, DIM, MLP, VOCAB, OWN = 128, 4, 2, 32, 192, 1024, 256
EPS, THETA = 1e-6, 10000
PROMPT = [5 + 37 * i % 900 for i in range(9)]
ROUNDS, DRAFT = 5, 3


def own_token(i):
    return 4 * i + i % 3


def shapes(version):
    """Names and shapes of the tensors, in the order of their random numbers."""
    wide, layer = (2 * HIDDEN, "midlayer.") if version == 3 else (HIDDEN, "layers.0.")
    yield layer + "self_attn.q_proj.weight", (HEADS * DIM, wide)
    yield layer + "self_attn.k_proj.weight", (KV_HEADS * DIM, wide)
    yield layer + "self_attn.v_proj.weight", (KV_HEADS * DIM, wide)
    yield layer + "self_attn.o_proj.weight", (HIDDEN, HEADS * DIM)
    yield layer + "mlp.gate_proj.weight", (MLP, HIDDEN)
    yield layer + "mlp.up_proj.weight", (MLP, HIDDEN)
    yield layer + "mlp.down_proj.weight", (HIDDEN, MLP)
    yield layer + "post_attention_layernorm.weight", (HIDDEN,)
    yield "fc.weight", (HIDDEN, (3 if version == 3 else 2) * HIDDEN)
    if version == 1:
        yield "fc.bias", (HIDDEN,)
        return
    yield layer + "input_layernorm.weight", (HIDDEN,)
    yield layer + "hidden_norm.weight", (HIDDEN,)
    yield "norm.weight", (HIDDEN,)
    yield "lm_head.weight", (OWN, HIDDEN)


def weights(version):
    """Name -> (shape, whole numbers); an element is its number / 1024, of norms 1 + it."""
    x, out = 7, {}
    for name, shape in shapes(version):
        values = []
        for i in range(shape[0] * (shape[1] if len(shape) == 2 else 1)):
            x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
            values.append(127 if len(shape) == 2 and i % 64 == 0 else (x >> 33) % 255 - 127)
        out[name] = shape, values
    return out


def element(version, name, number):
    return number / (16384 if version == 3 and name == "fc.weight" else 1024) + ("norm" in name)


def write(version, folder):
    os.makedirs(folder, exist_ok=True)
    header, data = {}, b""
    for name, (shape, values) in weights(version).items():
        data_of = struct.pack(f"<{len(values)}f", *(element(version, name, v) for v in values))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(data_of)]}
        data += data_of
    if version == 3:
        own = [own_token(i) for i in range(OWN)]
        for name, dtype, n, packed in (
                ("d2t", "I64", OWN, struct.pack(f"<{OWN}q", *(t - i for i, t in enumerate(own)))),
                ("t2d", "BOOL", VOCAB, bytes(t in own for t in range(VOCAB)))):
            header[name] = {"dtype": dtype, "shape": [n], "data_offsets": [len(data), len(data) + len(packed)]}
            data += packed
    head = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + data)
    config = {"architectures": ["LlamaForCausalLMEagle3" if version == 3 else "LlamaForCausalLM"],
              "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": MLP, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": DIM, "num_hidden_layers": 1, "vocab_size": VOCAB,
              "rms_norm_eps": EPS, "rope_theta": THETA, "hidden_act": "silu", "max_position_embeddings": 2048,
              "tie_word_embeddings": False}
    if version == 3:
        config["draft_vocab_size"] = OWN
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)


# ---- the reference ----

def read_tiny():
    import numpy as np
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/tiny")
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data, out = json.loads(f.read(n)), f.read(), {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(data[begin:end], "<u2").astype("u4") << 16).view("f4")
        else:
            x = np.frombuffer(data[begin:end], "<f4")
        out[name] = x.astype("f8").reshape(t["shape"])
    with open(os.path.join(folder, "config.json")) as f:
        return out, json.load(f)


def norm(x, w, eps):
    return x / ((x * x).mean(-1, keepdims=True) + eps) ** .5 * w


def attend(x, w, layer, heads, kv_heads, dim, theta):
    """Attention of rows x [n, inputs] at positions 0..n-1, before o_proj."""
    import numpy as np
    n = len(x)
    angle = np.arange(n)[:, None] * theta ** (-np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def turn(y):
        a, b = y[..., :dim // 2], y[..., dim // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    q = turn((x @ w[layer + "self_attn.q_proj.weight"].T).reshape(n, heads, dim))
    k = turn((x @ w[layer + "self_attn.k_proj.weight"].T).reshape(n, kv_heads, dim)).repeat(heads // kv_heads, 1)
    v = (x @ w[layer + "self_attn.v_proj.weight"].T).reshape(n, kv_heads, dim).repeat(heads // kv_heads, 1)
    scores = np.einsum("ihd,jhd->hij", q, k) / dim ** .5 + np.where(np.tri(n) > 0, 0, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(n, heads * dim)


def mlp(x, w, layer):
    import numpy as np
    gate = x @ w[layer + "mlp.gate_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * (x @ w[layer + "mlp.up_proj.weight"].T)) @ w[layer + "mlp.down_proj.weight"].T


def run_tiny(w, c, ids):
    """Logits of the last token, final states and the states before layers 2, n/2 and n-3."""
    import numpy as np
    n, eps, taps = c["num_hidden_layers"], c["rms_norm_eps"], {}
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(n):
        layer = f"model.layers.{i}."
        taps[i] = x
        h = norm(x, w[layer + "input_layernorm.weight"], eps)
        x = x + attend(h, w, layer, c["num_attention_heads"], c["num_key_value_heads"], dim,
                       theta) @ w[layer + "self_attn.o_proj.weight"].T
        x = x + mlp(norm(x, w[layer + "post_attention_layernorm.weight"], eps), w, layer)
    final = norm(x, w["model.norm.weight"], eps)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return head @ final[-1], final, np.concatenate([taps[2], taps[n // 2], taps[n - 3]], -1)


def run_eagle(version, e, embeds, states, head):
    """Own states after each entry, and the draft from the last one."""
    import numpy as np
    if version == 1:
        layer, x = "layers.0.", np.concatenate([embeds, states], -1) @ e["fc.weight"].T + e["fc.bias"]
        inputs = x
    else:
        layer, x = "midlayer.", states
        inputs = np.concatenate([norm(embeds, e[layer + "input_layernorm.weight"], EPS),
                                 norm(states, e[layer + "hidden_norm.weight"], EPS)], -1)
    x = x + attend(inputs, e, layer, HEADS, KV_HEADS, DIM, THETA) @ e[layer + "self_attn.o_proj.weight"].T
    x = x + mlp(norm(x, e[layer + "post_attention_layernorm.weight"], EPS), e, layer)
    if version == 1:
        return x, int((head @ x[-1]).argmax())
    return x, own_token(int((e["lm_head.weight"] @ norm(x[-1], e["norm.weight"], EPS)).argmax()))


def expect(version):
    import numpy as np
    w, c = read_tiny()
    e = {name: np.array([element(version, name, v) for v in values]).reshape(shape)
         for name, (shape, values) in weights(version).items()}
    head, ids = w.get("lm_head.weight", w["model.embed_tokens.weight"]), list(PROMPT)
    logits, _, _ = run_tiny(w, c, ids)
    ids.append(int(logits.argmax()))
    for _ in range(ROUNDS):
        logits, final, taps = run_tiny(w, c, ids)
        states = (taps @ e["fc.weight"].T if version == 3 else final)[:-1]
        tokens, drafts = ids[1:], []
        for _ in range(DRAFT):
            out, token = run_eagle(version, e, w["model.embed_tokens.weight"][tokens], states, head)
            states = np.concatenate([states, out[-1:]])
            tokens = tokens + [token]
            drafts.append(token)
        print("{ %s }, /* after %d */" % (", ".join(map(str, drafts)), ids[-1]))
        ids.append(int(logits.argmax()))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in ("1", "3"):
        sys.exit(__doc__)
    if len(sys.argv) == 3:
        write(int(sys.argv[1]), sys.argv[2])
    else:
        expect(int(sys.argv[1]))

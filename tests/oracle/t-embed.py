#!/usr/bin/env python3
"""t-embed.py - compare vectors and scores of encoders with those of sentence-transformers.

zse-convert converts each model to f32, zse-serve computes every text, one request for all of them.
Token ids must be the same; every component and the cosine must lie within 1e-4, scores of rerankers
within 1e-4 of the logits.  A last request asks for the texts one at a time, with the same bits.
usage: t-embed.py [NAME ...]    NAME: folders of the oracles (default: all)"""
import http.client
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import BIN, ORACLES, Tap, load, need, run

try:
    from folders import add_plain_vocabulary, np, tensors, write
    import gguf
except ImportError:
    gguf = None
FOLDER = os.path.join(ORACLES, "models", "embed")
# model: its architecture in GGUF.  bert-cls is missing: it needs another activation than llama.cpp
# uses for this architecture, and no key of GGUF names it.
GGUF = {"bert-mean": "bert", "distilbert-mean": "bert", "xlm-roberta-mean": "bert", "nomic-bert-mean": "nomic-bert",
        "modernbert-cls": "modern-bert", "embeddinggemma-mean": "gemma-embedding", "qwen3-last": "qwen3"}
LIMIT = 1e-4
temp = tempfile.TemporaryDirectory()


class Server:
    """A zse-serve with one model, on a free port."""

    def __init__(self, model, *options):
        env = dict(os.environ, HOME=temp.name, XDG_CACHE_HOME=temp.name, ZSE_HOME=temp.name)
        self.p = subprocess.Popen([os.path.join(BIN, "zse-serve"), model, "--port", "0", *options], env=env,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.port = int(self.p.stdout.readline().rsplit(":", 1)[1])
        for line in self.p.stderr:
            if ": ready" in line:
                return
        raise RuntimeError("zse-serve ended")

    def post(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = c.getresponse()
        return answer.status, json.loads(answer.read())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.terminate()
        self.p.communicate(timeout=60)


def vectors(server, texts, **more):
    status, answer = server.post("/v1/embeddings", {"input": texts, **more})
    if status != 200:
        raise RuntimeError(f"{status}: {answer}")
    return [d["embedding"] for d in answer["data"]], answer["usage"]["prompt_tokens"]


def errors(got, want):
    """The largest difference between two components, and how far the smallest cosine is from 1."""
    component = max(max(abs(a - b) for a, b in zip(x, y)) for x, y in zip(got, want))
    cosine = max(1 - sum(a * b for a, b in zip(x, y)) / math.hypot(*x) / math.hypot(*y) for x, y in zip(got, want))
    return component, abs(cosine)


def convert(name, kind="f32"):
    model = os.path.join(temp.name, f"{name}-{kind}.zse")
    run("zse-convert", os.path.join(FOLDER, name), "-q", kind, "-o", model, "--force")
    return model


def check_vectors(name):
    want = load(os.path.join(FOLDER, name, "expected.json"))
    with Server(convert(name)) as server:
        got, n_tokens = vectors(server, want["texts"])
        queries, _ = vectors(server, want["texts"][:4], input_type="query")
        single = [vectors(server, [text])[0][0] for text in want["texts"]]
        ids = [server.post("/tokenize", {"content": text, "add_special": True})[1]["tokens"] for text in want["texts"]]
    component, cosine = errors(got, want["embeddings"])
    query, query_cosine = errors(queries, want["query_embeddings"])
    good = ids == want["ids"] and n_tokens == sum(map(len, ids)) and single == got and \
        max(component, cosine, query, query_cosine) <= LIMIT and len(got[0]) == len(want["embeddings"][0])
    Tap.ok(good, f"{name}: vectors", f"component {component:.1e} cosine {cosine:.1e}, with a prompt {query:.1e} {query_cosine:.1e}" +
           ("" if ids == want["ids"] else ", OTHER IDS") + ("" if single == got else ", OTHER BITS ALONE"))


def write_gguf(name, arch, path):
    """Write the folder as a GGUF file like llama.cpp's converter does; the tokens of its vocabulary
    are meaningless."""
    folder = os.path.join(FOLDER, name)
    c, named = load(os.path.join(folder, "config.json")), tensors(folder)
    w = gguf.GGUFWriter(path, arch)
    offset = c["pad_token_id"] + 1 if c["model_type"] == "xlm-roberta" else 0
    heads, rope = c.get("num_attention_heads") or c["n_heads"], c.get("rope_parameters") or {}
    w.add_context_length(c["max_position_embeddings"] - offset)
    w.add_block_count(c.get("num_hidden_layers") or c["n_layers"])
    w.add_embedding_length(c.get("hidden_size") or c["dim"])
    w.add_feed_forward_length(c.get("intermediate_size") or c["hidden_dim"])
    w.add_head_count(heads)
    w.add_head_count_kv(c.get("num_key_value_heads", heads))
    w.add_layer_norm_eps(c.get("layer_norm_eps") or c.get("norm_eps") or 1e-12)
    w.add_layer_norm_rms_eps(c.get("rms_norm_eps", 1e-6))
    w.add_causal_attention(arch == "qwen3")
    w.add_pooling_type({"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS, "last": gguf.PoolingType.LAST}[name.split("-")[-1]])
    if "head_dim" in c:
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if rope:
        w.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        w.add_rope_freq_base_swa(rope.get("sliding_attention", rope)["rope_theta"])
    if arch == "modern-bert":
        w.add_sliding_window(c["local_attention"])
        w.add_sliding_window_pattern(c["global_attn_every_n_layers"])
    elif arch == "gemma-embedding":
        w.add_sliding_window(c["sliding_window"])
    add_plain_vocabulary(w, c["vocab_size"])
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), 16)
    for key, a in named.items():
        key = key.replace("bert.", "", 1) if key.startswith("bert.") else key.removeprefix("distilbert.")
        if key.endswith("position_embeddings.weight"):
            a = a[offset:]
        if arch == "gemma-embedding" and key.endswith("norm.weight"):
            a = a + 1
        ours = names.get_name(key, try_suffixes=(".weight", ".bias")) or names.get_name("model." + key, try_suffixes=(".weight", ".bias"))
        if ours:
            w.add_tensor(ours, np.ascontiguousarray(a, dtype="<f4"))
        elif not key.startswith("pooler."):
            raise ValueError(f"the package gguf has no name for {key}")
    for i, dense in enumerate(sorted(d for d in os.listdir(folder) if d.endswith("_Dense"))):
        w.add_tensor(f"dense_{i + 2}.weight", tensors(os.path.join(folder, dense))["linear.weight"])
    write(w)


def check_gguf(name, arch):
    want = load(os.path.join(FOLDER, name, "expected.json"))
    path, model = (os.path.join(temp.name, f"{name}.{end}") for end in ("gguf", "gguf.zse"))
    write_gguf(name, arch, path)
    run("zse-convert", path, "-q", "f32", "-o", model, "--force")
    with Server(model) as server:
        got, _ = vectors(server, want["ids"])
    component, cosine = errors(got, want["embeddings"])
    Tap.ok(max(component, cosine) <= LIMIT and len(got[0]) == len(want["embeddings"][0]), f"{name} as GGUF {arch}: vectors",
           f"component {component:.1e} cosine {cosine:.1e}")


def as_mpnet(name, architecture):
    """A copy of the folder in which the encoder is an MPNet with the same results: token types are
    added to the embeddings, and each head has the same bias for all distances.  BERT's table of
    positions gets two rows in front, XLM-RoBERTa's has them."""
    folder = os.path.join(temp.name, name)
    old, c = tensors(os.path.join(FOLDER, name)), load(os.path.join(FOLDER, name, "config.json"))
    named, rows = {}, 0 if c["model_type"] == "xlm-roberta" else 2
    for key, a in old.items():
        key = key.removeprefix("bert.").removeprefix("roberta.")
        key = key.replace("attention.output.LayerNorm", "attention.LayerNorm")
        key = key.replace("attention.output.dense", "attention.attn.o")
        for part in ("query", "key", "value"):
            key = key.replace(f"attention.self.{part}", f"attention.attn.{part[0]}")
        if "token_type" not in key and not key.startswith("pooler."):
            named[key] = a
    types = next(a for key, a in old.items() if "token_type" in key)
    named["embeddings.word_embeddings.weight"] = named["embeddings.word_embeddings.weight"] + types[0]
    named["embeddings.position_embeddings.weight"] = np.pad(named["embeddings.position_embeddings.weight"], ((rows, 0), (0, 0)))
    named["encoder.relative_attention_bias.weight"] = np.tile(np.arange(c["num_attention_heads"]) - 1.5, (32, 1))
    shutil.copytree(os.path.join(FOLDER, name), folder)
    os.chmod(folder, 0o755)
    header, data = {}, b""
    for key, a in named.items():
        key = key if key.startswith("classifier.") or architecture == "MPNetModel" else f"mpnet.{key}"
        part = np.ascontiguousarray(a, dtype="<f4")
        header[key] = {"dtype": "F32", "shape": part.shape, "data_offsets": [len(data), len(data) + part.nbytes]}
        data += part.tobytes()
    text = json.dumps(header).encode()
    for file, content in (("model.safetensors", struct.pack("<Q", len(text)) + text + data), ("config.json", json.dumps(
            c | {"model_type": "mpnet", "architectures": [architecture], "pad_token_id": 1, "type_vocab_size": None,
                 "relative_attention_num_buckets": 32, "max_position_embeddings": c["max_position_embeddings"] + rows}).encode())):
        os.unlink(os.path.join(folder, file))
        with open(os.path.join(folder, file), "wb") as f:
            f.write(content)
    return folder


def check_mpnet():
    name = "bert-mean"
    want, model = load(os.path.join(FOLDER, name, "expected.json")), os.path.join(temp.name, "mpnet.zse")
    run("zse-convert", as_mpnet(name, "MPNetModel"), "-q", "f32", "-o", model, "--force")
    with Server(model) as server:
        got, _ = vectors(server, want["ids"])
    component, cosine = errors(got, want["embeddings"])
    Tap.ok(max(component, cosine) <= LIMIT, "bert-mean as mpnet: vectors", f"component {component:.1e} cosine {cosine:.1e}")
    name = "reranker-xlm-roberta"
    folder = as_mpnet(name, "MPNetForSequenceClassification")
    run("zse-convert", folder, "-q", "f32", "-o", model, "--force")
    check_scores(name, model, f"{name} as mpnet")


def logit(p):
    return math.log(p / (1 - p))


def check_scores(name, model, title):
    want = load(os.path.join(FOLDER, name, "expected.json"))
    with Server(model) as server:
        status, scored = server.post("/v1/score", {"text_1": [a for a, _ in want["pairs"]], "text_2": [b for _, b in want["pairs"]]})
        if status != 200:
            raise RuntimeError(scored)
        n_tokens = scored["usage"]["prompt_tokens"]
        query = want["pairs"][0][0]
        same = [i for i, (a, _) in enumerate(want["pairs"]) if a == query]
        body = {"query": query, "documents": [want["pairs"][i][1] for i in same], "top_n": 3, "return_documents": True}
        ranked = server.post("/v1/rerank", body)[1]["results"]
        refused = server.post("/v1/embeddings", {"input": "a"})[0]
    got = [logit(d["score"]) for d in scored["data"]]
    error = max(abs(a - b) for a, b in zip(got, want["logits"]))
    best = sorted(range(len(same)), key=lambda i: -want["logits"][same[i]])[:3]
    good = error <= LIMIT and n_tokens == sum(map(len, want["ids"])) and refused == 400 and len(got) == len(want["logits"]) and \
        [r["index"] for r in ranked] == best and ranked[0]["document"]["text"] == body["documents"][best[0]] and \
        all(abs(r["relevance_score"] - scored["data"][same[r["index"]]]["score"]) < 1e-8 for r in ranked)
    Tap.ok(good, f"{title}: scores and order", f"largest difference of a logit {error:.1e}")


def main():
    need(FOLDER)
    for name in sys.argv[1:] or sorted(os.listdir(FOLDER)):
        if not name.startswith("reranker"):
            check_vectors(name)
            if name in GGUF and gguf:
                check_gguf(name, GGUF[name])
            elif name in GGUF:
                Tap.skip(f"{name} as GGUF {GGUF[name]}: vectors", "no Python package gguf: scripts/deps installs it")
        else:
            check_scores(name, convert(name), name)
    if gguf and not sys.argv[1:]:
        check_mpnet()
    Tap.done()


main()

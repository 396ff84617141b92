#!/usr/bin/env python3
"""t-embed.py - compare vectors and scores of encoders with those of sentence-transformers.

zse-convert converts each model to f32, zse-serve computes every text, one request for all of them.
Token ids must be the same; every component and the cosine must lie within 1e-4, scores of rerankers
within 1e-4 of the logits.  A last request asks for the texts one at a time, with the same bits."""
import http.client
import json
import math
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import BIN, ORACLES, Tap, load, need, run

FOLDER = os.path.join(ORACLES, "models", "embed")
LIMIT = 1e-4
temp = tempfile.TemporaryDirectory()


class Server:
    """zse-serve with one model on a free port."""

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
    """The largest difference of a component, and of the cosine from 1."""
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


def logit(p):
    return math.log(p / (1 - p))


def check_scores(name):
    want = load(os.path.join(FOLDER, name, "expected.json"))
    with Server(convert(name)) as server:
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
    Tap.ok(good, f"{name}: scores and order", f"largest difference of a logit {error:.1e}")


def main():
    need(FOLDER)
    for name in sorted(os.listdir(FOLDER)):
        if not name.startswith("reranker"):
            check_vectors(name)
        else:
            check_scores(name)
    Tap.done()


main()

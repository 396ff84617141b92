#!/usr/bin/env python3
"""t-schema-keywords.py - compare random schemas and instances with the Python package jsonschema.

The schemas combine the keywords that are hard to combine.  An instance that a compiled schema
accepts must be valid.  By hand, --count N --seed S tests more; --show prints refused schemas."""
import argparse
import json
import os
import random
import subprocess
import sys
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import BIN, ORACLES, ROOT, Tap, need

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=250)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--show", action="store_true", help="print what is refused")
args = parser.parse_args()

vocab = os.path.join(ORACLES, "vocab-gguf", "ggml-vocab-gpt-2.gguf")
need(vocab)
try:
    import jsonschema
except ImportError:
    python = os.path.join(ROOT, "build", "venv", "bin", "python")
    if os.path.exists(python) and os.path.abspath(sys.executable) != os.path.abspath(python) and "ZSE_NO_REEXEC" not in os.environ:
        os.environ["ZSE_NO_REEXEC"] = "1"
        os.execv(python, [python, *sys.argv])
    Tap.skip("schemas", "the Python package jsonschema is not installed (scripts/deps makes build/venv with it)")
    Tap.done()
    sys.exit(0)
warnings.simplefilter("ignore")

program = os.path.join(BIN, "tests", "bench", "grammar")
made = subprocess.run(["make", "-s", "-C", ROOT, f"B={os.path.relpath(BIN, ROOT)}", os.path.relpath(program, ROOT)], capture_output=True, text=True, check=False)
if made.returncode:
    Tap.ok(False, "the program that compiles schemas is built", made.stderr[-500:])
    Tap.done()
    sys.exit(0)

r = random.Random(args.seed)
NAMES = ["a", "b", "c", "ab"]
PATTERNS = ["^a", "b$", "^[ab]$", "^.$"]


def scalar():
    return r.choice([None, True, False, 0, 1, 2, 6, -9, 2.5, "a", "b", "ab", ""])


def value(depth=0):
    kind = r.random()
    if depth < 2 and kind < 0.3:
        return {n: value(depth + 1) for n in NAMES if r.random() < 0.4}
    if depth < 2 and kind < 0.55:
        return [value(depth + 1) for _ in range(r.choice([0, 1, 1, 2, 2, 3, 4]))]
    return scalar()


def leaf():
    return r.choice([
        lambda: True, lambda: False, lambda: {"type": r.choice(["string", "integer", "null", "object", "array", "boolean", "number"])}, lambda: {"const": scalar()},
        lambda: {"enum": [scalar() for _ in range(r.randrange(1, 4))]}, lambda: {"minimum": r.randrange(3)},
        lambda: {"pattern": r.choice(PATTERNS)}, lambda: {"multipleOf": r.choice([1, 2, 3, 5, 0.5])},
        lambda: {"maxLength": 1}, lambda: {"type": "string", "minLength": 1}])()


def some(n, make):
    return [make() for _ in range(r.randrange(1, n))]


def counted_contains(depth):
    s = {"contains": schema(depth)}
    for key in ("minContains", "maxContains"):
        if r.random() < 0.5:
            s[key] = r.choice([0, 1, 2])
    return s


def condition(depth):
    s = {"if": schema(depth)}
    if r.random() < 0.8:
        s["then"] = schema(depth)
    if r.random() < 0.6:
        s["else"] = schema(depth)
    return s


def named(key, depth):
    return {key: {n: schema(depth) for n in r.sample(NAMES, r.randrange(1, 3))}}


KEYWORDS = [
    lambda d: named("properties", d), lambda d: named("properties", d), lambda d: named("dependentSchemas", d), lambda d: {"required": r.sample(NAMES, r.randrange(1, 3))},
    lambda d: {"additionalProperties": r.choice([False, schema(d)])}, lambda d: {"unevaluatedProperties": r.choice([False, schema(d)])},
    lambda d: {"items": r.choice([False, schema(d)])}, lambda d: {"unevaluatedItems": r.choice([False, schema(d)])},
    lambda d: {"patternProperties": {p: schema(d) for p in r.sample(PATTERNS, r.randrange(1, 3))}},
    lambda d: {"propertyNames": r.choice([{"maxLength": 1}, {"pattern": "^a"}, {"enum": ["a", "b"]}, {"not": {"const": "a"}}, schema(d + 1)])},
    lambda d: {r.choice(["minProperties", "maxProperties", "minItems", "maxItems"]): r.choice([0, 1, 2, 3])}, lambda d: {"dependentRequired": {r.choice(NAMES): [r.choice(NAMES)]}},
    lambda d: {"prefixItems": some(3, lambda: schema(d))}, counted_contains, lambda d: {"uniqueItems": True},
    lambda d: {"anyOf": some(4, lambda: schema(d))},
    lambda d: {"oneOf": some(4, lambda: schema(d))}, lambda d: {"oneOf": some(4, lambda: schema(d))},
    lambda d: {"allOf": some(4, lambda: schema(d))}, lambda d: {"not": schema(d)},
    lambda d: {"not": schema(d)}, condition, condition, lambda d: {"const": value(1)},
    lambda d: {"enum": some(4, lambda: value(1))}, lambda d: {"$ref": "#/$defs/d"},
]


def schema(depth=0):
    if depth >= 3 or r.random() < 0.12:
        return leaf()
    s = {}
    if r.random() < 0.5:
        s["type"] = r.choice(["object", "array", "string", ["object", "array"], "object", "array"])
    for _ in range(r.choice([1, 1, 2, 2, 3, 4])):
        s.update(r.choice(KEYWORDS)(depth + 1))
    return s


def document():
    s = schema()
    while not isinstance(s, dict):
        s = schema()
    d = schema(1)
    while "$ref" in json.dumps(d):      # the validator follows a cycle of references forever
        d = schema(1)
    return {**s, "$defs": {"d": d}}


with subprocess.Popen([program, vocab], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                      text=True) as p:
    instances = [value() for _ in range(400)]
    bad, n_refused, n_valid, n_accepted, n_invalid = [], 0, 0, 0, 0
    for _ in range(args.count):
        s, tests = document(), r.sample(instances, 40)
        p.stdin.write(json.dumps({"schema": s, "texts": [json.dumps(v, separators=(",", ":")) for v in tests]}) + "\n")
        p.stdin.flush()
        line = p.stdout.readline()
        if not line:
            Tap.ok(False, "the program lives", json.dumps(s))
            break
        answer = json.loads(line)
        if "error" in answer:
            n_refused += 1
            if args.show:
                print("#", answer["error"], json.dumps(s)[:300])
            continue
        validator = jsonschema.Draft202012Validator(s)
        for instance, accepted in zip(tests, answer["accepted"]):
            good = validator.is_valid(instance)
            n_valid += good
            n_invalid += not good
            n_accepted += good and accepted == 1
            if accepted == -1 or (accepted and not good):
                bad.append((s, instance))
    p.stdin.close()
Tap.ok(not bad, f"{args.count} random schemas, {n_refused} refused: of {n_invalid} invalid instances none accepted", *[f"{json.dumps(s)} {json.dumps(i)}" for s, i in bad[:5]])
Tap.ok(n_accepted > 0.9 * n_valid, f"{n_accepted} of {n_valid} valid instances accepted, more than 90 %")
Tap.ok(n_refused < 0.4 * args.count, f"less than 40 % refused: {n_refused} of {args.count}")
Tap.done()

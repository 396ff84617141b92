#!/usr/bin/env python3
"""t-schema.py - compare compiled JSON schemas with the Python package jsonschema.

Documents made by random walks through the masks of a compiled schema must be valid, and valid
documents with the properties in the schema's order must be accepted; or the schema is refused by
name.  --count N tests N random schemas (a few hundred in make check)."""
import argparse
import json
import os
import random
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import BIN, ORACLES, ROOT, Tap, need

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=300)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--show", action="store_true", help="print what is refused")
parser.add_argument("--walks", type=int, default=3)
args = parser.parse_args()

vocab = os.path.join(ORACLES, "vocab-gguf", "ggml-vocab-qwen2.gguf")
need(vocab)
try:
    import jsonschema
except ImportError:
    # The virtual environment that scripts/deps makes has the package.
    python = os.path.join(ROOT, "build", "venv", "bin", "python")
    if os.path.exists(python) and os.path.abspath(sys.executable) != os.path.abspath(python) and "ZSE_NO_REEXEC" not in os.environ:
        os.environ["ZSE_NO_REEXEC"] = "1"
        os.execv(python, [python, *sys.argv])
    Tap.skip("schemas", "the Python package jsonschema is not installed (scripts/deps makes build/venv with it)")
    Tap.done()
    sys.exit(0)

program = os.path.join(BIN, "tests", "bench", "grammar")
made = subprocess.run(["make", "-s", "-C", ROOT, f"B={os.path.relpath(BIN, ROOT)}", os.path.join(os.path.relpath(BIN, ROOT), "tests", "bench", "grammar")],
                      capture_output=True, text=True, check=False)
if made.returncode:
    Tap.ok(False, "the program that compiles schemas is built", made.stderr[-500:])
    Tap.done()
    sys.exit(0)


class Schemas:
    """Random schemas over the whole vocabulary of draft 2020-12."""

    WORDS = ["id", "name", "value", "a", "b", "c", "kind", "x-y", "ü", "quo\"te", "q", "list", "0", "A b"]
    PATTERNS = ["^[a-z]+$", "^\\d{3}-\\d{4}$", "[aeiou]", "^(foo|bar)", "z$", "^.{2,5}$", "^[A-Z][a-z]*( [A-Z][a-z]*)*$", "^\\S+@\\S+$", "^[^\\s\"]{1,8}$", "^(?!no)\\w+$", "^$|^x",
                "a{2,3}b?", "^(?=.*\\d)[a-z\\d]{3,}$", "\\.", "^v[0-9]+\\.[0-9]+$"]
    FORMATS = ["date", "time", "date-time", "duration", "email", "uuid", "ipv4", "ipv6", "hostname", "uri", "uri-reference", "json-pointer", "my-own"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    def scalar(self):
        r = self.r
        return r.choice([None, True, False, 0, 1, -7, 42, 2.5, "", "abc", "xyz", "quo\"te", "line\nbreak", "é", "\U0001f600", 1000000, "0"])

    def value(self, depth=0):
        r = self.r
        if depth < 2 and self.chance(0.25):
            if self.chance(0.5):
                return [self.value(depth + 1) for _ in range(r.randrange(3))]
            return {w: self.value(depth + 1) for w in r.sample(self.WORDS, r.randrange(3))}
        return self.scalar()

    def number(self, whole):
        r, s = self.r, {}
        lo = r.choice([-1000, -10, -1, 0, 1, 5, 99, 1.5, -2.25]) if self.chance(0.6) else None
        if lo is not None:
            s[r.choice(["minimum", "exclusiveMinimum"])] = lo
        if self.chance(0.6):
            s[r.choice(["maximum", "exclusiveMaximum"])] = (lo or 0) + r.choice([1, 2, 10, 100, 12345, 0.5, 3.75])
        if self.chance(0.25):
            s["multipleOf"] = r.choice([1, 2, 3, 7, 10, 25, 0.5, 0.25] if not whole else [1, 2, 3, 7, 10, 25, 100])
        return s

    def string(self):
        r, s = self.r, {}
        if self.chance(0.35):
            s["minLength"] = r.choice([0, 1, 2, 5])
        if self.chance(0.35):
            s["maxLength"] = s.get("minLength", 0) + r.choice([0, 1, 3, 10, 50])
        if self.chance(0.25):
            s["pattern"] = r.choice(self.PATTERNS)
        elif self.chance(0.25):
            s["format"] = r.choice(self.FORMATS)
        return s

    def array(self, depth):
        r, s = self.r, {}
        if self.chance(0.8):
            s["items"] = self.schema(depth + 1) if self.chance(0.95) else False
        if self.chance(0.2):
            s["prefixItems"] = [self.schema(depth + 1) for _ in range(r.randrange(1, 3))]
        if self.chance(0.3):
            s["minItems"] = r.choice([0, 1, 2, 4])
        if self.chance(0.3):
            s["maxItems"] = s.get("minItems", 0) + r.choice([0, 1, 2, 5])
        if self.chance(0.1):
            s["contains"] = self.schema(depth + 1)
            if self.chance(0.2):
                s["minContains"] = r.choice([0, 1, 2])
        if self.chance(0.12):
            s["uniqueItems"] = True
            if self.chance(0.7):
                s["items"] = {"enum": r.sample(["a", "b", "c", 1, 2, None, True], r.randrange(2, 6))}
        return s

    def object(self, depth):
        r, s = self.r, {}
        names = r.sample(self.WORDS, r.choice([0, 1, 2, 3, 5]))
        if names or self.chance(0.3):
            s["properties"] = {n: self.schema(depth + 1) for n in names}
        if names and self.chance(0.6):
            s["required"] = r.sample(names, r.randrange(len(names) + 1)) + (["extra"] if self.chance(0.05) else [])
        if self.chance(0.4):
            s["additionalProperties"] = r.choice([False, False, True, self.schema(depth + 1)])
        if self.chance(0.12):
            s["patternProperties"] = {p: self.schema(depth + 1) for p in r.sample(["^x-", "_id$", "^[a-z]$", "\\d"], r.randrange(1, 3))}
        if self.chance(0.08):
            s["propertyNames"] = r.choice([{"pattern": "^[a-z]+$"}, {"maxLength": 5}, {"enum": ["a", "b", "id", "zz"]}])
        if self.chance(0.15):
            s["minProperties"] = r.choice([0, 1, 2])
        if self.chance(0.15):
            s["maxProperties"] = s.get("minProperties", 0) + r.choice([0, 1, 2, 4])
        if len(names) > 1 and self.chance(0.1):
            s["dependentRequired"] = {names[0]: names[1:2]}
        if names and self.chance(0.05):
            s["dependentSchemas"] = {names[0]: {"required": names[-1:]}}
        if self.chance(0.04):
            s["unevaluatedProperties"] = False
        return s

    def schema(self, depth=0):
        r = self.r
        if self.chance(0.04):
            return r.choice([True, False, {}, {}, True])
        kind = r.random()
        if depth < 3 and kind < 0.10:
            return {r.choice(["anyOf", "oneOf", "anyOf"]): [self.schema(depth + 1) for _ in range(r.randrange(1, 4))],
                    **({"type": r.choice(["object", "string"])} if self.chance(0.1) else {})}
        if depth < 3 and kind < 0.14:
            return {"allOf": [self.schema(depth + 1) for _ in range(r.randrange(1, 3))],
                    **(self.object(depth) if self.chance(0.3) else {})}
        if kind < 0.17:
            return {"not": self.schema(depth + 2), **({"type": r.choice(["string", "integer", "object"])} if self.chance(0.7) else {})}
        if kind < 0.20:
            s = {"type": "object", "properties": {"kind": {"enum": ["a", "b", "c"]}, "v": {}}, "required": ["kind"],
                 "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}, "then": {"properties": {"v": self.schema(depth + 2)}, "required": ["v"]}}
            if self.chance(0.5):
                s["else"] = {"properties": {"v": self.schema(depth + 2)}}
            return s
        if kind < 0.26:
            return {"enum": [self.value() for _ in range(r.randrange(1, 6))]}
        if kind < 0.30:
            return {"const": self.value()}
        if kind < 0.34:
            return {"$ref": r.choice(["#/$defs/one", "#/$defs/two", "#", "#here"])}
        types = r.choice(["null", "boolean", "integer", "number", "string", "string", "array", "object", "object", "object"])
        if depth > 3 and types in ("array", "object"):
            types = "string"
        s = {"type": types}
        if self.chance(0.1):
            s["type"] = [types, "null"] if types != "null" else ["null", "integer"]
        if self.chance(0.03):
            del s["type"]
        if types in ("integer", "number"):
            s.update(self.number(types == "integer"))
        if types == "string":
            s.update(self.string())
        if types == "array":
            s.update(self.array(depth))
        if types == "object":
            s.update(self.object(depth))
        if self.chance(0.2):
            s["description"] = "some words"
        if self.chance(0.05):
            s["default"] = self.value()
        return s

    def document(self):
        s = self.schema()
        while not isinstance(s, dict):
            s = self.schema()
        text = json.dumps(s)
        defs = {}
        if "#/$defs" in text or "#here" in text:
            defs = {"one": self.object_or_scalar(), "two": {"$anchor": "here", **self.object_or_scalar()}}
        return {**s, **({"$defs": defs} if defs else {})}

    def object_or_scalar(self):
        s = self.schema(3)
        return s if isinstance(s, dict) else {"type": "integer"}


# Schemas as agents and programs write them: tools of coding agents, search and booking functions,
# extraction of data, the output of pydantic and zod.
COMMON = []


def common(text):
    COMMON.append(json.loads(text))


def obj(required=None, closed=False, **properties):
    s = {"type": "object", "properties": properties}
    if required is None:
        required = list(properties)
    if required:
        s["required"] = required
    if closed:
        s["additionalProperties"] = False
    return s


S, I, N, B = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
DRAFT7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


def arr(items, **more):
    return {"type": "array", "items": items, **more}


def opt(s):
    return {"anyOf": [s, {"type": "null"}], "default": None}


def enum(*values):
    return {"type": "string", "enum": list(values)}


COMMON += [
    # coding agents
    obj(command={**S, "description": "The command to run"}, timeout={**N, "description": "Milliseconds, at most 600000"}, description=S, run_in_background=B, required=["command"], closed=True) | DRAFT7,
    obj(file_path=S, offset={**N}, limit={**N}, required=["file_path"], closed=True) | DRAFT7,
    obj(file_path=S, old_string=S, new_string=S, replace_all={**B, "default": False}, required=["file_path", "old_string", "new_string"], closed=True) | DRAFT7,
    obj(file_path=S, edits=arr(obj(old_string=S, new_string=S, replace_all={**B, "default": False},
                                   required=["old_string", "new_string"], closed=True),
                               minItems=1), closed=True) | DRAFT7,
    obj(pattern=S, path=S, glob=S, output_mode=enum("content", "files_with_matches", "count"),
        **{"-A": N, "-B": N, "-i": B}, multiline=B, required=["pattern"], closed=True) | DRAFT7,
    obj(todos=arr(obj(content={**S, "minLength": 1}, status=enum("pending", "in_progress", "completed"),
                      priority=enum("high", "medium", "low"), id=S, closed=True)), closed=True) | DRAFT7,
    obj(url={**S, "format": "uri"}, prompt=S, closed=True) | DRAFT7,
    obj(query={**S, "minLength": 2}, allowed_domains=arr(S), blocked_domains=arr(S), required=["query"], closed=True) | DRAFT7,
    obj(notebook_path=S, cell_id=S, new_source=S, cell_type=enum("code", "markdown"),
        edit_mode=enum("replace", "insert", "delete"), required=["notebook_path", "new_source"], closed=True) | DRAFT7,
    obj(description=S, prompt=S, subagent_type=S, closed=True) | DRAFT7,
    obj(path=S, content=S), obj(path=S, recursive=B, required=["path"]), obj(diff=S),
    obj(question=S, options=arr(S, minItems=2, maxItems=5), required=["question"]),
    obj(command=enum("view", "create", "str_replace", "insert", "undo_edit"), path=S, file_text=S, old_str=S, new_str=S,
        insert_line=I, view_range=arr(I), required=["command", "path"]),
    obj(action=enum("key", "type", "mouse_move", "left_click", "screenshot"), coordinate={"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}, text=S, required=["action"]),
    obj(commands=arr({"type": "array", "prefixItems": [S, N], "items": False, "minItems": 2}), is_async=B, required=["commands"]),
    # functions of chat programs
    obj(location={**S, "description": "City and state"}, unit=enum("celsius", "fahrenheit"), required=["location"]),
    obj(location=S, format=enum("celsius", "fahrenheit"), num_days=I), obj(city=S, days={**I, "minimum": 1, "maximum": 14}, required=["city"]),
    obj(origin={**S, "pattern": "^[A-Z]{3}$"}, destination={**S, "pattern": "^[A-Z]{3}$"}, departure={**S, "format": "date"}, return_date={**S, "format": "date"}, passengers={**I, "minimum": 1, "maximum": 9},
        cabin=enum("economy", "premium", "business", "first"), required=["origin", "destination", "departure"]),
    obj(query=S, top_k={**I, "minimum": 1, "maximum": 100, "default": 10}, filters={"type": "object", "additionalProperties": S}, required=["query"]),
    obj(sql=S), obj(expression=S), obj(code=S, language=enum("python", "javascript", "bash")), obj(), {"type": "object", "properties": {}, "additionalProperties": False}, {"type": "object"},
    obj(to=arr({**S, "format": "email"}, minItems=1), cc=arr({**S, "format": "email"}), subject={**S, "maxLength": 200},
        body=S, priority=enum("low", "normal", "high"), required=["to", "subject", "body"]),
    obj(title=S, start={**S, "format": "date-time"}, end={**S, "format": "date-time"},
        attendees=arr(obj(name=S, email={**S, "format": "email"}, required=["email"])),
        reminder_minutes={**I, "minimum": 0}, required=["title", "start"]),
    obj(symbol={**S, "pattern": "^[A-Z.]{1,6}$"}, interval=enum("1m", "5m", "1h", "1d")), obj(amount={**N, "exclusiveMinimum": 0}, currency={**S, "minLength": 3, "maxLength": 3}, to_account=S),
    obj(account_id={**S, "format": "uuid"}, status=enum("active", "closed"), limit={**I, "default": 20}, cursor=opt(S), required=["account_id"]),
    obj(owner=S, repo=S, title=S, body=S, labels=arr(S), assignees=arr(S), milestone=N, required=["owner", "repo", "title"]) | DRAFT7,
    obj(owner=S, repo=S, pullNumber=N, event=enum("APPROVE", "REQUEST_CHANGES", "COMMENT"),
        comments=arr({"anyOf": [obj(path=S, position=N, body=S), obj(path=S, line=N, body=S)]}),
        required=["owner", "repo"]) | DRAFT7,
    obj(channel_id=S, text=S, thread_ts={**S, "pattern": "^\\d{10}\\.\\d{6}$"}, required=["channel_id", "text"]),
    obj(paths=arr(S), head={**N}, tail={**N}, required=["paths"]),
    obj(entities=arr(obj(name=S, entityType=S, observations=arr(S)))),
    obj(relations=arr({"type": "object", "properties": {"from": S, "to": S, "relationType": S},
                       "required": ["from", "to", "relationType"]})),
    obj(thought=S, nextThoughtNeeded=B, thoughtNumber={**I, "minimum": 1}, totalThoughts={**I, "minimum": 1},
        isRevision=B, revisesThought={**I, "minimum": 1}, branchId=S,
        required=["thought", "nextThoughtNeeded", "thoughtNumber", "totalThoughts"]),
    obj(timezone=S), obj(source_timezone=S, time={**S, "pattern": "^([01]\\d|2[0-3]):[0-5]\\d$"}, target_timezone=S),
    obj(selector=S, value=S), obj(url=S, width={**N, "default": 800}, height=N, required=["url"]),
    obj(method=enum("GET", "POST", "PUT", "DELETE"), url={**S, "format": "uri"}, headers={"type": "object", "additionalProperties": S}, body=opt({"anyOf": [S, {"type": "object"}]}), required=["method", "url"]),
    # strict structured output
    obj(steps=arr(obj(explanation=S, output=S, closed=True)), final_answer=S, closed=True),
    obj(name=S, date=S, participants=arr(S), closed=True),
    obj(sentiment=enum("positive", "negative", "neutral"), confidence={**N, "minimum": 0, "maximum": 1}, closed=True),
    obj(is_violating=B, category={"type": ["string", "null"], "enum": ["violence", "sexual", "self_harm", None]},
        explanation_if_violating={"type": ["string", "null"]}, closed=True),
    obj(title=S, authors=arr(S), abstract=S, keywords=arr(S), closed=True),
    {"type": "object", "properties": {"linked_list": {"$ref": "#/$defs/node"}}, "$defs": {"node": obj(value=N, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, closed=True)}, "additionalProperties": False, "required": ["linked_list"]},
    {**obj(type=enum("div", "button", "header", "section", "field", "form"), label=S, children=arr({"$ref": "#"}),
           attributes=arr(obj(name=S, value=S, closed=True)), closed=True)},
    obj(item={"anyOf": [obj(name=S, age=I, closed=True), obj(number=S, street=S, city=S, closed=True)]}, closed=True),
    obj(rating={"type": "integer", "enum": [1, 2, 3, 4, 5]}, comment=opt({**S, "maxLength": 500})),
    obj(answer=S, citations=arr(obj(source=I, quote=S)), closed=True),
    # pydantic
    {"$defs": {"Address": {"properties": {"street": {"title": "Street", "type": "string"}, "zip": {"pattern": "^\\d{5}(-\\d{4})?$", "title": "Zip", "type": "string"}}, "required": ["street", "zip"], "title": "Address", "type": "object"}},
     "properties": {"name": {"maxLength": 80, "minLength": 1, "title": "Name", "type": "string"}, "age": {"anyOf": [{"exclusiveMinimum": 0, "maximum": 130, "type": "integer"}, {"type": "null"}], "default": None, "title": "Age"},
                    "address": {"$ref": "#/$defs/Address"}, "others": {"additionalProperties": {"$ref": "#/$defs/Address"}, "title": "Others", "type": "object"}, "score": {"maximum": 1.0, "minimum": 0.0, "type": "number"}},
     "required": ["name", "address"], "title": "Person", "type": "object"},
    {"$defs": {"Cat": {"properties": {"kind": {"const": "cat", "type": "string"}, "lives": {"type": "integer"}}, "required": ["kind", "lives"], "type": "object"},
               "Dog": {"properties": {"kind": {"const": "dog", "type": "string"}, "breed": {"type": "string"}}, "required": ["kind", "breed"], "type": "object"}},
     "properties": {"pet": {"discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"}, "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}}, "required": ["pet"], "type": "object"},
    {"$defs": {"Color": {"enum": ["red", "green"], "title": "Color", "type": "string"}}, "properties": {"colors": {"items": {"$ref": "#/$defs/Color"}, "type": "array", "uniqueItems": True}, "point": {"maxItems": 2, "minItems": 2, "prefixItems": [N, N], "type": "array"}}, "required": ["colors"], "type": "object"},
    {"properties": {"created": {"format": "date-time", "type": "string"}, "id": {"format": "uuid", "type": "string"}, "price": {"anyOf": [{"type": "number"}, {"type": "string"}]}, "tags": {"default": [], "items": {"type": "string"}, "type": "array"},
                    "meta": {"additionalProperties": True, "type": "object"}}, "required": ["created", "id", "price"], "type": "object"},
    {"properties": {"a": {"allOf": [{"$ref": "#/$defs/X"}], "description": "d"}}, "$defs": {"X": {"type": "object", "properties": {"y": I}, "required": ["y"]}}, "required": ["a"], "type": "object"},
    # zod, OpenAPI, others
    {**obj(email={**S, "format": "email"}, website={**S, "format": "uri"},
           port={**I, "exclusiveMinimum": 0, "maximum": 65535},
           ip={"anyOf": [{**S, "format": "ipv4"}, {**S, "format": "ipv6"}]}, required=["email"], closed=True),
     **DRAFT7},
    obj(role={"type": "string", "const": "user"}, content={"anyOf": [S, arr({"anyOf": [obj(type={"const": "text"}, text=S), obj(type={"const": "image_url"}, image_url=obj(url=S))]})]}),
    obj(id={"type": "integer", "format": "int64"}, name=S, nickname={"type": "string", "nullable": True}, photoUrls=arr(S), status=enum("available", "pending", "sold"), required=["name", "photoUrls"]),
    obj(price={**N, "minimum": 0, "multipleOf": 0.5}, quantity={**I, "minimum": 1}),
    obj(range={"type": "array", "items": N, "minItems": 2, "maxItems": 2}),
    arr(obj(text=S, label=enum("PER", "ORG", "LOC"), start={**I, "minimum": 0}, end={**I, "minimum": 0})),
    {"type": "object", "additionalProperties": N}, {"type": "object", "additionalProperties": arr(S)}, {"type": "object", "patternProperties": {"^[a-z_]+$": S}, "additionalProperties": False}, arr(S, maxItems=10), enum("yes", "no"), B, S, {"enum": [1, "two", None, True]},
    {"anyOf": [obj(answer=S), obj(error=S)]}, {"oneOf": [obj(type={"const": "circle"}, radius=N), obj(type={"const": "square"}, side=N)]}, {"type": ["string", "number"]},
    obj(payment={"oneOf": [obj(method=enum("card"), number={**S, "pattern": "^[0-9]{12,19}$"}), obj(method=enum("iban"), iban=S)]}), {"allOf": [obj(a=S), obj(b=I)]},
    {"type": "object", "properties": {"kind": enum("a", "b"), "a_value": S, "b_value": I}, "required": ["kind"], "allOf": [{"if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["a_value"]}}, {"if": {"properties": {"kind": {"const": "b"}}}, "then": {"required": ["b_value"]}}]},
    {"type": "object", "properties": {"credit_card": S, "billing_address": S, "name": S}, "required": ["name"], "dependentRequired": {"credit_card": ["billing_address"]}},
    {"type": "object", "properties": {"a": S, "b": S}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"type": "object", "properties": {"a": S, "b": S}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    obj(when={**S, "format": "time"}, every={**S, "format": "duration"}), obj(version={**S, "pattern": "^\\d+\\.\\d+\\.\\d+(-[0-9A-Za-z.-]+)?$"}), obj(slug={**S, "pattern": "^[a-z0-9]+(?:-[a-z0-9]+)*$", "maxLength": 60}), obj(hex={**S, "pattern": "^#[0-9a-fA-F]{6}$"}),
    obj(tags=arr(enum("a", "b", "c", "d"), uniqueItems=True, minItems=1)),
    {"type": "object", "properties": {"x": {"not": {"type": "null"}}}, "required": ["x"]},
    obj(nested=obj(deep=obj(deeper=obj(value=arr(arr(I)))))),
    {"type": "object", "properties": {"expr": {"$ref": "#/definitions/e"}}, "required": ["expr"], "definitions": {"e": {"anyOf": [{"type": "number"}, obj(op=enum("+", "-"), left={"$ref": "#/definitions/e"}, right={"$ref": "#/definitions/e"})]}}},
]


class Grammar:
    """A running grammar program that gets one request after the other."""

    def __init__(self):
        self.p = subprocess.Popen([program, vocab], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True)

    def ask(self, **request):
        self.p.stdin.write(json.dumps(request) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            raise RuntimeError("the program died of " + json.dumps(request))
        return json.loads(line)


def no_duplicates(pairs):
    d = {}
    for k, v in pairs:
        d[k] = v
    return d


grammar = Grammar()
refused = {}


def wrong_walks(schema, answer):
    """The documents among these walks that the validator rejects."""
    bad = []
    # The validator ignores formats that it does not implement, so oneOf and not may have other
    # results than ours.  Such a schema is replaced by one that accepts everything.
    if (set(re.findall(r'"format": "([a-z-]+)"', json.dumps(schema)))
            & set(Schemas.FORMATS[:-1]) - set(jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers)):
        schema = {}
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    for text in answer["walks"]:
        if text is None:
            continue
        if not isinstance(text, str):
            bad.append(("walk", text))
            continue
        try:
            document = json.loads(text, object_pairs_hook=no_duplicates)
        except ValueError as e:
            bad.append(("not JSON", text, str(e)))
            continue
        try:
            errors = list(validator.iter_errors(document))
        except RecursionError:              # the validator follows a reference to itself forever
            continue
        if errors:
            bad.append(("invalid", text, errors[0].message[:200]))
    return bad


def is_placed(error, schema):
    """Whether a refusal names a place: "schema: /a/place/that/exists: ...", or, for the whole
    schema, "schema: ..."."""
    m = re.fullmatch(r"schema: (?:(/.*?): )?[^/].*", error, re.S)
    at = schema
    for name in (m.group(1) or "").split("/")[1:] if m else ():
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and name.isdigit() and int(name) < len(at):
            at = at[int(name)]
        elif isinstance(at, dict) and name in at:
            at = at[name]
        else:
            return False
    return bool(m)


def check(schema, seed, deep):
    """The answer to walks through a schema, and the faults found; deep: check masks bit by bit."""
    answer = grammar.ask(schema=schema, walks=args.walks, tokens=120, seed=seed, check=deep)
    if "error" in answer:
        return answer, []
    return answer, wrong_walks(schema, answer) + ([("mask", answer["differs"])] if answer["differs"] else [])


bad, n_refused, n_walks, n_cut, slow = [], 0, 0, 0, 0.0
schemas = Schemas(args.seed)
for i in range(args.count):
    s = schemas.document()
    a, wrong = check(s, i, deep=False)
    slow = max(slow, a["compile_ms"])
    if "error" in a:
        n_refused += 1
        key = a["error"].split(": ", 2)[-1]
        refused.setdefault(key, []).append(s)
        if not is_placed(a["error"], s):
            bad.append((s, [("no place in", a["error"])]))
        # A schema that was refused because nothing can satisfy it: the validator must reject all of
        # these simple values.  Not checked are schemas with a format (the validator ignores some)
        # and with properties (the compiler allows only declared properties, the validator also
        # others).
        if "nothing can satisfy" in a["error"] and "format" not in json.dumps(s) and "properties" not in json.dumps(s):
            v = jsonschema.Draft202012Validator(s, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
            for value in [None, True, False, 0, 1, -3, 2.5, 7, 100, "", "a", "abc", "foo", "Abc", [], {}, [1], {"a": 1}, ["a"], [None]]:
                try:
                    if v.is_valid(value):
                        bad.append((s, [("called empty, but valid", value)]))
                        break
                except RecursionError:
                    break
    else:
        n_walks += sum(t is not None for t in a["walks"])
        n_cut += sum(t is None for t in a["walks"])
    if wrong:
        bad.append((s, wrong))
Tap.ok(not bad, f"{args.count} random schemas: {n_walks} documents valid ({n_cut} walks cut off), {n_refused} schemas refused by name",
       *[json.dumps(s)[:1500] + " " + repr(w)[:600] for s, w in bad[:10]], f"slowest compilation {slow:.1f} ms")
if args.show:
    for key, which in sorted(refused.items(), key=lambda x: -len(x[1])):
        print("#", len(which), key, json.dumps(which[0])[:300])

bad, n_refused, n_walks, times, masks = [], 0, 0, [], []
for i, s in enumerate(COMMON):
    a, wrong = check(s, i, deep=i % 10 == 0)
    times.append(a["compile_ms"])
    if "error" in a:
        n_refused += 1
        print("# refused:", a["error"], json.dumps(s)[:200])
    else:
        n_walks += sum(t is not None for t in a["walks"])
        masks.append(a["mask_us"])
    if wrong:
        bad.append((s, wrong))
times.sort()
Tap.ok(not bad, f"{len(COMMON)} schemas as agents send them: {n_walks} documents valid", *[json.dumps(s)[:600] + " " + repr(w)[:400] for s, w in bad[:10]],
       f"compile ms: median {times[len(times) // 2]:.2f}, worst {times[-1]:.2f}; mask us: mean {sum(m[0] for m in masks) / len(masks):.1f}")
Tap.ok(n_refused < 0.03 * len(COMMON), f"less than 3 % of them refused: {n_refused}")

# The other direction: valid documents with properties in the order of the schema must be accepted.
reverse = [
    (obj(a=S, b=I, c=arr(B), required=["a"]),
     [{"a": "x"}, {"a": "é\"\\\n\U0001f600", "b": -5}, {"a": "", "c": [True, False]}, {"a": "\u0001", "b": 0, "c": []}],
     [{"b": 1}, {"a": 1}, {"a": "x", "d": 1}]),
    ({"type": "object", "additionalProperties": I}, [{}, {"x": 1}, {"y": 2, "x": 1}, {"é\n": 3}], [{"x": "1"}]),
    (obj(a=I, closed=False) | {"additionalProperties": S}, [{"a": 1}, {"a": 1, "aa": "x", "": "y", "b": ""}], [{"aa": "x"}, {"a": 1, "b": 2}]),
    ({"oneOf": [{"type": "string"}, {"enum": ["a", "0", False, 5]}]}, ["b", False, 5], ["a", "0", True]),
    ({"enum": [1, "two", None, [1, {"a": 2}], 2.5]}, [1, "two", None, [1, {"a": 2}], 2.5], [2, "1", False, [], 2.25]),
    ({"type": "number", "minimum": -1, "maximum": 1}, [0, 1, -1, 0.5, -0.25, 0.333333], [1.5, -1.25, 2, 1.000001]),
    ({"type": "integer", "multipleOf": 7, "minimum": 10}, [14, 21, 700007], [7, 15, 0, -7]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü", "\U0001f600\U0001f600", "\"\\"], ["a", "abcd", ""]),
    ({"type": "string", "pattern": "b+"}, ["b", "abba", "\nb"], ["", "aaa"]),
    (arr(I, minItems=1, maxItems=3), [[1], [1, 2, 3]], [[], [1, 2, 3, 4], ["a"]]),
    ({"type": "array", "prefixItems": [S, I], "items": B}, [[], ["a"], ["a", 1], ["a", 1, True, False]], [[1], ["a", "b"], ["a", 1, 1]]),
    ({"type": "array", "contains": {"const": 5}, "items": I}, [[5], [1, 5], [5, 1], [1, 2, 5, 3]], [[], [1], [1, 2]]),
    ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}, [[], ["b", "a"], ["c", "a", "b"]], [["a", "a"], ["d"]]),
    ({"allOf": [obj(a=S), obj(b={**I, "minimum": 3})], "properties": {"b": {"maximum": 5}}}, [{"b": 4, "a": "x"}], [{"b": 6, "a": "x"}, {"a": "x"}, {"b": 2, "a": "x"}]),
    ({"type": "object", "properties": {"a": S, "b": S}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": "1"}, {"b": "1"}], [{}, {"a": "1", "b": "1"}]),
    ({"type": "object", "properties": {"a": I, "b": I, "c": I}, "minProperties": 2, "maxProperties": 2}, [{"a": 1, "b": 2}, {"b": 1, "c": 2}], [{"a": 1}, {"a": 1, "b": 1, "c": 1}]),
    ({"type": "string", "not": {"enum": ["a", "b"]}}, ["c", "", "ab"], ["a", "b"]),
    ({"type": "integer", "not": {"const": 7}}, [6, 77, 70], [7]),
]
bad = []
for s, good, not_good in reverse:
    v = jsonschema.Draft202012Validator(s)
    texts = [f(d) for d in good + not_good
             for f in (lambda d: json.dumps(d, ensure_ascii=False),
                       lambda d: json.dumps(d, ensure_ascii=False, separators=(",", ":")))]
    a = grammar.ask(schema=s, walks=0, texts=texts)
    want = [int(k < len(good)) for k in range(len(good) + len(not_good)) for _ in (0, 1)]
    for d in good:
        if not v.is_valid(d):
            bad.append((s, "the test is wrong about", d))
    if a.get("accepted") != want:
        bad.append((s, a.get("error"), [(t, w, g) for t, w, g in zip(texts, want, a.get("accepted", [])) if w != g]))
Tap.ok(not bad, "valid documents in the order of the schema are accepted, others not", *map(str, bad))
Tap.done()

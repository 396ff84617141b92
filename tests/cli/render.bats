# render.bats - zse-info render: the template comes from a model or a file, each line of input
# becomes one JSON object on a line of output, and usage and bad input are refused.
bats_require_minimum_version 1.5.0

setup() {
  cd "$BATS_TEST_TMPDIR" || exit 1
  chat='{"messages": [{"role": "user", "content": "hé"}]}'
  one='{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}'
  oracles=${ZSE_ORACLES:-$BATS_TEST_DIRNAME/../../../shared/oracles}
}
render() { zse-info render "$@"; }
text() { python3 -c 'import json,sys
for line in sys.stdin: d = json.loads(line); print(d.get("text", "error: " + d.get("error", "")))'; }

@test "--help goes to stdout, wrong usage to stderr with 2; a missing model is 1" {
  run --separate-stderr zse-info render --help
  [ "$status" = 0 ]
  [[ "$output" == "usage: zse-info render"* ]]
  [ -z "$stderr" ]
  run --separate-stderr zse-info render --nope
  [ "$status" = 2 ]
  [ -z "$output" ]
  run --separate-stderr zse-info render a b
  [ "$status" = 2 ]
  [ -z "$output" ]
  run --separate-stderr zse-info render a --template b
  [ "$status" = 2 ]
  [[ "$stderr" == *"exclude each other"* ]]
  run --separate-stderr zse-info render --name x
  [ "$status" = 2 ]
  [[ "$stderr" == *"--name needs MODEL"* ]]
  run --separate-stderr zse-info render --now noon
  [ "$status" = 2 ]
  [[ "$stderr" == *"--now"* ]]
  run --separate-stderr zse-info render no-such-model </dev/null
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == "zse-info render: no-such-model"* ]]
  run --separate-stderr zse-info render --template no-such-file </dev/null
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"no-such-file: No such file"* ]]
}

@test "each object carries its own template" {
  run --separate-stderr zse-info render <<'JSON'
{"template": "{{ a + 1 }}", "a": 2}

{"template": "{{ a.b.c }}", "a": {}}
{"template": "{% if %}"}
{"a": 1}
[1]
{"template": "{{ x }}", "x": "é\u0000\"\n😀"}
JSON
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  [ "${#lines[@]}" = 6 ]
  [ "${lines[0]}" = '{"text":"3"}' ]
  [[ "${lines[1]}" == '{"error":"template: line 1: '*"'dict object' has no attribute 'b'"* ]]
  [[ "${lines[2]}" == '{"error":"template: line 1: expected an expression'* ]]
  [[ "${lines[3]}" == '{"error":'*template* ]]
  [[ "${lines[4]}" == '{"error":"expected a JSON object"}' ]]
  [ "${lines[5]}" = '{"text":"é\u0000\"\n😀"}' ]
}

@test "a line that is no JSON is an error in the output and does not end the program; the last line needs no newline" {
  run --separate-stderr zse-info render < <(printf '{"template": "x"\n{"template": "y"}')
  [ "$status" = 0 ]
  [[ "${lines[0]}" == '{"error":'* ]]
  [ "${lines[1]}" = '{"text":"y"}' ]
  run --separate-stderr zse-info render </dev/null
  [ "$status" = 0 ]
  [ -z "$output$stderr" ]
}

@test "--template FILE is used; errors name the file and the line" {
  printf '%s' "$one" >t.jinja
  [ "$(echo "$chat" | render --template t.jinja | text)" = "[user] héFalse" ]
  [ "$(echo '{"messages": [], "bos_token": "B", "eos_token": "E", "add_generation_prompt": true}' | render --template t.jinja | text)" = BETrue ]
  printf 'a\n{{ raise_exception("only " ~ n) }}' >r.jinja
  [ "$(echo '{"n": 5}' | render --template r.jinja)" = '{"error":"r.jinja: line 2: only 5"}' ]
  printf 'a\n\n{%% for %%}' >bad.jinja
  run --separate-stderr zse-info render --template bad.jinja </dev/null
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == "zse-info render: bad.jinja: line 3: "* ]]
}

@test "--now fixes the clock, in UTC whatever the zone" {
  t='{"template": "{{ strftime_now(\"%d %B %Y %H:%M\") }}"}'
  [ "$(echo "$t" | TZ=Asia/Tokyo render --now 1795262400 | text)" = "21 November 2026 12:00" ]
  [ "$(echo "$t" | render --now 0 | text)" = "01 January 1970 00:00" ]
}

@test "a folder: chat_template.jinja has priority over tokenizer_config.json; named templates, BOS and EOS are found" {
  mkdir f
  echo '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []}' >f/tokenizer.json
  echo '{"bos_token": "<B>", "eos_token": {"content": "<E>"}}' >f/tokenizer_config.json
  run --separate-stderr zse-info render f </dev/null
  [ "$status" = 1 ]
  [[ "$stderr" == *"f: has no chat template"* ]]
  python3 - "$one" <<'PY'
import json, sys
c = json.load(open("f/tokenizer_config.json"))
c["chat_template"] = [{"name": "default", "template": sys.argv[1]}, {"name": "tool_use", "template": "tools!"}]
json.dump(c, open("f/tokenizer_config.json", "w"))
PY
  [ "$(echo "$chat" | render f | text)" = "[user] hé<B><E>False" ]
  [ "$(echo "$chat" | render f --name tool_use | text)" = "tools!" ]
  run --separate-stderr zse-info render f --name nope </dev/null
  [ "$status" = 1 ]
  [[ "$stderr" == *"no chat template 'nope'"* ]]
  [ "$(echo '{"messages": [], "bos_token": "mine"}' | render f | text)" = "mine<E>False" ]
  printf 'file{{ bos_token }}' >f/chat_template.jinja
  mkdir f/additional_chat_templates
  printf 'rag!' >f/additional_chat_templates/rag.jinja
  [ "$(echo "$chat" | render f | text)" = "file<B>" ]
  [ "$(echo "$chat" | render f --name rag | text)" = "rag!" ]
}

@test "a GGUF file of only a vocabulary has a template and the texts of its tokens" {
  python3 - "$one" <<'PY'
import struct, sys
def s(x): b = x.encode(); return struct.pack("<Q", len(b)) + b
def kv(k, t, v): return s(k) + struct.pack("<I", t) + v
tokens = ["<unk>", "<B>", "<E>", "a"]
kvs = [kv("general.architecture", 8, s("llama")), kv("tokenizer.ggml.model", 8, s("llama")),
       kv("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 4) + b"".join(map(s, tokens))),
       kv("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 4) + struct.pack("<4f", 0, 0, 0, -1)),
       kv("tokenizer.ggml.token_type", 9, struct.pack("<IQ", 5, 4) + struct.pack("<4i", 2, 3, 3, 1)),
       kv("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 1)), kv("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 2)),
       kv("tokenizer.chat_template", 8, s(sys.argv[1])), kv("tokenizer.chat_template.tool_use", 8, s("tools!"))]
open("v.gguf", "wb").write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(kvs)) + b"".join(kvs))
PY
  [ "$(echo "$chat" | render v.gguf | text)" = "[user] hé<B><E>False" ]
  [ "$(echo "$chat" | render v.gguf --name tool_use | text)" = "tools!" ]
}

@test "a .zse file renders the same text as the folder it was made from" {
  model=$BATS_TEST_DIRNAME/../../models/tiny
  [ -f "$model/config.json" ] || skip "no models/tiny"
  zse-convert "$model" -o m.zse -q bf16 --quality fast >/dev/null 2>&1
  a=$(echo "$chat" | render "$model") b=$(echo "$chat" | render m.zse)
  [[ "$a" == '{"text":'* ]]
  [ "$a" = "$b" ]
}

@test "a full disk is an error" {
  [ -e /dev/full ] || skip "no /dev/full"
  run bash -c 'echo "{\"template\": \"x\"}" | zse-info render >/dev/full'
  [ "$status" = 1 ]
}

@test "the recorded conversations come out as expected through the command" {
  [ -f "$oracles/chat-templates/rendered.jsonl" ] || skip "no oracles"
  python3 - "$oracles/chat-templates" >in.jsonl 3>want.jsonl <<'PY'
import json, os, sys
want = os.fdopen(3, "w")
for line in open(sys.argv[1] + "/rendered.jsonl"):
    r = json.loads(line)
    print(json.dumps({"template": open(f"{sys.argv[1]}/{r['template']}").read(), "messages": r["messages"], "tools": r["tools"], **r["variables"]}))
    want.write(json.dumps(r.get("expected")) + "\n")
PY
  render --now 1795262400 <in.jsonl >out.jsonl
  run python3 - <<'PY'
import json
got, want = [json.loads(x) for x in open("out.jsonl")], [json.loads(x) for x in open("want.jsonl")]
assert len(got) == len(want) == 1000, (len(got), len(want))
bad = [i for i, (g, w) in enumerate(zip(got, want)) if g.get("text") != w or ("error" in g) != (w is None)]
assert not bad, bad
PY
  [ "$status" = 0 ] || { echo "$output"; return 1; }
}

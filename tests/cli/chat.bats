# chat.bats - zse-chat as a filter, as a batch, and on a terminal; with the tiny model.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  export XDG_CACHE_HOME=$BATS_FILE_TMPDIR/cache XDG_STATE_HOME=$BATS_FILE_TMPDIR/state
  zse-chat models/tiny -p hi -n 1 >/dev/null 2>&1
  MODEL=$(echo "$XDG_CACHE_HOME"/zse/*.zse)
  export MODEL
}
setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }
ask() { zse-chat "$MODEL" --temp 0 "$@"; }
field() { python3 -S -c 'import json,sys; v=json.load(sys.stdin)
for k in sys.argv[1].split("."): v=v[k]
print(v if isinstance(v,str) else json.dumps(v))' "$1"; }

@test "a folder is converted once, with a note; the answer alone is on standard output" {
  export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache
  run --separate-stderr zse-chat models/tiny -p "What is 2+2?" --temp 0
  [ "$status" = 0 ]
  [ "$output" = "2 + 2 = 4" ]
  [[ "$stderr" == *converting\ models/tiny\ once* && "$stderr" == *kept\ as*zse-convert\ models/tiny* ]]
  run --separate-stderr zse-chat models/tiny -p "What is the capital of France?" --temp 0
  [ "$output" = "The capital of France is Paris." ]
  [[ "$stderr" != *converting* ]]
  [ -z "$stderr" ]
  [ "$(find "$XDG_CACHE_HOME" -type f -name '*.zse' | wc -l)" = 1 ]
  printf 'x' >"$(echo "$XDG_CACHE_HOME"/zse/*.zse)"          # a damaged file is made again
  run --separate-stderr zse-chat models/tiny -p "What is 2+2?" --temp 0
  [ "$output" = "2 + 2 = 4" ]
  run --separate-stderr zse-chat models/tiny -q bf16 -p "What is 2+2?" --temp 0
  [ "$output" = "2 + 2 = 4" ]
  [ "$(find "$XDG_CACHE_HOME" -type f -name '*.zse' | wc -l)" = 2 ]
  unset XDG_CACHE_HOME
  HOME=$BATS_TEST_TMPDIR/home run --separate-stderr zse-chat models/tiny -p "What is 2+2?" --temp 0
  [ "$output" = "2 + 2 = 4" ]
  [ -d "$BATS_TEST_TMPDIR/home/.cache/zse" ]
}

@test "if two programs need the same conversion, the second one waits and uses it" {
  export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache
  zse-chat models/tiny -q bf16 -p "What is 2+2?" --temp 0 2>/dev/null
  made=$(echo "$XDG_CACHE_HOME"/zse/*.zse)
  mv "$made" "$BATS_TEST_TMPDIR/made"
  mkfifo "$BATS_TEST_TMPDIR/go"
  lock=$XDG_CACHE_HOME/zse/$(python3 -c 'import os
h = 0xcbf29ce484222325
for b in os.path.realpath("models/tiny").encode(): h = (h ^ b) * 0x100000001b3 % 2**64          # FNV-1a
print(f"{h:016x}-bf16.lock")')
  flock "$lock" -c "read -r _ <'$BATS_TEST_TMPDIR/go'" 3>&- &
  taken() { [ -e "$lock" ] && ! flock -n "$lock" true; }
  await taken
  zse-chat models/tiny -q bf16 -p "What is 2+2?" --temp 0 >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  chat=$!
  await grep -q 'another process is converting models/tiny; waiting for it' "$BATS_TEST_TMPDIR/err"
  mv "$BATS_TEST_TMPDIR/made" "$made"
  echo >"$BATS_TEST_TMPDIR/go"
  wait $chat
  [ "$(cat "$BATS_TEST_TMPDIR/out")" = "2 + 2 = 4" ]
  run ! grep -q 'once, to' "$BATS_TEST_TMPDIR/err"
  [ ! -e "$lock" ]
}

@test "conversions that are outdated or whose source is gone are removed; top_k -1 in generation_config.json means off" {
  export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache
  mkdir "$BATS_TEST_TMPDIR/m"
  cp models/tiny/*.* "$BATS_TEST_TMPDIR/m"
  echo '{"top_k": -1, "temperature": 0}' >"$BATS_TEST_TMPDIR/m/generation_config.json"
  count() { find "$XDG_CACHE_HOME" -name '*.zse' | wc -l; }
  [ "$(zse-chat "$BATS_TEST_TMPDIR/m" -p "What is 2+2?" 2>/dev/null)" = "2 + 2 = 4" ]
  zse-chat "$BATS_TEST_TMPDIR/m" -q bf16 -p "What is 2+2?" >/dev/null 2>&1
  [ "$(count)" = 2 ]
  touch -d 2001-01-01 "$BATS_TEST_TMPDIR/m/model.safetensors"
  zse-chat "$BATS_TEST_TMPDIR/m" -q bf16 -p "What is 2+2?" >/dev/null 2>&1
  [ "$(count)" = 2 ]
  rm -r "$BATS_TEST_TMPDIR/m"
  zse-chat models/tiny -p "What is 2+2?" >/dev/null 2>&1
  [ "$(count)" = 1 ]
  [ "$(cat "$XDG_CACHE_HOME"/zse/*.source)" = "$PWD/models/tiny" ]
  # files of conversions that were interrupted long ago are removed; recent ones can still be
  # resumed
  for name in old new; do
    for end in partial journal state-0; do : >"$XDG_CACHE_HOME/zse/.$name.zse.zse-$end"; done
  done
  touch -d '9 days ago' "$XDG_CACHE_HOME/zse/.old.zse.zse-partial"
  zse-chat models/tiny -q int4 -p "What is 2+2?" -n 1 >/dev/null 2>&1
  [ "$(find "$XDG_CACHE_HOME" -name '.old*' | wc -l)" = 0 ]
  [ "$(find "$XDG_CACHE_HOME" -name '.new*' | wc -l)" = 3 ]
}

@test "-p, -p - and standard input give the same answer" {
  [ "$(ask -p "What is 2+2?")" = "2 + 2 = 4" ]
  [ "$(echo "What is 2+2?" | ask -p - 2>&1)" = "2 + 2 = 4" ]
  [ "$(printf 'What is 2+2?' | ask 2>&1)" = "2 + 2 = 4" ]
  [ "$(ask --exact -p "What is 2+2?" </dev/null)" = "2 + 2 = 4" ]
}

@test "piped text follows the prompt of -p after a blank line" {
  tokens() { zse-chat "$MODEL" -n 1 --json "$@" | field usage.prompt_tokens; }
  local both
  both=$(tokens -p $'Summarize:\n\none\ntwo' </dev/null)
  [ "$(printf 'one\ntwo\n' | tokens -p Summarize:)" = "$both" ]
  printf 'one\ntwo\n' >"$BATS_TEST_TMPDIR/text"
  [ "$(tokens -p Summarize: <"$BATS_TEST_TMPDIR/text")" = "$both" ]
  [ "$(python3 -S -c 'import socket, subprocess, sys
a, b = socket.socketpair(); a.sendall(b"one\ntwo\n"); a.close()
subprocess.run(sys.argv[1:], stdin=b)' zse-chat "$MODEL" -n 1 --json -p Summarize: | field usage.prompt_tokens)" = "$both" ]
  # inputs with no text: an empty pipe, blanks, /dev/null, no standard input at all
  both=$(tokens -p Summarize: </dev/null)
  [ "$(printf '' | tokens -p Summarize:)" = "$both" ]
  [ "$(printf ' \n\n' | tokens -p Summarize:)" = "$both" ]
  [ "$(tokens -p Summarize: <&-)" = "$both" ]
  # with an empty -p the piped text is the whole prompt
  [ "$(echo "What is 2+2?" | ask -p '')" = "2 + 2 = 4" ]
  # while nothing comes from a pipe, zse-chat says that it waits for standard input
  mkfifo "$BATS_TEST_TMPDIR/silent"
  ask -p "What is 2+2?" <"$BATS_TEST_TMPDIR/silent" >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  exec 7>"$BATS_TEST_TMPDIR/silent"
  await grep -q '^zse-chat: waiting for standard input, .*</dev/null' "$BATS_TEST_TMPDIR/err"
  exec 7>&-
  wait $!
  [ "$(cat "$BATS_TEST_TMPDIR/out")" = "2 + 2 = 4" ]
}

@test "an empty prompt is refused" {
  local p
  for p in "" " " $' \t\n'; do
    run -2 --separate-stderr ask -p "$p" </dev/null
    [[ -z $output && $stderr == "zse-chat: the prompt is empty"* ]]
    run -2 --separate-stderr ask <<<"$p"
    [[ -z $output && $stderr == "zse-chat: the prompt is empty"* ]]
  done
  # refused before a model is opened or made
  run -2 --separate-stderr zse-chat /no/such.zse </dev/null
  [[ $stderr == "zse-chat: the prompt is empty"* ]]
  run -2 --separate-stderr ask --raw -p ''  </dev/null
  run -0 --separate-stderr ask --raw -p $'\n' -n 1 </dev/null
  printf 'What is 2+2?\n \n' >"$BATS_TEST_TMPDIR/prompts"
  run -1 --separate-stderr ask --batch "$BATS_TEST_TMPDIR/prompts"
  [ "${lines[0]}" = "2 + 2 = 4" ] && [ "${lines[1]}" = "error: the prompt is empty: there is nothing to answer" ]
}

@test "--json says why the answer ended, with counts and times; --ids prints its tokens" {
  local j
  j=$(ask -p "What is 2+2?" --json)
  [ "$(field text <<<"$j")" = "2 + 2 = 4" ]
  [ "$(field finish_reason <<<"$j")" = stop ]
  [ "$(wc -l <<<"$j")" = 1 ]
  [ "$(field usage <<<"$j")" = '{"prompt_tokens": 15, "completion_tokens": 8, "total_tokens": 23, "cached_tokens": 0}' ]
  [[ "$(field timings <<<"$j")" == *first_token_s*prefill_tokens_per_s*decode_tokens_per_s* ]]
  j=$(ask -p "What is 2+2?" --json --ids -n 3)
  [ "$(field finish_reason <<<"$j")" = length ]
  [ "$(field usage.completion_tokens <<<"$j")" = 3 ]
  [ "$(field ids <<<"$j")" = "$(ask -p "What is 2+2?" --ids -n 3)" ]
}

@test "--spec mtp: the same tokens as without it; a layer that knows the next token is right; no such layer is refused" {
  local m t s temperatures='0 1' models=("qwen 0" "qwen 0.1" "deepseek state" "deepseek 0" "deepseek 0.1")
  # with a sanitizer run the code once, not with all models and temperatures
  [ -z "${ZSE_SANITIZED-}" ] || { temperatures=1; models=("${models[@]:0:3}"); }
  for m in "${models[@]}"; do
    set -- $m
    python3 -S tests/lib/predictor.py "$1" "$2" "$BATS_TEST_TMPDIR/$1$2"
    zse-convert "$BATS_TEST_TMPDIR/$1$2" -o "$BATS_TEST_TMPDIR/$1$2.zse" -q f32 >/dev/null 2>"$BATS_TEST_TMPDIR/notes"
    run cat "$BATS_TEST_TMPDIR/notes"
    [ "$output" = "" ] || { echo "$output"; return 1; }
    for t in $temperatures; do
      for s in off mtp:3 mtp auto; do
        zse-chat "$BATS_TEST_TMPDIR/$1$2.zse" --spec $s --temp $t --seed 3 -p "What is the capital of France?" -n 120 \
          --ignore-eos --ids --json >"$BATS_TEST_TMPDIR/$s"
        diff <(jq -c .ids "$BATS_TEST_TMPDIR/off") <(jq -c .ids "$BATS_TEST_TMPDIR/$s")
      done
      jq -e '.speculation | .drafted_tokens >= .accepted_tokens and .accepted_tokens > 10' "$BATS_TEST_TMPDIR/mtp:3"
      [ "$2" = 0.1 ] || jq -e '.speculation | .accepted_tokens > 80 and .drafted_tokens <= .accepted_tokens + 3' \
        "$BATS_TEST_TMPDIR/mtp:3"
    done
  done
  zse-convert "$BATS_TEST_TMPDIR/qwen0.1" -o "$BATS_TEST_TMPDIR/m.zse" --quality fast >/dev/null
  zse-info "$BATS_TEST_TMPDIR/m.zse" --verify >/dev/null
  echo '{"type": "array", "items": {"type": "integer"}, "maxItems": 30}' >"$BATS_TEST_TMPDIR/schema"
  for s in off mtp:2; do
    zse-chat "$BATS_TEST_TMPDIR/m.zse" --spec $s --json-schema "$BATS_TEST_TMPDIR/schema" --seed 3 -p hi -n 60 --ids \
      --json >"$BATS_TEST_TMPDIR/$s"
  done
  diff <(jq -c .ids "$BATS_TEST_TMPDIR/off") <(jq -c .ids "$BATS_TEST_TMPDIR/mtp:2")
  jq -e '.speculation.drafted_tokens > 0' "$BATS_TEST_TMPDIR/mtp:2"
  [ "$(zse-info "$BATS_TEST_TMPDIR/m.zse" --json | jq .mtp_bytes)" -gt 30000 ]
  zse-info "$BATS_TEST_TMPDIR/m.zse" | grep -q '^predictor .* predicts a further token'
  run ! grep -q predictor <(zse-info "$MODEL")
  zse-chat "$BATS_TEST_TMPDIR/m.zse" --exact --plan --json --spec off >"$BATS_TEST_TMPDIR/plan"
  for s in mtp auto; do
    zse-chat "$BATS_TEST_TMPDIR/m.zse" --exact --plan --json --spec $s | jq -e --slurpfile off "$BATS_TEST_TMPDIR/plan" \
      '.draft_bytes > 8e6 and .needed_bytes == $off[0].needed_bytes + .draft_bytes and ($off[0] | has("draft_bytes") | not)'
  done
  # --spec auto does without the layer if it cannot be used
  for s in "--max-memory 1GB" "--window 64"; do
    # shellcheck disable=SC2086
    zse-chat "$BATS_TEST_TMPDIR/m.zse" $s --plan --json | jq -e 'has("draft_bytes") | not'
    # shellcheck disable=SC2086
    zse-chat "$BATS_TEST_TMPDIR/m.zse" $s -p hi -n 3 --ignore-eos >/dev/null
  done
  run -1 zse-chat "$MODEL" --plan --spec mtp
  # -m limits the size of the layers that make answers; the predictor's layer gets the type for
  # which there is room left
  zse-convert "$BATS_TEST_TMPDIR/qwen0.1" -o "$BATS_TEST_TMPDIR/m.zse" -q mixed -m 130kB >/dev/null
  zse-info "$BATS_TEST_TMPDIR/m.zse" --json | jq -e '[.tensors[] | select(.name | test("^mtp.*_proj")) | .type] | unique == ["m2"]'
  zse-convert "$BATS_TEST_TMPDIR/qwen0.1" -o "$BATS_TEST_TMPDIR/m.zse" -q int8 -m 300kB --quality fast >/dev/null
  zse-info "$BATS_TEST_TMPDIR/m.zse" --json | jq -e '[.tensors[] | select(.name | test("^mtp.*_proj")) | .type] | unique == ["nl4"]'
  # with --no-mtp the predictor's layer is left out, and no note says so
  run zse-convert "$BATS_TEST_TMPDIR/qwen0.1" -o "$BATS_TEST_TMPDIR/no.zse" -q f32 --no-mtp
  [ "$status" = 0 ]
  [[ $output != *skipped* ]]
  zse-info "$BATS_TEST_TMPDIR/no.zse" --json | jq -e 'has("mtp_bytes") | not'
  run -1 zse-chat "$BATS_TEST_TMPDIR/no.zse" --spec mtp -p hi
  [ "$(zse-chat "$BATS_TEST_TMPDIR/no.zse" -p hi -n 20 --ignore-eos --ids --seed 3)" = \
    "$(zse-chat "$BATS_TEST_TMPDIR/qwen0.1.zse" -p hi -n 20 --ignore-eos --ids --seed 3)" ]
  # a layer of another form is left out
  python3 -S - "$BATS_TEST_TMPDIR/qwen0" <<'P'
import sys
path = sys.argv[1] + "/model.safetensors"
data = open(path, "rb").read().replace(b"mtp.layers.0.mlp.up_proj", b"mtp.layers.0.mlp.xx_proj")
open(path, "wb").write(data)
P
  run zse-convert "$BATS_TEST_TMPDIR/qwen0" -o "$BATS_TEST_TMPDIR/left.zse" -q f32
  [ "$status" = 0 ]
  [[ $output == *"15 tensors for predicting further tokens are skipped: tensor 'mtp.layers.0.mlp.up_proj.weight' is missing"* ]]
  sed -i 's/{/{"mtp_use_dedicated_embeddings": true, /' "$BATS_TEST_TMPDIR/qwen0.1/config.json"
  run zse-convert "$BATS_TEST_TMPDIR/qwen0.1" -o "$BATS_TEST_TMPDIR/own.zse" -q f32
  [ "$status" = 0 ]
  [[ $output == *"15 tensors for predicting further tokens are skipped: they have an embedding of their own"* ]]
  run -1 zse-chat "$BATS_TEST_TMPDIR/left.zse" --spec mtp -p hi
  run -1 zse-chat "$MODEL" --spec mtp -p hi
  [[ "$output" == *"--spec mtp: the model has no layer that predicts further tokens"* ]]
  run -2 zse-chat "$MODEL" --spec mtp:4 -p hi
  run -2 zse-chat "$MODEL" --spec mtp --max-memory 1GB -p hi
  [[ "$output" == *"--spec mtp and --max-memory exclude each other"* ]]
}

@test "--spec mtp: the layer of a GGUF is that of a folder, to the bit" {
  local t=$BATS_TEST_TMPDIR
  python3 -S tests/lib/predictor.py glm 0.1 "$t/glm"
  run zse-convert "$t/glm" -q f32 -o "$t/folder.zse"
  [[ "$status" = 0 && $output != *skipped* ]]
  run zse-convert "$t/glm/model.gguf" -q f32 -o "$t/gguf.zse"
  [[ "$status" = 0 && $output != *skipped* ]]
  for f in folder gguf; do zse-info "$t/$f.zse" --json >"$t/$f.json"; done
  python3 -S - "$t" <<'P'
import json, sys
tensors = []
for name in "folder", "gguf":
    data = open("%s/%s.zse" % (sys.argv[1], name), "rb").read()
    tensors.append({x["name"]: data[x["offset"]:x["offset"] + x["size_bytes"]]
                    for x in json.load(open("%s/%s.json" % (sys.argv[1], name)))["tensors"]})
assert tensors[0] == tensors[1]
assert sum(n.startswith("mtp.") for n in tensors[0]) == 30
P
  for s in off mtp:3; do
    zse-chat "$t/folder.zse" --spec $s --temp 1 --seed 3 -p "What is 2+2?" -n 80 --ignore-eos --ids --json >"$t/$s"
  done
  diff <(jq -c .ids "$t/off") <(jq -c .ids "$t/mtp:3")
  jq -e '.speculation.accepted_tokens > 5' "$t/mtp:3"
}

@test "--spec draft and self: the same tokens; the model's own guesses are right; a model that does not fit is refused" {
  local prompt="What is the capital of France? What is the capital of Italy?" t s temperatures='0 1'
  [ -z "${ZSE_SANITIZED-}" ] || temperatures=1
  for t in $temperatures; do
    for s in off "draft:5:$MODEL" self:3:2; do
      zse-chat "$MODEL" --spec "$s" --temp $t --seed 3 -p "$prompt" -n 200 --ignore-eos --ids --json >"$BATS_TEST_TMPDIR/${s%%:*}"
    done
    diff <(jq -c .ids "$BATS_TEST_TMPDIR/off") <(jq -c .ids "$BATS_TEST_TMPDIR/draft")
    diff <(jq -c .ids "$BATS_TEST_TMPDIR/off") <(jq -c .ids "$BATS_TEST_TMPDIR/self")
    jq -e '.speculation | .drafted_tokens > 150 and .drafted_tokens == .accepted_tokens' "$BATS_TEST_TMPDIR/draft"
    jq -e '.speculation | .accepted_tokens > 0 and .drafted_tokens > .accepted_tokens' "$BATS_TEST_TMPDIR/self"
  done
  run ! zse-chat "$MODEL" --spec self:99 -p hi
  [[ "$output" == *"--spec self: drafts of 99 layers, expected 1 to "*": the model has "* ]]
  run ! zse-chat "$MODEL" --spec draft:/none.zse -p hi
  [[ "$output" == */none.zse* ]]
  zse-convert models/tiny -q f32 -o "$BATS_TEST_TMPDIR/f32.zse" 2>/dev/null
  run --separate-stderr zse-chat "$MODEL" --spec "draft:2:$BATS_TEST_TMPDIR/f32.zse" --temp 0 -p "What is 2+2?"
  [ "$output" = "2 + 2 = 4" ]
  [[ "$stderr" == *"its weights are larger than those of"* ]]
  mkdir "$BATS_TEST_TMPDIR/other"
  cp models/tiny/* "$BATS_TEST_TMPDIR/other"
  python3 -S - "$BATS_TEST_TMPDIR/other/tokenizer.json" <<'E'
import json, sys
t = json.load(open(sys.argv[1]))
a, b = sorted(t['model']['vocab'].items(), key=lambda x: x[1])[-2:]
t['model']['vocab'][a[0]], t['model']['vocab'][b[0]] = b[1], a[1]
json.dump(t, open(sys.argv[1], 'w'))
E
  zse-convert "$BATS_TEST_TMPDIR/other" -o "$BATS_TEST_TMPDIR/other.zse" -q f32 2>/dev/null
  run ! zse-chat "$MODEL" --spec "draft:$BATS_TEST_TMPDIR/other.zse" -p hi
  [[ "$output" == *"the draft model has another tokenizer: its token "*", expected '"* ]]
}

@test "--spec medusa: the same tokens; heads of a file and of a folder; heads that do not fit are refused" {
  local heads=models/tiny-medusa prompt="Tell me a joke." t s
  for t in 0 1; do
    for s in off "medusa:$heads" "medusa:1:$heads/medusa_lm_head.safetensors"; do
      zse-chat "$MODEL" --spec "$s" --temp $t --seed 3 -p "$prompt" -n 100 --ignore-eos --ids --json >"$BATS_TEST_TMPDIR/${s:0:8}"
    done
    diff <(jq -c .ids "$BATS_TEST_TMPDIR/off") <(jq -c .ids "$BATS_TEST_TMPDIR/medusa:m")
    diff <(jq -c .ids "$BATS_TEST_TMPDIR/off") <(jq -c .ids "$BATS_TEST_TMPDIR/medusa:1")
    jq -e '.speculation.accepted_tokens > 10' "$BATS_TEST_TMPDIR/medusa:1"
  done
  zse-chat "$MODEL" --spec "medusa:2:$heads" --regex '[A-Z][a-z ]{20,40}' --seed 3 -p "$prompt" --ids >"$BATS_TEST_TMPDIR/g"
  diff <(zse-chat "$MODEL" --spec off --regex '[A-Z][a-z ]{20,40}' --seed 3 -p "$prompt" --ids) "$BATS_TEST_TMPDIR/g"
  # --spec-exact distribution accepts drafted tokens by their probability: with a temperature other
  # tokens than without drafts, without a temperature the same
  zse-chat "$MODEL" --spec "medusa:2:$heads" --spec-exact distribution --temp 0 -p "$prompt" -n 100 --ignore-eos --ids >"$BATS_TEST_TMPDIR/d0"
  diff <(zse-chat "$MODEL" --spec off --temp 0 -p "$prompt" -n 100 --ignore-eos --ids) "$BATS_TEST_TMPDIR/d0"
  zse-chat "$MODEL" --spec "medusa:2:$heads" --spec-exact distribution --temp 1 --seed 3 -p "$prompt" -n 100 --ignore-eos --ids --json |
    jq -e --slurpfile off "$BATS_TEST_TMPDIR/off" '(.ids | length == 100) and .ids != $off[0].ids and .speculation.accepted_tokens > 10'
  run -2 zse-chat "$MODEL" --spec-exact both -p hi
  [[ "$output" == *"--spec-exact: 'both', expected tokens or distribution"* ]]
  run -2 zse-chat "$MODEL" --spec off --spec-exact tokens -p hi
  run -1 zse-chat "$MODEL" --spec medusa:models/tiny -p hi
  [[ "$output" == *"--spec medusa: models/tiny/medusa_lm_head.safetensors: "* ]]
  run -1 zse-chat "$MODEL" --spec medusa:models/tiny/model.safetensors -p hi
  [[ "$output" == *"expected names of Medusa heads like 0.0.linear.weight"* ]]
  mkdir "$BATS_TEST_TMPDIR/other"
  cp $heads/medusa_lm_head.safetensors "$BATS_TEST_TMPDIR/other"
  sed 's/128/256/' $heads/config.json >"$BATS_TEST_TMPDIR/other/config.json"
  run -1 zse-chat "$MODEL" --spec "medusa:$BATS_TEST_TMPDIR/other" -p hi
  [[ "$output" == *"heads of a model with hidden_size 256 and 1024 tokens, this one has 128 and 1024"* ]]
}

@test "zse-convert --heads: the model's file has the heads, which --spec medusa and auto use and --plan counts" {
  local t=$BATS_TEST_TMPDIR m=$BATS_TEST_TMPDIR/h.zse s plain
  zse-convert models/tiny -q f16 -o "$m" --heads models/tiny-medusa --json | jq -e '.heads_bytes == 305152'
  zse-info --verify "$m"
  zse-info "$m" --json | jq -e '.medusa == {heads: 2, blocks: 1, bytes: 305152}'
  [[ "$(zse-info "$m")" == *"Medusa heads    2, 305 kB (298 KiB) of int8: --spec medusa"* ]]
  for s in off medusa:2 auto file; do
    zse-chat "$m" --spec "${s/file/medusa:2:models/tiny-medusa}" --seed 3 -p "Tell me a joke." -n 60 --ignore-eos --ids --json >"$t/$s"
    diff <(jq -c .ids "$t/off") <(jq -c .ids "$t/$s")
  done
  jq -e --slurpfile file "$t/file" '.speculation.accepted_tokens > 10 and .speculation == $file[0].speculation' "$t/medusa:2"
  plain=$(zse-chat "$m" --plan --spec off --json | jq .needed_bytes)
  for s in auto medusa medusa:models/tiny-medusa; do
    zse-chat "$m" --plan --spec "$s" --json | jq -e --argjson plain "$plain" '.draft_bytes > 305152 and .needed_bytes == $plain + .draft_bytes'
  done
  run -1 zse-chat "$MODEL" --spec medusa -p hi
  [[ "$output" == *"--spec medusa: the model's file has no Medusa heads (zse-convert --heads); medusa:FILE names others"* ]]
  sed 's/128/256/' models/tiny-medusa/config.json >"$t/config.json"
  cp models/tiny-medusa/*.safetensors "$t"
  run -1 zse-convert models/tiny -o "$t/no.zse" --heads "$t"
  [[ "$output" == *"heads of a model with hidden_size 256 and 1024 tokens, this one has 128 and 1024"* ]]
  [ ! -e "$t/no.zse" ]
  run -2 zse-convert models/tiny --plan --heads models/tiny-medusa
}

@test "--spec: the same tokens with guesses as without, greedy and drawn; --json counts the guesses" {
  local prompt="What is the capital of France? What is the capital of Italy? What is the capital of France?" t s temperatures='0 1'
  [ -z "${ZSE_SANITIZED-}" ] || temperatures=1
  for t in $temperatures; do
    for s in off auto ngram ngram:15; do
      zse-chat "$MODEL" --spec $s --temp $t --seed 3 -p "$prompt" -n 300 --ignore-eos --ids --json \
        >"$BATS_TEST_TMPDIR/$s"
      jq -e '.ids | length == 300' "$BATS_TEST_TMPDIR/$s"
      diff <(jq -c .ids "$BATS_TEST_TMPDIR/off") <(jq -c .ids "$BATS_TEST_TMPDIR/$s")
    done
  done
  # `ngram` decides by measured time how much to draft; with ngram:15 the counts depend only on the
  # model and the prompt
  jq -e '.speculation | .drafted_tokens >= .accepted_tokens' "$BATS_TEST_TMPDIR/ngram"
  jq -e '.speculation | .accepted_tokens > 0 and .drafted_tokens >= .accepted_tokens' "$BATS_TEST_TMPDIR/ngram:15"
  zse-chat "$MODEL" --spec ngram:1 --temp 1 --seed 3 -p "$prompt" -n 300 --ignore-eos --json >"$BATS_TEST_TMPDIR/one"
  jq -e --slurpfile most "$BATS_TEST_TMPDIR/ngram:15" \
    '.speculation.drafted_tokens as $n | $n > 0 and $n < $most[0].speculation.drafted_tokens' "$BATS_TEST_TMPDIR/one"
  jq -e 'has("speculation") | not' "$BATS_TEST_TMPDIR/off"
  zse-chat "$MODEL" -p hi -n 2 --json | jq -e 'has("speculation")'            # the default is auto
  for s in off ngram:15; do
    zse-chat "$MODEL" --spec $s --temp 1 --seed 3 -p "$prompt" --regex '[A-Za-z ?]{150,200}' --ids --json >"$BATS_TEST_TMPDIR/$s"
  done
  diff <(jq -c .ids "$BATS_TEST_TMPDIR/off") <(jq -c .ids "$BATS_TEST_TMPDIR/ngram:15")
  jq -e '.speculation.accepted_tokens > 0' "$BATS_TEST_TMPDIR/ngram:15"
  zse-chat "$MODEL" --spec ngram:1 --verbose -p "$prompt" -n 9 --ignore-eos 2>&1 >/dev/null | grep -E 'guesses: [0-9]+ tokens?, [0-9]+ of them right; 9 tokens'
  run ! zse-chat "$MODEL" --spec guess -p hi
  [[ "$output" == *"--spec: 'guess', expected auto, ngram[:N], mtp[:N], draft:[N:]MODEL, self:[N:]LAYERS, medusa[:N], medusa:[N:]FILE, eagle[:N], eagle:[N:]DIR or off"* ]]
  for s in ngram: ngram:0 ngram:16 ngram:x mtp: mtp:0 auto:3 draft: "draft:16:$MODEL" self: self:0 self:16:2 self:x \
    medusa: medusa:0 medusa:16 medusa:16:x; do
    run -2 zse-chat "$MODEL" --spec $s -p hi
    [[ "$output" == *--spec* ]]
  done
}

@test "the same seed gives the same text, alone, in a batch and with any number of threads" {
  local prompts=("What is 2+2?" "Tell me a story" "Who are you?" "hello" "What is the capital of France?") i one
  printf '%s\n' "${prompts[@]}" >"$BATS_TEST_TMPDIR/prompts"
  mapfile -t many < <(zse-chat "$MODEL" --batch "$BATS_TEST_TMPDIR/prompts" --temp 1.5 --top-k 0 --top-p 1 --min-p 0 --seed 7 -n 40 --ids --parallel 3)
  [ ${#many[@]} = 5 ]
  for i in 0 1 2 3 4; do
    one=$(zse-chat "$MODEL" -p "${prompts[$i]}" --temp 1.5 --top-k 0 --top-p 1 --min-p 0 --seed 7 -n 40 --ids --threads $((1 + i % 2)))
    [ "$one" = "${many[$i]}" ] || { echo "$one / ${many[$i]}"; return 1; }
  done
  [ "$(zse-chat "$MODEL" -p hello --temp 5 --top-k 0 --top-p 1 --min-p 0 --seed 7 --ids)" != "$(zse-chat "$MODEL" -p hello --temp 5 --top-k 0 --top-p 1 --min-p 0 --seed 8 --ids)" ]
  [ "$(ask -p hello -n 30 --ids)" = "$(zse-chat "$MODEL" -p hello -n 30 --ids --temp 1 --top-k 1)" ]
}

@test "--attention pages: threads that share the choice and the chosen pages change no token" {
  of() { head -c 3400 HACKING.md | zse-chat "$MODEL" --raw --temp 1 --seed 1 --ignore-eos --ids -n 40 "$@"; }
  for kv in f16 i4; do
    alone=$(of --kv $kv --attention pages:36 --threads 1)
    [ "$(of --kv $kv --threads 1)" != "$alone" ]
    for n in 2 5; do
      [ "$(of --kv $kv --attention pages:36 --threads $n)" = "$alone" ] || { echo "$kv, $n threads"; return 1; }
    done
  done
}

@test "--batch prints one line per prompt, in order, also as JSON" {
  printf 'What is 2+2?\nWhat is the capital of France?' >"$BATS_TEST_TMPDIR/prompts"
  [ "$(ask --batch "$BATS_TEST_TMPDIR/prompts")" = $'2 + 2 = 4\nThe capital of France is Paris.' ]
  [ "$(ask --batch - --json <"$BATS_TEST_TMPDIR/prompts" | sed -n 2p | field text)" = "The capital of France is Paris." ]
  run --separate-stderr ask --batch /dev/null
  [ "$status" = 0 ]
  [ -z "$output" ]
}

@test "--batch: a refused prompt has a line of its own, the others their answers" {
  { echo "What is 2+2?"; head -c 20000 /dev/zero | tr '\0' x; printf '\n\xff\nWhat is the capital of France?\n'; } >"$BATS_TEST_TMPDIR/prompts"
  run --separate-stderr ask --batch "$BATS_TEST_TMPDIR/prompts"
  [ "$status" = 1 ]
  [ "${#lines[@]}" = 4 ]
  [ "${lines[0]}" = "2 + 2 = 4" ]
  [[ "${lines[1]}" == "error: the prompt has"*"no room is left"* ]]
  [[ "${lines[2]}" == "error: "*"UTF-8"* ]]
  [ "${lines[3]}" = "The capital of France is Paris." ]
  [[ "$stderr" == *"line 2: "*"no room is left"*"line 3: "*"2 of 4 prompts have no answer"* ]]
  run --separate-stderr ask --batch "$BATS_TEST_TMPDIR/prompts" --json
  [ "$status" = 1 ]
  [[ "$(field error <<<"${lines[1]}")" == *"no room is left"* ]]
  [ "$(field text <<<"${lines[3]}")" = "The capital of France is Paris." ]
}

@test "a stop string ends the answer and is not shown" {
  [ "$(ask -p "What is the capital of France?" --stop "s Par" --stop never)" = "The capital of France i" ]
  [ "$(ask -p "What is the capital of France?" --stop "s Par" --json | field finish_reason)" = stop ]
}

@test "sampling options reach the sampler" {
  local first
  first=$(ask -p "What is 2+2?" --ids -n 1 | tr -d '[]\n')
  [ "$(ask -p "What is 2+2?" --ids -n 1 --logit-bias "$first=-inf" | tr -d '[]\n')" != "$first" ]
  [ "$(ask -p "What is 2+2?" --ids -n 3 --logit-bias 99=1000)" = "[99, 99, 99]" ]
  [ "$(ask -p "What is 2+2?" --ids -n 40 --ignore-eos | tr ',' '\n' | wc -l)" = 40 ]
  [ "$(zse-chat "$MODEL" -p "What is 2+2?" --temp 9 --top-p 0)" = "2 + 2 = 4" ]
  [ "$(zse-chat "$MODEL" -p "What is 2+2?" --temp 9 --top-k 0 --top-p 1 --min-p 1)" = "2 + 2 = 4" ]
  [ "$(ask -p "What is 2+2?" --repeat-penalty 100)" != "2 + 2 = 4" ]
  [ "$(ask -p "What is 2+2?" --presence-penalty 2 --frequency-penalty 2 --logit-bias 99=40 --ignore-eos --ids -n 30)" != "$(ask -p "What is 2+2?" --logit-bias 99=40 --ignore-eos --ids -n 30)" ]
}

@test "--raw, --system and --template change the prompt" {
  tokens() { ask -n 1 --json "$@" | field usage.prompt_tokens; }
  [ "$(tokens -p hi --raw)" -lt "$(tokens -p hi)" ]
  [ "$(tokens -p hi -s "Be brief.")" -gt "$(tokens -p hi)" ]
  printf '{%% for m in messages %%}{{ m.content }}{%% endfor %%}' >"$BATS_TEST_TMPDIR/plain.jinja"
  [ "$(tokens -p hi --template "$BATS_TEST_TMPDIR/plain.jinja")" = "$(tokens -p hi --raw)" ]
  printf 'a\n{%% if %%}' >"$BATS_TEST_TMPDIR/bad.jinja"
  run --separate-stderr ask -p hi --template "$BATS_TEST_TMPDIR/bad.jinja"
  [ "$status" = 1 ]
  [[ "$stderr" == *bad.jinja*"line 2"* ]]
}

@test "wrong usage ends with 2 and names the option" {
  run -2 --separate-stderr zse-chat "$MODEL" -p hi 'What is 2+2?'
  [[ "$stderr" == *"'What is 2+2?'"*" -p "* ]]
  local case
  for case in "--temp x" "--temp -1" "--top-p 1.5" "--top-k -2" "--seed -1" "--logit-bias 5" "--logit-bias x=1" "--kv f64" "--threads 0" "--device tpu" "--max-tokens -1" \
              "--presence-penalty 3" "--ctx 1" "-q int3" "--parallel 0"; do
    # shellcheck disable=SC2086
    run --separate-stderr ask -p hi $case
    [ "$status" = 2 ] && [ -z "$output" ] && [[ "$stderr" == *${case%% *}* ]] || { echo "$case: $status $stderr"; return 1; }
  done
  run --separate-stderr ask -p hi --batch /dev/null
  [ "$status" = 2 ]
  run --separate-stderr ask -p hi --exact --kv f16
  [ "$status" = 2 ]
  run --separate-stderr ask -p hi --raw --system x
  [ "$status" = 2 ]
  run --separate-stderr ask -p hi extra argument
  [ "$status" = 2 ]
  ZSE_DEVICE=tpu run --separate-stderr ask -p hi
  [ "$status" = 2 ]
  [[ "$stderr" == *ZSE_DEVICE* ]]
  ZSE_HOME=$BATS_TEST_TMPDIR run -2 --separate-stderr zse-chat -p hi
  [[ "$stderr" == *"ZSE_MODEL is not set"* ]]
}

@test "a failure exits with 1, one sentence on standard error and nothing on standard output" {
  fails() {
    local want=$1
    shift
    run --separate-stderr "$@" </dev/null
    [ "$status" = 1 ] && [ -z "$output" ] && [[ "$stderr" == *$want* ]] && [ "$(wc -l <<<"$stderr")" = 1 ] || { echo "$*: $status: $output / $stderr"; return 1; }
  }
  fails "/no/such.zse" zse-chat /no/such.zse -p hi
  fails "no room is left" ask -p "$(head -c 20000 /dev/zero | tr '\0' x)"
  fails "at most" ask -p hi --ctx 1000000
  fails "converted already" ask -p hi -q int8
  fails "vocabulary" ask -p hi --logit-bias 99999999=1
  fails "not UTF-8" ask -p $'\xff'
  fails "not UTF-8" ask -p hi -s $'\xff'
  fails "stop string" ask -p hi --stop ""
  fails "No such file" ask --batch /no/such/file
  fails "no-such-kernels" ask -p hi --kernels no-such-kernels
  fails "no weights" zse-chat models/tiny/config.json -p hi
  head -c 2000 "$MODEL" >"$BATS_TEST_TMPDIR/cut.zse"
  fails "cut.zse" zse-chat "$BATS_TEST_TMPDIR/cut.zse" -p hi
}

@test "ZSE_MODEL and ZSE_QUANTIZATION are honoured" {
  ZSE_MODEL=$MODEL run --separate-stderr zse-chat -p "What is 2+2?" --temp 0
  [ "$output" = "2 + 2 = 4" ]
  ZSE_QUANTIZATION=bf16 run --separate-stderr zse-chat models/tiny -p "What is 2+2?" --temp 0
  [ "$output" = "2 + 2 = 4" ]
  [ -n "$(find "$XDG_CACHE_HOME" -name '*-bf16-*')" ]
  ZSE_QUANTIZATION=int3 run --separate-stderr zse-chat models/tiny -p hi
  [ "$status" = 1 ]
  [[ "$stderr" == *ZSE_QUANTIZATION* ]]
}

@test "text is written as it is generated; a closed pipe ends the program quietly, a full disk is reported" {
  [ "$(timeout 300 zse-chat "$MODEL" -p hello --ignore-eos --kernels ref -n 0 2>/dev/null | head -c 4 | wc -c)" = 4 ]
  run --separate-stderr bash -c 'zse-chat "$MODEL" -p hello -n 5 >/dev/full'
  [ "$status" = 1 ]
  [[ "$stderr" == *"No space left"* ]]
}

@test "a conversation on a terminal has turns, commands, multi-line input and a history" {
  cat >"$BATS_TEST_TMPDIR/script" <<END
expect >
send What is 2+2?
expect 2 \\+ 2 = 4\\r
expect >
send What is the \\
expect \\. 
send capital of France?
expect Paris
expect >
send /stats
expect 4\d tokens, 2\d of them new
expect >
send /save $BATS_TEST_TMPDIR/saved.json
expect >
send /clear
expect >
send /stats
expect context +0 of
expect >
send /load $BATS_TEST_TMPDIR/saved.json
expect Paris
expect >
send """
expect \\. 
send one
expect \\. 
send two"""
expect >
send /system Be brief.
expect >
send /save $BATS_TEST_TMPDIR/again.json
expect >
send /load /no/such/file
expect No such file
expect >
send /what
expect is not a command
expect >
ready
type half a line
key c
expect >
ready
key d
end 0
END
  NO_COLOR=1 run tests/lib/talk zse-chat "$MODEL" --temp 0 -n 20 <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  [[ "$output" != *$'\e[1m'* ]]
  [ "$(field messages <"$BATS_TEST_TMPDIR/again.json" | grep -c '"role": "system", "content": "Be brief."')" = 1 ]
  field messages <"$BATS_TEST_TMPDIR/again.json" | grep -q '"content": "one\\ntwo"'
  [ "$(stat -c %a "$XDG_STATE_HOME/zse/chat_history")" = 600 ]
  # the history of lines was saved: Ctrl-P brings the last line back
  printf 'expect >\nready\nkey p\nexpect /what\nkey d\nkey u\nkey d\nend 0\n' >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat "$MODEL" <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] && [[ "$output" == *$'\e[1m>\e[0m'* ]] || { echo "$output"; return 1; }
}

@test "-t: a prompt template with parameters, a system message and defaults" {
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  local d=$ZSE_HOME/templates
  mkdir -p "$d/folder"
  tokens() { ask -n 1 --json "$@" </dev/null | grep -o '"prompt_tokens":[0-9]*'; }
  printf 'What is the $what of $input?\n' >"$d/ask"
  printf -- '---\nsystem: Be $how.\nsystem: Or $$ not.\n\ndefault: how=brief\ndefault: sum=2+2\n---\nWhat is ${sum}?' >"$d/sum"
  [ "$(zse-chat --list-templates)" = $'ask\nsum' ]
  [ "$(ask -t ask --param what=capital France </dev/null)" = "The capital of France is Paris." ]
  [ "$(echo France | ask -t ask --param what=capital)" = "The capital of France is Paris." ]
  # without $input no prompt is needed, and one comes after the text
  [ "$(tokens -t sum)" = "$(tokens -p 'What is 2+2?' -s $'Be brief.\nOr $ not.')" ]
  [ "$(tokens -t sum --param how=slow --param how=very,very --param sum=3 more)" = "$(tokens -p $'What is 3?\n\nmore' -s $'Be very,very.\nOr $ not.')" ]
  [ "$(tokens -t sum -s x)" = "$(tokens -p 'What is 2+2?' -s x)" ]
  echo France >"$BATS_TEST_TMPDIR/country"
  [ "$(tokens -t ask --param what=x -f "$BATS_TEST_TMPDIR/country")" = "$(tokens -p "What is the x of $BATS_TEST_TMPDIR/country:"$'\n```\nFrance\n```\n\n?')" ]
  # text of the user is not searched for variables
  [ "$(tokens -t ask --param what=x '$what')" = "$(tokens -p 'What is the x of $what?')" ]
  # in a conversation each question goes through it, but not again through /retry
  printf 'expect >\nsend France\nexpect Paris\nexpect >\nsend /retry\nexpect Paris\nexpect >\nsend /save %s\nexpect saved 2\nready\nkey d\nend 0\n' "$BATS_TEST_TMPDIR/s.json" >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat "$MODEL" --temp 0 -t ask --param what=capital <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  grep -q '"What is the capital of France?"' "$BATS_TEST_TMPDIR/s.json"
}

# bats test_tags=plain
@test "-t: what is wrong with a prompt template is said before a model is opened" {
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  local d=$ZSE_HOME/templates case
  fails() {
    run --separate-stderr -"$1" zse-chat no-model -p x "${@:3}" </dev/null
    [[ -z $output && $stderr == *"$2"* ]] || { echo "$2: $stderr"; return 1; }
  }
  fails 1 "there is no template 'a': $d has none" -t a
  [ -z "$(zse-chat --list-templates)" ]
  mkdir -p "$d"
  printf '$input $a' >"$d/a"
  printf -- '---\nsystem: $input\n---\n' >"$d/b"
  printf -- '---\ntemp: 1\n---\n' >"$d/c"
  printf -- '---\nsystem: x\n' >"$d/d"
  printf -- '---\n\ndefault: 1=2\n---\n' >"$d/e"
  printf -- '---\ndefault: x=2\n---\n$y' >"$d/f"
  printf 'a\xff' >"$d/g"
  fails 1 "there is no template 'z' in $d, which has a, b, c, d, e, f, g" -t z
  fails 1 "$d/a: \$a has no value: give --param a=VALUE" -t a
  fails 1 "$d/a: there is no \$b in it, which --param sets" -t a --param a=1 --param b=2
  fails 1 "$d/b: \$input stands in the system message" -t b
  fails 1 "$d/c: line 2: 'temp: 1', expected system: TEXT" -t c
  fails 1 "$d/d: line 1: --- begins settings" -t d
  fails 1 "$d/e: line 3: default: '1=2', expected NAME=VALUE" -t e
  fails 1 "$d/f: there is no \$x in it, which default: sets" -t f
  fails 1 "$d/g: it is not text in UTF-8" -t g
  for case in ../templates/a /etc/passwd .. . a..b ''; do fails 2 "-t: '$case', expected the name of a file" -t "$case"; done
  fails 2 "--param: 'a', expected NAME=VALUE" -t a --param a
  fails 2 "--param: 'input=1', expected NAME=VALUE" -t a --param input=1
  fails 2 "it needs -t" --param a=1
  fails 2 "-t: not with --raw" -t a --raw
  run -2 --separate-stderr zse-chat no-model -t a --param a=1 </dev/null
  [[ $stderr == *"the prompt is empty"* ]]
}

# bats test_tags=plain
@test "/model changes the model within a conversation; without a model it is chosen from a list" {
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  mkdir -p "$ZSE_HOME/models"
  ln "$MODEL" "$ZSE_HOME/models/one.zse" || cp "$MODEL" "$ZSE_HOME/models/one.zse"
  cp "$MODEL" "$ZSE_HOME/models/two.zse"
  printf 'not a model, but long enough to be read as one' >"$ZSE_HOME/models/broken.zse"
  cat >"$BATS_TEST_TMPDIR/script" <<END
expect 1   broken
expect 2   one
expect number or name
send 2
expect one: llama
expect >
send What is 2+2?
expect 2 \\+ 2 = 4\\r
expect >
send /model
expect 3   two
expect >
send /model broken
expect broken.zse: neither
expect >
send /model 9
expect is not a number from 1 to 3
expect >
send /model nosuch
expect nosuch: No such file
expect >
send /model two
expect two: llama
expect >
send /stats
expect context +0 of
expect >
send What is the capital of France?
expect Paris
expect >
send /info
expect format +ZSE
expect >
send /hardware
expect processor
expect >
send /save $BATS_TEST_TMPDIR/saved.json
expect saved 4 messages
ready
key d
end 0
END
  run tests/lib/talk zse-chat --temp 0 -n 20 <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  # a list without an answer
  printf 'expect number or name\nkey d\nend 0\n' >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  printf 'expect number or name\nsend 7\nexpect .7. is not a number from 1 to 3\nend 2\n' >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  # a grammar is made for one model and fits no other
  printf 'expect >\nsend /model two\nexpect stays\nready\nkey d\nend 0\n' >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat one --regex 'a+' <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
}

@test "/edit, /paste, /file, /set, /tokens; Tab completes commands, settings, models and files" {
  local d=$BATS_TEST_TMPDIR
  cd "$d"
  printf '#!/bin/sh\n[ ! -e broken ] || exit 3\n[ ! -e gone ] || { rm "$2"; exit; }\n[ ! -e latin ] || { printf "\\377" >"$2"; exit; }\n[ ! -e long ] || { seq -s " " 3000 >"$2"; exit; }\ncp "$2" seen; sed -i s/2+2/3+3/ "$2"\n' >editor
  chmod +x editor
  echo 'What is 4+4?' >sums.txt
  export ZSE_HOME=$d/home
  mkdir -p home/models
  cp "$MODEL" home/models/one.zse
  cat >script <<'END'
expect >
send /tokens What is 2+2?
expect 7 tokens
expect What\| is\| \|2\|\+
expect >
send /file sums.txt
expect after 3[0-9] bytes of files
expect >
send /clear
expect >
send What is 2+2?
expect 2 \+ 2 = 4\r
expect >
send /edit
expect 3 \+ 3 = 6\r
expect >
send /edit
expect the same as before
expect >
run touch long
send /edit
expect leaves no room for an answer
expect stay as they were
expect >
run rm long
send /retry
expect 3 \+ 3 = 6\r
expect >
run touch latin
send /edit
expect it is not text in UTF-8
expect >
run touch gone
send /edit
expect [.]md: No such file
expect >
run touch broken
send /edit
expect editor --wait: it failed
expect >
send /paste
expect only a dot
send What is 5+5?
send .
expect = 10
expect >
send /file none.txt
expect none.txt: No such file
expect >
type /fi
key i
type sum
key i
send 
expect after 3[0-9] bytes of files
expect >
send /set temp 5000
expect --temp: 5000 is not in the range
expect >
send /set nothing 1
expect there is no .nothing.
expect >
type /se
key i
type max-
key i
send 3
expect >
send /set
expect temp +0\r
expect max-tokens +3\r
expect >
send please
expect cut after 3 tokens
expect >
send /tokens
expect [0-9]+ of 2048 tokens
expect >
type /mod
key i
type on
key i
send 
expect one: llama
expect >
send /save talk.json
expect saved
ready
key d
end 0
END
  EDITOR="$d/editor --wait" run "$OLDPWD/tests/lib/talk" zse-chat one --temp 0 <script
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  [ "$(cat seen)" = "What is 3+3?" ]
  jq -e '[.messages[] | select(.role == "user").content] == ["What is 3+3?", "What is 5+5?", "sums.txt:\n```\nWhat is 4+4?\n```\n\nplease"]' talk.json
}

@test "/save does not replace a file of another kind, such as a model" {
  cp "$MODEL" "$BATS_TEST_TMPDIR/m.zse"
  echo '[{"role": "user", "content": "old"}]' >"$BATS_TEST_TMPDIR/old.json"
  cat >"$BATS_TEST_TMPDIR/script" <<END
expect >
send hello
expect \w
expect >
send /save $BATS_TEST_TMPDIR/m.zse
expect m.zse: exists and is not a saved conversation
expect >
send /save ~/a talk.json
expect saved 2 messages to $BATS_TEST_TMPDIR/a talk.json
expect >
send hello
expect \w
expect >
send /save $BATS_TEST_TMPDIR/a talk.json
expect saved 4 messages
expect >
send /save ~/old.json
expect old.json holds another conversation of 1 message\.  Replace it
send n
not saved
expect >
send /clear
expect >
send /save ~/a talk.json
expect holds another conversation of 4 messages\.  Replace it
send
not saved
expect >
send /load ~/a talk.json
expect assistant: 
expect >
send /save ~/old.json
expect Replace it
send y
expect saved 4 messages
expect >
run touch -d 2001-01-01 $BATS_TEST_TMPDIR/old.json
send /save ~/old.json
expect Replace it
ready
key c
not saved
expect >
ready
key d
end 0
END
  HOME=$BATS_TEST_TMPDIR run tests/lib/talk zse-chat "$MODEL" --temp 0 -n 8 <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  cmp "$MODEL" "$BATS_TEST_TMPDIR/m.zse"
  [ "$(field messages <"$BATS_TEST_TMPDIR/old.json" | grep -o '"role"' | wc -l)" = 4 ]
}

@test "pasted lines are one turn" {
  cat >"$BATS_TEST_TMPDIR/script" <<END
expect \[\?2004h
ready
paste What is\n2+2?\n
expect What is.*\n2\+2
send 
expect \[\?2004l
expect \w
expect >
ready
paste /usr/bin/x: Grüße\n	// "two"\n"""
send
expect \w
expect >
ready
paste // a comment\nint x;
send
expect \w
expect >
send /save $BATS_TEST_TMPDIR/saved.json
expect saved 6 messages
expect >
ready
key d
end 0
END
  run tests/lib/talk zse-chat "$MODEL" --temp 0 -n 8 <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output" | cat -v; return 1; }
  [ "$(jq -c '[.messages[] | select(.role == "user") | .content]' "$BATS_TEST_TMPDIR/saved.json")" = '["What is\n2+2?","/usr/bin/x: Grüße\n\t// \"two\"\n\"\"\"","// a comment\nint x;"]' ]
}

@test "a conversation that fills the context goes on without its oldest turns" {
  local i
  {
    echo 'expect >'
    for i in 1 2 3; do printf 'send What is 2+2?\nexpect 2 . 2 = 4\nexpect >\n'; done
    printf 'send /stats\nexpect left out the oldest 4 of 7 messages\nexpect >\n'
    printf 'send What is 2+2?\nexpect 2 . 2 = 4\nexpect >\n'
    printf 'send %s\nexpect this turn alone has 6. tokens.*it is not kept\nexpect >\n' "$(printf 'What is 2+2? %.0s' 1 2 3 4 5 6)"
    printf 'send What is 2+2?\nexpect 2 . 2 = 4\nexpect >\n'
    printf 'send /save %s\nexpect saved 11 messages\nexpect >\nready\nkey d\nend 0\n' "$BATS_TEST_TMPDIR/saved.json"
  } >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat "$MODEL" --temp 0 -n 12 --ctx 56 --system x <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  [ "$(grep -c 'the oldest turns are left out' <<<"$output")" = 1 ]
  printf 'expect >\nsend What is 2+2?\nexpect 4\nexpect >\nsend What is 2+2?\nexpect >\nsend hi\nexpect conversation has .*not kept ./clear starts a new one\nexpect >\nready\nkey d\nend 0\n' >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat "$MODEL" --temp 0 -n 12 --ctx 48 --on-full stop <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  run -2 --separate-stderr ask -p hi --on-full never
  [[ $stderr == *"--on-full: 'never', expected drop or stop"* ]]
}

@test "a terminal gets no control characters from a conversation" {
  printf '{"messages": [{"role": "user", "content": "a\\u001b[31mb\\u009bc\\u00a0d"}]}' >"$BATS_TEST_TMPDIR/m.json"
  printf 'expect >\nsend /load %s\nexpect user: a[^>]*>\nready\nkey d\nend 0\n' "$BATS_TEST_TMPDIR/m.json" >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat "$MODEL" <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ]
  [[ "$output" == *$'user: a?[31mb?c\u00a0d'* ]] || { echo "$output" | cat -v; return 1; }
}

@test "Ctrl-C stops an answer, not the program" {
  # the expression must match the answer, which is Hello with no W before it, not the question: what
  # is typed is echoed, and twice if the editor was not ready
  printf 'expect >\nsend hello\nexpect Hello\nkey c\nexpect stopped\nexpect >\nsend What is 2+2?\nexpect 2\\+2\\?\\s+(\\x1b\\[\\?2004l)?[0-9A-VX-Za-z]\nkey c\nexpect stopped\nexpect >\nsend /exit\nend 0\n' >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat "$MODEL" --temp 0 --ignore-eos -n 0 --kernels ref --threads 1 <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
}

@test "an answer on a terminal is broken between words at its width; --no-wrap and a pipe leave it" {
  # a shell sets the width of its terminal, and runs the program on it
  export ask="zse-chat $MODEL --temp 0" question='What is the capital of France?'
  printf 'expect The capital of\\r\\nFrance is Paris\\.\\r\nexpect 31:The capital of France is Paris\\.\\r\n' >"$BATS_TEST_TMPDIR/script"
  printf 'expect The capital of France is Paris\\.\\r\n%.0s' off pipe >>"$BATS_TEST_TMPDIR/script"
  printf 'end 0\n' >>"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk sh -ec 'stty cols 20; $ask -p "$question"; stty cols 31; printf 31:; $ask -p "$question"
    stty cols 20; $ask --no-wrap -p "$question"; $ask -p "$question" | cat' <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  # a conversation that is loaded
  printf '{"messages": [{"role": "user", "content": "one two\\n```\\nthree four five\\n```\\nthree four five"}]}' >"$BATS_TEST_TMPDIR/m.json"
  printf 'expect >\nsend /load %s\nexpect user: one\\r\\ntwo\\r\\n```\\r\\nthree four five\\r\\n```\\r\\nthree four\\r\\nfive\\r\nexpect >\nready\nkey d\nend 0\n' "$BATS_TEST_TMPDIR/m.json" >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk sh -c 'stty cols 10; exec $ask --no-history' <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
}

@test "on a terminal --raw and --json need a prompt" {
  printf 'expect need a prompt\nend 2\n' >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-chat "$MODEL" --raw <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
}

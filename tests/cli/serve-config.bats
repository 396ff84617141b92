# serve-config.bats - zse-serve --config: options from a file.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  zse-convert models/tiny -o "$BATS_FILE_TMPDIR/tiny.zse" -q nl4 --quality fast
}
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  Z=$BATS_FILE_TMPDIR/tiny.zse T=$BATS_TEST_TMPDIR
  export ZSE_HOME=$T/home
}
teardown() { [ -z "${PID:-}" ] || { kill "$PID" 2>/dev/null; wait "$PID" 2>/dev/null; } || true; }

# config JSON
config() { printf '%s' "$1" >"$T/c.json"; }
# planned KEY: the line KEY of --plan, with the options of the file and further arguments; with
# --exact no speed is predicted, so none is measured
planned() { zse-serve --config "$T/c.json" --plan "${@:2}" | grep -- "^$1"; }

@test "options and models come from the file; the command line wins" {
  config "{\"models\": [\"$Z\"], \"ctx\": 512, \"kv\": \"i8\", \"kv-bytes\": 20000000, \"no-audit\": true, \"quiet\": false, \"timeout\": 1.5}"
  [[ "$(planned '[mk]')" == *"$Z"*"context 512"*"20.0 MB"* ]]
  [[ "$(planned '[mk]' --ctx 256 --kv-bytes 30MB)" == *"context 256"*"30.0 MB"* ]]
  cp "$Z" "$T/other.zse"
  planned model "$T/other.zse" >"$T/out"
  [ "$(wc -l <"$T/out")" = 1 ]
  grep -q "$T/other.zse" "$T/out"
}

@test "names in the file apply only to the file's models" {
  config "{\"name\": \"old\", \"models\": [\"$Z\"]}"
  planned model --exact --name new >"$T/out"
  cp "$Z" "$T/other.zse"
  config "{\"name\": [\"a\", \"b\"], \"models\": [\"$Z\", \"$Z\"]}"
  [ "$(planned model --exact "$T/other.zse" | wc -l)" = 1 ]
  planned model --exact >"$T/out"
  exec 5< <(exec zse-serve --config "$T/c.json" --port 0 --no-audit "$T/other.zse" 2>"$T/err")
  PID=$!
  read -r -u 5 _ _ url
  await says other eval "curl -s $url/v1/models | jq -r '.data[].id'"
}

@test "ZSE_PORT of a Kubernetes service link is ignored, and ZSE_PORT is not checked if only --socket listens" {
  config "{\"models\": [\"$Z\"]}"
  export ZSE_PORT=tcp://10.0.0.7:8000
  run --separate-stderr zse-serve --config "$T/c.json" --plan --exact
  [ "$status" = 0 ]
  [[ $stderr == *"ZSE_PORT is 'tcp://10.0.0.7:8000'"*ignored* ]]
  ZSE_PORT=x run --separate-stderr zse-serve --config "$T/c.json" --plan --exact --socket "$T/s"
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  ZSE_PORT=x run --separate-stderr zse-serve --config "$T/c.json" --plan
  [ "$status" = 2 ]
}

@test "a server needs only a configuration file" {
  config "{\"models\": [\"$Z\"], \"name\": [\"from-file\"], \"port\": 0, \"no-audit\": true, \"max-seqs\": 2}"
  exec 5< <(exec zse-serve --config "$T/c.json" 2>"$T/err")
  PID=$!
  read -r -u 5 _ _ url
  await listens "$url"
  curl -s "$url/v1/chat/completions" -d '{"temperature":0,"messages":[{"role":"user","content":"What is 2+2?"}]}' >"$T/j"
  jq -e '.choices[0].message.content == "2 + 2 = 4" and .model == "from-file"' "$T/j"
}

@test "mistakes in a file are named" {
  while IFS='|' read -r json words; do
    config "$json"
    run --separate-stderr zse-serve --config "$T/c.json"
    [ "$status" = 1 ] && [ -z "$output" ] && [[ "$stderr" == "zse-serve: $T/c.json: "*"$words"* ]] || { echo "$json: $status $stderr"; return 1; }
  done <<'CASES'
{"prot": 80}|'prot' is not an option
{"port": true}|port: found
{"quiet": 1}|quiet: found
{"models": [1]}|models: found
{"models": ["--no-auth"]}|models: '--no-auth' begins with -
{"cors-origin": [["x"]]}|cors-origin: found
{"config": "x"}|'config' is not an option
{"plan": true}|'plan' is not an option
[]|expected an object
{"port": 1|line 1
CASES
  run --separate-stderr zse-serve --config "$T/none.json"
  [ "$status" = 1 ]
  [[ "$stderr" == *"none.json: No such file"* ]]
  config '{"port": 99999}'
  run --separate-stderr zse-serve --config "$T/c.json"
  [ "$status" = 2 ]
  [[ "$stderr" == *"--port"* ]]
  run --separate-stderr zse-serve --config
  [ "$status" = 2 ]
}

@test "the files in scripts are valid" {
  for f in scripts/dev.json scripts/enterprise.json; do
    run --separate-stderr zse-serve --config $f --host 0.0.0.0 --port 0      # the file is read; then keys are missing
    [ "$status" = 1 ] && [[ $stderr == *"--host 0.0.0.0 is reachable from other machines, and there are no keys"* ]] || { echo "$f: $stderr"; return 1; }
  done
}

# serve.bats - zse-serve over HTTP, with the tiny model: the openai package, curl, and clients that misbehave.
bats_require_minimum_version 1.5.0

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export ZSE_HOME=$BATS_FILE_TMPDIR/home T=$BATS_FILE_TMPDIR
  zse-convert models/tiny -o "$T/tiny.zse" --quality fast >/dev/null
  start "$T/main" "$T/tiny.zse" --port 0
  export URL MAIN_PID=$PID
  wait_ready "$URL"
}

teardown_file() {
  kill -TERM "$MAIN_PID" 2>/dev/null
  while kill -0 "$MAIN_PID" 2>/dev/null; do sleep 0.05; done
}

setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }

# start LOG ARG...: a server; its address in URL, its process in PID.
start() {
  local log=$1 _
  shift
  mkfifo "$log.pipe"
  zse-serve "$@" >"$log.pipe" 2>"$log.err" 3>&- &
  PID=$!
  read -r _ _ URL <"$log.pipe" || { cat "$log.err"; return 1; }
  rm "$log.pipe"
}
wait_ready() { curl -sf --retry 20 --retry-delay 0 --retry-max-time 20 --retry-all-errors "$1/health" >/dev/null; }
stop() { kill -TERM "$1" && wait "$1"; }
status() { curl -s -o /dev/null -w '%{http_code}' "$@"; }
ask() { curl -s "$URL/v1/chat/completions" -H 'Content-Type: application/json' -d "$1"; }
admin() { curl -s -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$@"; }
QUESTION='{"temperature":0,"messages":[{"role":"user","content":"What is 2+2?"}]}'

@test "the openai package: chat, stream, n, seed, stop, logprobs, completions, embeddings, models, errors, 64 streams at once" {
  [ -x "$B/venv/bin/python" ] && "$B/venv/bin/python" -c 'import openai' || skip "no openai package in build/venv (scripts/deps makes it)"
  run "$B/venv/bin/python" tests/serve/openai_client.py "$URL" zse-chat "$T/tiny.zse"
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c '^ok ' <<<"$output")" = 16 ]
}

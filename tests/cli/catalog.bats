# catalog.bats - /api/models/registry, search and check, with a hub on this machine.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export ZSE_HOME=$BATS_FILE_TMPDIR/home T=$BATS_FILE_TMPDIR
  mkdir "$T/empty"
  echo '# nothing' >"$T/empty/README.md"
  mkfifo "$T/hub.pipe" "$T/serve.pipe"
  python3 -B tests/hub/server.py test/tiny=models/tiny test/empty="$T/empty" >"$T/hub.pipe" 2>"$T/hub.err" 3>&- &
  export HUB_PID=$!
  read -r HF_ENDPOINT _ <"$T/hub.pipe"
  export HF_ENDPOINT HUB=$HF_ENDPOINT
  unset HF_TOKEN HF_TOKEN_PATH HF_HUB_OFFLINE HF_HUB_CACHE
  export HF_HOME=$T/hf
  zse-serve --port 0 >"$T/serve.pipe" 2>"$T/serve.err" 3>&- &
  export SERVE_PID=$!
  read -r _ _ URL <"$T/serve.pipe"
  export URL
  await listens "$URL"
}

teardown_file() {
  kill -TERM "$SERVE_PID" 2>/dev/null
  while kill -0 "$SERVE_PID" 2>/dev/null; do sleep 0.05; done
  kill -TERM "$HUB_PID" 2>/dev/null || true
}

setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }
get() { curl -s "$URL$1"; }
admin() { curl -s -w '\n%{http_code}' -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$URL$1"; }
status() { curl -s -o /dev/null -w '%{http_code}' "$@"; }

@test "the registry lists every model with its memory, filtered as requested; a wrong filter is refused" {
  [ "$(get /api/models/registry | jq '.count == (.models | length) and .count > 20')" = true ]
  [ "$(get /api/models/registry | jq '[.models[] | select((.vram | .fp16_gb > .int8_gb and .int8_gb > .int4_gb and .int4_gb > 0) | not)] | length')" = 0 ]
  [ "$(get /api/models/registry | jq -c '[.models[].model_id]')" = "$(zse-info models list --json | jq -c '[.[].model_id]')" ]
  [ "$(get '/api/models/registry?category=code&max_vram=4' | jq '.count > 0 and ([.models[] | select((.categories | index("code")) and .vram.int4_gb <= 4)] | length) == .count')" = true ]
  [ "$(get '/api/models/registry?size=medium&recommended=true' | jq '.count > 0 and ([.models[] | select(.size == "medium" and .recommended)] | length) == .count')" = true ]
  [ "$(get /api/models/registry/TinyLlama/TinyLlama-1.1B-Chat-v1.0 | jq -r .name)" = TinyLlama-1.1B ]
  [ "$(status "$URL/api/models/registry/no/such")" = 404 ]
  for query in category=cat size=huge max_vram=x max_vram=-1 max_vram=nan recommended=maybe; do
    [ "$(status "$URL/api/models/registry?$query")" = 400 ] || { echo "$query"; return 1; }
  done
}

@test "administrators can search and check models on the hub" {
  [ "$(status "$URL/api/models/search?q=tiny")" = 401 ]
  [ "$(status "$URL/api/models/check/test/tiny")" = 401 ]
  run admin '/api/models/search?q=tiny&limit=5'
  [ "${lines[-1]}" = 200 ] || { echo "$output"; return 1; }
  [ "$(head -n 1 <<<"$output" | jq -c '[.count, .query, .models[0].id, .models[0].compatible]')" = '[1,"tiny","test/tiny",true]' ]
  run admin /api/models/check/test/tiny
  [ "$(head -n 1 <<<"$output" | jq -c '[.model_id, .compatible, .architecture, .issues, (.size_info.weight_bytes > 1000000)]')" = '["test/tiny",true,"llama",[],true]' ]
  run admin /api/models/check/test/empty
  [ "$(head -n 1 <<<"$output" | jq -c '[.compatible, (.issues | length > 0)]')" = '[false,true]' ]
}

@test "bad requests get 400, missing models and a hub that refuses 502; a path is no name of a model" {
  for path in /api/models/search '/api/models/search?q=' '/api/models/search?q=a&limit=0' '/api/models/search?q=a&limit=51' /api/models/check/a//b /api/models/check/etc/passwd/x "/api/models/check/..%2f..%2fetc"; do
    run admin "$path"
    [ "${lines[-1]}" = 400 ] || { echo "$path: $output"; return 1; }
  done
  run admin /api/models/check/test/none
  [ "${lines[-1]}" = 502 ]
  curl -s "$HUB/_fault" -d '{"file": "api", "kind": "status", "times": 9, "code": 403}' >/dev/null
  run admin '/api/models/search?q=tiny'
  [ "${lines[-1]}" = 502 ]
}

@test "a server ends at once although the hub does not answer" {
  local pipe=$BATS_TEST_TMPDIR/pipe pid url
  mkfifo "$pipe" "$pipe.hub"
  # a hub that accepts a connection and never answers
  python3 -c 'import socket, time; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True); c = s.accept(); print("asked", flush=True); time.sleep(600)' >"$pipe.hub" 3>&- &
  local hub=$!
  exec 7<"$pipe.hub"
  read -r port <&7
  HF_ENDPOINT=http://127.0.0.1:$port ZSE_HOME=$BATS_TEST_TMPDIR/home zse-serve --port 0 >"$pipe" 2>"$pipe.err" 3>&- &
  pid=$!
  read -r _ _ url <"$pipe"
  await listens "$url"
  curl -s -H "Authorization: Bearer $(cat "$BATS_TEST_TMPDIR/home/admin.token")" "$url/api/models/search?q=tiny" >/dev/null &
  read -r _ <&7
  kill -TERM "$pid"
  kill -TERM "$pid"
  wait "$pid"
  kill -KILL "$hub"
  wait "$hub" || true
}

# serve-names.bats - zse-serve without MODEL: models with names, loaded when a request names one.
bats_require_minimum_version 1.5.0
load ../lib/server

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export ZSE_HOME=$BATS_FILE_TMPDIR/home T=$BATS_FILE_TMPDIR
  mkdir -p "$ZSE_HOME/models"
  zse-convert models/tiny -o "$ZSE_HOME/models/tiny:1m.zse" --quality fast >/dev/null
  cp "$ZSE_HOME/models/tiny:1m.zse" "$ZSE_HOME/models/other.zse"
  printf damaged >"$ZSE_HOME/models/bad.zse"
  ln -s tiny:1m.zse "$ZSE_HOME/models/small.zse"
  start "$T/main" --port 0
  export URL MAIN_PID=$PID MAIN_PORT=${URL##*:}
  await listens "$URL"
}

# chat MODEL [CURL ARGUMENT]...: the response body of a question
chat() {
  local model=$1
  shift
  curl -s "$@" "$URL/v1/chat/completions" -d "$(jq -n --arg m "$model" '{model: $m, temperature: 0, messages: [{role: "user", content: "What is 2+2?"}]}')"
}
content() { jq -er '.choices[0].message.content'; }
loaded() { curl -s "$URL/health" | jq .models_loaded; }

@test "a model is loaded by the request that names it, also by an alias, and the request waits" {
  [ "$(loaded)" = 0 ]
  curl -s "$URL/v1/models" | jq -e '[.data[].id] | sort == ["bad", "other", "small", "tiny:1m"]'
  curl -s "$URL/v1/models/small" | jq -e '.id == "small"'
  [ "$(chat small | content)" = "2 + 2 = 4" ]
  [ "$(loaded)" = 1 ]
  [ "$(chat tiny | content)" = "2 + 2 = 4" ]
  chat tiny:1m | jq -e '.model == "tiny:1m"'
  [ "$(loaded)" = 1 ]
  curl -s "$URL/v1/models" | jq -e '[.data[].id] | sort == ["bad", "other", "small", "tiny:1m"]'
  curl -s "$URL/v1/models" | jq -e '.data[] | select(.id == "tiny:1m") | .max_model_len > 0'
}

@test "requests that come while a model loads are all answered" {
  local i
  for i in 1 2 3 4; do chat other >"$T/answer$i" & done
  wait
  for i in 1 2 3 4; do [ "$(content <"$T/answer$i")" = "2 + 2 = 4" ] || { cat "$T/answer$i"; return 1; }; done
}

@test "invalid names and damaged models are refused, and harm nothing" {
  local name
  for name in nosuch ../tiny:1m /etc/passwd ./other .other 'other.zse' 'a b' '' "$(printf 'a%.0s' {1..300})"; do
    chat "$name" >"$T/j"
    jq -e '.error.code == "model_not_found" or .error.code == "model_not_loaded"' "$T/j" || { cat "$T/j"; return 1; }
    [ "$name" != nosuch ] || jq -e '.error.message == "no model here has the name \u0027nosuch\u0027; GET /v1/models lists those that are"' "$T/j"
  done
  chat bad -o "$T/j" -w '%{http_code}' >"$T/code"
  [ "$(cat "$T/code")" -ge 400 ]
  jq -e '.error.code == "load_failed" and .error.param == "model"' "$T/j"
  jq -e '.error.message | startswith("bad.zse: ")' "$T/j" || { cat "$T/j"; return 1; }       # no path
  [ "$(chat tiny | content)" = "2 + 2 = 4" ]
}

@test "a model that no request uses is unloaded after --keep-alive, and comes back" {
  start "$BATS_TEST_TMPDIR/log" --port 0 --keep-alive 0
  await listens "$URL"
  [ "$(chat tiny | content)" = "2 + 2 = 4" ]
  unloaded() { [ "$(loaded)" = 0 ]; }
  await unloaded
  [ "$(chat tiny | content)" = "2 + 2 = 4" ]
  stop "$PID"
}

@test "under --max-memory the least recently used model is unloaded" {
  [ "$(chat tiny | content)" = "2 + 2 = 4" ]
  start "$BATS_TEST_TMPDIR/log" --port 0 --kv-bytes 8MB --max-memory 16MB
  await listens "$URL"
  [ "$(chat tiny | content)" = "2 + 2 = 4" ]
  [ "$(chat other | content)" = "2 + 2 = 4" ]
  [ "$(chat tiny | content)" = "2 + 2 = 4" ]
  stop "$PID"
  grep -q 'tiny:1m: unloading, because other needs its memory' "$BATS_TEST_TMPDIR/log.err"
}

@test "an idle model is unloaded if its memory is enough for the requested one" {
  local root=$BATS_TEST_TMPDIR/root
  mkdir -p "$root/proc"
  printf 'MemTotal: 10000000 kB\nMemAvailable: 5000000 kB\n' >"$root/proc/meminfo"
  ZSE_SYSROOT=$root start "$BATS_TEST_TMPDIR/log" --port 0 --kv-bytes 800MB
  await listens "$URL"
  [ "$(chat other | content)" = "2 + 2 = 4" ]
  printf 'MemTotal: 10000000 kB\nMemAvailable: 700000 kB\n' >"$root/now"
  mv "$root/now" "$root/proc/meminfo"
  chat tiny | jq -e '.error.code == "load_failed" and (.error.message | test("0.72 of them available"))'
  [ "$(loaded)" = 0 ]
  stop "$PID"
  grep -q 'other: unloading, because tiny:1m needs its memory' "$BATS_TEST_TMPDIR/log.err"
}

@test "a model that cannot be loaded even without the others leaves them loaded" {
  cp -r models/tiny "$BATS_TEST_TMPDIR/short"
  jq '.max_position_embeddings = 256' models/tiny/config.json >"$BATS_TEST_TMPDIR/short/config.json"
  mkdir -p "$BATS_TEST_TMPDIR/home/models"
  cp "$T/home/models/other.zse" "$BATS_TEST_TMPDIR/home/models"
  zse-convert "$BATS_TEST_TMPDIR/short" -o "$BATS_TEST_TMPDIR/home/models/short.zse" --quality fast >/dev/null
  cp "$T/home/models/bad.zse" "$BATS_TEST_TMPDIR/home/models"
  ZSE_HOME=$BATS_TEST_TMPDIR/home start "$BATS_TEST_TMPDIR/log" --port 0 --ctx 1024
  await listens "$URL"
  [ "$(chat other | content)" = "2 + 2 = 4" ]
  chat short | jq -e '.error.code == "load_failed" and (.error.message | test("made for at most 256 tokens"))'
  chat bad | jq -e '.error.code == "load_failed"'
  [ "$(loaded)" = 1 ]
  stop "$PID"
  run ! grep 'needs its memory' "$BATS_TEST_TMPDIR/log.err"
}

@test "a key that is limited to a model loads no other one" {
  local key reads name home=$BATS_TEST_TMPDIR/home
  mkdir "$home"
  cp -r "$ZSE_HOME/models" "$home/models"
  key=$(ZSE_HOME=$home zse-apikey create k --model small --json | jq -r .key)
  reads=$(ZSE_HOME=$home zse-apikey create reads --scope models --json | jq -r .key)
  ZSE_HOME=$home start "$BATS_TEST_TMPDIR/log" --port 0
  await listens "$URL"
  chat other -H "Authorization: Bearer $key" | jq -e '.error.code == "model_not_allowed"'
  [ "$(loaded)" = 0 ]
  curl -s "$URL/v1/models" -H "Authorization: Bearer $key" | jq -e '[.data[].id] == ["small"]'
  curl -s "$URL/tokenize" -H "Authorization: Bearer $reads" -d '{"model": "tiny", "text": "a"}' >"$T/j"
  jq -e '.error.code == "model_not_found"' "$T/j" || { cat "$T/j"; return 1; }
  [ "$(loaded)" = 0 ]
  [ "$(chat small -H "Authorization: Bearer $key" | content)" = "2 + 2 = 4" ]
  curl -s "$URL/v1/models" -H "Authorization: Bearer $key" | jq -e '[.data[].id] == ["small"]'
  for name in other tiny:1m; do
    curl -s "$URL/v1/models/$name" -H "Authorization: Bearer $key" | jq -e '.error.code == "model_not_found"'
  done
  stop "$PID"
}

# as KEY [CURL ARGUMENT]... PATH: request PATH with this key; prints the status, and the error's
# code if there is one
as() {
  local key=$1 code
  shift
  code=$(curl -s -o "$T/as" -w '%{http_code}' -H "Authorization: Bearer $key" "${@:1:$#-1}" "$URL${*: -1}")
  echo "$code$(jq -r '.error.code? // empty | " " + .' "$T/as" 2>/dev/null)"
}

@test "a key of scope admin that is limited to models administers these models alone" {
  local key all path home=$BATS_TEST_TMPDIR/home
  mkdir "$home"
  cp -r "$ZSE_HOME/models" "$home/models"
  key=$(ZSE_HOME=$home zse-apikey create k --scope admin,chat --model other --model 'mine*' --json | jq -r .key)
  all=$(ZSE_HOME=$home zse-apikey create all --scope admin --json | jq -r .key)
  ZSE_HOME=$home start "$BATS_TEST_TMPDIR/log" --port 0
  await listens "$URL"
  for path in /api/keys /api/models/jobs /api/models/files /api/audit/summary /api/models/search; do
    [ "$(as "$key" "$path")" = "403 limited_to_models" ] || { echo "$path"; cat "$T/as"; return 1; }
  done
  [ "$(as "$key" -X POST /api/batching/enable)" = "403 limited_to_models" ]
  [ "$(as "$key" -d '{"name":"free","scopes":"admin"}' /api/keys)" = "403 limited_to_models" ]
  [ "$(as "$all" /api/keys)" = 200 ]
  # the key must be allowed both the name of the file and the name given to the model
  [ "$(as "$key" -d "{\"model_path\":\"$home/models/tiny:1m.zse\"}" /api/models/load)" = "403 model_not_allowed" ]
  [ "$(as "$key" -d "{\"model_path\":\"$home/models/tiny:1m.zse\",\"model_name\":\"mine\"}" /api/models/load)" = "403 model_not_allowed" ]
  [ "$(as "$key" -d "{\"model_path\":\"$home/models/other.zse\",\"model_name\":\"tiny\"}" /api/models/load)" = "403 model_not_allowed" ]
  [ "$(as "$key" -d "{\"model_name\":\"$home/models/tiny:1m.zse\"}" /api/models/load)" = "403 model_not_allowed" ]
  [ "$(loaded)" = 0 ]
  [ "$(as "$key" -d "{\"model_path\":\"$home/models/other.zse\"}" /api/models/load)" = 200 ]
  [ "$(as "$all" -d "{\"model_path\":\"$home/models/tiny:1m.zse\"}" /api/models/load)" = 200 ]
  [ "$(as "$key" -d '{"model_id":"tiny:1m"}' /api/models/unload)" = "403 model_not_allowed" ]
  [ "$(as "$key" -d '{"model_id":"small"}' /api/models/unload)" = "403 model_not_allowed" ]
  [ "$(as "$key" -d '{"model_id":"nosuch"}' /api/models/unload)" = "404 model_not_found" ]
  [ "$(loaded)" = 2 ]
  [ "$(as "$key" -d '{"model_id":"other"}' /api/models/unload)" = 200 ]
  [ "$(as "$all" -d '{"model_id":"tiny:1m"}' /api/models/unload)" = 200 ]
  # aliases, downloads, deletions
  [ "$(as "$key" -d '{"source":"small","destination":"mine"}' /api/copy)" = 404 ]
  [ "$(as "$key" -d '{"source":"other","destination":"theirs"}' /api/copy)" = 403 ]
  [ "$(as "$key" -d '{"source":"other","destination":"mine"}' /api/copy)" = 200 ]
  [ "$(as "$key" -d '{"model":"tiny:1m","stream":false}' /api/pull)" = 403 ]
  [ "$(as "$key" -d '{"model":"a/tiny","stream":false}' /api/pull)" = 403 ]
  [ "$(as "$key" -d '{"model":"other","stream":false}' /api/pull)" = 200 ]
  for path in small tiny:1m tiny; do
    [ "$(as "$key" -X DELETE -d "{\"model\":\"$path\"}" /api/delete)" = 404 ]
    [ "$(as "$key" -X DELETE "/api/models/files/$path.zse")" = "404 no_such_file" ]
  done
  [ "$(as "$key" -X DELETE -d '{"model":"mine"}' /api/delete)" = 200 ]
  [ "$(as "$key" -X DELETE /api/models/files/other.zse)" = 200 ]
  [ "$(cd "$home/models" && echo *)" = "bad.zse small.zse tiny:1m.zse" ]
  stop "$PID"
}

# bats test_tags=plain
@test "a request that waits for a model ends at --timeout" {
  local so=$B/tests/lib/stuck.so d=$BATS_TEST_TMPDIR
  [ -e "$so" ] || skip "$so is not there (make unit)"
  ZSE_STUCK=$d LD_PRELOAD=$so start "$d/log" --port 0 --timeout 1
  await listens "$URL"
  touch "$d/step"                               # opening a model waits
  chat other -m 60 -o "$T/j" -w '%{http_code}' >"$T/code"
  [ "$(cat "$T/code")" = 504 ]
  jq -e '.error.code == "timeout"' "$T/j"
  [ "$(loaded)" = 0 ]
  rm "$d/step"
  is_there() { [ "$(loaded)" = 1 ]; }
  await is_there
  stop "$PID"
}

@test "a client that leaves while a model loads, and SIGTERM then, leave nothing behind" {
  start "$BATS_TEST_TMPDIR/log" --port 0
  await listens "$URL"
  chat tiny -m 0.001 || true
  chat other -m 0.001 || true
  [ "$(chat tiny | content)" = "2 + 2 = 4" ]
  stop "$PID"
}

# use KEY MODEL: ask the model with this key; prints the error's code, or the answer
use() { chat "$2" -D "$T/head" -H "Authorization: Bearer $1" | jq -r '.error.code // .choices[0].message.content'; }

@test "a key cannot make the server load and unload models endlessly" {
  local a b c i said home=$BATS_TEST_TMPDIR/home
  mkdir "$home"
  cp -r "$ZSE_HOME/models" "$home/models"
  a=$(ZSE_HOME=$home zse-apikey create a --json | jq -r .key)
  b=$(ZSE_HOME=$home zse-apikey create b --json | jq -r .key)
  c=$(ZSE_HOME=$home zse-apikey create c --json | jq -r .key)
  ZSE_HOME=$home start "$BATS_TEST_TMPDIR/log" --port 0 --kv-bytes 8MB --max-memory 16MB
  await listens "$URL"
  # b makes the server unload a's model, and a loads it again
  for i in {1..12}; do
    [ "$(use "$a" tiny)" = "2 + 2 = 4" ] || { echo "$i"; return 1; }
    [ "$(use "$b" tiny)" = "2 + 2 = 4" ] || { echo "$i"; return 1; }
    said=$(use "$b" other)
    [ "$said" = "2 + 2 = 4" ] || break
  done
  [ "$said" = too_many_loads ] || { echo "$i: $said"; return 1; }
  [ "$i" -gt 6 ]
  grep -qi '^Retry-After: 10' "$T/head"
  stop "$PID"
  ZSE_HOME=$home start "$BATS_TEST_TMPDIR/log2" --port 0 --kv-bytes 8MB --max-memory 16MB
  await listens "$URL"
  # a key may evict its own models more often, but not without limit
  for i in {1..60}; do
    said=$(use "$a" tiny)
    [ "$said" = "2 + 2 = 4" ] || break
    said=$(use "$a" other)
    [ "$said" = "2 + 2 = 4" ] || break
  done
  [ "$said" = too_many_loads ] || { echo "$i: $said"; return 1; }
  [ "$i" -gt 12 ]
  for i in {1..10}; do                          # a model that cannot be loaded
    said=$(use "$c" bad)
    [ "$said" = load_failed ] || break
  done
  [ "$said" = too_many_loads ]
  stop "$PID"
}

# ask_long MODEL FILE: start a request that takes a long time; its process id is in $LONG.
ask_long() {
  curl -sN "$URL/v1/completions" -d "{\"model\":\"$1\",\"prompt\":\"a\",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":1900,\"n\":64}" >"$2" &
  LONG=$!
  await grep -q '^data: ' "$2"
}

@test "memory is taken from idle models, not from those that answer requests" {
  cp "$ZSE_HOME/models/tiny:1m.zse" "$ZSE_HOME/models/third.zse"
  start "$BATS_TEST_TMPDIR/log" --port 0 --kv-bytes 8MB --max-memory 32MB --drain 1
  await listens "$URL"
  ask_long tiny "$BATS_TEST_TMPDIR/long1"
  chat other | content                  # used later than tiny, but idle
  chat third | content
  grep -q 'other: unloading, because third needs its memory' "$BATS_TEST_TMPDIR/log.err"
  run ! grep -q 'tiny:1m: unloading' "$BATS_TEST_TMPDIR/log.err"
  kill "$LONG"
  stop "$PID"
  start "$BATS_TEST_TMPDIR/log" --port 0 --kv-bytes 8MB --max-memory 16MB --drain 1
  await listens "$URL"
  ask_long tiny "$BATS_TEST_TMPDIR/long2"
  for _ in 1 2 3 4 5 6 7 8 9 10; do             # costs the client nothing
    chat other -D "$T/head" | jq -e '.error.code == "models_busy" and .error.param == "model"'
    grep -qi '^Retry-After: 1' "$T/head"
  done
  run ! grep -q 'tiny:1m: unloading' "$BATS_TEST_TMPDIR/log.err"
  kill "$LONG"
  answers() { [ "$(chat other | jq -r '.choices[0].message.content')" = "2 + 2 = 4" ]; }
  await answers
  grep -E 'tiny:1m: closed|other: ready' "$BATS_TEST_TMPDIR/log.err" >"$T/order"
  head -1 "$T/order" | grep -q closed || { cat "$T/order"; return 1; }
  stop "$PID"
  rm "$ZSE_HOME/models/third.zse"
}

# The largest address space that the server has had, in MB.
peak() { echo $(($(grep -oP '^VmPeak:\s*\K\d+' "/proc/$PID/status") / 1024)); }

@test "models that wait for memory are opened one after the other" {
  local name before asks=() home=$BATS_TEST_TMPDIR/home
  mkdir "$home"
  cp -r "$ZSE_HOME/models" "$home/models"
  for name in b c d e; do cp "$home/models/other.zse" "$home/models/$name.zse"; done
  ZSE_HOME=$home MALLOC_ARENA_MAX=1 start "$BATS_TEST_TMPDIR/log" --port 0 --threads 1 --kv-bytes 200MB --max-memory 240MB
  await listens "$URL"
  ask_long tiny "$BATS_TEST_TMPDIR/long"
  before=$(peak)
  for name in b c d e; do chat "$name" >"$T/answer-$name" & asks+=($!); done
  wait "${asks[@]}"
  [ $(($(peak) - before)) -lt 500 ] || { echo "$before, then $(peak)"; return 1; }
  for name in b c d e; do jq -e '.error.code == "models_busy"' "$T/answer-$name" || { cat "$T/answer-$name"; return 1; }; done
  kill "$LONG"
  stop "$PID"
}

@test "keep_alive of a key that does not administer the server is at most 12 times --keep-alive" {
  local key home=$BATS_TEST_TMPDIR/home
  mkdir "$home"
  cp -r "$ZSE_HOME/models" "$home/models"
  key=$(ZSE_HOME=$home zse-apikey create k --json | jq -r .key)
  admin=$(ZSE_HOME=$home zse-apikey create admin --scope admin,chat --json | jq -r .key)
  ZSE_HOME=$home start "$BATS_TEST_TMPDIR/log" --port 0 --keep-alive 5m
  await listens "$URL"
  for keep in -1 '"99999h"' '"61m"'; do
    curl -sf "$URL/api/generate" -H "Authorization: Bearer $key" -d "{\"model\":\"tiny\",\"keep_alive\":$keep}"
    curl -sf "$URL/api/ps" -H "Authorization: Bearer $key" |
      jq -e --argjson now "$(date +%s)" '.models[0].expires_at | .[:19] + "Z" | fromdate - $now | . > 2400 and . <= 3601'
  done
  curl -sf "$URL/api/generate" -H "Authorization: Bearer $admin" -d '{"model":"other","keep_alive":-1}'
  curl -sf "$URL/api/ps" -H "Authorization: Bearer $admin" | jq -e '.models[] | select(.name == "other") | .expires_at | startswith("9999")'
  stop "$PID"
}

@test "models that no request uses are unloaded when memory is short, also those that should stay for ever" {
  local root=$BATS_TEST_TMPDIR/root
  mkdir -p "$root/proc"
  printf 'MemTotal: 10000000 kB\nMemAvailable: 5000000 kB\n' >"$root/proc/meminfo"
  ZSE_SYSROOT=$root start "$BATS_TEST_TMPDIR/log" --port 0 --kv-bytes 8MB
  await listens "$URL"
  curl -sf "$URL/api/generate" -d '{"model":"tiny","keep_alive":-1}'
  curl -sf "$URL/api/generate" -d '{"model":"other","keep_alive":-1}'
  [ "$(loaded)" = 2 ]
  printf 'MemTotal: 10000000 kB\nMemAvailable: 250000 kB\n' >"$root/now"
  mv "$root/now" "$root/proc/meminfo"
  all_unloaded() { [ "$(curl -s "$URL/api/ps" | jq ".models | length")" = 0 ]; }       # /health is 503
  await all_unloaded
  stop "$PID"
}

@test "/v1/models has Anthropic's form for clients of Anthropic" {
  curl -s -H 'anthropic-version: 2023-06-01' "$URL/v1/models" >"$T/j"
  jq -e '[.data[].id] | sort == ["bad", "other", "small", "tiny:1m"]' "$T/j"
  jq -e '.has_more == false and .first_id == .data[0].id and .last_id == .data[-1].id' "$T/j"
  jq -e 'all(.data[]; .type == "model" and .display_name == .id and (.created_at | test("^20.*Z$")))' "$T/j"
  curl -s -H 'anthropic-version: 2023-06-01' "$URL/v1/models/bad" | jq -e '.type == "model" and .id == "bad"'
  curl -s "$URL/v1/models" | jq -e '.object == "list"'
}

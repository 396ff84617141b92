# lost-file.bats - a model's file is cut, written to, replaced or removed while a program has it
# mapped.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  zse-convert models/tiny -o "$BATS_FILE_TMPDIR/tiny.zse" -q nl4 --quality fast
  zse-convert models/tiny -o "$BATS_FILE_TMPDIR/other.zse" -q int8 --quality fast
}
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  T=$BATS_TEST_TMPDIR Z=$BATS_TEST_TMPDIR/m.zse
  export ZSE_HOME=$T/home
  cp "$BATS_FILE_TMPDIR/tiny.zse" "$Z"
}
teardown() {
  [ -z "${LEASE:-}" ] || kill "$LEASE" 2>/dev/null || true
  [ -z "${PID:-}" ] || { kill "$PID" 2>/dev/null; wait "$PID" 2>/dev/null; } || true
}

# serve [OPTION...]: a server that does not verify the file when it loads it, because tests damage
# the weights
serve() {
  exec 5< <(exec zse-serve "$Z" --port 0 --verify "${VERIFY:-never}" "$@" 2>"$T/err")
  PID=$!
  read -r -u 5 _ _ URL
}
# ask: the status; the body is in $T/body
ask() {
  curl -s -o "$T/body" -w '%{http_code}' "$URL/v1/chat/completions" \
    -d "{\"model\":\"m\",\"temperature\":0,\"max_tokens\":12,\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}]}"
}
admin() { curl -s -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$@"; }
# until_status CODE: repeat the request until its status is CODE
until_status() { await says "$1" ask || { cat "$T/body" "$T/err"; return 1; }; }
text() { jq -r '.choices[0].message.content' "$T/body"; }

@test "a file cut under a running server: requests fail with a sentence, the model is unloaded, the server and its audit log go on" {
  serve
  until_status 200
  text >"$T/want"
  size=$(stat -c %s "$Z")
  truncate -s 8192 "$Z"
  code=$(ask)
  [ "$code" = 503 ]
  jq -e '.error.code == "model_unavailable" or .error.code == "model_loading"' "$T/body"
  run -1 grep -q "$T" "$T/body"                       # clients must not learn the path
  await grep -q "m: $Z: \(has 8192 bytes now, had $size\|cannot be read any more\)" "$T/err"
  kill -0 "$PID"
  # a new file of this name is loaded at the next request
  cp "$BATS_FILE_TMPDIR/tiny.zse" "$T/new"
  mv "$T/new" "$Z"
  until_status 200
  text | cmp - "$T/want"
  curl -s "$URL/health" | jq -e .status
  kill "$PID"
  wait "$PID"
  PID=
  zse-audit query --status 503 --json | jq -es 'length >= 1'
  zse-audit verify
}

@test "a file cut in the middle of an answer ends that answer, not the server" {
  local client i
  serve
  # repeated if the answer was complete before the file was cut
  for ((i = 0; i < 50; i++)); do
    until_status 200
    : >"$T/stream"
    curl -sN "$URL/v1/chat/completions" -d '{"stream":true,"max_tokens":100000,"ignore_eos":true,"messages":[{"role":"user","content":"Tell me a long story."}]}' >"$T/stream" &
    client=$!
    await grep -q content "$T/stream"
    truncate -s 4096 "$Z"
    wait $client || true                                # the stream ends without its last chunk
    grep -q 'finish_reason":"\(stop\|length\)"' "$T/stream" || break
    cp "$BATS_FILE_TMPDIR/tiny.zse" "$Z"
  done
  [ $i -lt 50 ]
  grep -q model_unavailable "$T/stream"
  kill -0 "$PID"
}

@test "a file that is replaced or removed stays what it was until the server is told" {
  serve
  until_status 200
  text >"$T/want"
  cp "$BATS_FILE_TMPDIR/other.zse" "$T/new"
  mv "$T/new" "$Z"
  [ "$(ask)" = 200 ]
  text | cmp - "$T/want"
  rm "$Z"
  [ "$(ask)" = 200 ]
  text | cmp - "$T/want"
  run -1 grep -q 'm: .*\(cut\|written to\|has .* bytes now\)' "$T/err"
}

@test "a write to the file is noticed" {
  serve
  until_status 200
  printf x | dd of="$Z" bs=1 seek=100000 conv=notrunc status=none
  [ "$(ask)" = 503 ]
  grep -q "$Z: was written to" "$T/err" || until_status 200      # a damaged weight is no reason not to open it again
}

@test "touching a file changes nothing, even in the middle of an answer" {
  local client
  serve
  until_status 200
  text >"$T/want"
  touch -d 2001-01-01 "$Z"
  [ "$(ask)" = 200 ]
  text | cmp - "$T/want"
  curl -sN "$URL/v1/completions" -d '{"prompt":"Once","stream":true,"max_tokens":1500,"ignore_eos":true}' >"$T/stream" &
  client=$!
  await grep -q text "$T/stream"
  touch -d 2002-02-02 "$Z"
  wait $client
  grep -q 'finish_reason":"length"' "$T/stream"
  logged "$Z was touched while in use; its contents have not changed" 2
  touch -d 2003-03-03 "$Z"
  logged "$Z was touched while in use; its contents have not changed" 3     # without a request
  [ "$(ask)" = 200 ]
  run -1 grep -q 'm: unloading' "$T/err"
}

# rewrite: write other bytes into the middle of the weights
rewrite() { printf '%08d' $((RANDOM * 3000 + RANDOM)) | dd of="$Z" bs=1 seek=100000 conv=notrunc status=none; }

# logged TEXT COUNT: wait until the server has written COUNT lines with TEXT
logged() {
  said() { [ "$(grep -c "$1" "$T/err")" -ge "$2" ]; }
  await said "$@" || { cat "$T/err"; return 1; }
}

@test "a file that was written to is loaded again by a request that names no model, and by SIGHUP" {
  local model
  serve
  until_status 200
  for model in '' '"model":"default",'; do
    rewrite
    await curl -sf -o "$T/body" "$URL/v1/completions" -d "{$model\"prompt\":\"a\",\"max_tokens\":1}" || { cat "$T/err"; return 1; }
  done
  logged 'm: ready after' 3
  rewrite
  logged 'm: closed' 3                          # evicted without a request
  kill -HUP "$PID"
  logged 'm: ready after' 4
  [ "$(ask)" = 200 ]
  # SIGHUP right after a write to the file: in the end there is one model of this name
  rewrite
  kill -HUP "$PID"
  until_status 200
  [ "$(curl -s "$URL/v1/models" | jq -c '[.data[].id]')" = '["m"]' ]
  # after an explicit unload SIGHUP does not load it again, although its file has changed
  admin "$URL/api/models/unload" -d '{"model_id":"m"}' | jq -e .success
  [ "$(ask)" = 404 ]
  kill -HUP "$PID"
  [ "$(ask)" = 404 ]
}

@test "a model whose file was written to can be unloaded, and loading it loads the new one" {
  serve
  until_status 200
  rewrite
  [ "$(admin "$URL/api/models/load" -d "{\"model_path\":\"$Z\"}" | jq -r .message)" = loaded ]
  [ "$(ask)" = 200 ]
  rewrite
  admin "$URL/api/models/unload" -d '{"model_id":"m"}' | jq -e .success
  [ "$(ask)" = 404 ]
  [ "$(admin "$URL/api/models/unload" -d '{"model_id":"m"}' | jq -r .error.code)" = model_not_found ]
}

@test "a client that only asks for /health causes a model to be reloaded, and sees it fail" {
  local one
  serve
  until_status 200
  one=$(curl -s "$URL/api/stats/models" | jq '.models[0].memory_bytes')
  kill "$PID"
  wait "$PID"
  serve --max-memory $((one * 3 / 2))
  until_status 200
  cp "$Z" "$T/b.zse"
  [ "$(admin "$URL/api/models/load" -d "{\"model_path\":\"$T/b.zse\"}" | jq -r .message)" = loaded ]
  logged 'm: unloading, because b needs its memory' 1
  admin "$URL/api/models/load" -d "{\"model_path\":\"$Z\"}" | jq -e .success
  logged 'b: unloading, because m needs its memory' 1
  truncate -s 8192 "$Z"
  logged 'm: closed' 2                          # evicted without a request
  lease "$Z"                                    # loading waits
  for _ in 1 2 3; do [ "$(curl -s "$URL/health" | jq -r .status)" = loading ]; done
  run -1 grep -q 'b: requested' "$T/err"
  release
  await eval '[ "$(curl -s "$URL/health" | jq -r .status)" = failed ]' || { cat "$T/err"; return 1; }
  cp "$BATS_FILE_TMPDIR/tiny.zse" "$T/new"
  mv "$T/new" "$Z"
  until_status 200
  [ "$(curl -s "$URL/health" | jq -r .status)" = healthy ]
}

# flip FILE: one bit of the weights
flip() {
  python3 - "$1" <<'P'
import sys
f = open(sys.argv[1], 'r+b')
f.seek(300000)
b = f.read(1)
f.seek(300000)
f.write(bytes([b[0] ^ 64]))
P
}

@test "damaged weights: the answer ends with an error, the next one does not begin; --verify chooses when checksums are compared" {
  export XDG_CACHE_HOME=$T/cache
  q() { run --separate-stderr zse-chat "$@" -p 'What is 2+2?'; }
  q "$Z"
  [ "$status$output" = '02 + 2 = 4' ]
  grep -q ' verified$' "$T"/cache/zse/verified/*
  flip "$Z"
  q "$Z"
  [ "$status" = 1 ]
  [[ "$stderr" == *"$Z: offset "*"group "*"checksum: found "*"; the file is damaged" ]]
  q "$Z"
  [ "$status" = 1 ]
  [ -z "$output" ]
  q "$Z" --verify never
  [ "$status" = 0 ]
  flip "$Z"                                     # as it was
  rm -r "$T/cache"
  q "$Z" --verify first
  [ "$status$output" = '02 + 2 = 4' ]
  flip "$Z"
  run --separate-stderr zse-bench "$Z" -p 4 -n 2 -r 1 -w 0
  [ "$status" = 1 ]
  [ -z "$output" ]
  q "$Z" --verify maybe
  [ "$status" = 2 ]
}

@test "a damaged conversion in the cache is removed and made again" {
  export XDG_CACHE_HOME=$T/cache
  q() { run --separate-stderr zse-chat models/tiny -p 'What is 2+2?' "$@"; }
  q
  flip "$T"/cache/zse/*.zse
  q
  [ "$status" = 1 ]
  [[ "$stderr" == *'this conversion is damaged and was removed; the next run converts again' ]]
  q
  [ "$status$output" = '02 + 2 = 4' ]
  flip "$T"/cache/zse/*.zse
  q --verify first                              # converted again before the answer
  [ "$status$output" = '02 + 2 = 4' ]
  [[ "$stderr" == *"checksum: found"*"converting models/tiny once"* ]]
}

@test "a server notices damaged weights by itself, and reloads the file once it is intact" {
  export XDG_CACHE_HOME=$T/cache
  flip "$Z"
  VERIFY=auto serve
  logged 'm: closed' 1
  grep -q "m: $Z: offset .*checksum: found .*; the file is damaged" "$T/err"
  until_status 503
  run -1 grep -q "$T" "$T/body"
  cp "$BATS_FILE_TMPDIR/tiny.zse" "$T/new"
  mv "$T/new" "$Z"
  until_status 200
}

@test "zse-chat ends with a sentence when its file is cut" {
  printf 'expect >\nready\nrun truncate -s 4096 %s\nsend Hello.\nexpect zse-chat: %s: (has 4096 bytes now|cannot be read any more)\n' "$Z" "$Z" >"$T/script"
  run tests/lib/talk zse-chat "$Z" <"$T/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
}

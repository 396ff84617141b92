# serve.bats - zse-serve over HTTP, with the tiny model: the openai package, curl, and clients that
# misbehave.
bats_require_minimum_version 1.5.0
load ../lib/server

status() { curl -s -o /dev/null -w '%{http_code}' "$@"; }
ask() { curl -s "$URL/v1/chat/completions" -H 'Content-Type: application/json' -d "$1"; }
# refusal MODEL: why it does not answer
refusal() { curl -s "$URL/v1/completions" -d "{\"model\":\"$1\",\"prompt\":\"a\",\"max_tokens\":1}" | jq -r .error.code; }
admin() { curl -s -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$@"; }
QUESTION='{"temperature":0,"messages":[{"role":"user","content":"What is 2+2?"}]}'

@test "the openai package: chat, stream, n, seed, stop, logprobs, completions, embeddings, models, errors and 64 streams at once work" {
  installed openai || skip "no openai package in build/venv (scripts/deps makes it)"
  run build/venv/bin/python tests/serve/openai_client.py "$URL" zse-chat "$T/tiny.zse"
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c '^ok ' <<<"$output")" = 14 ]
}

@test "a keyword of a function that is not strict and cannot be enforced is named in a header" {
  local f='{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string","pattern":"(a)\\1"}}}}'
  local body='{"max_tokens":1,"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":'$f'}]}'
  curl -s -o /dev/null -D "$T/relaxed" "$URL/v1/chat/completions" -d "$body"
  grep -q "^X-Not-Enforced: function 'f': /properties/a/pattern" "$T/relaxed"
  [ "$(status "$URL/v1/chat/completions" -d "${body/\"name\"/\"strict\":true,\"name\"}")" = 400 ]
  curl -s -o /dev/null -D "$T/enforced" "$URL/v1/chat/completions" -d "${body/\\\\1/}"
  run ! grep -q X-Not-Enforced "$T/enforced"
}

@test "the openai and anthropic packages: schemas, parse helpers, tools, responses and messages work, whole and streamed" {
  installed openai anthropic jsonschema || skip "no openai, anthropic and jsonschema packages in build/venv (scripts/deps makes it)"
  run build/venv/bin/python tests/serve/structured_clients.py "$URL"
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c '^ok ' <<<"$output")" = 21 ]
}

@test "HTTP and WebSocket, byte by byte" {
  run python3 -B tests/serve/protocol.py "${URL##*:}"
  echo "$output"
  [ "$status" = 0 ]
  [ "$(grep -c '^ok ' <<<"$output")" = 19 ]
}

@test "curl: an answer, a stream, an error, the page, figures" {
  [ "$(ask "$QUESTION" | jq -r '.choices[0].message.content')" = "2 + 2 = 4" ]
  run curl -sN "$URL/v1/chat/completions" -d "${QUESTION/\{/\{\"stream\":true,}"
  [ "$(sed -n 's/^data: {/{/p' <<<"$output" | jq -rj '.choices[0].delta.content // empty')" = "2 + 2 = 4" ]
  [ "${lines[-1]}" = "data: [DONE]" ]
  [ "$(ask '{"messages":' | jq -r .error.code)" = invalid_json ]
  run curl -s -H 'Accept: text/html,*/*' "$URL/"
  [[ $output == '<!doctype html>'* ]]
  [ "$(curl -s "$URL/" | jq -r '.name, (.metrics | keys | join(" "))')" = "zse-serve
active_requests throughput_tok_s total_requests total_tokens" ]
  run curl -s "$URL/metrics"
  [[ $output == *'zse_http_requests_total{method="POST",route="/v1/chat/completions",code="200"}'* ]]
  grep -Eq '^zse_time_to_first_token_seconds_bucket\{model="tiny",le="\+Inf"\} [1-9]' <<<"$output"
  grep -Eq '^zse_generated_tokens_total\{model="tiny"\} [1-9]' <<<"$output"
  if grep -vE '^(#.*|[a-z_:0-9]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [-+0-9.e]+)$' <<<"$output"; then return 1; fi
}

@test "tokens and templates are those of zse-info" {
  local text='Hello there, <|im_end|> é'
  run curl -s "$URL/tokenize" -d "$(jq -nc --arg t "$text" '{content: $t}')"
  [ "$(jq -c .tokens <<<"$output")" = "$(printf %s "$text" | zse-info tokenize "$T/tiny.zse" | tr -d ' ')" ] || { echo "$output"; return 1; }
  curl -si "$URL/detokenize" -d "$output" | grep -q '^X-Ignored-Fields: count'
  [ "$(curl -s "$URL/detokenize" -d "$(jq -c '{tokens}' <<<"$output")" | jq -r .content)" = "$text" ]
  [ "$(curl -s "$URL/tokenize" -d '{"content":"Hi there","with_pieces":true}' | jq -rj '.tokens[].piece')" = "Hi there" ]
  [ "$(curl -s "$URL/apply-template" -d '{"messages":[{"role":"user","content":"Hi"}]}' | jq .prompt)" = \
    "$(echo '{"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":true}' | zse-info render "$T/tiny.zse" | jq .text)" ]
}

# bats test_tags=plain
@test "openapi.json lists every route, and each of its routes exists" {
  curl -s "$URL/openapi.json" >"$BATS_TEST_TMPDIR/api"
  [ "$(jq -r .openapi "$BATS_TEST_TMPDIR/api")" = 3.1.0 ]
  local route=$BATS_TEST_TMPDIR/route n wrong
  # one curl sends all requests
  jq -r --arg url "$URL" '[.paths | to_entries[] | .key as $p | .value | keys[] | {method: ascii_upcase, path: $p}]
    | map("url = \($url)\(.path | gsub("{message_id}"; "1") | gsub("{id}"; "tiny"))\nrequest = \(.method)\ndata = {}\nwrite-out = \" %{http_code} \(.method) \(.path)\\n\"")
    | join("\nnext\n")' "$BATS_TEST_TMPDIR/api" >"$route.curl"
  curl -s -K "$route.curl" >"$route.answers"
  n=$(grep -c '^url = ' "$route.curl")
  [ "$n" -ge 25 ]
  [ "$(grep -cE ' [1-5][0-9]{2} [A-Z]+ /' "$route.answers")" = "$n" ] || { cat "$route.answers"; return 1; }
  wrong=$(grep -E 'no such path| 405 [A-Z]+ /| 000 [A-Z]+ /' "$route.answers" || true)
  [ -z "$wrong" ] || { echo "$wrong"; return 1; }
  # the man page has every path, and every field of the body of chat
  sed -n '/^\.Sh THE API/,/^\.Ss Fields/p' man/zse-serve.1 | grep '^\.It' | \
    sed 's| Ns Ar ID|{id}|; s|{id} Ns /|{id}/|; s| Ns Ar N$|{message_id}|; s|/keys/ Ns Ar NAME Ns /|/keys/{id}/|' | grep -oE '/[][a-z0-9/_{}-]*' | \
    sed 's|/models/$|/models/{id}|; s|/registry/$|/registry/{id}|; s|/check/$|/check/{id}|; s|/files/$|/files/{id}|; s|/keys/$|/keys/{id}|; s|/search/$|/search/{id}|; s|^\(/api/rag/.*\)/$|\1/{id}|; s|^/api/analytics/requests.*|/api/analytics/requests|' \
    >"$route.man"
  [ -s "$route.man" ]
  wrong=$(jq -r '.paths | keys[]' "$BATS_TEST_TMPDIR/api" | grep -vxFf - "$route.man") && { echo "the man page has $wrong"; return 1; }
  [ "$(jq '.paths["/v1/chat/completions"].post.requestBody.content["application/json"].schema.properties.temperature.maximum == 100' "$BATS_TEST_TMPDIR/api")" = true ]
}

@test "keys: required once there is one, scopes, limits, models, deleted; without keys the server listens on this machine's addresses only" {
  local home=$BATS_TEST_TMPDIR/home key chat old made size line log=$BATS_TEST_TMPDIR/log URL PID
  export ZSE_HOME=$home
  run ! zse-serve --host 0.0.0.0 --port 0
  [[ "$output" == *"there are no keys"* ]]
  start "$log" "$T/tiny.zse" --port 0 --anonymous-limit 1000
  await listens "$URL"
  [ "$(status "$URL/v1/models")" = 200 ]
  key=$(zse-apikey create app --rate-limit 5 --model 'tiny*' 2>/dev/null)
  chat=$(zse-apikey create other --model 'none-*' 2>/dev/null)
  await says 401 status "$URL/v1/models"
  curl -s -D "$BATS_TEST_TMPDIR/head" -o /dev/null "$URL/v1/models"
  grep -qi '^WWW-Authenticate: Bearer' "$BATS_TEST_TMPDIR/head"
  [ "$(status -H 'Authorization: Bearer zse-wrong' "$URL/v1/models")" = 401 ]
  [ "$(status "$URL/health")" = 200 ]
  # the refusal does not wait for a large body
  for size in "Content-Length: 1000000" $'Transfer-Encoding: chunked\r\n\r\nf4240'; do
    exec 6<>"/dev/tcp/127.0.0.1/${URL##*:}"
    printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n' "$size" >&6
    read -r line <&6
    exec 6>&-
    [[ "$line" == "HTTP/1.1 401 "* ]]
  done
  [ "$(status -H "X-API-Key: $chat" "$URL/v1/chat/completions" -d "$QUESTION")" = 403 ]
  [ "$(status -H "X-API-Key: $chat" "$URL/api/keys")" = 403 ]
  [ "$(status -H "X-API-Key: $chat" "$URL/metrics")" = 403 ]
  [ "$(status "$URL/v1/models?api_key=$key")" = 400 ]
  # zse-apikey sees the same counts, and zse-apikey reset clears them
  for _ in 1 2 3; do [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = 200 ]; done
  [ "$(curl -s -H "Authorization: Bearer $key" "$URL/v1/chat/completions" -d "$QUESTION" | jq -r '.choices[0].message.content')" = "2 + 2 = 4" ]
  [ "$(zse-apikey status app --json | jq -c '[.current, .remaining, .tokens_minute > 10]')" = '[4,1,true]' ]
  curl -s -D "$BATS_TEST_TMPDIR/head" -o /dev/null -H "X-API-Key: $key" "$URL/v1/models"
  grep -qi '^X-RateLimit-Remaining: 0' "$BATS_TEST_TMPDIR/head"
  run curl -s -D "$BATS_TEST_TMPDIR/head" -H "X-API-Key: $key" "$URL/v1/models"
  [[ "$(jq -r .detail <<<"$output")" =~ ^Rate\ limit\ exceeded\.\ Limit:\ 5/min,\ Current:\ 5\.\ Try\ again\ in\ [0-9]+s\.$ ]]
  grep -qi '^Retry-After: [0-9]' "$BATS_TEST_TMPDIR/head"
  grep -qi '^X-RateLimit-Limit: 5' "$BATS_TEST_TMPDIR/head"
  zse-apikey reset app
  [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = 200 ]
  # over HTTP, with the administrator's token
  [ "$(admin "$URL/api/keys" -d '{"name":"made","scopes":"chat,admin"}' | jq -r .key | cut -c1-4)" = zse- ]
  [ "$(admin "$URL/api/keys" -d '{"name":"made"}' | jq -r .error.code)" = key_not_made ]
  old=$(admin "$URL/api/keys" -d '{"name":"old","expires_at":1700000000}' | jq -r .key)
  [ "$(admin "$URL/api/keys" | jq '.keys[] | select(.name == "old") | .expires_at')" = 1700000000 ]
  [ "$(curl -s -H "X-API-Key: $old" "$URL/v1/models" | jq -r .detail)" = "Invalid API key: it has expired" ]
  [ "$(admin -X DELETE "$URL/api/keys/old" | jq .success)" = true ]
  # a key is disabled, enabled and gets a new secret: each change takes effect at once
  old=$(admin "$URL/api/keys" -d '{"name":"new.key-1","scopes":"chat"}' | jq -r .key)
  [ "$(status -H "X-API-Key: $old" "$URL/v1/models")" = 200 ]
  admin -X PATCH "$URL/api/keys/new.key-1" -d '{"enabled":false}' | jq -e '. == {"success":true,"name":"new.key-1","enabled":false}'
  [ "$(status -H "X-API-Key: $old" "$URL/v1/models")" = 401 ]
  admin -X PATCH "$URL/api/keys/new.key-1" -d '{"enabled":true}' >"$BATS_TEST_TMPDIR/out"
  await says 200 status -H "X-API-Key: $old" "$URL/v1/models"
  made=$(admin -X POST "$URL/api/keys/new.key-1/rotate" | jq -r .key)
  [ "$(status -H "X-API-Key: $old" "$URL/v1/models")" = 401 ]
  [ "$(status -H "X-API-Key: $made" "$URL/v1/models")" = 200 ]
  [ "$(status -X POST -H "X-API-Key: $made" "$URL/api/keys/new.key-1/rotate")" = 403 ]
  [ "$(status -X PATCH -H "X-API-Key: $made" "$URL/api/keys/new.key-1" -d '{"enabled":false}')" = 403 ]
  [ "$(admin -X PATCH "$URL/api/keys/nobody" -d '{"enabled":false}' | jq -r .error.code)" = no_such_key ]
  [ "$(admin -X POST "$URL/api/keys/nobody/rotate" | jq -r .error.code)" = no_such_key ]
  [ "$(admin -X PATCH "$URL/api/keys/new.key-1" -d '{}' | jq -r .error.code)" = missing ]
  [ "$(admin -X DELETE "$URL/api/keys/new.key-1" | jq .success)" = true ]
  [ "$(status -H "X-API-Key: $old" "$URL/v1/models")" = 401 ]
  [ "$(admin "$URL/api/keys" | jq -c '[.enabled, (.keys | length), (.keys[] | select(.name == "app") | .request_count)]')" = '[true,3,6]' ]
  [ "$(admin -X DELETE "$URL/api/keys/made" | jq .success)" = true ]
  [ "$(status -X DELETE "$URL/api/keys/app" -H "X-API-Key: $key")" = 403 ]
  zse-apikey delete app
  await says 401 status -H "X-API-Key: $key" "$URL/v1/models"
  stop "$PID"
  # every request has a line in the log, and no line contains a key
  [ "$(zse-audit verify --json | jq .intact)" = true ]
  run ! grep -rqF -e "${key#zse-}" "$home" "$log.err"
  [ "$(zse-audit query -s 429 -k app --json | jq -r .path | sort -u)" = /v1/models ]
  [ "$(zse-audit query -p /v1/chat -s 200 --json | jq -c '[.api_key_name, .model_id, .total_tokens > 10, .latency_ms > 0]')" = '["app","tiny",true,true]' ]
}

@test "keys: their file locked by another program, replaced by rubbish, gone: known keys stay valid, changes do not block the loop" {
  local home=$BATS_TEST_TMPDIR/home log=$BATS_TEST_TMPDIR/log URL PID key made late
  export ZSE_HOME=$home
  key=$(zse-apikey create app 2>/dev/null)
  start "$log" "$T/tiny.zse" --port 0
  await listens "$URL"
  [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = 200 ]
  # this program locks the file of keys twice: first until it gets a line, then again as soon as
  # there is a second key
  exec 7> >(exec python3 -c 'import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=100)
c.execute("BEGIN EXCLUSIVE")
open(sys.argv[2], "w").close()
sys.stdin.readline()
c.execute("ROLLBACK")
while c.execute("SELECT count(*) FROM keys").fetchone()[0] == 1: pass
c.execute("BEGIN EXCLUSIVE")
open(sys.argv[2] + " again", "w").close()
sys.stdin.read()' "$home/keys.db" "$BATS_TEST_TMPDIR/locked" 3>&-)
  await [ -e "$BATS_TEST_TMPDIR/locked" ]
  admin "$URL/api/keys" -d '{"name":"late"}' >"$BATS_TEST_TMPDIR/made" & made=$!
  for _ in 1 2 3 4 5; do [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = 200 ]; done
  [ "$(status -H "X-API-Key: zse-wrong" "$URL/v1/models")" = 401 ]
  # six requests were answered while the change of the keys waits for the lock; it gives up after
  # five seconds, which may be over on a slow machine
  [ ! -s "$BATS_TEST_TMPDIR/made" ] || grep -q 'another program holds it locked' "$BATS_TEST_TMPDIR/made"
  echo >&7
  wait $made
  if ! jq -e .success "$BATS_TEST_TMPDIR/made"; then
    grep -q 'another program holds it locked' "$BATS_TEST_TMPDIR/made"
    admin "$URL/api/keys" -d '{"name":"late"}' >"$BATS_TEST_TMPDIR/made"
  fi
  late=$(jq -r .key "$BATS_TEST_TMPDIR/made")
  await [ -e "$BATS_TEST_TMPDIR/locked again" ]
  # a key that was shown to the client is valid
  [ "$(status -H "X-API-Key: $late" "$URL/v1/models")" = 200 ]
  exec 7>&-
  mv "$home/keys.db" "$home/aside"
  [ "$(admin "$URL/api/keys" -d '{"name":"lost"}' | jq -r .error.message)" = "keys.db: No such file or directory" ]
  [ ! -e "$home/keys.db" ]                  # an empty file would remove all keys
  [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = 200 ]
  [ "$(status "$URL/v1/models")" = 401 ]
  (umask 077 && yes rubbish | head -n 1000 >"$home/keys.db")
  notices() { [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = 200 ] && grep -q 'keys.db: is damaged .*; the keys read before stay valid' "$log.err"; }
  await notices
  [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = 200 ]
  [ "$(status "$URL/v1/models")" = 401 ]
  mv "$home/aside" "$home/keys.db"
  zse-apikey delete app
  await says 401 status -H "X-API-Key: $key" "$URL/v1/models"
  stop "$PID"
}

@test "keys: after sixty wrong keys from an address a right guess is refused like a wrong one, and keys used there before stay valid" {
  local log=$BATS_TEST_TMPDIR/log URL PID known fresh
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  known=$(zse-apikey create known 2>/dev/null)
  fresh=$(zse-apikey create fresh 2>/dev/null)
  start "$log" "$T/tiny.zse" --port 0
  await listens "$URL"
  [ "$(status -H "X-API-Key: $known" "$URL/v1/models")" = 200 ]
  [ "$(curl -s -o /dev/null -w '%{http_code}\n' -H 'X-API-Key: zse-wrong' "$URL/v1/models?[1-61]" | sort | uniq -c | xargs)" = "60 401 1 429" ]
  [ "$(status -H "X-API-Key: $fresh" "$URL/v1/models")" = 429 ]
  [ "$(status -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$URL/api/stats")" = 429 ]
  [ "$(status -H "X-API-Key: $known" "$URL/v1/models")" = 200 ]
  stop "$PID"
}

@test "limits by address: only the address that the proxy in front adds counts, with or without a port" {
  local URL PID from
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  start "$BATS_TEST_TMPDIR/log" --port 0 --anonymous-limit 3 --trust-proxy --no-auth
  for from in 10.0.0.1:1001 10.0.0.1 '10.9.9.9, 10.0.0.1:1002'; do [ "$(status -H "X-Forwarded-For: $from" "$URL/v1/models")" = 200 ]; done
  [ "$(status -H 'X-Forwarded-For: 10.0.0.1:1003' "$URL/v1/models")" = 429 ]
  for from in 2001:db8::1 '[2001:db8::1]:7' '[2001:db8::2]'; do [ "$(status -H "X-Forwarded-For: $from" "$URL/v1/models")" = 200 ]; done
  [ "$(status -H 'X-Forwarded-For: [2001:db8::3]:9' "$URL/v1/models")" = 429 ]
  stop "$PID"                     # writes what is left of the log
  [ "$(zse-audit query -s 429 --json | jq -r .client_ip | sort | paste -sd ' ')" = '10.0.0.1 2001:db8::3' ]
}

# bats test_tags=plain
@test "keys: a key with one request does not wait for all requests of another key" {
  local log=$BATS_TEST_TMPDIR/log URL PID many one
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  many=$(zse-apikey create many 2>/dev/null)
  one=$(zse-apikey create one 2>/dev/null)
  start "$log" "$T/tiny.zse" --port 0 --max-batch-size 1
  await listens "$URL"
  waiting() { curl -s -H "X-API-Key: $one" "$URL/api/stats/models" | jq '.models[0].waiting'; }
  zse-apikey delete one && one=$(zse-apikey create one --scope chat,models 2>/dev/null)
  ZSE_API_KEY=$many zse-bench serve "$URL" --api tokens --model tiny -w 0 -p 8 \
    -n 1500 -b 10 --requests 10 --ignore-eos >"$log.bench" 3>&- &
  local bench=$!
  until [ "$(waiting)" -ge 6 ]; do kill -0 $bench; done
  [ "$(curl -s -H "X-API-Key: $one" "$URL/api/batching" | jq .engines.tiny.tenants)" = 1 ]
  [ "$(curl -s -H "X-API-Key: $one" "$URL/v1/completions" -d '{"prompt":"a","max_tokens":2}' | jq -r .usage.completion_tokens)" -gt 0 ]
  wait $bench
  grep -q '10 requests, 10 at once, 0 failed' "$log.bench"
  stop "$PID"
  # some requests of the first key ended after that of the other key, although they had come before;
  # the log has requests in the order in which they ended, the newest first
  run bash -o pipefail -c 'zse-audit query -p /v1/completions -l 100 --json | jq -r .api_key_name'
  [ "${#lines[@]}" = 11 ] && [ "${lines[0]}" = many ] && [ "${lines[1]}" = many ] || { echo "$output"; return 1; }
}

@test "SIGTERM while a model is still loading: open requests have their lines in the log" {
  local log=$BATS_TEST_TMPDIR/log URL PID
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  cp "$T/tiny.zse" "$BATS_TEST_TMPDIR/slow.zse"
  cp "$T/tiny.zse" "$BATS_TEST_TMPDIR/next.zse"
  mkfifo "$BATS_TEST_TMPDIR/pipe"
  lease "$BATS_TEST_TMPDIR/slow.zse"
  start "$log" --port 0 --drain 0
  run admin "$URL/api/models/load" -d "{\"model_path\":\"$BATS_TEST_TMPDIR/pipe\"}"
  [[ "$output" == *"pipe' is no file or folder"* ]]
  admin "$URL/api/models/load" -d "{\"model_path\":\"$BATS_TEST_TMPDIR/slow.zse\"}" 3>&- &
  await says model_loading refusal slow
  admin "$URL/api/models/load" -d "{\"model_path\":\"$BATS_TEST_TMPDIR/next.zse\"}" 3>&- &
  await says model_loading refusal next
  stop "$PID"
  release
  [ "$(zse-audit query -p /api/models/load --json | jq -c .status_code | paste -sd " ")" = "499 499 400" ] || { zse-audit query --json; return 1; }
  [ "$(zse-audit verify --json | jq .intact)" = true ]
}

@test "responses and messages are admitted, counted and logged like chat; a broken schema is the client's fault" {
  local home=$BATS_TEST_TMPDIR/home key other one log=$BATS_TEST_TMPDIR/log URL PID body
  export ZSE_HOME=$home
  key=$(zse-apikey create app --rate-limit 6 2>/dev/null)
  other=$(zse-apikey create other --scope embeddings 2>/dev/null)
  start "$log" "$T/tiny.zse" --port 0
  await listens "$URL"
  body='{"max_tokens":20,"temperature":0,"messages":[{"role":"user","content":"What is 2+2?"}]}'
  run curl -s -w ' %{http_code}' "$URL/v1/messages" -d "$body"
  [[ $output == *'"type":"error"'*'"type":"authentication_error"'*' 401' ]]
  [ "$(status -H "X-API-Key: $other" "$URL/v1/messages" -d "$body")" = 403 ]
  [ "$(curl -s -H "X-API-Key: $key" -H 'anthropic-version: 2023-06-01' "$URL/v1/messages" -d "$body" | jq -c '[.content[0].text, .stop_reason]')" = '["2 + 2 = 4","end_turn"]' ]
  [ "$(curl -s -H "X-API-Key: $key" "$URL/v1/messages/count_tokens" -d "${body/\"max_tokens\":20,\"temperature\":0,/}" | jq .input_tokens)" = 15 ]
  [ "$(curl -s -H "Authorization: Bearer $key" "$URL/v1/responses" -d '{"input":"What is 2+2?","temperature":0}' | jq -r '.output[0].content[0].text')" = "2 + 2 = 4" ]
  curl -sN -H "X-API-Key: $key" "$URL/v1/messages" -d "${body/\{/\{\"stream\":true,}" | grep -q '^event: message_stop'
  run curl -s -w ' %{http_code}' -H "X-API-Key: $key" "$URL/v1/chat/completions" -d '{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"properties":{"a":{"pattern":"("}}}}}}'
  [[ $output == *'/properties/a/pattern'*'"param":"response_format"'*' 400' ]] || { echo "$output"; return 1; }
  [ "$(status -H "X-API-Key: $key" "$URL/v1/responses" -d '{"input":"x","max_output_tokens":1}')" = 200 ]
  [ "$(status -H "X-API-Key: $key" "$URL/v1/responses" -d '{"input":"x"}')" = 429 ]
  await says true eval "zse-audit query -p /v1/responses --json | jq -s 'any(.completion_tokens == 1)'"
  one=$(zse-audit query -p /v1/responses --json | jq -s 'map(select(.completion_tokens == 1))[0].total_tokens')
  [ "$(zse-apikey status app --json | jq -c '[.current, .tokens_minute]')" = "[6,$((3 * 23 + one))]" ]
  stop "$PID"
  [ "$(zse-audit query -p /v1/messages -s 200 --json | jq -sc 'map(select(.path == "/v1/messages")) | [length, (.[] | .total_tokens)]')" = '[2,23,23]' ]
}

@test "the audit log has streams and clients that leave; a folder that cannot be written is reported" {
  local log=$BATS_TEST_TMPDIR/log URL PID
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  ulimit -S -c "$(ulimit -H -c)"
  # eleven files of this size hold some 80 lines
  start "$log" "$T/tiny.zse" --port 0 --audit-size 4kB
  await listens "$URL"
  curl -sN "$URL/v1/chat/completions" -d "${QUESTION/\{/\{\"stream\":true,}" >/dev/null
  # the client leaves at the first piece; repeated while answers were complete before it could leave
  left() {
    curl -sN "$URL/v1/completions" -d '{"prompt":"a","max_tokens":2000,"ignore_eos":true,"stream":true}' | head -c 1 >/dev/null || true
    n=$((n + 1))
    await says $n eval "zse-audit query -p /v1/completions --json | jq -s length"
    says /v1/completions eval "zse-audit query -s 499 --json | jq -r .path"
  }
  local n=0
  await left
  await says '[200,true,true]' eval "zse-audit query -p /v1/chat --json | jq -c '[.status_code, .completion_tokens > 3, .total_tokens > 10]'"
  # an error in a body is reported to the client, but not logged: it may quote a prompt
  curl -s "$URL/v1/completions" -d '{"prompt": secret}' | jq -r .detail | grep -q "near 'secret'"
  await says invalid_json eval "zse-audit query -s 400 --json | jq -r .error_message"
  for _ in {1..20}; do status "$URL/v1/models" >/dev/null; done
  # a core file would contain keys and prompts
  [ "$(awk '/^Max core/ { print $5 }' "/proc/$PID/limits")" = 0 ]
  stop "$PID"
  zse-audit stats
  # refused while the model was loading
  n=$((n + $(zse-audit query -p /health --json | jq -s length)))
  [ "$(zse-audit stats --json | jq -c '[.total_entries, .rotated_files > 1, .skipped_lines]')" = "[$((22 + n)),true,0]" ]
  [ "$(zse-audit verify --json | jq .intact)" = true ]
  rm -r "$ZSE_HOME/audit" && touch "$ZSE_HOME/audit"
  start "$log" "$T/tiny.zse" --port 0
  await listens "$URL"
  [ "$(status "$URL/v1/models")" = 200 ]
  lost() { curl -s "$URL/metrics" | grep -q '^zse_audit_errors_total [1-9]'; }
  await lost
  await grep -q 'the audit log lacks lines from now on: .*audit.lock: Not a directory' "$log.err"
  stop "$PID"
}

@test "--log-requests: a line for each request, also with --quiet, without control characters and keys of the client" {
  local log=$BATS_TEST_TMPDIR/log URL PID
  start "$log" "$T/tiny.zse" --port 0 --no-audit --quiet --log-requests
  await listens "$URL"
  curl -s "$URL/v1/completions" -d '{"prompt":"a","max_tokens":3,"ignore_eos":true}' >/dev/null
  curl -s "$URL/v1/%1b%5b31mred" >/dev/null
  curl -s "$URL/v1/a:%20200,/zse-$(printf '%043d' 0)" >/dev/null
  curl -s "$URL/v1/completions" -d '{"prompt":7}' >/dev/null
  stop "$PID"
  diff <(grep -v ': 503, ' "$log.err" | sed 's/ [0-9.]* ms/ MS/') - <<'END'
zse-serve: 127.0.0.1 POST /v1/completions: 200, MS, tiny, 1 + 3 tokens
zse-serve: 127.0.0.1 GET /v1/?[31mred: 404, MS, /v1/?[31mred: no such path; /openapi.json lists them
zse-serve: 127.0.0.1 GET /v1/a:?200,/zse-...: 404, MS, /v1/a: 200,/zse-...: no such path; /openapi.json lists them
zse-serve: 127.0.0.1 POST /v1/completions: 400, MS, tiny, 0 + 0 tokens, invalid_type: prompt
END
}

@test "administration needs the token; models are loaded, named, unloaded; batching changes while running" {
  [ "$(stat -c %a "$ZSE_HOME/admin.token")" = 600 ]
  [ "$(status "$URL/api/models/load" -d '{"model_path":"models/tiny"}')" = 401 ]
  [ "$(status "$URL/api/models/load" -H 'Authorization: Bearer wrong' -d '{"model_path":"models/tiny"}')" = 401 ]
  [ "$(admin "$URL/api/models/load" -d '{"model_path":"/no/such.zse"}' | jq -r .error.code)" = load_failed ]
  [ "$(admin "$URL/api/models/load" -d "{\"model_path\":\"$T/tiny.zse\"}" | jq -c '[.success, .load_time_sec == 0]')" = '[true,true]' ]
  [ "$(admin "$URL/api/models/load" -d "{\"model_path\":\"$T/tiny.zse\",\"model_name\":\"second\"}" | jq -r .model_id)" = second ]
  [ "$(curl -s "$URL/v1/models" | jq -r '[.data[].id] | join(" ")')" = "tiny second" ]
  [ "$(ask "${QUESTION/\{/\{\"model\":\"second\",}" | jq -r .model)" = second ]
  [ "$(ask "$QUESTION" | jq -r .model)" = tiny ]
  # a stream that runs when its model is unloaded continues to its end; new requests do not find the
  # model
  curl -sN "$URL/v1/completions" -d '{"model":"second","prompt":"Once","max_tokens":1200,"ignore_eos":true,"temperature":0,"stream":true}' >"$BATS_TEST_TMPDIR/stream" &
  local stream=$!
  await test -s "$BATS_TEST_TMPDIR/stream"
  [ "$(admin "$URL/api/models/unload" -d '{"model_id":"second"}' | jq -r .success)" = true ]
  [ "$(status "$URL/v1/models/second")" = 404 ]
  wait "$stream"
  [ "$(tail -n 2 "$BATS_TEST_TMPDIR/stream" | head -n 1)" = "data: [DONE]" ]
  [ "$(admin "$URL/api/models/unload" -d '{"model_id":"second"}' | jq -r .error.code)" = model_not_found ]
  [ "$(admin "$URL/api/batching" -d '{"max_batch_size":2}' | jq .config.max_batch_size)" = 2 ]
  [ "$(admin "$URL/api/batching" -d '{"max_batch_size":33}' | jq -r .error.code)" = out_of_range ]
  [ "$(admin "$URL/api/batching" -d '{"chunk":64}' | jq .config.chunk)" = 64 ]
  admin "$URL/api/batching" -d '{"chunk":0}' | jq -e '.config | .max_tokens_per_batch >= 32 and del(.max_tokens_per_batch) == {"max_batch_size":2,"chunk":0,"max_queue":1000,"batch_timeout_ms":0,"enable_cuda_graphs":false}'
  local most
  most=$(curl -s "$URL/api/batching" | jq .engines.tiny.config.max_tokens_per_batch)
  [ "$(admin "$URL/api/batching" -d '{"max_tokens_per_batch":33}' | jq .config.max_tokens_per_batch)" = 33 ]
  [ "$(admin "$URL/api/batching" -d "{\"max_tokens_per_batch\":$((most + 1))}" | jq -r .error.code)" = out_of_range ]
  [ "$(ask "$QUESTION" | jq -r '.choices[0].message.content')" = "2 + 2 = 4" ]
  [ "$(admin "$URL/api/batching" -d '{"max_tokens_per_batch":0}' | jq .config.max_tokens_per_batch)" = "$most" ]
  [ "$(admin -X POST "$URL/api/batching/disable" | jq .enabled)" = false ]
  [ "$(ask "$QUESTION" | jq -r '.choices[0].message.content')" = "2 + 2 = 4" ]
  [ "$(curl -s "$URL/api/batching" | jq -c '[.enabled, .engines.tiny.config.max_batch_size]')" = '[false,1]' ]
  # models that are loaded afterwards begin with the same setting
  third() {
    admin "$URL/api/models/load" -d "{\"model_path\":\"$T/tiny.zse\",\"model_name\":\"$1\"}" | jq -e .success
    curl -s "$URL/api/batching" | jq -c --arg id "$1" '.engines[$id] | [.enabled, .config.max_batch_size == 1]'
    admin "$URL/api/models/unload" -d "{\"model_id\":\"$1\"}" | jq -e .success
  }
  [ "$(third third | xargs)" = "true [false,true] true" ]
  [ "$(admin -X POST "$URL/api/batching/enable" | jq .enabled)" = true ]
  [ "$(third fourth | xargs)" = "true [true,false] true" ]
  [ "$(admin "$URL/api/batching" -d '{"max_batch_size":32}' | jq .success)" = true ]
}

@test "analytics count the requests that ran" {
  local before after
  before=$(curl -s "$URL/api/analytics" | jq '[.total_requests, .failed_requests, .total_tokens_generated]')
  ask "$QUESTION" >/dev/null
  ask '{"messages":[]}' >/dev/null
  after=$(curl -s "$URL/api/analytics" | jq '[.total_requests, .failed_requests, .total_tokens_generated]')
  [ "$(jq -nc --argjson a "$after" --argjson b "$before" '[range(3)] | map($a[.] - $b[.])')" = '[2,1,8]' ]
  [ "$(curl -s "$URL/api/analytics/requests?limit=2" | jq -c '[.requests[] | [.endpoint, .status, .total_tokens]]')" = \
    '[["/v1/chat/completions",400,0],["/v1/chat/completions",200,23]]' ]
  [ "$(status "$URL/api/analytics/requests?limit=0")" = 400 ]
  [ "$(curl -s "$URL/api/analytics/timeseries" | jq -c '[.timestamps, .requests_per_minute, .tokens_per_second, .memory_usage_gb, .latency_ms] | map(length)')" = '[60,60,60,60,60]' ]
  [ "$(curl -s "$URL/api/stats/models" | jq -r '.models[0].model_id')" = tiny ]
}

# bats test_tags=plain
@test "the server listens before its model is loaded, and reports loading" {
  local so=$B/tests/lib/stuck.so d=$BATS_TEST_TMPDIR
  [ -e "$so" ] || skip "$so is not there (make unit)"
  touch "$d/step"                               # opening a model waits
  ZSE_STUCK=$d LD_PRELOAD=$so start "$d/log" --port 0 "$T/tiny.zse"
  [ "$(curl -s -w ' %{http_code}' "$URL/health")" = '{"status":"loading"} 503' ]
  rm "$d/step"
  await listens "$URL"
  stop "$PID"
}

@test "a server without a model is healthy; one whose model cannot be opened fails before it listens" {
  start "$BATS_TEST_TMPDIR/none" --port 0
  [ "$(curl -s "$URL/health" | jq -c '[.status, .models_loaded]')" = '["healthy",0]' ]
  [ "$(curl -s "$URL/v1/models" | jq -c .data)" = '[]' ]
  [ "$(ask "$QUESTION" | jq -r .error.code)" = model_not_found ]
  stop "$PID"
  mkfifo "$BATS_TEST_TMPDIR/pipe"
  run --separate-stderr zse-serve --port 0 "$BATS_TEST_TMPDIR/pipe"
  [ "$status" = 1 ]
  [ -z "$output" ]
  [ "$stderr" = "zse-serve: $BATS_TEST_TMPDIR/pipe: not a regular file" ]
  run --separate-stderr zse-serve --port 0 /no/such.zse
  [ "$status" = 1 ]
  [ -z "$output" ]
  [ "$stderr" = "zse-serve: /no/such.zse: No such file or directory" ]
  run --separate-stderr zse-serve --port 0 nosuch
  [ "$status" = 1 ]
  [ -z "$output" ]
  [ "$stderr" = "zse-serve: nosuch: No such file or directory, and not among the models here (zse-info models local); those of the hub are named org/name" ]
  run --separate-stderr zse-serve --port 0 --model-dir /no/such
  [ "$status" = 1 ]
  [ -z "$output" ]
  [ "$stderr" = "zse-serve: --model-dir /no/such: No such file or directory" ]
  run --separate-stderr zse-serve --port 0 README.md
  [ "$status" = 1 ]
  [ -z "$output" ]
  [ "${#stderr_lines[@]}" = 1 ]
  [[ $stderr == "zse-serve: README.md: neither "* ]]
  local m=$BATS_TEST_TMPDIR/m.zse n said
  for n in 3 64 500 $(($(stat -c %s "$T/tiny.zse") - 1)); do
    head -c "$n" "$T/tiny.zse" >"$m"
    run -1 --separate-stderr zse-serve --port 0 "$m"
    [ -z "$output" ] && [ "${#stderr_lines[@]}" = 1 ] && [[ $stderr == "zse-serve: $m: "* ]] || { echo "$n: $output $stderr"; return 1; }
  done
  for n in 4 8 16 60; do                        # the version, the size, the section table, the checksum
    cp "$T/tiny.zse" "$m"
    printf '\xfe' | dd of="$m" bs=1 seek="$n" conv=notrunc status=none
    said=$(zse-info "$m" 2>&1) && return 1
    run -1 --separate-stderr zse-serve --port 0 "$T/tiny.zse" "$m"
    [ -z "$output" ] && [ "$stderr" = "zse-serve${said#zse-info}" ] || { echo "$n: $output $stderr, $said"; return 1; }
  done
}

@test "SIGTERM lets streams end, SIGHUP opens the file again, kill -9 leaves nothing that hinders" {
  local d=$BATS_TEST_TMPDIR stream
  cp "$T/tiny.zse" "$d/m.zse"
  start "$d/log" --socket "$d/s" --port 0 --drain 600 "$d/m.zse"
  await listens "$URL"
  [ "$(stat -c %a "$d/s")" = 600 ]
  [ "$(curl -s --unix-socket "$d/s" http://localhost/v1/models | jq -r '.data[0].id')" = m ]
  cp "$T/tiny.zse" "$d/new" && mv "$d/new" "$d/m.zse"
  kill -HUP "$PID"
  closed() {
    [ "$(ask "$QUESTION" | jq -r '.choices[0].message.content')" = "2 + 2 = 4" ] || touch "$d/bad"
    grep -q 'm: closed' "$d/log.err"
  }
  await closed
  [ ! -e "$d/bad" ]
  rm "$d/m.zse"
  kill -HUP "$PID"                          # the file is gone: the loaded model stays
  await grep -q 'No such file' "$d/log.err"
  [ "$(ask "$QUESTION" | jq -r '.choices[0].message.content')" = "2 + 2 = 4" ]
  curl -sN "$URL/v1/completions" -d '{"prompt":"Once","max_tokens":1500,"ignore_eos":true,"temperature":0,"stream":true}' >"$d/stream" & stream=$!
  await test -s "$d/stream"
  stop "$PID"
  wait "$stream"
  [ "$(tail -n 2 "$d/stream" | head -n 1)" = "data: [DONE]" ]
  [ ! -e "$d/s" ]
  start "$d/log2" --socket "$d/s" --host 127.0.0.1 --port 0 "$T/tiny.zse"
  await listens "$URL"
  run --separate-stderr zse-serve --socket "$d/s"
  [ "$status" = 1 ]
  [[ $stderr == *"another program listens"* ]]
  curl -sN "$URL/v1/completions" -d '{"prompt":"Once","max_tokens":1500,"ignore_eos":true,"stream":true}' >"$d/stream" & stream=$!
  await test -s "$d/stream"
  kill -KILL "$PID"
  wait "$PID" || true
  wait "$stream" || true
  start "$d/log3" --socket "$d/s" "$T/tiny.zse"
  await curl -sf --unix-socket "$d/s" -o /dev/null http://localhost/health
  stop "$PID"
}

@test "models are loaded from below --model-dir only; from other machines never without one" {
  local d=$BATS_TEST_TMPDIR path
  mkdir -p "$d/models/sub" "$d/other"
  cp "$T/tiny.zse" "$d/models/sub/in.zse"
  cp "$T/tiny.zse" "$d/other/out.zse"
  cp "$T/tiny.zse" "$d/models.zse"
  ln -s ../other/out.zse "$d/models/link.zse"
  ln -s sub/in.zse "$d/models/good.zse"
  mkfifo "$d/models/pipe"
  start "$d/log" --port 0 --model-dir "$d/models"
  # a pipe is refused too, because otherwise the server would wait until a program writes to it
  for path in "$d/other/out.zse" "$d/models/../other/out.zse" ../other/out.zse link.zse "$d/models.zse" \
      /proc/self/exe /no/such.zse no.zse org/name pipe; do
    [ "$(admin "$URL/api/models/load" -d "{\"model_path\":\"$path\"}" | jq -r .error.code)" = path_not_allowed ] || { echo "$path"; return 1; }
  done
  [ "$(admin "$URL/api/models/load" -d '{"model_path":"sub/in.zse"}' | jq -r .model_id)" = in ]
  [ "$(admin "$URL/api/models/load" -d '{"model_path":"good.zse","model_name":"b"}' | jq -r .success)" = true ]
  [ "$(admin "$URL/api/models/load" -d "{\"model_path\":\"$d/models/sub/in.zse\",\"model_name\":\"c\"}" | jq -r .success)" = true ]
  stop "$PID"
  start "$d/log2" --port 0 --host 0.0.0.0 --no-auth
  URL=http://127.0.0.1:${URL##*:}
  [ "$(admin "$URL/api/models/load" -d "{\"model_path\":\"$T/tiny.zse\"}" | jq -r .error.code)" = path_not_allowed ]
  stop "$PID"
}

@test "with memory for one model the least recently used one is unloaded" {
  local d=$BATS_TEST_TMPDIR one
  one=$(curl -s "$URL/api/stats/models" | jq '.models[0].memory_bytes')
  cp "$T/tiny.zse" "$d/a.zse"
  start "$d/log" --port 0 --max-memory $((one * 5 / 2)) --name a --name b "$d/a.zse" "$T/tiny.zse"
  await says 2 eval "curl -s $URL/v1/models | jq '.data | length'"
  ask "${QUESTION/\{/\{\"model\":\"a\",}" >/dev/null
  [ "$(admin "$URL/api/models/load" -d "{\"model_path\":\"$T/tiny.zse\",\"model_name\":\"c\"}" | jq -r .model_id)" = c ]
  [ "$(curl -s "$URL/v1/models" | jq -r '[.data[].id] | join(" ")')" = "a c" ]
  # a request for the evicted model loads it again, and the least recently used one is evicted in
  # turn
  run curl -s -i "$URL/v1/chat/completions" -d "${QUESTION/\{/\{\"model\":\"b\",}"
  [[ $output == *" 503 "*"Retry-After: 1"* && $output == *model_loading* && $output == *"needed its memory"* ]]
  await says null refusal b
  [ "$(ask "${QUESTION/\{/\{\"model\":\"b\",}" | jq -r '.choices[0].message.content')" = "2 + 2 = 4" ]
  [ "$(curl -s "$URL/v1/models" | jq -r '[.data[].id] | join(" ")')" = "c b" ]
  # a model that could not be loaded again can still be loaded later
  mv "$d/a.zse" "$d/away"
  for i in 1 2; do
    says model_loading refusal a
    await says $((i + 1)) grep -c '^zse-serve: a: closed' "$d/log.err"
  done
  mv "$d/away" "$d/a.zse"
  await says null refusal a
  [ "$(curl -s "$URL/v1/models" | jq -r '[.data[].id] | join(" ")')" = "b a" ]
  # after an explicit unload a request does not load the model again, nor one that was never loaded
  admin "$URL/api/models/unload" -d '{"model_id":"b"}' >/dev/null
  await says model_not_found refusal b
  says model_not_found refusal d
  stop "$PID"
  start "$d/log2" --port 0 --max-memory 1MB
  run admin "$URL/api/models/load" -d "{\"model_path\":\"$T/tiny.zse\"}"
  [ "$(jq -r .error.code <<<"$output")" = out_of_memory ]
  [[ $output == *1000000* ]]
  stop "$PID"
}

# chat FIELDS: ask a fixed question; prints the content and the usage of the answer
chat() {
  curl -sf "$URL/v1/chat/completions" -d '{"messages":[{"role":"user","content":"What is the capital of France?"}],
    "max_tokens":60,"seed":4,"ignore_eos":true'"$1}" | jq -ce '[.choices[0].message.content, .usage]'
}

@test "speculative and prediction: the same answer, its guesses counted; wrong ones are refused; 1 MiB" {
  start "$BATS_TEST_TMPDIR/spec" "$T/tiny.zse" --port 0 --spec ngram:8
  local plain text warm f
  await listens "$URL"
  plain=$(chat ',"speculative":{"method":"off"}')
  text=$(jq '.[0]' <<<"$plain")
  jq -e '.[1] | has("speculation") or has("completion_tokens_details") | not' <<<"$plain"
  chat ',"speculative":{"method":"auto"}' | jq -e --argjson t "$text" '.[0] == $t and (.[1].speculation | .drafted_tokens >= .accepted_tokens and .accepted_tokens > 0)'
  for f in "$text" "[{\"type\":\"text\",\"text\":$text}]"; do
    chat ',"prediction":{"type":"content","content":'"$f}" | jq -e --argjson t "$text" '.[0] == $t and
      .[1].completion_tokens_details.accepted_prediction_tokens > 0 and
      (.[1] | .speculation.accepted_tokens >= .completion_tokens_details.accepted_prediction_tokens)'
  done
  chat ',"speculative":{"method":"off"},"prediction":{"type":"content","content":"Paris"}' |
    jq -e --argjson t "$text" '.[0] == $t and .[1].completion_tokens_details.accepted_prediction_tokens == 0 and (.[1] | has("speculation") | not)'
  stop "$PID"
  # the draft model is the model itself, so its drafts are always right
  start "$BATS_TEST_TMPDIR/draft" "$T/tiny.zse" --port 0 --spec "draft:4:$T/tiny.zse"
  await listens "$URL"
  for f in '' ',"speculative":{"method":"draft"}' ',"speculative":{"method":"auto","max_tokens":3}'; do
    chat "$f" | jq -e --argjson t "$text" '.[0] == $t and (.[1].speculation | .drafted_tokens > 30 and .drafted_tokens == .accepted_tokens)'
  done
  chat ',"speculative":{"method":"ngram"}' | jq -e --argjson t "$text" '.[0] == $t and (.[1].speculation | .drafted_tokens > .accepted_tokens)'
  chat ',"speculative":{"method":"off"}' | jq -e --argjson t "$text" '.[0] == $t and (.[1] | has("speculation") | not)'
  stop "$PID"
  # with --spec-exact distribution the answer with this seed is another one, except for requests
  # that ask for the same tokens
  start "$BATS_TEST_TMPDIR/distribution" "$T/tiny.zse" --port 0 --spec "draft:4:$T/tiny.zse" --spec-exact distribution
  await listens "$URL"
  warm=$(chat ',"temperature":1.5,"speculative":{"method":"off"}' | jq '.[0]')
  for f in '' ',"exact":"distribution"'; do
    chat ',"temperature":1.5,"speculative":{"method":"draft"'"$f}" | jq -e --argjson t "$warm" '.[0] != $t and .[1].speculation.accepted_tokens > 20'
  done
  chat ',"temperature":1.5,"speculative":{"method":"draft","exact":"tokens"}' | jq -e --argjson t "$warm" '.[0] == $t and .[1].speculation.accepted_tokens > 20'
  stop "$PID"
  # tokens are drafted by default, but only a request that sets `speculative` gets the counts
  URL=http://127.0.0.1:$MAIN_PORT
  chat '' | jq -e --argjson t "$text" '.[0] == $t and (.[1] | has("speculation") | not)'
  chat ',"speculative":{"method":"auto"}' | jq -e --argjson t "$text" '.[0] == $t and (.[1] | has("speculation"))'
  chat ',"speculative":{"method":"ngram","max_tokens":3}' | jq -e --argjson t "$text" '.[0] == $t and (.[1] | has("speculation"))'
  for f in '"speculative":1' '"speculative":{"method":"medusa"}' '"speculative":{"method":"draft"}' '"speculative":{"max_tokens":0}' '"speculative":{"max_tokens":16}' \
      '"speculative":{"max_tokens":1.5}' '"speculative":{"exact":"both"}' '"speculative":{"exact":"distribution"}' '"speculative":{"exact":1}' '"prediction":"x"' '"prediction":{"content":"x"}' \
      '"prediction":{"type":"content"}' '"prediction":{"type":"content","content":[{"type":"image_url"}]}' \
      '"prediction":{"type":"content","content":"x","k":1}'; do
    [ "$(curl -s -o "$BATS_TEST_TMPDIR/out" -w '%{http_code}' "$URL/v1/chat/completions" \
        -d '{"messages":[{"role":"user","content":"a"}],'"$f}")" = 400 ]
    jq -e '.error.param == "speculative" or .error.param == "prediction"' "$BATS_TEST_TMPDIR/out"
  done
  for f in 1048576 1048577; do
    { printf '{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"prediction":{"type":"content","content":"'
      head -c "$f" /dev/zero | tr '\0' a
      printf '"}}'; } >"$BATS_TEST_TMPDIR/large"
    [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/chat/completions" -d @"$BATS_TEST_TMPDIR/large")" = \
      $((f > 1048576 ? 400 : 200)) ]
  done
}

@test "HTTPS" {
  command -v openssl >/dev/null || skip "no openssl command"
  local d=$BATS_TEST_TMPDIR version hello
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$d/key" -out "$d/cert" \
    -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost 2>/dev/null
  start "$d/log" --port 0 --tls-cert "$d/cert" --tls-key "$d/key" "$T/tiny.zse"
  URL=https://localhost:${URL##*:}
  await curl -sf --cacert "$d/cert" -o /dev/null "$URL/health"
  [ "$(curl -sN --cacert "$d/cert" "$URL/v1/chat/completions" -d "${QUESTION/\{/\{\"stream\":true,}" | sed -n 's/^data: {/{/p' | jq -rj '.choices[0].delta.content // empty')" = "2 + 2 = 4" ]
  head -c 200000 /dev/zero | tr '\0' a | jq -Rc '{content: .}' >"$d/large"
  [ "$(curl -s --cacert "$d/cert" "$URL/tokenize" -d @"$d/large" | jq '.count > 1000')" = true ]
  for version in -tls1_3 -tls1_2; do         # resuming a TLS session does not need the private key
    hello=$'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'
    openssl s_client -connect "${URL#https://}" $version -ign_eof -sess_out "$d/session" <<<"$hello" >"$d/out" 2>&1
    grep -q '^New, TLSv1' "$d/out" && grep -q '^HTTP/1.1 200' "$d/out"
    openssl s_client -connect "${URL#https://}" $version -ign_eof -sess_in "$d/session" <<<"$hello" >"$d/out" 2>&1
    grep -q '^Reused, TLSv1' "$d/out" && grep -q '^HTTP/1.1 200' "$d/out"
  done
  stop "$PID"
  printf 'x' >"$d/cert"
  run --separate-stderr zse-serve --port 0 --tls-cert "$d/cert" --tls-key "$d/key"
  [ "$status" = 1 ] && [[ $stderr == *"$d/cert"* ]]
}

@test "wrong options of the command line are refused" {
  run --separate-stderr zse-serve --host 0.0.0.0 --port 0
  [ "$status" = 1 ]
  [[ $stderr == *0.0.0.0*--no-auth* ]]
  start "$BATS_TEST_TMPDIR/log" --host 0.0.0.0 --port 0 --no-auth
  stop "$PID"
  run zse-serve --port 70000
  [ "$status" = 2 ]
  run zse-serve --tls-cert x
  [ "$status" = 2 ]
  run zse-serve --name a --name b "$T/tiny.zse"
  [ "$status" = 2 ]
  run --separate-stderr zse-serve --port "$MAIN_PORT" "$T/tiny.zse"
  [ "$status" = 1 ] && [[ $stderr == *"in use"* ]]
}

@test "prefixes: of a hundred requests with the same hundred tokens nine tenths are not computed" {
  run zse-bench serve "$URL" --api tokens --ignore-eos -w 0 -p 110 --shared 100 -n 1 -b 1 --requests 100 --json
  jq -e '.done == 100 and .prompt_tokens == 110 and .cached_tokens >= 99' <<<"$output"
}

# bats test_tags=plain
@test "failed allocations: each request gets the right answer or none, nothing hangs, no block is lost" {
  local so=$B/tests/lib/nomem.so
  [ -e "$so" ] || skip "$so is not there (make unit)"
  mkfifo "$BATS_TEST_TMPDIR/pipe"
  ZSE_NOMEM=60 LD_PRELOAD=$so zse-serve --port 0 "$T/tiny.zse" >"$BATS_TEST_TMPDIR/pipe" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  PID=$!
  read -r _ _ URL <"$BATS_TEST_TMPDIR/pipe"
  await listens "$URL"
  run python3 -B tests/serve/scarce.py "${URL##*:}" "$PID" 2
  echo "$output"
  tail "$BATS_TEST_TMPDIR/err"
  [ "$status" = 0 ]
  stop "$PID"
}

# bats test_tags=plain
@test "a step or a close that does not end: /health says so and recovers; its model can be unloaded; SIGTERM ends the process all the same, with its log" {
  local so=$B/tests/lib/stuck.so d=$BATS_TEST_TMPDIR/stuck asks
  [ -e "$so" ] || skip "$so is not there (make unit)"
  mkdir -p "$d/other" "$d/third" "$d/slow"
  # begin FOLDER: start a server; its messages go to FOLDER/err
  begin() {
    cp "$T/tiny.zse" "$1/m.zse"
    mkfifo "$1/pipe"
    ZSE_HOME=$1 ZSE_STUCK=$1 LD_PRELOAD=$so zse-serve --port 0 --stall 1 --drain 0 "$1/m.zse" >"$1/pipe" 2>"$1/err" 3>&- &
    PID=$!
    read -r _ _ URL <"$1/pipe"
    await listens "$URL"
  }
  # ends FOLDER PID TEXT: the server has ended with status 1, and its messages contain TEXT
  ends() {
    local code=0
    wait "$2" || code=$?
    cat "$1/err"
    [ "$code" = 1 ] && grep -q "$3" "$1/err"
  }
  is_stalled() { [ "$(curl -s "$URL/health" | jq -r .status)" = stalled ]; }
  complete() { curl -s "$URL/v1/completions" -d '{"prompt":"Once","max_tokens":20,"ignore_eos":true}' >"$d/answer"; }
  is_asked() { [ "$(curl -s "$URL/api/stats/models" | jq '.models[0].open_requests')" = 1 ]; }
  # The first server unloads a model whose step never ends.  While the others are tested, its open
  # request fails.
  begin "$d/third"
  local third=$PID third_url=$URL left
  touch "$d/third/step"
  curl -s -o "$d/left" -w '%{http_code}' "$URL/v1/completions" -d '{"prompt":"Once","max_tokens":20}' >"$d/left.status" & left=$!
  await is_asked
  [ "$(status -H "Authorization: Bearer $(cat "$d/third/admin.token")" "$URL/api/models/unload" -d '{"model_id":"m"}')" = 200 ]
  begin "$d/slow"                           # its audit log has a line to be written to the disk
  touch "$d/slow/sync"
  local slow=$PID
  kill -TERM "$slow"
  begin "$d/other"
  touch "$d/other/close"
  local began=$SECONDS other=$PID
  kill -TERM "$other"                       # meanwhile:
  begin "$d"
  touch "$d/step"
  complete & asks=$!
  await is_stalled
  [ "$(status "$URL/health")" = 503 ]
  [ "$(curl -s -w ' %{http_code}' "$URL/livez" | jq -rs '.[0].status, .[1]' | xargs)" = "stalled 503" ]
  [[ $(curl -s "$URL/health" | jq -r .reason) == "m: no step has ended for "*" s" ]]
  await grep -q 'm: no step has ended for' "$d/err"
  rm "$d/step"
  wait "$asks"
  [ "$(curl -s "$URL/livez")" = '{"status":"alive"}' ]
  [ "$(jq .usage.completion_tokens "$d/answer")" = 20 ]
  await listens "$URL"
  await grep -q 'm: steps go on' "$d/err"
  [ "$(grep -c 'no step has ended' "$d/err")" = 1 ]
  touch "$d/step"
  complete & asks=$!
  await is_stalled
  kill -TERM "$PID"
  ends "$d" "$PID" "step takes too long"
  wait "$asks" || true
  [ "$(cat "$d"/audit/*.jsonl | grep -c '"path":"/v1/completions"')" = 2 ]
  wait "$left"
  [ "$(cat "$d/left.status")" = 503 ]
  [ "$(jq -r .error.message "$d/left")" = "the model m does not answer" ]
  URL=$third_url
  is_stalled
  rm "$d/third/step"                        # the step ends: the model is closed, and the server goes on
  await grep -q 'm: closed' "$d/third/err"
  curl -s -H "Authorization: Bearer $(cat "$d/third/admin.token")" "$URL/api/models/load" -d "{\"model_path\":\"$d/third/m.zse\",\"model_name\":\"again\"}"
  [ "$(status "$URL/v1/completions" -d '{"prompt":"Once","max_tokens":2}')" = 200 ]
  stop "$third"
  ends "$d/other" "$other" "closing the models takes too long"
  await grep -q 'waiting for the disk' "$d/slow/err"
  rm "$d/slow/sync"
  wait "$slow"                              # a disk that is slow is no failure
  [ $((SECONDS - began)) -le 60 ]           # each stop takes some seconds, more on a busy machine
}

@test "some seconds of mixed load: every answer is the one given alone, no block is lost, and memory does not grow" {
  start "$BATS_TEST_TMPDIR/log" --port 0 --quiet "$T/tiny.zse"
  await listens "$URL"
  run python3 -B tests/serve/soak.py "${URL##*:}" "$PID" "${SOAK_SECONDS:-$([ -n "${ZSE_SANITIZED-}" ] && echo 3 || echo 6)}" "$(cat "$ZSE_HOME/admin.token")" "$T/tiny.zse"
  echo "$output"
  [ "$status" = 0 ]
  stop "$PID"
}

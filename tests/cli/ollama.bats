# ollama.bats - Ollama's API of zse-serve: /api/chat, generate, embed, tags and so on.
bats_require_minimum_version 1.5.0
load ../lib/server

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export ZSE_HOME=$BATS_FILE_TMPDIR/home T=$BATS_FILE_TMPDIR
  mkdir -p "$ZSE_HOME/models"
  zse-convert models/tiny -o "$ZSE_HOME/models/tiny:1m.zse" --quality fast >/dev/null
  ln -s tiny:1m.zse "$ZSE_HOME/models/small.zse"
  start "$T/main" --port 0
  export URL MAIN_PID=$PID MAIN_PORT=${URL##*:} ADMIN
  await listens "$URL"
  ADMIN=$(cat "$ZSE_HOME/admin.token")
}

# ask PATH BODY [CURL ARGUMENT]...
ask() {
  local path=$1 body=$2
  shift 2
  curl -s "$@" "$URL/api/$path" -d "$body"
}
QUESTION='"messages":[{"role":"user","content":"What is 2+2?"}],"options":{"temperature":0}'

@test "the official ollama package chats, embeds, lists, copies and deletes" {
  installed ollama || skip "no Python package ollama"
  run build/venv/bin/python tests/serve/ollama_client.py "$URL" "$ADMIN"
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(grep -c '^ok' <<<"$output")" = 12 ]
}

@test "a stream is lines of JSON, each an object with done, and one object without stream" {
  ask chat "{\"model\":\"tiny\",$QUESTION}" -D "$T/head" >"$T/lines"
  grep -qi '^content-type: application/x-ndjson' "$T/head"
  [ "$(wc -l <"$T/lines")" -gt 3 ]
  jq -es '(map(.message.content) | add) == "2 + 2 = 4" and (map(.done) | sort | unique == [false, true]) and .[-1].done_reason == "stop"' "$T/lines"
  ask chat "{\"model\":\"tiny\",\"stream\":false,$QUESTION}" -D "$T/head" >"$T/j"
  grep -qi '^content-type: application/json' "$T/head"
  jq -e '.message == {role: "assistant", content: "2 + 2 = 4"} and .eval_count == 8' "$T/j"
}

@test "errors are {error: text}, of the guard, of the body and of the model" {
  [ "$(ask chat '{"model":"tiny"' -o "$T/j" -w '%{http_code}')" = 400 ]
  jq -e '.error | type == "string"' "$T/j"
  [ "$(ask chat '[]' -o "$T/j" -w '%{http_code}')" = 400 ]
  [ "$(ask pull '{"model":"tiny","stream":5}' -H "Authorization: Bearer $ADMIN" -o "$T/j" -w '%{http_code}')" = 400 ]
  [ "$(ask delete '{"model":"small"}' -X DELETE -o "$T/j" -w '%{http_code}')" = 401 ]
  jq -e 'keys == ["error"] and (.error | type == "string")' "$T/j"
  [ "$(ask generate '{"model":"tiny","prompt":5}' -o "$T/j" -w '%{http_code}')" = 400 ]
  [ "$(ask chat '{"model":"tiny","messages":[{"role":"user","content":"hi","images":["aGk="]}]}' -o "$T/j" -w '%{http_code}')" = 400 ]
  # an error must not list names of models that the key may not use
  ln -s tiny:1m.zse "$ZSE_HOME/models/fam:1.zse"
  ln -s tiny:1m.zse "$ZSE_HOME/models/fam:2.zse"
  [ "$(ask chat "{\"model\":\"fam\",$QUESTION}" -o "$T/j" -w '%{http_code}')" = 404 ]
  rm "$ZSE_HOME"/models/fam:*
  jq -e '.error | test("several models") and (test("fam:") | not)' "$T/j"
  local keep
  for keep in '"x"' '"5 m"' '"1e9"' '"nan"' '"-"' '""' '[]' true; do
    [ "$(ask generate "{\"model\":\"tiny\",\"prompt\":\"a\",\"keep_alive\":$keep}" -o "$T/j" -w '%{http_code}')" = 400 ] || { echo "$keep"; cat "$T/j"; return 1; }
    grep -q keep_alive "$T/j"
  done
  # errors at other paths keep OpenAI's form
  curl -s "$URL/v1/chat/completions" -d '{"model":"nosuch","messages":[{"role":"user","content":"x"}]}' | jq -e '.error.code == "model_not_found"'
}

@test "fields that Ollama does not have are ignored, up to 100 of them" {
  local fields many
  for fields in '"regex":"x{3}"' '"grammar":5' '"guided_choice":["yes"]' '"logit_bias":5' '"stop_token_ids":"x"' '"stream_options":5' \
    '"speculative":5' '"dry_sequence_breakers":5' '"response_format":{"type":"json_object"}' '"prediction":5' '"rag":5' '"server_tools":5' \
    '"re\u0067ex":"x{3}"'; do
    ask chat "{\"model\":\"tiny\",\"stream\":false,$fields,$QUESTION}" | jq -e '.message.content == "2 + 2 = 4"' || { echo "$fields"; return 1; }
  done
  ask chat "{\"model\":\"tiny\",\"stream\":false,\"format\":{\"const\":5},\"structured_outputs\":{\"json\":{\"const\":6}},$QUESTION}" | jq -e '.message.content == "5"'
  many=$(printf '"u%d":0,' {1..100})
  ask chat "{${many}\"model\":\"tiny\",\"stream\":false,$QUESTION}" | jq -e '.message.content == "2 + 2 = 4"'
  for fields in "$many\"more\":0,$QUESTION" "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"options\":{$many\"more\":0}"; do
    [ "$(ask chat "{\"model\":\"tiny\",$fields}" -o "$T/j" -w '%{http_code}')" = 400 ]
    jq -e '.error | test("more than 100 unknown fields")' "$T/j"
  done
  printf -v many '1s%.0s' {1..60}
  [ "$(ask generate "{\"model\":\"tiny\",\"prompt\":\"a\",\"keep_alive\":\"$many\"}" -o "$T/j" -w '%{http_code}')" = 400 ]
}

@test "keys, their scopes, models and audit lines are those of the other endpoints" {
  local key other
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  mkdir -p "$ZSE_HOME"
  cp -a "$T/home/models" "$ZSE_HOME"
  key=$(zse-apikey create one --scope chat --model small)
  other=$(zse-apikey create two --scope embeddings)
  start "$BATS_TEST_TMPDIR/log" --port 0 --audit-folder "$BATS_TEST_TMPDIR/audit"
  await listens "$URL"
  [ "$(ask chat "{\"model\":\"small\",$QUESTION}" -o "$T/j" -w '%{http_code}')" = 401 ]
  ask chat "{\"model\":\"small\",\"stream\":false,$QUESTION}" -H "X-API-Key: $key" | jq -e '.message.content == "2 + 2 = 4"'
  [ "$(ask chat "{\"model\":\"tiny\",$QUESTION}" -H "X-API-Key: $key" -o "$T/j" -w '%{http_code}')" = 403 ]
  jq -e '.error | test("may not use")' "$T/j"
  [ "$(ask embed '{"model":"small","input":"a"}' -H "X-API-Key: $key" -o "$T/j" -w '%{http_code}')" = 403 ]
  ask embed '{"model":"tiny","input":"a"}' -H "X-API-Key: $other" | jq -e '.embeddings | length == 1'
  curl -s "$URL/api/tags" -H "X-API-Key: $key" | jq -e '[.models[].name] == ["small"]'
  [ "$(ask show '{"model":"tiny"}' -H "X-API-Key: $key" -o "$T/j" -w '%{http_code}')" = 404 ]
  # two keys have used the model, so neither of them may unload it
  [ "$(ask generate '{"model":"small","keep_alive":0}' -H "X-API-Key: $key" -o "$T/j" -w '%{http_code}')" = 403 ] || { cat "$T/j"; return 1; }
  stop "$PID"
  jq -es 'map(select(.path == "/api/chat" and .status_code == 200)) | length == 1 and .[0].api_key_name == "one" and .[0].completion_tokens == 8' "$BATS_TEST_TMPDIR"/audit/*.jsonl
}

@test "a pull is a job whose progress is streamed, and its model has a name" {
  export ZSE_HOME=$BATS_TEST_TMPDIR/home HF_HOME=$BATS_TEST_TMPDIR/hf HF_HUB_DISABLE_XET=1 HF_ENDPOINT hub
  mkfifo "$BATS_TEST_TMPDIR/hub.pipe"
  python3 -B tests/hub/server.py test/tiny=models/tiny >"$BATS_TEST_TMPDIR/hub.pipe" 3>&- &
  hub=$!
  read -r HF_ENDPOINT _ <"$BATS_TEST_TMPDIR/hub.pipe"
  start "$BATS_TEST_TMPDIR/log" --port 0
  await listens "$URL"
  ADMIN=$(cat "$ZSE_HOME/admin.token")
  ask pull '{"model":"test/tiny"}' -H "Authorization: Bearer $ADMIN" >"$T/lines"
  jq -es '.[0].status == "pulling manifest" and .[-1].status == "success"' "$T/lines" || { cat "$T/lines"; return 1; }
  ask chat "{\"model\":\"tiny\",\"stream\":false,$QUESTION}" | jq -e '.message.content == "2 + 2 = 4"'
  local name
  for name in test/tiny tiny tiny:latest; do
    ask pull "{\"model\":\"$name\",\"stream\":false}" -H "Authorization: Bearer $ADMIN" | jq -e '.status == "success"'
  done
  [ "$(ask pull '{"model":"evil/tiny","stream":false}' -H "Authorization: Bearer $ADMIN" -o "$T/j" -w '%{http_code}')" = 409 ] || { cat "$T/j"; return 1; }
  jq -e '.error | test("not known to be made of evil/tiny")' "$T/j"
  [ "$(ask pull '{"model":"test/nosuch","stream":false}' -H "Authorization: Bearer $ADMIN" -o "$T/j" -w '%{http_code}')" = 500 ]
  jq -e '.error | test("nosuch")' "$T/j" || { cat "$T/j"; return 1; }
  ask pull '{"model":"test/nosuch"}' -H "Authorization: Bearer $ADMIN" | jq -es '.[-1].error | test("nosuch")'
  stop "$PID"
  kill "$hub"
}

# bats test_tags=plain
@test "a model that is being loaded is neither deleted nor unloaded; a deleted one is gone" {
  local so=$B/tests/lib/stuck.so d=$BATS_TEST_TMPDIR loading
  [ -e "$so" ] || skip "$so is not there (make unit)"
  export ZSE_HOME=$d/home
  mkdir -p "$ZSE_HOME/models"
  cp "$T/home/models/tiny:1m.zse" "$ZSE_HOME/models/g.zse"
  ZSE_STUCK=$d LD_PRELOAD=$so start "$d/log" --port 0 --audit-folder "$d/audit"
  await listens "$URL"
  ADMIN=$(cat "$ZSE_HOME/admin.token")
  touch "$d/step"                               # opening a model waits
  ask generate '{"model":"g","keep_alive":-1}' >"$T/loaded" & loading=$!
  await grep -q 'g: requested, loading' "$d/log.err"
  [ "$(ask delete '{"model":"g"}' -X DELETE -H "Authorization: Bearer $ADMIN" -o "$T/j" -w '%{http_code}')" = 409 ]
  [ "$(ask generate '{"model":"g","keep_alive":0}' -H "Authorization: Bearer $ADMIN" -o "$T/j" -w '%{http_code}')" = 409 ]
  rm "$d/step"
  wait "$loading"
  jq -e '.done_reason == "load"' "$T/loaded"
  if [ "$(id -u)" != 0 ]; then                  # root may write into any folder
    chmod a-w "$ZSE_HOME/models"
    [ "$(ask delete '{"model":"g"}' -X DELETE -H "Authorization: Bearer $ADMIN" -o "$T/j" -w '%{http_code}')" = 500 ]
    chmod u+w "$ZSE_HOME/models"
    jq -e --arg home "$ZSE_HOME" '.error | test("denied") and (contains($home) | not)' "$T/j"
  fi
  curl -s "$URL/api/ps" | jq -e '[.models[].name] == ["g"]'
  ask copy '{"source":"g","destination":"h"}' -H "Authorization: Bearer $ADMIN"
  ask generate '{"model":"g","keep_alive":0}' -H "Authorization: Bearer $ADMIN" | jq -e '.done_reason == "unload"'
  ask generate '{"model":"g","keep_alive":0}' | jq -e '.done_reason == "unload"'        # it was not loaded
  ask generate '{"model":"g"}' | jq -e '.done_reason == "load"'
  [ "$(ask delete '{"model":"g"}' -X DELETE -H "Authorization: Bearer $ADMIN" -o "$T/j" -w '%{http_code}')" = 200 ]
  curl -s "$URL/api/ps" | jq -e '.models == []'
  [ "$(ask delete '{"model":"g"}' -X DELETE -H "Authorization: Bearer $ADMIN" -o "$T/j" -w '%{http_code}')" = 404 ]
  [ "$(ask generate '{"model":"g","keep_alive":0}' -o "$T/j" -w '%{http_code}')" = 404 ]
  [ "$(ask chat '{"model":"g","keep_alive":0}' -o "$T/j" -w '%{http_code}')" = 404 ]
  stop "$PID"
  jq -es 'map(select(.path == "/api/delete" or .path == "/api/copy") | .model_id) | unique == ["g"]' "$d"/audit/*.jsonl || { cat "$d"/audit/*.jsonl; return 1; }
  jq -es 'map(select(.path == "/api/generate" and .status_code < 300) | .model_id) | length == 4 and unique == ["g"]' "$d"/audit/*.jsonl
}

@test "a key for an alias sees it in every answer, and never the name of its model" {
  local key
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  mkdir -p "$ZSE_HOME"
  cp -a "$T/home/models" "$ZSE_HOME"
  key=$(zse-apikey create one --scope chat --model small)
  start "$BATS_TEST_TMPDIR/log" --port 0
  await listens "$URL"
  ask show '{"model":"small"}' -H "X-API-Key: $key" | jq -e '.details.format != null'
  [ "$(ask generate '{"model":"tiny","keep_alive":0}' -H "X-API-Key: $key" -o "$T/j" -w '%{http_code}')" = 404 ]
  jq -e '.error == "model '"'tiny'"' not found"' "$T/j"
  ask generate '{"model":"small"}' -H "X-API-Key: $key" | jq -e '.done_reason == "load"'
  ask show '{"model":"small"}' -H "X-API-Key: $key" | jq -e '.details.format != null'
  ask generate '{"model":"small"}' -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" | jq -e '.done_reason == "load"'
  [ "$(ask generate '{"model":"small","keep_alive":0}' -H "X-API-Key: $key" -o "$T/j" -w '%{http_code}')" = 403 ]
  jq -e '.error | contains("tiny") | not' "$T/j"
  rm "$ZSE_HOME/models/tiny:1m.zse"
  ask generate '{"model":"small","keep_alive":0}' -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" >/dev/null
  [ "$(ask show '{"model":"small"}' -H "X-API-Key: $key" -o "$T/j" -w '%{http_code}')" = 404 ]
  jq -e '.error | contains("tiny") | not' "$T/j"
  stop "$PID"
}

# responses.bats - zse-serve's Responses API: the specification of Open Responses, and the responses
# that are kept.
bats_require_minimum_version 1.5.0
load ../lib/server

# respond BODY [CURL ARGUMENT]...
respond() {
  local body=$1
  shift
  curl -s "$@" "$URL/v1/responses" -d "$body"
}

@test "objects, streams, continued responses and the WebSocket follow the specification" {
  run build/venv/bin/python -B tests/serve/responses.py "$MAIN_PORT"
  echo "$output"
  [ "$status" = 0 ]
}

@test "a response is shown and deleted by its id, once" {
  respond '{"input":"What is 2+2?","temperature":0}' >"$T/r"
  local id
  id=$(jq -r .id "$T/r")
  curl -s "$URL/v1/responses/$id" | cmp - "$T/r"
  curl -s -X DELETE "$URL/v1/responses/$id" | jq -e --arg id "$id" '. == {id: $id, object: "response", deleted: true}'
  [ "$(curl -s -o /dev/null -w '%{http_code}' -X DELETE "$URL/v1/responses/$id")" = 404 ]
  curl -s "$URL/v1/responses/$id" | jq -e '.error.code == "response_not_found"'
  respond "{\"input\":\"a\",\"previous_response_id\":\"$id\"}" | jq -e '.error.code == "previous_response_not_found"'
}

@test "a response is another key's as if it were none, and the memory for them is bounded" {
  local a b id n=0 _
  a=$(ZSE_HOME=$T/keys zse-apikey create a --json | jq -r .key)
  b=$(ZSE_HOME=$T/keys zse-apikey create b --json | jq -r .key)
  ZSE_HOME=$T/keys start "$BATS_TEST_TMPDIR/small" "$T/tiny.zse" --port 0 --responses-size 16KiB
  await listens "$URL"
  id=$(respond '{"input":"a","max_output_tokens":1}' -H "X-API-Key: $a" | jq -r .id)
  [ "$(curl -s -H "X-API-Key: $b" "$URL/v1/responses/$id" | jq -r .error.code)" = response_not_found ]
  [ "$(curl -s -X DELETE -H "X-API-Key: $b" "$URL/v1/responses/$id" | jq -r .error.code)" = response_not_found ]
  respond "{\"input\":\"a\",\"previous_response_id\":\"$id\"}" -H "X-API-Key: $b" | jq -e '.error.code == "previous_response_not_found"'
  # those of b cannot displace it, its own can: a key has a quarter of the memory
  for _ in 1 2 3 4 5; do respond '{"input":"a","max_output_tokens":1}' -H "X-API-Key: $b" >/dev/null; done
  [ "$(curl -s -H "X-API-Key: $a" "$URL/v1/responses/$id" | jq -r .id)" = "$id" ]
  while [ "$(curl -s -H "X-API-Key: $a" "$URL/v1/responses/$id" | jq -r .id)" = "$id" ]; do
    respond '{"input":"a","max_output_tokens":1}' -H "X-API-Key: $a" >/dev/null
    n=$((n + 1))
    [ "$n" -lt 6 ]
  done
  [ "$n" -ge 1 ]
  # one that is larger than this is not kept, and says so
  id=$(printf '%5000s' a)
  respond "{\"input\":\"a\",\"instructions\":\"$id\",\"max_output_tokens\":1}" -H "X-API-Key: $a" | jq -e '.store == false'
  stop "$PID"
}

# tools_of NUMBER: a request with a tool whose schema repeats it 60,000 times
tools_of() {
  printf '{"input":"a","max_output_tokens":1,"tool_choice":"none","tools":[{"type":"function","name":"f",'
  printf '"parameters":{"type":"object","examples":[%s]}}]}' "$(yes "$1" | head -n 60000 | paste -sd,)"
}

@test "the memory that a response takes to repeat its tools is reserved before it runs" {
  start "$BATS_TEST_TMPDIR/bounded" "$T/tiny.zse" --port 0 --max-request-memory 14MB
  await listens "$URL"
  respond @- < <(tools_of 1) | jq -e '.tools[0].parameters.examples | length == 60000'
  # 0.1 has three characters in the request and 19 in the response
  respond @- < <(tools_of 0.1) | jq -e '.error.code == "request_memory" and (.error.message | test("up to 1[5-9]"))'
}

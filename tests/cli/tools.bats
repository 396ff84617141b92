# tools.bats - tools that the server runs: /api/tools, calls found in text, audit lines.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export ZSE_HOME=$BATS_FILE_TMPDIR/home T=$BATS_FILE_TMPDIR
  zse-convert models/tiny -o "$T/tiny.zse" --quality fast >/dev/null
  start "$T/main" "$T/tiny.zse" --port 0
  export URL MAIN_PID=$PID
  await listens "$URL"
}

teardown_file() {
  kill -TERM "$MAIN_PID" 2>/dev/null
  while kill -0 "$MAIN_PID" 2>/dev/null; do sleep 0.05; done
}

setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }
teardown() {
  local p
  for p in $(jobs -p); do kill -KILL "$p" 2>/dev/null || true; done       # processes of a failed test
}

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
post() { curl -s "$URL$1" -d "$2"; }
# execute NAME ARGUMENTS [FILTER]: the answer
execute() { post /api/tools/execute "{\"name\":\"$1\",\"arguments\":$2}" | jq -r "${3-.result}"; }

@test "the list: four tools with schemas, with and without a slash, and as OpenAI writes them" {
  run curl -s "$URL/api/tools/"
  [ "$output" = "$(curl -s "$URL/api/tools")" ]
  [ "$(jq -r '[.tools[].name] | join(" ")' <<<"$output")" = "calculator datetime parse_json string_ops" ] || { echo "$output"; return 1; }
  [ "$(jq -c '[.tools[] | .confirm, .destructive, .server] | unique' <<<"$output")" = '[null,false]' ]
  [ "$(jq -c .openai_format <<<"$output")" = "$(curl -s "$URL/api/tools/openai/functions" | jq -c .functions)" ]
  [ "$(jq -r '.openai_format | all(.type == "function" and .function.parameters.type == "object")' <<<"$output")" = true ]
  [ "$(jq -c '.openai_format[0].function.parameters.required' <<<"$output")" = '["expression"]' ]
}

@test "execute: results, errors of tools, unknown tools, wrong bodies" {
  [ "$(execute calculator '{"expression":"2+2*3"}')" = 8 ]
  [ "$(execute calculator '{"expression":"sqrt(16)+log(100)"}')" = 6 ]
  [ "$(execute calculator '{"expression":"1/0"}' '.result, .error')" = "$(printf 'null\ncharacter 4: division by zero')" ]
  [ "$(execute parse_json '{"json":"{\"data\":{\"items\":[{\"name\":\"x\"}]}}","path":"data.items[0].name"}')" = x ]
  [ "$(execute string_ops '{"operation":"reverse","text":"añb"}')" = bña ]
  [[ "$(execute datetime '{"timezone":"+02:00"}')" == *+02:00* ]]
  [ "$(post /api/tools/execute '{"name":"calculator","tool_call_id":"c1","arguments":{"expression":"1"}}' | jq -c .)" = \
    '{"tool_call_id":"c1","name":"calculator","result":"1","error":null}' ]
  [ "$(execute calculator '{}' .error)" = "expression: missing" ]
  [ "$(execute eval '{}' .error.code)" = unknown_tool ]
  [ "$(execute calculator '[]' .error.code)" = invalid_type ]
  [ "$(post /api/tools/execute '{}' | jq -r .error.code)" = missing ]
  [ "$(post /api/tools/execute '{"name":"calculator","x":1}' | jq -r .error.code)" = unknown_parameter ]
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/api/tools/execute" -d '{"name":"eval"}')" = 404 ]
}

@test "parse and process: every form of a call once, in its order, ids link calls to results" {
  local text='First ```json
{"name": "calculator", "arguments": {"expression": "2+2"}}
``` then <tool_call name="string_ops">{"operation": "upper", "text": "a}{b"}</tool_call> and
{"tool_calls": [{"function": {"name": "nothing", "arguments": "{}"}}]} but not {"name": "Bob"}'
  run post /api/tools/parse "$(jq -nc --arg t "$text" '{content: $t}')"
  [ "$(jq -c '[.tool_calls[] | [.name, .arguments]]' <<<"$output")" = \
    '[["calculator",{"expression":"2+2"}],["string_ops",{"operation":"upper","text":"a}{b"}],["nothing",{}]]' ] || { echo "$output"; return 1; }
  run post /api/tools/process "$(jq -nc --arg t "$text" '{content: $t}')"
  [ "$(jq -c '[.results[] | .result // .error]' <<<"$output")" = "[\"4\",\"A}{B\",\"there is no tool 'nothing'\"]" ] || { echo "$output"; return 1; }
  [ "$(jq -c '[.tool_calls[].id] == [.results[].tool_call_id]' <<<"$output")" = true ]
  [ "$(post /api/tools/process "$(jq -nc --arg t "$text" '{content: $t, auto_execute: false}')" | jq -c '.results, (.tool_calls | length)')" = "$(printf '[]\n3')" ]
  [ "$(post /api/tools/parse '{"content":"<|tool_calls_section_begin|><|tool_call_begin|>functions.calculator:0<|tool_call_argument_begin|>{\"expression\":\"1\"}<|tool_call_end|><|tool_calls_section_end|>"}' | jq -r '.tool_calls[0].name')" = calculator ]
  [ "$(post /api/tools/parse '{"content":""}' | jq -c .)" = '{"tool_calls":[]}' ]
  [ "$(post /api/tools/parse '{"content":1}' | jq -r .error.code)" = invalid_type ]
}

@test "each run has a line in the audit log, under the request's id" {
  curl -s "$URL/api/tools/execute" -H 'X-Request-Id: mine' -d '{"name":"calculator","tool_call_id":"c7","arguments":{"expression":"1/0"}}' >/dev/null
  recent() { curl -s -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$URL/api/audit/recent?limit=20"; }
  run recent
  [ "$(jq -c '[.entries[] | select(.request_id == "mine/c7")][0] | [.method, .path, .status_code, .error_message]' <<<"$output")" = \
    '["TOOL","/api/tools/calculator",422,"the tool reported an error"]' ] || { jq -c '.entries[:3]' <<<"$output"; return 1; }
}

@test "a key needs the scope chat to run a tool, and none to see the list" {
  local home=$BATS_TEST_TMPDIR/home chat models URL PID
  export ZSE_HOME=$home
  chat=$(zse-apikey create chat --scope chat)
  models=$(zse-apikey create models --scope models)
  start "$BATS_TEST_TMPDIR/log" --port 0
  local body='{"name":"calculator","arguments":{"expression":"1"}}'
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/api/tools")" = 401 ]
  [ "$(curl -s -H "X-API-Key: $models" -o /dev/null -w '%{http_code}' "$URL/api/tools")" = 200 ]
  [ "$(curl -s -H "X-API-Key: $models" "$URL/api/tools/execute" -d "$body" | jq -r .error.code)" = insufficient_scope ]
  [ "$(curl -s -H "X-API-Key: $chat" "$URL/api/tools/execute" -d "$body" | jq -r .result)" = 1 ]
  kill -TERM "$PID" && wait "$PID"
}

# tools.bats - tools that the server runs: /api/tools, calls found in text, audit lines.
bats_require_minimum_version 1.5.0
load ../lib/server
post() { curl -s "$URL$1" -d "$2"; }
# execute NAME ARGUMENTS [FILTER]: run a tool; prints its result, or what the jq filter selects
execute() { post /api/tools/execute "{\"name\":\"$1\",\"arguments\":$2}" | jq -r "${3-.result}"; }

@test "the list has five tools with schemas, with and without a slash, and in OpenAI's form" {
  run curl -s "$URL/api/tools/"
  [ "$output" = "$(curl -s "$URL/api/tools")" ]
  [ "$(jq -r '[.tools[].name] | join(" ")' <<<"$output")" = "calculator datetime parse_json string_ops rag_search" ] || { echo "$output"; return 1; }
  [ "$(jq -c '[.tools[] | .confirm, .destructive, .server] | unique' <<<"$output")" = '[null,false]' ]
  [ "$(jq -c .openai_format <<<"$output")" = "$(curl -s "$URL/api/tools/openai/functions" | jq -c .functions)" ]
  [ "$(jq -r '.openai_format | all(.type == "function" and .function.parameters.type == "object")' <<<"$output")" = true ]
  [ "$(jq -c '.openai_format[0].function.parameters.required' <<<"$output")" = '["expression"]' ]
}

@test "execute returns results and errors of tools; unknown tools and wrong bodies are refused" {
  [ "$(execute calculator '{"expression":"2+2*3"}')" = 8 ]
  [ "$(execute calculator '{"expression":"sqrt(16)+log(100)"}')" = 6 ]
  [ "$(execute calculator '{"expression":"1/0"}' '.result, .error')" = "$(printf 'null\ncharacter 4: division by zero')" ]
  [ "$(execute parse_json '{"json":"{\"data\":{\"items\":[{\"name\":\"x\"}]}}","path":"data.items[0].name"}')" = x ]
  [ "$(execute string_ops '{"operation":"reverse","text":"añb"}')" = bña ]
  [[ "$(execute datetime '{"timezone":"+02:00"}')" == *+02:00* ]]
  post /api/tools/execute '{"name":"calculator","tool_call_id":"c1","arguments":{"expression":"1"}}' |
    jq -e '. == {"tool_call_id":"c1","name":"calculator","result":"1","error":null}'
  [ "$(execute calculator '{}' .error)" = "expression: missing" ]
  [ "$(execute eval '{}' .error.code)" = unknown_tool ]
  [ "$(execute calculator '[]' .error.code)" = invalid_type ]
  [ "$(post /api/tools/execute '{}' | jq -r .error.code)" = missing ]
  [ "$(post /api/tools/execute '{"name":"calculator","x":1}' | jq -r .error.code)" = unknown_parameter ]
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/api/tools/execute" -d '{"name":"eval"}')" = 404 ]
  # a file that a tool writes may be the argument
  local n
  for n in 200000 300000; do
    jq -n --argjson n "$n" '{name: "string_ops", arguments: {operation: "length", text: ("x" * $n)}}' >"$BATS_TEST_TMPDIR/$n"
  done
  [ "$(post /api/tools/execute "@$BATS_TEST_TMPDIR/200000" | jq -r .result)" = 200000 ]
  [ "$(post /api/tools/execute "@$BATS_TEST_TMPDIR/300000" | jq -r .error.code)" = body_too_large ]
  # searching a text for calls takes quadratic time at worst
  jq -n '{content: ("<tool_call>{" * 4000)}' >"$BATS_TEST_TMPDIR/calls"
  [ "$(post /api/tools/parse "@$BATS_TEST_TMPDIR/calls" | jq -r .error.code)" = body_too_large ]
  [ "$(post /api/tools/process "@$BATS_TEST_TMPDIR/calls" | jq -r .error.code)" = body_too_large ]
}

@test "parse and process find every form of a call once, in order, and ids link calls to results" {
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

@test "each tool run has a line in the audit log, with the request's id" {
  curl -s "$URL/api/tools/execute" -H 'X-Request-Id: mine' -d '{"name":"calculator","tool_call_id":"c7","arguments":{"expression":"1/0"}}' >/dev/null
  recent() { curl -s -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$URL/api/audit/recent?limit=20"; }
  run recent
  [ "$(jq -c '[.entries[] | select(.request_id == "mine/c7")][0] | [.method, .path, .status_code, .error_message]' <<<"$output")" = \
    '["TOOL","/api/tools/calculator",422,"the tool reported an error"]' ] || { jq -c '.entries[:3]' <<<"$output"; return 1; }
}

@test "rag_search finds passages for a request, a chat and MCP; wrong arguments and missing documents are errors" {
  [ "$(execute rag_search '{}' .error)" = "query: missing" ]
  [ "$(execute rag_search '{"query":"x","top_k":0}' .error)" = "top_k: expected 1 to 20" ]
  [ -n "$(execute rag_search '{"query":"zebra"}')" ]
  post /api/rag/documents '{"name":"zoo.txt","content":"The zebra of the city zoo is called Marty. It eats grass."}' >/dev/null
  [[ "$(execute rag_search '{"query":"What is the name of the zebra?"}')" == *Marty* ]]
  [ "$(execute rag_search '{"query":"zebra","collections":["none"]}' .result)" = null ]
  run post /api/tools/process '{"content":"<tool_call>{\"name\":\"rag_search\",\"arguments\":{\"query\":\"zebra\"}}</tool_call> <tool_call>{\"name\":\"calculator\",\"arguments\":{\"expression\":\"1\"}}</tool_call>"}'
  [ "$(jq -c '[.results[0].result | contains("Marty")], .results[1].result' <<<"$output")" = "$(printf '[true]\n"1"')" ] || { echo "$output"; return 1; }
  run post /mcp '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"rag_search","arguments":{"query":"zebra"}}}'
  [[ "$(jq -r '.result.content[0].text' <<<"$output")" == *Marty* ]] || { echo "$output"; return 1; }
}

@test "a key needs the scope chat to run a tool, and none to see the list" {
  local home=$BATS_TEST_TMPDIR/home chat models URL PID
  export ZSE_HOME=$home
  chat=$(zse-apikey create chat --scope chat)
  models=$(zse-apikey create models --scope models)
  start "$BATS_TEST_TMPDIR/log" "$T/tiny.zse" --port 0
  await listens "$URL"
  local body='{"name":"calculator","arguments":{"expression":"1"}}'
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/api/tools")" = 401 ]
  [ "$(curl -s -H "X-API-Key: $models" -o /dev/null -w '%{http_code}' "$URL/api/tools")" = 200 ]
  [ "$(curl -s -H "X-API-Key: $models" "$URL/api/tools/execute" -d "$body" | jq -r .error.code)" = insufficient_scope ]
  [ "$(curl -s -H "X-API-Key: $chat" "$URL/api/tools/execute" -d "$body" | jq -r .result)" = 1 ]
  # a prompt may hold passages of documents, which need the scope, too
  [ "$(curl -s -H "X-API-Key: $models" "$URL/v1/chat/completions/render" -d '{"messages":[{"role":"user","content":"Hi"}]}' | jq -r .error.code)" = insufficient_scope ]
  # the key is charged once for the tokens of all rounds
  local limited tokens
  limited=$(zse-apikey create limited --scope chat --token-limit 5000/day)
  is_known() { [ "$(curl -s -H "X-API-Key: $limited" -o /dev/null -w '%{http_code}' "$URL/v1/models")" = 200 ]; }
  await is_known
  tokens=$(curl -s -H "X-API-Key: $limited" "$URL/v1/chat/completions" -d '{"max_tokens":100,"tool_choice":"required","parallel_tool_calls":false,"server_tools":["datetime"],"messages":[{"role":"user","content":"Hi"}]}' | jq .usage.total_tokens)
  [ "$tokens" -gt 500 ]
  [ "$(curl -s -H "Authorization: Bearer $(cat "$home/admin.token")" "$URL/api/keys" | jq '.keys[] | select(.name == "limited") | .token_count')" = "$tokens" ]
  kill -TERM "$PID" && wait "$PID"
}

# chat FIELDS: a request whose first answer must call a tool
chat() { post /v1/chat/completions "{\"temperature\":0,\"max_tokens\":200,\"tool_choice\":\"required\",\"parallel_tool_calls\":false,\"messages\":[{\"role\":\"user\",\"content\":\"What time is it?\"}],$1}"; }

@test "chat: the server runs its tools and answers with their results; usage is that of both rounds" {
  run chat '"server_tools":["datetime"]'
  [ "$(jq -r '.choices[0].finish_reason, .choices[0].message.tool_calls' <<<"$output")" = "$(printf 'stop\nnull')" ] || { echo "$output"; return 1; }
  [ "$(jq -c '[.tool_messages[].role]' <<<"$output")" = '["assistant","tool"]' ]
  [ "$(jq -r '.tool_messages[0].tool_calls[0].id == .tool_messages[1].tool_call_id' <<<"$output")" = true ]
  [ "$(jq -r '.tool_messages[0].tool_calls[0].function.arguments | fromjson | type' <<<"$output")" = object ]
  [ "$(jq -r '.usage.prompt_tokens > 800 and .usage.total_tokens == .usage.prompt_tokens + .usage.completion_tokens' <<<"$output")" = true ]
  # the client continues the conversation: nearly all of the prompt is in the prefix cache
  local again
  again=$(jq -c '{temperature: 0, max_tokens: 1, server_tools: ["datetime"], messages: ([{role: "user", content: "What time is it?"}] + .tool_messages + [.choices[0].message, {role: "user", content: "Thanks"}])}' <<<"$output")
  [ "$(post /v1/chat/completions "$again" | jq '.usage | .prompt_tokens - .prompt_tokens_details.cached_tokens < 40')" = true ]
  recent() { curl -s -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$URL/api/audit/recent?limit=20"; }
  [ "$(recent | jq -r '[.entries[] | select(.method == "TOOL")][0].path')" = /api/tools/datetime ]
}

@test "chat, streamed: calls and results come as events between the rounds, and the parts add up to the whole answer" {
  local whole
  whole=$(chat '"server_tools":["datetime"]')
  chat '"server_tools":["datetime"],"stream":true,"stream_options":{"include_usage":true}' | sed -n 's/^data: //p' | grep -v '^\[DONE\]' >"$T/events"
  [ "$(jq -c 'select(.tool_event) | .tool_event | [.type, .name, .round]' "$T/events")" = "$(printf '["call","datetime",1]\n["result","datetime",1]')" ] || { cat "$T/events"; return 1; }
  [ "$(jq -s -c '[.[].tool_event | select(.)] | .[0].id == .[1].id and .[1].is_error == false and (.[1].content | startswith("20")) and (.[0].arguments | fromjson | type == "object")' "$T/events")" = true ]
  [ "$(jq -s '[.[].choices[0].delta.tool_calls | select(.)] | length' "$T/events")" = 0 ]
  [ "$(jq -s -r '[.[].choices[0].delta.content | select(.)] | add' "$T/events")" = "$(jq -r '.choices[0].message.content' <<<"$whole")" ]
  [ "$(jq -s '[.[].choices[0].delta.role | select(.)] | length' "$T/events")" = 1 ]
  [ "$(jq -s -c '[.[].choices[0].finish_reason | select(.)]' "$T/events")" = '["stop"]' ]
  [ "$(jq -s '.[-1].usage.completion_tokens' "$T/events")" = "$(jq .usage.completion_tokens <<<"$whole")" ]
}

@test "chat: calls of the client's functions, and those beyond max_tool_rounds, are returned to the client with the reason" {
  local mine='"tools":[{"type":"function","function":{"name":"mine","parameters":{"type":"object","properties":{},"additionalProperties":false}}}]'
  run post /v1/chat/completions '{"temperature":0,"messages":[{"role":"user","content":"Hi"}],'"$mine"',"server_tools":["datetime"],"tool_choice":{"type":"function","function":{"name":"mine"}}}'
  [ "$(jq -c '[.choices[0].finish_reason, .choices[0].message.tool_calls[0].function.name, .tool_stop.reason, (.tool_stop.ids[0] == .choices[0].message.tool_calls[0].id)]' <<<"$output")" = \
    '["tool_calls","mine","client_function",true]' ] || { echo "$output"; return 1; }
  run chat '"server_tools":["datetime"],"max_tool_rounds":1'
  [ "$(jq -c '[.choices[0].finish_reason, .choices[0].message.tool_calls[0].function.name, .tool_stop.reason, .tool_messages]' <<<"$output")" = \
    '["tool_calls","datetime","max_rounds",[]]' ] || { echo "$output"; return 1; }
  chat '"server_tools":["datetime"],"max_tool_rounds":1,"stream":true' | sed -n 's/^data: //p' | grep -v '^\[DONE\]' >"$T/events"
  [ "$(jq -s -c '[.[].choices[0].delta.tool_calls | select(.)] | [length, .[0][0].function.name]' "$T/events")" = '[1,"datetime"]' ]
  [ "$(jq -s -c '.[-1] | [.choices[0].finish_reason, .tool_stop.reason]' "$T/events")" = '["tool_calls","max_rounds"]' ]
}

@test "chat: all tools and names that end with * can be chosen; wrong names and conflicting fields are refused" {
  [ "$(post /apply-template '{"tools":"server","messages":[{"role":"user","content":"a"}]}' | jq -r .prompt | grep -cE '"(calculator|datetime|parse_json|string_ops|rag_search)"')" = 5 ]
  [ "$(chat '"server_tools":["calc*","date*"]' | jq -r '.tool_messages | length >= 2')" = true ]
  [ "$(chat '"server_tools":["date*"]' | jq -r '.tool_messages[0].tool_calls[0].function.name')" = datetime ]
  [ "$(chat '"server_tools":["eval"]' | jq -r .error.code)" = not_found ]
  [ "$(chat '"server_tools":["calc*","eval*"]' | jq -r .error.code)" = not_found ]
  [ "$(chat '"server_tools":[]' | jq -r .error.code)" = not_found ]
  [ "$(chat '"server_tools":"calculator"' | jq -r .error.code)" = invalid_type ]
  [ "$(chat '"tools":"all"' | jq -r .error.param)" = tools ]
  [ "$(chat '"tools":"server","server_tools":["calculator"]' | jq -r .error.param)" = server_tools ]
  [ "$(chat '"tools":"server","n":2' | jq -r .error.param)" = n ]
  [ "$(chat '"tools":"server","logprobs":true' | jq -r .error.param)" = logprobs ]
  [ "$(chat '"tools":"server","confirmed_tools":"x"' | jq -r .error.param)" = confirmed_tools ]
  [ "$(chat '"tools":"server","max_tool_rounds":33' | jq -r .error.param)" = max_tool_rounds ]
  [ "$(chat '"tools":[{"type":"function","function":{"name":"datetime"}}],"server_tools":["datetime"]' | jq -r .error.code)" = invalid_tool ]
  [ "$(post /apply-template '{"server_tools":["calculator"],"messages":[{"role":"user","content":"a"}]}' | jq -r .prompt | grep -c '"calculator"')" = 1 ]
}

@test "chat: clients that leave in any round, and many at once, leave nothing behind" {
  local i blocks
  for i in 1 2 3 4 5 6 7 8; do
    timeout 0.0$i curl -sN -o /dev/null "$URL/v1/chat/completions" -d '{"max_tokens":300,"seed":'$i',"stream":true,"tools":"server","tool_choice":"required","messages":[{"role":"user","content":"Hello"}]}' &
    chat '"tools":"server","seed":'$i >/dev/null &
  done
  wait
  idle() { [ "$(curl -s "$URL/api/stats/models" | jq '[.. | .running? // empty, .waiting? // empty] | add // 0')" = 0 ]; }
  await idle
  blocks=$(curl -s "$URL/api/stats/models" | jq '.models[0] | .kv_blocks - .kv_blocks_free - .kv_blocks_prefix')
  [ "$blocks" = 0 ] || { curl -s "$URL/api/stats/models"; return 1; }
  [ "$(chat '"server_tools":["datetime"]' | jq -r '.choices[0].finish_reason')" = stop ]
}

@test "the mcp package can use /mcp in each revision; messages that it does not send are answered too" {
  installed mcp || skip "no mcp package in build/venv (scripts/deps makes it)"
  run build/venv/bin/python tests/serve/mcp_client.py http "$URL/mcp"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  [ "$(grep -c '^ok ' <<<"$output")" = 84 ] || { echo "$output"; return 1; }
}

@test "--mcp-stdio: the mcp package starts the server; invalid lines are answered, and it ends with its input" {
  run zse-serve --mcp-stdio < <(printf '{"jsonrpc":"2.0","id":1,"method":"ping"}\n\nrubbish\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"calculator","arguments":{"expression":"6*7"}}}\n{"jsonrpc":"2.0","id":2')
  [ "$status" = 0 ]
  [ "$(jq -c '[.id, .result.content[0].text, .error.code]' <<<"$output")" = "$(printf '[1,null,null]\n[null,null,-32700]\n["a","42",null]\n[null,null,-32700]')" ] || { echo "$output"; return 1; }
  run zse-serve --mcp-stdio < <(head -c 5000000 /dev/zero | tr '\0' '['; echo; echo '{"jsonrpc":"2.0","id":1,"method":"ping"}')
  [ "$(jq -c .id <<<"$output")" = "$(printf 'null\n1')" ]
  run -2 zse-serve --mcp-stdio model.zse
  installed mcp || skip "no mcp package in build/venv (scripts/deps makes it)"
  run build/venv/bin/python tests/serve/mcp_client.py stdio "$(command -v zse-serve)" --mcp-stdio
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  [ "$(grep -c '^ok ' <<<"$output")" = 36 ] || { echo "$output"; return 1; }
}

# config NAME=MODE[:FIELDS]...: print a file for --mcp-config; each server is
# tests/serve/mcp_servers.py MODE
config() {
  local a list=
  for a; do
    list="$list${list:+,}\"${a%%=*}\":{\"command\":\"python3\",\"args\":[\"-B\",\"$PWD/tests/serve/mcp_servers.py\",$(sed 's/[^ ]*/"&"/g; s/ /,/g' <<<"$(sed 's/^[^=]*=//; s/:.*//' <<<"$a")")]$(sed -n 's/^[^:]*:/,/p' <<<"$a")}"
  done
  echo "{\"mcpServers\":{$list}}"
}
server_state() { curl -s "$URL/api/tools" | jq -r --arg n "$1" '.servers[] | select(.name == $n) | .state'; }

@test "--mcp-config: servers that die, flood, hang, print rubbish or half a line fail alone, with a reason, and come back" {
  local URL PID f=$BATS_TEST_TMPDIR/mcp.json log=$BATS_TEST_TMPDIR/log pid
  SECRET=s3cret config plain=plain old=old dies=dies half=half flood=flood rubbish=rubbish 'deaf=deaf:"timeout":1' \
    'env=env:"env":{"MINE":"yes"}' 'few=many 5:"tools":["tool_1","tool_3*"],"confirm":["*_3"]' >"$f"
  jq '.mcpServers.absent = {command: "/nonexistent/server"} | .mcpServers.off = {command: "false", disabled: true}' "$f" >"$f.2"
  SECRET=s3cret start "$log" --port 0 --mcp-config "$f.2"
  local name
  for name in plain old dies flood deaf env few; do await says ready server_state "$name"; done
  for name in half rubbish absent; do await says failed server_state "$name"; done
  [ "$(execute plain__call '{}')" = "$(printf 'done\n[image image/png]')" ]
  run execute dies__call '{}' .error
  [ "$output" = "dies: the server ended with status 5: the disk is on fire" ] || { echo "$output"; return 1; }
  [ "$(execute flood__call '{}' .error)" = "flood: a message of more than 8388608 bytes" ]
  [ "$(execute deaf__call '{}' .error)" = "deaf: no answer within 1 s" ]
  [[ "$(curl -s "$URL/api/tools" | jq -r '.servers[] | select(.name == "half") | .error')" == half:\ the\ server\ * ]]
  [ "$(curl -s "$URL/api/tools" | jq -r '.servers[] | select(.name == "absent") | .error')" = "/nonexistent/server: No such file or directory" ]
  # a server gets only the listed environment variables and those of its configuration
  run execute env__call '{}'
  [ "$(jq -r '.MINE, .SECRET, (.PATH | length > 0), ([keys[] | select(startswith("BATS") or startswith("ZSE"))] | length)' <<<"$output")" = "$(printf 'yes\nnull\ntrue\n0')" ] || { echo "$output"; return 1; }
  # the allow-list, and confirmations that the configuration asks for
  [ "$(curl -s "$URL/api/tools" | jq -c '[.tools[] | select(.server == "few") | [.name, .confirm]]')" = '[["few__tool_1",false],["few__tool_3",false]]' ]
  # servers that failed are started again; the others keep running
  pid=$(execute plain__pid '{}')
  for name in dies flood; do await says ready server_state "$name"; done
  [[ "$(execute dies__pid '{}')" =~ ^[0-9]+$ ]]
  [ "$(execute plain__pid '{}')" = "$pid" ]
  # a server that hangs delays only calls of its own tools
  local i
  for i in 1 2 3 4 5 6 7 8; do execute deaf__call '{}' >/dev/null & done
  [ "$(execute calculator '{"expression":"1+1"}')" = 2 ]
  [ "$(execute plain__pid '{}')" = "$pid" ]
  kill -KILL "$PID"                             # the children end with the server
  gone() { ! kill -0 "$pid" 2>/dev/null; }
  await gone
}

@test "--mcp-config: tools with malformed or huge names and schemas do not make requests fail" {
  local URL PID f=$BATS_TEST_TMPDIR/mcp.json name
  config bombs=bombs plain=plain nul=nul >"$f"
  cp -r models/tiny "$BATS_TEST_TMPDIR/wide"
  jq '.max_position_embeddings = 131072' models/tiny/config.json >"$BATS_TEST_TMPDIR/wide/config.json"
  start "$BATS_TEST_TMPDIR/log" "$BATS_TEST_TMPDIR/wide" --ctx 65536 --port 0 --mcp-config "$f"
  await listens "$URL"
  for name in bombs plain; do await says ready server_state "$name"; done
  await says failed server_state nul
  run curl -s "$URL/api/tools"
  [[ "$(jq -r '.servers[] | select(.name == "nul") | .error' <<<"$output")" == 'nul: the server sends a malformed message: line 1, column '* ]] || { echo "$output" | tail -c 500; return 1; }
  [ "$(jq '[.tools[] | select(.server == "bombs")] | length' <<<"$output")" = 14 ] || { echo "$output" | head -c 2000; return 1; }
  [ "$(jq -c '[.tools[].name | select(test("^[A-Za-z0-9_.-]{1,64}$") | not)]' <<<"$output")" = '[]' ]
  [ "$(jq '[.tools[] | .description | utf8bytelength] | max <= 8192' <<<"$output")" = true ]
  # one tool at a time: it is called, but with a bad schema its arguments are not constrained
  for name in type ref loop deep enum large items pattern broken bounds properties call; do
    run post /v1/chat/completions '{"max_tokens":48,"temperature":0,"max_tool_rounds":1,"tool_choice":"required","messages":[{"role":"user","content":"hi"}],"server_tools":["bombs__'$name'"]}'
    [ "$(jq -r '.choices[0].finish_reason | IN("tool_calls","length")' <<<"$output")" = true ] || { echo "$name: $output"; return 1; }
  done
  run curl -si "$URL/v1/chat/completions" -d '{"max_tokens":8,"messages":[{"role":"user","content":"hi"}],"server_tools":["bombs__broken","calculator"]}'
  [[ $output == *"X-Not-Enforced: function 'bombs__broken': /"* ]] || { echo "$output"; return 1; }
  # all together
  run post /v1/chat/completions '{"max_tokens":8,"messages":[{"role":"user","content":"hi"}],"tools":"server"}'
  [ "$(jq -r '.choices | length' <<<"$output")" = 1 ] || { echo "$output"; return 1; }
  # a function of the client with a bad schema is still refused
  run post /v1/chat/completions '{"max_tokens":8,"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string","pattern":"(["}}}}}]}'
  [ "$(jq -r .error.code <<<"$output")" = invalid_schema ] || { echo "$output"; return 1; }
}

@test "--mcp-config: a hostile server does no harm: floods of requests and notifications, foreign ids, half lines, control characters" {
  local URL PID f=$BATS_TEST_TMPDIR/mcp.json log=$BATS_TEST_TMPDIR/log began=$SECONDS
  config 'hostile=hostile:"timeout":20' plain=plain >"$f"
  start "$log" --port 0 --mcp-config "$f"
  await says ready server_state hostile
  [ "$(execute hostile__twice '{}')" = first ]
  [ "$(execute hostile__twice '{}')" = first ]
  [ "$(execute hostile__wrong '{}')" = "$(printf '[?]\n[?]\n[?]\n[text]\n[resource]\n[?]')" ] || { execute hostile__wrong '{}' .; return 1; }
  execute hostile__call '{}' . >/dev/null
  [ "$(execute hostile__lists '{}')" -le $((SECONDS - began + 2)) ]     # each list makes it say that the list has changed
  run execute hostile__cut '{}' .error
  [[ $output == 'hostile: the server ended with status 9: '* ]] && [[ $output != *$'\e'* ]] || { echo "$output"; return 1; }
  [ "$(execute plain__call '{}' .error)" = null ]
  await says ready server_state hostile
  [ "$(execute hostile__twice '{}')" = first ]
  run ! grep -q "$(printf '\e')" "$log.err"
  kill -TERM "$PID" && wait "$PID"
}

@test "--mcp-config: hostile servers over HTTP: redirects are not followed, endless streams and compressed bodies are limited" {
  local URL PID f=$BATS_TEST_TMPDIR/mcp.json port bad name
  mkfifo "$BATS_TEST_TMPDIR/p"
  python3 -B tests/serve/mcp_servers.py badhttp >"$BATS_TEST_TMPDIR/p" 2>/dev/null 3>&- &
  bad=$!
  read -r port <"$BATS_TEST_TMPDIR/p"
  jq -n --arg u "http://127.0.0.1:$port/" '{mcpServers: (["redirect", "endless", "html", "gzip"] | map({key: ., value: {url: ($u + .)}}) | from_entries)}' >"$f"
  start "$BATS_TEST_TMPDIR/log" --port 0 --mcp-config "$f"
  for name in redirect endless html gzip; do await says failed server_state "$name"; done
  run curl -s "$URL/api/tools"
  [ "$(jq -r '.servers[] | select(.name == "redirect") | .error' <<<"$output")" = "redirect: http://127.0.0.1:$port/redirect: HTTP status 302 without an answer" ] || { echo "$output"; return 1; }
  [ "$(jq -r '.servers[] | select(.name == "endless") | .error' <<<"$output")" = "endless: a message of more than 8388608 bytes" ] || { echo "$output"; return 1; }
  [ "$(jq -r '.servers[] | select(.name == "html") | .error' <<<"$output")" = "html: http://127.0.0.1:$port/html: HTTP status 200 without an answer" ] || { echo "$output"; return 1; }
  [ "$(curl -s "http://127.0.0.1:$port/count")" = 0 ]
  [ "$(execute calculator '{"expression":"6*7"}')" = 42 ]
  kill "$bad"
  kill -TERM "$PID" && wait "$PID"
}

@test "--mcp-config: wrong files are refused with the server and the field" {
  local f=$BATS_TEST_TMPDIR/f
  refused() { echo "$1" >"$f"; run -1 timeout 20 zse-serve --port 0 --mcp-config "$f"; [[ "$output" == *"$2"* ]] || { echo "$output"; return 1; }; }
  refused '{}' 'mcpServers: missing'
  # the file of servers is read before the model, so its error comes first
  run -1 zse-serve --port 0 --mcp-config "$T/no-file.json" "$T/no-model.zse"
  [[ "$output" == *no-file.json* && "$output" != *no-model* ]] || { echo "$output"; return 1; }
  refused '{"mcpServers":{"a__b":{"command":"x"}}}' "'a__b': expected a name"
  refused '{"mcpServers":{"a":{}}}' 'a: expected either command or url'
  refused '{"mcpServers":{"a":{"command":"x","url":"http://x"}}}' 'a: expected either command or url'
  refused '{"mcpServers":{"a":{"url":"ftp://x"}}}' 'a: url:'
  refused '{"mcpServers":{"a":{"url":"http://x","type":"sse"}}}' "a: type: 'sse', expected stdio (command) or http (url)"
  refused '{"mcpServers":{"a":{"command":"x","args":[1]}}}' 'a: args: expected a list of texts'
  refused '{"mcpServers":{"a":{"command":"x","env":[]}}}' 'a: env: expected an object of texts'
  refused '{"mcpServers":{"a":{"command":"x","timeout":0}}}' 'a: timeout: 0, expected seconds'
  refused '{"mcpServers":{"a":{"command":"x","comand":"y"}}}' 'a: comand: there is no such field'
  refused '{' "$f: line"
  rm "$f"
  run -1 zse-serve --port 0 --mcp-config "$f"
}

# bats test_tags=plain
@test "--mcp-config: the official package works as the server, over standard input and over HTTP; a destructive tool needs a confirmation" {
  installed mcp || skip "no mcp package in build/venv (scripts/deps makes it)"
  local URL PID f=$BATS_TEST_TMPDIR/mcp.json port py=$PWD/build/venv/bin/python s=$PWD/tests/serve/mcp_servers.py web
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  "$py" "$s" http "$port" >/dev/null 2>&1 3>&- &
  web=$!
  jq -n --arg py "$py" --arg s "$s" --arg u "http://127.0.0.1:$port/mcp" \
    '{mcpServers: {good: {command: $py, args: [$s, "good"]}, web: {url: $u, type: "http", headers: {"X-Test": "é"}}}}' >"$f"
  start "$BATS_TEST_TMPDIR/log" "$T/tiny.zse" --port 0 --mcp-config "$f"
  local n
  for n in good web; do
    await says ready server_state $n
    [ "$(execute ${n}__add '{"a":2,"b":3}')" = 5 ]
    [[ "$(execute ${n}__fail '{}' .error)" == *"Error executing tool fail"* ]]
    [ "$(execute ${n}__delete '{"name":"f"}' .error.code)" = confirmation_required ]
    [ "$(post /api/tools/execute '{"name":"'$n'__delete","arguments":{"name":"f"},"confirm":true}' | jq -r .result)" = "deleted f" ]
    [ "$(curl -s "$URL/api/tools" | jq -c '[.tools[] | select(.name == "'$n'__delete") | .destructive, .confirm, .server]')" = '[true,true,"'$n'"]' ]
  done
  grep -q 'MCP server good: ready, 4 tools, revision 2026-07-28' "$BATS_TEST_TMPDIR/log.err"
  # in a chat the call does not run until the request confirms it
  await listens "$URL"
  run chat '"server_tools":["good__delete"]'
  [ "$(jq -c '[.choices[0].finish_reason, .tool_stop.reason, .choices[0].message.tool_calls[0].function.name]' <<<"$output")" = '["tool_calls","confirm","good__delete"]' ] || { echo "$output"; return 1; }
  run chat '"server_tools":["good__delete"],"confirmed_tools":["good__del*"]'
  [[ "$(jq -r '.tool_messages[1].content' <<<"$output")" == deleted\ * ]] || { echo "$output"; return 1; }
  [ "$(chat '"server_tools":["web__add"]' | jq '.tool_messages | length >= 2')" = true ]
  # a killed server causes an error, but affects no other server
  kill -KILL "$web"
  [[ "$(execute web__add '{"a":2,"b":3}' .error)" == web:* ]]
  [ "$(execute good__add '{"a":2,"b":3}')" = 5 ]
  kill -TERM "$PID" && wait "$PID"
}

# bats test_tags=plain
@test "with forty tools the second turn of a conversation computes only what is new" {
  local URL PID f=$BATS_TEST_TMPDIR/mcp.json
  config 'many=many 36' >"$f"
  cp -r models/tiny "$BATS_TEST_TMPDIR/wide"    # with a context that has room for them
  jq '.max_position_embeddings = 32768' models/tiny/config.json >"$BATS_TEST_TMPDIR/wide/config.json"
  start "$BATS_TEST_TMPDIR/log" "$BATS_TEST_TMPDIR/wide" --ctx 32768 --port 0 --mcp-config "$f"
  await listens "$URL"
  await says ready server_state many
  turn() { post /v1/chat/completions '{"temperature":0,"max_tokens":8,"tools":"server","messages":['"$1"']}' | jq -c '[.usage.prompt_tokens, .usage.prompt_tokens_details.cached_tokens]'; }
  local first second alone
  alone=$(post /v1/chat/completions '{"max_tokens":1,"messages":[{"role":"user","content":"Hi"}]}' | jq .usage.prompt_tokens)
  first=$(turn '{"role":"user","content":"Hi"}')
  second=$(turn '{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello."},{"role":"user","content":"And now?"}')
  echo "# prompt tokens, of which cached: $alone without tools; with 40 tools $first, then $second" >&3
  [ "$(jq -n --argjson a "$first" --argjson b "$second" '$a[0] > 4000 and $b[0] - $b[1] < 64')" = true ]
  kill -TERM "$PID" && wait "$PID"
}

@test "--mcp-config: an older server over HTTP works: its session, its streams that stay open, a session that ends, no server at all" {
  local URL PID f=$BATS_TEST_TMPDIR/mcp.json port web
  mkfifo "$BATS_TEST_TMPDIR/port"
  python3 -B tests/serve/mcp_servers.py oldhttp >"$BATS_TEST_TMPDIR/port" 3>&- &
  web=$!
  read -r port <"$BATS_TEST_TMPDIR/port"
  echo '{"mcpServers":{"web":{"url":"http://127.0.0.1:'"$port"'/mcp","timeout":5},"none":{"url":"http://127.0.0.1:1/mcp"}}}' >"$f"
  start "$BATS_TEST_TMPDIR/log" --port 0 --mcp-config "$f"
  await says ready server_state web
  [ "$(execute web__call '{}')" = s0 ]
  [ "$(execute web__forget '{}')" = s0 ]
  run execute web__call '{}' .error
  [[ "$output" == *"HTTP status 404 without an answer" ]] || { echo "$output"; return 1; }
  again() { [[ "$(execute web__call '{}')" =~ ^s[0-9]+$ ]]; }
  await again
  await says failed server_state none
  [[ "$(curl -s "$URL/api/tools" | jq -r '.servers[] | select(.name == "none") | .error')" == none:\ http://127.0.0.1:1/mcp:* ]]
  kill -TERM "$PID" && wait "$PID"
  kill -KILL "$web"
}

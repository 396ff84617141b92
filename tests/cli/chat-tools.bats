# chat-tools.bats - zse-chat --tools and --mcp-config: calls of tools, questions, bounds.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export T=$BATS_FILE_TMPDIR ZSE_HOME=$BATS_FILE_TMPDIR/home
  zse-convert models/tiny -o "$T/tiny.zse" --quality fast >/dev/null
  mkfifo "$T/a"
  python3 -B tests/serve/fake.py >"$T/a" 2>"$T/a.err" 3>&- &
  echo $! >"$T/pids"
  read -r FAKE <"$T/a"
  export FAKE
  jq -n --arg s "$PWD/tests/serve/mcp_servers.py" '{mcpServers: (["plain", "escape", "flood", "deaf"] | map({key: ., value: {command: "python3", args: ["-B", $s, .], timeout: 5}}) | from_entries)}' >"$T/mcp.json"
}
teardown_file() {
  local p
  while read -r p; do kill "$p"; done <"$T/pids"
}
setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }
# ask MODEL CALLS OPTION...: a question to MODEL of tests/serve/fake.py; CALLS is the question, a
# JSON list of the calls that the model is to make
ask() { run --separate-stderr zse-chat --url "$FAKE" -m "$1" -p "$2" "${@:3}" </dev/null; }
# talk_to MODEL CONFIG LINE...: a conversation on a terminal, scripted by LINEs, with the MCP
# servers of CONFIG
talk_to() {
  printf '%s\n' "${@:3}" >"$T/script"
  NO_COLOR=1 run tests/lib/talk zse-chat --url "$FAKE" -m "$1" --mcp-config "$2" <"$T/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
}

@test "options that exclude each other, unknown tools and unreadable files are refused" {
  run -2 --separate-stderr zse-chat "$T/tiny.zse" --yes -p x
  [[ $stderr == *'--yes needs --tools or --mcp-config'* ]]
  local o
  for o in --raw --ids '--regex x' "--batch $T/a"; do
    # shellcheck disable=SC2086
    run -2 --separate-stderr zse-chat "$T/tiny.zse" --tools all $o -p x
    [[ $stderr == *'cannot be used with --tools'* ]] || [[ $stderr == *'exclude each other'* ]] || { echo "$o: $stderr"; return 1; }
  done
  run -1 --separate-stderr zse-chat "$T/tiny.zse" --tools calculator -p $'\377' </dev/null
  [ "$stderr" = 'zse-chat: that is not UTF-8' ]
  run -1 --separate-stderr zse-chat "$T/tiny.zse" --tools calculator,hammer -p x </dev/null
  [[ $stderr == *"--tools: 'hammer' is no tool"* ]]
  run -1 --separate-stderr zse-chat "$T/tiny.zse" --mcp-config "$T/nowhere.json" -p x </dev/null
  [[ $stderr == *"$T/nowhere.json: No such file"* ]]
}

@test "with a local model a tool that only reads runs without confirmation" {
  local q
  for q in 'What is 12*12? Use the calculator.' 'Use the calculator.' 'Compute 3*4' 'What is 7+8?' 'calculator 5*5'; do
    run --separate-stderr zse-chat "$T/tiny.zse" --temp 0 --tools calculator --json -p "$q" </dev/null
    [ "$status" = 0 ] || { echo "$stderr"; return 1; }
    [ "$(jq '.tool_calls | length' <<<"$output")" = 0 ] || break
  done
  [ "$(jq -r '.tool_calls[0] | .name, (.arguments | fromjson | type), .round' <<<"$output")" = "$(printf 'calculator\nobject\n1')" ] || { echo "$output"; return 1; }
  [[ $stderr == *'zse-chat: calculator {"expression":'* ]]
  [[ $output != *'<tool_call>'* ]]
}

@test "with a server, calls that arrive in pieces run in parallel, and the answer uses their results" {
  ask tools '[["calculator",{"expression":"6*7"}],["string_ops",{"operation":"reverse","text":"añb"}]]' --tools all
  [ "$status" = 0 ]
  [ "$output" = "$(printf 'Let me look. \ngot 42 | bña')" ] || { echo "$output"; return 1; }
  [ "$(grep -c '^zse-chat: ' <<<"$stderr")" = 2 ]
  ask tools '[["calculator",{"expression":"1/0"}],["calculator","{"],["calculator","[1]"],["hammer",{}]]' --tools calculator --json
  [ "$status" = 1 ] || { echo "$output $stderr"; return 1; }            # hammer is no tool
  [ "$(jq -r '[.tool_calls[].state] | unique[]' <<<"$output")" = failed ]
  [[ $(jq -r .text <<<"$output") == *'division by zero | Error: arguments: line 1'*'| Error: arguments: found an array, expected an object | Error: the user did not allow this call' ]] || { echo "$output"; return 1; }
}

@test "in a pipe a tool that may change something is refused, unless --allow-tools or --yes allows it" {
  ask tools '[["plain__call",{}]]' --mcp-config "$T/mcp.json"
  [ "$status" = 1 ]
  [[ $stderr == *'plain__call was not run: without a terminal it needs --allow-tools or --yes'* ]]
  [[ $output == *'got Error: the user did not allow this call' ]]
  ask tools '[["plain__call",{}]]' --mcp-config "$T/mcp.json" --allow-tools 'plain__*'
  [ "$status" = 0 ]
  [[ $output == *"$(printf 'got done\n[image image/png]')" ]] || { echo "$output $stderr"; return 1; }
  ask tools '[["plain__call",{}],["deaf__call",{}]]' --mcp-config "$T/mcp.json" --tools 'plain__*' --yes
  [[ $output == *'got done'*'| Error: deaf: no answer within 5 s' ]] || { echo "$output $stderr"; return 1; }
}

@test "on a terminal each call asks for yes, no or always; a tool's output cannot control the terminal; the history has the calls" {
  talk_to tools "$T/mcp.json" 'expect >' ready 'send [["plain__call",{"n":1}]]' 'expect plain__call {"n": 1}' 'expect a.lways' ready 'send y' 'expect got done' \
    ready 'send [["plain__call",{"n":2}]]' 'expect a.lways' ready 'send n' 'expect got Error: the user did not allow this call' \
    ready 'send [["plain__call",{"n":3}]]' 'expect a.lways' ready 'key c' 'expect did not allow' \
    ready 'send [["plain__call",{"n":4}]]' 'expect a.lways' ready 'send always' 'expect got done' \
    ready 'send [["plain__call",{"n":5}]]' 'not a.lways' 'expect got done' \
    ready 'send [["escape__call",{}]]' 'expect a.lways' ready 'send y' 'expect red' \
    ready 'send /tools' 'expect plain__call' ready 'key d' 'end 0'
  [[ $output != *$'\e[31m'* ]]
  run zse-chat --history --json
  local id
  id=$(jq -r '.conversations[0].id' <<<"$output")
  [ "$(jq -r '.conversations[0].message_count' <<<"$output")" = 12 ]
  # with --continue the model gets earlier calls and their results as messages
  run --separate-stderr zse-chat --url "$FAKE" -m echo --continue="$id" -p again </dev/null
  [ "$(jq -c '[.messages[].role] | .[:8]' <<<"$output")" = '["user","assistant","tool","assistant","user","assistant","tool","assistant"]' ] || { echo "$output"; return 1; }
  [ "$(jq -c '.messages[1].tool_calls[0] | [.function.name, .function.arguments]' <<<"$output")" = '["plain__call","{\"n\": 1}"]' ]
  [ "$(jq -r '.messages[1].tool_calls[0].id == .messages[2].tool_call_id' <<<"$output")" = true ]
}

@test "rounds per turn and lengths of results are limited; Ctrl-C ends a tool that hangs" {
  ask loop '[["calculator",{"expression":"1"}]]' --tools calculator --json
  [ "$status" = 0 ]
  [ "$(jq '.tool_calls | length' <<<"$output")" = 7 ]
  [[ $stderr == *'the model called tools in 7 rounds'* ]]
  ask gap '[["calculator",{"expression":"1"}]]' --tools calculator
  [ "$status" = 1 ]
  [[ $stderr == *'tool calls are out of order or too many'* ]]
  ask tools '[["flood__call",{}]]' --mcp-config "$T/mcp.json" --yes
  [[ $output == *'Error: flood: a message of more than 8388608 bytes' ]] || { echo "$output $stderr"; return 1; }
  jq '.mcpServers = {deaf: .mcpServers.deaf} | .mcpServers.deaf.timeout = 3600 | .mcpServers.deaf.env = {HEARD: $h}' --arg h "$T/heard" "$T/mcp.json" >"$T/deaf.json"
  talk_to tools "$T/deaf.json" 'expect >' ready 'send [["deaf__call",{}]]' 'expect a.lways' ready 'send y' \
    "run until grep -q tools/call $T/heard; do sleep 0.05; done" 'key c' 'expect stopped' ready 'key d' 'end 0'
}

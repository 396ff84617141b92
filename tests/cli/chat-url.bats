# chat-url.bats - zse-chat --url: our own server, and one that behaves as others do and breaks.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export T=$BATS_FILE_TMPDIR ZSE_HOME=$BATS_FILE_TMPDIR/home
  zse-convert models/tiny -o "$T/tiny.zse" --quality fast >/dev/null
  mkfifo "$T/a" "$T/b"
  zse-serve "$T/tiny.zse" --port 0 --quiet >"$T/a" 2>"$T/a.err" 3>&- &
  echo $! >"$T/pids"
  python3 -B tests/serve/fake.py >"$T/b" 2>"$T/b.err" 3>&- &
  echo $! >>"$T/pids"
  read -r _ _ URL <"$T/a"
  read -r FAKE <"$T/b"
  export URL FAKE
  await listens "$URL"
}
teardown_file() {
  local p
  while read -r p; do kill "$p"; done <"$T/pids"
}
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  unset ZSE_API_KEY OPENAI_API_KEY CURL_CA_BUNDLE SSL_CERT_FILE http_proxy HTTP_PROXY all_proxy ALL_PROXY
}
ours() { run --separate-stderr zse-chat --url "$URL" "$@"; }
fake() { run --separate-stderr zse-chat --url "$FAKE" "$@"; }

@test "our server gives the same answers as the program itself: piped, as JSON, raw, in a batch" {
  ours --temp 0 -p 'What is 2+2?'
  [ "$status" = 0 ] && [ "$output" = "2 + 2 = 4" ] && [ -z "$stderr" ] || { echo "$output $stderr"; return 1; }
  [ "$(echo 'What is 2+2?' | zse-chat --url "$URL/v1/" tiny --temp 0)" = "2 + 2 = 4" ]
  ours -m tiny --temp 0 -p 'What is 2+2?' --json
  [ "$(jq -c '[.text, .finish_reason, .model, .usage.prompt_tokens, .usage.completion_tokens, (.timings | keys)]' <<<"$output")" = '["2 + 2 = 4","stop","tiny",15,8,["decode_s","first_token_s"]]' ]
  local raw='<|im_start|>user
What is 2+2?<|im_end|>
<|im_start|>assistant
'
  ours --raw --temp 0 -p "$raw" --stop '<|im_end|>'
  [ "$output" = "$(zse-chat "$T/tiny.zse" --raw --temp 0 -p "$raw" --stop '<|im_end|>')" ]
  printf 'What is 2+2?\nWhat is the capital of France?\nWhat is 2+2?\n' >"$T/questions"
  ours --temp 0 --batch "$T/questions" --parallel 2
  [ "$output" = "$(zse-chat "$T/tiny.zse" --temp 0 --batch "$T/questions")" ]
  [ "${#lines[@]}" = 3 ]
  ours --temp 0 --batch "$T/questions" --json
  [ "$(jq -r .text <<<"$output" | tail -n 1)" = "2 + 2 = 4" ]
}

@test "piped text follows the prompt; an empty prompt sends no request" {
  local want
  want=$(zse-chat --url "$URL" -n 1 --json -p $'Summarize:\n\none\ntwo' </dev/null | jq .usage.prompt_tokens)
  [ "$(printf 'one\ntwo\n' | zse-chat --url "$URL" -n 1 --json -p Summarize: | jq .usage.prompt_tokens)" = "$want" ]
  run -2 --separate-stderr zse-chat --url http://127.0.0.1:1 -p ' ' </dev/null
  [[ -z $output && $stderr == "zse-chat: the prompt is empty"* ]]
  printf 'What is 2+2?\n\n' >"$T/blank"
  ours --temp 0 --batch "$T/blank"
  [ "$status" = 1 ] && [ "${lines[0]}" = "2 + 2 = 4" ] && [ "${lines[1]}" = "error: the prompt is empty: there is nothing to answer" ]
}

@test "our server gets the constraints, sampling options and limits" {
  ours --seed 5 --temp 1.5 -n 20 -p hi
  [ "$output" = "$(zse-chat "$T/tiny.zse" --seed 5 --temp 1.5 -n 20 -p hi)" ] || { echo "$output"; return 1; }
  ours --regex '[0-9]{3}' -p hi
  [[ $output =~ ^[0-9]{3}$ ]]
  echo '{"type":"object","properties":{"a":{"enum":["x"]}},"required":["a"],"additionalProperties":false}' >"$T/schema"
  ours --json-schema "$T/schema" -p hi
  [ "$(jq -c . <<<"$output")" = '{"a":"x"}' ]
  ours --logit-bias 999999=1 -p hi
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ $stderr == *"logit_bias: token '999999'"*"(HTTP 400)"* ]]
  ours -m nope -p hi
  [ "$status" = 1 ] && [[ $stderr == *"model 'nope' is not loaded"*"(HTTP 404)"* ]]
}

@test "every flag that a request can express is sent; the others are refused" {
  fake -m echo -p hi -s Be --temp 0.7 --top-k 3 --top-p 0.9 --min-p 0.1 --typical-p 0.8 --repeat-penalty 1.1 \
    --repeat-last-n 4 --presence-penalty 0.1 \
    --frequency-penalty -0.2 --logit-bias 5=-inf --seed 3 --stop a --stop b --ignore-eos --no-think -n 12
  want='{"temperature":0.7,"top_k":3,"top_p":0.9,"min_p":0.1,"typical_p":0.8,"repetition_penalty":1.1,"repeat_last_n":4,"presence_penalty":0.1,"frequency_penalty":-0.2,"logit_bias":{"5":-100.0},"seed":3,"stop":["a","b"],"ignore_eos":true,"chat_template_kwargs":{"enable_thinking":false},"max_tokens":12}'
  jq -e --argjson want "$want" 'del(.messages, .model, .stream, .stream_options) == $want' <<<"$output" ||
    { echo "$output"; return 1; }
  jq -e '.messages == [{"role":"system","content":"Be"},{"role":"user","content":"hi"}]' <<<"$output"
  fake -m echo -p hi -n 0
  [ "$(jq -c 'keys' <<<"$output")" = '["messages","model","stream","stream_options"]' ]
  for flag in '-q int8' '--threads 1' '--ctx 9' '--kv f16' '--kernels ref' '--device cpu' '--cuda-graphs on' '--act int8' '--cache-weights auto' --exact '--max-memory 1GB' '--template LICENSE' --ids --plan --force; do
    # shellcheck disable=SC2086
    fake $flag -p hi
    [ "$status" = 2 ] && [[ $stderr == *"the server decides that, it cannot be used with --url"* ]] || { echo "$flag: $stderr"; return 1; }
  done
  run --separate-stderr zse-chat --key x -p hi
  [ "$status" = 2 ]
  run --separate-stderr zse-chat --url localhost:8000 -p hi
  [ "$status" = 2 ]
  [[ $stderr == *"expected http://HOST:PORT"* ]]
  fake -m a b -p hi
  [ "$status" = 2 ] && [[ $stderr == *"'b': -p already gives the prompt"* ]]
}

@test "a prompt may be arguments and files, in this order: files, arguments, piped text" {
  local d=$BATS_TEST_TMPDIR
  printf 'a\n```\nb' >"$d/notes"
  printf 'c\n' >"$d/more"
  said() { jq -r '.messages[-1].content' <<<"$output"; }
  cd "$d"
  fake -m echo -f more What is @notes '@@this?' @ < <(echo piped)
  said | diff - <(printf 'more:\n```\nc\n```\n\nnotes:\n````\na\n```\nb\n````\n\nWhat is @this? @\n\npiped\n')
  fake -m echo -f more -p 'look at @notes' </dev/null           # no file is named in a text
  said | diff - <(printf 'more:\n```\nc\n```\n\nlook at @notes\n')
  fake -m echo --raw -f notes -f more </dev/null
  [ "$(jq -r .prompt <<<"$output")" = "$(cat notes more)" ]
  fake -m echo a @none
  [ "$status $stderr" = "1 zse-chat: none: No such file or directory" ]
  printf '\377' >bytes
  fake -m echo a @bytes
  [ "$status $stderr" = "1 zse-chat: bytes: it is not text in UTF-8" ]
  fake -m echo --batch more b
  [ "$status" = 2 ] && [[ $stderr == *"'b': --batch already gives the prompt"* ]]
}

@test "other servers may send reasoning, pieces of words or no stream, and want keys" {
  fake -p hi
  [ "$status" = 0 ]
  [ "$output" = 'Grüße, 世界!' ]
  [ -z "$stderr" ]
  fake -p hi --json
  jq -e '[.text, .reasoning, .finish_reason, .model, .usage] ==
    ["Grüße, 世界!","Let me see.","stop","plain",{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"cached_tokens":2}]' <<<"$output"
  fake -m whole -p hi --json
  [ "$(jq -c '[.text, .reasoning, has("usage")]' <<<"$output")" = '["All at once.","So.",false]' ]
  fake -m busy -p hi
  [ "$status" = 0 ] && [ "$output" = 'Grüße, 世界!' ] && [[ $stderr == *"HTTP 503: trying again in 0 s" ]] || { echo "$stderr"; return 1; }
  printf 'a\nb\nc\n' >"$T/busy"
  fake -m busy --batch "$T/busy" --parallel 2
  [ "$status" = 0 ]
  [ "$(sort -u <<<"$output")" = 'Grüße, 世界!' ]
  [ "${#lines[@]}" = 3 ]
  fake -m locked -p hi
  [ "$status" = 1 ]
  [[ $stderr == *"wrong key (HTTP 401)"* ]]
  fake -m locked --key sesame -p hi
  [ "$status" = 0 ]
  ZSE_API_KEY=sesame OPENAI_API_KEY=other fake -m locked -p hi
  [ "$status" = 0 ]
  ZSE_API_KEY='' OPENAI_API_KEY=sesame fake -m locked -p hi
  [ "$status" = 0 ]
}

@test "a failure is reported in one sentence" {
  fake -m cut -p hi
  [ "$status" = 1 ] && [ "$output" = Well ] && [ "${#stderr_lines[@]}" = 1 ] && [[ $stderr == "zse-chat: $FAKE/v1: "* ]] || { echo "$output $stderr"; return 1; }
  fake -m error -p hi
  [ "$status" = 1 ]
  [ "$output" = Well ]
  [ "$stderr" = "zse-chat: $FAKE/v1: out of memory" ]
  fake -m status -p hi
  [ "$status" = 1 ]
  [ -z "$output" ]
  [ "$stderr" = "zse-chat: $FAKE/v1: I am a teapot (HTTP 418)" ]
  fake -m html -p hi
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ $stderr == "zse-chat: $FAKE/v1: answer: "* ]]
  run --separate-stderr zse-chat --url "$FAKE/elsewhere" -p hi
  [ "$status" = 1 ]
  [[ $stderr == *"HTTP 404: no OpenAI API"* ]]
  run --separate-stderr zse-chat --url http://127.0.0.1:9 -p hi
  [ "$status" = 1 ]
  [[ $stderr == *"http://127.0.0.1:9/v1: "*onnect* ]]
  [ "${#stderr_lines[@]}" = 1 ]
  fake -m escape -p hi
  [ "$status" = 1 ] && [[ $stderr == *"a?[2Jb?cééé"* ]] || { echo "$stderr"; return 1; }
  iconv -f UTF-8 -t UTF-8 <<<"$stderr" >/dev/null                  # cut, but not inside of a character
  echo hi >"$T/hi"
  fake -m escape --batch "$T/hi" --json
  [ "$status" = 1 ] && [ "$(jq -r .error <<<"$output" | cut -c 1-4)" = http ] || { echo "$output"; return 1; }
  fake -m escape --batch "$T/hi"
  [[ $output == "error: "*"a?[2Jb?cé"* ]] || { echo "$output"; return 1; }
  fake -m echo -p hi --regex $'[\377]'
  [ "$status" = 1 ] && [ -z "$output" ] && [ "$stderr" = "zse-chat: --regex: not UTF-8" ] || { echo "$output $stderr"; return 1; }
  printf 'a\0b\nc\n' >"$T/zero"
  fake -m echo --batch "$T/zero" --raw
  [ "$(jq -c .prompt <<<"$output")" = $'"a\\\\u0000b"\n"c"' ] || { echo "$output"; return 1; }
  http_proxy=http://127.0.0.1:9 fake -m whole -p hi --json         # this machine is not behind a proxy
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  printf 'a\n\377\n' >"$T/mixed"
  fake --batch "$T/mixed"
  [ "$status" = 1 ]
  [ "${lines[0]}" = 'Grüße, 世界!' ]
  [ "${lines[1]}" = 'error: the prompt is not UTF-8' ]
  [[ $stderr == *"1 of 2 prompts have no answer"* ]]
  if [ -w /dev/full ]; then
    zse-chat --url "$FAKE" -p hi >/dev/full 2>"$T/full" && return 1
    grep -q 'standard output: No space left' "$T/full"
  fi
}

@test "in a conversation reasoning is shown apart and earlier turns are sent along; Ctrl-C ends only the answer" {
  export NO_COLOR=1
  tests/lib/talk zse-chat --url "$URL" --temp 0 <<'END'
expect tiny at http
expect >
send What is 2+2?
expect 2 \+ 2 = 4
expect >
send /stats
expect server +http.*model tiny
expect >
ready
key d
end 0
END
  tests/lib/talk zse-chat --url "$FAKE" <<'END'
expect plain at http
expect >
send hi
expect <think>\r\nLet me see\.\r\n</think>\r\nGrüße, 世界!
expect >
ready
key d
end 0
END
  tests/lib/talk zse-chat --url "$FAKE" -m echo <<'END'
expect echo at
expect >
send one
expect "content": "one"
expect >
send two
expect "assistant", "content": .*"content": "two"
expect >
ready
key d
end 0
END
  tests/lib/talk zse-chat --url "$FAKE" -m hang <<'END'
expect hang at
expect >
send hi
expect Well
key c
expect stopped
expect >
send /exit
end 0
END
}

@test "a conversation that fills the server's context goes on without its oldest turns" {
  NO_COLOR=1 tests/lib/talk zse-chat --url "$FAKE" -m full --system brief <<'END'
expect >
send one
expect "one"
expect >
send two
expect the context is full
expect "brief".*, {"role": "user", "content": "two"}\]
expect >
send three
not the context is full
expect "brief".*, {"role": "user", "content": "three"}\]
expect >
send long
expect maximum context length
expect >
send four
expect "content": "four"}\]
expect >
ready
key d
end 0
END
  tests/lib/talk zse-chat --url "$FAKE" -m full --on-full stop --system brief <<'END'
expect >
send one
expect "one"
expect >
send two
expect maximum context length
expect >
ready
key d
end 0
END
}

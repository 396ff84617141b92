# serve-vllm.bats - fields and metrics that clients and routers of vLLM expect of zse-serve.
bats_require_minimum_version 1.5.0
load ../lib/server

# ask PATH BODY [CURL ARGUMENT]...
ask() {
  local path=$1 body=$2
  shift 2
  curl -s "$@" "$URL/v1/$path" -d "$body"
}
MESSAGES='"messages":[{"role":"user","content":"What is 2+2?"}],"temperature":0'
# chat MEMBERS: send a request with these JSON members; prints the text, or the error's code and
# message
chat() { ask chat/completions "{$MESSAGES,$1}" | jq -r '.choices[0].message.content // "\(.error.code): \(.error.message)"'; }

@test "continuous_usage_stats: every event has the counts so far, with include_usage" {
  ask chat/completions "{$MESSAGES,\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}" |
    sed -n 's/^data: {/{/p' >"$T/events"
  jq -es 'map(.usage.completion_tokens) | . == sort and .[0] == 1 and .[-1] == 8' "$T/events"
  jq -es 'all(.usage.prompt_tokens == 15) and (.[-1].choices == [])' "$T/events"
  ask completions '{"prompt":"a","max_tokens":4,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}' |
    sed -n 's/^data: {/{/p' | jq -es 'map(.usage.completion_tokens) | . == sort and .[-1] == 4'
  ask chat/completions "{$MESSAGES,\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}}" >"$T/events"
  run ! grep -q '"usage"' "$T/events"
}

@test "structured_outputs and the guided_ fields constrain the answer" {
  [[ $(chat '"guided_choice":["a.b","c|d(e)"]') =~ ^(a\.b|c\|d\(e\))$ ]]
  [[ $(chat '"structured_outputs":{"choice":["yes","no"]}') =~ ^(yes|no)$ ]]
  [ "$(chat '"structured_outputs":{"regex":"x{3}"}')" = xxx ]
  [ "$(chat '"guided_regex":"[a]{2}b"')" = aab ]
  [ "$(chat '"guided_grammar":"root ::= \"hello\""')" = hello ]
  [ "$(chat '"guided_json":{"const":5}')" = 5 ]
  [ "$(chat '"structured_outputs":{"json":"{\"const\": [true]}","regex":null,"json_object":false}')" = '[true]' ]
  [[ $(chat '"structured_outputs":{"json_object":true},"max_tokens":3') == '{'* ]]
  ask completions '{"prompt":"a","guided_choice":["one","two"],"temperature":0}' | jq -e '.choices[0].text | . == "one" or . == "two"'
}

@test "constraints that contradict each other, and wrong ones, are refused by name" {
  local wrong
  for wrong in '"guided_regex":"a","regex":"b"' '"guided_regex":"a","guided_choice":["b"]' '"guided_choice":["a"],"response_format":{"type":"json_object"}' \
    '"guided_choice":[]' '"guided_choice":["a",5]' '"guided_choice":[""]' '"guided_choice":"a"' '"guided_json":"{"' '"guided_json":5' \
    '"guided_json":"5"' '"structured_outputs":[]' '"structured_outputs":{"structural_tag":"x"}' '"structured_outputs":{"regex":"a","grammar":"b"}' \
    '"guided_regex":5' '"verbosity":"loud"' '"reasoning":{"effort":"huge"}'; do
    [ "$(ask chat/completions "{$MESSAGES,$wrong}" -o "$T/j" -w '%{http_code}')" = 400 ] || { echo "$wrong"; cat "$T/j"; return 1; }
    jq -e '.error.param as $p | $p != null and (.error.message | contains($p))' "$T/j" || { echo "$wrong"; cat "$T/j"; return 1; }
  done
  [ "$(chat '"response_format":{"type":"text"},"guided_regex":"a"')" = a ]
  printf -v wrong '%9000s' ''
  [[ $(chat "\"guided_choice\":[\"${wrong// /.}\"]") == 'out_of_range: guided_choice: a list of 9001 bytes'* ]]
  [[ $(chat "\"guided_choice\":[\"a\"${wrong// /,\"b\"}]") == 'out_of_range: guided_choice: a list of 18002 bytes'* ]]
}

@test "effort and verbosity are taken where each API has them, and checked" {
  [ "$(chat '"verbosity":"low","reasoning":{"effort":"high","summary":"auto"}')" = "2 + 2 = 4" ]
  ask responses '{"input":"What is 2+2?","temperature":0,"reasoning":{"effort":"low"},"text":{"verbosity":"high"}}' | jq -e '.output[-1].content[0].text == "2 + 2 = 4"'
  ask messages "{$MESSAGES,\"max_tokens\":20,\"output_config\":{\"effort\":\"medium\"}}" | jq -e '.content[0].text == "2 + 2 = 4"'
  ask responses '{"input":"a","reasoning":{"effort":"loud"}}' | jq -e '.error.param == "reasoning_effort"'
  ask responses '{"input":"a","text":{"verbosity":5}}' | jq -e '.error.param == "verbosity"'
}

@test "/metrics has vLLM's names, with the same values as ours" {
  ask chat/completions "{$MESSAGES}" >/dev/null
  curl -s "$URL/metrics" >"$T/metrics"
  value() { sed -n "s/^$1{[^}]*} //p" "$T/metrics"; }
  [ "$(value vllm:num_requests_running)" = "$(value zse_requests_running)" ]
  [ "$(value vllm:num_requests_waiting)" = 0 ]
  [ "$(value vllm:kv_cache_usage_perc)" = "$(value zse_kv_use_ratio)" ]
  [ "$(value vllm:generation_tokens_total)" = "$(value zse_generated_tokens_total)" ]
  [ "$(value vllm:generation_tokens_total)" -ge 8 ]
  [ "$(value vllm:e2e_request_latency_seconds_count)" = "$(value zse_request_duration_seconds_count)" ]
  grep -q '^vllm:gpu_cache_usage_perc{model_name="tiny"} ' "$T/metrics"
  grep -Eq '^vllm:cache_config_info\{model_name="tiny",block_size="16",num_gpu_blocks="[1-9][0-9]*"\} 1$' "$T/metrics"
  # every metric has one TYPE line only
  [ "$(grep -c '^# TYPE' "$T/metrics")" = "$(grep '^# TYPE' "$T/metrics" | sort -u | wc -l)" ]
}

@test "stop_token_ids end an answer, and min_tokens delays every end but that of a grammar" {
  local four equal
  four=$(curl -s "$URL/tokenize" -d '{"content":" 4"}' | jq -c '.tokens[-1]')
  equal=$(curl -s "$URL/tokenize" -d '{"content":" ="}' | jq -c '.tokens[-1]')
  [ "$(chat "\"stop_token_ids\":[$four]")" = '2 + 2 =' ] || [ "$(chat "\"stop_token_ids\":[$four]")" = '2 + 2 = ' ]
  [[ $(chat "\"ignore_eos\":true,\"max_tokens\":60,\"stop_token_ids\":[$equal,$four]") == '2 + 2'* ]]
  ask chat/completions "{$MESSAGES,\"ignore_eos\":true,\"max_tokens\":60,\"stop_token_ids\":[$equal]}" |
    jq -e '.choices[0].finish_reason == "stop" and .usage.completion_tokens < 8'
  ask chat/completions "{$MESSAGES,\"min_tokens\":30,\"max_tokens\":200,\"stop_token_ids\":[$four],\"stop\":[\"2\"],\"n\":3}" |
    jq -e '.usage.completion_tokens >= 90 and all(.choices[]; .message.content | startswith("2 + 2 =") and (startswith("2 + 2 = 4") | not))'
  ask completions '{"prompt":"Once","min_tokens":25,"max_tokens":25,"temperature":0}' | jq -e '.usage.completion_tokens == 25'
  ask responses '{"input":"What is 2+2?","temperature":0,"min_tokens":20}' | jq -e '.usage.output_tokens >= 20'
  [ "$(chat '"min_tokens":50,"guided_choice":["yes","no"]')" = "$(chat '"guided_choice":["yes","no"]')" ]
  [[ $(chat '"stop_token_ids":[-1]') == out_of_range:*stop_token_ids* ]]
  [[ $(chat '"stop_token_ids":[1000000000]') == out_of_range:* ]]
  [[ $(chat '"stop_token_ids":[1.5]') == invalid_type:* ]]
  [[ $(chat '"stop_token_ids":7') == invalid_type:* ]]
  [[ $(chat "\"stop_token_ids\":$(jq -nc '[range(129)]')") == out_of_range:*128* ]]
  [[ $(chat '"min_tokens":-1') == out_of_range:* ]]
  [[ $(chat '"min_tokens":9,"max_tokens":8') == out_of_range:* ]]
}

# head_of PATH BODY: the names in the header X-Ignored-Fields, and the status
head_of() { curl -s -o "$T/j" -D "$T/head" -w '%{http_code}' "$URL/$1" -d "$2"; sed -n 's/\r$//; s/^X-Ignored-Fields: / /p' "$T/head"; }

@test "fields that are not known are ignored and listed in a header, also inside of known ones; --strict-api refuses them" {
  local many
  [ "$(head_of v1/chat/completions "{$MESSAGES,\"foo\":1,\"b r\":{\"x\":2},\"stream_options\":{\"include_usag\":true},\"stream\":true}")" = "200 foo, b?r, stream_options.include_usag" ]
  [ "$(head_of v1/chat/completions "{$MESSAGES,\"reasoning\":{\"efort\":\"low\"},\"speculative\":{\"k\":1},\"response_format\":{\"type\":\"text\",\"kind\":1}}")" = "200 speculative.k, reasoning.efort, response_format.kind" ]
  [ "$(head_of v1/completions '{"prompt":"a","max_tokens":1,"n_predict":5}')" = "200 n_predict" ]
  [ "$(head_of v1/responses '{"input":"a","max_output_tokens":1,"text":{"verbose":"low"},"max_tokens":3}')" = "200 max_tokens, text.verbose" ]
  [ "$(head_of v1/messages "{$MESSAGES,\"max_tokens\":1,\"output_config\":{\"a\":1}}")" = "200 output_config.a" ]
  [ "$(head_of v1/embeddings '{"input":"a","dimension":3}')" = "200 dimension" ]
  [ "$(head_of v1/chat/completions "{$MESSAGES,\"foo\":1,\"temperature\":\"hot\"}")" = 400 ]
  many=$(seq -f '"unknown_%g":1' -s, 100)
  [[ "$(head_of v1/completions "{\"prompt\":\"a\",\"max_tokens\":1,$many}")" == "200 unknown_1, "*", unknown_"* ]]
  [ "$(head_of v1/completions "{\"prompt\":\"a\",\"max_tokens\":1,$many,\"one_more\":1}")" = 400 ]
  [ "$(head_of api/tools/execute '{"name":"calculator","arguments":{"expression":"1"},"foo":1}')" = 400 ]
  start "$BATS_TEST_TMPDIR/strict" "$T/tiny.zse" --port 0 --strict-api
  await listens "$URL"
  for many in '"foo":1' '"stream":true,"stream_options":{"foo":1}' '"reasoning":{"foo":1}' '"speculative":{"foo":1}' '"response_format":{"type":"text","foo":1}'; do
    [ "$(head_of v1/chat/completions "{$MESSAGES,$many}")" = 400 ]
    jq -e '.error.code == "unknown_parameter" and (.error.message | contains("foo: no such field"))' "$T/j"
  done
  [ "$(head_of v1/chat/completions "{$MESSAGES,\"skip_special_tokens\":true,\"length_penalty\":1.0,\"early_stopping\":false,\"bad_words\":[],\"echo\":false,\"prompt_logprobs\":null,\"request_id\":\"a\"}")" = 200 ]
  curl -s "$URL/openapi.json" | jq -e '.paths."/v1/completions".post.requestBody.content."application/json".schema.additionalProperties == false'
  stop "$PID"
}

@test "pictures are refused by each API in its own form of an error, and metadata that are no strings" {
  local url='"data:image/png;base64,AA"'
  while IFS='|' read -r path message; do
    [ "$(curl -s -o "$T/j" -w '%{http_code}' "$URL/$path" -d "{\"model\":\"tiny\",\"max_tokens\":2,$message}")" = 400 ]
    jq -e --arg path "$path" '(.error | if type == "string" then . else .message end | test("image")) and
      (($path | startswith("api/")) or (.error | .param[-3:] == "[0]" and .code == "unsupported_parameter" and .type == "invalid_request_error"))' "$T/j" ||
      { cat "$T/j"; return 1; }
  done <<END
v1/responses|"input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":$url}]}]
v1/chat/completions|"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":$url}}]}]
v1/messages|"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA"}}]}]
api/chat|"messages":[{"role":"user","content":"a","images":["AA"]}]
api/generate|"prompt":"a","images":["AA"]
END
  for url in '[1]' '{"a":1}' '"a"'; do
    ask responses "{\"input\":\"a\",\"max_output_tokens\":1,\"metadata\":$url}" | jq -e '.error | .param == "metadata" and .code == "invalid_type"'
  done
  ask responses '{"input":"a","max_output_tokens":1,"metadata":{"a":"b"}}' | jq -e '.metadata == {"a":"b"}'
  ask responses '{"input":"a","max_output_tokens":1,"metadata":null}' | jq -e '.metadata == {}'
}

@test "options of other servers are refused by name if they would change the answer" {
  local f
  for f in '"bad_words":["x"]' '"length_penalty":2' '"allowed_token_ids":[1]' '"include_stop_str_in_output":true' '"return_token_ids":true' '"prompt_logprobs":1'; do
    [ "$(head_of v1/completions "{\"prompt\":\"a\",$f}")" = 400 ]
    jq -e '.error.code == "unsupported_parameter"' "$T/j"
  done
}

@test "the last message of the assistant is continued, as its text went on" {
  local begun='"temperature":0,"messages":[{"role":"user","content":"What is 2+2?"},{"role":"assistant","content":"2 + 2"}]'
  [ "$(ask chat/completions "{$begun,\"continue_final_message\":true}" | jq -r '.choices[0].message.content')" = " = 4" ]
  [ "$(ask chat/completions "{$begun,\"continue_final_message\":true,\"add_generation_prompt\":false}" | jq -r '.choices[0].message.content')" = " = 4" ]
  [ "$(curl -s "$URL/apply-template" -d "{$begun,\"continue_final_message\":true}" | jq -r .error.param)" = temperature ]
  begun=${begun#*,}
  # the text of the message is also part of the template's own text, and the template cuts blanks
  [ "$(curl -s "$URL/apply-template" -d "{${begun/2 + 2\"/im_end \"},\"continue_final_message\":true}" | jq .prompt)" = '"<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\nim_end"' ]
  [[ "$(curl -s "$URL/apply-template" -d "{$begun,\"add_generation_prompt\":false}" | jq -r .prompt)" == *$'assistant\n2 + 2<|im_end|>' ]]
  ask chat/completions "{$begun,\"continue_final_message\":true,\"add_generation_prompt\":true}" | jq -e '.error.param == "continue_final_message"'
  ask chat/completions "{$MESSAGES,\"continue_final_message\":true}" | jq -e '.error.code == "invalid_role"'
  ask chat/completions "{$begun,\"continue_final_message\":true,\"tools\":\"server\"}" | jq -e '.error.param == "messages"'
  ask messages "{$begun,\"max_tokens\":9,\"temperature\":0}" | jq -e '.content == [{type: "text", text: " = 4"}] and .stop_reason == "end_turn"'
}

@test "a text may have the character U+0000; a name may not" {
  ask chat/completions '{"messages":[{"role":"user","content":"a\u0000b"}],"max_tokens":1}' | jq -e '.choices[0].finish_reason == "length"'
  [ "$(ask completions '{"prompt":"a\u0000b","max_tokens":0,"echo":true}' | jq '.choices[0].text')" = '"a\u0000b"' ]
  [ "$(curl -s "$URL/detokenize" -d "$(curl -s "$URL/tokenize" -d '{"content":"a\u0000b"}')" | jq .content)" = '"a\u0000b"' ]
  ask completions '{"prompt":"a","user":"a\u0000b"}' | jq -e '.error.param == "user"'
  ask messages '{"max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"x":"\u0000"}}]},{"role":"user","content":"a"}]}' | jq -e '.type == "message"'
  local cut
  for cut in "$MESSAGES,"'"regex":"a\u0000b"' "$MESSAGES,"'"guided_regex":"a\u0000b"' "$MESSAGES,"'"reasoning":{"effort":"low\u0000"}' \
    '"messages":[{"role":"user\u0000","content":"a"}]' '"messages":[{"role":"user","content":[{"type":"text\u0000","text":"a"}]}]' \
    "$MESSAGES,"'"tools":[{"type":"function","function":{"name":"f\u0000g"}}]' "$MESSAGES,"'"guided_json":{"required":["a\u0000b"]}'; do
    [ "$(ask chat/completions "{$cut}" -o "$T/j" -w '%{http_code}')" = 400 ] || { echo "$cut"; cat "$T/j"; return 1; }
    jq -e '.error.message | contains("found a zero byte")' "$T/j"
  done
}

@test "tokenize and detokenize in vLLM's form" {
  curl -s "$URL/tokenize" -d '{"prompt":"he <|im_end|>","return_token_strs":true}' | jq -e '.count == (.tokens | length) and .max_model_len == 2048 and .token_strs[0] == "he" and .token_strs[-1] == "<|im_end|>"'
  curl -s "$URL/tokenize" -d '{"prompt":"he"}' | jq -e 'has("token_strs") and .token_strs == null'
  curl -s "$URL/tokenize" -d "{$MESSAGES}" >"$T/j"
  [ "$(jq .count "$T/j")" = "$(ask chat/completions "{$MESSAGES}" | jq .usage.prompt_tokens)" ]
  [ "$(curl -s "$URL/detokenize" -d @"$T/j" | jq -r .prompt)" = "$(curl -s "$URL/apply-template" -d "{${MESSAGES%,*}}" | jq -r .prompt)" ]
  [ "$(curl -s "$URL/tokenize" -d "{$MESSAGES,\"add_generation_prompt\":false}" | jq .count)" -lt "$(jq .count "$T/j")" ]
  curl -s "$URL/tokenize" -d '{"prompt":"a","content":"a"}' | jq -e '.error.param == "content"'
  curl -s "$URL/tokenize" -d '{"prompt":["a"]}' | jq -e '.error.param == "prompt"'
  curl -s "$URL/tokenize" -d '{}' | jq -e '.error.code == "missing"'
}

@test "tokenizer_info has what lm-eval's remote tokenizer reads" {
  curl -s "$URL/tokenizer_info" >"$T/j"
  jq -e '.eos_token == "<|im_end|>" and .bos_token == null and .pad_token == "<|endoftext|>" and .model_max_length == 2048' "$T/j"
  jq -e '(.chat_template | contains("<|im_start|>")) and .added_tokens_decoder["2"].content == .eos_token' "$T/j"
  curl -s "$URL/tokenizer_info?model=nosuch" | jq -e '.error.code == "model_not_found"'
  curl -s "$URL/tokenizer_info?model=$(printf '%0256d' 1)" | jq -e '.error.param == "model"'
  curl -s "$URL/tokenizer_info?model=tiny" | cmp - "$T/j"
}

@test "render shows a request's prompts and token ids, and generates nothing" {
  curl -s "$URL/v1/chat/completions/render" -d "{$MESSAGES,\"max_tokens\":5}" >"$T/j"
  [ "$(jq -c .token_ids "$T/j")" = "$(curl -s "$URL/tokenize" -d "{$MESSAGES}" | jq -c .tokens)" ]
  jq -e '(.prompt | endswith("assistant\n")) and .sampling_params.max_tokens == 5 and .sampling_params.temperature == 0 and .model == "tiny"' "$T/j"
  curl -s "$URL/v1/completions/render" -d '{"prompt":["he",[1,2]]}' | jq -e 'map(.token_ids | length) == [1, 2] and .[1].prompt == "<|im_start|><|im_end|>"'
  curl -s "$URL/v1/chat/completions/render" -d '{"messages":[]}' | jq -e '.error.param == "messages"'
  curl -s "$URL/v1/completions/render" -d '{"prompt":"a","temperature":-1}' | jq -e '.error.param == "temperature"'
}

@test "a sleeping server has closed its models, and answers after it woke up" {
  local token want level
  start "$BATS_TEST_TMPDIR/sleep" "$T/tiny.zse" --port 0
  await listens "$URL"
  token=$(cat "$ZSE_HOME/admin.token")
  want=$(chat '"seed":1')
  curl -s "$URL/is_sleeping" -H "Authorization: Bearer $token" | jq -e '.is_sleeping == false'
  [ "$(curl -s -o /dev/null -w '%{http_code}' -X POST "$URL/sleep?level=3" -H "Authorization: Bearer $token")" = 400 ]
  for level in 1 2; do
    curl -s -X POST "$URL/sleep?level=$level" -H "Authorization: Bearer $token" | jq -e --argjson n $level '. == {is_sleeping: true, level: $n}'
    curl -s "$URL/is_sleeping" -H "Authorization: Bearer $token" | jq -e .is_sleeping
    grep -q "tiny.zse" "/proc/$PID/maps" && return 1
    [[ $(chat '"seed":1') == "sleeping: "* ]]
    curl -s "$URL/health" | jq -e '.status == "sleeping" and .models_loaded == 0'
    curl -s -X POST "$URL/api/models/load" -H "Authorization: Bearer $token" -d '{"model_path":"x"}' | jq -e '.error.code == "sleeping"'
    curl -s -X POST "$URL/wake_up" -H "Authorization: Bearer $token" | jq -e '.is_sleeping == false'
    [ "$(chat '"seed":1')" = "$want" ]
  done
  curl -s -X POST "$URL/wake_up" -H "Authorization: Bearer $token" | jq -e '.is_sleeping == false'

  # the parts of vLLM's wake-up, and settings that outlive it
  admin() { curl -s -X POST "$URL/$1" -H "Authorization: Bearer $token" "${@:2}"; }
  admin api/batching -d '{"max_batch_size":3,"chunk":7,"max_queue":5}' | jq -e .success
  admin sleep >/dev/null
  admin 'wake_up?tags=weight' | jq -e '.error.code == "out_of_range"'
  admin 'wake_up?tags=weights' | jq -e .is_sleeping
  [[ $(chat '"seed":1') == "sleeping: "* ]]
  admin 'wake_up?tags=kv_cache' | jq -e '.is_sleeping == false'
  config() { curl -s "$URL/api/batching" -H "Authorization: Bearer $token" | jq -c '.engines.tiny.config | [.max_batch_size, .chunk, .max_queue]'; }
  [ "$(config)" = '[3,7,5]' ]
  admin api/models/unload -d '{"model_id":"tiny"}' | jq -e .success
  admin api/models/load -d "{\"model_path\":\"$T/tiny.zse\"}" | jq -e .success
  [ "$(config)" != '[3,7,5]' ]
  stop "$PID"
}

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

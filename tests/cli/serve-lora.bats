# serve-lora.bats - LoRA adapters in zse-serve and zse-chat, beside one model: requests name them,
# and answers are those of the merged model, alone and together with others.
bats_require_minimum_version 1.5.0
load ../lib/server

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export ZSE_HOME=$BATS_FILE_TMPDIR/home T=$BATS_FILE_TMPDIR
  python3 -S tests/lib/lora_adapter.py models/tiny "$T/first" 1
  python3 -S tests/lib/lora_adapter.py models/tiny "$T/second" 2 3
  zse-convert models/tiny -o "$T/tiny.zse" -q f32 >/dev/null
  start "$T/main" "$T/tiny.zse" --port 0 --kv f32 --lora "one=$T/first" --lora "$T/second/" --lora-dir "$T"
  export URL MAIN_PID=$PID MAIN_PORT=${URL##*:}
  await listens "$URL"
}

admin() { curl -s -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$@"; }
# make_old FILE: make it a file of version 1.1, which has no channel scales
make_old() {
  python3 -S -c 'import struct, sys, zlib
with open(sys.argv[1], "r+b") as f:
    head = bytearray(f.read(60))
    head[5] = 1
    f.seek(0)
    f.write(head + struct.pack("<I", zlib.crc32(head)))' "$1"
}
# answer MODEL: request 24 tokens; prints the response body
answer() {
  curl -s "$URL/v1/completions" -d "{\"model\":\"$1\",\"prompt\":\"The capital of\",\"temperature\":0,\"max_tokens\":24,\"ignore_eos\":true}"
}
text() { answer "$1" | jq -er '.choices[0].text'; }

@test "a request names an adapter as its model, and gets the merged model's answer" {
  local name
  answer one | jq -e '.model == "one"'
  for name in first second; do
    zse-convert models/tiny -o "$T/$name.zse" -q f32 --lora "$T/$name" --force >/dev/null
  done
  start "$T/merged" "$T/first.zse" "$T/second.zse" --port 0 --kv f32
  await text first
  await text second
  text first >"$T/first.text"
  zse-info "$T/first.zse" | grep 'merged_lora first'
  run -1 zse-convert models/tiny -o "$T/first.zse" -q f32 --lora "$T/second"
  [[ $output == *'another source or with other adapters'* ]]
  text second >"$T/second.text"
  stop "$PID"
  URL=http://127.0.0.1:$MAIN_PORT
  [ "$(text one)" = "$(cat "$T/first.text")" ]
  [ "$(text second)" = "$(cat "$T/second.text")" ]
  [ "$(text tiny)" != "$(text one)" ]
  [ "$(text second)" != "$(text one)" ]
  run -0 zse-chat "$T/tiny.zse" --kv f32 --lora "$T/first" --raw --temp 0 --max-tokens 24 --ignore-eos -p "The capital of"
  [[ $output == *"$(cat "$T/first.text")"* ]]
}

@test "answers with different adapters at the same time are those given alone" {
  local i name pids=()
  for name in tiny one second; do text "$name" >"$T/$name.alone"; done
  for i in 1 2 3 4; do
    for name in tiny one second; do
      text "$name" >"$T/$name.$i" &
      pids+=($!)
    done
  done
  wait "${pids[@]}"
  for i in 1 2 3 4; do
    for name in tiny one second; do cmp "$T/$name.$i" "$T/$name.alone"; done
  done
}

@test "models lists adapters with root and parent; an unknown one is 404; other APIs take them" {
  curl -s "$URL/v1/models" | jq -e '[.data[] | [.id, .root, .parent]] == [["tiny", "tiny", null], ["one", "first", "tiny"], ["second", "second", "tiny"]]'
  curl -s "$URL/v1/models/one" | jq -e '.parent == "tiny"'
  answer three | jq -e '.error.code == "model_not_found"'
  curl -s "$URL/v1/messages" -d '{"model":"one","max_tokens":4,"messages":[{"role":"user","content":"a"}]}' | jq -e '.model == "one"'
  curl -s "$URL/v1/responses" -d '{"model":"one","max_output_tokens":4,"input":"a"}' | jq -e '.model == "one"'
  curl -s "$URL/v1/chat/completions" -d '{"model":"one","max_tokens":4,"messages":[{"role":"user","content":"a"}]}' | jq -e '.model == "one"'
}

@test "unknown folders, equal names, other models and channels with unknown scales are refused by name" {
  run -1 --separate-stderr zse-serve "$T/tiny.zse" --port 0 --lora "x=$T/none"
  [[ $stderr == *'has no adapter_config.json'* ]]
  run -2 --separate-stderr zse-serve "$T/tiny.zse" --port 0 --lora "x=$T/first" --lora "x=$T/second"
  [[ $stderr == *'two adapters with the name x'* ]]
  run -2 --separate-stderr zse-serve --port 0 --lora "x=$T/first"
  [[ $stderr == *'need a MODEL'* ]]
  run -2 --separate-stderr zse-serve "$T/tiny.zse" --port 0 --lora "tiny=$T/first"
  [[ $stderr == *'the model has this name, too'* ]]
  run -2 --separate-stderr zse-chat "$T/tiny.zse" --lora "$T/first" --lora "$T/second" -p a
  [[ $stderr == *'expected one adapter'* ]]
  zse-convert models/tiny -o "$T/scaled.zse" >/dev/null
  run -0 zse-chat "$T/scaled.zse" --lora "$T/first" -p a --max-tokens 2
  run -0 zse-chat "$T/scaled.zse" --lora "some/name=$T/first" -p a --max-tokens 2
  cp -r "$T/first" "$T/a=b"
  run -0 zse-chat "$T/scaled.zse" --lora "$T/a=b" -p a --max-tokens 2
  make_old "$T/scaled.zse"
  run -0 zse-chat "$T/scaled.zse" -p a --max-tokens 2
  run -1 --separate-stderr zse-chat "$T/scaled.zse" --lora "$T/first" -p a
  [[ $stderr == *'as files of version 1.1 have'*'convert its source again'* ]]
}

@test "a name of an adapter that means another model, too, is refused" {
  run -2 --separate-stderr zse-serve "$T/tiny.zse" "$T/tiny.zse" --name base --name other --port 0 --lora "other=$T/first"
  [[ $stderr == *'another model has this name, too'* ]]
  run -2 --separate-stderr zse-serve "$T/tiny.zse" --port 0 --lora "default=$T/first"
  [[ $stderr == *'this name means the first model'* ]]
  run -2 --separate-stderr zse-serve "$T/tiny.zse" --port 0 --lora "x:latest=$T/first"
  [[ $stderr == *'the name ends in :latest'* ]]
  run -2 --separate-stderr zse-serve "$T/tiny.zse" --port 0 --lora "x=$T/first" --embedding-model x
  [[ $stderr == *'--embedding-model x: is a LoRA adapter'* ]]
  admin "$URL/api/models/load" -d "{\"model_path\":\"$T/tiny.zse\",\"model_name\":\"one\"}" |
    jq -e '.error.code == "model_exists"'
  answer one | jq -e '.model == "one"'
}

@test "unload and batching refuse an adapter; the model stays" {
  admin "$URL/api/models/unload" -d '{"model_id":"one"}' | jq -e '.error.message | test("is a LoRA adapter")'
  admin "$URL/api/batching" -d '{"model":"one","chunk":16}' | jq -e '.error.message | test("is a LoRA adapter")'
  answer tiny | jq -e '.model == "tiny"'
}

@test "a model whose memory another one took comes back when its adapter is named; the other has no adapters" {
  local bytes main=$URL
  start "$T/two" "$T/tiny.zse" "$T/tiny.zse" --name base --name other --port 0 --kv f32 --max-seqs 1 --kv-bytes 5MB --lora "one=$T/first"
  await text other
  await text one
  curl -s "$URL/v1/models" | jq -e '[.data[] | select(.parent) | [.id, .parent]] == [["one", "base"]]'
  bytes=$(curl -s "$URL/api/ps" | jq '[.models[].size] | max * 3 / 2 | floor')
  stop "$PID"
  start "$T/evicted" "$T/tiny.zse" "$T/tiny.zse" --name base --name other --port 0 --kv f32 --max-seqs 1 --kv-bytes 5MB --lora "one=$T/first" --max-memory "$bytes"
  await text other
  answer one | jq -e '.error.code == "model_loading"'
  await text one
  URL=$main
}

@test "adapters are named when the model is ready, and come back when it is loaded again by another path" {
  local main=$URL
  start "$T/again" "$T/tiny.zse" --port 0 --lora "one=$T/first"
  await text one
  grep 'tiny: LoRA adapter one, rank 8' "$T/again"*
  admin "$URL/api/models/unload" -d '{"model_id":"tiny"}' | jq -e .success
  ln -sf tiny.zse "$T/link.zse"
  await admin -f "$URL/api/models/load" -d "{\"model_path\":\"$T/link.zse\",\"model_name\":\"tiny\"}"
  answer one | jq -e '.model == "one"'
  stop "$PID"
  URL=$main
}

@test "a key finds the adapters that it may use, and no others" {
  local base one
  local -x ZSE_HOME=$T/keys-home
  base=$(zse-apikey create base --scope models --model tiny 2>/dev/null)
  one=$(zse-apikey create one --scope models --model one 2>/dev/null)
  start "$T/keys" "$T/tiny.zse" --port 0 --lora "one=$T/first" --lora-dir "$T"
  as() { curl -s -H "Authorization: Bearer $1" "${@:2}"; }
  await listens "$URL"
  as "$one" "$URL/v1/models/one" | jq -e '.id == "one"'
  as "$one" "$URL/v1/models/tiny" | jq -e '.error.code == "model_not_found"'
  as "$base" "$URL/v1/models/tiny" | jq -e '.id == "tiny"'
  as "$base" "$URL/v1/models/one" | jq -e '.error.code == "model_not_found"'
  as "$one" "$URL/v1/unload_lora_adapter" -d '{"lora_name":"one"}' | jq -e '.error.code == "insufficient_scope"'
  as "$one" "$URL/v1/load_lora_adapter" -d '{"lora_name":"two","lora_path":"second"}' | jq -e '.error.code == "insufficient_scope"'
  as "$one" "$URL/api/tags" | jq -e '[.models[] | [.name, .details.parent_model]] == [["one", "tiny"]]'
  as "$base" "$URL/api/tags" | jq -e '[.models[].name] == ["tiny"]'
  as "$one" "$URL/api/show" -d '{"model":"one"}' | jq -e '.details.parent_model == "tiny"'
  as "$base" "$URL/api/show" -d '{"model":"one"}' | jq -e '.error | test("not found")'
  stop "$PID"
}

@test "the conversion of a folder takes adapters; one without channel scales is made again" {
  local -x XDG_CACHE_HOME=$T/cache
  run -0 zse-chat models/tiny -q nl4 -p a --max-tokens 2
  run -0 zse-chat models/tiny -q nl4 --lora "$T/first" -p a --max-tokens 2
  [[ $output != *converting* ]]
  make_old "$(find "$T/cache/zse" -name '*-nl4-*.zse')"
  run -0 zse-chat models/tiny -q nl4 -p a --max-tokens 2
  [[ $output != *converting* ]]
  run -0 zse-chat models/tiny -q nl4 --lora "$T/first" -p a --max-tokens 2
  [[ $output == *"converting models/tiny once"* ]]
}

@test "adapters are in the plan, and refused before they take memory beyond --max-memory" {
  local weights
  run -0 zse-chat "$T/tiny.zse" --plan --json --lora "$T/first"
  weights=$(jq .weight_bytes <<<"$output")
  jq -e '.adapter_bytes > 0 and .needed_bytes == .weight_bytes + .kv_bytes + .state_bytes + .workspace_bytes + .adapter_bytes + (.draft_bytes // 0)' <<<"$output"
  run -0 zse-serve "$T/tiny.zse" "$T/tiny.zse" --name a --name b --plan --lora "one=$T/first"
  [ "$(grep -c '^adapters ' <<<"$output")" = 1 ]
  run -1 --separate-stderr zse-serve "$T/tiny.zse" --port 0 --kv-bytes 5MB --lora "one=$T/first" --max-memory $((weights + 1000))
  [[ $stderr == *'the weights and the adapters take'* ]]
}

# lora ACTION MEMBERS: what the server answers to /v1/ACTION_lora_adapter
lora() { admin "$URL/v1/$1_lora_adapter" -d "{$2}"; }

@test "an adapter is loaded and unloaded while the server runs, and answers as one of --lora" {
  [ "$(lora load '"lora_name":"new","lora_path":"first"')" = "Success: LoRA adapter 'new' added successfully." ]
  curl -s "$URL/v1/models" | jq -e '[.data[] | select(.id == "new") | [.root, .parent]] == [["first", "tiny"]]'
  [ "$(text new)" = "$(text one)" ]
  [ "$(text new)" != "$(text second)" ]
  lora load '"lora_name":"new","lora_path":"second"' | jq -e '.error.code == "adapter_exists"'
  [ "$(lora load "\"lora_name\":\"new\",\"lora_path\":\"$T/second\",\"load_inplace\":true")" = "Success: LoRA adapter 'new' added successfully." ]
  [ "$(text new)" = "$(text second)" ]
  [ "$(lora unload '"lora_name":"new","lora_int_id":5')" = "Success: LoRA adapter 'new' removed successfully." ]
  answer new | jq -e '.error.code == "model_not_found"'
  lora unload '"lora_name":"new"' | jq -e '.error.code == "adapter_not_found"'
  curl -s "$URL/v1/models" | jq -e '[.data[].id] == ["tiny", "one", "second"]'
  [ "$(text one)" != "$(text tiny)" ]
}

@test "adapters of one name that are loaded at once leave one, and a pipe in a folder blocks nothing" {
  local i
  lora load '"lora_name":"twin","lora_path":"first"'
  for i in 1 2 3 4; do lora load '"lora_name":"twin","lora_path":"second","load_inplace":true' >"$T/twin.$i" & done
  wait $(jobs -p)
  grep -q 'Success' "$T"/twin.*
  curl -s "$URL/v1/models" | jq -e '[.data[].id] == ["tiny", "one", "second", "twin"]'
  [ "$(text twin)" = "$(text second)" ]
  lora unload '"lora_name":"twin"'
  answer twin | jq -e '.error.code == "model_not_found"'
  mkdir "$T/pipe"
  cp "$T/first/adapter_config.json" "$T/pipe"
  mkfifo "$T/pipe/adapter_model.safetensors"
  lora load '"lora_name":"x","lora_path":"pipe"' | jq -e '.error.message | test("not a regular file")'
}

@test "requests that use an adapter end after it was unloaded; metrics name it meanwhile" {
  local i
  lora load '"lora_name":"old","lora_path":"second"'
  mkfifo "$T/stream"
  curl -sN "$URL/v1/completions" -d '{"model":"old","prompt":"The capital of","temperature":0,"n":4,"max_tokens":450,"ignore_eos":true,"stream":true}' >"$T/stream" &
  exec 5<"$T/stream"
  read -r -u 5 i
  [[ $i == *'"model":"old"'* ]]
  admin "$URL/metrics" >"$T/metrics"
  grep -E '^vllm:lora_requests_info\{model_name="tiny",max_lora="[0-9]+",running_lora_adapters="old",waiting_lora_adapters=""\} [0-9]+$' "$T/metrics"
  lora unload '"lora_name":"old"'
  answer old | jq -e '.error.code == "model_not_found"'
  cat <&5 >"$T/rest"
  [ "$(grep -c '"model":"old"' "$T/rest")" -ge 1799 ]
  grep '"finish_reason":"length"' "$T/rest"
  [ "$(tail -n 2 "$T/rest" | head -n 1)" = 'data: [DONE]' ]
  admin "$URL/metrics" | grep 'running_lora_adapters="",waiting_lora_adapters=""'
  await grep -q 'LoRA adapter old: unloaded' "$T/main.err"
}

@test "adapters from other folders, of other names and without a key are refused" {
  local path
  lora load '"lora_path":"first"' | jq -e '.error.param == "lora_name"'
  lora load '"lora_name":"x"' | jq -e '.error.param == "lora_path"'
  lora load '"lora_name":"a b","lora_path":"first"' | jq -e '.error.code == "invalid_value"'
  for path in '\u202eb' 'a\u0085' 'one:latest'; do
    lora load "\"lora_name\":\"$path\",\"lora_path\":\"first\"" | jq -e '.error.code == "invalid_value"'
  done
  mkdir -p "$T/large"
  cp "$T/first/adapter_model.safetensors" "$T/large"
  { cat "$T/first/adapter_config.json"; head -c 2000000 /dev/zero | tr '\0' ' '; } >"$T/large/adapter_config.json"
  [ "$(admin -o "$T/body" -w '%{http_code}' "$URL/v1/load_lora_adapter" -d '{"lora_name":"x","lora_path":"large"}')" = 400 ]
  grep -q 'adapter_config.json: 2[0-9]* bytes, expected at most 1048576' "$T/body"
  lora load '"lora_name":"tiny","lora_path":"first"' | jq -e '.error.code == "adapter_exists"'
  lora load '"lora_name":"default","lora_path":"first"' | jq -e '.error.code == "adapter_exists"'
  for path in /etc ../.. tiny.zse none; do
    lora load "\"lora_name\":\"x\",\"lora_path\":\"$path\"" | jq -e '.error.code == "path_not_allowed"'
  done
  mkdir -p "$T/empty"
  lora load '"lora_name":"x","lora_path":"empty"' | jq -e '.error.message | test("has no adapter_config.json")'
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/load_lora_adapter" -d '{"lora_name":"x","lora_path":"first"}')" = 401 ]
  curl -s "$URL/v1/models" | jq -e '[.data[].id] == ["tiny", "one", "second"]'
}

@test "without --lora-dir no adapter is loaded, and one of --lora can be unloaded; --max-memory holds" {
  local main=$URL bytes
  start "$T/bare" "$T/tiny.zse" --port 0 --kv-bytes 5MB --lora "one=$T/first"
  await text one
  lora load '"lora_name":"x","lora_path":"first"' | jq -e '.error.message | test("--lora-dir, which was not given")'
  bytes=$(curl -s "$URL/api/ps" | jq '.models[0].size')
  lora unload '"lora_name":"one"'
  answer one | jq -e '.error.code == "model_not_found"'
  await eval '[ "$(curl -s "$URL/api/ps" | jq ".models[0].size")" -lt '"$bytes"' ]'
  stop "$PID"
  start "$T/full" "$T/tiny.zse" --port 0 --kv-bytes 5MB --lora-dir "$T" --max-memory "$bytes"
  await text tiny
  lora load '"lora_name":"x","lora_path":"first"'
  lora load '"lora_name":"y","lora_path":"first"' | jq -e '.error.message | test("--max-memory")'
  stop "$PID"
  URL=$main
}

# hub.bats - models by their name on a hub: a server on this machine speaks its protocol, with the
# faults that networks and hubs have.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export T=$BATS_FILE_TMPDIR
  mkdir "$T/empty" "$T/quants" "$T/bare" "$T/strange" "$T/moe"
  cp -r models/tiny "$T/tiny"
  zse-convert models/tiny -o "$T/bare/tiny-nl4.zse" -q nl4 --quality fast >/dev/null
  cp "$T/bare/tiny-nl4.zse" "$T/bare/tiny-other.zse"
  cp "$T/bare/tiny-nl4.zse" "$T/quants/tiny-Q4_K_M.zse"
  cp "$T/bare/tiny-nl4.zse" "$T/quants/tiny-Q8_0.zse"
  : >"$T/tiny/NOTICE"
  cp -r models/tiny "$T/both"
  echo '{"weight_map":{}}' >"$T/both/model.safetensors.index.json"
  split_model
  python3 -S tests/lib/nvfp4.py modelopt-old models/tiny "$T/modelopt" "$T/modelopt-want"
  python3 tests/hub/shards.py models/tiny "$T/layers" 3 layers
  python3 tests/hub/shards.py models/tiny "$T/unused" 2 layers unused
  mkdir "$T/single"
  cp models/tiny/config.json "$T/single"
  cp "$T/bare/tiny-nl4.zse" "$T/single/tiny-Q4_K_M.gguf"
  cp -r "$T/layers" "$T/cut"
  truncate -s -100 "$T/cut/model-00003-of-00003.safetensors"
  cp -r "$T/layers" "$T/lost"
  sed -i 's,model-00002-of-00003,../../model-00002-of-00003,' "$T/lost/model.safetensors.index.json"
  mkdir "$T/nothing" "$T/mute" "$T/shapeless"
  cp models/tiny/config.json models/tiny/model.safetensors "$T/mute"
  cp models/tiny/tokenizer.json models/tiny/model.safetensors "$T/shapeless"
  cp models/tiny/*.json "$T/nothing"
  : >"$T/nothing/model.safetensors"
  cp -r models/tiny/. "$T/strange"
  sed -i 's/"model_type": *"[^"]*"/"model_type": "abacus"/; s/"architectures".*\[[^]]*\]/"architectures": ["AbacusForCausalLM"]/' "$T/strange/config.json"
  echo '{"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe","num_hidden_layers":2,"hidden_size":256,"intermediate_size":512,"num_attention_heads":4,
    "num_key_value_heads":4,"head_dim":64,"vocab_size":512,"max_position_embeddings":512,"rope_theta":1e4,"rms_norm_eps":1e-6,"num_experts":32,"num_experts_per_tok":4,
    "moe_intermediate_size":512,"norm_topk_prob":true,"hidden_act":"silu","bos_token_id":1,"eos_token_id":2}' >"$T/moe/config.json"
  truncate -s 50M "$T/moe/model.safetensors"
  echo '# nothing' >"$T/empty/README.md"
  mkfifo "$T/hub.pipe"
  python3 -B tests/hub/server.py test/tiny="$T/tiny" private/model="$T/tiny" gated/model="$T/tiny" test/bare="$T/bare" test/shards="$T/shards" \
    test/layers="$T/layers" test/unused="$T/unused" test/single="$T/single" test/cut="$T/cut" test/lost="$T/lost" test/nothing="$T/nothing" test/mute="$T/mute" \
    test/shapeless="$T/shapeless" \
    test/strange="$T/strange" test/empty="$T/empty" test/quants="$T/quants" test/both="$T/both" test/modelopt="$T/modelopt" test/moe="$T/moe" solo="$T/tiny" \
      HuggingFaceTB/SmolLM2-135M-Instruct="$T/tiny" sentence-transformers/all-MiniLM-L6-v2="$T/tiny" >"$T/hub.pipe" 2>"$T/hub.err" 3>&- &
  echo $! >"$T/hub.pid"
  read -r HUB CDN <"$T/hub.pipe"
  export HUB CDN
}

teardown_file() { kill "$(cat "$T/hub.pid")"; }

# Make the tiny model in three shards with an index, beside other copies of the weights that must
# not be downloaded.
split_model() {
  python3 tests/hub/shards.py models/tiny "$T/shards" 3
  echo 'a second copy' >"$T/shards/consolidated.safetensors"
  mkdir "$T/shards/original"
  echo another >"$T/shards/original/weights.pth"
}

setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  unset HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_HUB_OFFLINE \
    TRANSFORMERS_OFFLINE CURL_CA_BUNDLE SSL_CERT_FILE no_proxy NO_PROXY http_proxy https_proxy HTTPS_PROXY \
    ALL_PROXY all_proxy
  export HF_ENDPOINT=$HUB HF_HOME=$BATS_TEST_TMPDIR/hf XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache
  REPO=$HF_HOME/hub/models--test--tiny
  COMMIT=a1b2c3d4e5f60718293a4b5c6d7e8f9001122334
  curl -s "$HUB/_reset" -d ''
}
# memory KIB: pretend that the machine has this much memory; measuring speeds uses at most half of
# it
memory() {
  export ZSE_SYSROOT=$BATS_TEST_TMPDIR/root
  mkdir -p "$ZSE_SYSROOT/proc"
  printf 'MemTotal: %s kB\nMemFree: %s kB\nMemAvailable: %s kB\n' "$1" "$1" "$1" >"$ZSE_SYSROOT/proc/meminfo"
}
fault() { curl -s "$HUB/_fault" -d "$1"; }
requests() { curl -s "$HUB/_log"; }
asked() { requests | grep -Eq "$1"; }
# In every range that was requested the end is not before the beginning.
ranges_in_order() { requests | awk 'match($0, /bytes=[0-9]+-[0-9]+/) { split(substr($0, RSTART + 6, RLENGTH - 6), at, "-"); if (at[2] + 0 < at[1] + 0) { print; bad = 1 } } END { exit bad }'; }
never_asked() { if asked "$1"; then requests; return 1; fi; }
held() { [ "$(requests | grep -c ' cdn$')" = 4 ]; }
# The list of downloaded ranges contains the beginning of the file: the four parts arrive in any
# order, and the list may be saved before the last of them has.
written_down() { grep -q '^0 ' "$(find "$REPO/blobs" -name '*.zse-ranges' 2>/dev/null)" 2>/dev/null; }
# Type bf16, because a conversion without a search for the best codes takes less time than the
# download.
convert() { rm -f "$BATS_TEST_TMPDIR/m.zse"; run --separate-stderr zse-convert "${1:-test/tiny}" -o "$BATS_TEST_TMPDIR/m.zse" -q bf16; }
answers() { [ "$(zse-chat "$1" --temp 0 -p 'What is 2+2?' 2>>"$BATS_TEST_TMPDIR/notes")" = "2 + 2 = 4" ]; }
# All files of the download have their final names, and no temporary files are left.
complete() {
  local f
  for f in NOTICE config.json generation_config.json tokenizer.json tokenizer_config.json model.safetensors; do
    cmp "$T/tiny/$f" "$REPO/snapshots/$COMMIT/$f" || return 1
    [[ $(readlink "$REPO/snapshots/$COMMIT/$f") == ../../blobs/* ]] || return 1
  done
  [ "$(cat "$REPO/refs/main")" = $COMMIT ] && [ -z "$(find "$REPO" -name '*.zse-*')" ]
}

@test "a model's name is enough for an answer; the second time no request is sent" {
  answers test/tiny
  complete
  grep -q 'downloading test/tiny: 1.8 MB' "$BATS_TEST_TMPDIR/notes"
  curl -s "$HUB/_reset" -d ''
  answers test/tiny
  [ -z "$(requests)" ]
}

@test "convert downloads hf_quant_config.json, which says how the weights are quantized" {
  zse-convert test/modelopt -o "$BATS_TEST_TMPDIR/hub.zse" -q keep
  zse-convert "$T/modelopt" -o "$BATS_TEST_TMPDIR/here.zse" -q keep
  zse-info -t "$BATS_TEST_TMPDIR/hub.zse" | grep -q nvfp4
  zse-info --dump-tensor layers.0.down_proj.weight -o "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/hub.zse"
  zse-info --dump-tensor layers.0.down_proj.weight -o "$BATS_TEST_TMPDIR/b" "$BATS_TEST_TMPDIR/here.zse"
  cmp "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
}

@test "--plan and models check: a checkpoint with hf_quant_config.json is not counted as bf16" {
  memory 400000
  run --separate-stderr zse-chat test/modelopt --plan
  [ "$status" = 1 ] && [[ $stderr == *"test/modelopt: is quantized: its size is only known after a download"* ]] || { echo "$output $stderr"; return 1; }
  zse-chat test/modelopt -q nl4 --plan --exact --json | jq -e '.quantization == "nl4" and .weight_bytes > 300000'
  [ "$(zse-convert test/modelopt --plan --threads 1 --json | jq -c '.types | length')" = 3 ]
  for where in test/modelopt "$T/modelopt"; do
    run --separate-stderr zse-info models check "$where" --json
    [ "$(jq -c '[.compatible, .memory, .weight_bytes > 0]' <<<"$output")" = '[true,null,true]' ] || { echo "$where: $output"; return 1; }
  done
  [ ! -e "$HF_HOME" ]
}

@test "convert downloads only what is needed, in ranges, from a second host that gets no token" {
  HF_TOKEN=hf_x convert test/shards
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  [ "$(zse-chat "$BATS_TEST_TMPDIR/m.zse" --temp 0 -p 'What is 2+2?')" = "2 + 2 = 4" ]
  never_asked 'consolidated|original|\.pth'
  asked 'model-00003-of-00003.safetensors bytes=524288-.* no-token cdn'
  never_asked ' token cdn'
  never_asked ' no-token hub'
  curl -s "$HUB/_reset" -d ''
  convert test/shards
  [ "$status" = 0 ] && [ "$(requests | wc -l)" = 1 ]              # is there a newer commit?
}

@test "the token may be refused, missing, or from the file of the Python tools; a redirect to another host does not get it" {
  convert private/model
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ $stderr == *"401 (Invalid username or password.)"*HF_TOKEN* ]]
  HF_TOKEN=wrong convert private/model
  [ "$status" = 1 ]
  [[ $stderr == *"token (HF_TOKEN, or the file"*"not valid"* ]]
  mkdir -p "$HF_HOME"
  echo hf_secret >"$HF_HOME/token"
  convert private/model
  [ "$status" = 0 ]
  rm -rf "$HF_HOME/hub"
  HF_HUB_DISABLE_IMPLICIT_TOKEN=1 convert private/model
  [ "$status" = 1 ]
  curl -s "$HUB/_reset" -d ''
  fault "$(jq -nc --arg to "$CDN/private/model/config.json" '{file: "config.json", kind: "elsewhere", times: 9, to: $to}')"
  convert private/model
  [ "$status" = 0 ]
  asked 'GET /private/model/config.json - no-token cdn'
  never_asked ' token cdn'
  convert gated/model
  [ "$status" = 1 ] && [[ $stderr == *"403 (Access to model is restricted)"*"terms"*"$HUB/gated/model"* ]]
}

@test "names: unknown and invalid ones are refused, a folder has priority; revisions, renamed repositories and picks work" {
  run --separate-stderr zse-chat models/tny -p hi
  [ "$status" = 1 ]
  [[ $stderr == *"no such file or folder here; on the hub: models/tny:"*404* ]]
  run --separate-stderr zse-chat nothing.gguf -p hi
  [ "$status" = 1 ]
  [[ $stderr == "zse-chat: nothing.gguf: No such file or directory, and not among the models here (zse-info models local); those of the hub are named org/name" ]]
  run --separate-stderr zse-chat a/b/c -p hi
  [ "$status" = 1 ]
  [[ $stderr == *"a/b/c: No such file or directory"* ]]
  run --separate-stderr zse-chat out/m.zse -p hi
  [ "$status" = 1 ]
  [[ $stderr == *"out/m.zse: No such file or directory"* ]]
  [ "$(requests | wc -l)" = 1 ]
  run --separate-stderr zse-chat nothing -p hi
  [ "$status" = 1 ]
  [[ $stderr == "zse-chat: nothing: No such file or directory, and not among the models here (zse-info models local); those of the hub are named org/name" ]]
  # the hub is not asked for a word without a slash
  [ "$(requests | wc -l)" = 1 ]
  run --separate-stderr zse-chat nothing@main -p hi
  [[ $stderr == *"no such file or folder here; on the hub: nothing:"*404* ]]
  answers solo@main                                               # some old models have no organisation
  [ "$(cat "$HF_HOME/hub/models--solo/refs/main")" = $COMMIT ]
  [ -e "$HF_HOME/hub/.locks/models--solo" ]
  answers models/tiny
  convert test/tiny@v1
  [ "$status" = 0 ]
  [ "$(cat "$REPO/refs/v1")" = $COMMIT ]
  convert test/tiny@refs/pr/1
  [ "$status" = 0 ]
  [ "$(cat "$REPO/refs/refs/pr/1")" = $COMMIT ]
  convert test/tiny@v9
  [ "$status" = 1 ]
  [[ $stderr == *"Invalid rev id"* ]]
  convert test/tiny@../../x
  [ "$status" = 1 ] && [[ $stderr != *hub* || $stderr == *"No such file"* ]]
  convert old/name
  [ "$status" = 0 ]
  curl -s "$HUB/_reset" -d ''
  convert test/tiny@$COMMIT
  [ "$status" = 0 ]
  [ -z "$(requests)" ]                       # a commit does not change
  run --separate-stderr zse-chat test/bare -p hi
  [ "$status" = 1 ]
  [[ $stderr == *"which of tiny-nl4.zse, tiny-other.zse? Say test/bare:FILE"* ]]
  answers test/bare:nl4
  answers test/bare:tiny-other.zse
  run --separate-stderr zse-chat test/bare:Q4_K_M -p hi
  [ "$status" = 1 ] && [[ $stderr == *"'Q4_K_M' names no GGUF or .zse file of it; it has tiny-nl4.zse, tiny-other.zse"* ]]
}

@test "a model that does not run here is refused before its weights are downloaded" {
  convert test/strange
  [ "$status" = 1 ] && [[ $stderr == *"nothing was downloaded: "*abacus* ]] || { echo "$stderr"; return 1; }
  never_asked 'GET.*model.safetensors'
}

@test "a model that does not fit here is refused before its weights are downloaded; --force tries" {
  memory 20000
  run --separate-stderr zse-chat test/tiny -p 'What is 2+2?' --temp 0
  [ "$status" = 1 ] && [ -z "$output" ] && [[ $stderr == *"nothing was downloaded: test/tiny: needs 0.04 GB (weights 0.00, "*"but there are 0.02 GB"*"--force tries it"* ]] || { echo "$stderr"; return 1; }
  never_asked 'GET.*model.safetensors'
  run --separate-stderr zse-chat test/tiny -p 'What is 2+2?' --temp 0 --force
  [ "$status" = 0 ] && [ "$output" = '2 + 2 = 4' ]
}

@test "a mixture of experts that does not fit is downloaded: its experts are read from the file" {
  memory 60000
  run --separate-stderr zse-chat test/moe -p hi
  # zeros are no weights
  [ "$status" = 1 ] && [[ $stderr != *"nothing was downloaded"* ]] || { echo "$stderr"; return 1; }
  asked 'GET.*model.safetensors'
  memory 20000
  HF_HOME=$BATS_TEST_TMPDIR/other run --separate-stderr zse-chat test/moe -p hi
  [ "$status" = 1 ] && [[ $stderr == *"nothing was downloaded"* ]] || { echo "$stderr"; return 1; }
}

@test "with a broken config.json nothing more is downloaded" {
  fault '{"file":"config.json","kind":"wrong","method":"GET","times":2}'
  convert
  [ "$status" = 1 ] && [[ $stderr == *"config.json: its git SHA-1 is "*"it came twice and was removed"* ]] || { echo "$stderr"; return 1; }
  never_asked 'GET.*model.safetensors'
}

@test "safetensors in one file are used even if there is an index too" {
  convert test/both
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  [ ! -e "$HF_HOME/hub/models--test--both/.no_exist/$COMMIT/model.safetensors.index.json" ]
  [ -e "$HF_HOME/hub/models--test--both/.no_exist/$COMMIT/merges.txt" ]
  curl -s "$HUB/_reset" -d ''
  answers test/both
  [ -z "$(requests)" ]
}

@test "file names that lead elsewhere are ignored; a list without end is refused" {
  fault '{"file":"api","kind":"siblings","names":["../../x.json","/etc/passwd.json","a/../../LICENSE.md","additional_chat_templates/../../../../x.jinja","additional_chat_templates/..","tokenizer.json\u000a","C:\\LICENSE"]}'
  convert
  [ "$status" = 0 ]
  complete
  never_asked 'x\.j|passwd|%2F|%5C|LICENSE'
  [ -z "$(find "$BATS_TEST_TMPDIR" -name 'x.j*' -o -name passwd.json -o -name 'LICENSE*' ! -path '*/.no_exist/*')" ]
  fault '{"file":"api","kind":"endless"}'
  rm -rf "$HF_HOME"
  convert
  [ "$status" = 1 ] && [[ $stderr == *"more than 67108864 bytes"* ]] || { echo "$stderr"; return 1; }
}

@test "a link in the cache to another file is replaced by the blob, and that file stays" {
  mkdir -p "$REPO/snapshots/$COMMIT" "$REPO/blobs"
  echo precious >"$BATS_TEST_TMPDIR/precious"
  ln -s /nowhere/config.json "$REPO/snapshots/$COMMIT/config.json"
  ln -s "$BATS_TEST_TMPDIR/precious" "$REPO/snapshots/$COMMIT/.hidden"
  convert
  [ "$status" = 0 ] && complete && [ "$(cat "$BATS_TEST_TMPDIR/precious")" = precious ]
}

@test "models fetch downloads a model, and so does scripts/fetch-model, which uses it" {
  run --separate-stderr zse-info models fetch test/tiny
  [ "$status" = 0 ]
  [ "$output" = "$REPO/snapshots/$COMMIT" ]
  complete
  [ "$(zse-info models fetch test/tiny --json | jq -r .path)" = "$output" ]
  run --separate-stderr zse-info models fetch nothing/there
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ $stderr == *404* ]]
  run --separate-stderr zse-info models fetch
  [ "$status" = 2 ]
  run --separate-stderr scripts/fetch-model --hub-only
  [ "$status" = 0 ]
  cmp "$output/model.safetensors" "$T/tiny/model.safetensors"
  run --separate-stderr scripts/fetch-model --embedding --hub-only
  [[ $status = 0 && $output == *--all-MiniLM-L6-v2/snapshots/* ]]
  B=$(dirname "$(command -v zse-info)") PATH=/usr/bin:/bin HF_HOME=$BATS_TEST_TMPDIR/again run --separate-stderr "$PWD/scripts/fetch-model" --hub-only
  [ "$status" = 0 ]
  cmp "$output/model.safetensors" "$T/tiny/model.safetensors"                       # B may be absolute
  HF_ENDPOINT=http://127.0.0.1:9 HF_HOME=$BATS_TEST_TMPDIR/other run --separate-stderr scripts/fetch-model --hub-only
  [ "$status" = 1 ] && [ -z "$output" ] && [[ $stderr == *"neither the hub nor"* ]]
}

@test "files without a size are accepted, endless or too large ones refused" {
  fault '{"file":"config.json","kind":"unsized","after":5000,"method":"GET"}'
  fault '{"file":"config.json","kind":"unsized","times":9}'
  convert
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  complete
  rm -rf "$HF_HOME"
  curl -s "$HUB/_reset" -d ''
  fault '{"file":"config.json","kind":"unsized","endless":true,"times":9}'
  convert
  [ "$status" = 1 ] && [[ $stderr == *"config.json: more than 67108864 bytes of a file whose size the hub did not say"* ]] || { echo "$stderr"; return 1; }
  [ -z "$(find "$REPO" -name '*.zse-*')" ]
  curl -s "$HUB/_reset" -d ''
  fault '{"file":"model.safetensors","kind":"","size":9223372036854775807,"times":9}'
  convert
  [ "$status" = 1 ] && [[ $stderr == *"model.safetensors: the hub says it has 9223372036854775807 bytes, expected"* ]] || { echo "$stderr"; return 1; }
}

@test "cuts, stalled ranges, short bodies, 5xx and 429 do not prevent a complete download" {
  fault '{"file":"model.safetensors","kind":"cut","after":100000,"at":"cdn","times":3}'
  fault '{"file":"model.safetensors","kind":"short","bytes":1000,"at":"cdn"}'
  fault '{"file":"tokenizer.json","kind":"cut","after":5000,"method":"GET"}'
  fault '{"file":"api","kind":"status","code":429,"headers":{"Retry-After":"1"}}'
  fault '{"file":"config.json","kind":"status","code":503}'
  fault '{"file":"model.safetensors","kind":"status","code":403,"at":"cdn"}'
  convert
  [ "$status" = 0 ] && [[ $stderr == *"the hub asks to wait 1 s"* ]] || { echo "$stderr"; return 1; }
  complete
  # one of the first four ranges was cut; the next request asked only for the missing bytes
  asked 'model.safetensors bytes=(100000|624288|1148576|1672864)-'
}

@test "a server without ranges can be used" {
  fault '{"file":"model.safetensors","kind":"whole","at":"cdn","times":99}'
  convert
  [ "$status" = 0 ]
  complete
  rm -rf "$HF_HOME"
  fault '{"file":"model.safetensors","kind":"cut","after":1000000,"at":"cdn"}'
  fault '{"file":"model.safetensors","kind":"whole","at":"cdn","times":99}'
  convert
  [ "$status" = 0 ]
  complete
}

@test "a wrong byte is noticed: the file is downloaded again, and refused if it is wrong twice" {
  fault '{"file":"model.safetensors","kind":"wrong","at":"cdn"}'
  convert
  [ "$status" = 0 ]
  [[ $stderr == *"SHA-256 is not what the hub says; it is downloaded again"* ]]
  complete
  rm -rf "$HF_HOME"
  fault '{"file":"model.safetensors","kind":"wrong","at":"cdn","times":99}'
  convert
  [ "$status" = 1 ]
  [[ $stderr == *"model.safetensors: its SHA-256 is"*"the hub says $(sha256sum <"$T/tiny/model.safetensors" | cut -d' ' -f1)"* ]]
  [ ! -e "$REPO/refs/main" ] && [ ! -e "$REPO/snapshots/$COMMIT/model.safetensors" ] && [ -z "$(find "$REPO" -name '*.zse-*')" ]
}

@test "small files: a wrong byte is noticed by git's hash, also if no size was given" {
  local kind
  for kind in '"kind":"wrong"' '"kind":"unsized","after":3000'; do
    rm -rf "$HF_HOME"
    curl -s "$HUB/_reset" -d ''
    [[ $kind != *unsized* ]] || fault '{"file":"config.json","kind":"unsized","method":"HEAD"}'
    fault "{\"file\":\"config.json\",$kind,\"method\":\"GET\",\"at\":\"resolve\"}"
    convert
    [ "$status" = 0 ] || { echo "$kind: $stderr"; return 1; }
    complete
  done
  rm -rf "$HF_HOME"
  curl -s "$HUB/_reset" -d ''
  fault '{"file":"tokenizer_config.json","kind":"wrong","method":"GET","at":"resolve","times":99}'
  convert
  [ "$status" = 1 ]
  [[ $stderr == *"tokenizer_config.json: its git SHA-1 is "*"the hub says "*"it came twice and was removed" ]] || { echo "$stderr"; return 1; }
  [ ! -e "$REPO/snapshots/$COMMIT/tokenizer_config.json" ] && [ -z "$(find "$REPO" -name '*.zse-*')" ]
}

@test "bytes that are downloaded again, and differ, are checked again" {
  fault '{"file":"model.safetensors","kind":"cut","whole":true,"after":1000000,"at":"cdn","times":4}'
  fault '{"file":"model.safetensors","kind":"wrong","whole":true,"at":"cdn","times":99}'
  convert
  [ "$status" = 1 ] && [[ $stderr == *"it came twice and was removed"* ]] || { echo "$stderr"; return 1; }
  [ ! -e "$REPO/snapshots/$COMMIT/model.safetensors" ]
}

@test "a hub that stays broken causes one error sentence, and models in the cache still work" {
  fault '{"file":"api","kind":"status","code":500,"times":99,"error":"out of order"}'
  convert
  [ "$status" = 1 ]
  [[ $stderr == *"HTTP 500 (out of order)"* ]]
  [ "${#stderr_lines[@]}" = 1 ]
  curl -s "$HUB/_reset" -d ''
  fault '{"file":"api","kind":"status","code":429,"times":99,"headers":{"Retry-After":"3600"}}'
  convert
  [ "$status" = 1 ]
  [[ $stderr == *"429"*"too many requests, again in 3600 s"* ]]
  curl -s "$HUB/_reset" -d ''
  convert
  [ "$status" = 0 ]
  HF_ENDPOINT=http://127.0.0.1:9 convert
  [ "$status" = 0 ]
  [[ $stderr == *"using the cached copy"* ]]
  for answer in '"code":429,"headers":{"Retry-After":"3600"}' '"code":200'; do
    curl -s "$HUB/_reset" -d ''
    fault "{\"file\":\"api\",\"kind\":\"status\",\"times\":99,$answer}"
    convert
    [ "$status" = 0 ] && [[ $stderr == *"using the cached copy"* ]] || { echo "$answer: $stderr"; return 1; }
  done
  curl -s "$HUB/_reset" -d ''
  fault '{"file":"api","kind":"status","code":404,"times":99}'
  convert
  [ "$status" = 1 ]
  curl -s "$HUB/_reset" -d ''
  HF_ENDPOINT=http://127.0.0.1:9 HF_HUB_OFFLINE=1 convert
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  HF_HUB_OFFLINE=1 convert test/shards
  [ "$status" = 1 ]
  [[ $stderr == *"test/shards: not in $HF_HOME/hub, and HF_HUB_OFFLINE forbids asking the hub"* ]]
  HF_ENDPOINT=ftp://x convert test/shards
  [ "$status" = 1 ] && [[ $stderr == *"HF_ENDPOINT: 'ftp://x', expected a URL"* ]]
}

@test "after a kill the next run continues the download" {
  fault '{"file":"model.safetensors","kind":"hold","at":"cdn","times":4}'
  zse-convert test/tiny -o "$BATS_TEST_TMPDIR/m.zse" >"$BATS_TEST_TMPDIR/out" 2>&1 3>&- &
  local pid=$!
  await held
  await written_down
  kill -KILL $pid
  wait $pid || true
  [ -n "$(find "$REPO/blobs" -name '*.zse-part')" ]
  [ -s "$(find "$REPO/blobs" -name '*.zse-ranges')" ]
  curl -s "$HUB/_release" -d ''
  curl -s "$HUB/_reset" -d ''
  convert
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  complete
  never_asked 'model.safetensors bytes=0-'
}

@test "a signal also ends a wait" {
  fault '{"file":"api","kind":"status","code":429,"headers":{"Retry-After":"100"}}'
  zse-convert test/tiny -o "$BATS_TEST_TMPDIR/m.zse" >"$BATS_TEST_TMPDIR/out" 2>&1 3>&- &
  local pid=$! before rc=0
  await grep -q 'asks to wait 100 s' "$BATS_TEST_TMPDIR/out"
  before=$SECONDS
  kill -TERM $pid
  wait $pid || rc=$?
  [ $rc = 143 ] && [ $((SECONDS - before)) -lt 60 ] && [ ! -e "$BATS_TEST_TMPDIR/m.zse" ]
}

@test "two programs that need a model download it once" {
  fault '{"file":"model.safetensors","kind":"hold","at":"cdn","times":4}'
  zse-convert test/tiny -o "$BATS_TEST_TMPDIR/a.zse" -q bf16 >"$BATS_TEST_TMPDIR/a" 2>&1 3>&- &
  local a=$! b
  await held
  zse-convert test/tiny -o "$BATS_TEST_TMPDIR/b.zse" -q bf16 >"$BATS_TEST_TMPDIR/b" 2>&1 3>&- &
  b=$!
  await grep -q 'another program is downloading model.safetensors; waiting for it' "$BATS_TEST_TMPDIR/b"
  curl -s "$HUB/_release" -d ''
  wait $a
  wait $b
  [ "$(requests | grep -c cdn)" = 4 ]
  cmp "$BATS_TEST_TMPDIR/a.zse" "$BATS_TEST_TMPDIR/b.zse"
  complete
}

# half_converted: whether the conversion has written something.  convert_held: start a conversion of
# three shards, of which the hub holds the last one back, and wait until that is so.  As f32 two
# shards are more than the 2 MB in which a file is written.
half_converted() { [ -n "$(find "$BATS_TEST_TMPDIR" -name '.m.zse.zse-*' -size +100k)" ]; }
convert_held() {
  fault '{"file":"model-00003-of-00003.safetensors","kind":"hold","at":"cdn","if_range":"bytes=524288-"}'
  zse-convert test/layers -o "$BATS_TEST_TMPDIR/m.zse" -q f32 >"$BATS_TEST_TMPDIR/out" 2>&1 3>&- &
  PID=$!
  await half_converted || { cat "$BATS_TEST_TMPDIR/out"; return 1; }
  [ ! -e "$BATS_TEST_TMPDIR/m.zse" ]
}
nothing_left() { [ -z "$(find "$BATS_TEST_TMPDIR" -name '*m.zse*')" ]; }

@test "a conversion begins before all shards have come, and makes the same file" {
  ln -s "$T/layers" "$BATS_TEST_TMPDIR/$COMMIT"                    # the .zse file stores this name
  zse-convert "$BATS_TEST_TMPDIR/$COMMIT" -o "$BATS_TEST_TMPDIR/want.zse" -q f32 >/dev/null
  convert_held
  asked 'model-00003-of-00003.safetensors bytes=0-262143 '        # its head came before
  # one request, because its header is shorter
  ranges_in_order
  curl -s "$HUB/_release" -d ''
  wait $PID || { cat "$BATS_TEST_TMPDIR/out"; return 1; }
  cmp "$BATS_TEST_TMPDIR/want.zse" "$BATS_TEST_TMPDIR/m.zse"
  [ -z "$(find "$HF_HOME/hub" -name '*.zse-*')" ]
  [ "$(cat "$HF_HOME/hub/models--test--layers/refs/main")" = $COMMIT ]
  rm "$BATS_TEST_TMPDIR/m.zse"
  zse-convert test/layers -o "$BATS_TEST_TMPDIR/m.zse" -q f32 2>/dev/null      # from the cache
  cmp "$BATS_TEST_TMPDIR/want.zse" "$BATS_TEST_TMPDIR/m.zse"
  [ -z "${ZSE_SANITIZED:-}" ] || return 0
  rm -rf "$HF_HOME"
  # the default quality, for which the model computes a calibration text layer by layer
  run --separate-stderr zse-convert test/layers -o "$BATS_TEST_TMPDIR/m.zse" --force
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  zse-convert "$BATS_TEST_TMPDIR/$COMMIT" -o "$BATS_TEST_TMPDIR/want.zse" >/dev/null
  cmp "$BATS_TEST_TMPDIR/want.zse" "$BATS_TEST_TMPDIR/m.zse"
}

# Whether a conversion that keeps its result in the cache has begun, and two of three shards came.
kept_half() {
  local shards=$HF_HOME/hub/models--test--layers/snapshots/$COMMIT
  [ -n "$(find "$XDG_CACHE_HOME" -name '.*.part.zse-*')" ] && [ -e "$shards/model-00001-of-00003.safetensors" ] && [ -e "$shards/model-00002-of-00003.safetensors" ]
}

@test "zse-chat also converts while it downloads; a second one waits, and the conversion is not repeated" {
  fault '{"file":"model-00003-of-00003.safetensors","kind":"hold","at":"cdn","if_range":"bytes=524288-"}'
  zse-chat test/layers --temp 0 -p 'What is 2+2?' >"$BATS_TEST_TMPDIR/a" 2>"$BATS_TEST_TMPDIR/a.err" 3>&- &
  local a=$! b
  await kept_half || { cat "$BATS_TEST_TMPDIR/a.err"; return 1; }
  zse-chat test/layers --temp 0 -p 'What is 2+2?' >"$BATS_TEST_TMPDIR/b" 2>"$BATS_TEST_TMPDIR/b.err" 3>&- &
  b=$!
  await grep -q 'another process is converting test/layers; waiting for it' "$BATS_TEST_TMPDIR/b.err" || { cat "$BATS_TEST_TMPDIR/b.err"; return 1; }
  curl -s "$HUB/_release" -d ''
  wait $a || { cat "$BATS_TEST_TMPDIR/a.err"; return 1; }
  wait $b || { cat "$BATS_TEST_TMPDIR/b.err"; return 1; }
  [ "$(cat "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b")" = $'2 + 2 = 4\n2 + 2 = 4' ]
  grep -q 'converting test/layers once, while it downloads (keep)' "$BATS_TEST_TMPDIR/a.err"
  run ! grep -q ' once, ' "$BATS_TEST_TMPDIR/b.err"
  [ "$(find "$XDG_CACHE_HOME/zse" -type f -not -path '*/verified/*' | sed 's/.*[0-9]\.zse/zse/' | sort | xargs)" = "zse zse.source" ]
  # uses the .zse file in the cache, which has this model's name
  answers test/layers
  run ! grep -q ' once, ' "$BATS_TEST_TMPDIR/notes"
}

@test "zse-chat ended during a download leaves only the downloaded part" {
  local rc=0
  fault '{"file":"model-00003-of-00003.safetensors","kind":"hold","at":"cdn","if_range":"bytes=524288-"}'
  zse-chat test/layers --temp 0 -p 'What is 2+2?' >"$BATS_TEST_TMPDIR/a" 2>&1 3>&- &
  local a=$!
  await kept_half || { cat "$BATS_TEST_TMPDIR/a"; return 1; }
  kill -TERM $a
  wait $a || rc=$?
  [ $rc = 143 ] || { echo "$rc"; cat "$BATS_TEST_TMPDIR/a"; return 1; }
  curl -s "$HUB/_release" -d ''
  [ -z "$(find "$XDG_CACHE_HOME/zse" -name '*.zse*')" ]
  curl -s "$HUB/_reset" -d ''
  answers test/layers
  never_asked 'model-0000[12]-of-00003.safetensors bytes'
}

@test "a shard with no needed tensor and a header of 33 MB is waited for, and the file is the same" {
  ln -s "$T/unused" "$BATS_TEST_TMPDIR/$COMMIT"
  zse-convert "$BATS_TEST_TMPDIR/$COMMIT" -o "$BATS_TEST_TMPDIR/want.zse" -q bf16 >/dev/null
  convert test/unused
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  cmp "$BATS_TEST_TMPDIR/want.zse" "$BATS_TEST_TMPDIR/m.zse"
  cmp "$T/unused/model-mtp.safetensors" "$HF_HOME/hub/models--test--unused/snapshots/$COMMIT/model-mtp.safetensors"
  [ -z "$(requests | grep ' cdn$' | sort | uniq -d)" ] || { requests; return 1; }    # no bytes twice
}

@test "a full disk causes one error sentence, and the next run continues" {
  local rc=0
  (
    # makes a write beyond the limit fail, as on a full disk
    trap '' XFSZ
    ulimit -f 100
    zse-convert test/tiny -o "$BATS_TEST_TMPDIR/m.zse" -q bf16 2>"$BATS_TEST_TMPDIR/full"
  ) || rc=$?
  [ $rc = 1 ] || { echo "$rc"; cat "$BATS_TEST_TMPDIR/full"; return 1; }
  grep -q '^zse-convert: .*: File too large$' "$BATS_TEST_TMPDIR/full" || { cat "$BATS_TEST_TMPDIR/full"; return 1; }
  convert
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  complete
}

@test "a conversion of a model from the hub to a pipe that is closed ends quietly" {
  local way
  for way in downloaded cached; do
    run bash -c 'env --default-signal=PIPE zse-convert test/layers -o - -q bf16 2>"$0" | head -c 1 >/dev/null; echo "${PIPESTATUS[0]}"' "$BATS_TEST_TMPDIR/notes"
    [ "$output" = 141 ] || { echo "$way: $output"; cat "$BATS_TEST_TMPDIR/notes"; return 1; }
    if grep pipe "$BATS_TEST_TMPDIR/notes"; then return 1; fi
  done
}

@test "after a kill during download and conversion the next run begins with the shards that are there" {
  local file
  convert_held
  for file in model-0000{1,2}-of-00003.safetensors; do
    await test -e "$HF_HOME/hub/models--test--layers/snapshots/$COMMIT/$file"
  done
  kill -KILL $PID
  wait $PID || true
  curl -s "$HUB/_release" -d ''
  curl -s "$HUB/_reset" -d ''
  convert test/layers
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  never_asked 'model-0000[12]-of-00003.safetensors bytes'
  asked 'model-00003-of-00003.safetensors bytes'
  answers "$BATS_TEST_TMPDIR/m.zse"
}

@test "a signal, a wrong shard or a source that is cut leaves no file, and one sentence" {
  local rc=0
  convert_held
  kill -TERM $PID
  wait $PID || rc=$?
  [ $rc = 143 ]
  nothing_left
  curl -s "$HUB/_release" -d ''
  rm -rf "$HF_HOME"
  curl -s "$HUB/_reset" -d ''
  fault '{"file":"model-00002-of-00003.safetensors","kind":"wrong","at":"cdn","if_range":"bytes=524288-","times":99}'
  convert test/layers
  [ "$status" = 1 ] && [[ $stderr == *"test/layers: model-00002-of-00003.safetensors: its SHA-256 is"*"it came twice and was removed" ]] && nothing_left || { echo "$stderr"; return 1; }
  rm -rf "$HF_HOME"
  curl -s "$HUB/_reset" -d ''
  convert_held
  rc=0
  truncate -s 5000 "$(readlink -f "$HF_HOME/hub/models--test--layers/snapshots/$COMMIT/model-00001-of-00003.safetensors")"
  curl -s "$HUB/_release" -d ''
  wait $PID || rc=$?
  [ $rc = 1 ] && nothing_left && grep -q 'model-00001-of-00003.safetensors: \(has 5000 bytes now, had\|cannot be read any more\)' "$BATS_TEST_TMPDIR/out" || { cat "$BATS_TEST_TMPDIR/out"; return 1; }
}

@test "impossible weights are refused: empty, shorter than their header says, an index that leads elsewhere" {
  convert test/nothing
  [ "$status" = 1 ] && [[ $stderr == *"test/nothing: model.safetensors: the hub says it has 0 bytes, expected weights" ]] || { echo "$stderr"; return 1; }
  convert test/cut
  [ "$status" = 1 ] && [[ $stderr == *"model-00003-of-00003.safetensors: tensor "*"data_offsets: "*"reach beyond the end of the file"* ]] && nothing_left || { echo "$stderr"; return 1; }
  convert test/lost
  [ "$status" = 1 ] && [[ $stderr == *"is in ../../model-00002-of-00003.safetensors, which the repository does not have" ]] || { echo "$stderr"; return 1; }
  [ -z "$(find "$BATS_TEST_TMPDIR" -name 'model-00002*' ! -path '*/models--test--cut/*')" ]
}

@test "false answers are refused: other ranges, compressed bodies, circular redirects" {
  local all
  all=$(stat -c %s "$T/tiny/model.safetensors")
  fault "{\"file\":\"model.safetensors\",\"kind\":\"range\",\"at\":\"cdn\",\"says\":\"bytes 7-9/$all\",\"times\":99}"
  convert
  [ "$status" = 1 ] && [[ $stderr == *"model.safetensors: asked for bytes from "*", got 'bytes 7-9/$all'" ]] || { echo "$stderr"; return 1; }
  curl -s "$HUB/_reset" -d ''
  fault '{"file":"model.safetensors","kind":"range","at":"cdn","if_range":"bytes=0-","says":"bytes 0-524287/524288","times":99}'
  convert
  [ "$status" = 1 ] && [[ $stderr == *"model.safetensors: a range of it comes as 'bytes 0-524287/524288', but the hub announced $all bytes" ]] || { echo "$stderr"; return 1; }
  curl -s "$HUB/_reset" -d ''
  fault "{\"file\":\"config.json\",\"kind\":\"elsewhere\",\"to\":\"$HUB/test/tiny/resolve/$COMMIT/config.json\",\"times\":99}"
  HF_HOME=$BATS_TEST_TMPDIR/other convert
  [ "$status" = 1 ] && [[ $stderr == *"config.json: HTTP 302 again and again" ]] || { echo "$stderr"; return 1; }
  curl -s "$HUB/_reset" -d ''
  fault '{"file":"tokenizer.json","kind":"packed","method":"GET","times":99}'
  fault '{"file":"model.safetensors","kind":"packed","at":"cdn","times":99}'
  convert
  [ "$status" = 0 ] && complete || { echo "$stderr"; return 1; }
}

@test "--plan of a name needs only its configuration, not a download; for a downloaded model it is exact to the byte" {
  memory 400000
  local plan
  plan=$(zse-chat test/tiny --plan --json -q nl4)
  jq -e '.fits and .quantization == "nl4" and .weight_bytes > 300000 and .kv_bytes > 0 and .expected_tokens_per_sec > 0' <<<"$plan"
  zse-serve test/tiny --plan --exact >"$BATS_TEST_TMPDIR/out"
  grep -q '^model  *test/tiny, bf16, on cpu' "$BATS_TEST_TMPDIR/out" || { cat "$BATS_TEST_TMPDIR/out"; return 1; }
  [ "$(zse-convert test/tiny --plan --threads 1 --json | jq -c '[.model, .exact, (.types | length)]')" = '["test/tiny",true,3]' ]
  never_asked 'tokenizer|model.safetensors'
  [ ! -e "$REPO" ]
  HF_HUB_OFFLINE=1 run --separate-stderr zse-chat test/tiny --plan
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ $stderr == *HF_HUB_OFFLINE* ]]
  run --separate-stderr zse-chat test/bare --plan
  [ "$status" = 1 ] && [[ $stderr == *"config.json"*404* ]] || { echo "$stderr"; return 1; }
  # GGUF and .zse files: no size is computed before a download
  for name in test/single test/single:Q4_K_M test/tiny:Q4_K_M; do
    run --separate-stderr zse-chat $name --plan
    [ "$status" = 1 ] || return 1
    [[ -z $output && $stderr == "zse-chat: $name: is a GGUF or .zse file: its size is only known after a download"* ]] || { echo "$stderr"; return 1; }
  done
  zse-chat test/single -q nl4 --plan --exact --json | jq -e '.quantization == "nl4" and .weight_bytes > 300000'
  answers test/tiny
  XDG_CACHE_HOME=$BATS_TEST_TMPDIR/other zse-chat test/tiny --plan --exact --json >"$BATS_TEST_TMPDIR/j"
  [ ! -e "$BATS_TEST_TMPDIR/other" ]
  jq -e '.quantization == "keep" and .weight_bytes > 0' "$BATS_TEST_TMPDIR/j"
}

@test "models search lists what can be converted, by number of downloads; --all also the rest, with reasons" {
  run --separate-stderr zse-info models search test
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  [[ $output == *"test/tiny "*1234*safetensors*apache-2.0* && $output != *test/strange* && $output != *test/empty* ]]
  [[ $stderr == *"5 that cannot be converted are not shown (--all)"* ]] || { echo "$output $stderr"; return 1; }
  run --separate-stderr zse-info models search test --all --json
  [ "$(jq -r '.models[] | select(.id == "test/strange") | .reason' <<<"$output")" = "architecture abacus" ]
  [ "$(jq -r '.models[] | select(.id == "test/empty") | .reason' <<<"$output")" = "no safetensors and no GGUF" ]
  [ "$(jq -c '.models[] | select(.id == "test/shards") | [.compatible, .safetensors, .model_type, .downloads, .license]' <<<"$output")" = '[true,3,"llama",1234,"apache-2.0"]' ] || { echo "$output"; return 1; }
  run --separate-stderr zse-info models search nothing like this
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ $stderr == *"no model has 'nothing like this' in its name"* ]]
  HF_HUB_OFFLINE=1 run --separate-stderr zse-info models search tiny
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ $stderr == *HF_HUB_OFFLINE* ]]
  run --separate-stderr zse-info models search
  [ "$status" = 2 ]
}

@test "models check says whether a model on the hub or in a folder runs, and if not, why" {
  run --separate-stderr zse-info models check test/shards
  [ "$status" = 0 ] && [[ $output == *"architecture   llama"*"weights        1.84 MB"*"memory int4"*"converts       yes" ]] || { echo "$output $stderr"; return 1; }
  never_asked 'GET.*safetensors'
  [ ! -e "$HF_HOME" ]
  run --separate-stderr zse-info models check test/tiny --json
  [ "$(jq -c '[.where, .compatible, .commit, .license, .problems, .memory.f16 > 2 * .memory.int8, .memory.int8 > 1.9 * .memory.int4]' <<<"$output")" = "[\"hub\",true,\"$COMMIT\",\"apache-2.0\",[],true,true]" ] || { echo "$output"; return 1; }
  run --separate-stderr zse-info models check test/strange
  [ "$status" = 1 ]
  [[ $output == *problem*abacus*"converts       no" ]]
  run --separate-stderr zse-info models check test/empty --json
  [ "$status" = 1 ]
  [ "$(jq -c .problems <<<"$output")" = '["no safetensors and no GGUF"]' ]
  run --separate-stderr zse-info models check test/mute --json
  [ "$status" = 1 ] && [ "$(jq -c .problems <<<"$output")" = '["no tokenizer"]' ] || { echo "$output"; return 1; }
  run --separate-stderr zse-info models check test/shapeless --json
  [ "$status" = 1 ] && [ "$(jq -c .problems <<<"$output")" = '["no config.json"]' ] || { echo "$output"; return 1; }
  HF_HUB_OFFLINE=1 run --separate-stderr zse-info models check models/tiny --json
  [ "$status" = 0 ]
  [ "$(jq -c '[.where, .architecture, .compatible]' <<<"$output")" = '["here","llama",true]' ]
  run --separate-stderr zse-info models check models/tiny/config.json
  [ "$status" = 1 ]
  [[ $output == *"no safetensors, only a config.json"* ]]
  local odd=$BATS_TEST_TMPDIR/$'caf\351'
  cp -r "$T/strange" "$odd"
  # a cut after 40 bytes would split a character
  jq '.model_type = "a\u001b[2J" + "é" * 20' "$T/strange/config.json" >"$odd/config.json"
  run --separate-stderr zse-info models check "$odd" --json
  [ "$status" = 1 ] && [ "$(jq -c '[.compatible, (.problems | length), (.model | endswith("caf\ufffd"))]' <<<"$output")" = '[false,1,true]' ] || { echo "$output $stderr"; return 1; }
  run --separate-stderr zse-info models check "$odd"
  [ "$status" = 1 ] && [[ $output == *"architecture   a?[2Jé"* && $output == *problem*"a?[2Jé"* && $output != *$'\33'* ]] || { echo "$output"; return 1; }
  run --separate-stderr zse-info models check ./no-such
  [ "$status" = 1 ] && [[ $stderr == *"no such file or folder here, and: './no-such' is not a name on the hub"* ]] || { echo "$stderr"; return 1; }
  run --separate-stderr zse-info models
  [ "$status" = 2 ]
}

@test "the Python tools use what we downloaded, and we what they downloaded" {
  [ -x build/venv/bin/python ] && build/venv/bin/python -c 'import huggingface_hub' || skip "no huggingface_hub package in build/venv (scripts/deps makes it)"
  convert
  [ "$status" = 0 ]
  run build/venv/bin/python tests/hub/python_tools.py use test/tiny "$T/tiny"
  [ "$status" = 0 ] && [[ $output == ok* ]] || { echo "$output"; return 1; }
  rm -rf "$HF_HOME"
  run build/venv/bin/python tests/hub/python_tools.py make test/shards
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  curl -s "$HUB/_reset" -d ''
  HF_HUB_OFFLINE=1 answers test/shards
  [ -z "$(requests)" ]
  answers test/shards
  # the one request asks whether the commit has a file that is not in the cache
  [ "$(requests | wc -l)" = 1 ]
  never_asked resolve
  answers test/shards
  [ "$(requests | wc -l)" = 1 ]
}

@test "from a repository of single files the default one is downloaded without a question, another one by its quantization" {
  answers test/quants
  curl -s "$HUB/_reset" -d ''
  answers test/quants
  [ -z "$(requests)" ]
  answers test/quants:q8_0
  asked 'tiny-Q8_0.zse'
  curl -s "$HUB/_reset" -d ''
  answers test/quants:Q8_0
  answers test/quants
  [ -z "$(requests)" ]
}

@test "https: an untrusted certificate is refused, a named one accepted; the token is sent; a proxy is used" {
  command -v openssl >/dev/null || skip "no openssl command"
  local d=$BATS_TEST_TMPDIR plain=$HUB
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$d/key" -out "$d/cert" -days 2 -subj \
    /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 2>/dev/null
  mkfifo "$d/pipe"
  python3 -B tests/hub/server.py --tls "$d/cert" "$d/key" private/model="$T/tiny" >"$d/pipe" 2>/dev/null 3>&- &
  local server=$! url
  read -r url _ <"$d/pipe"
  export HF_TOKEN=hf_secret
  HF_ENDPOINT=$url convert private/model
  [ "$status" = 1 ] && [[ $stderr == *"$url: "*certificate* ]] || { echo "$stderr"; kill $server; return 1; }
  HF_ENDPOINT=$url SSL_CERT_FILE=$d/cert convert private/model
  kill $server
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  rm -rf "$HF_HOME"
  HF_ENDPOINT=http://hub.invalid http_proxy=$plain no_proxy=127.0.0.1 convert test/tiny
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  asked 'HEAD .*config.json - no-token hub'     # plain http to another machine: no token
  HF_ENDPOINT=http://hub.invalid http_proxy=$plain no_proxy=127.0.0.1 convert private/model
  [ "$status" = 1 ] && [[ $stderr == *"401"*"the token was not sent, as http://hub.invalid is not https"* ]] || { echo "$stderr"; return 1; }
}

@test "on a terminal a bar shows rate and time" {
  fault '{"file":"model.safetensors","kind":"hold","at":"cdn","times":4}'
  printf 'expect downloading test/tiny: 1.8 MB\nexpect test/tiny +[0-9]+ %% \[#+\.+\] .*B/s, left: [0-9.]+ s\nkey c\n' >"$BATS_TEST_TMPDIR/script"
  run tests/lib/talk zse-convert test/tiny -o "$BATS_TEST_TMPDIR/m.zse" <"$BATS_TEST_TMPDIR/script"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  curl -s "$HUB/_release" -d ''
}

@test "zse-serve loads a model by its name, from the address in the environment" {
  mkfifo "$BATS_TEST_TMPDIR/pipe"
  ZSE_HOME=$BATS_TEST_TMPDIR/home ZSE_HOST=127.0.0.3 ZSE_PORT=0 zse-serve test/tiny --no-audit >"$BATS_TEST_TMPDIR/pipe" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  local server=$! url ids
  read -r _ _ url <"$BATS_TEST_TMPDIR/pipe"
  ready() { ids=$(curl -sf "$url/health" >/dev/null && curl -s "$url/v1/models" | jq -r '.data[].id'); [ "$ids" = tiny ]; }
  await ready || { cat "$BATS_TEST_TMPDIR/err"; kill $server; return 1; }
  kill $server
  wait $server
  [[ $url == http://127.0.0.3:* && $url != *:8000 ]]
  grep -q 'downloading test/tiny' "$BATS_TEST_TMPDIR/err"
  ZSE_PORT=x run --separate-stderr zse-serve
  [ "$status" = 2 ] && [[ $stderr == *"ZSE_PORT: 'x'"* ]]
}

@test "zse(7) names every variable of ours and of the hub that a program reads" {
  local v
  for v in $(grep -rhoE '"(ZSE|HF|HUGGING[A-Z]*|TRANSFORMERS|CURL|SSL)_[A-Z_]+"' cmd gpu | tr -d '"' | sort -u); do
    grep -qw "$v" man/zse.7 || { echo "$v"; return 1; }
  done
}

@test "pull: a name of the registry and a name on the hub become models with names" {
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  zse-convert pull smollm2:135m --quality fast >/dev/null
  zse-convert pull SmolLM2-135M-int8 --quality fast >/dev/null
  zse-convert pull test/tiny --quality fast >/dev/null
  zse-convert pull test/tiny@main --as mine -q bf16 >/dev/null
  [ "$(zse-info models local --names | tr '\n' ' ')" = "mine smollm2:135m smollm2:135m-int8 tiny " ]
  [ "$(zse-info models local --json | jq -c 'map(.type)')" = '["bf16","nl4","int8","nl4"]' ]
  [ "$(zse-chat smollm2:135m --temp 0 -p 'What is 2+2?')" = "2 + 2 = 4" ]
  [ "$(HF_HUB_OFFLINE=1 zse-chat mine --temp 0 -p 'What is 2+2?')" = "2 + 2 = 4" ]
  run -1 --separate-stderr zse-convert pull nosuch
  [[ $stderr == *"'nosuch' is neither a model of zse-info models list, nor org/name on the hub, nor a file here" ]]
  run -1 --separate-stderr zse-convert pull smollm2:135
  [[ $stderr == *"nor a file here; did you mean 'smollm2:135m'?" ]]
  run -2 --separate-stderr zse-convert pull smollm2:135m-int8 -q nl4
  [[ $stderr == *"names the type int8"* ]]
  run -2 --separate-stderr zse-convert pull test/tiny -o x.zse
  run -2 --separate-stderr zse-convert test/tiny --as x -o x.zse
  run -1 --separate-stderr zse-convert pull test/tiny --as ../x
  [[ $stderr == *"'../x' is not a valid model name"* ]]
}

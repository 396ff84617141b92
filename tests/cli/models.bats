# models.bats - zse-info models list|info: the registry, and filters that combine.
bats_require_minimum_version 1.5.0

setup_file() { zse-info models list --json >"$BATS_FILE_TMPDIR/all"; }
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  A=$BATS_FILE_TMPDIR/all T=$BATS_TEST_TMPDIR
}

# bats test_tags=plain
@test "the list has the 19 models of ZSE 1.2, 5 of them marked, and more" {
  zse-info models list --json --zse12 | jq -e 'length == 19 and (map(select(.zse_optimized)) | length) == 5'
  jq -e 'length >= 40 and (map(.model_id) | unique | length) == length' "$A"
  jq -e 'map(.architecture) | unique | contains(["gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"])' "$A"
}

# bats test_tags=plain
@test "sizes are those of the configurations" {
  jq -e '.[] | select(.name == "Qwen2.5-7B") | .parameters > 7.6e9 and .parameters < 7.63e9 and .weight_bytes.bf16 > 2 * .parameters and .exact and
    .vram.bf16 > .weight_bytes.bf16 + 4096 * .kv_bytes_per_token and .kv_bytes_per_token == 2 * 28 * 4 * 128 * 2 and .size == "medium"' "$A"
  jq -e 'all(.weight_bytes.nl4 < .weight_bytes.int8 and .weight_bytes.int8 < .weight_bytes.bf16 and .active_parameters <= .parameters * 1.01)' "$A"
}

# bats test_tags=plain
@test "a model's size is the size of the file that zse-convert plans" {
  want=$(zse-convert --synthetic SmolLM2-135M -q int8 --dry-run --json | jq .weight_bytes)
  jq -e --argjson want "$want" '.[] | select(.name == "SmolLM2-135M") | .weight_bytes.int8 == $want' "$A"
}

# bats test_tags=plain
@test "supported is what the table of architectures says" {
  for type in $(jq -r 'map(.architecture) | unique[]' "$A"); do
    jq --arg t "$type" 'map(select(.architecture == $t))[0]' "$A" >"$T/model"
    jq .config "$T/model" >"$T/config.json"
    [ "$(zse-info --json "$T/config.json" | jq .supported)" = "$(jq .supported "$T/model")" ] || { echo "$type"; return 1; }
  done
  jq -e 'all(.supported or (.unsupported_reason | length) > 0)' "$A"
}

# bats test_tags=plain
@test "filters combine" {
  zse-info models list --json -c code -v 8 -q nl4 >"$T/j"
  jq -e 'length > 0 and all((.categories | index("code")) and .vram.nl4 <= 7200000000)' "$T/j"
  jq -e --slurpfile all "$A" '(map(.model_id) | sort) == ($all[0] | map(select((.categories | index("code")) and .vram.nl4 <= 7200000000)) | map(.model_id) | sort)' "$T/j"
  zse-info models list --json -c code -s medium -v 20GB -r --supported | jq -e 'map(.name) == ["Qwen2.5-Coder-7B"]'
  [ "$(zse-info models list -v 0.1 --json)" = "[]" ]
  zse-info models list -s tiny --json >"$T/tiny"
  jq -e 'all(.parameters < 1e9)' "$T/tiny"
  [ "$(zse-info models list -s tiny | grep -c tiny)" = "$(jq length "$T/tiny")" ]
}

@test "info takes an id, a name, a part of an id" {
  zse-info models info Qwen/Qwen3-8B --json | jq -e '.name == "Qwen3-8B"'
  zse-info models info smollm3 --json | jq -e '.homepage == "https://huggingface.co/HuggingFaceTB/SmolLM3-3B"'
  run --separate-stderr zse-info models info Qwen3-8B
  [ "$status" = 0 ]
  [[ "$output" == *"8.19 billion"*"bf16"*"nl4"* ]]
  run --separate-stderr zse-info models info Qwen3
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"part of several names"* ]]
  run --separate-stderr zse-info models info nothing
  [ "$status" = 1 ] && [[ "$stderr" == *"no model of the registry"* ]]
}

@test "wrong usage is refused with exit 2" {
  for args in '' 'nothing' 'info' 'list more' 'list -c nothing' 'list -s 7b' 'list -v x' 'list -q q4' 'list --none' 'list -q int8' 'info -c chat Qwen3-8B' 'info -r Qwen3-8B'; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-info models $args
    [ "$status" = 2 ] && [ -z "$output" ] || { echo "$args: $status"; return 1; }
  done
}

# ---- models with names ----

# Make a folder of models with two of them; every test has a folder of its own.
with_names() {
  export ZSE_HOME=$T/home
  mkdir -p "$ZSE_HOME/models"
  [ -e "$BATS_FILE_TMPDIR/m.zse" ] || zse-convert models/tiny -o "$BATS_FILE_TMPDIR/m.zse" --quality fast >/dev/null
  cp "$BATS_FILE_TMPDIR/m.zse" "$ZSE_HOME/models/tiny:1m.zse"
}
answer() { (cd / && zse-chat "$@" --temp 0 -p 'What is 2+2?'); }

# bats test_tags=plain
@test "every name of the registry has a short form of its own, which pull would find" {
  jq -e '(map(.pull) | unique | length) == length' "$A"
  jq -e '[.[] | select(.name == ("SmolLM2-135M", "Mistral-Small-3.2-24B", "Qwen3-4B-2507", "phi-4", "Mixtral-8x7B", "gemma-3-270m", "gemma-4-E4B")) | .pull] | sort ==
    ["gemma3:270m", "gemma4:e4b", "mistral-small3.2:24b", "mixtral:8x7b", "phi4", "qwen3:4b-2507", "smollm2:135m"]' "$A"
}

@test "MODEL is a path, else a name here, else the part of one before its colon" {
  with_names
  [ "$(answer tiny:1m)" = "2 + 2 = 4" ]
  [ "$(answer tiny)" = "2 + 2 = 4" ]
  cp "$ZSE_HOME/models/tiny:1m.zse" "$ZSE_HOME/models/tiny:2m.zse"
  run -1 --separate-stderr answer tiny
  [ "$stderr" = "zse-chat: 'tiny' names several models: tiny:1m, tiny:2m" ] || [ "$stderr" = "zse-chat: 'tiny' names several models: tiny:2m, tiny:1m" ]
  cp "$ZSE_HOME/models/tiny:1m.zse" "$T/other"
  : >"$T/tiny:1m"
  # a path takes precedence over a name; this file is no model
  run -1 --separate-stderr bash -c "cd '$T' && zse-chat tiny:1m -p hi"
  [ "$stderr" = "zse-chat: tiny:1m: the file is empty" ]
  zse-info tiny:2m >/dev/null
  [ "$(printf Hello | zse-info tokenize tiny:2m)" = "$(printf Hello | zse-info tokenize "$T/home/models/tiny:2m.zse")" ]
  zse-bench tiny:2m -p 8 -n 2 -r 1 >/dev/null
  zse-info models check tiny:2m --json | jq -e '[.model, .where, .compatible] == ["tiny:2m", "here", true]'
  run -1 --separate-stderr zse-chat qwen2.5:7b -p hi
  [ "$stderr" = "zse-chat: qwen2.5:7b: No such file or directory, and not among the models here; zse-convert pull qwen2.5:7b downloads it" ]
  run -1 --separate-stderr zse-chat tinny:2m -p hi
  [ "$stderr" = "zse-chat: tinny:2m: No such file or directory, and not among the models here; did you mean 'tiny:2m'?" ]
  run -1 --separate-stderr zse-chat Qwen2.5 -p hi
  [[ "$stderr" == "zse-chat: Qwen2.5: No such file or directory, and not among the models here; zse-convert pull qwen2.5:"*" downloads one of this family (zse-info models list)" ]]
}

@test "without MODEL the default is used, else the only model here" {
  with_names
  [ "$(answer)" = "2 + 2 = 4" ]
  [ "$(zse-info models default)" = tiny:1m ]
  cp "$ZSE_HOME/models/tiny:1m.zse" "$ZSE_HOME/models/z.zse"
  run -2 --separate-stderr answer
  [[ "$stderr" == *"no model is the default (zse-info models default)"* ]]
  run -1 --separate-stderr zse-info models default
  [ "$(zse-info models show z --json | jq -c .used)" = null ]
  zse-info models default z
  [ "$(answer)" = "2 + 2 = 4" ]
  [ "$(zse-info models default)" = z ]
  [ "$(zse-info models show z --json | jq -c '[.aliases, (.used != null)]')" = '[["default"],true]' ]
  zse-info models rm default
  run -2 --separate-stderr answer
  [ -e "$ZSE_HOME/models/z.zse" ]
}

@test "aliases move, never replace a model, and go with their model" {
  with_names
  zse-info models alias a tiny:1m
  zse-info models alias b a
  [ "$(readlink "$ZSE_HOME/models/b.zse")" = tiny:1m.zse ]
  [ "$(answer b)" = "2 + 2 = 4" ]
  [ "$(zse-info models local | awk '$2 == "->" { print $1, $3 }' | tr '\n' ' ')" = "a tiny:1m b tiny:1m " ]
  run -1 --separate-stderr zse-info models alias tiny:1m b
  [[ "$stderr" == *"'tiny:1m' is a model: only an alias can be replaced" ]]
  run -1 --separate-stderr zse-info models alias c nosuch
  for bad in ../c /c .c 'c d' ''; do
    run -1 --separate-stderr zse-info models alias "$bad" tiny:1m
    run -1 --separate-stderr zse-info models rm "$bad"
  done
  zse-info models rm a
  [ "$(zse-info models local --names | tr '\n' ' ')" = "b tiny:1m " ]
  zse-info models rm tiny:1m
  [ -z "$(ls -A "$ZSE_HOME/models")" ]
  run -1 --separate-stderr zse-info models rm tiny:1m
  run --separate-stderr zse-info models local
  [ "$status" = 0 ] && [ -z "$output" ] && [[ "$stderr" == *"no models yet"* ]]
}

@test "links that leave the folder, damaged files and other files do no harm" {
  with_names
  ln -s /etc/passwd "$ZSE_HOME/models/passwd.zse"
  printf damaged >"$ZSE_HOME/models/bad.zse"
  : >"$ZSE_HOME/models/.hidden.zse"
  : >"$ZSE_HOME/models/x.gguf"
  mkdir "$ZSE_HOME/models/folder.zse"
  ln -s nothing.zse "$ZSE_HOME/models/gone.zse"
  zse-info models local --json >"$T/j"
  jq -e 'map(.name) == ["bad", "passwd", "tiny:1m"] and (map(select(.error)) | length) == 2' "$T/j"
  zse-info models rm passwd
  [ -s /etc/passwd ]
}

@test "pull takes a folder here, and makes a home that only its owner may open" {
  export ZSE_HOME=$T/new/home
  (umask 022 && zse-convert pull models/tiny --quality fast >/dev/null)
  [ "$(stat -c %a "$T/new" "$ZSE_HOME" "$ZSE_HOME/models" | tr '\n' ' ')" = "755 700 755 " ]
  [ "$(answer tiny)" = "2 + 2 = 4" ]
  run -1 --separate-stderr zse-convert pull smollm2
  [ "$stderr" = "zse-convert: 'smollm2' is a family of models: name one of zse-info models list, such as smollm2:135m" ]
  run -1 --separate-stderr zse-convert pull .
  [ "$stderr" = "zse-convert: '.' has no name that a model could have: --as NAME gives it one" ]
}

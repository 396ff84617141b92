# models.bats - zse-info models list|info: the registry, and filters that combine.
bats_require_minimum_version 1.5.0

setup_file() { zse-info models list --json >"$BATS_FILE_TMPDIR/all"; }
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  A=$BATS_FILE_TMPDIR/all T=$BATS_TEST_TMPDIR
}

@test "the list: 19 models of ZSE 1.2, 5 of them marked, and more" {
  zse-info models list --json --zse12 | jq -e 'length == 19 and (map(select(.zse_optimized)) | length) == 5'
  jq -e 'length >= 40 and (map(.model_id) | unique | length) == length' "$A"
  jq -e 'map(.architecture) | unique | contains(["gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"])' "$A"
}

# bats test_tags=plain
@test "sizes follow from the configurations" {
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

@test "wrong usage" {
  for args in '' 'nothing' 'info' 'list more' 'list -c nothing' 'list -s 7b' 'list -v x' 'list -q q4' 'list --none' 'list -q int8' 'info -c chat Qwen3-8B' 'info -r Qwen3-8B'; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-info models $args
    [ "$status" = 2 ] && [ -z "$output" ] || { echo "$args: $status"; return 1; }
  done
}

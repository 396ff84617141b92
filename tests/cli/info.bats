# info.bats - zse-info on every kind of model, and on broken ones.
bats_require_minimum_version 1.5.0

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  zse-convert models/tiny -o "$BATS_FILE_TMPDIR/tiny.zse" -q nl4 --quality fast
}
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  Z=$BATS_FILE_TMPDIR/tiny.zse T=$BATS_TEST_TMPDIR
  HF=$ZSE_ORACLES/models/hf GGUF=$ZSE_ORACLES/models/gguf
}
needs_oracles() { [ -d "$HF" ] || skip "no oracles at $ZSE_ORACLES"; }

# fails_with WORDS COMMAND...: exit 1, nothing on stdout, WORDS on stderr
fails_with() {
  local words=$1
  shift
  run --separate-stderr "$@"
  [ "$status" = 1 ] && [ -z "$output" ] && [[ "$stderr" == zse-info:\ *"$words"* ]] || { echo "$*: $status: '$output' / '$stderr', expected '$words'"; return 1; }
}

@test "the overview of a .zse is text, or the same facts as JSON" {
  run --separate-stderr zse-info "$Z"
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  [[ "$output" == *"format          ZSE 1.4.0"* ]]
  [[ "$output" == *"weights"*"nl4"*"KV cache"* ]]
  [[ "$output" =~ file\ size\ +[0-9.]+\ [kM]B\ \([0-9.]+\ [KM]iB\) ]]
  zse-info --json "$Z" >"$T/a"
  zse-info --format json "$Z" >"$T/b"
  cmp "$T/a" "$T/b"
  for key in version architecture model_type hidden_size intermediate_size num_hidden_layers \
    num_attention_heads num_key_value_heads head_dim vocab_size \
             max_position_embeddings rope_theta rms_norm_eps quantization tensors layer_groups tokenizer_offset \
               tokenizer_size tensor_data_offset \
             provenance hf_config_json config memory quant_types parameters supported; do
    [ "$(jq "has(\"$key\")" "$T/a")" = true ] || { echo "no key $key"; return 1; }
  done
  [ "$(jq .version "$T/a")" = '"1.4.0"' ]
  [ "$(jq .hidden_size "$T/a")" = "$(jq .hidden_size models/tiny/config.json)" ]
  [ "$(head -c 8 "$Z" | od -An -tx1 | tr -d ' \n')" = 5a53450001040000 ]
}

@test "wrong usage ends with exit 2" {
  for args in "" "a b" "--layer x m" "--format xml m" "--dump-tensor t m" "-o f m"; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-info $args
    [ "$status" = 2 ] && [ -z "$output" ] && [ -n "$stderr" ] || { echo "'$args': $status $output"; return 1; }
  done
}

@test "the sums of types, roles and the rest are the size of the file" {
  zse-info --json "$Z" >"$T/j"
  size=$(stat -c %s "$Z")
  [ "$(jq '[.memory.by_type[].bytes] | add' "$T/j")" = "$(jq .memory.weights_bytes "$T/j")" ]
  [ "$(jq '[.memory.by_role[].bytes] | add' "$T/j")" = "$(jq .memory.weights_bytes "$T/j")" ]
  [ "$(jq '.memory.weights_bytes + .memory.other_bytes' "$T/j")" = "$size" ]
  [ "$(jq '[.tensors[].size_bytes] | add' "$T/j")" = "$(jq .memory.weights_bytes "$T/j")" ]
  kv=$(jq '2 * 2 * .num_hidden_layers * .num_key_value_heads * .head_dim' "$T/j")
  [ "$(jq .memory.kv_bytes_per_token.f16 "$T/j")" = "$kv" ]
  zse-info --memory "$Z" | grep -q "^file .* $size "
}

@test "tensors lie in forward order, aligned, each layer's together; --layer leaves one" {
  zse-info --json "$Z" >"$T/j"
  jq -e '[.tensors[].offset] as $o | ($o == ($o | sort)) and all($o[]; . % 64 == 0)' "$T/j"
  jq -e '[.layer_groups[].offset] as $o | ($o == ($o | sort)) and all($o[]; . % 4096 == 0)' "$T/j"
  jq -e '. as $d | all(.layer_groups[]; . as $g | all($d.tensors[] | select(.name as $n | $g.tensor_names | index($n)); .offset >= $g.offset and .offset + .size_bytes <= $g.offset + $g.size_bytes))' "$T/j"
  zse-info --json --layer 1 "$Z" | jq -e '(.tensors | length > 0) and all(.tensors[]; .layer == 1) and (.layer_groups | length == 1)'
  run zse-info --tensors --layer 1 "$Z"
  [[ "$output" == *layers.1.q_proj.weight* && "$output" != *layers.0.* ]]
  zse-info --layout "$Z" | grep -q 'layers.1.q_proj.weight$'
  zse-info --layers "$Z" | grep -q '^layer 1 '
  [ "$(zse-info --layer 1 "$Z")" = "$output" ]             # alone: its tensors
  fails_with "4 layers" zse-info --layer 4 "$Z"
}

@test "--verify finds a changed byte of the weights and says where" {
  run zse-info --verify "$Z"
  [ "$status" = 0 ]
  [ "$(zse-info --verify --json "$Z" | jq .ok)" = true ]
  at=$(zse-info --json "$Z" | jq '.tensors[3].offset + 5')
  cp "$Z" "$T/x.zse"
  printf '\377\376' | dd of="$T/x.zse" bs=1 seek="$at" conv=notrunc status=none
  fails_with "x.zse: offset" zse-info --verify "$T/x.zse"
  [[ "$stderr" == *"group 1 (layer 0): checksum"* ]]
  [ "$(zse-info --verify --json "$T/x.zse" 2>"$T/said" | jq -r .error)" = "$(sed 's/^zse-info: //' "$T/said")" ]
  # without --verify no weights are read, so it opens
  zse-info "$T/x.zse" >/dev/null
}

@test "the original files come out byte for byte, and nothing is overwritten" {
  zse-info --extract-tokenizer "$T/out/" "$Z" >"$T/names"
  for f in tokenizer.json tokenizer_config.json config.json; do cmp "models/tiny/$f" "$T/out/$f"; done
  [ "$(wc -l <"$T/names")" = "$(find "$T/out" -type f | wc -l)" ]
  fails_with "exists already" zse-info --extract-tokenizer "$T/out" "$Z"
}

@test "--dump-tensor finds a tensor by its source's name, whether it was fused, split, transposed or permuted" {
  needs_oracles
  for m in "$HF/gpt2" "$HF/phi3" "$HF/gpt_neox" "$HF/falcon" "$HF/bloom" "$GGUF/f32.gguf"; do
    zse-convert "$m" -o "$T/m.zse" -q f32 --force
    n=0
    for t in $(zse-info --json "$m" | jq -r '.tensors[] | select(.name | test("rotary|masked|attn.bias$") | not) | .name'); do
      zse-info --dump-tensor "$t" -o "$T/a" "$m"
      zse-info --dump-tensor "$t" -o "$T/b" "$T/m.zse"
      cmp "$T/a" "$T/b" || { echo "$m: $t"; return 1; }
      n=$((n + 1))
    done
    [ $n -gt 10 ]
    rm "$T/m.zse"
  done
}

@test "--dump-tensor prints the shape as JSON, takes our names too, and refuses unknown tensors" {
  zse-info --json --dump-tensor model.norm.weight -o "$T/n" "$Z" >"$T/j"
  [ "$(stat -c %s "$T/n")" = "$(jq '4 * .shape[0]' "$T/j")" ]
  zse-info --dump-tensor "$(zse-info --json "$Z" | jq -r '.tensors[0].name')" -o "$T/n" "$Z"
  fails_with "there is no tensor nothing" zse-info --dump-tensor nothing -o "$T/none" "$Z"
  [ ! -e "$T/none" ]
  fails_with "is the model itself" zse-info --dump-tensor model.norm.weight -o "$Z" "$Z"
  cp -r models/tiny "$T/m"
  fails_with "one of its files" zse-info --dump-tensor model.norm.weight -o "$T/m/model.safetensors" "$T/m"
  zse-info --dump-tensor model.norm.weight -o "$T/n" "$Z"
  zse-info --dump-tensor model.norm.weight -o - "$Z" | cmp - "$T/n"
  [ ! -e - ]
  run -2 zse-info --json --dump-tensor model.norm.weight -o - "$Z"
  run -1 --separate-stderr bash -c "zse-info --dump-tensor model.norm.weight -o - '$Z' >/dev/full"
  [[ "$stderr" == *"No space left"* ]]
  fails_with "$T/no/such" zse-info --dump-tensor model.norm.weight -o "$T/no/such" "$Z"
}

@test "a folder, a bare config.json, a GGUF, a vocabulary and a tokenizer are described" {
  zse-info models/tiny | grep -q 'Hugging Face folder'
  cp models/tiny/config.json "$T/c.json"
  zse-info "$T/c.json" | grep -q 'config.json only'
  zse-info "$T/c.json" | grep -q '^weights  *none'
  [ "$(zse-info --json "$T/c.json" | jq .num_hidden_layers)" = "$(jq .num_hidden_layers models/tiny/config.json)" ]
  [ "$(zse-info --json "$T/c.json" | jq .parameters)" = "$(zse-info --json models/tiny | jq .parameters)" ]
  mkdir "$T/tok"
  cp models/tiny/tokenizer.json "$T/tok"
  zse-info "$T/tok" | grep -q 'tokenizer only'
  zse-info --verify models/tiny
  needs_oracles
  zse-info "$GGUF/Q4_K_M.gguf" | grep -q 'Q4_K 617 kB'
  [ "$(zse-info --json "$GGUF/Q4_K_M.gguf" | jq -c '.quant_types | sort')" = '["F32","Q4_K","Q6_K"]' ]
  zse-info "$ZSE_ORACLES/vocab-gguf/ggml-vocab-gpt-2.gguf" | grep -q 'GGUF'
}

@test "a model that does not run here is shown, with the reason" {
  echo '{"model_type": "no_such_model", "hidden_size": 8}' >"$T/c.json"
  run --separate-stderr zse-info "$T/c.json"
  [ "$status" = 0 ]
  [[ "$output" == *"not supported"*no_such_model* ]]
  [ "$(zse-info --json "$T/c.json" | jq .supported)" = false ]
}

@test "a file that is not a model is refused in a sentence" {
  fails_with "/no/such.zse: No such file" zse-info /no/such.zse
  : >"$T/empty"
  fails_with "the file is empty" zse-info "$T/empty"
  echo hello >"$T/text"
  fails_with "neither a .zse file" zse-info "$T/text"
  mkdir "$T/folder"
  fails_with "without config.json" zse-info "$T/folder"
  head -c 1000 "$Z" >"$T/cut.zse"
  fails_with "offset 8: size" zse-info "$T/cut.zse"
  head -c 30 "$Z" >"$T/cut.zse"
  fails_with "offset 30: header: the file ends here" zse-info "$T/cut.zse"
  { printf 'ZSE\0\002'; tail -c +6 "$Z"; } >"$T/two.zse"
  fails_with "version: 2.4.0, this program reads version 1" zse-info "$T/two.zse"
  printf 'GGUF\003\0\0\0' >"$T/cut.gguf"
  fails_with "offset 8: n_tensors" zse-info "$T/cut.gguf"
  echo '{"model_type": ' >"$T/c.json"
  fails_with "c.json: line" zse-info "$T/c.json"
  cp -r models/tiny "$T/tiny"
  truncate -s -1 "$T/tiny/model.safetensors"
  fails_with "model.safetensors: tensor" zse-info "$T/tiny"
}

@test "a full disk on standard output is an error, a closed pipe is not" {
  run bash -c 'zse-info "$1" >/dev/full' - "$Z"
  [ "$status" = 1 ]
  [[ "$output" == *"standard output: No space left on device"* ]]
  run bash -c 'zse-info --tensors "$1" | head -1' - "$Z"
  [ "$status" = 0 ]
  [ "${#lines[@]}" = 1 ]
}

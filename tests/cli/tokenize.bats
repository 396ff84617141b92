# tokenize.bats - zse-info tokenize and detokenize on every kind of model, and on files that are no
# models.
bats_require_minimum_version 1.5.0

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  zse-convert models/tiny -o "$BATS_FILE_TMPDIR/tiny.zse" -q nl4 --quality fast
}
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  Z=$BATS_FILE_TMPDIR/tiny.zse T=$BATS_TEST_TMPDIR
  V=$ZSE_ORACLES/vocab-gguf H=$ZSE_ORACLES/hf-tokenizers
}
needs_oracles() { [ -d "$V" ] || skip "no oracles at $ZSE_ORACLES"; }

# fails_with WORDS COMMAND...: exit 1, WORDS on stderr
fails_with() {
  local words=$1
  shift
  run --separate-stderr "$@"
  if [ "$status" != 1 ] || [[ "$stderr" != "zse-info "*"$words"* ]]; then
    echo "$*: $status: '$output' / '$stderr', expected '$words'"
    return 1
  fi
}

@test "a text becomes ids and the same bytes again, with its last line feed" {
  printf 'What is 2+2?\n' >"$T/text"
  for model in models/tiny models/tiny/tokenizer.json "$Z"; do
    zse-info tokenize "$model" <"$T/text" >"$T/ids"
    [ "$(jq length "$T/ids")" -gt 3 ]
    zse-info detokenize "$model" <"$T/ids" | jq -j . >"$T/back"
    cmp "$T/text" "$T/back"
  done
  run zse-info tokenize models/tiny </dev/null
  [ "$status" = 0 ]
  [ "$output" = "[]" ]
}

@test "the .zse, the folder and tokenizer.json give the same ids" {
  for f in README.md man/zse-chat.1 Makefile; do
    zse-info tokenize models/tiny <"$f" >"$T/a"
    zse-info tokenize "$Z" <"$f" >"$T/b"
    zse-info tokenize models/tiny/tokenizer.json <"$f" >"$T/c"
    cmp "$T/a" "$T/b"
    cmp "$T/a" "$T/c"
  done
}

@test "special tokens are parsed, taken as text, or left out" {
  run zse-info tokenize models/tiny <<<'<|im_end|>'
  [ "$(jq '.[0]' <<<"$output")" = 2 ]
  [ "$(jq length <<<"$output")" = 2 ]
  run zse-info tokenize --no-parse-special models/tiny <<<'<|im_end|>'
  [ "$(jq length <<<"$output")" -gt 2 ]
  [ "$(zse-info detokenize models/tiny <<<'[1, 2]')" = '"<|im_start|><|im_end|>"' ]
  [ "$(zse-info detokenize --skip-special models/tiny <<<'[1, 2]')" = '""' ]
}

@test "--jsonl takes a string per line and prints an array per line, and the other way round" {
  printf '"a\\nb"\n"\\u00e9\\u0000"\n\n""\n' >"$T/in"
  zse-info tokenize --jsonl models/tiny <"$T/in" >"$T/ids"
  [ "$(wc -l <"$T/ids")" = 3 ]
  zse-info detokenize --jsonl models/tiny <"$T/ids" >"$T/out"
  [ "$(sed -n 1p "$T/out")" = '"a\nb"' ]
  [ "$(sed -n 2p "$T/out")" = '"é\u0000"' ]
  [ "$(sed -n 3p "$T/out")" = '""' ]
  # without --jsonl the input is any number of arrays, with any white space between them
  [ "$(zse-info detokenize models/tiny <<<'[1] [2][
    1]' | tr '\n' ' ')" = '"<|im_start|>" "<|im_end|>" "<|im_start|>" ' ]
}

@test "GGUF files with only a vocabulary and folders with only a tokenizer add BOS as the model requires" {
  needs_oracles
  [ "$(zse-info tokenize "$V/ggml-vocab-llama-spm.gguf" <<<'Hello world' | jq -c .)" = '[15043,3186,13]' ]
  [ "$(printf 'Hello world' | zse-info tokenize --add-special "$V/ggml-vocab-llama-spm.gguf" | jq -c .)" = '[1,15043,3186]' ]
  [ "$(printf 'Hello world' | zse-info tokenize --add-special "$V/ggml-vocab-bert-bge.gguf" | jq -c .)" = '[101,7592,2088,102]' ]
  [ "$(printf 'Hello world' | zse-info tokenize --add-special "$H/llama3_1" | jq -c .)" = '[128000,9906,1917]' ]
  [ "$(printf 'Hello world' | zse-info tokenize --add-special "$H/qwen3" | jq -c .)" = '[9707,1879]' ]
  [ "$(zse-info detokenize "$H/mistral-7b-v0.1" <<<'[22557, 1526]')" = '"Hello world"' ]
  # a folder that has tokenizer.json only, without tokenizer_config.json
  cp "$H/qwen3/tokenizer.json" "$T/"
  [ "$(printf 'Hello world' | zse-info tokenize "$T" | jq -c .)" = '[9707,1879]' ]
}

@test "impossible requests print one sentence and exit with 1" {
  fails_with 'No such file' zse-info tokenize /no/such/model </dev/null
  fails_with 'line 2: expected a JSON string' zse-info tokenize --jsonl models/tiny <<<$'"a"\n[1]'
  fails_with 'line 1:' zse-info tokenize --jsonl models/tiny <<<'"a'
  fails_with 'token id 99999' zse-info detokenize models/tiny <<<'[99999]'
  fails_with 'element 1 of the array' zse-info detokenize models/tiny <<<'[1, "x"]'
  fails_with 'byte ' zse-info detokenize models/tiny <<<'[1] [2'
  fails_with 'JSON array' zse-info detokenize --jsonl models/tiny <<<'{}'
  printf '{"model": {"type": "Oracle"}}' >"$T/tokenizer.json"
  fails_with "model 'Oracle' is not supported" zse-info tokenize "$T" </dev/null
  fails_with "$T/tokenizer.json" zse-info tokenize "$T/tokenizer.json" </dev/null
}

@test "wrong usage ends with exit 2" {
  for sub in tokenize detokenize; do
    run --separate-stderr zse-info "$sub"
    [ "$status" = 2 ]
    [[ "$stderr" == *usage:* ]]
    run --separate-stderr zse-info "$sub" a b
    [ "$status" = 2 ]
    run --separate-stderr zse-info "$sub" --no-such-option models/tiny
    [ "$status" = 2 ]
    run --separate-stderr zse-info "$sub" --help
    [ "$status" = 0 ]
    [[ "$output" == "usage: zse-info $sub"* ]]
    [ -z "$stderr" ]
  done
}

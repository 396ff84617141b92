# bench.bats - zse-bench: figures that add up, logits, perplexity and quality; with the tiny model.
bats_require_minimum_version 1.5.0

setup_file() {
  export XDG_CACHE_HOME=$BATS_FILE_TMPDIR/cache
  zse-bench models/tiny -p 4 -n 1 -r 1 >/dev/null 2>&1
  MODEL=$(echo "$XDG_CACHE_HOME"/zse/*.zse)
  export MODEL TEXT=$BATS_FILE_TMPDIR/text
  for i in $(seq 40); do echo "What is $i+$i? The capital of France is Paris, and of Italy it is Rome. Line $i."; done >"$TEXT"
}
setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }
# check 'EXPRESSION over j' <JSON
check() { python3 -c 'import json,sys; j=json.load(sys.stdin)
if not eval(sys.argv[1]): print(sys.argv[1], "of", j); sys.exit(1)' "$1"; }

@test "speed: every figure is there and they fit together" {
  run --separate-stderr zse-bench "$MODEL" -p 40 -n 20 -r 3 -b 2 --json
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  check 'j["batch"] == 2 and j["prompt_tokens"] == 40 and j["generated_tokens"] == 20 and j["repeats"] == 3' <<<"$output"
  check 'all(0 < j[k]["min"] <= j[k]["median"] <= j[k]["max"] for k in ("prefill_tokens_per_s", "decode_tokens_per_s", "first_token_s"))' <<<"$output"
  check 'j["memory"]["private_bytes"] > j["memory"]["kv_bytes"] > 0 and j["memory"]["file_bytes"] >= j["memory"]["weight_bytes"] > 0' <<<"$output"
  check 'j["tokens_generated"] == 2 * 21 * 3 and abs(j["tokens_per_sec"] * j["total_time_sec"] - j["tokens_generated"]) < 0.01' <<<"$output"
  check 'j["avg_latency_ms"] > 0 and j["peak_memory_gb"] > 0 and j["quantization"] == "keep" and "cpu" in j["device"]' <<<"$output"
}

@test "speed as text; -n 0 and -p 0 measure one half" {
  run zse-bench "$MODEL" -p 30 -n 5 -r 2
  [ "$status" = 0 ]
  [[ "$output" == *prefill*decode*first\ token*memory* ]]
  run zse-bench "$MODEL" -p 30 -n 0 -r 2
  [ "$status" = 0 ]
  [[ "$output" == *prefill* ]]
  [[ "$output" != *decode* ]]
  run zse-bench "$MODEL" -p 0 -n 5 -r 2
  [ "$status" = 0 ]
  [[ "$output" != *prefill* ]]
  [[ "$output" == *decode* ]]
}

@test "speed: many sequences get their whole prompts while others decode" {
  run --separate-stderr zse-bench "$MODEL" -p 40 -n 2 -r 1 -w 0 -b 500 --json
  [ "$status" = 0 ]
  check 'j["batch"] == 500 and j["tokens_generated"] == 500 * 3' <<<"$output"
}

@test "logits: one row a token, the same however the prompt is cut" {
  run --separate-stderr zse-bench logits "$MODEL" --ids '1 5 9 12' -o "$BATS_TEST_TMPDIR/a"
  [ "$status" = 0 ]
  check 'j["shape"] == [4, 1024]' <<<"$output"
  [ "$(stat -c %s "$BATS_TEST_TMPDIR/a")" = $((4 * 1024 * 4)) ]
  zse-bench logits "$MODEL" --ids '[1,5]' -o "$BATS_TEST_TMPDIR/b" >/dev/null
  cmp -n $((2 * 1024 * 4)) "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
  zse-bench logits "$MODEL" --ids '1 5 9 12' -o "$BATS_TEST_TMPDIR/c" --threads 1 >/dev/null
  cmp "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/c"
  zse-bench logits "$MODEL" --ids '1 5 9 12' -o - | cmp - "$BATS_TEST_TMPDIR/a"
}

@test "perplexity: one figure a window, and their mean" {
  run --separate-stderr zse-bench perplexity "$MODEL" "$TEXT" --window 64 --exact
  [ "$status" = 0 ]
  check 'j["windows"] == len(j["mean_nll"]) == j["n_tokens"] // 64 > 3 and j["exact"] and j["scored_tokens"] == j["windows"] * 63' <<<"$output"
  check 'abs(__import__("math").exp(sum(j["mean_nll"]) / j["windows"]) / j["perplexity"] - 1) < 1e-6' <<<"$output"
  first=$(zse-bench perplexity "$MODEL" "$TEXT" --window 64 --exact --windows 2)
  check 'j["windows"] == 2' <<<"$first"
  check "j['mean_nll'][:2] == $(python3 -c 'import json,sys; print(json.load(sys.stdin)["mean_nll"])' <<<"$first")" <<<"$output"
}

# The same windows scored from the logits that zse-bench logits writes.
@test "perplexity is what the logits say" {
  zse-info tokenize "$MODEL" --no-parse-special <"$TEXT" >"$BATS_TEST_TMPDIR/ids"
  zse-bench perplexity "$MODEL" "$TEXT" --window 32 --windows 1 --exact >"$BATS_TEST_TMPDIR/p"
  zse-bench logits "$MODEL" --ids "$(python3 -c 'import json,sys; print(*json.load(sys.stdin)[:32])' <"$BATS_TEST_TMPDIR/ids")" -o "$BATS_TEST_TMPDIR/l" >/dev/null
  python3 - "$BATS_TEST_TMPDIR" <<'END'
import json, math, struct, sys
d = sys.argv[1]
ids, p, raw = json.load(open(d + '/ids'))[:32], json.load(open(d + '/p')), open(d + '/l', 'rb').read()
v, nll = len(raw) // 32 // 4, 0
for i in range(31):
    row = struct.unpack_from(f'<{v}f', raw, i * v * 4)
    m = max(row)
    nll += m + math.log(sum(math.exp(x - m) for x in row)) - row[ids[i + 1]]
assert abs(nll / 31 - p['mean_nll'][0]) < 1e-6, (nll / 31, p)
END
}

@test "quality: nothing lost against itself, little with int8, the same twice" {
  run --separate-stderr zse-bench quality "$MODEL" "$MODEL" "$TEXT" --window 64 --exact
  check 'abs(j["kl_mean"]) < 1e-12 and j["top1_agreement"] == 1 and j["perplexity"] == j["reference_perplexity"] and j["positions"] == j["windows"] * 31' <<<"$output"
  run --separate-stderr zse-bench quality "$MODEL" models/tiny -q int8 "$TEXT" --window 64
  [ "$status" = 0 ]
  check '0 < j["kl_median"] <= j["kl_mean"] * 10 and j["kl_mean"] < 0.1 and j["kl_p99"] >= j["kl_median"] and j["top1_agreement"] > 0.8' <<<"$output"
  again=$(zse-bench quality "$MODEL" models/tiny -q int8 "$TEXT" --window 64 2>/dev/null)
  [ "$again" = "$output" ]
}

@test "wrong usage ends with 2, what fails with 1" {
  wrong() { run --separate-stderr zse-bench "$@"; [ "$status" = 2 ] && [ -z "$output" ] || { echo "$*: $status $output"; return 1; }; }
  wrong logits "$MODEL"
  wrong logits "$MODEL" --ids 1
  wrong perplexity "$MODEL"
  wrong quality "$MODEL" "$TEXT"
  wrong "$MODEL" --ids '1 2'
  wrong "$MODEL" --window 64
  wrong logits "$MODEL" --ids 1 -o "$BATS_TEST_TMPDIR/x" --windows 2
  wrong logits "$MODEL" --ids 1 -o "$BATS_TEST_TMPDIR/x" --kv i8
  wrong perplexity "$MODEL" "$TEXT" -b 2
  wrong "$MODEL" -p 0 -n 0
  wrong "$MODEL" -b 0
  wrong "$MODEL" extra
  fails() {
    local want=$1
    shift
    run --separate-stderr zse-bench "$@"
    [ "$status" = 1 ] && [ -z "$output" ] && [[ "$stderr" == *$want* ]] || { echo "$*: $status $output $stderr"; return 1; }
  }
  fails "0 to 1023" logits "$MODEL" --ids "1 1024" -o "$BATS_TEST_TMPDIR/x"
  [ ! -e "$BATS_TEST_TMPDIR/x" ]
  fails "'x'" logits "$MODEL" --ids '1 x' -o "$BATS_TEST_TMPDIR/x"
  fails "at least 1" logits "$MODEL" --ids '' -o "$BATS_TEST_TMPDIR/x"
  fails "No such file" logits "$MODEL" --ids '1' -o /no/such/folder/x
  fails "at least one window" perplexity "$MODEL" models/tiny/generation_config.json --window 1024
  fails "context" perplexity "$MODEL" "$TEXT" --window 4096
  fails "No such file" perplexity "$MODEL" /no/such/text
  fails "No such file" quality /no/such/model "$MODEL" "$TEXT"
  fails "context" "$MODEL" -p 100000
}

@test "bench-vs says when there is no peer" {
  command -v python3 >/dev/null || skip "no python3"
  B=$ZSE_BIN LLAMACPP=$BATS_TEST_TMPDIR run --separate-stderr scripts/bench-vs
  [ "$status" = 77 ]
  [[ "$stderr" == *"no llama-bench there"* ]]
  B=$ZSE_BIN ZSE_PEERS=/no/such/folder run --separate-stderr scripts/bench-vs
  [ "$status" = 77 ]
  [[ "$stderr" == *LLAMACPP* ]]
}

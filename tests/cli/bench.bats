# bench.bats - zse-bench: figures that add up, logits, perplexity and quality; with the tiny model.
bats_require_minimum_version 1.5.0

setup_file() {
  export XDG_CACHE_HOME=$BATS_FILE_TMPDIR/cache ZSE_SYSROOT=$BATS_FILE_TMPDIR/root
  # pretend that the machine has little memory: the limits are then measured with less of it, which
  # is faster
  mkdir -p "$ZSE_SYSROOT/proc"
  printf 'MemTotal: 100000 kB\nMemFree: 100000 kB\nMemAvailable: 100000 kB\n' >"$ZSE_SYSROOT/proc/meminfo"
  zse-chat models/tiny -p x -n 1 >/dev/null 2>&1
  MODEL=$(echo "$XDG_CACHE_HOME"/zse/*.zse)
  export MODEL TEXT=$BATS_FILE_TMPDIR/text LIMITS=$BATS_FILE_TMPDIR/limits
  zse-bench limits --json >"$LIMITS"                        # once, for tests of other figures
  for i in $(seq 40); do echo "What is $i+$i? The capital of France is Paris, and of Italy it is Rome. Line $i."; done >"$TEXT"
}
setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }
# check 'EXPRESSION over j' <JSON
# python -S does not look for installed packages, which takes most of its start.
check() { python3 -S -c 'import json,sys; j=json.load(sys.stdin)
if not eval(sys.argv[1]): print(sys.argv[1], "of", j); sys.exit(1)' "$1"; }

@test "speed prints every figure, and they agree with each other" {
  run --separate-stderr zse-bench "$MODEL" -p 40 -n 20 -r 3 -b 2 --json
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  check 'j["batch"] == 2 and j["prompt_tokens"] == 40 and j["generated_tokens"] == 20 and j["repeats"] == 3' <<<"$output"
  check 'all(0 < j[k]["min"] <= j[k]["median"] <= j[k]["max"] for k in ("prefill_tokens_per_s", "decode_tokens_per_s", "first_token_s"))' <<<"$output"
  check 'j["memory"]["private_bytes"] > j["memory"]["kv_bytes"] > 0 and j["memory"]["file_bytes"] >= j["memory"]["weight_bytes"] > 0' <<<"$output"
  check 'j["tokens_generated"] == 2 * 21 * 3 and abs(j["tokens_per_sec"] * j["total_time_sec"] - j["tokens_generated"]) < 0.01' <<<"$output"
  check 'j["avg_latency_ms"] > 0 and j["peak_memory_gb"] > 0 and j["quantization"] == "keep" and "cpu" in j["device"]' <<<"$output"
}

# bats test_tags=plain
@test "speed prints text; -n 0 measures the prompt only, -p 0 decoding only" {
  run zse-bench "$MODEL" -p 30 -n 5 -r 2
  [ "$status" = 0 ]
  [[ "$output" == *prefill*decode*first\ token*memory* ]]
  run zse-bench "$MODEL" -p 30 -n 0 -r 2 --limits "$LIMITS"
  [ "$status" = 0 ]
  [[ "$output" == *prefill* ]]
  [[ "$output" != *decode* ]]
  run zse-bench "$MODEL" -p 0 -n 5 -r 2 --limits "$LIMITS"
  [ "$status" = 0 ]
  [[ "$output" != *prefill* ]]
  [[ "$output" == *decode* ]]
}

# bats test_tags=plain
@test "speed: many sequences get their whole prompts while others decode" {
  run --separate-stderr env -u ZSE_SYSROOT zse-bench "$MODEL" -p 40 -n 2 -r 1 -w 0 -b 500 --json
  [ "$status" = 0 ]
  check 'j["batch"] == 500 and j["tokens_generated"] == 500 * 3' <<<"$output"
}

# ---- limits of the machine, and speeds as shares of them ----

# bats test_tags=plain
@test "limits prints every figure; one thread is no faster than the whole machine" {
  run --separate-stderr zse-bench limits --json
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  check 'j["threads"] >= 1 and j["seconds"] > 0 and all(j[k]["one"] > 1e6 and j[k]["all"] > 1e6 for k in ("read", "int8", "f32", "page_cache"))' <<<"$output"
  check 'j["int8"]["instructions"] in ("avx512vnni", "avxvnni", "avx2", "generic") and j["f32"]["instructions"]' <<<"$output"
  check 'j["amx"] is None or j["amx"]["all"] > 1e6' <<<"$output"
  check 'j["disk"] is None and j["no_disk"] == "no file was named"' <<<"$output"
  check '(j["amx"] is not None) == ("amx_int8" in open("/proc/cpuinfo").read())' <<<"$output"
}

# bats test_tags=plain
@test "limits --file measures the disk or says why not, and leaves no files" {
  head -c 5000000 /dev/urandom >"$BATS_TEST_TMPDIR/file"
  sync "$BATS_TEST_TMPDIR/file"
  mkdir "$BATS_TEST_TMPDIR/tmp"
  run --separate-stderr env TMPDIR="$BATS_TEST_TMPDIR/tmp" zse-bench limits --threads 1 --json --file "$BATS_TEST_TMPDIR/file"
  [ "$status" = 0 ]
  check '(j["disk"] or 0) > 1e5 if j["no_disk"] is None else j["disk"] is None' <<<"$output"
  check 'j["threads"] == 1 and j["read"]["one"] == j["read"]["all"]' <<<"$output"
  run env TMPDIR="$BATS_TEST_TMPDIR/tmp" zse-bench limits --threads 1
  [ "$status" = 0 ]
  [[ "$output" == *"reading memory"*GB/s*"int8 dot products"*Gop/s*f32*Gflop/s*"page cache"* ]]
  [ -z "$(ls "$BATS_TEST_TMPDIR/tmp")" ]
}

# bats test_tags=plain
@test "speed: shares are speeds divided by the machine's limits" {
  run --separate-stderr zse-bench "$MODEL" -p 32 -n 8 -r 1 --json
  # share times limit / speed is the work for a token: about 2 operations for each of 0.7 million
  # parameters (prefill), and all bytes of the weights (decoding); how large the shares are can only
  # be checked on a quiet machine
  check 'j["limits"]["int8_op_per_s"] > 1e6 and j["limits"]["read_bytes_per_s"] > 1e6 and j["share"]["prefill"] > 0 and j["share"]["decode"] > 0' <<<"$output"
  check 'any(1e6 < j["share"]["prefill"] * j["limits"][of] / j["prefill_tokens_per_s"]["median"] < 3e6 for of in ("int8_op_per_s", "f32_flop_per_s"))' <<<"$output"
  check '0.7 < j["share"]["decode"] * j["limits"]["read_bytes_per_s"] / j["decode_tokens_per_s"]["median"] / j["memory"]["weight_bytes"] < 1.5' <<<"$output"
  check '("prefill_amx" in j["share"]) == ("amx_op_per_s" in j["limits"])' <<<"$output"
  run --separate-stderr zse-bench "$MODEL" -p 32 -n 0 -r 2 --exact --json
  check 'j["share"]["prefill"] > 0 and "decode" not in j["share"] and j["limits"]["f32_flop_per_s"] > 1e6' <<<"$output"
}

@test "--limits: shares refer to the limits in a file, which must be those of as many threads" {
  l=$BATS_TEST_TMPDIR/l
  jq '.read.all = 4e18 | .int8.all = 2e18 | .f32.all = 1e18 | .amx = null' "$LIMITS" >"$l"
  run --separate-stderr zse-bench "$MODEL" -p 8 -n 4 -r 1 --limits "$l" --json
  [ "$status" = 0 ]
  check 'j["limits"]["read_bytes_per_s"] == 4e18 and j["limits"]["int8_op_per_s"] == 2e18 and "amx_op_per_s" not in j["limits"]' <<<"$output"
  check '0 < j["share"]["decode"] < 1e-6 and 0 < j["share"]["prefill"] < 1e-6' <<<"$output"
  refused() { run --separate-stderr zse-bench matmul --shape 32x32 --limits "$l"; [ "$status" = 1 ] && [ -z "$output" ] && [[ "$stderr" == *"$l: $1"* ]]; }
  jq '.threads += 1' "$LIMITS" >"$l"
  refused "limits of $(jq .threads "$l") threads, expected those of $(jq .threads "$LIMITS")"
  jq '.int8 = null' "$LIMITS" >"$l"
  refused "int8.all: missing"
  jq '.f32.all = -1' "$LIMITS" >"$l"
  refused "f32.all: not a number above 0"
  head -c 100 "$LIMITS" >"$l"
  refused "line "
  run -2 zse-bench threads "$MODEL" --limits "$LIMITS"
}

# bats test_tags=plain
@test "batch measures powers of two up to -b" {
  run --separate-stderr zse-bench batch "$MODEL" -b 6 -p 40 -r 2 --limits "$LIMITS" --json
  [ "$status" = 0 ]
  check '[r["batch"] for r in j["rows"]] == [1, 2, 4, 6] and j["context"] == 40 and j["rows"][0]["ratio"] == 1' <<<"$output"
  check 'all(r["share"] > 0 and r["step_s"] > 0 and abs(r["tokens_per_s"] * r["step_s"] / r["batch"] - 1) < 1e-6 for r in j["rows"])' <<<"$output"
  check 'all(abs(r["ratio"] * j["rows"][0]["step_s"] / r["step_s"] - 1) < 1e-6 for r in j["rows"])' <<<"$output"
  run zse-bench batch "$MODEL" -b 2 -r 1 --limits "$LIMITS"
  [[ "$output" == *"ratio to 1"*"context 128"* ]]
}

# bats test_tags=plain
@test "spec: drafters trained for models/tiny are often right, and answers are the same" {
  local t=$BATS_TEST_TMPDIR s
  # zse-bench fails if an answer differs; --spec with a fixed number of tokens makes counts that do
  # not depend on measured time
  zse-convert models/tiny-mtp -o "$t/mtp.zse" --quality fast >/dev/null 2>&1
  zse-convert models/tiny-draft -o "$t/draft.zse" --quality fast >/dev/null 2>&1
  for s in "$t/mtp.zse mtp:3 1.5" "$t/mtp.zse draft:4:$t/draft.zse 1.8" "$t/mtp.zse medusa:2:models/tiny-medusa 1.5"; do
    set -- $s
    zse-bench spec "$1" tests/bench/tiny.jsonl --spec "$2" -r 1 -n 40 --json >"$t/j"
    check "len(j['cases']) == 12 and j['tokens_per_step'] >= $3" <"$t/j"
  done
}

# bats test_tags=plain
@test "spec: answers with drafts are those without; steps and an estimate are printed; cases come from a file" {
  zse-bench spec "$MODEL" -n 40 -r 1 --ignore-eos --json >"$BATS_TEST_TMPDIR/j"
  check 'len(j["cases"]) == 3 and all(c["tokens"] == 40 and c["drafted_tokens"] >= c["accepted_tokens"] and c["ratio"] > 0 for c in j["cases"])' <"$BATS_TEST_TMPDIR/j"
  check '[s["tokens"] for s in j["steps"]] == [1, 2, 3, 4, 6, 8, 16] and j["steps"][0]["ratio"] == 1' <"$BATS_TEST_TMPDIR/j"
  printf '%s\n' '{"name":"one","prompt":"a b c d a b c d a b c d a b c d"}' '' >"$BATS_TEST_TMPDIR/cases"
  zse-bench spec "$MODEL" "$BATS_TEST_TMPDIR/cases" -n 60 -r 1 --ignore-eos --temp 1 --seed 4 --spec ngram:4 --json >"$BATS_TEST_TMPDIR/j"
  check 'len(j["cases"]) == 1 and j["cases"][0]["accepted_tokens"] > 0 and j["cases"][0]["tokens_per_step"] > 1' <"$BATS_TEST_TMPDIR/j"
  # guesses of a given quality: all right, none, most
  for p in "1 3.5 4" "0 1 1" "0.8 2 3.5"; do
    read -r p least most <<<"$p"
    zse-bench spec "$MODEL" -r 1 -n 60 --ignore-eos --spec ngram:3 --accept "$p" --json >"$BATS_TEST_TMPDIR/j"
    check "all(c['drafted_tokens'] > 0 and $least <= c['tokens_per_step'] <= $most for c in j['cases'])" <"$BATS_TEST_TMPDIR/j"
  done
  run -2 zse-bench spec "$MODEL" --spec mtp --accept 0.8
  run -2 zse-bench spec "$MODEL" --accept 1.5
  zse-bench spec "$MODEL" -r 1 --estimate --json >"$BATS_TEST_TMPDIR/j"
  check 'len(j["estimate"]) == 8 and "cases" not in j and all(e["speed"] >= 1 for e in j["estimate"])' <"$BATS_TEST_TMPDIR/j"
  echo '{"name":1}' >"$BATS_TEST_TMPDIR/cases"
  run -1 zse-bench spec "$MODEL" "$BATS_TEST_TMPDIR/cases"
  [[ "$output" == *"line 1: expected"* ]]
  run -2 zse-bench spec "$MODEL" --spec off
  run -2 zse-bench "$MODEL" --estimate
  [ "$(grep -c prompt tests/bench/edits.jsonl)" = 20 ]
}

# bats test_tags=plain
@test "kv: each type is measured at every context that the model allows, and compared with f16" {
  run --separate-stderr zse-bench kv "$MODEL" --contexts 16,1900 -r 2 --limits "$LIMITS" --json
  [ "$status" = 0 ]
  check '[(r["kv"], r["context"]) for r in j["rows"]] == [(k, c) for c in (16, 1900) for k in ("f16", "i8", "k=i8,v=i4", "i4", "ternary")]' <<<"$output"
  check 'all(r["share"] > 0 and r["step_s"] > 0 for r in j["rows"]) and j["rows"][0]["speed_over_f16"] == 1 and j["rows"][0]["ratio"] == 1' <<<"$output"
  check 'j["rows"][0]["kv_bytes"] * 1901 == j["rows"][5]["kv_bytes"] * 17' <<<"$output"
  check '[r["kv_bytes"] for r in j["rows"][5:]] == sorted((r["kv_bytes"] for r in j["rows"][5:]), reverse=True)' <<<"$output"
  # with 4-bit keys and values the newest tokens and the first ones are kept as f16, so a context of
  # 16 reads as many bytes as f16
  check '[r["bytes_over_f16"] == 1 for r in j["rows"][:5]] == [True, False, True, True, True] and j["rows"][8]["bytes_over_f16"] < 0.5 and j["rows"][9]["bytes_over_f16"] < 0.3' <<<"$output"
  check 'all(abs(r["bytes_over_f16"] * j["rows"][5]["kv_bytes"] - r["kv_bytes"]) < 1 for r in j["rows"][5:]) and "kl_mean" not in j["rows"][0]' <<<"$output"
  run --separate-stderr zse-bench kv "$MODEL" "$TEXT" --kv v=q4_0 --contexts 600 -r 1 --limits "$LIMITS" --json
  check '[(r["kv"], r["context"]) for r in j["rows"]] == [("f16", 600), ("k=f16,v=i4", 600)]' <<<"$output"
  check 'j["rows"][0]["kl_mean"] == 0 and 0 < j["rows"][1]["kl_mean"] < 0.1' <<<"$output"
  # the same distance as that of `zse-bench quality`, which scores the same positions if the text is
  # one window
  q=$(zse-bench quality "$MODEL" "$MODEL" "$TEXT" --kv f16 --kv v=i4 --window 600 --windows 1)
  check "abs(j['rows'][1]['kl_mean'] - $(jq .kl_mean <<<"$q")) < 1e-12" <<<"$output"
  run --separate-stderr zse-bench kv "$MODEL" "$TEXT" --attention pages:8 --contexts 300,900 -r 1 --limits "$LIMITS" --json
  [ "$status" -eq 0 ]
  check '[r["kv"] for r in j["rows"]] == ["f16", "f16 pages:8"] * 2 and j["rows"][1]["kl_mean"] == 0 and j["rows"][1]["kv_bytes"] == j["rows"][0]["kv_bytes"]' <<<"$output"
  check '0 < j["rows"][3]["kl_mean"] < 1 and j["rows"][3]["bytes_over_f16"] < 0.6' <<<"$output"
  for wrong in pages pages:0 pages:6 pages:x some; do
    run -2 --separate-stderr zse-bench kv "$MODEL" --attention $wrong
    [[ $stderr == *--attention* ]]
  done
  run -1 --separate-stderr zse-bench kv "$MODEL" /no/such -r 1
  [[ "$stderr" == *"/no/such"* ]]
  run --separate-stderr zse-bench kv "$MODEL" --contexts 4096
  [ "$status" = 1 ]
  [[ "$stderr" == *"at most the model's 2048"* ]]
}

# bats test_tags=plain
@test "threads measures every number of threads from 1 to N" {
  run --separate-stderr zse-bench threads "$MODEL" --threads 3 -p 64 -r 2 --json
  [ "$status" = 0 ]
  check '[r["threads"] for r in j["rows"]] == [1, 2, 3] and j["prompt_tokens"] == 64 and j["limits"]["threads"] == 3' <<<"$output"
  check 'all(r[k] > 0 for r in j["rows"] for k in ("prefill_tokens_per_s", "prefill_share", "decode_tokens_per_s", "decode_share"))' <<<"$output"
  check 'j["rows"][0]["prefill_ratio"] == j["rows"][0]["decode_ratio"] == 1' <<<"$output"
  check 'j["loop_s"].keys() == {"pool", "spawned"} and all(v > 0 for v in j["loop_s"].values())' <<<"$output"
}

# bats test_tags=plain
@test "matmul measures the given types, shapes and numbers of tokens" {
  limits=()                                                 # the first of them measures the machine
  for type in nl4 int4 int8 nf4 bf16 ternary mxfp4 fp8 mxfp8; do
    run --separate-stderr zse-bench matmul -q "$type" --shape 100x70 --tokens 1,5 -r 1 --json "${limits[@]}"
    [ "$status" = 0 ]
    limits=(--limits "$LIMITS")
    check '[r["tokens"] for r in j["rows"]] == [1, 5] and j["out_features"] == 100 and j["in_features"] == 70' <<<"$output"
    check 'all(r["share"] > 0 and r["read_share"] > 0 and abs(r["op_per_s"] * r["seconds"] / (2 * 7000 * r["tokens"]) - 1) < 1e-6 for r in j["rows"])' <<<"$output"
  done
}

# bats test_tags=plain
@test "dequant prints a speed for every type of GGUF and of ours" {
  run --separate-stderr zse-bench dequant --shape 32x512 -r 1 --json
  [ "$status" = 0 ]
  check '{(r["format"], r["type"]) for r in j["rows"]} >= {("gguf", t) for t in "F16 Q4_0 Q4_K Q6_K IQ2_XXS TQ1_0 MXFP4".split()} | {("zse", t) for t in "bf16 nl4 i8 t3 fp8 mxfp8".split()}' <<<"$output"
  check 'all(r["elements_per_s"] > 0 and r["elements_per_s_one_thread"] > 0 and 1 < r["bits_per_weight"] <= 40 for r in j["rows"]) and j["threads"] >= 1' <<<"$output"
  run zse-bench dequant -q nl4
  [ "$status" = 2 ]
  run zse-bench dequant --shape 32x100 -r 1
  [ "$status" = 2 ]
}

# bats test_tags=plain
@test "simd, flash, mmap and tiers print figures that agree with each other" {
  run --separate-stderr zse-bench simd -r 1 --json
  [ "$status" = 0 ]
  check '[r["operation"] for r in j["rows"]] == ["add", "swiglu", "rms_norm", "matvec", "attention"]' <<<"$output"
  check 'all(abs(r["ref_s"] / r["seconds"] / r["speedup"] - 1) < 1e-6 for r in j["rows"])' <<<"$output"
  run --separate-stderr zse-bench flash -r 1 --contexts 1,17,600 --json
  [ "$status" = 0 ]
  check '[r["tokens"] for r in j["rows"]] == [1, 17, 600] and all(r["seconds"] > 0 and r["difference"] < 1e-3 for r in j["rows"])' <<<"$output"
  run -2 zse-bench flash --contexts 8193
  run --separate-stderr zse-bench mmap -r 3 --json
  [ "$status" = 0 ]
  check 'j["bytes"] == 1 << 20 and [r["way"] for r in j["rows"]] == ["read", "map", "map_pages"] and j["rows"][0]["speedup"] == 1 < j["rows"][1]["speedup"]' <<<"$output"
  : >"$BATS_TEST_TMPDIR/empty"
  run -1 zse-bench mmap --file "$BATS_TEST_TMPDIR/empty"
  [[ "$output" == *"an empty file"* ]]
  run --separate-stderr zse-bench tiers --json
  [ "$status" = 0 ]
  check 'j["rows"][2]["tier"] == "warm" and j["rows"][2]["bytes_per_s"] > 1e8 and all((r["bytes_per_s"] is None) == (r["why_not"] is not None) for r in j["rows"])' <<<"$output"
}

# bats test_tags=plain
@test "plot and --svg draw every row, with its numbers as text, and refuse other JSON" {
  local t=$BATS_TEST_TMPDIR
  zse-bench batch "$MODEL" -b 4 -r 1 --limits "$LIMITS" --svg "$t/batch.svg" >"$t/table"
  zse-bench kv "$MODEL" --contexts 64 -r 1 --limits "$LIMITS" --json --svg "$t/kv.svg" >"$t/kv.json"
  echo '{"title":"a<b & \u202e","reference":1,"bars":[{"group":"g","label":"one","value":2},{"group":"g","label":"two","value":0.5,"text":"half"}]}' |
    zse-bench plot - -o "$t/bars.svg"
  echo '{"title":"t","x":"bits","y":"KL","points":[{"series":"zse","label":"nl4","x":4.5,"y":0.02},{"series":"peer","label":"Q4","x":4.5,"y":3}]}' >"$t/points"
  zse-bench plot "$t/points" -o - >"$t/points.svg"
  python3 -S - "$t" <<'END'
import json, sys, xml.dom.minidom
t = sys.argv[1]
def words(name):
    d = xml.dom.minidom.parse(f'{t}/{name}.svg')
    assert d.documentElement.tagName == 'svg' and 'prefers-color-scheme:dark' in d.getElementsByTagName('style')[0].firstChild.data
    return d, [w.firstChild.data for w in d.getElementsByTagName('text') if w.firstChild]
d, w = words('batch')
table = [l.split() for l in open(f'{t}/table').read().splitlines()[2:]]
assert len(table) == 3 and all(f'{row[2]} ({row[4]} of reads)' in w for row in table), (w, table)
d, w = words('kv')
for r in json.load(open(f'{t}/kv.json'))['rows']:
    assert r['kv'] in w and '%.2f (%.2f of the bytes)' % (r['speed_over_f16'], r['bytes_over_f16']) in w, (w, r)
d, w = words('bars')
assert w == ['a<b & ?', 'g', 'one', '2', 'two', 'half'], w
bars = [float(r.getAttribute('width')) for r in d.getElementsByTagName('rect') if r.getAttribute('class') == 's0']
assert bars[0] == 4 * bars[1] and len([l for l in d.getElementsByTagName('line') if l.getAttribute('class') == 'ref']) == 1, bars
d, w = words('points')
assert {'nl4', 'Q4', 'zse', 'peer', '4.5', '0.02', '3', 'bits', 'KL', '0.01', '10'} <= set(w), w
high = [float(c.getAttribute('cy')) for c in d.getElementsByTagName('circle')]
color = [c.getAttribute('class') for c in d.getElementsByTagName('circle')]
assert high[0] > high[2] and color[0] != color[2], (high, color)
END
  for j in '{}' '{"bars":[]}' '{"bars":[{"value":-1}]}' '{"points":[{"x":1,"y":0}]}' '{"bars":[{}],"points":[]}' '[' '"x"'; do
    run -1 zse-bench plot - -o "$t/no.svg" <<<"$j"
    [ ! -e "$t/no.svg" ]
  done
  echo '{}' >"$t/neither"
  run -1 zse-bench plot "$t/neither" -o "$t/no.svg"
  [ "$output" = "zse-bench: $t/neither: expected either bars or points" ]
  run -2 zse-bench plot "$t/points"
  run -2 zse-bench threads "$MODEL" --svg "$t/no.svg"
}

# bats test_tags=plain
@test "sparse: the memory of a window of 512, beside full attention" {
  run --separate-stderr zse-bench sparse --contexts 4096,8192 --json
  [ "$status" = 0 ]
  check '[(r["context"], r["pattern"]) for r in j["rows"]] == [(n, p) for n in (4096, 8192) for p in ("sliding", "longformer", "bigbird", "blocks")]' <<<"$output"
  check '[(int(r["full_attention_mb"]), int(r["sparse_attention_mb"]), round(r["reduction_factor"], 1)) for r in j["rows"] if r["pattern"] == "sliding"] == [(32, 7, 4.3), (128, 15, 8.3)]' <<<"$output"
  check '[r["reduction_factor"] for r in j["rows"] if r["pattern"] == "blocks"] == [4, 4]' <<<"$output"
  run -2 zse-bench sparse --contexts 131073
}

# bats test_tags=plain
@test "sparse --table: the time of a window of 512, beside full attention" {
  run --separate-stderr zse-bench sparse --table --contexts 128,4096 -r 3 --json
  [ "$status" = 0 ]
  check '(j["window"], [r["context"] for r in j["rows"]]) == (512, [128, 4096])' <<<"$output"
  check 'all(abs(r["full_s"] / r["sparse_s"] / r["speedup"] - 1) < 1e-6 for r in j["rows"]) and j["rows"][1]["speedup"] > 1.5' <<<"$output"
  run -2 zse-bench sparse --table --contexts 32769
  [[ "$output" == *"expected at most 32768 for sparse --table"* ]] || { echo "$output"; return 1; }
  run -2 zse-bench sparse -r 3
  [[ "$output" == *"-r does not apply"* ]] || { echo "$output"; return 1; }
  run -2 zse-bench flash --table
}

@test "--attention sliding: nothing changes up to its tokens, and something beyond them" {
  of() { zse-bench perplexity "$MODEL" "$TEXT" --windows 1 "$@" | jq .perplexity; }
  [ "$(of --window 64 --attention sliding:64)" = "$(of --window 64)" ]
  [ "$(of --window 100 --attention sliding:64)" != "$(of --window 100)" ]
  run -2 zse-bench perplexity "$MODEL" "$TEXT" --attention sliding:15
  run -2 zse-bench perplexity "$MODEL" "$TEXT" --attention sliding:64+65
  [[ "$output" == *"sliding:N+S: 65, expected no more than the window of 64"* ]] || { echo "$output"; return 1; }
  run -2 zse-bench perplexity "$MODEL" "$TEXT" --attention sliding:64+
  [[ "$output" == *"'' is not a whole number"* ]] || { echo "$output"; return 1; }
}

@test "--attention bigbird, blocks: nothing changes if they leave out no block, and the JSON names them" {
  of() { zse-bench perplexity "$MODEL" "$TEXT" --windows 1 --window 300 --kv f32 "$@"; }
  exact=$(of | jq .mean_nll)
  [ "$(of --attention blocks:1 | jq .mean_nll)" = "$exact" ]
  [ "$(of --attention bigbird:4 --threads 1 | jq .mean_nll)" = "$exact" ]
  [ "$(of --attention blocks:3 | jq .mean_nll)" != "$exact" ]
  for way in exact pages:8 sliding:64+4 blocks:3+0 bigbird:1+1; do
    [ "$(of --attention $way | jq -r .attention)" = $way ]
  done
  run --separate-stderr zse-bench kv "$MODEL" "$TEXT" --attention blocks:4+1 --contexts 600 -r 1 --limits "$LIMITS" --json
  # of ten blocks the last token sees 0, 1, 5, 8 and its own
  check '[r["kv"] for r in j["rows"]] == ["f16", "f16 blocks:4+1"] and abs(j["rows"][1]["bytes_over_f16"] * 601 - 4 * 64 - 25) < 1e-6 and 0 < j["rows"][1]["kl_mean"] < 2' <<<"$output"
  for wrong in bigbird bigbird: bigbird:x bigbird:1+ blocks:0 blocks:-1 blocks:4+65537; do
    run -2 --separate-stderr zse-bench kv "$MODEL" --attention $wrong
    [[ $stderr == *--attention* ]]
  done
  run -2 zse-chat "$MODEL" -p hi --attention blocks:4 --window 64
  [[ "$output" == *"--attention blocks and --window exclude each other"* ]] || { echo "$output"; return 1; }
}

@test "perplexity --whole: the windows of a text are one sequence" {
  of() { zse-bench perplexity "$MODEL" "$TEXT" "$@"; }
  one=$(of --window 200 --windows 1)
  parts=$(of --window 50 --windows 4 --whole)
  check 'len(j["mean_nll"]) == len(j["tokens_per_s"]) == len(j["private_bytes"]) == 4 and j["scored_tokens"] == 199' <<<"$parts"
  check 'all(v > 0 for v in j["tokens_per_s"] + j["private_bytes"])' <<<"$parts"
  # the last token has none to predict, so the last window has a scored token less
  [ "$(jq '.mean_nll | (.[0] + .[1] + .[2]) * 50 + .[3] * 49 | . * 1000 | round' <<<"$parts")" = \
    "$(jq '.mean_nll[0] * 199000 | round' <<<"$one")" ]
  # a window and sinks change what lies beyond them only
  [ "$(of --window 50 --windows 4 --whole --attention sliding:112+4 | jq -c '.mean_nll[:2]')" = "$(jq -c '.mean_nll[:2]' <<<"$parts")" ]
  [ "$(of --window 50 --windows 4 --whole --attention sliding:112+4 | jq -c '.mean_nll[2:]')" != "$(jq -c '.mean_nll[2:]' <<<"$parts")" ]
  run -1 zse-bench perplexity "$MODEL" "$TEXT" --whole --ctx 64 --window 50
  [[ "$output" == *"expected at most the context of 64 (--ctx)"* ]] || { echo "$output"; return 1; }
  run -2 zse-bench quality "$MODEL" "$MODEL" "$TEXT" --whole
}

# bats test_tags=plain
@test "ternary compares both layouts with nl4" {
  run --separate-stderr zse-bench ternary --shape 100x512 --tokens 1,3 -r 1 --limits "$LIMITS" --json
  [ "$status" = 0 ]
  check '[(r["tokens"], r["type"]) for r in j["rows"]] == [(n, t) for n in (1, 3) for t in ("nl4", "t2", "t3")]' <<<"$output"
  check 'all(r["seconds"] > 0 and r["read_share"] > 0 for r in j["rows"]) and [r["speedup"] for r in j["rows"] if r["type"] == "nl4"] == [1, 1]' <<<"$output"
  check '[r["bytes"] for r in j["rows"]][:3] == [4 * (128 + 4 * (128 + 4 * 512)), 4 * 2 * (64 + 2 * 1024), 4 * 2 * (64 + 13 * 128)]' <<<"$output"
  check 'all(abs(r["operations_per_s"] * r["seconds"] - 2 * 100 * 512 * r["tokens"]) < 1 for r in j["rows"])' <<<"$output"
  run zse-bench ternary -q nl4
  [ "$status" = 2 ]
}

# bats test_tags=plain
@test "coldstart: the phases add up to the total, and a peer is started in turn" {
  printf '#!/bin/sh\necho "$@" >>%s\necho x\n' "$BATS_TEST_TMPDIR/peer.log" >"$BATS_TEST_TMPDIR/peer"
  chmod +x "$BATS_TEST_TMPDIR/peer"
  run --separate-stderr zse-bench coldstart "$MODEL" -r 2 -p 20 --json --threads 1 --peer "$BATS_TEST_TMPDIR/peer" --peer-model "$MODEL"
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  check 'j["prompt_tokens"] == 20 and j["repeats"] == 2 and j["prefill_alone_s"] > 0' <<<"$output"
  check 'set(j["warm"]["phases_s"]) == {"exec", "map", "open", "tokenize", "engine", "prefill", "first_token"} and all(v > 0 for v in j["warm"]["phases_s"].values())' <<<"$output"
  # the median of two runs is their mean, so the medians of the phases add up to that of the total,
  # except for the time between two phases
  check '0.9 < sum(j["warm"]["phases_s"].values()) / j["warm"]["total_s"]["median"] < 1.1 and j["warm"]["ratio"] > 0 and j["warm"]["peer_total_s"]["median"] > 0' <<<"$output"
  check '"not_dropped" in j if j["dropped"] is None else j["dropped"]["total_s"]["median"] > 0' <<<"$output"
  grep -q -- "-m $MODEL -p .* -n 1 .*-t 1 " "$BATS_TEST_TMPDIR/peer.log"
  run zse-bench coldstart "$MODEL" -r 1
  [[ "$output" == *"prompt of 32 tokens"*exec*prefill* ]]
  printf '#!/bin/sh\nexit 3\n' >"$BATS_TEST_TMPDIR/peer"
  run --separate-stderr zse-bench coldstart "$MODEL" -r 1 --peer "$BATS_TEST_TMPDIR/peer" --peer-model "$MODEL"
  [ "$status" = 1 ]
  [[ "$stderr" == *"peer: exit 3"* ]]
}

@test "logits has one row per token, the same however the prompt is cut" {
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

# bats test_tags=plain
@test "perplexity: rounding the activations of a parallel block with a shared expert changes it little" {
  model=${ZSE_ORACLES:-../shared/oracles}/models/hf-2026/cohere2_moe
  [ -d "$model" ] || skip "no oracles (set ZSE_ORACLES)"
  zse-convert "$model" -q int8 -o "$BATS_TEST_TMPDIR/parallel.zse" >/dev/null 2>&1
  exact=$(zse-bench perplexity "$BATS_TEST_TMPDIR/parallel.zse" "$TEXT" --window 64 --windows 1 --exact | jq .perplexity)
  rounded=$(zse-bench perplexity "$BATS_TEST_TMPDIR/parallel.zse" "$TEXT" --window 64 --windows 1 | jq .perplexity)
  jq -en --argjson a "$exact" --argjson b "$rounded" '$b / $a > 0.9 and $b / $a < 1.1'
}

@test "perplexity prints one figure per window, and their mean" {
  run --separate-stderr zse-bench perplexity "$MODEL" "$TEXT" --window 64 --exact
  [ "$status" = 0 ]
  check 'j["windows"] == len(j["mean_nll"]) == j["n_tokens"] // 64 > 3 and j["exact"] and j["scored_tokens"] == j["windows"] * 63' <<<"$output"
  check 'abs(__import__("math").exp(sum(j["mean_nll"]) / j["windows"]) / j["perplexity"] - 1) < 1e-6' <<<"$output"
  first=$(zse-bench perplexity "$MODEL" "$TEXT" --window 64 --exact --windows 2)
  check 'j["windows"] == 2' <<<"$first"
  check "j['mean_nll'][:2] == $(python3 -c 'import json,sys; print(json.load(sys.stdin)["mean_nll"])' <<<"$first")" <<<"$output"
}

# The same windows scored from the logits that zse-bench logits writes.
# bats test_tags=plain
@test "--kv: every type of keys and values gives its own figures, and names of other programs mean the same types" {
  local type name
  perplexity() { zse-bench perplexity "$MODEL" "$TEXT" --window 400 --windows 1 --kv "$1" | jq -c .mean_nll; }
  local -A of
  for type in f32 bf16 f16 fp8 i8 i4 ternary k=i8,v=i4 v=ternary; do
    of[$type]=$(perplexity $type)
    [ -n "${of[$type]}" ]
  done
  [ "$(printf '%s\n' "${of[@]}" | sort -u | wc -l)" = 9 ]
  for name in fp32=f32 float32=f32 fp16=f16 float16=f16 bfloat16=bf16 f8=fp8 fp8_e4m3=fp8 int8=i8 q8_0=i8 int4=i4 \
      q4_0=i4; do
    [ "$(perplexity "${name%=*}")" = "${of[${name#*=}]}" ] || { echo "$name"; return 1; }
  done
  [ "$(perplexity v=q4_0,k=int8)" = "${of[k=i8,v=i4]}" ]
  [ "$(perplexity k=f16)" = "${of[f16]}" ]
  for name in f64 q5_0 int INT8 "" k=i8,k=i8 k=i8,v=f16,k=i4 i8,i4 k= "k=i8," =i8 v=i4,x=i8 k=i8,v; do
    run -2 --separate-stderr zse-bench perplexity "$MODEL" "$TEXT" --kv "$name"
    [[ "$stderr" == *"--kv: '$name', expected f32, bf16, f16, fp8, i8, i4 or ternary"* ]]
  done
}

@test "perplexity is that of the logits" {
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

# bats test_tags=plain
@test "quality: a model loses nothing against itself and little as int8, the same in every run" {
  run --separate-stderr zse-bench quality "$MODEL" "$MODEL" "$TEXT" --window 64 --exact
  check 'abs(j["kl_mean"]) < 1e-12 and j["top1_agreement"] == 1 and j["top5_overlap"] == 1 and abs(j["cosine_min"] - 1) < 1e-12 and j["perplexity"] == j["reference_perplexity"] and j["positions"] == j["windows"] * 31' <<<"$output"
  run --separate-stderr zse-bench quality "$MODEL" models/tiny -q int8 "$TEXT" --window 64
  [ "$status" = 0 ]
  check '0 < j["kl_median"] <= j["kl_mean"] * 10 and j["kl_mean"] < 0.1 and j["kl_p99"] >= j["kl_median"] and j["top1_agreement"] > 0.8 and 0.7 < j["top5_overlap"] < 1 and 0.9 < j["cosine_min"] < j["cosine_median"] < 1' <<<"$output"
  again=$(zse-bench quality "$MODEL" models/tiny -q int8 "$TEXT" --window 64 2>/dev/null)
  [ "$again" = "$output" ]
}

# bats test_tags=plain
@test "quality is that of the logits, the same with every set of kernels" {
  d=$BATS_TEST_TMPDIR
  zse-convert models/tiny -q nl4 --quality fast -o "$d/m.zse" >/dev/null
  zse-info tokenize "$MODEL" --no-parse-special <"$TEXT" >"$d/ids"
  ids=$(python3 -c 'import json,sys; print(*json.load(open(sys.argv[1]))[:63])' "$d/ids")
  zse-bench logits "$MODEL" --ids "$ids" -o "$d/a" >/dev/null
  zse-bench logits "$d/m.zse" --ids "$ids" -o "$d/b" >/dev/null
  zse-bench quality "$MODEL" "$d/m.zse" "$TEXT" --window 64 --windows 1 --exact >"$d/q"
  python3 - "$d" <<'END'
import json, struct, sys
d = sys.argv[1]
q, raw = json.load(open(d + '/q')), [open(d + '/' + n, 'rb').read() for n in 'ab']
v, overlap, cosine = len(raw[0]) // 63 // 4, [], []
for i in range(32, 63):
    x, y = (struct.unpack_from(f'<{v}f', r, i * v * 4) for r in raw)
    top = [set(sorted(range(v), key=lambda k: -z[k])[:5]) for z in (x, y)]
    overlap.append(len(top[0] & top[1]) / 5)
    cosine.append(sum(a * b for a, b in zip(x, y)) / (sum(a * a for a in x) * sum(b * b for b in y)) ** .5)
assert q['positions'] == 31 and abs(q['top5_overlap'] - sum(overlap) / 31) < 1e-9, (q, overlap)
assert abs(q['cosine_median'] - sorted(cosine)[15]) < 1e-9 and abs(q['cosine_min'] - min(cosine)) < 1e-9, (q, cosine)
assert 0.5 < q['top5_overlap'] < 1 and q['exact'] and q['weights_crc'] != q['reference_weights_crc']
END
  # kernels and number of threads change nothing, neither for the conversion nor for running its
  # result
  head -c 700 LICENSE >"$d/text"
  zse-convert models/tiny -q nl4 --calibration "$d/text" --kernels ref -o "$d/ref.zse" >/dev/null
  zse-convert models/tiny -q nl4 --calibration "$d/text" --threads 1 -o "$d/one.zse" >/dev/null
  cmp "$d/ref.zse" "$d/one.zse"
  for options in '' --exact; do
    # shellcheck disable=SC2086
    zse-bench quality "$MODEL" "$d/ref.zse" "$TEXT" --window 64 --windows 2 $options --kernels ref >"$d/qr"
    # shellcheck disable=SC2086
    zse-bench quality "$MODEL" "$d/one.zse" "$TEXT" --window 64 --windows 2 $options --threads 1 >"$d/q1"
    cmp "$d/qr" "$d/q1"
  done
}

@test "wrong usage ends with exit 2, a failure with 1" {
  wrong() { run --separate-stderr zse-bench "$@"; [ "$status" = 2 ] && [ -z "$output" ] || { echo "$*: $status $output"; return 1; }; }
  wrong
  wrong batch
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
  wrong limits "$MODEL"
  wrong limits -p 4
  wrong batch "$MODEL" -n 4
  wrong batch "$MODEL" extra
  wrong kv "$MODEL" --contexts 1,x
  wrong kv "$MODEL" --contexts 0
  wrong kv "$MODEL" --kv k=i3
  wrong "$MODEL" --contexts 4
  wrong threads "$MODEL" -p 0
  wrong matmul --shape 4
  wrong matmul --shape 4x4x4
  wrong matmul -q keep
  wrong matmul "$MODEL"
  wrong coldstart "$MODEL" --peer x
  wrong coldstart "$MODEL" --peer-model x
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
  fails "No such file" limits --file /no/such/file
  fails "at least 2 MiB" limits --file LICENSE
  fails "No such file" coldstart /no/such/model
  # a measurement uses at most half of the memory that the machine claims to have
  mkdir -p "$BATS_TEST_TMPDIR/root/proc"
  printf 'MemTotal: 1000 kB\nMemFree: 1000 kB\nMemAvailable: 1000 kB\n' >"$BATS_TEST_TMPDIR/root/proc/meminfo"
  ZSE_SYSROOT=$BATS_TEST_TMPDIR/root fails "half of what this process can have is less" matmul --shape 64x64 --threads 1
}

# Stand-ins that answer as the programs of llama.cpp and ik_llama.cpp do, so that every row is there
# without a build of them.
# bats test_tags=plain
@test "bench-vs prints every row with programs that answer as llama.cpp's and ik_llama.cpp's" {
  command -v python3 >/dev/null || skip "no python3"
  d=$BATS_TEST_TMPDIR/peer ik=$BATS_TEST_TMPDIR/ik
  mkdir "$d" "$ik"
  cat >"$d/llama-bench" <<END
#!/bin/sh
echo "\$@" >>$d/log
case "\$1" in
--help) echo "  -d, --n-depth <n>"; echo "  --no-warmup" ;;
*) echo '[{"avg_ts": 10.0, "build_commit": "abc", "flash_attn": false}]' ;;
esac
END
  printf '#!/bin/sh\nfor n in 1 4 8 16; do echo "{\\"pl\\": $n, \\"speed_tg\\": 5.0}"; done\n' >"$d/llama-batched-bench"
  # the process lives for two seconds, because its memory is found by sampling
  cat >"$d/llama-completion" <<'END'
#!/usr/bin/env python3
import sys, time
print("system_info: AVX2 = 1 | AVX512 = 0 |", file=sys.stderr)
x = bytearray(b"1") * 50000000
time.sleep(2)
print("x")
END
  # ik_llama.cpp has other options than llama.cpp, and refuses those that it lacks
  cat >"$ik/llama-bench" <<END
#!/bin/sh
echo "\$@" >>$ik/log
case " \$* " in
" --help ") echo "  -gp <pp,tg>"; echo "  -w, --warmup <0|1>"; echo "  -rtr, --run-time-repack <0|1|auto>" ;;
*" -d "* | *" --no-warmup "*) echo "error: invalid parameter"; exit 1 ;;
*) echo '[{"avg_ts": 20.0, "repack": true}]' ;;
esac
END
  cat >"$ik/llama-batched-bench" <<'END'
#!/bin/sh
exec >&2
echo "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |"
for n in 1 4 8 16; do echo "|   128 |     32 | $n |    160 |    0.100 |   100.00 |    0.200 |    40.00 |    0.300 |    80.00 |"; done
END
  chmod +x "$d"/llama-* "$ik"/llama-*
  cp "$MODEL" "$d/tiny.zse"
  run --separate-stderr env B="${ZSE_BIN#"$PWD"/}" LLAMACPP="$d" IK_LLAMACPP="$ik" scripts/bench-vs --json --rounds 1 --zse "$d/tiny.zse" \
    --gguf "$d/tiny.zse" --prompts 32,64 --threads 1 --svg "$d/ratios.svg"
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  B="${ZSE_BIN#"$PWD"/}" scripts/bench-vs --from <(echo "$output") --svg "$d/again.svg"
  cmp "$d/ratios.svg" "$d/again.svg"
  [ "$(grep -c '<rect class="s0"' "$d/ratios.svg")" = "$(python3 -S -c 'import json,sys; print(len(json.load(sys.stdin)["rows"]))' <<<"$output")" ]
  speeds='{"prefill_32", "prefill_64", "decode_128", "decode_64", "batch_1", "batch_4", "batch_8", "batch_16"}'
  check '{r["what"] for r in j["rows"] if r["against"] == "llama.cpp"} == '"$speeds"' | {"first_token_ms", "private_mb"}' <<<"$output"
  check '{r["what"] for r in j["rows"] if r["against"] == "ik_llama.cpp"} == '"$speeds" <<<"$output"
  check 'all(r["peer"] == (40 if r["what"][:5] == "batch" else 20) for r in j["rows"] if r["against"] == "ik_llama.cpp")' <<<"$output"
  check 'all(r["ours"] > 0 and r["peer"] > 0 and r["n"] == 1 for r in j["rows"]) and j["machine"]["limits"]["threads"] == 1' <<<"$output"
  check '"cpu" in j["machine"]["device"]' <<<"$output"
  check 'j["peers"][0] == {"name": "llama.cpp", "build": "abc", "instructions": "AVX2", "options": "-t 1", "settings": {"flash_attn": False}}' <<<"$output"
  check 'j["peers"][1] == {"name": "ik_llama.cpp", "build": None, "instructions": None, "options": "-t 1 -rtr 1", "settings": {"repack": True}}' <<<"$output"
  check 'all(r["share"] > 0 for r in j["rows"] if r["what"][-2:] not in ("ms", "mb"))' <<<"$output"
  check 'all(abs(r["ratio"] / (r["peer"] / r["ours"] if r["what"][-2:] in ("ms", "mb") else r["ours"] / r["peer"]) - 1) < 0.002 for r in j["rows"])' <<<"$output"
  check 'next(r for r in j["rows"] if r["what"] == "private_mb")["peer"] > 50' <<<"$output"
  grep -q -- "-t 1 .*-n 32 -d 128" "$d/log"
  grep -q -- "-p 64 -n 0 --no-warmup" "$d/log"
  grep -q -- "-p 64 -n 0 -w 0 -rtr 1" "$ik/log"
  grep -q -- "-gp 64,32 -rtr 1" "$ik/log"
  run --separate-stderr env B="${ZSE_BIN#"$PWD"/}" LLAMACPP="$d" IK_LLAMACPP="$ik" scripts/bench-vs --readme --rounds 1 --zse "$d/tiny.zse" \
    --gguf "$d/tiny.zse" --threads 1 --kernels ref --only decode_128,batch_4,batch_8
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  grep -Eq '^20[0-9]{2}-[01][0-9]-[0-3][0-9]: .*, cpu ref, 1 thread.*Ratios to llama.cpp / ik_llama.cpp \(llama.cpp abc, AVX2; ' <<<"$output"
  grep -Eq '^\| decode at context 128 \| [0-9.e+]+ / [0-9.e+]+ \|$' <<<"$output"
  grep -Eq '^\| 4, 8, 16 sequences \| [0-9.e+]+, [0-9.e+]+ / [0-9.e+]+, [0-9.e+]+ \|$' <<<"$output"
}

# bats test_tags=plain
@test "quality-table measures each type and a peer's file, and draws them" {
  command -v python3 >/dev/null || skip "no python3"
  local t=$BATS_TEST_TMPDIR
  run --separate-stderr env B="${ZSE_BIN#"$PWD"/}" scripts/quality-table models/tiny "$TEXT" \
    --types int8:fast,ternary:fast --peer again=models/tiny --window 64 --windows 2 --json --svg "$t/a.svg"
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  check '[(r["series"], r["type"]) for r in j["rows"]] == [("zse", "int8:fast"), ("zse", "ternary:fast"), ("peer", "again")]' <<<"$output"
  check 'j["rows"][0]["kl_mean"] < j["rows"][1]["kl_mean"] and j["rows"][0]["bytes"] > j["rows"][1]["bytes"] and 8 < j["rows"][0]["bits_per_weight"] < 10' <<<"$output"
  echo "$output" >"$t/json"
  B="${ZSE_BIN#"$PWD"/}" scripts/quality-table --from "$t/json" --svg "$t/b.svg" >"$t/table"
  cmp "$t/a.svg" "$t/b.svg"
  grep -q '>int8:fast<' "$t/a.svg"
  grep -Eq '^zse +ternary:fast +0.3 ' "$t/table"
}

# bats test_tags=plain
@test "bench-vs says when there is no peer" {
  command -v python3 >/dev/null || skip "no python3"
  B=$ZSE_BIN LLAMACPP=$BATS_TEST_TMPDIR run --separate-stderr scripts/bench-vs
  [ "$status" = 77 ]
  [[ "$stderr" == *"no llama-bench there"* ]]
  B=$ZSE_BIN ZSE_PEERS=/no/such/folder run --separate-stderr scripts/bench-vs
  [ "$status" = 77 ]
  [[ "$stderr" == *LLAMACPP* ]]
}

# served ARG...: run zse-bench serve against a zse-serve with the tiny model
served() {
  exec 4< <(exec env ZSE_HOME="$BATS_TEST_TMPDIR/home" zse-serve "$MODEL" --port 0 --quiet --name tiny 2>"$BATS_TEST_TMPDIR/serve.err")
  local pid=$! url rc
  read -r _ _ url <&4
  URL=$url run --separate-stderr zse-bench serve "$url" "$@"
  rc=$status
  kill -TERM "$pid"
  while read -r _ <&4; do :; done      # until it has ended
  exec 4<&-
  [ "$rc" = 0 ] || { echo "exit $rc: $output $stderr"; return 1; }
}

@test "serve measures closed and open loops, shared prefixes, and streams beside them" {
  served --api tokens --ignore-eos -p 40 -n 16 -b 4 --requests 12 --json
  check 'j["model"] == "tiny" and j["concurrency"] == 4 and j["requests"] == j["done"] == 12 and j["failed"] == 0 and j["failures"] == []' <<<"$output"
  check 'j["prompt_tokens"] == 40 and j["completion_tokens"] == 16 and j["cached_tokens"] < 16' <<<"$output"
  check 'abs(j["tokens_per_s"] * j["seconds"] - 12 * 16) < 1 and 0 < j["first_token_ms"]["n"] <= j["request_ms"]["n"] == 12 and j["gap_ms"]["n"] > 0' <<<"$output"
  check 'all(0 <= j[k]["p50"] <= j[k]["p90"] <= j[k]["p99"] <= j[k]["max"] for k in ("first_token_ms", "gap_ms", "request_ms"))' <<<"$output"
  served -p 100 -n 4 --rate 200 --requests 10 --shared 80 --background 2 --seed 7 --json
  check 'j["rate"] == 200 and j["concurrency"] == 0 and j["done"] == 10 and j["full_tokens_per_s"] is None' <<<"$output"
  # cached tokens are whole blocks of 16 of the shared part and of the template
  check '85 <= j["prompt_tokens"] <= 125 and 32 <= j["cached_tokens"] <= 96' <<<"$output"
  check 'j["background"]["streams"] == 2 and j["background"]["gap_ms"]["n"] > 0' <<<"$output"
  served --api completions -p 20 -n 8
  [[ "$output" == *"16 requests, 1 at once, 0 failed"*"first token "*"between tokens "* ]]
}

# A fake server whose answer depends on the number of the request: right, or one of several errors.
@test "serve counts what a server does wrong, and exits with 1" {
  command -v python3 >/dev/null || skip "no python3"
  cat >"$BATS_TEST_TMPDIR/stub.py" <<'END'
import http.server, json
class Stub(http.server.BaseHTTPRequestHandler):
    n = 0
    def log_message(self, *a): pass
    def do_GET(self):
        body = json.dumps({'data': [{'id': 'stub'}]}).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_POST(self):
        assert self.headers['Authorization'] == 'Bearer secret' and b'"stream":true' in self.rfile.read(int(self.headers['Content-Length']))
        k, text = Stub.n, b'data: {"choices":[{"text":"a"}]}\r\n\r\n'
        Stub.n += 1
        self.send_response(429 if k == 1 else 200); self.end_headers()
        if k == 1: self.wfile.write(b'{"error":{"message":"too many"}}')
        elif k == 2: self.wfile.write(text)
        elif k == 3: self.wfile.write(text + b'data: {"choices"\n\n')
        elif k == 4: self.wfile.write(text + b'data: {"error":"no memory"}\n\ndata: [DONE]\n\n')
        else: self.wfile.write(b': ping\n\n' + text + text[:9]); self.wfile.flush(); self.wfile.write(text[9:] + b'data: [DONE]\n\n')
s = http.server.HTTPServer(('127.0.0.1', 0), Stub)
print(s.server_port, flush=True)
s.serve_forever()
END
  exec 4< <(exec python3 "$BATS_TEST_TMPDIR/stub.py" 2>"$BATS_TEST_TMPDIR/stub.err")
  stub=$!
  read -r port <&4
  ZSE_API_KEY=secret OPENAI_API_KEY=other run --separate-stderr zse-bench serve "http://127.0.0.1:$port/v1/" --api tokens -p 5 -n 2 -w 1 \
    --requests 5 --json
  kill "$stub"
  exec 4<&-
  [ "$status" = 1 ] || { cat "$BATS_TEST_TMPDIR/stub.err"; return 1; }
  check 'j["done"] == 1 and j["failed"] == 4 and j["completion_tokens"] == 2 and sum(f["n"] for f in j["failures"]) == 4' <<<"$output"
  check '{f["what"] for f in j["failures"]} == {"HTTP 429: too many", "the stream ended early", "an event of the stream is no JSON", "no memory"}' <<<"$output"
  run --separate-stderr zse-bench serve "http://127.0.0.1:$port" --json
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"/v1/models: "* ]]
  for wrong in "serve" "serve http://x -b 2 --rate 3" "serve http://x -p 4 --shared 5" "serve http://x --api words" "serve http://x -n 0" "batch --rate 2"; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-bench $wrong
    [ "$status" = 2 ] && [ -z "$output" ] || { echo "$wrong: $status"; return 1; }
  done
}

# bats test_tags=plain
@test "bench-vs serve prints every row with our own server in the place of llama.cpp's" {
  command -v python3 >/dev/null || skip "no python3"
  d=$BATS_TEST_TMPDIR/peer
  mkdir "$d"
  printf '#!/bin/sh\n' | tee "$d/llama-bench" >"$d/llama-completion"
  # bench-vs calls it with -m MODEL --port N -t N -np N -c N --no-webui
  printf '#!/bin/sh\nexport ZSE_HOME=%s/home\nexec zse-serve "$2" --port "$4" --threads 1 --no-audit --quiet\n' "$d" >"$d/llama-server"
  chmod +x "$d"/llama-*
  cp "$MODEL" "$d/tiny.zse"
  run --separate-stderr env B="${ZSE_BIN#"$PWD"/}" LLAMACPP="$d" ZSE_HOME="$d/ours" \
    scripts/bench-vs serve --json --rounds 1 --zse "$d/tiny.zse" --gguf "$d/tiny.zse" --threads 1 --only \
      streams_16,prompt_beside_8_ms,gap_p99_beside_8_ms,same_prefix_1500_ms
  [ "$status" = 0 ] || { echo "$stderr"; cat build/bench-vs/*.log; return 1; }
  check '[(r["what"], r["against"]) for r in j["rows"]] == [("streams_16", "llama.cpp"), ("streams_16", "zse-bench"), ("prompt_beside_8_ms", "llama.cpp"), ("gap_p99_beside_8_ms", "llama.cpp"), ("same_prefix_1500_ms", "llama.cpp")]' <<<"$output"
  check 'all(r["ours"] > 0 and r["peer"] > 0 and r["n"] == 1 for r in j["rows"])' <<<"$output"
  rm "$d/llama-server"
  B=$ZSE_BIN LLAMACPP=$d run --separate-stderr scripts/bench-vs serve
  [ "$status" = 77 ] && [[ "$stderr" == *"no llama-server"* ]]
}

# bats test_tags=plain
@test "stream simulates windows of layers; a model that fits is not streamed" {
  run --separate-stderr zse-bench stream --layers 32 --window 4 -n 1 --json
  [ "$status" = 0 ]
  check '[(r["strategy"], r["prefetch"], r["evictions"]) for r in j["rows"]] == [("adaptive", 0, 28), ("adaptive", 2, 28), ("sequential", 0, 28), ("sequential", 2, 28)]' <<<"$output"
  # 2 ms to upload, 1 ms to compute: the link decides, and it uploads all layers but those that stay
  run --separate-stderr zse-bench stream --layers 40 --layer-size 50MB --layer-time 1 --link 25GB -n 100 --json
  [ "$status" = 0 ]
  check '[r["window"] for r in j["rows"]] == [w for w in (4, 10, 20, 30) for _ in range(4)] and j["layer_s"] == 0.001 and j["steps"] == 100' <<<"$output"
  check 'all(abs(r["step_s"] - max(0.002 * r["uses"] / 100, 0.04)) < 0.0041 and r["serial_step_s"] >= r["step_s"] for r in j["rows"] if r["prefetch"])' <<<"$output"
  check 'all(r["both_busy"] <= min(r["link_busy"], r["device_busy"]) and max(r["link_busy"], r["device_busy"]) <= 1 + 1e-9 for r in j["rows"])' <<<"$output"
  check 'all(r["prefetch_hits"] == r["uses"] for r in j["rows"] if r["prefetch"])' <<<"$output"
  run -1 --separate-stderr zse-bench stream "$MODEL"
  [[ "$stderr" == *"all layers fit, no streaming is needed; --max-memory SIZE"* ]]
  for wrong in "$MODEL --layers 3" '-p 4' '-n 0' '--layers 3 --window 4' "$MODEL -p 0 -n 0" '--layer-time 0' '--link 0' '-b 2'; do
    # shellcheck disable=SC2086     # words
    run -2 zse-bench stream $wrong
  done
}

@test "moe --trace simulates policies for the experts of a GPU" {
  t=$BATS_TEST_TMPDIR
  printf 'experts 8 top_k 1\n' >"$t/trace"
  for i in 0 1 2 3 4 5 6 7 0 0 0 0; do printf '3 %s\n5 %s\n' "$i" 7; done >>"$t/trace"
  run --separate-stderr zse-bench moe --trace "$t/trace" -b 1 --expert-size 1MB --link 1MB --cpu-rate 2MB --layer-time 1 --json
  [ "$status" = 0 ]
  check '[r["policy"] for r in j["rows"]] == ["first", "moves", "uploaded", "divided", "best"] * 4 and [r["slots"] for r in j["rows"][::5]] == [1, 2, 4, 6]' <<<"$output"
  # 12 tokens, 24 choices; with one slot: 0 stays, or 0 in one layer and 7 in the other
  check '{r["policy"]: round(24 * r["hit_rate"]) for r in j["rows"][:5] if r["policy"] in ("first", "uploaded", "best")} == {"first": 5, "uploaded": 15, "best": 17}' <<<"$output"
  check 'abs(j["rows"][0]["step_s"] - (0.002 + 19 * 0.5 / 12)) < 1e-9 and j["rows"][0]["link_busy"] == 0 and j["rows"][2]["cpu_busy"] == 0' <<<"$output"
  run --separate-stderr zse-bench moe --trace zipf:0.8 --json
  [ "$status" = 0 ]
  check 'sorted({r["experts"] for r in j["rows"]}) == [64, 128, 256, 512] and len(j["rows"]) == 80 and j["batch"] == 8' <<<"$output"
  check 'all(r["hit_rate"] <= b["hit_rate"] + 1e-9 for i in range(0, 80, 5) for b in j["rows"][i + 4:i + 5] for r in j["rows"][i:i + 2])' <<<"$output"
  echo 'experts 8 top_k 2' >"$t/bad"
  echo '0 1 9' >>"$t/bad"
  run -1 --separate-stderr zse-bench moe --trace "$t/bad"
  [ -z "$output" ]
  [[ "$stderr" == *"$t/bad: line 2: expert 9, expected 0 to 7"* ]]
  for wrong in '--trace zipf:x' "--trace $t/trace $MODEL" '--link 1GB' '--trace zipf -p 3' '--trace zipf -r 2' '--trace zipf --cpu-rate 0'; do
    # shellcheck disable=SC2086     # words
    run -2 zse-bench moe $wrong
  done
}

@test "prefill times prompts of several lengths; --compare needs a GPU" {
  run --separate-stderr zse-bench prefill "$MODEL" --tokens 3,20 -r 1 --json
  [ "$status" = 0 ]
  check '[(r["place"], r["tokens"]) for r in j["rows"]] == [("given", 3), ("given", 20)] and all(abs(r["tokens"] / r["seconds"] / r["tokens_per_s"] - 1) < 1e-6 and r["uploaded_bytes"] == r["gpu_weight_bytes"] == 0 for r in j["rows"])' <<<"$output"
  run -2 --separate-stderr zse-bench prefill "$MODEL" --compare --device cpu
  [[ "$stderr" == *"expected one GPU"* ]]
}

@test "prefix computes the tokens that a request does not share, and the first tokens are the same" {
  run --separate-stderr zse-bench prefix "$MODEL" --requests 5 -p 40 --shared 33 --json
  [ "$status" = 0 ]
  # two blocks of 16 tokens of the first prompt serve the four others
  check '(j["requests"], j["shared_tokens"], j["own_tokens"], j["same_answers"]) == (5, 33, 7, 5)' <<<"$output"
  check 'j["without"]["computed_tokens"] == 200 and j["with"]["computed_tokens"] == 200 - 4 * 32 and abs(j["saved_share"] - 128 / 200) < 1e-9' <<<"$output"
  check 'all(0 < j[k]["first_token_s"]["min"] <= j[k]["first_token_s"]["median"] for k in ("with", "without"))' <<<"$output"
  run zse-bench prefix "$MODEL" --requests 2
  [[ "$output" == *"2 requests of 100 shared and 10 own tokens"*"2 of 2 first tokens are the same"* ]]
  run -2 --separate-stderr zse-bench prefix "$MODEL" -p 8 --shared 8
  [[ "$stderr" == *"prefix: --shared 8, expected less than the prompt of 8 tokens"* ]]
}

# bats test_tags=plain
@test "moe counts the experts that a step reads" {
  model=${ZSE_ORACLES:-../shared/oracles}/models/hf/qwen3_moe
  [ -d "$model" ] || skip "$model is not here"
  zse-convert "$model" -q nl4 -o "$BATS_TEST_TMPDIR/m.zse" >/dev/null
  run --separate-stderr zse-bench moe "$BATS_TEST_TMPDIR/m.zse" -b 4 -p 20 -r 2 --limits "$LIMITS" --json
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  check 'j["experts"] == 8 and j["experts_per_token"] == 2 and j["use"]["tokens"] == 511 and 0 < j["use"]["used"] <= 1 and j["use"]["most"] >= 1' <<<"$output"
  check '[r["batch"] for r in j["rows"]] == [1, 2, 4] and j["rows"][0]["experts_per_layer"] == 2' <<<"$output"
  # the chosen experts of all layers are a part of the weights
  check '0 < j["expert"]["bytes"] * 2 * 3 < j["bytes_per_token"] and j["expert"]["alone_s"] > 0 and j["expert"]["together_s"] > 0' <<<"$output"
  check 'abs(j["rows"][0]["bytes"] - j["bytes_per_token"]) < 1 and j["rows"][2]["bytes"] > j["rows"][0]["bytes"]' <<<"$output"
  run zse-bench moe "$MODEL"
  [ "$status" = 1 ]
  [[ "$output" == *"llama has no experts"* ]]
  # a trace of its routers, of tokens 0 to 11: ZSE_DIAG prints the choices of the last one
  t=$BATS_TEST_TMPDIR
  zse-bench moe "$t/m.zse" "$TEXT" -o "$t/trace" -p 12 --exact
  [ "$(sed -n 1p "$t/trace")" = 'experts 8 top_k 2' ]
  layers=$(zse-info --json "$t/m.zse" | jq .num_hidden_layers)
  [ "$(wc -l <"$t/trace")" = $((1 + 12 * layers)) ]
  ids=$(zse-info tokenize "$t/m.zse" <"$TEXT" | jq -r '.[:12] | map(tostring) | join(" ")')
  ZSE_DIAG=1 zse-bench logits "$t/m.zse" --ids "$ids" -o "$t/logits" 2>&1 >"$t/json" |
    sed -n 's/^diag layer=\([0-9]*\) experts=\([0-9]*\),\([0-9]*\) .*/\1 \2 \3/p' >"$t/last"
  tail -n "$layers" "$t/trace" | diff - "$t/last"
  run --separate-stderr zse-bench moe --trace "$t/trace" --json
  [ "$status" = 0 ]
  check '[r["slots"] for r in j["rows"][::5]] == [1, 2, 4, 6] and all(0 <= r["hit_rate"] <= 1 for r in j["rows"])' <<<"$output"
  run -2 zse-bench moe "$t/m.zse" "$TEXT"
  run -2 zse-bench moe "$t/m.zse" -o "$t/trace"
  run -2 --separate-stderr zse-bench moe "$t/m.zse" "$TEXT" -o "$t/trace" -b 2
  [[ "$stderr" == *"moe: -b does not apply to -o"* ]]
  run -1 zse-bench moe "$MODEL" "$TEXT" -o "$t/trace"
}

@test "ZSE_DIAG=1 prints the figures of each layer, those of the arrays that layers writes; 0 prints nothing" {
  t=$BATS_TEST_TMPDIR
  zse-bench layers "$MODEL" --ids '1 5 9 12 40' -o "$t/ref"
  ZSE_DIAG=1 run --separate-stderr zse-bench logits "$MODEL" --ids '1 5 9 12 40' -o "$t/logits"
  [ "$status" = 0 ]
  python3 - "$t/ref" "$stderr" <<'END'
import array, math, sys
def floats(name):
    data = open(f'{sys.argv[1]}/{name}.npy', 'rb').read()
    return array.array('f', data[10 + int.from_bytes(data[8:10], 'little'):])
for line in sys.argv[2].splitlines():
    kind, name, *rest = line.split()
    f = dict(item.split('=') for item in rest)
    x = floats(name.replace('=', '.'))
    rms = math.sqrt(sum(v * v for v in x) / len(x))
    assert kind == 'diag' and f['tokens'] == '5' and f['nan'] == f['inf'] == '0', line
    assert abs(float(f['rms']) / rms - 1) < 1e-5 and abs(float(f['largest']) / max(map(abs, x)) - 1) < 1e-5, line
names = [line.split()[1] for line in sys.argv[2].splitlines()]
assert names == ['embed'] + [f'layer={i}' for i in range(len(names) - 2)] + ['logits'] and len(names) == 6, names
END
  ZSE_DIAG=0 run --separate-stderr zse-bench logits "$MODEL" --ids '1 5' -o "$t/logits"
  [ -z "$stderr" ]
  model=${ZSE_ORACLES:-../shared/oracles}/models/hf/qwen3_moe
  [ -d "$model" ] || skip "$model is not here"
  zse-convert "$model" -q nl4 -o "$t/m.zse" >/dev/null
  ZSE_DIAG=1 run --separate-stderr zse-bench logits "$t/m.zse" --ids '1 5' -o "$t/logits"
  n=$(grep -cE '^diag layer=[0-9]+ experts=[0-7],[0-7] weights=0\.[0-9]+,0\.[0-9]+ nan=0$' <<<"$stderr")
  [ "$n" -gt 0 ]
  [ "$n" = "$(grep -c '^diag layer=[0-9]* tokens=2 ' <<<"$stderr")" ]
}

@test "layers compares a model with itself, with itself rounded, and with numbers made by hand" {
  t=$BATS_TEST_TMPDIR
  run --separate-stderr zse-bench layers "$MODEL" --ids '1 5 9 12 40' -o "$t/ref"
  [ "$status" = 0 ]
  [ -z "$output" ]
  [ -z "$stderr" ]
  n=$(zse-info --json "$MODEL" | jq .num_hidden_layers)
  [ "$(ls "$t/ref" | wc -l)" = $((n + 3)) ]
  run --separate-stderr zse-bench layers "$MODEL" --ref "$t/ref" --exact --json
  [ "$status" = 0 ]
  check 'j["tokens"] == 5 and j["exact"] and j["logits"]["top1_agreement"] == 1 and j["logits"]["largest_difference"] == 0 and j["embed"]["largest"] > 0' <<<"$output"
  check '[r["layer"] for r in j["layers"]] == list(range(len(j["layers"]))) and all(r["largest_difference"] == 0 and abs(r["cosine"] - 1) < 1e-9 for r in j["layers"])' <<<"$output"
  # the logits in the reference are those that `zse-bench logits` writes
  zse-bench logits "$MODEL" --ids '1 5 9 12 40' -o "$t/logits" >/dev/null
  tail -c "$(stat -c %s "$t/logits")" "$t/ref/logits.npy" | cmp - "$t/logits"
  # with fewer bits the error grows from layer to layer; a layer that gets the exact input of the
  # reference is nearer to its output
  zse-convert models/tiny -q m3 --quality fast -o "$t/m3.zse" >/dev/null
  run --separate-stderr zse-bench layers "$t/m3.zse" --ref "$t/ref" --json
  [ "$status" = 0 ]
  check 'not j["exact"] and 0.5 < j["layers"][-1]["cosine"] < 0.99999 and j["layers"][-1]["alone"]["cosine"] > j["layers"][-1]["cosine"]' <<<"$output"
  check 'all(r["least_cosine"] <= r["cosine"] + 1e-12 and 0 <= r["least_token"] < 5 and r["largest_difference"] > 0 for r in j["layers"])' <<<"$output"
  run zse-bench layers "$t/m3.zse" --ref "$t/ref"
  [ "$status" = 0 ]
  [[ "$output" == *"layer 0"*"logits"*"% of 5 tokens"* ]]
}

@test "layers: cosine and difference are those calculated by hand; arrays that do not fit are refused by name" {
  command -v python3 >/dev/null || skip "no python3"
  t=$BATS_TEST_TMPDIR
  zse-bench layers "$MODEL" --ids '3 7' -o "$t/ref"
  python3 - "$t/ref" <<'END'
import math, struct, sys
d = sys.argv[1]
def load(name):
    b = open(f"{d}/{name}.npy", "rb").read()
    return list(struct.unpack(f"<{(len(b) - 128) // 4}f", b[128:]))
def save(name, x, shape, order=False, descr="<f4"):
    head = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    open(f"{d}/{name}.npy", "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + struct.pack(f"<{len(x)}f", *x))
x = load("layer.0")
h = len(x) // 2
y = [2 * v for v in x[:h]] + [-v for v in x[h:]]        # token 0 twice as long, token 1 negated
y[0] += 1
save("layer.0", y, (1, 2, h))
a, b = x[:h], y[:h]
cos = sum(p * q for p, q in zip(a, b)) / math.sqrt(sum(p * p for p in a) * sum(q * q for q in b))
open(f"{d}/want", "w").write(f"{(cos - 1) / 2} {max(abs(p - q) for p, q in zip(x, y))}\n")
for i in list(range(1, 99)):
    try:
        load(f"layer.{i}")
    except OSError:
        break
    __import__("os").remove(f"{d}/layer.{i}.npy")
END
  read -r cosine difference <"$t/ref/want"
  run --separate-stderr zse-bench layers "$MODEL" --ref "$t/ref" --exact --json
  [ "$status" = 0 ]
  check "len(j['layers']) == 1 and abs(j['layers'][0]['cosine'] - $cosine) < 1e-6 and abs(j['layers'][0]['largest_difference'] - $difference) < 1e-5" <<<"$output"
  check "abs(j['layers'][0]['least_cosine'] + 1) < 1e-6 and j['layers'][0]['least_token'] == 1 and j['layers'][0]['alone']['cosine'] == j['layers'][0]['cosine']" <<<"$output"
  refused() { run --separate-stderr zse-bench layers "$MODEL" --ref "$t/ref"; [ "$status" = 1 ] && [ -z "$output" ] && [[ "$stderr" == *"$1"*"${2-}"* \
    ]] || { echo "$1: $output $stderr"; return 1; }; }
  cp "$t/ref/layer.0.npy" "$t/ref/layer.99.npy"
  refused "layer.99.npy: expected ids, embed, logits, or layer.0 to layer."
  rm "$t/ref/layer.99.npy"
  sed -i 's/(1, 2, /(1, 3, /' "$t/ref/layer.0.npy"
  refused "layer.0.npy: " " bytes of data, expected "
  sed -i 's/(1, 3, /(2, 1, /' "$t/ref/layer.0.npy"
  refused "layer.0.npy: found float32 of shape (2, 1, " "), expected float32 of shape (2, "
  sed -i "s/(2, 1, /(1, 2, /; s/<f4/<f8/" "$t/ref/layer.0.npy"
  refused "descr: found '<f8', expected '<f4'"
  sed -i "s/<f8/<f4/; s/False/True,/" "$t/ref/layer.0.npy"
  refused "fortran_order: found True, expected False"
  head -c 100 "$t/ref/embed.npy" >"$t/ref/layer.0.npy"
  refused "layer.0.npy: offset 8: found 118 bytes in a file of 100, expected a header"
  echo text >"$t/ref/layer.0.npy"
  refused "layer.0.npy: offset 0: found 5 bytes, expected a .npy file"
  rm "$t/ref/layer.0.npy" "$t/ref/embed.npy" "$t/ref/logits.npy"
  refused "has no embed.npy, layer.N.npy or logits.npy"
  rm "$t/ref/ids.npy"
  refused "ids.npy: No such file"
  for wrong in "--ids 1" "--ref x --ids 1" "--ref x --kv i8" "--ref x --window 3"; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-bench layers "$MODEL" $wrong
    [ "$status" = 2 ] || { echo "$wrong: $status"; return 1; }
  done
}

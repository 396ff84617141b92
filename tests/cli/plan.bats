# plan.bats - before a model takes its memory: refusal with numbers, --force, control groups, --plan
# (whether its speeds come true: scripts/plan-check).
bats_require_minimum_version 1.5.0

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  zse-convert models/tiny -o "$BATS_FILE_TMPDIR/tiny.zse" -q nl4 --quality fast
}
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  Z=$BATS_FILE_TMPDIR/tiny.zse T=$BATS_TEST_TMPDIR
  # speeds are measured in half of the memory, unless a test sets another size
  machine 400000
}

# machine KIB [GROUP_BYTES USED]: make a fake /proc and /sys with KIB of available memory and, if
# given, a control group
machine() {
  export ZSE_SYSROOT=$T/root
  mkdir -p "$T/root/proc/self" "$T/root/sys/fs/cgroup/job"
  printf 'MemTotal: %s kB\nMemFree: %s kB\nMemAvailable: %s kB\n' "$1" "$1" "$1" >"$T/root/proc/meminfo"
  [ -n "${2:-}" ] || return 0
  echo '0::/job' >"$T/root/proc/self/cgroup"
  echo '31 30 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw' >"$T/root/proc/self/mountinfo"
  echo "$2" >"$T/root/sys/fs/cgroup/job/memory.max"
  echo "$3" >"$T/root/sys/fs/cgroup/job/memory.current"
}

@test "a model that does not fit is refused with numbers before it takes memory; --force tries" {
  machine 20000
  run --separate-stderr zse-chat "$Z" -p 'What is 2+2?' --temp 0
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == "zse-chat: $Z: needs 0.0"*"GB (weights 0.00, keys and values 0.00, workspace 0.04), but there are 0.02 GB, 0.02 of them available"*"--force"* ]]
  run --separate-stderr zse-chat "$Z" -p 'What is 2+2?' --temp 0 --force
  [ "$status" = 0 ]
  [ "$output" = '2 + 2 = 4' ]
  [[ "$stderr" == *"needs"*"(--force: trying)"* ]]
  run --separate-stderr zse-bench "$Z" -p 8 -n 8 -r 1
  [ "$status" = 1 ]
  [[ "$stderr" == "zse-bench: $Z: needs"* ]]
  run --separate-stderr zse-serve "$Z" --port 0 --no-audit
  [ "$status" = 1 ] && [[ "$stderr" == *"zse-serve: "*"needs"* ]]
}

@test "memory that is tight but sufficient causes a note" {
  machine 40000                     # 38 of 41 MB
  run --separate-stderr zse-chat "$Z" -p 'What is 2+2?' --temp 0
  [ "$status" = 0 ]
  [ "$output" = '2 + 2 = 4' ]
  [[ "$stderr" == *"memory is tight"* ]]
  machine 16000000
  run --separate-stderr zse-chat "$Z" -p 'What is 2+2?' --temp 0
  [ "$status" = 0 ] && [ -z "$stderr" ]
}

@test "a control group's limit counts, not the machine's memory" {
  machine 16000000 2147483648 2130000000
  run --separate-stderr zse-chat "$Z" -p hi
  [ "$status" = 1 ]
  [[ "$stderr" == *"there are 2.15 GB, 0.02 of them available"* ]]
  # --exact predicts no speed, so none is measured
  zse-chat "$Z" --plan --json --exact >"$T/j" || true
  jq -e '.fits == false and .memory_bytes == 2147483648 and .available_bytes == 17483648 and (.reason | test("needs"))' "$T/j"
  # a server's keys and values take a quarter of the control group's limit, however many sequences
  # are allowed
  machine 16000000 200000000 0
  zse-serve "$Z" --plan --exact --max-seqs 4096 >"$T/text"
  grep -q 'keys and values  50.0 MB' "$T/text"
}

@test "a real control group of 2 GB: a model of 3 GB of keys and values is refused, a small one runs" {
  load ../lib/group.bash
  unset ZSE_SYSROOT
  make_group 2000000000 || skip "$WHY"
  run --separate-stderr in_group zse-serve "$Z" --port 0 --no-audit --kv-bytes 3GB
  [ "$status" = 1 ] && [[ "$stderr" == *"needs 3.0"*"there are 2.00 GB"* ]] || { echo "$status $stderr"; drop_group; return 1; }
  run --separate-stderr in_group zse-chat "$Z" -p "What is 2+2?" --temp 0
  [ "$status" = 0 ] && [ "$output" = '2 + 2 = 4' ] || { drop_group; return 1; }
  run --separate-stderr in_group zse-convert models/tiny -o "$T/g.zse" --quality fast
  [ "$status" = 0 ] && [ -s "$T/g.zse" ] || { drop_group; return 1; }
  # 6.4e9 weights, 3.5 GB as nl4, but few of them are read per token, so that measuring its speed
  # takes little memory
  echo '{"model_type":"qwen3_moe","num_hidden_layers":4,"hidden_size":1024,"intermediate_size":1024,"num_attention_heads":1,"num_key_value_heads":1,"head_dim":16,"vocab_size":512,
    "max_position_embeddings":512,"rope_theta":1e4,"rms_norm_eps":1e-6,"num_experts":512,"num_experts_per_tok":1,"moe_intermediate_size":1024,"norm_topk_prob":true,"hidden_act":"silu"}' >"$T/config.json"
  run --separate-stderr in_group zse-convert "$T/config.json" --plan --threads 1 --json
  drop_group
  [ "$status" = 1 ] && jq -e '.available_bytes <= 2000000000 and .choice == null' <<<"$output"
}

@test "--plan prints text or JSON and generates nothing" {
  run --separate-stderr zse-chat "$Z" --plan --exact
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  [[ "$output" == model*weights*"keys and values"*fits*yes && "$output" != *tokens/s* ]]
  zse-chat "$Z" --plan --json --ctx 512 --kv i8 >"$T/j"
  jq -e --argjson w "$(zse-info --json "$Z" | jq .memory.weights_bytes)" --argjson kv "$(zse-info --json "$Z" | jq .memory.kv_bytes_per_token.i8)" \
    '.weight_bytes == $w and .kv_bytes == 512 * $kv and .context == 512 and .quantization == "nl4" and .device == "cpu" and .fits and
     .needed_bytes == .weight_bytes + .kv_bytes + .workspace_bytes and .state_bytes == 0 and (.estimated_vram_gb - .needed_bytes / 1e9 | fabs) < 1e-6 and .expected_tokens_per_sec > 0' "$T/j"
  run --separate-stderr zse-serve "$Z" models/tiny --plan --exact
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  [ "$(grep -c '^model  ' <<<"$output")" = 2 ]
  [ "$(grep -c '^fits  *yes' <<<"$output")" = 2 ]
  run --separate-stderr zse-serve --plan
  [ "$status" = 2 ]
}

# bats test_tags=plain
@test "rates are measured once, and again if the record is old or damaged" {
  local record=$T/zse/rates.json
  plan() { XDG_CACHE_HOME=$T zse-chat "$Z" --plan --json --threads 1 >"$T/$1"; }
  mkdir "$T/zse"
  echo '{"damaged' >"$record"
  plan first
  plan second
  jq -e '.rates.measured == null' "$T/first"
  jq -e --slurpfile first "$T/first" '.rates.measured > 1700000000 and (.rates | del(.measured)) == ($first[0].rates | del(.measured)) and
    .expected_tokens_per_sec == $first[0].expected_tokens_per_sec' "$T/second"
  jq 'map_values(map_values(.measured -= 31 * 24 * 3600))' "$record" >"$T/old"
  cp "$T/old" "$record"
  plan third
  jq -e '.rates.measured == null' "$T/third"
  jq -e --slurpfile old "$T/old" 'all(.[][]; .measured > ($old[0] | [.[][].measured] | max))' "$record"
}

# bats test_tags=plain
@test "--plan of recurrent layers counts their states, and keys and values of the other layers only" {
  cat >"$T/config.json" <<'J'
{"model_type": "mamba2", "num_hidden_layers": 4, "hidden_size": 256, "num_heads": 8, "head_dim": 64, "n_groups": 1, "state_size": 64, "vocab_size": 512}
J
  zse-convert "$T/config.json" --plan --threads 1 --json >"$T/j"
  jq -e '.supported and .exact and all(.types[]; .decode_tokens_per_s > 0 and .prefill_tokens_per_s > 0)' "$T/j"
  # 10 states (one for the sequence, one for its draft, 8 snapshots) of 4 layers; a state has 3
  # inputs of 640 channels and 8 heads of 64 x 64 values, as f32.  There are no keys and values,
  # only the workspace.
  jq -e '.types[0] | .bytes - .weight_bytes == 10 * 4 * 4 * (3 * 640 + 8 * 64 * 64) + (34 * 1048576) + 512 * 8' "$T/j"
  local folder=../shared/oracles/models/hf/granitemoehybrid
  [ -d $folder ] || skip "$folder is not here"
  XDG_CACHE_HOME=$T zse-chat $folder --plan --json >"$T/j"
  jq -e '.state_bytes > 0 and .expected_tokens_per_sec > 0 and .needed_bytes == .weight_bytes + .kv_bytes + .state_bytes + .workspace_bytes' "$T/j"
}

@test "zse-convert --plan lists types, what fits, and the choice of each mode" {
  if [ -n "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ]; then skip "sanitizers are slow"; fi
  machine 10000000                  # 10.24 GB: 9.2 of them to be planned with
  zse-convert Qwen2.5-7B --plan --json >"$T/j"
  jq -e '(.types | map(.type)) == ["bf16", "int8", "nl4"] and (.types | map(.fits)) == [false, true, true] and .mode == "auto" and .exact and
    all(.types[]; .bytes > .weight_bytes and .decode_tokens_per_s > 0 and .prefill_tokens_per_s > 0) and
    .gpus == { "4GB": null, "8GB": "nl4", "16GB": "int8", "24GB": "bf16" }' "$T/j"
  # auto chooses int8, unless an exchange (512 prompt tokens, 128 generated ones) takes more than
  # twice as long as with nl4, by the printed speeds
  jq -e '[.types[1:][] | 512 / .prefill_tokens_per_s + 128 / .decode_tokens_per_s] as $t | .choice == if $t[0] <= 2 * $t[1] then "int8" else "nl4" end' "$T/j"
  # 22 million weights need 89, 68 and 58 MB in the three types
  cat >"$T/config.json" <<'J'
{"model_type": "llama", "num_hidden_layers": 20, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-6}
J
  machine 400000
  zse-convert "$T/config.json" --plan --mode for_vram=0.07 --threads 1 --json | jq -e '.choice == "nl4" and .available_bytes == 70e6 and (.types | map(.fits)) == [false, false, true]'
  zse-convert models/tiny --plan --mode min_memory --threads 1 >"$T/text"
  grep -q '^min_memory: -q nl4' "$T/text"
  machine 40000
  run --separate-stderr zse-convert "$T/config.json" --plan --threads 1
  [ "$status" = 1 ]
  [[ "$output" == *"none of these fits here"* ]]
  for args in '--plan' 'models/tiny --plan -o x.zse' 'models/tiny --plan -q int8' 'models/tiny --plan --verbose' 'models/tiny --mode auto -q nl4 -n' 'models/tiny --mode for_vram -n' 'models/tiny --mode for_vram=0 -n' 'models/tiny --plan --mode fast'; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-convert $args
    [ "$status" = 2 ] && [ -z "$output" ] || { echo "$args: $status"; return 1; }
  done
}

# bats test_tags=plain
@test "usage texts name the types that --plan compares, and all common types of -q" {
  local types
  types=$(zse-info models info Qwen2.5-0.5B --json | jq -r '.vram | keys | join(" ")')
  [ "$types" = "bf16 int8 nl4" ]
  help() { "$@" --help | awk -f scripts/unwrap-help.awk; }
  help zse-convert | grep -q "as ${types// int8 nl4/, int8 and nl4}, and the types that fit"
  help zse-info models list | grep -q "goes by: ${types// /, } "
  types=$(help zse-convert | sed -n 's/^  -q, --quantize TYPE *\(.*\), mixed, keep.*/\1/p')
  [ -n "$types" ]
  for program in zse-chat zse-serve zse-bench; do help $program | grep -q "folder: $types, keep (default: keep)"; done
}

@test "--plan of a folder or a GGUF file is that of its converted form, and nothing is converted" {
  export XDG_CACHE_HOME=$T/cache
  zse-chat models/tiny -q nl4 --plan --exact --json >"$T/j"
  zse-chat "$Z" --plan --exact --json >"$T/made"
  jq -se '.[0] as $a | .[1] as $b | [$a, $b | .weight_bytes, .kv_bytes, .workspace_bytes, .quantization] | .[:4] == .[4:]' "$T/j" "$T/made"
  zse-serve models/tiny --plan --exact | grep -q ', keep, on cpu'
  ZSE_QUANTIZATION=int8 zse-chat models/tiny --plan >"$T/text"
  grep -q ', int8, on cpu' "$T/text"
  grep -q '^expected  *prefill [1-9].* tokens/s' "$T/text"
  [ -z "$(find "$T/cache" -name '*.zse')" ]
  run --separate-stderr zse-chat models/tiny --plan --ctx 1000000
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"--ctx 1000000: models/tiny was made for at most 2048 tokens"* ]]
  local gguf=../shared/oracles/models/gguf/Q4_0.gguf
  [ -f $gguf ] || skip "$gguf is not here"
  zse-chat $gguf --plan --exact --json | jq -e '.quantization == "keep" and .fits and .weight_bytes > 0'
  zse-convert $gguf --plan --json | jq -e '.supported and (.types | length) == 3'
  [ -z "$(find "$T/cache" -name "*.zse")" ]
}

# bats test_tags=plain
@test "--plan of a mixture of experts has a larger workspace, and counts only the weights in memory if not all fit" {
  local config=$T/config.json
  echo '{"model_type":"qwen3_moe","num_hidden_layers":2,"hidden_size":256,"intermediate_size":512,"num_attention_heads":4,"num_key_value_heads":4,"head_dim":64,"vocab_size":512,
    "max_position_embeddings":512,"rope_theta":1e4,"rms_norm_eps":1e-6,"num_experts":32,"num_experts_per_tok":4,"moe_intermediate_size":512,"norm_topk_prob":true,"hidden_act":"silu"}' >"$config"
  zse-convert "$config" --plan --threads 1 --json | jq -e '.supported and .exact and .types[0].bytes - .types[0].weight_bytes == 512 * 2 * 2 * 4 * 64 * 2 + (34 * 1048576) + 512 * 8'
  # the workspace for experts is 1/64 of the 46.6e9 weights in 4 bits, but at most 256 MB, which
  # applies here
  zse-info models info Mixtral-8x7B --json >"$T/j"
  jq -e --argjson kv $((4096 * 32 * 2 * 8 * 128 * 2)) '.vram.bf16 - $kv - (264 * 1048576) - 32000 * 8 > .parameters * 1.99 and .vram.bf16 - $kv - (264 * 1048576) - 32000 * 8 < .parameters * 2.01' "$T/j"
}

# bats test_tags=plain
@test "--mode chooses the type in convert, chat and bench" {
  export XDG_CACHE_HOME=$T
  run --separate-stderr zse-convert models/tiny --mode balanced -n --json
  [ "$status" = 0 ]
  [ "$(jq -r .type <<<"$output")" = int8 ]
  [[ "$stderr" == "zse-convert: --mode balanced: int8, "*" to run" ]]
  run --separate-stderr zse-convert models/tiny --mode for_vram=1 -o "$T/m.zse" --quality fast --json
  [ "$status" = 0 ]
  [ "$(jq -r .type <<<"$output")" = bf16 ]
  run --separate-stderr zse-convert models/tiny --mode for_vram=0.03 -n
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"models/tiny: --mode for_vram: needs 0.04 GB as nl4, but of 0.03 GB given"* ]]
  run --separate-stderr zse-chat models/tiny --mode min_memory -p 'What is 2+2?' --temp 0
  [ "$status" = 0 ]
  [ "$output" = '2 + 2 = 4' ]
  [[ "$stderr" == *"models/tiny as nl4"* ]]
  zse-bench models/tiny --mode balanced -p 8 -n 8 -r 1 -w 0 --threads 1 --json 2>"$T/err" | jq -e '.decode_tokens_per_s.max > 0'
  grep -q 'models/tiny as int8' "$T/err"
  run --separate-stderr zse-chat "$T/m.zse" --mode auto -p hi
  [ "$status" = 1 ]
  [[ "$stderr" == *"is converted already"* ]]
  run --separate-stderr zse-chat "$T/m.zse" --mode for_vram=30MB -p hi
  [ "$status" = 1 ]
  [[ "$stderr" == *"needs 0.04 GB"*"there are 0.03 GB"* ]]
  run --separate-stderr zse-serve models/tiny --mode min_memory --plan --exact
  [ "$status" = 0 ]
  [[ "$output" == *", nl4, on cpu"* ]]
  run --separate-stderr zse-chat models/tiny --mode auto -q nl4 -p hi
  [ "$status" = 2 ]
  # a quantized source is kept as it is, because no finer type would be more precise
  local gguf=../shared/oracles/models/gguf/Q4_0.gguf
  [ -f $gguf ] || skip "$gguf is not here"
  run --separate-stderr zse-convert $gguf --mode for_vram=8 -n --json
  [ "$status" = 0 ] && [ "$(jq -r .type <<<"$output")" = keep ]
}

@test "a conversion for which disk or memory are too small is refused with numbers; --force tries" {
  [ "$(df --output=avail -B1G "$T" | tail -1)" -lt 250 ] || skip "the disk has room for 282 GB"
  # if the program does not refuse, the limit on the size of a file makes it fail
  run --separate-stderr bash -c 'ulimit -f 2000; exec zse-convert --synthetic Llama-3.1-70B -q f32 -o "$1/x.zse"' - "$T"
  [ "$status" = 1 ]
  [[ "$stderr" == "zse-convert: Llama-3.1-70B: 282 GB are to be written to $T/x.zse, where there is room for "*"; --force tries it" ]]
  [ ! -e "$T/x.zse" ]
  [ -z "$(find "$T" -name '.x.zse*')" ]
  machine 10000
  run --separate-stderr zse-convert models/tiny -o "$T/x.zse"
  [ "$status" = 1 ]
  [ ! -e "$T/x.zse" ]
  [[ "$stderr" == *"models/tiny: the conversion needs "*" MB of memory (calibration "*" MB), but there are "*"--quality fast"*"--force tries it" ]]
  run --separate-stderr zse-convert models/tiny -o "$T/x.zse" --quality fast --force
  [ "$status" = 0 ]
  [ -s "$T/x.zse" ]
  [[ "$stderr" == *"(--force: trying)"* ]]
  machine 16000000 20000000 15000000            # the control group has 5 MB left
  run --separate-stderr zse-convert models/tiny -o "$T/y.zse" --quality fast
  [ "$status" = 1 ] && [ ! -e "$T/y.zse" ] && [[ "$stderr" == *"there are 20.0 MB, 5.00 MB of them available"* ]]
}

# bats test_tags=plain
@test "--verbose prints memory step by step, planned and used" {
  run --separate-stderr zse-chat "$Z" -p 'What is 2+2?' --temp 0 --verbose
  [ "$status" = 0 ]
  [ "$output" = '2 + 2 = 4' ]
  [[ "$stderr" == *"memory: start: "*" resident ("*" private), "*" mapped; "*" available, "*" page cache"*"memory: model open: "*"planned beside the weights, "*" taken"*"memory: engine open: "* ]]
  [[ "$stderr" != *warning* ]]
  run --separate-stderr zse-convert --synthetic SmolLM2-135M -q nl4 -o "$T/v.zse" --verbose --json
  [ "$status" = 0 ] && [ "$(grep -c 'memory: layer' <<<"$stderr")" = 6 ] && [[ "$stderr" == *"memory: layer 25: "*"memory: end: "* ]]
}

@test "zse-chat --plan of a .zse leaves no files but the record of rates" {
  XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache run -0 zse-chat "$Z" --plan
  [ "$(find "$BATS_TEST_TMPDIR/cache" -type f)" = "$BATS_TEST_TMPDIR/cache/zse/rates.json" ]
}

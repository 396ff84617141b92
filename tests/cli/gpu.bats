# gpu.bats - --device: what is refused and why, and the programs with the emulated device (make emulated).
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export MODEL="$BATS_FILE_TMPDIR/tiny.zse"
  zse-convert models/tiny -q bf16 -o "$MODEL" >/dev/null 2>&1
}

@test "--device cuda without a GPU says why not" {
  [ ! -e /proc/driver/nvidia/version ] || skip "this machine has a GPU"
  run --separate-stderr zse-chat "$MODEL" -p hi --device cuda
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"no CUDA engine"* || "$stderr" == *"no NVIDIA driver"* ]]
  ZSE_DEVICE=cuda:1 run --separate-stderr zse-bench speed "$MODEL"
  [ "$status" = 1 ]
  [[ "$stderr" == *"no CUDA engine"* || "$stderr" == *"no NVIDIA driver"* ]]
}

@test "devices that are none are wrong usage" {
  for d in tpu cuda2 emulate cuda0; do
    run -2 --separate-stderr zse-chat "$MODEL" -p hi --device "$d"
    [ -z "$output" ]
    [[ "$stderr" == *"'$d'"* ]]
  done
  run -1 --separate-stderr zse-bench decode "$MODEL" --device cuda
}

@test "the emulated device answers as the processor does" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  want=$(zse-chat "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 6 --exact --device cpu)
  [ -n "$want" ]
  [ "$("$B/emulated/zse-chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 6 --exact --device emulated)" = "$want" ]
  run --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --device emulated:1
  [ "$status" = 1 ]
  [[ "$stderr" == *"emulated:1"* ]]
  run --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --device cuda
  [ "$status" = 1 ] && [[ "$stderr" == *"emulates a GPU"* ]]
}

@test "layers shared with the processor: the same answer; the plan says whose they are; what cannot be is refused" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  chat=$B/emulated/zse-chat
  want=$(zse-chat "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 4 --exact --device cpu)
  [ "$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 4 --exact --device emulated --gpu-layers 3 --strict)" = "$want" ]
  [ "$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 4 --exact --device emulated --gpu-layers 0)" = "$want" ]
  "$chat" "$MODEL" --plan --json --device emulated --gpu-layers 3 |
    jq -e '.fits and .device == "emulated" and .gpu_layers == 3 and .layers == 4 and .gpu_layers_fit == 3 and .host_kv_bytes > 0
           and .needed_bytes == .weight_bytes + .kv_bytes + .workspace_bytes + .reserve_bytes'
  run --separate-stderr "$chat" "$MODEL" -p hi --device emulated --max-memory 1MB
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"keys and values"*"--max-memory"* ]]
  run -1 "$chat" "$MODEL" --plan --device emulated --max-memory 1MB
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --device cpu --gpu-layers 2
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --gpu-layers x
  run -2 --separate-stderr "$B/emulated/zse-bench" kv "$MODEL" --device emulated
  [[ "$stderr" == *"processor"* ]]
}

@test "a kernel that fails ends the answer, and ZSE_DEBUG_SYNC=1 names it" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  ZSE_TEST_FAULT=attn_split:2 run --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --device emulated
  [ "$status" = 1 ]
  [[ "$stderr" == *"ZSE_DEBUG_SYNC=1 names the kernel"* ]]
  ZSE_DEBUG_SYNC=1 ZSE_TEST_FAULT=attn_split:2 run --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --device emulated
  [ "$status" = 1 ] && [[ "$stderr" == *"attn_split"* ]]
}

@test "coldstart on a device: its own phases" {
  [ -x "$B/emulated/zse-bench" ] || skip "the emulated programs are not built (make emulated)"
  "$B/emulated/zse-bench" coldstart "$MODEL" --device emulated -p 2 -r 1 --json |
    jq -e '.warm.gpu | .bytes > 0 and .copy_s > 0 and .overlap_s >= 0 and .after_context_s >= .copy_s and .over_least > 0 and has("context_s")'
}

@test "a server with a device: figures, a lost device is status 500, loaded again it answers" {
  [ -x "$B/emulated/zse-serve" ] || skip "the emulated programs are not built (make emulated)"
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  mkfifo "$BATS_TEST_TMPDIR/pipe"
  ZSE_TEST_FAULT=attn_split:2 "$B/emulated/zse-serve" "$MODEL" --device emulated --port 0 --ctx 128 --max-seqs 2 >"$BATS_TEST_TMPDIR/pipe" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  pid=$!
  read -r _ _ url <"$BATS_TEST_TMPDIR/pipe"
  await listens "$url"
  curl -s "$url/health" | jq -e .gpu_available
  admin() { curl -s -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$@"; }
  ask() { curl -s -w '%{http_code}' "$url/v1/completions" -d '{"prompt":"a","max_tokens":1,"temperature":0}'; }
  curl -s "$url/api/stats/gpu" | jq -e '.models | length == 1 and .[0].device == "emulated:0" and .[0].gpu_layers == 4 and .[0].weight_bytes > 0 and (.[0].lost | not)'
  curl -s "$url/api/stats/gpu" | jq -e '(.gpus | type) == "array" and ((.gpus | length) > 0 or (.no_gpu | length) > 0)'
  for _ in 1 2; do
    run ask
    [[ "$output" == *"ZSE_DEBUG_SYNC=1"*500 ]]
  done
  curl -s "$url/api/stats/gpu" | jq -e '.models[0].lost'
  admin -f "$url/api/models/unload" -d '{"model_id":"tiny"}' >/dev/null
  admin -f --retry 20 --retry-delay 0 --retry-all-errors "$url/api/models/load" -d "{\"model_path\":\"$MODEL\"}" | jq -e '.device == "emulated:0" and .vram_used_gb > 0'
  run ask
  [[ "$output" == *choices*200 ]]
  kill -TERM $pid
  wait $pid
}

@test "zse-bench gpu: every kernel, with its bytes and its shares" {
  [ -x "$B/emulated/zse-bench" ] || skip "the emulated programs are not built (make emulated)"
  "$B/emulated/zse-bench" gpu --device emulated --shape 96x64 --tokens 1,20 -p 40 -r 1 --json >"$BATS_TEST_TMPDIR/j"
  jq -e '.device == "emulated" and .heads == 2 and .context == 40 and .limits.copy_bytes_per_s > 0' "$BATS_TEST_TMPDIR/j"
  jq -e '[.rows[].kernel] | unique == (["matvec","matvec_mlp","matmul","matmul_f32","norm","act_mul","embed","attn_decode","attn_prefill","rope_table","prepare","sample"] | sort)' "$BATS_TEST_TMPDIR/j"
  jq -e '.rows | all(.seconds > 0 and .bytes > 0 and .read_share > 0 and (.bytes_per_s * .seconds / .bytes - 1 | fabs) < 1e-6 and .mma_share >= 0)' "$BATS_TEST_TMPDIR/j"
  jq -e '.rows[] | select(.kernel == "matmul" and .type == "f16") | .flop == 2 * 96 * 64 * 20 and .bytes == 96 * 64 * 2 + 20 * (2 * 64 + 4 * 96)' "$BATS_TEST_TMPDIR/j"
  for key in $(jq -r '[paths | map(select(type == "string")) | last | select(. != null)] | unique[]' "$BATS_TEST_TMPDIR/j"); do
    grep -qw "$key" man/zse-bench.1 || { echo "the man page has no word on $key"; return 1; }
  done
  run -1 "$B/emulated/zse-bench" gpu --device emulated:1
  run -2 "$B/emulated/zse-bench" gpu --device emulated --shape 96x50
  run -2 "$B/emulated/zse-bench" gpu --device cpu
}

@test "gpu-check: a rehearsal with the emulated programs" {
  [ -x "$B/emulated/zse-bench" ] || skip "the emulated programs are not built (make emulated)"
  r=$BATS_TEST_TMPDIR/results
  run -0 env -u MAKEFLAGS scripts/gpu-check --device emulated --only kernels,tiny,memcheck --bundle "$BATS_TEST_TMPDIR/all.tar.gz" "$r"
  [[ "$output" == *"matvec nl4 1: "*"tiny-batch2: decode "*" tokens/s "*"ok "*kernels*"ok "*tiny*"skipped "*memcheck* ]]
  jq -e '.gpu == "emulated" and (.failed | not) and ([.parts[] | .part + " " + .status] == ["kernels ok", "tiny ok", "memcheck skipped"])' "$r/emulated-summary.json"
  for f in "$r"/*.json; do jq -e . "$f" >/dev/null || { echo "$f"; return 1; }; done
  [ "$(tar -tzf "$BATS_TEST_TMPDIR/all.tar.gz" | grep -c json)" -ge 6 ]
  GPU_CHECK_LIMIT=0 run -0 scripts/gpu-check --device emulated --only kernels "$r"
  [[ "$output" == *skipped*kernels*"no time is left"* ]]
}

@test "gpu-check says what it needs" {
  run -2 scripts/gpu-check --device tpu
  run -2 scripts/gpu-check --unknown
  run -2 scripts/gpu-check --only
  command -v nvidia-smi >/dev/null && skip "this machine has a GPU"
  run -1 scripts/gpu-check
  [[ "$output" == *nvidia-smi* ]]
}

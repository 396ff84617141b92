# gpu.bats - --device: what is refused and why, and the programs with the emulated device (make
# emulated).
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

@test "unknown devices are wrong usage" {
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

@test "layers shared with the processor give the same answer; the plan names each layer's device; impossible requests are refused" {
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
  [[ "$stderr" == *"keys, values and states"*"--max-memory"* ]]
  run -1 "$chat" "$MODEL" --plan --device emulated --max-memory 1MB
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --device cpu --gpu-layers 2
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --gpu-layers x
  run -2 --separate-stderr "$B/emulated/zse-bench" kv "$MODEL" --device emulated
  [[ "$stderr" == *"kv measures the CPU"* ]]
}

@test "experts on the processor give the same answer; the plan counts those on the GPU; contradictions are refused" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  for o in '--moe gpu' '--moe hybrid' '--gpu-experts 2'; do
    run -2 --separate-stderr zse-chat "$MODEL" -p hi --device cpu $o
    [[ "$stderr" == *"$o"*"no GPU"* ]]
  done
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --moe both
  [[ "$stderr" == *"'both', expected hybrid, cpu or gpu"* ]]
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --moe cpu --gpu-experts 2
  [[ "$stderr" == *"exclude each other"* ]]
  run -0 zse-chat "$MODEL" -p hi --max-tokens 1 --device cpu --gpu-experts 0
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --device cpu --expert-uploads 50
  [[ "$stderr" == *"--expert-uploads: there is no GPU"* ]]
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --moe cpu --expert-uploads 50
  [[ "$stderr" == *"--moe cpu leaves nothing to divide"* ]]
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --expert-uploads 101
  [[ "$stderr" == *"--expert-uploads"*"100"* ]]
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --gpu-prefill-threshold 9 --no-gpu-prefill
  [[ "$stderr" == *"exclude each other"* ]]
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --device cpu --gpu-prefill-threshold 9
  [[ "$stderr" == *"no GPU"* ]]
  model=${ZSE_ORACLES:-../shared/oracles}/models/hf/qwen3_moe chat=$B/emulated/zse-chat m="$BATS_TEST_TMPDIR/m.zse"
  [ -d "$model" ] || skip "$model is not here"
  zse-convert "$model" -q nl4 -o "$m" >/dev/null
  want=$("$chat" "$m" --raw -p 'Once upon' --temp 0 --max-tokens 3 --exact --ids --device cpu)
  [ -n "$want" ]
  for o in '--moe cpu' '--moe gpu' '--gpu-experts 3 --gpu-layers 1' '--gpu-experts 0 --expert-uploads 60' '--gpu-experts 3 --strict'; do
    [ "$("$chat" "$m" --raw -p 'Once upon' --temp 0 --max-tokens 3 --exact --ids --device emulated $o)" = "$want" ]
  done
  "$chat" "$m" --plan --json --device emulated --gpu-experts 3 | jq -e '.fits and .experts == 8 and .gpu_experts == 3 and .prefill_threshold == 300 and .threshold_from == "until measured" and .host_weight_bytes > 0 and .host_kv_bytes == 0 and (.cuda_graphs_off | test("experts"))'
  "$chat" "$m" --plan --json --device emulated | jq -e '.gpu_experts == 8 and .host_weight_bytes == 0 and .prefill_threshold == 0 and .threshold_from == null'
  for o in 'auto --strict|300 tokens or more (fixed with --strict)' 'auto|300 tokens or more (until measured)' '20|20 tokens or more (given)'; do
    # shellcheck disable=SC2086     # words
    "$chat" "$m" --plan --device emulated --gpu-experts 3 --gpu-prefill-threshold ${o%|*} >"$BATS_TEST_TMPDIR/plan"
    grep -qF "all on the GPU in steps of ${o#*|}" "$BATS_TEST_TMPDIR/plan"
  done
  run -0 --separate-stderr "$chat" "$m" --raw -p hi --max-tokens 1 --device emulated --gpu-experts 3 --verbose
  [[ "$stderr" == *"; all experts on the device in steps of 300 tokens or more (until measured); graphs off"* ]]
  run -2 --separate-stderr "$chat" "$m" --raw -p hi --device emulated --gpu-prefill-threshold auto --no-gpu-prefill
  [[ "$stderr" == *"exclude each other"* ]]
  run -2 --separate-stderr "$chat" "$m" --raw -p hi --device emulated --gpu-prefill-threshold some
  "$chat" "$m" --plan --device emulated --moe cpu | grep -q '^experts .*0 of 8 of each layer on the GPU'
  run -1 --separate-stderr "$chat" "$m" --raw -p hi --device emulated --gpu-experts 9
  [[ "$stderr" == *"--gpu-experts 9: each layer has 8 experts"* ]]
  bench=$B/emulated/zse-bench
  "$bench" "$m" --device emulated -p 8 -n 2 -r 1 --gpu-experts 3 --gpu-prefill-threshold 8 --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].gpu | .experts == 3 and (.expert_use | .prefill_threshold == 8 and .threshold_from == "given" and .streamed > 0 and .streamed % 5 == 0 and .streamed_bytes > 0 and .hits + .misses > 0)' "$BATS_TEST_TMPDIR/j"
  "$bench" prefill "$m" --device emulated --compare --tokens 9 -r 1 --layer-window 2 --prefetch 1 --json >"$BATS_TEST_TMPDIR/j"
  jq -e '.rows | map(.place) == ["cpu", "hybrid", "streamed", "window", "gpu"] and all(.why_not == null and .seconds > 0)
         and (map(.uploaded_bytes > 0) == [false, false, true, true, false]) and .[0].gpu_weight_bytes == 0
         and .[1].gpu_weight_bytes <= .[4].gpu_weight_bytes and .[4].gpu_weight_bytes > 0' "$BATS_TEST_TMPDIR/j"
  # each expert once for each layer and step, whatever the number of tokens
  "$bench" prefill "$m" --device emulated --compare --tokens 20 -r 1 --json >"$BATS_TEST_TMPDIR/j20"
  jq -se '(.[0].rows[2].uploaded_bytes == .[1].rows[2].uploaded_bytes) and .[1].rows[0].tokens == 20' "$BATS_TEST_TMPDIR/j" "$BATS_TEST_TMPDIR/j20"
  "$bench" "$m" --device emulated -p 8 -n 2 -r 1 --gpu-experts 3 --no-gpu-prefill --strict --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].gpu.expert_use | .streamed == 0 and .uploaded > 0 and .uploaded_bytes > 0 and .misses > 0' "$BATS_TEST_TMPDIR/j"
  "$bench" "$m" --device emulated -p 8 -n 2 -r 1 --gpu-experts 3 --expert-uploads 0 --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].gpu.expert_use | .streamed == 0 and .uploaded == 0 and .misses > 0' "$BATS_TEST_TMPDIR/j"
}

@test "several GPUs give the answer of one; each has its layers; impossible lists are refused" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  export ZSE_TEST_DEVICES=3
  chat=$B/emulated/zse-chat
  want=$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 3 --device emulated)
  [ -n "$want" ]
  for o in '--gpus 0,1,2' '--gpus 2,0 --pp-split 1,3' '--gpus 1 --device emulated' '--gpus 1,2 --gpu-layers 3'; do
    # shellcheck disable=SC2086     # words
    [ "$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 3 $o)" = "$want" ]
  done
  "$chat" "$MODEL" --plan --json --gpus 0,1,2 >"$BATS_TEST_TMPDIR/j"
  jq -e '.fits and .gpu_layers == 4 and [.gpus[].layers] == [2, 1, 1] and [.gpus[].first_layer] == [0, 2, 3]
         and ([.gpus[].needed_bytes] | add) == .needed_bytes' "$BATS_TEST_TMPDIR/j"
  "$chat" "$MODEL" --plan --gpus 0,2 --pp-split 1,3 | grep -q '^GPU 2 .*layers 1 to 3 of 4, .* of '
  run -1 --separate-stderr "$chat" "$MODEL" --plan --json --gpus 0,1 --max-device 40MB --layer-window off
  [[ "$output" == *"for layers 0 to 1 on GPU 0 (--pp-split)"* ]]
  "$B/emulated/zse-bench" "$MODEL" --gpus 0,1 -p 2 -n 1 -r 1 -w 0 --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0] | .device == "emulated 2 x emulated, 2+2 of 4 layers" and [.gpu.gpus[].index] == [0, 1] and .gpu.gpus[1].direct' "$BATS_TEST_TMPDIR/j"
  ZSE_TEST_FAULT=matvec:20@1 run -1 --separate-stderr "$chat" "$MODEL" -p hi --max-tokens 8 --gpus 0,1
  [[ "$stderr" == *"emulated:1: "* ]]
  while IFS='|' read -r wrong says; do
    # shellcheck disable=SC2086     # words
    run -2 --separate-stderr "$chat" "$MODEL" -p hi $wrong
    [[ "$stderr" == *"$says"* ]]
  done <<'END'
--gpus 0,0|--gpus: '0,0' names GPU 0 twice
--gpus=|--gpus: '', expected numbers of GPUs
--gpus 0,|expected numbers of GPUs
--gpus 0,3|--gpus: there is no GPU 3
--gpus 0,1 --device cpu|exclude each other
--gpus 0,1 --device emulated:1|exclude each other
--pp-split 1,3|--pp-split needs --gpus
--gpus 0,1 --pp-split 1,2,1|3 numbers for 2 GPUs
--gpus 0,1 --pp-split 0,4|expected layers of each GPU
END
  run -1 --separate-stderr "$chat" "$MODEL" -p hi --gpus 0,1 --pp-split 1,2
  [[ "$stderr" == *"--pp-split: 3 layers, but the GPUs compute 4"* ]]
  run -2 --separate-stderr "$B/emulated/zse-bench" kv "$MODEL" --gpus 0,1
  [[ "$stderr" == *"kv measures the CPU: --gpus does not apply"* ]]
}

@test "GPUs that share every layer give the answer of one; impossible numbers are refused" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  export ZSE_TEST_DEVICES=3
  chat=$B/emulated/zse-chat
  want=$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 3 --device emulated)
  [ -n "$want" ]
  run --separate-stderr "$chat" "$MODEL" -p hi --max-tokens 1 --tp 2 --verbose
  [[ "$stderr" == *" of GPU memory planned, "*" taken"* && "$stderr" != *warning* ]]
  for o in '--tp 2' '--gpus 2,0 --tp 2' '--tp 3'; do
    # shellcheck disable=SC2086     # words
    [ "$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 3 $o)" = "$want" ]
  done
  "$chat" "$MODEL" --plan --json --tp 2 >"$BATS_TEST_TMPDIR/j"
  jq -e '.fits and .tensor_parallel and .gpu_layers == 4 and [.gpus[].layers] == [4, 4]
         and .cuda_graphs_off == null' "$BATS_TEST_TMPDIR/j"
  "$chat" "$MODEL" --plan --tp 2 | grep -q '^GPU 1 .*a part of all 4 layers, .* of '
  "$B/emulated/zse-bench" "$MODEL" --tp 2 -p 2 -n 1 -r 1 -w 0 --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0] | .device == "emulated 2 x emulated, tensor parallel" and .gpu.tensor_parallel and [.gpu.gpus[].heads] == [2, 2] and .gpu.gpus[0].direct' "$BATS_TEST_TMPDIR/j"
  "$B/emulated/zse-bench" "$MODEL" --tp 2 -p 2 -n 6 -r 1 -w 0 --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].gpu.cuda_graphs | .on and .refused == 0 and .buckets[0].captured == 1 and .buckets[0].replays > 0' "$BATS_TEST_TMPDIR/j"
  while IFS='|' read -r wrong says; do
    # shellcheck disable=SC2086     # words
    run -2 --separate-stderr "$chat" "$MODEL" -p hi $wrong
    [[ "$stderr" == *"$says"* ]]
  done <<'END'
--tp 4|--tp: there is no GPU 3
--tp 0|--tp
--gpus 0,1,2 --tp 2|--gpus names 3 GPUs, expected a multiple of 2
--gpus 0,1 --tp 2 --pp-split 1,3|--pp-split: 2 numbers for 1 stage
--tp 2 --expert-uploads 50|--tp and --expert-uploads exclude each other
--tp 2 --no-gpu-prefill|--tp and --no-gpu-prefill exclude each other
--tp 2 --gpu-prefill-threshold 9|--tp and --gpu-prefill-threshold exclude each other
--tp 2 --device cpu|--tp and --device cpu exclude each other
END
  [ "$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 3 --tp 2 --layer-window 2)" = "$want" ]
  "$chat" "$MODEL" --plan --json --tp 2 --layer-window 2 | jq -e ".fits and .layer_window.kept + .layer_window.slots == 2"
  export ZSE_TEST_DEVICES=4
  o='--gpus 3,1,0,2 --tp 2 --pp-split 3,1'
  # shellcheck disable=SC2086     # words
  [ "$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 3 $o)" = "$want" ]
  # shellcheck disable=SC2086     # words
  "$chat" "$MODEL" --plan --json $o >"$BATS_TEST_TMPDIR/j"
  jq -e '.fits and .tensor_parallel and .gpu_layers == 4 and [.gpus[] | [.index, .first_layer, .layers]] ==
         [[3, 0, 3], [1, 0, 3], [0, 3, 1], [2, 3, 1]]' "$BATS_TEST_TMPDIR/j"
  # shellcheck disable=SC2086     # words
  "$chat" "$MODEL" --plan $o | grep -q '^GPU 1 .*: a part of layers 0 to 2 of 4, '
  # shellcheck disable=SC2086     # words
  run -2 --separate-stderr "$chat" "$MODEL" -p hi $o,1
  [[ "$stderr" == *"--pp-split: 3 numbers for 2 stages"* ]]
  run -1 --separate-stderr "$chat" "$MODEL" -p hi --tp 2 --gpu-layers 2
  [[ "$stderr" == *"--gpu-layers 2 of 4 does not apply"* ]]
}

@test "a window of layers gives the same answer; its plan and its counts are printed; impossible windows are refused" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  chat=$B/emulated/zse-chat bench=$B/emulated/zse-bench
  want=$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 4 --device emulated)
  [ -n "$want" ]
  run --separate-stderr "$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 4 --device emulated --layer-window 2
  [ "$output" = "$want" ]
  [[ "$stderr" == *"the GPU holds 2 of 4 layers; each step uploads "* ]]
  "$chat" "$MODEL" --plan --json --device emulated --layer-window 3 --prefetch 1 >"$BATS_TEST_TMPDIR/j"
  jq -e '.fits and .layer_window.window == 3 and .layer_window.kept == 1 and .layer_window.slots == 2 and .layer_window.prefetch == 1
         and .layer_window.upload_bytes_a_step > 0 and .cuda_graphs_off == "layers are uploaded at every step"
         and .needed_bytes == .weight_bytes + .kv_bytes + .workspace_bytes + .reserve_bytes' "$BATS_TEST_TMPDIR/j"
  "$chat" "$MODEL" --plan --device emulated --layer-window 3 --prefetch 1 | grep -q '^window .*3 layers, 1 of them stay; each step uploads '
  needed=$("$chat" "$MODEL" --plan --json --device emulated --layer-window 1 | jq .needed_bytes)
  "$chat" "$MODEL" --plan --json --device emulated --layer-window 1 --max-device "$needed" | jq -e '.fits and .layer_window.window == 1'
  run -1 "$chat" "$MODEL" --plan --json --device emulated --layer-window 1 --max-device 30MB
  run -1 "$chat" "$MODEL" --plan --json --device emulated --layer-window off --max-device 30MB
  run -1 --separate-stderr "$chat" "$MODEL" -p hi --device emulated --layer-window 3 --max-device 45MB
  [[ "$stderr" == *" for a window of 3 of 4 layers (--layer-window) (weights "*"45.0 MB may be taken"* ]]
  for o in '--moe cpu' '--gpu-experts 2'; do
    # shellcheck disable=SC2086     # words
    run -2 --separate-stderr "$chat" "$MODEL" -p hi --device emulated --layer-window 2 $o
    [[ "$stderr" == *"--layer-window and ${o% 2} exclude each other"* ]]
  done
  "$bench" "$MODEL" --device emulated -p 4 -n 2 -r 1 -w 0 --layer-window sequential:2 --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].gpu | .stream | .window == 2 and .kept == 0 and .strategy == "sequential" and .evictions == .uses - 2
          and .prefetch_hits == .uses and .uses % 4 == 0 and .uploaded_bytes > 0 and .given_back == 0' "$BATS_TEST_TMPDIR/j"
  "$bench" "$MODEL" --device emulated -p 4 -n 2 -r 1 -w 0 --layer-window 2 --prefetch 0 --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].gpu.stream | .kept == 1 and .slots == 1 and .prefetch_hits == 0 and .uses > 0' "$BATS_TEST_TMPDIR/j"
  "$bench" "$MODEL" --device emulated -p 4 -n 2 -r 1 -w 0 --json | jq -se '.[0].gpu.stream == null'
  "$bench" stream "$MODEL" --device emulated -p 4 -n 2 --layer-window sequential:3 --json >"$BATS_TEST_TMPDIR/j"
  jq -e '.layers == 4 and .parts == 4 and .kept == 0 and .slots == 3 and .strategy == "sequential"
         and (.rows | map([.phase, .tokens, .steps, .uses, .evictions])) == [["prompt", 4, 1, 4, 1], ["decode", 2, 2, 4, 4]]
         and .rows[1].prefetch_hits == 4 and .rows[1].bytes > 0' "$BATS_TEST_TMPDIR/j"
  run -1 --separate-stderr "$bench" stream "$MODEL" --device emulated -p 4 -n 2
  [[ "$stderr" == *"--layer-window N makes a window"* ]]
  for wrong in '--layer-window 0' '--layer-window x' '--layer-window sequential:' '--prefetch x' '--max-device 0'; do
    # shellcheck disable=SC2086     # words
    run -2 --separate-stderr "$chat" "$MODEL" -p hi --device emulated $wrong
    [[ "$stderr" == *"${wrong% *}"* ]]
  done
  for needs in '--layer-window 2' '--prefetch 1' '--max-device 1GB'; do
    # shellcheck disable=SC2086     # words
    run -2 --separate-stderr "$chat" "$MODEL" -p hi --device cpu $needs
    [[ "$stderr" == *"${needs% *}: there is no GPU"* ]]
  done
}

@test "ZSE_DIAG=1 prints the layers of a GPU, those of the CPU to its tolerance" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  for d in cpu emulated; do
    ZSE_DIAG=1 "$B/emulated/zse-chat" "$MODEL" -p hi -n 2 --temp 0 --device "$d" 2>"$BATS_TEST_TMPDIR/$d" >/dev/null
  done
  sed -i '/ logits /d' "$BATS_TEST_TMPDIR/cpu"
  [ "$(wc -l <"$BATS_TEST_TMPDIR/cpu")" = 10 ]
  awk '{ sub(/rms=/, "", $4); rms = $4; if ((getline other <want) <= 0) exit 1; split(other, w); sub(/rms=/, "", w[4])
         if ($2 != w[2] || $3 != w[3] || rms > 1.02 * w[4] || rms < .98 * w[4]) exit 1; n++ } END { if (n != 10) exit 1 }' \
    want="$BATS_TEST_TMPDIR/cpu" "$BATS_TEST_TMPDIR/emulated"
}

@test "a kernel that fails ends the answer, and ZSE_DEBUG_SYNC=1 names it" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  ZSE_TEST_FAULT=attn_split:2 run --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --device emulated
  [ "$status" = 1 ]
  [[ "$stderr" == *"ZSE_DEBUG_SYNC=1 names the kernel"* ]]
  ZSE_DEBUG_SYNC=1 ZSE_TEST_FAULT=attn_split:2 run --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --device emulated
  [ "$status" = 1 ] && [[ "$stderr" == *"attn_split"* ]]
}

@test "graphs are counted by size and can be off, with a reason; the answer is the same either way" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  chat=$B/emulated/zse-chat bench=$B/emulated/zse-bench
  want=$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 8 --device emulated --cuda-graphs off)
  [ -n "$want" ]
  [ "$("$chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 8 --device emulated --cuda-graphs on)" = "$want" ]
  "$bench" "$MODEL" --device emulated -p 4 -n 6 -b 3 -r 1 --gpu-layers 3 --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].gpu.cuda_graphs | .on and .off_reason == null and .refused == 0 and ([.buckets[].sequences] == [4]) and .buckets[0].captured == 1 and .buckets[0].replays > 0' "$BATS_TEST_TMPDIR/j"
  "$bench" "$MODEL" --device emulated -p 4 -n 6 -r 1 --cuda-graphs off --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].gpu.cuda_graphs | (.on | not) and .off_reason == "--cuda-graphs off" and .buckets == []' "$BATS_TEST_TMPDIR/j"
  ZSE_DEBUG_SYNC=1 "$chat" "$MODEL" --plan --device emulated | grep -q '^graphs .*off: ZSE_DEBUG_SYNC'
  "$chat" "$MODEL" --plan --device emulated --json | jq -e '.cuda_graphs_off == null'
  run -2 --separate-stderr "$chat" "$MODEL" -p hi --device emulated --cuda-graphs maybe
  [[ "$stderr" == *"'maybe'"* ]]
  run -2 --separate-stderr "$chat" "$MODEL" -p hi --device cpu --cuda-graphs on
  [[ "$stderr" == *"no GPU"* ]]
}

@test "--act fp8 works for fp8 matrices on a device, and is refused otherwise" {
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --device cpu --act fp8
  [[ "$stderr" == *"--act fp8: there is no GPU"* ]]
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  bench=$B/emulated/zse-bench fp8=$BATS_TEST_TMPDIR/fp8.zse
  run -1 --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --device emulated --act fp8
  [[ "$stderr" == *"none of the matrices on the "*" device is fp8 (zse-convert -q fp8 makes them)"* ]]
  zse-convert models/tiny -q fp8 -o "$fp8" >/dev/null 2>&1
  run -1 --separate-stderr "$B/emulated/zse-chat" "$fp8" -p hi --device emulated --act fp8 --strict
  [[ "$stderr" == *"--strict multiplies all tokens alike"* ]]
  # 600 tokens at a time: steps of more than 128
  for act in f16 fp8; do
    "$bench" perplexity "$fp8" LICENSE --window 256 --windows 1 --device emulated --act $act --json >"$BATS_TEST_TMPDIR/$act"
  done
  jq -se '.[0].perplexity != .[1].perplexity and (.[1].perplexity / .[0].perplexity - 1 | fabs) < 0.1' "$BATS_TEST_TMPDIR"/f16 "$BATS_TEST_TMPDIR"/fp8
}

@test "--act int8 works for matrices with one scale per row on a device, and is refused otherwise" {
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --device cpu --act int8
  [[ "$stderr" == *"--act int8: there is no GPU"* ]]
  run -2 --separate-stderr zse-chat "$MODEL" -p hi --act int4
  [[ "$stderr" == *"'int4', expected f16, int8 or fp8"* ]]
  run -2 --separate-stderr zse-bench "$MODEL" --exact --act f16
  [[ "$stderr" == *"--exact keeps activations as f32"* ]]
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  chat=$B/emulated/zse-chat bench=$B/emulated/zse-bench rows=$BATS_TEST_TMPDIR/rows.zse
  run -1 --separate-stderr "$chat" "$MODEL" -p hi --device emulated --act int8
  [ -z "$output" ]
  [[ "$stderr" == *"one scale a row (zse-convert -q int8 --group-size row makes them)"* ]]
  run -2 --separate-stderr "$chat" "$MODEL" -p hi --device emulated --gpu-layers 0 --act int8
  run -1 --separate-stderr "$B/emulated/zse-serve" "$MODEL" --device emulated --port 0 --ctx 64 --act int8
  [[ "$stderr" == *"--act int8: none of the matrices"* ]]
  run -2 --separate-stderr "$bench" gpu --device emulated --act int8
  [[ "$stderr" == *"--act does not belong to zse-bench gpu"* ]]
  zse-convert models/tiny -q int8 --group-size row -o "$rows" >/dev/null 2>&1
  want=$("$chat" "$rows" -p 'What is the capital of France?' --temp 0 --max-tokens 6 --device emulated --act f16)
  [ -n "$want" ]
  [ "$("$chat" "$rows" -p 'What is the capital of France?' --temp 0 --max-tokens 6 --device emulated --act int8 --strict)" = "$want" ]
  "$bench" "$rows" --device emulated --act int8 -p 20 -n 2 -r 1 -w 0 --json | jq -se '.[0].device | endswith(", int8 activations")'
}

@test "--cache-weights gives the same answer and prints counts; where it has no effect it is refused" {
  [ -x "$B/emulated/zse-serve" ] || skip "the emulated programs are not built (make emulated)"
  chat=$B/emulated/zse-chat packed=$BATS_TEST_TMPDIR/packed.zse prompt=$(seq -s ' ' 80)
  zse-convert models/tiny -q nl4 -o "$packed" >/dev/null 2>&1
  want=$("$chat" "$packed" -p "$prompt" --temp 0 --max-tokens 4 --device emulated)
  [ -n "$want" ]
  [ "$("$chat" "$packed" -p "$prompt" --temp 0 --max-tokens 4 --device emulated --cache-weights on)" = "$want" ]
  "$chat" "$packed" --plan --json --device emulated --cache-weights on >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0] | .fits and .cached_bytes > 0 and .cache_weights_off == null and .needed_bytes == .weight_bytes + .cached_bytes + .kv_bytes + .workspace_bytes + .reserve_bytes' "$BATS_TEST_TMPDIR/j"
  ZSE_TEST_DEVICE_MEMORY=1000000000 "$chat" "$packed" --plan --json --device emulated --cache-weights auto >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0] | .fits and .cached_bytes == 0 and (.cache_weights_off | startswith("auto: "))' "$BATS_TEST_TMPDIR/j"
  "$B/emulated/zse-bench" "$packed" --device emulated -p 4 -n 1 -r 1 --cache-weights auto --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].gpu | .cached_bytes > 0 and .cache_weights_off == null' "$BATS_TEST_TMPDIR/j"
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  mkfifo "$BATS_TEST_TMPDIR/pipe"
  "$B/emulated/zse-serve" "$packed" --device emulated --port 0 --ctx 64 --cache-weights on >"$BATS_TEST_TMPDIR/pipe" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
  pid=$!
  read -r _ _ url <"$BATS_TEST_TMPDIR/pipe"
  await listens "$url"
  curl -s --retry 20 --retry-delay 0 --retry-all-errors "$url/v1/models" >/dev/null
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/v1/completions" -d '{"prompt":"a","max_tokens":1}')" = 200 ]
  curl -s "$url/api/stats/gpu" >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].models[0] | .cached_bytes > 0 and .cache_weights_off == null' "$BATS_TEST_TMPDIR/j"
  kill -TERM $pid
  wait $pid
  grep -q 'f16 weight cache: [0-9.]* MB; graphs on$' "$BATS_TEST_TMPDIR/err"
  for wrong in '--device cpu' '--device emulated --strict' '--device emulated --exact'; do
    # shellcheck disable=SC2086     # words
    run -2 --separate-stderr "$chat" "$packed" -p hi $wrong --cache-weights on
    [[ "$stderr" == *"--cache-weights on: "* ]]
  done
  run -2 --separate-stderr "$chat" "$packed" -p hi --device emulated --cache-weights perhaps
  run -1 --separate-stderr "$chat" "$MODEL" -p hi --device emulated --cache-weights on
  [[ "$stderr" == *"no weights are packed"* ]]
}

@test "coldstart on a device prints the device's own phases" {
  [ -x "$B/emulated/zse-bench" ] || skip "the emulated programs are not built (make emulated)"
  "$B/emulated/zse-bench" coldstart "$MODEL" --device emulated -p 2 -r 1 --json |
    jq -e '.warm.gpu | .bytes > 0 and .copy_s > 0 and .overlap_s >= 0 and .after_context_s >= .copy_s and .over_least > 0 and has("context_s")'
  "$B/emulated/zse-bench" coldstart "$MODEL" --device emulated -p 2 -r 1 --cuda-graphs off --cache-weights auto --json >"$BATS_TEST_TMPDIR/j"
  jq -se '.[0].warm.gpu.bytes > 0' "$BATS_TEST_TMPDIR/j"
}

@test "a server with a device prints figures; a lost device is status 500, and works after the model is loaded again" {
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
  curl -s "$url/api/stats/gpu" | jq -e '.models | length == 1 and .[0].device == "emulated:0" and .[0].gpu_layers == 4 and .[0].weight_bytes > 0 and (.[0].lost | not) and .[0].cuda_graphs.on'
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

@test "a server on two devices answers six requests at once as one device does" {
  [ -x "$B/emulated/zse-serve" ] || skip "the emulated programs are not built (make emulated)"
  export ZSE_HOME=$BATS_TEST_TMPDIR/home ZSE_TEST_DEVICES=2
  ask() { curl -sf "$url/v1/completions" -d "{\"prompt\":\"Question $1: what\",\"max_tokens\":3,\"temperature\":0,\"ignore_eos\":true}" | jq -c '.choices[0].text'; }
  for o in '--device emulated' '--gpus 0,1 --pp 3,1' '--tp 2'; do
    rm -f "$BATS_TEST_TMPDIR/pipe" && mkfifo "$BATS_TEST_TMPDIR/pipe"
    # shellcheck disable=SC2086     # words
    "$B/emulated/zse-serve" "$MODEL" $o --port 0 --ctx 64 --max-seqs 6 >"$BATS_TEST_TMPDIR/pipe" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
    pid=$!
    read -r _ _ url <"$BATS_TEST_TMPDIR/pipe"
    await listens "$url"
    asked=()
    for i in 1 2 3 4 5 6; do
      ask "$i" >"$BATS_TEST_TMPDIR/${o// /}.$i" 3>&- &
      asked+=($!)
    done
    wait "${asked[@]}"
    if [ "$o" != '--device emulated' ]; then
      curl -s "$url/api/stats/gpu" >"$BATS_TEST_TMPDIR/j"
      jq -se --arg o "$o" '.[0].models[0] | [.gpus[].layers] == (if .tensor_parallel then [4, 4] else [3, 1] end) and .tensor_parallel == ($o == "--tp 2")
             and .device == "emulated:0,1"' "$BATS_TEST_TMPDIR/j"
    fi
    kill -TERM $pid
    wait $pid
    for i in 1 2 3 4 5 6; do
      [ -s "$BATS_TEST_TMPDIR/${o// /}.$i" ]
      diff "$BATS_TEST_TMPDIR/--deviceemulated.$i" "$BATS_TEST_TMPDIR/${o// /}.$i"
    done
  done
}

@test "keys and values fill the rest of a device's memory; too little memory is refused with numbers; the plan says what is stored where" {
  [ -x "$B/emulated/zse-serve" ] || skip "the emulated programs are not built (make emulated)"
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  blocks=()
  for memory in 60 80 4000; do
    rm -f "$BATS_TEST_TMPDIR/pipe" && mkfifo "$BATS_TEST_TMPDIR/pipe"
    ZSE_TEST_DEVICE_MEMORY=${memory}000000 "$B/emulated/zse-serve" "$MODEL" --device emulated --port 0 --ctx 2048 >"$BATS_TEST_TMPDIR/pipe" 2>"$BATS_TEST_TMPDIR/err" 3>&- &
    pid=$!
    read -r _ _ url <"$BATS_TEST_TMPDIR/pipe"
    await listens "$url"
    [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/v1/completions" -d '{"prompt":"a","max_tokens":2,"temperature":0}')" = 200 ]
    curl -s "$url/api/stats/gpu" >"$BATS_TEST_TMPDIR/j"
    jq -se --argjson m "${memory}000000" '.[0].models[0] | .total_memory_bytes == $m and .weight_bytes + .kv_bytes + .workspace_bytes + .reserve_bytes <= $m' "$BATS_TEST_TMPDIR/j"
    kill -TERM $pid
    wait $pid
    line=$(grep -o 'on emulated.*' "$BATS_TEST_TMPDIR/err")
    [[ "$line" =~ ^"on emulated emulated; attention: all on the device; keys and values: "([0-9]+)" blocks of 16 tokens, "[0-9.]+" K tokens, "[0-9.]+" MB; graphs on"$ ]]
    blocks+=("${BASH_REMATCH[1]}")
  done
  [ "${blocks[0]}" -ge 128 ]
  [ "${blocks[0]}" -lt "${blocks[1]}" ]
  [ "${blocks[1]}" -lt "${blocks[2]}" ]
  [ "${blocks[2]}" = $((32 * 2048 / 16)) ]
  ZSE_TEST_DEVICE_MEMORY=40000000 run -1 --separate-stderr "$B/emulated/zse-serve" "$MODEL" --device emulated --port 0 --ctx 2048
  [[ "$stderr" == *"needs "*"keys, values and states "*" but 40.0 MB are free"* ]]
  run -0 --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --max-tokens 1 --device emulated --gpu-layers 3 --ctx 64 --cuda-graphs \
    off --verbose
  [[ "$stderr" == *"on emulated emulated, 3 of 4 layers; attention: 3 of 4 layers on the device, the others on the processor; keys and values: 1 block of 16 tokens, "*" MB; graphs off: --cuda-graphs off"* ]]
}

@test "zse-bench gpu prints every kernel with its bytes and shares" {
  [ -x "$B/emulated/zse-bench" ] || skip "the emulated programs are not built (make emulated)"
  "$B/emulated/zse-bench" gpu --device emulated --shape 96x64 --tokens 1,20 -p 40 -r 1 --json >"$BATS_TEST_TMPDIR/j"
  jq -e '.device == "emulated" and .heads == 2 and .context == 40 and .limits.copy_bytes_per_s > 0' "$BATS_TEST_TMPDIR/j"
  jq -e '[.rows[].kernel] | unique == (["matvec","matvec_mlp","matvec_int8","matmul_split","matmul","matmul_int8","matmul_f32","norm","act_mul","act_int8","embed","attn_decode","attn_prefill","latent_decode","attn_latent","rope_table","prepare","sample"] | sort)' "$BATS_TEST_TMPDIR/j"
  jq -e '.rows | all(.seconds > 0 and .bytes > 0 and .read_share > 0 and (.bytes_per_s * .seconds / .bytes - 1 | fabs) < 1e-6 and .mma_share >= 0)' "$BATS_TEST_TMPDIR/j"
  jq -e '[.rows[] | select(.kernel == "attn_latent" or .kernel == "attn_prefill") | .flop] == [20 * 21 * 2 * 64, 20 * 21 * 2 * 1088]' "$BATS_TEST_TMPDIR/j"
  jq -e '.rows[] | select(.kernel == "matmul" and .type == "f16") | .flop == 2 * 96 * 64 * 20 and .bytes == 96 * 64 * 2 + 20 * (2 * 64 + 4 * 96)' "$BATS_TEST_TMPDIR/j"
  for key in $(jq -r '[paths | map(select(type == "string")) | last | select(. != null)] | unique[]' "$BATS_TEST_TMPDIR/j"); do
    grep -qw "$key" man/zse-bench.1 || { echo "the man page has no word on $key"; return 1; }
  done
  run -1 "$B/emulated/zse-bench" gpu --device emulated:1
  run -2 "$B/emulated/zse-bench" gpu --device emulated --shape 96x50
  run -2 "$B/emulated/zse-bench" gpu --device cpu
}

@test "zse-bench gpu --autotune prints all kernels for a product, the fastest and the engine's choice, which ZSE_WGMMA=0 changes" {
  [ -x "$B/emulated/zse-bench" ] || skip "the emulated programs are not built (make emulated)"
  tune=("$B/emulated/zse-bench" gpu --device emulated --shape 128x64 -r 1 --autotune)
  "${tune[@]}" --tokens 1,16,17,129 --json >"$BATS_TEST_TMPDIR/j"
  both='["matmul","matvec"]' some='["matmul","matmul_split"]' many='["matmul"]' hopper='["matmul","matmul_hopper"]'
  jq -e "[.rows[] | select(.type == \"nl4\")] | group_by(.tokens) | map([.[].kernel] | sort) == [$both, $both, $some, $hopper]" "$BATS_TEST_TMPDIR/j"
  jq -e "[.rows[] | select(.type == \"nf4\" and .tokens == 129).kernel] == $many" "$BATS_TEST_TMPDIR/j"
  jq -e '.rows | group_by([.type, .tokens]) | length == 24 and all((map(select(.taken)) | length == 1) and ((map(select(.fastest)) | map(.seconds)) == [map(.seconds) | min]))' "$BATS_TEST_TMPDIR/j"
  jq -e '.rows | all(.taken == (.kernel == if .tokens <= 16 then "matvec" elif .tokens <= 128 then "matmul_split" elif .type != "nf4" then "matmul_hopper" else "matmul" end))' "$BATS_TEST_TMPDIR/j"
  ZSE_WGMMA=0 "${tune[@]}" --tokens 129 --json | jq -e '[.rows[] | select(.taken) | .kernel] | length == 6 and all(. == "matmul")'
  run -0 "${tune[@]}" --tokens 1,17
  [ "$(grep -cE '^[a-z0-9]+ +[0-9]+  best mat[a-z_]+, the engine takes (it|mat[a-z_]+: [1-9][0-9]*\.[0-9]{2}x)$' <<<"$output")" = 12 ]
  [[ "$output" != *attn_decode* ]]
  run -2 --separate-stderr "${tune[@]}" -p 40
  [[ "$stderr" == *"gpu --autotune: "* ]]
  for wrong in --strict --exact '--cuda-graphs off' '--cache-weights auto'; do
    run -2 --separate-stderr "$B/emulated/zse-bench" gpu --device emulated $wrong
    [[ "$stderr" == *"gpu: measures kernels without a model"* ]]
  done
  run -2 zse-bench matmul --autotune
}

@test "zse-bench gpu --model predicts each kernel without a GPU: launches of a step, no time below the roof" {
  predict() { zse-bench gpu --model "$@" --json; }
  predict h200 Llama-3.1-8B >"$BATS_TEST_TMPDIR/j"
  jq -e '.predicted and .gpu == "h200" and .context == 512 and .launches == 165 and ([.rows[].times] | add) == 165 and (has("uncounted") | not)' "$BATS_TEST_TMPDIR/j"
  jq -e '.rows | all(.seconds >= .roof_seconds and .seconds > 0 and (.limit | test("^(launch|waits|memory|L2|issue|tensor|shared|exp|loads)$")))' "$BATS_TEST_TMPDIR/j"
  jq -e '(.seconds / ([.rows[].seconds] | add) - 1 | fabs) < 1e-8 and .bytes > 4e9 and .bytes < 5e9' "$BATS_TEST_TMPDIR/j"
  jq -e '[.rows[] | select(.kernel == "matvec" and .use == "down").times] == [32]' "$BATS_TEST_TMPDIR/j"
  # one_token is one launch: its rows are the stages of the layers
  predict h200 Qwen3-30B-A3B | jq -e '.launches == ([.rows[] | select(.kernel != "one_token").times] | add) + 1
    and ([.rows[] | select(.kernel == "one_token" and .use == "qkv").times] == [48])'
  jq -e '.figures | map(.figure) == ["read_share", "batch_17", "batch_64", "prefill_linear", "prefill_attention_tflops", "launches"]
    and all(.value > 0 and .holds == (if .at_most then .value <= .aim else .value >= .aim end) and .loss.seconds > .loss.roof_seconds)
    and (.[0].value < 1 and .[2].value > .[1].value and .[2].value > 1 and .[3].value < 1)' "$BATS_TEST_TMPDIR/j"
  share=$(jq '.figures[0].value' "$BATS_TEST_TMPDIR/j")
  jq -e --argjson s "$share" '(.bytes / .seconds / .memory_bytes_per_s / $s - 1 | fabs) < 1e-6' "$BATS_TEST_TMPDIR/j"
  for key in $(jq -r '[paths | map(select(type == "string")) | last | select(. != null)] | unique[]' "$BATS_TEST_TMPDIR/j"); do
    grep -qw "$key" man/zse-bench.1 || { echo "the man page has no word on $key"; return 1; }
  done
  # a GPU with less bandwidth is slower, a longer context, too; wgmma helps with more tokens
  s=$(jq .seconds "$BATS_TEST_TMPDIR/j")
  predict 4090 Llama-3.1-8B | jq -e --argjson s "$s" '.seconds > $s'
  predict h200 Llama-3.1-8B -p 8192 | jq -e --argjson s "$s" '.seconds > $s and .context == 8192'
  ZSE_WGMMA=0 predict h200 Llama-3.1-8B >"$BATS_TEST_TMPDIR/w"
  jq -es '.[0].seconds == .[1].seconds and .[1].figures[3].value < .[0].figures[3].value' "$BATS_TEST_TMPDIR/j" "$BATS_TEST_TMPDIR/w"
}

@test "zse-bench gpu --model prints figures of three shapes, takes files, and refuses what it has no counts for" {
  for gpu in h200 h100 a100 4090; do
    zse-bench gpu --model $gpu --json | jq -e '.figures | length == 8 and ([.[].model] | unique) == ["Llama-3.1-8B", "Qwen2.5-32B", "Qwen3-30B-A3B"] and all(.[]; .value > 0)'
  done
  run -0 zse-bench gpu --model a100 Qwen2.5-0.5B -q int8
  # an A100 cannot overlap launches
  [[ "$output" == *"predicted from counts and constants, not measured"*"one_token"*"a token"*" launches "*"tokens/s"*"launches a token"*"instructions of i8 are not counted for every kernel"* ]]
  zse-bench gpu --model h100 "$MODEL" --json | jq -e '.launches > 9 and .seconds > 0'
  # the types that zse-convert chooses by default are mixed, and one launch takes them
  m="$BATS_TEST_TMPDIR/default.zse"
  run -0 zse-convert models/tiny -o "$m" --quality fast
  [[ "$output" == *"to m6"*"to m5"*"to nl4"* ]]
  run -0 zse-bench gpu --model a100 "$m"
  [[ "$output" == *"one_token"* ]]
  run -0 zse-bench gpu --model h100 "$m"
  [[ "$output" != *"one_token"* ]]
  run -1 --separate-stderr zse-bench gpu --model h200 DeepSeek-V2-Lite
  [[ "$stderr" == *"deepseek_v2: the model of time has no counts for layers without plain attention"* ]]
  run -2 --separate-stderr zse-bench gpu --model h900
  [[ "$stderr" == *"'h900', expected h200, h100, 4090 or a100"* ]]
  for wrong in '-r 3' '--shape 64x64' '--tokens 1' --autotune; do
    run -2 --separate-stderr zse-bench gpu --model h200 $wrong
    [[ "$stderr" == *"gpu --model: predicts, so ${wrong%% *} does not apply"* ]]
  done
  run -2 --separate-stderr zse-bench gpu "$MODEL" --device emulated
}

@test "gpu-check runs with the emulated programs" {
  [ -x "$B/emulated/zse-bench" ] || skip "the emulated programs are not built (make emulated)"
  r=$BATS_TEST_TMPDIR/results
  run -0 env -u MAKEFLAGS scripts/gpu-check --device emulated --only kernels,tiny,int8,fp8,memcheck --bundle "$BATS_TEST_TMPDIR/all.tar.gz" "$r"
  [[ "$output" == *"matvec nl4 1: "*"tiny-batch2: decode "*" tokens/s "*"ok "*kernels*"ok "*tiny*"skipped "*memcheck* ]]
  jq -e '.gpu == "emulated" and (.failed | not) and ([.parts[] | .part + " " + .status] == ["kernels ok", "tiny ok", "int8 ok", "fp8 ok", "memcheck skipped"])' "$r/emulated-summary.json"
  for f in "$r"/*.json; do jq -e . "$f" >/dev/null || { echo "$f"; return 1; }; done
  [ "$(tar -tzf "$BATS_TEST_TMPDIR/all.tar.gz" | grep -c json)" -ge 6 ]
  GPU_CHECK_LIMIT=0 run -0 scripts/gpu-check --device emulated --only kernels "$r"
  [[ "$output" == *skipped*kernels*"no time is left"* ]]
}

@test "every planted fault of the GPU code still finds its place in the source" {
  run -0 tests/gpu/mutations --match
}

@test "gpu-check says what it needs" {
  run -2 scripts/gpu-check --device tpu
  run -2 scripts/gpu-check --unknown
  run -2 scripts/gpu-check --only
  command -v nvidia-smi >/dev/null && skip "this machine has a GPU"
  run -1 scripts/gpu-check
  [[ "$output" == *nvidia-smi* ]]
}

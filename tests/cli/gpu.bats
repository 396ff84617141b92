# gpu.bats - --device: what is refused and why, and the programs with the emulated device (make emulated).
bats_require_minimum_version 1.5.0

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export MODEL="$BATS_FILE_TMPDIR/tiny.zse"
  zse-convert models/tiny -q bf16 -o "$MODEL" >/dev/null 2>&1
}

@test "--device cuda without a GPU says why not" {
  [ ! -e /proc/driver/nvidia/version ] || skip "this machine has a GPU"
  run --separate-stderr zse-chat "$MODEL" -p hi --device cuda
  [ "$status" = 1 ] && [ -z "$output" ]
  [[ "$stderr" == *"no CUDA engine"* || "$stderr" == *"no NVIDIA driver"* ]]
  ZSE_DEVICE=cuda:1 run --separate-stderr zse-bench speed "$MODEL"
  [ "$status" = 1 ]
  [[ "$stderr" == *"no CUDA engine"* || "$stderr" == *"no NVIDIA driver"* ]]
}

@test "devices that are none are wrong usage" {
  for d in tpu cuda2 emulate cuda0; do
    run -2 --separate-stderr zse-chat "$MODEL" -p hi --device "$d"
    [ -z "$output" ] && [[ "$stderr" == *"'$d'"* ]]
  done
  run -1 --separate-stderr zse-bench decode "$MODEL" --device cuda
}

@test "the emulated device answers as the processor does" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  want=$(zse-chat "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 6 --exact --device cpu)
  [ -n "$want" ]
  [ "$("$B/emulated/zse-chat" "$MODEL" -p 'Once upon a time' --temp 0 --max-tokens 6 --exact --device emulated)" = "$want" ]
  run --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --device emulated:1
  [ "$status" = 1 ] && [[ "$stderr" == *"emulated:1"* ]]
  run --separate-stderr "$B/emulated/zse-chat" "$MODEL" -p hi --device cuda
  [ "$status" = 1 ] && [[ "$stderr" == *"emulates a GPU"* ]]
}

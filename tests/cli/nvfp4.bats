# nvfp4.bats - checkpoints in NVFP4 as compressed-tensors and ModelOpt store them, made by
# tests/lib/nvfp4.py: every value is kept, and the processor and the emulated device give the same
# answers.
bats_require_minimum_version 1.5.0

setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  T=$BATS_TEST_TMPDIR
}

# make KIND: make the checkpoint $T/KIND, the expected values of its matrices in $T/KIND-want, and
# the file $T/KIND.zse
make() {
  python3 -S tests/lib/nvfp4.py "$1" models/tiny "$T/$1" "$T/$1-want"
  run -0 --separate-stderr zse-convert "$T/$1" -o "$T/$1.zse" --json
  [ "$(jq -c '[.types[] | select(.source_type == "NVFP4")] | map([.type, .tensors, .exact])' <<<"$output")" = '[["nvfp4",28,true]]' ]
}
# kept KIND: the converted matrices have exactly the values of the checkpoint.
kept() {
  make "$1"
  for want in "$T/$1-want"/*; do
    name=${want##*/}
    zse-info --dump-tensor "$name" -o "$T/got" "$T/$1.zse"
    cmp "$T/got" "$want"
  done
}

@test "a compressed-tensors checkpoint keeps every value" {
  kept ct
  run -0 zse-info -t "$T/ct.zse"
  [[ "$output" == *"nvfp4"* ]]
  [[ "$output" != *"rounded anew"* ]]
}

@test "NVFP4 on a device gives the processor's answer" {
  [ -x "$B/emulated/zse-chat" ] || skip "the emulated programs are not built (make emulated)"
  make ct
  zse-chat "$T/ct.zse" -p 'Once upon a time' --temp 0 --max-tokens 12 >"$T/cpu"
  "$B/emulated/zse-chat" "$T/ct.zse" --device emulated -p 'Once upon a time' --temp 0 --max-tokens 12 >"$T/gpu"
  [ -s "$T/cpu" ]
  cmp "$T/cpu" "$T/gpu"
}

@test "a ModelOpt checkpoint keeps every value, whichever file says how it is quantized" {
  kept modelopt
  kept modelopt-old
  cmp "$T/modelopt-want/model.layers.0.mlp.up_proj.weight" "$T/modelopt-old-want/model.layers.0.mlp.up_proj.weight"
}

@test "-q nvfp4 makes a file that verifies and answers" {
  for quality in fast good; do
    zse-convert models/tiny -o "$T/m.zse" -q nvfp4 --quality $quality --force
    zse-info --verify "$T/m.zse"
  done
  run -0 zse-chat "$T/m.zse" -p 'Once upon a time' --temp 0 --max-tokens 8
  [ -n "$output" ]
}

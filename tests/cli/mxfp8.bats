# mxfp8.bats - checkpoints in MXFP8 as compressed-tensors, ModelOpt and the method mxfp8 store them,
# made by tests/lib/mxfp8.py: every value is kept, and the logits are those of the values.
bats_require_minimum_version 1.5.0

setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  T=$BATS_TEST_TMPDIR
}

# make KIND: make the checkpoint $T/KIND, the same with decoded values $T/KIND-plain, the expected
# values of its matrices in $T/KIND-want, and the file $T/KIND.zse.
make() {
  python3 -BS tests/lib/mxfp8.py "$1" models/tiny "$T/$1" "$T/$1-plain" "$T/$1-want"
  run -0 --separate-stderr zse-convert "$T/$1" -o "$T/$1.zse" --json
  [ "$(jq -c '[.types[] | select(.source_type == "MXFP8")] | map([.type, .tensors, .exact])' <<<"$output")" = '[["mxfp8",28,true]]' ]
}

@test "the logits of a compressed-tensors checkpoint are those of its values, and it keeps every value" {
  make ct
  for want in "$T/ct-want"/*; do
    name=${want##*/}
    zse-info --dump-tensor "$name" -o "$T/got" "$T/ct.zse"
    cmp "$T/got" "$want"
  done
  run -0 zse-info -t "$T/ct.zse"
  [[ "$output" == *"mxfp8"* ]]
  [[ "$output" != *"rounded anew"* ]]
  zse-convert "$T/ct-plain" -o "$T/plain.zse" -q bf16
  zse-convert "$T/ct" -o "$T/ct.zse" -q keep --force    # the embedding stays bf16
  ids='84 104 101 32 99 97 116 32 115 97 116 32 111 110'
  for kernels in ref auto; do
    set -- --ids "$ids"
    [ "$kernels" = auto ] || set -- "$@" --kernels ref
    zse-bench logits "$T/plain.zse" "$@" -o "$T/want"
    zse-bench logits "$T/ct.zse" "$@" -o "$T/got"
    python3 -S - "$T/want" "$T/got" <<'END'
import array, sys
want, got = (array.array('f', open(name, 'rb').read()) for name in sys.argv[1:])
assert len(want) == len(got) > 1000
off, size = max(abs(a - b) for a, b in zip(want, got)), max(map(abs, want))
assert off <= 1e-4 * size, (off, size)
END
  done
}

@test "ModelOpt and the method mxfp8 describe the same checkpoint" {
  make modelopt
  make modelopt-old
  make blocks
  for kind in modelopt modelopt-old blocks; do
    zse-info --dump-tensor model.layers.0.mlp.up_proj.weight -o "$T/got" "$T/$kind.zse"
    cmp "$T/got" "$T/$kind-want/model.layers.0.mlp.up_proj.weight"
  done
}

@test "-q mxfp8 makes a file that verifies and answers" {
  for quality in fast good; do
    zse-convert models/tiny -o "$T/m.zse" -q mxfp8 --quality $quality --force
    zse-info --verify "$T/m.zse"
  done
  run -0 zse-chat "$T/m.zse" -p 'Once upon a time' --temp 0 --max-tokens 8
  [ -n "$output" ]
}

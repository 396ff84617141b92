# arm64.bats - programs and unit tests of an ARM64 build, $B, in qemu's emulation of processors
# without dot products of bytes (cortex-a72), with them (neoverse-n1), and with products of matrices
# (max).  scripts/check runs it; by hand: B=$PWD/build/arm64 bats tests/cross/arm64.bats
bats_require_minimum_version 1.5.0

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export T=$BATS_FILE_TMPDIR ZSE_EMULATED=1
  on cortex-a72 zse-convert models/tiny -q nl4 --quality fast --threads 1 -o "$T/tiny.zse" >/dev/null
}
setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }

# on PROCESSOR PROGRAM ARGUMENT...
on() {
  local cpu=$1
  [ "$cpu" != max ] || cpu=max,pauth-impdef=on         # quicker to emulate
  timeout 900 qemu-aarch64 -cpu "$cpu" "$B/$2" "${@:3}"
}
# unit PROCESSOR NAME: run a unit test; its output is shown if it fails
unit() { on "$1" "tests/unit/$2" >"$T/$2.$1" 2>&1 || { tail -n 30 "$T/$2.$1"; return 1; }; }
asked() { on "$1" zse-chat "$T/tiny.zse" --temp 0 --threads 2 -p "What is 2+2?" "${@:2}"; }

@test "a converted file is the same as one written by this machine's build" {
  [ -x "$B/../zse-convert" ] || skip "no build for this machine beside $B"
  "$B/../zse-convert" models/tiny -q nl4 --quality fast --threads 1 -o "$T/here.zse" >/dev/null
  cmp "$T/tiny.zse" "$T/here.zse"
}

@test "each processor answers with its fastest kernels, by pages of 4, 16 and 64 KB" {
  for cpu in cortex-a72 neoverse-n1 max; do
    [ "$(asked $cpu)" = "2 + 2 = 4" ]
  done
  for page in 16384 65536; do
    [ "$(qemu-aarch64 -strace -p $page -cpu neoverse-n1 "$B/zse-chat" "$T/tiny.zse" --temp 0 -p "What is 2+2?" 2>"$T/calls")" = "2 + 2 = 4" ]
  done
  # qemu accepts addresses and offsets inside pages, but a kernel refuses them.  Another thread's
  # call may stand between a call and its result, so no parenthesis may follow before the call's
  # own.
  grep -qE 'mmap\(NULL,[^()]*,0\) = 0x[0-9a-f]*0000' "$T/calls"
  run ! grep -E -e '(map|protect|advise)\(0x[0-9a-f]*[1-9a-f][0-9a-f]{0,3},' \
    -e 'mmap\([^()]*,0x[0-9a-f]*[1-9a-f][0-9a-f]{0,3}\)' "$T/calls"
}

@test "kernels are chosen by name, and refused where the processor lacks their instructions" {
  [ "$(asked max --kernels ref)" = "2 + 2 = 4" ]           # the tests below run the other sets
  for pair in cortex-a72:dotprod cortex-a72:i8mm neoverse-n1:i8mm; do
    run -1 --separate-stderr asked "${pair%:*}" --kernels "${pair#*:}"
    [[ $stderr == *"kernels '${pair#*:}': this processor lacks the instructions they need"* ]]
  done
  run -1 --separate-stderr asked max --kernels avx2
  [[ $stderr == *"no such set; there are i8mm, dotprod, neon, ref"* ]]
}

@test "every set draws the tokens that are drawn here" {
  [ -x "$B/../zse-chat" ] || skip "no build for this machine beside $B"
  drawn=(--temp 1 --seed 7 -n 30 --ignore-eos --threads 2 -p "Tell me about it")
  here=$("$B/../zse-chat" "$T/tiny.zse" "${drawn[@]}")
  for set in neon dotprod i8mm; do
    [ "$(on max zse-chat "$T/tiny.zse" "${drawn[@]}" --kernels $set)" = "$here" ]
  done
}

@test "matrix products of every set" { unit max t-kernels-matmul; }
@test "integer products have the bits of this machine in every set" {
  [ -x "$B/../tests/bench/bits" ] || skip "no build for this machine beside $B"
  "$B/../tests/bench/bits" >"$T/bits.here"
  for set in neon dotprod i8mm; do
    on max tests/bench/bits $set >"$T/bits.$set"
    diff "$T/bits.here" "$T/bits.$set"
  done
}
@test "operations on rows" { unit cortex-a72 t-kernels-rows; }
@test "attention" { unit cortex-a72 t-kernels-attention; }

@test "whole models against the logits of transformers" {
  [ -e "$ZSE_ORACLES/models/hf" ] || skip "no oracles (set ZSE_ORACLES)"
  for pair in cortex-a72:gemma3 neoverse-n1:llama max:qwen3; do
    ZSE_TEST_FOLDER=${pair#*:} unit "${pair%:*}" t-forward
  done
}

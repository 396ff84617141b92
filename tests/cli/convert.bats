# convert.bats - zse-convert: types, streams, refusals, interruptions; with the tiny model.
bats_require_minimum_version 1.5.0

setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  T=$BATS_TEST_TMPDIR
}
convert() { zse-convert models/tiny "$@"; }
field() { python3 -S -c 'import json,sys; v=json.load(sys.stdin)
for k in sys.argv[1].split("."): v=v[int(k) if k.isdigit() else k]
print(v if isinstance(v,str) else json.dumps(v))' "$1"; }

@test "every type makes a file that verifies and answers" {
  types='nl4 int4 int8 nf4 fp8 f16 bf16 f32 keep'
  [ -z "${ZSE_SANITIZED-}" ] || types='fp8 keep'  # t-convert makes the others
  for type in $types; do
    convert -o "$T/m.zse" -q $type --quality fast >"$T/out"
    grep -q "$type" "$T/out"
    zse-info "$T/m.zse" --verify >/dev/null
  done
  types='nl4 int8 f32'
  # under a sanitizer only mixed is tested, because it includes nl4's measurements
  [ -z "${ZSE_SANITIZED-}" ] || types=
  for type in $types; do
    convert -o "$T/m.zse" -q $type >/dev/null
    [ "$(zse-chat "$T/m.zse" --temp 0 -p "What is 2+2?")" = "2 + 2 = 4" ]
  done
  convert -o "$T/m.zse" -q mixed --target-memory 700kB >/dev/null
  [ "$(zse-chat "$T/m.zse" --temp 0 -p "What is the capital of France?")" = "The capital of France is Paris." ]
}

# bats test_tags=plain
@test "--quality best makes a file that answers, the same file every time" {
  size=10000
  [ -z "${ZSE_SANITIZED-}" ] || size=6000
  cat README.md libcommon/convert/convert.c | head -c $size >"$T/text"
  convert -o "$T/a.zse" --quality best --calibration "$T/text" --threads 2 >/dev/null
  if [ -z "${ZSE_SANITIZED-}" ]; then               # t-convert compares files, too
    convert -o "$T/b.zse" --quality best --calibration "$T/text" --threads 1 >/dev/null
    cmp "$T/a.zse" "$T/b.zse"
  fi
  [ "$(zse-chat "$T/a.zse" --temp 0 -p "What is 2+2?")" = "2 + 2 = 4" ]
}

@test "--json has sizes, times, a row for each pair of types, and all tensors on request" {
  run --separate-stderr convert -o "$T/m.zse" --json --tensors --quality fast
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  echo "$output" >"$T/json"
  [ "$(field type <"$T/json")" = nl4 ]
  [ "$(field quality <"$T/json")" = fast ]
  [ "$(field file_bytes <"$T/json")" = "$(stat -c %s "$T/m.zse")" ]
  [ "$(field types.0.tensors <"$T/json")" = 9 ]
  [ "$(field types.0.type <"$T/json")" = m6 ]
  [ "$(field tensors.0.name <"$T/json")" = embed.weight ]
  python3 - "$T/json" <<'P'
import json,sys
d=json.load(open(sys.argv[1]))
assert sum(t["bytes"] for t in d["tensors"])==d["weight_bytes"]
assert d["seconds"]>0 and d["parameters"]>5e5
assert all(t["exact"] for t in d["tensors"] if t["shape"][0]==1)
P
  run --separate-stderr convert -n --json -q int8
  [ "$status" = 0 ] && [ "$(field file_bytes <<<"$output")" = 0 ]
}

@test "ternary: each layout and rule makes its own file, the same with any number of threads" {
  for rule in fit absmean rms adaptive threshold sign; do
    convert -o "$T/$rule.zse" -q ternary --ternary $rule --quality fast --threads 1 >/dev/null
    convert -o "$T/b.zse" -q ternary --ternary $rule --quality fast --threads 2 >/dev/null
    cmp "$T/$rule.zse" "$T/b.zse"
    zse-info "$T/b.zse" --verify >/dev/null
    zse-chat "$T/b.zse" --temp 0 -n 4 -p "What is 2+2?" >/dev/null
  done
  run cmp -s "$T/rms.zse" "$T/sign.zse"
  [ "$status" = 1 ]
  zse-info "$T/sign.zse" --json | grep -q '"ternary": *"sign"'
  convert -o "$T/t2.zse" -q t2 --quality fast --tensors >"$T/out"
  grep -Eq '^layers.1.up_proj.weight +BF16 +t2' "$T/out"
  grep -Eq '^embed.weight +BF16 +m6' "$T/out"
  # BitNet was trained with ternary weights and has one scale per matrix: the largest group, 256,
  # makes the fewest copies of it
  zse-convert -n --synthetic BitNet-2B-4T -q t2 --quality fast --tensors --json >"$T/j"
  [ "$(field tensors.2.type <"$T/j") $(field tensors.2.group_size <"$T/j")" = "t2 256" ]
  convert -n -q t2 --quality fast --tensors --json >"$T/j"
  [ "$(field tensors.2.type <"$T/j") $(field tensors.2.group_size <"$T/j")" = "t2 128" ]
  convert -n -q t2 -g 256 --quality fast --tensors --json >"$T/j"
  [ "$(field tensors.2.group_size <"$T/j")" = 256 ]
  run convert -n -q int4 -g 256
  [ "$status" = 1 ]
  [[ "$output" == *"groups of 32, 64 or 128"* ]]
  convert -n -q ternary --quant embeddings=t2 --tensors >"$T/out"
  grep -Eq '^embed.weight +BF16 +t2' "$T/out"
  run convert -n -q nl4 --ternary sign
  [ "$status" = 2 ]
  [[ "$output" == *"--ternary goes with a ternary type"* ]]
  run convert -n -q ternary --ternary best
  [ "$status" = 2 ] && [[ "$output" == *"'best' is not fit, absmean, rms, adaptive, threshold or sign"* ]]
}

@test "projections and ranges of layers can have types of their own" {
  convert -n -q nl4 --quality fast --quant 'mlp=f16,gate_proj=int4,up_proj=int4,down_proj=int8,down_proj@1-2=bf16,attention@3=f32' --tensors >"$T/out"
  grep -Eq '^layers.0.gate_proj.weight +BF16 +i4 ' "$T/out"
  grep -Eq '^layers.3.up_proj.weight +BF16 +i4 ' "$T/out"
  for i in 0 3; do grep -Eq "^layers.$i.down_proj.weight +BF16 +i8 " "$T/out"; done
  for i in 1 2; do grep -Eq "^layers.$i.down_proj.weight +BF16 +bf16 " "$T/out"; done
  for p in q k v o; do grep -Eq "^layers.3.${p}_proj.weight +BF16 +f32 " "$T/out"; done
  run ! grep -E '^layers.[012].[qkvo]_proj.weight +BF16 +f32' "$T/out"
  convert -o "$T/m.zse" --quality fast --quant q_proj=ternary,down_proj=int8 >/dev/null
  zse-info "$T/m.zse" --verify >/dev/null
  run -0 --separate-stderr convert -n --quant down_proj@7=int8
  [ "$stderr" = "zse-convert: warning: --quant down_proj@7: this model has no such matrix" ]
  for bad in x_proj=int8 down_proj down_proj@=int8 down_proj@3-1=int8 down_proj@1-=int8 down_proj@1x=int8 \
    down_proj@-1=int8 embeddings@1=int8 q_proj=int9; do
    run convert -n --quant "$bad"
    [ "$status" = 2 ] || { echo "$bad: $status $output"; return 1; }
  done
  run convert -n --quant q_proj=mixed
  [ "$status" = 1 ]
}

@test "--quant takes parts, globs and group sizes" {
  convert -o "$T/m.zse" --quality fast --quant attention=bf16,mlp=int8 --skip 'layers.0.*,*down*' --tensors >"$T/out"
  grep -Eq '^layers.1.q_proj.weight +BF16 +bf16' "$T/out"
  grep -Eq '^layers.1.up_proj.weight +BF16 +i8' "$T/out"
  grep -Eq '^layers.0.up_proj.weight +BF16 +bf16 .*exact' "$T/out"
  grep -Eq '^layers.1.down_proj.weight +BF16 +bf16 .*exact' "$T/out"
  for group in 32 64 128 row; do
    convert -o "$T/m.zse" -q int8 -g $group ${ZSE_SANITIZED:+--quality fast} >/dev/null
    [ "$(zse-chat "$T/m.zse" --temp 0 -p "What is 2+2?")" = "2 + 2 = 4" ]
  done
  run ! convert -o "$T/m.zse" -q nl4 -g 64
  run -0 --separate-stderr convert -n --skip '*q_proj*,*qproj*'
  [ "$stderr" = "zse-convert: warning: --skip '*qproj*': no tensor has such a name" ]
}

@test "--target-memory takes the finest type that fits, or says what would not" {
  [ "$(convert -n --json -m 2MB | field type)" = bf16 ]
  [ "$(convert -n --json -m 1MB | field type)" = int8 ]
  [ "$(convert -n --json -m 650kB | field type)" = nl4 ]
  run ! convert -o "$T/m.zse" -m 100kB
  [[ "$output" == *"2 bits everywhere"* ]]
  run ! convert -n -q int8 -m 600kB
  [[ "$output" == *"more than the target of 600000"* ]]
}

@test "a dry run says what is exact for certain" {
  [ "$(convert -n -q keep --json | field types.0.exact)" = true ]
  [ "$(convert -n -q f16 --json | field types.0.exact)" = false ]
  run ! grep rounded <(convert -n)
  grep -q 'exact$' <(convert -n -q f32)
}

@test "a dry run of mixed keeps to the target, or says that nothing does" {
  run -0 --separate-stderr convert -n -m 300kB --json
  [ "$(field weight_bytes <<<"$output")" -le 300000 ]
  [ "$(field weight_bytes <<<"$output")" -gt 290000 ]
  [[ "$stderr" == *estimate* ]]
  run -1 --separate-stderr convert -n -m 100kB
  [[ "$stderr" == *"more than the target of 100000" ]]
}

@test "wrong usage ends with 2, a failure with 1, both with one sentence" {
  run -2 zse-convert
  run -2 zse-convert '' -o "$T/m.zse"
  run -2 convert -o ''
  mkfifo "$T/pipe"
  run -1 zse-convert "$T/pipe" -o "$T/m.zse"
  [ "$output" = "zse-convert: $T/pipe: neither a regular file nor a folder" ]
  run -2 convert
  [[ "$output" == *"-o OUT.zse is needed"* ]]
  run -2 convert -o "$T/m.zse" -q int3
  [[ "$output" == *"'int3' is no type"* ]]
  run -2 convert -o "$T/m.zse" -q mixed
  run -2 convert -o "$T/m.zse" --quality superb
  run -2 convert -o "$T/m.zse" --quant head=int8
  run -2 convert -o "$T/m.zse" -g 48
  run -2 convert -o - --json
  run -1 convert -o "$T/m.zse" --quant mlp=mixed
  [[ "$output" == *"mlp=mixed"* ]]
  run -1 convert -o "$T/m.zse" --quality fast --kernels none
  [[ "$output" == *none* ]]
  run -1 zse-convert /no/such -o "$T/m.zse"
  [ "$output" = "zse-convert: /no/such: No such file or directory" ]
  HF_ENDPOINT=http://127.0.0.1:9 run -1 zse-convert meta-llama/Llama-3-8B -o "$T/m.zse"
  [[ "$output" == *"no such file or folder here; on the hub: meta-llama/Llama-3-8B"*"127.0.0.1 port 9"* ]]
  run -1 convert -o "$T/none/m.zse"
  [[ "$output" == *"No such file or directory"* ]]
  run -1 convert -o "$T"
  [[ "$output" == *"is a folder"* ]]
  echo text >"$T/notes"
  run -1 convert -o "$T/notes"
  [[ "$output" == *"--force"* ]]
  [ "$(cat "$T/notes")" = text ]
  convert -o "$T/notes" --force --quality fast >/dev/null
  [ "$(head -c 3 "$T/notes")" = ZSE ]
  run -1 zse-convert "$T/notes" -o "$T/m.zse"
  [[ "$output" == *"is a .zse file already"* ]]
  [ ! -e "$T/m.zse" ]
}

@test "--lora merges adapters, and refuses those of another model" {
  local root=${ZSE_ORACLES:-../shared/oracles}/models
  run -1 --separate-stderr convert -o "$T/m.zse" -q f32 --lora models/tiny
  [[ $stderr == *'models/tiny: has no adapter_config.json, so it is no folder of a LoRA adapter' ]]
  run -2 --separate-stderr zse-convert --synthetic x -o "$T/m.zse" --lora "$T"
  [[ $stderr == *'it excludes --synthetic and --plan'* ]]
  [ -d "$root/lora" ] || skip "no oracles (set ZSE_ORACLES)"
  zse-convert "$root/hf/phi3" -o "$T/m.zse" -q nl4 --lora "$root/lora/phi3" >/dev/null
  [ "$(zse-info "$T/m.zse" --json | field provenance.merged_lora)" = '["phi3"]' ]
  run -1 --separate-stderr zse-convert "$root/hf/phi3" -o "$T/m.zse" -q nl4 --lora "$root/lora/llama" --force
  [[ $stderr == *"q_proj.weight'; is this an adapter of another model?" ]]
  [ "$(zse-info "$T/m.zse" --json | field provenance.merged_lora)" = '["phi3"]' ]
}

@test "the source is never the target" {
  cp -r models/tiny "$T/src"
  cp "$T/src/model.safetensors" "$T/before"
  for name in model.safetensors config.json tokenizer.json; do
    run -1 zse-convert "$T/src" -o "$T/src/$name" --force
    [[ "$output" == *"would be overwritten"* ]]
  done
  ln "$T/src/model.safetensors" "$T/link"
  run -1 zse-convert "$T/src" -o "$T/link" --force
  cmp "$T/before" "$T/src/model.safetensors"
  zse-convert "$T/src" -o "$T/src/m.zse" --quality fast >/dev/null
  zse-convert "$T/src" -o "$T/src/m.zse" --quality fast >/dev/null
}

@test "another model is replaced only with --force or a yes on the terminal" {
  cp -r models/tiny "$T/other"
  sed -i 's/"eos_token_id": 2/"eos_token_id": 3/' "$T/other/config.json"
  convert -o "$T/m.zse" --quality fast >/dev/null
  # from the same source, so it is replaced
  convert -o "$T/m.zse" --quality fast -q f32 >/dev/null
  cp "$T/m.zse" "$T/before"
  run -1 --separate-stderr zse-convert "$T/other" -o "$T/m.zse" --quality fast </dev/null
  [ -z "$output" ]
  [ "$stderr" = "zse-convert: $T/m.zse: exists (f32, made of another source, tiny); it is only replaced with --force" ]
  run -1 --separate-stderr zse-convert --synthetic SmolLM2-135M -o "$T/m.zse" </dev/null
  cmp "$T/m.zse" "$T/before"
  printf 'expect Replace it. .y/N.\nsend\nexpect only replaced with --force\nend 1\n' >"$T/script"
  run -0 tests/lib/talk zse-convert "$T/other" -o "$T/m.zse" --quality fast <"$T/script"
  cmp "$T/m.zse" "$T/before"
  printf 'expect Replace it. .y/N.\nkey c\nend -2\n' >"$T/script"
  run -0 tests/lib/talk zse-convert "$T/other" -o "$T/m.zse" --quality fast <"$T/script"
  cmp "$T/m.zse" "$T/before"
  printf 'expect Replace it. .y/N.\nsend y\nexpect nl4\nend 0\n' >"$T/script"
  run -0 tests/lib/talk zse-convert "$T/other" -o "$T/m.zse" --quality fast <"$T/script"
  run ! cmp "$T/m.zse" "$T/before"
  : >"$T/empty"
  convert -o "$T/empty" --quality fast >/dev/null
  # before a download, too
  HF_ENDPOINT=http://127.0.0.1:9 run -1 --separate-stderr zse-convert some/model -o "$T/m.zse" </dev/null
  [ "$stderr" = "zse-convert: $T/m.zse: exists; it is only replaced with --force" ]
  # other programs do not overwrite a model with their output either
  for output in "zse-info $T/m.zse --dump-tensor model.norm.weight" "zse-bench logits $T/m.zse --ids 1"; do
    # shellcheck disable=SC2086
    run -1 --separate-stderr $output -o "$T/before"
    [[ $stderr == *"$T/before: is a model"* ]] || { echo "$stderr"; return 1; }
  done
  zse-info "$T/before" --verify >/dev/null
}

@test "an unwritable folder or a full disk is an error, and the old file stays" {
  if [ "$(id -u)" != 0 ]; then
    mkdir -m 555 "$T/closed"
    run -1 convert -o "$T/closed/m.zse"
    [[ "$output" == *"Permission denied"* ]]
  fi
  convert -o "$T/full.zse" -q f32 --quality fast >/dev/null
  cp "$T/full.zse" "$T/old"
  # with SIGXFSZ ignored, writing beyond the limit of ulimit -f fails as on a full disk
  run -1 bash -c "trap '' XFSZ; ulimit -f 300; zse-convert models/tiny -o '$T/full.zse' --quality fast"
  [[ "$output" == *"$T"* ]]
  cmp "$T/full.zse" "$T/old"
  [ "$(find "$T" -name '.full.zse*' | wc -l)" = 0 ]
  if mkdir "$T/small" && mount -t tmpfs -o size=400k none "$T/small" 2>/dev/null; then
    run convert -o "$T/small/m.zse" --quality fast
    refused=$output,$status
    run convert -o "$T/small/m.zse" --quality fast --force
    umount "$T/small"
    # said before anything is written
    [[ "$refused" == *"kB are to be written to $T/small/m.zse, where there is room for 4"*,1 ]]
    [[ "$output" == *"No space left on device"* ]]
    [ "$status" = 1 ]
  fi
}

@test "Ctrl-C ends the program by the signal and leaves no file; kill -9 leaves the old file" {
  convert -o "$T/m.zse" --quality fast >/dev/null
  cp "$T/m.zse" "$T/old"
  for _ in {1..40}; do cat libcommon/convert/*.c; done | head -c 3000000 >"$T/text"
  local signals='INT TERM KILL'
  [ -z "${ZSE_SANITIZED-}" ] || signals='INT KILL'        # one function takes both
  for signal in $signals; do
    # the shell lets its background processes ignore SIGINT; python restores it
    python3 - "$T" $signal <<'P'
import glob, signal, subprocess, sys, time
t, name = sys.argv[1], sys.argv[2]
p = subprocess.Popen(['zse-convert', 'models/tiny', '-o', t + '/m.zse', '--quality', 'best', '--calibration', t + '/text', '--threads', '1'], stdout=subprocess.DEVNULL,
                     stderr=subprocess.PIPE,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
while p.poll() is None and not glob.glob(t + '/.m.zse*'):      # until it writes
    time.sleep(0.01)
assert p.poll() is None, 'it was over too soon'
p.send_signal(getattr(signal, 'SIG' + name))
err = p.communicate(timeout=600)[1]
assert p.returncode == -getattr(signal, 'SIG' + name), (p.returncode, err)
assert err == b'', err
P
    cmp "$T/m.zse" "$T/old"
    [ $signal = KILL ] || [ "$(find "$T" -name '.m.zse*' | wc -l)" = 0 ]
  done
  [ "$(find "$T" -name '.m.zse*' | wc -l)" = 1 ]
  # the next conversion removes the file of the killed one
  convert -o "$T/m.zse" --force --quality fast >/dev/null
  [ "$(find "$T" -name '.m.zse*' | wc -l)" = 0 ]
}

@test "-o - writes to a pipe" {
  mkdir "$T/tmp"
  TMPDIR=$T/tmp convert -o - --quality fast | cat >"$T/m.zse"
  TMPDIR=$T/tmp convert -o - --quality fast | head -c 1 >/dev/null       # a closed pipe leaves nothing behind
  [ -z "$(ls "$T/tmp")" ]
  zse-info "$T/m.zse" --verify >/dev/null
  convert -o "$T/n.zse" --quality fast >/dev/null
  cmp "$T/m.zse" "$T/n.zse"
}

@test "tensors that cannot be kept exactly are named on standard error" {
  oracles=${ZSE_ORACLES:-../shared/oracles}/models/gguf
  [ -d "$oracles" ] || skip "no oracles (set ZSE_ORACLES)"
  run --separate-stderr zse-convert "$oracles/Q6_K.gguf" -o "$T/m.zse" -q keep
  [ "$status" = 0 ]
  [[ "$stderr" == *"Q6_K to i8 is not exact"* ]]
  run --separate-stderr zse-convert "$oracles/Q8_0.gguf" -o "$T/m.zse" -q keep --force
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  run --separate-stderr zse-convert "$oracles/Q4_0.gguf" -o "$T/m.zse" -q nl4 --quality fast --force
  [ "$status" = 0 ] && [[ "$stderr" == *"rounded a second time"* ]]
}

@test "memory does not grow with the model" {
  [ -z "${ZSE_SANITIZED-}" ] || skip "a sanitizer needs memory of its own"
  python3 - "$T" <<'P'
import json, os, struct, sys
d = sys.argv[1] + '/big'
os.mkdir(d)
layers, hidden, inter, vocab = 6, 1024, 4096, 2048
c = json.load(open('models/tiny/config.json'))
c.update(num_hidden_layers=layers, hidden_size=hidden, intermediate_size=inter,
         num_attention_heads=16, num_key_value_heads=16, vocab_size=vocab)
c.pop('head_dim', None)
json.dump(c, open(d + '/config.json', 'w'))
shapes = {'model.embed_tokens.weight': (vocab, hidden), 'model.norm.weight': (hidden,)}
for i in range(layers):
    p = 'model.layers.%d.' % i
    for n in 'qkvo':
        shapes[p + 'self_attn.%s_proj.weight' % n] = (hidden, hidden)
    shapes.update({p + 'mlp.gate_proj.weight': (inter, hidden), p + 'mlp.up_proj.weight': (inter, hidden), p + 'mlp.down_proj.weight': (hidden, inter),
                   p + 'input_layernorm.weight': (hidden,), p + 'post_attention_layernorm.weight': (hidden,)})
if not c.get('tie_word_embeddings'):
    shapes['lm_head.weight'] = (vocab, hidden)
header, at = {}, 0
for n, s in shapes.items():
    size = 2 * s[0] * (s[1] if len(s) > 1 else 1)
    header[n] = {'dtype': 'BF16', 'shape': list(s), 'data_offsets': [at, at + size]}
    at += size
h = json.dumps(header).encode()
h += b' ' * (-len(h) % 8)
with open(d + '/model.safetensors', 'wb') as f:
    f.write(struct.pack('<Q', len(h)) + h)
    block = b''.join(struct.pack('<H', 0x3c00 | i * 37 % 256 | (i * 53 & 1) << 15) for i in range(32768))
    for i in range(0, at, len(block)):
        f.write(block[:min(len(block), at - i)])
P
  size=$(stat -c %s "$T/big/model.safetensors")
  [ "$size" -gt 200000000 ]
  # RssAnon is the private memory of the process, without pages of mapped files
  zse-convert "$T/big" -o "$T/big.zse" -q int8 --quality fast >/dev/null 2>&1 &
  pid=$!
  peak=0
  while kill -0 $pid 2>/dev/null; do
    now=$(awk '/RssAnon/ { print $2 }' /proc/$pid/status 2>/dev/null) || now=
    if [ "${now:-0}" -gt "$peak" ]; then peak=$now; fi
    sleep 0.02
  done
  wait $pid
  echo "# $size bytes converted with $peak kB of its own memory" >&3
  [ "$peak" -gt 100 ]
  [ "$peak" -lt 100000 ]
  rm -rf "$T/big" "$T/big.zse"
}

# bats test_tags=plain
@test "--synthetic: random weights in a known shape, the same each time, for any number of threads" {
  zse-convert --synthetic smollm2-135m -o "$T/a.zse" --threads 1 >"$T/out"
  grep -q '134.5 M parameters, 89.7 MB of weights from nothing' "$T/out"
  zse-convert --synthetic SmolLM2-135M -o "$T/b.zse" --threads 2 >/dev/null
  cmp "$T/a.zse" "$T/b.zse"
  zse-info "$T/a.zse" --verify >/dev/null
  [ "$(zse-info tokenize "$T/a.zse" <<<'Hé<|im_end|>')" = '[72, 195, 169, 49151, 10]' ]
  [ "$(zse-info detokenize "$T/a.zse" <<<'[72, 195, 169, 256]')" = '"Hé aaaa"' ]
  zse-chat "$T/a.zse" -p hello --temp 0 --max-tokens 8 --ids >"$T/ids"
  zse-bench logits "$T/a.zse" --ids '1 2 3' -o "$T/logits" >/dev/null
  python3 - "$T/logits" <<'P'
import array,math,sys
v=array.array('f',open(sys.argv[1],'rb').read())
assert len(v)==3*49152 and all(map(math.isfinite,v))
s=math.sqrt(sum(x*x for x in v)/len(v)); print(s); assert .1<s<10, s
P
}

@test "--synthetic takes types, prints sizes without writing, and refuses unknown shapes" {
  [ "$(zse-convert --synthetic Qwen2.5-32B -n --json | field parameters)" = 32763876352 ]
  [ "$(zse-convert --synthetic Qwen2.5-72B -n --json | field parameters)" = 72706203648 ]
  [ "$(zse-convert --synthetic Llama-3.1-8B -n --json -q bf16 | field weight_bytes)" = 16061054976 ]
  while read -r name parameters; do
    [ "$(zse-convert --synthetic "$name" -n --json --quality fast | field parameters)" = "$parameters" ] || { echo "$name"; return 1; }
  done <<'LIST'
TinyLlama-1.1B 1100048384
Qwen3.5-4B 4205751296
Qwen3.5-35B-A3B 34660610688
Qwen3-Coder-Next-80B-A3B 79674391296
GLM-4.7-Flash 29943393920
Gemma-4-E4B 7463013418
LIST
  # With a number of layers only the first ones are there.
  [ "$(zse-convert --synthetic Qwen2.5-7B:28 -n --json | field parameters)" = 7615616512 ]
  [ "$(zse-convert --synthetic qwen2.5-7b:2 -n --json | field parameters)" -eq $((7615616512 - 26 * 233057792)) ]
  [ "$(zse-convert --synthetic Qwen2.5-7B:2 -n --json | field source)" = Qwen2.5-7B:2 ]
  for name in Qwen3.5-4B:4 Qwen3.5-35B-A3B:4 Qwen3-Coder-Next-80B-A3B:1 GLM-4.7-Flash:2 \
      Gemma-4-E4B:6 Gemma-4-E4B:7 Gemma-4-E4B:12; do
    zse-convert --synthetic "$name" -n --quality fast >/dev/null
  done
  zse-convert --synthetic SmolLM2-135M:3 -o "$T/three.zse" >/dev/null
  [ "$(zse-info "$T/three.zse" --json | jq .config.num_hidden_layers)" = 3 ]
  for layers in '' 0 -1 +2 ' 2' x 4x 99999999999; do
    run -1 --separate-stderr zse-convert --synthetic "Qwen2.5-7B:$layers" -n
    [[ $stderr == *"'Qwen2.5-7B:$layers': found '$layers', expected a number of layers, 1 to 1000"* ]]
  done
  run -1 --separate-stderr zse-convert --synthetic Qwen2.5-7B:29 -n
  [[ $stderr == *"Qwen2.5-7B: found 29 layers, expected at most 28"* ]]
  [ "$(zse-convert --synthetic Llama-3.1-8B -n --json -m 9GB | field type)" = int8 ]
  run -1 zse-convert --synthetic Llama-4 -o "$T/m.zse"
  [[ "$output" == *"'Llama-4' is no model whose shape is known here: SmolLM2-135M, "* ]]
  run -1 zse-convert --synthetic Qwen2.5-0.5B -n -m 100MB
  [[ "$output" == *"more than the target of 100000000" ]]
  run -2 zse-convert --synthetic Qwen2.5-0.5B models/tiny -o "$T/m.zse"
  run -2 zse-convert --synthetic Qwen2.5-0.5B -q mixed -m 1GB -o "$T/m.zse"
  [ ! -e "$T/m.zse" ]
}

@test "a checkpoint that comes quantized keeps its grid unless -q says otherwise" {
  oracles=${ZSE_ORACLES:-../shared/oracles}/models/quantized
  [ -d "$oracles" ] || skip "no oracles (set ZSE_ORACLES)"
  run -0 --separate-stderr zse-convert "$oracles/llama-gptq" -o "$T/m.zse" --json
  [ "$(jq -c '[.types[] | select(.source_type == "GPTQ")] | map([.type, .tensors, .exact])' <<<"$output")" = '[["i4z",21,true]]' ]
  run -0 zse-info -t "$T/m.zse"
  [[ "$output" == *"GPTQ: grid kept"* ]]
  [[ "$output" != *"rounded anew"* ]]
  [ "$(zse-info --json "$T/m.zse" | jq -r .provenance.source_quantization.quant_method)" = gptq ]
  run -0 --separate-stderr zse-convert "$oracles/llama-gptq" -o "$T/m.zse" -q int8 --quality fast
  [[ "$stderr" == *"rounded a second time"* ]]
  run -0 zse-info -t "$T/m.zse"
  [[ "$output" == *"GPTQ: rounded anew"* ]]
}

@test "a mixture of experts is converted an expert at a time" {
  [ -z "${ZSE_SANITIZED-}" ] || skip "a sanitizer needs memory of its own"
  command -v python3 >/dev/null || skip "no python3"
  python3 - "$T/moe" <<'END'
import array, json, os, struct, sys
out, experts, h, width = sys.argv[1], 32, 256, 256
os.mkdir(out)
json.dump({"model_type": "qwen3_moe", "hidden_size": h, "intermediate_size": 512, "moe_intermediate_size": width, "num_hidden_layers": 1, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024, "num_experts": experts, "num_experts_per_tok": 2, "norm_topk_prob": True,
           "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu"}, open(f"{out}/config.json", "w"))
p = "model.layers.0."
shapes = {"model.embed_tokens.weight": [1024, h], "lm_head.weight": [1024, h], "model.norm.weight": [h], p + "input_layernorm.weight": [h], p + "post_attention_layernorm.weight": [h],
          p + "self_attn.q_proj.weight": [128, h], p + "self_attn.k_proj.weight": [64, h], p + "self_attn.v_proj.weight": [64, h], p + "self_attn.o_proj.weight": [h, 128],
          p + "self_attn.q_norm.weight": [32], p + "self_attn.k_norm.weight": [32], p + "mlp.gate.weight": [experts, h]}
for e in range(experts):
    shapes |= {f"{p}mlp.experts.{e}.{part}_proj.weight": [h, width] if part == "down" else [width, h] for part in ("gate", "up", "down")}
head, at = {}, 0
for name, shape in shapes.items():
    n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
    at += n
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
values = array.array("H", [0x3c00 + i * 977 % 512 + (i * 31 % 2 << 15) for i in range(65536)]).tobytes()
with open(f"{out}/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + (values * (at // len(values) + 1))[:at])
END
  [ "$(stat -c %s "$T/moe/model.safetensors")" -gt 12600000 ]
  # ulimit -d: private memory in kB, less than all experts take; one expert takes 393 kB
  run bash -c 'ulimit -d 10000; exec zse-convert "$1" -o "$2" -q nl4 --quality fast --threads 1' - "$T/moe" "$T/moe.zse"
  [ "$status" = 0 ] || { echo "$output"; return 1; }
  run bash -c 'ulimit -d 500; exec zse-convert "$1" -o "$2" -q nl4 --quality fast --threads 1' - "$T/moe" "$T/less.zse"
  [ "$status" != 0 ]
  [ ! -e "$T/less.zse" ]
  # --quality best collects tables of statistics, 40 MB: in memory, or with --calibration-memory
  # mostly in unnamed files; the result is the same
  cp models/tiny/tokenizer*.json "$T/moe"
  head -c 10000 LICENSE >"$T/text"
  zse-convert "$T/moe" -o "$T/moe.zse" --force --quality best --calibration "$T/text" --threads 1 --json >"$T/json" 2>"$T/err"
  [ ! -s "$T/err" ]
  [ "$(field calibration_memory_bytes <"$T/json")" -gt 35000000 ]
  [ "$(field calibration_file_bytes <"$T/json")" = 0 ]
  mkdir "$T/few"
  run bash -c 'ulimit -d 20000; exec zse-convert "$1" -o "$2" --quality best --calibration "$3" --threads 1' - "$T/moe" "$T/few/moe.zse" "$T/text"
  [ "$status" = 1 ]
  [[ "$output" == *"out of memory"* ]] || { echo "$output"; return 1; }
  run --separate-stderr bash -c 'ulimit -d 20000; exec zse-convert "$1" -o "$2" --quality best --calibration "$3" --threads 1 --calibration-memory 1MB --json' - "$T/moe" "$T/few/moe.zse" "$T/text"
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  local private file
  private=$(field calibration_memory_bytes <<<"$output")
  file=$(field calibration_file_bytes <<<"$output")
  [ "$private" -lt 12000000 ]
  [ "$stderr" = "zse-convert: calibration will take up to $((private / 1000000)) MB of memory, and $((file / 1000000)) MB of the disk beside $T/few/moe.zse" ]
  [ "$(ls -A "$T/few")" = moe.zse ]
  cmp "$T/moe.zse" "$T/few/moe.zse"
  run -2 zse-convert "$T/moe" -o "$T/few/moe.zse" --quality fast --calibration-memory 1MB
  [[ "$output" == *"--calibration-memory: --quality fast runs no text"* ]]
  rm -r "$T/moe" "$T/moe.zse" "$T/few"
}

# bats test_tags=plain
@test "experts and layers with a state: good is nearer to the model than fast, best than good" {
  local models=${ZSE_ORACLES:-../shared/oracles}/models/hf name level text
  [ -d "$models/qwen3_moe" ] || skip "$models is not here"
  head -c "$([ -n "${ZSE_SANITIZED-}" ] && echo 1500 || echo 8000)" LICENSE >"$T/text"
  for name in qwen3_moe mamba2; do
    # only that it runs: the error does not depend on the build
    if [ -n "${ZSE_SANITIZED-}" ]; then
      zse-convert "$models/$name" -o "$T/best.zse" --force -q nl4 --quality best --calibration "$T/text" >/dev/null
      continue
    fi
    zse-convert "$models/$name" -o "$T/f32.zse" --force -q f32 >/dev/null
    for level in fast good best; do
      text=(--calibration "$T/text")
      [ $level != fast ] || text=()
      zse-convert "$models/$name" -o "$T/$level.zse" --force -q nl4 --quality $level "${text[@]}" >/dev/null
      [ "$(zse-info --json "$T/$level.zse" | field quantization.quality)" = $level ]
      zse-bench quality "$T/f32.zse" "$T/$level.zse" "$T/text" --window 128 --windows 6 --exact | field kl_mean >>"$T/$name"
    done
    cat "$T/$name"
    sort -g -r -c -u "$T/$name"          # equal is not nearer
  done
}

@test "a checkpoint with an encoder of images is converted without it, and an unknown key of it refused" {
  cp -r models/tiny "$T/vl"
  python3 -S - "$T/vl" <<'P'
import json, struct, sys
folder = sys.argv[1]
data = open(folder + "/model.safetensors", "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head, body = json.loads(data[8:8 + n]), data[8 + n:]
out = {("" if k == "__metadata__" else "language_model.") + k: v for k, v in head.items()}
out["vision_model.patch.weight"] = {"dtype": "F32", "shape": [1, 3, 2, 2, 2], "data_offsets": [len(body), len(body) + 96]}
out["mtp.fc.weight"] = {"dtype": "F32", "shape": [4], "data_offsets": [len(body) + 96, len(body) + 112]}
text = json.dumps(out).encode()
open(folder + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body + bytes(112))
config = json.load(open(folder + "/config.json"))
config = {"model_type": "llama4", "boi_token_index": 5, "vision_config": {"hidden_size": 8}, "text_config": config,
          "tie_word_embeddings": config.pop("tie_word_embeddings", True)}
json.dump(config, open(folder + "/config.json", "w"))
config["speech_rate"] = 3
json.dump(config, open(folder + "/unknown.json", "w"))
P
  run --separate-stderr zse-convert "$T/vl" -o "$T/vl.zse" -q keep
  [ "$status" = 0 ] || { echo "$stderr"; return 1; }
  [[ $stderr == *"skipped: image input is left out"* ]]
  [[ $stderr == *"1 tensor for predicting further tokens is skipped"* ]]
  [ "$(zse-chat "$T/vl.zse" --temp 0 -p "What is 2+2?")" = "2 + 2 = 4" ]
  mv "$T/vl/unknown.json" "$T/vl/config.json"
  run -1 zse-convert "$T/vl" -o "$T/x.zse"
  [[ $output == *"speech_rate: 3 is not understood"* ]]
}

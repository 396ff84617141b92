# memory.bats - resident memory: weights below --max-memory, one copy for two processes, little of
# our own.
bats_require_minimum_version 1.5.0
load ../lib/await

# memory KIB: a /proc/meminfo with this much memory, all of it available
memory() { printf 'MemTotal: %s kB\nMemFree: %s kB\nMemAvailable: %s kB\n' "$1" "$1" "${2:-$1}"; }
setup_file() {
  [ -z "${ZSE_SANITIZED-}" ] || return 0
  export MODEL=$BATS_FILE_TMPDIR/m.zse ZSE_SYSROOT=$BATS_FILE_TMPDIR/root
  # pretend that the machine has little memory: speeds are measured with half of it, which is faster
  mkdir -p "$ZSE_SYSROOT/proc"
  memory 500000 >"$ZSE_SYSROOT/proc/meminfo"
  zse-convert --synthetic SmolLM2-135M -q nl4 -o "$MODEL" >/dev/null 2>&1
}
setup() { [ -z "${ZSE_SANITIZED-}" ] || skip "a sanitizer's own memory is not what is measured"; }

# watch EXPRESSION COMMAND...: run the commands (separated by --) until all have ended or EXPRESSION
# holds; then EXPRESSION must hold.  Their output is in $BATS_TEST_TMPDIR/said.  EXPRESSION may use
# the lists rss and pss (memory of the model's mapping) and anon (all anonymous memory), each with
# the latest value of every process, and most: the largest rss of any process so far.
watch() {
  python3 - "$MODEL" "$@" <<'END'
import os, re, signal, subprocess, sys, time
model, expression, args = sys.argv[1], sys.argv[2], ' '.join(sys.argv[3:])
commands = [[]]
for a in sys.argv[3:]:
    if a == '--':
        commands.append([])
    else:
        commands[-1].append(a)
running = [subprocess.Popen(c, stdout=open(os.environ['BATS_TEST_TMPDIR'] + '/said', 'w')) for c in commands]
n = len(running)
rss, pss, anon, most, most_anon, samples = [0] * n, [0] * n, [0] * n, 0, 0, 0
def sample(i, pid):
    os.kill(pid, signal.SIGSTOP)            # smaps is read mapping by mapping: pages must not come and go meanwhile
    how = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if how.si_code != os.CLD_STOPPED:
        return
    text = open(f'/proc/{pid}/smaps').read()
    os.kill(pid, signal.SIGCONT)
    r = p = a = 0
    for m in re.split(r'^(?=[0-9a-f]+-[0-9a-f]+ )', text, flags=re.M):
        field = lambda name: int((re.search(rf'^{name}: +(\d+) kB', m, re.M) or [0, 0])[1]) * 1024
        a += field('Anonymous')
        if model in m.split('\n', 1)[0]:
            r += field('Rss')
            p += field('Pss')
    if r:
        rss[i], pss[i], anon[i] = r, p, a
deadline = time.monotonic() + 120
ended = False
while not ended and time.monotonic() < deadline:
    ended = all(p.poll() is not None for p in running)
    for i, p in enumerate(running):
        if p.poll() is None:
            sample(i, p.pid)
    samples += 1
    most, most_anon = max([most] + rss), max([most_anon] + anon)
    if not ended and 'until' in expression and eval(expression.split('until', 1)[1]):
        break
    time.sleep(0.01)                        # leave the processor to the programs
for p in running:
    if p.poll() is None:
        p.kill()
    elif p.returncode:
        sys.exit(f'{args}: exit {p.returncode}')
    p.wait()
check = expression.split('until', 1)[-1]
if not eval(check):
    sys.exit(f'not {check}: rss {rss} pss {pss} anon {anon} most {most} {most_anon} after {samples} samples')
END
}

# The prompt has 238 bytes, and the vocabulary makes each byte a token.
prompt() { for _ in $(seq 7); do printf 'the river runs to a sea of stone, '; done; }

@test "--max-memory: the weights in memory stay below it, and the answer is the same" {
  run zse-chat "$MODEL" --raw -p "$(prompt)" -n 12 --temp 0 --ignore-eos --ids
  want=$output
  # the mapping contains not only weights, but also the tokenizer and the description of the model
  rest=$(($(stat -c %s "$MODEL") - $(zse-info --json "$MODEL" | jq .memory.weights_bytes)))
  while read -r size least; do                  # a limit of 60 MB must be used to 40 MB at least
    watch "$least < most <= ${size}e6 + $rest" zse-chat "$MODEL" --raw -p "$(prompt)" -n 12 --temp 0 --ignore-eos --ids --max-memory "${size}MB"
    [ "$(cat "$BATS_TEST_TMPDIR/said")" = "$want" ] || { echo "$size MB: $(cat "$BATS_TEST_TMPDIR/said"), without a bound: $want"; return 1; }
  done <<<$'16 0\n30 0\n60 40e6'
  # batches too
  watch "0 < most <= 30e6 + $rest" zse-bench "$MODEL" -p 100 -n 8 -b 3 -r 1 -w 0 --max-memory 30MB
}

@test "a dense model whose weights do not fit runs with those that do, says so, and answers the same; a server refuses it" {
  local root=$BATS_TEST_TMPDIR/root
  mkdir -p "$root/proc"
  memory 130000 >"$root/proc/meminfo"
  run zse-chat "$MODEL" --raw -p "$(prompt)" -n 4 --ctx 512 --temp 0 --ignore-eos --ids
  want=$output
  ZSE_SYSROOT=$root run --separate-stderr zse-chat "$MODEL" --raw -p "$(prompt)" -n 4 --ctx 512 --temp 0 --ignore-eos --ids
  [ "$status" = 0 ]
  [ "$output" = "$want" ]
  [[ "$stderr" == *"of weights, but only "*" fit in memory: each step reads at least the other "*" from the file"* ]] || { echo "$stderr"; return 1; }
  ZSE_SYSROOT=$root run --separate-stderr zse-serve "$MODEL" --port 0 --no-audit --ctx 512
  [ "$status" = 1 ] && [[ "$stderr" == *"needs"*"--force"* ]] || { echo "$stderr"; return 1; }
}

# Too little memory from the beginning, and a file that cannot be opened yet: each program ends
# while it loads.
@test "if memory runs out while a model is loaded or converted, the program ends with status 137; not with --force" {
  local root=$BATS_TEST_TMPDIR/root d=$BATS_TEST_TMPDIR
  mkdir -p "$root/proc"
  memory 10000000 100000 >"$root/proc/meminfo"
  cp -r models/tiny "$d/hf"
  cp "$MODEL" "$d/m.zse"
  lease "$d/m.zse"
  ZSE_SYSROOT=$root run --separate-stderr zse-chat "$d/m.zse" -p x
  [ "$status" = 137 ] && [ "$stderr" = "zse-chat: memory runs out: 102 MB of 10.2 GB are left; ending before the system ends a process" ] || { echo "$stderr"; return 1; }
  ZSE_SYSROOT=$root run --separate-stderr zse-bench "$d/m.zse"
  [ "$status" = 137 ]
  [[ "$stderr" == "zse-bench: memory runs out: "* ]]
  release
  lease "$d/hf/model.safetensors"
  ZSE_SYSROOT=$root run --separate-stderr zse-convert "$d/hf" -o "$d/out.zse"
  [ "$status" = 137 ]
  [[ "$stderr" == "zse-convert: memory runs out: "* ]]
  [ ! -e "$d/out.zse" ]
  release
  ZSE_SYSROOT=$root run --separate-stderr zse-convert models/tiny -o "$d/out.zse" --force --quality fast
  [ "$status" = 0 ]
}

@test "stream counts the parts of a bounded model that pass through memory" {
  run --separate-stderr zse-bench stream "$MODEL" -p 8 -n 3 --max-memory 50MB --json
  [ "$status" = 0 ]
  # every step reads each part that does not stay once, the next one while one is in use
  jq -e '.layers == 30 and .parts > 30 and .kept > 0 and .kept < .parts and (.rows | map(.phase)) == ["prompt", "decode"]' <<<"$output"
  jq -e '(.parts - .kept) as $n | .rows | all(.uses == $n and .step_s > 0) and (.[1] | .steps == 3 and .prefetch_hits == $n and .evictions == $n)' <<<"$output"
  jq -e '.rows[0].bytes == .rows[1].bytes and .rows[0].bytes > 10e6' <<<"$output"
}

@test "--max-memory: too little is refused, an invalid size is wrong usage" {
  run --separate-stderr zse-chat "$MODEL" --raw -p x -n 1 --max-memory 5MB
  [ "$status" = 1 ]
  [[ "$stderr" == *"at most 5000000 bytes of memory: expected at least "*"room for two layers"* ]]
  for size in 0 -1 x 5XB; do
    run --separate-stderr zse-chat "$MODEL" -p x --max-memory "$size"
    [ "$status" = 2 ] || { echo "$size: $status"; return 1; }
  done
}

@test "two processes share one copy of the weights" {
  watch 'until min(rss) > 85e6 and all(p < 0.6 * r for p, r in zip(pss, rss))' zse-bench "$MODEL" -p 8 -n 400 -r 500 -- zse-bench "$MODEL" -p 8 -n 400 -r 500
}

@test "private memory is keys and values and at most 32 MB" {
  kv=$(zse-bench "$MODEL" -p 238 -n 12 -r 1 -w 0 --json | jq .memory.kv_bytes)
  watch "0 < most_anon <= $kv + 32e6" zse-chat "$MODEL" --raw -p "$(prompt)" -n 12 --temp 0 --ignore-eos --ids
}

# moe_folder DIR: make a mixture of experts with random weights, 4 layers of 32 experts, in the
# format of transformers.
moe_folder() {
  mkdir -p "$1"
  python3 - "$1" <<'END'
import json, random, struct, sys
out, hidden, inter, layers, experts, vocab, heads, dim = sys.argv[1], 256, 512, 4, 32, 512, 4, 64
json.dump({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inter,
           "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": dim, "vocab_size": vocab, "max_position_embeddings": 512, "rope_theta": 10000.0,
           "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "num_experts": experts, "num_experts_per_tok": 4, "moe_intermediate_size": inter, "norm_topk_prob": True,
           "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2}, open(f"{out}/config.json", "w"))
tensors = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
for i in range(layers):
    p = f"model.layers.{i}."
    tensors |= {p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,), p + "mlp.gate.weight": (experts, hidden)}
    tensors |= {p + f"self_attn.{n}_proj.weight": (heads * dim, hidden) for n in "qkvo"} | {p + f"self_attn.{n}_norm.weight": (dim,) for n in "qk"}
    for e in range(experts):
        x = f"{p}mlp.experts.{e}."
        tensors |= {x + "gate_proj.weight": (inter, hidden), x + "up_proj.weight": (inter, hidden), x + "down_proj.weight": (hidden, inter)}
# high bytes of bf16 numbers: around 1, or from 2^-6 to 2^-5 with a random sign
high = {1: bytes(0x3f for _ in range(256)), 2: bytes(0x3c if i < 128 else 0xbc for i in range(256))}
rng, header, at, data = random.Random(7), {}, 0, []
for name, shape in tensors.items():
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    b = bytearray(rng.randbytes(2 * n))
    b[1::2] = bytes(b[1::2]).translate(high[len(shape)])
    data.append(b)
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * n]}
    at += 2 * n
head = json.dumps(header).encode()
with open(f"{out}/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head)
    for b in data:
        f.write(b)
END
}

@test "--max-memory: experts come from the file as they are chosen, the logits are the same" {
  d=$BATS_TEST_TMPDIR
  moe_folder "$d/src"
  zse-convert "$d/src" -q int8 --quality fast -o "$d/moe.zse" >/dev/null 2>&1
  ids=$(python3 -c 'import random; r = random.Random(3); print(*[r.randrange(512) for _ in range(150)])')
  zse-bench logits "$d/moe.zse" --ids "$ids" --window 40 -o "$d/want"
  # the weights take 52 MB; two experts, and two layers without experts, must fit
  for size in 12 25; do
    for window in 40 1; do
      zse-bench logits "$d/moe.zse" --ids "$ids" --window $window -o "$d/got" --max-memory ${size}MB
      cmp "$d/want" "$d/got" || { echo "$size MB, steps of $window"; return 1; }
    done
  done
  run --separate-stderr zse-bench logits "$d/moe.zse" --ids 1 -o "$d/got" --max-memory 9MB
  [ "$status" = 1 ]
  [[ "$stderr" == *"room for two layers of this model without their experts, and two of these"* ]]
  run zse-bench moe "$d/moe.zse" -b 2 -r 1 -p 32 --json --max-memory 25MB
  [ "$status" = 0 ]
  jq -e '.rows[0].file | .experts_max_bytes > 5e6 and .experts_max_bytes < 25e6 and .there >= 0 and .there < 1 and .bytes_per_step > 0' <<<"$output" || { echo "$output"; return 1; }
  run zse-bench moe "$d/moe.zse" -b 1 -r 1 -p 32 --json
  jq -e '.rows[0].file == null' <<<"$output"
  # without --max-memory, if memory is short: 52 MB of weights, a workspace of 35 MB, and keys and
  # values do not fit in 80 MB
  mkdir -p "$d/root/proc/self"
  memory 80000 >"$d/root/proc/meminfo"
  ZSE_SYSROOT=$d/root run --separate-stderr zse-bench "$d/moe.zse" -p 16 -n 4 -r 1 -w 0 --ctx 64
  [ "$status" = 0 ]
  [[ "$stderr" == *"of weights, but only "*" fit in memory: experts are read from the file as they are chosen"* ]] || { echo "$stderr"; return 1; }
  ZSE_SYSROOT=$d/root run --separate-stderr zse-chat "$d/moe.zse" --plan --json --ctx 64
  [ "$status" = 0 ]
  jq -e '.fits and .reason == null and .weight_bytes < 45e6 and .needed_bytes < 80e6 and .expected_tokens_per_sec == null' <<<"$output" || { echo "$output"; return 1; }
  [[ "$stderr" == *"experts are read from the file as they are chosen"* ]]
  # the memory stays below the limit: that of the mapping, and private memory too
  MODEL=$d/moe.zse watch "0 < most < 20e6" zse-bench "$d/moe.zse" -p 100 -n 8 -b 3 -r 1 -w 0 --max-memory 20MB
}

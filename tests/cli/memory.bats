# memory.bats - what stays in memory: weights below --max-memory, one copy of them for two processes, little of our own.
bats_require_minimum_version 1.5.0

setup_file() {
  export MODEL=$BATS_FILE_TMPDIR/m.zse
  zse-convert --synthetic SmolLM2-135M -q nl4 -o "$MODEL" >/dev/null 2>&1
}
setup() { [ -z "${ZSE_SANITIZED-}" ] || skip "a sanitizer's own memory is not what is measured"; }

# watch EXPRESSION COMMAND...: run the commands (separated by --) until all have ended or EXPRESSION holds; then EXPRESSION must hold.
# rss, pss, anon: lists, of the model's mapping and of all anonymous memory, the latest of each process; most: the most rss of any so far.
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
running = [subprocess.Popen(c, stdout=subprocess.DEVNULL) for c in commands]
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

prompt() { for _ in $(seq 40); do printf 'the river runs to a sea of stone, '; done; }      # 1360 bytes: tokens, in this vocabulary

@test "--max-memory: the weights stay below it, the answer is the same" {
  run zse-chat "$MODEL" --raw -p "$(prompt)" -n 12 --temp 0 --ignore-eos --ids
  want=$output
  for size in 16 30 60; do
    run zse-chat "$MODEL" --raw -p "$(prompt)" -n 12 --temp 0 --ignore-eos --ids --max-memory ${size}MB
    [ "$status" = 0 ]
    [ "$output" = "$want" ] || { echo "$size MB: $output, without a bound: $want"; return 1; }
  done
  # the mapping holds more than weights: tokenizer, description
  rest=$(($(stat -c %s "$MODEL") - $(zse-bench "$MODEL" -p 1 -n 1 -r 1 -w 0 --json | jq .memory.weight_bytes)))
  watch "0 < most <= 30e6 + $rest" zse-chat "$MODEL" --raw -p "$(prompt)" -n 12 --temp 0 --ignore-eos --ids --max-memory 30MB
  # it does use what it may
  watch "40e6 < most <= 60e6 + $rest" zse-chat "$MODEL" --raw -p "$(prompt)" -n 12 --temp 0 --ignore-eos --ids --max-memory 60MB
  # batches too
  watch "0 < most <= 30e6 + $rest" zse-bench "$MODEL" -p 100 -n 8 -b 3 -r 1 -w 0 --max-memory 30MB
}

@test "--max-memory: too little is refused, wrong sizes are wrong usage" {
  run --separate-stderr zse-chat "$MODEL" --raw -p x -n 1 --max-memory 5MB
  [ "$status" = 1 ]
  [[ "$stderr" == *"5000000 bytes of memory: this model needs at least "*"two of its layers"* ]]
  for size in 0 -1 x 5XB; do
    run --separate-stderr zse-chat "$MODEL" -p x --max-memory "$size"
    [ "$status" = 2 ] || { echo "$size: $status"; return 1; }
  done
}

@test "two processes share one copy of the weights" {
  watch 'until min(rss) > 85e6 and all(p < 0.6 * r for p, r in zip(pss, rss))' zse-bench "$MODEL" -p 8 -n 400 -r 500 -- zse-bench "$MODEL" -p 8 -n 400 -r 500
}

@test "private memory is keys and values and at most 32 MB" {
  kv=$(zse-bench "$MODEL" -p 1000 -n 8 -r 1 -w 0 --json | jq .memory.kv_bytes)
  watch "0 < most_anon <= $kv + 32e6" zse-chat "$MODEL" --raw -p "$(prompt)" -n 12 --temp 0 --ignore-eos --ids
}

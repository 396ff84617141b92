# serve-memory.bats - zse-serve while memory runs short: refuse, give up prefixes, come back, end.
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  zse-convert models/tiny -o "$BATS_FILE_TMPDIR/tiny.zse" -q nl4 --quality fast
}
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  Z=$BATS_FILE_TMPDIR/tiny.zse T=$BATS_TEST_TMPDIR
  export ZSE_HOME=$T/home ZSE_SYSROOT=$T/root
  mkdir -p "$T/root/proc"
}
teardown() {
  [ -z "${EATER:-}" ] || { kill "$EATER"; wait "$EATER"; } 2>/dev/null || true
  [ -z "${PID:-}" ] || { kill "$PID"; wait "$PID"; } 2>/dev/null || true
  [ -z "${GROUP:-}" ] || drop_group
}

# left KIB: pretend that this much of 10 GB is available.  The file is replaced with mv, because the
# server may be reading it.
left() {
  printf 'MemTotal: 10000000 kB\nMemFree: %s kB\nMemAvailable: %s kB\n' "$1" "$1" >"$T/meminfo"
  mv "$T/meminfo" "$T/root/proc/meminfo"
}
serve() {
  exec 5< <(exec ${GROUP:+tests/lib/in-group "$GROUP"} zse-serve "$Z" --port 0 --no-audit "$@" 2>"$T/err")
  PID=$!
  read -r -u 5 _ _ URL
  await listens "$URL"
}
ask() {
  curl -s -D "$T/head" -o "$T/body" -w '%{http_code}' "$URL/v1/chat/completions" \
    -d '{"temperature":0,"max_tokens":12,"messages":[{"role":"user","content":"What is the capital of France? And what is the capital of Italy?"}]}'
}
# until_status CODE: repeat the request until its status is CODE
until_status() { await says "$1" ask || { cat "$T/body"; return 1; }; }
cached() { jq '.usage.prompt_tokens_details.cached_tokens' "$T/body"; }

@test "short memory: requests get 503 with Retry-After, the prefix cache is emptied, and requests are accepted again when memory is free" {
  left 5000000
  serve
  until_status 200
  until_status 200
  [ "$(cached)" -gt 0 ]
  left 250000                       # 2.5 %
  until_status 503
  grep -qi '^retry-after:' "$T/head"
  jq -e '.error.code == "memory_pressure"' "$T/body"
  curl -s "$URL/health" | jq -e '.status == "memory_pressure"'
  curl -s "$URL/livez" | jq -e '.status == "alive"'
  left 350000                       # 3.5 %: not yet
  [ "$(ask)" = 503 ]
  left 5000000
  until_status 200
  [ "$(cached)" = 0 ]
  until_status 200
  [ "$(cached)" -gt 0 ]
  curl -s "$URL/health" | jq -e '.status == "healthy"'
  grep -q 'memory is short: 0.26 GB of 10.24 GB' "$T/err"
  grep -q 'memory is back' "$T/err"
}

@test "if memory runs out, the server ends with a sentence; with --no-memory-watch it goes on" {
  left 5000000
  serve
  left 100000                       # 1 %
  local status=0
  wait "$PID" || status=$?
  PID=
  [ "$status" = 137 ]
  grep -q 'memory runs out: 0.10 GB of 10.24 GB are left' "$T/err"
  left 5000000
  serve --no-memory-watch
  left 100000
  until_status 200
}

# Start a process in the control group that takes memory until only 2.5 % of the limit are left, and
# keeps it until its standard input ends.
eat() {
  in_group python3 -c '
import os, sys
def number(*names):
    return next(int(open(f"{sys.argv[1]}/{n}").read()) for n in names if os.path.exists(f"{sys.argv[1]}/{n}"))
def left():
    stat = dict(line.split() for line in open(f"{sys.argv[1]}/memory.stat"))
    cache = sum(int(stat.get(f"total_{k}", stat[k])) for k in ("inactive_file", "active_file"))
    return number("memory.limit_in_bytes", "memory.max") - number("memory.usage_in_bytes", "memory.current") + cache
kept, most = [], int(0.025 * number("memory.limit_in_bytes", "memory.max"))
while left() > most + 200000:
    kept.append(bytearray(b"x") * min((left() - most) // 2 + 100000, 64 << 20))
print("full", flush=True)
sys.stdin.read()' "$GROUP" <"$T/hold" >"$T/eaten" &
  EATER=$!
}

@test "a real control group that fills up: requests are refused until memory is free again; nothing is killed" {
  [ -z "${ZSE_SANITIZED:-}" ] || skip "sanitizers keep what is freed"
  load ../lib/group.bash
  make_group 600000000 || skip "$WHY"
  unset ZSE_SYSROOT
  mkfifo "$T/hold"
  serve --kv-bytes 30MB
  until_status 200
  eat
  exec 6>"$T/hold"
  until_status 503
  jq -e '.error.code == "memory_pressure"' "$T/body"
  grep -q full "$T/eaten"
  exec 6>&-
  wait "$EATER"
  EATER=
  until_status 200
  grep -q 'memory is short: .* of 0.60 GB are left' "$T/err"
  grep -q 'memory is back' "$T/err"
}

@test "--work-memory and --max-request-memory: a request that needs more is refused by the option's name, smaller ones go on, /api/stats and /metrics count it" {
  run zse-serve --work-memory 1000 "$Z"
  [ "$status" = 2 ]
  unset ZSE_SYSROOT
  serve --work-memory 4MiB
  until_status 200                              # also with the least
  head -c 600000 /dev/zero | tr '\0' 'a' | sed 's/.*/{"content":"&"}/' >"$T/large"
  [ "$(curl -s -o "$T/body" -w '%{http_code}' "$URL/tokenize" -d @"$T/large")" = 413 ]
  jq -e '.error.code == "request_memory" and (.error.message | test("at most 1.0 MB .--max-request-memory.$"))' "$T/body"
  until_status 200
  head -c 500 "$T/home/admin.token" >"$T/token"
  curl -s -H "Authorization: Bearer $(cat "$T/token")" "$URL/api/stats" >"$T/stats"
  jq -e '.work_memory | .limit_bytes == 4194304 and .request_limit_bytes == 1048576 and .peak_bytes > 600000 and .refused == 1' "$T/stats"
  curl -s -H "Authorization: Bearer $(cat "$T/token")" "$URL/metrics" | grep -q '^zse_work_memory_limit_bytes 4194304$'
}

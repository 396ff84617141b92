# await.bash - for bats files (load ../lib/await): wait for states instead of times.

# await COMMAND...: run it until it succeeds, at most two minutes.
await() {
  local end=$((SECONDS + 120))
  until "$@"; do
    [ $SECONDS -lt $end ] || { echo "after two minutes still not: $*"; return 1; }
    sleep 0.05
  done
}

# says TEXT COMMAND...: whether the command prints TEXT
says() { [ "$("${@:2}")" = "$1" ]; }

# listens URL: whether a server there has its model loaded
listens() { curl -sf "$1/health" >/dev/null; }

# lease FILE: until release, open() of this file waits
lease() {
  exec 7< <(exec python3 -B tests/lib/lease.py "$1" 3>&-)
  LEASE=$!
  read -r -u 7 _
}
release() { kill "$LEASE" && exec 7<&-; }

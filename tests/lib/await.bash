# await.bash - for bats files (load ../lib/await): states are waited for, not times.

# await COMMAND...: until it says yes, at most two minutes.
await() {
  local end=$((SECONDS + 120))
  until "$@"; do
    [ $SECONDS -lt $end ] || { echo "after two minutes still not: $*"; return 1; }
    sleep 0.05
  done
}

# says TEXT COMMAND...: is that what it prints?
says() { [ "$("${@:2}")" = "$1" ]; }

# listens URL: is there a server whose model is loaded?
listens() { curl -sf "$1/health" >/dev/null; }

# server.bash - for bats files (load ../lib/server): one zse-serve with the tiny model for all tests
# of a file, at $URL, its process in $MAIN_PID, its files in $T; and more servers by start.
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export ZSE_HOME=$BATS_FILE_TMPDIR/home T=$BATS_FILE_TMPDIR
  zse-convert models/tiny -o "$T/tiny.zse" --quality fast >/dev/null
  start "$T/main" "$T/tiny.zse" --port 0
  export URL MAIN_PID=$PID MAIN_PORT=${URL##*:}
  await listens "$URL"
}
teardown_file() {
  kill -TERM "$MAIN_PID" 2>/dev/null
  while kill -0 "$MAIN_PID" 2>/dev/null; do sleep 0.05; done
}

setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }
teardown() {
  local p
  for p in $(jobs -p); do kill -KILL "$p" 2>/dev/null || true; done       # processes of a failed test
}

# start LOG ARG...: a server; its address in URL, its process in PID.
start() {
  local log=$1 _
  shift
  mkfifo "$log.pipe"
  zse-serve "$@" >"$log.pipe" 2>"$log.err" 3>&- &
  PID=$!
  read -r _ _ URL <"$log.pipe" || { cat "$log.err"; return 1; }
  rm "$log.pipe"
}
# stop PID: end it; its exit status
stop() { kill -TERM "$1" && wait "$1"; }

# installed PACKAGE...: whether build/venv has these packages.  They are looked up, not imported;
# the test's client imports them.
installed() {
  build/venv/bin/python -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' "$@" 2>/dev/null
}

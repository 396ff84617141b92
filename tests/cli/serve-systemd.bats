# serve-systemd.bats - zse-serve under systemd: sockets that are passed to it, and notifications.
# shellcheck disable=SC2154
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  zse-convert models/tiny -o "$BATS_FILE_TMPDIR/tiny.zse" --quality fast
}
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  T=$BATS_TEST_TMPDIR
  export ZSE_HOME=$T/home
  unset ZSE_HOST ZSE_PORT
}
teardown() { [ -z "${PID:-}" ] || { kill -KILL "$PID"; wait "$PID"; } 2>/dev/null || true; }

# refuses TEXT SOCKET...: a server with these sockets ends with this message
refuses() {
  run --separate-stderr python3 -B tests/serve/pass_sockets.py "${@:2}" -- zse-serve "$BATS_FILE_TMPDIR/tiny.zse"
  [ "$status" = 1 ] && [ -z "$output" ] && [[ $stderr == *"$1"* ]] || { echo "$*: $status, $output$stderr"; return 1; }
}
status() { curl -s -o /dev/null -w '%{http_code}' "$@"; }

@test "sockets of LISTEN_FDS are served, IPv4, IPv6 and Unix, and no other; a socket file stays" {
  local kinds=(tcp:127.0.0.1 tcp:::1 unix:"$T/s") urls=() url
  python3 -c 'import socket; socket.socket(socket.AF_INET6).bind(("::1", 0))' 2>/dev/null || kinds=(tcp:127.0.0.1 tcp:127.0.0.2 unix:"$T/s")
  exec 5< <(exec python3 -B tests/serve/pass_sockets.py "${kinds[@]}" -- zse-serve "$BATS_FILE_TMPDIR/tiny.zse" 2>"$T/err")
  PID=$!
  for _ in "${kinds[@]}"; do read -r -u 5 _ _ url; urls+=("$url"); done
  echo "${urls[@]}"
  [[ ${urls[0]} =~ ^http://127.0.0.1:[0-9]+$ && ${urls[1]} =~ ^http://.*:[0-9]+$ && ${urls[2]} = "unix:$T/s" ]]
  await listens "${urls[0]}"
  [ "$(status -g "${urls[1]}/v1/models")" = 200 ]
  [ "$(status --unix-socket "$T/s" http://localhost/v1/models)" = 200 ]
  [ "$(status -H 'Host: evil.example' "${urls[0]}/v1/models")" = 421 ]         # as on any loopback address
  # these three listen, and nothing else of the process does
  run sh -c "find /proc/$PID/fd -lname 'socket:*' -printf '%l\n' | tr -dc '0-9\n' | sort"
  listening=$(awk '$4 == "0A" { print $10 }' "/proc/$PID/net/tcp" "/proc/$PID/net/tcp6"; awk '$4 == "00010000" { print $7 }' "/proc/$PID/net/unix")
  [ "$(comm -12 <(echo "$output") <(sort <<<"$listening") | wc -l)" = 3 ]
  kill "$PID"
  wait "$PID"
  PID=
  run -0 cat <&5
  [ -z "$output" ]
  [ -S "$T/s" ]                     # it is systemd's
}

@test "sockets of LISTEN_FDS that cannot be served are refused by name; --host adds to those that can" {
  refuses 'socket 2 of LISTEN_FDS, udp: is no stream socket' tcp:127.0.0.1 udp
  refuses 'socket 1 of LISTEN_FDS, unheard: does not listen' unheard
  refuses 'socket 1 of LISTEN_FDS, file: Socket operation on non-socket' file
  refuses 'socket 2 of LISTEN_FDS, none: Bad file descriptor' tcp:127.0.0.1 none
  refuses 'is reachable from other machines, and there are no keys' unix:"$T/s" tcp:0.0.0.0
  [[ $stderr == *'socket 2 of LISTEN_FDS, tcp, http://0.0.0.0:'* ]]
  key=$(zse-apikey create app 2>/dev/null)
  exec 5< <(exec python3 -B tests/serve/pass_sockets.py tcp:0.0.0.0 -- zse-serve "$BATS_FILE_TMPDIR/tiny.zse" --host 127.0.0.1 --port 0 2>"$T/err")
  PID=$!
  read -r -u 5 _ _ own
  read -r -u 5 _ _ passed
  await listens "$own"
  [ "$(status "$passed/v1/models")" = 401 ]
  [ "$(status -H "Authorization: Bearer $key" "$passed/v1/models")" = 200 ]
}

@test "READY=1 comes when the model is ready, STOPPING=1 at SIGTERM" {
  run python3 -B tests/serve/notify.py "$T/notify" zse-serve --port 0 "$BATS_FILE_TMPDIR/tiny.zse"
  echo "$output"
  [ "$status" = 0 ]
}

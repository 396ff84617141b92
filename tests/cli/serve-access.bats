# serve-access.bats - zse-serve and its privileges: started as root, with a folder that cannot be
# written, with a log that another program locks.
# shellcheck disable=SC2154
bats_require_minimum_version 1.5.0
load ../lib/await

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  zse-convert models/tiny -o "$BATS_FILE_TMPDIR/tiny.zse" --quality fast
}
setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  T=$(mktemp -d /tmp/zse-access-XXXXXX)         # readable for other users
  chmod 755 "$T"
  install -m 644 "$BATS_FILE_TMPDIR/tiny.zse" "$T/tiny.zse"
  export ZSE_HOME=$T/home
}
teardown() {
  [ -z "${PID:-}" ] || { kill "$PID"; wait "$PID"; } 2>/dev/null || true
  [ -z "${MOUNTED:-}" ] || umount "$ZSE_HOME"
  rm -rf "$T"
}

serve() {
  exec 5< <("${AS[@]}" zse-serve "$T/tiny.zse" "$@" 2>"$T/err")
  PID=$!
  read -r -u 5 _ _ URL || { cat "$T/err"; return 1; }
}
# serve_low ARGUMENT...: a server on a free port below 1024; if another program takes the port
# first, the next one is tried
serve_low() {
  local port
  for port in {700..799}; do
    serve --port "$port" "$@" && return
    grep -q "Address already in use" "$T/err" || return
  done
  return 1
}
AS=(exec)
status() { curl -sk -o /dev/null -w '%{http_code}' "$@"; }
stop() {
  kill "$PID"
  wait "$PID" || return 1
  PID=
}
# metric NAME: its value
metric() { curl -s "$URL/metrics" | sed -n "s/^$1 //p"; }

@test "--user: the port below 1024, the key and the certificate as root, everything else as another user for good" {
  [ "$(id -u)" = 0 ] || skip "only root can become another user"
  id nobody >/dev/null || skip "there is no user nobody"
  command -v openssl >/dev/null || skip "no openssl command"
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$T/key.pem" -out "$T/cert.pem" -days 2 -subj /CN=localhost 2>/dev/null
  chmod 600 "$T/key.pem"
  serve_low --user nobody --tls-cert "$T/cert.pem" --tls-key "$T/key.pem" --socket "$T/socket" --audit-size 2kB
  await says 200 status "$URL/health"
  run awk -v id="$(id -u nobody)" -v group="$(id -g nobody)" '/^Uid:/ { n += $2 == id && $3 == id && $4 == id && $5 == id } /^Gid:/ { n += $2 == group && $3 == group && $4 == group && $5 == group }
    /^Cap(Prm|Eff|Inh|Amb):/ { n += $2 ~ /^0+$/ } /^NoNewPrivs:/ { n += $2 } /^Groups:/ { n += $0 !~ /[[:space:]]0([[:space:]]|$)/ } END { print n }' "/proc/$PID/status"
  [ "$output" = 8 ] || { cat "/proc/$PID/status"; return 1; }
  for _ in {1..20}; do [ "$(status "$URL/v1/models")" = 200 ]; done
  key=$(zse-apikey create app 2>/dev/null)              # run by root; the file stays the server's
  await says 401 status "$URL/v1/models"
  await says 200 status -H "X-API-Key: $key" "$URL/v1/models"
  [ "$(status --unix-socket "$T/socket" -H "X-API-Key: $key" http://localhost/v1/models)" = 200 ]
  stop
  # files are rotated and compressed, and none belongs to root
  [ "$(zse-audit stats --json | jq '.rotated_files > 2')" = true ]
  [ "$(zse-audit verify --json | jq .intact)" = true ]
  [ "$(find "$ZSE_HOME" "$T/socket" ! -user nobody | wc -l)" = 0 ]
  [ "$(find "$ZSE_HOME" -type f ! -perm 600 | wc -l)" = 0 ]
  # a second start with --user uses the existing folder
  serve_low --user "nobody:$(id -gn nobody)"
  await says 200 status -H "X-API-Key: $key" "$URL/v1/models"
  stop
}

@test "--user refuses unknown users, root and unknown groups" {
  for who in "no-such-user: there is no user 'no-such-user'" "root: is root, or in its group" "nobody:no-such-group: there is no group 'no-such-group'"; do
    [ "$(id -u)" = 0 ] || who="${who%%: *}: only root can become another user"
    run --separate-stderr zse-serve --user "${who%%: *}" "$T/tiny.zse" --port 0
    [ "$status$output" = 1 ]
    [[ "$stderr" == "zse-serve: --user $who"* ]] || { echo "$stderr"; return 1; }
  done
  [ ! -e "$ZSE_HOME" ]
  [ "$(id -u)" = 0 ] || skip "the rest needs root"
  run --separate-stderr setpriv --reuid nobody --clear-groups zse-serve --user nobody "$T/tiny.zse" --port 0
  [ "$status" = 1 ]
  [[ "$stderr" == *"only root can become another user"* ]]
  chmod 600 "$T/tiny.zse"                               # --plan reads the model as that user
  run --separate-stderr zse-serve --user nobody "$T/tiny.zse" --plan
  [ "$status" = 1 ]
  [[ "$stderr" == *"Permission denied"* ]]
}

@test "with keys the server leaves no core file, and other programs of the same user cannot read its memory" {
  [ "$(id -u)" != 0 ] || AS=(exec setpriv --reuid nobody --regid nogroup --clear-groups --)
  install -d -m 777 "$T/home"
  [ "$(id -u)" != 0 ] || chown nobody "$T/home"
  chmod 700 "$T/home"
  serve --port 0
  # PR_SET_DUMPABLE is off, so /proc/PID belongs to root, and programs of the same user cannot read
  # it or attach
  [ "$(stat -c %u "/proc/$PID/environ")" = 0 ]
  [ "$(awk '/^Max core file size/ { print $5 }' "/proc/$PID/limits")" = 0 ]
  await says 200 status "$URL/health"
  # the server itself can still read /proc
  [ "$(curl -s "$URL/v1/completions" -d '{"prompt":"a","max_tokens":2}' | jq .usage.completion_tokens)" = 2 ]
  stop
}

@test "a read-only folder: keys and their state can be listed, changes fail with the file and the reason, the server accepts known keys" {
  key=$(zse-apikey create app --rate-limit 3 --scope chat,models 2>/dev/null)
  why="Read-only file system"
  if [ "$(id -u)" != 0 ]; then
    why="Permission denied"
    chmod -R a-w "$ZSE_HOME"
  elif mount --bind "$ZSE_HOME" "$ZSE_HOME" 2>/dev/null && MOUNTED=1 && mount -o remount,bind,ro "$ZSE_HOME"; then
    :
  else
    skip "no read-only mount can be made here, and root may write everywhere else"
  fi
  zse-apikey list | grep -q '^app  *good  *3 '
  [ "$(zse-apikey status)" = "keys are required" ]
  [ "$(zse-apikey status app --json | jq .remaining)" = 3 ]
  for c in "create b" "rotate app" "delete app" "disable app" "enable" "reset app"; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-apikey $c
    file=keys.db
    [ "$c" != "reset app" ] || file=usage
    [ "$status$output,${#stderr_lines[@]}" = 1,1 ]
    [[ "$stderr" == "zse-apikey: $ZSE_HOME/$file: "*"$why" ]] || { echo "$c: $stderr"; return 1; }
  done
  serve --port 0
  await listens "$URL"
  [ "$(status "$URL/v1/models")" = 401 ]
  for code in 200 200 200 429; do [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = $code ]; done
  await grep -q "the audit log lacks lines from now on: $ZSE_HOME/audit: $why" "$T/err"
  stop
  grep -q "admin.token: $why: no administration over HTTP" "$T/err"
  grep -q "usage: $why: the use of keys is counted in this process only" "$T/err"
  [ "$(grep -c 'the audit log lacks' "$T/err")" = 1 ]
  chmod -R u+w "$ZSE_HOME" 2>/dev/null || true
}

@test "reading an empty folder creates no file; a server that could not create the file of keys notices when another program does" {
  run --separate-stderr zse-apikey list
  [ "$status$output" = 0 ]
  [[ "$stderr" == *"no keys yet"* ]]
  [ "$(zse-apikey status)" = "keys are not required" ]
  [ ! -e "$ZSE_HOME" ]
  [ "$(id -u)" = 0 ] || skip "the rest needs a mount that only the server sees, and so root"
  mkdir "$ZSE_HOME"
  unshare -m true 2>/dev/null || skip "no mounts can be made here"
  AS=(exec unshare -m sh -c "mount --bind '$ZSE_HOME' '$ZSE_HOME' && mount -o remount,bind,ro '$ZSE_HOME' && exec \"\$@\"" -)
  serve --port 0
  await listens "$URL"
  [ "$(status "$URL/v1/models")" = 200 ]
  key=$(zse-apikey create app 2>/dev/null)
  await says 401 status "$URL/v1/models"
  [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = 200 ]
  zse-apikey delete app
  await says 401 status -H "X-API-Key: $key" "$URL/v1/models"
  stop
}

@test "a program that holds the log's lock delays no request; the lines are written when it ends" {
  serve --port 0 --max-seqs 2
  await listens "$URL"
  [ "$(status "$URL/v1/models")" = 200 ]
  await test -e "$ZSE_HOME/audit/audit.lock"
  exec 6<"$ZSE_HOME/audit/audit.lock"
  flock 6
  for _ in {1..5}; do [ "$(status "$URL/v1/models")" = 200 ]; done
  [ "$(curl -sN "$URL/v1/completions" -d '{"prompt":"a","max_tokens":3,"stream":true,"ignore_eos":true}' | grep -c '^data: {')" -ge 3 ]
  [ "$(metric zse_audit_waiting)" -ge 6 ]
  [ "$(metric zse_audit_errors_total)" = 0 ]
  exec 6<&-
  await says 0 metric zse_audit_waiting
  stop
  [ "$(zse-audit query -p /v1 --json | jq -s length)" = 7 ]
  [ "$(zse-audit verify --json | jq .intact)" = true ]
}

@test "request_id of a line is the answer's X-Request-Id: refusals, streams, WebSockets; a client's own where it is well-formed" {
  key=$(zse-apikey create app 2>/dev/null)
  serve --port 0
  await listens "$URL"
  # id ARGUMENT...: the status and the header
  id() { curl -s -o /dev/null -w '%{http_code} %header{x-request-id}' "$@"; }
  own=(-H "X-API-Key: $key")
  [ "$(id "${own[@]}" -H 'X-Request-Id: chat:1' "$URL/v1/completions" -d '{"prompt":"a","max_tokens":2,"stream":true}')" = "200 chat:1" ]
  [ "$(id -H 'X-Request-Id: none_1' "$URL/none")" = "404 none_1" ]
  [ "$(id -H 'X-Request-Id: locked.1' "$URL/v1/models")" = "401 locked.1" ]
  { id "${own[@]}" -H 'X-Request-Id: not this' "$URL/v1/completions" -d '{"prompt":5}'; echo; id "${own[@]}" -X POST "$URL/v1/chat/completions" -H 'Content-Length: x'; echo; id "$URL/v1/models"; echo
    python3 - "${URL##*:}" "$key" <<'END'
import sys
sys.path.insert(0, 'tests/serve')
import wire
w = wire.connect(int(sys.argv[1]))
w.sendall(b'GET /ws/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-API-Key: %s\r\n\r\n' % sys.argv[2].encode())
x = wire.WebSocket.__new__(wire.WebSocket)
x.s, x.f = w, w.makefile('rb')
status, fields, _ = wire.response(x.f)
for n in (1, 2):
    x.send(b'{"broken')
    x.receive()
print(status, fields['x-request-id'])
for n in (1, 2):
    print(400, fields['x-request-id'] + f'/{n}')
END
  } >"$T/ids"
  stop
  [ "$(wc -l <"$T/ids")" = 6 ]
  [ "$(grep -cE '^[0-9]{3} [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(/[12])?$' "$T/ids")" = 6 ]
  printf '%s\n' '200 chat:1' '404 none_1' '401 locked.1' >>"$T/ids"
  diff <(sort "$T/ids") <(zse-audit query --json | jq -r '"\(.status_code) \(.request_id)"' | grep -v '^503' | sort)
}

@test "a WebSocket's messages count for its key's limit and in /metrics, its handshake does not" {
  key=$(zse-apikey create app --rate-limit 3 2>/dev/null)
  reader=$(zse-apikey create reader --scope models 2>/dev/null)
  serve --port 0
  await listens "$URL"
  python3 - "${URL##*:}" "$key" >"$T/seen" <<'END'
import json, sys
sys.path.insert(0, 'tests/serve')
import wire
def dial(path):
    return wire.WebSocket(int(sys.argv[1]), path, fields=f'X-API-Key: {sys.argv[2]}\r\n'.encode())
chat, completions = dial(b'/ws/chat'), dial(b'/ws/completions')
print(chat.code, completions.code)
for w in chat, completions, completions, chat:
    w.send(b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1}' if w is chat else b'{"broken')
    m = json.loads(w.receive()[1])
    while m.get('type') == 'token':
        m = json.loads(w.receive()[1])
    print(m['type'] if m['type'] == 'done' else m.get('status') or m['error']['code'])
print(dial(b'/ws/chat').code)
END
  [ "$(xargs <"$T/seen")" = "101 101 done invalid_json invalid_json 429 429" ] || { cat "$T/seen"; return 1; }
  [ "$(zse-apikey status app --json | jq .current)" = 3 ]
  [ "$(curl -s -H "X-API-Key: $reader" "$URL/metrics" | sed -n 's/^zse_http_requests_total{method="GET",route="\(.ws[^"]*\)",code="\([0-9]*\)"} /\1 \2 /p' | sort | xargs)" = \
    "/ws/chat 101 1 /ws/chat 200 1 /ws/chat 429 2 /ws/completions 101 1 /ws/completions 400 2" ]
}

@test "audit lines of a flood without a key are merged, bounded and counted, and displace no line of a key" {
  key=$(zse-apikey create app 2>/dev/null)
  serve --port 0 --audit-size 20kB --audit-anonymous-size 10kB --audit-files 2
  await listens "$URL"
  [ "$(status -H "X-API-Key: $key" "$URL/v1/completions" -d '{"prompt":"a","max_tokens":2}')" = 200 ]
  python3 - "${URL##*:}" <<'END'
import sys
sys.path.insert(0, 'tests/serve')
import wire
w = wire.connect(int(sys.argv[1]))
f = w.makefile('rb')
for i in range(100):
    w.sendall(b''.join(b'GET /%d' % (i * 30 + k) + b'%01' * 1000 + b' HTTP/1.1\r\nHost: localhost\r\n\r\n' for k in range(30)))
    for k in range(30):
        assert wire.response(f)[0] == 404
END
  stop
  [ "$(zse-audit query -k app --json | jq -c '[.path, .status_code, .total_tokens]')" = '["/v1/completions",200,3]' ]
  [ "$(wc -c <"$ZSE_HOME/audit/requests.jsonl")" -lt 2000 ]
  [ "$(awk 'length > 2000' "$ZSE_HOME/audit/anonymous.jsonl" | wc -l)" = 0 ]
  [ "$(ls "$ZSE_HOME"/audit/anonymous*.jsonl* | wc -l)" -le 3 ]
  [ "$(zse-audit query -l 1000 --json | jq -s 'map(.count // 1) | add')" -ge 2940 ]
  zse-audit query -l 1000 --json | jq -se 'any(.count > 1000 and .path == "/*" and .client_ip == "127.0.0.1" and (.last_timestamp >= .timestamp) and .status_code == 404)'
  zse-audit query -l 1000 --json | jq -se 'any(.path | endswith("\u0001...[1003 bytes]"))'
  zse-audit recent | grep -q '  x[0-9][0-9]*$'
  [ "$(zse-audit summary --json | jq '.status_codes["404"] >= 2940')" = true ]
  zse-audit verify
}

@test "--audit-sign and --audit-syslog: heads are signed, lines leave the machine, a server that does not answer is told once" {
  command -v openssl >/dev/null || skip "no openssl command"
  openssl genpkey -algorithm ed25519 -out "$T/audit.key"
  openssl pkey -in "$T/audit.key" -pubout -out "$T/audit.pub"
  key=$(zse-apikey create app --scope chat,models,admin 2>/dev/null)
  exec 6< <(exec python3 -u - "$T/syslog" <<'END'
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 0))
print(s.getsockname()[1])
s.settimeout(60)
with open(sys.argv[1], 'wb', 0) as f:
    while True:
        f.write(s.recv(65536) + b'\n')
END
  )
  local logger=$! port
  read -r -u 6 port
  serve --port 0 --audit-sign "$T/audit.key" --audit-syslog "127.0.0.1:$port"
  await listens "$URL"
  [ "$(status -H "X-API-Key: $key" -H 'X-Request-Id: far-away' "$URL/v1/models")" = 200 ]
  await grep -qE '^<110>1 [-0-9]{10}T[0-9:.]{12}Z [^ ]+ zse-serve [0-9]+ requests - [{].*"request_id":"far-away".*"hash":"[0-9a-f]{64}"}$' "$T/syslog"
  [ "$(curl -s -H "X-API-Key: $key" "$URL/api/audit/stats" | jq -c '[.syslog.sent > 2, .syslog.dropped]')" = '[true,0]' ]
  stop
  kill $logger
  grep -q '"event":"signature"' "$T/syslog"
  zse-audit verify --key "$T/audit.pub" | grep -qE '^[12] good signatures? of requests; 0 lines after the last$'
  openssl genpkey -algorithm ed25519 -out "$T/other.key"
  openssl pkey -in "$T/other.key" -pubout -out "$T/other.pub"
  run --separate-stderr zse-audit verify --key "$T/other.pub"
  [ "$status$output" = 1 ]
  [[ "$stderr" == *"signed with another key"* ]]
  run --separate-stderr zse-audit verify --key "$T/audit.key"
  [ "$status$output" = 1 ]
  [[ "$stderr" == *"audit.key: expected a public Ed25519 key"* ]]
  run --separate-stderr zse-serve "$T/tiny.zse" --port 0 --audit-sign "$T/audit.pub"
  [ "$status$output" = 1 ]
  run --separate-stderr zse-serve "$T/tiny.zse" --port 0 --audit-syslog nowhere
  [ "$status$output" = 1 ]
  [[ "$stderr" == *"'nowhere' is neither HOST:PORT"* ]]
  serve --port 0 --audit-syslog "$T/no-socket"
  await listens "$URL"
  [ "$(status -H "X-API-Key: $key" "$URL/v1/models")" = 200 ]
  stop
  grep -q "audit-syslog $T/no-socket: messages are dropped from now on: $T/no-socket: No such file" "$T/err"
}

@test "--audit-url: a collector with a certificate of SSL_CERT_FILE gets the lines of the log, and is told who sends them" {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=collector \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$T/collector.key" -out "$T/collector.crt" 2>/dev/null
  key=$(zse-apikey create app --scope chat,models,admin 2>/dev/null)
  exec 6< <(exec python3 -u - "$T/collected" "$T/collector" 3>&- <<'END'
import http.server, ssl, sys
class Collector(http.server.BaseHTTPRequestHandler):
    n = 0
    def do_POST(self):
        Collector.n += 1
        body = self.rfile.read(int(self.headers['Content-Length']))
        if Collector.n > 1:             # the first attempt fails
            with open(sys.argv[1], 'ab') as f:
                f.write(body)
            with open(sys.argv[1] + '.head', 'a') as f:
                f.write(str(self.headers))
        self.send_response(200 if Collector.n > 1 else 503)
        self.send_header('Retry-After', '0')
        self.end_headers()
    def log_message(self, *a): pass
s = http.server.HTTPServer(('127.0.0.1', 0), Collector)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(sys.argv[2] + '.crt', sys.argv[2] + '.key')
s.socket = tls.wrap_socket(s.socket, server_side=True)
print(s.server_port)
s.serve_forever()
END
  )
  local collector=$! port
  read -r -u 6 port
  echo t0ken >"$T/token"
  CURL_CA_BUNDLE='' SSL_CERT_FILE=$T/collector.crt serve --port 0 --audit-url "https://u:hunter2@127.0.0.1:$port/in" --audit-token "$T/token"
  await listens "$URL"
  run ! grep -a hunter2 "/proc/$PID/cmdline"
  [ "$(status -H "X-API-Key: $key" -H 'X-Request-Id: collect-me' "$URL/v1/models")" = 200 ]
  await grep -q '"request_id":"collect-me"' "$T/collected"
  posted() { [ "$(curl -s -H "X-API-Key: $key" "$URL/metrics" | awk '$1 == "zse_audit_url_sent_total" { print $2 }')" -ge 1 ]; }
  await posted
  [ "$(curl -s -H "X-API-Key: $key" "$URL/api/audit/stats" | jq -c '[.url.sent >= 1, .url.dropped, .syslog, .url.last_error]')" = '[true,0,null,"the collector answered with status 503"]' ]
  stop
  kill $collector
  # the same lines as in the file, with their hashes
  diff <(jq -c . "$T/collected" | sort) <(cat "$ZSE_HOME/audit/requests.jsonl" "$ZSE_HOME"/audit/anonymous.jsonl | grep -Ff <(jq -r '.hash' "$T/collected") | jq -c . | sort)
  grep -q '^X-Audit-Chain: requests$' "$T/collected.head"
  grep -q '^Authorization: Bearer t0ken$' "$T/collected.head"
  zse-audit verify
  run --separate-stderr zse-serve "$T/tiny.zse" --port 0 --audit-url ftp://u:hunter2@h/
  [ "$status" = 2 ]
  [[ "$stderr" == *'--audit-url: the URL begins neither with https:// nor with http://'* && "$stderr" != *hunter2* ]]
  run --separate-stderr zse-serve "$T/tiny.zse" --port 0 --audit-url https://h/ --audit-token /dev/null
  [ "$status" = 1 ]
  [[ "$stderr" == *'/dev/null: '* ]]
  local url
  for url in http://h/ http://127.0.0.1.h/ http://127.0.0.1@h/ http://localhost:5@h:1/a; do
    run --separate-stderr zse-serve "$T/tiny.zse" --port 0 --audit-url "$url" --audit-token /dev/null
    [ "$status" = 2 ]
    [[ "$stderr" == *'would show the token to the network'* ]]
  done
  for url in http://127.0.0.1:9/ http://u:p@localhost/ 'http://[::1]/in'; do
    run --separate-stderr zse-serve "$T/tiny.zse" --port 0 --audit-url "$url" --audit-token /dev/null
    [ "$status" = 1 ]
  done
}

@test "if one key has filled the queue, a request of another key is accepted, and one of the first key gets 503" {
  many=$(zse-apikey create many 2>/dev/null)
  one=$(zse-apikey create one --scope chat,models 2>/dev/null)
  serve --port 0 --batching off --max-queue 5
  await listens "$URL"
  waiting() { curl -s -H "X-API-Key: $one" "$URL/api/stats/models" | jq '.models[0].waiting'; }
  local tokens=1900
  [ -z "${ZSE_SANITIZED-}" ] || tokens=500              # takes about as long with a sanitizer
  # one curl, so that the requests arrive together
  for i in {1..6}; do
    [ "$i" = 1 ] || echo next
    printf 'url = "%s/v1/completions"\nheader = "X-API-Key: %s"\noutput = "%s"\nwrite-out = "%%{http_code}\\n"\n' "$URL" "$many" "$T/$i"
    printf 'data = "{\\"prompt\\":\\"%s\\",\\"max_tokens\\":%d,\\"ignore_eos\\":true,\\"priority\\":1000}"\n' "$i" $tokens
  done >"$T/requests"
  # repeat until the queue was seen full and still was full when the other key's request came, so
  # that one request got 503
  for _ in {1..30}; do
    curl -s --parallel --parallel-immediate -K "$T/requests" >"$T/codes" 3>&- 5<&- &
    many=$! n=
    while kill -0 "$many" 2>/dev/null && n=$(waiting) && [ "$n" != 5 ]; do :; done
    [ "$(status -H "X-API-Key: $one" "$URL/v1/completions" -d '{"prompt":"a","max_tokens":2}')" = 200 ]
    wait "$many"
    seen="$n waited; $(sort "$T/codes" | uniq -c | xargs)"
    [ "$seen" != "5 waited; 5 200 1 503" ] || break
  done
  [ "$seen" = "5 waited; 5 200 1 503" ] || { echo "$seen"; return 1; }
  [ "$(jq -r '.error.code // empty' "$T"/[1-6])" = overloaded ]
  stop
}

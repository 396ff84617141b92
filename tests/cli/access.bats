# access.bats - zse-apikey and zse-audit at the command line: streams, exit codes, concurrency,
# cron.
bats_require_minimum_version 1.5.0

setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export ZSE_HOME=$BATS_TEST_TMPDIR/home
  T=$BATS_TEST_TMPDIR
}
# entry SECONDS PATH STATUS LATENCY_MS KEY: a line of an audit log that is SECONDS old.  It has no
# hash of the line before; readers must accept that, only `zse-audit verify` checks it.
entry() {
  printf '{"timestamp":"2026-11-21T15:08:46.003Z","timestamp_unix":%s,"request_id":"id-%s","method":"POST","path":"%s","status_code":%s,"latency_ms":%s,"api_key_name":"%s","total_tokens":7}\n' \
    "$(($(date +%s) - $1))" "$1" "$2" "$3" "$4" "$5"
}

@test "create: the key alone on stdout, once; nothing of it in the folder" {
  run --separate-stderr zse-apikey create app --rate-limit 60
  [ "$status" = 0 ]
  [[ "$output" =~ ^zse-[A-Za-z0-9_-]{43}$ ]]
  [[ "$stderr" == *"keys are required from now on"* ]]
  key=$output
  run ! grep -rqF -e "${key#zse-}" "$ZSE_HOME"
  hash=$(printf %s "$key" | sha256sum | cut -c1-64)
  cat "$ZSE_HOME"/keys.db* | od -An -v -tx1 | tr -d " \n" | grep -q "$hash"
  [ "$(stat -c %a "$ZSE_HOME")" = 700 ]
  [ "$(stat -c %a "$ZSE_HOME/keys.db")" = 600 ]
  run --separate-stderr zse-apikey create app
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"'app' exists already"* ]]
  zse-apikey list | grep -q '^app  *good  *60 '
  zse-apikey list --json >"$T/list"
  [ "$(jq -r '.keys[0].name, .keys[0].rate_limit, .required' "$T/list" | xargs)" = "app 60 true" ]
  run ! grep -qF -e "$key" "$T/list"
}

@test "twenty programs make twenty keys" {
  for i in {1..20}; do zse-apikey create "k$i" >"$T/$i" 2>/dev/null & done
  wait
  [ "$(cat "$T"/[0-9]* | sort -u | wc -l)" = 20 ]
  [ "$(zse-apikey list --json | jq '.keys | length')" = 20 ]
}

@test "disable, enable, rotate, reset and delete change a key; unknown names are refused" {
  old=$(zse-apikey create app 2>/dev/null)
  new=$(zse-apikey rotate app 2>/dev/null)
  [ "$old" != "$new" ]
  zse-apikey disable app && zse-apikey list | grep -q '^app  *disabled '
  zse-apikey enable app && zse-apikey reset app
  [ "$(zse-apikey status app --json | jq -c '[.current, .remaining, .window_s]')" = "[0,null,60]" ]
  zse-apikey disable && [ "$(zse-apikey status)" = "keys are not required" ]
  zse-apikey enable && [ "$(zse-apikey status)" = "keys are required" ]
  zse-apikey delete app
  for c in delete status rotate reset enable; do
    run --separate-stderr zse-apikey $c app
    [ "$status" = 1 ]
    [ -z "$output" ]
    [[ "$stderr" == *"no key 'app'"* ]]
  done
}

@test "mistakes are reported: exit 2 for usage, 1 for a folder that cannot be written" {
  for a in "create" "create a b" "list x" "frob" "create a --expires yesterday" "create a --expires 2001-01-01" "create a --scope root" "create a --rate-limit 0" \
           "create a --token-limit 5/week" "list --rate-limit 5" "create a --model a,b"; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-apikey $a
    [ "$status" = 2 ] && [ -z "$output" ] && [ -n "$stderr" ] || { echo "$a: $status"; return 1; }
  done
  touch "$T/file"
  run --separate-stderr zse-apikey list --home "$T/file"
  [ "$status" = 1 ] && [ -z "$output" ] && [[ "$stderr" == *"$T/file"* ]]
}

@test "audit: sums and selections cover plain and compressed files" {
  mkdir -p "$ZSE_HOME/audit"
  { entry 7000 /v1/models 200 1 app; entry 6000 /v1/chat/completions 429 2 app; } | gzip >"$ZSE_HOME/audit/requests_20261121_150000.jsonl.gz"
  { entry 300 /v1/chat/completions 200 1500 app; entry 200 /v1/chat/completions 200 20 other; echo '{"half'; } >"$ZSE_HOME/audit/requests.jsonl"
  zse-audit --json >"$T/s" 2>/dev/null
  [ "$(jq -c '[.total_requests, .errors, .unique_keys, .total_tokens, .endpoints["/v1/models"], .status_codes["429"], .skipped_lines]' "$T/s")" = '[4,1,2,28,1,1,1]' ]
  [ "$(zse-audit summary -H 1 --json | jq .total_requests)" = 2 ]
  [ "$(TZ=Asia/Tokyo zse-audit summary -H 1 --json | jq .total_requests)" = 2 ]
  [ "$(zse-audit recent -l 1 --json 2>/dev/null | jq -r .request_id)" = id-200 ]
  [ "$(zse-audit query -k app -s 429 -p /v1/chat --json 2>/dev/null | jq -r .request_id)" = id-6000 ]
  [ "$(zse-audit query -s 2 --min-latency 100 --json 2>/dev/null | jq -r .request_id)" = id-300 ]
  [ "$(zse-audit query --json 2>/dev/null | jq -r .request_id | xargs)" = "id-200 id-300 id-6000 id-7000" ]
  [ "$(zse-audit stats --json | jq -c '[.total_entries, .rotated_files, .skipped_lines]')" = '[4,1,1]' ]
}

@test "audit: a count of one is printed in the singular" {
  mkdir -p "$ZSE_HOME/audit"
  entry 1 /a 404 1 app >"$ZSE_HOME/audit/requests.jsonl"
  echo '{"half' >>"$ZSE_HOME/audit/requests.jsonl"
  cp "$ZSE_HOME/audit/requests.jsonl" "$ZSE_HOME/audit/requests_20261121_150000.jsonl"
  : >"$ZSE_HOME/audit/requests.jsonl"
  { zse-audit summary -H 1; zse-audit stats; zse-audit export -o "$T/x"; zse-audit verify; zse-audit clear --yes \
    --all; } >"$T/o" 2>&1
  for text in 'last 1 hour: 1 request, 1 error, 1 key$' '1 rotated file,' '1 request in 1 line, 1 error$' 'skipped 1 line of' 'x: 1 line$' 'intact: 0 lines in 2 files$'; do
    grep -q "$text" "$T/o" || { echo "$text"; cat "$T/o"; return 1; }
  done
}

@test "audit: text that clients wrote cannot control the terminal or look like another line" {
  mkdir -p "$ZSE_HOME/audit"
  entry 300 '/a\u001b[2J\u009b31m\u202e\n2026-11-21T00:00:00.000Z  200' 404 1 app >"$ZSE_HOME/audit/requests.jsonl"
  for c in recent query summary; do
    zse-audit $c >"$T/o"
    grep -q '/a?\[2J?31m????2026' "$T/o" || { cat "$T/o"; return 1; }
  done
}

@test "audit export runs from cron, with an empty environment; it writes all or nothing, and a header even without entries" {
  bin=$(dirname "$(command -v zse-audit)")
  mkdir -p "$T/.zse/audit" && touch "$T/.zse/audit/requests.jsonl"
  env -i HOME="$T" "$bin/zse-audit" export -f csv -o "$T/o.csv"
  [ "$(wc -l <"$T/o.csv")" = 1 ]
  grep -q '^timestamp,.*,status_code,' "$T/o.csv"
  mkdir -p "$ZSE_HOME/audit"
  for i in {1..50}; do entry "$i" "/v1/$i" 200 1 "=app"; done >"$ZSE_HOME/audit/requests.jsonl"
  zse-audit export -f csv -o "$T/o.csv" 2>/dev/null
  [ "$(wc -l <"$T/o.csv")" = 51 ]
  python3 -c 'import csv,sys; r=list(csv.DictReader(open(sys.argv[1]))); assert len(r)==50 and r[0]["api_key_name"]=="'"'"'=app" and r[9]["path"]=="/v1/10", r[9]' "$T/o.csv"
  [ "$(zse-audit export -o - | jq -r .path | tail -1)" = /v1/50 ]
  run --separate-stderr zse-audit export -o /no/such/folder/x
  [ "$status" = 1 ] && [ -z "$output" ]
}

@test "audit report: one page with sums, charts and tables, in which text of clients is only text" {
  mkdir -p "$ZSE_HOME/audit"
  { for i in {1..40}; do entry "$((i * 60))" /v1/chat/completions 200 "$i" app; done
    for i in {1..10}; do entry 7000 '/<script>\u0022&' 404 800 'b<i>'; done
    entry 90000 /old 200 1 app; entry -4000 /future 200 1 app; } >"$ZSE_HOME/audit/requests.jsonl"
  zse-audit report -o "$T/o.html"
  python3 - "$T/o.html" <<'CHECK'
import html.parser, re, sys
text = open(sys.argv[1]).read()
open_tags, rows = [], []
class Page(html.parser.HTMLParser):
    def handle_starttag(self, tag, attrs):
        if tag == 'tr': rows.append([])
        if tag != 'meta': open_tags.append(tag)
    def handle_startendtag(self, tag, attrs): pass
    def handle_endtag(self, tag): assert open_tags.pop() == tag, tag
    def handle_data(self, data):
        if open_tags and open_tags[-1] in ('td', 'th'): rows[-1].append(data)
Page().feed(text.replace('<!DOCTYPE html>', ''))
assert not open_tags
by = {r[0]: r[1:3] for r in rows}
joined = [''.join(r[:-5]) for r in rows]
assert by['all'] == ['50', '10'], by
assert by['app'] == ['40', '0'] and by['404'] == ['10', '10'] and by['/v1/chat/completions'] == ['40', '0'], by
assert '/<script>"&' in joined and 'b<i>' in joined, joined
assert '/old' not in joined and '/future' not in joined
assert '<script' not in text and 'http' not in text
assert text.count('<svg') == text.count('</svg>') == 3
assert sum(int(r[1]) for r in rows if re.match(r'20..-..-.. ', r[0])) == 50
half, most = map(float, re.search(r'took at most ([0-9.]+) ms, 19 of 20 at most ([0-9.]+) ms', text).groups())
assert 25 <= half <= 25 * 1.1 and 800 <= most <= 800 * 1.1, (half, most)
CHECK
  [ "$(zse-audit report -s 4 -o - | grep -c '<td>200</td>')" = 0 ]
  zse-audit report -H 30 -o - | grep -q '<td>/old</td>'
  run ! zse-audit report -o "$ZSE_HOME/audit/requests.jsonl"
  [[ $output == *'is a file of the log'* ]]
  ln -s "$ZSE_HOME/audit/requests.jsonl" "$T/link"
  run ! zse-audit export -o "$T/link"
  [ "$(wc -l <"$ZSE_HOME/audit/requests.jsonl")" = 52 ]
  # a change of direction and a control character, which other programs may have written to the log
  entry 60 $'/a\u202eb\u0085c' 200 1 app >>"$ZSE_HOME/audit/requests.jsonl"
  zse-audit report -o - | grep -q '<td>/a?b?c</td>'
  run -2 zse-audit report
  [[ $output == *'report needs -o FILE'* ]]
}

@test "audit: a missing log is an error that names its file, an empty one is not; -h shows the help" {
  for a in summary recent query "export -o $T/x" verify head stats "clear --yes"; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-audit $a
    [ "$status$output" = 1 ] && [ "$stderr" = "zse-audit: $ZSE_HOME/audit/requests.jsonl: there is no audit log" ] || { echo "$a: $status $stderr"; return 1; }
  done
  [ ! -e "$T/x" ]
  mkdir -p "$ZSE_HOME/audit"
  touch "$ZSE_HOME/audit/requests.jsonl"
  for a in summary recent query "export -o -" verify head stats; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-audit $a
    [ "$status" = 0 ] || { echo "$a: $status $stderr"; return 1; }
  done
  for p in zse-convert zse-info zse-hardware zse-bench zse-chat zse-serve zse-apikey zse-audit; do
    diff <($p -h) <($p --help)
    $p -h | grep -q '^  -h, --help '
  done
  run --separate-stderr zse-audit export -h 24 -o "$T/x"        # hours, once
  [ "$status" = 2 ] && [[ "$stderr" == *"-H 24"* ]]
}

@test "audit verify --since takes a hash or a date, and says what is missing" {
  zse-audit clear --yes --folder "$T/none" && return 1
  mkdir -p "$ZSE_HOME/audit" && touch "$ZSE_HOME/audit/requests.jsonl"
  zse-audit clear --yes && zse-audit clear --yes
  read -r hash name seq < <(zse-audit head)
  [[ "$hash" =~ ^[0-9a-f]{64}$ ]]
  [ "$name $seq" = "requests 3" ]
  zse-audit verify --since "$hash" | grep -qx "$hash requests 3"
  zse-audit clear --yes --all
  [ "$(zse-audit verify --since "$hash" --json | jq -c '[.intact, .since_found, .chains.requests.last_seq]')" = '[true,true,4]' ]
  zse-audit verify --since "$(date -u -d '+1 hour' +%Y-%m-%dT%H:%M:%SZ)"
  run --separate-stderr zse-audit verify --since 2001-01-01
  [ "$status$output" = 1 ]
  [[ "$stderr" == *"requests.jsonl: what came after 2001-01-01T00:00:00Z is missing: the log reaches back to 20"*"(it was cleared)" ]]
  run --separate-stderr zse-audit verify --since "$(printf '%064d' 1)" --json
  [ "$status" = 1 ]
  [ "$(jq -c '[.intact, .since_found]' <<<"$output")" = '[false,false]' ]
  : >"$ZSE_HOME/audit/requests.jsonl"
  run --separate-stderr zse-audit verify
  [ "$status$output" = 1 ]
  [[ "$stderr" == *"the log ends with line 0, requests.head says 4: its end was cut or removed" ]]
  for a in "verify --since yesterday" "verify --since 12ab" "recent --since 1d"; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-audit $a
    [ "$status$output" = 2 ] || { echo "$a: $status"; return 1; }
  done
}

@test "audit verify does not report a log without a chain as intact; clear needs a yes" {
  mkdir -p "$ZSE_HOME/audit"
  touch "$ZSE_HOME/audit/requests.jsonl"
  run zse-audit verify
  [ "$status" = 0 ]
  entry 1 / 200 1 app >"$ZSE_HOME/audit/requests.jsonl"
  run --separate-stderr zse-audit verify --json
  [ "$(jq -c '[.lines, .foreign_lines]' <<<"$output")" = '[0,1]' ]
  run --separate-stderr zse-audit verify --expect "$(printf '%064d' 1)"
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"not part of the log"* ]]
  run zse-audit clear </dev/null
  [ "$status" = 1 ]
  [[ "$output" == *"--yes"* ]]
  [ "$(zse-audit clear --yes --json | jq -c '[.status, .lines]')" = '["cleared",1]' ]
  [ "$(zse-audit verify --json | jq -c '[.intact, .lines, .chains.requests.lines]')" = '[true,2,1]' ]
  for a in "export" "query -o x" "recent -H 1" "verify --expect 12" "query -s 77" "frob" "stats x"; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-audit $a
    [ "$status" = 2 ] && [ -z "$output" ] || { echo "$a: $status"; return 1; }
  done
}

@test "scripts/deploy: the dashboard asks for figures that the server has, the unit is well formed" {
  run grep -oE 'zse_[a-z_]+' scripts/deploy/grafana.json
  [ "${#lines[@]}" -gt 8 ]
  for name in "${lines[@]}"; do
    grep -rqw "${name%_bucket}" libcommon/serve || { echo "the server has no $name"; return 1; }
  done
  jq -e '.panels | length == 11' scripts/deploy/grafana.json
  run grep -cE '^(User=zse|NoNewPrivileges=yes|ProtectSystem=strict|CapabilityBoundingSet=$|ExecStart=/usr/local/bin/zse-serve )' scripts/deploy/zse-serve.service
  [ "$output" = 5 ]
  if command -v systemd-analyze >/dev/null; then
    sed 's|^ExecStart=.*|ExecStart=/bin/true|; /^\[Install\]/,$d' scripts/deploy/zse-serve.service >"$T/zse-test.service"
    run systemd-analyze verify "$T/zse-test.service"
    if grep -E 'Unknown|Failed to parse|Invalid' <<<"$output"; then return 1; fi
  fi
  for word in $(sed -nE 's/^[0-9*].*zse-audit ([a-z]+).*/\1/p' scripts/deploy/crontab); do
    zse-audit --help | grep -q "^  $word" || { echo "no command $word"; return 1; }
  done
}

# web.bats - the web interface: its files over HTTP, and its pages in a browser.
bats_require_minimum_version 1.5.0
load ../lib/server

status() { curl -s -o /dev/null -w '%{http_code}' "$@"; }
# header NAME CURL_ARGUMENT...: the value of this field in the response
header() { curl -s -o /dev/null -D - "${@:2}" | tr -d '\r' | sed -n "s/^$1: //Ip"; }

@test "the page is one document at all addresses, for browsers also at /; it uses files of this build only, and no other host" {
  local path
  run curl -s -H 'Accept: text/html,*/*' "$URL/"
  [[ $output == '<!doctype html>'* ]]
  for path in chat dashboard models keys audit docs; do
    [ "$(curl -s "$URL/$path")" = "$output" ] || { echo "$path"; return 1; }
  done
  for path in $(grep -oE '/web/[^"]*' <<<"$output" | sort -u); do
    [ "$(status "$URL$path")" = 200 ] || { echo "$path"; return 1; }
  done
  run grep -rnoE "(src|href|url|import|fetch)[=( ]*[\"'](https?:)?//[^\"']*" libcommon/serve/web
  echo "$output"
  [ "$status" = 1 ]
  run grep -rnE 'innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|style="' libcommon/serve/web --include='*.js' --include='*.html'
  echo "$output"
  [ "$status" = 1 ]
}

@test "headers of the page set a strict policy, no sniffing, no frames, no referrer" {
  local policy site
  hash_of() { openssl dgst -sha256 -binary "libcommon/serve/web/$1" | base64; }
  policy=$(header Content-Security-Policy "$URL/chat")
  [[ $policy == *"default-src 'none'"* && $policy == *"script-src 'self' 'sha256-$(hash_of start.js)';"* && $policy == *"style-src 'sha256-$(hash_of style.css)';"* && $policy == *"frame-ancestors 'none'"* ]]
  [[ $policy == *"require-trusted-types-for 'script'"* && $policy != *unsafe* ]]
  [ "$(header X-Content-Type-Options "$URL/chat")" = nosniff ]
  [ "$(header Referrer-Policy "$URL/chat")" = no-referrer ]
  [ "$(header Cache-Control "$URL/chat")" = no-cache ]
  [ "$(header Cross-Origin-Opener-Policy "$URL/chat")" = same-origin ]
  for site in cross-site same-site other; do
    [ "$(header Cross-Origin-Opener-Policy -H "Sec-Fetch-Site: $site" "$URL/chat")" = same-origin ] || { echo "$site"; return 1; }
  done
  for site in none same-origin; do    # no page of another origin has opened it
    [ "$(header Cross-Origin-Opener-Policy -H "Sec-Fetch-Site: $site" "$URL/chat")" = "" ] || { echo "$site"; return 1; }
  done
  [[ $(header Vary "$URL/chat") == *Sec-Fetch-Site* ]]
}

@test "the style and the first script stand in the page as they are in their files" {
  local page
  page=$(curl -s "$URL/chat")
  sed -n '/^<style>/,/^<\/style>/p' <<<"$page" | sed '1s/^<style>//; /^<\/style>/d' | cmp - libcommon/serve/web/style.css
  sed -n '/^<script>/,/^<\/script>/p' <<<"$page" | sed '1s/^<script>//; /^<\/script>/d' | cmp - libcommon/serve/web/start.js
  run ! grep -E '@(VERSION|[a-z]+\.[a-z]+)@' <<<"$page"
  run -1 awk -v version=1 -f scripts/inline-files.awk <(echo '<style>@none.css@</style>')
  [[ $output == *"none.css: cannot be read"* ]]
}

@test "files are sent with gzip if the client accepts it, the same bytes, cached for ever by their hash, with 304 and 404" {
  local js tag
  js=$(curl -s "$URL/chat" | grep -oE '/web/[^"]*/markdown.js')
  for accept in gzip '*' 'br, gzip;q=0.5'; do
    [ "$(header Content-Encoding -H "Accept-Encoding: $accept" "$URL$js")" = gzip ] || { echo "$accept"; return 1; }
  done
  for accept in identity 'gzip;q=0' br; do
    [ "$(header Content-Encoding -H "Accept-Encoding: $accept" "$URL$js")" = "" ] || { echo "$accept"; return 1; }
  done
  curl -s --compressed "$URL$js" | cmp - libcommon/serve/web/markdown.js
  curl -s "$URL$js" | cmp - libcommon/serve/web/markdown.js
  [ "$(header Cache-Control "$URL$js")" = "public, max-age=31536000, immutable" ]
  [ "$(header Content-Type "$URL$js")" = "text/javascript; charset=utf-8" ]
  tag=$(header ETag "$URL$js")
  [ "$(status -H "If-None-Match: $tag" "$URL$js")" = 304 ]
  [ "$(status -H 'If-None-Match: W/"1-1"' "$URL$js")" = 200 ]
  [ "$(header Cache-Control "$URL/web/0123456789abcdef/markdown.js")" = no-cache ]
  for path in /web/x/no.js /web/markdown.js /web/x/index.html "/web/x/%2e%2e/markdown.js" /web/x/; do
    [ "$(status "$URL$path")" = 404 ] || { echo "$path"; return 1; }
  done
}

@test "the modules of the chat page are joined to one, which imports from other files only; other forms of import are refused" {
  local js f
  js=$(curl -s "$URL$(curl -s "$URL/chat" | grep -oE '/web/[^"]*/chat.js')")
  [ "$(grep -c "^import .* from './\(core\|history\|markdown\).js';$" <<<"$js")" = "$(grep -c '^import' <<<"$js")" ]
  [ "$(grep '^export' <<<"$js")" = 'export function mount(root) {' ]
  for f in libcommon/serve/web/chat/*.js; do
    grep -qxF "$(head -1 "$f")" <<<"$js" || { echo "$f"; return 1; }
  done
  for f in "import x from './core.js';" "import * as x from './core.js';" "import { a as b } from '../core.js';" 'export default 1;'; do
    run -1 awk -f scripts/join-modules.awk <(echo "$f") /dev/null
  done
}

@test "the whole page takes at most 120 kB and 6 requests" {
  local n=0 bytes=0 path
  for path in /chat $(curl -s "$URL/chat" | grep -oE '/web/[^"]*' | sort -u); do
    n=$((n + 1))
    bytes=$((bytes + $(curl -s -H 'Accept-Encoding: gzip' "$URL$path" | wc -c)))
  done
  echo "$n requests, $bytes bytes"
  [ "$n" -le 6 ]
  [ "$bytes" -le 120000 ]
}

@test "whoami says what is allowed without a key, with one, with the administrator's token" {
  local home=$BATS_TEST_TMPDIR/home key URL PID
  export ZSE_HOME=$home
  start "$BATS_TEST_TMPDIR/log" "$T/tiny.zse" --port 0
  await listens "$URL"
  [ "$(curl -s "$URL/api/whoami" | jq -c '[.keys_required, .by, .scopes]')" = '[false,null,["chat","embeddings","models"]]' ]
  [ "$(curl -s -H "Authorization: Bearer $(cat "$home/admin.token")" "$URL/api/whoami" | jq -c '[.by, (.scopes | length), .features.keys]')" = '["token",4,true]' ]
  key=$(zse-apikey create app --scope chat 2>/dev/null)
  await says '[true,null,[]]' eval "curl -s $URL/api/whoami | jq -c '[.keys_required, .by, .scopes]'"
  [ "$(curl -s -H "X-API-Key: $key" "$URL/api/whoami" | jq -c '[.by, .name, .scopes]')" = '["key","app",["chat"]]' ]
  [ "$(status -H 'Authorization: Bearer zse-wrong' "$URL/api/whoami")" = 401 ]
  kill -TERM "$PID"
  wait "$PID"
}

@test "a WebSocket takes the key as a subprotocol, and the answer does not repeat it" {
  local home=$BATS_TEST_TMPDIR/home key none URL PID
  export ZSE_HOME=$home
  start "$BATS_TEST_TMPDIR/log" "$T/tiny.zse" --port 0
  await listens "$URL"
  key=$(zse-apikey create app --scope chat,models 2>/dev/null)
  none=$(zse-apikey create other --scope embeddings 2>/dev/null)
  await says 401 status "$URL/v1/models"
  # dial PATH PROTOCOLS: open a WebSocket; prints the head of the response
  dial() {
    exec 6<>"/dev/tcp/127.0.0.1/${URL##*:}"
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: %s\r\n\r\n' "$1" "$2" >&6
    while read -r line <&6 && [ "$line" != $'\r' ]; do echo "${line%$'\r'}"; done
    exec 6>&-
  }
  run dial /ws/stats "zse, zse-key.$key"
  [[ ${lines[0]} == "HTTP/1.1 101 "* && $output == *"Sec-WebSocket-Protocol: zse"* && $output != *"$key"* ]]
  run dial /ws/chat "zse,zse-key.$key"
  [[ ${lines[0]} == "HTTP/1.1 101 "* ]]
  run dial /ws/stats "zse, zse-key.$none"
  [[ ${lines[0]} == "HTTP/1.1 403 "* ]]
  for protocols in zse "zse, zse-key." "zse, zse-key.${key}A" "zse, $key" "zse, key.$key" "zse, zse-key.$(printf 'a%.0s' {1..500})"; do
    run dial /ws/stats "$protocols"
    [[ ${lines[0]} == "HTTP/1.1 401 "* ]] || { echo "$protocols: $output"; return 1; }
  done
  run ! grep -r "$key" "$home"
  kill -TERM "$PID"
  wait "$PID"
}

# in_browser [CHECK...]: run these checks of tests/serve/page.py, or all of them
in_browser() {
  run build/venv/bin/python -B tests/serve/page.py "$T/tiny.zse" "$@"
  echo "$output"
  [ "$status" != 77 ] || skip "${lines[-1]}"
  [ "$status" = 0 ]
}

@test "in a browser: conversations, branches, stopping and files work" {
  in_browser conversation without_history branches elsewhere stop files
}

# One is enough for a sanitizer of the server: its endpoints have command tests, and the browser's
# own work, which takes most of the time, does not depend on the build.
# bats test_tags=plain
@test "in a browser: foreign texts stay texts, tools wait for permission, files of other programs are imported" {
  in_browser hostile_texts tools documents other_programs
}

# bats test_tags=plain
@test "in a browser: keys and scopes, administration and models from the hub work" {
  in_browser few_scopes administration model_jobs
}

# bats test_tags=plain
@test "in a browser: Markdown, the dashboard, phones, names, contrast and the keyboard work; a chat is there at once, and the cost is limited" {
  in_browser first_frame markdown dashboard phone everybody cost
}

# chats.bats - the chat history of zse-serve: its endpoints, owners, limits, and a database that is
# damaged, read-only, full, shared or killed.
# shellcheck disable=SC2154
bats_require_minimum_version 1.5.0
load ../lib/await

setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  T=$BATS_TEST_TMPDIR
  export ZSE_HOME=$T/home
  KEY=()
}
teardown() {
  [ -z "${PID:-}" ] || { kill "$PID"; wait "$PID"; } 2>/dev/null || true
  [ -z "${PID2:-}" ] || { kill "$PID2"; wait "$PID2"; } 2>/dev/null || true
  [ -z "${MOUNTED:-}" ] || umount "$ZSE_HOME"
}
# serve OPTION...: a server without a model; its address is in $URL, its process id in $PID
serve() {
  exec 5< <(exec zse-serve --port 0 "$@" 2>>"$T/err")
  PID=$!
  read -r -u 5 _ _ URL || { cat "$T/err"; return 1; }
  C=$URL/api/chat/conversations
}
stop() { kill "$PID"; wait "$PID"; PID=; }
get() { curl -sf "${KEY[@]}" "$@"; }
post() { curl -s "${KEY[@]}" -X POST "$1" -d "$2"; }
patch() { curl -s "${KEY[@]}" -X PATCH "$1" -d "$2"; }
delete() { curl -s "${KEY[@]}" -X DELETE "$1"; }
status() { curl -s -o "$T/answer" -w '%{http_code}' "${KEY[@]}" "$@"; }
# refused STATUS CODE ARGUMENT...: whether the request is refused with this status and error code
refused() {
  [ "$(status "${@:3}")" = "$1" ] && [ "$(jq -r .error.code "$T/answer")" = "$2" ] || { cat "$T/answer"; return 1; }
}
# say ID ROLE TEXT
say() { post "$C/$1/messages" "{\"role\":\"$2\",\"content\":\"$3\"}" | jq .id; }

@test "a conversation exists from its creation to its deletion, also after a restart" {
  serve
  id=$(post "$C" '{}' | jq -r .id)
  [ "$(get "$C/$id" | jq -c '[.title, .model, .system_prompt, .settings, .message_count, .total_tokens, .active_leaf]')" = '["New Chat",null,null,{},0,0,null]' ]
  [ "$(post "$C/$id/messages" '{"role":"user","content":"What is 2+2?","tokens":6}' | jq -c '[.id, .parent_id, .role, .tokens, .conversation_id]')" = "[1,null,\"user\",6,\"$id\"]" ]
  [ "$(post "$C/$id/messages" '{"role":"assistant","content":"4","tokens":1,"latency_ms":2.5,"metadata":{"model":"tiny"}}' | jq -c '[.parent_id, .latency_ms, .metadata]')" = '[1,2.5,{"model":"tiny"}]' ]
  stop
  serve
  [ "$(get "$C" | jq -c '[.total, (.conversations[] | .title, .message_count, .total_tokens)]')" = '[1,"What is 2+2?",2,7]' ]
  [ "$(get "$C/$id/messages" | jq -r '[.messages[].content] | join("|")')" = 'What is 2+2?|4' ]
  [ "$(patch "$C/$id" '{"title":"Sums","folder":"maths","tags":["a"],"pinned":true}' | jq -c '[.title, .folder, .tags, .pinned, .message_count]')" = '["Sums","maths",["a"],true,2]' ]
  [ "$(patch "$C/$id" '{"folder":null}' | jq -c '[.title, .folder, .tags]')" = '["Sums",null,["a"]]' ]
  [ "$(delete "$C/$id" | jq -c '[.status, .id]')" = "[\"deleted\",\"$id\"]" ]
  refused 404 not_found "$C/$id"
  refused 404 not_found "$C/$id/messages"
  get "$C" | jq -e '. == {"conversations":[],"total":0,"limit":50,"offset":0}'
}

@test "total counts all conversations, not those of a page" {
  serve
  for i in 1 2 3 4 5 6 7; do post "$C" "{\"title\":\"t$i\"}" >/dev/null; done
  [ "$(get "$C?limit=3&offset=5" | jq -c '[.total, (.conversations | map(.title))]')" = '[7,["t2","t1"]]' ]
  for q in limit=0 limit=201 limit=x offset=-1 limit=; do refused 400 out_of_range "$C?$q"; done
  [ "$(delete "$C?all=true" | jq .count)" = 7 ]
  refused 400 missing -X DELETE "$C"
}

@test "branches: when an answer is regenerated or a question edited, the old versions stay" {
  serve
  id=$(post "$C" '{}' | jq -r .id)
  say "$id" user one
  say "$id" assistant two
  [ "$(post "$C/$id/messages" '{"role":"assistant","content":"other two","parent_id":1}' | jq .id)" = 3 ]
  [ "$(post "$C/$id/messages" '{"role":"user","content":"other one","parent_id":null}' | jq .parent_id)" = null ]
  [ "$(get "$C/$id/messages?branch=active" | jq -c '[.active_leaf, [.messages[].id], .total]')" = '[4,[4],4]' ]
  [ "$(patch "$C/$id" '{"active_leaf":3}' | jq .active_leaf)" = 3 ]
  [ "$(get "$C/$id/messages?branch=active" | jq -c '[.messages[].id]')" = '[1,3]' ]
  [ "$(get "$C/$id/messages?limit=2" | jq -c '[[.messages[].id], .more]')" = '[[1,2],true]' ]
  [ "$(get "$C/$id/messages?after=2" | jq -c '[[.messages[].id], .more]')" = '[[3,4],false]' ]
  [ "$(patch "$C/$id/messages/3" '{"metadata":{"rating":1}}' | jq -c '[.content, .metadata]')" = '["other two",{"rating":1}]' ]
  [ "$(get "$C/$id/messages/3" | jq -c .metadata)" = '{"rating":1}' ]
  [ "$(delete "$C/$id/messages/1" | jq .deleted)" = 3 ]
  [ "$(get "$C/$id" | jq -c '[.message_count, .active_leaf]')" = '[1,4]' ]
  [ "$(delete "$C/$id/messages" | jq .deleted)" = 1 ]
  for n in 1 0 x 99999999999999999999 -1; do refused 404 not_found "$C/$id/messages/$n"; done
}

@test "errors name what is wrong" {
  serve
  id=$(post "$C" '{}' | jq -r .id)
  refused 400 invalid_json "$C" -d '{'
  refused 400 invalid_json "$C" -d '{"title":"a\u0000b"}'
  refused 400 invalid_type "$C" -d '[]'
  refused 400 unknown_parameter "$C" -d '{"name":"x"}'
  refused 422 invalid_value "$C" -d '{"title":7}'
  refused 422 invalid_value "$C" -d '{"settings":[]}'
  refused 422 invalid_value "$C/$id/messages" -d '{"role":"robot","content":"x"}'
  [ "$(jq -r .error.param "$T/answer")" = role ]
  refused 422 invalid_value "$C/$id/messages" -d '{"role":"user"}'
  refused 422 invalid_value "$C/$id/messages" -d '{"role":"user","content":"x","parent_id":5}'
  refused 404 not_found "$C/0000000000000000/messages" -d '{"role":"user","content":"x"}'
  refused 404 not_found "$C/..%2f..%2fetc"
  refused 405 method_not_allowed -X PUT "$C/$id"
  refused 400 invalid_value "$C/$id/export?format=pdf"
  refused 400 invalid_value "$C/$id/messages?branch=left"
  refused 400 missing "$URL/api/chat/search"
  refused 400 missing "$URL/api/chat/search?q=$(printf 'x%.0s' {1..600})"
  refused 422 invalid_value "$URL/api/chat/search?q=%21%21"
  python3 -c 'print("{\"role\":\"user\",\"content\":\"" + "x" * (4 << 20) + "y\"}")' >"$T/big"
  refused 413 too_large "$C/$id/messages" --data-binary "@$T/big"
  python3 -c 'print("{\"settings\":" + "[" * 600 + "]" * 600 + "}")' >"$T/deep"
  [ "$(status "$C" --data-binary "@$T/deep")" = 400 ]
  [ "$(get "$URL/api/chat/stats" | jq -c '[.conversations, .messages, .enabled]')" = '[1,0,true]' ]
}

@test "search finds words of titles and messages, with their places" {
  serve
  id=$(post "$C" '{"title":"Über Wälder"}' | jq -r .id)
  say "$id" user "Name the capital of France"
  say "$id" assistant "The capital is Paris"
  [ "$(get "$URL/api/chat/search?q=CAPITAL+par" | jq -c '[.results[].matches[] | .message_id, .snippet, .ranges]')" = '[2,"The capital is Paris",[[4,11],[15,20]]]' ]
  [ "$(get "$URL/api/chat/search/walder" | jq -c '[.results[] | .conversation.id, .title_match, .matches]')" = "[\"$id\",true,[]]" ]
  [ "$(get "$C/search?q=%22capital+of%22" | jq -c '[.results[].matches[].message_id]')" = '[1]' ]
  [ "$(get "$URL/api/chat/search?q=%22of+capital%22" | jq -c '[.results, .more]')" = '[[],false]' ]
}

@test "conversations are exported as JSON and Markdown, and imported again without a change" {
  serve
  id=$(post "$C" '{"title":"Sums","model":"tiny","system_prompt":"Be brief.","settings":{"temperature":0.7}}' | jq -r .id)
  say "$id" user "2+2?"
  say "$id" assistant "four"
  get "$C/$id/export?download=true" -D "$T/head" >"$T/sums.json"
  grep -qi '^Content-Disposition: attachment; filename="Sums.json"' "$T/head"
  get "$C/$id/export?format=markdown&download=true" >"$T/sums.md"
  created=$(jq -r .conversation.created_at "$T/sums.json")
  diff - "$T/sums.md" <<END
# Sums

**Model:** tiny  
**Created:** $created  
**Messages:** 2

## System Prompt

Be brief.

## Conversation

### User

2+2?

### Assistant

four
END
  get "$C/$id/export" >"$T/answer.json"
  [ "$(jq -c 'keys' "$T/answer.json")" = '["content","filename","format"]' ]
  jq -j .content "$T/answer.json" | cmp - "$T/sums.json"
  refused 409 conversation_exists "$C/import" --data-binary "@$T/sums.json"
  [ "$(post "$C/import?copy=true" "@$T/sums.json" | jq -c --arg id "$id" '[.title, .id != $id]')" = '["Sums",true]' ]
  delete "$C/$id" >/dev/null
  [ "$(post "$C/import" "@$T/answer.json" | jq -r .id)" = "$id" ]
  get "$C/$id/export?download=true" | cmp - "$T/sums.json"
  refused 422 invalid_value "$C/import" -d '{"format":"zse-chat","version":1}'
  refused 422 invalid_value "$C/import" -d '{"format":"json","content":"{}"}'
  refused 400 invalid_json "$C/import" -d '{"format":"json","content":"{"}'
}

@test "Markdown is imported as it was exported, also with texts that look like its headings" {
  serve
  id=$(post "$C" '{"title":"Sums","model":"tiny","system_prompt":"Be brief.\n\n## Conversation\n\n### User"}' | jq -r .id)
  say "$id" user '2+2?\n\n### Assistant\n\n\\### User\n'
  say "$id" assistant '\nfour\n\n'
  say "$id" user ''
  get "$C/$id/export?format=markdown" >"$T/answer.json"
  copy=$(post "$C/import" "@$T/answer.json" | jq -r .id)
  [ "$copy" != "$id" ]
  get "$C/$copy/export?format=markdown" | cmp - "$T/answer.json"
  for one in "$id" "$copy"; do
    get "$C/$one/messages" | jq -c '.active_leaf, (.messages[] | [.id, .parent_id, .role, .content])' >"$T/$one"
    get "$C/$one" | jq -c '[.title, .model, .system_prompt, .created_at]' >>"$T/$one"
  done
  cmp "$T/$id" "$T/$copy"
  refused 422 invalid_value "$C/import" -d '{"format":"markdown","content":"# Notes\n"}'
  refused 422 invalid_value "$C/import" -d '{"format":"markdown"}'
  jq -n '{format: "markdown", content: ("## Conversation\n" + ("### User\n" * 100001))}' >"$T/many.json"
  refused 413 quota_exceeded "$C/import" -d "@$T/many.json"
}

@test "conversations of ChatGPT and Open WebUI are imported with their branches; broken ones are refused" {
  local one id
  serve
  one='{"title":"Old","create_time":1700000000.5,"update_time":1700000100,"current_node":"e","plugin_ids":null,"mapping":{
    "a":{"id":"a","message":null,"parent":null,"children":["s"]},
    "s":{"id":"s","parent":"a","children":["b"],"message":{"author":{"role":"system"},"content":{"content_type":"text","parts":[""]}}},
    "b":{"id":"b","parent":"s","children":["c","d"],"message":{"author":{"role":"user"},"create_time":1700000001,"content":{"content_type":"multimodal_text","parts":[{"content_type":"image_asset_pointer"},"What is it?"]}}},
    "c":{"id":"c","parent":"b","children":[],"message":{"author":{"role":"assistant"},"content":{"content_type":"text","parts":["A cat."]},"metadata":{"model_slug":"gpt-4"}}},
    "d":{"id":"d","parent":"b","children":["t"],"message":{"author":{"role":"assistant"},"content":{"content_type":"code","text":"search()"}}},
    "t":{"id":"t","parent":"d","children":["e","b"],"message":{"author":{"role":"tool"},"content":{"content_type":"text","parts":["found"]}}},
    "e":{"id":"e","parent":"t","children":["e"],"message":{"author":{"role":"assistant"},"content":{"content_type":"text","parts":["A dog \ud83d\udc15."]}}}}}'
  id=$(post "$C/import" "{\"format\":\"chatgpt\",\"conversation\":$one}" | tee /dev/stderr | jq -r .id)
  get "$C/$id" | jq -e '.title == "Old" and .message_count == 4 and (.created_at | startswith("2023-11-14"))'
  get "$C/$id/messages?branch=active" | jq -e '[.messages[].content] == ["[image]\nWhat is it?", "search()", "A dog 🐕."]'
  get "$C/$id/messages?branch=all" | jq -e 'any(.messages[]; .content == "A cat." and .metadata.model == "gpt-4")'
  one='{"id":"x","title":"Web","created_at":1700000000,"chat":{"title":"Web","history":{"currentId":"2","messages":{
    "1":{"id":"1","parentId":null,"childrenIds":["2"],"role":"user","content":"Hello","timestamp":1700000000},
    "2":{"id":"2","parentId":"1","childrenIds":[],"role":"assistant","content":"Hi","model":"llama3"}}}}}'
  id=$(post "$C/import" "{\"format\":\"open-webui\",\"conversation\":$one}" | jq -r .id)
  get "$C/$id/messages?branch=active" | jq -e '[.messages[].content] == ["Hello", "Hi"]'
  refused 422 invalid_value "$C/import" -d '{"format":"chatgpt","conversation":{"title":"none"}}'
  refused 422 invalid_value "$C/import" -d '{"format":"open-webui","conversation":[]}'
  # a conversation of LM Studio: versions of a message become branches, reasoning is left out
  one='{"name":"Studio","createdAt":1723000000000,"systemPrompt":"Be brief.","messages":[
    {"versions":[{"type":"singleStep","role":"user","content":[{"type":"text","text":"Hello"},{"type":"file","fileIdentifier":"x"}]}],"currentlySelected":0},
    {"versions":[{"type":"multiStep","role":"assistant","senderInfo":{"senderName":"llama3"},"steps":[{"type":"contentBlock","content":[{"type":"text","text":"first"}]}]},
      {"type":"multiStep","role":"assistant","steps":[{"type":"contentBlock","style":{"type":"thinking"},"content":[{"type":"text","text":"hm"}]},{"type":"debugInfoBlock"},
        {"type":"contentBlock","content":[{"type":"text","text":"second"}]}]}],"currentlySelected":1},
    {"versions":[{"role":"user","content":[{"type":"text","text":"Thanks"}]}],"currentlySelected":0}]}'
  id=$(post "$C/import" "{\"format\":\"lm-studio\",\"conversation\":$one}" | jq -r .id)
  get "$C/$id" | jq -e '[.title, .system_prompt] == ["Studio", "Be brief."]'
  get "$C/$id/messages?branch=active" | jq -e '[.messages[].content] == ["Hello\n[image]", "second", "Thanks"]'
  get "$C/$id/messages" | jq -e '[.messages[] | select(.content == "first")][0] | .metadata.model == "llama3"'
  refused 422 invalid_value "$C/import" -d '{"format":"lm-studio","conversation":{"messages":{}}}'
  # a cycle without a root has no messages
  post "$C/import" '{"format":"chatgpt","conversation":{"mapping":{"a":{"parent":"b","children":["b"]},"b":{"parent":"a","children":["a"]}}}}' | jq -e '.message_count == 0'
}

@test "two keys never see each other's conversations; a key needs the scope chat" {
  one=$(zse-apikey create one --scope chat 2>/dev/null)
  two=$(zse-apikey create two --scope chat 2>/dev/null)
  none=$(zse-apikey create none --scope embeddings 2>/dev/null)
  serve
  refused 401 missing_api_key "$C"
  KEY=(-H "X-API-Key: $none")
  refused 403 insufficient_scope "$C"
  KEY=(-H "X-API-Key: $one")
  id=$(post "$C" '{"title":"secret plan"}' | jq -r .id)
  say "$id" user "secret words"
  get "$C/$id/export?download=true" >"$T/export"
  KEY=(-H "X-API-Key: $two")
  [ "$(get "$C" | jq .total)" = 0 ]
  [ "$(get "$URL/api/chat/search?q=secret" | jq -c .results)" = '[]' ]
  for path in "" /messages /messages/1 /export; do refused 404 not_found "$C/$id$path"; done
  for path in "" /messages /messages/1; do refused 404 not_found -X DELETE "$C/$id$path"; done
  refused 404 not_found -X PATCH "$C/$id" -d '{"title":"x"}'
  refused 404 not_found "$C/$id/messages" -d '{"role":"user","content":"x"}'
  [ "$(delete "$C?all=true" | jq .count)" = 0 ]
  [ "$(post "$C/import" "@$T/export" | jq -r .id)" = "$id" ]
  KEY=(-H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")")
  [ "$(get "$C" | jq .total)" = 0 ]
  KEY=(-H "X-API-Key: $one")
  [ "$(get "$C/$id/messages" | jq -r '.messages[].content')" = "secret words" ]
  [ "$(zse-audit query -p /api/chat -s 403 --json | jq -r .api_key_name)" = none ]
}

@test "a key's limit of requests counts those to the history" {
  one=$(zse-apikey create one --scope chat --rate-limit 3 2>/dev/null)
  serve
  KEY=(-H "X-API-Key: $one")
  for _ in 1 2 3; do [ "$(status "$C")" = 200 ]; done
  refused 429 rate_limit_exceeded "$C"
}

@test "--history-conversations and --history-size are limits of each key" {
  serve --history-conversations 2 --history-size 100KB
  id=$(post "$C" '{}' | jq -r .id)
  post "$C" '{}' >/dev/null
  refused 413 quota_exceeded "$C" -d '{}'
  python3 -c 'print("{\"role\":\"user\",\"content\":\"" + "x" * 60000 + "\"}")' >"$T/big"
  [ "$(status "$C/$id/messages" --data-binary "@$T/big")" = 200 ]
  refused 413 quota_exceeded "$C/$id/messages" --data-binary "@$T/big"
  [ "$(get "$URL/api/chat/stats" | jq -c '[.limits.conversations, .limits.bytes]')" = '[2,100000]' ]
}

@test "--history-days deletes conversations that have not changed for that time" {
  serve
  old=$(post "$C" '{"title":"old"}' | jq -r .id)
  new=$(post "$C" '{"title":"new"}' | jq -r .id)
  stop
  python3 -c 'import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
c.execute("UPDATE conversations SET updated = updated - 86400000 * 3 WHERE title = ?", ("old",))
c.commit()' "$ZSE_HOME/chats.db"
  serve --history-days 2
  await says 1 eval 'get "$C" | jq .total'
  [ "$(status "$C/$old")" = 404 ]
  [ "$(status "$C/$new")" = 200 ]
  [ "$(get "$URL/api/chat/stats" | jq .limits.days)" = 2 ]
}

@test "--no-history: requests get 404, and no file is made" {
  serve --no-history
  refused 404 no_history "$C"
  refused 404 no_history "$C" -d '{}'
  refused 404 no_history "$URL/api/chat/stats"
  [ ! -e "$ZSE_HOME/chats.db" ]
}

@test "a damaged file: only the history answers 503, with a warning; the file is kept; a new file in its place is used" {
  serve
  post "$C" '{}' >/dev/null
  stop
  python3 -c 'print("this is no database " * 5000)' >"$T/rubbish"
  cat "$T/rubbish" >"$ZSE_HOME/chats.db"
  serve
  refused 503 history_damaged "$C"
  refused 503 history_damaged "$C" -d '{}'
  [ "$(status "$URL/v1/models")" = 200 ]
  await grep -q "chat history: .*chats.db: is damaged" "$T/err"
  cmp "$T/rubbish" "$ZSE_HOME/chats.db"
  mv "$ZSE_HOME/chats.db" "$T/moved"
  await says 200 status "$C" -d '{}'
  [ "$(get "$C" | jq .total)" = 1 ]
}

@test "a database file that replaces another one is noticed" {
  serve
  post "$C" '{"title":"first"}' >/dev/null
  rm "$ZSE_HOME"/chats.db*
  [ "$(get "$C" | jq .total)" = 0 ]
  post "$C" '{"title":"second"}' >/dev/null
  [ "$(get "$C" | jq -c '[.conversations[].title]')" = '["second"]' ]
}

@test "a full disk: only the history answers 503, and old messages stay" {
  [ "$(id -u)" = 0 ] || skip "only root can mount a file system"
  mkdir "$ZSE_HOME"
  mount -t tmpfs -o size=1500k,mode=700 tmpfs "$ZSE_HOME" 2>/dev/null || skip "no permission to mount a file system"
  MOUNTED=1
  serve --no-audit
  id=$(post "$C" '{}' | jq -r .id)
  python3 -c 'print("{\"role\":\"user\",\"content\":\"" + "word " * 40000 + "\"}")' >"$T/big"
  n=0
  while [ "$(status "$C/$id/messages" --data-binary "@$T/big")" = 200 ]; do n=$((n + 1)); [ $n -lt 100 ]; done
  [ "$(jq -r .error.code "$T/answer")" = history_full ]
  [ "$(get "$C/$id" | jq .message_count)" = "$n" ]
  [ "$(status "$URL/v1/models")" = 200 ]
  stop
}

@test "a read-only file system: only the history answers 503" {
  [ "$(id -u)" = 0 ] || skip "only root can mount a file system"
  mkdir "$ZSE_HOME"
  mount -t tmpfs -o size=1500k,mode=700 tmpfs "$ZSE_HOME" 2>/dev/null || skip "no permission to mount a file system"
  MOUNTED=1
  serve --no-audit
  post "$C" '{}' >/dev/null
  stop
  mount -o remount,ro "$ZSE_HOME"
  serve --no-audit
  refused 503 history_read_only "$C" -d '{}'
  grep -qi '^Retry-After' <(curl -s -D - -o /dev/null "$C")
  [ "$(status "$URL/v1/models")" = 200 ]
  await grep -q "chat history: .*chats.db: cannot be written" "$T/err"
  stop
  mount -o remount,rw "$ZSE_HOME"
  serve --no-audit
  [ "$(get "$C" | jq .total)" = 1 ]
  stop
}

@test "kill -9 while messages are written loses none that was acknowledged" {
  serve
  id=$(post "$C" '{}' | jq -r .id)
  for round in 1 2 3; do
    python3 - "$C/$id/messages" "$PID" $((round * 9)) >"$T/acknowledged" <<'END'
import json, os, signal, sys, threading, urllib.request
url, pid, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lock, done = threading.Lock(), []
def write(who):
    n = 0
    try:
        while True:
            body = json.dumps({'role': 'user', 'content': f'{who} {n}'}).encode()
            done.append(json.load(urllib.request.urlopen(urllib.request.Request(url, body)))['id'])
            n += 1
            if len(done) == most:
                os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps(done))
END
    wait "$PID" || true
    PID=
    serve
    [ "$(jq length "$T/acknowledged")" -ge $((round * 9)) ]
    get "$C/$id/messages?limit=10000" | jq '[.messages[].id]' >"$T/there"
    [ "$(jq -n --slurpfile a "$T/acknowledged" --slurpfile t "$T/there" '$a[0] - $t[0] | length')" = 0 ]
    [ "$(python3 -c 'import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute("PRAGMA integrity_check").fetchone()[0])' "$ZSE_HOME/chats.db")" = ok ]
  done
}

@test "two servers can use one database" {
  serve
  one=$C PID2=$PID
  serve
  id=$(post "$C" '{}' | jq -r .id)
  for i in {1..10}; do
    post "$one/$id/messages" '{"role":"user","content":"from one"}' >/dev/null &
    post "$C/$id/messages" '{"role":"user","content":"from two"}' >/dev/null
    wait $!
  done
  [ "$(get "$one/$id" | jq .message_count)" = 20 ]
  [ "$(get "$C/$id/messages" | jq -c '[.messages[].id] == [range(1; 21)]')" = true ]
}

@test "many requests of one owner do not delay those of others, and none is lost" {
  serve
  id=$(post "$C" '{}' | jq -r .id)
  for i in {1..150}; do
    [ "$i" = 1 ] || echo next
    printf '%s\n' "url = $C/$id/messages" 'data = {"role":"user","content":"x"}' "output = /dev/null"
  done >"$T/requests"
  curl -s --parallel --parallel-max 40 -K "$T/requests"
  [ "$(get "$C/$id" | jq .message_count)" = 150 ]
}

# ---- zse-chat ----

convert_tiny() { zse-convert models/tiny -o "$T/tiny.zse" --quality fast >/dev/null; }
# talk LINE...: a conversation on a terminal, scripted by LINEs, of zse-chat with the arguments in
# $CHAT
talk() { printf '%s\n' "$@" | tests/lib/talk zse-chat "${CHAT[@]}" >"$T/said" || { cat "$T/said"; return 1; }; }

@test "/undo takes back a turn, also in the history, and /retry answers again" {
  convert_tiny
  CHAT=("$T/tiny.zse" --temp 0 --system "Be brief.")
  talk 'expect >' 'send /undo' 'expect there is no question yet' 'send /retry' 'expect there is no question yet' \
    'send What is 2+2?' 'expect = 4' ready 'send And 3+3?' 'expect = 6' ready 'send What is 4+4?' 'expect = 8' ready \
    'send /undo' ready 'send /retry' 'expect = 6' ready "send /save $T/undone.json" 'expect saved 5 messages' ready 'key d' 'end 0'
  [ "$(jq -c '[.messages[] | select(.role == "user") | .content]' "$T/undone.json")" = '["What is 2+2?","And 3+3?"]' ]
  zse-chat --history --json >"$T/list"
  id=$(jq -r '.conversations[0].id' "$T/list")
  jq -e '.total == 1 and .conversations[0].message_count == 4' "$T/list" || { cat "$T/list"; return 1; }
  # with --continue /undo also removes earlier turns; without its last turn the conversation is
  # removed from the history
  CHAT=("$T/tiny.zse" --temp 0 "--continue=$id")
  talk 'expect >' 'send /undo' ready 'send /undo' ready 'send /undo' 'expect there is no question yet' ready 'key d' 'end 0'
  run zse-chat --history --json
  [ "$(jq -r .total <<<"$output")" = 0 ] || { echo "$output"; return 1; }
}

@test "zse-chat records a conversation, finds it and goes on with it" {
  convert_tiny
  run ! zse-chat --continue "$T/tiny.zse" -p x
  [ "$output" = "zse-chat: no conversation is recorded yet; single prompts are not" ]
  zse-chat "$T/tiny.zse" -p "a single prompt is not recorded" -n 3 >/dev/null
  run --separate-stderr zse-chat --history
  [ "$status $output $stderr" = "0  zse-chat: no conversation is recorded yet; single prompts are not" ]
  CHAT=("$T/tiny.zse" --temp 0 --system "Be brief.")
  talk 'expect >' ready 'send What is 2+2?' 'expect = 4' ready 'send And 3+3?' 'expect = 6' ready 'send /title My sums' ready \
    'send /history sums' 'expect My sums' ready 'send /clear' ready 'send What is 4+4?' 'expect = 8' ready 'key d' 'end 0'
  zse-chat --history --json >"$T/list"
  [ "$(jq -c '[.total, (.conversations[] | .title, .model, .message_count, .system_prompt)]' "$T/list")" = '[2,"What is 4+4?","tiny",2,"Be brief.","My sums","tiny",4,"Be brief."]' ]
  id=$(jq -r '.conversations[1].id' "$T/list")
  run zse-chat --history "3+3"
  [[ "$output" == *"$id"*"My sums"*"user: And 3+3?"* && "$output" != *4+4* ]]
  run --separate-stderr zse-chat --history giraffe
  [ "$status $output $stderr" = "1  zse-chat: no conversation contains 'giraffe'" ]
  run zse-chat --history giraffe --json
  [ "$status $(jq -c .results <<<"$output")" = "1 []" ]
  # --continue with the beginning of an id and a single prompt; -c on a terminal
  [ "$(zse-chat "--continue=${id:0:9}" "$T/tiny.zse" --temp 0 -p "What is 5+5?")" = "5 + 5 = 10" ]
  CHAT=(-c "$T/tiny.zse" --temp 0)
  talk 'expect My sums, 7 messages' 'expect user: What is 5.5[?]' 'expect assistant: 5 . 5 = 10' ready 'send And 1+1?' 'expect = 2' ready 'key d' 'end 0'
  serve
  [ "$(get "$C/$id/messages" | jq -r '[.messages[] | .role, .content] | join("|")')" = "user|What is 2+2?|assistant|2 + 2 = 4|user|And 3+3?|assistant|3 + 3 = 6|user|What is 5+5?|assistant|5 + 5 = 10|user|And 1+1?|assistant|1 + 1 = 2" ]
  [ "$(get "$C/$id/messages/2" | jq '.tokens > 5 and .latency_ms > 0')" = true ]
}

@test "zse-chat --no-history records nothing; where it cannot, it says so once and goes on" {
  convert_tiny
  CHAT=("$T/tiny.zse" --temp 0 --no-history)
  talk 'expect >' ready 'send What is 2+2?' 'expect = 4' ready 'key d' 'end 0'
  [ ! -e "$ZSE_HOME/chats.db" ]
  mkdir -m 700 "$ZSE_HOME"
  python3 -c 'print("this is no database " * 5000)' >"$ZSE_HOME/chats.db"
  chmod 600 "$ZSE_HOME/chats.db"
  CHAT=("$T/tiny.zse" --temp 0)
  talk 'expect >' ready 'send What is 2+2?' 'expect not recorded from here on: .*is damaged' 'expect = 4' ready 'send And 3+3?' 'expect = 6' 'not not recorded' ready 'key d' 'end 0'
  run ! zse-chat --history
  [[ "$output" == *"is damaged"* ]]
  for wrong in "--history -p x" "--history --continue" "--continue --no-history" "--continue --json" "--continue --batch x"; do
    # shellcheck disable=SC2086
    run -2 zse-chat $wrong "$T/tiny.zse"
  done
}

@test "a turn that fails leaves no message" {
  convert_tiny
  CHAT=("$T/tiny.zse" --temp 0 --ctx 64 --on-full stop)
  talk 'expect >' ready "send $(printf 'word %.0s' {1..80})" 'expect not kept' ready 'send What is 2+2?' 'expect = 4' ready \
    "send $(printf 'word %.0s' {1..80})" 'expect not kept' ready 'key d' 'end 0'
  [ "$(zse-chat --history --json | jq -c '[.total, .conversations[].title, .conversations[].message_count]')" = '[1,"What is 2+2?",2]' ]
}

@test "a reopened conversation has the same tokens: the server computes only its new turn" {
  convert_tiny
  serve "$T/tiny.zse"
  await listens "$URL"
  CHAT=(--url "$URL" --temp 0 --system "$(printf 'Answer briefly. %.0s' {1..40})")
  talk 'expect >' ready 'send What is 2+2?' ready 'send What is 3+3?' ready 'key d' 'end 0'
  CHAT=(--url "$URL" --temp 0 --continue)
  talk 'expect 5 messages' ready 'send What is 4+4?' ready 'send /stats' 'expect server' ready 'key d' 'end 0'
  read -r all new <<<"$(sed -n 's/.*prompt *\([0-9]*\) tokens, \([0-9]*\) of them new.*/\1 \2/p' "$T/said")"
  [ "$all" -gt 150 ]
  [ "$new" -lt 48 ]                                # the new turn, and at most one partial block
}

# prefix.bats - prefixes stored in a folder: answers are the same, fewer tokens are computed, and
# the prefixes of a key are used for this key only.
load ../lib/await

setup_file() {
  bats_require_minimum_version 1.5.0
  zse-convert -q f16 "$BATS_TEST_DIRNAME/../../models/tiny" -o "$BATS_FILE_TMPDIR/m.zse" 2>/dev/null
}

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  export ZSE_HOME=$PWD/home
  M=$BATS_FILE_TMPDIR/m.zse
  P="$(seq -s ' ' 1 30)"
}

# ask OPTION...: run the prompt; $ids gets the ids of the answer, $cached the number of cached
# tokens.
ask() {
  zse-chat --raw --temp 0 -n 24 --ignore-eos --json --ids "$@" "$M" </dev/null >answer.json || return 1
  ids=$(jq -ce .ids answer.json) && cached=$(jq -e '.. | .cached_tokens? // empty' answer.json) &&
    prompt=$(jq -e '.. | .prompt_tokens? // empty' answer.json)
}

@test "zse-chat --session: the second call computes only the rest, and answers the same" {
  ask -p "$P"
  local plain=$ids
  [ "$cached" -eq 0 ]
  ask -p "$P" --session kv
  [ "$cached" -eq 0 ]
  [ "$ids" = "$plain" ]
  ask -p "$P" --session kv
  [ "$cached" -ge $((prompt - 64)) ]
  [ "$cached" -gt 0 ]
  [ "$ids" = "$plain" ]
  ask -p "$P 31 32" --session kv
  [ "$cached" -gt 0 ]
  local longer=$ids
  ask -p "$P 31 32"
  [ "$ids" = "$longer" ]
}

@test "zse-chat --session --spec mtp: the layer's prefix is found, too, and it guesses as if it had computed it" {
  zse-convert -q f16 "$BATS_TEST_DIRNAME/../../models/tiny-mtp" -o mtp.zse 2>/dev/null
  M=mtp.zse
  P="What is the capital of France? What is the capital of Italy? Tell me a joke. What is 3 + 4? Who are you?"
  P="$P Name the days of the week. What is the capital of Japan? Write a haiku. Count to ten."
  P="$P $P $P"
  ask -p "$P" -n 60 --spec mtp:3 --session kv
  local plain=$ids guesses
  guesses=$(jq -c .speculation answer.json)
  [ "$cached" -eq 0 ]
  ask -p "$P" -n 60 --spec mtp:3 --session kv
  [ "$cached" -gt 128 ]
  [ "$ids" = "$plain" ]
  [ "$(jq -c .speculation answer.json)" = "$guesses" ]
}

@test "zse-chat --session: layers with a window, which store only its keys and values, answer the same" {
  mkdir windowed
  cp "$BATS_TEST_DIRNAME"/../../models/tiny/* windowed
  sed -i 's/"model_type": "llama"/"model_type": "mistral", "sliding_window": 40/' windowed/config.json
  zse-convert -q f16 windowed -o w.zse 2>/dev/null
  M=w.zse P="$(seq -s ' ' 1 120)"
  # steps as long as the context need all keys at once, so none is dropped
  ask -p "$P" --ctx 512
  local plain=$ids
  ask -p "$P"
  [ "$ids" = "$plain" ]
  ask -p "$P" --session kv
  [ "$ids" = "$plain" ]
  ask -p "$P" --session kv
  [ "$cached" -ge $((prompt - 64)) ]
  [ "$ids" = "$plain" ]
  ask -p "$P 121" --ctx 512
  local longer=$ids
  ask -p "$P 121" --session kv
  [ "$cached" -gt 0 ]
  [ "$ids" = "$longer" ]
}

@test "zse-chat --session: 4-bit keys and values, of which the newest are also stored as f16, answer the same" {
  P="$(seq -s ' ' 1 200)"
  ask -p "$P" --kv i4
  local plain=$ids
  # some tokens are neither among the first nor among the newest
  [ "$prompt" -gt 320 ]
  ask -p "$P" --kv i4 --session kv
  [ "$ids" = "$plain" ]
  ask -p "$P" --kv i4 --session kv
  [ "$cached" -ge $((prompt - 64)) ]
  [ "$ids" = "$plain" ]
  ask -p "$P 201 202" --kv i4 --session kv
  [ "$cached" -gt 0 ]
  local longer=$ids
  ask -p "$P 201 202" --kv i4
  [ "$ids" = "$longer" ]
}

@test "zse-chat --session: a prefix that is longer than all window blocks is found to its end" {
  P="$(seq -s ' ' 1 300)"
  for kv in 'i4' 'ternary' 'i8 --window 192'; do
    # shellcheck disable=SC2086
    ask -p "$P" -n 1 --kv $kv --session "kv $kv"
    local plain=$ids
    [ "$prompt" -gt 1000 ]
    # shellcheck disable=SC2086
    ask -p "$P" -n 1 --kv $kv --session "kv $kv"
    [ "$cached" -ge $((prompt - 64)) ]
    [ "$ids" = "$plain" ]
  done
}

@test "zse-chat --window goes beyond the model's context, and --session finds its prefix" {
  ask -p "$P"
  local plain=$ids
  ask -p "$P" --window 1000
  [ "$ids" = "$plain" ]                           # the whole prompt lies in the window
  P="$(seq -s ' ' 1 90)"
  ask -p "$P" --window 64 --session kv
  [ "$cached" -eq 0 ]
  local windowed=$ids
  ask -p "$P" --window 64 --session kv
  [ "$cached" -ge $((prompt - 64)) ]
  [ "$ids" = "$windowed" ]
  ask -p "$P" --window 64 --sinks 0 --session kv
  [ "$cached" -eq 0 ]                             # the keys of others
  if [ -z "${ZSE_SANITIZED-}" ]; then
    ask -p "$P" --window 64 -n 2400               # the model's context is 2048
    [ "$(jq .usage.completion_tokens answer.json)" -eq 2400 ]
    [ "$(jq -c '.ids[:24]' answer.json)" = "$windowed" ]
  fi
  ask -p "$P" --window 64 --ctx 4096
  [ "$ids" = "$windowed" ]
  zse-chat "$BATS_TEST_DIRNAME/../../models/tiny" --plan --window 64 --ctx 4096 --json | jq -e '.context == 4096'
}

@test "--window and --sinks: wrong usage ends with 2" {
  local program
  for program in zse-chat zse-serve; do
    for wrong in '--window 15' '--sinks 4' '--window 16 --sinks 17' '--window 1000 --sinks 257' '--window x'; do
      # shellcheck disable=SC2086
      run -2 "$program" $wrong "$M"
    done
  done
  run -1 zse-chat -p x --window 2045 "$M"         # and 4 sinks
  [[ $output == *"the model's context of 2048"* ]]
}

@test "zse-chat --session: with another type of keys, or damaged files, everything is computed again" {
  ask -p "$P" --kv f32
  local plain=$ids
  ask -p "$P" --session kv
  ask -p "$P" --kv f32 --session kv
  [ "$cached" -eq 0 ]
  [ "$ids" = "$plain" ]
  for f in kv/*.run kv/*.tail; do
    printf X | dd of="$f" bs=1 seek=400 conv=notrunc status=none
  done
  ask -p "$P" --kv f32 --session kv
  [ "$cached" -eq 0 ]
  [ "$ids" = "$plain" ]
  ask -p "$P" --kv f32 --session kv
  [ "$cached" -gt 0 ]
  [ "$ids" = "$plain" ]
}

@test "zse-chat --continue --session: only the new turn is computed" {
  local rest='ready
send /stats
expect prompt   [0-9]+ tokens, [0-9]+ of them new
ready
key d
end 0'
  printf '%s\n' 'expect >' ready 'send What is 2+2?' 'expect = 4' ready 'send And 3+3?' 'expect = 6' "$rest" |
    "$BATS_TEST_DIRNAME/../lib/talk" zse-chat "$M" --temp 0 --session kv >first
  local turn
  for turn in new found; do
    [ $turn = found ] || rm -r kv
    printf '%s\n' 'expect >' ready 'send And 1+1?' 'expect = 2' "$rest" |
      "$BATS_TEST_DIRNAME/../lib/talk" zse-chat -c "$M" --temp 0 --session kv >$turn
    sed -n 's/.*prompt   \([0-9]*\) tokens, \([0-9]*\) of them new.*/\1 \2/p' $turn >$turn.n
  done
  read -r prompt computed <new.n                        # a new folder has no prefixes
  [ "$computed" -eq "$prompt" ]
  read -r prompt computed <found.n
  [ "$prompt" -gt 64 ]
  [ "$computed" -lt 24 ]
}

@test "zse-chat --session: models with recurrent layers go on at the last of their states" {
  oracles=${ZSE_ORACLES:-$BATS_TEST_DIRNAME/../../../shared/oracles}/models/hf
  [ -d "$oracles" ] || skip "no oracles (set ZSE_ORACLES)"
  zse-convert -q f16 "$oracles/mamba2" -o mamba2.zse 2>/dev/null
  M=mamba2.zse P=$(seq -s ' ' 1 160)
  ask -p "$P"
  local plain=$ids
  [ "$prompt" -gt 512 ]
  ask -p "$P" --session kv
  [ "$cached" -eq 0 ]
  [ "$ids" = "$plain" ]
  ask -p "$P" --session kv
  [ "$cached" -eq 512 ]
  [ "$ids" = "$plain" ]
}

@test "zse-chat --session: a full disk is reported once, and the answer is the same" {
  ask -p "$P"
  local plain=$ids
  (ulimit -f 4; ask -p "$P" --session kv 2>err; echo "$ids" >full)
  [ "$(cat full)" = "$plain" ]
  [ "$(cat err)" = "zse-chat: kv: File too large: prefixes are not kept" ]
  [ "$(ls -A kv)" = secret ]
}

@test "--session and --prefix-cache: wrong usage ends with 2" {
  run -2 zse-chat --session kv --url http://127.0.0.1:9 -p x
  [[ $output == *"--session"* ]]
  run -2 zse-serve --prefix-cache kv --no-prefix-cache
  [[ $output == *"exclude each other"* ]]
  run -2 zse-serve --prefix-cache kv:3
  [[ $output == *"at least 1MiB"* ]]
  run -2 zse-serve --prefix-cache :1GB
  [[ $output == *"DIR or DIR:SIZE"* ]]
  run -2 zse-serve --prefix-scope tenant
  [[ $output == *"key or all"* ]]
  run -1 zse-chat --session none/kv -p x "$M"
  [[ $output == *"none/kv: No such file"* ]]
}

# serve OPTION...: with a home of its own
serve() {
  exec 5< <(exec zse-serve --port 0 --no-history --no-audit "$@" "$M" 2>err)
  PID=$!
  read -r -u 5 _ _ URL
  await listens "$URL"
}
teardown() {
  local p
  for p in ${PID:-} ${OTHER:-}; do { kill "$p"; wait "$p"; } 2>/dev/null || true; done
}
stop() {
  kill "$PID"
  wait "$PID" || true
  PID=
}
# cached_for [KEY]: the number of prompt tokens taken from the cache, before an answer of $N tokens
# (default: 24)
cached_for() {
  jq -n --arg p "$P" --argjson n "${N:-24}" '{prompt: $p, max_tokens: $n, temperature: 0, model: "m"}' |
    curl -sf ${1:+-H "X-API-Key: $1"} -H 'Content-Type: application/json' -d @- "$URL/v1/completions" >answer
  jq .usage.prompt_tokens_details.cached_tokens answer
}

@test "zse-serve --prefix-cache finds prefixes after a restart; kill -9 leads to no wrong answer" {
  local signal plain
  serve --prefix-cache kv:100MB
  [ "$(cached_for)" -eq 0 ]
  plain=$(jq .choices[0].text answer)
  for signal in TERM KILL; do
    kill -$signal "$PID"
    wait "$PID" || true
    serve --prefix-cache kv:100MB
    [ "$(cached_for)" -gt 0 ]
    [ "$(jq .choices[0].text answer)" = "$plain" ]
  done
}

# has_runs N: whether the folder has N whole runs
has_runs() { [ "$(find kv -name '*.run' | wc -l)" -ge "$1" ]; }

@test "two zse-serve with one --prefix-cache find each other's prefixes while both live; one is killed" {
  local first first_url plain
  serve --prefix-cache kv:100MB
  first=$PID first_url=$URL
  OTHER=$PID
  exec 6<&5
  serve --prefix-cache kv:100MB
  N=2
  [ "$(URL=$first_url cached_for)" -eq 0 ]
  plain=$(jq .choices[0].text answer)
  await has_runs 1
  [ "$(cached_for)" -ge 64 ]                            # the second server has never computed it
  [ "$(jq .choices[0].text answer)" = "$plain" ]
  P="$(seq -s ' ' 31 60)"
  [ "$(cached_for)" -eq 0 ]                             # and the other way round
  plain=$(jq .choices[0].text answer)
  await has_runs 2
  kill -KILL "$PID"
  wait "$PID" || true
  [ "$(URL=$first_url cached_for)" -ge 64 ]
  [ "$(jq .choices[0].text answer)" = "$plain" ]
  PID=$first
  stop
}

@test "zse-serve --kv i4: two conversations in turn keep their prefixes" {
  local turn one two N=1
  one="$(seq -s ' ' 1 200)" two="$(seq -s ' ' 201 400)"
  serve --kv i4 --max-seqs 1
  for turn in 1 2 3; do
    for P in "$one" "$two"; do
      cached=$(cached_for)
      [ $turn = 1 ] || [ "$cached" -ge $(($(jq .usage.prompt_tokens answer) - 64)) ]
    done
  done
}

@test "zse-serve --prefix-scope: a key finds its own prefixes only, in memory and on disk; clients without keys share theirs" {
  local one two
  serve
  [ "$(cached_for)" -eq 0 ]                             # no keys: as ever
  [ "$(cached_for)" -gt 64 ]
  stop
  one=$(zse-apikey create one 2>/dev/null)
  two=$(zse-apikey create two 2>/dev/null)
  serve --prefix-cache kv
  [ "$(cached_for "$one")" -eq 0 ]
  [ "$(cached_for "$one")" -gt 64 ]
  [ "$(cached_for "$two")" -eq 0 ]
  stop
  rm kv/*.tail
  serve --prefix-cache kv
  [ "$(cached_for "$two")" -gt 0 ]
  stop
  serve --prefix-cache kv
  [ "$(cached_for "$one")" -gt 0 ]
  # a new key has no prefixes on disk, even if it gets the number of a deleted key
  zse-apikey delete two
  two=$(zse-apikey create two 2>/dev/null)
  await says 200 curl -s -o /dev/null -w '%{http_code}' -H "X-API-Key: $two" "$URL/v1/models"
  [ "$(cached_for "$two")" -eq 0 ]
  stop
  serve --prefix-scope all
  [ "$(cached_for "$one")" -eq 0 ]
  [ "$(cached_for "$two")" -gt 64 ]
}

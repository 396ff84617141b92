# keys-postgres.bats - keys, limits and counters of several servers in one PostgreSQL database,
# which the tests start in a folder of their own.
bats_require_minimum_version 1.5.0
load ../lib/server

# PostgreSQL does not run as root.
as_user() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=nobody --clear-groups "$@"; else "$@"; fi; }
database() {        # start|stop
  as_user "$PG/pg_ctl" -D "$DB/data" -w -t 60 -m fast -l "$DB/log" \
    -o "-k $DB -c listen_addresses= -c fsync=off -c shared_buffers=1MB" "$1" >"$DB/pg_ctl.log" 2>&1 3>&- || { cat "$DB/pg_ctl.log" "$DB/log"; return 1; }
}
setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  PG=$(printf '%s\n' /usr/lib/postgresql/*/bin | tail -n 1)
  export PG DB T=$BATS_FILE_TMPDIR
  if ! [ -x "$PG/initdb" ] || ! ldconfig -p | grep -q 'libpq\.so\.5'; then return; fi
  DB=$(mktemp -d -p /tmp)           # a parent of $TMPDIR may be closed to other users
  [ "$(id -u)" != 0 ] || chown nobody "$DB"
  as_user "$PG/initdb" -D "$DB/data" -U zse --auth=trust --no-sync --locale=C -E UTF8 >"$T/initdb" 2>&1 || { cat "$T/initdb"; return 1; }
  database start
  export KEYS="postgresql://zse:hunter2@/postgres?host=$DB"
  zse-convert models/tiny -o "$T/tiny.zse" --quality fast >/dev/null
}
teardown_file() {
  [ -z "$DB" ] || { database stop; rm -rf "$DB"; }
}
keys() { zse-apikey --keys "$KEYS" "$@"; }
needs_database() { [ -n "$DB" ] || skip "no PostgreSQL server or no libpq (scripts/deps)"; }
# get URL KEY: status, remaining requests, Retry-After
get() { curl -s -o /dev/null -w '%{http_code} %header{x-ratelimit-remaining} %header{retry-after}\n' -H "X-API-Key: $2" "$1/v1/models"; }
# The administrator's token needs no database.
metric() { curl -s -H "Authorization: Bearer $(cat "$T/$1/admin.token")" "${!1}/metrics" | awk -v m="$2" '$1 == m { print $2 }'; }
rounds() { metric "$1" zse_keys_database_rounds_total; }
has_rounds() { local n; n=$(rounds "$1") && [ "${n:-0}" -ge "$2" ]; }
# exchanged one|two: wait until that server has sent what it counted, and read what the others have.
exchanged() { local n; n=$(rounds "$1") && await has_rounds "$1" $((n + 2)); }

@test "zse-apikey makes the tables and does the same with them as with a file" {
  needs_database
  run -1 --separate-stderr keys list
  [[ $stderr == *'the tables of schema zse are missing'* ]]
  # at the same time: one of them makes the tables, the other ones wait
  local i pids=()
  for i in 1 2 3; do
    keys create "key$i" --rate-limit "$i" >"$T/made$i" 2>"$T/made$i.err" 3>&- &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i"; done
  grep -qE '^zse-[-_A-Za-z0-9]{43}$' "$T/made1"
  run -1 --separate-stderr keys create key1
  [[ $stderr == *"postgresql://$DB:"*"/postgres: key 'key1' exists already" ]]
  keys disable key2
  keys enable key3
  [ "$(keys rotate key1 2>/dev/null)" != "$(cat "$T/made1")" ]
  keys delete key3
  run -1 --separate-stderr keys delete key3
  [[ $stderr == *"postgresql://"*": no key 'key3'" ]]
  [ "$(keys list --json | jq -c '[.required, (.keys[] | .name, .rate_limit, .enabled)]')" = '[true,"key1",1,true,"key2",2,false]' ]
  [ "$(keys status key1 --json | jq -c '[.current, .remaining]')" = '[0,1]' ]
  keys disable
  [ "$(keys status)" = 'keys are not required' ]
  keys enable
  # tables of a newer version are left alone
  psql -qX "$KEYS" -c 'UPDATE zse.schema_version SET number = 99'
  run -1 --separate-stderr keys list
  [[ $stderr == *'its tables have version 99, expected at most 1'* ]]
  psql -qX "$KEYS" -c 'UPDATE zse.schema_version SET number = 1'
}

@test "a statement that waits for a lock ends in the database, too" {
  needs_database
  local lock
  coproc psql -qX "$KEYS" 3>&-
  lock=$COPROC_PID
  echo 'BEGIN; LOCK TABLE zse.keys; SELECT 1;' >&"${COPROC[1]}"
  read -r -u "${COPROC[0]}" _           # locked
  run -1 --separate-stderr keys list
  [[ $stderr == *'statement timeout'* ]]
  kill "$lock"
  [ "$(psql -qXAt "$KEYS" -c "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'zse'")" = 0 ]
}

@test "a password in the URL is in no message" {
  for url in 'postgresql://u:hunter2%zz@h/d' 'postgres:/u:hunter2@h/d' 'postgresql://u:a@hunter2@h/d' 'postgresql://u:hunter2/a@h/d'; do
    run ! zse-apikey --keys "$url" list
    [[ $output == *'--keys: the URL'* && $output != *hunter2* ]]
  done
  needs_database
  run -1 zse-apikey --keys 'postgresql://u:hunter2@/d?host=/no/such' list
  [[ $output == *'postgresql:///no/such:'*'No such file'* && $output != *hunter2* ]]
  run -2 zse-apikey --keys "$KEYS" --home /tmp list
  [[ $output != *hunter2* ]]
}

@test "two servers share keys, limits and resets, and go on while the database is away" {
  needs_database
  local one two a b key free admin
  key=$(keys create shared --rate-limit 6 2>/dev/null)
  free=$(keys create free 2>/dev/null)
  admin=$(keys create admin --scope admin 2>/dev/null)
  ZSE_HOME=$T/one start "$T/log1" "$T/tiny.zse" --port 0 --keys "$KEYS" --keys-grace 2; one=$URL a=$PID
  ZSE_HOME=$T/two start "$T/log2" "$T/tiny.zse" --port 0 --keys "$KEYS"; two=$URL b=$PID
  await listens "$one"
  await listens "$two"
  run ! grep -a hunter2 "/proc/$a/cmdline"

  # 3 there and 1 here leave 2 to both
  [ "$(get "$one" "$key")$(get "$one" "$key")$(get "$one" "$key")" = '200 5 200 4 200 3 ' ]
  exchanged one
  get "$two" "$key" >/dev/null
  exchanged two
  [ "$(get "$two" "$key")" = '200 1 ' ]
  [ "$(get "$two" "$key")" = '200 0 ' ]
  [[ $(get "$two" "$key") == '429 0 '[1-9]* ]]
  exchanged two
  exchanged one
  [[ $(get "$one" "$key") == '429 0 '[1-9]* ]]
  [ "$(keys status shared --json | jq -c '[.current, .remaining, .request_count]')" = '[6,0,6]' ]
  [ "$(curl -s -H "X-API-Key: $admin" "$one/api/keys" | jq -c '.keys[] | select(.name == "shared") | [.current, .request_count]')" = '[6,6]' ]

  # a reset, a new key and a changed one take effect in both
  keys reset shared
  exchanged one
  [[ $(get "$one" "$key") == '200 5 '* ]]
  local made
  made=$(curl -s -H "X-API-Key: $admin" -d '{"name":"made"}' "$one/api/keys" | jq -r .key)
  [[ $(get "$one" "$made") == 200* ]]
  exchanged two
  [[ $(get "$two" "$made") == 200* ]]
  keys disable made
  exchanged two
  [[ $(get "$two" "$made") == 401* ]]

  # a database that fell back to an older state, and has as many changes since as the lost ones
  made=$(keys create back 2>/dev/null)
  exchanged two
  [[ $(get "$two" "$made") == 200* ]]
  psql -qX "$KEYS" -c "BEGIN; UPDATE zse.keys SET enabled = 0 WHERE name = 'back'; UPDATE zse.changes SET n = n - 1; COMMIT" \
    -c "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'zse'" >/dev/null
  exchanged two
  [[ $(get "$two" "$made") == 401* ]]

  # away: a known key goes on, an unknown one waits; after --keys-grace no key is valid
  database stop
  away() { [ "$(metric "$1" zse_keys_database_up)" = 0 ]; }
  await away two
  said() { get "$two" "$key" >/dev/null; grep -q 'the keys read before stay valid' "$T/log2.err"; }
  await said                                    # requests look for changes of keys, once a second
  [[ $(get "$two" "$key") == '200 '* ]]
  [[ $(get "$two" zse-unknown) == '503  2' ]]
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$two/v1/models")" = 401 ]
  refused() { [[ $(get "$1" "$2") == '503  2' ]]; }
  await refused "$one" "$free"
  [[ $(get "$one" '') == 401* ]]
  database start
  exchanged one
  exchanged two
  [[ $(get "$one" "$free") == 200* ]]
  [[ $(get "$two" zse-unknown) == 401* ]]
  [ "$(keys status shared --json | jq .current)" -ge 2 ]       # the request of that time is counted

  # without required keys: open until --keys-grace is over
  keys disable
  exchanged one
  exchanged two
  [[ $(get "$one" '') == 200* ]]
  database stop
  await refused "$one" ''
  [[ $(get "$two" '') == 200* ]]
  database start
  stop "$a"
  stop "$b"
  run ! grep hunter2 "$T"/*.err
}

# jobs.bats - downloads and conversions over HTTP: progress, cancelling, resuming, bad orders;
# models on the server's disk; loading with a type, a device and a limit of memory.
bats_require_minimum_version 1.5.0
load ../lib/server

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export T=$BATS_FILE_TMPDIR
  export ZSE_HOME=$T/home HF_HOME=$T/hf HF_HUB_DISABLE_XET=1
  mkdir "$T/empty"
  echo nothing >"$T/empty/README.md"
  mkfifo "$T/hub.pipe"
  python3 -B tests/hub/server.py test/tiny=models/tiny gated/model=models/tiny private/model=models/tiny test/empty="$T/empty" \
    >"$T/hub.pipe" 2>"$T/hub.err" 3>&- &
  echo $! >"$T/hub.pid"
  read -r HUB _ <"$T/hub.pipe"
  export HUB HF_ENDPOINT=$HUB
  start "$T/main" --port 0
  export URL MAIN_PID=$PID
}

teardown_file() {
  kill -TERM "$MAIN_PID" 2>/dev/null
  while kill -0 "$MAIN_PID" 2>/dev/null; do sleep 0.05; done
  kill "$(cat "$T/hub.pid")"
}

setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  curl -s -X POST "$HUB/_reset" -d '{}' >/dev/null
}
teardown() {
  curl -s -X POST "$HUB/_release" -d '{}' >/dev/null || true
  local p
  for p in $(jobs -p); do kill -KILL "$p" 2>/dev/null || true; done
  [ -z "${MOUNTED-}" ] || umount -l "$MOUNTED"
}

admin() { curl -s -H "Authorization: Bearer $(cat "$ZSE_HOME/admin.token")" "$@"; }
fault() { curl -sf -X POST "$HUB/_fault" -d "$1"; }
order() { admin "$URL/api/models/jobs" -d "$1"; }
state() { admin "$URL/api/models/jobs/$1" | jq -r .state; }
message() { admin "$URL/api/models/jobs/$1" | jq -r .message; }
is_over() { [[ $(state "$1") =~ ^(done|failed|cancelled)$ ]]; }
refused() { order "$1" | jq -r '.error | "\(.code): \(.message)"'; }

@test "a model of the hub is downloaded, converted and loaded; the list, the stream and the audit log show it" {
  admin -N "$URL/api/models/jobs/events" >"$T/events" &
  local id
  id=$(order '{"source":"test/tiny","quantization":"int8","quality":"fast","load":true}' | jq -r .id)
  [ "$id" = 1 ]
  await is_over "$id"
  admin "$URL/api/models/jobs/$id" | jq -e '.state == "done" and .kind == "convert" and .name == "tiny-int8" and .bytes > 100000 and
    .progress.done == .progress.total and (.ended_at >= .started_at)'
  zse-info --json "$ZSE_HOME/models/tiny-int8.zse" | jq -e '.kind == "zse"'
  await says tiny-int8 eval "curl -s $URL/v1/models | jq -r '.data[].id'"
  await grep -q '"state":"done"' "$T/events"
  admin "$URL/api/audit/recent" | jq -e 'any(.entries[]; .method == "JOB" and .path == "/api/models/jobs/1" and .status_code == 200 and .model_id == "test/tiny" and .api_key_name == "(admin.token)")'
  admin "$URL/api/models/files" | jq -e '.files[0].name == "tiny-int8.zse" and .files[0].kind == "zse" and .free_bytes > 0'
  # a loaded file stays
  [ "$(admin -X DELETE "$URL/api/models/files/tiny-int8.zse" | jq -r .error.code)" = model_loaded ]
  [ "$(admin -X DELETE "$URL/api/models/files/../admin.token" --path-as-is | jq -r .error.code)" = no_such_file ]
  [ "$(admin -X DELETE "$URL/api/models/files/none.zse" | jq -r .error.code)" = no_such_file ]
  admin "$URL/api/models/unload" -d '{"model_id":"tiny-int8"}' | jq -e .success
  await says 0 eval "curl -s $URL/api/stats/models | jq '.models | length'"
  admin -X DELETE "$URL/api/models/files/tiny-int8.zse" | jq -e '.status == "deleted"'
  [ ! -e "$ZSE_HOME/models/tiny-int8.zse" ]
  kill %1 || true
}

@test "a job is cancelled and resumed half way; others wait; the same order twice is refused" {
  local id next
  rm -rf "$HF_HOME"
  fault '{"file":"model.safetensors","kind":"hold","times":1,"at":"cdn"}'
  id=$(order '{"source":"test/tiny","quality":"fast","name":"half"}' | jq -r .id)
  next=$(order '{"source":"test/tiny","kind":"download"}' | jq -r .id)
  await eval "[ \"\$(admin $URL/api/models/jobs/$id | jq '.progress.done // 0')\" -gt 100000 ]"
  [ "$(state "$next")" = queued ]
  # if memory runs out, the kernel must kill the job, not the server
  [ "$(cat "/proc/$(cat "/proc/$MAIN_PID"/task/*/children | head -1 | tr -d ' ')/oom_score_adj")" = 1000 ]
  [[ "$(refused '{"source":"test/tiny","name":"half"}')" == "job_exists: job $id does that already" ]]
  [ "$(admin -X POST "$URL/api/models/jobs/$id/resume" | jq -r .error.code)" = job_not_ended ]
  admin -X DELETE "$URL/api/models/jobs/$next" | jq -e '.status == "cancelled"'
  admin -X DELETE "$URL/api/models/jobs/$id" | jq -e '.status == "cancelling"'
  await is_over "$id"
  curl -s -X POST "$HUB/_release" -d '{}' >/dev/null
  [ "$(state "$id")" = cancelled ]
  [[ "$(message "$id")" == "cancelled; the same request resumes it" ]]
  ls "$HF_HOME"/hub/models--test--tiny/blobs/*.zse-part
  admin -X POST "$URL/api/models/jobs/$id/resume" | jq -e '.state == "queued" or .state == "running"'
  await is_over "$id"
  says 'done' state "$id"
  [ -s "$ZSE_HOME/models/half.zse" ]
  admin -X DELETE "$URL/api/models/jobs/$id" | jq -e '.status == "removed"'
  [ "$(admin "$URL/api/models/jobs/$id" | jq -r .error.code)" = not_found ]
  id=$(order '{"source":"test/tiny","kind":"download"}' | jq -r .id)
  await is_over "$id"
  says 'done' state "$id"
}

@test "a disk that fills up under a job: it fails with the reason, and goes on when there is room" {
  local id models=$ZSE_HOME/models
  [ "$(id -u)" = 0 ] || skip "only root can mount a file system"
  mkdir -p "$models"
  mount -t tmpfs -o size=40m tmpfs "$models" 2>/dev/null || skip "no permission to mount a file system"
  MOUNTED=$models
  rm -rf "$HF_HOME"
  fault '{"file":"model.safetensors","kind":"hold","times":1,"at":"cdn"}'
  id=$(order '{"source":"test/tiny","quality":"fast","name":"full","load":false}' | jq -r .id)
  await eval "[ \"\$(admin $URL/api/models/jobs/$id | jq '.progress.done // 0')\" -gt 100000 ]"
  head -c 50M /dev/zero >"$models/fill" 2>/dev/null || true
  curl -s -X POST "$HUB/_release" -d '{}' >/dev/null
  await is_over "$id"
  [ "$(state "$id")" = failed ]
  [[ "$(message "$id")" == *"where there is room for"* ]]
  [ "$(admin "$URL/api/models/files" | jq '[.files[] | select(.name == "full.zse")] | length')" = 0 ]
  rm "$models/fill"
  admin -X POST "$URL/api/models/jobs/$id/resume" | jq -e '.state == "queued" or .state == "running"'
  await is_over "$id"
  [ "$(state "$id")" = "done" ]
  zse-info --verify "$models/full.zse"
}

@test "refusals by a hub are reported: a gated or missing model, a wrong hash, no hub, no model" {
  local id
  id=$(order '{"source":"gated/model"}' | jq -r .id)
  await is_over "$id"
  [ "$(state "$id")" = failed ]
  message "$id" | tee /dev/stderr | grep -qE 'HF_TOKEN|licen[cs]e|gated'
  id=$(order '{"source":"private/model"}' | jq -r .id)
  await is_over "$id"
  message "$id" | tee /dev/stderr | grep -q 'HF_TOKEN\|token'
  id=$(order '{"source":"test/missing"}' | jq -r .id)
  await is_over "$id"
  message "$id" | tee /dev/stderr | grep -q 'test/missing'
  rm -rf "$HF_HOME"
  fault '{"file":"model.safetensors","kind":"wrong","times":99,"whole":true}'
  id=$(order '{"source":"test/tiny","quality":"fast","name":"wrong"}' | jq -r .id)
  await is_over "$id"
  [ "$(state "$id")" = failed ]
  message "$id" | tee /dev/stderr | grep -qi 'sha-\?256\|hash\|differ'
  [ ! -e "$ZSE_HOME/models/wrong.zse" ]
  id=$(order '{"source":"test/empty"}' | jq -r .id)
  await is_over "$id"
  [ "$(state "$id")" = failed ]
}

@test "bad orders are refused: no source, unknown kinds and types, paths, names with ../, no key, no scope" {
  [[ "$(refused '{}')" == "missing: source: missing" ]]
  [[ "$(refused '{"source":"a/b","kind":"train"}')" == "invalid_value: kind:"* ]]
  [[ "$(refused '{"source":"a/b","quantization":"int3"}')" == "invalid_value: quantization"* ]]
  [[ "$(refused '{"source":"a/b","quantization":"mixed"}')" == *"needs target_gb" ]]
  [[ "$(refused '{"source":"a/b","quality":"perfect"}')" == "invalid_value: quality:"* ]]
  [[ "$(refused '{"source":"a/b","name":"../up"}')" == "invalid_value: name:"* ]]
  [[ "$(refused '{"source":"a/b","name":".hidden"}')" == "invalid_value: name:"* ]]
  [[ "$(refused '{"source":"a/b","name":"a/b"}')" == "invalid_value: name:"* ]]
  [[ "$(refused '{"source":"a/../../b"}')" == "invalid_value: source"* ]]
  [[ "$(refused '{"source":"-o"}')" == "invalid_value: source"* ]]
  [[ "$(refused '{"source":"/no/such"}')" == "invalid_value: source:"* ]]
  [[ "$(refused '{"source":"/dev/zero"}')" == *"is no file or folder" ]]
  [[ "$(refused '{"source":"a/b","kind":"download","load":true}')" == "invalid_value: kind:"* ]]
  [[ "$(refused '{"source":"a/b","target_gb":-1}')" == "out_of_range"* ]]
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/api/models/jobs")" = 401 ]
  [ "$(curl -s "$URL/api/models/jobs" -d '{"source":"a/b"}' -o /dev/null -w '%{http_code}')" = 401 ]
  [ "$(admin -X DELETE "$URL/api/models/jobs/99" -o /dev/null -w '%{http_code}')" = 404 ]
  [ "$(admin -I "$URL/api/models/jobs/events" -o /dev/null -w '%{http_code}')" = 405 ]
}

@test "a server that stops ends its job at once, and answers while it runs; a job without a hub fails" {
  local d=$BATS_TEST_TMPDIR id from
  fault '{"file":"model.safetensors","kind":"hold","times":1,"at":"cdn"}'
  HF_HOME=$d/hf ZSE_HOME=$d/home start "$d/log" --port 0
  ZSE_HOME=$d/home
  id=$(order '{"source":"test/tiny","quality":"fast"}' | jq -r .id)
  await eval "[ \"\$(admin $URL/api/models/jobs/$id | jq '.progress.done // 0')\" -gt 100000 ]"
  admin -N "$URL/api/models/jobs/events" >"$d/events" &
  await grep -q running "$d/events"
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/health")" = 200 ]
  from=$SECONDS
  kill -TERM "$PID"
  wait "$PID"
  [ $((SECONDS - from)) -lt 10 ]
  grep -q '"method":"JOB".*"status_code":499' "$d/home/audit/requests.jsonl"
  [ -z "$(pgrep -f "$d/home/models")" ]
  curl -s -X POST "$HUB/_release" -d '{}'
  HF_ENDPOINT=http://127.0.0.1:1 HF_HOME=$d/none ZSE_HOME=$d/home start "$d/log2" --port 0
  id=$(order '{"source":"test/tiny"}' | jq -r .id)
  await is_over "$id"
  [ "$(state "$id")" = failed ]
  message "$id" | tee /dev/stderr | grep -q '127.0.0.1:1'
  kill -TERM "$PID"
  wait "$PID"
}

@test "with --model-dir sources and results lie in that folder, and other paths are refused" {
  local d=$BATS_TEST_TMPDIR id
  mkdir "$d/models"
  cp -r models/tiny "$d/models/tiny"
  cp -r models/tiny "$d/out"
  ZSE_HOME=$d/home start "$d/log" --port 0 --model-dir "$d/models"
  ZSE_HOME=$d/home
  [[ "$(refused "{\"source\":\"$d/out\"}")" == "path_not_allowed"* ]]
  [[ "$(refused '{"source":"../out"}')" == "path_not_allowed"* ]]
  id=$(order "{\"source\":\"./tiny\",\"quality\":\"fast\",\"name\":\"made\"}" | jq -r .id)
  await is_over "$id"
  says 'done' state "$id"
  [ -s "$d/models/made.zse" ]
  admin "$URL/api/models/files" | jq -e '[.files[].name] == ["made.zse", "tiny"] and .files[1].kind == "folder"'
  admin "$URL/api/models/load" -d '{"model_path":"made.zse"}' | jq -e .success
  kill -TERM "$PID"
  wait "$PID"
}

@test "a model is loaded with a type, a limit of memory and a device" {
  local d=$BATS_TEST_TMPDIR
  export XDG_CACHE_HOME=$d/cache
  start "$d/log" --port 0 models/tiny
  await listens "$URL"
  admin "$URL/api/models/load" -d '{"model_path":"models/tiny","model_name":"eight","quantization":"int8","device":"cpu"}' | tee /dev/stderr | jq -e '.success and .quantization == "int8" and .device == "cpu"'
  admin "$URL/api/models/load" -d '{"model_path":"models/tiny","model_name":"eight","quantization":"int8","device":"cpu"}' | jq -e '.message == "was loaded already"'
  # another type replaces it
  admin "$URL/api/models/load" -d '{"model_path":"models/tiny","model_name":"eight","quantization":"nl4"}' | jq -e '.success and .quantization == "nl4"'
  await says "nl4" eval "curl -s $URL/api/stats/models | jq -r '.models[] | select(.model_id == \"eight\" and .state == \"ready\") | .quantization'"
  [ "$(admin "$URL/api/models/load" -d '{"model_path":"models/tiny","model_name":"x","quantization":"int3"}' | jq -r .error.message | tee /dev/stderr | grep -c quantization)" = 1 ]
  [ "$(admin "$URL/api/models/load" -d '{"model_path":"models/tiny","model_name":"x","device":"abacus"}' | jq -r .error.message | tee /dev/stderr | grep -c abacus)" = 1 ]
  [ "$(admin "$URL/api/models/load" -d '{"model_path":"models/tiny","quantization":"int8","target_vram_gb":1}' | jq -r .error.code)" = invalid_value ]
  zse-convert models/tiny -o "$d/t.zse" --quality fast >/dev/null
  admin "$URL/api/models/load" -d "{\"model_path\":\"$d/t.zse\",\"target_vram_gb\":0.0001}" | jq -r .error.message | tee /dev/stderr | grep -q 'target_vram_gb is 0.0001'
  admin "$URL/api/models/load" -d "{\"model_path\":\"$d/t.zse\",\"target_vram_gb\":1}" | jq -e .success
  kill -TERM "$PID"
  wait "$PID"
}

@test "progress is lines of JSON; a reader that leaves ends the work" {
  zse-convert models/tiny -o "$BATS_TEST_TMPDIR/a.zse" --quality fast --progress json >/dev/null 2>"$BATS_TEST_TMPDIR/lines"
  jq -es 'length > 0 and all(.[]; .step and .unit and .done <= .total)' "$BATS_TEST_TMPDIR/lines"
  zse-info models fetch --progress json test/tiny 2>"$BATS_TEST_TMPDIR/lines" >/dev/null
  # the pipe is closed early: no file stays
  zse-convert --synthetic SmolLM2-135M -o "$BATS_TEST_TMPDIR/c.zse" --quality fast --progress json 2>&1 >/dev/null |
    head -n 1
  [ "${PIPESTATUS[0]}" != 0 ]
  [ ! -e "$BATS_TEST_TMPDIR/c.zse" ]
  run zse-convert models/tiny -o "$BATS_TEST_TMPDIR/b.zse" --progress dots
  [ "$status" = 2 ]
  [[ "$output" == *"expected bar or json"* ]]
}

@test "a server that sleeps makes a model, and does not load it" {
  local id
  admin -X POST "$URL/sleep" | jq -e .is_sleeping
  id=$(order '{"source":"test/tiny","quality":"fast","name":"asleep","load":true}' | jq -r .id)
  is_told() { [ "$(message "$id")" = "made, but not loaded: the server sleeps" ]; }
  await is_told
  [ "$(state "$id")" = "done" ]
  admin "$URL/api/stats/models" | jq -e '.models == []'
  admin -X POST "$URL/wake_up" | jq -e '.is_sleeping == false'
}

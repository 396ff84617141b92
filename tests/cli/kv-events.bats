# kv-events.bats - events of the prefix cache over ZeroMQ, read as vLLM's subscribers read them.
bats_require_minimum_version 1.5.0
load ../lib/server

setup_file() { :; }
teardown_file() { :; }

@test "blocks that are stored and removed are published in order, and replayed" {
  local t=$BATS_TEST_TMPDIR
  installed zmq msgpack || skip "no pyzmq or msgpack in build/venv (scripts/deps)"
  ldconfig -p | grep -q 'libzmq\.so\.5' || skip "no libzmq.so.5 (scripts/deps)"
  export ZSE_HOME=$t/home
  zse-convert models/tiny -o "$t/tiny.zse" --quality fast >/dev/null
  start "$t/log" "$t/tiny.zse" --port 0 --max-seqs 1 --ctx 256 --kv-bytes 300kB --kv-events "ipc://$t/events" --kv-replay "ipc://$t/replay"
  await listens "$URL"
  build/venv/bin/python tests/serve/kv_events.py "$URL" "ipc://$t/events" "ipc://$t/replay"
  stop "$PID"
}

@test "endpoints that cannot be bound, and options that lack another, are refused" {
  run -2 --separate-stderr zse-serve models/tiny --port 0 --kv-replay tcp://127.0.0.1:1
  [[ $stderr == *'need --kv-events'* ]]
  run -2 --separate-stderr zse-serve --port 0 --kv-events tcp://127.0.0.1:1
  [[ $stderr == *'--kv-events needs a MODEL'* ]]
  ldconfig -p | grep -q 'libzmq\.so\.5' || skip "no libzmq.so.5 (scripts/deps)"
  run -1 --separate-stderr zse-serve models/tiny --port 0 --kv-events ipc:///no/such/folder/socket
  [[ $stderr == *'--kv-events ipc:///no/such/folder/socket: '* ]]
}

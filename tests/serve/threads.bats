# threads.bats - zse-serve of the thread sanitizer's build: the only one whose tests these are.
bats_require_minimum_version 1.5.0

@test "seconds of mixed load: no report of the thread sanitizer" {
  run "$BATS_TEST_DIRNAME/sanitized" --built --load -t 3 tsan
  echo "$output"
  [ "$status" = 0 ]
}

# threads.bats - zse-serve of the thread sanitizer's build: the only one whose tests these are.
bats_require_minimum_version 1.5.0

@test "under seconds of mixed load the thread sanitizer reports nothing" {
  run "$BATS_TEST_DIRNAME/sanitized" --built --load -t 3 tsan
  echo "$output"
  [ "$status" = 0 ]
}

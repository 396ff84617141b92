# group.bash - make a real control group with a memory limit, for tests that source this: version 1
# or 2, depending on the memory controller's.

# make_group BYTES: GROUP is its folder; fails if none can be made, with the reason in WHY
make_group() {
  local top=/sys/fs/cgroup
  # shellcheck disable=SC2034
  WHY="no control group with a memory controller can be made here"
  if grep -q ' - cgroup .*memory' /proc/self/mountinfo && [ -w $top/memory ]; then
    GROUP=$top/memory/zse-test-$$
    mkdir "$GROUP" 2>/dev/null && echo "$1" >"$GROUP/memory.limit_in_bytes"
  elif [ -w $top/cgroup.subtree_control ] && grep -q memory $top/cgroup.subtree_control; then
    GROUP=$top/zse-test-$$
    mkdir "$GROUP" 2>/dev/null && echo "$1" >"$GROUP/memory.max"
  else
    return 1
  fi
}

in_group() { tests/lib/in-group "$GROUP" "$@"; }

# drop_group: remove the group, whose processes have ended; the kernel may notice that a moment
# later
drop_group() {
  local end=$((SECONDS + 60))
  until rmdir "$GROUP" 2>/dev/null || [ ! -d "$GROUP" ]; do [ $SECONDS -lt $end ] || return 1; done
  GROUP=
}

# layers.bats - the includes of the library follow libcommon/LAYERS.

@test "every folder of the library is listed in LAYERS" {
  for dir in libcommon/*/ gpu/; do
    ls "$dir"*.[ch] "$dir"*/*.cu >/dev/null 2>&1 || continue
    grep -q "^${dir%/}:" libcommon/LAYERS || { echo "missing: $dir"; return 1; }
  done
}

@test "no file includes a layer it may not" {
  bad=$(awk '
    FNR == NR { if ($0 !~ /^#/ && NF) { me = $1; sub(":", "", me); for (i = 2; i <= NF; i++) may[me, "libcommon/" $i] = 1; may[me, me] = 1 } next }
    match($0, /^ *# *include *"[^"]*"/) {
      split($0, part, "\""); target = part[2]; sub("/[^/]*$", "", target)
      self = FILENAME; sub("/[^/]*$", "", self)
      if (self ~ /^gpu/) self = "gpu"
      if (target !~ /^(libcommon|gpu)/) { print FILENAME ":" FNR ": " part[2] ": not named from the root"; next }
      if (target ~ /^gpu/) target = "gpu"
      if (!((self, target) in may)) print FILENAME ":" FNR ": " part[2]
    }' libcommon/LAYERS $(find libcommon gpu -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'))
  [ -z "$bad" ] || { echo "$bad"; return 1; }
}

@test "every header compiles alone" {
  for h in $(find libcommon -name '*.h'); do
    echo "#include \"$h\"" | gcc -std=c11 -D_GNU_SOURCE -I. $(pkg-config --cflags jansson) -Wall -Wextra -Werror -fsyntax-only -x c - || { echo "$h"; return 1; }
  done
}

@test "the library never prints, exits or reads the environment" {
  bad=$(grep -nE '\b(printf|puts|putchar|perror|exit|abort|getenv)\(' $(find libcommon -name '*.c') | grep -vE 'v?snprintf|asprintf|fprintf\(f' || true)
  [ -z "$bad" ] || { echo "$bad"; return 1; }
}

@test "shell scripts pass shellcheck" {
  shellcheck -S warning -e SC2046,SC2086 scripts/deps scripts/check scripts/demo scripts/fetch-model scripts/bench-vs .ci/run tests/run
}

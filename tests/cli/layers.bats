# layers.bats - the includes of the library follow libcommon/LAYERS.
# bats file_tags=plain

@test "every folder of the library is listed in LAYERS" {
  for dir in libcommon/*/ libcommon/*/*/ gpu/ gpu/*/ lib/; do
    ls "$dir"*.[ch]* >/dev/null 2>&1 || continue
    grep -q "^${dir%/}:" libcommon/LAYERS || { echo "missing: $dir"; return 1; }
  done
}

@test "no file includes a layer it may not, and LAYERS allows none that no file includes" {
  bad=$(awk '
    FNR == NR { if ($0 !~ /^#/ && NF) { me = $1; sub(":", "", me); for (i = 2; i <= NF; i++) may[me, ($i ~ \
      /^gpu/ ? "" : "libcommon/") $i] = 1; may[me, me] = 1 } next }
    match($0, /^ *# *include *"[^"]*"/) {
      split($0, part, "\""); target = part[2]; sub("/[^/]*$", "", target)
      self = FILENAME; sub("/[^/]*$", "", self)
      if (target !~ /^(libcommon|gpu|lib)(\/|$)/) { print FILENAME ":" FNR ": " part[2] ": not named from the root"; next }
      if (!((self, target) in may)) print FILENAME ":" FNR ": " part[2]
      included[self, target] = 1
    }
    END {
      for (pair in may) {
        split(pair, part, SUBSEP)
        if (part[1] != part[2] && !(pair in included)) print "LAYERS: " part[1] ": no file includes " part[2]
      }
    }' libcommon/LAYERS $(find libcommon gpu lib -name '*.[ch]' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc'))
  [ -z "$bad" ] || { echo "$bad"; return 1; }
}

@test "LAYERS has no cycle: no folder may include one that may include it" {
  awk '!/^#/ && NF { me = $1; sub(":$", "", me); for (i = 2; i <= NF; i++) print ($i ~ /^gpu/ ? "" : "libcommon/") $i, me }' \
    libcommon/LAYERS >"$BATS_TEST_TMPDIR/may"
  [ "$(wc -l <"$BATS_TEST_TMPDIR/may")" -gt 100 ]
  run tsort "$BATS_TEST_TMPDIR/may"
  [ "$status" = 0 ] || { echo "$output" | grep '^tsort:'; return 1; }
}

# The kernel sets, and the two runtimes of a device, each define structs with the same tags.
@test "a name leads to one place: no two files of the programs share a name, no two structs a tag" {
  names=$(find libcommon gpu cmd lib -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sed 's|.*/||' | sort | uniq -d)
  [ "$names" = internal.h ] || { echo "$names"; return 1; }
  tags=$(find libcommon gpu/backend cmd lib -name '*.[ch]' ! -path '*/kernels/*' -exec grep -hoE '\b(struct|enum) [a-z0-9_]+ \{' {} + |
    sort | uniq -d)
  # four programs have an enum of their commands
  [ "$tags" = 'enum command {' ] || { echo "$tags"; return 1; }
}

@test "only files that the Makefile finds ask for the architecture" {
  bad=$(grep -rnE '^ *#.*\bZSE_X86\b' --include='*.[ch]' --include='*.inc' --include='*.cu' --include='*.cuh' --include='*.cc' libcommon cmd gpu tests | \
    grep -vE '^(libcommon(/[^/]+){1,2}|tests/unit)/[^/]+\.c:' || true)
  [ -z "$bad" ] || { echo "$bad"; return 1; }
}

# Headers that a source includes first are compiled alone by the build already; this test compiles
# the others.
@test "every header compiles alone" {
  first=$(find libcommon -name '*.c' -exec awk '
    FNR == 1 { before = 0 }
    !before && /^ *# *[a-z]/ { before = 1; if (match($0, /^#include "/)) { split($0, part, "\""); print part[2] } }' {} + | sort -u)
  [ "$(wc -l <<<"$first")" -gt 100 ]
  for h in $(find libcommon lib -name '*.h' | sort | comm -23 - <(echo "$first")); do
    echo "#include \"$h\"" | gcc -std=c11 -D_GNU_SOURCE -I. $(pkg-config --cflags jansson) -Wall -Wextra -Werror -fsyntax-only \
      -x c - || { echo "$h"; return 1; }
  done
}

@test "the library never prints, exits or reads the environment" {
  bad=$(awk '
    { code = $0; gsub(/"([^"\\]|\\.)*"/, "", code) }
    code ~ /(^|[^a-z_.>])(printf|vprintf|puts|putchar|perror|exit|_exit|abort|getenv|secure_getenv)\(/ || code \
      ~ /fprintf\((stdout|stderr)/ { print FILENAME ":" FNR ": " $0 }
    ' $(find libcommon lib -name '*.[ch]' -o -name '*.inc'))
  [ -z "$bad" ] || { echo "$bad"; return 1; }
}

@test "shell scripts pass shellcheck" {
  scripts=$(grep -lE '^#!.*\b(ba)?sh$' $(find scripts -maxdepth 1 -type f) tests/run $(find tests/lib -maxdepth 1 -type f) .ci/*)
  [ "$(wc -l <<<"$scripts")" -ge 7 ]
  # shellcheck disable=SC2086
  shellcheck -S warning $scripts
  shellcheck -S warning -e SC2044,SC2046,SC2154 tests/cli/*.bats
  shellcheck -S warning -s bash tests/lib/*.bash
  shellcheck -S warning -e SC2207 completions/*.bash
}

# A test goes on after `[ A ] && [ B ]` if A is false, unless it is the last command of a function.
@test "no command test has a check whose failure an && list hides" {
  bad=$(awk '
    FNR > 1 && said && $1 != "}" { print said }
    { said = "" }
    /^ +(! )?\[.* \]\]? && / && !/\|\|/ && !/&& (continue|break|return)/ { said = FILENAME ":" FNR ": " $0 }' tests/cli/*.bats)
  [ -z "$bad" ] || { echo "$bad"; return 1; }
}

# Nor does a test fail where `!  command` is false.  Use `run ! command`, or `if command; then
# return 1; fi`.
@test "no command of a command test is negated without effect" {
  bad=$(grep -nE '(^ *|; |do |then )! [a-z[]' tests/cli/*.bats || true)
  [ -z "$bad" ] || { echo "$bad"; return 1; }
}

# sampling.bats - every row of libcommon/engine/sampling.def stands in --help, the man pages and the
# API.
bats_require_minimum_version 1.5.0

# One line for each row: kind, name, flag, min, max, default.
rows() { sed -nE 's/^OPTION\((\w+), (\w+), "([a-z-]+)", ([^,]+), ([^,]+), ([^,]+), .*/\1 \2 \3 \4 \5 \6/p' libcommon/engine/sampling.def; }

# The man page's text about an option, on one line.
said() { awk -v it=".It Fl -$1 Ar" 'index($0, it) == 1 { on = 1; next } /^\.It/ { on = 0 } on' man/zse-chat.1 | tr '\n' ' '; }

@test "every sampling option is in --help and in zse-chat(1), with its range and default" {
  local n=0 kind name flag min max value range
  zse-chat --help >"$BATS_TEST_TMPDIR/help"
  while read -r kind name flag min max value; do
    n=$((n + 1))
    grep -qE "^ +--$flag $([ "$kind" = WHOLE ] && echo N || echo X) +[A-Za-z]" "$BATS_TEST_TMPDIR/help" || { echo "--help lacks --$flag"; return 1; }
    range="$min to $max"
    [ "$max" != INT32_MAX ] || range="at least $min"
    [[ "$(said "$flag")" == *" $range, default $value"[.\;]* ]] || { echo "zse-chat(1), --$flag: expected \"$range, default $value\": $(said "$flag")"; return 1; }
    grep -qE "\b$name\b" man/zse-serve.1 || { echo "zse-serve(1) lacks $name"; return 1; }
  done < <(rows)
  [ "$n" = "$(grep -c '^OPTION' libcommon/engine/sampling.def)" ] && [ "$n" -ge 9 ]
}

@test "values outside of a range are refused, and its ends accepted up to the model" {
  local kind name flag min max value
  while read -r kind name flag min max value; do
    run -2 --separate-stderr zse-chat "--$flag" "$(awk -v x="$min" 'BEGIN { print x - 1 }')" no-model.zse -p hi
    [[ "$stderr" == *"--$flag"* ]] || { echo "$flag: $stderr"; return 1; }
    run -1 --separate-stderr zse-chat "--$flag" "$min" no-model.zse -p hi
  done < <(rows)
}

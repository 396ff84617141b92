# sampling.bats - every row of libcommon/engine/sampling.def stands in --help, the man pages and the
# API.
bats_require_minimum_version 1.5.0

# One line for each row of the file: kind, name, flag, min, max, default.
rows() { sed -nE 's/^OPTION\((\w+), (\w+), "([a-z-]+)", ([^,]+), ([^,]+), ([^,]+), .*/\1 \2 \3 \4 \5 \6/p' libcommon/engine/sampling.def; }

# The man page's text about an option, on one line.
said() { awk -v it=".It Fl -$1 Ar" 'index($0, it) == 1 { on = 1; next } /^\.It/ { on = 0 } on' man/zse-chat.1 | tr '\n' ' '; }

@test "every sampling option is in --help and in zse-chat(1), with its range and default" {
  local n=0 kind name flag min max value range
  zse-chat --help | awk -f scripts/unwrap-help.awk >"$BATS_TEST_TMPDIR/help"
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

@test "DRY ends a repetition, unless a sequence breaker lies in it; the same by HTTP" {
  local ask=(zse-chat --raw --temp 0 -n 12 -p x --logit-bias '66=40') dry plain url
  zse-convert models/tiny -o "$BATS_TEST_TMPDIR/tiny.zse" 2>/dev/null
  exec 4< <(exec zse-serve "$BATS_TEST_TMPDIR/tiny.zse" --port 0 2>/dev/null)
  server=$!
  read -r _ _ url <&4
  plain=$("${ask[@]}" "$BATS_TEST_TMPDIR/tiny.zse")
  [ "$plain" = '````````````' ]
  dry=$("${ask[@]}" "$BATS_TEST_TMPDIR/tiny.zse" --dry-multiplier 80)
  [[ "$dry" == '```'* && "$dry" != "$plain" ]]
  for where in "$BATS_TEST_TMPDIR/tiny.zse" "--url=$url"; do
    [ "$("${ask[@]}" "$where" --dry-multiplier 80)" = "$dry" ] || { echo "$where"; kill "$server"; return 1; }
    [ "$("${ask[@]}" "$where" --dry-multiplier 80 --dry-sequence-breaker '')" = "$dry" ]
    [ "$("${ask[@]}" "$where" --dry-multiplier 80 --dry-sequence-breaker '`')" = "$plain" ]
  done
  body='{"prompt":"x","temperature":0,"max_tokens":12,"logit_bias":{"66":40},"dry_multiplier":80'
  [ "$(curl -s "$url/v1/completions" -d "$body}" | jq -r .choices[0].text)" = "$dry" ]
  [ "$(curl -s "$url/v1/completions" -d "$body,\"dry_sequence_breakers\":[\"\`\"]}" | jq -r .choices[0].text)" = "$plain" ]
  for wrong in '"dry_sequence_breakers":[""]' '"dry_sequence_breakers":[1]' '"dry_sequence_breakers":{}' '"xtc_probability":2' '"top_n_sigma":-2' \
    "\"dry_sequence_breakers\":[\"$(printf '%041d' 0)\"]" "\"dry_sequence_breakers\":$(jq -nc '[range(17) | tostring]')"; do
    [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/v1/completions" -d "$body,$wrong}")" = 400 ] || { echo "$wrong"; kill "$server"; return 1; }
  done
  kill "$server"
  run -2 zse-chat models/tiny -p hi --dry-sequence-breaker "$(printf '%041d' 0)"
}

@test "every filter gives the same answer for the same seed, with guesses and by HTTP, and another answer than without" {
  local ask=(zse-chat --raw --temp 1 -n 24 -p "The cat" --seed 3) url one
  local all=(--dynatemp-range 0.5 --dynatemp-exp 0.8 --smoothing-factor 0.2 --smoothing-curve 1.5 --top-a 0.05 --top-n-sigma 3
    --typical-p 0.9 --xtc-probability 0.5)
  zse-convert models/tiny -o "$BATS_TEST_TMPDIR/tiny.zse" 2>/dev/null
  exec 4< <(exec zse-serve "$BATS_TEST_TMPDIR/tiny.zse" --port 0 2>/dev/null)
  server=$!
  read -r _ _ url <&4
  first=$("${ask[@]}" "${all[@]}" "$BATS_TEST_TMPDIR/tiny.zse" --spec off)
  for where in "$BATS_TEST_TMPDIR/tiny.zse" "--url=$url"; do
    [ "$("${ask[@]}" "${all[@]}" "$where")" = "$first" ] || { echo "$where"; kill "$server"; return 1; }
  done
  [ "$("${ask[@]}" "${all[@]}" "$BATS_TEST_TMPDIR/tiny.zse" --spec ngram)" = "$first" ]
  kill "$server"
  plain=$("${ask[@]}" "$BATS_TEST_TMPDIR/tiny.zse")
  for one in --dynatemp-range=1 --smoothing-factor=0.1 --top-a=1; do
    [ "$("${ask[@]}" "$one" "$BATS_TEST_TMPDIR/tiny.zse")" != "$plain" ] || { echo "$one changed nothing"; return 1; }
    [ "$("${ask[@]}" "$one" --temp 0 "$BATS_TEST_TMPDIR/tiny.zse")" = "$("${ask[@]}" --temp 0 "$BATS_TEST_TMPDIR/tiny.zse")" ]
  done
}

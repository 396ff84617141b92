# chat-grammar.bats - zse-chat --json-schema, --grammar and --regex, with the tiny model at a high
# temperature.
bats_require_minimum_version 1.5.0

setup_file() {
  export XDG_CACHE_HOME=$BATS_FILE_TMPDIR/cache XDG_STATE_HOME=$BATS_FILE_TMPDIR/state
  zse-chat models/tiny -p hi -n 1 >/dev/null 2>&1
  MODEL=$(echo "$XDG_CACHE_HOME"/zse/*.zse)
  export MODEL
  cat >"$BATS_FILE_TMPDIR/schema.json" <<'END'
{"type": "object", "required": ["name", "age", "tags"],
 "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3}}}
END
}
setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; schema=$BATS_FILE_TMPDIR/schema.json; }

@test "answers follow the schema at any temperature, alone and in a batch, stop by themselves and say that they are complete" {
  for seed in 1 2 3 4 5; do
    answer=$(zse-chat "$MODEL" -p "Who are you?" --json-schema "$schema" --temp 3 --seed $seed)
    [[ $answer =~ ^\{\ *\"name\":.*\"age\":.*\"tags\": ]] || { echo "$answer"; return 1; }
    jq -e 'keys == ["age", "name", "tags"] and (.name | length) <= 12 and .age >= 0 and .age <= 120 and (.tags | length) <= 3 and (.tags - ["a", "b", "c"] == [])' <<<"$answer"
  done
  seq 12 | zse-chat "$MODEL" --batch - --json-schema "$schema" --temp 3 --seed 9 --json >"$BATS_TEST_TMPDIR/out"
  [ "$(wc -l <"$BATS_TEST_TMPDIR/out")" = 12 ]
  jq -es 'all(.complete and .finish_reason == "stop" and (.text | fromjson | .age | type == "number"))' "$BATS_TEST_TMPDIR/out"
}

@test "an answer that is cut off is called incomplete" {
  run --separate-stderr zse-chat "$MODEL" -p hi --json-schema "$schema" --seed 1 -n 6 --json
  [ "$status" = 1 ]
  jq -e '(.complete | not) and .finish_reason == "length"' <<<"$output"
  [[ "$stderr" == *"cut off at 6 tokens: it is not complete"* ]]
  printf 'hi\nho\n' >"$BATS_TEST_TMPDIR/two"
  run --separate-stderr zse-chat "$MODEL" --batch "$BATS_TEST_TMPDIR/two" --json-schema "$schema" --seed 1 -n 6 --json
  [ "$status" = 1 ]
  [ "$(jq -s 'length' <<<"$output")" = 2 ]
  [[ "$stderr" == *"2 of 2 prompts have no complete answer"* ]]
  run --separate-stderr zse-chat "$MODEL" -p hi --temp 0 -n 1 --json
  jq -e 'has("complete") | not' <<<"$output"
}

@test "answers match a regular expression, and the rules of a grammar" {
  for seed in 1 2 3; do
    [[ "$(zse-chat "$MODEL" -p hi --regex 'yes|no' --temp 2 --seed $seed)" =~ ^(yes|no)$ ]]
  done
  printf 'root ::= line{3}\nline ::= "- " [a-z]{1,8} "\\n"\n' >"$BATS_TEST_TMPDIR/g"
  [ "$(zse-chat "$MODEL" -p hi --grammar "$BATS_TEST_TMPDIR/g" --temp 2 --seed 1 | grep -cE '^- [a-z]{1,8}$')" = 3 ]
  [ "$(zse-chat "$MODEL" -p "What is the capital of France?" --temp 0 --regex '[A-Z][a-z]{1,9}( [a-zA-Z]{1,9}){1,6}\.')" = "The capital of France is Paris." ]
}

@test "a schema that cannot be enforced is refused with the place; wrong usage ends with 2" {
  echo '{"properties": {"a": {"type": "array", "items": {"type": "string", "pattern": "(a)\\1"}}}}' >"$BATS_TEST_TMPDIR/s"
  run ! --separate-stderr zse-chat "$MODEL" -p hi --json-schema "$BATS_TEST_TMPDIR/s"
  [ -z "$output" ]
  [[ "$stderr" == "zse-chat: $BATS_TEST_TMPDIR/s: schema: /properties/a/items/pattern: "* ]]
  run -1 --separate-stderr zse-chat "$MODEL" -p hi --regex '(a'
  [ "$stderr" = "zse-chat: --regex: regular expression, character 1: a group without )" ]
  run -1 --separate-stderr zse-chat "$MODEL" -p hi --grammar /no/such
  [[ "$stderr" == *"/no/such: No such file"* ]]
  run -2 zse-chat "$MODEL" -p hi --regex a --json-schema "$schema"
  run -2 zse-chat "$MODEL" -p hi --regex a --ignore-eos
}

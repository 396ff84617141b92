# eagle.bats - guesses of EAGLE heads (tests/oracle/eagle.py makes them) change no answer, are
# counted by --plan, and heads that do not fit are refused.

setup_file() {
  bats_require_minimum_version 1.5.0
  zse-convert -q f16 models/tiny -o "$BATS_FILE_TMPDIR/m.zse" 2>/dev/null
  for v in 1 3; do python3 -B tests/oracle/eagle.py $v "$BATS_FILE_TMPDIR/$v"; done
}

setup() {
  M=$BATS_FILE_TMPDIR/m.zse H=$BATS_FILE_TMPDIR T=$BATS_TEST_TMPDIR
}

# Three tokens to choose from, so that some guesses are right although the heads are random.
chat() {
  zse-chat "$M" --raw --seed 3 --logit-bias 24=100 --logit-bias 36=100 --logit-bias 48=100 --ignore-eos --ids --json "$@"
}

@test "--spec eagle: the same tokens as without, greedy and drawn, one answer and eight at once" {
  local t s n=0
  seq -f 'one two three one %g' 1 8 >"$T/prompts"
  for t in 0 1; do
    chat --spec off --temp $t -p "one two three" -n 80 >"$T/off"
    chat --spec off --temp $t --batch "$T/prompts" -n 30 | jq -c .ids >"$T/off8"
    for s in eagle:3:$H/1 eagle:3:$H/3 eagle:$H/3; do
      chat --spec "$s" --temp $t -p "one two three" -n 80 >"$T/on"
      diff <(jq -c .ids "$T/off") <(jq -c .ids "$T/on")
      jq -e '.speculation.drafted_tokens > 0' "$T/on"
      n=$((n + $(jq .speculation.accepted_tokens "$T/on")))
      diff "$T/off8" <(chat --spec "$s" --temp $t --batch "$T/prompts" --parallel 8 -n 30 | jq -c .ids)
    done
  done
  [ $n -gt 10 ]
  # as likely tokens instead of the same ones, which differ only where tokens are drawn
  diff <(chat --spec off --temp 0 -p "one two" -n 40 | jq -c .ids) \
       <(chat --spec "eagle:3:$H/3" --spec-exact distribution --temp 0 -p "one two" -n 40 | jq -c .ids)
}

@test "zse-convert --heads DIR: the file has the heads, which --spec eagle and auto use and --plan counts" {
  local m=$T/m.zse n=1 s plain
  zse-convert models/tiny -q f16 -o "$m" --heads "$H/3" --json | jq -e '.heads_bytes > 200000'
  zse-info "$m" --json | jq -e '.eagle.version == 3 and .eagle.vocab_size == 256 and .eagle.bytes > 200000'
  [[ "$(zse-info "$m")" == *"EAGLE heads     EAGLE-3, "*" of int8: --spec eagle"* ]]
  zse-convert models/tiny -q f16 -o "$T/one.zse" --heads "$H/1" 2>&1 | grep -q '; EAGLE heads: '
  zse-info "$T/one.zse" --json | jq -e '.eagle.version == 1 and .eagle.vocab_size == 1024'
  chat --spec off --temp 1 -p "one two three" -n 60 >"$T/off"
  M=$m
  for s in eagle:3 "eagle:3:$H/3" auto; do
    chat --spec "$s" --temp 1 -p "one two three" -n 60 >"$T/on.$n"
    diff <(jq -c .ids "$T/off") <(jq -c .ids "$T/on.$n")
    n=$((n + 1))
  done
  # the same guesses as those of the folder; some are right
  diff <(jq -c .speculation "$T/on.1") <(jq -c .speculation "$T/on.2")
  jq -e '.speculation.accepted_tokens > 5' "$T/on.1"
  plain=$(zse-chat "$m" --plan --spec off --json | jq .needed_bytes)
  for s in auto eagle; do
    zse-chat "$m" --plan --spec $s --json | jq -e --argjson plain "$plain" '.draft_bytes > 200000 and .needed_bytes == $plain + .draft_bytes'
  done
  run -1 zse-convert models/tiny -q f16 -o "$T/n.zse" --heads models/tiny
  [[ "$output" == *"models/tiny: no layer of EAGLE: neither midlayer.self_attn.q_proj.weight"* ]]
  run -1 zse-chat "$H/m.zse" --spec eagle -p hi
  [[ "$output" == *"--spec eagle: the model's file has no EAGLE heads (zse-convert --heads); eagle:DIR names others"* ]]
  run -2 zse-chat "$m" --spec eagle:16 -p hi
  [[ "$output" == *"--spec eagle:N"* ]]
}

@test "--spec eagle: --plan counts the heads; heads of another model, and options that exclude them, are refused" {
  local plain
  plain=$(zse-chat "$M" --plan --spec off --json | jq .needed_bytes)
  zse-chat "$M" --plan --spec "eagle:$H/3" --json | jq -e --argjson plain "$plain" '.draft_bytes > 200000 and .needed_bytes == $plain + .draft_bytes'
  cp -r "$H/3" "$T/other"
  sed -i 's/"hidden_size": 128/"hidden_size": 256/' "$T/other/config.json"
  run -1 zse-chat "$M" --spec "eagle:$T/other" -p hi
  [[ "$output" == *"--spec eagle: $T/other/config.json: heads of a model with hidden_size 256 and 1024 tokens, this one has 128 and 1024"* ]]
  run -1 zse-chat "$M" --spec eagle:models/tiny -p hi
  [[ "$output" == *"--spec eagle: models/tiny: no layer of EAGLE: neither midlayer.self_attn.q_proj.weight nor layers.0.self_attn.q_proj.weight"* ]]
  truncate -s -9 "$T/other/model.safetensors"
  run -1 zse-chat "$M" --spec "eagle:$T/other" -p hi
  [[ "$output" == *"--spec eagle: $T/other/model.safetensors"* ]]
  run -2 zse-chat "$M" --spec "eagle:$H/3" --max-memory 1GB -p hi
  [[ "$output" == *"--spec eagle and --max-memory exclude each other"* ]]
  run -2 zse-chat "$M" --spec eagle: -p hi
  [[ "$output" == *"--spec eagle: expected a DIR"* ]]
}

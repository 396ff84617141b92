# gguf-tensors.bats - every tensor of every GGUF in the oracles, decoded to float32, against the
# sha256 of gguf-py's decoding.
bats_require_minimum_version 1.5.0

@test "all tensor types decode to the bits of the reference" {
  dir=$ZSE_ORACLES/models/gguf
  [ -d "$dir" ] || skip "no oracles at $ZSE_ORACLES"
  n=0
  # all tensors of each file; with a sanitizer one of each type, because the same code decodes the
  # others
  some='.[]' least=600
  [ -z "${ZSE_SANITIZED-}" ] || some='unique_by(.value.type)[]' least=60
  for json in "$dir"/*.json; do
    model=${json%.json}.gguf
    [ -f "$model" ] || continue
    while read -r name type sha; do
      zse-info --dump-tensor "$name" -o "$BATS_TEST_TMPDIR/t" "$model"
      [ "$(sha256sum <"$BATS_TEST_TMPDIR/t")" = "$sha  -" ] || { echo "$model: $name ($type) differs"; return 1; }
      n=$((n + 1))
    done < <(jq -r '.tensors | to_entries | '"$some"' | "\(.key) \(.value.type) \(.value.sha256)"' "$json")
  done
  echo "# $n tensors" >&3
  [ $n -gt $least ]
}

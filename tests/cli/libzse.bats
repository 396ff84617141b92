# libzse.bats - the public library as its users have it: installed, found by pkg-config, linked
# shared and static, used from C, C++ and Python.
# bats file_tags=plain
bats_require_minimum_version 1.5.0

setup_file() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  export T=$BATS_FILE_TMPDIR B=${ZSE_BIN:-build}
  export LIBDIR=$T/usr/lib/here PKG_CONFIG_PATH=$T/usr/lib/here/pkgconfig
  make -s B="$B" install PREFIX="$T/usr" LIBDIR="$LIBDIR"
  zse-convert models/tiny -o "$T/tiny.zse" --quality fast >/dev/null
  zse-chat "$T/tiny.zse" -p 'Hello there' --temp 0 >"$T/said"
}
setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }

# build NAME static|shared: build examples/NAME.c as users of the library do
build() {
  local libs
  libs=$(pkg-config --libs zse)
  [ "$2" = shared ] || libs="-Wl,-Bstatic -lzse -Wl,-Bdynamic $(pkg-config --static --libs zse | sed 's/-lzse//')"
  # shellcheck disable=SC2046,SC2086
  cc -Wall -Wextra -Werror "examples/$1.c" $(pkg-config --cflags zse) -L"$LIBDIR" $libs -lm -o "$T/$1-$2"
}

@test "libzse exports only names zse_*, shared and static" {
  run nm -D --defined-only "$LIBDIR/libzse.so.0"
  [ "$(grep -c ' T zse_' <<<"$output")" = 18 ]
  bad=$(grep -vE ' T zse_[a-z_]+@@ZSE_0$| A ZSE_0$' <<<"$output" || true)
  [ -z "$bad" ] || { echo "$bad"; return 1; }
  bad=$(nm -g --defined-only "$LIBDIR/libzse.a" | grep -vE ' T zse_|^$|:$' || true)
  [ -z "$bad" ] || { echo "$bad"; return 1; }
  readelf -d "$LIBDIR/libzse.so.0" >"$T/dynamic"
  grep -q 'soname: \[libzse.so.0\]' "$T/dynamic"
  run ! grep -q TEXTREL "$T/dynamic"
}

@test "zse.h is also a header of C++, and declares what zse(3) lists" {
  echo '#include <zse.h>' >"$T/h.cc"
  # shellcheck disable=SC2046
  c++ -Wall -Wextra -Wpedantic -Werror -fsyntax-only $(pkg-config --cflags zse) "$T/h.cc"
  diff <(grep -oE '\bzse_[a-z_]+\(' <(grep '^ZSE_API' lib/zse.h) | tr -d '(' | sort) \
    <(grep -oE '^\.Fn zse_[a-z_]+ ("|void$)' man/zse.3 | cut -d ' ' -f 2 | sort)
}

@test "the examples give zse-chat's answer, linked with the shared and the static library" {
  local kind
  for kind in shared static; do
    build generate $kind
    LD_LIBRARY_PATH=$LIBDIR "$T/generate-$kind" "$T/tiny.zse" 'Hello there' '{"temperature": 0}' >"$T/$kind"
    diff "$T/said" "$T/$kind"
  done
  ldd "$T/generate-static" >"$T/needed"
  run ! grep libzse "$T/needed"
  build batch shared
  run -0 --separate-stderr env LD_LIBRARY_PATH="$LIBDIR" "$T/batch-shared" "$T/tiny.zse" <<<$'The cat\nA dog\nThe cat'
  [ "${#lines[@]}" = 6 ]
  [ -z "$stderr" ]
  [ "$(printf '%s\n' "${lines[@]:0:3}" | jq -c 'keys')" = $'["yes"]\n["yes"]\n["yes"]' ]
  [ "${lines[3]} ${lines[5]}" = "1.000 The cat 1.000 The cat" ]
  [[ ${lines[4]} != 1.000* ]]
  run -1 --separate-stderr env LD_LIBRARY_PATH="$LIBDIR" "$T/generate-shared" /nonexistent.zse hi
  [[ $stderr == "generate: /nonexistent.zse: No such file or directory" && -z $output ]]
}

@test "the program of zse(3) compiles and runs" {
  mandoc -Tascii -Owidth=300 man/zse.3 | col -bx | sed -n '/^ *#include <stdio.h>/,/^ *}$/p; /^ *int main/,/^ *}$/p' | sed 's/^           //' >"$T/page.c"
  # shellcheck disable=SC2046
  cc -Wall -Wextra -Werror "$T/page.c" $(pkg-config --cflags --libs zse) -o "$T/page"
  cp "$T/tiny.zse" "$T/m.zse"
  cd "$T"
  run -0 env LD_LIBRARY_PATH="$LIBDIR" ./page
  [ -n "$output" ]
}

@test "the Python binding gives the same answers" {
  export ZSE_LIBRARY=$LIBDIR/libzse.so.0
  python3 -B examples/zse.py "$T/tiny.zse" 'Hello there' >"$T/python"
  diff "$T/said" "$T/python"
  PYTHONPATH=examples python3 -B - "$T/tiny.zse" "$(cat "$T/said")" <<'END'
import json, sys, zse
said = sys.argv[2]
with zse.Model(sys.argv[1]) as m, m.engine(max_len=256, n_threads=2) as g:
    ids = m.tokenize("caf\u00e9<|im_end|>")
    assert m.detokenize(ids) == "caf\u00e9<|im_end|>"
    assert len(m.tokenize("caf\u00e9<|im_end|>", parse_special=True)) < len(ids)
    prompt = m.render([{"role": "user", "content": "Hello there"}])
    a = g.generate(prompt, temperature=0)
    assert (a.text, a.finish) == (said, "stop"), a
    assert g.generate(m.tokenize(prompt, parse_special=True), temperature=0).text == said
    assert "".join(g.stream(prompt, temperature=0)) == said
    value = g.generate("JSON", schema={"type": "object", "properties": {"n": {"enum": [3]}}, "required": ["n"]}, max_tokens=50)
    assert json.loads(value.text) == {"n": 3}
    several = [g.submit("One", seed=i, max_tokens=8, ignore_eos=True) for i in range(8)]
    assert all(len(r.wait().ids) == 8 for r in several)
    for r in several:
        r.close()
    for piece in g.stream("Once", ignore_eos=True):
        break                                   # cancels
    with g.submit("Once", ignore_eos=True) as r:
        r.cancel()
        assert r.wait().finish == "cancelled"
    v = g.embed(["a cat", "a dog"])
    assert len(v) == 2 and len(v[0]) == m.info["embedding_size"]
    assert g.info()["max_len"] == 256
    for wrong in (lambda: zse.Model("/nonexistent"), lambda: g.generate("a", top_p=2), lambda: g.generate("a", x=1),
                  lambda: m.engine(kv="i3"), lambda: list(g.stream(""))):
        try:
            wrong()
        except zse.Error as e:
            assert str(e) and e.code
        else:
            raise AssertionError("not refused")
END
}

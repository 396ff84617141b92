# words.bats - comments, messages and man pages follow the rules that tests/lib/words knows.
# bats file_tags=plain

@test "prose and columns of the sources follow the rules" {
  tests/lib/words
}

# check NAME TEXT: run tests/lib/words on a tracked file with this name and contents
check() {
  cd "$BATS_TEST_TMPDIR" || return
  git init -q .
  printf '%b' "$2" >"$1"
  git add "$1"
  run "$words" "$1"
}
setup() { words=$PWD/tests/lib/words; }

@test "a fault is printed with its file, line and advice" {
  check a.c '/* a.c - add. */\n/* The sum\n * is read by nobody. */\nint a;\n'
  [ "$status" = 1 ]
  [ "$output" = 'a.c:3: comment: "nobody": code and data are not people: name the thing: * is read by nobody. */' ]
}

@test "a pattern is found across the lines of a comment, and in messages" {
  check a.c '/* a.c - add. */\n/* This makes\n * room. */\n'
  [[ "$status $output" = '1 a.c:2: comment: "makes room": '* ]]
  check a.c '/* a.c - add. */\nconst char *a = "the likeliest " "token";\n'
  [[ "$status $output" = '1 a.c:2: message: "likeliest": '* ]]
  check a.1 '.Sh NAME\nWhoever\n.Ar asks\n'
  [[ "$status $output" = '1 a.1:2: man page: "Whoever": '* ]]
  check a.bats '@test "what a server says" {\n}\n'
  [[ "$status $output" = '1 a.bats:1: test name: "what": '* ]]
}

@test "code, questions and words with a second meaning are no faults" {
  check a.c '/* a.c - add. */\nint nobody, hosted;  /* What is it? */\nconst char *a = "nobody";  /* each share of the work */\n'
  [ "$status$output" = 0 ]
}

@test "comments have at most 100 columns, code 120 without the contents of strings, counted in characters" {
  x=$(printf '%090d' 0)
  check a.c "/* a.c - add. */\n/* ${x}1234 */\n"
  [ "$status$output" = 0 ]
  check a.c "/* a.c - add. */\n/* ${x}12345 */\n"
  [[ "$status $output" = '1 a.c:2: a comment of 101 columns'* ]]
  check a.c "/* a.c - add. */\nint a = 0$x$x;\n"
  [[ "$status $output" = '1 a.c:2: code of '* ]]
  check a.c "/* a.c - add. */\nconst char *a = \"$x$x\";\n"
  [ "$status$output" = 0 ]
  check a.c "/* a.c - add. */\n/* $(printf 'é%.0s' {1..90}) */\n"
  [ "$status$output" = 0 ]
}

@test "a source file opens with its name and a sentence" {
  check a.c '#include <stdio.h>\n'
  [[ "$status $output" = '1 a.c:1: the file does not open with '* ]]
}

@test "modules and style sheets of the web interface are read like C" {
  check a.js '// a.js - add.\n\nconst a = `the likeliest token`;   // a regular expression: quotes in it begin no string\nconst b = /["]/;  // read by nobody\n'
  [ "$(cut -d '"' -f 1-2 <<<"$status $output")" = '1 a.js:3: message: "likeliest
a.js:4: comment: "nobody' ]
  check b.js 'const a = 1;\n'
  [[ "$status $output" = '1 b.js:1: the file does not open with '* ]]
  check b.css "a { b: $(printf '%0120d' 0); }\n"
  [[ "$status $output" = '1 b.css:1: code of '* ]]
  check c.js "// c.js - add.\nconst a = '$(printf '%0120d' 0)';\n"
  [ "$status$output" = 0 ]
}

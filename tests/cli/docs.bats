# docs.bats - --help, --version, man pages and completions of every program exist and agree.
bats_require_minimum_version 1.5.0

programs() { for f in cmd/zse-*.c; do basename "$f" .c; done; }
long_options() { grep -oE '^ +(-[A-Za-z], )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort -u; }

@test "--help goes to stdout with exit 0, --version names the program" {
  for p in $(programs); do
    run --separate-stderr "$p" --help
    [ "$status" = 0 ] && [ -z "$stderr" ] && [[ "$output" == usage:\ $p* ]] || { echo "$p: $status: $output $stderr"; return 1; }
    run --separate-stderr "$p" --version
    [ "$status" = 0 ] && [ -z "$stderr" ] && [[ "$output" =~ ^$p\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "$p: $status: $output"; return 1; }
  done
}

@test "an unknown option is wrong usage: exit 2, usage on stderr, nothing on stdout" {
  for p in $(programs); do
    run --separate-stderr "$p" --no-such-option
    [ "$status" = 2 ] && [ -z "$output" ] && [[ "$stderr" == *usage:* ]] || { echo "$p: $status: $output / $stderr"; return 1; }
  done
}

@test "every program has a man page that mandoc finds nothing wrong with" {
  for p in $(programs); do
    [ -f "man/$p.1" ] || { echo "no man/$p.1"; return 1; }
  done
  run mandoc -Tlint -Wwarning man/*.[157]
  [ -z "$output" ] || { echo "$output"; return 1; }
}

@test "--help and the man page list the same long options" {
  for p in $(programs); do
    diff <("$p" --help | long_options) <(grep -E '^\.It Fl' "man/$p.1" | grep -oE 'Fl -[a-z0-9-]+' | sed 's/^Fl -/--/' | sort -u) || { echo "$p differs"; return 1; }
  done
}

@test "the completions are what make-completions writes from --help" {
  for p in $(programs); do
    scripts/make-completions "$(command -v "$p")" "$BATS_TEST_TMPDIR"
    for f in "$p.bash" "_$p" "$p.fish"; do
      diff "completions/$f" "$BATS_TEST_TMPDIR/$f" || { echo "run: make completions"; return 1; }
    done
  done
}

@test "the completions load in their shells" {
  for p in $(programs); do
    bash -n "completions/$p.bash"
    bash -c ". completions/$p.bash && complete -p $p" >/dev/null
    if command -v zsh >/dev/null; then zsh -n "completions/_$p"; fi
    if command -v fish >/dev/null; then fish -n "completions/$p.fish"; fi
  done
}

@test "make install and uninstall leave nothing behind" {
  make -s B="$ZSE_BIN" install DESTDIR="$BATS_TEST_TMPDIR/root" PREFIX=/usr
  for p in $(programs); do
    [ -x "$BATS_TEST_TMPDIR/root/usr/bin/$p" ] && [ -f "$BATS_TEST_TMPDIR/root/usr/share/man/man1/$p.1" ] || return 1
  done
  make -s B="$ZSE_BIN" uninstall DESTDIR="$BATS_TEST_TMPDIR/root" PREFIX=/usr
  left=$(find "$BATS_TEST_TMPDIR/root" -type f)
  [ -z "$left" ] || { echo "$left"; return 1; }
}

# docs.bats - --help, --version, man pages and completions of every program exist and agree.
bats_require_minimum_version 1.5.0

programs() { for f in cmd/zse-*.c; do basename "$f" .c; done; }
long_options() { grep -oE '^ {2,6}(-[A-Za-z], )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort -u; }

@test "--help goes to stdout with exit 0, --version names the program" {
  for p in $(programs); do
    run --separate-stderr "$p" --help
    [ "$status" = 0 ] && [ -z "$stderr" ] && [[ "$output" == usage:\ $p* ]] || { echo "$p: $status: $output $stderr"; return 1; }
    run --separate-stderr "$p" --version
    [ "$status" = 0 ] && [ -z "$stderr" ] && [[ "$output" =~ ^$p\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "$p: $status: $output"; return 1; }
  done
}

@test "help that cannot be written is a failure" {
  [ -w /dev/full ] || skip "no /dev/full"
  for p in $(programs); do
    run -1 bash -c "$p --help >/dev/full"
    run -1 bash -c "$p --version >/dev/full"
  done
}

@test "an unknown option is wrong usage: exit 2, usage on stderr, nothing on stdout" {
  for p in $(programs); do
    run --separate-stderr "$p" --no-such-option
    [ "$status" = 2 ] && [ -z "$output" ] && [[ "$stderr" == "$p: "*no-such-option*usage:* ]] && [ "${#stderr_lines[@]}" -le 8 ] || { echo "$p: $status: $output / $stderr"; return 1; }
  done
}

# bats test_tags=plain
@test "a mistyped command or option is answered with the nearest one" {
  local line
  while IFS='|' read -r line want; do
    # shellcheck disable=SC2086
    run -2 --separate-stderr $line </dev/null
    [[ -z $output && $stderr == *"did you mean '$want'?"* ]] || { echo "$line: $stderr"; return 1; }
  done <<'END'
zse-bench perplexty a b|perplexity
zse-bench matmull|matmul
zse-hardware recomend|recommend
zse-hardware recom|recommend
zse-info tokenise x|tokenize
zse-info model list|models
zse-info models lst|list
zse-info list|models list
zse-chat -c=5 m|--continue=5
zse-apikey craete x|create
zse-audit expotr|export
zse-info --tensor_ x|--tensors
zse-chat --sytem x m|--system
zse-chat --temperature 1 m|--temp
zse-bench --repeat_s 1 m|--repeats
zse-serve --prot 3|--port
zse-convert --quantise=int8 x|--quantize
zse-apikey --hmoe x|--home
zse-audit --hrous 3|--hours
zse-hardware --mesure|--measure
END
  # ambiguous: the message names both options already
  run -2 --separate-stderr zse-chat --max 3
  [[ $stderr != *"did you mean"* ]]
  run -2 --separate-stderr zse-bench --frobnicate
  [[ $stderr != *"did you mean"* ]]
  # a command after MODEL, and a second word that is none
  run -2 --separate-stderr zse-bench m.zse batch
  [ "${stderr_lines[0]}" = "zse-bench: 'batch' comes before MODEL: zse-bench batch m.zse" ]
  run -2 --separate-stderr zse-bench m.zse foo
  [[ ${stderr_lines[0]} == "zse-bench: 'foo' is an extra argument"* ]]
  # a word that is neither a command nor a file must not be looked for on a hub
  HF_ENDPOINT=http://127.0.0.1:9 run -2 --separate-stderr zse-bench kernel
  [ "${stderr_lines[0]}" = "zse-bench: 'kernel' is neither a command nor a file or model here (models on the hub are named org/name)" ]
  for line in "zse-info nosuch" "zse-chat nosuch -p hi" "zse-convert nosuch -o x.zse"; do
    # shellcheck disable=SC2086
    HF_ENDPOINT=http://127.0.0.1:9 run -1 --separate-stderr $line
    [[ ${#stderr_lines[@]} = 1 && $stderr == *"nosuch: No such file or directory"* ]] || { echo "$line: $stderr"; return 1; }
  done
  HF_ENDPOINT=http://127.0.0.1:9 run -1 --separate-stderr zse-hardware budget nosuch
  [ "$stderr" = "zse-hardware: 'nosuch' is no model of the registry; zse-info models list shows them" ]
}

@test "a file never gets the number of a closed standard stream; the program says what it could not read or write" {
  local pid
  mkfifo "$BATS_TEST_TMPDIR/fifo"
  ZSE_HOME=$BATS_TEST_TMPDIR zse-serve --port 0 <&- >"$BATS_TEST_TMPDIR/fifo" 2>&- 3>&- &
  pid=$!
  read -r _ <"$BATS_TEST_TMPDIR/fifo"
  [ "$(readlink "/proc/$pid/fd/0" "/proc/$pid/fd/2" | sort -u)" = /dev/null ]
  kill "$pid"
  wait "$pid"
  run -1 --separate-stderr bash -c 'zse-info models/tiny >&-'
  [ "$stderr" = "zse-info: standard output: Bad file descriptor" ]
  run -1 --separate-stderr bash -c 'zse-chat models/tiny <&-'
  [[ $stderr == *"standard input: Bad file descriptor" ]]
}

@test "every program has a man page that mandoc finds nothing wrong with" {
  for p in $(programs); do
    [ -f "man/$p.1" ] || { echo "no man/$p.1"; return 1; }
  done
  run mandoc -Tlint -Wwarning man/*.[1357]
  [ -z "$output" ] || { echo "$output"; return 1; }
}

@test "groff can break every line of a man page, which lintian asks of a package" {
  command -v groff >/dev/null || skip "groff is not installed"
  run groff -k -mandoc -Tutf8 -z -wbreak -rLL=78n man/*.[1357]
  [ -z "$output" ] || { echo "$output"; return 1; }
}

# bats test_tags=plain
@test "no line of --help has more than 80 columns or a space at its end" {
  local c
  for c in $(programs) "zse-info tokenize" "zse-info detokenize" "zse-info render" "zse-info models "{list,info,search,check,fetch,local,show,rm,alias,default}; do
    $c --help >"$BATS_TEST_TMPDIR/help"
    awk -v c="$c" 'length > 80 || / $/ { print c ": " $0; bad = 1 } END { exit bad }' "$BATS_TEST_TMPDIR/help"
  done
}

# bats test_tags=plain
@test "--help and the man page list the same long options" {
  for p in $(programs); do
    diff <("$p" --help | long_options) <(grep -E '^\.It Fl' "man/$p.1" | grep -oE 'Fl -[a-z0-9-]+' | sed 's/^Fl -/--/' | sort -u) || { echo "$p differs"; return 1; }
  done
}

# bats test_tags=plain
@test "--print-defaults prints the default of each option that --help gives one" {
  local p n
  for p in $(programs); do
    "$p" --print-defaults >"$BATS_TEST_TMPDIR/defaults"
    n=$("$p" --help | awk -f scripts/unwrap-help.awk | grep -cE '^ +(-[A-Za-z], )?--.*\(default: ' || true)
    [ "$(grep -c '^--' "$BATS_TEST_TMPDIR/defaults")" -eq "$n" ] || { echo "$p: not $n"; return 1; }
    if grep -vE '^(--)?[a-z][a-z0-9_-]* +[^ ]' "$BATS_TEST_TMPDIR/defaults"; then echo "$p"; return 1; fi
  done
  [[ $(zse-serve --print-defaults) == *"--max-seqs"*" 32"*"temperature"*"the model's, else 0.8"* ]]
  [[ $(zse-chat --print-defaults) == *"--temp"*" the model's, else 0.8"* ]]
  [[ $(zse-convert --print-defaults) == *"--quantize"*" nl4"*"--quality"*" good"* ]]
}

# bats test_tags=plain
# A page as a wide terminal shows it, with typographic quotes.
rendered() {
  local text
  text=$(mandoc -Tutf8 -Owidth=1000 "man/$1" | col -bx)
  [[ $text == *DESCRIPTION* ]] && printf '%s\n' "$text"
}

@test "no man page has an option that no program has, nor words that a macro rendered as options" {
  local page c words options=$BATS_TEST_TMPDIR/options
  for c in $(programs) "zse-info tokenize" "zse-info detokenize" "zse-info render" "zse-info models "{list,info,search,check,fetch,local,show,rm,alias,default}; do $c --help; done |
    grep -oE -- '--[a-z0-9-]+' | sort -u >"$options"
  [ "$(wc -l <"$options")" -gt 100 ]
  # options of curl and pkg-config in the examples
  printf '%s\n' --retry --fail --unix-socket --cflags --libs >>"$options"
  for page in man/*; do
    rendered "${page##*/}" >"$BATS_TEST_TMPDIR/page"
    # a macro Fl applies to the rest of its line, and wrong use renders words like "--strict; -why
    # -there -are none".  Our options with one dash have one letter; -inf is a number, and openssl's
    # options do have one dash.
    words=$(grep -oE -- "(^|[ (,;])-[a-z][a-z-]+" "$BATS_TEST_TMPDIR/page" | grep -vxE -- ' -(inf|algorithm|in|out|pubout)' || true)
    [ -z "$words" ] || { echo "$page: $words"; return 1; }
    words=$(grep -oE -- "(^|[^-a-z])--[a-z][a-z0-9-]*" "$BATS_TEST_TMPDIR/page" | grep -oE -- '--[a-z0-9-]+' | sort -u | grep -vxFf "$options" || true)
    [ -z "$words" ] || { echo "$page: $words"; return 1; }
    # a Sq macro, too: ‘-: standard input’
    # shellcheck disable=SC1112
    words=$(grep -oE '‘-[^’]+’|“-[^”]+”' "$BATS_TEST_TMPDIR/page" || true)
    [ -z "$words" ] || { echo "$page: $words"; return 1; }
  done
}

@test "the examples of the man pages fit a terminal of 80 columns" {
  local page wide
  for page in man/*; do
    rendered "${page##*/}" >"$BATS_TEST_TMPDIR/page"
    wide=$(awk '/^[A-Z]/ { examples = /^EXAMPLES/ } (examples && /^ {11}/ || /^ +\$ /) && length($0) > 78' "$BATS_TEST_TMPDIR/page")
    [ -z "$wide" ] || { echo "$page: $wide"; return 1; }
  done
}

@test "the man page of zse-convert lists the shapes that --synthetic knows" {
  local known page
  known=$(zse-convert --synthetic none -n 2>&1 | sed 's/.*known here: //' | tr -d ' ' | tr , '\n' | sort)
  page=$(rendered zse-convert.1 | sed -n '/Names: /,/^$/p' | tr -s ' \n' ' ' | sed 's/.*Names: //; s/\. .*//' | tr -d ' ' | tr , '\n' | sort)
  [ "$(wc -l <<<"$known")" -gt 10 ]
  diff <(echo "$known") <(echo "$page")
}

@test "the man page of zse-info names the options of its commands" {
  for c in tokenize detokenize render models 'models search' 'models check' 'models fetch'; do
    for option in $(zse-info $c --help | long_options); do
      grep -qE "Fl $(sed 's/^-//' <<<"$option")( |$)" man/zse-info.1 || { echo "$c $option"; return 1; }
    done
  done
}

# bats test_tags=plain
@test "the completions are what make-completions writes from --help" {
  for p in $(programs); do
    scripts/make-completions "$(command -v "$p")" "$BATS_TEST_TMPDIR"
    for f in "$p.bash" "_$p" "$p.fish"; do
      diff "completions/$f" "$BATS_TEST_TMPDIR/$f" || { echo "run: make completions"; return 1; }
    done
  done
}

# bats test_tags=plain
@test "the completions load in their shells" {
  for p in $(programs); do
    bash -n "completions/$p.bash"
    bash -c ". completions/$p.bash && complete -p $p" >/dev/null
    if command -v zsh >/dev/null; then zsh -n "completions/_$p"; fi
    if command -v fish >/dev/null; then fish -n "completions/$p.fish"; fi
  done
  # zsh: the description of an argument ends at a colon, so a colon in it must be escaped
  run grep -nE '\]:' completions/_*
  [ "${#lines[@]}" -gt 50 ]
  bad=$(printf '%s\n' "${lines[@]}" | grep -vE '\]:([^:\\]|\\.)+:[^:]*$' || true)
  [ -z "$bad" ] || { echo "$bad"; return 1; }
}

# completed WORD...: the words that bash offers to complete the last WORD
completed() {
  (
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    # shellcheck disable=SC1090
    . "completions/$1.bash"
    "_${1//-/_}"
    printf '%s\n' "${COMPREPLY[@]}" | sort | tr '\n' ' '
  )
}

# bats test_tags=plain
@test "the completions offer the commands of a program, and those of zse-info models" {
  [ "$(completed zse-apikey cr)" = "create " ]
  [ "$(completed zse-apikey "")" = "create delete disable enable list reset rotate status " ]
  [ "$(completed zse-audit he)" = "head " ]
  [ "$(completed zse-info models "")" = "alias check default fetch info list local rm search show " ]
  [ "$(completed zse-info models se)" = "search " ]
  [ "$(completed zse-info tokenize READ)" = "README.md " ]
  [ "$(completed zse-convert pu)" = "pull " ]
}

# bats test_tags=plain
@test "the completions offer the names of models, also where the shell splits them at a colon, of templates and of files" {
  export ZSE_HOME=$BATS_TEST_TMPDIR
  mkdir "$ZSE_HOME/models" "$ZSE_HOME/templates"
  : >"$ZSE_HOME/templates/sum"
  [ "$(completed zse-chat -t s)" = "sum " ]
  [ "$(completed zse-chat -f READ)" = "README.md " ]
  : >"$ZSE_HOME/models/qq:1b.zse"
  : >"$ZSE_HOME/models/qq:2b.zse"
  [ "$(completed zse-chat q)" = "qq:1b qq:2b " ]
  [ "$(completed zse-chat -m q)" = "qq:1b qq:2b " ]
  [ "$(completed zse-chat qq :)" = "1b 2b " ]
  [ "$(completed zse-chat qq : 2)" = "2b " ]
  [ "$(completed zse-info models show q)" = "qq:1b qq:2b " ]
  if command -v fish >/dev/null; then
    fish -c '. completions/zse-serve.fish; complete -C "zse-serve qq"' | grep -q '^qq:1b'
    fish -c '. completions/zse-chat.fish; complete -C "zse-chat -m qq"; complete -C "zse-chat -t s"' | tr -s '\t\n' ' ' | grep -q 'qq:1b.*sum'
  fi
}

# bats test_tags=plain
@test "make install and uninstall leave nothing behind" {
  make -s B="${ZSE_BIN:-build}" install DESTDIR="$BATS_TEST_TMPDIR/root" PREFIX=/usr
  for p in $(programs); do
    [ -x "$BATS_TEST_TMPDIR/root/usr/bin/$p" ] && [ -f "$BATS_TEST_TMPDIR/root/usr/share/man/man1/$p.1" ] || return 1
  done
  make -s B="${ZSE_BIN:-build}" uninstall DESTDIR="$BATS_TEST_TMPDIR/root" PREFIX=/usr
  left=$(find "$BATS_TEST_TMPDIR/root" ! -type d)
  [ -z "$left" ] || { echo "$left"; return 1; }
}

# The names of all JSON keys at any depth, except those in config and similar objects, whose names
# are other projects'.
keys() {
  jq -r 'del(.config?, .[]?.config?, .hf_config_json?, .memory?.by_type?, .memory?.by_role?) | [paths | map(select(type == "string")) | last | select(. != null)] | unique[]' "$1"
}

# bats test_tags=plain
@test "the man pages name every key of the JSON" {
  t=$BATS_TEST_TMPDIR
  zse-convert models/tiny -o "$t/m.zse" --json --tensors >"$t/zse-convert.a"
  zse-convert models/tiny --plan --json | jq 'del(.gpus)' >"$t/zse-convert.b"
  zse-info --json "$t/m.zse" >"$t/zse-info.a"
  zse-info --json ./models/tiny >"$t/zse-info.b"
  zse-info models list --json >"$t/zse-info.c"
  zse-info models check models/tiny --json >"$t/zse-info.d"
  zse-hardware --json >"$t/zse-hardware.a"
  zse-hardware check --json >"$t/zse-hardware.b"
  zse-hardware recommend --json --no-speed >"$t/zse-hardware.c"
  zse-hardware capacity --json --vram 80 7B:int4 >"$t/zse-hardware.d"
  zse-hardware budget DeepSeek-V3 --vram-mb 90000 >"$t/zse-hardware.e" 2>/dev/null
  # speeds are measured in half of the memory: with little of it they take less time
  mkdir -p "$t/root/proc"
  printf 'MemTotal: 100000 kB\nMemFree: 100000 kB\nMemAvailable: 100000 kB\n' >"$t/root/proc/meminfo"
  export ZSE_SYSROOT=$t/root
  zse-chat "$t/m.zse" -p hi --json --ids >"$t/zse-chat.a"
  zse-chat "$t/m.zse" --plan --json >"$t/zse-chat.b"
  zse-bench "$t/m.zse" --json -r 1 -p 8 -n 8 >"$t/zse-bench.a"
  zse-bench logits "$t/m.zse" --ids '1 2' -o "$t/logits" >"$t/zse-bench.b"
  zse-bench perplexity "$t/m.zse" LICENSE --windows 1 >"$t/zse-bench.c"
  zse-bench quality "$t/m.zse" "$t/m.zse" LICENSE --windows 1 >"$t/zse-bench.d"
  zse-bench limits --json >"$t/zse-bench.e"
  zse-bench batch "$t/m.zse" -b 2 -r 1 --json >"$t/zse-bench.f"
  zse-bench kv "$t/m.zse" -r 1 --json >"$t/zse-bench.g"
  zse-bench threads "$t/m.zse" -r 1 --json >"$t/zse-bench.h"
  zse-bench matmul --shape 64x64 -r 1 --json >"$t/zse-bench.i"
  zse-bench coldstart "$t/m.zse" -r 1 --json --peer true --peer-model "$t/m.zse" >"$t/zse-bench.j"
  for p in $(programs); do
    mandoc -Tascii -Owidth=300 "man/$p.1" man/zse.5 | col -bx >"$t/page"
    for json in "$t/$p".?; do
      for key in $(keys "$json"); do
        grep -qw "$key" "$t/page" || { echo "$p: no word on $key"; return 1; }
      done
    done
  done
}

@test "scripts/deps waits for the lock of another package manager" {
  local bin=$BATS_TEST_TMPDIR/bin
  mkdir "$bin"
  printf '#!/bin/sh\nexit 1\n' >"$bin/dpkg-query"                      # nothing is installed
  printf '#!/bin/sh\nexec "$@"\n' >"$bin/sudo"
  printf '#!/bin/sh\necho "sleep $*" >>"%s/log"\n' "$bin" >"$bin/sleep"
  cat >"$bin/apt-get" <<END
#!/bin/sh
echo "\$*" >>"$bin/log"
case "\$*" in *update*) [ "\$(grep -c update "$bin/log")" -ge \${TRIES:-3} ] || { echo "E: Could not get lock" >&2; exit 100; } ;; esac
END
  chmod +x "$bin"/*
  PATH=$bin:$PATH run -0 scripts/deps --run-time
  [ "$(sed 's/no-install-recommends .*/no-install-recommends/' "$bin/log")" = "update -qq
sleep 30
update -qq
sleep 30
update -qq
-o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends" ] || { cat "$bin/log"; return 1; }
  TRIES=99 PATH=$bin:$PATH run -1 scripts/deps --run-time
  [[ $output == *"apt-get update failed 10 times"* ]]
}

# bats test_tags=plain
@test "HACKING.md names files, folders and functions that exist" {
  local word
  git grep -hoE '\b[a-z_0-9]+\(' -- '*.[ch]' '*.cu' '*.cuh' '*.inc' | sort -u >"$BATS_TEST_TMPDIR/functions"
  # words in backquotes that look like a path or a function must name an existing one
  grep -oE '`[^` ]+`' HACKING.md | tr -d '`' | sort -u >"$BATS_TEST_TMPDIR/words"
  grep -oE '(^|[ "])(scripts|tests)/[A-Za-z0-9_./-]+' HACKING.md | tr -d ' "' | grep -v '^tests/unit$' >>"$BATS_TEST_TMPDIR/words"
  [ "$(wc -l <"$BATS_TEST_TMPDIR/words")" -gt 80 ]
  while read -r word; do
    case $word in
      /*|*'*'*|*NAME*) ;;
      *'()') grep -qxF "${word%)}" "$BATS_TEST_TMPDIR/functions" || { echo "no function $word"; return 1; } ;;
      */*) [ -e "$word" ] || { echo "no file $word"; return 1; } ;;
      *.[ch]|*.md|*.cu) git ls-files | grep -qE "(^|/)$word\$" || { echo "no file $word"; return 1; } ;;
    esac
  done <"$BATS_TEST_TMPDIR/words"
  # every folder of the library is on the map
  while read -r word; do
    grep -qF "\`$word\`" HACKING.md || { echo "no word of $word"; return 1; }
  done < <(grep -oE '^libcommon/[a-z/]+' libcommon/LAYERS)
}

# The table of models in README.md: a line "NAME, NAME ...<TAB>TYPE TYPE ..." for each of its items.
readme_models() {
  sed -n '/^| | names: `model_type` |/,/^$/p' README.md | sed '1,2d; s/^|[^|]*| //; s/ |$//; s/; /\n/g' | sed '/^$/d; s/: `/\t/; s/`//g'
}

@test "README.md lists every architecture of the tables, and no other" {
  grep -ohE 'ROW\("[a-z0-9_-]+"' libcommon/model/arch*.c | cut -d'"' -f2 | sort >"$BATS_TEST_TMPDIR/rows"
  readme_models | cut -f2 | tr ' ' '\n' | sort >"$BATS_TEST_TMPDIR/listed"
  diff "$BATS_TEST_TMPDIR/rows" "$BATS_TEST_TMPDIR/listed"
}

@test "README.md names every known model beside its model_type" {
  readme_models >"$BATS_TEST_TMPDIR/items"
  zse-info models list --json | jq -r '.[] | "\(.config.model_type)\t\(.name)"' >"$BATS_TEST_TMPDIR/known"
  [ "$(wc -l <"$BATS_TEST_TMPDIR/known")" -gt 80 ]
  # spelled with or without blanks and hyphens: "Qwen 3.5" names Qwen3.5-4B
  awk -F '\t' '
    function plain(s) { gsub(/[^A-Za-z0-9.]/, "", s); return tolower(s) }
    NR == FNR { n = split($2, types, " "); for (i = 1; i <= n; i++) names[types[i]] = $1; next }
    {
      n = split(names[$1], list, /, |\(|\)| with | and /); found = 0
      for (i = 1; i <= n; i++)
        found = found || plain(list[i]) != "" && index(plain($2), plain(list[i])) == 1
      if (!found) { print "README.md lacks " $2 " at " $1; bad = 1 }
    }
    END { exit bad }' "$BATS_TEST_TMPDIR/items" "$BATS_TEST_TMPDIR/known"
}

@test "man: the families of zse-models(7) are those of README.md" {
  scripts/make-families "$BATS_TEST_TMPDIR/page"
  diff man/zse-models.7 "$BATS_TEST_TMPDIR/page"
  # every name and every type of the table is there
  readme_models | tr '\t' '\n' | while read -r line; do
    grep -qF "$line" man/zse-models.7 || { echo "no $line"; return 1; }
  done
}

@test "README.md lists every architecture of GGUF files, and no other" {
  sed -n '/^static const struct gguf_arch archs/,$s/^    { "\([^"+]*\)",.*/\1/p' libcommon/import/gguf_arch.c | sort >"$BATS_TEST_TMPDIR/there"
  sed -n '/^GGUF files may have/,/^A GPU runs/p' README.md | grep '^    ' | tr -s ' ' '\n' | sed '/^$/d' | sort >"$BATS_TEST_TMPDIR/listed"
  diff "$BATS_TEST_TMPDIR/there" "$BATS_TEST_TMPDIR/listed"
  [ "$(wc -l <"$BATS_TEST_TMPDIR/there")" -gt 60 ]
}

@test "debian/: the version is the Makefile's, the libraries to build with are those of scripts/deps" {
  local package
  cd "$BATS_TEST_DIRNAME/../.."
  [ "$(sed -nE '1s/^zse \(([^)]+)\).*/\1/p' debian/changelog)" = "$(sed -nE 's/^VERSION := //p' Makefile)" ]
  for package in $(sed -nE 's/^build="(.*)"/\1/p' scripts/deps | tr ' ' '\n' | grep -E '^(lib.*-dev|zlib1g-dev|pkg-config)$' | grep -v '^libc6'); do
    grep -qE "^ $package(,| <|$)" debian/control || { echo "debian/control lacks $package"; return 1; }
  done
  # the Debian package installs the unit of scripts/deploy, with its own path of the program
  grep -q "scripts/deploy/zse-serve.service" debian/rules
  grep -q '^ExecStart=/usr/local/bin/zse-serve ' scripts/deploy/zse-serve.service
}

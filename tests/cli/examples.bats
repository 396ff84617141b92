# examples.bats - the examples of the man pages do what they say: each `$ command` that a page shows
# is run as it is printed.
bats_require_minimum_version 1.5.0
# bats file_tags=plain

setup_file() {
  export ZSE_HOME=$BATS_FILE_TMPDIR/home ZSE_SYSROOT=$BATS_FILE_TMPDIR/root
  # pretend that the machine has little memory: speeds are then measured with less of it, which is
  # faster
  mkdir -p "$ZSE_SYSROOT/proc"
  printf 'MemTotal: 400000 kB\nMemFree: 400000 kB\nMemAvailable: 400000 kB\n' >"$ZSE_SYSROOT/proc/meminfo"
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  local t=$BATS_FILE_TMPDIR
  zse-convert models/tiny -o "$t/m.zse" --quality fast
  zse-convert models/tiny -o "$t/f32.zse" -q f32
  cp "$t/m.zse" "$t/nl4.zse"
  cp LICENSE "$t/text.txt"
  printf 'What is 2+2?\nWhat is the capital of France?\n' >"$t/prompts.txt"
}

# Each test runs in a folder with the files that the examples name.
setup() {
  ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  cd "$BATS_TEST_TMPDIR" || exit 1
  cp "$BATS_FILE_TMPDIR"/*.zse "$BATS_FILE_TMPDIR"/*.txt .
  ln -s "$ROOT/models" "$ROOT/README.md" .
}

# examples PAGE: the commands of a man page, each ended by \0.  A command is a line that begins with
# "$ ", and the following lines that are indented more.
examples() {
  mandoc -Tascii -Owidth=1000 "$ROOT/man/$1" | col -bx | awk '
    { match($0, /^ */); column = RLENGTH }
    $1 == "$" { if (open) printf "%c", 0; open = 1; at = column; sub(/^ *\$ /, ""); printf "%s", $0; next }
    open && NF && column > at { printf "\n%s", $0; next }
    open { printf "%c", 0; open = 0 }
    END { if (open) printf "%c", 0 }'
}

run_page() {
  local n=0 line
  while IFS= read -r -d '' line; do
    n=$((n + 1))
    # a short text for calibration: with the default one this command takes as long as all others of
    # the page
    line=${line/--quality best/--quality best --calibration text.txt}
    bash -e -o pipefail -c "trap 'kill \$! 2>/dev/null' ERR; $line" </dev/null >out 2>err 3>&- || { echo "$1: $line: exit $?"; cat err; return 1; }
    [ -s out ] || [[ $line == *" -o "* || $line == *cmp* ]] || { echo "$1: $line: said nothing"; return 1; }
  done < <(examples "$1")
  [ "$n" -ge 4 ] || { echo "$1: only $n examples"; return 1; }
}

@test "the examples of zse-convert(1) do what they say" { run_page zse-convert.1; }

@test "the examples of zse-info(1) do what they say" { run_page zse-info.1; }

@test "the examples of zse-chat(1) do what they say" { run_page zse-chat.1; }

@test "the examples of zse-bench(1) do what they say" { run_page zse-bench.1; }

@test "the examples of zse-serve(1) do what they say" { run_page zse-serve.1; }

@test "the examples of zse(5) do what they say" { run_page zse.5; }

@test "the examples of zse(7) do what they say" { run_page zse.7; }

@test "the examples of zse-models(7) do what they say" { ZSE_HOME=$BATS_TEST_TMPDIR/models-home run_page zse-models.7; }

@test "the sizes and names of zse-models(7) are those of the registry, its bytes a weight those of the types" {
  local name pull bf16 int8 nl4 n=0 type bytes
  zse-info models list --json >list
  while IFS='|' read -r name pull bf16 int8 nl4; do
    n=$((n + 1))
    jq -e --arg name "$name" --arg found "$pull $bf16 $int8 $nl4" '
      def gb: . / 1e7 | round / 100;
      map(select(.name == $name)) | .[0] | ($found | split(" ")) as $f |
      .pull == $f[0] and (.vram.bf16 | gb) == ($f[1] | tonumber) and (.vram.int8 | gb) == ($f[2] | tonumber) and
      (.vram.nl4 | gb) == ($f[3] | tonumber)' list >/dev/null || { echo "$name $pull $bf16 $int8 $nl4"; return 1; }
  done < <(sed -nE 's/^\.It ([^ ]+) Ta ([^ ]+) Ta ([0-9.]+) Ta ([0-9.]+) Ta ([0-9.]+)$/\1|\2|\3|\4|\5/p' "$ROOT/man/zse-models.7")
  [ "$n" -ge 10 ]
  n=0
  while read -r type bytes; do
    n=$((n + 1))
    grep -qE "^\| .$type.( \(default\))? \|.*\| ${bytes}[,; ]" "$ROOT/README.md" || { echo "$type $bytes"; return 1; }
  done < <(sed -nE 's/^\.It (nl4|int4|int8|ternary|mixed) Ta ([0-9.]+)( to [0-9.]+)? Ta .*/\1 \2/p' "$ROOT/man/zse-models.7")
  [ "$n" = 5 ]
}

# Replace times and measured numbers, which differ from run to run; "..." in a page stands for lines
# that are left out.
mask() { sed -E 's/[0-9.]+ s$/T s/; /kl_mean/s/[0-9.]+/N/g' "$@"; }

check_output() {
  local line shown=0
  while IFS= read -r line; do
    shown=$((shown + 1))
    [ "$line" = ... ] && return 0
    [ "$(sed -n "${shown}p" got)" = "$line" ] || { echo "$1: line $shown is '$(sed -n "${shown}p" got)', the README has '$line'"; return 1; }
  done < <(mask expected)
  [ "$shown" = "$(wc -l <got)" ] || { echo "$1: more than the README shows:"; cat got; return 1; }
}

@test "README.md shows what the programs print" {
  local line command='' n=0
  ln -s "$ROOT/LICENSE" .
  while IFS= read -r line; do
    case $line in
      '$ '*|'```')
        if [ -n "$command" ]; then
          bash -e -o pipefail -c "$command" </dev/null 2>err >out || { echo "$command: exit $?"; cat err; return 1; }
          mask out >got
          check_output "$command"
          n=$((n + 1))
        fi
        command=${line#'$ '} ;;
      *) printf '%s\n' "$line" >>expected ;;
    esac
    case $line in '$ '*) : >expected ;; '```') command='' ;; esac
  done < <(sed -n '/^```console$/,/^```$/p' README.md | grep -v '^```console$')
  [ "$n" -ge 9 ] || { echo "only $n examples"; return 1; }
}

# A man page may say more than --help, but must not state another default.
@test "the defaults that --help and the man page state are the same" {
  local p name default page
  for p in zse-convert zse-info zse-chat zse-serve zse-bench zse-audit zse-apikey; do
    while read -r name default; do
      page=$(mandoc -Tascii -Owidth=1000 "$ROOT/man/$p.1" | col -bx | sed -n "/^ *\(-[A-Za-z], \)\{0,1\}$name\( .*\)\{0,1\}$/,/^\$/p")
      grep -qE "default(:|,| is| it is| every)? $default|$default,? [(]?(the )?default" <<<"$page" || { echo "$p $name: --help says $default, the man page: $page"; return 1; }
    done < <("$p" --help | awk -f "$ROOT/scripts/unwrap-help.awk" | sed -nE 's/^ +(-[A-Za-z], )?(--[a-z-]+).*\(default: ([a-z0-9]+)\).*/\2 \3/p')
  done
}

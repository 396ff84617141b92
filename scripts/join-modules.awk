# join-modules.awk - write the ES modules of a folder as one module, the last of which is the entry.
#
# usage: awk -f scripts/join-modules.awk chat/answer.js ... chat/page.js >chat.js
#
# Imports of each other are removed, as is the word `export` of all but the entry; imports from the
# folder above, '../NAME.js', become one import from './NAME.js' each.  All modules share one scope,
# so each name may be declared only once.  Another form of import or export is an error.

function refuse(why) {
  printf "join-modules: %s:%d: %s\n", FILENAME, FNR, why >"/dev/stderr"
  failed = 1
  exit 1
}

function take(statement,    from, i, n, names) {
  if (statement !~ /^import \{[^{}*]*\} from '\.\.?\/[a-z_]+\.js';$/ || statement ~ / as /)
    refuse("expected import { NAME, ... } from './FILE.js' or '../FILE.js'")
  from = statement
  sub(/^.* from '/, "", from)
  sub(/';$/, "", from)
  if (substr(from, 1, 3) != "../")
    return
  sub(/^import \{ */, "", statement)
  sub(/ *,? *\}.*$/, "", statement)
  n = split(statement, names, / *, */)
  if (!(from in imports))
    order[++n_from] = from
  for (i = 1; i <= n; i++)
    if (!((from, names[i]) in seen)) {
      seen[from, names[i]] = 1
      imports[from] = imports[from] (imports[from] ? ", " : "") names[i]
    }
}

FNR == 1 { n_files++ }
/^import / { statement = ""; collecting = 1 }
collecting {
  line = $0
  sub(/^ +/, "", line)
  statement = statement (statement ? " " : "") line
  if (line ~ /;$/) {
    take(statement)
    collecting = 0
  }
  next
}
/^export / {
  if ($2 !~ /^(async|class|const|function|let)$/)
    refuse("expected export before a class, a function or a variable")
  if (n_files < ARGC - 1)
    sub(/^export /, "")
}
{ body = body $0 "\n" }

END {
  if (failed)
    exit 1
  for (i = 1; i <= n_from; i++)
    printf "import { %s } from '%s';\n", imports[order[i]], substr(order[i], 2)
  printf "%s", body
}

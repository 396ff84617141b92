# bash completion of zse-audit
_zse_audit() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case $prev in
    -H|--hours) COMPREPLY=(); return ;;
    -l|--limit) COMPREPLY=(); return ;;
    -k|--key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    -s|--status) COMPREPLY=(); return ;;
    -p|--path) COMPREPLY=(); return ;;
    -m|--method) COMPREPLY=($(compgen -W "query export report" -- "$cur")); return ;;
    --min-latency) COMPREPLY=(); return ;;
    -f|--format) COMPREPLY=($(compgen -W "jsonl csv" -- "$cur")); return ;;
    -o|--output) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --since) COMPREPLY=($(compgen -W "HASH TIME" -- "$cur")); return ;;
    --expect) COMPREPLY=(); return ;;
    --folder) COMPREPLY=($(compgen -f -- "$cur")); return ;;
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "--hours --limit --key --status --path --method --min-latency --format --output --since --expect --all --yes --folder --json --print-defaults --help --version" -- "$cur")) ;;
    *) COMPREPLY=()
       [ "$COMP_CWORD" != 1 ] || COMPREPLY+=($(compgen -W "summary recent query export report verify head stats clear" -- "$cur"))
       ;;
  esac
}
complete -o filenames -F _zse_audit zse-audit

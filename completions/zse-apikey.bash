# bash completion of zse-apikey
_zse_apikey() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case $prev in
    --rate-limit) COMPREPLY=(); return ;;
    --token-limit) COMPREPLY=($(compgen -W "N[/min /day]" -- "$cur")); return ;;
    --expires) COMPREPLY=(); return ;;
    --scope) COMPREPLY=(); return ;;
    --model) COMPREPLY=(); return ;;
    --home) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --keys) COMPREPLY=(); return ;;
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "--rate-limit --token-limit --expires --scope --model --home --keys --json --print-defaults --help --version" -- "$cur")) ;;
    *) COMPREPLY=()
       [ "$COMP_CWORD" != 1 ] || COMPREPLY+=($(compgen -W "create list status rotate reset enable disable delete" -- "$cur"))
       ;;
  esac
}
complete -o filenames -F _zse_apikey zse-apikey

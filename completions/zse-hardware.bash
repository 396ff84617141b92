# bash completion of zse-hardware
_zse_hardware() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case $prev in
    --file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --threads) COMPREPLY=(); return ;;
    --root) COMPREPLY=($(compgen -f -- "$cur")); return ;;
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "--json --measure --file --threads --root --help --version" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -f -- "$cur"))
       [ "$COMP_CWORD" != 1 ] || COMPREPLY+=($(compgen -W "check" -- "$cur"))
       ;;
  esac
}
complete -o filenames -F _zse_hardware zse-hardware

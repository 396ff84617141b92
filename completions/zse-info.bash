# bash completion of zse-info
_zse_info() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case $prev in
    --format) COMPREPLY=($(compgen -W "text json" -- "$cur")); return ;;
    --layer) COMPREPLY=(); return ;;
    --dump-tensor) COMPREPLY=(); return ;;
    -o|--output) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --extract-tokenizer) COMPREPLY=($(compgen -f -- "$cur")); return ;;
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "--json --format --tensors --layers --layer --memory --layout --verify --dump-tensor --output --extract-tokenizer --print-defaults --help --version" -- "$cur")) ;;
    *) local head=
       [ "$cur" != : ] || { head=$prev: cur=; }
       [ "$prev" != : ] || head=${COMP_WORDS[COMP_CWORD-2]}:
       COMPREPLY=($(compgen -W "$(zse-info models local --names 2>/dev/null)" -- "$head$cur"))
       COMPREPLY=("${COMPREPLY[@]#"$head"}")
       [ -n "$head" ] || COMPREPLY+=($(compgen -f -- "$cur"))
       [ "$COMP_CWORD" != 1 ] || COMPREPLY+=($(compgen -W "tokenize detokenize render models" -- "$cur"))
       [ "$COMP_CWORD:${COMP_WORDS[1]}" != 2:models ] || COMPREPLY=($(compgen -W "alias check default fetch info list local rm search show" -- "$cur"))
       ;;
  esac
}
complete -o filenames -F _zse_info zse-info

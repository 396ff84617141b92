# bash completion of zse-hardware
_zse_hardware() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case $prev in
    --file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --threads) COMPREPLY=(); return ;;
    --root) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --vram) COMPREPLY=(); return ;;
    --model) COMPREPLY=(); return ;;
    --mode) COMPREPLY=($(compgen -W "memory balanced max" -- "$cur")); return ;;
    --context) COMPREPLY=(); return ;;
    --pp) COMPREPLY=(); return ;;
    --quant) COMPREPLY=($(compgen -W "bf16 int8 int4" -- "$cur")); return ;;
    --kv) COMPREPLY=($(compgen -W "fp8 bf16" -- "$cur")); return ;;
    --experts) COMPREPLY=($(compgen -W "int4 int8" -- "$cur")); return ;;
    --divisor) COMPREPLY=(); return ;;
    --vram-mb) COMPREPLY=(); return ;;
    --headroom-mb) COMPREPLY=(); return ;;
    --mem-fraction) COMPREPLY=(); return ;;
    --max-total-tokens) COMPREPLY=(); return ;;
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "--json --measure --file --threads --root --vram --model --mode --context --no-speed --all --pp --quant --kv --experts --divisor --vram-mb --headroom-mb --mem-fraction --max-total-tokens --quiet --print-defaults --help --version" -- "$cur")) ;;
    *) local head=
       [ "$cur" != : ] || { head=$prev: cur=; }
       [ "$prev" != : ] || head=${COMP_WORDS[COMP_CWORD-2]}:
       COMPREPLY=($(compgen -W "$(zse-info models local --names 2>/dev/null)" -- "$head$cur"))
       COMPREPLY=("${COMPREPLY[@]#"$head"}")
       [ -n "$head" ] || COMPREPLY+=($(compgen -f -- "$cur"))
       [ "$COMP_CWORD" != 1 ] || COMPREPLY+=($(compgen -W "check recommend capacity budget" -- "$cur"))
       ;;
  esac
}
complete -o filenames -F _zse_hardware zse-hardware

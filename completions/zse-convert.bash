# bash completion of zse-convert
_zse_convert() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case $prev in
    --as) COMPREPLY=(); return ;;
    -o|--output) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    -q|--quantize) COMPREPLY=($(compgen -W "nl4 int4 int8 nf4 fp8 ternary f16 bf16 f32 mixed keep" -- "$cur")); return ;;
    -g|--group-size) COMPREPLY=(); return ;;
    --quant) COMPREPLY=(); return ;;
    --ternary) COMPREPLY=(); return ;;
    --lora) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --skip) COMPREPLY=(); return ;;
    --heads) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    -m|--target-memory) COMPREPLY=(); return ;;
    --quality) COMPREPLY=($(compgen -W "fast good best" -- "$cur")); return ;;
    --calibration) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --calibration-memory) COMPREPLY=(); return ;;
    --synthetic) COMPREPLY=(); return ;;
    --threads) COMPREPLY=(); return ;;
    --kernels) COMPREPLY=($(compgen -W "ref avx2 avxvnni avx512 amx neon dotprod i8mm" -- "$cur")); return ;;
    --checkpoint) COMPREPLY=(); return ;;
    --mode) COMPREPLY=(); return ;;
    --progress) COMPREPLY=($(compgen -W "bar json" -- "$cur")); return ;;
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "--as --output --quantize --group-size --quant --ternary --lora --skip --no-mtp --heads --target-memory --quality --calibration --calibration-memory --synthetic --threads --kernels --checkpoint --no-resume --dry-run --plan --mode --tensors --json --verbose --progress --force --print-defaults --help --version" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -f -- "$cur"))
       [ "$COMP_CWORD" != 1 ] || COMPREPLY+=($(compgen -W "pull" -- "$cur"))
       ;;
  esac
}
complete -o filenames -F _zse_convert zse-convert

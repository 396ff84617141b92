# bash completion of zse-bench
_zse_bench() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case $prev in
    -p|--prompt) COMPREPLY=(); return ;;
    -n|--generate) COMPREPLY=(); return ;;
    -b|--batch) COMPREPLY=(); return ;;
    -r|--repeats) COMPREPLY=(); return ;;
    -w|--warmup) COMPREPLY=(); return ;;
    --file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --limits) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --contexts) COMPREPLY=(); return ;;
    --svg) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --shape) COMPREPLY=(); return ;;
    --tokens) COMPREPLY=(); return ;;
    --layers) COMPREPLY=(); return ;;
    --layer-size) COMPREPLY=(); return ;;
    --layer-time) COMPREPLY=(); return ;;
    --link) COMPREPLY=(); return ;;
    --trace) COMPREPLY=($(compgen -W "FILE" -- "$cur")); return ;;
    --expert-size) COMPREPLY=(); return ;;
    --cpu-rate) COMPREPLY=(); return ;;
    --peer) COMPREPLY=(); return ;;
    --peer-model) COMPREPLY=(); return ;;
    --requests) COMPREPLY=(); return ;;
    --rate) COMPREPLY=(); return ;;
    --shared) COMPREPLY=(); return ;;
    --background) COMPREPLY=(); return ;;
    --api) COMPREPLY=($(compgen -W "chat completions or" -- "$cur")); return ;;
    --model) COMPREPLY=($(compgen -W "h200 h100 4090 a100" -- "$cur")); return ;;
    --key) COMPREPLY=(); return ;;
    --temp) COMPREPLY=(); return ;;
    --seed) COMPREPLY=(); return ;;
    --spec) COMPREPLY=($(compgen -W "auto ngram mtp" -- "$cur")); return ;;
    --spec-exact) COMPREPLY=($(compgen -W "tokens distribution" -- "$cur")); return ;;
    --accept) COMPREPLY=(); return ;;
    --timeout) COMPREPLY=(); return ;;
    --ids) COMPREPLY=(); return ;;
    -o|--output) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --ref) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --window) COMPREPLY=(); return ;;
    --windows) COMPREPLY=(); return ;;
    -q|--quantize) COMPREPLY=($(compgen -W "nl4 int4 int8 nf4 fp8 ternary f16 bf16 f32 keep" -- "$cur")); return ;;
    --mode) COMPREPLY=(); return ;;
    --threads) COMPREPLY=(); return ;;
    --ctx) COMPREPLY=(); return ;;
    --kv) COMPREPLY=($(compgen -W "f32 bf16 f16 fp8 i8 i4 ternary" -- "$cur")); return ;;
    --attention) COMPREPLY=(); return ;;
    --kernels) COMPREPLY=($(compgen -W "ref avx2 avxvnni avx512 amx neon dotprod i8mm" -- "$cur")); return ;;
    --device) COMPREPLY=(); return ;;
    --gpus) COMPREPLY=(); return ;;
    --pp-split) COMPREPLY=(); return ;;
    --tp) COMPREPLY=(); return ;;
    --gpu-layers) COMPREPLY=($(compgen -W "N auto" -- "$cur")); return ;;
    --moe) COMPREPLY=($(compgen -W "hybrid cpu gpu" -- "$cur")); return ;;
    --gpu-experts) COMPREPLY=(); return ;;
    --gpu-prefill-threshold) COMPREPLY=($(compgen -W "auto N" -- "$cur")); return ;;
    --expert-uploads) COMPREPLY=($(compgen -W "auto N" -- "$cur")); return ;;
    --layer-window) COMPREPLY=($(compgen -W "auto off" -- "$cur")); return ;;
    --prefetch) COMPREPLY=(); return ;;
    --max-device) COMPREPLY=(); return ;;
    --cuda-graphs) COMPREPLY=($(compgen -W "on off" -- "$cur")); return ;;
    --act) COMPREPLY=($(compgen -W "f16 int8 fp8" -- "$cur")); return ;;
    --cache-weights) COMPREPLY=($(compgen -W "auto on off" -- "$cur")); return ;;
    --verify) COMPREPLY=($(compgen -W "auto first never" -- "$cur")); return ;;
    --max-memory) COMPREPLY=(); return ;;
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "--prompt --generate --batch --repeats --warmup --json --file --limits --contexts --svg --shape --tokens --compare --table --autotune --layers --layer-size --layer-time --link --trace --expert-size --cpu-rate --peer --peer-model --requests --rate --shared --background --api --model --key --ignore-eos --temp --seed --spec --spec-exact --estimate --accept --timeout --ids --output --ref --window --windows --whole --quantize --mode --threads --ctx --kv --attention --exact --kernels --device --gpus --pp-split --tp --gpu-layers --moe --gpu-experts --gpu-prefill-threshold --no-gpu-prefill --expert-uploads --layer-window --prefetch --max-device --strict --cuda-graphs --act --cache-weights --force --verify --verbose --max-memory --print-defaults --help --version" -- "$cur")) ;;
    *) local head=
       [ "$cur" != : ] || { head=$prev: cur=; }
       [ "$prev" != : ] || head=${COMP_WORDS[COMP_CWORD-2]}:
       COMPREPLY=($(compgen -W "$(zse-info models local --names 2>/dev/null)" -- "$head$cur"))
       COMPREPLY=("${COMPREPLY[@]#"$head"}")
       [ -n "$head" ] || COMPREPLY+=($(compgen -f -- "$cur"))
       [ "$COMP_CWORD" != 1 ] || COMPREPLY+=($(compgen -W "limits batch kv moe threads spec matmul ternary dequant sparse simd flash mmap tiers stream prefill prefix plot gpu coldstart serve logits layers perplexity quality" -- "$cur"))
       ;;
  esac
}
complete -o filenames -F _zse_bench zse-bench

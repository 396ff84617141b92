# bash completion of zse-chat
_zse_chat() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case $prev in
    --url) COMPREPLY=(); return ;;
    --key) COMPREPLY=(); return ;;
    --rag) COMPREPLY=(); return ;;
    --tools) COMPREPLY=(); return ;;
    --mcp-config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --allow-tools) COMPREPLY=(); return ;;
    -m|--model) COMPREPLY=($(compgen -W "$(zse-info models local --names 2>/dev/null)" -- "$cur") $(compgen -f -- "$cur")); return ;;
    -p|--prompt) COMPREPLY=(); return ;;
    -f|--file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --session) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --batch) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --parallel) COMPREPLY=(); return ;;
    -s|--system) COMPREPLY=(); return ;;
    -t|--prompt-template) COMPREPLY=($(compgen -W "$(zse-chat --list-templates 2>/dev/null)" -- "$cur")); return ;;
    --param) COMPREPLY=(); return ;;
    --template) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --on-full) COMPREPLY=($(compgen -W "drop stop" -- "$cur")); return ;;
    --json-schema) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --grammar) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --regex) COMPREPLY=(); return ;;
    -n|--max-tokens) COMPREPLY=(); return ;;
    --temp) COMPREPLY=(); return ;;
    --dynatemp-range) COMPREPLY=(); return ;;
    --dynatemp-exp) COMPREPLY=(); return ;;
    --smoothing-factor) COMPREPLY=(); return ;;
    --smoothing-curve) COMPREPLY=(); return ;;
    --top-k) COMPREPLY=(); return ;;
    --top-p) COMPREPLY=(); return ;;
    --min-p) COMPREPLY=(); return ;;
    --top-a) COMPREPLY=(); return ;;
    --typical-p) COMPREPLY=(); return ;;
    --top-n-sigma) COMPREPLY=(); return ;;
    --xtc-probability) COMPREPLY=(); return ;;
    --xtc-threshold) COMPREPLY=(); return ;;
    --repeat-penalty) COMPREPLY=(); return ;;
    --repeat-last-n) COMPREPLY=(); return ;;
    --presence-penalty) COMPREPLY=(); return ;;
    --frequency-penalty) COMPREPLY=(); return ;;
    --dry-multiplier) COMPREPLY=(); return ;;
    --dry-base) COMPREPLY=(); return ;;
    --dry-allowed-length) COMPREPLY=(); return ;;
    --dry-penalty-last-n) COMPREPLY=(); return ;;
    --dry-sequence-breaker) COMPREPLY=(); return ;;
    --logit-bias) COMPREPLY=(); return ;;
    --seed) COMPREPLY=(); return ;;
    --stop) COMPREPLY=(); return ;;
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
    --window) COMPREPLY=(); return ;;
    --sinks) COMPREPLY=(); return ;;
    --spec) COMPREPLY=($(compgen -W "auto ngram mtp off" -- "$cur")); return ;;
    --spec-exact) COMPREPLY=($(compgen -W "tokens distribution" -- "$cur")); return ;;
    --lora) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --max-memory) COMPREPLY=(); return ;;
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "--url --key --rag --tools --mcp-config --allow-tools --yes --model --prompt --file --continue --history --no-history --session --batch --embed --parallel --system --prompt-template --param --list-templates --raw --template --no-wrap --on-full --no-think --json-schema --grammar --regex --json --ids --max-tokens --temp --dynatemp-range --dynatemp-exp --smoothing-factor --smoothing-curve --top-k --top-p --min-p --top-a --typical-p --top-n-sigma --xtc-probability --xtc-threshold --repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --logit-bias --seed --stop --ignore-eos --quantize --mode --threads --ctx --kv --attention --exact --kernels --device --gpus --pp-split --tp --gpu-layers --moe --gpu-experts --gpu-prefill-threshold --no-gpu-prefill --expert-uploads --layer-window --prefetch --max-device --strict --cuda-graphs --act --cache-weights --force --verify --verbose --window --sinks --spec --spec-exact --lora --max-memory --plan --print-defaults --help --version" -- "$cur")) ;;
    *) local head=
       [ "$cur" != : ] || { head=$prev: cur=; }
       [ "$prev" != : ] || head=${COMP_WORDS[COMP_CWORD-2]}:
       COMPREPLY=($(compgen -W "$(zse-info models local --names 2>/dev/null)" -- "$head$cur"))
       COMPREPLY=("${COMPREPLY[@]#"$head"}")
       [ -n "$head" ] || COMPREPLY+=($(compgen -f -- "$cur"))
       ;;
  esac
}
complete -o filenames -F _zse_chat zse-chat

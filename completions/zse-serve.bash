# bash completion of zse-serve
_zse_serve() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case $prev in
    --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --host) COMPREPLY=(); return ;;
    --port) COMPREPLY=(); return ;;
    --socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --tls-cert) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --tls-key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --user) COMPREPLY=(); return ;;
    --keys) COMPREPLY=(); return ;;
    --keys-grace) COMPREPLY=(); return ;;
    --anonymous-limit) COMPREPLY=(); return ;;
    --audit-folder) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --audit-size) COMPREPLY=(); return ;;
    --audit-anonymous-size) COMPREPLY=(); return ;;
    --audit-files) COMPREPLY=(); return ;;
    --audit-syslog) COMPREPLY=(); return ;;
    --audit-url) COMPREPLY=(); return ;;
    --audit-token) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --audit-sign) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --history-days) COMPREPLY=(); return ;;
    --responses-size) COMPREPLY=(); return ;;
    --history-size) COMPREPLY=(); return ;;
    --history-conversations) COMPREPLY=(); return ;;
    --cors-origin) COMPREPLY=(); return ;;
    --allow-host) COMPREPLY=(); return ;;
    --name) COMPREPLY=(); return ;;
    --max-seqs) COMPREPLY=(); return ;;
    --max-batch-size) COMPREPLY=(); return ;;
    --batching) COMPREPLY=($(compgen -W "on off" -- "$cur")); return ;;
    --max-queue) COMPREPLY=(); return ;;
    --kv-bytes) COMPREPLY=(); return ;;
    --model-dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --keep-alive) COMPREPLY=(); return ;;
    --max-memory) COMPREPLY=(); return ;;
    --prefix-cache) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --prefix-scope) COMPREPLY=($(compgen -W "key all" -- "$cur")); return ;;
    --kv-events) COMPREPLY=(); return ;;
    --kv-replay) COMPREPLY=(); return ;;
    --kv-topic) COMPREPLY=(); return ;;
    --timeout) COMPREPLY=(); return ;;
    --drain) COMPREPLY=(); return ;;
    --stall) COMPREPLY=(); return ;;
    --max-connections) COMPREPLY=(); return ;;
    --max-per-address) COMPREPLY=(); return ;;
    --max-body) COMPREPLY=(); return ;;
    --max-request-memory) COMPREPLY=(); return ;;
    --work-memory) COMPREPLY=(); return ;;
    --embedding-model) COMPREPLY=($(compgen -W "ID FILE" -- "$cur")); return ;;
    --rerank-model) COMPREPLY=($(compgen -W "ID FILE" -- "$cur")); return ;;
    --rag-documents) COMPREPLY=(); return ;;
    --rag-bytes) COMPREPLY=(); return ;;
    --mcp-config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
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
    --lora-dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --pp) COMPREPLY=(); return ;;
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "--config --host --port --socket --tls-cert --tls-key --user --no-auth --keys --keys-grace --strict-api --allow-query-key --anonymous-limit --audit-folder --audit-size --audit-anonymous-size --audit-files --audit-syslog --audit-url --audit-token --audit-sign --audit-prompts --no-audit --log-requests --no-history --history-days --responses-size --history-size --history-conversations --trust-proxy --cors-origin --allow-host --name --max-seqs --max-batch-size --batching --max-queue --kv-bytes --model-dir --keep-alive --max-memory --no-memory-watch --no-prefix-cache --prefix-cache --prefix-scope --kv-events --kv-replay --kv-topic --timeout --drain --stall --max-connections --max-per-address --max-body --max-request-memory --work-memory --embedding-model --rerank-model --rag-documents --rag-bytes --mcp-config --mcp-stdio --quiet --quantize --mode --threads --ctx --kv --attention --exact --kernels --device --gpus --pp-split --tp --gpu-layers --moe --gpu-experts --gpu-prefill-threshold --no-gpu-prefill --expert-uploads --layer-window --prefetch --max-device --strict --cuda-graphs --act --cache-weights --force --verify --verbose --window --sinks --spec --spec-exact --lora --lora-dir --pp --plan --print-defaults --help --version" -- "$cur")) ;;
    *) local head=
       [ "$cur" != : ] || { head=$prev: cur=; }
       [ "$prev" != : ] || head=${COMP_WORDS[COMP_CWORD-2]}:
       COMPREPLY=($(compgen -W "$(zse-info models local --names 2>/dev/null)" -- "$head$cur"))
       COMPREPLY=("${COMPREPLY[@]#"$head"}")
       [ -n "$head" ] || COMPREPLY+=($(compgen -f -- "$cur"))
       ;;
  esac
}
complete -o filenames -F _zse_serve zse-serve

# hardware.bats - zse-hardware on this machine, on fake /proc and /sys trees, and with a fake GPU
# management library whose answers the tests choose.
bats_require_minimum_version 1.5.0

setup() {
  cd "$BATS_TEST_DIRNAME/../.." || exit 1
  T=$BATS_TEST_TMPDIR
}

# canned KIB_TOTAL KIB_AVAILABLE: make a fake /proc and /sys of a small machine in $T/root
canned() {
  mkdir -p "$T/root/proc/self" "$T/root/sys/fs/cgroup/job" "$T/root/sys/devices/system/cpu/cpu0/cpufreq"
  printf 'MemTotal: %s kB\nMemFree: %s kB\nMemAvailable: %s kB\n' "$1" "$2" "$2" >"$T/root/proc/meminfo"
  printf 'processor : 0\nmodel name : Canned\nflags : fma avx2\n' >"$T/root/proc/cpuinfo"
  echo 0-3 >"$T/root/sys/devices/system/cpu/online"
  echo powersave >"$T/root/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
}
# group LIMIT USED: add a control group of version 2 to it, with this process as a member
group() {
  echo '0::/job' >"$T/root/proc/self/cgroup"
  echo '31 30 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw' >"$T/root/proc/self/mountinfo"
  echo "$1" >"$T/root/sys/fs/cgroup/job/memory.max"
  echo "$2" >"$T/root/sys/fs/cgroup/job/memory.current"
  echo '150000 100000' >"$T/root/sys/fs/cgroup/job/cpu.max"
}

@test "this machine is described as text, and the same as JSON" {
  run --separate-stderr zse-hardware
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  [[ "$output" == processor*cores*memory*GPU* ]]
  zse-hardware --json >"$T/j"
  jq -e --argjson total "$(awk '/^MemTotal/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)" '.memory.total_bytes == $total and .memory.usable_bytes <= $total and
    .cpu.cores >= 1 and .cpu.processors >= .cpu.cores and (.gpus | type) == "array" and has("limits") == false' "$T/j"
  jq -e --argjson page "$(getconf PAGESIZE)" '.memory.page_bytes == $page' "$T/j"
  jq -e --argjson n "$(nproc --all)" '.cpu.processors <= $n and .cpu.usable >= 1' "$T/j"
}

@test "zse-hardware answers at once: in 50 ms of processor time" {
  if [ -n "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ]; then skip "sanitizers are slow"; fi
  TIMEFORMAT='%U %S'
  { time for _ in $(seq 20); do zse-hardware --json >/dev/null; done; } 2>"$T/time"
  awk '{ exit !($1 + $2 < 20 * 0.050) }' "$T/time" || { cat "$T/time"; return 1; }
}

# bats test_tags=plain
@test "--measure adds the limits that zse-bench limits knows" {
  zse-hardware --measure --json >"$T/j"
  jq -e '.limits.read.all > 1e8 and .limits.int8.all > 1e8 and .limits.f32.all > 1e8 and .limits.page_cache.all > 1e7 and .limits.disk == null' "$T/j"
}

@test "a control group's limits of memory and processors count" {
  canned 16000000 9000000
  zse-hardware --json --root "$T/root" | jq -e '.memory.cgroup == null and .memory.page_bytes == null and .memory.usable_bytes == 9000000 * 1024 and .cpu.quota == null and .cpu.model == "Canned"'
  group 2147483648 147483648
  zse-hardware --json --root "$T/root" | jq -e '.memory.cgroup == { version: 2, limit_bytes: 2147483648, left_bytes: 2000000000 } and
    .memory.usable_bytes == 2000000000 and .memory.pressure == "LOW" and .cpu.quota == 1.5'
  zse-hardware --root "$T/root" | grep -q 'control group 2.15 GB (2.00 GiB) at most, 2.00 GB left'
  group 2147483648 2100000000
  zse-hardware --json --root "$T/root" | jq -e '.memory.pressure == "OOM"'
}

@test "a real control group's limits count, where one can be made" {
  load ../lib/group.bash
  make_group 2000000000 || skip "$WHY"
  in_group zse-hardware --json >"$T/j"
  drop_group
  jq -e '.memory.cgroup.limit_bytes <= 2000000000 and .memory.cgroup.limit_bytes > 1999990000 and .memory.usable_bytes <= 2000000000' "$T/j"
}

@test "check names what is slow, and the command" {
  canned 16000000 700000
  group 18000000000 1
  zse-hardware check --json --root "$T/root" >"$T/j"
  jq -e '.warnings == 3 and ([.checks[] | select(.status == "warning") | .name] | sort) == ["governor", "memory", "quota"]' "$T/j"
  jq -e '.checks[] | select(.name == "governor") | .command | test("scaling_governor")' "$T/j"
  run --separate-stderr zse-hardware check --root "$T/root"
  [ "$status" = 0 ]
  [[ "$output" == *"governor is powersave"*"$ echo performance"* ]]
  run --separate-stderr zse-hardware check
  [ "$status" = 0 ] && [ -z "$stderr" ]
}

@test "GPUs are those that the management library reports; an old or broken library is named" {
  if [ -n "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ]; then skip "the sanitizer wants its library loaded first"; fi
  cat >"$T/nvml.c" <<'C'
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return RC; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(i + 1ul); return 0; }
int nvmlDeviceGetName(void *d, char *s, unsigned n)
{
    (void)n;
    s[0] = 'G', s[1] = (char)('0' + (long)d), s[2] = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, struct memory *m)
{
    m->total = 80000000000ull;
    m->free = 1000000000ull * (unsigned long)d;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { (void)d; *a = 9, *b = 0; return 0; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { (void)n; s[0] = '5', s[1] = 0; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *v) { (void)d; *v = 1; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *v) { (void)d; *v = 5; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *v) { (void)d; *v = 8; return 0; }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *v) { (void)d; v[0] = 50, v[1] = 20; return 0; }
int nvmlDeviceGetTemperature(void *d, int chip, unsigned *v) { (void)d, (void)chip; *v = 40; return 0; }
#ifndef OLD
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *v) { (void)d; *v = 16; return 0; }
#endif
C
  cc -shared -fPIC -DRC=0 -o "$T/libnvidia-ml.so.1" "$T/nvml.c"
  LD_LIBRARY_PATH=$T zse-hardware --json >"$T/j"
  jq -e '(.gpus | length) == 2 and .gpus[1] == { id: 1, name: "G2", total_bytes: 80000000000, free_bytes: 2000000000, compute_capability: "9.0", pcie_generation: 1,
    pcie_width: 8, pcie_generation_max: 5, pcie_width_max: 16, driver: "5" } and has("no_gpu") == false' "$T/j"
  LD_LIBRARY_PATH=$T zse-hardware check --json | jq -e '[.checks[] | select(.name == "pcie" and .status == "warning")] | length == 2'
  cc -shared -fPIC -DRC=9 -o "$T/libnvidia-ml.so.1" "$T/nvml.c"
  LD_LIBRARY_PATH=$T zse-hardware --json | jq -e '.gpus == [] and (.no_gpu | test("does not start: error 9"))'
  cc -shared -fPIC -DRC=0 -DOLD -o "$T/libnvidia-ml.so.1" "$T/nvml.c"
  LD_LIBRARY_PATH=$T zse-hardware --json | jq -e '.gpus == [] and (.no_gpu | test("too old"))'
}

@test "wrong usage and missing files are refused" {
  run --separate-stderr zse-hardware --root "$T/none"
  [ "$status" = 1 ]
  [ -z "$output" ]
  [[ "$stderr" == *"proc/meminfo: No such file"* ]]
  for args in nothing 'check more' '--file x' '--measure --root /' 'check --measure'; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-hardware $args
    [ "$status" = 2 ] && [ -z "$output" ] || { echo "$args: $status"; return 1; }
  done
  for args in 'recommend x' 'recommend --mode fast' 'capacity' 'capacity --pp 3 7B' 'budget' 'budget 7B 8B' 'check --vram 8' '--context 5' 'budget 7B --vram-mb 100 --pp x' \
      'budget 7B --vram-mb 100 --quant q4' 'budget 7B --vram-mb 100 --experts int4' 'recommend --measure' 'recommend --vram 0' 'budget DeepSeek-V2-Lite --vram-mb 16384 --divisor 2'; do
    # shellcheck disable=SC2086
    run --separate-stderr zse-hardware $args
    [ "$status" = 2 ] && [ -z "$output" ] || { echo "$args: $status"; return 1; }
  done
  # x occurs in the name of only one model, but is too short to select it
  run --separate-stderr zse-hardware capacity --vram 80 x:int4
  [ "$status" = 1 ]
  [[ "$stderr" == *"'x' is no model of the registry"* ]]
  run --separate-stderr zse-hardware capacity --vram 80 no-such:int4
  [ "$status" = 1 ]
  [[ "$stderr" == *"no model of the registry"* ]]
  run --separate-stderr zse-hardware capacity --vram 80 7B:q4
  [ "$status" = 1 ] && [[ "$stderr" == *"'q4' is no type"* ]]
}

@test "recommend lists what fits, and as which type" {
  for case in '24 bf16' '9 int8' '8 nl4' '6 nl4' '17 bf16'; do
    zse-hardware recommend --model 7B --vram "${case% *}" --mode auto --context 512 --no-speed --json >"$T/j"
    jq -e --arg type "${case#* }" '.models | length == 1 and .[0].type == $type' "$T/j" || { echo "$case: $(cat "$T/j")"; return 1; }
  done
  zse-hardware recommend --model 7B --vram 24 --mode balanced --no-speed --json | jq -e '.models[0].type == "int8"'
  zse-hardware recommend --model 7B --vram 24 --mode min_memory --no-speed --json | jq -e '.models[0].type == "nl4"'
  zse-hardware recommend --model 7B --vram 2 --no-speed --json | jq -e '.models == []'
  run --separate-stderr zse-hardware recommend --model 7B --vram 2 --no-speed
  [ "$status" = 0 ] && [[ "$output" == *"does not fit"* ]]
}

# bats test_tags=plain
@test "recommend lists what fits only with some layers in the machine's memory" {
  canned 16000000 9000000                 # kB
  zse-hardware recommend --root "$T/root" --vram 3 --json >"$T/j"
  # a model is listed under hybrid if it is too large for the GPU alone (90 % of 3 GB) but fits with
  # the memory beside it (90 % of 9.2 GB); then it is not in the other list
  jq -e '(.hybrid | length) > 2 and all(.hybrid[]; .bytes > 2.7e9 and .bytes <= 2.7e9 + 8.3e9 and .gpu_layers >= 1 and .gpu_layers < .layers and .decode_tokens_per_s == null) and
    ([.models[].model_id] - ([.models[].model_id] - [.hybrid[].model_id]) == []) and all(.models[]; has("gpu_layers") | not)' "$T/j" || { cat "$T/j"; return 1; }
  # more GPU memory takes more layers; if all layers fit, the model is no longer under hybrid
  layers() { zse-hardware recommend --root "$T/root" --vram "$1" --model 7B --json | jq -r '[(.models | length), (.hybrid[0].gpu_layers // 0)] | join(" ")'; }
  read -r few_alone few < <(layers 2)
  read -r more_alone more < <(layers 4)
  [ "$few_alone" = 0 ]
  [ "$more_alone" = 0 ]
  [ "$few" -ge 1 ]
  [ "$more" -gt "$few" ]
  [ "$(layers 8)" = "1 0" ]
  zse-hardware recommend --root "$T/root" --vram 4 --model 7B | grep -q "^Qwen2.5-7B .*  $more of 28 layers on the GPU"
  canned 16000000 300000                  # nothing beside it
  zse-hardware recommend --root "$T/root" --vram 4 --model 7B --json | jq -e '.models == [] and .hybrid == []'
  zse-hardware recommend --root "$T/root" --json | jq -e '.hybrid == []'
}

# bats test_tags=plain
@test "recommend keeps to the limit of a control group, 2 GB" {
  canned 16000000 9000000
  group 2000000000 100000000
  zse-hardware recommend --root "$T/root" --json >"$T/j"
  jq -e '.memory_is == "control group" and .memory_bytes == 1900000000 and (.models | length) > 3 and all(.models[]; .bytes <= 1900000000 * 0.9)' "$T/j"
  zse-hardware recommend --root "$T/root" --json --all | jq -e '.models | length > 3'
}

@test "recommend predicts speeds: a smaller model is faster" {
  if [ -n "${ASAN_OPTIONS:-}${TSAN_OPTIONS:-}" ]; then skip "sanitizers are slow"; fi
  zse-hardware recommend --json >"$T/j"
  jq -e '[.models[] | select(.name == "SmolLM2-135M" or .name == "SmolLM2-1.7B")] | length == 2 and .[0].decode_tokens_per_s > 3 * .[1].decode_tokens_per_s and
    .[0].prefill_tokens_per_s > .[1].prefill_tokens_per_s' "$T/j"
}

@test "capacity counts instances, alone and together" {
  zse-hardware capacity --vram 80GB 7B:int4 32B:int4 --json >"$T/j"
  jq -e '.models[0].alone == 15 and .models[0].type == "int4" and .together.fits and .together.more == 10 and .together.of == "Qwen2.5-7B" and .together.bytes <= 80e9' "$T/j"
  run --separate-stderr zse-hardware capacity --vram 20GB 7B:int4 32B:int4
  [ "$status" = 0 ] && [[ "$output" == *"one of each take"*"too much"* ]]
}

@test "budget plans a pipeline from a config.json, with a summary beside the JSON" {
  cat >"$T/config.json" <<'J'
{"model_type": "kimi_k2", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 384,
 "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
 "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840, "max_position_embeddings": 262144, "tie_word_embeddings": false}
J
  run --separate-stderr zse-hardware budget "$T/config.json" --pp 20,21,20 --kv fp8 --quant int8 --vram-mb 16384 \
    --headroom-mb 500 --context 262144
  [ "$status" = 0 ]
  [[ "$stderr" == *"3 GPUs of 16384 MiB"*"  least"* ]]
  jq -e '(.ranks | map(.weights_mb | round)) == [5445, 3018, 5114] and .bottleneck == 0 and .context_length == 262144 and .max_total_tokens > 949000 and
    .max_total_tokens < 951000 and .mem_fraction_static > 0.4 and .mem_fraction_static < 0.6' <<<"$output"
  run --separate-stderr zse-hardware budget "$T/config.json" --pp 3 --vram-mb 16384 --quiet --max-total-tokens 5000
  [ "$status" = 0 ]
  [ -z "$stderr" ]
  jq -e '(.ranks | map(.layers)) == [21, 20, 20] and .context_length == 5000' <<<"$output"
  ZSE_MAX_TOTAL_TOKENS_OVERRIDE=6000 ZSE_CTX_SIZE_OVERRIDE=400 run --separate-stderr zse-hardware budget "$T/config.json" \
    --pp 3 --vram-mb 16384 --quiet
  [ "$status" = 0 ]
  jq -e '.context_length == 400 and .max_total_tokens == 6000' <<<"$output"
  ZSE_MEM_FRACTION_OVERRIDE=0.5 run --separate-stderr zse-hardware budget "$T/config.json" --pp 3 --vram-mb 16384 --quiet
  [ "$status" = 0 ]
  jq -e '.vram_mb == 8192' <<<"$output"
  ZSE_CTX_SIZE_OVERRIDE=400 run --separate-stderr zse-hardware budget "$T/config.json" --pp 3 --vram-mb 16384 --quiet --context 300
  [ "$status" = 0 ]
  jq -e '.context_length == 300' <<<"$output"
  ZSE_CTX_SIZE_OVERRIDE=x run --separate-stderr zse-hardware budget "$T/config.json" --pp 3 --vram-mb 16384
  [ "$status" = 2 ]
  [ -z "$output" ]
  [[ "$stderr" == *"ZSE_CTX_SIZE_OVERRIDE"* ]]
  run --separate-stderr zse-hardware budget "$T/config.json" --pp 61 --vram-mb 16384 --quiet
  jq -e '.ranks | map(.layers) | length == 61 and all(. == 1)' <<<"$output"
  run --separate-stderr zse-hardware budget DeepSeek-V2-Lite --experts int4 --divisor 2 --vram-mb 16384 --quiet
  jq -e '.ranks[0].experts_mb * 1048576 / 1e6 | round == 3827' <<<"$output"
  run --separate-stderr zse-hardware budget "$T/config.json" --pp 3 --vram-mb 4000 --quiet
  [ "$status" = 1 ]
  jq -e '.fits == false and .context_length == 0' <<<"$output"
  run --separate-stderr zse-hardware budget "$T/config.json" --pp 20,20 --vram-mb 16384
  [ "$status" = 1 ] && [ -z "$output" ] && [[ "$stderr" == *"40 layers together: the model has 61"* ]]
}

/* timed_gpus.c - the constants of the GPUs of the model of time.  A measurement replaces them.
 *
 * data sheets   multiprocessors, boost clock, memory, dense f16 tensor operations with f32 sums:
 *               NVIDIA H200, H100 SXM, A100 80GB SXM data sheets; Ada architecture white paper
 * memory_share  a copy in device memory counting reads and writes: 4.3 of 4.8 TB/s on an H200, 3.0
 *               of 3.35 on an H100 (measured); 1.80 of 2.04 on an A100 (reads, as users of
 *               forums.developer.nvidia.com, thread 339083, measured); RTX 4090: assumed
 * latencies     pointer chasing, arXiv:2402.13499, table of memory latencies: 273, 262 and 263
 *               cycles for L2, 542, 466 and 479 for memory (RTX 4090, A100, H100), quoted without
 *               the paper at hand.  An H200 has the H100's processor; under load they are longer
 * l2            bytes per cycle of the same paper's table of throughput, times the clock
 * launch_s      1.3 us on an H100 in a graph (hazyresearch.stanford.edu, 27 May 2025); the others
 *               are assumed to be equal
 * dependent_s   assumed: half of launch_s.  Between two empty kernels of a graph dependent launches
 *               save 0.96 us (measured by users at 1755 MHz, quoted without the GPU's name:
 *               github.com/pegainfer-project/pegainfer, 569), which would leave 0.34; other kernels
 *               may save less
 * mma_share     Hopper: mma.sync takes 413 cycles for products of 256 at wgmma's rate (calculated,
 *               gpu/kernels/matmul.cu); the others: assumed
 * wgmma_share   8192 x 8192 x 8192 bf16 on random data by the vendor's library: 790 of 989
 *               operations (measured on H100 and H200), since power lowers the clock
 * issue_share   assumed: warps of a scheduler are ready for three of four cycles */
#include <string.h>

#include "gpu/time/launch_time.h"

enum { KB = 1024 };
static const struct timed_gpu gpus[] = {
    { .key = "h200", .name = "NVIDIA H200", .sm = "90", .capability = 90, .n_sms = 132, .most_threads = 2048,
      .shared_bytes = 228 * KB, .clock = 1.83e9, .memory = 4.8e12, .memory_share = 0.90, .l2 = 7.8e12,
      .memory_cycles = 479, .l2_cycles = 263, .launch_s = 1.3e-6, .dependent_s = 0.65e-6, .tensor = 989.4e12,
      .mma_share = 0.62, .wgmma_share = 0.80, .issue_share = 0.75 },
    { .key = "h100", .name = "NVIDIA H100 SXM", .sm = "90", .capability = 90, .n_sms = 132, .most_threads = 2048,
      .shared_bytes = 228 * KB, .clock = 1.83e9, .memory = 3.35e12, .memory_share = 0.90, .l2 = 7.8e12,
      .memory_cycles = 479, .l2_cycles = 263, .launch_s = 1.3e-6, .dependent_s = 0.65e-6, .tensor = 989.4e12,
      .mma_share = 0.62, .wgmma_share = 0.80, .issue_share = 0.75 },
    { .key = "a100", .name = "NVIDIA A100 80GB SXM", .sm = "80", .capability = 80, .n_sms = 108, .most_threads = 2048,
      .shared_bytes = 164 * KB, .clock = 1.41e9, .memory = 2.039e12, .memory_share = 0.88, .l2 = 2.6e12,
      .memory_cycles = 466, .l2_cycles = 262, .launch_s = 1.3e-6, .tensor = 312e12, .mma_share = 0.85,
      .issue_share = 0.75 },
    { .key = "4090", .name = "NVIDIA GeForce RTX 4090", .sm = "89", .capability = 89, .n_sms = 128,
      .most_threads = 1536, .shared_bytes = 100 * KB, .clock = 2.52e9, .memory = 1.008e12, .memory_share = 0.92,
      .l2 = 4.1e12, .memory_cycles = 542, .l2_cycles = 273, .launch_s = 1.3e-6, .tensor = 165.2e12, .mma_share = 0.90,
      .issue_share = 0.75 },
};
enum { N_GPUS = sizeof gpus / sizeof *gpus };

const struct timed_gpu *timed_gpu_at(int i) { return i >= 0 && i < N_GPUS ? &gpus[i] : NULL; }

const struct timed_gpu *timed_gpu_find(const char *key)
{
    for (int i = 0; i < N_GPUS; i++)
        if (strcmp(gpus[i].key, key) == 0)
            return &gpus[i];
    return NULL;
}

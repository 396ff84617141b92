/* t-ptx.cu - the interpreter of PTX refuses what a GPU would: each kernel here has one fault, and
 * the error must name it.  Faultless kernels beside them run. */
#include <cuda_fp16.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/ptx/ptx.h"

extern __shared__ __align__(16) unsigned char room[];

__global__ void beyond(float *p, int n) { p[blockIdx.x * blockDim.x + threadIdx.x + n] = 1; }
__global__ void misaligned(float4 *out, const float *p, int n) { *out = *reinterpret_cast<const float4 *>(p + n); }
__global__ void constants(const __grid_constant__ int4 v, int *out)
{
    asm volatile("st.u32 [%0], 1;" :: "l"(&v.x) : "memory");
    *out = v.x;
}
/* A thread of another warp reads what thread 0 has written. */
template <bool BARRIER> __global__ void shared_word(int *out)
{
    volatile int *word = reinterpret_cast<int *>(room);
    if (threadIdx.x == 0)
        *word = 7;
    if (BARRIER)
        __syncthreads();
    out[threadIdx.x] = *word;
}
/* Lanes of a warp exchange words. */
template <bool SYNC> __global__ void within_warp(int *out)
{
    volatile int *word = reinterpret_cast<int *>(room);
    word[threadIdx.x] = threadIdx.x;
    if (SYNC)
        __syncwarp();
    out[threadIdx.x] = word[threadIdx.x ^ 1];
}
__global__ void unwritten(int *out) { out[threadIdx.x] = reinterpret_cast<volatile int *>(room)[threadIdx.x]; }
__global__ void reaches(int *out, int n)
{
    room[n] = 1;
    *out = room[n];
}
/* WAIT: the groups that may be under way; -1: wait_all, for a copy that is in no group. */
template <int WAIT> __global__ void copies(int *out, const int *from)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(room);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
    if (WAIT >= 0) {
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group %0;" :: "n"(WAIT) : "memory");
    } else {
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
    *out = *reinterpret_cast<volatile int *>(room);
}
__global__ void never_meet()
{
    if (threadIdx.x < 32)
        __syncthreads();
}
__global__ void unknown(unsigned *out) { *out = __brev(threadIdx.x); }
/* Each lane runs the loop a different number of times; after the loop the lanes converge, and sums
 * by shuffles include all of them. */
__global__ void diverging(int *out)
{
    int n = 0;
    for (unsigned i = 0; i < threadIdx.x % 7; i++)
        n += i & 1 ? 3 : 1;
    for (int i = 16; i; i /= 2)
        n += __shfl_xor_sync(0xffffffffu, n, i);
    out[threadIdx.x] = n;
}

/* Kernels of dependent launches: each breaks a rule, or none. */
enum dependent_fault { NO_FAULT, READS_BEFORE, WRITES_BEFORE, ADDS_BEFORE, COPIES_BEFORE, ONE_ENDS_BEFORE,
                       READS_OTHER_BLOCK, LAUNCHES_LATE };
template <dependent_fault FAULT> __global__ void dependent(int *out, const int *weight)
{
    int n = weight[threadIdx.x];
    if (FAULT != LAUNCHES_LATE)
        asm volatile("griddepcontrol.launch_dependents;");
    if (FAULT == READS_BEFORE)
        n += *(volatile int *)out;
    if (FAULT == WRITES_BEFORE)
        out[threadIdx.x] = n;
    if (FAULT == ADDS_BEFORE)
        atomicAdd(out, n);
    if (FAULT == COPIES_BEFORE)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :: "r"((unsigned)__cvta_generic_to_shared(room) + 16 * threadIdx.x), "l"(out) : "memory");
    if (FAULT == ONE_ENDS_BEFORE && threadIdx.x == 31)
        return;
    if (FAULT == READS_OTHER_BLOCK && blockIdx.x)
        n += *(volatile int *)(out + 128);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (FAULT == LAUNCHES_LATE)
        asm volatile("griddepcontrol.launch_dependents;");
    if (FAULT == READS_OTHER_BLOCK)
        out[128 + threadIdx.x] = n;
    out[threadIdx.x] = out[threadIdx.x ^ 1] + n;
}

/* Kernels of cooperative launches.  In each of N_STAGES stages a block of 64 threads writes a row,
 * all blocks meet, and each reads the rows of all.  Two buffers take turns, so that a block may
 * write the next row while others read. */
enum together_fault { MEET, NO_WAIT, NO_FENCE, WAITS_FOR_FEWER, POLLS_PLAINLY, ONE_BUFFER, COPIES_TOO_LONG, ONE_LEAVES,
                      ONE_HANGS, READ_ONLY_LOAD, WRITES_READ_ONLY };
enum { ROW = 64, N_STAGES = 5, MOD = 1009 };
template <together_fault FAULT> __device__ void arrive_at(unsigned *arrived)
{
    __syncthreads();
    if (threadIdx.x == 0 && FAULT == NO_FENCE) {
        atomicAdd(arrived, 1u);
    } else if (threadIdx.x == 0) {
        __threadfence();
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(arrived) : "memory");
    }
}
template <together_fault FAULT> __device__ void wait_for(const unsigned *arrived, unsigned n)
{
    unsigned v = FAULT == NO_WAIT && blockIdx.x == 1 ? n : 0;
    if (threadIdx.x == 0)
        while (v < n - (FAULT == WAITS_FOR_FEWER ? 1 : 0))
            if (FAULT == POLLS_PLAINLY)
                v = *(volatile const unsigned *)arrived;
            else
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(arrived) : "memory");
    __syncthreads();
}
/* buffer [2][gridDim.x][ROW], out [gridDim.x][ROW] */
template <together_fault FAULT> __global__ void together(int *out, int *buffer, unsigned *arrived)
{
    int x = threadIdx.x, sum;
    const unsigned to = (unsigned)__cvta_generic_to_shared(room) + 16 * threadIdx.x;
    const volatile int *copied = reinterpret_cast<int *>(room);
    for (int stage = 0; stage < N_STAGES; stage++) {
        int *const rows = buffer + (FAULT == ONE_BUFFER ? 0 : stage % 2) * gridDim.x * ROW;
        if (FAULT == WRITES_READ_ONLY && stage == 0 && blockIdx.x == 1)
            x = __ldg(rows + blockIdx.x * ROW + threadIdx.x);
        rows[blockIdx.x * ROW + threadIdx.x] = x + blockIdx.x;
        if (FAULT == ONE_LEAVES && stage == 2 && blockIdx.x == 2)
            return;
        if (FAULT == ONE_HANGS && stage == 2 && blockIdx.x == 2 && threadIdx.x < 32)
            return;
        arrive_at<FAULT>(arrived);
        wait_for<FAULT>(arrived, gridDim.x * (stage + 1));
        if (threadIdx.x < gridDim.x * ROW / 4)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         :: "r"(to), "l"(rows + 4 * threadIdx.x) : "memory");
        if (FAULT == COPIES_TOO_LONG && stage == 1) {
            rows[(gridDim.x + blockIdx.x) * ROW + threadIdx.x] = 0;
            arrive_at<FAULT>(arrived + 1);
            wait_for<FAULT>(arrived + 1, gridDim.x);
            rows[blockIdx.x * ROW + threadIdx.x] = 0;
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        sum = 0;
        for (unsigned i = 0; i < gridDim.x; i++)
            sum += copied[i * ROW + threadIdx.x];
        if (FAULT == READ_ONLY_LOAD && stage == 2 && blockIdx.x == 1)
            sum = __ldg(rows + threadIdx.x);
        x = sum % MOD;
        __syncthreads();
    }
    out[blockIdx.x * ROW + threadIdx.x] = x;
}
/* The last block to arrive at a counter adds what all have written, and sets the counter to 0. */
template <bool FENCES> __global__ void last_adds(int *out, int *buffer, unsigned *arrived)
{
    buffer[blockIdx.x * ROW + threadIdx.x] = threadIdx.x + blockIdx.x;
    if (FENCES)
        __threadfence();
    __syncthreads();
    unsigned *const last = reinterpret_cast<unsigned *>(room);
    if (threadIdx.x == 0) {
        *last = atomicAdd(arrived, 1u) + 1 == gridDim.x;
        if (*last)
            *arrived = 0;
        if (FENCES)
            __threadfence();
    }
    __syncthreads();
    if (!*last)
        return;
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++)
        sum += ((volatile int *)buffer)[i * ROW + threadIdx.x];
    out[threadIdx.x] = sum;
}
/* Threads of different blocks write neighbouring f16; or the same one. */
template <bool SAME> __global__ void neighbours(int *out, int *, unsigned *)
{
    reinterpret_cast<__half *>(out)[SAME ? threadIdx.x : threadIdx.x * gridDim.x + blockIdx.x] = __half(1.0f);
}
/* Each block sends a word to the next one, which waits for it. */
enum relay_fault { RELAY, PLAIN_DATA, PLAIN_POLL, NEVER_SENT };
/* The same with four words for each of 32 threads, the last of which is sent again. */
template <relay_fault FAULT> __global__ void relay_four(int *out, int *, unsigned *)
{
    const unsigned before = (blockIdx.x + gridDim.x - 1) % gridDim.x, n = blockIdx.x + 1;
    int *const sent = out + 4 * ROW, *const to = sent + 4 * (blockIdx.x * LANES + threadIdx.x),
        *const from = sent + 4 * (before * LANES + threadIdx.x);
    int4 v = {};
    if (threadIdx.x >= LANES)
        return;
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %1, %1, %2};" :: "l"(to), "r"(n), "r"(0) : "memory");
    if (FAULT != NEVER_SENT || blockIdx.x != 2)
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(to + 3), "r"(n) : "memory");
    while ((unsigned)v.x != before + 1 || (unsigned)v.w != before + 1)
        if (FAULT == PLAIN_POLL)
            v.x = *(volatile int *)from, v.w = *(volatile int *)(from + 3);
        else
            asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    out[blockIdx.x * ROW + threadIdx.x] = v.y + v.z;
}
template <relay_fault FAULT> __global__ void relay(int *out, int *buffer, unsigned *)
{
    const unsigned before = (blockIdx.x + gridDim.x - 1) % gridDim.x;
    unsigned long long *const sent = reinterpret_cast<unsigned long long *>(out + 512), word = 0;
    if (FAULT == PLAIN_DATA)
        buffer[blockIdx.x * ROW + threadIdx.x] = 1;
    if (FAULT != NEVER_SENT || blockIdx.x != 2)
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;"
                     :: "l"(sent + blockIdx.x * ROW + threadIdx.x), "l"((unsigned long long)blockIdx.x + 1) : "memory");
    while (word != before + 1)
        if (FAULT == PLAIN_POLL)
            word = *(volatile unsigned long long *)(sent + before * ROW + threadIdx.x);
        else
            asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                         : "=l"(word) : "l"(sent + before * ROW + threadIdx.x) : "memory");
    if (FAULT == PLAIN_DATA)
        buffer[blockIdx.x * ROW + threadIdx.x] = buffer[before * ROW + threadIdx.x];
}

__global__ void mbarrier(int *, int *, unsigned *)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"((unsigned)__cvta_generic_to_shared(room)) : "memory");
}

static int n_tests, n_failed, *device;
static void *pinned;

static void report(bool good, const char *name, const char *said)
{
    n_failed += !good;
    printf("%sok %d - %s\n", good ? "" : "not ", ++n_tests, name);
    if (!good)
        printf("# %s\n", said);
}
/* Check that the kernel has run, or that its error contains these words. */
static void expect(const char *name, const char *words)
{
    cudaError_t rc = cudaGetLastError();
    if (rc == cudaSuccess)
        rc = cudaStreamSynchronize(0);
    const char *said = cudaGetErrorString(rc);
    report(words ? rc != cudaSuccess && strstr(said, words) : rc == cudaSuccess, name, said);
    cudaDeviceReset();
}

/* Run the kernels with a fault, most of them beside a kernel without it. */
static void kernels()
{
    float *const f = (float *)device;

    beyond<<<4, 256>>>(f, 0);
    expect("a kernel within its allocation", nullptr);
    beyond<<<4, 256>>>(f, 1);
    expect("a write one element too far", "block (3, 0, 0), thread 255: tests/ptx/t-ptx.cu");
    misaligned<<<1, 1>>>((float4 *)f, f, 4);
    expect("an aligned vector", nullptr);
    misaligned<<<1, 1>>>((float4 *)f, f, 3);
    expect("a misaligned vector", "not aligned");
    constants<<<1, 1>>>(int4{}, device);
    expect("a write of a parameter", "constants or parameters");
    shared_word<true><<<1, 64, 4>>>(device);
    expect("a barrier between write and read", nullptr);
    shared_word<false><<<1, 64, 4>>>(device);
    expect("no barrier between write and read", "race: read of byte 0");
    within_warp<true><<<1, 32, 128>>>(device);
    expect("__syncwarp between write and read", nullptr);
    within_warp<false><<<1, 32, 128>>>(device);
    expect("no __syncwarp between write and read", "race: read of byte");
    unwritten<<<1, 32, 128>>>(device);
    expect("shared memory that nothing wrote", "no thread has written");
    reaches<<<1, 1, 64>>>(device, 64);
    expect("shared memory beyond the launch's", "at 64 of 64 bytes");
    copies<0><<<1, 1, 16>>>(device, device);
    expect("a copy that was waited for", nullptr);
    copies<-1><<<1, 1, 16>>>(device, device);
    expect("a copy of no group that was waited for", nullptr);
    copies<1><<<1, 1, 16>>>(device, device);
    expect("a copy that was not waited for", "under way");
    never_meet<<<1, 64>>>();
    expect("a barrier that half of the threads pass", "wait for what cannot come");
    unknown<<<1, 1>>>((unsigned *)device);
    expect("an instruction that is not known", "brev.b32");
    diverging<<<1, 32>>>(device);
    expect("lanes that diverge and converge", nullptr);
    cudaMemcpyAsync(pinned, device, 128, cudaMemcpyDeviceToHost, 0);
    expect("a copy to pinned memory", nullptr);
    /* Lanes run the loop 0 to 6 times and compute 0 1 4 5 8 9 12, whose sum is 39.  Lanes 0 to 27
     * are four such groups; lanes 28 to 31 compute 0 1 4 5, whose sum is 10. */
    report(((int *)pinned)[31] == 4 * 39 + 10, "the sum of what the lanes computed", "wrong");
}

/* Launches and copies that the runtime refuses. */
static void launches_and_copies()
{
    static int pageable[4];
    reaches<<<1, 1, 49153>>>(device, 0);
    expect("more than 48 KB without the attribute", "invalid argument");
    cudaFuncSetAttribute(reaches, cudaFuncAttributeMaxDynamicSharedMemorySize, 49153);
    reaches<<<1, 1, 49153>>>(device, 49152);
    expect("more than 48 KB with it", nullptr);
    never_meet<<<1, 1025>>>();
    expect("too many threads", "invalid configuration");
    never_meet<<<dim3(1, 65536), 32>>>();
    expect("a grid too high", "invalid configuration");
    cudaMemcpyAsync(pageable, device, 16, cudaMemcpyDeviceToHost, 0);
    expect("a copy to pageable memory", "pinned");
    cudaMemcpyAsync(pinned, device, 4097, cudaMemcpyDeviceToHost, 0);
    expect("a copy beyond the end", "beyond its end");
}

static void captures()
{
    cudaStream_t s;
    cudaGraph_t graph;
    void *more = nullptr;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    const bool refused = cudaMalloc(&more, 16) == cudaErrorStreamCaptureUnsupported;
    report(refused && cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated,
           "cudaMalloc within a capture", "accepted");
    cudaGetLastError();
    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    report(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported, "waiting within a capture", "accepted");
    cudaStreamEndCapture(s, &graph);
    cudaGetLastError();
    cudaGraphExec_t exec = nullptr;
    memset(pinned, 0, 128);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    diverging<<<1, 32, 0, s>>>(device);
    cudaMemcpyAsync(pinned, device, 128, cudaMemcpyDeviceToHost, s);
    cudaStreamEndCapture(s, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    const int before = ((int *)pinned)[0];
    cudaGraphLaunch(exec, s);
    const int begun = ((int *)pinned)[0];
    cudaStreamSynchronize(s);
    report(before == 0 && begun == 0 && ((int *)pinned)[0] == 4 * 39 + 10, "a graph runs when it is waited for",
           "too early, or not at all");
}

static void launch_dependent(void (*kernel)(int *, const int *), int value, int *out)
{
    cudaLaunchAttribute a = {};
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = value;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(2);
    c.blockDim = dim3(32);
    c.dynamicSmemBytes = 512;
    c.attrs = &a;
    c.numAttrs = 1;
    cudaLaunchKernelEx(&c, kernel, out, (const int *)(device + 512));
}

/* The faults of a kernel that begins before the one before it has ended. */
static void dependents()
{
    static const struct { void (*kernel)(int *, const int *); const char *name, *words; int value; } all[] = {
        { dependent<NO_FAULT>, "a dependent kernel that waits", nullptr, 1 },
        { dependent<READS_BEFORE>, "a read of a result before the wait", "read of what a kernel before writes", 1 },
        { dependent<READS_BEFORE>, "the same read in a kernel that is not dependent", nullptr, 0 },
        { dependent<COPIES_BEFORE>, "a copy of a result before the wait", "read of what a kernel before writes", 1 },
        { dependent<READS_OTHER_BLOCK>, "a read of what another block of the launch has written", nullptr, 1 },
        { dependent<WRITES_BEFORE>, "a write before the wait", "write before griddepcontrol.wait", 0 },
        { dependent<ADDS_BEFORE>, "an atomic before the wait", "atomic before griddepcontrol.wait", 0 },
        { dependent<ONE_ENDS_BEFORE>, "a thread that ends without the wait", "thread 31", 0 },
    };
    for (const auto &t : all) {
        launch_dependent(dependent<NO_FAULT>, 0, device);
        /* nor of a kernel two launches earlier */
        launch_dependent(dependent<NO_FAULT>, 1, device + 64);
        launch_dependent(t.kernel, t.value, device);
        expect(t.name, t.words);
    }
    for (int result = 0; result < 2; result++) {
        launch_dependent(dependent<NO_FAULT>, 0, device);
        launch_dependent(dependent<LAUNCHES_LATE>, 1, device + 64);
        launch_dependent(dependent<READS_BEFORE>, 1, device + 64 * result);
        expect(result ? "a read of a result of the kernel before, which waits first" : "one of the kernel before that",
               result ? "read of what a kernel before writes" : nullptr);
    }
    cudaMemcpyAsync(pinned, device, 128, cudaMemcpyDeviceToHost, 0);
    launch_dependent(dependent<NO_FAULT>, 1, device);
    expect("a kernel as the dependent of a copy", "not supported");
}

typedef void cooperative(int *, int *, unsigned *);
static cudaError_t launch_together(cooperative *kernel, unsigned n_blocks, unsigned n_attributes, cudaStream_t s)
{
    cudaLaunchAttribute a[2] = {};
    a[0].id = cudaLaunchAttributeCooperative;
    a[0].val.cooperative = 1;
    a[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(n_blocks);
    c.blockDim = dim3(ROW);
    c.dynamicSmemBytes = 1024;
    c.stream = s;
    c.attrs = a;
    c.numAttrs = n_attributes;
    cudaMemsetAsync(device, 0, 4096, s);
    return cudaLaunchKernelEx(&c, kernel, device, device + 256, (unsigned *)device + 1000);
}
static void together_refused()
{
    int n_blocks = 0, can = 0, n_sms = 0, fits = 0, too_large = 1;
    cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, 0);
    cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, 0);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fits, together<MEET>, ROW, 48 << 10);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&too_large, together<MEET>, ROW, (48 << 10) + 1);
    n_blocks = n_sms * fits;
    report(can && n_blocks == 4 && !too_large, "the most blocks of a cooperative launch", "others");
    launch_together(together<MEET>, n_blocks + 1, 1, 0);
    expect("more blocks than run at the same time", "too many blocks in cooperative launch");
    launch_together(together<MEET>, n_blocks, 2, 0);
    expect("a cooperative launch with the attribute of dependent launches", "not supported");
    launch_together(mbarrier, n_blocks, 1, 0);
    expect("an mbarrier in a cooperative launch", "is not interpreted in a cooperative launch");
}
/* Whether the pinned copy of `out` is what together<MEET> computes. */
static bool met(unsigned n_blocks)
{
    for (unsigned thread = 0; thread < ROW; thread++) {
        unsigned x = thread;
        for (int stage = 0; stage < N_STAGES; stage++)
            x = (n_blocks * x + n_blocks * (n_blocks - 1) / 2) % MOD;
        for (unsigned b = 0; b < n_blocks; b++)
            if (((unsigned *)pinned)[b * ROW + thread] != x)
                return false;
    }
    return true;
}
static void together_in_graph(const char *name)
{
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec = nullptr;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    launch_together(together<MEET>, 4, 1, s);
    cudaMemcpyAsync(pinned, device, 4 * ROW * 4, cudaMemcpyDeviceToHost, s);
    cudaStreamEndCapture(s, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < 2; i++) {
        memset(pinned, 0, 4096);
        cudaGraphLaunch(exec, s);
        cudaStreamSynchronize(s);
        report(met(4), name, cudaGetErrorString(cudaGetLastError()));
    }
}
/* Each interleaving of blocks shows the fault, or computes the same. */
static void blocks_together()
{
    static const struct { cooperative *kernel; const char *name, *words; } all[] = {
        { together<MEET>, "blocks that meet", nullptr },
        { together<NO_WAIT>, "a block that does not wait for others", "race between blocks: " },
        { together<NO_FENCE>, "an arrival that releases nothing", "race between blocks: read of what block (" },
        { together<WAITS_FOR_FEWER>, "a wait for fewer arrivals", "race between blocks: " },
        { together<POLLS_PLAINLY>, "polls with plain loads", "race between blocks: " },
        { together<ONE_BUFFER>, "rows that are written while others read", "race between blocks: " },
        { together<COPIES_TOO_LONG>, "a copy that ends after its block has arrived", "race between blocks: " },
        { together<ONE_LEAVES>, "a block that never arrives", "the blocks wait for what cannot come" },
        { together<ONE_HANGS>, "a block that waits for its own thread", "the threads of the block wait for what cannot" },
        { together<READ_ONLY_LOAD>, "a read-only load of a row", "a read-only load (.nc) of what a block" },
        { together<WRITES_READ_ONLY>, "a write after a read-only load", "has read by a read-only load (.nc)" },
        { last_adds<true>, "the last block reads what all have written", nullptr },
        { last_adds<false>, "the same without fences", "race between blocks: read of what block (" },
        { relay<RELAY>, "words that blocks send", nullptr },
        { relay<PLAIN_DATA>, "a relaxed word that publishes nothing else", "race between blocks: read of what block (" },
        { relay<PLAIN_POLL>, "a plain load of a word that a block sends", "race between blocks: " },
        { relay<NEVER_SENT>, "a block that never sends", "the blocks wait for what cannot come" },
        { relay_four<RELAY>, "four words that blocks send", nullptr },
        { relay_four<PLAIN_POLL>, "a plain load of four words that a block sends", "race between blocks: " },
        { relay_four<NEVER_SENT>, "a word of four that a block never sends", "the blocks wait for what cannot come" },
        { neighbours<false>, "blocks that write neighbouring f16", nullptr },
        { neighbours<true>, "blocks that write the same f16", "race between blocks: write of what block (" },
    };
    for (int seed = 0; seed < 8; seed++) {
        char name[200];
        draw_from(seed);
        for (const auto &t : all) {
            snprintf(name, sizeof name, "%s, seed %d", t.name, seed);
            launch_together(t.kernel, 4, 1, 0);
            cudaMemcpyAsync(pinned, device, 4 * ROW * 4, cudaMemcpyDeviceToHost, 0);
            expect(name, t.words);
            if (t.kernel == together<MEET>)
                report(met(4), name, "other results");
        }
        snprintf(name, sizeof name, "blocks that meet, in a graph, seed %d", seed);
        together_in_graph(name);
    }
}

int main()
{
    cudaMalloc((void **)&device, 4096);
    cudaMallocHost(&pinned, 4096);
    draw_from(0);                       /* the faults below are those of the plain order of warps */
    kernels();
    launches_and_copies();
    captures();
    dependents();
    together_refused();
    blocks_together();
    printf("1..%d\n", n_tests);
    return n_failed != 0;
}

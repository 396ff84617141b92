/* t-ptx.cu - the interpreter of PTX refuses what a GPU would: each kernel here has one fault, and
 * the error must name it.  Faultless kernels beside them run. */
#include <cuda_fp16.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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

int main()
{
    cudaMalloc((void **)&device, 4096);
    cudaMallocHost(&pinned, 4096);
    kernels();
    launches_and_copies();
    captures();
    dependents();
    printf("1..%d\n", n_tests);
    return n_failed != 0;
}

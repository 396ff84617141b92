/* emulated.cc - run a kernel without a GPU: its threads as fibers, its memory accesses checked. */
#include "gpu/rt/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>

#if !defined __x86_64__
#include <ucontext.h>
#endif

/* ---- fibers ---- */

enum { MAX_THREADS = EMULATED_THREADS, STACK = 64 << 10, MAX_SHARED = EMULATED_SHARED };

#if defined __x86_64__
extern "C" void emulated_switch(void **from, void *to);
__asm__(".text\n.globl emulated_switch\n.type emulated_switch,@function\nemulated_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emulated_switch, .-emulated_switch\n");
#endif

struct fiber {
    emulated_thread id;
#if defined __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
    const unsigned *waits_for;          /* can run if this is NULL or *waits_for != generation */
    unsigned generation;
    const char *waits_in;
    bool done;
    int n_groups;                       /* committed groups of copy_async */
};
struct warp { emulated_slots in, out; int n, n_done, arrived; unsigned generation; const char *what; };

/* The barrier of a warpgroup. */
struct group { int arrived; unsigned generation; };
enum { WARPGROUP = 128 };

struct async_copy { fiber *f; int group; void *to; const void *from; int n; };

/* For every 4 bytes of shared memory: the threads that last wrote and read it, and when.  reader
 * -2: threads of several warps. */
struct moment { uint32_t block, group, warp; };
struct shadow { int16_t writer, reader; moment write, read; };

/* The state of a block. */
struct block_state {
    uint8_t *stacks, *shared;           /* allocated by the first launch that needs them */
    shadow *shadows;
    fiber fibers[MAX_THREADS];
    warp warps[MAX_THREADS / 32];
    group groups[MAX_THREADS / WARPGROUP];
    int n_threads, n_done, arrived;
    unsigned generation;                /* counts the passes of the block's barrier; never goes back */
    unsigned first_generation;          /* value at the start of this block */
    std::vector<async_copy> copies;
    unsigned n_arrivals;                /* in grid_arrive */
};

/* The running block.  Only one block runs at a time in the process, because the emulation is for
 * tests, not for speed. */
static struct block_machine : block_state {
    std::mutex lock;
    fiber *self;
#if defined __x86_64__
    void *main_sp;
#else
    ucontext_t main_context;
#endif
    const std::function<void()> *kernel;
    const char *name;
    size_t shared_size;
    unsigned n_blocks;
    bool together;
    struct gpu *gpu;
    char error[400];
} m;
emulated_thread *emulated;
std::atomic<uint64_t> emulated_regions;

static void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void complain(const char *fmt, ...)
{
    if (m.error[0])
        return;
    va_list ap;
    char what[256];
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (m.self)
        snprintf(m.error, sizeof m.error, "kernel %s, block (%u, %u, %u), thread %u: %s", m.name, m.self->id.block.x,
                 m.self->id.block.y, m.self->id.block.z, m.self->id.thread.x, what);
    else
        snprintf(m.error, sizeof m.error, "kernel %s: %s", m.name, what);
}

static bool can_run(const fiber *f) { return !f->done && !(f->waits_for && *f->waits_for == f->generation); }

/* Switch from this fiber to the next lane of its warp that can run, or to the scheduler (main) if
 * there is none. */
static void to_next()
{
    fiber *const f = m.self;
    const int i = (int)(f - m.fibers), end = (i / 32 + 1) * 32 < m.n_threads ? (i / 32 + 1) * 32 : m.n_threads;
    for (int k = i + 1; k < end; k++) {
        fiber *next = &m.fibers[k];
        if (!can_run(next))
            continue;
        m.self = next;
        emulated = &next->id;
#if defined __x86_64__
        emulated_switch(&f->sp, next->sp);
#else
        swapcontext(&f->context, &next->context);
#endif
        return;
    }
#if defined __x86_64__
    emulated_switch(&f->sp, m.main_sp);
#else
    swapcontext(&f->context, &m.main_context);
#endif
}

/* Run f.  Returns the fiber that switched back: f, or one that to_next() has switched to since. */
static fiber *to_fiber(fiber *f)
{
    m.self = f;
    emulated = &f->id;
#if defined __x86_64__
    emulated_switch(&m.main_sp, f->sp);
#else
    swapcontext(&m.main_context, &f->context);
#endif
    f = m.self;
    m.self = nullptr;
    return f;
}

static void body()
{
    (*m.kernel)();
    fiber *f = m.self;
    f->done = true;
    m.n_done++;
    m.warps[f->id.thread.x / 32].n_done++;
    to_next();
}

static void start(fiber *f, int i)
{
    uint8_t *stack = m.stacks + (size_t)i * STACK;
#if defined __x86_64__
    void **top = (void **)(stack + STACK);
    /* return address of body(); keeps the stack aligned as after a call */
    *--top = nullptr;
    *--top = (void *)body;
    for (int r = 0; r < 6; r++)
        *--top = nullptr;
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = nullptr;
    makecontext(&f->context, body, 0);
#endif
}

static void wait_for(const unsigned *generation, const char *what)
{
    fiber *f = m.self;
    f->waits_for = generation;
    f->generation = *generation;
    f->waits_in = what;
    do
        to_next();
    while (*generation == f->generation);
    f->waits_for = nullptr;
}

void __syncthreads()
{
    if (++m.arrived == m.n_threads) {
        m.arrived = 0;
        m.generation++;
        for (int i = 0; i < (m.n_threads + 31) / 32; i++)       /* a barrier orders the lanes of a warp too */
            m.warps[i].generation++;
        return;
    }
    wait_for(&m.generation, "__syncthreads");
}

void emulated_warpgroup_sync()
{
    const int i = m.self->id.thread.x / WARPGROUP;
    group *g = &m.groups[i];
    if ((i + 1) * WARPGROUP > m.n_threads)
        return complain("warpgroup_sync by a warpgroup of %d threads", m.n_threads - i * WARPGROUP);
    if (++g->arrived == WARPGROUP) {
        g->arrived = 0;
        g->generation++;
        return;
    }
    wait_for(&g->generation, "warpgroup_sync");
}

void emulated_collective(const void *in, size_t n_in, void *out, size_t n_out, emulated_work work, const char *what)
{
    fiber *f = m.self;
    const int lane = f->id.thread.x & 31;
    warp *w = &m.warps[f->id.thread.x / 32];
    if (n_in)
        memcpy(w->in.lane[lane], in, n_in);
    if (w->arrived == 0)
        w->what = what;
    else if (w->what != what && strcmp(w->what, what) != 0)
        complain("%s, while another lane of the warp is in %s", what, w->what);
    if (++w->arrived == w->n) {
        if (w->n != 32 && work)
            complain("%s in a warp of %d lanes", what, w->n);
        if (work)
            work(&w->in, &w->out, 0xffffffff);
        w->arrived = 0;
        w->generation++;
    } else {
        wait_for(&w->generation, what);
    }
    if (n_out)
        memcpy(out, w->out.lane[lane], n_out);
}

void *emulated_shared() { return m.shared; }

/* ---- checks ---- */

/* The generations of a thread's block, warpgroup and warp.  They only increase, so that accesses of
 * earlier blocks are recognized. */
static moment moment_of(int thread)
{
    return { m.generation, m.groups[thread / WARPGROUP].generation, m.warps[thread / 32].generation };
}

static bool checking;                   /* a kernel of a device with debug_sync runs */

/* Whether the access of thread `other` at this moment is ordered before the current one, of thread
 * `me` now. */
static bool ordered(int other, const moment &at, int me, const moment &now)
{
    return other == me || at.block != now.block || (other / WARPGROUP == me / WARPGROUP && at.group != now.group) ||
           (other / 32 == me / 32 && at.warp != now.warp);
}

static void check_shared(size_t at, size_t n, bool write)
{
    const int me = (int)m.self->id.thread.x;
    const moment now = moment_of(me);
    for (size_t i = at / 4; i <= (at + n - 1) / 4; i++) {
        shadow *s = &m.shadows[i];
        const bool written = s->write.block >= m.first_generation, was_read = s->read.block >= m.first_generation;
        if (written && !ordered(s->writer, s->write, me, now))
            return complain("race: %s of byte %zu of shared memory, which thread %d wrote without a barrier between",
                            write ? "write" : "read", 4 * i, s->writer);
        if (write) {
            if (was_read && (s->reader == -2 ? s->read.block == now.block : !ordered(s->reader, s->read, me, now)))
                return complain("race: write of byte %zu of shared memory, which thread %d read without a barrier between", 4 * i, s->reader);
            s->writer = (int16_t)me;
            s->write = now;
        } else {
            if (!written)
                return complain("read of byte %zu of shared memory, which no thread has written", 4 * i);
            /* If several warps have read, reader is -2.  Within a warp the last reader stands for
             * all readers before the warp's next collective. */
            const bool first = !was_read || s->read.block != now.block;
            s->reader = first || (s->reader >= 0 && s->reader / 32 == me / 32) ? (int16_t)me : (int16_t)-2;
            s->read = now;
        }
    }
}

/* Of an access of n bytes by one instruction; a copy of other sizes is several. */
static size_t alignment_of(size_t n) { return n <= 16 && (n & (n - 1)) == 0 ? n : 1; }

static void check(const void *address, size_t n, enum blocks_access kind)
{
    const bool write = kind == BLOCKS_WRITE || kind == BLOCKS_ATOMIC;
    if (!m.self)
        return;
    const uint8_t *p = (const uint8_t *)address;
    if (p >= m.stacks && p < m.stacks + (size_t)MAX_THREADS * STACK) {
        if (hopper_has_products)
            hopper_registers(p, n, write);
        return;
    }
    if ((const void *)p == &emulated || (p >= (const uint8_t *)&m && p < (const uint8_t *)(&m + 1)))
        /* an access to threadIdx or to other variables of the emulation */
        return;
    if (p >= m.shared && p < m.shared + MAX_SHARED) {
        const size_t at = (size_t)(p - m.shared);
        if (at + n > m.shared_size)
            return complain("%s of %zu bytes at %zu of %zu bytes of shared memory", write ? "write" : "read", n, at,
                            m.shared_size);
        if ((uintptr_t)p % alignment_of(n))
            return complain("access of %zu bytes at %zu of shared memory is not aligned", n, at);
        return check_shared(at, n, write);
    }
    const std::vector<memory_region> &all = m.gpu->regions;
    /* a cache by page, because kernels alternate between a few of many arrays and tables.  last:
     * index of the region found last; page: a page that was in no region when n_opened were open */
    static struct { size_t last; uintptr_t page; uint64_t n_opened; } guesses[256];
    const uintptr_t page = (uintptr_t)p >> 12;
    auto &guess = guesses[page & 255];
    if (guess.page == page && guess.n_opened == emulated_regions)
        /* the page was in no region, and no region was opened since then */
        return;
    const uint64_t n_opened = emulated_regions;
    for (size_t i = 0; i <= all.size(); i++) {
        const size_t j = i == 0 ? guess.last : i - 1;
        if (j >= all.size() || p < all[j].map || p >= all[j].map + all[j].map_size)
            continue;
        const memory_region &r = all[j];
        guess.last = j;
        if (p < r.p || p + n > r.p + r.size)
            complain("%s of %zu bytes at %td of an allocation of %zu bytes", write ? "write" : "read", n, p - r.p,
                     r.size);
        else if ((uintptr_t)p % alignment_of(n))
            complain("access of %zu bytes at %td of an allocation is not aligned", n, p - r.p);
        else if (m.together)
            blocks_access((int)m.self->id.block.x, p, n, kind, (size_t)(p - r.p));
        return;
    }
    guess.page = page;
    guess.n_opened = n_opened;
}
static inline void check_access(const void *address, size_t n, bool write)
{
    if (checking)
        check(address, n, write ? BLOCKS_WRITE : BLOCKS_READ);
}

/* Atomics do not conflict with each other, but they do with other accesses to the same bytes
 * without a barrier in between. */
enum { ATOMIC = 0x7fe0 };               /* the `writer` of atomics: not the number of any thread */

static void check_atomic(const void *address, size_t n)
{
    const uint8_t *p = (const uint8_t *)address;
    if (!checking)
        return;
    if (p < m.shared || p >= m.shared + MAX_SHARED) {
        if (m.together) {
            check(p, n, BLOCKS_ATOMIC);
            blocks_atomic((int)m.self->id.block.x, p);
        }
        return;
    }
    const size_t at = (size_t)(p - m.shared);
    if (at + n > m.shared_size)
        return complain("atomic of %zu bytes at %zu of %zu bytes of shared memory", n, at, m.shared_size);
    for (size_t i = at / 4; i <= (at + n - 1) / 4; i++) {
        if (m.shadows[i].writer != ATOMIC || m.shadows[i].write.block != m.generation)
            check_shared(4 * i, 4, false), check_shared(4 * i, 4, true);
        m.shadows[i].writer = ATOMIC;
        m.shadows[i].write = { m.generation, 0, 0 };
    }
}

template <class T, class F> static T replace(T *p, F f)
{
    check_atomic(p, sizeof *p);
    const T old = *p;
    *p = f(old);
    return old;
}
unsigned atomicAdd(unsigned *p, unsigned v) { return replace(p, [v](unsigned x) { return x + v; }); }
unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
    return replace(p, [v](unsigned long long x) { return x + v; });
}
unsigned atomicAnd(unsigned *p, unsigned v) { return replace(p, [v](unsigned x) { return x & v; }); }
unsigned atomicOr(unsigned *p, unsigned v) { return replace(p, [v](unsigned x) { return x | v; }); }

/* Copies are done as late as the rules allow, so that a missing wait becomes visible. */
void emulated_copy(void *to, const void *from, int n)
{
    if (m.together)                     /* it may read now, too */
        check_access(from, (size_t)n, false);
    m.copies.push_back({ m.self, m.self->n_groups, to, from, n });
}
void emulated_commit() { m.self->n_groups++; }
void emulated_wait(int n)
{
    size_t left = 0;
    for (const async_copy &c : m.copies) {
        if (c.f != m.self || c.group >= m.self->n_groups - n) {
            m.copies[left++] = c;
            continue;
        }
        check_access(c.from, (size_t)c.n, false);
        check_access(c.to, (size_t)c.n, true);
        memcpy(c.to, c.from, (size_t)c.n);
    }
    m.copies.resize(left, async_copy());
}

/* ---- barriers of all blocks ---- */

static const char in_grid_wait[] = "grid_wait";

/* A launch that does not run all blocks at the same time must not wait for other blocks. */
static bool can_meet(const char *what)
{
    if (!m.together && m.n_blocks > 1)
        complain("%s in a launch of %u blocks that was not made by launch_together", what, m.n_blocks);
    return m.together || m.n_blocks == 1;
}

void emulated_grid_arrive(unsigned *arrived)
{
    if (!can_meet("grid_arrive"))
        return;
    if (checking && m.together) {
        check(arrived, sizeof *arrived, BLOCKS_ATOMIC);
        blocks_arrive((int)m.self->id.block.x, arrived);
    }
    m.n_arrivals++;
    ++*arrived;
}

void emulated_grid_wait(const unsigned *arrived, unsigned n)
{
    if (!can_meet(in_grid_wait))
        return;
    while (*arrived < n)
        wait_for(arrived, in_grid_wait);
    if (checking && m.together) {
        blocks_wait((int)m.self->id.block.x, arrived, n);
        check(arrived, sizeof *arrived, BLOCKS_ATOMIC_READ);
    }
}

/* These accesses order no others, so the blocks' clocks stay as they are. */
/* The word, checked as one that other blocks may access, too. */
static uint32_t *word_at(const float *p, const char *what)
{
    if (!can_meet(what))
        return nullptr;
    if (checking && m.together)
        check(p, sizeof *p, BLOCKS_ATOMIC);
    return reinterpret_cast<uint32_t *>(const_cast<float *>(p));
}

void emulated_grid_publish(float *to, uint32_t word)
{
    uint32_t *const p = word_at(to, "grid_publish");
    if (p && (*p & 1) == (word & 1))
        complain("grid_publish of a float in the phase of the last one");
    if (p)
        *p = word;
}

uint32_t emulated_grid_collect(const float *from, unsigned phase)
{
    const uint32_t *const p = word_at(from, "grid_collect");
    while (p && (*p & 1) != phase)
        wait_for(p, "grid_collect");
    return p ? *p : 0;
}

void emulated_grid_send(float *to, uint32_t word)
{
    uint32_t *const p = word_at(to, "grid_send");
    if (p && *p != EMULATED_GRID_EMPTY)
        complain("grid_send of a float before the last one has been received");
    if (p)
        *p = word;
}

uint32_t emulated_grid_receive(const float *from)
{
    const uint32_t *const p = word_at(from, "grid_receive");
    while (p && *p == EMULATED_GRID_EMPTY)
        wait_for(p, "grid_receive");
    return p ? *p : 0;
}

unsigned long long emulated_grid_sum(const unsigned long long *from, unsigned mask, unsigned count)
{
    if (!can_meet("grid_total"))
        return 0;
    if (checking && m.together)
        check(from, sizeof *from, BLOCKS_ATOMIC);
    while ((*from & mask) != count)
        wait_for(reinterpret_cast<const unsigned *>(from), "grid_total");
    return *from;
}

void emulated_grid_empty(float *word)
{
    if (uint32_t *const p = word_at(word, "grid_empty"))
        *p = EMULATED_GRID_EMPTY;
}

/* Called by emulated_hopper.cc. */
bool emulated_together() { return m.together; }
int emulated_me() { return (int)m.self->id.thread.x; }
int emulated_n_threads() { return m.n_threads; }
size_t emulated_shared_size() { return m.shared_size; }
bool emulated_checks() { return checking; }
void emulated_wait_for(const unsigned *generation, const char *what) { wait_for(generation, what); }
void emulated_access(const void *p, size_t n, bool write) { check_access(p, n, write); }
void emulated_complain(const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    complain("%s", what);
}

/* The functions that -fsanitize=thread makes the compiler call; its library is not linked. */
extern "C" {
void __tsan_init(void);
void __tsan_func_entry(void *);
void __tsan_func_exit(void);
#define ACCESS(N) \
    void __tsan_read##N(void *p); void __tsan_write##N(void *p); void __tsan_unaligned_read##N(void *p); \
    void __tsan_unaligned_write##N(void *p); \
    void __tsan_read##N(void *p) { check_access(p, N, false); } \
    void __tsan_write##N(void *p) { check_access(p, N, true); } \
    void __tsan_unaligned_read##N(void *p) { check_access(p, N, false); } \
    void __tsan_unaligned_write##N(void *p) { check_access(p, N, true); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __tsan_read_range(void *p, long n);
void __tsan_write_range(void *p, long n);
void __tsan_read_range(void *p, long n) { check_access(p, (size_t)n, false); }
void __tsan_write_range(void *p, long n) { check_access(p, (size_t)n, true); }
void *__tsan_memcpy(void *to, const void *from, size_t n);
void *__tsan_memset(void *to, int c, size_t n);
void *__tsan_memcpy(void *to, const void *from, size_t n)
{
    check_access(from, n, false);
    check_access(to, n, true);
    return memcpy(to, from, n);
}
void *__tsan_memset(void *to, int c, size_t n) { check_access(to, n, true); return memset(to, c, n); }
void __tsan_vptr_update(void **, void *);
void __tsan_vptr_read(void **);
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
}

/* ---- launches ---- */

/* Run the lanes of a warp until none can continue.  true: at least one ran. */
static bool run_warp(int w)
{
    bool any = false, again;
    do {
        again = false;
        for (int i = w * 32; i < (w + 1) * 32 && i < m.n_threads; i++) {
            if (!can_run(&m.fibers[i]))
                continue;
            i = (int)(to_fiber(&m.fibers[i]) - m.fibers);
            any = again = true;
        }
    } while (again);
    return any;
}

static void begin_block(dim3 block, dim3 grid, int threads)
{
    m.n_threads = threads;
    m.n_done = m.arrived = 0;
    m.n_arrivals = 0;
    m.generation++;
    m.copies.clear();
    hopper_begin();
    m.first_generation = m.generation;
    if (!m.gpu->debug_sync)
        memset(m.shared, 0xff, m.shared_size);  /* NaN */
    for (int i = 0; i < threads; i++) {
        fiber *f = &m.fibers[i];
        f->id = { dim3((unsigned)i), block, dim3((unsigned)threads), grid };
        f->waits_for = nullptr;
        f->done = false;
        f->n_groups = 0;
        start(f, i);
        warp *w = &m.warps[i / 32];
        w->n = i % 32 + 1;
        w->n_done = w->arrived = 0;
        m.groups[i / WARPGROUP].arrived = 0;
    }
}

/* Run all warps of the block once.  true: at least one thread ran. */
static bool run_warps()
{
    bool any = false;
    for (int w = 0; w < (m.n_threads + 31) / 32; w++)
        any |= run_warp(w);
    return any;
}

/* Number of threads of the block that wait, and an event that they wait for: grid_wait if one does,
 * because the others wait for that one. */
static int waiting(const char **where)
{
    int n = 0;
    *where = "";
    for (int i = 0; i < m.n_threads; i++)
        if (!m.fibers[i].done) {
            if (n++ == 0 || *where != in_grid_wait)
                *where = m.fibers[i].waits_in;
        }
    return n;
}

static void run_block(dim3 block, dim3 grid, int threads)
{
    begin_block(block, grid, threads);
    while (m.n_done < threads) {
        if (run_warps() || hopper_go_on())
            continue;
        const char *where;
        const int n = waiting(&where);
        complain("%d of %d threads wait in %s for the others, which ended or wait elsewhere", n, threads, where);
        return;
    }
    hopper_end();
}

/* ---- launches whose blocks run at the same time ---- */

/* The states of the blocks that do not run.  A state has the same address whenever its block runs,
 * so pointers into it remain valid. */
static block_state resting[EMULATED_SMS];
static int running;                     /* its state is in m */

static void move_state(block_state *to, block_state *from)
{
    const int n = from->n_threads;
    to->stacks = from->stacks;
    to->shared = from->shared;
    to->shadows = from->shadows;
    std::copy_n(from->fibers, n, to->fibers);
    std::copy_n(from->warps, (n + 31) / 32, to->warps);
    std::copy_n(from->groups, (n + WARPGROUP - 1) / WARPGROUP, to->groups);
    to->n_threads = n;
    to->n_done = from->n_done;
    to->arrived = from->arrived;
    to->generation = from->generation;
    to->first_generation = from->first_generation;
    to->copies.swap(from->copies);
    to->n_arrivals = from->n_arrivals;
}

static void turn_to(int block)
{
    if (block == running)
        return;
    move_state(&resting[running], &m);
    move_state(&m, &resting[block]);
    running = block;
}

/* No thread of any block can run. */
static void complain_of_blocks(int n_blocks)
{
    int stuck = -1, least = 0;
    unsigned most = 0, arrivals[EMULATED_SMS];
    const char *where = "";
    for (int b = 0; b < n_blocks; b++) {
        const char *w;
        turn_to(b);
        arrivals[b] = m.n_arrivals;
        most = m.n_arrivals > most ? m.n_arrivals : most;
        least = arrivals[b] < arrivals[least] ? b : least;
        if (waiting(&w) && (stuck < 0 || w != in_grid_wait)) {
            stuck = b;
            where = w;
        }
    }
    turn_to(stuck);
    const int n = waiting(&where);
    if (arrivals[least] < most)
        complain("%d of %d threads of block %d wait in %s; block %d has made %u of %u arrivals", n, m.n_threads, stuck,
                 where, least, arrivals[least], most);
    else
        complain("%d of %d threads of block %d wait in %s; all blocks have made %u arrivals", n, m.n_threads, stuck,
                 where, most);
}

static void run_together(int n_blocks, int threads)
{
    for (int b = 0; b < n_blocks; b++) {
        turn_to(b);
        begin_block(dim3((unsigned)b, 0, 0), dim3((unsigned)n_blocks), threads);
    }
    int order[EMULATED_SMS], n_done = 0;
    uint32_t random = 1;
    while (n_done < n_blocks && !m.error[0]) {
        /* each round in another order, so that no block always sees what the others have written */
        for (int i = 0; i < n_blocks; i++) {
            random = random * 1664525 + 1013904223;
            const int j = (int)(random >> 16) % (i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        bool any = false;
        for (int i = 0; i < n_blocks && !m.error[0]; i++) {
            turn_to(order[i]);
            if (m.n_done == threads)
                continue;
            while (!m.error[0] && run_warps())
                any = true;
            n_done += m.n_done == threads;
        }
        if (!any && !m.error[0])
            complain_of_blocks(n_blocks);
    }
    turn_to(0);
}

/* Memory for a block. */
static int make_room(block_state *b, struct err *why)
{
    if (b->stacks)
        return 0;
    void *p = mmap(nullptr, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *s = mmap(nullptr, MAX_SHARED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || s == MAP_FAILED)
        return err_nomem(why, "emulated device");
    b->shadows = (shadow *)calloc(MAX_SHARED / 4, sizeof *b->shadows);
    if (!b->shadows)
        return err_nomem(why, "emulated device");
    b->stacks = (uint8_t *)p;
    b->shared = (uint8_t *)s;
    return 0;
}

int emulated_run(struct gpu *g, const char *name, const emulated_shape &shape, const std::function<void()> &kernel,
                 struct err *why)
{
    const dim3 grid = shape.grid;
    std::lock_guard<std::mutex> guard(m.lock);
    if (make_room(&m, why) < 0)
        return -1;
    for (unsigned b = 1; shape.together && b < grid.x; b++)
        if (make_room(&resting[b], why) < 0)
            return -1;
    m.gpu = g;
    m.name = name;
    m.kernel = &kernel;
    m.shared_size = shape.shared;
    m.n_blocks = grid.x * grid.y * grid.z;
    m.together = shape.together;
    if (shape.together)
        blocks_begin();
    m.error[0] = '\0';
    checking = g->debug_sync;
    if (shape.together)
        run_together((int)grid.x, shape.threads);
    for (unsigned z = 0; !shape.together && z < grid.z && !m.error[0]; z++)
        for (unsigned y = 0; y < grid.y && !m.error[0]; y++)
            for (unsigned x = 0; x < grid.x && !m.error[0]; x++)
                run_block(dim3(x, y, z), grid, shape.threads);
    checking = false;
    return m.error[0] ? err_set(why, ERR_DEVICE, "%s", m.error) : 0;
}

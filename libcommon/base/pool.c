/* pool.c - run parallel loops on a fixed set of threads. */
#include "libcommon/base/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/numa.h"
#include "libcommon/base/thread.h"

/* A thread spins this long before it sleeps: longer than the gaps between the loops of one token (a
 * few microseconds), too short for a person or another process to notice. */
enum { SPIN_NS = 50000 };

/* A thread's slice of the loop: consecutive items, so that it reads memory in order.  left holds
 * the number of the loop in its upper half and the number of items not yet taken in its lower half.
 * An item is taken by decrementing left with compare-and-swap, by the owner or by a thread that has
 * finished its own items.  A thread that comes late sees the number of another loop and takes
 * nothing.  The other fields change only when all items are done.  Owners wait for the next loop on
 * their own slice, so one cache line brings everything. */
struct slice {
    _Alignas(64) _Atomic uint64_t left;
    int end;                                    /* the next item is end - left */
    void (*fn)(void *arg, int i, int thread);
    void *arg;
    void (*after)(const void *arg, int thread);
    const void *after_arg;
};

struct pool {
    int n_threads;
    pthread_t *threads;
    struct slice *slices;                       /* [n_threads] */
    uint32_t loop;
    _Alignas(64) _Atomic uint32_t epoch;        /* number of the loop; sleeping workers wait on it */
    _Atomic int sleepers;
    _Atomic int stop;
    _Alignas(64) _Atomic uint32_t done;         /* finished items; the sleeping caller waits on it */
    uint32_t total;
    _Atomic int caller_sleeps;
};

/* node: the processors that the thread stays on, if has_node */
struct pool_worker {
    struct pool *pool;
    int index, has_node;
    cpu_set_t node;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");       /* waits some tens of cycles; yield does not wait at all */
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

enum { LOOKS = 64 };        /* polls per reading of the clock, which costs more than a poll */

/* Take an item of a slice: its number, or -1. */
static int take(struct slice *slice)
{
    uint64_t left = atomic_load_explicit(&slice->left, memory_order_acquire);
    while ((uint32_t)left)
        if (atomic_compare_exchange_weak_explicit(&slice->left, &left, left - 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return slice->end - (int)(uint32_t)left;
    return -1;
}

/* Run items of the current loop until none is left: first this thread's own, then those of
 * others. */
static void work(struct pool *p, int thread)
{
    void (*after)(const void *arg, int thread) = NULL;
    const void *after_arg = NULL;
    uint32_t n = 0;
    for (int i = 0; i < p->n_threads; i++) {
        struct slice *slice = &p->slices[(thread + i) % p->n_threads];
        for (int item; (item = take(slice)) >= 0; n++) {
            slice->fn(slice->arg, item, thread);
            after = slice->after;
            after_arg = slice->after_arg;
        }
    }
    if (n == 0)
        return;
    const uint32_t total = p->total;            /* may belong to another loop once our items are counted */
    if (atomic_fetch_add(&p->done, n) + n == total && thread && atomic_load(&p->caller_sleeps))
        futex_wake(&p->done);
    if (after)
        after(after_arg, thread);
}

/* Wait up to SPIN_NS for a loop other than `seen`: 1 when it comes. */
static int spin_for_loop(struct slice *slice, uint32_t seen)
{
    uint64_t until = clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < LOOKS; i++) {
            if (atomic_load_explicit(&slice->left, memory_order_acquire) >> 32 != seen)
                return 1;
            pause_cpu();
        }
    } while (clock_ns() < until);
    return 0;
}

static void *worker_main(void *arg)
{
    struct pool_worker w = *(struct pool_worker *)arg;
    struct pool *p = w.pool;
    struct slice *slice = &p->slices[w.index];
    free(arg);
    if (w.has_node)                     /* else, and if the system refuses, it runs anywhere */
        sched_setaffinity(0, sizeof w.node, &w.node);
    fesetenv(FE_DFL_ENV);               /* not the rounding of the thread that opened the pool */
    uint32_t seen = 0;
    for (;;) {
        if (!spin_for_loop(slice, seen)) {
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load(&p->epoch) == seen && !atomic_load(&p->stop))
                futex_wait(&p->epoch, seen);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        if (atomic_load(&p->stop))
            return NULL;
        uint32_t loop = (uint32_t)(atomic_load_explicit(&slice->left, memory_order_acquire) >> 32);
        if (loop != seen)
            work(p, w.index);
        seen = loop;
    }
}

/* Relative speed of a processor; 0: the system does not tell. */
static long cpu_capacity(const char *root, int cpu)
{
    char path[256], text[32] = "";
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/cpu_capacity", root ? root : "", cpu);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 ? strtol(text, NULL, 10) : 0;
}

int pool_big_cpus(const cpu_set_t *set, const char *root)
{
    long capacity[CPU_SETSIZE] = { 0 }, most = 0;
    int n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set)) {
            capacity[cpu] = cpu_capacity(root, cpu);
            if (capacity[cpu] <= 0)
                return CPU_COUNT(set);
            most = capacity[cpu] > most ? capacity[cpu] : most;
        }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        n += capacity[cpu] > 0 && capacity[cpu] >= most - most / 2;
    return n;
}

int pool_n_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return pool_big_cpus(&set, NULL);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

/* The nodes among which threads are divided; none if there is only one. */
static void read_nodes(struct numa *nodes, const char *root)
{
    cpu_set_t may;
    nodes->n = 0;
    if (sched_getaffinity(0, sizeof may, &may) == 0)
        numa_read(nodes, &may, root);
    nodes->n = nodes->n > 1 ? nodes->n : 0;
}

struct pool *pool_open(int n_threads, struct err *e) { return pool_open_at(n_threads, NULL, e); }

struct pool *pool_open_at(int n_threads, const char *root, struct err *e)
{
    struct numa nodes;
    if (n_threads == 0)
        n_threads = pool_n_cpus();
    if (n_threads < 1 || n_threads > 4096) {
        err_set(e, ERR_SHAPE, "%d threads asked for, expected 1 to 4096", n_threads);
        return NULL;
    }
    size_t size = (sizeof(struct pool) + 63) / 64 * 64;
    struct pool *p = aligned_alloc(64, size);
    if (!p) {
        err_nomem(e, "thread pool");
        return NULL;
    }
    *p = (struct pool){ .n_threads = 1 };
    p->threads = calloc((size_t)n_threads, sizeof *p->threads);
    p->slices = aligned_alloc(64, (size_t)n_threads * sizeof *p->slices);
    if (!p->threads || !p->slices)
        goto nomem;
    for (int i = 0; i < n_threads; i++)
        p->slices[i] = (struct slice){ 0 };
    read_nodes(&nodes, root);
    for (int i = 1; i < n_threads; i++) {
        struct pool_worker *w = malloc(sizeof *w);
        if (!w)
            goto nomem;
        *w = (struct pool_worker){ .pool = p, .index = i, .has_node = nodes.n > 0 };
        if (w->has_node)
            w->node = nodes.node[numa_node_of(&nodes, i, n_threads)].cpus;
        int rc = thread_start(&p->threads[i], worker_main, w);
        if (rc) {
            free(w);
            errno = rc;
            err_sys(e, "starting thread %d of %d", i + 1, n_threads);
            pool_close(p);
            return NULL;
        }
        p->n_threads = i + 1;
    }
    return p;
nomem:
    err_nomem(e, "thread pool");
    pool_close(p);
    return NULL;
}

static void wake_workers(struct pool *p)
{
    if (atomic_load(&p->sleepers))
        futex_wake(&p->epoch);
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, 1);
    /* with the old value a worker could still go to sleep, and pool_close() would wait forever */
    atomic_store(&p->epoch, p->loop + 1);
    wake_workers(p);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    free(p->threads);
    free(p->slices);
    free(p);
}

int pool_size(const struct pool *p) { return p->n_threads; }

/* Wait up to SPIN_NS for all items to be done: 1 if they are. */
static int spin_for_end(struct pool *p)
{
    uint64_t until = clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < LOOKS; i++) {
            if (atomic_load_explicit(&p->done, memory_order_acquire) == p->total)
                return 1;
            pause_cpu();
        }
    } while (clock_ns() < until);
    return 0;
}

void pool_run_after(struct pool *p, int n, void (*fn)(void *arg, int i, int thread), void *arg,
                    void (*after)(const void *arg, int thread), const void *after_arg)
{
    if (n <= 0)
        return;
    if (n == 1 || p->n_threads == 1) {
        for (int i = 0; i < n; i++)
            fn(arg, i, 0);
        if (after && p->n_threads > 1)
            after(after_arg, 0);
        return;
    }
    p->loop++;
    p->total = (uint32_t)n;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    for (int t = p->n_threads; t-- > 0; ) {
        struct slice *slice = &p->slices[t];
        const int begin = (int)((int64_t)n * t / p->n_threads);
        slice->end = (int)((int64_t)n * (t + 1) / p->n_threads);
        slice->fn = fn;
        slice->arg = arg;
        slice->after = after;
        slice->after_arg = after_arg;
        atomic_store_explicit(&slice->left, (uint64_t)p->loop << 32 | (uint32_t)(slice->end - begin),
                              memory_order_release);
    }
    atomic_store(&p->epoch, p->loop);
    wake_workers(p);
    work(p, 0);
    while (!spin_for_end(p)) {
        atomic_store(&p->caller_sleeps, 1);
        uint32_t done = atomic_load(&p->done);
        if (done != p->total)
            futex_wait(&p->done, done);
        atomic_store(&p->caller_sleeps, 0);
    }
}

void pool_run(struct pool *p, int n, void (*fn)(void *arg, int i, int thread), void *arg)
{
    pool_run_after(p, n, fn, arg, NULL, NULL);
}

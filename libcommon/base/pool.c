#include "libcommon/base/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libcommon/base/clock.h"

/* How long a thread looks for work before it sleeps: longer than the gaps between the loops of one token
 * (a few microseconds), shorter than anything a person or another process would notice. */
enum { SPIN_NS = 50000 };

/* state is the number of the current loop in its upper half and the items nobody has taken yet in its
 * lower half.  An item is taken by counting it down with compare-and-swap, so a thread that wakes late
 * sees another number and takes nothing; the caller never waits for a thread that has no item.
 * fn, arg and total belong to whoever holds an item: they only change when all items are done. */
struct pool {
    int n_threads;
    pthread_t *threads;
    void (*fn)(void *arg, int i, int thread);
    void *arg;
    int total;
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) _Atomic uint32_t epoch;        /* changes with every loop; workers sleep on it */
    _Atomic int sleepers;
    _Atomic int stop;
    _Alignas(64) _Atomic uint32_t done;         /* items finished; the caller sleeps on it */
    _Atomic int caller_sleeps;
};

struct worker {
    struct pool *pool;
    int index;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
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

/* Wait while *word is value, for SPIN_NS at most: 1 when it changed, 0 when the time is up.  The word is looked at after every
 * pause, the clock, which costs more, after every 64th. */
static int spin_while(_Atomic uint32_t *word, uint32_t value)
{
    uint64_t until = clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return 1;
            pause_cpu();
        }
    } while (clock_ns() < until);
    return 0;
}

/* Take and run items of the current loop until none is left. */
static void work(struct pool *p, int thread)
{
    uint64_t s = atomic_load_explicit(&p->state, memory_order_acquire);
    while ((uint32_t)s) {
        if (!atomic_compare_exchange_weak_explicit(&p->state, &s, s - 1, memory_order_acq_rel, memory_order_acquire))
            continue;
        int total = p->total;
        p->fn(p->arg, total - (int)(uint32_t)s, thread);
        uint32_t done = atomic_fetch_add(&p->done, 1) + 1;
        if (done == (uint32_t)total && atomic_load(&p->caller_sleeps))
            futex_wake(&p->done);
        s = atomic_load_explicit(&p->state, memory_order_acquire);
    }
}

static void *worker_main(void *arg)
{
    struct worker w = *(struct worker *)arg;
    struct pool *p = w.pool;
    free(arg);
    uint32_t seen = 0;
    for (;;) {
        if (!spin_while(&p->epoch, seen)) {
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load_explicit(&p->epoch, memory_order_acquire) == seen)
                futex_wait(&p->epoch, seen);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        seen = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (atomic_load(&p->stop))
            return NULL;
        work(p, w.index);
    }
}

int pool_n_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

struct pool *pool_open(int n_threads, struct err *e)
{
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
    if (!p->threads)
        goto nomem;
    for (int i = 1; i < n_threads; i++) {
        struct worker *w = malloc(sizeof *w);
        if (!w)
            goto nomem;
        *w = (struct worker){ p, i };
        int rc = pthread_create(&p->threads[i], NULL, worker_main, w);
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
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleepers))
        futex_wake(&p->epoch);
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, 1);
    wake_workers(p);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    free(p->threads);
    free(p);
}

int pool_size(const struct pool *p) { return p->n_threads; }

void pool_run(struct pool *p, int n, void (*fn)(void *arg, int i, int thread), void *arg)
{
    if (n <= 0)
        return;
    if (n == 1 || p->n_threads == 1) {
        for (int i = 0; i < n; i++)
            fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->total = n;
    atomic_store(&p->done, 0);
    uint64_t s = atomic_load_explicit(&p->state, memory_order_relaxed);
    atomic_store_explicit(&p->state, ((s >> 32) + 1) << 32 | (uint32_t)n, memory_order_release);
    wake_workers(p);
    work(p, 0);
    uint32_t done;
    while ((done = atomic_load(&p->done)) != (uint32_t)n) {
        if (spin_while(&p->done, done))
            continue;
        atomic_store(&p->caller_sleeps, 1);
        if ((done = atomic_load(&p->done)) != (uint32_t)n)
            futex_wait(&p->done, done);
        atomic_store(&p->caller_sleeps, 0);
    }
}

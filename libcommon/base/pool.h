/* pool.h - a fixed set of threads that run one parallel loop at a time.
 *
 * On a machine with several NUMA nodes each thread but the caller stays on one of them (numa.h),
 * and since it begins with the same part of every loop, it finds the pages of its part there.
 *
 * The caller is thread 0.  Workers spin for some microseconds after a loop before they sleep, so
 * the loops of one token follow each other without system calls, and an idle program uses no
 * processor time. */
#ifndef ZSE_BASE_POOL_H
#define ZSE_BASE_POOL_H

#include <sched.h>

#include "libcommon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pool;

/* n_threads >= 1 includes the caller; 0 means pool_n_cpus(). */
struct pool *pool_open(int n_threads, struct err *e);
/* The same with the nodes of the system folder below `root`; NULL: "/". */
struct pool *pool_open_at(int n_threads, const char *root, struct err *e);
void pool_close(struct pool *p);            /* NULL is fine */
int pool_size(const struct pool *p);
/* The number of processors in this process's affinity mask, without slow ones: see
 * pool_big_cpus(). */
int pool_n_cpus(void);
/* The number of processors of `set` that have at least half the capacity of its fastest one.  The
 * slow cores of big.LITTLE do not count, because every loop would wait for them.  Capacities are in
 * ROOT/sys/devices/system/cpu/cpuN/cpu_capacity (root NULL: "/"); if one is missing, all of set
 * count.  The kernel puts busy threads on the fast processors. */
int pool_big_cpus(const cpu_set_t *set, const char *root);

/* Run fn(arg, i, thread) for every i in [0, n), each exactly once, thread in [0, pool_size);
 * returns when all are done.  Each thread begins with consecutive items of its own, then helps
 * others, so an item's result must not depend on its thread.  Calls must not nest and must come
 * from one thread at a time. */
void pool_run(struct pool *p, int n, void (*fn)(void *arg, int i, int thread), void *arg);
/* Like pool_run(); then each thread that ran an item calls after(after_arg, thread) once it finds
 * no more items, perhaps while later loops run.  The data that after() reads must not change and
 * must live until pool_close.  Meant for prefetching while other threads still work. */
void pool_run_after(struct pool *p, int n, void (*fn)(void *arg, int i, int thread), void *arg,
                    void (*after)(const void *arg, int thread), const void *after_arg);

#ifdef __cplusplus
}
#endif
#endif

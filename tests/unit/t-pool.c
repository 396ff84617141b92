/* t-pool.c - run every item exactly once, on every number of threads, with loops so small and so
 * many that threads come late, fall asleep and wake. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/numa.h"
#include "libcommon/base/pool.h"
#include "libcommon/base/rng.h"

enum { MOST = 4, ITEMS = 3000 };

struct counts {
    unsigned char seen[ITEMS];                          /* written by one thread each: TSan sees a second one */
    int n, pool_size;
    atomic_int bad;
};

static void count(void *arg, int i, int thread)
{
    struct counts *c = arg;
    if (i < 0 || i >= c->n || thread < 0 || thread >= c->pool_size)
        atomic_fetch_add(&c->bad, 1);
    else
        c->seen[i]++;
}

static void run_once(struct pool *p, struct counts *c, int n)
{
    memset(c->seen, 0, (size_t)n);
    c->n = n;
    pool_run(p, n, count, c);
    for (int i = 0; i < n; i++)
        if (c->seen[i] != 1)
            fail_msg("%d threads, %d items: item %d ran %d times", c->pool_size, n, i, c->seen[i]);
    assert_int_equal(atomic_load(&c->bad), 0);
}

static struct pool *open_pool(int n)
{
    struct err e;
    struct pool *p = pool_open(n, &e);
    if (!p)
        fail_msg("%s", e.msg);
    assert_int_equal(pool_size(p), n);
    return p;
}

static void every_item_once(void **state)
{
    (void)state;
    static const int sizes[] = { 0, 1, 2, 3, 4, 5, 17, 100, ITEMS };
    static struct counts c;
    for (int n = 1; n <= MOST; n++) {
        struct pool *p = open_pool(n);
        c.pool_size = n;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            run_once(p, &c, sizes[i]);
        pool_close(p);
    }
}

static void many_tiny_loops_do_every_item_once(void **state)
{
    (void)state;
    static struct counts c;
    struct rng r = { 1 };
    for (int n = 2; n <= MOST; n++) {
        struct pool *p = open_pool(n);
        c.pool_size = n;
        for (int i = 0; i < 5000; i++)
            run_once(p, &c, 1 + (int)(rng_double(&r) * 6));
        pool_close(p);
    }
}

/* Pauses around the time after which workers sleep. */
static void loops_with_pauses_do_every_item_once(void **state)
{
    (void)state;
    static struct counts c;
    struct rng r = { 2 };
    struct pool *p = open_pool(3);
    c.pool_size = 3;
    for (int i = 0; i < 300; i++) {
        run_once(p, &c, 2 + i % 9);
        nanosleep(&(struct timespec){ 0, (long)(rng_double(&r) * 200000) }, NULL);
    }
    pool_close(p);
}

/* Data written by an item is visible to the caller after the loop, and to every item of the
 * next. */
struct chain { int n; int64_t a[64], b[64]; };
static void sum_all(void *arg, int i, int thread)
{
    struct chain *c = arg;
    (void)thread;
    int64_t sum = i;
    for (int j = 0; j < c->n; j++)
        sum += c->a[j];
    c->b[i] = sum & 0xffffff;
}

static void loops_see_each_other(void **state)
{
    (void)state;
    struct chain c = { .n = 64 }, d = { .n = 64 };
    struct pool *p = open_pool(MOST);
    for (int i = 0; i < 1000; i++) {
        pool_run(p, 64, sum_all, &c);
        memcpy(c.a, c.b, sizeof c.a);
        for (int j = 0; j < 64; j++)
            sum_all(&d, j, 0);
        memcpy(d.a, d.b, sizeof d.a);
    }
    assert_memory_equal(c.a, d.a, sizeof c.a);
    pool_close(p);
}

static void slow_items(void *arg, int i, int thread)
{
    (void)thread;
    nanosleep(&(struct timespec){ 0, i == 0 ? 3000000 : 200000 }, NULL);
    atomic_fetch_add((atomic_int *)arg, 1);
}

/* The caller runs out of items long before a worker is done.  It has to sleep, and the worker has
 * to wake it. */
static void a_sleeping_caller_is_woken(void **state)
{
    (void)state;
    struct pool *p = open_pool(2);
    for (int i = 0; i < 20; i++) {
        atomic_int done = 0;
        pool_run(p, 3, slow_items, &done);
        assert_int_equal(atomic_load(&done), 3);
    }
    pool_close(p);
}

/* Far more threads than processors, items that are preempted or take long at random, loops that
 * follow at once: no item is lost and no thread hangs. */
static void uneven(void *arg, int i, int thread)
{
    count(arg, i, thread);
    uint32_t h = (uint32_t)i * 2654435761u;
    if (h % 7 == 0)
        sched_yield();
    for (volatile uint32_t j = 0; j < h >> 22; j++) { }
}

static void more_threads_than_processors(void **state)
{
    (void)state;
    static struct counts c;
    struct rng r = { 3 };
    for (int n = 8; n <= 32; n += 12) {
        struct pool *p = open_pool(n);
        c.pool_size = n;
        for (int i = 0; i < 400; i++) {
            c.n = 2 + (int)(rng_double(&r) * (i % 3 ? 10 : 200));
            memset(c.seen, 0, (size_t)c.n);
            pool_run(p, c.n, uneven, &c);
            for (int j = 0; j < c.n; j++)
                assert_int_equal(c.seen[j], 1);
        }
        assert_int_equal(atomic_load(&c.bad), 0);
        pool_close(p);
    }
}

/* Two pools take turns, and do not affect each other. */
static void two_pools_do_not_affect_each_other(void **state)
{
    (void)state;
    static struct counts c[2];
    struct pool *p[2] = { open_pool(3), open_pool(2) };
    c[0].pool_size = 3, c[1].pool_size = 2;
    for (int i = 0; i < 2000; i++)
        run_once(p[i % 2], &c[i % 2], 1 + i % 11);
    pool_close(p[0]);
    pool_close(p[1]);
}

/* With more than one thread, each thread that ran an item calls `after` once, after its last item
 * and at the latest when the pool is closed.  `of` marks the threads that ran an item; `early`
 * counts calls by threads that ran none. */
struct afters { atomic_int items, calls, of[MOST], early; };
static void item_of(void *arg, int i, int thread)
{
    struct afters *a = arg;
    (void)i;
    atomic_fetch_or(&a->of[thread], 1);
    atomic_fetch_add(&a->items, 1);
}
static void after_of(const void *arg, int thread)
{
    struct afters *a = (struct afters *)(uintptr_t)arg;
    if (!atomic_load(&a->of[thread]))
        atomic_fetch_add(&a->early, 1);
    atomic_fetch_add(&a->calls, 1);
}

static void each_thread_that_worked_is_called_after(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++)
        for (int items = 1; items < 40; items += 3) {
            static struct afters a;
            memset(&a, 0, sizeof a);
            struct pool *p = open_pool(n);
            pool_run_after(p, items, item_of, &a, after_of, &a);
            assert_int_equal(atomic_load(&a.items), items);
            pool_run(p, 0, item_of, &a);
            pool_close(p);
            int threads = 0;
            for (int t = 0; t < MOST; t++)
                threads += atomic_load(&a.of[t]);
            assert_int_equal(atomic_load(&a.calls), n == 1 ? 0 : threads);
            assert_int_equal(atomic_load(&a.early), 0);
        }
}

static void pools_refuse_bad_numbers_of_threads(void **state)
{
    (void)state;
    struct err e = { 0 };
    assert_true(pool_n_cpus() >= 1);
    assert_null(pool_open(-1, &e));
    assert_int_equal(e.code, ERR_SHAPE);
    assert_null(pool_open(5000, &e));
    pool_close(NULL);
    struct pool *p = pool_open(0, &e);
    assert_int_equal(pool_size(p), pool_n_cpus());
    pool_close(p);
    for (int i = 0; i < 50; i++)                        /* closed before the workers have started */
        pool_close(open_pool(MOST));
}

/* ---- NUMA nodes ---- */

static const char *const folders[] = { "sys", "sys/devices", "sys/devices/system", "sys/devices/system/node" };

/* Write lists of processors of nodes 0, 1 ..; NULL: the node is not there. */
static void make_nodes(const char *root, const char *const *lists, int n)
{
    char path[300];
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        mkdir(path, 0700);
    }
    snprintf(path, sizeof path, "%s/%s/online", root, folders[3]);
    FILE *online = fopen(path, "w");
    assert_non_null(online);
    fprintf(online, "0-%d\n", n - 1);
    fclose(online);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s/node%d", root, folders[3], i);
        if (lists[i])
            mkdir(path, 0700);
        strcat(path, "/cpulist");
        FILE *f = lists[i] ? fopen(path, "w") : NULL;
        if (f) {
            fprintf(f, "%s\n", lists[i]);
            fclose(f);
        }
    }
}

static void remove_nodes(const char *root, int n)
{
    char path[300];
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s/node%d/cpulist", root, folders[3], i);
        unlink(path);
        *strrchr(path, '/') = '\0';
        rmdir(path);
    }
    snprintf(path, sizeof path, "%s/%s/online", root, folders[3]);
    unlink(path);
    for (int i = 3; i >= 0; i--) {
        snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        rmdir(path);
    }
    rmdir(root);
}

/* Nodes without processors, or without any that the process may use, do not count. */
static void nodes_are_read(void **state)
{
    (void)state;
    static const char *const lists[] = { "0-2,8", NULL, "", "4-7", "16" };
    char root[] = "/tmp/t-pool-XXXXXX";
    struct numa n;
    cpu_set_t may;
    assert_non_null(mkdtemp(root));
    make_nodes(root, lists, 5);
    CPU_ZERO(&may);
    for (int i = 0; i < 10; i++)
        CPU_SET(i, &may);
    CPU_CLR(1, &may);
    numa_read(&n, &may, root);
    assert_int_equal(n.n, 2);
    assert_int_equal(n.node[0].id, 0);
    assert_int_equal(n.node[1].id, 3);
    assert_int_equal(CPU_COUNT(&n.node[0].cpus), 3);    /* 0, 2, 8 */
    assert_true(CPU_ISSET(8, &n.node[0].cpus) && !CPU_ISSET(1, &n.node[0].cpus));
    assert_int_equal(CPU_COUNT(&n.node[1].cpus), 4);
    static const int of7[] = { 0, 0, 0, 1, 1, 1, 1 }, of3[] = { 0, 1, 1 };
    for (int i = 0; i < 7; i++)
        assert_int_equal(numa_node_of(&n, i, 7), of7[i]);
    for (int i = 0; i < 3; i++)
        assert_int_equal(numa_node_of(&n, i, 3), of3[i]);
    remove_nodes(root, 5);
    numa_read(&n, &may, "/nowhere");
    assert_int_equal(n.n, 0);
}

struct places { cpu_set_t of[2]; atomic_int arrived; };

/* Both threads arrive before any leaves, so each runs one item. */
static void note_place(void *arg, int i, int thread)
{
    struct places *p = arg;
    (void)i;
    sched_getaffinity(0, sizeof p->of[thread], &p->of[thread]);
    atomic_fetch_add(&p->arrived, 1);
    while (atomic_load(&p->arrived) < 2)
        sched_yield();
}

/* The second of two threads stays on the second of two nodes; the caller's processors do not
 * change, and with one node no thread's do. */
static void threads_stay_on_nodes(void **state)
{
    (void)state;
    char root[] = "/tmp/t-pool-XXXXXX", list[2][16];
    const char *const lists[] = { list[0], list[1] };
    cpu_set_t may;
    int cpu[2], n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof may, &may), 0);
    if (CPU_COUNT(&may) < 2)
        skip();
    for (int i = 0; n < 2; i++)
        if (CPU_ISSET(i, &may))
            cpu[n++] = i;
    assert_non_null(mkdtemp(root));
    for (int n_nodes = 1; n_nodes <= 2; n_nodes++) {
        struct places p = { .arrived = 0 };
        struct err e;
        for (int i = 0; i < 2; i++)
            snprintf(list[i], sizeof list[i], "%d", cpu[i]);
        make_nodes(root, lists, n_nodes);
        struct pool *pool = pool_open_at(2, root, &e);
        assert_non_null(pool);
        pool_run(pool, 2, note_place, &p);
        pool_close(pool);
        assert_true(CPU_EQUAL(&p.of[0], &may));
        if (n_nodes == 1)
            assert_true(CPU_EQUAL(&p.of[1], &may));
        else
            assert_true(CPU_COUNT(&p.of[1]) == 1 && CPU_ISSET(cpu[1], &p.of[1]));
    }
    remove_nodes(root, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_refuse_bad_numbers_of_threads), cmocka_unit_test(every_item_once),
        cmocka_unit_test(many_tiny_loops_do_every_item_once),
        cmocka_unit_test(loops_with_pauses_do_every_item_once),
        cmocka_unit_test(loops_see_each_other), cmocka_unit_test(a_sleeping_caller_is_woken),
        cmocka_unit_test(more_threads_than_processors),
        cmocka_unit_test(nodes_are_read), cmocka_unit_test(threads_stay_on_nodes),
        cmocka_unit_test(two_pools_do_not_affect_each_other), cmocka_unit_test(each_thread_that_worked_is_called_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* t-gpu-grid.c - launches whose blocks run at the same time: they exchange values over several
 * barriers, also from a graph, or send them to each other; and the faults that the emulation must
 * report. */
#include "gpu/rt/emulated.h"
#include "tests/gpu/grid.h"
#include "tests/lib/gpu.h"

#pragma weak emulated_fail              /* a GPU neither injects faults nor reports races */
#pragma weak emulated_watch

enum { STEPS = 7, MOST = 256, T = GRID_THREADS };

/* Values for n blocks on the device, with a spare word at the end. */
static struct grid_exchange begin(int n, uint32_t *x)
{
    const uint32_t zero[GPU_GRID_WORDS + 1] = { 0 };
    for (int i = 0; i < 2 * n * T + 1; i++)
        x[i] = (uint32_t)i * 2654435761u;
    unsigned *words = to_device(zero, sizeof zero);
    return (struct grid_exchange){ .x = to_device(x, ((size_t)2 * n * T + 1) * 4), .total = to_device(x, T * 4),
                                   .arrived = words, .ticket = words + GPU_GRID_WORDS, .n_steps = STEPS };
}

static void end(struct grid_exchange *o)
{
    gpu_free(device, o->x);
    gpu_free(device, o->total);
    gpu_free(device, o->arrived);
}

/* The values after all steps, in place, and their total. */
static void expect(int n, uint32_t *x, uint32_t *total)
{
    for (int step = 0; step < STEPS; step++) {
        const uint32_t *from = x + (size_t)(step & 1) * n * T;
        uint32_t *to = x + (size_t)(~step & 1) * n * T;
        for (int b = 0; b < n; b++)
            for (int t = 0; t < T; t++) {
                uint32_t sum = (uint32_t)step + 1;
                for (int i = 0; i < n; i++)
                    sum += (uint32_t)(i + b + 2) * from[i * T + (t + 1) % T];
                to[b * T + t] = sum;
            }
    }
    for (int t = 0; t < T; t++) {
        total[t] = 0;
        for (int i = 0; i < n; i++)
            total[t] += x[((STEPS & 1) * n + i) * T + t];
    }
}

static void get(void *to, const void *d, size_t n)
{
    void *p = gpu_pinned(device, n, "test", &why);
    assert_non_null(p);
    OK(gpu_download(device, GPU_COMPUTE, p, d, n, &why));
    OK(gpu_sync(device, GPU_COMPUTE, &why));
    memcpy(to, p, n);
    gpu_pinned_free(device, p);
}

/* Number of values that differ from what n blocks compute from x. */
static int differences(const struct grid_exchange *o, int n, uint32_t *x)
{
    static uint32_t got[2 * MOST * T];
    uint32_t total[T], want[T], words[GPU_GRID_WORDS + 1];
    int bad = 0;
    expect(n, x, want);
    get(got, o->x, (size_t)2 * n * T * 4);
    get(total, o->total, sizeof total);
    get(words, o->arrived, sizeof words);
    for (int i = 0; i < 2 * n * T; i++)
        bad += got[i] != x[i];
    for (int t = 0; t < T; t++)
        bad += total[t] != want[t];
    for (int i = 0; i <= GPU_GRID_WORDS; i++)
        bad += words[i] != 0;
    return bad;
}

static size_t shared_of(int n) { return ((size_t)n * T + 4) * 4; }

static int usable(void)
{
    if (grid_blocks(device, T, shared_of(1)))
        return 1;
    printf("# SKIP: the device does not run all blocks of a launch at the same time\n");
    return 0;
}

/* Opens the device again, with or without checks. */
static void reopen(int debug_sync)
{
    gpu_close(device);
    device = gpu_open(0, debug_sync, &why);
    if (!device)
        fail_msg("%s", why.msg);
}

static void exchanges(void **state)
{
    (void)state;
    static uint32_t x[2 * MOST * T + 1];
    if (!usable())
        return;
    for (int checked = 0; checked < 2; checked++) {
        reopen(checked);
        const int counts[] = { 1, 2, 3, 4, gpu_n_sms(device) };
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            const int n = counts[i];
            if (n > MOST || grid_blocks(device, T, shared_of(n)) < n)
                continue;
            struct grid_exchange o = begin(n, x);
            OK(grid_exchange(device, &o, n, 1, GRID_RIGHT, &why));
            assert_int_equal(differences(&o, n, x), 0);
            end(&o);
        }
    }
}

/* The second launch finds the counters as the first one did. */
static void graphs(void **state)
{
    (void)state;
    uint32_t x[2 * 4 * T + 1], once[2 * 4 * T];
    if (!usable())
        return;
    reopen(0);
    struct grid_exchange o = begin(4, x);
    OK(gpu_graph_begin(device, &why));
    OK(grid_exchange(device, &o, 4, 1, GRID_RIGHT, &why));
    struct gpu_graph *graph = gpu_graph_end(device, &why);
    assert_non_null(graph);
    get(once, o.x, sizeof once);
    assert_memory_equal(once, x, sizeof once);          /* nothing has run yet */
    for (int i = 0; i < 2; i++) {
        OK(gpu_graph_launch(device, graph, &why));
        assert_int_equal(differences(&o, 4, x), 0);
    }
    gpu_graph_close(device, graph);
    end(&o);
}

static int n_watched;
static void watch(void *user, const char *kernel, unsigned blocks, int threads, size_t shared)
{
    (void)user;
    n_watched += strcmp(kernel, "exchange") == 0 && blocks == 4 && threads == T && shared == shared_of(4);
}

/* Runs a kernel with 4 blocks and returns its error, "" if there is none.  *bad: differences(). */
static const char *run(int debug_sync, int n, int together, enum grid_fault fault, int *bad)
{
    static struct err e;
    uint32_t x[2 * 4 * T + 1];
    reopen(debug_sync);
    struct grid_exchange o = begin(n, x);
    e.msg[0] = '\0';
    if (grid_exchange(device, &o, n, together, fault, &e) == 0 && gpu_sync(device, GPU_COMPUTE, &e) == 0 && bad)
        *bad = differences(&o, n, x);
    return e.msg;
}

static void faults(void **state)
{
    (void)state;
    static const struct { enum grid_fault fault; const char *error; int unchecked; } all[] = {
        { GRID_RIGHT,         "", 0 },
        { GRID_NO_WAIT,       "race between blocks: read of byte", 0 },
        { GRID_WAITS_EARLY,   "race between blocks: read of byte", 0 },
        { GRID_LATE_WRITE,    "race between blocks: read of byte", 0 },
        { GRID_EARLY_COPY,    "race between blocks: write of byte", 0 },
        { GRID_OVERWRITES,    "race between blocks: ", 0 },
        { GRID_NEVER_ARRIVES, "threads of block 0 wait in grid_wait; block 3 has made 1 of 2 arrivals", 1 },
        { GRID_RESETS,        "race between blocks: write of byte", 0 },
        { GRID_NO_BARRIER,    "of shared memory, which no thread has written", 0 },
        { GRID_UNWRITTEN,     "block (1, 0, 0), thread 63: read of byte 0 of shared memory, which no thread has written", 0 },
        { GRID_BEYOND,        "write of 4 bytes at 2052 of an allocation of 2052 bytes", 0 },
    };
    if (!emulated_fail)
        return;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int checked = 0; checked < 2; checked++) {
            if (!checked && !all[i].unchecked)
                continue;
            const char *error = run(checked, 4, 1, all[i].fault, NULL);
            if (!strstr(error, all[i].error) || (all[i].error[0] && !strstr(error, "kernel exchange")) ||
                (!all[i].error[0] && error[0]))
                fail_msg("fault %d, %schecked: '%s', expected '%s'", (int)all[i].fault, checked ? "" : "un", error,
                         all[i].error);
        }
    assert_non_null(strstr(run(0, 4, 1, GRID_RESETS, NULL), "wait in grid_wait; all blocks have made 7 arrivals"));
    /* without checks blocks take turns in such an order that the numbers are wrong */
    int bad = 0;
    assert_string_equal(run(0, 4, 1, GRID_NO_WAIT, &bad), "");
    assert_int_not_equal(bad, 0);
}

static void refusals(void **state)
{
    (void)state;
    int bad = -1;
    if (!emulated_fail)
        return;
    for (int checked = 0; checked < 2; checked++) {
        const char *error = run(checked, 4, 0, GRID_RIGHT, NULL);
        if (!strstr(error, "kernel exchange, block (0, 0, 0), thread 0: grid_arrive in a launch of 4 blocks that was not made by launch_together"))
            fail_msg("'%s'", error);
        assert_string_equal(run(checked, 1, 0, GRID_RIGHT, &bad), "");         /* one block has none to wait for */
        assert_int_equal(bad, 0);
    }
    assert_int_equal(grid_blocks(device, T, 227 << 10), 4);
    assert_int_equal(grid_blocks(device, T, (227 << 10) + 1), 0);
    assert_int_equal(grid_blocks(device, 1025, 0), 0);
    uint32_t x[2 * 4 * T + 1];
    struct grid_exchange o = begin(4, x);
    if (grid_exchange(device, &o, 5, 1, GRID_RIGHT, &why) == 0 || !strstr(why.msg, "kernel exchange: 5 blocks of 64 threads"))
        fail_msg("'%s'", why.msg);
    OK(grid_exchange(device, &o, 4, 1, GRID_RIGHT, &why));                      /* the device still works */
    assert_int_equal(differences(&o, 4, x), 0);

    emulated_watch(watch, NULL);
    run(1, 4, 1, GRID_RIGHT, NULL);
    emulated_watch(NULL, NULL);
    assert_int_equal(n_watched, 1);
    emulated_fail("exchange", 1);
    assert_non_null(strstr(run(1, 4, 1, GRID_RIGHT, NULL), "exchange: a fault that a test asked for"));
    emulated_fail(NULL, 0);
}

/* Runs a kernel of n blocks twice, and returns its error, "" if there is none. */
static const char *relay(int debug_sync, int n, int published, enum relay_fault fault)
{
    static struct err e;
    const float zero[4 * T + GPU_GRID_WORDS] = { 0 };
    float sum[4 * T];
    reopen(debug_sync);
    float *const words = to_device(zero, sizeof zero);
    const struct grid_relay o = { to_device(zero, sizeof sum), words, (unsigned *)(words + 4 * T), STEPS, published };
    e.msg[0] = '\0';
    for (int i = 0; i < 2; i++) {
        /* the number of steps is odd: the next launch begins in phase 0 again */
        if (published || i == 0)
            OK(gpu_fill(device, GPU_COMPUTE, words, published ? 0 : 0xff, 4 * T * sizeof *words, &why));
        OK(gpu_fill(device, GPU_COMPUTE, o.arrived, 0, GPU_GRID_WORDS * sizeof *o.arrived, &why));
        if (grid_relay(device, &o, n, fault, &e) < 0 || gpu_sync(device, GPU_COMPUTE, &e) < 0)
            return e.msg;
    }
    get(sum, o.sum, (size_t)n * T * sizeof *sum);
    for (int b = 0; b < n; b++)
        for (int t = 0; t < T; t++) {
            const float want = (float)(STEPS * (STEPS - 1) / 2 * 1000 + STEPS * (100 * ((b + n - 1) % n) + t));
            if (!(sum[b * T + t] == want))
                fail_msg("block %d of %d, thread %d: %.9g, expected %.9g", b, n, t, (double)sum[b * T + t], (double)want);
        }
    gpu_free(device, o.sum);
    gpu_free(device, o.words);
    return "";
}

static void sends(void **state)
{
    (void)state;
    if (!usable())
        return;
    for (int checked = 0; checked < 2; checked++)
        for (int n = 1; n <= 4; n++)
            for (int published = 0; published < 2; published++)
                assert_string_equal(relay(checked, n, published, RELAY_RIGHT), "");
    if (!emulated_fail)
        return;
    static const struct { enum relay_fault fault; int published; const char *error; } all[] = {
        { RELAY_NOT_SENT, 0, "wait in grid_receive" },
        { RELAY_NOT_SENT, 1, "wait in grid_collect" },
        { RELAY_SENT_EARLY, 0, "grid_send of a float before the last one has been received" },
        { RELAY_READ_PLAINLY, 0, "race between blocks: " },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *error = relay(1, 4, all[i].published, all[i].fault);
        if (!strstr(error, all[i].error))
            fail_msg("fault %d, %s: '%s', expected '%s'", (int)all[i].fault, all[i].published ? "published" : "sent", error,
                     all[i].error);
    }
}

int main(void)
{
    if (!device_open())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges),
        cmocka_unit_test(graphs),
        cmocka_unit_test(faults),
        cmocka_unit_test(refusals),
        cmocka_unit_test(sends),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    gpu_close(device);
    return rc;
}

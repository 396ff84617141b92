/* t-gpu-ring.c - uploads through a ring of pinned buffers: every byte arrives, in order, from one
 * thread or several; a copy behind an event does not overwrite what kernels still read. */
#include <pthread.h>

#include "gpu/rt/ring.h"
#include "tests/lib/gpu.h"

enum { SIZE = 1 << 10, TOTAL = 10 * SIZE + 100 };

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    struct rng r = { seed };
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)below(&r, 256);
}

/* A device whose streams run late. */
static struct gpu *late(void)
{
    struct gpu *g = gpu_open(0, 0, &why);
    if (!g)
        fail_msg("%s", why.msg);
    return g;
}

static struct gpu_ring *ring_of(struct gpu *g, int n)
{
    struct gpu_ring *r = gpu_ring_open(g, n, SIZE, &why);
    if (!r)
        fail_msg("%s", why.msg);
    return r;
}

static void compare(struct gpu *g, const void *d, const uint8_t *want, size_t n)
{
    uint8_t *p = gpu_pinned(g, n, "test", &why);
    assert_non_null(p);
    OK(gpu_download(g, GPU_COPY, p, d, n, &why));
    OK(gpu_sync(g, GPU_COPY, &why));
    assert_memory_equal(p, want, n);
    gpu_pinned_free(g, p);
}

static void pieces(void **state)
{
    (void)state;
    struct gpu *g = late();
    uint8_t from[TOTAL], want[TOTAL], *d = gpu_alloc(g, TOTAL, "test", &why);
    struct gpu_ring_counts c;
    for (int n = 1; n < 4; n++) {
        struct gpu_ring *r = ring_of(g, n);
        assert_int_equal(gpu_ring_size(r), SIZE);
        fill(from, TOTAL, (uint64_t)n);
        memcpy(want, from, TOTAL);
        OK(gpu_ring_upload(r, d, from, TOTAL, &why));
        memset(from, 0, TOTAL);         /* the ring has its own copy */
        compare(g, d, want, TOTAL);
        void *p;
        const int i = gpu_ring_take(r, &p, &why);
        assert_in_range(i, 0, n - 1);
        OK(gpu_ring_send(r, i, d, 0, &why));
        gpu_ring_counts(r, &c);
        assert_int_equal(c.bytes, TOTAL);
        assert_int_equal(c.copies, 11);
        gpu_ring_close(r);
    }
    gpu_free(g, d);
    gpu_close(g);
}

/* Kernels read the old bytes of a slot after a copy of new bytes into it was queued behind their
 * event. */
static void behind_events(void **state)
{
    (void)state;
    struct gpu *g = late();
    struct gpu_ring *r = ring_of(g, 2);
    uint8_t bytes[3][SIZE], *slot = gpu_alloc(g, SIZE, "test", &why), *seen = gpu_alloc(g, 3 * SIZE, "test", &why);
    struct gpu_event *filled[3], *used[3];
    for (int i = 0; i < 3; i++) {
        filled[i] = gpu_event_open(g, &why);
        used[i] = gpu_event_open(g, &why);
        assert_true(filled[i] && used[i]);
        fill(bytes[i], SIZE, (uint64_t)i + 1);
        if (i)
            OK(gpu_event_wait(g, GPU_COPY, used[i - 1], &why));
        OK(gpu_ring_upload(r, slot, bytes[i], SIZE, &why));
        OK(gpu_event_record(g, GPU_COPY, filled[i], &why));
        OK(gpu_event_wait(g, GPU_COMPUTE, filled[i], &why));
        OK(gpu_copy(g, GPU_COMPUTE, seen + i * SIZE, slot, SIZE, &why));
        OK(gpu_event_record(g, GPU_COMPUTE, used[i], &why));
    }
    OK(gpu_sync(g, GPU_COMPUTE, &why));
    for (int i = 0; i < 3; i++) {
        compare(g, seen + i * SIZE, bytes[i], SIZE);
        gpu_event_close(g, filled[i]);
        gpu_event_close(g, used[i]);
    }
    gpu_ring_close(r);
    gpu_free(g, slot);
    gpu_free(g, seen);
    gpu_close(g);
}

struct part { struct gpu *g; struct gpu_ring *r; uint8_t *to; const uint8_t *from; int rc; };
static void *send_part(void *arg)
{
    struct part *p = arg;
    struct err e;
    p->rc = gpu_use(p->g, &e);
    for (int at = 0; p->rc == 0 && at < TOTAL; at += SIZE) {
        const size_t n = TOTAL - at < SIZE ? TOTAL - at : SIZE;
        void *b;
        const int i = gpu_ring_take(p->r, &b, &e);
        if (i >= 0)
            memcpy(b, p->from + at, n);
        p->rc = i < 0 ? -1 : gpu_ring_send(p->r, i, p->to + at, n, &e);
    }
    return NULL;
}

static void threads(void **state)
{
    (void)state;
    enum { N = 3 };
    struct gpu *g = late();
    struct gpu_ring *r = ring_of(g, 2);
    static uint8_t from[N][TOTAL];
    uint8_t *d = gpu_alloc(g, sizeof from, "test", &why);
    struct part part[N];
    pthread_t thread[N];
    fill(from[0], sizeof from, 9);
    for (int i = 0; i < N; i++) {
        part[i] = (struct part){ g, r, d + i * TOTAL, from[i], 0 };
        assert_int_equal(pthread_create(&thread[i], NULL, send_part, &part[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(part[i].rc, 0);
    }
    compare(g, d, from[0], sizeof from);
    gpu_ring_close(r);
    gpu_free(g, d);
    gpu_close(g);
}

/* A copy that the device refuses is an error, and its buffer is not lost. */
static void refused(void **state)
{
    (void)state;
    struct gpu *g = late();
    struct gpu_ring *r = ring_of(g, 1);
    uint8_t bytes[SIZE] = { 0 }, *d = gpu_alloc(g, SIZE, "test", &why);
    if (gpu_kind[0] == 'e')             /* a GPU would be lost */
        assert_int_equal(gpu_ring_upload(r, bytes, bytes, SIZE, &why), -1);
    OK(gpu_ring_upload(r, d, bytes, SIZE, &why));
    compare(g, d, bytes, SIZE);
    gpu_ring_close(r);
    gpu_free(g, d);
    gpu_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces),
        cmocka_unit_test(behind_events),
        cmocka_unit_test(threads),
        cmocka_unit_test(refused),
    };
    return device_usable() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}

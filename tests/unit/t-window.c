/* t-window.c - layers that pass through a window: the counts of published examples, every order of
 * strategies and slots against a model of what the slots hold, and windows that shrink. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/plan/layer_window.h"

/* The layers in the slots, and the number of uploads that have begun. */
struct device { int holds[WINDOW_SLOTS]; int uploads; };

static void upload_ahead(struct layer_window *w, struct device *d)
{
    int slot, used;
    for (int layer; (layer = window_ahead(w, &slot, &used)) >= 0; d->uploads++)
        d->holds[slot] = layer;
}

static void step(struct layer_window *w, struct device *d, int until)
{
    for (int i = w->first; i < until; i++) {
        int slot = window_need(w, i), used;
        if (slot == WINDOW_ABSENT) {
            if ((slot = window_take(w, i, &used)) < 0) {
                window_restart(w);
                memset(d->holds, 0xff, sizeof d->holds);
                assert_true((slot = window_take(w, i, &used)) >= 0);
            }
            d->holds[slot] = i;
            d->uploads++;
        }
        upload_ahead(w, d);
        if (slot != WINDOW_KEPT)
            assert_int_equal(d->holds[slot], i);        /* no upload ahead took the slot in use */
        window_done(w, i);
        upload_ahead(w, d);
    }
}

static void begin(struct layer_window *w, struct device *d, int first, int n, struct window_shape s)
{
    assert_int_equal(window_open(w, first, n, s), 0);
    *d = (struct device){ .uploads = 0 };
    upload_ahead(w, d);
}

static void sizes(void **state)
{
    (void)state;
    /* 64 layers of 65.5 GB together beside 8 GB of 84.7; layers of 108.5 MB in nine tenths of
     * 73.46 GB */
    assert_int_equal(window_size(84.7e9, 8e9, 65.5e9 / 64, 4), 74);
    assert_int_equal(window_size(73.46e9 * 0.9, 0, 108.5e6, 4), 609);
    assert_int_equal(window_size(10e9, 8e9, 1e9, 4), 4);
    assert_int_equal(window_size(8e9, 10e9, 1e9, 0), 0);
    assert_int_equal(window_size(8e9, 0, 0, 0), 0);
}

static void counts(void **state)
{
    (void)state;
    struct layer_window w;
    struct device d;
    /* 32 layers through 4 slots: 28 evictions in the first pass, 32 in each later one */
    begin(&w, &d, 0, 32, window_shape_of(4, 3, WINDOW_SEQUENTIAL));
    step(&w, &d, 32);
    assert_int_equal(w.counts.evictions, 28);
    assert_int_equal(w.counts.hits, 32);
    step(&w, &d, 32);
    assert_int_equal(w.counts.evictions, 60);
    window_close(&w);
    /* without uploads ahead nothing hits */
    begin(&w, &d, 0, 32, window_shape_of(4, 0, WINDOW_SEQUENTIAL));
    step(&w, &d, 32);
    assert_int_equal(w.counts.evictions, 28);
    assert_int_equal(w.counts.hits, 0);
    assert_int_equal(w.counts.uses, 32);
    window_close(&w);
    /* 10 of 64 stay here: a step uploads 54 */
    begin(&w, &d, 0, 64, window_shape_of(13, 2, WINDOW_ADAPTIVE));
    assert_int_equal(w.shape.n_kept, 10);
    assert_int_equal(w.shape.n_slots, 3);
    for (int i = 0; i < 5; i++)
        step(&w, &d, 64);
    assert_int_equal(w.counts.uses, 5 * 54);
    assert_int_equal(w.counts.evictions, 5 * 54 - 3);
    assert_int_equal(d.uploads, 5 * 54 + 2);
    window_close(&w);
}

/* The layers that stay are spread: between two of them there are as many others as anywhere, give
 * or take one. */
static void spread(void **state)
{
    (void)state;
    struct layer_window w;
    struct device d;
    begin(&w, &d, 0, 64, window_shape_of(13, 2, WINDOW_ADAPTIVE));
    int last = -1, n = 0;
    for (int i = 0; i < 64; i++)
        if (w.place[i] == WINDOW_KEPT) {
            assert_in_range(i - last, 6, 7);
            last = i;
            n++;
        }
    assert_int_equal(n, 10);
    window_close(&w);
}

/* A window that shrinks to one slot and grows again has the same layers and slots as at first, in
 * the opposite order. */
static void grows(void **state)
{
    (void)state;
    struct layer_window w;
    struct device d;
    int lost[12], n = 0, kept;
    const struct window_shape whole = window_shape_of(12, 2, WINDOW_ADAPTIVE);
    begin(&w, &d, 0, 64, whole);
    for (;; n++) {
        window_restart(&w);
        if (window_shrink(&w, &lost[n]) != 0)
            break;
    }
    assert_int_equal(n, 11);
    while (n-- > 0) {
        assert_false(window_is_whole(&w));
        window_restart(&w);
        assert_int_equal(window_grow(&w, &kept), 0);
        assert_int_equal(kept, lost[n]);
        memset(d.holds, 0xff, sizeof d.holds);
        upload_ahead(&w, &d);
        step(&w, &d, 64);
    }
    assert_true(window_is_whole(&w));
    window_restart(&w);
    assert_int_equal(window_grow(&w, &kept), -1);
    assert_memory_equal(&w.shape, &whole, sizeof whole);
    window_close(&w);
}

/* Steps that end early, windows that shrink, any number of layers: a layer is always in its slot
 * when it is used, and no layer is used twice from one upload, unless all have a slot. */
static void any(void **state)
{
    (void)state;
    struct rng r = { 7 };
    for (int i = 0; i < 400; i++) {
        const int first = (int)(rng_double(&r) * 5), n = first + 1 + (int)(rng_double(&r) * 20),
                  room = 1 + (int)(rng_double(&r) * (n - first)), prefetch = (int)(rng_double(&r) * 5);
        struct layer_window w;
        struct device d;
        begin(&w, &d, first, n, window_shape_of(room, prefetch, i % 2 ? WINDOW_SEQUENTIAL : WINDOW_ADAPTIVE));
        assert_int_equal(w.shape.n_kept + w.shape.n_slots, room);
        for (int j = 0; j < 6; j++) {
            int kept;
            const uint64_t uses = w.counts.uses, streamed = (uint64_t)(n - first - w.shape.n_kept);
            step(&w, &d, j == 2 ? first + (int)(rng_double(&r) * (n - first)) : n);
            if (j == 1)
                assert_true(w.counts.uses - uses == (streamed <= (uint64_t)w.shape.n_slots ? 0 : streamed));
            if (j > 2 && rng_double(&r) < 0.5) {
                const int before = w.shape.n_kept + w.shape.n_slots;
                window_restart(&w);
                assert_int_equal(window_shrink(&w, &kept), before > 1 ? 0 : -1);
                assert_int_equal(w.shape.n_kept + w.shape.n_slots, before > 1 ? before - 1 : 1);
                memset(d.holds, 0xff, sizeof d.holds);
                upload_ahead(&w, &d);
            }
            if (j == 4 && rng_double(&r) < 0.5) {
                const int before = w.shape.n_kept + w.shape.n_slots;
                window_restart(&w);
                assert_int_equal(window_grow(&w, &kept), before < room ? 0 : -1);
                assert_int_equal(w.shape.n_kept + w.shape.n_slots, before < room ? before + 1 : room);
                memset(d.holds, 0xff, sizeof d.holds);
                upload_ahead(&w, &d);
            }
        }
        assert_true(w.counts.hits <= w.counts.uses && w.counts.evictions <= w.counts.uses);
        assert_true((uint64_t)d.uploads >= w.counts.uses);
        window_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(counts),
        cmocka_unit_test(spread),
        cmocka_unit_test(grows),
        cmocka_unit_test(any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

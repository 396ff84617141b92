/* t-timeline.c - simulated time: intervals of several resources against a count of small ticks, and
 * layers that pass through a window against figures that follow from their rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/plan/stream_time.h"
#include "libcommon/plan/timeline.h"

enum { TICKS = 4096 };

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * (1 + fabs(want))))
        fail_msg("got %.12g, expected %.12g", got, want);
}

/* Random work of whole ticks on two resources. */
static void intervals(void **state)
{
    (void)state;
    struct rng r = { 3 };
    for (int round = 0; round < 20; round++) {
        static char busy[2][TICKS];
        struct timeline t[2] = { { 0 }, { 0 } };
        int end[2] = { 0, 0 }, n[2] = { 0, 0 }, both = 0, until = 0;
        const int limit = (int)(rng_double(&r) * TICKS);
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < TICKS; i++)
                busy[k][i] = 0;
            for (;;) {
                const int gap = (int)(rng_double(&r) * 4) * (int)(rng_double(&r) * 20),
                          len = (int)(rng_double(&r) * 30);
                const int earliest = gap ? end[k] + gap : end[k] / 2, from = earliest > end[k] ? earliest : end[k];
                if (from + len >= TICKS)
                    break;
                for (int i = from; i < from + len; i++)
                    busy[k][i] = 1;
                n[k] += len;
                end[k] = from + len;
                near(timeline_add(&t[k], earliest, len), end[k]);
            }
            near(t[k].total, n[k]);
        }
        for (int i = 0; i < TICKS; i++) {
            both += busy[0][i] && busy[1][i];
            until += i < limit && busy[0][i];
        }
        near(timeline_both(&t[0], &t[1]), both);
        near(timeline_both(&t[1], &t[0]), both);
        near(timeline_until(&t[0], limit), until);
        timeline_release(&t[0]);
        timeline_release(&t[1]);
    }
}

static struct stream_times simulate(int n_layers, int window, int prefetch, enum window_strategy how, double upload_s,
                                    int n_steps)
{
    struct stream_times t;
    const struct stream_rates rates = { upload_s, 1 };
    assert_int_equal(stream_simulate(n_layers, window_shape_of(window, prefetch, how), &rates, n_steps, &t), 0);
    near(t.device_s, (double)n_layers * n_steps);
    assert_true(t.both_s <= t.link_s && t.both_s <= t.device_s && t.link_s <= t.seconds + 1e-9);
    assert_true(t.seconds <= t.serial_s + 1e-9 && t.counts.hits <= t.counts.uses);
    return t;
}

static void streams(void **state)
{
    (void)state;
    /* 32 layers through 4 slots: 28 evictions in the first pass, 32 in every later one */
    assert_int_equal(simulate(32, 4, 2, WINDOW_SEQUENTIAL, 1, 1).counts.evictions, 28);
    struct stream_times t = simulate(64, 4, 3, WINDOW_SEQUENTIAL, 1, 10);
    assert_int_equal(t.counts.evictions, 640 - 4);
    assert_true((double)t.counts.hits >= 0.95 * (double)t.counts.uses);
    /* a link as fast as the device, two slots: each works all the time once the first layer is
     * there */
    t = simulate(64, 2, 1, WINDOW_SEQUENTIAL, 1, 10);
    near(t.seconds, 641);
    near(t.both_s, 640);                 /* the last layer beside the next upload of the first */
    near(t.serial_s, 1280);
    /* one slot: they take turns */
    t = simulate(64, 1, 0, WINDOW_SEQUENTIAL, 1, 10);
    near(t.seconds, t.serial_s);
    near(t.both_s, 0);
    /* a slow link: the bytes decide, so the strategy that uploads fewer is faster */
    t = simulate(64, 32, 2, WINDOW_SEQUENTIAL, 8, 10);
    near(t.seconds, 64 * 10 * 8 + 1);
    const struct stream_times fewer = simulate(64, 32, 2, WINDOW_ADAPTIVE, 8, 10);
    assert_int_equal(fewer.counts.uses, (64 - 29) * 10);
    assert_true(fewer.seconds < 0.56 * t.seconds);
    /* a fast link costs nothing but the first upload */
    near(simulate(64, 2, 1, WINDOW_SEQUENTIAL, 0.25, 10).seconds, 640.25);
    /* all layers stay */
    t = simulate(8, 9, 0, WINDOW_ADAPTIVE, 5, 3);
    near(t.seconds, 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(intervals), cmocka_unit_test(streams) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

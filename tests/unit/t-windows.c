/* t-windows.c - sliding windows, the counters of keys and of addresses: each promise of limits.h, by breaking what it guards against. */
#include "tests/unit/folder.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "libcommon/access/keys.h"
#include "libcommon/access/limits.h"
#include "libcommon/access/window.h"

static void windows_slide(void **state)
{
    (void)state;
    window_bucket ring[WINDOW_MINUTE] = { 0 };
    uint32_t oldest;
    window_add(ring, WINDOW_MINUTE, 1000, 3);
    window_add(ring, WINDOW_MINUTE, 1030, 4);
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1030, MINUTE_SPAN, &oldest), 7);
    assert_int_equal(oldest, 1000);
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1060, MINUTE_SPAN, &oldest), 7);      /* 60 s later something of second 1000 may still count */
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1061, MINUTE_SPAN, &oldest), 4);
    assert_int_equal(oldest, 1030);
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1091, MINUTE_SPAN, &oldest), 0);
    window_add(ring, WINDOW_MINUTE, 1000 + WINDOW_MINUTE, 1);       /* the same bucket, another time */
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1000 + WINDOW_MINUTE, MINUTE_SPAN, &oldest), 5);
    window_add(ring, WINDOW_MINUTE, 1000 + WINDOW_MINUTE, -5);
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1000 + WINDOW_MINUTE, MINUTE_SPAN, &oldest), 4);
}

static void a_limit_holds_and_says_when(void **state)
{
    (void)state;
    const struct limit five = { .requests_minute = 5 }, none = { 0 }, few = { .tokens_minute = 100, .tokens_day = 1000 };
    char text[128];
    struct usage *u = usage_open(folder, &e), *cli = usage_open(folder, &e);
    assert_non_null(u);
    assert_non_null(cli);
    for (int i = 0; i < 5; i++) {
        const struct verdict v = usage_admit(u, 7, &five);
        assert_true(v.allowed);
        assert_int_equal(v.remaining, 4 - i);
        assert_in_range(v.reset_s, 60, 61);
    }
    struct verdict v = usage_admit(u, 7, &five);
    assert_false(v.allowed);
    assert_in_range(v.retry_s, 59, 61);
    verdict_text(&v, text, sizeof text);
    char want[128];
    snprintf(want, sizeof want, "Rate limit exceeded. Limit: 5/min, Current: 5. Try again in %ds.", v.retry_s);
    assert_string_equal(text, want);
    assert_true(usage_admit(u, 8, &five).allowed);          /* another key has a window of its own */
    for (int i = 0; i < 100; i++)
        assert_true(usage_admit(u, 9, &none).allowed);

    struct usage_stats s;
    usage_read(cli, 7, &five, &s);                          /* another process would see the same */
    assert_int_equal(s.requests_minute, 5);
    assert_int_equal(s.requests, 5);
    assert_false(s.verdict.allowed);
    usage_reset(cli, 7);
    assert_true(usage_admit(u, 7, &five).allowed);
    usage_read(cli, 7, &five, &s);
    assert_int_equal(s.requests_minute, 1);
    assert_int_equal(s.requests, 6);                        /* a reset forgets the window, not the total */

    assert_true(usage_admit(u, 10, &few).allowed);
    usage_charge(u, 10, 99);
    assert_true(usage_admit(u, 10, &few).allowed);
    usage_charge(u, 10, 1);
    v = usage_admit(u, 10, &few);
    assert_false(v.allowed);
    assert_string_equal(v.unit, " tokens/min");
    usage_drop(cli, 10);
    assert_true(usage_admit(u, 10, &few).allowed);
    usage_close(cli);
    usage_close(u);
}

static void *admit_many(void *user)
{
    const struct limit l = { .requests_minute = 1000 };
    intptr_t got = 0;
    for (int i = 0; i < 1000; i++)
        got += usage_admit(user, 3, &l).allowed;
    return (void *)got;
}

static void threads_never_exceed_a_limit(void **state)
{
    (void)state;
    pthread_t t[4];
    intptr_t sum = 0;
    struct usage *u = usage_open(folder, &e);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, admit_many, u);
    for (int i = 0; i < 4; i++) {
        void *got;
        pthread_join(t[i], &got);
        sum += (intptr_t)got;
    }
    assert_in_range(sum, 900, 1000);        /* at the edge two threads may refuse each other, never let both in */
    usage_close(u);
}

static void damaged_counters_begin_anew(void **state)
{
    (void)state;
    const struct limit l = { .requests_minute = 5 };
    int fd = open(in_folder("usage"), O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "rubbish rubbish rubbish", 23), 23);
    close(fd);
    struct usage *u = usage_open(folder, &e);
    assert_non_null(u);
    assert_true(usage_admit(u, 1, &l).allowed);
    usage_close(u);
}

/* Keys come and go for years: their counters must not turn the limits of new ones off. */
static void counters_of_dead_keys_make_room(void **state)
{
    (void)state;
    static int64_t ids[USAGE_SLOTS];
    const struct limit two = { .requests_minute = 2 };
    struct usage_stats s;
    struct usage *u = usage_open(folder, &e);
    for (int64_t key = 1; key <= USAGE_SLOTS; key++)
        assert_true(usage_admit(u, key, &two).allowed);
    assert_int_equal(usage_keys(u, ids), USAGE_SLOTS);
    assert_true(usage_admit(u, 100000, &two).allowed);      /* no slot is free */
    assert_true(usage_admit(u, 100000, &two).allowed);
    assert_false(usage_admit(u, 100000, &two).allowed);
    assert_int_equal(usage_keys(u, ids), USAGE_SLOTS);
    usage_drop(u, 4000);
    assert_int_equal(usage_keys(u, ids), USAGE_SLOTS - 1);
    usage_read(u, 4001, &two, &s);
    assert_int_equal(s.requests_minute, 1);
    usage_close(u);
}

static void addresses_have_windows_too(void **state)
{
    (void)state;
    char name[32];
    struct address_limits *a = address_limits_open(64, 3, &e);
    for (int i = 0; i < 3; i++)
        assert_true(address_admit(a, "10.0.0.1").allowed);
    assert_false(address_admit(a, "10.0.0.1").allowed);
    assert_true(address_admit(a, "10.0.0.2").allowed);
    for (int i = 0; i < 10000; i++) {       /* a flood of others takes no more memory */
        snprintf(name, sizeof name, "10.1.%d.%d", i / 256, i % 256);
        assert_true(address_admit(a, name).allowed);
    }
    address_limits_close(a);
}

static void a_network_of_ipv6_is_one_address(void **state)
{
    (void)state;
    struct address_limits *a = address_limits_open(64, 3, &e);
    assert_true(address_peek(a, "2001:db8:1:2::1").allowed);
    assert_true(address_admit(a, "2001:db8:1:2::1").allowed);
    assert_true(address_admit(a, "2001:db8:1:2:aaaa::1").allowed);
    assert_true(address_peek(a, "2001:DB8:1:2:ffff:ffff:ffff:ffff").allowed);
    assert_true(address_admit(a, "2001:DB8:1:2:ffff:ffff:ffff:ffff").allowed);
    assert_false(address_peek(a, "2001:db8:1:2:0:0:0:9").allowed);
    assert_false(address_admit(a, "2001:db8:1:2:0:0:0:9").allowed);
    assert_true(address_admit(a, "2001:db8:1:3::1").allowed);               /* another network */
    for (int i = 0; i < 3; i++)
        assert_true(address_admit(a, "::ffff:10.0.0.1").allowed);
    assert_false(address_admit(a, "10.0.0.1").allowed);                     /* the same host */
    assert_true(address_admit(a, "::ffff:10.0.0.2").allowed);
    assert_true(address_admit(a, "unix").allowed);
    address_limits_close(a);
}

/* Counters that are only looked at: the file's, and what this process counts stays with it. */
static void counters_can_be_kept_here(void **state)
{
    (void)state;
    const struct limit l = { .requests_minute = 5 };
    struct usage_stats s;
    struct usage *here = usage_open_here(folder, &e);
    assert_non_null(here);
    assert_int_equal(access(in_folder("usage"), F_OK), -1);
    assert_true(usage_admit(here, 7, &l).allowed);
    usage_close(here);
    assert_int_equal(access(in_folder("usage"), F_OK), -1);
    struct usage *u = usage_open(folder, &e);
    assert_non_null(u);
    for (int i = 0; i < 3; i++)
        assert_true(usage_admit(u, 7, &l).allowed);
    here = usage_open_here(folder, &e);
    assert_non_null(here);
    usage_read(here, 7, &l, &s);
    assert_int_equal(s.requests_minute, 3);
    assert_true(usage_admit(u, 7, &l).allowed);
    usage_read(here, 7, &l, &s);
    assert_int_equal(s.requests_minute, 4);             /* alive */
    assert_true(usage_admit(here, 7, &l).allowed);
    assert_false(usage_admit(here, 7, &l).allowed);
    usage_read(u, 7, &l, &s);
    assert_int_equal(s.requests_minute, 4);
    usage_close(here);
    usage_close(u);
    assert_int_equal(truncate(in_folder("usage"), 100), 0);
    assert_non_null(here = usage_open_here(folder, &e));
    usage_read(here, 7, &l, &s);
    assert_int_equal(s.requests, 0);
    usage_close(here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_slide), IN_FOLDER(a_limit_holds_and_says_when), IN_FOLDER(threads_never_exceed_a_limit),
        IN_FOLDER(damaged_counters_begin_anew), IN_FOLDER(counters_of_dead_keys_make_room),
        cmocka_unit_test(a_network_of_ipv6_is_one_address), cmocka_unit_test(addresses_have_windows_too),
        IN_FOLDER(counters_can_be_kept_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

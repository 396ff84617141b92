/* t-windows.c - rate limits: sliding windows and the counters of keys and of addresses.  Each
 * statement in rate_limits.h is tested under conditions that could break it. */
#include "tests/unit/folder.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "libcommon/access/keys.h"
#include "libcommon/access/rate_limits.h"
#include "libcommon/access/rate_window.h"
#include "libcommon/access/usage_share.h"
#include "libcommon/base/clock.h"

static void sums_cover_only_the_window(void **state)
{
    (void)state;
    window_bucket ring[WINDOW_MINUTE] = { 0 };
    uint32_t oldest;
    window_add(ring, WINDOW_MINUTE, 1000, 3);
    window_add(ring, WINDOW_MINUTE, 1030, 4);
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1030, MINUTE_SPAN, &oldest), 7);
    assert_int_equal(oldest, 1000);
    /* up to 60 s later events of second 1000 may still be counted */
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1060, MINUTE_SPAN, &oldest), 7);
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
    const struct limit five = { .requests_minute = 5 }, none = { 0 },
                       few = { .tokens_minute = 100, .tokens_day = 1000 };
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
    assert_true(usage_admit(u, 8, &five).allowed);          /* each key has its own window */
    for (int i = 0; i < 100; i++)
        assert_true(usage_admit(u, 9, &none).allowed);

    struct usage_stats s;
    usage_read(cli, 7, &five, &s);                          /* another process sees the same */
    assert_int_equal(s.requests_minute, 5);
    assert_int_equal(s.requests, 5);
    assert_false(s.verdict.allowed);
    usage_reset(cli, 7);
    assert_true(usage_admit(u, 7, &five).allowed);
    usage_read(cli, 7, &five, &s);
    assert_int_equal(s.requests_minute, 1);
    assert_int_equal(s.requests, 6);                        /* a reset forgets the window, not the total */

    assert_true(usage_admit(u, 11, &few).allowed);
    usage_settle(u, 11, 0, 50);
    usage_read(u, 11, &few, &s);
    assert_true(s.tokens_minute == 50 && s.tokens_day == 50);
    usage_reset(u, 11);
    usage_read(u, 11, &few, &s);
    assert_true(s.tokens_minute == 0 && s.tokens_day == 0 && s.tokens == 50);

    assert_true(usage_admit(u, 10, &few).allowed);
    usage_settle(u, 10, 0, 99);
    assert_true(usage_admit(u, 10, &few).allowed);
    usage_settle(u, 10, 0, 1);
    v = usage_admit(u, 10, &few);
    assert_false(v.allowed);
    assert_string_equal(v.unit, " tokens/min");
    usage_drop(cli, 10);
    assert_true(usage_admit(u, 10, &few).allowed);
    usage_close(cli);
    usage_close(u);
}

static void tokens_are_reserved_before_they_are_used(void **state)
{
    (void)state;
    const struct limit l = { .tokens_minute = 500, .tokens_day = 2000 }, none = { .requests_minute = 5 };
    char text[200];
    int64_t a, b, c;
    struct usage_stats s;
    struct usage *u = usage_open(folder, &e), *other = usage_open(folder, &e);
    assert_true(usage_reserve(u, 7, &none, 100, 100, &a).allowed);
    assert_int_equal(a, 0);
    assert_true(usage_reserve(u, 7, &l, 300, 300, &a).allowed);
    assert_int_equal(a, 300);
    /* another server sees these reservations */
    struct verdict v = usage_reserve(other, 7, &l, 250, 250, &b);
    assert_false(v.allowed);
    assert_false(v.never);
    assert_int_equal(b, 0);
    assert_true(v.retry_s > 0 && v.retry_s < 10);
    verdict_text(&v, text, sizeof text);
    assert_string_equal(text, "Rate limit exceeded. Limit: 500 tokens/min, Current: 300 (300 reserved by running requests), Requested: 250. Try again in 2s.");
    v = usage_reserve(other, 7, &l, 20, 1000, &b);                          /* as many as are left */
    assert_true(v.allowed);
    assert_int_equal(b, 200);
    assert_int_equal(v.remaining, 0);
    assert_false(usage_admit(u, 7, &l).allowed);
    usage_settle(u, 7, a, 50);
    usage_read(u, 7, &l, &s);
    assert_int_equal(s.tokens_minute, 50);
    assert_int_equal(s.reserved, 200);
    assert_true(usage_reserve(u, 7, &l, 250, 250, &c).allowed);
    v = usage_reserve(u, 7, &l, 1, 1, &a);
    assert_false(v.allowed);
    /* the request fits only after a running request has ended, not when the window has moved on */
    assert_int_equal(v.retry_s, 2);
    usage_settle(other, 7, b, 200);
    usage_settle(u, 7, c, 250);
    usage_read(u, 7, &l, &s);
    assert_int_equal(s.tokens_minute, 500);
    assert_int_equal(s.reserved, 0);
    v = usage_reserve(u, 7, &l, 1, 1, &a);
    assert_false(v.allowed);
    assert_in_range(v.retry_s, 55, 61); /* the window must move; running requests do not matter */
    v = usage_reserve(u, 8, &l, 501, 501, &a);
    assert_true(!v.allowed && v.never);
    verdict_text(&v, text, sizeof text);
    assert_string_equal(text, "The request needs up to 501 tokens (prompt and max_tokens of every answer). Limit: 500 tokens/min.");
    v = usage_reserve(u, 8, &(struct limit){ .tokens_day = 400 }, 401, 401, &a);
    assert_true(v.never && strcmp(v.unit, " tokens/day") == 0);
    usage_close(other);
    usage_close(u);
}

static void reservations_of_a_dead_server_expire(void **state)
{
    (void)state;
    const struct limit l = { .tokens_minute = 500 };
    const uint64_t long_ago = (uint64_t)77 << 32 | (uint32_t)((uint32_t)(clock_ns() / 1000000000u) - USAGE_LEASE_S - 1);
    int64_t a;
    struct usage *dead = usage_open(folder, &e), *u = usage_open(folder, &e);
    assert_true(usage_reserve(dead, 7, &l, 500, 500, &a).allowed);
    usage_renew(dead);
    assert_false(usage_reserve(u, 7, &l, 1, 1, &a).allowed);
    const int fd = open(in_folder("usage"), O_RDWR);
    const off_t servers = lseek(fd, 0, SEEK_END) - (off_t)(8 * USAGE_SERVERS * (1 + USAGE_SLOTS));
    assert_int_equal(pwrite(fd, &long_ago, sizeof long_ago, servers), sizeof long_ago);
    close(fd);
    assert_true(usage_reserve(u, 7, &l, 500, 500, &a).allowed);
    usage_settle(u, 7, a, 0);
    usage_renew(dead);  /* its process was only suspended: it gets another slot, without its old reservations */
    assert_true(usage_reserve(dead, 7, &l, 500, 500, &a).allowed);
    usage_close(dead);                          /* closing releases all reservations */
    assert_true(usage_reserve(u, 7, &l, 500, 500, &a).allowed);
    usage_close(u);
}

static void *reserve_many(void *user)
{
    const struct limit l = { .tokens_minute = 100 };
    int64_t got;
    for (int i = 0; i < 1000; i++)
        if (usage_reserve(user, 3, &l, 10, 30, &got).allowed)
            usage_settle(user, 3, got, i % 250 == 0 ? got : 0);
    return NULL;
}

static void threads_never_reserve_too_much(void **state)
{
    (void)state;
    pthread_t t[4];
    struct usage_stats s;
    struct usage *u = usage_open(folder, &e);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, reserve_many, u);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    usage_read(u, 3, &(struct limit){ .tokens_minute = 100 }, &s);
    assert_in_range(s.tokens_minute, 10, 100);
    assert_int_equal(s.reserved, 0);
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
    /* near the limit two threads may both be refused, but never both be admitted beyond it */
    assert_in_range(sum, 900, 1000);
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

/* Keys are made and deleted for years.  New keys must get the slots of deleted ones, so that their
 * limits work. */
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
    for (int i = 0; i < 10000; i++) {       /* the memory is bounded */
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

/* Counters opened read-only: counts of the file are read, new counts stay in this process. */
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

/* ---- counters that servers share through a database ---- */

static int n_taken(const struct usage_part *p, enum usage_kind kind)
{
    int n = 0;
    for (int i = 0; i < p->n_counts; i++)
        n += p->count[i].kind == kind ? (int)p->count[i].n : 0;
    return n;
}

static void counts_of_other_servers_fill_a_limit(void **state)
{
    (void)state;
    const struct limit five = { .requests_minute = 5 };
    struct usage *u = usage_open_shared(&e);
    struct usage_part p;
    assert_true(usage_admit(u, 7, &five).allowed);
    assert_true(usage_admit(u, 7, &five).allowed);
    assert_int_equal(usage_take(u, &p, &e), 0);
    assert_int_equal(p.n_keys, 1);
    assert_int_equal(p.key[0].key, 7);
    assert_int_equal(p.key[0].requests, 2);
    assert_int_equal(n_taken(&p, USAGE_REQUESTS_SECOND), 2);
    /* one more is admitted before the totals arrive: 2 of this server, 1 of another one */
    assert_true(usage_admit(u, 7, &five).allowed);
    const struct usage_count total[] = { { 7, USAGE_REQUESTS_SECOND, 0, 2 }, { 7, USAGE_REQUESTS_SECOND, 40, 1 },
                                         { 7, USAGE_REQUESTS, 0, 30 }, { 8, USAGE_REQUESTS_SECOND, 0, 9 } };
    usage_replace(u, &p, total, 4);
    usage_part_release(&p);
    struct verdict v = usage_admit(u, 7, &five);
    assert_true(v.allowed);
    assert_int_equal(v.remaining, 0);
    v = usage_admit(u, 7, &five);
    assert_false(v.allowed);
    assert_in_range(v.retry_s, 20, 21);
    struct usage_stats s;
    usage_read(u, 7, &five, &s);
    assert_int_equal(s.requests, 32);
    assert_int_equal(usage_take(u, &p, &e), 0);
    assert_int_equal(p.key[0].requests, 2);
    assert_int_equal(n_taken(&p, USAGE_REQUESTS_SECOND), 2);
    usage_part_release(&p);
    usage_close(u);
}

static void counts_that_could_not_be_stored_are_taken_again(void **state)
{
    (void)state;
    const struct limit five = { .requests_minute = 5 };
    struct usage *u = usage_open_shared(&e);
    struct usage_part p;
    assert_true(usage_admit(u, 7, &five).allowed);
    usage_settle(u, 7, 0, 90);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(usage_take(u, &p, &e), 0);
        assert_int_equal(p.key[0].requests, 1);
        assert_int_equal(p.key[0].tokens, 90);
        assert_int_equal(n_taken(&p, USAGE_REQUESTS_SECOND), 1);
        assert_int_equal(n_taken(&p, USAGE_TOKENS_SECOND), 90);
        assert_int_equal(n_taken(&p, USAGE_TOKENS_QUARTER), 90);
        if (i)
            p.taken_s -= 100;               /* as if the attempt had lasted so long: the minute is over */
        usage_untake(u, &p);
        usage_part_release(&p);
    }
    assert_int_equal(usage_take(u, &p, &e), 0);
    assert_int_equal(p.key[0].requests, 1);
    assert_int_equal(p.key[0].tokens, 90);
    assert_int_equal(n_taken(&p, USAGE_REQUESTS_SECOND), 0);
    assert_int_equal(n_taken(&p, USAGE_TOKENS_SECOND), 0);
    assert_int_equal(n_taken(&p, USAGE_TOKENS_QUARTER), 90);
    usage_part_release(&p);
    usage_close(u);
}

static void tokens_that_other_servers_reserve_are_not_used(void **state)
{
    (void)state;
    const struct limit few = { .tokens_minute = 100 };
    struct usage *u = usage_open_shared(&e);
    struct usage_part p;
    int64_t reserved;
    assert_true(usage_reserve(u, 7, &few, 10, 20, &reserved).allowed);
    assert_int_equal(reserved, 20);
    assert_int_equal(usage_take(u, &p, &e), 0);
    assert_int_equal(p.key[0].reserved, 20);
    assert_int_equal(p.key[0].told, 0);
    const struct usage_count total = { 7, USAGE_OTHERS, 0, 60 };
    usage_replace(u, &p, &total, 1);
    usage_part_release(&p);
    assert_false(usage_reserve(u, 7, &few, 30, 30, &reserved).allowed);
    assert_true(usage_reserve(u, 7, &few, 10, 50, &reserved).allowed);
    assert_int_equal(reserved, 20);
    usage_settle(u, 7, 20, 5);
    usage_settle(u, 7, 20, 5);
    assert_int_equal(usage_take(u, &p, &e), 0);
    assert_int_equal(p.key[0].reserved, 0);
    assert_int_equal(p.key[0].told, 20);
    assert_int_equal(p.key[0].tokens, 10);
    usage_part_release(&p);
    usage_close(u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_cover_only_the_window), IN_FOLDER(a_limit_holds_and_says_when),
            IN_FOLDER(threads_never_exceed_a_limit),
        IN_FOLDER(damaged_counters_begin_anew), IN_FOLDER(counters_of_dead_keys_make_room),
        cmocka_unit_test(a_network_of_ipv6_is_one_address), cmocka_unit_test(addresses_have_windows_too),
        IN_FOLDER(counters_can_be_kept_here), IN_FOLDER(tokens_are_reserved_before_they_are_used),
        IN_FOLDER(reservations_of_a_dead_server_expire), IN_FOLDER(threads_never_reserve_too_much),
        cmocka_unit_test(counts_of_other_servers_fill_a_limit),
        cmocka_unit_test(counts_that_could_not_be_stored_are_taken_again),
        cmocka_unit_test(tokens_that_other_servers_reserve_are_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

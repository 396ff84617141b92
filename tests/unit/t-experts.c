/* t-experts.c - traces of routers, cut and broken at every byte; policies for the experts of a
 * device on traces whose outcome follows by hand; link and CPU that work side by side. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/plan/expert_moves.h"
#include "libcommon/plan/expert_share.h"
#include "libcommon/plan/expert_time.h"

static struct err why;

static int parse(struct router_trace *t, const char *text)
{
    return router_trace_parse(t, text, strlen(text), "f", &why);
}

static void traces(void **state)
{
    (void)state;
    static const char good[] = "experts 4 top_k 2\n1 0 3\n3 2 1\r\n1 3 2\n3  0\t1";
    static const struct { const char *text, *says; } bad[] = {
        { "", "line 1: expected 'experts N top_k K'" },
        { "experts 4\n", "line 1" },
        { "experts 4 top_k 5\n", "line 1" },
        { "experts 5000 top_k 5\n", "at most 4096" },
        { "experts 4 top_k 2 x\n", "line 1" },
        { "experts 4 top_k 2\n", "ends in the middle of a token" },
        { "experts 4 top_k 2\n1 0\n", "line 2: found 1 of 2 experts" },
        { "experts 4 top_k 2\n1 0 4\n", "line 2: expert 4, expected 0 to 3" },
        { "experts 4 top_k 3\n1 0 1 0\n", "line 2: expert 0 is there twice" },
        { "experts 4 top_k 2\n1 0 1 2\n", "line 2: more than 2 experts" },
        { "experts 4 top_k 2\n\n", "line 2: expected the number of a layer" },
        { "experts 4 top_k 2\n1 0 1\n2 0 1\n1 0 1\n", "expected 2 lines for each" },
        { "experts 4 top_k 2\n1 0 1\n2 0 1\n1 0 1\n3 0 1\n", "line 5: layer 3, expected 2" },
        { "experts 4 top_k 2\n1 0 1\n99999999999999999999 0 1\n", "line 3: expected the number of a layer" },
    };
    struct router_trace t;
    assert_int_equal(parse(&t, good), 0);
    assert_int_equal(t.n_layers, 2);
    assert_int_equal(t.n_tokens, 2);
    assert_int_equal(trace_choice(&t, 0, 1)[0], 2);
    assert_int_equal(trace_choice(&t, 1, 1)[1], 1);
    router_trace_release(&t);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&t, bad[i].text), -1);
        if (!strstr(why.msg, bad[i].says))
            fail_msg("'%s': %s, expected '%s'", bad[i].text, why.msg, bad[i].says);
    }
    for (size_t n = 0; n < sizeof good - 1; n++) {      /* in memory of just that size */
        char *cut = malloc(n + 1);
        memcpy(cut, good, n);
        if (router_trace_parse(&t, cut, n, "f", &why) == 0)
            router_trace_release(&t);
        free(cut);
    }
}

static void drawn(void **state)
{
    (void)state;
    struct router_trace t;
    int count[64] = { 0 }, most = 0;
    assert_int_equal(router_trace_draw(&t, 2, 64, 8, 500, 1.0, 1, &why), 0);
    for (int i = 0; i < t.n_tokens; i++) {
        int seen[64] = { 0 };
        for (int k = 0; k < 8; k++) {
            const int x = trace_choice(&t, i, 1)[k];
            assert_in_range(x, 0, 63);
            assert_int_equal(seen[x]++, 0);             /* 8 different experts */
            count[x]++;
        }
    }
    for (int x = 0; x < 64; x++)
        most = count[x] > most ? count[x] : most;
    assert_in_range(most, 350, 500);    /* the first rank: about a fifth of each of 8 draws */
    router_trace_release(&t);
}

/* The break-even of expert_threshold.h, of 128 experts of which a token chooses 8: 11 tokens choose
 * half of them, 16 * products / link tokens take the CPU as long as the upload. */
static void thresholds(void **state)
{
    (void)state;
    enum { HALF = 11 };
    static const struct { const char *what; int missing; double misses, link, read, products; int want; } cases[] = {
        { "products decide", 128, 8, 25, 40, 125, 80 },
        { "a link of half the speed", 128, 8, 12.5, 40, 125, 160 },
        { "a CPU of three times the speed", 128, 8, 25, 40, 375, 240 },
        { "fewer choices miss, as those on the device are chosen more often", 64, 2, 25, 40, 125, 160 },
        { "a part is rounded up", 128, 8, 25, 40, 126, 81 },
        { "reading decides: n with 1 - (15 / 16)^n >= 30 / 40", 128, 8, 40, 30, 1000, 22 },
        { "few tokens leave most experts to themselves", 128, 8, 4000, 40, 125, HALF },
        { "the least number of tokens", 1, 1, 1e12, 1, 1, 1 },
        { "all misses", 8, 8, 1e12, 1, 1, 1 },
        { "more misses than experts", 2, 8, 1e12, 1, 1, 1 },
        { "a slow link", 128, 8, 1e-3, 40, 125, EXPERT_THRESHOLD_MOST },
        { "a fast CPU", 128, 8, 25, 1e12, 1e12, EXPERT_THRESHOLD_MOST },
        { "all experts on the device", 0, 0, 25, 40, 125, EXPERT_THRESHOLD },
        { "no choice misses", 64, 0, 25, 40, 125, EXPERT_THRESHOLD },
        { "no speed of the link", 128, 8, 0, 40, 125, EXPERT_THRESHOLD },
        { "no speed of reading", 128, 8, 25, 0, 125, EXPERT_THRESHOLD },
        { "no speed of products", 128, 8, 25, 40, 0, EXPERT_THRESHOLD },
        { "a negative speed", 128, 8, -25, 40, 125, EXPERT_THRESHOLD },
        { "NaN", 128, 8, NAN, 40, 125, EXPERT_THRESHOLD },
        { "NaN", 128, 8, 25, NAN, 125, EXPERT_THRESHOLD },
        { "NaN", 128, 8, 25, 40, NAN, EXPERT_THRESHOLD },
        { "NaN", 128, NAN, 25, 40, 125, EXPERT_THRESHOLD },
        { "an infinite speed", 128, 8, INFINITY, 40, 125, EXPERT_THRESHOLD },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct expert_speeds s = { cases[i].link, cases[i].read, cases[i].products };
        const int got = expert_threshold(cases[i].missing, cases[i].misses, &s);
        if (got != cases[i].want)
            fail_msg("%s: %d tokens, expected %d", cases[i].what, got, cases[i].want);
    }
}

/* Products of few tokens are not known to be the fastest, so they count from 9 tokens on. */
static void speeds(void **state)
{
    (void)state;
    struct expert_shares s = { 0 };
    shares_learn_link(&s, 25, 1);
    shares_learn_cpu(&s, 1, 40, 1);
    shares_learn_products(&s, 1, 40, 1);
    shares_learn_products(&s, 8, 90, 1);
    struct expert_speeds v = shares_speeds(&s);
    assert_true(v.link == 25 && v.read == 40 && v.products == 0);
    shares_learn_cpu(&s, 64, 20, 1);
    shares_learn_products(&s, 64, 80, 1);
    shares_learn_products(&s, 9, 70, 1);
    v = shares_speeds(&s);
    assert_true(v.link == 25 && v.read == 40 && v.products == 80);
}

static void shares(void **state)
{
    (void)state;
    assert_int_equal(expert_share(0, 25, 40), 0);
    assert_int_equal(expert_share(1, 25, 40), 0);       /* the CPU is faster alone */
    assert_int_equal(expert_share(1, 40, 25), 1);
    assert_int_equal(expert_share(13, 25, 40), 5);
    assert_int_equal(expert_share(130, 25, 40), 50);
}

/* The speeds are learned, those of the CPU for each size of a step; a side that gets nothing is
 * tried again. */
static void learned(void **state)
{
    (void)state;
    struct expert_shares s = { 0 };
    assert_int_equal(shares_divide(&s, 9, 1), 4);       /* unknown: half */
    shares_learn_link(&s, 25, 1);
    assert_int_equal(shares_divide(&s, 9, 1), 4);
    shares_learn_cpu(&s, 1, 40, 1);
    assert_int_equal(shares_divide(&s, 13, 1), 5);
    assert_int_equal(shares_divide(&s, 13, 2), 6);      /* of larger steps nothing is known */
    shares_learn_cpu(&s, 4, 10, 2);
    assert_int_equal(shares_divide(&s, 12, 3), 10);     /* 3 and 4 tokens are one size */
    shares_learn_cpu(&s, 1, 1, 0);                      /* no time passed: nothing is learned */
    shares_learn_cpu(&s, 1, 48, 1);
    assert_true(s.cpu[0] == 41);                        /* an eighth of the difference */
    shares_learn_link(&s, 1e-6, 1e3);
    s.link = 1e-3;
    int probes = 0;
    for (int i = 0; i < 2 * SHARE_PROBE; i++)
        probes += shares_divide(&s, 2, 1);
    assert_int_equal(probes, 2);
    assert_int_equal(shares_divide(&s, 1, 1), 0);       /* a single one is never a probe */
}

static void most_chosen(void **state)
{
    (void)state;
    const float count[] = { 3, 9, 1, 9, 4 };
    int id[] = { 0, 2, 3, 4, 1 };
    static const int want[] = { 3, 1, 4, 0, 2 };
    experts_first(id, 5, 3, count);
    assert_memory_equal(id, want, sizeof id);
    experts_first(id, 5, 0, count);
    assert_memory_equal(id, want, sizeof id);
}

/* 4 experts of which 2 fit, one chosen for each token: 0 2 2 2 2 2 2 2 2 1. */
static void policies(void **state)
{
    (void)state;
    static const char text[] = "experts 4 top_k 1\n0 0\n0 2\n0 2\n0 2\n0 2\n0 2\n0 2\n0 2\n0 2\n0 1\n";
    static const struct { enum expert_policy policy; int hits, computed, uploads; } want[] = {
        { EXPERTS_FIRST, 2, 8, 0 },
        { EXPERTS_MOVES, 5, 5, 1 },     /* after 4 choices 2 takes the slot of 1, which the last token then lacks */
        { EXPERTS_UPLOADED, 8, 0, 2 },
        { EXPERTS_BEST, 9, 1, 0 },
    };
    const struct expert_rates rates = { 2, 4, 1, 0.5 };
    struct router_trace t;
    struct expert_times r;
    assert_int_equal(parse(&t, text), 0);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(expert_simulate(&t, want[i].policy, 2, 1, &rates, &r), 0);
        assert_int_equal(r.choices, 10);
        if (r.hits != (uint64_t)want[i].hits || r.computed != (uint64_t)want[i].computed ||
            r.uploads != (uint64_t)want[i].uploads)
            fail_msg("%s: %d hits, %d on the CPU, %d uploads", expert_policy_name(want[i].policy), (int)r.hits,
                     (int)r.computed, (int)r.uploads);
        /* 10 layers, then the CPU or the link; moves upload beside the step */
        const double waits = want[i].computed / 4.0 + (want[i].policy == EXPERTS_UPLOADED ? want[i].uploads / 2.0 : 0);
        assert_true(fabs(r.seconds - (5 + waits)) < 1e-9);
    }
    router_trace_release(&t);
}

/* With 128 experts, of which the device holds half, and a skewed router, steps of 16 tokens keep a
 * link of 25 GB/s and a CPU of 40 GB/s busy at the same time. */
static void both_work(void **state)
{
    (void)state;
    const struct expert_rates rates = { 25e9, 40e9, 2.7e6, 5e-5 };
    struct router_trace t;
    struct expert_times r, moves;
    assert_int_equal(router_trace_draw(&t, 4, 128, 8, 512, 1.0, 128, &why), 0);
    assert_int_equal(expert_simulate(&t, EXPERTS_DIVIDED, 64, 16, &rates, &r), 0);
    assert_int_equal(expert_simulate(&t, EXPERTS_MOVES, 64, 16, &rates, &moves), 0);
    if (!(r.both_s >= 0.85 * r.seconds))
        fail_msg("link and CPU work together in %.3f of the time", r.both_s / r.seconds);
    assert_true(r.seconds < moves.seconds);
    /* never faster than both rates together allow */
    assert_true((double)(r.computed + r.uploads) * rates.expert_bytes <= r.seconds * (rates.link + rates.cpu));
    router_trace_release(&t);
}

/* Counts are halved after many tokens, so that experts that were chosen long ago lose their
 * slots. */
static void forgets(void **state)
{
    (void)state;
    struct expert_moves m;
    int32_t place[] = { 0, -1 }, first = 0, second = 1;
    assert_int_equal(moves_open(&m, 0, 1, 2), 0);
    for (int i = 0; i < 2048; i++)
        moves_count(&m, 0, &first, 1, 1);
    moves_step(&m);
    assert_true(m.count[0] == 1024);
    for (int i = 0; i < 1280; i++)
        moves_count(&m, 0, &second, 1, 1);
    assert_true(moves_best(&m, place).gain == 0);       /* a quarter more, but not above it */
    moves_count(&m, 0, &second, 1, 1);
    const struct expert_move best = moves_best(&m, place);
    assert_true(best.gain == 257 && best.in == 1 && best.out == 0);
    moves_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traces),
        cmocka_unit_test(drawn),
        cmocka_unit_test(shares),
        cmocka_unit_test(thresholds),
        cmocka_unit_test(speeds),
        cmocka_unit_test(learned),
        cmocka_unit_test(most_chosen),
        cmocka_unit_test(policies),
        cmocka_unit_test(both_work),
        cmocka_unit_test(forgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* t-engine-fair.c - under contention all tenants get the same number of places, of prompt tokens in
 * a step, and of places in the queue; and a tenant has no credit from a time without contention. */
#include "tests/unit/engine_fake.h"

enum { MANY = 100, A = 1, B = 2, C = 3 };

/* A prompt that begins like no other. */
static const int32_t *prompt(int which, int n)
{
    static int32_t ids[MAX_LEN];
    for (int i = 0; i < n; i++, which /= 5)
        ids[i] = which % 5;
    return ids;
}

static struct request_params asked(struct answer *a, uint64_t tenant, int which, int n_ids, int n_answer)
{
    struct request_params p = params(prompt(which, n_ids), n_ids, a);
    p.tenant = tenant;
    p.max_tokens = n_answer;
    p.ignore_eos = 1;
    return p;
}

static void add(struct engine *g, struct answer *a, uint64_t tenant, int which, int n_ids, int n_answer)
{
    struct request_params p = asked(a, tenant, which, n_ids, n_answer);
    submit(g, &p, a);
}

static void step(struct engine *g, int n)
{
    struct err e;
    for (int i = 0; i < n; i++)
        assert_true(engine_step(g, &e) >= 0);
}

/* Steps until the answer begins. */
static int steps_to_begin(struct engine *g, const struct answer *a)
{
    int n = 0;
    for (; a->n == 0; n++)
        step(g, 1);
    return n;
}

/* Check that the answer is the one that the request gets alone. */
static void assert_as_alone(const struct answer *got, int which, int n_ids, int n_answer)
{
    static struct answer want;
    struct request_params p = asked(&want, A, which, n_ids, n_answer);
    alone(&p, &want);
    assert_same(got, &want);
}

static int n_tokens(const struct answer *a, int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i].n;
    return sum;
}

/* One request is queued behind a hundred others: if all are of one tenant it waits for them, if it
 * has a tenant of its own it begins at once. */
static void test_one_beside_many(void **state)
{
    (void)state;
    static struct answer many[MANY], one;
    struct err e;
    int steps[2];
    for (int own = 0; own < 2; own++) {
        struct engine *g = open_engine(4, 64, 64);
        /* for any duration of a step */
        assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 4, .chunk = 64 }, &e), 0);
        for (int i = 0; i < MANY; i++)
            add(g, &many[i], A, i, 20, 20);
        step(g, 5);
        add(g, &one, own ? B : A, 12345, 20, 20);
        steps[own] = steps_to_begin(g, &one);
        run_to_end(g);
        assert_as_alone(&one, 12345, 20, 20);
        for (int i = 0; i < MANY; i++)
            assert_int_equal(many[i].n, 20);
        assert_all_free(g);
        engine_close(g);
    }
    assert_in_range(steps[0], 400, 1000);               /* 100 answers of 20 tokens, 4 at a time */
    assert_in_range(steps[1], 1, 4);                    /* 1 to 4, because the number of prompt
                                                         * tokens in a step depends on measured
                                                         * times */
}

/* Two tenants get the same number of tokens, whatever the sizes of their requests; if nothing else
 * distinguishes them, they get places in turn. */
static void tenants_get_equal_numbers_of_tokens(void **state)
{
    (void)state;
    static struct answer a[MANY], b[MANY];
    struct err e;
    struct engine *g = open_engine(8, 64, 80);
    /* a fixed chunk, because the default depends on measured times */
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 8, .chunk = 64 }, &e), 0);
    for (int i = 0; i < MANY; i++)
        add(g, &a[i], A, i, 100, 5);
    for (int i = 0; i < MANY; i++)
        add(g, &b[i], B, i + 5000, 10, 20);
    step(g, 1);
    int done_a = 0, done_b = 0;
    for (int n = 0; n < 60; n++) {
        step(g, 1);
        done_a = done_b = 0;
        for (int i = 0; i < MANY; i++) {
            done_a += a[i].finish ? 105 : 0;
            done_b += b[i].finish ? 30 : 0;
        }
    }
    assert_true(done_a > 600);
    assert_true(abs(done_a - done_b) <= 105 * 3);       /* answers in progress */
    run_to_end(g);
    assert_int_equal(n_tokens(a, MANY), MANY * 5);
    assert_int_equal(n_tokens(b, MANY), MANY * 20);
    engine_close(g);
}

/* There are places for all requests, but the prompts of one tenant take many steps: the short
 * prompt of another tenant does not wait for them. */
static void short_prompts_do_not_wait_for_other_tenants(void **state)
{
    (void)state;
    static struct answer runs, a[6], b;
    struct err e;
    int steps[2];
    for (int own = 0; own < 2; own++) {
        struct engine *g = open_engine(8, 64, 80);
        assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 8, .chunk = 10 }, &e), 0);
        add(g, &runs, C, 7, 1, 120);
        for (int i = 0; i < 6; i++)
            add(g, &a[i], A, 100 + i, 100, 5);
        step(g, 3);
        add(g, &b, own ? B : A, 5000, 10, 5);
        steps[own] = steps_to_begin(g, &b);
        run_to_end(g);
        engine_close(g);
    }
    assert_in_range(steps[0], 50, 70);                  /* 600 tokens by 10 */
    assert_in_range(steps[1], 1, 3);
}

/* Tokens that were computed while nothing waited are not charged to a tenant, and a tenant that ran
 * beside waiting ones gets no credit for it. */
static void test_no_debt(void **state)
{
    (void)state;
    static struct answer a[MANY], b[MANY], long_b;
    struct err e;
    struct engine *g = open_engine(4, 64, 40);
    /* a fixed chunk, because the default depends on measured times */
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 4, .chunk = 40 }, &e), 0);
    for (int i = 0; i < 20; i++) {                      /* alone for long */
        add(g, &a[i], A, i, 60, 60);
        run_to_end(g);
    }
    add(g, &long_b, B, 999, 2, 120);
    for (int i = 0; i < MANY; i++)
        add(g, &a[i], A, i, 20, 10);
    step(g, 60);                                        /* A's requests waited all this time, B's
                                                         * one request was answered */
    const int before = n_tokens(a, MANY);
    assert_true(before > 100 && long_b.n > 50);
    for (int i = 0; i < MANY; i++)
        add(g, &b[i], B, 5000 + i, 20, 10);
    step(g, 40);
    const int got_a = n_tokens(a, MANY) - before, got_b = n_tokens(b, MANY);
    assert_true(got_a > 40 && got_b > 30 && got_b < 2 * got_a && got_a < 2 * got_b);
    run_to_end(g);
    engine_close(g);
}

/* Between tenants a priority below 0 makes a request yield for a while; a priority above 0 has no
 * effect. */
static void test_standing_back(void **state)
{
    (void)state;
    static struct answer a[MANY], b;
    struct request_params p;
    struct engine *g = open_engine(1, 64, 40);
    for (int i = 0; i < 20; i++) {
        p = params(prompt(i, 20), 20, &a[i]);
        p.tenant = A;
        p.priority = MAX_PRIORITY;
        p.max_tokens = 10;
        submit(g, &p, &a[i]);
    }
    step(g, 3);
    add(g, &b, B, 5000, 20, 10);
    assert_in_range(steps_to_begin(g, &b), 1, 20);      /* b waits for the request that runs, and
                                                         * perhaps for one more */
    run_to_end(g);
    for (int i = 0; i < 3; i++) {
        p = params(prompt(i, 20), 20, &a[i]);
        p.tenant = A;
        p.priority = -1;
        p.max_tokens = 100;
        p.ignore_eos = 1;
        submit(g, &p, &a[i]);
    }
    step(g, 3);
    for (int i = 3; i < 6; i++)
        add(g, &a[i], B, 5000 + i, 20, 100);
    step(g, 1);                                         /* is preempted at once */
    assert_int_equal(a[3].n, 1);
    for (int i = 3; i < 6; i++) {
        assert_int_equal(a[0].finish, FINISH_NONE);
        assert_in_range(a[0].n, 1, 10);
        while (!a[i].finish)
            step(g, 1);
    }
    run_to_end(g);
    assert_int_equal(n_tokens(a, 6), 600);
    engine_close(g);
}

/* When the queue is full, the tenant with the most requests in it loses its last one to a tenant
 * with fewer: that request is refused. */
static void test_full_queue(void **state)
{
    (void)state;
    static struct answer a[20], b[8], more;
    struct err e;
    struct engine_stats s;
    struct engine *g = open_engine(2, 64, 40);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 2, .max_waiting = 10 }, &e), 0);
    for (int i = 0; i < 12; i++)
        add(g, &a[i], A, i, 20, 10);
    struct request_params p = params(prompt(77, 20), 20, &more);
    p.tenant = A;
    step(g, 2);
    assert_null(engine_submit(g, &p, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    for (int i = 0; i < 5; i++)
        add(g, &b[i], B, 500 + i, 20, 10);
    for (int i = 0; i < 12; i++)                        /* A's last requests, none of which has
                                                         * reported anything, were refused */
        assert_int_equal(a[i].finish, i < 7 ? FINISH_NONE : FINISH_REFUSED);
    assert_int_equal(a[11].n + a[11].n_calls, 1);
    assert_non_null(strstr(a[11].error, "10 requests are waiting"));
    p.tenant = B;
    assert_null(engine_submit(g, &p, &e));              /* five wait of each */
    p.tenant = C;
    p.n = 4;
    assert_null(engine_submit(g, &p, &e));              /* refused: C would have more requests in
                                                         * the queue than the others would have
                                                         * left */
    p.n = 3;
    assert_non_null(engine_submit(g, &p, &e));
    engine_stats(g, &s);
    assert_int_equal(s.n_tenants, 3);
    assert_int_equal(s.n_running + s.n_waiting, 12);
    assert_int_equal(s.failed, 5 + 3);
    run_to_end(g);
    engine_stats(g, &s);
    assert_int_equal(s.n_tenants, 0);
    assert_int_equal(s.requests, s.finished + s.failed);
    assert_all_free(g);
    engine_close(g);
}

/* Thousands of tenants with one request each are all served, and no data of them is kept. */
static void test_many_tenants(void **state)
{
    (void)state;
    enum { N = 3000 };
    struct err e;
    struct engine_stats s;
    struct engine *g = open_engine(2, 64, 16);
    for (int i = 0; i < N; i++) {
        static struct answer unused;
        struct request_params p = params(prompt(i, 3), 3, &unused);
        p.on_token = NULL;
        p.tenant = (uint64_t)i + 1;
        p.max_tokens = 1;
        assert_non_null(engine_submit(g, &p, &e));
    }
    engine_stats(g, &s);
    assert_int_equal(s.n_tenants, N);
    run_to_end(g);
    engine_stats(g, &s);
    assert_int_equal(s.n_tenants, 0);
    assert_int_equal(s.finished, N);
    assert_int_equal(s.preemptions, 0);
    engine_close(g);
}

/* Tenants that are new each time send one request after another, beside a tenant that always has
 * two requests: that tenant is not passed over for ever. */
static void test_one_after_another(void **state)
{
    (void)state;
    enum { ONES = 20, STEPS = 1500, PROMPT = 4, ANSWER = 10 };
    static struct answer ones[ONES], own[2];
    struct engine_stats s;
    struct engine *g = open_engine(8, 64, 80);
    int which = 0, got = 0;
    add(g, &own[0], A, which++, PROMPT, ANSWER);
    add(g, &own[1], A, which++, PROMPT, ANSWER);
    for (int i = 0; i < ONES; i++)
        add(g, &ones[i], 100 + (uint64_t)i, which++, PROMPT, ANSWER);
    for (int n = 0; n < STEPS; n++) {
        step(g, 1);
        for (int i = 0; i < ONES; i++)
            if (ones[i].finish)
                add(g, &ones[i], 100 + (uint64_t)i, which++, PROMPT, ANSWER);
        for (int i = 0; i < 2; i++)
            if (own[i].finish) {
                got++;
                add(g, &own[i], A, which++, PROMPT, ANSWER);
            }
    }
    engine_stats(g, &s);
    assert_true(s.finished > STEPS / 2);
    assert_in_range(got, s.finished / (ONES + 1) / 2, s.finished / (ONES + 1) * 3);
    run_to_end(g);
    engine_close(g);
}

/* No request is preempted for one that would still have too few blocks. */
static void test_no_useless_preemption(void **state)
{
    (void)state;
    static struct answer a[2], b, c;
    struct engine_stats s;
    for (int places = 3; places <= 4; places++) {       /* with all places taken, and with one place left */
        struct engine *g = open_engine(places, 128, 16);
        add(g, &c, C, 1, 100, 20);                      /* 7 or 8 blocks */
        for (int i = 0; i < 2; i++)
            add(g, &a[i], A, 100 + i, 33, 12);          /* 3 blocks each */
        step(g, 1);
        engine_stats(g, &s);
        assert_int_equal(s.n_running, 3);
        add(g, &b, B, 5000, 100, 5);                    /* needs 7 blocks: more than the pool has
                                                         * left plus those of one of A's requests */
        step(g, 5);
        engine_stats(g, &s);
        assert_int_equal(s.preemptions, 0);
        assert_int_equal(b.n, 0);
        run_to_end(g);
        assert_as_alone(&b, 5000, 100, 5);
        assert_all_free(g);
        engine_close(g);
    }
}

/* Requests of one group: once one of them has reported anything, the others are not refused. */
static void test_one_report_admits_the_others(void **state)
{
    (void)state;
    static struct answer a[12], b;
    static int reported[12];
    struct err e;
    for (int together = 0; together < 2; together++) {
        struct engine *g = open_engine(2, 64, 40);
        assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 2, .max_waiting = 10 }, &e), 0);
        memset(reported, 0, sizeof reported);
        for (int i = 0; i < 12; i++) {
            struct request_params p = asked(&a[i], A, i, 20, 10);
            p.reported = &reported[together && (i == 0 || i > 8) ? 0 : i];
            submit(g, &p, &a[i]);
        }
        step(g, 2);
        assert_true(a[0].n > 0 && reported[0]);
        add(g, &b, B, 500, 20, 10);
        for (int i = 2; i < 12; i++)
            assert_int_equal(a[i].finish, i == (together ? 8 : 11) ? FINISH_REFUSED : FINISH_NONE);
        run_to_end(g);
        engine_close(g);
    }
}

/* Numbers that a step has reported before it computes. */
struct planned { struct engine *g; struct engine_stats s; int n; };

static void note_plan(void *user)
{
    struct planned *p = user;
    engine_count_requests(p->g, &p->s);
    p->n++;
}

/* While a step runs, the numbers of requests include those that the step admits. */
static void test_counts_within_a_step(void **state)
{
    (void)state;
    static struct answer a[3];
    struct planned p = { .g = open_engine(2, 64, 40) };
    engine_watch_plan(p.g, note_plan, &p);
    for (int i = 0; i < 3; i++)
        add(p.g, &a[i], A, i, 20, 10);
    step(p.g, 1);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.s.n_running, 2);
    assert_int_equal(p.s.n_waiting, 1);
    assert_int_equal(p.s.n_tenants, 1);
    assert_int_equal(p.s.requests, 3);
    run_to_end(p.g);
    engine_close(p.g);
}

/* max_tokens limits the tokens of each step, but every answer that has begun advances in it. */
static void test_limit_of_a_step(void **state)
{
    (void)state;
    static struct answer a[4];
    struct engine_stats before, after;
    struct err e;
    struct engine *g = open_engine(4, 64, 40);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 4, .max_tokens = 65 }, &e), -1);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 4, .max_tokens = 3 }, &e), 0);
    for (int i = 0; i < 4; i++)
        add(g, &a[i], A, i, 20, 10);
    engine_stats(g, &before);
    assert_int_equal(before.max_tokens, 64);
    for (int more = 1; more > 0; before = after) {
        assert_true((more = engine_step(g, &e)) >= 0);
        engine_stats(g, &after);
        assert_in_range(after.tokens - before.tokens, 0, 4);
    }
    for (int i = 0; i < 4; i++)
        assert_as_alone(&a[i], i, 20, 10);
    engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_beside_many), cmocka_unit_test(tenants_get_equal_numbers_of_tokens),
        cmocka_unit_test(short_prompts_do_not_wait_for_other_tenants), cmocka_unit_test(test_no_debt),
        cmocka_unit_test(test_standing_back), cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_many_tenants), cmocka_unit_test(test_one_after_another),
        cmocka_unit_test(test_no_useless_preemption), cmocka_unit_test(test_one_report_admits_the_others),
        cmocka_unit_test(test_counts_within_a_step), cmocka_unit_test(test_limit_of_a_step),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

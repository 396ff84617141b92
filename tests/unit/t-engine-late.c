/* t-engine-late.c - a constraint that takes long: only its own request waits, others continue, and
 * the request can be ended at any moment. */
#include "tests/unit/engine_fake.h"

enum { STEPS = 100000 };

static atomic_int stuck;

static struct request *submit_stuck(struct engine *g, struct request_params *p, struct answer *a, uint64_t rules)
{
    struct constraint c = rules_of(rules, 30);
    ((struct rules *)c.state)->stuck = &stuck;
    p->constraint = &c;
    struct request *r = submit(g, p, a);
    p->constraint = NULL;
    return r;
}

/* Run steps until the answer has ended, and check that n_late requests are late then. */
static void run_until(struct engine *g, const struct answer *a, int n_late)
{
    struct err e;
    struct engine_stats s;
    for (int i = 0; a->finish == FINISH_NONE; i++) {
        assert_true(engine_step(g, &e) >= 0);
        assert_true(i < STEPS);
    }
    engine_stats(g, &s);
    assert_int_equal(s.n_late, n_late);
}

/* A request whose constraint is stuck runs beside a plain request and one with a quick constraint,
 * and then alone; when the constraint is ready, it continues with the same answer. */
static void waits_alone(const struct backend *backend, int n_logprobs)
{
    static struct answer late, plain, quick, want;
    static const int32_t ids[] = { 1, 2, 3 };
    struct err e;
    struct engine_stats s;
    backend_under_test = backend;
    struct engine *g = open_engine(4, 9, 40);
    struct request_params p = params(ids, 3, &late), q = params(ids, 2, &plain);
    p.n_logprobs = n_logprobs;
    p.max_tokens = 60;
    q.max_tokens = 40;
    q.ignore_eos = 1;
    atomic_store(&stuck, 1);
    submit_stuck(g, &p, &late, 3);
    submit(g, &q, &plain);
    run_until(g, &plain, 1);
    const int n_lookahead = last_fake->n_lookahead;
    assert_true(backend == &backend_fake || n_lookahead > 10);      /* lookahead steps are made
                                                                     * while it is stuck */
    struct constraint c = rules_of(7, 5);
    q.constraint = &c;
    submit(g, &q, &quick);
    run_until(g, &quick, 1);
    assert_int_equal(quick.finish, FINISH_STOP);
    assert_int_equal(late.n, 0);
    for (int i = 0; i < 10; i++)                                /* none of these steps waits for
                                                                 * long or computes anything */
        assert_int_equal(engine_step(g, &e), 1);
    engine_stats(g, &s);
    const uint64_t steps = s.steps;
    engine_step(g, &e);
    engine_stats(g, &s);
    assert_int_equal(s.steps, steps);
    atomic_store(&stuck, 0);
    run_until(g, &late, 0);
    struct constraint d = rules_of(3, 30);
    p.constraint = &d;
    alone(&p, &want);
    assert_same(&late, &want);
    assert_memory_equal(late.logprob, want.logprob, (size_t)late.n * sizeof *late.logprob);
    assert_all_free(g);
    engine_close(g);
    assert_int_equal(n_rules, 0);
    backend_under_test = &backend_fake;
}

static void test_waits_alone(void **state)
{
    (void)state;
    waits_alone(&backend_fake, -1);
    waits_alone(&backend_fake, 2);
    waits_alone(&backend_fake_device, -1);
}

/* Several stuck requests end at once when they are cancelled, when their deadline passes, or when
 * the engine is closed. */
static void stuck_requests_end_at_once(void **state)
{
    (void)state;
    enum { N = 3 };
    static struct answer a[N], plain;
    static const int32_t ids[] = { 1, 2, 3 };
    struct err e;
    for (int how = 0; how < 3; how++) {
        struct engine *g = open_engine(N + 1, 9, 40);
        struct request *r[N];
        struct request_params q = params(ids, 2, &plain);
        atomic_store(&stuck, 1);
        for (int i = 0; i < N; i++) {
            struct request_params p = params(ids, 3, &a[i]);
            p.deadline_ns = how == 1 ? clock_ns() + 50000000 : 0;
            r[i] = submit_stuck(g, &p, &a[i], (uint64_t)i);
        }
        q.max_tokens = 5;
        q.ignore_eos = 1;
        submit(g, &q, &plain);
        for (int i = 0; plain.finish == FINISH_NONE && i < STEPS; i++)
            assert_true(engine_step(g, &e) >= 0);
        assert_int_equal(plain.finish, FINISH_LENGTH);
        if (how == 0)
            for (int i = 0; i < N; i++)
                engine_cancel(g, r[i]);
        if (how < 2)
            run_to_end(g);
        for (int i = 0; i < N; i++)
            assert_int_equal(a[i].finish, how == 0 ? FINISH_CANCELLED : how == 1 ? FINISH_DEADLINE : FINISH_NONE);
        if (how < 2)
            assert_all_free(g);
        engine_close(g);
        assert_int_equal(n_rules, 0);
    }
}

/* If blocks run out while a request waits for its constraint, it loses its own blocks, and its
 * answer is the same. */
static void preemption_while_waiting_changes_no_answer(void **state)
{
    (void)state;
    static struct answer late, other[3], want;
    static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2 };
    struct engine_stats s;
    struct engine *g = open_engine(4, 32, MAX_LEN / 16 + 2);
    struct request_params p = params(ids, 18, &late), q = params(ids + 3, 12, &late);
    p.priority = -1;                    /* its turn is last */
    q.max_tokens = 100;
    q.ignore_eos = 1;
    atomic_store(&stuck, 1);
    submit_stuck(g, &p, &late, 3);
    struct err e;
    do {
        assert_true(engine_step(g, &e) > 0);
        engine_stats(g, &s);
    } while (s.n_late == 0);
    for (int i = 0; i < 3; i++) {
        q.ids = ids + i;
        submit(g, &q, &other[i]);
    }
    for (int i = 0; i < 3; i++)
        for (int k = 0; other[i].finish == FINISH_NONE; k++) {
            assert_true(engine_step(g, &e) > 0);
            assert_true(k < STEPS);
        }
    engine_stats(g, &s);
    assert_true(s.preemptions > 0);
    assert_int_equal(late.n, 0);
    atomic_store(&stuck, 0);
    run_to_end(g);
    struct constraint d = rules_of(3, 30);
    p.constraint = &d;
    alone(&p, &want);
    assert_same(&late, &want);
    assert_all_free(g);
    engine_close(g);
    assert_int_equal(n_rules, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_alone), cmocka_unit_test(stuck_requests_end_at_once),
        cmocka_unit_test(preemption_while_waiting_changes_no_answer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

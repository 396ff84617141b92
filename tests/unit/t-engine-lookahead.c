/* t-engine-lookahead.c - lookahead steps on a backend that fails when a step is begun, waited for,
 * or run again for its logits.  It fails once, or from then on; every call is tried.  Running
 * requests end with the error, waiting ones get the answer that they would have had alone, and no
 * block is lost. */
#include "tests/unit/engine_fake.h"

enum { N = 6 };
static const struct { int n_ids, max_tokens, priority; float temperature; } asked[N] = {
    { 3, 9, 0, 0 }, { 20, 14, 0, 0 }, { 9, 6, 1, 0.9f }, { 33, 11, 0, 0 }, { 5, 1, 0, 0 }, { 17, 20, -1, 0 },
};

static struct request_params job(int i, int32_t *ids, struct answer *a)
{
    struct rng r = { (uint64_t)i };
    for (int k = 0; k < asked[i].n_ids; k++)
        ids[k] = (int32_t)(rng_u64(&r) % 8);
    struct request_params p = params(ids, asked[i].n_ids, a);
    p.max_tokens = asked[i].max_tokens;
    p.priority = asked[i].priority;
    p.sampling.temperature = asked[i].temperature;
    p.sampling.seed = 7;
    p.ignore_eos = i % 2;
    return p;
}

/* Run all requests at once, in an engine with places for three and blocks for the two longest.
 * Returns the number of steps that failed. */
static int run_all(struct engine *g, struct answer got[N])
{
    static int32_t ids[N][MAX_LEN];
    struct err e;
    int left, n_failed = 0, n_steps = 0;
    for (int i = 0; i < N; i++) {
        struct request_params p = job(i, ids[i], &got[i]);
        assert_non_null(engine_submit(g, &p, &e));
    }
    while ((left = engine_step(g, &e)) != 0) {
        n_failed += left < 0;
        if (left < 0) {                 /* a failed step leaves no step in flight */
            assert_non_null(strstr(e.msg, "bus"));
            assert_int_equal(last_fake->n_begun, 0);
        }
        assert_true(n_steps++ < 1000);
    }
    return n_failed;
}

static void want_all(struct answer want[N])
{
    int32_t ids[MAX_LEN];
    for (int i = 0; i < N; i++) {
        const struct request_params p = job(i, ids, &want[i]);
        alone(&p, &want[i]);
        assert_true(want[i].n > 0);
    }
}

/* Check that each request has ended once: with its whole answer, or with the error after a
 * beginning of its answer.  Returns the number of requests with the error. */
static int check_all(const struct answer got[N], const struct answer want[N])
{
    int n = 0;
    for (int i = 0; i < N; i++) {
        assert_int_equal(got[i].n_after_end, 0);
        if (got[i].finish != FINISH_ERROR) {
            assert_same(&got[i], &want[i]);
            continue;
        }
        assert_non_null(strstr(got[i].error, "bus"));
        assert_true(got[i].n <= want[i].n);
        assert_memory_equal(got[i].ids, want[i].ids, (size_t)got[i].n * sizeof *got[i].ids);
        n++;
    }
    return n;
}

/* Let call number `at` of this kind fail.  Returns whether there was such a call. */
static int fails_at(enum fake_call what, int at, int for_good, const struct answer want[N], int *n_unnoticed)
{
    static struct answer got[N];
    struct engine_stats s;
    struct engine *g = open_with(3, 32, MAX_LEN / 16 + 2, 0);
    last_fake->call[what].at = at;
    last_fake->call[what].for_good = for_good;
    const int n_failed = run_all(g, got), n_errors = check_all(got, want), there = last_fake->call[what].n > at;
    engine_stats(g, &s);
    assert_int_equal(last_fake->n_begun, 0);
    assert_all_free(g);
    assert_int_equal(s.failed, n_errors);
    assert_int_equal(s.finished + s.failed, s.requests);
    assert_true(n_errors >= n_failed && (n_errors > 0) == (n_failed > 0));
    assert_true(for_good || (n_failed <= there && n_errors <= 3));
    *n_unnoticed += there && n_failed == 0;
    if (!for_good) {                    /* the engine goes on */
        last_fake->call[what].at = -1;
        assert_int_equal(run_all(g, got), 0);
        assert_int_equal(check_all(got, want), 0);
        assert_all_free(g);
    }
    engine_close(g);
    return there;
}

/* Let every call of every kind fail in turn.  Only a failure in a step whose results no request
 * needs may go unnoticed. */
static void every_failure_that_matters_is_noticed(void **state)
{
    (void)state;
    static struct answer want[N];
    want_all(want);
    for (int what = 0; what < FAKE_CALLS; what++)
        for (int for_good = 0; for_good < 2; for_good++) {
            int n = 0, n_unnoticed = 0;
            while (fails_at((enum fake_call)what, n, for_good, want, &n_unnoticed))
                n++;
            assert_true(n > 4);
            assert_true(what == FAKE_END ? n_unnoticed < n / 2 : n_unnoticed == 0);
        }
}

/* The logits after one prefix are NaN: the request that computes them ends there with an error, in
 * the middle of lookahead steps, and no other request is affected. */
static void not_a_number(void **state)
{
    (void)state;
    enum { BROKEN = 1 };
    static struct answer want[N], got[N];
    int32_t ids[MAX_LEN];
    want_all(want);
    const struct request_params p = job(BROKEN, ids, &got[BROKEN]);
    uint64_t hash = 0;
    for (int i = 0; i < p.n_ids; i++)
        hash = hash_next(hash, ids[i]);
    for (int n = 0; n < want[BROKEN].n; hash = hash_next(hash, want[BROKEN].ids[n++])) {
        struct engine *g = open_with(3, 32, MAX_LEN / 16 + 2, 0);
        last_fake->nan_hash = hash;
        assert_int_equal(run_all(g, got), 0);
        assert_int_equal(got[BROKEN].finish, FINISH_ERROR);
        assert_int_equal(got[BROKEN].n, n);
        assert_memory_equal(got[BROKEN].ids, want[BROKEN].ids, (size_t)n * sizeof *ids);
        for (int i = 0; i < N; i++)
            if (i != BROKEN)
                assert_same(&got[i], &want[i]);
        assert_non_null(strstr(got[BROKEN].error, "NaN"));
        assert_int_equal(last_fake->n_begun, 0);
        assert_all_free(g);
        engine_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failure_that_matters_is_noticed), cmocka_unit_test(not_a_number),
    };
    backend_under_test = &backend_fake_device;
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* t-engine-memory.c - blocks and states: shared prefixes, snapshots, evictions, long contexts that
 * are recomputed, and no allocation while tokens are generated. */
#include "libcommon/cache/state.h"
#include "tests/unit/engine_fake.h"

/* 100 requests have the same first 100 tokens and 10 of their own.  They run one after the other,
 * or all at once: the shared tokens are computed once. */
static void test_shared_prefix(void **state)
{
    (void)state;
    enum { N = 100, SYSTEM = 100, USER = 10 };
    static struct answer a[N], want;
    static int32_t ids[N][SYSTEM + USER];
    struct rng r = { 5 };
    for (int i = 0; i < N; i++)
        for (int j = 0; j < SYSTEM + USER; j++)
            ids[i][j] = j < SYSTEM ? j % 7 : j == SYSTEM ? i % VOCAB : j == SYSTEM + 1 ? i / VOCAB
                                                                                       : (int32_t)(rng_u64(&r) % VOCAB);
    for (int at_once = 0; at_once < 2; at_once++) {
        struct engine *g = open_engine(at_once ? N : 1, at_once ? 4096 : 64, 400);
        for (int i = 0; i < N; i++) {
            struct request_params p = params(ids[i], SYSTEM + USER, &a[i]);
            p.max_tokens = 1;
            submit(g, &p, &a[i]);
            if (!at_once)
                run_to_end(g);
        }
        run_to_end(g);
        /* One after the other: the first 100 tokens are computed once, and then only the tokens in
         * which requests differ.  At once: requests share whole blocks only. */
        assert_true(last_fake->n_computed <= (at_once ? SYSTEM + USER + (N - 1) * (SYSTEM % 16 + USER)
                                                      : SYSTEM + N * USER));
        assert_true(last_fake->n_computed >= SYSTEM + N * (USER - 2));
        for (int i = 0; i < N; i++) {
            struct request_params p = params(ids[i], SYSTEM + USER, &want);
            p.max_tokens = 1;
            alone(&p, &want);
            assert_same(&a[i], &want);
        }
        assert_all_free(g);
        engine_close(g);
    }
}

/* If blocks are short, prefixes are evicted, the least recently used ones first; without a prefix
 * cache there are none. */
static void the_least_recently_used_prefixes_are_evicted(void **state)
{
    (void)state;
    static struct answer a, b, want;
    static int32_t ids[3][MAX_LEN];
    static const struct { int which, cached; } turns[] = { { 0, 0 }, { 0, 63 }, { 1, 0 }, { 0, 63 }, { 2, 0 }, { 1, 0 },
                                                           { 2, 63 } };
    for (int i = 0; i < 3 * MAX_LEN; i++)
        ids[i / MAX_LEN][i % MAX_LEN] = i / MAX_LEN + i % 5;
    struct engine *g = open_engine(1, 512, 10);         /* blocks for two prompts of 4 blocks each,
                                                         * and for their answers */
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct request_params p = params(ids[turns[i].which], 64, &a);
        p.max_tokens = 2;
        p.ignore_eos = 1;
        submit(g, &p, &a);
        run_to_end(g);
        assert_int_equal(a.stats.n_cached, turns[i].cached);
        alone(&p, &want);
        assert_same(&a, &want);
    }
    assert_all_free(g);
    engine_close(g);
    g = open_with(1, 512, 20, 1);
    for (int i = 0; i < 2; i++) {
        struct request_params p = params(ids[0], 64, &b);
        submit(g, &p, &b);
        run_to_end(g);
        assert_int_equal(b.stats.n_cached, 0);
    }
    engine_close(g);
}

/* A recurrent model's prompt is reused up to the last snapshot. */
static void prompts_are_reused_up_to_the_last_snapshot(void **state)
{
    (void)state;
    enum { N = 100 };
    static int32_t ids[N + 20];
    static struct answer a[4];
    struct err e;
    for (int i = 0; i < N + 20; i++)
        ids[i] = i % 7;
    set_hybrid(1);
    const struct engine_options o = { .backend = &backend_fake, .max_len = MAX_LEN, .max_seqs = 1, .max_tokens = 64,
                                      .kv = { KV_F32, KV_F32 }, .snapshots = 4, .snapshot_every = 48 };
    struct engine *g = engine_open(&model, tokenizer, &o, &e);
    assert_non_null(g);
    static const struct { int n, first, cached; } cases[] = {
        { N, 0, 0 },
        { N, 0, 96 },           /* a snapshot of the end exists, but the last token is always
                                 * computed, so it cannot be used */
        { N + 10, 0, N },       /* continues where the first sequence ended */
        { 60, 0, 48 },          /* 59 tokens are known, 48 have a snapshot */
        { 40, 0, 0 },
        { 50, 1, 0 },           /* other tokens */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request *r;
        struct request_params p = params(ids + cases[i].first, cases[i].n, &a[0]), q = p;
        p.max_tokens = 1;
        p.requests = &r;
        assert_non_null(engine_submit(g, &p, &e));
        a[0].request = r;
        run_to_end(g);
        assert_int_equal(a[0].stats.n_cached, cases[i].cached);
        q.max_tokens = 1;
        alone(&q, &a[1]);
        assert_same(&a[0], &a[1]);
    }
    engine_close(g);
    const struct engine_options bad = { .backend = &backend_fake, .max_len = MAX_LEN, .snapshot_every = 40 };
    assert_null(engine_open(&model, tokenizer, &bad, &e));
    assert_non_null(strstr(e.msg, "every 40 tokens: expected 0 or more, and a multiple of 16"));
    set_hybrid(0);
}

/* With LongRoPE the answer is that of a sequence computed with one set of factors from its first
 * token on, also if the answer grows beyond the limit, if a prompt is computed in chunks, or if a
 * conversation continues beyond the limit. */
static void test_long_rope(void **state)
{
    (void)state;
    enum { ORIGINAL = 40, N = 30, MORE = 25 };
    static struct answer a, b, want;
    static int32_t ids[MAX_LEN];
    float factors[4] = { 0 };
    struct rng r = { 23 };
    model.config.n_ropes = 1;
    model.config.ropes[0] = (struct rope){ .inv_freq_long = factors, .original_max = ORIGINAL };
    for (int i = 0; i < MAX_LEN; i++)
        ids[i] = (int32_t)(rng_u64(&r) % VOCAB);
    struct engine *g = open_engine(2, 7, 64);
    struct request_params p = params(ids, N, &a);
    p.max_tokens = MORE;
    p.ignore_eos = 1;
    submit(g, &p, &a);
    run_to_end(g);
    assert_int_equal(a.n, MORE);
    /* at 41 tokens the 40 earlier ones are computed again */
    assert_int_equal(last_fake->n_computed, N + MORE - 1 + ORIGINAL);
    memcpy(ids + N, a.ids, sizeof *ids * MORE);
    /* compare each token with the first token of an answer to all tokens before it */
    for (int i = 0; i < MORE; i++) {
        struct request_params one = params(ids, N + i, &want);
        one.max_tokens = 1;
        alone(&one, &want);
        assert_int_equal(want.ids[0], a.ids[i]);
    }
    /* the cache has up to 40 tokens with the short factors, and N + MORE - 1 tokens with the long
     * ones */
    static const struct { int n, cached; } turns[] = { { 60, N + MORE - 1 }, { 41, 40 }, { 35, 34 }, { 40, 39 },
                                                       { 70, 60 } };
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct request_params q = params(ids, turns[i].n, &b);
        q.max_tokens = 1;
        submit(g, &q, &b);
        run_to_end(g);
        assert_int_equal(b.stats.n_cached, turns[i].cached);
        alone(&q, &want);
        assert_same(&b, &want);
    }
    engine_close(g);
    model.config.n_ropes = 0;
}

static void test_no_allocation(void **state)
{
    (void)state;
    struct err e;
    static struct answer a;
    struct engine *g = open_engine(1, 64, 8);
    struct request_params p = params((const int32_t[]){ 1, 2 }, 2, &a);
    const char *stop = "never so";
    p.ignore_eos = 1;
    p.stop = &stop;
    p.n_stop = 1;
    p.sampling.temperature = 1;
    p.sampling.repetition_penalty = 1.1f;
    assert_non_null(engine_submit(g, &p, &e));
    for (int i = 0; i < 20; i++)
        assert_int_equal(engine_step(g, &e), 1);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 80; i++)
        assert_int_equal(engine_step(g, &e), 1);
    assert_int_equal(mallinfo2().uordblks, before);
    engine_close(g);
}

/* A recurrent model's request with a cached prefix waits for blocks: it copies nothing until it
 * starts, and then starts with that prefix. */
static void test_waiting_copies_nothing(void **state)
{
    (void)state;
    enum { N = 90 };                    /* takes 6 of 8 blocks, the last of which is not full */
    static int32_t ids[N + 4], other[40];
    static struct answer first, runs, waits, want;
    struct engine_stats before, s;
    struct err e;
    for (int i = 0; i < N + 4; i++)
        ids[i] = i % 7;
    for (int i = 0; i < 40; i++)
        other[i] = 1 + i % 5;
    set_hybrid(1);
    struct engine *g = open_with(2, 64, MAX_LEN / 16, 0);
    struct request_params p = params(ids, N, &first), q = params(other, 40, &runs), r = params(ids, N + 4, &waits);
    p.max_tokens = r.max_tokens = 1;
    q.max_tokens = 22;                  /* grows to 62 tokens; the first 64 tokens of the other
                                         * request are not evicted for it */
    q.ignore_eos = 1;
    submit(g, &p, &first);
    run_to_end(g);
    submit(g, &q, &runs);
    assert_true(engine_step(g, &e) > 0);
    submit(g, &r, &waits);
    assert_true(engine_step(g, &e) > 0);
    engine_stats(g, &before);
    assert_int_equal(before.n_waiting, 1);
    for (int i = 0; i < 10; i++)
        assert_true(engine_step(g, &e) > 0);
    engine_stats(g, &s);
    assert_int_equal(s.n_waiting, 1);
    assert_int_equal(s.copies, before.copies);
    run_to_end(g);
    assert_true(waits.stats.n_cached > 0);
    alone(&r, &want);
    assert_same(&waits, &want);
    assert_all_free(g);
    engine_close(g);
    set_hybrid(0);
}

/* Snapshots that cannot be found any more, because their node was evicted, are reused before those
 * that can. */
static void test_lost_snapshots(void **state)
{
    (void)state;
    struct err e;
    int32_t ids[3 * 16];
    struct kv_table t;
    struct kv_pool *p = kv_pool_open(3, &e);
    struct state_pool *s = state_pool_open(2, &e);
    assert_int_equal(kv_table_init(&t, 48, &e), 0);
    int32_t end[3];
    int slot[2];
    /* two sequences of one block each; the first is the older one */
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 16; j++)
            ids[j] = 20 * i + j;
        assert_int_equal(kv_table_reserve(&t, p, 16), 0);
        t.n_tokens = 16;
        prefix_enter(&t, p, ids, 1);
        end[i] = prefix_end(&t, p);
        state_keep(s, p, end[i], slot[i] = state_take(s, p));
        kv_table_truncate(&t, p, 0);
    }
    state_used(s, slot[0]);
    ids[0] = 0;                                         /* t holds the first sequence's block, so
                                                         * the second one's block is evicted */
    for (int j = 0; j < 16; j++)
        ids[j] = j;
    assert_int_equal(prefix_take(&t, p, ids, 16), 16);
    assert_int_equal(kv_table_reserve(&t, p, 48), 0);
    state_used(s, slot[1]);                             /* lost, and the newest */
    assert_int_equal(state_take(s, p), slot[1]);
    assert_int_equal(state_find(s, p, end[0]), slot[0]);
    kv_table_release(&t, p);
    state_pool_close(s);
    kv_pool_close(p);
}

/* engine_trim() returns unused blocks and states to the system; answers stay the same. */
static void trimming_changes_no_answer(void **state)
{
    (void)state;
    static int32_t ids[60];
    static struct answer a, b, want;
    struct err e;
    for (int i = 0; i < 60; i++)
        ids[i] = i % 7;
    set_hybrid(1);
    struct engine *g = open_with(2, 64, 20, 0);
    struct request_params p = params(ids, 60, &a), q = params(ids, 50, &b);
    p.max_tokens = 4;
    p.ignore_eos = q.ignore_eos = 1;
    q.max_tokens = 20;
    submit(g, &p, &a);
    run_to_end(g);
    submit(g, &q, &b);
    assert_true(engine_step(g, &e) > 0);
    struct fake *f = last_fake;
    const int n_states = f->o.n_states;
    engine_trim(g);
    assert_true(f->n_dropped_blocks > 0);
    assert_true(f->n_dropped_states >= 1 && f->n_dropped_states < n_states);
    run_to_end(g);
    alone(&q, &want);
    assert_same(&b, &want);
    engine_trim(g);
    f->n_dropped_states = 0;
    engine_trim(g);                                     /* nothing runs: all of them */
    assert_int_equal(f->n_dropped_states, n_states);
    submit(g, &p, &a);
    run_to_end(g);
    assert_int_equal(a.stats.n_cached, 0);
    alone(&p, &want);
    assert_same(&a, &want);
    engine_close(g);
    set_hybrid(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_prefix), cmocka_unit_test(the_least_recently_used_prefixes_are_evicted),
        cmocka_unit_test(prompts_are_reused_up_to_the_last_snapshot), cmocka_unit_test(test_long_rope),
        cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_waiting_copies_nothing),
        cmocka_unit_test(test_lost_snapshots), cmocka_unit_test(trimming_changes_no_answer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* t-engine-turns.c - the order of requests: turns, priorities with ageing, deadlines, cancels,
 * the queue and its limits, how much of a prompt goes into a step, and how even steps are. */
#include "libcommon/cpu/cpu.h"
#include "libcommon/engine/internal.h"
#include "tests/unit/engine_fake.h"

/* A conversation continues, is edited, or is cut short: the tokens that are in the cache already
 * are not computed again, to the exact token. */
static void cached_tokens_are_not_computed_again(void **state)
{
    (void)state;
    static struct answer first, second, want;
    int32_t ids[MAX_LEN];
    for (int other_turn = 0; other_turn < 3; other_turn++) {
        struct engine *g = open_engine(1, 512, 2 * MAX_LEN / 16);
        struct request_params p = params((const int32_t[]){ 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2 },
                                         19, &first);
        int n = 19 + 25;
        p.ignore_eos = 1;
        p.max_tokens = 25;
        submit(g, &p, &first);
        run_to_end(g);
        memcpy(ids, p.ids, 19 * sizeof *ids);
        memcpy(ids + 19, first.ids, 25 * sizeof *ids);
        int same = n - 1;                               /* the last token's keys and values were
                                                         * never computed */
        if (other_turn == 1)
            ids[same = 21] ^= 1;                        /* the conversation was edited */
        if (other_turn == 2)
            n = 30, same = 29;                          /* the conversation is cut short: its last
                                                         * token is computed again */
        else
            for (int i = 0; i < 7; i++)
                ids[n++] = i;
        int before = last_fake->n_computed;
        p = params(ids, n, &second);
        p.max_tokens = 10;
        p.ignore_eos = 1;
        submit(g, &p, &second);
        run_to_end(g);
        assert_int_equal(last_fake->n_computed - before, n - same + 9);
        assert_int_equal(second.stats.n_cached, same);
        assert_int_equal(second.stats.n_prompt, n);
        assert_int_equal(second.stats.n_generated, 10);
        assert_true(second.stats.first_token_s >= second.stats.prefill_s && second.stats.prefill_s > 0);
        alone(&p, &want);
        assert_same(&second, &want);
        assert_all_free(g);
        engine_close(g);
    }
}

/* Higher priorities go first, equal ones in the order of arrival; the last request in turn is
 * preempted when blocks are short. */
static void higher_priorities_go_first(void **state)
{
    (void)state;
    static struct answer a[4];
    static const int priority[4] = { 0, 0, 1, 0 };
    struct err e;
    struct engine_stats s;
    int32_t ids[100];
    struct engine *g = open_engine(1, 512, 16);
    for (int i = 0; i < 4; i++) {
        struct request_params p = params((const int32_t[]){ i, 1, 2 }, 3, &a[i]);
        p.priority = priority[i];
        p.max_tokens = 3;
        p.ignore_eos = 1;
        submit(g, &p, &a[i]);
    }
    static const int order[4] = { 2, 0, 1, 3 };
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 3; j++)
            engine_step(g, &e);
        for (int j = 0; j < 4; j++)
            assert_int_equal(a[order[j]].finish != FINISH_NONE, j <= i);
    }
    engine_close(g);
    for (int i = 0; i < 100; i++)
        ids[i] = i % 5;
    g = open_engine(2, 512, 9);
    struct request_params p = params(ids, 60, &a[0]);
    p.max_tokens = 60;
    p.ignore_eos = 1;
    submit(g, &p, &a[0]);
    for (int i = 0; i < 5; i++)
        engine_step(g, &e);
    ids[0] = 3;
    struct request_params q = params(ids, 100, &a[1]);
    q.priority = 1;
    q.max_tokens = 10;
    q.ignore_eos = 1;
    submit(g, &q, &a[1]);
    engine_step(g, &e);
    engine_stats(g, &s);
    assert_int_equal(s.preemptions, 1);
    assert_int_equal(s.n_waiting, 1);
    assert_int_equal(a[0].n, 5);
    assert_int_equal(a[1].n, 1);
    run_to_end(g);
    ids[0] = 0;
    alone(&p, &a[2]);
    assert_same(&a[0], &a[2]);
    ids[0] = 3;
    alone(&q, &a[2]);
    assert_same(&a[1], &a[2]);
    assert_all_free(g);
    engine_close(g);
}

static void requests_end_at_their_deadline(void **state)
{
    (void)state;
    static struct answer a[3], want;
    struct err e;
    struct engine *g = open_engine(1, 64, 8);
    struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &a[0]);
    p.ignore_eos = 1;
    p.max_tokens = 20;
    submit(g, &p, &a[0]);
    p.deadline_ns = 1;                                  /* passed long ago: the request ends
                                                         * although another one runs */
    submit(g, &p, &a[1]);
    p.deadline_ns = clock_ns() + (uint64_t)3600 * 1000000000;
    submit(g, &p, &a[2]);
    assert_int_equal(engine_step(g, &e), 2);
    assert_int_equal(a[1].finish, FINISH_DEADLINE);
    assert_int_equal(a[1].n, 0);
    run_to_end(g);
    alone(&p, &want);
    assert_same(&a[0], &want);
    assert_same(&a[2], &want);
    p.max_tokens = 0;
    /* a deadline in the middle of the answer: if it passed before the first token, repeat with a
     * longer one */
    for (uint64_t ms = 2;; ms *= 4) {
        p.deadline_ns = clock_ns() + ms * 1000000;
        submit(g, &p, &a[0]);
        engine_step(g, &e);
        if (a[0].n > 0)
            break;
        assert_int_equal(a[0].finish, FINISH_DEADLINE);
        assert_true(ms < 60000);
    }
    while (clock_ns() < p.deadline_ns)
        ;
    assert_int_equal(engine_step(g, &e), 0);
    assert_int_equal(a[0].finish, FINISH_DEADLINE);
    assert_int_equal(a[0].n, 1);
    assert_all_free(g);
    engine_close(g);
}

static void cancelled_requests_end_without_changing_others(void **state)
{
    (void)state;
    struct err e;
    static struct answer a[4], want;
    static const int32_t prompt[] = { 3, 4, 3, 4, 5 };
    struct engine *g = open_engine(2, 64, 16);
    struct request *r[4];
    struct request_params p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = params(prompt, 5 - i, &a[i]);
        p[i].ignore_eos = 1;
        p[i].max_tokens = 20;
        assert_non_null(r[i] = engine_submit(g, &p[i], &e));
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(engine_step(g, &e), 4);
    engine_cancel(g, r[0]);                             /* cancel one request that runs and one that waits */
    engine_cancel(g, r[3]);
    assert_int_equal(a[0].finish, FINISH_NONE);
    assert_int_equal(engine_step(g, &e), 2);
    assert_int_equal(a[0].finish, FINISH_CANCELLED);
    assert_int_equal(a[0].n, 5);
    assert_int_equal(a[3].finish, FINISH_CANCELLED);
    assert_int_equal(a[3].n, 0);
    run_to_end(g);
    for (int i = 1; i < 3; i++) {
        alone(&p[i], &want);
        assert_same(&a[i], &want);
    }
    assert_all_free(g);
    engine_close(g);
}


/* Thousands of requests wait; the queue is limited; a refused request leaves no trace. */
static void a_full_queue_refuses_without_a_trace(void **state)
{
    (void)state;
    enum { N = 5000 };
    static struct answer a;
    static struct request *r[N];
    struct err e;
    struct engine_stats s;
    struct engine_limits l;
    struct engine *g = open_engine(2, 64, 16);
    struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &a);
    p.on_token = NULL;
    p.max_tokens = 4;
    engine_limits(g, &l);
    l.max_waiting = 3;
    assert_int_equal(engine_set_limits(g, &l, &e), 0);
    for (int i = 0; i < 5; i++)                         /* two run, three wait */
        assert_non_null(engine_submit(g, &p, &e));
    assert_null(engine_submit(g, &p, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    assert_non_null(strstr(e.msg, "at most 3"));
    engine_step(g, &e);
    assert_null(engine_submit(g, &p, &e));
    p.n = 2;
    run_to_end(g);
    p.constraint = &(struct constraint){ rules_new(1, 1), rules_mask, rules_accept, rules_forced, NULL, rules_close,
                                         rules_complete, rules_error, rules_hurry, rules_busy, rules_cancel };
    assert_null(engine_submit(g, &p, &e));              /* n = 2 needs fork(); after the refusal the
                                                         * state still belongs to the caller */
    assert_int_equal(n_rules, 1);
    rules_close(p.constraint->state);
    p.constraint = NULL;
    p.n = 0;
    l.max_waiting = 0;
    assert_int_equal(engine_set_limits(g, &l, &e), 0);
    for (int i = 0; i < N; i++)
        assert_non_null(r[i] = engine_submit(g, &p, &e));
    for (int i = 0; i < N; i += 2)
        engine_cancel(g, r[i]);
    run_to_end(g);
    engine_stats(g, &s);
    assert_int_equal(s.cancelled, N / 2);
    assert_int_equal(s.finished, N / 2 + 5);
    assert_all_free(g);
    static const struct engine_limits wrong[] = { { .max_running = 0 }, { .max_running = 3 },
                                                   { .max_running = 1, .chunk = -1 },
                                                   { .max_running = 1, .max_waiting = -1 },
                                                   { .max_running = 1, .draft = -1 },
                                                   { .max_running = 1, .draft = DRAFT_MOST + 1 } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(engine_set_limits(g, &wrong[i], &e), -1);
    engine_close(g);
}

/* While answers run, prompts take no more tokens of a step than the limit allows; when none runs,
 * they take all of it. */
static void prompts_take_no_more_than_the_limit(void **state)
{
    (void)state;
    static struct answer a, b;
    static int32_t ids[MAX_LEN];
    struct err e;
    struct engine *g = open_engine(2, 64, 16);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 2, .chunk = 5 }, &e), 0);
    struct request_params p = params(ids, 100, &a);
    p.ignore_eos = 1;
    submit(g, &p, &a);
    engine_step(g, &e);
    assert_int_equal(last_fake->largest_step, 64);
    engine_step(g, &e);
    assert_int_equal(a.n, 1);
    last_fake->largest_step = 0;
    ids[0] = 1;
    submit(g, &p, &b);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(b.n, 0);
        engine_step(g, &e);
    }
    assert_int_equal(b.n, 1);
    assert_int_equal(a.n, 21);
    assert_int_equal(last_fake->largest_step, 6);
    engine_close(g);
}

/* The activations of a step take at most about 24 MB: a large model gets smaller steps, down to 32
 * tokens.  A size that the caller chooses is kept. */
static void large_models_get_smaller_steps(void **state)
{
    (void)state;
    static const struct { int hidden, heads, kv_heads, mlp, asked, least, most; } cases[] = {
        { 576, 9, 3, 1536, 0, 512, 512 }, { 1536, 12, 2, 8960, 0, 256, 384 }, { 8192, 64, 8, 28672, 0, 32, 96 },
            { 1 << 20, 64, 8, 1 << 22, 0, 32, 32 },
        { 8192, 64, 8, 28672, 512, 512, 512 },
    };
    struct backend cpu_like = backend_fake;
    cpu_like.step_tokens = cpu_step_tokens;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e;
        struct model large = model;
        struct engine_options o = { .backend = &cpu_like, .n_threads = 2, .max_len = 64,
                                    .max_tokens = cases[i].asked };
        large.config.hidden_size = cases[i].hidden;
        large.config.n_heads = cases[i].heads;
        large.config.n_kv_heads = cases[i].kv_heads;
        large.config.head_dim = 128;
        large.config.intermediate_size = cases[i].mlp;
        struct engine *g = engine_open(&large, tokenizer, &o, &e);
        assert_non_null(g);
        assert_in_range(last_fake->o.max_tokens, cases[i].least, cases[i].most);
        size_t floats = 2 * (size_t)cases[i].hidden + 256 * (size_t)(cases[i].heads + cases[i].kv_heads) +
                        (size_t)cases[i].mlp;
        if (!cases[i].asked && last_fake->o.max_tokens > 32)
            assert_true((size_t)last_fake->o.max_tokens * floats * sizeof(float) <= 24 << 20);
        engine_close(g);
    }
}

static int rising(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* 100 requests of 100 shared tokens and 10 of their own: the shared ones are computed once.  There
 * are 12 tokens, so some requests also begin their own part like an earlier one. */
static void shared_prompts_are_computed_once(void **state)
{
    (void)state;
    enum { REQUESTS = 100, SHARED = 100, OWN = 10, PROMPT = SHARED + OWN };
    static int32_t ids[REQUESTS][PROMPT];
    static struct answer a;
    struct rng r = { 22 };
    int want = 0;
    struct engine *g = open_engine(1, 32, MAX_LEN / 16 + 2 * REQUESTS);
    for (int i = 0; i < REQUESTS; i++) {
        int most = 0;
        for (int j = 0; j < PROMPT; j++)
            ids[i][j] = i && j < SHARED ? ids[0][j] : (int32_t)(rng_u64(&r) % VOCAB);
        for (int earlier = 0, n; earlier < i; earlier++) {
            for (n = 0; n < PROMPT - 1 && ids[i][n] == ids[earlier][n]; n++)
                ;
            most = n > most ? n : most;
        }
        want += PROMPT - most;
        struct request_params p = params(ids[i], PROMPT, &a);
        p.max_tokens = 1;
        submit(g, &p, &a);
        run_to_end(g);
        assert_int_equal(a.stats.n_cached, most);
    }
    assert_int_equal(last_fake->n_computed, want);
    assert_true(want <= SHARED + (REQUESTS - 1) * OWN);         /* 1,090 of 11,000 */
    engine_close(g);
}

/* Steps are simulated, with computed durations: prompts of 512 tokens arrive beside eight running
 * answers, each with an answer of its own before the next one arrives.  However often prompts
 * arrive, one gap in a hundred is at most twice the median.  If they arrive all the time, they get
 * more tokens of a step. */
static void gaps_stay_even_while_prompts_arrive(void **state)
{
    enum { STEPS = 1200, PROMPT = 512 };
    static const int answers[] = { 1, 4, 8, 16, 32, 64, 300 };
    static const float alone = 15e6f, each = 0.73e6f;
    static float ns[STEPS];
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct engine *g = open_engine(9, 512, 16);
        struct pace *p = &g->pace;
        int left = PROMPT, answer = answers[i], n_prompts = 0;
        p->alone_ns[8] = p->alone_ns[9] = alone;
        p->token_ns = each;
        for (int step = 0; step < STEPS; step++) {
            p->n_decoding = 8 + (left == 0);
            p->chunk = (int)((p->stretch - 1) * alone / each);
            p->n_prompt = p->chunk < left ? p->chunk : left;
            ns[step] = alone + (float)p->n_prompt * each;
            pace_learn(g, (uint64_t)ns[step]);
            left -= p->n_prompt;
            if (left == 0 && answer-- == 0) {
                left = PROMPT;
                answer = answers[i];
                n_prompts++;
            }
        }
        qsort(ns, STEPS, sizeof *ns, rising);
        if (ns[STEPS * 99 / 100] > 2 * ns[STEPS / 2])
            fail_msg("answers of %d tokens: 1 %% of the gaps are over %.1f ms, the median is %.1f", answers[i],
                     ns[STEPS * 99 / 100] * 1e-6, ns[STEPS / 2] * 1e-6);
        if (answers[i] == 1)
            assert_true(n_prompts > STEPS / 12);
        engine_close(g);
    }
}

/* The first prompt beside an answer takes 32 tokens at once, because no prompt token has been timed
 * yet. */
static void the_first_prompt_takes_32_tokens(void **state)
{
    enum { PROMPT = 64, FIRST = 32 };
    static struct answer a, b;
    int32_t ids[PROMPT];
    struct err e;
    (void)state;
    for (int i = 0; i < PROMPT; i++)
        ids[i] = i % EOS;
    struct engine *g = open_engine(2, 512, 30);
    struct request_params p = params(ids, 2, &a), q = params(ids, PROMPT, &b);
    p.ignore_eos = q.ignore_eos = 1;
    p.max_tokens = 40;
    q.max_tokens = 1;
    assert_non_null(engine_submit(g, &p, &e));
    for (int i = 0; i < 5; i++)
        assert_int_equal(engine_step(g, &e), 1);
    g->pace.alone_ns[1] = 15e6f;
    g->pace.token_ns = 0;
    assert_non_null(engine_submit(g, &q, &e));
    assert_true(engine_step(g, &e) > 0);
    assert_int_equal(g->pace.n_prompt, FIRST);
    run_to_end(g);
    assert_int_equal(a.n, 40);
    assert_int_equal(b.n, 1);
    engine_close(g);
}

/* The chosen length of a draft makes the most tokens in the time of a step, for each rate of right
 * tokens and each cost of a drafted token.  With recurrent layers the tokens that must be computed
 * again after a wrong draft count as well. */
static void drafts_have_the_best_length(void **state)
{
    (void)state;
    static const struct { float right, cost; int n, n_recurrent; } cases[] = {
        { 0.6f, 0.1f, 3, 3 }, { 0.5f, 0.25f, 1, 1 }, { 0.9f, 0.1f, 10, 7 }, { 0.8f, 0.02f, 11, 11 },
        { 0.2f, 0.3f, 0, 0 } };
    static struct answer a;
    struct err e;
    for (int recurrent = 0; recurrent < 2; recurrent++) {
        set_hybrid(recurrent);
        struct engine *g = open_with(1, 64, MAX_LEN / 16, 1);
        struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &a);
        p.ignore_eos = 1;
        p.draft.use = DRAFT_ON;
        submit(g, &p, &a);
        assert_int_equal(engine_step(g, &e), 1);
        g->pace.alone_ns[1] = 1e6f;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            g->pace.draft_ns[1] = cases[i].cost * 1e6f;
            g->running[0]->draft.trust[0] = cases[i].right;
            float rate;
            assert_int_equal(draft_length(g, g->running[0], 0, 1, DRAFT_MOST, 0, &rate),
                             recurrent ? cases[i].n_recurrent : cases[i].n);
        }
        engine_close(g);
    }
    set_hybrid(0);
}

/* A preempted request reads from the folder only if that is faster than computing, as far as both
 * are known; after some refusals, reading is tried again. */
static void test_prefixes_pay(void **state)
{
    (void)state;
    struct engine *g = calloc(1, sizeof *g);
    struct request *r = calloc(1, sizeof *r);
    assert_true(g && r);
    g->pace.token_ns = 100;
    g->read_ns = 150;
    assert_true(prefixes_pay(g, r));
    r->preempted = 1;
    assert_false(prefixes_pay(g, r));
    int refused = 1;
    while (refused < 100 && !prefixes_pay(g, r))
        refused++;
    assert_int_equal(refused, 7);                       /* (15/16)^7 is less than 100/150 */
    g->read_ns = 50;
    assert_true(prefixes_pay(g, r));
    g->read_ns = 150;
    g->pace.token_ns = 0;
    assert_true(prefixes_pay(g, r));
    free(g);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes_pay),
        cmocka_unit_test(cached_tokens_are_not_computed_again),
        cmocka_unit_test(shared_prompts_are_computed_once), cmocka_unit_test(higher_priorities_go_first),
        cmocka_unit_test(requests_end_at_their_deadline),
        cmocka_unit_test(cancelled_requests_end_without_changing_others),
        cmocka_unit_test(a_full_queue_refuses_without_a_trace),
        cmocka_unit_test(prompts_take_no_more_than_the_limit),
        cmocka_unit_test(gaps_stay_even_while_prompts_arrive),
        cmocka_unit_test(the_first_prompt_takes_32_tokens), cmocka_unit_test(large_models_get_smaller_steps),
        cmocka_unit_test(drafts_have_the_best_length),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

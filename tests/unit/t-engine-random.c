/* t-engine-random.c - requests of all kinds at random times, in engines of all sizes: every answer
 * is the one that the request gets alone. */
#include "tests/unit/engine_fake.h"

enum { MOST = 3 };                      /* answers to one prompt */

struct job {
    struct request_params p;
    int32_t ids[MAX_LEN];
    struct answer got[MOST];
    void *users[MOST];
    struct request *requests[MOST];
    uint64_t rules; int least;          /* least > 0: constrained */
    int leaves;                         /* number of steps after which the first request is
                                         * cancelled; -1: never */
};

static void random_job(struct job *j, struct rng *r, int32_t shared[3][MAX_LEN])
{
    int n = 1 + (int)(rng_u64(r) % 90), from = rng_u64(r) % 4 ? (int)(rng_u64(r) % (uint64_t)(n + 1)) : 0;
    memcpy(j->ids, shared[rng_u64(r) % 3], sizeof j->ids);
    for (int i = from; i < n; i++)
        j->ids[i] = (int32_t)(rng_u64(r) % VOCAB);
    if (rng_u64(r) % 3 == 0)
        memcpy(j->ids, shared[0], sizeof j->ids);
    j->p = params(j->ids, n, &j->got[0]);
    memset(j->got, 0, sizeof j->got);
    j->p.max_tokens = (int)(rng_u64(r) % 60);
    j->p.sampling.temperature = rng_u64(r) % 2 ? 0 : 0.9f;
    j->p.sampling.repetition_penalty = rng_u64(r) % 2 ? 1 : 1.3f;
    j->p.sampling.frequency_penalty = rng_u64(r) % 4 ? 0 : 0.5f;
    j->p.sampling.seed = rng_u64(r);
    j->p.ignore_eos = rng_u64(r) % 2;
    static const char *const stops[] = { "bcc", "cab b" };
    if (rng_u64(r) % 4 == 0) {          /* drafts may extend beyond a stop string */
        j->p.stop = stops;
        j->p.n_stop = 1 + (int)(rng_u64(r) % 2);
    }
    static const int32_t ends[] = { 3, END };
    if (rng_u64(r) % 5 == 0) {
        j->p.stop_ids = ends;
        j->p.n_stop_ids = 1 + (int)(rng_u64(r) % 2);
    }
    j->p.min_tokens = rng_u64(r) % 4 ? 0 : (int)(rng_u64(r) % 30);
    j->p.priority = (int)(rng_u64(r) % 7) - 3;
    j->p.n_logprobs = rng_u64(r) % 4 ? -1 : (int)(rng_u64(r) % 5);
    j->p.prompt_logprobs = j->p.n_logprobs >= 0 && rng_u64(r) % 2;
    j->least = rng_u64(r) % 4 ? 0 : 1 + (int)(rng_u64(r) % 40);
    j->rules = rng_u64(r);
    j->leaves = rng_u64(r) % 5 ? -1 : (int)(rng_u64(r) % 30);
    if (rng_u64(r) % 8 == 0) {
        j->p.embed = rng_u64(r) % 2 ? EMBED_MEAN : EMBED_LAST;
        j->p.n_logprobs = -1;
        j->p.prompt_logprobs = j->least = 0;
    } else if (rng_u64(r) % 3 == 0) {
        j->p.n = 2 + (int)(rng_u64(r) % (MOST - 1));
    }
    if (rng_u64(r) % 3 == 0)
        j->p.draft = (struct draft_params){ .use = (enum draft_use)(rng_u64(r) % 3), .most = (int)(rng_u64(r) % 16),
                                            .predicted = shared[1], .n_predicted = (int)(rng_u64(r) % MAX_LEN) };
    if (rng_u64(r) % 6 == 0)
        j->p.deadline_ns = clock_ns() + rng_u64(r) % 2000000;
    j->p.tenant = rng_u64(r) % 4;
    j->p.scope = rng_u64(r) % 3;
    for (int i = 0; i < MOST; i++)
        j->users[i] = &j->got[i];
    j->p.users = j->users;
    j->p.requests = j->requests;
}

/* Set sampling options with which a device may draw tokens.  Some requests have a temperature: for
 * these the fake device leaves drawing to the host. */
static void make_drawable(struct job *j)
{
    j->p.sampling.repetition_penalty = 1;
    j->p.sampling.frequency_penalty = 0;
    j->p.sampling.temperature = j->rules % 8 ? 0 : 0.9f;
    j->p.n_logprobs = -1;
    j->p.prompt_logprobs = j->least = 0;
    j->p.embed = EMBED_NONE;
}

static void submit_job(struct engine *g, struct job *j)
{
    struct err e;
    struct constraint c;
    if (j->least) {
        c = rules_of(j->rules, j->least);
        ((struct rules *)c.state)->slow = j->rules % 4 == 0;
        j->p.constraint = &c;
    }
    if (!engine_submit(g, &j->p, &e))
        fail_msg("%s", e.msg);
    j->p.constraint = NULL;
    for (int i = 0; i < (j->p.n ? j->p.n : 1); i++)
        j->got[i].request = j->requests[i];
}

/* Check that the answer is the one that the request gets alone, or a beginning of it if the request
 * was cancelled or reached its deadline. */
static void check_job(struct job *j, int *n_stopped)
{
    static struct answer want;
    for (int i = 0; i < (j->p.n ? j->p.n : 1); i++) {
        struct request_params p = j->p;
        const struct answer *got = &j->got[i];
        struct constraint c;
        p.sampling.seed += (uint64_t)i;
        if (j->least) {
            c = rules_of(j->rules, j->least);
            p.constraint = &c;
            if (p.n_logprobs < 0)
                p.n_logprobs = 0;       /* then forced tokens are computed one by one */
        }
        alone(&p, &want);
        assert_int_equal(got->n_after_end, 0);
        assert_int_not_equal(got->finish, FINISH_NONE);
        if (got->finish == FINISH_CANCELLED || got->finish == FINISH_DEADLINE) {
            assert_true(j->leaves >= 0 || p.deadline_ns || j->p.deadline_ns);
            assert_true(got->n <= want.n && got->n_prompt <= want.n_prompt);
            assert_memory_equal(got->ids, want.ids, (size_t)got->n * sizeof *got->ids);
        } else {
            assert_same(got, &want);
            *n_stopped += got->stop > 0;
            assert_int_equal(got->n_prompt, p.prompt_logprobs ? p.n_ids : 0);
            assert_int_equal(got->n_embedding, p.embed ? HIDDEN : 0);
        }
        assert_memory_equal(got->prompt, p.ids, (size_t)got->n_prompt * sizeof *got->prompt);
        assert_memory_equal(got->prompt_logprob, want.prompt_logprob,
                            (size_t)got->n_prompt * sizeof *got->prompt_logprob);
        if (j->p.n_logprobs >= 0)
            assert_memory_equal(got->logprob, want.logprob, (size_t)got->n * sizeof *got->logprob);
        assert_memory_equal(got->prompt_top, want.prompt_top, (size_t)got->n_prompt * sizeof *got->prompt_top);
        assert_memory_equal(got->top, want.top, (size_t)got->n * sizeof *got->top);
        assert_memory_equal(got->embedding, want.embedding, sizeof *got->embedding * (size_t)got->n_embedding);
    }
}

enum { N_JOBS = 14 };                   /* of one engine */

/* Submit the jobs at random times, cancel those that leave, and step until all have ended. */
static void run_jobs(struct engine *g, struct job jobs[N_JOBS], struct rng *r, int32_t shared[3][MAX_LEN], int ahead)
{
    struct err e;
    int n = 0, left = 0, n_steps = 0, steps[N_JOBS] = { 0 };
    while (n < N_JOBS || left > 0) {
        if (n < N_JOBS && rng_u64(r) % 3 == 0) {
            random_job(&jobs[n], r, shared);
            if (ahead && rng_u64(r) % 12)
                make_drawable(&jobs[n]);
            submit_job(g, &jobs[n++]);
        }
        for (int i = 0; i < n; i++)
            if (steps[i]++ == jobs[i].leaves && jobs[i].got[0].finish == FINISH_NONE)
                engine_cancel(g, jobs[i].requests[0]);
        assert_int_not_equal(left = engine_step(g, &e), -1);
        assert_true(n_steps++ < 100000);        /* it comes to an end */
    }
}

static uint64_t n_slid;                 /* engines that had window blocks */

/* Number of rounds.  Sanitizers take ten times as long, and find errors that do not depend on the
 * answers, so they get fewer rounds, most of which do not compute the answers again alone.
 * ZSE_TEST_ALL=1: more rounds. */
static int n_rounds(void) { return getenv("ZSE_SANITIZED") ? 60 : getenv("ZSE_TEST_ALL") ? 400 : 200; }

/* Requests of all kinds come at random times into engines of all sizes.  With `ahead` the backend
 * supports lookahead steps, and most requests have options with which it can draw tokens. */
static void random_schedules(int ahead)
{
    uint64_t drafted = 0, accepted = 0, accepted_under_rules = 0;
    static struct job jobs[N_JOBS];
    static int32_t shared[3][MAX_LEN];
    uint64_t preempted = 0, cached = 0, copies = 0, evicted = 0, cut = 0, late = 0;
    const int rounds = n_rounds(), check_all = rounds >= 200;
    const uint64_t many = (uint64_t)rounds / 4;         /* least number of times that each kind of
                                                         * event must have occurred */
    int n_lookahead = 0, n_undrawn = 0, n_stopped = 0;
    float factors[4] = { 0 };
    for (int round = 0; round < rounds; round++) {
        struct rng r = { (uint64_t)round };
        struct err e;
        struct engine_stats s;
        const int max_seqs = 1 + (int)(rng_u64(&r) % 9), max_tokens = 1 + (int)(rng_u64(&r) % 64),
                  n_blocks = MAX_LEN / 16 + (int)(rng_u64(&r) % 12);
        if (round % 4 == 3 && !window_under_test) {
            model.config.n_ropes = 1;
            model.config.ropes[0] = (struct rope){ .inv_freq_long = factors, .original_max = 40 };
        }
        for (int i = 0; i < 3 * MAX_LEN; i++)
            shared[i / MAX_LEN][i % MAX_LEN] = (int32_t)(rng_u64(&r) % VOCAB);
        struct engine *g = open_with(max_seqs, max_tokens, n_blocks, round % 5 == 4);
        if (round % 3 == 0)
            assert_int_equal(engine_set_limits(g,
                                               &(struct engine_limits){ .max_running = 1 + max_seqs / 2,
                                                   .chunk = 1 + max_tokens / 3 }, &e), 0);
        if (drafter_under_test || draft_model_under_test) {
            struct engine_limits l;
            engine_limits(g, &l);
            l.draft = round % (DRAFT_MOST + 1);
            assert_int_equal(engine_set_limits(g, &l, &e), 0);
        }
        run_jobs(g, jobs, &r, shared, ahead);
        assert_all_free(g);
        engine_stats(g, &s);
        n_slid += s.n_window_blocks > 0;
        preempted += s.preemptions;
        cached += s.cached_tokens;
        copies += s.copies;
        evicted += s.evictions;
        cut += s.cancelled;
        late += s.late;
        drafted += s.drafted;
        accepted += s.accepted;
        assert_int_equal(s.requests, s.finished + s.cancelled + s.failed);
        assert_int_equal(s.failed, 0);
        n_lookahead += last_fake->n_lookahead;
        n_undrawn += last_fake->n_undrawn;
        engine_close(g);
        for (int i = 0; i < N_JOBS && (check_all || round % 7 == 0); i++)
            check_job(&jobs[i], &n_stopped);
        for (int i = 0; i < N_JOBS; i++)
            accepted_under_rules += jobs[i].least ? (uint64_t)jobs[i].got[0].stats.n_accepted : 0;
        assert_int_equal(n_rules, 0);
        model.config.n_ropes = 0;
    }
    /* all of it did happen */
    assert_true(preempted > many && cached > 10 * many && copies > many && evicted > 10 * many && cut > many / 2 &&
                late > many);
    assert_true(n_stopped > (check_all ? 10 : 0));
    const int often = drafter_under_test == &drafter_fake || draft_model_under_test;
    assert_true(often ? accepted > 10 * many && drafted > accepted + 10 * many && accepted_under_rules > many
                : drafter_under_test ? accepted > 10 : accepted <= drafted);
    assert_true(ahead ? n_lookahead > 10 * (int)many && n_undrawn > (int)many : n_lookahead == 0);
}

static void random_schedules_change_no_answer(void **state)
{
    (void)state;
    random_schedules(0);
}

static void test_steps_ahead(void **state)
{
    (void)state;
    backend_under_test = &backend_fake_device;
    random_schedules(1);
    backend_under_test = &backend_fake;
}

static void test_hybrid_schedules(void **state)
{
    (void)state;
    set_hybrid(1);
    random_schedules(0);
    set_hybrid(0);
}

/* Drafts of every length, often right and often wrong, change no answer. */
static void drafts_change_no_answer(void **state)
{
    (void)state;
    drafter_under_test = &drafter_fake;
    random_schedules(0);
    drafter_under_test = &drafter_ngram;
    random_schedules(0);
    drafter_under_test = NULL;
}

/* Drafts of every length with recurrent layers, whose state must be restored after a wrong draft:
 * every step checks that the state is that of its prefix. */
static void test_hybrid_drafts(void **state)
{
    (void)state;
    set_hybrid(1);
    drafter_under_test = &drafter_fake;
    random_schedules(0);
    drafter_under_test = NULL;
    set_hybrid(0);
}

/* A request that grows beyond the length from which LongRoPE uses its long factors starts again
 * from the first token, and needs a state then, while more requests with drafts run than there are
 * spare states. */
static void test_hybrid_begins_anew(void **state)
{
    (void)state;
    enum { N = 6 };
    struct err e;
    struct engine_stats s;
    static struct answer a[N], want;
    struct request_params p[N];
    int32_t ids[N][MAX_LEN];
    float factors[4] = { 0 };
    set_hybrid(1);
    model.config.n_ropes = 1;
    model.config.ropes[0] = (struct rope){ .inv_freq_long = factors, .original_max = 40 };
    drafter_under_test = &drafter_fake;
    struct engine *g = open_with(N, 64, N * MAX_LEN / 16, 1);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = N, .draft = 1 }, &e), 0);
    for (int k = 0; k < N; k++) {
        for (int i = 0; i < MAX_LEN; i++)
            ids[k][i] = (i * 7 + i / 5 + k) % 8;
        p[k] = params(ids[k], k ? 4 : 36, &a[k]);
        p[k].ignore_eos = 1;
        p[k].max_tokens = 30;
        submit(g, &p[k], &a[k]);
    }
    run_to_end(g);
    engine_stats(g, &s);
    engine_close(g);
    assert_true(s.drafted > 20 && s.accepted > 0);
    for (int k = 0; k < N; k++) {
        alone(&p[k], &want);
        assert_same(&a[k], &want);
    }
    drafter_under_test = NULL;
    model.config.n_ropes = 0;
    set_hybrid(0);
}

/* Drafts of a model that is often right change no answer. */
static void test_draft_model(void **state)
{
    (void)state;
    draft_model_under_test = &fake_draft;
    random_schedules(0);
    set_hybrid(1);
    random_schedules(0);
    set_hybrid(0);
    draft_model_under_test = NULL;
}

/* Drafts of a drafter and a draft model together change no answer. */
static void a_drafter_and_a_draft_model_change_no_answer(void **state)
{
    (void)state;
    drafter_under_test = &drafter_fake;
    test_draft_model(state);
    drafter_under_test = NULL;
}

/* A draft model that computes the same as the model, with the right keys and values and the right
 * random numbers, is never wrong: alone, beside other requests, after preemption, and with cached
 * prefixes. */
static void an_identical_draft_model_is_never_wrong(void **state)
{
    (void)state;
    enum { ROUNDS = 100, N = 12 };
    static struct job jobs[N];
    static int32_t shared[3][MAX_LEN];
    uint64_t drafted = 0, preempted = 0, cached = 0;
    draft_model_under_test = &fake_twin;
    for (int round = 0; round < ROUNDS; round++) {
        struct rng r = { (uint64_t)round };
        struct err e;
        struct engine_stats s;
        const int max_seqs = 1 + round % 9;
        int n = 0, left = 0;
        struct engine *g = open_with(max_seqs, 16 + round % 48, MAX_LEN / 16 + round % 12, round % 5 == 4);
        assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = max_seqs,
                                                   .draft = 1 + round % DRAFT_MOST }, &e), 0);
        for (int i = 0; i < 3 * MAX_LEN; i++)
            shared[i / MAX_LEN][i % MAX_LEN] = (int32_t)(rng_u64(&r) % VOCAB);
        while (n < N || left > 0) {
            if (n < N && rng_u64(&r) % 3 == 0) {
                random_job(&jobs[n], &r, shared);
                make_drawable(&jobs[n]);
                jobs[n].p.sampling.temperature = n % 2 ? 0.9f : 0;
                jobs[n].p.sampling.top_p = n % 4 == 1 ? 0.8f : 1;
                jobs[n].p.ignore_eos = 1;
                jobs[n].p.n_stop = jobs[n].p.n_stop_ids = jobs[n].p.min_tokens = 0;     /* drafts do not know them */
                jobs[n].p.draft = (struct draft_params){ .use = DRAFT_MODEL };
                submit_job(g, &jobs[n++]);
            }
            assert_int_not_equal(left = engine_step(g, &e), -1);
        }
        engine_stats(g, &s);
        if (s.drafted != s.accepted)
            fail_msg("round %d: %llu of %llu drafted tokens were right", round, (unsigned long long)s.accepted,
                     (unsigned long long)s.drafted);
        drafted += s.drafted;
        preempted += s.preemptions;
        cached += s.cached_tokens;
        engine_close(g);
    }
    assert_true(drafted > 1000 && preempted > 20 && cached > 200);
    draft_model_under_test = NULL;
}

/* The probabilities of pairs of tokens: the second and third of an answer to the prompt of this
 * hash. */
static void pair_probabilities(uint64_t prompt, double pair[VOCAB][VOCAB])
{
    memset(pair, 0, sizeof(double[VOCAB][VOCAB]));
    for (int i = 0; i < VOCAB * VOCAB * VOCAB; i++) {
        const int32_t ids[] = { i / VOCAB / VOCAB, i / VOCAB % VOCAB, i % VOCAB };
        uint64_t hash = prompt;
        double p = 1;
        for (int t = 0; t < 3; t++) {
            float logits[VOCAB];
            double sum = 0;
            logits_of(hash, logits);
            for (int k = 0; k < VOCAB; k++)
                sum += exp(logits[k]);
            p *= exp(logits[ids[t]]) / sum;
            hash = hash_next(hash, ids[t]);
        }
        pair[ids[1]][ids[2]] += p;
    }
}

/* Answer a prompt `draws` times, with drafts of three tokens; count the pairs of the second and
 * third token.  Returns the share of right drafted tokens. */
static double count_pairs(const int32_t *ids, int n_ids, int draws, int count[VOCAB][VOCAB])
{
    static struct answer a;
    struct err e;
    struct engine_stats s;
    struct request_params p = params(ids, n_ids, &a);
    struct engine *g = open_with(1, 16, MAX_LEN / 16, 0);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 1, .draft = 3 }, &e), 0);
    p.ignore_eos = 1;
    p.max_tokens = 5;
    p.sampling.temperature = 1;
    p.sampling.top_k = 0;
    p.sampling.top_p = 1;
    p.sampling.min_p = 0;
    for (int i = 0; i < draws; i++) {
        p.sampling.seed = 1000003u * (uint64_t)i;
        memset(&a, 0, sizeof a);
        assert_non_null(engine_submit(g, &p, &e));
        run_to_end(g);
        count[a.ids[1]][a.ids[2]]++;
    }
    engine_stats(g, &s);
    engine_close(g);
    assert_true(s.drafted > (uint64_t)draws);
    return (double)s.accepted / (double)s.drafted;
}

/* With drafts that are accepted by their probability, answers have the right distribution
 * (chi-square of pairs of tokens, 143 degrees of freedom; a correct program exceeds 205 once in
 * 2000 times, but the seeds are fixed), and more drafted tokens are accepted than by comparing. */
static void accepted_drafts_keep_the_distribution(void **state)
{
    (void)state;
    enum { DRAWS = 5000 };
    static int count[VOCAB][VOCAB], compared[VOCAB][VOCAB];
    static double want[VOCAB][VOCAB];
    const int32_t ids[] = { 1, 2, 3, 1, 2, 3, 1, 2 };
    uint64_t hash = 0;
    double x = 0;
    for (int i = 0; i < 8; i++)
        hash = hash_next(hash, ids[i]);
    pair_probabilities(hash, want);
    draft_model_under_test = &fake_draft;
    const double exact = count_pairs(ids, 8, DRAWS, compared);
    distribution_under_test = 1;
    const double right = count_pairs(ids, 8, DRAWS, count);
    distribution_under_test = 0;
    draft_model_under_test = NULL;
    for (int i = 0; i < VOCAB * VOCAB; i++) {
        const double n = want[i / VOCAB][i % VOCAB] * DRAWS, more = count[i / VOCAB][i % VOCAB] - n;
        x += more * more / n;
    }
    if (x > 205)
        fail_msg("chi-square %.1f, limit 205", x);
    if (right < exact + 0.01)
        fail_msg("%.3f of the drafted tokens were right, by comparing %.3f", right, exact);
}

/* With a draft model that is always right every step adds a whole draft and one more token, however
 * few prompt tokens a step may have, and the draft model computes each token once.  A request may
 * still choose the drafter instead. */
static void test_draft_model_work(void **state)
{
    (void)state;
    enum { PROMPT = 8, ANSWER = 41, DRAFT = 3 };
    struct err e;
    static struct answer a;
    const int32_t ids[PROMPT] = { 1, 2, 3, 1, 2, 3, 1, 2 };
    struct request_params p = params(ids, PROMPT, &a);
    p.ignore_eos = 1;
    p.max_tokens = ANSWER;
    draft_model_under_test = &fake_twin;
    struct engine *g = open_with(1, 16, MAX_LEN / 16, 1);
    assert_true(engine_has_drafter(g));
    for (int chunk = 0; chunk < 2; chunk++) {           /* the first round measures the time of a step */
        assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 1, .draft = DRAFT,
                                                                       .chunk = chunk }, &e), 0);
        last_fake->n_computed = 0;
        submit(g, &p, &a);
        run_to_end(g);
        assert_int_equal(a.stats.n_drafted, a.stats.n_accepted);
        assert_in_range(a.stats.n_drafted, (ANSWER - 8) * DRAFT / (DRAFT + 1), ANSWER);
        assert_in_range(last_fake->n_computed, ANSWER, PROMPT + ANSWER);
    }
    last_fake->n_computed = 0;
    p.draft.use = DRAFT_NGRAM;
    submit(g, &p, &a);
    run_to_end(g);
    assert_int_equal(last_fake->n_computed, 0);
    engine_close(g);
    draft_model_under_test = NULL;
}

/* Drafts whose length is chosen from measured times are also made if the chunk size is fixed. */
static void test_fixed_chunk(void **state)
{
    (void)state;
    struct err e;
    static struct answer a;
    const int32_t ids[] = { 1, 2, 3, 1, 2, 3, 1, 2 };
    struct request_params p = params(ids, 8, &a);
    p.ignore_eos = 1;
    draft_model_under_test = &fake_twin;
    struct engine *g = open_with(1, 16, MAX_LEN / 16, 0);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 1, .chunk = 4 }, &e), 0);
    submit(g, &p, &a);
    run_to_end(g);
    assert_true(a.stats.n_drafted > 0);
    engine_close(g);
    draft_model_under_test = NULL;
}

/* After the draft model has failed, answers continue without it.  A request cannot ask for a draft
 * model that the engine does not have. */
static void test_failing_draft_model(void **state)
{
    (void)state;
    struct err e;
    struct engine_stats s;
    static struct answer a, want;
    const int32_t ids[] = { 1, 2, 3, 1, 2, 3, 1, 2 };
    struct request_params p = params(ids, 8, &a);
    p.ignore_eos = 1;
    alone(&p, &want);
    draft_model_under_test = &fake_twin;
    for (int at = 0; at < 6; at++) {
        struct engine *g = open_with(1, 16, MAX_LEN / 16, 0);
        assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 1, .draft = 3 }, &e), 0);
        last_fake->call[FAKE_FORWARD].at = at;
        submit(g, &p, &a);
        run_to_end(g);
        assert_same(&a, &want);
        engine_stats(g, &s);
        assert_true(at > 3 ? s.drafted > 0 : s.drafted <= 3);
        engine_close(g);
    }
    draft_model_under_test = NULL;
    struct engine *g = open_with(1, 16, MAX_LEN / 16, 0);
    p.draft.use = DRAFT_MODEL;
    assert_null(engine_submit(g, &p, &e));
    assert_non_null(strstr(e.msg, "the engine has none"));
    engine_close(g);
}

/* Sequences with windows release blocks while they run, whether they finish, are cancelled or are
 * preempted. */
static void sequences_with_windows_release_blocks(void **state)
{
    (void)state;
    const uint64_t before = n_slid;
    set_window(20);
    drafter_under_test = &drafter_fake;
    random_schedules(0);
    drafter_under_test = NULL;
    set_window(0);
    assert_true(n_slid > before + (uint64_t)n_rounds() / 4);
}

static void test_hybrid_windows(void **state)
{
    (void)state;
    set_hybrid(1);
    set_window(33);
    random_schedules(0);
    set_window(0);
    /* windows and sinks of engine_options, for layers that have no window of their own */
    backend_under_test = &backend_fake_windows;
    for (sinks_under_test = 0; sinks_under_test <= 17; sinks_under_test += 17) {
        window_under_test = sinks_under_test ? 24 : 20;
        random_schedules(0);
    }
    window_under_test = sinks_under_test = 0;
    backend_under_test = &backend_fake;
    set_hybrid(0);
}

/* Answer the first n of ids, and append the answer to ids there. */
static void converse(struct engine *g, int32_t *ids, int n, int n_answer)
{
    static struct answer a, want;
    struct err e;
    struct request_params p = params(ids, n, &a);
    int left = 1;
    p.ignore_eos = 1;
    p.max_tokens = n_answer;
    submit(g, &p, &a);
    for (int i = 0; i < 1000 && left > 0; i++)
        assert_int_not_equal(left = engine_step(g, &e), -1);
    assert_int_equal(left, 0);
    alone(&p, &want);
    assert_same(&a, &want);
    memcpy(ids + n, a.ids, (size_t)n_answer * sizeof *ids);
}

static struct engine *open_conversations(int window)
{
    struct err e;
    set_hybrid(1);
    set_window(window);
    model.config.max_len = 8 * MAX_LEN;         /* the pool has blocks for more tokens than this,
                                                 * but no more window blocks */
    const struct engine_options o = { .backend = backend_under_test, .max_len = model.config.max_len, .max_seqs = 1,
                                      .max_tokens = 16, .kv = { KV_F32, KV_F32 }, .snapshots = 4,
                                      .snapshot_every = 1024 };
    struct engine *g = engine_open(&model, tokenizer, &o, &e);
    if (!g)
        fail_msg("%s", e.msg);
    return g;
}

static void close_conversations(struct engine *g)
{
    engine_close(g);
    set_window(0);
    set_hybrid(0);
    model.config.max_len = MAX_LEN;
}

/* The end of a conversation has a snapshot and its window blocks, but some tokens before it, which
 * the end did not attend to any more, have no window blocks. */
static void test_end_without_window(void **state)
{
    (void)state;
    int32_t a[MAX_LEN], b[MAX_LEN];
    struct engine *g = open_conversations(20);
    for (int i = 0; i < MAX_LEN; i++)
        a[i] = (i * 7 + i / 5) % 8, b[i] = (i * 3 + i / 7 + 1) % 8;
    converse(g, a, 70, 5);
    converse(g, b, 120, 2);
    for (int i = 75; i < 95; i++)
        a[i] = i % 6;
    converse(g, a, 95, 3);
    close_conversations(g);
}

/* Two blocks begin with the tokens of a conversation's end; only the block of that end has its
 * window block. */
static void test_end_beside_another(void **state)
{
    (void)state;
    int32_t a[MAX_LEN], b[MAX_LEN], other[MAX_LEN];
    struct engine *g = open_conversations(33);
    for (int i = 0; i < MAX_LEN; i++)
        a[i] = (i * 7 + i / 5) % 8, other[i] = (i * 3 + i / 7 + 1) % 8;
    converse(g, a, 70, 5);
    memcpy(b, a, sizeof b);
    for (int i = 75; i < 122; i++)
        a[i] = (i * 5) % 7, b[i] = (i + 3) % 6;
    converse(g, a, 122, 2);
    converse(g, other, 110, 2);
    converse(g, b, 95, 3);
    close_conversations(g);
}

/* A device that is not strict computes other bits when several tokens are checked at once, so it
 * has no drafts. */
static void test_without_drafts(void **state)
{
    (void)state;
    struct engine_options o = { .backend = &backend_fake };
    assert_null(engine_no_drafts(&model, &o));
    o.backend = &backend_fake_device;
    assert_non_null(engine_no_drafts(&model, &o));
    o.strict = 1;
    assert_null(engine_no_drafts(&model, &o));
}

/* engine_options sets the initial limit of a draft's length; lengths out of range are refused. */
static void test_draft_option(void **state)
{
    (void)state;
    struct err e;
    struct engine_limits l;
    struct engine_options o = { .backend = &backend_fake, .max_len = MAX_LEN, .drafter = &drafter_fake, .draft = 7 };
    struct engine *g = engine_open(&model, tokenizer, &o, &e);
    assert_non_null(g);
    engine_limits(g, &l);
    assert_int_equal(l.draft, 7);
    assert_true(engine_has_drafter(g));
    engine_close(g);
    for (o.draft = -1; o.draft <= DRAFT_MOST + 1; o.draft += DRAFT_MOST + 2) {
        assert_null(engine_open(&model, tokenizer, &o, &e));
        assert_non_null(strstr(e.msg, "draft is"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_schedules_change_no_answer), cmocka_unit_test(test_hybrid_schedules),
        cmocka_unit_test(test_steps_ahead), cmocka_unit_test(drafts_change_no_answer),
        cmocka_unit_test(test_hybrid_drafts), cmocka_unit_test(test_hybrid_begins_anew),
        cmocka_unit_test(test_draft_model), cmocka_unit_test(a_drafter_and_a_draft_model_change_no_answer),
        cmocka_unit_test(test_draft_model_work), cmocka_unit_test(test_fixed_chunk),
        cmocka_unit_test(accepted_drafts_keep_the_distribution),
        cmocka_unit_test(an_identical_draft_model_is_never_wrong), cmocka_unit_test(test_failing_draft_model),
        cmocka_unit_test(sequences_with_windows_release_blocks), cmocka_unit_test(test_hybrid_windows),
        cmocka_unit_test(test_end_without_window), cmocka_unit_test(test_end_beside_another),
        cmocka_unit_test(test_without_drafts), cmocka_unit_test(test_draft_option),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

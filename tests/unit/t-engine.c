/* t-engine.c - the options of a request: limits that end its answer, stop strings, several answers
 * to one prompt, the figures that it reports, embeddings, constraints, refused options, and a
 * device that fails. */
#include <unistd.h>

#include "libcommon/format/zfile.h"
#include "tests/unit/engine_fake.h"

static void an_answer_ends_at_its_limits(void **state)
{
    (void)state;
    struct err e;
    static struct answer a, b;
    static const int32_t prompt[] = { 0, 1, 2, 6 };
    struct engine *g = open_engine(2, 64, 16);
    struct request_params p = params(prompt, 4, &a);
    p.ignore_eos = 1;                                   /* runs into the context limit */
    assert_non_null(engine_submit(g, &p, &e));
    run_to_end(g);
    assert_int_equal(a.finish, FINISH_LENGTH);
    assert_int_equal(a.n, MAX_LEN - 4);
    assert_null(strstr(a.text, "<eos>"));               /* special tokens are not shown */
    p.user = &b;                                        /* max_tokens */
    p.max_tokens = 3;
    memset(&b, 0, sizeof b);
    assert_non_null(engine_submit(g, &p, &e));
    run_to_end(g);
    assert_int_equal(b.finish, FINISH_LENGTH);
    assert_int_equal(b.n, 3);
    assert_memory_equal(b.ids, a.ids, 3 * sizeof *a.ids);
    /* a ignored its EOS; the next request does not, and must end at the first of them */
    int eos = 0;
    while (a.ids[eos] != EOS)
        assert_true(++eos < a.n);
    memset(&b, 0, sizeof b);
    p.max_tokens = 0;
    p.ignore_eos = 0;
    assert_non_null(engine_submit(g, &p, &e));
    run_to_end(g);
    assert_int_equal(b.finish, FINISH_STOP);
    assert_int_equal(b.n, eos + 1);
    assert_memory_equal(b.ids, a.ids, (size_t)b.n * sizeof *a.ids);
    int end = 0;                                        /* a stop string that is one special token */
    while (a.ids[end] != END)
        assert_true(++end < a.n);
    const char *stop[] = { "never so", "<end>" };
    memset(&b, 0, sizeof b);
    p.ignore_eos = 1;
    p.stop = stop;
    p.n_stop = 2;
    assert_non_null(engine_submit(g, &p, &e));
    run_to_end(g);
    assert_int_equal(b.finish, FINISH_STOP);
    assert_int_equal(b.n, end + 1);
    assert_int_equal(b.stop, 2);
    assert_all_free(g);
    engine_close(g);
}

/* Answers with stop strings of every kind, compared with the text without one. */
static void a_stop_string_ends_the_text_before_it(void **state)
{
    (void)state;
    static const char *const stops[] = { "a", "b", "ab", "abc", "ba", "cabc", "abab", "bcab", "\xc3\xa9",
                                         ("\xc3\xa9" "a"), "b\xc3\xa9", " b", "a b", "cab b", "aa", "aab", "never so" };
    struct err e;
    struct rng r = { 11 };
    static struct answer whole, cut;
    int n_found = 0;
    for (int round = 0; round < 60; round++) {
        int32_t prompt[4];
        for (int i = 0; i < 4; i++)
            prompt[i] = (int32_t)(rng_u64(&r) % VOCAB);
        struct request_params p = params(prompt, 4, &whole);
        p.ignore_eos = 1;
        p.max_tokens = 1 + (int)(rng_u64(&r) % 100);
        alone(&p, &whole);
        for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
            struct engine *g = open_engine(1, 512, MAX_LEN / 16);
            p = params(prompt, 4, &cut);
            p.ignore_eos = 1;
            p.max_tokens = whole.n;
            p.stop = &stops[i];
            p.n_stop = 1;
            assert_non_null(engine_submit(g, &p, &e));
            run_to_end(g);
            const char *at = strstr(whole.text, stops[i]);
            size_t size = at ? (size_t)(at - whole.text) : whole.size;
            n_found += at != NULL;
            assert_int_equal(cut.size, size);
            assert_memory_equal(cut.text, whole.text, size);
            assert_int_equal(cut.finish, at ? FINISH_STOP : FINISH_LENGTH);
            assert_true(at ? cut.n <= whole.n : cut.n == whole.n);
            engine_close(g);
        }
    }
    assert_true(n_found > 300);
    /* two stop strings at once: the one that occurs first ends the answer */
    const char *both[] = { "never so", stops[0] };
    struct request_params p = params((const int32_t[]){ 2 }, 1, &whole);
    p.ignore_eos = 1;
    alone(&p, &whole);
    const char *at = strstr(whole.text, "a");
    assert_non_null(at);
    p.stop = both;
    p.n_stop = 2;
    alone(&p, &cut);
    assert_int_equal(cut.size, at - whole.text);
}

static int has_id(const struct answer *a, int n, int32_t id)
{
    for (int i = 0; i < n && i < a->n; i++)
        if (a->ids[i] == id)
            return 1;
    return 0;
}

/* A stop id ends an answer, also with ignore_eos, and its text is not part of the answer. */
static void a_stop_id_ends_an_answer(void **state)
{
    (void)state;
    static struct answer whole, cut;
    struct err e;
    const int32_t stop_ids[] = { 5, 3, -1 };
    struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &whole);
    p.ignore_eos = 1;
    alone(&p, &whole);
    int at = 0;
    while (whole.ids[at] != 5 && whole.ids[at] != 3)
        assert_true(++at < whole.n);
    p.stop_ids = stop_ids;
    p.n_stop_ids = 2;
    alone(&p, &cut);
    assert_int_equal(cut.finish, FINISH_STOP);
    assert_int_equal(cut.stop, 0);
    assert_int_equal(cut.n, at + 1);
    assert_memory_equal(cut.ids, whole.ids, (size_t)cut.n * sizeof *cut.ids);
    assert_true(cut.size < strlen(whole.text));
    assert_memory_equal(cut.text, whole.text, cut.size);
    struct engine *g = open_engine(1, 512, MAX_LEN / 16);
    p.n_stop_ids = 3;
    assert_null(engine_submit(g, &p, &e));
    assert_string_equal(e.msg, "a stop id is -1, expected 0 to 11");
    p.stop_ids = (const int32_t[]){ VOCAB };
    p.n_stop_ids = 1;
    assert_null(engine_submit(g, &p, &e));
    p.n_stop_ids = MAX_STOP_IDS + 1;
    assert_null(engine_submit(g, &p, &e));
    p.n_stop_ids = 0;
    p.min_tokens = -1;
    assert_null(engine_submit(g, &p, &e));
    assert_all_free(g);
    engine_close(g);
}

/* Before min_tokens nothing ends an answer; after it each kind of end does. */
static void nothing_ends_an_answer_before_min_tokens(void **state)
{
    (void)state;
    enum { LEAST = 20 };
    static const int32_t stop_ids[] = { 2, 4 };
    static const char *const stops[] = { "a", "<end>" };
    static struct answer a, b;
    int n_later = 0, n_text = 0;
    for (int32_t first = 0; first < 8; first++) {
        struct request_params p = params((const int32_t[]){ first, 7, 1 }, 3, &a);
        p.min_tokens = LEAST;
        alone(&p, &a);
        assert_true(a.n > LEAST && !has_id(&a, LEAST, EOS));
        n_later += a.finish == FINISH_STOP && a.ids[a.n - 1] == EOS;
        p.ignore_eos = 1;
        p.stop_ids = stop_ids;
        p.n_stop_ids = 2;
        p.n_logprobs = 2;
        alone(&p, &a);
        assert_true(a.n > LEAST && !has_id(&a, LEAST, EOS) && !has_id(&a, LEAST, 2) && !has_id(&a, LEAST, 4));
        assert_int_equal(a.finish, FINISH_STOP);
        p.stop = stops;
        p.n_stop = 2;
        alone(&p, &b);
        assert_true(b.n > LEAST && b.finish == FINISH_STOP && !has_id(&b, LEAST, END));
        n_text += strchr(b.text, 'a') != NULL;
        p.max_tokens = LEAST / 2;                       /* fewer than min_tokens */
        alone(&p, &b);
        assert_int_equal(b.finish, FINISH_LENGTH);
        assert_int_equal(b.n, LEAST / 2);
    }
    assert_true(n_later > 0 && n_text > 0);
    /* if a constraint allows nothing but the end, the answer ends before min_tokens */
    int n_sooner = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &a);
        struct engine *g = open_engine(1, 9, 16);
        struct constraint c = rules_of(seed, 3);
        p.min_tokens = LEAST;
        p.constraint = &c;
        submit(g, &p, &a);
        run_to_end(g);
        assert_int_equal(a.finish, FINISH_STOP);
        assert_int_equal(a.ids[a.n - 1], EOS);
        c = rules_of(seed, 3);
        p.min_tokens = 0;
        p.constraint = &c;
        submit(g, &p, &b);
        run_to_end(g);
        assert_true(b.n <= a.n);
        n_sooner += b.n < a.n;
        engine_close(g);
    }
    assert_true(n_sooner > 0);
}

/* Three answers to one prompt: the prompt is computed once, whole blocks exist once, and the last,
 * partial one is copied before a write. */
static void answers_to_one_prompt_share_its_blocks(void **state)
{
    (void)state;
    enum { N = 3, PROMPT = 40 };
    static const struct logit_bias bias[] = { { 3, 2 }, { 5, -2 } };        /* each answer gets it once */
    static struct answer a[N], want;
    struct request *requests[N];
    void *users[N] = { &a[0], &a[1], &a[2] };
    int32_t ids[PROMPT];
    struct err e;
    struct engine_stats s;
    for (int i = 0; i < PROMPT; i++)
        ids[i] = i % VOCAB;
    struct engine *g = open_engine(N, 64, 30);
    struct request_params p = params(ids, PROMPT, &a[0]);
    memset(a, 0, sizeof a);
    p.n = N;
    p.users = users;
    p.requests = requests;
    p.sampling.temperature = 1;
    p.sampling.seed = 77;
    p.sampling.bias = bias;
    p.sampling.n_bias = 2;
    p.max_tokens = 12;
    p.ignore_eos = 1;
    const struct request *returned = engine_submit(g, &p, &e);
    assert_ptr_equal(returned, requests[0]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(engine_step(g, &e), N);
    engine_stats(g, &s);
    /* 2 blocks of 32 tokens are shared; each answer has one more, for the last 8 tokens of the
     * prompt and its own */
    assert_int_equal(s.n_blocks - s.n_free_blocks, 2 + N);
    assert_int_equal(s.copies, N - 1);
    run_to_end(g);
    assert_int_equal(last_fake->n_computed, PROMPT + N * 11);
    for (int i = 0; i < N; i++) {
        struct request_params one = p;
        one.sampling.seed += (uint64_t)i;
        alone(&one, &want);
        assert_same(&a[i], &want);
    }
    assert_memory_not_equal(a[0].ids, a[1].ids, sizeof *a[0].ids * 12);
    assert_all_free(g);
    /* the first request is cancelled before the prompt is computed; the next one computes the rest
     * of the prompt */
    engine_close(g);
    g = open_engine(N, 7, 30);
    memset(a, 0, sizeof a);
    assert_non_null(engine_submit(g, &p, &e));
    engine_step(g, &e);
    engine_cancel(g, requests[0]);
    run_to_end(g);
    assert_int_equal(a[0].finish, FINISH_CANCELLED);
    assert_int_equal(a[0].n, 0);
    for (int i = 1; i < N; i++) {
        struct request_params one = p;
        one.sampling.seed += (uint64_t)i;
        alone(&one, &want);
        assert_same(&a[i], &want);
    }
    assert_all_free(g);
    engine_close(g);
}

/* Log probabilities are those of a softmax over the backend's own logits, for the prompt and the
 * answer. */
static void logprobs_are_those_of_the_backend(void **state)
{
    (void)state;
    enum { N = 70 };
    static struct answer a;
    int32_t ids[MAX_LEN];
    struct rng r = { 9 };
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)(rng_u64(&r) % VOCAB);
    /* the second request finds the prefix in the tree, but computes the whole prompt, because its
     * log probabilities are wanted */
    for (int round = 0; round < 2; round++) {
        struct engine *g = open_engine(1, 50, 16);
        for (int i = 0; i <= round; i++) {
            struct request_params p = params(ids, N, &a);
            p.n_logprobs = 3;
            p.prompt_logprobs = 1;
            p.max_tokens = 20;
            p.sampling.temperature = 1.5f;
            p.sampling.presence_penalty = 1;
            submit(g, &p, &a);
            run_to_end(g);
        }
        assert_int_equal(last_fake->largest_step, 32);          /* PROMPT_ROWS */
        assert_int_equal(a.n_prompt, N);
        assert_true(isnan(a.prompt_logprob[0]));
        memcpy(ids + N, a.ids, (size_t)a.n * sizeof *ids);
        uint64_t hash = 0;
        for (int i = 0; i + 1 < N + a.n; i++) {
            float x[VOCAB];
            double sum = 0;
            logits_of(hash = hash_next(hash, ids[i]), x);
            for (int j = 0; j < VOCAB; j++)
                sum += exp(x[j]);
            const int next = i + 1;
            const float got = next < N ? a.prompt_logprob[next] : a.logprob[next - N];
            const struct top_logprob *top = next < N ? a.prompt_top[next] : a.top[next - N];
            assert_true(fabs(got - log(exp(x[ids[next]]) / sum)) < 1e-5);
            for (int k = 0; k < 3; k++) {
                int larger = 0;
                for (int j = 0; j < VOCAB; j++)
                    larger += x[j] > x[top[k].id];
                assert_int_equal(larger, k);
                assert_true(fabs(top[k].logprob - log(exp(x[top[k].id]) / sum)) < 1e-5);
            }
        }
        engine_close(g);
    }
}

/* Embeddings are the mean or the last of the prompt's states, scaled to length 1, however the
 * prompt is divided into chunks. */
static void embeddings_do_not_depend_on_chunks(void **state)
{
    (void)state;
    enum { N = 37 };
    static struct answer a;
    int32_t ids[N];
    double mean[HIDDEN] = { 0 }, last[HIDDEN], length[2] = { 0 };
    uint64_t hash = 0;
    for (int i = 0; i < N; i++) {
        ids[i] = i % VOCAB;
        struct rng r = { hash = hash_next(hash, ids[i]) };
        for (int j = 0; j < HIDDEN; j++)
            mean[j] += last[j] = (float)(rng_double(&r) - 0.4);
    }
    for (int j = 0; j < HIDDEN; j++) {
        length[0] += mean[j] * mean[j];
        length[1] += last[j] * last[j];
    }
    for (int chunk = 5; chunk < 50; chunk += 4) {
        struct engine *g = open_engine(2, chunk, 16);
        for (int which = 0; which < 2; which++) {
            struct request_params p = params(ids, N, &a);
            p.embed = which ? EMBED_LAST : EMBED_MEAN;
            submit(g, &p, &a);
            run_to_end(g);
            assert_int_equal(a.finish, FINISH_STOP);
            assert_int_equal(a.n, 0);
            assert_int_equal(a.n_calls, 1);
            assert_int_equal(a.n_embedding, HIDDEN);
            for (int j = 0; j < HIDDEN; j++)
                assert_true(fabs(a.embedding[j] - (which ? last[j] : mean[j]) / sqrt(length[which])) < 1e-5);
        }
        assert_all_free(g);
        engine_close(g);
    }
}

/* Only tokens that the constraint allows are chosen.  A constraint that fails ends the answer with
 * its error. */
static void only_allowed_tokens_are_chosen(void **state)
{
    (void)state;
    static struct answer a, b;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct engine *g = open_engine(1, 9, 16);
        struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &a);
        struct constraint c = rules_of(seed, 10 + (int)seed), d = c;
        d.state = rules_fork(c.state);
        p.ignore_eos = 1;                               /* with ignore_eos, too, an answer ends when
                                                         * its constraint is complete */
        p.constraint = &c;
        submit(g, &p, &a);
        run_to_end(g);
        const int with = last_fake->call[FAKE_FORWARD].n;
        p.constraint = &d;
        p.n_logprobs = 0;
        submit(g, &p, &b);
        run_to_end(g);
        assert_same(&a, &b);
        assert_int_equal(a.finish, FINISH_STOP);
        assert_int_equal(a.ids[a.n - 1], EOS);
        assert_true(a.n > 10 + (int)seed);
        assert_true(with < last_fake->call[FAKE_FORWARD].n - with);       /* forced tokens took fewer steps */
        c = rules_of(seed, 10 + (int)seed);
        ((struct rules *)c.state)->fails_at = 5;
        p.constraint = &c;
        submit(g, &p, &b);
        run_to_end(g);
        assert_int_equal(b.finish, FINISH_ERROR);
        assert_in_range(b.n, 5, a.n - 1);            /* after the forced tokens */
        assert_memory_equal(a.ids, b.ids, (size_t)b.n * sizeof *a.ids);
        assert_non_null(strstr(b.error, "out of memory: rules"));
        assert_int_equal(n_rules, 0);
        engine_close(g);
    }
}

/* The sampler accepts every token of the prompt and of the answer. */
static void penalties_see_prompt_and_answer(void **state)
{
    (void)state;
    static struct answer a;
    const struct logit_bias bias[] = { { 0, 9 }, { 1, 8 } };            /* larger than the
                                                                         * differences between the
                                                                         * backend's logits */
    struct request_params p = params((const int32_t[]){ 0, 2, 2 }, 3, &a);
    p.max_tokens = 6;
    p.ignore_eos = 1;
    p.sampling.bias = bias;
    p.sampling.n_bias = 1;
    alone(&p, &a);
    for (int i = 0; i < 6; i++)
        assert_int_equal(a.ids[i], 0);
    p.sampling.presence_penalty = 2;
    p.sampling.frequency_penalty = 2;                                   /* token 0 loses 4, 6, 8, 10 ... */
    p.sampling.n_bias = 2;
    alone(&p, &a);
    int n[2] = { 0 };
    for (int i = 0; i < 6; i++)
        n[0] += a.ids[i] == 0, n[1] += a.ids[i] == 1;
    assert_in_range(n[0], 1, 5);
    assert_in_range(n[1], 1, 5);
    p.sampling.presence_penalty = p.sampling.frequency_penalty = 0;
    p.sampling.repetition_penalty = 20;                                 /* token 0 is in the prompt,
                                                                         * so its logit becomes 15 /
                                                                         * 20 */
    p.sampling.n_bias = 1;
    p.max_tokens = 1;
    alone(&p, &a);
    assert_int_not_equal(a.ids[0], 0);
}

static void logits_are_the_same_in_one_step_or_many(void **state)
{
    (void)state;
    struct err e;
    static int32_t ids[100];
    static float whole[100 * VOCAB], part[100 * VOCAB];
    for (int i = 0; i < 100; i++)
        ids[i] = i * 7 % VOCAB;
    struct engine *g = open_engine(1, 512, 8), *small = open_engine(1, 13, 8);
    assert_int_equal(engine_logits(g, ids, 100, 0, whole, &e), 0);
    assert_int_equal(engine_logits(small, ids, 100, 0, part, &e), 0);
    assert_memory_equal(whole, part, sizeof whole);
    for (int from = 0; from < 100; from += 9) {
        assert_int_equal(engine_logits(small, ids, 100, from, part, &e), 0);
        assert_memory_equal(whole + from * VOCAB, part, (size_t)(100 - from) * VOCAB * sizeof *part);
    }
    ids[99] = VOCAB;
    assert_int_equal(engine_logits(g, ids, 100, 0, part, &e), -1);
    assert_all_free(g);
    engine_close(g);
    engine_close(small);
}

/* Write a .zse file with a single norm, used as the model's file. */
static void write_file(const char *path)
{
    static const float ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    struct err e;
    struct zfile_tensor t = { .name = "norm.weight", .n_dims = 1, .dim = { 8 },
                              .m = { .type = QT_F32, .size = sizeof ones } };
    struct zwriter *w = zwriter_open(path, &e);
    json_t *j = json_pack("{s:s, s:{s:s}}", "architecture", "llama", "config", "model_type", "llama");
    if (!w || zwriter_group(w, "head", -1, &e) != 0 || zwriter_tensor(w, &t, &e) != 0 ||
        zwriter_data(w, ones, sizeof ones, &e) != 0 || zwriter_commit(w, j, &e) != 0)
        fail_msg("%s", e.msg);
    json_decref(j);
}

/* If the model's file has changed, no results of the model are returned. */
static void a_changed_file_gives_no_results(void **state)
{
    (void)state;
    char path[] = "/tmp/t-engine-XXXXXX";
    struct err e;
    static float logits[3 * VOCAB];
    close(mkstemp(path));
    write_file(path);
    assert_non_null(model.file = zfile_open(path, &e));
    struct engine *g = open_engine(1, 16, 8);
    assert_int_equal(engine_logits(g, (const int32_t[]){ 1, 2, 3 }, 3, 0, logits, &e), 0);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fputc('x', f);
    fclose(f);
    assert_int_equal(engine_logits(g, (const int32_t[]){ 1, 2, 3 }, 3, 0, logits, &e), -1);
    assert_non_null(strstr(e.msg, "bytes now"));
    assert_all_free(g);
    engine_close(g);
    zfile_close(model.file);
    model.file = NULL;
    unlink(path);
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    struct err e;
    static struct answer a;
    static int32_t ids[MAX_LEN + 1];
    static const char *const empty[] = { "" }, *const broken[] = { "\xc3" };
    struct engine *g = open_engine(1, 64, 8);
    const struct { int n_ids, first, max_tokens; const char *const *stop; float temp; const char *word; } cases[] = {
        { 0, 0, 0, NULL, 0, "empty" }, { MAX_LEN, 0, 0, NULL, 0, "128" }, { MAX_LEN + 1, 0, 0, NULL, 0, "129" },
            { 3, VOCAB, 0, NULL, 0, "12" },
        { 3, -1, 0, NULL, 0, "-1" }, { 3, 0, -1, NULL, 0, "max_tokens" }, { 3, 0, 0, empty, 0, "empty" },
        { 3, 0, 0, broken, 0, "UTF-8" }, { 3, 0, 0, NULL, -1, "temperature" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request_params p = params(ids, cases[i].n_ids, &a);
        ids[0] = cases[i].first;
        p.max_tokens = cases[i].max_tokens;
        p.stop = cases[i].stop;
        p.n_stop = cases[i].stop != NULL;
        p.sampling.temperature = cases[i].temp;
        assert_null(engine_submit(g, &p, &e));
        assert_non_null(strstr(e.msg, cases[i].word));
    }
    ids[0] = 0;
    static const struct { int priority, n, n_logprobs, min_tokens, draft; const char *word; } ranges[] = {
        { MAX_PRIORITY + 1, 0, 0, 0, 0, "priority" }, { -MAX_PRIORITY - 1, 0, 0, 0, 0, "priority" },
        { 0, -1, 0, 0, 0, "n is -1" }, { 0, 1025, 0, 0, 0, "n is 1025" }, { 0, 0, -2, 0, 0, "logprobs" },
        { 0, 0, 0, -1, 0, "min_tokens" }, { 0, 0, 0, 0, -1, "a draft" }, { 0, 0, 0, 0, DRAFT_MOST + 1, "a draft" },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        struct request_params p = params(ids, 3, &a);
        p.priority = ranges[i].priority;
        p.n = ranges[i].n;
        p.n_logprobs = ranges[i].n_logprobs;
        p.min_tokens = ranges[i].min_tokens;
        p.draft.most = ranges[i].draft;
        assert_null(engine_submit(g, &p, &e));
        assert_non_null(strstr(e.msg, ranges[i].word));
    }
    assert_int_equal(engine_step(g, &e), 0);
    assert_int_equal(a.n_calls, 0);
    engine_close(g);
    struct engine_options o = { .backend = &backend_fake, .max_len = MAX_LEN, .kv_bytes = 100 };
    assert_null(engine_open(&model, tokenizer, &o, &e));
    assert_non_null(strstr(e.msg, "KV memory"));
    o = (struct engine_options){ .backend = &backend_fake, .max_len = MAX_LEN + 1 };
    assert_null(engine_open(&model, tokenizer, &o, &e));
    assert_non_null(strstr(e.msg, "at most the model's 128"));
}

/* Sizes are known before the engine is opened, up to the largest possible number of blocks. */
static void sizes_are_known_before_opening(void **state)
{
    (void)state;
    struct err e;
    struct backend_options b;
    struct engine_options o = { .backend = &backend_fake, .max_len = MAX_LEN, .max_seqs = 3 };
    assert_int_equal(engine_backend_options(&model, &o, &b, &e), 0);
    assert_int_equal(b.n_blocks, 3 * MAX_LEN / KV_BLOCK);
    o.kv_bytes = (size_t)1 << 62;
    assert_int_equal(engine_backend_options(&model, &o, &b, &e), -1);
    assert_non_null(strstr(e.msg, "KV blocks"));
    o.kv_bytes = 0;
    o.max_len = MAX_LEN + 1;
    assert_int_equal(engine_backend_options(&model, &o, &b, &e), -1);
}

/* A constraint that cannot be forked is accepted for one answer and refused for two. */
static void test_constraint_without_fork(void **state)
{
    (void)state;
    struct err e;
    static struct answer a;
    struct engine *g = open_engine(1, 9, 16);
    struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &a);
    struct constraint c = rules_of(3, 12);
    c.fork = NULL;
    p.constraint = &c;
    p.n = 2;
    assert_null(engine_submit(g, &p, &e));
    assert_non_null(strstr(e.msg, "forked"));
    p.n = 1;
    submit(g, &p, &a);
    run_to_end(g);
    assert_int_equal(a.finish, FINISH_STOP);
    assert_int_equal(n_rules, 0);
    engine_close(g);
}

/* NaN in the logits ends one request; a lost device ends all running requests. */
static void a_failure_ends_the_requests_it_affects(void **state)
{
    (void)state;
    struct err e;
    static struct answer a[3], want;
    static const int32_t prompt[] = { 3, 4, 3 };
    struct request_params p[3];
    struct engine *g = open_engine(2, 64, 16);
    for (int i = 0; i < 3; i++) {
        p[i] = params(prompt, 3 - i, &a[i]);
        p[i].max_tokens = 20;
        p[i].ignore_eos = 1;
        assert_non_null(engine_submit(g, &p[i], &e));
    }
    last_fake->nan_at = 7;              /* step 3, second request */
    for (int i = 0; i < 5; i++)
        assert_true(engine_step(g, &e) > 0);
    assert_int_equal(a[1].finish, FINISH_ERROR);
    assert_int_equal(a[1].n, 3);
    assert_non_null(strstr(a[1].error, "NaN"));
    assert_int_equal(a[0].finish, FINISH_NONE);
    last_fake->call[FAKE_FORWARD].at = last_fake->call[FAKE_FORWARD].n;
    assert_int_equal(engine_step(g, &e), -1);
    assert_int_equal(e.code, ERR_DEVICE);
    assert_int_equal(a[0].finish, FINISH_ERROR);
    assert_int_equal(a[2].finish, FINISH_ERROR);
    assert_non_null(strstr(a[0].error, "bus"));
    assert_all_free(g);
    memset(&a[0], 0, sizeof a[0]);      /* and the engine goes on */
    assert_non_null(engine_submit(g, &p[0], &e));
    run_to_end(g);
    alone(&p[0], &want);
    assert_same(&a[0], &want);
    engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_ends_at_its_limits),
        cmocka_unit_test(a_stop_string_ends_the_text_before_it),
        cmocka_unit_test(answers_to_one_prompt_share_its_blocks), cmocka_unit_test(a_stop_id_ends_an_answer),
        cmocka_unit_test(nothing_ends_an_answer_before_min_tokens),
        cmocka_unit_test(logprobs_are_those_of_the_backend),
        cmocka_unit_test(embeddings_do_not_depend_on_chunks),
        cmocka_unit_test(only_allowed_tokens_are_chosen), cmocka_unit_test(penalties_see_prompt_and_answer),
        cmocka_unit_test(logits_are_the_same_in_one_step_or_many),
        cmocka_unit_test(a_changed_file_gives_no_results), cmocka_unit_test(sizes_are_known_before_opening),
        cmocka_unit_test(test_constraint_without_fork), cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(a_failure_ends_the_requests_it_affects),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* t-sampler.c - the tokens that each option keeps, how often each is drawn, refused values. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/engine/sampler.h"

enum { N = 8 };
/* probabilities 0.25 0.05 0.2 0.1 0.2 0.1 0.08 0.02: ties at ids 2 and 4, 3 and 5 */
static const double prob[N] = { 0.25, 0.05, 0.2, 0.1, 0.2, 0.1, 0.08, 0.02 };

static struct sampler_scratch *scratch;

static int setup(void **state)
{
    struct err e;
    (void)state;
    return (scratch = sampler_scratch_open(NULL, &e)) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    sampler_scratch_close(scratch);
    return 0;
}

static struct sampling plain(void)
{
    struct sampling s = sampling_defaults();
    s.temperature = 1;
    s.top_k = 0;
    s.top_p = s.typical_p = 1;
    s.min_p = 0;
    s.seed = 42;
    return s;
}

/* Draw n times from the distribution above; count[id] is how often token id was drawn. */
static void draw(const struct sampling *sampling, int n, int count[N])
{
    struct err e;
    struct sampler *s = sampler_open(sampling, N, 4, scratch, &e);
    assert_non_null(s);
    memset(count, 0, N * sizeof *count);
    for (int i = 0; i < n; i++) {
        float logits[N];
        int32_t id;
        for (int j = 0; j < N; j++)
            logits[j] = (float)log(prob[j]) + 3;
        if (sampler_pick(s, logits, NULL, &id, NULL, &e) != 0)
            fail_msg("%s", e.msg);
        count[id]++;
    }
    sampler_close(s);
}

/* The ids that are drawn at least once, as a string: "0 2 4". */
static const char *kept(const struct sampling *s)
{
    static char text[64];
    int count[N];
    draw(s, 4000, count);               /* the rarest has p = 0.02: missing by chance 1e-35 */
    *text = '\0';
    for (int i = 0; i < N; i++)
        if (count[i])
            sprintf(text + strlen(text), "%s%d", *text ? " " : "", i);
    return text;
}

static void filters_keep_the_listed_tokens(void **state)
{
    (void)state;
    struct sampling s = plain();
    assert_string_equal(kept(&s), "0 1 2 3 4 5 6 7");
    static const struct { int k; const char *want; } by_k[] = { { 1, "0" }, { 2, "0 2" }, { 3, "0 2 4" },
                                                                { 4, "0 2 3 4" }, { 8, "0 1 2 3 4 5 6 7" },
                                                                { 100, "0 1 2 3 4 5 6 7" } };
    for (size_t i = 0; i < sizeof by_k / sizeof *by_k; i++) {
        s = plain();
        s.top_k = by_k[i].k;
        assert_string_equal(kept(&s), by_k[i].want);
    }
    /* sums of the sorted probabilities: 0.25 0.45 0.65 0.75 0.85 0.93 0.98 1; the token with which
     * the sum exceeds top_p is kept */
    static const struct { float p; const char *want; } by_p[] = {
        { 0, "0" }, { 0.2f, "0" }, { 0.26f, "0 2" }, { 0.44f, "0 2" }, { 0.6f, "0 2 4" }, { 0.7f, "0 2 3 4" },
            { 0.9f, "0 2 3 4 5 6" }, { 0.99f, "0 1 2 3 4 5 6 7" } };
    for (size_t i = 0; i < sizeof by_p / sizeof *by_p; i++) {
        s = plain();
        s.top_p = by_p[i].p;
        assert_string_equal(kept(&s), by_p[i].want);
    }
    /* min_p is a fraction of the largest probability, 0.25: 0.1 is 40 % of it, 0.08 is 32 %, 0.05
     * is 20 % */
    static const struct { float p; const char *want; } by_min[] = { { 1, "0" }, { 0.5f, "0 2 4" },
                                                                    { 0.39f, "0 2 3 4 5" }, { 0.31f, "0 2 3 4 5 6" },
                                                                    { 0.19f, "0 1 2 3 4 5 6" } };
    for (size_t i = 0; i < sizeof by_min / sizeof *by_min; i++) {
        s = plain();
        s.min_p = by_min[i].p;
        assert_string_equal(kept(&s), by_min[i].want);
    }
    /* the entropy is 1.881 nats; the distances of -log p from it, by id: 2 and 4: 0.272; 3 and 5:
     * 0.421; 0: 0.495; 6: 0.645; 1: 1.115; 7: 2.031 */
    static const struct { float p; const char *want; } by_typical[] = { { 0, "0" }, { 0.1f, "2" }, { 0.3f, "2 4" },
        { 0.45f, "2 3 4" }, { 0.55f, "2 3 4 5" }, { 0.8f, "0 2 3 4 5" } };
    for (size_t i = 0; i < sizeof by_typical / sizeof *by_typical; i++) {
        s = plain();
        s.typical_p = by_typical[i].p;
        assert_string_equal(kept(&s), by_typical[i].want);
    }
    /* top_p sees the probabilities that top_k has left, scaled to a sum of 1: of ids 0 2 4 (0.65 in
     * all) it keeps 0.385 + 0.308 > 0.69; without top_k it keeps 4 tokens */
    s = plain();
    s.top_k = 3;
    s.top_p = 0.69f;
    assert_string_equal(kept(&s), "0 2");
    s.top_k = 0;
    assert_string_equal(kept(&s), "0 2 3 4");
    /* min_p is a fraction of the largest probability that is left: typical_p keeps ids 2 3 4 5, so
     * the largest is 0.2, and 0.1 is half of it */
    s = plain();
    s.typical_p = 0.55f;
    s.min_p = 0.45f;
    assert_string_equal(kept(&s), "2 3 4 5");
    /* the temperature is applied first: at 0.5 the probabilities are squared, so top_p sees 0.364
     * 0.233 0.233 ... */
    s = plain();
    s.temperature = 0.5f;
    s.top_p = 0.59f;
    assert_string_equal(kept(&s), "0 2");
}

/* Chi-square test against the expected distribution.  With 7 degrees of freedom the value exceeds
 * 24.3 by chance once in 1000 times; the seed is fixed, so the test does not fail at random. */
static void chi_square(const struct sampling *s, const double want[N], double limit)
{
    enum { DRAWS = 50000 };
    int count[N];
    double x = 0;
    draw(s, DRAWS, count);
    for (int i = 0; i < N; i++) {
        double expected = want[i] * DRAWS;
        if (expected == 0)
            assert_int_equal(count[i], 0);
        else
            x += (count[i] - expected) * (count[i] - expected) / expected;
    }
    if (x > limit)
        fail_msg("chi-square %.1f, limit %.1f", x, limit);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    struct sampling s = plain();
    chi_square(&s, prob, 24.3);
    s.min_p = 0.001f;
    chi_square(&s, prob, 24.3);
    s.top_p = 0.9999f;                  /* another path: candidates */
    chi_square(&s, prob, 24.3);
    s = plain();
    s.temperature = 2;
    double want[N], sum = 0;
    for (int i = 0; i < N; i++)
        sum += want[i] = sqrt(prob[i]);
    for (int i = 0; i < N; i++)
        want[i] /= sum;
    chi_square(&s, want, 24.3);
    s = plain();
    s.top_k = 3;                        /* 2 degrees of freedom: 13.8 */
    chi_square(&s, (const double[N]){ 0.25 / 0.65, 0, 0.2 / 0.65, 0, 0.2 / 0.65 }, 13.8);
}

/* Draw proposals from another distribution and verify them: test the tokens against the intended
 * distribution by chi-square, and check that the fraction of accepted proposals is the highest
 * possible, the sum of min(p, q). */
static void chi_square_verified(const struct sampling *sampling, const struct allowed *allowed, const double want[N],
                                double limit)
{
    enum { DRAWS = 20000 };
    static const double other[N] = { 0.02, 0.3, 0.1, 0.04, 0.3, 0.1, 0.04, 0.1 };
    struct err e;
    struct sampler *s = sampler_open(sampling, N, 4, scratch, &e);
    int count[N] = { 0 };
    double x = 0, accepted = 0, expected = 0;
    assert_false(sampler_is_greedy(s));
    for (int i = 0; i < DRAWS; i++) {
        float logits[N], guess[N], proposal[N], sum = 0;
        struct proposed p;
        int32_t id;
        for (int j = 0; j < N; j++) {
            logits[j] = (float)log(prob[j]) + 3;
            guess[j] = (float)log(other[j]) - 2;
        }
        assert_int_equal(sampler_propose(s, guess, proposal, &p, &e), 0);
        assert_true(proposal[p.id] > 0);
        for (int j = 0; j < N; j++) {
            sum += proposal[j];
            expected += fmin(proposal[j], want[j]) / DRAWS;
        }
        assert_float_equal(sum, 1, 1e-5f);
        assert_int_equal(sampler_verify(s, logits, allowed, &p, &id, NULL, &e), 0);
        accepted += id == p.id;
        count[id]++;
    }
    sampler_close(s);
    for (int i = 0; i < N; i++) {
        const double n = want[i] * DRAWS;
        if (n == 0)
            assert_int_equal(count[i], 0);
        else
            x += (count[i] - n) * (count[i] - n) / n;
    }
    if (x > limit)
        fail_msg("chi-square %.1f, limit %.1f", x, limit);
    /* with XTC, p and q change together, so more proposals are accepted than the mean distribution
     * predicts */
    if (!sampling->xtc_probability && fabs(accepted / DRAWS - expected) > 0.015)
        fail_msg("%.3f of the proposals were accepted, expected %.3f", accepted / DRAWS, expected);
}

static void verified_proposals_keep_the_distribution(void **state)
{
    (void)state;
    struct sampling s = plain();
    double want[N] = { 0 }, sum = 0;
    const uint32_t bits = 0xbd;                                 /* not 1 and 6 */
    chi_square_verified(&s, NULL, prob, 24.3);
    for (int i = 0; i < N; i++)
        sum += want[i] = bits >> i & 1 ? prob[i] : 0;
    for (int i = 0; i < N; i++)
        want[i] /= sum;
    chi_square_verified(&s, &(struct allowed){ &bits, N }, want, 20.5);
    s.top_p = 0.9999f;                  /* another path: candidates */
    chi_square_verified(&s, NULL, prob, 24.3);
    s.top_k = 3;
    chi_square_verified(&s, NULL, (const double[N]){ 0.25 / 0.65, 0, 0.2 / 0.65, 0, 0.2 / 0.65 }, 13.8);
    s = plain();
    s.xtc_probability = 0.5f;           /* excludes 0 and 2; of the equal 2 and 4 the higher id stays */
    s.xtc_threshold = 0.15f;
    for (int i = 0; i < N; i++)
        want[i] = prob[i] / 2 + (i == 0 || i == 2 ? 0 : prob[i] / 0.55 / 2);
    chi_square_verified(&s, NULL, want, 24.3);
    s = plain();
    s.temperature = 0;
    struct err e;
    struct sampler *p = sampler_open(&s, N, 4, scratch, &e);
    assert_true(sampler_is_greedy(p));
    sampler_close(p);
}

/* Two drafted tokens with XTC, of which the first has only one candidate: whether that one takes a
 * random number does not change the distribution of the second. */
static void test_verify_after_one(void **state)
{
    (void)state;
    enum { DRAWS = 20000 };
    struct sampling o = plain();
    struct err e;
    int count[N] = { 0 };
    double x = 0;
    o.min_p = 0.01f;
    o.xtc_probability = 0.5f;
    o.xtc_threshold = 0.15f;
    struct sampler *s = sampler_open(&o, N, 4, scratch, &e);
    for (int i = 0; i < DRAWS; i++) {
        float one[N] = { 0 }, logits[N], guess[N] = { 0 }, proposals[2][N];
        struct proposed first, second;
        int32_t id;
        one[3] = guess[3] = 20;
        assert_int_equal(sampler_propose(s, guess, proposals[0], &first, &e), 0);
        for (int j = 0; j < N; j++) {
            logits[j] = (float)log(prob[j]);
            guess[j] = (float)log(prob[N - 1 - j]);
        }
        assert_int_equal(sampler_propose(s, guess, proposals[1], &second, &e), 0);
        assert_int_equal(sampler_verify(s, one, NULL, &first, &id, NULL, &e), 0);
        assert_int_equal(id, 3);
        assert_int_equal(sampler_verify(s, logits, NULL, &second, &id, NULL, &e), 0);
        count[id]++;
    }
    sampler_close(s);
    for (int i = 0; i < N; i++) {       /* as in verified_proposals_keep_the_distribution() */
        const double n = (prob[i] / 2 + (i == 0 || i == 2 ? 0 : prob[i] / 0.55 / 2)) * DRAWS;
        x += (count[i] - n) * (count[i] - n) / n;
    }
    if (x > 24.3)
        fail_msg("chi-square %.1f, limit 24.3", x);
}

static void equal_seeds_give_equal_tokens(void **state)
{
    (void)state;
    struct err e;
    struct sampling s = plain();
    int32_t id[3][200];
    for (int run = 0; run < 3; run++) {
        s.seed = run == 2 ? 43 : 42;
        struct sampler *p = sampler_open(&s, N, 4, scratch, &e);
        for (int i = 0; i < 200; i++) {
            float logits[N] = { 1, 1, 1, 1, 1, 1, 1, 1 };
            assert_int_equal(sampler_pick(p, logits, NULL, &id[run][i], NULL, &e), 0);
        }
        sampler_close(p);
    }
    assert_memory_equal(id[0], id[1], sizeof id[0]);
    assert_true(memcmp(id[0], id[2], sizeof id[0]) != 0);
}

/* A seed gives the same tokens in every version of the program.  Each number is the FNV-1a hash of
 * 500 draws, and each case draws in another way. */
static void draws_are_the_same_in_every_version(void **state)
{
    (void)state;
    static const struct { int top_k; float top_p, min_p, typical_p, temperature; uint64_t want; float xtc; } cases[] = {
        { 0, 1, 0, 1, 1, 0xe62d6b29e16b347e, 0 }, { 0, 1, 0.3f, 1, 0.7f, 0x532b8b271f761ce5, 0 },
        { 5, 1, 0, 1, 1, 0x2ff2c7034651c5f2, 0 }, { 0, 0.8f, 0, 1, 1, 0xd20582efbb6a664e, 0 },
        { 6, 0.9f, 0.1f, 0.9f, 1.3f, 0xcd0aa84c47cfee98, 0 }, { 0, 1, 0, 0.7f, 1, 0x5cd787a533c91c9a, 0 },
        { 8, 1, 0, 1, 1, 0xe62d6b29e16b347e, 0 }, { 0, 1, 0.1f, 1, 1, 0x31325e37a67ad58, 0.5f },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e;
        struct sampling o = plain();
        uint64_t hash = 0xcbf29ce484222325u;
        o.top_k = cases[i].top_k;
        o.top_p = cases[i].top_p;
        o.min_p = cases[i].min_p;
        o.typical_p = cases[i].typical_p;
        o.temperature = cases[i].temperature;
        o.xtc_probability = cases[i].xtc;
        struct sampler *s = sampler_open(&o, N, 4, scratch, &e);
        for (int k = 0; k < 500; k++) {
            float logits[N];
            int32_t id;
            for (int j = 0; j < N; j++)
                logits[j] = (float)log(prob[j]) * (cases[i].xtc != 0 && k % 2 ? 20 : 1);    /* one is left */
            assert_int_equal(sampler_pick(s, logits, NULL, &id, NULL, &e), 0);
            hash = (hash ^ (uint64_t)id) * 0x100000001b3u;
        }
        sampler_close(s);
        if (hash != cases[i].want)
            fail_msg("case %zu: %#jx", i, (uintmax_t)hash);
    }
}

/* sampler_draw() lets the backend draw unless there are biases, penalties or typical_p. */
static void the_backend_draws_if_it_can(void **state)
{
    (void)state;
    const struct logit_bias bias = { 1, 1 };
    struct err e;
    struct sampling s[8];
    for (int i = 0; i < 8; i++)
        s[i] = plain();
    s[1].top_k = 5, s[1].top_p = 0.9f, s[1].min_p = 0.1f, s[1].temperature = 0.6f, s[1].seed = 7;
    s[2].temperature = 0;
    s[3].typical_p = 0.5f, s[3].temperature = 0;        /* greedy: typical_p has no effect */
    s[4].typical_p = 0.5f;
    s[5].bias = &bias, s[5].n_bias = 1;
    s[6].repetition_penalty = 1.1f;
    s[7].presence_penalty = 0.1f;
    for (int i = 0; i < 8; i++) {
        struct draw d;
        struct sampler *p = sampler_open(&s[i], N, 4, scratch, &e);
        assert_int_equal(sampler_draw(p, 9, &d), i < 4);
        if (i < 4) {
            assert_true(d.temperature == (i < 2 ? s[i].temperature : 0) && d.top_k == s[i].top_k);
            assert_true(d.top_p == s[i].top_p && d.min_p == s[i].min_p);
            assert_true(d.seed == s[i].seed && d.n == 9 && d.id == -1);
        }
        sampler_close(p);
    }
}

/* generation_config.json: values in the file replace the defaults, others keep them. */
static void generation_config_replaces_defaults(void **state)
{
    (void)state;
    struct err e;
    struct sampling s = plain(), before = s;
    assert_int_equal(sampling_config(&s, NULL, &e), 0);
    assert_memory_equal(&s, &before, sizeof s);
    json_t *j = json_pack("{s:f, s:i, s:f, s:f, s:f, s:f}", "temperature", 0.5, "top_k", 7, "top_p", 0.25, "min_p",
                          0.125, "typical_p", 0.75, "repetition_penalty", 1.5);
    assert_int_equal(sampling_config(&s, j, &e), 0);
    assert_true(s.temperature == 0.5f && s.top_k == 7 && s.top_p == 0.25f && s.min_p == 0.125f);
    assert_true(s.typical_p == 0.75f && s.repetition_penalty == 1.5f && s.seed == before.seed);
    json_object_set_new(j, "do_sample", json_true());
    assert_int_equal(sampling_config(&s, j, &e), 0);
    assert_true(s.temperature == 0.5f);
    json_object_set_new(j, "do_sample", json_false());
    json_object_set_new(j, "top_k", json_integer(-1));          /* off */
    assert_int_equal(sampling_config(&s, j, &e), 0);
    assert_true(s.temperature == 0 && s.top_k == 0);
    static const char *const wrong[] = { "temperature", "top_p", "top_k", "do_sample" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *bad = json_pack("{s:s}", wrong[i], "x");
        assert_int_equal(sampling_config(&s, bad, &e), -1);
        assert_non_null(strstr(e.msg, wrong[i]));
        json_decref(bad);
    }
    json_decref(j);
}

static int32_t pick_one(const struct sampling *s, const float *logits, int n, const char *prompt, const char *answer,
                        float *logprob)
{
    struct err e;
    float copy[256];
    int32_t id;
    struct sampler *p = sampler_open(s, n, 64, scratch, &e);
    assert_non_null(p);
    for (; *prompt; prompt++)
        sampler_accept(p, *prompt - '0', 0);
    for (; *answer; answer++)
        sampler_accept(p, *answer - '0', 1);
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    struct logprobs lp = { .n_top = 0 };
    assert_int_equal(sampler_pick(p, copy, NULL, &id, logprob ? &lp : NULL, &e), 0);
    if (logprob)
        *logprob = lp.logprob;
    sampler_close(p);
    return id;
}

static void greedy_takes_the_largest_logit(void **state)
{
    (void)state;
    struct sampling s = plain();
    s.temperature = 0;
    float x[200];
    for (int i = 0; i < 200; i++)
        x[i] = -5;
    x[70] = x[130] = x[131] = 2;        /* equal logits in two blocks of the search: the lower id wins */
    assert_int_equal(pick_one(&s, x, 200, "", "", NULL), 70);
    x[3] = 2;
    assert_int_equal(pick_one(&s, x, 200, "", "", NULL), 3);
    x[199] = 2.5f;
    assert_int_equal(pick_one(&s, x, 200, "", "", NULL), 199);
    for (int i = 0; i < 200; i++)
        x[i] = -INFINITY;
    x[150] = -1e30f;
    assert_int_equal(pick_one(&s, x, 200, "", "", NULL), 150);
    s.temperature = 1e-6f;              /* nearly greedy: no overflow */
    x[20] = 3e38f;
    assert_int_equal(pick_one(&s, x, 200, "", "", NULL), 20);
}

static void penalties_change_logits_as_documented(void **state)
{
    (void)state;
    struct sampling s = plain();
    s.temperature = 0;
    s.repetition_penalty = 2;           /* positive logits are divided, negative multiplied */
    const float up[] = { 4, 2.5f, 1 }, down[] = { -1, -1.5f, -9 };
    assert_int_equal(pick_one(&s, up, 3, "", "", NULL), 0);
    assert_int_equal(pick_one(&s, up, 3, "0", "", NULL), 1);
    assert_int_equal(pick_one(&s, up, 3, "00", "0", NULL), 1);     /* divided once, although the
                                                                    * token occurs three times: 4 /
                                                                    * 2 = 2 */
    assert_int_equal(pick_one(&s, up, 3, "01", "", NULL), 0);      /* 2, 1.25, 1 */
    assert_int_equal(pick_one(&s, down, 3, "0", "", NULL), 1);     /* -2, -1.5 */
    s.repeat_last_n = 1;
    assert_int_equal(pick_one(&s, up, 3, "01", "", NULL), 0);
    assert_int_equal(pick_one(&s, up, 3, "10", "", NULL), 1);
    s.repeat_last_n = 0;
    assert_int_equal(pick_one(&s, up, 3, "0", "", NULL), 0);

    s = plain();
    s.temperature = 0;
    s.presence_penalty = 1.6f;          /* counts answer tokens only, each once */
    assert_int_equal(pick_one(&s, up, 3, "000", "", NULL), 0);
    assert_int_equal(pick_one(&s, up, 3, "", "0", NULL), 1);       /* 2.4 */
    assert_int_equal(pick_one(&s, up, 3, "", "001", NULL), 0);     /* 2.4, 0.9, 1 */
    s.presence_penalty = -1.6f;
    assert_int_equal(pick_one(&s, up, 3, "", "1", NULL), 1);       /* 4.1 */
    s.presence_penalty = 0;
    s.frequency_penalty = 0.8f;
    assert_int_equal(pick_one(&s, up, 3, "", "0", NULL), 0);       /* 3.2 */
    assert_int_equal(pick_one(&s, up, 3, "", "00", NULL), 1);      /* 2.4 */
    assert_int_equal(pick_one(&s, up, 3, "", "00111", NULL), 0);   /* 2.4, 0.1, 1 */
}

static void bias_is_added_before_penalties(void **state)
{
    (void)state;
    const struct logit_bias bias[] = { { 2, 5 }, { 0, -INFINITY } };
    struct sampling s = plain();
    s.temperature = 0;
    s.bias = bias;
    s.n_bias = 1;
    const float x[] = { 4, 2.5f, 1 };
    float logprob;
    assert_int_equal(pick_one(&s, x, 3, "", "", &logprob), 2);
    /* the log probability is that of the logits before the bias: log(e^1 / (e^4 + e^2.5 + e^1)) */
    assert_true(fabs(logprob - (1 - log(exp(4) + exp(2.5) + exp(1)))) < 1e-5);
    s.bias = bias + 1;
    assert_int_equal(pick_one(&s, x, 3, "", "", &logprob), 1);
    s.bias = bias;                      /* the bias comes before the penalty: (1 + 5) / 2 < 4 */
    s.repetition_penalty = 2;
    assert_int_equal(pick_one(&s, x, 3, "2", "", &logprob), 0);
    s.temperature = 1;                  /* a forbidden token is never drawn */
    s.bias = bias + 1;
    for (uint64_t seed = 0; seed < 200; seed++) {
        s.seed = seed;
        assert_int_not_equal(pick_one(&s, x, 3, "", "", &logprob), 0);
    }
}

static void nan_and_infinity_are_refused(void **state)
{
    (void)state;
    struct err e;
    const struct { float bad; const char *word; } cases[] = { { NAN, "NaN" }, { -NAN, "NaN" }, { INFINITY, "+inf" } };
    for (int t = 0; t < 2; t++) {
        struct sampling s = plain();
        s.temperature = (float)t;
        struct sampler *p = sampler_open(&s, 100, 4, scratch, &e);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            for (int at = 0; at < 100; at += 33) {
                float x[100] = { 0 };
                int32_t id = -7;
                x[at] = cases[i].bad;
                assert_int_equal(sampler_pick(p, x, NULL, &id, NULL, &e), -1);
                assert_int_equal(e.code, ERR_FORMAT);
                assert_non_null(strstr(e.msg, cases[i].word));
                assert_int_equal(id, -7);
            }
        }
        float x[100];
        int32_t id;
        for (int i = 0; i < 100; i++)
            x[i] = -INFINITY;
        assert_int_equal(sampler_pick(p, x, NULL, &id, NULL, &e), -1);
        assert_non_null(strstr(e.msg, "-inf"));
        sampler_close(p);
    }
}

/* With a vocabulary of realistic size top_p keeps exactly the tokens that a full sort would
 * keep. */
static int by_weight(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void top_p_keeps_what_a_full_sort_keeps(void **state)
{
    (void)state;
    enum { V = 50000 };
    struct err e;
    struct rng r = { 1 };
    float *x = malloc(V * sizeof *x), *copy = malloc(V * sizeof *x), *sorted = malloc(V * sizeof *x);
    for (int i = 0; i < V; i++)
        x[i] = (float)(4 * rng_double(&r));
    double sum = 0, part = 0;
    for (int i = 0; i < V; i++)
        sum += sorted[i] = expf(x[i]);
    qsort(sorted, V, sizeof *sorted, by_weight);
    int n = 0;
    while (part < 0.5 * sum)
        part += sorted[n++];
    struct sampling s = plain();
    s.top_p = 0.5f;
    struct sampler *p = sampler_open(&s, V, 4, scratch, &e);
    float least = 1e9f;
    for (int i = 0; i < 1000; i++) {
        int32_t id;
        memcpy(copy, x, V * sizeof *x);
        assert_int_equal(sampler_pick(p, copy, NULL, &id, NULL, &e), 0);
        least = expf(x[id]) < least ? expf(x[id]) : least;
    }
    assert_true(least >= sorted[n - 1] * 0.999f);
    assert_true(least <= sorted[n - 1] * 1.01f);        /* among 1000 draws there are some near the
                                                         * limit */
    sampler_close(p);
    free(x);
    free(copy);
    free(sorted);
}

static void values_out_of_range_are_refused(void **state)
{
    (void)state;
    struct err e;
    const struct logit_bias outside = { 8, 1 }, nan = { 1, NAN };
    static const struct { size_t at; float bad; const char *name; } floats[] = {
        { offsetof(struct sampling, temperature), -0.1f, "temperature" },
            { offsetof(struct sampling, temperature), NAN, "temperature" },
        { offsetof(struct sampling, top_p), 1.1f, "top_p" }, { offsetof(struct sampling, min_p), -1, "min_p" },
        { offsetof(struct sampling, typical_p), 2, "typical_p" },
        { offsetof(struct sampling, repetition_penalty), 0, "repetition_penalty" },
        { offsetof(struct sampling, presence_penalty), 2.5f, "presence_penalty" },
        { offsetof(struct sampling, frequency_penalty), -2.5f, "frequency_penalty" },
    };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        struct sampling s = sampling_defaults();
        memcpy((char *)&s + floats[i].at, &floats[i].bad, sizeof(float));
        assert_int_equal(sampling_check(&s, N, &e), -1);
        assert_non_null(strstr(e.msg, floats[i].name));
        assert_null(sampler_open(&s, N, 4, scratch, &e));
    }
    struct sampling s = sampling_defaults();
    assert_int_equal(sampling_check(&s, N, &e), 0);
    s.top_k = -2;
    assert_int_equal(sampling_check(&s, N, &e), -1);
    s = sampling_defaults();
    s.bias = &outside;
    s.n_bias = 1;
    assert_int_equal(sampling_check(&s, N, &e), -1);
    s.bias = &nan;
    assert_int_equal(sampling_check(&s, N, &e), -1);
}

/* Log probabilities are those of a softmax in double, and the top ones those of a sort.  They are
 * computed from the unchanged logits, whatever the sampler does with them. */
static void logprobs_are_those_of_unchanged_logits(void **state)
{
    (void)state;
    enum { V = 1000 };
    struct err e;
    struct rng r = { 31 };
    float x[V], copy[V];
    uint32_t bits[V / 32 + 1];
    for (int round = 0; round < 200; round++) {
        double sum = 0;
        for (int i = 0; i < V; i++)
            sum += exp(x[i] = (float)(int)(rng_double(&r) * 40) / 4 - 7);       /* many ties */
        for (int i = 0; i <= V / 32; i++)
            bits[i] = (uint32_t)rng_u64(&r);
        struct sampling s = plain();
        s.temperature = round % 2 ? 0.5f : 0;
        s.seed = (uint64_t)round;
        s.repetition_penalty = 1.5f;
        const struct logit_bias bias = { 7, 3 };
        s.bias = &bias;
        s.n_bias = 1;
        struct sampler *p = sampler_open(&s, V, 4, scratch, &e);
        sampler_accept(p, 7, 0);
        struct { struct logprobs lp; struct top_logprob behind; } room = {
            { .n_top = round % (MAX_TOP_LOGPROBS + 1) }, { -9, 9 } };
        struct logprobs other = room.lp;
        const struct allowed allowed = { bits, V - round % 70 };
        int32_t id;
        memcpy(copy, x, sizeof x);
        assert_int_equal(sampler_pick(p, copy, round % 3 ? &allowed : NULL, &id, &room.lp, &e), 0);
        const struct logprobs lp = room.lp;
        assert_true(room.behind.id == -9 && room.behind.logprob == 9);
        if (round % 3)
            assert_true(id < allowed.n && bits[id / 32] >> id % 32 & 1);
        assert_true(fabs(lp.logprob - log(exp(x[id]) / sum)) < 1e-5);
        assert_int_equal(lp.n_top, round % (MAX_TOP_LOGPROBS + 1));
        for (int i = 0; i < lp.n_top; i++) {
            int before = 0;             /* number of tokens that are more likely */
            for (int j = 0; j < V; j++)
                before += x[j] > x[lp.top[i].id] || (x[j] == x[lp.top[i].id] && j < lp.top[i].id);
            assert_int_equal(before, i);
            assert_true(fabs(lp.top[i].logprob - log(exp(x[lp.top[i].id]) / sum)) < 1e-5);
        }
        assert_int_equal(logprobs_of(scratch, x, V, id, &other, &e), 0);
        assert_memory_equal(&lp, &other, offsetof(struct logprobs, top) + (size_t)lp.n_top * sizeof *lp.top);
        sampler_close(p);
    }
}

/* A constraint that allows only one token gets it; one that allows none is an error. */
static void only_allowed_tokens_are_chosen(void **state)
{
    (void)state;
    struct err e;
    struct sampling s = plain();
    float x[N];
    for (int only = 0; only < N; only++) {
        uint32_t bits = 1u << only;
        struct sampler *p = sampler_open(&s, N, 4, scratch, &e);
        int32_t id;
        for (int i = 0; i < N; i++)
            x[i] = (float)i;
        assert_int_equal(sampler_pick(p, x, &(struct allowed){ &bits, N }, &id, NULL, &e), 0);
        assert_int_equal(id, only);
        for (int i = 0; i < N; i++)
            x[i] = (float)i;
        /* its bit lies beyond the end */
        assert_int_equal(sampler_pick(p, x, &(struct allowed){ &bits, only }, &id, NULL, &e), -1);
        assert_non_null(strstr(e.msg, "constraint"));
        sampler_close(p);
    }
    /* Only ids below n are allowed; the bits from n on have no effect.  Words of the bit set end at
     * multiples of 32, so n is tried around them. */
    for (int n = 31; n <= 98; n++) {
        enum { V = 100 };
        const uint32_t bits[4] = { ~0u, ~0u, ~0u, ~0u };
        float y[V];
        int32_t id;
        struct sampling most = plain();
        most.temperature = 0;
        struct sampler *p = sampler_open(&most, V, 4, scratch, &e);
        for (int i = 0; i < V; i++)
            y[i] = (float)i;
        assert_int_equal(sampler_pick(p, y, &(struct allowed){ bits, n }, &id, NULL, &e), 0);
        assert_int_equal(id, n - 1);
        sampler_close(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_keep_the_listed_tokens), cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(verified_proposals_keep_the_distribution), cmocka_unit_test(test_verify_after_one),
        cmocka_unit_test(equal_seeds_give_equal_tokens), cmocka_unit_test(greedy_takes_the_largest_logit),
        cmocka_unit_test(penalties_change_logits_as_documented), cmocka_unit_test(bias_is_added_before_penalties),
        cmocka_unit_test(nan_and_infinity_are_refused), cmocka_unit_test(top_p_keeps_what_a_full_sort_keeps),
        cmocka_unit_test(values_out_of_range_are_refused), cmocka_unit_test(logprobs_are_those_of_unchanged_logits),
        cmocka_unit_test(only_allowed_tokens_are_chosen), cmocka_unit_test(draws_are_the_same_in_every_version),
        cmocka_unit_test(the_backend_draws_if_it_can), cmocka_unit_test(generation_config_replaces_defaults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* t-sampler-chain.c - the sampler's filters against simple implementations, which sort all tokens
 * and add in double.  The filters are applied one after the other in the order that the first
 * comment of sampler.c gives. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/engine/sampler.h"
#include "libcommon/token/tokenizer.h"

enum { V = 24 };
static struct sampler_scratch *scratch;

/* The texts of the first ids; the others are padding without a token. */
static const char *const words[] = { "a", "b", "c", "d", "e", "f", "g", "h", "ab", "cd", "abcd", "ef", "gh", "efgh",
                                     "ha" };
enum { WORDS = sizeof words / sizeof *words };
static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
    "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"f\":5,\"g\":6,\"h\":7,\"ab\":8,"
    "\"cd\":9,\"abcd\":10,\"ef\":11,\"gh\":12,\"efgh\":13,\"ha\":14},"
    "\"merges\":[\"a b\",\"c d\",\"ab cd\",\"e f\",\"g h\",\"ef gh\",\"h a\"]}}";
static struct tokenizer *tokenizer;
static void *blob;

static int setup(void **state)
{
    struct err e;
    size_t size;
    const struct tokenizer_files f = { .tokenizer_json = tokenizer_json,
                                       .tokenizer_json_size = sizeof tokenizer_json - 1 };
    (void)state;
    if (tokenizer_compile_files(&f, &blob, &size, &e) != 0 || !(tokenizer = tokenizer_open(blob, size, &e)))
        return -1;
    return (scratch = sampler_scratch_open(tokenizer, &e)) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    sampler_scratch_close(scratch);
    tokenizer_close(tokenizer);
    free(blob);
    return 0;
}

static struct sampling plain(void)
{
    struct sampling s = sampling_defaults();
    s.temperature = 1;
    s.top_k = 0;
    s.top_p = s.typical_p = 1;
    s.min_p = 0;
    return s;
}

/* ---- the plain versions ---- */

struct token { int id; double x, p; };

static int by_p(const void *a, const void *b)
{
    const struct token *s = a, *t = b;
    return s->p != t->p ? (s->p < t->p) - (s->p > t->p) : s->id - t->id;
}

static void scale(struct token *t, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += t[i].p;
    for (int i = 0; i < n; i++)
        t[i].p /= sum;
}

/* The distance of a logit from the largest, after the temperature. */
static double distance(const struct sampling *s, double d)
{
    const double f = s->smoothing_factor, curve = s->smoothing_curve;
    return f > 0 ? f * ((3 - curve) / 2 * d * d + (curve - 1) / 2 * d * d * d) : d;
}

/* Add chance times the distribution of these n tokens, most likely first, to p [V]. */
static void add(const struct sampling *s, const struct token *t, int n, double chance, double *p)
{
    double w[V], sum = 0, entropy = 0, low = s->temperature - s->dynatemp_range;
    for (int i = 0; i < n; i++)
        entropy -= t[i].p > 0 ? t[i].p * log(t[i].p) : 0;
    low = low > 0 ? low : 0;
    const double high = s->temperature + s->dynatemp_range;
    const double temperature = low + (high - low) * (n > 1 ? pow(entropy / log(n), s->dynatemp_exponent) : 0);
    for (int i = 0; i < n; i++) {
        w[i] = t[i].p;
        if (s->dynatemp_range > 0)
            w[i] = t[i].x == t[0].x ? 1 : exp(-distance(s, (t[0].x - t[i].x) / temperature));
        sum += w[i];
    }
    for (int i = 0; i < n; i++)
        p[t[i].id] += chance * w[i] / sum;
}

/* The distribution that a token is drawn from, p [V]. */
static void expected(const struct sampling *s, const float *logits, double *p)
{
    struct token t[V];
    double largest = -INFINITY, mean = 0, variance = 0;
    int n = 0;
    for (int i = 0; i < V; i++) {
        largest = logits[i] > largest ? logits[i] : largest;
        if (logits[i] != -INFINITY)
            t[n++] = (struct token){ i, logits[i], 0 };
    }
    for (int i = 0; i < n; i++)
        mean += t[i].x / n;
    for (int i = 0; i < n; i++)
        variance += (t[i].x - mean) * (t[i].x - mean) / n;
    for (int i = 0; i < n; i++)
        t[i].p = s->top_n_sigma > 0 && t[i].x < largest - s->top_n_sigma * sqrt(variance)
                     ? 0 : s->dynatemp_range > 0 ? exp(t[i].x - largest)
                     : exp(-distance(s, (largest - t[i].x) / s->temperature));
    qsort(t, (size_t)n, sizeof *t, by_p);
    while (n > 1 && t[n - 1].p == 0)
        n--;
    scale(t, n);
    if (s->top_k > 0 && s->top_k < n)
        scale(t, n = s->top_k);
    for (const double least = s->top_a * t[0].p * t[0].p; n > 1 && t[n - 1].p < least; )
        n--;
    scale(t, n);
    int kept = 0;
    for (double sum = 0; kept < n && (kept == 0 || s->top_p == 1 || sum < s->top_p); kept++)
        sum += t[kept].p;
    scale(t, n = kept);
    while (n > 1 && t[n - 1].p < s->min_p * t[0].p)
        n--;
    scale(t, n);
    int n_top = 0;
    while (n_top < n && t[n_top].p >= s->xtc_threshold)
        n_top++;
    const double chance = n_top > 1 ? s->xtc_probability : 0;
    memset(p, 0, V * sizeof *p);
    add(s, t, n, 1 - chance, p);
    if (n_top > 1) {
        scale(t + n_top - 1, n -= n_top - 1);
        add(s, t + n_top - 1, n, chance, p);
    }
}

/* ---- draws ---- */

/* Draw from these logits.  No token may appear that the simple implementation excludes, and the
 * count of every other one must be within 5 standard deviations of its expected value. */
static void compare(const struct sampling *sampling, const float *logits)
{
    enum { DRAWS = 4000 };
    struct err e;
    double want[V];
    int count[V] = { 0 };
    struct sampler *s = sampler_open(sampling, V, 4, scratch, &e);
    assert_non_null(s);
    for (int i = 0; i < DRAWS; i++) {
        float copy[V];
        int32_t id;
        memcpy(copy, logits, sizeof copy);
        assert_int_equal(sampler_pick(s, copy, NULL, &id, NULL, &e), 0);
        count[id]++;
    }
    sampler_close(s);
    expected(sampling, logits, want);
    for (int i = 0; i < V; i++) {
        if (want[i] == 0 && count[i])
            fail_msg("token %d was drawn %d times, expected never", i, count[i]);
        if (fabs(count[i] - want[i] * DRAWS) > 5 * sqrt(want[i] * (1 - want[i]) * DRAWS) + 1)
            fail_msg("token %d was drawn %d times of %d, expected %g", i, count[i], DRAWS, want[i] * DRAWS);
    }
}

/* Compare the distribution itself, which sampler_propose() writes; not for XTC, which is random. */
static void compare_exactly(const struct sampling *sampling, const float *logits)
{
    struct err e;
    double want[V];
    float copy[V], got[V];
    struct proposed ignored;
    struct draw elsewhere;
    struct sampler *s = sampler_open(sampling, V, 4, scratch, &e);
    assert_non_null(s);
    memcpy(copy, logits, sizeof copy);
    assert_int_equal(sampler_propose(s, copy, got, &ignored, &e), 0);
    assert_int_equal(sampler_draw(s, 0, &elsewhere), 0);
    sampler_close(s);
    expected(sampling, logits, want);
    for (int i = 0; i < V; i++)
        if (!(fabs(got[i] - want[i]) <= 5e-7) || (want[i] == 0 && got[i] > 0) || (want[i] > 1e-20 && got[i] == 0))
            fail_msg("token %d has the probability %.9g, expected %.9g", i, (double)got[i], want[i]);
}

static void random_logits(struct rng *r, float *x)
{
    for (int i = 0; i < V; i++)
        x[i] = (float)(int)(rng_double(r) * 24) / 4;            /* with ties */
}

static void test_top_n_sigma(void **state)
{
    (void)state;
    struct rng r = { 5 };
    float x[V];
    for (int round = 0; round < 30; round++) {
        struct sampling s = plain();
        s.top_n_sigma = (float)(round % 5) / 2 + 0.3f;
        s.temperature = round % 3 ? 3 : 0.5f;                   /* changes no cut */
        s.top_k = round % 4 == 1 ? 6 : 0;
        s.top_p = round % 4 == 2 ? 0.8f : 1;
        s.min_p = round % 4 == 3 ? 0.3f : 0;
        s.seed = (uint64_t)round;
        random_logits(&r, x);
        for (int i = 0; i < round % 7; i++)                     /* forbidden tokens do not count */
            x[rng_u64(&r) % V] = -INFINITY;
        compare(&s, x);
    }
    for (int i = 0; i < V; i++)
        x[i] = 2;                                               /* no deviation: all stay */
    struct sampling s = plain();
    s.top_n_sigma = 0.01f;
    compare(&s, x);
    for (int i = 1; i < V; i++)
        x[i] = -INFINITY;                                       /* one token is left */
    compare(&s, x);
}

static void xtc_draws_have_the_expected_frequencies(void **state)
{
    (void)state;
    struct rng r = { 6 };
    float x[V];
    for (int round = 0; round < 60; round++) {
        struct sampling s = plain();
        s.xtc_probability = round % 3 == 0 ? 1 : round % 3 == 1 ? 0.5f : 0.1f;
        s.xtc_threshold = 0.02f + (float)(round % 6) / 12;      /* from a threshold that nearly all
                                                                 * tokens reach to one that no two
                                                                 * tokens reach */
        s.temperature = round % 2 ? 0.5f : 1;
        s.top_k = round % 4 == 1 ? 6 : 0;
        s.top_p = round % 4 == 2 ? 0.8f : 1;
        s.min_p = round % 4 == 3 ? 0.1f : 0;
        s.top_n_sigma = round % 5 == 4 ? 1 : -1;
        s.seed = (uint64_t)round;
        random_logits(&r, x);
        compare(&s, x);
    }
    for (int i = 0; i < V; i++)
        x[i] = 1;                       /* all tokens are top choices, so XTC keeps only the last one */
    struct sampling s = plain();
    s.xtc_probability = 1;
    s.xtc_threshold = 0;
    compare(&s, x);
    for (int i = 2; i < V; i++)
        x[i] = -INFINITY;
    s.xtc_threshold = 0.5f;             /* the largest threshold that has an effect: two tokens of
                                         * one half each */
    compare(&s, x);
    s.xtc_threshold = 0;
    x[1] = -INFINITY;                   /* nothing can be excluded */
    compare(&s, x);
    s.temperature = 0;                  /* the largest logit, always */
    random_logits(&r, x);
    x[3] = 9;
    struct err e;
    struct draw ignored;
    struct sampler *p = sampler_open(&s, V, 4, scratch, &e);
    int32_t id;
    assert_int_equal(sampler_draw(p, 0, &ignored), 1);          /* with temperature 0 a device may
                                                                 * draw, otherwise not */
    assert_int_equal(sampler_pick(p, x, NULL, &id, NULL, &e), 0);
    assert_int_equal(id, 3);
    sampler_close(p);
    s.temperature = 1;
    p = sampler_open(&s, V, 4, scratch, &e);
    assert_int_equal(sampler_draw(p, 0, &ignored), 0);
    sampler_close(p);
}

/* The logits of these probabilities, for tokens 0 to n - 1; the others are impossible. */
static void logits_of(float *x, const double *p, int n)
{
    for (int i = 0; i < V; i++)
        x[i] = i < n ? (float)log(p[i]) + 2 : -INFINITY;
}

static void top_a_gives_the_expected_probabilities(void **state)
{
    (void)state;
    struct rng r = { 8 };
    float x[V];
    for (int round = 0; round < 200; round++) {
        struct sampling s = plain();
        s.top_a = round % 5 == 0 ? 1 : (float)rng_double(&r);
        s.temperature = round % 3 ? 1 : 0.4f;
        s.top_k = round % 4 == 1 ? 6 : 0;
        s.top_p = round % 4 == 2 ? 0.8f : 1;
        s.min_p = round % 4 == 3 ? 0.02f : 0;
        s.top_n_sigma = round % 7 == 6 ? 1 : -1;
        random_logits(&r, x);
        compare_exactly(&s, x);
        s.xtc_probability = 0.5f;
        s.xtc_threshold = 0.05f;
        if (round < 6)
            compare(&s, x);
    }
    /* 0.4 * 0.5^2 = 0.1: the third token is just below it */
    static const double p[] = { 0.5, 0.31, 0.099, 0.091 };
    struct sampling s = plain();
    s.top_a = 0.4f;
    logits_of(x, p, 4);
    compare_exactly(&s, x);
    x[3] = x[2] = (float)log(0.101) + 2;        /* now above */
    compare_exactly(&s, x);
    for (int i = 0; i < V; i++)
        x[i] = i ? -INFINITY : 3;
    s.top_a = 1;                                /* the only token stays */
    compare_exactly(&s, x);
}

static void smoothing_gives_the_expected_probabilities(void **state)
{
    (void)state;
    struct rng r = { 9 };
    float x[V];
    for (int round = 0; round < 200; round++) {
        struct sampling s = plain();
        s.smoothing_factor = round % 5 == 0 ? 0.01f : (float)rng_double(&r) * 2;
        s.smoothing_curve = round % 3 == 0 ? 1 : round % 3 == 1 ? 3 : 1 + 2 * (float)rng_double(&r);
        s.temperature = round % 2 ? 1 : 0.7f;
        s.top_k = round % 4 == 1 ? 6 : 0;
        s.top_p = round % 4 == 2 ? 0.83f : 1;
        s.min_p = round % 8 == 3 ? 0.02f : 0;
        s.top_a = round % 8 == 7 ? 0.1f : 0;
        s.top_n_sigma = round % 7 == 6 ? 1 : -1;
        random_logits(&r, x);
        for (int i = 0; i < round % 5; i++)
            x[rng_u64(&r) % V] = -INFINITY;
        compare_exactly(&s, x);
        if (round < 6)
            compare(&s, x);
    }
    /* factor 0.5, distances 0, 1, 2, 4: weights exp(0), exp(-0.5), exp(-2), exp(-8); with curve 2,
     * half by the square and half by the cube, exp(0), exp(-0.5), exp(-3), exp(-20) */
    static const double want[2][4] = { { 0.5739864, 0.3481404, 0.0776806, 0.0001926 },
                                       { 0.6037489, 0.3661922, 0.0300589, 0.0000000012 } };
    for (int i = 0; i < V; i++)
        x[i] = i == 3 ? -1 : i < 3 ? 3 - (float)i : -INFINITY;
    for (int curve = 1; curve <= 2; curve++) {
        struct err e;
        struct sampling s = plain();
        struct proposed ignored;
        float copy[V], got[V];
        s.smoothing_factor = 0.5f;
        s.smoothing_curve = (float)curve;
        struct sampler *p = sampler_open(&s, V, 4, scratch, &e);
        memcpy(copy, x, sizeof copy);
        assert_int_equal(sampler_propose(p, copy, got, &ignored, &e), 0);
        for (int i = 0; i < 4; i++)
            assert_true(fabs(got[i] - want[curve - 1][i]) < 1e-6);
        sampler_close(p);
    }
    /* logits as far apart as f32 allows */
    struct sampling s = plain();
    s.smoothing_factor = 100;
    s.temperature = 1e-6f;
    for (int curve = 1; curve <= 3; curve++) {
        s.smoothing_curve = (float)curve;
        for (int i = 0; i < V; i++)
            x[i] = i == 5 ? 3e38f : i == 6 ? -INFINITY : -3e38f;
        compare_exactly(&s, x);
        for (int i = 0; i < V; i++)
            x[i] = 3e38f;
        compare_exactly(&s, x);
    }
}

static void dynatemp_gives_the_expected_probabilities(void **state)
{
    (void)state;
    struct rng r = { 10 };
    float x[V];
    for (int round = 0; round < 200; round++) {
        struct sampling s = plain();
        s.dynatemp_range = round % 3 == 0 ? 2 : (float)rng_double(&r);          /* 2: from a temperature of 0 on */
        s.dynatemp_exponent = round % 5 == 0 ? 1 : (float)rng_double(&r) * 3;
        s.temperature = round % 2 ? 1 : 0.7f;
        s.smoothing_factor = round % 6 == 5 ? 0.3f : 0;
        s.smoothing_curve = round % 12 == 5 ? 2 : 1;
        s.top_k = round % 4 == 1 ? 6 : 0;
        s.top_p = round % 4 == 2 ? 0.83f : 1;
        s.min_p = round % 8 == 3 ? 0.02f : 0;
        s.top_a = round % 8 == 7 ? 0.1f : 0;
        s.top_n_sigma = round % 7 == 6 ? 1 : -1;
        random_logits(&r, x);
        for (int i = 0; i < round % 5; i++)
            x[rng_u64(&r) % V] = -INFINITY;
        compare_exactly(&s, x);
        s.xtc_probability = 0.5f;
        s.xtc_threshold = 0.05f;
        if (round < 6)
            compare(&s, x);
    }
    /* The entropy of 1/2, 1/4, 1/8, 1/8 is 7/4 bits, 7/8 of the most that four tokens can have.
     * The temperature is 0.2 + 1.6 * 7/8 = 1.6 with exponent 1, and 0.2 + 1.6 * (7/8)^2 = 1.425
     * with exponent 2. */
    static const double p[4] = { 0.5, 0.25, 0.125, 0.125 }, temperature[2] = { 1.6, 1.425 };
    logits_of(x, p, 4);
    for (int i = 0; i < 2; i++) {
        struct sampling s = plain();
        s.dynatemp_range = 0.8f;
        s.dynatemp_exponent = (float)i + 1;
        compare_exactly(&s, x);
        struct err e;
        struct proposed ignored;
        float copy[V], got[V];
        struct sampler *sampler = sampler_open(&s, V, 4, scratch, &e);
        memcpy(copy, x, sizeof copy);
        assert_int_equal(sampler_propose(sampler, copy, got, &ignored, &e), 0);
        assert_true(fabs(log(got[0] / got[1]) - log(2) / temperature[i]) < 1e-5);
        assert_true(fabs(log(got[0] / got[3]) - log(4) / temperature[i]) < 1e-5);
        sampler_close(sampler);
    }
    /* entropies of 0 and of all tokens alike, logits as far apart as f32 allows, large exponents */
    struct sampling s = plain();
    s.dynatemp_range = 100;
    s.dynatemp_exponent = 100;
    s.smoothing_factor = 100;
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < V; i++)
            x[i] = kind == 0 ? 3e38f : i == 5 ? kind == 1 ? 3e38f : 9 : kind == 2 ? -INFINITY : kind == 3 ? 8 : -3e38f;
        compare_exactly(&s, x);
    }
}

/* ---- DRY ---- */

/* A repetition cannot reach back over a sequence breaker.  Find the last position in the window at
 * which a complete breaker begins; returns how many tokens follow that breaker.  Every word, every
 * breaker and every overlap of the two is tried. */
static int plain_limit(const struct sampling *s, const int32_t *h, int n, int from)
{
    for (int i = n - 1; i >= from; i--) {
        int longest = -1;
        for (int k = 0; k < s->n_dry_sequence_breakers && h[i] < WORDS; k++) {
            const char *b = s->dry_sequence_breakers[k], *word = words[h[i]];
            if (strstr(word, b) && longest < 0)
                longest = 0;
            for (size_t at = 0; word[at] && !strstr(word, b); at++) {
                const size_t size = strlen(word + at);
                if (size >= strlen(b) || strncmp(word + at, b, size) != 0)
                    continue;
                struct err e;
                int32_t *ids;
                size_t n_ids;
                assert_int_equal(tokenizer_encode(tokenizer, b + size, strlen(b + size), 0, &ids, &n_ids, &e), 0);
                if ((int)n_ids < n - i && (int)n_ids > longest && memcmp(ids, h + i + 1, n_ids * sizeof *ids) == 0)
                    longest = (int)n_ids;
                free(ids);
            }
        }
        if (longest >= 0)
            return n - 1 - i - longest;
    }
    return n - from;
}

/* Subtracts DRY's penalties from x, in quadratic time. */
static void plain_dry(const struct sampling *s, const int32_t *h, int n, double *x)
{
    const int n_window = s->dry_penalty_last_n < 0 || s->dry_penalty_last_n > n ? n : s->dry_penalty_last_n;
    const int from = n - n_window, limit = plain_limit(s, h, n, from);
    int longest[V];
    memset(longest, -1, sizeof longest);
    if (n_window <= s->dry_allowed_length || limit < s->dry_allowed_length)
        return;
    for (int i = from + 1; i < n; i++) {
        int z = 0;
        while (i - 1 - z >= from && h[i - 1 - z] == h[n - 1 - z] && z < limit)
            z++;
        longest[h[i]] = z > longest[h[i]] ? z : longest[h[i]];
    }
    for (int id = 0; id < V; id++) {
        int breaks = 0;
        for (int k = 0; k < s->n_dry_sequence_breakers && id < WORDS; k++)
            breaks |= strstr(words[id], s->dry_sequence_breakers[k]) != NULL;
        if (longest[id] >= s->dry_allowed_length && !breaks)
            x[id] -= s->dry_multiplier * pow(s->dry_base, fmin(longest[id] - s->dry_allowed_length, 150));
    }
}

static void dry_gives_the_expected_logits(void **state)
{
    (void)state;
    enum { LEN = 150 };
    static const char *const breakers[] = { "bc", "h", "dabe", "efgha", "cdcdcd", "f" };
    struct rng r = { 7 };
    for (int round = 0; round < 60; round++) {
        struct err e;
        struct sampling s = plain();
        int32_t h[LEN];
        s.temperature = 0;
        s.dry_multiplier = 0.5f + (float)(round % 3);
        s.dry_base = round % 4 ? 1.2f : 1;
        s.dry_allowed_length = round % 5;
        s.dry_penalty_last_n = round % 3 == 2 ? 20 + round : -1;
        s.dry_sequence_breakers = breakers + round % 5;
        s.n_dry_sequence_breakers = round % 6 > 6 - round % 5 ? 6 - round % 5 : round % 6;
        const int n_letters = round % 2 ? 3 : WORDS + 1;        /* few different tokens: long repetitions */
        struct sampler *p = sampler_open(&s, V, LEN, scratch, &e);
        assert_non_null(p);
        for (int n = 0; n < LEN; n++) {
            const int again = n > 20 && rng_u64(&r) % 8 != 0;
            h[n] = again ? h[n - 7 - (n / 40) * 3]
                         : (int32_t)(rng_u64(&r) % (uint64_t)n_letters + (round % 4 == 1 ? 8 : 0));
            sampler_accept(p, h[n], n > 20);
            float x[V];
            double want[V];
            int32_t id;
            for (int i = 0; i < V; i++)
                want[i] = x[i] = (float)i / 4;
            plain_dry(&s, h, n + 1, want);
            assert_int_equal(sampler_pick(p, x, NULL, &id, NULL, &e), 0);
            for (int i = 0; i < V; i++)
                if (fabs(x[i] - want[i]) > 1e-5 * fabs(want[i]) + 1e-5)
                    fail_msg("round %d, %d tokens: logit %d is %g, expected %g", round, n + 1, i, (double)x[i],
                             want[i]);
        }
        sampler_close(p);
    }
}

/* The number and the lengths of breakers are limited, and the penalty stays finite for a repetition
 * of any length. */
static void bad_breakers_are_refused_and_penalties_stay_finite(void **state)
{
    (void)state;
    static const char *const wrong[] = { "", "12345678901234567890123456789012345678901" };
    const char *many[DRY_MAX_BREAKERS + 1];
    struct err e;
    struct sampling s = plain();
    s.dry_multiplier = 1;
    for (int i = 0; i < 2; i++) {
        s.dry_sequence_breakers = wrong + i;
        s.n_dry_sequence_breakers = 1;
        assert_null(sampler_open(&s, V, 4, scratch, &e));
        assert_non_null(strstr(e.msg, "dry_sequence_breakers"));
    }
    for (int i = 0; i <= DRY_MAX_BREAKERS; i++)
        many[i] = "a";
    s.dry_sequence_breakers = many;
    s.n_dry_sequence_breakers = DRY_MAX_BREAKERS + 1;
    assert_null(sampler_open(&s, V, 4, scratch, &e));
    s.n_dry_sequence_breakers = 0;
    s.dry_base = 100;
    struct sampler *p = sampler_open(&s, V, 1000, scratch, &e);
    for (int i = 0; i < 1000; i++)
        sampler_accept(p, 4, 1);
    float x[V] = { 0 };
    int32_t id;
    assert_int_equal(sampler_pick(p, x, NULL, &id, NULL, &e), 0);
    assert_true(x[4] < -1e30f && isfinite(x[4]) && id != 4);
    struct draw ignored;
    assert_int_equal(sampler_draw(p, 0, &ignored), 0);
    sampler_close(p);
}

/* If the history is just a breaker, no repetition in it counts.  With one token fewer the breaker
 * is not complete, and repetitions count. */
static void test_dry_breaker_of_everything(void **state)
{
    (void)state;
    static const char *const breaker[] = { "eeee" };
    struct err e;
    struct sampling s = plain();
    s.dry_multiplier = 1;
    s.dry_allowed_length = 1;
    s.dry_sequence_breakers = breaker;
    s.n_dry_sequence_breakers = 1;
    for (int n = 3; n <= 4; n++) {
        struct sampler *p = sampler_open(&s, V, 8, scratch, &e);
        float x[V] = { 0 };
        int32_t id;
        for (int i = 0; i < n; i++)
            sampler_accept(p, 4, 1);
        assert_int_equal(sampler_pick(p, x, NULL, &id, NULL, &e), 0);
        assert_int_equal(x[4] < 0, n == 3);
        sampler_close(p);
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The time of a step grows linearly with the context, whatever the context is: for ten times the
 * tokens this test allows forty times the time; quadratic growth would be a hundred times. */
static void the_time_of_dry_grows_linearly(void **state)
{
    (void)state;
    static const char *const never[] = { "abababababababababababababababababababc",
                                         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac" };
    for (int kind = 0; kind < 4; kind++) {
        double seconds[2];
        for (int size = 0; size < 2; size++) {
            const int n = size ? 200000 : 20000;
            struct err e;
            struct sampling s = plain();
            s.dry_multiplier = 1;
            s.dry_sequence_breakers = never;
            s.n_dry_sequence_breakers = kind % 2 ? 2 : 0;
            struct sampler *p = sampler_open(&s, V, n + 4, scratch, &e);
            for (int i = 0; i < n; i++)
                sampler_accept(p, kind < 2 ? 0 : i % 9 == 8, i > n / 2);        /* one token, or a period of nine */
            seconds[size] = cpu_seconds();
            for (int i = 0; i < 4; i++) {
                float x[V] = { 0 };
                int32_t id;
                assert_int_equal(sampler_pick(p, x, NULL, &id, NULL, &e), 0);
                sampler_accept(p, id, 1);
            }
            seconds[size] = cpu_seconds() - seconds[size];
            sampler_close(p);
        }
        if (seconds[1] > 40 * seconds[0] + 0.02)
            fail_msg("kind %d: %g s for 20000 tokens, %g s for 200000", kind, seconds[0], seconds[1]);
    }
}

static void the_limits_of_each_option_are_accepted(void **state)
{
    (void)state;
    struct err e;
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++)
        for (int most = 0; most < 2; most++) {
            const struct sampling_option *o = &sampling_options[i];
            struct sampling s = sampling_defaults();
            sampling_set(&s, o, most ? o->max : o->min);
            if (sampling_check(&s, V, &e) != 0)
                fail_msg("%s", e.msg);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_n_sigma), cmocka_unit_test(xtc_draws_have_the_expected_frequencies),
        cmocka_unit_test(top_a_gives_the_expected_probabilities),
        cmocka_unit_test(smoothing_gives_the_expected_probabilities),
        cmocka_unit_test(dynatemp_gives_the_expected_probabilities),
        cmocka_unit_test(dry_gives_the_expected_logits), cmocka_unit_test(the_limits_of_each_option_are_accepted),
        cmocka_unit_test(bad_breakers_are_refused_and_penalties_stay_finite),
        cmocka_unit_test(test_dry_breaker_of_everything),
        cmocka_unit_test(the_time_of_dry_grows_linearly),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

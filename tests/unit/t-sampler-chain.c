/* t-sampler-chain.c - the filters of the sampler against plain versions of them: a sort, sums in
 * double, one option after the other as sampler.c's head comment says. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/engine/sampler.h"

enum { V = 24 };
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
                     ? 0 : exp((t[i].x - largest) / s->temperature);
    qsort(t, (size_t)n, sizeof *t, by_p);
    while (n > 1 && t[n - 1].p == 0)
        n--;
    scale(t, n);
    if (s->top_k > 0 && s->top_k < n)
        scale(t, n = s->top_k);
    int kept = 0;
    for (double sum = 0; kept < n && (kept == 0 || sum < s->top_p); kept++)
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
    for (int i = 0; i < n; i++)
        p[t[i].id] += (1 - chance) * t[i].p;
    if (n_top > 1)
        scale(t + n_top - 1, n -= n_top - 1);
    for (int i = 0; n_top > 1 && i < n; i++)
        p[t[n_top - 1 + i].id] += chance * t[n_top - 1 + i].p;
}

/* ---- draws ---- */

/* Draws from these logits: no token that the plain version excludes, every other one within 5
 * standard deviations of its expected count. */
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

static void test_xtc(void **state)
{
    (void)state;
    struct rng r = { 6 };
    float x[V];
    for (int round = 0; round < 60; round++) {
        struct sampling s = plain();
        s.xtc_probability = round % 3 == 0 ? 1 : round % 3 == 1 ? 0.5f : 0.1f;
        s.xtc_threshold = 0.02f + (float)(round % 6) / 12;      /* from nearly all tokens to no two of them */
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
        x[i] = 1;                       /* all are top choices: the last of them stays */
    struct sampling s = plain();
    s.xtc_probability = 1;
    s.xtc_threshold = 0;
    compare(&s, x);
    for (int i = 1; i < V; i++)
        x[i] = -INFINITY;               /* nothing can be excluded */
    compare(&s, x);
    s.temperature = 0;                  /* the largest logit, always */
    random_logits(&r, x);
    x[3] = 9;
    struct err e;
    struct draw ignored;
    struct sampler *p = sampler_open(&s, V, 4, scratch, &e);
    int32_t id;
    assert_int_equal(sampler_draw(p, 0, &ignored), 1);          /* a device may draw then, and not else */
    assert_int_equal(sampler_pick(p, x, NULL, &id, NULL, &e), 0);
    assert_int_equal(id, 3);
    sampler_close(p);
    s.temperature = 1;
    p = sampler_open(&s, V, 4, scratch, &e);
    assert_int_equal(sampler_draw(p, 0, &ignored), 0);
    sampler_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_n_sigma), cmocka_unit_test(test_xtc),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* t-draft.c - count the steps that n-gram guesses need for answers that repeat a text, changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/engine/draft.h"

enum { MOST = 2000 };
struct tokens { int32_t id[MOST]; int n; };

/* One token for each word: a hash of its letters. */
static struct tokens words(const char *text)
{
    struct tokens t = { .n = 0 };
    for (const char *p = text; *p; t.n++) {
        uint32_t h = 7;
        for (; *p && *p != ' '; p++)
            h = h * 31 + (unsigned char)*p;
        t.id[t.n] = (int32_t)(h % 100000);
        p += *p == ' ';
    }
    return t;
}

static struct tokens join(const struct tokens *a, const struct tokens *b)
{
    struct tokens t = *a;
    memcpy(t.id + t.n, b->id, (size_t)b->n * sizeof *b->id);
    t.n += b->n;
    return t;
}

/* Returns the number of steps that make the answer, if each step verifies a draft of at most `most`
 * tokens and adds one token.  *n_drafted: number of drafted tokens; *n_right: number of those that
 * equal the answer's. */
static int steps(const struct tokens *prompt, const struct tokens *answer, const struct tokens *predicted, int most,
                 int *n_drafted, int *n_right)
{
    void *state = drafter_ngram.open(predicted ? predicted->id : NULL, predicted ? predicted->n : 0);
    struct tokens all = join(prompt, answer);
    int n = prompt->n + 1, n_steps = 1;                 /* the prompt's step makes the first token */
    assert_non_null(state);
    *n_drafted = *n_right = 0;
    for (; n < all.n; n_steps++) {
        struct draft d;
        int i = 0;
        memset(&d, 0xff, sizeof d);                     /* tokens that are not set are negative */
        drafter_ngram.guess(state, all.id, n, most, &d);
        assert_in_range(d.n, 0, most);
        for (int k = 0; k < d.n; k++)
            assert_true(d.token[k] >= 0);
        if (d.n)
            assert_in_range(d.grade, 0, DRAFT_GRADES - 1);
        while (i < d.n && n + i < all.n && d.token[i] == all.id[n + i])
            i++;
        *n_drafted += d.n;
        *n_right += i;
        n += i + 1;
    }
    drafter_ngram.close(state);
    return n_steps;
}

static const char code[] =
    "int total = 0 ; for ( int i = 0 ; i < n ; i ++ ) { if ( a [ i ] > limit ) total += a [ i ] ; else skipped ++ ; } "
    "printf ( \"%d of %d\" , total , n ) ; if ( skipped ) warn ( name , skipped ) ; log_value ( name , total ) ; "
    "for ( int k = n - 1 ; k >= 0 ; k -- ) b [ k ] = total - a [ k ] ; free ( a ) ; return total ;";

static const struct { const char *name, *from[3], *to[3]; int most_steps; } edits[] = {
    { "a copy", { NULL }, { NULL }, 11 },
    { "one word", { "skipped ++" }, { "missed ++" }, 13 },
    { "a name throughout", { " total" }, { " sum" }, 14 },
    { "two names throughout", { " total", "name" }, { " sum", "label" }, 15 },
    { "a name of more words", { " total" }, { " sum of all" }, 21 },
    { "words put in", { "warn (" }, { "if ( loud ) warn (" }, 15 },
    { "words left out", { "else skipped ++ ; " }, { "" }, 12 },
    { "three words left out", { "- 1 ; k >=" }, { "k >=" }, 10 },
    { "a sentence replaced", { "log_value ( name , total ) ;" }, { "puts ( text + 5 ) ; done = 1 ;" }, 21 },
    { "three places", { "> limit", "free ( a ) ;", "0 ; for" }, { ">= limit", "", "0 , x = 3 ; for" }, 22 },
};

static void replace(char *out, const char *text, const char *from, const char *to)
{
    for (const char *p; (p = strstr(text, from)) != NULL; text = p + strlen(from))
        out += sprintf(out, "%.*s%s", (int)(p - text), text, to);
    strcpy(out, text);
}

static void edits_of_a_text_need_few_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char text[4096], other[4096];
        strcpy(text, code);
        for (int k = 0; k < 3 && edits[i].from[k]; k++) {
            replace(other, text, edits[i].from[k], edits[i].to[k]);
            strcpy(text, other);
        }
        int n_drafted, n_right;
        const struct tokens prompt = words("Change this code please :"), source = words(code), answer = words(text),
                            both = join(&prompt, &source);
        const int a = steps(&both, &answer, NULL, DRAFT_MOST, &n_drafted, &n_right),
                  b = steps(&prompt, &answer, &source, DRAFT_MOST, &n_drafted, &n_right);
        if (a > edits[i].most_steps || b > edits[i].most_steps)
            fail_msg("%s: %d tokens in %d steps, predicted %d, expected at most %d", edits[i].name, answer.n, a, b,
                     edits[i].most_steps);
    }
}

/* Repetitions of any period are guessed to any length. */
static void repetitions_of_any_period_are_drafted(void **state)
{
    (void)state;
    for (int period = 1; period <= 40; period++) {
        struct tokens prompt = { .n = 3 }, answer = { .n = 400 };
        int n_drafted, n_right;
        for (int i = 0; i < answer.n; i++)
            answer.id[i] = 10 + i % period;
        const int n = steps(&prompt, &answer, NULL, DRAFT_MOST, &n_drafted, &n_right);
        if (n > period + 8 + (answer.n - period) / (DRAFT_MOST + 1))
            fail_msg("period %d: %d steps", period, n);
    }
}

/* Texts of few different tokens, of every length, with and without predicted tokens: no access is
 * out of bounds (checked by sanitizers), and every draft has valid tokens. */
static void drafts_of_random_texts_have_valid_tokens(void **state)
{
    (void)state;
    struct rng r = { 5 };
    for (int round = 0; round < 3000; round++) {
        static struct tokens t[3];
        const uint64_t kinds = 2 + rng_u64(&r) % 6;
        int n_drafted, n_right;
        for (int i = 0; i < 3; i++) {
            t[i].n = 1 + (int)(rng_u64(&r) % 90);
            for (int k = 0; k < t[i].n; k++)
                t[i].id[k] = i == 2 && rng_u64(&r) % 8 ? t[rng_u64(&r) % 2].id[k] : (int32_t)(rng_u64(&r) % kinds);
        }
        steps(&t[0], &t[2], round % 3 ? &t[1] : NULL, 1 + (int)(rng_u64(&r) % DRAFT_MOST), &n_drafted, &n_right);
        assert_true(n_right <= n_drafted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edits_of_a_text_need_few_steps),
        cmocka_unit_test(repetitions_of_any_period_are_drafted),
        cmocka_unit_test(drafts_of_random_texts_have_valid_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

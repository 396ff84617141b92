/* t-grammar-memory.c - the memory of grammars: counted, limited and freed. */
#include <setjmp.h>
#include <malloc.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/grammar/matcher.h"
#include "tests/unit/tiny_vocab.h"

static struct grammar *gbnf(const char *text, uint32_t max_exprs)
{
    struct err e = { .msg = "" };
    struct grammar *g = grammar_compile_gbnf(vocab, text, strlen(text),
                                             &(struct grammar_options){ .max_exprs = max_exprs }, &e);
    if (!g)
        fail_msg("%s", e.msg);
    return g;
}

/* All memory of a grammar is counted: that of the compiled grammar, and that of its cached states
 * and masks. */
static void all_bytes_are_counted(void **state)
{
    enum { WORDS = 2000, MARGIN = 64 << 10 };
    struct err e = { .msg = "" };
    char *text = malloc(WORDS * 40 + 100), *p = text;
    (void)state;
    p += sprintf(p, "root ::= (\"x\"");
    for (int i = 0; i < WORDS; i++)
        p += sprintf(p, " | \"%x\" [a-z]{1,%d} r", i * 37, i % 40 + 1);
    sprintf(p, ")\nr ::= [a-f0-9]+ \"z\"\n");
    const struct mallinfo2 before = mallinfo2();
    struct grammar *g = gbnf(text, 0);
    for (int with_masks = 0; with_masks < 2; with_masks++) {
        if (with_masks) {
            struct matcher *m = matcher_open(g, &e);
            matcher_mask(m);
            assert_int_equal(matcher_accept_bytes(m, "2", 1), 0);
            matcher_mask(m);
            matcher_close(m);
        }
        const struct mallinfo2 after = mallinfo2();
        const size_t taken = after.uordblks - before.uordblks + after.hblkhd - before.hblkhd;
        if (grammar_bytes(g) + MARGIN < taken)
            fail_msg("%zu bytes are counted, %zu taken", grammar_bytes(g), taken);
    }
    grammar_close(g);
    free(text);
}

/* A grammar with a low limit of parts: the parts of finished answers are freed for the next answer
 * while others run; only a call that needs too many parts by itself fails. */
static void parts_are_freed_for_the_next_answer(void **state)
{
    (void)state;
    enum { N = 3, DEEP = 300 };
    static const char text[] = "root ::= \"(\" root \")\" | \"[\" root \"]\" | \"{\" root \"}\" | \"x\"";
    struct err e = { .msg = "" };
    struct grammar_stats s;
    struct grammar *all = gbnf(text, 0), *few = gbnf(text, 2000);
    struct matcher *a[N], *b[N];
    struct rng r = { 5 };
    for (int i = 0; i < N; i++) {
        a[i] = matcher_open(all, &e);
        b[i] = matcher_open(few, &e);
    }
    for (int k = 0; k < DEEP; k++)
        for (int i = 0; i < N; i++) {
            const char c = "([{"[rng_u64(&r) % 3];
            assert_int_equal(matcher_accept_bytes(a[i], &c, 1), 0);
            assert_int_equal(matcher_accept_bytes(b[i], &c, 1), 0);
            assert_int_equal(a[i]->spent, b[i]->spent);
            const uint32_t *want = matcher_mask(a[i]);
            assert_memory_equal(matcher_mask(b[i]), want, ((size_t)vocab->size + 31) / 32 * sizeof *want);
            if (k % 50 == 0) {
                struct matcher *f = matcher_fork(b[i]);
                assert_int_equal(matcher_accept_bytes(f, "x", 1), 0);
                matcher_close(b[i]);
                b[i] = f;
                assert_int_equal(matcher_accept_bytes(a[i], "x", 1), 0);
                matcher_close(a[i]);
                matcher_close(b[i]);
                a[i] = matcher_open(all, &e);
                b[i] = matcher_open(few, &e);
            }
        }
    grammar_stats(all, &s);
    assert_true(s.n_exprs > 2000);
    grammar_stats(few, &s);
    assert_true(s.n_exprs <= 2000);
    for (int i = 0; i < N; i++) {
        assert_int_equal(matcher_error(b[i], NULL), 0);
        matcher_close(a[i]);
        matcher_close(b[i]);
    }
    struct matcher *m = matcher_open(few, &e), *other = matcher_open(few, &e);
    char deep[5000];
    memset(deep, '(', sizeof deep);
    assert_int_equal(matcher_accept_bytes(m, deep, sizeof deep), -1);
    assert_int_equal(matcher_error(m, &e), -1);
    assert_non_null(strstr(e.msg, "more than 2000 parts"));
    assert_int_equal(matcher_accept_bytes(other, "([{x}", 5), 0);
    matcher_close(m);
    matcher_close(other);
    grammar_close(all);
    grammar_close(few);
}

enum { ANSWERS = 4, TOKENS = 15 };

/* A hash of all masks of an answer of random tokens. */
static uint64_t masks_of(struct grammar *g, uint64_t seed, const struct grammar_budget *b, size_t *most)
{
    struct err e;
    struct rng r = { seed };
    struct matcher *m = matcher_open(g, &e);
    uint64_t hash = 1;
    const int n = vocab->size;
    assert_non_null(m);
    for (int k = 0; k < TOKENS; k++) {
        const uint32_t *mask = matcher_mask(m);
        int32_t id;
        assert_int_equal(matcher_error(m, &e), 0);
        for (int i = 0; i < (n + 31) / 32; i++)
            hash = (hash ^ mask[i]) * 0x9E3779B97F4A7C15u;
        do
            id = (int32_t)(rng_u64(&r) % (uint64_t)n);
        while (!bit(mask, id));
        if (matcher_accept(m, id) != 0 || matcher_ended(m))
            break;
        if (b && atomic_load(&b->used) > *most)
            *most = atomic_load(&b->used);
    }
    hash = (hash ^ m->spent) * 0x9E3779B97F4A7C15u;
    matcher_close(m);
    return hash;
}

/* Grammars that share a budget stay within it, while all are in use, and make the same masks, with
 * the same counted work, as a grammar without a limit. */
static void grammars_share_a_budget(void **state)
{
    enum { LIMIT = 2 << 20, OF_ONE_CALL = 1 << 20 };
    struct grammar_budget small = { .limit = LIMIT }, large = { .limit = SIZE_MAX };
    struct grammar *a[ANSWERS], *b[ANSWERS];
    size_t most = 0, most_large = 0;
    char text[2000];
    (void)state;
    for (int i = 0; i < ANSWERS; i++) {
        char *at = text + sprintf(text, "root ::=");
        for (int k = 0; k < 8; k++)
            at += sprintf(at, " ([a-z ]* \"%c\"){0,%d} [a-z ,.]*", 'a' + (i + 7 * k) % 26, k + 5);
        strcpy(at, "\n");
        a[i] = gbnf(text, 0);
        b[i] = gbnf(text, 0);
        grammar_share(a[i], &small);
        grammar_share(b[i], &large);
    }
    assert_true(atomic_load(&small.used) < LIMIT);
    for (uint64_t seed = 1; seed < 3; seed++)
        for (int i = 0; i < ANSWERS; i++)
            assert_int_equal(masks_of(a[i], seed, &small, &most), masks_of(b[i], seed, &large, &most_large));
    assert_true(most_large > 2 * LIMIT);        /* otherwise nothing would have to be freed */
    if (most > LIMIT + OF_ONE_CALL)
        fail_msg("%zu bytes of %d (%zu without a limit)", most, LIMIT, most_large);
    for (int i = 0; i < ANSWERS; i++) {
        grammar_close(a[i]);
        grammar_close(b[i]);
    }
    assert_int_equal(atomic_load(&small.used), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_bytes_are_counted),
        cmocka_unit_test(parts_are_freed_for_the_next_answer),
        cmocka_unit_test(grammars_share_a_budget),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}

/* t-kv.c - blocks are never in two tables by accident, never lost, and an empty pool changes nothing. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/cache/kv.h"

static void test_reserve_and_truncate(void **state)
{
    (void)state;
    struct err e;
    struct kv_pool *p = kv_pool_open(5, &e);
    struct kv_table a, b;
    assert_int_equal(kv_table_init(&a, 80, &e), 0);
    assert_int_equal(kv_table_init(&b, 80, &e), 0);
    static const struct { int n_tokens, n_blocks; } sizes[] = { { 0, 0 }, { 1, 1 }, { 16, 1 }, { 17, 2 }, { 48, 3 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(kv_table_reserve(&a, p, sizes[i].n_tokens), 0);
        assert_int_equal(a.n_blocks, sizes[i].n_blocks);
        assert_int_equal(kv_pool_free(p), 5 - sizes[i].n_blocks);
    }
    a.n_tokens = 48;
    assert_int_equal(kv_table_reserve(&b, p, 33), -1);          /* three blocks wanted, two left: nothing changes */
    assert_int_equal(b.n_blocks, 0);
    assert_int_equal(kv_pool_free(p), 2);
    assert_int_equal(kv_table_reserve(&b, p, 32), 0);
    int32_t first = a.block[0], second = a.block[1];
    kv_table_truncate(&a, p, 17);
    assert_int_equal(a.n_blocks, 2);
    assert_int_equal(a.n_tokens, 17);
    assert_int_equal(a.block[0], first);
    assert_int_equal(a.block[1], second);
    kv_table_truncate(&a, p, 40);                               /* longer than it is: nothing to do */
    assert_int_equal(a.n_tokens, 17);
    assert_int_equal(kv_pool_free(p), 1);
    kv_table_release(&a, p);
    kv_table_release(&b, p);
    assert_int_equal(kv_pool_free(p), kv_pool_size(p));
    kv_pool_close(p);
}

static void test_share(void **state)
{
    (void)state;
    struct err e;
    struct kv_pool *p = kv_pool_open(8, &e);
    struct kv_table a, b;
    assert_int_equal(kv_table_init(&a, 100, &e), 0);
    assert_int_equal(kv_table_init(&b, 100, &e), 0);
    assert_int_equal(kv_table_reserve(&a, p, 50), 0);
    a.n_tokens = 50;
    assert_int_equal(kv_table_share(&b, p, &a, 47), 32);        /* rounded down to whole blocks */
    assert_int_equal(b.n_tokens, 32);
    assert_int_equal(kv_pool_free(p), 4);
    assert_int_equal(kv_table_reserve(&b, p, 40), 0);
    assert_int_equal(b.block[1], a.block[1]);
    assert_int_not_equal(b.block[2], a.block[2]);
    kv_table_release(&a, p);
    assert_int_equal(kv_pool_free(p), 5);                       /* the shared two live on in b */
    kv_table_release(&b, p);
    assert_int_equal(kv_pool_free(p), 8);
    kv_pool_close(p);
}

/* Random operations against a count of who holds what. */
static void test_random(void **state)
{
    (void)state;
    enum { N_BLOCKS = 37, N_TABLES = 6, MAX_LEN = 200 };
    struct err e;
    struct rng r = { 7 };
    struct kv_pool *p = kv_pool_open(N_BLOCKS, &e);
    struct kv_table t[N_TABLES];
    for (int i = 0; i < N_TABLES; i++)
        assert_int_equal(kv_table_init(&t[i], MAX_LEN, &e), 0);
    for (int step = 0; step < 20000; step++) {
        struct kv_table *a = &t[rng_u64(&r) % N_TABLES], *b = &t[rng_u64(&r) % N_TABLES];
        int n = (int)(rng_u64(&r) % (MAX_LEN + 1)), before = a->n_blocks;
        switch (rng_u64(&r) % 4) {
        case 0: case 1:
            if (kv_table_reserve(a, p, n) == 0)
                a->n_tokens = n > a->n_tokens ? n : a->n_tokens;
            else
                assert_int_equal(a->n_blocks, before);
            break;
        case 2: kv_table_truncate(a, p, n); break;
        case 3:
            if (a != b)
                kv_table_share(a, p, b, n);
        }
        int held[N_BLOCKS] = { 0 }, n_held = 0;
        for (int i = 0; i < N_TABLES; i++) {
            assert_true(t[i].n_blocks * KV_BLOCK >= t[i].n_tokens);
            for (int j = 0; j < t[i].n_blocks; j++) {
                assert_in_range(t[i].block[j], 0, N_BLOCKS - 1);
                n_held += held[t[i].block[j]]++ == 0;
            }
        }
        assert_int_equal(n_held + kv_pool_free(p), N_BLOCKS);
    }
    for (int i = 0; i < N_TABLES; i++)
        kv_table_release(&t[i], p);
    assert_int_equal(kv_pool_free(p), N_BLOCKS);
    kv_pool_close(p);
}

static void test_errors(void **state)
{
    (void)state;
    struct err e;
    assert_null(kv_pool_open(0, &e));
    assert_int_equal(e.code, ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reserve_and_truncate), cmocka_unit_test(test_share),
        cmocka_unit_test(test_random), cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

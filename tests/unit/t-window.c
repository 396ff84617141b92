/* t-window.c - window blocks: every block that a token sees exists and has the contents that the
 * same tokens wrote; blocks behind the window are returned to the pool. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/cache/kv.h"

/* A sequence of any length has only as many window blocks as its window needs. */
static void a_window_bounds_the_window_blocks(void **state)
{
    (void)state;
    struct err e;
    struct kv_table t;
    struct kv_pool *p = kv_pool_open(20, &e);
    assert_int_equal(kv_pool_windows(p, 4, 33, 0, &e), 0);
    assert_int_equal(kv_table_init(&t, 320, &e), 0);
    assert_int_equal(kv_table_reserve(&t, p, 320), 0);
    assert_int_equal(kv_table_windows(&t, p, 65), -1);          /* five blocks */
    assert_int_equal(kv_pool_free_windows(p), 4);
    for (int n = 1; n <= 320; n++) {
        assert_int_equal(kv_table_windows(&t, p, n), 0);
        t.n_tokens = n;
        kv_table_slide(&t, p);
        const int first = n - 32 > 0 ? (n - 32) / 16 : 0;       /* the first block that the next
                                                                 * token sees */
        assert_int_equal(t.first_window, first);
        assert_int_equal(t.end_window, (n + 15) / 16);
        assert_int_equal(kv_pool_free_windows(p), 4 - (t.end_window - first));
        assert_int_equal(kv_pool_idle_windows(p), 0);           /* no tree has the blocks, so
                                                                 * released window blocks are free,
                                                                 * not idle */
    }
    kv_table_release(&t, p);
    assert_int_equal(kv_pool_free_windows(p), 4);
    kv_pool_close(p);
}

static void count_drop(void *user, int32_t block)
{
    ((unsigned char *)user)[block]++;
}

/* A prefix is reused only up to a position whose window blocks are still in the pool. */
static void prefixes_end_where_window_blocks_end(void **state)
{
    (void)state;
    struct err e;
    struct kv_table a, b;
    int32_t ids[160], from, to;
    struct kv_pool *p = kv_pool_open(30, &e);
    for (int i = 0; i < 160; i++)
        ids[i] = i;
    assert_int_equal(kv_pool_windows(p, 6, 33, 0, &e), 0);
    assert_int_equal(kv_table_init(&a, 160, &e), 0);
    assert_int_equal(kv_table_init(&b, 160, &e), 0);
    for (int n = 16; n <= 136; n += 8) {                        /* blocks 0 to 8, of the last 8 tokens */
        assert_int_equal(kv_table_reserve(&a, p, n), 0);
        assert_int_equal(kv_table_windows(&a, p, n), 0);
        a.n_tokens = n;
        prefix_enter(&a, p, ids, n == 136);
    }
    kv_table_truncate(&a, p, 0);
    /* of nine window blocks only the last six, blocks 3 to 8, are still in the pool */
    assert_int_equal(kv_pool_idle_windows(p), 6);
    assert_int_equal(prefix_take(&b, p, ids, 79), 0);
    assert_int_equal(prefix_take(&b, p, ids, 95), 80);
    kv_table_truncate(&b, p, 0);
    assert_int_equal(prefix_take(&b, p, ids, 159), 128);
    assert_int_equal(b.first_window, 6);
    assert_int_equal(b.end_window, 8);
    assert_int_equal(prefix_copy(&b, p, ids, 159, &from, &to), 8);
    assert_int_not_equal(kv_pool_window(p, from), kv_pool_window(p, to));
    assert_int_equal(b.window[8], kv_pool_window(p, to));
    kv_table_release(&a, p);
    kv_table_release(&b, p);
    unsigned char dropped[36] = { 0 };
    kv_pool_trim(p, count_drop, dropped);
    for (int i = 0; i < 36; i++)                                /* drop is called for 30 blocks and
                                                                 * 6 window blocks */
        assert_int_equal(dropped[i], 1);
    kv_pool_close(p);
}

/* Read the blocks and window blocks of a prefix into the pool, as if from the folder of prefixes.
 * Returns the number of window blocks that were read. */
static int load_again(struct kv_pool *p, const int32_t *ids, int n_blocks, int n_sinks, int32_t (*content)[16])
{
    struct err e;
    struct kv_table t;
    int given = 0, rc = 0;
    int32_t window;
    assert_int_equal(kv_table_init(&t, n_blocks * 16, &e), 0);
    if (kv_table_reserve(&t, p, n_blocks * 16) == 0) {
        t.n_tokens = n_blocks * 16;
        prefix_enter(&t, p, ids, 0);
        while (rc >= 0 && t.end_window < n_blocks) {
            const int i = t.end_window;
            t.n_tokens = i * 16;
            kv_table_slide(&t, p);
            rc = prefix_window(&t, p, i % 5 != 4 || i * 16 < n_sinks, &window);
            if (rc > 0)
                memcpy(content[window], ids + i * 16, sizeof *content);
            given += rc > 0;
        }
    }
    kv_table_release(&t, p);
    return given;
}

/* A prefix that needs more window blocks than there are keeps those of its attention sinks and of
 * its end, even if blocks of ended sequences fill the pool. */
static void long_prefixes_keep_sinks_and_end(void **state)
{
    (void)state;
    enum { N = 640 };
    struct err e;
    struct kv_table t;
    static int32_t ids[N], others[N], content[12][16];
    struct kv_pool *p = kv_pool_open(2 * N / 16, &e);
    assert_int_equal(kv_pool_windows(p, 12, 65, 40, &e), 0);    /* 3 sinks, and up to 6 blocks */
    for (int i = 0; i < N; i++)
        ids[i] = i, others[i] = -i;
    for (int pass = 0; pass < 2; pass++) {
        int32_t *from = pass ? ids : others;
        load_again(p, from, N / 16 - 1, N, content);
        assert_int_equal(kv_table_init(&t, N, &e), 0);
        assert_int_equal(prefix_take(&t, p, from, N), N - 16);
        for (int i = 0; i < t.end_window; i++)
            if (i < 3 || i >= t.first_window)
                assert_int_equal(content[t.window[i]][15], from[i * 16 + 15]);
        kv_table_release(&t, p);
    }
    kv_pool_close(p);
}

/* Random sequences over few tokens take over, copy and share prefixes.  In its window, each must
 * see the values of its own tokens. */
static void run_random(int n_sinks)
{
    enum { N_BLOCKS = 40, N_WINDOWS = 22, N_TABLES = 5, LEN = 120, WINDOW = 24 };
    struct err e;
    struct rng r = { 17 };
    struct kv_pool *p = kv_pool_open(N_BLOCKS, &e);
    struct kv_table t[N_TABLES];
    static int32_t ids[N_TABLES][LEN], content[N_WINDOWS][16];
    int taken = 0, copied = 0, shared = 0, given = 0, begun[N_TABLES] = { 0 };
    assert_int_equal(kv_pool_windows(p, N_WINDOWS, WINDOW, n_sinks, &e), 0);
    for (int i = 0; i < N_TABLES; i++)
        assert_int_equal(kv_table_init(&t[i], LEN, &e), 0);
    for (int step = 0; step < 20000; step++) {
        const int i = (int)(rng_u64(&r) % N_TABLES), j = (int)(rng_u64(&r) % N_TABLES);
        struct kv_table *a = &t[i];
        int32_t from, to;
        if (begun[i]) {
            int n = a->n_tokens + (int)(rng_u64(&r) % 30);
            n = n < LEN ? n : LEN;
            const int unshared = rng_u64(&r) % 4 ? kv_table_unshare(a, p, &from, &to) : -1;
            if (unshared == 1)
                memcpy(content[kv_pool_window(p, to)], content[kv_pool_window(p, from)], sizeof *content);
            if (unshared >= 0 && kv_table_reserve(a, p, n) == 0 && kv_table_windows(a, p, n) == 0) {
                for (; a->n_tokens < n; a->n_tokens++)
                    content[a->window[a->n_tokens / 16]][a->n_tokens % 16] = ids[i][a->n_tokens];
                prefix_enter(a, p, ids[i], 0);
            } else {
                prefix_enter(a, p, ids[i], (int)(rng_u64(&r) % 2));
                kv_table_truncate(a, p, 0);
                begun[i] = 0;
            }
        } else if (begun[j] && rng_u64(&r) % 3 == 0) {
            kv_table_share(a, p, &t[j]);
            memcpy(ids[i], ids[j], sizeof *ids);
            for (int k = a->n_tokens; k < LEN; k++)
                ids[i][k] = (int32_t)(rng_u64(&r) % 3);
            begun[i] = 1;
            shared++;
        } else {
            int base = (int)(rng_u64(&r) % 3), differs = (int)(rng_u64(&r) % LEN);
            for (int k = 0; k < LEN; k++)
                ids[i][k] = k < differs ? base : (int32_t)(rng_u64(&r) % 3);
            begun[i] = 1;
            taken += prefix_take(a, p, ids[i], LEN - 1);
            int n = prefix_copy(a, p, ids[i], LEN - 1, &from, &to);
            if (n)
                memcpy(content[kv_pool_window(p, to)], content[kv_pool_window(p, from)], sizeof *content);
            copied += n;
        }
        int wanted[N_WINDOWS] = { 0 }, n_wanted = 0;
        for (int k = 0; k < N_TABLES; k++) {
            const int first = t[k].n_tokens - WINDOW + 1 > 0 ? t[k].n_tokens - WINDOW + 1 : 0;
            assert_true(t[k].n_tokens == 0 || t[k].first_window * 16 <= first);
            assert_true(t[k].end_window * 16 >= t[k].n_tokens);
            for (int b = 0; b < t[k].end_window; b++) {
                if (b < t[k].first_window && b * 16 >= n_sinks)
                    continue;
                assert_int_equal(t[k].window[b], kv_pool_window(p, t[k].block[b]));
                n_wanted += wanted[t[k].window[b]]++ == 0;
            }
            for (int pos = 0; pos < t[k].n_tokens; pos++)
                if (pos >= first || pos < n_sinks)
                    assert_int_equal(content[t[k].window[pos / 16]][pos % 16], ids[k][pos]);
        }
        assert_int_equal(n_wanted + kv_pool_free_windows(p) + kv_pool_idle_windows(p), N_WINDOWS);
        given += load_again(p, ids[i], (int)(rng_u64(&r) % (uint64_t)(a->n_nodes + 1)), n_sinks, content);
    }
    assert_true(taken > 8000 && copied > 1000 && shared > 500 && given > 100 && kv_pool_evictions(p) > 500);
    for (int i = 0; i < N_TABLES; i++)
        kv_table_release(&t[i], p);
    assert_int_equal(kv_pool_free_windows(p) + kv_pool_idle_windows(p), N_WINDOWS);
    kv_pool_close(p);
}

static void blocks_keep_what_tokens_wrote(void **state)
{
    (void)state;
    run_random(0);
}

static void blocks_and_sinks_keep_what_tokens_wrote(void **state)
{
    (void)state;
    run_random(4);
    run_random(20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_bounds_the_window_blocks), cmocka_unit_test(prefixes_end_where_window_blocks_end),
        cmocka_unit_test(long_prefixes_keep_sinks_and_end), cmocka_unit_test(blocks_keep_what_tokens_wrote),
        cmocka_unit_test(blocks_and_sinks_keep_what_tokens_wrote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

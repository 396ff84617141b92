/* t-kv.c - no block is in two tables by accident, no block is lost, and an empty pool changes
 * nothing. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/cache/kv.h"
#include "libcommon/cache/state.h"

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
    assert_int_equal(kv_table_reserve(&b, p, 33), -1);          /* needs three blocks, two are left:
                                                                 * nothing changes */
    assert_int_equal(b.n_blocks, 0);
    assert_int_equal(kv_pool_free(p), 2);
    assert_int_equal(kv_table_reserve(&b, p, 32), 0);
    int32_t first = a.block[0], second = a.block[1];
    kv_table_truncate(&a, p, 17);
    assert_int_equal(a.n_blocks, 2);
    assert_int_equal(a.n_tokens, 17);
    assert_int_equal(a.block[0], first);
    assert_int_equal(a.block[1], second);
    kv_table_truncate(&a, p, 40);                               /* beyond the end: no effect */
    assert_int_equal(a.n_tokens, 17);
    assert_int_equal(kv_pool_free(p), 1);
    kv_table_release(&a, p);
    kv_table_release(&b, p);
    assert_int_equal(kv_pool_free(p), kv_pool_size(p));
    kv_pool_close(p);
}

static void shared_blocks_are_copied_before_a_write(void **state)
{
    (void)state;
    struct err e;
    struct kv_pool *p = kv_pool_open(8, &e);
    struct kv_table a, b;
    assert_int_equal(kv_table_init(&a, 100, &e), 0);
    assert_int_equal(kv_table_init(&b, 100, &e), 0);
    assert_int_equal(kv_table_reserve(&a, p, 50), 0);
    a.n_tokens = 50;
    int32_t from, to;
    kv_table_share(&b, p, &a);
    assert_int_equal(b.n_tokens, 50);
    assert_int_equal(kv_pool_free(p), 4);
    assert_int_equal(kv_table_unshare(&b, p, &from, &to), 1);   /* the begun block is copied before a write */
    assert_int_equal(from, a.block[3]);
    assert_int_equal(to, b.block[3]);
    assert_int_not_equal(from, to);
    assert_int_equal(kv_table_unshare(&b, p, &from, &to), 0);
    assert_int_equal(kv_table_unshare(&a, p, &from, &to), 0);   /* now it is a's alone */
    assert_int_equal(b.block[2], a.block[2]);
    b.n_tokens = 48;                                            /* a block that is full is never
                                                                 * written again */
    assert_int_equal(kv_table_unshare(&b, p, &from, &to), 0);
    kv_table_release(&a, p);
    assert_int_equal(kv_pool_free(p), 4); /* b still holds the three shared blocks */
    kv_table_release(&b, p);
    assert_int_equal(kv_pool_free(p), 8);
    kv_pool_close(p);
}

/* Random operations, compared with a separate count of the tables that hold each block. */
static void random_operations_keep_the_reference_counts(void **state)
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
                kv_table_share(a, p, b);
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

static void fill(struct kv_table *t, struct kv_pool *p, int n)
{
    assert_int_equal(kv_table_reserve(t, p, n), 0);
    t->n_tokens = n;
}

/* A sequence finds the blocks of an earlier one: whole blocks by reference, the rest as a copy; the
 * oldest prefix is evicted first. */
static void a_sequence_finds_earlier_blocks(void **state)
{
    (void)state;
    struct err e;
    struct kv_pool *p = kv_pool_open(8, &e);
    struct kv_table a, b;
    int32_t ids[100], other[100], from, to;
    for (int i = 0; i < 100; i++)
        other[i] = ids[i] = i;
    assert_int_equal(kv_table_init(&a, 100, &e), 0);
    assert_int_equal(kv_table_init(&b, 100, &e), 0);
    fill(&a, p, 40);
    prefix_enter(&a, p, ids, 0);
    assert_int_equal(a.n_nodes, 2);
    assert_int_equal(prefix_take(&b, p, ids, 31), 16);          /* 15 of the second block: not whole */
    assert_int_equal(prefix_take(&b, p, ids, 100), 16);
    assert_int_equal(b.block[1], a.block[1]);
    assert_int_equal(prefix_copy(&b, p, ids, 100, &from, &to), 0);      /* the third block is not in
                                                                         * the tree yet */
    prefix_enter(&a, p, ids, 1);
    const int32_t third = a.block[2];
    kv_table_truncate(&a, p, 0);
    assert_int_equal(kv_pool_idle(p), 1);                       /* b holds the others */
    other[36] = -1;
    assert_int_equal(prefix_copy(&b, p, other, 100, &from, &to), 4);
    assert_int_equal(from, third);
    assert_int_equal(to, b.block[2]);
    assert_int_equal(b.n_tokens, 36);
    kv_table_truncate(&b, p, 0);
    assert_int_equal(kv_pool_free(p) + kv_pool_idle(p), 8);
    b.root = 1;                                                 /* another tree shares nothing */
    assert_int_equal(prefix_take(&b, p, ids, 100), 0);
    assert_int_equal(prefix_copy(&b, p, ids, 100, &from, &to), 0);
    b.root = 0;
    /* tokens that two sequences have computed are kept once */
    fill(&a, p, 33);
    const int32_t mine = a.block[0];
    prefix_enter(&a, p, ids, 0);
    assert_int_not_equal(a.block[0], mine);
    kv_table_truncate(&a, p, 0);
    /* eight blocks are requested in all: everything is evicted, the ends of prefixes before their
     * beginnings, so that no node loses its parents */
    fill(&a, p, 6 * 16);
    assert_int_equal(kv_pool_evictions(p), 1);
    assert_int_equal(prefix_take(&b, p, ids, 100), 32);
    kv_table_truncate(&b, p, 0);
    fill(&b, p, 2 * 16);
    assert_int_equal(kv_pool_evictions(p), 3);
    assert_int_equal(kv_table_reserve(&a, p, 7 * 16), -1);
    kv_table_release(&b, p);
    kv_table_release(&a, p);
    assert_int_equal(kv_pool_free(p), 8);
    kv_pool_close(p);
}

static int dropped;
static void count_drop(void *user, int32_t block)
{
    assert_true(((char *)user)[block] == 0);
    ((char *)user)[block] = 1;
    dropped++;
}

/* Unused prefixes are evicted, and drop() is called once for every block that holds
 * nothing; blocks in use stay. */
static void unused_prefixes_are_evicted(void **state)
{
    (void)state;
    struct err e;
    char seen[8] = { 0 };
    struct kv_pool *p = kv_pool_open(8, &e);
    struct kv_table a, b;
    int32_t ids[100];
    for (int i = 0; i < 100; i++)
        ids[i] = i;
    assert_int_equal(kv_table_init(&a, 100, &e), 0);
    assert_int_equal(kv_table_init(&b, 100, &e), 0);
    fill(&a, p, 5 * 16);
    prefix_enter(&a, p, ids, 0);
    assert_int_equal(prefix_take(&b, p, ids, 32), 32);
    kv_table_truncate(&a, p, 0);
    assert_int_equal(kv_pool_idle(p), 3);
    kv_pool_trim(p, count_drop, seen);
    assert_int_equal(dropped, 6);
    assert_int_equal(kv_pool_idle(p), 0);
    assert_int_equal(kv_pool_free(p), 6);
    assert_true(!seen[b.block[0]] && !seen[b.block[1]]);
    assert_int_equal(prefix_take(&a, p, ids, 100), 32);
    kv_table_release(&b, p);
    kv_table_release(&a, p);
    kv_pool_close(p);
}

/* Random sequences of few different tokens: the blocks that prefix_take() and prefix_copy() return
 * were entered with the same tokens. */
static void prefixes_hold_the_tokens_they_were_entered_with(void **state)
{
    (void)state;
    enum { N_BLOCKS = 40, N_TABLES = 5, LEN = 120 };
    struct err e;
    struct rng r = { 13 };
    struct kv_pool *p = kv_pool_open(N_BLOCKS, &e);
    struct kv_table t[N_TABLES];
    static int32_t ids[N_TABLES][LEN], content[N_BLOCKS][16];
    int taken = 0, copied = 0, begun[N_TABLES] = { 0 };
    for (int i = 0; i < N_TABLES; i++)
        assert_int_equal(kv_table_init(&t[i], LEN, &e), 0);
    for (int step = 0; step < 20000; step++) {
        const int i = (int)(rng_u64(&r) % N_TABLES);
        struct kv_table *a = &t[i];
        int32_t from, to;
        if (begun[i]) {                                 /* continue the sequence, or end it and keep
                                                         * its blocks in the tree */
            int n = a->n_tokens + (int)(rng_u64(&r) % 30);
            n = n < LEN ? n : LEN;
            const int shared = rng_u64(&r) % 3 ? kv_table_unshare(a, p, &from, &to) : -1;
            if (shared == 1)
                memcpy(content[to], content[from], sizeof *content);
            if (shared >= 0 && kv_table_reserve(a, p, n) == 0) {
                for (; a->n_tokens < n; a->n_tokens++)
                    content[a->block[a->n_tokens / 16]][a->n_tokens % 16] = ids[i][a->n_tokens];
                prefix_enter(a, p, ids[i], 0);
            } else {
                prefix_enter(a, p, ids[i], (int)(rng_u64(&r) % 2));
                kv_table_truncate(a, p, 0);
                begun[i] = 0;
            }
        } else {
            int base = (int)(rng_u64(&r) % 3), differs = (int)(rng_u64(&r) % LEN);
            for (int j = 0; j < LEN; j++)
                ids[i][j] = j < differs ? base : (int32_t)(rng_u64(&r) % 3);
            begun[i] = 1;
            taken += prefix_take(a, p, ids[i], LEN - 1);
            int n = prefix_copy(a, p, ids[i], LEN - 1, &from, &to);
            if (n)
                memcpy(content[to], content[from], sizeof *content);
            copied += n;
        }
        for (int j = 0; j < a->n_tokens; j++)
            assert_int_equal(content[a->block[j / 16]][j % 16], ids[i][j]);
    }
    assert_true(taken > 10000 && copied > 1000 && kv_pool_evictions(p) > 1000);
    for (int i = 0; i < N_TABLES; i++)
        kv_table_release(&t[i], p);
    assert_int_equal(kv_pool_free(p) + kv_pool_idle(p), N_BLOCKS);
    kv_pool_close(p);
}

struct visits { int n; int32_t block[8]; int n_tokens[8]; };

static void note(void *user, int32_t block, int n_tokens)
{
    struct visits *v = user;
    v->block[v->n] = block;
    v->n_tokens[v->n++] = n_tokens;
}

/* Partial leaves in every block, including block 0: each of them is visited, and copied from. */
static void every_partial_leaf_is_visited(void **state)
{
    (void)state;
    struct err e;
    struct kv_pool *p = kv_pool_open(4, &e);
    struct kv_table a, b;
    int32_t ids[20] = { 0 }, from, to;
    assert_int_equal(kv_table_init(&a, 64, &e), 0);
    assert_int_equal(kv_table_init(&b, 64, &e), 0);
    unsigned blocks = 0;
    for (int i = 0; i < 3; i++) {
        ids[0] = i;
        fill(&a, p, 5 + i);
        const int32_t block = a.block[0];
        prefix_enter(&a, p, ids, 1);
        assert_int_equal(prefix_end(&a, p), block);
        kv_table_truncate(&a, p, 0);
        struct visits v = { 0 };
        prefix_visit(&b, p, ids, 20, note, &v);
        assert_true(v.n == 1 && v.block[0] == block && v.n_tokens[0] == 5 + i);
        v.n = 0;
        prefix_visit(&b, p, ids, 4 + i, note, &v);      /* ids is too short to contain all tokens of
                                                         * the leaf, so it is not visited */
        assert_int_equal(v.n, 0);
        assert_int_equal(prefix_copy(&b, p, ids, 20, &from, &to), 5 + i);
        assert_int_equal(from, block);
        kv_table_truncate(&b, p, 0);
        blocks |= 1u << block;
    }
    assert_true(blocks & 1);
    kv_table_release(&a, p);
    kv_table_release(&b, p);
    kv_pool_close(p);
}

static void count_state(void *user, int state) { *(unsigned *)user |= 1u << state; }

/* States are held, kept as snapshots of nodes, found there, and reused if they are the oldest or if
 * their node was evicted. */
static void snapshots_are_found_and_reused(void **state)
{
    (void)state;
    struct err e;
    struct kv_pool *p = kv_pool_open(8, &e);
    struct state_pool *s = state_pool_open(3, &e);
    struct kv_table t, none;
    int32_t ids[128];
    int snapshot;
    unsigned free_ones = 0;
    for (int i = 0; i < 128; i++)
        ids[i] = i;
    assert_int_equal(kv_table_init(&t, 128, &e), 0);
    assert_int_equal(kv_table_init(&none, 100, &e), 0);
    fill(&t, p, 70);
    prefix_enter(&t, p, ids, 0);
    int held[3] = { state_take(s, p), state_take(s, p), state_take(s, p) };
    assert_int_equal(1 << held[0] | 1 << held[1] | 1 << held[2], 7);
    assert_int_equal(state_take(s, p), -1);
    assert_int_equal(state_prefix(s, p, &none, ids, 100, &snapshot), 0);
    assert_int_equal(snapshot, -1);
    state_keep(s, p, t.block[0], held[0]);
    state_keep(s, p, t.block[2], held[1]);
    assert_int_equal(state_find(s, p, t.block[0]), held[0]);
    assert_int_equal(state_find(s, p, t.block[1]), -1);
    assert_int_equal(state_prefix(s, p, &none, ids, 100, &snapshot), 48);
    assert_int_equal(snapshot, held[1]);
    assert_int_equal(state_prefix(s, p, &none, ids, 47, &snapshot), 16);
    assert_int_equal(snapshot, held[0]);
    /* the node has a snapshot already: the new state becomes free, and the old one counts as just
     * used */
    state_keep(s, p, t.block[0], held[2]);
    assert_int_equal(state_find(s, p, t.block[0]), held[0]);
    assert_int_equal(state_take(s, p), held[2]);
    assert_int_equal(state_take(s, p), held[1]);
    assert_int_equal(state_find(s, p, t.block[2]), -1);
    /* the oldest snapshot is reused, unless it was used in the meantime */
    state_keep(s, p, t.block[1], held[1]);
    state_used(s, held[0]);
    assert_int_equal(state_take(s, p), held[1]);
    state_keep(s, p, t.block[3], held[1]);
    assert_int_equal(state_take(s, p), held[0]);
    state_drop(s, held[0]);
    state_trim(s, p, count_state, &free_ones);
    assert_int_equal(free_ones, 1u << held[0]);         /* held[1] is a snapshot, held[2] is held */
    /* evicted nodes lose their snapshots, and a later node in the same block has none */
    const int32_t block = t.block[3];
    kv_table_truncate(&t, p, 0);
    fill(&t, p, 8 * 16);
    assert_int_equal(prefix_serial(p, block), 0);
    prefix_enter(&t, p, ids, 0);
    assert_true(prefix_serial(p, block) > 0);
    assert_int_equal(state_find(s, p, block), -1);
    free_ones = 0;
    state_trim(s, p, count_state, &free_ones);
    assert_int_equal(free_ones, 1u << held[0] | 1u << held[1]);
    kv_table_release(&t, p);
    kv_table_release(&none, p);
    state_pool_close(s);
    kv_pool_close(p);
    assert_null(state_pool_open(0, &e));
    assert_int_equal(e.code, ERR_LIMIT);
}

/* One of four states is spare: no snapshot is kept in it, and none is reused for it. */
static void spare_states_are_never_snapshots(void **state)
{
    (void)state;
    struct err e;
    struct kv_pool *p = kv_pool_open(8, &e);
    struct state_pool *s = state_pool_open(4, &e);
    struct kv_table t;
    int32_t ids[128];
    for (int i = 0; i < 128; i++)
        ids[i] = i;
    assert_int_equal(kv_table_init(&t, 128, &e), 0);
    fill(&t, p, 70);
    prefix_enter(&t, p, ids, 0);
    state_set_aside(s, 1);
    for (int i = 0; i < 3; i++)
        state_keep(s, p, t.block[i], state_take(s, p));
    const int held = state_take(s, p), spare = state_take_spare(s, p);
    assert_int_equal(state_find(s, p, t.block[0]), -1);
    assert_true(state_find(s, p, t.block[1]) >= 0 && state_find(s, p, t.block[2]) >= 0);
    assert_true(held >= 0 && spare >= 0 && held != spare);
    assert_int_equal(state_take_spare(s, p), -1);
    /* a sequence swapped its states: the former ordinary state is returned as the spare one */
    state_drop_spare(s, held);
    assert_int_equal(state_take_spare(s, p), held);
    state_drop_spare(s, held);
    const int second = state_take(s, p), third = state_take(s, p);
    assert_true(second >= 0 && third >= 0 && second != held && third != held);
    assert_int_equal(state_take(s, p), -1);             /* the last is for drafts */
    assert_int_equal(state_take_spare(s, p), held);
    kv_table_release(&t, p);
    state_pool_close(s);
    kv_pool_close(p);
}

static void a_pool_without_blocks_is_refused(void **state)
{
    (void)state;
    struct err e;
    assert_null(kv_pool_open(0, &e));
    assert_int_equal(e.code, ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reserve_and_truncate), cmocka_unit_test(shared_blocks_are_copied_before_a_write),
        cmocka_unit_test(random_operations_keep_the_reference_counts),
        cmocka_unit_test(a_sequence_finds_earlier_blocks), cmocka_unit_test(unused_prefixes_are_evicted),
        cmocka_unit_test(prefixes_hold_the_tokens_they_were_entered_with),
        cmocka_unit_test(every_partial_leaf_is_visited), cmocka_unit_test(snapshots_are_found_and_reused),
        cmocka_unit_test(spare_states_are_never_snapshots), cmocka_unit_test(a_pool_without_blocks_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

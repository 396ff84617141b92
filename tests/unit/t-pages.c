/* t-pages.c - the page that holds the best key is chosen, whatever the type of the keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/cpu/cpu_pages.h"
#include "libcommon/cpu/hadamard.h"
#include "libcommon/quant/kvscale.h"

enum { DIM = 48, N_BLOCKS = 600, PAGES = 8, POS = N_BLOCKS * KV_BLOCK - 1, GROUP = 3, HEADS = 2 };

static void draw(struct rng *r, float *x)
{
    for (int d = 0; d < DIM; d++)
        x[d] = (float)(rng_u64(r) % 2001) / 1000 - 1;
}

static void choose(const struct core *k, const struct page_place *p, const struct batch_item *it, int rotated,
                   struct attn *a)
{
    pages_begin(k, 0, a->pos);
    for (int i = pages_ranges(a->pos); i-- > 0; )
        pages_score(k, p, it, a, rotated, i, 0, 0);
    pages_use(k, 0, a);
}

/* weak: -1, or the one head that the planted key is for, whose products are small beside those of
 * the other heads. */
static void check_type(enum kv_type type, int rotated, int weak)
{
    static int32_t table[N_BLOCKS];
    static float q[GROUP * DIM];
    struct err e;
    struct rng r = { 11 };
    struct config c = { .head_dim = DIM, .n_heads = GROUP * HEADS, .n_kv_heads = HEADS, .n_layers = 1 };
    const size_t keys = kv_block_bytes(type, DIM), row = config_page_row(DIM),
                 summaries = (HEADS * (row + sizeof(float)) + 63) / 64 * 64;
    /* after the summaries, scales that the heads share */
    const size_t shared = HEADS * keys + summaries;
    struct core k = { .c = &c, .k = &kernels_ref, .kv_stride = shared + kv_shared_bytes(type),
                      .pool = pool_open(1, &e) };
    assert_non_null(k.pool);
    assert_int_equal(pages_open(&k, PAGES, 1, POS + 1, &e), 0);
    k.kv = aligned_alloc(64, N_BLOCKS * k.kv_stride);
    memset(k.kv, 0, N_BLOCKS * k.kv_stride);
    for (int i = 0; i < GROUP; i++)
        draw(&r, q + i * DIM);
    for (int d = 0; d < DIM && weak >= 0; d++)
        q[weak * DIM + d] *= 0.1f;
    for (int b = 0; b < N_BLOCKS; b++)
        table[b] = (b * 7 + 3) % N_BLOCKS;
    for (int planted = 4; planted < N_BLOCKS - 12; planted += 113) {
        for (int b = 0; b < N_BLOCKS; b++)
            for (int head = 0; head < HEADS; head++) {
                uint8_t *block = k.kv + (size_t)table[b] * k.kv_stride;
                for (int slot = 0; slot < KV_BLOCK; slot++) {
                    float x[DIM];
                    draw(&r, x);
                    for (int d = 0; d < DIM && b == planted && slot == 9; d++)
                        x[d] = weak >= 0 ? 30 * q[weak * DIM + d] : 3 * (q[d] + q[DIM + d] + q[2 * DIM + d]);
                    if (rotated)
                        hadamard_rotate(x, DIM);
                    float *scale = (float *)(void *)(block + shared) + slot;
                    if (type == KV_T2)
                        kv_t2_store(block + (size_t)head * keys, slot, 1, x, DIM,
                                    head ? *scale : (*scale = kv_t2_scale(x, DIM)));
                    else
                        kernels_ref.kv_store_key(type, block + (size_t)head * keys, slot, x, DIM);
                }
                const struct page_place p = { head, HEADS, DIM, HEADS * keys, block + HEADS * keys };
                pages_summarize(&p, block + (size_t)head * keys, type == KV_T2 ? shared - (size_t)head * keys
                                                                           : kv_codes_bytes(type, DIM), type, rotated);
            }
        float rows[GROUP * DIM];
        memcpy(rows, q, sizeof rows);
        for (int i = 0; i < GROUP && rotated; i++)
            hadamard_rotate(rows + i * DIM, DIM);
        const struct batch_item it = { .table = table };
        const struct attn a = { .q = rows, .q_head_stride = DIM, .n_q_heads = GROUP, .head_dim = DIM, .pos = POS };
        assert_true(pages_apply(&k, &it, POS));
        for (int head = 0; head < HEADS; head++) {
            const struct page_place p = { head, HEADS, DIM, HEADS * keys, NULL };
            struct attn one = a;
            choose(&k, &p, &it, rotated, &one);
            const int newest = kv_tail_from(POS) / KV_BLOCK, n = (one.pos + 1) / KV_BLOCK;
            int found = 0;
            assert_int_equal(n, 4 + PAGES + N_BLOCKS - newest);
            assert_int_equal(one.rounded_to, (4 + PAGES) * KV_BLOCK);
            for (int i = 0; i < n; i++)
                found += one.table[i] == table[planted];
            for (int i = 0; i < 4; i++)
                assert_int_equal(one.table[i], table[i]);
            for (int i = 0; i < N_BLOCKS - newest; i++)
                assert_int_equal(one.table[4 + PAGES + i], table[newest + i]);
            assert_int_equal(found, 1);
        }
    }
    free(k.kv);
    pages_close(&k);
    pool_close(k.pool);
}

static void the_planted_page_is_chosen(void **state)
{
    (void)state;
    check_type(KV_F32, 0, -1);
    check_type(KV_F16, 0, -1);
    check_type(KV_BF16, 0, -1);
    check_type(KV_F8, 0, -1);
    check_type(KV_I8, 1, -1);
    check_type(KV_I4, 1, -1);
    check_type(KV_T2, 1, -1);
}

/* Heads have scores of different sizes, and each of them has a say. */
static void the_best_page_of_each_head_is_chosen(void **state)
{
    (void)state;
    for (int head = 0; head < GROUP; head++)
        check_type(KV_F32, 0, head);
}

/* Pages are chosen only if there are more of them than a query may attend to, and not by tokens
 * before exact_until. */
static void short_contexts_choose_no_pages(void **state)
{
    (void)state;
    const struct core k = { .pages = PAGES };
    const int first = KV_SINKS + PAGES * KV_BLOCK + KV_TAIL_STEP + KV_TAIL;
    const struct batch_item all = { 0 }, answer = { .exact_until = first + 5 };
    assert_false(pages_apply(&k, &all, first - 1));
    assert_true(pages_apply(&k, &all, first));
    assert_false(pages_apply(&k, &answer, first + 4));
    assert_true(pages_apply(&k, &answer, first + 5));
    assert_false(pages_apply(&(struct core){ 0 }, &all, 1 << 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_planted_page_is_chosen),
                                        cmocka_unit_test(the_best_page_of_each_head_is_chosen),
                                        cmocka_unit_test(short_contexts_choose_no_pages) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* t-pattern.c - patterns of sparse attention against their definitions, and the memory that they
 * take. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/engine/pattern.h"

enum { N = 150 };

static int defined(const struct sparse_pattern *p, int i, int j)
{
    const int unit = p->unit ? p->unit : 1, a = i / unit, b = j / unit, far = abs(a - b);
    return !(p->causal && j > i) && (far <= p->window || a < p->globals || b < p->globals ||
                                     (p->stride && far % p->stride == 0));
}

static void masks_are_as_defined(void **state)
{
    (void)state;
    static const struct sparse_pattern small[] = {
        { .window = 7 }, { .window = 5, .globals = 3 }, { .unit = 8, .stride = 3 }, { 0 }, { .window = N },
        { .unit = 8, .stride = 3, .window = 1, .globals = 1 }, { .unit = 16, .window = 2, .globals = 1 },
        { .unit = 64, .window = INT32_MAX }, { .unit = 7, .stride = 1 },
    };
    for (size_t s = 0; s < 2 * sizeof small / sizeof *small; s++) {
        struct sparse_pattern p = small[s / 2];
        uint8_t seen[N];
        int64_t pairs = 0;
        p.causal = s % 2;
        for (int i = 0; i < N; i++) {
            pattern_row(&p, N, i, seen);
            for (int j = 0; j < N; j++) {
                assert_int_equal(seen[j], defined(&p, i, j));
                pairs += seen[j];
            }
        }
        assert_int_equal(pattern_pairs(&p, N, seen), pairs);
    }
}

/* BigBird adds random keys to a window: the same each time, others for another query or seed, and
 * none of the future where the pattern is causal. */
static void random_keys_are_reproducible(void **state)
{
    (void)state;
    struct sparse_pattern p = { .window = 4, .random = 12, .seed = 42 };
    uint8_t seen[N], again[N], other[N];
    for (int i = 0; i < N; i++) {
        int extra = 0;
        p.causal = i % 2;
        pattern_row(&p, N, i, seen);
        pattern_row(&p, N, i, again);
        assert_memory_equal(seen, again, sizeof seen);
        for (int j = 0; j < N; j++) {
            assert_true(seen[j] >= defined(&p, i, j) && (!p.causal || j <= i || !seen[j]));
            extra += seen[j] - defined(&p, i, j);
        }
        assert_true(extra <= 12 && (p.causal || extra >= 4));
    }
    pattern_row(&p, N, 149, seen);
    p.seed = 43;
    pattern_row(&p, N, 149, other);
    assert_memory_not_equal(seen, other, sizeof seen);
}

/* The scores of a window of 512 beside those of full attention, as f16. */
static void a_window_takes_the_known_memory(void **state)
{
    (void)state;
    static const struct { int n, full, window; double less; } sizes[] = {
        { 1024, 2, 1, 1.3 }, { 2048, 8, 3, 2.3 }, { 4096, 32, 7, 4.3 }, { 8192, 128, 15, 8.3 } };
    uint8_t *row = malloc(8192);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const double full = pattern_bytes((int64_t)sizes[i].n * sizes[i].n),
                     window = pattern_bytes(pattern_pairs(&patterns[0], sizes[i].n, row));
        assert_int_equal((int)(full / 1048576), sizes[i].full);
        assert_int_equal((int)(window / 1048576), sizes[i].window);
        assert_float_equal(full / window, sizes[i].less, 0.05);
    }
    free(row);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(masks_are_as_defined),
                                        cmocka_unit_test(random_keys_are_reproducible),
                                        cmocka_unit_test(a_window_takes_the_known_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* t-roofline.c - the loops count their operations, and only the requested figures are measured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/hw/roofline.h"

static const struct roofline_loops *const sets[] = {
    &roofline_generic,
#ifdef ZSE_X86
    &roofline_avx2, &roofline_avxvnni, &roofline_avx512, &roofline_amx,
#endif
};

/* Each line of bytes changes the result, so all of them are read, in one stream and in interleaved
 * ones. */
static void every_line_of_bytes_is_read(void **state)
{
    enum { N = 16384 };
    static const uint8_t zeros[64];
    uint8_t *p = aligned_alloc(64, N);
    (void)state;
    assert_non_null(p);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (!sets[i]->supported() || !sets[i]->read)
            continue;
        for (int streams = 1; streams <= 4; streams *= 2) {
            memset(p, 0, N);
            const uint64_t none = sets[i]->read(p, N, streams, 0);
            for (int line = 0; line < N / 64; line++) {
                memset(p + 64 * line, 1, 64);
                p[64 * line] = 2;
                if (sets[i]->read(p, N, streams, 0) == none || sets[i]->read(p, N, streams, 1024) == none)
                    fail_msg("%s with %d streams does not see line %d", sets[i]->name, streams, line);
                memcpy(p + 64 * line, zeros, 64);
            }
        }
    }
    free(p);
}

static void operations_grow_with_the_rounds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (!sets[i]->supported()) {
            print_message("%s: this processor lacks the instructions\n", sets[i]->name);
            continue;
        }
        if (sets[i]->int8_dot)
            assert_true(sets[i]->int8_dot(200) == 2 * sets[i]->int8_dot(100) && sets[i]->int8_dot(1) >= 2 * 32);
        if (sets[i]->f32_fma)
            assert_true(sets[i]->f32_fma(200) == 2 * sets[i]->f32_fma(100) && sets[i]->f32_fma(1) >= 2 * 8);
    }
}

static void only_what_was_asked_is_measured(void **state)
{
    struct roofline l;
    struct err e;
    (void)state;
    assert_int_equal(roofline_measure(&l, &(struct roofline_options){ .n_threads = 2, .what = ROOFLINE_INT8 }, &e), 0);
    assert_int_equal(l.n_threads, 2);
    assert_true(l.int8[0] > 0 && l.int8[1] > 0 && l.int8_name);
    assert_true(l.read[1] == 0 && l.f32[1] == 0 && l.page_cache[1] == 0 && l.disk == 0);
    assert_int_equal(roofline_measure(&l, &(struct roofline_options){ .n_threads = 2, .what = ROOFLINE_F32,
                                                                      .only_all = 1 },
                                    &e), 0);
    assert_true(l.f32[0] == 0 && l.f32[1] > 0 && l.int8[1] == 0);
}

static void only_regular_files_are_measured(void **state)
{
    struct roofline l;
    struct err e;
    (void)state;
    assert_int_equal(roofline_measure(&l, &(struct roofline_options){ .what = ROOFLINE_FILE, .file = "/no/such/file" },
                                      &e),
                     -1);
    assert_non_null(strstr(e.msg, "/no/such/file: No such file"));
    assert_int_equal(roofline_measure(&l, &(struct roofline_options){ .what = ROOFLINE_FILE,
                                                                      .tmp_dir = "/no/such/folder" },
                                    &e), -1);
    assert_int_equal(roofline_measure(&l, &(struct roofline_options){ .what = ROOFLINE_FILE, .file = "/dev/null" }, &e),
                     -1);
    assert_non_null(strstr(e.msg, "expected a regular file"));
    /* a file that one thread reads in one step, while the second thread has nothing to read */
    char path[] = "/tmp/t-roofline-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && ftruncate(fd, 3 << 20) == 0);
    assert_int_equal(roofline_measure(&l, &(struct roofline_options){ .n_threads = 2, .what = ROOFLINE_FILE,
                                                                      .file = path },
                                    &e), 0);
    assert_true(l.page_cache[0] > 0 && l.page_cache[1] > 0 && (l.disk > 0) == !l.no_disk);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_line_of_bytes_is_read),
                                        cmocka_unit_test(operations_grow_with_the_rounds),
                                        cmocka_unit_test(only_what_was_asked_is_measured),
                                        cmocka_unit_test(only_regular_files_are_measured) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

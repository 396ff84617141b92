/* t-utf8.c - every Unicode scalar value is encoded and decoded again; the forms that RFC 3629
 * forbids are refused; counting and stepping. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/utf8.h"

static void every_character_survives_a_round_trip(void **state)
{
    (void)state;
    for (uint32_t c = 0; c <= 0x110000; c++) {
        char b[4];
        int n = utf8_encode(c, b), m;
        if ((c >= 0xD800 && c < 0xE000) || c > 0x10FFFF) {
            assert_int_equal(n, 0);
            continue;
        }
        assert_int_equal(utf8_decode(b, (size_t)n, &m), (int32_t)c);
        assert_int_equal(m, n);
        for (int cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_decode(b, (size_t)cut, &m), -1);
            assert_int_equal(utf8_incomplete(b, (size_t)cut), cut);
        }
        assert_int_equal(utf8_incomplete(b, (size_t)n), 0);
    }
}

static void forbidden_bytes_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x80\xAF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                                       "\xED\xBF\xBF",
        "\xF0\x80\x80\xAF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE", "\xFF", "\xE2\x28\xA1",
        "\xF0\x28\x8C\xBC" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int n;
        assert_int_equal(utf8_decode(bad[i], strlen(bad[i]), &n), -1);
        assert_int_equal(n, 1);
        assert_int_equal(utf8_valid(bad[i], strlen(bad[i])), 0);
        if (strlen(bad[i]) > 1)
            assert_int_equal(utf8_incomplete(bad[i], 2), 0);
    }
}

static void positions_count_characters(void **state)
{
    (void)state;
    static const char s[] = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";      /* a é € 😀 z */
    size_t size = sizeof s - 1;
    static const size_t at[] = { 0, 1, 3, 6, 10, 11, 11 };
    assert_int_equal(utf8_valid(s, size), size);
    assert_int_equal(utf8_count(s, size), 5);
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(utf8_offset(s, size, i), at[i]);
    for (size_t i = 5; i > 0; i--)
        assert_int_equal(utf8_prev(s, at[i]), at[i - 1]);
    assert_int_equal(utf8_prev("\xFF\x80", 2), 1);
    assert_int_equal(utf8_count("\xFF\x80" "a", 3), 3);
    assert_true(utf8_is_space(0x3000) && utf8_is_space(' ') && utf8_is_space(0x1C));
    assert_true(utf8_is_steering(0) && utf8_is_steering(0x9f) && utf8_is_steering(0x202e) && utf8_is_steering(0x2066));
    assert_false(utf8_is_steering(' ') || utf8_is_steering(0xa0) || utf8_is_steering(0x202f) || utf8_is_steering('a'));
    assert_false(utf8_is_space(0x200B) || utf8_is_space('a') || utf8_is_space(0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_survives_a_round_trip), cmocka_unit_test(forbidden_bytes_are_refused),
        cmocka_unit_test(positions_count_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

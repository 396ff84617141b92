/* t-wrap.c - lines broken between words, for texts that arrive in pieces of any size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "cmd/chat_wrap.h"

static char said[8192];
static size_t n_said;
static int width;               /* of the next line */
static int narrower;            /* columns by which each line is narrower than the one before */

static void keep(const char *text, size_t size)
{
    assert_true(n_said + size < sizeof said);
    memcpy(said + n_said, text, size);
    n_said += size;
    said[n_said] = '\0';
}

static int now_wide(void)
{
    const int w = width;
    width -= narrower;
    return w;
}

/* The text after `at` columns of a line, in pieces of this size. */
static const char *broken(const char *text, int columns, int at, size_t piece)
{
    struct line_wrap w = { .write = keep, .width = now_wide };
    const size_t size = strlen(text);
    width = columns;
    n_said = 0;
    said[0] = '\0';
    wrap_begin(&w, at);
    for (size_t i = 0; i < size; i += piece)
        wrap_write(&w, text + i, size - i < piece ? size - i : piece);
    wrap_end(&w);
    return said;
}

static const struct { int columns, at; const char *text, *want; } texts[] = {
    { 20, 0, "The capital of France is Paris.\n", "The capital of\nFrance is Paris.\n" },
    { 10, 0, "12345 7890 x", "12345 7890\nx" },
    { 10, 0, "12345 78901 x", "12345\n78901 x" },
    { 10, 0, "a  b   cdefghi j", "a  b\ncdefghi j" },
    { 10, 0, "  - one two three\n\n    four", "  - one\ntwo three\n\n    four" },
    { 10, 0, "a\tbc d", "a\tbc\nd" },
    { 10, 0, "123456789    \nx", "123456789\nx" },
    { 10, 5, "12345 x", "12345\nx" },
    { 10, 6, "12345 x", "\n12345 x" },
    /* a word wider than a line, which the terminal breaks: the next ones follow it */
    { 12, 0, "see https://example.org/a/long/path now and then", "see\nhttps://example.org/a/long/path now\nand then" },
    /* code and tables */
    { 8, 0, "```c\nint number = 1 + 2;\n```\none two three", "```c\nint number = 1 + 2;\n```\none two\nthree" },
    { 8, 0, "~~~~ x\n```\n~~~\none two three\n~~~~\none two three", "~~~~ x\n```\n~~~\none two three\n~~~~\none two\nthree" },
    { 8, 0, "  ```\n  one two three\n  ``` \none two three", "  ```\n  one two three\n  ``` \none two\nthree" },
    { 8, 11, "```\none two three\n```", "```\none two three\n```" },
    { 8, 0, "```a``` one two", "```a```\none two" },
    { 8, 0, "| one | two |\n|-----|-----|\none two three", "| one | two |\n|-----|-----|\none two\nthree" },
    /* wide characters, and punctuation that begins no line */
    { 7, 0, "你好世界你好", "你好世\n界你好" },
    { 6, 0, "你好世。界", "你好\n世。界" },
    { 6, 0, "你好「世界」", "你好\n「世\n界」" },
    { 6, 0, "ab你好世", "ab你好\n世" },
    /* combining characters have no columns, and graphemes are not divided */
    { 7, 0, "e\u0301e\u0301e\u0301 e\u0301e\u0301e\u0301", "e\u0301e\u0301e\u0301 e\u0301e\u0301e\u0301" },
    { 6, 0, "e\u0301e\u0301e\u0301 e\u0301e\u0301e\u0301", "e\u0301e\u0301e\u0301\ne\u0301e\u0301e\u0301" },
    { 8, 0, "ab 👩\u200d👩\u200d👧", "ab\n👩\u200d👩\u200d👧" },
    /* control characters are shown as one column each, invalid bytes as one */
    { 6, 0, "a\33[1mb c", "a\33[1mb\nc" },
    { 4, 0, "\xff\xc3 ab c\xe4\xbd", "\xff\xc3\nab\nc\xe4\xbd" },
    { 0, 0, "one two three", "one two three" },
    { 1, 0, "a b", "a\nb" },
};

static void test_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t piece = 1; piece <= strlen(texts[i].text); piece++)
            assert_string_equal(broken(texts[i].text, texts[i].columns, texts[i].at, piece), texts[i].want);
}

static void test_long_words(void **state)
{
    char text[3001];
    (void)state;
    memset(text, 'a', 3000);
    text[3000] = '\0';
    assert_string_equal(broken(text, 5000, 0, 7), text);
    assert_string_equal(broken(text, 80, 0, 7), text);
    memset(text, ' ', 2000);
    assert_string_equal(broken(text, 5000, 0, 1), text);
}

static void test_a_word_waits_until_it_ends(void **state)
{
    struct line_wrap w = { .write = keep, .width = now_wide };
    (void)state;
    width = 20;
    n_said = 0;
    wrap_write(&w, "Hello wor", 9);
    assert_string_equal(said, "Hello");
    wrap_write(&w, "ld ", 3);
    assert_string_equal(said, "Hello world");
    wrap_end(&w);
    assert_string_equal(said, "Hello world ");
    wrap_write(&w, "and more", 8);
    wrap_end(&w);
    assert_string_equal(said, "Hello world and more");
    width = 0;
    wrap_begin(&w, 0);
    wrap_write(&w, "no", 2);
    assert_string_equal(said, "Hello world and moreno");
}

static void test_each_line_has_the_width_of_its_time(void **state)
{
    (void)state;
    narrower = 2;
    assert_string_equal(broken("aaa bbb ccc ddd eee fff", 11, 0, 3), "aaa bbb ccc\nddd eee\nfff");
    narrower = 0;
}

/* Texts of short words: no line is too wide, and only blanks become ends of lines. */
static void test_random_texts(void **state)
{
    (void)state;
    srand(1);
    for (int round = 0; round < 500; round++) {
        char text[200] = "";
        size_t n = 0;
        while (n < sizeof text - 12) {
            const int letters = 1 + rand() % 8, gap = rand() % 4;
            memset(text + n, "abc"[n % 3], (size_t)letters);
            n += (size_t)letters;
            memcpy(text + n, gap ? "   " : "\n", gap ? (size_t)gap : 1);
            n += gap ? (size_t)gap : 1;
        }
        broken(text, 12, 0, 1 + (size_t)rand() % 9);
        const char *a = text, *b = said;
        for (size_t column = 0; *b; b++) {
            column = *b == '\n' ? 0 : column + 1;
            assert_true(column <= 12);
            if (strchr(" \n", *b))
                continue;
            a += strspn(a, " \n");
            assert_int_equal(*a++, *b);
        }
        assert_int_equal(a[strspn(a, " \n")], '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_a_word_waits_until_it_ends),
        cmocka_unit_test(test_each_line_has_the_width_of_its_time),
        cmocka_unit_test(test_random_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

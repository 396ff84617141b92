/* t-job-lines.c - the lines that a download or conversion prints: progress, messages, and lines
 * that are cut, wrong or hostile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/serve/jobs/jobs.h"

static struct job_progress p;
static char message[64];

static int line(const char *text, uint64_t now_ns) { return job_read_line(text, &p, message, sizeof message, now_ns); }

static void setup(void)
{
    memset(&p, 0, sizeof p);
    strcpy(message, "before");
}

static void progress_and_its_rate(void **state)
{
    (void)state;
    setup();
    assert_int_equal(line("{\"step\":\"download\",\"unit\":\"B\",\"done\":100,\"total\":1000}", 1000000000), 1);
    assert_string_equal(p.step, "download");
    assert_string_equal(p.unit, "B");
    assert_true(p.done == 100 && p.total == 1000 && p.rate == 0);
    assert_int_equal(line("{\"step\":\"download\",\"unit\":\"B\",\"done\":500,\"total\":1000}", 3000000000), 1);
    assert_true(p.rate > 199 && p.rate < 201);
    /* a new step, or a smaller amount than before: the measurement of the rate starts again */
    line("{\"step\":\"download\",\"unit\":\"B\",\"done\":10,\"total\":1000}", 4000000000);
    assert_true(p.rate == 0 && p.first == 10);
    assert_string_equal(message, "before");
}

static void messages_lose_the_name_of_the_program(void **state)
{
    (void)state;
    setup();
    assert_int_equal(line("zse-convert: a.gguf: no space left", 1), 0);
    assert_string_equal(message, "a.gguf: no space left");
    line("zse-convert: no such file or folder here; on the hub: there is no model x", 1);
    assert_string_equal(message, "there is no model x");
    line("warning: other", 1);
    assert_string_equal(message, "warning: other");
    line("", 1);
    assert_string_equal(message, "warning: other");
    char longer[200];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    line(longer, 1);
    assert_int_equal(strlen(message), sizeof message - 1);
}

/* A line of progress that is cut at any byte is a message and changes no number.  The same holds
 * for lines whose values have another type or are out of range. */
static void other_lines_are_no_progress(void **state)
{
    static const char whole[] = "{\"step\":\"quantize\",\"unit\":\"tensors\",\"done\":3,\"total\":7}";
    static const char *const wrong[] = {
        "{}", "{\"step\":1,\"unit\":\"B\",\"done\":1,\"total\":2}", "{\"step\":\"a\",\"unit\":null,\"done\":1,\"total\":2}",
        "{\"step\":\"a\",\"unit\":\"B\",\"done\":-1,\"total\":2}", "{\"step\":\"a\",\"unit\":\"B\",\"done\":1.5,\"total\":2}",
        "{\"step\":\"a\",\"unit\":\"B\",\"done\":99999999999999999999,\"total\":2}", "{\"step\":\"a\",\"unit\":\"B\",\"done\":\"1\",\"total\":2}",
    };
    char text[sizeof whole];
    (void)state;
    for (size_t n = 0; n + 1 < sizeof whole; n++) {
        setup();
        memcpy(text, whole, n);
        text[n] = '\0';
        assert_int_equal(line(text, 1), 0);
        assert_true(p.done == 0 && p.total == 0 && !*p.step);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setup();
        if (line(wrong[i], 1))
            fail_msg("%s is taken for progress", wrong[i]);
        assert_true(p.done == 0 && p.total == 0 && !*p.step);
    }
    setup();
    char longer[4096];
    snprintf(longer, sizeof longer, "{\"step\":\"%02000d\",\"unit\":\"%02000d\",\"done\":1,\"total\":2}", 0, 0);
    assert_int_equal(line(longer, 1), 1);
    assert_true(strlen(p.step) < sizeof p.step && strlen(p.unit) < sizeof p.unit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_and_its_rate), cmocka_unit_test(messages_lose_the_name_of_the_program),
        cmocka_unit_test(other_lines_are_no_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

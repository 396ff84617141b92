/* t-cli.c - a progress bar on a terminal, and messages beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "cmd/cli.h"

static char said[1 << 20];
static size_t n_said;
static int terminal, stderr_before;

static int set_up(void **state)
{
    (void)state;
    n_said = 0;
    terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
        return -1;
    const int side = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    struct termios t;
    if (side < 0 || tcgetattr(side, &t) != 0)
        return -1;
    cfmakeraw(&t);
    stderr_before = dup(STDERR_FILENO);
    return tcsetattr(side, TCSANOW, &t) == 0 && dup2(side, STDERR_FILENO) >= 0 && close(side) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return dup2(stderr_before, STDERR_FILENO) >= 0 && close(stderr_before) == 0 && close(terminal) == 0 ? 0 : -1;
}

/* Collect the output on the terminal up to `last`. */
static void *listen_until(void *last)
{
    said[0] = '\0';
    while (!strstr(said, last)) {
        const ssize_t n = read(terminal, said + n_said, sizeof said - 1 - n_said);
        if (n <= 0)
            break;
        n_said += (size_t)n;
        said[n_said] = '\0';
    }
    return NULL;
}

/* Start a progress bar as if it had run for two seconds. */
static void begin(struct cli_progress *p)
{
    cli_progress_init(p);
    p->start_ns = 1;
    strcpy(p->what, "work");
}

static void draw(struct cli_progress *p)
{
    p->drawn_ns = 0;                    /* even if the last drawing was just now */
    assert_int_equal(progress_report(&p->progress, "work", 50, 100, "layers"), 0);
}

#define WIPE "\r\033[K"

static void messages_wipe_the_bar(void **state)
{
    (void)state;
    struct cli_progress p;
    struct err e;
    begin(&p);
    assert_string_equal(cli_progress_wipe(), "");
    draw(&p);
    assert_string_equal(cli_progress_wipe(), WIPE);
    cli_note("t", "one");
    assert_string_equal(cli_progress_wipe(), "");
    cli_note("t", "two");
    draw(&p);
    err_set(&e, ERR_IO, "three");
    assert_int_equal(cli_fail("t", &e), CLI_FAILED);
    draw(&p);
    assert_int_equal(cli_wrong("t", "%s", "four"), CLI_USAGE);
    draw(&p);
    cli_progress_clear();
    cli_progress_clear();
    cli_note("t", "end");
    listen_until("end\n");
    static const char *const want[] = { "t: one\nt: two\n\rwork  50 % [##########..........] ", WIPE "t: three\n",
                                        WIPE "t: four\nt --help shows the usage\n\rwork", "\033[K" WIPE "t: end\n" };
    const char *at = said;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        at = strstr(at, want[i]);
        if (!at)
            fail_msg("'%s' does not come in '%s'", want[i], said);
        at += 1;
    }
    assert_memory_equal(said, "\rwork  50 %", 11);
}

enum { TIMES = 400 };

static void *draw_often(void *p)
{
    for (int i = 0; i < TIMES; i++)
        draw(p);
    return NULL;
}

/* One thread draws, another prints: every message has a line of its own. */
static void messages_of_two_threads_have_lines_of_their_own(void **state)
{
    (void)state;
    struct cli_progress p;
    pthread_t drawer, listener;
    int messages = 0;
    begin(&p);
    assert_int_equal(pthread_create(&listener, NULL, listen_until, "end\n"), 0);
    assert_int_equal(pthread_create(&drawer, NULL, draw_often, &p), 0);
    for (int i = 0; i < TIMES; i++)
        cli_note("t", "message");
    assert_int_equal(pthread_join(drawer, NULL), 0);
    cli_note("t", "end");
    assert_int_equal(pthread_join(listener, NULL), 0);
    for (const char *m = said; (m = strstr(m, "t: message\n")); m++, messages++)
        assert_true(m == said || m[-1] == '\n' || (m - said >= 4 && memcmp(m - 4, WIPE, 4) == 0));
    assert_int_equal(messages, TIMES);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(messages_wipe_the_bar, set_up, tear_down),
        cmocka_unit_test_setup_teardown(messages_of_two_threads_have_lines_of_their_own, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

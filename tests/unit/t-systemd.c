/* t-systemd.c - sockets of LISTEN_FDS, and what systemd is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/serve_systemd.h"

static const char *const variables[] = { "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET",
                                         "WATCHDOG_USEC", "WATCHDOG_PID" };

/* Open with sockets for the process PID (NULL: this one).  Returns the number of sockets, -1 after
 * an error; the variables must be gone. */
static int open_with(struct systemd *d, const char *pid, const char *fds, const char *names, struct err *e)
{
    char own[16];
    for (int fd = 3; fd < 3 + MOST_INHERITED; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            assert_int_equal(dup2(STDIN_FILENO, fd), fd);
    snprintf(own, sizeof own, "%ld", (long)getpid());
    setenv("LISTEN_PID", pid ? pid : own, 1);
    setenv("LISTEN_FDS", fds, 1);
    if (names)
        setenv("LISTEN_FDNAMES", names, 1);
    const int rc = systemd_open(d, e);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        assert_null(getenv(variables[i]));
    return rc ? -1 : d->n_sockets;
}

static void sockets_are_numbered_from_3_and_named(void **state)
{
    struct systemd d;
    struct err e;
    (void)state;
    assert_int_equal(open_with(&d, NULL, "3", "zse.socket::admin", &e), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(d.sockets[i].fd, 3 + i);
    assert_string_equal(d.sockets[0].name, "socket 1 of LISTEN_FDS, zse.socket");
    assert_string_equal(d.sockets[1].name, "socket 2 of LISTEN_FDS");
    assert_string_equal(d.sockets[2].name, "socket 3 of LISTEN_FDS, admin");
    assert_int_equal(open_with(&d, NULL, "2", "only", &e), 2);
    assert_string_equal(d.sockets[1].name, "socket 2 of LISTEN_FDS");
    assert_int_equal(open_with(&d, NULL, "0", NULL, &e), 0);
    systemd_release(&d);
}

static void sockets_of_another_process_are_not_used(void **state)
{
    struct systemd d;
    struct err e;
    (void)state;
    assert_int_equal(open_with(&d, "1", "1", NULL, &e), 0);
    assert_int_equal(open_with(&d, "", "1", NULL, &e), 0);
    assert_int_equal(open_with(&d, "1", "nonsense", NULL, &e), 0);
    setenv("LISTEN_FDS", "1", 1);                       /* without LISTEN_PID */
    assert_int_equal(systemd_open(&d, &e), 0);
    assert_int_equal(d.n_sockets, 0);
}

static void impossible_numbers_of_sockets_are_refused(void **state)
{
    static const char *const wrong[] = { "", "-1", "9", "1x", "0x1", " 1", "+1", "99999999999999999999" };
    struct systemd d;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(open_with(&d, NULL, wrong[i], NULL, &e), -1);
        assert_non_null(strstr(e.msg, "LISTEN_FDS is '"));
    }
    assert_int_equal(open_with(&d, NULL, "8", NULL, &e), MOST_INHERITED);
    assert_int_equal(fcntl(3, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

/* A socket in the abstract name space in systemd's place; NOTIFY_SOCKET names it. */
static int listen_as_systemd(void)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    socklen_t size = sizeof a;
    char name[sizeof a.sun_path + 1] = "@";
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(sa_family_t)), 0);         /* the kernel chooses a name */
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
    memcpy(name + 1, a.sun_path + 1, size - offsetof(struct sockaddr_un, sun_path) - 1);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

/* All messages so far, separated by blanks, with blanks for line breaks. */
static const char *heard(int fd)
{
    static char text[1000];
    size_t n = 0;
    ssize_t got;
    while ((got = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0) {
        n += (size_t)got;
        text[n++] = ' ';
    }
    text[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\n')
            text[i] = ' ';
    return text;
}

static void changes_are_sent_once_and_signs_of_life_each_time(void **state)
{
    struct systemd d;
    struct err e;
    (void)state;
    const int fd = listen_as_systemd();
    setenv("WATCHDOG_USEC", "30000000", 1);
    assert_int_equal(systemd_open(&d, &e), 0);
    systemd_state(&d, SERVER_LOADING);
    assert_string_equal(heard(fd), "STATUS=loading models EXTEND_TIMEOUT_USEC=30000000 WATCHDOG=1 ");
    systemd_state(&d, SERVER_LOADING);
    assert_string_equal(heard(fd), "EXTEND_TIMEOUT_USEC=30000000 WATCHDOG=1 ");
    systemd_state(&d, SERVER_READY);
    assert_string_equal(heard(fd), "READY=1 STATUS=ready WATCHDOG=1 ");
    systemd_state(&d, SERVER_READY);
    assert_string_equal(heard(fd), "WATCHDOG=1 ");
    systemd_state(&d, SERVER_STALLED);
    systemd_state(&d, SERVER_STALLED);
    assert_string_equal(heard(fd), "STATUS=a step of a model does not end ");
    systemd_state(&d, SERVER_STOPPING);
    assert_string_equal(heard(fd), "STOPPING=1 STATUS=waiting for running requests EXTEND_TIMEOUT_USEC=30000000 WATCHDOG=1 ");
    systemd_release(&d);
    close(fd);
}

static void a_change_that_could_not_be_sent_is_sent_again(void **state)
{
    struct systemd d;
    struct err e;
    int fd = listen_as_systemd();
    (void)state;
    assert_int_equal(systemd_open(&d, &e), 0);
    const struct sockaddr_un to = d.to;
    close(fd);                                          /* systemd is not there */
    systemd_state(&d, SERVER_READY);
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&to, d.to_size), 0);
    systemd_state(&d, SERVER_READY);
    assert_string_equal(heard(fd), "READY=1 STATUS=ready ");
    systemd_state(&d, SERVER_READY);                    /* no watchdog was requested */
    assert_string_equal(heard(fd), "");
    systemd_release(&d);
    close(fd);
}

static void the_watchdog_of_another_process_gets_nothing(void **state)
{
    struct systemd d;
    struct err e;
    (void)state;
    const int fd = listen_as_systemd();
    setenv("WATCHDOG_USEC", "30000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    assert_int_equal(systemd_open(&d, &e), 0);
    systemd_state(&d, SERVER_READY);
    assert_string_equal(heard(fd), "READY=1 STATUS=ready ");
    systemd_release(&d);
    close(fd);
    setenv("NOTIFY_SOCKET", "vsock:2:1234", 1);         /* a kind that is not known */
    assert_int_equal(systemd_open(&d, &e), 0);
    assert_int_equal(d.fd, -1);
    systemd_state(&d, SERVER_READY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sockets_are_numbered_from_3_and_named),
        cmocka_unit_test(sockets_of_another_process_are_not_used),
        cmocka_unit_test(impossible_numbers_of_sockets_are_refused),
        cmocka_unit_test(changes_are_sent_once_and_signs_of_life_each_time),
        cmocka_unit_test(a_change_that_could_not_be_sent_is_sent_again),
        cmocka_unit_test(the_watchdog_of_another_process_gets_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

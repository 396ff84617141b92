/* t-access.c - keys, limits, the audit log: each promise of libcommon/access, by breaking what it guards against. */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "libcommon/access/audit.h"
#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_query.h"
#include "libcommon/access/keys.h"
#include "libcommon/access/limits.h"
#include "libcommon/access/window.h"
#include "libcommon/base/clock.h"

static struct err e;
static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/t-access-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static char *in_folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* ---- windows and limits ---- */

static void windows_slide(void **state)
{
    (void)state;
    window_bucket ring[WINDOW_MINUTE] = { 0 };
    uint32_t oldest;
    window_add(ring, WINDOW_MINUTE, 1000, 3);
    window_add(ring, WINDOW_MINUTE, 1030, 4);
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1030, MINUTE_SPAN, &oldest), 7);
    assert_int_equal(oldest, 1000);
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1060, MINUTE_SPAN, &oldest), 7);      /* 60 s later something of second 1000 may still count */
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1061, MINUTE_SPAN, &oldest), 4);
    assert_int_equal(oldest, 1030);
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1091, MINUTE_SPAN, &oldest), 0);
    window_add(ring, WINDOW_MINUTE, 1000 + WINDOW_MINUTE, 1);       /* the same bucket, another time */
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1000 + WINDOW_MINUTE, MINUTE_SPAN, &oldest), 5);
    window_add(ring, WINDOW_MINUTE, 1000 + WINDOW_MINUTE, -5);
    assert_int_equal(window_sum(ring, WINDOW_MINUTE, 1000 + WINDOW_MINUTE, MINUTE_SPAN, &oldest), 4);
}

static void a_limit_holds_and_says_when(void **state)
{
    (void)state;
    const struct limit five = { .requests_minute = 5 }, none = { 0 }, few = { .tokens_minute = 100, .tokens_day = 1000 };
    char text[128];
    struct usage *u = usage_open(folder, &e), *cli = usage_open(folder, &e);
    assert_non_null(u);
    assert_non_null(cli);
    for (int i = 0; i < 5; i++) {
        const struct verdict v = usage_admit(u, 7, &five);
        assert_true(v.allowed);
        assert_int_equal(v.remaining, 4 - i);
        assert_in_range(v.reset_s, 60, 61);
    }
    struct verdict v = usage_admit(u, 7, &five);
    assert_false(v.allowed);
    assert_in_range(v.retry_s, 59, 61);
    verdict_text(&v, text, sizeof text);
    char want[128];
    snprintf(want, sizeof want, "Rate limit exceeded. Limit: 5/min, Current: 5. Try again in %ds.", v.retry_s);
    assert_string_equal(text, want);
    assert_true(usage_admit(u, 8, &five).allowed);          /* another key has a window of its own */
    for (int i = 0; i < 100; i++)
        assert_true(usage_admit(u, 9, &none).allowed);

    struct usage_stats s;
    usage_read(cli, 7, &five, &s);                          /* another process would see the same */
    assert_int_equal(s.requests_minute, 5);
    assert_int_equal(s.requests, 5);
    assert_false(s.verdict.allowed);
    usage_reset(cli, 7);
    assert_true(usage_admit(u, 7, &five).allowed);
    usage_read(cli, 7, &five, &s);
    assert_int_equal(s.requests_minute, 1);
    assert_int_equal(s.requests, 6);                        /* a reset forgets the window, not the total */

    assert_true(usage_admit(u, 10, &few).allowed);
    usage_charge(u, 10, 99);
    assert_true(usage_admit(u, 10, &few).allowed);
    usage_charge(u, 10, 1);
    v = usage_admit(u, 10, &few);
    assert_false(v.allowed);
    assert_string_equal(v.unit, " tokens/min");
    usage_drop(cli, 10);
    assert_true(usage_admit(u, 10, &few).allowed);
    usage_close(cli);
    usage_close(u);
}

static void *admit_many(void *user)
{
    const struct limit l = { .requests_minute = 1000 };
    intptr_t got = 0;
    for (int i = 0; i < 1000; i++)
        got += usage_admit(user, 3, &l).allowed;
    return (void *)got;
}

static void threads_never_exceed_a_limit(void **state)
{
    (void)state;
    pthread_t t[4];
    intptr_t sum = 0;
    struct usage *u = usage_open(folder, &e);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, admit_many, u);
    for (int i = 0; i < 4; i++) {
        void *got;
        pthread_join(t[i], &got);
        sum += (intptr_t)got;
    }
    assert_in_range(sum, 900, 1000);        /* at the edge two threads may refuse each other, never let both in */
    usage_close(u);
}

static void damaged_counters_begin_anew(void **state)
{
    (void)state;
    const struct limit l = { .requests_minute = 5 };
    int fd = open(in_folder("usage"), O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "rubbish rubbish rubbish", 23), 23);
    close(fd);
    struct usage *u = usage_open(folder, &e);
    assert_non_null(u);
    assert_true(usage_admit(u, 1, &l).allowed);
    usage_close(u);
}

/* Keys come and go for years: their counters must not turn the limits of new ones off. */
static void counters_of_dead_keys_make_room(void **state)
{
    (void)state;
    static int64_t ids[USAGE_SLOTS];
    const struct limit two = { .requests_minute = 2 };
    struct usage_stats s;
    struct usage *u = usage_open(folder, &e);
    for (int64_t key = 1; key <= USAGE_SLOTS; key++)
        assert_true(usage_admit(u, key, &two).allowed);
    assert_int_equal(usage_keys(u, ids), USAGE_SLOTS);
    assert_true(usage_admit(u, 100000, &two).allowed);      /* no slot is free */
    assert_true(usage_admit(u, 100000, &two).allowed);
    assert_false(usage_admit(u, 100000, &two).allowed);
    assert_int_equal(usage_keys(u, ids), USAGE_SLOTS);
    usage_drop(u, 4000);
    assert_int_equal(usage_keys(u, ids), USAGE_SLOTS - 1);
    usage_read(u, 4001, &two, &s);
    assert_int_equal(s.requests_minute, 1);
    usage_close(u);
}

static void addresses_have_windows_too(void **state)
{
    (void)state;
    char name[32];
    struct address_limits *a = address_limits_open(64, 3, &e);
    for (int i = 0; i < 3; i++)
        assert_true(address_admit(a, "10.0.0.1").allowed);
    assert_false(address_admit(a, "10.0.0.1").allowed);
    assert_true(address_admit(a, "10.0.0.2").allowed);
    for (int i = 0; i < 10000; i++) {       /* a flood of others takes no more memory */
        snprintf(name, sizeof name, "10.1.%d.%d", i / 256, i % 256);
        assert_true(address_admit(a, name).allowed);
    }
    address_limits_close(a);
}

static void a_network_of_ipv6_is_one_address(void **state)
{
    (void)state;
    struct address_limits *a = address_limits_open(64, 3, &e);
    assert_true(address_peek(a, "2001:db8:1:2::1").allowed);
    assert_true(address_admit(a, "2001:db8:1:2::1").allowed);
    assert_true(address_admit(a, "2001:db8:1:2:aaaa::1").allowed);
    assert_true(address_peek(a, "2001:DB8:1:2:ffff:ffff:ffff:ffff").allowed);
    assert_true(address_admit(a, "2001:DB8:1:2:ffff:ffff:ffff:ffff").allowed);
    assert_false(address_peek(a, "2001:db8:1:2:0:0:0:9").allowed);
    assert_false(address_admit(a, "2001:db8:1:2:0:0:0:9").allowed);
    assert_true(address_admit(a, "2001:db8:1:3::1").allowed);               /* another network */
    for (int i = 0; i < 3; i++)
        assert_true(address_admit(a, "::ffff:10.0.0.1").allowed);
    assert_false(address_admit(a, "10.0.0.1").allowed);                     /* the same host */
    assert_true(address_admit(a, "::ffff:10.0.0.2").allowed);
    assert_true(address_admit(a, "unix").allowed);
    address_limits_close(a);
}

/* ---- keys ---- */

static void new_key(struct keys *k, const char *name, char text[KEY_TEXT + 1])
{
    struct key_info info = { .scopes = SCOPE_CHAT };
    snprintf(info.name, sizeof info.name, "%s", name);
    assert_int_equal(keys_create(k, &info, text, &e), 0);
}

static void keys_live_and_die(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1], other[KEY_TEXT + 1];
    struct key_info info;
    int required;
    struct keys *cli = keys_open(folder, &e), *server = keys_open(folder, &e);
    assert_non_null(cli);
    assert_non_null(server);
    assert_int_equal(keys_required(cli, &required, &e), 0);
    assert_false(required);
    new_key(cli, "app", text);
    assert_int_equal(strlen(text), KEY_TEXT);
    assert_memory_equal(text, "zse-", 4);
    assert_int_equal(strspn(text + 4, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), 43);
    assert_int_equal(keys_required(cli, &required, &e), 0);
    assert_true(required);                  /* the first key closes the door */

    assert_int_equal(keys_check(server, text, &info), KEY_UNKNOWN);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &info), KEY_GOOD);
    assert_string_equal(info.name, "app");
    text[20] ^= 1;
    assert_int_equal(keys_check(server, text, &info), KEY_UNKNOWN);
    text[20] ^= 1;
    assert_int_equal(keys_check(server, "", &info), KEY_UNKNOWN);

    struct key_info twice = { .name = "app", .scopes = SCOPE_CHAT };
    assert_int_equal(keys_create(cli, &twice, other, &e), -1);
    assert_non_null(strstr(e.msg, "'app' already"));
    struct key_info odd = { .name = "a b" };
    assert_int_equal(keys_create(cli, &odd, other, &e), -1);

    assert_int_equal(keys_set_enabled(cli, "app", 0, &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &info), KEY_DISABLED);
    assert_int_equal(keys_set_enabled(cli, "app", 1, &e), 0);
    assert_int_equal(keys_rotate(cli, "app", other, &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &info), KEY_UNKNOWN);
    assert_int_equal(keys_check(server, other, &info), KEY_GOOD);
    assert_int_equal(keys_delete(cli, "app", &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, other, &info), KEY_UNKNOWN);
    assert_int_equal(keys_delete(cli, "app", &e), -1);
    assert_true(keys_known_required(server));           /* no key left is no way in */

    struct key_info past = { .name = "past", .scopes = SCOPE_CHAT, .expires_s = 1000000 };
    assert_int_equal(keys_create(cli, &past, text, &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &info), KEY_EXPIRED);
    keys_close(cli);
    keys_close(server);
}

static void no_secret_is_stored(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1], command[256];
    struct stat st;
    struct keys *k = keys_open(folder, &e);
    new_key(k, "app", text);
    assert_int_equal(stat(in_folder("keys.db"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    snprintf(command, sizeof command, "grep -rqF -e %s %s", text + 4, folder);
    assert_int_not_equal(system(command), 0);
    keys_close(k);
    assert_int_equal(chmod(in_folder("keys.db"), 0644), 0);
    assert_null(keys_open(folder, &e));
    assert_non_null(strstr(e.msg, "mode 644, expected 600"));
}

static void a_locked_or_damaged_file_keeps_known_keys(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1];
    struct key_info info;
    sqlite3 *other;
    struct keys *cli = keys_open(folder, &e), *server = keys_open(folder, &e);
    new_key(cli, "app", text);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(sqlite3_open(in_folder("keys.db"), &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    keys_set_patience(server, 0);
    assert_int_equal(keys_refresh(server, &e), 1);
    assert_non_null(strstr(e.msg, "locked"));
    assert_int_equal(keys_check(server, text, &info), KEY_GOOD);
    sqlite3_close(other);
    assert_int_equal(keys_refresh(server, &e), 0);
    keys_close(cli);

    int fd = open(in_folder("keys.db.new"), O_WRONLY | O_CREAT, 0600);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(write(fd, "this is no database ", 20), 20);
    close(fd);
    char from[256];
    strcpy(from, in_folder("keys.db.new"));
    assert_int_equal(rename(from, in_folder("keys.db")), 0);
    assert_int_equal(keys_refresh(server, &e), -1);
    assert_non_null(strstr(e.msg, "damaged"));
    assert_int_equal(keys_check(server, text, &info), KEY_GOOD);
    assert_int_equal(unlink(in_folder("keys.db")), 0);
    assert_int_equal(keys_refresh(server, &e), -1);
    assert_int_equal(keys_check(server, text, &info), KEY_GOOD);
    assert_null(keys_open_again(folder, &e));               /* and no empty one takes its place */
    assert_int_equal(access(in_folder("keys.db"), F_OK), -1);
    keys_forget(server, info.id);
    assert_int_equal(keys_check(server, text, &info), KEY_UNKNOWN);
    keys_close(server);
}

static sqlite3 *lock_file(const char *name)
{
    sqlite3 *other;
    assert_int_equal(sqlite3_open(in_folder(name), &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    return other;
}

static void a_change_is_learnt_while_the_file_is_locked(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1];
    struct key_info info = { .name = "app", .scopes = SCOPE_CHAT }, got;
    struct keys *cli = keys_open(folder, &e), *server = keys_open(folder, &e);
    keys_set_patience(server, 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_false(keys_known_required(server));
    assert_int_equal(keys_create(cli, &info, text, &e), 0);
    assert_true(keys_known_required(cli));              /* it was the first */
    sqlite3 *other = lock_file("keys.db");
    assert_int_equal(keys_refresh(server, &e), 1);
    assert_int_equal(keys_check(server, text, &got), KEY_UNKNOWN);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(keys_learn(server, &info, text, &e), 0);
        keys_learn_required(server, 1);
        assert_int_equal(keys_check(server, text, &got), KEY_GOOD);
        assert_int_equal(got.id, info.id);
        assert_int_not_equal(got.secret, 0);
        assert_int_equal(keys_known(server), 1);
        assert_true(keys_known_required(server));
    }
    const uint64_t secret = got.secret;
    sqlite3_close(other);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &got), KEY_GOOD);
    assert_true(got.secret == secret);
    /* what is learnt too late goes at the next look */
    assert_int_equal(keys_delete(cli, "app", &e), 0);
    assert_int_equal(keys_set_required(cli, 0, &e), 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_learn(server, &info, text, &e), 0);
    keys_learn_required(server, 1);
    assert_int_equal(keys_refresh(server, &e), 0);
    assert_int_equal(keys_check(server, text, &got), KEY_UNKNOWN);
    assert_false(keys_known_required(server));
    keys_close(cli);
    keys_close(server);
}

static void put_in_its_place(const char *name)
{
    char from[256];
    strcpy(from, in_folder(name));
    assert_int_equal(rename(from, in_folder("keys.db")), 0);
}

/* Who only looks at a file that is made waits for nobody who makes one; a new file in its place that others are at is no damage. */
static void a_file_that_others_make_is_locked_not_damaged(void **state)
{
    (void)state;
    keys_close(keys_open(folder, &e));
    const int fd = open(in_folder("keys.db.lock"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    struct keys *server = keys_open_again(folder, &e);
    assert_non_null(server);
    keys_set_patience(server, 0);
    assert_int_equal(keys_refresh(server, &e), 0);
    close(open(in_folder("new"), O_WRONLY | O_CREAT, 0600));        /* without tables */
    put_in_its_place("new");
    assert_int_equal(keys_refresh(server, &e), 1);
    assert_non_null(strstr(e.msg, "keys.db: another program holds it locked"));
    close(fd);
    assert_int_equal(keys_refresh(server, &e), 0);
    close(open(in_folder("new"), O_WRONLY | O_CREAT, 0600));
    sqlite3 *other = lock_file("new");
    put_in_its_place("new");
    assert_int_equal(keys_refresh(server, &e), 1);
    assert_non_null(strstr(e.msg, "keys.db: another program holds it locked"));
    sqlite3_close(other);
    assert_int_equal(keys_refresh(server, &e), 0);
    keys_close(server);
}

/* The server does not stand still while somebody else writes. */
static void a_locked_file_is_waited_for_as_long_as_asked(void **state)
{
    (void)state;
    char text[KEY_TEXT + 1];
    struct key_info info = { .name = "late", .scopes = SCOPE_CHAT };
    sqlite3 *other;
    struct keys *k = keys_open(folder, &e);
    assert_int_equal(sqlite3_open(in_folder("keys.db"), &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    keys_set_patience(k, 50);
    double least = 1e9;
    for (int i = 0; i < 10 && least >= 2; i++) {            /* a busy machine may be late, but not each time */
        const double before = clock_s();
        assert_int_equal(keys_create(k, &info, text, &e), -1);
        assert_non_null(strstr(e.msg, "locked"));
        least = fmin(least, clock_s() - before);
    }
    assert_true(least < 2);
    assert_int_equal(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(keys_create(k, &info, text, &e), 0);
    sqlite3_close(other);
    keys_close(k);
}

/* A child makes a key for each byte that it is sent and tells it when it has it, until it is killed in the middle of one. */
static void a_key_that_was_shown_outlives_kill_9(void **state)
{
    (void)state;
    enum { ROUNDS = 12 };
    char text[KEY_TEXT + 1] = "";
    int n_shown = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int fd[2], go[2];
        assert_int_equal(pipe(fd), 0);
        assert_int_equal(pipe(go), 0);
        const pid_t child = fork();
        if (child == 0) {
            struct keys *k = keys_open(folder, &e);
            for (int i = 0;; i++) {
                struct key_info info = { .scopes = SCOPE_CHAT };
                char byte;
                snprintf(info.name, sizeof info.name, "r%d-%d", round, i);
                if (!k || read(go[0], &byte, 1) != 1 || keys_create(k, &info, text, &e) || write(fd[1], text, KEY_TEXT) != KEY_TEXT)
                    _exit(1);
            }
        }
        close(fd[1]);
        static char shown[5][KEY_TEXT + 1];
        const int stop_at = 1 + round % 3;
        int n = 0;
        assert_int_equal(write(go[1], "1", 1), 1);
        while (read(fd[0], shown[n], KEY_TEXT) == KEY_TEXT) {
            if (++n <= stop_at)
                assert_int_equal(write(go[1], "1", 1), 1);
            if (n == stop_at) {             /* the next one, the last, is being made */
                nanosleep(&(struct timespec){ .tv_nsec = round * 300000 }, NULL);
                kill(child, SIGKILL);
            }
        }
        close(fd[0]);
        close(go[0]);
        close(go[1]);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        struct key_info info;
        struct keys *k = keys_open(folder, &e);
        assert_non_null(k);
        assert_int_equal(keys_refresh(k, &e), 0);
        for (int i = 0; i < n; i++)
            assert_int_equal(keys_check(k, shown[i], &info), KEY_GOOD);
        n_shown += n;
        assert_in_range(keys_known(k), n_shown, n_shown + round + 1);       /* one more a round: made, not yet shown */
        keys_close(k);
    }
}

/* In a traced child: checks of each text, each between two signals. */
enum { CHECKS = 4 };
static void check_each(struct keys *k, char kinds[][KEY_TEXT + 1], int n)
{
    struct key_info info;
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    for (int i = 0; i < n; i++) {
        keys_check(k, kinds[i], &info);         /* what is only done the first time is done */
        for (int j = 0; j < CHECKS; j++) {
            raise(SIGUSR1);
            keys_check(k, kinds[i], &info);
            raise(SIGUSR1);
        }
    }
    _exit(0);
}

/* Instructions between two signals of the child. -1: it has ended. */
static long count_instructions(pid_t child)
{
    int status;
    long n = 0;
    ptrace(PTRACE_CONT, child, NULL, NULL);
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return -1;
    assert_int_equal(WSTOPSIG(status), SIGUSR1);
    for (;; n++) {
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGUSR1)
            return n;
        assert_int_equal(WSTOPSIG(status), SIGTRAP);
    }
}

/* Does the time of a check tell which key it is, or how much of one was guessed?  Each check runs through as many instructions as any other; the clock of a busy
 * machine would say less. */
static void a_check_takes_the_same_time(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    print_message("a sanitizer's own instructions are not always as many\n");
    skip();
#endif
    enum { KEYS = 16, KINDS = 6 };
    char key[KEYS][KEY_TEXT + 1], kinds[KINDS][KEY_TEXT + 1];
    long n[KINDS];
    struct keys *k = keys_open(folder, &e);
    for (int i = 0; i < KEYS; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        new_key(k, name, key[i]);
    }
    assert_int_equal(keys_refresh(k, &e), 0);
    strcpy(kinds[0], key[0]);
    strcpy(kinds[1], key[KEYS - 1]);
    strcpy(kinds[2], key[0]);
    kinds[2][KEY_TEXT - 1] ^= 1;            /* all but the last */
    strcpy(kinds[3], key[KEYS - 1]);
    kinds[3][KEY_TEXT - 1] ^= 1;
    strcpy(kinds[4], key[0]);
    kinds[4][4] ^= 1;                       /* the first of the secret */
    memset(kinds[5], 'x', KEY_TEXT);
    kinds[5][KEY_TEXT] = '\0';
    const pid_t child = fork();
    if (child == 0)
        check_each(k, kinds, KINDS);
    for (int i = 0; i < KINDS; i++) {
        n[i] = count_instructions(child);
        for (int j = 1; j < CHECKS; j++) {      /* reading the clock may take an instruction more when the kernel moves it on */
            const long again = count_instructions(child);
            n[i] = again < n[i] ? again : n[i];
        }
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    keys_close(k);
    if (n[0] < 0) {
        print_message("the instructions of a check cannot be counted: ptrace is refused\n");
        skip();
    }
    assert_in_range(n[0], 1000, 100000000);
    assert_int_equal(n[0], n[1]);           /* a good key */
    for (int i = 3; i < KINDS; i++)
        if (n[i] != n[2])
            fail_msg("text %d takes %ld instructions, text 2 %ld", i, n[i], n[2]);
}

static void scopes_and_models(void **state)
{
    (void)state;
    unsigned bits;
    char text[32];
    assert_int_equal(key_scopes_parse("admin,chat", &bits, &e), 0);
    assert_string_equal(key_scopes_text(bits, text), "chat,admin");
    assert_int_equal(key_scopes_parse("chat,root", &bits, &e), -1);
    assert_int_equal(key_scopes_parse("", &bits, &e), -1);
    struct key_info k = { .models = "Smol*,qwen-?" };
    assert_true(key_allows_model(&k, "SmolLM2"));
    assert_true(key_allows_model(&k, "qwen-3"));
    assert_false(key_allows_model(&k, "qwen-30"));
    k.models[0] = '\0';
    assert_true(key_allows_model(&k, "anything"));
}

/* ---- the audit log ---- */

static struct audit *open_log(uint64_t max_bytes, int keep)
{
    const struct audit_options o = { .folder = folder, .max_bytes = max_bytes, .keep = keep };
    struct audit *a = audit_open(&o, &e);
    assert_non_null(a);
    return a;
}

static void add_entry(struct audit *a, int i, int status, const char *path)
{
    char id[40];
    snprintf(id, sizeof id, "id-%d", i);
    audit_add(a, &(struct audit_entry){ .time_ms = 1795273726003 + i, .request_id = id, .method = "POST", .path = path, .status = status, .latency_ms = 1.5 * i,
                                        .key_name = i % 2 ? "app" : NULL, .client_ip = "127.0.0.1", .user_agent = "t \"q\" \x01\xff", .model = "m", .prompt_tokens = 3,
                                        .completion_tokens = i, .error = status >= 400 ? "no" : NULL });
}

static void every_line_is_json_with_all_fields(void **state)
{
    (void)state;
    struct audit *a = open_log(0, 0);
    char *line;
    for (int i = 0; i < 1200; i++)
        add_entry(a, i, i % 10 ? 200 : 429, "/v1/chat/completions");
    assert_false(audit_recent(a, AUDIT_RECENT, &line));
    assert_true(audit_recent(a, AUDIT_RECENT - 1, &line));
    assert_non_null(strstr(line, "\"id-200\""));
    free(line);
    assert_true(audit_recent(a, 0, &line));
    json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    static const char *const fields[] = { "timestamp", "timestamp_unix", "request_id", "method", "path", "status_code", "latency_ms", "api_key_name", "client_ip",
                                          "user_agent", "model_id", "prompt_tokens", "completion_tokens", "total_tokens", "error_message", "hash" };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        assert_non_null(json_object_get(o, fields[i]));
    assert_string_equal(json_string_value(json_object_get(o, "timestamp")), "2026-11-21T15:08:47.202Z");
    assert_string_equal(json_string_value(json_object_get(o, "user_agent")), "t \"q\" \x01\xef\xbf\xbd");
    assert_int_equal(json_integer_value(json_object_get(o, "total_tokens")), 3 + 1199);
    json_decref(o);
    free(line);
    struct audit_stats s;
    audit_stats(a, &s);
    assert_int_equal(s.entries, 1200);
    assert_int_equal(s.errors, 0);
    audit_close(a);
}

static void read_all(const char *path, char **text, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    *text = malloc(*size + 1);
    assert_int_equal(fread(*text, 1, *size, f), *size);
    (*text)[*size] = '\0';
    fclose(f);
}

static void write_all(const char *path, const char *text, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    fclose(f);
}

static void verify_finds_every_change(void **state)
{
    (void)state;
    struct audit *a = open_log(0, 0);
    struct audit_check c;
    char *text, head[SHA256_HEX + 1];
    size_t size;
    for (int i = 0; i < 20; i++)
        add_entry(a, i, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    assert_false(c.broken);
    assert_int_equal(c.lines, 21);          /* and the line where the file begins */
    strcpy(head, c.head);
    read_all(in_folder(AUDIT_FILE), &text, &size);
    for (size_t at = 0; at < size; at += 17) {          /* any byte changed */
        if (text[at] == '\n')
            continue;
        char *changed = malloc(size);
        memcpy(changed, text, size);
        changed[at] ^= 1;
        write_all(in_folder(AUDIT_FILE), changed, size);
        free(changed);
        assert_int_equal(audit_verify(folder, head, &c, &e), 0);
        assert_true(c.broken || c.bad || !c.found);
    }
    for (int line = 0; line < 21; line++) {             /* any line taken out; the last shows against the hash */
        char *from = text, *cut = malloc(size);
        for (int i = 0; i < line; i++)
            from = strchr(from, '\n') + 1;
        char *to = strchr(from, '\n') + 1;
        memcpy(cut, text, (size_t)(from - text));
        memcpy(cut + (from - text), to, size - (size_t)(to - text));
        write_all(in_folder(AUDIT_FILE), cut, size - (size_t)(to - from));
        free(cut);
        assert_int_equal(audit_verify(folder, head, &c, &e), 0);
        assert_true(line < 20 ? c.broken : !c.found);
    }
    write_all(in_folder(AUDIT_FILE), text, size);
    assert_int_equal(audit_verify(folder, head, &c, &e), 0);
    assert_true(!c.broken && c.found);
    free(text);
}

static int count_ids(void *user, const struct audit_record *r)
{
    unsigned char *seen = user;
    const char *id = strstr(r->line, "\"id-");
    seen[atoi(id + 4)]++;
    return 0;
}

static void rotation_loses_nothing(void **state)
{
    (void)state;
    enum { N = 3000 };
    unsigned char *seen = calloc(N, 1);
    struct audit_scan s;
    struct audit_check c;
    struct audit_files f;
    const struct audit_filter all = { 0 };
    for (int round = 0; round < 3; round++) {           /* closed and opened in between */
        struct audit *a = open_log(20000, 100);
        for (int i = 0; i < N / 3; i++)
            add_entry(a, round * (N / 3) + i, 200, "/v1/x");
        audit_close(a);
    }
    assert_int_equal(audit_scan(folder, &all, count_ids, seen, &s, &e), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(s.bad, 0);
    assert_int_equal(audit_files_list(&f, folder, &e), 0);
    assert_in_range(f.n, 40, 90);
    for (int i = 0; i + 1 < f.n; i++)
        assert_true(f.file[i].gz);
    audit_files_release(&f);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    assert_false(c.broken);
    struct audit *a = open_log(20000, 3);               /* keep fewer */
    for (int i = 0; i < 200; i++)
        add_entry(a, i, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(audit_files_list(&f, folder, &e), 0);
    assert_int_equal(f.n, 4);
    audit_files_release(&f);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    assert_true(!c.broken && c.older_gone);
    free(seen);
}

static int n_names(const char *part)
{
    char command[256];
    snprintf(command, sizeof command, "ls %s | grep -c -- '%s'", folder, part);
    FILE *f = popen(command, "r");
    int n = -1;
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

static void make(const char *name)
{
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    fputs("rest\n", f);
    fclose(f);
}

static void clearing_all_takes_what_a_crash_left(void **state)
{
    (void)state;
    uint64_t dropped;
    struct audit_check c;
    struct audit *a = open_log(20000, 100);
    for (int i = 0; i < 300; i++)
        add_entry(a, i, 200, "/v1/x");
    audit_close(a);
    make("requests_20200101_000000.jsonl");                 /* beside its whole .gz: not taken away yet */
    make("requests_20200101_000000.jsonl.gz");
    make("requests_20200101_000001_002.jsonl.gz.tmp");      /* half of one */
    make("requests_of_somebody.jsonl");
    assert_in_range(n_names("requests_2"), 5, 20);
    assert_int_equal(audit_clear(folder, 0, &dropped, &e), 0);
    assert_in_range(n_names("requests_2"), 5, 20);
    assert_int_equal(audit_clear(folder, 1, &dropped, &e), 0);
    assert_int_equal(dropped, 1);                           /* the line that begins the file */
    assert_int_equal(n_names("requests_2"), 0);
    assert_int_equal(n_names("requests_of_somebody.jsonl"), 1);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    assert_false(c.broken);
}

/* The clock went back by years after a rotation, and the current file is missing: names and the chain go on. */
static void a_clock_that_steps_breaks_no_chain(void **state)
{
    (void)state;
    struct audit_check c;
    struct audit_files f;
    char head[SHA256_HEX + 1];
    struct audit *a = open_log(20000, 100);
    for (int i = 0; i < 20; i++)
        add_entry(a, i, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    strcpy(head, c.head);
    char from[256];
    strcpy(from, in_folder(AUDIT_FILE));
    assert_int_equal(rename(from, in_folder("requests_20991231_235959.jsonl")), 0);
    for (int round = 0; round < 2; round++) {               /* its end is found in the plain file, then in the packed one */
        a = open_log(20000, 100);
        for (int i = 0; i < 100; i++)
            add_entry(a, i, 200, "/v1/x");
        audit_close(a);
        assert_int_equal(audit_verify(folder, head, &c, &e), 0);
        assert_true(!c.broken && c.found);
        assert_int_equal(audit_files_list(&f, folder, &e), 0);
        assert_in_range(f.n, 3, 20);
        for (int i = 0; i + 1 < f.n; i++)
            assert_true(f.file[i].gz && strstr(f.file[i].path, "/requests_20991231_235959"));
        audit_files_release(&f);
        if (round == 0)
            assert_int_equal(audit_clear(folder, 1, &(uint64_t){ 0 }, &e), 0);
        if (round == 0) {
            strcpy(from, in_folder(AUDIT_FILE));
            assert_int_equal(rename(from, in_folder("requests_20991231_235959.jsonl")), 0);
            assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
            strcpy(head, c.head);
        }
    }
}

static void processes_share_a_log(void **state)
{
    (void)state;
    enum { WRITERS = 4, EACH = 500 };
    unsigned char *seen = calloc(WRITERS * EACH, 1);
    struct audit_scan s;
    struct audit_check c;
    const struct audit_filter all = { 0 };
    for (int w = 0; w < WRITERS; w++)
        if (fork() == 0) {
            const struct audit_options o = { .folder = folder, .max_bytes = 30000, .keep = 1000 };
            struct err mine;
            struct audit *a = audit_open(&o, &mine);
            for (int i = 0; a && i < EACH; i++)
                add_entry(a, w * EACH + i, 200, "/v1/x");
            if (w == 0)
                kill(getpid(), SIGKILL);    /* without closing: what was added is there */
            audit_close(a);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    assert_int_equal(audit_scan(folder, &all, count_ids, seen, &s, &e), 0);
    for (int i = 0; i < WRITERS * EACH; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    assert_false(c.broken);
    assert_int_equal(c.bad, 0);
    free(seen);
}

/* A child that rotates every few lines says of each that it is written, until it is killed: those lines are there, once, in one chain. */
static void kill_9_while_rotating_loses_nothing(void **state)
{
    (void)state;
    enum { ROUNDS = 12, EACH = 200 };
    unsigned char *seen = calloc(ROUNDS * EACH, 1), *said = calloc(ROUNDS * EACH, 1);
    const struct audit_filter all = { 0 };
    struct audit_scan s;
    struct audit_check c;
    for (int round = 0; round < ROUNDS; round++) {
        int fd[2], id, n = 0;
        assert_int_equal(pipe(fd), 0);
        const pid_t child = fork();
        if (child == 0) {
            struct audit *a = open_log(2500, 1000);
            for (int i = round * EACH; i < (round + 1) * EACH; i++) {
                add_entry(a, i, 200, "/v1/x");
                if (write(fd[1], &i, sizeof i) != sizeof i)
                    break;
            }
            _exit(0);
        }
        close(fd[1]);
        while (read(fd[0], &id, sizeof id) == sizeof id) {
            said[id] = 1;
            if (++n == 10 + 7 * round)
                kill(child, SIGKILL);
        }
        close(fd[0]);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    struct audit *a = open_log(2500, 1000);             /* who comes next goes on */
    add_entry(a, 0, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(audit_scan(folder, &all, count_ids, seen, &s, &e), 0);
    seen[0]--;
    for (int i = 0; i < ROUNDS * EACH; i++)
        assert_true(said[i] ? seen[i] == 1 : seen[i] <= 1);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    if (c.broken)
        fail_msg("%s", c.where);
    free(seen);
    free(said);
}

static void half_a_line_is_ended(void **state)
{
    (void)state;
    struct audit_check c;
    struct audit_scan s;
    const struct audit_filter all = { 0 };
    unsigned char seen[10] = { 0 };
    struct audit *a = open_log(0, 0);
    add_entry(a, 0, 200, "/v1/x");
    audit_close(a);
    FILE *f = fopen(in_folder(AUDIT_FILE), "ab");
    fputs("{\"timestamp\":\"2026-11-", f);
    fclose(f);
    a = open_log(0, 0);
    add_entry(a, 1, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(audit_scan(folder, &all, count_ids, seen, &s, &e), 0);
    assert_int_equal(seen[0] + seen[1], 2);
    assert_int_equal(s.bad, 1);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    assert_false(c.broken);
    assert_int_equal(c.bad, 1);
}

static void trouble_is_counted_and_passes(void **state)
{
    (void)state;
    struct audit_stats s;
    struct audit_check c;
    struct audit *a = open_log(0, 0);
    add_entry(a, 0, 200, "/v1/x");
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    struct stat st;
    assert_int_equal(stat(in_folder(AUDIT_FILE), &st), 0);
    small.rlim_cur = (rlim_t)st.st_size + 100;          /* the disk takes a part of the next line */
    setrlimit(RLIMIT_FSIZE, &small);
    add_entry(a, 1, 200, "/v1/x");
    setrlimit(RLIMIT_FSIZE, &old);
    audit_stats(a, &s);
    assert_int_equal(s.errors, 1);
    assert_true(s.last_error[0]);
    add_entry(a, 2, 200, "/v1/x");
    audit_stats(a, &s);
    assert_int_equal(s.entries, 2);
    audit_close(a);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    assert_false(c.broken);
    assert_int_equal(c.bad, 0);
    assert_int_equal(c.lines, 3);
}

/* The disk is full when a file is rotated: lines are counted as lost until there is room, then the chain goes on from what was rotated, whose end is known:
 * nothing of it is read for each line, in the server's loop. */
static void a_full_disk_at_rotation_costs_no_reading(void **state)
{
    (void)state;
    struct audit_stats s;
    struct audit_check c;
    struct audit_files f = { 0 };
    struct rlimit old, small;
    char from[256], to[256], path[900] = "";
    struct audit *a = open_log(20000, 10);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    add_entry(a, 0, 200, "/v1/x");
    struct stat st;
    assert_int_equal(stat(in_folder(AUDIT_FILE), &st), 0);
    for (int i = 1; st.st_size < 19200; i++) {
        add_entry(a, i, 200, "/v1/x");
        assert_int_equal(stat(in_folder(AUDIT_FILE), &st), 0);
    }
    assert_in_range(st.st_size, 19200, 19999);
    memset(path, 'x', sizeof path - 1);                 /* the next line does not fit */
    const int fd = open(in_folder(AUDIT_FILE), O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX), 0);            /* whoever compresses leaves it to us */
    small.rlim_cur = 50;
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 10; i++)
        add_entry(a, 1000 + i, 200, path);
    setrlimit(RLIMIT_FSIZE, &old);
    audit_stats(a, &s);
    assert_int_equal(s.errors, 10);
    assert_int_equal(s.rotations, 1);
    unlink(in_folder(AUDIT_FILE));                      /* no line went into it */
    assert_int_equal(audit_files_list(&f, folder, &e), 0);
    assert_int_equal(f.n, 1);
    strcpy(from, f.file[0].path);
    snprintf(to, sizeof to, "%s/aside", folder);
    assert_int_equal(rename(from, to), 0);
    write_all(from, "not a log\n", 10);                 /* who reads it goes on from nothing */
    add_entry(a, 2000, 200, "/v1/x");
    assert_int_equal(rename(to, from), 0);
    close(fd);
    audit_close(a);
    audit_files_release(&f);
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    if (c.broken)
        fail_msg("%s", c.where);
    assert_int_equal(c.files, 2);
}

static void clearing_goes_on_beside_a_writer(void **state)
{
    (void)state;
    uint64_t dropped;
    struct audit_check c;
    struct audit *a = open_log(5000, 100);
    for (int i = 0; i < 100; i++)
        add_entry(a, i, 200, "/v1/x");
    assert_int_equal(audit_verify(folder, NULL, &c, &e), 0);
    char before[SHA256_HEX + 1];
    strcpy(before, c.head);
    assert_int_equal(audit_clear(folder, 1, &dropped, &e), 0);
    add_entry(a, 100, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(audit_verify(folder, before, &c, &e), 0);
    assert_false(c.broken);
    assert_int_equal(c.lines, 2);
    assert_true(c.found && c.older_gone);               /* the chain goes on from what was cleared */

    a = open_log(5000, 100);                            /* the current file alone: rotated ones before it stay part of the chain */
    for (int i = 0; i < 100; i++)
        add_entry(a, i, 200, "/v1/x");
    assert_int_equal(audit_clear(folder, 0, &dropped, &e), 0);
    assert_true(dropped > 0);
    add_entry(a, 100, 200, "/v1/x");
    audit_close(a);
    assert_int_equal(audit_verify(folder, before, &c, &e), 0);
    assert_false(c.broken);
    assert_true(c.lines > 80 && c.files > 5);
}

static void queries(void **state)
{
    (void)state;
    char **lines;
    int n;
    struct audit_scan s;
    struct audit *a = open_log(4000, 100);
    for (int i = 0; i < 100; i++)
        add_entry(a, i, i % 10 ? 200 : 429, i % 2 ? "/v1/chat/completions" : "/health");
    audit_close(a);
    FILE *f = fopen(in_folder(AUDIT_FILE), "ab");       /* what an attacker might leave */
    fputs("\n{}\n{\"timestamp_unix\":9,\"status_code\":\nnull\n[1,2]\n{\"a\":{\"timestamp_unix\":1}}\n\xff\xfe\n{\"timestamp_unix\":5,\"path\":\"/\\", f);
    fclose(f);
    struct audit_filter q = { .key_name = "app" };
    assert_int_equal(audit_newest(folder, &q, 7, &lines, &n, &s, &e), 0);
    assert_int_equal(n, 7);
    assert_int_equal(s.bad, 7);
    assert_non_null(strstr(lines[0], "\"id-99\""));
    assert_non_null(strstr(lines[6], "\"id-87\""));
    for (int i = 0; i < n; i++)
        free(lines[i]);
    free(lines);
    static const struct { struct audit_filter f; int n; } cases[] = {
        { { .status = 429 }, 10 }, { { .status = 4 }, 10 }, { { .path = "/v1/" }, 50 }, { { .path = "/v1/chat/completions/" }, 0 }, { { .method = "GET" }, 0 },
        { { .min_latency_ms = 1.5 * 90 }, 10 }, { { .since_ms = 1795273726003 + 60 }, 40 }, { { .until_ms = 1795273726003 + 60 }, 60 },
        { { .key_name = "app", .status = 200, .path = "/v1" }, 50 }, { { .key_name = "" }, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(audit_newest(folder, &cases[i].f, 1000, &lines, &n, &s, &e), 0);
        assert_int_equal(n, cases[i].n);
        for (int k = 0; k < n; k++)
            free(lines[k]);
        free(lines);
    }
    json_t *sum = audit_summary(folder, 1, 1795273726003 + 99 + 1, &e);
    assert_int_equal(json_integer_value(json_object_get(sum, "total_requests")), 100);
    assert_int_equal(json_integer_value(json_object_get(sum, "errors")), 10);
    assert_int_equal(json_integer_value(json_object_get(sum, "unique_keys")), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "endpoints"), "/health")), 50);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "status_codes"), "429")), 10);
    assert_int_equal(json_integer_value(json_object_get(sum, "total_tokens")), 300 + 99 * 100 / 2);
    json_decref(sum);
}

struct wanted { const char *text; int64_t time_ms, prompt; int status, seen; double latency_ms; };

static int check_record(void *user, const struct audit_record *r)
{
    struct wanted *w = user;
    w->seen++;
    if (r->time_ms != w->time_ms || r->status != w->status || r->latency_ms != w->latency_ms || r->prompt_tokens != w->prompt)
        fail_msg("%s: %" PRId64 " %d %.17g %" PRId64, w->text, r->time_ms, r->status, r->latency_ms, r->prompt_tokens);
    return 0;
}

/* Lines are read by the order of our fields where they have it: another order, other fields, numbers of any form say the same. */
static void fields_in_any_order(void **state)
{
    (void)state;
    static const struct wanted cases[] = {
        { "{\"timestamp\":\"x\",\"timestamp_unix\":1795273726.003,\"request_id\":\"a\\\"b\",\"method\":\"POST\",\"path\":\"/\",\"status_code\":200,\"latency_ms\":12.345,\"prompt_tokens\":7}", 1795273726003, 7, 200, 1, 12.345 },
        { "{\"status_code\":200,\"timestamp_unix\":1795273726.003,\"latency_ms\":12.345,\"prompt_tokens\":7,\"timestamp\":\"x\"}", 1795273726003, 7, 200, 1, 12.345 },
        { "{\"timestamp\":\"x\",\"status_code\":500,\"timestamp_unix\":9,\"status_code\":404,\"prompt_tokens\":null}", 9000, -1, 404, 1, 0 },
        { "{\"timestamp\":\"x\",\"timestamp_unix\":9.5,\"mine\":true,\"status_code\":-3,\"latency_ms\":1e3,\"prompt_tokens\":123456789012345678}", 9500, 123456789012345678, -3, 1, 1000 },
        { "{\"timestamp_unix\":9.0625,\"status_code\":200,\"latency_ms\":0.1,\"prompt_tokens\":12345678901234567890}", 9062, INT64_MAX, 200, 1, 0.1 },
        { "{\"timestamp_unix\":9.0625,\"status_code\":200,\"latency_ms\":1234567.1234567,\"prompt_tokens\":-1}", 9062, -1, 200, 1, 1234567.1234567 },
        { "{\"timestamp_unix\":9.0625,\"status_code\":200,\"latency_ms\":99999999.999999,\"prompt_tokens\":0}", 9062, 0, 200, 1, 99999999.999999 },
        { "{\"timestamp_unix\":9,\"event\":\"begin\",\"status_code\":200}", 0, 0, 0, 0, 0 },
        { "{\"timestamp_unix\":9,\"status_code\": 200}", 0, 0, 0, 0, 0 },
        { "{\"timestamp_unix\":9,\"status_code\":200}}", 0, 0, 0, 0, 0 },
        { "{\"timestamp_unix\":9,\"status_code\":", 0, 0, 0, 0, 0 },
        { "{\"timestamp\":", 0, 0, 0, 0, 0 },
        { "{\"timestamp\":\"x\",\"timestamp_unix\":9,\"status_code\":200", 0, 0, 0, 0, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct audit_filter all = { 0 };
        struct audit_scan s;
        struct wanted w = cases[i];
        write_all(in_folder(AUDIT_FILE), w.text, strlen(w.text));
        FILE *f = fopen(in_folder(AUDIT_FILE), "ab");
        fputc('\n', f);
        fclose(f);
        w.seen = 0;
        assert_int_equal(audit_scan(folder, &all, check_record, &w, &s, &e), 0);
        assert_int_equal(w.seen, cases[i].seen);
        assert_int_equal(s.bad, !cases[i].seen && !strstr(w.text, "event"));
    }
}

static int to_memory(void *user, const char *text, size_t n) { return fwrite(text, 1, n, user) != n; }

static void csv_is_safe(void **state)
{
    (void)state;
    char *text;
    size_t size;
    uint64_t rows;
    const struct audit_filter all = { 0 };
    struct audit *a = open_log(0, 0);
    audit_add(a, &(struct audit_entry){ .time_ms = 1, .path = "=cmd|' /C calc'!A0", .method = "a,b", .user_agent = "say \"hi\"\n", .prompt_tokens = -1, .completion_tokens = -1 });
    audit_close(a);
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(audit_csv(folder, &all, to_memory, f, &rows, &e), 0);
    fclose(f);
    assert_int_equal(rows, 1);
    assert_memory_equal(text, "timestamp,timestamp_unix,request_id,method,path,", 48);
    assert_non_null(strstr(text, ",\"a,b\",\"'=cmd|' /C calc'!A0\","));
    assert_non_null(strstr(text, ",\"say \"\"hi\"\"\n\","));
    assert_null(strstr(text, "hash"));
    free(text);
}

/* A cell as the export writes it for a user agent. */
static void cell_is(const char *given, const char *want)
{
    char *text, expected[256];
    size_t size;
    uint64_t rows, dropped;
    const struct audit_filter all = { 0 };
    assert_int_equal(audit_clear(folder, 1, &dropped, &e), 0);
    struct audit *a = open_log(0, 0);
    audit_add(a, &(struct audit_entry){ .time_ms = 1, .user_agent = given, .prompt_tokens = -1, .completion_tokens = -1 });
    audit_close(a);
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(audit_csv(folder, &all, to_memory, f, &rows, &e), 0);
    fclose(f);
    snprintf(expected, sizeof expected, ",,,%s,,,,,\r\n", want);
    if (!strstr(text, expected))
        fail_msg("%s: expected %s in %s", given, expected, text);
    free(text);
}

static void formulas_begin_nowhere(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "plain", "plain" }, { "Mozilla/5.0 (X11; Linux)", "\"Mozilla/5.0 (X11; Linux)\"" }, { "a-b+c", "a-b+c" }, { "=1", "\"'=1\"" }, { "+1", "\"'+1\"" }, { "-1", "\"'-1\"" },
        { "@SUM(A1)", "\"'@SUM(A1)\"" }, { "\t=1", "\"'\t'=1\"" }, { "\r=1", "\"'\r'=1\"" }, { "\n=1", "\"'\n'=1\"" }, { "  =1", "\"'  =1\"" }, { " a", "\" a\"" },
        { "\ufeff=1", "\"'\ufeff=1\"" }, { "\u00a0\u3000-1", "\"'\u00a0\u3000-1\"" }, { "\uff1d1", "\"'\uff1d1\"" }, { "\uff20x", "\"'\uff20x\"" },
        { "\"=1", "\"\"\"=1\"" }, { "a\";=1", "\"a\"\";'=1\"" }, { "a;=1", "\"a;'=1\"" }, { "a; @b", "\"a;' @b\"" }, { "a|=1", "\"a|'=1\"" }, { "a\t+1", "\"a\t'+1\"" }, { "'=1", "'=1" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cell_is(cases[i][0], cases[i][1]);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_slide), T(a_limit_holds_and_says_when), T(threads_never_exceed_a_limit), T(damaged_counters_begin_anew),
        T(counters_of_dead_keys_make_room), cmocka_unit_test(a_network_of_ipv6_is_one_address), T(a_locked_file_is_waited_for_as_long_as_asked),
        T(a_key_that_was_shown_outlives_kill_9), T(a_check_takes_the_same_time), T(clearing_all_takes_what_a_crash_left), T(a_clock_that_steps_breaks_no_chain),
        cmocka_unit_test(addresses_have_windows_too), T(keys_live_and_die), T(no_secret_is_stored), T(a_locked_or_damaged_file_keeps_known_keys), T(a_change_is_learnt_while_the_file_is_locked),
        T(a_file_that_others_make_is_locked_not_damaged),
        cmocka_unit_test(scopes_and_models), T(every_line_is_json_with_all_fields), T(verify_finds_every_change), T(rotation_loses_nothing), T(processes_share_a_log),
        T(half_a_line_is_ended), T(kill_9_while_rotating_loses_nothing), T(trouble_is_counted_and_passes), T(a_full_disk_at_rotation_costs_no_reading), T(clearing_goes_on_beside_a_writer), T(queries), T(csv_is_safe), T(formulas_begin_nowhere), T(fields_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
